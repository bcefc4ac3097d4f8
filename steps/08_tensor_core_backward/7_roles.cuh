// Step 08, third part -- two roles, for d = 128.
// Idea      With all warps alike, d = 128 leaves a warp registers for dK and dV of 16 keys, and
//           each fragment of Q and dO that it loads serves one mma: shared memory is what it waits
//           for. Let two warps share 32 keys instead: one makes P and dV, the other dS and dK. Each
//           has one gradient to keep, and each fragment serves two mma
// Changed   since 2_atomics: a warp does half of the work for twice as many keys; P goes from one
//           warp to the other, in 16 bits, through the place of dS. d = 64 stays there: its warps
//           own 32 keys
// Traffic   as 2_atomics.cuh
// Launch    as 2_atomics.cuh
// Owns      pair of warps: 32 keys; one of them their dV, the other their dK
// Still bad tensor cores and shared memory take turns with exponentials and barriers: step 11
#pragma once

#include "common/dialect/ptx/barrier.h"
#include "steps/08_tensor_core_backward/2_atomics.cuh"

namespace step08_roles {

using fa::bf16;
using namespace step08;  // the products, the tiles, delta_kernel and convert_kernel

constexpr int d = 128;
constexpr int kWarpPairs = kWarps<d> / 2;
constexpr int kBands = Bc / kMma / kWarpPairs;  // of 16 keys a pair
constexpr int kBand = kBands * kMma;

static __global__ void __launch_bounds__(kThreads<d>)
    backward_kernel(const bf16* Q,       // [B*H, N, d]
                    const bf16* K,       // [B*Hkv, Nk, d]
                    const bf16* V,       // [B*Hkv, Nk, d]
                    const bf16* dO,      // [B*H, N, d]
                    const float* LSE2,   // [B*H, N]
                    const float* delta,  // [B*H, N]
                    float* dQ_sum,       // [B*H, Np / 16, d / 8, 4, 32]; Np: N in whole tiles
                    bf16* dK,            // [B*Hkv, Nk, d]
                    bf16* dV,            // [B*Hkv, Nk, d]
                    int kv_heads, int group, int N, int Nk, float scale, bool causal) {
  // --- prologue: which keys; K_j and V_j stay in shared memory
  Tiles<d>& smem = *fa::dynamic_shared<Tiles<d>>();
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int pair = warp % kWarpPairs;
  const bool makes_dK = warp >= kWarpPairs;  // else P and dV
  const int Tr = (N + Br - 1) / Br, Tc = gridDim.x / kv_heads;
  const int j = causal ? blockIdx.x / kv_heads : blockIdx.x % Tc;
  const int kv_head = causal ? blockIdx.x % kv_heads : blockIdx.x / Tc;
  const size_t key0 = size_t(kv_head) * Nk + j * Bc;
  load_tile<d, Bc, kThreads<d>>(K + key0 * d, smem.K, Nk - j * Bc);
  load_tile<d, Bc, kThreads<d>>(V + key0 * d, smem.V, Nk - j * Bc);
  bf16* own =
      (makes_dK ? smem.V : smem.K) + pair * kBand * d;  // V for dP^T = V dO^T, K for S^T = K Q^T
  const int key = j * Bc + pair * kBand;                // the pair's first
  const float scale_log2 = scale * fa::kLog2e;
  float rdKV[kBands][d / 8][4] = {};  // dK or dV

  // --- mainloop
  // Rows above see none of the keys. The last row sees key j * Bc, for it is < Nk: first < Tr.
  const int first = causal ? max(0, j * Bc + N - Nk) / Br : 0;
  for (int h = 0; h < group; ++h) {
    const int head = kv_head * group + h;
    auto load_rows = [&](int i) {
      const int stage = i % kStages, rows = N - i * Br, r = threadIdx.x;
      const size_t row0 = size_t(head) * N + i * Br;
      load_tile<d, Br, kThreads<d>>(Q + row0 * d, smem.Q[stage], rows);
      load_tile<d, Br, kThreads<d>>(dO + row0 * d, smem.dO[stage], rows);
      if (r < Br) {  // past the end all are 0: P is 1 there, and adds 1 * 0
        fa::cp_async_4(&smem.LSE2[stage][r], LSE2 + row0 + r, r < rows ? 4 : 0);
        fa::cp_async_4(&smem.delta[stage][r], delta + row0 + r, r < rows ? 4 : 0);
      }
    };
    auto add_dQ = [&](int i) {
      query_gradient<d, Br, Bc>(smem.dS[i % kStages], smem.K,
                                dQ_sum + (size_t(head) * Tr + i) * Br * d);
    };
    load_rows(first);
    for (int i = first; i < Tr; ++i) {
      fa::cp_async_wait_all();
      // Behind this barrier all copies of tile i are here, all warps are done with tile i - 1, and
      // dS of tile i - 1 is complete.
      __syncthreads();
      if (i + 1 < Tr) load_rows(i + 1);
      const int stage = i % kStages;
      // While one warp of a pair computes P, the other one has something to do: dQ.
      if (makes_dK && i > first) add_dQ(i - 1);
      const bf16 *sQ = smem.Q[stage], *sdO = smem.dO[stage];
      bf16* sdS = smem.dS[stage] + pair * kBand * Br;
      const int ready = 1 + pair;        // a barrier of two warps: P is written
      float rS[kBands][Br / 8][4] = {};  // S^T, P^T; or dP^T, dS^T
      if (makes_dK) {
        UNROLL
        for (int n = 0; n < Br / 8; ++n) {
          const int r = n * 8 + lane % 4 * 2;
          const float2 row_delta = *reinterpret_cast<const float2*>(&smem.delta[stage][r]);
          UNROLL
          for (int t = 0; t < kBands; ++t) {
            UNROLL
            for (int e = 0; e < 4; ++e) rS[t][n][e] = e % 2 ? -row_delta.y : -row_delta.x;
          }
        }
      }
      dot_rows<d, kBands, Br>(own, makes_dK ? sdO : sQ, rS);
      if (!makes_dK) {
        const int row = i * Br;
        if (key + kBand > (causal ? min(Nk, row + 1 + Nk - N) : Nk)) {
          mask<true, kBands, Br>(rS, row + lane % 4 * 2, key + lane / 4, N, Nk, causal);
        }
        UNROLL
        for (int n = 0; n < Br / 8; ++n) {
          const int r = n * 8 + lane % 4 * 2;
          const float2 row_lse = *reinterpret_cast<const float2*>(&smem.LSE2[stage][r]);
          UNROLL
          for (int t = 0; t < kBands; ++t) {
            UNROLL
            for (int e = 0; e < 4; ++e) {
              rS[t][n][e] =
                  fa::exp2_approx(rS[t][n][e] * scale_log2 - (e % 2 ? row_lse.y : row_lse.x));
            }
          }
        }
        hand_over<Br, kBands, Br>(rS, sdS);
      }
      fa::bar_sync(ready, 2 * fa::kWarp);
      if (makes_dK) {  // dS^T = P^T (dP^T - delta), in place: a lane reads what it will write
        multiply_by<Br, kBands, Br>(sdS, rS);
        put_tile<Br, kBands, Br>(rS, 1.f, sdS, 0);
      }
      add_product<d, kBands, Br>(rS, makes_dK ? sQ : sdO, rdKV);
      if (!makes_dK && i > first) add_dQ(i - 1);
    }
    __syncthreads();  // all warps are done with this head's tiles; the last dS is complete
    add_dQ(Tr - 1);
  }

  // --- epilogue: dK takes K's place, dV takes V's
  __syncthreads();  // all warps are done with K and V
  bf16* to = (makes_dK ? smem.K : smem.V) + pair * kBand * d;
  bf16* gradient = (makes_dK ? dK : dV) + (size_t(kv_head) * Nk + key) * d;
  store_tile<d, kBands>(rdKV, makes_dK ? scale : 1.f, to, gradient, Nk - key);
}

// --- host ---------------------------------------------------------------------------------------

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  if (p.d != d) return step08::backward(p, t);
  float *delta = t.scratch<float>("delta"), *LSE2 = t.scratch<float>("LSE2");
  float* dQ_sum = t.scratch<float>("dQ_sum");
  const unsigned BHkv = p.kv_heads(), Tc = fa::ceil_div(p.Nk, Bc), blocks = row_blocks<d>(p);
  const int Np = fa::ceil_div(p.N, Br) * Br;
  fa::launch(delta_kernel<d>, {dim3(blocks), dim3(kRowThreads)}, t.O, t.dO, t.LSE, delta, LSE2,
             dQ_sum, p.N, Np);
  fa::launch(step08_roles::backward_kernel, {dim3(Tc * BHkv), dim3(kThreads<d>), sizeof(Tiles<d>)},
             t.Q, t.K, t.V, t.dO, LSE2, delta, dQ_sum, t.dK, t.dV, int(BHkv), p.H / p.Hkv, p.N,
             p.Nk, p.scale(), p.causal);
  fa::launch(convert_kernel<d>, {dim3(blocks), dim3(kRowThreads)}, dQ_sum, t.dQ, p.N, Np,
             p.scale());
}

}  // namespace step08_roles

// Step 08 -- two roles for the warps, for d = 128.
// Idea      With all warps alike, d = 128 leaves a warp registers for dK and dV of 16 keys only. A
//           fragment of Q or dO then serves one mma, and the warps wait for shared memory. Here
//           two warps share 32 keys: one computes P and dV, the other dS and dK. Each keeps one
//           gradient in its registers, and each fragment serves two mma
// Changed   since 08 5_atomics: a warp does half of the work for twice as many keys; P goes from
//           one warp to the other, in 16 bits, through the buffer of dS. d = 64, whose warps own 32
//           keys, and GPUs without the shared memory for 128 keys run 5_atomics.cuh
// Traffic   as 5_atomics.cuh
// Launch    as 5_atomics.cuh
// Owns      pair of warps: 32 keys; one of them their dV, the other their dK
// Still bad operands pass through registers; a warp's products and exponentials take turns
#pragma once

#include "common/dialect/ptx/barrier.h"
#include "steps/08_tensor_core_backward/5_atomics.cuh"

namespace step08_roles {

using namespace step08;  // the products, the tiles, delta_kernel and convert_kernel

constexpr int d = 128, Br = 64, Bc = 128;
constexpr int kWarpPairs = Tiles<d, Br, Bc>::kThreads / fa::kWarp / 2;
constexpr int kPairKeys = Bc / kWarpPairs;
constexpr int kBands = kPairKeys / kMma;  // of 16 keys a pair

// Two elements of P for the partner warp, in 16 bits each. P is at most 1, so the sign and the top
// bit of the exponent of its fp32 are 0. The next 16 bits hold two more bits of mantissa than bf16,
// whose rounding would add to that of dS. S and LSE are rounded, so P may come out larger than 1;
// with scores beyond 2^21 it can reach 2, which needs the top bit. Hence the minimum.
__device__ inline uint32_t pack_P(float lo, float hi) {
  const uint32_t half = 1u << 13, one = __float_as_uint(1.f);  // half: rounds to nearest
  return min(__float_as_uint(lo) + half, one) >> 14 |
         min(__float_as_uint(hi) + half, one) >> 14 << 16;
}
__device__ inline float2 unpack_P(uint32_t two) {
  return make_float2(__uint_as_float((two & 0xffff) << 14), __uint_as_float(two >> 16 << 14));
}

static __global__ void __launch_bounds__(Tiles<d, Br, Bc>::kThreads)
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
  // --- prologue: K_j and V_j stay in shared memory
  using T = Tiles<d, Br, Bc>;
  T& smem = *fa::dynamic_shared<T>();
  constexpr int kThreads = T::kThreads;
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int pair = warp % kWarpPairs;
  const bool makes_dK = warp >= kWarpPairs;  // else P and dV
  const int tx = fa::column_of(lane);        // this lane's first row
  const int Tr = (N + Br - 1) / Br, Tc = gridDim.x / kv_heads;
  const int j = causal ? blockIdx.x / kv_heads : blockIdx.x % Tc;  // the longest walks start first
  const int kv_head = causal ? blockIdx.x % kv_heads : blockIdx.x / Tc;
  const size_t key0 = size_t(kv_head) * Nk + j * Bc;
  load_tile<d, Bc, kThreads>(K + key0 * d, smem.K, Nk - j * Bc);
  load_tile<d, Bc, kThreads>(V + key0 * d, smem.V, Nk - j * Bc);
  dK += size_t(kv_head) * Nk * d, dV += size_t(kv_head) * Nk * d;
  const bf16* own = (makes_dK ? smem.V : smem.K) + pair * kPairKeys * d;  // V for dP^T, K for S^T
  const int key = j * Bc + pair * kPairKeys;                              // the pair's first
  const float scale_log2 = scale * fa::kLog2e;
  float rdKV[kBands][d / 8][4] = {};  // dK or dV

  // --- mainloop
  const int first = causal ? max(0, j * Bc + N - Nk) / Br : 0;  // rows above see none of these keys
  for (int h = 0; h < group; ++h) {
    auto load_rows = [&](int i) {
      const int stage = i % kStages, rows = N - i * Br, r = threadIdx.x;
      const size_t row0 = size_t(kv_head * group + h) * N + i * Br;
      load_tile<d, Br, kThreads>(Q + row0 * d, smem.Q[stage], rows);
      load_tile<d, Br, kThreads>(dO + row0 * d, smem.dO[stage], rows);
      if (r < Br) {  // past the end all are 0: P is 1 there, and adds 1 * 0
        fa::cp_async_4(&smem.LSE2[stage][r], LSE2 + row0 + r, r < rows ? 4 : 0);
        fa::cp_async_4(&smem.delta[stage][r], delta + row0 + r, r < rows ? 4 : 0);
      }
    };
    auto add_dQ = [&](int i) {
      query_gradient<d, Br, Bc>(smem.dS[i % kStages], smem.K,
                                dQ_sum + (size_t(kv_head * group + h) * Tr + i) * Br * d);
    };
    load_rows(first);
    for (int i = first; i < Tr; ++i) {
      fa::cp_async_wait_all();
      __syncthreads();  // tile i is here; tile i - 1 has been read, and its dS is complete
      if (i + 1 < Tr) load_rows(i + 1);
      const int stage = i % kStages;
      // While one warp of a pair computes P, the other one computes dQ.
      if (makes_dK && i > first) add_dQ(i - 1);
      const bf16 *sQ = smem.Q[stage], *sdO = smem.dO[stage];
      bf16* sdS = smem.dS[stage] + pair * kPairKeys * Br;
      const int ready = 1 + pair;        // a barrier of two warps: P is written
      float rS[kBands][Br / 8][4] = {};  // S^T, P^T; or dP^T, dS^T
      if (makes_dK) {
        UNROLL
        for (int n = 0; n < Br / 8; ++n) {
          const float2 row_delta = *reinterpret_cast<const float2*>(&smem.delta[stage][n * 8 + tx]);
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
        if (key + kPairKeys > (causal ? min(Nk, row + 1 + Nk - N) : Nk)) {
          mask<true, kBands, Br>(rS, row + tx, key + fa::row_of(lane), N, Nk, causal);
        }
        UNROLL
        for (int n = 0; n < Br / 8; ++n) {
          const float2 row_lse = *reinterpret_cast<const float2*>(&smem.LSE2[stage][n * 8 + tx]);
          UNROLL
          for (int t = 0; t < kBands; ++t) {
            UNROLL
            for (int e = 0; e < 4; ++e) {
              rS[t][n][e] =
                  fa::exp2_approx(rS[t][n][e] * scale_log2 - (e % 2 ? row_lse.y : row_lse.x));
            }
          }
        }
        put_tile<Br, kBands, Br>(rS, sdS, 0, pack_P);
      }
      fa::bar_sync(ready, 2 * fa::kWarp);
      if (makes_dK) {  // dS^T = P^T (dP^T - delta), in place: a lane reads what it will write
        const int from = swizzle<Br>(fa::row_of(lane), 0) + tx;
        UNROLL
        for (int t = 0; t < kBands; ++t) {
          UNROLL
          for (int n = 0; n < Br / 8; ++n) {
            UNROLL
            for (int h = 0; h < 2; ++h) {
              const float2 p = unpack_P(*reinterpret_cast<const uint32_t*>(
                  sdS + (t * kMma + h * 8) * Br + (from ^ n * 8)));
              rS[t][n][2 * h] *= p.x;
              rS[t][n][2 * h + 1] *= p.y;
            }
          }
        }
        put_tile<Br, kBands, Br>(rS, sdS, 0, fa::pack_bf16);
      }
      add_product<d, kBands, Br>(rS, makes_dK ? sQ : sdO, rdKV);
      if (!makes_dK && i > first) add_dQ(i - 1);
    }
    __syncthreads();  // all warps are done with this head's tiles; the last dS is complete
    add_dQ(Tr - 1);   // first < Tr: the last row sees the block's first key
  }

  // --- epilogue: dK goes through the pair's keys of K, dV through those of V
  __syncthreads();  // all warps are done with K and V
  bf16 *s = (makes_dK ? smem.K : smem.V) + pair * kPairKeys * d,
       *g = (makes_dK ? dK : dV) + size_t(key) * d;
  store_tile<d, kBands>(rdKV, makes_dK ? scale : 1.f, s, g, Nk - key);
}

// --- host ---------------------------------------------------------------------------------------

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  using T = Tiles<d, Br, Bc>;
  if (p.d != d || sizeof(T) > p.gpu.block_shared_bytes) return step08::backward(p, t);
  float *delta = t.scratch<float>("delta"), *LSE2 = t.scratch<float>("LSE2");
  float* dQ_sum = t.scratch<float>("dQ_sum");
  const unsigned BHkv = p.kv_heads();
  const dim3 rows(row_blocks(p));
  const int Np = padded_rows(p);
  const dim3 grid(fa::ceil_div(p.Nk, Bc) * BHkv);
  fa::launch(delta_kernel<d>, {rows, dim3(kRowThreads)}, t.O, t.dO, t.LSE, delta, LSE2, dQ_sum, p.N,
             Np);
  fa::launch(step08_roles::backward_kernel, {grid, dim3(T::kThreads), sizeof(T)}, t.Q, t.K, t.V,
             t.dO, LSE2, delta, dQ_sum, t.dK, t.dV, int(BHkv), p.H / p.Hkv, p.N, p.Nk, p.scale(),
             p.causal);
  fa::launch(convert_kernel<d>, {rows, dim3(kRowThreads)}, dQ_sum, t.dQ, p.N, Np, p.scale());
}

}  // namespace step08_roles

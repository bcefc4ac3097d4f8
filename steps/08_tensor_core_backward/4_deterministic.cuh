// Step 08 -- FlashAttention-2's backward on tensor cores, without atomics.
// Idea      The pipeline of step 07: the next tile of rows is copied while this one is computed.
//           Every sum still has one owner and a fixed order: the same bits in each run
// Changed   since 08 3_wide: copies one tile ahead, one barrier per tile of 64 rows; the sum of dP
//           starts from -delta; stores of 16 bytes; smaller tiles where shared memory is short
// Traffic   requested read  2*BH*((4 + 2*Tc)*N*d + 2*Tr*Nk*d) + 2*BHkv*2*Nk*d + 4*BH*(3 + 2*Tc)*N B
//                     write 2*BH*N*d + 2*BHkv*2*Nk*d + 8*BH*N B   Tc = Nk/Bc, Tr = N/128
//           compulsory      2*(4*BH*N*d + 4*BHkv*Nk*d) + 4*BH*N B
// Launch    delta; query; backward (Tc * B*Hkv), 128 threads (d = 64) or 256
// Owns      block: dK and dV of 128 keys (64 where shared memory is short); warp: 32 or 16 of them
// Still bad S and dP are computed twice, 7 products instead of 5: 5_atomics
#pragma once

#include "common/dialect/cuda.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"
#include "steps/08_tensor_core_backward/1_queries.cuh"  // dQ
#include "steps/08_tensor_core_backward/parts.cuh"

namespace step08_deterministic {

using namespace step08;  // the products

// In shared memory, Br x Bc: 64 x 128, 65 KB when d = 64, 129 KB when d = 128; or 32 x 64, 65 KB.
template <int d, int Br, int Bc>
struct Tiles {
  static constexpr int kBands = d == 64 ? 2 : 1;  // of 16 keys a warp: what the registers hold
  static constexpr int kWarpKeys = kBands * kMma;
  static constexpr int kThreads = Bc / kWarpKeys * fa::kWarp;
  static constexpr int kRows = d == 64 ? 32 : Br;  // whose scores a warp has at a time
  bf16 K[Bc * d];                                  // dK and dV on their way out
  bf16 V[Bc * d];
  bf16 Q[kStages][Br * d];
  bf16 dO[kStages][Br * d];
  float LSE2[kStages][Br], delta[kStages][Br];  // LSE2: in powers of 2
};

// A block owns a tile of keys and walks the tiles of rows that see it. dK and dV stay in registers;
// so do P and dS. It walks the rows of each of the `group` heads that share these keys.
template <int d, int Br, int Bc>
__global__ void __launch_bounds__(Tiles<d, Br, Bc>::kThreads, d == 64 ? 2 : 1)
    backward_kernel(const bf16* Q,       // [B*H, N, d]
                    const bf16* K,       // [B*Hkv, Nk, d]
                    const bf16* V,       // [B*Hkv, Nk, d]
                    const bf16* dO,      // [B*H, N, d]
                    const float* LSE2,   // [B*H, N]
                    const float* delta,  // [B*H, N]
                    bf16* dK,            // [B*Hkv, Nk, d]
                    bf16* dV,            // [B*Hkv, Nk, d]
                    int kv_heads, int group, int N, int Nk, float scale, bool causal) {
  // --- prologue: K_j and V_j stay in shared memory
  using T = Tiles<d, Br, Bc>;
  T& smem = *fa::dynamic_shared<T>();
  constexpr int kBands = T::kBands, kWarpKeys = T::kWarpKeys, kThreads = T::kThreads;
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int tx = fa::column_of(lane);  // this lane's first row
  const int Tr = (N + Br - 1) / Br, Tc = gridDim.x / kv_heads;
  const int j = causal ? blockIdx.x / kv_heads : blockIdx.x % Tc;  // the longest walks start first
  const int kv_head = causal ? blockIdx.x % kv_heads : blockIdx.x / Tc;
  const size_t key0 = size_t(kv_head) * Nk + j * Bc;
  load_tile<d, Bc, kThreads>(K + key0 * d, smem.K, Nk - j * Bc);
  load_tile<d, Bc, kThreads>(V + key0 * d, smem.V, Nk - j * Bc);
  dK += size_t(kv_head) * Nk * d, dV += size_t(kv_head) * Nk * d;
  const int key = j * Bc + warp * kWarpKeys;  // the warp's first
  bf16 *sK = smem.K + warp * kWarpKeys * d, *sV = smem.V + warp * kWarpKeys * d;
  float rdK[kBands][d / 8][4] = {}, rdV[kBands][d / 8][4] = {};

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
    load_rows(first);
    for (int i = first; i < Tr; ++i) {
      fa::cp_async_wait_all();
      __syncthreads();  // all copies of tile i are here, and all warps are done with tile i - 1
      if (i + 1 < Tr) load_rows(i + 1);
      const int stage = i % kStages;
      UNROLL
      for (int q = 0; q < Br; q += T::kRows) {
        const bf16 *sQ = smem.Q[stage] + q * d, *sdO = smem.dO[stage] + q * d;
        const float *sLSE2 = smem.LSE2[stage] + q, *sdelta = smem.delta[stage] + q;

        // P^T = exp(S^T - LSE), normalised at once: LSE holds both m and log l.
        float rP[kBands][T::kRows / 8][4] = {};
        dot_rows<d, kBands, T::kRows>(sK, sQ, rP);
        const int row = i * Br + q;
        if (key + kWarpKeys > (causal ? min(Nk, row + 1 + Nk - N) : Nk)) {
          mask<true, kBands, T::kRows>(rP, row + tx, key + fa::row_of(lane), N, Nk, causal);
        }
        UNROLL
        for (int n = 0; n < T::kRows / 8; ++n) {
          const float2 row_lse = *reinterpret_cast<const float2*>(&sLSE2[n * 8 + tx]);
          UNROLL
          for (int t = 0; t < kBands; ++t) {
            UNROLL
            for (int e = 0; e < 4; ++e) {
              rP[t][n][e] = fa::exp2_approx(rP[t][n][e] * (scale * fa::kLog2e) -
                                            (e % 2 ? row_lse.y : row_lse.x));
            }
          }
        }
        add_product<d, kBands, T::kRows>(rP, sdO, rdV);

        // dS^T = P^T (dP^T - delta): the sum of dP^T = V dO^T starts from -delta.
        float rdS[kBands][T::kRows / 8][4];
        UNROLL
        for (int n = 0; n < T::kRows / 8; ++n) {
          const float2 row_delta = *reinterpret_cast<const float2*>(&sdelta[n * 8 + tx]);
          UNROLL
          for (int t = 0; t < kBands; ++t) {
            UNROLL
            for (int e = 0; e < 4; ++e) rdS[t][n][e] = e % 2 ? -row_delta.y : -row_delta.x;
          }
        }
        dot_rows<d, kBands, T::kRows>(sV, sdO, rdS);
        UNROLL
        for (int t = 0; t < kBands; ++t) {
          UNROLL
          for (int n = 0; n < T::kRows / 8; ++n) {
            UNROLL
            for (int e = 0; e < 4; ++e) rdS[t][n][e] *= rP[t][n][e];
          }
        }
        add_product<d, kBands, T::kRows>(rdS, sQ, rdK);
      }
    }
    __syncthreads();  // all warps are done with this head's tiles
  }

  // --- epilogue: dK and dV go through the warp's keys of K and V
  store_tile<d, kBands>(rdK, scale, sK, dK + size_t(key) * d, Nk - key);
  store_tile<d, kBands>(rdV, 1.f, sV, dV + size_t(key) * d, Nk - key);
}

// --- host ---------------------------------------------------------------------------------------

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d;
  fa::Prediction t = step08_queries::traffic(p);
  dispatch_tiles<Tiles>(p, [&](int, int Br, int Bc) {
    const fa::TileVisits v = fa::visited_tiles(p, Br, Bc);
    t["dO"].read += 2 * BH * v.rows * d;
    t["delta"].read += 4 * BH * v.rows;
    t["LSE2"].read += 4 * BH * v.rows;
    t["Q"].read += 2 * BH * v.rows * d;
    t["K"].read += 2 * p.kv_size();
    t["V"].read += 2 * p.kv_size();
    t["dK"].write = t["dV"].write = 2 * p.kv_size();
    t.hbm +=
        {.read = 2 * (2 * BH * N * d + 2 * p.kv_size()) + 8 * BH * N, .write = 2 * 2 * p.kv_size()};
    t.flops += BH * 8 * Br * Bc * v.tiles * d;  // four products; zeros are multiplied too
  });
  return t;
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  float *delta = t.scratch<float>("delta"), *LSE2 = t.scratch<float>("LSE2");
  const unsigned BHkv = p.kv_heads();
  step08_queries::backward(p, t);
  dispatch_tiles<Tiles>(p, [&](auto d, auto Br, auto Bc) {
    const dim3 grid(fa::ceil_div(p.Nk, Bc) * BHkv);
    using T = Tiles<d, Br, Bc>;
    fa::launch(backward_kernel<d, Br, Bc>, {grid, dim3(T::kThreads), sizeof(T)}, t.Q, t.K, t.V,
               t.dO, LSE2, delta, t.dK, t.dV, int(BHkv), p.H / p.Hkv, p.N, p.Nk, p.scale(),
               p.causal);
  });
}

}  // namespace step08_deterministic

// Step 08 -- dK and dV on tensor cores: a block owns more.
// Idea      A fragment of Q or dO serves the keys of the warp that loads it: with 32 keys (d = 64)
//           two mma instead of one. With 128 keys per block Q and dO are read half as often. Query
//           heads that share keys share dK and dV: the block walks the rows of all of them
// Changed   since 08 2_keys: 128 keys per block, 32 or 16 per warp; Nk != N, GQA
// Traffic   requested read  2*BH*((4 + 2*Tc)*N*d + 2*Tr*Nk*d) + 2*BHkv*2*Nk*d + 4*BH*(3 + 2*Tc)*N B
//                     write 2*BH*N*d + 2*BHkv*2*Nk*d + 8*BH*N B   Tc = Nk/128, Tr = N/128
//           compulsory      2*(4*BH*N*d + 4*BHkv*Nk*d) + 4*BH*N B
// Launch    delta; query; backward (Tc * B*Hkv), 128 threads (d = 64) or 256
// Owns      block: dK and dV of Bc = 128 keys, by Br = 32 rows; warp: 32 of the keys (d = 64) or 16
// Still bad all warps wait for each tile: 4_deterministic
#pragma once

#include "common/dialect/cuda.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"
#include "steps/08_tensor_core_backward/1_queries.cuh"  // dQ
#include "steps/08_tensor_core_backward/parts.cuh"

namespace step08_wide {

using namespace step08;  // the products

// What a block keeps in shared memory: Br rows and Bc keys.
template <int d, int Br, int Bc>
struct Tiles {
  static constexpr int kBands = d == 64 ? 2 : 1;  // of 16 keys a warp: what the registers hold
  static constexpr int kWarpKeys = kBands * kMma;
  static constexpr int kThreads = Bc / kWarpKeys * fa::kWarp;
  bf16 K[Bc * d];
  bf16 V[Bc * d];
  bf16 Q[Br * d];
  bf16 dO[Br * d];
  float LSE2[Br], delta[Br];  // LSE2: in powers of 2
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
  const int tx = fa::column_of(lane), ty = warp * kWarpKeys + fa::row_of(lane);  // first row, key
  const int Tr = (N + Br - 1) / Br, Tc = gridDim.x / kv_heads;
  const int j = causal ? blockIdx.x / kv_heads : blockIdx.x % Tc;  // the longest walks start first
  const int kv_head = causal ? blockIdx.x % kv_heads : blockIdx.x / Tc;
  const size_t key0 = size_t(kv_head) * Nk + j * Bc;
  load_tile<d, Bc, kThreads>(K + key0 * d, smem.K, Nk - j * Bc);
  load_tile<d, Bc, kThreads>(V + key0 * d, smem.V, Nk - j * Bc);
  dK += size_t(kv_head) * Nk * d, dV += size_t(kv_head) * Nk * d;
  bf16 *sK = smem.K + warp * kWarpKeys * d, *sV = smem.V + warp * kWarpKeys * d;
  float rdK[kBands][d / 8][4] = {}, rdV[kBands][d / 8][4] = {};

  // --- mainloop
  const int first = causal ? max(0, j * Bc + N - Nk) / Br : 0;  // rows above see none of these keys
  for (int h = 0; h < group; ++h) {
    for (int i = first; i < Tr; ++i) {
      const int rows = N - i * Br, r = threadIdx.x;
      const size_t row0 = size_t(kv_head * group + h) * N + i * Br;
      load_tile<d, Br, kThreads>(Q + row0 * d, smem.Q, rows);
      load_tile<d, Br, kThreads>(dO + row0 * d, smem.dO, rows);
      if (r < Br) {  // past the end all are 0: P is 1 there, and adds 1 * 0
        smem.LSE2[r] = r < rows ? LSE2[row0 + r] : 0.f;
        smem.delta[r] = r < rows ? delta[row0 + r] : 0.f;
      }
      fa::cp_async_wait_all();
      __syncthreads();  // the tiles are complete

      // P^T = exp(S^T - LSE), normalised at once: LSE holds both m and log l.
      float rP[kBands][Br / 8][4] = {};
      dot_rows<d, kBands, Br>(sK, smem.Q, rP);
      const bool edge = (j + 1) * Bc > Nk || (causal && (j + 1) * Bc > i * Br + 1 + Nk - N);
      if (edge) mask<true, kBands, Br>(rP, i * Br + tx, j * Bc + ty, N, Nk, causal);
      UNROLL
      for (int t = 0; t < kBands; ++t) {
        UNROLL
        for (int n = 0; n < Br / 8; ++n) {
          UNROLL
          for (int e = 0; e < 4; ++e) {
            const float row_lse = smem.LSE2[n * 8 + tx + e % 2];
            rP[t][n][e] = fa::exp2_approx(rP[t][n][e] * (scale * fa::kLog2e) - row_lse);
          }
        }
      }
      add_product<d, kBands, Br>(rP, smem.dO, rdV);

      // dS^T = P^T (dP^T - delta); dK needs the factor of the scores, at the end.
      float rdP[kBands][Br / 8][4] = {};
      dot_rows<d, kBands, Br>(sV, smem.dO, rdP);
      UNROLL
      for (int t = 0; t < kBands; ++t) {
        UNROLL
        for (int n = 0; n < Br / 8; ++n) {
          UNROLL
          for (int e = 0; e < 4; ++e) {
            rdP[t][n][e] = rP[t][n][e] * (rdP[t][n][e] - smem.delta[n * 8 + tx + e % 2]);
          }
        }
      }
      add_product<d, kBands, Br>(rdP, smem.Q, rdK);
      __syncthreads();  // all have read the tiles; the next ones may overwrite
    }
  }

  // --- epilogue
  UNROLL
  for (int t = 0; t < kBands; ++t) {
    UNROLL
    for (int h = 0; h < 2; ++h) {
      const int c = j * Bc + ty + t * kMma + h * 8;
      if (c >= Nk) continue;
      uint32_t* gdK = reinterpret_cast<uint32_t*>(dK + size_t(c) * d + tx);
      uint32_t* gdV = reinterpret_cast<uint32_t*>(dV + size_t(c) * d + tx);
      UNROLL
      for (int n = 0; n < d / 8; ++n) {
        gdK[n * 4] = fa::pack_bf16(rdK[t][n][2 * h] * scale, rdK[t][n][2 * h + 1] * scale);
        gdV[n * 4] = fa::pack_bf16(rdV[t][n][2 * h], rdV[t][n][2 * h + 1]);
      }
    }
  }
}

// --- host ---------------------------------------------------------------------------------------

// Calls f(d, Br, Bc).
template <class F>
void dispatch_tiles(int head_dim, F&& f) {
  fa::dispatch_d<64, 128>(head_dim, [&](auto d) {
    f(d, std::integral_constant<int, 32>(), std::integral_constant<int, 128>());
  });
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d;
  fa::Prediction t = step08_queries::traffic(p);
  dispatch_tiles(p.d, [&](int, int Br, int Bc) {
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
  dispatch_tiles(p.d, [&](auto d, auto Br, auto Bc) {
    const dim3 grid(fa::ceil_div(p.Nk, Bc) * BHkv);
    using T = Tiles<d, Br, Bc>;
    fa::launch(backward_kernel<d, Br, Bc>, {grid, dim3(T::kThreads), sizeof(T)}, t.Q, t.K, t.V,
               t.dO, LSE2, delta, t.dK, t.dV, int(BHkv), p.H / p.Hkv, p.N, p.Nk, p.scale(),
               p.causal);
  });
}

}  // namespace step08_wide

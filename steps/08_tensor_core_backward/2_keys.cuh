// Step 08 -- dK and dV on tensor cores, and with 1_queries.cuh the whole backward.
// Idea      S^T = K Q^T instead of S: then P^T and dS^T leave the tensor cores in the pattern in
//           which dV += P^T dO and dK += dS^T Q take them, as P did for P V in step 07
// Changed   since 06 3_backward: products by mma.sync; P and dS stay in registers; dQ by 1_queries'
//           kernel instead of atomics: 7 products instead of 5, the same bits in each run
// Traffic   requested read   2*BH*(6 + 2*Tc + 2*Tr)*N*d + 4*BH*(3 + 2*Tc)*N B   Tc = N/Bc,
//                     write  2*BH*3*N*d + 8*BH*N B          Tr = N/128; causal: visited tiles
//           compulsory       2*BH*8*N*d + 4*BH*N B
// Launch    delta; query; backward (Tc, B*H), 128 threads
// Owns      block: dK and dV of Bc = 64 keys, by Br = 64 rows (d = 64) or 32; warp: 16 of the keys
// Still bad a fragment of Q or dO serves only 16 keys: 3_wide; all warps wait for each tile
#pragma once

#include "common/dialect/cuda.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"
#include "steps/08_tensor_core_backward/1_queries.cuh"  // dQ
#include "steps/08_tensor_core_backward/parts.cuh"

namespace step08_keys {

using namespace step08;  // the products

constexpr int kThreads = 128;  // four warps, each with 16 of the block's keys

// What a block keeps in shared memory: Br rows and Bc keys.
template <int d, int Br, int Bc>
struct Tiles {
  bf16 K[Bc * d];
  bf16 V[Bc * d];
  bf16 Q[Br * d];
  bf16 dO[Br * d];
  float LSE2[Br], delta[Br];  // LSE2: in powers of 2
};

// A block owns a tile of keys and walks the tiles of rows that see it. dK and dV stay in registers;
// P and dS as well: shared memory holds inputs only. Two blocks per SM are
// requested: while one waits for its tiles, the other computes.
template <int d, int Br, int Bc>
__global__ void __launch_bounds__(kThreads, 2) backward_kernel(const bf16* Q,       // [B*H, N, d]
                                                               const bf16* K,       // [B*H, N, d]
                                                               const bf16* V,       // [B*H, N, d]
                                                               const bf16* dO,      // [B*H, N, d]
                                                               const float* LSE,    // [B*H, N]
                                                               const float* delta,  // [B*H, N]
                                                               bf16* dK,            // [B*H, N, d]
                                                               bf16* dV,            // [B*H, N, d]
                                                               int N, float scale, bool causal) {
  // --- prologue: K_j and V_j stay in shared memory
  static_assert(Bc == kThreads / fa::kWarp * kMma, "16 keys a warp");
  Tiles<d, Br, Bc>& smem = *fa::dynamic_shared<Tiles<d, Br, Bc>>();
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int tx = fa::column_of(lane), ty = warp * kMma + fa::row_of(lane);  // its first row and key
  const int j = blockIdx.x;  // causal: the longest walks have the smallest j and start first
  const size_t bh = blockIdx.y;
  Q += bh * N * d, K += bh * N * d, V += bh * N * d, dO += bh * N * d;
  dK += bh * N * d, dV += bh * N * d;
  LSE += bh * N, delta += bh * N;
  load_tile<d, Bc>(K + size_t(j) * Bc * d, smem.K, N - j * Bc);
  load_tile<d, Bc>(V + size_t(j) * Bc * d, smem.V, N - j * Bc);
  const bf16 *sK = smem.K + warp * kMma * d, *sV = smem.V + warp * kMma * d;
  float rdK[1][d / 8][4] = {}, rdV[1][d / 8][4] = {};

  // --- mainloop
  const int first = causal ? j * Bc / Br : 0;  // rows above see none of these keys
  for (int i = first; i * Br < N; ++i) {
    load_tile<d, Br>(Q + size_t(i) * Br * d, smem.Q, N - i * Br);
    load_tile<d, Br>(dO + size_t(i) * Br * d, smem.dO, N - i * Br);
    if (threadIdx.x < Br) {
      const int r = i * Br + threadIdx.x;
      smem.LSE2[threadIdx.x] =
          r < N ? LSE[r] * fa::kLog2e : INFINITY;  // so P = 0 in rows past the end
      smem.delta[threadIdx.x] = r < N ? delta[r] : 0.f;
    }
    fa::cp_async_wait_all();
    __syncthreads();  // the tiles are complete

    // P^T = exp(S^T - LSE), normalised at once: LSE holds both m and log l.
    float rP[1][Br / 8][4] = {};
    dot_rows<d, 1, Br>(sK, smem.Q, rP);
    const bool edge = (j + 1) * Bc > N || (causal && (j + 1) * Bc > i * Br + 1);
    if (edge) mask<true, 1, Br>(rP, i * Br + tx, j * Bc + ty, N, N, causal);
    UNROLL
    for (int n = 0; n < Br / 8; ++n) {
      UNROLL
      for (int e = 0; e < 4; ++e) {
        const float row_lse = smem.LSE2[n * 8 + tx + e % 2];
        rP[0][n][e] = fa::exp2_approx(rP[0][n][e] * (scale * fa::kLog2e) - row_lse);
      }
    }
    add_product<d, 1, Br>(rP, smem.dO, rdV);

    // dS^T = P^T (dP^T - delta); dK needs the factor of the scores, at the end.
    float rdP[1][Br / 8][4] = {};
    dot_rows<d, 1, Br>(sV, smem.dO, rdP);
    UNROLL
    for (int n = 0; n < Br / 8; ++n) {
      UNROLL
      for (int e = 0; e < 4; ++e) {
        rdP[0][n][e] = rP[0][n][e] * (rdP[0][n][e] - smem.delta[n * 8 + tx + e % 2]);
      }
    }
    add_product<d, 1, Br>(rdP, smem.Q, rdK);
    __syncthreads();  // all have read the tiles; the next ones may overwrite
  }

  // --- epilogue
  UNROLL
  for (int h = 0; h < 2; ++h) {
    const int c = j * Bc + ty + h * 8;
    if (c >= N) continue;
    uint32_t* gdK = reinterpret_cast<uint32_t*>(dK + size_t(c) * d + tx);
    uint32_t* gdV = reinterpret_cast<uint32_t*>(dV + size_t(c) * d + tx);
    UNROLL
    for (int n = 0; n < d / 8; ++n) {
      gdK[n * 4] = fa::pack_bf16(rdK[0][n][2 * h] * scale, rdK[0][n][2 * h + 1] * scale);
      gdV[n * 4] = fa::pack_bf16(rdV[0][n][2 * h], rdV[0][n][2 * h + 1]);
    }
  }
}

// --- host ---------------------------------------------------------------------------------------

// Calls f(d, Br, Bc): fewer rows at d = 128, where registers are short.
template <class F>
void dispatch_tiles(int head_dim, F&& f) {
  fa::dispatch_d<64, 128>(head_dim, [&](auto d) {
    f(d, std::integral_constant<int, (d == 64 ? 64 : 32)>(), std::integral_constant<int, 64>());
  });
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d;
  fa::Prediction t = step08_queries::traffic(p);
  dispatch_tiles(p.d, [&](int, int Br, int Bc) {
    const fa::TileVisits v = fa::visited_tiles(p, Br, Bc);
    t["dO"].read += 2 * BH * v.rows * d;
    t["delta"].read += 4 * BH * v.rows;
    t["LSE"].read += 4 * BH * v.rows;
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
  float* delta = t.scratch<float>("delta");
  const unsigned BH = p.heads();
  step08_queries::backward(p, t);
  dispatch_tiles(p.d, [&](auto d, auto Br, auto Bc) {
    const dim3 grid(fa::ceil_div(p.N, Bc), BH);
    fa::launch(backward_kernel<d, Br, Bc>, {grid, dim3(kThreads), sizeof(Tiles<d, Br, Bc>)}, t.Q,
               t.K, t.V, t.dO, t.LSE, delta, t.dK, t.dV, p.N, p.scale(), p.causal);
  });
}

}  // namespace step08_keys

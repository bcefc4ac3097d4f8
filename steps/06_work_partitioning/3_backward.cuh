// Step 06 -- the backward, parallel over tiles of keys.
// Idea      dK and dV of a tile of keys need all rows but no other tile of keys: one block for
//           each. dQ of a row needs all tiles of keys, so their blocks add to it by atomics in HBM
// Changed   since 05 4_recompute: the outer loop over j is the grid; dQ is added by atomicAdd,
//           not read and written; skips causal tiles above the diagonal; larger register tiles
// Traffic   requested read   4*BH*((4 + 2*Tc)*N*d + 2*Tc*N) B   Tc = N/Bc; causal: visited tiles
//                     write  4*BH*(3*N*d + N) B                 dQ = 0 first; dK, dV; delta
//                     atomic 4*BH*Tc*N*d B                      dQ
//           compulsory       4*BH*(8*N*d + N) B
// Launch    delta (N/8, 1, B*H), 256 threads; backward (Tc, B*H), 128 threads
// Owns      block: dK, dV of Bc = 64 keys, by Br = 64 rows (d <= 64) or 32; thread: Bc/8 x d/16
// Still bad the order in which dQ is summed differs from run to run, and so do its last bits
#pragma once

#include "common/dialect/cuda.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"
#include "steps/05_recompute_backward/4_recompute.cuh"  // make_delta, as a whole
#include "steps/06_work_partitioning/2_registers.cuh"

namespace step06_backward {

using step06_registers::kGrid, step06_registers::kGridY, step06_registers::kThreads;  // 16 x 8
using step06_registers::kPadP, step06_registers::load_tile, step06_registers::dot_rows;
constexpr int kPad = 4;  // keeps rows 16-byte aligned

// What a block keeps in shared memory: Br rows and Bc keys.
template <int d, int Br, int Bc>
struct Tiles {
  float K[Bc][d + kPad];
  float V[Bc][d + kPad];
  float Q[Br][d + kPad];
  float dO[Br][d + kPad];
  float P_dS[Br][Bc + kPadP];  // P for dV, then dS
  float LSE2[Br], delta[Br];   // LSE2: in powers of 2
};

// C += A^T G, a sum over the rows: dV += P^T dO and dK += dS^T Q. Keys 4 ty .. + 3 and, when Bc is
// 64, 4 ty + 32 .. + 3; features 2 tx + 32 b and the next one.
template <int d, int Br, int stride, int kKeys>
__device__ inline void add_key_gradient(const float (&sA)[Br][stride],
                                        const float (&sG)[Br][d + kPad],
                                        float2 (&rC)[kKeys][d / (2 * kGrid)]) {
  const int tx = threadIdx.x % kGrid, ty = threadIdx.x / kGrid;
  UNROLL_BY(4)
  for (int r = 0; r < Br; ++r) {
    __align__(16) float p[kKeys];  // of one row
    UNROLL
    for (int g = 0; g < kKeys; g += 4) {
      *reinterpret_cast<float4*>(&p[g]) =
          *reinterpret_cast<const float4*>(&sA[r][4 * ty + g * kGridY]);
    }
    UNROLL
    for (int b = 0; b < d / (2 * kGrid); ++b) {
      const float2 v = *reinterpret_cast<const float2*>(&sG[r][2 * tx + b * 2 * kGrid]);
      UNROLL
      for (int k = 0; k < kKeys; ++k) {
        rC[k][b].x += p[k] * v.x;
        rC[k][b].y += p[k] * v.y;
      }
    }
  }
}

// C += dS K, rows ty + 8 a. Features tx + 16 b, not pairs: an atomic's lanes must be neighbours.
template <int d, int Br, int Bc>
__device__ inline void query_gradient(const float (&sA)[Br][Bc + kPadP],
                                      const float (&sB)[Bc][d + kPad],
                                      float (&rC)[Br / kGridY][d / kGrid]) {
  const int tx = threadIdx.x % kGrid, ty = threadIdx.x / kGrid;
  UNROLL_BY(2)
  for (int c = 0; c < Bc; c += 4) {
    __align__(16) float p[Br / kGridY][4];  // of a row and four keys
    UNROLL
    for (int a = 0; a < Br / kGridY; ++a) {
      *reinterpret_cast<float4*>(p[a]) = *reinterpret_cast<const float4*>(&sA[ty + a * kGridY][c]);
    }
    UNROLL
    for (int k = 0; k < 4; ++k) {
      UNROLL
      for (int b = 0; b < d / kGrid; ++b) {
        const float v = sB[c + k][tx + b * kGrid];
        UNROLL
        for (int a = 0; a < Br / kGridY; ++a) rC[a][b] += p[a][k] * v;
      }
    }
  }
}

// A block owns a tile of keys and walks the tiles of rows that see it. dK and dV stay in registers;
// other blocks add to the same rows of dQ, so it goes to HBM by atomics. Two blocks per SM are
// requested: while one waits for its tiles, the other computes.
template <int d, int Br, int Bc>
__global__ void __launch_bounds__(kThreads, 2) backward_kernel(const float* Q,      // [B*H, N, d]
                                                               const float* K,      // [B*H, N, d]
                                                               const float* V,      // [B*H, N, d]
                                                               const float* dO,     // [B*H, N, d]
                                                               const float* LSE,    // [B*H, N]
                                                               const float* delta,  // [B*H, N]
                                                               float* dQ,           // [B*H, N, d]
                                                               float* dK,           // [B*H, N, d]
                                                               float* dV,           // [B*H, N, d]
                                                               int N, float scale, bool causal) {
  // --- prologue: K_j and V_j stay in shared memory
  constexpr int kThreadRows = Br / kGridY, kThreadKeys = Bc / kGrid;  // of S, per thread
  constexpr int kOwnKeys = Bc / kGridY;                               // of dK and dV
  constexpr int kPairs = d / (2 * kGrid);  // pairs of features that a thread owns
  Tiles<d, Br, Bc>& smem = *fa::dynamic_shared<Tiles<d, Br, Bc>>();
  const int tx = threadIdx.x % kGrid, ty = threadIdx.x / kGrid;
  const int j = blockIdx.x;  // causal: the longest walks have the smallest j and start first
  const size_t bh = blockIdx.y;
  Q += bh * N * d, K += bh * N * d, V += bh * N * d, dO += bh * N * d;
  dQ += bh * N * d, dK += bh * N * d, dV += bh * N * d;
  LSE += bh * N, delta += bh * N;
  load_tile<d>(K, smem.K, j * Bc, N);
  load_tile<d>(V, smem.V, j * Bc, N);
  float2 rdK[kOwnKeys][kPairs] = {};
  float2 rdV[kOwnKeys][kPairs] = {};

  // --- mainloop
  const int first = causal ? j * Bc / Br : 0;  // rows above see none of these keys
  for (int i = first; i * Br < N; ++i) {
    load_tile<d>(Q, smem.Q, i * Br, N);
    load_tile<d>(dO, smem.dO, i * Br, N);
    if (threadIdx.x < Br) {
      const int r = i * Br + threadIdx.x;
      smem.LSE2[threadIdx.x] =
          r < N ? LSE[r] * fa::kLog2e : INFINITY;  // so P = 0 in rows past the end
      smem.delta[threadIdx.x] = r < N ? delta[r] : 0.f;
    }
    __syncthreads();  // the tiles are complete

    // P = exp(S - LSE), normalised at once: LSE holds both m and log l.
    float rP[kThreadRows][kThreadKeys] = {};
    dot_rows<d>(smem.Q, smem.K, rP);
    const bool edge = (j + 1) * Bc > N || (causal && (j + 1) * Bc > i * Br + 1);
    UNROLL
    for (int a = 0; a < kThreadRows; ++a) {
      UNROLL
      for (int b = 0; b < kThreadKeys; ++b) {
        const int r = i * Br + ty + a * kGridY, c = j * Bc + tx + b * kGrid;
        const bool masked = edge && (c >= N || (causal && c > r));
        rP[a][b] =
            masked ? 0.f : exp2f(rP[a][b] * (scale * fa::kLog2e) - smem.LSE2[ty + a * kGridY]);
        smem.P_dS[ty + a * kGridY][tx + b * kGrid] = rP[a][b];
      }
    }
    float rdP[kThreadRows][kThreadKeys] = {};
    dot_rows<d>(smem.dO, smem.V, rdP);
    __syncthreads();  // P is complete
    add_key_gradient<d>(smem.P_dS, smem.dO, rdV);
    __syncthreads();  // all have read P; dS may take its place

    // dS = scale * P * (dP - delta); dQ and dK both need the factor of the scores.
    UNROLL
    for (int a = 0; a < kThreadRows; ++a) {
      UNROLL
      for (int b = 0; b < kThreadKeys; ++b) {
        smem.P_dS[ty + a * kGridY][tx + b * kGrid] =
            scale * rP[a][b] * (rdP[a][b] - smem.delta[ty + a * kGridY]);
      }
    }
    __syncthreads();  // dS is complete
    add_key_gradient<d>(smem.P_dS, smem.Q, rdK);

    float rdQ[kThreadRows][d / kGrid] = {};
    query_gradient<d>(smem.P_dS, smem.K, rdQ);
    UNROLL
    for (int a = 0; a < kThreadRows; ++a) {
      const int r = i * Br + ty + a * kGridY;
      if (r >= N) continue;
      UNROLL  // the results are not used, so each is a RED: no thread waits for it
      for (int b = 0; b < d / kGrid; ++b) {
        atomicAdd(dQ + size_t(r) * d + tx + b * kGrid, rdQ[a][b]);
      }
    }
    __syncthreads();  // all have read the tiles; the next ones may overwrite
  }

  // --- epilogue
  UNROLL
  for (int k = 0; k < kOwnKeys; ++k) {
    const int c = j * Bc + 4 * ty + k / 4 * 4 * kGridY + k % 4;
    if (c >= N) continue;
    float2* gdK = reinterpret_cast<float2*>(dK + size_t(c) * d) + tx;
    float2* gdV = reinterpret_cast<float2*>(dV + size_t(c) * d) + tx;
    UNROLL
    for (int b = 0; b < kPairs; ++b) {
      gdK[b * kGrid] = rdK[k][b];
      gdV[b * kGrid] = rdV[k][b];
    }
  }
}

// --- host ---------------------------------------------------------------------------------------

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  return {{"delta", 4 * p.rows()}};
}

// Calls f(d, Br, Bc) with sizes whose tiles fit the shared memory that the GPU gives to a block.
// Of the largest ones of d = 128, 109 KB, an H200's SM holds two blocks.
template <class F>
void dispatch_tiles(const fa::Problem& p, F&& f) {
  fa::dispatch_d<32, 64, 96, 128>(p.d, [&](auto d) {
    const auto call = [&]<int rows, int keys>() {
      f(d, std::integral_constant<int, rows>(), std::integral_constant<int, keys>());
    };
    constexpr int rows = d <= 64 ? 64 : 32, fewer = d <= 96 ? rows : 16;
    if (sizeof(Tiles<d, rows, 64>) <= p.gpu.block_shared_bytes) {  // up to 109 KB
      call.template operator()<rows, 64>();
    } else if (sizeof(Tiles<d, fewer, 64>) <= p.gpu.block_shared_bytes) {
      call.template operator()<fewer, 64>();
    } else {  // up to 61 KB, for a T4
      call.template operator()<d == 64 ? 32 : fewer, d <= 64 ? 64 : 32>();
    }
  });
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d;
  fa::Prediction t;
  dispatch_tiles(p, [&](int, int Br, int Bc) {
    const fa::TileVisits v = fa::visited_tiles(p, Br, Bc);
    t["O"].read = 4 * BH * N * d;
    t["dO"].read = 4 * BH * (N + v.rows) * d;  // delta; each tile of keys
    t["delta"] = {.read = 4 * BH * v.rows, .write = 4 * BH * N};
    t["LSE"].read = 4 * BH * v.rows;
    t["Q"].read = 4 * BH * v.rows * d;
    t["K"].read = t["V"].read = 4 * BH * N * d;
    t["dQ"] = {.write = 4 * BH * N * d, .atomic = 4 * BH * v.rows * d};  // zeros first
    t["dK"].write = t["dV"].write = 4 * BH * N * d;
    // An atomic reads what it adds to: dQ is among the reads.
    t.hbm = {.read = 4 * BH * (7 * N * d + 2 * N), .write = 4 * BH * (4 * N * d + N)};
    t.flops = BH * 10 * Br * Bc * v.tiles * d;  // five products; zeros are multiplied too
  });
  return t;
}

inline void backward(const fa::Problem& p, const fa::Tensors<float>& t) {
  float* delta = t.scratch<float>("delta");
  const unsigned BH = p.heads();
  dispatch_tiles(p, [&](auto d, auto Br, auto Bc) {
    const dim3 grid(fa::ceil_div(p.N, Bc), BH);
    step05::make_delta<d>(p, t, delta);
    fa::launch(backward_kernel<d, Br, Bc>, {grid, dim3(kThreads), sizeof(Tiles<d, Br, Bc>)}, t.Q,
               t.K, t.V, t.dO, t.LSE, delta, t.dQ, t.dK, t.dV, p.N, p.scale(), p.causal);
  });
}

}  // namespace step06_backward

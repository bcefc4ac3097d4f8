// Step 05 -- P from LSE: one number per row instead of a row of P.
// Idea      P = exp(S - LSE): a tile of P needs only Q, K and LSE, and no N * N matrix is kept for
//           the backward. With delta, dS needs no other tile either: S and dP never leave the chip
// Changed   since 04 2_fused: a block computes one tile and ends; the second product is dP,
//           dO V^T; softmax is one exp; P and dS go to HBM, for the products of 1_standard. Delta's
//           kernel is that of 2_delta
// Traffic   requested read  4*BH*(3*N*N + (2 + 2*Tc + 2*Tr + 3*T)*N*d + 2*Tc*N) B   Tc = N/Bc,
//                     write 4*BH*(2*N*N + 3*N*d + N) B   Tr = N/Br, T = N/64; causal: seen T, 3*N*N
//           compulsory      4*BH*(8*N*d + N) B
// Launch    delta (N/8, 1, B*H), P and dS (Tc, Tr, B*H), dV, dK, dQ (1, N/64, B*H), 256 threads
// Owns      block: Br x Bc of P and dS, Br = 64, 32 (d = 96) or 16 (128), Bc = 64; thread: 1/256
// Still bad P and dS cross HBM between kernels, only to be multiplied
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/warp.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"
#include "steps/05_recompute_backward/1_standard.cuh"

namespace step05_from_lse {

using step02::kGrid, step02::kThreads, step02::dot_rows;  // a block's 16 x 16 threads
using step02::output_kernel, step05_standard::key_gradient_kernel;
constexpr int kPad = 4;     // keeps rows 16-byte aligned
constexpr int kBlockY = 8;  // rows of delta per block: one warp each

// delta = rowsum(dO * O): one value per query row. One warp owns a row.
template <int d>
__global__ void delta_kernel(const float* O,   // [B*H, N, d]
                             const float* dO,  // [B*H, N, d]
                             float* delta,     // [B*H, N]
                             int N) {
  const int r = blockIdx.x * kBlockY + threadIdx.y;
  const int lane = threadIdx.x;
  const size_t row = size_t(blockIdx.z) * N + r;
  if (r >= N) return;  // a whole warp leaves; shuffles follow, barriers do not
  float sum = 0.f;
  UNROLL
  for (int x = lane; x - lane < d; x += fa::kWarp) sum += dO[row * d + x] * O[row * d + x];
  sum = fa::warp_sum(sum);
  if (lane == 0) delta[row] = sum;
}

// What a block keeps in shared memory: Br rows and Bc keys.
template <int d, int Br, int Bc>
struct Tiles {
  float Q[Br][d + kPad];
  float dO[Br][d + kPad];
  float K[Bc][d + kPad];
  float V[Bc][d + kPad];
  float LSE[Br], delta[Br];
};

// Rows row0 .. row0 + Rows - 1 of a matrix [N, d] to shared memory; rows past the end are zero.
template <int d, int Rows>
__device__ inline void load_tile(const float* g,  // [N, d]
                                 float (&s)[Rows][d + kPad], int row0, int N) {
  constexpr int kVectors = d / 4;  // vectors of four floats per row
  for (int v = threadIdx.x; v < Rows * kVectors; v += kThreads) {
    const int r = v / kVectors, x = v % kVectors * 4;
    float4 row = make_float4(0.f, 0.f, 0.f, 0.f);
    if (row0 + r < N) row = *reinterpret_cast<const float4*>(g + size_t(row0 + r) * d + x);
    *reinterpret_cast<float4*>(&s[r][x]) = row;
  }
}

// One tile of P and of dS. No causal tile is skipped, as in step 04.
template <int d, int Br, int Bc>
__global__ void __launch_bounds__(kThreads, 2) tile_kernel(const float* Q,      // [B*H, N, d]
                                                           const float* K,      // [B*H, N, d]
                                                           const float* V,      // [B*H, N, d]
                                                           const float* dO,     // [B*H, N, d]
                                                           const float* LSE,    // [B*H, N]
                                                           const float* delta,  // [B*H, N]
                                                           float* P,            // [B*H, N, N]
                                                           float* dS,           // [B*H, N, N]
                                                           int N, float scale, bool causal) {
  constexpr int kThreadRows = Br / kGrid, kThreadKeys = Bc / kGrid;  // of a tile, per thread
  Tiles<d, Br, Bc>& smem = *fa::dynamic_shared<Tiles<d, Br, Bc>>();
  const int tx = threadIdx.x % kGrid, ty = threadIdx.x / kGrid;
  const int j = blockIdx.x, i = blockIdx.y;
  const size_t bh = blockIdx.z;
  Q += bh * N * d, K += bh * N * d, V += bh * N * d, dO += bh * N * d;
  P += bh * N * N, dS += bh * N * N;
  LSE += bh * N, delta += bh * N;

  load_tile<d>(K, smem.K, j * Bc, N);
  load_tile<d>(V, smem.V, j * Bc, N);
  load_tile<d>(Q, smem.Q, i * Br, N);
  load_tile<d>(dO, smem.dO, i * Br, N);
  if (threadIdx.x < Br) {
    const int r = i * Br + threadIdx.x;
    smem.LSE[threadIdx.x] = r < N ? LSE[r] : INFINITY;  // so P = 0 in rows past the end
    smem.delta[threadIdx.x] = r < N ? delta[r] : 0.f;
  }
  __syncthreads();  // the tiles are complete

  // P = exp(S - LSE), normalised at once: LSE holds both m and log l.
  float rP[kThreadRows][kThreadKeys] = {};  // rows ty + 16 a, keys tx + 16 b
  dot_rows<d>(smem.Q, smem.K, rP);
  UNROLL
  for (int a = 0; a < kThreadRows; ++a) {
    UNROLL
    for (int b = 0; b < kThreadKeys; ++b) {
      const int r = i * Br + ty + a * kGrid, c = j * Bc + tx + b * kGrid;
      const bool visible = c < N && (!causal || c <= r);
      rP[a][b] = visible ? expf(rP[a][b] * scale - smem.LSE[ty + a * kGrid]) : 0.f;
      if (r < N && c < N) P[size_t(r) * N + c] = rP[a][b];
    }
  }

  // dS = scale * P * (dP - delta); dQ and dK both need the factor of the scores.
  float rdP[kThreadRows][kThreadKeys] = {};
  dot_rows<d>(smem.dO, smem.V, rdP);
  UNROLL
  for (int a = 0; a < kThreadRows; ++a) {
    UNROLL
    for (int b = 0; b < kThreadKeys; ++b) {
      const int r = i * Br + ty + a * kGrid, c = j * Bc + tx + b * kGrid;
      const float ds = scale * rP[a][b] * (rdP[a][b] - smem.delta[ty + a * kGrid]);
      if (r < N && c < N) dS[size_t(r) * N + c] = ds;
    }
  }
}

// --- host ---------------------------------------------------------------------------------------

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  const uint64_t scores = 4 * p.scores(), rows = 4 * p.rows();
  return {{"m", rows}, {"l", rows}, {"P", scores}, {"dS", scores}, {"delta", rows}};
}

// Calls f(d, Br, Bc) with sizes whose tiles fit the shared memory that the GPU gives to a block.
template <class F>
void dispatch_tiles(const fa::Problem& p, F&& f) {
  fa::dispatch_d<32, 64, 96, 128>(p.d, [&](auto d) {
    constexpr int rows = d <= 64 ? 64 : d <= 96 ? 32 : 16;              // with 64 keys up to 83 KB
    constexpr int few = d == 64 ? 32 : rows, keys = d <= 64 ? 64 : 32;  // up to 51 KB, for a T4
    if (sizeof(Tiles<d, rows, 64>) <= p.gpu.block_shared_bytes) {
      f(d, std::integral_constant<int, rows>(), std::integral_constant<int, 64>());
    } else {
      f(d, std::integral_constant<int, few>(), std::integral_constant<int, keys>());
    }
  });
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d;
  fa::Prediction t;
  const fa::TileVisits v = fa::visited_tiles(p, step02::Br, step02::Bc);  // the products'
  dispatch_tiles(p, [&](int, int Br, int Bc) {
    const uint64_t Tr = fa::ceil_div(p.N, Br), Tc = fa::ceil_div(p.N, Bc);
    t["O"].read = 4 * BH * N * d;
    t["dO"].read = 4 * BH * ((1 + Tc) * N + v.rows) * d;  // delta; each tile of keys; dV
    t["delta"] = {.read = 4 * BH * Tc * N, .write = 4 * BH * N};
    t["LSE"].read = 4 * BH * Tc * N;
    t["Q"].read = 4 * BH * (Tc * N + v.rows) * d;  // each tile of keys; dK
    t["K"].read = 4 * BH * (Tr * N + v.keys) * d;  // each tile of rows; dQ
    t["V"].read = 4 * BH * Tr * N * d;
    t["P"] = {.read = 4 * BH * v.pairs, .write = 4 * BH * N * N};
    t["dS"] = {.read = 4 * BH * 2 * v.pairs, .write = 4 * BH * N * N};
    t["dQ"].write = t["dK"].write = t["dV"].write = 4 * BH * N * d;
    t.hbm = {.read = 4 * BH * (9 * N * d + 3 * N * N + 2 * N),
             .write = 4 * BH * (3 * N * d + 2 * N * N + N)};
    t.flops = BH * (4 * Br * Tr * Bc * Tc + 6 * uint64_t(step02::Br) * step02::Bc * v.tiles) * d;
  });
  return t;
}

inline void backward(const fa::Problem& p, const fa::Tensors<float>& t) {
  float* P = t.scratch<float>("P");
  float* dS = t.scratch<float>("dS");
  float* delta = t.scratch<float>("delta");
  const unsigned BH = p.heads();
  const dim3 rows(1, fa::ceil_div(p.N, step02::Br), BH);
  dispatch_tiles(p, [&](auto d, auto Br, auto Bc) {
    const dim3 few_rows(fa::ceil_div(p.N, kBlockY), 1, BH);
    fa::launch(delta_kernel<d>, {few_rows, dim3(fa::kWarp, kBlockY)}, t.O, t.dO, delta, p.N);
    const dim3 tiles(fa::ceil_div(p.N, Bc), fa::ceil_div(p.N, Br), BH);
    fa::launch(tile_kernel<d, Br, Bc>, {tiles, dim3(kThreads), sizeof(Tiles<d, Br, Bc>)}, t.Q, t.K,
               t.V, t.dO, t.LSE, delta, P, dS, p.N, p.scale(), p.causal);
    fa::launch(key_gradient_kernel<d>, {rows, dim3(kThreads)}, P, t.dO, t.dV, p.N, p.causal);
    fa::launch(key_gradient_kernel<d>, {rows, dim3(kThreads)}, dS, t.Q, t.dK, p.N, p.causal);
    fa::launch(output_kernel<d>, {rows, dim3(kThreads)}, dS, t.K, t.dQ, p.N, p.causal);
  });
}

}  // namespace step05_from_lse

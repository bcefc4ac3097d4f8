// Step 02 -- tiles in shared memory.
// Idea      A block computes a T x T tile of the product. It brings T x T tiles of both operands to
//           shared memory once, coalesced, and every element then serves T threads.
// Changed   since 01 1_naive: scores and output go through shared tiles; softmax is untouched
// Traffic   requested read  4*BH*(2*N*d*Tc + 3*N*N + (d/T)*N*N + N*d*Tc) B   Tc = N/T; causal:
//                     write 4*BH*(2*N*N + N*d) B                             visited tiles only
//           compulsory      4*BH*4*N*d B
// Launch    scores (N/T, N/T, B*H), output (d/T, N/T, B*H), 1024 threads; softmax as in 01
// Owns      block: one tile of S or O; thread: one element of it
// Still bad two shared loads for one multiply-add: shared memory is the limit now
#pragma once

#include "common/dialect/cuda.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"
#include "steps/01_naive/1_naive.cuh"  // its softmax, as a whole

namespace step02_shared {

constexpr int T = 32;    // tile width: a warp loads one row of a tile
constexpr int kPad = 1;  // shifts row r by r banks, so that a column lies in 32 different banks
constexpr int kBlockX = T, kBlockY = T;  // one thread per element of a tile

// S = scale * Q K^T. A block owns a tile of S and walks the features in slices of T.
template <int d>
__global__ void scores_kernel(const float* Q,  // [B*H, N, d]
                              const float* K,  // [B*H, N, d]
                              float* S,        // [B*H, N, N]
                              int N, float scale, bool causal) {
  __shared__ float sQ[T][T + kPad];
  __shared__ float sK[T][T + kPad];
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int j = blockIdx.x, i = blockIdx.y;
  const int c = blockIdx.x * kBlockX + threadIdx.x;  // key: the fast axis, so stores coalesce
  const int r = blockIdx.y * kBlockY + threadIdx.y;  // query
  const size_t bh = blockIdx.z;

  float s = 0.f;
  const bool visible = !causal || j <= i;  // the same for all threads of the block
  for (int x0 = 0; visible && x0 < d; x0 += T) {
    // Thread (ty, tx) loads row ty of both tiles: a warp reads 128 consecutive bytes.
    const int k = j * T + ty;
    sQ[ty][tx] = r < N ? Q[(bh * N + r) * d + x0 + tx] : 0.f;
    sK[ty][tx] = k < N ? K[(bh * N + k) * d + x0 + tx] : 0.f;
    __syncthreads();  // the tiles are complete
    for (int x = 0; x < T; ++x) s += sQ[ty][x] * sK[tx][x];
    __syncthreads();  // all have read; the next slice may overwrite
  }
  if (r < N && c < N) S[(bh * N + r) * N + c] = !causal || c <= r ? s * scale : -INFINITY;
}

// O = P V. A block owns T rows and T features of O and walks the keys in tiles of T.
template <int d>
__global__ void output_kernel(const float* P,  // [B*H, N, N]
                              const float* V,  // [B*H, N, d]
                              float* O,        // [B*H, N, d]
                              int N, bool causal) {
  __shared__ float sP[T][T];  // read along a row by all lanes at once: a broadcast, no pad needed
  __shared__ float sV[T][T];  // read along a row, one feature per lane: 32 banks
  const int tx = threadIdx.x, ty = threadIdx.y;
  const int i = blockIdx.y;
  const int x = blockIdx.x * kBlockX + threadIdx.x;  // feature: the fast axis
  const int r = blockIdx.y * kBlockY + threadIdx.y;  // query
  const size_t bh = blockIdx.z;

  float o = 0.f;
  const int tiles = causal ? i + 1 : (N + T - 1) / T;  // beyond the diagonal P is 0
  for (int j = 0; j < tiles; ++j) {
    const int c = j * T + tx, k = j * T + ty;
    sP[ty][tx] = r < N && c < N ? P[(bh * N + r) * N + c] : 0.f;
    sV[ty][tx] = k < N ? V[(bh * N + k) * d + x] : 0.f;
    __syncthreads();  // the tiles are complete
    for (int key = 0; key < T; ++key) o += sP[ty][key] * sV[key][tx];
    __syncthreads();  // all have read; the next tiles may overwrite
  }
  if (r < N) O[(bh * N + r) * d + x] = o;
}

// --- host ---------------------------------------------------------------------------------------

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  return {{"S", 4 * p.scores()}, {"P", 4 * p.scores()}};
}

inline fa::Prediction traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d;
  const fa::TileVisits v = fa::visited_tiles(p, T, T);
  fa::Prediction t;
  t["Q"].read = 4 * BH * v.rows * d;
  t["K"].read = 4 * BH * v.keys * d;
  t["S"] = {.read = 4 * BH * 3 * N * N, .write = 4 * BH * N * N};
  t["P"] = {.read = 4 * BH * v.pairs * (d / T), .write = 4 * BH * N * N};
  t["V"].read = 4 * BH * v.keys * d;
  t["O"].write = 4 * BH * N * d;
  t.hbm = {.read = 4 * BH * (3 * N * d + 2 * N * N), .write = 4 * BH * (2 * N * N + N * d)};
  t.flops = BH * 4 * uint64_t(T) * T * v.tiles * d;  // zeros of ragged tiles are multiplied too
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<float>& t) {
  float* S = t.scratch<float>("S");
  float* P = t.scratch<float>("P");
  const unsigned BH = p.heads(), rows = fa::ceil_div(p.N, kBlockY);
  const dim3 block(kBlockX, kBlockY);
  fa::dispatch_d<32, 64, 96, 128>(p.d, [&](auto d) {
    fa::launch(scores_kernel<d>, {dim3(fa::ceil_div(p.N, kBlockX), rows, BH), block}, t.Q, t.K, S,
               p.N, p.scale(), p.causal);
    step01::softmax(p, S, P);
    fa::launch(output_kernel<d>, {dim3(d / kBlockX, rows, BH), block}, P, t.V, t.O, p.N, p.causal);
  });
}

}  // namespace step02_shared

// Step 02 -- register tiles.
// Idea      A thread computes 4 x 4 scores instead of one. What it loads from shared memory serves
//           four multiply-adds, so arithmetic, not shared memory, can become the limit.
// Changed   since 02 1_shared: a tile is 64 x 64 for 256 threads, each with 4 x 4 sums in
//           registers; loads of four floats; Q, K and V are requested half as often
// Traffic   requested read  4*BH*(2*N*d*Tc + 3*N*N + N*N + N*d*Tc) B   Tc = N/64; causal:
//                     write 4*BH*(2*N*N + N*d) B                       visited tiles only
//           compulsory      4*BH*4*N*d B
// Launch    scores (N/64, N/64, B*H), softmax (N/8, 1, B*H), output (1, N/64, B*H), 256 threads
// Owns      block: 64 x 64 scores, or 64 rows of O; thread: 4 x 4 scores, or 4 x d/16 of O
// Still bad S and P still cross HBM: 4 N*N elements per head, whatever the tiles do
#pragma once

#include "common/dialect/cuda.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"
#include "steps/01_naive/1_naive.cuh"  // its softmax, as a whole

namespace step02 {

constexpr int Br = 64, Bc = 64;  // rows and keys of a tile of S
constexpr int kSlice = 32;       // features (scores) or keys (output) in shared memory at a time
constexpr int kPad = 4;          // rows stay 16-byte aligned; 8 lanes 36 floats apart use 32 banks
constexpr int kGrid = 16;        // the block's threads form a 16 x 16 grid
constexpr int kTile = 4;         // a thread owns 4 x 4 scores, 16 rows and 16 keys apart
constexpr int kThreads = kGrid * kGrid;
static_assert(kSlice == fa::kWarp, "a lane loads one element of a row of P");
static_assert(Br == kGrid * kTile && Bc == kGrid * kTile, "the threads' tiles cover the block's");

// Loads the rows from row0 on and the features from x0 on of a matrix [N, d], 16 bytes at a time;
// rows past the end are zero.
template <int d, int Width, int Rows, int stride>
__device__ inline void load_tile(const float* g,  // [N, d]
                                 float (&s)[Rows][stride], int row0, int x0, int N) {
  constexpr int kVectors = Width / 4;  // vectors of four floats per row
  for (int v = threadIdx.x; v < Rows * kVectors; v += kThreads) {
    const int r = v / kVectors, x = v % kVectors * 4;
    float4 row = make_float4(0.f, 0.f, 0.f, 0.f);
    if (row0 + r < N) row = *reinterpret_cast<const float4*>(g + size_t(row0 + r) * d + x0 + x);
    *reinterpret_cast<float4*>(&s[r][x]) = row;
  }
}

// C += A B^T, dot products of Width features: S = Q K^T. Rows ty + 16 a, keys tx + 16 b.
template <int Width, int Rows, int Keys>
__device__ inline void dot_rows(const float (&sA)[Rows][Width + kPad],
                                const float (&sB)[Keys][Width + kPad],
                                float (&rC)[Rows / kGrid][Keys / kGrid]) {
  const int tx = threadIdx.x % kGrid, ty = threadIdx.x / kGrid;
  for (int x = 0; x < Width; x += 4) {
    float4 p[Rows / kGrid], q[Keys / kGrid];  // 8 loads of four floats feed 64 multiply-adds
    UNROLL
    for (int a = 0; a < Rows / kGrid; ++a) {
      p[a] = *reinterpret_cast<const float4*>(&sA[ty + a * kGrid][x]);
    }
    UNROLL
    for (int b = 0; b < Keys / kGrid; ++b) {
      q[b] = *reinterpret_cast<const float4*>(&sB[tx + b * kGrid][x]);
    }
    UNROLL
    for (int a = 0; a < Rows / kGrid; ++a) {
      UNROLL
      for (int b = 0; b < Keys / kGrid; ++b) {
        rC[a][b] += p[a].x * q[b].x + p[a].y * q[b].y + p[a].z * q[b].z + p[a].w * q[b].w;
      }
    }
  }
}

// C += A B, a sum over the keys: O += P V. Rows ty + 16 a, features 2 tx + 32 b and the next one.
template <int d>
__device__ inline void add_product(const float (&sA)[Br][kSlice + kPad],
                                   const float (&sB)[kSlice][d],
                                   float2 (&rC)[kTile][d / (2 * kGrid)]) {
  const int tx = threadIdx.x % kGrid, ty = threadIdx.x / kGrid;
  for (int c = 0; c < kSlice; c += 4) {
    __align__(16) float p[kTile][4];  // four keys of each row
    UNROLL
    for (int a = 0; a < kTile; ++a) {
      *reinterpret_cast<float4*>(p[a]) = *reinterpret_cast<const float4*>(&sA[ty + a * kGrid][c]);
    }
    UNROLL
    for (int k = 0; k < 4; ++k) {
      UNROLL
      for (int b = 0; b < d / (2 * kGrid); ++b) {
        const float2 v = *reinterpret_cast<const float2*>(&sB[c + k][2 * tx + b * 2 * kGrid]);
        UNROLL
        for (int a = 0; a < kTile; ++a) {
          rC[a][b].x += p[a][k] * v.x;
          rC[a][b].y += p[a][k] * v.y;
        }
      }
    }
  }
}

// S = scale * Q K^T. A block owns a tile of S and walks the features in slices.
template <int d>
__global__ void __launch_bounds__(kThreads) scores_kernel(const float* Q,  // [B*H, N, d]
                                                          const float* K,  // [B*H, N, d]
                                                          float* S,        // [B*H, N, N]
                                                          int N, float scale, bool causal) {
  __shared__ __align__(16) float sQ[Br][kSlice + kPad];
  __shared__ __align__(16) float sK[Bc][kSlice + kPad];
  const int tx = threadIdx.x % kGrid, ty = threadIdx.x / kGrid;
  const int j = blockIdx.x, i = blockIdx.y;
  const size_t bh = blockIdx.z;

  float rS[kTile][kTile] = {};             // rows ty + 16 a, keys tx + 16 b of the tile
  const bool visible = !causal || j <= i;  // the same for all threads of the block
  for (int x0 = 0; visible && x0 < d; x0 += kSlice) {
    load_tile<d, kSlice>(Q + bh * N * d, sQ, i * Br, x0, N);
    load_tile<d, kSlice>(K + bh * N * d, sK, j * Bc, x0, N);
    __syncthreads();  // the tiles are complete
    dot_rows<kSlice>(sQ, sK, rS);
    __syncthreads();  // all have read; the next slice may overwrite
  }
  UNROLL
  for (int a = 0; a < kTile; ++a) {
    UNROLL
    for (int b = 0; b < kTile; ++b) {
      const int r = i * Br + ty + a * kGrid, c = j * Bc + tx + b * kGrid;
      if (r >= N || c >= N) continue;
      S[(bh * N + r) * N + c] = !causal || c <= r ? rS[a][b] * scale : -INFINITY;
    }
  }
}

// O = P V. A block owns 64 whole rows of O, so P is read once, and walks the keys in slices.
// At least two blocks per SM: without this bound ptxas 13 stops at 64 registers and spills.
template <int d>
__global__ void __launch_bounds__(kThreads, 2) output_kernel(const float* P,  // [B*H, N, N]
                                                             const float* V,  // [B*H, N, d]
                                                             float* O,        // [B*H, N, d]
                                                             int N, bool causal) {
  __shared__ __align__(16) float sP[Br][kSlice + kPad];
  __shared__ __align__(16) float sV[kSlice][d];  // read along a row, a pair per lane: 32 banks
  constexpr int kPairs = d / (2 * kGrid);        // pairs of features that a thread owns
  const int tx = threadIdx.x % kGrid, ty = threadIdx.x / kGrid;
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int i = blockIdx.y;
  const size_t bh = blockIdx.z;

  float2 rO[kTile][kPairs] = {};  // rows ty + 16 a, features 2 tx + 32 b and the next one
  const int last = causal ? min((i + 1) * Bc, N) : N;  // beyond the diagonal tile P is 0
  for (int c0 = 0; c0 < last; c0 += kSlice) {
    for (int r = warp; r < Br; r += kThreads / fa::kWarp) {  // N may be odd: one float per lane
      const bool inside = i * Br + r < N && c0 + lane < last;
      sP[r][lane] = inside ? P[(bh * N + i * Br + r) * N + c0 + lane] : 0.f;
    }
    load_tile<d, d>(V + bh * N * d, sV, c0, 0, last);
    __syncthreads();  // the tiles are complete
    add_product<d>(sP, sV, rO);
    __syncthreads();  // all have read; the next slices may overwrite
  }
  UNROLL
  for (int a = 0; a < kTile; ++a) {
    const int r = i * Br + ty + a * kGrid;
    if (r >= N) continue;
    UNROLL
    for (int b = 0; b < kPairs; ++b) {
      *reinterpret_cast<float2*>(O + (bh * N + r) * d + 2 * tx + b * 2 * kGrid) = rO[a][b];
    }
  }
}

// --- host ---------------------------------------------------------------------------------------

using step01::workspace;  // S and P

inline fa::Prediction traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d;
  const fa::TileVisits v = fa::visited_tiles(p, Br, Bc);
  fa::Prediction t;
  t["Q"].read = 4 * BH * v.rows * d;
  t["K"].read = 4 * BH * v.keys * d;
  t["S"] = {.read = 4 * BH * 3 * N * N, .write = 4 * BH * N * N};
  t["P"] = {.read = 4 * BH * v.pairs, .write = 4 * BH * N * N};
  t["V"].read = 4 * BH * v.keys * d;
  t["O"].write = 4 * BH * N * d;
  t.hbm = {.read = 4 * BH * (3 * N * d + 2 * N * N), .write = 4 * BH * (2 * N * N + N * d)};
  t.flops = BH * 4 * uint64_t(Br) * Bc * v.tiles * d;  // zeros of ragged tiles are multiplied too
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<float>& t) {
  float* S = t.scratch<float>("S");
  float* P = t.scratch<float>("P");
  const unsigned BH = p.heads(), tiles = fa::ceil_div(p.N, Br);
  fa::dispatch_d<32, 64, 96, 128>(p.d, [&](auto d) {
    fa::launch(scores_kernel<d>, {dim3(tiles, tiles, BH), dim3(kThreads)}, t.Q, t.K, S, p.N,
               p.scale(), p.causal);
    step01::softmax(p, S, P);
    fa::launch(output_kernel<d>, {dim3(1, tiles, BH), dim3(kThreads)}, P, t.V, t.O, p.N, p.causal);
  });
}

}  // namespace step02

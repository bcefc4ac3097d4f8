// Step 03, second half -- softmax and P V in one pass.
// Idea      A block of the output product keeps the running (m, l) of its rows. When a slice of S
//           raises m, what was summed so far, l and O alike, is rescaled to the new m.
// Changed   since 02: softmax_kernel is gone; output_kernel reads S and makes P of it in shared
//           memory; scores_kernel is 02's. P is neither written nor read, and S is read once
//           instead of three times
// Traffic   requested read  4*BH*(2*N*d*Tc + N*N + N*d*Tc) B  Tc = N/64; causal: visited tiles only
//                     write 4*BH*(N*N + N*d) B
//           compulsory      4*BH*4*N*d B
// Launch    scores (N/64, N/64, B*H), output (1, N/64, B*H), 256 threads
// Owns      block: 64 x 64 scores, or 64 rows of O; half a warp: four rows of O with their m and l
// Still bad S still crosses HBM twice: 2 N*N elements a head
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/warp.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"
#include "steps/02_tiled/2_registers.cuh"
#include "steps/03_online_softmax/1_merge.cuh"

namespace step03 {

using step02::Br, step02::Bc, step02::kSlice, step02::kPad;  // tiles of 64 x 64, slices of 32
using step02::kGrid, step02::kTile, step02::kThreads;        // 16 x 16 threads, 4 x 4 each
static_assert(kSlice == 2 * kGrid, "a thread turns two scores of a row into p");

// Over the 16 threads of a row: half a warp, the lanes that differ in tx.
__device__ inline RowStats row_merge(RowStats stats) {
  for (int lanes = kGrid / 2; lanes > 0; lanes /= 2) {
    stats = merge(stats, {__shfl_xor_sync(fa::kFullMask, stats.m, lanes),
                          __shfl_xor_sync(fa::kFullMask, stats.l, lanes)});
  }
  return stats;
}

// O = softmax(S) V. A block owns 64 whole rows of O, so S is read once, and walks the keys
// in slices. Two blocks an SM are asked for: 128 registers a thread at most, whatever d is.
template <int d>
__global__ void __launch_bounds__(kThreads, 2) output_kernel(const float* S,  // [B*H, N, N]
                                                             const float* V,  // [B*H, N, d]
                                                             float* O,        // [B*H, N, d]
                                                             int N, bool causal) {
  __shared__ __align__(16) float sP[Br][kSlice + kPad];  // S at first, then P
  __shared__ __align__(16) float sV[kSlice][d];  // read along a row, two features a lane: 32 banks
  constexpr int kPairs = d / (2 * kGrid);        // pairs of features that a thread owns
  const int tx = threadIdx.x % kGrid, ty = threadIdx.x / kGrid;
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int i = blockIdx.y;
  const size_t bh = blockIdx.z;

  float2 rO[kTile][kPairs] = {};  // rows ty + 16 a, features 2 tx + 32 b and the next one
  RowStats stats[kTile];          // of these rows: m of all their keys so far, l of this thread's
  const int last = causal ? min((i + 1) * Bc, N) : N;  // beyond the diagonal tile P is 0
  for (int c0 = 0; c0 < last; c0 += kSlice) {
    for (int r = warp; r < Br; r += kThreads / fa::kWarp) {  // N may be odd: one float a lane
      float s = i * Br + r < N ? -INFINITY : 0.f;  // no key: p = 0; no row: any finite score
      const bool inside = i * Br + r < N && c0 + lane < last;
      if (inside) s = S[(bh * N + i * Br + r) * N + c0 + lane];
      sP[r][lane] = s;
    }
    for (int v = threadIdx.x; v < kSlice * d / 4; v += kThreads) {
      const int c = v / (d / 4), x = v % (d / 4) * 4;
      float4 row = make_float4(0.f, 0.f, 0.f, 0.f);
      if (c0 + c < last) row = *reinterpret_cast<const float4*>(V + (bh * N + c0 + c) * d + x);
      *reinterpret_cast<float4*>(&sV[c][x]) = row;
    }
    __syncthreads();  // the tiles are complete

    // S becomes P, relative to the m of the keys so far. Row r sees key 0, so m is finite from the
    // first slice on; a slice without a visible key changes nothing: p = 0, alpha = 1.
    UNROLL
    for (int a = 0; a < kTile; ++a) {
      float2& pair = *reinterpret_cast<float2*>(&sP[ty + a * kGrid][2 * tx]);
      const float2 s = pair;
      const float m = fmaxf(stats[a].m, fa::warp_max<kGrid>(fmaxf(s.x, s.y)));
      const float2 p = make_float2(expf(s.x - m), expf(s.y - m));
      pair = p;
      const float alpha = expf(stats[a].m - m);          // moves earlier sums to the new maximum
      stats[a] = {m, alpha * stats[a].l + (p.x + p.y)};  // merge() with {m, p.x + p.y}, alpha kept
      UNROLL
      for (int b = 0; b < kPairs; ++b) {
        rO[a][b].x *= alpha;
        rO[a][b].y *= alpha;
      }
    }
    __syncwarp();  // p is complete: only the half-warp that made a row of it reads that row

    for (int c = 0; c < kSlice; c += 4) {
      __align__(16) float p[kTile][4];  // of 4 rows and 4 keys
      UNROLL
      for (int a = 0; a < kTile; ++a) {
        *reinterpret_cast<float4*>(p[a]) = *reinterpret_cast<const float4*>(&sP[ty + a * kGrid][c]);
      }
      UNROLL
      for (int k = 0; k < 4; ++k) {
        UNROLL
        for (int b = 0; b < kPairs; ++b) {
          const float2 v = *reinterpret_cast<const float2*>(&sV[c + k][2 * tx + b * 2 * kGrid]);
          UNROLL
          for (int a = 0; a < kTile; ++a) {
            rO[a][b].x += p[a][k] * v.x;
            rO[a][b].y += p[a][k] * v.y;
          }
        }
      }
    }
    __syncthreads();  // all have read; the next slices may overwrite
  }

  UNROLL
  for (int a = 0; a < kTile; ++a) {
    const float l = row_merge(stats[a]).l;
    const int r = i * Br + ty + a * kGrid;
    if (r >= N) continue;
    UNROLL
    for (int b = 0; b < kPairs; ++b) {
      *reinterpret_cast<float2*>(O + (bh * N + r) * d + 2 * tx + b * 2 * kGrid) =
          make_float2(rO[a][b].x / l, rO[a][b].y / l);
    }
  }
}

// --- host ---------------------------------------------------------------------------------------

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) { return {{"S", 4 * p.scores()}}; }

inline fa::Prediction traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d;
  const fa::TileVisits v = fa::visited_tiles(p, Br, Bc);
  fa::Prediction t;
  t["Q"].read = 4 * BH * v.rows * d;
  t["K"].read = 4 * BH * v.keys * d;
  t["S"] = {.read = 4 * BH * v.pairs, .write = 4 * BH * N * N};
  t["V"].read = 4 * BH * v.keys * d;
  t["O"].write = 4 * BH * N * d;
  t.hbm = {.read = 4 * BH * (3 * N * d + v.pairs), .write = 4 * BH * (N * N + N * d)};
  t.flops = BH * 4 * uint64_t(Br) * Bc * v.tiles * d;  // zeros of ragged tiles are multiplied too
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<float>& t) {
  float* S = t.scratch<float>("S");
  const unsigned BH = p.heads(), tiles = fa::ceil_div(p.N, Br);
  fa::dispatch_d<32, 64, 96, 128>(p.d, [&](auto d) {
    fa::launch(step02::scores_kernel<d>, {dim3(tiles, tiles, BH), dim3(kThreads)}, t.Q, t.K, S, p.N,
               p.scale(), p.causal);
    fa::launch(output_kernel<d>, {dim3(1, tiles, BH), dim3(kThreads)}, S, t.V, t.O, p.N, p.causal);
  });
}

}  // namespace step03

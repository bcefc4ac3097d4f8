// Step 03 -- softmax and P V in one pass.
// Idea      A block of the output product keeps the running m and l of its rows. When a slice of S
//           raises m, what was summed so far, l and O alike, is rescaled to the new m.
// Changed   since 02 2_registers: softmax_kernel is gone; output_kernel reads S and turns it into
//           P in shared memory; scores_kernel is 02's. P is neither written nor read
// Traffic   requested read  4*BH*(2*N*d*Tc + N*N + N*d*Tc) B   Tc = N/64; causal:
//                     write 4*BH*(N*N + N*d) B                 visited tiles only
//           compulsory      4*BH*4*N*d B
// Launch    scores (N/64, N/64, B*H), output (1, N/64, B*H), 256 threads
// Owns      block: 64 x 64 scores, or 64 rows of O; half a warp: four rows of O with their m and l
// Still bad S still crosses HBM: 2 N*N elements per head
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/warp.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"
#include "steps/02_tiled/2_registers.cuh"

namespace step03 {

using step02::Br, step02::Bc, step02::kSlice, step02::kPad;  // tiles of 64 x 64, slices of 32
using step02::kGrid, step02::kTile, step02::kThreads;        // 16 x 16 threads, 4 x 4 each
using step02::load_tile;
static_assert(kSlice == 2 * kGrid, "a thread turns two scores of a row into p");

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

// O = softmax(S) V. A block owns 64 whole rows of O, so S is read once, and walks the keys
// in slices. At least two blocks per SM: at most 128 registers per thread, for every d.
template <int d>
__global__ void __launch_bounds__(kThreads, 2) output_kernel(const float* S,  // [B*H, N, N]
                                                             const float* V,  // [B*H, N, d]
                                                             float* O,        // [B*H, N, d]
                                                             int N, bool causal) {
  // --- prologue
  __shared__ __align__(16) float sP[Br][kSlice + kPad];  // S at first, then P
  __shared__ __align__(16) float sV[kSlice][d];  // read along a row, a pair per lane: 32 banks
  constexpr int kPairs = d / (2 * kGrid);        // pairs of features that a thread owns
  const int tx = threadIdx.x % kGrid, ty = threadIdx.x / kGrid;
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int i = blockIdx.y;
  const size_t bh = blockIdx.z;

  float2 rO[kTile][kPairs] = {};  // rows ty + 16 a, features 2 tx + 32 b and the next one
  float m[kTile], l[kTile] = {};  // of these rows; l of this thread's keys only
  UNROLL
  for (int a = 0; a < kTile; ++a) m[a] = -INFINITY;

  // --- mainloop
  const int last = causal ? min((i + 1) * Bc, N) : N;  // beyond the diagonal tile P is 0
  for (int c0 = 0; c0 < last; c0 += kSlice) {
    for (int r = warp; r < Br; r += kThreads / fa::kWarp) {  // N may be odd: one float per lane
      const bool inside = i * Br + r < N && c0 + lane < last;
      const float none = i * Br + r < N ? -INFINITY : 0.f;  // no key: p = 0; no row: any number
      sP[r][lane] = inside ? S[(bh * N + i * Br + r) * N + c0 + lane] : none;
    }
    load_tile<d, d>(V + bh * N * d, sV, c0, 0, last);
    __syncthreads();  // the tiles are complete

    // S becomes P, relative to the m of the keys so far. Row r sees key 0, so m is finite from
    // the first slice on: no exp(-inf - -inf), even in a masked slice.
    UNROLL
    for (int a = 0; a < kTile; ++a) {
      float2& pair = *reinterpret_cast<float2*>(&sP[ty + a * kGrid][2 * tx]);
      const float2 s = pair;
      const float m_new = fmaxf(m[a], fa::warp_max<kGrid>(fmaxf(s.x, s.y)));
      const float2 p = make_float2(expf(s.x - m_new), expf(s.y - m_new));
      pair = p;
      const float alpha = expf(m[a] - m_new);  // moves earlier sums to the new maximum
      m[a] = m_new;
      l[a] = alpha * l[a] + (p.x + p.y);  // merge() with {m_new, p.x + p.y}
      UNROLL
      for (int b = 0; b < kPairs; ++b) {
        rO[a][b].x *= alpha;
        rO[a][b].y *= alpha;
      }
    }
    __syncwarp();  // P is complete: only the half-warp that made a row of it reads that row
    add_product<d>(sP, sV, rO);
    __syncthreads();  // all have read; the next slices may overwrite
  }

  // --- epilogue
  UNROLL
  for (int a = 0; a < kTile; ++a) {
    const int r = i * Br + ty + a * kGrid;
    const float row_l = fa::warp_sum<kGrid>(l[a]);  // over the 16 threads of a row
    if (r >= N) continue;
    UNROLL
    for (int b = 0; b < kPairs; ++b) {
      *reinterpret_cast<float2*>(O + (bh * N + r) * d + 2 * tx + b * 2 * kGrid) =
          make_float2(rO[a][b].x / row_l, rO[a][b].y / row_l);
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

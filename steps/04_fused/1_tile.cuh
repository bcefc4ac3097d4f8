// Step 04 -- a tile of S in registers.
// Idea      A thread loads 4 x 4 scores of a 64 x 64 tile to registers and turns them into P there.
//           Shared memory holds P and V. An iteration takes 64 keys, not 32: O is rescaled half as
//           often, and there are half as many barriers.
// Changed   since 03 4_one_pass: output_kernel's slices of 32 keys become tiles of 64, and S no
//           longer passes through shared memory; scores_kernel is still 02's
// Traffic   requested read  4*BH*(2*N*d*Tc + N*N + N*d*Tc) B   Tc = N/64; causal:
//                     write 4*BH*(N*N + N*d) B                 visited tiles only
//           compulsory      4*BH*4*N*d B
// Launch    scores (N/64, N/64, B*H), output (N/64, B*H), 256 threads
// Owns      block: 64 x 64 scores, or 64 rows of O; half a warp: four rows of O with their m and l
// Still bad S still crosses HBM: 2 N*N elements per head
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/warp.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"
#include "steps/02_tiled/2_registers.cuh"

namespace step04_tile {

using step02::kGrid, step02::kThreads;  // a block's 16 x 16 threads
constexpr int Br = 64, Bc = 64;         // rows and keys of a tile of S
constexpr int kPad = 4;                 // keeps rows 16-byte aligned
constexpr int kPadP = 16;  // half a warp writes row ty of P, the other half row ty + 1: 32 banks

// What a block keeps in shared memory: 37 KB when d = 64, 53 KB when d = 128.
template <int d>
struct Tiles {
  float V[Bc][d + kPad];
  float P[Br][Bc + kPadP];
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

// C += A B, a sum over the keys: O += P V. Rows ty + 16 a, features 2 tx + 32 b and the next one.
template <int d, int Br, int Bc>
__device__ inline void add_product(const float (&sA)[Br][Bc + kPadP],
                                   const float (&sB)[Bc][d + kPad],
                                   float2 (&rC)[Br / kGrid][d / (2 * kGrid)]) {
  const int tx = threadIdx.x % kGrid, ty = threadIdx.x / kGrid;
  for (int c = 0; c < Bc; c += 4) {
    __align__(16) float p[Br / kGrid][4];  // four keys of each row
    UNROLL
    for (int a = 0; a < Br / kGrid; ++a) {
      *reinterpret_cast<float4*>(p[a]) = *reinterpret_cast<const float4*>(&sA[ty + a * kGrid][c]);
    }
    UNROLL
    for (int k = 0; k < 4; ++k) {
      UNROLL
      for (int b = 0; b < d / (2 * kGrid); ++b) {
        const float2 v = *reinterpret_cast<const float2*>(&sB[c + k][2 * tx + b * 2 * kGrid]);
        UNROLL
        for (int a = 0; a < Br / kGrid; ++a) {
          rC[a][b].x += p[a][k] * v.x;
          rC[a][b].y += p[a][k] * v.y;
        }
      }
    }
  }
}

// O = softmax(S) V. A block owns 64 whole rows of O, so S is read once, and walks the keys
// in tiles. At least two blocks per SM: at most 128 registers per thread, for every d.
template <int d>
__global__ void __launch_bounds__(kThreads, 2) output_kernel(const float* S,  // [B*H, N, N]
                                                             const float* V,  // [B*H, N, d]
                                                             float* O,        // [B*H, N, d]
                                                             int N, bool causal) {
  // --- prologue
  constexpr int kThreadRows = Br / kGrid, kThreadKeys = Bc / kGrid;  // of a tile, per thread
  constexpr int kPairs = d / (2 * kGrid);  // pairs of features that a thread owns
  Tiles<d>& smem = *fa::dynamic_shared<Tiles<d>>();
  const int tx = threadIdx.x % kGrid, ty = threadIdx.x / kGrid;
  const int i = blockIdx.x;
  const size_t bh = blockIdx.y;
  S += bh * N * N, V += bh * N * d, O += bh * N * d;

  float2 rO[kThreadRows][kPairs] = {};  // rows ty + 16 a, features 2 tx + 32 b and the next one
  float m[kThreadRows], l[kThreadRows] = {};  // of these rows; l of this thread's keys only
  UNROLL
  for (int a = 0; a < kThreadRows; ++a) m[a] = -INFINITY;

  // --- mainloop
  const int last = causal ? min((i + 1) * Bc, N) : N;  // beyond the diagonal tile P is 0
  for (int j = 0; j * Bc < last; ++j) {
    load_tile<d>(V, smem.V, j * Bc, N);
    float rS[kThreadRows][kThreadKeys];  // rows ty + 16 a, keys tx + 16 b
    UNROLL
    for (int a = 0; a < kThreadRows; ++a) {
      UNROLL
      for (int b = 0; b < kThreadKeys; ++b) {
        const int r = i * Br + ty + a * kGrid, c = j * Bc + tx + b * kGrid;
        rS[a][b] = r < N ? -INFINITY : 0.f;  // no key: p = 0; no row: any finite score
        if (r < N && c < N) rS[a][b] = S[size_t(r) * N + c];
      }
    }

    // S becomes P, relative to the m of the keys so far. Row r sees key 0, so m is finite from
    // the first tile on: no exp(-inf - -inf), even in a masked tile.
    UNROLL
    for (int a = 0; a < kThreadRows; ++a) {
      const float m_old = m[a], l_old = l[a];
      float m_new = m_old, l_tile = 0.f;
      UNROLL
      for (int b = 0; b < kThreadKeys; ++b) m_new = fmaxf(m_new, rS[a][b]);
      m_new = fa::warp_max<kGrid>(m_new);  // over the 16 threads of a row
      UNROLL
      for (int b = 0; b < kThreadKeys; ++b) {
        const float p = expf(rS[a][b] - m_new);
        l_tile += p;
        smem.P[ty + a * kGrid][tx + b * kGrid] = p;
      }
      const float alpha = expf(m_old - m_new);  // moves earlier sums to the new maximum
      m[a] = m_new;
      l[a] = alpha * l_old + l_tile;
      UNROLL
      for (int b = 0; b < kPairs; ++b) {
        rO[a][b].x *= alpha;
        rO[a][b].y *= alpha;
      }
    }
    __syncthreads();  // P_ij and V_j are complete

    add_product<d>(smem.P, smem.V, rO);
    __syncthreads();  // all have read the tiles; the next ones may overwrite
  }

  // --- epilogue
  UNROLL
  for (int a = 0; a < kThreadRows; ++a) {
    const int r = i * Br + ty + a * kGrid;
    const float row_l = fa::warp_sum<kGrid>(l[a]);  // over the 16 threads of a row
    if (r >= N) continue;
    UNROLL
    for (int b = 0; b < kPairs; ++b) {
      float2* gO = reinterpret_cast<float2*>(O + size_t(r) * d) + tx;  // so nvcc stores pairs
      gO[b * kGrid] = make_float2(rO[a][b].x / row_l, rO[a][b].y / row_l);
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
    fa::launch(output_kernel<d>, {dim3(tiles, BH), dim3(kThreads), sizeof(Tiles<d>)}, S, t.V, t.O,
               p.N, p.causal);
  });
}

}  // namespace step04_tile

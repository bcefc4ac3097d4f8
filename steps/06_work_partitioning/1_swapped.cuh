// Step 06 -- FlashAttention-2's order of work (arXiv 2307.08691).
// Idea      Swap the loops: a block keeps one tile of Q and walks the keys, so O, m and l live in
//           registers from the first tile to the last and are written once. Tiles of Q do not need
//           each other: the sequence is parallel now, not only batch and heads.
// Changed   since 04 2_fused: the loop over i is the grid; O, m and l do not wait in HBM; one
//           division at the end; P_ij takes the place of K_j; skips tiles above the diagonal
// Traffic   requested read  4*BH*(N*d + 2*Tr*N*d) B   Tr = N/Br; causal: K and V of visited tiles
//                     write 4*BH*(N*d + N) B          O, LSE
//           compulsory      4*BH*(4*N*d + N) B
// Launch    grid (Tr, B*H), 256 threads; causal: the longest walks of each head first
// Owns      block: 64 rows of O, or 32 where shared memory is short; half a warp: four
// Still bad 8 loads from shared memory for 64 multiply-adds: see 2_registers.cuh
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/warp.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"
#include "steps/02_tiled/2_registers.cuh"

namespace step06 {

using step02::kGrid, step02::kThreads, step02::dot_rows;
constexpr int kPad = 4;    // keeps rows 16-byte aligned
constexpr int kPadP = 16;  // half a warp writes row ty of P, the other half row ty + 1: 32 banks

// What a block keeps in shared memory: 54 KB when d = 64 and Bc = 64; it is 32 where that is short.
template <int d, int Bc, int Br = Bc>  // so the diagonal crosses a causal row's last tile only
struct Tiles {
  float Q[Br][d + kPad];
  float V[Bc][d + kPad];
  union {  // S needs K, O needs P: never both
    float K[Bc][d + kPad];
    float P[Br][Bc + kPadP];
  };
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

// O = softmax(scale * Q K^T) V and LSE of one tile of Q.
template <int d, int Bc>
__global__ void __launch_bounds__(kThreads, 2) flash_fwd_kernel(const float* Q,  // [B*H, N, d]
                                                                const float* K,  // [B*H, N, d]
                                                                const float* V,  // [B*H, N, d]
                                                                float* O,        // [B*H, N, d]
                                                                float* LSE,      // [B*H, N]
                                                                int N, float scale, bool causal) {
  // --- prologue
  constexpr int Br = Bc;
  constexpr int kThreadRows = Br / kGrid, kThreadKeys = Bc / kGrid;  // of a tile, per thread
  constexpr int kPairs = d / (2 * kGrid);  // pairs of features that a thread owns
  Tiles<d, Bc>& smem = *fa::dynamic_shared<Tiles<d, Bc>>();
  const int tx = threadIdx.x % kGrid, ty = threadIdx.x / kGrid;
  const int i = gridDim.x - 1 - blockIdx.x;  // causal: the longest walks start first
  const size_t bh = blockIdx.y;
  Q += bh * N * d, K += bh * N * d, V += bh * N * d, O += bh * N * d, LSE += bh * N;
  load_tile<d>(Q, smem.Q, i * Br, N);

  float2 rO[kThreadRows][kPairs] = {};  // rows ty + 16 a, features 2 tx + 32 b and the next one
  float m[kThreadRows], l[kThreadRows] = {};  // of these rows; l of this thread's keys only
  UNROLL
  for (int a = 0; a < kThreadRows; ++a) m[a] = -INFINITY;

  // --- mainloop
  const int last = causal ? i : (N - 1) / Bc;  // tiles above the diagonal are not visited
  for (int j = 0; j <= last; ++j) {
    load_tile<d>(K, smem.K, j * Bc, N);
    load_tile<d>(V, smem.V, j * Bc, N);
    __syncthreads();  // K_j and V_j are complete, before the first ones also Q_i

    float rS[kThreadRows][kThreadKeys] = {};  // rows ty + 16 a, keys tx + 16 b
    dot_rows<d>(smem.Q, smem.K, rS);
    UNROLL
    for (int a = 0; a < kThreadRows; ++a) {
      UNROLL
      for (int b = 0; b < kThreadKeys; ++b) {
        const int r = i * Br + ty + a * kGrid, c = j * Bc + tx + b * kGrid;
        const bool visible = c < N && (!causal || c <= r);
        rS[a][b] = visible ? rS[a][b] * scale : -INFINITY;
      }
    }
    __syncthreads();  // all have read K_j; P_ij takes its place

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
    __syncwarp();  // P is complete: only the half-warp that made a row of it reads that row

    add_product<d>(smem.P, smem.V, rO);
    __syncthreads();  // all have read the tiles; the next ones may overwrite
  }

  // --- epilogue: the only division, the only stores
  UNROLL
  for (int a = 0; a < kThreadRows; ++a) {
    const int r = i * Br + ty + a * kGrid;
    const float row_l = fa::warp_sum<kGrid>(l[a]);  // over the 16 threads of a row
    if (r >= N) continue;
    UNROLL
    for (int b = 0; b < kPairs; ++b) {
      *reinterpret_cast<float2*>(O + size_t(r) * d + 2 * tx + b * 2 * kGrid) =
          make_float2(rO[a][b].x / row_l, rO[a][b].y / row_l);
    }
    if (tx == 0) LSE[r] = m[a] + logf(row_l);
  }
}

// --- host ---------------------------------------------------------------------------------------

constexpr size_t smem_bytes(int d, int Bc) {  // of Tiles<d, Bc>
  return sizeof(float) * Bc * (2 * (d + kPad) + std::max(d + kPad, Bc + kPadP));
}

// Bc: 64 where the GPU gives a block enough shared memory; 32 for d = 96 and 128 on a T4.
inline int tile_keys(const fa::Problem& p) {
  return smem_bytes(p.d, 64) <= p.gpu.block_shared_bytes ? 64 : 32;
}

inline fa::Prediction traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d;
  const int Bc = tile_keys(p), Br = Bc;
  const fa::TileVisits v = fa::visited_tiles(p, Br, Bc);
  fa::Prediction t;
  t["Q"].read = 4 * BH * N * d;
  t["K"].read = t["V"].read = 4 * BH * v.keys * d;
  t["O"].write = 4 * BH * N * d;
  t["LSE"].write = 4 * BH * N;
  t.hbm = {.read = 4 * BH * 3 * N * d, .write = 4 * BH * (N * d + N)};
  t.flops = BH * 4 * uint64_t(Br) * Bc * v.tiles * d;  // zeros of ragged tiles are multiplied too
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<float>& t) {
  fa::dispatch_d<32, 64, 96, 128>(p.d, [&](auto d) {
    fa::dispatch_tile<32, 64>(tile_keys(p), [&](auto Bc) {
      const dim3 grid(fa::ceil_div(p.N, Bc), p.heads());
      fa::launch(flash_fwd_kernel<d, Bc>, {grid, dim3(kThreads), sizeof(Tiles<d, Bc>)}, t.Q, t.K,
                 t.V, t.O, t.LSE, p.N, p.scale(), p.causal);
    });
  });
}

}  // namespace step06

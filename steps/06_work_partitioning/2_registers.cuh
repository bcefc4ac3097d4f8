// Step 06 -- larger register tiles.
// Idea      A thread computes 8 x 4 scores, not 4 x 4, and 8 rows x d/16 features of O, not 4: each
//           number that it loads from shared memory serves four or eight multiply-adds, and shared
//           memory limits the kernel less.
// Changed   since 06 1_swapped: 128 threads per block; sums in an order that hides latency; only
//           the last tile is masked; powers of two instead of e; V needs no pad
// Traffic   requested read  4*BH*(N*d + 2*Tr*N*d) B   Tr = N/Br; causal: K and V of visited tiles
//                     write 4*BH*(N*d + N) B          O, LSE
//           compulsory      4*BH*(4*N*d + N) B
// Launch    grid (Tr, B*H), 128 threads; causal: the longest walks of each head first
// Owns      block: 64 rows of O, or 32 where shared memory is short; half a warp: eight
// Still bad fp32 multiply-adds are the slowest way to multiply matrices: step 07
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/warp.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"

namespace step06_registers {

constexpr int kGrid = 16, kGridY = 8;  // a block's threads: 16 along the keys, 8 along the rows
constexpr int kThreads = kGrid * kGridY;
constexpr int kPad = 4;    // keeps rows 16-byte aligned
constexpr int kPadP = 16;  // half a warp writes row ty of P, the other half row ty + 1: 32 banks

// What a block keeps in shared memory: 54 KB when d = 64 and Bc = 64; it is 32 where that is short.
template <int d, int Bc, int Br = Bc>  // so the diagonal crosses a causal row's last tile only
struct Tiles {
  float Q[Br][d + kPad];
  float V[Bc][d];
  union {  // S needs K, O needs P: never both
    float K[Bc][d + kPad];
    float P[Br][Bc + kPadP];
  };
};

// Rows row0 .. row0 + Rows - 1 of a matrix [N, d] to shared memory; rows past the end are zero.
template <int d, int Rows, int stride>
__device__ inline void load_tile(const float* g,  // [N, d]
                                 float (&s)[Rows][stride], int row0, int N) {
  constexpr int kVectors = d / 4;  // vectors of four floats per row
  UNROLL
  for (int v = threadIdx.x; v < Rows * kVectors; v += kThreads) {
    const int r = v / kVectors, x = v % kVectors * 4;
    float4 row = make_float4(0.f, 0.f, 0.f, 0.f);
    if (row0 + r < N) row = *reinterpret_cast<const float4*>(g + size_t(row0 + r) * d + x);
    *reinterpret_cast<float4*>(&s[r][x]) = row;
  }
}

// C += A B^T, a dot product along the features: S = Q K^T. Rows ty + 8 a, keys tx + 16 b.
template <int d, int Br, int Bc>
__device__ inline void dot_rows(const float (&sA)[Br][d + kPad], const float (&sB)[Bc][d + kPad],
                                float (&rC)[Br / kGridY][Bc / kGrid]) {
  const int tx = threadIdx.x % kGrid, ty = threadIdx.x / kGrid;
  UNROLL_BY(2)
  for (int x = 0; x < d; x += 4) {
    float4 p[Br / kGridY];  // 8 x 4 scores: 12 loads of four floats feed 128 multiply-adds
    UNROLL
    for (int a = 0; a < Br / kGridY; ++a) {
      p[a] = *reinterpret_cast<const float4*>(&sA[ty + a * kGridY][x]);
    }
    UNROLL
    for (int b = 0; b < Bc / kGrid; ++b) {
      const float4 q = *reinterpret_cast<const float4*>(&sB[tx + b * kGrid][x]);
      UNROLL  // eight sums in turn: no multiply-add waits for the one before it
      for (int a = 0; a < Br / kGridY; ++a) rC[a][b] += p[a].x * q.x;
      UNROLL
      for (int a = 0; a < Br / kGridY; ++a) rC[a][b] += p[a].y * q.y;
      UNROLL
      for (int a = 0; a < Br / kGridY; ++a) rC[a][b] += p[a].z * q.z;
      UNROLL
      for (int a = 0; a < Br / kGridY; ++a) rC[a][b] += p[a].w * q.w;
    }
  }
}

// C += A B, a sum over the keys: O += P V. Rows ty + 8 a, features 2 tx + 32 b and the next one.
template <int d, int Br, int Bc>
__device__ inline void add_product(const float (&sA)[Br][Bc + kPadP], const float (&sB)[Bc][d],
                                   float2 (&rC)[Br / kGridY][d / (2 * kGrid)]) {
  const int tx = threadIdx.x % kGrid, ty = threadIdx.x / kGrid;
  UNROLL_BY(2)
  for (int c = 0; c < Bc; c += 4) {
    __align__(16) float p[Br / kGridY][4];  // four keys of each row
    UNROLL
    for (int a = 0; a < Br / kGridY; ++a) {
      *reinterpret_cast<float4*>(p[a]) = *reinterpret_cast<const float4*>(&sA[ty + a * kGridY][c]);
    }
    UNROLL
    for (int k = 0; k < 4; ++k) {
      UNROLL
      for (int b = 0; b < d / (2 * kGrid); ++b) {
        const float2 v = *reinterpret_cast<const float2*>(&sB[c + k][2 * tx + b * 2 * kGrid]);
        UNROLL
        for (int a = 0; a < Br / kGridY; ++a) {
          rC[a][b].x += p[a][k] * v.x;
          rC[a][b].y += p[a][k] * v.y;
        }
      }
    }
  }
}

// O = softmax(scale * Q K^T) V and LSE of one tile of Q. At least two blocks per SM:
// up to 255 registers per thread, and while one block waits for its tiles the other one computes.
template <int d, int Bc>
__global__ void __launch_bounds__(kThreads, 2) flash_fwd_kernel(const float* Q,  // [B*H, N, d]
                                                                const float* K,  // [B*H, N, d]
                                                                const float* V,  // [B*H, N, d]
                                                                float* O,        // [B*H, N, d]
                                                                float* LSE,      // [B*H, N]
                                                                int N, float scale, bool causal) {
  // --- prologue
  constexpr int Br = Bc;
  constexpr int kThreadRows = Br / kGridY, kThreadKeys = Bc / kGrid;  // of a tile, per thread
  constexpr int kPairs = d / (2 * kGrid);  // pairs of features that a thread owns
  Tiles<d, Bc>& smem = *fa::dynamic_shared<Tiles<d, Bc>>();
  const int tx = threadIdx.x % kGrid, ty = threadIdx.x / kGrid;
  const int i = gridDim.x - 1 - blockIdx.x;     // causal: the longest walks start first
  const float scale_log2 = scale * fa::kLog2e;  // exp(scale * s) = 2^(scale_log2 * s)
  const size_t bh = blockIdx.y;
  Q += bh * N * d, K += bh * N * d, V += bh * N * d, O += bh * N * d, LSE += bh * N;
  load_tile<d>(Q, smem.Q, i * Br, N);

  float2 rO[kThreadRows][kPairs] = {};  // rows ty + 8 a, features 2 tx + 32 b and the next one
  float m[kThreadRows], l[kThreadRows] = {};  // m in powers of 2; l of this thread's keys only
  UNROLL
  for (int a = 0; a < kThreadRows; ++a) m[a] = -INFINITY;

  // --- mainloop
  const int last = causal ? i : (N - 1) / Bc;  // tiles above the diagonal are not visited
  for (int j = 0; j <= last; ++j) {
    load_tile<d>(K, smem.K, j * Bc, N);
    load_tile<d>(V, smem.V, j * Bc, N);
    __syncthreads();  // K_j and V_j are complete, before the first ones also Q_i

    float rS[kThreadRows][kThreadKeys] = {};  // rows ty + 8 a, keys tx + 16 b
    dot_rows<d>(smem.Q, smem.K, rS);
    if (j == last) {  // only there are keys past the diagonal or past the end
      UNROLL
      for (int a = 0; a < kThreadRows; ++a) {
        UNROLL
        for (int b = 0; b < kThreadKeys; ++b) {
          const int r = i * Br + ty + a * kGridY, c = j * Bc + tx + b * kGrid;
          if (c >= N || (causal && c > r)) rS[a][b] = -INFINITY;
        }
      }
    }
    __syncthreads();  // all have read K_j; P_ij takes its place

    // S becomes P, relative to the m of the keys so far. Row r sees key 0, so m is finite from
    // the first tile on: no exp(-inf - -inf), even in a masked tile.
    UNROLL
    for (int a = 0; a < kThreadRows; ++a) {
      float s_max = rS[a][0];
      UNROLL
      for (int b = 1; b < kThreadKeys; ++b) s_max = fmaxf(s_max, rS[a][b]);
      const float m_new = fmaxf(m[a], scale_log2 * fa::warp_max<kGrid>(s_max));
      const float alpha = exp2f(m[a] - m_new);  // moves earlier sums to the new maximum
      m[a] = m_new;
      l[a] *= alpha;
      UNROLL
      for (int b = 0; b < kThreadKeys; ++b) {
        const float p = exp2f(rS[a][b] * scale_log2 - m_new);  // one multiply-add and one power
        l[a] += p;
        smem.P[ty + a * kGridY][tx + b * kGrid] = p;
      }
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
    const int r = i * Br + ty + a * kGridY;
    const float row_l = fa::warp_sum<kGrid>(l[a]);  // over the 16 threads of a row
    if (r >= N) continue;
    UNROLL
    for (int b = 0; b < kPairs; ++b) {
      *reinterpret_cast<float2*>(O + size_t(r) * d + 2 * tx + b * 2 * kGrid) =
          make_float2(rO[a][b].x / row_l, rO[a][b].y / row_l);
    }
    if (tx == 0) LSE[r] = m[a] / fa::kLog2e + logf(row_l);
  }
}

// --- host ---------------------------------------------------------------------------------------

constexpr size_t smem_bytes(int d, int Bc) {  // of Tiles<d, Bc>
  return sizeof(float) * Bc * (2 * d + kPad + std::max(d + kPad, Bc + kPadP));
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

}  // namespace step06_registers

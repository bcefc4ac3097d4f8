// Step 06, second part -- register tiles for both products.
// Idea      A thread computes 8 x 4 scores and 8 rows x d/16 features of O, as step 02's threads
//           did with 4 x 4: what it loads from shared memory serves four or eight multiply-adds,
//           and the arithmetic units are what the kernel waits for
// Changed   since 1_swapped: tiles of 64 x 64 for 128 threads; 16 threads share a row; P takes the
//           place of K, so that two blocks fit an SM; powers of two instead of e
// Traffic   requested read  4*BH*(N*d + 2*Tr*N*d) B   Tr = N/64; causal: K and V of visited tiles
//                     write 4*BH*(N*d + N) B          O, LSE
//           compulsory      4*BH*(4*N*d + N) B
// Launch    grid (Tr, B*H), 128 threads; causal: a head's longest walks first
// Owns      block: 64 rows of O; thread: 8 of them, with 4 keys of S and d/16 features of O each
// Still bad fp32 multiply-adds are the slowest way to multiply matrices: step 07
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/warp.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"

namespace step06_registers {

constexpr int Br = 64, Bc = 64;           // rows and keys of a tile of S
constexpr int kGridX = 16, kGridY = 8;    // the block's threads form a grid: 16 along keys, 8 rows
constexpr int kThreadRows = Br / kGridY;  // a thread's rows, 8 apart
constexpr int kThreadKeys = Bc / kGridX;  // and its keys, 16 apart
constexpr int kPad = 4;    // keeps rows 16-byte aligned; 8 lanes d + 4 floats apart: 32 banks
constexpr int kPadP = 16;  // half a warp writes row ty of P, the other half row ty + 1
constexpr int kThreads = kGridX * kGridY;
static_assert(Br == Bc, "the diagonal crosses a causal row's last tile only");

// What a block keeps in shared memory: 54 KB when d = 64, 100 KB when d = 128.
template <int d>
struct Tiles {
  float Q[Br][d + kPad];
  float V[Bc][d];
  union {  // S needs K, O needs P: never both
    float K[Bc][d + kPad];
    float P[Br][Bc + kPadP];
  };
};

// Rows row0 .. row0 + 63 of a matrix [N, d] to shared memory, `stride` floats apart; rows past the
// end are zero.
template <int d, int stride>
__device__ inline void load_tile(const float* g,  // [N, d]
                                 float (&s)[Br][stride], int row0, int N) {
  constexpr int kVectors = d / 4;  // of four floats, a row
  UNROLL
  for (int v = threadIdx.x; v < Br * kVectors; v += kThreads) {
    const int r = v / kVectors, x = v % kVectors * 4;
    float4 row = make_float4(0.f, 0.f, 0.f, 0.f);
    if (row0 + r < N) row = *reinterpret_cast<const float4*>(g + size_t(row0 + r) * d + x);
    *reinterpret_cast<float4*>(&s[r][x]) = row;
  }
}

// S = Q K^T of one tile: rows ty + 8 a, keys tx + 16 b.
template <int d>
__device__ inline void scores(const Tiles<d>& smem, int tx, int ty,
                              float (&rS)[kThreadRows][kThreadKeys]) {
  UNROLL_BY(2)
  for (int x = 0; x < d; x += 4) {
    float4 q[kThreadRows];  // 12 loads of four floats feed 128 multiply-adds
    UNROLL
    for (int a = 0; a < kThreadRows; ++a) {
      q[a] = *reinterpret_cast<const float4*>(&smem.Q[ty + a * kGridY][x]);
    }
    UNROLL
    for (int b = 0; b < kThreadKeys; ++b) {
      const float4 k = *reinterpret_cast<const float4*>(&smem.K[tx + b * kGridX][x]);
      UNROLL  // eight sums in turn: a multiply-add need not wait for the one before it
      for (int a = 0; a < kThreadRows; ++a) rS[a][b] += q[a].x * k.x;
      UNROLL
      for (int a = 0; a < kThreadRows; ++a) rS[a][b] += q[a].y * k.y;
      UNROLL
      for (int a = 0; a < kThreadRows; ++a) rS[a][b] += q[a].z * k.z;
      UNROLL
      for (int a = 0; a < kThreadRows; ++a) rS[a][b] += q[a].w * k.w;
    }
  }
}

// O += P V of one tile: rows ty + 8 a, features 2 tx + 32 b and the next one.
template <int d>
__device__ inline void add_output(const Tiles<d>& smem, int tx, int ty,
                                  float2 (&rO)[kThreadRows][d / (2 * kGridX)]) {
  UNROLL_BY(2)
  for (int c = 0; c < Bc; c += 4) {
    __align__(16) float p[kThreadRows][4];  // of 8 rows and 4 keys
    UNROLL
    for (int a = 0; a < kThreadRows; ++a) {
      *reinterpret_cast<float4*>(p[a]) =
          *reinterpret_cast<const float4*>(&smem.P[ty + a * kGridY][c]);
    }
    UNROLL
    for (int k = 0; k < 4; ++k) {
      UNROLL
      for (int b = 0; b < d / (2 * kGridX); ++b) {
        const float2 v = *reinterpret_cast<const float2*>(&smem.V[c + k][2 * tx + b * 2 * kGridX]);
        UNROLL
        for (int a = 0; a < kThreadRows; ++a) {
          rO[a][b].x += p[a][k] * v.x;
          rO[a][b].y += p[a][k] * v.y;
        }
      }
    }
  }
}

// O = softmax(scale * Q K^T) V and LSE of one tile of Q. Two blocks an SM are asked for: 255
// registers a thread are allowed then, and while one block waits for its tiles the other computes.
template <int d>
__global__ void __launch_bounds__(kThreads, 2) flash_fwd_kernel(const float* Q,  // [B*H, N, d]
                                                                const float* K,  // [B*H, N, d]
                                                                const float* V,  // [B*H, N, d]
                                                                float* O,        // [B*H, N, d]
                                                                float* LSE,      // [B*H, N]
                                                                int N, float scale, bool causal) {
  // --- prologue
  Tiles<d>& smem = *fa::dynamic_shared<Tiles<d>>();
  constexpr int kPairs = d / (2 * kGridX);  // pairs of features that a thread owns
  const int tx = threadIdx.x % kGridX, ty = threadIdx.x / kGridX;
  const int i = gridDim.x - 1 - blockIdx.x;  // causal: the longest walks start first
  const int row0 = i * Br;
  const float scale_log2 = scale * fa::kLog2e;  // exp(scale * s) = 2^(scale_log2 * s)
  const size_t bh = blockIdx.y;
  Q += bh * N * d, K += bh * N * d, V += bh * N * d, O += bh * N * d, LSE += bh * N;
  load_tile<d>(Q, smem.Q, row0, N);

  float2 rO[kThreadRows][kPairs] = {};        // not normalised before the end
  float m[kThreadRows], l[kThreadRows] = {};  // m in powers of 2; l: this thread's keys only
  UNROLL
  for (int a = 0; a < kThreadRows; ++a) m[a] = -INFINITY;

  // --- mainloop
  const int last = causal ? i : (N - 1) / Bc;  // tiles above the diagonal are not visited
  for (int j = 0; j <= last; ++j) {
    load_tile<d>(K, smem.K, j * Bc, N);
    load_tile<d>(V, smem.V, j * Bc, N);
    __syncthreads();  // K_j and V_j are complete, and before the first tile Q_i

    float rS[kThreadRows][kThreadKeys] = {};
    scores<d>(smem, tx, ty, rS);
    if (j == last) {  // only there are keys past the diagonal or past the end
      UNROLL
      for (int a = 0; a < kThreadRows; ++a) {
        UNROLL
        for (int b = 0; b < kThreadKeys; ++b) {
          const int r = row0 + ty + a * kGridY, c = j * Bc + tx + b * kGridX;
          if (c >= N || (causal && c > r)) rS[a][b] = -INFINITY;
        }
      }
    }
    __syncthreads();  // all have read K_j; P_ij takes its place

    UNROLL
    for (int a = 0; a < kThreadRows; ++a) {
      float s_max = rS[a][0];
      UNROLL
      for (int b = 1; b < kThreadKeys; ++b) s_max = fmaxf(s_max, rS[a][b]);
      // m_new is finite, for tile 0 shows every row its key 0: no exp2(-inf - -inf).
      const float m_new = fmaxf(m[a], scale_log2 * fa::warp_max<kGridX>(s_max));
      const float alpha = exp2f(m[a] - m_new);  // 0 in tile 0, where m is -inf
      m[a] = m_new;
      l[a] *= alpha;
      UNROLL
      for (int b = 0; b < kThreadKeys; ++b) {
        const float p = exp2f(rS[a][b] * scale_log2 - m_new);  // one multiply-add and one power
        l[a] += p;
        smem.P[ty + a * kGridY][tx + b * kGridX] = p;
      }
      UNROLL
      for (int b = 0; b < kPairs; ++b) rO[a][b].x *= alpha, rO[a][b].y *= alpha;
    }
    __syncwarp();  // a row of P is written and read by 16 lanes of one warp

    add_output<d>(smem, tx, ty, rO);
    __syncthreads();  // all have read P_ij and V_j; the next tile may overwrite
  }

  // --- epilogue: the only division, the only stores
  UNROLL
  for (int a = 0; a < kThreadRows; ++a) {
    const int r = row0 + ty + a * kGridY;
    l[a] = fa::warp_sum<kGridX>(l[a]);  // over the 16 threads of a row
    if (r >= N) continue;
    UNROLL
    for (int b = 0; b < kPairs; ++b) {
      *reinterpret_cast<float2*>(O + size_t(r) * d + 2 * tx + b * 2 * kGridX) =
          make_float2(rO[a][b].x / l[a], rO[a][b].y / l[a]);
    }
    if (tx == 0) LSE[r] = m[a] / fa::kLog2e + logf(l[a]);
  }
}

// --- host ---------------------------------------------------------------------------------------

inline fa::Prediction traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d;
  const fa::TileVisits v = fa::visited_tiles(p, Br, Bc);
  fa::Prediction t;
  t["Q"].read = 4 * BH * N * d;
  t["K"].read = 4 * BH * v.keys * d;
  t["V"].read = 4 * BH * v.keys * d;
  t["O"].write = 4 * BH * N * d;
  t["LSE"].write = 4 * BH * N;
  t.hbm = {.read = 4 * BH * 3 * N * d, .write = 4 * BH * (N * d + N)};
  t.flops = BH * 4 * uint64_t(Br) * Bc * v.tiles * d;  // zeros of ragged tiles are multiplied too
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<float>& t) {
  const unsigned BH = p.heads(), Tr = fa::ceil_div(p.N, Br);
  fa::dispatch_d<32, 64, 96, 128>(p.d, [&](auto d) {
    fa::launch(flash_fwd_kernel<d>, {dim3(Tr, BH), dim3(kThreads), sizeof(Tiles<d>)}, t.Q, t.K, t.V,
               t.O, t.LSE, p.N, p.scale(), p.causal);
  });
}

}  // namespace step06_registers

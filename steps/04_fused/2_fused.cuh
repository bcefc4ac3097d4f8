// Step 04 -- fused: FlashAttention-1, Algorithm 1 (arXiv 2205.14135) as printed.
// Idea      S and P exist as tiles on chip, never in HBM. The outer loop brings K and V to shared
//           memory once; the inner loop walks all tiles of Q and updates O, m and l in HBM.
// Changed   since 04 1_tile: the block computes its tile of S; the loops swap; O, m and l are read
//           and written once per K/V tile; Bc follows from the shared memory M; LSE = m + log l
// Traffic   requested read  4*BH*((2 + 2*Tc)*N*d + 2*(Tc + 1)*N) B   Tc = N/Bc, Bc by M
//                     write 4*BH*((Tc + 1)*N*d + (2*Tc + 3)*N) B     O, m, l are initialised here
//           compulsory      4*BH*(4*N*d + N) B
// Launch    grid (1, B*H), 256 threads: one block per head, as in Algorithm 1; no tile is skipped
// Owns      block: one head; half a warp: four rows of each Q tile, or two when d > 64
// Still bad a backward needs S and P; O crosses HBM Tc times; only B*H blocks, however long N
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/warp.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"
#include "steps/02_tiled/2_registers.cuh"

namespace step04 {

using step02::kGrid, step02::kThreads, step02::dot_rows;
constexpr int kPad = 4;    // keeps rows 16-byte aligned
constexpr int kPadP = 16;  // half a warp writes row ty of P, the other half row ty + 1: 32 banks

__host__ __device__ constexpr int tile_rows(int d) { return d <= 64 ? 64 : 32; }  // Br

// What a block keeps in shared memory: 55 KB when d = 64 and Bc = 64.
template <int d, int Bc, int Br = tile_rows(d)>
struct Tiles {
  float K[Bc][d + kPad];
  float V[Bc][d + kPad];
  union {  // the first product needs Q, the second P: never both
    float Q[Br][d + kPad];
    float P[Br][Bc + kPadP];
  };
  float m[Br], l[Br];
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

// O = softmax(scale * Q K^T) V and LSE of one head; "line n" is a line of Algorithm 1.
template <int d, int Bc>
__global__ void __launch_bounds__(kThreads, 2) flash_fwd_kernel(const float* Q,  // [B*H, N, d]
                                                                const float* K,  // [B*H, N, d]
                                                                const float* V,  // [B*H, N, d]
                                                                float* O,        // [B*H, N, d]
                                                                float* m,        // [B*H, N]
                                                                float* l,        // [B*H, N]
                                                                float* LSE,      // [B*H, N]
                                                                int N, float scale, bool causal) {
  // --- prologue
  constexpr int Br = tile_rows(d);
  constexpr int kThreadRows = Br / kGrid, kThreadKeys = Bc / kGrid;  // of a tile, per thread
  constexpr int kPairs = d / (2 * kGrid);  // pairs of features that a thread owns
  Tiles<d, Bc>& smem = *fa::dynamic_shared<Tiles<d, Bc>>();
  const int tx = threadIdx.x % kGrid, ty = threadIdx.x / kGrid;
  const size_t bh = blockIdx.y;
  Q += bh * N * d, K += bh * N * d, V += bh * N * d, O += bh * N * d;
  m += bh * N, l += bh * N, LSE += bh * N;

  for (size_t x = threadIdx.x; x < size_t(N) * d; x += kThreads) O[x] = 0.f;  // line 2
  for (int r0 = 0; r0 < N; r0 += kThreads) {
    const int r = r0 + threadIdx.x;
    if (r < N) m[r] = -INFINITY, l[r] = 0.f;
  }
  __syncthreads();  // O, m and l are complete

  // --- mainloop
  for (int j = 0; j * Bc < N; ++j) {     // line 5
    load_tile<d>(K, smem.K, j * Bc, N);  // line 6
    load_tile<d>(V, smem.V, j * Bc, N);
    for (int i = 0; i * Br < N; ++i) {     // line 7
      load_tile<d>(Q, smem.Q, i * Br, N);  // line 8
      if (threadIdx.x < Br) {
        const int r = i * Br + threadIdx.x;
        smem.m[threadIdx.x] = r < N ? m[r] : 0.f;
        smem.l[threadIdx.x] = r < N ? l[r] : 0.f;
      }
      float2 rO[kThreadRows][kPairs] = {};  // rows ty + 16 a, features 2 tx + 32 b and the next one
      UNROLL
      for (int a = 0; a < kThreadRows; ++a) {
        const int r = i * Br + ty + a * kGrid;
        if (r >= N) continue;
        UNROLL
        for (int b = 0; b < kPairs; ++b) {
          rO[a][b] = *reinterpret_cast<const float2*>(O + size_t(r) * d + 2 * tx + b * 2 * kGrid);
        }
      }
      __syncthreads();  // Q_i, m and l are complete, before the first Q_i also K_j and V_j

      float rS[kThreadRows][kThreadKeys] = {};  // rows ty + 16 a, keys tx + 16 b
      dot_rows<d>(smem.Q, smem.K, rS);          // line 9
      UNROLL
      for (int a = 0; a < kThreadRows; ++a) {
        UNROLL
        for (int b = 0; b < kThreadKeys; ++b) {
          const int r = i * Br + ty + a * kGrid, c = j * Bc + tx + b * kGrid;
          const bool visible = c < N && (!causal || c <= r);
          rS[a][b] = visible ? rS[a][b] * scale : -INFINITY;
        }
      }
      __syncthreads();  // all have read Q_i; P_ij takes its place

      // S becomes P, relative to the m of the keys so far. Row r sees key 0, so m is finite from
      // the first tile on: no exp(-inf - -inf), even in a masked tile.
      // Lines 10 and 11; the paper's factor e^(m~ - m_new) is in P already.
      float l_new[kThreadRows];
      UNROLL
      for (int a = 0; a < kThreadRows; ++a) {
        const int r = i * Br + ty + a * kGrid;
        const float m_old = smem.m[ty + a * kGrid], l_old = smem.l[ty + a * kGrid];
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
        l_new[a] = alpha * l_old + fa::warp_sum<kGrid>(l_tile);
        UNROLL
        for (int b = 0; b < kPairs; ++b) {
          rO[a][b].x *= l_old * alpha;
          rO[a][b].y *= l_old * alpha;
        }
        if (tx == 0 && r < N) m[r] = m_new, l[r] = l_new[a];  // line 13
      }
      __syncwarp();  // P is complete: only the half-warp that made a row of it reads that row

      add_product<d>(smem.P, smem.V, rO);  // line 12: O_i = (l alpha O_i + P V_j) / l_new
      UNROLL
      for (int a = 0; a < kThreadRows; ++a) {
        const int r = i * Br + ty + a * kGrid;
        if (r >= N) continue;
        UNROLL
        for (int b = 0; b < kPairs; ++b) {
          float2* gO = reinterpret_cast<float2*>(O + size_t(r) * d) + tx;  // so nvcc stores pairs
          gO[b * kGrid] = make_float2(rO[a][b].x / l_new[a], rO[a][b].y / l_new[a]);
        }
      }
      __syncthreads();  // all have read the tiles; the next ones may overwrite
    }
  }

  // --- epilogue: LSE, from which a backward can compute P again
  for (int r0 = 0; r0 < N; r0 += kThreads) {
    const int r = r0 + threadIdx.x;
    if (r < N) LSE[r] = m[r] + logf(l[r]);
  }
}

// --- host ---------------------------------------------------------------------------------------

constexpr size_t kDefaultM = 64 * 1024;  // bytes that every GPU since Turing can give to a block

constexpr size_t smem_bytes(int d, int Bc) {
  const int Br = tile_rows(d), longest = std::max(d + kPad, Bc + kPadP);  // of the union's rows
  return sizeof(float) * (2 * Bc * (d + kPad) + Br * (longest + 2));      // of Tiles<d, Bc>
}

// Bc: the widest K/V tile that fits into M bytes.
inline int tile_keys(const fa::Problem& p) {
  const size_t M = p.method.smem != 0 ? p.method.smem : kDefaultM;
  for (const int Bc : {128, 64, 32, 16}) {
    if (smem_bytes(p.d, Bc) <= M) return Bc;
  }
  throw fa::UsageError("--smem " + std::to_string(M) + ": the tiles of d=" + std::to_string(p.d) +
                       " need at least " + std::to_string(smem_bytes(p.d, 16)) + " bytes");
}

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  return {{"m", 4 * p.rows()}, {"l", 4 * p.rows()}};
}

inline fa::Prediction traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d;
  const int Br = tile_rows(p.d), Bc = tile_keys(p);
  const uint64_t Tr = fa::ceil_div(p.N, Br), Tc = fa::ceil_div(p.N, Bc);
  fa::Prediction t;
  t["Q"].read = 4 * BH * Tc * N * d;
  t["K"].read = t["V"].read = 4 * BH * N * d;
  t["O"] = {.read = 4 * BH * Tc * N * d, .write = 4 * BH * (Tc + 1) * N * d};
  t["m"] = t["l"] = {.read = 4 * BH * (Tc + 1) * N, .write = 4 * BH * (Tc + 1) * N};
  t["LSE"].write = 4 * BH * N;
  t.hbm = {.read = 4 * BH * 3 * N * d, .write = 4 * BH * (N * d + 3 * N)};
  t.flops = BH * 4 * Tr * Br * Tc * Bc * d;  // zeros of ragged tiles are multiplied too
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<float>& t) {
  fa::dispatch_d<32, 64, 96, 128>(p.d, [&](auto d) {
    fa::dispatch_tile<16, 32, 64, 128>(tile_keys(p), [&](auto Bc) {
      fa::launch(flash_fwd_kernel<d, Bc>,
                 {dim3(1, p.heads()), dim3(kThreads), sizeof(Tiles<d, Bc>)}, t.Q, t.K, t.V, t.O,
                 t.scratch<float>("m"), t.scratch<float>("l"), t.LSE, p.N, p.scale(), p.causal);
    });
  });
}

}  // namespace step04

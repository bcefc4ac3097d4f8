// Step 05 -- the backward on chip: FlashAttention's Algorithm 4.
// Idea      The block that computes a tile of P and dS also multiplies with it, so neither goes to
//           HBM: five matrix products on chip, and nothing of size N * N is ever written.
// Changed   since 05 3_from_lse: the grid over tiles is two loops, as in step 04; P, then dS, in
//           the same shared memory; dK and dV are summed in registers, dQ in HBM
// Traffic   requested read  4*BH*((4 + 3*Tc)*N*d + 2*Tc*N) B   Tc = N/Bc, causal or not: no tile
//                     write 4*BH*((3 + Tc)*N*d + N) B          is skipped
//           compulsory      4*BH*(8*N*d + N) B
// Launch    delta (N/8, 1, B*H), backward (1, B*H), 256 threads: a block walks one head
// Owns      block: one head, by Bc = 64 keys and Br = 64 rows, 32 (d = 96) or 16 (128); thread:
//           Bc/16 keys x d/16 features of dK and dV, in registers
// Still bad B*H blocks for the whole GPU; dQ crosses HBM twice for each tile of keys
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/warp.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"
#include "steps/02_tiled/2_registers.cuh"

namespace step05 {

using step02::kGrid, step02::kThreads, step02::dot_rows;  // a block's 16 x 16 threads
constexpr int kPad = 4;                                   // keeps rows 16-byte aligned
constexpr int kPadP = 16;   // half a warp writes row ty of P, the other half row ty + 1: 32 banks
constexpr int kBlockY = 8;  // rows of delta per block: one warp each

// What a block keeps in shared memory: Br rows and Bc keys.
template <int d, int Br, int Bc>
struct Tiles {
  float Q[Br][d + kPad];
  float dO[Br][d + kPad];
  float K[Bc][d + kPad];
  float V[Bc][d + kPad];
  float P_dS[Br][Bc + kPadP];  // P for dV, then dS
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

// C += A B, a sum over the keys: dQ += dS K. Rows ty + 16 a, features 2 tx + 32 b and the next one.
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

// C += A^T G, a sum over the rows: dV += P^T dO and dK += dS^T Q. A thread owns four neighbouring
// keys, or two, and reads along a row of A. Features 2 tx + 32 b and the next one.
template <int d, int Br, int stride, int kKeys>
__device__ inline void add_key_gradient(const float (&sA)[Br][stride],
                                        const float (&sG)[Br][d + kPad],
                                        float2 (&rC)[kKeys][d / (2 * kGrid)]) {
  using Keys = std::conditional_t<kKeys == 4, float4, float2>;
  const int tx = threadIdx.x % kGrid, ty = threadIdx.x / kGrid;
  for (int r = 0; r < Br; ++r) {
    __align__(16) float p[kKeys];  // of one row
    *reinterpret_cast<Keys*>(p) = *reinterpret_cast<const Keys*>(&sA[r][kKeys * ty]);
    UNROLL
    for (int b = 0; b < d / (2 * kGrid); ++b) {
      const float2 g = *reinterpret_cast<const float2*>(&sG[r][2 * tx + b * 2 * kGrid]);
      UNROLL
      for (int a = 0; a < kKeys; ++a) {
        rC[a][b].x += p[a] * g.x;
        rC[a][b].y += p[a] * g.y;
      }
    }
  }
}

// delta = rowsum(dO * O): one value per query row. One warp owns a row; it also sets the row of dQ
// to zero, because backward_kernel adds to it.
template <int d>
__global__ void delta_kernel(const float* O,   // [B*H, N, d]
                             const float* dO,  // [B*H, N, d]
                             float* delta,     // [B*H, N]
                             float* dQ,        // [B*H, N, d]
                             int N) {
  const int r = blockIdx.x * kBlockY + threadIdx.y;
  const int lane = threadIdx.x;
  const size_t row = size_t(blockIdx.z) * N + r;
  if (r >= N) return;  // a whole warp leaves; shuffles follow, barriers do not
  float sum = 0.f;
  UNROLL
  for (int x = lane; x - lane < d; x += fa::kWarp) {
    sum += dO[row * d + x] * O[row * d + x];
    dQ[row * d + x] = 0.f;
  }
  sum = fa::warp_sum(sum);
  if (lane == 0) delta[row] = sum;
}

// One block walks a head: tiles of keys in the outer loop, tiles of rows in the inner one. dK and
// dV of the tile of keys stay in registers; dQ of the tile of rows is read from HBM, added to and
// written back. No other block touches it, so the order of the additions is fixed: no atomics, and
// the same bits in each run. Two blocks per SM are requested where 128 registers per thread are
// enough.
template <int d, int Br, int Bc>
__global__ void __launch_bounds__(kThreads, d <= 64 ? 2 : 1)
    backward_kernel(const float* Q,      // [B*H, N, d]
                    const float* K,      // [B*H, N, d]
                    const float* V,      // [B*H, N, d]
                    const float* dO,     // [B*H, N, d]
                    const float* LSE,    // [B*H, N]
                    const float* delta,  // [B*H, N]
                    float* dQ,           // [B*H, N, d]
                    float* dK,           // [B*H, N, d]
                    float* dV,           // [B*H, N, d]
                    int N, float scale, bool causal) {
  constexpr int kThreadRows = Br / kGrid, kThreadKeys = Bc / kGrid;  // of a tile, per thread
  constexpr int kPairs = d / (2 * kGrid);  // pairs of features that a thread owns
  Tiles<d, Br, Bc>& smem = *fa::dynamic_shared<Tiles<d, Br, Bc>>();
  const int tx = threadIdx.x % kGrid, ty = threadIdx.x / kGrid;
  const size_t bh = blockIdx.y;
  Q += bh * N * d, K += bh * N * d, V += bh * N * d, dO += bh * N * d;
  dQ += bh * N * d, dK += bh * N * d, dV += bh * N * d;
  LSE += bh * N, delta += bh * N;

  for (int j = 0; j * Bc < N; ++j) {
    load_tile<d>(K, smem.K, j * Bc, N);
    load_tile<d>(V, smem.V, j * Bc, N);
    float2 rdK[kThreadKeys][kPairs] = {};  // keys Bc/16 ty + a, features 2 tx + 32 b, + 1
    float2 rdV[kThreadKeys][kPairs] = {};

    for (int i = 0; i * Br < N; ++i) {
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
          smem.P_dS[ty + a * kGrid][tx + b * kGrid] = rP[a][b];
        }
      }
      __syncthreads();  // P is complete
      add_key_gradient<d>(smem.P_dS, smem.dO, rdV);

      // dS = scale * P * (dP - delta); dQ and dK both need the factor of the scores.
      float rdP[kThreadRows][kThreadKeys] = {};
      dot_rows<d>(smem.dO, smem.V, rdP);
      __syncthreads();  // all have read P; dS may take its place
      UNROLL
      for (int a = 0; a < kThreadRows; ++a) {
        UNROLL
        for (int b = 0; b < kThreadKeys; ++b) {
          smem.P_dS[ty + a * kGrid][tx + b * kGrid] =
              scale * rP[a][b] * (rdP[a][b] - smem.delta[ty + a * kGrid]);
        }
      }
      __syncthreads();  // dS is complete
      add_key_gradient<d>(smem.P_dS, smem.Q, rdK);

      float2 rdQ[kThreadRows][kPairs] = {};
      add_product<d>(smem.P_dS, smem.K, rdQ);
      UNROLL
      for (int a = 0; a < kThreadRows; ++a) {
        const int r = i * Br + ty + a * kGrid;
        if (r >= N) continue;
        UNROLL
        for (int b = 0; b < kPairs; ++b) {
          float2* gdQ = reinterpret_cast<float2*>(dQ + size_t(r) * d + 2 * tx + b * 2 * kGrid);
          const float2 before = *gdQ;  // this thread's own, of one tile of keys ago
          *gdQ = make_float2(before.x + rdQ[a][b].x, before.y + rdQ[a][b].y);
        }
      }
      __syncthreads();  // all have read the tiles; the next ones may overwrite
    }

    UNROLL
    for (int a = 0; a < kThreadKeys; ++a) {
      const int c = j * Bc + kThreadKeys * ty + a;
      if (c >= N) continue;
      float2* gdK = reinterpret_cast<float2*>(dK + size_t(c) * d) + tx;
      float2* gdV = reinterpret_cast<float2*>(dV + size_t(c) * d) + tx;
      UNROLL
      for (int b = 0; b < kPairs; ++b) {
        gdK[b * kGrid] = rdK[a][b];
        gdV[b * kGrid] = rdV[a][b];
      }
    }
  }
}

// --- host ---------------------------------------------------------------------------------------

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  return {{"m", 4 * p.rows()}, {"l", 4 * p.rows()}, {"delta", 4 * p.rows()}};  // m, l: forward's
}

// Calls f(d, Br, Bc) with sizes whose tiles fit the shared memory that the GPU gives to a block.
template <class F>
void dispatch_tiles(const fa::Problem& p, F&& f) {
  fa::dispatch_d<32, 64, 96, 128>(p.d, [&](auto d) {
    constexpr int rows = d <= 64 ? 64 : d <= 96 ? 32 : 16;              // with 64 keys up to 89 KB
    constexpr int few = d == 64 ? 32 : rows, keys = d <= 64 ? 64 : 32;  // up to 61 KB, for a T4
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
  dispatch_tiles(p, [&](int, int Br, int Bc) {
    const uint64_t Tr = fa::ceil_div(p.N, Br), Tc = fa::ceil_div(p.N, Bc);
    t["O"].read = 4 * BH * N * d;
    t["dO"].read = 4 * BH * (1 + Tc) * N * d;  // delta; each tile of keys
    t["delta"] = {.read = 4 * BH * Tc * N, .write = 4 * BH * N};
    t["LSE"].read = 4 * BH * Tc * N;
    t["Q"].read = 4 * BH * Tc * N * d;
    t["K"].read = t["V"].read = 4 * BH * N * d;
    t["dQ"] = {.read = 4 * BH * Tc * N * d, .write = 4 * BH * (1 + Tc) * N * d};  // zeros first
    t["dK"].write = t["dV"].write = 4 * BH * N * d;
    t.hbm = {.read = 4 * BH * (7 * N * d + 2 * N), .write = 4 * BH * (4 * N * d + N)};
    t.flops = BH * 10 * Br * Tr * Bc * Tc * d;  // five products; zeros are multiplied too
  });
  return t;
}

template <int d>
void make_delta(const fa::Problem& p, const fa::Tensors<float>& t,
                float* delta) {  // [B*H, N]
  const dim3 grid(fa::ceil_div(p.N, kBlockY), 1, p.heads());
  fa::launch(delta_kernel<d>, {grid, dim3(fa::kWarp, kBlockY)}, t.O, t.dO, delta, t.dQ, p.N);
}

inline void backward(const fa::Problem& p, const fa::Tensors<float>& t) {
  float* delta = t.scratch<float>("delta");
  const unsigned BH = p.heads();
  dispatch_tiles(p, [&](auto d, auto Br, auto Bc) {
    make_delta<d>(p, t, delta);
    fa::launch(backward_kernel<d, Br, Bc>, {dim3(1, BH), dim3(kThreads), sizeof(Tiles<d, Br, Bc>)},
               t.Q, t.K, t.V, t.dO, t.LSE, delta, t.dQ, t.dK, t.dV, p.N, p.scale(), p.causal);
  });
}

}  // namespace step05

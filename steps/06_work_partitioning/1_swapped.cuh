// Step 06, first part -- FlashAttention-2's order of work, in its plainest form (arXiv 2307.08691).
// Idea      Swap the loops: a block keeps one tile of Q and walks the keys, so O, m and l live in
//           registers from the first tile to the last and are written once. Tiles of Q do not need
//           each other: the sequence is parallel now, not only batch and heads
// Changed   since 04: the outer loop over i is the grid, the inner one runs over j; O, m and l do
//           not wait in HBM; one division at the end; tiles above the diagonal are not visited
// Traffic   requested read  4*BH*(N*d + 2*Tr*N*d) B   Tr = N/32; causal: K and V of visited tiles
//                     write 4*BH*(N*d + N) B          O, LSE
//           compulsory      4*BH*(4*N*d + N) B
// Launch    grid (Tr, B*H), 256 threads; causal: a head's longest walks first
// Owns      block: 32 rows of O; warp: 4 of them; lane: one key of S and d/32 features of O
// Still bad a load from shared memory for every three multiply-adds: see 2_registers.cuh
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/warp.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"

namespace step06 {

constexpr int kWarps = 8;
constexpr int kWarpRows = 4;            // of Q, O, m and l, that a warp owns
constexpr int Br = kWarps * kWarpRows;  // rows of a Q tile
constexpr int Bc = fa::kWarp;           // lane c scores key c of a tile
constexpr int kKeyStep = 4;             // P and V are read four keys at a time
constexpr int kPad = 4;  // keeps rows of K 16-byte aligned; 8 lanes, 8 rows: 32 banks
constexpr int kThreads = kWarps * fa::kWarp;
static_assert(Br == Bc, "the diagonal crosses a causal row's last tile only");

// Rows row0 .. row0 + rows - 1 of a matrix [N, d] to shared memory, `stride` floats apart; rows
// past the end are zero. `threads` threads share the work, this one is number `thread`.
template <int d>
__device__ inline void load_tile(const float* g,  // [N, d]
                                 float* s,        // [rows, stride]
                                 int stride, int row0, int rows, int N, int thread, int threads) {
  constexpr int kVectors = d / 4;  // of four floats, a row
  for (int v = thread; v < rows * kVectors; v += threads) {
    const int r = v / kVectors, x = v % kVectors * 4;
    float4 row = make_float4(0.f, 0.f, 0.f, 0.f);
    if (row0 + r < N) row = *reinterpret_cast<const float4*>(g + size_t(row0 + r) * d + x);
    *reinterpret_cast<float4*>(s + r * stride + x) = row;
  }
}

__device__ inline float dot(float4 a, float4 b) {
  return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

// Q_i [Br, d], K_j [Bc, d + kPad], V_j [Bc, d] and P_ij [Br, Bc], in bytes: 53 KB when d = 128.
constexpr size_t smem_bytes(int d) {
  return sizeof(float) * (size_t(Br) * d + size_t(Bc) * (2 * d + kPad + Br));
}

// O = softmax(scale * Q K^T) V and LSE of one tile of Q.
template <int d>
__global__ void __launch_bounds__(kThreads) flash_fwd_kernel(const float* Q,  // [B*H, N, d]
                                                             const float* K,  // [B*H, N, d]
                                                             const float* V,  // [B*H, N, d]
                                                             float* O,        // [B*H, N, d]
                                                             float* LSE,      // [B*H, N]
                                                             int N, float scale, bool causal) {
  // --- prologue: the shared memory, and O, m and l in registers
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  constexpr int kStrideK = d + kPad;
  float* sK = fa::dynamic_shared<float>();         // [Bc, d + kPad]
  float* sV = sK + Bc * kStrideK;                  // [Bc, d]
  float* sQ = sV + Bc * d + warp * kWarpRows * d;  // [kWarpRows, d], this warp's part of Q_i
  float* sP =
      sV + (Bc + Br) * d + warp * kWarpRows * Bc;  // [kWarpRows, Bc], this warp's part of P_ij
  const size_t bh = blockIdx.y;
  Q += bh * N * d, K += bh * N * d, V += bh * N * d, O += bh * N * d, LSE += bh * N;

  // Blocks start in the order of their index. A causal tile i visits i + 1 tiles of keys: the
  // longest walks start first, and short ones fill the gaps at the end.
  const int i = gridDim.x - 1 - blockIdx.x;
  const int row0 = i * Br + warp * kWarpRows;
  load_tile<d>(Q, sQ, d, row0, kWarpRows, N, lane, fa::kWarp);
  __syncwarp();  // sQ is complete

  float rO[kWarpRows][d / fa::kWarp] = {};  // features lane + 32 x; not normalised before the end
  float m[kWarpRows], l[kWarpRows] = {};    // l: this lane's keys only, not summed before the end
  UNROLL
  for (int r = 0; r < kWarpRows; ++r) m[r] = -INFINITY;

  // --- mainloop
  const int last = causal ? i : (N - 1) / Bc;  // tiles above the diagonal are not visited
  for (int j = 0; j <= last; ++j) {
    load_tile<d>(K, sK, kStrideK, j * Bc, Bc, N, threadIdx.x, kThreads);
    load_tile<d>(V, sV, d, j * Bc, Bc, N, threadIdx.x, kThreads);
    __syncthreads();  // K_j and V_j are complete

    // S_ij = scale * Q_i K_j^T
    float rS[kWarpRows] = {};
    for (int x = 0; x < d; x += 4) {  // 5 loads of four floats feed 16 multiply-adds
      const float4 k = *reinterpret_cast<const float4*>(sK + lane * kStrideK + x);
      UNROLL  // r indexes register arrays, so it must be a compile-time constant
      for (int r = 0; r < kWarpRows; ++r) {
        rS[r] += dot(*reinterpret_cast<const float4*>(sQ + r * d + x), k);
      }
    }

    // Only the last tile has keys that a row must not see: past the diagonal, or past the end.
    const bool edge = j == last;  // the same for all threads of the block
    const int key = j * Bc + lane;
    UNROLL
    for (int r = 0; r < kWarpRows; ++r) {
      const bool masked = edge && (key >= N || (causal && key > row0 + r));
      const float s = masked ? -INFINITY : rS[r] * scale;
      // m_new is finite, for tile 0 shows every row its key 0: no exp(-inf - -inf).
      const float m_new = fmaxf(m[r], fa::warp_max(s));
      const float alpha = expf(m[r] - m_new);  // 0 in tile 0, where m is -inf
      const float p = expf(s - m_new);
      l[r] = alpha * l[r] + p;
      m[r] = m_new;
      UNROLL
      for (int x = 0; x < d / fa::kWarp; ++x) rO[r][x] *= alpha;
      sP[r * Bc + lane] = p;
    }
    __syncwarp();  // the warp's rows of P are complete; no other warp needs them

    // O_i = alpha O_i + P_ij V_j
    for (int c = 0; c < Bc; c += kKeyStep) {
      __align__(16) float p[kWarpRows][kKeyStep];
      UNROLL
      for (int r = 0; r < kWarpRows; ++r) {
        *reinterpret_cast<float4*>(p[r]) = *reinterpret_cast<const float4*>(sP + r * Bc + c);
      }
      UNROLL
      for (int k = 0; k < kKeyStep; ++k) {
        UNROLL
        for (int x = 0; x < d / fa::kWarp; ++x) {
          const float v = sV[(c + k) * d + x * fa::kWarp + lane];
          UNROLL
          for (int r = 0; r < kWarpRows; ++r) rO[r][x] += p[r][k] * v;
        }
      }
    }
    __syncthreads();  // all have read K_j, V_j and their P; the next tile may overwrite
  }

  // --- epilogue: the only division, the only stores
  float row_lse = 0.f;  // lane r takes row r's, so that one request writes the warp's four
  UNROLL
  for (int r = 0; r < kWarpRows; ++r) {
    l[r] = fa::warp_sum(l[r]);
    if (lane == r) row_lse = m[r] + logf(l[r]);
    UNROLL
    for (int x = 0; x < d / fa::kWarp; ++x) {
      if (row0 + r < N) O[size_t(row0 + r) * d + x * fa::kWarp + lane] = rO[r][x] / l[r];
    }
  }
  if (lane < kWarpRows && row0 + lane < N) LSE[row0 + lane] = row_lse;
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
    fa::launch(flash_fwd_kernel<d>, {dim3(Tr, BH), dim3(kThreads), smem_bytes(d)}, t.Q, t.K, t.V,
               t.O, t.LSE, p.N, p.scale(), p.causal);
  });
}

}  // namespace step06

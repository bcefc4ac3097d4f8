// Step 07 -- lazy rescale; any number of keys, GQA.
// Idea      O and l are relative to m, but m need not be the maximum. All three stay as they are
//           until the maximum of a row has grown by more than 8. P may then reach 2^8 instead of
//           1, and most tiles need no rescaling
// Changed   since 07 3_bands: lazy rescale; Nk != N, so a row may see no key; GQA: fewer key heads
//           than query heads; causal: the longest walks of all heads start first
// Traffic   requested read  2*BH*(N*d + 2*Tr*Nk*d) B   Tr = N/128; causal: K and V of visited tiles
//                     write 2*BH*N*d + 4*BH*N B        O, LSE
//           compulsory      2*(2*BH*N*d + 2*BHkv*Nk*d) + 4*BH*N B
// Launch    grid (Tr * B*H), 128 threads; causal: the longest walks of all heads first
// Owns      block: 128 rows of O; warp: 32 of them; lane: of 4 rows every fourth pair of columns
// Still bad outside P V a warp's tensor core works only for other warps: step 09
#pragma once

#include <cfloat>
#include "common/dialect/cuda.h"
#include "common/dialect/fragment.h"
#include "common/dialect/ptx/cp_async.h"
#include "common/dialect/ptx/math.h"
#include "common/dialect/ptx/mma.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"

namespace step07 {

using fa::bf16;

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * fa::kWarp;
constexpr int kMma = 16;   // rows of an mma's A, and keys or features that it sums over
constexpr int kBands = 2;  // of 16 rows per warp: each fragment of K and V serves both
constexpr int kWarpRows = kBands * kMma;  // of a warp
constexpr int Br = kWarps * kWarpRows;    // rows of a tile of Q
template <int d>
constexpr int Bc = d == 64 ? 128 : 64;  // keys of a tile: what the registers hold beside O
constexpr int kStages = 2;              // of K and V: one is multiplied while the other is copied
constexpr float kNoMaximum = -FLT_MAX;  // below all scores, but finite: -inf - -inf is NaN
constexpr float kLazyRescale = 8.f;     // P may grow to 2^8 before O, l and m follow

// What a block keeps in shared memory: 80 KB when d = 64, 96 KB when d = 128.
template <int d>
struct Tiles {
  bf16 Q[Br * d];  // reused for O in the epilogue
  bf16 K[kStages][Bc<d> * d];
  bf16 V[kStages][Bc<d> * d];
};

// Where element (r, x) of a tile lies, x a multiple of 8. A row is cut into chunks of 16 bytes, and
// chunk c of row r takes the place c ^ (r % 8): eight rows of one chunk, which is what ldmatrix
// reads at a time, then lie in all 32 banks. 16 features further is an XOR, too: place ^ 16.
template <int d>
__device__ inline int swizzle(int r, int x) {
  return r * d + (x ^ (r % 8 * 8));
}

// Rows 0 .. Rows - 1 of a matrix to shared memory, without waiting; from `rows` on they are zero.
template <int d, int Rows>
__device__ inline void load_tile(const bf16* g,  // [rows, d]
                                 bf16* s,        // [Rows, d] swizzled
                                 int rows) {
  constexpr int kChunks = d / 8;               // of 16 bytes, per row
  constexpr int kCopied = kThreads / kChunks;  // rows that the block copies at once
  static_assert(kCopied % 8 == 0, "a thread's chunks have one swizzle");
  const int r = threadIdx.x / kChunks, x = threadIdx.x % kChunks * 8;
  g += r * d + x;
  s += swizzle<d>(r, x);
  UNROLL
  for (int step = 0; step < Rows; step += kCopied) {
    fa::cp_async_16(s + step * d, g + step * d, r + step < rows ? 16 : 0);
  }
}

// S = Q K^T of a warp's 32 rows and a tile's keys, 16 features at a time.
template <int d>
__device__ inline void multiply_scores(const bf16* sQ,  // [32, d] swizzled: this warp's rows
                                       const bf16* sK,  // [Bc, d] swizzled
                                       float (&rS)[kBands][Bc<d> / 8][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  const int q = swizzle<d>(lane % 16, lane / 16 * 8);                    // left half, then right
  const int k = swizzle<d>(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);  // 8 keys, then 8 more
  UNROLL
  for (int x = 0; x < d; x += kMma) {
    uint32_t a[kBands][4];
    UNROLL
    for (int t = 0; t < kBands; ++t) fa::ldmatrix_x4(a[t], sQ + t * kMma * d + (q ^ x));
    UNROLL
    for (int c = 0; c < Bc<d>; c += 16) {
      uint32_t b[2][2];  // K^T of 16 features and two times 8 keys
      fa::ldmatrix_x4(b, sK + c * d + (k ^ x));
      UNROLL
      for (int n = 0; n < 2; ++n) {
        UNROLL
        for (int t = 0; t < kBands; ++t) fa::mma_m16n8k16(rS[t][c / 8 + n], a[t], b[n]);
      }
    }
  }
}

// Scores that their row does not see become -inf: in tiles that the diagonal or the end cuts.
template <int d>
__device__ inline void mask(float (&rS)[kBands][Bc<d> / 8][4], int row, int key, int N, int Nk,
                            bool causal) {  // row, key: the first ones of this lane
  UNROLL
  for (int t = 0; t < kBands; ++t) {
    UNROLL
    for (int h = 0; h < 2; ++h) {
      const int r = row + t * kMma + h * 8;
      const int visible = (causal ? min(Nk, r + 1 + Nk - N) : Nk) - key;
      UNROLL
      for (int n = 0; n < Bc<d> / 8; ++n) {
        if (n * 8 >= visible) rS[t][n][2 * h] = -INFINITY;
        if (n * 8 + 1 >= visible) rS[t][n][2 * h + 1] = -INFINITY;
      }
    }
  }
}

// Row maxima, in powers of two. O and l are relative to m. While no row of the warp has grown by
// more than 8 they all stay as they are: P is then at most 2^8, not 1, which costs neither fp32
// nor bf16 a digit. Only the largest element of a row of P is no longer exactly 1: it is rounded.
template <int d>
__device__ inline void update_maximum(const float (&rS)[kBands][Bc<d> / 8][4], float scale_log2,
                                      float (&m)[kBands][2], float (&l)[kBands][2],
                                      float (&rO)[kBands][d / 8][4]) {
  float m_new[kBands][2];
  bool grown = false;
  UNROLL
  for (int t = 0; t < kBands; ++t) {
    UNROLL
    for (int h = 0; h < 2; ++h) {
      float s = -INFINITY;
      UNROLL
      for (int n = 0; n < Bc<d> / 8; ++n) s = fmaxf(s, fmaxf(rS[t][n][2 * h], rS[t][n][2 * h + 1]));
      m_new[t][h] = fmaxf(m[t][h], scale_log2 * fa::quad_max(s));
      grown |= m_new[t][h] > m[t][h] + kLazyRescale;
    }
  }
  if (!__any_sync(fa::kFullMask, grown)) return;
  UNROLL
  for (int t = 0; t < kBands; ++t) {
    UNROLL
    for (int h = 0; h < 2; ++h) {
      const float alpha = fa::exp2_approx(m[t][h] - m_new[t][h]);
      m[t][h] = m_new[t][h];
      l[t][h] *= alpha;
      UNROLL
      for (int n = 0; n < d / 8; ++n) rO[t][n][2 * h] *= alpha, rO[t][n][2 * h + 1] *= alpha;
    }
  }
}

// O += P V, 16 keys at a time: their P, then their products. The tensor cores work on these while
// the next keys' exponentials are computed: only here do a warp's two kinds of work overlap.
template <int d>
__device__ inline void multiply_values(const float (&rS)[kBands][Bc<d> / 8][4], float scale_log2,
                                       const float (&m)[kBands][2],
                                       const bf16* sV,  // [Bc, d] swizzled
                                       float (&l)[kBands][2], float (&rO)[kBands][d / 8][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  const int v = swizzle<d>(lane % 16, lane / 16 * 8);
  UNROLL
  for (int c = 0; c < Bc<d>; c += kMma) {
    uint32_t a[kBands][4];  // P of 16 keys: two neighbouring 8-key tiles of S, rounded to bf16
    UNROLL
    for (int t = 0; t < kBands; ++t) {
      UNROLL
      for (int e = 0; e < 4; ++e) {
        const int n = c / 8 + e / 2, h = e % 2;
        const float p0 = fa::exp2_approx(rS[t][n][2 * h] * scale_log2 - m[t][h]);
        const float p1 = fa::exp2_approx(rS[t][n][2 * h + 1] * scale_log2 - m[t][h]);
        l[t][h] += p0 + p1;  // of this lane's keys
        a[t][e] = fa::pack_bf16(p0, p1);
      }
    }
    UNROLL
    for (int x = 0; x < d; x += 16) {
      uint32_t b[2][2];  // V of 16 keys and two times 8 features
      fa::ldmatrix_x4_trans(b, sV + c * d + (v ^ x));
      UNROLL
      for (int n = 0; n < 2; ++n) {
        UNROLL
        for (int t = 0; t < kBands; ++t) fa::mma_m16n8k16(rO[t][x / 8 + n], a[t], b[n]);
      }
    }
  }
}

// Two blocks per SM: 255 registers per thread, and eight warps at different places in the loop.
template <int d>
__global__ void __launch_bounds__(kThreads, 2)
    flash_fwd_kernel(const bf16* Q,  // [B*H, N, d]
                     const bf16* K,  // [B*Hkv, Nk, d]
                     const bf16* V,  // [B*Hkv, Nk, d]
                     bf16* O,        // [B*H, N, d]
                     float* LSE,     // [B*H, N]
                     int heads, int group, int N, int Nk, float scale, bool causal) {
  // --- prologue: which tile; copies of Q_i, K_0 and V_0
  Tiles<d>& smem = *fa::dynamic_shared<Tiles<d>>();
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  // Causal walks have different lengths: all heads' longest ones start first, and the short ones
  // fill the gaps at the end. Else the blocks of a head follow each other and find K and V in L2.
  const int Tr = gridDim.x / heads;
  const int i = causal ? Tr - 1 - blockIdx.x / heads : blockIdx.x % Tr;
  const int bh = causal ? blockIdx.x % heads : blockIdx.x / Tr;
  const int rows = N - i * Br;  // from the tile's first one on
  const size_t row0 = size_t(bh) * N + i * Br;
  const size_t key0 = size_t(bh / group) * Nk;  // `group` heads share K and V
  Q += row0 * d, O += row0 * d, LSE += row0, K += key0 * d, V += key0 * d;
  const int seen = causal ? min(Nk, (i + 1) * Br + Nk - N) : Nk;  // keys, by the tile's last row
  const int tiles = seen <= 0 ? 0 : (seen + Bc<d> - 1) / Bc<d>;
  load_tile<d, Br>(Q, smem.Q, rows);
  if (tiles > 0) {
    load_tile<d, Bc<d>>(K, smem.K[0], Nk);
    load_tile<d, Bc<d>>(V, smem.V[0], Nk);
  }
  const float scale_log2 = scale * fa::kLog2e;  // exp(scale * s) = 2^(scale_log2 * s)
  const bf16* sQ = smem.Q + warp * kWarpRows * d;
  float rO[kBands][d / 8][4] = {}, l[kBands][2] = {};
  float m[kBands][2] = {{kNoMaximum, kNoMaximum}, {kNoMaximum, kNoMaximum}};
  const int first_row = warp * kWarpRows + fa::row_of(lane);  // of this lane, in the tile

  // --- mainloop
  for (int j = 0; j < tiles; ++j) {
    fa::cp_async_wait_all();
    __syncthreads();  // all copies of tile j are here, and all warps are done with tile j - 1
    if (j + 1 < tiles) {
      const int next = (j + 1) * Bc<d>, stage = (j + 1) % kStages;
      load_tile<d, Bc<d>>(K + size_t(next) * d, smem.K[stage], Nk - next);
      load_tile<d, Bc<d>>(V + size_t(next) * d, smem.V[stage], Nk - next);
    }
    float rS[kBands][Bc<d> / 8][4] = {};
    multiply_scores<d>(sQ, smem.K[j % kStages], rS);
    const int cut = causal ? min(Nk, i * Br + warp * kWarpRows + 1 + Nk - N) : Nk;
    if (cut < (j + 1) * Bc<d>) {  // the warp's first row does not see all of tile j
      mask<d>(rS, i * Br + first_row, j * Bc<d> + fa::column_of(lane), N, Nk, causal);
    }
    update_maximum<d>(rS, scale_log2, m, l, rO);
    multiply_values<d>(rS, scale_log2, m, smem.V[j % kStages], l, rO);
  }

  // --- epilogue: O goes through the warp's rows of Q: 16 bytes per lane leave in whole rows
  if (tiles == 0) {  // no tile was waited for: the copies of Q may still be under way
    fa::cp_async_wait_all();
    __syncthreads();  // other warps' threads copied to this warp's rows, too
  }
  __syncwarp();  // all lanes have read the warp's rows of Q
  UNROLL
  for (int t = 0; t < kBands; ++t) {
    UNROLL
    for (int h = 0; h < 2; ++h) {
      const int r = first_row + t * kMma + h * 8;
      l[t][h] = fa::quad_sum(l[t][h]);
      const float normalise = l[t][h] > 0.f ? 1.f / l[t][h] : 0.f;  // no key seen: O = 0
      UNROLL
      for (int n = 0; n < d / 8; ++n) {
        *reinterpret_cast<uint32_t*>(smem.Q + swizzle<d>(r, n * 8) + fa::column_of(lane)) =
            fa::pack_bf16(rO[t][n][2 * h] * normalise, rO[t][n][2 * h + 1] * normalise);
      }
      if (fa::leads_quad(lane) && r < rows) LSE[r] = (m[t][h] + log2f(l[t][h])) * fa::kLn2;
    }
  }
  __syncwarp();                               // the warp's rows are complete
  constexpr int kStored = fa::kWarp * 8 / d;  // rows that a warp stores at once
  UNROLL
  for (int step = 0; step < kWarpRows; step += kStored) {
    const int r = warp * kWarpRows + step + lane / (d / 8), x = lane % (d / 8) * 8;
    if (r >= rows) continue;
    *reinterpret_cast<uint4*>(O + r * d + x) = *reinterpret_cast<uint4*>(smem.Q + swizzle<d>(r, x));
  }
}

// --- host ---------------------------------------------------------------------------------------

// What the kernels are made for; anything else is refused.
inline fa::Support support() { return {.d = {64, 128}, .gqa = true, .cross = true}; }

inline fa::Prediction traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d;
  const int keys = p.d == 64 ? Bc<64> : Bc<128>;
  const fa::TileVisits v = fa::visited_tiles(p, Br, keys);
  fa::Prediction t;
  t["Q"].read = t["O"].write = 2 * BH * N * d;
  t["K"].read = t["V"].read = 2 * BH * v.keys * d;
  t["LSE"].write = 4 * BH * N;
  t.hbm = {.read = 2 * (BH * N * d + 2 * p.kv_size()), .write = 2 * BH * N * d + 4 * BH * N};
  t.flops = BH * 4 * Br * keys * v.tiles * d;  // zeros of ragged tiles are multiplied too
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const unsigned BH = p.heads(), Tr = fa::ceil_div(p.N, Br);
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    fa::launch(flash_fwd_kernel<d>, {dim3(Tr * BH), dim3(kThreads), sizeof(Tiles<d>)}, t.Q, t.K,
               t.V, t.O, t.LSE, int(BH), p.H / p.Hkv, p.N, p.Nk, p.scale(), p.causal);
  });
}

}  // namespace step07

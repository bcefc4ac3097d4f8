// Step 09 -- Hopper's copies: TMA.
// Idea      One thread issues the copy of a whole tile, which then runs asynchronously. The warps
//           wait at an mbarrier, which counts its bytes; another counts the warps that are done
// Changed   since 07 4_lazy: tiles by TMA instead of cp.async; mbarriers instead of __syncthreads;
//           tiles lie in panels of 64 features, as TMA writes them; O leaves by TMA
// Traffic   requested read  2*BH*(N*d + 2*Tr*Nk*d) B   Tr = N/128; causal: K and V of visited tiles
//                     write 2*BH*N*d + 4*BH*N B        O, LSE
//           compulsory      2*(2*BH*N*d + 2*BHkv*Nk*d) + 4*BH*N B
// Launch    grid (Tr * B*H), 128 threads; causal: the longest walks of all heads first
// Owns      block: 128 rows of O; warp: 32 of them; lane: of 4 rows every fourth pair of columns
// Still bad each warp still loads every fragment of K and V into its registers: 2_wgmma
#pragma once

#include <cfloat>
#include "common/dialect/cuda.h"
#include "common/dialect/fragment.h"
#include "common/dialect/ptx/math.h"
#include "common/dialect/ptx/mbarrier.h"
#include "common/dialect/ptx/mma.h"
#include "common/dialect/ptx/tma.h"
#include "common/harness/step.h"
#include "steps/07_tensor_cores/4_lazy.cuh"

namespace step09_tma {

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
constexpr int kPanel = 64;              // features side by side: 128 bytes, the widest swizzle
constexpr float kNoMaximum = -FLT_MAX;  // below all scores, but finite: -inf - -inf is NaN
constexpr float kLazyRescale = 8.f;     // P may grow to 2^8 before O, l and m follow

// What a block keeps in shared memory: 81 KB when d = 64, 97 KB when d = 128. A tile is cut into
// panels of 64 features, [d / 64][rows][64]. Each begins at a multiple of 1024 bytes, the period of
// the swizzle, so that TMA and swizzle() mean the same place.
template <int d>
struct alignas(1024) Tiles {
  bf16 Q[kWarps][kWarpRows * d];  // reused for O in the epilogue
  bf16 K[kStages][Bc<d> * d];
  bf16 V[kStages][Bc<d> * d];
  uint64_t q_full, full[kStages], empty[kStages];  // mbarriers
};

// Where element (r, x) of a tile of `rows` rows lies, x a multiple of 8. In each panel it is the
// swizzle of step 07: chunk c of row r takes the place c ^ (r % 8). TMA writes and reads in this
// order by itself. 16 features further in a panel is an XOR, as there: place ^ 16.
template <int rows>
__device__ inline int swizzle(int r, int x) {
  return (x / kPanel * rows + r) * kPanel + (x % kPanel ^ r % 8 * 8);
}

// Copies tile j of K and V to its stage, without waiting. One thread calls it. `full` completes
// after one arrival, this one, and the bytes of both boxes. Rows past the end are zeros and count.
template <int d>
__device__ inline void load_tile(Tiles<d>& smem, const fa::TensorMap& K, const fa::TensorMap& V,
                                 int j, int head) {
  const int stage = j % kStages;
  fa::mbarrier_arrive_expect_tx(&smem.full[stage], sizeof smem.K[0] + sizeof smem.V[0]);
  fa::tma_load(smem.K[stage], &K, &smem.full[stage], {0, j * Bc<d>, 0, head});
  fa::tma_load(smem.V[stage], &V, &smem.full[stage], {0, j * Bc<d>, 0, head});
}

// S = Q K^T of a warp's 32 rows and a tile's keys, 16 features at a time.
template <int d>
__device__ inline void multiply_scores(const bf16* sQ,  // [d / 64][32][64] swizzled: its rows
                                       const bf16* sK,  // [d / 64][Bc][64] swizzled
                                       float (&rS)[kBands][Bc<d> / 8][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  const int q = swizzle<kWarpRows>(lane % 16, lane / 16 * 8);  // left half, then right
  const int k = swizzle<Bc<d>>(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);  // 8 keys, then 8 more
  UNROLL
  for (int x = 0; x < d; x += kMma) {
    const int panel = x / kPanel, inside = x % kPanel;
    uint32_t a[kBands][4];
    UNROLL
    for (int t = 0; t < kBands; ++t) {
      fa::ldmatrix_x4(a[t], sQ + (panel * kWarpRows + t * kMma) * kPanel + (q ^ inside));
    }
    UNROLL
    for (int c = 0; c < Bc<d>; c += 16) {
      uint32_t b[2][2];  // K^T of 16 features and two times 8 keys
      fa::ldmatrix_x4(b, sK + (panel * Bc<d> + c) * kPanel + (k ^ inside));
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
                                       const bf16* sV,  // [d / 64][Bc][64] swizzled
                                       float (&l)[kBands][2], float (&rO)[kBands][d / 8][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  const int v = swizzle<Bc<d>>(lane % 16, lane / 16 * 8);
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
      fa::ldmatrix_x4_trans(b, sV + (x / kPanel * Bc<d> + c) * kPanel + (v ^ x % kPanel));
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
    flash_fwd_kernel(const __grid_constant__ fa::TensorMap map_Q,  // [B*H, N, d], boxes of 32 rows
                     const __grid_constant__ fa::TensorMap map_K,  // [B*Hkv, Nk, d], of Bc
                     const __grid_constant__ fa::TensorMap map_V,  // [B*Hkv, Nk, d], of Bc
                     const __grid_constant__ fa::TensorMap map_O,  // [B*H, N, d], of 32 rows
                     float* LSE,                                   // [B*H, N]
                     int heads, int group, int N, int Nk, float scale, bool causal) {
  // --- prologue: which tile; copies of Q_i, K_0 and V_0
  Tiles<d>& smem = *fa::dynamic_shared<Tiles<d>>();
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  // Causal walks have different lengths: all heads' longest ones start first, and the short ones
  // fill the gaps at the end. Else the blocks of a head follow each other and find K and V in L2.
  const int Tr = gridDim.x / heads;
  const int i = causal ? Tr - 1 - blockIdx.x / heads : blockIdx.x % Tr;
  const int bh = causal ? blockIdx.x % heads : blockIdx.x / Tr;
  const int kv_head = bh / group;                                 // `group` heads share K and V
  const int seen = causal ? min(Nk, (i + 1) * Br + Nk - N) : Nk;  // keys, by the tile's last row
  const int tiles = seen <= 0 ? 0 : (seen + Bc<d> - 1) / Bc<d>;
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&smem.q_full, 1);
    for (int stage = 0; stage < kStages; ++stage) {
      fa::mbarrier_init(&smem.full[stage], 1);
      fa::mbarrier_init(&smem.empty[stage], kWarps);
    }
    fa::mbarrier_init_fence();  // TMA sees them; this thread itself needs no barrier
    fa::mbarrier_arrive_expect_tx(&smem.q_full, sizeof smem.Q);
    for (int w = 0; w < kWarps; ++w) {
      fa::tma_load(smem.Q[w], &map_Q, &smem.q_full, {0, i * Br + w * kWarpRows, 0, bh});
    }
    if (tiles > 0) load_tile<d>(smem, map_K, map_V, 0, kv_head);
  }
  __syncthreads();                              // all threads see the mbarriers
  const float scale_log2 = scale * fa::kLog2e;  // exp(scale * s) = 2^(scale_log2 * s)
  float rO[kBands][d / 8][4] = {}, l[kBands][2] = {};
  float m[kBands][2] = {{kNoMaximum, kNoMaximum}, {kNoMaximum, kNoMaximum}};
  const int warp_row = i * Br + warp * kWarpRows;  // the warp's first row,
  const int row = warp_row + fa::row_of(lane);     // and this lane's
  fa::mbarrier_wait(&smem.q_full, 0);

  // --- mainloop
  for (int j = 0; j < tiles; ++j) {
    const int stage = j % kStages;
    if (threadIdx.x == 0 && j + 1 < tiles) {  // the next tile, once all warps are done with j - 1
      fa::mbarrier_wait(&smem.empty[(j + 1) % kStages], ((j + 1) / kStages & 1) ^ 1);
      load_tile<d>(smem, map_K, map_V, j + 1, kv_head);
    }
    __syncwarp();  // thread 0 is back with its warp
    fa::mbarrier_wait(&smem.full[stage], j / kStages & 1);
    float rS[kBands][Bc<d> / 8][4] = {};
    multiply_scores<d>(smem.Q[warp], smem.K[stage], rS);
    const int cut = causal ? min(Nk, warp_row + 1 + Nk - N) : Nk;
    if (cut < (j + 1) * Bc<d>) {  // the warp's first row does not see all of tile j
      mask<d>(rS, row, j * Bc<d> + fa::column_of(lane), N, Nk, causal);
    }
    update_maximum<d>(rS, scale_log2, m, l, rO);
    multiply_values<d>(rS, scale_log2, m, smem.V[stage], l, rO);
    __syncwarp();  // all lanes have read the warp's fragments of the tile
    if (lane == 0) fa::mbarrier_arrive(&smem.empty[stage]);
  }

  // --- epilogue: O goes through the warp's tile of Q, and leaves it as a box
  __syncwarp();  // all lanes have read the warp's rows of Q
  UNROLL
  for (int t = 0; t < kBands; ++t) {
    UNROLL
    for (int h = 0; h < 2; ++h) {
      l[t][h] = fa::quad_sum(l[t][h]);
      const float normalise = l[t][h] > 0.f ? 1.f / l[t][h] : 0.f;  // no key seen: O = 0
      const int r = row + t * kMma + h * 8;
      UNROLL
      for (int n = 0; n < d / 8; ++n) {
        *reinterpret_cast<uint32_t*>(smem.Q[warp] + swizzle<kWarpRows>(r - warp_row, n * 8) +
                                     fa::column_of(lane)) =
            fa::pack_bf16(rO[t][n][2 * h] * normalise, rO[t][n][2 * h + 1] * normalise);
      }
      if (fa::leads_quad(lane) && r < N) {
        LSE[size_t(bh) * N + r] = (m[t][h] + log2f(l[t][h])) * fa::kLn2;
      }
    }
  }
  fa::fence_proxy_async();  // TMA, another path to shared memory, sees what this thread wrote
  __syncwarp();             // the warp's rows are complete
  if (lane == 0) {
    fa::tma_store(&map_O, smem.Q[warp], {0, warp_row, 0, bh});  // not the rows past the end
    fa::tma_store_commit();
    fa::tma_store_wait_read<0>();  // a block's shared memory must outlive the copy
  }
}

// --- host ---------------------------------------------------------------------------------------

using step07::support, step07::traffic;  // other copies of the same bytes

// A tensor [heads, rows, d] in boxes of `box` rows of a head, cut into panels as Tiles has them.
// Coordinates: feature in its panel, row, panel, head.
template <int d>
fa::TensorMap tensor_map(const bf16* x, uint64_t heads, uint64_t rows, uint32_t box) {
  constexpr uint32_t kPanels = d / kPanel;
  return fa::tensor_map(
      x, {{kPanel, 1, kPanel}, {rows, d, box}, {kPanels, kPanel, kPanels}, {heads, rows * d, 1}},
      fa::Swizzle::b128);
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const unsigned BH = p.heads(), BHkv = p.kv_heads(), Tr = fa::ceil_div(p.N, Br);
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    fa::launch(flash_fwd_kernel<d>, {dim3(Tr * BH), dim3(kThreads), sizeof(Tiles<d>)},
               tensor_map<d>(t.Q, BH, p.N, kWarpRows), tensor_map<d>(t.K, BHkv, p.Nk, Bc<d>),
               tensor_map<d>(t.V, BHkv, p.Nk, Bc<d>), tensor_map<d>(t.O, BH, p.N, kWarpRows), t.LSE,
               int(BH), p.H / p.Hkv, p.N, p.Nk, p.scale(), p.causal);
  });
}

}  // namespace step09_tma

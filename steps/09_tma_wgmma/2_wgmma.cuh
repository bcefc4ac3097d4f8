// Step 09 -- Hopper's products: wgmma.
// Idea      The four warps of a warpgroup issue one product of 64 rows together. The tensor cores
//           read Q, K and V from shared memory themselves, where TMA has put them. The product runs
//           asynchronously, like a copy, and the warpgroup waits for it
// Changed   since 09 1_tma: products by wgmma, which reads Q, K and V where they lie; a warpgroup
//           owns 64 rows; 64 keys per tile at either d, all of P before the first product of P V;
//           O is written by stmatrix
// Traffic   requested read  2*BH*(N*d + 2*Tr*Nk*d) B   Tr = N/128; causal: K and V of visited tiles
//                     write 2*BH*N*d + 4*BH*N B        O, LSE
//           compulsory      2*(2*BH*N*d + 2*BHkv*Nk*d) + 4*BH*N B
// Launch    grid (Tr * B*H), 256 threads; causal: the longest walks of all heads first
// Owns      block: 128 rows of O; warpgroup: 64 of them; warp: 16; lane: of 2 rows every fourth
//           pair of columns
// Still bad a warpgroup alternates products and softmax, and the thread that issues the next copy
//           first waits for the slowest warp of the block: step 10
#pragma once

#include <cfloat>

#include "common/dialect/cuda.h"
#include "common/dialect/fragment.h"
#include "common/dialect/ptx/barrier.h"
#include "common/dialect/ptx/math.h"
#include "common/dialect/ptx/mbarrier.h"
#include "common/dialect/ptx/mma.h"
#include "common/dialect/ptx/tma.h"
#include "common/dialect/ptx/wgmma.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"

namespace step09 {

using fa::bf16;

constexpr int kGroups = 2;          // warpgroups
constexpr int kGroupThreads = 128;  // threads of a warpgroup, four warps
constexpr int kThreads = kGroups * kGroupThreads;
constexpr int kWarps = kThreads / fa::kWarp;
constexpr int kMma = 16;                  // keys or features that a wgmma sums over
constexpr int kGroupRows = 64;            // of a warpgroup: the rows of a wgmma
constexpr int Br = kGroups * kGroupRows;  // rows of a tile of Q
constexpr int Bc = 64;                    // keys of a tile
constexpr int kStages = 2;                // of K and V: one is multiplied while the other is copied
constexpr int kPanel = 64;                // features side by side: 128 bytes, the widest swizzle
constexpr int kRowBytes = 128;            // of a panel
constexpr float kNoMaximum = -FLT_MAX;    // below all scores, but finite: -inf - -inf is NaN
constexpr float kLazyRescale = 8.f;       // P may grow to 2^8 before O, l and m follow

// What a block keeps in shared memory: 49 KB when d = 64, 97 KB when d = 128. A tile is cut into
// panels of 64 features, [d / 64][rows][64]. Each begins at a multiple of 1024 bytes, the period of
// the swizzle, so that TMA, wgmma and swizzle() mean the same place.
template <int d>
struct alignas(1024) Tiles {
  bf16 Q[kGroups][kGroupRows * d];  // reused for O in the epilogue
  bf16 K[kStages][Bc * d];
  bf16 V[kStages][Bc * d];
  uint64_t q_full, full[kStages], empty[kStages];  // mbarriers
};

// Where element (r, x) of a tile of `rows` rows lies, x a multiple of 8. In each panel it is the
// swizzle of step 07: chunk c of row r takes the place c ^ (r % 8). TMA writes and reads in this
// order by itself, and so does wgmma: only O needs it.
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
  fa::tma_load(smem.K[stage], &K, &smem.full[stage], {0, j * Bc, 0, head});
  fa::tma_load(smem.V[stage], &V, &smem.full[stage], {0, j * Bc, 0, head});
}

// S = Q K^T of a warpgroup's 64 rows and a tile's keys, 16 features at a time. Number i of rS is S
// at wgmma_d_element(thread, i): row row_of(lane) + 8 * half_of(i) of the warp's 16, key
// column_of(lane) + column_at(i), as in mma's D.
template <int d>
__device__ inline void multiply_scores(const bf16* sQ,  // [d / 64][64][64] swizzled: its rows
                                       const bf16* sK,  // [d / 64][Bc][64] swizzled
                                       float (&rS)[Bc / 2]) {
  // K-major, both: a row of memory is a row of Q or a key, and features are what is summed over.
  const uint64_t q = fa::wgmma_descriptor(sQ, fa::Swizzle::b128, /*unused*/ 16, 8 * kRowBytes);
  const uint64_t k = fa::wgmma_descriptor(sK, fa::Swizzle::b128, /*unused*/ 16, 8 * kRowBytes);
  fa::wgmma_fence();  // the last reads of rS come before the products' writes
  UNROLL
  for (int x = 0; x < d; x += kMma) {
    const int panel = x / kPanel, inside = x % kPanel * 2;  // bytes
    fa::wgmma(rS, fa::wgmma_advance(q, panel * kGroupRows * kRowBytes + inside),
              fa::wgmma_advance(k, panel * Bc * kRowBytes + inside), /*accumulate=*/x > 0);
  }
  fa::wgmma_commit();
  fa::wgmma_wait<0>();
  fa::pin_registers(rS);  // the compiler may read them only now
}

// Scores that their row does not see become -inf: in tiles that the diagonal or the end cuts.
__device__ inline void mask(float (&rS)[Bc / 2], int row, int key, int N, int Nk,
                            bool causal) {  // row, key: the first ones of this lane
  UNROLL
  for (int h = 0; h < 2; ++h) {
    const int r = row + h * 8;
    const int visible = (causal ? min(Nk, r + 1 + Nk - N) : Nk) - key;
    UNROLL
    for (int n = 0; n < Bc / 8; ++n) {
      if (n * 8 >= visible) rS[n * 4 + 2 * h] = -INFINITY;
      if (n * 8 + 1 >= visible) rS[n * 4 + 2 * h + 1] = -INFINITY;
    }
  }
}

// Row maxima, in powers of two. O and l are relative to m. While no row of the warp has grown by
// more than 8 they all stay as they are: P is then at most 2^8, not 1, which costs neither fp32
// nor bf16 a digit. Only the largest element of a row of P is no longer exactly 1: it is rounded.
template <int d>
__device__ inline void update_maximum(const float (&rS)[Bc / 2], float scale_log2, float (&m)[2],
                                      float (&l)[2], float (&rO)[d / 2]) {
  float m_new[2];
  bool grown = false;
  UNROLL
  for (int h = 0; h < 2; ++h) {
    float s = -INFINITY;
    UNROLL
    for (int n = 0; n < Bc / 8; ++n) s = fmaxf(s, fmaxf(rS[n * 4 + 2 * h], rS[n * 4 + 2 * h + 1]));
    m_new[h] = fmaxf(m[h], scale_log2 * fa::quad_max(s));
    grown |= m_new[h] > m[h] + kLazyRescale;
  }
  if (!__any_sync(fa::kFullMask, grown)) return;
  UNROLL
  for (int h = 0; h < 2; ++h) {
    const float alpha = fa::exp2_approx(m[h] - m_new[h]);
    m[h] = m_new[h];
    l[h] *= alpha;
    UNROLL
    for (int n = 0; n < d / 8; ++n) rO[n * 4 + 2 * h] *= alpha, rO[n * 4 + 2 * h + 1] *= alpha;
  }
}

// O += P V: P of the whole tile, then the products, 16 keys at a time. P is the operand A, which
// wgmma also reads from registers: 8 numbers of rS, 16 keys, are one A, as in mma.
template <int d>
__device__ inline void multiply_values(const float (&rS)[Bc / 2], float scale_log2,
                                       const float (&m)[2],
                                       const bf16* sV,  // [d / 64][Bc][64] swizzled
                                       float (&l)[2], float (&rO)[d / 2]) {
  uint32_t rP[Bc / kMma][4];
  UNROLL
  for (int i = 0; i < Bc / 2; i += 2) {
    const int h = fa::half_of(i);
    const float p0 = fa::exp2_approx(rS[i] * scale_log2 - m[h]);
    const float p1 = fa::exp2_approx(rS[i + 1] * scale_log2 - m[h]);
    l[h] += p0 + p1;  // of this lane's keys
    rP[i / 8][i % 8 / 2] = fa::pack_bf16(p0, p1);
  }
  UNROLL
  for (int c = 0; c < Bc / kMma; ++c) fa::pin_registers(rP[c]);  // packed before the fence
  // MN-major: a row of memory is a key, the index that is summed over; its features are columns.
  const uint64_t v =
      fa::wgmma_descriptor(sV, fa::Swizzle::b128, /*panels*/ Bc * kRowBytes, 8 * kRowBytes);
  fa::wgmma_fence();  // rP is packed and rO rescaled before the products touch them
  UNROLL
  for (int c = 0; c < Bc; c += kMma) {
    fa::wgmma<fa::Major::mn>(rO, rP[c / kMma], fa::wgmma_advance(v, c * kRowBytes));
  }
  fa::wgmma_commit();
  fa::wgmma_wait<0>();
  fa::pin_registers(rO);
}

// Two blocks per SM: 128 registers per thread, and four warpgroups at different places in the loop.
template <int d>
__global__ void __launch_bounds__(kThreads, 2)
    flash_fwd_kernel(const __grid_constant__ fa::TensorMap map_Q,  // [B*H, N, d], boxes of 64 rows
                     const __grid_constant__ fa::TensorMap map_K,  // [B*Hkv, Nk, d], of Bc
                     const __grid_constant__ fa::TensorMap map_V,  // [B*Hkv, Nk, d], of Bc
                     const __grid_constant__ fa::TensorMap map_O,  // [B*H, N, d], of 64 rows
                     float* LSE,                                   // [B*H, N]
                     int heads, int group, int N, int Nk, float scale, bool causal) {
  // --- prologue: which tile; copies of Q_i, K_0 and V_0
  Tiles<d>& smem = *fa::dynamic_shared<Tiles<d>>();
  const int thread = threadIdx.x % kGroupThreads, warp = thread / fa::kWarp,
            lane = thread % fa::kWarp;
  // The shuffle tells the compiler that all lanes have the same wg, and so the same addresses.
  const int wg = __shfl_sync(fa::kFullMask, threadIdx.x / kGroupThreads, 0);
  // Causal walks have different lengths: all heads' longest ones start first, and the short ones
  // fill the gaps at the end. Else the blocks of a head follow each other and find K and V in L2.
  const int Tr = gridDim.x / heads;
  const int i = causal ? Tr - 1 - blockIdx.x / heads : blockIdx.x % Tr;
  const int bh = causal ? blockIdx.x % heads : blockIdx.x / Tr;
  const int kv_head = bh / group;                                 // `group` heads share K and V
  const int seen = causal ? min(Nk, (i + 1) * Br + Nk - N) : Nk;  // keys, by the tile's last row
  const int tiles = seen <= 0 ? 0 : (seen + Bc - 1) / Bc;
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&smem.q_full, 1);
    for (int stage = 0; stage < kStages; ++stage) {
      fa::mbarrier_init(&smem.full[stage], 1);
      fa::mbarrier_init(&smem.empty[stage], kWarps);
    }
    fa::mbarrier_init_fence();  // TMA sees them; this thread itself needs no barrier
    fa::mbarrier_arrive_expect_tx(&smem.q_full, sizeof smem.Q);
    for (int g = 0; g < kGroups; ++g) {
      fa::tma_load(smem.Q[g], &map_Q, &smem.q_full, {0, i * Br + g * kGroupRows, 0, bh});
    }
    if (tiles > 0) load_tile<d>(smem, map_K, map_V, 0, kv_head);
  }
  __syncthreads();                              // all threads see the mbarriers
  const float scale_log2 = scale * fa::kLog2e;  // exp(scale * s) = 2^(scale_log2 * s)
  float rO[d / 2] = {}, l[2] = {}, m[2] = {kNoMaximum, kNoMaximum};
  const int group_row = i * Br + wg * kGroupRows;            // the warpgroup's first row,
  const int row = group_row + warp * 16 + fa::row_of(lane);  // and this lane's
  fa::mbarrier_wait(&smem.q_full, 0);

  // --- mainloop
  for (int j = 0; j < tiles; ++j) {
    const int stage = j % kStages;
    if (threadIdx.x == 0 && j + 1 < tiles) {  // the next tile, once all warps are done with j - 1
      fa::mbarrier_wait(&smem.empty[(j + 1) % kStages], ((j + 1) / kStages & 1) ^ 1);
      load_tile<d>(smem, map_K, map_V, j + 1, kv_head);
    }
    __syncwarp();  // thread 0 is back with its warp, which issues products as a whole
    fa::mbarrier_wait(&smem.full[stage], j / kStages & 1);
    float rS[Bc / 2];
    multiply_scores<d>(smem.Q[wg], smem.K[stage], rS);
    const int cut = causal ? min(Nk, group_row + 1 + Nk - N) : Nk;
    if (cut < (j + 1) * Bc) {  // the warpgroup's first row does not see all of tile j
      mask(rS, row, j * Bc + fa::column_of(lane), N, Nk, causal);
    }
    update_maximum<d>(rS, scale_log2, m, l, rO);
    multiply_values<d>(rS, scale_log2, m, smem.V[stage], l, rO);
    if (lane == 0) fa::mbarrier_arrive(&smem.empty[stage]);  // the warp's products are complete
  }

  // --- epilogue: O goes through the warpgroup's tile of Q, and leaves it as a box
  float normalise[2];
  UNROLL
  for (int h = 0; h < 2; ++h) {
    l[h] = fa::quad_sum(l[h]);
    normalise[h] = l[h] > 0.f ? 1.f / l[h] : 0.f;  // no key seen: O = 0
    const int r = row + h * 8;
    if (fa::leads_quad(lane) && r < N) LSE[size_t(bh) * N + r] = (m[h] + log2f(l[h])) * fa::kLn2;
  }
  fa::bar_sync(1 + wg, kGroupThreads);  // all four warps' products have read Q
  UNROLL
  for (int x = 0; x < d; x += 16) {  // 16 rows and 16 columns of O: four 8x8 matrices in A's order
    uint32_t o[4];
    UNROLL
    for (int e = 0; e < 4; ++e) {
      const float lo = rO[x / 2 + 2 * e], hi = rO[x / 2 + 2 * e + 1];
      o[e] = fa::pack_bf16(lo * normalise[e % 2], hi * normalise[e % 2]);
    }
    fa::stmatrix_x4(smem.Q[wg] + swizzle<kGroupRows>(warp * 16 + lane % 16, x + lane / 16 * 8), o);
  }
  fa::fence_proxy_async();  // TMA, another path to shared memory, sees what this thread wrote
  fa::bar_sync(1 + wg, kGroupThreads);  // the warpgroup's 64 rows are complete
  if (thread == 0) {
    fa::tma_store(&map_O, smem.Q[wg], {0, group_row, 0, bh});  // not the rows past the end
    fa::tma_store_commit();
    fa::tma_store_wait_read<0>();  // a block's shared memory must outlive the copy
  }
}

// --- host ---------------------------------------------------------------------------------------

// What the kernels are made for; anything else is refused.
inline fa::Support support() { return {.d = {64, 128}, .gqa = true, .cross = true}; }

inline fa::Prediction traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d;
  const fa::TileVisits v = fa::visited_tiles(p, Br, Bc);
  fa::Prediction t;
  t["Q"].read = t["O"].write = 2 * BH * N * d;
  t["K"].read = t["V"].read = 2 * BH * v.keys * d;
  t["LSE"].write = 4 * BH * N;
  t.hbm = {.read = 2 * (BH * N * d + 2 * p.kv_size()), .write = 2 * BH * N * d + 4 * BH * N};
  t.flops = BH * 4 * Br * Bc * v.tiles * d;  // zeros of ragged tiles are multiplied too
  return t;
}

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
               tensor_map<d>(t.Q, BH, p.N, kGroupRows), tensor_map<d>(t.K, BHkv, p.Nk, Bc),
               tensor_map<d>(t.V, BHkv, p.Nk, Bc), tensor_map<d>(t.O, BH, p.N, kGroupRows), t.LSE,
               int(BH), p.H / p.Hkv, p.N, p.Nk, p.scale(), p.causal);
  });
}

}  // namespace step09

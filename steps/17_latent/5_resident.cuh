// Step 17 -- Q in registers, three tiles: one warpgroup computes P, two multiply by V.
// Idea      A wgmma reads both operands from shared memory: Q again for each tile, as many bytes as
//           the tile has. A warpgroup without O has room for 31 of Q's 36 steps of 16 features. It
//           computes all P, the others O; where Q was, a third tile arrives
// Changed   since 17 4_splits: roles; a thread that multiplies by V copies; P V of a tile begins
//           within S of the next, for its softmax; O is rescaled if m has grown by over 8
// Traffic   as 4_splits
// Launch    grid (s*t, B): 1 warpgroup computes P, 2 multiply; then two blocks per row
// Owns      block: 64 rows and a split; warpgroup 0: S and P of all tiles; 1, 2: 256 features of O
// Still bad O of several splits is written in parts, 2 KB per row and split, and read again
#pragma once

#include "steps/17_latent/4_splits.cuh"

namespace step17_resident {

using namespace step17;  // parts.cuh
using step17_splits::kRope, step17_splits::Parts, step17_splits::Source, step17_splits::Splits;
using step17_splits::splits_of, step17_splits::store_part, step17_splits::Work;

constexpr int kStages = 3;
constexpr int kResident = 31 * kMma;     // features of Q in registers; 16 more, and the position
constexpr int kMost = 7 * 64;            // features of S computed when P V of a tile may start
constexpr int kScored = 1, kCopied = 2;  // named barriers of the scores' warpgroup
constexpr int kScoresRegisters = 184, kValuesRegisters = 160;
// Q's 16 features as 8 x 8 matrices: the next 8 features, the next 8 rows.
constexpr int kNextFeatures = 128, kNextRows = 256;

struct alignas(1024) Tiles {  // each as panels of 64 features, swizzled by TMA
  bf16 KV[kStages][Bc * d];   // Q passes through the last one
  bf16 position[Br * 64];     // of Q
  bf16 Q16[Br * kMma];        // the features before it, not swizzled
  float alpha[kStages][Br];   // the factor of O before a tile; after the last one, 1 / l
  uint64_t q_full, done, full[kStages], empty[kStages], p_full[kStages];
  Work work;  // here and not in registers, of which the scores' warpgroup has none left
  Source from;
  int page_rows;
};

struct Place {
  int page, row;  // of a tile's first key; page -1: not a whole tile
};
__device__ inline Place place_of(const Tiles& smem, int j) {
  const int key = (smem.work.first + j) * Bc;
  Place at = {-1, 0};
  if (j < smem.work.tiles && smem.work.keys - key >= Bc) smem.from.find(key, at.page, at.row);
  return at;
}

// One thread: a whole tile, when the third before it has left its place. A ragged one, the entry's
// last, is for copy_ragged().
__device__ inline void copy(Tiles& smem, const fa::TensorMap* K, int j, Place at) {
  const int stage = j % kStages;
  if (at.page < 0) return;
  fa::mbarrier_wait(&smem.empty[stage], j / kStages % 2 ^ 1);
  fa::mbarrier_arrive_expect_tx(&smem.full[stage], sizeof smem.KV[0]);
  fa::tma_load(smem.KV[stage], K, &smem.full[stage], {0, at.row, 0, at.page});
}

// The warpgroup that computes S and P. Tile 0 is the split's first.
struct Scores {
  Tiles& smem;
  const Shape& shape;
  const fa::TensorMap *Q, *K;
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  uint32_t rQ[kResident / kMma][4];
  float rS[Bc / 2], m[2] = {kNoMaximum, kNoMaximum}, l[2] = {};

  __device__ int r() const { return warp * 16 + fa::row_of(lane); }  // of the block's rows

  // All threads: tile j, if it is ragged. Rows after the last key are zeros.
  __device__ void copy_ragged(int j) {
    const int key = (smem.work.first + j) * Bc, valid = smem.work.keys - key, stage = j % kStages;
    int page, row;
    if (j >= smem.work.tiles || valid >= Bc) return;
    smem.from.find(key, page, row);
    fa::mbarrier_wait(&smem.empty[stage], j / kStages % 2 ^ 1);
    const bf16* from = smem.from.K + (size_t(page) * smem.page_rows + row) * d;
    UNROLL_BY(1)  // else addresses of all copies are kept in registers, through the main loop
    for (int i = threadIdx.x; i < Bc * d / 8; i += kGroupThreads) {
      const int r = i / (d / 8), x = i % (d / 8);  // 16 bytes: features 8 x .. 8 x + 7
      bf16* to = smem.KV[stage] + (x / 8 * Bc + r) * 64 + (x % 8 ^ r % 8) * 8;  // as TMA's swizzle
      fa::cp_async_16(to, r < valid ? from + size_t(r) * d + x * 8 : from, r < valid ? 16 : 0);
    }
    fa::cp_async_wait_all();
    fa::fence_proxy_async();               // wgmma reads what this thread has copied ...
    fa::bar_sync(kCopied, kGroupThreads);  // ... and what the others have
    if (threadIdx.x == 0) fa::mbarrier_arrive(&smem.full[stage]);
    __syncwarp();  // wgmma needs whole warps
  }

  // Q through the last stage to registers: the A operands of 31 products.
  __device__ void load_queries() {
    bf16* tile = smem.KV[kStages - 1];
    if (warp == 0 && fa::elect_one()) {
      fa::mbarrier_arrive_expect_tx(&smem.q_full, Br * d * sizeof(bf16));
      for (int x = 0; x < d; x += 64) {
        fa::tma_load(x < dv ? tile + x * Br : smem.position, Q, &smem.q_full,
                     {0, smem.work.row, x / 64, smem.work.entry});
      }
      copy(smem, K, 0, place_of(smem, 0)), copy(smem, K, 1, place_of(smem, 1));
    }
    __syncwarp();
    fa::mbarrier_wait(&smem.q_full, 0);
    const int row = warp * 16 + lane % 16, half = lane / 16;
    const auto load = [&](uint32_t(&to)[4], int x) {
      const int chunk = (x % 64 / 8 + half) ^ row % 8;  // TMA's swizzle
      fa::ldmatrix_x4(to, tile + (x / 64 * Br + row) * 64 + chunk * 8);
    };
    uint32_t last[4];
    load(last, kResident);
    fa::stmatrix_x4(smem.Q16 + (row / 8 * kNextRows + half * kNextFeatures) / 2 + row % 8 * 8,
                    last);
    UNROLL
    for (int x = 0; x < kResident; x += kMma) load(rQ[x / kMma], x);
    fa::fence_proxy_async();               // wgmma reads what this thread has stored
    fa::bar_sync(kScored, kGroupThreads);  // all have loaded Q: a tile may replace it
    if (warp == 0 && fa::elect_one()) copy(smem, K, kStages - 1, place_of(smem, kStages - 1));
    __syncwarp();
    for (int j = 0; j < kStages; ++j) copy_ragged(j);
  }

  template <int from, int to>  // features
  __device__ void multiply(int stage) {
    const uint64_t k = tile_descriptor(smem.KV[stage]);
    UNROLL
    for (int x = from; x < to; x += kMma) {
      const uint64_t K = fa::wgmma_advance(k, x / 64 * kPanelBytes + x % 64 * 2);
      if (x < kResident) {
        fa::wgmma(rS, rQ[x / kMma], K, x > 0);
      } else {
        const uint64_t q16 =
            fa::wgmma_descriptor(smem.Q16, fa::Swizzle::none, kNextFeatures, kNextRows);
        const uint64_t position = fa::wgmma_advance(tile_descriptor(smem.position), x % 64 * 2);
        fa::wgmma(rS, x < dv ? q16 : position, K);
      }
    }
  }

  // P of tile j replaces its position, when S of all four warps is complete: K is not read again.
  __device__ void store_p(int j) {
    fa::bar_sync(kScored, kGroupThreads);
    fa::put_rows<Bc>(rS, {1.f, 1.f}, smem.KV[j % kStages] + kRope);
    fa::fence_proxy_async();  // wgmma reads what this thread has written
  }

  // S of tile j, once it has arrived. P V of the tile before starts when most of S is done, so that
  // the tensor cores have work during the softmax.
  __device__ void compute_scores(int j) {
    const int stage = j % kStages;
    fa::mbarrier_wait(&smem.full[stage], j / kStages % 2);
    if (j > 0) store_p(j - 1);
    fa::wgmma_fence();
    multiply<0, kMost>(stage);
    fa::wgmma_commit();
    multiply<kMost, d>(stage);
    fa::wgmma_commit();
    fa::wgmma_wait<1>();
    if (j > 0) warp_arrive(&smem.p_full[(j - 1) % kStages]);
    wait_for<0>(rS);
  }

  // S of tile j becomes P. Keeps the factor of O for those who multiply by V.
  __device__ void softmax(int j) {
    float alpha[2] = {1.f, 1.f};
    mask_tile(rS, shape, smem.work.keys, smem.work.row + r(), (smem.work.first + j) * Bc);
    const float raw[2] = {m[0] * shape.to_raw, m[1] * shape.to_raw};  // no division by the scale
    if (fa::needs_rescale(rS, raw, 1.f, fa::kLazyRescale * shape.to_raw)) {
      fa::update_max(rS, shape.scale_log2, m, l, alpha);
    }
    fa::compute_p(rS, shape.scale_log2, m, l);
    UNROLL
    for (int h = 0; h < 2; ++h) {
      if (fa::leads_quad(lane)) smem.alpha[j % kStages][r() + 8 * h] = alpha[h];
    }
  }

  // lse: of the lane's two rows, in powers of two.
  __device__ void run(float (&lse)[2]) {
    load_queries();
    int j = 0;
    for (; j < smem.work.tiles; ++j) {
      compute_scores(j);
      softmax(j);
      if (j > 0) copy_ragged(j - 1 + kStages);
    }
    if (j > 0) {
      store_p(j - 1);
      warp_arrive(&smem.p_full[(j - 1) % kStages]);
    }
    fa::mbarrier_wait(&smem.empty[j % kStages], j / kStages % 2 ^ 1);  // alpha there is read
    UNROLL
    for (int h = 0; h < 2; ++h) {
      l[h] = fa::quad_sum(l[h]);
      lse[h] = l[h] > 0.f ? m[h] + log2f(l[h]) : -INFINITY;
      if (!fa::leads_quad(lane)) continue;
      smem.alpha[j % kStages][r() + 8 * h] = l[h] > 0.f ? 1.f / l[h] : 0.f;  // no key seen: O = 0
    }
    warp_arrive(&smem.done);
  }
};

// A warpgroup: O of all tiles, 256 columns, and the factors of its two rows. Of the first one, a
// thread copies.
__device__ inline void multiply_values(Tiles& smem, int wg, const fa::TensorMap* K,
                                       float (&rO)[kColumns / 2], float (&factor)[2]) {
  const int warp = threadIdx.x % kGroupThreads / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int r = warp * 16 + fa::row_of(lane), tiles = smem.work.tiles;
  const bool copies = wg == 0 && threadIdx.x % kGroupThreads == 0;
  Ring<kStages> ring;
  for (int j = 0; j < tiles; ++j, ring.next()) {
    const Place next = copies ? place_of(smem, j + kStages) : Place{-1, 0};  // before it is needed
    const uint64_t P = tile_descriptor(smem.KV[ring.stage] + kRope);
    const uint64_t V = value_descriptor(smem.KV[ring.stage], wg);
    fa::mbarrier_wait(&smem.p_full[ring.stage], ring.parity);
    const float alpha[2] = {smem.alpha[ring.stage][r], smem.alpha[ring.stage][r + 8]};
    if (__any_sync(fa::kFullMask, alpha[0] * alpha[1] != 1.f)) rescale(rO, alpha);
    fa::wgmma_fence();
    UNROLL
    for (int c = 0; c < Bc; c += kMma) {
      fa::wgmma<fa::Major::k, fa::Major::mn>(rO, fa::wgmma_advance(P, c * 2),
                                             fa::wgmma_advance(V, c * kRowBytes));
    }
    fa::wgmma_commit();
    wait_for<0>(rO);
    warp_arrive(&smem.empty[ring.stage]);  // the tile and P are read
    if (copies) copy(smem, K, j + kStages, next);
    __syncwarp();
  }
  fa::mbarrier_wait(&smem.done, 0);
  factor[0] = smem.alpha[ring.stage][r], factor[1] = smem.alpha[ring.stage][r + 8];
}

// One thread, before any other: the block's work and barriers.
__device__ inline void prepare(Tiles& smem, const Work& work, const Shape& shape, const bf16* K,
                               const fa::Cache& cache, int log2_page) {
  const int page_rows = cache.table ? 1 << log2_page : shape.Nk;
  const int columns = (shape.Nk + page_rows - 1) / page_rows;  // of the table
  const int* pages = cache.table ? cache.table + work.entry * size_t(columns) : nullptr;
  smem.work = work, smem.from = {K, pages, log2_page, work.entry}, smem.page_rows = page_rows;
  fa::mbarrier_init(&smem.q_full, 1), fa::mbarrier_init(&smem.done, kGroupThreads / fa::kWarp);
  fa::init_mbarriers(smem.full, 1), fa::init_mbarriers(smem.empty, kConsumerWarps);
  fa::init_mbarriers(smem.p_full, kGroupThreads / fa::kWarp);
  fa::mbarrier_init_fence();
}

// LSE of a lane's two rows; `unit`: of its powers of two. to: of row `row`.
__device__ inline void store_lse(const float (&lse)[2], float unit, float* to, int row, int rows) {
  for (int h = 0; h < 2; ++h) {
    if (!fa::leads_quad(threadIdx.x % fa::kWarp) || row + 8 * h >= rows) continue;
    to[8 * h] = lse[h] * unit;
  }
}

// The first of a lane's two rows; the other is 8 rows below.
struct Row {
  int r, of_entry;     // of the block's rows, of the entry's
  size_t entry, part;  // where the entry is in O and LSE, and this row in the parts
  __device__ Row(const Work& work, const Shape& shape) {
    r = threadIdx.x % kGroupThreads / fa::kWarp * 16 + fa::row_of(threadIdx.x % fa::kWarp);
    of_entry = work.row + r, entry = work.entry * size_t(shape.rows);
    part = size_t(work.split) * gridDim.y * shape.rows + entry + of_entry;
  }
};

static __global__ void __launch_bounds__(kThreads, 1)
    flash_decode_kernel(const __grid_constant__ fa::TensorMap Q,  // [B, H*N, d]
                        const __grid_constant__ fa::TensorMap K,  // [pages, page, d], [B, Nk, d]
                        const bf16* K_rows, fa::Cache cache, int log2_page,
                        bf16* O,     // [B, H*N, dv]
                        float* LSE,  // [B, H*N]
                        Parts parts, Shape shape, int split_tiles) {
  const int row_blocks = (shape.rows + Br - 1) / Br, entry = blockIdx.y;
  const int split = blockIdx.x / row_blocks;  // blocks of the same keys are adjacent
  const int keys = cache.lengths ? cache.lengths[entry] : shape.Nk;
  const int tiles = (keys + Bc - 1) / Bc, first = split * split_tiles;
  const int splits = max(1, (tiles + split_tiles - 1) / split_tiles);
  if (split >= splits) return;  // split 0 stores even an empty result
  Tiles& smem = *fa::dynamic_shared<Tiles>();
  if (threadIdx.x == 0) {
    const int row = blockIdx.x % row_blocks * Br, count = min(tiles - first, split_tiles);
    prepare(smem, {entry, row, split, splits, keys, first, count}, shape, K_rows, cache, log2_page);
  }
  __syncthreads();  // all threads see the barriers and what the block does
  const int wg = fa::uniform(threadIdx.x / kGroupThreads);
  if (wg == 0) {
    fa::setmaxnreg_inc<kScoresRegisters>();
    float lse[2];
    Scores{smem, shape, &Q, &K}.run(lse);
    const Row row(smem.work, shape);
    const bool split_up = smem.work.splits > 1;
    float* to = split_up ? parts.LSE + row.part : LSE + row.entry + row.of_entry;
    store_lse(lse, split_up ? 1.f : fa::kLn2, to, row.of_entry, shape.rows);
  } else {
    fa::setmaxnreg_dec<kValuesRegisters>();
    float rO[kColumns / 2] = {}, factor[2];
    multiply_values(smem, wg - 1, &K, rO, factor);
    const Row row(smem.work, shape);
    if (smem.work.splits > 1) {
      store_part(rO, factor, parts.O + row.part * dv, row.of_entry, shape.rows, wg - 1);
    } else {
      store_rows(rO, factor, O + row.entry * dv, row.of_entry, shape.rows, wg - 1);
    }
  }
}

// --- host ---------------------------------------------------------------------------------------

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const Splits splits = splits_of(p);
  const Parts parts = {t.scratch<float>("O_parts"), t.scratch<float>("LSE_parts")};
  const int page = p.cache.page, log2_page = page ? std::bit_width(unsigned(page)) - 1 : 0;
  const uint64_t heads = page ? kPoolPages : p.B, rows = page ? page : p.Nk;
  fa::launch(flash_decode_kernel,
             {dim3(splits.count * row_blocks_of(p), p.B), dim3(kThreads), sizeof(Tiles)},
             tile_map<d, 64>(t.Q, p.B, p.H * p.N, Br), tile_map<d>(t.K, heads, rows, Bc), t.K,
             t.cache, log2_page, t.O, t.LSE, parts, shape_of(p), splits.tiles);
  step17_splits::merge(p, t, splits);
}

}  // namespace step17_resident

// Step 17 -- Q in registers, three tiles: one warpgroup computes P, two multiply by V.
// Idea      A wgmma reads both operands from shared memory: Q again for each tile, as many bytes as
//           the tile has. A warpgroup without O has room for 7 of Q's 9 panels. It computes all P,
//           the others O; where Q was, a third tile arrives
// Changed   since 17 4_splits: roles, and the scores' warpgroup copies; V and the position are
//           copied apart, since P keeps the latter's place; m and l stay in one warpgroup; O is
//           rescaled only when m has grown by over 8
// Traffic   as 4_splits, but the table twice
// Launch    grid (s*t, B): 1 warpgroup computes P, 2 multiply; then two blocks per row
// Owns      block: 64 rows and a split; warpgroup 0: S and P of all tiles; 1, 2: 256 features of O
// Still bad with more than 64 rows, two blocks copy the same tile
#pragma once

#include "steps/17_latent/4_splits.cuh"

namespace step17_resident {

using namespace step17;  // parts.cuh
using step17_splits::Parts, step17_splits::Source, step17_splits::Splits, step17_splits::splits_of;
using step17_splits::store_part, step17_splits::Work;

constexpr int kStages = 3, kPlaces = 2;  // of V, and of the position, which P replaces
constexpr int kResident = 7 * 64;        // features of Q in registers
constexpr int kScored = 1, kCopied = 2;  // named barriers of the scores' warpgroup
constexpr int kScoresRegisters = 184, kValuesRegisters = 160;

struct alignas(1024) Tiles {  // each as panels of 64 features, swizzled by TMA
  bf16 V[kStages][Bc * dv];   // Q passes through the last one
  bf16 position[kPlaces][Bc * 64];
  bf16 Q[Br * (d - kResident)];             // the last two panels
  float alpha[kPlaces][Br], normalise[Br];  // factors of O: before a tile, and at the end
  uint64_t q_full, done, full[kStages], position_full[kPlaces], empty[kStages], p_full[kPlaces];
  Work work;  // here and not in registers, of which the scores' warpgroup has none left
  Source from;
  int page_rows;
};

// The warpgroup that copies, and computes S and P. Tile 0 is the split's first.
struct Scores {
  Tiles& smem;
  const Shape& shape;
  const fa::TensorMap *Q, *V, *position;
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  uint32_t rQ[kResident / kMma][4];
  float rS[Bc / 2], m[2] = {kNoMaximum, kNoMaximum}, l[2] = {};
  uint64_t* ragged = nullptr;  // the barrier of a ragged part whose copies are under way

  __device__ int r() const { return warp * 16 + fa::row_of(lane); }  // of the block's rows

  // Copies V of tile j + 2 and the position of tile j + 1, when tile j - 1 has left their places.
  __device__ void copy(int j) {
    const int stage = (j + 2) % kStages, parity = (j + 2) / kStages % 2 ^ 1;
    copy_part<dv>(j + 2, 0, V, smem.V[stage], &smem.full[stage], &smem.empty[stage], parity);
    const int place = (j + 1 + kPlaces) % kPlaces;  // not negative
    copy_part<d - dv>(j + 1, dv, position, smem.position[place], &smem.position_full[place],
                      &smem.empty[stage], parity);
  }

  // Features of a tile: one thread, or for a ragged tile all.
  template <int n>
  __device__ void copy_part(int j, int feature, const fa::TensorMap* map, bf16* to, uint64_t* full,
                            uint64_t* empty, int parity) {
    const int key = (smem.work.first + j) * Bc;
    int page, row;
    if (j < 0 || j >= smem.work.tiles) return;
    if (smem.work.keys - key < Bc) {
      smem.from.find(key, page, row);
      fa::mbarrier_wait(empty, parity);
      copy_rows<n>(smem.from.K + (size_t(page) * smem.page_rows + row) * d + feature, to,
                   smem.work.keys - key);
      ragged = full;
    } else if (warp == 0 && fa::elect_one()) {
      smem.from.find(key, page, row);
      fa::mbarrier_wait(empty, parity);
      fa::mbarrier_arrive_expect_tx(full, n * Bc * sizeof(bf16));
      fa::tma_load(to, map, full, {0, row, feature / 64, page});
    }
    __syncwarp();  // wgmma needs whole warps
  }

  // n features of `valid` rows, and zeros after them. Does not wait for the copies.
  template <int n>
  __device__ void copy_rows(const bf16* K, bf16* to, int valid) {
    UNROLL_BY(1)  // else addresses of all copies are kept in registers, through the main loop
    for (int i = threadIdx.x; i < Bc * n / 8; i += kGroupThreads) {
      const int r = i / (n / 8), x = i % (n / 8);  // 16 bytes: features 8 x .. 8 x + 7
      fa::cp_async_16(to + (x / 8 * Bc + r) * 64 + (x % 8 ^ r % 8) * 8,  // as TMA's swizzle
                      r < valid ? K + size_t(r) * d + x * 8 : K, r < valid ? 16 : 0);
    }
  }

  // Waits for the copies of a ragged tile, if there are some, and says that it has arrived.
  __device__ void finish_rows() {
    if (ragged == nullptr) return;
    fa::cp_async_wait_all();
    fa::fence_proxy_async();               // wgmma reads what this thread has copied ...
    fa::bar_sync(kCopied, kGroupThreads);  // ... and what the others have
    if (threadIdx.x == 0) fa::mbarrier_arrive(ragged);
    ragged = nullptr;
  }

  // Seven panels of Q, through the last stage, to registers: the A operands of 28 products.
  __device__ void load_queries() {
    bf16* tile = smem.V[kStages - 1];
    if (warp == 0 && fa::elect_one()) {
      fa::mbarrier_arrive_expect_tx(&smem.q_full, Br * d * sizeof(bf16));
      for (int x = 0; x < d; x += 64) {
        bf16* to = x < kResident ? tile + x * Br : smem.Q + (x - kResident) * Br;
        fa::tma_load(to, Q, &smem.q_full, {0, smem.work.row, x / 64, smem.work.entry});
      }
    }
    __syncwarp();
    copy(-2), finish_rows();  // while Q arrives
    copy(-1), finish_rows();
    fa::mbarrier_wait(&smem.q_full, 0);
    const int from_row = warp * 16 + lane % 16;
    UNROLL
    for (int x = 0; x < kResident; x += kMma) {
      const int chunk = (x % 64 / 8 + lane / 16) ^ from_row % 8;  // TMA's swizzle
      fa::ldmatrix_x4(rQ[x / kMma], tile + (x / 64 * Br + from_row) * 64 + chunk * 8);
    }
    fa::bar_sync(kScored, kGroupThreads);  // all have loaded Q: a tile may replace it
  }

  // Issues S of tile j, as its parts arrive. Does not wait for the product.
  __device__ void issue_scores(int j) {
    const int stage = j % kStages, place = j % kPlaces;
    const uint64_t q = tile_descriptor(smem.Q), k = tile_descriptor(smem.V[stage]);
    fa::mbarrier_wait(&smem.full[stage], j / kStages % 2);
    fa::wgmma_fence();
    UNROLL
    for (int x = 0; x < dv; x += kMma) {
      const uint64_t K = fa::wgmma_advance(k, x / 64 * kPanelBytes + x % 64 * 2);
      if (x < kResident) {
        fa::wgmma(rS, rQ[x / kMma], K, x > 0);
      } else {
        fa::wgmma(rS, fa::wgmma_advance(q, (x - kResident) * 2), K);
      }
    }
    fa::mbarrier_wait(&smem.position_full[place], j / kPlaces % 2);
    fa::wgmma_fence();
    UNROLL
    for (int x = 0; x < d - dv; x += kMma) {
      fa::wgmma(rS, fa::wgmma_advance(q, kPanelBytes + x * 2),
                fa::wgmma_advance(tile_descriptor(smem.position[place]), x * 2));
    }
    fa::wgmma_commit();
  }

  // P of tile j, whose S is complete, replaces the tile's position.
  __device__ void publish_softmax(int j) {
    const int place = j % kPlaces;
    float alpha[2] = {1.f, 1.f};
    mask_tile(rS, shape, smem.work.keys, smem.work.row + r(), (smem.work.first + j) * Bc);
    if (fa::needs_rescale(rS, m, shape.scale_log2, fa::kLazyRescale)) {
      fa::update_max(rS, shape.scale_log2, m, l, alpha);
    }
    fa::compute_p(rS, shape.scale_log2, m, l);
    fa::bar_sync(kScored, kGroupThreads);  // S of all four warps is complete: K is not read again
    fa::put_rows<Bc>(rS, {1.f, 1.f}, smem.position[place]);
    UNROLL
    for (int h = 0; h < 2; ++h) {
      if (fa::leads_quad(lane)) smem.alpha[place][r() + 8 * h] = alpha[h];
    }
    fa::fence_proxy_async();  // wgmma reads what this thread has written
    warp_arrive(&smem.p_full[place]);
  }

  __device__ void run(float* LSE, const Parts& parts, int all_rows) {
    load_queries();
    for (int j = 0; j < smem.work.tiles; ++j) {
      issue_scores(j);
      copy(j);
      wait_for<0>(rS);
      publish_softmax(j);
      finish_rows();
    }
    const int row = smem.work.row + r();
    const size_t result = smem.work.entry * size_t(shape.rows) + row;
    UNROLL
    for (int h = 0; h < 2; ++h) {
      l[h] = fa::quad_sum(l[h]);
      if (!fa::leads_quad(lane)) continue;
      smem.normalise[r() + 8 * h] = l[h] > 0.f ? 1.f / l[h] : 0.f;  // no key seen: O = 0
      if (row + 8 * h >= shape.rows) continue;
      const float lse = l[h] > 0.f ? m[h] + log2f(l[h]) : -INFINITY;
      if (smem.work.splits > 1) {
        parts.LSE[size_t(smem.work.split) * all_rows + result + 8 * h] = lse;
      } else {
        LSE[result + 8 * h] = lse * fa::kLn2;
      }
    }
    warp_arrive(&smem.done);
  }
};

// A warpgroup with 256 columns of O.
__device__ inline void accumulate(Tiles& smem, const Shape& shape, int wg, bf16* O,
                                  const Parts& parts, int all_rows) {
  const int warp = threadIdx.x % kGroupThreads / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const Work work = smem.work;
  const int r = warp * 16 + fa::row_of(lane), row = work.row + r;
  float rO[kColumns / 2] = {};
  Ring<kStages> ring;
  for (int j = 0; j < work.tiles; ++j, ring.next()) {
    const int place = j % kPlaces;
    const uint64_t P = tile_descriptor(smem.position[place]);
    const uint64_t V = value_descriptor(smem.V[ring.stage], wg);
    fa::mbarrier_wait(&smem.p_full[place], j / kPlaces % 2);
    const float alpha[2] = {smem.alpha[place][r], smem.alpha[place][r + 8]};
    if (__any_sync(fa::kFullMask, alpha[0] * alpha[1] != 1.f)) rescale(rO, alpha);
    fa::wgmma_fence();
    UNROLL
    for (int c = 0; c < Bc; c += kMma) {
      fa::wgmma<fa::Major::k, fa::Major::mn>(rO, fa::wgmma_advance(P, c * 2),
                                             fa::wgmma_advance(V, c * kRowBytes));
    }
    fa::wgmma_commit();
    wait_for<0>(rO);
    warp_arrive(&smem.empty[ring.stage]);  // V and P are read
  }
  fa::mbarrier_wait(&smem.done, 0);
  const float normalise[2] = {smem.normalise[r], smem.normalise[r + 8]};
  const size_t result = work.entry * size_t(shape.rows);
  if (work.splits > 1) {
    const size_t part = size_t(work.split) * all_rows + result + row;
    store_part(rO, normalise, parts.O + part * dv, row, shape.rows, wg);
  } else {
    store_rows(rO, normalise, O + result * dv, row, shape.rows, wg);
  }
}

static __global__ void __launch_bounds__(kThreads, 1)
    flash_decode_kernel(const __grid_constant__ fa::TensorMap Q,  // [B, H*N, d]
                        const __grid_constant__ fa::TensorMap V,  // [pages, page, d], [B, Nk, d]
                        const __grid_constant__ fa::TensorMap position,  // the same
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
    const int page_rows = cache.table ? 1 << log2_page : shape.Nk;
    const int columns = (shape.Nk + page_rows - 1) / page_rows;  // of the table
    const int* pages = cache.table ? cache.table + entry * size_t(columns) : nullptr;
    smem.from = {K_rows, pages, log2_page, entry}, smem.page_rows = page_rows;
    smem.work = {entry, int(blockIdx.x % row_blocks) * Br, split, splits, keys,
                 first, min(tiles - first, split_tiles)};
    fa::mbarrier_init(&smem.q_full, 1), fa::mbarrier_init(&smem.done, kGroupThreads / fa::kWarp);
    fa::init_mbarriers(smem.full, 1), fa::init_mbarriers(smem.empty, kConsumerWarps);
    fa::init_mbarriers(smem.position_full, 1);
    fa::init_mbarriers(smem.p_full, kGroupThreads / fa::kWarp);
    fa::mbarrier_init_fence();
  }
  __syncthreads();  // all threads see the barriers and what the block does
  // The shuffle tells nvcc that wg is the same in all lanes.
  const int wg = __shfl_sync(fa::kFullMask, threadIdx.x / kGroupThreads, 0);
  if (wg == 0) {
    fa::setmaxnreg_inc<kScoresRegisters>();
    Scores scores{smem, shape, &Q, &V, &position};
    scores.run(LSE, parts, gridDim.y * shape.rows);
  } else {
    fa::setmaxnreg_dec<kValuesRegisters>();
    accumulate(smem, shape, wg - 1, O, parts, gridDim.y * shape.rows);
  }
}

// --- host ---------------------------------------------------------------------------------------

// The tensor map of [heads, rows, 576] in boxes of 64 rows and `panels` panels.
inline fa::TensorMap panel_map(const bf16* x, uint64_t heads, uint64_t rows, uint32_t panels) {
  return fa::tensor_map(x, {{64, 1, 64}, {rows, d, Bc}, {d / 64, 64, panels}, {heads, rows * d, 1}},
                        fa::Swizzle::b128);
}

inline fa::Prediction traffic(const fa::Problem& p) {
  fa::Prediction t = step17_splits::traffic(p);
  if (p.cache.page) t["table"].read *= 2;  // for V, and for the position
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const Splits splits = splits_of(p);
  const Parts parts = {t.scratch<float>("O_parts"), t.scratch<float>("LSE_parts")};
  const int page = p.cache.page, log2_page = page ? std::bit_width(unsigned(page)) - 1 : 0;
  const uint64_t heads = page ? kPoolPages : p.B, rows = page ? page : p.Nk;
  fa::launch(flash_decode_kernel,
             {dim3(splits.count * row_blocks_of(p), p.B), dim3(kThreads), sizeof(Tiles)},
             panel_map(t.Q, p.B, p.H * p.N, 1), panel_map(t.K, heads, rows, dv / 64),
             panel_map(t.K, heads, rows, 1), t.K, t.cache, log2_page, t.O, t.LSE, parts,
             shape_of(p), splits.tiles);
  step17_splits::merge(p, t, splits);
}

}  // namespace step17_resident

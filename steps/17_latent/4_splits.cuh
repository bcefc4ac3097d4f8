// Step 17 -- splits of the cache, pages, lengths.
// Idea      One sequence has one or two blocks of rows, on a GPU of 132 SMs. As in 13 the keys are
//           cut into as many splits as fill it, and a second kernel merges their parts of O. A tile
//           is a page or a part of one. What follows the last key there is garbage, and 0 times
//           NaN is NaN: the last tile is copied by rows, with zeros instead
// Changed   since 17 3_exchange: a block's tiles are those of a split, found by the page table; all
//           threads of the producer copy a ragged tile; parts of O, and their merge, launched early
// Traffic   requested read  2*576*(B*s*H*N + B*t*Nk) B         s: splits; t = ceil(H*N/64)
//                           + 4*B*s*H*N*(512 + 128) B          parts; LSE by each thread
//                           + 4 B per tile and per thread      table, by each thread for a ragged
//                                                              tile; lengths
//                     write 2*B*H*N*512 + 4*B*H*N + 4*B*s*H*N*513 B
//           compulsory      2*B*(H*N*576 + Nk*576 + H*N*512) + 4*B*H*N + 4*B*(Nk/page + 1) B
// Launch    grid (s*t, B): 1 warpgroup copies, 2 multiply; then two blocks per row
// Owns      block: 64 rows and a split; consumer: 256 features of O, S and P of every second tile
// Still bad S of the next two tiles cannot be computed while P V runs: no stage is free
#pragma once

#include <bit>
#include "common/dialect/ptx/barrier.h"
#include "common/dialect/ptx/cp_async.h"
#include "common/dialect/ptx/more/dependent.h"
#include "common/dialect/ptx/setmaxnreg.h"
#include "common/harness/splits.h"
#include "steps/17_latent/parts.cuh"

namespace step17_splits {

using namespace step17;  // parts.cuh

constexpr int kCopied = 4;    // the producer's named barrier
constexpr int kBatch = 8;     // splits of a row that a thread of the merge loads at once
constexpr int kMerged = 256;  // features that a block of the merge stores
constexpr int kMostSplits = 1024 / (kMerged / 4) * kBatch;
constexpr int kRope = dv * Bc;  // of a tile, the panel after V's: features 512 .. 575, then P

struct alignas(1024) Tiles {  // each as panels of 64 features, swizzled by TMA
  bf16 Q[Br * d];
  bf16 KV[kStages][Bc * d];
  float m[kStages][Br], alpha[kStages][Br];  // after a tile; the factor of O and l before it
  float l[kGroups][Br];
  uint64_t q_full, full[kStages], empty[kStages], p_full[kStages];
};

// A block's rows and keys.
struct Work {
  int entry, row;     // of the batch; the first row of 64
  int split, splits;  // of the entry's keys
  int keys;           // of the entry
  int first, tiles;   // of this split: tile `first` and those after it
};

// The parts of all splits, in fp32: only the final O is rounded to bf16.
struct Parts {
  float* O;    // [splits, B*H*N, dv], normalised
  float* LSE;  // [splits, B*H*N], in powers of two; -inf where a row sees no key of the split
};

// Where an entry's keys are.
struct Source {
  const bf16* K;     // [pages, page, d], or [B, Nk, d]
  const int* pages;  // of the entry; null: not paged
  int log2_page, entry;
  // Page and row of a tile's first key. Without pages, K of an entry is one.
  __device__ void find(int key, int& page, int& row) const {
    page = pages ? pages[key >> log2_page] : entry;
    row = pages ? key & ((1 << log2_page) - 1) : key;
  }
};

// A ragged tile, by all threads of the producer. K: [valid, d]; rows after them are zeros.
__device__ inline void copy_rows(const bf16* K, bf16* tile, int valid) {
  for (int i = threadIdx.x; i < Bc * d / 8; i += kGroupThreads) {
    const int r = i / (d / 8), x = i % (d / 8);  // 16 bytes: features 8 x .. 8 x + 7
    bf16* to = tile + (x / 8 * Bc + r) * 64 + (x % 8 ^ r % 8) * 8;  // as TMA's swizzle
    fa::cp_async_16(to, r < valid ? K + size_t(r) * d + x * 8 : K, r < valid ? 16 : 0);
  }
  fa::cp_async_wait_all();
  fa::fence_proxy_async();               // wgmma reads what this thread has copied ...
  fa::bar_sync(kCopied, kGroupThreads);  // ... and what the others have
}

// One thread copies Q and whole tiles of keys; all threads a ragged one, the entry's last.
__device__ inline void produce(Tiles& smem, const fa::TensorMap* Q, const fa::TensorMap* K,
                               const Source& from, int page_rows, const Work& work) {
  const int whole = min(work.tiles, work.keys / Bc - work.first);
  int page, row;
  if (threadIdx.x == 0) {
    fa::mbarrier_arrive_expect_tx(&smem.q_full, sizeof smem.Q);
    fa::tma_load(smem.Q, Q, &smem.q_full, {0, work.row, 0, work.entry});
    Ring<kStages> ring;
    for (int i = 0; i < whole; ++i, ring.next()) {
      from.find((work.first + i) * Bc, page, row);
      fa::mbarrier_wait(&smem.empty[ring.stage], ring.parity ^ 1);
      fa::mbarrier_arrive_expect_tx(&smem.full[ring.stage], sizeof smem.KV[0]);
      fa::tma_load(smem.KV[ring.stage], K, &smem.full[ring.stage], {0, row, 0, page});
    }
  }
  if (whole == work.tiles) return;
  fa::bar_sync(kCopied, kGroupThreads);  // thread 0 has seen the stage's round before this one
  const int stage = whole % kStages, key = (work.first + whole) * Bc;
  from.find(key, page, row);
  fa::mbarrier_wait(&smem.empty[stage], whole / kStages % 2 ^ 1);
  copy_rows(from.K + (size_t(page) * page_rows + row) * d, smem.KV[stage], work.keys - key);
  if (threadIdx.x == 0) fa::mbarrier_arrive(&smem.full[stage]);
}

// Stores this warpgroup's half of two rows in fp32, 32 bytes for each quad. O: of row `row`.
__device__ inline void store_part(const float (&rO)[kColumns / 2], const float (&factor)[2],
                                  float* O, int row, int rows, int wg) {
  O += wg * kColumns + fa::column_of(threadIdx.x % fa::kWarp);
  UNROLL
  for (int i = 0; i < kColumns / 2; i += 2) {
    const int h = fa::half_of(i);
    if (row + 8 * h >= rows) continue;
    *reinterpret_cast<float2*>(O + 8 * h * dv + fa::column_at(i)) =
        make_float2(rO[i] * factor[h], rO[i + 1] * factor[h]);
  }
}

// A warpgroup: S and P of every second tile, and O of its columns. Tile 0 is the split's first.
struct Consumer {
  Tiles& smem;
  const Shape& shape;
  const Work& work;
  const int wg;
  const int warp = threadIdx.x % kGroupThreads / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int r = warp * 16 + fa::row_of(lane), row = work.row + r;
  float rS[Bc / 2], rO[kColumns / 2] = {}, m[2] = {kNoMaximum, kNoMaximum}, l[2] = {}, alpha[2];

  // S of a tile of this warpgroup, once the tile has arrived. Does not wait for the product.
  __device__ void issue_scores(int j) {
    fa::mbarrier_wait(&smem.full[j % kStages], j / kStages % 2);
    multiply_features<d>(tile_descriptor(smem.Q), tile_descriptor(smem.KV[j % kStages]), rS);
  }

  // P of this warpgroup's tile j, whose S is complete. m and l are those before it.
  __device__ void publish_softmax(int j) {
    const int stage = j % kStages;
    mask_tile(rS, shape, work.keys, row, (work.first + j) * Bc);
    fa::update_max(rS, shape.scale_log2, m, l, alpha);
    fa::compute_p(rS, shape.scale_log2, m, l);
    fa::bar_sync(2 + wg, kGroupThreads);  // S of all four warps is complete: K is not read again
    fa::put_rows<Bc>(rS, {1.f, 1.f}, smem.KV[stage] + kRope);
    UNROLL
    for (int h = 0; h < 2; ++h) {
      if (!fa::leads_quad(lane)) continue;
      smem.m[stage][r + 8 * h] = m[h], smem.alpha[stage][r + 8 * h] = alpha[h];
    }
    fa::fence_proxy_async();  // wgmma reads what this thread has written
    warp_arrive(&smem.p_full[stage]);
  }

  // O = alpha O + P V of tile j, once P has been stored. Does not wait for the product.
  __device__ void issue_values(int j) {
    const int stage = j % kStages;
    fa::mbarrier_wait(&smem.p_full[stage], j / kStages % 2);
    UNROLL
    for (int h = 0; h < 2; ++h) {
      alpha[h] = smem.alpha[stage][r + 8 * h], m[h] = smem.m[stage][r + 8 * h];
      if (j % kGroups != wg) l[h] *= alpha[h];  // the owner has rescaled its own
    }
    rescale(rO, alpha);
    const uint64_t P = tile_descriptor(smem.KV[stage] + kRope);
    const uint64_t V = value_descriptor(smem.KV[stage], wg);
    fa::wgmma_fence();
    UNROLL
    for (int c = 0; c < Bc; c += kMma) {
      fa::wgmma<fa::Major::k, fa::Major::mn>(rO, fa::wgmma_advance(P, c * 2),
                                             fa::wgmma_advance(V, c * kRowBytes));
    }
    fa::wgmma_commit();
  }

  // Both products of tile j have read it, and P.
  __device__ void release(int j) {
    wait_for<0>(rO);
    warp_arrive(&smem.empty[j % kStages]);
  }

  __device__ void run(bf16* O, float* LSE, const Parts& parts, int all_rows) {
    // --- prologue
    fa::mbarrier_wait(&smem.q_full, 0);
    if (wg == 0 && work.tiles > 0) {
      issue_scores(0);
      wait_for<0>(rS);
      publish_softmax(0);
    }

    // --- mainloop
    for (int j = 0; j < work.tiles; ++j) {
      if ((j + 1) % kGroups == wg && j + 1 < work.tiles) {  // the owner of tile j + 1
        issue_scores(j + 1);
        issue_values(j);
        wait_for<1>(rS);
        publish_softmax(j + 1);  // while P V of tile j runs
        release(j);
      } else {
        issue_values(j);
        release(j);
      }
    }

    // --- epilogue
    UNROLL
    for (int h = 0; h < 2; ++h) {
      l[h] = fa::quad_sum(l[h]);
      if (fa::leads_quad(lane)) smem.l[wg][r + 8 * h] = l[h];
    }
    fa::bar_sync(1, kGroups * kGroupThreads);               // both have stored their sums
    const size_t result = work.entry * size_t(shape.rows);  // of all rows, the entry's first
    const size_t part = size_t(work.split) * all_rows + result + row;
    float normalise[2];
    UNROLL
    for (int h = 0; h < 2; ++h) {
      l[h] = smem.l[0][r + 8 * h] + smem.l[1][r + 8 * h];
      normalise[h] = l[h] > 0.f ? 1.f / l[h] : 0.f;  // no key seen: O = 0
      if (wg != 0 || !fa::leads_quad(lane) || row + 8 * h >= shape.rows) continue;
      const float lse = l[h] > 0.f ? m[h] + log2f(l[h]) : -INFINITY;
      if (work.splits > 1) {
        parts.LSE[part + 8 * h] = lse;
      } else {
        LSE[result + row + 8 * h] = lse * fa::kLn2;
      }
    }
    if (work.splits > 1) {
      store_part(rO, normalise, parts.O + part * dv, row, shape.rows, wg);
    } else {
      store_rows(rO, normalise, O + result * dv, row, shape.rows, wg);
    }
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
  const Work work = {entry, int(blockIdx.x % row_blocks) * Br, split, splits, keys,
                     first, min(tiles - first, split_tiles)};
  Tiles& smem = *fa::dynamic_shared<Tiles>();
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&smem.q_full, 1);
    fa::init_mbarriers(smem.full, 1), fa::init_mbarriers(smem.empty, kConsumerWarps);
    fa::init_mbarriers(smem.p_full, kConsumerWarps / kGroups);
    fa::mbarrier_init_fence();
  }
  __syncthreads();  // all threads see the barriers
  // The shuffle tells nvcc that wg is the same in all lanes.
  const int wg = __shfl_sync(fa::kFullMask, threadIdx.x / kGroupThreads, 0);
  if (wg == 0) {
    fa::setmaxnreg_dec<kProducerRegisters>();
    const int page_rows = cache.table ? 1 << log2_page : shape.Nk;
    const int columns = (shape.Nk + page_rows - 1) / page_rows;  // of the table
    const int* pages = cache.table ? cache.table + entry * size_t(columns) : nullptr;
    produce(smem, &Q, &K, {K_rows, pages, log2_page, entry}, page_rows, work);
  } else {
    fa::setmaxnreg_inc<kConsumerRegisters>();
    Consumer{smem, shape, work, wg - 1}.run(O, LSE, parts, gridDim.y * shape.rows);
  }
}

// A block merges half of a row: each 64 of its threads a batch of splits, four features each, and
// then the batches. All loads of a thread precede the first use.
static __global__ void __launch_bounds__(1024)
    merge_kernel(Parts parts, const int* lengths,  // [B], or null
                 bf16* O,                          // [B*H*N, dv]
                 float* LSE,                       // [B*H*N]
                 int Nk, int split_tiles, int entry_rows) {
  const int batch = threadIdx.x / (kMerged / 4), batches = blockDim.x / (kMerged / 4);
  const int x = threadIdx.x % (kMerged / 4) * 4, first = blockIdx.y * kMerged + x;
  const size_t r = blockIdx.x, rows = gridDim.x;
  float* sums = fa::dynamic_shared<float>();  // [batches, kMerged], then m and l of each
  fa::griddep_wait();  // the other kernel has ended: all parts are in device memory
  const int keys = lengths ? lengths[r / entry_rows] : Nk;
  const int splits = (keys + split_tiles * Bc - 1) / (split_tiles * Bc);
  if (splits <= 1) return;  // the only split has stored the results
  float4 part[kBatch];
  float lse[kBatch];
  UNROLL
  for (int i = 0; i < kBatch; ++i) {
    const int s = batch * kBatch + i;
    part[i] = make_float4(0.f, 0.f, 0.f, 0.f), lse[i] = -INFINITY;
    if (s >= splits) continue;
    part[i] = *reinterpret_cast<const float4*>(parts.O + (s * rows + r) * dv + first);
    lse[i] = parts.LSE[s * rows + r];
  }
  float m = kNoMaximum, l = 0.f, sum[4] = {};
  UNROLL
  for (int i = 0; i < kBatch; ++i) m = fmaxf(m, lse[i]);
  UNROLL
  for (int i = 0; i < kBatch; ++i) {
    const float factor = fa::exp2_approx(lse[i] - m);  // l of the split, relative to m
    l += factor;
    sum[0] += factor * part[i].x, sum[1] += factor * part[i].y;
    sum[2] += factor * part[i].z, sum[3] += factor * part[i].w;
  }
  float* statistics = sums + batches * kMerged;
  *reinterpret_cast<float4*>(sums + batch * kMerged + x) =
      make_float4(sum[0], sum[1], sum[2], sum[3]);
  if (x == 0) statistics[2 * batch] = m, statistics[2 * batch + 1] = l;
  __syncthreads();  // all batches are complete
  if (batch > 0) return;
  for (int i = 0; i < batches; ++i) m = fmaxf(m, statistics[2 * i]);
  l = sum[0] = sum[1] = sum[2] = sum[3] = 0.f;
  for (int i = 0; i < batches; ++i) {
    const float factor = fa::exp2_approx(statistics[2 * i] - m);
    const float4 of = *reinterpret_cast<const float4*>(sums + i * kMerged + x);
    l += factor * statistics[2 * i + 1];
    sum[0] += factor * of.x, sum[1] += factor * of.y;
    sum[2] += factor * of.z, sum[3] += factor * of.w;
  }
  const float normalise = l > 0.f ? 1.f / l : 0.f;
  *reinterpret_cast<uint2*>(O + r * dv + first) =
      make_uint2(fa::pack_bf16(sum[0] * normalise, sum[1] * normalise),
                 fa::pack_bf16(sum[2] * normalise, sum[3] * normalise));
  if (first == 0) LSE[r] = l > 0.f ? (m + log2f(l)) * fa::kLn2 : -INFINITY;
}

// --- host ---------------------------------------------------------------------------------------

// An entry's tiles in equal splits.
struct Splits {
  int count, tiles;  // of the longest entry; of a split
  int merge_threads() const { return fa::ceil_div(count, kBatch) * (kMerged / 4); }
};

constexpr int kMergedRows = 2048;  // of parts, merged in a tile's time: estimated

// Enough splits s to give each SM one block, unless the merge costs more: T tiles in s splits of
// `rows` rows cost T/s + s*rows/kMergedRows, least at s = sqrt(kMergedRows T / rows).
inline Splits splits_of(const fa::Problem& p) {
  int64_t all = 0;  // tiles of all blocks
  int longest = 1;
  for (int b = 0; b < p.B; ++b) {
    const int tiles = fa::ceil_div(p.keys_of(b), Bc);
    all += int64_t(tiles) * row_blocks_of(p), longest = std::max(longest, tiles);
  }
  const int64_t fair = int64_t(longest) * p.gpu.sms / std::max<int64_t>(all, 1);
  const int64_t best = std::lround(std::sqrt(double(kMergedRows) * longest / p.rows()));
  const int most = std::min(longest, kMostSplits);
  const int each = fa::ceil_div(longest, int(std::clamp<int64_t>(std::min(fair, best), 1, most)));
  return {fa::ceil_div(longest, each), each};
}

inline fa::Prediction traffic(const fa::Problem& p) {
  const Splits splits = splits_of(p);
  const uint64_t blocks = row_blocks_of(p), rows = p.H * p.N;
  uint64_t parts = 0, walks = 0, looked_up = 0;  // walks: of a block of rows
  fa::Prediction t = traffic_of(p, /*scores=*/1);
  for (int b = 0; b < p.B; ++b) {
    const int of_entry = fa::ceil_div(p.keys_of(b), Bc);
    const int count = std::max(1, fa::ceil_div(of_entry, splits.tiles));
    walks += count, parts += count > 1 ? count * rows : 0;
    looked_up += p.keys_of(b) / Bc + (p.keys_of(b) % Bc ? kGroupThreads : 0);
    if (p.cache.page) t.hbm.read += 4 * fa::ceil_div(p.keys_of(b), p.cache.page);
  }
  t["Q"].read = 2 * walks * rows * d;
  if (p.cache.page) t["table"].read = 4 * blocks * looked_up;
  if (!p.cache.lengths.empty()) {  // by each thread of both kernels
    t["lengths"].read = 4 * p.B * splits.count * blocks * kThreads;
    if (splits.count > 1)
      t["lengths"].read += 4 * p.rows() * (dv / kMerged) * splits.merge_threads();
    t.hbm.read += 4 * p.B;
  }
  if (parts > 0) fa::add_parts_traffic(t, parts, dv, /*lse_reads=*/1);
  return t;
}

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  const int count = splits_of(p).count;
  return fa::parts_workspace(count > 1 ? count * p.rows() : 0, dv);
}

// Launches the merge, if there is more than one split.
inline void merge(const fa::Problem& p, const fa::Tensors<bf16>& t, const Splits& splits) {
  if (splits.count == 1) return;
  const Parts parts = {t.scratch<float>("O_parts"), t.scratch<float>("LSE_parts")};
  const int threads = splits.merge_threads();
  const size_t sums = threads / (kMerged / 4) * (kMerged + 2) * sizeof(float);
  fa::launch_early(merge_kernel, {dim3(p.rows(), dv / kMerged), dim3(threads), sums}, parts,
                   t.cache.lengths, t.O, t.LSE, p.Nk, splits.tiles, p.H * p.N);
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const Splits splits = splits_of(p);
  const Parts parts = {t.scratch<float>("O_parts"), t.scratch<float>("LSE_parts")};
  const int page = p.cache.page, log2_page = page ? std::bit_width(unsigned(page)) - 1 : 0;
  fa::launch(flash_decode_kernel,
             {dim3(splits.count * row_blocks_of(p), p.B), dim3(kThreads), sizeof(Tiles)},
             tile_map<d>(t.Q, p.B, p.H * p.N, Br),
             page ? tile_map<d>(t.K, kPoolPages, page, Bc) : tile_map<d>(t.K, p.B, p.Nk, Bc), t.K,
             t.cache, log2_page, t.O, t.LSE, parts, shape_of(p), splits.tiles);
  merge(p, t, splits);
}

}  // namespace step17_splits

// Step 13 -- the merge on all SMs, launched early.
// Idea      With 16 heads per key head the merge of one block takes 7 of 14 us at 4K keys on an
//           H100. A second kernel has one block per row; programmatic dependent launch prepares it
// Changed   since 13 5_once, whose comments are not repeated: the merge is a kernel again, with a
//           block per row; split i of s has rounds i, i + s, ..., so that all read one region
// Traffic   as 5_once, without counters; LSE_parts once by each thread; lengths also by the merge
// Launch    grid (s*t, B*Hkv); then one block per row
// Owns      block: as 5_once; of the merge: a row, d/4 of its threads some splits
// Still bad 16 bits per number of K and V; from 33 rows on, a second block reads the same keys
#pragma once

#include "common/dialect/ptx/more/dependent.h"
#include "steps/13_decode/parts.cuh"

namespace step13_early {

using namespace step13;  // parts.cuh

constexpr int kBatch = 8;       // splits of a row that a thread of the merge loads at once
constexpr int kMergedLike = 6;  // 5_once's merge of so many rows takes as long: measured

template <int d, int bands>
__global__ void __launch_bounds__(kThreads, 2)
    flash_decode_kernel(const bf16* Q,  // [B*Hkv, rows, d], which is [B*H, N, d]
                        const bf16* K,  // [pages, Hkv, page, d], or [B*Hkv, Nk, d]
                        const bf16* V, fa::Cache cache, int log2_page, int heads, bf16* O,
                        float* LSE, SplitParts parts, int rows, int N, int most_keys,
                        int split_keys, float scale, bool causal) {
  // --- prologue: fill all stages but one
  Shared<d, bands>& smem = *fa::dynamic_shared<Shared<d, bands>>();
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int row_blocks = (rows + bands * kMma - 1) / (bands * kMma);
  const int split = blockIdx.x / row_blocks;
  const int row0 = blockIdx.x % row_blocks * bands * kMma;
  const size_t head = blockIdx.y, entry = head / heads;
  const int Nk = cache.lengths ? cache.lengths[entry] : most_keys;
  const int splits = max(1, (Nk + split_keys - 1) / split_keys);
  if (split >= splits) return;
  const size_t of_page = head % heads, first_row = head * most_keys;
  const size_t columns = (most_keys + (1 << log2_page) - 1) >> log2_page;
  const int* pages = cache.table ? cache.table + entry * columns : nullptr;
  const auto place = [=](int key) {
    if (pages == nullptr) return first_row + key;
    return ((pages[key >> log2_page] * size_t(heads) + of_page) << log2_page) +
           (key & ((1 << log2_page) - 1));
  };
  Q += (head * rows + row0) * d;
  auto& tiles = smem.tiles[warp];
  const auto load = [&](int key, int stage) {
    UNROLL
    for (int c = 0; c < kWarpKeys<d> && key < Nk; c += kMma) {
      const size_t from = key + c < Nk ? place(key + c) * d : 0;
      load_tile<d, kMma>(K + from, tiles.K[stage] + c * d, Nk - key - c);
      load_tile<d, kMma>(V + from, tiles.V[stage] + c * d, Nk - key - c);
    }
    fa::cp_async_commit();
  };
  const int first = split * Bc<d> + warp * kWarpKeys<d>;
  const int step = splits * Bc<d>;  // all splits of a head read adjacent rounds at a time
  for (int j = 0; j < kStages - 1; ++j) load(first + j * step, j);
  uint32_t rQ[bands][d / kMma][4];
  load_queries<d>(Q, rows - row0, rQ);
  const float scale_log2 = scale * fa::kLog2e;
  const int least = causal ? Nk - N + 1 : Nk;
  int visible[bands][2];
  float rO[bands][d / 8][4] = {}, l[bands][2] = {}, m[bands][2];
  UNROLL
  for (int i = 0; i < 2 * bands; ++i) {
    const int r = row0 + fa::row_of(lane) + 8 * i;
    m[i / 2][i % 2] = kNoMaximum;
    visible[i / 2][i % 2] = causal ? least + r % N : Nk;
  }

  // --- mainloop
  for (int key = first, stage = 0; key < Nk; key += step, stage = (stage + 1) % kStages) {
    fa::cp_async_wait<kStages - 2>();
    __syncwarp();  // all lanes' copies of this tile are complete, and the last tile is free
    load(key + (kStages - 1) * step, (stage + kStages - 1) % kStages);
    float rS[bands][kWarpKeys<d> / 8][4] = {};
    multiply_scores<d>(rQ, tiles.K[stage], rS);
    if (least < key + kWarpKeys<d>) mask(rS, visible, key);
    update_maximum<d>(rS, scale_log2, m, l, rO);
    multiply_values<d>(rS, scale_log2, m, tiles.V[stage], l, rO);
  }

  // --- epilogue
  fa::cp_async_wait_all();
  __syncthreads();  // all warps are done with their tiles: the parts overwrite them
  store_part<d>(m, l, rO, rows - row0, smem.parts);
  __syncthreads();  // all parts are complete
  const int stored = min(rows - row0, bands * kMma), x = threadIdx.x % (d / 4) * 4;
  const size_t result = head * rows + row0, all_rows = size_t(gridDim.y) * rows;
  constexpr int kStored = kThreads / (d / 4);
  for (int r = threadIdx.x / (d / 4); r < stored; r += kStored) {
    const Merged row = merge_warps(smem.parts, r, x);
    if (splits == 1) {
      store_row<d>(row, result + r, x, O, LSE);
    } else {
      parts.store<d>(row, split * all_rows + result + r, x);
    }
  }
}

// A block merges a row: each d/4 of its threads merge a batch of splits, and then the batches.
template <int d>
__global__ void __launch_bounds__(1024)
    merge_kernel(SplitParts parts, const int* lengths,  // [B], or null
                 bf16* O,                               // [B*H, N, d]
                 float* LSE,                            // [B*H, N]
                 int most_keys, int split_keys, int entry_rows) {
  const int batch = threadIdx.x / (d / 4), batches = blockDim.x / (d / 4);
  const int x = threadIdx.x % (d / 4) * 4;
  float* smem = fa::dynamic_shared<float>();
  const SplitParts sums = {smem, smem + batches * d};
  const size_t r = blockIdx.x, rows = gridDim.x;
  fa::griddep_wait();  // the other kernel has ended: all parts are in device memory
  const int Nk = lengths ? lengths[r / entry_rows] : most_keys;
  const int splits = (Nk + split_keys - 1) / split_keys;
  if (splits <= 1) return;  // the only split has stored the results
  float4 part[kBatch];
  float lse[kBatch], m = kNoMaximum, l = 0.f;
  UNROLL
  for (int i = 0; i < kBatch; ++i) {  // all loads, before the first is used
    const int s = batch * kBatch + i;
    part[i] = make_float4(0.f, 0.f, 0.f, 0.f), lse[i] = -INFINITY;
    if (s >= splits) continue;
    part[i] = *reinterpret_cast<const float4*>(parts.O + (s * rows + r) * d + x);
    lse[i] = parts.LSE[s * rows + r];
  }
  UNROLL
  for (int i = 0; i < kBatch; ++i) m = fmaxf(m, lse[i]);
  Merged row = {};
  UNROLL
  for (int i = 0; i < kBatch; ++i) {
    const float factor = fa::exp2_approx(lse[i] - m);
    l += factor;
    row.O[0] += factor * part[i].x, row.O[1] += factor * part[i].y;
    row.O[2] += factor * part[i].z, row.O[3] += factor * part[i].w;
  }
  row.finish(m, l);
  sums.store<d>(row, batch, x);
  __syncthreads();  // all batches are complete
  if (batch == 0) store_row<d>(sums.merge<d>(batches, 1, 0, x), r, x, O, LSE);
}

// --- host ---------------------------------------------------------------------------------------

inline int merge_threads(const fa::Problem& p, const Splits& splits) {
  return fa::ceil_div(splits.count, kBatch) * (p.d / 4);
}

inline fa::Prediction traffic(const fa::Problem& p) {
  const Rows rows(p, p.H / p.Hkv);
  const Splits splits = splits_of(p, rows, kMergedLike);
  fa::Prediction t = traffic_of(p, rows, splits, kTile / p.d);
  fa::add_merged_traffic(t, p, splits.keys, rows.readers);
  if (t.buffers.erase("arrived") == 0) return t;  // each entry has one split
  t["LSE_parts"].read /= 2;                       // once
  if (!p.cache.lengths.empty()) t["lengths"].read += 4 * p.rows() * merge_threads(p, splits);
  return t;
}

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  return workspace_of(p, Rows(p, p.H / p.Hkv), kMergedLike);
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const Rows rows(p, p.H / p.Hkv);
  const Splits splits = splits_of(p, rows, kMergedLike);
  const SplitParts parts = parts_of(t);
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    fa::dispatch_tile<1, 2>(rows.bands, [&](auto bands) {
      fa::launch(flash_decode_kernel<d, bands>,
                 {dim3(splits.count * rows.blocks, p.kv_heads()), dim3(kThreads),
                  sizeof(Shared<d, bands>)},
                 t.Q, t.K, t.V, t.cache, log2_page(p), p.Hkv, t.O, t.LSE, parts, rows.count, p.N,
                 p.Nk, splits.keys, p.scale(), p.causal);
    });
    if (splits.count == 1) return;
    const int threads = merge_threads(p, splits);
    const size_t sums = threads / (d / 4) * (d + 1) * sizeof(float);
    fa::launch_early(merge_kernel<d>, {dim3(p.rows()), dim3(threads), sums}, parts, t.cache.lengths,
                     t.O, t.LSE, p.Nk, splits.keys, p.H * p.N);
  });
}

}  // namespace step13_early

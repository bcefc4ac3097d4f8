// Step 13 -- a paged cache, with sequences of different lengths.
// Idea      A cache grows to an unknown length. It consists of pages of 16 to 256 keys anywhere in
//           a pool, found by a table: one more load before the copies of 16 keys. Garbage past the
//           last key is never read
// Changed   since 13 3_groups: keys from the table; each batch entry has its length and splits
// Traffic   requested read  2*BHkv*s*(4*g*N*d) + 2*BHkv*t*2*Nk*d B   s, Nk: means of the batch;
//                           + 4*BH*s*N*(d + d/2) B                   g, t as in 3_groups
//                           + 8*BHkv*t*Nk B + 4 B per thread         table, by each lane; lengths
//                     write 2*BH*N*d + 4*BH*N + 4*BH*s*N*(d + 1) B
//           compulsory      2*(2*BH*N*d + 2*BHkv*Nk*d) + 4*BH*N + 4*B*(Nk/page + 1) B
// Launch    grid (s*t, B*Hkv): blocks without keys return at once; then the merge
// Owns      block: a split for up to 32 rows; warp: every fourth tile of its keys, all rows
// Still bad two kernels, although the second has little to do
#pragma once

#include "steps/13_decode/parts.cuh"

namespace step13_pages {

using namespace step13;  // parts.cuh

template <int d, int bands>
__global__ void __launch_bounds__(kThreads, 2)  // per SM: while one merges, the other copies
    flash_decode_kernel(const bf16* Q,          // [B*Hkv, rows, d], which is [B*H, N, d]
                        const bf16* K,          // [pages, Hkv, page, d], or [B*Hkv, Nk, d]
                        const bf16* V,          // the same shape
                        fa::Cache cache, int log2_page, int heads, SplitParts parts, int rows,
                        int N, int most_keys, int split_keys, float scale, bool causal) {
  // --- prologue: fill all stages but one
  Shared<d, bands>& smem = *fa::dynamic_shared<Shared<d, bands>>();
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int row_blocks = (rows + bands * kMma - 1) / (bands * kMma);
  const int split = blockIdx.x / row_blocks;  // blocks of the same keys are adjacent
  const int row0 = blockIdx.x % row_blocks * bands * kMma;
  const size_t head = blockIdx.y, entry = head / heads;
  const int Nk = cache.lengths ? cache.lengths[entry] : most_keys;
  const int end = min(Nk, (split + 1) * split_keys);
  if (split * split_keys >= Nk && split > 0) return;  // split 0 stores even an empty part
  const size_t of_page = head % heads, first_row = head * most_keys;
  const size_t columns = (most_keys + (1 << log2_page) - 1) >> log2_page;  // of the table
  const int* pages = cache.table ? cache.table + entry * columns : nullptr;
  const auto place = [=](int key) {  // its row in the pools, for 16 keys from a multiple of 16 on
    if (pages == nullptr) return first_row + key;
    return ((pages[key >> log2_page] * size_t(heads) + of_page) << log2_page) +
           (key & ((1 << log2_page) - 1));
  };
  const size_t part = (split * gridDim.y + head) * rows + row0;
  Q += (head * rows + row0) * d;
  auto& tiles = smem.tiles[warp];
  const auto load = [&](int key, int stage) {
    UNROLL
    for (int c = 0; c < kWarpKeys<d> && key < end; c += kMma) {
      const size_t from = key + c < end ? place(key + c) * d : 0;
      load_tile<d, kMma>(K + from, tiles.K[stage] + c * d, end - key - c);
      load_tile<d, kMma>(V + from, tiles.V[stage] + c * d, end - key - c);
    }
    fa::cp_async_commit();
  };
  const int first = split * split_keys + warp * kWarpKeys<d>;  // the warp's first key
  for (int j = 0; j < kStages - 1; ++j) load(first + j * Bc<d>, j);
  uint32_t rQ[bands][d / kMma][4];
  load_queries<d>(Q, rows - row0, rQ);
  const float scale_log2 = scale * fa::kLog2e;
  const int least = causal ? Nk - N + 1 : Nk;  // keys that the first query sees
  int visible[bands][2];                       // and this lane's rows: row r is query r % N
  float rO[bands][d / 8][4] = {}, l[bands][2] = {}, m[bands][2];
  UNROLL
  for (int i = 0; i < 2 * bands; ++i) {
    const int r = row0 + fa::row_of(lane) + 8 * i;
    m[i / 2][i % 2] = kNoMaximum;
    visible[i / 2][i % 2] = causal ? least + r % N : Nk;
  }

  // --- mainloop
  for (int key = first, stage = 0; key < end; key += Bc<d>, stage = (stage + 1) % kStages) {
    fa::cp_async_wait<kStages - 2>();
    __syncwarp();  // all lanes' copies of this tile are complete, and the last tile is free
    load(key + (kStages - 1) * Bc<d>, (stage + kStages - 1) % kStages);
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
  __syncthreads();                             // all parts are complete
  constexpr int kStored = kThreads / (d / 4);  // rows that the block stores at once
  for (int r = threadIdx.x / (d / 4); r < min(rows - row0, bands * kMma); r += kStored) {
    const int x = threadIdx.x % (d / 4) * 4;
    parts.store<d>(merge_warps(smem.parts, r, x), part + r, x);
  }
}

template <int d>
__global__ void merge_kernel(SplitParts parts, const int* lengths,  // [B], or null
                             bf16* O,                               // [B*H, N, d]
                             float* LSE,                            // [B*H, N]
                             int most_keys, int split_keys, int rows, int entry_rows) {
  const int r = (blockIdx.x * kThreads + threadIdx.x) / (d / 4), x = threadIdx.x % (d / 4) * 4;
  if (r >= rows) return;
  const int Nk = lengths ? lengths[r / entry_rows] : most_keys;
  const int splits = max(1, (Nk + split_keys - 1) / split_keys);
  store_row<d>(parts.merge<d>(splits, rows, r, x), r, x, O, LSE);
}

// --- host ---------------------------------------------------------------------------------------

inline fa::Prediction traffic(const fa::Problem& p) {
  const Rows rows(p, p.H / p.Hkv);
  const Splits splits = splits_of(p, rows, rows.per_block);
  uint64_t stored = 0;  // rows that have parts
  fa::Prediction t = traffic_of(p, rows, splits, kTile / p.d);
  if (!p.cache.lengths.empty()) t["lengths"].read += 4 * p.rows() * (p.d / 4);  // by the merge
  for (int b = 0; b < p.B; ++b) {
    stored += p.H * p.N * std::max(1, fa::ceil_div(p.keys_of(b), splits.keys));
  }
  fa::add_parts_traffic(t, stored, p.d);
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const Rows rows(p, p.H / p.Hkv);
  const Splits splits = splits_of(p, rows, rows.per_block);
  const SplitParts parts = parts_of(t);
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    fa::dispatch_tile<1, 2>(rows.bands, [&](auto bands) {
      fa::launch(flash_decode_kernel<d, bands>,
                 {dim3(splits.count * rows.blocks, p.kv_heads()), dim3(kThreads),
                  sizeof(Shared<d, bands>)},
                 t.Q, t.K, t.V, t.cache, log2_page(p), p.Hkv, parts, rows.count, p.N, p.Nk,
                 splits.keys, p.scale(), p.causal);
    });
    fa::launch(merge_kernel<d>,
               {dim3(fa::ceil_div(int(p.rows()) * (d / 4), kThreads)), dim3(kThreads)}, parts,
               t.cache.lengths, t.O, t.LSE, p.Nk, splits.keys, int(p.rows()), p.H * p.N);
  });
}

}  // namespace step13_pages

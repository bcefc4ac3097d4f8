// Step 13 -- a cache in 8 bits.
// Idea      The cache is quantised when a key is appended: K = K_scale * e4m3, one scale per key
//           head. The scales stay out of the loop: K's joins 1/sqrt(d), V's multiplies O at the end
// Changed   since 13 7_once: the tile is 8_e4m3's; two scales
// Traffic   requested read  as 7_once, K and V 1 B per number
//                           + 4 B per thread             K_scale
//                           + d B per stored row         V_scale, by each of d/4 threads
//                     write as 7_once
//           compulsory      2*2*BH*N*d + 2*BHkv*Nk*d + 4*BH*N + 8*BHkv + 4*B*(Nk/page + 1) B
// Launch    as 7_once
// Owns      as 7_once
// Still bad with few keys the launch and the merge take longer than the reading
#pragma once

#include "steps/13_decode/7_once.cuh"
#include "steps/13_decode/8_e4m3.cuh"

namespace step13 {

using step13_groups::Rows, step13_groups::Totals;
using step13_pages::KeyRows;
using step13_splits::Splits;

// A block's shared memory: 96 KB.
template <int d, int bands>
union Shared8 {
  Tiles8<d> tiles[kWarps];
  Parts<d, bands, kPad8> parts;  // after the last tile
};

// Two blocks per SM, if the batch has enough: while one merges, the other keeps copying.
template <int d, int bands>
__global__ void __launch_bounds__(kThreads, 2)
    flash_decode8_kernel(const bf16* Q,  // [B*Hkv, rows, d], which is [B*H, N, d]
                         const e4m3* K,  // [pages, Hkv, page, d], or [B*Hkv, Nk, d]
                         const e4m3* V,  // likewise
                         fa::Cache cache, int log2_page, int heads, bf16* O, float* LSE,
                         SplitParts parts, unsigned* arrived, int rows, int N, int most_keys,
                         int split_keys, float scale, bool causal) {
  // --- prologue: fill all stages but one
  Shared8<d, bands>& smem = *fa::dynamic_shared<Shared8<d, bands>>();
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int row_blocks = (rows + bands * kMma - 1) / (bands * kMma);
  const int split = blockIdx.x / row_blocks;  // blocks of the same keys are neighbours
  const int row0 = blockIdx.x % row_blocks * bands * kMma;
  const size_t head = blockIdx.y, entry = head / heads;
  const int Nk = cache.lengths ? cache.lengths[entry] : most_keys;
  const int end = min(Nk, (split + 1) * split_keys);
  if (split * split_keys >= Nk && split > 0) return;  // split 0 stores even an empty part
  const KeyRows place(cache, log2_page, most_keys, head, heads);
  Q += (head * rows + row0) * d;
  Tiles8<d>& tiles = smem.tiles[warp];
  const auto load = [&](int key, int stage) {
    UNROLL
    for (int c = 0; c < kWarpKeys8<d> && key < end; c += kMma) {
      // Of 64 bits: a cache may have more than 2^31 elements (test_ladder "[large]", on a GPU).
      const size_t from = key + c < end ? place[key + c] * d : 0;
      load_tile<d, kMma>(K + from, tiles.K[stage] + c * d, end - key - c);
      load_tile<d, kMma>(V + from, tiles.V[stage] + c * d, end - key - c);
    }
    fa::cp_async_commit();  // empty past the end: the wait below counts groups
  };
  const int first = split * split_keys + warp * kWarpKeys8<d>;  // the warp's first key
  for (int j = 0; j < kStages - 1; ++j) load(first + j * Bc8<d>, j);
  uint32_t rQ[bands][d / kMma][4];
  load_queries8<d>(Q, rows - row0, rQ);
  const float scale_log2 = scale * fa::kLog2e * cache.K_scale[head];
  const int least = causal ? Nk - N + 1 : Nk;  // keys that the first query sees
  int visible[bands][2];                       // and this lane's rows: row r is query r % N
  float rO[bands][d / 8][4] = {}, l[bands][2] = {}, m[bands][2];
  UNROLL
  for (int t = 0; t < bands; ++t) {
    UNROLL
    for (int h = 0; h < 2; ++h) {
      m[t][h] = kNoMaximum;
      visible[t][h] = causal ? least + (row0 + t * kMma + fa::row_of(lane) + h * 8) % N : Nk;
    }
  }

  // --- mainloop
  for (int key = first, stage = 0; key < end; key += Bc8<d>, stage = (stage + 1) % kStages) {
    fa::cp_async_wait<kStages - 2>();
    __syncwarp();  // all lanes' copies of this tile are complete, and the last tile is free
    load(key + (kStages - 1) * Bc8<d>, (stage + kStages - 1) % kStages);
    float rS[bands][kWarpKeys8<d> / 8][4] = {};
    multiply_scores<d>(rQ, tiles.K[stage], rS);
    if (least < key + kWarpKeys8<d>) mask(rS, visible, key);
    update_maximum<d>(rS, scale_log2, m, l, rO);
    multiply_values<d>(rS, scale_log2, m, tiles.V[stage], l, rO);
  }

  // --- epilogue
  fa::cp_async_wait_all();
  __syncthreads();  // all warps are done with their tiles: the parts overwrite them
  store_part8<d>(m, l, rO, rows - row0, smem.parts);
  __syncthreads();  // all parts are complete
  // A block that has all keys of its rows stores results; any other stores a part.
  const int splits = max(1, (Nk + split_keys - 1) / split_keys);
  const int stored = min(rows - row0, bands * kMma), x = threadIdx.x % (d / 4) * 4;
  const size_t result = head * rows + row0, all_rows = size_t(gridDim.y) * rows;
  constexpr int kStored = kThreads / (d / 4);  // rows that the block stores at once
  for (int r = threadIdx.x / (d / 4); r < stored; r += kStored) {
    Merged row = merge_warps(smem.parts, r, x);
    const float scale_V = cache.V_scale[head];  // loaded here, where nvcc would move it
    UNROLL
    for (int e = 0; e < 4; ++e) row.O[e] *= scale_V;
    if (splits == 1) {
      store_row<d>(row, result + r, x, O, LSE);
    } else {
      parts.store<d>(row, split * all_rows + result + r, x);
    }
  }
  if (splits == 1) return;

  // --- the last block of these rows merges
  __threadfence();  // all threads' parts are in device memory,
  __syncthreads();  // before one thread counts the block
  __shared__ bool last;
  unsigned* counter = arrived + head * row_blocks + blockIdx.x % row_blocks;
  if (threadIdx.x == 0) last = atomicAdd(counter, 1u) == unsigned(splits - 1);
  __syncthreads();  // all know it
  if (!last) return;
  __threadfence();  // others' parts, written before they counted, are visible now
  if (threadIdx.x == 0) *counter = 0;  // for the next launch
  for (int r = threadIdx.x / (d / 4); r < stored; r += kStored) {
    store_row<d>(parts.merge<d>(splits, all_rows, result + r, x), result + r, x, O, LSE);
  }
}

// --- host ---------------------------------------------------------------------------------------

// What the kernels are made for; anything else is refused.
inline fa::Support support() { return step13_once::support(); }

inline fa::Prediction traffic(const fa::Problem& p) {
  const Rows rows(p);
  const Totals all(p, step13_groups::splits_of(p).keys,
                   p.d == 64 ? kWarpKeys8<64> : kWarpKeys8<128>);
  fa::Prediction t = step13_once::traffic(p);
  t.flops = 4 * p.Hkv * kMma * rows.bands * rows.blocks * all.padded * p.d;
  t.hbm.read += 8 * p.kv_heads() - t["K"].read / rows.blocks;  // half of K and V
  t["K"].read /= 2, t["V"].read /= 2;
  t["K_scale"].read = 4 * all.splits * p.Hkv * rows.blocks * kThreads;
  t["V_scale"].read = all.splits * p.Hkv * rows.count * p.d;
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const Rows rows(p);
  const Splits splits = step13_groups::splits_of(p);
  const SplitParts parts = {t.scratch<float>("O_parts"), t.scratch<float>("LSE_parts")};
  const e4m3* K = reinterpret_cast<const e4m3*>(t.K);
  const e4m3* V = reinterpret_cast<const e4m3*>(t.V);
  const int log2_page = p.cache.page ? std::bit_width(unsigned(p.cache.page)) - 1 : 0;
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    fa::dispatch_tile<1, 2>(rows.bands, [&](auto bands) {
      fa::launch(flash_decode8_kernel<d, bands>,
                 {dim3(splits.count * rows.blocks, p.kv_heads()), dim3(kThreads),
                  sizeof(Shared8<d, bands>)},
                 t.Q, K, V, t.cache, log2_page, p.Hkv, t.O, t.LSE, parts,
                 t.scratch<unsigned>("arrived"), rows.count, p.N, p.Nk, splits.keys, p.scale(),
                 p.causal);
    });
  });
}

}  // namespace step13

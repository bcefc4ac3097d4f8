// Step 13 -- a cache in 8 bits.
// Idea      e4m3 halves the bytes, the cost of decoding. The tensor cores still multiply bf16: e4m3
//           shifted right by four bits is the same number in bf16, times 2^-120. ldmatrix moves
//           pairs, so a lane receives four adjacent features. Any order that Q and O share is right
// Changed   since 13 5_once: K and V are e4m3, converted after ldmatrix; the order of features;
//           twice as many keys per tile; one scale per key head: K's joins 1/sqrt(d), V's
//           multiplies O at the end
// Traffic   as 5_once, with half of the bytes of K and V; 4 B of K_scale per thread, and d B of
//           V_scale per stored row; compulsory 8*BHkv B of scales
// Launch    grid (s*t, B*Hkv): one block per split and 32 rows
// Owns      block: a split for up to 32 rows; the last of them: the rows' results
// Still bad with few keys the launch and the merge take longer than the reads
#pragma once

#include "common/dialect/ptx/bf16.h"
#include "common/dialect/ptx/fp8.h"
#include "steps/13_decode/parts.cuh"

namespace step13_fp8 {

using namespace step13;  // parts.cuh
using e4m3 = __nv_fp8_e4m3;

template <int d>
constexpr int kWarpKeys = 2 * step13::kWarpKeys<d>;  // per tile, which has as many bytes as before
template <int d>
constexpr int Bc = kWarps* kWarpKeys<d>;
constexpr int kPad = 16;  // floats: four numbers of each of two rows cover all 32 banks

// Two numbers of e4m3, in bytes 1 and 3, as bf16: 4 exponent bits become the lowest of 8, 3 bits of
// the mantissa the highest of 7. The exponents' biases differ by 120: hence 2^120.
__device__ inline uint32_t bf16_of_e4m3(uint32_t two) {
  const uint32_t moved = (two >> 4 & 0x07f007f0) | (two & 0x80008000);
  return fa::multiply_bf16x2(moved, 0x7b807b80);
}

// Where element (r, x) of a tile is stored, x a multiple of 16: chunk c of row r at c ^ (r % 8), or
// at c ^ (r / 2 % 4) where two rows share 128 bytes.
template <int d>
__device__ inline int swizzle(int r, int x) {
  return r * d + (x ^ (d == 128 ? r % 8 * 16 : r / 2 % 4 * 16));
}

template <int d>
__device__ inline void load_tile(const e4m3* g, e4m3* s, int rows) {
  constexpr int kChunks = d / 16;  // of 16 bytes, per row
  const int lane = threadIdx.x % fa::kWarp, x = lane % kChunks * 16;
  UNROLL
  for (int step = 0; step < kMma; step += fa::kWarp / kChunks) {
    const int r = lane / kChunks + step;
    fa::cp_async_16(s + swizzle<d>(r, x), g + size_t(r) * d + x, r < rows ? 16 : 0);
  }
}

template <int d, int bands>
__device__ inline void multiply_scores(const uint32_t (&rQ)[bands][d / kMma][4],
                                       const e4m3* sK,  // [kWarpKeys, d] swizzled
                                       float (&rS)[bands][kWarpKeys<d> / 8][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  const int k = swizzle<d>(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 16);  // 8 keys, then 8 more
  UNROLL
  for (int x = 0; x < d; x += 2 * kMma) {
    UNROLL
    for (int c = 0; c < kWarpKeys<d>; c += 16) {
      uint32_t four[2][2];  // of 2 x 8 keys and 2 x 16 features
      fa::ldmatrix_x4(four, sK + c * d + (k ^ x));
      UNROLL
      for (int i = 0; i < 4; ++i) {
        const int f = i / 2, n = i % 2;
        const uint32_t b[2] = {bf16_of_e4m3(__byte_perm(four[n][f], 0, 0x1404)),   // bytes 0, 1
                               bf16_of_e4m3(__byte_perm(four[n][f], 0, 0x3424))};  // and 2, 3
        UNROLL
        for (int t = 0; t < bands; ++t) fa::mma_m16n8k16(rS[t][c / 8 + n], rQ[t][x / kMma + f], b);
      }
    }
  }
}

// O += P V of a warp's keys, 16 at a time. ldmatrix transposes pairs of features: bytes 0 and 2 are
// two keys' even feature, bytes 1 and 3 their odd one. Out of 16 features a lane has four adjacent
// ones: the even ones in rO[t][2 g], the odd ones in rO[t][2 g + 1].
template <int d, int bands>
__device__ inline void multiply_values(const float (&rS)[bands][kWarpKeys<d> / 8][4],
                                       float scale_log2, const float (&m)[bands][2],
                                       const e4m3* sV,  // [kWarpKeys, d] swizzled
                                       float (&l)[bands][2], float (&rO)[bands][d / 8][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  const int v = swizzle<d>(lane % 16, lane / 16 * 16);
  UNROLL
  for (int c = 0; c < kWarpKeys<d>; c += kMma) {
    uint32_t a[bands][4];
    exponentials(rS, c / 8, scale_log2, m, l, a);
    UNROLL
    for (int x = 0; x < d; x += 32) {
      uint32_t four[2][2];  // of 2 x 16 features and 2 x 8 keys
      fa::ldmatrix_x4_trans(four, sV + c * d + (v ^ x));
      UNROLL
      for (int f = 0; f < 2; ++f) {
        const uint32_t even[2] = {bf16_of_e4m3(__byte_perm(four[f][0], 0, 0x2404)),
                                  bf16_of_e4m3(__byte_perm(four[f][1], 0, 0x2404))};
        const uint32_t odd[2] = {bf16_of_e4m3(__byte_perm(four[f][0], 0, 0x3414)),
                                 bf16_of_e4m3(__byte_perm(four[f][1], 0, 0x3414))};
        UNROLL
        for (int t = 0; t < bands; ++t) {
          fa::mma_m16n8k16(rO[t][x / 8 + 2 * f], a[t], even);
          fa::mma_m16n8k16(rO[t][x / 8 + 2 * f + 1], a[t], odd);
        }
      }
    }
  }
}

template <int d, int bands>
__device__ inline void store_part(const float (&m)[bands][2], const float (&l)[bands][2],
                                  const float (&rO)[bands][d / 8][4], int rows,
                                  Parts<d, bands, kPad>& parts) {
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  store_statistics(m, l, parts);
  UNROLL
  for (int i = 0; i < 2 * bands; ++i) {
    const int r = fa::row_of(lane) + 8 * i, t = i / 2, h = i % 2;
    if (r >= rows) continue;
    UNROLL
    for (int n = 0; n < d / 8; n += 2) {
      *reinterpret_cast<float4*>(&parts.O[warp][r][n * 8 + lane % 4 * 4]) = make_float4(
          rO[t][n][2 * h], rO[t][n + 1][2 * h], rO[t][n][2 * h + 1], rO[t][n + 1][2 * h + 1]);
    }
  }
}

template <int d, int bands>
union Shared {
  struct {
    e4m3 K[kStages][2 * kTile], V[kStages][2 * kTile];  // [kWarpKeys, d] swizzled
  } tiles[kWarps];
  Parts<d, bands, kPad> parts;
};

template <int d, int bands>
__global__ void __launch_bounds__(kThreads, 2)  // per SM: while one merges, the other copies
    flash_decode_kernel(const bf16* Q,          // [B*Hkv, rows, d], which is [B*H, N, d]
                        const e4m3* K,          // [pages, Hkv, page, d], or [B*Hkv, Nk, d]
                        const e4m3* V,          // the same shape
                        fa::Cache cache, int log2_page, int heads, bf16* O, float* LSE,
                        SplitParts parts, unsigned* arrived, int rows, int N, int most_keys,
                        int split_keys, float scale, bool causal) {
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
  Q += (head * rows + row0) * d;
  auto& tiles = smem.tiles[warp];
  const auto load = [&](int key, int stage) {
    UNROLL
    for (int c = 0; c < kWarpKeys<d> && key < end; c += kMma) {
      const size_t from = key + c < end ? place(key + c) * d : 0;
      load_tile<d>(K + from, tiles.K[stage] + c * d, end - key - c);
      load_tile<d>(V + from, tiles.V[stage] + c * d, end - key - c);
    }
    fa::cp_async_commit();
  };
  const int first = split * split_keys + warp * kWarpKeys<d>;  // the warp's first key
  for (int j = 0; j < kStages - 1; ++j) load(first + j * Bc<d>, j);
  uint32_t rQ[bands][d / kMma][4];
  load_queries<d, /*next=*/2>(Q, rows - row0, rQ);
  const float scale_log2 = scale * fa::kLog2e * cache.K_scale[head];
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
  __syncthreads();  // all parts are complete
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

inline fa::Prediction traffic(const fa::Problem& p) {
  const Rows rows(p, p.H / p.Hkv);
  const Splits splits = splits_of(p, rows, rows.per_block);
  uint64_t all = 0;  // splits
  for (int b = 0; b < p.B; ++b) all += std::max(1, fa::ceil_div(p.keys_of(b), splits.keys));
  fa::Prediction t = traffic_of(p, rows, splits, 2 * kTile / p.d);
  t.hbm.read += 8 * p.kv_heads() - t["K"].read / rows.blocks;  // half of K and V
  t["K"].read /= 2, t["V"].read /= 2;
  t["K_scale"].read = 4 * all * rows.readers * kThreads;
  t["V_scale"].read = all * p.Hkv * rows.count * p.d;
  fa::add_merged_traffic(t, p, splits.keys, rows.readers);
  return t;
}

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  const Rows rows(p, p.H / p.Hkv);
  return workspace_of(p, rows, rows.per_block, /*counts=*/true);
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const Rows rows(p, p.H / p.Hkv);
  const Splits splits = splits_of(p, rows, rows.per_block);
  const SplitParts parts = parts_of(t);
  const e4m3* K = reinterpret_cast<const e4m3*>(t.K);
  const e4m3* V = reinterpret_cast<const e4m3*>(t.V);
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    fa::dispatch_tile<1, 2>(rows.bands, [&](auto bands) {
      fa::launch(flash_decode_kernel<d, bands>,
                 {dim3(splits.count * rows.blocks, p.kv_heads()), dim3(kThreads),
                  sizeof(Shared<d, bands>)},
                 t.Q, K, V, t.cache, log2_page(p), p.Hkv, t.O, t.LSE, parts,
                 t.scratch<unsigned>("arrived"), rows.count, p.N, p.Nk, splits.keys, p.scale(),
                 p.causal);
    });
  });
}

}  // namespace step13_fp8

// Step 13 -- what all rungs share: a warp's tiles and scores, merges, splits, bytes. The softmax
//            and P V are the dialect's (mma_softmax.h).
//
// All warps of a block hold the same `bands` of 16 rows, and each computes some of their keys.
// Registers of a lane, for its rows r = 16 t + row_of(lane) + 8 h in band t:
//     rS[t][n][2 h + e]   key     8 n + column_of(lane) + e of the warp's tile
//     rO[t][n][2 h + e]   feature 8 n + column_of(lane) + e
//     m[t][h], l[t][h]    of the row; l of this lane's keys only
#pragma once

#include <bit>
#include <cmath>
#include "common/dialect/mma_softmax.h"
#include "common/dialect/mma_tile.h"
#include "common/harness/splits.h"
#include "common/harness/tiles.h"

namespace step13 {

using fa::bf16, fa::kNoMaximum, fa::swizzle;
using fa::exponentials, fa::multiply_values, fa::update_maximum;

constexpr int kWarps = 4, kThreads = kWarps * fa::kWarp;
constexpr int kMma = 16;     // rows of an mma's A, and keys or features that it sums over
constexpr int kTile = 2048;  // numbers of K in a warp's tile, and of V
constexpr int kPad = 8;      // floats: a warp's numbers cover all banks
template <int d>
constexpr int kWarpKeys = kTile / d;  // per tile
template <int d>
constexpr int Bc = kWarps* kWarpKeys<d>;  // keys per round: one tile per warp
constexpr int kStages = 3;  // per warp: one tile is multiplied while the others are copied

// --- a warp's keys: copies, S, masks ------------------------------------------------------------

// Copies rows of g [rows, d] to s [kRows, d], swizzled, with zeros from row `rows` on.
template <int d, int kRows>
__device__ inline void load_tile(const bf16* g, bf16* s, int rows) {
  constexpr int kChunks = d / 8;  // of 16 bytes, per row
  const int lane = threadIdx.x % fa::kWarp, x = lane % kChunks * 8;
  UNROLL
  for (int step = 0; step < kRows; step += fa::kWarp / kChunks) {
    const int r = lane / kChunks + step;
    fa::cp_async_16(s + swizzle<d>(r, x), g + size_t(r) * d + x, r < rows ? 16 : 0);
  }
}

// The A fragments of all bands, with zeros from row `rows` on. Of 16 features a lane has two, and
// two that are `next` further: with 2 four adjacent ones.
template <int d, int next = 8, int bands>
__device__ inline void load_queries(const bf16* Q,  // [rows, d]
                                    int rows, uint32_t (&rQ)[bands][d / kMma][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  UNROLL
  for (int t = 0; t < bands; ++t) {
    UNROLL
    for (int x = 0; x < d / kMma; ++x) {
      UNROLL
      for (int e = 0; e < 4; ++e) {
        const int r = t * kMma + fa::row_of(lane) + e % 2 * 8,
                  feature = x * kMma + e / 2 * next + lane % 4 * (next == 8 ? 2 : 4);
        rQ[t][x][e] = r < rows ? *reinterpret_cast<const uint32_t*>(Q + r * d + feature) : 0;
      }
    }
  }
}

// S = Q K^T of all rows and a warp's keys, 16 features at a time.
template <int d, int bands>
__device__ inline void multiply_scores(const uint32_t (&rQ)[bands][d / kMma][4],
                                       const bf16* sK,  // [kWarpKeys, d] swizzled
                                       float (&rS)[bands][kWarpKeys<d> / 8][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  const int k = swizzle<d>(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);  // 8 keys, then 8 more
  UNROLL
  for (int x = 0; x < d; x += kMma) {
    UNROLL
    for (int c = 0; c < kWarpKeys<d>; c += 16) {
      uint32_t b[2][2];  // K^T of 16 features and 2 x 8 keys
      fa::ldmatrix_x4(b, sK + c * d + (k ^ x));
      UNROLL
      for (int n = 0; n < 2; ++n) {
        UNROLL
        for (int t = 0; t < bands; ++t) fa::mma_m16n8k16(rS[t][c / 8 + n], rQ[t][x / kMma], b[n]);
      }
    }
  }
}

template <int bands, int n_tiles>
__device__ inline void mask(float (&rS)[bands][n_tiles][4],
                            const int (&visible)[bands][2],  // keys that this lane's rows see
                            int key) {                       // the tile's first key
  const int c = key + threadIdx.x % 4 * 2;
  UNROLL
  for (int i = 0; i < bands * 2 * n_tiles; ++i) {
    const int t = i / (2 * n_tiles), n = i % n_tiles, h = i / n_tiles % 2;
    if (n * 8 + c >= visible[t][h]) rS[t][n][2 * h] = -INFINITY;
    if (n * 8 + c + 1 >= visible[t][h]) rS[t][n][2 * h + 1] = -INFINITY;
  }
}

// --- merging the parts of a row ------------------------------------------------------------------

template <int d, int bands, int pad>
struct Parts {
  float O[kWarps][bands * kMma][d + pad];
  float m[kWarps][bands * kMma], l[kWarps][bands * kMma];
};

template <int d, int bands, int pad>
__device__ inline void store_statistics(const float (&m)[bands][2], const float (&l)[bands][2],
                                        Parts<d, bands, pad>& parts) {
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  UNROLL
  for (int i = 0; i < 2 * bands; ++i) {
    const int r = fa::row_of(lane) + 8 * i;
    const float row_l = fa::quad_sum(l[i / 2][i % 2]);
    if (fa::leads_quad(lane)) parts.m[warp][r] = m[i / 2][i % 2], parts.l[warp][r] = row_l;
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
    for (int n = 0; n < d / 8; ++n) {
      *reinterpret_cast<float2*>(&parts.O[warp][r][n * 8 + fa::column_of(lane)]) =
          make_float2(rO[t][n][2 * h], rO[t][n][2 * h + 1]);
    }
  }
}

// A block's shared memory: 96 KB of tiles, which the parts overwrite after the last one.
template <int d, int bands>
union Shared {
  struct {
    bf16 K[kStages][kTile], V[kStages][kTile];  // [kWarpKeys, d] swizzled
  } tiles[kWarps];
  Parts<d, bands, kPad> parts;
};

// Four adjacent features of a row, over all keys of its parts.
struct Merged {
  float O[4];                                 // normalised; 0 where no key was seen
  float LSE;                                  // in powers of two; -inf where no key was seen
  __device__ void finish(float m, float l) {  // from sums relative to m
    const float normalise = l > 0.f ? 1.f / l : 0.f;
    UNROLL
    for (int e = 0; e < 4; ++e) O[e] *= normalise;
    LSE = l > 0.f ? m + log2f(l) : -INFINITY;
  }
};

// A warp without keys has m = kNoMaximum and the factor 0; if none has keys, 1, and sums of 0.
template <int d, int bands, int pad>
__device__ inline Merged merge_warps(const Parts<d, bands, pad>& parts, int r, int x) {
  float m = kNoMaximum, l = 0.f;
  UNROLL
  for (int w = 0; w < kWarps; ++w) m = fmaxf(m, parts.m[w][r]);
  Merged row = {};
  UNROLL
  for (int w = 0; w < kWarps; ++w) {
    const float factor = fa::exp2_approx(parts.m[w][r] - m);
    const float4 O = *reinterpret_cast<const float4*>(&parts.O[w][r][x]);
    l += factor * parts.l[w][r];
    row.O[0] += factor * O.x, row.O[1] += factor * O.y;
    row.O[2] += factor * O.z, row.O[3] += factor * O.w;
  }
  row.finish(m, l);
  return row;
}

template <int d>
__device__ inline void store_row(const Merged& row, size_t r, int x, bf16* O, float* LSE) {
  *reinterpret_cast<uint2*>(O + r * d + x) =
      make_uint2(fa::pack_bf16(row.O[0], row.O[1]), fa::pack_bf16(row.O[2], row.O[3]));
  if (x == 0) LSE[r] = row.LSE * fa::kLn2;
}

// The parts of all splits, in fp32: only the final O is rounded to bf16.
struct SplitParts {
  float* O;    // [splits, B*H, N, d], normalised
  float* LSE;  // [splits, B*H, N], in powers of two; -inf where a row sees no key of the split

  template <int d>
  __device__ void store(const Merged& row, size_t r, int x) const {  // r: of all splits
    *reinterpret_cast<float4*>(O + r * d + x) = make_float4(row.O[0], row.O[1], row.O[2], row.O[3]);
    if (x == 0) LSE[r] = row.LSE;
  }

  // Merges row r of `splits` splits, `rows` apart; a split without keys has the factor 0.
  template <int d>
  __device__ Merged merge(int splits, size_t rows, size_t r, int x) const {
    float m = kNoMaximum, l = 0.f;
    for (int s = 0; s < splits; ++s) m = fmaxf(m, LSE[s * rows + r]);
    Merged all = {};
    UNROLL_BY(8)
    for (int s = 0; s < splits; ++s) {
      const float factor = fa::exp2_approx(LSE[s * rows + r] - m);  // l of the split, relative to m
      const float4 part = *reinterpret_cast<const float4*>(O + (s * rows + r) * d + x);
      l += factor;
      all.O[0] += factor * part.x, all.O[1] += factor * part.y;
      all.O[2] += factor * part.z, all.O[3] += factor * part.w;
    }
    all.finish(m, l);
    return all;
  }
};

// --- host ---------------------------------------------------------------------------------------

// How the rows of `group` query heads, which read the same keys, are divided among blocks.
struct Rows {
  Rows(const fa::Problem& p, int group) : count(group * p.N) {
    bands = std::min(fa::ceil_div(count, kMma), 2), blocks = fa::ceil_div(count, bands * kMma);
    per_block = std::min(count, bands * kMma), readers = p.H / group * blocks;
  }
  int count, bands, blocks, per_block, readers;  // readers: blocks that read each key of an entry
};

struct Splits {
  int count, keys;  // of a head; keys of each, in whole rounds
};

constexpr int kLeastTiles = 2;   // per warp and split: shorter ones do not pay
constexpr int kMergedRows = 25;  // rows of parts, merged in the time of one round: measured

// Enough splits s to give each SM one block, unless the merge costs more: T rounds in s splits cost
// T/s + s*merged/25, least at s = sqrt(25 T / merged), with `merged` rows per block.
inline Splits splits_of(const fa::Problem& p, const Rows& rows, int merged) {
  const int Bc = kWarps * kTile / p.d;
  int64_t rounds = 0;  // of all readers
  int longest = 1;     // of one
  for (int b = 0; b < p.B; ++b) {
    const int of_entry = fa::ceil_div(p.keys_of(b), Bc);
    rounds += int64_t(of_entry) * rows.readers, longest = std::max(longest, of_entry);
  }
  const int64_t fair = int64_t(longest) * p.gpu.sms / std::max<int64_t>(rounds, 1);
  const int64_t best = std::lround(std::sqrt(double(kMergedRows) * longest / merged));
  const int64_t most = std::max(1, longest / kLeastTiles);
  const int count = int(std::clamp<int64_t>(std::min(fair, best), 1, most));
  const int each = fa::ceil_div(longest, count);
  return {fa::ceil_div(longest, each), each * Bc};
}

// For the parts of all splits, and for a counter per block of rows where the last block merges.
inline std::vector<fa::Scratch> workspace_of(const fa::Problem& p, const Rows& rows, int merged,
                                             bool counts = false) {
  auto all = fa::parts_workspace(splits_of(p, rows, merged).count * p.rows(), p.d);
  const size_t counters = p.B * rows.readers * sizeof(unsigned);
  if (counts) all.push_back({.name = "arrived", .bytes = counters, .zeroed = true});
  return all;
}

// Of 3_groups and 4_pages.
inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  const Rows rows(p, p.H / p.Hkv);
  return workspace_of(p, rows, rows.per_block);
}

inline SplitParts parts_of(const fa::Tensors<bf16>& t) {
  return {t.scratch<float>("O_parts"), t.scratch<float>("LSE_parts")};
}
inline int log2_page(const fa::Problem& p) {
  return p.cache.page ? std::bit_width(unsigned(p.cache.page)) - 1 : 0;
}

// All bytes except the parts of splits. A lane looks up the page of 16 keys at once.
inline fa::Prediction traffic_of(const fa::Problem& p, const Rows& rows, const Splits& splits,
                                 int tile_keys) {
  const uint64_t all_rows = p.rows(), d = p.d;
  uint64_t keys = 0, padded = 0, blocks = 0;  // of all batch entries; padded: in whole tiles
  fa::Prediction t;
  for (int b = 0; b < p.B; ++b) {
    const int Nk = p.keys_of(b);
    keys += Nk, padded += fa::ceil_div(Nk, tile_keys) * tile_keys;
    blocks += std::max(1, fa::ceil_div(Nk, splits.keys)) * rows.readers;
    if (p.cache.page == 0) continue;
    t["table"].read += 4 * fa::kWarp * uint64_t(fa::ceil_div(Nk, kMma)) * rows.readers;
    t.hbm.read += 4 * fa::ceil_div(Nk, p.cache.page);
  }
  if (!p.cache.lengths.empty()) {  // blocks of empty splits read them, too
    t["lengths"].read = 4 * uint64_t(p.B) * splits.count * rows.readers * kThreads;
    t.hbm.read += 4 * p.B;
  }
  t["Q"].read = 2 * kWarps * blocks / rows.blocks * rows.count * d;  // by each warp
  t["K"].read = t["V"].read = 2 * rows.readers * keys * d;
  t["O"].write = 2 * all_rows * d, t["LSE"].write = 4 * all_rows;
  t.hbm += {.read = 2 * (all_rows + 2 * p.Hkv * keys) * d, .write = (2 * d + 4) * all_rows};
  t.flops = 4 * rows.readers * kMma * rows.bands * padded * d;  // including those of zeros
  return t;
}

}  // namespace step13

// Step 15 -- the backward of any mask, and of changed scores.
// Idea      Transposed lists of tiles of rows. A change of scores is applied again, and its
//           derivative multiplies dS
// Changed   since window_backward, whose kernel it runs: tiles and bits from lists; or changed
//           scores, with the cap's derivative; sink_kernel
// Traffic   requested as window_backward's formula, of visited tiles. Lists: per thread of a block
//           16 B of `key_work`; per head of the group 8 B of `row_entries` for each visited tile
//           and, for each cut one, 4 B and a bit for each of its scores. Sinks: 8 B per row, 4 B
//           per thread of sink_kernel
// Launch    delta; backward (tiles of keys * B*Hkv); convert; sinks (B*H)
// Owns      as window_backward
// Still bad mma.sync: no backward of changed scores by wgmma
#pragma once

#include "steps/15_masks/beyond/lists.cuh"
#include "steps/15_masks/beyond/scores.cuh"
#include "steps/15_masks/beyond/window_backward.cuh"

namespace step15_masks_backward {

using namespace step15_backward;
using step15::ListMaker, step15::TileLists, step15_scores::ScoreMod;

// --- any mask: lists -----------------------------------------------------------------------------

struct ListWork : KeyWork {
  int first, first_full, end;  // entries: from `first` on cut tiles, from first_full on full ones
};

// A thread tests 32 or 16 scores at a time, a word of bits: [patterns, Br / kRows, kThreads].
template <int d, int Br, int Bc>
constexpr int kParts = Br / Tiles<d, Br, Bc>::kRows;

template <int Br>
struct ListWalk {
  const int* entries;  // [visited tiles, 2]: the tile of rows; the pattern of its bits
  const int* bits;
  int first, first_full, end;

  __device__ int tile(int entry) const { return entries[2 * entry]; }

  template <int kBands, int Cols>
  __device__ void hide(float (&rS)[kBands][Cols / 8][4], int entry, int q, int, int) const {
    if (entry >= first_full) return;
    const size_t part = size_t(entries[2 * entry + 1]) * (Br / Cols) + q / Cols;
    const uint32_t word = bits[part * blockDim.x + threadIdx.x];
    UNROLL
    for (int t = 0; t < kBands; ++t) {
      UNROLL
      for (int m = 0; m < Cols / 8; ++m) {
        UNROLL
        for (int e = 0; e < 4; ++e) {
          if (!(word >> ((t * Cols / 8 + m) * 4 + e) & 1)) rS[t][m][e] = -INFINITY;
        }
      }
    }
  }
};

struct Lists {
  static constexpr bool kChangesScores = false;
  const int4* works;   // [of_heads, Tc]: the tile of keys, and ListWork's entries
  const int* entries;  // as ListWalk
  const int* bits;
  int N, Nk, of_heads;

  template <int Bc>
  __device__ ListWork key_work(int kv_heads, int* kv_head) const {
    *kv_head = blockIdx.x % kv_heads;
    const int Tc = gridDim.x / kv_heads;
    const int4 w = works[blockIdx.x / kv_heads + *kv_head % of_heads * Tc];
    return {{0, N, w.x * Bc, Nk - w.x * Bc, 0}, w.y, w.z, w.w};
  }
  template <int Br, int Bc>
  __device__ ListWalk<Br> walk(const ListWork& work) const {
    return {entries, bits, work.first, work.first_full, work.end};
  }
};

// --- changed scores ------------------------------------------------------------------------------

struct ScoredWork : KeyWork {
  int head;  // of its batch entry's queries: the group's first
};

template <int Br, int Bc>
struct ScoredWalk : Walk<Br, Bc> {
  ScoreMod mod;
  int head, left;

  __device__ ScoredWalk(const Window& window, const ScoredWork& work, const ScoreMod& of)
      : Walk<Br, Bc>(window, work), mod(of), head(work.head), left(window.left) {}

  // Row q's own key minus the lane's first key, of tile n.
  __device__ float back(int n, int q, int key) const {
    const int lane = threadIdx.x % fa::kWarp;
    const int own = n * Br + q + fa::column_of(lane) + this->low + left;
    return own - (key + fa::row_of(lane));
  }
  // The same of element e of fragment (t, n), minus back().
  __device__ static constexpr float step(int t, int n, int e) {
    return n * 8 + e % 2 - t * kMma - e / 2 * 8;
  }

  template <int kBands, int Cols>
  __device__ void hide(float (&rS)[kBands][Cols / 8][4], int n, int q, int key, int h) const {
    const float first = back(n, q, key), line = mod.alibi > 0.f ? mod.slope(head + h) : 0.f;
    UNROLL
    for (int t = 0; t < kBands; ++t) {
      UNROLL
      for (int n = 0; n < Cols / 8; ++n) {
        UNROLL
        for (int e = 0; e < 4; ++e) {
          float& s = rS[t][n][e];
          if (mod.cap > 0.f) s = mod.capped(s);
          if (mod.alibi > 0.f) s -= line * fabsf(first + step(t, n, e));
        }
      }
    }
    Walk<Br, Bc>::template hide<kBands, Cols>(rS, n, q, key, h);
  }

  template <int kBands, int Cols>
  __device__ void chain_rule(const float (&rP)[kBands][Cols / 8][4], const float* sLSE2,  // [Cols]
                             float (&rdS)[kBands][Cols / 8][4], int n, int q, int c, int h) const {
    if (mod.cap == 0.f) return;
    const int tx = fa::column_of(threadIdx.x % fa::kWarp);
    const float first = back(n, q, c);
    const float line = mod.alibi > 0.f ? mod.slope(head + h) / mod.scale * fa::kLog2e : 0.f;
    UNROLL
    for (int m = 0; m < Cols / 8; ++m) {
      const float2 row_lse = *reinterpret_cast<const float2*>(&sLSE2[m * 8 + tx]);
      UNROLL
      for (int t = 0; t < kBands; ++t) {
        UNROLL
        for (int e = 0; e < 4; ++e) {
          float s = fa::log2_approx(rP[t][m][e]) + (e % 2 ? row_lse.y : row_lse.x);
          if (mod.alibi > 0.f) s += line * fabsf(first + step(t, m, e));
          const float tanh = fminf(fmaxf(s * mod.per_cap, -1.f), 1.f);  // of P = 0: -1
          rdS[t][m][e] *= 1.f - tanh * tanh;
        }
      }
    }
  }
};

struct Scored : Packed {
  static constexpr bool kChangesScores = true;
  ScoreMod mod;
  int group;

  template <int Bc>
  __device__ ScoredWork key_work(int kv_heads, int* kv_head) const {
    return {Packed::key_work<Bc>(kv_heads, kv_head), *kv_head * group % mod.H};
  }
  template <int Br, int Bc>
  __device__ ScoredWalk<Br, Bc> walk(const ScoredWork& work) const {
    return {window, work, mod};
  }
};

constexpr int kSinkThreads = 256;

// dsinks = -sum of P delta over a head's rows, where P = e^(sink - LSE).
static __global__ void sink_kernel(const float* LSE2,   // [B*H, N]
                                   const float* delta,  // [B*H, N]
                                   const float* sinks,  // [H]
                                   float* dsinks,       // [B*H]
                                   int H, int N) {
  __shared__ float parts[kSinkThreads / fa::kWarp];
  const size_t bh = blockIdx.x;
  const float sink = sinks[bh % H] * fa::kLog2e;
  float sum = 0.f;
  for (int r = threadIdx.x; r < N; r += kSinkThreads) {
    sum -= fa::exp2_approx(sink - LSE2[bh * N + r]) * delta[bh * N + r];
  }
  sum = fa::warp_sum(sum);
  if (threadIdx.x % fa::kWarp == 0) parts[threadIdx.x / fa::kWarp] = sum;
  __syncthreads();  // all parts are complete
  if (threadIdx.x > 0) return;
  sum = 0.f;
  for (const float part : parts) sum += part;
  dsinks[bh] = sum;
}

}  // namespace step15_masks_backward

namespace step15_lists_backward {

using namespace step15_masks_backward;

template <int d, int Br, int Bc>
std::pair<int, int> score_of(int w, int b) {
  using T = Tiles<d, Br, Bc>;
  const int part = w / T::kThreads, warp = w % T::kThreads / fa::kWarp;
  const int t = b / 4 / (T::kRows / 8), n = b / 4 % (T::kRows / 8);
  if (t >= T::kBands) return {-1, -1};
  const auto [key, row] = fa::mma_d_element(w % fa::kWarp, b % 4);  // scores are transposed
  return {part * T::kRows + n * 8 + row, warp * T::kWarpKeys + t * kMma + key};
}

inline TileLists lists_of(const fa::Problem& p) {
  TileLists lists;
  dispatch_tiles(p, [&](auto d, auto Br, auto Bc) {
    constexpr int kWords = kParts<d, Br, Bc> * Tiles<d, Br, Bc>::kThreads;
    lists = ListMaker(p, {Br, Bc, /*by_keys=*/true, kWords, score_of<d, Br, Bc>})();
  });
  return lists;
}

inline std::vector<fa::Table> tables(const fa::Problem& p) {
  std::vector<fa::Table> all = step15_lists::tables(p);
  const TileLists lists = lists_of(p);
  all.push_back({"key_work", lists.work});
  all.push_back({"row_entries", lists.entries});
  all.push_back({"row_bits", lists.bits});
  return all;
}

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  return step15_backward::workspace(step15::in_one(p));
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  const TileLists lists = lists_of(p);
  const uint64_t BH = p.heads(), users = lists.users(p), d = p.d;
  fa::Prediction t = step15_backward::backward_traffic(step15::in_one(p));
  dispatch_tiles(p, [&](auto d_, auto Br, auto Bc) {
    using T = Tiles<d_, Br, Bc>;
    t["dO"].read = 2 * (BH * p.N + users * lists.rows) * d;  // delta; each tile of keys
    t["Q"].read = 2 * users * lists.rows * d;
    t["LSE2"].read = t["delta"].read = 4 * users * lists.rows;
    t["dQ_sum"].atomic = 4 * users * lists.visited() * Br * d;
    t["key_work"].read = sizeof(int4) * p.kv_heads() * fa::ceil_div(p.Nk, Bc) * T::kThreads;
    // Per tile: to copy it, to add its share of dQ, and the pattern of its bits.
    const uint64_t parts = kParts<d_, Br, Bc>;
    t["row_entries"].read =
        sizeof(int) * users * (2 * lists.visited() + parts * lists.cut) * T::kThreads;
    t["row_bits"].read = sizeof(int) * users * lists.cut * parts * T::kThreads;
    t.flops = users * 10 * Br * Bc * lists.visited() * d;
  });
  t.hbm.read += sizeof(int) * (lists.work.size() + lists.entries.size() + lists.bits.size());
  return t;
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const fa::Problem one = step15::in_one(p);
  const Lists mask = {t.scratch<const int4>("key_work"),
                      t.scratch<const int>("row_entries"),
                      t.scratch<const int>("row_bits"),
                      p.N,
                      p.Nk,
                      step15::different_heads(p)};
  launch(one, t, mask);
  step15_backward::convert(one, t);
}

}  // namespace step15_lists_backward

namespace step15_scores_backward {

using namespace step15_masks_backward;

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  fa::Prediction t = step15_packed_backward::backward_traffic(p);
  if (!p.score_mod.sinks) return t;
  const uint64_t BH = p.heads(), rows = p.rows();
  t["LSE2"].read += 4 * rows, t["delta"].read += 4 * rows;
  t["sinks"].read = 4 * BH * kSinkThreads, t["dsinks"].write = 4 * BH;
  t.hbm += {.read = 8 * rows + 4 * p.H, .write = 4 * BH};
  return t;
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const Packed packed{{window_of(p)}, t.scratch<const int>("key_work")};
  const ScoreMod mod = step15_scores::score_mod_of(p, t.sinks);
  launch(p, t, Scored{packed, mod, p.H / p.Hkv});
  step15_packed_backward::convert(p, t);
  if (!p.score_mod.sinks) return;
  fa::launch(sink_kernel, {dim3(p.heads()), dim3(kSinkThreads)}, t.scratch<float>("LSE2"),
             t.scratch<float>("delta"), t.sinks, t.dsinks, p.H, p.N);
}

}  // namespace step15_scores_backward

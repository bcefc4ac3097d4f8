// Step 15 -- the backward of any mask, and of changed scores.
// Idea      A block owns keys, so it walks the tiles of rows in transposed lists. A change of
//           scores is applied again, and its derivative multiplies dS
// Changed   since window_backward: a walk's tiles of rows are looked up in lists, and a test by
//           bits, in the order of the transposed scores; or scores change, and dS is multiplied by
//           the cap's derivative; sink_kernel. Comments there are not repeated
// Traffic   requested as window_backward's formula, of visited tiles. Lists: per thread of a block
//           16 B of `key_work`; per head of the group 8 B of `row_entries` for each visited tile
//           and, for each cut one, 4 B and a bit for each of its scores. Sinks: 8 B per row, 4 B
//           per thread of sink_kernel
// Launch    delta; backward (tiles of keys * B*Hkv); convert; sinks (B*H)
// Owns      block: dK and dV of 128 keys (64 where shared memory is short); warp: 32 or 16 of them
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
  const int4* works;   // [Tc]: the tile of keys, and ListWork's entries
  const int* entries;  // as ListWalk
  const int* bits;
  int N, Nk;

  template <int Bc>
  __device__ ListWork key_work(int kv_heads, int* kv_head) const {
    *kv_head = blockIdx.x % kv_heads;
    const int4 w = works[blockIdx.x / kv_heads];
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

  __device__ int tile(int n) const { return n; }
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
    Walk<Br, Bc>::template hide<kBands, Cols>(rS, n, q, key);
  }

  // dS times the cap's derivative. P was computed from log P + LSE and ALiBi's line.
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

template <int d, int Br, int Bc, class Mask>
__global__ void __launch_bounds__(Tiles<d, Br, Bc>::kThreads, d == 64 ? 2 : 1)
    backward_kernel(const bf16* Q,       // [B*H, N, d]
                    const bf16* K,       // [B*Hkv, Nk, d]
                    const bf16* V,       // [B*Hkv, Nk, d]
                    const bf16* dO,      // [B*H, N, d]
                    const float* LSE2,   // [B*H, N]
                    const float* delta,  // [B*H, N]
                    float* dQ_sum,       // [B*H, Np / 16, d / 8, 4, 32]; Np: N in whole tiles
                    bf16* dK,            // [B*Hkv, Nk, d]
                    bf16* dV,            // [B*Hkv, Nk, d]
                    Mask mask, int kv_heads, int group, int N, int Nk, int Tr, float scale) {
  // --- prologue: K_j and V_j stay in shared memory
  using T = Tiles<d, Br, Bc>;
  T& smem = *fa::dynamic_shared<T>();
  constexpr int kBands = T::kBands, kWarpKeys = T::kWarpKeys, kThreads = T::kThreads;
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int tx = fa::column_of(lane);  // this lane's first row
  int kv_head;
  const auto work = mask.template key_work<Bc>(kv_heads, &kv_head);
  const auto walk = mask.template walk<Br, Bc>(work);
  const size_t key0 = size_t(kv_head) * Nk + work.key;
  if (threadIdx.x == 0) {
    smem.first = walk.first, smem.end = walk.end;
    smem.row = size_t(kv_head) * group * N + work.row;
    smem.sums = size_t(kv_head) * group * Tr + work.sums;
    smem.key = key0, smem.rows = work.rows, smem.keys = work.keys;
  }
  __syncthreads();  // the block's numbers are visible
  load_tile<d, Bc, kThreads>(K + key0 * d, smem.K, work.keys);
  load_tile<d, Bc, kThreads>(V + key0 * d, smem.V, work.keys);
  const int key = warp * kWarpKeys;
  bf16 *sK = smem.K + key * d, *sV = smem.V + key * d;
  const float scale_log2 = scale * fa::kLog2e;
  float rdK[kBands][d / 8][4] = {}, rdV[kBands][d / 8][4] = {};

  // --- mainloop
  for (int h = 0; h < group; ++h) {
    auto load_rows = [&](int n) {
      const int i = walk.tile(n), stage = n % kStages, rows = smem.rows - i * Br, r = threadIdx.x;
      const size_t row0 = smem.row + size_t(h) * N + i * Br;
      load_tile<d, Br, kThreads>(Q + row0 * d, smem.Q[stage], rows);
      load_tile<d, Br, kThreads>(dO + row0 * d, smem.dO[stage], rows);
      if (r < Br) {  // past the end all are 0: P is 1 there, and adds 1 * 0
        fa::cp_async_4(&smem.LSE2[stage][r], LSE2 + row0 + r, r < rows ? 4 : 0);
        fa::cp_async_4(&smem.delta[stage][r], delta + row0 + r, r < rows ? 4 : 0);
      }
    };
    auto add_dQ = [&](int n) {
      query_gradient<d, Br, Bc>(smem.dS[n % kStages], smem.K,
                                dQ_sum + (smem.sums + size_t(h) * Tr + walk.tile(n)) * Br * d);
    };
    if (smem.first == smem.end) break;
    load_rows(smem.first);
    for (int step = smem.first; step < smem.end; ++step) {
      fa::cp_async_wait_all();
      __syncthreads();  // this tile has arrived; the previous one has been read, its dS is complete
      if (step + 1 < smem.end) load_rows(step + 1);
      const int stage = step % kStages;
      UNROLL
      for (int q = 0; q < Br; q += T::kRows) {
        const bf16 *sQ = smem.Q[stage] + q * d, *sdO = smem.dO[stage] + q * d;
        const float *sLSE2 = smem.LSE2[stage] + q, *sdelta = smem.delta[stage] + q;

        // P^T = exp(S^T - LSE), normalised at once: LSE holds both m and log l.
        float rP[kBands][T::kRows / 8][4] = {};
        dot_rows<d, kBands, T::kRows>(sK, sQ, rP);
        walk.template hide<kBands, T::kRows>(rP, step, q, key, h);
        UNROLL
        for (int n = 0; n < T::kRows / 8; ++n) {
          const float2 row_lse = *reinterpret_cast<const float2*>(&sLSE2[n * 8 + tx]);
          UNROLL
          for (int t = 0; t < kBands; ++t) {
            UNROLL
            for (int e = 0; e < 4; ++e) {
              rP[t][n][e] =
                  fa::exp2_approx(rP[t][n][e] * scale_log2 - (e % 2 ? row_lse.y : row_lse.x));
            }
          }
        }
        add_product<d, kBands, T::kRows>(rP, sdO, rdV);

        // dS^T = P^T (dP^T - delta): the sum of dP^T = V dO^T starts from -delta.
        float rdS[kBands][T::kRows / 8][4];
        UNROLL
        for (int n = 0; n < T::kRows / 8; ++n) {
          const float2 row_delta = *reinterpret_cast<const float2*>(&sdelta[n * 8 + tx]);
          UNROLL
          for (int t = 0; t < kBands; ++t) {
            UNROLL
            for (int e = 0; e < 4; ++e) rdS[t][n][e] = e % 2 ? -row_delta.y : -row_delta.x;
          }
        }
        dot_rows<d, kBands, T::kRows>(sV, sdO, rdS);
        UNROLL
        for (int t = 0; t < kBands; ++t) {
          UNROLL
          for (int n = 0; n < T::kRows / 8; ++n) {
            UNROLL
            for (int e = 0; e < 4; ++e) rdS[t][n][e] *= rP[t][n][e];
          }
        }
        if constexpr (Mask::kChangesScores) {
          walk.template chain_rule<kBands, T::kRows>(rP, sLSE2, rdS, step, q, key, h);
        }
        put_tile<Br, kBands, T::kRows>(rdS, smem.dS[stage] + key * Br, q, fa::pack_bf16);
        add_product<d, kBands, T::kRows>(rdS, sQ, rdK);
      }
      if (step > smem.first) add_dQ(step - 1);
    }
    __syncthreads();  // all warps are done with this head's tiles; the last dS is complete
    add_dQ(smem.end - 1);
  }

  // --- epilogue: dK and dV are staged in the warp's keys of K and V
  fa::cp_async_wait_all();  // where no row was walked, their copies may still be in flight
  __syncthreads();          // all warps are done with K
  const size_t at = (smem.key + key) * d;
  store_tile<d, kBands>(rdK, scale, sK, dK + at, smem.keys - key);
  store_tile<d, kBands>(rdV, 1.f, sV, dV + at, smem.keys - key);
}

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

// --- host ---------------------------------------------------------------------------------------

// delta_kernel and backward_kernel.
template <class Mask>
void launch(const fa::Problem& p, const fa::Tensors<bf16>& t, const Mask& mask) {
  float *delta = t.scratch<float>("delta"), *LSE2 = t.scratch<float>("LSE2");
  float* dQ_sum = t.scratch<float>("dQ_sum");
  const int BHkv = p.kv_heads(), Np = padded_rows(p);
  dispatch_tiles(p, [&](auto d, auto Br, auto Bc) {
    const dim3 grid(count_tiles(p, &fa::Document::keys, Bc) * BHkv);
    using T = Tiles<d, Br, Bc>;
    fa::launch(step08::delta_kernel<d>, row_blocks(p), t.O, t.dO, t.LSE, delta, LSE2, dQ_sum, p.N,
               Np);
    fa::launch(step15_masks_backward::backward_kernel<d, Br, Bc, Mask>,
               {grid, dim3(T::kThreads), sizeof(T)}, t.Q, t.K, t.V, t.dO, LSE2, delta, dQ_sum, t.dK,
               t.dV, mask, BHkv, p.H / p.Hkv, p.N, p.Nk, Np / Br, p.scale());
  });
}

}  // namespace step15_masks_backward

namespace step15_lists_backward {

using namespace step15_masks_backward;

// (row, key), in the tile, of the score of bit b of word w.
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
  const uint64_t BH = p.heads(), N = p.N, d = p.d, Np = padded_rows(step15::in_one(p));
  const TileLists lists = lists_of(p);
  fa::Prediction t;
  dispatch_tiles(p, [&](auto d_, auto Br, auto Bc) {
    using T = Tiles<d_, Br, Bc>;
    t["O"].read = t["dQ"].write = 2 * BH * N * d;
    t["dO"].read = 2 * BH * (N + lists.rows) * d;  // delta; each tile of keys
    t["Q"].read = 2 * BH * lists.rows * d;
    t["LSE"].read = 4 * BH * N;
    t["LSE2"] = t["delta"] = {.read = 4 * BH * lists.rows, .write = 4 * BH * N};
    t["K"].read = t["V"].read = t["dK"].write = t["dV"].write = 2 * p.kv_size();
    t["dQ_sum"] = {.read = 4 * BH * N * d,  // zeros first; tiles are added whole
                   .write = 4 * BH * Np * d,
                   .atomic = 4 * BH * lists.visited() * Br * d};
    t["key_work"].read = sizeof(int4) * p.kv_heads() * fa::ceil_div(p.Nk, Bc) * T::kThreads;
    // Per tile: to copy it, to add its share of dQ, and the pattern of its bits.
    const uint64_t parts = kParts<d_, Br, Bc>;
    t["row_entries"].read =
        sizeof(int) * BH * (2 * lists.visited() + parts * lists.cut) * T::kThreads;
    t["row_bits"].read = sizeof(int) * BH * lists.cut * parts * T::kThreads;
    t.flops = BH * 10 * Br * Bc * lists.visited() * d;
  });
  // An atomic reads what it adds to.
  const uint64_t tables = lists.work.size() + lists.entries.size() + lists.bits.size();
  t.hbm = {.read = 2 * (4 * BH * N * d + 2 * p.kv_size()) + 4 * BH * (3 * N + (Np + N) * d) +
                   sizeof(int) * tables,
           .write = 2 * (BH * N * d + 2 * p.kv_size()) + 4 * BH * (2 * N + 2 * Np * d)};
  return t;
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const fa::Problem one = step15::in_one(p);
  const Lists mask = {t.scratch<const int4>("key_work"), t.scratch<const int>("row_entries"),
                      t.scratch<const int>("row_bits"), p.N, p.Nk};
  step15_masks_backward::launch(one, t, mask);
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
  const Packed packed{window_of(p), t.scratch<const int>("key_work")};
  const ScoreMod mod = step15_scores::score_mod_of(p, t.sinks);
  step15_masks_backward::launch(p, t, Scored{packed, mod, p.H / p.Hkv});
  step15_packed_backward::convert(p, t);
  if (!p.score_mod.sinks) return;
  fa::launch(sink_kernel, {dim3(p.heads()), dim3(kSinkThreads)}, t.scratch<float>("LSE2"),
             t.scratch<float>("delta"), t.sinks, t.dsinks, p.H, p.N);
}

}  // namespace step15_scores_backward

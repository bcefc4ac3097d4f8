// Step 15 -- the backward of any mask: transposed lists.
// Idea      A block owns a tile of keys, so it needs the tiles of rows that see it: the same lists,
//           turned around, and the bits in the order of the transposed scores
// Changed   since 15 5_lists: own tiles are of keys; the order of the bits; the kernel of 2
// Traffic   requested as 2_window_backward, of visited tiles; and per thread of a block 16 B of
//           `key_work`, for each head of the group 8 B of `row_entries` for each visited tile and,
//           for each cut one, 4 B and a bit for each of its scores
// Launch    delta; backward (Tc * B*Hkv); convert
// Owns      as 2_window_backward
// Still bad as 5_lists
#pragma once

#include "steps/15_masks/2_window_backward.cuh"
#include "steps/15_masks/5_lists.cuh"

namespace step15_lists_backward {

using namespace step15_backward;
using step15::ListMaker, step15::TileLists;

struct ListWork : KeyWork {
  int first, full, last;  // entries: first .. full - 1 are cut, full .. last - 1 are not
};

// A thread has 32 scores at a time, or 16, and so a word of bits: [places, Br / kRows, kThreads].
template <int d, int Br, int Bc>
constexpr int kParts = Br / Tiles<d, Br, Bc>::kRows;

template <int Br>
struct ListWalk {
  const int* entries;  // [visited tiles, 2]: the tile of rows; the place of its bits
  const int* bits;
  int first, full, last;

  __device__ int tile(int n) const { return entries[2 * n]; }
  template <int kBands, int Cols>
  __device__ void chain_rule(const float (&)[kBands][Cols / 8][4], const float*,
                             float (&)[kBands][Cols / 8][4], int, int, int, int) const {}

  template <int kBands, int Cols>
  __device__ void hide(float (&rS)[kBands][Cols / 8][4], int n, int q, int, int) const {
    if (n >= full) return;
    const size_t part = size_t(entries[2 * n + 1]) * (Br / Cols) + q / Cols;
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
  const int4* works;   // [Tc]: the tile of keys, and ListWork's entries
  const int* entries;  // as ListWalk
  const int* bits;
  int N, Nk;

  template <int Bc>
  __device__ ListWork key_work(int kv_heads, int* kv_head) const {
    *kv_head = blockIdx.x % kv_heads;
    const int4 w = works[blockIdx.x / kv_heads];
    return {{{0, N, w.x * Bc, Nk - w.x * Bc}, 0}, w.y, w.z, w.w};
  }
  template <int Br, int Bc>
  __device__ ListWalk<Br> row_walk(const ListWork& work) const {
    return {entries, bits, work.first, work.full, work.last};
  }
};

// --- host ---------------------------------------------------------------------------------------

// Where the scores of a thread's bits lie in a tile.
template <int d, int Br, int Bc>
std::pair<int, int> place(int w, int b) {
  using T = Tiles<d, Br, Bc>;
  const int part = w / T::kThreads, warp = w % T::kThreads / fa::kWarp;
  const int t = b / 4 / (T::kRows / 8), n = b / 4 % (T::kRows / 8);
  if (t >= T::kBands) return {-1, -1};
  const auto [key, row] = fa::mma_d_element(w % fa::kWarp, b % 4);  // scores are transposed
  return {part * T::kRows + n * 8 + row, warp * T::kWarpKeys + t * kMma + key};
}

inline TileLists lists_of(const fa::Problem& p) {
  TileLists lists;
  dispatch_tiles<Tiles>(p, [&](auto d, auto Br, auto Bc) {
    constexpr int kWords = kParts<d, Br, Bc> * Tiles<d, Br, Bc>::kThreads;
    lists = ListMaker(p, {Br, Bc, /*by_keys=*/true, kWords, place<d, Br, Bc>})();
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

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d, Np = padded_rows(p);
  const TileLists lists = lists_of(p);
  fa::Prediction t;
  dispatch_tiles<Tiles>(p, [&](auto d_, auto Br, auto Bc) {
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
    // Of a tile: to copy it, to add its share of dQ, and the place of its bits.
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
  float *delta = t.scratch<float>("delta"), *LSE2 = t.scratch<float>("LSE2");
  float* dQ_sum = t.scratch<float>("dQ_sum");
  const int BHkv = p.kv_heads(), Np = padded_rows(p);
  const dim3 rows(row_blocks(p));
  const Lists mask = {t.scratch<const int4>("key_work"), t.scratch<const int>("row_entries"),
                      t.scratch<const int>("row_bits"), p.N, p.Nk};
  dispatch_tiles<Tiles>(p, [&](auto d, auto Br, auto Bc) {
    const dim3 grid(fa::ceil_div(p.Nk, Bc) * BHkv);
    using T = Shared<d, Br, Bc>;
    fa::launch(delta_kernel<d>, {rows, dim3(kRowThreads)}, t.O, t.dO, t.LSE, delta, LSE2, dQ_sum,
               p.N, Np);
    fa::launch(backward_kernel<d, Br, Bc, Lists>, {grid, dim3(T::kThreads), sizeof(T)}, t.Q, t.K,
               t.V, t.dO, LSE2, delta, dQ_sum, t.dK, t.dV, mask, BHkv, p.H / p.Hkv, p.N, p.Nk,
               Np / Br, p.scale());
    fa::launch(convert_kernel<d>, {rows, dim3(kRowThreads)}, dQ_sum, t.dQ, p.N, Np, p.scale());
  });
}

}  // namespace step15_lists_backward

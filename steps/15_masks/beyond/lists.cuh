// Step 15 -- any mask: lists of tiles, and a bit for each score of those that are cut.
// Idea      Which tiles a tile of rows visits is a list, first those that the mask cuts, which the
//           host computes from a function of row and key. The test of a cut tile is a bit per
//           score, in the order of the registers
// Changed   since 15 2_packed: tiles are looked up, too; a test by bits; the mask is a parameter
// Traffic   as 2_packed, of visited tiles; per thread 16 B of `work`, 4 B of `entries` per visited
//           tile and per cut one, Bc/8 B of `bits` per cut one
// Launch    grid (Tr * B*H), 128 threads; the longest walks of all heads first
// Owns      as 2_packed
// Still bad a warp's tensor core waits for its softmax: wgmma_lists
#pragma once

#include "steps/15_masks/1_window.cuh"  // its traffic
#include "steps/15_masks/beyond/list_maker.h"

namespace step15_lists {

using namespace step15;

// Words of a thread's bits: 4 bits per 16 x 8 scores of its warp, two rows by two keys.
template <int d>
constexpr int kWords = kBands* Bc<d> / 8 * 4 / 32;

template <int d>
struct ListWalk {
  const int* entries;          // [visited tiles, 2]: the tile of keys; the pattern of its bits
  const int* bits;             // [patterns, kThreads, kWords]
  int first, first_full, end;  // entries: from `first` on cut tiles, from first_full on full ones

  __device__ int tile(int entry) const { return entries[2 * entry]; }
  __device__ void start(float (&)[kBands][2], float (&)[kBands][2]) const {}
  __device__ void hide(float (&rS)[kBands][Bc<d> / 8][4], int entry, int) const {
    if (entry >= first_full) return;
    __align__(16) uint32_t words[kWords<d>];
    const int* from = bits + (size_t(entries[2 * entry + 1]) * kThreads + threadIdx.x) * kWords<d>;
    if constexpr (kWords<d> == 4) {
      *reinterpret_cast<uint4*>(words) = *reinterpret_cast<const uint4*>(from);
    } else {
      *reinterpret_cast<uint2*>(words) = *reinterpret_cast<const uint2*>(from);
    }
    UNROLL
    for (int t = 0; t < kBands; ++t) {
      UNROLL
      for (int n = 0; n < Bc<d> / 8; ++n) {
        const int bit = (t * Bc<d> / 8 + n) * 4;
        UNROLL
        for (int e = 0; e < 4; ++e) {
          if (!(words[bit / 32] >> (bit % 32 + e) & 1)) rS[t][n][e] = -INFINITY;
        }
      }
    }
  }
};

struct Lists {
  const int4* works;   // [of_heads, Tr]: the tile of rows, and its walk's first, first_full and end
  const int* entries;  // as ListWalk
  const int* bits;
  int N, Nk, of_heads;

  __device__ int4 work(int n, int kv_head) const {
    return works[n + kv_head % of_heads * ((N + Br - 1) / Br)];
  }
  __device__ int4 rows_of(const int4& work) const { return {work.x * Br, N - work.x * Br, 0, Nk}; }
  template <int d>
  __device__ ListWalk<d> walk(const int4& work, int) const {
    return {entries, bits, work.y, work.z, work.w};
  }
};

template <int d, class Mask>
__global__ void __launch_bounds__(kThreads, 2)
    flash_fwd_kernel(const bf16* Q,  // [B*H, N, d]
                     const bf16* K,  // [B*Hkv, Nk, d]
                     const bf16* V,  // [B*Hkv, Nk, d]
                     bf16* O,        // [B*H, N, d]
                     float* LSE,     // [B*H, N]
                     Mask mask, int heads, int group, int N, int Nk, float scale) {
  // --- prologue: which tile; copies of Q_i, and of K and V of the walk's first tile
  Shared<d>& smem = *fa::dynamic_shared<Shared<d>>();
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int bh = blockIdx.x % heads;
  const int4 work = mask.work(blockIdx.x / heads, bh / group);
  const auto [row, rows, key, keys] = mask.rows_of(work);
  const auto walk = mask.template walk<d>(work, bh);
  const size_t row0 = size_t(bh) * N + row;
  const size_t key0 = size_t(bh / group) * Nk + key;
  if (threadIdx.x == 0) smem.row = row0, smem.key = key0, smem.rows = rows;
  auto load_keys = [&, keys = keys](int j, size_t key0) {
    const int first = walk.tile(j) * Bc<d>, stage = j % kStages;
    load_tile<d, Bc<d>>(K + (key0 + first) * d, smem.K[stage], keys - first);
    load_tile<d, Bc<d>>(V + (key0 + first) * d, smem.V[stage], keys - first);
  };
  load_tile<d, Br>(Q + row0 * d, smem.Q, rows);
  if (walk.first < walk.end) load_keys(walk.first, key0);
  const float scale_log2 = scale * fa::kLog2e;  // exp(scale * s) = 2^(scale_log2 * s)
  const bf16* sQ = smem.Q + warp * kWarpRows * d;
  float rO[kBands][d / 8][4] = {}, l[kBands][2] = {};
  float m[kBands][2] = {{kNoMaximum, kNoMaximum}, {kNoMaximum, kNoMaximum}};
  walk.start(m, l);
  const int first_row = warp * kWarpRows + fa::row_of(lane);  // of this lane, in the tile

  // --- mainloop
  for (int j = walk.first; j < walk.end; ++j) {
    fa::cp_async_wait_all();
    __syncthreads();  // all copies of entry j have arrived, and all warps are done with entry j - 1
    if (j + 1 < walk.end) load_keys(j + 1, smem.key);
    float rS[kBands][Bc<d> / 8][4] = {};
    dot_rows<d, kBands, Bc<d>>(sQ, smem.K[j % kStages], rS);
    walk.hide(rS, j, warp * kWarpRows);
    update_maximum<d>(rS, scale_log2, m, l, rO);
    multiply_values<d>(rS, scale_log2, m, smem.V[j % kStages], l, rO);
  }

  // --- epilogue
  store_output<d>(smem, walk.first == walk.end, first_row, warp, lane, m, l, rO, O, LSE);
}

// --- host ---------------------------------------------------------------------------------------

inline fa::Support support() {
  fa::Support s = {.d = {64, 128}, .gqa = true, .cross = true, .window = true};
  s.documents = s.predicate = true;
  return s;
}

// (row, key), in the tile, of the score of bit b of word w.
template <int d>
std::pair<int, int> score_of(int w, int b) {
  const int thread = w / kWords<d>, fragment = w % kWords<d> * 8 + b / 4;
  const int t = fragment / (Bc<d> / 8), n = fragment % (Bc<d> / 8);
  const auto [row, key] = fa::mma_d_element(thread % fa::kWarp, b % 4);
  return {thread / fa::kWarp * kWarpRows + t * kMma + row, n * 8 + key};
}

inline TileLists lists_of(const fa::Problem& p) {
  return fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    return ListMaker(p, {Br, Bc<d>, /*by_keys=*/false, kThreads * kWords<d>, score_of<d>})();
  });
}

inline std::vector<fa::Table> tables(const fa::Problem& p) {
  const TileLists lists = lists_of(p);
  return {{"work", lists.work}, {"entries", lists.entries}, {"bits", lists.bits}};
}

inline fa::Prediction traffic(const fa::Problem& p) {
  const TileLists lists = lists_of(p);
  const uint64_t BH = p.heads(), users = lists.users(p), keys = p.d == 64 ? Bc<64> : Bc<128>;
  fa::Prediction t = step15_window::traffic(in_one(p));
  t["K"].read = t["V"].read = 2 * users * lists.keys * p.d;
  t["work"].read = sizeof(int4) * BH * fa::ceil_div(p.N, Br) * kThreads;
  t["entries"].read = sizeof(int) * users * (lists.visited() + lists.cut) * kThreads;
  t["bits"].read = users * lists.cut * Br * keys / 8;
  t.hbm.read += sizeof(int) * (lists.work.size() + lists.entries.size() + lists.bits.size());
  t.flops = users * 4 * Br * keys * lists.visited() * p.d;
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const unsigned BH = p.heads(), Tr = fa::ceil_div(p.N, Br);
  const Lists mask = {t.scratch<const int4>("work"),
                      t.scratch<const int>("entries"),
                      t.scratch<const int>("bits"),
                      p.N,
                      p.Nk,
                      different_heads(p)};
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    fa::launch(flash_fwd_kernel<d, Lists>, {dim3(Tr * BH), dim3(kThreads), sizeof(Shared<d>)}, t.Q,
               t.K, t.V, t.O, t.LSE, mask, int(BH), p.H / p.Hkv, p.N, p.Nk, p.scale());
  });
}

}  // namespace step15_lists

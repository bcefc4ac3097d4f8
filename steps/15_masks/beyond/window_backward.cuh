// Step 15 -- the backward of windows and packs; the kernel of lists and scores.
// Idea      The rows that see a tile of keys are adjacent. Their first and last tile follow from
//           the transposed edges. Tiles of dQ_sum begin with each document: a table gives rows
// Changed   since 08 5_atomics, whose comments are not repeated: causal becomes a window, or any
//           mask that gives a walk; gradients of keys that no row sees are 0; of a pack, keys and
//           rows are looked up, and dQ is converted tile by tile
// Traffic   requested read   2*BH*(2*N + 2*v)*d + 2*BHkv*2*Nk*d + 4*BH*(N*d + N + 2*v) B   v: rows
//                     write  2*BH*N*d + 2*BHkv*2*Nk*d + 4*BH*(Np*d + 2*N) B   visited by all tiles
//                     atomic 4*BH*t*Br*d B                   of keys; t: tiles of rows among them
//                     a pack 20 B of `key_work` per thread of a block, 8 B of `sum_rows` per thread
//                            that converts                  Np: N in whole tiles, per document
// Launch    delta; backward (key tiles * B*Hkv), 256 threads (d = 128, 128 keys) or 128; convert
// Owns      block: dK and dV of 128 keys (64 where shared memory is short); warp: 32 or 16 of them
// Still bad mma.sync: wgmma_backward on Hopper
#pragma once

#include "steps/08_tensor_core_backward/5_atomics.cuh"  // delta, dQ of a tile, convert, as a whole
#include "steps/15_masks/2_packed.cuh"                  // longest_first

namespace step15_backward {

using namespace step15;
using fa::add_product, fa::put_tile, fa::store_tile, step08::kRowThreads, step08::query_gradient;

// A block's tile of keys. Row r's own key is r + keys - rows, counted from the tile's first one.
struct KeyWork {
  int row, rows;  // the document's first row, and how many it has
  int key, keys;  // the tile's first key, and how many are left in the document
  int sums;       // the tile of dQ_sum where the document's rows begin
};

// The tiles of rows that see some of a block's keys, and the test in those that are cut.
template <int Br, int Bc>
struct Walk {
  int low, high;   // row r sees the tile's keys from r + low up to, but not including, r + high
  int keys;        // of the document, from the tile's first one on
  int first, end;  // tiles of rows of the document: first .. end - 1
  __device__ Walk(const Window& window, const KeyWork& w)
      : low(w.keys - w.rows - window.left), high(w.keys - w.rows + window.right + 1), keys(w.keys) {
    // From the first row whose right edge is past key 0 of the tile, r + high > 0, to the last row
    // whose left edge is not past the tile's last key, r + low < min(Bc, keys).
    const int first_row = max(0, 1 - high), end_row = min(w.rows, min(Bc, keys) - low);
    first = first_row / Br;
    end = first_row < end_row ? (end_row + Br - 1) / Br : first;
  }
  __device__ int tile(int n) const { return n; }

  // Hides scores that their row does not see, if an edge cuts the warp's keys and rows from q on.
  template <int kBands, int Cols>
  __device__ void hide(float (&rS)[kBands][Cols / 8][4], int tile, int q, int warp_key, int) const {
    const int row = tile * Br + q, lane = threadIdx.x % fa::kWarp;
    if (row + Cols - 1 + low <= warp_key && min(keys, row + high) >= warp_key + kBands * kMma) {
      return;
    }
    UNROLL
    for (int t = 0; t < kBands; ++t) {
      UNROLL
      for (int n = 0; n < Cols / 8; ++n) {
        UNROLL
        for (int e = 0; e < 4; ++e) {
          const int r = row + fa::column_of(lane) + n * 8 + e % 2;
          const int c = warp_key + fa::row_of(lane) + t * kMma + e / 2 * 8;
          if (c < r + low || c >= min(keys, r + high)) rS[t][n][e] = -INFINITY;
        }
      }
    }
  }
};

struct Windowed {
  static constexpr bool kChangesScores = false;
  Window window;

  template <int Br, int Bc>
  __device__ Walk<Br, Bc> walk(const KeyWork& work) const {
    return {window, work};
  }
};

struct OneDocument : Windowed {
  int rows, keys;
  bool grows;  // window.right is limited: the last keys have the shortest walks

  // The block's tile of keys and key head: all heads' longest walks first, if they differ.
  template <int Bc>
  __device__ KeyWork key_work(int kv_heads, int* kv_head) const {
    const int Tc = gridDim.x / kv_heads, b = blockIdx.x;
    const int j = grows ? b / kv_heads : b % Tc;
    *kv_head = grows ? b % kv_heads : b / Tc;
    return {0, rows, j * Bc, keys - j * Bc, 0};
  }
};

struct Packed : Windowed {
  const int* works;  // [tiles, 5]: KeyWork of each

  template <int Bc>
  __device__ KeyWork key_work(int kv_heads, int* kv_head) const {
    *kv_head = blockIdx.x % kv_heads;
    const int* w = works + blockIdx.x / kv_heads * 5;
    return {w[0], w[1], w[2], w[3], w[4]};
  }
};

template <int d, int Br, int Bc>
struct Tiles : step08::Tiles<d, Br, Bc> {
  int first, end;  // of the walk
  size_t row;      // the document's first, of the group's first head
  size_t sums;     // where the document's tiles of dQ_sum begin, of the same head
  size_t key;      // the block's first
  int rows, keys;  // of the document; of keys those from the block's first one on
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
  const int tx = fa::column_of(lane);
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
  const int key = warp * kWarpKeys;  // the warp's first, in the tile
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
      if (r < Br) {
        fa::cp_async_4(&smem.LSE2[stage][r], LSE2 + row0 + r, r < rows ? 4 : 0);
        fa::cp_async_4(&smem.delta[stage][r], delta + row0 + r, r < rows ? 4 : 0);
      }
    };
    auto add_dQ = [&](int n) {
      query_gradient<d, Br, Bc>(smem.dS[n % kStages], smem.K,
                                dQ_sum + (smem.sums + size_t(h) * Tr + walk.tile(n)) * Br * d);
    };
    if (smem.first == smem.end) break;  // no row sees the block's keys
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

// --- host ---------------------------------------------------------------------------------------

// How many tiles all documents have, per head: tiles of rows (of = &fa::Document::rows) or of keys.
inline unsigned count_tiles(const fa::Problem& p, fa::Range fa::Document::*of, int size) {
  unsigned tiles = 0;
  for (const fa::Document& doc : p.documents()) tiles += fa::ceil_div((doc.*of).size(), size);
  return tiles;
}

template <class F>
void dispatch_tiles(const fa::Problem& p, F&& f) {
  step08::dispatch_tiles<Tiles>(p, f);
}

inline int padded_rows(const fa::Problem& p) {
  int rows = 0;
  dispatch_tiles(p, [&](int, int Br, int) { rows = count_tiles(p, &fa::Document::rows, Br) * Br; });
  return rows;
}

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  const size_t sums = p.heads() * padded_rows(p) * p.d;
  return {{"delta", 4 * p.rows()}, {"LSE2", 4 * p.rows()}, {"dQ_sum", 4 * sums}};
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  fa::Prediction t = step08::backward_traffic(p);
  const uint64_t more = 4 * p.heads() * (padded_rows(p) - step08::padded_rows(p)) * p.d;
  t["dQ_sum"].write += more;
  t.hbm += {.read = more, .write = 2 * more};
  return t;
}

inline fa::LaunchConfig row_blocks(const fa::Problem& p) {
  return {dim3(unsigned(p.heads() * padded_rows(p) * (p.d / 8) / kRowThreads)), dim3(kRowThreads)};
}

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
    fa::launch(backward_kernel<d, Br, Bc, Mask>, {grid, dim3(T::kThreads), sizeof(T)}, t.Q, t.K,
               t.V, t.dO, LSE2, delta, dQ_sum, t.dK, t.dV, mask, BHkv, p.H / p.Hkv, p.N, p.Nk,
               Np / Br, p.scale());
  });
}

inline void convert(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    fa::launch(step08::convert_kernel<d>, row_blocks(p), t.scratch<float>("dQ_sum"), t.dQ, p.N,
               padded_rows(p), p.scale());
  });
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const bool grows = p.causal || p.mask.right != fa::Mask::kNoLimit;
  launch(p, t, OneDocument{{window_of(p)}, p.N, p.Nk, grows});
  convert(p, t);
}

}  // namespace step15_backward

namespace step15_packed_backward {

using namespace step15_backward;

template <int d, int Br>
__global__ void convert_kernel(const float* dQ_sum,   // [B*H, tiles * Br / 16, d / 8, 4, 32]
                               bf16* dQ,              // [B*H, N, d]
                               const int2* sum_rows,  // [tiles]: first row, rows from there on
                               int N, int Np, float scale) {
  const int v = threadIdx.x, x = v / 8 % (d / 8), half = v / d % 2;  // of a band's 16 rows
  const size_t band = size_t(blockIdx.x) * (kRowThreads / (2 * d)) + v / (2 * d);
  const int2 rows = sum_rows[band * 16 % Np / Br];
  const int r = band * 16 % Br + half * 8 + v % 8;  // of the tile
  if (r >= rows.y) return;
  const float* from = dQ_sum + (band * (d / 8) + x) * 128 + half * 64 + v % 8 * 4;
  const float4 even = *reinterpret_cast<const float4*>(from);
  const float4 odd = *reinterpret_cast<const float4*>(from + fa::kWarp);
  *reinterpret_cast<uint4*>(dQ + (band * 16 / Np * N + rows.x + r) * d + x * 8) = make_uint4(
      fa::pack_bf16(even.x * scale, odd.x * scale), fa::pack_bf16(even.y * scale, odd.y * scale),
      fa::pack_bf16(even.z * scale, odd.z * scale), fa::pack_bf16(even.w * scale, odd.w * scale));
}

// Per tile of Br rows of each document: its first row, and how many rows follow in the document.
inline fa::Table sum_rows_of(const fa::Problem& p, int Br) {
  fa::Table table{"sum_rows", {}};
  for (const fa::Document& doc : p.documents()) {
    for (int r = doc.rows.first; r < doc.rows.last; r += Br) {
      table.values.insert(table.values.end(), {r, doc.rows.last - r});
    }
  }
  return table;
}

inline std::vector<fa::Table> tables(const fa::Problem& p) {
  fa::Table work, sum_rows;
  dispatch_tiles(p, [&](int, int Br, int Bc) {
    std::vector<std::vector<int>> tiles;  // KeyWork of each, and how many rows see it
    int sums = 0;
    for (const fa::Document& doc : p.documents()) {
      for (int c = doc.keys.first; c < doc.keys.last; c += Bc) {
        const int first = p.seen_by(c).first, keys = doc.keys.last - c;
        const int last = p.seen_by(std::min(c + Bc, doc.keys.last) - 1).last;
        tiles.push_back({doc.rows.first, doc.rows.size(), c, keys, sums, last - first});
      }
      sums += fa::ceil_div(doc.rows.size(), Br);
    }
    work = {"key_work", step15_packed::longest_first(tiles)}, sum_rows = sum_rows_of(p, Br);
  });
  return {work, sum_rows};
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), d = p.d, Np = padded_rows(p);
  fa::Prediction t = step15_backward::backward_traffic(p);
  dispatch_tiles(p, [&](auto d_, auto Br, auto Bc) {
    const uint64_t tiles = count_tiles(p, &fa::Document::keys, Bc);
    t["key_work"].read = 5 * sizeof(int) * Tiles<d_, Br, Bc>::kThreads * tiles * p.kv_heads();
    t["sum_rows"].read = sizeof(int2) * BH * Np * (d / 8);
    t.hbm.read += 5 * sizeof(int) * tiles + sizeof(int2) * Np / Br;
  });
  return t;
}

inline void convert(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  dispatch_tiles(p, [&](auto d, auto Br, int) {
    fa::launch(step15_packed_backward::convert_kernel<d, Br>, row_blocks(p),
               t.scratch<float>("dQ_sum"), t.dQ, t.scratch<const int2>("sum_rows"), p.N,
               padded_rows(p), p.scale());
  });
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  launch(p, t, Packed{{window_of(p)}, t.scratch<const int>("key_work")});
  step15_packed_backward::convert(p, t);
}

}  // namespace step15_packed_backward

// Step 11 -- what a block walks through, and where it adds dQ.
// Idea      A block owns 128 keys and walks the tiles of rows that see them. It adds each tile's dQ
//           to sums in HBM, which lie in the order of the registers: a lane adds 16 bytes at once,
//           a warp 512 adjacent bytes
// Changed   since 10 2_warpgroup: a work tile has keys and walks rows, instead of the reverse; the
//           sums of dQ
#pragma once

#include <algorithm>

#include "common/dialect/ptx/barrier.h"
#include "common/dialect/ptx/reduce.h"
#include "steps/11_hopper_backward/1_products.cuh"

namespace step11 {

constexpr int Br = 128;     // rows of a tile of Q and dO
constexpr int kStages = 2;  // of Q and dO

// What is the same for all blocks.
struct Shape {
  int kv_heads, group;  // heads of K and V; how many of Q share each
  int Np, Nk, Tr, Tc;   // Np: N in whole tiles of 128; Tr, Tc: tiles of rows, of keys
  int shift;            // row r sees the keys up to r + shift
  int section;          // heads whose work tiles are mixed, longest walks first
  float scale;
};

// 128 keys of a head, and the tiles of rows that see them.
struct WorkTile {
  int bh_kv, j;     // head of K and V, tile of keys
  int head, first;  // the first of Q's heads, and of its tiles of rows
};

// Causal: the longest walks of a section first, whose Q, dO and dQ_sum stay in the L2.
__device__ inline WorkTile work_tile_at(int t, const Shape& p, int tile_rows = Br, int keys = Bc) {
  const int first = t / (p.section * p.Tc) * p.section;
  const int heads = min(p.section, p.kv_heads - first), rank = t - first * p.Tc;
  const int bh_kv = first + rank % heads, j = rank / heads;
  return {bh_kv, j, bh_kv * p.group, max(0, j * keys - p.shift) / tile_rows};
}

// A tile of rows on the walk, which visits all heads that share the keys.
struct RowTile {
  int head, i;  // of Q; tile of rows
  __device__ RowTile(const WorkTile& work) : head(work.head), i(work.first) {}
  __device__ void next(const WorkTile& work, int Tr) {
    if (++i == Tr) ++head, i = work.first;
  }
};

// How many rows, from `row` on, do not see the key.
__device__ inline int hidden(const Shape& p, int key, int row) {
  return key >= p.Nk ? Br : key - p.shift - row;
}

// --- a block's keys ------------------------------------------------------------------------------

// K or V of the block, a tile for each warpgroup. One thread calls.
template <int n>
__device__ inline void load_keys(bf16 (&to)[kGroups][n], uint64_t* full, const fa::TensorMap* from,
                                 const WorkTile& work) {
  fa::mbarrier_arrive_expect_tx(full, sizeof to);
  for (int wg = 0; wg < kGroups; ++wg) {
    fa::tma_load(to[wg], from, full, {0, work.j * Bc + wg * kGroupKeys, 0, work.bh_kv});
  }
}

// dK and dV of a warpgroup, which have taken the place of its K and V. All its threads call; one
// copies.
template <int n>
__device__ inline void store_keys(const fa::TensorMap* dK, const fa::TensorMap* dV,
                                  const bf16 (&sdK)[kGroups][n], const bf16 (&sdV)[kGroups][n],
                                  int wg, int thread, int key, int Nk, int bh_kv) {
  fa::fence_proxy_async();              // TMA reads what this thread has written ...
  fa::bar_sync(1 + wg, kGroupThreads);  // ... and what the warpgroup's others have
  if (thread == 0 && key < Nk) {
    fa::tma_store(dK, sdK[wg], {0, key, 0, bh_kv});
    fa::tma_store(dV, sdV[wg], {0, key, 0, bh_kv});
    fa::tma_store_commit();
    fa::tma_store_wait_read<0>();  // a block's memory must stay until it has been read
  }
}

// --- dQ's sums -----------------------------------------------------------------------------------

// dQ's sums over the tiles of keys, in HBM, in the order of the registers.
struct FloatSums {
  float* sums;  // [B*H * Np / 64, 4, d / 8, 32, 4]

  // A lane's part of 64 rows, which a warpgroup multiplies.
  struct Part {
    float* at;

    // No result is used, so each is a RED, and no thread waits for it.
    template <int n>
    __device__ void add(const float (&rdQ)[n]) const {
      UNROLL
      for (int x = 0; x < n / 4; ++x) {
        fa::red_add_v4(at + x * fa::kWarp * 4, rdQ[4 * x], rdQ[4 * x + 1], rdQ[4 * x + 2],
                       rdQ[4 * x + 3]);
      }
    }
    __device__ float4 get(int x) const {
      return *reinterpret_cast<const float4*>(at + x * fa::kWarp * 4);
    }
    __device__ float4 get_l2(int x) const { return fa::load_l2(at + x * fa::kWarp * 4); }
  };
  // Those of a walk.
  template <int d>
  __device__ const FloatSums& of_walk(const Shape&, const WorkTile&) const {
    return *this;
  }
  // half: which 64 rows, counted over all heads. feature: the first, a multiple of 8.
  template <int d>
  __device__ Part part(int half, int feature = 0) const {
    const int warp = threadIdx.x % kGroupThreads / fa::kWarp, lane = threadIdx.x % fa::kWarp;
    const int group = (warp * d + feature) / 8;
    return {sums + size_t(half) * kGroupKeys * d + (group * fa::kWarp + lane) * 4};
  }
};

// --- host ----------------------------------------------------------------------------------------

inline int padded_rows(const fa::Problem& p) { return fa::ceil_div(p.N, Br) * Br; }
// rows, keys: of a tile.
inline Shape shape_of(const fa::Problem& p, int rows = Br, int keys = Bc) {
  const size_t l2 = size_t(p.d == 256 ? 32 : 16) << 20;  // bytes that a section's heads may need
  const size_t head = 8 * size_t(p.d) * p.N * (p.H / p.Hkv);  // Q, dO: 2 bytes each; dQ_sum: 4
  return {.kv_heads = int(p.kv_heads()),
          .group = p.H / p.Hkv,
          .Np = padded_rows(p),
          .Nk = p.Nk,
          .Tr = fa::ceil_div(p.N, rows),
          .Tc = fa::ceil_div(p.Nk, keys),
          .shift = p.causal ? p.Nk - p.N : 1 << 29,
          .section = p.causal ? int(std::clamp<size_t>(l2 / head, 1, p.kv_heads())) : 1,
          .scale = p.scale()};
}

}  // namespace step11

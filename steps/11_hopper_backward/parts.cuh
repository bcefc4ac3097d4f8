// Step 11: what all its kernels share.
//
// A warpgroup owns 64 keys. S^T = K Q^T and dP^T = V dO^T have keys as rows, so P^T and dS^T are
// already in the registers of dV's and dK's A operand. dQ sums over all keys, so dS^T also goes to
// shared memory, where wgmma reads it transposed.
//
// Registers of a lane, for its keys k and k + 8 (k = 16 warp + row_of(lane)):
//
//     rX[i]       key k + 8 half_of(i), row     column_of(lane) + column_at(i); S, P, dP, dS
//     rdK[i]      key k + 8 half_of(i), feature column_of(lane) + column_at(i); rdV, too
//     rP[r]       rows 16 r .. 16 r + 15, packed as wgmma's A: P, then dS
//     rdQ[i]      as rdK, but of rows of Q instead of keys
#pragma once

#include <algorithm>

#include "common/dialect/cuda.h"
#include "common/dialect/fragment.h"
#include "common/dialect/ptx/barrier.h"
#include "common/dialect/ptx/math.h"
#include "common/dialect/ptx/mbarrier.h"
#include "common/dialect/ptx/more/dependent.h"
#include "common/dialect/ptx/more/tma.h"
#include "common/dialect/ptx/more/wgmma.h"
#include "common/dialect/ptx/reduce.h"
#include "common/dialect/warpgroup.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"

namespace step11 {

using fa::bf16;
using fa::distance, fa::init_mbarriers, fa::pack_operand, fa::put_rows;
using fa::kGroupThreads, fa::kMma, fa::kPanel, fa::kRowBytes;  // 128, 16, 64, 128
using fa::multiply_features, fa::multiply_rows, fa::multiply_transposed, fa::tile_descriptor;
using fa::wait_for, fa::warp_arrive;

constexpr int kGroups = 2;                // warpgroups that own keys
constexpr int kGroupKeys = 64;            // of a warpgroup, and rows of a wgmma
constexpr int Bc = kGroups * kGroupKeys;  // keys of a block
// Rows of a tile of Q and dO in 1_wgmma and 2_late; all pad dQ_sum to tiles of 128.
constexpr int Br = 128;

// --- a block's walk ------------------------------------------------------------------------------

struct Shape {
  int kv_heads, group;  // heads of K and V; how many of Q share each
  int Np, Nk, Tr, Tc;   // Np: N in whole tiles of 128; Tr, Tc: tiles of rows, of keys
  int shift;            // row r sees the keys up to r + shift
  int section;          // heads whose work tiles are mixed; causal: see shape_of()
  float scale;
};

// 128 keys of a head, and the tiles of rows that see them.
struct WorkTile {
  int bh_kv, j;     // head of K and V, tile of keys
  int head, first;  // the first of Q's heads, and of its tiles of rows
};

// Causal: a section's longest walks first. Q, dO, dQ_sum of a query head per head of K fit the L2.
__device__ inline WorkTile work_tile_at(int t, const Shape& p, int tile_rows) {
  const int first = t / (p.section * p.Tc) * p.section;
  const int heads = min(p.section, p.kv_heads - first), rank = t - first * p.Tc;
  const int bh_kv = first + rank % heads, j = rank / heads;
  return {bh_kv, j, bh_kv * p.group, max(0, j * Bc - p.shift) / tile_rows};
}

// A tile of rows on the walk, which visits all heads that share the keys.
struct RowTile {
  int head, i;  // of Q; tile of rows
  __device__ RowTile(const WorkTile& work, const Shape&) : head(work.head), i(work.first) {}
  __device__ void next(const WorkTile& work, const Shape& shape) {
    if (++i == shape.Tr) ++head, i = work.first;
  }
};

// Copies the block's K or V, a tile per warpgroup. By one thread.
template <int n>
__device__ inline void load_keys(bf16 (&to)[kGroups][n], uint64_t* full, const fa::TensorMap* from,
                                 const WorkTile& work) {
  fa::mbarrier_arrive_expect_tx(full, sizeof to);
  for (int wg = 0; wg < kGroups; ++wg) {
    fa::tma_load(to[wg], from, full, {0, work.j * Bc + wg * kGroupKeys, 0, work.bh_kv});
  }
}

// Stores a warpgroup's dK and dV, which have replaced its K and V. By all its threads.
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
    fa::tma_store_wait_read<0>();  // shared memory must outlive the copies
  }
}

// Descriptors of the tiles of a block's shared memory, Tiles: that of its first one, K, plus these.
template <class Tiles, int d, int rows, int wg>
struct Distances {
  static constexpr size_t kMine = wg * kGroupKeys * d * 2;
  static constexpr uint64_t kK = distance(kMine), kV = distance(offsetof(Tiles, V) + kMine);
  static constexpr uint64_t kQ = distance(offsetof(Tiles, Q)), kDo = distance(offsetof(Tiles, dO));
  static constexpr uint64_t kQRows = distance(offsetof(Tiles, Q), rows* kRowBytes);  // MN-major
  static constexpr uint64_t kDoRows = distance(offsetof(Tiles, dO), rows* kRowBytes);
  static constexpr uint64_t kStageOf = rows * d * 2 >> 4;  // from stage to stage
};

// --- between the products ------------------------------------------------------------------------

// How many rows, from `row` on, do not see the key; past the last key a whole tile or more.
__device__ inline int hidden(const Shape& p, int key, int row) {
  return key >= p.Nk ? Br : key - p.shift - row;
}

// Hides scores. hidden0, hidden1: hidden() of the lane's first row, for its first and second key.
// Past the last row P is 0, since LSE2 is inf there, or the column of -LSE / scale is -1e30.
template <int n>
__device__ inline void mask(float (&rS)[n], int hidden0, int hidden1) {
  UNROLL
  for (int i = 0; i < n; ++i) {
    if (fa::column_at(i) < (fa::half_of(i) ? hidden1 : hidden0)) rS[i] = -INFINITY;
  }
}

// rX = P rX, two elements. pair: their P in bf16, as dV multiplies it, the first in the lower half.
__device__ inline void multiply_by_p(uint32_t pair, float& first, float& second) {
  first *= __uint_as_float(pair << 16);
  second *= __uint_as_float(pair & 0xffff0000u);
}

// Stores dS^T of the warp's 16 keys: [rows / 64][Bc][64], panels of 64 rows, swizzled.
template <int depth>
__device__ inline void put_ds(const uint32_t (&rdS)[depth][4], bf16* sdS) {
  const int lane = threadIdx.x % fa::kWarp;
  const int key = threadIdx.x / fa::kWarp * 16 + lane % 16;
  const int at = key * kPanel + (lane / 16 ^ key % 8) * 8;  // of rows 0 .. 15: swizzled
  UNROLL
  for (int r = 0; r < depth * kMma; r += kMma) {
    fa::stmatrix_x4(sdS + r / kPanel * Bc * kPanel + (at ^ r % kPanel), rdS[r / kMma]);
  }
}

// dQ's sums over the tiles of keys, in HBM, in register order: a lane adds 16 bytes, a warp 512.
struct FloatSums {
  float* sums;  // [B*H * Np / 64, warp 4, d / 8, lane 32, 4]

  // A lane's part of the 64 rows that a warpgroup multiplies.
  struct Part {
    float* at;

    // RED: an addition without a result, so no thread waits for it.
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
  };
  // half: which 64 rows, counted over all heads. feature: the first that is multiplied, 8 n.
  template <int d>
  __device__ Part part(int half, int feature = 0) const {
    const int warp = threadIdx.x % kGroupThreads / fa::kWarp, lane = threadIdx.x % fa::kWarp;
    const int group = (warp * d + feature) / 8;  // of 8 features
    return {sums + size_t(half) * kGroupKeys * d + (group * fa::kWarp + lane) * 4};
  }
};

// --- the kernels before and after ----------------------------------------------------------------

constexpr int kRowThreads = 256;  // of a block

// The lanes of the preceding kernel: d / 8 of them own a row, padded rows included.
template <int d>
struct RowLanes {
  static constexpr int kLanes = d / 8, kRows = kRowThreads / kLanes;  // rows of a block
  int head, r, lane;                                                  // r: row of the head
  size_t padded, row;                                                 // of [B*H, Np], of [B*H, N]
  bool inside;

  // A block has rows of one head, the last first: the L2 keeps what the next kernel reads first.
  __device__ RowLanes(int N, int Np)
      : head((gridDim.x - 1 - blockIdx.x) / (Np / kRows)),
        r(blockIdx.x % (Np / kRows) * kRows + threadIdx.x / kLanes),
        lane(threadIdx.x % kLanes),
        padded(size_t(head) * Np + r),
        row(size_t(head) * N + r),
        inside(r < N) {}
  // rowsum(dO * O), in all lanes.
  __device__ float delta(const bf16* O, const bf16* dO) const {
    float sum = 0.f;
    if (inside) {
      __align__(16) bf16 o[8], g[8];
      *reinterpret_cast<uint4*>(o) = reinterpret_cast<const uint4*>(O + row * d)[lane];
      *reinterpret_cast<uint4*>(g) = reinterpret_cast<const uint4*>(dO + row * d)[lane];
      UNROLL
      for (int x = 0; x < 8; ++x) sum += __bfloat162float(o[x]) * __bfloat162float(g[x]);
    }
    return fa::warp_sum<kLanes>(sum);
  }
  // LSE; -inf for a row without a key, or a padded one.
  __device__ float lse(const float* LSE) const { return inside ? LSE[row] : -INFINITY; }
  __device__ void clear(float* dQ_sum) const {
    float4* zero = reinterpret_cast<float4*>(dQ_sum + padded * d) + lane;
    zero[0] = make_float4(0.f, 0.f, 0.f, 0.f);
    zero[kLanes] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
};

// dQ = scale * dQ_sum, rounded and in order. A lane holds every fourth pair of 32 features of rows
// r and r + 8. The last head runs first, because it is still in the L2.
template <int d>
__device__ inline void convert(const FloatSums& dQ_sum,
                               bf16* dQ,  // [B*H, N, d]
                               int N, int Tr, float scale) {
  constexpr int kParts = d / 32;
  const int v = (gridDim.x - 1 - blockIdx.x) * kRowThreads + threadIdx.x;
  const int thread = v % kGroupThreads, part = v / kGroupThreads % kParts;
  const int half = v / (kGroupThreads * kParts);  // of a tile: 64 rows
  const int warp = thread / fa::kWarp, lane = thread % fa::kWarp, quad = lane % 4;
  const auto from = dQ_sum.part<d>(half);
  float4 sums[4];
  UNROLL
  for (int x = 0; x < 4; ++x) sums[x] = from.get(part * 4 + x);
  uint32_t low[4], high[4];  // row r, row r + 8
  fa::round_features(sums, scale, quad, low, high);
  const int r = half % (2 * Tr) * 64 + warp * 16 + fa::row_of(lane);
  bf16* to = dQ + (size_t(half / (2 * Tr)) * N + r) * d + (part * 4 + quad) * 8;
  fa::store_features<d>(low, high, to, r, N);
}
template <int d>
__global__ void convert_kernel(FloatSums dQ_sum, bf16* dQ, int N, int Tr, float scale) {
  convert<d>(dQ_sum, dQ, N, Tr, scale);
}

// --- host ----------------------------------------------------------------------------------------

inline fa::Support support() { return {.d = {64, 128}, .gqa = true, .cross = true}; }

inline int padded_rows(const fa::Problem& p) { return fa::ceil_div(p.N, Br) * Br; }

// rows: per tile.
inline Shape shape_of(const fa::Problem& p, int rows) {
  // Bytes of Q, dO and dQ_sum of a head. Of a group, which a walk visits in turn, one is in use.
  const size_t head = (2 + 2 + 4) * size_t(p.d) * p.N, l2 = size_t{16} << 20;
  return {.kv_heads = int(p.kv_heads()),
          .group = p.H / p.Hkv,
          .Np = padded_rows(p),
          .Nk = p.Nk,
          .Tr = fa::ceil_div(p.N, rows),
          .Tc = fa::ceil_div(p.Nk, Bc),
          .shift = p.causal ? p.Nk - p.N : 1 << 29,
          .section = p.causal ? int(std::clamp<size_t>(l2 / head, 1, p.kv_heads())) : 1,
          .scale = p.scale()};
}
inline dim3 work_tiles(const Shape& shape) { return dim3(unsigned(shape.Tc * shape.kv_heads)); }

// Launches a kernel with its tensor maps, then `others`. box: rows of a tile of Q and dO. early: it
// calls griddep_wait().
template <int d, bool early = false, class Kernel, class... Others>
void launch_mapped(Kernel kernel, const fa::LaunchConfig& config, const fa::Problem& p,
                   const fa::Tensors<bf16>& t, int box, const Others&... others) {
  const auto rows = [&](const bf16* x) { return fa::tile_map<d>(x, p.heads(), p.N, box); };
  const auto keys = [&](const bf16* x) {
    return fa::tile_map<d>(x, p.kv_heads(), p.Nk, kGroupKeys);
  };
  const auto launch = [&](const auto&... all) {
    early ? fa::launch_early(kernel, config, all...) : fa::launch(kernel, config, all...);
  };
  launch(rows(t.Q), keys(t.K), keys(t.V), rows(t.dO), keys(t.dK), keys(t.dV), others...);
}

// Bytes of 1_wgmma and 2_late, which read LSE2 and delta, with tiles of `rows` rows.
inline fa::Prediction traffic_of(const fa::Problem& p, int rows) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d, Np = padded_rows(p);
  const uint64_t Nv = uint64_t(fa::ceil_div(p.N, rows)) * rows;  // in whole tiles
  const fa::TileVisits v = fa::visited_tiles(p, rows, Bc);
  fa::Prediction t;
  t["O"].read = t["dQ"].write = 2 * BH * N * d;
  t["dO"].read = 2 * BH * (N + v.rows) * d;  // delta; each tile of keys
  t["Q"].read = 2 * BH * v.rows * d;
  t["LSE"].read = 4 * BH * N;
  t["LSE2"] = t["delta"] = {.read = 4 * BH * v.tiles * rows, .write = 4 * BH * Np};  // whole tiles
  t["K"].read = t["V"].read = t["dK"].write = t["dV"].write = 2 * p.kv_size();
  t["dQ_sum"].read = t["dQ_sum"].write = 4 * BH * Np * d;  // zeros are written
  t["dQ_sum"].atomic = 4 * BH * v.tiles * rows * d;
  t.hbm = {.read = 2 * (4 * BH * N * d + 2 * p.kv_size()) + 4 * BH * (N + 2 * Nv + (Np + Nv) * d),
           .write = 2 * (BH * N * d + 2 * p.kv_size()) + 4 * BH * (2 * Np + (Np + Nv) * d)};
  t.flops = BH * 10 * rows * Bc * v.tiles * d;  // five products; zeros are multiplied too
  return t;
}

// `threads` threads per row of [B*H, Np].
inline fa::LaunchConfig row_blocks(const fa::Problem& p, int threads) {
  return {dim3(unsigned(p.heads() * size_t(padded_rows(p)) * threads / kRowThreads)),
          dim3(kRowThreads)};
}
template <int d>
void launch_convert(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::launch(convert_kernel<d>, row_blocks(p, d / 16), FloatSums{t.scratch<float>("dQ_sum")}, t.dQ,
             p.N, padded_rows(p) / Br, p.scale());
}

}  // namespace step11

// Step 11 -- what the backward's kernels are made of, on Hopper.
// Idea      The five products of step 08 are wgmmas. A warpgroup owns 64 keys: S^T = K Q^T and
//           dP^T = V dO^T have keys as rows, so P^T and dS^T are in the registers where dV and dK
//           take their A operand. dQ sums over the keys of both warpgroups, so dS^T goes to shared
//           memory, where wgmma reads it transposed
// Changed   since 10 2_warpgroup: the parts of the backward instead of those of the forward, and
//           the kernels before and after, from 08
// A lane's registers. It has keys k and k + 8 (k = 16 warp + row_of(lane)):
//
//     rX[i]       key k + 8 half_of(i), row     column_of(lane) + column_at(i); S, P, dP, dS
//     rdK[i]      key k + 8 half_of(i), feature column_of(lane) + column_at(i); rdV, too
//     rP[r]       of the rows 16 r .. 16 r + 15, packed as wgmma's A: P, then dS
//     rdQ[i]      as rdK, but of rows of Q instead of keys
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/fragment.h"
#include "common/dialect/ptx/math.h"
#include "common/dialect/ptx/mbarrier.h"
#include "common/dialect/ptx/more/tma.h"
#include "common/dialect/ptx/more/wgmma.h"
#include "common/dialect/ptx/reduce.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"
#include "steps/10_warp_specialized/2_warpgroup.cuh"

namespace step11 {

using fa::bf16;
using step10::descriptor, step10::init, step10::pack, step10::put_rows;
using step10::kGroupThreads, step10::kMma, step10::kPanel, step10::kRowBytes;  // 128, 16, 64, 128
using step10::support, step10::tensor_map;

constexpr int kGroups = 2;                // warpgroups
constexpr int kGroupKeys = 64;            // of a warpgroup: the rows of a wgmma
constexpr int Bc = kGroups * kGroupKeys;  // keys of a block
constexpr int Br = 128;                   // rows of a tile of Q and dO
constexpr int kStages = 2;                // of Q and dO
constexpr int kRowThreads = 256;          // of a block of delta_kernel and convert_kernel

// What is the same for all blocks.
struct Shape {
  int kv_heads, group;  // heads of K and V; how many of Q share each
  int Np, Nk, Tr, Tc;   // Np: N in whole tiles of 128; Tr, Tc: tiles of rows, of keys
  int shift;            // row r sees the keys up to r + shift
  int section;          // heads whose work tiles are mixed
  float scale;
};

// 128 keys of a head, and the tiles of rows that see them.
struct WorkTile {
  int bh_kv, j;     // head of K and V, tile of keys
  int head, first;  // the first of Q's heads, and of its tiles of rows
};

// Causal: the longest walks of a section of heads first: its Q, dO and dQ_sum stay in the L2.
__device__ inline WorkTile work_tile_at(int t, const Shape& p, int tile_rows = Br) {
  const int first = t / (p.section * p.Tc) * p.section;
  const int heads = min(p.section, p.kv_heads - first), rank = t - first * p.Tc;
  const int bh_kv = first + rank % heads, j = rank / heads;
  return {bh_kv, j, bh_kv * p.group, max(0, j * Bc - p.shift) / tile_rows};
}

// A tile of rows on the walk through a work tile, which passes through all heads that share keys.
struct RowTile {
  int head, i;  // of Q; tile of rows
  __device__ RowTile(const WorkTile& work) : head(work.head), i(work.first) {}
  __device__ void next(const WorkTile& work, int Tr) {
    if (++i == Tr) ++head, i = work.first;
  }
};

// --- products, issued and not waited for ---------------------------------------------------------

// C = A B^T of 64 keys and a tile's rows, a sum over the features: S^T = K Q^T, dP^T = V dO^T.
template <int d, int half_rows>
__device__ inline void multiply_features(uint64_t A, uint64_t B, float (&rC)[half_rows]) {
  fa::wgmma_fence();
  UNROLL
  for (int x = 0; x < d; x += kMma) {
    const int panel = x / kPanel, inside = x % kPanel * 2;
    fa::wgmma(rC, fa::wgmma_advance(A, panel * kGroupKeys * kRowBytes + inside),
              fa::wgmma_advance(B, panel * 2 * half_rows * kRowBytes + inside), x > 0);
  }
  fa::wgmma_commit();
}

// C += A B of 64 keys and d features, a sum over a tile's rows: dV += P^T dO, dK += dS^T Q.
template <int d, int depth>
__device__ inline void multiply_rows(const uint32_t (&rA)[depth][4], uint64_t B,
                                     float (&rC)[d / 2]) {
  fa::wgmma_fence();
  UNROLL
  for (int r = 0; r < depth; ++r) {
    fa::wgmma<fa::Major::mn>(rC, rA[r], fa::wgmma_advance(B, r * kMma * kRowBytes));
  }
  fa::wgmma_commit();
}

// dQ = dS K of 64 rows and 2 n features, a sum over the block's keys. dS lies as [key][row], so its
// rows are what changes fastest: MN-major.
template <int d, int n>
__device__ inline void multiply_keys(uint64_t dS, uint64_t K, float (&rdQ)[n]) {
  fa::wgmma_fence();
  UNROLL
  for (int c = 0; c < Bc; c += kMma) {
    const int group = c / kGroupKeys, inside = c % kGroupKeys;  // K: the tiles of the warpgroups
    fa::wgmma<fa::Major::mn, fa::Major::mn>(
        rdQ, fa::wgmma_advance(dS, c * kRowBytes),
        fa::wgmma_advance(K, group * kGroupKeys * d * 2 + inside * kRowBytes), c > 0);
  }
  fa::wgmma_commit();
}

// --- between the products ------------------------------------------------------------------------

// LSE2 or delta of the lane's two rows among the tile's rows 8 g .. 8 g + 7.
template <int rows>
__device__ inline float2 of_rows(const float (&tile)[rows], int g) {
  const int lane = threadIdx.x % fa::kWarp;
  return *reinterpret_cast<const float2*>(&tile[8 * g + fa::column_of(lane)]);
}

// Scores that their row does not see become -inf. hidden0, hidden1: rows that do not see the lane's
// two keys, counted from its first row on. Behind the last row P is 0, because LSE2 is inf.
template <int n>
__device__ inline void mask(float (&rS)[n], int hidden0, int hidden1) {
  UNROLL
  for (int i = 0; i < n; ++i) {
    if (fa::column_at(i) < (fa::half_of(i) ? hidden1 : hidden0)) rS[i] = -INFINITY;
  }
}

// Rows, from `row` on, that do not see the key.
__device__ inline int hidden(const Shape& p, int key, int row) {
  return key >= p.Nk ? Br : key - p.shift - row;
}

// P = 2^(S - LSE) in S's registers: normalised at once.
template <int n>
__device__ inline void compute_p(float (&rS)[n], const float (&LSE2)[2 * n], float scale_log2) {
  UNROLL
  for (int g = 0; g < n / 4; ++g) {
    const float2 l = of_rows(LSE2, g);
    UNROLL
    for (int e = 0; e < 4; ++e) {
      rS[4 * g + e] = fa::exp2_approx(fmaf(rS[4 * g + e], scale_log2, e % 2 ? -l.y : -l.x));
    }
  }
}

// rX = P rX, two elements at a time. P comes as it was multiplied: in bf16, the lower half of a
// pair is the first row's.
__device__ inline void multiply_by_p(uint32_t pair, float& first, float& second) {
  first *= __uint_as_float(pair << 16);
  second *= __uint_as_float(pair & 0xffff0000u);
}

// dS = P (dP - delta) in dP's registers.
template <int n>
__device__ inline void compute_ds(float (&rdP)[n], const uint32_t (&rP)[n / 8][4],
                                  const float (&delta)[2 * n]) {
  UNROLL
  for (int g = 0; g < n / 4; ++g) {
    const float2 D = of_rows(delta, g);
    UNROLL
    for (int i = 4 * g; i < 4 * g + 4; i += 2) {
      rdP[i] -= D.x, rdP[i + 1] -= D.y;
      multiply_by_p(rP[i / 8][i % 8 / 2], rdP[i], rdP[i + 1]);
    }
  }
}

// dS^T of the warp's 16 keys to shared memory: [rows / 64][Bc][64], panels of 64 rows, swizzled.
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

// dQ's sums over the tiles of keys, in HBM. They lie in the order of the registers, so that a
// warp's request of 16 bytes a lane is 512 bytes side by side.
struct FloatSums {
  float* sums;  // [B*H * Np / 64, 4, d / 8, 32, 4]

  // A lane's part of 64 rows, which a warpgroup multiplies.
  struct Part {
    float* at;

    // No result is used, so no thread waits.
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
  // half: which 64 rows, counted over all heads. feature: the first, a multiple of 8.
  template <int d>
  __device__ Part part(int half, int feature = 0) const {
    const int warp = threadIdx.x % kGroupThreads / fa::kWarp, lane = threadIdx.x % fa::kWarp;
    const int group = (warp * d + feature) / 8;
    return {sums + size_t(half) * kGroupKeys * d + (group * fa::kWarp + lane) * 4};
  }
};

// --- kernels before and after --------------------------------------------------------------------

// The lanes of the kernel before: d / 8 of them own a row, counted in whole tiles of each head.
template <int d>
struct RowLanes {
  static constexpr int kLanes = d / 8, kRows = kRowThreads / kLanes;  // rows of a block
  int head, r, lane;                                                  // r: row of the head
  size_t padded, row;                                                 // of [B*H, Np], of [B*H, N]
  bool inside;

  // A block's rows are of one head. The last first: the L2 keeps what the next kernel begins with.
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
  // LSE; -inf for a row without a key, and for one behind the end.
  __device__ float lse(const float* LSE) const { return inside ? LSE[row] : -INFINITY; }
  __device__ void clear(float* dQ_sum) const {
    float4* zero = reinterpret_cast<float4*>(dQ_sum + padded * d) + lane;
    zero[0] = make_float4(0.f, 0.f, 0.f, 0.f);
    zero[kLanes] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
};

// Once per row: delta = rowsum(dO * O), LSE in powers of two, and zeros for dQ_sum. Where LSE is
// -inf, LSE2 is inf, so that P is 0.
template <int d>
__global__ void delta_kernel(const bf16* O,     // [B*H, N, d]
                             const bf16* dO,    // [B*H, N, d]
                             const float* LSE,  // [B*H, N]
                             float* delta,      // [B*H, Np]
                             float* LSE2,       // [B*H, Np]
                             float* dQ_sum,     // [B*H, Np, d]
                             int N, int Np) {
  const RowLanes<d> at(N, Np);
  at.clear(dQ_sum);
  const float sum = at.delta(O, dO);
  if (at.lane > 0) return;
  delta[at.padded] = sum;
  const float lse = at.lse(LSE);
  LSE2[at.padded] = lse == -INFINITY ? INFINITY : lse * fa::kLog2e;
}

// dQ = scale * dQ_sum, rounded and in order. A lane has every fourth pair of 32 features of the
// rows r and r + 8; the four lanes of a row exchange them, so that each has 8 features side by
// side. The last head first: it is still in the L2.
template <int d, class Sums>
__global__ void convert_kernel(Sums dQ_sum,
                               bf16* dQ,  // [B*H, N, d]
                               int N, int Tr, float scale) {
  constexpr int kParts = d / 32;
  const int v = (gridDim.x - 1 - blockIdx.x) * kRowThreads + threadIdx.x;
  const int thread = v % kGroupThreads, part = v / kGroupThreads % kParts;
  const int half = v / (kGroupThreads * kParts);  // of a tile: 64 rows
  const int warp = thread / fa::kWarp, lane = thread % fa::kWarp, quad = lane % 4;
  const auto from = dQ_sum.template part<d>(half);
  uint32_t low[4], high[4];  // row r, row r + 8: [pair of features]
  UNROLL
  for (int x = 0; x < 4; ++x) {
    const float4 sum = from.get(part * 4 + x);
    low[x] = fa::pack_bf16(sum.x * scale, sum.y * scale);
    high[x] = fa::pack_bf16(sum.z * scale, sum.w * scale);
  }
  // A 4 x 4 transposition: in each round one bit of the lane and one of the place change places.
  UNROLL
  for (int k = 1; k <= 2; k *= 2) {
    const bool upper = quad & k;
    UNROLL
    for (int x = 0; x < 4; ++x) {
      if (x & k) continue;
      const uint32_t l = __shfl_xor_sync(fa::kFullMask, upper ? low[x] : low[x | k], k);
      const uint32_t h = __shfl_xor_sync(fa::kFullMask, upper ? high[x] : high[x | k], k);
      (upper ? low[x] : low[x | k]) = l, (upper ? high[x] : high[x | k]) = h;
    }
  }
  const int r = half % (2 * Tr) * 64 + warp * 16 + fa::row_of(lane);
  bf16* to = dQ + (size_t(half / (2 * Tr)) * N + r) * d + (part * 4 + quad) * 8;
  if (r < N) *reinterpret_cast<uint4*>(to) = make_uint4(low[0], low[1], low[2], low[3]);
  if (r + 8 < N) {
    *reinterpret_cast<uint4*>(to + 8 * d) = make_uint4(high[0], high[1], high[2], high[3]);
  }
}

// --- host ----------------------------------------------------------------------------------------

inline int padded_rows(const fa::Problem& p) { return fa::ceil_div(p.N, Br) * Br; }
// rows: of a tile.
inline Shape shape_of(const fa::Problem& p, int rows = Br) {
  constexpr size_t kL2 = size_t{32} << 20;  // bytes that the heads of a section may need
  const size_t head = 8 * size_t(p.d) * p.N * (p.H / p.Hkv);  // Q, dO: 2 bytes each; dQ_sum: 4
  return {.kv_heads = int(p.kv_heads()),
          .group = p.H / p.Hkv,
          .Np = padded_rows(p),
          .Nk = p.Nk,
          .Tr = fa::ceil_div(p.N, rows),
          .Tc = fa::ceil_div(p.Nk, Bc),
          .shift = p.causal ? p.Nk - p.N : 1 << 29,
          .section = p.causal ? int(std::clamp<size_t>(kL2 / head, 1, p.kv_heads())) : 1,
          .scale = p.scale()};
}

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  const size_t rows = p.heads() * size_t(padded_rows(p));
  return {{"delta", 4 * rows}, {"LSE2", 4 * rows}, {"dQ_sum", 4 * rows * p.d}};
}

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
inline fa::Prediction backward_traffic(const fa::Problem& p) { return traffic_of(p, Br); }

// `threads` threads a row of [B*H, Np].
inline fa::LaunchConfig row_blocks(const fa::Problem& p, int threads) {
  return {dim3(unsigned(p.heads() * size_t(padded_rows(p)) * threads / kRowThreads)),
          dim3(kRowThreads)};
}
template <int d>
void launch_delta(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::launch(delta_kernel<d>, row_blocks(p, d / 8), t.O, t.dO, t.LSE, t.scratch<float>("delta"),
             t.scratch<float>("LSE2"), t.scratch<float>("dQ_sum"), p.N, padded_rows(p));
}
template <int d, class Sums>
void launch_convert(const fa::Problem& p, const fa::Tensors<bf16>& t, const Sums& dQ_sum) {
  fa::launch(convert_kernel<d, Sums>, row_blocks(p, d / 16), dQ_sum, t.dQ, p.N, padded_rows(p) / Br,
             p.scale());
}

}  // namespace step11

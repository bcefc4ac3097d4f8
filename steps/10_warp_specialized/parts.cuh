// Step 10 -- what the rungs from 2_specialized on share: the tiling, and what a consumer warpgroup
// does with 64 rows and one tile of keys.
// Changed   since 09 2_wgmma: products are issued and not waited for; softmax in parts: the vote
//           whether a maximum has grown, the maximum, P, the packing of P
//
// Registers of a lane, of its two rows r and r + 8 (r = 16 warp + row_of(lane)):
//
//     rS[i]       row r + 8 half_of(i), key     column_of(lane) + column_at(i); then P
//     rO[i]       row r + 8 half_of(i), feature column_of(lane) + column_at(i)
//     rP[c]       P of the keys 16 c .. 16 c + 15, packed as wgmma's A
//     m[h], l[h]  of row r + 8 h; l of this lane's keys only
#pragma once

#include <cfloat>

#include "common/dialect/cuda.h"
#include "common/dialect/fragment.h"
#include "common/dialect/ptx/math.h"
#include "common/dialect/warpgroup.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"

namespace step10 {

using fa::bf16, fa::Ring;
using fa::init_mbarriers, fa::pack_operand, fa::put_rows, fa::tile_descriptor, fa::tile_map;
using fa::kGroupThreads, fa::kMma, fa::kPanel, fa::kRowBytes;  // 128, 16, 64, 128
constexpr int kGroupRows = 64;          // of a warpgroup: the rows of a wgmma
constexpr float kNoMaximum = -FLT_MAX;  // below all scores, but finite: -inf - -inf is NaN
constexpr float kLazyRescale = 8.f;     // P may grow to 2^8 before O, l and m follow

// An SM has 512 registers for each of 128 threads. A launch gives each warpgroup the same number,
// and setmaxnreg moves what the producer does not need to the consumers.
template <int d_, bool kCausal_>
struct Tiling {
  static constexpr int d = d_;
  static constexpr bool kCausal = kCausal_;
  static constexpr int kConsumers = d == 64 ? 4 : 2, Br = kConsumers * kGroupRows;
  static constexpr int Bc = d == 64 ? 64 : 128;
  static constexpr int kStagesK = d == 64 ? 6 : 2, kStagesV = d == 64 ? 6 : 3;
  static constexpr int kThreads = (1 + kConsumers) * kGroupThreads;
  static constexpr int kProducerRegisters = d == 64 ? 32 : 40;
  static constexpr int kConsumerRegisters = d == 64 ? 112 : 232;
};

// What is the same for all blocks.
struct Shape {
  int heads, group;  // query heads; how many of them share K and V
  int N, Nk;
  float scale_log2;
};

// Br rows of a head, and the keys that they see.
struct WorkTile {
  int bh, bh_kv;  // head of Q and O, of K and V
  int row;        // the first one
  int tiles;      // of keys, at least one; 0: there is no more work
};

// Keys that a row sees.
template <class T>
__device__ inline int visible(const Shape& shape, int row) {
  return T::kCausal ? min(shape.Nk, row + 1 + shape.Nk - shape.N) : shape.Nk;
}

// Tiles of keys that rows up to this one see; at least one, even if they see no key of it.
template <class T>
__device__ inline int tiles_for(const Shape& shape, int last_row) {
  return max(1, (visible<T>(shape, last_row) + T::Bc - 1) / T::Bc);
}

// Work tile t of all. Causal: the longest walks of all heads first.
template <class T>
__device__ inline WorkTile work_tile_at(int t, const Shape& shape) {
  const int Tr = (shape.N + T::Br - 1) / T::Br;
  if (t >= Tr * shape.heads) return {0, 0, 0, 0};
  const int i = T::kCausal ? Tr - 1 - t / shape.heads : t % Tr;
  const int bh = T::kCausal ? t % shape.heads : t / Tr;
  return {bh, bh / shape.group, i * T::Br, tiles_for<T>(shape, (i + 1) * T::Br - 1)};
}

// S = Q K^T of 64 rows and a tile's keys, without waiting for the product.
template <class T>
__device__ inline void multiply_scores(uint64_t Q, uint64_t K, float (&rS)[T::Bc / 2]) {
  fa::wgmma_fence();
  UNROLL
  for (int x = 0; x < T::d; x += kMma) {
    const int panel = x / kPanel, inside = x % kPanel * 2;
    fa::wgmma(rS, fa::wgmma_advance(Q, panel * kGroupRows * kRowBytes + inside),
              fa::wgmma_advance(K, panel * T::Bc * kRowBytes + inside), x > 0);
  }
  fa::wgmma_commit();
}

// O += P V of a tile's keys, without waiting for the product.
template <class T>
__device__ inline void multiply_values(const uint32_t (&rP)[T::Bc / kMma][4], uint64_t V,
                                       float (&rO)[T::d / 2]) {
  fa::wgmma_fence();  // again: the wait for V is between the two products
  UNROLL
  for (int c = 0; c < T::Bc; c += kMma) {
    fa::wgmma<fa::Major::mn>(rO, rP[c / kMma], fa::wgmma_advance(V, c * kRowBytes));
  }
  fa::wgmma_commit();
}

// Scores that their row does not see become -inf. visible0, visible1: keys that the lane's two rows
// see, counted from its first key on.
template <int n>
__device__ inline void mask(float (&rS)[n], int visible0, int visible1) {
  UNROLL
  for (int i = 0; i < n; ++i) {
    if (fa::column_at(i) >= (fa::half_of(i) ? visible1 : visible0)) rS[i] = -INFINITY;
  }
}

// Maximum of a lane's first (h = 0) or second row, over the four lanes that share it.
template <int n>
__device__ inline float row_maximum(const float (&rS)[n], int h) {
  float s = -INFINITY;
  UNROLL
  for (int i = 2 * h; i < n; i += 4) s = fmaxf(s, fmaxf(rS[i], rS[i + 1]));
  return fa::quad_max(s);
}

// m, l and the factor for O, when a row's maximum rises.
template <int n>
__device__ inline void raise_maximum(const float (&rS)[n], float scale_log2, float (&m)[2],
                                     float (&l)[2], float (&alpha)[2]) {
  UNROLL
  for (int h = 0; h < 2; ++h) {
    const float m_new = fmaxf(m[h], row_maximum(rS, h) * scale_log2);
    alpha[h] = fa::exp2_approx(m[h] - m_new);
    m[h] = m_new;
    l[h] *= alpha[h];
  }
}

// Has a score of this warp passed its row's m by more than `growth`? Compares raw scores: no
// scaling, no shuffles. Non-negative floats sort like their bits, so one integer maximum of three
// takes two scores, and drops negative ones. If m + growth is below 0 the answer may be a false
// yes, which costs time and not accuracy.
template <int n>
__device__ inline bool has_grown(const float (&rS)[n], const float (&m)[2], float scale_log2,
                                 float growth) {
  int top[2] = {};
  UNROLL
  for (int i = 0; i < n; i += 2) {
    int& x = top[fa::half_of(i)];
    x = __vimax3_s32_relu(x, __float_as_int(rS[i]), __float_as_int(rS[i + 1]));
  }
  const float to_raw = 1.f / scale_log2;
  bool grown = false;
  UNROLL
  for (int h = 0; h < 2; ++h) {
    grown |= __int_as_float(top[h]) > fmaf(m[h], to_raw, growth * to_raw);
  }
  return __any_sync(fa::kFullMask, grown);
}

// P = 2^(S - m) in S's registers, l += its row sums. In three passes: a warp issues in order, so an
// addition right after its exponential would stall.
template <int n>
__device__ inline void compute_p(float (&rS)[n], float scale_log2, const float (&m)[2],
                                 float (&l)[2]) {
  UNROLL
  for (int i = 0; i < n; ++i) rS[i] = fmaf(rS[i], scale_log2, -m[fa::half_of(i)]);
  UNROLL
  for (int i = 0; i < n; ++i) rS[i] = fa::exp2_approx(rS[i]);
  if (n > 32) {  // shorter chains of additions, or fewer additions: measured
    UNROLL
    for (int i = 0; i < n; i += 2) l[fa::half_of(i)] += rS[i] + rS[i + 1];
  } else {
    float odd[2] = {};
    UNROLL
    for (int i = 0; i < n; i += 2) l[fa::half_of(i)] += rS[i], odd[fa::half_of(i)] += rS[i + 1];
    l[0] += odd[0], l[1] += odd[1];
  }
}

// --- host ---------------------------------------------------------------------------------------

// What the kernels are made for; anything else is refused.
inline fa::Support support() { return {.d = {64, 128}, .gqa = true, .cross = true}; }

// f(Tiling) for the problem's head dimension and mask.
template <class F>
void dispatch(const fa::Problem& p, F&& f) {
  fa::dispatch_d<64, 128>(p.d,
                          [&](auto d) { p.causal ? f(Tiling<d, true>{}) : f(Tiling<d, false>{}); });
}

template <class T>
int work_tiles_of(const fa::Problem& p) {
  return fa::ceil_div(p.N, T::Br) * p.heads();
}

// Tiles of keys that `rows` rows from `row` on visit; at least one, even if they see no key of it.
template <class T>
int visited_tiles(const fa::Problem& p, int row, int rows) {
  return std::max(1, fa::ceil_div(p.visible(std::min(p.N, row + rows) - 1), T::Bc));
}

}  // namespace step10

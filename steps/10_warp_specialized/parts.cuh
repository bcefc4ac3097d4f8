// Step 10 -- what the rungs from 2_specialized on share: the tiling, work tiles, mask, barriers.
// Changed   since 09 2_wgmma: products are issued without waiting (dialect/warpgroup.h); softmax in
//           parts (dialect/softmax.h)
//
// Registers of a lane, for its two rows r and r + 8 (r = 16 warp + row_of(lane)):
//
//     rS[i]       row r + 8 half_of(i), key     column_of(lane) + column_at(i); then P
//     rO[i]       row r + 8 half_of(i), feature column_of(lane) + column_at(i)
//     rP[c]       P of the keys 16 c .. 16 c + 15, packed as wgmma's A
//     m[h], l[h]  of row r + 8 h; l of this lane's keys only
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/fragment.h"
#include "common/dialect/ptx/math.h"
#include "common/dialect/softmax.h"
#include "common/dialect/warpgroup.h"
#include "common/harness/forward.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"

namespace step10 {

using fa::arrive, fa::release, fa::skip, fa::wait_for;
using fa::bf16, fa::Ring;
using fa::compute_p, fa::first_max, fa::kLazyRescale, fa::kNoMaximum, fa::needs_rescale;
using fa::init_mbarriers, fa::multiply_features, fa::multiply_rows, fa::pack_operand, fa::put_rows;
using fa::kGroupThreads, fa::kMma, fa::kRowBytes;  // 128, 16, 128
using fa::rescale, fa::tile_descriptor, fa::tile_map, fa::update_max;
constexpr int kGroupRows = 64;  // rows of a warpgroup, and of a wgmma

// An SM has 512 registers for each of 128 threads; setmaxnreg moves some to the consumers.
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

struct Shape {
  int heads, group;  // query heads; how many of them share K and V
  int N, Nk;
  float scale_log2;
};

// Br rows of a head, and the keys that they see.
struct WorkTile {
  int bh, bh_kv;  // head of Q and O, of K and V
  int row;        // the first one
  int tiles;      // of keys, at least one; 0: no more work
};

template <class T>
__device__ inline int visible(const Shape& shape, int row) {
  return T::kCausal ? min(shape.Nk, row + 1 + shape.Nk - shape.N) : shape.Nk;
}

// Tiles of keys that rows up to this one see; at least one, even if they see no key of it.
template <class T>
__device__ inline int tiles_for(const Shape& shape, int last_row) {
  return max(1, (visible<T>(shape, last_row) + T::Bc - 1) / T::Bc);
}

// Work tile t. Causal: the longest walks of all heads first.
template <class T>
__device__ inline WorkTile work_tile_at(int t, const Shape& shape) {
  const int Tr = (shape.N + T::Br - 1) / T::Br;
  if (t >= Tr * shape.heads) return {0, 0, 0, 0};
  const int i = T::kCausal ? Tr - 1 - t / shape.heads : t % Tr;
  const int bh = T::kCausal ? t % shape.heads : t / Tr;
  return {bh, bh / shape.group, i * T::Br, tiles_for<T>(shape, (i + 1) * T::Br - 1)};
}

// Hides scores. visible0, visible1: keys that the lane's two rows see, counted from its first key.
template <int n>
__device__ inline void mask(float (&rS)[n], int visible0, int visible1) {
  UNROLL
  for (int i = 0; i < n; ++i) {
    if (fa::column_at(i) >= (fa::half_of(i) ? visible1 : visible0)) rS[i] = -INFINITY;
  }
}

// --- shared memory of the persistent kernels ----------------------------------------------------

template <class T>
struct alignas(1024) Tiles {                    // each as panels of 64 features, swizzled by TMA
  bf16 Q[2][T::kConsumers][kGroupRows * T::d];  // of this work tile and the next; later O
  bf16 K[T::kStagesK][T::Bc * T::d];
  bf16 V[T::kStagesV][T::Bc * T::d];
  uint64_t q_full[2][T::kConsumers], q_empty[2][T::kConsumers], o_full[2][T::kConsumers];
  uint64_t k_full[T::kStagesK], k_empty[T::kStagesK];
  uint64_t v_full[T::kStagesV], v_empty[T::kStagesV];
  WorkTile work[2][T::kConsumers];  // arrives with Q
};

template <class T>
__device__ inline void init_barriers(Tiles<T>& smem) {
  constexpr int kWarps = kGroupThreads / fa::kWarp, kAllWarps = T::kConsumers * kWarps;
  for (int b = 0; b < 2; ++b) {
    init_mbarriers(smem.q_full[b], 1), init_mbarriers(smem.q_empty[b], 1),
        init_mbarriers(smem.o_full[b], kWarps);
  }
  init_mbarriers(smem.k_full, 1), init_mbarriers(smem.k_empty, kAllWarps);
  init_mbarriers(smem.v_full, 1), init_mbarriers(smem.v_empty, kAllWarps);
  fa::mbarrier_init_fence();
}

// --- host ---------------------------------------------------------------------------------------

inline fa::Support support() { return {.d = {64, 128}, .gqa = true, .cross = true}; }

// Calls f(Tiling) for the problem's mask and head dimension, one of ds; returns its result.
template <template <int, bool> class Tiling, int... ds, class F>
auto dispatch_over(const fa::Problem& p, F&& f) {
  return fa::dispatch_d<ds...>(
      p.d, [&](auto d) { return p.causal ? f(Tiling<d, true>{}) : f(Tiling<d, false>{}); });
}
template <class F>
auto dispatch(const fa::Problem& p, F&& f) {
  return dispatch_over<Tiling, 64, 128>(p, f);
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

inline Shape shape_of(const fa::Problem& p) {
  return {int(p.heads()), p.H / p.Hkv, p.N, p.Nk, p.scale() * fa::kLog2e};
}

// Launches a kernel with the arguments that all rungs have, then `others`.
template <class T, class Kernel, class... Others>
void launch_mapped(Kernel kernel, const fa::LaunchConfig& config, const fa::Problem& p,
                   const fa::Tensors<bf16>& t, const Others&... others) {
  fa::launch_attention<T::d>(kernel, config, p, t, kGroupRows, T::Bc, t.LSE, shape_of(p),
                             others...);
}

// skipping: how many rows skip the tiles of keys that none of them sees.
template <class T>
fa::Prediction traffic_of(const fa::Problem& p, int skipping) {
  uint64_t keys = 0, products = 0;  // of all work tiles of a head; of 64 rows and Bc keys
  for (int row = 0; row < fa::ceil_div(p.N, T::Br) * T::Br; row += kGroupRows) {
    products += visited_tiles<T>(p, row / skipping * skipping, skipping);
    if (row % T::Br == 0) keys += std::min(visited_tiles<T>(p, row, T::Br) * T::Bc, p.Nk);
  }
  return fa::attention_traffic(p, keys, 4 * p.heads() * products * kGroupRows * T::Bc * T::d);
}

}  // namespace step10

// Step 12 -- the roles around step 10's kernel: what is in shared memory, who copies and stores.
// Changed   since 10 5_scheduled: tiles of 1 byte; V^T; scales; O is stored from a buffer of its
//           own, since it is twice as large as Q
#pragma once

#include "common/dialect/ptx/mbarrier.h"
#include "common/dialect/ptx/setmaxnreg.h"
#include "steps/12_fp8/2_products.cuh"

namespace step12 {

using step10::has_grown, step10::raise_maximum;
using step10::kNoMaximum;
using step10::Ring, step10::Shape, step10::WorkTile, step10::init, step10::visible;
using step10::tiles_for, step10::mask, step10::row_maximum;

template <class T>
struct alignas(1024) Tiles {
  uint8_t Q[2][T::kConsumers][kGroupRows * T::d];  // of this work tile and the next
  uint8_t K[T::kStages][T::Bc * T::d];
  uint8_t V[T::kStages][T::d * T::Bc];
  bf16 O[T::kConsumers][kGroupRows * T::d];
  uint64_t q_full[2][T::kConsumers], q_empty[2][T::kConsumers];
  uint64_t o_full[T::kConsumers], o_empty[T::kConsumers];
  uint64_t k_full[T::kStages], k_empty[T::kStages], v_full[T::kStages], v_empty[T::kStages];
  WorkTile work[2][T::kConsumers];  // copied with Q
};

template <class T>
__device__ inline void init_barriers(Tiles<T>& smem) {
  constexpr int kGroupWarps = kGroupThreads / fa::kWarp, kWarps = T::kConsumers * kGroupWarps;
  for (int b = 0; b < 2; ++b) init(smem.q_full[b], 1), init(smem.q_empty[b], 1 + kGroupWarps);
  init(smem.o_full, kGroupWarps), init(smem.o_empty, 1);
  init(smem.k_full, 1), init(smem.k_empty, kWarps);
  init(smem.v_full, 1), init(smem.v_empty, kWarps);
  fa::mbarrier_init_fence();
}

// What the numbers of Q8, K8 and V8 are multiplied by, and what V8 lacks.
struct Scales {
  const float* Q;                 // [B*H, ceil(N / 64)]
  const float* K;                 // [B*Hkv, ceil(Nk / Bc)]
  const float* V;                 // [B*Hkv, d]
  const float* mean;              // [B*Hkv, d]
  const float* Q_norm = nullptr;  // [B*H, ceil(N / 64)]: only 9_late.cuh reads the norms
  const float* K_norm = nullptr;  // [B*Hkv]
};

// Heads whose work tiles are mixed, when causal; chosen by measurement.
template <class T>
constexpr int kSection = 4096 / T::d;

// Work tile t of all. Causal: the longest walks of a section of heads first, then shorter ones.
template <class T>
__device__ inline WorkTile scheduled(int t, const Shape& shape) {
  const int Tr = (shape.N + T::Br - 1) / T::Br;
  if (t >= Tr * shape.heads) return {0, 0, 0, 0};
  int bh = t / Tr, i = t % Tr;
  if (T::kCausal) {
    const int first = t / (kSection<T> * Tr) * kSection<T>;
    const int heads = min(kSection<T>, shape.heads - first), rank = t - first * Tr;
    bh = first + rank % heads, i = Tr - 1 - rank / heads;
  }
  return {bh, bh / shape.group, i * T::Br, tiles_for<T>(shape, (i + 1) * T::Br - 1)};
}

// --- the producer: one thread copies -------------------------------------------------------------

template <class T>
__device__ inline void produce(Tiles<T>& smem, const fa::TensorMap* Q, const fa::TensorMap* K,
                               const fa::TensorMap* V, const Shape& shape, unsigned* taken) {
  Ring<T::kStages> k, v;
  const auto load_k = [&](int j, int bh) {
    fa::mbarrier_wait(&smem.k_empty[k.stage], k.parity ^ 1);
    fa::mbarrier_arrive_expect_tx(&smem.k_full[k.stage], sizeof smem.K[0]);
    fa::tma_load(smem.K[k.stage], K, &smem.k_full[k.stage], {0, j * T::Bc, 0, bh});
    k.next();
  };
  const auto load_v = [&](int j, int bh) {
    fa::mbarrier_wait(&smem.v_empty[v.stage], v.parity ^ 1);
    fa::mbarrier_arrive_expect_tx(&smem.v_full[v.stage], sizeof smem.V[0]);
    fa::tma_load(smem.V[v.stage], V, &smem.v_full[v.stage], {0, 0, j * (T::Bc / kKeys<T::Bc>), bh});
    v.next();
  };
  for (int n = 0, t = blockIdx.x;; ++n) {
    const int b = n % 2;
    const WorkTile work = step12::scheduled<T>(t, shape);  // not step10's, which Shape would find
    if (work.tiles > 0) load_k(work.tiles - 1, work.bh_kv);
    for (int wg = 0; wg < T::kConsumers; ++wg) {
      fa::mbarrier_wait(&smem.q_empty[b][wg], (n / 2 & 1) ^ 1);
      smem.work[b][wg] = work;
      if (work.tiles > 0) {
        fa::mbarrier_arrive_expect_tx(&smem.q_full[b][wg], sizeof smem.Q[b][wg]);
        fa::tma_load(smem.Q[b][wg], Q, &smem.q_full[b][wg],
                     {0, work.row + wg * kGroupRows, 0, work.bh});
      } else {
        fa::mbarrier_arrive(&smem.q_full[b][wg]);
      }
    }
    if (work.tiles == 0) break;
    t = gridDim.x + (T::kCausal ? atomicAdd(&taken[0], 1u) : t);
    for (int j = work.tiles - 1; j >= 0; --j) {
      if (j > 0) load_k(j - 1, work.bh_kv);
      load_v(j, work.bh_kv);
    }
  }
  if (T::kCausal) {
    __threadfence();
    if (atomicAdd(&taken[1], 1u) == gridDim.x - 1) taken[0] = 0, taken[1] = 0;
  }
}

// --- another thread of its warpgroup stores ------------------------------------------------------

// A buffer of Q is free when its consumer has multiplied it and this thread has read its work tile.
template <class T>
__device__ inline void store(Tiles<T>& smem, const fa::TensorMap* O) {
  for (int n = 0;; ++n) {
    const int b = n % 2;
    for (int wg = 0; wg < T::kConsumers; ++wg) {
      fa::mbarrier_wait(&smem.q_full[b][wg], n / 2 & 1);
      const WorkTile work = smem.work[b][wg];
      if (work.tiles == 0) return;
      fa::mbarrier_arrive(&smem.q_empty[b][wg]);
      fa::mbarrier_wait(&smem.o_full[wg], n & 1);
      fa::tma_store(O, smem.O[wg], {0, work.row + wg * kGroupRows, 0, work.bh});
      fa::tma_store_commit();
      fa::tma_store_wait_read<0>();
      fa::mbarrier_arrive(&smem.o_empty[wg]);
    }
  }
}

// --- host ----------------------------------------------------------------------------------------

// Calls f with the tiling of a problem.
template <template <int, bool> class Tiling, class F>
void dispatch(const fa::Problem& p, F&& f) {
  const auto call = [&](auto d) { p.causal ? f(Tiling<d, true>{}) : f(Tiling<d, false>{}); };
  if constexpr (Tiling<64, false>::kLargest == 256) {
    fa::dispatch_d<64, 128, 256>(p.d, call);
  } else {
    fa::dispatch_d<64, 128>(p.d, call);
  }
}

template <template <int, bool> class Tiling>
int keys_of_tile(const fa::Problem& p) {
  int Bc = 0;
  dispatch<Tiling>(p, [&](auto tiling) { Bc = decltype(tiling)::Bc; });
  return Bc;
}

// What the attention kernel reads, and the counters of its scheduler.
template <template <int, bool> class Tiling>
std::vector<fa::Scratch> operands(const fa::Problem& p) {
  const size_t features = p.kv_heads() * p.d;
  std::vector<fa::Scratch> all = {
      {"Q8", p.q_size()},
      {"K8", p.kv_size()},
      {"V8", features * padded_keys(p)},
      {"Q_scale", sizeof(float) * query_blocks(p, kGroupRows)},
      {"K_scale", sizeof(float) * key_blocks(p, keys_of_tile<Tiling>(p))},
      {"V_scale", sizeof(float) * features},
      {"V_mean", sizeof(float) * features},
  };
  if (p.causal) all.push_back({.name = "taken", .bytes = 2 * sizeof(unsigned), .zeroed = true});
  return all;
}

}  // namespace step12

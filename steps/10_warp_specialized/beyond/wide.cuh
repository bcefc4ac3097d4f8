// Step 10 -- a head dimension of 256: what fits into registers and shared memory.
// Idea      64 rows of O need 128 registers per thread, and two Q would leave shared memory for
//           three tiles of keys; one Q leaves five. The next Q arrives during the last P V
// Changed   since 10 4_scheduled, whose comments are not repeated: tiles of 64 keys, always from
//           the last on; one Q, which consumers release; at the seam P V first, then Q; draws at a
//           walk's start; sections by heads only; O is stored from registers
// Traffic   as 4_scheduled, but tiles of 128 rows and 64 keys
// Launch    as 4_scheduled, with 2 consumers
// Owns      block: Br = 128 rows at a time by Bc = 64 keys; consumer: 64
// Still bad short walks: nothing of the same consumer overlaps a work tile's first softmax
#pragma once

#include "common/dialect/ptx/setmaxnreg.h"
#include "common/dialect/scheduler.h"
#include "steps/10_warp_specialized/4_scheduled.cuh"  // its host functions
#include "steps/10_warp_specialized/parts.cuh"

namespace step10_wide {

using namespace step10;  // parts.cuh

template <int d_, bool kCausal_>
struct Tiling {
  static constexpr int d = d_;
  static constexpr bool kCausal = kCausal_;
  static constexpr int kConsumers = 2, Br = kConsumers * kGroupRows;
  static constexpr int Bc = 64, kStagesK = 2, kStagesV = 3;
  static constexpr int kThreads = (1 + kConsumers) * kGroupThreads;
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
};

template <class T>
struct alignas(1024) Tiles {
  bf16 Q[T::kConsumers][kGroupRows * T::d];  // of one work tile
  bf16 K[T::kStagesK][T::Bc * T::d];
  bf16 V[T::kStagesV][T::Bc * T::d];
  uint64_t q_full[T::kConsumers], q_empty[T::kConsumers];
  uint64_t k_full[T::kStagesK], k_empty[T::kStagesK];
  uint64_t v_full[T::kStagesV], v_empty[T::kStagesV];
  WorkTile work[T::kConsumers];
};

// --- the producer: one thread copies -------------------------------------------------------------

// Copies as in 4_scheduled, but from the last tile to the first: K_n Q K_n-1 V_n ... V_0.
template <class T>
__device__ inline void produce(Tiles<T>& smem, const fa::TensorMap* Q, const fa::TensorMap* K,
                               const fa::TensorMap* V, const Shape& shape, unsigned* taken) {
  Ring<T::kStagesK> k;
  Ring<T::kStagesV> v;
  const auto load_k = [&](int j, int bh) {
    fa::mbarrier_wait(&smem.k_empty[k.stage], k.parity ^ 1);
    fa::mbarrier_arrive_expect_tx(&smem.k_full[k.stage], sizeof smem.K[0]);
    fa::tma_load(smem.K[k.stage], K, &smem.k_full[k.stage], {0, j * T::Bc, 0, bh});
    k.next();
  };
  const auto load_v = [&](int j, int bh) {
    fa::mbarrier_wait(&smem.v_empty[v.stage], v.parity ^ 1);
    fa::mbarrier_arrive_expect_tx(&smem.v_full[v.stage], sizeof smem.V[0]);
    fa::tma_load(smem.V[v.stage], V, &smem.v_full[v.stage], {0, j * T::Bc, 0, bh});
    v.next();
  };
  for (int n = 0, t = blockIdx.x;; ++n) {
    // K and V of a section of 16 heads stay in the L2, or of 32 with few keys (measured).
    const WorkTile work = scheduled<T>(t, shape, shape.Nk > 1024 ? 16 : 32);
    if (work.tiles > 0) load_k(work.tiles - 1, work.bh_kv);
    for (int wg = 0; wg < T::kConsumers; ++wg) {
      fa::mbarrier_wait(&smem.q_empty[wg], (n & 1) ^ 1);
      smem.work[wg] = work;
      if (work.tiles > 0) {
        fa::mbarrier_arrive_expect_tx(&smem.q_full[wg], sizeof smem.Q[wg]);
        fa::tma_load(smem.Q[wg], Q, &smem.q_full[wg], {0, work.row + wg * kGroupRows, 0, work.bh});
      } else {
        fa::mbarrier_arrive(&smem.q_full[wg]);
      }
    }
    if (work.tiles == 0) break;
    t = gridDim.x + (T::kCausal ? atomicAdd(&taken[0], 1u) : t);
    UNROLL_BY(1)  // a second round in flight would need more registers than it has
    for (int j = work.tiles - 1; j >= 0; --j) {
      if (j > 0) load_k(j - 1, work.bh_kv);
      load_v(j, work.bh_kv);
    }
  }
  if (T::kCausal) fa::leave(taken);
}

// --- the consumers multiply, and compute the softmax ---------------------------------------------

template <class T>
struct Consumer {
  static constexpr int d = T::d, Bc = T::Bc, kPanelBytes = Bc * kRowBytes;
  Tiles<T>& smem;
  bf16* O;     // [B*H, N, d]
  float* LSE;  // [B*H, N]
  const Shape& shape;
  const int wg;
  const int warp = threadIdx.x % kGroupThreads / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const uint64_t q0 = tile_descriptor(smem.Q[wg]), k0 = tile_descriptor(smem.K[0]);
  const uint64_t v0 = tile_descriptor(smem.V[0], kPanelBytes);
  Ring<T::kStagesK> k;
  Ring<T::kStagesV> v;
  WorkTile work;
  int j = 0;        // the next tile of keys
  int skipped = 0;  // tiles whose K was released, and V not yet
  // V of the tile in use and of all skipped ones but one must fit.
  static_assert((T::Br - kGroupRows + Bc - 1) / Bc <= T::kStagesV);
  float rS[Bc / 2], rO[d / 2], m[2], l[2], alpha[2];
  uint32_t rP[Bc / kMma][4];

  __device__ Consumer(Tiles<T>& smem, bf16* O, float* LSE, const Shape& shape, int wg)
      : smem(smem), O(O), LSE(LSE), shape(shape), wg(wg) {}

  __device__ void issue_scores(unsigned stage) {
    multiply_features<d>(q0, k0 + stage * (sizeof smem.K[0] >> 4), rS);
  }
  __device__ void release_scores() {
    release(k, smem.k_empty);
    if (j == 0) arrive(&smem.q_empty[wg]);
  }
  __device__ void issue_values() {
    fa::mbarrier_wait(&smem.v_full[v.stage], v.parity);
    multiply_rows<d>(rP, v0 + v.stage * (sizeof smem.V[0] >> 4), rO);
  }
  __device__ void wait_values() {
    fa::pin_registers(rS);
    wait_for<0>(rO);
    fa::pin_registers(rS);
    release(v, smem.v_empty);
  }

  __device__ bool take(unsigned n) {
    fa::mbarrier_wait(&smem.q_full[wg], n & 1);
    if (lane == 0) work = smem.work[wg];
    work.bh = fa::uniform(work.bh);
    work.row = fa::uniform(work.row) + wg * kGroupRows;
    work.tiles = fa::uniform(work.tiles);
    return work.tiles > 0;
  }
  // Skips K at once, V only after this work tile's last P V, whose V is earlier in the ring.
  __device__ void skip_keys() {
    j = tiles_for<T>(shape, work.row + kGroupRows - 1) - 1;
    for (skipped = 0; skipped < work.tiles - 1 - j; ++skipped) skip(k, smem.k_full, smem.k_empty);
  }
  __device__ void skip_values() {
    for (; skipped > 0; --skipped) skip(v, smem.v_full, smem.v_empty);
  }
  __device__ void mask_tile() {
    const int row = work.row + warp * 16 + fa::row_of(lane), key = j * Bc + fa::column_of(lane);
    mask(rS, visible<T>(shape, row) - key, visible<T>(shape, row + 8) - key);
  }
  __device__ void first_softmax() {
    if (visible<T>(shape, work.row) < (j + 1) * Bc) mask_tile();
    first_max(rS, shape.scale_log2, m, l);
    compute_p(rS, shape.scale_log2, m, l);
  }

  template <bool kMayBeCut>
  __device__ void next_tile() {
    --j;
    fa::mbarrier_wait(&smem.k_full[k.stage], k.parity);
    issue_scores(k.stage);
    issue_values();
    wait_for<1>(rS);
    release_scores();
    if (kMayBeCut) mask_tile();
    const bool grown = fa::lazy_softmax(rS, shape.scale_log2, m, l, alpha);
    wait_values();
    pack_operand(rS, rP);
    if (__builtin_expect(grown, 0)) rescale(rO, alpha);
  }

  // Stores this warp's rows of O. Two lanes exchange halves, so that a quad writes 32 bytes.
  __device__ void store_rows(const WorkTile& of, const float (&normalise)[2]) {
    const bool odd = lane % 2;
    UNROLL
    for (int h = 0; h < 2; ++h) {
      const int row = of.row + warp * 16 + fa::row_of(lane) + h * 8;
      bf16* const to = O + (size_t(of.bh) * shape.N + row) * d + odd * 8 + lane % 4 / 2 * 4;
      UNROLL
      for (int x = 0; x < d; x += 16) {
        const float* const o = &rO[x / 2 + 2 * h];
        const uint32_t left = fa::pack_bf16(o[0] * normalise[h], o[1] * normalise[h]);
        const uint32_t right = fa::pack_bf16(o[4] * normalise[h], o[5] * normalise[h]);
        const uint32_t other = __shfl_xor_sync(fa::kFullMask, odd ? left : right, 1);
        if (row < shape.N) {
          *reinterpret_cast<uint2*>(to + x) = odd ? uint2{other, right} : uint2{left, other};
        }
      }
    }
  }

  __device__ void run() {
    // --- prologue: the first tile of the first work tile
    take(0);
    skip_keys();
    skip_values();
    fa::mbarrier_wait(&smem.k_full[k.stage], k.parity);
    issue_scores(k.stage);
    wait_for<0>(rS);
    release_scores();
    first_softmax();
    pack_operand(rS, rP);

    bool more = true;
    for (unsigned n = 0; more; ++n) {
      fa::clear(rO);

      // --- mainloop
      while (T::kCausal && j > 0 && visible<T>(shape, work.row) < j * Bc) next_tile<true>();
      while (j > 0) next_tile<false>();

      // --- the seam: the next Q arrives during that P V. If there is no next one, stale tiles are
      // multiplied: see 4_scheduled.
      const WorkTile old = work;
      const float old_m[2] = {m[0], m[1]};
      float old_l[2] = {l[0], l[1]}, normalise[2];
      issue_values();
      more = take(n + 1);
      if (more) {
        skip_keys();
        fa::mbarrier_wait(&smem.k_full[k.stage], k.parity);
      }
      issue_scores(more ? k.stage : 0);
      UNROLL
      for (int h = 0; h < 2; ++h) {
        old_l[h] = fa::quad_sum(old_l[h]);
        normalise[h] = old_l[h] > 0.f ? __fdividef(1.f, old_l[h]) : 0.f;
        const int row = old.row + warp * 16 + fa::row_of(lane) + h * 8;
        if (fa::leads_quad(lane) && row < shape.N) {
          LSE[size_t(old.bh) * shape.N + row] = (old_m[h] + __log2f(old_l[h])) * fa::kLn2;
        }
      }
      wait_for<1>(rO);
      release(v, smem.v_empty);
      skip_values();
      store_rows(old, normalise);  // --- epilogue
      wait_for<0>(rS);
      if (more) {
        release_scores();
        first_softmax();
      }
      pack_operand(rS, rP);
    }
  }
};

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    flash_fwd_kernel(const __grid_constant__ fa::TensorMap Q,  // [B*H, N, d]
                     const __grid_constant__ fa::TensorMap K,  // [B*Hkv, Nk, d]
                     const __grid_constant__ fa::TensorMap V,  // [B*Hkv, Nk, d]
                     bf16* O,                                  // [B*H, N, d]
                     float* LSE,                               // [B*H, N]
                     Shape shape, unsigned* taken) {           // [2]: work tiles, blocks that left
  Tiles<T>& smem = *fa::dynamic_shared<Tiles<T>>();
  if (threadIdx.x == 0) {
    constexpr int kWarps = kGroupThreads / fa::kWarp, kAllWarps = T::kConsumers * kWarps;
    init_mbarriers(smem.q_full, 1), init_mbarriers(smem.q_empty, kWarps);
    init_mbarriers(smem.k_full, 1), init_mbarriers(smem.k_empty, kAllWarps);
    init_mbarriers(smem.v_full, 1), init_mbarriers(smem.v_empty, kAllWarps);
    fa::mbarrier_init_fence();
  }
  __syncthreads();  // all threads see the barriers
  const int wg = fa::uniform(threadIdx.x / kGroupThreads);
  if (wg == 0) {
    fa::setmaxnreg_dec<T::kProducerRegisters>();
    if (threadIdx.x == 0) produce<T>(smem, &Q, &K, &V, shape, taken);
  } else {
    fa::setmaxnreg_inc<T::kConsumerRegisters>();
    Consumer<T>(smem, O, LSE, shape, wg - 1).run();
  }
}

// --- host ---------------------------------------------------------------------------------------

inline fa::Support support() { return {.d = {64, 128, 256}, .gqa = true, .cross = true}; }

template <class T>
void launch(const fa::Problem& p, const fa::Tensors<bf16>& t, int blocks) {
  const auto keys = [&](const bf16* x) { return tile_map<T::d>(x, p.kv_heads(), p.Nk, T::Bc); };
  fa::launch(flash_fwd_kernel<T>,
             fa::share_work(blocks, work_tiles_of<T>(p), T::kThreads, sizeof(Tiles<T>)),
             tile_map<T::d>(t.Q, p.heads(), p.N, kGroupRows), keys(t.K), keys(t.V), t.O, t.LSE,
             shape_of(p), p.causal ? t.template scratch<unsigned>("taken") : nullptr);
}

inline fa::Prediction traffic(const fa::Problem& p) {
  if (p.d != 256) return step10::traffic(p);
  return dispatch_over<Tiling, 256>(
      p, [&](auto tiling) { return step10::traffic_of<decltype(tiling)>(p); });
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  if (p.d != 256) return step10::forward(p, t);
  dispatch_over<Tiling, 256>(p, [&](auto tiling) { launch<decltype(tiling)>(p, t, p.gpu.sms); });
}

}  // namespace step10_wide

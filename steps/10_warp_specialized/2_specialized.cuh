// Step 10 -- FlashAttention-3: products during the softmax.
// Idea      P V of a tile runs during the softmax of the next one. The consumers also take turns:
//           while one computes its softmax, another multiplies
// Changed   since 10 1_producer: Q K^T of a tile is issued with P V of the previous one; K and V
//           have separate stages, in the order of their use; named barriers give the turns; 128
//           keys per tile when d = 128. `lazy` moves the maximum only when a score exceeds it by 8
// Traffic   as 1_producer
// Launch    grid (Tr * B*H), longest walks first; 1 warpgroup copies, 2 (d = 128) or 4 multiply
// Owns      block: Br = 128 rows of O (d = 128) or 256, by Bc = 128 keys or 64; consumer: 64 rows
// Still bad at a block's start and end its SM's tensor cores idle
#pragma once

#include "common/dialect/ptx/barrier.h"
#include "common/dialect/ptx/setmaxnreg.h"
#include "steps/10_warp_specialized/parts.cuh"

namespace step10_specialized {

using namespace step10;  // parts.cuh

template <class T>
struct alignas(1024) Tiles {                 // each as panels of 64 features, swizzled by TMA
  bf16 Q[T::kConsumers][kGroupRows * T::d];  // O before its store
  bf16 K[T::kStagesK][T::Bc * T::d];
  bf16 V[T::kStagesV][T::Bc * T::d];
  uint64_t q_full;
  uint64_t k_full[T::kStagesK], k_empty[T::kStagesK];
  uint64_t v_full[T::kStagesV], v_empty[T::kStagesV];
};

// --- the producer: one thread copies -------------------------------------------------------------

// Copies from the last tile of keys to the first, in the order of use: K_n K_n-1 V_n K_n-2 V_n-1
// ... V_0. In the order K_n V_n K_n-1 ..., K would wait for V's stage.
template <class T>
__device__ inline void produce(Tiles<T>& smem, const fa::TensorMap* Q, const fa::TensorMap* K,
                               const fa::TensorMap* V, const WorkTile& work) {
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
  fa::mbarrier_arrive_expect_tx(&smem.q_full, sizeof smem.Q);
  for (int wg = 0; wg < T::kConsumers; ++wg) {
    fa::tma_load(smem.Q[wg], Q, &smem.q_full, {0, work.row + wg * kGroupRows, 0, work.bh});
  }
  load_k(work.tiles - 1, work.bh_kv);
  for (int j = work.tiles - 1; j >= 0; --j) {
    if (j > 0) load_k(j - 1, work.bh_kv);
    load_v(j, work.bh_kv);
  }
}

// --- the consumers multiply, and compute the softmax ---------------------------------------------

// A warpgroup that owns 64 rows of the work tile. Its registers: see parts.cuh.
template <class T, bool kLazy>
struct Consumer {
  static constexpr int d = T::d, Bc = T::Bc, kPanelBytes = Bc * kRowBytes;
  Tiles<T>& smem;
  float* LSE;  // [B*H, N]
  const Shape& shape;
  const int wg;
  const int warp = threadIdx.x % kGroupThreads / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const uint64_t q = tile_descriptor(smem.Q[wg]), k0 = tile_descriptor(smem.K[0]);
  const uint64_t v0 = tile_descriptor(smem.V[0], kPanelBytes);
  Ring<T::kStagesK> k;
  Ring<T::kStagesV> v;
  WorkTile work;
  int j = work.tiles - 1;  // the next tile of keys
  float rS[Bc / 2], rO[d / 2] = {}, m[2] = {kNoMaximum, kNoMaximum}, l[2] = {}, alpha[2];
  uint32_t rP[Bc / kMma][4];

  __device__ Consumer(Tiles<T>& smem, float* LSE, const Shape& shape, int wg, const WorkTile& work)
      : smem(smem), LSE(LSE), shape(shape), wg(wg), work(work) {
    this->work.row += wg * kGroupRows;
  }

  // Consumers issue products in turn, so that not all compute softmax at once.
  __device__ void my_turn() { fa::bar_sync(1 + wg, 2 * kGroupThreads); }
  __device__ void next_turn() { fa::bar_arrive(1 + (wg + 1) % T::kConsumers, 2 * kGroupThreads); }

  __device__ void issue_scores() {
    multiply_features<d>(q, k0 + k.stage * (sizeof smem.K[0] >> 4), rS);
  }
  // Issues O += P V of the previous tile, after its V has arrived.
  __device__ void issue_values() {
    fa::mbarrier_wait(&smem.v_full[v.stage], v.parity);
    multiply_rows<d>(rP, v0 + v.stage * (sizeof smem.V[0] >> 4), rO);
  }
  __device__ void wait_values() {
    fa::pin_registers(rS);  // else nvcc computes P after the wait
    wait_for<0>(rO);
    fa::pin_registers(rS);  // else it packs P before the wait, while the old P is in use
    release(v, smem.v_empty);
  }

  __device__ void mask_tile() {
    if (visible<T>(shape, work.row) >= (j + 1) * Bc) return;
    const int row = work.row + warp * 16 + fa::row_of(lane), key = j * Bc + fa::column_of(lane);
    mask(rS, visible<T>(shape, row) - key, visible<T>(shape, row + 8) - key);
  }
  // Turns S of tile j into P. True if O must be rescaled.
  __device__ bool softmax() {
    mask_tile();
    const bool grown = !kLazy || needs_rescale(rS, m, shape.scale_log2, kLazyRescale);
    if (grown) update_max(rS, shape.scale_log2, m, l, alpha);
    compute_p(rS, shape.scale_log2, m, l);
    return grown;
  }

  // P V of a tile overlaps Q K^T and the softmax of the next one.
  __device__ void next_tile() {
    --j;
    fa::mbarrier_wait(&smem.k_full[k.stage], k.parity);
    my_turn();
    issue_scores();
    issue_values();
    next_turn();
    wait_for<1>(rS);
    release(k, smem.k_empty);
    const bool grown = softmax();
    wait_values();
    pack_operand(rS, rP);
    if (grown) rescale(rO, alpha);
  }

  __device__ void run(const fa::TensorMap* O) {
    // --- prologue: the first tile
    if (wg == T::kConsumers - 1) next_turn();  // warpgroup 0 begins
    fa::mbarrier_wait(&smem.q_full, 0);
    fa::mbarrier_wait(&smem.k_full[k.stage], k.parity);
    my_turn();
    issue_scores();
    next_turn();
    wait_for<0>(rS);
    release(k, smem.k_empty);
    softmax();
    pack_operand(rS, rP);

    // --- mainloop
    while (j > 0) next_tile();
    issue_values();
    wait_for<0>(rO);
    if (wg == 0) my_turn();  // takes the last turn: no barrier stays half full

    // --- epilogue: O is staged in this warpgroup's Q
    float normalise[2];
    UNROLL
    for (int h = 0; h < 2; ++h) {
      l[h] = fa::quad_sum(l[h]);
      normalise[h] = l[h] > 0.f ? 1.f / l[h] : 0.f;  // no key seen: O = 0
      const int row = work.row + warp * 16 + fa::row_of(lane) + h * 8;
      if (fa::leads_quad(lane) && row < shape.N) {
        LSE[size_t(work.bh) * shape.N + row] = (m[h] + log2f(l[h])) * fa::kLn2;
      }
    }
    fa::bar_sync(1 + T::kConsumers + wg, kGroupThreads);  // all four warps' products have read Q
    put_rows<d>(rO, normalise, smem.Q[wg]);
    fa::fence_proxy_async();  // TMA reads what this thread has written ...
    fa::bar_sync(1 + T::kConsumers + wg,
                 kGroupThreads);  // ... and what the warpgroup's others have
    if (threadIdx.x % kGroupThreads == 0) {
      fa::tma_store(O, smem.Q[wg], {0, work.row, 0, work.bh});
      fa::tma_store_commit();
      fa::tma_store_wait_read<0>();  // shared memory must outlive the block's copies
    }
  }
};

template <class T, bool kLazy>
__global__ void __launch_bounds__(T::kThreads, 1)
    flash_fwd_kernel(const __grid_constant__ fa::TensorMap Q,  // [B*H, N, d]
                     const __grid_constant__ fa::TensorMap K,  // [B*Hkv, Nk, d]
                     const __grid_constant__ fa::TensorMap V,  // [B*Hkv, Nk, d]
                     const __grid_constant__ fa::TensorMap O,  // [B*H, N, d]
                     float* LSE,                               // [B*H, N]
                     Shape shape) {
  Tiles<T>& smem = *fa::dynamic_shared<Tiles<T>>();
  if (threadIdx.x == 0) {
    constexpr int kWarps = T::kConsumers * kGroupThreads / fa::kWarp;
    fa::mbarrier_init(&smem.q_full, 1);
    init_mbarriers(smem.k_full, 1), init_mbarriers(smem.k_empty, kWarps);
    init_mbarriers(smem.v_full, 1), init_mbarriers(smem.v_empty, kWarps);
    fa::mbarrier_init_fence();
  }
  __syncthreads();  // all threads see the barriers
  const WorkTile work = work_tile_at<T>(blockIdx.x, shape);
  const int wg = fa::uniform(threadIdx.x / kGroupThreads);
  if (wg == 0) {
    fa::setmaxnreg_dec<T::kProducerRegisters>();
    if (threadIdx.x == 0) produce<T>(smem, &Q, &K, &V, work);
  } else {
    fa::setmaxnreg_inc<T::kConsumerRegisters>();
    Consumer<T, kLazy>(smem, LSE, shape, wg - 1, work).run(&O);
  }
}

// --- host ---------------------------------------------------------------------------------------

inline fa::Prediction traffic(const fa::Problem& p) {
  return dispatch(p, [&](auto tiling) { return traffic_of<decltype(tiling)>(p, tiling.Br); });
}

template <bool kLazy>
void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  dispatch(p, [&](auto tiling) {
    using T = decltype(tiling);
    launch_mapped<T>(flash_fwd_kernel<T, kLazy>,
                     {dim3(work_tiles_of<T>(p)), dim3(T::kThreads), sizeof(Tiles<T>)}, p, t);
  });
}

}  // namespace step10_specialized

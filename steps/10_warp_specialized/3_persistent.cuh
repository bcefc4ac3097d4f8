// Step 10 -- past FlashAttention-3: persistent blocks, which do not stop between work tiles.
// Idea      One block per SM processes one work tile after another. The next one's Q has already
//           arrived: its first product overlaps the last P V of this one, and the store of O
// Changed   since 10 2_specialized: blocks loop over work tiles; two Q; a separate thread stores O;
//           no turns, because consumers drift apart by themselves; always `lazy`
// Traffic   as 1_producer
// Launch    grid (SMs, or fewer tiles); 1 warpgroup copies and stores, 2 (d = 128) or 4 multiply
// Owns      block: Br = 128 rows at a time (d = 128) or 256, by Bc = 128 keys or 64; consumer: 64
// Still bad causal: work tiles differ in length, and each block takes every gridDim.x-th one
#pragma once

#include "common/dialect/ptx/barrier.h"
#include "common/dialect/ptx/setmaxnreg.h"
#include "steps/10_warp_specialized/parts.cuh"

namespace step10_persistent {

using namespace step10;  // parts.cuh

// --- the producer: one thread copies -------------------------------------------------------------

// Q of each work tile, K and V of its tiles of keys from the last to the first, in the order of
// their use: K_n Q K_n-1 V_n K_n-2 V_n-1 ... V_0. A block has every gridDim.x-th work tile.
template <class T>
__device__ inline void produce(Tiles<T>& smem, const fa::TensorMap* Q, const fa::TensorMap* K,
                               const fa::TensorMap* V, const Shape& shape) {
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
  for (int n = 0, t = blockIdx.x;; ++n, t += gridDim.x) {
    const int b = n % 2;
    const WorkTile work = work_tile_at<T>(t, shape);
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
    for (int j = work.tiles - 1; j >= 0; --j) {
      if (j > 0) load_k(j - 1, work.bh_kv);
      load_v(j, work.bh_kv);
    }
  }
}

// --- another thread of its warpgroup stores ------------------------------------------------------

// Stores O of each work tile and consumer from its Q's buffer, then releases the buffer.
template <class T>
__device__ inline void store(Tiles<T>& smem, const fa::TensorMap* O) {
  for (int n = 0;; ++n) {
    const int b = n % 2;
    for (int wg = 0; wg < T::kConsumers; ++wg) {
      fa::mbarrier_wait(&smem.q_full[b][wg], n / 2 & 1);  // the work tile has arrived, too
      const WorkTile work = smem.work[b][wg];
      if (work.tiles == 0) return;
      fa::mbarrier_wait(&smem.o_full[b][wg], n / 2 & 1);
      fa::tma_store(O, smem.Q[b][wg], {0, work.row + wg * kGroupRows, 0, work.bh});
      fa::tma_store_commit();
      fa::tma_store_wait_read<0>();
      fa::mbarrier_arrive(&smem.q_empty[b][wg]);
    }
  }
}

// --- the consumers multiply, and compute the softmax ---------------------------------------------

// A warpgroup that owns 64 rows of each work tile. Its registers: see parts.cuh.
template <class T>
struct Consumer {
  static constexpr int d = T::d, Bc = T::Bc, kPanelBytes = Bc * kRowBytes;
  Tiles<T>& smem;
  float* LSE;  // [B*H, N]
  const Shape& shape;
  const int wg;
  const int warp = threadIdx.x % kGroupThreads / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const uint64_t q0 = tile_descriptor(smem.Q[0][wg]), k0 = tile_descriptor(smem.K[0]);
  const uint64_t v0 = tile_descriptor(smem.V[0], kPanelBytes);
  Ring<T::kStagesK> k;
  Ring<T::kStagesV> v;
  WorkTile work;
  int j = 0;  // the next tile of keys
  float rS[Bc / 2], rO[d / 2], m[2], l[2], alpha[2];
  uint32_t rP[Bc / kMma][4];

  __device__ Consumer(Tiles<T>& smem, float* LSE, const Shape& shape, int wg)
      : smem(smem), LSE(LSE), shape(shape), wg(wg) {}

  // Issues S = Q K^T of tile j. b: which Q.
  __device__ void issue_scores(unsigned b, unsigned stage) {
    multiply_features<d>(q0 + b * (sizeof smem.Q[0] >> 4), k0 + stage * (sizeof smem.K[0] >> 4),
                         rS);
  }
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

  // Takes the block's n-th work tile; false if there is none. Lane 0 reads it for its warp and
  // arrives for it: racecheck can follow that order.
  __device__ bool take(unsigned n) {
    fa::mbarrier_wait(&smem.q_full[n % 2][wg], n / 2 & 1);
    if (lane == 0) work = smem.work[n % 2][wg];
    work.bh = fa::uniform(work.bh);
    work.row = fa::uniform(work.row) + wg * kGroupRows;
    work.tiles = fa::uniform(work.tiles);
    j = work.tiles - 1;
    return work.tiles > 0;
  }
  __device__ void mask_tile() {
    if (visible<T>(shape, work.row) >= (j + 1) * Bc) return;
    const int row = work.row + warp * 16 + fa::row_of(lane), key = j * Bc + fa::column_of(lane);
    mask(rS, visible<T>(shape, row) - key, visible<T>(shape, row + 8) - key);
  }
  __device__ void first_softmax() {
    mask_tile();
    first_max(rS, shape.scale_log2, m, l);
    compute_p(rS, shape.scale_log2, m, l);
  }

  __device__ void next_tile(unsigned b) {
    --j;
    fa::mbarrier_wait(&smem.k_full[k.stage], k.parity);
    issue_scores(b, k.stage);
    issue_values();
    wait_for<1>(rS);
    release(k, smem.k_empty);
    mask_tile();
    const bool grown = fa::lazy_softmax(rS, shape.scale_log2, m, l, alpha);
    wait_values();
    pack_operand(rS, rP);
    if (__builtin_expect(grown, 0)) rescale(rO, alpha);
  }

  __device__ void run() {
    // --- prologue: the first tile of the first work tile
    take(0);
    fa::mbarrier_wait(&smem.k_full[k.stage], k.parity);
    issue_scores(0, k.stage);
    wait_for<0>(rS);
    release(k, smem.k_empty);
    first_softmax();
    pack_operand(rS, rP);

    bool more = true;
    for (unsigned n = 0; more; ++n) {
      const unsigned b = n % 2;
      fa::clear(rO);

      // --- mainloop
      while (j > 0) next_tile(b);

      // --- the seam: the work tile's last P V overlaps the next one's first Q K^T. If there is no
      // next one, stale tiles are multiplied: a branch would make ptxas wait for each product.
      const WorkTile old = work;
      const float old_m[2] = {m[0], m[1]};
      float old_l[2] = {l[0], l[1]}, normalise[2];
      more = take(n + 1);
      if (more) fa::mbarrier_wait(&smem.k_full[k.stage], k.parity);
      issue_scores(more ? b ^ 1 : b, more ? k.stage : 0);
      issue_values();
      wait_for<1>(rS);
      if (more) {
        release(k, smem.k_empty);
        first_softmax();
      }
      UNROLL
      for (int h = 0; h < 2; ++h) {
        old_l[h] = fa::quad_sum(old_l[h]);
        normalise[h] = old_l[h] > 0.f ? __fdividef(1.f, old_l[h]) : 0.f;  // no key seen: O = 0
        const int row = old.row + warp * 16 + fa::row_of(lane) + h * 8;
        if (fa::leads_quad(lane) && row < shape.N) {
          LSE[size_t(old.bh) * shape.N + row] = (old_m[h] + __log2f(old_l[h])) * fa::kLn2;
        }
      }
      wait_for<0>(rO);
      fa::pin_registers(rS);
      release(v, smem.v_empty);
      pack_operand(rS, rP);

      // --- epilogue
      fa::bar_sync(1 + wg, kGroupThreads);  // all four warps' products have read Q
      put_rows<d>(rO, normalise, smem.Q[b][wg]);
      fa::fence_proxy_async();  // TMA reads what this thread has written ...
      __syncwarp();             // ... and what the other lanes have
      arrive(&smem.o_full[b][wg]);
    }
  }
};

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    flash_fwd_kernel(const __grid_constant__ fa::TensorMap Q,  // [B*H, N, d]
                     const __grid_constant__ fa::TensorMap K,  // [B*Hkv, Nk, d]
                     const __grid_constant__ fa::TensorMap V,  // [B*Hkv, Nk, d]
                     const __grid_constant__ fa::TensorMap O,  // [B*H, N, d]
                     float* LSE,                               // [B*H, N]
                     Shape shape) {
  Tiles<T>& smem = *fa::dynamic_shared<Tiles<T>>();
  if (threadIdx.x == 0) init_barriers<T>(smem);
  __syncthreads();  // all threads see the barriers
  const int wg = fa::uniform(threadIdx.x / kGroupThreads);
  if (wg == 0) {
    fa::setmaxnreg_dec<T::kProducerRegisters>();
    if (threadIdx.x == 0) produce<T>(smem, &Q, &K, &V, shape);
    if (threadIdx.x == fa::kWarp) step10_persistent::store<T>(smem, &O);
  } else {
    fa::setmaxnreg_inc<T::kConsumerRegisters>();
    Consumer<T>(smem, LSE, shape, wg - 1).run();
  }
}

// --- host ---------------------------------------------------------------------------------------

// Tests use fewer blocks than SMs.
template <class T>
void launch(const fa::Problem& p, const fa::Tensors<bf16>& t, int blocks) {
  launch_mapped<T>(flash_fwd_kernel<T>,
                   fa::share_work(blocks, work_tiles_of<T>(p), T::kThreads, sizeof(Tiles<T>)), p,
                   t);
}

inline fa::Prediction traffic(const fa::Problem& p) {
  return dispatch(p, [&](auto tiling) {
    using T = decltype(tiling);
    const uint64_t blocks = std::min(p.gpu.sms, work_tiles_of<T>(p));
    fa::Prediction t = traffic_of<T>(p, T::Br);
    t.flops += 2 * blocks * T::Br * T::Bc * p.d;  // a block's last Q K^T, whose result is unused
    return t;
  });
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  dispatch(p, [&](auto tiling) { launch<decltype(tiling)>(p, t, p.gpu.sms); });
}

}  // namespace step10_persistent

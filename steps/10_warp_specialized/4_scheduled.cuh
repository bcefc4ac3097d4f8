// Step 10 -- past FlashAttention-3: a tile scheduler for causal work.
// Idea      Causal work tiles differ in length. The producer draws the next one from a counter that
//           all blocks share, longest first, by sections of heads, so that K and V stay in the L2.
//           64 rows skip the tiles of keys that only later rows see
// Changed   since 10 3_persistent: work tiles from a counter instead of every gridDim.x-th one;
//           sections of heads; skipped tiles, whose stages are released unread; causal: keys from
//           the first tile to the last, and the mask only in the last rounds of the loop
// Traffic   as 1_producer; causal: 4 B per work tile and per block, atomic, and 8 B: the counters
// Launch    grid (SMs, or fewer tiles); 1 warpgroup copies and stores, 2 (d = 128) or 4 multiply
// Owns      block: Br = 128 rows at a time (d = 128) or 256, by Bc = 128 keys or 64; consumer: 64
// Still bad short walks: nothing overlaps the maximum of each work tile's first tile
#pragma once

#include "common/dialect/ptx/barrier.h"
#include "common/dialect/ptx/setmaxnreg.h"
#include "steps/10_warp_specialized/parts.cuh"

namespace step10 {

// The i-th tile of keys of a walk. The last one of all may be cut: the walk begins with it without
// a causal mask and ends with it otherwise, as a mask costs less in the loop than at the seam.
template <class T>
__device__ inline int tile_at(int i, int tiles) {
  return T::kCausal ? i : tiles - 1 - i;
}

// The producer draws the next work tile this many keys before a walk ends. Earlier, it could be
// stuck with a long walk while other blocks idle; later, its copies would wait.
constexpr int kDrawBefore = 256;

// Work tile t. Causal: one section of heads after another, the longest walks of each first.
template <class T>
__device__ inline WorkTile scheduled(int t, const Shape& shape, int section) {
  const int Tr = (shape.N + T::Br - 1) / T::Br;
  if (t >= Tr * shape.heads) return {0, 0, 0, 0};
  int bh = t / Tr, i = t % Tr;
  if (T::kCausal) {
    const int first = t / (section * Tr) * section;
    const int heads = min(section, shape.heads - first), rank = t - first * Tr;
    bh = first + rank % heads, i = Tr - 1 - rank / heads;
  }
  return {bh, bh / shape.group, i * T::Br, tiles_for<T>(shape, (i + 1) * T::Br - 1)};
}

// --- the producer: one thread copies -------------------------------------------------------------

// Q of each work tile, K and V of its tiles of keys in the order of their use: K_0 Q K_1 V_0 K_2
// V_1 ... V_n. A block has every gridDim.x-th work tile or, where lengths differ, the next of all.
template <class T>
__device__ inline void produce(Tiles<T>& smem, const fa::TensorMap* Q, const fa::TensorMap* K,
                               const fa::TensorMap* V, const Shape& shape, int section,
                               unsigned* taken) {
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
    const int b = n % 2;
    const WorkTile work = scheduled<T>(t, shape, section);
    if (work.tiles > 0) load_k(tile_at<T>(0, work.tiles), work.bh_kv);
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
    const int drawn_at = max(0, work.tiles - 1 - kDrawBefore / T::Bc);
    for (int i = 0; i < work.tiles; ++i) {
      if (T::kCausal && i == drawn_at) t = atomicAdd(&taken[0], 1u);  // not needed until the end
      if (i + 1 < work.tiles) load_k(tile_at<T>(i + 1, work.tiles), work.bh_kv);
      load_v(tile_at<T>(i, work.tiles), work.bh_kv);
    }
    t += gridDim.x;
  }
  // The last block to leave resets the counters; concurrent launches need separate ones.
  if (T::kCausal) {
    __threadfence();
    if (atomicAdd(&taken[1], 1u) == gridDim.x - 1) taken[0] = 0, taken[1] = 0;
  }
}

// --- another thread of its warpgroup stores ------------------------------------------------------

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
  int at = 0, j = 0;          // place in the walk of the next tile of keys; that tile
  int last = 0, skipped = 0;  // this warpgroup's last place; tiles after it: K released, V not yet
  // V of the tile in use and of all skipped ones must fit.
  static_assert((T::Br - kGroupRows + Bc - 1) / Bc + 1 <= T::kStagesV);
  float rS[Bc / 2], rO[d / 2], m[2], l[2], alpha[2];
  uint32_t rP[Bc / kMma][4];

  __device__ Consumer(Tiles<T>& smem, float* LSE, const Shape& shape, int wg)
      : smem(smem), LSE(LSE), shape(shape), wg(wg) {}

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

  __device__ bool take(unsigned n) {
    fa::mbarrier_wait(&smem.q_full[n % 2][wg], n / 2 & 1);
    if (lane == 0) work = smem.work[n % 2][wg];
    work.bh = fa::uniform(work.bh);
    work.row = fa::uniform(work.row) + wg * kGroupRows;
    work.tiles = fa::uniform(work.tiles);
    at = 0, j = tile_at<T>(at, work.tiles);
    last = tiles_for<T>(shape, work.row + kGroupRows - 1) - 1;
    return work.tiles > 0;
  }
  // Releases unseen tiles: K before the seam, V after its P V, whose V is earlier in the ring.
  __device__ void skip_keys() {
    skipped = work.tiles - 1 - last;
    for (int s = 0; s < skipped; ++s) skip(k, smem.k_full, smem.k_empty);
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
  __device__ void next_tile(unsigned b) {
    j = tile_at<T>(++at, work.tiles);
    fa::mbarrier_wait(&smem.k_full[k.stage], k.parity);
    issue_scores(b, k.stage);
    issue_values();
    wait_for<1>(rS);
    release(k, smem.k_empty);
    if (kMayBeCut) mask_tile();
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
      // A warpgroup's diagonal crosses two tiles only when N - Nk is not a multiple of 64.
      const int unmasked = T::kCausal ? min(last, visible<T>(shape, work.row) / Bc - 1) : last;
      while (at < unmasked) next_tile<false>(b);
      while (T::kCausal && at < last) next_tile<true>(b);
      skip_keys();

      // --- the seam: the work tile's last P V overlaps the next one's first Q K^T. Without one,
      // that product multiplies stale tiles: a branch would make ptxas wait for each.
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
      skip_values();
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
                     Shape shape, int section,                 // heads whose work tiles are mixed
                     unsigned* taken) {                        // [2]: work tiles, blocks that left
  Tiles<T>& smem = *fa::dynamic_shared<Tiles<T>>();
  if (threadIdx.x == 0) init_barriers<T>(smem);
  __syncthreads();  // all threads see the barriers
  const int wg = fa::uniform(threadIdx.x / kGroupThreads);
  if (wg == 0) {
    fa::setmaxnreg_dec<T::kProducerRegisters>();
    if (threadIdx.x == 0) produce<T>(smem, &Q, &K, &V, shape, section, taken);
    if (threadIdx.x == fa::kWarp) store<T>(smem, &O);
  } else {
    fa::setmaxnreg_inc<T::kConsumerRegisters>();
    Consumer<T>(smem, LSE, shape, wg - 1).run();
  }
}

// --- host ---------------------------------------------------------------------------------------

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  if (!p.causal) return {};
  return {{.name = "taken", .bytes = 2 * sizeof(unsigned), .zeroed = true}};
}

template <class T>
void launch(const fa::Problem& p, const fa::Tensors<bf16>& t, int blocks) {
  constexpr int d = T::d;
  // K and V of a section's heads stay in the L2: at most 16 MB, 4 d bytes per key; both measured.
  const int section = std::min(4096 / d, std::max(1, (4 << 20) / d / p.Nk) * (p.H / p.Hkv));
  launch_mapped<T>(flash_fwd_kernel<T>,
                   fa::share_work(blocks, work_tiles_of<T>(p), T::kThreads, sizeof(Tiles<T>)), p, t,
                   section, p.causal ? t.template scratch<unsigned>("taken") : nullptr);
}

template <class T>
fa::Prediction traffic_of(const fa::Problem& p) {
  const uint64_t tiles = work_tiles_of<T>(p), blocks = std::min<uint64_t>(p.gpu.sms, tiles);
  fa::Prediction t = traffic_of<T>(p, kGroupRows);
  if (p.causal) t["taken"] = {.read = 0, .write = 8, .atomic = 4 * (tiles + blocks)};
  t.flops += 2 * blocks * T::Br * T::Bc * p.d;  // a block's last Q K^T, whose result is unused
  return t;
}

inline fa::Prediction traffic(const fa::Problem& p) {
  return dispatch(p, [&](auto tiling) { return traffic_of<decltype(tiling)>(p); });
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  dispatch(p, [&](auto tiling) { launch<decltype(tiling)>(p, t, p.gpu.sms); });
}

}  // namespace step10

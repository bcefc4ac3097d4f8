// Step 12 -- FlashAttention in fp8, converted from step 10.
// Idea      Operands of one byte: twice the tensor cores' rate, half of the shared memory. P is at
//           most 2^5 when its maximum is new, and may grow
//           by 2^3.8 before the maximum moves; step 10's 2^8 would exceed 448, e4m3's maximum
// Changed   since 10 4_scheduled: operands of e4m3; scales; P times 2^5; see also parts.cuh
// Traffic   requested read  BH*N*d + 2*Tr*BH*Nk*d B    Tr = ceil(N/Br); causal: K8 and V8 of
//                     write 2*BH*N*d + 4*BH*N B        visited tiles; scales: forward_traffic()
//           compulsory      the same with Tr = 1
// Launch    grid (SMs, or fewer tiles); 1 warpgroup copies and stores, 2 (d = 128) or 3 multiply
// Owns      block: a work tile, Br rows of O, at a time; consumer: 64 of them
// Still bad a tensor core adds with 13 bits and truncates the rest. With a V of normal numbers
//           around 1 and 16,384 keys, O is 19% too small: 3_centred
#pragma once

#include "common/dialect/ptx/setmaxnreg.h"
#include "steps/12_fp8/parts.cuh"

namespace step12_tensor {

using namespace step12;  // parts.cuh

// A row's largest P is 2^5, exact in e4m3; with an older maximum at most 2^8.8 = 445.
constexpr float kOffset = 5.f, kGrowth = 3.8f;

// Replaces S by P = 2^(S - m + kOffset) and adds its row sums to l.
template <int n>
__device__ inline void compute_p(float (&rS)[n], float scale_log2, const float (&m)[2],
                                 float (&l)[2]) {
  const float below[2] = {m[0] - kOffset, m[1] - kOffset};
  fa::compute_p(rS, scale_log2, below, l);
}

template <class T>
struct Consumer {
  static constexpr int d = T::d, Bc = T::Bc;
  Tiles<T>& smem;
  float* LSE;  // [B*H, N]
  const Scales& scales;
  const Shape& shape;
  const int wg;
  const int warp = threadIdx.x % kGroupThreads / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const uint64_t q0 = tile_descriptor<kFeatures<d>>(smem.Q[0][wg]);
  const uint64_t k0 = tile_descriptor<kFeatures<d>>(smem.K[0]);
  const uint64_t v0 = tile_descriptor<kKeys<Bc>>(smem.V[0]);
  Ring<T::kStages> k, v;
  WorkTile work;
  float q_scale = 0.f, scale_log2 = 0.f;  // of this work tile's Q; of tile j's scores
  int j = 0;                              // the next tile of keys
  int skipped = 0;                        // tiles whose K was released, and V not yet
  // V of the tile in use and of all skipped ones but one must fit.
  static_assert((T::Br - kGroupRows + Bc - 1) / Bc <= T::kStages);
  float rS[Bc / 2], rO[d / 2], m[2], l[2], alpha[2];
  uint32_t rP[Bc / kK][4];

  __device__ Consumer(Tiles<T>& smem, float* LSE, const Scales& scales, const Shape& shape, int wg)
      : smem(smem), LSE(LSE), scales(scales), shape(shape), wg(wg) {}

  __device__ void issue_scores(unsigned b, unsigned stage) {
    multiply_scores<T>(q0 + b * (sizeof smem.Q[0] >> 4), k0 + stage * (sizeof smem.K[0] >> 4), rS);
  }
  __device__ void issue_values() {
    fa::mbarrier_wait(&smem.v_full[v.stage], v.parity);
    multiply_values<T>(rP, v0 + v.stage * (sizeof smem.V[0] >> 4), rO);
  }
  __device__ void wait_values() {
    fa::pin_registers(rS);  // as in step 10
    wait_for<0>(rO);
    fa::pin_registers(rS);
    release(v, smem.v_empty);
  }

  __device__ bool take(unsigned n) {
    fa::mbarrier_wait(&smem.q_full[n % 2][wg], n / 2 & 1);
    if (lane == 0) work = smem.work[n % 2][wg];
    work.bh = fa::uniform(work.bh);
    work.bh_kv = fa::uniform(work.bh_kv);
    work.row = fa::uniform(work.row) + wg * kGroupRows;
    work.tiles = fa::uniform(work.tiles);
    if (work.tiles == 0) return false;
    q_scale = scales.Q[query_block(shape, work)] * shape.scale_log2;
    return true;
  }
  // Not 0, since -inf * 0 is a NaN. Scores of a scale below 2^-100 vanish against their maximum.
  __device__ void load_scale() {
    scale_log2 = q_scale * scales.K[work.bh_kv * ((shape.Nk + Bc - 1) / Bc) + j];
    scale_log2 = fmaxf(scale_log2, 0x1p-100f);
  }
  // Skips K of unseen tiles at once, V only after the last P V, whose V is earlier in the ring.
  __device__ void skip_keys() {
    j = tiles_for<T>(shape, work.row + kGroupRows - 1) - 1;
    for (skipped = 0; skipped < work.tiles - 1 - j; ++skipped) skip(k, smem.k_full, smem.k_empty);
    load_scale();
  }
  __device__ void skip_values() {
    for (; skipped > 0; --skipped) skip(v, smem.v_full, smem.v_empty);
  }
  __device__ void mask_tile() {
    if (visible<T>(shape, work.row) >= (j + 1) * Bc) return;
    const int row = work.row + warp * 16 + fa::row_of(lane), key = j * Bc + fa::column_of(lane);
    mask(rS, visible<T>(shape, row) - key, visible<T>(shape, row + 8) - key);
  }
  __device__ void first_softmax() {
    mask_tile();
    first_max(rS, scale_log2, m, l);
    compute_p(rS, scale_log2, m, l);
  }

  template <bool kMayBeCut>
  __device__ bool softmax() {
    if (kMayBeCut) mask_tile();
    const bool grown = needs_rescale(rS, m, scale_log2, kGrowth);
    if (__builtin_expect(grown, 0)) update_max(rS, scale_log2, m, l, alpha);
    compute_p(rS, scale_log2, m, l);
    return grown;
  }

  __device__ void next_scores(unsigned b) {
    --j;
    load_scale();
    fa::mbarrier_wait(&smem.k_full[k.stage], k.parity);
    issue_scores(b, k.stage);
    issue_values();
    wait_for<1>(rS);
    release(k, smem.k_empty);
  }
  __device__ void end_tile(bool grown) {
    wait_values();
    pack_operand(rS, rP);
    if (__builtin_expect(grown, 0)) rescale(rO, alpha);
  }
  template <bool kMayBeCut>
  __device__ void next_tile(unsigned b) {
    next_scores(b);
    end_tile(softmax<kMayBeCut>());
  }

  __device__ void first_tile() {
    skip_keys();
    skip_values();
    fa::mbarrier_wait(&smem.k_full[k.stage], k.parity);
    issue_scores(0, k.stage);
    wait_for<0>(rS);
    release(k, smem.k_empty);
    first_softmax();
    pack_operand(rS, rP);
  }

  // The last P V of a work tile, the n-th, overlaps the next one's first Q K^T. Without one, that
  // product multiplies stale tiles: a branch would make ptxas wait for each. b: the old tile's Q.
  __device__ void seam(const WorkTile& old, unsigned n, unsigned b, bool more) {
    const float old_m[2] = {m[0], m[1]};
    float old_l[2] = {l[0], l[1]}, normalise[2], seen[2];
    if (more) {
      skip_keys();
      fa::mbarrier_wait(&smem.k_full[k.stage], k.parity);
    }
    issue_scores(more ? b ^ 1 : b, more ? k.stage : 0);
    issue_values();
    wait_for<1>(rS);
    arrive(&smem.q_empty[b][wg]);
    if (more) {
      release(k, smem.k_empty);
      first_softmax();
    }
    UNROLL
    for (int h = 0; h < 2; ++h) {
      old_l[h] = fa::quad_sum(old_l[h]);
      seen[h] = old_l[h] > 0.f ? 1.f : 0.f;  // no key seen: O = 0
      normalise[h] = old_l[h] > 0.f ? __fdividef(1.f, old_l[h]) : 0.f;
      const int row = old.row + warp * 16 + fa::row_of(lane) + h * 8;
      if (fa::leads_quad(lane) && row < shape.N) {
        LSE[size_t(old.bh) * shape.N + row] = (old_m[h] - kOffset + __log2f(old_l[h])) * fa::kLn2;
      }
    }
    wait_for<0>(rO);
    fa::pin_registers(rS);
    release(v, smem.v_empty);
    skip_values();
    pack_operand(rS, rP);

    fa::mbarrier_wait(&smem.o_empty[wg], (n & 1) ^ 1);
    const int feature = old.bh_kv * d + fa::column_of(lane);
    put_rows<d>(rO, normalise, seen, scales.V + feature, scales.mean + feature, smem.O[wg]);
    fa::fence_proxy_async();  // TMA reads what this thread has written ...
    __syncwarp();             // ... and what the other lanes have
    arrive(&smem.o_full[wg]);
  }

  __device__ void run() {
    // --- prologue
    take(0);
    first_tile();
    bool more = true;
    for (unsigned n = 0; more; ++n) {
      const unsigned b = n % 2;
      fa::clear(rO);

      // --- mainloop
      while (T::kCausal && j > 0 && visible<T>(shape, work.row) < j * Bc) next_tile<true>(b);
      while (j > 0) next_tile<false>(b);

      // --- the seam, and the epilogue
      const WorkTile old = work;
      more = take(n + 1);
      seam(old, n, b, more);
    }
  }
};

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    flash_fwd_kernel(const __grid_constant__ fa::TensorMap Q,  // [B*H, N, d]
                     const __grid_constant__ fa::TensorMap K,  // [B*Hkv, Nk, d]
                     const __grid_constant__ fa::TensorMap V,  // [B*Hkv, d, Nkp]
                     const __grid_constant__ fa::TensorMap O,  // [B*H, N, d]
                     float* LSE,                               // [B*H, N]
                     Scales scales, Shape shape, unsigned* taken) {
  Tiles<T>& smem = *fa::dynamic_shared<Tiles<T>>();
  if (threadIdx.x == 0) init_barriers<T>(smem);
  __syncthreads();
  const int wg = fa::uniform(threadIdx.x / kGroupThreads);
  if (wg == 0) {
    fa::setmaxnreg_dec<T::kProducerRegisters>();
    if (threadIdx.x == 0) produce<T>(smem, &Q, &K, &V, shape, taken);
    if (threadIdx.x == fa::kWarp) store<T>(smem, &O);
  } else {
    fa::setmaxnreg_inc<T::kConsumerRegisters>();
    Consumer<T>(smem, LSE, scales, shape, wg - 1).run();
  }
}

// --- host ----------------------------------------------------------------------------------------

// With d = 256 this kernel would spill registers.
inline fa::Support support() { return {.d = {64, 128}, .gqa = true, .cross = true}; }

template <int d_, bool kCausal_>
struct Tiling {
  static constexpr int d = d_;
  static constexpr bool kCausal = kCausal_;
  static constexpr int kConsumers = d == 64 ? 3 : 2, Br = kConsumers * kGroupRows;
  static constexpr int Bc = 128, kStages = d == 64 ? 6 : 4;
  static constexpr int kThreads = (1 + kConsumers) * kGroupThreads;
  static constexpr int kProducerRegisters = d == 64 ? 32 : 40;
  static constexpr int kConsumerRegisters = d == 64 ? 160 : 232;
};

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  dispatch_over<Tiling, 64, 128>(p, [&](auto tiling) {
    using T = decltype(tiling);
    launch_forward<T>(flash_fwd_kernel<T>, p, t, scales_of(t));
  });
}
inline fa::Prediction traffic(const fa::Problem& p) {
  return dispatch_over<Tiling, 64, 128>(
      p, [&](auto tiling) { return forward_traffic<decltype(tiling)>(p); });
}

}  // namespace step12_tensor

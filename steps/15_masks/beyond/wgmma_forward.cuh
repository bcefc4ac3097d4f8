// Step 15 -- changed scores on Hopper, and the kernel of wgmma_lists.
// Idea      3_wgmma's kernel for any mask that gives a walk's tiles and their bits, and may change
//           scores. A sink joins the maximum and the sum of the first tile
// Changed   since 15 3_wgmma, whose comments are not repeated: the mask is a template argument;
//           scores change before they are hidden
// Traffic   as 3_wgmma; 4 B of `sinks` per work tile and thread of the consumers
// Launch    and owners as 3_wgmma
// Still bad changed scores have their backward by mma.sync: backward
#pragma once

#include "steps/15_masks/3_wgmma.cuh"
#include "steps/15_masks/beyond/scores.cuh"

namespace step15_wgmma_forward {

using namespace step15_wgmma;

struct Scored : WorkTable {
  static constexpr bool kChangesScores = true;
  step15_scores::ScoreMod mod;

  __device__ int tile(const WorkTile& work, int place) const { return work.first + place; }
  template <int Bc>
  __device__ void change(float (&rS)[Bc / 2], const WorkTile& work, int place, int r) const {
    const int key = tile(work, place) * Bc + fa::column_of(threadIdx.x % fa::kWarp);
    const float back = r + work.keys - work.rows - key;
    const float slope = mod.alibi > 0.f ? mod.slope(work.bh % mod.H) : 0.f;
    if (mod.cap > 0.f) {
      UNROLL
      for (int i = 0; i < Bc / 2; ++i) rS[i] = mod.capped(rS[i]);
    }
    if (mod.alibi > 0.f) {
      UNROLL
      for (int i = 0; i < Bc / 2; ++i) {
        rS[i] -= slope * fabsf(back + float(8 * fa::half_of(i) - fa::column_at(i)));
      }
    }
  }
  // The sink is a term of the sum like any other, without a key. One lane of each quad has it.
  __device__ void start(float (&m)[2], float (&l)[2], const WorkTile& work) const {
    const float sink = mod.sink(work.bh) * fa::kLog2e;
    UNROLL
    for (int h = 0; h < 2; ++h) {
      m[h] = fmaxf(m[h], sink);
      if (fa::leads_quad(threadIdx.x % fa::kWarp)) l[h] = fa::exp2_approx(sink - m[h]);
    }
  }
};

// --- the producer: one thread copies -------------------------------------------------------------

template <class T, class Mask>
__device__ inline void produce(Tiles<T>& smem, const fa::TensorMap* Q, const fa::TensorMap* K,
                               const fa::TensorMap* V, const Mask& mask, const Shape& shape,
                               unsigned* taken) {
  Ring<T::kStagesK> k;
  Ring<T::kStagesV> v;
  Ring<2> landed;
  const auto load_k = [&](int key, int bh) {
    fa::mbarrier_wait(&smem.k_empty[k.stage], k.parity ^ 1);
    fa::mbarrier_arrive_expect_tx(&smem.k_full[k.stage], sizeof smem.K[0]);
    fa::tma_load(smem.K[k.stage], K, &smem.k_full[k.stage], {0, key, 0, bh});
    k.next();
  };
  const auto load_v = [&](int key, int bh, bool whole) {
    uint64_t* full = whole ? &smem.v_full[v.stage] : &smem.v_landed[landed.stage];
    fa::mbarrier_wait(&smem.v_empty[v.stage], v.parity ^ 1);
    fa::mbarrier_arrive_expect_tx(full, sizeof smem.V[0]);
    fa::tma_load(smem.V[v.stage], V, full, {0, key, 0, bh});
    v.next();
    if (!whole) landed.next();
  };
  int t = blockIdx.x;
  WorkTile work = mask.work(t);
  for (int n = 0;; ++n) {
    const int b = n % 2, bh_kv = work.bh / shape.group;
    int key = work.tiles > 0 ? work.key + mask.tile(work, 0) * T::Bc : 0;
    if (work.tiles > 0) load_k(key, bh_kv);
    UNROLL_BY(1)
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
    const int drawn_at = max(0, work.tiles - 1 - 256 / T::Bc);
    UNROLL_BY(1)
    for (int i = 0;; ++i) {
      const int now = key;
      if (i == drawn_at) t = gridDim.x + atomicAdd(&taken[0], 1u);
      if (i + 1 == work.tiles) break;
      load_k(key = work.key + mask.tile(work, i + 1) * T::Bc, bh_kv);
      load_v(now, bh_kv, true);
    }
    const bool whole = keys_of_last<T>(work, shape.Nk) == T::Bc;
    work = mask.work(t);
    load_v(key, bh_kv, whole);
  }
  fa::leave(taken);
}

// --- the consumers multiply, and compute the softmax ---------------------------------------------

template <class T, class Mask>
struct Consumer : step15_wgmma::Consumer<T> {
  using Base = step15_wgmma::Consumer<T>;
  using Base::at, Base::k, Base::l, Base::m, Base::rO, Base::rP, Base::rS, Base::v;
  using Base::d, Base::Bc, Base::smem, Base::LSE, Base::shape, Base::wg, Base::lane, Base::row;
  using Base::is_cut, Base::issue_scores, Base::issue_values;
  using Base::skip_keys, Base::skip_values, Base::trailing;
  const Mask& mask;

  __device__ Consumer(Tiles<T>& smem, float* LSE, const Mask& mask, const Shape& shape, int wg)
      : Base(smem, LSE, shape, wg), mask(mask) {}

  __device__ bool take(unsigned n) {
    fa::mbarrier_wait(&smem.q_full[n % 2][wg], n / 2 & 1);
    const WorkTile& work = smem.work[n % 2][wg];
    if (fa::uniform(work.tiles) == 0) return false;
    this->begin_walk(work, mask.template visible_tiles<Bc>(work, wg * kGroupRows));
    return true;
  }

  __device__ void test(unsigned b, uint32_t (&bits)[2]) const {
    mask.template seen<Bc>(smem.work[b][wg], at.first, row(), bits);
  }
  __device__ void change(unsigned b) {
    if constexpr (Mask::kChangesScores) {
      mask.template change<Bc>(rS, smem.work[b][wg], at.first, row());
    }
  }
  __device__ void first_softmax(unsigned b, const uint32_t (&bits)[2]) {
    const WorkTile& work = smem.work[b][wg];
    change(b);
    if (is_cut()) hide(rS, bits);
    UNROLL
    for (int h = 0; h < 2; ++h) {
      m[h] = fmaxf(kNoMaximum, fa::row_max(rS, h) * shape.scale_log2);
      l[h] = 0.f;
    }
    if constexpr (Mask::kChangesScores) mask.start(m, l, work);
    UNROLL
    for (int h = 0; h < 2; ++h) {
      if (row() + 8 * h >= work.rows) m[h] = INFINITY;  // past the document: P is 0
    }
    fa::compute_p(rS, shape.scale_log2, m, l);
  }

  template <bool kCut>
  __device__ void next_tile(unsigned b) {
    ++at.first;
    fa::mbarrier_wait(&smem.k_full[k.stage], k.parity);
    issue_scores(b, k.stage);
    issue_values();
    uint32_t bits[2];
    if (kCut) test(b, bits);
    wait_for<1>(rS);
    release(k, smem.k_empty);
    change(b);
    if (kCut) hide(rS, bits);
    this->end_tile();
  }

  __device__ void run() {
    // --- prologue: the first tile of the first work tile
    uint32_t bits[2] = {};
    take(0);
    skip_values();
    issue_scores(0, k.stage);
    if (is_cut()) test(0, bits);
    wait_for<0>(rS);
    release(k, smem.k_empty);
    first_softmax(0, bits);
    fa::pack_operand(rS, rP);

    bool more = true;
    for (unsigned n = 0; more; ++n) {
      const unsigned b = n % 2;
      fa::clear(rO);

      // --- mainloop: cut on the left, then full; in a second round the rest, cut on the right
      while (at.first < at.last) {
        while (at.first < at.last_left) next_tile<true>(b);
        while (at.first < at.last_full) next_tile<false>(b);
        at.last_left = at.last;
      }
      skip_keys(trailing);

      // --- the seam
      const float old_m[2] = {m[0], m[1]};
      float old_l[2] = {l[0], l[1]};
      more = take(n + 1);
      issue_scores(more ? b ^ 1 : b, more ? k.stage : 0);
      issue_values();
      if (more && is_cut()) test(b ^ 1, bits);
      wait_for<1>(rS);
      if (more) {
        release(k, smem.k_empty);
        first_softmax(b ^ 1, bits);
      }
      this->end_walk(b, old_m, old_l);
    }
  }
};

template <class T, class Mask>
__global__ void __launch_bounds__(T::kThreads, 1)
    flash_fwd_kernel(const __grid_constant__ fa::TensorMap Q,      // [B*H, N, d]
                     const __grid_constant__ fa::TensorMap K,      // [B*Hkv, Nk, d]
                     const __grid_constant__ fa::TensorMap V,      // [B*Hkv, Nk, d]
                     const __grid_constant__ fa::TensorMap map_O,  // [B*H, N, d]
                     bf16* O,                                      // the same
                     float* LSE,                                   // [B*H, N]
                     const __grid_constant__ Mask mask, const __grid_constant__ Shape shape,
                     unsigned* taken) {  // [2]: work tiles, blocks that left
  Tiles<T>& smem = *fa::dynamic_shared<Tiles<T>>();
  if (threadIdx.x == 0) init_barriers<T>(smem);
  __syncthreads();  // all threads see the barriers
  const int wg = fa::uniform(threadIdx.x / kGroupThreads);
  if (wg == 0) {
    fa::setmaxnreg_dec<T::kProducerRegisters>();
    const int warp = threadIdx.x / fa::kWarp;
    if (threadIdx.x == 0) produce<T>(smem, &Q, &K, &V, mask, shape, taken);
    if (warp == 1) store<T>(smem, &map_O, O, shape);
    if (warp == 2) clear<T>(smem, shape);
  } else {
    fa::setmaxnreg_inc<T::kConsumerRegisters>();
    Consumer<T, Mask>(smem, LSE, mask, shape, wg - 1).run();
  }
}

// --- host ---------------------------------------------------------------------------------------

template <class T, class Mask>
void launch(const fa::Problem& p, const fa::Tensors<bf16>& t, const Mask& mask) {
  launch_mapped<T>(step15_wgmma_forward::flash_fwd_kernel<T, Mask>, p, t, mask.count, mask);
}

}  // namespace step15_wgmma_forward

namespace step15_wgmma_scores {

using namespace step15_wgmma_forward;

inline fa::Support support() {
  fa::Support s = step15_wgmma::support();
  s.score_mod = true;
  return s;
}

inline fa::Prediction traffic(const fa::Problem& p) {
  fa::Prediction t = step15_wgmma::traffic(p);
  if (!p.score_mod.sinks) return t;
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    using T = Tiling<d>;
    const unsigned tiles = count_row_tiles(p, T::Br) * p.heads();
    t["sinks"].read = sizeof(float) * (T::kThreads - kGroupThreads) * tiles;
  });
  t.hbm.read += sizeof(float) * p.H;
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    using T = Tiling<d>;
    const int count = count_row_tiles(p, T::Br) * int(p.heads());
    const WorkTable table{t.scratch<const int4>("work_tiles"), count, window_of(p)};
    const Scored mask{table, step15_scores::score_mod_of(p, t.sinks)};
    step15_wgmma_forward::launch<T>(p, t, mask);
  });
}

}  // namespace step15_wgmma_scores

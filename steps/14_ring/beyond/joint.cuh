// Step 14 -- two hops in one kernel.
// Idea      A rank's keys and those of the next hop are one walk: O needs no merge, and a work tile
//           is as long as on one GPU alone. Only `in_two` heads are computed in two parts: their
//           own keys before the messages have arrived, the others' at last, merged as in fused
#pragma once

#include "steps/14_ring/2_ring.cuh"
#include "steps/14_ring/hopper.cuh"

namespace step14 {

using fa::kPanel, step10::kGroupRows, step10::WorkTile;

struct JointTiling : step10::Tiling<128, false> {  // Br = Bc = 128
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;
};

// The rows of a rank, N, as whole tiles; which keys they see.
struct Joint {
  int own_tiles, late0;                      // tiles of own keys; first late row
  int early_tiles, late_tiles;               // of the others' keys: that early and late rows see
  int heads, group, section, first, in_two;  // position p of the schedule is head (p + first)
  bool causal;

  __device__ bool merges(int bh) const { return bh < in_two; }
  __device__ int own(int bh, int row) const {  // tiles of own keys of a work tile
    return merges(bh) ? 0 : causal ? row / JointTiling::Br + 1 : own_tiles;
  }
  __device__ int others(int row) const { return row < late0 ? early_tiles : late_tiles; }
  __device__ int work_tiles() const { return own_tiles * heads; }
  // The longest walks of each section first.
  __device__ WorkTile at(int t) const {
    const int Tr = own_tiles, start = t / (section * Tr) * section;
    const int some = min(section, heads - start), rank = t - start * Tr;
    const int bh = (start + rank % some + first) % heads;
    const int row = (Tr - 1 - rank / some) * JointTiling::Br;
    return {bh, bh / group, row, own(bh, row) + others(row)};
  }
};

// Own keys first: the tile at the diagonal, then from the first one on.
template <class T>
__device__ inline void produce_joint(step10::Tiles<T>& smem, const fa::TensorMap* Q,
                                     const fa::TensorMap* K, const fa::TensorMap* V,
                                     const fa::TensorMap* K_other, const fa::TensorMap* V_other,
                                     const Joint& joint, unsigned* taken) {
  fa::Ring<T::kStagesK> k;
  fa::Ring<T::kStagesV> v;
  const int all = joint.work_tiles();
  for (int n = 0, t = blockIdx.x;; ++n) {
    const int b = n % 2;
    WorkTile work{0, 0, 0, 0};
    while (t < all) {
      work = joint.at(t);
      if (work.tiles > 0) break;  // else early rows that see no key of the other rank
      t = int(gridDim.x + atomicAdd(&taken[0], 1u));
    }
    const int own = work.tiles > 0 ? joint.own(work.bh, work.row) : 0;
    const auto tile = [&](int i) { return i >= own ? i - own : i == 0 ? own - 1 : i - 1; };
    const auto load_k = [&](int i) {
      fa::mbarrier_wait(&smem.k_empty[k.stage], k.parity ^ 1);
      fa::mbarrier_arrive_expect_tx(&smem.k_full[k.stage], sizeof smem.K[0]);
      fa::tma_load(smem.K[k.stage], i < own ? K : K_other, &smem.k_full[k.stage],
                   {0, tile(i) * T::Bc, 0, work.bh_kv});
      k.next();
    };
    const auto load_v = [&](int i) {
      fa::mbarrier_wait(&smem.v_empty[v.stage], v.parity ^ 1);
      fa::mbarrier_arrive_expect_tx(&smem.v_full[v.stage], sizeof smem.V[0]);
      fa::tma_load(smem.V[v.stage], i < own ? V : V_other, &smem.v_full[v.stage],
                   {0, tile(i) * T::Bc, 0, work.bh_kv});
      v.next();
    };
    if (work.tiles > 0) load_k(0);
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
    const int drawn_at = max(0, work.tiles - 1 - step10::kDrawBefore / T::Bc);
    for (int i = 0; i < work.tiles; ++i) {
      if (i == drawn_at) t = int(gridDim.x + atomicAdd(&taken[0], 1u));
      if (i + 1 < work.tiles) load_k(i + 1);
      load_v(i);
    }
  }
  __threadfence();
  if (atomicAdd(&taken[1], 1u) == gridDim.x - 1) taken[0] = 0, taken[1] = 0;
}

// step10::Consumer with masks in a walk's first tile only.
template <class T>
struct JointConsumer : step10::Consumer<T> {
  using Base = step10::Consumer<T>;
  using Base::d;
  using Base::smem, Base::LSE, Base::shape, Base::wg, Base::warp, Base::lane, Base::k, Base::v,
      Base::work, Base::at, Base::last, Base::rS, Base::rO, Base::m, Base::l, Base::rP;
  const Joint& joint;
  float* LSE_merged;  // of the heads that are merged

  __device__ JointConsumer(step10::Tiles<T>& smem, float* LSE, float* LSE_merged,
                           const step10::Shape& shape, const Joint& joint, int wg)
      : Base(smem, LSE, shape, wg), joint(joint), LSE_merged(LSE_merged) {}

  __device__ bool take_joint(unsigned n) {
    const bool more = Base::take(n);
    last = work.tiles - 1;
    return more;
  }
  __device__ void first_softmax() {
    if (joint.causal && !joint.merges(work.bh)) {
      const int row = work.row + warp * 16 + fa::row_of(lane);
      const int key = work.row / T::Bc * T::Bc + fa::column_of(lane);
      step10::mask(rS, row + 1 - key, row + 9 - key);
    }
    UNROLL
    for (int h = 0; h < 2; ++h) {
      m[h] = fmaxf(fa::kNoMaximum, fa::row_max(rS, h) * shape.scale_log2);
      l[h] = 0.f;
    }
    fa::compute_p(rS, shape.scale_log2, m, l);
  }

  __device__ void run() {
    if (!take_joint(0)) return;  // others have drawn all work tiles
    fa::mbarrier_wait(&smem.k_full[k.stage], k.parity);
    this->issue_scores(0, k.stage);
    this->template wait_scores<0>();
    this->release(k, smem.k_empty);
    first_softmax();
    fa::pack_operand(rS, rP);

    bool more = true;
    for (unsigned n = 0; more; ++n) {
      const unsigned b = n % 2;
      UNROLL
      for (int i = 0; i < d / 2; ++i) rO[i] = 0.f;
      while (at < last) this->template next_tile<false>(b);

      const WorkTile old = work;
      const float old_m[2] = {m[0], m[1]};
      float old_l[2] = {l[0], l[1]}, normalise[2];
      more = take_joint(n + 1);
      if (more) fa::mbarrier_wait(&smem.k_full[k.stage], k.parity);
      this->issue_scores(more ? b ^ 1 : b, more ? k.stage : 0);
      this->issue_values();
      this->template wait_scores<1>();
      if (more) {
        this->release(k, smem.k_empty);
        first_softmax();
      }
      float* to = joint.merges(old.bh) ? LSE_merged : LSE;
      UNROLL
      for (int h = 0; h < 2; ++h) {
        old_l[h] = fa::quad_sum(old_l[h]);
        normalise[h] = __fdividef(1.f, old_l[h]);
        const int row = old.row + warp * 16 + fa::row_of(lane) + h * 8;
        if (fa::leads_quad(lane)) {
          to[size_t(old.bh) * shape.N + row] = (old_m[h] + __log2f(old_l[h])) * fa::kLn2;
        }
      }
      fa::wgmma_wait<0>();
      fa::pin_registers(rO);
      fa::pin_registers(rS);
      this->release(v, smem.v_empty);
      fa::pack_operand(rS, rP);

      fa::bar_sync(1 + wg, fa::kGroupThreads);
      fa::put_rows<d>(rO, normalise, smem.Q[b][wg]);
      fa::fence_proxy_async();
      __syncwarp();
      this->arrive(&smem.o_full[b][wg]);
    }
  }
};

// Stores a consumer's rows of each work tile, or merges them.
template <class T>
__device__ inline void store_or_merge(step10::Tiles<T>& smem, const fa::TensorMap* O,
                                      const float* LSE_merged, const SoFar& so_far,
                                      const step10::Shape& shape, const Joint& joint, int wg) {
  const int lane = threadIdx.x % fa::kWarp;
  for (int n = 0;; ++n) {
    const int b = n % 2;
    fa::mbarrier_wait(&smem.q_full[b][wg], n / 2 & 1);
    WorkTile work;
    if (lane == 0) work = smem.work[b][wg];
    const int bh = __shfl_sync(fa::kFullMask, work.bh, 0);
    const int row = __shfl_sync(fa::kFullMask, work.row, 0) + wg * kGroupRows;
    if (__shfl_sync(fa::kFullMask, work.tiles, 0) == 0) return;
    fa::mbarrier_wait(&smem.o_full[b][wg], n / 2 & 1);
    if (joint.merges(bh)) {
      merge_tile<T>(smem.Q[b][wg], LSE_merged, so_far, shape, bh, row);
    } else if (lane == 0) {
      fa::tma_store(O, smem.Q[b][wg], {0, row, 0, bh});
      fa::tma_store_commit();
      fa::tma_store_wait_read<0>();
    }
    __syncwarp();
    if (lane == 0) fa::mbarrier_arrive(&smem.q_empty[b][wg]);
  }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    joint_kernel(const __grid_constant__ fa::TensorMap Q, const __grid_constant__ fa::TensorMap K,
                 const __grid_constant__ fa::TensorMap V,
                 const __grid_constant__ fa::TensorMap K_other,
                 const __grid_constant__ fa::TensorMap V_other,
                 const __grid_constant__ fa::TensorMap O, float* LSE, float* LSE_merged,
                 SoFar so_far, step10::Shape shape, Joint joint, unsigned* taken) {
  step10::Tiles<T>& smem = *fa::dynamic_shared<step10::Tiles<T>>();
  if (threadIdx.x == 0) step10::init_barriers<T>(smem);
  __syncthreads();
  const int wg = __shfl_sync(fa::kFullMask, threadIdx.x / fa::kGroupThreads, 0);
  if (wg == 0) {
    fa::setmaxnreg_dec<T::kProducerRegisters>();
    constexpr int kMergers = 2;
    const int warp = __shfl_sync(fa::kFullMask, threadIdx.x / fa::kWarp, 0);
    if (warp >= kMergers) {
      store_or_merge<T>(smem, &O, LSE_merged, so_far, shape, joint, warp - kMergers);
    } else if (threadIdx.x == 0) {
      produce_joint<T>(smem, &Q, &K, &V, &K_other, &V_other, joint, taken);
    }
  } else {
    fa::setmaxnreg_inc<T::kConsumerRegisters>();
    JointConsumer<T>(smem, LSE, LSE_merged, shape, joint, wg - 1).run();
  }
}

}  // namespace step14

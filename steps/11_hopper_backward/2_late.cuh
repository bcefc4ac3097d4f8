// Step 11 -- dQ one tile late.
// Idea      A product is in flight while the warpgroup computes: dK of one tile overlaps P of the
//           next, dV the additions to dQ. dQ of a tile is multiplied after the scores of the next
//           one, when the other warpgroup's dS is usually complete
// Changed   since 11 1_wgmma: the order of a tile's products; mbarriers for Q, for dO and for dS
// Traffic   as 1_wgmma
// Launch    delta; backward (Tc * B*Hkv), 256 threads; convert
// Owns      block: dK and dV of 128 keys; warpgroup: 64 of them, and 64 rows of each tile's dQ
// Still bad each warpgroup waits for the other's dS and, at d = 128, until the additions have read
//           dQ's registers; no product is in flight during dS, because dV reads P's registers
#pragma once

#include "steps/11_hopper_backward/1_wgmma.cuh"

namespace step11_late {

using namespace step11;  // tiles of Br = 128 rows, blocks of Bc = 128 keys
using step11_wgmma::compute_ds, step11_wgmma::compute_p;

constexpr int kStages = 2;  // of Q and dO
constexpr int kThreads = kGroups * kGroupThreads;

// A block's shared memory: 131 KB when d = 64, 227 KB when d = 128. Panels as in 09. Its mbarriers:
//                     a phase is complete when                        waiting
//     k_full, v_full  TMA has written K, or V                         all
//     q_full, do_full TMA has written Q and LSE2, or dO and delta     all
//     q_empty         each warp's dK has read Q; delta is read, too   the copying thread
//     do_empty        each warp's dV and dP have read dO              the copying thread
//     ds_full         each warp has written its dS                    all, before dQ
//     ds_empty        each warp's dQ has read dS                      all, before the next dS
//     k_read          each warp's last dQ has read K                  all, before dK overwrites K
template <int d>
struct alignas(1024) Tiles {
  bf16 K[kGroups][kGroupKeys * d];  // later dK, before its store
  bf16 V[kGroups][kGroupKeys * d];  // later dV
  bf16 Q[kStages][Br * d];
  bf16 dO[kStages][Br * d];
  bf16 dS[Bc * Br];                             // dS^T: [Br / 64][Bc][64]
  float LSE2[kStages][Br], delta[kStages][Br];  // LSE2, LSE * log2(e): with Q. delta: with dO
  uint64_t k_full, v_full, k_read;
  uint64_t q_full[kStages], q_empty[kStages];
  uint64_t do_full[kStages], do_empty[kStages];
  uint64_t ds_full, ds_empty;
};

// --- one thread copies ---------------------------------------------------------------------------

template <int d>
struct Loader {
  Tiles<d>& smem;
  const fa::TensorMap *Q, *K, *V, *dO;
  const float *LSE2, *delta;  // [B*H * Tr, Br]
  const WorkTile& work;
  int Tr;

  __device__ void load_rows(unsigned n, const RowTile& at) const {
    const unsigned stage = n % kStages, parity = (n / kStages & 1) ^ 1;
    const size_t row = (size_t(at.head) * Tr + at.i) * Br;
    uint64_t *q_full = &smem.q_full[stage], *do_full = &smem.do_full[stage];
    fa::mbarrier_wait(&smem.q_empty[stage], parity);
    fa::mbarrier_arrive_expect_tx(q_full, sizeof smem.Q[0] + sizeof smem.LSE2[0]);
    fa::tma_load(smem.Q[stage], Q, q_full, {0, at.i * Br, 0, at.head});
    fa::bulk_load(smem.LSE2[stage], LSE2 + row, sizeof smem.LSE2[0], q_full);
    if (n == 0) load_keys(smem.V, &smem.v_full, V, work);  // in the order of their use
    fa::mbarrier_wait(&smem.do_empty[stage], parity);
    fa::mbarrier_arrive_expect_tx(do_full, sizeof smem.dO[0] + sizeof smem.delta[0]);
    fa::tma_load(smem.dO[stage], dO, do_full, {0, at.i * Br, 0, at.head});
    fa::bulk_load(smem.delta[stage], delta + row, sizeof smem.delta[0], do_full);
  }
};

// --- the warpgroups multiply, and compute P and dS -----------------------------------------------

template <int d, int wg>
struct Group {
  Tiles<d>& smem;
  const Shape& shape;
  const WorkTile work;
  const int thread = threadIdx.x - wg * kGroupThreads, lane = threadIdx.x % fa::kWarp;
  const int key = work.j * Bc + wg * kGroupKeys;  // the warpgroup's first
  const uint64_t first = tile_descriptor(smem.K[0]);
  // Always 0, unknown to nvcc, which when d = 128 would compute all 24 descriptors of K, V and dS
  // before the loop: no registers are left for them.
  __device__ unsigned zero() const { return d == 128 ? n >> 31 : 0; }
  __device__ uint64_t first_tile() const { return first + zero(); }
  using At = Distances<Tiles<d>, d, Br, wg>;
  static constexpr uint64_t kKAll = distance(0, kGroupKeys* kRowBytes);  // for dQ: MN-major
  static constexpr uint64_t kDs = distance(offsetof(Tiles<d>, dS) + wg * Bc * kPanel * 2);
  unsigned n = 0;           // number of the next tile,
  RowTile at{work, shape};  // and the tile
  float rX[Br / 2], rdK[d / 2] = {}, rdV[d / 2] = {};
  uint32_t rP[Br / kMma][4];  // P, then dS

  __device__ Group(Tiles<d>& smem, const Shape& shape, const WorkTile& work)
      : smem(smem), shape(shape), work(work) {}

  // Tiles of the walk, of all heads that share the keys. + 0: see zero().
  __device__ unsigned tiles() const { return shape.group * (shape.Tr - work.first) + zero(); }
  __device__ unsigned stage() const { return n % kStages; }
  __device__ int half() const { return (at.head * shape.Tr + at.i) * kGroups + wg; }

  __device__ void issue_scores(float (&rS)[Br / 2]) {
    fa::mbarrier_wait(&smem.q_full[stage()], n / kStages & 1);
    multiply_features<d>(first_tile() + At::kK, first_tile() + At::kQ + stage() * At::kStageOf, rS);
  }
  __device__ void softmax(float (&rS)[Br / 2]) {
    const int row = at.i * Br, last = key + kGroupKeys - 1;
    if (last >= shape.Nk || last > row + shape.shift) {
      const int k = key + thread / fa::kWarp * 16 + fa::row_of(lane), r = row + fa::column_of(lane);
      mask(rS, hidden(shape, k, r), hidden(shape, k + 8, r));
    }
    compute_p(rS, smem.LSE2[stage()], shape.scale * fa::kLog2e);
    fa::pin_registers(rS);
  }
  __device__ void issue_dv() {
    fa::mbarrier_wait(&smem.do_full[stage()], n / kStages & 1);
    multiply_rows<d>(rP, first_tile() + At::kDoRows + stage() * At::kStageOf, rdV);
  }
  __device__ void issue_dk(unsigned i) {
    multiply_rows<d>(rP, first_tile() + At::kQRows + i % kStages * At::kStageOf, rdK);
  }
  // dQ = dS K of tile i, once the other warpgroup's dS is complete.
  __device__ void issue_dq(unsigned i, float (&rdQ)[d / 2]) {
    fa::mbarrier_wait(&smem.ds_full, i & 1);
    multiply_transposed<d, Bc>(first_tile() + kDs, first_tile() + kKAll, rdQ);
  }
  // dS, from dP^T = V dO^T: to registers and, once the previous dS has been read, to shared memory.
  __device__ void differentiate() {
    float(&rdP)[Br / 2] = rX;
    multiply_features<d>(first_tile() + At::kV, first_tile() + At::kDo + stage() * At::kStageOf,
                         rdP);
    wait_for<0>(rdP);
    fa::pin_registers(rdV);
    warp_arrive(&smem.do_empty[stage()]);  // not for delta, read below: q_empty protects it
    compute_ds(rdP, rP, smem.delta[stage()]);
    fa::pin_registers(rdP);
    pack_operand(rdP, rP);
    fa::mbarrier_wait(&smem.ds_empty, (n & 1) ^ 1);
    put_ds(rP, smem.dS);
  }
  // Called after S of the next tile and dK are issued, which need not wait for the fence.
  __device__ void signal_ds() {
    fa::fence_proxy_async();  // wgmma sees this thread's writes
    warp_arrive(&smem.ds_full);
  }

  __device__ void run(const Loader<d>& loader, const FloatSums& dQ_sum, const fa::TensorMap* dK,
                      const fa::TensorMap* dV) {
    // --- prologue: P and dS of the first tile
    // The copying thread: its warp waits until both warpgroups have read a stage.
    const bool copies = wg == kGroups - 1 && thread == 0;
    if (copies) {
      RowTile ahead = at;  // the next tile to copy
      load_keys(smem.K, &smem.k_full, loader.K, work);
      for (unsigned i = 0; i < min(tiles(), unsigned(kStages)); ++i) {
        loader.load_rows(i, ahead);
        ahead.next(work, shape);
      }
    }
    __syncwarp();
    fa::mbarrier_wait(&smem.k_full, 0);
    float(&rS)[Br / 2] = rX;
    float own[d / 2];  // d = 128: dQ is multiplied where S was
    float(&rdQ)[d / 2] = *(d / 2 == Br / 2 ? reinterpret_cast<float(*)[d / 2]>(&rX) : &own);
    issue_scores(rS);
    wait_for<0>(rS);
    softmax(rS);
    pack_operand(rS, rP);
    fa::mbarrier_wait(&smem.v_full, 0);
    issue_dv();
    differentiate();

    // --- mainloop: S of the next tile and dK of this one, then dQ of this one and dV of the next
    while (++n < tiles()) {
      const int old_half = half();
      at.next(work, shape);
      issue_scores(rS);
      issue_dk(n - 1);
      signal_ds();
      wait_for<1>(rS);
      softmax(rS);
      wait_for<0>(rdK);
      fa::pin_registers(rS);  // else ptxas packs P over dS, which dK reads, before the wait
      warp_arrive(&smem.q_empty[(n - 1) % kStages]);
      if (copies && n + 1 < tiles()) {
        RowTile ahead = at;
        ahead.next(work, shape);
        loader.load_rows(n + 1, ahead);
      }
      __syncwarp();
      pack_operand(rS, rP);
      issue_dq(n - 1, rdQ);
      issue_dv();
      const auto dQ_part = dQ_sum.part<d>(old_half);
      wait_for<1>(rdQ);
      warp_arrive(&smem.ds_empty);
      dQ_part.add(rdQ);
      differentiate();
    }

    // --- epilogue: dK and dQ of the last tile; dK and dV are staged where K and V were
    const float scales[2] = {shape.scale, shape.scale}, ones[2] = {1.f, 1.f};
    signal_ds();
    issue_dk(n - 1);
    issue_dq(n - 1, rdQ);
    put_rows<d>(rdV, ones, smem.V[wg]);  // over the warp's 16 keys of V, read only by its own dP
    wait_for<0>(rdK);
    fa::pin_registers(rdQ);
    dQ_sum.part<d>(half()).add(rdQ);
    warp_arrive(&smem.k_read);
    fa::mbarrier_wait(&smem.k_read, 0);  // both warpgroups' products have read K
    put_rows<d>(rdK, scales, smem.K[wg]);
    store_keys(dK, dV, smem.K, smem.V, wg, thread, key, shape.Nk, work.bh_kv);
  }
};

template <int d>
__global__ void __launch_bounds__(kThreads, 1)
    backward_kernel(const __grid_constant__ fa::TensorMap Q,   // [B*H, N, d], boxes of Br rows
                    const __grid_constant__ fa::TensorMap K,   // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap V,   // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap dO,  // [B*H, N, d], of Br
                    const __grid_constant__ fa::TensorMap dK,  // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap dV,  // [B*Hkv, Nk, d], of 64
                    const float* LSE2, const float* delta,     // [B*H, Np]
                    FloatSums dQ_sum, Shape shape) {
  Tiles<d>& smem = *fa::dynamic_shared<Tiles<d>>();
  if (threadIdx.x == 0) {
    constexpr int kWarps = kThreads / fa::kWarp;
    fa::mbarrier_init(&smem.k_full, 1), fa::mbarrier_init(&smem.v_full, 1);
    init_mbarriers(smem.q_full, 1), init_mbarriers(smem.q_empty, kWarps);
    init_mbarriers(smem.do_full, 1), init_mbarriers(smem.do_empty, kWarps);
    fa::mbarrier_init(&smem.ds_full, kWarps), fa::mbarrier_init(&smem.ds_empty, kWarps);
    fa::mbarrier_init(&smem.k_read, kWarps);
    fa::mbarrier_init_fence();
  }
  __syncthreads();  // all threads see the barriers
  const WorkTile work = work_tile_at(blockIdx.x, shape, Br);
  const Loader<d> loader{smem, &Q, &K, &V, &dO, LSE2, delta, work, shape.Tr};
  if (fa::uniform(threadIdx.x / kGroupThreads) == 0) {
    Group<d, 0>(smem, shape, work).run(loader, dQ_sum, &dK, &dV);
  } else {
    Group<d, 1>(smem, shape, work).run(loader, dQ_sum, &dK, &dV);
  }
}

// --- host ----------------------------------------------------------------------------------------

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    step11_wgmma::launch_all<d>(backward_kernel<d>, p, t, sizeof(Tiles<d>));
  });
}

}  // namespace step11_late

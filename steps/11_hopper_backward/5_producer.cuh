// Step 11 -- a warpgroup that copies, when d = 64.
// Idea      At d = 64 registers and shared memory are left over. A third warpgroup copies Q and dO,
//           and two of its warps add dQ to HBM by TMA; dQ has registers of its own, so that its
//           product runs beside that of dV; dS has two places, so that no warpgroup waits
//           until the other one has read it
// Changed   since 11 3_late: the thread that copies, and the way of dQ
// Traffic   as 3_late
// Launch    delta; backward (Tc * B*Hkv), 384 threads; convert
// Owns      block: dK and dV of 128 keys; warpgroups 0 and 1: 64 of them, and 64 rows of each
//           tile's dQ; warpgroup 2: no rows
// Still bad LSE and delta are read from shared memory for each element of P and dS
#pragma once

#include "common/dialect/ptx/barrier.h"
#include "common/dialect/ptx/setmaxnreg.h"
#include "steps/11_hopper_backward/3_late.cuh"

namespace step11_producer {

using namespace step11;

constexpr int kThreads = (kGroups + 1) * kGroupThreads;
constexpr int kGroupRegisters = 240, kCopierRegisters = 24;  // setmaxnreg
constexpr int kDsStages = 2;

// What a block keeps in shared memory: 195 KB when d = 64. Panels as in 09.
template <int d>
struct alignas(1024) Tiles {
  bf16 K[kGroups][kGroupKeys * d];  // dK and dV on their way out
  bf16 V[kGroups][kGroupKeys * d];
  bf16 Q[kStages][Br * d];
  bf16 dO[kStages][Br * d];
  bf16 dS[kDsStages][Bc * Br];                  // dS^T: [Br / 64][Bc][64]
  float dQ[kGroups][kGroupKeys * d];            // on its way out: [4, d / 8, 32, 4]
  float LSE2[kStages][Br], delta[kStages][Br];  // LSE2: in powers of 2; with Q, with dO
  uint64_t k_full, v_full;                      // mbarriers
  uint64_t q_full[kStages], q_empty[kStages];
  uint64_t o_full[kStages], o_empty[kStages];
  uint64_t ds_full[kDsStages], ds_empty[kDsStages];
  uint64_t dq_full[kGroups], dq_empty[kGroups];
};

// --- a warpgroup copies --------------------------------------------------------------------------

template <int d>
struct Copier {
  Tiles<d>& smem;
  const fa::TensorMap *Q, *K, *V, *dO;
  const float *LSE2, *delta;  // [B*H * Tr, Br]
  const WorkTile& work;
  int Tr;

  __device__ void load_keys(bf16 (&to)[kGroups][kGroupKeys * d], uint64_t* full,
                            const fa::TensorMap* from) const {
    fa::mbarrier_arrive_expect_tx(full, sizeof to);
    for (int wg = 0; wg < kGroups; ++wg) {
      fa::tma_load(to[wg], from, full, {0, work.j * Bc + wg * kGroupKeys, 0, work.bh_kv});
    }
  }
  // A tile of rows, the n-th of the walk, once its stage is empty.
  __device__ void load_rows(unsigned n, const RowTile& at) const {
    const unsigned stage = n % kStages, parity = (n / kStages & 1) ^ 1;
    const size_t row = (size_t(at.head) * Tr + at.i) * Br;
    uint64_t *q_full = &smem.q_full[stage], *o_full = &smem.o_full[stage];
    fa::mbarrier_wait(&smem.q_empty[stage], parity);
    fa::mbarrier_arrive_expect_tx(q_full, sizeof smem.Q[0] + sizeof smem.LSE2[0]);
    fa::tma_load(smem.Q[stage], Q, q_full, {0, at.i * Br, 0, at.head});
    fa::bulk_load(smem.LSE2[stage], LSE2 + row, sizeof smem.LSE2[0], q_full);
    if (n == 0) load_keys(smem.V, &smem.v_full, V);  // in the order of their use
    fa::mbarrier_wait(&smem.o_empty[stage], parity);
    fa::mbarrier_arrive_expect_tx(o_full, sizeof smem.dO[0] + sizeof smem.delta[0]);
    fa::tma_load(smem.dO[stage], dO, o_full, {0, at.i * Br, 0, at.head});
    fa::bulk_load(smem.delta[stage], delta + row, sizeof smem.delta[0], o_full);
  }
  // One thread copies all tiles.
  __device__ void load(unsigned tiles, RowTile at) const {
    load_keys(smem.K, &smem.k_full, K);
    UNROLL_BY(1)
    for (unsigned n = 0; n < tiles; ++n, at.next(work, Tr)) load_rows(n, at);
  }
  // One thread of another warp adds a warpgroup's part of dQ of each tile to HBM.
  __device__ void add_dq(int wg, float* dQ_sum, unsigned tiles, RowTile at) const {
    UNROLL_BY(1)
    for (unsigned n = 0; n < tiles; ++n, at.next(work, Tr)) {
      fa::mbarrier_wait(&smem.dq_full[wg], n & 1);
      const size_t half = (size_t(at.head) * Tr + at.i) * kGroups + wg;
      fa::bulk_reduce_add(dQ_sum + half * kGroupKeys * d, smem.dQ[wg], sizeof smem.dQ[wg]);
      fa::tma_store_commit();
      fa::tma_store_wait_read<0>();
      fa::mbarrier_arrive(&smem.dq_empty[wg]);
    }
  }
};

// --- the warpgroups multiply, and compute P and dS -----------------------------------------------

// A warpgroup that owns 64 keys. Its registers: see 1_products.cuh.
template <int d, int wg>
struct Group {
  Tiles<d>& smem;
  const Shape& shape;
  const WorkTile work;
  const int thread = threadIdx.x % kGroupThreads, lane = threadIdx.x % fa::kWarp;
  const int key = work.j * Bc + wg * kGroupKeys;  // the warpgroup's first
  // Descriptors differ by constants from that of the first tile.
  using Memory = Tiles<d>;
  const uint64_t first_tile = descriptor(smem.K[0]);
  static constexpr uint64_t distance(size_t bytes, int panel_bytes = 16) {
    return (bytes >> 4) + (uint64_t(panel_bytes / 16 - 1) << 16);
  }
  static constexpr size_t kMine = wg * kGroupKeys * d * 2;
  static constexpr uint64_t kK = distance(kMine), kV = distance(offsetof(Memory, V) + kMine);
  static constexpr uint64_t kKAll = distance(0, kGroupKeys* kRowBytes);  // panels, for dQ
  static constexpr uint64_t kQ = distance(offsetof(Memory, Q));
  static constexpr uint64_t kDo = distance(offsetof(Memory, dO));
  static constexpr uint64_t kQRows = distance(offsetof(Memory, Q), Br* kRowBytes);
  static constexpr uint64_t kDoRows = distance(offsetof(Memory, dO), Br* kRowBytes);
  static constexpr uint64_t kDs = distance(offsetof(Memory, dS) + wg * Bc * kPanel * 2);
  static constexpr uint64_t kStageOf = Br * d * 2 >> 4;  // from stage to stage
  static constexpr uint64_t kDsStageOf = Bc * Br * 2 >> 4;
  unsigned n = 0;                      // number of the tile whose scores come next,
  RowTile at = first_of(work, shape);  // and the tile
  float rX[Br / 2], rdK[d / 2] = {}, rdV[d / 2] = {};
  uint32_t rP[Br / kMma][4];  // P, then dS

  __device__ Group(Tiles<d>& smem, const Shape& shape, const WorkTile& work)
      : smem(smem), shape(shape), work(work) {}

  // Of the walk, of all heads that share the keys.
  __device__ unsigned tiles() const { return shape.group * (shape.Tr - work.first); }
  __device__ unsigned stage() const { return n % kStages; }
  // One arrival of a warp: its 32 lanes are at the same place.
  __device__ void arrive(uint64_t* bar) {
    if (lane == 0) fa::mbarrier_arrive(bar);
  }
  template <int pending, int n>
  __device__ void wait_for(float (&r)[n]) {
    fa::wgmma_wait<pending>();
    fa::pin_registers(r);
  }

  // S^T = K Q^T, once Q is there.
  __device__ void issue_scores(float (&rS)[Br / 2]) {
    fa::mbarrier_wait(&smem.q_full[stage()], n / kStages & 1);
    multiply_features<d>(first_tile + kK, first_tile + kQ + stage() * kStageOf, rS);
  }
  // S becomes P.
  __device__ void softmax(float (&rS)[Br / 2]) {
    const int row = at.i * Br, last = key + kGroupKeys - 1;
    if (last >= shape.Nk || last > row + shape.shift) {
      const int lane_key = key + thread / fa::kWarp * 16 + lane / 4, lane_row = row + lane % 4 * 2;
      mask(rS, hidden(shape, lane_key, lane_row), hidden(shape, lane_key + 8, lane_row));
    }
    compute_p(rS, smem.LSE2[stage()], shape.scale * fa::kLog2e);
    fa::pin_registers(rS);
  }
  // dK += dS^T Q of tile i.
  __device__ void issue_dk(unsigned i) {
    multiply_rows<d>(rP, first_tile + kQRows + i % kStages * kStageOf, rdK);
  }
  // dQ = dS K of tile i, once the other warpgroup's dS is there.
  __device__ void issue_dq(unsigned i, float (&rdQ)[d / 2]) {
    fa::mbarrier_wait(&smem.ds_full[i % kDsStages], i / kDsStages & 1);
    multiply_keys<d>(first_tile + kDs + i % kDsStages * kDsStageOf, first_tile + kKAll, rdQ);
  }
  // dP^T = V dO^T, once dO is there; dQ of the tile before, if there is one; dV += P^T dO; dS, to
  // registers and, once its place has been read, to shared memory.
  template <bool with_dq>
  __device__ void differentiate(float (&rdQ)[d / 2]) {
    float(&rdP)[Br / 2] = rX;
    fa::mbarrier_wait(&smem.o_full[stage()], n / kStages & 1);
    multiply_features<d>(first_tile + kV, first_tile + kDo + stage() * kStageOf, rdP);
    if constexpr (with_dq) issue_dq(n - 1, rdQ);
    multiply_rows<d>(rP, first_tile + kDoRows + stage() * kStageOf, rdV);
    wait_for<1 + with_dq>(rdP);
    compute_ds(rdP, rP, smem.delta[stage()]);
    fa::pin_registers(rdP);
    if constexpr (with_dq) {
      wait_for<1>(rdQ);
      arrive(&smem.ds_empty[(n - 1) % kDsStages]);
    }
    wait_for<0>(rdV);
    fa::pin_registers(rdP);  // or ptxas packs dS before the wait, while P is in use
    arrive(&smem.o_empty[stage()]);
    pack(rdP, rP);
    fa::mbarrier_wait(&smem.ds_empty[n % kDsStages], (n / kDsStages & 1) ^ 1);
    put_ds(rP, smem.dS[n % kDsStages]);
  }
  __device__ void show_ds() {
    fa::fence_proxy_async();  // wgmma reads by another path what this thread wrote ...
    __syncwarp();             // ... and what the warp's other lanes have
    arrive(&smem.ds_full[(n - 1) % kDsStages]);
  }
  // dQ of tile i to shared memory, for the warp that adds it.
  __device__ void show_dq(unsigned i, const float (&rdQ)[d / 2]) {
    fa::mbarrier_wait(&smem.dq_empty[wg], (i & 1) ^ 1);
    UNROLL
    for (int x = 0; x < d / 8; ++x) {
      *reinterpret_cast<float4*>(
          &smem.dQ[wg][((thread / fa::kWarp * (d / 8) + x) * fa::kWarp + lane) * 4]) =
          make_float4(rdQ[4 * x], rdQ[4 * x + 1], rdQ[4 * x + 2], rdQ[4 * x + 3]);
    }
    fa::fence_proxy_async();  // TMA reads what this thread wrote ...
    __syncwarp();             // ... and what the warp's other lanes have
    arrive(&smem.dq_full[wg]);
  }

  __device__ void run(const fa::TensorMap* dK, const fa::TensorMap* dV) {
    // --- prologue: P and dS of the first tile
    float rdQ[d / 2];
    fa::mbarrier_wait(&smem.k_full, 0);
    float(&rS)[Br / 2] = rX;
    issue_scores(rS);
    wait_for<0>(rS);
    softmax(rS);
    pack(rS, rP);
    fa::mbarrier_wait(&smem.v_full, 0);
    differentiate<false>(rdQ);

    // --- mainloop: S of the next tile beside dK of this one; its dV beside dQ of this one
    while (++n < tiles()) {
      at.next(work, shape.Tr);
      issue_scores(rS);
      issue_dk(n - 1);
      show_ds();
      wait_for<1>(rS);
      softmax(rS);
      wait_for<0>(rdK);
      fa::pin_registers(rS);  // or ptxas packs P before the wait, while dS is in use
      arrive(&smem.q_empty[(n - 1) % kStages]);
      pack(rS, rP);
      if (n > 1) show_dq(n - 2, rdQ);
      differentiate<true>(rdQ);
    }

    // --- epilogue: dK and dQ of the last tile; dK and dV through the places of K and V
    const float scales[2] = {shape.scale, shape.scale}, ones[2] = {1.f, 1.f};
    show_ds();
    if (n > 1) show_dq(n - 2, rdQ);
    issue_dk(n - 1);
    issue_dq(n - 1, rdQ);
    put_rows<d>(rdV, ones, smem.V[wg]);
    wait_for<0>(rdK);
    fa::pin_registers(rdQ);
    show_dq(n - 1, rdQ);
    fa::bar_sync(1, kGroups * kGroupThreads);  // both warpgroups' products have read K
    put_rows<d>(rdK, scales, smem.K[wg]);
    fa::fence_proxy_async();              // TMA reads what this thread has written ...
    fa::bar_sync(2 + wg, kGroupThreads);  // ... and what the warpgroup's others have
    if (thread == 0 && key < shape.Nk) {
      fa::tma_store(dK, smem.K[wg], {0, key, 0, work.bh_kv});
      fa::tma_store(dV, smem.V[wg], {0, key, 0, work.bh_kv});
      fa::tma_store_commit();
      fa::tma_store_wait_read<0>();  // a block's memory must stay until it has been read
    }
  }
};

// A block owns 128 keys and walks the tiles of rows that see them, of all heads that share them.
template <int d>
__global__ void __launch_bounds__(kThreads, 1)
    backward_kernel(const __grid_constant__ fa::TensorMap Q,   // [B*H, N, d], boxes of Br rows
                    const __grid_constant__ fa::TensorMap K,   // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap V,   // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap dO,  // [B*H, N, d], of Br
                    const __grid_constant__ fa::TensorMap dK,  // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap dV,  // [B*Hkv, Nk, d], of 64
                    const float* LSE2, const float* delta,     // [B*H, Np]
                    float* dQ_sum,                             // [B*H * Tr, 2, 4, d / 8, 32, 4]
                    Shape shape) {
  Tiles<d>& smem = *fa::dynamic_shared<Tiles<d>>();
  if (threadIdx.x == 0) {
    constexpr int kGroupWarps = kGroupThreads / fa::kWarp, kWarps = kGroups * kGroupWarps;
    fa::mbarrier_init(&smem.k_full, 1), fa::mbarrier_init(&smem.v_full, 1);
    init(smem.q_full, 1), init(smem.q_empty, kWarps);
    init(smem.o_full, 1), init(smem.o_empty, kWarps);
    init(smem.ds_full, kWarps), init(smem.ds_empty, kWarps);
    init(smem.dq_full, kGroupWarps), init(smem.dq_empty, 1);
    fa::mbarrier_init_fence();
  }
  __syncthreads();  // all threads see the barriers
  const WorkTile work = work_tile_at(blockIdx.x, shape);
  const int wg = __shfl_sync(fa::kFullMask, threadIdx.x / kGroupThreads, 0);
  if (wg == kGroups) {
    fa::setmaxnreg_dec<kCopierRegisters>();
    const Copier<d> copier{smem, &Q, &K, &V, &dO, LSE2, delta, work, shape.Tr};
    const unsigned tiles = shape.group * (shape.Tr - work.first);
    const int warp = threadIdx.x % kGroupThreads / fa::kWarp;
    if (threadIdx.x % fa::kWarp > 0) return;
    if (warp < kGroups) copier.add_dq(warp, dQ_sum, tiles, first_of(work, shape));
    if (warp == kGroups) copier.load(tiles, first_of(work, shape));
  } else {
    fa::setmaxnreg_inc<kGroupRegisters>();
    if (wg == 0) {
      Group<d, 0>(smem, shape, work).run(&dK, &dV);
    } else {
      Group<d, 1>(smem, shape, work).run(&dK, &dV);
    }
  }
}

// --- host ----------------------------------------------------------------------------------------

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  if (p.d == 128) return step11_late::backward(p, t);  // no registers, no memory
  fa::dispatch_d<64>(p.d, [&](auto d) {
    const Shape shape = shape_of(p);
    const FloatSums dQ_sum{t.scratch<float>("dQ_sum")};
    const auto rows = [&](const bf16* x) { return tensor_map<d>(x, p.heads(), p.N, Br); };
    const auto keys = [&](const bf16* x) {
      return tensor_map<d>(x, p.kv_heads(), p.Nk, kGroupKeys);
    };
    const dim3 work_tiles(unsigned(shape.Tc * p.kv_heads()));
    launch_delta<d>(p, t);
    fa::launch(backward_kernel<d>, {work_tiles, dim3(kThreads), sizeof(Tiles<d>)}, rows(t.Q),
               keys(t.K), keys(t.V), rows(t.dO), keys(t.dK), keys(t.dV), t.scratch<float>("LSE2"),
               t.scratch<float>("delta"), dQ_sum.sums, shape);
    launch_convert<d>(p, t, dQ_sum);
  });
}

}  // namespace step11_producer

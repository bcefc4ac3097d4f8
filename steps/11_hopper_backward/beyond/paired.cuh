// Step 11 -- wide heads, d = 256: two blocks share Q, dO and dQ.
// Idea      dK and dV of 64 keys are 128 registers per thread each: a warpgroup owns dV, S and P,
//           another dK, dP and dS, which replaces P in shared memory. Two blocks of a cluster copy
//           half of Q and dO for both, and multiply half of dQ's features over the keys of both:
//           8 KB of dS are sent per tile, and 32 KB added instead of 64
// Changed   since 11 3_columns, whose comments are not repeated: a warpgroup per gradient, one that
//           copies; the product that ends a tile comes before the wait for the next; multicast
//           copies; dS is sent; barriers in both blocks
// Traffic   as 3_columns with tiles of 128 keys and 64 rows; K once and a half, the columns twice
// Launch    columns; backward (2 * Tc * B*Hkv), clusters of 2, 512 threads; convert
// Owns      block: dK and dV of 64 keys, half of each tile's dQ; warpgroups: dV, dK, dQ, copies
// Still bad the third warpgroup has registers for one product
#pragma once

#include "common/dialect/ptx/more/cluster.h"
#include "common/dialect/ptx/setmaxnreg.h"
#include "steps/11_hopper_backward/3_columns.cuh"

namespace step11_paired {

using namespace step11;
using step11_columns::kColumns, step11_columns::multiply_with_columns;

constexpr int d = 256, Br = 64;  // features; rows of a tile
constexpr int kStages = 2;       // of Q and dO
constexpr int kThreads = 4 * kGroupThreads;
constexpr int kGroupRegisters = 208, kLoaderRegisters = 24;  // setmaxnreg: of 4 x 128
constexpr int kThirdRegisters = 4 * 128 - 2 * kGroupRegisters - kLoaderRegisters;
constexpr int kBlocks = 2, kKeys = Bc / kBlocks;  // of a cluster; keys of a block
constexpr int kHalf = d / kBlocks;                // features whose dQ a block multiplies
constexpr uint16_t kBoth = 3;                     // blocks of a cluster, as bits

struct alignas(1024) Tiles {
  bf16 K[kKeys * d];
  bf16 other_K[kKeys * kHalf];  // of the other block's keys
  bf16 V[kKeys * d];
  bf16 Q[kStages][Br * d];
  bf16 dO[kStages][Br * d];  // and dV
  bf16 P[kKeys * Br];        // P^T, then dS^T: [kKeys][64]
  bf16 other_dS[kKeys * Br];
  bf16 columns[kStages][Br * kColumns];        // with dO
  uint64_t k_full, v_full;                     // mbarriers; v_full: other_K, too
  uint64_t q_full[kStages], q_empty[kStages];  // empty: in both blocks
  uint64_t do_full[kStages], do_empty[kStages];
  uint64_t p_full, ds_full, other_full, ds_empty;
};

// --- one thread copies ---------------------------------------------------------------------------

__device__ inline void produce(Tiles& smem, const fa::TensorMap* Q, const fa::TensorMap* K,
                               const fa::TensorMap* V, const fa::TensorMap* dO,
                               const bf16* columns,  // [B*H, Np, 8]
                               const Shape& shape, const WorkTile& work) {
  const unsigned tiles = shape.group * (shape.Tr - work.first), rank = fa::cluster_rank();
  const int key = (work.j * kBlocks + rank) * kKeys,
            other = (work.j * kBlocks + (rank ^ 1)) * kKeys;
  const int panel = rank * 2;  // the first of this block's half
  const auto load_keys = [&](bf16* to, const fa::TensorMap* from, uint64_t* full) {
    fa::tma_load(to, from, full, {0, key, 0, work.bh_kv});
    fa::tma_load(to + kKeys * kHalf, from, full, {0, key, kHalf / kPanel, work.bh_kv});
  };
  RowTile at{work, shape};
  fa::mbarrier_arrive_expect_tx(&smem.k_full, sizeof smem.K);
  load_keys(smem.K, K, &smem.k_full);
  UNROLL_BY(1)
  for (unsigned n = 0; n < tiles; ++n, at.next(work, shape)) {
    const unsigned stage = n % kStages, parity = (n / kStages & 1) ^ 1;
    const size_t row = size_t(at.head) * shape.Np + at.i * Br;
    uint64_t *q_full = &smem.q_full[stage], *do_full = &smem.do_full[stage];
    const int half[] = {0, at.i * Br, panel, at.head};
    fa::mbarrier_wait(&smem.do_empty[stage], parity);
    fa::mbarrier_arrive_expect_tx(do_full, sizeof smem.dO[0] + sizeof smem.columns[0]);
    fa::tma_load_multicast(smem.dO[stage] + rank * Br * kHalf, dO, do_full, half, kBoth);
    fa::bulk_load(smem.columns[stage], columns + row * kColumns, sizeof smem.columns[0], do_full);
    fa::mbarrier_wait(&smem.q_empty[stage], parity);
    fa::mbarrier_arrive_expect_tx(q_full, sizeof smem.Q[0]);
    fa::tma_load_multicast(smem.Q[stage] + rank * Br * kHalf, Q, q_full, half, kBoth);
    if (n > 0) continue;
    fa::mbarrier_arrive_expect_tx(&smem.v_full, sizeof smem.V + sizeof smem.other_K);
    load_keys(smem.V, V, &smem.v_full);
    fa::tma_load(smem.other_K, K, &smem.v_full, {0, other, panel, work.bh_kv});
  }
}

// --- the third warpgroup multiplies dQ -----------------------------------------------------------

__device__ inline void multiply_dq(Tiles& smem, const Shape& shape, const WorkTile& work,
                                   const FloatSums& dQ_sum) {
  const int thread = threadIdx.x % kGroupThreads, lane = thread % fa::kWarp;
  const unsigned tiles = shape.group * (shape.Tr - work.first), rank = fa::cluster_rank();
  RowTile at{work, shape};
  fa::mbarrier_wait(&smem.k_full, 0), fa::mbarrier_wait(&smem.v_full, 0);
  const uint64_t first_k = tile_descriptor(smem.K + rank * kKeys * kHalf),
                 ds = tile_descriptor(smem.P);
  const uint64_t first_other = tile_descriptor(smem.other_K),
                 other_ds = tile_descriptor(smem.other_dS);
  UNROLL_BY(1)
  for (unsigned n = 0; n < tiles; ++n, at.next(work, shape)) {
    const uint64_t k = first_k + (n >> 31), other = first_other + (n >> 31);  // see zero()
    if (thread == 0) fa::mbarrier_arrive_expect_tx(&smem.other_full, sizeof smem.other_dS);
    __syncwarp();
    fa::mbarrier_wait(&smem.ds_full, n & 1);
    UNROLL_BY(1)
    for (int panel = 0; panel < kHalf / kPanel; ++panel) {
      float rdQ[kPanel / 2];
      multiply_transposed<d, kKeys>(ds, k + panel * (kKeys * kRowBytes >> 4), rdQ);
      if (panel == 0) fa::mbarrier_wait(&smem.other_full, n & 1);
      multiply_transposed<d, kKeys>(other_ds, other + panel * (kKeys * kRowBytes >> 4), rdQ, true);
      const int half = (at.head * shape.Np + at.i * Br) / 64;
      const auto dQ_part = dQ_sum.part<d>(half, rank * kHalf + panel * kPanel);
      wait_for<0>(rdQ);
      if (panel == kHalf / kPanel - 1 && lane < kBlocks) {
        fa::mbarrier_release_remote(&smem.ds_empty, lane);
      }
      dQ_part.add(rdQ);
    }
  }
}

// --- the others multiply, and compute P and dS ---------------------------------------------------

// dv: S^T = K Q^T becomes P; dV += P^T dO. Otherwise dP^T = V dO^T becomes dS; dK += dS^T Q.
template <bool dv>
struct Group {
  Tiles& smem;
  const Shape& shape;
  const WorkTile work;
  const int thread = threadIdx.x % kGroupThreads, lane = threadIdx.x % fa::kWarp;
  const int key = (work.j * kBlocks + fa::cluster_rank()) * kKeys;  // the first
  const uint64_t first = tile_descriptor(smem.K);
  __device__ unsigned zero() const { return n >> 31; }
  __device__ uint64_t first_tile() const { return first + zero(); }
  static constexpr size_t kQ = offsetof(Tiles, Q), kDo = offsetof(Tiles, dO);
  static constexpr uint64_t kKv = distance(dv ? 0 : offsetof(Tiles, V));     // K or V
  static constexpr uint64_t kFeatures = distance(dv ? kQ : kDo);             // of S or dP
  static constexpr uint64_t kRows = distance(dv ? kDo : kQ, Br* kRowBytes);  // of dV or dK
  static constexpr uint64_t kStageOf = Br * d * 2 >> 4;

  unsigned n = 0;  // number of the tile,
  RowTile at{work, shape};
  float rX[Br / 2], rSum[2][d / 4] = {};  // rSum: dV or dK, half of the features each
  uint32_t rP[Br / kMma][4];              // P or dS
  uint32_t ones[4];

  __device__ Group(Tiles& smem, const Shape& shape, const WorkTile& work)
      : smem(smem), shape(shape), work(work) {
    step11_columns::select_columns<dv>(ones);
  }

  __device__ unsigned tiles() const { return shape.group * (shape.Tr - work.first); }
  // One arrival per warp in both blocks.
  __device__ void release(uint64_t* bar) {
    __syncwarp();
    if (lane < kBlocks) fa::mbarrier_release_remote(bar, lane);
  }

  // (S - LSE / scale)^T or (dP - delta)^T of tile n, once it has arrived.
  __device__ void issue_features() {
    const unsigned stage = n % kStages;
    fa::mbarrier_wait(&smem.do_full[stage], n / kStages & 1);
    if (dv) fa::mbarrier_wait(&smem.q_full[stage], n / kStages & 1);
    const uint64_t columns =
        fa::wgmma_descriptor(smem.columns[stage], fa::Swizzle::none, 0, 8 * 2 * kColumns);
    multiply_with_columns<d>(first_tile() + kKv, first_tile() + kFeatures + stage * kStageOf, ones,
                             columns, rX);
  }
  __device__ void wait_for_features(unsigned stage) {
    wait_for<0>(rX);
    release(dv ? &smem.q_empty[stage] : &smem.do_empty[stage]);
  }
  // dV += P^T dO or dK += dS^T Q of tile i. 128 registers are too few for a wgmma of 256 features.
  __device__ void issue_rows(unsigned i) {
    if (!dv) fa::mbarrier_wait(&smem.q_full[i % kStages], i / kStages & 1);
    const uint64_t rows = first_tile() + kRows + i % kStages * kStageOf;
    fa::wgmma_fence();
    UNROLL
    for (int r = 0; r < Br; r += kMma) {
      UNROLL
      for (int half = 0; half < 2; ++half) {
        fa::wgmma<fa::Major::mn>(rSum[half], rP[r / kMma],
                                 fa::wgmma_advance(rows, half * Br * d + r * kRowBytes));
      }
    }
    fa::wgmma_commit();
  }
  template <int pending>
  __device__ void wait_for_rows() {
    fa::wgmma_wait<pending>();
    fa::pin_registers(rSum[0]), fa::pin_registers(rSum[1]);
  }

  __device__ void softmax() {
    const int row = at.i * Br, last = key + kKeys - 1;
    if (last >= shape.Nk || last > row + shape.shift) {
      const int k = key + thread / fa::kWarp * 16 + fa::row_of(lane), r = row + fa::column_of(lane);
      mask(rX, hidden(shape, k, r), hidden(shape, k + 8, r));
    }
    const float scale_log2 = shape.scale * fa::kLog2e;
    UNROLL
    for (int i = 0; i < Br / 2; ++i) rX[i] = fa::exp2_approx(rX[i] * scale_log2);
  }
  // In P: the lane's 16 bytes of rows r .. r + 15, of the warp's 16 keys; swizzled.
  __device__ bf16* place(int r) {
    const int k = thread / fa::kWarp * 16 + lane % 16;
    return smem.P + ((k * kPanel + (lane / 16 ^ k % 8) * 8) ^ r);
  }
  // Turns dP into dS, once P is complete. A warp reads what it will replace.
  __device__ void differentiate() {
    fa::mbarrier_wait(&smem.p_full, n & 1);
    UNROLL
    for (int r = 0; r < Br; r += kMma) {
      uint32_t P[4];
      fa::ldmatrix_x4(P, place(r));
      UNROLL
      for (int i = 0; i < 8; i += 2) {
        multiply_by_p(P[i / 2], rX[r / 2 + i], rX[r / 2 + i + 1]);
      }
    }
  }
  __device__ void compute() {
    dv ? softmax() : differentiate();
    fa::pin_registers(rX);
    pack_operand(rX, rP);
  }
  // Stores P, or dS over it, of tile i; a warp's dS also to the other block.
  __device__ void put(unsigned i) {
    if (dv) fa::mbarrier_wait(&smem.ds_empty, (i & 1) ^ 1);
    UNROLL
    for (int r = 0; r < Br; r += kMma) fa::stmatrix_x4(place(r), rP[r / kMma]);
    if (dv) return warp_arrive(&smem.p_full);
    fa::fence_proxy_async();  // wgmma and TMA see this thread's writes
    warp_arrive(&smem.ds_full);
    constexpr int kPart = 16 * kPanel;  // of the warp's 16 keys
    const int from = thread / fa::kWarp * kPart;
    if (lane == 0) {
      fa::bulk_send(smem.other_dS + from, smem.P + from, 2 * kPart, &smem.other_full,
                    fa::cluster_rank() ^ 1);
    }
    __syncwarp();
  }

  __device__ void run(const fa::TensorMap* to) {
    // --- prologue
    fa::mbarrier_wait(dv ? &smem.k_full : &smem.v_full, 0);
    issue_features();
    wait_for_features(0);
    compute();

    // --- mainloop: dV or dK of this tile before S or dP of the next one, which may have to wait
    while (++n < tiles()) {
      at.next(work, shape);
      const unsigned stage = n % kStages, last = (n - 1) % kStages;
      put(n - 1);
      issue_rows(n - 1);
      issue_features();
      wait_for_rows<1>();
      release(dv ? &smem.do_empty[last] : &smem.q_empty[last]);
      wait_for_features(stage);
      compute();
    }

    // --- epilogue: dV or dK of the last tile, staged where a next tile would be
    const float factor = dv ? 1.f : shape.scale, factors[2] = {factor, factor};
    put(n - 1);
    issue_rows(n - 1);
    wait_for_rows<0>();
    fa::mbarrier_wait(&(dv ? smem.do_empty : smem.q_empty)[n % kStages], (n / kStages & 1) ^ 1);
    bf16* out = (dv ? smem.dO : smem.Q)[n % kStages];
    put_rows<kHalf>(rSum[0], factors, out);
    put_rows<kHalf>(rSum[1], factors, out + kKeys * kHalf);
    fa::fence_proxy_async();                  // TMA reads what this thread has written ...
    fa::bar_sync(dv ? 1 : 2, kGroupThreads);  // ... and what the warpgroup's others have
    if (thread == 0 && key < shape.Nk) {
      fa::tma_store(to, out, {0, key, 0, work.bh_kv});
      fa::tma_store(to, out + kKeys * kHalf, {0, key, kHalf / kPanel, work.bh_kv});
      fa::tma_store_commit();
      fa::tma_store_wait_read<0>();  // shared memory must outlive the copies
    }
  }
};

__global__ void __launch_bounds__(kThreads, 1)
    backward_kernel(const __grid_constant__ fa::TensorMap Q,   // [B*H, N, d], boxes of 64 x 128
                    const __grid_constant__ fa::TensorMap K,   // [B*Hkv, Nk, d]
                    const __grid_constant__ fa::TensorMap V,   // [B*Hkv, Nk, d]
                    const __grid_constant__ fa::TensorMap dO,  // [B*H, N, d]
                    const __grid_constant__ fa::TensorMap dK,  // [B*Hkv, Nk, d]
                    const __grid_constant__ fa::TensorMap dV,  // [B*Hkv, Nk, d]
                    const bf16* columns,                       // [B*H, Np, 8]
                    FloatSums dQ_sum, Shape shape) {
  Tiles& smem = *fa::dynamic_shared<Tiles>();
  if (threadIdx.x == 0) {
    constexpr int kWarps = kGroupThreads / fa::kWarp;  // of a warpgroup
    fa::mbarrier_init(&smem.k_full, 1), fa::mbarrier_init(&smem.v_full, 1);
    init_mbarriers(smem.q_full, 1), init_mbarriers(smem.q_empty, kBlocks * 2 * kWarps);
    init_mbarriers(smem.do_full, 1), init_mbarriers(smem.do_empty, kBlocks * 2 * kWarps);
    fa::mbarrier_init(&smem.p_full, kWarps), fa::mbarrier_init(&smem.ds_full, kWarps);
    fa::mbarrier_init(&smem.other_full, 1), fa::mbarrier_init(&smem.ds_empty, kBlocks * kWarps);
    fa::mbarrier_init_fence();
  }
  fa::cluster_sync();  // all threads of both blocks see the barriers
  const WorkTile work = work_tile_at(blockIdx.x / kBlocks, shape, Br);
  const int wg = fa::uniform(threadIdx.x / kGroupThreads);
  if (wg == 3) {
    fa::setmaxnreg_dec<kLoaderRegisters>();
    if (threadIdx.x % kGroupThreads == 0) produce(smem, &Q, &K, &V, &dO, columns, shape, work);
  } else if (wg == 2) {
    fa::setmaxnreg_dec<kThirdRegisters>();
    multiply_dq(smem, shape, work, dQ_sum);
  } else {
    fa::setmaxnreg_inc<kGroupRegisters>();
    if (wg == 0) {
      Group<true>(smem, shape, work).run(&dV);
    } else {
      Group<false>(smem, shape, work).run(&dK);
    }
  }
  fa::cluster_sync();  // a block's memory must outlive the other's copies and arrivals
}

// --- host ----------------------------------------------------------------------------------------

inline fa::Support support() { return {.d = {d}, .gqa = true, .cross = true}; }

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  fa::Prediction t = step11_columns::backward_traffic(p);
  t["columns"].read *= kBlocks;
  t["K"].read += t["K"].read / 2;                                           // other_K
  t.flops += step11_columns::skipped_scores(p, Br) * (8 * p.d + 4 * kMma);  // computed here
  return t;
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  Shape shape = shape_of(p, Br);
  if (p.causal) {  // sections of heads that need 32 MB
    const size_t head = 8 * size_t(d) * p.N;
    shape.section = int(std::clamp<size_t>((size_t{32} << 20) / head, 1, p.kv_heads()));
  }
  const auto map_of = [](const bf16* x, uint64_t heads, uint64_t rows) {
    return fa::tile_map<d, kHalf>(x, heads, rows, 64);
  };
  const auto rows = [&](const bf16* x) { return map_of(x, p.heads(), p.N); };
  const auto keys = [&](const bf16* x) { return map_of(x, p.kv_heads(), p.Nk); };
  const dim3 blocks(unsigned(kBlocks * shape.Tc * p.kv_heads()));
  step11_columns::launch_columns<d>(p, t);
  fa::launch(backward_kernel, {blocks, dim3(kThreads), sizeof(Tiles), kBlocks}, rows(t.Q),
             keys(t.K), keys(t.V), rows(t.dO), keys(t.dK), keys(t.dV), t.scratch<bf16>("columns"),
             FloatSums{t.scratch<float>("dQ_sum")}, shape);
  launch_convert<d>(p, t);
}

}  // namespace step11_paired

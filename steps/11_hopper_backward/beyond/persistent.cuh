// Step 11 -- persistent blocks.
// Idea      One block per SM processes one walk after another: S of the next walk's first tile
//           overlaps dK of this one's last, the copy of K and V the store of dK and dV. At d = 128
//           registers are too few
// Changed   since 11 3_columns, whose comments are not repeated: a copying and a storing thread;
//           two stages of K and V; walks from a counter
// Traffic   as 3_columns, and 4 B per walk and per block, atomic, 8 B written: the counters
// Launch    columns; backward (SMs, or fewer walks), 512 threads; convert
// Owns      block: dK and dV of 128 keys at a time; warpgroups as in 3_columns, and 3 that copies
// Still bad dQ_sum crosses HBM four times: zeros, twice for the additions, and once at the end
#pragma once

#include "common/dialect/ptx/setmaxnreg.h"
#include "common/dialect/scheduler.h"
#include "common/harness/forward.h"
#include "steps/11_hopper_backward/3_columns.cuh"

namespace step11_persistent {

using namespace step11;
using step11_columns::kColumns, step11_columns::kDsStages, step11_columns::multiply_with_columns;

constexpr int d = 64;
static_assert(Br == step11_columns::Br<d>, "rows of a tile");
constexpr int kThreads = (kGroups + 2) * kGroupThreads;
constexpr int kKvStages = 2;
constexpr int kQStages = 3, kDoStages = 2;                   // columns arrive with Q
constexpr int kGroupRegisters = 208, kLoaderRegisters = 32;  // setmaxnreg: of 4 x 128
constexpr int kThirdRegisters = 4 * 128 - 2 * kGroupRegisters - kLoaderRegisters;

struct alignas(1024) Tiles {
  bf16 K[kKvStages][kGroups][kGroupKeys * d];  // later dK and dV, before their stores
  bf16 V[kKvStages][kGroups][kGroupKeys * d];
  bf16 Q[kQStages][Br * d];
  bf16 dO[kDoStages][Br * d];
  bf16 columns[kQStages][Br * kColumns];
  bf16 dS[kDsStages][Bc * Br];
  WorkTile work[kKvStages];                           // with K; after the last one j = -1
  uint64_t k_full[kKvStages], v_full[kKvStages];      // mbarriers
  uint64_t out_full[kKvStages], kv_empty[kKvStages];  // out: dK and dV
  uint64_t q_full[kQStages], q_empty[kQStages];
  uint64_t do_full[kDoStages], do_empty[kDoStages];
  uint64_t ds_full[kDsStages], ds_empty[kDsStages];
};

__device__ inline unsigned tiles_of(const WorkTile& work, const Shape& shape) {
  return shape.group * (shape.Tr - work.first);
}

// --- a thread copies -----------------------------------------------------------------------------

// Copies each walk's tiles in the order of their use. Draws walks from a counter that all blocks
// share, one ahead, so that no thread waits for the result.
template <class Sums>
__device__ inline void produce(Tiles& smem, const fa::TensorMap* Q, const fa::TensorMap* K,
                               const fa::TensorMap* V, const fa::TensorMap* dO,
                               const bf16* columns,  // [B*H, Np, 8]
                               const Shape& shape, unsigned* taken) {
  unsigned n = 0, next = blockIdx.x;
  WorkTile work{};
  UNROLL_BY(1)
  for (unsigned w = 0;; ++w) {
    const unsigned kv = w % kKvStages;
    fa::mbarrier_wait(&smem.kv_empty[kv], (w / kKvStages & 1) ^ 1);
    if (w == 0 || !Sums::next_walk(work, shape, Br)) {
      if (next >= unsigned(Sums::units(shape))) {
        smem.work[kv] = {0, -1, 0, 0};
        fa::mbarrier_arrive(&smem.k_full[kv]);
        break;
      }
      work = Sums::first_walk(next, shape, Br);
      next = gridDim.x + atomicAdd(&taken[0], 1u);
    }
    smem.work[kv] = work;
    load_keys(smem.K[kv], &smem.k_full[kv], K, work);
    RowTile at{work, shape};
    UNROLL_BY(1)
    for (unsigned end = n + tiles_of(work, shape), first = n; n < end; ++n) {
      const unsigned q = n % kQStages, o = n % kDoStages;
      const size_t row = size_t(at.head) * shape.Np + at.i * Br;
      uint64_t *q_full = &smem.q_full[q], *do_full = &smem.do_full[o];
      fa::mbarrier_wait(&smem.q_empty[q], (n / kQStages & 1) ^ 1);
      fa::mbarrier_arrive_expect_tx(q_full, sizeof smem.Q[0] + sizeof smem.columns[0]);
      fa::tma_load(smem.Q[q], Q, q_full, {0, at.i * Br, 0, at.head});
      fa::bulk_load(smem.columns[q], columns + row * kColumns, sizeof smem.columns[0], q_full);
      if (n == first) load_keys(smem.V[kv], &smem.v_full[kv], V, work);
      fa::mbarrier_wait(&smem.do_empty[o], (n / kDoStages & 1) ^ 1);
      fa::mbarrier_arrive_expect_tx(do_full, sizeof smem.dO[0]);
      fa::tma_load(smem.dO[o], dO, do_full, {0, at.i * Br, 0, at.head});
      at.next(work, shape);
    }
  }
  fa::leave(taken);
}

// --- a thread stores -----------------------------------------------------------------------------

__device__ inline void store(Tiles& smem, const fa::TensorMap* dK, const fa::TensorMap* dV,
                             const Shape& shape) {
  UNROLL_BY(1)
  for (unsigned w = 0;; ++w) {
    const unsigned kv = w % kKvStages, parity = w / kKvStages & 1;
    fa::mbarrier_wait(&smem.k_full[kv], parity);
    const WorkTile work = smem.work[kv];
    if (work.j < 0) return;
    fa::mbarrier_wait(&smem.out_full[kv], parity);
    for (int wg = 0; wg < kGroups; ++wg) {
      const int key = work.j * Bc + wg * kGroupKeys;
      if (key >= shape.Nk) break;
      fa::tma_store(dV, smem.V[kv][wg], {0, key, 0, work.bh_kv});
      fa::tma_store(dK, smem.K[kv][wg], {0, key, 0, work.bh_kv});
    }
    fa::tma_store_commit();
    fa::tma_store_wait_read<0>();
    fa::mbarrier_arrive(&smem.kv_empty[kv]);
  }
}

// A stage's work tile, read by lane 0, whose arrivals release the stage.
__device__ inline WorkTile wait_for_work(Tiles& smem, unsigned w) {
  fa::mbarrier_wait(&smem.k_full[w % kKvStages], w / kKvStages & 1);
  WorkTile work{};
  if (threadIdx.x % fa::kWarp == 0) work = smem.work[w % kKvStages];
  const auto same = [](int x) { return fa::uniform(x); };
  return {same(work.bh_kv), same(work.j), same(work.head), same(work.first)};
}

// --- dQ's sums -----------------------------------------------------------------------------------

struct SharedSums {
  static constexpr bool kBegins = false;  // whether a product begins with earlier sums
  FloatSums sums;

  static __host__ __device__ int units(const Shape& shape) { return shape.Tc * shape.kv_heads; }
  static __device__ WorkTile first_walk(unsigned t, const Shape& shape, int rows) {
    return work_tile_at(t, shape, rows);
  }
  static __device__ bool next_walk(WorkTile&, const Shape&, int) { return false; }

  struct Part {
    FloatSums::Part sums;
    template <int n>
    __device__ void begin(float (&)[n]) const {}
    template <int n>
    __device__ void end(const float (&rdQ)[n]) const {
      sums.add(rdQ);
    }
  };
  __device__ Part part(const Shape& shape, const WorkTile&, const RowTile& at, int half) const {
    return {sums.part<d>((at.head * shape.Np + at.i * Br) / 64 + half)};
  }
};

// --- a warpgroup multiplies dQ -------------------------------------------------------------------

template <class Sums>
__device__ inline void multiply_dq(Tiles& smem, const Shape& shape, const Sums& dQ_sum) {
  const int lane = threadIdx.x % fa::kWarp;
  const uint64_t first_k = tile_descriptor(smem.K[0][0]), first_ds = tile_descriptor(smem.dS[0]);
  unsigned n = 0;
  UNROLL_BY(1)
  for (unsigned w = 0;; ++w) {
    const WorkTile work = wait_for_work(smem, w);
    if (work.j < 0) return;
    RowTile at{work, shape};
    UNROLL_BY(1)
    for (unsigned end = n + tiles_of(work, shape); n < end; ++n, at.next(work, shape)) {
      const unsigned stage = n % kDsStages;
      const uint64_t k = first_k + w % kKvStages * (sizeof smem.K[0] >> 4);
      const uint64_t ds = first_ds + stage * (sizeof smem.dS[0] >> 4);
      UNROLL_BY(1)
      for (int half = 0; half < Br / 64; ++half) {
        const auto part = dQ_sum.part(shape, work, at, half);
        float rdQ[d / 2];
        part.begin(rdQ);
        if (half == 0) fa::mbarrier_wait(&smem.ds_full[stage], n / kDsStages & 1);
        multiply_transposed<d, Bc>(ds + (half * Bc * kRowBytes >> 4), k, rdQ, Sums::kBegins);
        wait_for<0>(rdQ);
        if (half > 0 && lane == 0) fa::mbarrier_arrive(&smem.ds_empty[stage]);
        part.end(rdQ);
      }
    }
    if (lane == 0) fa::mbarrier_arrive(&smem.kv_empty[w % kKvStages]);
  }
}

// --- the others multiply, and compute P and dS ---------------------------------------------------

template <int wg>
struct Group {
  Tiles& smem;
  const Shape& shape;
  const int thread = threadIdx.x % kGroupThreads, lane = threadIdx.x % fa::kWarp;
  const uint64_t first = tile_descriptor(smem.K[0][0]);
  __device__ unsigned zero() const { return n >> 31; }
  __device__ uint64_t first_tile() const { return first + zero(); }
  using At = Distances<Tiles, d, Br, wg>;
  static constexpr uint64_t kKvStageOf = kGroups * kGroupKeys * d * 2 >> 4;  // of K, V
  unsigned w = 0, n = 0;  // numbers of the work tile and of the next tile,
  int i, walk, key;       // its place among the head's tiles, and the walk's first; first key
  int left;               // tiles of the walk after it
  float rX[Br / 2], rdK[d / 2] = {}, rdV[d / 2] = {};
  uint32_t rP[Br / kMma][4];
  uint32_t lse_ones[4], delta_ones[4];

  __device__ Group(Tiles& smem, const Shape& shape) : smem(smem), shape(shape) {
    take();
    step11_columns::select_columns<true>(lse_ones);
    step11_columns::select_columns<false>(delta_ones);
  }

  __device__ unsigned kv_stage() const { return w % kKvStages; }
  __device__ unsigned q_stage() const { return n % kQStages; }
  __device__ unsigned do_stage() const { return n % kDoStages; }
  __device__ bool take() {
    const WorkTile work = wait_for_work(smem, w);
    i = walk = work.first, key = work.j * Bc + wg * kGroupKeys, left = tiles_of(work, shape) - 1;
    return work.j >= 0;
  }
  __device__ void next() {
    if (++i == shape.Tr) i = walk;
    --left;
  }

  __device__ uint64_t columns() const {
    return fa::wgmma_descriptor(smem.columns[q_stage()], fa::Swizzle::none, 0, 8 * 2 * kColumns);
  }

  __device__ void issue_scores(float (&rS)[Br / 2]) {
    fa::mbarrier_wait(&smem.q_full[q_stage()], n / kQStages & 1);
    multiply_with_columns<d>(first_tile() + At::kK + kv_stage() * kKvStageOf,
                             first_tile() + At::kQ + q_stage() * At::kStageOf, lse_ones, columns(),
                             rS);
  }
  __device__ void softmax(float (&rS)[Br / 2]) {
    const int row = i * Br, last = key + kGroupKeys - 1;
    if (last >= shape.Nk || last > row + shape.shift) {
      const int k = key + thread / fa::kWarp * 16 + fa::row_of(lane), r = row + fa::column_of(lane);
      mask(rS, hidden(shape, k, r), hidden(shape, k + 8, r));
    }
    const float scale_log2 = shape.scale * fa::kLog2e;
    UNROLL
    for (int i = 0; i < Br / 2; ++i) rS[i] = fa::exp2_approx(rS[i] * scale_log2);
    fa::pin_registers(rS);
  }
  __device__ void issue_dk(unsigned n) {
    multiply_rows<d>(rP, first_tile() + At::kQRows + n % kQStages * At::kStageOf, rdK);
  }
  __device__ void differentiate() {
    step11_columns::differentiate<d>(first_tile() + At::kV + kv_stage() * kKvStageOf,
                                     first_tile() + At::kDo + do_stage() * At::kStageOf,
                                     first_tile() + At::kDoRows + do_stage() * At::kStageOf,
                                     delta_ones, columns(), &smem.do_full[do_stage()],
                                     n / kDoStages & 1, rX, rP, rdV);
    warp_arrive(&smem.do_empty[do_stage()]);
    pack_operand(rX, rP);
    fa::mbarrier_wait(&smem.ds_empty[n % kDsStages], (n / kDsStages & 1) ^ 1);
    put_ds(rP, smem.dS[n % kDsStages]);
  }
  __device__ void signal_ds() {
    fa::fence_proxy_async();  // wgmma sees this thread's writes
    warp_arrive(&smem.ds_full[(n - 1) % kDsStages]);
  }

  __device__ void put_gradients(unsigned kv) {
    const float scales[2] = {shape.scale, shape.scale}, ones[2] = {1.f, 1.f};
    put_rows<d>(rdV, ones, smem.V[kv][wg]);  // over keys that only the warp's dP reads
    fa::mbarrier_wait(&smem.ds_empty[(n - 1) % kDsStages], (n - 1) / kDsStages & 1);
    put_rows<d>(rdK, scales, smem.K[kv][wg]);
    fa::fence_proxy_async();  // TMA sees this thread's writes
    warp_arrive(&smem.out_full[kv]);
  }

  __device__ void run() {
    // --- prologue: P and dS of the first tile
    float(&rS)[Br / 2] = rX;
    issue_scores(rS);
    wait_for<0>(rS);
    softmax(rS);
    pack_operand(rS, rP);
    fa::mbarrier_wait(&smem.v_full[0], 0);
    differentiate();

    // --- mainloop: S of the next tile, of this walk or the next one, overlaps dK of this one
    for (;;) {
      ++n;
      const bool seam = left == 0;
      if (seam) {
        ++w;
        if (!take()) break;
      } else {
        next();
      }
      issue_scores(rS);
      issue_dk(n - 1);
      signal_ds();
      wait_for<1>(rS);
      softmax(rS);
      wait_for<0>(rdK);
      fa::pin_registers(rS);
      warp_arrive(&smem.q_empty[(n - 1) % kQStages]);
      if (seam) {
        put_gradients((w - 1) % kKvStages);
        UNROLL
        for (int i = 0; i < d / 2; ++i) rdK[i] = rdV[i] = 0.f;
        fa::mbarrier_wait(&smem.v_full[kv_stage()], w / kKvStages & 1);
      }
      pack_operand(rS, rP);
      differentiate();
    }

    // --- epilogue: dK of the last tile
    signal_ds();
    issue_dk(n - 1);
    wait_for<0>(rdK);
    put_gradients((w - 1) % kKvStages);
  }
};

template <class Sums>
__global__ void __launch_bounds__(kThreads, 1)
    backward_kernel(const __grid_constant__ fa::TensorMap Q,   // [B*H, N, d], boxes of Br rows
                    const __grid_constant__ fa::TensorMap K,   // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap V,   // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap dO,  // [B*H, N, d], of Br
                    const __grid_constant__ fa::TensorMap dK,  // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap dV,  // [B*Hkv, Nk, d], of 64
                    const bf16* columns,                       // [B*H, Np, 8]
                    Sums dQ_sum, Shape shape,
                    unsigned* taken) {  // [2]: work tiles, blocks that left
  Tiles& smem = *fa::dynamic_shared<Tiles>();
  if (threadIdx.x == 0) {
    constexpr int kGroupWarps = kGroupThreads / fa::kWarp, kWarps = kGroups * kGroupWarps;
    init_mbarriers(smem.k_full, 1), init_mbarriers(smem.v_full, 1),
        init_mbarriers(smem.kv_empty, 1 + kGroupWarps);
    init_mbarriers(smem.out_full, kWarps);
    init_mbarriers(smem.q_full, 1), init_mbarriers(smem.q_empty, kWarps);
    init_mbarriers(smem.do_full, 1), init_mbarriers(smem.do_empty, kWarps);
    init_mbarriers(smem.ds_full, kWarps), init_mbarriers(smem.ds_empty, kGroupWarps);
    fa::mbarrier_init_fence();
  }
  __syncthreads();     // all threads see the barriers
  fa::griddep_wait();  // launched early: what the preceding kernel wrote is visible
  const int wg = fa::uniform(threadIdx.x / kGroupThreads);
  if (wg == kGroups + 1) {
    fa::setmaxnreg_dec<kLoaderRegisters>();
    if (threadIdx.x == (kGroups + 1) * kGroupThreads) {
      produce<Sums>(smem, &Q, &K, &V, &dO, columns, shape, taken);
    }
    if (threadIdx.x == (kGroups + 1) * kGroupThreads + fa::kWarp) store(smem, &dK, &dV, shape);
  } else if (wg == kGroups) {
    fa::setmaxnreg_dec<kThirdRegisters>();
    multiply_dq(smem, shape, dQ_sum);
  } else {
    fa::setmaxnreg_inc<kGroupRegisters>();
    if (wg == 0) {
      Group<0>(smem, shape).run();
    } else {
      Group<1>(smem, shape).run();
    }
  }
}

// --- host ----------------------------------------------------------------------------------------

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  std::vector<fa::Scratch> all = step11_columns::workspace(p);
  all.push_back({.name = "walks", .bytes = 2 * sizeof(unsigned), .zeroed = true});
  return all;
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  fa::Prediction t = step11_columns::backward_traffic(p);
  if (p.d != d) return t;
  const uint64_t walks = p.kv_heads() * uint64_t(fa::ceil_div(p.Nk, Bc));
  const uint64_t blocks = std::min<uint64_t>(p.gpu.sms, walks);
  t["walks"] = {.read = 0, .write = 8, .atomic = 4 * (walks + blocks)};
  t.flops += step11_columns::skipped_scores(p, Br) * (8 * p.d + 4 * kMma);  // computed here
  return t;
}

template <class Sums>
void launch_backward(const fa::Problem& p, const fa::Tensors<bf16>& t, const Sums& dQ_sum) {
  const Shape shape = shape_of(p, Br);
  launch_mapped<d, true>(
      backward_kernel<Sums>, fa::share_work(p.gpu.sms, Sums::units(shape), kThreads, sizeof(Tiles)),
      p, t, Br, t.scratch<bf16>("columns"), dQ_sum, shape, t.scratch<unsigned>("walks"));
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  if (p.d != d) return step11_columns::backward(p, t);
  step11_columns::launch_columns<d>(p, t);
  launch_backward(p, t, SharedSums{{t.scratch<float>("dQ_sum")}});
  step11_sums::launch_convert<d>(p, t);
}

}  // namespace step11_persistent

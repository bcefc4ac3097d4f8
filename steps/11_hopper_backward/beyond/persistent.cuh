// Step 11 -- persistent blocks.
// Idea      A block of `columns` waits for its first tiles, and nothing overlaps its first P and
//           dS, or the stores of dK and dV. Here one block per SM processes one walk after another,
//           and the loop continues over the ends of walks: S of the next walk's first tile overlaps
//           dK of this one's last. K and V have two places, so one thread can copy the next walk's
//           while this one's are in use, and another store dK and dV. Where a head's sums fit, a
//           block takes whole heads. d = 64 only: at d = 128 a fourth warpgroup leaves too few
//           registers
// Changed   since 11 3_columns: a copying and a storing thread; two places of K and V; walks, or
//           heads, from a counter that all blocks share; dQ's sums
// Traffic   as 3_columns, and 4 B per walk and per block, atomic, 8 B written: the counters.
//           Heads: dQ_sum 4*d B per row that two walks or more see, written and read, and atomic
//           for each walk between; no zeros
// Launch    columns; backward (SMs, or fewer walks or heads), 512 threads; convert (not for heads)
// Owns      block: dK and dV of 128 keys at a time; warpgroups as in 3_columns, and 3 that copies
// Still bad walks: dQ_sum crosses HBM four times: zeros, twice for the additions, and once at the
//           end. Heads pay only with two or more per SM, and sums that fit in the L2
#pragma once

#include "common/dialect/ptx/setmaxnreg.h"
#include "steps/11_hopper_backward/3_columns.cuh"
#include "steps/11_hopper_backward/beyond/places.cuh"  // its preceding kernel

namespace step11_persistent {

using namespace step11;
using step11_columns::Br, step11_columns::kDsStages;  // 128 rows (d = 64); 2
using step11_columns::kColumns, step11_columns::multiply_with_columns;

constexpr int kThreads = (kGroups + 2) * kGroupThreads;
constexpr int kPlaces = 2;                                   // of K and V
constexpr int kQStages = 3, kDoStages = 2;                   // columns arrive with Q
constexpr int kGroupRegisters = 208, kCopierRegisters = 32;  // setmaxnreg: of 4 x 128
constexpr int kThirdRegisters = 4 * 128 - 2 * kGroupRegisters - kCopierRegisters;

// A block's shared memory: 215 KB. Panels as in 09.
template <int d>
struct alignas(1024) Tiles {
  bf16 K[kPlaces][kGroups][kGroupKeys * d];  // later dK and dV, before their stores
  bf16 V[kPlaces][kGroups][kGroupKeys * d];
  bf16 Q[kQStages][Br<d> * d];
  bf16 dO[kDoStages][Br<d> * d];
  bf16 columns[kQStages][Br<d> * kColumns];       // with Q
  bf16 dS[kDsStages][Bc * Br<d>];                 // dS^T: [Br / 64][Bc][64]
  WorkTile work[kPlaces];                         // with K; after the last one j = -1
  uint64_t k_full[kPlaces], v_full[kPlaces];      // mbarriers
  uint64_t out_full[kPlaces], kv_empty[kPlaces];  // out: dK and dV
  uint64_t q_full[kQStages], q_empty[kQStages];
  uint64_t o_full[kDoStages], o_empty[kDoStages];
  uint64_t ds_full[kDsStages], ds_empty[kDsStages];
};

// Tiles of a walk, of all heads that share the keys.
__device__ inline unsigned tiles_of(const WorkTile& work, const Shape& shape) {
  return shape.group * (shape.Tr - work.first);
}

// --- a thread copies -----------------------------------------------------------------------------

// Copies K, V and the tiles of rows of each walk, in the order of their use. The next walk, or
// head, is drawn from a counter that all blocks share, one ahead, so that no thread waits for it.
template <int d, class Sums>
__device__ inline void produce(Tiles<d>& smem, const fa::TensorMap* Q, const fa::TensorMap* K,
                               const fa::TensorMap* V, const fa::TensorMap* dO,
                               const bf16* columns,  // [B*H, Np, 8]
                               const Shape& shape, unsigned* taken) {
  unsigned n = 0, next = blockIdx.x;
  WorkTile work{};
  UNROLL_BY(1)
  for (unsigned w = 0;; ++w) {
    const unsigned place = w % kPlaces;
    fa::mbarrier_wait(&smem.kv_empty[place], (w / kPlaces & 1) ^ 1);
    if (w == 0 || !Sums::next_walk(work, shape, Br<d>)) {
      if (next >= unsigned(Sums::units(shape))) {
        smem.work[place] = {0, -1, 0, 0};
        fa::mbarrier_arrive(&smem.k_full[place]);
        break;
      }
      work = Sums::first_walk(next, shape, Br<d>);
      next = gridDim.x + atomicAdd(&taken[0], 1u);
    }
    smem.work[place] = work;
    load_keys(smem.K[place], &smem.k_full[place], K, work);
    RowTile at = work;
    UNROLL_BY(1)
    for (unsigned end = n + tiles_of(work, shape), first = n; n < end; ++n) {
      const unsigned q = n % kQStages, o = n % kDoStages;
      const size_t row = size_t(at.head) * shape.Np + at.i * Br<d>;
      uint64_t *q_full = &smem.q_full[q], *o_full = &smem.o_full[o];
      fa::mbarrier_wait(&smem.q_empty[q], (n / kQStages & 1) ^ 1);
      fa::mbarrier_arrive_expect_tx(q_full, sizeof smem.Q[0] + sizeof smem.columns[0]);
      fa::tma_load(smem.Q[q], Q, q_full, {0, at.i * Br<d>, 0, at.head});
      fa::bulk_load(smem.columns[q], columns + row * kColumns, sizeof smem.columns[0], q_full);
      if (n == first) load_keys(smem.V[place], &smem.v_full[place], V, work);
      fa::mbarrier_wait(&smem.o_empty[o], (n / kDoStages & 1) ^ 1);
      fa::mbarrier_arrive_expect_tx(o_full, sizeof smem.dO[0]);
      fa::tma_load(smem.dO[o], dO, o_full, {0, at.i * Br<d>, 0, at.head});
      at.next(work, shape.Tr);
    }
  }
  // The last block to leave resets the counters; concurrent launches need separate ones.
  __threadfence();
  if (atomicAdd(&taken[1], 1u) == gridDim.x - 1) taken[0] = 0, taken[1] = 0;
}

// --- a thread stores -----------------------------------------------------------------------------

// Stores dK and dV of each walk from the place of its K and V, which is free when TMA has read it.
template <int d>
__device__ inline void store(Tiles<d>& smem, const fa::TensorMap* dK, const fa::TensorMap* dV,
                             const Shape& shape) {
  UNROLL_BY(1)
  for (unsigned w = 0;; ++w) {
    const unsigned place = w % kPlaces, parity = w / kPlaces & 1;
    fa::mbarrier_wait(&smem.k_full[place], parity);
    const WorkTile work = smem.work[place];
    if (work.j < 0) return;
    fa::mbarrier_wait(&smem.out_full[place], parity);
    for (int wg = 0; wg < kGroups; ++wg) {
      const int key = work.j * Bc + wg * kGroupKeys;
      if (key >= shape.Nk) break;
      fa::tma_store(dV, smem.V[place][wg], {0, key, 0, work.bh_kv});
      fa::tma_store(dK, smem.K[place][wg], {0, key, 0, work.bh_kv});
    }
    fa::tma_store_commit();
    fa::tma_store_wait_read<0>();
    fa::mbarrier_arrive(&smem.kv_empty[place]);
  }
}

// A place's work tile, once its K has arrived, read by lane 0, whose arrivals release the place.
template <int d>
__device__ inline WorkTile wait_for_work(Tiles<d>& smem, unsigned w) {
  fa::mbarrier_wait(&smem.k_full[w % kPlaces], w / kPlaces & 1);
  WorkTile work{};
  if (threadIdx.x % fa::kWarp == 0) work = smem.work[w % kPlaces];
  const auto same = [](int x) { return __shfl_sync(fa::kFullMask, x, 0); };
  return {same(work.bh_kv), same(work.j), same(work.head), same(work.first)};
}

// --- dQ's sums -----------------------------------------------------------------------------------

// dQ's sums when a block may draw any walk: several blocks add parts of a row.
struct SharedSums {
  static constexpr bool kBegins = false;  // whether a product begins with earlier sums
  FloatSums sums;

  // The unit that a block draws from the counter: here walks.
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
  template <int d>
  __device__ Part part(const Shape& shape, const WorkTile&, const RowTile& at, int half) const {
    return {sums.template part<d>((at.head * shape.Np + at.i * Br<d>) / 64 + half)};
  }
};

// dQ's sums of the block's current head, in a place per block: the block has all walks of a head,
// so no other block adds to the head's dQ. The first walk to see a row stores its sums, later ones
// add, and the last one begins its product with them and rounds dQ. No zeros and no kernel after;
// one thread adds an element's parts in order, so each run has the same bits.
struct OwnSums {
  static constexpr bool kBegins = true;
  float* sums;  // [blocks, group * Np / 64, 4, d / 8, 32, 4]: a place per block
  bf16* dQ;     // [B*H, N, d]
  int N;

  // A block draws heads of K and V, whose walks follow each other.
  static __host__ __device__ int units(const Shape& shape) { return shape.kv_heads; }
  static __device__ WorkTile first_walk(unsigned t, const Shape& shape, int) {
    return {int(t), 0, int(t) * shape.group, 0};
  }
  static __device__ bool next_walk(WorkTile& work, const Shape& shape, int rows) {
    if (++work.j == shape.Tc) return false;
    work.first = max(0, work.j * Bc - shape.shift) / rows;
    return true;
  }

  struct Part {
    FloatSums::Part sums;
    bool first, last;  // of the walks that see these rows
    bf16* to;          // the lane's row r, in dQ; feature 8 (lane % 4)
    int r, N;
    float scale;

    template <int n>
    __device__ void begin(float (&rdQ)[n]) const {
      UNROLL
      for (int x = 0; x < n / 4; ++x) {
        const float4 sum = last && !first ? fa::load_l2(sums.at + x * fa::kWarp * 4) : float4{};
        rdQ[4 * x] = sum.x, rdQ[4 * x + 1] = sum.y, rdQ[4 * x + 2] = sum.z, rdQ[4 * x + 3] = sum.w;
      }
    }
    template <int n>
    __device__ void end(const float (&rdQ)[n]) const {
      if (last) {
        UNROLL
        for (int x = 0; x < n / 4; x += 4) {
          float4 four[4];
          UNROLL
          for (int i = 0; i < 4; ++i) {
            const float* sum = rdQ + 4 * (x + i);
            four[i] = make_float4(sum[0], sum[1], sum[2], sum[3]);
          }
          fa::put_rounded<n * 2>(four, scale, to + 8 * x, r, N);
        }
      } else if (first) {
        UNROLL
        for (int x = 0; x < n / 4; ++x) {
          *reinterpret_cast<float4*>(sums.at + x * fa::kWarp * 4) =
              make_float4(rdQ[4 * x], rdQ[4 * x + 1], rdQ[4 * x + 2], rdQ[4 * x + 3]);
        }
      } else {
        sums.add(rdQ);
      }
    }
  };
  template <int d>
  __device__ Part part(const Shape& shape, const WorkTile& work, const RowTile& at,
                       int half) const {
    const int warp = threadIdx.x % kGroupThreads / fa::kWarp, lane = threadIdx.x % fa::kWarp;
    const int row = at.i * Br<d> + half * 64;  // of the head
    const int r = row + warp * 16 + fa::row_of(lane);
    const int walks = min(shape.Tc, ((at.i + 1) * Br<d> - 1 + shape.shift) / Bc + 1);
    const int place = blockIdx.x * shape.group + at.head - work.head;
    const FloatSums here{sums};
    return {here.template part<d>((place * shape.Np + row) / 64),
            work.j == 0,
            work.j == walks - 1,
            dQ + (size_t(at.head) * N + r) * d + lane % 4 * 8,
            r,
            N,
            shape.scale};
  }
};

// --- a warpgroup multiplies dQ -------------------------------------------------------------------

// dQ of each tile, 64 rows at a time, once both warpgroups' dS is complete.
template <int d, class Sums>
__device__ inline void multiply_dq(Tiles<d>& smem, const Shape& shape, const Sums& dQ_sum) {
  const int lane = threadIdx.x % fa::kWarp;
  const uint64_t first_k = tile_descriptor(smem.K[0][0]), first_ds = tile_descriptor(smem.dS[0]);
  unsigned n = 0;
  UNROLL_BY(1)
  for (unsigned w = 0;; ++w) {
    const WorkTile work = wait_for_work(smem, w);
    if (work.j < 0) return;
    RowTile at = work;
    UNROLL_BY(1)
    for (unsigned end = n + tiles_of(work, shape); n < end; ++n, at.next(work, shape.Tr)) {
      const unsigned stage = n % kDsStages;
      const uint64_t k = first_k + w % kPlaces * (sizeof smem.K[0] >> 4);
      const uint64_t ds = first_ds + stage * (sizeof smem.dS[0] >> 4);
      UNROLL_BY(1)
      for (int half = 0; half < Br<d> / 64; ++half) {
        const auto part = dQ_sum.template part<d>(shape, work, at, half);
        float rdQ[d / 2];
        part.begin(rdQ);
        if (half == 0) fa::mbarrier_wait(&smem.ds_full[stage], n / kDsStages & 1);
        multiply_transposed<d, Bc>(ds + (half * Bc * kRowBytes >> 4), k, rdQ, Sums::kBegins);
        fa::wgmma_wait<0>();
        fa::pin_registers(rdQ);
        if (half > 0 && lane == 0) fa::mbarrier_arrive(&smem.ds_empty[stage]);
        part.end(rdQ);
      }
    }
    if (lane == 0) fa::mbarrier_arrive(&smem.kv_empty[w % kPlaces]);
  }
}

// --- the others multiply, and compute P and dS ---------------------------------------------------

// A warpgroup that owns 64 keys. Its registers: see parts.cuh.
template <int d, int wg>
struct Group {
  static constexpr int Br = step11_persistent::Br<d>;
  Tiles<d>& smem;
  const Shape& shape;
  const int thread = threadIdx.x % kGroupThreads, lane = threadIdx.x % fa::kWarp;
  // Descriptors differ by constants from that of the first tile.
  using Memory = Tiles<d>;
  const uint64_t first = tile_descriptor(smem.K[0][0]);
  // Always 0, which nvcc cannot know: else it would compute all descriptors before the loop.
  __device__ unsigned zero() const { return n >> 31; }
  __device__ uint64_t first_tile() const { return first + zero(); }
  static constexpr size_t kMine = wg * kGroupKeys * d * 2;
  static constexpr uint64_t kK = distance(kMine), kV = distance(offsetof(Memory, V) + kMine);
  static constexpr uint64_t kQ = distance(offsetof(Memory, Q));
  static constexpr uint64_t kDo = distance(offsetof(Memory, dO));
  static constexpr uint64_t kQRows = distance(offsetof(Memory, Q), Br* kRowBytes);
  static constexpr uint64_t kDoRows = distance(offsetof(Memory, dO), Br* kRowBytes);
  static constexpr uint64_t kStageOf = Br * d * 2 >> 4;                    // from stage to stage
  static constexpr uint64_t kPlaceOf = kGroups * kGroupKeys * d * 2 >> 4;  // of K, V
  unsigned w = 0, n = 0;  // numbers of the work tile, and of the tile whose scores are next,
  int i, walk, key;       // its place among the head's tiles, and the walk's first; first key
  int left;               // tiles of the walk after it
  float rX[Br / 2], rdK[d / 2] = {}, rdV[d / 2] = {};
  uint32_t rP[Br / kMma][4];  // P, then dS
  // A of the columns' product: per key 1 in the columns of LSE, or of delta. A lane holds column
  // 2 (lane % 4) and the next one of two keys; columns 8 to 15 are 0.
  uint32_t lse_ones[4], delta_ones[4];

  __device__ Group(Tiles<d>& smem, const Shape& shape) : smem(smem), shape(shape) {
    take();
    constexpr uint32_t kLower = 0x3f80, kUpper = 0x3f800000;  // 1 in bf16
    const int pair = lane % 4;                                // of columns
    lse_ones[0] = lse_ones[1] = pair == 0 ? kLower | kUpper : pair == 1 ? kLower : 0;
    delta_ones[0] = delta_ones[1] = pair == 2 ? kLower | kUpper : pair == 1 ? kUpper : 0;
    lse_ones[2] = lse_ones[3] = delta_ones[2] = delta_ones[3] = 0;  // columns 8 to 15
    fa::pin_registers(lse_ones);
    fa::pin_registers(delta_ones);
  }

  __device__ unsigned place() const { return w % kPlaces; }
  __device__ unsigned q_stage() const { return n % kQStages; }
  __device__ unsigned o_stage() const { return n % kDoStages; }
  // Takes the next walk, unless there is none.
  __device__ bool take() {
    const WorkTile work = wait_for_work(smem, w);
    i = walk = work.first, key = work.j * Bc + wg * kGroupKeys, left = tiles_of(work, shape) - 1;
    return work.j >= 0;
  }
  // Advances to the walk's next tile, of all heads that share the keys.
  __device__ void next() {
    if (++i == shape.Tr) i = walk;
    --left;
  }

  // No swizzle: rows of 16 bytes, in groups of eight; columns 8 to 15 are multiplied by 0.
  __device__ uint64_t columns() const {
    return fa::wgmma_descriptor(smem.columns[q_stage()], fa::Swizzle::none, 0, 8 * 2 * kColumns);
  }

  // (S - LSE / scale)^T, once Q has arrived.
  __device__ void issue_scores(float (&rS)[Br / 2]) {
    fa::mbarrier_wait(&smem.q_full[q_stage()], n / kQStages & 1);
    multiply_with_columns<d>(first_tile() + kK + place() * kPlaceOf,
                             first_tile() + kQ + q_stage() * kStageOf, lse_ones, columns(), rS);
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
    multiply_rows<d>(rP, first_tile() + kQRows + n % kQStages * kStageOf, rdK);
  }
  // (dP - delta)^T and dV += P^T dO, once dO has arrived. dS, which overlaps dV, goes to registers
  // and, once its place has been read, to shared memory.
  __device__ void differentiate() {
    float(&rdP)[Br / 2] = rX;
    uint32_t copy[Br / kMma][4];  // of P: ptxas moves all reads of A's registers after dV's wait
    UNROLL
    for (int r = 0; r < Br / kMma; ++r) {
      UNROLL
      for (int e = 0; e < 4; ++e) copy[r][e] = rP[r][e];
      fa::pin_registers(copy[r]);
    }
    fa::mbarrier_wait(&smem.o_full[o_stage()], n / kDoStages & 1);
    multiply_with_columns<d>(first_tile() + kV + place() * kPlaceOf,
                             first_tile() + kDo + o_stage() * kStageOf, delta_ones, columns(), rdP);
    multiply_rows<d>(rP, first_tile() + kDoRows + o_stage() * kStageOf, rdV);
    wait_for<1>(rdP);
    UNROLL
    for (int i = 0; i < Br / 2; i += 2) {
      multiply_by_p(copy[i / 8][i % 8 / 2], rdP[i], rdP[i + 1]);  // dS = P (dP - delta)
    }
    fa::pin_registers(rdP);
    wait_for<0>(rdV);
    fa::pin_registers(rdP);  // else ptxas packs dS before the wait, while P is in use
    warp_arrive(&smem.o_empty[o_stage()]);
    pack_operand(rdP, rP);
    fa::mbarrier_wait(&smem.ds_empty[n % kDsStages], (n / kDsStages & 1) ^ 1);
    put_ds(rP, smem.dS[n % kDsStages]);
  }
  __device__ void show_ds() {
    fa::fence_proxy_async();  // wgmma sees this thread's writes
    warp_arrive(&smem.ds_full[(n - 1) % kDsStages]);
  }

  // Writes a walk's dK and dV to the place of its K and V.
  __device__ void put_gradients(unsigned place) {
    const float scales[2] = {shape.scale, shape.scale}, ones[2] = {1.f, 1.f};
    put_rows<d>(rdV, ones, smem.V[place][wg]);  // a warp: where only its own part of dP reads
    // dQ of the last tile has read K
    fa::mbarrier_wait(&smem.ds_empty[(n - 1) % kDsStages], (n - 1) / kDsStages & 1);
    put_rows<d>(rdK, scales, smem.K[place][wg]);
    fa::fence_proxy_async();  // TMA sees this thread's writes
    warp_arrive(&smem.out_full[place]);
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
      show_ds();
      wait_for<1>(rS);
      softmax(rS);
      wait_for<0>(rdK);
      fa::pin_registers(rS);  // else ptxas packs P before the wait, while dS is in use
      warp_arrive(&smem.q_empty[(n - 1) % kQStages]);
      if (seam) {
        put_gradients((w - 1) % kPlaces);
        UNROLL
        for (int i = 0; i < d / 2; ++i) rdK[i] = rdV[i] = 0.f;
        fa::mbarrier_wait(&smem.v_full[place()], w / kPlaces & 1);
      }
      pack_operand(rS, rP);
      differentiate();
    }

    // --- epilogue: dK of the last tile
    show_ds();
    issue_dk(n - 1);
    wait_for<0>(rdK);
    put_gradients((w - 1) % kPlaces);
  }
};

// A block owns 128 keys at a time and walks the tiles of rows that see them, of all their heads.
template <int d, class Sums>
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
  Tiles<d>& smem = *fa::dynamic_shared<Tiles<d>>();
  if (threadIdx.x == 0) {
    constexpr int kGroupWarps = kGroupThreads / fa::kWarp, kWarps = kGroups * kGroupWarps;
    init_mbarriers(smem.k_full, 1), init_mbarriers(smem.v_full, 1),
        init_mbarriers(smem.kv_empty, 1 + kGroupWarps);
    init_mbarriers(smem.out_full, kWarps);
    init_mbarriers(smem.q_full, 1), init_mbarriers(smem.q_empty, kWarps);
    init_mbarriers(smem.o_full, 1), init_mbarriers(smem.o_empty, kWarps);
    init_mbarriers(smem.ds_full, kWarps), init_mbarriers(smem.ds_empty, kGroupWarps);
    fa::mbarrier_init_fence();
  }
  __syncthreads();  // all threads see the barriers
  const int wg = __shfl_sync(fa::kFullMask, threadIdx.x / kGroupThreads, 0);
  if (wg == kGroups + 1) {
    fa::setmaxnreg_dec<kCopierRegisters>();
    if (threadIdx.x == (kGroups + 1) * kGroupThreads) {
      produce<d, Sums>(smem, &Q, &K, &V, &dO, columns, shape, taken);
    }
    if (threadIdx.x == (kGroups + 1) * kGroupThreads + fa::kWarp) store<d>(smem, &dK, &dV, shape);
  } else if (wg == kGroups) {
    fa::setmaxnreg_dec<kThirdRegisters>();
    multiply_dq<d>(smem, shape, dQ_sum);
  } else {
    fa::setmaxnreg_inc<kGroupRegisters>();
    if (wg == 0) {
      Group<d, 0>(smem, shape).run();
    } else {
      Group<d, 1>(smem, shape).run();
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
  if (p.d != 64) return t;
  const uint64_t walks = p.kv_heads() * uint64_t(fa::ceil_div(p.Nk, Bc));
  const uint64_t blocks = std::min<uint64_t>(p.gpu.sms, walks);
  t["walks"] = {.read = 0, .write = 8, .atomic = 4 * (walks + blocks)};
  t.flops += step11_columns::skipped_scores(p, Br<64>) * (8 * p.d + 4 * kMma);  // computed here
  return t;
}

// A row without a key would have no walk to write its dQ.
inline bool heads_supported(const fa::Problem& p) {
  return p.d == 64 && (!p.causal || p.Nk >= p.N);
}

inline int blocks_of(const fa::Problem& p) { return std::min<int>(p.gpu.sms, p.kv_heads()); }

// Where the sums, Q and dO stay in the L2 (measured on an H100), and each SM has several heads.
inline bool heads_pay(const fa::Problem& p) {
  const size_t most = p.causal ? size_t{20} << 20 : size_t{10} << 20;
  const size_t sums = 4 * size_t(p.gpu.sms) * (p.H / p.Hkv) * padded_rows(p) * p.d;
  return heads_supported(p) && int(p.kv_heads()) >= 2 * p.gpu.sms && sums <= most;
}
inline fa::Prediction traffic_of_heads(const fa::Problem& p) {
  fa::Prediction t = step11_columns::backward_traffic(p);
  const Shape shape = shape_of(p, Br<64>);
  uint64_t stored = 0, added = 0;  // tiles of rows of a head; visits
  for (int i = 0; i < shape.Tr; ++i) {
    const int walks = std::min(shape.Tc, ((i + 1) * Br<64> - 1 + shape.shift) / Bc + 1);
    stored += walks > 1, added += std::max(0, walks - 2);
  }
  const uint64_t tile = 4 * uint64_t(Br<64>) * p.d, BH = p.heads(), zeros = 4 * BH * shape.Np * p.d;
  const uint64_t before = 4 * BH * p.d * uint64_t(shape.Tr) * Br<64>;  // as 3_columns counts it
  t.buffers.erase("dQ_sum");
  if (stored > 0) {
    const uint64_t once = BH * stored * tile;
    t["dQ_sum"] = {.read = once, .write = once, .atomic = BH * added * tile};
  }
  t["walks"] = {.read = 0, .write = 8, .atomic = 4 * (p.kv_heads() + uint64_t(blocks_of(p)))};
  t.hbm.read -= zeros + before, t.hbm.write -= zeros + before;  // the sums stay in the L2 ...
  t.hbm.write += (stored > 0) * blocks_of(p) * uint64_t(p.H / p.Hkv) * shape.Np * p.d *
                 4;                                                             // ... until the end
  t.flops += step11_columns::skipped_scores(p, Br<64>) * (8 * p.d + 4 * kMma);  // computed here
  return t;
}

template <class Sums>
void launch_backward(const fa::Problem& p, const fa::Tensors<bf16>& t, const Sums& dQ_sum) {
  const Shape shape = shape_of(p, Br<64>);
  const auto rows = [&](const bf16* x) { return map_of_rows<64>(p, x, Br<64>); };
  const auto keys = [&](const bf16* x) { return map_of_keys<64>(p, x); };
  fa::launch(backward_kernel<64, Sums>,
             {.grid = dim3(std::min(p.gpu.sms, Sums::units(shape))),
              .block = dim3(kThreads),
              .smem = sizeof(Tiles<64>),
              .shares_work = true},
             rows(t.Q), keys(t.K), keys(t.V), rows(t.dO), keys(t.dK), keys(t.dV),
             t.scratch<bf16>("columns"), dQ_sum, shape, t.scratch<unsigned>("walks"));
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  if (p.d != 64) return step11_columns::backward(p, t);
  step11_columns::launch_columns<64>(p, t);
  launch_backward(p, t, SharedSums{{t.scratch<float>("dQ_sum")}});
  launch_convert<64>(p, t);
}

inline void backward_by_heads(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  step11_places::launch_columns<64>(p, t, nullptr, 0);
  launch_backward(p, t, OwnSums{t.scratch<float>("dQ_sum"), t.dQ, p.N});
}

}  // namespace step11_persistent

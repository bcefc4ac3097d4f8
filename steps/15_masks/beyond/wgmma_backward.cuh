// Step 15 -- the backward of windows and packs on Hopper.
// Idea      Step 11's walk, over rows and keys from a table. The warpgroups that own keys zero what
//           a box contains of the next document
// Changed   since 11 3_columns, whose comments are not repeated: keys and rows from a table; walks
//           end at the last row that sees the keys; a test by bits; the ends of documents; keys
//           that no row sees; dQ of rows that no other walk visits is rounded and stored at once
// Traffic   requested as 11 3_columns' formula, of each document's visited tiles, whose boxes reach
//           past its end; 40 B of `key_work` per block; 8 B of `sum_rows` per thread of the other
//           kernels
// Launch    columns; backward (tiles of keys of all documents * B*Hkv), 384 threads; convert
// Owns      as 11 3_columns
// Still bad a short walk loses 5 to 6 us at its ends, where no other block fills the SM
#pragma once

#include "common/dialect/ptx/setmaxnreg.h"
#include "steps/15_masks/beyond/wgmma_tables.cuh"

namespace step15_wgmma_backward {

using step15_wgmma::hide;

using step11_columns::kDsStages, step11_columns::kGroupRegisters, step11_columns::kStages;
using step11_columns::kThirdRegisters, step11_columns::kThreads;

struct Shape {
  int group, N, Nk, Np;
  float scale;
};

template <int d>
struct alignas(1024) Tiles {
  bf16 K[kGroups][kGroupKeys * d];  // later dK and dV, before their stores
  bf16 V[kGroups][kGroupKeys * d];
  bf16 Q[kStages][Br<d> * d];
  bf16 dO[kStages][Br<d> * d];
  bf16 columns[kStages][Br<d> * kColumns];
  bf16 dS[kDsStages][Bc * Br<d>];
  uint64_t k_full, v_full;  // mbarriers
  uint64_t q_full[kStages], q_empty[kStages];
  uint64_t do_full[kStages], do_empty[kStages];
  uint64_t ds_full[kDsStages], ds_empty[kDsStages];
  KeyWork work;
};

// --- one thread copies ---------------------------------------------------------------------------

template <int d, class Mask>
struct Loader {
  Tiles<d>& smem;
  const fa::TensorMap *Q, *K, *V, *dO;
  const bf16* columns;  // [B*H, Np, 8]
  const Mask& mask;
  const KeyWork& work;
  int Np;

  template <int n>
  __device__ void load_keys(bf16 (&to)[kGroups][n], uint64_t* full,
                            const fa::TensorMap* from) const {
    fa::mbarrier_arrive_expect_tx(full, sizeof to);
    for (int wg = 0; wg < kGroups; ++wg) {
      fa::tma_load(to[wg], from, full, {0, work.key + wg * kGroupKeys, 0, work.bh});
    }
  }
  __device__ void load_rows(unsigned n, const RowTile& at) const {
    const unsigned stage = n % kStages, parity = (n / kStages & 1) ^ 1;
    const int first = mask.tile(work, at.place) * Br<d>, row = work.row + first;
    const size_t padded = size_t(at.head) * Np + work.sums + first;
    uint64_t *q_full = &smem.q_full[stage], *do_full = &smem.do_full[stage];
    fa::mbarrier_wait(&smem.q_empty[stage], parity);
    fa::mbarrier_arrive_expect_tx(q_full, sizeof smem.Q[0] + sizeof smem.columns[0]);
    fa::tma_load(smem.Q[stage], Q, q_full, {0, row, 0, at.head});
    fa::bulk_load(smem.columns[stage], columns + padded * kColumns, sizeof smem.columns[0], q_full);
    if (n == 0) load_keys(smem.V, &smem.v_full, V);
    fa::mbarrier_wait(&smem.do_empty[stage], parity);
    fa::mbarrier_arrive_expect_tx(do_full, sizeof smem.dO[0]);
    fa::tma_load(smem.dO[stage], dO, do_full, {0, row, 0, at.head});
  }
};

// --- the third warpgroup multiplies dQ -----------------------------------------------------------

template <int d, class Mask>
__device__ inline void multiply_dq(Tiles<d>& smem, const Shape& shape, unsigned tiles,
                                   const Loader<d, Mask>& loader, const FloatSums& dQ_sum,
                                   bf16* dQ) {
  const int thread = threadIdx.x % kGroupThreads, lane = thread % fa::kWarp;
  const KeyWork& work = loader.work;
  RowTile at{work.bh * shape.group, 0}, ahead = at;
  if (thread == 0) {
    loader.load_keys(smem.K, &smem.k_full, loader.K);
    UNROLL_BY(1)
    for (unsigned i = 0; i < min(tiles, unsigned(kStages)); ++i, ahead.next(work)) {
      loader.load_rows(i, ahead);
    }
  }
  __syncwarp();
  fa::mbarrier_wait(&smem.k_full, 0);
  const uint64_t first_k = fa::tile_descriptor(smem.K[0]);
  const uint64_t first_ds = fa::tile_descriptor(smem.dS[0]);
  // Tiles that one warpgroup skips are multiplied by the other's keys only.
  const Mask& mask = loader.mask;
  const int ends_at = end_of_rows<Br<d>>(work, shape.N), end = work.tiles - 1;
  const bool first_is_half =
      skips_first(mask.template visible_tiles<Br<d>>(work, kGroupKeys), ends_at, tiles);
  const bool last_is_half =
      skips_last(mask.template visible_tiles<Br<d>>(work, 0), ends_at, end, tiles);
  UNROLL_BY(1)
  for (unsigned n = 0; n < tiles; ++n, at.next(work)) {
    const unsigned stage = n % kDsStages;
    const int row = mask.tile(work, at.place) * Br<d>;  // of the document
    fa::mbarrier_wait(&smem.ds_full[stage], n / kDsStages & 1);
    constexpr int kParts = 2;
    UNROLL_BY(1)
    for (int part = 0; part < kParts; ++part) {
      const int rows = d == 64 ? part : 0, features = d == 64 ? 0 : part;
      const unsigned zero = (n + part) >> 31;  // see Group::zero()
      const uint64_t k = first_k + zero;
      const uint64_t ds = first_ds + zero + stage * (sizeof smem.dS[0] >> 4);
      float rdQ[kPanel / 2];
      const uint64_t A = ds + (rows * Bc * kRowBytes >> 4);
      const uint64_t B = k + (features * kGroupKeys * kRowBytes >> 4);
      if (n == 0 && first_is_half) {
        multiply_transposed<d, kGroupKeys>(A, B, rdQ);
      } else if (n + 1 == tiles && last_is_half) {
        multiply_transposed<d, kGroupKeys>(A + (kGroupKeys * kRowBytes >> 4),
                                           B + (kGroupKeys * d * 2 >> 4), rdQ);
      } else {
        multiply_transposed<d, Bc>(A, B, rdQ);
      }
      if (part == 0 && thread == 0 && n > 0 && n - 1 + kStages < tiles) {
        loader.load_rows(n - 1 + kStages, ahead);
        ahead.next(work);
      }
      __syncwarp();
      const int first = row + rows * 64;
      wait_for<0>(rdQ);
      if (part == kParts - 1 && lane == 0) fa::mbarrier_arrive(&smem.ds_empty[stage]);
      if (at.place < work.direct) {
        store_dq<d>(rdQ, dQ, at.head * shape.N + work.row + first, work.rows - first, features * 64,
                    shape.scale);
      } else {
        const int half = (at.head * shape.Np + work.sums + first) / 64;
        dQ_sum.part<d>(half, features * 64).add(rdQ);
      }
    }
  }
}

// --- the others multiply, and compute P and dS ---------------------------------------------------

template <int d, int wg, class Mask>
struct Group {
  static constexpr int Br = step11_columns::Br<d>;
  Tiles<d>& smem;
  const Shape& shape;
  const Mask& mask;
  const KeyWork& work;
  const int thread = threadIdx.x % kGroupThreads, lane = threadIdx.x % fa::kWarp;
  const uint64_t first = fa::tile_descriptor(smem.K[0]);
  __device__ unsigned zero() const { return n >> 31; }
  __device__ uint64_t first_tile() const { return first + zero(); }
  using At = step11::Distances<Tiles<d>, d, Br, wg>;
  unsigned n = 0;
  int place = 0;          // and its place in the walk
  const TileRange range;  // of the walk: the places whose rows see this warpgroup's keys
  const int ends_at;      // the place where the document's rows end before the tile does, or -1
  const int end;          // the last place
  const bool skips_last;
  const unsigned tiles;  // of the walk, of all heads that share the keys, except a skipped last one
  float rX[Br / 2], rdK[d / 2] = {}, rdV[d / 2] = {};
  uint32_t rP[Br / kMma][4];
  uint32_t lse_ones[4], delta_ones[4];

  __device__ Group(Tiles<d>& smem, const Shape& shape, unsigned tiles, const Mask& mask)
      : smem(smem),
        shape(shape),
        mask(mask),
        work(smem.work),
        range(mask.template visible_tiles<Br>(work, wg * kGroupKeys)),
        ends_at(end_of_rows<Br>(work, shape.N)),
        end(work.tiles - 1),
        skips_last(step15_wgmma_backward::skips_last(range, ends_at, end, tiles)),
        tiles(tiles - skips_last) {
    step11_columns::select_columns<true>(lse_ones);
    step11_columns::select_columns<false>(delta_ones);
  }

  __device__ unsigned stage() const { return n % kStages; }
  __device__ void next_place() { place = place == end ? 0 : place + 1; }

  __device__ uint64_t columns() const {
    return fa::wgmma_descriptor(smem.columns[stage()], fa::Swizzle::none, 0, 8 * 2 * kColumns);
  }

  // Other keys may follow a document's last one: their K times dS = 0 could be NaN.
  __device__ void clear_keys() {
    const int keys = work.keys - wg * kGroupKeys;
    if (keys >= kGroupKeys || work.key + work.keys == shape.Nk) return;
    fa::mbarrier_wait(&smem.v_full, 0);
    clear_rows<d, kGroupKeys, kGroupThreads>(smem.K[wg], max(0, keys), thread);
    clear_rows<d, kGroupKeys, kGroupThreads>(smem.V[wg], max(0, keys), thread);
    fa::fence_proxy_async();              // wgmma sees this thread's writes ...
    fa::bar_sync(1 + wg, kGroupThreads);  // ... and what the warpgroup's others have
  }
  // The same for rows: Q is multiplied by dS in dK, dO by P in dV. A tile per warpgroup.
  __device__ void clear_tile() {
    const int rows = work.rows % Br;
    fa::mbarrier_wait(&smem.do_full[stage()], n / kStages & 1);
    clear_rows<d, Br, kGroupThreads>(wg == 0 ? smem.Q[stage()] : smem.dO[stage()], rows, thread);
    fa::fence_proxy_async();                   // wgmma sees this thread's writes ...
    fa::bar_sync(3, kGroups * kGroupThreads);  // ... and what both warpgroups have
  }

  __device__ void issue_scores(float (&rS)[Br / 2]) {
    fa::mbarrier_wait(&smem.q_full[stage()], n / kStages & 1);
    if (place == ends_at) clear_tile();
    multiply_with_columns<d>(first_tile() + At::kK, first_tile() + At::kQ + stage() * At::kStageOf,
                             lse_ones, columns(), rS);
  }
  __device__ bool is_cut() const { return place <= range.last_left || place > range.last_full; }
  __device__ void test(uint32_t (&bits)[2]) const {
    const int key = wg * kGroupKeys + thread / fa::kWarp * 16 + fa::row_of(lane);
    mask.template seen<Br>(work, place, key, bits);
  }
  __device__ void softmax(float (&rS)[Br / 2], const uint32_t (&bits)[2]) {
    if (is_cut()) hide(rS, bits);
    const float scale_log2 = shape.scale * fa::kLog2e;
    UNROLL
    for (int i = 0; i < Br / 2; ++i) rS[i] = fa::exp2_approx(rS[i] * scale_log2);
    fa::pin_registers(rS);
  }
  __device__ void issue_dk(unsigned i) {
    multiply_rows<d>(rP, first_tile() + At::kQRows + i % kStages * At::kStageOf, rdK);
  }
  __device__ void differentiate() {
    step11_columns::differentiate<d>(
        first_tile() + At::kV, first_tile() + At::kDo + stage() * At::kStageOf,
        first_tile() + At::kDoRows + stage() * At::kStageOf, delta_ones, columns(),
        &smem.do_full[stage()], n / kStages & 1, rX, rP, rdV);
    warp_arrive(&smem.do_empty[stage()]);
    fa::pack_operand(rX, rP);
    fa::mbarrier_wait(&smem.ds_empty[n % kDsStages], (n / kDsStages & 1) ^ 1);
    put_ds(rP, smem.dS[n % kDsStages]);
  }
  __device__ void signal_ds() {
    fa::fence_proxy_async();  // wgmma sees this thread's writes
    warp_arrive(&smem.ds_full[(n - 1) % kDsStages]);
  }

  // dS of a skipped tile is not read. (Inside the walk, in other heads, it is computed.)
  __device__ void skip_first() {
    if (!skips_first(range, ends_at, tiles)) return;
    warp_arrive(&smem.q_empty[0]), warp_arrive(&smem.do_empty[0]), warp_arrive(&smem.ds_full[0]);
    ++n;
    next_place();
  }
  __device__ void skip_last() {
    if (!skips_last) return;
    fa::mbarrier_wait(&smem.ds_empty[n % kDsStages], (n / kDsStages & 1) ^ 1);
    warp_arrive(&smem.ds_full[n++ % kDsStages]);
  }

  // Stores dK and dV, which have replaced K and V: as boxes, or by rows at a document's end.
  __device__ void store_keys(const fa::TensorMap* dK, const fa::TensorMap* dV, bf16* gdK,
                             bf16* gdV) const {
    const int keys = work.keys - wg * kGroupKeys, key = work.key + wg * kGroupKeys;
    fa::fence_proxy_async();              // TMA reads what this thread has written ...
    fa::bar_sync(1 + wg, kGroupThreads);  // ... and what the warpgroup's others have
    if (keys < kGroupKeys) {
      const size_t at = (size_t(work.bh) * shape.Nk + key) * d;
      store_rows<d, kGroupThreads>(smem.K[wg], gdK + at, keys, thread);
      store_rows<d, kGroupThreads>(smem.V[wg], gdV + at, keys, thread);
    } else if (thread == 0) {
      fa::tma_store(dK, smem.K[wg], {0, key, 0, work.bh});
      fa::tma_store(dV, smem.V[wg], {0, key, 0, work.bh});
      fa::tma_store_commit();
      fa::tma_store_wait_read<0>();  // shared memory must outlive the copies
    }
  }

  __device__ void run(const fa::TensorMap* dK, const fa::TensorMap* dV, bf16* gdK, bf16* gdV) {
    // --- prologue: P and dS of the first tile that sees a key
    fa::mbarrier_wait(&smem.k_full, 0);
    clear_keys();
    skip_first();
    float(&rS)[Br / 2] = rX;
    uint32_t bits[2] = {};
    issue_scores(rS);
    if (is_cut()) test(bits);
    wait_for<0>(rS);
    softmax(rS, bits);
    fa::pack_operand(rS, rP);
    fa::mbarrier_wait(&smem.v_full, 0);
    differentiate();

    // --- mainloop: S of the next tile overlaps dK of this one
    while (++n < tiles) {
      next_place();
      issue_scores(rS);
      issue_dk(n - 1);
      signal_ds();
      if (is_cut()) test(bits);
      wait_for<1>(rS);
      softmax(rS, bits);
      wait_for<0>(rdK);
      fa::pin_registers(rS);  // else ptxas packs P before the wait, while dS is in use
      warp_arrive(&smem.q_empty[(n - 1) % kStages]);
      fa::pack_operand(rS, rP);
      differentiate();
    }

    // --- epilogue: dK of the last tile; dK and dV are staged where K and V were
    const float scales[2] = {shape.scale, shape.scale}, ones[2] = {1.f, 1.f};
    signal_ds();
    issue_dk(n - 1);
    fa::put_rows<d>(rdV, ones, smem.V[wg]);  // over keys that only the warp's dP reads
    wait_for<0>(rdK);
    skip_last();
    fa::mbarrier_wait(&smem.ds_empty[(n - 1) % kDsStages], (n - 1) / kDsStages & 1);
    fa::put_rows<d>(rdK, scales, smem.K[wg]);
    store_keys(dK, dV, gdK, gdV);
  }
};

template <int d, class Mask>
__global__ void __launch_bounds__(kThreads, 1)
    backward_kernel(const __grid_constant__ fa::TensorMap Q,   // [B*H, N, d], boxes of Br rows
                    const __grid_constant__ fa::TensorMap K,   // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap V,   // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap dO,  // [B*H, N, d], of Br
                    const __grid_constant__ fa::TensorMap dK,  // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap dV,  // [B*Hkv, Nk, d], of 64
                    bf16* gdK, bf16* gdV, bf16* gdQ,           // the same; [B*H, N, d]
                    const bf16* columns,                       // [B*H, Np, 8]
                    FloatSums dQ_sum, Mask mask, Shape shape) {
  Tiles<d>& smem = *fa::dynamic_shared<Tiles<d>>();
  constexpr int kInts = sizeof(KeyWork) / sizeof(int);
  if (threadIdx.x < kInts) {
    reinterpret_cast<int*>(&smem.work)[threadIdx.x] = mask.works[blockIdx.x * kInts + threadIdx.x];
  }
  if (threadIdx.x == 0) {
    constexpr int kGroupWarps = kGroupThreads / fa::kWarp, kWarps = kGroups * kGroupWarps;
    fa::mbarrier_init(&smem.k_full, 1), fa::mbarrier_init(&smem.v_full, 1);
    fa::init_mbarriers(smem.q_full, 1), fa::init_mbarriers(smem.q_empty, kWarps);
    fa::init_mbarriers(smem.do_full, 1), fa::init_mbarriers(smem.do_empty, kWarps);
    fa::init_mbarriers(smem.ds_full, kWarps), fa::init_mbarriers(smem.ds_empty, kGroupWarps);
    fa::mbarrier_init_fence();
  }
  __syncthreads();             // all threads see the barriers and the work
  if (smem.work.tiles == 0) {  // no row sees the keys: their gradients are 0
    const size_t at = (size_t(smem.work.bh) * shape.Nk + smem.work.key) * d;
    for (int i = threadIdx.x * 8; i < min(smem.work.keys, Bc) * d; i += kThreads * 8) {
      *reinterpret_cast<uint4*>(gdK + at + i) = make_uint4(0, 0, 0, 0);
      *reinterpret_cast<uint4*>(gdV + at + i) = make_uint4(0, 0, 0, 0);
    }
    return;
  }
  const int wg = fa::uniform(threadIdx.x / kGroupThreads);
  const unsigned tiles = fa::uniform(shape.group * smem.work.tiles);
  if (wg == kGroups) {
    fa::setmaxnreg_dec<kThirdRegisters<d>>();
    // In registers: reads of shared memory by the copying thread would cost uniform registers.
    const KeyWork work = smem.work;
    const Loader<d, Mask> loader{smem, &Q, &K, &V, &dO, columns, mask, work, shape.Np};
    multiply_dq<d>(smem, shape, tiles, loader, dQ_sum, gdQ);
  } else {
    fa::setmaxnreg_inc<kGroupRegisters<d>>();
    if (wg == 0) {
      Group<d, 0, Mask>(smem, shape, tiles, mask).run(&dK, &dV, gdK, gdV);
    } else {
      Group<d, 1, Mask>(smem, shape, tiles, mask).run(&dK, &dV, gdK, gdV);
    }
  }
}

// --- host ----------------------------------------------------------------------------------------

template <class Mask>
void launch(const fa::Problem& p, const fa::Tensors<bf16>& t, const Mask& mask, int blocks) {
  const int2* sum_rows = t.template scratch<const int2>("sum_rows");
  bf16* columns = t.template scratch<bf16>("columns");
  float* dQ_sum = t.template scratch<float>("dQ_sum");
  const Shape shape{p.H / p.Hkv, p.N, p.Nk, padded_rows(p), p.scale()};
  const auto row_blocks = [&](int threads) {  // per row
    return dim3(unsigned(p.heads() * size_t(shape.Np) * threads / kRowThreads));
  };
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    fa::launch(columns_kernel<d>, {row_blocks(d / 8), dim3(kRowThreads)}, t.O, t.dO, t.LSE,
               sum_rows, columns, dQ_sum, p.N, shape.Np, p.scale());
    step11::launch_mapped<d>(backward_kernel<d, Mask>,
                             {dim3(blocks), dim3(kThreads), sizeof(Tiles<d>)}, p, t, Br<d>, t.dK,
                             t.dV, t.dQ, columns, FloatSums{dQ_sum}, mask, shape);
    fa::launch_early(convert_kernel<d>, {row_blocks(d / 16), dim3(kRowThreads)}, FloatSums{dQ_sum},
                     t.dQ, sum_rows, p.N, shape.Np, p.scale());
  });
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  int tiles = 0;
  for (const fa::Document& doc : p.documents()) tiles += fa::ceil_div(doc.keys.size(), Bc);
  launch(p, t, KeyTable{t.scratch<const int>("key_work"), step15_wgmma::window_of(p)},
         tiles * int(p.kv_heads()));
}

}  // namespace step15_wgmma_backward

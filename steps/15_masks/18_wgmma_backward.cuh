// Step 15 -- the backward of windows and packs on Hopper.
// Idea      11's walk, for keys that a table names. Its boxes reach into the next document. The
//           warpgroups that own keys zero what Q, dO, K and V have of it: each is multiplied by a 0
//           of P or dS, and 0 * NaN is NaN; dK and dV leave by rows
// Changed   since 11 7_columns: keys and rows from a table; walks end at the last row that sees the
//           keys; a test by bits; the ends of documents; keys that nobody sees
// Traffic   requested as 11 7_columns, of each document's visited tiles; at a document's end boxes
//           go on; 40 B of `key_work` for each block; 8 B of `sum_rows` for each thread of the
//           kernels before and behind
// Launch    columns; backward (tiles of keys of all documents * B*Hkv), 384 threads; convert
// Owns      as 11 5_apart
// Still bad a block's begin and end take as long as four tiles, and no other block runs beside it;
//           with short walks dQ's sums in HBM, zeroed before and rounded after, are a third
#pragma once

#include "steps/15_masks/17_wgmma_walk.cuh"

namespace step15_wgmma_backward {

using step11::multiply_by_p, step11::multiply_rows, step11::pack, step11::put_ds, step11::put_rows;
using step11_columns::multiply_with_columns;
using step15_wgmma::clear_rows, step15_wgmma::hide, step15_wgmma::store_rows;

// --- the others multiply, and compute P and dS ---------------------------------------------------

// A warpgroup that owns 64 keys. Its registers: see 11's 1_products.cuh.
template <int d, int wg, class Mask>
struct Group {
  static constexpr int Br = step15_wgmma_backward::Br<d>;
  Tiles<d>& smem;
  const Shape& shape;
  const Mask& mask;
  const KeyWork& work;
  const int thread = threadIdx.x % kGroupThreads, lane = threadIdx.x % fa::kWarp;
  // Descriptors differ by constants from that of the first tile.
  using Memory = Tiles<d>;
  const uint64_t first = step11::descriptor(smem.K[0]);
  // 0, which the compiler cannot know: it would compute all descriptors before the loop.
  __device__ unsigned zero() const { return n >> 31; }
  __device__ uint64_t first_tile() const { return first + zero(); }
  static constexpr uint64_t distance(size_t bytes, int panel_bytes = 16) {
    return (bytes >> 4) + (uint64_t(panel_bytes / 16 - 1) << 16);
  }
  static constexpr size_t kMine = wg * kGroupKeys * d * 2;
  static constexpr uint64_t kK = distance(kMine), kV = distance(offsetof(Memory, V) + kMine);
  static constexpr uint64_t kQ = distance(offsetof(Memory, Q));
  static constexpr uint64_t kDo = distance(offsetof(Memory, dO));
  static constexpr uint64_t kQRows = distance(offsetof(Memory, Q), Br* kRowBytes);
  static constexpr uint64_t kDoRows = distance(offsetof(Memory, dO), Br* kRowBytes);
  static constexpr uint64_t kStageOf = Br * d * 2 >> 4;  // from stage to stage
  unsigned n = 0;  // number of the tile whose scores come next,
  int place = 0;   // and its place in the walk
  const Places places;
  const int ends_at;  // the place where the document's rows end before the tile does, or -1
  const int end;      // the last place
  const bool skips_last;
  const unsigned tiles;  // of the walk, of all heads that share the keys, but a skipped last one
  float rX[Br / 2], rdK[d / 2] = {}, rdV[d / 2] = {};
  uint32_t rP[Br / kMma][4];  // P, then dS
  // A of the columns' product: for each key 1 in the columns of LSE, or of delta. A lane holds
  // column 2 (lane % 4) and the next one of two keys; columns 8 to 15 are 0.
  uint32_t lse_ones[4], delta_ones[4];

  __device__ Group(Tiles<d>& smem, const Shape& shape, unsigned tiles, const Mask& mask)
      : smem(smem),
        shape(shape),
        mask(mask),
        work(smem.work),
        places(mask.template places<Br>(work, wg * kGroupKeys)),
        ends_at(end_of_rows<Br>(work, shape.N)),
        end(work.tiles - 1),
        skips_last(step15_wgmma_backward::skips_last(places, ends_at, end, tiles)),
        tiles(tiles - skips_last) {
    constexpr uint32_t kLower = 0x3f80, kUpper = 0x3f800000;  // 1 in bf16
    const int pair = lane % 4;                                // of columns
    lse_ones[0] = lse_ones[1] = pair == 0 ? kLower | kUpper : pair == 1 ? kLower : 0;
    delta_ones[0] = delta_ones[1] = pair == 2 ? kLower | kUpper : pair == 1 ? kUpper : 0;
    lse_ones[2] = lse_ones[3] = delta_ones[2] = delta_ones[3] = 0;  // columns 8 to 15
    fa::pin_registers(lse_ones);
    fa::pin_registers(delta_ones);
  }

  __device__ unsigned stage() const { return n % kStages; }
  __device__ void next_place() { place = place == end ? 0 : place + 1; }
  // One arrival of a warp, after what all its lanes have read.
  __device__ void arrive(uint64_t* bar) {
    __syncwarp();
    if (lane == 0) fa::mbarrier_arrive(bar);
  }
  template <int pending, int n>
  __device__ void wait_for(float (&r)[n]) {
    fa::wgmma_wait<pending>();
    fa::pin_registers(r);
  }

  // No swizzle: rows of 16 bytes, in groups of eight; the columns 8 to 15 are multiplied by 0.
  __device__ uint64_t columns() const {
    return fa::wgmma_descriptor(smem.columns[stage()], fa::Swizzle::none, 0, 8 * 2 * kColumns);
  }

  // Behind a document's last key others follow: K of them would be multiplied by dS = 0 in dQ, and
  // 0 * NaN is NaN.
  __device__ void clear_keys() {
    const int keys = work.keys - wg * kGroupKeys;
    if (keys >= kGroupKeys || work.key + work.keys == shape.Nk) return;
    fa::mbarrier_wait(&smem.v_full, 0);
    clear_rows<d, kGroupKeys>(smem.K[wg], max(0, keys), thread, kGroupThreads);
    clear_rows<d, kGroupKeys>(smem.V[wg], max(0, keys), thread, kGroupThreads);
    fa::fence_proxy_async();              // wgmma sees what this thread wrote ...
    fa::bar_sync(1 + wg, kGroupThreads);  // ... and what the warpgroup's others have
  }
  // Likewise rows: Q is multiplied by dS in dK, dO by P in dV. A tile for each warpgroup.
  __device__ void clear_tile() {
    const int rows = work.rows % Br;
    fa::mbarrier_wait(&smem.o_full[stage()], n / kStages & 1);
    clear_rows<d, Br>(wg == 0 ? smem.Q[stage()] : smem.dO[stage()], rows, thread, kGroupThreads);
    fa::fence_proxy_async();                   // wgmma sees what this thread wrote ...
    fa::bar_sync(3, kGroups * kGroupThreads);  // ... and what both warpgroups have
  }

  // (S - LSE / scale)^T, once Q is there.
  __device__ void issue_scores(float (&rS)[Br / 2]) {
    fa::mbarrier_wait(&smem.q_full[stage()], n / kStages & 1);
    if (place == ends_at) clear_tile();
    multiply_with_columns<d>(first_tile() + kK, first_tile() + kQ + stage() * kStageOf, lse_ones,
                             columns(), rS);
  }
  __device__ bool is_cut() const { return place <= places.left || place > places.full; }
  __device__ void test(uint32_t (&bits)[2]) const {
    const int key = wg * kGroupKeys + thread / fa::kWarp * 16 + fa::row_of(lane);
    mask.template seen<Br>(work, place, key, bits);
  }
  // S becomes P.
  __device__ void softmax(float (&rS)[Br / 2], const uint32_t (&bits)[2]) {
    if (is_cut()) hide(rS, bits);
    const float scale_log2 = shape.scale * fa::kLog2e;
    UNROLL
    for (int i = 0; i < Br / 2; ++i) rS[i] = fa::exp2_approx(rS[i] * scale_log2);
    fa::pin_registers(rS);
  }
  // dK += dS^T Q of tile i.
  __device__ void issue_dk(unsigned i) {
    multiply_rows<d>(rP, first_tile() + kQRows + i % kStages * kStageOf, rdK);
  }
  // (dP - delta)^T and dV += P^T dO, once dO is there. dS, computed beside dV, goes to registers,
  // and to shared memory once its stage is empty.
  __device__ void differentiate() {
    float(&rdP)[Br / 2] = rX;
    uint32_t copy[Br / kMma][4];  // of P: ptxas moves all reads of A's registers after dV's wait
    UNROLL
    for (int r = 0; r < Br / kMma; ++r) {
      UNROLL
      for (int e = 0; e < 4; ++e) copy[r][e] = rP[r][e];
      fa::pin_registers(copy[r]);
    }
    fa::mbarrier_wait(&smem.o_full[stage()], n / kStages & 1);
    multiply_with_columns<d>(first_tile() + kV, first_tile() + kDo + stage() * kStageOf, delta_ones,
                             columns(), rdP);
    multiply_rows<d>(rP, first_tile() + kDoRows + stage() * kStageOf, rdV);
    wait_for<1>(rdP);
    UNROLL
    for (int i = 0; i < Br / 2; i += 2) {
      multiply_by_p(copy[i / 8][i % 8 / 2], rdP[i], rdP[i + 1]);  // dS = P (dP - delta)
    }
    fa::pin_registers(rdP);
    wait_for<0>(rdV);
    fa::pin_registers(rdP);  // or ptxas packs dS before the wait, while P is in use
    arrive(&smem.o_empty[stage()]);
    pack(rdP, rP);
    fa::mbarrier_wait(&smem.ds_empty[n % kDsStages], (n / kDsStages & 1) ^ 1);
    put_ds(rP, smem.dS[n % kDsStages]);
  }
  __device__ void show_ds() {
    fa::fence_proxy_async();  // wgmma, another path to shared memory, sees what this thread wrote
    arrive(&smem.ds_full[(n - 1) % kDsStages]);
  }

  // dS of a tile that is skipped is not read. (Inside the walk, in other heads, it is computed.)
  __device__ void skip_first() {
    if (!skips_first(places, ends_at, tiles)) return;
    arrive(&smem.q_empty[0]), arrive(&smem.o_empty[0]), arrive(&smem.ds_full[0]);
    ++n;
    next_place();
  }
  __device__ void skip_last() {
    if (!skips_last) return;
    fa::mbarrier_wait(&smem.ds_empty[n % kDsStages], (n / kDsStages & 1) ^ 1);
    arrive(&smem.ds_full[n++ % kDsStages]);
  }

  // dK and dV, which have taken the place of K and V: as boxes, or by rows at a document's end.
  __device__ void store_keys(const fa::TensorMap* dK, const fa::TensorMap* dV, bf16* gdK,
                             bf16* gdV) const {
    const int keys = work.keys - wg * kGroupKeys, key = work.key + wg * kGroupKeys;
    fa::fence_proxy_async();              // TMA reads what this thread has written ...
    fa::bar_sync(1 + wg, kGroupThreads);  // ... and what the warpgroup's others have
    if (keys < kGroupKeys) {
      const size_t at = (size_t(work.bh) * shape.Nk + key) * d;
      store_rows<d>(smem.K[wg], gdK + at, keys, thread, kGroupThreads);
      store_rows<d>(smem.V[wg], gdV + at, keys, thread, kGroupThreads);
    } else if (thread == 0) {
      fa::tma_store(dK, smem.K[wg], {0, key, 0, work.bh});
      fa::tma_store(dV, smem.V[wg], {0, key, 0, work.bh});
      fa::tma_store_commit();
      fa::tma_store_wait_read<0>();  // a block's memory must stay until it has been read
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
    pack(rS, rP);
    fa::mbarrier_wait(&smem.v_full, 0);
    differentiate();

    // --- mainloop: S of the next tile beside dK of this one
    while (++n < tiles) {
      next_place();
      issue_scores(rS);
      issue_dk(n - 1);
      show_ds();
      if (is_cut()) test(bits);
      wait_for<1>(rS);
      softmax(rS, bits);
      wait_for<0>(rdK);
      fa::pin_registers(rS);  // or ptxas packs P before the wait, while dS is in use
      arrive(&smem.q_empty[(n - 1) % kStages]);
      pack(rS, rP);
      differentiate();
    }

    // --- epilogue: dK of the last tile; dK and dV through the places of K and V
    const float scales[2] = {shape.scale, shape.scale}, ones[2] = {1.f, 1.f};
    show_ds();
    issue_dk(n - 1);
    put_rows<d>(rdV, ones, smem.V[wg]);  // a warp overwrites keys that only its own dP has read
    wait_for<0>(rdK);
    skip_last();
    // dQ of the last tile has read K
    fa::mbarrier_wait(&smem.ds_empty[(n - 1) % kDsStages], (n - 1) / kDsStages & 1);
    put_rows<d>(rdK, scales, smem.K[wg]);
    store_keys(dK, dV, gdK, gdV);
  }
};

// A block owns 128 keys and walks the tiles of rows that see them, of all heads that share them.
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
    step11::init(smem.q_full, 1), step11::init(smem.q_empty, kWarps);
    step11::init(smem.o_full, 1), step11::init(smem.o_empty, kWarps);
    step11::init(smem.ds_full, kWarps), step11::init(smem.ds_empty, kGroupWarps);
    fa::mbarrier_init_fence();
  }
  __syncthreads();             // all threads see the barriers and the work
  if (smem.work.tiles == 0) {  // nobody sees the keys: their gradients are 0
    const size_t at = (size_t(smem.work.bh) * shape.Nk + smem.work.key) * d;
    for (int i = threadIdx.x * 8; i < min(smem.work.keys, Bc) * d; i += kThreads * 8) {
      *reinterpret_cast<uint4*>(gdK + at + i) = make_uint4(0, 0, 0, 0);
      *reinterpret_cast<uint4*>(gdV + at + i) = make_uint4(0, 0, 0, 0);
    }
    return;
  }
  // The shuffles tell the compiler that all lanes have the same numbers.
  const int wg = __shfl_sync(fa::kFullMask, threadIdx.x / kGroupThreads, 0);
  const unsigned tiles = __shfl_sync(fa::kFullMask, shape.group * smem.work.tiles, 0);
  if (wg == kGroups) {
    fa::setmaxnreg_dec<kThirdRegisters<d>>();
    // In registers: if the thread that copies tiles read shared memory, ptxas would use no uniform
    // registers in dQ's loop.
    const KeyWork work = smem.work;
    const Copier<d, Mask> copier{smem, &Q, &K, &V, &dO, columns, mask, work, shape.Np};
    multiply_dq<d>(smem, shape, tiles, copier, dQ_sum, gdQ);
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
    const auto rows = [&](const bf16* x) {
      return step11::tensor_map<d>(x, p.heads(), p.N, Br<d>);
    };
    const auto keys = [&](const bf16* x) {
      return step11::tensor_map<d>(x, p.kv_heads(), p.Nk, kGroupKeys);
    };
    fa::launch(columns_kernel<d>, {row_blocks(d / 8), dim3(kRowThreads)}, t.O, t.dO, t.LSE,
               sum_rows, columns, dQ_sum, p.N, shape.Np, p.scale());
    fa::launch(backward_kernel<d, Mask>, {dim3(blocks), dim3(kThreads), sizeof(Tiles<d>)},
               rows(t.Q), keys(t.K), keys(t.V), rows(t.dO), keys(t.dK), keys(t.dV), t.dK, t.dV,
               t.dQ, columns, FloatSums{dQ_sum}, mask, shape);
    fa::launch_early(convert_kernel<d>, {row_blocks(d / 16), dim3(kRowThreads)}, FloatSums{dQ_sum},
                     t.dQ, sum_rows, p.N, shape.Np, p.scale());
  });
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  int tiles = 0;
  for (const fa::Document& doc : p.documents()) tiles += fa::ceil_div(doc.keys.size(), Bc);
  launch(p, t, KeyBands{t.scratch<const int>("key_work"), step15::band_of(p)},
         tiles * int(p.kv_heads()));
}

}  // namespace step15_wgmma_backward

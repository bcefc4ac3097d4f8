// Step 15 -- windows and packs on Hopper's tensor cores.
// Idea      The number that 10's producer draws is here that of a table's entry, so a work tile may
//           be rows of any document. The test of a cut tile is a bit per score, computed while the
//           products run. A warpgroup skips tiles at either end of a walk that only the others'
//           rows see. A box of TMA may reach into the next document: one warp of the producer's
//           warpgroup zeroes V there, another one stores O row by row
// Changed   since 10 4_scheduled: work tiles from a table; causal becomes a window; tiles skipped
//           at both ends; a test by bits; two warps for the ends of documents
// Traffic   requested read  2*BH*(q*d + 2*v*d) B    q, v: rows and keys of all boxes, past the end
//                     write 2*BH*N*d + 4*BH*N B     of a document, too, but not of the tensor
//           and             32 B of `work_tiles` per work tile; `taken`: an atomic of 4 B per work
//                           tile and per block, 8 B written to reset it
//           compulsory      2*(2*BH*N*d + 2*BHkv*Nk*d) + 4*BH*N B, and the table
// Launch    grid (SMs, or fewer tiles); 1 warpgroup copies, stores and zeroes, 2 or 4 multiply
// Owns      block: Br = 128 rows at a time (d = 128) or 256, by Bc = 128 keys or 64; consumer: 64
// Still bad a walk of few tiles pays as much for its seam as a long one
#pragma once

#include "common/dialect/ptx/barrier.h"
#include "common/dialect/ptx/setmaxnreg.h"
#include "common/dialect/scheduler.h"
#include "steps/15_masks/wgmma_parts.cuh"

namespace step15_wgmma {

// The table of work tiles, and the window of keys that each of their rows sees.
struct WorkTable {
  const int4* works;  // [count, 2]: WorkTile of each
  int count;
  alignas(8) Window window;  // one load has both limits

  __device__ WorkTile work(int t) const {
    if (t >= count) return {};
    const int4 a = works[2 * t], b = works[2 * t + 1];
    return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  }
  // Which tiles of the walk a warpgroup's 64 rows see, r the first of them; `own` is its own key,
  // counted from the document's first. If no row sees a key, one cut tile, all of it hidden. A
  // warpgroup without a row multiplies every tile, untested, and stores nothing: to skip them, V's
  // ring would have to hold the walk (see kMostSkipped).
  template <int Bc>
  __host__ __device__ TileRange visible_tiles(const WorkTile& work, int r) const {
    const int end = work.tiles - 1;
    if (r >= work.rows) return {0, -1, end, end};  // no row
    const int own = r + work.keys - work.rows, rows = min(kGroupRows, work.rows - r);
    const int low = max(0, own - window.left), low_of_last = max(0, own + rows - 1 - window.left);
    const int high = min(work.keys, own + window.right + 1);
    const int high_of_last = min(work.keys, own + rows + window.right);
    const int first = min(max(low / Bc - work.first, 0), end);
    const int last = min(max((high_of_last + Bc - 1) / Bc - 1 - work.first, first), end);
    return {first, min((low_of_last + Bc - 1) / Bc - 1 - work.first, last),
            min(high / Bc - 1 - work.first, last), last};
  }
  // Which of a lane's keys of a cut tile its rows r and r + 8 see: bits as in columns_below().
  template <int Bc>
  __device__ void seen(const WorkTile& work, int tile, int r, uint32_t (&bits)[2]) const {
    const int key = (work.first + tile) * Bc + fa::column_of(threadIdx.x % fa::kWarp);
    UNROLL
    for (int h = 0; h < 2; ++h) {
      const int own = r + 8 * h + work.keys - work.rows - key;
      bits[h] = columns_below(min(work.keys - key, own + window.right + 1)) &
                ~columns_below(own - window.left);
    }
  }
};

// --- the producer: one thread copies -------------------------------------------------------------

// Copies K_0 Q K_1 V_0 K_2 V_1 ... K_last V_last-1 V_last. whole: no row of V must be zeroed.
template <class T>
__device__ inline void produce(Tiles<T>& smem, const fa::TensorMap* Q, const fa::TensorMap* K,
                               const fa::TensorMap* V, const WorkTable& mask, const Shape& shape,
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
    int key = work.tiles > 0 ? work.key + work.first * T::Bc : 0;
    if (work.tiles > 0) load_k(key, bh_kv);
    UNROLL_BY(1)  // here and below: the producer's warpgroup has few registers
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
    const int drawn_at = max(0, work.tiles - 1 - 256 / T::Bc);  // 256 keys before the walk's end
    UNROLL_BY(1)
    for (int i = 0;; ++i) {
      const int now = key;
      if (i == drawn_at) t = gridDim.x + atomicAdd(&taken[0], 1u);  // not needed until the end
      if (i + 1 == work.tiles) break;
      load_k(key = work.key + (work.first + (i + 1)) * T::Bc, bh_kv);
      load_v(now, bh_kv, true);
    }
    const bool whole = keys_of_last<T>(work, shape.Nk) == T::Bc;
    work = mask.work(t);  // arrives during the wait for V's stage
    load_v(key, bh_kv, whole);
  }
  fa::leave(taken);
}

// --- the consumers multiply, and compute the softmax ---------------------------------------------

// A warpgroup that owns 64 rows of each work tile. Its registers: see wgmma_parts.cuh.
template <class T>
struct Consumer {
  static constexpr int d = T::d, Bc = T::Bc, kPanelBytes = Bc * kRowBytes;
  Tiles<T>& smem;
  float* LSE;  // [B*H, N]
  const Shape& shape;
  const int wg;
  const int warp = threadIdx.x % kGroupThreads / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const uint64_t q0 = fa::tile_descriptor(smem.Q[0][wg]), k0 = fa::tile_descriptor(smem.K[0]);
  const uint64_t v0 = fa::tile_descriptor(smem.V[0], kPanelBytes);
  Ring<T::kStagesK> k;
  Ring<T::kStagesV> v;
  TileRange at;      // at.first: the tile of the last or next Q K^T
  int trailing = 0;  // tiles after at.last
  int skipped = 0;   // tiles whose K was released, and V not yet
  // While this warpgroup waits for its next K, it still holds V of the tile in use and of those
  // skipped after it. The producer loads all but the last V of those skipped before that K first
  // (K_i+1, then V_i). Each needs a stage, or both wait for ever: 2 kMostSkipped.
  static constexpr int kMostSkipped = (T::Br - kGroupRows + Bc - 1) / Bc;
  static_assert(2 * kMostSkipped <= T::kStagesV);
  float rS[Bc / 2], rO[d / 2], m[2], l[2], alpha[2];
  uint32_t rP[Bc / kMma][4];

  __device__ Consumer(Tiles<T>& smem, float* LSE, const Shape& shape, int wg)
      : smem(smem), LSE(LSE), shape(shape), wg(wg) {}

  // The lane's first row of the work tile; the other is 8 rows below.
  __device__ int row() const { return wg * kGroupRows + warp * 16 + fa::row_of(lane); }

  __device__ void issue_scores(unsigned b, unsigned stage) {
    fa::multiply_features<d>(q0 + b * (sizeof smem.Q[0] >> 4), k0 + stage * (sizeof smem.K[0] >> 4),
                             rS);
  }
  __device__ void issue_values() {
    fa::mbarrier_wait(&smem.v_full[v.stage], v.parity);
    fa::multiply_rows<d>(rP, v0 + v.stage * (sizeof smem.V[0] >> 4), rO);
  }
  __device__ void wait_values() {
    fa::pin_registers(rS);  // P is computed here, not after the wait
    wait_for<0>(rO);
    fa::pin_registers(rS);  // and packed from here on: until now the product read the old rP
    release(v, smem.v_empty);
  }

  // Releases unseen tiles unread: K at once, V after the P V whose V is earlier in the ring.
  __device__ void skip_keys(int tiles) {
    skipped += tiles;
    for (int s = 0; s < tiles; ++s) skip(k, smem.k_full, smem.k_empty);
  }
  __device__ void skip_values() {
    for (; skipped > 0; --skipped) skip(v, smem.v_full, smem.v_empty);
  }
  // Takes the block's n-th work tile, up to its first K that is used; false when there is none.
  __device__ bool take(unsigned n, const WorkTable& mask) {
    fa::mbarrier_wait(&smem.q_full[n % 2][wg], n / 2 & 1);
    const WorkTile& work = smem.work[n % 2][wg];
    if (fa::uniform(work.tiles) == 0) return false;
    begin_walk(work, mask.visible_tiles<Bc>(work, wg * kGroupRows));
    return true;
  }
  __device__ void begin_walk(const WorkTile& work, const TileRange& range) {
    at.first = fa::uniform(range.first);
    at.last_left = fa::uniform(range.last_left);
    at.last_full = fa::uniform(range.last_full);
    at.last = fa::uniform(range.last);
    trailing = fa::uniform(work.tiles) - 1 - at.last;
    skip_keys(at.first);
    fa::mbarrier_wait(&smem.k_full[k.stage], k.parity);
  }

  __device__ bool is_cut() const { return at.first <= at.last_left || at.first > at.last_full; }
  __device__ void test(unsigned b, const WorkTable& mask, uint32_t (&bits)[2]) const {
    mask.seen<Bc>(smem.work[b][wg], at.first, row(), bits);
  }
  __device__ void first_softmax(unsigned b, const uint32_t (&bits)[2]) {
    if (is_cut()) hide(rS, bits);
    UNROLL
    for (int h = 0; h < 2; ++h) {
      m[h] = fmaxf(kNoMaximum, fa::row_max(rS, h) * shape.scale_log2);
      l[h] = 0.f;
      // Past the document's end P is 0, and no row makes its warp rescale: else the next document
      // would affect the rounding of this one.
      if (row() + 8 * h >= smem.work[b][wg].rows) m[h] = INFINITY;
    }
    fa::compute_p(rS, shape.scale_log2, m, l);
  }

  // The softmax of tiles but the first, during P V of the tile before; then P, packed.
  __device__ void end_tile() {
    const bool grown = fa::lazy_softmax(rS, shape.scale_log2, m, l, alpha);
    wait_values();
    fa::pack_operand(rS, rP);
    if (__builtin_expect(grown, 0)) fa::rescale(rO, alpha);
  }
  template <bool kCut>
  __device__ void next_tile(unsigned b, const WorkTable& mask) {
    ++at.first;
    fa::mbarrier_wait(&smem.k_full[k.stage], k.parity);
    issue_scores(b, k.stage);
    issue_values();
    uint32_t bits[2];
    if (kCut) test(b, mask, bits);
    wait_for<1>(rS);
    release(k, smem.k_empty);
    if (kCut) hide(rS, bits);
    end_tile();
  }

  // Ends the walk with buffer b, with P V in flight: LSE, and O to the place of Q.
  __device__ void end_walk(unsigned b, const float (&of_m)[2], float (&of_l)[2]) {
    const WorkTile& old = smem.work[b][wg];
    float normalise[2];
    UNROLL
    for (int h = 0; h < 2; ++h) {
      of_l[h] = fa::quad_sum(of_l[h]);
      normalise[h] = of_l[h] > 0.f ? __fdividef(1.f, of_l[h]) : 0.f;  // no key seen: O = 0
      const int r = row() + 8 * h;
      if (fa::leads_quad(lane) && r < old.rows) {
        LSE[size_t(old.bh) * shape.N + old.row + r] = (of_m[h] + __log2f(of_l[h])) * fa::kLn2;
      }
    }
    wait_for<0>(rO);
    fa::pin_registers(rS);
    release(v, smem.v_empty);
    skip_values();
    fa::pack_operand(rS, rP);

    fa::bar_sync(1 + wg, kGroupThreads);  // all four warps' products have read Q
    fa::put_rows<d>(rO, normalise, smem.Q[b][wg]);
    fa::fence_proxy_async();  // TMA reads what this thread has written ...
    __syncwarp();             // ... and what the other lanes have
    arrive(&smem.o_full[b][wg]);
  }

  __device__ void run(const WorkTable& mask) {
    // --- prologue: the first tile of the first work tile
    uint32_t bits[2] = {};
    take(0, mask);
    skip_values();
    issue_scores(0, k.stage);
    if (is_cut()) test(0, mask, bits);
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
        while (at.first < at.last_left) next_tile<true>(b, mask);
        while (at.first < at.last_full) next_tile<false>(b, mask);
        at.last_left = at.last;
      }
      skip_keys(trailing);

      // --- the seam: the work tile's last P V overlaps the next one's first Q K^T. Without a
      // next one it multiplies stale tiles: a branch would make ptxas wait for each product.
      const float old_m[2] = {m[0], m[1]};
      float old_l[2] = {l[0], l[1]};
      more = take(n + 1, mask);
      issue_scores(more ? b ^ 1 : b, more ? k.stage : 0);
      issue_values();
      if (more && is_cut()) test(b ^ 1, mask, bits);
      wait_for<1>(rS);
      if (more) {
        release(k, smem.k_empty);
        first_softmax(b ^ 1, bits);
      }
      end_walk(b, old_m, old_l);
    }
  }
};

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    flash_fwd_kernel(const __grid_constant__ fa::TensorMap Q,      // [B*H, N, d]
                     const __grid_constant__ fa::TensorMap K,      // [B*Hkv, Nk, d]
                     const __grid_constant__ fa::TensorMap V,      // [B*Hkv, Nk, d]
                     const __grid_constant__ fa::TensorMap map_O,  // [B*H, N, d]
                     bf16* O,     // the same, for rows that are stored one by one
                     float* LSE,  // [B*H, N]
                     const __grid_constant__ WorkTable mask, const __grid_constant__ Shape shape,
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
    if (warp == 2) clear<T>(smem, shape);  // V past a document's end
  } else {
    fa::setmaxnreg_inc<T::kConsumerRegisters>();
    Consumer<T>(smem, LSE, shape, wg - 1).run(mask);
  }
}

// --- host ---------------------------------------------------------------------------------------

inline fa::Support support() {
  return {.d = {64, 128}, .gqa = true, .cross = true, .window = true, .documents = true};
}

inline std::vector<fa::Scratch> workspace(const fa::Problem&) {
  return {{.name = "taken", .bytes = 2 * sizeof(unsigned), .zeroed = true}};
}

// Work tiles of all heads, in order. Rows without keys have a walk of one hidden tile: zeros.
template <class T>
std::vector<WorkTile> work_tiles(const fa::Problem& p) {
  std::vector<std::vector<WorkTile>> documents;
  for (const fa::Document& doc : p.documents()) {
    documents.emplace_back();
    for (int r = doc.rows.first; r < doc.rows.last; r += T::Br) {
      const fa::Range rows{r, std::min(r + T::Br, doc.rows.last)};
      const fa::Range seen = fa::tiles_seen(p, doc, rows, T::Bc);
      documents.back().push_back({r, doc.rows.last - r, doc.keys.first, doc.keys.size(), /*bh=*/0,
                                  seen.first, std::max(1, seen.size()), /*unused=*/0});
    }
  }
  return in_order(p, documents);
}

inline std::vector<fa::Table> tables(const fa::Problem& p) {
  return fa::dispatch_d<64, 128>(p.d, [&](auto d) -> std::vector<fa::Table> {
    return {table_of("work_tiles", work_tiles<Tiling<d>>(p))};
  });
}

inline fa::Prediction traffic(const fa::Problem& p) {
  return fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    using T = Tiling<d>;
    const std::vector<WorkTile> work = work_tiles<T>(p);
    const WorkTable mask{nullptr, 0, window_of(p)};
    const uint64_t tiles = work.size(), blocks = std::min<uint64_t>(p.gpu.sms, tiles);
    uint64_t rows = 0, keys = 0, products = 0;  // of boxes; of 64 rows and Bc keys
    for (const WorkTile& w : work) {
      keys += std::min(w.tiles * T::Bc, p.Nk - w.key - w.first * T::Bc);
      for (int r = 0; r < T::Br; r += kGroupRows) {
        const TileRange range = mask.visible_tiles<T::Bc>(w, r);
        products += range.last - range.first + 1;
        rows += std::clamp(p.N - w.row - r, 0, kGroupRows);
      }
    }
    fa::Prediction t = fa::attention_traffic(p, 0, 4 * products * kGroupRows * T::Bc * d);
    t["Q"].read = 2 * rows * d;
    t["K"].read = t["V"].read = 2 * keys * d;
    t["work_tiles"].read = sizeof(WorkTile) * tiles;
    t["taken"] = {.read = 0, .write = 8, .atomic = 4 * (tiles + blocks)};
    t.flops += 2 * blocks * T::Br * T::Bc * d;  // a block's last Q K^T, whose result is unused
    t.hbm.read += sizeof(WorkTile) * tiles;
    return t;
  });
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    using T = Tiling<d>;
    const int count = count_row_tiles(p, T::Br) * int(p.heads());
    const WorkTable mask{t.scratch<const int4>("work_tiles"), count, window_of(p)};
    launch_mapped<T>(flash_fwd_kernel<T>, p, t, count, mask);
  });
}

}  // namespace step15_wgmma

// Step 15 -- Hopper's scheduler for packs: work tiles from a table.
// Idea      10's producer draws a number from a counter. If it is that of an entry in the host's
//           table, a work tile may be rows of any document. A box of TMA knows no documents, so two
//           warps that were idle help: one zeroes V behind a document's end, one stores O by rows
//           there
// Changed   since 10 5_scheduled: its producer and storing thread: work tiles from a table; the
//           ends of documents
// Traffic   see 10_wgmma
// Launch    see 10_wgmma
// Owns      one warp copies, one zeroes, one stores
// Still bad see 10_wgmma
#pragma once

#include "common/dialect/ptx/barrier.h"
#include "common/dialect/ptx/mbarrier.h"
#include "common/dialect/ptx/setmaxnreg.h"
#include "steps/15_masks/1_window.cuh"
#include "steps/15_masks/hopper.cuh"

namespace step15_wgmma {

using step10::compute_p, step10::descriptor, step10::has_grown, step10::init, step10::kMma,
    step10::kNoMaximum, step10::multiply_scores, step10::multiply_values, step10::pack,
    step10::put_rows, step10::raise_maximum, step10::Ring, step10::row_maximum, step10::Shape,
    step10::tensor_map;
using step15::Band;

template <int d>
using Tiling = step10::Tiling<d, true>;
constexpr int kDrawBefore = 256;  // keys before a walk's end the next work tile is drawn
template <class T>
constexpr int kSection = 4096 / T::d;  // most heads whose work tiles are mixed

// Rows of a head's document, and the tiles of keys that they visit; an entry of the table.
struct WorkTile : step15::Work {
  int bh;            // head of Q and O
  int first, tiles;  // tiles of the document's keys: at least one; 0: there is no more work
  int cut;           // in 11_wgmma_lists.cuh: how many of them the mask cuts
};

struct Table {
  const int4* works;  // [count, 2]: WorkTile of each
  int count;

  __device__ WorkTile work(int t) const {
    if (t >= count) return {};
    const int4 a = works[2 * t], b = works[2 * t + 1];
    return {{a.x, a.y, a.z, a.w}, b.x, b.y, b.z, b.w};
  }
};

// The rows of a tile see a band of the document's keys.
struct Bands : Table {
  Band band;

  // The tile of keys at a place of the walk.
  __device__ int tile(const WorkTile& work, int place) const { return work.first + place; }

  // Of 64 rows of the work tile, from r on.
  template <int Bc>
  __host__ __device__ Places places(const WorkTile& work, int r) const {
    const int end = work.tiles - 1;
    if (r >= work.rows) return {0, -1, end, end};  // no row: whatever it computes is not stored
    const int own = r + work.keys - work.rows, rows = min(kGroupRows, work.rows - r);
    const int low = max(0, own - band.left), low_of_last = max(0, own + rows - 1 - band.left);
    const int high = min(work.keys, own + band.right + 1);
    const int high_of_last = min(work.keys, own + rows + band.right);
    const int first = min(max(low / Bc - work.first, 0), end);
    const int last = min(max((high_of_last + Bc - 1) / Bc - 1 - work.first, first), end);
    return {first, min((low_of_last + Bc - 1) / Bc - 1 - work.first, last),
            min(high / Bc - 1 - work.first, last), last};
  }
  // Which keys of a cut tile a lane's rows r and r + 8 see, as columns_below().
  template <int Bc>
  __device__ void seen(const WorkTile& work, int place, int r, uint32_t (&bits)[2]) const {
    const int key = tile(work, place) * Bc + fa::column_of(threadIdx.x % fa::kWarp);
    UNROLL
    for (int h = 0; h < 2; ++h) {
      const int own = r + 8 * h + work.keys - work.rows - key;
      bits[h] = columns_below(min(work.keys - key, own + band.right + 1)) &
                ~columns_below(own - band.left);
    }
  }
  // Where 12_wgmma_scores.cuh changes scores, and where it starts with a sink.
  template <int Bc>
  __device__ void change(float (&)[Bc / 2], const WorkTile&, int, int) const {}
  __device__ void start(float (&)[2], float (&)[2], const WorkTile&) const {}
};

template <class T>
struct alignas(1024) Tiles {                    // each as panels of 64 features, swizzled by TMA
  bf16 Q[2][T::kConsumers][kGroupRows * T::d];  // of this work tile and the next; O on its way out
  bf16 K[T::kStagesK][T::Bc * T::d];
  bf16 V[T::kStagesV][T::Bc * T::d];
  uint64_t q_full[2][T::kConsumers], q_empty[2][T::kConsumers], o_full[2][T::kConsumers];
  uint64_t k_full[T::kStagesK], k_empty[T::kStagesK];
  uint64_t v_full[T::kStagesV], v_empty[T::kStagesV];
  uint64_t v_landed[2];             // V of which rows must be zeroed before it is full
  WorkTile work[2][T::kConsumers];  // comes with Q
};

template <class T>
__device__ inline void init_barriers(Tiles<T>& smem) {
  constexpr int kWarps = kGroupThreads / fa::kWarp, kAllWarps = T::kConsumers * kWarps;
  for (int b = 0; b < 2; ++b) {  // a Q is free when O is stored, and the warp that zeroes knows V
    init(smem.q_full[b], 1), init(smem.q_empty[b], 2), init(smem.o_full[b], kWarps);
  }
  init(smem.k_full, 1), init(smem.k_empty, kAllWarps);
  init(smem.v_full, 1), init(smem.v_empty, kAllWarps), init(smem.v_landed, 1);
  fa::mbarrier_init_fence();
}

// How many keys of V's last tile are the document's, if others follow; else all.
template <class T>
__device__ inline int keys_of_last(const WorkTile& work, int Nk) {
  const int left = work.keys - (work.first + work.tiles - 1) * T::Bc;
  return work.key + work.keys < Nk ? min(left, T::Bc) : T::Bc;
}

// --- the producer: one thread copies -------------------------------------------------------------

// As in 10 5_scheduled: K_0 Q K_1 V_0 K_2 V_1 ... V_n.
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
    const int b = n % 2;
    const int bh_kv = work.bh / shape.group;
    int key = work.tiles > 0 ? work.key + mask.tile(work, 0) * T::Bc : 0;
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
    const int drawn_at = max(0, work.tiles - 1 - kDrawBefore / T::Bc);
    UNROLL_BY(1)
    for (int i = 0;; ++i) {
      const int now = key;
      if (i == drawn_at) t = gridDim.x + atomicAdd(&taken[0], 1u);  // not needed until the end
      if (i + 1 == work.tiles) break;
      load_k(key = work.key + mask.tile(work, i + 1) * T::Bc, bh_kv);
      load_v(now, bh_kv, true);
    }
    const bool whole = keys_of_last<T>(work, shape.Nk) == T::Bc;
    work = mask.work(t);  // arrives while V's stage is waited for
    load_v(key, bh_kv, whole);
  }
  // The last block to leave resets the counters for the next launch. Launches that run at the same
  // time need counters of their own.
  __threadfence();
  if (atomicAdd(&taken[1], 1u) == gridDim.x - 1) taken[0] = 0, taken[1] = 0;
}

// --- two warps of its warpgroup see to the ends of documents -------------------------------------

// Zeroes what a walk's last V has of the next document: P is 0 there, but 0 * NaN is NaN.
template <class T>
__device__ inline void clear(Tiles<T>& smem, const Shape& shape) {
  const int lane = threadIdx.x % fa::kWarp;
  unsigned loaded = 0;  // tiles of V
  Ring<2> landed;
  for (int n = 0;; ++n) {
    const int b = n % 2;
    fa::mbarrier_wait(&smem.q_full[b][0], n / 2 & 1);  // the work tile is there, too
    const WorkTile& work = smem.work[b][0];
    if (work.tiles == 0) return;
    loaded += work.tiles;
    const int keys = keys_of_last<T>(work, shape.Nk);
    if (keys < T::Bc) {
      const int stage = (loaded - 1) % T::kStagesV;
      fa::mbarrier_wait(&smem.v_landed[landed.stage], landed.parity);
      clear_rows<T::d, T::Bc>(smem.V[stage], max(0, keys), lane, fa::kWarp);
      fa::fence_proxy_async();  // wgmma sees what this thread wrote ...
      __syncwarp();             // ... and what the other lanes have
      if (lane == 0) fa::mbarrier_arrive(&smem.v_full[stage]);
      landed.next();
    }
    __syncwarp();  // all lanes have read the work tile
    if (lane < T::kConsumers) {
      // Not before this consumer's Q is there: until then an arrival counts for the O before it.
      fa::mbarrier_wait(&smem.q_full[b][lane], n / 2 & 1);
      fa::mbarrier_arrive(&smem.q_empty[b][lane]);
    }
  }
}

// Stores O of each work tile and consumer from where its Q was. Then that buffer is free. A box
// that ends behind its document would overwrite the next one: its rows are stored one by one.
template <class T>
__device__ inline void store(Tiles<T>& smem, const fa::TensorMap* map, bf16* O,
                             const Shape& shape) {
  const int lane = threadIdx.x % fa::kWarp;
  for (int n = 0;; ++n) {
    const int b = n % 2;
    UNROLL_BY(1)
    for (int wg = 0; wg < T::kConsumers; ++wg) {
      fa::mbarrier_wait(&smem.q_full[b][wg], n / 2 & 1);  // the work tile is there, too
      const WorkTile& work = smem.work[b][wg];
      if (work.tiles == 0) return;
      fa::mbarrier_wait(&smem.o_full[b][wg], n / 2 & 1);
      const int row = work.row + wg * kGroupRows, rows = work.rows - wg * kGroupRows;
      if (rows < kGroupRows) {
        bf16* to = O + (size_t(work.bh) * shape.N + row) * T::d;
        store_rows<T::d>(smem.Q[b][wg], to, rows, lane, fa::kWarp);
      } else if (lane == 0) {
        fa::tma_store(map, smem.Q[b][wg], {0, row, 0, work.bh});
        fa::tma_store_commit();
        fa::tma_store_wait_read<0>();
      }
      __syncwarp();  // all lanes have read O
      if (lane == 0) fa::mbarrier_arrive(&smem.q_empty[b][wg]);
    }
  }
}

// --- host ---------------------------------------------------------------------------------------

// Tiles of Br rows of each document, without a head.
using Documents = std::vector<std::vector<WorkTile>>;

inline Documents row_tiles(const fa::Problem& p, int Br, int Bc) {
  Documents documents;
  for (const fa::Document& doc : p.documents()) {
    documents.emplace_back();
    for (int r = doc.rows.first; r < doc.rows.last; r += Br) {
      const fa::Range seen = fa::tiles_seen(p, doc, {r, std::min(r + Br, doc.rows.last)}, Bc);
      documents.back().push_back({{r, doc.rows.last - r, doc.keys.first, doc.keys.size()},
                                  0,
                                  seen.size() > 0 ? seen.first : 0,
                                  std::max(1, seen.size())});
    }
  }
  return documents;
}

template <class T>
std::vector<WorkTile> in_order(const fa::Problem& p, const Documents& documents) {
  return in_order(documents, int(p.kv_heads()), p.H / p.Hkv, kSection<T>,
                  [&](const WorkTile& w) { return 4 * size_t(p.d) * w.keys; });
}

inline fa::Table table_of(const std::vector<WorkTile>& tiles) {
  fa::Table table{"work_tiles", {}};
  for (const WorkTile& w : tiles) {
    table.values.insert(table.values.end(),
                        {w.row, w.rows, w.key, w.keys, w.bh, w.first, w.tiles, w.cut});
  }
  return table;
}

}  // namespace step15_wgmma

// Step 15 -- what its kernels for Hopper share: products and softmax of a warpgroup with 64 rows, a
// test by bits, and the two warps that handle the ends of documents.
// Changed   since 10 4_scheduled: products and softmax are copied; its storing thread becomes a
//           warp, and another one zeroes V
//
// Registers of a lane, of its two rows r and r + 8 (r = 16 warp + row_of(lane)):
//
//     rS[i]       row r + 8 half_of(i), key     column_of(lane) + column_at(i); then P
//     rO[i]       row r + 8 half_of(i), feature column_of(lane) + column_at(i)
//     rP[c]       P of the keys 16 c .. 16 c + 15, packed as wgmma's A
//     m[h], l[h]  of row r + 8 h; l of this lane's keys only
#pragma once

#include "common/dialect/fragment.h"
#include "common/dialect/ptx/math.h"
#include "common/dialect/softmax.h"
#include "common/dialect/warpgroup.h"
#include "steps/15_masks/bands.h"

namespace step15_wgmma {

using fa::bf16, fa::kLazyRescale, fa::kNoMaximum, fa::Ring;
using fa::kGroupThreads, fa::kMma, fa::kPanel, fa::kRowBytes;  // 128, 16, 64, 128

constexpr int kGroupRows = 64;  // of a warpgroup: the rows of a wgmma

// An SM has 512 registers for each of 128 threads. A launch gives each warpgroup the same number,
// and setmaxnreg moves what the producer does not need to the consumers.
template <int d_>
struct Tiling {
  static constexpr int d = d_;
  static constexpr int kConsumers = d == 64 ? 4 : 2, Br = kConsumers * kGroupRows;
  static constexpr int Bc = d == 64 ? 64 : 128;
  static constexpr int kStagesK = d == 64 ? 6 : 2, kStagesV = d == 64 ? 6 : 3;
  static constexpr int kThreads = (1 + kConsumers) * kGroupThreads;
  static constexpr int kProducerRegisters = d == 64 ? 32 : 40;
  static constexpr int kConsumerRegisters = d == 64 ? 112 : 232;
};

// What is the same for all blocks.
struct Shape {
  int heads, group;  // query heads of all batches; how many of them share K and V
  int N, Nk;
  float scale_log2;
};

// Rows of a head's document, and the tiles of keys that they visit: 32 bytes of the table.
struct WorkTile {
  int row, rows;     // the first row, and how many are left in the document
  int key, keys;     // the document's first key, and how many it has
  int bh;            // head of Q and O
  int first, tiles;  // tiles of the document's keys: at least one; 0: there is no more work
  int cut;           // only of lists (beyond/): how many of the tiles the mask cuts
};

struct Table {
  const int4* works;  // [count, 2]: WorkTile of each
  int count;

  __device__ WorkTile work(int t) const {
    if (t >= count) return {};
    const int4 a = works[2 * t], b = works[2 * t + 1];
    return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  }
};

// The producer is one thread of warp 0; warp 1 runs store(), warp 2 clear(). wg: each consumer.
//
//     barrier           arrivals  who arrives         who waits       what is then true
//     q_full[wg]           1      producer, TMA       wg, warps 1, 2  Q and the work tile are there
//     o_full[wg]           4      wg's warps          warp 1          O lies where Q was
//     q_empty[wg]          2      warps 1 and 2       producer        O is stored, V zeroed
//     k_full               1      producer, TMA       consumers       K is there
//     v_full               1      these, or warp 2    consumers       V is there, if need be zeroed
//     k_empty, v_empty  4 per wg  consumers' warps    producer        all have read or skipped it
//     v_landed             1      producer, TMA       warp 2          V is there, to be zeroed
//
// v_landed has no barrier for "empty": before V of work tile n + 2 the producer loads its Q, which
// waits until warp 2 is done with V of n. At most two such tiles of V are on their way.
template <class T>
struct alignas(1024) Tiles {                    // each as panels of 64 features, swizzled by TMA
  bf16 Q[2][T::kConsumers][kGroupRows * T::d];  // of this work tile and the next; O on its way out
  bf16 K[T::kStagesK][T::Bc * T::d];
  bf16 V[T::kStagesV][T::Bc * T::d];
  uint64_t q_full[2][T::kConsumers], q_empty[2][T::kConsumers], o_full[2][T::kConsumers];
  uint64_t k_full[T::kStagesK], k_empty[T::kStagesK];
  uint64_t v_full[T::kStagesV], v_empty[T::kStagesV];
  uint64_t v_landed[2];             // V in which rows must be zeroed before v_full
  WorkTile work[2][T::kConsumers];  // written with Q
};

template <class T>
__device__ inline void init_barriers(Tiles<T>& smem) {
  constexpr int kWarps = kGroupThreads / fa::kWarp, kAllWarps = T::kConsumers * kWarps;
  for (int b = 0; b < 2; ++b) {
    fa::init_mbarriers(smem.q_full[b], 1), fa::init_mbarriers(smem.q_empty[b], 2),
        fa::init_mbarriers(smem.o_full[b], kWarps);
  }
  fa::init_mbarriers(smem.k_full, 1), fa::init_mbarriers(smem.k_empty, kAllWarps);
  fa::init_mbarriers(smem.v_full, 1), fa::init_mbarriers(smem.v_empty, kAllWarps),
      fa::init_mbarriers(smem.v_landed, 1);
  fa::mbarrier_init_fence();
}

// --- a test by bits ------------------------------------------------------------------------------

// Of the places 0 .. tiles - 1 of a walk a warpgroup visits `first` to `last`, both included. Those
// up to `left` and those after `full` are cut; all others are full.
struct Places {
  int first, left, full, last;
};

// A bit for each of a lane's columns, two of each eight: is it below x, counted from the first one?
__device__ inline uint32_t columns_below(int x) {
  const int n = x <= 0 ? 0 : min(x / 8 * 2 + min(x % 8, 2), 32);
  return n == 32 ? ~0u : (1u << n) - 1;
}

// Scores whose bit is 0 become -inf.
template <int n>
__device__ inline void hide(float (&rS)[n], const uint32_t (&bits)[2]) {
  UNROLL
  for (int i = 0; i < n; ++i) {
    if (!(bits[fa::half_of(i)] >> (i / 4 * 2 + i % 2) & 1)) rS[i] = -INFINITY;
  }
}

// --- the ends of documents, which a box of TMA does not know -------------------------------------

// Zeroes rows `first` .. n - 1 of a tile in panels. Of `threads` threads, this is the `thread`-th.
template <int d, int n>
__device__ inline void clear_rows(bf16* tile, int first, int thread, int threads) {
  UNROLL_BY(2)
  for (int i = first * kPanel + thread * 8; i < n * kPanel; i += threads * 8) {
    for (int x = 0; x < d; x += kPanel) {
      *reinterpret_cast<uint4*>(tile + x * n + i) = make_uint4(0, 0, 0, 0);
    }
  }
}
// Stores the first `rows` rows of a tile of 64, which lie as TMA has them.
template <int d>
__device__ inline void store_rows(const bf16* tile, bf16* to, int rows, int thread, int threads) {
  constexpr int kLanes = d / 8;  // of a row, with 16 bytes each
  const int x = thread % kLanes * 8;
  UNROLL_BY(2)
  for (int r = thread / kLanes; r < rows; r += threads / kLanes) {
    const int at = (x / kPanel * kGroupRows + r) * kPanel + (x % kPanel / 8 ^ r % 8) * 8;
    *reinterpret_cast<uint4*>(to + size_t(r) * d + x) = *reinterpret_cast<const uint4*>(tile + at);
  }
}

// How many keys of a walk's last tile of V are the document's. All count if no document follows:
// past the tensor's end TMA fills with zeros.
template <class T>
__device__ inline int keys_of_last(const WorkTile& work, int Nk) {
  const int left = work.keys - (work.first + work.tiles - 1) * T::Bc;
  return work.key + work.keys < Nk ? min(left, T::Bc) : T::Bc;
}

// Zeroes the keys of a walk's last V that are the next document's: P is 0, but 0 * NaN is NaN.
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
      // Not before this consumer's Q is there: an earlier arrival would count for the phase before,
      // in which O may not be stored yet.
      fa::mbarrier_wait(&smem.q_full[b][lane], n / 2 & 1);
      fa::mbarrier_arrive(&smem.q_empty[b][lane]);
    }
  }
}

// Stores O of each work tile and consumer from where its Q was. Then that buffer is free. A box
// that ends past its document would overwrite the next one: its rows are stored one by one.
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

}  // namespace step15_wgmma

// Step 15 -- what 3_wgmma consists of, besides its roles: shared memory and its barriers, a test by
// bits, the two warps that handle the ends of documents, and the order of work.
// Changed   since 10 4_scheduled: warps store and zero V; the host determines the order of work
//           A lane's registers are as in step 10's parts.cuh
#pragma once

#include <algorithm>
#include <vector>

#include "common/dialect/fragment.h"
#include "common/dialect/softmax.h"
#include "common/dialect/warpgroup.h"
#include "common/harness/forward.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"

namespace step15_wgmma {

using fa::arrive, fa::release, fa::skip, fa::wait_for;
using fa::bf16, fa::kNoMaximum, fa::Ring;
using fa::kGroupThreads, fa::kMma, fa::kPanel, fa::kRowBytes;  // 128, 16, 64, 128

constexpr int kGroupRows = 64;  // rows of a warpgroup, and of a wgmma

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

struct Shape {
  int heads, group;  // query heads of all batches; how many of them share K and V
  int N, Nk;
  float scale_log2;
};

// Row r of a document has its own key, r + keys - rows: the last row has the last key. It sees the
// keys from `left` before its own to `right` after it.
struct Window {
  int left, right;  // 0 .. kFarAway
};
constexpr int kFarAway = 1 << 30;  // no limit: further than any key, and no sum overflows

// Rows of a head's document, and the tiles of keys that they visit.
struct WorkTile {
  int row, rows;     // the first row, and how many are left in the document
  int key, keys;     // the document's first key, and how many it has
  int bh;            // head of Q and O
  int first, tiles;  // tiles of the document's keys: at least one; 0: no more work
  int unused;        // a table entry is two int4
};

// The producer is one thread of warp 0; warp 1 runs store(), warp 2 clear(). wg: each consumer.
//
//     barrier           arrivals  by                  waiting         then true
//     q_full[wg]           1      producer, TMA       wg, warps 1, 2  Q, work tile have arrived
//     o_full[wg]           4      wg's warps          warp 1          O is where Q was
//     q_empty[wg]          2      warps 1 and 2       producer        O is read, V zeroed
//     k_full               1      producer, TMA       consumers       K has arrived
//     v_full               1      these, or warp 2    consumers       V has arrived, is zeroed
//     k_empty, v_empty  4 per wg  consumers' warps    producer        all have read or skipped it
//     v_landed             1      producer, TMA       warp 2          V has arrived, to be zeroed
//
// v_landed needs no "empty" barrier: before V of work tile n + 2 the producer loads its Q, which
// waits until warp 2 is done with V of n.
template <class T>
struct alignas(1024) Tiles {                    // each as panels of 64 features, swizzled by TMA
  bf16 Q[2][T::kConsumers][kGroupRows * T::d];  // of this work tile and the next; later O
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

// Which tiles of a walk a warpgroup's rows see, counted from the walk's first one: `first` to
// `last`. The left edge cuts those up to `last_left`, the right edge those after `last_full`; all
// others are full. Each `last` is included.
struct TileRange {
  int first, last_left, last_full, last;
};

// A bit for each of a lane's columns, two of each eight: whether it is below x.
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

// --- the ends of documents, which a box of TMA ignores -------------------------------------------

// Zeroes rows `first` .. n - 1 of a tile in panels. By `threads` threads.
template <int d, int n, int threads>
__device__ inline void clear_rows(bf16* tile, int first, int thread) {
  UNROLL_BY(2)
  for (int i = first * kPanel + thread * 8; i < n * kPanel; i += threads * 8) {
    for (int x = 0; x < d; x += kPanel) {
      *reinterpret_cast<uint4*>(tile + x * n + i) = make_uint4(0, 0, 0, 0);
    }
  }
}
// Stores the first `rows` rows of a tile of 64 in TMA's layout. By `threads` threads.
template <int d, int threads>
__device__ inline void store_rows(const bf16* tile, bf16* to, int rows, int thread) {
  constexpr int kLanes = d / 8;  // per row, with 16 bytes each
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
    fa::mbarrier_wait(&smem.q_full[b][0], n / 2 & 1);  // the work tile has arrived, too
    const WorkTile& work = smem.work[b][0];
    if (work.tiles == 0) return;
    loaded += work.tiles;
    const int keys = keys_of_last<T>(work, shape.Nk);
    if (keys < T::Bc) {
      const int stage = (loaded - 1) % T::kStagesV;
      fa::mbarrier_wait(&smem.v_landed[landed.stage], landed.parity);
      clear_rows<T::d, T::Bc, fa::kWarp>(smem.V[stage], max(0, keys), lane);
      fa::fence_proxy_async();  // wgmma sees this thread's writes ...
      __syncwarp();             // ... and what the other lanes have
      if (lane == 0) fa::mbarrier_arrive(&smem.v_full[stage]);
      landed.next();
    }
    __syncwarp();  // all lanes have read the work tile
    if (lane < T::kConsumers) {
      // An earlier arrival would count for the previous phase, in which O may not be stored yet.
      fa::mbarrier_wait(&smem.q_full[b][lane], n / 2 & 1);
      fa::mbarrier_arrive(&smem.q_empty[b][lane]);
    }
  }
}

// Stores O of each work tile and consumer from its Q's buffer, then releases the buffer. A box that
// ends past its document would overwrite the next one: its rows are stored one by one.
template <class T>
__device__ inline void store(Tiles<T>& smem, const fa::TensorMap* map, bf16* O,
                             const Shape& shape) {
  const int lane = threadIdx.x % fa::kWarp;
  for (int n = 0;; ++n) {
    const int b = n % 2;
    UNROLL_BY(1)
    for (int wg = 0; wg < T::kConsumers; ++wg) {
      fa::mbarrier_wait(&smem.q_full[b][wg], n / 2 & 1);  // the work tile has arrived, too
      const WorkTile& work = smem.work[b][wg];
      if (work.tiles == 0) return;
      fa::mbarrier_wait(&smem.o_full[b][wg], n / 2 & 1);
      const int row = work.row + wg * kGroupRows, rows = work.rows - wg * kGroupRows;
      if (rows < kGroupRows) {
        bf16* to = O + (size_t(work.bh) * shape.N + row) * T::d;
        store_rows<T::d, fa::kWarp>(smem.Q[b][wg], to, rows, lane);
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

// --- host: windows, and the order of work --------------------------------------------------------

inline Window window_of(const fa::Problem& p) {
  const auto limit = [](int given) { return given == fa::Mask::kNoLimit ? kFarAway : given; };
  return {limit(p.mask.left), p.causal ? 0 : limit(p.mask.right)};
}

inline int count_row_tiles(const fa::Problem& p, int size) {
  int tiles = 0;
  for (const fa::Document& doc : p.documents()) tiles += fa::ceil_div(doc.rows.size(), size);
  return tiles;
}

// All heads' entries in the order of blocks: sections whose `bytes` fit in the L2 (16 MB), the
// longest walks of each first; documents with the longest walks begin. group: heads that share an
// entry's bytes. most: of a section's pairs of a document and a head. different: heads of K and V
// whose entries differ; then each "document" has those of the heads with a remainder, its `bh`.
template <class Entry, class Bytes>
std::vector<Entry> in_order(const fa::Problem& p, std::vector<std::vector<Entry>> documents,
                            Bytes&& bytes, int group, int most, int different = 1) {
  const auto longer = [](const Entry& a, const Entry& b) { return a.tiles > b.tiles; };
  std::erase_if(documents, [](const auto& doc) { return doc.empty(); });
  for (auto& doc : documents) std::stable_sort(doc.begin(), doc.end(), longer);
  std::stable_sort(documents.begin(), documents.end(),
                   [&](const auto& a, const auto& b) { return longer(a[0], b[0]); });
  std::vector<Entry> all;
  size_t begun = 0, in_section = 0;
  int heads = 0;
  const auto end_section = [&] {
    std::stable_sort(all.begin() + begun, all.end(), longer);
    begun = all.size(), in_section = heads = 0;
  };
  for (const auto& doc : documents) {
    const int first = doc[0].bh;
    for (int head = first; head < int(p.kv_heads()); head += different) {
      if (in_section + bytes(doc[0]) > 16 << 20 || heads + group > most) end_section();
      for (int bh = head * group; bh < (head + 1) * group; ++bh) {
        for (Entry tile : doc) tile.bh = bh, all.push_back(tile);
      }
      in_section += bytes(doc[0]), heads += group;
    }
  }
  end_section();
  return all;
}
// Of the forward: K and V of at most 4096 / d pairs of a document and a query head.
inline std::vector<WorkTile> in_order(const fa::Problem& p,
                                      const std::vector<std::vector<WorkTile>>& documents,
                                      int different = 1) {
  const auto bytes = [&](const WorkTile& work) { return 4 * size_t(p.d) * work.keys; };
  return in_order(p, documents, bytes, p.H / p.Hkv, 4096 / p.d, different);
}

template <class Entry>
fa::Table table_of(const char* name, const std::vector<Entry>& entries) {
  const int* first = reinterpret_cast<const int*>(entries.data());
  return {name, {first, first + entries.size() * sizeof(Entry) / sizeof(int)}};
}

template <class T, class Kernel, class Mask>
void launch_mapped(Kernel kernel, const fa::Problem& p, const fa::Tensors<bf16>& t, int count,
                   const Mask& mask) {
  const Shape shape{int(p.heads()), p.H / p.Hkv, p.N, p.Nk, p.scale() * fa::kLog2e};
  fa::launch_attention<T::d>(
      kernel, fa::share_work(p.gpu.sms, count, T::kThreads, sizeof(Tiles<T>)), p, t, kGroupRows,
      T::Bc, t.O, t.LSE, mask, shape, t.template scratch<unsigned>("taken"));
}

}  // namespace step15_wgmma

// Step 13 -- more than 16 rows for a key head: one wgmma, keys by TMA, blocks that stay.
// Idea      mma.sync's warps hold 32 rows in 255 registers, so a tile takes them longer than its
//           copy. wgmma multiplies 64 rows, which a group fills to a part, in a third of the time;
//           one warp copies ahead of two warpgroups, across the ends of a block's pieces of work
// Changed   since 13 beyond/early, whose merge it launches: the kernel is 10's, with a split of a
//           head as its work; a block per SM takes one after the other, and its two warpgroups
//           every second tile each; TMA copies all but a ragged end of less than 8 keys
// Traffic   as early, but Q once per split
// Launch    grid min(SMs, B*Hkv*s*t), 2 warpgroups multiply and a warp copies; then the merge
// Owns      block: splits of 64 rows; warpgroup: the block's tiles of one parity
// Still bad a group of 8 uses an eighth of each product; 16 bits per number of K and V
#pragma once

#include "common/dialect/ptx/barrier.h"
#include "common/dialect/ptx/cp_async.h"
#include "common/dialect/softmax.h"
#include "common/dialect/warpgroup.h"
#include "steps/13_decode/beyond/early.cuh"

namespace step13_wgmma {

using fa::bf16, fa::Ring, fa::kGroupThreads, fa::kNoMaximum, fa::kPanel, fa::kRowBytes;
using fa::tile_descriptor, fa::wait_for, step13::SplitParts;

constexpr int Br = 64, Bc = 64;  // rows of a product, keys of a tile
constexpr int kGroups = 2;       // warpgroups that multiply
constexpr int kThreads = kGroups * kGroupThreads + fa::kWarp;
template <int d>
constexpr int kStages = 512 / d;  // 128 KB of K and V; even: a stage belongs to one warpgroup

template <int d>
struct alignas(1024) Tiles {  // as panels of 64 features, swizzled by TMA
  bf16 Q[Br * d];
  bf16 K[kStages<d>][Bc * d], V[kStages<d>][Bc * d];
  float4 O[d / 8][kGroupThreads];             // the second warpgroup's sums, as its registers
  float2 m[kGroupThreads], l[kGroupThreads];  // of each thread's two rows
  uint64_t q_full, q_empty, full[kStages<d>], empty[kStages<d>];
};

struct Shape {
  int heads, rows, N, Nk;  // heads of K; rows that read one of them
  int splits, split_keys;  // of the longest entry; keys of a split
  int log2_page;
  float scale_log2;
  bool causal;
};

// A piece of a block's work: 64 rows of a head, and tiles split, split + splits, ... of its keys.
struct Work {
  int head, entry, row, split, splits, keys, tiles;

  __device__ Work(const Shape& shape, const int* lengths, int i) {
    const int row_blocks = (shape.rows + Br - 1) / Br;  // those of the same keys are adjacent
    row = i % row_blocks * Br, split = i / row_blocks % shape.splits;
    head = i / row_blocks / shape.splits, entry = head / shape.heads;
    keys = lengths ? lengths[entry] : shape.Nk;
    splits = max(1, (keys + shape.split_keys - 1) / shape.split_keys);
    tiles = ((keys + Bc - 1) / Bc - split + splits - 1) / splits;  // 0: none, if no key exists
  }
  __device__ bool exists() const { return split < splits; }  // split 0 stores even an empty result
  __device__ int key(int tile) const { return (split + tile * splits) * Bc; }
};

// Where the keys of a head are.
struct Source {
  const bf16 *K, *V;  // [pages, heads, page, d], or [B*heads, Nk, d]
  const int* pages;   // of the entry; null: not paged
  int head, heads, log2_page, Nk;
  __device__ int rows() const { return pages ? 1 << log2_page : Nk; }
  // Key `key`: which [page, d], or [Nk, d], and the row in it.
  __device__ void find(int key, int& of, int& row) const {
    of = pages ? pages[key >> log2_page] * heads + head % heads : head;
    row = pages ? key & ((1 << log2_page) - 1) : key;
  }
};

// The maps of K and V, in boxes of a panel: of whole pages or 64 keys, and of 8 keys.
struct Maps {
  fa::TensorMap Q, K, V, K8, V8;
};

// A ragged tile: whole groups of 8 keys by TMA, what is left of a group by the lanes, then zeros,
// which TMA stores for keys outside the tensor. By a warp.
template <int d>
__device__ inline void copy_ragged(const Maps& maps, const Source& from, bf16* K, bf16* V,
                                   uint64_t* full, int key, int valid) {
  constexpr int kBoxes = 2 * (d / kPanel);  // of the same keys: panels of K and of V
  const int lane = threadIdx.x % fa::kWarp, panel = lane / 2 % (d / kPanel), group = lane / kBoxes;
  const int rest = valid % 8;
  int of = 0, row = from.rows();  // outside
  if (rest > 0) {
    for (int i = lane; i < 2 * d; i += fa::kWarp) {
      const int r = i / (d / 4), x = i / 2 % (d / 8);  // 16 bytes: features 8 x .. 8 x + 7
      if (r < rest) from.find(key + valid - rest + r, of, row);
      const size_t at = r < rest ? (size_t(of) * from.rows() + row) * d + x * 8 : 0;
      const int to = (x / 8 * Bc + valid - rest + r) * kPanel + (x % 8 ^ r) * 8;  // TMA's swizzle
      fa::cp_async_16((i % 2 ? V : K) + to, (i % 2 ? from.V : from.K) + at, r < rest ? 16 : 0);
    }
    fa::cp_async_wait_all();
    fa::fence_proxy_async();  // wgmma reads what this lane has copied ...
    __syncwarp();             // ... and what the others have
  }
  if (lane == 0)
    fa::mbarrier_arrive_expect_tx(full, (Bc - (rest > 0 ? 8 : 0)) * kBoxes * kRowBytes);
  __syncwarp();  // the barrier expects the bytes before they arrive
  if (group * 8 >= Bc || (rest > 0 && group == valid / 8)) return;
  of = 0, row = from.rows();
  if (group < valid / 8) from.find(key + group * 8, of, row);
  fa::tma_load((lane % 2 ? V : K) + (panel * Bc + group * 8) * kPanel,
               lane % 2 ? &maps.V8 : &maps.K8, full, {0, row, panel, of});
}

// The producer: Q of each piece of work and its tiles, as soon as there is room.
template <int d>
__device__ inline void produce(Tiles<d>& smem, const Maps& maps, Source from, const Shape& shape,
                               const fa::Cache& cache, int all) {
  constexpr int kBoxes = 2 * (d / kPanel);  // of the same keys: panels of K and of V
  const int lane = threadIdx.x % fa::kWarp, panel = lane / 2 % (d / kPanel);
  const int box = cache.table ? min(from.rows(), Bc) : Bc, r = lane / kBoxes * box;
  const int columns = (shape.Nk + from.rows() - 1) / from.rows();  // of the table
  Ring<kStages<d>> ring;
  Ring<1> rows;
  for (int i = blockIdx.x; i < all; i += gridDim.x) {
    const Work work(shape, cache.lengths, i);
    if (!work.exists()) continue;
    from.head = work.head;
    from.pages = cache.table ? cache.table + work.entry * size_t(columns) : nullptr;
    fa::mbarrier_wait(&smem.q_empty, rows.parity ^ 1);
    rows.next();
    if (lane == 0) {
      fa::mbarrier_arrive_expect_tx(&smem.q_full, sizeof smem.Q);
      fa::tma_load(smem.Q, &maps.Q, &smem.q_full, {0, work.row, 0, work.head});
    }
    for (int j = 0; j < work.tiles; ++j, ring.next()) {
      const int stage = ring.stage, key = work.key(j);
      fa::mbarrier_wait(&smem.empty[stage], ring.parity ^ 1);
      if (key + Bc > work.keys && (cache.table || work.keys < shape.Nk)) {
        copy_ragged<d>(maps, from, smem.K[stage], smem.V[stage], &smem.full[stage], key,
                       work.keys - key);
        continue;
      }
      if (lane == 0) fa::mbarrier_arrive_expect_tx(&smem.full[stage], 2 * sizeof smem.K[stage]);
      __syncwarp();  // the barrier expects the bytes before they arrive
      if (r >= Bc) continue;
      int of, row;
      from.find(key + r, of, row);
      fa::tma_load((lane % 2 ? smem.V : smem.K)[stage] + (panel * Bc + r) * kPanel,
                   lane % 2 ? &maps.V : &maps.K, &smem.full[stage], {0, row, panel, of});
    }
  }
}

// The first warpgroup adds the second one's sums to its own.
template <int d>
__device__ inline void merge_groups(Tiles<d>& smem, int group, float (&rO)[d / 2], float (&m)[2],
                                    float (&l)[2]) {
  const int thread = threadIdx.x % kGroupThreads;
  if (group == 1) {
    smem.m[thread] = make_float2(m[0], m[1]), smem.l[thread] = make_float2(l[0], l[1]);
    UNROLL
    for (int i = 0; i < d / 2; i += 4) {
      smem.O[i / 4][thread] = make_float4(rO[i], rO[i + 1], rO[i + 2], rO[i + 3]);
    }
  }
  fa::bar_sync(1, kGroups * kGroupThreads);  // the sums are complete
  if (group == 0) {
    const float2 more_m = smem.m[thread], more_l = smem.l[thread];
    const float other_m[2] = {more_m.x, more_m.y}, other_l[2] = {more_l.x, more_l.y};
    float factor[2], other[2];
    UNROLL
    for (int h = 0; h < 2; ++h) {
      const float largest = fmaxf(m[h], other_m[h]);
      factor[h] = fa::exp2_approx(m[h] - largest), other[h] = fa::exp2_approx(other_m[h] - largest);
      m[h] = largest, l[h] = l[h] * factor[h] + other_l[h] * other[h];
    }
    UNROLL
    for (int i = 0; i < d / 2; i += 4) {
      const float4 more = smem.O[i / 4][thread];
      rO[i] = rO[i] * factor[0] + more.x * other[0];
      rO[i + 1] = rO[i + 1] * factor[0] + more.y * other[0];
      rO[i + 2] = rO[i + 2] * factor[1] + more.z * other[1];
      rO[i + 3] = rO[i + 3] * factor[1] + more.w * other[1];
    }
  }
  fa::bar_sync(1, kGroups * kGroupThreads);  // they are read, and may be overwritten
}

// Stores a piece's results, or its part.
template <int d>
__device__ inline void store(const Work& work, int rows, size_t all_rows, float (&rO)[d / 2],
                             const float (&m)[2], float (&l)[2], bf16* O, float* LSE,
                             const SplitParts& parts) {
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int row = work.row + warp * 16 + fa::row_of(lane);  // and the one 8 below
  const size_t result = size_t(work.head) * rows + row, part = work.split * all_rows + result;
  float normalise[2];
  UNROLL
  for (int h = 0; h < 2; ++h) {
    l[h] = fa::quad_sum(l[h]);
    normalise[h] = l[h] > 0.f ? 1.f / l[h] : 0.f;  // no key seen: O = 0
    if (!fa::leads_quad(lane) || row + 8 * h >= rows) continue;
    const float lse = l[h] > 0.f ? m[h] + log2f(l[h]) : -INFINITY;
    if (work.splits > 1) {
      parts.LSE[part + 8 * h] = lse;
    } else {
      LSE[result + 8 * h] = lse * fa::kLn2;
    }
  }
  fa::rescale(rO, normalise);
  if (work.splits > 1) {
    UNROLL
    for (int i = 0; i < d / 2; i += 2) {
      const int h = fa::half_of(i);
      if (row + 8 * h >= rows) continue;
      float* to = parts.O + (part + 8 * h) * d + fa::column_of(lane) + fa::column_at(i);
      *reinterpret_cast<float2*>(to) = make_float2(rO[i], rO[i + 1]);
    }
    return;
  }
  UNROLL
  for (int x = 0; x < d; x += 32) {
    float4 sums[4];
    UNROLL
    for (int g = 0; g < 4; ++g) {
      const float* o = &rO[x / 2 + 4 * g];
      sums[g] = make_float4(o[0], o[1], o[2], o[3]);
    }
    fa::put_rounded<d>(sums, 1.f, O + result * d + x + threadIdx.x % 4 * 8, row, rows);
  }
}

// A warpgroup: every second tile of the block's, and of each piece its own O, m and l.
template <int d>
__device__ inline void consume(Tiles<d>& smem, const Shape& shape, const int* lengths, int group,
                               int all, bf16* O, float* LSE, const SplitParts& parts) {
  const int lane = threadIdx.x % fa::kWarp, column = fa::column_of(lane);
  const int r = threadIdx.x % kGroupThreads / fa::kWarp * 16 + fa::row_of(lane);
  const size_t all_rows = size_t(all) / shape.splits / ((shape.rows + Br - 1) / Br) * shape.rows;
  Ring<kStages<d>> ring;
  Ring<1> rows;
  int turn = 0;
  for (int i = blockIdx.x; i < all; i += gridDim.x) {
    const Work work(shape, lengths, i);
    if (!work.exists()) continue;
    const int least = shape.causal ? work.keys - shape.N + 1 : work.keys;
    float rO[d / 2] = {}, m[2] = {kNoMaximum, kNoMaximum}, l[2] = {}, alpha[2];
    fa::mbarrier_wait(&smem.q_full, rows.parity);
    rows.next();
    for (int j = 0; j < work.tiles; ++j, ring.next()) {
      if (turn++ % kGroups != group) continue;
      const int key = work.key(j);
      float rS[Bc / 2];
      uint32_t rP[Bc / 16][4];
      fa::mbarrier_wait(&smem.full[ring.stage], ring.parity);
      fa::multiply_features<d>(tile_descriptor(smem.Q), tile_descriptor(smem.K[ring.stage]), rS);
      wait_for<0>(rS);
      if (least < key + Bc) {
        UNROLL
        for (int n = 0; n < Bc / 2; ++n) {
          const int query = (work.row + r + 8 * fa::half_of(n)) % shape.N;
          const int visible = shape.causal ? least + query : least;
          if (key + column + fa::column_at(n) >= visible) rS[n] = -INFINITY;
        }
      }
      if (fa::needs_rescale(rS, m, shape.scale_log2, fa::kLazyRescale)) {
        fa::update_max(rS, shape.scale_log2, m, l, alpha);
        fa::rescale(rO, alpha);
      }
      fa::compute_p(rS, shape.scale_log2, m, l);
      fa::pack_operand(rS, rP);
      fa::multiply_rows<d>(rP, tile_descriptor(smem.V[ring.stage], Bc * kRowBytes), rO);
      wait_for<0>(rO);
      fa::arrive(&smem.empty[ring.stage]);
    }
    fa::warp_arrive(&smem.q_empty);  // Q is not read again
    merge_groups<d>(smem, group, rO, m, l);
    if (group == 0) store<d>(work, shape.rows, all_rows, rO, m, l, O, LSE, parts);
  }
}

template <int d>
__global__ void __launch_bounds__(kThreads, 1)
    flash_decode_kernel(const __grid_constant__ Maps maps, const bf16* K_rows, const bf16* V_rows,
                        fa::Cache cache, bf16* O, float* LSE, SplitParts parts, Shape shape,
                        int all) {
  Tiles<d>& smem = *fa::dynamic_shared<Tiles<d>>();
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&smem.q_full, 1);
    fa::mbarrier_init(&smem.q_empty, kGroups * kGroupThreads / fa::kWarp);
    fa::init_mbarriers(smem.full, 1), fa::init_mbarriers(smem.empty, kGroupThreads / fa::kWarp);
    fa::mbarrier_init_fence();
  }
  __syncthreads();  // all threads see the barriers
  const int group = fa::uniform(threadIdx.x / kGroupThreads);
  if (group == kGroups) {
    const Source from = {K_rows, V_rows, cache.table, 0, shape.heads, shape.log2_page, shape.Nk};
    produce(smem, maps, from, shape, cache, all);
  } else {
    consume(smem, shape, cache.lengths, group, all, O, LSE, parts);
  }
}

// --- host ---------------------------------------------------------------------------------------

struct Splits {
  int count, keys, row_blocks, all;  // all: pieces of work
};

// The splits that finish first, if a tile takes an SM as long as all others, a piece of work half
// a tile more, and the merge as long as a tile and a hundredth per split: estimated.
inline Splits splits_of(const fa::Problem& p) {
  const int row_blocks = fa::ceil_div(p.H / p.Hkv * p.N, Br), readers = p.Hkv * row_blocks;
  int longest = 1;
  for (int b = 0; b < p.B; ++b) longest = std::max(longest, fa::ceil_div(p.keys_of(b), Bc));
  Splits best{1, longest * Bc, row_blocks, p.B * readers};
  double least = INFINITY;
  for (int count = 1; count <= std::min(longest, p.gpu.sms); ++count) {
    const int each = fa::ceil_div(longest, count);
    if (fa::ceil_div(longest, each) != count) continue;  // the same as with fewer
    int64_t pieces = 0;
    for (int b = 0; b < p.B; ++b) {
      pieces += int64_t(readers) * std::max(1, fa::ceil_div(fa::ceil_div(p.keys_of(b), Bc), each));
    }
    const double time =
        double(fa::ceil_div(pieces, p.gpu.sms)) * (each + 0.5) + (count > 1 ? 1 + 0.01 * count : 0);
    if (time < least) least = time, best = {count, each * Bc, row_blocks, p.B * readers * count};
  }
  return best;
}

inline int merge_threads(const fa::Problem& p, const Splits& splits) {
  return fa::ceil_div(splits.count, step13_early::kBatch) * (p.d / 4);
}

// Up to 16 rows `early` is faster (measured).
inline bool pays(const fa::Problem& p) { return p.H / p.Hkv * p.N > fa::kMma; }

inline fa::Prediction traffic(const fa::Problem& p) {
  if (!pays(p)) return step13_early::traffic(p);
  const Splits splits = splits_of(p);
  const uint64_t d = p.d, rows = p.rows(), readers = p.Hkv * splits.row_blocks;
  uint64_t keys = 0, tiles = 0, pieces = 0, looked_up = 0;
  fa::Prediction t;
  for (int b = 0; b < p.B; ++b) {
    const int Nk = p.keys_of(b);
    keys += Nk, tiles += fa::ceil_div(Nk, Bc);
    pieces += std::max(1, fa::ceil_div(Nk, splits.keys));
    if (p.cache.page == 0) continue;
    const int boxes = Nk / Bc * (Bc / std::min(p.cache.page, Bc));
    looked_up += (boxes + Nk % Bc / 8) * 2 * (d / kPanel) + Nk % 8 * 2 * (d / 8);
    t.hbm.read += 4 * fa::ceil_div(Nk, p.cache.page);
  }
  if (p.cache.page) t["table"].read = 4 * readers * looked_up;
  if (!p.cache.lengths.empty()) {  // by all threads
    t["lengths"].read = 4 * uint64_t(splits.all) * kThreads;
    if (splits.count > 1) t["lengths"].read += 4 * rows * merge_threads(p, splits);
    t.hbm.read += 4 * p.B;
  }
  t["Q"].read = 2 * pieces * (rows / p.B) * d;
  t["K"].read = t["V"].read = 2 * readers * keys * d;
  t["O"].write = 2 * rows * d, t["LSE"].write = 4 * rows;
  t.hbm += {.read = 2 * (rows + 2 * p.Hkv * keys) * d, .write = (2 * d + 4) * rows};
  t.flops = 4 * readers * tiles * Br * Bc * d;
  fa::add_merged_traffic(t, p, splits.keys, readers);
  if (t.buffers.erase("arrived")) t["LSE_parts"].read /= 2;  // no counters; once
  return t;
}

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  if (!pays(p)) return step13_early::workspace(p);
  const int count = splits_of(p).count;
  return fa::parts_workspace(count > 1 ? count * p.rows() : 0, p.d);
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  if (!pays(p)) return step13_early::forward(p, t);
  const Splits splits = splits_of(p);
  const int page = p.cache.page, rows = p.H / p.Hkv * p.N;
  const SplitParts parts = {t.scratch<float>("O_parts"), t.scratch<float>("LSE_parts")};
  const Shape shape = {.heads = p.Hkv,
                       .rows = rows,
                       .N = p.N,
                       .Nk = p.Nk,
                       .splits = splits.count,
                       .split_keys = splits.keys,
                       .log2_page = page ? int(std::bit_width(unsigned(page))) - 1 : 0,
                       .scale_log2 = p.scale() * fa::kLog2e,
                       .causal = p.causal};
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    const uint64_t heads = page ? uint64_t{1} << 31 : p.kv_heads(), of = page ? page : p.Nk;
    const auto map = [&](const bf16* x, int keys) {
      const uint32_t box = page ? std::min(page, keys) : keys;
      return fa::tensor_map(x, {{64, 1, 64}, {of, d, box}, {d / 64, 64, 1}, {heads, of * d, 1}},
                            fa::Swizzle::b128);
    };
    const Maps maps = {fa::tile_map<d>(t.Q, p.kv_heads(), rows, Br), map(t.K, Bc), map(t.V, Bc),
                       map(t.K, 8), map(t.V, 8)};
    fa::launch(flash_decode_kernel<d>,
               {dim3(std::min(splits.all, p.gpu.sms)), dim3(kThreads), sizeof(Tiles<d>)}, maps, t.K,
               t.V, t.cache, t.O, t.LSE, parts, shape, splits.all);
    if (splits.count == 1) return;
    const int threads = merge_threads(p, splits);
    const size_t sums = threads / (d / 4) * (d + 1) * sizeof(float);
    fa::launch_early(step13_early::merge_kernel<d>, {dim3(p.rows()), dim3(threads), sums}, parts,
                     t.cache.lengths, t.O, t.LSE, p.Nk, splits.keys, p.H * p.N);
  });
}

}  // namespace step13_wgmma

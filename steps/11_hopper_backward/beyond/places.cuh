// Step 11 -- few places for dQ's sums.
// Idea      The sums of the heads in flight, 17 MB, stay in the L2 if a head hands its place to a
//           later one. A head's last walk rounds dQ and leaves zeros
// Changed   since 11 3_columns: where dQ's sums are; what the last walk of a head does
// Traffic   as 3_columns; the state: 4 + 8*BHkv B written, 8*BHkv*Tc + 4*(2*BHkv - places) atomic
// Launch    columns; backward (Tc * B*Hkv), 384 threads
// Owns      as 3_columns
// Still bad the last walk of a head leaves its tensor cores idle while it rounds
#pragma once

#include "common/dialect/ptx/more/tma.h"
#include "steps/11_hopper_backward/beyond/parts.cuh"

namespace step11_places {

using namespace step11_sums;

constexpr int d = 128, kRows = step11_columns::Br<d>;  // 64 rows of a tile
// Rounds a group of heads. A lane loads sums of 64 rows while it rounds others.
__device__ inline void round_sums(const FloatSums& sums, int first_half,  // in the sums
                                  const Shape& shape,
                                  bf16* dQ,  // [B*H, N, d]
                                  int head, int N) {
  const int wg = threadIdx.x / kGroupThreads, thread = threadIdx.x % kGroupThreads;
  const int r = thread / fa::kWarp * 16 + fa::row_of(thread % fa::kWarp);
  const int halves = shape.Np / 64, end = shape.group * halves;  // of a tile: 64 rows
  const auto load = [&](float4(&sum)[d / 8], int half) {
    if (half >= end) return;
    const auto from = sums.part<d>(first_half + half);
    UNROLL
    for (int x = 0; x < d / 8; ++x) sum[x] = fa::load_l2(from.at + x * fa::kWarp * 4);
  };
  const auto put = [&](const float4(&sum)[d / 8], int half) {
    if (half >= end) return;
    const int row = half % halves * 64 + r;
    bf16* to = dQ + (size_t(head + half / halves) * N + row) * d + thread % 4 * 8;
    UNROLL
    for (int x = 0; x < d / 8; x += 4) {
      const float4 four[4] = {sum[x], sum[x + 1], sum[x + 2], sum[x + 3]};
      fa::put_rounded<d>(four, shape.scale, to + x * 8, row, N);
    }
  };
  float4 sum[2][d / 8];
  load(sum[0], wg);
  UNROLL_BY(1)
  for (int half = wg; half < end; half += 2 * kGroups) {
    load(sum[1], half + kGroups);
    put(sum[0], half);
    load(sum[0], half + 2 * kGroups);
    put(sum[1], half + kGroups);
  }
}

// A walk without a place for its head uses the head's own.
struct Places {
  using Tile = RowTile;
  static constexpr bool kReadsColumns = false, kIdles = false;
  float* sums;      // [B*Hkv places, group * Np / 64, 4, d / 8, 32, 4]; zeros between launches
  unsigned* given;  // how many heads have handed on their place
  unsigned* place;  // [B*Hkv]: of the head, + 1; 0: none yet
  unsigned* walks;  // [B*Hkv]: of the head, that have added
  bf16* dQ;         // [B*H, N, d]
  int N, first;     // first: the heads that begin with a place, their own

  struct Ends {
    unsigned place;
    bool last;  // of the head's walks
  };
  __device__ static Ends& ends() {
    __shared__ Ends at;
    return at;
  }

  // The sums of the walk's head. By the warpgroup that adds.
  struct Place : FloatSums {
    __device__ Part part(const Tiles<d>&, unsigned, int, int half, int feature) const {
      return FloatSums::part<d>(half, feature);
    }
  };
  __device__ static Place of_walk(const Places& all, const Shape& shape, const WorkTile& work) {
    if (threadIdx.x % kGroupThreads == 0) {
      const unsigned own = work.bh_kv + 1, given = atomicCAS(&all.place[work.bh_kv], 0u, own);
      ends().place = (given == 0 ? own : given) - 1;
    }
    fa::bar_sync(3, kGroupThreads);
    __threadfence();  // the place's zeros, written before it was handed on, are visible
    const ptrdiff_t away = ptrdiff_t(ends().place) - work.bh_kv;
    return {all.sums + away * shape.group * shape.Np * d};
  }
  // After the additions. By the same warpgroup.
  __device__ void end_walk(const Shape& shape, const WorkTile& work) const {
    __threadfence();                 // all additions of this thread are in the L2,
    fa::bar_sync(3, kGroupThreads);  // and all of the others, before one thread counts the walk
    if (threadIdx.x % kGroupThreads == 0) {
      ends().last = atomicAdd(&walks[work.bh_kv], 1u) == unsigned(shape.Tc - 1);
    }
    fa::bar_arrive(4, kThreads);
  }
  // After the head's last walk: rounds dQ of all rows, leaves zeros. By the other warpgroups.
  template <int n>
  __device__ void round(const Shape& shape, const WorkTile& work, bf16 (&zeros)[n]) const {
    fa::bar_sync(4, kThreads);
    if (!ends().last) return;
    __threadfence();  // others' additions, done before they counted, are visible
    const int end = shape.group * (shape.Np / 64), first_half = ends().place * end;
    round_sums(FloatSums{sums}, first_half, shape, dQ, work.head, N);
    for (int i = threadIdx.x; i < n / 8; i += kGroups * kGroupThreads) {
      reinterpret_cast<uint4*>(zeros)[i] = make_uint4(0, 0, 0, 0);
    }
    fa::fence_proxy_async();                   // TMA reads the zeros, ...
    fa::bar_sync(5, kGroups * kGroupThreads);  // ... when all have read their sums,
    if (threadIdx.x > 0) return;
    fa::fence_proxy_async_global();  // and it overwrites what they read and others added
    float* const place_sums = sums + size_t(first_half) * 64 * d;
    for (size_t x = 0; x < size_t(end) * 64 * d; x += sizeof zeros / 4) {
      fa::bulk_store(place_sums + x, zeros, sizeof zeros);
    }
    fa::tma_store_commit();
    fa::tma_store_wait<0>();
    __threadfence();  // the zeros, before the place is handed on
    const unsigned next = first + atomicAdd(given, 1u);
    if (next < unsigned(shape.kv_heads)) atomicCAS(&place[next], 0u, ends().place + 1);
  }
};

// --- the kernels ---------------------------------------------------------------------------------

template <int d>
__global__ void columns_kernel(const bf16* O,     // [B*H, N, d]
                               const bf16* dO,    // [B*H, N, d]
                               const float* LSE,  // [B*H, N]
                               bf16* columns,     // [B*H, Np, 8]
                               unsigned* state, int words, int N, int Np, float scale) {
  const int word = blockIdx.x * kRowThreads + threadIdx.x;
  if (word < words) state[word] = 0;
  const RowLanes<d> at(N, Np);
  const float delta = at.delta(O, dO);
  if (at.lane > 0) return;
  step11_columns::put_columns(columns + at.padded * kColumns, at.lse(LSE) / scale, delta);
}

// --- host ----------------------------------------------------------------------------------------

template <int d>
void launch_columns(const fa::Problem& p, const fa::Tensors<bf16>& t, unsigned* state, int words) {
  fa::launch(columns_kernel<d>, row_blocks(p, d / 8), t.O, t.dO, t.LSE, t.scratch<bf16>("columns"),
             state, words, p.N, padded_rows(p), p.scale());
}

inline int state_words(const fa::Problem& p) { return 1 + 2 * int(p.kv_heads()); }
// Twice as many heads as have a block on an SM.
inline int first_places(const fa::Problem& p) {
  const int heads = fa::ceil_div(2 * p.gpu.sms, fa::ceil_div(p.Nk, Bc));
  return std::min(heads, int(p.kv_heads()));
}

inline fa::Support support() { return {.d = {d}, .gqa = true, .cross = true}; }

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  const size_t rows = p.heads() * size_t(padded_rows(p));
  return {{"columns", 2 * kColumns * rows},
          {.name = "place_sums", .bytes = 4 * rows * p.d, .zeroed = true},
          {"places", 4 * size_t(state_words(p))}};
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  fa::Prediction t = step11_columns::backward_traffic(p);
  const Shape shape = shape_of(p, kRows);
  const uint64_t heads = p.kv_heads(), first = first_places(p), BH = p.heads();
  t["place_sums"] = t["dQ_sum"];
  t.buffers.erase("dQ_sum");
  t["places"] = {.read = 0,
                 .write = 4 * uint64_t(state_words(p)),
                 .atomic = 4 * (2 * heads * shape.Tc + heads + (heads - first))};
  const uint64_t Nv = uint64_t(shape.Tr) * kRows, Np = shape.Np;
  t.hbm.read -= 4 * BH * (Np + Nv) * p.d, t.hbm.write -= 4 * BH * (Np + Nv) * p.d;
  t.hbm.write += 4 * first * (p.H / p.Hkv) * Np * p.d;
  return t;
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  unsigned *state = t.scratch<unsigned>("places"), *place = state + 1;
  launch_columns<d>(p, t, state, state_words(p));
  launch_backward<d>(p, t,
                     Places{t.scratch<float>("place_sums"), state, place, place + p.kv_heads(),
                            t.dQ, p.N, first_places(p)});
}

}  // namespace step11_places

// Step 11 -- few places for dQ's sums.
// Idea      The sums of the heads in flight take 17 MB (d = 128, N = Nk, H = Hkv), which the L2
//           holds, if a head hands its place to a later one. The last walk of a head rounds dQ and
//           leaves zeros: no kernel writes zeros before, and none converts after
// Changed   since 11 7_columns: where dQ's sums are; what the last walk of a head does
// Traffic   as 7_columns, and of the state 8*BHkv*Tc + 4*(2*BHkv - places) B atomic,
//           4 + 8*BHkv B written
// Launch    columns; backward (Tc * B*Hkv), 384 threads
// Owns      as 7_columns
// Still bad the last walk of a head leaves its tensor cores idle while it rounds
#pragma once

#include "common/dialect/ptx/more/tma.h"
#include "steps/11_hopper_backward/12_own_sums.cuh"

namespace step11_places {

using namespace step11;

// dQ's sums of the heads in flight. A walk that finds no place for its head takes the head's own,
// so nobody waits.
struct Places {
  float* sums;      // [B*Hkv places, group * Np / 64, 4, d / 8, 32, 4]; zeros between launches
  unsigned* given;  // how many heads have handed on their place
  unsigned* place;  // [B*Hkv]: of the head, + 1; 0: none yet
  unsigned* walks;  // [B*Hkv]: of the head, that have added
  bf16* dQ;         // [B*H, N, d]
  int N, first;     // first: the heads that begin with a place, their own

  // What a block knows of its walk.
  struct Ends {
    unsigned place;
    bool last;  // of the head's walks
  };
  __device__ static Ends& ends() {
    __shared__ Ends at;
    return at;
  }

  // The sums of the walk's head. The warpgroup that adds calls.
  template <int d>
  __device__ FloatSums of_walk(const Shape& shape, const WorkTile& work) const {
    if (threadIdx.x % kGroupThreads == 0) {
      const unsigned own = work.bh_kv + 1, given = atomicCAS(&place[work.bh_kv], 0u, own);
      ends().place = (given == 0 ? own : given) - 1;
    }
    fa::bar_sync(3, kGroupThreads);
    __threadfence();  // the place's zeros, written before it was handed on, are visible
    const ptrdiff_t away = ptrdiff_t(ends().place) - work.bh_kv;
    return {sums + away * shape.group * shape.Np * d};
  }
  // After its additions. The same warpgroup calls.
  __device__ void end_walk(const Shape& shape, const WorkTile& work) const {
    __threadfence();                 // all additions of this thread are in the L2,
    fa::bar_sync(3, kGroupThreads);  // and all of the others, before one thread counts the walk
    if (threadIdx.x % kGroupThreads == 0) {
      ends().last = atomicAdd(&walks[work.bh_kv], 1u) == unsigned(shape.Tc - 1);
    }
    fa::bar_arrive(4, step11_columns::kThreads);
  }
  // Of the head's last walk: dQ of all its rows, then zeros for the next head. The other warpgroups
  // call, when they are done.
  template <int d, int n>
  __device__ void round(const Shape& shape, const WorkTile& work, bf16 (&zeros)[n]) const {
    fa::bar_sync(4, step11_columns::kThreads);
    if (!ends().last) return;
    __threadfence();  // others' additions, done before they counted, are visible
    const int end = shape.group * (shape.Np / 64), first_half = ends().place * end;
    round_sums<d>(FloatSums{sums}, first_half, shape, dQ, work.head, N);
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

// --- host ----------------------------------------------------------------------------------------

inline int state_words(const fa::Problem& p) { return 1 + 2 * int(p.kv_heads()); }
// Twice as many heads as have a block on an SM.
inline int first_places(const fa::Problem& p) {
  const int heads = fa::ceil_div(2 * p.gpu.sms, fa::ceil_div(p.Nk, Bc));
  return std::min(heads, int(p.kv_heads()));
}

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  const size_t rows = p.heads() * size_t(padded_rows(p));
  return {{"columns", 2 * step11_columns::kColumns * rows},
          {.name = "place_sums", .bytes = 4 * rows * p.d, .zeroed = true},
          {"places", 4 * size_t(state_words(p))}};
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  fa::Prediction t = step11_columns::backward_traffic(p);
  const Shape shape = shape_of(p, step11_apart::rows_of_a_tile(p));
  const uint64_t heads = p.kv_heads(), first = first_places(p), BH = p.heads();
  t["place_sums"] = t["dQ_sum"];
  t.buffers.erase("dQ_sum");
  t["places"] = {.read = 0,
                 .write = 4 * uint64_t(state_words(p)),
                 .atomic = 4 * (2 * heads * shape.Tc + heads + (heads - first))};
  // The sums stay in the L2 until the end.
  const uint64_t Nv = uint64_t(shape.Tr) * step11_apart::rows_of_a_tile(p), Np = shape.Np;
  t.hbm.read -= 4 * BH * (Np + Nv) * p.d, t.hbm.write -= 4 * BH * (Np + Nv) * p.d;
  t.hbm.write += 4 * first * (p.H / p.Hkv) * Np * p.d;
  return t;
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  float* sums = t.scratch<float>("place_sums");
  unsigned *state = t.scratch<unsigned>("places"), *place = state + 1;
  const Places dQ_sum{sums, state, place, place + p.kv_heads(), t.dQ, p.N, first_places(p)};
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    launch_columns<d>(p, t, state, state_words(p));
    step11_columns::launch_backward<d>(p, t, dQ_sum);
  });
}

}  // namespace step11_places

// Step 11 -- few places for dQ's sums.
// Idea      The sums of the heads in flight need 17 MB (d = 128, N = Nk, H = Hkv), which fit in the
//           L2 if a head hands its place to a later one. The last walk of a head rounds dQ and
//           leaves zeros: no kernel writes zeros before, and none converts after. d = 128 only: at
//           d = 64 persistent.cuh is as fast
// Changed   since 11 3_columns: where dQ's sums are; what the last walk of a head does
// Traffic   as 3_columns, and of the state 8*BHkv*Tc + 4*(2*BHkv - places) B atomic,
//           4 + 8*BHkv B written
// Launch    columns; backward (Tc * B*Hkv), 384 threads
// Owns      as 3_columns
// Still bad the last walk of a head leaves its tensor cores idle while it rounds
#pragma once

#include "common/dialect/ptx/more/tma.h"
#include "steps/11_hopper_backward/3_columns.cuh"

namespace step11_places {

using namespace step11;
using step11_columns::kColumns, step11_columns::kDsStages, step11_columns::kStages;
using step11_columns::kThreads;
using step11_columns::Loader, step11_columns::Group, step11_columns::Tiles;

constexpr int d = 128, kRows = step11_columns::Br<d>;  // 64 rows of a tile
constexpr int kGroupRegisters = step11_columns::kGroupRegisters<d>;
constexpr int kThirdRegisters = step11_columns::kThirdRegisters<d>;

// As convert_kernel, for a group of heads: a lane loads sums of 64 rows while it rounds others.
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

// dQ's sums of the heads in flight. A walk without a place for its head uses the head's own.
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

  // The sums of the walk's head. By the warpgroup that adds.
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

// As 3_columns', but zeros for the state and not for dQ_sum.
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

// As 3_columns', at d = 128.
__device__ inline void multiply_dq(Tiles<d>& smem, const Shape& shape, const WorkTile& work,
                                   const Loader<d>& loader, const Places& places) {
  const int thread = threadIdx.x % kGroupThreads, lane = thread % fa::kWarp;
  const unsigned tiles = shape.group * (shape.Tr - work.first);
  RowTile at = work, ahead = at;  // ahead: the next tile to copy
  if (thread == 0) {
    load_keys(smem.K, &smem.k_full, loader.K, work);
    UNROLL_BY(1)
    for (unsigned i = 0; i < min(tiles, unsigned(kStages)); ++i, ahead.next(work, shape.Tr)) {
      loader.load_rows(i, ahead);
    }
  }
  __syncwarp();
  const FloatSums dQ_sum = places.of_walk(shape, work);
  fa::mbarrier_wait(&smem.k_full, 0);
  const uint64_t first_k = tile_descriptor(smem.K[0]), first_ds = tile_descriptor(smem.dS[0]);
  UNROLL_BY(1)
  for (unsigned n = 0; n < tiles; ++n, at.next(work, shape.Tr)) {
    const unsigned stage = n % kDsStages;
    const uint64_t k = first_k + (n >> 31);  // + 0: see Group::zero()
    const uint64_t ds = first_ds + stage * (sizeof smem.dS[0] >> 4);
    fa::mbarrier_wait(&smem.ds_full[stage], n / kDsStages & 1);
    constexpr int kParts = 2;  // of the features
    UNROLL_BY(1)
    for (int part = 0; part < kParts; ++part) {
      float rdQ[kPanel / 2];
      multiply_transposed<d, Bc>(ds, k + (part * kGroupKeys * kRowBytes >> 4), rdQ);
      if (part == 0 && thread == 0 && n > 0 && n - 1 + kStages < tiles) {
        loader.load_rows(n - 1 + kStages, ahead);
        ahead.next(work, shape.Tr);
      }
      __syncwarp();
      const int half = (at.head * shape.Np + at.i * kRows) / 64;
      const auto dQ_part = dQ_sum.part<d>(half, part * 64);
      fa::wgmma_wait<0>();
      fa::pin_registers(rdQ);
      if (part == kParts - 1 && lane == 0) fa::mbarrier_arrive(&smem.ds_empty[stage]);
      dQ_part.add(rdQ);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    backward_kernel(const __grid_constant__ fa::TensorMap Q,   // [B*H, N, d], boxes of 64 rows
                    const __grid_constant__ fa::TensorMap K,   // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap V,   // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap dO,  // [B*H, N, d], of 64
                    const __grid_constant__ fa::TensorMap dK,  // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap dV,  // [B*Hkv, Nk, d], of 64
                    const bf16* columns,                       // [B*H, Np, 8]
                    Places places, Shape shape) {
  Tiles<d>& smem = *fa::dynamic_shared<Tiles<d>>();
  if (threadIdx.x == 0) {
    constexpr int kGroupWarps = kGroupThreads / fa::kWarp, kWarps = kGroups * kGroupWarps;
    fa::mbarrier_init(&smem.k_full, 1), fa::mbarrier_init(&smem.v_full, 1);
    init_mbarriers(smem.q_full, 1), init_mbarriers(smem.q_empty, kWarps);
    init_mbarriers(smem.do_full, 1), init_mbarriers(smem.do_empty, kWarps);
    init_mbarriers(smem.ds_full, kWarps), init_mbarriers(smem.ds_empty, kGroupWarps);
    fa::mbarrier_init_fence();
  }
  __syncthreads();  // all threads see the barriers
  const WorkTile work = work_tile_at(blockIdx.x, shape, kRows);
  const int wg = __shfl_sync(fa::kFullMask, threadIdx.x / kGroupThreads, 0);
  if (wg == kGroups) {
    fa::setmaxnreg_dec<kThirdRegisters>();
    const Loader<d> loader{smem, &Q, &K, &V, &dO, columns, work, shape.Np};
    multiply_dq(smem, shape, work, loader, places);
    places.end_walk(shape, work);
  } else {
    fa::setmaxnreg_inc<kGroupRegisters>();
    if (wg == 0) {
      Group<d, 0>(smem, shape, work).run(&dK, &dV);
    } else {
      Group<d, 1>(smem, shape, work).run(&dK, &dV);
    }
    places.round(shape, work, smem.Q[0]);
  }
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
  // The sums stay in the L2 until the end.
  const uint64_t Nv = uint64_t(shape.Tr) * kRows, Np = shape.Np;
  t.hbm.read -= 4 * BH * (Np + Nv) * p.d, t.hbm.write -= 4 * BH * (Np + Nv) * p.d;
  t.hbm.write += 4 * first * (p.H / p.Hkv) * Np * p.d;
  return t;
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const Shape shape = shape_of(p, kRows);
  const auto rows = [&](const bf16* x) { return map_of_rows<d>(p, x, kRows); };
  const auto keys = [&](const bf16* x) { return map_of_keys<d>(p, x); };
  float* sums = t.scratch<float>("place_sums");
  unsigned *state = t.scratch<unsigned>("places"), *place = state + 1;
  const Places places{sums, state, place, place + p.kv_heads(), t.dQ, p.N, first_places(p)};
  launch_columns<d>(p, t, state, state_words(p));
  fa::launch(backward_kernel, {work_tiles(shape), dim3(kThreads), sizeof(Tiles<d>)}, rows(t.Q),
             keys(t.K), keys(t.V), rows(t.dO), keys(t.dK), keys(t.dV), t.scratch<bf16>("columns"),
             places, shape);
}

}  // namespace step11_places

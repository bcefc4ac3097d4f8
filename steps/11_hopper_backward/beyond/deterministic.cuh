// Step 11 -- the same bits in each run.
// Idea      Each part of a row's dQ is rounded to a multiple of the row's unit: the sums are exact
//           in any order (Demmel and Nguyen, "Fast reproducible floating-point summation", 2013)
// Changed   since 11 3_columns: a kernel finds bounds, the next one also writes units to the
//           columns, which the third warpgroup reads
// Traffic   as 3_columns; for the units 2*BHkv*2*Nk*d + 8*BH*Tc*Np + 8*BHkv*Tc B more
// Launch    bounds; units; then as 3_columns
// Owns      as 3_columns
// Still bad an extra kernel before the walk reads K and V again
#pragma once

#include "common/dialect/eight.h"
#include "steps/11_hopper_backward/beyond/parts.cuh"

namespace step11_deterministic {

using namespace step11_sums;
using step11_columns::Br;

// --- a unit for each row -------------------------------------------------------------------------

// m, 2^23 units of a row: the largest power of 2 that does not exceed 17/16 of the bound
//     sum_c |dS_c K_cx| = sum_c P_c |dO (V_c - O)| |K_cx| <= |dO| max_c |V_c| max |K|
// (docs/mathematics.md, with its limits), so all sums stay below 2^24 units. The sixteenth covers
// errors of P, dS and O, and the rounding of parts. From bounds of 2^126 on m is 2^-100, the least,
// and sums round as in 3_columns. It must be finite: S and dP multiply it, as two bf16, by 0.
__device__ inline float units_of(float bound) {
  const float above = bound < 0x1p126f ? fmaxf(bound * 1.0625f, 0x1p-100f) : 0x1p-100f;
  return __uint_as_float(__float_as_uint(above) & 0x7f800000);
}

// Per tile of 128 keys: the largest length |V_c| of a row of V, and the largest |K_cx| of K.
template <int d>
__global__ void bounds_kernel(const bf16* K,   // [B*Hkv, Nk, d]
                              const bf16* V,   // [B*Hkv, Nk, d]
                              float2* bounds,  // [B*Hkv, Tc]
                              int Nk, int Tc) {
  constexpr int kLanes = d / 8;  // per key
  __shared__ float2 of_warps[kRowThreads / fa::kWarp];
  const int bh = blockIdx.x / Tc, lane = threadIdx.x % kLanes;
  float length = 0.f, k = 0.f;  // length: squared, until it is stored
  UNROLL
  for (int c = threadIdx.x / kLanes; c < Bc; c += kRowThreads / kLanes) {
    const int key = blockIdx.x % Tc * Bc + c;
    float of_k[8] = {}, of_v[8] = {}, squares = 0.f;
    if (key < Nk) {
      const size_t at = (size_t(bh) * Nk + key) * d + lane * 8;
      fa::load_eight(K + at, of_k), fa::load_eight(V + at, of_v);
    }
    UNROLL
    for (int i = 0; i < 8; ++i) k = fmaxf(k, fabsf(of_k[i])), squares += of_v[i] * of_v[i];
    length = fmaxf(length, fa::warp_sum<kLanes>(squares));
  }
  length = fa::warp_max(length), k = fa::warp_max(k);
  if (threadIdx.x % fa::kWarp == 0) of_warps[threadIdx.x / fa::kWarp] = make_float2(length, k);
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (const float2& w : of_warps) length = fmaxf(length, w.x), k = fmaxf(k, w.y);
  bounds[blockIdx.x] = make_float2(sqrtf(length), k);
}

__device__ inline void put_columns(bf16* to, float scaled_lse, float delta, float units) {
  __align__(16) bf16 row[kColumns];
  step11_columns::split(scaled_lse == -INFINITY ? -1e30f : -scaled_lse, row);
  step11_columns::split(-delta, row + 3);
  *reinterpret_cast<float*>(row + 6) = units;
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(row);
}

template <int d>
__global__ void units_kernel(const bf16* O,         // [B*H, N, d]
                             const bf16* dO,        // [B*H, N, d]
                             const float* LSE,      // [B*H, N]
                             const float2* bounds,  // [B*Hkv, Tc]
                             bf16* columns,         // [B*H, Np, 8]
                             float* dQ_sum,         // [B*H, Np, d]
                             int N, int Np, int Tc, int group, float scale) {
  const RowLanes<d> at(N, Np);
  at.clear(dQ_sum);
  float o[8] = {}, g[8] = {}, delta = 0.f, squares = 0.f;
  if (at.inside) {
    const size_t first = at.row * d + at.lane * 8;
    fa::load_eight(O + first, o), fa::load_eight(dO + first, g);
  }
  UNROLL
  for (int i = 0; i < 8; ++i) delta += o[i] * g[i], squares += g[i] * g[i];
  delta = fa::warp_sum<at.kLanes>(delta), squares = fa::warp_sum<at.kLanes>(squares);
  float length = 0.f, k = 0.f;
  for (int j = at.lane; j < Tc; j += at.kLanes) {
    const float2 largest = bounds[at.head / group * Tc + j];
    length = fmaxf(length, largest.x), k = fmaxf(k, largest.y);
  }
  length = fa::warp_max<at.kLanes>(length), k = fa::warp_max<at.kLanes>(k);
  if (at.lane > 0) return;
  put_columns(columns + at.padded * kColumns, at.lse(LSE) / scale, delta,
              units_of(sqrtf(squares) * length * k));
}

// --- dQ of whole units ---------------------------------------------------------------------------

__device__ inline float2 units_of_rows(const bf16* columns) {
  const int row = threadIdx.x % kGroupThreads / fa::kWarp * 16 + threadIdx.x % fa::kWarp / 4;
  const bf16* last = columns + row * kColumns + 6;
  return {*reinterpret_cast<const float*>(last),
          *reinterpret_cast<const float*>(last + 8 * kColumns)};
}

// With x's sign |x + m| is at least 2^23 units, so the addition rounds to whole units.
template <int n>
__device__ inline void round_to_units(const float (&rdQ)[n], const float2& units,
                                      float (&rounded)[n]) {
  UNROLL
  for (int i = 0; i < n; ++i) {
    const float m = copysignf(fa::half_of(i) ? units.y : units.x, rdQ[i]);
    rounded[i] = rdQ[i] + m - m;  // not simplified: C++ does not reassociate floats
  }
}

struct UnitSums : Plain {
  static constexpr bool kReadsColumns = true;
  FloatSums sums;

  struct Part : FloatSums::Part {
    float2 units;

    template <int n>
    __device__ void add(const float (&rdQ)[n]) const {
      float rounded[n];
      round_to_units(rdQ, units, rounded);
      FloatSums::Part::add(rounded);
    }
  };
  template <int d>
  __device__ Part part(Tiles<d>& smem, unsigned n, int part, int half, int feature) const {
    const auto dQ_part = sums.part<d>(half, feature);
    // Never blocks, as ds_full completes later: it makes TMA's writes visible to this thread.
    if (part == 0) fa::mbarrier_wait(&smem.q_full[n % kStages], n / kStages & 1);
    const int row = d == 64 ? part * 64 : 0;
    const float2 units = units_of_rows(smem.columns[n % kStages] + row * kColumns);
    __syncwarp();  // all lanes have read m
    if (part == 1 && threadIdx.x % fa::kWarp == 0) {
      fa::mbarrier_arrive(&smem.q_empty[n % kStages]);
    }
    return {dQ_part, units};
  }
};

// --- host ----------------------------------------------------------------------------------------

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  std::vector<fa::Scratch> all = step11_columns::workspace(p);
  all.push_back({"bounds", 8 * size_t(p.kv_heads()) * fa::ceil_div(p.Nk, Bc)});
  return all;
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  fa::Prediction t = step11_columns::backward_traffic(p);
  const uint64_t BH = p.heads(), Np = padded_rows(p), Tc = fa::ceil_div(p.Nk, Bc);
  const uint64_t keys = 2 * p.kv_size(), bounds = 8 * p.kv_heads() * Tc;
  t["K"].read += keys, t["V"].read += keys;
  t["bounds"] = {.read = 8 * BH * Np * Tc, .write = bounds};
  t.hbm.read += 2 * keys + bounds, t.hbm.write += bounds;
  return t;
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    const Shape shape = shape_of(p, Br<d>);
    float2* bounds = t.scratch<float2>("bounds");
    bf16* columns = t.scratch<bf16>("columns");
    float* sums = t.scratch<float>("dQ_sum");
    fa::launch(bounds_kernel<d>, {work_tiles(shape), dim3(kRowThreads)}, t.K, t.V, bounds, p.Nk,
               shape.Tc);
    fa::launch(units_kernel<d>, row_blocks(p, d / 8), t.O, t.dO, t.LSE, bounds, columns, sums, p.N,
               shape.Np, shape.Tc, shape.group, p.scale());
    launch_backward<d>(p, t, UnitSums{{}, {sums}});
    step11_sums::launch_convert<d>(p, t);
  });
}

}  // namespace step11_deterministic

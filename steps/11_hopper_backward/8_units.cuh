// Step 11 -- a unit for each row of dQ.
// Idea      Floats add up without rounding if all are multiples of one unit and no sum needs more
//           than 24 bits. A row's unit must be large enough for any sum of its parts of dQ, and
//           small enough to keep dQ accurate. It is a power of 2, from a bound of these sums
// Changed   since 11 6_augmented: the columns also hold each row's unit; a kernel before it that
//           reads K and V
#pragma once

#include "steps/11_hopper_backward/6_augmented.cuh"

namespace step11_deterministic {

using namespace step11;
using step11_columns::kColumns;

// 2^23 units of a row: the largest power of 2 that does not exceed the bound
//     sum_c |dS_c K_cx| = sum_c P_c |dO (V_c - O)| |K_cx| <= |dO| max_c |V_c| max |K|
// (docs/mathematics.md), so that all sums stay below 2^24 units. One sixteenth is added for errors
// of P, dS and O, and for the rounding of parts. This holds for |dO| and |V_c| from 2^-60 to 2^64,
// |LSE| below 10^5 and bounds below 2^126. A row with a larger bound, or with an inf in K or V, has
// the smallest unit, which rounds nothing. It is a normal number, since wgmma multiplies it by 0.
__device__ inline float units_of(float bound) {
  const float above = bound < 0x1p126f ? fmaxf(bound * 1.0625f, 0x1p-100f) : 0x1p-100f;
  return __uint_as_float(__float_as_uint(above) & 0x7f800000);
}

// Eight features.
__device__ inline void load_eight(const bf16* from, float (&x)[8]) {
  __align__(16) bf16 packed[8];
  *reinterpret_cast<uint4*>(packed) = *reinterpret_cast<const uint4*>(from);
  UNROLL
  for (int i = 0; i < 8; ++i) x[i] = __bfloat162float(packed[i]);
}

// For each tile of keys the largest |V_c|, the length of a vector, and the largest element |K_cx|.
template <int d>
__global__ void bounds_kernel(const bf16* K,   // [B*Hkv, Nk, d]
                              const bf16* V,   // [B*Hkv, Nk, d]
                              float2* bounds,  // [B*Hkv, Tc]
                              int Nk, int Tc) {
  constexpr int kLanes = d / 8;  // of a key
  __shared__ float2 of_warps[kRowThreads / fa::kWarp];
  const int bh = blockIdx.x / Tc, lane = threadIdx.x % kLanes;
  float length = 0.f, k = 0.f;
  UNROLL
  for (int c = threadIdx.x / kLanes; c < Bc; c += kRowThreads / kLanes) {
    const int key = blockIdx.x % Tc * Bc + c;
    float of_k[8] = {}, of_v[8] = {}, squares = 0.f;
    if (key < Nk) {
      const size_t at = (size_t(bh) * Nk + key) * d + lane * 8;
      load_eight(K + at, of_k), load_eight(V + at, of_v);
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

// As columns_kernel, with 2^23 units of each row in the last two columns.
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
    load_eight(O + first, o), load_eight(dO + first, g);
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
  step11_columns::put_columns(columns + at.padded * kColumns, at.lse(LSE) / scale, delta,
                              units_of(sqrtf(squares) * length * k));
}

// --- host ----------------------------------------------------------------------------------------

template <int d>
void launch_units(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  float2* bounds = t.scratch<float2>("bounds");
  const int Tc = fa::ceil_div(p.Nk, Bc);
  fa::launch(bounds_kernel<d>, {dim3(unsigned(Tc * p.kv_heads())), dim3(kRowThreads)}, t.K, t.V,
             bounds, p.Nk, Tc);
  fa::launch(units_kernel<d>, row_blocks(p, d / 8), t.O, t.dO, t.LSE, bounds,
             t.scratch<bf16>("columns"), t.scratch<float>("dQ_sum"), p.N, padded_rows(p), Tc,
             p.H / p.Hkv, p.scale());
}

}  // namespace step11_deterministic

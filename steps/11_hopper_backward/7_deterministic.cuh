// Step 11 -- the same bits in each run.
// Idea      Only dQ depends on the order of the blocks, because a float's sum does: each addition
//           rounds. So each part of a row's dQ is first rounded to a multiple of a unit, a power of
//           2, which is so large that no sum needs more than 24 bits. Then no addition rounds, and
//           all orders give the same bits (Demmel and Nguyen, "Fast reproducible floating-point
//           summation", 2013)
// Changed   since 11 6_columns: a rounding before the additions; a kernel that finds the unit
// Traffic   as 6_columns; to find the units 2*BHkv*2*Nk*d + 8*BH*Tc*Np + 8*BHkv*Tc B more
// Launch    bounds; units; backward (Tc * B*Hkv), 384 threads; convert
// Owns      as 6_columns
// Still bad one kernel more, which reads K and V
#pragma once

#include "steps/11_hopper_backward/6_columns.cuh"

namespace step11_deterministic {

using namespace step11;
using step11_columns::kColumns;

// dQ's sums of parts that are multiples of their row's unit.
struct RoundedSums {
  FloatSums sums;

  struct Part {
    FloatSums::Part sums;
    float upper = 0.f, lower = 0.f;  // 2^23 units of the lane's rows r, r + 8

    // columns: of the part's 64 rows.
    __device__ void read(const bf16* columns) {
      const int row = threadIdx.x % kGroupThreads / fa::kWarp * 16 + threadIdx.x % fa::kWarp / 4;
      const bf16* last = columns + row * kColumns + 6;
      upper = *reinterpret_cast<const float*>(last);
      lower = *reinterpret_cast<const float*>(last + 8 * kColumns);
    }
    // |x + m| is 2^23 units or more when m has x's sign, so the addition rounds to whole units.
    template <int n>
    __device__ void add(const float (&rdQ)[n]) const {
      float rounded[n];
      UNROLL
      for (int i = 0; i < n; ++i) {
        const float m = copysignf(fa::half_of(i) ? lower : upper, rdQ[i]);
        rounded[i] = rdQ[i] + m - m;
      }
      sums.add(rounded);
    }
  };
  template <int d>
  __device__ Part part(int half, int feature = 0) const {
    return {sums.template part<d>(half, feature)};
  }
};

// 2^23 units of a row: the largest power of 2 that is not above the bound of the sum of |dQ_x| over
// any of the keys, so that all sums are below 2^24 units. The bound:
//     sum_c |dS_c K_cx| = sum_c P_c |dO (V_c - O)| |K_cx| <= |dO| max_c |V_c| max |K|,
// since P sums to 1, O is the mean of the V_c, and a variable between -D and D is at most D from
// its mean, on average. A sixteenth is for rounding errors in P, dS and O, and for rounding parts.
// The promise is for |dO| and |V_c| from 2^-60 to 2^64, |LSE| below 10^5 and bounds below 2^126. A
// row with a larger bound, or an inf in K or V, gets the least unit, which rounds nothing. It is a
// normal number: wgmma multiplies it by 0.
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

// Of each tile of keys the largest |V_c| (of a vector) and the largest |K_cx| (of an element).
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

// columns_kernel, and 2^23 units of each row in the last two columns.
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
    const FloatSums dQ_sum{t.scratch<float>("dQ_sum")};
    float2* bounds = t.scratch<float2>("bounds");
    const int Tc = fa::ceil_div(p.Nk, Bc);
    fa::launch(bounds_kernel<d>, {dim3(unsigned(Tc * p.kv_heads())), dim3(kRowThreads)}, t.K, t.V,
               bounds, p.Nk, Tc);
    fa::launch(units_kernel<d>, row_blocks(p, d / 8), t.O, t.dO, t.LSE, bounds,
               t.scratch<bf16>("columns"), t.scratch<float>("dQ_sum"), p.N, padded_rows(p), Tc,
               p.H / p.Hkv, p.scale());
    step11_columns::launch_backward<d>(p, t, RoundedSums{dQ_sum});
    launch_convert<d>(p, t, dQ_sum);
  });
}

}  // namespace step11_deterministic

// Step 11 -- the same bits in each run.
// Idea      Only dQ depends on the order of the blocks, because a float's sum does; an integer's
//           does not. So dQ is added in fixed point: a row's unit is so large that its sum cannot
//           overflow, and so small that what is rounded off is less than bf16 shows
// Changed   since 11 6_columns: how dQ is added; kernels before that find the unit
// Traffic   as 6_columns; to find the units 2*BH*N*d + 2*BHkv*2*Nk*d + 2*BH*(3 + 4*Tc)*Np +
//           8*BHkv*Tc B more, and to use them 16*BH*(Tc*(d/64)*Nv + d/32*Np) B
// Launch    columns; bounds; units; backward (Tc * B*Hkv), 384 threads; convert
// Owns      as 6_columns
// Still bad two kernels more, and four times as many additions: RED has no vector of integers
#pragma once

#include "steps/11_hopper_backward/6_columns.cuh"

namespace step11_deterministic {

using namespace step11;
using step11_columns::kColumns;

// dQ's sums as multiples of a unit of each row. A request of 4 bytes a lane is 128 bytes side by
// side.
struct FixedSums {
  int* sums;           // [B*H * Np / 64, 4, d / 8, 4, 32]
  const float* units;  // [B*H, Np]: units per 1.0

  struct Part {
    int* at;
    float upper, lower;  // units of the lane's rows r, r + 8

    template <int n>
    __device__ void add(const float (&rdQ)[n]) const {
      UNROLL
      for (int i = 0; i < n; ++i) {
        atomicAdd(at + i * fa::kWarp, __float2int_rn(rdQ[i] * (i / 2 % 2 ? lower : upper)));
      }
    }
    __device__ float4 get(int x) const {
      const int* four = at + 4 * x * fa::kWarp;
      const float first = 1.f / upper, second = 1.f / lower;
      return make_float4(float(four[0]) * first, float(four[fa::kWarp]) * first,
                         float(four[2 * fa::kWarp]) * second, float(four[3 * fa::kWarp]) * second);
    }
  };
  template <int d>
  __device__ Part part(int half, int feature = 0) const {
    const int warp = threadIdx.x % kGroupThreads / fa::kWarp, lane = threadIdx.x % fa::kWarp;
    const float* row = units + half * kGroupKeys + warp * 16 + lane / 4;
    const int group = (warp * d + feature) / 8;
    return {sums + size_t(half) * kGroupKeys * d + group * 4 * fa::kWarp + lane, row[0], row[8]};
  }
};

// Eight features: the largest, and the sum.
__device__ inline float max_abs(const bf16* from) {
  __align__(16) bf16 x[8];
  *reinterpret_cast<uint4*>(x) = *reinterpret_cast<const uint4*>(from);
  float largest = 0.f;
  UNROLL
  for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(__bfloat162float(x[i])));
  return largest;
}
__device__ inline float sum_abs(const bf16* from) {
  __align__(16) bf16 x[8];
  *reinterpret_cast<uint4*>(x) = *reinterpret_cast<const uint4*>(from);
  float sum = 0.f;
  UNROLL
  for (int i = 0; i < 8; ++i) sum += fabsf(__bfloat162float(x[i]));
  return sum;
}

// The largest |K_cx| and the largest |V_cx| of 128 keys.
template <int d>
__global__ void bounds_kernel(const bf16* K,   // [B*Hkv, Nk, d]
                              const bf16* V,   // [B*Hkv, Nk, d]
                              float2* bounds,  // [B*Hkv, Tc]
                              int Nk, int Tc) {
  __shared__ float2 of_warps[kRowThreads / fa::kWarp];
  const int bh = blockIdx.x / Tc, key = blockIdx.x % Tc * Bc;
  const size_t first = (size_t(bh) * Nk + key) * d;
  float k = 0.f, v = 0.f;
  for (int x = threadIdx.x * 8; x < min(Bc, Nk - key) * d; x += kRowThreads * 8) {
    k = fmaxf(k, max_abs(K + first + x)), v = fmaxf(v, max_abs(V + first + x));
  }
  k = fa::warp_max(k), v = fa::warp_max(v);
  if (threadIdx.x % fa::kWarp == 0) of_warps[threadIdx.x / fa::kWarp] = make_float2(k, v);
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (const float2& w : of_warps) k = fmaxf(k, w.x), v = fmaxf(v, w.y);
  bounds[blockIdx.x] = make_float2(k, v);
}

// How many units of a row are 1. The largest sum of |dQ_x| over any of the keys is
//     sum_c |dS_c K_cx| = sum_c P_c |dO (V_c - O)| |K_cx| <= 2 |dO|_1 max |V| max |K|,
// because P sums to 1, and O is a mean of V's. Each part and the whole sum fit into an int32, which
// holds 2^31, with room for rounding errors in P, dS and LSE (while |LSE| < 2^20); on the way a sum
// may wrap. A row whose O is NaN becomes NaN, as no integer is. When a K, a V or the bound is inf,
// all rows of the head become NaN.
template <int d>
__global__ void units_kernel(const bf16* dO,        // [B*H, N, d]
                             const bf16* columns,   // [B*H, Np, 8]
                             const float2* bounds,  // [B*Hkv, Tc]
                             float* units,          // [B*H, Np]
                             int N, int Np, int Tc, int group) {
  const RowLanes<d> at(N, Np);
  const float2* of_head = bounds + at.head / group * Tc;
  float k = 0.f, v = 0.f;
  for (int j = at.lane; j < Tc; j += at.kLanes) {
    const float2 largest = of_head[j];
    k = fmaxf(k, largest.x), v = fmaxf(v, largest.y);
  }
  k = fa::warp_max<at.kLanes>(k), v = fa::warp_max<at.kLanes>(v);
  const float length =
      fa::warp_sum<at.kLanes>(at.inside ? sum_abs(dO + at.row * d + at.lane * 8) : 0.f);
  if (at.lane > 0) return;
  const float bound = 2.f * length * v * k;
  const float delta = __bfloat162float(columns[at.padded * kColumns + 3]);  // its first 8 bits
  units[at.padded] = fminf(0x1p30f / bound, 0x1p126f) + 0.f * delta;
}

// --- host ----------------------------------------------------------------------------------------

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  std::vector<fa::Scratch> all = step11_columns::workspace(p);
  all.push_back({"bounds", 8 * size_t(p.kv_heads()) * fa::ceil_div(p.Nk, Bc)});
  all.push_back({"units", 4 * size_t(p.heads()) * padded_rows(p)});
  return all;
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  fa::Prediction t = step11_columns::backward_traffic(p);
  const uint64_t BH = p.heads(), d = p.d, Np = padded_rows(p), Tc = fa::ceil_div(p.Nk, Bc);
  const uint64_t keys = 2 * p.kv_size(), dO = 2 * BH * p.N * d, bounds = 8 * p.kv_heads() * Tc;
  t["K"].read += keys, t["V"].read += keys, t["dO"].read += dO, t["columns"].read += 2 * BH * Np;
  t["bounds"] = {.read = 8 * BH * Np * Tc, .write = bounds};
  // Each of 128 lanes reads those of its two rows: for both parts of each tile of dQ and, at the
  // end, for each of d / 32 parts of 64 rows.
  const int Br = step11_apart::rows_of_a_tile(p);
  const uint64_t tiles = fa::visited_tiles(p, Br, Bc).tiles;
  const uint64_t Nv = uint64_t(fa::ceil_div(p.N, Br)) * Br;
  t["units"] = {.read = 8 * 128 * BH * (tiles * 2 + Np / 64 * (d / 32)), .write = 4 * BH * Np};
  t.hbm.read += 2 * keys + dO + bounds + BH * (6 * Np + 4 * Nv);
  t.hbm.write += bounds + 4 * BH * Np;
  return t;
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    float* units = t.scratch<float>("units");
    float2* bounds = t.scratch<float2>("bounds");
    const FixedSums dQ_sum{t.scratch<int>("dQ_sum"), units};
    const int Tc = fa::ceil_div(p.Nk, Bc);
    step11_columns::launch_columns<d>(p, t);
    fa::launch(bounds_kernel<d>, {dim3(unsigned(Tc * p.kv_heads())), dim3(kRowThreads)}, t.K, t.V,
               bounds, p.Nk, Tc);
    fa::launch(units_kernel<d>, row_blocks(p, d / 8), t.dO, t.scratch<bf16>("columns"), bounds,
               units, p.N, padded_rows(p), Tc, p.H / p.Hkv);
    step11_columns::launch_backward<d>(p, t, dQ_sum);
    launch_convert<d>(p, t, dQ_sum);
  });
}

}  // namespace step11_deterministic

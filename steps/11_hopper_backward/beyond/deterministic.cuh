// Step 11 -- the same bits in each run.
// Idea      dQ depends on the order in which blocks add to it, because each addition of floats
//           rounds. Here each part of a row's dQ is rounded to a multiple of the row's unit before
//           it is added. The additions are then exact, so all orders give the same bits (Demmel and
//           Nguyen, "Fast reproducible floating-point summation", 2013)
// Changed   since 11 3_columns: parts of dQ are rounded before they are added, to units that the
//           third warpgroup reads from the columns: it, too, waits for q_full and arrives at
//           q_empty. A kernel finds bounds before the walk, and the next one also writes units. The
//           warpgroups that own keys are those of 3_columns
// Traffic   as 3_columns; to find the units 2*BHkv*2*Nk*d + 8*BH*Tc*Np + 8*BHkv*Tc B more
// Launch    bounds; units; backward (Tc * B*Hkv), 384 threads; convert
// Owns      as 3_columns
// Still bad an extra kernel before the walk reads K and V again
#pragma once

#include "steps/11_hopper_backward/3_columns.cuh"

namespace step11_deterministic {

using namespace step11;
using step11_columns::Br, step11_columns::Loader, step11_columns::Group, step11_columns::Tiles;
using step11_columns::kColumns, step11_columns::kDsStages, step11_columns::kStages;
using step11_columns::kGroupRegisters, step11_columns::kThirdRegisters, step11_columns::kThreads;

// --- a unit for each row -------------------------------------------------------------------------

// m, 2^23 units of a row: the largest power of 2 that does not exceed 17/16 of the bound
//     sum_c |dS_c K_cx| = sum_c P_c |dO (V_c - O)| |K_cx| <= |dO| max_c |V_c| max |K|
// (docs/mathematics.md), so all sums stay below 2^24 units. The sixteenth covers errors of P, dS
// and O, and the rounding of parts. This holds for |dO| and |V_c| from 2^-60 to 2^64, |LSE| below
// 10^5 and bounds below 2^126. If the bound is larger, or K or V has an inf, m is 2^-100, the
// least, and sums round as in 3_columns. m must be finite: S and dP multiply it, as two bf16, by 0.
__device__ inline float units_of(float bound) {
  const float above = bound < 0x1p126f ? fmaxf(bound * 1.0625f, 0x1p-100f) : 0x1p-100f;
  return __uint_as_float(__float_as_uint(above) & 0x7f800000);
}

__device__ inline void load_eight(const bf16* from, float (&x)[8]) {
  __align__(16) bf16 packed[8];
  *reinterpret_cast<uint4*>(packed) = *reinterpret_cast<const uint4*>(from);
  UNROLL
  for (int i = 0; i < 8; ++i) x[i] = __bfloat162float(packed[i]);
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

// As put_columns() of 3_columns, with the float m in the last two columns, the place of two bf16.
__device__ inline void put_columns(bf16* to, float scaled_lse, float delta, float units) {
  __align__(16) bf16 row[kColumns];
  step11_columns::split(scaled_lse == -INFINITY ? -1e30f : -scaled_lse, row);
  step11_columns::split(-delta, row + 3);
  *reinterpret_cast<float*>(row + 6) = units;
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(row);
}

// As columns_kernel, with each row's m in the last two columns.
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
  put_columns(columns + at.padded * kColumns, at.lse(LSE) / scale, delta,
              units_of(sqrtf(squares) * length * k));
}

// --- dQ of whole units ---------------------------------------------------------------------------

// m of the lane's two rows of the 64 whose columns these are.
__device__ inline float2 units_of_rows(const bf16* columns) {
  const int row = threadIdx.x % kGroupThreads / fa::kWarp * 16 + threadIdx.x % fa::kWarp / 4;
  const bf16* last = columns + row * kColumns + 6;
  return {*reinterpret_cast<const float*>(last),
          *reinterpret_cast<const float*>(last + 8 * kColumns)};
}

// With x's sign |x + m| is at least 2^23 units, so the addition rounds to whole units. units: m.
template <int n>
__device__ inline void round_to_units(const float (&rdQ)[n], const float2& units,
                                      float (&rounded)[n]) {
  UNROLL
  for (int i = 0; i < n; ++i) {
    const float m = copysignf(fa::half_of(i) ? units.y : units.x, rdQ[i]);
    rounded[i] = rdQ[i] + m - m;  // not simplified: C++ does not reassociate floats
  }
}

// As 3_columns'. A complete dS of a tile means that the previous tile has been read, except perhaps
// by the other warps here, which read m.
template <int d>
__device__ inline void multiply_rounded_dq(Tiles<d>& smem, const Shape& shape, const WorkTile& work,
                                           const Loader<d>& loader, const FloatSums& dQ_sum) {
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
  fa::mbarrier_wait(&smem.k_full, 0);
  const uint64_t first_k = tile_descriptor(smem.K[0]), first_ds = tile_descriptor(smem.dS[0]);
  UNROLL_BY(1)
  for (unsigned n = 0; n < tiles; ++n, at.next(work, shape.Tr)) {
    const unsigned stage = n % kDsStages;
    const uint64_t k = first_k + (n >> 31);  // + 0: see Group::zero()
    const uint64_t ds = first_ds + stage * (sizeof smem.dS[0] >> 4);
    fa::mbarrier_wait(&smem.ds_full[stage], n / kDsStages & 1);
    constexpr int kParts = 2;  // d = 64: of rows; d = 128: of features
    UNROLL_BY(1)
    for (int part = 0; part < kParts; ++part) {
      const int rows = d == 64 ? part : 0, features = d == 64 ? 0 : part;  // in units of 64
      float rdQ[kPanel / 2];
      multiply_transposed<d, Bc>(ds + (rows * Bc * kRowBytes >> 4),
                                 k + (features * kGroupKeys * kRowBytes >> 4), rdQ);
      if (part == 0 && thread == 0 && n > 0 && n - 1 + kStages < tiles) {
        loader.load_rows(n - 1 + kStages, ahead);
        ahead.next(work, shape.Tr);
      }
      __syncwarp();
      const int half = (at.head * shape.Np + at.i * Br<d>) / 64 + rows;
      const auto dQ_part = dQ_sum.part<d>(half, features * 64);
      // Never blocks, as ds_full completes later: it makes TMA's writes visible to this thread.
      if (part == 0) fa::mbarrier_wait(&smem.q_full[n % kStages], n / kStages & 1);
      const float2 units = units_of_rows(smem.columns[n % kStages] + rows * 64 * kColumns);
      __syncwarp();  // all lanes have read m
      if (part == kParts - 1 && lane == 0) fa::mbarrier_arrive(&smem.q_empty[n % kStages]);
      fa::wgmma_wait<0>();  // the lanes of a warp wait together: no __syncwarp() below
      fa::pin_registers(rdQ);
      if (part == kParts - 1 && lane == 0) fa::mbarrier_arrive(&smem.ds_empty[stage]);
      float rounded[kPanel / 2];
      round_to_units(rdQ, units, rounded);
      dQ_part.add(rounded);
    }
  }
}

template <int d>
__global__ void __launch_bounds__(kThreads, 1)
    backward_kernel(const __grid_constant__ fa::TensorMap Q,   // [B*H, N, d], boxes of Br rows
                    const __grid_constant__ fa::TensorMap K,   // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap V,   // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap dO,  // [B*H, N, d], of Br
                    const __grid_constant__ fa::TensorMap dK,  // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap dV,  // [B*Hkv, Nk, d], of 64
                    const bf16* columns,                       // [B*H, Np, 8]
                    FloatSums dQ_sum, Shape shape) {
  Tiles<d>& smem = *fa::dynamic_shared<Tiles<d>>();
  if (threadIdx.x == 0) {
    constexpr int kGroupWarps = kGroupThreads / fa::kWarp, kWarps = kGroups * kGroupWarps;
    fa::mbarrier_init(&smem.k_full, 1), fa::mbarrier_init(&smem.v_full, 1);
    // q_empty: 12 warps, since those of the third warpgroup read the columns.
    init_mbarriers(smem.q_full, 1), init_mbarriers(smem.q_empty, kWarps + kGroupWarps);
    init_mbarriers(smem.do_full, 1), init_mbarriers(smem.do_empty, kWarps);
    init_mbarriers(smem.ds_full, kWarps), init_mbarriers(smem.ds_empty, kGroupWarps);
    fa::mbarrier_init_fence();
  }
  __syncthreads();  // all threads see the barriers
  const WorkTile work = work_tile_at(blockIdx.x, shape, Br<d>);
  const int wg = __shfl_sync(fa::kFullMask, threadIdx.x / kGroupThreads, 0);
  if (wg == kGroups) {
    fa::setmaxnreg_dec<kThirdRegisters<d>>();
    const Loader<d> loader{smem, &Q, &K, &V, &dO, columns, work, shape.Np};
    multiply_rounded_dq<d>(smem, shape, work, loader, dQ_sum);
  } else {
    fa::setmaxnreg_inc<kGroupRegisters<d>>();
    if (wg == 0) {
      Group<d, 0>(smem, shape, work).run(&dK, &dV);
    } else {
      Group<d, 1>(smem, shape, work).run(&dK, &dV);
    }
  }
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
    const Shape shape = shape_of(p, Br<d>);
    const auto rows = [&](const bf16* x) { return map_of_rows<d>(p, x, Br<d>); };
    const auto keys = [&](const bf16* x) { return map_of_keys<d>(p, x); };
    float2* bounds = t.scratch<float2>("bounds");
    bf16* columns = t.scratch<bf16>("columns");
    float* sums = t.scratch<float>("dQ_sum");
    fa::launch(bounds_kernel<d>, {work_tiles(shape), dim3(kRowThreads)}, t.K, t.V, bounds, p.Nk,
               shape.Tc);
    fa::launch(units_kernel<d>, row_blocks(p, d / 8), t.O, t.dO, t.LSE, bounds, columns, sums, p.N,
               shape.Np, shape.Tc, shape.group, p.scale());
    fa::launch(backward_kernel<d>, {work_tiles(shape), dim3(kThreads), sizeof(Tiles<d>)}, rows(t.Q),
               keys(t.K), keys(t.V), rows(t.dO), keys(t.dK), keys(t.dV), columns, FloatSums{sums},
               shape);
    launch_convert<d>(p, t);
  });
}

}  // namespace step11_deterministic

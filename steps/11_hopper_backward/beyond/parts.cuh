// Step 11 beyond: 3_columns' kernel, whose comments are not repeated, for any sums of dQ.
// Sums      part(tiles, n, part, half, feature) gives what adds 64 rows by 64 features of the n-th
//           tile; the other members are called at the ends of a walk
#pragma once

#include "steps/11_hopper_backward/3_columns.cuh"

namespace step11_sums {

using namespace step11;
using step11_columns::Br, step11_columns::Loader, step11_columns::Group, step11_columns::Tiles;
using step11_columns::kColumns, step11_columns::kDsStages, step11_columns::kStages;
using step11_columns::kGroupRegisters, step11_columns::kThirdRegisters, step11_columns::kThreads;

// Rounds and stores a lane's dQ, of rows r and r + 8. to: row r, feature 8 (lane % 4).
template <int d, int n>
__device__ inline void store_rounded(const float (&rdQ)[n], float scale, bf16* to, int r, int N) {
  UNROLL
  for (int x = 0; x < n / 4; x += 4) {
    float4 four[4];
    UNROLL
    for (int i = 0; i < 4; ++i) {
      const float* sum = rdQ + 4 * (x + i);
      four[i] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    }
    fa::put_rounded<d>(four, scale, to + 8 * x, r, N);
  }
}

// Sums that need nothing at a walk's ends.
struct Plain {
  using Tile = RowTile;                         // the order of a walk's tiles
  static constexpr bool kReadsColumns = false;  // by the third warpgroup, which then releases Q
  static constexpr bool kIdles = false;         // whether a warpgroup 1 without a key runs idle()
  template <class Sums>
  __device__ static const Sums& of_walk(const Sums& all, const Shape&, const WorkTile&) {
    return all;
  }
  __device__ void end_walk(const Shape&, const WorkTile&) const {}
  template <int n>
  __device__ void round(const Shape&, const WorkTile&, bf16 (&)[n]) const {}
};

template <int d, class Sums>
__device__ inline void multiply_dq(Tiles<d>& smem, const Shape& shape, const WorkTile& work,
                                   const Loader<d>& loader, const Sums& sums) {
  const int thread = threadIdx.x % kGroupThreads, lane = thread % fa::kWarp;
  const unsigned tiles = shape.group * (shape.Tr - work.first);
  typename Sums::Tile at{work, shape}, ahead = at;  // ahead: the next tile to copy
  if (thread == 0) {
    load_keys(smem.K, &smem.k_full, loader.K, work);
    UNROLL_BY(1)
    for (unsigned i = 0; i < min(tiles, unsigned(kStages)); ++i, ahead.next(work, shape)) {
      loader.load_rows(i, ahead);
    }
  }
  __syncwarp();
  const auto& dQ_sum = Sums::of_walk(sums, shape, work);
  fa::mbarrier_wait(&smem.k_full, 0);
  const uint64_t first_k = tile_descriptor(smem.K[0]), first_ds = tile_descriptor(smem.dS[0]);
  UNROLL_BY(1)
  for (unsigned n = 0; n < tiles; ++n, at.next(work, shape)) {
    const unsigned stage = n % kDsStages;
    const uint64_t k = first_k + (n >> 31);
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
        ahead.next(work, shape);
      }
      __syncwarp();
      const int half = (at.head * shape.Np + at.i * Br<d>) / 64 + rows;
      const auto dQ_part = dQ_sum.part(smem, n, part, half, features * 64);
      wait_for<0>(rdQ);
      if (part == kParts - 1 && lane == 0) fa::mbarrier_arrive(&smem.ds_empty[stage]);
      dQ_part.add(rdQ);
    }
  }
}

// Warpgroup 1 where its keys are past the last: its dS is 0. It arrives where the other does, but
// does not wait for Q and dO: ds_empty of tile n needs warpgroup 0's dS of tile n - 2, signalled
// after it has released the stages of tile n - 3.
template <int d>
__device__ inline void idle(Tiles<d>& smem, unsigned tiles) {
  constexpr int kPanels = Br<d> / 64, kVectors = kGroupKeys * kPanel / 8;
  for (int panel = 0; panel < kDsStages * kPanels; ++panel) {
    uint4* dS = reinterpret_cast<uint4*>(smem.dS[0] + (panel * Bc + kGroupKeys) * kPanel);
    for (int i = threadIdx.x % kGroupThreads; i < kVectors; i += kGroupThreads) {
      dS[i] = make_uint4(0, 0, 0, 0);
    }
  }
  fa::fence_proxy_async();  // wgmma sees this thread's zeros
  UNROLL_BY(1)
  for (unsigned n = 0; n < tiles; ++n) {
    fa::mbarrier_wait(&smem.ds_empty[n % kDsStages], (n / kDsStages & 1) ^ 1);
    warp_arrive(&smem.q_empty[n % kStages]), warp_arrive(&smem.do_empty[n % kStages]);
    warp_arrive(&smem.ds_full[n % kDsStages]);
  }
}

template <int d, class Sums>
__global__ void __launch_bounds__(kThreads, 1)
    backward_kernel(const __grid_constant__ fa::TensorMap Q,   // [B*H, N, d], boxes of Br rows
                    const __grid_constant__ fa::TensorMap K,   // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap V,   // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap dO,  // [B*H, N, d], of Br
                    const __grid_constant__ fa::TensorMap dK,  // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap dV,  // [B*Hkv, Nk, d], of 64
                    const bf16* columns,                       // [B*H, Np, 8]
                    Sums dQ_sum, Shape shape) {
  Tiles<d>& smem = *fa::dynamic_shared<Tiles<d>>();
  if (threadIdx.x == 0) {
    constexpr int kGroupWarps = kGroupThreads / fa::kWarp, kWarps = kGroups * kGroupWarps;
    fa::mbarrier_init(&smem.k_full, 1), fa::mbarrier_init(&smem.v_full, 1);
    init_mbarriers(smem.q_full, 1);
    init_mbarriers(smem.q_empty, kWarps + (Sums::kReadsColumns ? kGroupWarps : 0));
    init_mbarriers(smem.do_full, 1), init_mbarriers(smem.do_empty, kWarps);
    init_mbarriers(smem.ds_full, kWarps), init_mbarriers(smem.ds_empty, kGroupWarps);
    fa::mbarrier_init_fence();
  }
  __syncthreads();     // all threads see the barriers
  fa::griddep_wait();  // launched early: what the preceding kernel wrote is visible
  const WorkTile work = work_tile_at(blockIdx.x, shape, Br<d>);
  const int wg = fa::uniform(threadIdx.x / kGroupThreads);
  if (wg == kGroups) {
    fa::setmaxnreg_dec<kThirdRegisters<d>>();
    const Loader<d> loader{smem, &Q, &K, &V, &dO, columns, work, shape.Np};
    multiply_dq<d>(smem, shape, work, loader, dQ_sum);
    dQ_sum.end_walk(shape, work);
  } else {
    fa::setmaxnreg_inc<kGroupRegisters<d>>();
    if (wg == 0) {
      Group<d, 0, typename Sums::Tile>(smem, shape, work).run(&dK, &dV);
    } else if (Sums::kIdles && work.j * Bc + kGroupKeys >= shape.Nk) {
      idle<d>(smem, shape.group * (shape.Tr - work.first));
    } else {
      Group<d, 1, typename Sums::Tile>(smem, shape, work).run(&dK, &dV);
    }
    dQ_sum.round(shape, work, smem.Q[0]);
  }
}

template <int d, class Sums>
void launch_backward(const fa::Problem& p, const fa::Tensors<bf16>& t, const Sums& dQ_sum) {
  const Shape shape = shape_of(p, Br<d>);
  launch_mapped<d, true>(backward_kernel<d, Sums>,
                         {work_tiles(shape), dim3(kThreads), sizeof(Tiles<d>)}, p, t, Br<d>,
                         t.template scratch<bf16>("columns"), dQ_sum, shape);
}

// 3_columns' convert_kernel, launched early.
template <int d>
__global__ void convert_kernel(FloatSums dQ_sum, bf16* dQ, int N, int Tr, float scale) {
  fa::griddep_wait();
  convert<d>(dQ_sum, dQ, N, Tr, scale);
}
template <int d>
void launch_convert(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::launch_early(convert_kernel<d>, row_blocks(p, d / 16), FloatSums{t.scratch<float>("dQ_sum")},
                   t.dQ, p.N, padded_rows(p) / step11::Br, p.scale());
}

// 3_columns, whose kernels are prepared while the preceding one runs.
struct AddedSums : Plain {
  FloatSums sums;
  template <int d>
  __device__ FloatSums::Part part(const Tiles<d>&, unsigned, int, int half, int feature) const {
    return sums.part<d>(half, feature);
  }
};
// Without the mask, and with at most 64 keys in the last tile. A kernel of its own: where no
// warpgroup is idle, and with the mask, the branch costs 0.5 to 0.8% (measured).
struct IdleSums : AddedSums {
  static constexpr bool kIdles = true;
};
inline bool idles(const fa::Problem& p) { return !p.causal && (p.Nk - 1) % Bc < kGroupKeys; }

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  fa::Prediction t = step11_columns::backward_traffic(p);
  const uint64_t rows = step11_columns::rows_of_a_tile(p), tiles = fa::ceil_div(p.N, int(rows));
  if (idles(p)) t.flops -= tiles * rows * p.heads() * kGroupKeys * (8 * p.d + 4 * kMma);
  return t;
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    const AddedSums sums{{}, {t.scratch<float>("dQ_sum")}};
    step11_columns::launch_columns<d>(p, t);
    idles(p) ? launch_backward<d>(p, t, IdleSums{sums}) : launch_backward<d>(p, t, sums);
    launch_convert<d>(p, t);
  });
}

}  // namespace step11_sums

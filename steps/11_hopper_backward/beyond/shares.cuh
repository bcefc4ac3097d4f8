// Step 11 -- few heads of K: several blocks for a walk.
// Idea      Where many heads share K, walks are long and few: SMs idle, and walks of different
//           lengths drift apart until their Q, dO and dQ do not fit the L2. A block walks some of a
//           group's heads only
// Changed   since 11 3_columns: a walk's heads; dK and dV are added to sums, as dQ is
// Traffic   as 3_columns, but K and V are copied for each share, and dK and dV added to sums
// Launch    columns; backward (shares * Tc * B*Hkv), 384 threads; convert dQ, and dK and dV
// Owns      block: a share of the walk of 128 keys
// Still bad a share adds 1 KB per key: where walks are many, more than it gains
#pragma once

#include "steps/11_hopper_backward/beyond/parts.cuh"

namespace step11_shares {

using namespace step11_columns;
using step11_columns::Br;

// dK and dV of all shares.
struct KeySums {
  FloatSums dK, dV;  // [B*Hkv, Nkp / 64, ...]
  int Nkp;           // Nk in whole tiles of 128
};

template <int d, int wg>
__device__ inline void walk(Tiles<d>& smem, const Shape& shape, const WorkTile& work,
                            const KeySums& sums) {
  Group<d, wg> group(smem, shape, work);
  group.walk();
  const int half = (work.bh_kv * sums.Nkp + group.key) / kGroupKeys;
  sums.dV.part<d>(half).add(group.rdV);
  wait_for<0>(group.rdK);
  sums.dK.part<d>(half).add(group.rdK);
}

template <int d>
__global__ void __launch_bounds__(kThreads, 1)
    shares_kernel(const __grid_constant__ fa::TensorMap Q,   // [B*H, N, d], boxes of Br rows
                  const __grid_constant__ fa::TensorMap K,   // [B*Hkv, Nk, d], of 64
                  const __grid_constant__ fa::TensorMap V,   // [B*Hkv, Nk, d], of 64
                  const __grid_constant__ fa::TensorMap dO,  // [B*H, N, d], of Br
                  const __grid_constant__ fa::TensorMap,     // dK
                  const __grid_constant__ fa::TensorMap,     // dV
                  const bf16* columns,                       // [B*H, Np, 8]
                  FloatSums dQ_sum, KeySums key_sums,
                  Shape shape,  // a share as a head of K and V
                  int shares) {
  Tiles<d>& smem = *fa::dynamic_shared<Tiles<d>>();
  if (threadIdx.x == 0) {
    constexpr int kGroupWarps = kGroupThreads / fa::kWarp, kWarps = kGroups * kGroupWarps;
    fa::mbarrier_init(&smem.k_full, 1), fa::mbarrier_init(&smem.v_full, 1);
    init_mbarriers(smem.q_full, 1), init_mbarriers(smem.q_empty, kWarps);
    init_mbarriers(smem.do_full, 1), init_mbarriers(smem.do_empty, kWarps);
    init_mbarriers(smem.ds_full, kWarps), init_mbarriers(smem.ds_empty, kGroupWarps);
    fa::mbarrier_init_fence();
  }
  __syncthreads();     // all threads see the barriers
  fa::griddep_wait();  // launched early: what the preceding kernel wrote is visible
  WorkTile work = work_tile_at(blockIdx.x, shape, Br<d>);
  work.bh_kv /= shares;
  const int wg = fa::uniform(threadIdx.x / kGroupThreads);
  if (wg == kGroups) {
    fa::setmaxnreg_dec<kThirdRegisters<d>>();
    const Loader<d> loader{smem, &Q, &K, &V, &dO, columns, work, shape.Np};
    multiply_dq<d>(smem, shape, work, loader, dQ_sum);
  } else {
    fa::setmaxnreg_inc<kGroupRegisters<d>>();
    wg == 0 ? walk<d, 0>(smem, shape, work, key_sums) : walk<d, 1>(smem, shape, work, key_sums);
  }
}

// As convert_kernel: dK (blockIdx.y = 0) and dV. Leaves zeros for the next launch.
template <int d>
__global__ void convert_keys_kernel(KeySums sums, bf16* dK, bf16* dV, int Nk, float scale) {
  fa::griddep_wait();
  constexpr int kParts = d / 32;
  const int v = blockIdx.x * kRowThreads + threadIdx.x;
  const int thread = v % kGroupThreads, part = v / kGroupThreads % kParts;
  const int half = v / (kGroupThreads * kParts), halves = sums.Nkp / kGroupKeys;
  const int warp = thread / fa::kWarp, lane = thread % fa::kWarp, quad = lane % 4;
  const auto from = (blockIdx.y == 0 ? sums.dK : sums.dV).template part<d>(half);
  float4 four[4];
  UNROLL
  for (int x = 0; x < 4; ++x) {
    four[x] = from.get(part * 4 + x);
    reinterpret_cast<float4*>(from.at)[(part * 4 + x) * fa::kWarp] =
        make_float4(0.f, 0.f, 0.f, 0.f);
  }
  uint32_t low[4], high[4];  // key r, key r + 8
  fa::round_features(four, blockIdx.y == 0 ? scale : 1.f, quad, low, high);
  const int r = half % halves * kGroupKeys + warp * 16 + fa::row_of(lane);
  bf16* to = (blockIdx.y == 0 ? dK : dV) + (size_t(half / halves) * Nk + r) * d;
  fa::store_features<d>(low, high, to + (part * 4 + quad) * 8, r, Nk);
}

// --- host ----------------------------------------------------------------------------------------

inline int padded_keys(const fa::Problem& p) { return fa::ceil_div(p.Nk, Bc) * Bc; }

// As many as make a walk for each SM, and with the mask eight, whose lengths differ.
inline int shares_of(const fa::Problem& p) {
  const int walks = fa::ceil_div(p.Nk, Bc) * int(p.kv_heads()), group = p.H / p.Hkv;
  if (walks > 2 * p.gpu.sms) return 1;
  int shares = group;
  while (shares > 1 && (group % shares != 0 || walks * shares > (p.causal ? 8 : 1) * p.gpu.sms)) {
    --shares;
  }
  return shares;
}
// Measured from 16 heads of 2,048 rows, and 32 of 4,096.
inline bool pays(const fa::Problem& p) {
  return p.d != 256 && p.H / p.Hkv * p.N >= 16384 && shares_of(p) > 1;
}

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  std::vector<fa::Scratch> all = step11_columns::workspace(p);
  for (const char* name : {"dK_sum", "dV_sum"}) {
    all.push_back({name, 4 * p.kv_heads() * padded_keys(p) * p.d, /*zeroed=*/true});
  }
  return all;
}

// Its shares as heads of K and V.
inline fa::Problem of_shares(fa::Problem p) {
  p.Hkv *= shares_of(p);
  return p;
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  fa::Prediction t = step11_columns::backward_traffic(p);
  const int rows = rows_of_a_tile(p);
  const uint64_t skipped = skipped_scores(of_shares(p), rows) - skipped_scores(p, rows);
  t.flops -= skipped * (8 * p.d + 4 * kMma);
  const uint64_t shares = shares_of(p), sums = 4 * p.kv_heads() * padded_keys(p) * p.d;
  for (const char* name : {"K", "V"}) t[name].read *= shares;
  for (const char* name : {"dK_sum", "dV_sum"}) {
    t[name] = {.read = sums, .write = sums, .atomic = shares * sums};
    t.hbm += {.read = 2 * sums, .write = 2 * sums};
  }
  return t;
}

template <int d>
void launch(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const Shape shape = shape_of(of_shares(p), Br<d>);
  const KeySums sums{{t.scratch<float>("dK_sum")}, {t.scratch<float>("dV_sum")}, padded_keys(p)};
  launch_columns<d>(p, t);
  launch_mapped<d, true>(shares_kernel<d>, {work_tiles(shape), dim3(kThreads), sizeof(Tiles<d>)}, p,
                         t, Br<d>, t.scratch<bf16>("columns"),
                         FloatSums{t.scratch<float>("dQ_sum")}, sums, shape, shares_of(p));
  step11_sums::launch_convert<d>(p, t);
  const unsigned keys = p.kv_heads() * sums.Nkp;
  fa::launch_early(convert_keys_kernel<d>,
                   {dim3(keys * (d / 16) / kRowThreads, 2), dim3(kRowThreads)}, sums, t.dK, t.dV,
                   p.Nk, p.scale());
}
inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::dispatch_d<64, 128>(p.d, [&](auto d) { launch<d>(p, t); });
}

}  // namespace step11_shares

// Step 12 -- what its two attention kernels share: products of 8-bit operands, and the roles around
//            the consumers.
// Changed   since 10 4_scheduled: operands of 1 byte in panels, 32 deep; V^T; P packed to bytes; O
//           with V's scales and means, stored from a buffer of its own, twice as large as Q's
#pragma once

#include "common/dialect/ptx/fp8.h"
#include "common/dialect/scheduler.h"
#include "common/dialect/softmax.h"
#include "common/harness/step.h"
#include "steps/10_warp_specialized/4_scheduled.cuh"  // its scheduler, as a whole
#include "steps/10_warp_specialized/parts.cuh"

namespace step12 {

using fa::arrive, fa::bf16, fa::init_mbarriers, fa::kGroupThreads, fa::release, fa::Ring;
using fa::first_max, fa::needs_rescale, fa::rescale, fa::skip, fa::update_max, fa::wait_for;
using step10::dispatch_over, step10::kGroupRows, step10::mask, step10::Shape, step10::tiles_for;
using step10::visible, step10::WorkTile;

// --- products ------------------------------------------------------------------------------------

constexpr int kK = 32;  // keys or features of one wgmma

// Bytes per row of a tile's panels, swizzled by TMA: features of Q and K, keys of V^T.
template <int d>
constexpr int kFeatures = d < 128 ? d : 128;
template <int Bc>
constexpr int kKeys = Bc % 128 == 0  ? 128
                      : Bc % 64 == 0 ? 64
                                     : 32;
template <int panel>
__device__ inline uint64_t tile_descriptor(const uint8_t* tile) {
  return fa::wgmma_descriptor(tile, fa::Swizzle(panel), 16, 8 * panel);
}

template <class T>
__device__ inline void multiply_scores(uint64_t Q, uint64_t K, float (&rS)[T::Bc / 2]) {
  constexpr int kPanel = kFeatures<T::d>;
  fa::wgmma_fence();
  UNROLL
  for (int x = 0; x < T::d; x += kK) {
    const int panel = x / kPanel, inside = x % kPanel;
    fa::wgmma_e4m3(rS, fa::wgmma_advance(Q, panel * kGroupRows * kPanel + inside),
                   fa::wgmma_advance(K, panel * T::Bc * kPanel + inside), x > 0);
  }
  fa::wgmma_commit();
}

template <class T>
__device__ inline void multiply_values(const uint32_t (&rP)[T::Bc / kK][4], uint64_t V,
                                       float (&rO)[T::d / 2]) {
  constexpr int kPanel = kKeys<T::Bc>;
  fa::wgmma_fence();
  UNROLL
  for (int c = 0; c < T::Bc; c += kK) {
    const int panel = c / kPanel, inside = c % kPanel;
    fa::wgmma_e4m3(rO, rP[c / kK], fa::wgmma_advance(V, panel * T::d * kPanel + inside));
  }
  fa::wgmma_commit();
}

// P in e4m3, as the A operand of the next product, with keys in the order of 1_quantise's key_at.
template <int n>
__device__ inline void pack_operand(const float (&rS)[n], uint32_t (&rP)[n / 16][4]) {
  UNROLL
  for (int c = 0; c < n / 16; ++c) {
    UNROLL
    for (int e = 0; e < 4; ++e) {
      const int i = 16 * c + 8 * (e / 2) + 2 * (e % 2);
      rP[c][e] = fa::pack_e4m3(rS[i], rS[i + 1], rS[i + 4], rS[i + 5]);
    }
  }
  UNROLL
  for (int c = 0; c < n / 16; ++c) fa::pin_registers(rP[c]);
}

// --- O -------------------------------------------------------------------------------------------

// Stores rO times V's scales and `normalise` of its row, plus V's mean times `seen`, in bf16 as TMA
// reads it: panels of 64 features. scale, mean: of this lane's first feature.
template <int d>
__device__ inline void put_rows(const float (&rO)[d / 2], const float (&normalise)[2],
                                const float (&seen)[2], const float* scale, const float* mean,
                                bf16* tile) {
  constexpr int kPanel = 64;
  const int r = threadIdx.x % kGroupThreads / fa::kWarp * 16 + threadIdx.x % 16;
  const int half = threadIdx.x % fa::kWarp / 16;
  UNROLL
  for (int x = 0; x < d; x += 16) {
    uint32_t o[4];
    UNROLL
    for (int e = 0; e < 4; e += 2) {
      const float2 s = *reinterpret_cast<const float2*>(scale + x + 4 * e);
      const float2 m = *reinterpret_cast<const float2*>(mean + x + 4 * e);
      UNROLL
      for (int h = 0; h < 2; ++h) {
        const int i = x / 2 + 2 * (e + h);
        o[e + h] = fa::pack_bf16(fmaf(rO[i] * normalise[h], s.x, m.x * seen[h]),
                                 fmaf(rO[i + 1] * normalise[h], s.y, m.y * seen[h]));
      }
    }
    const int chunk = (x % kPanel / 8 + half) ^ r % 8;
    fa::stmatrix_x4(tile + (x / kPanel * kGroupRows + r) * kPanel + chunk * 8, o);
  }
}

// --- shared memory and work tiles ----------------------------------------------------------------

template <class T>
struct alignas(1024) Tiles {
  uint8_t Q[2][T::kConsumers][kGroupRows * T::d];  // of this work tile and the next
  uint8_t K[T::kStages][T::Bc * T::d];
  uint8_t V[T::kStages][T::d * T::Bc];
  bf16 O[T::kConsumers][kGroupRows * T::d];
  uint64_t q_full[2][T::kConsumers], q_empty[2][T::kConsumers];
  uint64_t o_full[T::kConsumers], o_empty[T::kConsumers];
  uint64_t k_full[T::kStages], k_empty[T::kStages], v_full[T::kStages], v_empty[T::kStages];
  WorkTile work[2][T::kConsumers];  // copied with Q
};

template <class T>
__device__ inline void init_barriers(Tiles<T>& smem) {
  constexpr int kGroupWarps = kGroupThreads / fa::kWarp, kWarps = T::kConsumers * kGroupWarps;
  for (int b = 0; b < 2; ++b)
    init_mbarriers(smem.q_full[b], 1), init_mbarriers(smem.q_empty[b], 1 + kGroupWarps);
  init_mbarriers(smem.o_full, kGroupWarps), init_mbarriers(smem.o_empty, 1);
  init_mbarriers(smem.k_full, 1), init_mbarriers(smem.k_empty, kWarps);
  init_mbarriers(smem.v_full, 1), init_mbarriers(smem.v_empty, kWarps);
  fa::mbarrier_init_fence();
}

// The factors of the numbers of Q8, K8 and V8, and the means that V8 lacks.
struct Scales {
  const float* Q;     // [B*H, ceil(N / 64)]
  const float* K;     // [B*Hkv, ceil(Nk / Bc)]
  const float* V;     // [B*Hkv, d]
  const float* mean;  // [B*Hkv, d]
};

// The index of the scale of a warpgroup's rows, all of which may be past the last one.
__device__ inline int query_block(const Shape& shape, const WorkTile& work) {
  const int blocks = (shape.N + kGroupRows - 1) / kGroupRows;
  return work.bh * blocks + min(work.row / kGroupRows, blocks - 1);
}

// Causal: heads whose work tiles are mixed, chosen by measurement.
template <class T>
constexpr int kSection = 4096 / T::d;

// --- the producer: one thread copies -------------------------------------------------------------

template <class T>
__device__ inline void produce(Tiles<T>& smem, const fa::TensorMap* Q, const fa::TensorMap* K,
                               const fa::TensorMap* V, const Shape& shape, unsigned* taken) {
  Ring<T::kStages> k, v;
  const auto load_k = [&](int j, int bh) {
    fa::mbarrier_wait(&smem.k_empty[k.stage], k.parity ^ 1);
    fa::mbarrier_arrive_expect_tx(&smem.k_full[k.stage], sizeof smem.K[0]);
    fa::tma_load(smem.K[k.stage], K, &smem.k_full[k.stage], {0, j * T::Bc, 0, bh});
    k.next();
  };
  const auto load_v = [&](int j, int bh) {
    fa::mbarrier_wait(&smem.v_empty[v.stage], v.parity ^ 1);
    fa::mbarrier_arrive_expect_tx(&smem.v_full[v.stage], sizeof smem.V[0]);
    fa::tma_load(smem.V[v.stage], V, &smem.v_full[v.stage], {0, 0, j * (T::Bc / kKeys<T::Bc>), bh});
    v.next();
  };
  for (int n = 0, t = blockIdx.x;; ++n) {
    const int b = n % 2;
    const WorkTile work = step10::scheduled<T>(t, shape, kSection<T>);
    if (work.tiles > 0) load_k(work.tiles - 1, work.bh_kv);
    for (int wg = 0; wg < T::kConsumers; ++wg) {
      fa::mbarrier_wait(&smem.q_empty[b][wg], (n / 2 & 1) ^ 1);
      smem.work[b][wg] = work;
      if (work.tiles > 0) {
        fa::mbarrier_arrive_expect_tx(&smem.q_full[b][wg], sizeof smem.Q[b][wg]);
        fa::tma_load(smem.Q[b][wg], Q, &smem.q_full[b][wg],
                     {0, work.row + wg * kGroupRows, 0, work.bh});
      } else {
        fa::mbarrier_arrive(&smem.q_full[b][wg]);
      }
    }
    if (work.tiles == 0) break;
    t = gridDim.x + (T::kCausal ? atomicAdd(&taken[0], 1u) : t);
    for (int j = work.tiles - 1; j >= 0; --j) {
      if (j > 0) load_k(j - 1, work.bh_kv);
      load_v(j, work.bh_kv);
    }
  }
  if (T::kCausal) fa::leave(taken);
}

// --- another thread of its warpgroup stores ------------------------------------------------------

// A buffer of Q is free when its consumer has multiplied it and this thread has read its work tile.
template <class T>
__device__ inline void store(Tiles<T>& smem, const fa::TensorMap* O) {
  for (int n = 0;; ++n) {
    const int b = n % 2;
    for (int wg = 0; wg < T::kConsumers; ++wg) {
      fa::mbarrier_wait(&smem.q_full[b][wg], n / 2 & 1);
      const WorkTile work = smem.work[b][wg];
      if (work.tiles == 0) return;
      fa::mbarrier_arrive(&smem.q_empty[b][wg]);
      fa::mbarrier_wait(&smem.o_full[wg], n & 1);
      fa::tma_store(O, smem.O[wg], {0, work.row + wg * kGroupRows, 0, work.bh});
      fa::tma_store_commit();
      fa::tma_store_wait_read<0>();
      fa::mbarrier_arrive(&smem.o_empty[wg]);
    }
  }
}

// --- host ----------------------------------------------------------------------------------------

// Keys of a head in V8: whole tiles of the kernel that transposes V.
inline uint64_t stored_keys(const fa::Problem& p) { return fa::ceil_div(p.Nk, 128) * 128; }

template <class T, class Kernel, class KernelScales>
void launch_forward(Kernel kernel, const fa::Problem& p, const fa::Tensors<bf16>& t,
                    const KernelScales& scales) {
  constexpr uint32_t d = T::d, kQ = kFeatures<d>, kV = kKeys<T::Bc>;
  const uint64_t BH = p.heads(), BHkv = p.kv_heads(), N = p.N, Nk = p.Nk, Nkp = stored_keys(p);
  const auto rows = [&](const char* name, uint64_t heads, uint64_t n, uint32_t box) {
    return fa::tensor_map(t.template scratch<uint8_t>(name),
                          {{kQ, 1, kQ}, {n, d, box}, {d / kQ, kQ, d / kQ}, {heads, n * d, 1}},
                          fa::Swizzle(kQ));
  };
  const auto V = fa::tensor_map(
      t.template scratch<uint8_t>("V8"),
      {{kV, 1, kV}, {d, Nkp, d}, {Nkp / kV, kV, T::Bc / kV}, {BHkv, d * Nkp, 1}}, fa::Swizzle(kV));
  const int work_tiles = step10::work_tiles_of<T>(p);
  fa::launch(kernel, fa::share_work(p.gpu.sms, work_tiles, T::kThreads, sizeof(Tiles<T>)),
             rows("Q8", BH, N, kGroupRows), rows("K8", BHkv, Nk, T::Bc), V,
             fa::tile_map<d>(t.O, BH, N, kGroupRows), t.LSE, scales, step10::shape_of(p),
             p.causal ? t.template scratch<unsigned>("taken") : nullptr);
}

inline Scales scales_of(const fa::Tensors<bf16>& t) {
  return {t.scratch<float>("Q_scale"), t.scratch<float>("K_scale"), t.scratch<float>("V_scale"),
          t.scratch<float>("V_mean")};
}

template <class T>
fa::Prediction forward_traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d, lanes = kGroupThreads;
  fa::Prediction t;
  const uint64_t Tr = fa::ceil_div(p.N, T::Br), tiles = BH * Tr;
  const uint64_t blocks = std::min<uint64_t>(p.gpu.sms, tiles);
  uint64_t keys = 0, padded = 0, products = 0;
  for (int row = 0; row < int(Tr) * T::Br; row += kGroupRows) {
    products += step10::visited_tiles<T>(p, row, kGroupRows);
    if (row % T::Br != 0) continue;
    const uint64_t visited = step10::visited_tiles<T>(p, row, T::Br) * T::Bc;
    keys += std::min<uint64_t>(visited, p.Nk), padded += std::min(visited, stored_keys(p));
  }
  t["Q8"].read = BH * N * d;
  t["K8"].read = BH * keys * d, t["V8"].read = BH * padded * d;
  t["Q_scale"].read = 4 * lanes * tiles * T::kConsumers;
  t["K_scale"].read = 4 * lanes * BH * products;
  t["V_scale"].read = t["V_mean"].read = lanes * d * tiles * T::kConsumers;
  t["O"].write = 2 * BH * N * d, t["LSE"].write = 4 * BH * N;
  if (p.causal) t["taken"] = {.read = 0, .write = 8, .atomic = 4 * (tiles + blocks)};
  t.flops = 4 * BH * products * kGroupRows * T::Bc * d;
  t.flops += 2 * blocks * T::Br * T::Bc * d;  // a block's last Q K^T, whose result is unused
  t.hbm = {.read = BH * N * d + p.kv_size() + p.kv_heads() * d * stored_keys(p),
           .write = 2 * BH * N * d + 4 * BH * N};
  return t;
}

}  // namespace step12

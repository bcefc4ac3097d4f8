// Step 12 -- past FlashAttention-3: the maximum is asked late.
// Idea      Has a P passed what e4m3 can hold? That is asked of P, while exponentials are computed,
//           and not of S before them: nothing waits for the answer. When one has, which is rare,
//           P, l and O are scaled down afterwards. So P may be large for a while, but not infinite:
//           a work tile whose scores cannot jump that far is known by the norms of its rows
// Changed   since 12 3_tensor: softmax() asks P where the norms allow it; tiles of 96 or 64 keys,
//           so that 3 or 4 consumers have the registers; norms from the quantisation
// Traffic   as 5_blocks, and norms, 4 B a block of rows
// Launch    grid (SMs, or fewer work tiles), 128 threads a warpgroup: 1 that copies and stores,
//           4 (d = 64), 3 (d = 128) or 2 (d = 256) consumers
// Owns      block: a work tile, Br rows of O, at a time; consumer: 64 of them
// Still bad d = 64: an exponential for each 256 FLOP; Hopper's have no more
#pragma once

#include "steps/12_fp8/5_blocks.cuh"

namespace step12 {

constexpr float kLargestP = 445.f;  // a little below the end of e4m3

// With each |S| log2(e) below that, S - m is at most 100 and P 2^105: a float, as is a tile's sum.
constexpr float kSafeScore = 50.f;

template <class T>
struct LateConsumer : Consumer<T> {
  using Base = Consumer<T>;
  using Base::Base, Base::rS, Base::m, Base::l, Base::alpha, Base::j;
  using Base::work, Base::scales, Base::shape;
  bool safe = false;  // this work tile's scores are

  __device__ bool take(unsigned n) {
    if (!Base::take(n)) return false;
    // Of Cauchy and Schwarz. Rounding to e4m3 adds at most 1/16 to each norm.
    const float norms = scales.Q_norm[Base::query_block()] * scales.K_norm[work.bh_kv];
    safe = norms * (1.0625f * 1.0625f) * shape.scale_log2 < kSafeScore;
    return true;
  }
  // A row that has seen no key has no maximum: it is asked early, too.
  __device__ bool careful() {
    return !safe || (T::kCausal && visible<T>(shape, work.row) <= j * T::Bc);
  }
  template <bool kCareful>
  __device__ bool softmax() {
    if (kCareful) return Base::template softmax<true>();
    compute_p(rS, Base::scale_log2, m, l);
    int top[2] = {};  // floats without a sign compare as integers do
    UNROLL
    for (int i = 0; i < T::Bc / 2; i += 2) {
      int& x = top[i / 2 % 2];
      x = __vimax3_s32(x, __float_as_int(rS[i]), __float_as_int(rS[i + 1]));
    }
    const bool grown = __any_sync(fa::kFullMask, max(top[0], top[1]) > __float_as_int(kLargestP));
    if (__builtin_expect(grown, 0)) lower(top);
    return grown;
  }
  // The maximum moves to that of `top`, whose P becomes 2^kOffset.
  __device__ void lower(const int (&top)[2]) {
    UNROLL
    for (int h = 0; h < 2; ++h) {
      const float up = fmaxf(0.f, __log2f(fa::quad_max(__int_as_float(top[h]))) - kOffset);
      alpha[h] = fa::exp2_approx(-up);
      m[h] += up, l[h] *= alpha[h];
    }
    UNROLL
    for (int i = 0; i < T::Bc / 2; ++i) rS[i] *= alpha[i / 2 % 2];
  }
};

// --- host ----------------------------------------------------------------------------------------

inline fa::Support support_late() { return {.d = {64, 128, 256}, .gqa = true, .cross = true}; }

template <int d_, bool kCausal_>
struct LateTiling {
  static constexpr int d = d_, kLargest = 256;
  static constexpr bool kCausal = kCausal_;
  static constexpr int kConsumers = d == 64 ? 4 : d == 128 ? 3 : 2, Br = kConsumers * kGroupRows;
  static constexpr int Bc = d == 128 ? 96 : 64;
  static constexpr int kStages = d == 64 ? 8 : d == 128 ? 4 : 3;
  static constexpr int kThreads = (1 + kConsumers) * kGroupThreads;
  static constexpr int kProducerRegisters = d == 256 ? 40 : 32;
  static constexpr int kConsumerRegisters = d == 64 ? 112 : d == 128 ? 160 : 232;
};

// The largest norm of each head's rows.
static __global__ void largest_norm_kernel(const float* norms,  // [heads, blocks]
                                           float* largest,      // [heads]
                                           int blocks) {
  float most = 0.f;
  for (int i = threadIdx.x; i < blocks; i += kQuantiseThreads) {
    most = fmaxf(most, norms[size_t(blockIdx.x) * blocks + i]);
  }
  most = block_max(most);
  if (threadIdx.x == 0) largest[blockIdx.x] = most;
}

inline void prepare_late(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  dispatch<LateTiling>(p, [&](auto tiling) {
    using T = decltype(tiling);
    float* k_norms = t.scratch<float>("K_norms");
    quantise_blocks<T, true>(p, t, t.scratch<float>("Q_norm"), k_norms);
    fa::launch(largest_norm_kernel, {dim3(p.kv_heads()), dim3(kQuantiseThreads)}, k_norms,
               t.scratch<float>("K_norm"), fa::ceil_div(p.Nk, T::Bc));
    quantise_centred_values<T::d>(p, t);
  });
}
inline fa::Prediction prepare_late_traffic(const fa::Problem& p) {
  fa::Prediction t = blocks_traffic<LateTiling>(p);
  const uint64_t bytes = sizeof(float) * key_blocks(p, keys_of_tile<LateTiling>(p));
  t["Q_norm"].write = sizeof(float) * query_blocks(p, kGroupRows);
  t["K_norms"] = {.read = bytes, .write = bytes};
  t["K_norm"].write = sizeof(float) * p.kv_heads();
  return t;
}
inline std::vector<fa::Scratch> workspace_late(const fa::Problem& p) {
  std::vector<fa::Scratch> all = workspace_blocks<LateTiling>(p);
  const size_t tiles = key_blocks(p, keys_of_tile<LateTiling>(p));
  all.push_back({.name = "Q_norm", .bytes = sizeof(float) * query_blocks(p, kGroupRows)});
  all.push_back({.name = "K_norms", .bytes = sizeof(float) * tiles});
  all.push_back({.name = "K_norm", .bytes = sizeof(float) * p.kv_heads()});
  return all;
}

inline void forward_late(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  Scales scales = scales_of(t);
  scales.Q_norm = t.scratch<float>("Q_norm"), scales.K_norm = t.scratch<float>("K_norm");
  dispatch<LateTiling>(p, [&](auto tiling) {
    launch<decltype(tiling), LateConsumer>(p, t, scales, fa::multiprocessors());
  });
}
inline fa::Prediction late_traffic(const fa::Problem& p) {
  fa::Prediction t = traffic<LateTiling>(p);
  // As often as a scale of Q.
  t["Q_norm"].read = t["K_norm"].read = t["Q_scale"].read;
  return t;
}

}  // namespace step12

// Step 12 -- past FlashAttention-3: the maximum is checked late.
// Idea      P, not S, is checked against the range of e4m3. When a P exceeds it, which is rare, P,
//           l and O are scaled down afterwards. It must not be infinite by then: no score exceeds
//           |q| |k| (Cauchy and Schwarz), and prepare stores the largest norms
// Changed   since 12 2_tensor and 4_blocks: late_softmax() where the norms allow it; tiles of 96 or
//           64 keys, so that registers suffice for one more consumer; d = 256, too; norms
// Traffic   prepare as 4_blocks; norms 4 B per block of rows: Q's written, K's atomic
//           forward as 2_tensor, and Q's and K's norms
// Launch    as 4_blocks and 2_tensor, with 4 (d = 64), 3 (d = 128) or 2 (d = 256) consumers
// Owns      block: a work tile, Br rows of O, at a time; consumer: 64 of them
// Still bad d = 64: one exponential per 256 FLOP, and the exponentials are the limit
#pragma once

#include "steps/12_fp8/2_tensor.cuh"
#include "steps/12_fp8/4_blocks.cuh"

namespace step12_late {

using namespace step12;  // parts.cuh, and 1_quantise to 4_blocks

constexpr int key_rows(int d) { return d == 128 ? 96 : 64; }  // per tile of keys

// --- prepare -------------------------------------------------------------------------------------

// The largest norm of a row. Null pointers are not stored to.
struct Norms {
  float* of_blocks = nullptr;    // Q: [heads, ceil(n / rows)]
  unsigned* of_heads = nullptr;  // K: [heads], 0 before: a non-negative float
  unsigned* zeros = nullptr;     // Q: [zero], where K's launch has of_heads
  unsigned zero = 0;
};

template <int d, int rows>
__global__ __launch_bounds__(2 * rows) void quantise_block_kernel(
    const bf16* x,  // [heads, n, d]
    e4m3* out,      // [heads, n, d]
    float* scales,  // [heads, ceil(n / rows)]
    const Norms norms, int n) {
  constexpr float kOverRoot = d == 64 ? 0.125f : d == 128 ? 0.088388348f : 0.0625f;
  const int blocks = (n + rows - 1) / rows, head = blockIdx.x / blocks;
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int row = blockIdx.x % blocks * rows + warp * 16 + fa::row_of(lane);
  float v[d / 16][2][4], squares[2] = {};
  const float scale = load_rows<d, rows, /*kRotate=*/true>(x, head, row, n, v);
  const float inverse = 1.f / scale;
  if (threadIdx.x == 0) scales[blockIdx.x] = scale * kOverRoot;
  UNROLL
  for (int i = 0; i < d / 2; ++i) {
    float& number = v[i / 8][i / 4 % 2][i % 4];
    number *= inverse, squares[fa::half_of(i)] += number * number;
  }
  if (norms.of_blocks || norms.of_heads) {  // always; without it nvcc's code differs
    const float most = fmaxf(fa::quad_sum(squares[0]), fa::quad_sum(squares[1]));
    const float norm = sqrtf(block_max<2 * rows>(most)) * scale * kOverRoot;
    if (threadIdx.x == 0 && norms.of_blocks) norms.of_blocks[blockIdx.x] = norm;
    if (threadIdx.x == 0 && norms.of_heads) atomicMax(&norms.of_heads[head], __float_as_uint(norm));
    if (threadIdx.x == 0 && blockIdx.x < norms.zero) norms.zeros[blockIdx.x] = 0;
  }
  store_rows<d>(v, out, head, row, n);
}

// --- attention -----------------------------------------------------------------------------------

using step12_tensor::compute_p, step12_tensor::kGrowth, step12_tensor::kOffset;
constexpr float kLargestP = 445.f;  // a little below e4m3's maximum

// With each |S| log2(e) below this, S - m is at most 100 and P 2^105: a float, as is a tile's sum.
constexpr float kSafeScore = 50.f;

struct Scales : step12::Scales {
  const float* Q_norm;  // [B*H, ceil(N / 64)]
  const float* K_norm;  // [B*Hkv]
};

template <class T>
struct Consumer : step12_tensor::Consumer<T> {
  using Base = step12_tensor::Consumer<T>;
  using Base::alpha, Base::Bc, Base::d, Base::j, Base::l, Base::m, Base::rO, Base::rS;
  using Base::end_tile, Base::next_scores, Base::scale_log2, Base::shape, Base::work;
  const Scales& scales;
  bool safe = false;  // whether this work tile's scores are

  __device__ Consumer(Tiles<T>& smem, float* LSE, const Scales& scales, const Shape& shape, int wg)
      : Base(smem, LSE, scales, shape, wg), scales(scales) {}

  __device__ bool take(unsigned n) {
    if (!Base::take(n)) return false;
    // Cauchy and Schwarz: |S| <= |q| |k|. Rounding to e4m3 adds at most 1/16 to each norm.
    const float norms = scales.Q_norm[query_block(shape, work)] * scales.K_norm[work.bh_kv];
    safe = norms * (1.0625f * 1.0625f) * shape.scale_log2 < kSafeScore;
    return true;
  }

  // Whether tile j - 1 is checked before its exponentials: a row may have no maximum yet.
  __device__ bool careful() {
    return !safe || (T::kCausal && visible<T>(shape, work.row) <= j * Bc);
  }
  // P of a tile. Returns whether it exceeded the range of e4m3 and was scaled down.
  __device__ bool late_softmax() {
    compute_p(rS, scale_log2, m, l);
    int top[2] = {};  // non-negative floats sort as integers do
    UNROLL
    for (int i = 0; i < Bc / 2; i += 2) {
      int& x = top[fa::half_of(i)];
      x = __vimax3_s32(x, __float_as_int(rS[i]), __float_as_int(rS[i + 1]));
    }
    const bool grown = __any_sync(fa::kFullMask, max(top[0], top[1]) > __float_as_int(kLargestP));
    if (__builtin_expect(grown, 0)) lower(top);
    return grown;
  }
  // Moves m so that the P in `top` becomes 2^kOffset.
  __device__ void lower(const int (&top)[2]) {
    UNROLL
    for (int h = 0; h < 2; ++h) {
      const float up = fmaxf(0.f, __log2f(fa::quad_max(__int_as_float(top[h]))) - kOffset);
      alpha[h] = fa::exp2_approx(-up);
      m[h] += up, l[h] *= alpha[h];
    }
    UNROLL
    for (int i = 0; i < Bc / 2; ++i) rS[i] *= alpha[fa::half_of(i)];
  }

  template <bool kCareful>
  __device__ void next_tile(unsigned b) {
    next_scores(b);
    end_tile(kCareful ? Base::template softmax<true>() : late_softmax());
  }

  __device__ void run() {
    take(0);
    this->first_tile();
    bool more = true;
    for (unsigned n = 0; more; ++n) {
      const unsigned b = n % 2;
      fa::clear(rO);
      while (j > 0 && careful()) next_tile<true>(b);
      while (j > 0) next_tile<false>(b);
      const WorkTile old = work;
      more = take(n + 1);
      this->seam(old, n, b, more);
    }
  }
};

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    flash_fwd_kernel(const __grid_constant__ fa::TensorMap Q,  // [B*H, N, d]
                     const __grid_constant__ fa::TensorMap K,  // [B*Hkv, Nk, d]
                     const __grid_constant__ fa::TensorMap V,  // [B*Hkv, d, Nkp]
                     const __grid_constant__ fa::TensorMap O,  // [B*H, N, d]
                     float* LSE,                               // [B*H, N]
                     Scales scales, Shape shape, unsigned* taken) {
  Tiles<T>& smem = *fa::dynamic_shared<Tiles<T>>();
  if (threadIdx.x == 0) init_barriers<T>(smem);
  __syncthreads();
  const int wg = fa::uniform(threadIdx.x / kGroupThreads);
  if (wg == 0) {
    fa::setmaxnreg_dec<T::kProducerRegisters>();
    if (threadIdx.x == 0) produce<T>(smem, &Q, &K, &V, shape, taken);
    if (threadIdx.x == fa::kWarp) store<T>(smem, &O);
  } else {
    fa::setmaxnreg_inc<T::kConsumerRegisters>();
    Consumer<T>(smem, LSE, scales, shape, wg - 1).run();
  }
}

// --- host ----------------------------------------------------------------------------------------

inline fa::Support support() { return {.d = {64, 128, 256}, .gqa = true, .cross = true}; }

template <int d_, bool kCausal_>
struct Tiling {
  static constexpr int d = d_;
  static constexpr bool kCausal = kCausal_;
  static constexpr int kConsumers = d == 64 ? 4 : d == 128 ? 3 : 2, Br = kConsumers * kGroupRows;
  static constexpr int Bc = key_rows(d);
  static constexpr int kStages = d == 64 ? 8 : d == 128 ? 4 : 3;
  static constexpr int kThreads = (1 + kConsumers) * kGroupThreads;
  static constexpr int kProducerRegisters = d == 256 ? 40 : 32;
  static constexpr int kConsumerRegisters = d == 64 ? 112 : d == 128 ? 160 : 232;
};

inline void prepare(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  unsigned* K_norm = t.scratch<unsigned>("K_norm");
  const Norms of_q = {
      .of_blocks = t.scratch<float>("Q_norm"), .zeros = K_norm, .zero = unsigned(p.kv_heads())};
  fa::dispatch_d<64, 128, 256>(p.d, [&](auto d) {
    fa::launch(quantise_block_kernel<d, kQueryRows>, {dim3(query_blocks(p)), dim3(2 * kQueryRows)},
               t.Q, t.scratch<e4m3>("Q8"), t.scratch<float>("Q_scale"), of_q, p.N);
    fa::launch(quantise_block_kernel<d, key_rows(d)>,
               {dim3(key_blocks(p, key_rows(d))), dim3(2 * key_rows(d))}, t.K,
               t.scratch<e4m3>("K8"), t.scratch<float>("K_scale"), Norms{.of_heads = K_norm}, p.Nk);
    quantise_centred_values<d>(p, t);
  });
}
inline fa::Prediction prepare_traffic(const fa::Problem& p) {
  const uint64_t k_blocks = key_blocks(p, key_rows(p.d));
  fa::Prediction t = blocks_traffic(p);
  t["K_scale"].write = sizeof(float) * k_blocks;
  t["Q_norm"].write = sizeof(float) * query_blocks(p);
  t["K_norm"] = {.write = 4 * p.kv_heads(), .atomic = 4 * k_blocks};
  return t;
}
inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  std::vector<fa::Scratch> all = workspace_blocks(p);
  for (fa::Scratch& piece : all) {
    if (piece.name == "K_scale") piece.bytes = sizeof(float) * key_blocks(p, key_rows(p.d));
  }
  all.push_back({.name = "Q_norm", .bytes = sizeof(float) * query_blocks(p)});
  all.push_back({.name = "K_norm", .bytes = sizeof(float) * p.kv_heads()});
  return all;
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const Scales scales{scales_of(t), t.scratch<float>("Q_norm"), t.scratch<float>("K_norm")};
  dispatch_over<Tiling, 64, 128, 256>(p, [&](auto tiling) {
    using T = decltype(tiling);
    launch_forward<T>(flash_fwd_kernel<T>, p, t, scales);
  });
}
inline fa::Prediction traffic(const fa::Problem& p) {
  fa::Prediction t = dispatch_over<Tiling, 64, 128, 256>(
      p, [&](auto tiling) { return forward_traffic<decltype(tiling)>(p); });
  t["Q_norm"].read = t["K_norm"].read = t["Q_scale"].read;  // read as often as Q's scales
  return t;
}

}  // namespace step12_late

// Step 16 -- a pair of tiles. Compiled for sm_100a and run in the simulator; not yet run on a card.
// Idea      Two tiles of rows in turn, each with a separate softmax warpgroup: during the softmax
//           of one the tensor cores multiply for the other, and of a quarter's two softmax warps
//           one computes while the other waits. Both share each K and V. In the variant exp2 a
//           polynomial computes a quarter of the exponentials, on the units that add and multiply,
//           and O is rescaled only where a maximum grew by over 8
// Changed   since 16 3_roles: two of each column, barrier and softmax warpgroup; P overwrites S
//           again, in FlashAttention-4's layout of columns; the softmax of a row is a parameter of
//           the kernel, Exact or Polynomial
// Traffic   as 1_tmem, with Tr = N/256
// Launch    grid (Tr * B*H), 512 threads; causal: the longest walks of all heads first
// Owns      block: 256 rows of O; a thread of the softmax: a row; one of the correction: two
// Still bad each SM copies all of K and V; a pair of SMs could share each tile
#pragma once

#include "common/dialect/ptx/barrier.h"
#include "common/dialect/ptx/f32x2.h"
#include "common/dialect/ptx/mbarrier.h"
#include "common/dialect/ptx/setmaxnreg.h"
#include "steps/16_blackwell/parts.cuh"

namespace step16_pair {

using namespace step16;  // parts.cuh: products, and a thread's work on its row

constexpr int kThreads = 4 * kGroupThreads;
constexpr int kTiles = 2, kRows = kTiles * Br;  // of a block
constexpr int kStages = 2;                      // of K and of V

// Columns of tensor memory:
//
//     0         64       128       192       256              384              512
//     | S of tile 0       | S of tile 1       | O of tile 0    | O of tile 1    |
//     |         | P       |         | P       |
constexpr int kColumns = 512;
__device__ inline uint32_t column_s(int t) { return t * Bc; }
__device__ inline uint32_t column_p(int t) { return t * Bc + Bc / 2; }
__device__ inline uint32_t column_o(int t) { return 256 + t * 128; }

// A block's shared memory: 98 KB when d = 64, 194 KB when d = 128. Panels as before.
template <int d>
struct alignas(1024) Tiles {
  bf16 Q[kTiles][Br * d];  // reused for O in the epilogue
  bf16 K[kStages][Bc * d];
  bf16 V[kStages][Bc * d];
  float factor[kTiles][Br];  // of each row, from the softmax: alpha, finally 1 / l
  // mbarriers                                       arrivals by
  uint64_t q_full, k_full[kStages], v_full[kStages];  // the copies
  uint64_t k_empty[kStages], v_empty[kStages];        // Q K^T and P V
  uint64_t s_full[kTiles], o_full[kTiles];            // Q K^T and P V
  uint64_t p_full[kTiles], factor_full[kTiles];       // the softmax, each thread
  uint64_t o_scaled[kTiles], factor_empty[kTiles];    // the correction, each thread
  uint32_t tmem;                                      // address of the block's first column
};

// The tiles of keys that each tile of rows visits; nvcc would put an array of two into memory.
struct Walks {
  int first, second;
  __device__ int operator[](int t) const { return t == 0 ? first : second; }
  __device__ int longest() const { return max(first, second); }
};

// --- the softmax of a row, twice ----------------------------------------------------------------

// All exponentials by the special function units; the maximum follows each score.
struct Exact {
  static __device__ float maximum(const Row& rS, float scale_log2, float& m) {
    return update_maximum(rS, scale_log2, m);
  }
  static __device__ float p(const float (&rS)[kHalf], float scale_log2, float m,
                            uint32_t (&rP)[kHalf / 2]) {
    return compute_p(rS, scale_log2, m, rP);
  }
};

constexpr int kEvery = 4;   // of this many pairs of exponentials one is a polynomial
constexpr int kDegree = 5;  // of it: l is fp32, and LSE would show the error of degree 3

// 2^x of two numbers, each at most 127, as 2^(n + f) with n an integer and 0 <= f < 1. Adding
// 1.5 * 2^23, rounded down, leaves n in the low bits of the sum; shifted to a float's exponent, n
// is added to the bits of 2^f. For -127 and less, as for a masked score, the result is +0.
template <int degree>
__device__ inline float2 exp2_polynomial(float2 x) {
  constexpr float kShift = 12582912.f;
  // Of degree 3, 4 and 5: the smallest maximum relative error, with p(0) = 1.
  constexpr float c[3][6] = {
      {1.f, 0.69514614f, 0.22756439f, 0.077119089f},
      {1.f, 0.69304270f, 0.24129125f, 0.052225358f, 0.013434938f},
      {1.f, 0.69315141f, 0.24016361f, 0.055802189f, 0.0090145227f, 0.0018681015f}};
  x = {fmaxf(x.x, -127.f), fmaxf(x.y, -127.f)};
  const float2 n = {fa::add_round_down(x.x, kShift), fa::add_round_down(x.y, kShift)};
  const float2 whole = fa::add_f32x2(n, {-kShift, -kShift});
  const float2 f = fa::add_f32x2(x, {-whole.x, -whole.y});
  float2 p = {c[degree - 3][degree], c[degree - 3][degree]};
  UNROLL
  for (int i = degree - 1; i >= 0; --i) {
    p = fa::fma_f32x2(f, p, {c[degree - 3][i], c[degree - 3][i]});
  }
  return {__int_as_float(__float_as_int(p.x) + (__float_as_int(n.x) << 23)),
          __int_as_float(__float_as_int(p.y) + (__float_as_int(n.y) << 23))};
}

// A quarter of them by the polynomial; the maximum follows late.
struct Polynomial {
  // O, l and m stay unchanged until a score exceeds m by more than 8: P is then at most 2^8.
  static __device__ float maximum(const Row& rS, float scale_log2, float& m) {
    float m_new = m;
    const float alpha = update_maximum(rS, scale_log2, m_new);
    if (m_new <= m + fa::kLazyRescale) return 1.f;
    m = m_new;
    return alpha;
  }

  static __device__ float p(const float (&rS)[kHalf], float scale_log2, float m,
                            uint32_t (&rP)[kHalf / 2]) {
    float2 l = {};
    UNROLL
    for (int i = 0; i < kHalf / 2; ++i) {
      const float2 x =
          fa::fma_f32x2({rS[2 * i], rS[2 * i + 1]}, {scale_log2, scale_log2}, {-m, -m});
      const float2 p = i % kEvery == kEvery - 1
                           ? exp2_polynomial<kDegree>(x)
                           : float2{fa::exp2_approx(x.x), fa::exp2_approx(x.y)};
      l = fa::add_f32x2(l, p);
      rP[i] = fa::pack_bf16(p.x, p.y);
    }
    return l.x + l.y;
  }
};

// --- a warp copies ------------------------------------------------------------------------------

template <int d>
__device__ inline void produce(Tiles<d>& smem, const fa::TensorMap& Q, const fa::TensorMap& K,
                               const fa::TensorMap& V, int row, int tiles, int bh, int kv_head) {
  fa::mbarrier_arrive_expect_tx(&smem.q_full, sizeof smem.Q);
  UNROLL
  for (int t = 0; t < kTiles; ++t) {
    fa::tma_load(smem.Q[t], &Q, &smem.q_full, {0, row + t * Br, 0, bh});
  }
  copy_keys<kStages>(smem, K, V, tiles, kv_head);
}

// --- a thread multiplies ------------------------------------------------------------------------

// P V of the keys j - 1, then S of the keys j (the first tile may see fewer), of one tile of rows
// and then of the other. S overwrites P, which P V reads. PTX guarantees that order only for
// products of one accumulator and shape; like FlashAttention-4 (flash_fwd_sm100.py) we rely on it.
template <int d>
__device__ inline void multiply(Tiles<d>& smem, const Walks& tiles) {
  const int most = tiles.longest();
  fa::mbarrier_wait(&smem.q_full, 0);
  for (int j = 0; j <= most; ++j) {
    const int before = j - 1;
    for (int t = 0; t < kTiles; ++t) {
      if (j > 0 && before < tiles[t]) {
        const int stage = before % kStages;
        fa::mbarrier_wait(&smem.v_full[stage], before / kStages & 1);
        fa::mbarrier_wait(&smem.p_full[t], before & 1);
        fa::mbarrier_wait(&smem.o_scaled[t], before & 1);
        fa::tcgen05_fence_after_thread_sync();
        multiply_values<d>(smem.tmem + column_p(t), smem.V[stage], smem.tmem + column_o(t),
                           before == 0);
        fa::tcgen05_commit(&smem.o_full[t]);
      }
      if (j < tiles[t]) {
        const int stage = j % kStages;
        fa::mbarrier_wait(&smem.k_full[stage], j / kStages & 1);
        multiply_scores<d>(smem.Q[t], smem.K[stage], smem.tmem + column_s(t));
        fa::tcgen05_commit(&smem.s_full[t]);
      }
    }
    if (j > 0) fa::tcgen05_commit(&smem.v_empty[before % kStages]);
    if (j < most) fa::tcgen05_commit(&smem.k_empty[j % kStages]);
  }
}

// --- a warpgroup per tile computes the softmax --------------------------------------------------

template <int d, class Softmax>
__device__ inline float softmax(Tiles<d>& smem, int t, uint32_t lanes, int tiles, int visible,
                                int cut, float scale_log2) {
  const int r = threadIdx.x % kGroupThreads;
  float l = 0.f, m = kNoMaximum;
  for (int j = 0; j < tiles; ++j) {
    fa::mbarrier_wait(&smem.s_full[t], j & 1);  // and P V of the previous tile
    fa::tcgen05_fence_after_thread_sync();
    Row rS;
    load_row(lanes + column_s(t), rS);
    if (cut < (j + 1) * Bc) mask(rS, visible - j * Bc);
    const float alpha = Softmax::maximum(rS, scale_log2, m);
    fa::mbarrier_wait(&smem.factor_empty[t], (j & 1) ^ 1);
    smem.factor[t][r] = alpha;
    fa::mbarrier_arrive(&smem.factor_full[t]);
    l *= alpha;
    UNROLL
    for (int h = 0; h < 2; ++h) {
      uint32_t rP[kHalf / 2];
      l += Softmax::p(rS[h], scale_log2, m, rP);
      fa::tcgen05_st(lanes + column_p(t) + h * kHalf / 2, rP);
    }
    fa::tcgen05_wait_st();
    fa::tcgen05_fence_before_thread_sync();
    fa::mbarrier_arrive(&smem.p_full[t]);
  }
  fa::mbarrier_wait(&smem.factor_empty[t], (tiles & 1) ^ 1);
  smem.factor[t][r] = l > 0.f ? 1.f / l : 0.f;  // no key seen: O = 0
  fa::mbarrier_arrive(&smem.factor_full[t]);
  return (m + log2f(l)) * fa::kLn2;
}

// --- a warpgroup corrects O ---------------------------------------------------------------------

template <int d>
__device__ inline void correct(Tiles<d>& smem, uint32_t lanes, const Walks& tiles) {
  const int r = threadIdx.x % kGroupThreads;
  for (int j = 0; j < tiles.longest(); ++j) {
    for (int t = 0; t < kTiles; ++t) {
      if (j >= tiles[t]) continue;
      fa::mbarrier_wait(&smem.factor_full[t], j & 1);
      const float alpha = smem.factor[t][r];
      fa::mbarrier_arrive(&smem.factor_empty[t]);
      fa::mbarrier_wait(&smem.o_full[t], (j & 1) ^ 1);  // P V of the previous tile
      fa::tcgen05_fence_after_thread_sync();
      // The first tile has no O yet; without a moved maximum in the warp there is nothing to do.
      if (j > 0 && __any_sync(fa::kFullMask, alpha != 1.f)) {
        rescale<d>(lanes + column_o(t), alpha);
      }
      fa::tcgen05_fence_before_thread_sync();
      fa::mbarrier_arrive(&smem.o_scaled[t]);
    }
  }
  fa::mbarrier_wait(&smem.q_full, 0);  // even without a tile Q's copy must be complete
  for (int t = 0; t < kTiles; ++t) {
    fa::mbarrier_wait(&smem.factor_full[t], tiles[t] & 1);
    fa::mbarrier_wait(&smem.o_full[t], (tiles[t] & 1) ^ 1);  // the last P V, all Q K^T before it
    fa::tcgen05_fence_after_thread_sync();
    store_o<d>(lanes + column_o(t), tiles[t] > 0, smem.factor[t][r], r, smem.Q[t]);
  }
}

template <int d, class Softmax>
__global__ void __launch_bounds__(kThreads, 1)
    flash_fwd_kernel(const __grid_constant__ fa::TensorMap map_Q,  // [B*H, N, d], boxes of Br rows
                     const __grid_constant__ fa::TensorMap map_K,  // [B*Hkv, Nk, d], of Bc
                     const __grid_constant__ fa::TensorMap map_V,  // [B*Hkv, Nk, d], of Bc
                     const __grid_constant__ fa::TensorMap map_O,  // [B*H, N, d], of Br rows
                     float* LSE,                                   // [B*H, N]
                     int heads, int group, int N, int Nk, float scale, bool causal) {
  // --- prologue: which tiles; mbarriers and tensor memory
  Tiles<d>& smem = *fa::dynamic_shared<Tiles<d>>();
  const int warp = fa::uniform(threadIdx.x / fa::kWarp), wg = warp / 4;
  const int Tr = gridDim.x / heads;
  const int i = causal ? Tr - 1 - blockIdx.x / heads : blockIdx.x % Tr;
  const int bh = causal ? blockIdx.x % heads : blockIdx.x / Tr;
  const auto visible = [&](int row) { return causal ? min(Nk, row + 1 + Nk - N) : Nk; };
  const auto walk = [&](int row) {  // tiles of keys, by the tile's last row; none past the end
    const int seen = row < N ? visible(row + Br - 1) : 0;
    return seen <= 0 ? 0 : (seen + Bc - 1) / Bc;
  };
  const Walks tiles = {walk(i * kRows), walk(i * kRows + Br)};
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&smem.q_full, 1);
    for (int stage = 0; stage < kStages; ++stage) {
      fa::mbarrier_init(&smem.k_full[stage], 1), fa::mbarrier_init(&smem.k_empty[stage], 1);
      fa::mbarrier_init(&smem.v_full[stage], 1), fa::mbarrier_init(&smem.v_empty[stage], 1);
    }
    for (int t = 0; t < kTiles; ++t) {
      fa::mbarrier_init(&smem.s_full[t], 1), fa::mbarrier_init(&smem.o_full[t], 1);
      for (uint64_t* bar :
           {&smem.p_full[t], &smem.factor_full[t], &smem.factor_empty[t], &smem.o_scaled[t]}) {
        fa::mbarrier_init(bar, kGroupThreads);
      }
    }
    fa::mbarrier_init_fence();
  }
  if (warp == 8) allocate(&smem.tmem, kColumns);  // of the correction, which ends last
  __syncthreads();  // the mbarriers and the address are visible to all threads
  fa::tcgen05_fence_after_thread_sync();
  const uint32_t lanes = fa::tmem_address(smem.tmem, warp % 4 * fa::kWarp, 0);  // the warp's
  const int r = threadIdx.x % kGroupThreads;

  // --- the roles
  if (wg < kTiles) {
    fa::setmaxnreg_inc<192>();
    const int first = i * kRows + wg * Br, row = first + r;
    const float lse =
        softmax<d, Softmax>(smem, wg, lanes, tiles[wg], visible(row),
                            visible(first + warp % 4 * fa::kWarp), scale * fa::kLog2e);
    if (row < N) LSE[size_t(bh) * N + row] = lse;
  } else if (wg == kTiles) {
    fa::setmaxnreg_dec<80>();
    correct<d>(smem, lanes, tiles);
    fa::tcgen05_fence_before_thread_sync();
    fa::bar_sync(1, kGroupThreads);  // the rows are complete, and tensor memory is read
    if (r == 0) {
      UNROLL
      for (int t = 0; t < kTiles; ++t) {  // rows past the end are not written
        fa::tma_store(&map_O, smem.Q[t], {0, i * kRows + t * Br, 0, bh});
      }
      fa::tma_store_commit();
      fa::tma_store_wait_read<0>();  // a block's shared memory must outlive the copy
    }
    if (warp == 8) deallocate(smem.tmem, kColumns);
  } else {
    fa::setmaxnreg_dec<48>();
    if (warp == 12 && fa::elect_one()) {
      produce<d>(smem, map_Q, map_K, map_V, i * kRows, tiles.longest(), bh, bh / group);
    }
    if (warp == 13 && fa::elect_one()) multiply<d>(smem, tiles);
  }
}

// --- host ---------------------------------------------------------------------------------------

inline fa::Prediction traffic(const fa::Problem& p) {
  fa::Prediction t = step16::traffic(p);
  t["K"].read = t["V"].read = 2 * p.heads() * fa::visited_tiles(p, kRows, Bc).keys * p.d;
  return t;
}

template <class Softmax>
void launch(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    step16::launch<d>(flash_fwd_kernel<d, Softmax>, kRows, kThreads, sizeof(Tiles<d>), p, t);
  });
}

inline void forward_exact(const fa::Problem& p, const fa::Tensors<bf16>& t) { launch<Exact>(p, t); }
inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) { launch<Polynomial>(p, t); }

}  // namespace step16_pair

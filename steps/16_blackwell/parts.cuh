// Step 16 -- what its kernels share: a thread's row of tensor memory, products, the launch.
//            Compiled for sm_100a and run in the simulator; not yet run on a card.
// Changed   since 09 2_wgmma: a thread loads its row of S; the maximum always follows; O is
//           rescaled in tensor memory and stored row by row; products by tcgen05.mma into tensor
//           memory, by one thread
//
// Tiles are in panels of 64 features, [d / 64][rows][64], as in 09: TMA, tcgen05.mma and swizzle()
// address the same bytes.
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/ptx/math.h"
#include "common/dialect/ptx/mma.h"
#include "common/dialect/ptx/tcgen05.h"
#include "common/dialect/ptx/tma.h"
#include "common/dialect/softmax.h"
#include "common/dialect/warpgroup.h"
#include "common/harness/forward.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"

namespace step16 {

using fa::bf16, fa::kNoMaximum;
using fa::kGroupThreads, fa::kMma, fa::kPanel, fa::kRowBytes;  // 128, 16, 64, 128

constexpr int Br = 128;     // rows of a tile of Q, lanes of tensor memory
constexpr int Bc = 128;     // keys per tile
constexpr int kChunk = 16;  // columns of tensor memory that a thread moves at a time

// Where element (r, x) of a tile of Br rows is stored, x a multiple of 8. Only for O: TMA and
// tcgen05.mma swizzle by themselves.
__device__ inline int swizzle(int r, int x) {
  return (x / kPanel * Br + r) * kPanel + (x % kPanel ^ r % 8 * 8);
}

// --- a thread's row -----------------------------------------------------------------------------

// A row of S in registers: two loads of 64 columns. Number [h][c] is the score of key 64 h + c.
constexpr int kHalf = Bc / 2;
using Row = float[2][kHalf];
__device__ inline void load_row(uint32_t tS, Row& rS) {
  fa::tcgen05_ld(rS[0], tS);
  fa::tcgen05_ld(rS[1], tS + kHalf);
  fa::tcgen05_wait_ld(rS[0], rS[1]);  // only now may P overwrite S
}

// Scores that their row does not see become -inf: in tiles that the diagonal or the end cuts.
__device__ inline void mask(Row& rS, int visible) {  // keys of the tile that the row sees
  UNROLL
  for (int h = 0; h < 2; ++h) {
    UNROLL
    for (int c = 0; c < kHalf; ++c) {
      if (h * kHalf + c >= visible) rS[h][c] = -INFINITY;
    }
  }
}

// The row's maximum, in powers of two. O and l are relative to m; returns their factor.
__device__ inline float update_maximum(const Row& rS, float scale_log2, float& m) {
  float s[2] = {-INFINITY, -INFINITY};  // two chains
  UNROLL
  for (int c = 0; c < kHalf; ++c) s[0] = fmaxf(s[0], rS[0][c]), s[1] = fmaxf(s[1], rS[1][c]);
  const float m_new = fmaxf(m, scale_log2 * fmaxf(s[0], s[1]));
  const float alpha = fa::exp2_approx(m - m_new);
  m = m_new;
  return alpha;
}

// P = 2^(S - m) of half a row, packed to bf16, two keys per register; returns its sum.
__device__ inline float compute_p(const float (&rS)[kHalf], float scale_log2, float m,
                                  uint32_t (&rP)[kHalf / 2]) {
  float l[2] = {};
  UNROLL
  for (int c = 0; c < kHalf; c += 2) {
    const float p0 = fa::exp2_approx(rS[c] * scale_log2 - m);
    const float p1 = fa::exp2_approx(rS[c + 1] * scale_log2 - m);
    l[0] += p0, l[1] += p1;
    rP[c / 2] = fa::pack_bf16(p0, p1);
  }
  return l[0] + l[1];
}

// O *= alpha, a chunk of the row's columns at a time, through registers.
template <int d>
__device__ inline void rescale(uint32_t tO, float alpha) {
  UNROLL
  for (int x = 0; x < d; x += kChunk) {
    float rO[kChunk];
    fa::tcgen05_ld(rO, tO + x);
    fa::tcgen05_wait_ld(rO);
    UNROLL
    for (int i = 0; i < kChunk; ++i) rO[i] *= alpha;
    fa::tcgen05_st(tO + x, rO);
  }
  fa::tcgen05_wait_st();
}

// Stores the row of O / l in a tile [d / 64][128][64], as TMA reads it; zeros without a product.
template <int d>
__device__ inline void store_o(uint32_t tO, bool written, float normalise, int r, bf16* sO) {
  UNROLL
  for (int x = 0; x < d; x += kChunk) {
    float rO[kChunk] = {};
    if (written) fa::tcgen05_ld(rO, tO + x);
    fa::tcgen05_wait_ld(rO);
    UNROLL
    for (int c = 0; c < kChunk; c += 8) {  // 16 bytes per store: eight rows fill all banks
      uint32_t o[4];
      UNROLL
      for (int e = 0; e < 4; ++e) {
        o[e] = fa::pack_bf16(rO[c + 2 * e] * normalise, rO[c + 2 * e + 1] * normalise);
      }
      *reinterpret_cast<uint4*>(sO + swizzle(r, x + c)) = make_uint4(o[0], o[1], o[2], o[3]);
    }
  }
  fa::fence_proxy_async();  // TMA sees this thread's writes
}

// --- tensor memory -----------------------------------------------------------------------------

// Allocates columns, whose address is visible after a barrier. By a whole warp.
__device__ inline void allocate(uint32_t* tmem, int columns) {
  fa::tcgen05_alloc(tmem, columns);
  fa::tcgen05_relinquish_alloc_permit();  // there will be no second allocation
  fa::tcgen05_fence_before_thread_sync();
}
// After a barrier, by a whole warp. Without it the SM starts no further block that allocates.
__device__ inline void deallocate(const uint32_t& tmem, int columns) {
  __syncwarp();
  fa::tcgen05_fence_after_thread_sync();
  fa::tcgen05_dealloc(tmem, columns);
}

// --- products -----------------------------------------------------------------------------------

// Issues S = Q K^T of 128 rows and a tile's keys, and does not wait. By one thread, whose products
// run in order because they share accumulator and shape.
template <int d>
__device__ inline void multiply_scores(const bf16* sQ,  // [d / 64][128][64] swizzled
                                       const bf16* sK,  // [d / 64][Bc][64] swizzled
                                       uint32_t tS) {
  // K-major, both: a row of memory is a row of Q or a key, and the sum is over features.
  const uint64_t q = fa::tcgen05_descriptor(sQ, fa::Swizzle::b128, /*unused*/ 16, 8 * kRowBytes);
  const uint64_t k = fa::tcgen05_descriptor(sK, fa::Swizzle::b128, /*unused*/ 16, 8 * kRowBytes);
  constexpr uint32_t kInstruction = fa::tcgen05_instruction(Br, Bc);
  UNROLL
  for (int x = 0; x < d; x += kMma) {
    const int at = x / kPanel * Br * kRowBytes + x % kPanel * 2;  // bytes, in Q and in K
    fa::tcgen05_mma(tS, fa::tcgen05_advance(q, at), fa::tcgen05_advance(k, at), kInstruction,
                    /*accumulate=*/x > 0);
  }
}

// O += P V; the first tile's first product writes O. P is the operand A, in tensor memory: two keys
// per column, 16 in 8 columns.
template <int d>
__device__ inline void multiply_values(uint32_t tP,
                                       const bf16* sV,  // [d / 64][Bc][64] swizzled
                                       uint32_t tO, bool first) {
  // MN-major: a row of memory is a key, the index of the sum; its features are columns.
  const uint64_t v =
      fa::tcgen05_descriptor(sV, fa::Swizzle::b128, /*panels*/ Bc * kRowBytes, 8 * kRowBytes);
  constexpr uint32_t kInstruction = fa::tcgen05_instruction(Br, d, fa::Major::k, fa::Major::mn);
  UNROLL
  for (int c = 0; c < Bc; c += kMma) {
    fa::tcgen05_mma_tmem(tO, tP + c / 2, fa::tcgen05_advance(v, c * kRowBytes), kInstruction,
                         /*accumulate=*/c > 0 || !first);
  }
}

// --- copies -------------------------------------------------------------------------------------

// Copies all tiles of K and V, each as soon as its stage is free. By one thread.
template <int kStages, class Tiles>
__device__ inline void copy_keys(Tiles& smem, const fa::TensorMap& K, const fa::TensorMap& V,
                                 int tiles, int kv_head) {
  for (int j = 0; j < tiles; ++j) {
    const int stage = j % kStages, parity = j / kStages & 1;
    fa::mbarrier_wait(&smem.k_empty[stage], parity ^ 1);  // passes in the first round
    fa::mbarrier_arrive_expect_tx(&smem.k_full[stage], sizeof smem.K[0]);
    fa::tma_load(smem.K[stage], &K, &smem.k_full[stage], {0, j * Bc, 0, kv_head});
    fa::mbarrier_wait(&smem.v_empty[stage], parity ^ 1);
    fa::mbarrier_arrive_expect_tx(&smem.v_full[stage], sizeof smem.V[0]);
    fa::tma_load(smem.V[stage], &V, &smem.v_full[stage], {0, j * Bc, 0, kv_head});
  }
}

// --- host ---------------------------------------------------------------------------------------

inline fa::Support support() { return {.d = {64, 128}, .gqa = true, .cross = true}; }

inline fa::Prediction traffic(const fa::Problem& p) {
  const fa::TileVisits v = fa::visited_tiles(p, Br, Bc);  // whose zeros are multiplied, too
  return fa::attention_traffic(p, v.keys, 4 * p.heads() * Br * Bc * v.tiles * p.d);
}

template <int d, class Kernel>
void launch(Kernel kernel, int rows, int threads, size_t smem, const fa::Problem& p,
            const fa::Tensors<bf16>& t) {
  const dim3 grid(unsigned(fa::ceil_div(p.N, rows) * p.heads()));
  fa::launch_attention<d>(kernel, {grid, dim3(threads), smem}, p, t, Br, Bc, t.LSE, int(p.heads()),
                          p.H / p.Hkv, p.N, p.Nk, p.scale(), p.causal);
}

}  // namespace step16

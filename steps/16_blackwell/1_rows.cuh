// Step 16 -- a row of tensor memory, and the thread that owns it. Compiled for sm_100a and run in
//            the simulator; not yet run on a card.
// Idea      The tensor cores write S and O to a memory of their own, 128 lanes of 512 columns. A
//           lane is a row of the tile, and one thread owns it: the row's maximum and its sum need
//           no shuffle. What the thread does not need at the moment stays in tensor memory
// Changed   since 09 2_wgmma: a thread loads its row of S; the maximum always follows; O is
//           rescaled in tensor memory and stored row by row
#pragma once

#include <cfloat>

#include "common/dialect/cuda.h"
#include "common/dialect/ptx/math.h"
#include "common/dialect/ptx/mma.h"
#include "common/dialect/ptx/tcgen05.h"
#include "common/dialect/ptx/tma.h"

namespace step16_tmem {

using fa::bf16;

constexpr int Br = 128;                 // rows of a tile of Q, lanes of tensor memory
constexpr int Bc = 128;                 // keys of a tile
constexpr int kPanel = 64;              // features side by side: 128 bytes, the widest swizzle
constexpr int kChunk = 16;              // columns of tensor memory that a thread moves at a time
constexpr float kNoMaximum = -FLT_MAX;  // below all scores, but finite: -inf - -inf is NaN

// Where element (r, x) of a tile of `rows` rows lies, x a multiple of 8. In each panel it is the
// swizzle of step 07: chunk c of row r takes the place c ^ (r % 8). TMA writes and reads in this
// order by itself, and so does tcgen05.mma: only O needs it.
template <int rows>
__device__ inline int swizzle(int r, int x) {
  return (x / kPanel * rows + r) * kPanel + (x % kPanel ^ r % 8 * 8);
}

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

// The row's maximum, in powers of two. O and l are relative to m: returns the factor that moves
// them to the new one.
__device__ inline float update_maximum(const Row& rS, float scale_log2, float& m) {
  float s[2] = {-INFINITY, -INFINITY};  // two chains
  UNROLL
  for (int c = 0; c < kHalf; ++c) s[0] = fmaxf(s[0], rS[0][c]), s[1] = fmaxf(s[1], rS[1][c]);
  const float m_new = fmaxf(m, scale_log2 * fmaxf(s[0], s[1]));
  const float alpha = fa::exp2_approx(m - m_new);
  m = m_new;
  return alpha;
}

// P = 2^(S - m) of half a row, packed to bf16, two keys in a register; returns its sum.
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

// O *= alpha, a chunk of the row's columns at a time: to the registers and back.
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

// The row of O, divided by l, to its place in a tile [d / 64][128][64], as TMA reads it. Where no
// product has written O, all is 0.
template <int d>
__device__ inline void store_o(uint32_t tO, bool written, float normalise, int r, bf16* sO) {
  UNROLL
  for (int x = 0; x < d; x += kChunk) {
    float rO[kChunk] = {};
    if (written) fa::tcgen05_ld(rO, tO + x);
    fa::tcgen05_wait_ld(rO);
    UNROLL
    for (int c = 0; c < kChunk; c += 8) {  // 16 bytes a store: eight rows fill all banks
      uint32_t o[4];
      UNROLL
      for (int e = 0; e < 4; ++e) {
        o[e] = fa::pack_bf16(rO[c + 2 * e] * normalise, rO[c + 2 * e + 1] * normalise);
      }
      *reinterpret_cast<uint4*>(sO + swizzle<Br>(r, x + c)) = make_uint4(o[0], o[1], o[2], o[3]);
    }
  }
  fa::fence_proxy_async();  // TMA, another path to shared memory, sees what this thread wrote
}

}  // namespace step16_tmem

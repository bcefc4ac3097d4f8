// Step 11 -- the backward's five products as wgmmas, and P and dS between them.
// Idea      A warpgroup owns 64 keys. S^T = K Q^T and dP^T = V dO^T have keys as rows, so P^T and
//           dS^T are already in the registers from which dV and dK read their A operand. dQ sums
//           over the keys of both warpgroups, so dS^T also goes to shared memory, where wgmma
//           reads it transposed
// Changed   since 10 2_warpgroup: the products of the backward; no online softmax, because LSE is
//           known
// A lane's registers. It has keys k and k + 8 (k = 16 warp + row_of(lane)):
//
//     rX[i]       key k + 8 half_of(i), row     column_of(lane) + column_at(i); S, P, dP, dS
//     rdK[i]      key k + 8 half_of(i), feature column_of(lane) + column_at(i); rdV, too
//     rP[r]       of the rows 16 r .. 16 r + 15, packed as wgmma's A: P, then dS
//     rdQ[i]      as rdK, but of rows of Q instead of keys
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/fragment.h"
#include "common/dialect/ptx/math.h"
#include "common/dialect/ptx/mbarrier.h"
#include "common/dialect/ptx/more/tma.h"
#include "common/dialect/ptx/more/wgmma.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"
#include "steps/10_warp_specialized/2_warpgroup.cuh"

namespace step11 {

using fa::bf16;
using step10::descriptor, step10::init, step10::pack, step10::put_rows;
using step10::kGroupThreads, step10::kMma, step10::kPanel, step10::kRowBytes;  // 128, 16, 64, 128
using step10::support, step10::tensor_map;

constexpr int kGroups = 2;                // warpgroups
constexpr int kGroupKeys = 64;            // of a warpgroup: the rows of a wgmma
constexpr int Bc = kGroups * kGroupKeys;  // keys of a block

// --- products, issued and not waited for ---------------------------------------------------------

// C = A B^T of 64 keys and a tile's rows, a sum over the features: S^T = K Q^T, dP^T = V dO^T.
template <int d, int half_rows>
__device__ inline void multiply_features(uint64_t A, uint64_t B, float (&rC)[half_rows]) {
  fa::wgmma_fence();
  UNROLL
  for (int x = 0; x < d; x += kMma) {
    const int panel = x / kPanel, inside = x % kPanel * 2;
    fa::wgmma(rC, fa::wgmma_advance(A, panel * kGroupKeys * kRowBytes + inside),
              fa::wgmma_advance(B, panel * 2 * half_rows * kRowBytes + inside), x > 0);
  }
  fa::wgmma_commit();
}

// C += A B of 64 keys and d features, a sum over a tile's rows: dV += P^T dO, dK += dS^T Q.
template <int d, int depth>
__device__ inline void multiply_rows(const uint32_t (&rA)[depth][4], uint64_t B,
                                     float (&rC)[d / 2]) {
  fa::wgmma_fence();
  UNROLL
  for (int r = 0; r < depth; ++r) {
    fa::wgmma<fa::Major::mn>(rC, rA[r], fa::wgmma_advance(B, r * kMma * kRowBytes));
  }
  fa::wgmma_commit();
}

// dQ = dS K, or dQ += dS K, of 64 rows and 2 n features, a sum over the block's keys. dS lies as
// [key][row]: its rows are contiguous, so it is MN-major.
template <int d, bool add = false, int keys = Bc, int n>
__device__ inline void multiply_keys(uint64_t dS, uint64_t K, float (&rdQ)[n]) {
  fa::wgmma_fence();
  UNROLL
  for (int c = 0; c < keys; c += kMma) {
    const int group = c / kGroupKeys, inside = c % kGroupKeys;  // K: the tiles of the warpgroups
    fa::wgmma<fa::Major::mn, fa::Major::mn>(
        rdQ, fa::wgmma_advance(dS, c * kRowBytes),
        fa::wgmma_advance(K, group * kGroupKeys * d * 2 + inside * kRowBytes), add || c > 0);
  }
  fa::wgmma_commit();
}

// --- between the products ------------------------------------------------------------------------

// LSE2 or delta of the lane's two rows among the tile's rows 8 g .. 8 g + 7.
template <int rows>
__device__ inline float2 of_rows(const float (&tile)[rows], int g) {
  const int lane = threadIdx.x % fa::kWarp;
  return *reinterpret_cast<const float2*>(&tile[8 * g + fa::column_of(lane)]);
}

// Scores of rows that do not see the key become -inf. hidden0, hidden1: how many of the lane's rows
// do not see its first and its second key. Past the last row P is 0, because LSE2 is inf.
template <int n>
__device__ inline void mask(float (&rS)[n], int hidden0, int hidden1) {
  UNROLL
  for (int i = 0; i < n; ++i) {
    if (fa::column_at(i) < (fa::half_of(i) ? hidden1 : hidden0)) rS[i] = -INFINITY;
  }
}

// P = 2^(S - LSE) in S's registers, already normalised.
template <int n>
__device__ inline void compute_p(float (&rS)[n], const float (&LSE2)[2 * n], float scale_log2) {
  UNROLL
  for (int g = 0; g < n / 4; ++g) {
    const float2 l = of_rows(LSE2, g);
    UNROLL
    for (int e = 0; e < 4; ++e) {
      rS[4 * g + e] = fa::exp2_approx(fmaf(rS[4 * g + e], scale_log2, e % 2 ? -l.y : -l.x));
    }
  }
}

// Two elements of rX = P rX. P is the bf16 pair that was multiplied; its lower half is the first.
__device__ inline void multiply_by_p(uint32_t pair, float& first, float& second) {
  first *= __uint_as_float(pair << 16);
  second *= __uint_as_float(pair & 0xffff0000u);
}

// dS = P (dP - delta) in dP's registers.
template <int n>
__device__ inline void compute_ds(float (&rdP)[n], const uint32_t (&rP)[n / 8][4],
                                  const float (&delta)[2 * n]) {
  UNROLL
  for (int g = 0; g < n / 4; ++g) {
    const float2 D = of_rows(delta, g);
    UNROLL
    for (int i = 4 * g; i < 4 * g + 4; i += 2) {
      rdP[i] -= D.x, rdP[i + 1] -= D.y;
      multiply_by_p(rP[i / 8][i % 8 / 2], rdP[i], rdP[i + 1]);
    }
  }
}

// dS^T of the warp's 16 keys to shared memory: [rows / 64][Bc][64], panels of 64 rows, swizzled.
template <int depth>
__device__ inline void put_ds(const uint32_t (&rdS)[depth][4], bf16* sdS) {
  const int lane = threadIdx.x % fa::kWarp;
  const int key = threadIdx.x / fa::kWarp * 16 + lane % 16;
  const int at = key * kPanel + (lane / 16 ^ key % 8) * 8;  // of rows 0 .. 15: swizzled
  UNROLL
  for (int r = 0; r < depth * kMma; r += kMma) {
    fa::stmatrix_x4(sdS + r / kPanel * Bc * kPanel + (at ^ r % kPanel), rdS[r / kMma]);
  }
}

}  // namespace step11

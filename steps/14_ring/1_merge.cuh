// Step 14 -- merging two partial results of a row.
// Idea      A rank sees the keys block by block. Attention over one block is a complete softmax
//           with its own LSE, and O over all keys is the mean of the blocks' O, weighted by
//           exp(LSE): they merge with 03's merge, in any order
// Changed   since 03 1_merge: LSE stands for m and l; O is merged too, with weights from LSE
// Traffic   requested per row   read  d*(2 + 2) + 4*2*d/8 B    O of both in bf16, LSE of both
//                               write d*2 + 4 B                where O so far is fp32: 4, not 2
//           compulsory          the same, each LSE once
// Launch    blocks of 256 threads, d/8 threads per row
// Owns      thread: eight features of a row
// Still bad a block's partial O is stored in HBM and loaded again: 10's epilogue could merge it
#pragma once

#include "steps/14_ring/parts.cuh"  // RowsOf and Place: which rows of which tensor a thread has

namespace step14 {

// Of any set of keys: the maximum of a row's scores, and the sum of exp(score - m).
struct RowStats {
  float m, l;
};

// exp(LSE) is l in units of exp(m): a result has m = LSE and l = 1. Without a key LSE is -inf.
__host__ __device__ inline RowStats stats_of(float LSE) {
  return {LSE, LSE == -INFINITY ? 0.f : 1.f};
}

// 03's merge: the sum with the smaller maximum is rescaled to the larger one. If the smaller
// maximum is -inf, nothing is rescaled, which avoids -inf - -inf, a NaN.
__host__ __device__ inline RowStats merge(RowStats a, RowStats b) {
  const bool a_larger = a.m >= b.m;
  const RowStats large = a_larger ? a : b, small = a_larger ? b : a;
  const float exponent = small.m == -INFINITY ? -INFINITY : small.m - large.m;
  return {large.m, large.l + small.l * expf(exponent)};
}

struct Merged {
  float LSE, old_weight, new_weight;  // O = old_weight * old O + new_weight * new O
};

// Where neither result saw a key, both O are 0, and so are the weights.
__host__ __device__ inline Merged merge(float old_LSE, float new_LSE) {
  const RowStats all = merge(stats_of(old_LSE), stats_of(new_LSE));
  if (all.m == -INFINITY) return {-INFINITY, 0.f, 0.f};
  return {all.m + logf(all.l), expf(old_LSE - all.m) / all.l, expf(new_LSE - all.m) / all.l};
}

// Merges O and LSE of one block of keys with those so far. Between a row's first merge and its
// last, O is fp32: rounded to bf16 at each hop, it would have an error that grows with R.
template <int d, class Old, class New, class T>
__global__ void merge_kernel(const Old* O_old,          // [B*H, N, d]
                             New* O,                    // [B*H, N, d], perhaps the same memory
                             float* LSE,                // [B*H, N]
                             const T* O_partial,        // [B*H, n, d]
                             const float* LSE_partial,  // [B*H, n]
                             RowsOf at, int heads) {
  const Place<d> place(at.rows);
  const bool inside = place.bh < heads;
  const size_t kept = inside ? place.kept(at) : 0, partial = inside ? place.partial(at) : 0;
  const Merged merged = inside ? merge(LSE[kept], LSE_partial[partial]) : Merged{};
  __syncwarp();  // a row's threads are in one warp: all have read its LSE
  if (!inside) return;
  float old[kFeatures], x[kFeatures];
  fa::load_eight(O_old + kept * d + place.x, old);
  fa::load_eight(O_partial + partial * d + place.x, x);
  UNROLL
  for (int i = 0; i < kFeatures; ++i) {
    x[i] = merged.old_weight * old[i] + merged.new_weight * x[i];
  }
  fa::store_eight(O + kept * d + place.x, x);
  if (place.x == 0) LSE[kept] = merged.LSE;
}

// --- host ---------------------------------------------------------------------------------------

template <class Old, class New, class T>
void merge_rows(int d, size_t heads, const Old* O_old, New* O, float* LSE, const T* O_partial,
                const float* LSE_partial, const RowsOf& at) {
  fa::dispatch_d<64, 128>(d, [&](auto D) {
    fa::launch(merge_kernel<D, Old, New, T>, row_blocks(heads, at.rows, D / kFeatures), O_old, O,
               LSE, O_partial, LSE_partial, at, int(heads));
  });
}

}  // namespace step14

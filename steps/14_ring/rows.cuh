// Step 14 -- rows of tensors: eight numbers at once; copies, sums.
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/fragment.h"
#include "common/harness/step.h"

namespace step14 {

using fa::bf16;

constexpr int kRowThreads = 256;  // of a block of the kernels here
constexpr int kFeatures = 8;      // of a row, that a thread owns

// --- eight numbers at once -----------------------------------------------------------------------

__device__ inline void load(const float* from, float (&x)[kFeatures]) {
  *reinterpret_cast<float4*>(x) = *reinterpret_cast<const float4*>(from);
  *reinterpret_cast<float4*>(x + 4) = *reinterpret_cast<const float4*>(from + 4);
}
__device__ inline void load(const bf16* from, float (&x)[kFeatures]) {
  __align__(16) bf16 row[kFeatures];
  *reinterpret_cast<uint4*>(row) = *reinterpret_cast<const uint4*>(from);
  UNROLL
  for (int i = 0; i < kFeatures; ++i) x[i] = __bfloat162float(row[i]);
}
__device__ inline void store(float* to, const float (&x)[kFeatures]) {
  *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(x);
  *reinterpret_cast<float4*>(to + 4) = *reinterpret_cast<const float4*>(x + 4);
}
__device__ inline void store(bf16* to, const float (&x)[kFeatures]) {
  __align__(16) bf16 row[kFeatures];
  UNROLL
  for (int i = 0; i < kFeatures; ++i) row[i] = __float2bfloat16(x[i]);
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(row);
}

// --- rows ---------------------------------------------------------------------------------------

// Rows of a longer tensor, and where their partial results begin in a shorter one. Per head.
struct RowsOf {
  int N, row0;      // rows of the tensor that is kept; the first of these
  int n, partial0;  // rows of the partial one; the first of these
  int rows;         // how many
};

// The row, and its eight features, that a thread owns.
template <int d>
struct Place {
  int bh, r, x;
  __device__ explicit Place(int rows) {
    const size_t i = size_t(blockIdx.x) * kRowThreads + threadIdx.x;
    x = int(i % (d / kFeatures)) * kFeatures;
    r = int(i / (d / kFeatures) % rows), bh = int(i / (d / kFeatures) / rows);
  }
  __device__ size_t kept(const RowsOf& at) const { return size_t(bh) * at.N + at.row0 + r; }
  __device__ size_t partial(const RowsOf& at) const { return size_t(bh) * at.n + at.partial0 + r; }
};

// Gradients merge by addition. Without old ones (null) the partial ones are the whole sum.
template <int d, class Old, class New, class T>
__global__ void add_kernel(const Old* old,    // [B*H, N, d]
                           New* sum,          // [B*H, N, d], perhaps the same memory
                           const T* partial,  // [B*H, n, d]
                           RowsOf at, int heads) {
  const Place<d> place(at.rows);
  if (place.bh >= heads) return;  // legal: no barrier follows
  float a[kFeatures] = {}, b[kFeatures];
  if (old) load(old + place.kept(at) * d + place.x, a);
  load(partial + place.partial(at) * d + place.x, b);
  UNROLL
  for (int i = 0; i < kFeatures; ++i) a[i] += b[i];
  store(sum + place.kept(at) * d + place.x, a);
}

// Copies rows of a longer tensor to a shorter one, or back. A row is `width` elements of type E.
template <class E, bool kBack>
__global__ void copy_rows_kernel(E* kept,     // [B*H, N, width]
                                 E* partial,  // [B*H, n, width]
                                 RowsOf at, int width, int heads) {
  const size_t i = size_t(blockIdx.x) * kRowThreads + threadIdx.x;
  const int x = int(i % width), r = int(i / width % at.rows);
  const size_t bh = i / width / at.rows;
  if (bh >= size_t(heads)) return;  // legal: no barrier follows
  E& a = kept[(bh * at.N + at.row0 + r) * width + x];
  E& b = partial[(bh * at.n + at.partial0 + r) * width + x];
  (kBack ? a : b) = kBack ? b : a;
}

// dQ's sums in HBM have the tensor cores' layout: 16 rows x 8 features are four numbers in each of
// 32 lanes. These are the distances between two lanes, and between two numbers of a lane.
struct Fragments {
  int lane, number;

  __device__ size_t at(int r, int x, int d) const {
    const int lanes = r % 8 * 4 + x % 8 / 2, numbers = r % 16 / 8 * 2 + x % 2;
    return size_t(r / 16 * (d / 8) + x / 8) * 128 + lanes * lane + numbers * number;
  }
};

// Adds the sums of a shorter tensor's rows to a longer one's. A thread owns a number of the shorter
// one; if row0 is a multiple of 16, neighbours are neighbours in both.
template <int d>
__global__ void add_sums_kernel(float* kept,           // [B*H, Np, d]
                                const float* partial,  // [B*H, np, d]
                                int Np, int np, int row0, int rows, int heads, Fragments order) {
  const size_t i = size_t(blockIdx.x) * kRowThreads + threadIdx.x;
  const int bh = int(i / (size_t(np) * d)), in_tile = int(i % 128);
  const int lane = in_tile / order.lane % 32, number = in_tile / order.number % 4;
  const int r = int(i / (16 * d) % (np / 16)) * 16 + number / 2 * 8 + fa::row_of(lane);
  const int x = int(i / 128 % (d / 8)) * 8 + fa::column_of(lane) + number % 2;
  if (bh >= heads || r >= rows) return;  // legal: no barrier follows
  kept[size_t(bh) * Np * d + order.at(row0 + r, x, d)] += partial[i];
}

// --- host ---------------------------------------------------------------------------------------

inline fa::LaunchConfig row_blocks(size_t heads, int rows, int threads) {
  return {dim3(unsigned((heads * rows * threads + kRowThreads - 1) / kRowThreads)),
          dim3(kRowThreads)};
}

template <class Old, class New, class T>
void add_rows(int d, size_t heads, const Old* old, New* sum, const T* partial, const RowsOf& at) {
  fa::dispatch_d<64, 128>(d, [&](auto D) {
    fa::launch(add_kernel<D, Old, New, T>, row_blocks(heads, at.rows, D / kFeatures), old, sum,
               partial, at, int(heads));
  });
}

// `from` is longer; `width` elements of E make a row.
template <class E>
void cut_rows(size_t heads, int width, const void* from, void* to, const RowsOf& at) {
  fa::launch(copy_rows_kernel<E, false>, row_blocks(heads, at.rows, width),
             static_cast<E*>(const_cast<void*>(from)), static_cast<E*>(to), at, width, int(heads));
}
// `to` is longer.
template <class E>
void paste_rows(size_t heads, int width, const void* from, void* to, const RowsOf& at) {
  fa::launch(copy_rows_kernel<E, true>, row_blocks(heads, at.rows, width), static_cast<E*>(to),
             static_cast<E*>(const_cast<void*>(from)), at, width, int(heads));
}

}  // namespace step14

/// \file
/// Stands in for NVIDIA's header. A fragment is cut into 32 equal parts, by rows or columns as in
/// memory, so that each lane loads neighbours. CUDA does not specify which element a lane has.
#pragma once
#include "cuda_bf16.h"
#include "cuda_fp16.h"

namespace nvcuda::wmma {

struct row_major;
struct col_major;
struct matrix_a;
struct matrix_b;
struct accumulator;
namespace precision {
struct tf32;
}
namespace experimental {  // names that CUTLASS mentions in rarely called functions
namespace precision {
struct u4;
struct s4;
struct b1;
}  // namespace precision
enum bmmaBitOp { bmmaBitOpXOR = 1, bmmaBitOpAND };
enum bmmaAccumulateOp { bmmaAccumulateOpPOPC = 1 };
}  // namespace experimental
template <class... A>
void bmma_sync(A&&...) {
  sim::any::unsupported("products of single bits");
}
enum layout_t { mem_row_major, mem_col_major };

template <class T>
constexpr sim::Number kNumber = sim::Number::f32;
template <>
constexpr sim::Number kNumber<__half> = sim::Number::f16;
template <>
constexpr sim::Number kNumber<__nv_bfloat16> = sim::Number::bf16;
template <>
constexpr sim::Number kNumber<precision::tf32> = sim::Number::tf32;
template <>
constexpr sim::Number kNumber<signed char> = sim::Number::s8;
template <>
constexpr sim::Number kNumber<char> = sim::Number::s8;
template <>
constexpr sim::Number kNumber<unsigned char> = sim::Number::u8;
template <>
constexpr sim::Number kNumber<int> = sim::Number::s32;
template <>
constexpr sim::Number kNumber<double> = sim::Number::f64;

template <class Use, int m, int n, int k, class T, class Layout = void>
struct fragment {
  using Element = std::conditional_t<std::is_same_v<T, precision::tf32>, float, T>;
  static constexpr int kRows = std::is_same_v<Use, matrix_b> ? k : m;
  static constexpr int kColumns = std::is_same_v<Use, matrix_a> ? k : n;
  static constexpr bool kByColumns = std::is_same_v<Layout, col_major>;
  static constexpr sim::Layout kLayout =
      kByColumns ? sim::Layout::by_columns : sim::Layout::by_rows;
  static constexpr int num_elements = kRows * kColumns / 32;
  static constexpr int num_storage_elements = num_elements;
  Element x[num_elements];
};

/// Calls f(its elements, those in memory) for this lane's part, which is contiguous in memory.
template <class T, class F>
__forceinline__ void for_each_part(T* x, T* p, int count, F&& f) {
  const auto bytes = count * sizeof(T);
  if (bytes % sizeof(uint4) == 0) {
    for (unsigned i = 0; i < bytes / sizeof(uint4); ++i) {
      f(reinterpret_cast<uint4*>(x)[i], reinterpret_cast<uint4*>(p)[i]);
    }
  } else if (bytes % sizeof(uint2) == 0) {
    for (unsigned i = 0; i < bytes / sizeof(uint2); ++i) {
      f(reinterpret_cast<uint2*>(x)[i], reinterpret_cast<uint2*>(p)[i]);
    }
  } else {
    for (int i = 0; i < count; ++i) f(x[i], p[i]);
  }
}
template <class Fragment, class T, class F>
void move(Fragment& a, T* p, unsigned ldm, bool by_columns, F&& f, sim::Where where) {
  sim::ballot(0xffffffff, true, where);
  constexpr int kCount = Fragment::num_elements;
  const int first = sim::any::lane() * kCount;
  if (by_columns == Fragment::kByColumns) {
    constexpr int kLength = Fragment::kByColumns ? Fragment::kRows : Fragment::kColumns;
    for_each_part(a.x, p + first / kLength * ldm + first % kLength, kCount, f);
    return;
  }
  for (int i = 0; i < kCount; ++i) {  // an accumulator by columns
    const int r = (first + i) / Fragment::kColumns, c = (first + i) % Fragment::kColumns;
    f(a.x[i], p[c * ldm + r]);
  }
}

template <class Use, int m, int n, int k, class T, class L>
void load_matrix_sync(fragment<Use, m, n, k, T, L>& a,
                      const typename fragment<Use, m, n, k, T, L>::Element* p, unsigned ldm,
                      SIM_HERE) {
  using Element = typename fragment<Use, m, n, k, T, L>::Element;
  move(
      a, const_cast<Element*>(p), ldm, a.kByColumns, [](auto& x, auto& y) { x = y; }, where);
}
template <int m, int n, int k, class T>
void load_matrix_sync(fragment<accumulator, m, n, k, T>& a, const T* p, unsigned ldm,
                      layout_t layout, SIM_HERE) {
  move(
      a, const_cast<T*>(p), ldm, layout == mem_col_major, [](auto& x, auto& y) { x = y; }, where);
}
template <int m, int n, int k, class T>
void store_matrix_sync(T* p, const fragment<accumulator, m, n, k, T>& a, unsigned ldm,
                       layout_t layout, SIM_HERE) {
  auto copy = a;
  move(
      copy, p, ldm, layout == mem_col_major, [](auto& x, auto& y) { y = x; }, where);
}
template <class Use, int m, int n, int k, class T, class L, class V>
void fill_fragment(fragment<Use, m, n, k, T, L>& a, const V& v) {
  for (auto& x : a.x) x = v;
}
template <int m, int n, int k, class A, class LA, class B, class LB, class C, class D>
void mma_sync(fragment<accumulator, m, n, k, D>& d, const fragment<matrix_a, m, n, k, A, LA>& a,
              const fragment<matrix_b, m, n, k, B, LB>& b,
              const fragment<accumulator, m, n, k, C>& c, bool saturate = false, SIM_HERE) {
  fragment<accumulator, m, n, k, D> sums;
  for (int i = 0; i < sums.num_elements; ++i) sums.x[i] = static_cast<D>(c.x[i]);
  sim::multiply({m, n, k, kNumber<A>, kNumber<B>, kNumber<D>, a.x, b.x, sums.x, d.x, saturate,
                 a.kLayout, b.kLayout, sums.kLayout},
                where);
}
inline float __float_to_tf32(float x) { return std::bit_cast<float>(sim::ptx::tf32(x)); }

}  // namespace nvcuda::wmma

/// \file
/// cuBLAS's levels 1, 2 and 3, except for the products in cublas_v2.h: one plain loop each, on the
/// host, for float, double and complex numbers. Sums are in fp64. Scalars may be on the host or the
/// device, so the pointer mode is ignored.
#pragma once

#include <complex>
#include <vector>

#include "cuComplex.h"
#include "cublas_v2.h"

namespace sim::any {

template <class T>
struct NumberOf : std::type_identity<T> {};
template <>
struct NumberOf<cuComplex> : std::type_identity<std::complex<float>> {};
template <>
struct NumberOf<cuDoubleComplex> : std::type_identity<std::complex<double>> {};
/// The types of the computation: for T, and for sums.
template <class T>
using Number = typename NumberOf<std::remove_const_t<T>>::type;
template <class N>
constexpr bool kComplex = !std::is_arithmetic_v<N>;
template <class N>
using Wide = std::conditional_t<kComplex<N>, std::complex<double>, double>;
template <class T>
Wide<Number<T>> scalar(const T* p) {
  return reinterpret_cast<const Number<T>&>(*p);
}
template <class N>
N conjugate(N v, bool really = true) {
  if constexpr (kComplex<N>) return really ? std::conj(v) : v;
  return v;
}

/// A vector; with a negative step it begins at its end.
template <class T>
struct Strided {
  using N = Number<T>;
  N* p;
  std::ptrdiff_t step;
  Strided(const T* q, int n, int by)
      : p(reinterpret_cast<N*>(const_cast<std::remove_const_t<T>*>(q)) +
          (by < 0 ? static_cast<std::ptrdiff_t>(1 - n) * by : 0)),
        step(by) {
    if (n > 0) Library::need_device(q);
  }
  N& operator[](int i) const { return p[i * step]; }
};

// Matrices as functions of row and column.
template <class T>
auto full(const T* p, int leading) {
  auto* q = reinterpret_cast<Number<T>*>(const_cast<std::remove_const_t<T>*>(p));
  Library::need_device(p);
  return
      [=](int i, int j) -> Number<T>& { return q[i + static_cast<std::ptrdiff_t>(j) * leading]; };
}
template <class T>
auto packed(const T* p, cublasFillMode_t half, std::ptrdiff_t n) {
  auto* q = reinterpret_cast<Number<T>*>(const_cast<std::remove_const_t<T>*>(p));
  Library::need_device(p);
  return [=](std::ptrdiff_t i, std::ptrdiff_t j) -> Number<T>& {
    return q[half == CUBLAS_FILL_MODE_UPPER ? i + j * (j + 1) / 2 : i + (2 * n - j - 1) * j / 2];
  };
}
template <class T>
auto banded(const T* p, int leading, int below, int above) {
  return [=, at = full(p, leading)](int i, int j) {
    return i - j > below || j - i > above ? Number<T>() : at(above + i - j, j);
  };
}
inline bool stored(cublasFillMode_t half, int i, int j) {
  return half == CUBLAS_FILL_MODE_UPPER ? i <= j : i >= j;
}
auto symmetric(auto a, cublasFillMode_t half, bool hermitian) {
  return [=](int i, int j) {
    const auto v = stored(half, i, j) ? a(i, j) : conjugate(+a(j, i), hermitian);
    return i == j && hermitian ? decltype(v)(std::real(v)) : v;
  };
}
auto triangle(auto a, cublasFillMode_t half, cublasDiagType_t diagonal) {
  return [=](int i, int j) {
    using N = std::remove_cvref_t<decltype(a(i, j))>;
    if (i == j && diagonal == CUBLAS_DIAG_UNIT) return N(1);
    return stored(half, i, j) ? N(a(i, j)) : N();
  };
}
auto turned(auto a, cublasOperation_t t) {
  return [=](int i, int j) {
    using N = std::remove_cvref_t<decltype(a(i, j))>;
    return t == CUBLAS_OP_N ? N(a(i, j)) : conjugate(N(a(j, i)), t == CUBLAS_OP_C);
  };
}

/// C = alpha A B + beta C, m x n numbers; `wanted` selects them. C may be A or B.
template <class A, class B, class C, class W, class Wanted>
void product(int m, int n, int k, W alpha, A a, B b, W beta, C c, Wanted wanted) {
  std::vector<W> sums(static_cast<size_t>(m) * n);
  for (int j = 0; j < n; ++j) {
    for (int i = 0; i < m; ++i) {
      W sum = 0;
      for (int l = 0; l < k && wanted(i, j); ++l) sum += W(a(i, l)) * W(b(l, j));
      sums[i + static_cast<size_t>(j) * m] = alpha * sum;
    }
  }
  for (int j = 0; j < n; ++j) {
    for (int i = 0; i < m; ++i) {
      using N = std::remove_cvref_t<decltype(c(i, j))>;
      if (!wanted(i, j)) continue;
      const W before = beta == W(0) ? W(0) : beta * W(c(i, j));
      c(i, j) = N(sums[i + static_cast<size_t>(j) * m] + before);
    }
  }
}
/// A hermitian result has a real diagonal.
void clear_diagonal(bool hermitian, int n, auto a) {
  for (int i = 0; hermitian && i < n; ++i) a(i, i) = std::real(a(i, i));
}
inline constexpr auto kAll = [](int, int) { return true; };
template <class T>
auto column(const Strided<T>& x) {
  return [=](int i, int) -> Number<T>& { return x[i]; };
}
/// Solves op(A) X = X: n rows, `columns` columns. `lower`: op(A) is lower triangular.
void solve(int n, int columns, auto a, bool lower, auto x) {
  for (int j = 0; j < columns; ++j) {
    for (int s = 0; s < n; ++s) {
      using N = std::remove_cvref_t<decltype(x(s, j))>;
      const int i = lower ? s : n - 1 - s;
      Wide<N> sum = x(i, j);
      for (int l = lower ? 0 : i + 1; l < (lower ? i : n); ++l) {
        sum -= Wide<N>(a(i, l)) * Wide<N>(x(l, j));
      }
      x(i, j) = N(sum / Wide<N>(a(i, i)));
    }
  }
}

}  // namespace sim::any

#define SIM_BLAS(name, ...) inline cublasStatus_t cublas##name(cublasHandle_t, __VA_ARGS__)
#define SIM_DOES(...)                \
  {                                  \
    using namespace sim::any;        \
    const Library library("cuBLAS"); \
    __VA_ARGS__;                     \
    return CUBLAS_STATUS_SUCCESS;    \
  }
#define SIM_VECTOR(T, x) const Strided<T> X(x, n, x##_step)
#define SIM_VECTORS(T) const Strided<T> X(x, n, x_step), Y(y, n, y_step)

// --- level 1 -------------------------------------------------------------------------------------

// For all types; `R` is the type of the absolute value.
#define SIM_LEVEL_1(L, RL, IL, T, R)                                                 \
  SIM_BLAS(L##axpy, int n, const T* alpha, const T* x, int x_step, T* y, int y_step) \
  SIM_DOES(SIM_VECTORS(T); const auto a = scalar(alpha);                             \
           for (int i = 0; i < n; ++i) Y[i] =                                        \
               Number<T>(a * Wide<Number<T>>(X[i]) + Wide<Number<T>>(Y[i])))         \
  SIM_BLAS(L##copy, int n, const T* x, int x_step, T* y, int y_step)                 \
  SIM_DOES(SIM_VECTORS(T); for (int i = 0; i < n; ++i) Y[i] = X[i])                  \
  SIM_BLAS(L##swap, int n, T* x, int x_step, T* y, int y_step)                       \
  SIM_DOES(SIM_VECTORS(T); for (int i = 0; i < n; ++i) std::swap(X[i], Y[i]))        \
  SIM_BLAS(L##scal, int n, const T* alpha, T* x, int x_step)                         \
  SIM_DOES(SIM_VECTOR(T, x); const auto a = scalar(alpha);                           \
           for (int i = 0; i < n; ++i) X[i] = Number<T>(a * Wide<Number<T>>(X[i])))  \
  SIM_BLAS(RL##nrm2, int n, const T* x, int x_step, R* result)                       \
  SIM_DOES(SIM_VECTOR(T, x); double sum = 0;                                         \
           for (int i = 0; i < n; ++i) sum += std::norm(Wide<Number<T>>(X[i]));      \
           *result = static_cast<R>(std::sqrt(sum)))                                 \
  SIM_BLAS(RL##asum, int n, const T* x, int x_step, R* result)                       \
  SIM_DOES(SIM_VECTOR(T, x); double sum = 0;                                         \
           for (int i = 0; i < n; ++i) sum +=                                        \
           std::abs(std::real(X[i])) + std::abs(std::imag(X[i]));                    \
           *result = static_cast<R>(sum))                                            \
  SIM_BLAS(IL##amax, int n, const T* x, int x_step, int* result)                     \
  SIM_DOES(*result = sim::any::extreme(Strided<T>(x, n, x_step), n, 1))              \
  SIM_BLAS(IL##amin, int n, const T* x, int x_step, int* result)                     \
  SIM_DOES(*result = sim::any::extreme(Strided<T>(x, n, x_step), n, -1))
#define SIM_DOT(name, T, conjugated)                                               \
  SIM_BLAS(name, int n, const T* x, int x_step, const T* y, int y_step, T* result) \
  SIM_DOES(SIM_VECTORS(const T); using N = Number<T>; Wide<N> sum = 0;             \
           for (int i = 0; i < n; ++i) sum +=                                      \
           Wide<N>(conjugate(X[i], conjugated)) * Wide<N>(Y[i]);                   \
           reinterpret_cast<N&>(*result) = N(sum))
#define SIM_ROT(L, T)                                                                            \
  SIM_BLAS(L##rot, int n, T* x, int x_step, T* y, int y_step, const T* c, const T* s)            \
  SIM_DOES(SIM_VECTORS(T); const T cosine = *c; const T sine = *s; for (int i = 0; i < n; ++i) { \
    const T a = X[i];                                                                            \
    X[i] = cosine * a + sine * Y[i], Y[i] = cosine * Y[i] - sine * a;                            \
  })
namespace sim::any {
/// The index, from 1 on, of the largest magnitude; with `sign` -1 of the smallest.
template <class T>
int extreme(const Strided<T>& x, int n, int sign) {
  const auto size = [&](int i) {
    return sign * (std::abs(std::real(x[i])) + std::abs(std::imag(x[i])));
  };
  int best = 0;
  for (int i = 1; i < n; ++i) best = size(i) > size(best) ? i : best;
  return n > 0 ? best + 1 : 0;
}
}  // namespace sim::any
SIM_LEVEL_1(S, S, Is, float, float)
SIM_LEVEL_1(D, D, Id, double, double)
SIM_LEVEL_1(C, Sc, Ic, cuComplex, float)
SIM_LEVEL_1(Z, Dz, Iz, cuDoubleComplex, double)
SIM_DOT(Sdot, float, false)
SIM_DOT(Ddot, double, false)
SIM_DOT(Cdotu, cuComplex, false)
SIM_DOT(Cdotc, cuComplex, true)
SIM_DOT(Zdotu, cuDoubleComplex, false)
SIM_DOT(Zdotc, cuDoubleComplex, true)
SIM_ROT(S, float)
SIM_ROT(D, double)
#undef SIM_LEVEL_1
#undef SIM_DOT
#undef SIM_ROT

// --- levels 2 and 3 ------------------------------------------------------------------------------

// `he` is sy for symmetric or he for hermitian.
#define SIM_SYMMETRIC(L, T, sy, H)                                                                \
  SIM_BLAS(L##sy##mv, cublasFillMode_t half, int n, const T* alpha, const T* A, int lda,          \
           const T* x, int x_step, const T* beta, T* y, int y_step)                               \
  SIM_DOES(SIM_VECTORS(T); product(n, 1, n, scalar(alpha), symmetric(full(A, lda), half, H),      \
                                   column(X), scalar(beta), column(Y), kAll))                     \
  SIM_BLAS(L##sy##mm, cublasSideMode_t side, cublasFillMode_t half, int m, int n, const T* alpha, \
           const T* A, int lda, const T* B, int ldb, const T* beta, T* C, int ldc)                \
  SIM_DOES(                                                                                       \
      const auto a = symmetric(full(A, lda), half, H); if (side == CUBLAS_SIDE_LEFT) {            \
        product(m, n, m, scalar(alpha), a, full(B, ldb), scalar(beta), full(C, ldc), kAll);       \
      } else {                                                                                    \
        product(m, n, n, scalar(alpha), full(B, ldb), a, scalar(beta), full(C, ldc), kAll);       \
      })
#define SIM_PACKED(L, T, sp, sb, H)                                                                \
  SIM_BLAS(L##sp##mv, cublasFillMode_t half, int n, const T* alpha, const T* A, const T* x,        \
           int x_step, const T* beta, T* y, int y_step)                                            \
  SIM_DOES(SIM_VECTORS(T); product(n, 1, n, scalar(alpha), symmetric(packed(A, half, n), half, H), \
                                   column(X), scalar(beta), column(Y), kAll))                      \
  SIM_BLAS(L##sb##mv, cublasFillMode_t half, int n, int k, const T* alpha, const T* A, int lda,    \
           const T* x, int x_step, const T* beta, T* y, int y_step)                                \
  SIM_DOES(SIM_VECTORS(T); const bool up = half == CUBLAS_FILL_MODE_UPPER; product(                \
               n, 1, n, scalar(alpha), symmetric(banded(A, lda, up ? 0 : k, up ? k : 0), half, H), \
               column(X), scalar(beta), column(Y), kAll))
#define SIM_RANK_K(L, T, S, syrk, op)                                                         \
  SIM_BLAS(L##syrk, cublasFillMode_t half, cublasOperation_t t, int n, int k, const S* alpha, \
           const T* A, int lda, const S* beta, T* C, int ldc)                                 \
  SIM_DOES(const auto a = turned(full(A, lda), t);                                            \
           product(n, n, k, Wide<Number<T>>(scalar(alpha)), a, turned(a, op),                 \
                   Wide<Number<T>>(scalar(beta)), full(C, ldc),                               \
                   [=](int i, int j) { return stored(half, i, j); });                         \
           clear_diagonal(op == CUBLAS_OP_C, n, full(C, ldc)))
#define SIM_RANK_1(name, T, conjugated)                                                           \
  SIM_BLAS(name, int m, int n, const T* alpha, const T* x, int x_step, const T* y, int y_step,    \
           T* A, int lda)                                                                         \
  SIM_DOES(const Strided<T> X(x, m, x_step), Y(y, n, y_step);                                     \
           product(m, n, 1, scalar(alpha), column(X),                                             \
                   turned(column(Y), conjugated ? CUBLAS_OP_C : CUBLAS_OP_T), Wide<Number<T>>(1), \
                   full(A, lda), kAll))
// A + alpha x y^T + alpha' y x^T, or A + alpha x x^T, in one half; ' and T conjugate for `H`.
#define SIM_RANK_2(L, T, S, sy, H)                                                              \
  SIM_BLAS(L##sy##2, cublasFillMode_t half, int n, const T* alpha, const T* x, int x_step,      \
           const T* y, int y_step, T* A, int lda)                                               \
  SIM_DOES(SIM_VECTORS(T); using W = Wide<Number<T>>; const W s = scalar(alpha); product(       \
               n, n, 2, W(1),                                                                   \
               [&](int i, int l) { return l ? conjugate(s, H) * W(Y[i]) : s * W(X[i]); },       \
               [&](int l, int j) { return conjugate(l ? X[j] : Y[j], H); }, W(1), full(A, lda), \
               [=](int i, int j) { return stored(half, i, j); });                               \
           clear_diagonal(H, n, full(A, lda)))                                                  \
  SIM_BLAS(L##sy, cublasFillMode_t half, int n, const S* alpha, const T* x, int x_step, T* A,   \
           int lda)                                                                             \
  SIM_DOES(SIM_VECTOR(T, x); using W = Wide<Number<T>>;                                         \
           product(n, n, 1, W(scalar(alpha)), column(X),                                        \
                   turned(column(X), H ? CUBLAS_OP_C : CUBLAS_OP_T), W(1), full(A, lda),        \
                   [=](int i, int j) { return stored(half, i, j); });                           \
           clear_diagonal(H, n, full(A, lda)))
// A x, and the solution x of A x = x, for A full, packed or a band of k diagonals.
#define SIM_TRIANGLES(L, T, kind, storage, parameters)                                         \
  SIM_BLAS(L##kind##mv, cublasFillMode_t half, cublasOperation_t t, cublasDiagType_t diagonal, \
           int n, SIM_REST parameters, T* x, int x_step)                                       \
  SIM_DOES(SIM_VECTOR(T, x); const bool up = half == CUBLAS_FILL_MODE_UPPER; (void)up;         \
           product(n, 1, n, Wide<Number<T>>(1), turned(triangle(storage, half, diagonal), t),  \
                   column(X), Wide<Number<T>>(0), column(X), kAll))                            \
  SIM_BLAS(L##kind##sv, cublasFillMode_t half, cublasOperation_t t, cublasDiagType_t diagonal, \
           int n, SIM_REST parameters, T* x, int x_step)                                       \
  SIM_DOES(SIM_VECTOR(T, x); const bool up = half == CUBLAS_FILL_MODE_UPPER;                   \
           solve(n, 1, turned(triangle(storage, half, diagonal), t), up != (t == CUBLAS_OP_N), \
                 column(X)))
// From packed to whole storage of one half, and back.
#define SIM_PACKING(name, T, to, from, parameters)                                         \
  SIM_BLAS(name, cublasFillMode_t half, int n, SIM_REST parameters)                        \
  SIM_DOES(for (int j = 0; j < n; ++j) for (int i = 0; i < n; ++i) if (stored(half, i, j)) \
               to(i, j) = from(i, j))
#define SIM_REST(...) __VA_ARGS__
#define SIM_LEVELS(L, T)                                                                           \
  SIM_BLAS(L##gemv, cublasOperation_t t, int m, int n, const T* alpha, const T* A, int lda,        \
           const T* x, int x_step, const T* beta, T* y, int y_step)                                \
  SIM_DOES(const int rows = t == CUBLAS_OP_N ? m : n; const int columns = m + n - rows;            \
           const Strided<T> X(x, columns, x_step), Y(y, rows, y_step);                             \
           product(rows, 1, columns, scalar(alpha), turned(full(A, lda), t), column(X),            \
                   scalar(beta), column(Y), kAll))                                                 \
  SIM_BLAS(L##gbmv, cublasOperation_t t, int m, int n, int below, int above, const T* alpha,       \
           const T* A, int lda, const T* x, int x_step, const T* beta, T* y, int y_step)           \
  SIM_DOES(const int rows = t == CUBLAS_OP_N ? m : n; const int columns = m + n - rows;            \
           const Strided<T> X(x, columns, x_step), Y(y, rows, y_step);                             \
           product(rows, 1, columns, scalar(alpha), turned(banded(A, lda, below, above), t),       \
                   column(X), scalar(beta), column(Y), kAll))                                      \
  SIM_TRIANGLES(L, T, tr, full(A, lda), (const T* A, int lda))                                     \
  SIM_TRIANGLES(L, T, tp, packed(A, half, n), (const T* A))                                        \
  SIM_TRIANGLES(L, T, tb, banded(A, lda, up ? 0 : k, up ? k : 0), (int k, const T* A, int lda))    \
  SIM_SYMMETRIC(L, T, sy, false)                                                                   \
  SIM_PACKING(L##tpttr, T, full(A, lda), packed(AP, half, n), (const T* AP, T* A, int lda))        \
  SIM_PACKING(L##trttp, T, packed(AP, half, n), full(A, lda), (const T* A, int lda, T* AP))        \
  SIM_RANK_K(L, T, T, syrk, CUBLAS_OP_T)                                                           \
  SIM_BLAS(L##trsm, cublasSideMode_t side, cublasFillMode_t half, cublasOperation_t t,             \
           cublasDiagType_t diagonal, int m, int n, const T* alpha, const T* A, int lda, T* B,     \
           int ldb)                                                                                \
  SIM_DOES(                                                                                        \
      const bool left = side == CUBLAS_SIDE_LEFT; const auto b = full(B, ldb);                     \
      const auto a = turned(triangle(full(A, lda), half, diagonal), t);                            \
      for (int j = 0; j < n; ++j) for (int i = 0; i < m; ++i) b(i, j) =                            \
          Number<T>(scalar(alpha) * Wide<Number<T>>(b(i, j)));                                     \
      const bool lower = (half == CUBLAS_FILL_MODE_LOWER) == (t == CUBLAS_OP_N); if (left) {       \
        solve(m, n, a, lower, b);                                                                  \
      } else { /* the transposed problem */                                                        \
               solve(n, m, turned(a, CUBLAS_OP_T), !lower,                                         \
                     [=](int i, int j) -> Number<T>& { return b(j, i); });                         \
      })                                                                                           \
  SIM_BLAS(L##geam, cublasOperation_t ta, cublasOperation_t tb, int m, int n, const T* alpha,      \
           const T* A, int lda, const T* beta, const T* B, int ldb, T* C, int ldc)                 \
  SIM_DOES(using W = Wide<Number<T>>; const W p = scalar(alpha); const W q = scalar(beta);         \
           const auto a = turned(full(A, lda), ta); const auto b = turned(full(B, ldb), tb);       \
           for (int j = 0; j < n; ++j) for (int i = 0; i < m; ++i) full(C, ldc)(i, j) = Number<T>( \
               (p == W(0) ? W(0) : p * W(a(i, j))) + (q == W(0) ? W(0) : q * W(b(i, j)))))         \
  SIM_BLAS(L##dgmm, cublasSideMode_t side, int m, int n, const T* A, int lda, const T* x,          \
           int x_step, T* C, int ldc)                                                              \
  SIM_DOES(const bool left = side == CUBLAS_SIDE_LEFT;                                             \
           const Strided<T> X(x, left ? m : n, x_step);                                            \
           for (int j = 0; j < n; ++j) for (int i = 0; i < m; ++i) full(C, ldc)(i, j) =            \
               full(A, lda)(i, j) * X[left ? i : j])
SIM_LEVELS(S, float)
SIM_LEVELS(D, double)
SIM_LEVELS(C, cuComplex)
SIM_LEVELS(Z, cuDoubleComplex)
SIM_PACKED(S, float, sp, sb, false)
SIM_PACKED(D, double, sp, sb, false)
SIM_SYMMETRIC(C, cuComplex, he, true)
SIM_SYMMETRIC(Z, cuDoubleComplex, he, true)
SIM_PACKED(C, cuComplex, hp, hb, true)
SIM_PACKED(Z, cuDoubleComplex, hp, hb, true)
SIM_RANK_K(C, cuComplex, float, herk, CUBLAS_OP_C)
SIM_RANK_K(Z, cuDoubleComplex, double, herk, CUBLAS_OP_C)
SIM_RANK_2(S, float, float, syr, false)
SIM_RANK_2(D, double, double, syr, false)
SIM_RANK_2(C, cuComplex, float, her, true)
SIM_RANK_2(Z, cuDoubleComplex, double, her, true)
SIM_RANK_1(Sger, float, false)
SIM_RANK_1(Dger, double, false)
SIM_RANK_1(Cgeru, cuComplex, false)
SIM_RANK_1(Cgerc, cuComplex, true)
SIM_RANK_1(Zgeru, cuDoubleComplex, false)
SIM_RANK_1(Zgerc, cuDoubleComplex, true)
#define SIM_GEMM(L, T)                                                                             \
  SIM_BLAS(L##gemm, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,               \
           const T* alpha, const T* A, int lda, const T* B, int ldb, const T* beta, T* C, int ldc) \
  SIM_DOES(product(m, n, k, scalar(alpha), turned(full(A, lda), ta), turned(full(B, ldb), tb),     \
                   scalar(beta), full(C, ldc), kAll))
SIM_GEMM(C, cuComplex)
SIM_GEMM(Z, cuDoubleComplex)
#define SIM_BATCHED(L, T)                                                                      \
  inline cublasStatus_t cublas##L##gemmBatched(                                                \
      cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,       \
      const T* alpha, const T* const A[], int lda, const T* const B[], int ldb, const T* beta, \
      T* const C[], int ldc, int count) {                                                      \
    const sim::any::Library library("cuBLAS");                                                 \
    for (int i = 0; i < count; ++i) {                                                          \
      cublas##L##gemm(h, ta, tb, m, n, k, alpha, A[i], lda, B[i], ldb, beta, C[i], ldc);       \
    }                                                                                          \
    return CUBLAS_STATUS_SUCCESS;                                                              \
  }
SIM_BATCHED(S, float)
SIM_BATCHED(D, double)
SIM_BATCHED(H, __half)
SIM_BATCHED(C, cuComplex)
SIM_BATCHED(Z, cuDoubleComplex)
#undef SIM_BATCHED
#undef SIM_GEMM
#undef SIM_LEVELS
#undef SIM_REST
#undef SIM_PACKING
#undef SIM_TRIANGLES
#undef SIM_RANK_1
#undef SIM_RANK_2
#undef SIM_RANK_K
#undef SIM_SYMMETRIC
#undef SIM_PACKED
#undef SIM_VECTORS
#undef SIM_VECTOR
#undef SIM_DOES
#undef SIM_BLAS

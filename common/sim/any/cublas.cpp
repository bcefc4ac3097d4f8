// cuBLAS's products, on the host.
#define FA_ANY_PROGRAM
#include "common/sim/any/include/cublas_v2.h"

#include <algorithm>
#include <complex>
#include <vector>

#include "common/sim/memory/device_memory.h"
#include "common/sim/memory/memory.h"

namespace sim::any {

namespace {

using Complex = std::complex<double>;

void written(void* p, size_t bytes) {
  const uint64_t offset = reinterpret_cast<uintptr_t>(p) - kHbmBase;
  if (offset < kHbmSpan) mark_written(offset, bytes);
}

auto as_stored(cudaDataType_t type, auto&& f) {
  switch (type) {
    case CUDA_R_32F:
      return f(float());
    case CUDA_R_64F:
      return f(double());
    case CUDA_R_16F:
      return f(__half());
    case CUDA_R_16BF:
      return f(__nv_bfloat16());
    case CUDA_R_8I:
      return f(int8_t());
    case CUDA_R_32I:
      return f(int32_t());
    case CUDA_C_32F:
      return f(std::complex<float>());
    case CUDA_C_64F:
      return f(Complex());
    default:
      unsupported("a data type of cuBLAS");
  }
}

size_t bytes_of(cudaDataType_t type) {
  return as_stored(type, [](auto zero) { return sizeof zero; });
}

// N: double or Complex.
template <class N>
N number_at(cudaDataType_t type, const void* p) {
  return as_stored(type, [p](auto zero) -> N {
    const auto v = *static_cast<const decltype(zero)*>(p);
    if constexpr (std::is_arithmetic_v<decltype(zero)>) {
      return v;
    } else if constexpr (std::is_convertible_v<decltype(zero), float>) {
      return float{v};
    } else {
      if constexpr (std::is_same_v<N, Complex>) return v;
      unsupported("a complex factor of a real product");
    }
  });
}
template <class N>
void put(cudaDataType_t type, void* p, N v) {
  as_stored(type, [=](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_arithmetic_v<T>) {
      *static_cast<T*>(p) = static_cast<T>(std::real(v));
    } else if constexpr (std::is_convertible_v<T, float>) {
      *static_cast<T*>(p) = T(static_cast<float>(std::real(v)));
    } else {
      *static_cast<T*>(p) = T(v);
    }
  });
  written(p, bytes_of(type));
}

void* at(const Matrix& x, long long row, long long column, long long i) {
  const long long index = i * x.stride + row + column * x.leading;
  return static_cast<char*>(const_cast<void*>(x.p)) +
         index * static_cast<long long>(bytes_of(x.type));
}

bool lies_inside(const char* name, const Matrix& x, int rows, int columns, int count) {
  if (rows == 0 || columns == 0 || count == 0) return true;
  if (x.op != CUBLAS_OP_N) std::swap(rows, columns);
  const auto size = static_cast<std::ptrdiff_t>(bytes_of(x.type));
  const std::ptrdiff_t last = (count - 1) * x.stride;
  const std::ptrdiff_t one = rows + (columns - 1) * x.leading;
  return Library::reaches(name, x.p, std::min<std::ptrdiff_t>(0, last) * size,
                          (std::max<std::ptrdiff_t>(0, last) + one) * size);
}

// op(X) as rows x columns numbers in row-major order.
template <class N>
std::vector<N> numbers(const Matrix& x, int rows, int columns, long long i) {
  std::vector<N> all(static_cast<size_t>(rows) * columns);
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) {
      N& v = all[static_cast<size_t>(r) * columns + c];
      v = number_at<N>(x.type, x.op == CUBLAS_OP_N ? at(x, r, c, i) : at(x, c, r, i));
      if constexpr (std::is_same_v<N, Complex>) v = x.op == CUBLAS_OP_C ? std::conj(v) : v;
    }
  }
  return all;
}

template <class N>
void multiply_as(int m, int n, int k, N alpha, const Matrix& a, const Matrix& b, N beta,
                 const Matrix& c, int count) {
  std::vector<N> sums(static_cast<size_t>(n));
  for (int i = 0; i < count; ++i) {
    const std::vector<N> left = numbers<N>(a, m, k, i), right = numbers<N>(b, k, n, i);
    for (int row = 0; row < m; ++row) {
      std::fill(sums.begin(), sums.end(), N());
      for (int x = 0; x < k; ++x) {
        const N factor = left[static_cast<size_t>(row) * k + x];
        const N* p = &right[static_cast<size_t>(x) * n];
        for (int column = 0; column < n; ++column) sums[column] += factor * p[column];
      }
      for (int column = 0; column < n; ++column) {
        void* p = at(c, row, column, i);
        const N before = beta == N() ? N() : beta * number_at<N>(c.type, p);
        put<N>(c.type, p, alpha * sums[column] + before);
      }
    }
  }
}

}  // namespace

bool multiply(int m, int n, int k, cudaDataType_t scalar, const void* alpha, const Matrix& a,
              const Matrix& b, const void* beta, const Matrix& c, int count) {
  const Library library("cuBLAS");
  if (!lies_inside("A", a, m, k, count) || !lies_inside("B", b, k, n, count) ||
      !lies_inside("C", c, m, n, count)) {
    return false;
  }
  const auto with = [&]<class N>(N) {
    multiply_as<N>(m, n, k, number_at<N>(scalar, alpha), a, b, number_at<N>(scalar, beta), c,
                   count);
  };
  scalar == CUDA_C_32F || scalar == CUDA_C_64F ? with(Complex()) : with(double());
  return true;
}

}  // namespace sim::any

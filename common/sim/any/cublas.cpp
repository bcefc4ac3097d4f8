// cuBLAS's products, and its functions on vectors of any type, on the host.
#define FA_ANY_PROGRAM
#include "common/sim/any/include/cublas_v2.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "common/sim/memory/device_memory.h"
#include "common/sim/memory/memory.h"

namespace sim::any {

namespace {

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
    default:
      unsupported("a data type of cuBLAS");
  }
}

size_t bytes_of(cudaDataType_t type) {
  return as_stored(type, [](auto zero) { return sizeof zero; });
}

void* at(const Matrix& x, long long row, long long column, long long i) {
  const long long index = i * x.stride + row + column * x.leading;
  return static_cast<char*>(const_cast<void*>(x.p)) +
         index * static_cast<long long>(bytes_of(x.type));
}

bool lies_inside(const char* name, const Matrix& x, int rows, int columns, int count) {
  if (rows == 0 || columns == 0 || count == 0) return true;
  if (x.transposed) std::swap(rows, columns);
  const auto size = static_cast<std::ptrdiff_t>(bytes_of(x.type));
  const std::ptrdiff_t last = (count - 1) * x.stride;
  const std::ptrdiff_t one = rows + (columns - 1) * x.leading;
  return Library::reaches(name, x.p, std::min<std::ptrdiff_t>(0, last) * size,
                          (std::max<std::ptrdiff_t>(0, last) + one) * size);
}
bool lies_inside(const char* name, const Numbers& x, int n) {
  if (n <= 0) return true;
  return Library::reaches(name, x.p, 0,
                          (std::abs(std::ptrdiff_t{x.step}) * (n - 1) + 1) *
                              static_cast<std::ptrdiff_t>(bytes_of(x.type)));
}

// op(X) as rows x columns numbers in row-major order.
std::vector<double> numbers(const Matrix& x, int rows, int columns, long long i) {
  std::vector<double> all(static_cast<size_t>(rows) * columns);
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) {
      all[static_cast<size_t>(r) * columns + c] =
          number_at(x.type, x.transposed ? at(x, c, r, i) : at(x, r, c, i));
    }
  }
  return all;
}

}  // namespace

double number_at(cudaDataType_t type, const void* p) {
  return as_stored(type, [p](auto zero) -> double {
    const auto v = *static_cast<const decltype(zero)*>(p);
    if constexpr (std::is_arithmetic_v<decltype(zero)>) {
      return v;
    } else {
      return float{v};
    }
  });
}
void put(cudaDataType_t type, void* p, double v) {
  as_stored(type, [=](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_arithmetic_v<T>) {
      *static_cast<T*>(p) = static_cast<T>(v);
    } else {
      *static_cast<T*>(p) = T(static_cast<float>(v));
    }
  });
  written(p, bytes_of(type));
}

bool multiply(int m, int n, int k, double alpha, const Matrix& a, const Matrix& b, double beta,
              const Matrix& c, int count) {
  const Library library("cuBLAS");
  if (!lies_inside("A", a, m, k, count) || !lies_inside("B", b, k, n, count) ||
      !lies_inside("C", c, m, n, count)) {
    return false;
  }
  std::vector<double> sums(static_cast<size_t>(n));
  for (int i = 0; i < count; ++i) {
    const std::vector<double> left = numbers(a, m, k, i), right = numbers(b, k, n, i);
    for (int row = 0; row < m; ++row) {
      std::fill(sums.begin(), sums.end(), 0.0);
      for (int x = 0; x < k; ++x) {
        const double factor = left[static_cast<size_t>(row) * k + x];
        const double* p = &right[static_cast<size_t>(x) * n];
        for (int column = 0; column < n; ++column) sums[column] += factor * p[column];
      }
      for (int column = 0; column < n; ++column) {
        void* p = at(c, row, column, i);
        const double before = beta == 0 ? 0 : beta * number_at(c.type, p);
        put(c.type, p, alpha * sums[column] + before);
      }
    }
  }
  return true;
}

void* Numbers::at(int i, int n) const {
  const std::ptrdiff_t place =
      step < 0 ? std::ptrdiff_t{i - n + 1} * step : std::ptrdiff_t{i} * step;
  return static_cast<char*>(const_cast<void*>(p)) +
         place * static_cast<std::ptrdiff_t>(bytes_of(type));
}
bool axpy(int n, double alpha, const Numbers& x, const Numbers& y) {
  const Library library("cuBLAS");
  if (!lies_inside("x", x, n) || !lies_inside("y", y, n)) return false;
  for (int i = 0; i < n; ++i) {
    const double sum = alpha * number_at(x.type, x.at(i, n)) + number_at(y.type, y.at(i, n));
    put(y.type, y.at(i, n), sum);
  }
  return true;
}
bool scale(int n, double alpha, const Numbers& x) {
  const Library library("cuBLAS");
  if (!lies_inside("x", x, n)) return false;
  for (int i = 0; i < n; ++i) put(x.type, x.at(i, n), alpha * number_at(x.type, x.at(i, n)));
  return true;
}
bool dot(int n, const Numbers& x, const Numbers& y, double* sum) {
  const Library library("cuBLAS");
  if (!lies_inside("x", x, n) || !lies_inside("y", y, n)) return false;
  for (int i = 0; i < n; ++i) *sum += number_at(x.type, x.at(i, n)) * number_at(y.type, y.at(i, n));
  return true;
}

}  // namespace sim::any

// cuBLAS's products, on the host.
#define FA_ANY_PROGRAM
#include "common/sim/program/include/cublas_v2.h"

#include <vector>

#include "common/sim/memory/device_memory.h"
#include "common/sim/memory/memory.h"

namespace sim::program {

namespace {

void put(cudaDataType_t type, void* p, double v) {
  switch (type) {
    case CUDA_R_32F:
      *static_cast<float*>(p) = static_cast<float>(v);
      break;
    case CUDA_R_64F:
      *static_cast<double*>(p) = v;
      break;
    case CUDA_R_16F:
      *static_cast<__half*>(p) = __half(static_cast<float>(v));
      break;
    case CUDA_R_16BF:
      *static_cast<__nv_bfloat16*>(p) = __nv_bfloat16(static_cast<float>(v));
      break;
  }
}

size_t bytes_of(cudaDataType_t type) { return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2; }

void* at(const Matrix& x, long long row, long long column, long long i) {
  const long long index = i * x.stride + row + column * x.leading;
  return static_cast<char*>(const_cast<void*>(x.p)) +
         index * static_cast<long long>(bytes_of(x.type));
}

// op(X) as rows x columns numbers, row by row.
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

void written(void* p, size_t bytes) {
  const uint64_t offset = reinterpret_cast<uintptr_t>(p) - kHbmBase;
  if (offset < kHbmSpan) mark_written(offset, bytes);
}

}  // namespace

double number_at(cudaDataType_t type, const void* p) {
  switch (type) {
    case CUDA_R_32F:
      return *static_cast<const float*>(p);
    case CUDA_R_64F:
      return *static_cast<const double*>(p);
    case CUDA_R_16F:
      return float{*static_cast<const __half*>(p)};
    case CUDA_R_16BF:
      return float{*static_cast<const __nv_bfloat16*>(p)};
  }
  unsupported("a data type of cuBLAS");
}

void multiply(int m, int n, int k, double alpha, const Matrix& a, const Matrix& b, double beta,
              const Matrix& c, int count) {
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
        written(p, bytes_of(c.type));
      }
    }
  }
}

void multiply_vector(int m, int n, double alpha, const Matrix& a, const void* x, int x_step,
                     double beta, void* y, int y_step) {
  const int rows = a.transposed ? n : m, columns = a.transposed ? m : n;
  const std::vector<double> left = numbers(a, rows, columns, 0);
  const auto width = static_cast<int>(bytes_of(a.type));
  for (int r = 0; r < rows; ++r) {
    double sum = 0;
    for (int c = 0; c < columns; ++c) {
      sum += left[static_cast<size_t>(r) * columns + c] *
             number_at(a.type, static_cast<const char*>(x) + c * x_step * width);
    }
    void* p = static_cast<char*>(y) + r * y_step * width;
    put(a.type, p, alpha * sum + (beta == 0 ? 0 : beta * number_at(a.type, p)));
    written(p, static_cast<size_t>(width));
  }
}

}  // namespace sim::program

/// \file
/// Sizes of a tensor's rows in fp64, for the checker's floors. A NaN counts as 0.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <mutex>
#include <vector>

#include "common/harness/parallel.h"

namespace fa {

/// The largest magnitude of n elements.
template <class Real>
double largest_size(const Real* a, size_t n) {
  double largest = 0;
  for (size_t i = 0; i < n; ++i) largest = std::max<double>(largest, std::abs(a[i]));
  return largest;
}

/// The norm of a row of d.
inline double norm(const float* a, size_t d) {
  double sum = 0;
  for (size_t x = 0; x < d; ++x) sum += static_cast<double>(a[x]) * a[x];
  return std::sqrt(sum);
}

/// The largest norm of the rows of [rows, d].
inline double largest_norm(const float* a, size_t rows, size_t d) {
  double largest = 0;
  for (size_t r = 0; r < rows; ++r) largest = std::max(largest, norm(a + r * d, d));
  return largest;
}

/// The largest result of of(begin, end) over pieces of [0, n), on all cores.
double largest_of_all(size_t n, const auto& of) {
  double largest = 0;
  std::mutex mutex;
  parallel_chunks(n, [&](size_t begin, size_t end) {
    const double found = of(begin, end);
    const std::lock_guard lock(mutex);
    largest = std::max(largest, found);
  });
  return largest;
}

/// The largest magnitude in a tensor.
inline double largest(const std::vector<float>& t) {
  return largest_of_all(
      t.size(), [&t](size_t begin, size_t end) { return largest_size(&t[begin], end - begin); });
}

}  // namespace fa

// An operand of 64 values of k for wgmma or tcgen05.mma, and the product of two by definition.
#pragma once

#include "common/dialect/ptx/tensor_sum.h"
#include "tests/device.h"
#include "tests/test.h"

namespace test {

constexpr int kK = 64;

/// `mn` x 64 in shared memory, from TMA boxes of one swizzle width: panels of W bytes per row.
template <int mn, fa::Major major_, fa::Swizzle swizzle_>
struct Operand {
  static constexpr fa::Major major = major_;
  static constexpr fa::Swizzle swizzle = swizzle_;
  static constexpr int kWidth = static_cast<int>(swizzle);
  static constexpr int kMn = mn, kBytes = mn * kK * 2;
  static constexpr int kRows = major == fa::Major::k ? mn : kK;  // rows of memory
  static constexpr int kCols = major == fa::Major::k ? kK : mn;
  static constexpr int kPanelCols = kWidth / 2;
  static constexpr int kPanelBytes = kRows * kWidth;

  static fa::TensorMap map(const bf16* p) {
    return fa::tensor_map(p, {{kCols, 1, kPanelCols}, {kRows, kCols, kRows}}, swizzle);
  }
  static FA_PTX void load(char* tile, const fa::TensorMap* map, uint64_t* bar) {
    for (int i = 0; i < kCols / kPanelCols; ++i) {
      fa::tma_load(tile + i * kPanelBytes, map, bar, {i * kPanelCols, 0});
    }
  }
  /// x[rows][64] in the order of device memory.
  static std::vector<bf16> in_memory(const std::vector<bf16>& x) {
    if (major == fa::Major::k) return x;
    const int rows = static_cast<int>(x.size()) / kK;
    return each<bf16>(x.size(), [&](int i) { return x[i % rows * kK + i / rows]; });
  }
};

/// The scalar meaning: D[m][n] = sum over k of A[m][k] B[n][k], 16 of them per step.
inline std::vector<float> product(const std::vector<bf16>& a, const std::vector<bf16>& b) {
  const int N = static_cast<int>(b.size()) / kK;
  return each<float>(a.size() / kK * N, [&](int i) {
    const bf16 *row = &a[i / N * kK], *column = &b[i % N * kK];
    float sum = 0;
    for (int k = 0; k < kK; k += 16) {
      float x[16], y[16];
      for (int j = 0; j < 16; ++j) {
        x[j] = static_cast<float>(row[k + j]);
        y[j] = static_cast<float>(column[k + j]);
      }
      sum = fa::tensor_sum(fa::kBf16Sum, x, y, sum);
    }
    return sum;
  });
}

/// A kernel of 128 threads, (a, map of A, map of B, D), multiplies a[M][64] and b[N][64].
template <class A, class B>
void check_product(void (*kernel)(const bf16*, fa::TensorMap, fa::TensorMap, float*),
                   const std::vector<bf16>& a, const std::vector<bf16>& b) {
  CAPTURE(B::kMn, static_cast<int>(A::major), static_cast<int>(B::major),
          static_cast<int>(B::swizzle));
  const Buffer<bf16> in_a("A", A::in_memory(a)), in_b("B", B::in_memory(b));
  const auto got = results<float>(A::kMn * B::kMn, kernel, {1, 128, A::kBytes + B::kBytes}, a,
                                  A::map(in_a), B::map(in_b));
  CHECK((got == product(a, b)));
}

}  // namespace test

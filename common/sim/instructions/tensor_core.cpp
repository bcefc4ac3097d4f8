// Of one element fa::tensor_sum says it all. Here a row of elements is added at once, in loops that
// the compiler vectorises: terms in units of 2^(E - aligned_bits) are integers of 32 bits.
#include "common/sim/instructions/tensor_core.h"

#include <algorithm>
#include <bit>
#include <cstdint>

// Twice as many lanes where the machine has them.
#if defined(__x86_64__) && !defined(__clang__)
#define FA_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define FA_WIDE
#endif

namespace sim {

namespace {

// Exponents outside these go the slow way: here no term, unit or sum overflows or is subnormal.
constexpr float kLeast = 0x1p-100f, kLargest = 0x1p120f;

float power_of(float x) { return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0x7f800000u); }

struct Row {
  float largest[kTensorColumns];                      // 2^E
  float scale[kTensorColumns];                        // units to 1
  int first[kTensorColumns], second[kTensorColumns];  // sums of units: one could overflow
  int slow[kTensorColumns];                           // D is left as it was, for fa::tensor_sum
};

// All terms of a row, by the loops below. `a`, `power`: row r of A; `largest`: of `power`. Returns
// whether a column of it is slow.
FA_WIDE bool add_row(const fa::TensorSum& rule, const float* a, const float* power, float largest,
                     const TensorOperand& B, int columns, float* D, Row& row) {
  for (int c = 0; c < columns; ++c) row.largest[c] = power_of(D[c]);
  for (int k = 0; k < rule.products; ++k) {
    const float p = power[k];
    if (p == 0) continue;
    const float* q = B.power[k];
    for (int c = 0; c < columns; ++c) {
      const float both = p * q[c];
      row.largest[c] = row.largest[c] < both ? both : row.largest[c];
    }
  }
  const uint32_t bias = static_cast<uint32_t>(2 * 127 + rule.aligned_bits) << 23;
  for (int c = 0; c < columns; ++c) {
    const float scale = std::bit_cast<float>(bias - std::bit_cast<uint32_t>(row.largest[c]));
    row.scale[c] = row.largest[c] >= kLeast && row.largest[c] <= kLargest ? scale : 0;
    row.first[c] = row.scale[c] != 0 ? static_cast<int>(D[c] * row.scale[c]) : 0;
    row.second[c] = 0;
    // Zeros alone are frequent: tiles are padded with them, and so are masked rows of P.
    const bool zeros = D[c] == 0 && (largest == 0 || B.row_largest[c] == 0);
    row.slow[c] = row.scale[c] == 0 && !zeros;
  }
  for (int k = 0; k < rule.products; ++k) {
    const float x = a[k];
    if (x == 0) continue;
    int* sum = k % 2 ? row.second : row.first;
    const float* b = B.value[k];
    for (int c = 0; c < columns; ++c) sum[c] += static_cast<int>(x * b[c] * row.scale[c]);
  }
  const double unit = std::ldexp(1., -rule.aligned_bits);
  const uint64_t kept = ~uint64_t{0} << (52 - rule.kept_bits);
  int slow = 0;
  for (int c = 0; c < columns; ++c) {
    slow |= row.slow[c];
    const double sum = (double(row.first[c]) + double(row.second[c])) * (row.largest[c] * unit);
    const auto cut = std::bit_cast<double>(std::bit_cast<uint64_t>(sum) & kept);
    D[c] = row.slow[c] ? D[c] : static_cast<float>(cut);
  }
  return slow;
}

}  // namespace

FA_WIDE void TensorOperand::set_powers(const fa::TensorSum& rule, int rows) {
  const float least = std::ldexp(1.f, rule.least_exponent);
  std::fill_n(row_largest, rows, 0.f);
  for (int k = 0; k < rule.products; ++k) {
    for (int r = 0; r < rows; ++r) {
      const float p = power_of(value[k][r]);
      const float normal = p < least ? least : p;
      power[k][r] = value[k][r] == 0 ? 0 : normal;
      row_largest[r] = row_largest[r] < power[k][r] ? power[k][r] : row_largest[r];
    }
  }
  largest = *std::max_element(row_largest, row_largest + rows);
}

void multiply_add(const fa::TensorSum& rule, const TensorOperand& A, const TensorOperand& B,
                  int columns, float (*D)[kTensorColumns]) {
  Row row;
  float a[kTensorProducts], power[kTensorProducts], b[kTensorProducts];
  for (int r = 0; r < kTensorRows; ++r) {
    for (int k = 0; k < rule.products; ++k) a[k] = A.value[k][r], power[k] = A.power[k][r];
    const float largest = A.row_largest[r];  // an inf or a NaN makes no other row slow
    if (largest <= kLargest && B.largest <= kLargest &&
        double{largest} * B.largest <= double{kLargest}) {
      if (!add_row(rule, a, power, largest, B, columns, D[r], row)) continue;
    } else {
      std::fill_n(row.slow, columns, 1);
    }
    for (int c = 0; c < columns; ++c) {
      if (!row.slow[c]) continue;
      for (int k = 0; k < rule.products; ++k) b[k] = B.value[k][c];
      D[r][c] = fa::tensor_sum(rule, a, b, D[r][c]);
    }
  }
}

}  // namespace sim

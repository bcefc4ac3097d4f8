// What a tcgen05.mma computes, when it is performed.
#include <algorithm>

#include "common/sim/instructions/tensor_memory.h"

namespace sim {

namespace {

fa::TensorSum sum_of(Factor type) {
  fa::TensorSum rule;
  with_type(type, [&]<class T>(T) { rule = T::kSum; });
  return rule;
}

// The scales of `n` rows of A or columns of B in a quarter of the lanes: [n][vector].
std::vector<fa::BlockScale> scales_of(TensorMemory& t, uint32_t address, const Scales& type,
                                      unsigned quarter, int first, int n, int vector) {
  std::vector<fa::BlockScale> all;
  for (int i = first; i < first + n; ++i) {
    const uint32_t cell = *t.at(quarter + i % kQuarter, column_of(address) + i / kQuarter);
    for (int j = 0; j < vector; ++j) {
      const float x = type.value(cell >> 8 * (type.id + j) & 0xff);
      constexpr int kOfNan = 1000;
      all.push_back({x, std::isnan(x) ? kOfNan : std::max(std::ilogb(x), type.ue8m0 ? -127 : -6)});
    }
  }
  return all;
}

// Sums of fp8, fp6 and fp4: in D's unit scaled down all scales are 1.
void add_scaled(TensorMemory& list, const Product& p, TensorFactors A, TensorFactors B, int padded,
                const fa::BlockScale* a, const fa::BlockScale* b, uint32_t* cells) {
  constexpr int kRange = 70, kLargest = 120;  // where no sum is beyond fp32's normal numbers
  const fa::TensorSum rule = sum_of(p.instruction.a_type);
  const int width = p.instruction.width(), rows = kQuarter;
  const auto power = [](int e) { return std::bit_cast<float>(uint32_t(127 + e) << 23); };
  const auto scale_of = [&](int m, int c) { return a[m].exponent + b[c].exponent; };
  const auto is_plain = [&](float d, int scale) {
    const int e = static_cast<int>(std::bit_cast<uint32_t>(d) >> 23 & 0xff) - 127;
    return std::abs(scale) <= kRange && (d == 0 || std::abs(e - scale) <= kLargest);
  };
  const auto before = [&](uint32_t cell) {
    return p.product.accumulate ? std::bit_cast<float>(cell) : 0.f;
  };
  list.sums.assign(static_cast<size_t>(rows) * padded, 0.f);
  const auto each = [&](auto&& f) {
    for (int m = 0; m < rows; ++m) {
      for (int c = 0; c < width; ++c) f(m, c, cells[m * kColumns + c], list.sums[m * padded + c]);
    }
  };
  each([&](int m, int c, uint32_t cell, float& sum) {
    const int scale = scale_of(m, c);
    if (is_plain(before(cell), scale)) sum = before(cell) * power(-scale);
  });
  multiply_add(rule, rows, padded, A, kMostK, B, list.sums.data(), padded);
  each([&](int m, int c, uint32_t& cell, float sum) {
    const int scale = scale_of(m, c);
    if (!is_plain(before(cell), scale)) {
      float column[kMostK];
      for (int k = 0; k < kMostK; ++k) column[k] = B.value[k * padded + c];
      sum = std::isnan(a[m].value * b[c].value)
                ? NAN
                : fa::tensor_sum(rule, A.value + m * kMostK, column, before(cell), scale,
                                 sum_of(p.instruction.b_type).least_exponent);
      cell = std::isnan(sum) ? 0x7fffffffu : std::bit_cast<uint32_t>(sum);
    } else {
      cell = std::bit_cast<uint32_t>(sum * power(scale));
    }
  });
}

// A row or column of 64 e2m1: twice their values, and which are not 0.
struct Narrow {
  int8_t twice[64];
  uint64_t present = 0;
};
Narrow unpack(const float* bytes, int step, bool negative) {
  static constexpr int8_t kTwice[] = {0, 1, 2, 3, 4, 6, 8, 12};
  Narrow all;
  for (int i = 0; i < 64; ++i) {
    const int code = static_cast<int>(bytes[i / 2 * step]) >> i % 2 * 4 & 15;
    const int8_t x = kTwice[code & 7];
    all.twice[i] = static_cast<int8_t>((code >= 8) != negative ? -x : x);
    all.present |= uint64_t{x != 0} << i;
  }
  return all;
}
void add_grouped(const Product& p, TensorFactors A, TensorFactors B, int padded,
                 const fa::BlockScale* a, const fa::BlockScale* b, uint32_t* cells) {
  constexpr int kGroups = 4, kEach = 16;
  const int vector = p.instruction.vector;
  std::vector<Narrow> columns;
  for (int c = 0; c < p.instruction.width(); ++c) {
    columns.push_back(unpack(B.value + c, padded, false));
  }
  for (int m = 0; m < static_cast<int>(kQuarter); ++m) {
    const Narrow row = unpack(A.value + m * kMostK, 1, p.instruction.negative);
    for (size_t c = 0; c < columns.size(); ++c) {
      int quarters[kGroups];
      bool zero[kGroups];
      fa::BlockScale of_a[kGroups], of_b[kGroups];
      for (int g = 0; g < kGroups; ++g) {
        int sum = 0;
        for (int k = g * kEach; k < (g + 1) * kEach; ++k) {
          sum += row.twice[k] * columns[c].twice[k];
        }
        quarters[g] = sum;
        zero[g] = !(row.present & columns[c].present & uint64_t{0xffff} << g * kEach);
        of_a[g] = a[m * vector + g * vector / kGroups];
        of_b[g] = b[c * vector + g * vector / kGroups];
      }
      uint32_t& cell = cells[m * kColumns + c];
      const float d = p.product.accumulate ? std::bit_cast<float>(cell) : 0.f;
      cell = std::bit_cast<uint32_t>(fa::grouped_sum(quarters, zero, of_a, of_b, d));
    }
  }
}

// D = A B + D for `rows` rows of A and of D, `width` columns of B, whose rows have `padded`.
void add_products(TensorMemory& list, const Product& p, int rows, TensorFactors A, TensorFactors B,
                  int padded, uint32_t* cells) {
  const Sums sums = p.instruction.sums;
  const int width = p.instruction.width(), k_all = p.instruction.kind->k;
  fa::TensorSum rule = sum_of(p.instruction.a_type);
  if (sums == Sums::fp32 && width == padded) {
    auto* D = reinterpret_cast<float*>(cells);
    if (!p.product.accumulate) {
      for (int m = 0; m < rows; ++m) std::fill_n(D + m * kColumns, width, 0.f);
    }
    multiply_add(rule, rows, width, A, k_all, B, D, kColumns);
    return;
  }
  if (sums == Sums::fp16) {
    constexpr int kLeast = -14, kZero = -21;  // of fp16, by MMA-Sim
    rule.half = true, rule.zero_exponent = kZero;
    static_assert(kF16Sum.least_exponent == kLeast);
  }
  list.sums.assign(static_cast<size_t>(rows) * padded, 0.f);
  const auto each = [&](auto&& f) {
    for (int m = 0; m < rows; ++m) {
      for (int c = 0; c < width; ++c) f(cells[m * kColumns + c], list.sums[m * padded + c]);
    }
  };
  if (p.product.accumulate && sums != Sums::s32) {
    each([&](uint32_t cell, float& sum) {
      sum = sums == Sums::fp16 ? float_of_half(static_cast<uint16_t>(cell))
                               : std::bit_cast<float>(cell);
    });
  }
  multiply_add(rule, rows, padded, A, k_all, B, list.sums.data(), padded);
  each([&](uint32_t& cell, float sum) {
    const uint32_t before = p.product.accumulate ? cell : 0;
    cell = sums == Sums::fp16   ? half_of(sum)
           : sums == Sums::fp32 ? std::bit_cast<uint32_t>(sum)
                                : before + static_cast<uint32_t>(static_cast<int32_t>(sum));
  });
}

}  // namespace

void perform(TensorMemory& list, const Product& p) {
  const Instruction& x = p.instruction;
  const RowsOfProduct* rows = x.rows;
  auto& A = list.A;
  auto& B = list.B;
  const int k_all = std::min(x.kind->k, kMostK), half = x.n / rows->blocks, width = x.width();
  const int padded = (width + 15) / 16 * 16, part = k_all * padded;  // of B
  with_type(x.b_type, [&]<class T>(T) {
    if (padded != width) std::fill_n(B.value, part * rows->parts, 0.f);
    for (int i = 0; i < rows->blocks; ++i) {
      for_each_chunk<T>(p.shares[i].b, x.b, half, [&](int r, int k, uint64_t at) {
        const int column = i * half + r;
        float* to = B.value + column / width * part + column % width;
        read_chunk<T>(at, x.b, 0, k, to, 1, padded);
      });
    }
    find_exponents(T::kSum, part * rows->parts, B.value, B.exponent);
  });
  for (int i = 0; i < rows->blocks; ++i) {
    TensorMemory& t = *p.shares[i].tensor;
    const bool by_lane = p.product.a_in_tensor_memory;
    const int rows_of_a = by_lane ? kM : rows->rows;
    with_type(x.a_type, [&]<class T>(T) {
      constexpr int kBytes = sizeof(typename T::Bits), kK = T::kSum.products;
      constexpr int kEach = 4 / kBytes;  // factors of a column
      if (by_lane) {
        const unsigned column = column_of(static_cast<uint32_t>(p.product.a));
        for (int m = 0; m < kM; ++m) {
          for (int k = 0; k < kK; ++k) {
            const uint32_t bits = t.at(m, column + k / kEach)[0] >> (8 * kBytes * (k % kEach));
            A.value[m * kK + k] = T::value(static_cast<typename T::Bits>(bits));
          }
        }
      } else {
        for_each_chunk<T>(p.shares[i].a, x.a, rows->rows, [&](int r, int k, uint64_t at) {
          read_chunk<T>(at, x.a, r, k, A.value, kK, 1);
        });
      }
      if (x.negative && x.a_type != Factor::e2m1x2) {
        for (int x = 0; x < rows_of_a * kK; ++x) A.value[x] = -A.value[x];
      }
      find_exponents(T::kSum, rows_of_a * kK, A.value, A.exponent);
    });
    for (int s = 0; s < rows->parts; ++s) {
      for (int r = 0; r < rows->rows; r += rows->run) {
        const int lane = static_cast<int>(lane_of(p.product.d)) + s * rows->part_lanes +
                         r / rows->run * rows->run_lanes;
        const int a = (by_lane ? lane : r) * k_all;
        const TensorFactors of_b{B.value + s * part, B.exponent + s * part};
        uint32_t* cells = t.at(lane, column_of(p.product.d));
        const auto in_row = [&](int m, auto&& f) {
          for (int c = 0; c < width; ++c) f(cells[m * kColumns + c], static_cast<size_t>(c));
        };
        std::vector<std::pair<int, std::vector<uint32_t>>> kept;  // of disabled lanes
        for (int m = 0; m < rows->run; ++m) {
          if (p.product.disabled[i * 4 + (lane + m) / 32] >> (lane + m) % 32 & 1) {
            const uint32_t* cell = cells + m * kColumns;
            kept.push_back({m, {cell, cell + width}});
          } else if (p.product.scale_d) {
            in_row(m, [&](uint32_t& cell, size_t) {
              const float d = x.sums == Sums::fp16 ? float_of_half(static_cast<uint16_t>(cell))
                                                   : std::bit_cast<float>(cell);
              const float scaled = std::ldexp(d, -p.product.scale_d);
              cell = x.sums == Sums::fp16 ? half_of(scaled) : std::bit_cast<uint32_t>(scaled);
            });
          }
        }
        if (!x.vector) {
          add_products(list, p, rows->run, {A.value + a, A.exponent + a}, of_b, padded, cells);
        }
        for (int q = 0; x.vector && q < rows->run; q += kQuarter) {
          const auto scales_a =
              scales_of(t, p.product.scales_a, x.scales_a, lane + q, r + q, kQuarter, x.vector);
          const auto scales_b =
              scales_of(t, p.product.scales_b, x.scales_b, lane + q, 0, width, x.vector);
          const int first = a + q * k_all;
          const TensorFactors of_a{A.value + first, A.exponent + first};
          uint32_t* there = cells + q * kColumns;
          if (x.kind->k > kMostK) {
            add_grouped(p, of_a, of_b, padded, scales_a.data(), scales_b.data(), there);
          } else {
            add_scaled(list, p, of_a, of_b, padded, scales_a.data(), scales_b.data(), there);
          }
        }
        for (const auto& [m, row] : kept) {
          in_row(m, [&](uint32_t& cell, size_t c) { cell = row[c]; });
        }
      }
    }
  }
}

}  // namespace sim

// fa::tensor_sum defines one element. add() follows its three rules for 8 or 16 columns at once: in
// units of 2^(E - aligned_bits) the terms are 32-bit integers. Written with vectors, because g++
// keeps the sums of such loops in memory.
#include "common/sim/instructions/tensor_core.h"

#include <bit>
#include <cstdint>

namespace sim {

namespace {

// Registers of `bytes`, and their layout in memory, at any address. These are classes, because g++
// drops a vector's attributes aligned and may_alias where a template names it.
template <int bytes>
struct Vectors;
#define VECTORS(bytes)                                            \
  template <>                                                     \
  struct Vectors<bytes> {                                         \
    using Shorts [[gnu::vector_size(bytes)]] = int16_t;           \
    using Floats [[gnu::vector_size(bytes)]] = float;             \
    using Ints [[gnu::vector_size(bytes)]] = int;                 \
    using Unsigned [[gnu::vector_size(bytes)]] = unsigned;        \
    using HalfOfShorts [[gnu::vector_size(bytes / 2)]] = int16_t; \
    using HalfOfLongs [[gnu::vector_size(bytes)]] = int64_t;      \
    using Longs [[gnu::vector_size(2 * bytes)]] = int64_t;        \
    using Doubles [[gnu::vector_size(2 * bytes)]] = double;       \
    struct [[gnu::packed, gnu::may_alias]] StoredShorts {         \
      Shorts all;                                                 \
    };                                                            \
    struct [[gnu::packed, gnu::may_alias]] StoredFloats {         \
      Floats all;                                                 \
    };                                                            \
  };
VECTORS(16)
VECTORS(32)

// Exponents of 0, and of an inf or NaN: a sum of two with one of these is also beyond all others.
constexpr int kZero = -5000, kEndless = 10000;
// Values of E outside take the slow path: inside, no term, unit or sum overflows or is subnormal.
constexpr int kLeast = -100, kLargest = 120;

}  // namespace

#if defined(__x86_64__) && !defined(__clang__)
[[gnu::target_clones("avx2", "default")]]
#endif
void find_exponents(const fa::TensorSum& rule, int n, const float* value,
                            int16_t* exponent) {
  const int least = rule.least_exponent;
  for (int i = 0; i < n; ++i) {
    const int bits = std::bit_cast<int>(value[i]) & 0x7fffffff;
    const int e = (bits >> 23) - 127;
    const int normal = e < least ? least : e;
    const int finite = e == 128 ? kEndless : normal;
    exponent[i] = static_cast<int16_t>(bits == 0 ? kZero : finite);
  }
}

namespace {

// C's contribution where all products are 0: for masked keys, and for rows that pad a tile.
[[gnu::always_inline]] inline void cut_row(const fa::TensorSum& rule, int columns, float* d) {
  const uint32_t kept = ~uint32_t{0} << (23 - rule.kept_bits);
  for (int c = 0; c < columns; ++c) {
    const uint32_t bits = std::bit_cast<uint32_t>(d[c]), cut = bits & kept;
    const uint32_t number = cut << 1 ? cut : 0;  // no -0
    d[c] = std::bit_cast<float>(bits << 1 > 0xff000000u ? 0x7fffffffu : number);
  }
}

// The compiler may split a comparison of vectors into its elements, but not this.
#define NEGATIVE(x) ((x) >> 31)

// `products` and `half`, the rule's, are constants in each caller.
template <int bytes>
[[gnu::always_inline]] inline void add(int products, bool half, const fa::TensorSum& rule, int rows,
                                       int columns, const TensorFactors& A, int step,
                                       const TensorFactors& B, float* D, int d_step) {
  using Shorts = typename Vectors<bytes>::Shorts;
  using Floats = typename Vectors<bytes>::Floats;
  using Ints = typename Vectors<bytes>::Ints;
  using Unsigned = typename Vectors<bytes>::Unsigned;  // its sums may wrap
  using Longs = typename Vectors<bytes>::Longs;
  using Doubles = typename Vectors<bytes>::Doubles;
  using StoredShorts = typename Vectors<bytes>::StoredShorts;
  using StoredFloats = typename Vectors<bytes>::StoredFloats;
  constexpr int kHalf = bytes / 4, kEach = 2 * kHalf;  // columns of Floats, of Shorts
  const int aligned_bits = rule.aligned_bits;
  const auto kept = static_cast<int64_t>(~uint64_t{0} << (52 - rule.kept_bits));
  int16_t largest = kZero;
  for (int i = 0; i < products * columns; ++i) {
    largest = largest < B.exponent[i] ? B.exponent[i] : largest;
  }
  for (int r = 0; r < rows; ++r) {
    const float* a = A.value + r * step;
    const int16_t* a_exponent = A.exponent + r * step;
    int any_a = 0;
    for (int k = 0; k < products; ++k) any_a |= std::bit_cast<int>(a[k]);
    if (!any_a && largest < kEndless) {
      cut_row(rule, columns, D + r * d_step);
      continue;
    }
    for (int column = 0; column < columns; column += kEach) {
      // 1. E, the largest exponent
      Shorts of_products = Shorts{} + int16_t{2 * kZero};
      for (int k = 0; k < products; ++k) {
        const int16_t* b_exponent = B.exponent + k * columns + column;
        const Shorts e = a_exponent[k] + reinterpret_cast<const StoredShorts*>(b_exponent)->all;
        of_products = e > of_products ? e : of_products;
      }
      const auto* halves =
          reinterpret_cast<const typename Vectors<bytes>::HalfOfShorts*>(&of_products);
      Floats c[2], scale[2];
      Ints E[2], slow[2];
      Unsigned sum[2] = {};
      Doubles before[2] = {};  // the first 16 of 32 products
      for (int i = 0; i < 2; ++i) {
        c[i] = reinterpret_cast<StoredFloats*>(D + r * d_step + column)[i].all;
        const auto bits = reinterpret_cast<Ints>(c[i]) & 0x7fffffff;
        Ints e = (bits >> 23) - 127 + (NEGATIVE(bits - 1) & kZero);
        if (half) {  // all below -14 are -14 or 0
          const Ints least = (NEGATIVE(bits - 1) & (rule.zero_exponent + 14)) - 14;
          e = e > least ? e : least;
        }
        E[i] = __builtin_convertvector(halves[i], Ints);
        E[i] += (e - E[i]) & ~NEGATIVE(e - E[i]);       // the larger one
        const Ints zeros = NEGATIVE(E[i] - kZero / 2);  // frequent: tiles are padded with them
        slow[i] = NEGATIVE((E[i] - kLeast) | (kLargest - E[i])) & ~zeros;
        E[i] &= ~(slow[i] | zeros);
        scale[i] = reinterpret_cast<Floats>((127 + aligned_bits - E[i]) << 23);
      }
      // 2. Truncate toward zero: |sum| < 2^31, 16 (4 - 2^-5) 2^25; slow lanes are recomputed
      for (int k = 0; k < products; ++k) {
        if (k == 16) {
          for (int i = 0; i < 2; ++i) {
            before[i] = __builtin_convertvector(reinterpret_cast<Ints>(sum[i]), Doubles);
            sum[i] = Unsigned{};
          }
        }
        const auto* b = reinterpret_cast<const StoredFloats*>(B.value + k * columns + column);
        sum[0] +=
            reinterpret_cast<Unsigned>(__builtin_convertvector(a[k] * b[0].all * scale[0], Ints));
        sum[1] +=
            reinterpret_cast<Unsigned>(__builtin_convertvector(a[k] * b[1].all * scale[1], Ints));
      }
      // 3. The sum, truncated to the bits kept
      for (int i = 0; i < 2; ++i) {
        const Ints from_c = __builtin_convertvector(c[i] * scale[i], Ints);
        Doubles all = __builtin_convertvector(reinterpret_cast<Ints>(sum[i]), Doubles) +
                      __builtin_convertvector(from_c, Doubles);
        if (products > 16) all += before[i];
        Longs bits = reinterpret_cast<Longs>(all) & kept;
        if (half) {
          bits |=
              ((reinterpret_cast<Longs>(all) & ~kept) != 0) & (int64_t{1} << (52 - rule.kept_bits));
        }
        const auto cut = reinterpret_cast<Doubles>(bits);
        const auto unit = reinterpret_cast<Floats>((127 - aligned_bits + E[i]) << 23);
        float* d = D + r * d_step + column + i * kHalf;
        reinterpret_cast<StoredFloats*>(d)->all = __builtin_convertvector(cut, Floats) * unit;
      }
      const auto words = reinterpret_cast<typename Vectors<bytes>::HalfOfLongs>(slow[0] | slow[1]);
      int64_t any = 0;
      for (int i = 0; i < bytes / 8; ++i) any |= words[i];
      if (!any) continue;
      for (int i = 0; i < kEach; ++i) {
        if (!slow[i / kHalf][i % kHalf]) continue;
        float b[kTensorProducts];
        for (int k = 0; k < products; ++k) b[k] = B.value[k * columns + column + i];
        D[r * d_step + column + i] = fa::tensor_sum(rule, a, b, c[i / kHalf][i % kHalf]);
      }
    }
  }
}

template <int bytes>
[[gnu::always_inline]] inline void add(const fa::TensorSum& rule, int rows, int columns,
                                       const TensorFactors& A, int step, const TensorFactors& B,
                                       float* D, int d_step) {
  switch (rule.products) {
    case 8:
      return add<bytes>(8, false, rule, rows, columns, A, step, B, D, d_step);
    case 16:
      if (rule.half) return add<bytes>(16, true, rule, rows, columns, A, step, B, D, d_step);
      return add<bytes>(16, false, rule, rows, columns, A, step, B, D, d_step);
    default:
      if (rule.half) {
        return add<bytes>(kTensorProducts, true, rule, rows, columns, A, step, B, D, d_step);
      }
      return add<bytes>(kTensorProducts, false, rule, rows, columns, A, step, B, D, d_step);
  }
}

#ifdef __x86_64__
const bool has_avx2 = __builtin_cpu_supports("avx2");
[[gnu::target("avx2")]] void add_avx2(const fa::TensorSum& rule, int rows, int columns,
                                      const TensorFactors& A, int step, const TensorFactors& B,
                                      float* D, int d_step) {
  add<32>(rule, rows, columns, A, step, B, D, d_step);
}
#endif

}  // namespace

void multiply_add(const fa::TensorSum& rule, int rows, int columns, const TensorFactors& A,
                  int step, const TensorFactors& B, float* D, int d_step) {
#ifdef __x86_64__
  if (has_avx2) return add_avx2(rule, rows, columns, A, step, B, D, d_step);
#endif
  add<16>(rule, rows, columns, A, step, B, D, d_step);
}

}  // namespace sim

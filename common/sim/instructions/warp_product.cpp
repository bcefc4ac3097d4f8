// Products of a warp in any shape and type; the last lane to arrive does the work.
#include "common/sim/warp_product.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "common/sim/instructions/async.h"
#include "common/sim/instructions/tensor_core.h"
#include "common/sim/sim.h"

namespace sim {

namespace {

int bits_of(Number type) {
  switch (type) {
    case Number::f16:
    case Number::bf16:
      return 16;
    case Number::e4m3:
    case Number::e5m2:
    case Number::s8:
    case Number::u8:
      return 8;
    case Number::f64:
      return 64;
    default:
      return 32;
  }
}

double value_of(Number type, const void* elements, int i) {
  const auto at = [&]<class T>(T x) {
    std::memcpy(&x, static_cast<const char*>(elements) + i * sizeof x, sizeof x);
    return x;
  };
  switch (type) {
    case Number::f16:
      return float_of_half(at(uint16_t{}));
    case Number::bf16:
      return bf16_value(at(uint16_t{}));
    case Number::tf32:
      return tf32_value(at(uint32_t{}));
    case Number::e4m3:
      return static_cast<float>(at(__nv_fp8_e4m3()));
    case Number::e5m2:
      return static_cast<float>(at(__nv_fp8_e5m2()));
    case Number::s8:
      return at(int8_t{});
    case Number::u8:
      return at(uint8_t{});
    case Number::s32:
      return at(int32_t{});
    case Number::f32:
      return at(float{});
    case Number::f64:
      return at(double{});
  }
  __builtin_unreachable();
}

void set(Number type, void* elements, int i, double v) {
  const auto put = [&](auto x) {
    std::memcpy(static_cast<char*>(elements) + i * sizeof x, &x, sizeof x);
  };
  if (type == Number::f16) return put(half_of(static_cast<float>(v)));
  if (type == Number::s32) return put(static_cast<int32_t>(v));
  if (type == Number::f64) return put(v);
  put(static_cast<float>(v));
}

/// Calls f(row, column, lane, i) for all elements of a [rows][columns] matrix. In mma.sync's
/// fragments a 32-bit register holds neighbours in k or, of C, in n.
enum class Of { a, b, c };
void for_each_element(Of of, Number type, Layout layout, int rows, int columns, auto&& f) {
  const int count = rows * columns / 32;
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < count; ++i) {
      const int part = lane * count + i;
      if (layout == Layout::by_rows) {
        f(part / columns, part % columns, lane, i);
      } else if (layout == Layout::by_columns) {
        f(part % rows, part / rows, lane, i);
      } else if (of == Of::c) {
        f(lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2, lane, i);
      } else {
        const int each = std::max(1, 32 / bits_of(type)), r = i / each;
        const int halves = of == Of::a ? std::max(1, rows / 8) : 1;
        const int k = lane % 4 * each + i % each + r / halves * 4 * each, other = lane / 4;
        of == Of::a ? f(other + r % halves * 8, k, lane, i) : f(k, other, lane, i);
      }
    }
  }
}

fa::TensorSum rule_of(Number type, int k) {
  const bool ampere = options().arch < 90;
  fa::TensorSum rule = type == Number::e4m3 || type == Number::e5m2 ? fa::kE4m3Sum
                       : type == Number::bf16 ? fa::mma_bf16_sum(options().arch)
                       : type == Number::tf32 ? kTf32Sum
                                              : kF16Sum;
  if (type == Number::f16 && ampere) {
    rule = fa::kAmpereBf16Sum;
    rule.least_exponent = kF16Sum.least_exponent;
  }
  rule.products = std::min(rule.products, k <= 8 ? 8 : k <= 16 ? 16 : 32);
  return rule;
}

void do_multiply(WarpMeeting& m) {
  need_all_lanes(m);
  const WarpProduct& p = frame_of<const WarpProduct>(m, 0);
  const auto frame = [&](int lane) -> const WarpProduct& {
    return frame_of<const WarpProduct>(m, lane);
  };
  const bool floats = p.c_type == Number::f32 || p.c_type == Number::f16;
  const fa::TensorSum rule = rule_of(p.a_type, p.k);
  const int k_all = floats ? (p.k + rule.products - 1) / rule.products * rule.products : p.k;
  std::vector<double> A(p.m * k_all), B(k_all * p.n), D(p.m * p.n);  // B: [n][k]
  for_each_element(Of::a, p.a_type, p.a_layout, p.m, p.k, [&](int r, int k, int lane, int i) {
    A[r * k_all + k] = value_of(p.a_type, frame(lane).a, i);
  });
  for_each_element(Of::b, p.b_type, p.b_layout, p.k, p.n, [&](int k, int c, int lane, int i) {
    B[c * k_all + k] = value_of(p.b_type, frame(lane).b, i);
  });
  for_each_element(Of::c, p.c_type, p.c_layout, p.m, p.n, [&](int r, int c, int lane, int i) {
    D[r * p.n + c] = value_of(p.c_type, frame(lane).c, i);
  });
  if (floats) {  // as [n][m] where that has the columns that multiply_add() needs
    const bool turned = p.n % 16 != 0;
    const int rows = turned ? p.n : p.m, columns = turned ? p.m : p.n;
    const auto &left = turned ? B : A, &right = turned ? A : B;
    std::vector<float> L(left.begin(), left.end()), R(right.size()), S(D.size());
    std::vector<int16_t> l(L.size()), r(R.size());
    for (int c = 0; c < columns; ++c) {
      for (int k = 0; k < k_all; ++k) R[k * columns + c] = static_cast<float>(right[c * k_all + k]);
    }
    const auto at = [&](int i) { return turned ? i % columns * p.n + i / columns : i; };
    for (size_t i = 0; i < S.size(); ++i) S[i] = static_cast<float>(D[at(i)]);
    find_exponents(rule, static_cast<int>(L.size()), L.data(), l.data());
    find_exponents(rule, static_cast<int>(R.size()), R.data(), r.data());
    for (int k = 0; k < k_all; k += rule.products) {
      multiply_add(rule, rows, columns, {&L[k], &l[k]}, k_all, {&R[k * columns], &r[k * columns]},
                   S.data(), columns);
    }
    for (size_t i = 0; i < S.size(); ++i) D[at(i)] = S[i];
  } else {
    for (int i = 0; i < p.m * p.n; ++i) {
      for (int k = 0; k < p.k; ++k) {
        D[i] = std::fma(A[i / p.n * p.k + k], B[i % p.n * p.k + k], D[i]);
      }
      if (p.c_type != Number::s32) continue;
      const auto sum = static_cast<int64_t>(D[i]);  // below 2^53
      D[i] =
          p.saturate ? std::clamp<int64_t>(sum, INT32_MIN, INT32_MAX) : static_cast<int32_t>(sum);
    }
  }
  for_each_element(Of::c, p.c_type, p.c_layout, p.m, p.n, [&](int r, int c, int lane, int i) {
    set(p.c_type, frame(lane).d, i, D[r * p.n + c]);
  });
  const uint64_t flops = uint64_t{2} * p.m * p.n * p.k;
  self->tensor_flops += flops;
  for (uint64_t i = 0; i < std::max<uint64_t>(1, flops / (2 * 16 * 8 * 16)); ++i) {
    ++self->mma;
    for (auto& o : self->observers) o->product(*self, m.warp);
  }
}

}  // namespace

void multiply(const WarpProduct& product, Where where) {
  need_whole_warp("mma.sync", where);
  WarpProduct p = product;
  meet_in_warp("mma.sync", kWholeWarp, do_multiply, &p, where);
}

}  // namespace sim

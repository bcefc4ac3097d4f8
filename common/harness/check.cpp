#include "common/harness/check.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>

#include "common/harness/format.h"

namespace fa {
namespace {

// The floor: what fp32 arithmetic alone may do to a value whose terms have the size `scale`, when
// the baseline's own error happens to be zero in that row. A score of size s is off by about
// s * 2^-24, whatever the order of its sum; exp() turns that into a relative error of P. Four
// roundings of that size cover the score, its scaling, the exponential and its hardware
// approximation. Below FLT_MIN, where the normal numbers end, a result may flush to zero, and so
// may the terms that it is a sum of (elements of P, products): `factors` is the largest sum of what
// they are multiplied by.
double floor_of(double scale, double factors = 0) {
  return 4 * 0x1p-24 * scale + FLT_MIN * (1 + factors);
}

// The same for operands of e4m3: what rounding them usually does to a row. A relative error is at
// most 2^-4, on average 0.025, and independent of the others; 2^-4 is 2.5 averages.
//
// O: V and P have an error each, multiplied by P V; the largest of d features is about 2.5
// averages. A score has those of q and k, multiplied by P (V - O); it moves all features, and where
// one key or a few decide a row the baseline may well be lucky: five averages. So it may with LSE.
//
// Each key has errors of its own. Those of q are common to all keys and remain in the mean. So do
// those of what the keys have in common, but only where they have the same scale: of two halves
// with a scale each, one is preferred.
double fp8_floor_of_O(const ReferenceForward& f, size_t i) {
  return 0x1p-4 * std::sqrt(2) * std::hypot(f.root_PV[i], 2 * f.root_PSV[i]);
}
double fp8_floor_of_LSE(const ReferenceForward& f, size_t i) {
  return 2 * 0x1p-4 * std::hypot(f.root_PS[i], f.root_mean[i], f.root_mean[i]);
}

double largest(const float* first, size_t n) {
  double size = 0;
  for (const float* x = first; x < first + n; ++x) {
    size = std::max(size, std::abs(static_cast<double>(*x)));
  }
  return size;
}
double largest(const std::vector<float>& t) { return largest(t.data(), t.size()); }

/// Of the keys that there are: behind them V may hold anything.
double largest_value(const Problem& p, const std::vector<float>& V) {
  double size = 0;
  for (size_t head = 0; head < p.kv_heads(); ++head) {
    const size_t d = p.d, keys = p.keys_of(head / p.Hkv);
    size = std::max(size, largest(V.data() + head * p.Nk * d, keys * d));
  }
  return size;
}

/// Of the rows of [rows, d].
double largest_norm(const std::vector<float>& t, size_t d) {
  double squares = 0;
  for (size_t row = 0; row < t.size(); row += d) {
    double sum = 0;
    for (size_t x = row; x < row + d; ++x) sum += static_cast<double>(t[x]) * t[x];
    squares = std::max(squares, sum);
  }
  return std::sqrt(squares);
}

// Half the distance of two neighbours, relative: the baseline may have been lucky, but no kernel
// escapes the rounding of its result.
double unit_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return 0x1p-24;
    case DType::bf16:
      return 0x1p-8;
    case DType::e4m3:
      return 0x1p-4;
  }
  throw std::logic_error("unknown element type");
}

constexpr double kForwardFactor = 2;
constexpr double kGradientFactor = 3;

/// One tensor, as rows of `width` elements.
struct Tensor {
  const char* name;
  const std::vector<float>& values;
  size_t width;
  size_t length;    ///< rows per head
  size_t heads;     ///< per batch entry
  const char* row;  ///< what a row is called: "row" or "key"
  size_t rows() const { return values.size() / width; }

  /// "O[b=0, h=1, row=37, feature=5]"
  std::string element(size_t i) const {
    const size_t r = i / width;
    const size_t bh = r / length;
    std::string text =
        fmt::format("{}[b={}, h={}, {}={}", name, bh / heads, bh % heads, row, r % length);
    if (width > 1) text += fmt::format(", feature={}", i % width);
    return text + "]";
  }
};

/// The rows of a tensor that are compared, and what they are compared with.
struct Expected {
  std::vector<size_t> rows;             ///< of the tensor
  const std::vector<double>& want;      ///< [rows, width], fp64
  const std::vector<double>& baseline;  ///< [rows, width]
  double factor;
  double unit;                          ///< relative error of rounding a result to its type
  std::function<double(size_t)> floor;  ///< of rows[i]
};

// A NaN is worse than any number, and stays the worst.
bool worse(double e, double than) { return std::isnan(e) || e > than; }

double distance(double a, double b) { return a == b ? 0 : std::abs(a - b); }  // -inf equals -inf

/// Looks at every element for what is wrong whatever the reference says. Empty: nothing is.
std::string find_impossible(const Problem& p, const Tensor& t) {
  size_t unwritten = 0, first = 0;
  for (size_t i = t.values.size(); i-- > 0;) {
    if (never_written(t.values[i])) {
      ++unwritten;
      first = i;
    }
  }
  if (unwritten > 0) {
    return fmt::format("{} of {} elements of {} were never written, first {}", unwritten,
                       t.values.size(), t.name, t.element(first));
  }
  for (size_t i = 0; i < t.values.size(); ++i) {
    const float value = t.values[i];
    if (std::isfinite(value)) continue;
    const bool masked_row = t.name == std::string("LSE") &&
                            p.visible(static_cast<int>(i % t.length), i / t.length / t.heads) == 0;
    if (!masked_row || !(value < 0)) {
      return fmt::format("{} is {}{}", t.element(i), value,
                         masked_row ? ", expected -inf for a fully masked row" : "");
    }
  }
  return "";
}

TensorCheck compare(const Problem& p, const Tensor& t, const Expected& e) {
  TensorCheck result;
  result.tensor = t.name;
  result.rows_checked = e.rows.size();
  double squares = 0, worst = -1, worst_bound = 0;
  size_t worst_element = 0;
  for (size_t i = 0; i < e.rows.size(); ++i) {
    const double* want = &e.want[i * t.width];
    const double* baseline = &e.baseline[i * t.width];
    const float* got = &t.values[e.rows[i] * t.width];
    double baseline_err = 0, err = 0, largest = 0;
    size_t x_worst = 0;
    for (size_t x = 0; x < t.width; ++x) {
      baseline_err = std::max(baseline_err, distance(baseline[x], want[x]));
      if (std::isfinite(want[x])) largest = std::max(largest, std::abs(want[x]));
      const double e_x = distance(got[x], want[x]);
      squares += e_x * e_x;
      if (worse(e_x, err)) {
        err = e_x;
        x_worst = x;
      }
    }
    result.baseline_err = std::max(result.baseline_err, baseline_err);
    const double bound = e.factor * baseline_err + e.unit * largest + e.floor(i);
    if (i == 0 || worse(err, result.max_abs_err)) {
      result.max_abs_err = err;
      result.bound = bound;
    }
    const double used = std::isnan(err) ? INFINITY : err / bound;
    if (used > worst) {
      worst = used;
      worst_element = i * t.width + x_worst;
      result.used = used;
      worst_bound = bound;
    }
  }
  result.rmse = std::sqrt(squares / static_cast<double>(e.rows.size() * t.width));
  result.message = find_impossible(p, t);
  if (!result.message.empty()) result.max_abs_err = result.used = NAN;
  if (result.message.empty() && worst > 1) {
    const size_t element = e.rows[worst_element / t.width] * t.width + worst_element % t.width;
    const double want = e.want[worst_element];
    result.message = fmt::format("{} is {:.7g}, expected {:.7g}: error {:.2e}, allowed {:.2e}",
                                 t.element(element), t.values[element], want,
                                 distance(t.values[element], want), worst_bound);
  }
  result.ok = result.message.empty();
  return result;
}

void require_size(const char* name, size_t size, size_t expected) {
  if (size != expected) {
    throw std::invalid_argument(
        fmt::format("check: {} has {} elements instead of {}", name, size, expected));
  }
}

/// What is right, and what an unfused kernel makes of it.
struct Forward {
  ReferenceForward want, baseline;
};
struct Backward {
  ReferenceBackward want, baseline;
};

void check_forward(const Problem& p, const Inputs& in, const Outputs& out, const Sample& sample,
                   const Forward& reference, CheckResult& result) {
  const ReferenceForward &want = reference.want, &baseline = reference.baseline;
  require_size("O", out.O.size(), p.q_size());
  const Tensor O{
      "O",  out.O, static_cast<size_t>(p.d), static_cast<size_t>(p.N), static_cast<size_t>(p.H),
      "row"};
  const double values = p.Nk * largest_value(p, in.V);  // P's factors
  result.tensors.push_back(compare(
      p, O, {sample.rows, want.O, baseline.O, kForwardFactor, unit_of(p.dtype), [&](size_t i) {
               const double fp8 = p.fp8 ? fp8_floor_of_O(want, i) : 0;
               return floor_of((1 + want.score_bound[i]) * want.sum_PV[i], values) + fp8;
             }}));
  if (out.LSE.empty()) return;
  require_size("LSE", out.LSE.size(), p.rows());
  const Tensor LSE{"LSE", out.LSE, 1, static_cast<size_t>(p.N), static_cast<size_t>(p.H), "row"};
  result.tensors.push_back(compare(
      p, LSE,
      {sample.rows, want.LSE, baseline.LSE, kForwardFactor, unit_of(DType::f32), [&](size_t i) {
         const double lse = std::isfinite(want.LSE[i]) ? std::abs(want.LSE[i]) : 0;
         const double fp8 = p.fp8 ? fp8_floor_of_LSE(want, i) : 0;
         return floor_of(1 + want.score_bound[i] + lse) + fp8;
       }}));
}

/// The larger of two rows' largest errors decides which of them is the baseline's.
void keep_unlucky_rows(const std::vector<double>& want, const std::vector<double>& other,
                       size_t width, std::vector<double>& baseline) {
  for (size_t first = 0; first < want.size(); first += width) {
    double error = 0, other_error = 0;
    for (size_t i = first; i < first + width; ++i) {
      error = std::max(error, distance(baseline[i], want[i]));
      other_error = std::max(other_error, distance(other[i], want[i]));
    }
    if (other_error > error) std::copy_n(&other[first], width, &baseline[first]);
  }
}

/// With e4m3 it depends on the scale whether a number is rounded up or down, and numbers that are
/// alike are rounded alike: so three scales, and of each row the unluckiest.
ReferenceForward unlucky_baseline(const Problem& p, const Inputs& in, const Sample& sample,
                                  const ReferenceForward& want) {
  ReferenceForward baseline = attention_unfused(p, in, sample);
  if (!p.fp8) return baseline;
  for (const float headroom : {1.26F, 1.59F}) {  // a third and two thirds of an octave
    const ReferenceForward other = attention_unfused(p, in, sample, headroom);
    keep_unlucky_rows(want.O, other.O, static_cast<size_t>(p.d), baseline.O);
    keep_unlucky_rows(want.LSE, other.LSE, 1, baseline.LSE);
  }
  return baseline;
}

void check_backward(const Problem& p, const Inputs& in, const Outputs& out, const Sample& sample,
                    const Backward& reference, CheckResult& result) {
  require_size("dQ", out.dQ.size(), p.q_size());
  require_size("dK", out.dK.size(), p.kv_size());
  require_size("dV", out.dV.size(), p.kv_size());
  const ReferenceBackward &want = reference.want, &baseline = reference.baseline;
  const size_t N = p.N, Nk = p.Nk, d = p.d, group = p.H / p.Hkv;

  std::vector<size_t> query_rows, key_rows;
  for (const size_t kv_head : sample.heads) {
    const size_t first = kv_head / p.Hkv * p.H + kv_head % p.Hkv * group;  // query head
    for (size_t r = 0; r < group * N; ++r) query_rows.push_back(first * N + r);
    for (size_t c = 0; c < Nk; ++c) key_rows.push_back(kv_head * Nk + c);
  }
  const double unit = unit_of(p.dtype);
  // dS = P (dP - delta) may flush itself, or P before: the factors of both. dV has P alone.
  const double of_dS = (1 + 2 * largest_norm(in.dO, d) * largest_norm(in.V, d)) * p.scale();
  const double dQ_factors = static_cast<double>(Nk) * of_dS * largest(in.K);
  const double dK_factors = static_cast<double>(group * N) * of_dS * largest(in.Q);
  const double dV_factors = static_cast<double>(group * N) * largest(in.dO);
  auto dQ_floor = [&](size_t i) {
    return floor_of(want.dQ_scale[i], dQ_factors) + kGradientFactor * unit * want.dQ_delta[i];
  };
  auto dK_floor = [&](size_t i) {
    return floor_of(want.dK_scale[i], dK_factors) + kGradientFactor * unit * want.dK_delta[i];
  };
  auto dV_floor = [&](size_t i) { return floor_of(want.dV_scale[i], dV_factors); };
  const auto H = static_cast<size_t>(p.H), Hkv = static_cast<size_t>(p.Hkv);
  result.tensors.push_back(
      compare(p, {"dQ", out.dQ, d, N, H, "row"},
              {query_rows, want.dQ, baseline.dQ, kGradientFactor, unit, dQ_floor}));
  result.tensors.push_back(
      compare(p, {"dK", out.dK, d, Nk, Hkv, "key"},
              {key_rows, want.dK, baseline.dK, kGradientFactor, unit, dK_floor}));
  result.tensors.push_back(
      compare(p, {"dV", out.dV, d, Nk, Hkv, "key"},
              {key_rows, want.dV, baseline.dV, kGradientFactor, unit, dV_floor}));
}

}  // namespace

bool CheckResult::ok() const {
  return damage.empty() && !tensors.empty() &&
         std::all_of(tensors.begin(), tensors.end(), [](const TensorCheck& t) { return t.ok; });
}

struct Checker::Impl {
  const Problem& p;
  const Inputs& in;
  const Sample sample;
  std::optional<Forward> forward;    // made when first needed
  std::optional<Backward> backward;  // likewise: a step without a backward needs none
};

Checker::Checker(const Problem& p, const Inputs& in, Sample sample)
    : impl_(new Impl{p, in, std::move(sample), {}, {}}) {}
Checker::~Checker() = default;

CheckResult Checker::operator()(const Outputs& out) {
  const Problem& p = impl_->p;
  const Inputs& in = impl_->in;
  const Sample& sample = impl_->sample;
  CheckResult result;
  result.damage = out.damage;
  result.complete = sample.rows.size() == p.rows();
  if (!impl_->forward) {
    const ReferenceForward want = attention_fp64(p, in, sample);
    impl_->forward = {want, unlucky_baseline(p, in, sample, want)};
  }
  check_forward(p, in, out, sample, *impl_->forward, result);
  if (!out.dQ.empty()) {
    result.complete = result.complete && sample.heads.size() == p.kv_heads();
    if (!impl_->backward) {
      impl_->backward = {attention_backward_fp64(p, in, sample),
                         attention_backward_unfused(p, in, sample)};
    }
    check_backward(p, in, out, sample, *impl_->backward, result);
  }
  return result;
}

CheckResult check(const Problem& p, const Inputs& in, const Outputs& out, const Sample& sample) {
  return Checker(p, in, sample)(out);
}

}  // namespace fa

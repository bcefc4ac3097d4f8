#include "common/harness/check.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cfloat>
#include <cmath>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "common/counts/format.h"
#include "common/harness/norms.h"

namespace fa {
namespace {

// The floor: the error of fp32 arithmetic for a value whose terms have the size `scale`, in case
// the baseline's error happens to be zero in that row. Below FLT_MIN, the smallest normal number, a
// result may flush to zero, and so may its terms (elements of P, products): `factors` is the
// largest sum of what these are multiplied by.
double floor_of(double scale, double factors = 0) {
  return kFp32Error * scale + FLT_MIN * (1 + factors);
}

const double kLargestExponent = std::log(FLT_MAX);  // of e, in fp32

// What errors of the scores can do to a row of O, an average of V: they move P between keys. Where
// one key has nearly all of P there is little to move, but its P is no longer 1, and is rounded.
double moved_by_scores(const ReferenceForward& f, size_t i, double unit) {
  if (f.score_error(i) > kLargestExponent) return INFINITY;
  const double grown = growth(f.score_error(i)), far = 4 * f.largest_V[i] * f.rest_of_P[i];
  return std::max(grown * std::min(f.sum_PV[i], far), std::min(grown, unit) * f.sum_PV[i]);
}

// The same for operands of e4m3: the usual effect of their rounding on a row. Relative errors are
// at most 2^-4, 0.025 on average, and independent; 2^-4 is 2.5 averages.
//
// O: V and P each have an error, multiplied by P V; the largest of d features is about 2.5
// averages. A score has those of q and k, multiplied by P (V - O). It moves all features, and where
// one key or a few decide a row the baseline may be lucky: five averages. The same holds for LSE.
//
// Errors of k differ by key. Errors of q are common to all keys and remain in the mean, as do
// errors of what the keys share, but only between keys of one scale: with a scale for each half of
// the keys, one half is preferred.
double fp8_rounding_of_O(const ReferenceForward& f, size_t i) {
  return 0x1p-4 * std::sqrt(2) * f.root_PV[i];
}
double fp8_floor_of_O(const ReferenceForward& f, size_t i) {
  return 0x1p-4 * std::sqrt(2) * std::hypot(f.root_PV[i], 2 * f.root_PSV[i]) +
         2 * f.adrift[i] * f.largest_V[i];
}
double fp8_floor_of_LSE(const ReferenceForward& f, size_t i) {
  return 2 * 0x1p-4 * std::hypot(f.root_PS[i], f.root_mean[i], f.root_mean[i]) +
         (f.adrift[i] > 0x1p800 ? INFINITY : std::log1p(f.adrift[i]));
}

/// Only of existing keys: after them V may hold anything.
double largest_value(const Problem& p, const std::vector<float>& V) {
  double size = 0;
  for (size_t head = 0; head < p.kv_heads(); ++head) {
    const size_t d = p.d, keys = p.keys_of(head / p.Hkv);
    const float* first = V.data() + head * p.Nk * d;
    size = std::max(size, largest_of_all(keys * d, [first](size_t begin, size_t end) {
                      return largest_size(first + begin, end - begin);
                    }));
  }
  return size;
}

double largest_row(const std::vector<float>& t, size_t d) {
  return largest_of_all(t.size() / d, [&t, d](size_t begin, size_t end) {
    return largest_norm(&t[begin * d], end - begin, d);
  });
}

bool all_finite(const std::vector<float>& t) {
  std::atomic<bool> finite = true;
  parallel_chunks(t.size(), [&](size_t begin, size_t end) {
    bool mine = true;
    for (size_t i = begin; i < end; ++i) mine &= std::abs(t[i]) <= FLT_MAX;
    if (!mine) finite = false;
  });
  return finite;
}

// Half the relative distance of two neighbours: no kernel escapes the rounding of its result.
double unit_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return 0x1p-24;
    case DType::bf16:
      return 0x1p-8;
    case DType::f16:
      return 0x1p-11;
    case DType::e4m3:
      return 0x1p-4;
  }
  throw std::logic_error("unknown element type");
}

constexpr double kForwardFactor = 2;
constexpr double kGradientFactor = 3;
// An error of this share of a row's largest element leaves no correct digit: 0 is hardly worse.
constexpr double kNoDigit = 0.75;

/// The allowed error of a row, besides the baseline's error and the rounding of the result.
struct Allowance {
  double floor;
  double rounding;         ///< the floor's share that does not depend on the scores
  double most = INFINITY;  ///< no error of the scores causes a larger one
  double luckless = 0;  ///< minimum for the baseline's part, where that was lucky in all of the row
};

struct Output {
  Output(const char* its_name, const Problem& p, const Outputs& out)
      : name(its_name), values(out.*tensor_of(name).output), row("row") {
    const Tensor& tensor = tensor_of(name);
    if (values.size() != tensor.elements(p)) {
      throw std::invalid_argument(fmt::format("check: {} has {} elements instead of {}", name,
                                              values.size(), tensor.elements(p)));
    }
    const std::vector<size_t> shape = tensor.shape(p);
    heads = shape[1], length = shape[2], width = shape.size() > 3 ? shape[3] : 1;
    if (tensor.of_keys()) row = "key";
  }

  const char* name;
  const std::vector<float>& values;
  const char* row;              ///< what a row is called: "row" or "key"
  size_t width, length, heads;  ///< length: rows per head; heads: per batch entry

  std::string element(size_t i) const {
    const size_t r = i / width;
    const size_t bh = r / length;
    std::string text =
        fmt::format("{}[b={}, h={}, {}={}", name, bh / heads, bh % heads, row, r % length);
    if (width > 1) text += fmt::format(", feature={}", i % width);
    return text + "]";
  }
};

/// The compared rows of a tensor, and their expected values.
struct Expected {
  std::vector<size_t> rows;             ///< of the tensor
  const std::vector<double>& want;      ///< [rows, width], fp64
  const std::vector<double>& baseline;  ///< [rows, width]
  double factor;
  double unit;      ///< relative error of rounding a result to its type
  double no_digit;  ///< an error that leaves no digit; 0: kNoDigit of the row's largest element
  std::function<Allowance(size_t)> allowance;  ///< of rows[i]
};

// A NaN is worse than any number.
bool worse(double e, double than) { return std::isnan(e) || e > than; }

double distance(double a, double b) { return a == b ? 0 : std::abs(a - b); }  // -inf equals -inf

/// Heads of queries whose scores may err so much that P, an exponential of them, is inf.
std::vector<bool> overflowing_heads(const Problem& p, const Inputs& in) {
  std::vector<bool> overflows;
  for (size_t bh = 0; bh < p.heads(); ++bh) {
    const size_t d = p.d, keys = p.keys_of(bh / p.H);
    const float *Q = &in.Q[bh * p.N * d], *K = in.K.data() + p.kv_head_of(bh) * p.Nk * d;
    const double largest = p.scale() * largest_norm(Q, p.N, d) * largest_norm(K, keys, d);
    overflows.push_back(kFp32Error * largest > kLargestExponent);
  }
  return overflows;
}

/// Finds elements that are wrong whatever the reference is; empty: none.
std::string find_impossible(const Problem& p, const Output& t,
                            const std::function<bool(size_t)>& overflows) {
  if (all_finite(t.values)) return "";  // unwritten elements are NaN
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
    const bool masked_row = t.name == std::string_view("LSE") &&
                            p.visible(static_cast<int>(i % t.length), i / t.length / t.heads,
                                      i / t.length % t.heads) == 0;
    if (!masked_row && overflows(i / t.width)) continue;
    if (!masked_row || !(value < 0)) {
      return fmt::format("{} is {}{}", t.element(i), value,
                         masked_row ? ", expected -inf for a fully masked row" : "");
    }
  }
  return "";
}

TensorCheck compare(const Problem& p, const Inputs& in, const Output& t, const Expected& e) {
  TensorCheck result;
  result.tensor = t.name;
  result.rows_checked = e.rows.size();
  double squares = 0, worst = -1, worst_bound = 0;
  size_t worst_element = 0, first_lost = 0;
  std::vector<bool> heads;  // computed at the first NaN or Inf
  const auto overflows = [&](size_t row) {
    if (heads.empty()) heads = overflowing_heads(p, in);
    const size_t group = p.heads() / t.heads / p.B, head = row / t.length;
    const auto first = heads.begin() + static_cast<ptrdiff_t>(head * group);
    return std::find(first, first + static_cast<ptrdiff_t>(group), true) !=
           first + static_cast<ptrdiff_t>(group);
  };
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
    const Allowance allowed = e.allowance(i);
    const double whole =
        std::max(e.factor * baseline_err, allowed.luckless) + e.unit * largest + allowed.floor;
    const double limit = std::min(whole, e.unit * largest + allowed.rounding + allowed.most);
    const double digits = std::max(e.unit * largest + allowed.rounding,
                                   e.no_digit > 0 ? e.no_digit : kNoDigit * largest);
    const double bound = std::min(limit, digits);
    if (i == 0 || worse(err, result.max_abs_err)) {
      result.max_abs_err = err;
      result.bound = bound;
    }
    const bool lost = std::isfinite(err) ? err > bound && err <= limit : overflows(e.rows[i]);
    if (lost && result.rows_lost++ == 0) first_lost = e.rows[i] * t.width;
    if (lost) continue;
    const double used = std::isnan(err) ? INFINITY : err / bound;
    if (used > worst) {
      worst = used;
      worst_element = i * t.width + x_worst;
      result.used = used;
      worst_bound = bound;
    }
  }
  result.rmse = std::sqrt(squares / static_cast<double>(e.rows.size() * t.width));
  result.message = find_impossible(p, t, overflows);
  if (!result.message.empty()) result.max_abs_err = result.used = NAN;
  if (result.message.empty() && worst > 1) {
    const size_t element = e.rows[worst_element / t.width] * t.width + worst_element % t.width;
    const double want = e.want[worst_element];
    result.message = fmt::format("{} is {:.7g}, expected {:.7g}: error {:.2e}, allowed {:.2e}",
                                 t.element(element), t.values[element], want,
                                 distance(t.values[element], want), worst_bound);
  }
  // An 8-bit format loses one row in a hundred of ordinary activations with outliers.
  const size_t may_be_lost = p.method.fp8 ? result.rows_checked / 100 : 0;
  result.ok = result.message.empty() && result.rows_lost <= may_be_lost;
  if (result.message.empty() && !result.ok) {
    result.lost = true;
    result.message = fmt::format(
        "not checkable: the scores lose their precision, in {} of {} rows; the first is that of {}",
        result.rows_lost, result.rows_checked, t.element(first_lost));
  }
  return result;
}

struct Forward {
  ReferenceForward want, baseline;
};
struct Backward {
  ReferenceBackward want, baseline;
};

void check_forward(const Problem& p, const Inputs& in, const Outputs& out, const Sample& sample,
                   const Forward& reference, CheckResult& result) {
  const ReferenceForward &want = reference.want, &baseline = reference.baseline;
  const double values = p.Nk * largest_value(p, values_of(p, in));  // the factors of P
  result.tensors.push_back(compare(
      p, in, {"O", p, out},
      {sample.rows, want.O, baseline.O, kForwardFactor, unit_of(p.dtype), 0, [&](size_t i) {
         const double arithmetic = floor_of(want.sum_PV[i], values);
         const double of_P = p.dtype == DType::f32 ? 0 : 2 * unit_of(p.dtype);
         double largest = 0;
         for (size_t x = i * p.dv(); x < (i + 1) * p.dv(); ++x) {
           largest = std::max(largest, std::abs(want.O[x]));
         }
         return Allowance{
             arithmetic + moved_by_scores(want, i, unit_of(p.dtype)) +
                 (p.method.fp8 ? fp8_floor_of_O(want, i) : 0),
             arithmetic + of_P * want.sum_PV[i] + (p.method.fp8 ? fp8_rounding_of_O(want, i) : 0),
             want.largest_V[i] + largest};
       }}));
  if (out.LSE.empty()) return;
  result.tensors.push_back(compare(
      p, in, {"LSE", p, out},
      {sample.rows, want.LSE, baseline.LSE, kForwardFactor, unit_of(DType::f32), 1, [&](size_t i) {
         const double lse = std::isfinite(want.LSE[i]) ? std::abs(want.LSE[i]) : 0;
         const double fp8 = p.method.fp8 ? fp8_floor_of_LSE(want, i) : 0;
         return Allowance{
             std::max(floor_of(1 + want.score_bound[i] + lse), floor_of(1) + want.sum_error[i]) +
                 fp8,
             floor_of(1)};
       }}));
}

/// Keeps, for each row, the baseline with the larger maximum error.
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

/// With e4m3 the scale decides whether a number is rounded up or down, and equal numbers are
/// rounded alike. Hence three scales, of which the worst result of each row counts.
ReferenceForward unlucky_baseline(const Problem& p, const Inputs& in, const Sample& sample,
                                  const ReferenceForward& want) {
  ReferenceForward baseline = attention_unfused(p, in, sample);
  if (!p.method.fp8) return baseline;
  for (const float headroom : {1.26F, 1.59F}) {  // a third and two thirds of an octave
    const ReferenceForward other = attention_unfused(p, in, sample, headroom);
    keep_unlucky_rows(want.O, other.O, static_cast<size_t>(p.d), baseline.O);
    keep_unlucky_rows(want.LSE, other.LSE, 1, baseline.LSE);
  }
  return baseline;
}

void check_backward(const Problem& p, const Inputs& in, const Outputs& out, const Sample& sample,
                    const Backward& reference, CheckResult& result) {
  const ReferenceBackward &want = reference.want, &baseline = reference.baseline;
  const size_t N = p.N, Nk = p.Nk, d = p.d, group = p.H / p.Hkv;

  std::vector<size_t> query_rows, key_rows;
  for (const size_t kv_head : sample.heads) {
    const size_t first = kv_head / p.Hkv * p.H + kv_head % p.Hkv * group;  // query head
    for (size_t r = 0; r < group * N; ++r) query_rows.push_back(first * N + r);
    for (size_t c = 0; c < Nk; ++c) key_rows.push_back(kv_head * Nk + c);
  }
  const double unit = unit_of(p.dtype);
  // dS = P (dP - delta), or P before it, may flush to zero: the factors of both. dV needs only P's.
  const double of_dS = (1 + 2 * largest_row(in.dO, d) * largest_row(in.V, d)) * p.scale();
  const double dQ_factors = static_cast<double>(Nk) * of_dS * largest(in.K);
  const double dK_factors = static_cast<double>(group * N) * of_dS * largest(in.Q);
  const double dV_factors = static_cast<double>(group * N) * largest(in.dO);
  const auto allowance = [unit](double scale, double terms, double root, double factors,
                                double delta) {
    const double of_O = kGradientFactor * unit * delta;
    return Allowance{.floor = floor_of(scale, factors) + of_O,
                     .rounding = floor_of(terms, factors) + of_O + kGradientFactor * unit * terms,
                     .luckless = unit * root};
  };
  const auto of_dQ = [&](size_t i) {
    return allowance(want.dQ_scale[i], want.dQ_terms[i], want.dQ_root[i], dQ_factors,
                     want.dQ_delta[i]);
  };
  // On Hopper P is rounded for dV and then multiplies dP - delta: a term of dK has two independent
  // errors, P's and dS's. (Where these are the only ones, dQ uses 70% of its bound without that.)
  const auto of_dK = [&](size_t i) {
    return allowance(want.dK_scale[i], want.dK_terms[i], std::sqrt(2) * want.dK_root[i], dK_factors,
                     want.dK_delta[i]);
  };
  const auto of_dV = [&](size_t i) {
    return allowance(want.dV_scale[i], want.dV_terms[i], want.dV_root[i], dV_factors, 0);
  };
  const auto compared = [&](const char* name, const std::vector<size_t>& rows,
                            const std::vector<double>& is, const std::vector<double>& unfused,
                            const std::function<Allowance(size_t)>& allowed) {
    return compare(p, in, {name, p, out}, {rows, is, unfused, kGradientFactor, unit, 0, allowed});
  };
  result.tensors.push_back(compared("dQ", query_rows, want.dQ, baseline.dQ, of_dQ));
  result.tensors.push_back(compared("dK", key_rows, want.dK, baseline.dK, of_dK));
  result.tensors.push_back(compared("dV", key_rows, want.dV, baseline.dV, of_dV));
  if (out.dsinks.empty()) return;
  std::vector<size_t> heads;
  for (const size_t kv_head : sample.heads) {
    const size_t first = kv_head / p.Hkv * p.H + kv_head % p.Hkv * group;
    for (size_t g = 0; g < group; ++g) heads.push_back(first + g);
  }
  result.tensors.push_back(compare(
      p, in, {"dsinks", p, out},
      {heads, want.dsinks, baseline.dsinks, kGradientFactor, unit_of(DType::f32), 0, [&](size_t i) {
         const double of_O = kGradientFactor * unit * want.dsinks_delta[i];
         const double terms = want.dsinks_scale[i];
         return Allowance{.floor = floor_of(terms) + of_O, .rounding = floor_of(terms) + of_O};
       }}));
}

}  // namespace

bool CheckResult::ok() const {
  return damage.empty() && !tensors.empty() &&
         std::all_of(tensors.begin(), tensors.end(), [](const TensorCheck& t) { return t.ok; });
}

bool CheckResult::lost() const {
  return damage.empty() && !tensors.empty() && !ok() &&
         std::all_of(tensors.begin(), tensors.end(),
                     [](const TensorCheck& t) { return t.ok || t.lost; });
}

struct Checker::Impl {
  const Problem& p;
  const Inputs& in;
  const Sample sample;
  std::optional<Forward> forward;    // made when first needed
  std::optional<Backward> backward;  // the same; not needed without a backward
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

bool never_written(float x) { return std::bit_cast<uint32_t>(x) == 0xffffffff; }

CheckResult check(const Problem& p, const Inputs& in, const Outputs& out, const Sample& sample) {
  return Checker(p, in, sample)(out);
}

}  // namespace fa

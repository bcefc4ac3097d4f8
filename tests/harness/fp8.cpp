// The checker's bound for e4m3 rejects too large a P, and too few bits in a sum.
#include <algorithm>
#include <cmath>

#include "common/dialect/ptx/tensor_sum.h"
#include "common/harness/check.h"
#include "tests/test.h"

using fa::DType;
using fa::Problem;

namespace {

Problem fp8_problem(int N, int Nk, int d, bool causal, int H = 1) {
  Problem p;
  p.B = 1, p.H = p.Hkv = H, p.N = N, p.Nk = Nk, p.d = d, p.causal = causal;
  p.dtype = DType::bf16;
  p.method.fp8 = true;
  return p;
}

float e4m3(float x) { return fa::round_to(DType::e4m3, x); }

// Blocks of `rows` rows of [n, d] as e4m3 numbers, with one scale each.
struct Quantised {
  std::vector<float> values, scales;
  size_t elements;

  Quantised(const std::vector<float>& tensor, size_t rows, size_t d) : elements(rows * d) {
    for (size_t first = 0; first < tensor.size(); first += elements) {
      const size_t end = std::min(first + elements, tensor.size());
      float largest = 0;
      for (size_t i = first; i < end; ++i) largest = std::max(largest, std::fabs(tensor[i]));
      scales.push_back(largest > 0 ? largest / 448 : 1);
      for (size_t i = first; i < end; ++i) values.push_back(e4m3(tensor[i] / scales.back()));
    }
  }
  float scale(size_t i) const { return scales[i / elements]; }
};

struct Kernel {
  size_t block = 64;      // rows that share a scale; for V all
  float offset = 5;       // the largest P is 2^offset ...
  float stale = 0;        // ... times 2^stale, since the maximum may be older
  bool few_bits = false;  // sums as in the tensor cores
  int keys_missing = 0;
};

// An fp8 kernel on the CPU, one row at a time.
fa::Outputs attention(const Problem& p, const fa::Inputs& in, const Kernel& kernel) {
  const size_t d = p.d;
  const Quantised Q(in.Q, kernel.block, d), K(in.K, kernel.block, d);
  const Quantised V(in.V, in.V.size() / d, d);
  fa::Outputs out;
  for (size_t row = 0; row < p.rows(); ++row) {
    const size_t first = p.kv_head_of(row / p.N) * p.Nk;
    const int n = p.visible(static_cast<int>(row % p.N)) - kernel.keys_missing;
    std::vector<float> S(n), P((n + 31) / 32 * 32, 0.f);
    float m = -INFINITY, l = 0;
    for (int c = 0; c < n; ++c) {
      const size_t k = (first + c) * d;
      for (size_t x = 0; x < d; ++x) S[c] += Q.values[row * d + x] * K.values[k + x];
      m = std::max(m, S[c] *= Q.scale(row * d) * K.scale(k) * p.scale());
    }
    const float up = std::exp2(kernel.offset + kernel.stale);
    for (int c = 0; c < n; ++c) {
      const float exact = up * std::exp(S[c] - m);
      l += exact, P[c] = e4m3(exact);
    }
    for (size_t x = 0; x < d; ++x) {
      float sum = 0;
      for (int c = 0; c < n; c += 32) {
        float v[32] = {};
        for (int i = 0; i < std::min(32, n - c); ++i) v[i] = V.values[(first + c + i) * d + x];
        if (kernel.few_bits) {
          sum = fa::tensor_sum(fa::kE4m3Sum, &P[c], v, sum);
        } else {
          for (int i = 0; i < 32; ++i) sum += P[c + i] * v[i];
        }
      }
      out.O.push_back(fa::round_to(DType::bf16, sum * V.scales[0] / l));
    }
    out.LSE.push_back(m + std::log(l / up));
  }
  return out;
}

fa::CheckResult check(const Problem& p, const fa::Inputs& in, const Kernel& kernel) {
  return fa::check(p, in, attention(p, in, kernel), fa::sample_of(p, 1, 1e18));
}

fa::Inputs with_mean(fa::Inputs in, float mean) {
  for (float& v : in.V) v = fa::round_to(DType::bf16, v + mean);
  return in;
}

}  // namespace

TEST_CASE("fp8: kernels that quantise in other blocks than the baseline are right", "[fp8]") {
  const Problem p = GENERATE(fp8_problem(300, 300, 64, true, 2), fp8_problem(64, 1000, 128, false),
                             fp8_problem(200, 130, 32, false, 3), fp8_problem(40, 40, 64, true));
  const float mean = GENERATE(0.f, 1.f);
  const bool outliers = GENERATE(false, true);
  CAPTURE(p.N, p.Nk, p.d, p.causal, mean, outliers);
  for (const uint64_t seed : {1, 2}) {
    const auto in =
        with_mean(outliers ? fa::outlier_inputs(p, seed) : fa::normal_inputs(p, seed), mean);
    for (const size_t block : {1, 64}) {
      const fa::CheckResult result = check(p, in, {.block = block, .stale = 3});
      for (const fa::TensorCheck& t : result.tensors) {
        CAPTURE(block, seed, t.tensor, t.message, t.max_abs_err, t.baseline_err);
        CHECK(t.used < 1);
        CHECK(t.used > 0.05);  // the bound is not wide
      }
    }
  }
}

TEST_CASE("fp8: errors of equal keys are equal, and do not average out", "[fp8]") {
  const Problem once = fp8_problem(3, 50, 64, false), often = fp8_problem(3, 16 * 50, 64, false);
  const fa::Inputs in = fa::normal_inputs(once, 8);
  fa::Inputs copies = in;
  for (int n = 1; n < 16; ++n) {
    copies.K.insert(copies.K.end(), in.K.begin(), in.K.end());
    copies.V.insert(copies.V.end(), in.V.begin(), in.V.end());
  }
  const auto reference = [](const Problem& p, const fa::Inputs& of) {
    return fa::attention_fp64(p, of, fa::sample_of(p, 1, 1e18));
  };
  const auto want = reference(once, in), got = reference(often, copies);
  for (size_t row = 0; row < 3; ++row) {
    CHECK(got.root_PV[row] == Approx(want.root_PV[row]));
    CHECK(got.root_PS[row] == Approx(want.root_PS[row]));
    CHECK(got.root_PSV[row] == Approx(want.root_PSV[row]));
  }
}

TEST_CASE("fp8: a P that saturates is wrong", "[fp8]") {
  const Problem p = fp8_problem(64, 512, 64, GENERATE(false, true));
  const auto in = fa::normal_inputs(p, 4);
  CHECK(check(p, in, {.offset = 5, .stale = 3.8f}).ok());
  CHECK_FALSE(check(p, in, {.offset = 5, .stale = 8}).ok());  // a bf16 kernel's lazy maximum
  CHECK_FALSE(check(p, in, {.offset = 8.8f, .stale = 4}).ok());
}

TEST_CASE("fp8: sums of 13 bits are wrong when V has a mean", "[fp8]") {
  const Problem p = fp8_problem(6, 8192, 32, false);
  const auto in = fa::normal_inputs(p, 5);
  CHECK(check(p, in, {}).ok());
  CHECK(check(p, in, {.few_bits = true}).ok());  // no visible effect
  CHECK(check(p, with_mean(in, 1), {}).ok());
  CHECK_FALSE(check(p, with_mean(in, 1), {.few_bits = true}).ok());
}

TEST_CASE("fp8: a missing key is wrong", "[fp8]") {
  const Problem p = fp8_problem(64, 64, 64, false);
  CHECK_FALSE(check(p, fa::normal_inputs(p, 6), {.keys_missing = 1}).ok());
}

TEST_CASE("fp8: the baseline quantises, and has what it rounds from the rows", "[fp8]") {
  Problem p = fp8_problem(2, 2, 32, false);
  fa::Inputs in;
  in.Q.assign(p.q_size(), 0.f), in.K.assign(p.kv_size(), 0.f), in.V.assign(p.kv_size(), 3.f);
  in.V[0] = 448, in.V[1] = in.V[33] = 17;  // so the scale is 1; 17 lies between 16 and 18
  const fa::Sample sample = fa::sample_of(p, 1, 1e18);
  const auto baseline = fa::attention_unfused(p, in, sample);
  CHECK(baseline.O[1] == 16);
  CHECK(baseline.O[2] == 3);
  p.method.fp8 = false;
  CHECK(fa::attention_unfused(p, in, sample).O[1] == 17);
  p.method.fp8 = true;
  const auto want = fa::attention_fp64(p, in, sample);
  CHECK(want.O[1] == 17);
  double unlucky = 0;
  for (const float headroom : {1.f, 1.26f, 1.59f}) {
    const auto other = fa::attention_unfused(p, in, sample, headroom);
    for (size_t i = 0; i < want.O.size(); ++i) {
      unlucky = std::max(unlucky, std::abs(other.O[i] - want.O[i]));
    }
  }
  CHECK(check(p, in, {}).tensors[0].baseline_err == unlucky);
  CHECK(want.root_PV[0] == Approx(std::hypot(448, 3) / 2));
  CHECK(want.root_PS[0] == 0);
  CHECK(want.root_mean[0] == 0);
}

// The judge without arguments: ./scripts/judge asks it for inputs and shows it results, through its
// standard input and output. It computes the reference; the extension runs in another process.
//
// {"inputs": [names], "problem", "seed", "type", "order"} is answered by a line and their bytes: Q,
// K, V, dO, O, LSE, delta = rowsum(dO O). {"outputs": [{"name", "type"}], ...} with their bytes
// after the line and "traffic" (judge.h) is answered by {"host", "tensors": [{"name", "ok",
// "message", "error", "allowed", "near"}]}; `near`: the share of elements that are right or nearly
// so; `host`: why its kernels did not make the result.

#include <bit>
#include <cmath>
#include <cstring>

#include "common/harness/check.h"
#include "steps/exercise_checker/channel.h"
#include "steps/exercise_checker/judge.h"

namespace fa {

namespace {

using nlohmann::json;

DType type_of(const std::string& name) {
  return name == "float16" ? DType::f16 : name == "bfloat16" ? DType::bf16 : DType::f32;
}

/// x, which round_to() has rounded, as the element's bits; an unwritten one stays so.
uint32_t bits_of(DType type, float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x), sign = u >> 16 & 0x8000;
  if (type == DType::f32) return u;
  if (type == DType::bf16) return u >> 16;
  if (std::isnan(x)) return 0xffff;
  const float size = std::fabs(x);
  if (size < 0x1p-14f) return sign | static_cast<uint32_t>(size * 0x1p24f);
  return sign | (std::isinf(x) ? 0x7c00 : ((u & 0x7fffffff) - (112 << 23)) >> 13);
}

float value_of(DType type, uint32_t bits) {
  if (type == DType::f32) return std::bit_cast<float>(bits);
  if (bits == 0xffff) return std::bit_cast<float>(~0u);  // never written
  if (type == DType::bf16) return std::bit_cast<float>(bits << 16);
  const uint32_t exponent = bits >> 10 & 31, rest = bits & 1023;
  const float size = exponent == 31  ? (rest ? NAN : INFINITY)
                     : exponent == 0 ? static_cast<float>(rest) * 0x1p-24f
                                     : std::ldexp(static_cast<float>(1024 + rest),
                                                  static_cast<int>(exponent) - 25);
  return bits & 0x8000 ? -size : size;
}

/// Where element (b, h, n, x) of a tensor lies in memory, by the order of its axes, "bnhd".
class Order {
 public:
  Order(const std::string& of_rows, const Tensor& t, const Problem& p) {
    std::vector<size_t> sizes = t.shape(p);
    const std::string axes = sizes.size() == 4 ? of_rows : "bhn";
    size_t stride = 1;
    for (size_t i = axes.size(); i-- > 0;) {
      const size_t axis = std::string("bhnd").find(axes[i]);
      if (axis >= sizes.size()) continue;
      strides_[axis] = stride;
      stride *= sizes[axis];
      sizes_[axis] = sizes[axis];
    }
  }
  /// \param i  in the order b, h, n, d
  size_t operator()(size_t i) const {
    size_t at = 0;
    for (size_t axis = 4; axis-- > 0; i /= sizes_[axis]) at += i % sizes_[axis] * strides_[axis];
    return at;
  }

 private:
  size_t sizes_[4] = {1, 1, 1, 1}, strides_[4] = {0, 0, 0, 0};
};

std::vector<char> packed(const std::vector<float>& values, DType type, const Order& order) {
  const size_t each = bytes_of(type);
  std::vector<char> bytes(values.size() * each);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t bits = bits_of(type, round_to(type, values[i]));
    std::memcpy(&bytes[order(i) * each], &bits, each);
  }
  return bytes;
}

std::vector<float> unpacked(const std::vector<char>& bytes, DType type, const Order& order) {
  const size_t each = bytes_of(type);
  std::vector<float> values(bytes.size() / each);
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, &bytes[order(i) * each], each);
    values[i] = value_of(type, bits);
  }
  return values;
}

/// A problem, its inputs, and those of the reference: an extension may compute without the scale.
struct Case {
  Problem p;
  Inputs in, scaled;
  explicit Case(const json& asked)
      : p(problem_of(asked.at("problem"), {.d = {asked.at("problem").at("d").get<int>()}})) {
    p.dtype = type_of(asked.at("type"));
    in = scaled = inputs_of(asked.at("problem"), p, asked.at("seed"));
    if (!asked.at("unscaled")) return;
    for (float& q : scaled.Q) q *= std::sqrt(static_cast<float>(p.d));
  }
};

std::vector<float> rounded(const std::vector<double>& from, DType type) {
  std::vector<float> to;
  for (const double x : from) to.push_back(round_to(type, static_cast<float>(x)));
  return to;
}

/// The checker wants O, and all gradients or none: adds the reference's, which are right.
void complete(const Case& c, Outputs& out) {
  const Sample all = sample_of(c.p, 1, 1e18);
  if (out.O.empty()) out.O = rounded(attention_fp64(c.p, c.scaled, all).O, c.p.dtype);
  if (out.dQ.empty() && out.dK.empty() && out.dV.empty()) return;
  if (!out.dQ.empty() && !out.dK.empty() && !out.dV.empty()) return;
  const ReferenceBackward want = attention_backward_fp64(c.p, c.scaled, all);
  if (out.dQ.empty()) out.dQ = rounded(want.dQ, c.p.dtype);
  if (out.dK.empty()) out.dK = rounded(want.dK, c.p.dtype);
  if (out.dV.empty()) out.dV = rounded(want.dV, c.p.dtype);
}

std::vector<float> delta_of(const Case& c, const std::vector<float>& O) {
  std::vector<float> delta(c.p.rows());
  for (size_t i = 0; i < O.size(); ++i) delta[i / c.p.d] += O[i] * c.in.dO[i];
  return delta;
}

void answer_inputs(Channel& caller, const json& asked) {
  const Case c(asked);
  Outputs reference;
  std::vector<std::vector<char>> bytes;
  for (const std::string asked_name : asked.at("inputs")) {
    const std::string name = asked_name == "delta" ? "LSE" : asked_name;
    const Tensor& t = tensor_of(name);
    if (!t.input && reference.O.empty()) {
      const ReferenceForward f = attention_fp64(c.p, c.scaled, sample_of(c.p, 1, 1e18));
      reference.O = rounded(f.O, c.p.dtype);
      reference.LSE = rounded(f.LSE, DType::f32);
    }
    if (asked_name == "delta") reference.LSE = delta_of(c, reference.O);
    bytes.push_back(packed(t.input ? c.in.*t.input : reference.*t.output,
                           name == "LSE" ? DType::f32 : c.p.dtype,
                           Order(asked.at("order"), t, c.p)));
  }
  std::vector<const std::vector<char>*> all;
  for (const auto& b : bytes) all.push_back(&b);
  caller.put(json::object(), all);
}

/// The share of elements that no accident brings near the right ones.
double near(const std::vector<float>& got, const std::vector<double>& want) {
  size_t count = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    count += std::abs(got[i] - want[i]) <= 0.02 * std::abs(want[i]);
  }
  return static_cast<double>(count) / static_cast<double>(want.size());
}
double near(const Case& c, const std::string& name, const Outputs& out) {
  const Sample all = sample_of(c.p, 1, 1e18);
  if (name == "O") return near(out.O, attention_fp64(c.p, c.scaled, all).O);
  if (name == "LSE") return 0;
  const ReferenceBackward want = attention_backward_fp64(c.p, c.scaled, all);
  return name == "dQ"   ? near(out.dQ, want.dQ)
         : name == "dK" ? near(out.dK, want.dK)
                        : near(out.dV, want.dV);
}

void answer_check(Channel& caller, const json& asked) {
  const Case c(asked);
  Outputs out;
  for (const json& o : asked["outputs"]) {
    const Tensor& t = tensor_of(o.at("name").get<std::string>());
    const DType type = type_of(o.at("type"));
    out.*t.output = unpacked(caller.numbers<char>(t.elements(c.p) * bytes_of(type)), type,
                             Order(asked.at("order"), t, c.p));
  }
  const Outputs given = out;
  complete(c, out);
  json tensors = json::array();
  std::vector<const Tensor*> outputs;
  const CheckResult result = check(c.p, c.scaled, out, sample_of(c.p, 1, 1e18));
  for (const TensorCheck& t : result.tensors) {
    const Tensor& of = tensor_of(t.tensor);
    if ((given.*of.output).empty()) continue;
    if (t.tensor != "LSE") outputs.push_back(&of);
    const bool known = std::isfinite(t.max_abs_err);
    tensors.push_back({{"name", t.tensor},
                       {"ok", t.ok},
                       {"lost", t.lost},
                       {"message", t.message},
                       {"error", known ? json(t.max_abs_err) : json()},
                       {"allowed", t.bound},
                       {"near", t.ok ? 1 : near(c, t.tensor, out)}});
  }
  const auto fault = made_by_the_host(c.p, outputs, asked.at("traffic"));
  caller.put({{"tensors", tensors}, {"host", fault ? fault->text : ""}});
}

}  // namespace

int judge_extension() {
  Channel caller("0", "1");
  for (json asked = caller.get(); !asked.is_null(); asked = caller.get()) {
    asked.contains("inputs") ? answer_inputs(caller, asked) : answer_check(caller, asked);
  }
  return 0;
}

}  // namespace fa

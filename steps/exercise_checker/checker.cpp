// The checker of ./scripts/learn and ./scripts/judge: draws a problem's inputs and compares with
// the reference what became of them. The kernels run in another process, which knows neither.
//
// A line has a "problem" (channel.h), its "type" and "seed"; "fp8" and "latent" as a Variant has;
// "unscaled": scores without 1/sqrt(d). With "inputs": [names], of Q, K, V, dO and the reference's
// O, LSE, delta = rowsum(dO O), the answer is {"problem": text, "outputs": {name: {"count", "bytes"
// on the device}}, "sizes": [...]} and their bytes, in the problem's type or `as`. With "outputs":
// [{"name", "type"}] and their bytes it is a list of {"name", "ok", "message", "error", "allowed",
// "near"}: the share of elements that are right or nearly so, with "rate"; then outputs may be
// missing. All are [B, H, N, d]. Without either it is {"problem", "parts" of a GPU}.
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>

#include "common/counts/estimate.h"
#include "common/harness/check.h"
#include "steps/exercise_checker/channel.h"

namespace fa {

namespace {

using nlohmann::json;
using Bytes = std::vector<char>;

DType type_of(const std::string& name) {
  return name == "float16" ? DType::f16 : name == "bfloat16" ? DType::bf16 : DType::f32;
}
DType type_of(const std::string& name, DType type) {
  return tensor_of(name).type ? DType::f32 : type;
}

uint32_t bits_of(DType type, float x) {
  if (type == DType::f16) return std::bit_cast<uint16_t>(static_cast<_Float16>(x));
  return std::bit_cast<uint32_t>(x) >> (type == DType::bf16 ? 16 : 0);
}

/// An element that was never written stays so.
float value_of(DType type, uint32_t bits) {
  if (type == DType::f32) return std::bit_cast<float>(bits);
  if (bits == 0xffff) return std::bit_cast<float>(~0u);
  if (type == DType::bf16) return std::bit_cast<float>(bits << 16);
  return static_cast<float>(std::bit_cast<_Float16>(static_cast<uint16_t>(bits)));
}

Bytes packed(const std::vector<float>& values, DType type) {
  const size_t each = bytes_of(type);
  Bytes bytes(values.size() * each);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t bits = bits_of(type, round_to(type, values[i]));
    std::memcpy(&bytes[i * each], &bits, each);
  }
  return bytes;
}

std::vector<float> unpacked(const Bytes& bytes, DType type) {
  const size_t each = bytes_of(type);
  std::vector<float> values(bytes.size() / each);
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, &bytes[i * each], each);
    values[i] = value_of(type, bits);
  }
  return values;
}

/// A problem, its inputs, and those of the reference: somebody may compute without the scale.
struct Case {
  Problem p;
  Inputs in, scaled;
  explicit Case(const json& asked) : p(problem_of(asked.at("problem"))) {
    p.dtype = type_of(asked.at("type"));
    p.method.fp8 = asked.value("fp8", false);
    p.cache.latent = asked.value("latent", 0);
    const json& j = asked.at("problem");
    const uint64_t seed = asked.at("seed");
    in =
        j.value("input", "normal") == "outliers" ? outlier_inputs(p, seed) : normal_inputs(p, seed);
    const float factor = j.value("factor", 1.f);  // how far apart the scores of a row are
    for (float& q : in.Q) q = round_to(p.dtype, q * factor);
    const float mean = j.value("mean", 0.f);
    for (float& v : in.V) v = round_to(p.dtype, v + mean);
    scaled = in;
    const float scale = asked.value("unscaled", false) ? std::sqrt(static_cast<float>(p.d)) : 1.f;
    for (float& q : scaled.Q) q *= scale;
  }
};

/// The reference's tensors.
std::map<std::string, std::vector<double>> right(const Case& c, bool backward) {
  const Sample all = sample_of(c.p, 1, 1e18);
  const ReferenceForward f = attention_fp64(c.p, c.scaled, all);
  std::map<std::string, std::vector<double>> found = {{"O", f.O}, {"LSE", f.LSE}};
  if (!backward) return found;
  const ReferenceBackward b = attention_backward_fp64(c.p, c.scaled, all);
  found.insert({{"dQ", b.dQ}, {"dK", b.dK}, {"dV", b.dV}});
  return found;
}

std::vector<float> rounded(const std::vector<double>& from, DType type) {
  std::vector<float> to;
  for (const double x : from) to.push_back(round_to(type, static_cast<float>(x)));
  return to;
}

void answer_inputs(Channel& caller, const json& asked, const Case& c) {
  const DType type = asked.contains("as") ? type_of(asked["as"]) : c.p.dtype;
  std::map<std::string, std::vector<double>> want;
  std::vector<Bytes> bytes;
  json said = {{"problem", describe(c.p)}};
  for (const std::string name : asked.at("inputs")) {
    if (name != "delta" && tensor_of(name).input) {
      bytes.push_back(packed(c.in.*tensor_of(name).input, type));
    } else {
      if (want.empty()) want = right(c, false);
      std::vector<float> values(c.p.rows());  // of delta
      const std::vector<float> O = rounded(want["O"], c.p.dtype);
      for (size_t i = 0; i < O.size(); ++i) values[i / c.p.d] += O[i] * c.in.dO[i];
      if (name != "delta") values = rounded(want[name], type_of(name, c.p.dtype));
      bytes.push_back(packed(values, name == "O" ? type : DType::f32));
    }
    said["sizes"].push_back(bytes.back().size());
  }
  for (const char* name : {"O", "LSE", "dQ", "dK", "dV"}) {
    const Tensor& t = tensor_of(name);
    said["outputs"][name] = {{"count", t.elements(c.p)}, {"bytes", t.bytes(c.p)}};
  }
  std::vector<const Bytes*> all;
  for (const Bytes& b : bytes) all.push_back(&b);
  caller.put(said, all);
}

/// The share of elements that no accident brings near the right ones.
double near(const std::vector<float>& got, const std::vector<double>& want) {
  size_t count = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    count += std::abs(got[i] - want[i]) <= 0.02 * std::abs(want[i]);
  }
  return static_cast<double>(count) / static_cast<double>(want.size());
}

void answer_check(Channel& caller, const json& asked, const Case& c) {
  Outputs out;
  bool backward = false;
  for (const json& o : asked["outputs"]) {
    const std::string name = o.at("name");
    const DType type = type_of(o.at("type"));
    const size_t bytes = tensor_of(name).elements(c.p) * bytes_of(type);
    out.*tensor_of(name).output = unpacked(caller.numbers<char>(bytes), type);
    backward |= name[0] == 'd';
  }
  const Outputs given = out;
  std::map<std::string, std::vector<double>> want;
  if (asked.value("rate", false)) want = right(c, backward);
  for (const auto& [name, values] : want) {  // the check wants all of them
    std::vector<float>& mine = out.*tensor_of(name).output;
    if (mine.empty()) mine = rounded(values, type_of(name, c.p.dtype));
  }
  json tensors = json::array();
  for (const TensorCheck& t : check(c.p, c.scaled, out, sample_of(c.p, 1, 1e18)).tensors) {
    const std::vector<float>& mine = given.*tensor_of(t.tensor).output;
    if (mine.empty()) continue;
    const bool known = std::isfinite(t.max_abs_err);
    const bool rated = want.count(t.tensor) && t.tensor != "LSE";
    tensors.push_back({{"name", t.tensor},
                       {"ok", t.ok},
                       {"message", t.message},
                       {"error", known ? json(t.max_abs_err) : json()},
                       {"allowed", t.bound},
                       {"near", t.ok    ? 1
                                : rated ? near(mine, want.at(t.tensor))
                                        : 0}});
  }
  caller.put(tensors);
}

}  // namespace

}  // namespace fa

int main() try {
  fa::Channel caller("0", "1");
  for (nlohmann::json asked = caller.get(); !asked.is_null(); asked = caller.get()) {
    if (asked.contains("inputs")) {
      fa::answer_inputs(caller, asked, fa::Case(asked));
    } else if (asked.contains("outputs")) {
      fa::answer_check(caller, asked, fa::Case(asked));
    } else {
      nlohmann::json parts;
      for (int i = 0; i <= int(fa::Part::start); ++i) parts.push_back(fa::name_of(fa::Part(i)));
      caller.put(
          {{"problem", fa::describe(fa::problem_of(asked.at("problem")))}, {"parts", parts}});
    }
  }
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}

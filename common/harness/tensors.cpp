#include "common/harness/tensors.h"

#include "common/counts/trace.h"

#include <stdexcept>
#include <type_traits>

#include "common/harness/step.h"

namespace fa {
namespace {

const Axis kB{"B", [](const Problem& p) { return p.B; }};
const Axis kH{"H", [](const Problem& p) { return p.H; }};
const Axis kHkv{"Hkv", [](const Problem& p) { return p.Hkv; }};
const Axis kN{"N", [](const Problem& p) { return p.N; }};
const Axis kNk{"Nk", [](const Problem& p) { return p.Nk; }};
const Axis kd{"d", [](const Problem& p) { return p.d; }};
const Axis kdv{"d", [](const Problem& p) { return p.dv(); }, "dv"};
const Axis kOne{"1", [](const Problem&) { return 1; }};
const Axis kPages{"pages", [](const Problem& p) { return p.pages(); }};

template <auto M>
auto& member(auto& t) {
  if constexpr (requires { t.*M; }) {
    return t.*M;
  } else {
    return t.cache.*M;
  }
}

template <auto M>
constexpr Tensor::Member at{[](Tensors<void>& all, void* p) {
                              auto& place = member<M>(all);
                              place = static_cast<std::remove_reference_t<decltype(place)>>(p);
                            },
                            [](const Tensors<void>& all) -> const void* { return member<M>(all); }};

bool has_values(const Variant&, const Problem& p) { return p.cache.latent == 0; }
bool in_8_bits(const Variant&, const Problem& p) { return p.cache.fp8; }
bool has_lengths(const Variant&, const Problem& p) { return !p.cache.lengths.empty(); }
bool paged(const Variant&, const Problem& p) { return p.cache.page != 0; }
bool writes_lse(const Variant& v, const Problem&) { return v.writes_lse; }
bool has_backward(const Variant& v, const Problem&) { return bool(v.backward); }
bool has_sinks(const Variant&, const Problem& p) { return p.score_mod.sinks; }
bool has_sink_gradients(const Variant& v, const Problem& p) {
  return v.backward && p.score_mod.sinks;
}

}  // namespace

const std::vector<Tensor>& all_tensors() {
  using T = Tensors<void>;
  using C = Cache;
  using I = Inputs;
  using O = Outputs;
  using F = InputFiles;
  using enum Role;
  constexpr Role gradient = backward_output;
  constexpr auto backward = has_backward;
  const std::vector<Axis> queries{kB, kH, kN, kd}, keys{kB, kHkv, kNk, kd}, rows{kB, kH, kN};
  const std::vector<Axis> results{kB, kH, kN, kdv};
  const std::vector<Axis> heads{kB, kHkv}, batch{kB}, pages{kB, kPages};
  const auto out = [](const char* name, Role role, const auto& axes, Tensor::Member device,
                      auto host, const char* type, auto there) {
    return Tensor{name, role, axes, device, type, there, {}, {}, host};
  };
  static const std::vector<Tensor> all = {
      {"Q", input, queries, at<&T::Q>, nullptr, nullptr, &I::Q, &F::q},
      {"K_scale", input, heads, at<&C::K_scale>, "fp32", in_8_bits, &I::K_scale},
      {"V_scale", input, heads, at<&C::V_scale>, "fp32", in_8_bits, &I::V_scale},
      {"lengths", input, batch, at<&C::lengths>, "int32", has_lengths},
      {"table", input, pages, at<&C::table>, "int32", paged},
      {"K", input, keys, at<&T::K>, nullptr, nullptr, &I::K, &F::k},
      {"V", input, keys, at<&T::V>, nullptr, has_values, &I::V, &F::v},
      {"sinks", input, {kH}, at<&T::sinks>, "fp32", has_sinks, &I::sinks},
      out("O", output, results, at<&T::O>, &O::O, nullptr, nullptr),
      out("LSE", output, rows, at<&T::LSE>, &O::LSE, "fp32", writes_lse),
      {"dO", backward_input, queries, at<&T::dO>, nullptr, backward, &I::dO, &F::dO},
      out("dQ", gradient, queries, at<&T::dQ>, &O::dQ, nullptr, backward),
      out("dK", gradient, keys, at<&T::dK>, &O::dK, nullptr, backward),
      out("dV", gradient, keys, at<&T::dV>, &O::dV, nullptr, backward),
      out("dsinks", gradient, std::vector{kB, kH, kOne}, at<&T::dsinks>, &O::dsinks, "fp32",
          has_sink_gradients)};
  return all;
}

const char* name_of(Role role) {
  constexpr const char* kNames[] = {"input", "output", "backward input", "backward output"};
  return kNames[static_cast<int>(role)];
}

const Tensor& tensor_of(std::string_view name) {
  for (const Tensor& t : all_tensors()) {
    if (t.name == name) return t;
  }
  throw std::out_of_range("no tensor '" + std::string(name) + "'");
}

bool Tensor::of_keys() const { return axes.size() > 2 && axes[2].name == kNk.name; }

std::vector<size_t> Tensor::shape(const Problem& p) const {
  std::vector<size_t> sizes;
  for (const Axis& axis : axes) sizes.push_back(static_cast<size_t>(axis.of(p)));
  return sizes;
}

size_t Tensor::elements(const Problem& p) const {
  size_t product = 1;
  for (const size_t n : shape(p)) product *= n;
  return product;
}

size_t Tensor::bytes(const Problem& p) const { return elements(p) * layout(p).element_bytes; }

Layout Tensor::layout(const Problem& p) const {
  std::vector<size_t> sizes = shape(p);
  if (sizes.size() % 2 != 0) sizes.push_back(1);
  const size_t columns = sizes.back(), rows = sizes[sizes.size() - 2];
  const size_t element_bytes = type ? 4 : bytes_of(p.dtype);
  return {elements(p) / (rows * columns), rows, columns, static_cast<unsigned>(element_bytes)};
}

std::string Tensor::shape_text(const Problem& p) const {
  std::string text;
  for (const Axis& axis : axes) {
    text += (text.empty() ? "" : ", ") + std::string(p.cache.latent ? axis.latent : axis.name);
  }
  return "[" + text + "]";
}

std::vector<const Tensor*> tensors_of(const Variant& v, const Problem& p) {
  std::vector<const Tensor*> found;
  for (const Tensor& t : all_tensors()) {
    if (!t.there || t.there(v, p)) found.push_back(&t);
  }
  return found;
}

}  // namespace fa

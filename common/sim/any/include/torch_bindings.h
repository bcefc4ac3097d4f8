/// \file
/// The bindings of an extension, of pybind11 and TORCH_LIBRARY: recorded before main(), which
/// another program then has call them (common/sim/any/extension.cpp). Part of torch_extension.h.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "common/sim/any/include/torch_extension.h"

namespace sim::torch {

using Value = std::variant<std::monostate, bool, int64_t, double, std::string, at::Tensor,
                           std::vector<at::Tensor>, std::vector<int64_t>>;

/// A parameter: "tensor", "float", ...; `?` after it where it may be absent.
struct Parameter {
  std::string kind, name;
  std::optional<Value> fallback;
};
struct Function {
  std::string name;
  const void* address = nullptr;
  std::vector<Parameter> parameters;
  std::function<std::vector<Value>(const std::vector<Value>&)> call;
};
/// In the order of their definition.
std::vector<Function>& functions();

template <class T>
struct Cast {  // a type that no caller can pass
  static std::string kind() { return "other"; }
  static T from(const Value&) { throw c10::Error("a type that is not known here"); }
};
template <class T>
requires std::is_arithmetic_v<T>
struct Cast<T> {
  static std::string kind() {
    return std::is_same_v<T, bool> ? "bool" : std::is_integral_v<T> ? "int" : "float";
  }
  static T from(const Value& v) {
    if (auto* b = std::get_if<bool>(&v)) return static_cast<T>(*b);
    if (auto* i = std::get_if<int64_t>(&v)) return static_cast<T>(*i);
    if (auto* d = std::get_if<double>(&v); d && !std::is_integral_v<T>) return static_cast<T>(*d);
    throw c10::Error(kind());
  }
};
#define SIM_CAST(T, word)                          \
  template <>                                      \
  struct Cast<T> {                                 \
    static std::string kind() { return word; }     \
    static T from(const Value& v) {                \
      if (auto* p = std::get_if<T>(&v)) return *p; \
      throw c10::Error(kind());                    \
    }                                              \
  };
SIM_CAST(std::string, "str")
SIM_CAST(at::Tensor, "tensor")
SIM_CAST(std::vector<at::Tensor>, "tensors")
SIM_CAST(std::vector<int64_t>, "ints")
template <>
struct Cast<c10::Scalar> : Cast<double> {
  static c10::Scalar from(const Value& v) { return Cast<double>::from(v); }
};
template <>
struct Cast<c10::IntArrayRef> {
  static std::string kind() { return "ints"; }
  static c10::IntArrayRef from(const Value& v) { return std::get<std::vector<int64_t>>(v); }
};
template <class T>
struct Cast<std::optional<T>> {
  static std::string kind() { return Cast<T>::kind() + "?"; }
  static std::optional<T> from(const Value& v) {
    if (std::holds_alternative<std::monostate>(v)) return std::nullopt;
    return Cast<T>::from(v);
  }
};

template <class T>
void append(std::vector<Value>& to, const T& v) {
  if constexpr (std::is_same_v<T, std::vector<at::Tensor>>) {
    for (const at::Tensor& t : v) to.push_back(t);
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    std::apply([&](const auto&... each) { (append(to, each), ...); }, v);
  } else if constexpr (requires { v.has_value(); }) {
    v ? append(to, *v) : to.push_back({});
  } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    to.push_back(static_cast<int64_t>(v));
  } else if constexpr (std::is_floating_point_v<T>) {
    to.push_back(static_cast<double>(v));
  } else if constexpr (std::is_constructible_v<Value, const T&>) {
    to.push_back(v);
  } else {
    throw c10::Error("a result of a type that is not known here");
  }
}

template <class T>
T argument(const std::vector<Value>& values, size_t i) try {
  return Cast<T>::from(values.at(i));
} catch (const c10::Error& error) {
  throw c10::Error("argument " + std::to_string(i + 1) + " is not of the type " + error.text);
}

template <class R, class... A>
Function function(std::string name, const void* address, std::function<R(A...)> f) {
  Function made{std::move(name), address, {}, {}};
  ((made.parameters.push_back({Cast<std::decay_t<A>>::kind(), "", {}})), ...);
  made.call = [f](const std::vector<Value>& values) {
    size_t i = 0;
    std::tuple<std::decay_t<A>...> all{argument<std::decay_t<A>>(values, i++)...};
    std::vector<Value> results;
    const auto run = [&](auto&... a) -> R { return f(static_cast<A&&>(a)...); };
    if constexpr (std::is_void_v<R>) {
      std::apply(run, all);
    } else {
      append(results, static_cast<std::decay_t<R>>(std::apply(run, all)));
    }
    return results;
  };
  return made;
}
/// Of a function, a lambda or what else may be called.
template <class F>
Function bind(std::string name, F f) {
  const void* address = nullptr;
  if constexpr (std::is_pointer_v<F>) address = reinterpret_cast<const void*>(f);
  return function(std::move(name), address, std::function(f));
}
/// `Name{"O"} % torch::zeros(...)`: what scripts/sim makes of `O = torch::zeros(...)`.
struct Name {
  const char* text;
  at::Tensor operator%(at::Tensor t) const { return t.name(text); }
  auto operator%(auto other) const { return other; }
};
/// Runs before main().
struct Module {
  explicit Module(auto&& define) { define(); }
};

}  // namespace sim::torch

namespace pybind11 {
struct arg {
  std::string name;
  std::optional<sim::torch::Value> fallback;
  explicit arg(const char* n) : name(n) {}
  template <class T>
  arg operator=(const T& value) const {
    arg with = *this;
    std::vector<sim::torch::Value> one;
    if constexpr (std::is_convertible_v<T, const char*>) {
      one.push_back(std::string(value));
    } else if constexpr (!std::is_empty_v<T> || std::is_arithmetic_v<T>) {
      sim::torch::append(one, value);
    } else {
      one.push_back({});
    }
    with.fallback = one[0];
    return with;
  }
  arg& noconvert(bool = true) { return *this; }
  arg& none(bool = true) { return *this; }
};
struct none {};
struct gil_scoped_release {};
template <class... T>
struct call_guard {};
struct Documentation {
  template <class T>
  Documentation& operator=(const T&) {
    return *this;
  }
};
/// Whoever returns one is bound, and refuses to be called.
struct dict {
  Documentation operator[](const auto&) { return {}; }
};
struct list {
  void append(const auto&) {}
};
class module_ {
 public:
  template <class F, class... Extra>
  module_& def(const char* name, F f, const Extra&... extra) {
    sim::torch::Function made = sim::torch::bind(name, f);
    size_t i = 0;
    const auto take = [&](const auto& e) {
      if constexpr (std::is_same_v<std::decay_t<decltype(e)>, arg>) {
        if (i < made.parameters.size()) {
          made.parameters[i].name = e.name;
          made.parameters[i++].fallback = e.fallback;
        }
      }
    };
    (take(extra), ...);
    sim::torch::functions().push_back(std::move(made));
    return *this;
  }
  Documentation doc() const { return {}; }
  Documentation attr(const char*) const { return {}; }
};
using module = module_;
namespace literals {
inline arg operator""_a(const char* name, size_t) { return arg(name); }
}  // namespace literals
}  // namespace pybind11
namespace py = pybind11;
#define PYBIND11_MODULE(name, m)                       \
  static void sim_define_module(::pybind11::module_&); \
  static const ::sim::torch::Module sim_module([] {    \
    ::pybind11::module_ made;                          \
    sim_define_module(made);                           \
  });                                                  \
  static void sim_define_module([[maybe_unused]] ::pybind11::module_& m)

namespace torch {
enum class DispatchKey { CUDA, CPU, CompositeExplicitAutograd, CompositeImplicitAutograd, Meta };
inline auto dispatch(DispatchKey, auto f) { return f; }
/// TORCH_LIBRARY: a schema gives the names, an implementation the rest, but one for the CPU.
class Library {
 public:
  explicit Library(const char* key = "") : cpu_(std::string(key) == "CPU") {}
  Library& def(const char* schema) {
    schema_of(schema);
    return *this;
  }
  template <class F>
  Library& def(const char* schema, F f) {
    return impl(schema_of(schema).c_str(), f);
  }
  template <class F>
  Library& impl(const char* name, F f) {
    if (!cpu_) add(sim::torch::bind(name, f));
    return *this;
  }
  template <class K, class F>
  Library& impl(const char* name, K, F f) {
    return impl(name, f);
  }

 private:
  static std::string schema_of(const std::string& schema);  ///< its name
  static void add(sim::torch::Function);
  bool cpu_;
};
}  // namespace torch
#define TORCH_FN(f) (&f)
#define SIM_JOINED_(a, b) a##b
#define SIM_JOINED(a, b) SIM_JOINED_(a, b)
#define SIM_LIBRARY(define, m, ...)                            \
  static void define(::torch::Library&);                       \
  static const ::sim::torch::Module SIM_JOINED(define, _)([] { \
    ::torch::Library made{__VA_ARGS__};                        \
    define(made);                                              \
  });                                                          \
  static void define([[maybe_unused]] ::torch::Library& m)
#define TORCH_LIBRARY(name, m) SIM_LIBRARY(SIM_JOINED(sim_library_, __LINE__), m)
#define TORCH_LIBRARY_FRAGMENT(name, m) SIM_LIBRARY(SIM_JOINED(sim_library_, __LINE__), m)
#define TORCH_LIBRARY_IMPL(name, key, m) SIM_LIBRARY(SIM_JOINED(sim_library_, __LINE__), m, #key)

// A module of Python that only registers operators.
struct PyObject;
struct PyModuleDef {
  int head;
  const char *name, *documentation;
  long size;
  void* methods;
};
#define PyModuleDef_HEAD_INIT 0
#define PyMODINIT_FUNC extern "C" PyObject*
inline PyObject* PyModule_Create(PyModuleDef*) { return nullptr; }

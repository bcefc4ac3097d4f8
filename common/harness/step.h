/// \file
/// What a step hands to step_main(): its host functions and its predictions.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "common/dialect/cuda.h"
#include "common/harness/problem.h"
#include "common/harness/traffic.h"

namespace fa {

/// The 16-bit type of the tensor-core steps.
using bf16 = __nv_bfloat16;

/// Device memory that a step needs beyond inputs and outputs.
struct Scratch {
  std::string name;  ///< the name in traffic tables and messages
  size_t bytes;
  /// Zero before the first run, and each run must leave it zero for the next one: counters that
  /// blocks share, without a memset before each launch. Else it starts as garbage.
  bool zeroed = false;
};

/// The piece of a workspace that has this name.
void* scratch_of(const std::map<std::string, void*>& workspace, const char* name);

/// Device pointers of one problem; T is the element type. Shapes: see Problem.
template <class T>
struct Tensors {
  const T* Q = nullptr;
  const T* K = nullptr;
  const T* V = nullptr;
  T* O = nullptr;
  float* LSE = nullptr;
  const T* dO = nullptr;
  T* dQ = nullptr;
  T* dK = nullptr;
  T* dV = nullptr;
  const std::map<std::string, void*>* workspace = nullptr;

  /// A piece of the step's workspace, by its name.
  template <class U>
  U* scratch(const char* name) const {
    return static_cast<U*>(scratch_of(*workspace, name));
  }
};

/// A host function that launches a step's kernels, with its element type forgotten.
class Runner {
 public:
  Runner() = default;
  template <class T>
  Runner(void (*f)(const Problem&, const Tensors<T>&))  // NOLINT: `step.forward = step01::forward`
      : dtype_(std::is_same_v<T, float> ? DType::f32 : DType::bf16) {
    run_ = [f](const Problem& p, const Tensors<void>& t) {
      f(p, {static_cast<const T*>(t.Q), static_cast<const T*>(t.K), static_cast<const T*>(t.V),
            static_cast<T*>(t.O), t.LSE, static_cast<const T*>(t.dO), static_cast<T*>(t.dQ),
            static_cast<T*>(t.dK), static_cast<T*>(t.dV), t.workspace});
    };
  }
  explicit operator bool() const { return static_cast<bool>(run_); }
  DType dtype() const { return dtype_; }
  void operator()(const Problem& p, const Tensors<void>& t) const { run_(p, t); }

 private:
  DType dtype_ = DType::f32;
  std::function<void(const Problem&, const Tensors<void>&)> run_;
};

/// A step's traffic formulas: what one run of this problem will ask for.
using PredictFn = Prediction (*)(const Problem&);
/// The scratch buffers that one problem needs.
using WorkspaceFn = std::vector<Scratch> (*)(const Problem&);

/// What the report's "change" compares with: the step before, or an earlier variant.
struct Parent {
  std::string id;  ///< "01_naive"
  PredictFn traffic = nullptr;
  Support support = {};  ///< outside of it the two are not compared
};

/// One way of doing the step; a step with several ideas has several, in the order of reading.
struct Variant {
  std::string name;  ///< the file's stem: "kernel", "shared"
  std::string idea;  ///< one line for the tables
  Runner forward;
  PredictFn traffic = nullptr;      ///< of the forward
  WorkspaceFn workspace = nullptr;  ///< null: none
  bool writes_lse = false;
  Runner backward = {};  ///< empty: the step has no backward
  PredictFn backward_traffic = nullptr;
  Parent parent = {};           ///< where it is not the step's
  Parent backward_parent = {};  ///< empty: the backward is not compared
};

/// Everything that step_main() needs to know about a step.
struct Step {
  std::string id;    ///< "02_tiled": the name of its folder
  std::string idea;  ///< one line
  Parent parent;
  Support support;
  std::string needs;              ///< "sm_90a", or empty when any GPU will do
  std::vector<Variant> variants;  ///< the last one is the step's result and the default
};

/// A program that specialises this as false for a head dimension has no kernels of it, and compiles
/// faster.
template <int d>
inline constexpr bool has_kernels_of = true;

/// Calls f(std::integral_constant<int, d>) for the one of `Ds` that equals d.
/// \throws UsageError when there is none.
template <int... Ds, class F>
void dispatch_d(int d, F&& f) {
  const auto call = [&f](auto D) {
    if constexpr (has_kernels_of<D>) f(D);
    return has_kernels_of<D>;
  };
  const bool found = ((d == Ds && call(std::integral_constant<int, Ds>{})) || ...);
  if (!found) throw UsageError("no kernel for this head dimension");
}

/// The whole program: parse, allocate, check, count, time, print.
/// \returns 0 right, 1 wrong result, 2 bad use, 3 no memory, no device, or no room for the output.
int step_main(int argc, char** argv, const Step&);

}  // namespace fa

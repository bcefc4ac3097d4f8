/// \file
/// What a step hands to step_main(): its host functions and its predictions.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/dialect/cuda.h"
#include "common/harness/problem.h"
#include "common/harness/traffic.h"

namespace fa {

/// The 16-bit type of the tensor-core steps.
using bf16 = __nv_bfloat16;

/// One piece of a step's workspace: device memory beyond inputs and outputs.
struct Scratch {
  std::string name;  ///< the name in traffic tables and messages
  size_t bytes;
  /// Zero before the first run, and each run must leave it zero for the next one: counters that
  /// blocks share, without a memset before each launch. Else it starts as garbage.
  bool zeroed = false;
};

/// The piece of a workspace that has this name.
void* scratch_of(const std::map<std::string, void*>& workspace, const char* name);

/// Where the keys and values of a decoding step lie, beyond K and V. A page holds Problem::page
/// keys of all key heads of one batch entry: K and V are then pools [pages, Hkv, page, d], and key
/// c of batch entry b lies in page table[b, c / page], at row c % page. What a page holds behind
/// the last key is garbage.
struct Cache {
  const int* lengths = nullptr;    ///< [B] keys of each batch entry; null: Nk of each
  const int* table = nullptr;      ///< [B, Problem::pages()]; null: K and V are [B, Hkv, Nk, d]
  const float* K_scale = nullptr;  ///< [B, Hkv], where K is e4m3: K = K_scale * e4m3; else null
  const float* V_scale = nullptr;  ///< likewise
};

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
  Cache cache = {};  ///< of a decoding step

  /// A piece of the step's workspace, by its name.
  template <class U>
  U* scratch(const char* name) const {
    return static_cast<U*>(scratch_of(*workspace, name));
  }
};

/// The same with the element type that was forgotten.
template <class T>
Tensors<T> typed(const Tensors<void>& t) {
  return {static_cast<const T*>(t.Q),
          static_cast<const T*>(t.K),
          static_cast<const T*>(t.V),
          static_cast<T*>(t.O),
          t.LSE,
          static_cast<const T*>(t.dO),
          static_cast<T*>(t.dQ),
          static_cast<T*>(t.dK),
          static_cast<T*>(t.dV),
          t.workspace,
          t.cache};
}

/// A host function that launches a step's kernels, with its element type forgotten.
class Runner {
 public:
  Runner() = default;
  Runner(void (*)(const Problem&, const Tensors<float>&));  // NOLINT: `.forward = step01::forward`
  Runner(void (*)(const Problem&, const Tensors<bf16>&));   // NOLINT
  Runner(DType dtype, std::function<void(const Problem&, const Tensors<void>&)> run)
      : dtype_(dtype), run_(std::move(run)) {}
  explicit operator bool() const { return static_cast<bool>(run_); }
  DType dtype() const { return dtype_; }
  void operator()(const Problem& p, const Tensors<void>& t) const { run_(p, t); }

 private:
  DType dtype_ = DType::f32;
  std::function<void(const Problem&, const Tensors<void>&)> run_;
};

/// A step's traffic formulas: what one run of this problem will ask for.
using PredictFn = Prediction (*)(const Problem&);
/// The workspace that one problem needs.
using WorkspaceFn = std::vector<Scratch> (*)(const Problem&);

/// What the report's "change" compares with: a variant of an earlier step, by its formulas alone.
struct Parent {
  std::string id;  ///< "01 naive": the step's number and the variant
  PredictFn traffic = nullptr;
  PredictFn backward_traffic = nullptr;
  Support support = {};  ///< outside of it the two are not compared
  bool cache8 = false;   ///< as Problem::cache8
};

struct Sharding;  // common/ranks/sharding.h

/// One way of doing the step; a step with several ideas has several, in the order of reading.
struct Variant {
  std::string name;                     ///< "shared", of 1_shared.cuh: mostly that of its file
  std::string idea;                     ///< one line for the tables
  std::string parent = {};              ///< "01 naive", see parent_of(); empty: forward_of
  std::optional<Support> support = {};  ///< where it is narrower than the step's: an early rung
  bool newer = false;                   ///< needs the newer of the step's two architectures
  /// What an application does in the kernels that make Q, K and V, such as their quantisation: it
  /// reads these, writes workspace alone, and runs before the forward. Counted and timed by itself.
  /// Empty: there is none.
  Runner prepare = {};
  PredictFn prepare_traffic = nullptr;  ///< null: no prediction yet
  Runner forward;
  bool fp8 = false;                 ///< as Problem::fp8
  bool cache8 = false;              ///< as Problem::cache8
  PredictFn traffic = nullptr;      ///< of the forward; null: no prediction yet
  WorkspaceFn workspace = nullptr;  ///< null: none
  bool writes_lse = false;
  /// "04 fused", where the idea is the backward and the forward is another variant's: tables of
  /// several steps leave it out. Empty, as parent is: the forward is not compared.
  std::string forward_of = {};
  std::string backward_parent = {};               ///< empty: the backward is not compared
  Runner backward = {};                           ///< empty: there is none
  PredictFn backward_traffic = nullptr;           ///< null: no prediction yet
  std::shared_ptr<const Sharding> sharding = {};  ///< among several ranks; null: it runs on one
};

/// A step, described once, in its step.cuh: the program, the library, the tests and the exercises
/// all read it there.
struct Step {
  std::string id;    ///< "02_tiled": the name of its folder
  std::string idea;  ///< one line
  Support support = {};
  std::vector<Parent> parents = {};  ///< those of its variants that are variants of other steps
  std::string needs = {};  ///< "sm_90a", by all variants; empty when any GPU will do: LinkedStep
  std::string newer = {};  ///< "sm_90a", by some variants
  std::vector<Variant> variants;  ///< the last one is the step's result, and the default
                                  ///< where the GPU runs it
};

/// What a variant can do: its own support, or the step's.
const Support& support_of(const Step&, const Variant&);
/// The GPU that a variant needs.
const std::string& needs_of(const Step&, const Variant&);
/// "06 swapped": the step's number, or the name of one's own step, and the variant
std::string id_of(const Step&, const Variant&);
/// The formulas of what has this id: one of the step's parents, one of its variants, or a forward
/// that one of them takes over. \throws std::out_of_range when there is none.
Parent parent_of(const Step&, const std::string& id);
/// \throws UsageError with one sentence when the step or this variant does not support the problem.
void validate(const Problem&, const Step&, const Variant&);

/// The step as JSON: docs/json.md.
std::string describe(const Step&);

/// The pieces of workspace that a variant asks for; none without a WorkspaceFn.
std::vector<Scratch> workspace_of(const Variant&, const Problem&);

/// All that are linked, in no order. Not to be called before main().
const std::vector<Step>& linked_steps();
/// \param id as id_of()
/// \throws std::out_of_range when there is none among the linked steps.
const Variant& linked_variant(std::string_view id);

/// An exercise that specialises this as false for a head dimension has no kernels of it, and
/// compiles faster.
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
/// \returns 0 right, 1 wrong result, 2 bad use, 3 no memory, no device, or no room for the output,
/// 4 not checkable.
int step_main(int argc, char** argv, const Step&);

}  // namespace fa

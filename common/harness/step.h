/// \file
/// What a step gives its program: host functions and predictions. Extras and StepOption, which only
/// steps 13 to 15 use, are in extras.h.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/counts/traffic.h"
#include "common/dialect/cuda.h"
#include "common/harness/problem.h"
#include "common/harness/tensors.h"

namespace fa {

/// The 16-bit type of the tensor-core steps.
using bf16 = __nv_bfloat16;

/// One piece of a step's workspace: device memory beyond inputs and outputs.
struct Scratch {
  std::string name;  ///< the name in traffic tables and messages
  size_t bytes;
  /// Zero before the first run, and each run must leave it zero: counters that blocks share,
  /// without a memset before each launch. Else it starts as garbage.
  bool zeroed = false;
};

/// A host function that launches a step's kernels, independent of the element type.
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

/// A step's traffic formulas for one run of this problem.
using PredictFn = Prediction (*)(const Problem&);
/// The workspace that one problem needs.
using WorkspaceFn = std::vector<Scratch> (*)(const Problem&);

/// The comparison of the report's "change": a variant of an earlier step, by its formulas alone.
struct Parent {
  std::string id;  ///< "01 naive": the step's number and the variant
  PredictFn traffic = nullptr;
  PredictFn backward_traffic = nullptr;
  Support support = {};  ///< outside of it there is no comparison
  Extras extras = {};    ///< the variant's
};

/// One way of doing the step; a step with several ideas has several, in reading order.
struct Variant {
  std::string name;                     ///< "shared" of 1_shared.cuh: usually that of its file
  std::string idea;                     ///< one line for the tables
  std::string parent = {};              ///< "01 naive", see parent_of(); empty: forward_of
  std::optional<Support> support = {};  ///< where narrower than the step's: an early rung
  bool newer = false;                   ///< needs the newer of the step's two architectures
  /// Work that an application does in the kernels that produce Q, K and V, such as quantisation. It
  /// writes only workspace, and runs before the forward. Counted and timed separately. Empty: none.
  Runner prepare = {};
  PredictFn prepare_traffic = nullptr;  ///< null: no prediction yet
  Runner forward;
  bool fp8 = false;                 ///< as Method::fp8
  PredictFn traffic = nullptr;      ///< of the forward; null: no prediction yet
  WorkspaceFn workspace = nullptr;  ///< null: none
  bool writes_lse = false;
  /// "04 fused", where the idea is the backward and another variant's forward is used: tables of
  /// several steps omit it. Empty, as parent is: the forward is not compared.
  std::string forward_of = {};
  std::string backward_parent = {};      ///< empty: the backward is not compared
  Runner backward = {};                  ///< empty: none
  PredictFn backward_traffic = nullptr;  ///< null: no prediction yet
  /// Which variant to use instead for this problem, and why; "" where this one is right.
  std::string (*advice)(const Problem&) = nullptr;
  Extras extras = {};  ///< none in steps 01 to 12
};

/// A step, described once, in its step.cuh, for its program, its library, tests and exercises.
struct Step {
  std::string id;    ///< "02_tiled": the name of its folder
  std::string idea;  ///< one line
  Support support = {};
  std::vector<Parent> parents = {};  ///< variants of other steps that are parents of its variants
  std::vector<StepOption> options = {};  ///< beyond every step's: none in steps 01 to 12
  std::string needs = {};                ///< "sm_90a", for all variants; empty: any GPU: LinkedStep
  std::string newer = {};                ///< "sm_90a", for some variants
  std::vector<Variant> variants;         ///< in the lesson's order; the default is the last
                                         ///< that the GPU runs and that supports the problem
};

/// A variant's own support, or the step's.
const Support& support_of(const Step&, const Variant&);
/// The GPU that a variant needs.
const std::string& needs_of(const Step&, const Variant&);
/// "06 swapped": the step's number, or the name of a user's step, and the variant
std::string id_of(const Step&, const Variant&);
/// The formulas with this id: of one of the step's parents or variants, or of a forward that a
/// variant takes over. \throws std::out_of_range when there is none.
Parent parent_of(const Step&, const std::string& id);
/// \throws UsageError with one sentence, naming the variants that do, when the step or this variant
/// does not support the problem.
void validate(const Problem&, const Step&, const Variant&);

/// The step as JSON: docs/json.md.
std::string describe(const Step&);

/// The current GPU, or the modelled one in the simulator; an H200 where there is none.
Gpu this_gpu();
/// The problem as this variant runs it on this_gpu(): element type, and what it keeps in 8 bits.
Problem problem_for(const Variant&, Problem);

/// A variant's pieces of workspace; none without a WorkspaceFn.
std::vector<Scratch> workspace_of(const Variant&, const Problem&);

/// All linked steps, in no order. Not to be called before main().
const std::vector<Step>& linked_steps();
/// \param id as id_of()
/// \throws std::out_of_range when no linked step has it.
const Variant& linked_variant(std::string_view id);

/// An exercise sets this to false for head dimensions that it does not need, and compiles faster.
template <int d>
inline constexpr bool has_kernels_of = true;

/// Calls f(std::integral_constant<int, d>) for the one of these that equals d, and returns its
/// result. \throws UsageError when there is none.
template <int D, int... More, class F>
auto dispatch_d(int d, F&& f) {
  if constexpr (has_kernels_of<D>) {
    if (d == D) return f(std::integral_constant<int, D>{});
  }
  if constexpr ((has_kernels_of<More> || ...)) return dispatch_d<More...>(d, f);
  throw UsageError("no kernel for this head dimension");
}

}  // namespace fa

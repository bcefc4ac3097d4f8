// A student's file works in the namespace of the step that it was made from, and the linker keeps
// one of two functions of one name. So the steps are compiled here under other names.
#define step01 spec01
#define step02 spec02
#define step02_shared spec02_shared
#define step03 spec03
#define step03_softmax spec03_softmax
#define step04 spec04
#define step05 spec05
#define step05_standard spec05_standard
#define step06 spec06
#define step06_register spec06_register
#define step06_backward spec06_backward
#define step07 spec07
#define step08 spec08
#define step09 spec09
#define step10 spec10
#define step10_specialized spec10_specialized

#include <map>

#include "steps/01_naive/kernel.cuh"
#include "steps/02_tiled/kernel.cuh"
#include "steps/02_tiled/shared.cuh"
#include "steps/03_online_softmax/kernel.cuh"
#include "steps/03_online_softmax/softmax.cuh"
#include "steps/04_fused/kernel.cuh"
#include "steps/05_recompute_backward/kernel.cuh"
#include "steps/05_recompute_backward/standard.cuh"
#include "steps/06_work_partitioning/backward.cuh"
#include "steps/06_work_partitioning/kernel.cuh"
#include "steps/06_work_partitioning/register.cuh"
#include "steps/07_tensor_cores/kernel.cuh"
#include "steps/08_tensor_core_backward/kernel.cuh"
#include "steps/09_tma_wgmma/kernel.cuh"
#include "steps/10_warp_specialized/kernel.cuh"
#include "steps/10_warp_specialized/specialized.cuh"
#include "steps/exercises/specs.h"

namespace fa {

Spec find_spec(const std::string& name) {
  static const std::map<std::string, Spec> specs = {
      {"step01", {step01::traffic}},
      {"step02", {step02::traffic}},
      {"step02_shared", {step02_shared::traffic}},
      {"step03", {step03::traffic}},
      {"step03_softmax naive", {step03_softmax::naive_traffic}},
      {"step03_softmax safe", {step03_softmax::safe_traffic}},
      {"step03_softmax online", {step03_softmax::online_traffic}},
      {"step04", {step04::traffic}},
      {"step05", {step05::traffic, step05::backward_traffic}},
      {"step05_standard", {step05_standard::traffic, step05_standard::backward_traffic}},
      {"step06", {step06::traffic}},
      {"step06_register", {step06_register::traffic}},
      {"step06_backward", {step06_backward::traffic, step06_backward::backward_traffic}},
      {"step07", {step07::traffic}},
      {"step08", {step07::traffic, step08::backward_traffic}},
      {"step09", {step09::traffic}},
      {"step10", {step10::traffic}},
      {"step10_specialized", {step10_specialized::traffic}},
  };
  const auto found = specs.find(name);
  if (found != specs.end()) return found->second;
  std::string known;
  for (const auto& [key, _] : specs) known += (known.empty() ? "" : ", ") + key;
  throw UsageError("no spec '" + name + "'; there are " + known);
}

}  // namespace fa

#include "common/counts/estimate.h"

#include <algorithm>

namespace fa {

const char* name_of(Part p) {
  static constexpr const char* kNames[] = {
      "L1 lines", "shared memory", "instructions", "exponentials", "tensor cores", "atomics",
      "L2",       "HBM",           "waiting",      "start"};
  return kNames[static_cast<size_t>(p)];
}

const KernelEstimate* Estimate::longest() const {
  const auto at = std::max_element(
      kernels.begin(), kernels.end(),
      [](const KernelEstimate& a, const KernelEstimate& b) { return a.seconds < b.seconds; });
  return at == kernels.end() ? nullptr : &*at;
}

Part Estimate::limit() const {
  const KernelEstimate* k = longest();
  return k && !k->parts.empty() ? k->parts.front().part : Part::start;
}

bool Estimate::arithmetic() const {
  return std::all_of(kernels.begin(), kernels.end(),
                     [](const KernelEstimate& k) { return k.arithmetic; });
}

}  // namespace fa

#include "common/counts/counts.h"

#include <set>

namespace fa {

Bytes& Prediction::operator[](const std::string& buffer) { return buffers[buffer]; }

Bytes Prediction::total() const {
  Bytes sum;
  for (const auto& [name, bytes] : buffers) sum += bytes;
  return sum;
}

std::vector<std::string> differing_buffers(const Prediction& predicted, const Counts& counted) {
  std::set<std::string> names;
  for (const auto& [name, bytes] : predicted.buffers) names.insert(name);
  for (const auto& [name, count] : counted.buffers) names.insert(name);

  std::vector<std::string> differing;
  for (const std::string& name : names) {
    const auto p = predicted.buffers.find(name);
    const auto c = counted.buffers.find(name);
    const Bytes want = p == predicted.buffers.end() ? Bytes{} : p->second;
    const Bytes got = c == counted.buffers.end() ? Bytes{} : c->second.bytes;
    if (want != got) differing.push_back(name);
  }
  return differing;
}

std::optional<double> counted_per_element(const PerElement& e, const Counts& counted) {
  for (const KernelCount& k : counted.kernels) {
    const std::string qualified = k.name.substr(0, k.name.find('<'));
    const size_t scope = qualified.rfind("::");
    if (qualified.substr(scope == std::string::npos ? 0 : scope + 2) != e.kernel) continue;
    return static_cast<double>(k.bytes.total()) / static_cast<double>(e.elements * e.bytes);
  }
  return std::nullopt;
}

}  // namespace fa

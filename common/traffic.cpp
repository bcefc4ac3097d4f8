#include "common/traffic.h"

#include <set>

namespace fa {

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

}  // namespace fa

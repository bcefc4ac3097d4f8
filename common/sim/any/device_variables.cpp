// Host code that uses a device variable by name. On a GPU the host has a separate one of that name.
#include <cstring>
#include <fstream>
#include <vector>

#include "common/sim/any/session.h"
#include "common/sim/block.h"
#include "common/sim/memory/device_memory.h"
#include "common/sim/messages/symbols.h"

namespace sim::any {

namespace {

struct Overwritten {
  void* place;
  unsigned char before[16];
  unsigned size;
};
std::vector<Overwritten>& overwritten() {
  static auto& all = *new std::vector<Overwritten>;
  return all;
}

// Here one compiler serves host and device, and takes the device's branch.
bool is_for_device_alone(const std::string& place) {
  const size_t colon = place.rfind(':');
  std::ifstream file(place.substr(0, colon));
  std::vector<bool> conditions;  // around the line: do they depend on the compilation pass?
  std::string text;
  for (int n = std::atoi(place.c_str() + colon + 1); n > 0 && std::getline(file, text); --n) {
    const size_t hash = text.find_first_not_of(" \t");
    if (hash == text.npos || text[hash] != '#') continue;
    const size_t word = text.find_first_not_of(" \t", hash + 1);
    if (word == text.npos) continue;
    if (text.compare(word, 2, "if") == 0)
      conditions.push_back(text.find("__CUDA_ARCH__") != text.npos);
    if (text.compare(word, 5, "endif") == 0 && !conditions.empty()) conditions.pop_back();
  }
  return std::find(conditions.begin(), conditions.end(), true) != conditions.end();
}

}  // namespace

void look_at_host_access(uintptr_t address, unsigned size, Kind kind, const void* pc) {
  if (address - variables_begin < variables_size) session();  // finds them
  const Variables* v = variables_at(address);
  const bool all = self->stack_size == 0;  // a copy has brought unwritten bytes
  if (!v) return all ? look_at_unwritten(address, size, kind, pc) : void();
  const bool writes = kind != Kind::load;
  if (options().libraries || v->kind == Variables::managed || (v->fixed && !writes)) return;
  std::lock_guard lock(device_in_use());
  const std::vector<std::string> frames = frames_of(pc);
  if (!frames.empty() && is_for_device_alone(frames[0])) return;
  const auto* p = reinterpret_cast<const void*>(address);
  note_finding(
      FaultKind::refused,
      "host code at " + source_of(pc) + (writes ? " writes " : " reads ") + variable_name(p) +
          ", a variable of the device: on a GPU the host has its own, which no kernel sees; " +
          (writes ? "cudaMemcpyToSymbol" : "cudaMemcpyFromSymbol") + " copies");
  for (unsigned done = 0; writes && done < size; done += 16) {
    Overwritten& o = overwritten().emplace_back();
    o.place = static_cast<char*>(device_address(p)) + done;
    o.size = std::min(size - done, 16u);
    std::memcpy(o.before, o.place, o.size);
  }
}

void undo_host_stores() {
  auto& all = overwritten();
  for (auto o = all.rbegin(); o != all.rend(); ++o) std::memcpy(o->place, o->before, o->size);
  all.clear();
}

}  // namespace sim::any

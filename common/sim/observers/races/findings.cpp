#include "common/sim/observers/races/findings.h"

#include <algorithm>
#include <cstring>

#include "common/sim/messages/messages.h"
#include "common/sim/sim.h"

namespace sim::races {

std::string Line::text() const {
  return where ? sim::at(*where) : pc ? source_of(pc) : std::string();
}

// Two instructions of one line have two addresses, but one finding. The same addresses recur, so
// they are looked up before the lines' names.
static uintptr_t place_of(const Line& line) {
  if (!line.where) return reinterpret_cast<uintptr_t>(line.pc);
  return reinterpret_cast<uintptr_t>(line.where->file) * 31 +
         static_cast<unsigned>(line.where->line);
}

static fa::FaultKind kind_of(Fault fault) {
  return fault == Fault::uninitialised  ? fa::FaultKind::uninitialised
         : fault == Fault::left_behind  ? fa::FaultKind::out_of_bounds
         : fault == Fault::other_layout ? fa::FaultKind::refused
                                        : fa::FaultKind::race;
}

Findings::Finding& Findings::at(Fault fault, const Line& one, const Line& other) {
  const auto [low, high] = std::minmax({place_of(one), place_of(other)});
  const Key key{fault, low, high};
  if (!all_.empty() && key == latest_) return all_[latest_finding_];
  const auto [place, fresh] = by_place_.try_emplace(key, 0);
  if (fresh) {
    const auto [first, second] = std::minmax({one.text(), other.text()});
    const std::string lines = std::to_string(static_cast<int>(fault)) + first + "\n" + second;
    place->second = by_lines_.try_emplace(lines, all_.size()).first->second;
    if (place->second == all_.size()) {
      all_.push_back({kind_of(fault), "", false, fault >= Fault::register_read});
    }
  }
  latest_ = key;
  latest_finding_ = place->second;
  return all_[latest_finding_];
}

void Findings::compare_later(const Finding& finding, const void* p, unsigned size) {
  Store& store = pending_.emplace_back();
  store.finding = &finding - all_.data();
  store.p = static_cast<const unsigned char*>(p);
  store.size = size;
  std::memcpy(store.old, p, size);
}

void Findings::compare_now() {
  for (const Store& s : pending_) {
    if (std::memcmp(s.old, s.p, s.size) != 0) all_[s.finding].same_value = false;
  }
  pending_.clear();
}

void Findings::report(const std::optional<fa::Finding>& fatal) {
  compare();
  std::vector<fa::Finding> all;
  const auto add = [&](bool same_value) {
    for (const Finding& f : all_) {
      if (f.remark || f.same_value != same_value) continue;
      if (f.kind == fa::FaultKind::uninitialised && f.unexplained == 0) continue;
      all.push_back({f.kind, f.text + (same_value ? "; each stores the same value" : "")});
    }
  };
  add(false);
  size_t more = 0;
  const auto shorten = [&](size_t limit) {
    if (all.size() <= limit) return;
    more += all.size() - limit;
    all.resize(limit);
  };
  shorten(kSpelledOut - fatal.has_value());
  if (fatal) all.push_back(*fatal);
  add(true);
  shorten(kSpelledOut);
  if (all.empty()) return;
  if (fatal) throw fa::KernelStopped(all, more);
  throw FoundAtEnd(all, more);
}

std::vector<std::string> Findings::remarks() const {
  std::vector<std::string> texts;
  for (const Finding& f : all_) {
    if (f.remark) texts.push_back(f.text);
  }
  return texts;
}

}  // namespace sim::races

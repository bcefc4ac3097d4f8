#include "common/sim/messages/messages.h"

#include <map>

namespace sim {

static std::string triple(uint3 v) {
  return "(" + std::to_string(v.x) + "," + std::to_string(v.y) + "," + std::to_string(v.z) + ")";
}

std::string at(const Where& w) { return named_place(w.file + (":" + std::to_string(w.line))); }

std::string thread_name(const Block& b, unsigned id) {
  return "thread " + triple(b.threads[id].idx);
}

std::string block_name(const Block& b) {
  return "kernel " + spoken(kernel_name(*b.launch)) + ", block " + triple(b.index);
}

std::string here() {
  const Block& b = *self;
  if (!b.launch || !b.current) return "host code";
  return block_name(b) + ", " + thread_name(b, b.current->id);
}

const char* noun(Kind kind) {
  return kind == Kind::load ? "load" : kind == Kind::store ? "store" : "atomic";
}

void refuse(const std::string& what, const Where& where, const std::string& why) {
  fail(FaultKind::refused, here() + ": " + what + " at " + at(where) + why);
}

void divided_by_zero(const void* pc, bool smallest) {
  fail(FaultKind::refused, here() + ": integer division by zero" +
                               (smallest ? ", or of the smallest integer by -1," : "") + " at " +
                               source_and_caller(pc));
}

std::string runs_of(const std::vector<unsigned>& ids) {
  std::string text;
  int shown = 0;
  for (size_t i = 0; i < ids.size(); ++shown) {
    if (shown == 6) return text + ", ...";
    size_t last = i;
    while (last + 1 < ids.size() && ids[last + 1] == ids[last] + 1) ++last;
    text += (shown ? ", " : "") + std::to_string(ids[i]);
    if (last > i) text += "-" + std::to_string(ids[last]);
    i = last + 1;
  }
  return text;
}

static std::string who_waits(const Block& b) {
  std::map<std::string, std::vector<unsigned>> groups;
  for (unsigned i = 0; i < b.nthreads; ++i) {
    const Thread& t = b.threads[i];
    groups[t.state == State::done ? "returned"
                                  : std::string("wait at ") + t.waits_for + " " + at(t.where)]
        .push_back(i);
  }
  std::string text;
  for (const auto& [what, ids] : groups) {
    text += "\n  " + std::to_string(ids.size()) + (ids.size() == 1 ? " thread " : " threads ") +
            what + " (linear ids " + runs_of(ids) + ")";
  }
  for (const Barrier& barrier : b.barriers) {
    if (!barrier.arrived || barrier.expected == Barrier::kAll) continue;
    text += "\n  barrier " + std::to_string(&barrier - b.barriers) + " waits for " +
            std::to_string(barrier.expected) + " threads, " + std::to_string(barrier.arrived) +
            " have arrived";
    if (static_cast<int>(b.live) < barrier.expected)
      text += "; a barrier with a count waits for those that returned, too";
  }
  return text;
}

std::string deadlock_report(const Block& b) {
  std::string text = "deadlock in " + block_name(b) + ":" + who_waits(b);
  if (b.cluster) {
    for (const Block* other : b.cluster->blocks) {
      if (other != &b)
        text += "\n and " + block_name(*other) + " of its cluster:" + who_waits(*other);
    }
  }
  return text;
}

}  // namespace sim

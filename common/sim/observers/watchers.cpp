#include "common/sim/observers/watchers.h"

namespace sim {

Watcher*& trace_watcher() {
  static Watcher* watcher = nullptr;
  return watcher;
}

std::vector<Watcher*> watchers() {
  std::vector<Watcher*> all;
  for (Watcher* w : {trace_watcher(), &request_watcher(), &race_watcher()}) {
    if (w && w->wanted()) all.push_back(w);
  }
  return all;
}

}  // namespace sim

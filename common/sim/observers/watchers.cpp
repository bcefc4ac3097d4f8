#include "common/sim/observers/watchers.h"

namespace sim {

std::vector<Watcher*> watchers() {
  std::vector<Watcher*> all;
  for (Watcher* w : {&trace_watcher(), &request_watcher(), &race_watcher()}) {
    if (w->wanted()) all.push_back(w);
  }
  return all;
}

}  // namespace sim

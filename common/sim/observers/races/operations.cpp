#include "common/sim/observers/races/operations.h"

namespace sim::races {

void Operations::begin(size_t shared_bytes) {
  shared_bytes_ = shared_bytes;
  first_ += static_cast<uint32_t>(all_.size());
  all_.clear();
  loads_.clear();
  waits_.clear();
  inits.clear();
}

uint32_t Operations::add(BlockClocks& by, Operation::Engine engine, const Issue& issue) {
  const unsigned channel = by.channel(issue.channel, engine == Operation::load);
  all_.push_back({engine, issue.where, by.entry(issue.thread), channel, by.tick()});
  return first_ + static_cast<uint32_t>(all_.size()) - 1;
}

AsyncWord& Operations::open(SharedCell& w, uint64_t word) {
  if (!words_) words_ = std::make_unique<LazyArray<AsyncWord>>(shared_bytes_ / kWord + 1);
  AsyncWord& async = (*words_)[word];
  if (!w.async) async = {};
  w.async = true;
  return async;
}

void Operations::note_load(uint32_t number, const void* bar) {
  find(number)->bar = bar;
  loads_[bar].last = number;
}

void Operations::note_waited(const void* bar, const Clock& knows) {
  const auto found = loads_.find(bar);
  if (found == loads_.end()) return;
  const unsigned channel = find(found->second.last)->channel;
  if (channel < knows.size()) found->second.waited = knows[channel];
}

const Operation* Operations::without_wait(const BlockClocks& clocks) const {
  uint32_t first = 0;
  for (const auto& [bar, loads] : loads_) {
    const Operation& last = *find(loads.last);
    if (last.stamp <= loads.waited || clocks.any_has(last.channel, last.stamp)) continue;
    if (!first || loads.last <= first) first = loads.last;
  }
  return first ? find(first) : nullptr;
}

const Wait* Operations::for_other_phase(const Operation& load) const {
  const auto found = waits_.find(load.bar);
  if (found == waits_.end()) return nullptr;
  const Wait& wait = found->second;
  return wait.when < load.stamp || has(wait.knows, load.channel, load.stamp) ? nullptr : &wait;
}

void Operations::show_inits(unsigned entry, Stamp fence, bool to_cluster) {
  for (auto& [bar, init] : inits) {
    if (init.thread != entry) continue;
    if (!init.shown) init.shown = fence;
    if (to_cluster && !init.shown_to_cluster) init.shown_to_cluster = fence;
  }
}

}  // namespace sim::races

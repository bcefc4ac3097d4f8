#include "common/sim/observers/races/operations.h"

namespace sim::races {

void Operations::begin(size_t shared_bytes) {
  shared_bytes_ = shared_bytes;
  first_ += static_cast<uint32_t>(all_.size());
  all_.clear();
  loads_.clear();
  reductions.clear();
  waits_.clear();
  inits.clear();
  split = false;
}

uint32_t Operations::add(BlockClocks& by, Operation::Engine engine, const Issue& issue) {
  const bool loads = engine == Operation::load;
  const unsigned channel = by.channel(issue.channel, loads);
  all_.push_back({engine, issue.where, issue.channel, by.entry(issue.thread), channel, by.tick()});
  const uint32_t number = first_ + static_cast<uint32_t>(all_.size()) - 1;
  if (loads) loads_[issue.channel].last = number;
  return number;
}

LatestOperations& Operations::open(SharedCell& w, uint64_t word) {
  if (!words_) words_ = std::make_unique<LazyArray<LatestOperations>>(shared_bytes_ / kWord + 1);
  LatestOperations& latest = (*words_)[word];
  if (!w.async) latest = {};
  w.async = true;
  return latest;
}

void Operations::note_reduction(uint64_t word, uint32_t last, const void* bar) {
  std::vector<uint32_t>& others = reductions[word];
  const Operation* before = find(last);
  if (!before || !before->sender->adds) return others.clear();
  if (before->of_channel == bar) return;
  std::erase_if(others, [&](uint32_t n) { return find(n)->of_channel == bar; });
  others.push_back(last);
}

void Operations::note_waited(const void* bar, const Clock& clock) {
  const auto found = loads_.find(bar);
  if (found == loads_.end()) return;
  const unsigned channel = find(found->second.last)->channel;
  if (channel < clock.size()) found->second.waited = clock[channel];
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
  const auto found = waits_.find(load.of_channel);
  if (found == waits_.end()) return nullptr;
  const Wait& wait = found->second;
  return wait.when < load.stamp || has(wait.clock, load.channel, load.stamp) ? nullptr : &wait;
}

void Operations::show_inits(unsigned entry, Stamp fence, bool to_cluster) {
  for (auto& [bar, init] : inits) {
    if (init.thread != entry) continue;
    if (!init.shown) init.shown = fence;
    if (to_cluster && !init.shown_to_cluster) init.shown_to_cluster = fence;
  }
}

}  // namespace sim::races

#include "common/sim/observers/warp_clocks.h"

#include <algorithm>

namespace sim {

void WarpClocks::begin(unsigned warps) {
  warps_ = warps;
  std::fill_n(clock_, 32, Time{});
  std::fill_n(stored_, 32, 0.0);
  product_ = copy_ = waited_ = 0;
  std::fill_n(copier_, 32, int8_t{-1});
  for (auto& s : steps_) s.clear();
  copied_ = 0;
  ready_.clear();
}

void WarpClocks::loads(unsigned warp, unsigned far, unsigned near) {
  clock_[warp].clocks += figures_.l2_latency * far + figures_.shared_latency * near;
  clock_[warp].fetches += far;
}

void WarpClocks::shuffle(unsigned warp, unsigned line, int distance) {
  const uint64_t step = uint64_t{line} << 32 | static_cast<uint32_t>(distance);
  auto& steps = steps_[warp];
  if (std::find(steps.begin(), steps.end(), step) == steps.end()) steps.push_back(step);
}

void WarpClocks::settle(unsigned warp) {
  const uint32_t bit = 1u << warp;
  Time& t = clock_[warp];
  if (product_ & bit) t.clocks += figures_.mma_latency;
  if (copy_ & bit) {
    t.clocks += figures_.copy_latency;
    ++t.fetches;
  }
  t.clocks += figures_.shuffle_latency * static_cast<double>(steps_[warp].size());
  steps_[warp].clear();
  product_ &= ~bit, copy_ &= ~bit;
}

WarpClocks::Time WarpClocks::at(unsigned warp) {
  settle(warp);
  return clock_[warp];
}

void WarpClocks::signal(const void* object, Time time) {
  Time& t = ready_[object];
  t = std::max(t, time);
}

void WarpClocks::wait_store(unsigned warp) {
  clock_[warp] = at(warp);
  clock_[warp].clocks = std::max(clock_[warp].clocks, stored_[warp]);
  waited_ |= 1u << warp;
}

void WarpClocks::wait_wgmma(unsigned warp) {
  Time t;
  for (unsigned w = warp; w < warp + 4; ++w) t = std::max(t, at(w));
  for (unsigned w = warp; w < warp + 4; ++w) clock_[w] = t + figures_.wgmma_latency;
}

void WarpClocks::barrier(ThreadSet met, const void* object) {
  Time t;
  if (const auto signalled = ready_.find(object); signalled != ready_.end()) {
    t = signalled->second;
    ready_.erase(signalled);
  }
  unsigned n = 0;
  for (unsigned w = 0; w < warps_; ++w) {
    if (!met[w]) continue;
    t = std::max(t, at(w));
    ++n;
  }
  t = t + (figures_.barrier_latency + figures_.barrier_per_warp * n);
  for (unsigned w = 0; w < warps_; ++w) {
    if (!met[w]) continue;
    clock_[w] = t;
    waited_ &= ~(1u << w), copier_[w] = -1;
  }
}

WarpClocks::Time WarpClocks::copied(Time issued, size_t bytes) {
  ++issued.fetches;
  copied_ = std::max(copied_, issued.clocks) + static_cast<double>(bytes) / figures_.tma_bytes;
  issued.clocks = copied_ + figures_.tma_latency;
  return issued;
}

void WarpClocks::acquire(unsigned warp, const void* object) {
  waited_ &= ~(1u << warp);
  const Time t = at(warp);
  const auto found = ready_.find(object);
  clock_[warp] = found == ready_.end() ? t : std::max(t, found->second);
}

WarpClocks::Time WarpClocks::latest() {
  Time t;
  for (unsigned w = 0; w < warps_; ++w) t = std::max(t, at(w));
  return t;
}

}  // namespace sim

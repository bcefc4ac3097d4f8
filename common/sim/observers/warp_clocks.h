/// \file
/// How long a block would run if only latencies cost time: a clock for each of its warps.
///
/// A warp's clock advances by one latency where it waits for a request; where warps meet, all are
/// set to the latest one's time. The time that a pipe needs to move or compute is not included:
/// common/clock adds it. The rules, each a rule of thumb about compiled code:
///
///   loads      a warp's loads since it last met others are in flight together: one latency for
///              those of device memory, one for those of shared memory; in a loop, again every
///              fourth trip. What the block's L1 holds has the latency of shared memory
///   shuffles   one latency for each of a reduction's steps (source line and distance); rows that
///              share the steps overlap
///   products   one latency between two meetings
///   copies     cp.async: one latency if no barrier is between the copy and its wait. TMA: the
///              copies to a block arrive one after the other, tma_bytes per clock; the mbarrier
///              completes one latency after the last byte
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "common/counts/gpus.h"
#include "common/sim/observer.h"

namespace sim {

class WarpClocks {
 public:
  /// A point on a warp's clock.
  struct Time {
    double clocks = 0;     ///< of an SM
    uint64_t fetches = 0;  ///< how many of these latencies are of device memory

    bool operator<(const Time& o) const { return clocks < o.clocks; }
    Time operator+(double more) const { return {clocks + more, fetches}; }
  };

  explicit WarpClocks(const fa::ClockFigures& figures) : figures_(figures) {}

  void begin(unsigned warps);
  /// How often `warp` has waited since the last call, for loads from the L2 and beyond and for
  /// loads from the L1 or shared memory.
  void loads(unsigned warp, unsigned far, unsigned near);
  void shuffle(unsigned warp, unsigned line, int distance);
  void product(unsigned warp) { product_ |= 1u << warp; }
  /// A lane waits for a cp.async that it issued after the last barrier. The lanes of a warp run one
  /// after the other here: only the first one's waits count, until the warp meets others.
  void wait_copy(unsigned warp, int lane) {
    if (copier_[warp] < 0) copier_[warp] = static_cast<int8_t>(lane);
    if (copier_[warp] == lane) copy_ |= 1u << warp;
  }
  /// The warp issues a bulk store. Its lanes run one after the other here: the stores of its other
  /// lanes count as issued together with the first, until the warp meets others.
  void store(unsigned warp) {
    if (!(waited_ >> warp & 1)) stored_[warp] = at(warp).clocks + figures_.tma_latency;
  }
  /// The warp waits for its bulk stores.
  void wait_store(unsigned warp);
  /// The four warps from `warp` on wait for wgmma.
  void wait_wgmma(unsigned warp);
  /// Signals for `object` (bar.arrive) precede it.
  void barrier(ThreadSet met, const void* object);
  /// A signal for `object`: an arrival of the warp.
  void arrive(unsigned warp, const void* object) { signal(object, at(warp)); }
  /// A copy to the block. \returns when it ends.
  Time copied(Time issued, size_t bytes);
  /// A tcgen05.commit of the warp: its products, beyond their own time.
  Time committed(unsigned warp) { return at(warp) + figures_.wgmma_latency; }
  /// Signals the object at this time.
  void signal(const void* object, Time);
  void acquire(unsigned warp, const void* object);

  Time at(unsigned warp);
  Time latest();

 private:
  void settle(unsigned warp);

  const fa::ClockFigures& figures_;
  Time clock_[32];
  double stored_[32] = {};           // when the warp's last bulk store is complete
  uint32_t product_ = 0, copy_ = 0;  // bit per warp, since settle()
  uint32_t waited_ = 0;              // bit per warp: for stores, since it met others or acquired
  int8_t copier_[32];                // the lane whose waits for cp.async count; -1: none has waited
  std::vector<uint64_t> steps_[32];  // of shuffles, since settle()
  double copied_ = 0;                // when the last byte that TMA copies has left the L2
  unsigned warps_ = 0;
  std::unordered_map<const void*, Time> ready_;
};

}  // namespace sim

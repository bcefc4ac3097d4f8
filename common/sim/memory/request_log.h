/// \file
/// The accesses of the lanes of a warp since it began to run, in execution order. Written by
/// access() (access.cpp), in the few lines of take(), for an observer that keeps and reads the log.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/sim/memory/lazy_array.h"
#include "common/sim/memory/memory.h"

namespace sim {

/// An instruction and its target in one word. (A select of two pointers is a request to each
/// buffer.) The program's code is within 4 GiB, so the low half of an address identifies it.
struct Instruction {
  uint64_t bits = 0;

  Instruction() = default;
  Instruction(const void* pc, Kind kind, Space space, By by, uint16_t buffer)
      : bits((reinterpret_cast<uintptr_t>(pc) & 0xffffffff) | uint64_t(kind) << 32 |
             uint64_t(space) << 34 | uint64_t(by) << 36 | uint64_t{buffer} << 48) {}
  explicit Instruction(const Access& a) : Instruction(a.pc, a.kind, a.space, a.by, a.buffer) {}
  bool operator==(const Instruction&) const = default;

  Kind kind() const { return static_cast<Kind>(bits >> 32 & 3); }
  Space space() const { return static_cast<Space>(bits >> 34 & 1); }
  By by() const { return static_cast<By>(bits >> 36 & 7); }
  size_t buffer() const { return bits >> 48; }
};

/// The first lane writes the log; the others follow it while they do the same.
class RequestLog {
 public:
  static constexpr unsigned kLanes = 32;
  /// Requests that a warp may run without giving way. After more, the log is counted and restarted:
  /// around that point requests may be split by lane, so there are too many, never too few.
  static constexpr uint32_t kCapacity = 1 << 20;
  /// Entries are numbered. kHead begins the log as a list, kTail ends it; neither is an access.
  static constexpr uint32_t kTail = 0, kHead = 1, kFirst = 2;
  /// The next entry of a lane that is out of step: there is no instruction.
  static constexpr uint32_t kNowhere = kTail;

  RequestLog() : instructions_(kCapacity + 1), at_(uint64_t{kLanes} * kStride) { clear(); }

  void clear() {
    end_ = kFirst;
    instructions_[kFirst] = {};
    std::fill_n(next_, kLanes, kFirst);
  }

  /// Takes the next entry, if the lane is in step and the instruction is the same.
  /// \param at the byte: in device memory or in shared memory
  bool take(size_t lane, const Instruction& instruction, uint64_t at) {
    const uint32_t entry = next_[lane];
    if (instructions_[entry] != instruction) [[unlikely]]
      return false;
    put(lane, entry, instruction.space(), at);
    next_[lane] = entry + 1;
    return true;
  }
  void put(size_t lane, uint32_t entry, Space space, uint64_t at) {
    at_[lane * kStride + entry] = static_cast<uint32_t>(space == Space::hbm ? at / kWord : at);
  }
  /// The value from put(): the number of the word (32 bits), or the byte in shared memory.
  uint32_t at(unsigned lane, uint32_t entry) const { return at_[lane * kStride + entry]; }
  void set_at(unsigned lane, uint32_t entry, uint32_t at) { at_[lane * kStride + entry] = at; }
  const Instruction& instruction(uint32_t entry) const { return instructions_[entry]; }

  bool in_step(unsigned lane) const { return next_[lane] != kNowhere; }
  uint32_t next(unsigned lane) const { return next_[lane]; }
  void set_next(unsigned lane, uint32_t entry) { next_[lane] = entry; }
  uint32_t end() const { return end_; }  ///< the first unused entry
  uint32_t append(const Instruction& instruction) {
    instructions_[end_] = instruction;
    instructions_[end_ + 1] = {};
    return end_++;
  }

 private:
  static constexpr uint64_t kStride = kCapacity + 16;  // lanes are in different sets of a cache

  LazyArray<Instruction> instructions_;  // by entry
  LazyArray<uint32_t> at_;               // by lane, then by entry
  uint32_t end_;
  uint32_t next_[kLanes];
};

}  // namespace sim

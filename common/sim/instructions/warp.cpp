// Warp primitives: every lane leaves its operands, and the last to arrive does the work for all.
#include <bit>

#include "common/sim/block.h"
#include "common/sim/instructions/async.h"
#include "common/sim/messages/messages.h"

namespace sim {

namespace {

struct ShuffleFrame {
  Shuffle kind;
  uint64_t in, out;
  unsigned bytes;
  int arg, width;
};

// The lane that `lane` reads; itself where PTX's shfl leaves the segment of `width` lanes.
int source_lane(const ShuffleFrame& f, int lane) {
  const int first = lane & ~(f.width - 1), last = first + f.width - 1;
  int source = lane;
  switch (f.kind) {
    case Shuffle::idx:
      return first + (f.arg & (f.width - 1));
    case Shuffle::xor_:
      source = lane ^ (f.arg & 31);
      return source > last ? lane : source;
    case Shuffle::up:
      source = lane - f.arg;
      return source < first ? lane : source;
    case Shuffle::down:
      source = lane + f.arg;
      return source > last ? lane : source;
  }
  return source;
}

void do_shuffle(WarpMeeting& m) {
  const auto& first = frame_of<ShuffleFrame>(m, std::countr_zero(m.arrived));
  self->shuffles += first.bytes > 4 ? 2 : 1;  // the hardware moves 4 bytes per lane
  for (auto& o : self->observers) o->shuffle(*self, m.warp, m.where.line, first.arg);
  for (uint32_t lanes = m.arrived; lanes; lanes &= lanes - 1) {
    const int lane = std::countr_zero(lanes);
    auto& f = frame_of<ShuffleFrame>(m, lane);
    const int source = source_lane(f, lane);
    if (!(m.arrived >> source & 1)) {
      refuse("in the shuffle", m.where,
             " lane " + std::to_string(lane) + " of warp " + std::to_string(m.warp) +
                 " reads from lane " + std::to_string(source) +
                 (!(self->member[m.warp] >> source & 1) ? ", which the block does not have"
                  : self->alive[m.warp] >> source & 1   ? ", which does not take part"
                                                        : ", which has returned"));
    }
    f.out = frame_of<ShuffleFrame>(m, source).in;
  }
}

struct BallotFrame {
  bool predicate;
  uint32_t out;
};

void do_ballot(WarpMeeting& m) {
  uint32_t votes = 0;
  for (uint32_t lanes = m.arrived; lanes; lanes &= lanes - 1) {
    const int lane = std::countr_zero(lanes);
    votes |= static_cast<uint32_t>(frame_of<BallotFrame>(m, lane).predicate) << lane;
  }
  for (uint32_t lanes = m.arrived; lanes; lanes &= lanes - 1) {
    frame_of<BallotFrame>(m, std::countr_zero(lanes)).out = votes;
  }
}

void do_sync(WarpMeeting& m) {
  for (auto& o : self->observers) o->warp_sync(*self, m.warp, m.arrived);
}

}  // namespace

void sync_warp(uint32_t mask, Where where) {
  meet_in_warp("__syncwarp", mask, do_sync, nullptr, where);
}

uint64_t shuffle(Shuffle kind, uint32_t mask, uint64_t value, unsigned bytes, int arg, int width,
                 Where where) {
  if (!std::has_single_bit(static_cast<unsigned>(width)) || width > 32) {
    refuse("the shuffle", where,
           " has width " + std::to_string(width) + "; a power of two up to 32 is needed");
  }
  ShuffleFrame f{kind, value, 0, bytes, arg, width};
  meet_in_warp("__shfl_sync", mask, do_shuffle, &f, where);
  return f.out;
}

uint32_t ballot(uint32_t mask, bool predicate, Where where) {
  BallotFrame f{predicate, 0};
  meet_in_warp("__ballot_sync", mask, do_ballot, &f, where);
  return f.out;
}

}  // namespace sim

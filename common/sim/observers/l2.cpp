// The L2 and DRAM traffic.
//
// A sectored write-back cache: 128-byte lines of four 32-byte sectors, 16 ways, hashed sets. A read
// fetches the sectors that are absent. A write fetches nothing: the hardware keeps byte masks, and
// the rest of a sector is nearly always written before its eviction.
//
// Replacement: GPUs do not use LRU. The model evicts a random line of the older half of the set.
// Of X MiB that were written and read back this share came from DRAM, on an H200 (50 MB), and in
// the model, whose cache was full of other lines:
//
//   X          32     40     48     64     96     128
//   measured   0.8%   11%    48%    72%    82%    94%
//   modelled   2%     15%    36%    72%    94%    99%
//
// The model is within 5 points up to 0.8 times the L2 and again at 2.5 times, and within 12 between
// the two. tests/sim/l2.cu holds these figures.
//
// Order: the simulator runs one warp after the other, a GPU thousands at a time, and that decides
// what is still cached. A warp that makes three passes over its row of 29 KB would find it in the
// L2 if it were alone; with 7232 such rows in flight every pass misses. So the requests of all
// blocks that fit on the GPU at a time are kept until they advance together.
//
// Textbook attention with such a softmax, one head, d = 32: MB read from DRAM, measured on an H200
// and modelled (S is 0.24, 0.5, 1.02 and 4 times the L2):
//
//   N          1792   2560   3648   7232
//   measured   0.73   1.20   159    836
//   modelled   0.69   1.84   93     831
//
// Near the size of the L2 the model is poor. One reason may be that it ignores the two halves of an
// H200's L2: if both keep a copy of what SMs on both sides read, less fits.
#include <algorithm>
#include <bit>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "common/sim/observers/l2.h"

namespace sim {

namespace {

// How many of a line's four sectors are in a mask. std::popcount() is a call on a plain x86-64.
unsigned count(uint64_t sectors) {
  constexpr uint64_t kOnes = 0x4332'3221'3221'2110;  // by nibble
  return kOnes >> 4 * (sectors & kAllSectors) & 15;
}

class L2Model {
 public:
  explicit L2Model(double bytes) { resize(bytes); }

  /// line << 8 | sectors written << 4 | sectors read
  void touch(uint64_t request) {
    const uint32_t line = static_cast<uint32_t>(request >> L2Requests::kLineShift);
    const unsigned read = request & kAllSectors, written = request >> kLineSectors & kAllSectors;
    Set& set = set_of(line);
    const unsigned way = find(set, line);
    uint8_t& state = set.state[way];
    dram_read_ += kSector * count(read & ~state);
    state |= static_cast<uint8_t>(read | written | written << kLineSectors);
  }

  void touch_all(const std::vector<uint64_t>& requests) {
    constexpr size_t kAhead = 8;  // the sets exceed the L2 of this machine
    for (size_t i = 0; i < requests.size(); ++i) {
      if (i + kAhead < requests.size()) {
        const uint64_t ahead = requests[i + kAhead];
        const Set& next = set_of(static_cast<uint32_t>(ahead >> L2Requests::kLineShift));
        __builtin_prefetch(next.tag);
        __builtin_prefetch(&next.order);
      }
      touch(requests[i]);
    }
  }

  /// Empties the cache and sets its size.
  void resize(double bytes) {
    write_back();
    sets_.assign(std::max<uint64_t>(1, static_cast<uint64_t>(bytes) / (kLine * kWays)), Set{});
  }

  uint64_t dram_read() const { return dram_read_; }
  uint64_t dram_write() const { return dram_write_; }  ///< by evictions
  /// \returns the bytes of dirty lines, which become clean.
  uint64_t write_back() {
    for (Set& set : sets_) {
      for (uint8_t& state : set.state) {
        dram_write_ += kSector * count(unsigned{state} >> kLineSectors);
        state &= kAllSectors;
      }
    }
    return dram_write_;
  }

 private:
  static constexpr unsigned kWays = 16;
  static constexpr uint64_t kOnes = 0x1111'1111'1111'1111;

  struct alignas(64) Set {
    uint32_t tag[kWays] = {};
    uint64_t order = 0xfedc'ba98'7654'3210;  // one way per nibble, the latest lowest
    uint8_t state[kWays] = {};               // sectors: valid (low nibble), dirty (high nibble)
    uint8_t used = 0;                        // ways that hold a line
  };

  // Fibonacci hashing spreads neighbours, and lines at any fixed stride, evenly over the sets.
  Set& set_of(uint32_t line) { return sets_[uint64_t{line * 2654435769u} * sets_.size() >> 32]; }

  // The way that holds `line`, after a fetch if needed; it becomes the latest of its set.
  unsigned find(Set& set, uint32_t line) {
    const unsigned latest = set.order & 15;
    if (set.tag[latest] == line && latest < set.used) return latest;
    int way = -1;
    for (int i = 0; i < static_cast<int>(kWays); ++i) way = set.tag[i] == line ? i : way;
    if (way < 0 || way >= set.used) {
      if (set.used < kWays) {
        way = set.used++;
      } else {
        way = static_cast<int>(set.order >> (kWays / 2 + next_random() % (kWays / 2)) * 4 & 15);
        dram_write_ += kSector * count(unsigned{set.state[way]} >> kLineSectors);
      }
      set.tag[way] = line;
      set.state[way] = 0;
    }
    move_to_front(set.order, static_cast<unsigned>(way));
    return static_cast<unsigned>(way);
  }

  static void move_to_front(uint64_t& order, unsigned way) {
    const uint64_t zero_there = order ^ kOnes * way;
    const uint64_t found = (zero_there - kOnes) & ~zero_there & kOnes << 3;
    const int shift = std::countr_zero(found) - 3;  // of the way's nibble
    const uint64_t before = (uint64_t{1} << shift) - 1, through = (uint64_t{16} << shift) - 1;
    order = (order & ~through) | (order & before) << 4 | way;
  }

  uint32_t next_random() {  // xorshift; the same numbers in every recording
    random_ ^= random_ << 13;
    random_ ^= random_ >> 17;
    random_ ^= random_ << 5;
    return random_;
  }

  std::vector<Set> sets_;
  uint32_t random_ = 2463534242u;
  uint64_t dram_read_ = 0, dram_write_ = 0;
};

// A resident block: the warps of the current phase advance together.
class Resident {
 public:
  explicit Resident(L2Requests requests) : requests_(std::move(requests)) { begin_phase(); }

  size_t size() const { return requests_.size(); }
  bool ended() const { return warps_.empty(); }

  /// Appends the next requests of each warp.
  void advance(std::vector<uint64_t>& out) {
    constexpr unsigned kPace = 8;  // lines; with 1 or 32 the figures differ by 4% at most
    constexpr unsigned kCountShift = L2Requests::kCountShift, kLineShift = L2Requests::kLineShift;
    for (Warp& w : warps_) {
      for (unsigned n = 0; n < kPace && w.run < w.end; ++n) {
        const uint64_t run = requests_.runs[w.run];
        out.push_back((run & ((uint64_t{1} << kCountShift) - 1)) +
                      (uint64_t{w.done} << kLineShift));
        if (++w.done == run >> kCountShift) {
          ++w.run;
          w.done = 0;
        }
      }
    }
    std::erase_if(warps_, [](const Warp& w) { return w.run == w.end; });
    if (warps_.empty()) begin_phase();
  }

 private:
  struct Warp {
    uint32_t run, end;  // the current run, and the end of its segment
    uint32_t done;      // lines of this run
  };

  void begin_phase() {
    const std::vector<L2Requests::Segment>& segments = requests_.segments;
    do {
      if (segment_ == segments.size()) return;
      const uint32_t begin = segment_ == 0 ? 0 : segments[segment_ - 1].end;
      warps_.push_back({begin, segments[segment_].end, 0});
      ++segment_;
    } while (segment_ < segments.size() && !segments[segment_].begins_phase);
  }

  L2Requests requests_;
  size_t segment_ = 0;  // the first one of the next phase
  std::vector<Warp> warps_;
};

// A launch on the modelled GPU. Blocks arrive as the simulator ends them, in any order, and become
// resident in the grid's order. All resident blocks advance at the same pace, a few lines of each
// warp in turn; when one ends, the next replaces it. So only the blocks' requests matter.
class Machine {
 public:
  void begin_recording(double l2_bytes) {
    bytes_ = l2_bytes;
    model_ = std::make_unique<L2Model>(l2_bytes);
  }
  L2Model* model() { return model_.get(); }
  void end_recording() { model_.reset(); }

  void begin_launch(uint64_t blocks, uint64_t places, double times) {
    blocks_ = blocks;
    places_ = places;
    next_ = 0;
    if (times == 1 || !model_) return;
    // Other problems have run since the last launch, and this one shares the L2 with those whose
    // blocks are resident beside its own.
    const double together = static_cast<double>(places) / static_cast<double>(blocks);
    model_->resize(bytes_ / std::clamp(together, 1.0, times));
  }

  void hand_over(uint64_t block, L2Requests requests, std::atomic<uint64_t>& progress) {
    std::unique_lock lock(mutex_);
    if (!model_) return;
    waiting_bytes_ += requests.size();
    waiting_.emplace(block, std::move(requests));
    if (busy_) {  // that worker will see it
      room_.wait(lock, [&] { return !busy_ || waiting_bytes_ <= kMaxBytes; });
      return;
    }
    busy_ = true;
    while (fill_places() && !resident_.empty()) {
      lock.unlock();
      advance();
      progress.store(progress.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
      lock.lock();
    }
    busy_ = false;
    room_.notify_all();
  }

  /// Discards an abandoned launch.
  void end_launch() {
    waiting_.clear();
    resident_.clear();
    waiting_bytes_ = resident_bytes_ = 0;
  }

 private:
  // Memory for resident blocks, and as much for waiting ones. Larger blocks: fewer are resident.
  static constexpr size_t kMaxBytes = 256 << 20;

  // Returns false if the next block to become resident has not arrived.
  bool fill_places() {
    while (resident_.size() < places_ && next_ < blocks_) {
      const auto first = waiting_.begin();
      if (first == waiting_.end() || first->first != next_) return false;
      const size_t bytes = first->second.size();
      if (!resident_.empty() && resident_bytes_ + bytes > kMaxBytes) break;
      resident_bytes_ += bytes;
      waiting_bytes_ -= bytes;
      resident_.emplace_back(std::move(first->second));
      waiting_.erase(first);
      ++next_;
      room_.notify_all();
    }
    return true;
  }

  void advance() {
    constexpr size_t kBatch = 1024;
    bool some_ended = false;
    for (Resident& block : resident_) {
      block.advance(batch_);
      some_ended |= block.ended();
      if (batch_.size() >= kBatch) touch_batch();
    }
    touch_batch();
    if (!some_ended) return;
    std::erase_if(resident_, [&](const Resident& block) {
      if (block.ended()) resident_bytes_ -= block.size();
      return block.ended();
    });
  }

  void touch_batch() {
    model_->touch_all(batch_);
    batch_.clear();
  }

  std::mutex mutex_;
  std::condition_variable room_;
  std::unique_ptr<L2Model> model_;
  double bytes_ = 0;
  uint64_t blocks_ = 0, places_ = 1;
  uint64_t next_ = 0;  // the block that becomes resident next
  bool busy_ = false;  // some worker feeds the model; it alone uses what follows `waiting_`
  std::map<uint64_t, L2Requests> waiting_;
  size_t waiting_bytes_ = 0;
  std::vector<Resident> resident_;
  size_t resident_bytes_ = 0;
  std::vector<uint64_t> batch_;
};

Machine machine;

}  // namespace

// --- the requests of a block ---------------------------------------------------------------------

void L2Stream::begin(uint64_t block) {
  block_ = block;
  requests_.runs.clear();
  requests_.segments.clear();
  clock_ += near_;  // all earlier requests are long ago
  warps_ = 0;
  begins_phase_ = false;
}

void L2Stream::close_line() {
  constexpr uint64_t kOneMore = uint64_t{1} << L2Requests::kCountShift;
  constexpr uint64_t kLongest = ~uint64_t{0} >> L2Requests::kCountShift;
  if (open_ == 0) return;
  std::vector<uint64_t>& runs = requests_.runs;
  if (open_ == neighbour_ && runs.back() >> L2Requests::kCountShift < kLongest) {
    runs.back() += kOneMore;
  } else {
    runs.push_back(open_ | kOneMore);
  }
  neighbour_ = open_ + (uint64_t{1} << L2Requests::kLineShift);
  open_ = 0;
}

void L2Stream::end_segment(unsigned warp) {
  close_line();
  neighbour_ = 0;
  clock_ += near_;  // on a GPU other warps have used the L1 meanwhile
  if (warps_ >> warp & 1) {
    warps_ = 0;
    begins_phase_ = true;
  }
  warps_ |= uint64_t{1} << warp;
  const auto end = static_cast<uint32_t>(requests_.runs.size());
  if (end == (requests_.segments.empty() ? 0 : requests_.segments.back().end)) return;
  requests_.segments.push_back({end, begins_phase_});
  begins_phase_ = false;
}

void L2Stream::end(std::atomic<uint64_t>& progress) {
  end_segment(0);  // copies that no thread waited for
  machine.hand_over(block_, requests_, progress);
}

// --- hooks ---------------------------------------------------------------------------------------

void l2_begin_recording(double l2_bytes) { machine.begin_recording(l2_bytes); }
void l2_begin_launch(uint64_t blocks, uint64_t resident, double times) {
  machine.begin_launch(blocks, resident, times);
}
void l2_end_launch() { machine.end_launch(); }
void l2_write_back() {
  if (L2Model* model = machine.model()) model->write_back();
}

fa::Bytes l2_dram() {
  const L2Model* model = machine.model();
  return model ? fa::Bytes{model->dram_read(), model->dram_write()} : fa::Bytes{};
}

void l2_copy(uint64_t offset, uint64_t bytes, bool write) {
  if (!machine.model() || bytes == 0) return;
  const uint64_t first = offset / kSector, last = (offset + bytes - 1) / kSector;
  for (uint64_t line = first / kLineSectors; line <= last / kLineSectors; ++line) {
    unsigned sectors = kAllSectors;
    if (line == first / kLineSectors) sectors &= kAllSectors << first % kLineSectors;
    if (line == last / kLineSectors)
      sectors &= kAllSectors >> (kLineSectors - 1 - last % kLineSectors);
    const unsigned bits = write ? sectors << kLineSectors : sectors;
    machine.model()->touch(line << L2Requests::kLineShift | bits);
  }
}

fa::Bytes l2_end_recording() {
  l2_write_back();
  const fa::Bytes moved = l2_dram();
  machine.end_recording();
  return moved;
}

}  // namespace sim

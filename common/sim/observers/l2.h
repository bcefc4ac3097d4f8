/// \file
/// The requests of one block to the L2 model. Private to observers/.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "common/counts/counts.h"

namespace sim {

/// Bytes of a line of the L2, and of a sector, the least that a request moves.
constexpr unsigned kLine = 128, kSector = 32;
constexpr unsigned kLineSectors = kLine / kSector;
/// A bit for each sector of a line.
constexpr unsigned kAllSectors = (1u << kLineSectors) - 1;

/// The lines that a block touches, warp by warp. Warps that run at the same time on a GPU run one
/// after the other here, each for a *segment*: until it waits for other warps, or ends. A *phase*
/// is a sequence of segments of different warps: these ran between the same barriers, so on a GPU
/// they run together. When a warp runs again, the block has passed a barrier.
struct L2Requests {
  /// A run of adjacent lines of which the same sectors are touched:
  /// lines << 40 | the first line's number << 8 | sectors written << 4 | sectors read.
  std::vector<uint64_t> runs;
  struct Segment {
    uint32_t end;  ///< one past its last run
    bool begins_phase;
  };
  std::vector<Segment> segments;

  static constexpr unsigned kCountShift = 40, kLineShift = 2 * kLineSectors;
  static_assert(kLineShift == 8);

  /// \returns bytes of memory.
  size_t size() const {
    return runs.size() * sizeof runs[0] + segments.size() * sizeof segments[0];
  }
};

/// Collects the requests of one block after the other. Each OS worker has its own stream; the model
/// processes the blocks in the grid's order, so the number of workers has no effect.
class L2Stream {
 public:
  /// \param l1_bytes of an SM
  explicit L2Stream(uint64_t l1_bytes) : near_(l1_bytes / kWarps / kSector) {}
  void begin(uint64_t block);
  /// `sector`: offset in the window / kSector. An atomic reads and writes.
  void touch(uint64_t sector, bool read, bool write) {
    const uint64_t line = sector / kLineSectors;
    const unsigned at = sector % kLineSectors;
    const uint64_t bits = ((read ? 1u : 0u) | (write ? 1u << kLineSectors : 0u)) << at;
    Recent& recent = recent_[line % kSlots];
    uint64_t news = bits;
    if (recent.line == line && clock_ - recent.fetched < near_) {
      news &= ~(recent.bits | recent.bits >> kLineSectors);  // what was written can be read
      if (!news) return;
      recent.bits |= bits;
    } else {
      recent.line = line;
      recent.bits = bits;
    }
    recent.fetched = ++clock_;
    if (open_ >> L2Requests::kLineShift != line) {
      close_line();
      open_ = line << L2Requests::kLineShift;
    }
    open_ |= news;
  }
  /// The warp yields to another one.
  void end_segment(unsigned warp);
  /// Hands the block to the model; increments `progress` while the model works.
  void end(std::atomic<uint64_t>& progress);

 private:
  // A warp that returns to its latest sectors (32 strided rows, feature after feature) sends the L2
  // no request for those that fit into its share of the L1, 4 KiB on an H200. A larger share would
  // hide that a warp's second pass over a row misses the L2.
  static constexpr uint64_t kWarps = 64;   // sharing an L1
  static constexpr uint64_t kSlots = 256;  // more than 32, since rows lie a stride apart
  struct Recent {
    uint64_t line = ~uint64_t{0}, bits = 0, fetched = 0;
  };

  void close_line();

  const uint64_t near_;  // sectors
  Recent recent_[kSlots];
  uint64_t clock_ = 0;         // sectors requested, in all blocks
  uint64_t open_ = 0;          // the line being touched, as a run without a count
  uint64_t neighbour_ = 0;     // what `open_` must be to extend the last run
  uint64_t warps_ = 0;         // that ran in this phase
  bool begins_phase_ = false;  // so does the next segment that is not empty
  uint64_t block_ = 0;
  L2Requests requests_;
};

void l2_begin_recording(double l2_bytes);  ///< cold cache, counters zero
/// `resident` blocks of this launch fit on the modelled GPU at a time. With `times` > 1 that many
/// problems like this one run in it, and the L2 is empty at first.
void l2_begin_launch(uint64_t blocks, uint64_t resident, double times);
/// Writes dirty lines to DRAM now.
void l2_write_back();
void l2_end_launch();  ///< of an abandoned one too
/// Bytes moved to and from DRAM since the recording began, without dirty lines still in the L2.
fa::Bytes l2_dram();
/// cudaMemset, cudaMemcpy on the device
void l2_copy(uint64_t offset, uint64_t bytes, bool write);
fa::Bytes l2_end_recording();  ///< as l2_dram(), dirty lines written back

}  // namespace sim

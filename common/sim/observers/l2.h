/// \file
/// What one block asks of the L2, on its way to the model. Private to observers/.
#pragma once

#include <cstdint>
#include <vector>

namespace sim {

/// The sectors that a block touches, in order, without repeats of the recent past. Blocks run on
/// several OS workers, so each collects its own; the model takes whole blocks in the grid's order,
/// and its figures do not depend on the number of workers.
class L2Stream {
 public:
  void begin(uint64_t block);
  /// `sector`: offset in the window / 32. An atomic reads and writes.
  void touch(uint64_t sector, bool read, bool write) {
    const uint64_t line = sector >> 2;
    const uint64_t bits = (read ? 0x01u : 0u) << (sector & 3) | (write ? 0x10u : 0u)
                                                                    << (sector & 3);
    uint64_t& recent = recent_[line % kRecent];
    if (recent >> 8 == line) {
      const uint64_t seen = recent & 0xff;
      const uint64_t news = bits & ~(seen | seen >> 4);  // what was written can be read
      if (!news) return;
      recent |= bits;
      if (stream_.back() >> 8 == line) {
        stream_.back() |= news;
      } else {
        stream_.push_back(line << 8 | news);
      }
    } else {
      recent = line << 8 | bits;
      stream_.push_back(recent);
    }
  }
  /// Hands the block over to the model.
  void end();

 private:
  // Lines that the block touched just now are still in the L2: 256 of them are 32 KiB.
  static constexpr uint64_t kRecent = 256;
  uint64_t recent_[kRecent];
  uint64_t block_ = 0;
  std::vector<uint64_t> stream_;  // line << 8 | sectors written << 4 | sectors read
};

}  // namespace sim

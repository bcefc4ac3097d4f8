// Group l2 -- bandwidth of the L2: of one SM's path to it, and of all SMs.
// Measured  one SM alone in clocks, all SMs in seconds, on 16 MB that stay in the L2
// Watch     on a GPU with a smaller L2 the figures are those of its memory. One SM's longer run
//           passes the array once: it finds there what the runs before left
#include "common/clock/microbenchmarks/groups.h"
#include "common/clock/microbenchmarks/measure.h"
#include "common/clock/microbenchmarks/stream.h"

namespace fa::microbenchmarks {

void measure_l2() {
  const size_t bytes = 16 << 20;
  const Buffer<char> array(bytes);
  const int sms = multiprocessors();
  const Stream<Access::read> read{array.data, nullptr, bytes - 1};
  const Stream<Access::write> write{nullptr, array.data, bytes - 1};
  report("l2_read_gpu", sms * kStreamBytes / round_seconds(read, 64), kBytesPerSecond,
         "all SMs read 16 MB that stay in the L2, 16 B per lane");
  report("l2_read_sm", kStreamBytes / round_clocks(read, kMaxWarps, 32), kBytesPerClock,
         "one SM alone reads 16 MB that stay in the L2");
  report("l2_write_gpu", sms * kStreamBytes / round_seconds(write, 64), kBytesPerSecond,
         "all SMs write 16 MB that stay in the L2, 16 B per lane");
  report("l2_write_sm", kStreamBytes / round_clocks(write, kMaxWarps, 32), kBytesPerClock,
         "one SM alone writes 16 MB that stay in the L2");
}

}  // namespace fa::microbenchmarks

// Group l2 -- bandwidth of the L2, all SMs reading or writing.
// Measured  seconds, on 16 MB that stay in the L2
// Watch     on a GPU with a smaller L2 the figures are those of its memory
#include "common/gpu/microbenchmarks/measure.h"
#include "common/gpu/microbenchmarks/stream.h"

namespace fa::microbenchmarks {

void measure_l2() {
  const size_t bytes = 16 << 20;
  const Buffer<char> array(bytes);
  const int sms = multiprocessors();
  const Stream<Access::read> read{array.data, nullptr, bytes - 1};
  const Stream<Access::write> write{nullptr, array.data, bytes - 1};
  report("l2_read_gpu", sms * kStreamBytes / round_seconds(read, 64), kBytesPerSecond,
         "all SMs read 16 MB that stay in the L2, 16 B per lane");
  report("l2_write_gpu", sms * kStreamBytes / round_seconds(write, 64), kBytesPerSecond,
         "all SMs write 16 MB that stay in the L2, 16 B per lane");
}

}  // namespace fa::microbenchmarks

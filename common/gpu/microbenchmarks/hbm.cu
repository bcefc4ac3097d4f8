// Group hbm -- bandwidth of the device memory, all SMs reading or copying.
// Measured  seconds of runs over a quarter of 4 GB and over all of it; the slope is the difference
// Watch     what the L2 keeps of the previous run is small beside either. Needs 8 GB free
#include "common/gpu/microbenchmarks/measure.h"
#include "common/gpu/microbenchmarks/stream.h"

namespace fa::microbenchmarks {

void measure_hbm() {
  const size_t bytes = size_t{4} << 30;
  const Buffer<char> from(bytes), to(bytes);
  const double round_bytes = kStreamBytes * multiprocessors();
  const int rounds = static_cast<int>(bytes / round_bytes / 4);
  const Stream<Access::read> read{from.data, nullptr, bytes - 1};
  const Stream<Access::copy> copy{from.data, to.data, bytes - 1};
  report("hbm_read", round_bytes / round_seconds(read, rounds), kBytesPerSecond, "read of 4 GB");
  report("hbm_copy", 2 * round_bytes / round_seconds(copy, rounds), kBytesPerSecond,
         "copy of 4 GB to 4 GB, bytes read and written");
}

}  // namespace fa::microbenchmarks

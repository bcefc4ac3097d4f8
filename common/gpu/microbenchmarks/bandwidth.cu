// Group l2 -- bandwidth of the L2, all SMs reading or writing.
// Measured  seconds, on 16 MB that stay in the L2
// Watch     on a GPU with a smaller L2 the figures are those of its memory
//
// Group hbm -- bandwidth of the device memory, all SMs reading or copying.
// Measured  seconds of runs over a quarter of 4 GB and over all of it; the slope is the difference
// Watch     what the L2 keeps of the previous run is small beside either. Needs 8 GB free
#include "common/gpu/microbenchmarks/measure.h"

namespace fa::microbenchmarks {

namespace {

enum class Access { read, write, copy };

/// All threads together walk arrays of `mask` + 1 bytes, 16 bytes each, 8 at once: 32 warps have
/// 128 KB in flight per SM, more than latency x bandwidth. Loads are .cg, which bypasses L1.
template <Access access>
struct Stream {
  const char* from;
  char* to;
  size_t mask;  // the size is a power of two
  size_t at = 0, step = 0;
  uint32_t sum = 0;
  __device__ void begin(char*) {
    at = (size_t{blockIdx.x} * blockDim.x + threadIdx.x) * 16;
    step = size_t{gridDim.x} * blockDim.x * 16;
  }
  __device__ void round() {
    uint4 x[kUnrolled] = {};
    UNROLL
    for (int u = 0; u < kUnrolled; ++u) {
      if (access != Access::write) {
        const char* p = from + ((at + u * step) & mask);
        asm volatile("ld.global.cg.v4.b32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[u].x), "=r"(x[u].y), "=r"(x[u].z), "=r"(x[u].w)
                     : "l"(p));
      }
    }
    UNROLL
    for (int u = 0; u < kUnrolled; ++u) {
      if (access != Access::read) {
        asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(to + ((at + u * step) & mask)),
                     "r"(x[u].x), "r"(x[u].y), "r"(x[u].z), "r"(x[u].w)
                     : "memory");
      }
      sum ^= x[u].x ^ x[u].y ^ x[u].z ^ x[u].w;
    }
    at += kUnrolled * step;
  }
  __device__ uint32_t result() const { return sum; }
};

/// Bytes that a block of 32 warps reads, writes or copies per round.
constexpr double kStreamBytes = 1.0 * kMaxWarps * kWarp * kUnrolled * 16;

}  // namespace

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

// Group wgmma -- the tensor cores as a warpgroup uses them: wgmma m64nNk16, bf16 inputs, fp32 sums.
// Measured  clocks for groups of 1, 8 and 24 products, each group waited for. 1: the latency from
//           the fence to the end of the wait; 24 minus 8: 16 products back to back
// Operands  as in the steps: from shared memory, K-major, 128-byte swizzle, 64 values of k
// Watch     zeros as operands, as in mma.cu. ptxas must not serialise the products:
//           ./scripts/ptxas says whether it did
#include "common/dialect/ptx/more/wgmma.h"
#include "common/dialect/ptx/tma.h"
#include "common/gpu/microbenchmarks/measure.h"

namespace fa::microbenchmarks {

namespace {

constexpr int kRowBytes = 128;  // 64 values of k

/// `rounds` groups of `group` products per warpgroup, all with the same operands.
template <int N, int group>
__global__ void __launch_bounds__(256, 1) wgmma_kernel(int rounds, uint32_t value,
                                                       Span* spans,       // [kMaxWarps]
                                                       uint32_t* sink) {  // [1]
  char* shared = dynamic_shared<char>();  // A: [64][kRowBytes]; B: [N][kRowBytes]
  for (int i = threadIdx.x * 4; i < (64 + N) * kRowBytes; i += blockDim.x * 4) {
    *reinterpret_cast<uint32_t*>(shared + i) = value;
  }
  fence_proxy_async();
  __syncthreads();  // the operands are written
  const uint64_t sA = wgmma_descriptor(shared, Swizzle::b128, 0, 8 * kRowBytes);
  const uint64_t sB = wgmma_descriptor(shared + 64 * kRowBytes, Swizzle::b128, 0, 8 * kRowBytes);
  float d[N / 2];
  UNROLL
  for (int i = 0; i < N / 2; ++i) d[i] = 0;
  const long long start = clock64();
  UNROLL_BY(1)
  for (int round = 0; round < rounds; ++round) {
    pin_registers(d);
    wgmma_fence();
    UNROLL
    for (int k = 0; k < group; ++k) {
      const int slice = k % 4 * 32;
      wgmma<Major::k, Major::k>(d, wgmma_advance(sA, slice), wgmma_advance(sB, slice));
    }
    wgmma_commit();
    wgmma_wait<0>();
    pin_registers(d);
  }
  const long long end = clock64();
  if (threadIdx.x % kWarp == 0) spans[threadIdx.x / kWarp] = {start, end};
  float all = 0;
  UNROLL
  for (int i = 0; i < N / 2; ++i) all += d[i];
  if (all == -1.f) *sink = 1;  // never
}

template <int N, int group>
double group_clocks(int warpgroups) {
  return per_round(64, [&](int rounds) {
    return clocks_of(4 * warpgroups, [&] {
      launch(wgmma_kernel<N, group>, {1, 128 * warpgroups, (64 + N) * kRowBytes}, rounds, 0u,
             spans_memory(), sink_memory());
    });
  });
}

template <int N>
void measure_width() {
  const std::string n = "n" + std::to_string(N), name = n + "_ss";
  const std::string shape = " m64" + n + "k16 bf16, A from shared memory";
  for (int warpgroups : {1, 2}) {
    const double eight = group_clocks<N, 8>(warpgroups), more = group_clocks<N, 24>(warpgroups);
    const std::string count = std::to_string(warpgroups);
    report("wgmma_" + name + "_wg" + count, (more - eight) / (16 * warpgroups), kClocks,
           "of one SM for a wgmma" + shape + ", back to back, warpgroups: " + count);
  }
  report("latency_wgmma_" + name, group_clocks<N, 1>(1), kClocks,
         "from the fence to the end of the wait of one wgmma" + shape);
}

}  // namespace

void measure_wgmma() {
  measure_width<64>();
  measure_width<256>();
}

}  // namespace fa::microbenchmarks

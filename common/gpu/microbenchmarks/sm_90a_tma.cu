// Group tma -- TMA loads from the L2: bandwidth of one SM, and the latency of one load.
// Measured  as in the steps: one thread keeps a ring of stages full, and refills each at once. 4
//           stages (32 KB) show the rate of such a ring; 1 stage: issue, arrival, wait of a box
// Watch     a barrier that never completes hangs the kernel; the program's alarm ends it
#include "common/dialect/ptx/mbarrier.h"
#include "common/dialect/ptx/more/tma.h"
#include "common/gpu/microbenchmarks/measure.h"

namespace fa::microbenchmarks {

namespace {

constexpr int kBoxRows = 64, kBoxBytes = kBoxRows * 128;

/// Keeps `stages` boxes of 64 rows x 128 bytes in flight, and loads stages * (rounds + 1) of them.
template <int stages>
__global__ void tma_kernel(const __grid_constant__ TensorMap map,  // [rows][64] of bf16
                           int rows,                               // a power of two
                           int rounds,
                           Span* spans) {  // [kMaxWarps]
  char* shared = dynamic_shared<char>();   // [stages][kBoxBytes]
  __shared__ uint64_t full[stages];
  if (threadIdx.x != 0) return;
  for (uint64_t& bar : full) mbarrier_init(&bar, 1);
  mbarrier_init_fence();
  int row = 0;
  const auto issue = [&](int stage) {
    mbarrier_arrive_expect_tx(&full[stage], kBoxBytes);
    tma_load(shared + stage * kBoxBytes, &map, &full[stage], {0, row});
    row = (row + kBoxRows) & (rows - 1);
  };
  const long long start = clock64();
  UNROLL
  for (int stage = 0; stage < stages; ++stage) issue(stage);
  UNROLL_BY(1)
  for (int round = 0; round < rounds; ++round) {
    UNROLL
    for (int stage = 0; stage < stages; ++stage) {
      mbarrier_wait(&full[stage], round & 1);
      issue(stage);
    }
  }
  for (int stage = 0; stage < stages; ++stage) mbarrier_wait(&full[stage], rounds & 1);
  spans[0] = {start, clock64()};
}

constexpr int kArrayRows = (16 << 20) / 128;

/// Clocks per box of a block alone on its SM.
template <int stages>
double box_clocks(const TensorMap& map) {
  const auto run = [&](int rounds) {
    return clocks_of(1, [&] {
      launch(tma_kernel<stages>, {1, kWarp, stages * kBoxBytes}, map, kArrayRows, rounds,
             spans_memory());
    });
  };
  return per_round(512 / stages, run) / stages;
}

}  // namespace

void measure_tma() {
  const Buffer<__nv_bfloat16> array(size_t{kArrayRows} * 64);
  const TensorMap map =
      tensor_map(array.data, {{64, 1, 64}, {size_t{kArrayRows}, 64, kBoxRows}}, Swizzle::b128);
  report("tma_read_sm_stages4", kBoxBytes / box_clocks<4>(map), kBytesPerClock,
         "one SM alone by TMA from the L2, boxes of 64 x 128 B; under way in each SM: 4");
  report("latency_tma_8k", box_clocks<1>(map), kClocks,
         "from the issue of a TMA load of 64 x 128 B in the L2 to the end of the wait");
}

}  // namespace fa::microbenchmarks

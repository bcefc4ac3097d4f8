/// \file
/// Shared by all groups: a kernel that repeats an operation, and the time of a round.
///
/// - **Clocks** of an SM, from clock64 inside the kernel, where one block runs alone. Where all SMs
///   run: seconds between two events, times clock_hz where clocks are needed.
/// - **Slope.** Launches of R rounds and of 4 R; the difference divided by 3 R contains no start,
///   no end and no event. Of each length the shortest of 5 runs counts, the least disturbed one. A
///   group that does it another way says so.
/// - **Not optimised away.** Every measured instruction is an asm volatile whose operands are known
///   only at run time (`zero` is 0, but the compiler cannot know), and the results end in a store
///   that is never executed.
#pragma once

#include <cstdint>
#include <functional>

#include "common/dialect/cuda.h"
#include "common/gpu/microbenchmarks/report.h"

namespace fa::microbenchmarks {

constexpr int kRuns = 5;
constexpr int kMaxWarps = 32;  ///< of a block
constexpr int kUnrolled = 8;   ///< memory requests per round

// --- memory -------------------------------------------------------------------------------------

/// `n` elements of device memory, zeroed.
/// \throws CudaError when there is no room.
template <class T>
struct Buffer {
  T* data = nullptr;  ///< [n]
  explicit Buffer(size_t n) {
    cuda_check(cudaMalloc(&data, n * sizeof(T)));
    cuda_check(cudaMemset(data, 0, n * sizeof(T)));
  }
  ~Buffer() { cudaFree(data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
};

/// When a warp began and ended, in clocks of its SM.
struct Span {
  long long start, end;
};
Span* spans_memory();     ///< [kMaxWarps], device memory; kernels write block 0's warps there
uint32_t* sink_memory();  ///< [1], device memory; where the store that never happens would go

// --- the time of a round ------------------------------------------------------------------------

/// Clocks from the first warp's start to the last warp's end in block 0, after `run()`.
double clocks_of(int warps, const std::function<void()>& run);

/// Seconds that `run()` takes on the GPU, between two events.
double seconds_of(const std::function<void()>& run);

/// The slope of run(rounds), which returns clocks or seconds: the cost of a round in steady state.
double per_round(int rounds, const std::function<double(int)>& run);

/// Every block does `rounds` rounds of `op`; each warp of block 0 records its begin and end. Op has
///
///     void begin(char* shared);   untimed: fills what is read; `shared` is the dynamic memory
///     void round();               the measured instructions, unrolled
///     uint32_t result() const;    depends on everything that was loaded or computed
template <class Op>
__global__ void __launch_bounds__(32 * kMaxWarps, 1) work_kernel(Op op, int rounds,
                                                                 Span* spans,       // [kMaxWarps]
                                                                 uint32_t* sink) {  // [1]
  op.begin(dynamic_shared<char>());
  __syncthreads();  // the warm-up is over in all warps
  const long long start = clock64();
  UNROLL_BY(1)
  for (int round = 0; round < rounds; ++round) op.round();
  const long long end = clock64();
  if (blockIdx.x == 0 && threadIdx.x % kWarp == 0) spans[threadIdx.x / kWarp] = {start, end};
  if (op.result() == 0x9e3779b9u) *sink = 1;  // never, but the compiler cannot know
}

/// Clocks of `rounds` rounds of one block of `warps` warps, alone on its SM.
template <class Op>
double work_clocks(const Op& op, int warps, int rounds, size_t shared_bytes = 0) {
  return clocks_of(warps, [&] {
    launch(work_kernel<Op>, {1, warps * kWarp, shared_bytes}, op, rounds, spans_memory(),
           sink_memory());
  });
}

/// Clocks of a round of all `warps` warps of one block, alone on its SM.
template <class Op>
double round_clocks(const Op& op, int warps, int rounds, size_t shared_bytes = 0) {
  return per_round(rounds, [&](int n) { return work_clocks(op, warps, n, shared_bytes); });
}

/// Seconds of a round of one block of 32 warps on each SM.
template <class Op>
double round_seconds(const Op& op, int rounds) {
  const int sms = multiprocessors();
  return per_round(rounds, [&](int n) {
    return seconds_of([&] {
      launch(work_kernel<Op>, {sms, kMaxWarps * kWarp}, op, n, spans_memory(), sink_memory());
    });
  });
}

}  // namespace fa::microbenchmarks

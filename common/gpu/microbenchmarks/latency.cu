// Group latency -- how long one warp alone on its SM waits: nothing hides a wait.
// Measured  loads: a dependent chain through a ring in shared memory, L2 and HBM.
//           cp.async: 16 bytes per lane from the L2, committed and waited for. barrier:
//           __syncthreads of a block of 1 and of 32 warps that have nothing to wait for
// Watch     a ring's size decides what it hits: 4 MB fit the L2. HBM: no run may touch a
//           node of an earlier one, so there is no slope and no warm-up; it includes TLB misses
#include <algorithm>

#include "common/dialect/ptx/cp_async.h"
#include "common/gpu/microbenchmarks/measure.h"
#include "common/gpu/microbenchmarks/requests.h"

namespace fa::microbenchmarks {

namespace {

constexpr int kChainSteps = 64;       // loads or barriers of a round
constexpr uint32_t kNodeBytes = 128;  // of a ring in global memory: one node per line
constexpr int kSharedNodes = 64, kSharedNodeBytes = 132;

// --- chains of loads ----------------------------------------------------------------------------

/// Writes a ring through `n` nodes (a power of two) in the order of a full-period generator.
__global__ void ring_kernel(char* nodes, uint32_t n) {  // [n * kNodeBytes]
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const uint32_t next = (i * 1664525u + 1013904223u) & (n - 1);
    *reinterpret_cast<char**>(nodes + size_t{i} * kNodeBytes) = nodes + size_t{next} * kNodeBytes;
  }
}

struct Ring : Buffer<char> {
  explicit Ring(uint32_t n) : Buffer<char>(size_t{n} * kNodeBytes) {
    launch(ring_kernel, {1024, 256}, data, n);
  }
};

/// Dependent loads of one address by all lanes, after untimed ones of `warm` bytes from `base` on.
template <Space space>
struct Chase {
  const char* base;
  const char* at;
  size_t warm;
  uint32_t shared_at = 0, sum = 0;
  __device__ void begin(char* shared) {
    if constexpr (space == Space::shared) {  // a ring of 32-bit shared addresses
      shared_at = shared_address(shared);
      if (threadIdx.x == 0) {
        for (int i = 0; i < kSharedNodes; ++i) {
          *reinterpret_cast<uint32_t*>(shared + i * kSharedNodeBytes) =
              shared_at + (i + 1) % kSharedNodes * kSharedNodeBytes;
        }
      }
    } else {
      for (size_t i = threadIdx.x * 16; i < warm; i += blockDim.x * 16) {
        sum ^= load<space, 4>(base + i, 0);
      }
    }
  }
  __device__ void round() {
    UNROLL
    for (int k = 0; k < kChainSteps; ++k) {
      if constexpr (space == Space::global_past_l1)
        asm volatile("ld.global.cg.u64 %0, [%0];" : "+l"(at));
      if constexpr (space == Space::shared)
        asm volatile("ld.shared.u32 %0, [%0];" : "+r"(shared_at));
    }
  }
  __device__ uint32_t result() const {
    return sum ^ shared_at ^ static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at));
  }
};

void measure_shared_chain() {
  const Chase<Space::shared> op{nullptr, nullptr, 0};
  report("latency_shared", round_clocks(op, 1, 64, kHotBytes) / kChainSteps, kClocks,
         "of a dependent 4-byte shared load");
}

void measure_l2_chain() {
  const uint32_t nodes = 1u << 15;
  const Ring ring(nodes);
  const Chase<Space::global_past_l1> op{ring.data, ring.data, nodes * kNodeBytes};
  report("latency_l2", round_clocks(op, 1, 128) / kChainSteps, kClocks,
         "of a dependent global load that hits in L2: ld.cg in 4 MB, random 128 B steps");
}

// Each run walks 4096 nodes that no earlier run has touched. Takes the median.
void measure_hbm_chain() {
  const uint32_t nodes = 1u << 23;
  const int runs = 7, rounds = 64;
  const Ring ring(nodes);
  const Buffer<char> flush(512u << 20);  // its memset drives the ring out of the L2
  std::vector<double> clocks;
  for (uint32_t i = 0; i < runs; ++i) {
    const char* start = ring.data + size_t{i * 1234567u % nodes} * kNodeBytes;
    const Chase<Space::global_past_l1> op{ring.data, start, 0};
    clocks.push_back(work_clocks(op, 1, rounds));
  }
  std::sort(clocks.begin(), clocks.end());
  report("latency_hbm", clocks[runs / 2] / (rounds * kChainSteps), kClocks,
         "of a dependent global load from HBM: 1 GB, random 128 B steps, TLB misses included");
}

// --- cp.async and barriers ----------------------------------------------------------------------

/// One 16-byte copy per lane, waited for.
struct CpAsync {
  const char* base;  // [kHotBytes]
  int zero;
  char* to = nullptr;
  __device__ void begin(char* shared) {
    to = shared + threadIdx.x * 16;
    base += threadIdx.x * 16;
  }
  __device__ void round() {
    UNROLL
    for (int u = 0; u < kUnrolled; ++u) {
      cp_async_16(to, base + u * 512);
      cp_async_commit();
      cp_async_wait<0>();
    }
    base += zero;
  }
  __device__ uint32_t result() const { return *reinterpret_cast<volatile uint32_t*>(to); }
};

void measure_cp_async() {
  const Buffer<char> hot(kHotBytes);
  report("latency_cp_async_l2", round_clocks(CpAsync{hot.data, 0}, 1, 64, kHotBytes) / kUnrolled,
         kClocks, "of cp.async 16 B per lane from the L2, with commit and wait");
}

/// Barriers of the whole block with nothing between them.
struct Barriers {
  __device__ void begin(char*) {}
  __device__ void round() {
    UNROLL
    for (int k = 0; k < kChainSteps; ++k) asm volatile("barrier.sync 0;" ::: "memory");
  }
  __device__ uint32_t result() const { return 0; }
};

void measure_barriers() {
  for (int threads : {32, 1024}) {
    const std::string count = std::to_string(threads);
    report("barrier_" + count, round_clocks(Barriers{}, threads / kWarp, 64) / kChainSteps, kClocks,
           "for __syncthreads of a block that has nothing to wait for; threads: " + count);
  }
}

}  // namespace

void measure_latency() {
  measure_shared_chain();
  measure_cp_async();
  measure_l2_chain();
  measure_hbm_chain();
  measure_barriers();
}

}  // namespace fa::microbenchmarks

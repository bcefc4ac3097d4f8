// What the simulator says about mbarriers that are used wrongly. Each kernel has one fault.
#include "common/dialect/ptx/ptx.h"
#include "tests/sim/diagnosis.h"

using sim::test::Buffer;

namespace {

// Two arrivals complete a phase; one thread waits for it.
__global__ void arrivals(float* y, unsigned arrivals) {
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&full, 2);
    fa::mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < arrivals) fa::mbarrier_arrive(&full);
  if (threadIdx.x == 63) {
    fa::mbarrier_wait(&full, 0);  // the line that is named
    y[0] = 1;
  }
}
constexpr int kWaitLine = __LINE__ - 4;

__global__ void too_many_arrivals() {
  __shared__ uint64_t full;
  if (threadIdx.x == 0) fa::mbarrier_init(&full, 2);
  __syncthreads();
  if (threadIdx.x == 0) fa::mbarrier_arrive_expect_tx(&full, 16);  // keeps the phase open
  if (threadIdx.x == 1 || threadIdx.x == 2) fa::mbarrier_arrive(&full);
}

__global__ void nobody_initialised() {
  __shared__ uint64_t full;
  fa::mbarrier_wait(&full, 0);
}

__global__ void initialised_twice() {
  __shared__ uint64_t full;
  fa::mbarrier_init(&full, 1);
  fa::mbarrier_init(&full, 1);
}

__global__ void overwritten() {
  __shared__ uint64_t full;
  fa::mbarrier_init(&full, 2);
  full = 0;
  fa::mbarrier_arrive(&full);
}

// The copy brings half of the bytes that were announced.
__global__ void too_many_bytes(const float* x) {
  __shared__ __align__(16) float tile[32];
  __shared__ uint64_t full;
  fa::mbarrier_init(&full, 1);
  fa::mbarrier_arrive_expect_tx(&full, 128);
  fa::bulk_load(tile, x, 64, &full);
  fa::mbarrier_wait(&full, 0);
}

}  // namespace

TEST_CASE("arrivals and bytes that never come are a deadlock with its line", "[sim][mbarrier]") {
  Buffer<float> x("x", 32);
  FOUND("deadlock in kernel (anonymous namespace)::arrivals ... mbarrier wait mbarrier.cu:" +
            std::to_string(kWaitLine) + " ... linear ids 63",
        arrivals, {1, 64}, x, 1u);
  SILENT(arrivals, {1, 64}, x, 2u);
  CHECK(x.download()[0] == 1);
  FOUND("deadlock", too_many_bytes, {1, 1}, x);
}

TEST_CASE("an mbarrier is initialised, once, left alone, and not arrived at too often",
          "[sim][mbarrier]") {
  FOUND("the mbarrier is not initialised (full", nobody_initialised, {1, 1});
  FOUND("mbarrier.inval must come first", initialised_twice, {1, 1});
  FOUND("something has overwritten the mbarrier", overwritten, {1, 1});
  FOUND("thread (2,0,0) ... one arrival too many", too_many_arrivals, {1, 32});
}

// What the simulator says about mbarriers that are used wrongly. Each kernel has one fault.
#include "common/dialect/ptx/ptx.h"
#include "tests/sim/diagnosis.h"

using sim::test::Buffer;
using sim::test::finding;

namespace {

// Two arrivals complete a phase; one thread arrives, one waits.
template <int arrivals>
__global__ void too_few_arrivals(int* out) {
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&full, 2);
    fa::mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < arrivals) fa::mbarrier_arrive(&full);
  if (threadIdx.x == 63) {
    fa::mbarrier_wait(&full, 0);  // the line that is named
    out[0] = 1;
  }
}
constexpr int kWaitLine = __LINE__ - 4;

__global__ void too_many_arrivals() {
  __shared__ uint64_t full;
  if (threadIdx.x == 0) fa::mbarrier_init(&full, 2);
  __syncthreads();
  if (threadIdx.x == 0) fa::mbarrier_expect_tx(&full, 16);  // keeps the phase open
  if (threadIdx.x < 3) fa::mbarrier_arrive(&full);
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
__global__ void too_many_bytes(const float* in) {
  __shared__ __align__(16) float tile[32];
  __shared__ uint64_t full;
  fa::mbarrier_init(&full, 1);
  fa::mbarrier_arrive_expect_tx(&full, 128);
  fa::bulk_load(tile, in, 64, &full);
  fa::mbarrier_wait(&full, 0);
}

// Thread 32 reads what thread 0 wrote; `wait` orders the two.
template <bool wait>
__global__ void hand_over(int* out) {
  __shared__ int word;
  __shared__ uint64_t full;
  if (threadIdx.x == 0) fa::mbarrier_init(&full, 1);
  __syncthreads();
  if (threadIdx.x == 0) {
    word = 5;
    fa::mbarrier_arrive(&full);
  }
  if (threadIdx.x == 32) {
    if (wait) fa::mbarrier_wait(&full, 0);
    out[0] = word;
  }
}

// Nothing lies between the initialisation and its use by other threads.
template <bool barrier>
__global__ void use_at_once(int* out) {
  __shared__ uint64_t full;
  if (threadIdx.x == 0) fa::mbarrier_init(&full, 1);
  if (barrier) __syncthreads();
  if (threadIdx.x == 1) {
    fa::mbarrier_arrive(&full);
    out[0] = 1;
  }
}

}  // namespace

TEST_CASE("a wait for an arrival that never comes is a deadlock with its line", "[sim][mbarrier]") {
  Buffer<int> out("out", 1);
  const auto text = finding([&] { fa::launch(too_few_arrivals<1>, {1, 64}, out.get()); });
  CHECK_THAT(text, ContainsSubstring("deadlock"));
  CHECK_THAT(text, ContainsSubstring("too_few_arrivals"));
  CHECK_THAT(text, ContainsSubstring("mbarrier wait"));
  CHECK_THAT(text, ContainsSubstring("linear ids 63"));
  CHECK_THAT(text, ContainsSubstring("deadlock_mbarrier.cu:" + std::to_string(kWaitLine)));
  CHECK(finding([&] { fa::launch(too_few_arrivals<2>, {1, 64}, out.get()); }) == "");
  CHECK(out.download()[0] == 1);
}

TEST_CASE("one arrival too many is reported", "[sim][mbarrier]") {
  const auto text = finding([&] { fa::launch(too_many_arrivals, {1, 32}); });
  CHECK_THAT(text, ContainsSubstring("one arrival too many"));
  CHECK_THAT(text, ContainsSubstring("thread (2,0,0)"));
}

TEST_CASE("an mbarrier must be initialised, once, and left alone", "[sim][mbarrier]") {
  const auto none = finding([&] { fa::launch(nobody_initialised, {1, 1}); });
  CHECK_THAT(none, ContainsSubstring("the mbarrier is not initialised (full"));
  const auto twice = finding([&] { fa::launch(initialised_twice, {1, 1}); });
  CHECK_THAT(twice, ContainsSubstring("mbarrier.inval must come first"));
  const auto damage = finding([&] { fa::launch(overwritten, {1, 1}); });
  CHECK_THAT(damage, ContainsSubstring("something has overwritten the mbarrier"));
}

TEST_CASE("announced bytes that do not come are a deadlock", "[sim][mbarrier]") {
  Buffer<float> in("in", 32);
  const auto text = finding([&] { fa::launch(too_many_bytes, {1, 1}, in.get()); });
  CHECK_THAT(text, ContainsSubstring("deadlock"));
}

TEST_CASE("an arrival and a wait order what two threads do", "[sim][mbarrier]") {
  sim::Options options = sim::options();
  options.races = true;
  const sim::test::WithOptions with(options);
  Buffer<int> out("out", 64);
  CHECK(finding([&] { fa::launch(hand_over<true>, {1, 64}, out.get()); }) == "");
  CHECK(out.download()[0] == 5);
  const auto text = finding([&] { fa::launch(hand_over<false>, {1, 64}, out.get()); });
  CHECK_THAT(text, ContainsSubstring("race"));
  CHECK_THAT(text, ContainsSubstring("word"));
  CHECK(finding([&] { fa::launch(use_at_once<true>, {1, 64}, out.get()); }) == "");
  const auto unseen = finding([&] { fa::launch(use_at_once<false>, {1, 64}, out.get()); });
  CHECK_THAT(unseen, ContainsSubstring("race"));
}

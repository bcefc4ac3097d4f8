// Blocks of a cluster are resident together and reach each other's shared memory.
#include "common/dialect/ptx/more/cluster.h"
#include "common/dialect/ptx/more/mbarrier.h"
#include "tests/sim/diagnosis.h"

using sim::test::Buffer;
using sim::test::finding;

namespace {

// Every block writes its number to its own static and dynamic shared memory and reads its
// neighbour's through plain loads.
template <bool kBarrier>
__global__ void exchange(int* out) {
  __shared__ int mine[32];
  int* dynamic = fa::dynamic_shared<int>();
  const unsigned rank = fa::cluster_rank(), size = fa::cluster_size();
  mine[threadIdx.x] = 100 * blockIdx.x + threadIdx.x;
  dynamic[threadIdx.x] = 1000 * blockIdx.x + threadIdx.x;
  if (kBarrier) fa::cluster_sync();  // everybody has written
  const unsigned next = (rank + 1) % size;
  const int* theirs = static_cast<const int*>(sim::map_shared_rank(mine, next));
  const int* their_dynamic = static_cast<const int*>(sim::map_shared_rank(dynamic, next));
  out[2 * (blockIdx.x * 32 + threadIdx.x)] = theirs[threadIdx.x];
  out[2 * (blockIdx.x * 32 + threadIdx.x) + 1] = their_dynamic[threadIdx.x];
  if (kBarrier) fa::cluster_sync();  // nobody leaves while others read
}

// Block 1 waits for block 0 to arrive on its mbarrier; without kArrives it waits for ever.
template <bool kArrives>
__global__ void wait_for_peer(int* out) {
  __shared__ uint64_t full;
  if (threadIdx.x == 0) fa::mbarrier_init(&full, 1);
  fa::cluster_sync();  // the barrier exists in both blocks
  if (fa::cluster_rank() == 0) {
    if (kArrives && threadIdx.x == 0) fa::mbarrier_arrive_remote(&full, 1);
  } else {
    fa::mbarrier_wait(&full, 0);
    out[threadIdx.x] = 1;
  }
  fa::cluster_sync();
}

}  // namespace

TEST_CASE("blocks of a cluster read each other's shared memory", "[sim][cluster]") {
  const unsigned size = GENERATE(2u, 4u);
  const unsigned blocks = 4 * size;
  Buffer<int> out("out", blocks * 64);
  fa::launch(exchange<true>, {dim3(blocks), dim3(32), 128, size}, out);
  const auto got = out.download();
  for (unsigned b = 0; b < blocks; ++b) {
    const int next = b / size * size + (b + 1) % size;
    for (int t = 0; t < 32; ++t) {
      REQUIRE(got[2 * (b * 32 + t)] == 100 * next + t);
      REQUIRE(got[2 * (b * 32 + t) + 1] == 1000 * next + t);
    }
  }
}

TEST_CASE("a block that waits for a peer for ever is a deadlock of the cluster", "[sim][cluster]") {
  Buffer<int> out("out", 32);
  const auto text = finding([&] {
    fa::launch(wait_for_peer<false>, {dim3(2), dim3(32), 0, 2}, out);
  });
  CHECK_THAT(text, ContainsSubstring("deadlock in kernel (anonymous namespace)::wait_for_peer"));
  CHECK_THAT(text, ContainsSubstring("32 threads wait at mbarrier"));
  CHECK_THAT(text, ContainsSubstring("of its cluster"));
  CHECK(finding([&] { fa::launch(wait_for_peer<true>, {dim3(2), dim3(32), 0, 2}, out); }) == "");
  CHECK(out.download() == std::vector<int>(32, 1));
}

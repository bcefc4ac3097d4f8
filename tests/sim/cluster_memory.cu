// The cluster's barrier and other blocks' memory, where they are used unusually or wrongly.
#include "common/dialect/ptx/ptx.h"
#include "tests/sim/diagnosis.h"

using fa::TensorMap;
using sim::test::Buffer;
using sim::test::finding;

namespace {

// Thread 0 of each block waits for the cluster; the others return at once, arrive and return, or
// return after thread 0 has begun to wait.
__global__ void others_return(int* out) {
  if (threadIdx.x == 1) return;
  if (threadIdx.x == 2) {
    fa::cluster_arrive();
    return;
  }
  if (threadIdx.x == 0) fa::cluster_arrive();
  __syncwarp(1u << 0 | 1u << 3);
  if (threadIdx.x == 3) return;  // when thread 0 waits already
  fa::cluster_wait();
  out[blockIdx.x] = 1;
}

__global__ void wait_without_arrive() { fa::cluster_wait(); }

__global__ void arrive_twice() {
  fa::cluster_arrive();
  fa::cluster_arrive();
}

__global__ void beyond_the_cluster(int* out) {
  __shared__ int word;
  out[0] = *fa::map_shared(&word, 2);
}

__global__ void multicast_beyond(const __grid_constant__ TensorMap map) {
  __shared__ __align__(128) float tile[4];
  __shared__ uint64_t full;
  fa::mbarrier_init(&full, 1);
  fa::tma_load_multicast(tile, &map, &full, {0}, uint16_t{5});
}

}  // namespace

TEST_CASE("threads that have returned do not hold up the cluster", "[sim][cluster]") {
  Buffer<int> out("out", 4);
  CHECK(finding([&] { fa::launch(others_return, {4, 4, 0, 2}, out.get()); }) == "");
  CHECK(out.download() == std::vector<int>(4, 1));
}

TEST_CASE("arrivals and waits at the cluster's barrier come in pairs", "[sim][cluster]") {
  const auto wait = finding([&] { fa::launch(wait_without_arrive, {2, 1, 0, 2}); });
  CHECK_THAT(wait, ContainsSubstring("without a barrier.cluster.arrive"));
  const auto twice = finding([&] { fa::launch(arrive_twice, {2, 1, 0, 2}); });
  CHECK_THAT(twice, ContainsSubstring("for the second time"));
}

TEST_CASE("a block outside the cluster is out of reach", "[sim][cluster]") {
  Buffer<int> out("out", 1);
  Buffer<float> in("in", 4);
  const auto map = finding([&] { fa::launch(beyond_the_cluster, {2, 1, 0, 2}, out.get()); });
  CHECK_THAT(map, ContainsSubstring("block 2 of a cluster of 2"));
  const TensorMap tensor = fa::tensor_map(in.get(), {{4, 1, 4}}, fa::Swizzle::none);
  const auto multicast = finding([&] { fa::launch(multicast_beyond, {2, 1, 0, 2}, tensor); });
  CHECK_THAT(multicast, ContainsSubstring("to a block outside the cluster of 2"));
}

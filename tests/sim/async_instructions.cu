// Asynchronous instructions: a missing wait gives a wrong answer, bytes are counted exactly, and
// operands that the hardware would refuse are findings.
#include <numeric>

#include "common/dialect/ptx/ptx.h"
#include "tests/sim/diagnosis.h"

using fa::Swizzle;
using fa::TensorMap;
using sim::test::Buffer;
using sim::test::finding;

namespace {

std::vector<float> iota(size_t n) {
  std::vector<float> v(n);
  std::iota(v.begin(), v.end(), 1.f);
  return v;
}

// --- waits ---------------------------------------------------------------------------------------

template <bool wait>
__global__ void copy_async(const float* in, float* out) {
  __shared__ __align__(16) float tile[4];
  for (int i = 0; i < 4; ++i) tile[i] = -1;
  fa::cp_async_16(tile, in);
  fa::cp_async_commit();
  if (wait) fa::cp_async_wait<0>();
  for (int i = 0; i < 4; ++i) out[i] = tile[i];
}

template <bool wait>
__global__ void load_box(const __grid_constant__ TensorMap map, float* out) {
  __shared__ __align__(128) float tile[20];
  __shared__ uint64_t full;
  for (int i = 0; i < 16; ++i) tile[i] = -1;
  fa::mbarrier_init(&full, 1);
  fa::mbarrier_arrive_expect_tx(&full, 16 * sizeof(float));
  fa::tma_load(tile, &map, &full, {0, 0});
  if (wait) fa::mbarrier_wait(&full, 0);
  for (int i = 0; i < 16; ++i) out[i] = tile[i];
}

// The tile is used again, for the second box, with or without a wait for the first.
template <bool wait>
__global__ void store_boxes(const __grid_constant__ TensorMap map) {
  __shared__ __align__(128) float tile[16];
  for (int box = 0; box < 2; ++box) {
    for (int i = 0; i < 16; ++i) tile[i] = 100.f * box + i;
    fa::fence_proxy_async();
    fa::tma_store(&map, tile, {0, 4 * box});
    fa::tma_store_commit();
    if (wait) fa::tma_store_wait_read<0>();
  }
}

enum class Fault { none, read_early, overwrite_early, no_fence, different };

// D = A B with A = B = ones[64][16], so each element is 16.
template <Fault fault>
__global__ void product(float* out) {
  __shared__ __align__(1024) __nv_bfloat16 tile[64 * 16];
  const int t = threadIdx.x;
  for (int i = t; i < 64 * 16; i += 128) tile[i] = 1.f;
  fa::fence_proxy_async();
  __syncthreads();
  float d[32] = {};
  const uint64_t a = fa::wgmma_descriptor(tile, Swizzle::none, 64 * 16, 128);
  if (fault != Fault::no_fence) fa::wgmma_fence();
  fa::wgmma(d, a, fault == Fault::different && t == 77 ? a + 8 : a);
  fa::wgmma_commit();
  if (fault == Fault::read_early) out[t] = d[0];
  if (fault == Fault::overwrite_early) {
    for (int i = t; i < 64 * 16; i += 128) tile[i] = 2.f;
    __syncthreads();
  }
  fa::wgmma_wait<0>();
  if (fault != Fault::read_early) out[t] = d[0];
}

}  // namespace

TEST_CASE("without its wait cp.async has not copied", "[sim][async]") {
  Buffer<float> in("in", 4), out("out", 4);
  in.upload(iota(4));
  fa::launch(copy_async<true>, {1, 1}, in.get(), out.get());
  CHECK(out.download() == iota(4));
  fa::launch(copy_async<false>, {1, 1}, in.get(), out.get());
  CHECK(out.download() == std::vector<float>(4, -1));
}

TEST_CASE("without its wait TMA has not loaded", "[sim][async]") {
  Buffer<float> in("in", 16), out("out", 16);
  in.upload(iota(16));
  const TensorMap map = fa::tensor_map(in.get(), {{4, 1, 4}, {4, 4, 4}}, Swizzle::none);
  fa::launch(load_box<true>, {1, 1}, map, out.get());
  CHECK(out.download() == iota(16));
  fa::launch(load_box<false>, {1, 1}, map, out.get());
  CHECK(out.download() == std::vector<float>(16, -1));
}

TEST_CASE("a tile that is overwritten before a TMA store has read it is stored wrongly",
          "[sim][async]") {
  Buffer<float> out("out", 32);
  const TensorMap map = fa::tensor_map(out.get(), {{4, 1, 4}, {8, 4, 4}}, Swizzle::none);
  fa::launch(store_boxes<true>, {1, 1}, map);
  const auto right = out.download();
  CHECK(right[3] == 3);
  CHECK(right[16 + 3] == 103);
  fa::launch(store_boxes<false>, {1, 1}, map);
  CHECK(out.download()[3] == 103);
}

TEST_CASE("wgmma: early reads and early writes come out wrong, misuse is found", "[sim][async]") {
  Buffer<float> out("out", 128);
  fa::launch(product<Fault::none>, {1, 128}, out.get());
  CHECK(out.download() == std::vector<float>(128, 16));
  fa::launch(product<Fault::read_early>, {1, 128}, out.get());
  CHECK(out.download() == std::vector<float>(128, 0));
  fa::launch(product<Fault::overwrite_early>, {1, 128}, out.get());
  CHECK(out.download() == std::vector<float>(128, 64));
  const auto fence = finding([&] { fa::launch(product<Fault::no_fence>, {1, 128}, out.get()); });
  CHECK_THAT(fence, ContainsSubstring("has no wgmma.fence before it"));
  const auto other = finding([&] { fa::launch(product<Fault::different>, {1, 128}, out.get()); });
  CHECK_THAT(other, ContainsSubstring("differs from the one that other threads of the warpgroup"));
  CHECK_THAT(other, ContainsSubstring("thread (77,0,0)"));
}

namespace {

// --- bytes ---------------------------------------------------------------------------------------

template <bool wait>
__global__ void zero_filled(const float* in) {
  __shared__ __align__(16) float tile[32][4];
  fa::cp_async_16(tile[threadIdx.x], in + threadIdx.x * 4, threadIdx.x % 17);
  if (wait) fa::cp_async_wait_all();
}

__global__ void multicast(const __grid_constant__ TensorMap map) {
  __shared__ __align__(128) float tile[16];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) fa::mbarrier_init(&full, 1);
  fa::cluster_sync();
  if (threadIdx.x == 0) {
    fa::mbarrier_arrive_expect_tx(&full, sizeof tile);
    if (fa::cluster_rank() == 0) fa::tma_load_multicast(tile, &map, &full, {0, 0}, uint16_t{3});
  }
  fa::mbarrier_wait_cluster(&full, 0);
  fa::cluster_sync();
}

template <class F>
fa::Counts counted(F&& run) {
  sim::Recording recording;
  run();
  return recording.finish();
}

}  // namespace

TEST_CASE("a zero-filled part is not read", "[sim][async]") {
  Buffer<float> in("in", 128);
  const auto counts = counted([&] { fa::launch(zero_filled<true>, {1, 32}, in.get()); });
  uint64_t want = 0;
  for (int t = 0; t < 32; ++t) want += t % 17;
  CHECK(counts.buffers.at("in").bytes == fa::Bytes{want, 0, 0});
  CHECK(counts.kernels.at(0).shared_write == 32 * 16);
}

TEST_CASE("a copy that nobody waits for still happens", "[sim][async]") {
  Buffer<float> in("in", 128);
  const auto counts = counted([&] { fa::launch(zero_filled<false>, {1, 32}, in.get()); });
  CHECK(counts.kernels.at(0).shared_write == 32 * 16);
}

TEST_CASE("a TMA box counts its bytes inside the tensor, once for all who receive it",
          "[sim][async]") {
  Buffer<float> in("in", 16);
  // A box of 4 x 4 at the corner of a tensor of 3 rows.
  const TensorMap map = fa::tensor_map(in.get(), {{4, 1, 4}, {3, 4, 4}}, Swizzle::none);
  const auto counts = counted([&] { fa::launch(multicast, {2, 32, 0, 2}, map); });
  CHECK(counts.buffers.at("in").bytes == fa::Bytes{48, 0, 0});
}

TEST_CASE("a TMA store writes what is inside the tensor", "[sim][async]") {
  Buffer<float> out("out", 32);
  const TensorMap map = fa::tensor_map(out.get(), {{4, 1, 4}, {6, 4, 4}}, Swizzle::none);
  const auto counts = counted([&] { fa::launch(store_boxes<true>, {1, 1}, map); });
  CHECK(counts.buffers.at("out").bytes == fa::Bytes{0, 6 * 16, 0});
}

namespace {

// --- operands that the hardware refuses ----------------------------------------------------------

__global__ void misplaced_box(const __grid_constant__ TensorMap map) {
  __shared__ __align__(128) float tile[64];
  __shared__ uint64_t full;
  fa::mbarrier_init(&full, 1);
  fa::tma_load(tile + 4, &map, &full, {0, 0});
}

template <int y>
__global__ void store_at(const __grid_constant__ TensorMap map) {
  float* tile = fa::dynamic_shared<float>();
  for (int i = 0; i < 16; ++i) tile[i] = 1;
  fa::fence_proxy_async();
  fa::tma_store(&map, tile, {0, y});
  fa::tma_store_commit();
  fa::tma_store_wait<0>();
}
template <int x>
__global__ void inner_coordinate(const __grid_constant__ TensorMap map) {
  float* tile = fa::dynamic_shared<float>();
  __shared__ uint64_t full;
  fa::mbarrier_init(&full, 1);
  fa::mbarrier_arrive_expect_tx(&full, 64);
  fa::tma_load(tile, &map, &full, {x, 0});
  fa::mbarrier_wait(&full, 0);
}
__global__ void wrong_rank(const __grid_constant__ TensorMap map) {
  __shared__ __align__(128) float tile[64];
  __shared__ uint64_t full;
  fa::mbarrier_init(&full, 1);
  fa::tma_load(tile, &map, &full, {0, 0, 0});
}

__global__ void misaligned_copy(const float* in) {
  __shared__ __align__(16) float tile[8];
  fa::cp_async_16(tile, in + 1);
}

__global__ void copy_past_the_end(const float* in) {
  __shared__ __align__(16) float tile[8];
  fa::cp_async_16(tile, in + 16);
}

__global__ void matrix_in_registers() {
  float row[8] = {};
  uint32_t r[4];
  fa::ldmatrix_x4(r, row);
}

__global__ void shuffle_from_nobody(int* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xffff, 1, 20);
}

__global__ void add_past_the_end(int* out) {
  atomicAdd(out + 16, 1);  // the line that is named
}
constexpr int kAddLine = __LINE__ - 2;

}  // namespace

TEST_CASE("operands that the hardware refuses are findings", "[sim][async]") {
  Buffer<float> in("in", 16);
  Buffer<int> out("out", 16);
  const TensorMap map = fa::tensor_map(in.get(), {{4, 1, 4}, {4, 4, 4}}, Swizzle::none);
  const TensorMap beyond = fa::tensor_map(in.get(), {{4, 1, 4}, {5, 4, 5}}, Swizzle::none);
  const auto says = [](auto&& run, const std::string& what) {
    CHECK_THAT(finding(run), ContainsSubstring(what));
  };
  says([&] { fa::launch(misplaced_box, {1, 1}, map); }, "not aligned to 128 bytes");
  says([&] { fa::launch(wrong_rank, {1, 1}, map); }, "with 3 coordinates");
  says([&] { fa::launch(inner_coordinate<-3>, {1, 1, 64}, map); }, "not a multiple of 16");
  says([&] { fa::launch(store_at<-1>, {1, 1, 64}, map); }, "with a negative coordinate");
  CHECK(finding([&] { fa::launch(store_at<1>, {1, 1, 64}, map); }) == "");
  CHECK(finding([&] { fa::launch(inner_coordinate<-4>, {1, 1, 64}, map); }) == "");
  says([&] { fa::launch(load_box<true>, {1, 1}, beyond, in.get()); }, "buffer in");
  says([&] { fa::launch(misaligned_copy, {1, 1}, in.get()); }, "not aligned to 16 bytes");
  says([&] { fa::launch(copy_past_the_end, {1, 1}, in.get()); }, "buffer in");
  says([&] { fa::launch(matrix_in_registers, {1, 32}); }, "not in the block's shared memory");
  says(
      [&] {
        fa::launch(shuffle_from_nobody, {1, 32}, out.get());
      },
      "reads from lane 20, which does not take part");
  const auto atomic = finding([&] { fa::launch(add_past_the_end, {1, 1}, out.get()); });
  CHECK_THAT(atomic, ContainsSubstring("buffer out"));
  CHECK_THAT(atomic, ContainsSubstring("async_instructions.cu:" + std::to_string(kAddLine)));
}

namespace {

template <int producer, int consumer>
__global__ void reallocate() {
  if (threadIdx.x < 128) {
    fa::setmaxnreg_dec<producer>();
  } else {
    fa::setmaxnreg_inc<consumer>();
  }
}

// As above, but the last warpgroup gives registers away.
template <int producer, int consumer>
__global__ void reallocate_last() {
  if (threadIdx.x >= 256) {
    fa::setmaxnreg_dec<producer>();
  } else {
    fa::setmaxnreg_inc<consumer>();
  }
}

}  // namespace

// 65536 registers are 168 for each of 384 threads, and 128 for each of 512.
TEST_CASE("setmaxnreg for more registers than there are is found", "[sim][async]") {
  const auto of = [](auto kernel, unsigned threads) {
    return finding([&] { fa::launch(kernel, {1, threads}); });
  };
  CHECK(of(reallocate<24, 240>, 384) == "");
  CHECK(of(reallocate<32, 160>, 512) == "");
  const auto text = of(reallocate<32, 240>, 384);
  CAPTURE(text);
  CHECK_THAT(text, ContainsSubstring("setmaxnreg at async_instructions.cu:"));
  CHECK_THAT(text, ContainsSubstring("would wait for ever: the warpgroups ask for 32 + 240 + 240"));
  CHECK_THAT(text, ContainsSubstring("65536 in all, but a launch of 384 threads has at most 168"));
  CHECK_THAT(of(reallocate<32, 168>, 512), ContainsSubstring("would wait for ever"));
  // It is who asks for more that waits, not who asks last.
  CHECK(of(reallocate_last<24, 240>, 384) == "");
  CHECK_THAT(of(reallocate_last<32, 240>, 384), ContainsSubstring("thread (0,0,0): setmaxnreg"));
}

// Asynchronous instructions: a missing wait gives a wrong result, bytes are counted exactly;
// operands that the hardware refuses, and wrong uses of mbarriers, are findings.
#include <numeric>

#include "common/dialect/ptx/ptx.h"
#include "tests/sim/diagnosis.h"

using fa::Swizzle;
using fa::TensorMap;
using sim::test::Buffer;
using sim::test::counted;

namespace {

std::vector<float> iota(size_t n) {
  std::vector<float> v(n);
  std::iota(v.begin(), v.end(), 1.f);
  return v;
}

// --- waits ---------------------------------------------------------------------------------------

__global__ void copy_async(const float* in, float* out, bool wait) {
  __shared__ __align__(16) float tile[4];
  for (int i = 0; i < 4; ++i) tile[i] = -1;
  fa::cp_async_16(tile, in);
  fa::cp_async_commit();
  if (wait) fa::cp_async_wait<0>();
  for (int i = 0; i < 4; ++i) out[i] = tile[i];
}
__global__ void load_box(const __grid_constant__ TensorMap map, float* out, bool wait) {
  __shared__ __align__(128) float tile[20];
  __shared__ uint64_t full;
  for (int i = 0; i < 16; ++i) tile[i] = -1;
  fa::mbarrier_init(&full, 1);
  fa::mbarrier_arrive_expect_tx(&full, 16 * sizeof(float));
  fa::tma_load(tile, &map, &full, {0, 0});
  if (wait) fa::mbarrier_wait(&full, 0);
  for (int i = 0; i < 16; ++i) out[i] = tile[i];
}
// The tile is reused for the second box, with or without a wait for the first.
__global__ void store_boxes(const __grid_constant__ TensorMap map, bool wait) {
  __shared__ __align__(128) float tile[16];
  for (int box = 0; box < 2; ++box) {
    for (int i = 0; i < 16; ++i) tile[i] = 100.f * box + i;
    fa::fence_proxy_async();
    fa::tma_store(&map, tile, {0, 4 * box});
    fa::tma_store_commit();
    if (wait) fa::tma_store_wait_read<0>();
  }
}

enum class Fault { none, read_early, overwrite_early };

// D = A B with A = B = ones[64][16], so each element is 16.
__global__ void product(float* out, Fault fault) {
  __shared__ __align__(1024) __nv_bfloat16 tile[64 * 16];
  const int t = threadIdx.x;
  for (int i = t; i < 64 * 16; i += 128) tile[i] = 1.f;
  fa::fence_proxy_async();
  __syncthreads();
  float d[32] = {};
  const uint64_t a = fa::wgmma_descriptor(tile, Swizzle::none, 64 * 16, 128);
  fa::wgmma_fence();
  fa::wgmma(d, a, a);
  fa::wgmma_commit();
  if (fault == Fault::read_early) out[t] = d[0];
  if (fault == Fault::overwrite_early) {
    for (int i = t; i < 64 * 16; i += 128) tile[i] = 2.f;
    __syncthreads();
  }
  fa::wgmma_wait<0>();
  if (fault != Fault::read_early) out[t] = d[0];
}

// Two matrices are stored directly or transposed: lane l has elements 2 l and 2 l + 1 of each.
__global__ void store_matrices(uint16_t* out, bool trans) {
  __shared__ __align__(16) uint16_t rows[16][8];
  const unsigned lane = threadIdx.x;
  uint32_t r[2];
  for (unsigned m = 0; m < 2; ++m) r[m] = (64 * m + 2 * lane) | (64 * m + 2 * lane + 1) << 16;
  sim::stmatrix(r, rows[lane % 16], sim::Where::here(), 2, trans);
  __syncwarp();
  for (int i = 0; i < 4; ++i) out[lane * 4 + i] = rows[lane / 2][lane % 2 * 4 + i];
}

// --- bytes ---------------------------------------------------------------------------------------

__global__ void zero_filled(const float* in, bool wait) {
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

// --- wrong uses of mbarriers ---------------------------------------------------------------------

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
    fa::mbarrier_wait(&full, 0);  // the reported line
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

__global__ void uninitialised() {
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

__global__ void other_bytes(const float* x, int expected, int copied) {
  __shared__ __align__(16) float tile[32];
  __shared__ uint64_t full;
  fa::mbarrier_init(&full, 1);
  fa::mbarrier_arrive_expect_tx(&full, expected);
  fa::bulk_load(tile, x, copied, &full);
  fa::mbarrier_wait(&full, 0);
}

// --- operands that the hardware refuses ----------------------------------------------------------

__global__ void load_box_at(const __grid_constant__ TensorMap map, int x) {
  __shared__ __align__(128) float tile[64];
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
__global__ void store_box_at(const __grid_constant__ TensorMap map, int y, int written) {
  __shared__ __align__(128) float tile[16];
  for (int i = 0; i < written; ++i) tile[i] = 1;
  fa::fence_proxy_async();
  fa::tma_store(&map, tile, {0, y});
  fa::tma_store_commit();
  fa::tma_store_wait<0>();
}
__global__ void copy_from(const float* in) {
  __shared__ __align__(16) float tile[8];
  fa::cp_async_16(tile, in);
}
__global__ void matrix_in_registers() {
  float row[8] = {};
  uint32_t r[4];
  fa::ldmatrix_x4(r, row);
}
__global__ void shuffle_from_nobody(float* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xffff, 1.f, 20);
}
__global__ void add_past_the_end(float* out) {
  atomicAdd(out + 16, 1.f);  // the reported line
}
constexpr int kAddLine = __LINE__ - 2;

// Warpgroup `producer` releases registers, the others take some.
template <int less, int more>
__global__ void reallocate(unsigned producer) {
  if (threadIdx.x / 128 == producer) {
    fa::setmaxnreg_dec<less>();
  } else {
    fa::setmaxnreg_inc<more>();
  }
}

}  // namespace

TEST_CASE("without its wait an asynchronous copy has not copied", "[sim][async]") {
  Buffer<float> in("in", iota(16)), four("four", 4), out("out", 32);
  fa::launch(copy_async, {1, 1}, in, four, true);
  CHECK(four.download() == iota(4));
  fa::launch(copy_async, {1, 1}, in, four, false);
  CHECK(four.download() == std::vector<float>(4, -1));

  const TensorMap map = fa::tensor_map(in.get(), {{4, 1, 4}, {4, 4, 4}}, Swizzle::none);
  Buffer<float> box("box", 16);
  fa::launch(load_box, {1, 1}, map, box, true);
  CHECK(box.download() == iota(16));
  fa::launch(load_box, {1, 1}, map, box, false);
  CHECK(box.download() == std::vector<float>(16, -1));

  const TensorMap to = fa::tensor_map(out.get(), {{4, 1, 4}, {8, 4, 4}}, Swizzle::none);
  fa::launch(store_boxes, {1, 1}, to, true);
  CHECK(out.download()[3] == 3);
  CHECK(out.download()[16 + 3] == 103);
  fa::launch(store_boxes, {1, 1}, to, false);
  CHECK(out.download()[3] == 103);  // overwritten before it was read
}

TEST_CASE("wgmma: early reads and early writes come out wrong", "[sim][async]") {
  Buffer<float> out("out", 128);
  for (const auto& [fault, value] :
       {std::pair(Fault::none, 16.f), {Fault::read_early, 0.f}, {Fault::overwrite_early, 64.f}}) {
    fa::launch(product, {1, 128}, out, fault);
    CHECK(out.download() == std::vector<float>(128, value));
  }
}

TEST_CASE("stmatrix stores matrices as they are, or transposed", "[sim]") {
  Buffer<uint16_t> out("out", 128);
  for (const bool trans : {false, true}) {
    CAPTURE(trans);
    SILENT(store_matrices, {1, 32}, out, trans);
    const auto got = out.download();
    for (int i = 0; i < 128; ++i) {
      const int m = i / 64, r = i % 64 / 8, c = i % 8;
      CHECK(got[i] == 64 * m + (trans ? 8 * c + r : 8 * r + c));
    }
  }
}

TEST_CASE("asynchronous copies count the bytes that are there, once for all who receive them",
          "[sim][async]") {
  Buffer<float> in("in", 128), out("out", 32);
  const auto zeros = counted(zero_filled, {1, 32}, in, true);
  uint64_t want = 0;
  for (int t = 0; t < 32; ++t) want += t % 17;
  CHECK(zeros.buffers.at("in").bytes == fa::Bytes{want, 0, 0});
  CHECK(zeros.kernels.at(0).shared_write == 32 * 16);
  // A copy without a wait still happens.
  CHECK(counted(zero_filled, {1, 32}, in, false).kernels.at(0).shared_write == 32 * 16);
  // Boxes of 4 x 4 at the ends of tensors of 3 and of 6 rows.
  const TensorMap three = fa::tensor_map(in.get(), {{4, 1, 4}, {3, 4, 4}}, Swizzle::none);
  CHECK(counted(multicast, {2, 32, 0, 2}, three).buffers.at("in").bytes == fa::Bytes{48, 0, 0});
  // Boxes of 8 x 2 that begin to the left of 6 columns, inside, and so that they end to the right.
  const TensorMap wide = fa::tensor_map(in.get(), {{6, 1, 8}, {4, 8, 2}}, Swizzle::none);
  for (const auto& [x, columns] : {std::pair(-8, 0), {-4, 4}, {0, 6}, {4, 2}, {8, 0}}) {
    CAPTURE(x);
    const uint64_t bytes = 2 * columns * sizeof(float);
    CHECK(counted(load_box_at, {1, 1}, wide, x).requested == fa::Bytes{bytes, 0, 0});
  }
  const TensorMap six = fa::tensor_map(out.get(), {{4, 1, 4}, {6, 4, 4}}, Swizzle::none);
  CHECK(counted(store_boxes, {1, 1}, six, true).buffers.at("out").bytes == fa::Bytes{0, 96, 0});
}

TEST_CASE("arrivals and bytes that never come are a deadlock with its line", "[sim][mbarrier]") {
  Buffer<float> x("x", 32);
  FOUND(
      "deadlock in kernel (anonymous namespace)::arrivals ... mbarrier wait "
      "async_instructions.cu:" +
          std::to_string(kWaitLine) + " ... linear ids 63",
      arrivals, {1, 64}, x, 1u);
  SILENT(arrivals, {1, 64}, x, 2u);
  CHECK(x.download()[0] == 1);
  FOUND("deadlock", other_bytes, {1, 1}, x, 128, 64);
  FOUND("deadlock", other_bytes, {1, 1}, x, 64, 128);
  SILENT(other_bytes, {1, 1}, x, 64, 64);
}

TEST_CASE("an mbarrier is initialised, once, left alone, and not arrived at too often",
          "[sim][mbarrier]") {
  FOUND("the mbarrier is not initialised (full", uninitialised, {1, 1});
  FOUND("mbarrier.inval must come first", initialised_twice, {1, 1});
  FOUND("something has overwritten the mbarrier", overwritten, {1, 1});
  FOUND("thread (2,0,0) ... one arrival too many", too_many_arrivals, {1, 32});
}

TEST_CASE("operands that the hardware refuses are findings", "[sim][async]") {
  Buffer<float> in("in", 16), out("out", 16);
  const TensorMap map = fa::tensor_map(in.get(), {{4, 1, 4}, {4, 4, 4}}, Swizzle::none);
  const TensorMap beyond = fa::tensor_map(in.get(), {{4, 1, 4}, {5, 4, 5}}, Swizzle::none);
  FOUND("with 3 coordinates", wrong_rank, {1, 1}, map);
  FOUND("not a multiple of 16", load_box_at, {1, 1}, map, -3);
  SILENT(load_box_at, {1, 1}, map, -4);
  FOUND("with a negative coordinate", store_box_at, {1, 1}, map, -1, 16);
  {
    sim::test::WithOptions with({.analyse = true});
    SILENT(store_box_at, {1, 1}, map, 1, 16);
    FOUND("TMA store that reads tile, byte 60 ... which this block has not written yet",
          store_box_at, {1, 1}, map, 1, 15);
  }
  FOUND("buffer in", load_box, {1, 1}, beyond, in, true);
  FOUND("buffer in", copy_from, {1, 1}, in + 16);
  FOUND("not in the block's shared memory", matrix_in_registers, {1, 32});
  FOUND("reads from lane 20, which does not take part", shuffle_from_nobody, {1, 32}, out);
  FOUND("async_instructions.cu:" + std::to_string(kAddLine) + " ... buffer out", add_past_the_end,
        {1, 1}, out);
}

// 65536 registers are 168 for each of 384 threads, and 128 for each of 512.
TEST_CASE("setmaxnreg for more registers than there are is found", "[sim][async]") {
  SILENT((reallocate<24, 240>), {1, 384}, 0u);
  SILENT((reallocate<32, 160>), {1, 512}, 0u);
  FOUND(
      "setmaxnreg at async_instructions.cu: ... would wait for ever: the warpgroups ask for 32 + "
      "240 + 240 registers a thread, 65536 in all, but a launch of 384 threads has at most 168 for "
      "each, 64512 in all",
      (reallocate<32, 240>), {1, 384}, 0u);
  FOUND("would wait for ever", (reallocate<32, 168>), {1, 512}, 0u);
  // A warpgroup that requests more waits, not the last one to request.
  SILENT((reallocate<24, 240>), {1, 384}, 2u);
  FOUND("thread (0,0,0): setmaxnreg", (reallocate<32, 240>), {1, 384}, 2u);
}

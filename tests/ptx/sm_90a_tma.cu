// TMA: boxes, edges, swizzles, stores, multicast, plain bulk copies.
#include "tests/device.h"
#include "tests/test.h"

namespace {

using fa::Swizzle;
using fa::TensorMap;
using test::Buffer;

constexpr int kCols = 8, kRows = 16;  // of the boxes of floats

// The place of element (row, column) in a dense, swizzled box of T with `width` elements per row.
template <class T>
__host__ __device__ int box_index(int row, int col, int width, Swizzle swizzle) {
  return static_cast<int>(fa::swizzled((uint64_t(row) * width + col) * sizeof(T), swizzle) /
                          sizeof(T));
}

template <class T, int width, Swizzle swizzle>
__global__ void load_kernel(const __grid_constant__ TensorMap map, int x, int y, T* out) {
  T* tile = fa::dynamic_shared<T>();
  __shared__ uint64_t full;
  test::load_and_wait(&full, kRows * width * sizeof(T), [&] {
    fa::tma_load(tile, &map, &full, {x, y});
  });
  for (int i = threadIdx.x; i < kRows * width; i += blockDim.x) {
    out[i] = tile[box_index<T>(i / width, i % width, width, swizzle)];
  }
}

template <class T, int width, Swizzle swizzle>
void check_load(int rows, int cols, int x, int y) {
  CAPTURE(width, static_cast<int>(swizzle), rows, cols, x, y);
  const auto values = test::small_integers<T>(size_t(rows) * cols, 3);
  const Buffer<T> in("in", values);
  const TensorMap map = fa::tensor_map(
      in.get(), {{uint64_t(cols), 1, width}, {uint64_t(rows), uint64_t(cols), kRows}}, swizzle);
  const auto got = test::results<T>(kRows * width, load_kernel<T, width, swizzle>,
                                    {1, 64, kRows * width * sizeof(T)}, map, x, y);
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < width; ++c) {
      const bool inside = y + r >= 0 && y + r < rows && x + c >= 0 && x + c < cols;
      const float want = inside ? static_cast<float>(values[(y + r) * cols + x + c]) : 0.f;
      CHECK(static_cast<float>(got[r * width + c]) == want);
    }
  }
}

}  // namespace

TEST_CASE("TMA loads a box, zeros outside the tensor", "[ptx][tma]") {
  check_load<float, kCols, Swizzle::none>(40, 24, 8, 16);   // inside
  check_load<float, kCols, Swizzle::none>(21, 12, 8, 16);   // ragged right and below
  check_load<float, kCols, Swizzle::none>(40, 24, -4, -5);  // ragged left and above
  check_load<float, kCols, Swizzle::none>(8, 4, -4, 3);     // a tensor smaller than the box
  check_load<float, kCols, Swizzle::none>(8, 4, 64, 3);     // wholly outside
}

TEST_CASE("TMA permutes 16-byte chunks by the map's swizzle", "[ptx][tma]") {
  check_load<__nv_bfloat16, 16, Swizzle::b32>(40, 24, 8, 16);
  check_load<__nv_bfloat16, 32, Swizzle::b64>(40, 40, 8, 16);
  check_load<__nv_bfloat16, 64, Swizzle::b128>(40, 72, 8, 30);
  check_load<float, 32, Swizzle::b128>(20, 36, 8, 10);
  check_load<uint8_t, 64, Swizzle::b64>(20, 80, 32, 10);
}

namespace {

// The box at 8, 2, 8, 2, 8 is copied to the box at 0 of another tensor.
template <int rank, bool multicast>
__global__ void copy_box_kernel(const __grid_constant__ TensorMap from,
                                const __grid_constant__ TensorMap to, int elements) {
  float* tile = fa::dynamic_shared<float>();
  __shared__ uint64_t full;
  if (threadIdx.x != 0) return;
  fa::mbarrier_init(&full, 1);
  fa::mbarrier_init_fence();
  fa::mbarrier_arrive_expect_tx(&full, elements * int(sizeof(float)));
  int at[rank], zero[rank] = {};
  UNROLL
  for (int i = 0; i < rank; ++i) at[i] = i % 2 ? 2 : 8;
  if constexpr (multicast) {
    fa::tma_load_multicast(tile, &from, &full, at, uint16_t{1});  // to this block only
  } else {
    fa::tma_load(tile, &from, &full, at);
  }
  fa::mbarrier_wait(&full, 0);
  fa::tma_store(&to, tile, zero);
  fa::tma_store_commit();
  fa::tma_store_wait<0>();
}

// Sizes 12, 3, 12, 3, 12 and boxes 8, 2, 8, 2, 8: half of the loaded box is outside, and zero.
template <int rank, bool multicast>
void check_rank() {
  CAPTURE(rank, multicast);
  std::vector<uint64_t> size, stride;
  size_t elements = 1, box_elements = 1;
  for (int i = 0; i < rank; ++i) {
    size.push_back(i % 2 ? 3 : 12);
    stride.push_back(elements);
    elements *= size[i];
    box_elements *= i % 2 ? 2 : 8;
  }
  const auto values = test::iota<float>(elements),
             before = test::small_integers<float>(elements, 8);
  const Buffer<float> in("in", values), out("out", before);
  const auto map = [&](float* p) {
    const auto dim = [&](int i) { return fa::TensorDim{size[i], stride[i], i % 2 ? 2u : 8u}; };
    return [&]<size_t... i>(std::index_sequence<i...>) {
      return fa::tensor_map(p, {dim(i)...}, Swizzle::none);
    }
    (std::make_index_sequence<rank>());
  };
  fa::launch(copy_box_kernel<rank, multicast>, {1, 32, box_elements * sizeof(float)}, map(in),
             map(out), int(box_elements));
  const auto want = test::each<float>(elements, [&](int e) {
    bool in_box = true, inside = true;
    size_t from = e;
    for (int i = 0; i < rank; ++i) {
      const uint64_t box = i % 2 ? 2 : 8, x = e / stride[i] % size[i];
      in_box &= x < box;
      inside &= x + box < size[i];
      from += box * stride[i];
    }
    return !in_box ? before[e] : inside ? values[from] : 0;
  });
  CHECK((out.download() == want));
}

}  // namespace

TEST_CASE("TMA works in every rank", "[ptx][tma]") {
  check_rank<1, false>();
  check_rank<2, false>();
  check_rank<3, false>();
  check_rank<4, false>();
  check_rank<5, false>();
  check_rank<1, true>();
  check_rank<2, true>();
  check_rank<3, true>();
  check_rank<4, true>();
  check_rank<5, true>();
}

namespace {

// Thread 0 stores the box that all threads wrote; a second box uses the same tile.
template <Swizzle swizzle>
__global__ void store_kernel(const __grid_constant__ TensorMap map, int x, int y) {
  float* tile = fa::dynamic_shared<float>();
  for (int round = 0; round < 2; ++round) {
    for (int i = threadIdx.x; i < kRows * kCols; i += blockDim.x) {
      tile[box_index<float>(i / kCols, i % kCols, kCols, swizzle)] = 1000.f * (round + 1) + i;
    }
    fa::fence_proxy_async();
    __syncthreads();
    if (threadIdx.x == 0) {
      fa::tma_store(&map, tile, {x + round * kCols, y});
      fa::tma_store_commit();
      fa::tma_store_wait_read<0>();
    }
    __syncthreads();  // the tile may be overwritten
  }
  if (threadIdx.x == 0) fa::tma_store_wait<0>();
}

template <Swizzle swizzle>
void check_store() {
  CAPTURE(static_cast<int>(swizzle));
  constexpr int kHeight = 20, kWidth = 24;
  const auto before = test::small_integers<float>(kHeight * kWidth, 9);
  const Buffer<float> out("out", before);
  const TensorMap map =
      fa::tensor_map(out.get(), {{kWidth, 1, kCols}, {kHeight, kWidth, kRows}}, swizzle);
  const int x = 12, y = 8;  // rows 20.. and, in the second round, columns 24.. are outside
  fa::launch(store_kernel<swizzle>, {1, 64, kRows * kCols * sizeof(float)}, map, x, y);
  CHECK(out.download() == test::each<float>(kHeight * kWidth, [&](int i) {
          float want = before[i];
          for (int round = 0; round < 2; ++round) {
            const int bx = i % kWidth - x - round * kCols, by = i / kWidth - y;
            if (bx < 0 || bx >= kCols || by < 0 || by >= kRows) continue;
            want = 1000.f * (round + 1) + by * kCols + bx;
          }
          return want;
        }));
}

}  // namespace

TEST_CASE("TMA stores a box, nothing outside the tensor", "[ptx][tma]") {
  check_store<Swizzle::none>();
  check_store<Swizzle::b32>();
}

namespace {

// x, doubled, is written to device memory by threads, read by TMA, and copied on by a bulk store.
__global__ void bulk_kernel(const float* x, float* between, int n, float* out) {
  float* tile = fa::dynamic_shared<float>();
  __shared__ uint64_t full;
  for (int i = threadIdx.x; i < n; i += blockDim.x) between[i] = 2 * x[i];
  fa::fence_proxy_async_global();
  __syncthreads();
  const int bytes = n * int(sizeof(float));
  test::load_and_wait(&full, bytes, [&] { fa::bulk_load(tile, between, bytes, &full); });
  if (threadIdx.x != 0) return;
  fa::bulk_store(out, tile, bytes);
  fa::tma_store_commit();
  fa::tma_store_wait<0>();
}

}  // namespace

TEST_CASE("bulk copies move plain runs of bytes, and what threads have stored", "[ptx][tma]") {
  constexpr int kN = 36;
  const auto x = test::small_integers<float>(kN, 4);
  const Buffer<float> between("between", kN);
  const auto got =
      test::results<float>(kN, bulk_kernel, {1, 32, kN * sizeof(float)}, x, between.get(), kN);
  CHECK(got == test::each<float>(kN, [&](int i) { return 2 * x[i]; }));
}

namespace {

// Each block of a pair loads one half of the tile for both.
__global__ void multicast_kernel(const __grid_constant__ TensorMap map, float* out) {
  float* tile = fa::dynamic_shared<float>();
  __shared__ uint64_t full;
  const int rank = static_cast<int>(fa::cluster_rank());
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&full, 1);
    fa::mbarrier_init_fence();
  }
  fa::cluster_sync();  // both barriers exist before any thread signals them
  if (threadIdx.x == 0) {
    fa::mbarrier_arrive_expect_tx(&full, 2 * kRows * kCols * int(sizeof(float)));
    fa::tma_load_multicast(tile + rank * kRows * kCols, &map, &full, {0, rank * kRows},
                           uint16_t{3});
  }
  fa::mbarrier_wait_cluster(&full, 0);
  for (int i = threadIdx.x; i < 2 * kRows * kCols; i += blockDim.x) {
    out[blockIdx.x * 2 * kRows * kCols + i] = tile[i];
  }
  fa::cluster_sync();
}

}  // namespace

TEST_CASE("a multicast load reaches both blocks of a cluster", "[ptx][tma][cluster]") {
  const auto values = test::iota<float>(2 * kRows * kCols);
  const Buffer<float> in("in", values);
  const TensorMap map =
      fa::tensor_map(in.get(), {{kCols, 1, kCols}, {2 * kRows, kCols, kRows}}, Swizzle::none);
  const auto got = test::results<float>(2 * values.size(), multicast_kernel,
                                        {2, 64, 2 * kRows * kCols * sizeof(float), 2}, map);
  CHECK(got == test::each<float>(got.size(), [&](int i) { return values[i % values.size()]; }));
}

TEST_CASE("a tensor map that the hardware cannot hold is refused", "[ptx][tma]") {
  Buffer<float> in("in", 64 * 64);
  float* p = in.get();
  const auto refused = [&](auto* base, std::initializer_list<fa::TensorDim> dims, Swizzle s,
                           const char* why) {
    CHECK_THROWS_WITH(fa::tensor_map(base, dims, s), ContainsSubstring(why));
  };
  refused(p, {{64, 1, 8}, {64, 63, 8}}, Swizzle::none, "stride of 252 bytes");
  refused(p, {{64, 2, 8}}, Swizzle::none, "innermost dimension must have stride 1");
  refused(p, {{64, 1, 3}}, Swizzle::none, "multiple of 16 bytes");
  refused(p, {{64, 1, 64}, {64, 64, 8}}, Swizzle::b128, "wider than the swizzle");
  refused(p, {{64, 1, 260}}, Swizzle::none, "1 to 256");
  refused(p + 1, {{63, 1, 8}}, Swizzle::none, "16-byte aligned");
}

// Structs that go through functions: what a call stores, and what it is given, is an access as any
// other; recursion and function pointers.
#include "tests/sim/diagnosis.h"

using sim::test::Buffer;
using sim::test::finding;
using sim::test::WithOptions;

namespace {

struct Pair {
  float a, b;
};
struct Row {
  float x[8];
};
#include "tests/sim/long_line.inc"

#define OUTLINE __attribute__((noinline))

OUTLINE __device__ Pair make_pair(float x) { return {x, x + 1}; }
OUTLINE __device__ Row make_row(float x) {
  Row r;
  for (float& e : r.x) e = x;
  return r;
}
OUTLINE __device__ FarRow make_far_row(float x) {
  FarRow r;
  for (float& e : r.x) e = x;
  return r;
}
OUTLINE __device__ float sum(Pair p) { return p.a + p.b; }
OUTLINE __device__ float last(Row r) { return r.x[7]; }
OUTLINE __device__ Pair twice(Pair p) { return {2 * p.a, 2 * p.b}; }

constexpr int kStores = __LINE__;  // the stores are 2 and 3 lines further down, the loads 6 and 7
__global__ void store_calls(Pair* pairs, Row* rows) {
  pairs[threadIdx.x] = make_pair(threadIdx.x);
  rows[threadIdx.x] = make_row(threadIdx.x);
}
__global__ void load_arguments(const Pair* pairs, const Row* rows, float* y) {
  const float s = sum(pairs[threadIdx.x]);
  y[threadIdx.x] = s + last(rows[threadIdx.x]);
}
__global__ void store_far(FarRow* rows) { rows[threadIdx.x] = make_far_row(threadIdx.x); }
__global__ void both(const Pair* in, Pair* out) { out[threadIdx.x] = twice(in[threadIdx.x]); }
__global__ void through_pointer(const Pair* in, Pair* out, Pair (*f)(Pair)) {
  out[threadIdx.x] = f(in[threadIdx.x]);
}
template <bool kBarrier>
__global__ void exchange(Pair* out) {
  __shared__ Pair tile[64];
  tile[threadIdx.x] = make_pair(threadIdx.x);
  if (kBarrier) __syncthreads();
  out[threadIdx.x] = twice(tile[(threadIdx.x + 32) % 64]);
}

__device__ int fibonacci(const int* table, int n) {
  return n < 2 ? table[n] : fibonacci(table, n - 1) + fibonacci(table, n - 2);
}
__global__ void recursion(const int* table, int* y) {
  y[threadIdx.x] = fibonacci(table, threadIdx.x);
}

__device__ float square(const float* x) { return *x * *x; }
__device__ float cube(const float* x) { return *x * *x * *x; }
__device__ float read_past(const float* x) { return x[4]; }
__global__ void pointers(const float* x, float* y, bool past) {
  constexpr float (*kFunctions[])(const float*) = {square, cube, read_past};
  const int which = past ? 2 : threadIdx.x % 2;
  y[threadIdx.x] = kFunctions[which](x + threadIdx.x);
}

template <class F>
fa::Counts counted(F&& run) {
  sim::Recording recording;
  run();
  return recording.finish();
}

}  // namespace

TEST_CASE("structs that functions return and take are counted", "[sim][structs]") {
  Buffer<Pair> pairs("pairs", 32), out("out", 32);
  Buffer<Row> rows("rows", 32);
  Buffer<float> y("y", 32);
  auto counts = counted([&] { fa::launch(store_calls, {1, 32}, pairs, rows); });
  CHECK(counts.buffers["pairs"].bytes == fa::Bytes{0, 32 * 8});
  CHECK(counts.buffers["rows"].bytes == fa::Bytes{0, 32 * 32});
  counts = counted([&] { fa::launch(load_arguments, {1, 32}, pairs, rows, y); });
  CHECK(counts.buffers["pairs"].bytes == fa::Bytes{32 * 8, 0});
  CHECK(counts.buffers["rows"].bytes == fa::Bytes{32 * 32, 0});
  CHECK(y.download()[5] == 16.f);
  counts = counted([&] { fa::launch(both, {1, 32}, pairs, out); });
  CHECK(counts.buffers["pairs"].bytes == fa::Bytes{32 * 8, 0});
  CHECK(counts.buffers["out"].bytes == fa::Bytes{0, 32 * 8});
  counts = counted([&] { fa::launch(through_pointer, {1, 32}, out, pairs, twice); });
  CHECK(counts.buffers["out"].bytes == fa::Bytes{32 * 8, 0});
  CHECK(counts.buffers["pairs"].bytes == fa::Bytes{0, 32 * 8});
  CHECK(pairs.download()[5].b == 24.f);
}

TEST_CASE("structs that functions return and take are checked, with the caller's line",
          "[sim][structs]") {
  Buffer<Pair> pairs("pairs", 40);
  Buffer<Row> rows("rows", 40);
  Buffer<float> y("y", 64);
  const auto line = [](int n) { return "structs.cu:" + std::to_string(kStores + n); };
  const auto found = [](auto... arguments) { return finding([&] { fa::launch(arguments...); }); };
  const fa::LaunchConfig config{1, 64};
  Buffer<Pair> many_pairs("many pairs", 64);
  Buffer<Row> many_rows("many rows", 64);
  CHECK_THAT(found(store_calls, config, pairs.get(), many_rows.get()),
             ContainsSubstring("::store_calls, block (0,0,0), thread (40,0,0): 8-byte store at " +
                               line(2) + " at byte 320 of buffer pairs"));
  CHECK_THAT(found(store_calls, config, many_pairs.get(), rows.get()),
             ContainsSubstring("32-byte store at " + line(3)));
  CHECK_THAT(found(load_arguments, config, pairs.get(), many_rows.get(), y.get()),
             ContainsSubstring("8-byte load at " + line(6)));
  CHECK_THAT(found(load_arguments, config, many_pairs.get(), rows.get(), y.get()),
             ContainsSubstring("32-byte load at " + line(7)));
  CHECK_THAT(found(through_pointer, config, pairs.get(), many_pairs.get(), twice),
             ContainsSubstring("8-byte load"));
  Buffer<FarRow> far_rows("far rows", 40);
  CHECK_THAT(found(store_far, config, far_rows.get()),
             ContainsSubstring("32-byte store at structs.cu:"));
  CHECK(found(store_calls, config, many_pairs.get(), many_rows.get()) == "");
  CHECK(found(load_arguments, config, many_pairs.get(), many_rows.get(), y.get()) == "");

  sim::Options o;
  o.races = true;
  WithOptions with(o);
  CHECK_THAT(found(exchange<false>, config, many_pairs.get()),
             ContainsSubstring("race on shared memory") && ContainsSubstring("tile, byte 256"));
  CHECK(found(exchange<true>, config, many_pairs.get()) == "");
}

TEST_CASE("a device function may call itself", "[sim][structs]") {
  Buffer<int> table("table", 2), y("y", 10);
  table.upload({0, 1});
  const auto counts = counted([&] { fa::launch(recursion, {1, 10}, table, y); });
  CHECK(y.download() == std::vector<int>{0, 1, 1, 2, 3, 5, 8, 13, 21, 34});
  CHECK(counts.buffers.at("table").bytes.read == 4 * (1 + 1 + 2 + 3 + 5 + 8 + 13 + 21 + 34 + 55));
  Buffer<int> short_table("table", 1);
  CHECK_THAT(finding([&] {
               fa::launch(recursion, {1, 10}, short_table, y);
             }),
             ContainsSubstring("thread (1,0,0): 4-byte load at structs.cu:"));
}

TEST_CASE("device functions may be called through pointers", "[sim][structs]") {
  Buffer<float> x("x", 4), y("y", 4);
  x.upload({1, 2, 3, 4});
  const auto counts = counted([&] { fa::launch(pointers, {1, 4}, x, y, false); });
  CHECK(y.download() == std::vector<float>{1, 8, 9, 64});
  CHECK(counts.buffers.at("x").bytes.read == 4 * (2 + 3 + 2 + 3));
  CHECK_THAT(finding([&] {
               fa::launch(pointers, {1, 4}, x, y, true);
             }),
             ContainsSubstring("4-byte load at structs.cu:"));
}

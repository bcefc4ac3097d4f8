// Structs passed through functions: what a call stores, and what it receives, is an ordinary
// access; recursion and function pointers.
#include "tests/sim/diagnosis.h"

using sim::test::Buffer;
using sim::test::counted;
using sim::test::WithOptions;

namespace {

struct Pair {
  float a, b;
};
struct Row {
  float x[8];
};

#define OUTLINE __attribute__((noinline))

OUTLINE __device__ Pair make_pair(float x) { return {x, x + 1}; }
OUTLINE __device__ Row make_row(float x) {
  Row r;
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
__global__ void both(const Pair* in, Pair* out) { out[threadIdx.x] = twice(in[threadIdx.x]); }
__global__ void through_pointer(const Pair* in, Pair* out, Pair (*f)(Pair)) {
  out[threadIdx.x] = f(in[threadIdx.x]);
}
__global__ void exchange(Pair* out, bool barrier) {
  __shared__ Pair tile[64];
  tile[threadIdx.x] = make_pair(threadIdx.x);
  if (barrier) __syncthreads();
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

}  // namespace

TEST_CASE("structs that functions return and take are counted", "[sim][structs]") {
  Buffer<Pair> pairs("pairs", 32), out("out", 32);
  Buffer<Row> rows("rows", 32);
  Buffer<float> y("y", 32);
  auto counts = counted(store_calls, {1, 32}, pairs, rows);
  CHECK(counts.buffers["pairs"].bytes == fa::Bytes{0, 32 * 8});
  CHECK(counts.buffers["rows"].bytes == fa::Bytes{0, 32 * 32});
  counts = counted(load_arguments, {1, 32}, pairs, rows, y);
  CHECK(counts.buffers["pairs"].bytes == fa::Bytes{32 * 8, 0});
  CHECK(counts.buffers["rows"].bytes == fa::Bytes{32 * 32, 0});
  CHECK(y.download()[5] == 16.f);
  counts = counted(both, {1, 32}, pairs, out);
  CHECK(counts.buffers["pairs"].bytes == fa::Bytes{32 * 8, 0});
  CHECK(counts.buffers["out"].bytes == fa::Bytes{0, 32 * 8});
  counts = counted(through_pointer, {1, 32}, out, pairs, twice);
  CHECK(counts.buffers["out"].bytes == fa::Bytes{32 * 8, 0});
  CHECK(counts.buffers["pairs"].bytes == fa::Bytes{0, 32 * 8});
  CHECK(pairs.download()[5].b == 24.f);
}

TEST_CASE("structs that functions return and take are checked, with the caller's line",
          "[sim][structs]") {
  Buffer<Pair> pairs("pairs", 40), many_pairs("many pairs", 64);
  Buffer<Row> rows("rows", 40), many_rows("many rows", 64);
  Buffer<float> y("y", 64);
  const auto line = [](int n) { return "structs.cu:" + std::to_string(kStores + n); };
  FOUND("::store_calls, block (0,0,0), thread (40,0,0): 8-byte store at " + line(2) +
            " at byte 320 of buffer pairs",
        store_calls, {1, 64}, pairs, many_rows);
  FOUND("32-byte store at " + line(3), store_calls, {1, 64}, many_pairs, rows);
  FOUND("8-byte load at " + line(6), load_arguments, {1, 64}, pairs, many_rows, y);
  FOUND("32-byte load at " + line(7), load_arguments, {1, 64}, many_pairs, rows, y);
  FOUND("::through_pointer, block (0,0,0), thread (40,0,0): 8-byte load", through_pointer, {1, 64},
        pairs, many_pairs, twice);
  SILENT(store_calls, {1, 64}, many_pairs, many_rows);
  SILENT(load_arguments, {1, 64}, many_pairs, many_rows, y);
  WithOptions with({.analyse = true});
  FOUND("race on shared memory ... tile, byte 256", exchange, {1, 64}, many_pairs, false);
  SILENT(exchange, {1, 64}, many_pairs, true);
}

TEST_CASE("a device function may call itself, or be called through a pointer", "[sim][structs]") {
  Buffer<int> table("table", std::vector{0, 1}), short_table("table", 1), fibonaccis("y", 10);
  auto counts = counted(recursion, {1, 10}, table, fibonaccis);
  CHECK(fibonaccis.download() == std::vector<int>{0, 1, 1, 2, 3, 5, 8, 13, 21, 34});
  CHECK(counts.buffers.at("table").bytes.read == 4 * (1 + 1 + 2 + 3 + 5 + 8 + 13 + 21 + 34 + 55));
  FOUND("thread (1,0,0): 4-byte load at structs.cu:", recursion, {1, 10}, short_table, fibonaccis);
  Buffer<float> x("x", std::vector{1.f, 2.f, 3.f, 4.f}), y("y", 4);
  counts = counted(pointers, {1, 4}, x, y, false);
  CHECK(y.download() == std::vector<float>{1, 8, 9, 64});
  CHECK(counts.buffers.at("x").bytes.read == 4 * (2 + 3 + 2 + 3));
  FOUND("4-byte load at structs.cu:", pointers, {1, 4}, x, y, true);
}

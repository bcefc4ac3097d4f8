// Structs passed through functions: what a call stores, and what it receives, is an ordinary
// access; recursion and function pointers.
#include "common/dialect/ptx/ptx.h"
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

// Races in a struct of shared memory name its field, stored and read without a barrier.

namespace {

template <int d>
struct Tiles {
  float Q[4][d];
  union {
    float K[2][d];
    struct {
      float4 P[8];
      float rest[2 * d - 32];
    };
  };
  struct Row {
    float m, l;
    double sum[2];
    char flag;
  } rows[3];
  uint64_t full;
};

template <class T>
__device__ void race(T& x, float* y) {
  if (threadIdx.x == 0) x = T{1};
  if (threadIdx.x == 32) y[0] = static_cast<float>(x);
}

enum class Field { q, k, p, row, padding };

template <Field field, class T>
__device__ void race_in(T& s, float* y) {
  if (field == Field::q) race(s.Q[3][7], y);
  if (field == Field::k) race(s.K[1][40], y);
  if (field == Field::p) race(s.P[5].z, y);
  if (field == Field::row) race(s.rows[2].sum[1], y);
  if (field == Field::padding) race((&s.rows[1].flag)[1], y);
}

template <Field field>
__global__ void by_reference(float* y) {
  Tiles<64>& smem = *fa::dynamic_shared<Tiles<64>>();
  race_in<field>(smem, y);
}
template <Field field>
__global__ void by_pointer(float* y) {
  auto* s = fa::dynamic_shared<Tiles<32>>();
  race_in<field>(*s, y);
}
// Two structs named Tiles; this kernel's is in a variable of a helper function.
__device__ inline void helper(float* y) {
  Tiles<128>& t = *fa::dynamic_shared<Tiles<128>>();
  race_in<Field::q>(t, y);
}
__global__ void in_a_helper(float* y) { helper(y); }
__global__ void without_a_variable(float* y) { race(fa::dynamic_shared<Tiles<64>>()->Q[1][0], y); }
__global__ void no_struct(float* y) { race(fa::dynamic_shared<float>()[33], y); }
__global__ void behind_the_struct(float* y) {
  Tiles<64>& smem = *fa::dynamic_shared<Tiles<64>>();
  race(reinterpret_cast<float*>(&smem + 1)[2], y);
}
// The owner of the bytes, one of two structs, is unknown.
__global__ void two_structs(float* y) {
  Tiles<64>& smem = *fa::dynamic_shared<Tiles<64>>();
  auto& other = *fa::dynamic_shared<Tiles<32>>();
  race(threadIdx.x == 99 ? other.Q[0][0] : smem.Q[0][0], y);
}
__global__ void static_struct(float* y) {
  __shared__ Tiles<64> tile;
  race(tile.rows[1].l, y);
}
__global__ void static_structs(float* y) {
  __shared__ Tiles<32> stage[2];
  race(stage[1].K[0][5], y);
}
// A class with a base, and members of which some are no storage, or no plain floats.
struct Extremes {
  float max[2][8];
  static int count;
};
class Whole : public Extremes {
 public:
  float* row[2];
  volatile float sums[8];
};
__global__ void derived(float* y, int which) {
  __shared__ Whole whole[2];
  if (which == 0) race(whole[1].max[1][3], y);
  if (which == 3) race(whole[0].max[0][0], y);
  if (which == 1 && threadIdx.x == 0) whole[0].row[1] = y;
  if (which == 1 && threadIdx.x == 32) y[0] = *whole[0].row[1];
  if (which == 2 && threadIdx.x == 0) whole[0].sums[5] = 1;
  if (which == 2 && threadIdx.x == 32) y[0] = whole[0].sums[5];
}
__global__ void static_vectors(float* y) {
  __shared__ float4 vectors[2][4];
  race(vectors[1][2].w, y);
}
__global__ void bad_barrier(float*) {
  Tiles<64>& smem = *fa::dynamic_shared<Tiles<64>>();
  fa::mbarrier_arrive(&smem.full);
}

const fa::LaunchConfig kBlock{1, 64, 16 * 1024};

}  // namespace

ANALYSED("a race in a struct of dynamic shared memory names the field", "[sim][races]") {
  const std::string dynamic = " of dynamic shared memory at structs.cu:";
  FOUND("load of smem.Q[3][7], byte 796" + dynamic, by_reference<Field::q>, kBlock, y);
  FOUND("load of smem.rows[2].sum[1], byte 1616" + dynamic, by_reference<Field::row>, kBlock, y);
  FOUND("load of s->Q[3][7], byte 412" + dynamic, by_pointer<Field::q>, kBlock, y);
#ifdef __OPTIMIZE__  // else the helper is no part of the kernel
  FOUND("load of t.Q[3][7], byte 1564" + dynamic, in_a_helper, kBlock, y);
#endif
}

ANALYSED("a byte of a union has the name of each of its fields", "[sim][races]") {
  const std::string both = "load of smem.K[1][40] or smem.rest[72], byte 1440 of dynamic";
  FOUND(both, by_reference<Field::k>, kBlock, y);
  FOUND("load of smem.K[0][22] or smem.P[5], byte 1112", by_reference<Field::p>, kBlock, y);
}

ANALYSED("bytes that are no field keep what is known of them", "[sim][races]") {
  FOUND("load of smem.rows[1], byte 1593 of ", by_reference<Field::padding>, kBlock, y);
  FOUND("load of dynamic shared memory, byte 132 at", no_struct, kBlock, y);
  FOUND("load of dynamic shared memory, byte 1656 at", behind_the_struct, kBlock, y);
  FOUND("load of dynamic shared memory, byte 256 at", without_a_variable, kBlock, y);
  FOUND("load of dynamic shared memory, byte 0 at", two_structs, kBlock, y);
}

ANALYSED("so does a race in a static struct", "[sim][races]") {
  FOUND("load of tile.rows[1].l, byte 1572 at structs.cu:", static_struct, kBlock, y);
  FOUND("load of stage[1].K[0][5] or stage[1].P[1], byte 1412 at", static_structs, kBlock, y);
  FOUND("load of vectors, byte 108 at", static_vectors, kBlock, y);
  FOUND("load of whole[1].max[1][3], byte 156 at", derived, kBlock, y, 0);
  FOUND("load of whole[0].row[1], byte 72 at", derived, kBlock, y, 1);
  FOUND("load of whole[0].sums[5], byte 100 at", derived, kBlock, y, 2);
  FOUND("load of whole[0].max[0][0], byte 0 at", derived, kBlock, y, 3);
}

ANALYSED("a fault of an mbarrier names it, too", "[sim]") {
  FOUND("smem.full, byte ", bad_barrier, kBlock, y);
}

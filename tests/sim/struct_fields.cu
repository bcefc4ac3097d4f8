// Races in a struct of shared memory name its field. Each kernel stores to one field and reads it
// in another warp, without a barrier.
#include "common/dialect/ptx/ptx.h"
#include "tests/sim/diagnosis.h"

using sim::test::Buffer;
using sim::test::finding;
using sim::test::WithOptions;

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

// The last warp reads what thread 0 stores.
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
// Two structs with the name Tiles, and the one of this kernel in a variable of a helper function.
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
// Which of two structs the bytes belong to, nobody can tell.
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
__global__ void static_vectors(float* y) {
  __shared__ float4 vectors[2][4];
  race(vectors[1][2].w, y);
}
__global__ void bad_barrier(float*) {
  Tiles<64>& smem = *fa::dynamic_shared<Tiles<64>>();
  fa::mbarrier_arrive(&smem.full);
}

std::string of(void (*kernel)(float*)) {
  sim::Options o;
  o.races = true;
  WithOptions with(o);
  Buffer<float> y("y", 64);
  return finding([&] { fa::launch(kernel, {dim3(1), dim3(64), 16 * 1024}, y); });
}

const auto contains = [](const std::string& part) { return ContainsSubstring(part); };

}  // namespace

TEST_CASE("a race in a struct of dynamic shared memory names the field", "[sim][races]") {
  const std::string dynamic = " of dynamic shared memory at struct_fields.cu:";
  CHECK_THAT(of(by_reference<Field::q>), contains("load of smem.Q[3][7], byte 796" + dynamic));
  CHECK_THAT(of(by_reference<Field::row>),
             contains("load of smem.rows[2].sum[1], byte 1616" + dynamic));
  CHECK_THAT(of(by_pointer<Field::q>), contains("load of s->Q[3][7], byte 412" + dynamic));
#ifdef __OPTIMIZE__  // else the helper is no part of the kernel
  CHECK_THAT(of(in_a_helper), contains("load of t.Q[3][7], byte 1564" + dynamic));
#endif
}

TEST_CASE("a byte of a union has the name of each of its fields", "[sim][races]") {
  const std::string both = "load of smem.K[1][40] or smem.rest[72], byte 1440 of dynamic";
  CHECK_THAT(of(by_reference<Field::k>), contains(both));
  CHECK_THAT(of(by_reference<Field::p>), contains("load of smem.K[0][22] or smem.P[5], byte 1112"));
}

TEST_CASE("bytes that are no field keep what is known of them", "[sim][races]") {
  CHECK_THAT(of(by_reference<Field::padding>), contains("load of smem.rows[1], byte 1593 of "));
  CHECK_THAT(of(no_struct), contains("load of dynamic shared memory, byte 132 at"));
  CHECK_THAT(of(behind_the_struct), contains("load of dynamic shared memory, byte 1656 at"));
  CHECK_THAT(of(without_a_variable), contains("load of dynamic shared memory, byte 256 at"));
  CHECK_THAT(of(two_structs), contains("load of dynamic shared memory, byte 0 at"));
}

TEST_CASE("so does a race in a static struct", "[sim][races]") {
  CHECK_THAT(of(static_struct), contains("load of tile.rows[1].l, byte 1572 at struct_fields.cu:"));
  CHECK_THAT(of(static_structs),
             contains("load of stage[1].K[0][5] or stage[1].P[1], byte 1412 at"));
  CHECK_THAT(of(static_vectors), contains("load of vectors, byte 108 at"));
}

TEST_CASE("a fault of an mbarrier names it, too", "[sim]") {
  CHECK_THAT(of(bad_barrier), contains("smem.full, byte "));
}

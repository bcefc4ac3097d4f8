// Races in a struct of shared memory name its field, stored and read without a barrier.
#include "common/dialect/ptx/ptx.h"
#include "tests/sim/diagnosis.h"

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
  const std::string dynamic = " of dynamic shared memory at struct_fields.cu:";
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
  FOUND("load of tile.rows[1].l, byte 1572 at struct_fields.cu:", static_struct, kBlock, y);
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

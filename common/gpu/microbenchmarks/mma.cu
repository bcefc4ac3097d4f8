// Group mma -- the tensor cores as one warp uses them: mma m16n8k16, bf16 inputs, fp32 sums.
// Measured  rate: 8 warps of one SM; the accumulators of a warp are 4 chains, as in a warp tile of
//           16 x 32. latency: one warp with one chain
// Watch     operands are zeros: the power stays low and the clock does not fall. Random numbers at
//           full load run at a lower clock on a card at its power limit
#include "common/dialect/ptx/mma.h"

#include "common/gpu/microbenchmarks/measure.h"

namespace fa::microbenchmarks {

namespace {

constexpr int kProducts = 64;  // per round and warp

/// `chains` accumulator tiles, each a chain of dependent products.
template <int chains>
struct Mma {
  uint32_t value;
  float d[chains][4] = {};
  uint32_t a[4] = {}, b[2] = {};
  __device__ void begin(char*) {
    for (uint32_t& x : a) x = value;
    for (uint32_t& x : b) x = value;
  }
  __device__ void round() {
    UNROLL
    for (int k = 0; k < kProducts; ++k) mma_m16n8k16(d[k % chains], a, b);
  }
  __device__ uint32_t result() const {
    float all = 0;
    for (int i = 0; i < chains; ++i) all += d[i][0] + d[i][1] + d[i][2] + d[i][3];
    return __float_as_uint(all);
  }
};

template <int chains>
double mma_clocks(int warps) {
  return round_clocks(Mma<chains>{0u}, warps, 64) / (kProducts * warps);
}

}  // namespace

void measure_mma() {
  report("mma_m16n8k16_w8", mma_clocks<4>(8), kClocks,
         "of one SM for a warp's mma m16n8k16 bf16, 4 chains per warp; warps: 8");
  report("latency_mma_m16n8k16", mma_clocks<1>(1), kClocks,
         "from an mma to one that adds to its result, one warp");
}

}  // namespace fa::microbenchmarks

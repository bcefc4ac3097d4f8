// Group stmatrix -- what a warp's stmatrix.x4 costs its SM: ldmatrix in the other direction.
// Measured  clocks per request, as in shared.cu, with the rows dense and 128 bytes apart
// Watch     stmatrix needs sm_90; this file is with those of sm_90a, so that one flag serves all
#include "common/clock/microbenchmarks/groups.h"
#include "common/clock/microbenchmarks/measure.h"
#include "common/clock/microbenchmarks/requests.h"
#include "common/dialect/ptx/mma.h"

namespace fa::microbenchmarks {

namespace {

/// Independent requests; lane l gives the address of row l.
struct Stmatrix {
  Lanes lanes;
  int zero;
  uint32_t value = 0;
  char* row = nullptr;
  __device__ void begin(char* shared) { row = shared + lanes.offset(); }
  __device__ void round() {
    const uint32_t r[4] = {value, value, value, value};
    UNROLL
    for (int u = 0; u < kUnrolled; ++u) stmatrix_x4(row + u * kRequestStep, r);
    row += zero;
  }
  __device__ uint32_t result() const { return value; }
};

void measure_rows(int step, const std::string& name, const std::string& what) {
  const Stmatrix op{Lanes({"", 32, step, 0}), 0};
  report(name, round_clocks(op, kMaxWarps, 64, kHotBytes) / (kMaxWarps * kUnrolled), kClocks,
         "of one SM for a warp's stmatrix.x4, " + what);
}

}  // namespace

void measure_stmatrix() {
  measure_rows(16, "stmatrix_x4", "rows dense");
  measure_rows(128, "stmatrix_x4_s128", "rows 128 bytes apart: 8-way");
}

}  // namespace fa::microbenchmarks

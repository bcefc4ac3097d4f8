// Group shared -- what a warp's shared load or store costs its SM, by width and pattern; ldmatrix.
// Measured  clocks per request in the steady state of 32 warps with 8 independent requests each
// Expected  4 bytes per lane: stride 8 is a 2-way bank conflict, 16 a 4-way, 128 a 32-way
// Watch     ptxas merges neighbouring requests of a thread: those of a round are 1 KB apart
#include "common/clock/microbenchmarks/groups.h"
#include "common/clock/microbenchmarks/measure.h"
#include "common/clock/microbenchmarks/requests.h"
#include "common/dialect/ptx/mma.h"

namespace fa::microbenchmarks {

namespace {

enum class Request { load, store, ldmatrix_x4 };

/// Independent requests of `words` words per lane; ldmatrix.x4 has 4.
template <Request request, int words>
struct Shared {
  Lanes lanes;
  int zero;
  uint32_t at = 0, sum = 0;
  char* pointer = nullptr;
  __device__ void begin(char* shared) {
    for (int i = threadIdx.x * 4; i < kHotBytes; i += blockDim.x * 4) {
      *reinterpret_cast<uint32_t*>(shared + i) = i;
    }
    pointer = shared + lanes.offset();
    at = shared_address(pointer);
  }
  __device__ void round() {
    UNROLL
    for (int u = 0; u < kUnrolled; ++u) {
      if constexpr (request == Request::load) {
        sum ^= load<Space::shared, words>(nullptr, at + u * kRequestStep);
      } else if constexpr (request == Request::store) {
        store<Space::shared, words>(nullptr, at + u * kRequestStep, at);
      } else {
        uint32_t r[4];
        ldmatrix_x4(r, pointer + u * kRequestStep);
        sum ^= r[0] ^ r[1] ^ r[2] ^ r[3];
      }
    }
    at += zero;
    pointer += zero;
  }
  __device__ uint32_t result() const { return sum; }
};

template <Request request, int words>
double request_clocks(const Pattern& p) {
  const Shared<request, words> op{Lanes(p), 0};
  return round_clocks(op, kMaxWarps, 64, kHotBytes) / (kMaxWarps * kUnrolled);
}

template <Request request, int words>
void measure_patterns() {
  const std::string width = std::to_string(4 * words);
  const std::string kind = request == Request::store ? "store" : "load";
  for (const Pattern& p : patterns_of(4 * words)) {
    report("shared_" + kind + "_w" + width + "_" + p.name, request_clocks<request, words>(p),
           kClocks,
           "of one SM for a warp's shared " + kind + "; " + width +
               " bytes per lane, lanes: " + p.name);
  }
}

}  // namespace

void measure_shared() {
  measure_patterns<Request::load, 1>();
  measure_patterns<Request::load, 2>();
  measure_patterns<Request::load, 4>();
  measure_patterns<Request::store, 1>();
  measure_patterns<Request::store, 2>();
  measure_patterns<Request::store, 4>();
  report("ldmatrix_x4", request_clocks<Request::ldmatrix_x4, 4>({"", 32, 16, 0}), kClocks,
         "of one SM for a warp's ldmatrix.x4, rows dense");
  report("ldmatrix_x4_s128", request_clocks<Request::ldmatrix_x4, 4>({"", 32, 128, 0}), kClocks,
         "of one SM for a warp's ldmatrix.x4, rows 128 bytes apart: 8-way");
}

}  // namespace fa::microbenchmarks

// The rule by which the simulator counts wavefronts of shared memory, against an H200's counters.
#include <map>
#include <sstream>

#include "common/dialect/ptx/mma.h"
#include "tests/sim/diagnosis.h"

using sim::test::Buffer;
using sim::test::WithOptions;

namespace {

constexpr char kMeasured[] =
#include "tests/sim/wavefronts_h200.inc"
    ;
constexpr size_t kShared = 16 * 1024;

struct Row {
  std::string access;  ///< "load", "store", "ldmatrix", "stmatrix"
  unsigned bytes;      ///< of a lane
  uint32_t lanes;
  unsigned wavefronts;
  std::vector<int> at;  ///< of each lane, in units of its bytes
};

std::vector<Row> rows() {
  std::vector<Row> all;
  std::istringstream text(kMeasured);
  for (Row r; text >> r.access >> r.bytes >> std::hex >> r.lanes >> std::dec >> r.wavefronts;) {
    r.at.resize(32);
    for (int& at : r.at) text >> at;
    all.push_back(r);
  }
  return all;
}

template <class T>
__global__ void load_kernel(const int* at, uint32_t lanes, T* y) {
  const T* s = fa::dynamic_shared<T>();
  if (lanes >> threadIdx.x & 1) y[threadIdx.x] = s[at[threadIdx.x]];
}
template <class T>
__global__ void store_kernel(const int* at, uint32_t lanes) {
  T* s = fa::dynamic_shared<T>();
  if (lanes >> threadIdx.x & 1) s[at[threadIdx.x]] = T{};
}
__global__ void load_matrices_kernel(const int* at) {
  fa::bf16* s = fa::dynamic_shared<fa::bf16>();
  uint32_t a[4];
  fa::ldmatrix_x4(a, s + 8 * at[threadIdx.x]);
}
__global__ void store_matrices_kernel(const int* at) {
  fa::bf16* s = fa::dynamic_shared<fa::bf16>();
  uint32_t a[4] = {};
  fa::stmatrix_x4(s + 8 * at[threadIdx.x], a);
}

template <class T>
void launch(const Row& r, const int* at) {
  const fa::LaunchConfig warp{dim3(1), dim3(32), kShared};
  if (r.access == "load") {
    Buffer<T> y("y", 32);
    fa::launch(load_kernel<T>, warp, at, r.lanes, y);
  } else {
    fa::launch(store_kernel<T>, warp, at, r.lanes);
  }
}

fa::Ops counted(const Row& r) {
  Buffer<int> at("at", 32);
  at.upload(r.at);
  sim::Recording recording;
  const fa::LaunchConfig warp{dim3(1), dim3(32), kShared};
  if (r.access == "ldmatrix") {
    fa::launch(load_matrices_kernel, warp, at);
  } else if (r.access == "stmatrix") {
    fa::launch(store_matrices_kernel, warp, at);
  } else {
    const std::map<unsigned, void (*)(const Row&, const int*)> widths = {
        {2, launch<uint16_t>}, {4, launch<float>}, {8, launch<float2>}, {16, launch<float4>}};
    widths.at(r.bytes)(r, at);
  }
  return *recording.finish().wavefronts;
}

}  // namespace

TEST_CASE("each access takes the wavefronts that an H200 takes", "[sim][banks]") {
  sim::Options o;
  o.requests = true;
  o.workers = 1;
  WithOptions with(o);
  std::map<std::string, int> seen;
  for (const Row& r : rows()) {
    CAPTURE(r.access, r.bytes, r.lanes, r.at);
    const bool load = r.access == "load" || r.access == "ldmatrix";
    const fa::Ops expected{load ? r.wavefronts : 0, load ? 0 : r.wavefronts, 0};
    CHECK(counted(r) == expected);
    ++seen[r.access];
  }
  CHECK(seen == std::map<std::string, int>{
                    {"load", 237}, {"store", 105}, {"ldmatrix", 30}, {"stmatrix", 15}});
}

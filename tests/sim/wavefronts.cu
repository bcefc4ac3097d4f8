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

__global__ void shuffles_kernel(float* y) {
  const float x = __shfl_xor_sync(fa::kFullMask, 1.f, 1);
  const double z = __shfl_sync(fa::kFullMask, 2., 0);
  if (__any_sync(fa::kFullMask, x > 0)) y[threadIdx.x] = x + static_cast<float>(z);
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

/// Of loads, and of stores.
std::pair<uint64_t, uint64_t> counted(const Row& r) {
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
  const fa::Counts counts = recording.finish();
  const fa::KernelCount& k = counts.kernels.back();  // behind the fill of y
  CHECK(counts.shared_wavefronts == fa::Ops{k.load_wavefronts, k.store_wavefronts, 0});
  return {k.load_wavefronts, k.store_wavefronts};
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
    CHECK(counted(r) ==
          std::pair<uint64_t, uint64_t>(load ? r.wavefronts : 0, load ? 0 : r.wavefronts));
    ++seen[r.access];
  }
  CHECK(seen == std::map<std::string, int>{
                    {"load", 237}, {"store", 105}, {"ldmatrix", 30}, {"stmatrix", 15}});
}

TEST_CASE("shuffles of 4 and of 8 bytes; votes are none", "[sim]") {
  Buffer<float> y("y", 64);
  sim::Recording recording;
  fa::launch(shuffles_kernel, {dim3(1), dim3(64)}, y);
  CHECK(recording.finish().kernels.at(0).shuffles == 2 * (1 + 2));
}

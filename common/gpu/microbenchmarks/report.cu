// In a .cu file: only nvcc knows its version.
#include "common/gpu/microbenchmarks/report.h"

#include <cstdio>

namespace fa::microbenchmarks {

void report(const std::string& name, double value, const char* unit, const std::string& what) {
  std::fprintf(stderr, "%-28s %12.6g %s\n", name.c_str(), value, unit);
  figures.push_back({name, value, unit, what});
}

std::string toolkit() {
  return std::to_string(__CUDACC_VER_MAJOR__) + "." + std::to_string(__CUDACC_VER_MINOR__) + "." +
         std::to_string(__CUDACC_VER_BUILD__);
}

}  // namespace fa::microbenchmarks

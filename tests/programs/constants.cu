// A shared library like a step's, for test_step_library.py: its kernel reads constants by pointers.
#include <string>

#include "common/dialect/cuda.h"

namespace {

constexpr float kTable[4] = {1, 2, 3, 4};
constexpr const float* kRows[2] = {kTable, kTable + 2};

__global__ void read_tables(float* y) {
  const char* digits = "0123456789";
  y[threadIdx.x] = kRows[threadIdx.x % 2][1] + static_cast<float>(digits[threadIdx.x] - '0');
}

}  // namespace

/// 2, 5, 4, 7 in y[4]. \returns the error, or an empty text.
extern "C" __attribute__((visibility("default"))) const char* fa_read_tables(float* y) {
  static std::string wrong;
  try {
    float* device = nullptr;
    fa::cuda_check(cudaMalloc(&device, 16));
    fa::launch(read_tables, {1, 4}, device);
    fa::cuda_check(cudaMemcpy(y, device, 16, cudaMemcpyDeviceToHost));
    fa::cuda_check(cudaFree(device));
  } catch (const std::exception& e) {
    wrong = e.what();
  }
  return wrong.c_str();
}

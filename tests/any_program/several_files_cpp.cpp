// main() of several_files.cu: plain C++ that also calls the runtime.
#include <cuda_runtime.h>

#include <vector>

#include "check.h"
#include "several_files.h"

int biggest(const int* p, int n) {
  int best = p[0];
  for (int i = 1; i < n; ++i) best = p[i] > best ? p[i] : best;
  return best;
}

int main() {
  std::vector<int> numbers(100);
  for (int i = 0; i < 100; ++i) numbers[i] = i;
  double_on_device(numbers.data(), 100);
  EXPECT(calls == 1);
  EXPECT(biggest(numbers.data(), 100) == 198);
  EXPECT(sum_in_c(numbers.data(), 100) == 9900);
  int* p = nullptr;
  CHECK(cudaMalloc((void**)&p, 400));
  CHECK(cudaMemcpy(p, numbers.data(), 400, cudaMemcpyHostToDevice));
  CHECK(cudaMemset(p, 0, 200));
  CHECK(cudaMemcpy(numbers.data(), p, 400, cudaMemcpyDeviceToHost));
  EXPECT(numbers[0] == 0 && numbers[49] == 0 && numbers[50] == 100);
  CHECK(cudaFree(p));
  return verdict();
}

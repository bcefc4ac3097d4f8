// cuRAND: the device's generators give NVIDIA's own numbers, the host's calls a right distribution.
#include <curand.h>
#include <curand_kernel.h>

#include "check.h"

template <class State>
__global__ void numbers(unsigned* out) {
  State state;
  curand_init(1234, threadIdx.x, 3, &state);
  for (int i = 0; i < 4; ++i) out[4 * threadIdx.x + i] = curand(&state);
}
__global__ void estimate_pi(int* hits, double* sum) {
  curandState state;
  curand_init(7, threadIdx.x, 0, &state);
  double squares = 0;
  for (int i = 0; i < 200; ++i) {
    const float x = curand_uniform(&state), y = curand_uniform(&state);
    if (x * x + y * y <= 1) atomicAdd(hits, 1);
    const double z = curand_normal_double(&state);
    squares += z * z;
  }
  atomicAdd(sum, squares);
}

int main() {
  unsigned* out = room<unsigned>(16);
  // What NVIDIA's header gives.
  const unsigned xorwow[] = {1954919316u, 3681184389u, 2501467243u, 865023039u,
                             2308946676u, 3475686971u, 75263415u,   1929890176u,
                             3189179224u, 2325095830u, 839904678u,  25984073u,
                             2300410836u, 2135511167u, 3857148075u, 178895935u},
                 philox[] = {3419031310u, 2666454581u, 482218876u,  4196888723u,
                             253049307u,  118660703u,  1698527859u, 495137217u,
                             1109236389u, 1398176681u, 4135726294u, 2504520210u,
                             1736124570u, 478606573u,  347447205u,  4056635629u};
  numbers<curandState><<<1, 4>>>(out);
  done();
  for (int i = 0; i < 16; ++i) EXPECT(out[i] == xorwow[i]);
  numbers<curandStatePhilox4_32_10_t><<<1, 4>>>(out);
  done();
  for (int i = 0; i < 16; ++i) EXPECT(out[i] == philox[i]);
  int* hits = room<int>(1);
  double* squares = room<double>(1);
  estimate_pi<<<1, 64>>>(hits, squares);
  done();
  EXPECT(*hits > 0.77 * 12800 && *hits < 0.80 * 12800);
  EXPECT(*squares > 0.96 * 12800 && *squares < 1.04 * 12800);

  const int n = 10000;
  float *d, x[n];
  CHECK(cudaMalloc(&d, n * sizeof(float)));
  curandGenerator_t generator;
  EXPECT(curandCreateGenerator(&generator, CURAND_RNG_PSEUDO_DEFAULT) == CURAND_STATUS_SUCCESS);
  EXPECT(curandSetPseudoRandomGeneratorSeed(generator, 1234ULL) == CURAND_STATUS_SUCCESS);
  EXPECT(curandGenerateNormal(generator, d, n, 5.f, 2.f) == CURAND_STATUS_SUCCESS);
  CHECK(cudaMemcpy(x, d, sizeof x, cudaMemcpyDeviceToHost));
  double sum = 0, square = 0;
  for (float v : x) sum += v, square += (v - 5) * (v - 5);
  EXPECT(sum / n > 4.9 && sum / n < 5.1 && square / n > 3.8 && square / n < 4.2);
  EXPECT(curandGenerateUniform(generator, d, n) == CURAND_STATUS_SUCCESS);
  CHECK(cudaMemcpy(x, d, sizeof x, cudaMemcpyDeviceToHost));
  for (float v : x) EXPECT(v > 0 && v <= 1);
  EXPECT(curandDestroyGenerator(generator) == CURAND_STATUS_SUCCESS);
  return verdict();
}

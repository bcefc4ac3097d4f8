// Dynamic shared memory: several types, in a function, at file scope, through a template.
#include "check.h"

extern __shared__ int at_file_scope[];

__global__ void reversed(int* out) {
  at_file_scope[threadIdx.x] = 3 * threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = at_file_scope[blockDim.x - 1 - threadIdx.x];
}
__global__ void carved(double* out, int n) {
  extern __shared__ __align__(16) unsigned char bytes[];
  double* doubles = reinterpret_cast<double*>(bytes);
  char* chars = reinterpret_cast<char*>(doubles + n);
  __shared__ int fixed[64];
  const int i = threadIdx.x;
  doubles[i] = i / 4.0;
  chars[i] = i;
  fixed[i] = -i;
  __syncthreads();
  const int k = (i + 1) % n;
  out[i] = doubles[k] + 100 * chars[k] + fixed[k];
}
template <class T>
struct SharedMemory {
  __device__ operator T*() {
    extern __shared__ int words[];
    return (T*)words;
  }
};
template <>
struct SharedMemory<double> {
  __device__ operator double*() {
    extern __shared__ double words_of_8[];
    return words_of_8;
  }
};
template <class T>
__global__ void sums(T* out) {
  T* s = SharedMemory<T>();
  s[threadIdx.x] = T(threadIdx.x) + T(1) / 2;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) s[threadIdx.x] += s[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) *out = s[0];
}
__global__ void large(int* out, int n) {
  extern __shared__ float4 quads[];
  for (int i = threadIdx.x; i < n; i += blockDim.x) quads[i] = make_float4(i, 0, 0, 1);
  __syncthreads();
  int sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += quads[n - 1 - i].x + quads[i].w;
  atomicAdd(out, sum);
}
template <class T>
void check_sum() {
  T* out = room<T>(1);
  sums<T><<<1, 64, 64 * sizeof(T)>>>(out);
  done();
  EXPECT(*out == 64 * 63 / 2 + 64 * (T(1) / 2));
}

int main() {
  int *out = room<int>(64), *sum = room<int>(1);
  reversed<<<1, 64, 64 * sizeof(int)>>>(out);
  done();
  for (int i = 0; i < 64; ++i) EXPECT(out[i] == 3 * (63 - i));

  double* doubles = room<double>(64);
  carved<<<1, 64, 64 * 9>>>(doubles, 64);
  done();
  for (int i = 0; i < 64; ++i) EXPECT(doubles[i] == (i + 1) % 64 * 99.25);

  check_sum<int>();
  check_sum<float>();
  check_sum<double>();

  const int bytes = 200 * 1024, n = bytes / 16;  // more than 48 KiB: requires cudaFuncSetAttribute
  CHECK(cudaFuncSetAttribute(large, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  large<<<1, 128, bytes>>>(sum, n);
  done();
  EXPECT(*sum == n / 2 * (n - 1) + n);
  return verdict();
}

// nvcc's alternative spellings: launches, attributes, and headers that are rarely used.
#include <cuComplex.h>
#include <cuda.h>
#include <cuda_fp8.h>
#include <mma.h>
#include <nvtx3/nvToolsExt.h>
#include <sm_60_atomic_functions.h>

#include <algorithm>
#include <iostream>

#include "check.h"

#ifdef _OPENMP
#error nvcc does not define it
#endif

using namespace nvcuda;
using namespace std;  // max and min are still CUDA's

__global__ void add(int* x, int n) { *x += n; }
template <int n, class T>
__global__ void add_n(T* x) {
  *x += n;
}
template <class T>
struct Type {
  typedef T type;
};
template <class T>
int one(int n) {
  return n / n;
}
template <class A, class B>
__device__ int same_size() {
  return sizeof(A) == sizeof(B);
}
template <class T>
__global__ void add_size(int* x) {
  *x += same_size<typename T::type, T::type>();  // without a typename
}
#define LAUNCH(kernel, ...) kernel<<<__VA_ARGS__>>>
#define CONFIGURATION(...) <<<__VA_ARGS__>>>
// clang-format off
int launches(int* x, int n) {
  int sum = 0;
  add << <1, 1 >> > (x, sum += 1);
  add<< <1, 1>> >(x, sum += 2);
  add <<<1, 1>>
     > (x, sum += 4);
  LAUNCH(add, 1, 1)(x, sum += 8);
  add CONFIGURATION(1, 1)(x, 1), add << <n >> 6, 1 >> > (x, n >> 5);
  sum += 3;
  add_n<1 << 4, Type<int>::type> << <n >> (6), dim3(n >> 6) >> > (x);
  ::add_n<(3 > 2 ? 16 : 0), int><<<one<Type<Type<int>>>(n), 1>>>(x);
  return sum += 32;
}
template <class T>
struct Box;
template <class T>
ostream& operator<<(ostream& out, const Box<T>& box) { return out << box.value; }
template <class T>
struct Box {
  T value;
  friend ostream& operator<< <T>(ostream&, const Box&);
};
// clang-format on

__global__ static void __launch_bounds__(256) a1(int* x) { *x += 1; }
void __global__ a2(int* x) { *x += 1; }
__launch_bounds__(256) __global__ void a3(int* x) { *x += 1; }
extern "C" __global__ void a4(int* x) { *x += 1; }
template <class T>
static __global__ __launch_bounds__(128) void a5(T* x) {
  *x += 1;
}
[[maybe_unused]] __global__ void a6(int* x) { *x += 1; }
__device__ [[nodiscard]] int f1(int a) { return a + 1; }
[[nodiscard]] static __device__ __forceinline__ int f2(int a) { return a + 1; }
__attribute__((noinline)) __device__ int f3(int a) { return a + 1; }
int __host__ __device__ f4(int a) { return a + 1; }
constexpr __device__ __host__ int f5(int a) { return a + 1; }
__noinline__ static __device__ int f6(int a) { return a + 1; }

// Each calls the other, which nvcc does not inline.
__device__ __forceinline__ int odd(int n);
__device__ __forceinline__ int even(int n) { return n == 0 ? 1 : odd(n - 1); }
__device__ __forceinline__ int odd(int n) { return n == 0 ? 0 : even(n - 1); }
template <int n, class T>
struct Kept {
  int value = n;
};
__device__ int f7(int a) {
  const auto first = [](float(&x)[2]) { return int(x[0]); };
  float x[2] = {float(a), 0};
  return first(x) + Kept<1, Kept<2, decltype(a * Kept<3, int>().value)>>{}.value - 1;
}

__constant__ __device__ int c1 = 1;
__device__ __constant__ int c2 = 1;
int __constant__ c3 = 1;
__constant__ static const int c4 = 1;
__device__ alignas(16) int v1[2] = {1, 1};
static int __device__ v2 = 1;
__managed__ __device__ int v3 = 1;
__device__ __managed__ int v4 = 1;

__global__ void attributes(int* x) {
  __shared__ alignas(16) int s1[2];
  alignas(16) __shared__ int s2[2];
  volatile __shared__ int s3;
  int __shared__ s4;
  extern __shared__ __align__(128) int s5[];
  s1[0] = s2[0] = s3 = s4 = s5[0] = 1;
#ifdef FA_ANY_PROGRAM  // a generic pointer, as ThunderKittens passes to tcgen05.alloc
  s4 = 0;
  asm volatile("st.shared.s32 [%0], 1;" ::"l"(&s4) : "memory");
#endif
  const auto twice = [](int a) { return 2 * a; };
  *x = f1(0) + f2(0) + f3(0) + f4(0) + f5(0) + f6(0) + f7(even(2)) + c1 + c2 + c3 + c4 + v1[0] +
       v2 + v3 + v4 + s1[0] + s2[0] + s3 + s4 + s5[0] + twice(1) + max(0, 1) + min(2, 1) +
       max(1u, 0u);
}

__global__ void multiply(cuFloatComplex* z) {
  z[0] = cuCmulf(z[0], make_cuFloatComplex(1, 2));
  __nanosleep(static_cast<unsigned>(cuCrealf(z[0])));
}

#ifndef NVCC_REFUSES_IT  // from nvcc 12 on
texture<float, 1, cudaReadModeElementType> table;
__global__ void fetch(float* y) { *y = tex1Dfetch(table, 1) + tex1Dfetch(table, 2); }
void textures() {
  float x[] = {1, 2, 4}, *d;
  cudaMalloc(&d, sizeof x);
  cudaMemcpy(d, x, sizeof x, cudaMemcpyHostToDevice);
  cudaBindTexture(0, table, d, 2 * sizeof(float));  // the third is beyond it: 0
  fetch<<<1, 1>>>(d);
  cudaMemcpy(x, d, sizeof x, cudaMemcpyDeviceToHost);
  EXPECT(x[0] == 2 && cudaUnbindTexture(table) == cudaSuccess);
}
#else
void textures() {}
#endif

struct Job {
  void (*kernel)(int*);
};

int main() {
  textures();
  int *x, got;
  cudaMalloc(&x, 64);
  cudaMemset(x, 0, 64);
  EXPECT(launches(x, 64) == 50);
  cudaMemcpy(&got, x, 4, cudaMemcpyDeviceToHost);
  EXPECT(got == 1 + 3 + 7 + 15 + 1 + 2 + 16 + 16);

  nvtxRangePush("attributes");
  attributes<<<1, 1, 64>>>(x);
  nvtxRangePop();
  cudaMemcpy(&got, x, 4, cudaMemcpyDeviceToHost);
  EXPECT(got == 25);
  a1<<<1, 1>>>(x), a2<<<1, 1>>>(x), a3<<<1, 1>>>(x), a4<<<1, 1>>>(x), a5<<<1, 1>>>(x);
  a6<<<1, 1>>>(x);
  cudaMemcpy(&got, x, 4, cudaMemcpyDeviceToHost);
  EXPECT(got == 31);
  const Job jobs[] = {{a1}, {attributes}}, *job = &jobs[0];
  jobs[1].kernel<<<1, 1, 64>>>(x), (*job).kernel<<<1, 1>>>(x), job->kernel<<<1, 1>>>(x);
  cudaMemcpy(&got, x, 4, cudaMemcpyDeviceToHost);
  EXPECT(got == 25 + 2);
  add_size<Type<int>><<<1, 1>>>(x);
  cudaMemcpy(&got, x, 4, cudaMemcpyDeviceToHost);
  EXPECT(got == 25 + 3);

  cuFloatComplex z = make_cuFloatComplex(3, 4), *d_z;
  cudaMalloc(&d_z, sizeof z);
  cudaMemcpy(d_z, &z, sizeof z, cudaMemcpyHostToDevice);
  multiply<<<1, 1>>>(d_z);
  cudaMemcpy(&z, d_z, sizeof z, cudaMemcpyDeviceToHost);
  EXPECT(z.x == -5 && z.y == 10);
  z = cuCdivf(z, make_cuFloatComplex(1, 2));
  EXPECT(abs(z.x - 3) < 1e-6 && abs(cuCabsf(z) - 5) < 1e-5);
  cuDoubleComplex w = make_cuDoubleComplex(3, 4);
  EXPECT(cuCreal(w) == 3 && cuCimag(w) == 4 && cuCabs(w) == 5 && cuConj(w).y == -4);
  EXPECT(cuCadd(w, w).y == 8 && cuCsub(w, cuConj(w)).y == 8 && cuCsub(w, w).x == 0);
  EXPECT(cuCmul(w, cuConj(w)).x == 25 && cuCmul(w, w).y == 24 && cuCmul(w, w).x == -7);
  w = cuCdiv(cuCfma(w, w, w), make_cuDoubleComplex(0, 2));  // (-4 + 28 i) / 2 i
  EXPECT(w.x == 14 && w.y == 2 && cuComplexDoubleToFloat(w).y == 2);
  w = cuCdiv(make_cuDoubleComplex(1e200, 1e200), make_cuDoubleComplex(1e200, 1e200));
  EXPECT(abs(w.x - 1) < 1e-12 && w.y == 0 && cuComplexFloatToDouble(make_cuComplex(1, 2)).y == 2);
  int number = 0;
  CUdevice device = 5;
  const char* name = nullptr;
  EXPECT(cuDeviceGetCount(&number) == CUDA_SUCCESS && number == 1);
  EXPECT(cuDriverGetVersion(&number) == CUDA_SUCCESS && number == CUDA_VERSION);
  EXPECT(cuDeviceGet(&device, 1) == CUDA_ERROR_INVALID_DEVICE);
  EXPECT(cuGetErrorName(CUDA_ERROR_INVALID_DEVICE, &name) == CUDA_SUCCESS && name[11] == 'I');
  EXPECT(cuGetErrorName(CUDA_SUCCESS, &name) == CUDA_SUCCESS && name[5] == 'S');
  EXPECT(CUDA_VERSION >= 11000 && max<int>(1, 2) == 2);
  return verdict();
}

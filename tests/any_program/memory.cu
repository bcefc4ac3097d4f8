// Variables and dynamic shared memory.
#include "check.h"

// __constant__ and __device__ variables, copied in part, by address, and changed by a kernel.
namespace variables {
struct Params {
  int n;
  float scale;
  double weights[3];
};
__constant__ float table[16];
__constant__ Params params;
__constant__ int initialised[4] = {10, 20, 30, 40};
static __constant__ int scalar = 7;
__device__ int counter;
__device__ int filled[3] = {1, 2, 3};
static __device__ double grid_of[2][4];
__device__ const float half_pi = 1.5707964f;
__device__ float* pointer;
__device__ volatile int flag = 1;
__device__ const int steps[3] = {10, 20, 30};  // read-only, beside others that are not
static constexpr __device__ int more_steps[2] = {4, 5};
__constant__ const float factors[3] = {1.5f, 2.5f, 3.5f};
namespace ns {
__device__ unsigned long long big = 1ull << 40;
__device__ struct {
  int before[5000];
  int last;
} large = {{}, 9};  // of several pages
}  // namespace ns
__managed__ int both = 5;
__device__ __managed__ int shared = 7;

__global__ void read_constants(float* out) {
  const int i = threadIdx.x;
  out[i] = table[i] * params.scale + params.n + float(params.weights[i % 3]) + initialised[i % 4] +
           scalar;
}
__global__ void change() {
  atomicAdd(&counter, 1);
  filled[threadIdx.x % 3] = 100 + threadIdx.x % 3;
  grid_of[threadIdx.x / 4 % 2][threadIdx.x % 4] = threadIdx.x % 8;
  if (threadIdx.x == 0) {
    ns::big += 2;
    flag = flag + 1;
    both = both * 2;
    shared += both;
    pointer[0] = half_pi;
  }
}

__global__ void read_only(float* out) {
  const int i = threadIdx.x;
  out[i] = steps[i] + more_steps[i % 2] + factors[i];
}

void run() {
  float host[16], *out, values[16];
  for (int i = 0; i < 16; ++i) values[i] = i * 0.5f;
  CHECK(cudaMalloc(&out, sizeof host));
  int last = 0;
  CHECK(cudaMemcpyFromSymbol(&last, ns::large, sizeof last, sizeof ns::large.before));
  EXPECT(last == 9);
  const Params p = {100, 4.f, {0.25, 0.5, 0.75}};
  CHECK(cudaMemcpyToSymbol(table, values, sizeof values));
  CHECK(cudaMemcpyToSymbol(params, &p, sizeof p));
  read_constants<<<1, 16>>>(out);
  CHECK(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 16; ++i) {
    EXPECT(host[i] == 2 * i + 100 + 0.25f * (i % 3 + 1) + 10 * (i % 4 + 1) + 7);
  }

  // A part of each: entries 4 to 7 of the table, and only the scale.
  const float zeros[4] = {0, 0, 0, 0}, scale = 8.f;
  const int nine = 9;
  CHECK(cudaMemcpyToSymbol(table, zeros, sizeof zeros, 4 * sizeof(float), cudaMemcpyHostToDevice));
  CHECK(cudaMemcpyToSymbol(params, &scale, sizeof scale, sizeof(int)));
  CHECK(cudaMemcpyToSymbolAsync(scalar, &nine, sizeof nine, 0, cudaMemcpyHostToDevice, 0));
  read_constants<<<1, 16>>>(out);
  CHECK(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 16; ++i) {
    EXPECT(host[i] == (i / 4 == 1 ? 0 : 4 * i) + 100 + 0.25f * (i % 3 + 1) + 10 * (i % 4 + 1) + 9);
  }

  void* address = nullptr;
  size_t bytes = 0;
  CHECK(cudaMemcpyToSymbol(pointer, &out, sizeof out));
  CHECK(cudaGetSymbolAddress(&address, filled));
  CHECK(cudaGetSymbolSize(&bytes, filled));
  EXPECT(address != nullptr && bytes == 12);
  int three[3], count = -1, changed = 0;
  CHECK(cudaMemcpy(three, address, sizeof three, cudaMemcpyDeviceToHost));
  EXPECT(three[0] == 1 && three[1] == 2 && three[2] == 3);
  CHECK(cudaMemcpyFromSymbol(&count, counter, sizeof count));
  EXPECT(count == 0);  // as in C++ for variables of this kind

  change<<<1, 64>>>();
  CHECK(cudaMemcpyFromSymbol(&count, counter, sizeof count));
  EXPECT(count == 64);
  CHECK(cudaMemcpyFromSymbol(three, filled, 8, 4));
  EXPECT(three[0] == 101 && three[1] == 102);
  double cells[8];
  CHECK(cudaMemcpyFromSymbol(cells, grid_of, sizeof cells, 0, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 8; ++i) EXPECT(cells[i] == i);
  unsigned long long big;
  CHECK(cudaMemcpyFromSymbol(&big, ns::big, sizeof big));
  EXPECT(big == (1ull << 40) + 2);
  CHECK(cudaMemcpyFromSymbol(&changed, flag, sizeof changed));
  EXPECT(changed == 2);
  CHECK(cudaDeviceSynchronize());
  EXPECT(both == 10);
  EXPECT(shared == 17);
  both = 50;
  shared = 1;
  EXPECT(both == 50);
  CHECK(cudaMemcpy(host, out, 4, cudaMemcpyDeviceToHost));
  EXPECT(host[0] == 1.5707964f);
  CHECK(cudaMemcpyToSymbol(counter, &nine, sizeof nine));
  change<<<1, 1>>>();
  CHECK(cudaMemcpyFromSymbol(&count, counter, sizeof count));
  EXPECT(count == 10);
  read_only<<<1, 3>>>(out);
  CHECK(cudaMemcpy(host, out, 12, cudaMemcpyDeviceToHost));
  EXPECT(host[0] == 15.5f && host[1] == 27.5f && host[2] == 37.5f);
  CHECK(cudaMemcpyFromSymbol(three, steps, sizeof three));
  EXPECT(three[0] == 10 && three[2] == 30);
  int part[2] = {-1, -2};
  CHECK(cudaMemcpyFromSymbolAsync(part, filled, 4, 8, cudaMemcpyDeviceToHost, 0));
  CHECK(cudaMemcpyToSymbol(filled, &nine, 0, 12));  // nothing, at the end
  EXPECT(part[0] == 102 && part[1] == -2);
  CHECK(cudaGetSymbolSize(&bytes, grid_of));
  EXPECT(bytes == 64);
  CHECK(cudaGetSymbolAddress(&address, grid_of));
  CHECK(cudaMemset((char*)address + 8, 0, 8));
  CHECK(cudaMemcpyFromSymbol(cells, grid_of, sizeof cells));
  EXPECT(cells[0] == 0 && cells[1] == 0 && cells[2] == 2);
  CHECK(cudaMemcpyToSymbol(grid_of, cells + 2, 8, 16, cudaMemcpyDefault));
  CHECK(cudaMemcpyToSymbol(filled, (char*)address + 16, 8, 4, cudaMemcpyDeviceToDevice));
  CHECK(cudaMemcpyFromSymbol(three, filled, 12));
  EXPECT(three[1] == 0 && three[2] == 0x40000000);  // a double's 2
  CHECK(cudaFree(out));
}
}  // namespace variables

// Dynamic shared memory: several types, in a function, at file scope, through a template.
namespace dynamic_shared {
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

void run() {
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
  CHECK(cudaFuncSetAttribute(carved, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 * 1024));
  large<<<1, 128, bytes>>>(sum, n);
  done();
  EXPECT(*sum == n / 2 * (n - 1) + n);
}
}  // namespace dynamic_shared

int main() {
  variables::run();
  dynamic_shared::run();
  return verdict();
}

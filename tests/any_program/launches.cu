// Launches in every form: macros, templates, pointers, namespaces, members, defaults.
#include <map>

#include "check.h"

#define RUN(kernel, ...) kernel<<<1, 32>>>(__VA_ARGS__)
#define BLOCKS(n) (((n) + 63) / 64)

__global__ void add(int* out, int n, int by) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] += by;
}
__global__ void add_double(int* out, double by, unsigned char more = 3) {
  out[threadIdx.x] += int(4 * by) + more;
}
template <class T>
__global__ void deduced(T* out, T by) {
  out[threadIdx.x] += by;
}
template <int by, class T = int>
__global__ void given(T* out) {
  out[threadIdx.x] += by;
}
template <class T>
struct Pair {
  T a, b;
};
template <class P>
__global__ void nested(int* out, P p) {
  out[threadIdx.x] += p.a.a + p.b.b;
}
namespace outer {
namespace inner {
__global__ void add(int* out, int by) { out[threadIdx.x] += by; }
}  // namespace inner
template <int by>
__global__ void twice(int* out) {
  out[threadIdx.x] += 2 * by;
}
}  // namespace outer
static __global__ void maybe(int* out, const int* other) {
  out[threadIdx.x] += other ? other[threadIdx.x] : 5;
}
__global__ void where(int* out) {
  const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] = 1000 * block + thread;
}
__global__ void __launch_bounds__(64, 2) bounded(int* out) { out[threadIdx.x] += 1; }
extern "C" __global__ void plain(int* out) { out[threadIdx.x] += 1; }

struct Table {
  static void (*kernel)(int*);
};
void (*Table::kernel)(int*) = plain;
static void (*const pointers[])(int*) = {bounded, given<9>};

struct Work {
  int* out;
  int by;
  void go() const { outer::inner::add<<<1, 32>>>(out, by); }
};
template <class T>
void from_template(T* out) {
  deduced<T><<<1, 32>>>(out, T(6));
  if (sizeof(T) == 4)
    given<1><<<1, 32>>>(out);
  else
    given<2><<<1, 32>>>(out);
}

int main() {
  int *out, *other, host[64];
  CHECK(cudaMalloc(&out, sizeof host));
  CHECK(cudaMalloc(&other, sizeof host));
  CHECK(cudaMemset(out, 0, sizeof host));
  CHECK(cudaMemset(other, 0, sizeof host));
  int expected = 0;
#define EXPECT_ADDED(by)                                               \
  do {                                                                 \
    expected += by;                                                    \
    CHECK(cudaGetLastError());                                         \
    CHECK(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost)); \
    for (int i = 0; i < 32; ++i) EXPECT(host[i] == expected);          \
  } while (0)

  add<<<BLOCKS(32), 64>>>(out, 32, 1);
  EXPECT_ADDED(1);
  RUN(add, out, 32, 2);
  EXPECT_ADDED(2);
  add<<<dim3(1, 1), dim3(32), 0, 0>>>(out, 32.0f, 'a' - 'A');  // arguments that convert
  EXPECT_ADDED(32);
  add_double<<<1, 32>>>(out, 1, 2);
  EXPECT_ADDED(6);
  deduced<<<1, 32>>>(out, 4);
  EXPECT_ADDED(4);
  given<7><<<1, 32>>>(out);
  EXPECT_ADDED(7);
  given<(9 > 8), int><<<1, 32>>>(out);
  EXPECT_ADDED(1);
  nested<Pair<Pair<int>>><<<1, 32>>>(out, Pair<Pair<int>>{{1, 2}, {3, 4}});
  EXPECT_ADDED(5);
  outer::inner::add<<<1, 32>>>(out, -3);
  EXPECT_ADDED(-3);
  ::outer::twice<4><<<1, 32>>>(out);
  EXPECT_ADDED(8);
  Work{out, 10}.go();
  EXPECT_ADDED(10);
  from_template(out);
  EXPECT_ADDED(7);
  maybe<<<1, 32>>>(out, NULL);
  EXPECT_ADDED(5);
  maybe<<<1, 32>>>(out, nullptr);
  EXPECT_ADDED(5);
  maybe<<<1, 32>>>(out, other);
  EXPECT_ADDED(0);
  bounded<<<1, 32>>>(out), plain<<<1, 32>>>(out);
  EXPECT_ADDED(2);
  void (*pointer)(int*) = plain;
  pointer<<<1, 32>>>(out);
  void (*table[2])(int*) = {given<3>, bounded};
  for (int i = 0; i < 2; ++i) table[i]<<<1, 32>>>(out);
  EXPECT_ADDED(5);
  Table::kernel<<<1, 32>>>(out);
  for (auto kernel : pointers) kernel<<<1, 32>>>(out);
  pointers[1]<<<1, 32>>>(out);
  EXPECT_ADDED(20);
  // Expressions that only the host can evaluate.
  std::map<int, void (*)(int*)> kernels = {{1, plain}};
  int asked = 0;
  const auto pick = [&] { return ++asked, bounded; };
  kernels[1]<<<1, 32>>>(out);
  pick()<<<1, 32>>>(out);
  EXPECT(asked == 1);
  EXPECT_ADDED(2);
  int n = 32, by = 11;
  void* args[] = {&out, &n, &by};
  CHECK(cudaLaunchKernel((void*)add, dim3(1), dim3(32), args, 0, 0));
  CHECK(cudaLaunchKernel(add, 1, 32, args));
  EXPECT_ADDED(22);
  if (expected > 0) plain<<<1, 32>>>(out);
  EXPECT_ADDED(1);
  where<<<dim3(2, 2, 2), dim3(2, 2, 2)>>>(out);
  CHECK(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 64; ++i) EXPECT(host[i] == 1000 * (i / 8) + i % 8);
  CHECK(cudaFree(out));
  CHECK(cudaFree(other));
  return verdict();
}

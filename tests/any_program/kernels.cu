// Kernels: how they are launched, and methods and templates among them.
#include <map>

#include "check.h"

// Launches in every form: macros, templates, pointers, namespaces, members, defaults.
namespace launches {
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

void run() {
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
  ::launches::outer::twice<4><<<1, 32>>>(out);
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
}
}  // namespace launches

// C++ in kernels: classes, functors, recursion, function pointers, structs by value, operators.
namespace classes {
struct Matrix {
  int width, height;
  float* cells;
  __host__ __device__ float& operator()(int y, int x) const { return cells[y * width + x]; }
};
class Complex {
 public:
  __host__ __device__ Complex(float re, float im) : re_(re), im_(im) {}
  __host__ __device__ Complex operator*(const Complex& o) const {
    return Complex(re_ * o.re_ - im_ * o.im_, re_ * o.im_ + im_ * o.re_);
  }
  __host__ __device__ float norm() const { return re_ * re_ + im_ * im_; }

 private:
  float re_, im_;
};
struct Add {
  int by;
  __device__ int operator()(int x) const { return x + by; }
};
struct Base {
  __device__ Base(int v) : value(v) {}
  __device__ virtual ~Base() {}
  __device__ virtual int get() const { return value; }
  int value;
};
struct Derived : Base {
  __device__ Derived(int v) : Base(v) {}
  __device__ int get() const override { return 10 * value; }
};
template <int n>
struct Power {
  __device__ static int of(int x) { return x * Power<n - 1>::of(x); }
};
template <>
struct Power<0> {
  __device__ static int of(int) { return 1; }
};

__device__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
__device__ int twice(int x) { return 2 * x; }
__device__ int square(int x) { return x * x; }
typedef int (*Function)(int);
__device__ Function chosen = twice;
__constant__ Function both[2] = {twice, square};

template <class F>
__global__ void apply(int* p, F f) {
  p[threadIdx.x] = f(p[threadIdx.x]);
}
__global__ void transpose(Matrix in, const Matrix out) {
  const int x = threadIdx.x, y = threadIdx.y;
  if (x < in.width && y < in.height) out(x, y) = in(y, x);
}
__global__ void language(int* out) {
  const int i = threadIdx.x;
  int n = 0;
  out[8 * i + n++] = fibonacci(i);
  out[8 * i + n++] = chosen(i) + both[i % 2](i);
  Base base(i);
  Derived derived(i);
  const Base* chosen_one = i % 2 ? &derived : &base;
  out[8 * i + n++] = chosen_one->get();
  out[8 * i + n++] = Power<3>::of(i);
  const auto lambda = [i](int k) { return k * i; };
  out[8 * i + n++] = lambda(7);
  int local[8];
  for (int k = 0; k < 8; ++k) local[(k + i) % 8] = k;
  out[8 * i + n++] = local[3];
  const Complex c = Complex(i, 1) * Complex(0, 2);
  out[8 * i + n++] = (int)c.norm();
  switch (i % 3) {
    case 0:
      out[8 * i + n] = -1;
      break;
    case 1:
      out[8 * i + n] = -2;
      break;
    default:
      out[8 * i + n] = sizeof(Matrix);
  }
}
static int host_fibonacci(int n) {
  return n < 2 ? n : host_fibonacci(n - 1) + host_fibonacci(n - 2);
}

void run() {
  int* out = room<int>(128);
  language<<<1, 16>>>(out);
  done();
  for (int i = 0; i < 16; ++i) {
    const int* row = out + 8 * i;
    EXPECT(row[0] == host_fibonacci(i));
    EXPECT(row[1] == 2 * i + (i % 2 ? i * i : 2 * i));
    EXPECT(row[2] == (i % 2 ? 10 * i : i) && row[3] == i * i * i && row[4] == 7 * i);
    EXPECT(row[5] == (3 - i % 8 + 8) % 8 && row[6] == 4 * (i * i + 1));
    EXPECT(row[7] == (i % 3 == 0 ? -1 : i % 3 == 1 ? -2 : 16));
  }
  for (int i = 0; i < 128; ++i) out[i] = i;
  apply<<<1, 128>>>(out, Add{5});
  done();
  for (int i = 0; i < 128; ++i) EXPECT(out[i] == i + 5);

  const Matrix in = {5, 3, room<float>(15)}, other = {3, 5, room<float>(15)};
  for (int i = 0; i < 15; ++i) in.cells[i] = i;
  transpose<<<1, dim3(8, 4)>>>(in, other);
  done();
  for (int i = 0; i < 15; ++i) EXPECT(other.cells[i % 5 * 3 + i / 5] == i);
}
}  // namespace classes

int main() {
  launches::run();
  classes::run();
  return verdict();
}

// C++ in kernels: classes, functors, recursion, function pointers, structs by value, operators.
#include "check.h"

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

int main() {
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
  return verdict();
}

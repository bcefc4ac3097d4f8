// cuRAND: the device's generators give NVIDIA's numbers.
#include <curand.h>
#include <curand_kernel.h>

#include <math.h>

#include "check.h"

template <class State>
__global__ void numbers(unsigned* out) {
  State state;
  curand_init(1234, threadIdx.x, 3, &state);
  for (int i = 0; i < 4; ++i) out[4 * threadIdx.x + i] = curand(&state);
}
// The result of each call from the generator's words.
__global__ void calls(unsigned* words, float* f, double* d, int* same) {
  curandStatePhilox4_32_10_t p, q;
  curand_init(1234, 0, 3, &p);
  curand_init(1234, 0, 0, &q);
  skipahead(3, &q);
  *same = 1;
  const uint4 four = curand4(&p);
  words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
  *same &= curand(&q) == four.x && curand(&q) == four.y;
  curandState a, b, c;
  curand_init(1234, 0, 3, &a);
  f[0] = curand_uniform(&a);
  d[0] = curand_uniform_double(&a);
  curand_init(1234, 0, 3, &a);
  curand_init(1234, 0, 3, &b);
  curand_init(1234, 0, 3, &c);
  const float2 pair = curand_normal2(&b);
  const float first = curand_normal(&a), second = curand_normal(&a), third = curand_normal(&a);
  *same &= first == pair.x && second == pair.y && third == curand_normal(&b);
  const double x = curand_normal_double(&a);
  const double2 pairs = curand_normal2_double(&b);
  *same &= x == pairs.x;
  *same &= curand_log_normal(&c, 1.f, 2.f) == expf(1 + 2 * first);
  *same &= curand_log_normal(&c, 0.f, 1.f) == expf(second);
  curand_init(1234, 0, 3, &p);
  curand_init(1234, 0, 3, &q);
  d[1] = curand_uniform_double(&p);
  const float4 uniform = curand_uniform4(&q);
  f[1] = uniform.x, f[2] = uniform.w;
  const float4 normal = curand_normal4(&p);
  const float2 next = (curand_init(1234, 0, 4, &q), curand_normal2(&q));
  *same &= normal.x == next.x && normal.y == next.y && normal.z == curand_normal2(&q).x;
  curand_init(1ull << 32 | 5, 1ull << 32, 0, &p);  // the upper words count
  curand_init(5, 0, 0, &q);
  *same &= curand(&p) != curand(&q);
  curand_init(9, 3, 6, &a);
  curand_init(9, 3, 0, &b);
  for (int i = 0; i < 6; ++i) curand(&b);
  *same &= curand(&a) == curand(&b) && curand(&a) == curand(&b);
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
  float* f = room<float>(4);
  double* doubles = room<double>(2);
  calls<<<1, 1>>>(out, f, doubles, hits);
  done();
  EXPECT(*hits == 1);
  for (int i = 0; i < 4; ++i) EXPECT(out[i] == philox[i]);
  const double unit = 1 / 4294967296.;
  EXPECT(fabs(f[0] - (xorwow[0] + 0.5) * unit) < 1e-7);
  const unsigned long long both = xorwow[1] ^ (unsigned long long)xorwow[2] << 21;
  EXPECT(fabs(doubles[0] - both / 9007199254740992.) < 1e-15);
  EXPECT(fabs(f[1] - philox[0] * unit) < 1e-7 && fabs(f[2] - philox[3] * unit) < 1e-7);
  EXPECT(doubles[1] == philox[0] * unit + unit);
  *hits = 0;
  double* squares = room<double>(1);
  estimate_pi<<<1, 64>>>(hits, squares);
  done();
  EXPECT(*hits > 0.77 * 12800 && *hits < 0.80 * 12800);
  EXPECT(*squares > 0.96 * 12800 && *squares < 1.04 * 12800);
  return verdict();
}

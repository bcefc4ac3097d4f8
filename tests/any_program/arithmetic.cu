// Arithmetic that C++ leaves undefined; two floats at a time; what nvcc accepts and g++ does not.
#include <cooperative_groups.h>

#include <cstdint>
#include <cstring>

#include "check.h"

template <int n>
struct Box {
  int v[n];
};
enum Small { none, one };

// Each cast reads once, however often its value is used.
__global__ void casts(const float* x, const double* d, int* out) {
  int i = 0;
  out[i++] = (unsigned char)x[0];
  out[i++] = static_cast<unsigned char>(x[1]);
  out[i++] = int(x[2]);
  out[i++] = (int)x[3];
  out[i++] = (float)(int)x[2] > 2e9f;
  out[i++] = 1 - (int)x[0] + (int)x[4] * 2;
  out[i++] = x[4] > 1 && (int)x[2] > 5 && sizeof(int) == 4;
  out[i++] = (unsigned)d[0] == ~0u && (long long)d[1] == INT64_MIN;
  out[i++] = -(int)x[4] + (int)(unsigned char)x[0] + (int)one + (unsigned)-1;
  out[i++] = (short)x[2] + (uint16_t)x[1] + (signed char)x[4];
  Box<(int)2.9f> box = {{int(x[4]), (int)*x}};
  out[i++] = box.v[0] + box.v[1];
  auto unnamed = [](int) { return 3; };
  out[i++] = unnamed((int)x[4]);
  out[i++] = ~int(x[2]);
  out[i++] = int2{int(x[2]), 0}.x;
  out[i] = static_cast<int>(d[0]) >> (int)x[1];
}
__global__ void shifts(const int* by, int* out) {
  int i = 0;
  out[i++] = 1u << by[0];
  out[i++] = -by[0] >> by[0];
  out[i++] = by[1] + 1 << by[1] - 1 | 1 << by[1] << 2;
  out[i++] = (1ull << by[0]) >> by[0];
  out[i++] = 1ull << by[0] + 32;
  out[i++] = -1 << by[2];
  Box<4> box[2] = {};
  box[by[1] >> by[1]].v[0] = one << by[1];
  out[i] = box[0].v[0];
}

__global__ void pairs(const float2* x, float2* out) {
#ifndef NVCC_REFUSES_IT  // up to sm_90
  out[0] = __fadd2_rn(x[0], x[1]);
  out[1] = __fmul2_rn(x[0], x[1]);
  out[2] = __ffma2_rn(x[0], x[1], x[0]);
  out[3] = __fadd2_rd(x[0], make_float2(1e-30f, -1e-30f));
#endif
}

namespace kernels {
template <class T, int n>
__global__ void set(T* p) {
  *p = n;
}
}  // namespace kernels
template <class T>
void set(T* p) {
  ::kernels::template set<T, 5><<<1, 1>>>(p);
}
__global__ void six(int* p) { *p = 6; }
__global__ void large(int* p, int n) {
  float a[40000];  // exceeds the 64 KiB of a simulated thread's stack; a GPU has 512
  for (int i = 0; i < n; ++i) a[i] = i;
  *p = a[n - 1];
}

// A launch in a struct returned by a function: its attributes move with it.
__global__ void clusters(unsigned* p) {
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(p[blockIdx.x]));
}
// A cluster of three dimensions: what each block knows of its place, which follows from blockIdx.
#define SPECIAL(name, axis)                        \
  [] {                                             \
    unsigned v;                                    \
    asm("mov.u32 %0, %%" name axis ";" : "=r"(v)); \
    return v;                                      \
  }()
#define PLACE(axis, clusters)                                                              \
  SPECIAL("cluster_ctaid.", #axis) == blockIdx.axis % 2 && at.axis == blockIdx.axis % 2 && \
      SPECIAL("cluster_nctaid.", #axis) == 2 && size.axis == 2 &&                          \
      SPECIAL("clusterid.", #axis) == blockIdx.axis / 2 &&                                 \
      SPECIAL("nclusterid.", #axis) == clusters
__global__ void __cluster_dims__(2, 2, 2) places(unsigned* wrong) {
  const auto cluster = cooperative_groups::this_cluster();
  const dim3 at = cluster.block_index(), size = cluster.dim_blocks();
  const unsigned rank = at.x + 2 * at.y + 4 * at.z;
  bool right = PLACE(x, 2) && PLACE(y, 1) && PLACE(z, 3) && cluster.block_rank() == rank &&
               SPECIAL("cluster_cta", "rank") == rank && SPECIAL("cluster_nct", "arank") == 8;
  extern __shared__ char dynamic[];  // a pointer's low bits are those of the address
  right &= ((size_t)dynamic & 0x3ffff) == (__cvta_generic_to_shared(dynamic) & 0x3ffff);
  __shared__ unsigned seen;  // by the next block of the cluster
  cluster.sync();
  const unsigned number = blockIdx.z / 2 * 2 + blockIdx.x / 2;
  *cluster.map_shared_rank(&seen, (rank + 1) % 8) = number;
  cluster.sync();
  atomicAdd(&wrong[0], !right || seen != number);
  atomicAdd(&wrong[1], 1);
}
struct Launch {
  cudaLaunchConfig_t config;
  cudaLaunchAttribute attribute[2];
};
struct Reversed {
  cudaLaunchAttribute attribute[2];
  cudaLaunchConfig_t config;
};
template <class L>
L cluster_of(unsigned n) {
  L l;
  l.attribute[0].id = cudaLaunchAttributeClusterDimension;
  l.attribute[0].val.clusterDim = {n, 1, 1};
  l.config.gridDim = 4, l.config.blockDim = 1, l.config.dynamicSmemBytes = 0, l.config.stream = 0;
  l.config.attrs = l.attribute, l.config.numAttrs = 1;
  return l;
}

int main(int argc, char**) {
  const float hx[] = {-5.f, 300.f, 3e9f, __builtin_nanf(""), 2.5f};
  const double hd[] = {1e10, -1e300};
  const int hby[] = {32, 2, -1};
  auto* x = room<float>(5);
  auto* d = room<double>(2);
  int *by = room<int>(3), *out = room<int>(32);
  memcpy(x, hx, sizeof hx), memcpy(d, hd, sizeof hd), memcpy(by, hby, sizeof hby);
  casts<<<1, 1>>>(x, d, out);
  done();
  const int cast[] = {0,  44,           INT32_MAX, 0, 1,         10,        1, 1,
                      -2, -1 + 300 + 2, -3,        3, INT32_MIN, INT32_MAX, 0};
  for (int i = 0; i < 15; ++i) EXPECT(out[i] == cast[i]);
  shifts<<<1, 1>>>(by, out);
  done();
  const int shift[] = {0, -1, 22, 1, 0, 0, 4};
  for (int i = 0; i < 7; ++i) EXPECT(out[i] == shift[i]);

  auto* f = room<float2>(6);
  f[0] = {1, 2}, f[1] = {3, 4};
  pairs<<<1, 1>>>(f, f + 2);
  done();
  EXPECT(f[2].x == 4 && f[2].y == 6 && f[3].x == 3 && f[3].y == 8 && f[4].x == 4 && f[4].y == 10);
  EXPECT(f[5].x == 1 && f[5].y < 2);

  set(out);
  done();
  EXPECT(*out == 5);
  if (argc > 9)
    *out = 0;
  else
    ::six<<<1, 1>>>(out);
  done();
  EXPECT(*out == 6);
  large<<<1, 32>>>(out, 40000);
  done();
  EXPECT(*out == 39999);

  auto* n = room<unsigned>(4);
  void* arguments[] = {&n};
  Launch two = cluster_of<Launch>(2);
  CHECK(cudaLaunchKernelExC(&two.config, (void*)clusters, arguments));
  done();
  EXPECT(n[0] == 2 && n[3] == 2);
  Reversed four = cluster_of<Reversed>(4);
  const cudaLaunchConfig_t elsewhere = four.config;  // its attributes stay there
  EXPECT(elsewhere.attrs == four.attribute);
  CHECK(cudaLaunchKernelEx(&elsewhere, clusters, n));
  done();
  EXPECT(n[0] == 4 && n[3] == 4);
  n[0] = n[1] = 0;
  places<<<dim3(4, 2, 6), 1>>>(n);
  done();
  EXPECT(n[0] == 0 && n[1] == 48);
  return verdict();
}

// Atomics: every operation with every supported type, in global and in shared memory.
#include <limits.h>

#include "check.h"

struct Cells {
  int add_i, sub_i, min_i, max_i, and_i, or_i, xor_i, exch_i, cas_i;
  unsigned add_u, sub_u, min_u, max_u, inc_u, dec_u, and_u, or_u, xor_u, exch_u, cas_u;
  unsigned long long add_l, min_l, max_l, and_l, or_l, xor_l, exch_l, cas_l;
  long long min_s, max_s;
  float add_f, exch_f;
  double add_d, by_cas;
};

// From CUDA's programming guide, for old GPUs.
__device__ double add_by_cas(double* address, double v) {
  unsigned long long* cell = (unsigned long long*)address;
  unsigned long long old = *cell, assumed;
  do {
    assumed = old;
    old = atomicCAS(cell, assumed, __double_as_longlong(v + __longlong_as_double(assumed)));
  } while (assumed != old);
  return __longlong_as_double(old);
}
__global__ void all(Cells* c, int* seen) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;  // 0 to 255
  const unsigned long long big = (unsigned long long)(i + 1) << 33;
  seen[atomicAdd(&c->add_i, 1)] = 1;  // each thread gets a different old value
  atomicSub(&c->sub_i, i);
  atomicMin(&c->min_i, 100 - i);
  atomicMax(&c->max_i, i - 100);
  atomicAnd(&c->and_i, ~(1 << i % 32));
  atomicOr(&c->or_i, 1 << i % 31);
  atomicXor(&c->xor_i, 1 << i % 16);
  if (i == 3) seen[256] = atomicExch(&c->exch_i, 33);
  if (i == 4) seen[257] = atomicCAS(&c->cas_i, 5, 55), seen[258] = atomicCAS(&c->cas_i, 5, 66);
  atomicAdd(&c->add_u, 0x80000000u + i);
  atomicSub(&c->sub_u, 2u);
  atomicMin(&c->min_u, 0x90000000u + i);
  atomicMax(&c->max_u, 0x90000000u + i);
  atomicInc(&c->inc_u, 99u);
  atomicDec(&c->dec_u, 99u);
  atomicAnd(&c->and_u, ~(1u << i % 8));
  atomicOr(&c->or_u, 1u << i % 32);
  atomicXor(&c->xor_u, 1u << i % 32);
  if (i == 5) seen[259] = atomicExch(&c->exch_u, 44u), seen[260] = atomicCAS(&c->cas_u, 6u, 77u);
  atomicAdd(&c->add_l, big);
  atomicMin(&c->min_l, big);
  atomicMax(&c->max_l, big);
  atomicAnd(&c->and_l, ~(1ull << i % 64));
  atomicOr(&c->or_l, 1ull << i % 64);
  atomicXor(&c->xor_l, big);
  if (i == 6) atomicExch(&c->exch_l, big), atomicCAS(&c->cas_l, 1ull << 40, 2ull << 40);
  atomicMin(&c->min_s, -(long long)big);
  atomicMax(&c->max_s, -(long long)big);
  atomicAdd(&c->add_f, 0.5f);
  if (i == 7) seen[261] = (int)atomicExch(&c->exch_f, 2.5f);
  atomicAdd(&c->add_d, 0.125);
  add_by_cas(&c->by_cas, i);
}
__global__ void in_shared(int* out, const unsigned char* data, int n) {
  __shared__ int bins[16];
  __shared__ float total;
  if (threadIdx.x < 16) bins[threadIdx.x] = 0;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    atomicAdd(&bins[data[i] % 16], 1);
    atomicAdd_block(&total, 1.f);
  }
  __syncthreads();
  if (threadIdx.x < 16) atomicAdd_system(&out[threadIdx.x], bins[threadIdx.x]);
  if (threadIdx.x == 16) out[16] = (int)total;
}

__global__ void short_cas(unsigned short* cells) {
  if (threadIdx.x < 2) atomicCAS(cells + threadIdx.x, (unsigned short)5, (unsigned short)9);
}

int main() {
  Cells *c, host = {};
  host.min_i = INT_MAX, host.max_i = INT_MIN, host.and_i = -1, host.exch_i = 3, host.cas_i = 5;
  host.min_u = UINT_MAX, host.dec_u = 10, host.and_u = UINT_MAX, host.exch_u = 4, host.cas_u = 6;
  host.min_l = ULLONG_MAX, host.and_l = ULLONG_MAX, host.cas_l = 1ull << 40;
  host.min_s = LLONG_MAX, host.max_s = LLONG_MIN, host.exch_f = 9.f;
  int* seen = room<int>(262);
  CHECK(cudaMalloc(&c, sizeof *c));
  CHECK(cudaMemcpy(c, &host, sizeof host, cudaMemcpyHostToDevice));
  all<<<4, 64>>>(c, seen);
  CHECK(cudaMemcpy(&host, c, sizeof host, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 256; ++i) EXPECT(seen[i] == 1);
  EXPECT(host.add_i == 256 && host.sub_i == -255 * 128 && host.min_i == -155);
  EXPECT(host.max_i == 155 && host.and_i == 0 && host.or_i == 0x7fffffff && host.xor_i == 0);
  EXPECT(host.exch_i == 33 && seen[256] == 3);
  EXPECT(host.cas_i == 55 && seen[257] == 5 && seen[258] == 55);
  EXPECT(host.add_u == 255 * 128 && host.sub_u == 0u - 512 && host.min_u == 0x90000000u);
  EXPECT(host.max_u == 0x900000ffu && host.inc_u == 56 && host.and_u == 0xffffff00u);
  EXPECT(host.dec_u == (10 + 300 - 256) % 100 && host.or_u == UINT_MAX && host.xor_u == 0);
  EXPECT(host.exch_u == 44 && seen[259] == 4 && host.cas_u == 77 && seen[260] == 6);
  EXPECT(host.add_l == 256ull * 257 / 2 << 33 && host.min_l == 1ull << 33);
  EXPECT(host.max_l == 256ull << 33 && host.and_l == 0 && host.or_l == ULLONG_MAX);
  EXPECT(host.xor_l == 256ull << 33 && host.exch_l == 7ull << 33 && host.cas_l == 2ull << 40);
  EXPECT(host.min_s == -(256ll << 33) && host.max_s == -(1ll << 33));
  EXPECT(host.add_f == 128 && host.exch_f == 2.5f && seen[261] == 9 && host.add_d == 32);
  EXPECT(host.by_cas == 255 * 128);

  unsigned char data[1000], *d_data;
  int bins[17] = {}, expected[17] = {}, *d_bins;
  for (int i = 0; i < 1000; ++i) data[i] = i * i % 251, ++expected[data[i] % 16];
  expected[16] = 1000;
  CHECK(cudaMalloc(&d_data, sizeof data));
  CHECK(cudaMalloc(&d_bins, sizeof bins));
  CHECK(cudaMemcpy(d_data, data, sizeof data, cudaMemcpyHostToDevice));
  CHECK(cudaMemset(d_bins, 0, sizeof bins));
  in_shared<<<1, 96>>>(d_bins, d_data, 1000);
  CHECK(cudaMemcpy(bins, d_bins, sizeof bins, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 17; ++i) EXPECT(bins[i] == expected[i]);
  unsigned short* shorts = room<unsigned short>(2);
  shorts[0] = 4, shorts[1] = 5;
  short_cas<<<1, 32>>>(shorts);
  done();
  EXPECT(shorts[0] == 4 && shorts[1] == 9);
  return verdict();
}

// One warp loads tiles into two stages, two warps add them up. Barriers 2 and 3: a stage is full.
// Barrier 1: the oldest tile has been read, so its stage may be filled again.
#include <cstdio>

constexpr int kTiles = 8, kAdders = 64, kAll = 96;

__device__ void arrive(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kAll) : "memory");
}
__device__ void sync(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kAll) : "memory");
}

__global__ void add_tiles(const int* in, int* out) {
  __shared__ int stage[2][kAdders];
  const int t = threadIdx.x;
  for (int i = t; i < 2 * kAdders; i += kAll) stage[i / kAdders][i % kAdders] = in[i];
  __syncthreads();  // tiles 0 and 1 are there
  if (t >= kAdders) {
    for (int tile = 2; tile < kTiles; ++tile) {
      sync(1);
      for (int i = t - kAdders; i < kAdders; i += 32) stage[tile % 2][i] = in[tile * kAdders + i];
      arrive(2 + tile % 2);
    }
    return;
  }
  int sum = 0;
  for (int tile = 0; tile < kTiles; ++tile) {
    if (tile >= 2) sync(2 + tile % 2);
    sum += stage[tile % 2][t];
    if (tile + 2 < kTiles) arrive(1);
  }
  out[t] = sum;
}

int main() {
  int *in, *out, wrong = 0;
  cudaMallocManaged(&in, kTiles * kAdders * sizeof(int));
  cudaMallocManaged(&out, kAdders * sizeof(int));
  for (int i = 0; i < kTiles * kAdders; ++i) in[i] = i * i % 101;
  add_tiles<<<1, kAll>>>(in, out);
  cudaDeviceSynchronize();
  for (int t = 0; t < kAdders; ++t) {
    int sum = 0;
    for (int tile = 0; tile < kTiles; ++tile) sum += in[tile * kAdders + t];
    wrong += out[t] != sum;
  }
  printf("%d sums are wrong\n", wrong);
  return wrong != 0;
}

// Barriers of a block that count: __syncthreads_count, _or, _and; and fences.
#include "check.h"

__global__ void votes(int* out, int limit) {
  __shared__ int s[96];
  const int i = threadIdx.x;
  s[i] = i * i;
  const int count = __syncthreads_count(i < limit);  // a barrier, too
  const int neighbour = s[(i + 1) % blockDim.x];
  const int any = __syncthreads_or(i == limit);
  const int every = __syncthreads_and(i < limit);
  int* row = out + 4 * (blockIdx.x * blockDim.x + i);
  row[0] = count;
  row[1] = any;
  row[2] = every;
  row[3] = neighbour;
}
// The last block adds up what all have written, as CUDA's sample threadFenceReduction does.
__device__ unsigned arrived = 0;
__global__ void last_block(volatile int* partial, int* total) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = 10 * blockIdx.x;
    __threadfence();
    last = atomicInc(&arrived, gridDim.x) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    int sum = 0;
    for (unsigned i = 0; i < gridDim.x; ++i) sum += partial[i];
    *total = sum;
  }
}

int main() {
  int *rows = room<int>(2 * 96 * 4), *partial = room<int>(20), *total = room<int>(1);
  const int limits[] = {0, 1, 33, 95, 96};
  for (int limit : limits) {
    votes<<<2, 96>>>(rows, limit);
    done();
    for (int i = 0; i < 2 * 96; ++i) {
      EXPECT(rows[4 * i] == limit);
      EXPECT((rows[4 * i + 1] != 0) == (limit < 96));
      EXPECT((rows[4 * i + 2] != 0) == (limit == 96));
      EXPECT(rows[4 * i + 3] == (i % 96 + 1) % 96 * ((i % 96 + 1) % 96));
    }
  }
  last_block<<<20, 32>>>(partial, total);
  done();
  EXPECT(*total == 1900);
  return verdict();
}

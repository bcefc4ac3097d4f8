// A block transposes a tile in shared memory and writes it back by one bulk copy.
#include <cstdint>
#include <cstdio>

constexpr int T = 32;

__global__ void transpose(const int* in, int* out) {
  __shared__ alignas(128) int tile[T * T];
  const int x = threadIdx.x, y = threadIdx.y;
  tile[x * T + y] = in[blockIdx.x * T * T + y * T + x];
  __syncthreads();
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  if (x == 0 && y == 0) {
    const uint32_t from = __cvta_generic_to_shared(tile);
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                     out + blockIdx.x * T * T),
                 "r"(from), "n"(T * T * 4)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
}

int main() {
  constexpr int kTiles = 4;
  int *in, *out, wrong = 0;
  for (int** p : {&in, &out}) cudaMallocManaged(p, kTiles * T * T * sizeof(int));
  for (int i = 0; i < kTiles * T * T; ++i) in[i] = i;
  transpose<<<kTiles, dim3(T, T)>>>(in, out);
  cudaDeviceSynchronize();
  for (int i = 0; i < kTiles * T * T; ++i) {
    const int tile = i / (T * T), row = i / T % T, column = i % T;
    wrong += out[i] != in[tile * T * T + column * T + row];
  }
  printf("%d elements are wrong\n", wrong);
  return wrong != 0;
}

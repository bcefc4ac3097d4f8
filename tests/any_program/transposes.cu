// Three transposes of a matrix, for the counts of ./scripts/sim: stores spread over sectors, a
// column of shared memory in one bank, and neither.
#include "check.h"

const int N = 64, T = 32;

__global__ void spread(const float* in, float* out) {
  const int x = blockIdx.x * T + threadIdx.x, y = blockIdx.y * T + threadIdx.y;
  out[x * N + y] = in[y * N + x];
}
template <int columns>
__global__ void tiled(const float* in, float* out) {
  __shared__ float tile[T][columns];
  const int x = blockIdx.x * T + threadIdx.x, y = blockIdx.y * T + threadIdx.y;
  tile[threadIdx.y][threadIdx.x] = in[y * N + x];
  __syncthreads();
  const int to = blockIdx.y * T + threadIdx.x;
  out[(blockIdx.x * T + threadIdx.y) * N + to] = tile[threadIdx.x][threadIdx.y];
}

struct Matrices {
  float* in;
  float* out[3];
};

int main() {
  static float host[N * N], back[N * N];
  for (int i = 0; i < N * N; ++i) host[i] = i;
  Matrices m;
  CHECK(cudaMalloc(&m.in, sizeof host));
  for (int i = 0; i < 3; ++i) CHECK(cudaMalloc((void**)&(m.out[i]), sizeof host));
  CHECK(cudaMemcpy(m.in, host, sizeof host, cudaMemcpyHostToDevice));
  const dim3 grid(N / T, N / T), block(T, T);
  cudaEvent_t start, stop;
  CHECK(cudaEventCreate(&start));
  CHECK(cudaEventCreate(&stop));
  float ms[2];
  CHECK(cudaEventRecord(start));
  spread<<<grid, block>>>(m.in, m.out[0]);
  CHECK(cudaEventRecord(stop));
  CHECK(cudaEventSynchronize(stop));
  CHECK(cudaEventElapsedTime(ms, start, stop));
  EXPECT(ms[0] > 0);
  tiled<T><<<grid, block>>>(m.in, m.out[1]);
  for (int i = 0; i < 2; ++i) tiled<T + 1><<<grid, block>>>(m.in, m.out[2]);
  CHECK(cudaEventRecord(stop));
  CHECK(cudaEventSynchronize(stop));
  CHECK(cudaEventElapsedTime(ms + 1, start, stop));
  EXPECT(ms[1] > ms[0]);  // three launches more
  for (int k = 0; k < 3; ++k) {
    CHECK(cudaMemcpy(back, m.out[k], sizeof back, cudaMemcpyDeviceToHost));
    for (int i = 0; i < N * N; ++i) EXPECT(back[i] == host[i % N * N + i / N]);
  }
  return verdict();
}

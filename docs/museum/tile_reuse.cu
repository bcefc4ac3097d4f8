// C = A B of square matrices: a block computes a tile of C, a thread one element.
#include <cstdio>

constexpr int N = 64, T = 16;

__global__ void product(const float* A, const float* B, float* C) {
  __shared__ float sA[T][T], sB[T][T];
  const int x = threadIdx.x, y = threadIdx.y;
  const int row = blockIdx.y * T + y, column = blockIdx.x * T + x;
  float sum = 0;
  for (int k = 0; k < N; k += T) {
    sA[y][x] = A[row * N + k + x];
    sB[y][x] = B[(k + y) * N + column];
    __syncthreads();
    for (int i = 0; i < T; ++i) sum += sA[y][i] * sB[i][x];
  }
  C[row * N + column] = sum;
}

int main() {
  float *A, *B, *C;
  for (float** p : {&A, &B, &C}) cudaMallocManaged(p, N * N * sizeof(float));
  for (int i = 0; i < N * N; ++i) A[i] = i % 7 - 3, B[i] = i % 5 - 2;
  product<<<dim3(N / T, N / T), dim3(T, T)>>>(A, B, C);
  cudaDeviceSynchronize();
  int wrong = 0;
  for (int r = 0; r < N; ++r) {
    for (int c = 0; c < N; ++c) {
      float sum = 0;
      for (int k = 0; k < N; ++k) sum += A[r * N + k] * B[k * N + c];
      wrong += C[r * N + c] != sum;
    }
  }
  printf("%d elements are wrong\n", wrong);
  return wrong != 0;
}

// CUB: a block's and a warp's collectives, and calls for the whole device.
#include <cub/cub.cuh>

#include "check.h"

constexpr int T = 96, kItems = 2, N = T * kItems;

struct Larger {
  __device__ int operator()(int a, int b) const { return a < b ? b : a; }
};
__global__ void collectives(const int* in, int* out, int* sums) {
  using Load = cub::BlockLoad<int, T, kItems, cub::BLOCK_LOAD_WARP_TRANSPOSE>;
  using Scan = cub::BlockScan<int, T>;
  using Reduce = cub::BlockReduce<int, T>;
  __shared__ union {
    typename Load::TempStorage load;
    typename Scan::TempStorage scan;
    typename Reduce::TempStorage reduce;
  } room;
  int v[kItems], total;
  Load(room.load).Load(in, v);
  __syncthreads();
  int before[kItems];
  Scan(room.scan).ExclusiveSum(v, before, total);
  for (int i = 0; i < kItems; ++i) out[threadIdx.x * kItems + i] = before[i];
  __syncthreads();
  const int all = Reduce(room.reduce).Sum(v);
  __syncthreads();
  const int largest = Reduce(room.reduce).Reduce(v[0], Larger(), 50);  // of the first 50 threads
  if (threadIdx.x == 0) sums[0] = total, sums[1] = all, sums[2] = largest;
  using Warp = cub::WarpReduce<int, 8>;
  __shared__ typename Warp::TempStorage parts[T / 8];
  const int part = Warp(parts[threadIdx.x / 8]).Sum(threadIdx.x);
  if (threadIdx.x == 24) sums[3] = part;
}
struct IsOdd {
  __host__ __device__ bool operator()(int x) const { return x % 2 != 0; }
};

int main() {
  int *in = room<int>(N), *out = room<int>(N), *sums = room<int>(8);
  int total = 0, odd = 0;
  for (int i = 0; i < N; ++i) in[i] = i * 37 % 101 - 50, total += in[i], odd += in[i] % 2 != 0;
  collectives<<<1, T>>>(in, out, sums);
  done();
  EXPECT(sums[0] == total && sums[1] == total);
  int before = 0, largest = in[0];
  for (int i = 0; i < N; ++i) {
    EXPECT(out[i] == before);
    before += in[i];
    if (i < 100 && i % kItems == 0) largest = in[i] > largest ? in[i] : largest;
  }
  EXPECT(sums[2] == largest);
  EXPECT(sums[3] == 24 + 25 + 26 + 27 + 28 + 29 + 30 + 31);

  int *d_in, *d_out;
  CHECK(cudaMalloc(&d_in, N * sizeof(int)));
  CHECK(cudaMalloc(&d_out, N * sizeof(int)));
  CHECK(cudaMemcpy(d_in, in, N * sizeof(int), cudaMemcpyDefault));
  void* temporary = nullptr;
  size_t bytes = 0;
  CHECK(cub::DeviceReduce::Sum(temporary, bytes, d_in, sums, N));
  CHECK(cudaMalloc(&temporary, bytes));
  CHECK(cub::DeviceReduce::Sum(temporary, bytes, d_in, sums, N));
  CHECK(cub::DeviceReduce::Max(temporary, bytes, d_in, sums + 1, N));
  CHECK(cub::DeviceScan::InclusiveSum(temporary, bytes, d_in, d_out, N));
  CHECK(cudaMemcpy(out, d_out, N * sizeof(int), cudaMemcpyDefault));
  EXPECT(sums[0] == total && sums[1] == 50 && out[N - 1] == total);
  CHECK(cub::DeviceSelect::If(temporary, bytes, d_in, d_out, sums, N, IsOdd()));
  EXPECT(sums[0] == odd);
  CHECK(cub::DeviceRadixSort::SortKeys(temporary, bytes, d_in, d_out, N));
  CHECK(cudaMemcpy(out, d_out, N * sizeof(int), cudaMemcpyDefault));
  for (int i = 1; i < N; ++i) EXPECT(out[i - 1] <= out[i]);
  EXPECT(out[0] == -50);
  return verdict();
}

// 128 threads fill a tile again and again, 128 others add it up.
#include "ptx.h"

constexpr int kHalf = 128, kAll = 256, kTiles = 4;
constexpr int kFull = 1, kEmpty = 2;  // barriers; 0 is that of __syncthreads

__global__ void sums(const int* in, int* out) {
  __shared__ int tile[kHalf];
  const int t = threadIdx.x % kHalf;
  int sum = 0;
  for (int i = 0; i < kTiles; ++i) {
    if (threadIdx.x < kHalf) {
      if (i > 0) bar_sync(kEmpty, kAll);  // delete this line
      tile[t] = in[i * kHalf + t];
      bar_arrive(kFull, kAll);  // 128 arrive, and go on
    } else {
      bar_sync(kFull, kAll);  // 128 wait for these arrivals
      sum += tile[kHalf - 1 - t];
      if (i + 1 < kTiles) bar_arrive(kEmpty, kAll);
    }
  }
  if (threadIdx.x >= kHalf) out[t] = sum;
}

int main() {
  return check<int>([](auto in, auto out) { sums<<<1, kAll>>>(in, out); }, kTiles * kHalf, kHalf,
                    [](int i) { return i / kHalf; }, [](const int*, int) { return 0 + 1 + 2 + 3; });
}

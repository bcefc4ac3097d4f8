// A thread copies tiles into two stages by TMA; 64 others add them up.
#include "ptx.h"

constexpr int kStages = 2, kTile = 64, kTiles = 6;

__global__ void sums(const int* in, int* out) {
  __shared__ alignas(128) int stage[kStages][kTile];
  __shared__ uint64_t full[kStages], empty[kStages];
  const int t = threadIdx.x;
  if (t == kTile) {
    for (int s = 0; s < kStages; ++s) {
      mbarrier_init(&full[s], 1);       // the arrival that announces the bytes
      mbarrier_init(&empty[s], kTile);  // every reader's
    }
    mbarrier_init_fence();  // TMA sees them
  }
  __syncthreads();  // the other threads see them
  int sum = 0;
  for (int i = 0; i < kTiles; ++i) {
    const int s = i % kStages, parity = i / kStages % 2;
    if (t == kTile) {
      mbarrier_wait(&empty[s], parity ^ 1);  // delete this line
      mbarrier_arrive_expect_tx(&full[s], sizeof stage[s]);
      bulk_load(stage[s], in + i * kTile, sizeof stage[s], &full[s]);
    } else if (t < kTile) {
      mbarrier_wait(&full[s], parity);
      sum += stage[s][t];
      mbarrier_arrive(&empty[s]);
    }
  }
  if (t < kTile) out[t] = sum;
}

int main() {
  return check<int>([](auto in, auto out) { sums<<<1, 96>>>(in, out); }, kTiles * kTile, kTile,
                    [](int i) { return i / kTile; },
                    [](const int*, int) { return 0 + 1 + 2 + 3 + 4 + 5; });
}

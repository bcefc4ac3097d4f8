// A block doubles a tile in shared memory, from where TMA stores it.
#include "ptx.h"

constexpr int kTile = 256;

__global__ void twice(const int* in, int* out) {
  __shared__ alignas(128) int tile[kTile];
  const int t = threadIdx.x;
  tile[t] = 2 * in[t];  // by the generic proxy
  fence_proxy_async();  // delete this line
  __syncthreads();      // all threads have stored, and executed their fence
  if (t == 0) {
    bulk_store(out, tile, sizeof tile);  // reads the tile by the async proxy
    bulk_commit();
    bulk_wait_read(0);  // the block's shared memory must outlive the copy
  }
}

int main() {
  return check<int>([](auto in, auto out) { twice<<<1, kTile>>>(in, out); }, kTile, kTile,
                    [](int i) { return i; }, [](const int* in, int i) { return 2 * in[i]; });
}

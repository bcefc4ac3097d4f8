// A block adds up tiles that bulk copies bring into a ring of four stages.
#include <cstdint>
#include <cstdio>

constexpr int kStages = 4, kTile = 64, kTiles = 12;

__device__ uint32_t shared_address(const void* p) { return __cvta_generic_to_shared(p); }
__device__ void load(int* to, const int* from, uint64_t* bar) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(bar)),
               "n"(kTile * 4)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "n"(kTile * 4), "r"(shared_address(bar))
      : "memory");
}
__device__ void wait(uint64_t* bar, int parity) {
  asm volatile(
      "{ .reg .pred done;\nAGAIN: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra AGAIN; }" ::"r"(shared_address(bar)),
      "r"(parity)
      : "memory");
}

__global__ void add_tiles(const int* in, int* out) {
  __shared__ alignas(128) int stage[kStages][kTile];
  __shared__ uint64_t full[kStages];
  const int t = threadIdx.x;
  for (int s = t; s < kStages; s += kTile) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(&full[s])) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  for (int s = 0; s < kStages && t == 0; ++s) load(stage[s], in + s * kTile, &full[s]);
  int sum = 0;
  for (int i = 0, s = 0; i < kTiles; ++i, s = i % kStages) {
    wait(&full[s], i % 2);  // the tile is there
    sum += stage[s][t];
    __syncthreads();  // the stage may be overwritten
    if (t == 0 && i + kStages < kTiles) load(stage[s], in + (i + kStages) * kTile, &full[s]);
  }
  out[t] = sum;
}

int main() {
  int *in, *out, wrong = 0;
  cudaMallocManaged(&in, kTiles * kTile * sizeof(int)),
      cudaMallocManaged(&out, kTile * sizeof(int));
  for (int i = 0; i < kTiles * kTile; ++i) in[i] = i * i % 101;
  add_tiles<<<1, kTile>>>(in, out);
  cudaDeviceSynchronize();
  for (int t = 0; t < kTile; ++t) {
    int sum = 0;
    for (int tile = 0; tile < kTiles; ++tile) sum += in[tile * kTile + t];
    wrong += out[t] != sum;
  }
  printf("%d sums are wrong\n", wrong);
  return wrong != 0;
}

// One thread copies an array by way of two stages in shared memory: while one stage is written to
// `out`, the other one is loaded.
#include <cstdint>
#include <cstdio>

constexpr int kStages = 2, kChunk = 256, kChunks = 8;  // elements of a chunk

__device__ uint32_t shared_address(const void* p) { return __cvta_generic_to_shared(p); }
__device__ void load(int* to, const int* from, uint64_t* bar) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(bar)),
               "n"(kChunk * 4)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "n"(kChunk * 4), "r"(shared_address(bar))
      : "memory");
}
__device__ void wait(uint64_t* bar, int parity) {
  asm volatile(
      "{ .reg .pred done;\nAGAIN: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra AGAIN; }" ::"r"(shared_address(bar)),
      "r"(parity)
      : "memory");
}

__global__ void copy(const int* in, int* out) {
  __shared__ alignas(128) int stage[kStages][kChunk];
  __shared__ uint64_t full[kStages];
  for (uint64_t& bar : full) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(&bar)) : "memory");
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  for (int i = 0; i < kStages; ++i) load(stage[i], in + i * kChunk, &full[i]);
  for (int i = 0; i < kChunks; ++i) {
    const int s = i % kStages;
    wait(&full[s], i / kStages % 2);
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(out + i * kChunk),
        "r"(shared_address(stage[s])), "n"(kChunk * 4)
        : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kStages - 1) : "memory");
    if (i + kStages < kChunks) load(stage[s], in + (i + kStages) * kChunk, &full[s]);
  }
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

int main() {
  int *in, *out, wrong = 0;
  for (int** p : {&in, &out}) cudaMallocManaged(p, kChunks * kChunk * sizeof(int));
  for (int i = 0; i < kChunks * kChunk; ++i) in[i] = i;
  copy<<<1, 1>>>(in, out);
  cudaDeviceSynchronize();
  for (int i = 0; i < kChunks * kChunk; ++i) wrong += out[i] != in[i];
  printf("%d elements are wrong\n", wrong);
  return wrong != 0;
}

// A block walks a sequence in tiles and leaves its state, the sum of the tiles, by a bulk copy.
#include <cstdint>
#include <cstdio>

constexpr int kState = 64;

__global__ void last_states(const int* begin, const int* tokens, int* states) {
  __shared__ alignas(128) int state[kState];
  const int t = threadIdx.x, sequence = blockIdx.x;
  state[t] = 0;
  for (int tile = begin[sequence]; tile < begin[sequence + 1]; ++tile) {
    state[t] += tokens[tile * kState + t];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // for the copy below
  }
  __syncthreads();
  if (t == 0) {
    const uint32_t from = __cvta_generic_to_shared(state);
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                     states + sequence * kState),
                 "r"(from), "n"(kState * 4)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
}

int main() {
  constexpr int kSequences = 4, kTiles = 9, kBegin[] = {0, 3, 3, 7, kTiles};
  int *begin, *tokens, *states, wrong = 0;
  cudaMallocManaged(&begin, sizeof kBegin);
  cudaMallocManaged(&tokens, kTiles * kState * sizeof(int));
  cudaMallocManaged(&states, kSequences * kState * sizeof(int));
  for (int i = 0; i <= kSequences; ++i) begin[i] = kBegin[i];
  for (int i = 0; i < kTiles * kState; ++i) tokens[i] = i;
  last_states<<<kSequences, kState>>>(begin, tokens, states);
  cudaDeviceSynchronize();
  for (int i = 0; i < kSequences * kState; ++i) {
    int sum = 0;
    for (int tile = begin[i / kState]; tile < begin[i / kState + 1]; ++tile) {
      sum += tokens[tile * kState + i % kState];
    }
    wrong += states[i] != sum;
  }
  printf("%d elements are wrong\n", wrong);
  return wrong != 0;
}

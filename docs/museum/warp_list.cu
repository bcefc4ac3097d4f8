// A warp per expert lists the tokens that are routed to it, in order.
#include <cstdio>

constexpr int kTokens = 128, kExperts = 4;

__global__ void list_tokens(const int* expert, int* lists, int* counts) {
  __shared__ int found[kTokens];
  const int lane = threadIdx.x;
  int n = 0;
  for (int first = 0; first < kTokens; first += 32) {
    const bool mine = expert[first + lane] == blockIdx.x;
    const unsigned votes = __ballot_sync(~0u, mine);
    if (mine) found[n + __popc(votes & ((1u << lane) - 1))] = first + lane;
    n += __popc(votes);
  }
  for (int i = lane; i < n; i += 32) lists[blockIdx.x * kTokens + i] = found[i];
  if (lane == 0) counts[blockIdx.x] = n;
}

int main() {
  int *expert, *lists, *counts;
  cudaMallocManaged(&expert, kTokens * sizeof(int));
  cudaMallocManaged(&lists, kExperts * kTokens * sizeof(int));
  cudaMallocManaged(&counts, kExperts * sizeof(int));
  for (int i = 0; i < kTokens; ++i) expert[i] = i * i / 3 % kExperts;
  list_tokens<<<kExperts, 32>>>(expert, lists, counts);
  cudaDeviceSynchronize();
  int wrong = 0, seen[kExperts] = {};
  for (int i = 0; i < kTokens; ++i) {
    const int e = expert[i];
    wrong += lists[e * kTokens + seen[e]++] != i;
  }
  for (int e = 0; e < kExperts; ++e) wrong += counts[e] != seen[e];
  printf("%d entries are wrong\n", wrong);
  return wrong != 0;
}

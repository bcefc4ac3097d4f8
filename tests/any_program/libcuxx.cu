// libcu++ and what stands beside it: barriers, pipelines, atomics, copies of a group, clusters.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda_pipeline.h>

#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda/std/limits>

#include "check.h"

namespace cg = cooperative_groups;
constexpr int kThreads = 64, kTiles = 5;

// A warp fills tiles, the other one adds them up.
__global__ void hand_over(const int* in, int* out) {
  using barrier = cuda::barrier<cuda::thread_scope_block>;
#pragma nv_diag_suppress static_var_with_dynamic_init
  __shared__ barrier full, empty;
  __shared__ int tile[32];
  const int t = threadIdx.x, lane = t % 32;
  if (t == 0) init(&full, kThreads), init(&empty, kThreads);
  __syncthreads();
  int sum = 0;
  for (int i = 0; i < kTiles; ++i) {
    if (t < 32) {
      tile[lane] = in[32 * i + lane];
      barrier::arrival_token written = full.arrive();
      full.wait(std::move(written));
    } else {
      full.arrive_and_wait();
      sum += tile[(lane + 1) % 32];
    }
    empty.arrive_and_wait();
  }
  if (t >= 32) out[lane] = sum;
}

// Stages of a block's pipeline; then of each thread's own; then of the older functions.
__global__ void stages(const int* in, int* out) {
  constexpr int kStages = 2;
  __shared__ int tile[kStages][kThreads];
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, kStages> state;
  auto block = cg::this_thread_block();
  auto pipe = cuda::make_pipeline(block, &state);
  const int t = threadIdx.x;
  int sum = 0;
  for (int i = 0, loaded = 0; i < kTiles; ++i) {
    for (; loaded < kTiles && loaded < i + kStages; ++loaded) {
      pipe.producer_acquire();
      cuda::memcpy_async(block, tile[loaded % kStages], in + kThreads * loaded,
                         sizeof(int) * kThreads, pipe);
      pipe.producer_commit();
    }
    pipe.consumer_wait();
    sum += tile[i % kStages][kThreads - 1 - t];
    pipe.consumer_release();
  }
  block.sync();
  auto own = cuda::make_pipeline();
  for (int i = 0; i < kStages; ++i) {
    own.producer_acquire();
    cuda::memcpy_async(&tile[i][t], in + kThreads * i + t, cuda::aligned_size_t<4>(4), own);
    own.producer_commit();
  }
  cuda::pipeline_consumer_wait_prior<1>(own);
  sum += tile[0][t];
  own.consumer_wait();
  own.consumer_release();
  own.consumer_wait();
  sum += tile[1][t];
  own.consumer_release();
  block.sync();
  __pipeline_memcpy_async(&tile[0][t], in + t, 4);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
  sum += tile[0][t ^ 1];
  __syncthreads();
  cg::memcpy_async(block, tile[1], in, sizeof(int) * kThreads);
  cg::wait(block);
  out[t] = sum + tile[1][t ^ 2];
}

__global__ void counters(int* n, cuda::atomic<unsigned, cuda::thread_scope_device>* last,
                         float* x) {
  cuda::atomic_ref<int, cuda::thread_scope_device> count(*n);
  count.fetch_add(2, cuda::std::memory_order_relaxed);
  count--;
  last->fetch_max(threadIdx.x);
  cuda::atomic_ref<float> sum(*x);
  float seen = sum.load();
  while (!sum.compare_exchange_weak(seen, seen + 0.5f)) {
  }
  if (threadIdx.x == 0) cuda::atomic_thread_fence(cuda::memory_order_seq_cst);
}

// Each block of a cluster adds its rank to its neighbour's number.
template <int kBlocks>
__global__ void __cluster_dims__(kBlocks, 1, 1) neighbours(int* out) {
  __shared__ int number;
  auto cluster = cg::this_cluster();
  number = 10 * blockIdx.x;
  cluster.sync();
  *cluster.map_shared_rank(&number, (cluster.block_rank() + 1) % kBlocks) += cluster.block_rank();
  cluster.sync();
  out[blockIdx.x] = number + 100 * cluster.num_blocks();
}
__global__ void ranks(int* out, int more) {
  out[blockIdx.x] = cg::this_cluster().block_rank() + more;
}

int main() {
  int *in = room<int>(kTiles * kThreads), *out = room<int>(kThreads);
  for (int i = 0; i < kTiles * kThreads; ++i) in[i] = i * i % 101;
  hand_over<<<1, kThreads>>>(in, out);
  done();
  for (int t = 0; t < 32; ++t) {
    int sum = 0;
    for (int i = 0; i < kTiles; ++i) sum += in[32 * i + (t + 1) % 32];
    EXPECT(out[t] == sum);
  }
  stages<<<1, kThreads>>>(in, out);
  done();
  for (int t = 0; t < kThreads; ++t) {
    int sum = in[t] + in[kThreads + t] + in[t ^ 1] + in[t ^ 2];
    for (int i = 0; i < kTiles; ++i) sum += in[kThreads * i + kThreads - 1 - t];
    EXPECT(out[t] == sum);
  }
  auto* last = room<cuda::atomic<unsigned, cuda::thread_scope_device>>(1);
  float* x = room<float>(1);
  out[0] = 0;
  counters<<<2, 32>>>(out, last, x);
  done();
  EXPECT(out[0] == 64 && *(unsigned*)last == 31 && x[0] == 32);
  EXPECT(cuda::std::numeric_limits<int>::max() == 2147483647);

  neighbours<2><<<6, 1>>>(out);
  done();
  for (int b = 0; b < 6; ++b) EXPECT(out[b] == 10 * b + 1 - b % 2 + 200);
  neighbours<4><<<4, 1>>>(out);
  done();
  for (int b = 0; b < 4; ++b) EXPECT(out[b] == 10 * b + (b + 3) % 4 + 400);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = 3;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = 6, config.blockDim = 1;
  config.attrs = &attribute, config.numAttrs = 1;
  CHECK(cudaLaunchKernelEx(&config, ranks, out, 7));
  done();
  for (int b = 0; b < 6; ++b) EXPECT(out[b] == b % 3 + 7);
  return verdict();
}

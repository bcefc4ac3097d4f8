// libcu++ and related headers: barriers, pipelines, atomics, copies of a group, clusters.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda.h>
#include <cuda_pipeline.h>

#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda/std/limits>

#include "check.h"

namespace cg = cooperative_groups;
constexpr int kThreads = 64, kTiles = 5;

// One warp fills tiles, the other adds them up.
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

// TMA copies a tile, tracked by the barrier, and copies the sum of both back.
__global__ void bulk_copies(const int* in, int* out) {
  namespace cde = cuda::device::experimental;
  using barrier = cuda::barrier<cuda::thread_scope_block>;
#pragma nv_diag_suppress static_var_with_dynamic_init
  __shared__ barrier full;
  __shared__ alignas(16) int tile[kThreads];
  const int t = threadIdx.x;
  if (t == 0) init(&full, kThreads), cde::fence_proxy_async_shared_cta();
  __syncthreads();
  int sum = 0;
  for (int i = 0; i < 2; ++i) {
    barrier::arrival_token written;
    if (t == 0) {
      cde::cp_async_bulk_global_to_shared(tile, in + kThreads * i, sizeof tile, full);
      written = cuda::device::barrier_arrive_tx(full, 1, sizeof tile);
    } else {
      written = full.arrive();
    }
    full.wait(std::move(written));
    sum += tile[t];
    __syncthreads();
  }
  tile[t] = sum;
  cde::fence_proxy_async_shared_cta();
  __syncthreads();
  if (t > 0) return;
  cde::cp_async_bulk_shared_to_global(out, tile, sizeof tile);
  cde::cp_async_bulk_commit_group();
  cde::cp_async_bulk_wait_group_read<0>();
}

// Four numbers from one place of a tensor to another, in 1 to 5 dimensions.
template <int kRank>
__global__ void boxes(const __grid_constant__ CUtensorMap x) {
  namespace cde = cuda::device::experimental;
#pragma nv_diag_suppress static_var_with_dynamic_init
  __shared__ cuda::barrier<cuda::thread_scope_block> full;
  __shared__ alignas(128) int s[4];
  init(&full, 1), cde::fence_proxy_async_shared_cta();
  if (kRank == 1) cde::cp_async_bulk_tensor_1d_global_to_shared(s, &x, 4, full);
  if (kRank == 2) cde::cp_async_bulk_tensor_2d_global_to_shared(s, &x, 4, 1, full);
  if (kRank == 3) cde::cp_async_bulk_tensor_3d_global_to_shared(s, &x, 4, 1, 2, full);
  if (kRank == 4) cde::cp_async_bulk_tensor_4d_global_to_shared(s, &x, 4, 1, 2, 3, full);
  if (kRank == 5) cde::cp_async_bulk_tensor_5d_global_to_shared(s, &x, 4, 1, 2, 3, 4, full);
  full.wait(cuda::device::barrier_arrive_tx(full, 1, sizeof s));
  if (kRank == 1) cde::cp_async_bulk_tensor_1d_shared_to_global(&x, 0, s);
  if (kRank == 2) cde::cp_async_bulk_tensor_2d_shared_to_global(&x, 0, 2, s);
  if (kRank == 3) cde::cp_async_bulk_tensor_3d_shared_to_global(&x, 0, 2, 1, s);
  if (kRank == 4) cde::cp_async_bulk_tensor_4d_shared_to_global(&x, 0, 2, 1, 4, s);
  if (kRank == 5) cde::cp_async_bulk_tensor_5d_shared_to_global(&x, 0, 2, 1, 4, 3, s);
  cde::cp_async_bulk_commit_group();
  cde::cp_async_bulk_wait_group_read<0>();
}
template <int kRank>
void move_boxes() {
  const cuuint64_t sizes[] = {8, 3, 4, 5, 6}, strides[] = {32, 96, 384, 1920};
  const cuuint32_t box[] = {4, 1, 1, 1, 1}, step[] = {1, 1, 1, 1, 1};
  const int each[] = {1, 8, 24, 96, 480}, from[] = {4, 1, 2, 3, 4}, to[] = {0, 2, 1, 4, 3};
  int *x = room<int>(2880), at = 0, moved = 0;
  for (int i = 0; i < 2880; ++i) x[i] = i;
  for (int i = 0; i < kRank; ++i) at += from[i] * each[i], moved += to[i] * each[i];
  CUtensorMap map;
  EXPECT(cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_INT32, kRank, x, sizes, strides, box,
                                step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS);
  boxes<kRank><<<1, 1>>>(map);
  done();
  for (int i = 0; i < 2880; ++i)
    EXPECT(x[i] == (i - moved >= 0 && i - moved < 4 ? i - moved + at : i));
}

// Stages of a block's pipeline; of each thread's pipeline; of the older functions.
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

// A block reads the other's number where the other's flag says that it is there.
template <int how>
__global__ void announce(int* number, int* flag, int* read) {
  const int me = blockIdx.x, other = 1 - me;
  number[me] = 7 + me;
  cuda::atomic_ref<int, cuda::thread_scope_device> mine(flag[me]), theirs(flag[other]);
  if (how == 0) mine.store(1, cuda::memory_order_release);
  if (how == 1) mine.exchange(1, cuda::memory_order_acq_rel);
  if (how == 2) mine.fetch_add(1);
  if (theirs.load(cuda::memory_order_acquire)) read[me] = number[other];
}
template <int how>
void announce_both() {
  int* x = room<int>(6);
  cudaMemset(x, 0, 6 * sizeof(int));
  announce<how><<<2, 1>>>(x, x + 2, x + 4);
  done();
  EXPECT((x[4] == 0 || x[4] == 8) && (x[5] == 0 || x[5] == 7));
}

// Each operation: what it returns, and what it leaves.
struct Numbers {
  int i[24];
  long long s;
  unsigned long long u;
  float f, seen[3];
};
__global__ void operations(Numbers* r) {
  cuda::atomic<int, cuda::thread_scope_block> n(12);
  int *out = r->i, expected = 3;
  *out++ = n.fetch_add(3);
  *out++ = n.fetch_sub(1);
  *out++ = n.fetch_and(6);
  *out++ = n.fetch_or(9);
  *out++ = n.fetch_xor(5);
  *out++ = n.fetch_min(-2);
  *out++ = n.fetch_max(4);
  *out++ = n.exchange(20);
  *out++ = n += 5;
  *out++ = n -= 7;
  *out++ = ++n;
  *out++ = --n;
  *out++ = n++;
  *out++ = n--;
  *out++ = n.compare_exchange_strong(expected, 1);
  *out++ = expected;
  *out++ = n.compare_exchange_weak(expected, 1);
  *out++ = n.load();
  n.store(50, cuda::memory_order_release);
  *out++ = n;
  *out++ = n = 60;
  cuda::atomic_ref<long long> s(r->s);
  s.fetch_min(-5), s.fetch_add(1), s.fetch_max(-9);
  cuda::atomic_ref<unsigned long long> u(r->u);
  u.fetch_min(~0ull - 3), u.fetch_max(7), u.fetch_sub(1);
  cuda::atomic_ref<float> f(r->f);
  r->seen[0] = f.fetch_add(0.5f), r->seen[1] = f.fetch_sub(0.25f), r->seen[2] = f.exchange(8.f);
}

// Copies of 16, 8, 4 bytes and one, by the group and by one thread; of a barrier; zeros after them.
__global__ void copies(const char* in, char* out, int* zeros) {
  __shared__ alignas(16) char s[256];
  __shared__ alignas(16) int four[4];
  __shared__ cuda::barrier<cuda::thread_scope_block> bar;
  auto block = cg::this_thread_block();
  if (threadIdx.x == 0) init(&bar, 5 * blockDim.x);
  s[2 * threadIdx.x] = s[2 * threadIdx.x + 1] = -1;
  block.sync();
  cuda::memcpy_async(block, s, in, cuda::aligned_size_t<16>(48), bar);
  cuda::memcpy_async(block, s + 56, in + 56, 8, bar);
  cuda::memcpy_async(block, s + 68, in + 68, 4, bar);
  cuda::memcpy_async(block, s + 81, in + 81, 7, bar);
  if (threadIdx.x == 1) cuda::memcpy_async(s + 96, in + 96, 16, bar);
#ifndef NVCC_REFUSES_IT  // where it is private
  const bool early = bar.try_wait_parity(false);
#endif
  block.sync();
  auto token = bar.arrive(5);
  bar.wait(std::move(token));
  cg::memcpy_async(block, out, s, 128);  // to global memory: plain stores
  if (threadIdx.x == 2) {
    four[0] = four[1] = four[2] = four[3] = -1;
    __pipeline_memcpy_async(four, in, 16, 8);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    zeros[0] = four[0], zeros[1] = four[1], zeros[2] = four[2], zeros[3] = four[3];
#ifndef NVCC_REFUSES_IT
    zeros[4] = early + 10 * bar.try_wait_parity(false) + 100 * bar.try_wait_parity(true);
#endif
  }
}

// One warp produces, two consume: by role, or by the number of producers.
__global__ void roles(const int* in, int* out, bool by_number) {
  constexpr int kStages = 3;
  __shared__ int tile[kStages][32];
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, kStages> state[2];
  auto block = cg::this_thread_block();
  const int t = threadIdx.x;
  const bool first = t < 32;
  auto pipe = by_number ? cuda::make_pipeline(block, &state[0], size_t{32})
                        : cuda::make_pipeline(block, &state[1],
                                              first ? cuda::pipeline_role::producer
                                                    : cuda::pipeline_role::consumer);
  int sum = 0;
  for (int i = 0; i < 8; ++i) {
    if (first) {
      pipe.producer_acquire();
      cuda::memcpy_async(&tile[i % kStages][t], in + 32 * i + t, cuda::aligned_size_t<4>(4), pipe);
      pipe.producer_commit();
    } else {
      pipe.consumer_wait();
      sum += tile[i % kStages][(95 - t) % 32];
      pipe.consumer_release();
    }
  }
  if (!first) out[t - 32] = sum;
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
  const int t = cluster.thread_rank() + 10 * cluster.size() + 100 * cluster.num_threads();
  out[16 + blockIdx.x] = t + 1000 * cluster.block_index().x + 10000 * cluster.dim_blocks().x +
                         100000 * cluster.dim_blocks().z;
  cluster.barrier_arrive();
  cluster.barrier_wait();
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
  bulk_copies<<<1, kThreads>>>(in, out);
  done();
  for (int t = 0; t < kThreads; ++t) EXPECT(out[t] == in[t] + in[kThreads + t]);
  move_boxes<1>(), move_boxes<2>(), move_boxes<3>(), move_boxes<4>(), move_boxes<5>();
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
  announce_both<0>(), announce_both<1>(), announce_both<2>();
  Numbers* r = room<Numbers>(1);
  r->s = -3, r->u = ~0ull, r->f = 1.5f;
  operations<<<1, 1>>>(r);
  done();
  const int right[] = {12, 15, 14, 6, 15, 10, -2, 4, 25, 18, 19, 18, 18, 19, 0, 18, 1, 1, 50, 60};
  for (int i = 0; i < 20; ++i) EXPECT(r->i[i] == right[i]);
  EXPECT(r->s == -4 && r->u == ~0ull - 4 && r->f == 8);
  EXPECT(r->seen[0] == 1.5f && r->seen[1] == 2 && r->seen[2] == 1.75f);
  char *bytes = room<char>(128), *copied = room<char>(128);
  for (int i = 0; i < 128; ++i) bytes[i] = i;
  int* zeros = room<int>(5);
  copies<<<1, kThreads>>>(bytes, copied, zeros);
  done();
  for (int i = 0; i < 128; ++i) {
    const bool there = i < 48 || i / 8 == 7 || i / 4 == 17 || (i > 80 && i < 88) || i / 16 == 6;
    EXPECT(copied[i] == (there ? i : -1));
  }
  EXPECT(zeros[0] == 0x03020100 && zeros[1] == 0x07060504 && zeros[2] == 0 && zeros[3] == 0);
  EXPECT(zeros[4] == 10);
  for (int by_number = 0; by_number < 2; ++by_number) {
    roles<<<1, 96>>>(in, out, by_number);
    done();
    for (int t = 0; t < 64; ++t) {
      int sum = 0;
      for (int i = 0; i < 8; ++i) sum += in[32 * i + 31 - t % 32];
      EXPECT(out[t] == sum);
    }
  }
  EXPECT(cuda::std::numeric_limits<int>::max() == 2147483647);

  neighbours<2><<<6, 1>>>(out);
  done();
  for (int b = 0; b < 6; ++b) EXPECT(out[b] == 10 * b + 1 - b % 2 + 200);
  for (int b = 0; b < 6; ++b) EXPECT(out[16 + b] == b % 2 + 20 + 200 + b % 2 * 1000 + 120000);
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

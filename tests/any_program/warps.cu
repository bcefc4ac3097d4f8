// Warps and groups of threads.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

#include "check.h"

// Warps: shuffles, votes, matches, reductions, active lanes; blocks: counting barriers, and fences.
namespace warp {
struct Row {
  int up, down, idx, narrow, xored;
  unsigned ballot, any, all, match, match_all, sum, low, bits;
  int flag, largest, active, wide;
};

__global__ void everything(Row* rows, double* doubles) {
  const unsigned all = 0xffffffffu;
  const int lane = threadIdx.x % warpSize;
  Row& r = rows[threadIdx.x];
  r.up = __shfl_up_sync(all, lane, 3);
  r.down = __shfl_down_sync(all, lane * 10, 5);
  r.idx = __shfl_sync(all, lane + 1000, (lane + 7) % 32);
  r.narrow = __shfl_sync(all, lane, 2, 8);
  r.xored = __shfl_xor_sync(all, lane, 5, 16);
  r.wide = __shfl_up_sync(all, lane, 1, 4);
  r.ballot = __ballot_sync(all, lane % 3 == 0);
  r.any = __any_sync(all, lane == 31) && !__any_sync(all, lane > 31);
  r.all = __all_sync(all, lane < 32) && !__all_sync(all, lane < 31);
  r.match = __match_any_sync(all, lane / 5);
  r.match_all = __match_all_sync(all, 42, &r.flag);
  int differs;
  if (__match_all_sync(all, lane, &differs) == 0 && !differs) r.flag += 10;
  r.sum = __reduce_add_sync(all, (unsigned)lane);
  r.low = __reduce_min_sync(all, 100u + lane);
  r.largest = __reduce_max_sync(all, -lane);
  r.bits = __reduce_or_sync(all, 1u << lane % 8) ^ __reduce_xor_sync(all, 1u << lane % 4) ^
           __reduce_and_sync(all, 0xf00u | lane);
  if (lane % 4 == 1) {  // 8 lanes
    r.active = __popc(__activemask());
    const unsigned mask = 0x22222222u;
    r.sum += __shfl_sync(mask, lane, 29) + (__ballot_sync(mask, lane > 15) == 0x22220000u);
    __syncwarp(mask);
  } else {
    r.active = -__popc(__activemask());  // the other 24
  }
  doubles[threadIdx.x] = __shfl_xor_sync(all, lane + 0.5, 16);
  const long long big = __shfl_sync(all, (long long)lane << 40, 3);
  doubles[threadIdx.x] += double(big >> 40);
}
// Shuffles of types that promote to int; minimum and maximum of a number and NaN.
__global__ void small_types(int* out, float nan) {
  const int t = threadIdx.x;
  const signed char c = t - 16;
  const unsigned short s = 3 * t;
  const bool odd = t & 1;
  out[t] = __shfl_sync(0xffffffff, c, 5) + __shfl_xor_sync(0xffffffff, s, 1) +
           1000 * __shfl_up_sync(0xffffffff, odd, 1);
  out[32 + t] = max(nan, 1.f) + min(2.f, nan) + max(4.0, (double)nan) + min(nan, 8.0);
}

__global__ void votes(int* out, int limit) {
  __shared__ int s[96];
  const int i = threadIdx.x;
  s[i] = i * i;
  const int count = __syncthreads_count(i < limit);  // also a barrier
  const int neighbour = s[(i + 1) % blockDim.x];
  const int any = __syncthreads_or(i == limit);
  const int every = __syncthreads_and(i < limit);
  int* row = out + 4 * (blockIdx.x * blockDim.x + i);
  row[0] = count;
  row[1] = any;
  row[2] = every;
  row[3] = neighbour;
}
// The last block adds up all partial sums, as in CUDA's sample threadFenceReduction.
__device__ unsigned arrived = 0;
__global__ void last_block(volatile int* partial, int* total) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = 10 * blockIdx.x;
    __threadfence();
    last = atomicInc(&arrived, gridDim.x) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    int sum = 0;
    for (unsigned i = 0; i < gridDim.x; ++i) sum += partial[i];
    *total = sum;
  }
}

void run() {
  Row* rows = room<Row>(64);
  double* doubles = room<double>(64);
  everything<<<1, 64>>>(rows, doubles);
  done();
  for (int i = 0; i < 64; ++i) {
    const int lane = i % 32;
    const Row& r = rows[i];
    EXPECT(r.up == (lane < 3 ? lane : lane - 3));
    EXPECT(r.down == 10 * (lane + 5 < 32 ? lane + 5 : lane));
    EXPECT(r.idx == 1000 + (lane + 7) % 32 && r.narrow == lane / 8 * 8 + 2);
    EXPECT(r.xored == (lane ^ 5) && r.wide == (lane % 4 ? lane - 1 : lane));
    unsigned ballot = 0, match = 0;
    for (int k = 0; k < 32; ++k) {
      ballot |= (k % 3 == 0) << k;
      match |= (unsigned)(k / 5 == lane / 5) << k;
    }
    EXPECT(r.ballot == ballot && r.any == 1 && r.all == 1);
    EXPECT(r.match == match && r.match_all == 0xffffffffu && r.flag == 11);
    EXPECT(r.sum == 496u + (lane % 4 == 1 ? 30 : 0) && r.low == 100 && r.largest == 0);
    EXPECT(r.bits == (0xffu ^ 0u ^ 0xf00u));
    EXPECT(r.active == (lane % 4 == 1 ? 8 : -24));
    EXPECT(doubles[i] == (lane ^ 16) + 0.5 + 3);
  }

  int* small = room<int>(64);
  small_types<<<1, 32>>>(small, NAN);
  done();
  for (int t = 0; t < 32; ++t) {
    EXPECT(small[t] == -11 + 3 * (t ^ 1) + (t > 0 && t % 2 == 0 ? 1000 : 0));
    EXPECT(small[32 + t] == 1 + 2 + 4 + 8);
  }

  int *voted = room<int>(2 * 96 * 4), *partial = room<int>(20), *total = room<int>(1);
  const int limits[] = {0, 1, 33, 95, 96};
  for (int limit : limits) {
    votes<<<2, 96>>>(voted, limit);
    done();
    for (int i = 0; i < 2 * 96; ++i) {
      EXPECT(voted[4 * i] == limit);
      EXPECT((voted[4 * i + 1] != 0) == (limit < 96));
      EXPECT((voted[4 * i + 2] != 0) == (limit == 96));
      EXPECT(voted[4 * i + 3] == (i % 96 + 1) % 96 * ((i % 96 + 1) % 96));
    }
  }
  last_block<<<20, 32>>>(partial, total);
  done();
  EXPECT(*total == 1900);
}
}  // namespace warp

// Cooperative groups: block, tiles, the active threads of a branch, partitions, reduce and scan.
namespace groups {
namespace cg = cooperative_groups;

template <class Group>
__device__ int sum_of(const Group& g, int v) {
  for (int distance = g.size() / 2; distance > 0; distance /= 2) v += g.shfl_down(v, distance);
  return g.shfl(v, 0);
}
__device__ int rank_in(cg::thread_group g) { return g.thread_rank(); }

__global__ void block_and_tiles(int* out) {
  __shared__ int s[64];
  cg::thread_block block = cg::this_thread_block();
  const int i = block.thread_rank();
  s[i] = i;
  block.sync();
  int* row = out + 16 * i;
  row[0] = s[(i + 1) % block.size()] + block.group_index().x + block.thread_index().y;
  cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
  auto half = cg::tiled_partition<16>(warp);
  auto four = cg::tiled_partition<4>(block);
  row[1] = sum_of(warp, i);
  row[2] = sum_of(half, i);
  row[3] = sum_of(four, i);
  row[4] = four.meta_group_rank() * 100 + four.thread_rank();
  row[5] = four.ballot(i % 2);
  row[6] = half.any(i == 20) * 10 + half.all(i < 32);
  row[7] = warp.shfl_xor(i, 1) + half.shfl_up(i, 1);
  row[8] = rank_in(four) + 10 * warp.meta_group_size();
  row[9] = cg::reduce(half, i, cg::plus<int>());
  row[10] = cg::reduce(four, 100 - i, cg::greater<int>());
  row[11] = cg::inclusive_scan(half, 1);
  row[12] = cg::exclusive_scan(warp, i, cg::plus<int>());
  row[13] = four.match_any(i / 2);
  cg::thread_group dynamic = cg::tiled_partition(block, 8);
  dynamic.sync();
  row[14] = dynamic.size() * 100 + dynamic.thread_rank();
  cg::sync(block);
  row[15] = s[(i + 63) % 64];
}
__global__ void branches(int* counter, int* out) {
  const int i = threadIdx.x;
  int* row = out + 4 * i;
  row[0] = row[1] = row[2] = -1;
  if (i % 3 == 0) {  // one atomic for all active threads
    cg::coalesced_group active = cg::coalesced_threads();
    int first;
    if (active.thread_rank() == 0) first = atomicAdd(counter, active.size());
    row[0] = active.shfl(first, 0) + active.thread_rank();
    row[1] = cg::reduce(active, i, cg::plus<int>());
    row[2] = active.ballot(i > 15);
  }
  auto warp = cg::tiled_partition<32>(cg::this_thread_block());
  auto same = cg::labeled_partition(warp, i % 5);
  row[3] = same.size() * 100 + same.thread_rank();
  row[3] += 1000000 * cg::reduce(same, i, cg::plus<int>());
  auto two = cg::binary_partition(warp, i < 10);
  row[3] += 10000 * two.size();
}
__global__ void ranks(int* out) {
  const auto block = cg::this_thread_block();
  const auto grid = cg::this_grid();
  int* row = out + 10 * grid.thread_rank();
  const auto digits = [](dim3 v) { return int(v.x + 10 * v.y + 100 * v.z); };
  row[0] = block.thread_rank() + 100 * block.size() + 10000 * block.num_threads();
  row[1] = grid.block_rank() + 100 * grid.num_blocks() + 10000 * grid.is_valid();
  row[2] = grid.size() + 1000 * grid.num_threads();
  row[3] = digits(block.group_index()) + 1000 * digits(block.thread_index());
  row[4] = digits(block.group_dim()) + 1000 * digits(block.dim_threads());
  row[5] = digits(grid.group_dim()) + 1000 * digits(grid.dim_blocks());
  row[6] = digits(grid.block_index());
}
// Reads beyond a group's end, every functor, and the lanes of a branch as a group.
__global__ void calls(int* out) {
  const int i = threadIdx.x;
  int* row = out + 16 * i;
  auto half = cg::tiled_partition<16>(cg::this_thread_block());
  int equal, differs;
  row[0] = half.shfl_down(i, 3) + 100 * half.shfl(i, 18);
  row[1] = half.match_all(7, equal) + half.match_all(i, differs);
  row[2] = equal + 10 * differs + 100 * half.size() + 10000 * half.meta_group_size();
  row[3] = half.match_any(i % 2) + 100000 * half.ballot(i > 19);
  row[4] = cg::reduce(half, i, cg::less<int>()) + 100 * cg::reduce(half, i, cg::greater<int>());
  row[5] = cg::reduce(half, i | 32, cg::bit_and<int>()) +
           100 * cg::reduce(half, 1 << i % 4, cg::bit_or<int>());
  row[6] = cg::reduce(half, (int)(i == 5), cg::bit_xor<int>()) + 10 * cg::exclusive_scan(half, 2);
  row[7] = cg::inclusive_scan(half, i, cg::greater<int>());
  row[8] = half.any(i == 40) + 10 * half.all(i % 16 < 15);
  if (i % 3 == 1) {
    auto some = cg::coalesced_threads();
    const int size = (int)some.size();
    row[9] = some.shfl_up(i, 2) + 100 * some.shfl_down(i, 2) + 10000 * size;
    row[10] = cg::inclusive_scan(some, i) + 1000 * cg::exclusive_scan(some, 1);
    row[11] = some.any(i == 4) + 10 * some.all(i % 3 == 1) + 100 * some.any(i == 3);
    row[12] = some.match_any(i % 2);
    row[13] = cg::reduce(some, i, cg::greater<int>()) + 100 * some.num_threads();
    auto odd = cg::labeled_partition(some, i % 2);
    row[14] = odd.size() + 10 * odd.thread_rank() + 100 * odd.shfl(i, 1);
  }
}

void run() {
  int *out = room<int>(10 * 288), *counter = room<int>(1);
  ranks<<<dim3(2, 3, 2), dim3(4, 3, 2)>>>(out);
  done();
  for (int i = 0; i < 288; ++i) {
    const int* row = out + 10 * i;
    const int b = i / 24, t = i % 24;
    EXPECT(row[0] == t + 2400 + 240000 && row[1] == b + 1200 && row[2] == 288288);
    EXPECT(row[3] % 1000 == b % 2 + b / 2 % 3 * 10 + b / 6 * 100);
    EXPECT(row[3] / 1000 == t % 4 + t / 4 % 3 * 10 + t / 12 * 100);
    EXPECT(row[4] == 234234 && row[5] == 232232 && row[6] == row[3] % 1000);
  }
  calls<<<1, 32>>>(out);
  done();
  for (int i = 0; i < 32; ++i) {
    const int *row = out + 16 * i, h = i / 16 * 16, r = i / 3;
    EXPECT(row[0] == (i % 16 < 13 ? i + 3 : i) + 100 * (h + 2) && row[1] == 0xffff);
    EXPECT(row[2] == 1 + 1600 + 20000);
    EXPECT(row[3] == (i % 2 ? 0xaaaa : 0x5555) + 100000 * (h ? 0xfff0 : 0));
    EXPECT(row[4] == h + 100 * (h + 15) && row[5] == 32 + h + 1500);
    EXPECT(row[6] == (h == 0) + 20 * (i % 16) && row[7] == i && row[8] == 0);
    if (i % 3 != 1) continue;
    EXPECT(row[9] == (r > 1 ? i - 6 : i) + 100 * (r < 9 ? i + 6 : i) + 110000);
    EXPECT(row[10] == (r + 1) * (i + 1) / 2 + 1000 * r && row[11] == 11);
    EXPECT(row[12] == (i % 2 ? 0x555 : 0x2aa) && row[13] == 31 + 1100);
    EXPECT(row[14] == (i % 2 ? 6 : 5) + 10 * (r / 2) + 100 * (i % 2 ? 7 : 10));
  }
  block_and_tiles<<<1, dim3(32, 2)>>>(out);
  done();
  for (int i = 0; i < 64; ++i) {
    const int* row = out + 16 * i;
    const int w = i / 32 * 32, h = i / 16 * 16, f = i / 4 * 4;
    EXPECT(row[0] == (i + 1) % 64 + i / 32);
    EXPECT(row[1] == 32 * w + 496 && row[2] == 16 * h + 120 && row[3] == 4 * f + 6);
    EXPECT(row[4] == i / 4 * 100 + i % 4 && row[5] == 0xa);
    EXPECT(row[6] == (h == 16 ? 10 : 0) + (i < 32 ? 1 : 0));
    EXPECT(row[7] == (i ^ 1) + (i % 16 ? i - 1 : i) && row[8] == i % 4 + 20);
    EXPECT(row[9] == 16 * h + 120 && row[10] == 100 - f && row[11] == i % 16 + 1);
    int before = 0;
    for (int k = w; k < i; ++k) before += k;
    EXPECT(row[12] == before && row[13] == (i % 4 < 2 ? 3 : 12));
    EXPECT(row[14] == 800 + i % 8 && row[15] == (i + 63) % 64);
  }
  branches<<<1, 32>>>(counter, out);
  done();
  EXPECT(*counter == 11);
  for (int i = 0; i < 32; ++i) {
    const int* row = out + 4 * i;
    EXPECT(row[0] == (i % 3 ? -1 : i / 3));
    EXPECT(row[1] == (i % 3 ? -1 : 165));    // 0 + 3 + ... + 30
    EXPECT(row[2] == (i % 3 ? -1 : 0x7c0));  // 18 is the sixth of them
    int sum = 0;
    for (int k = i % 5; k < 32; k += 5) sum += k;
    EXPECT(row[3] == 1000000 * sum + (i % 5 < 2 ? 700 : 600) + i / 5 + 10000 * (i < 10 ? 10 : 22));
  }
}
}  // namespace groups

int main() {
  warp::run();
  groups::run();
  return verdict();
}

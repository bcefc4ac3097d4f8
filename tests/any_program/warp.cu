// Warps: shuffles, votes, matches, reductions, active lanes; blocks: counting barriers, and fences.
#include "check.h"

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
    r.active = -1;
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

int main() {
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
    EXPECT(r.active == (lane % 4 == 1 ? 8 : -1));
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
  return verdict();
}

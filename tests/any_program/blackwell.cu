// Inline PTX of Blackwell beside tests/any_program/tensor_memory.cu: clusters whose blocks write to
// each other's shared memory, blocks that take over the next one's work, packed arithmetic and
// matrices of bytes.
#include <stdint.h>

#include "check.h"

__device__ inline uint32_t address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ inline uint32_t there(uint32_t p, uint32_t rank) {
  asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(p) : "r"(rank));
  return p;
}
__device__ inline void init(uint32_t bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count));
}
__device__ inline void expect(uint32_t bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes));
}
__device__ inline void wait(uint32_t bar, int parity) {
  asm volatile(
      "{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again; "
      "}" ::"r"(bar),
      "r"(parity)
      : "memory");
}
__device__ inline void meet() {
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}

// Each block of a pair sends to the other one: registers, sums, and a copy of its tile.
__global__ void __cluster_dims__(2, 1, 1) exchange(const int* x, int* y, float* total) {
  __shared__ __align__(16) int tile[32], received[32], all[32];
  __shared__ __align__(16) float sums[4];
  __shared__ __align__(16) int sent[4], counted[1];
  __shared__ uint64_t bars[2];
  const uint32_t arrived = address(&bars[0]), loaded = address(&bars[1]);
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  const int thread = threadIdx.x;
  tile[thread] = 100 * rank + thread;
  if (thread < 4) sums[thread] = rank + thread + 0.5f;
  if (thread == 0) {
    counted[0] = 1000;
    init(arrived, 1), init(loaded, 1);
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  asm volatile("fence.proxy.async.shared::cta;");
  meet();
  const uint32_t other = rank ^ 1, bar = there(arrived, other);
  if (thread == 0) {
    expect(arrived, 16 + 4 * 32 + sizeof tile), expect(loaded, sizeof all);
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
        "[%5];" ::"r"(there(address(sent), other)),
        "r"(rank), "r"(2), "r"(3), "r"(4), "r"(bar));
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(there(address(received), other)),
        "r"(address(tile)), "r"((int)sizeof tile), "r"(bar));
    if (rank == 0) {
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
          "[%0], [%1], %2, [%3], %4;" ::"r"(address(all)),
          "l"(x), "r"((int)sizeof all), "r"(loaded), "h"((uint16_t)3));
    }
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 16;" ::"l"(total),
        "r"(address(sums)));
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;");
  }
  asm volatile(
      "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%0], %1, "
      "[%2];" ::"r"(there(address(counted), other)),
      "r"(thread), "r"(bar));
  wait(arrived, 0);
  wait(loaded, 0);
  y[rank * 32 + thread] = sent[thread % 4] + received[thread] + all[thread] + counted[0];
  meet();
}

// A block works on its own tile, then on those of blocks that will not run.
__global__ void steal(int* y, int* blocks) {
  __shared__ __align__(16) uint4 response;
  __shared__ uint64_t bars[1];
  const uint32_t bar = address(bars);
  if (threadIdx.x == 0) {
    atomicAdd(blocks, 1), init(bar, 1);
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  __syncthreads();
  uint32_t x = blockIdx.x, y_of = blockIdx.y, z, is = 1;
  for (int phase = 0; is; phase ^= 1) {
    if (threadIdx.x == 0) {
      expect(bar, 16);
      asm volatile(
          "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 "
          "[%0], [%1];" ::"r"(address(&response)),
          "r"(bar));
    }
    atomicAdd(&y[y_of * gridDim.x + x], threadIdx.x);
    wait(bar, phase);
    asm volatile(
        "{ .reg .b128 r; .reg .pred p; ld.acquire.cta.shared.b128 r, [%4]; "
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, r; selp.u32 %3, 1, 0, p; "
        "@p clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%0, %1, %2, _}, r; }"
        : "+r"(x), "+r"(y_of), "=r"(z), "=r"(is)
        : "r"(address(&response)));
    asm volatile("fence.proxy.async.shared::cta;");
    __syncthreads();  // all have read the response
  }
}

__global__ void packed(float2* y) {
  uint64_t a, b, c;
  asm("mov.b64 %0, {%1, %2};" : "=l"(a) : "f"(1.5f), "f"(-2.f));
  asm("mov.b64 %0, {%1, %2};" : "=l"(b) : "f"(3.f), "f"(0.25f));
  asm("fma.rn.f32x2 %0, %1, %2, %2;" : "=l"(c) : "l"(a), "l"(b));
  asm("add.rn.f32x2 %0, %0, %1;" : "+l"(c) : "l"(a));
  asm("mul.rn.f32x2 %0, %0, %1;" : "+l"(c) : "l"(b));
  asm("mov.b64 {%0, %1}, %2;" : "=f"(y->x), "=f"(y->y) : "l"(c));
}

// A matrix of 16 x 8 bytes, element (i, j) is 8 i + j, to 8 rows in columns' order; two ways back.
__global__ void bytes(uint32_t* y) {
  __shared__ __align__(128) uint8_t rows[16][16];
  const int lane = threadIdx.x;
  uint32_t r = 0, back[2], narrow;
  for (int i = 0; i < 4; ++i) {
    r |= (uint32_t)((lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2) << 8 * i;
  }
  ((uint32_t*)rows[8])[lane] = 0x03020100 + 0x01010101 * 4 * lane;
  asm volatile(
      "stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [%0], {%1};" ::"r"(address(rows[lane % 8])),
      "r"(r));
  __syncwarp();
  asm volatile("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%0, %1}, [%2];"
               : "=r"(back[0]), "=r"(back[1])
               : "r"(address(rows[lane % 16])));
  asm volatile("ldmatrix.sync.aligned.m8n16.x1.shared.b8x16.b4x16_p64 {%0}, [%1];"
               : "=r"(narrow)
               : "r"(address(rows[lane % 8])));
  y[lane] = back[0], y[32 + lane] = back[1], y[64 + lane] = narrow;
}

int main() {
  int *x = room<int>(32), *y = room<int>(64);
  float* total = room<float>(4);
  for (int i = 0; i < 32; ++i) x[i] = 7 * i;
  exchange<<<2, 32>>>(x, y, total);
  done();
  for (int i = 0; i < 64; ++i) {
    const int other = i / 32 ^ 1, sent[] = {other, 2, 3, 4};
    EXPECT(y[i] == sent[i % 4] + 100 * other + i % 32 + 7 * (i % 32) + 1000 + 31 * 16);
  }
  for (int i = 0; i < 4; ++i) EXPECT(total[i] == 2 * i + 2);

  int *tiles = room<int>(12), *blocks = room<int>(1);
  steal<<<dim3(4, 3), 32>>>(tiles, blocks);
  done();
  for (int i = 0; i < 12; ++i) EXPECT(tiles[i] == 31 * 16);
  EXPECT(blocks[0] >= 1 && blocks[0] < 12);

  float2* two = room<float2>(1);
  packed<<<1, 1>>>(two);
  done();
  EXPECT(two->x == (1.5f * 3 + 3 + 1.5f) * 3 && two->y == (-0.5f + 0.25f - 2) * 0.25f);

  uint32_t* words = room<uint32_t>(96);
  bytes<<<1, 32>>>(words);
  done();
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const auto byte = [&](int n) { return words[32 * n + lane] >> 8 * i & 0xff; };
      const int j = lane % 4 * 4 + i, first = lane / 4;  // row of shared memory, its first byte
      EXPECT(byte(0) == (j < 8 ? first * 8 + j : (j - 8) * 16 + first));
      EXPECT(byte(1) == (j < 8 ? (first + 8) * 8 + j : (j - 8) * 16 + first + 8));
      EXPECT(byte(2) == ((j / 2 * 8 + first) >> j % 2 * 4 & 15));
    }
  }
  return verdict();
}

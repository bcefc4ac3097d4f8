// What these programs share: PTX instructions, under the names that the steps use for them
// (common/dialect/ptx), as macros, so that the simulator names the line that uses one; and a host.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <cstdio>

#define SHARED(p) static_cast<uint32_t>(__cvta_generic_to_shared(p))

#define mbarrier_init(bar, count) \
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(SHARED(bar)), "r"(count) : "memory")
#define mbarrier_init_fence() asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory")
#define mbarrier_arrive(bar) \
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(SHARED(bar)) : "memory")
#define mbarrier_arrive_expect_tx(bar, bytes)                                          \
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(SHARED(bar)), \
               "r"(int(bytes))                                                         \
               : "memory")
#define mbarrier_wait(bar, parity)                                                \
  asm volatile(                                                                   \
      "{ .reg .pred done;\nTRY: mbarrier.try_wait.parity.shared.b64 done, [%0], " \
      "%1;\n@!done bra TRY; }" ::"r"(SHARED(bar)),                                \
      "r"(parity)                                                                 \
      : "memory")

// Copies of `bytes` bytes by TMA, without a tensor map: the async proxy.
#define bulk_load(to, from, bytes, bar)                                          \
  asm volatile(                                                                  \
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], " \
      "[%1], %2, [%3];" ::"r"(SHARED(to)),                                       \
      "l"(from), "r"(int(bytes)), "r"(SHARED(bar))                               \
      : "memory")
#define bulk_store(to, from, bytes)                                                     \
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), \
               "r"(SHARED(from)), "r"(int(bytes))                                       \
               : "memory")
#define bulk_commit() asm volatile("cp.async.bulk.commit_group;" ::: "memory")
#define bulk_wait_read(pending) \
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory")
#define fence_proxy_async() asm volatile("fence.proxy.async.shared::cta;" ::: "memory")

#define bar_sync(id, threads) asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory")
#define bar_arrive(id, threads) \
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory")

// D[64][8] = A[64][16] B[16][8], + D with `accumulate`: four numbers of D in each of 128 threads.
#define wgmma(d, a, b, accumulate)                                                 \
  asm volatile(                                                                    \
      "{ .reg .pred p; setp.ne.b32 p, %6, 0;\n"                                    \
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, " \
      "%5, p, 1, 1, 0, 0; }"                                                       \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                             \
      : "l"(a), "l"(b), "r"(int(accumulate))                                       \
      : "memory")
/// A K-major operand without swizzle: 8 rows of 16 bytes, then the next 8 values of k, 128 bytes
/// further on, or the next 8 rows, 256 bytes further on.
#define plain_descriptor(tile) \
  (uint64_t{SHARED(tile) >> 4} | uint64_t{128 >> 4} << 16 | uint64_t{256 >> 4} << 32)
#define wgmma_fence() asm volatile("wgmma.fence.sync.aligned;" ::: "memory")
#define wgmma_commit() asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory")
#define wgmma_wait(pending) \
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory")

#define tcgen05_alloc(address, columns)                                                           \
  asm volatile(                                                                                   \
      "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(SHARED(address)), \
      "r"(columns)                                                                                \
      : "memory")
#define tcgen05_dealloc(address, columns)                                              \
  asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(address), \
               "r"(columns)                                                            \
               : "memory")
#define tcgen05_mma(d, a, b, instruction)                                   \
  asm volatile(                                                             \
      "{ .reg .pred p; setp.ne.b32 p, 0, 0;\n"                              \
      "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p; }" ::"r"(d), \
      "l"(a), "l"(b), "r"(instruction)                                      \
      : "memory")
#define tcgen05_descriptor(tile) (plain_descriptor(tile) | uint64_t{1} << 46)
// 128 rows, 16 columns; bf16 operands, fp32 sums
constexpr uint32_t kProduct = 1 << 4 | 1 << 7 | 1 << 10 | 16 / 8 << 17 | 128 / 16 << 24;
#define tcgen05_commit(bar)                                                    \
  asm volatile(                                                                \
      "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 " \
      "[%0];" ::"r"(SHARED(bar))                                               \
      : "memory")
#define tcgen05_fence_before_thread_sync() \
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory")
#define tcgen05_fence_after_thread_sync() \
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory")
#define tcgen05_ld(x, from)                                        \
  asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1];" \
               : "=f"(x)                                           \
               : "r"(from)                                         \
               : "memor"                                           \
                 "y")
#define tcgen05_wait_ld() asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory")

// No instruction: the compiler may move no use of these four registers across this point.
#define pin_registers(d) asm volatile("" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])::"memory")

// Launches a kernel, and compares the numbers out[i] with want(in, i). Returns the exit status.
template <class T, class Launch, class Value, class Want>
int check(Launch launch, int inputs, int outputs, Value value, Want want) {
  T *in, *out;
  cudaMallocManaged(&in, inputs * sizeof(T));
  cudaMallocManaged(&out, outputs * sizeof(T));
  for (int i = 0; i < inputs; ++i) in[i] = value(i);
  launch(in, out);
  cudaDeviceSynchronize();
  int wrong = 0;
  for (int i = 0; i < outputs; ++i) wrong += out[i] != want(in, i);
  printf("%d numbers are wrong\n", wrong);
  return wrong != 0;
}

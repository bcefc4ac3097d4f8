/// \file
/// Hopper's tensor cores: a warpgroup (4 warps, 128 threads) issues a product, which runs
/// asynchronously with operands in shared memory.
///
///     wgmma_fence();                                   // registers are ready
///     for (...) wgmma(S, descriptor_a, descriptor_b);  // m64nNk16 each
///     wgmma_commit();                                  // close the group
///     wgmma_wait<0>();                                 // now S may be read
///
/// From the wgmma to the wait that covers it, the accumulators, A's registers and the operands in
/// shared memory must not be touched (so each product of a group needs its own array for A);
/// otherwise the compiler serialises ("wgmma serialized" in ptxas's output is a finding). Operands
/// written by plain stores first need fence_proxy_async() and a barrier. All threads of the
/// warpgroup issue the same operations.
#pragma once

#include "common/dialect/ptx/layouts.h"
#include "common/dialect/ptx/wrapper.h"

namespace fa {

/// A step along an operand in shared memory: the descriptor `bytes` further on (a multiple of 16).
/// 16 values of k are 32 bytes of a K-major operand, and 16 rows of an MN-major one.
FA_LAYOUT uint64_t wgmma_advance(uint64_t descriptor, int bytes) {
  return descriptor + static_cast<uint64_t>(bytes >> 4);
}

#if defined(__CUDACC__)

/// Describes an operand in shared memory. Which element is where: wgmma_offset() in layouts.h.
/// \param tile           first element, 16-byte aligned
/// \param leading_bytes  MN-major: between panels of W / 2 columns; K-major: not used.
///                       Without swizzle: between core matrices in k
/// \param stride_bytes   between groups of 8 rows of W bytes: 8 W when the tile is dense.
///                       Without swizzle: between core matrices in m or n
FA_PTX uint64_t wgmma_descriptor(const void* tile, Swizzle swizzle, int leading_bytes,
                                 int stride_bytes) {
  const uint64_t code = swizzle == Swizzle::b128  ? 1
                        : swizzle == Swizzle::b64 ? 2
                        : swizzle == Swizzle::b32 ? 3
                                                  : 0;
  return static_cast<uint64_t>((shared_address(tile) & 0x3ffff) >> 4) |
         static_cast<uint64_t>(leading_bytes >> 4) << 16 |
         static_cast<uint64_t>(stride_bytes >> 4) << 32 | code << 62;
}

/// Orders earlier accesses to the registers that the next wgmma reads or accumulates into. Needed
/// before the first wgmma and after any such access.
FA_PTX void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/// Closes the group of the wgmma issued since the last commit.
FA_PTX void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until at most the `pending` newest groups are running.
template <int pending>
FA_PTX void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// A product of N columns has N / 2 accumulators per thread; the instruction names each of them.

/// D[64][64] = A[64][16] B[16][64] (+ D when `accumulate`): bf16 inputs, fp32 accumulators. Scalar
/// meaning, at some time before the wait returns:
///
///     for (m = 0..63) for (n = 0..63) for (k = 0..15) D[m][n] += A[m][k] * B[k][n];
///
/// in one step, which does not round as 16 additions would: tensor_sum(kBf16Sum) in tensor_sum.h.
/// A at wgmma_offset(a, Major::k, m, k), B at wgmma_offset(b, Major::k, n, k) in shared memory;
/// d[i] = D at wgmma_d_element(thread, i). Other operands and widths: more/wgmma.h.
FA_PTX void wgmma(float (&d)[32], uint64_t a, uint64_t b, bool accumulate = true) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16"
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
      " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, p, 1, 1, 0, 0; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate))
      : "memory");
}
/// The same with 128 columns.
FA_PTX void wgmma(float (&d)[64], uint64_t a, uint64_t b, bool accumulate = true) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16"
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
      " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
      " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
      " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, p, 1, 1, 0, 0; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
        "+f"(d[63])
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate))
      : "memory");
}

/// With A from registers: a[i / 2].half[i % 2] = A at wgmma_a_element(thread, i); and B at
/// wgmma_offset(b, b_major, n, k). Major::mn is PTX's "transposed".
template <Major b_major = Major::k>
FA_PTX void wgmma(float (&d)[32], const uint32_t (&a)[4], uint64_t b, bool accumulate = true) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16"
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
      " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1, %38; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),
        "n"(static_cast<int>(b_major))
      : "memory");
}
/// The same with 128 columns.
template <Major b_major = Major::k>
FA_PTX void wgmma(float (&d)[64], const uint32_t (&a)[4], uint64_t b, bool accumulate = true) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16"
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
      " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
      " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
      " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, p, 1, 1, %70; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
        "+f"(d[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),
        "n"(static_cast<int>(b_major))
      : "memory");
}

#elif !FA_BACKEND_GPU

FA_PTX uint64_t wgmma_descriptor(const void* tile, Swizzle swizzle, int leading_bytes,
                                 int stride_bytes, FA_WHERE) {
  return sim::wgmma_descriptor(tile, swizzle, leading_bytes, stride_bytes, where);
}
FA_PTX void wgmma_fence() { sim::wgmma_fence(); }
FA_PTX void wgmma_commit() { sim::wgmma_commit(); }
template <int pending>
FA_PTX void wgmma_wait(FA_WHERE) {
  sim::wgmma_wait(pending, where);
}
FA_PTX void wgmma(float (&d)[32], uint64_t a, uint64_t b, bool accumulate = true, FA_WHERE) {
  sim::wgmma(d, {.n = 64, .a = a, .b = b, .accumulate = accumulate}, where);
}
FA_PTX void wgmma(float (&d)[64], uint64_t a, uint64_t b, bool accumulate = true, FA_WHERE) {
  sim::wgmma(d, {.n = 128, .a = a, .b = b, .accumulate = accumulate}, where);
}
template <Major b_major = Major::k>
FA_PTX void wgmma(float (&d)[32], const uint32_t (&a)[4], uint64_t b, bool accumulate = true,
                  FA_WHERE) {
  constexpr bool mn = b_major == Major::mn;
  sim::wgmma(d, {.n = 64, .a_registers = a, .b = b, .b_mn_major = mn, .accumulate = accumulate},
             where);
}
template <Major b_major = Major::k>
FA_PTX void wgmma(float (&d)[64], const uint32_t (&a)[4], uint64_t b, bool accumulate = true,
                  FA_WHERE) {
  constexpr bool mn = b_major == Major::mn;
  sim::wgmma(d, {.n = 128, .a_registers = a, .b = b, .b_mn_major = mn, .accumulate = accumulate},
             where);
}

#endif

}  // namespace fa

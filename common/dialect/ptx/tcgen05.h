/// \file
/// Blackwell's tensor cores (sm_100a): one thread issues a product, which runs asynchronously and
/// whose result is in tensor memory instead of registers.
///
/// Tensor memory: 128 lanes of 512 columns of 32 bits in each SM, shared by its blocks. An address
/// has the lane in its high 16 bits and the column in its low ones (tmem_address).
///
///              column 0     1    ...  base ...  base + 127    ...   511
///     lane 0         .      .          row 0 of S, fp32              .     warps 0, 4, 8, ...
///       ...                               ...                              reach lanes 0 .. 31,
///     lane 31                          row 31                              1, 5, ... 32 .. 63,
///       ...                               ...                              2, 6, ... 64 .. 95,
///     lane 127       .      .          row 127                       .     3, 7, ... 96 .. 127
///
///     if (warp == 0) tcgen05_alloc(&base, 128);         // one warp, for the block
///     __syncthreads();
///     if (thread == 0) {
///       for (...) tcgen05_mma(base, a, b, instruction); // m128nNk16 each, in order
///       tcgen05_commit(&done);                          // they arrive at an mbarrier
///     }
///     mbarrier_wait(&done, 0);
///     tcgen05_fence_after_thread_sync();                // what follows stays after the wait
///     tcgen05_ld(rS, tmem_address(base, 32 * (warp % 4), 0));  // lane l: row 32 (warp % 4) + l
///     tcgen05_wait_ld(rS);                              // now the columns may be overwritten
///     tcgen05_fence_before_thread_sync();               // ... and stays before the barrier
///     __syncthreads();
///     if (warp == 0) tcgen05_dealloc(base, 128);        // before the block ends
///
/// mma, ld and st run asynchronously and complete in any order, except the products of one thread.
/// The next access to the same tensor memory needs
///
///   after  mma   tcgen05_commit and a wait on its mbarrier, then fence_after
///          ld    tcgen05_wait_ld      in the same warp: that is enough
///          st    tcgen05_wait_st      in another warp: then fence_before, a barrier or mbarrier,
///                                     and fence_after there
///
/// mma reads shared memory as TMA and wgmma do: operands written by plain stores first need
/// fence_proxy_async() and a barrier; they may be overwritten when the commit's mbarrier completes.
#pragma once

#include "common/dialect/ptx/layouts.h"
#include "common/dialect/ptx/registers.h"
#include "common/dialect/ptx/wrapper.h"

namespace fa {

/// The address `lane` lanes and `column` columns after an address in tensor memory.
FA_LAYOUT uint32_t tmem_address(uint32_t base, int lane, int column) {
  return base + (static_cast<uint32_t>(lane) << 16) + static_cast<uint32_t>(column);
}

/// A step along an operand in shared memory: the descriptor `bytes` further on (a multiple of 16).
/// 16 values of k are 32 bytes of a K-major operand, and 16 rows of an MN-major one.
FA_LAYOUT uint64_t tcgen05_advance(uint64_t descriptor, int bytes) {
  return descriptor + static_cast<uint64_t>(bytes >> 4);
}

/// The instruction descriptor of D[m][n] += A[m][16] B[16][n]: bf16 factors, fp32 sums. Bits 4-5
/// are D's type, 7-9 A's, 10-12 B's; 15 and 16: A and B are MN-major; 17-22: n / 8; 24-28: m / 16.
/// \param m  128; 256 for two blocks (more/tcgen05_2cta.h)
/// \param n  a multiple of 16, for two blocks of 32, up to 256
FA_LAYOUT uint32_t tcgen05_instruction(int m, int n, Major a = Major::k, Major b = Major::k) {
  constexpr uint32_t kFp32 = 1, kBf16 = 1;
  return kFp32 << 4 | kBf16 << 7 | kBf16 << 10 | static_cast<uint32_t>(a) << 15 |
         static_cast<uint32_t>(b) << 16 | static_cast<uint32_t>(n / 8) << 17 |
         static_cast<uint32_t>(m / 16) << 24;
}

/// Columns that one tcgen05_ld or tcgen05_st moves.
#define FA_NEED_TENSOR_COLUMNS(n)    \
  static_assert(                     \
      n == 16 || n == 32 || n == 64, \
      "tcgen05_ld and tcgen05_st move 16, 32 or 64 columns: an array of so many registers")

#if defined(__CUDACC__)

// `group`: the blocks that an instruction belongs to, 1 or 2 (more/tcgen05_2cta.h).

/// Allocates `columns` columns (32, 64, ... 512; all lanes) and stores their address to shared
/// memory; waits while other blocks of the SM hold too many. All lanes of one warp take part.
template <int group = 1>
FA_PTX void tcgen05_alloc(uint32_t* address, int columns) {
  asm volatile("tcgen05.alloc.cta_group::%2.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(
                   shared_address(address)),
               "r"(columns), "n"(group)
               : "memory");
}
/// This block will allocate no more, so others may. All lanes of one warp take part.
template <int group = 1>
FA_PTX void tcgen05_relinquish_alloc_permit() {
  asm volatile("tcgen05.relinquish_alloc_permit.cta_group::%0.sync.aligned;" ::"n"(group)
               : "memory");
}
/// Frees the columns of tcgen05_alloc; a block must do so before it ends. All lanes of one warp
/// take part, after the last use by any thread.
template <int group = 1>
FA_PTX void tcgen05_dealloc(uint32_t address, int columns) {
  asm volatile("tcgen05.dealloc.cta_group::%2.sync.aligned.b32 %0, %1;" ::"r"(address),
               "r"(columns), "n"(group)
               : "memory");
}

/// Describes an operand in shared memory. Which element is where: wgmma_offset() in layouts.h, as
/// for wgmma_descriptor(), whose bits differ.
/// \param tile           first element, 16-byte aligned
/// \param leading_bytes  MN-major: between panels of W / 2 columns; K-major: not used.
///                       Without swizzle: between core matrices in k
/// \param stride_bytes   between groups of 8 rows of W bytes: 8 W when the tile is dense.
///                       Without swizzle: between core matrices in m or n
FA_PTX uint64_t tcgen05_descriptor(const void* tile, Swizzle swizzle, int leading_bytes,
                                   int stride_bytes) {
  const uint64_t code = swizzle == Swizzle::b128  ? 2
                        : swizzle == Swizzle::b64 ? 4
                        : swizzle == Swizzle::b32 ? 6
                                                  : 0;
  constexpr uint64_t kVersion = 1;  // Blackwell's
  return static_cast<uint64_t>((shared_address(tile) & 0x3ffff) >> 4) |
         static_cast<uint64_t>(leading_bytes >> 4) << 16 |
         static_cast<uint64_t>(stride_bytes >> 4) << 32 | kVersion << 46 | code << 61;
}

/// D[128][N] = A[128][16] B[16][N] (+ D when `accumulate`). By one thread. Scalar meaning, at some
/// time before the commit's mbarrier completes:
///
///     for (m = 0..127) for (n = 0..N-1) for (k = 0..15) D[m][n] += A[m][k] * B[k][n];
///
/// in one step, which does not round as 16 additions would: tensor_sum(kBf16Sum) in tensor_sum.h.
/// A at wgmma_offset(a, a_major, m, k) and B at wgmma_offset(b, b_major, n, k) in shared memory,
/// D[m][n] in tensor memory at lane m, column d + n.
/// \param d            address of lane 0
/// \param instruction  tcgen05_instruction(128, N, a_major, b_major)
template <int group = 1>
FA_PTX void tcgen05_mma(uint32_t d, uint64_t a, uint64_t b, uint32_t instruction,
                        bool accumulate = true) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %4, 0;\n"
      "tcgen05.mma.cta_group::%5.kind::f16 [%0], %1, %2, %3, p; }" ::"r"(d),
      "l"(a), "l"(b), "r"(instruction), "r"(static_cast<int>(accumulate)), "n"(group)
      : "memory");
}
/// The same with A from tensor memory, two bf16 per column: A[m][k] is half k % 2 (0: the low one)
/// of lane m, column a + k / 2. A is K-major.
template <int group = 1>
FA_PTX void tcgen05_mma_tmem(uint32_t d, uint32_t a, uint64_t b, uint32_t instruction,
                             bool accumulate = true) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %4, 0;\n"
      "tcgen05.mma.cta_group::%5.kind::f16 [%0], [%1], %2, %3, p; }" ::"r"(d),
      "r"(a), "l"(b), "r"(instruction), "r"(static_cast<int>(accumulate)), "n"(group)
      : "memory");
}
/// `bar` receives one arrival when all products that this thread has issued are complete.
FA_PTX void tcgen05_commit(uint64_t* bar) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
                   shared_address(bar))
               : "memory");
}

/// Keeps what this thread has waited for before the barrier or arrival that follows.
FA_PTX void tcgen05_fence_before_thread_sync() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}
/// Keeps the mma, ld and st that follow after the preceding barrier or wait.
FA_PTX void tcgen05_fence_after_thread_sync() {
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

/// tcgen05.ld and st of n columns; see below.
template <int n>
struct Tcgen05OfWidth;

// reg: the constraint of T's registers; address: the name of the operand after the n registers.
#define FA_TCGEN05_OF(N, T, reg, address)                                                       \
  static FA_PTX void ld(T(&r)[N], uint32_t from) {                                              \
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x" #N ".b32 {" FA_REGS_##N "}, [" address "];" \
                 : FA_OPERANDS_##N("=" reg, r)                                                  \
                 : "r"(from)                                                                    \
                 : "memory");                                                                   \
  }                                                                                             \
  static FA_PTX void st(uint32_t to, const T(&r)[N]) {                                          \
    asm volatile("tcgen05.st.sync.aligned.32x32b.x" #N ".b32 [" address "], {" FA_REGS_##N      \
                 "};" ::FA_OPERANDS_##N(reg, r),                                                \
                 "r"(to)                                                                        \
                 : "memory");                                                                   \
  }
#define FA_TCGEN05(N, address)               \
  template <>                                \
  struct Tcgen05OfWidth<N> {                 \
    FA_TCGEN05_OF(N, float, "f", address)    \
    FA_TCGEN05_OF(N, uint32_t, "r", address) \
  };
FA_TCGEN05(16, "%16")
FA_TCGEN05(32, "%32")
FA_TCGEN05(64, "%64")

/// Loads n columns of tensor memory (16, 32 or 64). All lanes of a warp pass the same address, of
/// lane 32 (warp % 4), its first one. Scalar meaning, at some time before tcgen05_wait_ld returns:
///
///     for (i = 0..n-1) r[i] = tensor_memory[lane of `from` + this thread's lane][column + i];
///
/// An instruction of this thread that reads one of the registers is ordered after the load even
/// without the wait (PTX ISA, "Register dependencies, same thread").
template <class T, int n>
FA_PTX void tcgen05_ld(T (&r)[n], uint32_t from) {
  FA_NEED_TENSOR_COLUMNS(n);
  Tcgen05OfWidth<n>::ld(r, from);
}
/// Stores n columns, the reverse of tcgen05_ld. The registers may be reused at once.
template <class T, int n>
FA_PTX void tcgen05_st(uint32_t to, const T (&r)[n]) {
  FA_NEED_TENSOR_COLUMNS(n);
  Tcgen05OfWidth<n>::st(to, r);
}
/// Waits until this warp's loads are complete: the columns may be overwritten or freed. Pass the
/// register arrays of the loads, whose uses the compiler then keeps after the wait.
template <class... R>
FA_PTX void tcgen05_wait_ld(R&... r) {
  asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
  (pin_registers(r), ...);
}
/// Waits until this warp's stores are complete.
FA_PTX void tcgen05_wait_st() { asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory"); }

#elif !FA_BACKEND_GPU

template <int group = 1>
FA_PTX void tcgen05_alloc(uint32_t* address, int columns, FA_WHERE) {
  sim::tcgen05_alloc(address, columns, where, sim::CtaGroup{group});
}
template <int group = 1>
FA_PTX void tcgen05_relinquish_alloc_permit(FA_WHERE) {
  sim::tcgen05_relinquish_alloc_permit(where, sim::CtaGroup{group});
}
template <int group = 1>
FA_PTX void tcgen05_dealloc(uint32_t address, int columns, FA_WHERE) {
  sim::tcgen05_dealloc(address, columns, where, sim::CtaGroup{group});
}
FA_PTX uint64_t tcgen05_descriptor(const void* tile, Swizzle swizzle, int leading_bytes,
                                   int stride_bytes, FA_WHERE) {
  return sim::tcgen05_descriptor(tile, swizzle, leading_bytes, stride_bytes, where);
}
template <int group = 1>
FA_PTX void tcgen05_mma(uint32_t d, uint64_t a, uint64_t b, uint32_t instruction,
                        bool accumulate = true, FA_WHERE) {
  sim::tcgen05_mma({.d = d,
                    .a = a,
                    .b = b,
                    .instruction = instruction,
                    .accumulate = accumulate,
                    .group = sim::CtaGroup{group}},
                   where);
}
template <int group = 1>
FA_PTX void tcgen05_mma_tmem(uint32_t d, uint32_t a, uint64_t b, uint32_t instruction,
                             bool accumulate = true, FA_WHERE) {
  sim::tcgen05_mma({.d = d,
                    .a = a,
                    .a_in_tensor_memory = true,
                    .b = b,
                    .instruction = instruction,
                    .accumulate = accumulate,
                    .group = sim::CtaGroup{group}},
                   where);
}
FA_PTX void tcgen05_commit(uint64_t* bar, FA_WHERE) { sim::tcgen05_commit(bar, where); }
FA_PTX void tcgen05_fence_before_thread_sync() { sim::tcgen05_fence(true); }
FA_PTX void tcgen05_fence_after_thread_sync() { sim::tcgen05_fence(false); }
template <class T, int n>
FA_PTX void tcgen05_ld(T (&r)[n], uint32_t from, FA_WHERE) {
  FA_NEED_TENSOR_COLUMNS(n);
  sim::tcgen05_ld(r, n, from, where);
}
template <class T, int n>
FA_PTX void tcgen05_st(uint32_t to, const T (&r)[n], FA_WHERE) {
  FA_NEED_TENSOR_COLUMNS(n);
  sim::tcgen05_st(to, r, n, where);
}
FA_PTX void tcgen05_wait_ld(FA_WHERE) { sim::tcgen05_wait(true, where); }
template <class T, int n>
FA_PTX void tcgen05_wait_ld(T (&)[n], FA_WHERE) {
  sim::tcgen05_wait(true, where);
}
template <class R, class... S>
FA_PTX void tcgen05_wait_ld(R&, S&...) {  // no parameter with a default can follow these
  sim::tcgen05_wait(true, {});
}
FA_PTX void tcgen05_wait_st(FA_WHERE) { sim::tcgen05_wait(false, where); }

#endif

}  // namespace fa

// Faults in the use of tensor memory, each beside a kernel without it; types, shapes and layouts.
#include <random>

#include "common/dialect/ptx/ptx.h"
#include "common/dialect/ptx/tensor_sum.h"
#include "common/sim/half.h"
#include "tests/sim/diagnosis.h"

using fa::Major;
using fa::Swizzle;
using fa::tmem_address;
using sim::test::Buffer;

namespace {

using bf16 = __nv_bfloat16;

constexpr int kM = 128, kN = 32, kK = 16, kColumns = 64;
constexpr int kP = kN;  // column of the second product's A
const fa::LaunchConfig kFiveWarps{3, 160, (kM + kN) * kK * sizeof(bf16)};

enum class Fault {
  none,
  // allocation
  no_allocation,
  beyond,
  freed,
  kept,
  freed_early,
  // lanes
  other_quarter,
  lane_zero,
  lane_128,
  // waits and fences
  no_commit_wait,
  other_parity,
  no_after_fence,
  no_wait_ld,
  registers,
  no_load_wait,
  no_wait_st,
  no_before_fence,
  no_after_barrier,
  other_thread,
  unwritten,
  // operands in shared memory
  overwritten,
  no_proxy_fence,
};

// Warps 0 to 3: S = A B^T, then P = S in bf16, O = P B^T, all in tensor memory; warp 4 allocates.
__global__ void two_products(float* y, Fault fault) {
  bf16* sA = fa::dynamic_shared<bf16>();  // [128][16] and [32][16] in core matrices
  bf16* sB = sA + kM * kK;
  __shared__ uint64_t done[2];
  __shared__ uint32_t address;
  const auto is = [&](Fault f) { return fault == f; };
  const int thread = threadIdx.x, warp = thread / 32;
  bool early = false;
  if (warp == 4 && !is(Fault::no_allocation)) fa::tcgen05_alloc(&address, kColumns);
  if (thread == 0) {
    fa::mbarrier_init(&done[0], 1);
    fa::mbarrier_init(&done[1], 1);
    if (is(Fault::no_allocation)) address = 0;
  }
  for (int i = thread; i < (kM + kN) * kK; i += blockDim.x) sA[i] = 1.f;
  if (!is(Fault::no_proxy_fence)) fa::fence_proxy_async();
  __syncthreads();
  const uint32_t s = address, p = s + kP, mine = tmem_address(s, 32 * (warp % 4), 0);
  const uint64_t a = fa::tcgen05_descriptor(sA, Swizzle::none, kM * 16, 128);
  const uint64_t b = fa::tcgen05_descriptor(sB, Swizzle::none, kN * 16, 128);
  constexpr uint32_t kInstruction = fa::tcgen05_instruction(kM, kN);
  if (thread == 0) {
    fa::tcgen05_mma(s, a, b, kInstruction, is(Fault::unwritten));
    fa::tcgen05_commit(&done[0]);
    if (is(Fault::overwritten)) sA[0] = 2.f;
  }
  if (warp < 4) {
    if (!is(Fault::no_commit_wait)) fa::mbarrier_wait(&done[0], is(Fault::other_parity));
    if (!is(Fault::no_after_fence)) fa::tcgen05_fence_after_thread_sync();
    float r[kN];
    const uint32_t from = is(Fault::other_quarter) ? tmem_address(s, 32, 0)
                          : is(Fault::lane_zero)   ? s
                          : is(Fault::lane_128)    ? tmem_address(s, 128, 0)
                          : is(Fault::beyond)      ? mine + 48
                                                   : mine;
    fa::tcgen05_ld(r, from);
    if (is(Fault::registers)) y[blockIdx.x * kM + thread] = r[1], early = true;
    if (!is(Fault::no_wait_ld)) fa::tcgen05_wait_ld(r);
    uint32_t packed[kK];
    UNROLL
    for (int i = 0; i < kK; ++i) packed[i] = is(Fault::no_wait_ld) ? 0 : fa::pack_bf16(r[i], r[i]);
    fa::tcgen05_st(mine + kP, packed);
    if (!is(Fault::no_wait_st)) fa::tcgen05_wait_st();
    if (!is(Fault::no_before_fence)) fa::tcgen05_fence_before_thread_sync();
  }
  __syncthreads();
  const int issuer = is(Fault::other_thread) ? 32 : 0;
  if (thread == issuer) {
    if (!is(Fault::no_after_barrier)) fa::tcgen05_fence_after_thread_sync();
    fa::tcgen05_mma_tmem(s, p, b, kInstruction, false);
    fa::tcgen05_commit(&done[1]);
  }
  if (is(Fault::freed_early) && warp == 4) fa::tcgen05_dealloc(s, kColumns);
  if (warp < 4) {
    fa::mbarrier_wait(&done[1], 0);
    fa::tcgen05_fence_after_thread_sync();
    float r[kN];
    fa::tcgen05_ld(r, mine);
    if (!is(Fault::no_load_wait)) fa::tcgen05_wait_ld(r);
    if (!is(Fault::no_load_wait) && !early) y[blockIdx.x * kM + thread] = r[0];
    fa::tcgen05_fence_before_thread_sync();
  }
  __syncthreads();
  if (warp == 4 && !is(Fault::kept) && !is(Fault::freed_early)) fa::tcgen05_dealloc(s, kColumns);
  if (is(Fault::freed) && warp == 4) {
    float r[16];
    fa::tcgen05_ld(r, s);
  }
}

// Two threads each issue a product into the same columns, without a wait between them.
__global__ void handed_on(float* y, bool before, bool after) {
  bf16* sA = fa::dynamic_shared<bf16>();
  __shared__ uint64_t done;
  __shared__ uint32_t address;
  if (threadIdx.x < 32) fa::tcgen05_alloc(&address, 32);
  if (threadIdx.x == 0) fa::mbarrier_init(&done, 1);
  for (int i = threadIdx.x; i < (kM + kN) * kK; i += blockDim.x) sA[i] = 1.f;
  fa::fence_proxy_async();
  __syncthreads();
  const uint64_t a = fa::tcgen05_descriptor(sA, Swizzle::none, kM * 16, 128);
  const uint64_t b = fa::tcgen05_descriptor(sA + kM * kK, Swizzle::none, kN * 16, 128);
  constexpr uint32_t kInstruction = fa::tcgen05_instruction(kM, kN);
  if (threadIdx.x == 0) {
    fa::tcgen05_mma(address, a, b, kInstruction, false);
    if (before) fa::tcgen05_fence_before_thread_sync();
  }
  __syncthreads();
  if (threadIdx.x == 32) {
    if (after) fa::tcgen05_fence_after_thread_sync();
    fa::tcgen05_mma(address, a, b, kInstruction);
    fa::tcgen05_commit(&done);
  }
  if (threadIdx.x >= 32) return;
  fa::mbarrier_wait(&done, 0);
  fa::tcgen05_fence_after_thread_sync();
  float r[kN];
  fa::tcgen05_ld(r, address);
  fa::tcgen05_wait_ld(r);
  y[threadIdx.x] = r[0];
  fa::tcgen05_dealloc(address, 32);
}

// One warp allocates as told, and frees it.
struct Columns {
  int first, second = 0, freed = 0;
  bool relinquish = false, differ = false;
};
__global__ void allocate(Columns columns) {
  __shared__ uint32_t address[2];
  fa::tcgen05_alloc(&address[0], columns.first << (columns.differ ? threadIdx.x % 2 : 0));
  if (columns.relinquish) fa::tcgen05_relinquish_alloc_permit();
  if (columns.second) fa::tcgen05_alloc(&address[1], columns.second);
  __syncwarp();
  fa::tcgen05_dealloc(address[0], columns.freed ? columns.freed : columns.first);
  if (columns.second) fa::tcgen05_dealloc(address[1], columns.second);
}

__global__ void relinquish_by_half() {
  if (threadIdx.x < 16) fa::tcgen05_relinquish_alloc_permit();
}
__global__ void addresses(uint32_t* y, int first, int second) {
  __shared__ uint32_t address[2];
  fa::tcgen05_alloc(&address[0], first);
  fa::tcgen05_alloc(&address[1], second);
  __syncwarp();
  if (threadIdx.x < 2) y[2 * blockIdx.x + threadIdx.x] = address[threadIdx.x];
  fa::tcgen05_dealloc(address[0], first);
  fa::tcgen05_dealloc(address[1], second);
}

// D = A B^T and D += A B^T with 32 bytes of k, in any type and shape. An A in tensor memory is
// `lanes`, by block and lane. `cells`: D's lanes, 0 where the product writes none. `scales`: by
// block 32 rows of A's, 64 of B's, of 16 bytes.
struct Shape {
  int m, n, group = 1;
  bool ws = false;
  uint32_t lane = 0;
  int rows() const { return m / group; }  // of a block
};
constexpr int kWords = 8;               // of a row of an operand
constexpr int kScales = (32 + 64) * 4;  // words
template <int group>
__global__ void any_type(const uint32_t* A, const uint32_t* lanes, const uint32_t* B,
                         const uint32_t* scales, uint32_t* cells, sim::TensorProduct p,
                         Shape shape) {
  constexpr int kAll = 128;  // columns; A's follow D's, at most 64, then scales at 96
  uint32_t* sA = fa::dynamic_shared<uint32_t>();
  uint32_t* sB = sA + kM * kWords;
  uint32_t* sScales = sB + 64 * kWords;
  __shared__ uint64_t done;
  __shared__ uint32_t address;
  const int thread = threadIdx.x, rank = fa::cluster_rank(), rows = shape.rows(), n = shape.n;
  const auto meet = [] { group == 2 ? fa::cluster_sync() : __syncthreads(); };
  if (thread < 32) fa::tcgen05_alloc<group>(&address, kAll);
  if (thread == 0) fa::mbarrier_init(&done, 1), fa::mbarrier_init_fence();
  const auto load = [&](uint32_t* tile, const uint32_t* from, int rows) {  // to core matrices
    for (int i = thread; i < rows * kWords; i += kM) {
      tile[i / 4 % 2 * rows * 4 + i / kWords * 4 + i % 4] = from[rank * rows * kWords + i];
    }
  };
  load(sA, A, rows), load(sB, B, n / group);
  for (int i = thread; i < kScales; i += kM) sScales[i] = scales[rank * kScales + i];
  fa::fence_proxy_async();
  __syncthreads();
  const uint32_t mine = tmem_address(address, thread / 32 * 32, 0);
  uint32_t row[16] = {};
  for (int c = 0; c < 64; c += 16) fa::tcgen05_st(mine + c, row);
  for (int i = 0; i < kWords; ++i) row[i] = lanes[(rank * kM + thread) * kWords + i];
  fa::tcgen05_st(mine + 64, row);
  fa::tcgen05_wait_st();
  fa::tcgen05_fence_before_thread_sync();
  meet();
  fa::tcgen05_fence_after_thread_sync();
  if (thread == 0 && rank == 0) {
    p.d = address + (shape.lane << 16);
    p.a =
        p.a_in_tensor_memory ? p.d + 64 : fa::tcgen05_descriptor(sA, Swizzle::none, rows * 16, 128);
    p.b = fa::tcgen05_descriptor(sB, Swizzle::none, n / group * 16, 128);
    p.scales_a = address + 96, p.scales_b = address + 100;
    if (p.kind >= sim::TensorKind::mxf8f6f4) {
      using enum sim::TensorCopy;
      const auto copy = [&](uint32_t to, const uint32_t* from, sim::TensorCopy shape) {
        const uint64_t operand = fa::tcgen05_descriptor(from, Swizzle::none, 0, 128);
        sim::tcgen05_cp(to, operand, shape, 0, sim::Where::here(), p.group);
      };
      copy(p.scales_a, sScales, m32b128);
      copy(p.scales_b, sScales + 32 * 4, rows == 64 ? m64b128_01_23 : m32b128);
    }
    for (const bool accumulate : {false, true}) {
      p.accumulate = accumulate;
      sim::tcgen05_mma(p, sim::Where::here());
    }
    sim::tcgen05_commit(&done, sim::Where::here(), p.group, (1 << group) - 1);
  }
  fa::mbarrier_wait(&done, 0);
  fa::tcgen05_fence_after_thread_sync();
  for (int c = 0; c < 64; c += 16) {
    fa::tcgen05_ld(row, mine + c);
    fa::tcgen05_wait_ld(row);
    for (int i = 0; i < 16; ++i) cells[(rank * kM + thread) * 64 + c + i] = row[i];
  }
  fa::tcgen05_fence_before_thread_sync();
  meet();
  if (thread < 32) fa::tcgen05_dealloc<group>(address, kAll);
}
// The row of D in a lane of a block, -1: none, and D's first column there, by PTX's figures.
struct InLane {
  int row, column = 0;
};
InLane in_lane(const Shape& shape, int lane) {
  const int rows = shape.rows();
  if (rows == 128) return {lane};
  if (shape.m == 64 && !shape.ws) {  // layout F
    return {lane % 32 / 16 == static_cast<int>(shape.lane) / 16 ? lane / 32 * 16 + lane % 16 : -1};
  }
  return {lane % rows, lane / rows * (shape.n / (128 / rows))};
}

// One warp of four stores a row number and column in each cell; warp 0 loads as told, or stores so.
__global__ void move_in_shape(uint32_t* out, sim::TensorShape shape, int n, uint32_t lane,
                              bool stores) {
  constexpr int kAll = 64;
  __shared__ uint32_t address;
  const int thread = threadIdx.x;
  if (thread < 32) fa::tcgen05_alloc(&address, kAll);
  __syncthreads();
  uint32_t row[kAll], registers[kAll];
  for (int c = 0; c < kAll; ++c) row[c] = (thread << 8 | c) * 0x10001u;
  for (int i = 0; i < n; ++i) registers[i] = (thread << 8 | i) * 0x10001u + 0x80000000u;
  const uint32_t mine = tmem_address(address, thread / 32 * 32, 0);
  fa::tcgen05_st(mine, row);
  fa::tcgen05_wait_st();
  if (thread < 32) {
    const uint32_t at = address + (lane << 16);
    if (stores) {
      sim::tcgen05_st(at, registers, n, sim::Where::here(), shape);
      fa::tcgen05_wait_st();
      fa::tcgen05_ld(row, mine);
      fa::tcgen05_wait_ld(row);
      for (int c = 0; c < kAll; ++c) out[thread * kAll + c] = row[c];
    } else {
      sim::tcgen05_ld(registers, n, at, sim::Where::here(), shape);
      fa::tcgen05_wait_ld(row);
      for (int i = 0; i < n; ++i) out[thread * kAll + i] = registers[i];
    }
  }
  __syncthreads();
  if (thread < 32) fa::tcgen05_dealloc(address, kAll);
}
// A warp stores to 16 lanes, another one loads `lane` and the 15 that follow, without an order.
__global__ void half_lanes(float* y, uint32_t lane) {
  __shared__ uint32_t address;
  uint32_t r[16] = {};
  if (threadIdx.x < 32) {
    fa::tcgen05_alloc(&address, 32);
    __syncwarp();
    fa::tcgen05_st(address, r);
    fa::tcgen05_wait_st();
    fa::tcgen05_fence_before_thread_sync();
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    sim::tcgen05_st(address, r, 4, sim::Where::here(), {16, 256});
  } else if (threadIdx.x >= 128) {
    fa::tcgen05_fence_after_thread_sync();
    sim::tcgen05_ld(r, 2, address + (lane << 16), sim::Where::here(), {16, 128});
    fa::tcgen05_wait_ld(r);
    y[threadIdx.x - 128] = std::bit_cast<float>(r[0]);
  }
  fa::tcgen05_wait_st();
  __syncthreads();
  if (threadIdx.x < 32) fa::tcgen05_dealloc(address, 32);
}

// Products with the test's descriptors.
constexpr uint32_t kBf16 = 1u << 7 | 1u << 10;  // of both factors; twice that is tf32, 0 is fp16
struct Descriptors {
  Swizzle swizzle = Swizzle::b128;
  int begin = 0, leading = 0, stride = 1024, advance = 0;
  uint32_t instruction = fa::tcgen05_instruction(128, 128);
  bool hopper = false;
  sim::TensorKind kind = sim::TensorKind::f16;
  bool ws = false;
  uint32_t lane = 0, scales = 0;
  int vector = 0, products = 1;
};
__global__ void describe(Descriptors x) {
  char* tile = fa::dynamic_shared<char>();  // 128 rows of 128 bytes
  __shared__ uint64_t done;
  __shared__ uint32_t address;
  fa::tcgen05_alloc(&address, 256);
  if (threadIdx.x == 0) fa::mbarrier_init(&done, 1);
  __syncwarp();
  if (threadIdx.x == 0) {
    const uint64_t first =
        x.hopper ? fa::wgmma_descriptor(tile, x.swizzle, x.leading, x.stride)
                 : fa::tcgen05_descriptor(tile + x.begin, x.swizzle, x.leading, x.stride);
    const uint64_t operand = fa::tcgen05_advance(first, x.advance);
    sim::TensorProduct p{.d = address + (x.lane << 16),
                         .a = operand,
                         .b = operand,
                         .instruction = x.instruction,
                         .kind = x.kind,
                         .ws = x.ws,
                         .scales_a = address + x.scales,
                         .scales_b = address + x.scales,
                         .scale_vector = x.vector};
    for (int i = 0; i < x.products; ++i) {
      p.accumulate = i > 0;
      sim::tcgen05_mma(p, sim::Where::here());
    }
    fa::tcgen05_commit(&done);
  }
  fa::mbarrier_wait(&done, 0);
  fa::tcgen05_dealloc(address, 256);
}

// Columns that are freed and reallocated, then read by warps 0 and 4, and written by 4.
__global__ void again(bool written, bool waits) {
  __shared__ uint32_t before, address;
  const int warp = threadIdx.x / 32;
  uint32_t r[16] = {};
  if (warp == 0) {
    fa::tcgen05_alloc(&before, 32);
    __syncwarp();
    fa::tcgen05_st(before, r);
    fa::tcgen05_wait_st();
    fa::tcgen05_ld(r, before);
    fa::tcgen05_wait_ld(r);
    fa::tcgen05_dealloc(before, 32);
    fa::tcgen05_alloc(&address, 32);
  }
  __syncthreads();
  if (warp == 4 && written) fa::tcgen05_st(address, r);
  fa::tcgen05_wait_st();
  fa::tcgen05_fence_before_thread_sync();
  __syncthreads();
  fa::tcgen05_fence_after_thread_sync();
  if (warp % 4 == 0) fa::tcgen05_ld(r, address);
  if (warp == 4 || waits) fa::tcgen05_wait_ld(r);
  fa::tcgen05_fence_before_thread_sync();
  __syncthreads();
  fa::tcgen05_fence_after_thread_sync();
  if (warp == 4) fa::tcgen05_st(address, r);
  fa::tcgen05_wait_st();
  __syncthreads();
  if (warp == 0) fa::tcgen05_dealloc(address, 32);
}

// 128 rows of 8 columns from shared memory, rows 32 to 63 shifted down, then 4 other rows to the
// last lane of each 32. Faults, beside wrong addresses.
enum class Copying { none, no_proxy_fence, no_order, no_commit, no_after_fence, other, refilled };
__global__ void copied(uint32_t* y, Copying fault, uint32_t to, uint32_t shifted, int bits) {
  uint32_t* rows = fa::dynamic_shared<uint32_t>();  // [128][8] in core matrices
  __shared__ uint64_t first, done;
  __shared__ uint32_t address;
  const int thread = threadIdx.x;
  if (thread < 32) fa::tcgen05_alloc(&address, 32);
  if (thread < 2) fa::mbarrier_init(thread ? &first : &done, 1);
  for (int i = thread; i < kM * 8; i += kM) {
    rows[i / 4 % 2 * kM * 4 + i / 8 * 4 + i % 4] = bits ? 0x76543210 : i;
  }
  if (fault != Copying::no_proxy_fence) fa::fence_proxy_async();
  __syncthreads();
  const auto here = sim::Where::here();
  const uint64_t operand = fa::tcgen05_descriptor(rows, Swizzle::none, kM * 16, 128);
  const int second = fault == Copying::other ? 32 : 0;
  if (thread == 0) {
    sim::tcgen05_cp(address + to, operand, sim::TensorCopy::m128b256, bits, here);
    if (fault == Copying::refilled) rows[0] = 1;
    fa::tcgen05_commit(&first);
    if (fault != Copying::other && fault != Copying::no_order) {
      fa::mbarrier_wait(&first, 0);
      fa::tcgen05_fence_after_thread_sync();
    }
  }
  if (second) __syncthreads();
  if (thread == second) {
    sim::tcgen05_shift(address + shifted, here);
    sim::tcgen05_cp(tmem_address(address, 31, 0), operand, sim::TensorCopy::m4b256, bits, here);
    fa::tcgen05_commit(&done);
  }
  if (fault != Copying::no_commit) fa::mbarrier_wait(&done, 0);
  if (fault != Copying::no_after_fence) fa::tcgen05_fence_after_thread_sync();
  uint32_t r[16];
  sim::tcgen05_ld(r, 8, tmem_address(address, thread / 32 * 32, 0), here);
  fa::tcgen05_wait_ld(r);
  for (int i = 0; i < 8; ++i) y[thread * 8 + i] = r[i];
  fa::mbarrier_wait(&first, 0);
  fa::mbarrier_wait(&done, 0);
  fa::tcgen05_fence_before_thread_sync();
  __syncthreads();
  if (thread < 32) fa::tcgen05_dealloc(address, 32);
}

// An operand from TMA with a swizzle, read with another one; before, threads store `bytes` into it.
__global__ void loaded(const __grid_constant__ fa::TensorMap map, Swizzle swizzle, int stored) {
  bf16* tile = fa::dynamic_shared<bf16>();  // [128][64]
  __shared__ uint64_t full, done;
  __shared__ uint32_t address;
  fa::tcgen05_alloc(&address, 128);
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&full, 1);
    fa::mbarrier_init(&done, 1);
    fa::mbarrier_init_fence();
    fa::mbarrier_arrive_expect_tx(&full, 128 * 64 * sizeof(bf16));
    fa::tma_load(tile, &map, &full, {0, 0});
  }
  __syncwarp();
  fa::mbarrier_wait(&full, 0);
  for (int i = threadIdx.x; stored == 2 && i < 128 * 64; i += 32) tile[i] = 1.f;
  float* words = reinterpret_cast<float*>(tile);
  for (int i = threadIdx.x; stored == 4 && i < 128 * 32; i += 32) words[i] = 1.f;
  fa::fence_proxy_async();
  __syncwarp();
  if (threadIdx.x == 0) {
    const uint64_t operand = fa::tcgen05_descriptor(tile, swizzle, 1024, 1024);
    fa::tcgen05_mma(address, operand, operand, fa::tcgen05_instruction(128, 128), false);
    fa::tcgen05_commit(&done);
  }
  fa::mbarrier_wait(&done, 0);
  fa::tcgen05_dealloc(address, 128);
}

}  // namespace

#define FAULT(name, pattern) FOUND(pattern, two_products, kFiveWarps, y, Fault::name)

ANALYSED("tensor memory is used when allocated, and freed", "[sim][tcgen05]") {
  SILENT(two_products, kFiveWarps, y, Fault::none);
  FAULT(no_allocation,
        "thread (0,0,0): the tcgen05.mma at tensor_memory.cu: ... uses columns 0 to 31 of tensor "
        "memory, of which column 0 is not the block's, which has nothing");
  FAULT(beyond,
        "tcgen05.ld at tensor_memory.cu: ... uses columns 48 to 79 of tensor memory, of which "
        "column 64 is not the block's, which has columns 0 to 63");
  FAULT(freed,
        "tcgen05.ld at ... uses columns 0 to 15 of tensor memory, of which column 0 is freed");
  FAULT(kept,
        "ends the block, which still has columns 0 to 63 of tensor memory, allocated at ... "
        "tcgen05_dealloc must come first");
  FAULT(freed_early,
        "race on tensor memory: ... tcgen05.dealloc that writes column 0 at ... and a tcgen05.mma "
        "by thread (0,0,0) at ... have no wait on the mbarrier of a tcgen05_commit between them");
  FAULT(other_quarter, "tcgen05.ld at ... from lane 32 on; warp 0 reaches lanes 0 to 31");
  const auto remarks = [&](Fault fault) {
    return sim::test::counted(two_products, kFiveWarps, y, fault).remarks;
  };
  for (const Fault fault : {Fault::lane_zero, Fault::lane_128}) {  // as on a B200
    REQUIRE(remarks(fault).size() == 1);
    const std::string words = fault == Fault::lane_zero
                                  ? "from lane 0 on; warp 1 reaches lanes 32 to 63: PTX"
                                  : "from lane 128 on; warp 0 reaches lanes 0 to 31: PTX";
    CHECK(sim::test::says(remarks(fault)[0], "tcgen05.ld at tensor_memory.cu: ... " + words));
    CHECK(y.download()[kM - 1] == kK * kK);
  }
  CHECK(remarks(Fault::none).empty());
}

ANALYSED("rows of an operand that overlap are a remark", "[sim][tcgen05]") {
  const fa::LaunchConfig warp{1, 32, 17 * 1024};
  const auto remarks = [&](int stride) {
    return sim::test::counted(describe, warp, Descriptors{.stride = stride}).remarks;
  };
  CHECK(remarks(1024).empty());
  REQUIRE(remarks(512).size() == 1);
  CHECK(sim::test::says(remarks(512)[0], "A's groups of 8 rows overlap: they have 1024 bytes"));
}

ANALYSED("tensor memory is used after waits and fences", "[sim][tcgen05]") {
  FAULT(no_commit_wait,
        "race on tensor memory: ... tcgen05.ld of column 0 at ... and a tcgen05.mma by thread "
        "(0,0,0) at ... have no wait on the mbarrier of a tcgen05_commit");
  FAULT(other_parity,
        "tcgen05.ld of column 0 at ... have no wait on the mbarrier of a tcgen05_commit");
  FAULT(no_after_fence,
        "tcgen05.ld of column 0 at ... and a tcgen05.mma by thread (0,0,0) at ... have no "
        "tcgen05_fence_after_thread_sync (after the wait or barrier)");
  FAULT(no_wait_ld,
        "tcgen05.mma that writes column 0 at ... and a tcgen05.ld by warp 0 at ... have no "
        "tcgen05_wait_ld between them");
  SILENT(two_products, kFiveWarps, y, Fault::registers);  // an instruction that reads one waits
  CHECK(y.download()[1] == kK);
  FAULT(no_load_wait,
        "tcgen05.dealloc that writes column 0 at ... and a tcgen05.ld by warp 0 at ... have no "
        "tcgen05_wait_ld (by the other warp, before a barrier)");
  FAULT(no_wait_st,
        "tcgen05.mma of column 32 at ... and a tcgen05.st by warp 0 at ... have no tcgen05_wait_st "
        "between them");
  FAULT(no_before_fence,
        "tcgen05.mma of column 32 at ... and a tcgen05.st by warp 1 at ... have no "
        "tcgen05_fence_before_thread_sync (by the other warp, before the barrier)");
  FAULT(no_after_barrier,
        "tcgen05.mma of column 32 at ... and a tcgen05.st by warp 1 at ... have no "
        "tcgen05_fence_after_thread_sync (after the wait or barrier)");
  SILENT(two_products, kFiveWarps, y, Fault::other_thread);
  FAULT(unwritten,
        "uninitialised tensor memory: ... thread (0,0,0): tcgen05.mma of column 0 at ... which "
        "no thread has written yet");
}

ANALYSED("columns that are allocated again are new, and have readers of several warps",
         "[sim][tcgen05]") {
  const fa::LaunchConfig five_warps{1, 160};
  SILENT(again, five_warps, true, true);
  FOUND("uninitialised tensor memory: ... tcgen05.ld of column 0 at", again, five_warps, false,
        true);
  FOUND(
      "tcgen05.st that writes column 0 at ... and a tcgen05.ld by warp 0 at ... have no "
      "tcgen05_wait_ld (by the other warp, before a barrier) between them",
      again, five_warps, true, false);
}

ANALYSED("products of two threads are ordered by fences", "[sim][tcgen05]") {
  const fa::LaunchConfig two_warps{1, 64, (kM + kN) * kK * sizeof(bf16)};
  SILENT(handed_on, two_warps, y, true, true);
  CHECK(y.download()[31] == 2 * kK);
  for (const bool before : {false, true}) {
    FOUND(
        "race on tensor memory: ... thread (32,0,0): tcgen05.mma of column 0 at ... and a "
        "tcgen05.mma by thread (0,0,0) at ... have no order (tcgen05_fence_before_thread_sync, a "
        "barrier, tcgen05_fence_after_thread_sync) between them",
        handed_on, two_warps, y, before, !before);
  }
}

ANALYSED("tcgen05.mma reads shared memory until its commit arrives", "[sim][tcgen05]") {
  FAULT(
      overwritten,
      "race on shared memory: ... store of dynamic shared memory, byte 0 at ... and a tcgen05.mma "
      "by thread (0,0,0) at ... have no wait on the mbarrier of a tcgen05_commit between them");
  FAULT(no_proxy_fence,
        "race on shared memory: ... tcgen05.mma that reads dynamic shared memory, byte 0 at ... no "
        "fence.proxy.async");
}

TEST_CASE("columns of tensor memory are allocated in powers of two", "[sim][tcgen05]") {
  const fa::LaunchConfig warp{1, 32};
  for (const int n : {32, 64, 128, 256, 512}) SILENT(allocate, {4, 32}, Columns{n});
  const std::string possible = " columns; 32, 64, 128, 256 and 512 are possible";
  for (const int n : {0, 16, 48, 96, 1024}) {
    FOUND("tcgen05.alloc at tensor_memory.cu: ... of " + std::to_string(n) + possible, allocate,
          warp, Columns{n});
  }
  FOUND(
      "tcgen05.dealloc at ... of 64 columns from lane 0, column 0 on; the block has columns 0 to "
      "31",
      allocate, warp, Columns{.first = 32, .freed = 64});
  FOUND("tcgen05.dealloc at ... of 48" + possible, allocate, warp,
        Columns{.first = 32, .freed = 48});
  FOUND("tcgen05.alloc at ... of 64 columns after one of 32: those of a block must not grow",
        allocate, warp, Columns{.first = 32, .second = 64});
  SILENT(allocate, warp, Columns{.first = 64, .second = 32});
  FOUND("tcgen05.alloc at ... after the block's tcgen05.relinquish_alloc_permit", allocate, warp,
        Columns{.first = 32, .second = 32, .relinquish = true});
  FOUND("tcgen05.relinquish_alloc_permit at ... in a warp of fewer than 32 threads",
        relinquish_by_half, {1, 16});
  FOUND("has returned, but the tcgen05.relinquish_alloc_permit at ... needs all lanes of its warp",
        relinquish_by_half, warp);
  FOUND("tcgen05.alloc at tensor_memory.cu: ... the lanes of the warp pass different operands",
        allocate, warp, Columns{.first = 32, .differ = true});
}

TEST_CASE("columns that no block will ever free are found", "[sim][tcgen05]") {
  const sim::test::WithOptions with{sim::options()};
  const fa::LaunchConfig four{4, 32};
  FOUND(
      "tcgen05.alloc at ... of 32 columns would wait for ever: the block itself has 512 of the "
      "SM's 512",
      allocate, four, Columns{.first = 512, .second = 32});
  sim::options().sm.shared_bytes = 1 << 20;  // for the variables of all this file's kernels
  sim::options().sm.blocks = 1;              // per SM
  SILENT(allocate, four, Columns{.first = 256, .second = 256});
  sim::options().sm.blocks = 2;
  SILENT(allocate, four, Columns{.first = 512});
  SILENT(allocate, four, Columns{.first = 128, .second = 128});
  FOUND(
      "tcgen05.alloc at ... of 256 columns would wait for ever: the block has 256 of 512, and so "
      "may all 2 blocks of the SM, each of which waits for the others",
      allocate, four, Columns{.first = 256, .second = 256});
  // The blocks of an SM have adjacent columns, followed by columns allocated later.
  const Buffer<uint32_t> y("y", 8);
  using Columns = std::vector<uint32_t>;
  SILENT(addresses, four, y, 128, 64);
  CHECK(y.download() == Columns{0, 256, 128, 256, 0, 256, 128, 256});
  SILENT(addresses, four, y, 32, 32);
  CHECK(y.download() == Columns{0, 64, 32, 64, 0, 64, 32, 64});
  sim::options().sm.blocks = 3;
  SILENT(addresses, four, y, 64, 64);
  CHECK(y.download() == Columns{0, 192, 64, 192, 128, 192, 0, 192});
  sim::options().sm.blocks = 1;
  SILENT(addresses, four, y, 256, 128);
  CHECK(y.download() == Columns{0, 256, 0, 256, 0, 256, 0, 256});
}

TEST_CASE("descriptors that are not the tile's are refused", "[sim][tcgen05]") {
  const fa::LaunchConfig warp{1, 32, 17 * 1024};
  const auto mma = [](const std::string& text) {
    return "the tcgen05.mma at tensor_memory.cu: ... " + text;
  };
  SILENT(describe, warp, Descriptors{});
  SILENT(describe, warp, Descriptors{.advance = 96});
  FOUND(mma("A leaves its rows of 64 bytes: they hold 32 values of k, after which another panel "
            "begins"),
        describe, warp, Descriptors{.swizzle = Swizzle::b64, .begin = 48, .stride = 512});
  FOUND(mma("A begins in row 1 of a swizzle's 8 rows of 128 bytes, not in row 0"), describe, warp,
        Descriptors{.advance = 128});
  FOUND(mma("A has no distance between its groups of 8 rows"), describe, warp,
        Descriptors{.stride = 0});
  FOUND(mma("A has no distances between its core matrices"), describe, warp,
        Descriptors{.swizzle = Swizzle::none, .leading = 0, .stride = 128});
  FOUND(mma("A is MN-major by the instruction descriptor, with 128 columns, but its descriptor has "
            "no distance between panels of 64"),
        describe, warp,
        Descriptors{.instruction = fa::tcgen05_instruction(128, 128, Major::mn, Major::mn)});
  const auto of_width = [](int n) {  // of B, whose panels of 64 columns start anywhere
    return Descriptors{.instruction = fa::tcgen05_instruction(128, n, Major::k, Major::mn)};
  };
  SILENT(describe, warp, of_width(64));
  FOUND(mma("B is MN-major by the instruction descriptor, with 80 columns, but its descriptor has "
            "no distance between panels of 64"),
        describe, warp, of_width(80));
  FOUND("an operand of the tcgen05.mma at ... reaches beyond the block's shared memory", describe,
        warp, Descriptors{.stride = 2048});
  FOUND(mma("'s descriptor is not tcgen05_descriptor's"), describe, warp,
        Descriptors{.hopper = true});
  const auto rows = [&](int m, int n, const std::string& why, bool ws = false,
                        sim::TensorKind kind = sim::TensorKind::f16, uint32_t types = 0) {
    const uint32_t shape = fa::tcgen05_instruction(m, n);
    const uint32_t instruction = types ? (shape & ~0x1ff0u) | types : shape;
    FOUND(mma("its instruction descriptor says " + why), describe, warp,
          Descriptors{.instruction = instruction, .kind = kind, .ws = ws});
  };
  const std::string one = "m64 with n of 8, 16, ... 256, or m128 with n of 16, 32, ... 256 is";
  rows(32, 128, "m32n128; " + one);
  rows(128, 8, "m128n8; " + one);
  rows(256, 128, "m256n128; " + one);
  rows(64, 24, "m64n24; m64 with n of 16, 32, ... 256, or m128 with n of 16, ", false,
       sim::TensorKind::i8, 2u << 4);
  const std::string ws = "m32 with n of 64, 128 or 256, or m64 with n of 64, 128 or 256, or m128";
  rows(64, 192, "m64n192; " + ws, true);
  rows(256, 128, "m256n128; " + ws, true);
  const std::string other = "sparse, saturated, negated or shifted, which is not simulated";
  for (const int bit : {2, 3, 30}) {
    FOUND(mma("its instruction descriptor says " + other), describe, warp,
          Descriptors{.instruction = fa::tcgen05_instruction(128, 128) | 1u << bit});
  }
}

ANALYSED("the types of a product are those of its kind", "[sim][tcgen05]") {
  const fa::LaunchConfig warp{1, 32, 17 * 1024};
  using enum sim::TensorKind;
  const uint32_t in_bf16 = fa::tcgen05_instruction(128, 128);
  const std::string says = "the tcgen05.mma at tensor_memory.cu: ... instruction descriptor says ";
  const auto refused = [&](const std::string& why, uint32_t instruction, sim::TensorKind kind) {
    FOUND(says + why, describe, warp, Descriptors{.instruction = instruction, .kind = kind});
  };
  const std::string types =
      "other types than fp16 factors, or bf16 ones, and fp32 sums, or fp16 factors and sums";
  for (const uint32_t other : {in_bf16 & ~(1u << 7), in_bf16 + kBf16, in_bf16 + 2 * kBf16}) {
    refused(types, other, f16);
  }
  for (const uint32_t other : {in_bf16, in_bf16 - kBf16, in_bf16 + (1u << 7)}) {
    refused("other types than tf32 factors and fp32 sums", other, tf32);
  }
  refused(types, in_bf16 & ~(1u << 4), f16);  // fp16 sums of bf16
  const std::string small = "other types than e4m3, e5m2, e2m3, e3m2 or e2m1 factors and ";
  for (const uint32_t code : {2u, 6u, 7u}) {
    refused(small + "fp32 or fp16 sums", in_bf16 - kBf16 + (code << 10), f8f6f4);
  }
  refused("MN-major factors in e2m1, which is not simulated",
          in_bf16 - kBf16 + (1u << 16 | 5u << 10), f8f6f4);
  // Block-scaled: the scales' type is bit 23, their first bytes are bits 29-30 and 4-5.
  const uint32_t scaled = (fa::tcgen05_instruction(128, 128) & ~0x1ff0u) | 1u << 23;
  refused(small + "ue8m0 scales", scaled - (1u << 23), mxf8f6f4);
  refused("other types than e2m1 factors and ue8m0 scales", scaled, mxf4);
  refused("scales from byte 1 of a column on; scale_vec::2X begins at 0 or 2",
          scaled | kBf16 | 1u << 29, mxf4);
  refused("m64n128; m128 with n of 8, 16, ... 256 is possible",
          (fa::tcgen05_instruction(64, 128) & ~0x1ff0u) | 1u << 23, mxf8f6f4);
  refused("sparse or of 96 values of k, which is not simulated", scaled | kBf16 | 1u << 31, mxf4);
  refused("MN-major factors in e2m1, which is not possible", scaled | kBf16 | 1u << 16, mxf4);
  FOUND(says + "scales, which a .ws product does not have", describe, warp,
        Descriptors{.instruction = scaled, .kind = mxf8f6f4, .ws = true});
  const auto scales = [&](const std::string& why, sim::TensorKind kind, int vector, uint32_t at) {
    FOUND("the tcgen05.mma at tensor_memory.cu: ... " + why, describe, warp,
          Descriptors{.instruction = kind == mxf8f6f4 ? scaled : scaled | kBf16,
                      .kind = kind,
                      .scales = at,
                      .vector = vector});
  };
  scales("of kind::mxf4nvf4 has no scale_vec", mxf4nvf4, 0, 128);
  scales("of kind::mxf4 has scale_vec::4X", mxf4, 4, 128);
  scales("has the scales of A from lane 32 on; they begin at 0", mxf8f6f4, 0, 32u << 16 | 128);
  scales("uses columns 256 to 259 of tensor memory, of which column 256 is not", mxf8f6f4, 0, 256);
  FOUND("uninitialised tensor memory: ... tcgen05.mma of column 128 at ... which no thread has",
        describe, warp, Descriptors{.instruction = scaled, .kind = mxf8f6f4, .scales = 128});
  refused("other types than u8 or s8 factors and s32 sums", in_bf16, i8);
  for (const int bit : {15, 16}) {
    refused("MN-major factors in tf32, which is not simulated", in_bf16 + kBf16 + (1u << bit),
            tf32);
  }
  const auto from_lane = [&](const std::string& why, int m, uint32_t lane) {
    FOUND("the tcgen05.mma at ... has D from lane " + why, describe, warp,
          Descriptors{.instruction = fa::tcgen05_instruction(m, 128), .lane = lane});
  };
  from_lane("16 on; its 128 rows begin at 0", 128, 16);
  from_lane("32 on; its 64 rows begin at 0 or 16", 64, 32);
  FOUND("A leaves its rows of 64 bytes: they hold 16 values of k", describe, warp,
        Descriptors{.swizzle = Swizzle::b64,
                    .begin = 48,
                    .stride = 512,
                    .instruction = in_bf16 + kBf16,
                    .kind = tf32});
}

// A type: its bits at random, without inf and NaN, and what they mean.
struct TestType {
  uint32_t code;
  int bits;
  float (*value)(uint32_t);
};
uint32_t random_bits(const TestType& t, bool of_kind_i8, std::mt19937& rng) {
  const uint32_t x = rng();
  if (t.bits < 8) return x & ((1u << t.bits) - 1);
  if (t.bits == 32) return (x & 0x807fffff) | (100 + rng() % 40) << 23;
  if (t.bits == 8) return of_kind_i8 ? x & 0xff : x & 0xbf;  // half of the exponents
  return t.code ? (x & 0x807f) | (100 + rng() % 40) << 7 : x & 0xbfff;
}
template <int exponent_bits, int mantissa_bits>
float narrow(uint32_t x) {
  const int e = x >> mantissa_bits & ((1 << exponent_bits) - 1), one = 1 << mantissa_bits;
  const int mantissa = static_cast<int>(x) & (one - 1), bias = (1 << (exponent_bits - 1)) - 1;
  const float size = std::ldexp(float(e ? mantissa + one : mantissa) / one, (e ? e : 1) - bias);
  return x >> (exponent_bits + mantissa_bits) ? -size : size;
}
struct TestKind {
  sim::TensorKind kind;
  TestType a, b;
  uint32_t sums;  // 0: fp16, 1: fp32, 2: s32
  fa::TensorSum rule;
  int least_b = 1;  // least exponent of b, 1: the rule's
  int vector = 0;   // block-scaled: scales of a row
  uint32_t ue8m0 = 1, id = 0;
};
// A scale, by its byte.
fa::BlockScale scale_of(const TestKind& kind, uint32_t byte) {
  if (kind.ue8m0) return {std::ldexp(1.f, int(byte) - 127), int(byte) - 127};
  const float x = narrow<4, 3>(byte);
  return {x, std::max(std::ilogb(x), -6)};
}

// 64 products in groups of 16.
float grouped(const float* a, const float* b, const std::vector<fa::BlockScale>& scales_a,
              const std::vector<fa::BlockScale>& scales_b, float c) {
  int quarters[4] = {};
  bool zero[4] = {true, true, true, true};
  fa::BlockScale of_a[4], of_b[4];
  for (int k = 0; k < 64; ++k) {
    quarters[k / 16] += static_cast<int>(4 * a[k] * b[k]);
    zero[k / 16] &= a[k] * b[k] == 0;
    of_a[k / 16] = scales_a[k * scales_a.size() / 64];
    of_b[k / 16] = scales_b[k * scales_b.size() / 64];
  }
  return fa::grouped_sum(quarters, zero, of_a, of_b, c);
}

ANALYSED("products of every type and shape are exact", "[sim][tcgen05]") {
  using sim::TensorKind;
  const TestType fp16{0, 16, [](uint32_t x) { return sim::float_of_half(x); }};
  const TestType bf16{1, 16, [](uint32_t x) { return std::bit_cast<float>(x << 16); }};
  const TestType tf32{2, 32, [](uint32_t x) { return std::bit_cast<float>(x & ~0x1fffu); }};
  const TestType e4m3{0, 8, [](uint32_t x) {
                        __nv_fp8_e4m3 f;
                        f.__x = static_cast<uint8_t>(x);
                        return static_cast<float>(f);
                      }};
  const TestType e5m2{1, 8, [](uint32_t x) {
                        __nv_fp8_e5m2 f;
                        f.__x = static_cast<uint8_t>(x);
                        return static_cast<float>(f);
                      }};
  const TestType u8{0, 8, [](uint32_t x) { return static_cast<float>(x); }};
  const TestType s8{1, 8, [](uint32_t x) { return static_cast<float>(static_cast<int8_t>(x)); }};
  const TestType e2m3{3, 6, narrow<2, 3>}, e3m2{4, 6, narrow<3, 2>}, e2m1{5, 4, narrow<2, 1>};
  const TestType fp4{1, 4, narrow<2, 1>};
  const TestKind kinds[] = {
      {TensorKind::f16, fp16, fp16, 1, {16, 25, 23, -14, -133}},
      {TensorKind::f16, fp16, fp16, 0, {16, 25, 23, -14, -21, true}},
      {TensorKind::f16, bf16, bf16, 1, {16, 25, 23, -126, -133}},
      {TensorKind::tf32, tf32, tf32, 1, {8, 25, 23, -126, -133}},
      {TensorKind::f8f6f4, e4m3, e4m3, 1, {32, 25, 23, -6, -133}},
      {TensorKind::f8f6f4, e5m2, e5m2, 1, {32, 25, 23, -14, -133}},
      {TensorKind::f8f6f4, e5m2, e5m2, 0, {32, 25, 23, -14, -21, true}},
      {TensorKind::f8f6f4, e4m3, e5m2, 1, {32, 25, 23, -14, -133}},
      {TensorKind::i8, u8, s8, 2, {32, 25, 23, -14, -133}},
      {TensorKind::f8f6f4, e2m3, e3m2, 1, {32, 25, 23, 0, -133}, -2},
      {TensorKind::f8f6f4, e2m1, e4m3, 0, {32, 25, 23, 0, -21, true}, -6},
      {TensorKind::mxf8f6f4, e4m3, e2m1, 1, {32, 25, 23, -6, -133}, 0, 1, 1, 3},
      {TensorKind::mxf8f6f4, e5m2, e3m2, 1, {32, 25, 23, -14, -133}, -2, 1},
      {TensorKind::mxf4, fp4, fp4, 1, {}, 1, 2, 1, 2},
      {TensorKind::mxf4nvf4, fp4, fp4, 1, {}, 1, 4, 0},
      {TensorKind::mxf4nvf4, fp4, fp4, 1, {}, 1, 4, 1},
  };
  const Shape shapes[] = {{128, 32},    {64, 16},          {64, 32, 1, false, 16}, {128, 32, 2},
                          {256, 32, 2}, {32, 64, 1, true}, {64, 64, 1, true},      {64, 8}};
  std::mt19937 rng(1);
  for (const TestKind& kind : kinds) {
    const bool pairs = kind.a.code == 1 && kind.a.bits == 4;  // two in a byte
    const int width = pairs ? 4 : std::max(8, kind.a.bits), each = 32 / width, k = kWords * each;
    // In shared memory and in tensor memory.
    const auto filled = [&](const TestType& t, int rows, std::vector<float>& x) {
      std::array<std::vector<uint32_t>, 2> words;
      for (auto& w : words) w.resize(rows * kWords);
      for (int i = 0; i < rows * k; ++i) {
        const uint32_t bits = random_bits(t, kind.kind == TensorKind::i8, rng);
        x.push_back(t.value(bits));
        words[1][i / each] |= (pairs ? bits : bits << (width - t.bits) / 2) << i % each * width;
        for (int b = 0, at = i % 16 * t.bits; b < t.bits && t.bits < 8 && !pairs; ++b, ++at) {
          words[0][i / 16 * 4 + at / 32] |= (bits >> b & 1) << at % 32;
        }
      }
      if (t.bits >= 8 || pairs) words[0] = words[1];
      return words;
    };
    for (const Shape& shape : shapes) {
      if (kind.vector && (shape.ws || shape.m == 64)) continue;
      if (shape.m != 64 && shape.m != 128 && kind.sums == 1 && kind.a.bits != 16) continue;
      const bool negative = kind.kind == TensorKind::f16 && shape.n == 16;
      std::vector<float> a, b;
      const auto [image, of_a] = filled(kind.a, shape.m, a);
      const Buffer<uint32_t> A("A", image), B("B", filled(kind.b, shape.n, b)[0]);
      std::vector<uint32_t> scales(shape.group * kScales);
      for (uint32_t& word : scales) {
        for (int i = 0; i < 4; ++i) {
          const uint32_t x = rng() % 16 ? 120 + rng() % 14 : rng() % 255;
          word |= (kind.ue8m0 ? x : rng() % 127) << 8 * i;
        }
      }
      // Of all blocks of a row or column `i` of the part of D in a lane.
      const auto scales_of = [&](int block, int lane, bool of_b, int i) {
        const int row = i % 32 + (of_b ? 32 + (shape.rows() == 64 ? lane / 64 * 32 : 0) : 0);
        const uint32_t word = scales[block * kScales + row * 4 + i / 32];
        std::vector<fa::BlockScale> all;
        for (int j = 0; j < kind.vector; ++j) {
          all.push_back(scale_of(kind, word >> 8 * (kind.id + j) & 0xff));
        }
        return all;
      };
      std::vector<uint32_t> lanes(shape.group * kM * kWords), want(shape.group * kM * 64);
      for (int i = 0; i < shape.group * kM; ++i) {
        const InLane at = in_lane(shape, i % kM);
        if (at.row < 0) continue;
        const int m = i / kM * shape.rows() + at.row;
        std::copy_n(&of_a[m * kWords], kWords, &lanes[i * kWords]);
        std::vector<float> row(&a[m * k], &a[m * k] + k);
        for (float& x : row) x = negative ? -x : x;
        const bool split = shape.rows() < 128 && (shape.ws || shape.group == 2);
        const int width = split ? shape.n / (128 / shape.rows()) : shape.n;
        for (int c = 0; c < width; ++c) {
          float sum = 0;
          int whole = 0;
          for (int product = 0; product < 2; ++product) {
            const float* column = &b[(at.column + c) * k];
            const auto scales_a = scales_of(i / kM, i % kM, false, at.row);
            const auto scales_b = scales_of(i / kM, i % kM, true, c);
            if (k == 64) {
              sum = grouped(row.data(), column, scales_a, scales_b, sum);
              continue;
            }
            const int scale = kind.vector ? scales_a[0].exponent + scales_b[0].exponent : 0;
            sum = fa::tensor_sum(kind.rule, row.data(), column, sum, scale, kind.least_b);
            for (int x = 0; x < k; ++x) whole += static_cast<int>(row[x] * column[x]);
          }
          want[i * 64 + c] = kind.sums == 0   ? sim::half_of(sum)
                             : kind.sums == 1 ? std::bit_cast<uint32_t>(sum)
                                              : static_cast<uint32_t>(whole);
        }
      }
      const Buffer<uint32_t> in_lanes("lanes", lanes);
      for (const bool tmem : {false, true}) {
        CAPTURE(static_cast<int>(kind.kind), kind.sums, shape.m, shape.n, shape.ws, tmem);
        const Buffer<uint32_t> cells("cells", want.size());
        const uint32_t of_kind = kind.vector ? kind.id << 4 | kind.ue8m0 << 23 | kind.id << 29
                                             : kind.sums << 4 | uint32_t{negative} << 14;
        const sim::TensorProduct product{
            .a_in_tensor_memory = tmem,
            .instruction = (fa::tcgen05_instruction(shape.m, shape.n) & ~0x1ff0u) | of_kind |
                           kind.a.code << 7 | kind.b.code << 10,
            .group = sim::CtaGroup{shape.group},
            .kind = kind.kind,
            .ws = shape.ws,
            .scale_vector = kind.vector};
        const Buffer<uint32_t> of_scales("scales", scales);
        SILENT(shape.group == 2 ? any_type<2> : any_type<1>,
               {static_cast<unsigned>(shape.group), kM, (kM + 64) * 32 + kScales * 4,
                static_cast<unsigned>(shape.group)},
               A, in_lanes, B, of_scales, cells, product, shape);
        CHECK((want == cells.download()));
      }
    }
  }
}

ANALYSED("ld and st move PTX's shapes", "[sim][tcgen05]") {
  const fa::LaunchConfig four{1, 128};
  const Buffer<uint32_t> out("out", 32 * 64);
  for (const int bits : {32, 64, 128, 256}) {
    for (const uint32_t lane : {0, 16}) {
      for (const bool packed : {false, true}) {
        const int x = 4 - 2 * packed, n = x * (bits > 64 ? bits / 64 : 1), second = 40;  // .x4, .x2
        const sim::TensorShape shape{16, bits, packed, bits == 32 ? second : 0};
        // The thread and register that have a cell.
        const auto holder = [&](int row, int column) {
          struct {
            int thread, r;
          } at{row % 8 * 4, 0};
          switch (bits) {
            case 32:
              return decltype(at){row + (column >= x) * 16, column % x};
            case 64:
              return decltype(at){at.thread + row / 8 + column % 2 * 2, column / 2};
            case 128:
              return decltype(at){at.thread + column % 4, column / 4 * 2 + row / 8};
            default:
              return decltype(at){at.thread + column % 8 / 2,
                                  column / 8 * 4 + row / 8 * 2 + column % 2};
          }
        };
        const int columns = bits == 32 ? 2 * x : x * bits / 32;  // of registers
        const auto column_of = [&](int c) {                      // the first one of a register's
          return bits == 32 && c >= x ? second + (c - x) * (1 + packed) : c * (1 + packed);
        };
        CAPTURE(bits, lane, packed);
        SILENT(move_in_shape, four, out, shape, n, lane, false);
        const auto loaded = out.download();
        SILENT(move_in_shape, four, out, shape, n, lane, true);
        const auto stored = out.download();
        for (int row = 0; row < 16; ++row) {
          for (int c = 0; c < columns; ++c) {
            const auto [thread, r] = holder(row, c);
            const uint32_t cell = (lane + row) << 8 | column_of(c);
            CHECK(loaded[thread * 64 + r] == (packed ? cell | (cell + 1) << 16 : cell * 0x10001u));
            const uint32_t half = thread << 8 | r, value = half * 0x10001u + 0x80000000u;
            const size_t at = (lane + row) * 64 + column_of(c);
            CHECK(stored[at] == (packed ? value & 0xffff : value));
            if (packed) CHECK(stored[at + 1] == value >> 16);
          }
          CHECK(stored[(16 - lane + row) * 64] == ((16 - lane + row) << 8) * 0x10001u);
        }
      }
    }
  }
  FOUND("tcgen05.ld at ... from lane 8 on; warp 0 reaches lanes 0 to 31, 16 of them", move_in_shape,
        four, out, sim::TensorShape{16, 256}, 16, 8u, false);
  FOUND("tcgen05.st at ... uses columns 60 to 67 of tensor memory, of which column 64 is not",
        move_in_shape, four, out, sim::TensorShape{16, 32, false, 60}, 8, 0u, true);
}

ANALYSED("each 16 lanes have their own order", "[sim][tcgen05]") {
  const fa::LaunchConfig five{1, 160};
  SILENT(half_lanes, five, y, 16u);
  FOUND("tcgen05.ld of column 0 at ... and a tcgen05.st by warp 0 at ... have no barrier between",
        half_lanes, five, y, 0u);
}

ANALYSED("rows are copied and shifted in the order of products", "[sim][tcgen05]") {
  const fa::LaunchConfig four{1, kM, kM * 32};
  const Buffer<uint32_t> out("out", kM * 8);
  const auto faulty = [&](const std::string& what, Copying fault) {
    FOUND(what, copied, four, out, fault, 0u, 32u << 16, 0);
  };
  SILENT(copied, four, out, Copying::none, 0u, 32u << 16, 0);
  const auto rows = out.download();
  for (int i = 0; i < kM * 8; ++i) {
    const int lane = i / 8, from = lane % 32 == 31 ? lane / 32 : lane + (lane / 32 == 1);
    CHECK(rows[i] == from * 8u + i % 8);
  }
  SILENT(copied, four, out, Copying::none, 0u, 0u, 4);
  CHECK(out.download()[0] == 0x0c080400);  // e2m1 in the middle of bytes
  SILENT(copied, four, out, Copying::none, 0u, 0u, 6);
  CHECK(out.download()[0] == (0x10u << 1 | 8u << 9 | 3u << 17 | 21u << 25));
  faulty(
      "race on shared memory: ... tcgen05.cp that reads dynamic shared memory, byte 0 at ... no "
      "fence.proxy.async",
      Copying::no_proxy_fence);
  faulty(
      "tcgen05.ld of column 0 at ... and a tcgen05.cp by thread (0,0,0) at ... have no wait on "
      "the mbarrier of a tcgen05_commit",
      Copying::no_commit);
  faulty(
      "tcgen05.ld of column 0 at ... and a tcgen05.shift by thread (0,0,0) at ... have no "
      "tcgen05_fence_after_thread_sync",
      Copying::no_after_fence);
  faulty("tcgen05.shift of column 0 at ... and a tcgen05.cp by thread (0,0,0) at ... have no order",
         Copying::other);
  faulty(
      "tcgen05.shift of column 0 at ... and a tcgen05.cp by thread (0,0,0) at ... have no wait on "
      "the mbarrier of a tcgen05_commit",
      Copying::no_order);
  faulty(
      "store of dynamic shared memory, byte 0 at ... and a tcgen05.cp by thread (0,0,0) at ... "
      "have no wait on the mbarrier of a tcgen05_commit",
      Copying::refilled);
  FOUND("tcgen05.cp at ... .128x256b writes from lane 32 on; its rows begin at 0", copied, four,
        out, Copying::none, 32u << 16, 0u, 0);
  FOUND("tcgen05.cp at ... uses columns 28 to 35 of tensor memory, of which column 32 is not",
        copied, four, out, Copying::none, 28u, 0u, 0);
  FOUND("tcgen05.shift at ... begins at lane 16, not at 0, 32, 64 or 96", copied, four, out,
        Copying::none, 0u, 16u << 16, 0);
}

ANALYSED("an operand is read with the swizzle with which TMA stored it", "[sim][tcgen05]") {
  const Buffer<bf16> operand("operand", 128 * 64);
  const auto map = fa::tensor_map(operand.get(), {{64, 1, 64}, {128, 64, 128}}, Swizzle::b128);
  const fa::LaunchConfig warp{1, 32, 128 * 64 * sizeof(bf16)};
  SILENT(loaded, warp, map, Swizzle::b128, 0);
  FOUND(
      "thread (0,0,0): the tcgen05.mma at tensor_memory.cu: ... reads A with a swizzle of 64 "
      "bytes, but a TMA load by thread (0,0,0) at tensor_memory.cu: ... has stored it with a "
      "swizzle of 128 bytes",
      loaded, warp, map, Swizzle::b64, 0);
  for (const int bytes : {2, 4}) SILENT(loaded, warp, map, Swizzle::b64, bytes);
  try {
    fa::launch(loaded, warp, map, Swizzle::b64, 0);
    FAIL("it is no finding");
  } catch (const fa::KernelStopped& e) {
    REQUIRE(e.findings.size() == 1);
    CHECK(e.findings[0].kind == fa::FaultKind::refused);
  }
}

TEST_CASE("each tcgen05.mma is an instruction, and has its columns and operations",
          "[sim][tcgen05]") {
  const sim::test::WithOptions with({.workers = 1, .requests = true, .sites = true});
  const auto of = [](int n) {
    return sim::test::counted(describe, {1, 32, 17 * 1024}, Descriptors{.products = n});
  };
  const fa::Counts two = of(2), five = of(5);
  const fa::BlockWork &before = two.kernels[0].work[0], &after = five.kernels[0].work[0];
  CHECK(after.instructions == before.instructions + 3);
  CHECK(before.wgmma_columns == 2 * 2 * kM);
  CHECK(after.wgmma_columns == 5 * 2 * kM);
  CHECK(five.tensor_flops == uint64_t{5} * 2 * kM * kM * kK);
  CHECK(five.kernels[0].wgmma_wavefronts == 5 * 2 * kM * kK * 2 / 128);
  CHECK(five.kernels[0].shared_read - two.kernels[0].shared_read == 3 * 2 * kM * kK * 2);
  uint64_t requests = 0;
  for (const fa::SiteCount& s : five.sites) {
    if (s.what == "shared tcgen05.mma") requests += s.requests;
  }
  CHECK(requests == 5);
}

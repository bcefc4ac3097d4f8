// Faults of two blocks that multiply together (cta_group::2): each beside the kernel without it.
#include <algorithm>

#include "common/dialect/ptx/ptx.h"
#include "tests/sim/diagnosis.h"

using fa::Swizzle;

namespace {

using bf16 = __nv_bfloat16;

constexpr int kM = 128, kN = 32, kK = 16, kColumns = 64;  // kM: rows per block
constexpr int kHalf = kN / 2;                             // columns of B per block
constexpr int kP = kN;                                    // column of the second product's A
constexpr uint16_t kBoth = 3;
fa::LaunchConfig config(unsigned blocks, unsigned cluster) {
  return {blocks, 160, (kM + kHalf) * kK * sizeof(bf16), cluster};
}
const fa::LaunchConfig kPair = config(2, 2), kWarps{2, 32, 0, 2};

enum class Fault {
  none,
  // participants
  mixed_product,
  mixed_commit,
  one_allocates,
  other_columns,
  freed_early,
  small_m,
  one_column_too_many,
  // order between the blocks
  no_before_fence,
  no_after_fence,
  leader_waits_for_itself,
  commit_to_leader,
  no_proxy_fence,
  overwritten,
  one_does_not_wait,
};

// S = A B^T of 256 rows, then P = S in bf16, O = P B^T, all in tensor memory. Block 0 multiplies.
__global__ void two_products(float* y, Fault fault) {
  bf16* sA = fa::dynamic_shared<bf16>();  // [128][16] and [16][16] in core matrices
  bf16* sB = sA + kM * kK;
  __shared__ uint64_t done[2], p_full;
  __shared__ uint32_t address;
  const unsigned rank = fa::cluster_rank();
  // Faults are in the other block, if a thread there can have them.
  const auto is = [&](Fault f) { return fault == f; };
  const auto here = [&](Fault f) { return fault == f && rank == 1; };
  const int thread = threadIdx.x, warp = thread / 32;
  if (warp == 4 && !here(Fault::one_allocates)) {
    fa::tcgen05_alloc<2>(&address, here(Fault::other_columns) ? 2 * kColumns : kColumns);
    fa::tcgen05_relinquish_alloc_permit<2>();
  }
  if (thread == 0) {
    for (uint64_t& bar : done) fa::mbarrier_init(&bar, 1);
    fa::mbarrier_init(&p_full, is(Fault::leader_waits_for_itself) ? kM : 2 * kM);
    fa::mbarrier_init_fence();
  }
  for (int i = thread; i < (kM + kHalf) * kK; i += blockDim.x) sA[i] = rank + 1.f;
  if (!here(Fault::no_proxy_fence)) fa::fence_proxy_async();
  fa::cluster_sync();
  const uint32_t s = address, mine = fa::tmem_address(s, 32 * (warp % 4), 0);
  const uint64_t a = fa::tcgen05_descriptor(sA, Swizzle::none, kM * 16, 128);
  const uint64_t b = fa::tcgen05_descriptor(sB, Swizzle::none, kHalf * 16, 128);
  const uint32_t instruction = fa::tcgen05_instruction(is(Fault::small_m) ? kM / 2 : 2 * kM,
                                                       is(Fault::one_column_too_many) ? 40 : kN);
  const bool leads = thread == 0 && rank == 0;
  if (leads) {
    fa::tcgen05_mma<2>(s, a, b, instruction, false);
    if (is(Fault::mixed_commit)) fa::tcgen05_commit(&done[0]);
    fa::tcgen05_commit_2cta(&done[0], is(Fault::commit_to_leader) ? 1 : kBoth);
  }
  if (here(Fault::overwritten) && thread == 0) sB[0] = 2.f;
  if (warp < 4) {
    fa::mbarrier_wait(&done[0], 0);
    fa::tcgen05_fence_after_thread_sync();
    float r[kN];
    fa::tcgen05_ld(r, mine);
    fa::tcgen05_wait_ld(r);
    uint32_t packed[kN / 2];
    UNROLL
    for (int i = 0; i < kN / 2; ++i) packed[i] = fa::pack_bf16(r[2 * i], r[2 * i + 1]);
    fa::tcgen05_st(mine + kP, packed);
    fa::tcgen05_wait_st();
    if (!here(Fault::no_before_fence)) fa::tcgen05_fence_before_thread_sync();
    if (!here(Fault::leader_waits_for_itself)) fa::mbarrier_release_remote(&p_full, 0);
  }
  if (leads) {
    fa::mbarrier_wait(&p_full, 0);
    if (!is(Fault::no_after_fence)) fa::tcgen05_fence_after_thread_sync();
    if (is(Fault::mixed_product)) {
      fa::tcgen05_mma_tmem(s, s + kP, b, fa::tcgen05_instruction(kM, kHalf), false);
    }
    fa::tcgen05_mma_tmem<2>(s, s + kP, b, instruction, false);
    fa::tcgen05_commit_2cta(&done[1], kBoth);
  }
  __syncwarp();
  if (warp < 4 && !here(Fault::one_does_not_wait)) {
    fa::mbarrier_wait(&done[1], 0);
    fa::tcgen05_fence_after_thread_sync();
    float r[kN];
    fa::tcgen05_ld(r, mine);
    fa::tcgen05_wait_ld(r);
    y[blockIdx.x * kM + thread] = r[0] + r[kN - 1];
    fa::tcgen05_fence_before_thread_sync();
  }
  __syncthreads();
  if (here(Fault::freed_early) && warp == 4) fa::tcgen05_dealloc<2>(s, kColumns);
  fa::cluster_sync();
  if (!here(Fault::freed_early) && warp == 4) fa::tcgen05_dealloc<2>(s, kColumns);
}

// Each block loads half of B and signals the leader, which multiplies, or itself.
__global__ void loads(const __grid_constant__ fa::TensorMap map, bool tell_leader, unsigned told) {
  bf16* tile = fa::dynamic_shared<bf16>();  // [128][64], A and B
  __shared__ uint64_t full, done;
  __shared__ uint32_t address;
  const unsigned rank = fa::cluster_rank();
  constexpr int kBytes = 128 * 64 * sizeof(bf16);
  fa::tcgen05_alloc<2>(&address, 256);
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&full, 1), fa::mbarrier_init(&done, 1);
    fa::mbarrier_init_fence();
  }
  fa::cluster_sync();
  if (threadIdx.x == 0) {
    if (rank == 0) fa::mbarrier_arrive_expect_tx(&full, tell_leader ? 2 * kBytes : kBytes);
    if (rank == 1 && !tell_leader) fa::mbarrier_arrive_expect_tx(&full, kBytes);
    fa::tma_load_2cta(tile, &map, &full, tell_leader ? told : rank, {0, 0, 0, 0});
    if (rank == 0) {
      fa::mbarrier_wait(&full, 0);
      const uint64_t operand = fa::tcgen05_descriptor(tile, Swizzle::b128, 0, 1024);
      fa::tcgen05_mma<2>(address, operand, operand, fa::tcgen05_instruction(256, 256), false);
      fa::tcgen05_commit_2cta(&done, kBoth);
    }
    if (rank == 1 && !tell_leader) fa::mbarrier_wait(&full, 0);
  }
  __syncwarp();
  fa::mbarrier_wait(&done, 0);
  fa::cluster_sync();
  fa::tcgen05_dealloc<2>(address, 256);
}

// Two allocations, freed by the blocks in the same order or not.
__global__ void frees(bool crosswise) {
  __shared__ uint32_t address[2];
  for (uint32_t& a : address) fa::tcgen05_alloc<2>(&a, 32);
  __syncwarp();
  const unsigned first = crosswise ? fa::cluster_rank() : 0;
  for (unsigned i = 0; i < 2; ++i) fa::tcgen05_dealloc<2>(address[first ^ i], 32);
}
__global__ void commits_to_nobody() {
  __shared__ uint64_t done;
  fa::mbarrier_init(&done, 1);
  fa::tcgen05_commit_2cta(&done, 0);
}

__global__ void allocate_for_one() {
  __shared__ uint32_t address;
  fa::tcgen05_alloc(&address, 32);
  __syncwarp();
  fa::tcgen05_dealloc<2>(address, 32);
}

}  // namespace

#define FAULT(name, pattern) FOUND(pattern, two_products, kPair, y, Fault::name)

ANALYSED("two blocks multiply together", "[sim][tcgen05][cluster]") {
  SILENT(two_products, config(4, 2), y, Fault::none);
  for (const int block : {0, 1, 2, 3}) {
    CHECK(y.download()[block * kM + 77] == 3 * kK * kK * (block % 2 + 1));
  }
}

TEST_CASE_METHOD(sim::test::Analysed, "a product of two blocks is one, with the operands of both",
                 "[sim][tcgen05][cluster]") {
  const sim::test::WithOptions with({.workers = 1, .requests = true, .sites = true});
  std::vector<std::pair<uint64_t, uint64_t>> rows;  // requests, wavefronts
  for (const fa::SiteCount& s : sim::test::counted(two_products, kPair, y, Fault::none).sites) {
    if (s.what == "shared tcgen05.mma") rows.emplace_back(s.requests, s.transfers);
  }
  std::sort(rows.begin(), rows.end());
  // 2 bytes of kK columns: of A and B, 128 rows and half of B's in each block; of B alone.
  const uint64_t line = 128 / (2 * kK);  // rows
  CHECK(rows ==
        std::vector<std::pair<uint64_t, uint64_t>>{{1, kN / line}, {1, (2 * kM + kN) / line}});
}

TEST_CASE_METHOD(sim::test::Analysed, "a trace of a product of two has a block's own tensor memory",
                 "[sim][tcgen05][cluster][trace]") {
  const sim::test::WithOptions with({.requests = true, .l2_bytes = 50e6, .trace = true});
  const auto counts = sim::test::counted(two_products, kPair, y, Fault::none);
  uint64_t bytes = 0;
  for (const fa::TraceEvent& e : counts.trace->kernels.at(0).events) {
    const bool tensor = counts.trace->places.at(e.place).space == fa::TraceSpace::tensor;
    if (tensor && e.how == "tcgen05.mma") bytes += e.bytes;
  }
  CHECK(bytes == kM * 4 * (2 * kN + kK / 2));  // D twice, and A of the second product
}

ANALYSED("both blocks of a pair allocate and free, and a kernel has one cta_group",
         "[sim][tcgen05][cluster]") {
  FAULT(mixed_product,
        "the tcgen05.mma at tensor_memory_pair.cu: ... has cta_group::1, but tcgen05.alloc at "
        "tensor_memory_pair.cu: ... has cta_group::2: a kernel has one");
  FAULT(mixed_commit,
        "tcgen05.commit at tensor_memory_pair.cu: ... has cta_group::1, but tcgen05.alloc at ... "
        "has cta_group::2");
  FOUND("tcgen05.dealloc at ... has cta_group::2, but tcgen05.alloc at ... has cta_group::1",
        allocate_for_one, config(2, 2));
  FOUND("tcgen05.alloc at ... with cta_group::2 in a cluster of 1", two_products, config(2, 1), y,
        Fault::none);
  FAULT(one_allocates, "deadlock in kernel ... wait at tcgen05.alloc");
  FAULT(other_columns,
        "tcgen05.alloc at ... of 128 columns, while the other block of the pair has tcgen05.alloc "
        "of 64");
  FAULT(freed_early, "deadlock in kernel ... wait at tcgen05.dealloc");
  SILENT(frees, kWarps, false);
  FOUND(
      "tcgen05.dealloc at ... of 32 columns from column 32 on, while the other block of the pair "
      "has tcgen05.dealloc of 32 from column 0 on",
      frees, kWarps, true);
}

ANALYSED("a product of two blocks has 128 or 256 rows, and half of B in each block",
         "[sim][tcgen05][cluster]") {
  FAULT(small_m,
        "its instruction descriptor says m64n32; m128 with n of 16, 32, ... 256, or m256 with n of "
        "16, 32, ... 256 is possible");
  FAULT(one_column_too_many, "its instruction descriptor says m256n40; m128");
}

ANALYSED("fences, arrivals and commits order two blocks that multiply together",
         "[sim][tcgen05][cluster]") {
  FAULT(no_before_fence,
        "race on tensor memory: ... block (0,0,0), thread (0,0,0): tcgen05.mma of column 32 of the "
        "pair's other block at ... and a tcgen05.st by warp 0 of block (1,0,0) at ... have no "
        "tcgen05_fence_before_thread_sync");
  FAULT(no_after_fence, "have no tcgen05_fence_after_thread_sync (after the wait or barrier)");
  FAULT(leader_waits_for_itself,
        "thread (0,0,0): tcgen05.mma of column 32 of the pair's other block at ... which no thread "
        "has written yet ... block (1,0,0), thread (31,0,0): tcgen05.st that writes column 32 at "
        "... and "
        "a tcgen05.mma by block (0,0,0), thread (0,0,0) at ... have no wait on the mbarrier");
  FAULT(commit_to_leader, "deadlock in kernel ... wait at mbarrier wait");
  FOUND("tcgen05.commit at ... is multicast to no block", commits_to_nobody, kWarps);
  FAULT(one_does_not_wait,
        "a block ends before the tcgen05.commit at tensor_memory_pair.cu: ... has arrived at its "
        "mbarrier (done, byte 8): a wait on it must come first");
  FAULT(no_proxy_fence,
        "race on shared memory: ... block (0,0,0), thread (0,0,0): tcgen05.mma that reads dynamic "
        "shared memory, byte 0, in block (1,0,0) at ... no fence.proxy.async");
  FAULT(overwritten,
        "race on shared memory: ... block (0,0,0), thread (0,0,0): tcgen05.mma that reads dynamic "
        "shared memory, byte 4096, in block (1,0,0) at ... and a store by block (1,0,0), thread "
        "(0,0,0) at ... have no barrier");
}

ANALYSED("a TMA load tells the mbarrier of either block", "[sim][tcgen05][cluster]") {
  const sim::test::Buffer<bf16> operand("operand", 128 * 64);
  const auto map = fa::tensor_map(
      operand.get(), {{64, 1, 64}, {128, 64, 128}, {1, 64, 1}, {1, 64, 1}}, Swizzle::b128);
  const fa::LaunchConfig warps{2, 32, 128 * 64 * sizeof(bf16), 2};
  SILENT(loads, warps, map, true, 0u);
  FOUND(
      "race on shared memory: ... block (0,0,0), thread (0,0,0): tcgen05.mma that reads dynamic "
      "shared memory, byte 0, in block (1,0,0) at ... and a TMA load by block (1,0,0), thread "
      "(0,0,0) at ... have no wait on its mbarrier",
      loads, warps, map, false, 0u);
  FOUND("the TMA load at ... signals block 2 of the cluster; that of rank 0 is a pair with 1",
        loads, fa::LaunchConfig{4, 32, 128 * 64 * sizeof(bf16), 4}, map, true, 2u);
}

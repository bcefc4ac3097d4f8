/// \file
/// The simulator's instructions, which CUDA's words (cuda_vocabulary.h) and the wrappers of
/// common/dialect/ptx/ call. Each function is one instruction of the current CUDA thread; its
/// wrapper documents its meaning. `Where` is the kernel's line, for messages.
///
/// What the hardware does asynchronously happens here as late as the kernel's waits allow, so a
/// missing wait gives a wrong answer without a GPU too.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fa {
enum class Swizzle : int;
}

namespace sim {

/// The source line of a call, captured by a default argument.
struct Where {
  const char* file = "";
  unsigned line = 0;
  static constexpr Where here(const char* f = __builtin_FILE(), unsigned l = __builtin_LINE()) {
    return {f, l};
  }
};

enum class Shuffle { idx, xor_, down, up };

// --- warp.cpp, and scheduler/rendezvous.cpp: where threads meet ----------------------------------

// `name`: as in the source, for messages.
void sync_block(Where, const char* name = "__syncthreads");
void sync_named(int id, int threads, bool wait, Where);  // bar.sync, bar.arrive
void sync_warp(uint32_t mask, Where);                    // __syncwarp
/// The kernel's text ends without a return statement here; scripts/sim inserts this call.
void reached_end();
uint64_t shuffle(Shuffle, uint32_t mask, uint64_t value, unsigned bytes, int arg, int width, Where);
uint32_t ballot(uint32_t mask, bool predicate, Where);
int count_in_block(bool predicate, Where);  // __syncthreads_count
uint32_t converged_lanes(Where);            // __activemask, as late as the warp's other lanes allow

// --- memory/access.cpp ---------------------------------------------------------------------------

void fence();                                          // __threadfence
void* copy_bytes(void* to, const void* from, size_t);  // memcpy, memmove
void* set_bytes(void* to, int value, size_t);          // memset

// --- atomics.cpp ---------------------------------------------------------------------------------

enum class AtomicOp { add, min, max, exch, and_, or_, xor_, inc, dec, cas };
/// For an atomic that the caller does itself.
void count_atomic(const void* p, unsigned bytes);
float atomic_f32(AtomicOp, float* p, float v);
void atomic_add_v4(float* p, float a, float b, float c, float d);
double atomic_f64(AtomicOp, double* p, double v);
int32_t atomic_s32(AtomicOp, int32_t* p, int32_t v, int32_t compare = 0);
uint32_t atomic_u32(AtomicOp, uint32_t* p, uint32_t v, uint32_t compare = 0);
int64_t atomic_s64(AtomicOp, long long* p, long long v);
uint64_t atomic_u64(AtomicOp, uint64_t* p, uint64_t v, uint64_t compare = 0);

// --- mma.cpp: fragments --------------------------------------------------------------------------

void ldmatrix(uint32_t* registers, int matrices, bool trans, const void* row, Where);
void stmatrix(const uint32_t* registers, void* row, Where, int matrices = 4, bool trans = false);
/// .b8: ldmatrix.m16n16.trans when `square`, else m8n16. The rows have 16 bytes, or begin with 16
/// codes of so many `bits`. stmatrix.m16n8.trans.
void ldmatrix_bytes(uint32_t* registers, int matrices, bool square, int bits, const void* row,
                    Where);
void stmatrix_bytes(const uint32_t* registers, void* row, Where, int matrices);
void mma_m16n8k16(float* d, const uint32_t* a, const uint32_t* b, Where);

// --- cp_async.cpp --------------------------------------------------------------------------------

/// The last `bytes - from_bytes` bytes become zero.
void cp_async(void* to, const void* from, int bytes, int from_bytes, Where);
void cp_async_commit();
void cp_async_wait(int pending_groups);
void cp_async_wait_all();

// --- mbarrier.cpp --------------------------------------------------------------------------------

void mbarrier_init(uint64_t* bar, int count, Where);
void mbarrier_init_fence();  // fence.mbarrier_init
void mbarrier_inval(uint64_t* bar, Where);
/// What an arrival releases and a wait acquires. `relaxed`: no writes of threads or of TMA, only
/// that reads and other asynchronous operations are complete. That is PTX's .relaxed, and also an
/// arrival in another block with CTA scope, PTX's default, by which CUTLASS releases a stage.
struct Order {
  bool relaxed = false;
};
/// `bytes` > 0: arrive.expect_tx. `bar` may be another block's.
void mbarrier_arrive(uint64_t* bar, int bytes, Where, Order = {}, int count = 1);
void mbarrier_expect(uint64_t* bar, int bytes, Where);  // expect_tx alone
void mbarrier_wait(uint64_t* bar, int parity, Where);
/// mbarrier.try_wait: waits, but not for ever. Returns false at a thread's first try in a phase
/// that is not complete, and later when nothing else can run.
bool mbarrier_try_wait(uint64_t* bar, int parity, Where, Order = {});

// --- tma.cpp -------------------------------------------------------------------------------------

constexpr int kMaxRank = 5;

/// What cuTensorMapEncodeTiled packs into 128 bytes. Index 0 is the innermost dimension.
struct TensorMap {
  void* base;
  int element_bytes;
  int rank;
  fa::Swizzle swizzle;
  uint64_t size[kMaxRank];    ///< elements
  uint64_t stride[kMaxRank];  ///< bytes; [0] is one element
  uint32_t box[kMaxRank];     ///< elements
  /// 16 elements of 4 or 6 bits count as one in sizes and boxes, not in coordinates: `unit` is then
  /// 16, else 1. In shared memory `gap` bytes follow each 16, which a load does not count.
  uint16_t unit, gap;
};

/// As a rank: gather4 or scatter4, whose five coordinates are a column and four rows.
constexpr int kFourRows = 4 + kMaxRank;

/// `at`: `rank` coordinates. `blocks`: bit r = box and signal to the block of rank r; 0 = this one.
void tma_load(void* to, const TensorMap*, const int* at, int rank, uint64_t* bar, unsigned blocks,
              Where);
/// The same with cta_group::2: the signal goes to `bar` in the block of rank `told`, this one or
/// the other of its pair; for each further block to `bar` in its pair's block of the same parity.
void tma_load_of_pair(void* to, const TensorMap*, const int* at, int rank, uint64_t* bar,
                      unsigned told, Where, unsigned blocks = 0);
void tma_store(const TensorMap*, const int* at, int rank, const void* from, Where);
/// `blocks`: as of tma_load().
void bulk_load(void* to, const void* from, int bytes, uint64_t* bar, Where, unsigned blocks = 0);
/// What a reduction does with each element of its target; exch: a copy.
enum class Element { u32, s32, u64, s64, f16, bf16, f32, f64 };
struct Reduction {
  AtomicOp op = AtomicOp::exch;
  Element type = Element::u32;
  bool copies() const { return op == AtomicOp::exch; }
};
void bulk_store(void* to, const void* from, int bytes, Where, Reduction = {});
/// From this block's shared memory to that rank's, where `to` and `bar` have the same offsets.
void bulk_send(void* to, const void* from, int bytes, uint64_t* bar, unsigned rank, Where,
               Reduction = {});
/// The same, to the cluster's block that has `to` and `bar`.
void bulk_send(void* to, const void* from, int bytes, uint64_t* bar, Where, Reduction = {});
/// st.async and red.async: registers to the cluster's block that has `to` and `bar`.
void send_registers(void* to, const void* values, int bytes, uint64_t* bar, Where, Reduction = {});
void bulk_commit();
/// `read_only`: until shared memory has been read (.read).
void bulk_wait(int pending_groups, bool read_only);
/// fence.proxy.async, and for which memory.
enum class ProxyFence { shared, device };
void proxy_fence(ProxyFence);

// --- wgmma.cpp -----------------------------------------------------------------------------------

/// What wgmma multiplies: m64nNk16 of bf16 or fp16, m64nNk32 of e4m3. The others are tcgen05's.
enum class Factor { bf16, e4m3, f16, tf32, e5m2, s8, u8, e2m3, e3m2, e2m1, e2m1x2 };

/// One wgmma.mma_async.
struct Wgmma {
  Factor factor = Factor::bf16;
  int n = 0;
  uint64_t a = 0;                         ///< descriptor, when A is in shared memory
  const uint32_t* a_registers = nullptr;  ///< [4], when it does not
  uint64_t b = 0;                         ///< descriptor
  bool a_mn_major = false;
  bool b_mn_major = false;
  bool accumulate = true;  ///< false: D = A B
  bool half_sums = false;  ///< D is in fp16, two in a register
};
uint64_t wgmma_descriptor(const void* tile, fa::Swizzle, int leading_bytes, int stride_bytes,
                          Where);
/// From PTX's bits, whose start is an address as __cvta_generic_to_shared() returns it.
uint64_t wgmma_operand(uint64_t descriptor, Where);
void wgmma(float* d, const Wgmma&, Where);
void wgmma_fence();
void wgmma_commit();
void wgmma_wait(int pending_groups, Where);

/// setmaxnreg of the current thread's warpgroup.
void setmaxnreg(int registers, Where);

// --- tcgen05.cpp ---------------------------------------------------------------------------------

/// How many blocks an instruction belongs to. 2: a pair, ranks 2 i and 2 i + 1 of a cluster.
enum class CtaGroup { one = 1, two = 2 };

/// PTX's kind; the instruction descriptor names the types (sim/instructions/tensor_kinds.h).
enum class TensorKind { f16, tf32, f8f6f4, i8, mxf8f6f4, mxf4, mxf4nvf4 };

/// One tcgen05.mma.
struct TensorProduct {
  uint32_t d = 0;  ///< address in tensor memory
  uint64_t a = 0;  ///< descriptor, or address in tensor memory
  bool a_in_tensor_memory = false;
  uint64_t b = 0;            ///< descriptor
  uint32_t instruction = 0;  ///< instruction descriptor
  bool accumulate = true;    ///< false: D = A B
  CtaGroup group = CtaGroup::one;
  TensorKind kind = TensorKind::f16;
  bool ws = false;                      ///< tcgen05.mma.ws
  uint32_t scales_a = 0, scales_b = 0;  ///< addresses in tensor memory, of block-scaled kinds
  int scale_vector = 0;                 ///< n of scale_vec::nX; 0: the kind's
  int scale_d = 0;                      ///< scale-input-d: D = A B + D 2^-scale_d
  uint32_t disabled[8] = {};  ///< lanes of D that stay as they are, of the even block first
};
void tcgen05_alloc(uint32_t* address, int columns, Where, CtaGroup = CtaGroup::one);
void tcgen05_relinquish_alloc_permit(Where, CtaGroup = CtaGroup::one);
void tcgen05_dealloc(uint32_t address, int columns, Where, CtaGroup = CtaGroup::one);
uint64_t tcgen05_descriptor(const void* tile, fa::Swizzle, int leading_bytes, int stride_bytes,
                            Where);
/// From PTX's bits, whose start is an address as __cvta_generic_to_shared() returns it.
uint64_t tcgen05_operand(uint64_t descriptor, Where);
void tcgen05_mma(const TensorProduct&, Where);
/// What tcgen05.cp copies (kCopies in sim/instructions/tensor_kinds.h), and the bits of an element
/// that it expands to a byte: 4, 6, or 0.
enum class TensorCopy { m128b256, m4b256, m128b128, m64b128_02_13, m64b128_01_23, m32b128 };
void tcgen05_cp(uint32_t to, uint64_t descriptor, TensorCopy, int bits, Where,
                CtaGroup = CtaGroup::one);
/// tcgen05.shift: row i + 1 of 32 lanes and 8 columns becomes row i.
void tcgen05_shift(uint32_t at, Where, CtaGroup = CtaGroup::one);
constexpr unsigned kThisBlock = ~0u;
/// `blocks`: bit r = the mbarrier of the block of rank r.
void tcgen05_commit(uint64_t* bar, Where, CtaGroup = CtaGroup::one, unsigned blocks = kThisBlock);
void tcgen05_fence(bool before);  // else after_thread_sync
/// PTX's shape of ld and st: `lanes`, and the bits of a lane in .x1: 32x32b, 16x64b, 16x128b and
/// 16x256b. {16, 32} is 16x32bx2: the warp's upper lanes have the columns from `second` on.
struct TensorShape {
  int lanes = 32, bits = 32;
  bool packed = false;  ///< pack::16b, unpack::16b: a register has the low halves of two columns
  int second = 0;
};
void tcgen05_ld(void* registers, int n, uint32_t from, Where, TensorShape = {});
void tcgen05_st(uint32_t to, const void* registers, int n, Where, TensorShape = {});
void tcgen05_wait(bool loads, Where);  // else stores

// --- cluster.cpp ---------------------------------------------------------------------------------

void cluster_arrive(Where, const char* name = "barrier.cluster.arrive");
void cluster_wait(Where, const char* name = "barrier.cluster.wait");
/// Whether the launch is cooperative, so that its grid has a barrier.
bool grid_is_together();
/// Stops the kernel unless grid_is_together().
void require_grid_together(Where);
unsigned cluster_rank();
unsigned cluster_size();
/// clusterlaunchcontrol.try_cancel: takes the launch's next cluster, if there is one, and stores
/// what query_cancel reads. `all`: to each block of the cluster.
void try_cancel(void* response, uint64_t* bar, Where, bool all = false);
struct Canceled {
  uint32_t block[3];  ///< the first one of the cluster
  uint32_t is;        ///< 0: there was none
};
void* map_shared_rank(const void* p, unsigned rank);

}  // namespace sim

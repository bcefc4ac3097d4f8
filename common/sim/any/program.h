/// \file
/// How any program launches its kernels: what `../../../scripts/sim` makes of <<< >>>, and the few
/// services of the simulator that steps do not use.
#pragma once

#include <csetjmp>
#include <tuple>

#include "common/dialect/cuda_vocabulary.h"

namespace sim {

/// CUDA's atomics for other types of 2 and 4 bytes: `next(old)` replaces the old value.
template <class T, class F>
T atomic_with(T* p, F&& next) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4);
  using U = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
  count_atomic(p, sizeof(T));
  U* cell = reinterpret_cast<U*>(p);
  U old = __atomic_load_n(cell, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(cell, &old, std::bit_cast<U>(next(std::bit_cast<T>(old))),
                                      true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return std::bit_cast<T>(old);
}

uint64_t state_of_barrier(const uint64_t* bar, bool* own);
/// An arrival at an mbarrier, perhaps of another block: between blocks it orders what threads wrote
/// only if it is .cluster and not .relaxed. Returns the previous state.
inline uint64_t arrive(uint64_t* bar, bool cluster, bool relaxed, int bytes, int count,
                       Where where) {
  bool own = false;
  const uint64_t state = state_of_barrier(bar, &own);
  mbarrier_arrive(bar, bytes, where, {relaxed || !(cluster || own)}, count);
  return state;
}

}  // namespace sim

namespace sim {
void mark_host_addresses(void* bytes, size_t n);  // memory/device_memory.h
}
struct CUstream_st;
typedef CUstream_st* cudaStream_t;

namespace sim::any {

/// The launch configuration between <<< and >>>.
struct Shape {
  dim3 grid, block;
  size_t smem = 0;
  cudaStream_t stream = nullptr;
  Where where;  ///< the launch's line
  dim3 cluster;
  bool early = false;  ///< may overlap with the preceding kernel
  Shape(dim3 g, dim3 b, size_t bytes = 0, cudaStream_t s = nullptr, Where here = Where::here())
      : grid(g), block(b), smem(bytes), stream(s), where(here) {}
};

/// Runs a launch, counts its traffic and prints findings. A stopped kernel ends the program.
/// \return false where CUDA refuses the launch: nothing ran, and the last error says why.
bool run(const Launch&, Where, bool early = false);

/// An argument whose class is not trivially copyable. As on a GPU the host copies it once; each
/// thread gets the bytes of that copy, and runs no constructor or destructor.
template <class T>
struct Bytes {
  alignas(T) unsigned char bytes[sizeof(T)];
  Bytes(const T& v) { std::memcpy(bytes, &v, sizeof bytes); }
  Bytes(const Bytes& b) { std::memcpy(bytes, b.bytes, sizeof bytes); }
  [[gnu::noipa]] static Bytes copy(const Bytes& b) { return b; }
};
template <class T>
constexpr bool kCopiesBytes = std::is_trivially_copy_constructible_v<T> ||
                              (std::is_trivially_move_constructible_v<T> &&
                               !std::is_copy_constructible_v<T>);
template <class T>
struct ArgumentOf : std::conditional<kCopiesBytes<T>, T, Bytes<T>> {};
template <class T>
struct ArgumentOf<Bytes<T>> : std::type_identity<Bytes<T>> {};
template <class T>
using Argument = typename ArgumentOf<T>::type;

/// What scripts/sim makes of an argument for a reference parameter, which must be managed memory.
template <class T>
struct Reference {
  T* p;
};
template <class T>
Reference<T> reference(T& v) {
  return {std::addressof(v)};
}
template <class T>
Reference<const T> reference(const T&& v) {
  return {std::addressof(v)};
}

/// The argument as the kernel receives it.
template <class T>
__attribute__((no_sanitize_thread)) inline T& passed(T& a) {
  return a;
}
template <class T>
__attribute__((no_sanitize_thread)) inline T passed(Bytes<T>& a) {
  // Both functions return through a pointer to the result.
  return reinterpret_cast<T (*)(const Bytes<T>&)>(&Bytes<T>::copy)(a);
}
template <class T>
__attribute__((no_sanitize_thread)) inline T& passed(Reference<T>& a) {
  return *a.p;
}
/// Called at the end of the kernel: skips the destructors of its arguments.
struct Leave {
  std::jmp_buf* to;
  __attribute__((no_sanitize_thread)) void operator()() const {
    if (to) std::longjmp(*to, 1);
  }
};

/// `kernel(leave, a...)` calls the kernel with `passed(a)...`, then leave().
template <class F, class... A>
bool launch(const char* name, const Shape& shape, bool together, F kernel, A... args) {
  struct Closure {
    F kernel;
    std::tuple<Argument<A>...> args;
  } closure{kernel, {args...}};
  mark_host_addresses(&closure.args, sizeof closure.args);
  const auto call = [](void* p) {
    auto& c = *static_cast<Closure*>(p);
    if constexpr ((kCopiesBytes<A> && ...)) {
      std::apply([&](auto&... a) { c.kernel(Leave{nullptr}, a...); }, c.args);
    } else {
      std::jmp_buf end;
      if (_setjmp(end) == 0) std::apply([&](auto&... a) { c.kernel(Leave{&end}, a...); }, c.args);
    }
  };
  return run({nullptr,
              {shape.grid, shape.block, shape.smem, shape.cluster, together},
              call,
              &closure,
              sizeof closure,
              name},
             shape.where, shape.early);
}

// --- for inline PTX ---

/// A 32-bit shared address of inline PTX. Bits 0-23: signed, bytes from the start of the dynamic
/// part. 24: set in an odd block of a cluster, as on a GPU; code that clears it names the even
/// block of its pair (CUTLASS: Sm100MmaPeerBitMask). 25-31, and 1 if the bytes are negative: 0 for
/// the current pair, p + 1 for the p-th pair of the cluster.
inline unsigned shared_address(int bytes, unsigned rank, unsigned pair) {
  const unsigned low = static_cast<unsigned>(bytes) & 0xffffff;
  return low | (rank & 1) << 24 | (pair - (bytes < 0)) << 25;
}
inline void* shared_pointer(unsigned address) {
  const int bytes = static_cast<int>(address << 8) >> 8;
  const unsigned own = cluster_rank(), odd = address >> 24 & 1;
  const unsigned pair = ((address >> 25) + (bytes < 0)) & 127;
  if (pair == 0 && odd == (own & 1)) return dynamic_smem + bytes;
  return map_shared_rank(dynamic_smem + bytes, pair ? 2 * (pair - 1) + odd : own ^ 1);
}
/// mov: copies the bits, also between a float and an integer. Some PTX writes to its "inputs".
template <class To, class From>
[[gnu::access(none, 1)]] void move(const To& operand, From from) {  // else g++ says it is read
  To& to = const_cast<To&>(operand);
  if constexpr (sizeof(To) == sizeof(From)) {
    to = std::bit_cast<To>(from);
  } else {
    to = (To)from;
  }
}
inline unsigned thread_of_block() {
  return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}
inline unsigned lane() { return thread_of_block() % 32; }
inline unsigned warp() { return thread_of_block() / 32; }
/// As if blocks were assigned to the SMs in turn.
inline unsigned sm() {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  return block % static_cast<unsigned>(multiprocessors());
}

template <class... R>
void tcgen05_ld(Where where, TensorShape shape, uint32_t from, R&... r) {
  uint32_t registers[sizeof...(R)];
  sim::tcgen05_ld(registers, sizeof...(R), from, where, shape);
  const uint32_t* next = registers;
  ((r = std::bit_cast<R>(*next++)), ...);
}
template <class... R>
void tcgen05_st(Where where, TensorShape shape, uint32_t to, R... r) {
  const uint32_t registers[] = {std::bit_cast<uint32_t>(r)...};
  sim::tcgen05_st(to, registers, sizeof...(R), where, shape);
}

/// During its lifetime host code may touch device memory, on behalf of one of NVIDIA's libraries.
/// The report says that this is not counted. It has no effect in a kernel.
class Library {
 public:
  explicit Library(const char* name);
  ~Library();
  Library(const Library&) = delete;
  /// Are the bytes [p + low, p + high) inside the buffer? If not, that is a finding.
  static bool reaches(const char* operand, const void* p, std::ptrdiff_t low, std::ptrdiff_t high);

 private:
  bool on_host_;
};

/// Ends a program that needs what the simulator lacks, with one sentence.
[[noreturn]] void unsupported(const char* what, Where = Where::here());
/// `bar` may belong to the pair's other block in a group of 2.
void tma_load(int group, void* to, const TensorMap*, const int* at, int rank, uint64_t* bar,
              unsigned blocks, Where);
/// Checks the mask of a tcgen05.mma.ws.
inline void need_all_columns(uint64_t mask, Where where) {
  if (mask) unsupported("a tcgen05.mma.ws with a mask of columns", where);
}
/// tensormap.replace of entry `i` of a map's sizes, boxes or strides (that of a row is entry 0).
enum class MapEntries { size, box, stride };
inline void replace_in_map(TensorMap* map, MapEntries what, uint64_t i, uint64_t value,
                           Where where) {
  if (what == MapEntries::stride) ++i;
  if (i >= static_cast<uint64_t>(kMaxRank)) {
    unsupported("a tensormap.replace of a sixth dimension", where);
  }
  if (i == 0 && map->unit) value /= map->unit;  // packed elements
  if (what == MapEntries::size) map->size[i] = value;
  if (what == MapEntries::box) map->box[i] = static_cast<uint32_t>(value);
  if (what == MapEntries::stride) map->stride[i] = value;
}
/// tensormap.replace of the swizzle's mode.
inline void replace_swizzle(TensorMap* map, int mode, Where where) {
  if (mode < 0 || mode > 3) unsupported("a tensormap.replace with that swizzle_mode", where);
  map->swizzle = fa::Swizzle{16 << mode};
}
/// tensormap.cp_fenceproxy by a warp: from shared to device memory.
inline void copy_tensor_map(void* to, const void* from, Where where) {
  sync_warp(~0u, where);
  if (lane() == 0) copy_bytes(to, from, sizeof(TensorMap));
  sync_warp(~0u, where);
}
inline void need_plus_one(int a, int b, Where where) {
  if (a != 1 || b != 1) unsupported("a wgmma that negates a factor", where);
}
/// The kernel's __cluster_dims__; the kernel calls this first.
void need_cluster(unsigned x, unsigned y = 1, unsigned z = 1);
/// The kernel's __launch_bounds__; the kernel calls this first.
[[noreturn]] void refuse_block(unsigned bound, Where);
inline void need_bounds(unsigned threads, unsigned = 0, unsigned = 0, Where where = Where::here()) {
  if (threads > 0 && blockDim.x * blockDim.y * blockDim.z > threads) refuse_block(threads, where);
}
/// The participating lanes of a shuffle or vote without _sync.
unsigned lanes_without_sync(Where);
/// The carry of add.cc and similar instructions.
bool carry();
void set_carry(bool);
/// Ends a kernel that calls __trap().
[[noreturn]] void trap(Where);
/// The value of clock64(): a running thread has no clock in the model, so the value only grows.
long long ticks();

}  // namespace sim::any

// Every load and store of kernel code ends here: classify the address, check it, count it. g++
// -fsanitize=thread plants a call to __tsan_* at each access. Kernels are compiled with the flag
// and linked without it: the functions at the end of this file replace libtsan.
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "common/sim/block.h"
#include "common/sim/memory/request_log.h"
#include "common/sim/messages/messages.h"
#include "common/sim/scheduler/scheduler.h"
#include "common/sim/scheduler/stacks.h"
#include "common/sim/sim.h"

namespace sim {

namespace {

// "kernel f, block (0,0,0), thread (5,0,0): 4-byte load at kernel.cuh:42 "
std::string subject(unsigned size, Kind kind, const void* pc) {
  return here() + ": " + std::to_string(size) + "-byte " + noun(kind) + " at " + source_of(pc) +
         " ";
}

// The distance of an address from the nearest buffer; nothing, where no index reaches it.
std::string nearest_buffer(uint64_t offset) {
  auto away = int64_t{1} << 36;
  std::string text;
  for (size_t k = 1; k < buffer_count(); ++k) {
    const BufferInfo& b = buffers[k];
    if (!b.live) continue;
    const auto before = static_cast<int64_t>(b.begin - offset);
    const auto past = static_cast<int64_t>(offset - b.end);
    if (std::max(before, past) >= away) continue;
    away = std::max(before, past);
    text = ", " + std::to_string(away) +
           (before > 0 ? " bytes before the start of buffer " : " bytes past the end of buffer ") +
           b.name;
  }
  return text;
}

// The fault of [offset, offset + size), other than alignment.
[[gnu::noinline, gnu::cold]] std::string bad_bytes(uint64_t offset) {
  // The buffer that owns the page, else the nearer owner of the adjacent pages.
  uint16_t number = page_owner[offset / kPage];
  if (!number) {
    const uint16_t below = offset >= kPage ? page_owner[offset / kPage - 1] : 0;
    const uint16_t above =
        offset / kPage + 1 < kHbmSpan / kPage ? page_owner[offset / kPage + 1] : 0;
    const bool nearer_above =
        above && (!below || buffers[above].begin - offset < offset - buffers[below].end);
    number = nearer_above ? above : below;
  }
  if (!number) return "of an address that no cudaMalloc returned" + nearest_buffer(offset);
  const BufferInfo& b = buffers[number];
  if (!b.live) return "of buffer " + b.name + " after cudaFree";
  if (offset < b.begin) {
    return std::to_string(b.begin - offset) + " bytes before the start of buffer " + b.name;
  }
  return "at byte " + std::to_string(offset - b.begin) + " of buffer " + b.name + ", which has " +
         std::to_string(b.end - b.begin) + " bytes";
}

[[gnu::noinline, gnu::cold]] void bad_hbm(uint64_t offset, unsigned size, Kind kind,
                                          const void* pc) {
  fail(FaultKind::out_of_bounds, subject(size, kind, pc) + bad_bytes(offset));
}

[[gnu::noinline, gnu::cold]] void misaligned(const char* where, unsigned size, const void* pc) {
  fail(FaultKind::misaligned,
       here() + ": " + std::to_string(size) + "-byte access at " + source_of(pc) + " of " + where +
           " at an address that is not a multiple of " + std::to_string(size));
}

[[gnu::noinline, gnu::cold]] void bad_shared(const Block& home, uint64_t offset, unsigned size,
                                             Kind kind, const void* pc) {
  fail(FaultKind::out_of_bounds, subject(size, kind, pc) + shared_bounds(home, offset));
}

[[gnu::noinline, gnu::cold]] void host_touch(const BufferInfo& info, uint64_t offset, unsigned size,
                                             Kind kind, const void* pc) {
  const std::string sentence =
      options().libraries
          ? std::string(options().library) + " at " + calling_source() + ": " +
                std::to_string(size) + "-byte " + noun(kind) + " " + bad_bytes(offset)
      : !info.for_host
          ? "host code dereferences a device pointer at " + source_of(pc) + "; use cudaMemcpy"
          : "host code uses " + info.name + " at " + source_of(pc) +
                (info.live ? ", outside of its bytes" : " after it was freed");
  if (options().on_fatal) options().on_fatal(FaultKind::out_of_bounds, sentence);
  std::fprintf(stderr, "%s\n", sentence.c_str());
  std::abort();
}

// Called for the watchdog: a thread that waits, or loops for ever, accesses the same few words
// again and again. A working thread moves on, or a tensor core works for it.
[[gnu::noinline, gnu::cold]] void look_at(Block& b, const Access& a) {
  constexpr size_t kFew = 512, kOften = 64;
  if (!options().interrupted || !*options().interrupted) {
    b.looked_at.insert(a.at << 1 | (a.space == Space::hbm));
    const bool waits = a.by == By::thread || a.by == By::mbarrier;
    if (b.looked_at.size() > kFew || !waits) {
      b.looked_at.clear();
      b.looks = 0;
      b.stop = false;
      set_watch(b);
      b.progress.store(b.progress.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
      return;
    }
    if (++b.looks < kOften * (b.looked_at.size() + 16)) return;
  }
  fail(FaultKind::endless_loop,
       here() + " spins at " + source_of(a.pc) +
           ": no thread of its block has met a barrier, switched or returned for " +
           std::to_string(static_cast<int>(options().watchdog_s)) +
           " s; waiting for another block or thread by polling memory is outside the dialect");
}

struct Range {
  uintptr_t begin, size;
};

// The program's constants and string literals: read-only segments, at least after relocation.
std::vector<Range> find_constants() {
  std::vector<Range> ranges;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* p) {
        if (!is_own_object(*info)) return 0;
        for (int k = 0; k < info->dlpi_phnum; ++k) {
          const auto& segment = info->dlpi_phdr[k];
          if ((segment.p_type == PT_LOAD && !(segment.p_flags & PF_W)) ||
              segment.p_type == PT_GNU_RELRO) {
            static_cast<std::vector<Range>*>(p)->push_back(
                {info->dlpi_addr + segment.p_vaddr, segment.p_memsz});
          }
        }
        return 1;
      },
      &ranges);
  return ranges;
}
const std::vector<Range> constants = find_constants();

// An address outside device memory, shared memory and this thread's stack.
[[gnu::noinline]] void foreign(Block& b, uintptr_t address, unsigned size, Kind kind,
                               const void* pc, By by) {
  if (b.host && options().on_host_access) options().on_host_access(address, size, kind, pc);
  if (b.host || !b.launch) return;  // no launch: a constructor before main()
  if (const Variables* v = variables_at(address)) {
    if (v->kind != Variables::constant) {
      access(reinterpret_cast<const void*>(v->place + (address - v->begin)), size, kind, pc, by);
      return;
    }
    if (kind == Kind::load) return;
  }
  const std::string does = std::to_string(size) + "-byte " + noun(kind);
  if (is_from_host(address)) uses_host_address(address, does, pc);
  if (kind == Kind::load) {
    for (const Range& r : constants) {
      if (address - r.begin < r.size) return;
    }
  }
  if (address - reinterpret_cast<uintptr_t>(b.launch->closure) < b.launch->closure_bytes) return;
  // Just below or above shared memory.
  if (const uint64_t offset = address - b.shared_base; offset + kPage < b.shared_size + 2 * kPage) {
    bad_shared(b, offset, size, kind, pc);
  }
  if (address < kPage) {
    fail(FaultKind::out_of_bounds, subject(size, kind, pc) + "by way of a null pointer");
  }
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  unsigned char resident;
  if (mincore(reinterpret_cast<void*>(address / page * page), 1, &resident) != 0) {
    fail(FaultKind::out_of_bounds, subject(size, kind, pc) + "of an address at which nothing is" +
                                       nearest_buffer(address - kHbmBase));
  }
  uses_host_address(address, does, pc);
}

// Two workers may write to one word at the same time, hence the atomics.
[[gnu::noinline]] void mark_parts(uint64_t offset, unsigned size) {
  for (uint64_t word = offset / kWord; word <= (offset + size - 1) / kWord; ++word) {
    const uint8_t bits = bytes_of_word(offset, size, word);
    if ((__atomic_load_n(hbm_written + word, __ATOMIC_RELAXED) & bits) == bits) continue;
    __atomic_fetch_or(hbm_written + word, bits, __ATOMIC_RELAXED);
  }
}
inline void mark_stored(uint64_t offset, unsigned size) {
  if ((offset | size) % kWord != 0) return mark_parts(offset, size);
  for (uint64_t word = offset / kWord; word < (offset + size) / kWord; ++word) {
    __atomic_store_n(hbm_written + word, kAllBytes, __ATOMIC_RELAXED);
  }
}

void tell_observers(Block& b, const Access& a) {
  if (b.stop.load(std::memory_order_relaxed)) look_at(b, a);
  for (auto& o : b.observers) o->access(b, a);
}

// Are both ends of [offset, offset + size), which is shorter than the gap after an array, in one?
inline bool in_static(const Block& b, uint64_t offset, unsigned size) {
  return offset + size <= b.shared_size && b.in_array[offset] && b.in_array[offset + size - 1];
}

// An access to shared memory of `home`, the current block or another one of its cluster.
void shared_access(Block& b, Block& home, uint64_t offset, unsigned size, Kind kind, const void* pc,
                   By by, bool hooked, bool aligned) {
  if (!in_shared(home, offset, size)) bad_shared(home, offset, size, kind, pc);
  b.shared_bytes[static_cast<int>(kind)] += size;
  tell_observers(b, {offset, size, kind, Space::shared, 0, pc, &home, by, hooked, aligned});
}

// threadIdx and similar lie among the shared variables: a reference to one is read like memory.
bool is_index(uintptr_t address) {
  for (const uint3* index : {&threadIdx, &blockIdx, &blockDim, &gridDim}) {
    if (address - reinterpret_cast<uintptr_t>(index) < sizeof *index) return true;
  }
  return false;
}

// Any access with all checks. `aligned`: the hardware requires a multiple of its size.
[[gnu::noinline]] void whole_access(uintptr_t address, unsigned size, Kind kind, const void* pc,
                                    bool aligned, By by, bool hooked) {
  Block& b = *self;
  if (b.copied_at) pc = b.copied_at;
  const uint64_t offset = address - kHbmBase;
  if (offset < kHbmSpan) {
    const uint16_t number = page_owner[offset / kPage];
    const BufferInfo& info = buffers[number];
    const bool inside = offset >= info.begin && offset + size <= info.end;
    if (b.host && inside && (info.for_host || options().libraries)) {
      if (kind != Kind::load) mark_stored(offset, size);
      return;
    }
    if (b.host) host_touch(info, offset, size, kind, pc);
    if (offset < info.begin || offset + size > info.end) bad_hbm(offset, size, kind, pc);
    if (b.early && b.strictly_early && b.current && b.current->early) {
      fail(FaultKind::race, subject(size, kind, pc) + "of buffer " + info.name +
                                " before griddep_wait: the preceding kernel may still run");
    }
    if (aligned && (offset & (size - 1))) misaligned(info.name.c_str(), size, pc);
    b.hbm[number].bytes[static_cast<int>(kind)] += size;
    tell_observers(b, {offset, size, kind, Space::hbm, number, pc, nullptr, by, hooked, aligned});
    if (kind != Kind::load) mark_stored(offset, size);  // after an observer checked the mark
  } else if (address - b.shared_base < b.shared_size) {
    if (kind == Kind::load && is_index(address)) return;
    if (aligned && (address & (size - 1))) misaligned("shared memory", size, pc);
    shared_access(b, b, address - b.shared_base, size, kind, pc, by, hooked, aligned);
  } else if (address - b.stack_base >= b.stack_size) {
    if (b.registers_watched && address - b.stack_base < b.stacks->size()) {
      check_registers(address, size, kind, pc);
      return;
    }
    if (b.cluster) {
      for (Block* peer : b.cluster->blocks) {
        if (address - peer->shared_base < peer->shared_size) {
          shared_access(b, *peer, address - peer->shared_base, size, kind, pc, by, hooked, aligned);
          return;
        }
      }
    }
    foreign(b, address, size, kind, pc, by);
  }
}

// An access that is in the log. The mark of a store follows, which the observer may look for.
[[gnu::noinline]] void tell_beside_log(Block& b, const Access& a) {
  b.beside_log->access(b, a);
  if (a.space == Space::hbm && a.kind != Kind::load) mark_stored(a.at, a.size);
}

// Most accesses, which are valid. \returns false, unchanged, when whole_access() must decide.
template <bool kLog>
[[gnu::always_inline]] inline bool plain_access(Block& b, uintptr_t address, unsigned size,
                                                Kind kind, const void* pc) {
  const auto belongs = [&](Space space, uint16_t buffer, uint64_t at) {
    return !kLog || b.log->take(size_t{b.current->id} % RequestLog::kLanes,
                                {pc, kind, space, By::thread, buffer}, at);
  };
  const uint64_t offset = address - kHbmBase, at = address - b.shared_base;
  if (at < b.shared_size) {
    const uint64_t byte = address - b.dynamic_base;
    const bool inside =
        byte < kMaxDynamicSmem ? byte + size <= b.launch->config.smem : in_static(b, at, size);
    if (!inside || !belongs(Space::shared, 0, at)) return false;
    b.shared_bytes[static_cast<int>(kind)] += size;
    if (kLog && b.beside_log) {
      tell_beside_log(b, {at, size, kind, Space::shared, 0, pc, &b, By::thread, true});
    }
    return true;
  }
  if (offset < kHbmSpan) {
    const uint16_t number = page_owner[offset / kPage];
    const BufferInfo& info = buffers[number];
    const bool inside = offset >= info.begin && offset + size <= info.end && !b.host && !b.early;
    if (!inside || !belongs(Space::hbm, number, offset)) return false;
    b.hbm[number].bytes[static_cast<int>(kind)] += size;
    if (kLog && b.beside_log) {
      tell_beside_log(b, {offset, size, kind, Space::hbm, number, pc, nullptr, By::thread, true});
    } else if (kind != Kind::load) {
      mark_stored(offset, size);
    }
    return true;
  }
  return address - b.stack_base < b.stack_size;
}

template <unsigned kSize, Kind kKind, bool kAligned>
[[gnu::noinline]] void whole_hook(uintptr_t address, const void* pc) {
  whole_access(address, kSize, kKind, pc, kAligned, By::thread, true);
}

// An access of a size that one request can have, which also is the required alignment.
template <unsigned kSize, Kind kKind>
[[gnu::noinline]] void watched_access(uintptr_t address, const void* pc) {
  Block& b = *self;
  const bool known =
      address % kSize == 0 && !b.copied_at && b.watch.load(std::memory_order_relaxed) != Watch::all;
  if (known && plain_access<true>(b, address, kSize, kKind, pc)) return;
  whole_hook<kSize, kKind, true>(address, pc);
}

[[gnu::always_inline]] inline void access_inline(const void* p, unsigned size, Kind kind,
                                                 const void* pc, bool aligned, By by = By::thread,
                                                 bool hooked = true) {
  Block& b = *self;
  const auto address = reinterpret_cast<uintptr_t>(p);
  const bool fits = !aligned || !(address & (size - 1));
  if (fits && b.watch.load(std::memory_order_relaxed) == Watch::none &&
      plain_access<false>(b, address, size, kind, pc)) [[likely]] {
    return;
  }
  whole_access(address, size, kind, pc, aligned, by, hooked);
}

#define SIM_PC __builtin_return_address(0)  // in hook(), which is inlined: the hook's

// Called by the compiler's hooks, mostly for a thread's stack, where its register arrays lie. Tail
// calls handle all but the plainest accesses, so that these few lines need not save registers.
template <unsigned kSize, Kind kKind, bool kAligned>
[[gnu::always_inline]] inline void hook(const void* p) {
  Block& b = *self;
  const auto address = reinterpret_cast<uintptr_t>(p);
  if (address - b.stack_base < b.stack_size) [[likely]]
    return;
  const bool fits = !kAligned || address % kSize == 0;
  if (fits && b.watch.load(std::memory_order_relaxed) == Watch::none &&
      plain_access<false>(b, address, kSize, kKind, nullptr)) {
    return;
  }
  if (kAligned) {
    watched_access<kSize, kKind>(address, SIM_PC);
  } else {
    whole_hook<kSize, kKind, false>(address, SIM_PC);
  }
}

}  // namespace

void access(const void* p, unsigned size, Kind kind, const void* pc, By by) {
  access_inline(p, size, kind, pc, by != By::engine && std::has_single_bit(size) && size <= 16, by,
                false);
}

bool in_shared(const Block& home, uint64_t offset, size_t bytes) {
  const uint64_t byte = home.shared_base + offset - home.dynamic_base;
  if (byte < kMaxDynamicSmem) return byte + bytes <= home.launch->config.smem;
  return offset < home.shared_size && bytes <= home.shared_size - offset &&
         !std::memchr(home.in_array + offset, false, bytes);
}

void* copy_bytes(void* to, const void* from, size_t bytes) {
  if (bytes) {
    const auto size = static_cast<unsigned>(bytes);
    access_inline(from, size, Kind::load, __builtin_return_address(0), false);
    access_inline(to, size, Kind::store, __builtin_return_address(0), false);
  }
  return std::memmove(to, from, bytes);
}

void* set_bytes(void* to, int value, size_t bytes) {
  if (bytes) {
    access_inline(to, static_cast<unsigned>(bytes), Kind::store, __builtin_return_address(0),
                  false);
  }
  return std::memset(to, value, bytes);
}

void fence() {
  for (auto& o : self->observers) o->fence(*self);
}

}  // namespace sim

// --- replacements for libtsan --------------------------------------------------------------------

using sim::access_inline;
using sim::hook;
using sim::Kind;

#define SIM_LOAD(name, n, aligned) \
  void name##n(void* p) { hook<n, Kind::load, aligned>(p); }
#define SIM_STORE(name, n, aligned) \
  void name##n(void* p) { hook<n, Kind::store, aligned>(p); }
#define SIM_BOTH(name, n, aligned)    \
  void name##n(void* p) {             \
    hook<n, Kind::load, aligned>(p);  \
    hook<n, Kind::store, aligned>(p); \
  }
#define SIM_HOOKS(n)                                   \
  SIM_LOAD(__tsan_read, n, true)                       \
  SIM_LOAD(__tsan_volatile_read, n, true)              \
  SIM_LOAD(__tsan_unaligned_read, n, false)            \
  SIM_LOAD(__tsan_unaligned_volatile_read, n, false)   \
  SIM_STORE(__tsan_write, n, true)                     \
  SIM_STORE(__tsan_volatile_write, n, true)            \
  SIM_STORE(__tsan_unaligned_write, n, false)          \
  SIM_STORE(__tsan_unaligned_volatile_write, n, false) \
  SIM_BOTH(__tsan_read_write, n, true)                 \
  SIM_BOTH(__tsan_unaligned_read_write, n, false)

// Atomics of host code in the same file (std::shared_ptr, ...): perform the operation.
#define SIM_CHANGE(bits, T, name)                           \
  T __tsan_atomic##bits##_##name(volatile T* p, T v, int) { \
    return __atomic_##name(p, v, __ATOMIC_SEQ_CST);         \
  }
#define SIM_COMPARE(bits, T, name, weak)                                                   \
  int __tsan_atomic##bits##_compare_exchange_##name(volatile T* p, T* e, T v, int, int) {  \
    return __atomic_compare_exchange_n(p, e, v, weak, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
  }
#define SIM_ATOMICS(bits, T)                                  \
  T __tsan_atomic##bits##_load(const volatile T* p, int) {    \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);              \
  }                                                           \
  void __tsan_atomic##bits##_store(volatile T* p, T v, int) { \
    __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                 \
  }                                                           \
  T __tsan_atomic##bits##_exchange(volatile T* p, T v, int) { \
    return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);       \
  }                                                           \
  SIM_CHANGE(bits, T, fetch_add)                              \
  SIM_CHANGE(bits, T, fetch_sub)                              \
  SIM_CHANGE(bits, T, fetch_and)                              \
  SIM_CHANGE(bits, T, fetch_or)                               \
  SIM_CHANGE(bits, T, fetch_xor)                              \
  SIM_COMPARE(bits, T, strong, false)                         \
  SIM_COMPARE(bits, T, weak, true)

extern "C" {
SIM_HOOKS(1)
SIM_HOOKS(2)
SIM_HOOKS(4)
SIM_HOOKS(8)
SIM_HOOKS(16)
void __tsan_read_range(void* p, size_t n) {
  access_inline(p, static_cast<unsigned>(n), Kind::load, SIM_PC, false);
}
void __tsan_write_range(void* p, size_t n) {
  access_inline(p, static_cast<unsigned>(n), Kind::store, SIM_PC, false);
}
void __tsan_func_entry(void* caller) {
  sim::Block& b = *sim::self;
  b.copied_at = !b.host && sim::is_struct_copy(SIM_PC) ? caller : nullptr;
}
void __tsan_func_exit() { sim::self->copied_at = nullptr; }
void __tsan_init() {}
void __tsan_vptr_read(void*) {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_ignore_thread_begin() {}
void __tsan_ignore_thread_end() {}
SIM_ATOMICS(8, uint8_t)
SIM_ATOMICS(16, uint16_t)
SIM_ATOMICS(32, uint32_t)
SIM_ATOMICS(64, uint64_t)
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) {}
}

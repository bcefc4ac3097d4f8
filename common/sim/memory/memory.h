/// \file
/// The owner of an address: simulated device memory (HBM), a block's shared memory, a CUDA thread's
/// stack, or the host. All loads and stores of kernel code arrive at access().
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/counts/trace.h"

namespace sim {

struct Block;

enum class Kind : uint8_t { load, store, atomic };
enum class Space : uint8_t { hbm, shared };
/// The source of an access: a thread's load or store, its row of an ldmatrix or stmatrix, its
/// cp.async, its mbarrier operation, or a copy engine (TMA), which makes no warp request.
enum class By : uint8_t { thread, matrix, copy, mbarrier, engine };

/// One access by one CUDA thread.
struct Access {
  uint64_t at;    ///< byte offset: in the HBM window, or in the shared memory of `home`
  uint32_t size;  ///< bytes
  Kind kind;
  Space space;
  uint16_t buffer;  ///< HBM: number of the buffer; 0 in shared memory
  const void* pc;   ///< return address in the kernel's code
  Block* home;      ///< shared: the owner (inside a cluster perhaps another block)
  By by = By::thread;
  bool hooked = false;  ///< reported by the compiler's hook: a store follows at once
  /// Is it aligned to its size by its type, so that one instruction does it? Else a struct.
  bool aligned = true;
};

/// An access by a copy engine or tensor core to `size` bytes of a block's shared memory.
inline Access engine_access(Block& home, uint64_t at, size_t size, Kind kind, const void* pc) {
  return {.at = at,
          .size = static_cast<uint32_t>(size),
          .kind = kind,
          .space = Space::shared,
          .buffer = 0,
          .pc = pc,
          .home = &home,
          .by = By::engine};
}

// --- device memory: one address window, so "is this HBM?" is a subtraction and a comparison ------

// Low enough for 39-bit user space (some aarch64), away from Linux's programs and libraries.
#ifdef FA_ADDRESS_SANITIZER  // it uses those addresses itself
constexpr uint64_t kHbmBase = 0x2000'0000'0000;
#else
constexpr uint64_t kHbmBase = 0x20'0000'0000;
#endif
constexpr uint64_t kHbmSpan = 192ull << 30;
constexpr uint64_t kPage = 64 * 1024;
constexpr size_t kMaxBuffers = 65535;

struct BufferInfo {
  uint64_t begin = 0, end = 0;  ///< offsets in the window; equal after cudaFree
  std::string name;
  bool live = false;
  fa::Layout layout;      ///< for a trace; no columns: unknown
  bool for_host = false;  ///< managed or pinned: host code may also touch it
};
extern uint16_t page_owner[kHbmSpan / kPage];  ///< 0: none (as for guard pages)
extern BufferInfo buffers[kMaxBuffers];        ///< [0] is none
size_t buffer_count();                         ///< one past the largest buffer number ever used

/// Shadow memory has an entry per word, with a bit per byte.
constexpr unsigned kWord = 4;
constexpr uint8_t kAllBytes = 15;
/// The bytes of word number `word` that lie in [offset, offset + n).
constexpr uint8_t bytes_of_word(uint64_t offset, uint64_t n, uint64_t word) {
  const uint64_t begin = word * kWord;
  unsigned bits = kAllBytes;
  if (offset > begin) bits &= unsigned{kAllBytes} << (offset - begin);
  if (offset + n < begin + kWord) bits &= unsigned{kAllBytes} >> (begin + kWord - offset - n);
  return static_cast<uint8_t>(bits);
}
/// Marks the bytes of a copy to [offset, offset + n) as written, as access() does those of stores.
void mark_written(uint64_t offset, size_t n);
extern uint8_t* hbm_written;  ///< by word: its written bytes

/// A program's variables of one kind (device_memory.h). Its text uses them at `begin`, among the
/// host's variables; device memory has the same bytes at `place`.
struct Variables {
  enum Kind : uint8_t { device, constant, managed } kind;
  bool fixed;  ///< const: the host has the same values
  uintptr_t begin, size, place;
};
extern std::vector<Variables> variables;
extern uintptr_t variables_begin, variables_size;  ///< of all of them
inline const Variables* variables_at(uintptr_t address) {
  if (address - variables_begin >= variables_size) return nullptr;
  for (const Variables& v : variables) {
    if (address - v.begin < v.size) return &v;
  }
  return nullptr;
}

/// Set in host addresses passed to a kernel (device_memory.h): invalid on all processors.
constexpr uintptr_t kFromHost = uintptr_t{1} << 54;
bool is_from_host(uintptr_t address);
/// The current thread uses a host address or host memory: abandons the launch.
[[noreturn]] void uses_host_address(uintptr_t address, const std::string& does, const void* pc);
/// Returns true, once, if the last launch ended by using host memory: a program may continue.
bool used_host_address();

// --- entry point of every access -----------------------------------------------------------------

/// Classifies, checks bounds, counts, and tells the observers. `pc` names the source line. Called
/// by the compiler's hooks and by instructions that touch memory for a kernel. An access of a copy
/// engine may have any number of bytes.
void access(const void* p, unsigned size, Kind kind, const void* pc, By by = By::thread);

/// Are these bytes of `home`'s shared memory in one array?
bool in_shared(const Block& home, uint64_t offset, size_t bytes);

}  // namespace sim

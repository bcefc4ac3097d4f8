// cudaMalloc and friends: buffers in one window of address space, with a guard page behind each.
// Addresses are not used again for a long while, so that use after cudaFree is found.
#include <sys/mman.h>

#include <algorithm>
#include <deque>

#include "common/dialect/errors.h"
#include "common/sim/block.h"
#include "common/sim/cuda_vocabulary.h"
#include "common/sim/memory/memory.h"
#include "common/sim/observers/observer.h"
#include "common/sim/observers/trace.h"
#include "common/sim/recording.h"

namespace sim {

uint16_t page_owner[kHbmSpan / kPage];
BufferInfo buffers[kMaxBuffers];
uint8_t* hbm_written = nullptr;

namespace {

constexpr size_t kRemembered = 1000;  // freed buffers whose numbers are not yet used again

uint64_t top = kPage;        // the next fresh offset
uint64_t highest = kPage;    // the largest offset ever used
uint16_t next_number = 1;    // [0] is nobody
std::deque<uint16_t> freed;  // oldest first

uint64_t offset_of(const void* p) { return reinterpret_cast<uintptr_t>(p) - kHbmBase; }

BufferInfo* owner(const void* p) {
  const uint64_t offset = offset_of(p);
  return offset < kHbmSpan && page_owner[offset / kPage] ? &buffers[page_owner[offset / kPage]]
                                                         : nullptr;
}

fa::ResourceError no_address_space() {
  return fa::ResourceError(
      "cannot reserve address space for the simulated device memory: 'ulimit -v' must allow more "
      "than " +
      std::to_string((kHbmSpan + kHbmSpan / 4) >> 30) + " GiB");
}

void reserve_window() {
  void* wanted = reinterpret_cast<void*>(kHbmBase);
  if (mmap(wanted, kHbmSpan, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) != wanted) {
    throw no_address_space();
  }
  void* written = mmap(nullptr, kHbmSpan / 4, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (written == MAP_FAILED) {
    munmap(wanted, kHbmSpan);
    throw no_address_space();
  }
  hbm_written = static_cast<uint8_t*>(written);
}

void forget(uint16_t number) {
  std::replace(page_owner, page_owner + highest / kPage + 1, number, uint16_t{0});
}

uint16_t take_number() {
  if (freed.size() > kRemembered) {
    const uint16_t number = freed.front();
    freed.pop_front();
    forget(number);
    return number;
  }
  if (next_number == kMaxBuffers) throw fa::ResourceError("too many device buffers at a time");
  return next_number++;
}

// First run of free pages at or above `from`, with a free one on either side; 0: there is none.
uint64_t find_free(uint64_t from, uint64_t pages) {
  uint64_t run = 0;
  for (uint64_t page = from / kPage - 1; page < kHbmSpan / kPage; ++page) {
    run = page_owner[page] ? 0 : run + 1;
    if (run == pages + 2) return (page - pages) * kPage;
  }
  return 0;
}

// First run of free pages, from `top` on, once around.
uint64_t take_pages(uint64_t pages) {
  uint64_t offset = find_free(top, pages);
  if (offset == 0) {  // around: the addresses of freed buffers are used again
    for (uint64_t page = 0; page <= highest / kPage; ++page) {
      if (!buffers[page_owner[page]].live) page_owner[page] = 0;
    }
    offset = find_free(kPage, pages);
    if (offset == 0) return 0;
  }
  top = offset + (pages + 1) * kPage;
  highest = std::max(highest, top);
  return offset;
}

void count_copy(const char* what, const void* p, size_t bytes, bool write) {
  fa::Counts* counts = recording();
  BufferInfo* b = owner(p);
  if (!counts || !b) return;
  fa::Bytes moved;
  (write ? moved.write : moved.read) = bytes;
  counts->buffers[b->name].bytes += moved;
  fa::KernelCount row;
  row.name = what;
  row.buffer = b->name;
  row.bytes = moved;
  counts->kernels.push_back(row);
  if (options().l2_bytes > 0) l2_copy(offset_of(p), bytes, write);
  if (options().trace) {
    trace_copy(what, static_cast<uint16_t>(b - buffers), offset_of(p), bytes, write);
  }
}

void require_inside(const char* what, const void* p, size_t bytes) {
  BufferInfo* b = owner(p);
  const uint64_t offset = offset_of(p);
  if (!b || !b->live || offset < b->begin || offset + bytes > b->end) {
    fail(FaultKind::out_of_bounds,
         std::string(what) + ": " + std::to_string(bytes) +
             " bytes do not lie inside one device buffer" +
             (b ? " (" + b->name + ", " + std::to_string(b->end - b->begin) + " bytes)" : ""));
  }
}

bool in_window(const void* p) { return offset_of(p) < kHbmSpan; }

// A GPU refuses a copy in the wrong direction.
void require_end(const char* end, const void* p, bool device, const char* direction) {
  if (in_window(p) == device) return;
  fail(FaultKind::refused, std::string("cudaMemcpy with ") + direction + ": the " + end + " is " +
                               (device ? "host" : "device") + " memory");
}

void require_direction(const void* dst, const void* src, cudaMemcpyKind kind) {
  static const char* const names[] = {"cudaMemcpyHostToHost", "cudaMemcpyHostToDevice",
                                      "cudaMemcpyDeviceToHost", "cudaMemcpyDeviceToDevice"};
  require_end("destination", dst,
              kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice, names[kind]);
  require_end("source", src, kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice,
              names[kind]);
}

}  // namespace

size_t buffer_count() { return next_number; }
uint64_t hbm_top() { return highest; }

static void mark(uint64_t offset, size_t n, bool written) {
  if (n == 0) return;
  const uint64_t first = offset / kWord, last = (offset + n - 1) / kWord;
  const auto change = [&](uint64_t word) {
    const uint8_t bits = bytes_of_word(offset, n, word);
    hbm_written[word] = written ? hbm_written[word] | bits : hbm_written[word] & ~bits;
  };
  change(first);
  change(last);
  if (last > first + 1) {
    std::memset(hbm_written + first + 1, written ? kAllBytes : 0, last - first - 1);
  }
}

void mark_written(uint64_t offset, size_t n) { mark(offset, n, true); }

void name_buffer(const void* p, const std::string& name) {
  if (BufferInfo* b = owner(p)) b->name = name;
}

void shape_buffer(const void* p, const fa::Layout& layout) {
  if (BufferInfo* b = owner(p)) b->layout = layout;
}

void poison(void* p, size_t bytes) {
  require_inside("poison", p, bytes);
  std::memset(p, 0xff, bytes);
  mark(offset_of(p), bytes, false);
}

}  // namespace sim

cudaError_t cudaMalloc(void** out, size_t bytes) {
  using namespace sim;
  if (!hbm_written) reserve_window();
  *out = nullptr;
  if (bytes > free_bytes()) return cudaErrorMemoryAllocation;
  const uint64_t pages = (bytes + kPage - 1) / kPage;
  const uint64_t offset = take_pages(pages);
  if (offset == 0) return cudaErrorMemoryAllocation;
  void* p = reinterpret_cast<void*>(kHbmBase + offset);
  if (mprotect(p, pages * kPage, PROT_READ | PROT_WRITE) != 0) return cudaErrorMemoryAllocation;
  const uint16_t number = take_number();
  buffers[number] = {offset, offset + bytes, "buffer" + std::to_string(number), true, {}};
  std::fill_n(page_owner + offset / kPage, pages, number);
  *out = p;
  return cudaSuccess;
}

cudaError_t cudaFree(void* p) {
  using namespace sim;
  BufferInfo* b = owner(p);
  if (!p) return cudaSuccess;
  if (!b || !b->live || offset_of(p) != b->begin) {
    fail(FaultKind::refused,
         "cudaFree of an address that cudaMalloc did not return, or freed twice");
  }
  madvise(p, b->end - b->begin, MADV_DONTNEED);
  // Else each buffer of the past keeps a mapping of its own, of which a process has 65,530.
  mprotect(p, (b->end - b->begin + kPage - 1) / kPage * kPage, PROT_NONE);
  madvise(hbm_written + b->begin / 4 / 4096 * 4096, (b->end - b->begin) / 4 + 4096, MADV_DONTNEED);
  b->live = false;
  b->end = b->begin;
  freed.push_back(static_cast<uint16_t>(b - buffers));
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind) {
  using namespace sim;
  if (bytes == 0) return cudaSuccess;
  require_direction(dst, src, kind);
  if (in_window(dst)) require_inside("cudaMemcpy", dst, bytes);
  if (in_window(src)) require_inside("cudaMemcpy", src, bytes);
  std::memcpy(dst, src, bytes);
  if (in_window(dst)) mark_written(offset_of(dst), bytes);
  if (kind == cudaMemcpyDeviceToDevice) {
    count_copy("cudaMemcpy", src, bytes, false);
    count_copy("cudaMemcpy", dst, bytes, true);
  }
  return cudaSuccess;
}

cudaError_t cudaMemset(void* p, int value, size_t bytes) {
  using namespace sim;
  if (bytes == 0) return cudaSuccess;
  require_inside("cudaMemset", p, bytes);
  std::memset(p, value, bytes);
  mark_written(offset_of(p), bytes);
  count_copy("cudaMemset", p, bytes, true);
  return cudaSuccess;
}

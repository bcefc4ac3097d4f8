// cudaMalloc and friends: buffers with guard pages, at addresses that are reused late.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <deque>

#include "common/dialect/cuda_vocabulary.h"
#include "common/dialect/errors.h"
#include "common/sim/block.h"
#include "common/sim/memory/device_memory.h"
#include "common/sim/memory/memory.h"
#include "common/sim/messages/symbols.h"
#include "common/sim/observer.h"
#include "common/sim/sim.h"

namespace sim {

uint16_t page_owner[kHbmSpan / kPage];
BufferInfo buffers[kMaxBuffers];
uint8_t* hbm_written = nullptr;

namespace {

constexpr size_t kRemembered = 1000;  // freed buffers whose numbers are not yet reused
// Longer copies hold plain data: no word of them is taken for an address of the program.
constexpr size_t kObjects = 64 * 1024;

uint64_t top = kPage;            // the next fresh offset
uint64_t highest = kPage;        // the largest offset ever used
uint16_t next_number = 1;        // [0] is no buffer
std::deque<uint16_t> freed;      // oldest first
uint64_t pages_of[kMaxBuffers];  // freed buffers included

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
  uint16_t* first = page_owner + buffers[number].begin / kPage;
  std::replace(first, first + pages_of[number], number, uint16_t{0});
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

// The first run of free pages at or above `from` with a free page on either side; 0: none.
uint64_t find_free(uint64_t from, uint64_t pages) {
  uint64_t run = 0;
  for (uint64_t page = from / kPage - 1; page < kHbmSpan / kPage; ++page) {
    run = page_owner[page] ? 0 : run + 1;
    if (run == pages + 2) return (page - pages) * kPage;
  }
  return 0;
}

// The first run of free pages from `top` on, wrapping around once.
uint64_t take_pages(uint64_t pages) {
  uint64_t offset = find_free(top, pages);
  if (offset == 0) {  // around: addresses of freed buffers are reused
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
  for (Watcher* w : watchers()) {
    w->copy(what, static_cast<uint16_t>(b - buffers), offset_of(p), bytes, write);
  }
}

void require_inside(const char* what, const void* p, size_t bytes) {
  BufferInfo* b = owner(p);
  const uint64_t offset = offset_of(p);
  if (offset >= kHbmSpan) {
    fail(FaultKind::refused, std::string(what) + ": " + std::to_string(bytes) +
                                 " bytes in host memory (the address of a pointer?)");
  }
  if (b && !b->live) {
    fail(FaultKind::out_of_bounds, std::string(what) + ": " + std::to_string(bytes) +
                                       " bytes of buffer " + b->name + ", which is freed");
  }
  if (!b || offset < b->begin || offset + bytes > b->end) {
    fail(FaultKind::out_of_bounds,
         std::string(what) + ": " + std::to_string(bytes) +
             " bytes do not lie inside one device buffer" +
             (b ? " (" + b->name + ", " + std::to_string(b->end - b->begin) + " bytes)" : ""));
  }
}

bool in_window(const void* p) { return offset_of(p) < kHbmSpan; }

[[noreturn]] void refuse_variable(const std::string& call, const char* end, const void* p) {
  fail(FaultKind::refused,
       call + ": the " + end + " is the host's address of " + variable_name(p) +
           ", a variable of the device; cudaMemcpyToSymbol, cudaMemcpyFromSymbol and "
           "cudaGetSymbolAddress find the device's");
}

// A managed variable's address has a twin in the window; the host's address of others is useless.
template <class P>
P resolved(const char* call, const char* end, P p) {
  const Variables* v = variables_at(reinterpret_cast<uintptr_t>(p));
  if (!v) return p;
  if (v->kind != Variables::managed) refuse_variable(call, end, p);
  return static_cast<P>(device_address(p));
}

// A GPU refuses a copy in the wrong direction.
void require_end(const char* end, const void* p, bool device, const char* direction) {
  if (is_device(p) == device) return;
  if (is_for_host(p)) return;
  fail(FaultKind::refused, std::string("cudaMemcpy with ") + direction + ": the " + end + " is " +
                               (device ? "host" : "device") + " memory");
}

void require_direction(const void* to, const void* from, Way way) {
  static const char* const names[] = {"cudaMemcpyHostToHost", "cudaMemcpyHostToDevice",
                                      "cudaMemcpyDeviceToHost", "cudaMemcpyDeviceToDevice"};
  if (way == Way::any) return;
  const char* name = names[static_cast<int>(way)];
  require_end("destination", to, way == Way::host_to_device || way == Way::device_to_device, name);
  require_end("source", from, way == Way::device_to_host || way == Way::device_to_device, name);
}

}  // namespace

size_t buffer_count() { return next_number; }

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

// --- the runtime's calls -------------------------------------------------------------------------

void* allocate(size_t bytes) {
  if (!hbm_written) reserve_window();
  if (bytes > free_bytes()) return nullptr;
  const uint64_t pages = (bytes + kPage - 1) / kPage;
  const uint64_t offset = take_pages(pages);
  if (offset == 0) return nullptr;
  void* p = reinterpret_cast<void*>(kHbmBase + offset);
  if (mprotect(p, pages * kPage, PROT_READ | PROT_WRITE) != 0) return nullptr;
  const uint16_t number = take_number();
  buffers[number] = {offset, offset + bytes, "buffer" + std::to_string(number), true, {}, false};
  pages_of[number] = pages;
  std::fill_n(page_owner + offset / kPage, pages, number);
  return p;
}

void release(void* p) {
  BufferInfo* b = owner(p);
  if (!p) return;
  if (!b || !b->live || offset_of(p) != b->begin) {
    fail(FaultKind::refused,
         "cudaFree of an address that cudaMalloc did not return, or freed twice");
  }
  madvise(p, b->end - b->begin, MADV_DONTNEED);
  // Else each freed buffer keeps a separate mapping, of which a process has 65,530.
  mprotect(p, (b->end - b->begin + kPage - 1) / kPage * kPage, PROT_NONE);
  madvise(hbm_written + b->begin / 4 / 4096 * 4096, (b->end - b->begin) / 4 + 4096, MADV_DONTNEED);
  b->live = false;
  b->end = b->begin;
  freed.push_back(static_cast<uint16_t>(b - buffers));
}

void copy(void* to, const void* from, size_t bytes, Way way) {
  if (bytes == 0) return;
  to = resolved("cudaMemcpy", "destination", to);
  from = resolved("cudaMemcpy", "source", from);
  require_direction(to, from, way);
  if (in_window(to)) require_inside("cudaMemcpy", to, bytes);
  if (in_window(from)) require_inside("cudaMemcpy", from, bytes);
  std::memmove(to, from, bytes);
  if (bytes <= kObjects) {
    const bool to_host = !in_window(to) || is_for_host(to);
    if (!to_host && (!in_window(from) || (way == Way::host_to_device && is_for_host(from)))) {
      mark_host_addresses(to, bytes);
    } else if (to_host && in_window(from) && !is_for_host(from)) {
      take_device_addresses(to, bytes);
    }
  }
  if (in_window(to) && in_window(from) && !is_for_host(to) &&
      (offset_of(to) | offset_of(from) | bytes) % kWord == 0) {
    std::memmove(hbm_written + offset_of(to) / kWord, hbm_written + offset_of(from) / kWord,
                 bytes / kWord);  // unwritten bytes stay unwritten
  } else if (in_window(to)) {
    mark_written(offset_of(to), bytes);
  }
  if (way == Way::device_to_device || (way == Way::any && is_device(to) && is_device(from))) {
    count_copy("cudaMemcpy", from, bytes, false);
    count_copy("cudaMemcpy", to, bytes, true);
  }
}

void fill(void* p, int value, size_t bytes) {
  if (bytes == 0) return;
  p = resolved("cudaMemset", "memory", p);
  require_inside("cudaMemset", p, bytes);
  std::memset(p, value, bytes);
  mark_written(offset_of(p), bytes);
  count_copy("cudaMemset", p, bytes, true);
}

void share_with_host(void* p) {
  BufferInfo& b = *owner(p);
  b.for_host = true;
  mark_written(b.begin, b.end - b.begin);
}

bool is_for_host(const void* p) {
  const Variables* v = variables_at(reinterpret_cast<uintptr_t>(p));
  const BufferInfo* b = owner(p);
  return (v && v->kind == Variables::managed) || (b && b->for_host);
}

// --- variables -----------------------------------------------------------------------------------

std::vector<Variables> variables;
uintptr_t variables_begin = 0, variables_size = 0;

bool is_device(const void* p) {
  const Variables* v = variables_at(reinterpret_cast<uintptr_t>(p));
  return in_window(p) || (v && v->kind == Variables::managed);
}

void* device_address(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  const Variables* v = variables_at(address);
  return v ? reinterpret_cast<void*>(v->place + (address - v->begin)) : nullptr;
}

// The pages of the variables become a file's, which device memory maps as well.
void place_variables(std::span<const Section> sections) {
  static const char* const names[] = {"__device__ variables", "__constant__ variables",
                                      "__managed__ variables"};
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto number = [](const char* p) { return reinterpret_cast<uintptr_t>(p); };
  uintptr_t begin = UINTPTR_MAX, end = 0;
  for (const Section& s : sections) {
    if (s.begin == s.end) continue;
    begin = std::min(begin, number(s.begin));
    end = std::max(end, number(s.end));
  }
  if (end == 0) return;
  const uintptr_t first = begin / page * page, bytes = (end - first + page - 1) / page * page;
  const auto require = [](bool right) {
    if (!right) throw fa::ResourceError("no room for the program's variables in device memory");
  };
  const int file = memfd_create("variables", MFD_CLOEXEC);
  require(file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0);
  for (uintptr_t at = 0; at < bytes; at += page) {
    const char* p = reinterpret_cast<const char*>(first + at);
    if (std::any_of(p, p + page, [](char c) { return c != 0; })) {
      require(pwrite(file, p, page, static_cast<off_t>(at)) == static_cast<ssize_t>(page));
    }
  }
  const auto map = [&](uintptr_t to, uintptr_t at, size_t n) {
    void* wanted = reinterpret_cast<void*>(to);
    require(mmap(wanted, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file,
                 static_cast<off_t>(at)) == wanted);
  };
  map(first, 0, bytes);
  for (const Section& s : sections) {
    if (s.begin == s.end) continue;
    const uintptr_t beside = number(s.begin) % page, size = number(s.end) - number(s.begin);
    auto* p = static_cast<char*>(allocate(beside + size));
    require(p);
    map(number(p), number(s.begin) - beside - first, (beside + size + page - 1) / page * page);
    BufferInfo& b = *owner(p);
    b.name = names[s.kind];
    b.begin += beside;
    b.for_host = s.kind == Variables::managed;
    mark_written(b.begin, size);  // with zeros, unless initialised
    variables.push_back({s.kind, s.fixed, number(s.begin), size, number(p) + beside});
  }
  close(file);
  variables_begin = begin;
  variables_size = end - begin;
}

}  // namespace sim

cudaError_t cudaMalloc(void** out, size_t bytes) {
  *out = sim::allocate(bytes);
  return *out ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFree(void* p) {
  sim::release(p);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind) {
  sim::copy(dst, src, bytes, static_cast<sim::Way>(kind));
  return cudaSuccess;
}

cudaError_t cudaMemset(void* p, int value, size_t bytes) {
  sim::fill(p, value, bytes);
  return cudaSuccess;
}

// Unwritten bytes that the host copies back, under --analyse. A copy of unwritten bytes only is a
// finding, as for compute-sanitizer's initcheck. Some may be the unused end of a buffer: they are a
// finding when host code reads them, as far as the compiler's hooks see that code.
#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "common/counts/format.h"
#include "common/sim/any/session.h"
#include "common/sim/block.h"
#include "common/sim/memory/device_memory.h"
#include "common/sim/messages/symbols.h"

namespace sim::any {

namespace {

constexpr unsigned char kFill = 0xff;  // NaN in every float type
// Gaps in structs are shorter than kGap. A single run may be an omitted first or last element.
constexpr uint64_t kGap = 8, kStruct = 64;

/// Host memory that a copy has filled with unwritten bytes.
struct Garbage {
  uintptr_t end;
  uint64_t first;  ///< of the buffer's bytes
  std::string buffer;
  const void* copied;
};
std::map<uintptr_t, Garbage>& garbage() {  // by the first address
  static auto& all = *new std::map<uintptr_t, Garbage>;
  return all;
}

void forget(uintptr_t begin, uintptr_t end) {
  auto it = garbage().lower_bound(begin);
  if (it != garbage().begin() && std::prev(it)->second.end > begin) --it;
  while (it != garbage().end() && it->first < end) it = garbage().erase(it);
}

}  // namespace

// The memory may be reused by now; then it usually has other values.
void look_at_unwritten(uintptr_t address, unsigned size, Kind kind, const void* pc) {
  std::lock_guard lock(device_in_use());
  if (kind == Kind::store) return forget(address, address + size);
  auto it = garbage().upper_bound(address + size - 1);
  if (it == garbage().begin() || (--it)->second.end <= address) return;
  const Garbage g = it->second;
  const uintptr_t at = std::max(address, it->first), end = std::min(address + size, g.end);
  const auto* p = reinterpret_cast<const unsigned char*>(at);
  if (std::any_of(p, p + (end - at), [](unsigned char c) { return c != kFill; })) return;
  note_finding(
      fa::FaultKind::uninitialised,
      fmt::format(
          "uninitialised device memory: host code at {} reads byte {} of {}, copied at {}, which "
          "nothing has written",
          source_of(pc), g.first + (at - it->first), g.buffer, source_of(g.copied)));
  std::erase_if(garbage(), [&](const auto& other) { return other.second.copied == g.copied; });
}

void look_at_copy(const void* to, size_t to_pitch, const void* from, size_t from_pitch,
                  size_t width, size_t height, const void* pc) {
  const uint64_t source = reinterpret_cast<uintptr_t>(from) - kHbmBase;
  Session& s = session();
  if (!s.wishes.analyse || s.launch_refused || is_device(to)) return;
  const BufferInfo& buffer = buffers[source < kHbmSpan ? page_owner[source / kPage] : 0];
  const auto is_written = [](uint64_t at) { return hbm_written[at / kWord] >> at % kWord & 1; };
  std::map<uintptr_t, Garbage> found;
  uint64_t unwritten = 0, runs = 0;
  for (size_t row = 0; row < height; ++row) {
    const auto host = reinterpret_cast<uintptr_t>(to) + row * to_pitch;
    const uint64_t begin = source + row * from_pitch, end = begin + width;
    forget(host, host + width);
    for (uint64_t at = begin; source < kHbmSpan && at < end; ++at) {
      if (hbm_written[at / kWord] == kAllBytes) at |= kWord - 1;
      if (is_written(at)) continue;
      const uint64_t first = at;
      while (at < end && !is_written(at)) ++at;
      unwritten += at - first;
      if (runs++ == 0 || at - first >= kGap) {
        found[host + (first - begin)] = {host + (at - begin), first - buffer.begin, buffer.name,
                                         pc};
      }
    }
  }
  if (unwritten == 0) return;
  const uint64_t bytes = width * height;
  if (unwritten == bytes) {
    note_finding(
        fa::FaultKind::uninitialised,
        fmt::format(
            "uninitialised device memory: the host copies {} bytes of {} at {}, which nothing has "
            "written",
            fa::grouped(bytes), buffer.name, source_of(pc)));
    return;
  }
  const auto& [first, run] = *found.begin();
  const uint64_t past = source - buffer.begin + bytes;  // of one row
  const bool is_end = runs == 1 && bytes > kStruct &&
                      (run.first == source - buffer.begin || run.first + unwritten == past);
  if (run.end - first < kGap && !is_end) found.erase(found.begin());
  for (const auto& [address, part] : found) {
    std::memset(reinterpret_cast<void*>(address), kFill, part.end - address);
    garbage()[address] = part;
    options().on_host_access = look_at_host_access;
    self->stack_size = 0;  // else the host's accesses are handled like those to a thread's stack
  }
}

}  // namespace sim::any

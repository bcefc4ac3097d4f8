// Host addresses that are passed to kernels, where they have no meaning.
#include <link.h>

#include <atomic>
#include <map>
#include <set>

#include "common/sim/block.h"
#include "common/sim/memory/device_memory.h"
#include "common/sim/messages/messages.h"

namespace sim {

namespace {

struct Span {
  uintptr_t begin = 0, size = 0;
  bool hold(uintptr_t address) const { return address - begin < size; }
};
struct Program {
  Span all;
  std::vector<Span> code;
};
const Program& program() {
  static const Program p = [] {
    Program found;
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* data) {
          if (!is_own_object(*info)) return 0;
          auto& program = *static_cast<Program*>(data);
          uintptr_t begin = UINTPTR_MAX, end = 0;
          for (int k = 0; k < info->dlpi_phnum; ++k) {
            const auto& part = info->dlpi_phdr[k];
            if (part.p_type != PT_LOAD) continue;
            const uintptr_t at = info->dlpi_addr + part.p_vaddr;
            begin = std::min(begin, at);
            end = std::max(end, at + part.p_memsz);
            if (part.p_flags & PF_X) program.code.push_back({at, part.p_memsz});
          }
          program.all = {begin, end - begin};
          return 1;
        },
        &found);
    return found;
  }();
  return p;
}

bool is_code(uintptr_t address) {
  const auto& code = program().code;
  return std::any_of(code.begin(), code.end(), [=](const Span& r) { return r.hold(address); });
}

bool is_table_of_functions(uintptr_t address) {
  static auto& known = *new std::map<uintptr_t, bool>;
  const auto [it, fresh] = known.try_emplace(address);
  if (fresh) {
    it->second = variable_name(reinterpret_cast<const void*>(address)).starts_with("vtable for ");
  }
  return it->second;
}

bool watched = false;
Span plain;  // only words in this range are examined
std::set<uintptr_t>& of_the_device() {
  static auto& all = *new std::set<uintptr_t>;
  return all;
}
std::atomic<bool> used{false};

void for_each_word(void* bytes, size_t n, auto&& change) {
  auto* word = static_cast<uint64_t*>(bytes);
  if (!watched || reinterpret_cast<uintptr_t>(bytes) % sizeof *word) return;
  for (const auto* end = word + n / sizeof *word; word != end; ++word) {
    if (plain.hold(*word & ~kFromHost)) [[unlikely]]
      *word = change(*word);
  }
}

}  // namespace

void watch_host_addresses() {
  watched = true;
  plain = program().all;
}

void mark_host_addresses(void* bytes, size_t n) {
  for_each_word(bytes, n, [](uintptr_t word) {
    const Variables* v = variables_at(word);
    const bool hosts =
        v ? v->kind != Variables::managed : is_code(word) || is_table_of_functions(word);
    return hosts && !of_the_device().contains(word) ? word | kFromHost : word;
  });
}

void take_device_addresses(void* bytes, size_t n) {
  for_each_word(bytes, n, [](uintptr_t word) {
    if (word & kFromHost) return word & ~kFromHost;
    if (const Variables* v = variables_at(word)) {
      return v->kind == Variables::managed ? word : v->place + (word - v->begin);
    }
    if (is_code(word) || is_table_of_functions(word)) of_the_device().insert(word);
    return word;
  });
}

bool is_from_host(uintptr_t address) {
  return address & kFromHost && plain.hold(address & ~kFromHost);
}

void uses_host_address(uintptr_t address, const std::string& does, const void* pc) {
  const uintptr_t real = address & ~kFromHost;
  const std::string who = here() + ": " + does + " at " + source_of(pc);
  used = true;
  if (real == address) {
    fail(FaultKind::refused,
         who +
             " of host memory; copy it to device memory first (what a kernel allocates itself is "
             "not supported)");
  }
  if (is_code(real)) {
    fail(FaultKind::refused,
         here() + ": call at " + source_of(pc) +
             " by a function's address that the host took; on a GPU the function has another, "
             "which device code can take");
  }
  const std::string name = variable_name(reinterpret_cast<const void*>(real));
  if (variables_at(real)) {
    fail(FaultKind::refused,
         who + " of " + name + " by the host's address; cudaGetSymbolAddress gives the device's");
  }
  fail(FaultKind::refused,
       here() + ": a virtual function of an object that the host made is called at " +
           source_of(pc) + " (" + name + "); make the object in a kernel");
}

bool used_host_address() { return used.exchange(false); }

}  // namespace sim

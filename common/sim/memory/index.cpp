// Indices beyond a declared array. g++ -fsanitize=bounds compares each index with the array's type
// and calls the function at the end of this file, which replaces libubsan. It covers arrays that a
// thread keeps on the stack or in registers, where no hook reports an access.
#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "common/sim/block.h"
#include "common/sim/messages/messages.h"
#include "common/sim/messages/struct_fields.h"

namespace sim {

namespace {

// The compiler's description of a source location, in libubsan's format.
struct Type {
  uint16_t kind, info;  // of an integer, info: bit 0: signed
  char name[1];         // "'float [4][8]'"
};
struct Indexing {
  const char* file;
  uint32_t line, column;  // of the index's ]
  const Type *array, *index;
};
constexpr uint32_t kRow = ~0u;  // in place of the column: crosses into the next row

std::string line_of(const Indexing& at) {
  std::ifstream file(at.file);
  std::string text;
  for (uint32_t line = 0; line < at.line && std::getline(file, text);) ++line;
  return file ? text : "";
}

// "float [4][8]": 4, 8.
std::vector<uint64_t> dimensions_of(const std::string& type) {
  std::vector<uint64_t> counts;
  for (size_t open = type.find('['); open != type.npos; open = type.find('[', open + 1)) {
    counts.push_back(std::strtoull(type.c_str() + open + 1, nullptr, 10));
  }
  return counts;
}

// Does one of the pairs of brackets that begin at line[open] end at the column?
bool ends_at(const std::string& line, size_t open, size_t column) {
  int depth = 0;
  for (size_t i = open; i < line.size(); ++i) {
    depth += (line[i] == '[') - (line[i] == ']');
    if (depth == 0 && line[i] != ']' && line[i] != ' ') return false;
    if (depth == 0 && line[i] == ']' && i + 1 == column) return true;
  }
  return false;
}

// The position of a '[' after optional spaces; npos where something else follows.
size_t bracket_behind(const std::string& line, size_t at) {
  at = line.find_first_not_of(" \t", at);
  return at != line.npos && line[at] == '[' ? at : line.npos;
}

// Does a second index follow the first?
bool has_two_indices(const std::string& line) {
  for (size_t at = line.find(']'); at != line.npos; at = line.find(']', at + 1)) {
    if (bracket_behind(line, at + 1) != line.npos) return true;
  }
  return false;
}

// The declared array whose index it is, of several by the column, if the line is not translated.
std::vector<DeclaredArray> arrays_at(const Indexing& at, const std::string& line,
                                     const std::vector<uint64_t>& dimensions, const void* pc) {
  std::multimap<size_t, DeclaredArray> found;  // by their positions in the line
  for (const DeclaredArray& a : declared_arrays(pc)) {
    const auto& of = a.dimensions;
    if (a.name.empty() || of.size() < dimensions.size() ||
        !std::equal(dimensions.rbegin(), dimensions.rend(), of.rbegin())) {
      continue;
    }
    for (size_t i = line.find(a.name); i != line.npos; i = line.find(a.name, i + 1)) {
      const size_t open = bracket_behind(line, i + a.name.size());
      const bool whole = i == 0 || (!std::isalnum(line[i - 1]) && line[i - 1] != '_');
      if (!whole || open == line.npos) continue;
      if (ends_at(line, open, at.column)) return {a};
      found.emplace(i, a);
    }
  }
  std::vector<DeclaredArray> in_order;
  for (const auto& [place, a] : found) in_order.push_back(a);
  return in_order;
}

// A __shared__ array has hooks and a gap after it, which report more about an access ending there.
bool ends_in_gap(const DeclaredArray& a, int64_t index, uint64_t bound) {
  constexpr int64_t kNear = 2048;
  const int64_t past = index < 0 ? index : index - static_cast<int64_t>(bound);
  return a.shared && std::abs(past) < kNear / static_cast<int64_t>(a.element_bytes + 1);
}

}  // namespace

}  // namespace sim

extern "C" void __ubsan_handle_out_of_bounds(sim::Indexing* at, uint64_t index) {
  const void* pc = __builtin_return_address(0);
  if (sim::self->host || !sim::self->current) return;
  if (__atomic_load_n(&at->column, __ATOMIC_RELAXED) == sim::kRow) return;
  std::string type = at->array->name;
  type = type.substr(1, type.size() - 2);  // without quotes
  const auto dimensions = sim::dimensions_of(type);
  const std::string line = sim::line_of(*at);
  const auto arrays = sim::arrays_at(*at, line, dimensions, pc);
  // From one row of a larger array into the next: what the hardware does is clear.
  const auto is_row = [&](const auto& a) { return a.dimensions.size() > dimensions.size(); };
  if (arrays.empty() ? dimensions.size() == 1 && sim::has_two_indices(line)
                     : std::all_of(arrays.begin(), arrays.end(), is_row)) {
    __atomic_store_n(&at->column, sim::kRow, __ATOMIC_RELAXED);
    return;
  }
  const bool is_signed = at->index->info & 1;
  if (dimensions.size() == 1 && !arrays.empty() &&
      sim::ends_in_gap(arrays[0], static_cast<int64_t>(index), dimensions[0])) {
    return;
  }
  const bool one = !arrays.empty() && std::all_of(arrays.begin(), arrays.end(), [&](const auto& a) {
    return a.name == arrays[0].name;
  });
  sim::fail(sim::FaultKind::out_of_bounds,
            sim::here() + ": index " +
                (is_signed ? std::to_string(static_cast<int64_t>(index)) : std::to_string(index)) +
                " at " + sim::source_and_caller(pc) + " is outside of " +
                (one ? "the array " + arrays[0].name : "its array") + " (" + type + ")");
}

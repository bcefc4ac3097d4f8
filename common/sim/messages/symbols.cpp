#include "common/sim/messages/symbols.h"

#include <cxxabi.h>
#include <elf.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "common/sim/block.h"
#include "common/sim/messages/struct_fields.h"

namespace sim {

namespace {

constexpr std::string_view kDynamic = "_ZN3sim12dynamic_smemE";

struct Symbol {
  uint64_t size;
  const char* name;
};

// The program as it was started, perhaps relative to its initial folder: for systems without /proc.
const std::string started_as = [] {
  const auto* words = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
  char* path = words ? realpath(words, nullptr) : nullptr;
  const std::string whole = path ? path : "";
  std::free(path);
  return whole;
}();
// __shared__ starts at a multiple of 128 bytes; a thread-local variable of the simulator may, too.
bool may_be_shared(std::string_view name, const Elf64_Sym& s) {
  static const std::set<std::string_view> own = {"threadIdx", "blockIdx", "blockDim", "gridDim"};
  if (s.st_value % 128 != 0 || own.contains(name)) return false;
  if (name.starts_with("$d")) return false;  // aarch64 marks data by it
  const bool simulator = name.starts_with("_ZN3sim") || name.starts_with("_ZZN3sim");
  return !simulator || name == kDynamic;
}

// This process's number in /proc, which may be in another name space.
std::string number_in_proc() {
  char number[32] = "";
  return readlink("/proc/self", number, sizeof number - 1) > 0 ? number : std::to_string(getpid());
}

// A mapping for the lifetime of the program; empty: the file cannot be read.
std::string_view contents_of(int fd) {
  struct stat st {};
  if (fd < 0 || fstat(fd, &st) != 0) return {};
  void* mapping = mmap(nullptr, st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (mapping == MAP_FAILED) return {};
  return {static_cast<const char*>(mapping), static_cast<size_t>(st.st_size)};
}

struct SymbolTable {
  uint64_t base = 0;  // where the program was loaded
  std::string path = "/proc/self/exe";
  std::map<uint64_t, Symbol> functions, thread_locals;  // the latter: the shared arrays
  std::string_view file;                                // its bytes; empty: it cannot be read

  SymbolTable() {
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* p) {
          if (!is_own_object(*info)) return 0;
          SymbolTable& table = *static_cast<SymbolTable*>(p);
          table.base = info->dlpi_addr;
          if (*info->dlpi_name) table.path = info->dlpi_name;  // the program's is empty
          return 1;
        },
        this);
    if (path.starts_with("/proc/") && ::access(path.c_str(), R_OK) != 0) path = started_as;
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    file = contents_of(fd);
    if (path.starts_with("/proc/")) {  // under qemu, other programs see qemu's process there
      path = "/proc/" + number_in_proc() + "/fd/" + std::to_string(fd);
    } else if (fd >= 0) {
      close(fd);
    }
    if (file.empty()) return;
    for_each([&](const Elf64_Sym& s, const Symbol& entry) {
      if (ELF64_ST_TYPE(s.st_info) == STT_FUNC) functions[s.st_value] = entry;
      if (ELF64_ST_TYPE(s.st_info) == STT_TLS && s.st_shndx && may_be_shared(entry.name, s)) {
        thread_locals[s.st_value] = entry;
      }
    });
  }

  void for_each(auto&& f) const {
    const auto* header = reinterpret_cast<const Elf64_Ehdr*>(file.data());
    const auto* sections = reinterpret_cast<const Elf64_Shdr*>(file.data() + header->e_shoff);
    for (int k = 0; k < header->e_shnum; ++k) {
      if (sections[k].sh_type != SHT_SYMTAB) continue;
      const auto* symbols = reinterpret_cast<const Elf64_Sym*>(file.data() + sections[k].sh_offset);
      const char* names = file.data() + sections[sections[k].sh_link].sh_offset;
      for (size_t i = 0; i < sections[k].sh_size / sizeof(Elf64_Sym); ++i) {
        f(symbols[i], Symbol{symbols[i].st_size, names + symbols[i].st_name});
      }
    }
  }
};

const SymbolTable& table() {
  static const SymbolTable t;
  return t;
}

// A variable of C or file scope, such as `s`, has its plain name, which is also a type's code.
std::string demangle(const char* name) {
  if (!std::string_view(name).starts_with("_Z")) return name;
  int status = 0;
  char* text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string result = status ? name : text;
  std::free(text);
  return result;
}

// "void kernel<4>(float*)" -> "kernel<4>"
std::string without_parameters(std::string name) {
  int depth = 0;  // of parentheses: a parameter's type may have some
  for (size_t i = name.size(); i-- > 1;) {
    depth += (name[i] == ')') - (name[i] == '(');
    if (name[i] == '(' && depth == 0) {
      name.resize(i);
      break;
    }
  }
  return name.starts_with("void ") ? name.substr(5) : name;
}

// "kernel(float*)::tile" -> "tile"
std::string last_name(const char* symbol) {
  const std::string name = demangle(symbol);
  const auto p = name.rfind("::");
  return p == std::string::npos ? name : name.substr(p + 2);
}

// The shared array at this offset, or the last one before it; null: none.
const std::pair<const uint64_t, Symbol>* array_before(uint64_t offset) {
  const auto it = table().thread_locals.upper_bound(offset);
  return it == table().thread_locals.begin() ? nullptr : &*std::prev(it);
}

// "ns::P::operator=(ns::P const&)" or "ns::P<4>::P(ns::P<4> const&)", or with &&
bool copies_struct(const std::string& function) {
  for (const std::string end : {" const&)", "&&)"}) {
    if (!function.ends_with(end)) continue;
    for (size_t open = function.find('('); open != function.npos;
         open = function.find('(', open + 1)) {
      const std::string type = function.substr(open + 1, function.size() - end.size() - open - 1);
      if (!function.starts_with(type + "::")) continue;
      std::string name = type.substr(0, type.find('<', type.rfind("::") + 1));
      if (const auto p = name.rfind("::"); p != name.npos) name = name.substr(p + 2);
      const std::string member = function.substr(type.size() + 2, open - type.size() - 2);
      if (member == name || member == "operator=") return true;
    }
  }
  return false;
}

struct Source {
  std::vector<std::string> frames;  // with folders, innermost first
  std::string line;                 // of the innermost frame outside the simulator's headers
  std::string caller;  // in the kernel, where that function is inlined; empty: the same
};

std::mutex source_mutex;
std::map<const void*, Source> source_cache;

// Frames of the simulator's headers, inlined into the kernel, do not interest the reader.
bool is_own_header(const std::string& line) {
  return line.find("common/sim/") != std::string::npos ||
         line.find("common/dialect/ptx/") != std::string::npos ||
         line.find("_vocabulary.h") != std::string::npos ||
         line.find("common/dialect/cuda.h") != std::string::npos;
}

// The lines of a source file that begin a struct; read once.
const std::set<int>& structs_of(const std::string& path) {
  static std::map<std::string, std::set<int>> known;
  const auto [it, fresh] = known.try_emplace(path);
  if (!fresh) return it->second;
  std::ifstream file(path);
  std::string words;
  for (int line = 1; std::getline(file, words); ++line) {
    if (words.find('{') != words.npos &&
        (words.find("struct ") != words.npos || words.find("class ") != words.npos ||
         words.find("union ") != words.npos)) {
      it->second.insert(line);
    }
  }
  return it->second;
}

// A frame of a compiler-made copy of a struct has the line at which the struct begins.
bool begins_struct(const std::string& place) {
  const auto colon = place.rfind(':');
  return colon != place.npos &&
         structs_of(place.substr(0, colon)).contains(std::atoi(place.c_str() + colon + 1));
}

std::string quoted(const std::string& path) {  // for the shell
  std::string text = "'";
  for (const char c : path) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

// The program, or a copy with plain debug information where the linker compressed it.
std::string_view debug_file() {
  static const std::string_view file = [] {
    if (!has_compressed_types(table().file)) return table().file;
    char copy[] = "/tmp/flash-steps-XXXXXX";
    const int fd = mkstemp(copy);
    if (fd < 0) return table().file;
    const std::string command = "objcopy --only-keep-debug --decompress-debug-sections " +
                                quoted(table().path) + " " + copy + " 2>/dev/null";
    const std::string_view plain = std::system(command.c_str()) ? "" : contents_of(fd);
    close(fd);
    unlink(copy);
    return plain.empty() ? table().file : plain;
  }();
  return file;
}

// A line of addr2line without what follows the place.
std::string place_of(std::string line) {
  while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) line.pop_back();
  if (const auto p = line.find(" (disc"); p != std::string::npos) line.resize(p);
  return line;
}

std::string tidy(const std::string& of_addr2line) {
  const std::string line = named_place(place_of(of_addr2line));
  if (table().file.empty()) return "an unknown line (the program's own file cannot be read)";
  if (line.empty()) return "an unknown line (addr2line, of the binutils, does not answer)";
  if (line[0] == '?') return "an unknown line (compile with -g)";
  return line;
}

std::string file_of(const std::string& place) { return place.substr(0, place.rfind(':')); }

Source of_frames(const std::vector<std::string>& frames) {  // innermost first
  size_t k = 0;
  while (k + 1 < frames.size() && (is_own_header(frames[k]) || begins_struct(frames[k]))) ++k;
  Source source{{}, tidy(frames.empty() ? "" : frames[k]), ""};
  for (size_t i = k; i < frames.size(); ++i) {
    const std::string line = place_of(frames[i]);
    if (line.empty() || line[0] == '?' || line[0] == ':' || begins_struct(line) ||
        is_own_header(line))
      continue;
    source.frames.push_back(line);
  }
  const auto of_kernel = [&](const std::string& f) { return file_of(f) == file_of(frames.back()); };
  if (k + 1 < frames.size() && !of_kernel(frames[k])) {
    source.caller = tidy(*std::find_if(frames.begin() + k, frames.end(), of_kernel));
  }
  return source;
}

}  // namespace

bool is_own_object(const dl_phdr_info& info) {
  const uint64_t here = reinterpret_cast<uint64_t>(&is_own_object) - info.dlpi_addr;
  return std::any_of(info.dlpi_phdr, info.dlpi_phdr + info.dlpi_phnum, [here](const auto& part) {
    return part.p_type == PT_LOAD && here - part.p_vaddr < part.p_memsz;
  });
}

bool is_struct_copy(const void* pc) {
  static thread_local std::map<const void*, bool>* known;
  if (!known) known = new std::map<const void*, bool>;
  const auto [it, fresh] = known->try_emplace(pc);
  if (fresh) {
    auto f = table().functions.upper_bound(reinterpret_cast<uint64_t>(pc) - table().base);
    it->second = f != table().functions.begin() && copies_struct(demangle((--f)->second.name));
  }
  return it->second;
}

std::string kernel_name(const Launch& launch) {
  if (launch.name) return launch.name;
  const auto it = table().functions.find(reinterpret_cast<uint64_t>(launch.kernel) - table().base);
  if (it == table().functions.end()) return "?";
  return without_parameters(demangle(it->second.name));
}

std::string spoken(const std::string& name) {
  constexpr size_t kMost = 120, kEnd = 40;
  if (name.size() <= kMost) return name;
  return name.substr(0, kMost - kEnd) + " ... " + name.substr(name.size() - kEnd);
}

std::string variable_name(const void* p) {
  std::string name;
  if (table().file.empty()) return name;
  const uint64_t at = reinterpret_cast<uint64_t>(p) - table().base;
  table().for_each([&](const Elf64_Sym& s, const Symbol& entry) {
    if (ELF64_ST_TYPE(s.st_info) == STT_OBJECT && at - s.st_value < s.st_size) {
      name = demangle(entry.name);
    }
  });
  return name;
}

std::string shared_name(const Block& b, uint64_t offset) {
  if (const uintptr_t dynamic = b.shared_base + offset - b.dynamic_base;
      dynamic < kMaxDynamicSmem) {
    std::string field;
    if (b.launch && !table().file.empty()) {
      const auto kernel = reinterpret_cast<uint64_t>(b.launch->kernel) - table().base;
      field = dynamic_field(debug_file(), kernel, dynamic);
    }
    const std::string byte = "byte " + std::to_string(dynamic);
    return field.empty() ? "dynamic shared memory, " + byte
                         : field + ", " + byte + " of dynamic shared memory";
  }
  const auto* array = array_before(offset);
  if (!array) return "shared memory";
  const std::string name = last_name(array->second.name);
  const uint64_t byte = offset - array->first;
  const std::string field = static_field(debug_file(), name, array->first, byte);
  return (field.empty() ? name : field) + ", byte " + std::to_string(byte);
}

std::string shared_bounds(const Block& b, uint64_t offset) {
  const auto& arrays = table().thread_locals;
  // A difference, so that offsets below shared memory are negative.
  const auto at = static_cast<int64_t>(offset);
  auto above = std::find_if(arrays.begin(), arrays.end(), [at](const auto& array) {
    return static_cast<int64_t>(array.first) > at;
  });
  if (arrays.empty()) return "outside of shared memory";
  const auto below = above == arrays.begin() ? arrays.end() : std::prev(above);
  // Whose access is it likely? The kernel's array before a nearer one.
  const std::string kernel = kernel_name(*b.launch) + "(";
  const auto distance = [&](auto array) -> uint64_t {
    if (array == arrays.end()) return UINT64_MAX;
    const auto& [start, symbol] = *array;
    const bool dynamic = symbol.name == kDynamic;
    const auto size = static_cast<int64_t>(dynamic ? b.launch->config.smem : symbol.size);
    const bool own = dynamic ? size > 0 : demangle(symbol.name).starts_with(kernel);
    const auto begin = static_cast<int64_t>(start);
    const int64_t away = at < begin ? begin - at : std::max<int64_t>(0, at - begin - size);
    return static_cast<uint64_t>(away) + (own || away == 0 ? 0 : uint64_t{1} << 62);
  };
  const bool in_dynamic = b.shared_base + offset - b.dynamic_base < kMaxDynamicSmem;
  const bool before = !in_dynamic && distance(above) < distance(below);
  const auto& [start, symbol] = before ? *above : *below;
  const bool dynamic = symbol.name == kDynamic;
  const std::string name =
      dynamic ? "dynamic shared memory" : "the shared array " + last_name(symbol.name);
  const auto begin = static_cast<int64_t>(start);
  if (before) return std::to_string(begin - at) + " bytes before the start of " + name;
  const std::string byte = "at byte " + std::to_string(at - begin);
  if (dynamic) {
    return byte + " of " + name + ", but the launch asked for " +
           std::to_string(b.launch->config.smem);
  }
  return std::string(at - begin < static_cast<int64_t>(symbol.size) ? "across" : "past") +
         " the end of " + name + ", " + byte + " of " + std::to_string(symbol.size);
}

// Overlapping arrays are members of a union.
static std::vector<SharedArray> arrays_of(std::vector<Field> fields, uint64_t offset) {
  std::stable_sort(fields.begin(), fields.end(),
                   [](const Field& a, const Field& b) { return a.at < b.at; });
  std::vector<SharedArray> all;
  for (const Field& f : fields) {
    const SharedArray array{f.name, offset + f.at, f.bytes, f.dimensions, {}};
    if (all.empty() || array.offset >= all.back().offset + all.back().bytes) {
      all.push_back(array);
      continue;
    }
    SharedArray& last = all.back();
    if (last.members.empty()) last.members.push_back(last), last.dimensions.clear();
    last.members.push_back(array);
    last.name += " or " + f.name;
    last.bytes = std::max(last.offset + last.bytes, array.offset + f.bytes) - last.offset;
  }
  return all;
}

static SharedArray at_offset(const std::vector<SharedArray>& all, uint64_t offset) {
  for (const SharedArray& a : all) {
    if (offset - a.offset < a.bytes) return a;
  }
  return {};
}

SharedArray shared_array(const Block& b, uint64_t offset) {
  const uint64_t dynamic = b.dynamic_base - b.shared_base;
  if (offset - dynamic < kMaxDynamicSmem) {
    const auto kernel = reinterpret_cast<uint64_t>(b.launch->kernel) - table().base;
    const SharedArray found =
        at_offset(arrays_of(dynamic_fields(debug_file(), kernel), dynamic), offset);
    if (found.bytes > 0) return found;
    return {"dynamic", dynamic, b.launch->config.smem, {}, {}};
  }
  const auto* array = array_before(offset);
  if (!array) return {"shared memory", 0, b.shared_size, {}, {}};
  const auto& [begin, symbol] = *array;
  const std::string name = last_name(symbol.name);
  const SharedArray found =
      at_offset(arrays_of(static_fields(debug_file(), name, begin), begin), offset);
  return found.bytes > 0 ? found : SharedArray{name, begin, symbol.size, {}, {}};
}

std::vector<DeclaredArray> declared_arrays(const void* pc) {
  auto f = table().functions.upper_bound(reinterpret_cast<uint64_t>(pc) - table().base);
  if (f == table().functions.begin()) return {};
  return declared_arrays(debug_file(), (--f)->first);
}

const StaticShared& most_static_shared() {
  static const StaticShared most = [] {
    std::map<std::string, uint64_t> functions;
    for (const auto& [start, array] : table().thread_locals) {
      if (array.name == kDynamic) continue;
      const bool in_function = std::string_view(array.name).starts_with("_ZZ");
      const std::string name = demangle(array.name);
      functions[in_function ? name.substr(0, name.rfind("::")) : name] += array.size;
    }
    StaticShared largest;
    for (const auto& [function, bytes] : functions) {
      if (bytes > largest.bytes) largest = {without_parameters(function), bytes};
    }
    return largest;
  }();
  return most;
}

bool is_inside(const void* pc, const void* function) {
  const uint64_t start = reinterpret_cast<uint64_t>(function) - table().base;
  const auto it = table().functions.find(start);
  const uint64_t at = reinterpret_cast<uint64_t>(pc) - table().base;
  return it != table().functions.end() && at - 1 - start < it->second.size;
}

const uint8_t* bytes_of_shared_arrays(size_t size) {
  static const std::vector<uint8_t> inside = [size] {
    std::vector<uint8_t> bytes(size);
    for (const auto& [start, symbol] : table().thread_locals) {
      std::fill_n(bytes.begin() + start, symbol.size, true);
    }
    if (table().thread_locals.empty()) bytes.assign(size, true);  // the file cannot be read
    return bytes;
  }();
  return inside.data();
}

void resolve_sources(const std::vector<const void*>& pcs) {
  std::lock_guard lock(source_mutex);
  std::vector<const void*> missing;
  for (const void* pc : pcs) {
    if (source_cache.try_emplace(pc).second) missing.push_back(pc);
  }
  constexpr size_t kBatch = 1000;  // addresses that fit in a command line
  for (size_t start = 0; start < missing.size(); start += kBatch) {
    const size_t end = std::min(missing.size(), start + kBatch);
    std::string command = "addr2line -a -i -e " + quoted(table().path);
    for (size_t i = start; i < end; ++i) {
      char address[32];  // the return address follows the access
      std::snprintf(address, sizeof address, " 0x%lx",
                    reinterpret_cast<uint64_t>(missing[i]) - table().base - 1);
      command += address;
    }
    FILE* pipe = popen((command + " 2>/dev/null").c_str(), "r");
    std::vector<std::vector<std::string>> answers;  // the address, then a line for each frame
    char* buffer = nullptr;
    size_t room = 0;
    while (pipe && getline(&buffer, &room, pipe) > 0) {
      const std::string line = buffer;
      if (line.rfind("0x", 0) == 0) {
        answers.emplace_back();
      } else if (!answers.empty()) {
        answers.back().push_back(line);
      }
    }
    std::free(buffer);
    if (pipe) pclose(pipe);
    answers.resize(end - start);
    for (size_t i = start; i < end; ++i) source_cache[missing[i]] = of_frames(answers[i - start]);
  }
}

static const Source& look_up(const void* pc) {
  resolve_sources({pc});
  std::lock_guard lock(source_mutex);
  return source_cache[pc];
}

// By the name in messages. Never destroyed: the program's end still reports findings.
static std::map<std::string, Place>& places() {
  static auto& all = *new std::map<std::string, Place>;
  return all;
}
static std::mutex places_mutex;

std::string named_place(const std::string& file_and_line) {
  const std::string name = file_and_line.substr(file_and_line.rfind('/') + 1);
  const auto colon = file_and_line.rfind(':');
  const int line = colon == std::string::npos ? 0 : std::atoi(file_and_line.c_str() + colon + 1);
  std::lock_guard lock(places_mutex);
  if (line > 0) places()[name] = {file_and_line.substr(0, colon), line};
  return name;
}

std::vector<Place> places_in(const std::string& sentence) {
  std::lock_guard lock(places_mutex);
  std::map<size_t, Place> found;                    // by their first position in the sentence
  const auto within = [&](size_t at, size_t end) {  // "tile.cuh:4" is also part of "my_tile.cuh:42"
    const bool before = at > 0 && (std::isalnum(sentence[at - 1]) || sentence[at - 1] == '_');
    return before || std::isdigit(sentence[end]);
  };
  for (const auto& [name, place] : places()) {
    size_t at = sentence.find(name);
    while (at != std::string::npos && within(at, at + name.size())) {
      at = sentence.find(name, at + 1);
    }
    if (at != std::string::npos) found.try_emplace(at, place);
  }
  std::vector<Place> all;
  for (const auto& [at, place] : found) all.push_back(place);
  return all;
}

std::string source_of(const void* pc) { return look_up(pc).line; }

std::string calling_source() {
  void* stack[64];
  const int n = backtrace(stack, 64);
  resolve_sources({stack, stack + n});
  for (int i = 0; i < n; ++i) {
    for (const std::string& frame : frames_of(stack[i])) {
      const bool line = std::atoi(frame.c_str() + frame.rfind(':') + 1) > 0;
      if (line && !frame.starts_with("/usr/include/")) return named_place(frame);
    }
  }
  return "an unknown line";
}

std::vector<std::string> frames_of(const void* pc) { return look_up(pc).frames; }

std::string source_and_caller(const void* pc) {
  const Source& source = look_up(pc);
  return source.line + (source.caller.empty() ? "" : " (called at " + source.caller + ")");
}

}  // namespace sim

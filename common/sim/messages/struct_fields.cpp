#include "common/sim/messages/struct_fields.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <unordered_map>
#include <vector>

namespace sim {

namespace {

// --- DWARF's numbers that g++ writes and this file reads -----------------------------------------

enum Tag : uint64_t {
  kArray = 0x01,
  kClass = 0x02,
  kMember = 0x0d,
  kPointer = 0x0f,
  kReference = 0x10,
  kStruct = 0x13,
  kTypedef = 0x16,
  kUnion = 0x17,
  kInheritance = 0x1c,
  kSubrange = 0x21,
  kConst = 0x26,
  kSubprogram = 0x2e,
  kTypeParameter = 0x2f,
  kVariable = 0x34,
  kVolatile = 0x35
};
enum Attribute : uint64_t {
  kLocation = 0x02,
  kName = 0x03,
  kByteSize = 0x0b,
  kLowPc = 0x11,
  kUpperBound = 0x2f,
  kOrigin = 0x31,
  kMemberLocation = 0x38,
  kDeclaration = 0x3c,
  kSpecification = 0x47,
  kType = 0x49
};

constexpr uint64_t kNone = ~uint64_t{0};
constexpr uint64_t kElement = 16;  // bytes: a smaller struct is an element, such as float4

/// An entry of the debug information. Its children follow it, one level deeper.
struct Entry {
  uint64_t offset = 0;  // in the section
  uint64_t tag = 0;
  unsigned depth = 0;
  const char* name = nullptr;
  uint64_t type = kNone, origin = kNone;  // offsets of other entries
  uint64_t low_pc = kNone, tls = kNone;   // address of the code; offset in thread-local storage
  uint64_t bytes = 0, at = 0, bound = kNone;
  bool declaration = false;
};

struct Value {
  uint64_t number = kNone;
  const char* text = nullptr;
  const unsigned char* block = nullptr;  // of `number` bytes
};

class Reader {
 public:
  Reader(const unsigned char* p, const unsigned char* end) : p_(p), end_(end) {}
  bool more() const { return p_ < end_; }
  const unsigned char* place() const { return p_; }
  void skip(uint64_t n) { p_ += std::min<uint64_t>(n, end_ - p_); }

  uint64_t fixed(unsigned bytes) {  // little-endian, as are all hosts of the simulator
    uint64_t x = 0;
    if (static_cast<size_t>(end_ - p_) >= bytes) std::memcpy(&x, p_, bytes);
    skip(bytes);
    return x;
  }
  uint64_t leb() {
    uint64_t x = 0;
    for (unsigned shift = 0; more(); shift += 7) {
      const unsigned char byte = *p_++;
      if (shift < 64) x |= uint64_t{byte & 0x7fu} << shift;
      if (!(byte & 0x80)) break;
    }
    return x;
  }
  const char* text() {
    const char* t = reinterpret_cast<const char*>(p_);
    skip(strnlen(t, end_ - p_) + 1);
    return t;
  }

 private:
  const unsigned char *p_, *end_;
};

struct Section {
  const unsigned char* begin = nullptr;
  uint64_t size = 0;
  Reader from(uint64_t offset) const { return {begin + std::min(offset, size), begin + size}; }
};

const Elf64_Shdr* header_of(std::string_view file, const char* wanted) {
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(file.data());
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(file.data() + header->e_shoff);
  const char* names = file.data() + sections[header->e_shstrndx].sh_offset;
  const auto* end = sections + header->e_shnum;
  const auto* found = std::find_if(
      sections, end, [&](const auto& s) { return std::strcmp(names + s.sh_name, wanted) == 0; });
  return found == end ? nullptr : found;
}

Section section_of(std::string_view file, const char* wanted) {
  const Elf64_Shdr* s = header_of(file, wanted);
  if (!s || s->sh_flags & SHF_COMPRESSED) return {};
  return {reinterpret_cast<const unsigned char*>(file.data()) + s->sh_offset, s->sh_size};
}

// --- all entries ---------------------------------------------------------------------------------

class DebugInfo {
 public:
  explicit DebugInfo(std::string_view file)
      : info_(section_of(file, ".debug_info")),
        abbreviations_(section_of(file, ".debug_abbrev")),
        strings_(section_of(file, ".debug_str")) {
    if (!info_.begin || !abbreviations_.begin || !strings_.begin) return;
    for (uint64_t unit = 0; unit < info_.size;) {
      Reader r = info_.from(unit);
      const uint64_t length = r.fixed(4);
      if (length >= 0xfffffff0) break;                  // the 64-bit format
      if (r.fixed(2) == 4) read_unit(unit, length, r);  // others hold no kernel
      unit += 4 + length;
    }
    for (size_t i = 0; i < entries_.size(); ++i) by_offset_[entries_[i].offset] = i;
    const auto* header = reinterpret_cast<const Elf64_Ehdr*>(file.data());
    if (header->e_machine == EM_AARCH64) find_thread_locals(file);
  }

  const std::vector<Entry>& all() const { return entries_; }
  const Entry* find(uint64_t offset) const {
    const auto it = by_offset_.find(offset);
    return it == by_offset_.end() ? nullptr : &entries_[it->second];
  }
  void below(const Entry& top, auto&& f) const {
    for (size_t i = &top - entries_.data() + 1; i < entries_.size(); ++i) {
      if (entries_[i].depth <= top.depth) break;
      f(entries_[i]);
    }
  }
  void children(const Entry& top, auto&& f) const {
    below(top, [&](const Entry& e) {
      if (e.depth == top.depth + 1) f(e);
    });
  }
  /// The declaration, where an instance of a function or variable omits what it says.
  const Entry* declared(const Entry* e, auto&& says) const {
    for (int i = 0; e && i < 4; ++i, e = find(e->origin)) {
      if (says(*e)) return e;
    }
    return nullptr;
  }
  std::string_view name(const Entry* e) const {
    e = declared(e, [](const Entry& x) { return x.name; });
    return e ? e->name : "";
  }
  /// The type without typedef, const, volatile.
  const Entry* type(const Entry* e) const {
    e = declared(e, [](const Entry& x) { return x.type != kNone; });
    return e ? plain(find(e->type)) : nullptr;
  }
  const Entry* plain(const Entry* e) const {
    while (e && (e->tag == kTypedef || e->tag == kConst || e->tag == kVolatile)) e = find(e->type);
    return e;
  }

 private:
  // Without a location on aarch64, by symbol: _ZZ1kPfE4tile is `tile` of the function _Z1kPf.
  void find_thread_locals(std::string_view file) {
    const Elf64_Shdr *table = header_of(file, ".symtab"), *names = header_of(file, ".strtab");
    if (!table || !names) return;
    std::unordered_map<std::string, uint64_t> variables;
    std::unordered_map<uint64_t, std::string> functions;
    const auto* symbols = reinterpret_cast<const Elf64_Sym*>(file.data() + table->sh_offset);
    for (size_t i = 0; i < table->sh_size / sizeof(Elf64_Sym); ++i) {
      const char* name = file.data() + names->sh_offset + symbols[i].st_name;
      const auto type = ELF64_ST_TYPE(symbols[i].st_info);
      if (type == STT_TLS) variables[name] = symbols[i].st_value;
      if (type == STT_FUNC) functions[symbols[i].st_value] = name;
    }
    std::string function;
    for (Entry& e : entries_) {
      if (e.tag == kSubprogram && e.low_pc != kNone) function = functions[e.low_pc];
      if (e.tag != kVariable || !function.starts_with("_Z")) continue;
      const std::string own(name(&e)), length = std::to_string(own.size());
      const auto found = variables.find("_ZZ" + function.substr(2) + "E" + length + own);
      if (found != variables.end()) e.tls = found->second;
    }
  }

  struct Abbreviation {
    uint64_t tag;
    bool children;
    std::vector<std::pair<uint64_t, uint64_t>> attributes;  // and their forms
  };

  void read_unit(uint64_t unit, uint64_t length, Reader r) {
    const uint64_t table = r.fixed(4);
    if (r.fixed(1) != 8) return;  // bytes of an address
    const auto [place, fresh] = tables_.try_emplace(table);
    if (fresh) place->second = read_abbreviations(table);
    const auto& known = place->second;
    const unsigned char* end = info_.begin + std::min(unit + 4 + length, info_.size);
    for (unsigned depth = 0; r.more() && r.place() < end;) {
      Entry e;
      e.offset = r.place() - info_.begin;
      e.depth = depth;
      const uint64_t code = r.leb();
      if (code == 0) {
        if (depth > 0) --depth;
        continue;
      }
      const auto a = known.find(code);
      if (a == known.end()) return;
      e.tag = a->second.tag;
      for (const auto& [attribute, form] : a->second.attributes) {
        Value v;
        if (!read(r, form, unit, v)) return;
        note(e, attribute, v);
      }
      entries_.push_back(e);
      depth += a->second.children;
    }
  }

  std::unordered_map<uint64_t, Abbreviation> read_abbreviations(uint64_t table) const {
    std::unordered_map<uint64_t, Abbreviation> known;
    Reader r = abbreviations_.from(table);
    while (r.more()) {
      const uint64_t code = r.leb();
      if (code == 0) break;
      Abbreviation& a = known[code];
      a.tag = r.leb();
      a.children = r.fixed(1);
      for (;;) {
        const uint64_t attribute = r.leb(), form = r.leb();
        if (attribute == 0 || !r.more()) break;
        a.attributes.emplace_back(attribute, form);
      }
    }
    return known;
  }

  // False for a form of a later version.
  bool read(Reader& r, uint64_t form, uint64_t unit, Value& v) const {
    const auto number = [&](uint64_t x) { return v.number = x, true; };
    const auto text = [&](const char* x) { return v.text = x, true; };
    const auto block = [&](uint64_t bytes) {
      v.number = bytes;
      v.block = r.place();
      r.skip(bytes);
      return true;
    };
    switch (form) {
      case 0x01:  // addr
      case 0x07:  // data8
        return number(r.fixed(8));
      case 0x20:  // ref_sig8
        return r.skip(8), true;
      case 0x03:  // block2
        return block(r.fixed(2));
      case 0x04:  // block4
        return block(r.fixed(4));
      case 0x0a:  // block1
        return block(r.fixed(1));
      case 0x09:  // block
      case 0x18:  // exprloc
        return block(r.leb());
      case 0x05:  // data2
        return number(r.fixed(2));
      case 0x06:  // data4
      case 0x10:  // ref_addr
      case 0x17:  // sec_offset
        return number(r.fixed(4));
      case 0x0b:  // data1
      case 0x0c:  // flag
        return number(r.fixed(1));
      case 0x08:  // string
        return text(r.text());
      case 0x0e:  // strp
        return text(strings_.from(r.fixed(4)).text());
      case 0x0d:  // sdata: never negative in what is read
      case 0x0f:  // udata
        return number(r.leb());
      case 0x11:  // ref1, 2, 4, 8: from the unit's beginning
      case 0x12:
      case 0x13:
      case 0x14:
        return number(unit + r.fixed(1u << (form - 0x11)));
      case 0x15:  // ref_udata
        return number(unit + r.leb());
      case 0x19:  // flag_present
        return number(1);
      default:
        return false;
    }
  }

  static void note(Entry& e, uint64_t attribute, const Value& v) {
    if (attribute == kName) e.name = v.text;
    if (attribute == kType) e.type = v.number;
    if (attribute == kOrigin || attribute == kSpecification) e.origin = v.number;
    if (attribute == kLowPc) e.low_pc = v.number;
    if (attribute == kByteSize) e.bytes = v.number;
    if (attribute == kMemberLocation && !v.block) e.at = v.number;
    if (attribute == kUpperBound && !v.block) e.bound = v.number;
    if (attribute == kDeclaration) e.declaration = true;
    // const8u <offset>, then GNU_push_tls_address or form_tls_address
    constexpr unsigned char kConst8u = 0x0e, kGnuPushTls = 0xe0, kFormTls = 0x9b;
    if (attribute != kLocation || !v.block || v.number != 10 || v.block[0] != kConst8u) return;
    if (v.block[9] != kGnuPushTls && v.block[9] != kFormTls) return;
    std::memcpy(&e.tls, v.block + 1, sizeof e.tls);
  }

  const Section info_, abbreviations_, strings_;
  std::vector<Entry> entries_;
  std::unordered_map<uint64_t, size_t> by_offset_;
  std::map<uint64_t, std::unordered_map<uint64_t, Abbreviation>> tables_;
};

const DebugInfo& debug_info(std::string_view file) {
  static const DebugInfo info(file);
  return info;
}

// --- types ---------------------------------------------------------------------------------------

bool is_struct(const Entry* e) {
  return e && (e->tag == kStruct || e->tag == kClass || e->tag == kUnion);
}

std::vector<uint64_t> dimensions(const DebugInfo& info, const Entry& array) {
  std::vector<uint64_t> counts;
  info.children(array, [&](const Entry& e) {
    if (e.tag == kSubrange) counts.push_back(e.bound == kNone ? 0 : e.bound + 1);
  });
  return counts;
}

uint64_t size_of(const DebugInfo& info, const Entry* type) {
  if (!type) return 0;
  if (type->tag == kPointer || type->tag == kReference) return sizeof(void*);
  if (type->tag != kArray) return type->bytes;
  uint64_t bytes = size_of(info, info.type(type));
  for (const uint64_t n : dimensions(info, *type)) bytes *= n;
  return bytes;
}

// "[1][3]": the indices of element number i of an array.
std::string index_of(const std::vector<uint64_t>& dimensions, uint64_t i) {
  std::string index;
  for (size_t k = dimensions.size(); k-- > 0; i /= dimensions[k]) {
    index = "[" + std::to_string(i % dimensions[k]) + "]" + index;
  }
  return index;
}

// Appends the arrays and scalars of a type that begins at byte `at`: all, or those that hold the
// byte `only`, of which a union may have several; for padding, the struct around it.
void collect(const DebugInfo& info, const Entry* type, uint64_t at, const std::string& path,
             std::vector<Field>& all, uint64_t only = kNone) {
  const uint64_t bytes = size_of(info, type);
  if (only != kNone && (only < at || only - at >= bytes)) return;
  const bool is_array = type && type->tag == kArray;
  const Entry* element = is_array ? info.type(type) : nullptr;
  const auto counts = is_array ? dimensions(info, *type) : std::vector<uint64_t>{};
  if (is_struct(element) && element->bytes > kElement) {
    for (uint64_t i = 0; i * element->bytes < bytes; ++i) {
      collect(info, element, at + i * element->bytes, path + index_of(counts, i), all, only);
    }
    return;
  }
  const size_t before = all.size();
  if (is_struct(type) && (path.empty() || type->bytes > kElement)) {
    info.children(*type, [&](const Entry& e) {
      if ((e.tag != kMember && e.tag != kInheritance) || e.declaration) return;
      const std::string dot = path.empty() ? "" : ".";
      const bool named = e.tag == kMember && e.name;
      collect(info, info.type(&e), at + e.at, named ? path + dot + e.name : path, all, only);
    });
  }
  if (all.size() == before && bytes > 0) all.push_back({path, at, bytes, counts});
}

// "s.K[0] or s.P[0]": the fields of a variable of this type at the byte. `to_field`: "." or "->".
std::string fields(const DebugInfo& info, const Entry* type, uint64_t byte,
                   const std::string& variable, const std::string& to_field) {
  std::vector<Field> found;
  collect(info, type, 0, "", found, byte);
  std::string text;
  for (const Field& f : found) {
    uint64_t elements = 1;
    for (const uint64_t n : f.dimensions) elements *= n;
    const bool member = !f.name.empty() && f.name[0] != '[';
    text += (text.empty() ? "" : " or ") + variable + (member ? to_field : "") + f.name +
            index_of(f.dimensions, (byte - f.at) / (f.bytes / elements));
  }
  return text;
}

// --- a kernel's variables in dynamic shared memory -----------------------------------------------

/// A struct in dynamic shared memory, and the kernel's name for it.
struct Dynamic {
  const Entry* type = nullptr;
  std::string variable;
  bool pointer = false;
};

// T if the function is fa::dynamic_shared<T>.
const Entry* asked_struct(const DebugInfo& info, const Entry* function) {
  if (!info.name(function).starts_with("dynamic_shared<")) return nullptr;
  const Entry* found = nullptr;
  info.declared(function, [&](const Entry& e) {
    info.children(e, [&](const Entry& child) {
      if (child.tag == kTypeParameter) found = info.type(&child);
    });
    return found != nullptr;
  });
  return is_struct(found) ? found : nullptr;
}

const Entry* function_at(const DebugInfo& info, uint64_t address) {
  for (const Entry& e : info.all()) {
    if (e.tag == kSubprogram && e.low_pc == address) return &e;
  }
  return nullptr;
}

Dynamic dynamic_of(const DebugInfo& info, uint64_t address) {
  const auto& all = info.all();
  const Entry* kernel = function_at(info, address);
  if (!kernel) return {};
  // The inlined call leaves no entry in the kernel, as it has no instructions. So these are the
  // structs that any kernel requests; this kernel's is the type of one of its variables.
  std::set<const Entry*> asked;
  for (const Entry& e : all) {
    if (e.tag == kSubprogram) asked.insert(asked_struct(info, &e));
  }
  asked.erase(nullptr);

  Dynamic found;
  unsigned depth = ~0u;  // the variable nearest to the kernel's level
  std::set<const Entry*> kept;
  info.below(*kernel, [&](const Entry& e) {
    if (e.tag != kVariable) return;
    const Entry* reference = info.type(&e);
    if (!reference || (reference->tag != kPointer && reference->tag != kReference)) return;
    const Entry* type = info.type(reference);
    if (!asked.contains(type)) return;
    kept.insert(type);
    if (e.depth >= depth) return;
    depth = e.depth;
    found = {type, std::string(info.name(&e)), reference->tag == kPointer};
  });
  return kept.size() == 1 ? found : Dynamic{};  // of several, the byte's owner is unknown
}

}  // namespace

bool has_compressed_types(std::string_view file) {
  if (file.empty()) return false;
  const Elf64_Shdr* s = header_of(file, ".debug_info");
  return s && s->sh_flags & SHF_COMPRESSED;
}

std::string dynamic_field(std::string_view file, uint64_t kernel, uint64_t byte) {
  const DebugInfo& info = debug_info(file);
  const Dynamic d = dynamic_of(info, kernel);
  return d.type ? fields(info, d.type, byte, d.variable, d.pointer ? "->" : ".") : "";
}

// The shared variable at this offset of the thread-local storage.
static const Entry* variable_at(const DebugInfo& info, uint64_t offset) {
  for (const Entry& e : info.all()) {
    if (e.tag == kVariable && e.tls == offset) return &e;
  }
  return nullptr;
}

std::string static_field(std::string_view file, const std::string& name, uint64_t offset,
                         uint64_t byte) {
  const DebugInfo& info = debug_info(file);
  const Entry* type = info.type(variable_at(info, offset));
  const Entry* element = type && type->tag == kArray ? info.type(type) : type;
  if (!is_struct(element) || element->bytes <= kElement) return "";
  return fields(info, type, byte, name, ".");
}

std::vector<DeclaredArray> declared_arrays(std::string_view file, uint64_t address) {
  const DebugInfo& info = debug_info(file);
  std::vector<DeclaredArray> arrays;
  const Entry* function = function_at(info, address);
  if (!function) return {};
  info.below(*function, [&](const Entry& e) {
    const Entry* type = e.tag == kVariable ? info.type(&e) : nullptr;
    if (!type || type->tag != kArray) return;
    const bool shared = info.declared(&e, [](const Entry& x) { return x.tls != kNone; });
    arrays.push_back({std::string(info.name(&e)), dimensions(info, *type),
                      size_of(info, info.type(type)), shared});
  });
  return arrays;
}

std::vector<Field> dynamic_fields(std::string_view file, uint64_t kernel) {
  const DebugInfo& info = debug_info(file);
  std::vector<Field> all;
  if (const Dynamic d = dynamic_of(info, kernel); d.type) collect(info, d.type, 0, "", all);
  return all;
}

std::vector<Field> static_fields(std::string_view file, const std::string& name, uint64_t offset) {
  const DebugInfo& info = debug_info(file);
  std::vector<Field> all;
  collect(info, info.type(variable_at(info, offset)), 0, name, all);
  return all;
}

}  // namespace sim

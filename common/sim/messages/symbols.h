/// \file
/// Names from the program itself (or the shared library that holds the kernels): kernels and shared
/// arrays from its symbol table, source lines from addr2line.
#pragma once

#include <link.h>

#include <cstdint>
#include <string>
#include <vector>

namespace sim {

struct Block;
struct DeclaredArray;  // struct_fields.h
struct Launch;

std::string kernel_name(const Launch&);  ///< demangled, without parameters
/// A name as messages say it: the middle of a long one, arguments of templates, is left out.
std::string spoken(const std::string& name);
/// A variable of the program, demangled; for one of class C its table of virtual functions is
/// "vtable for C". Empty: none lies there.
std::string variable_name(const void* p);
/// "sK, byte 132"; in a struct "s.dS[1][66], byte 132".
std::string shared_name(const Block&, uint64_t offset);
/// What is wrong with an access at this offset, at which no array lies, or which its array does not
/// hold: "past the end of the shared array s, at byte 256 of 256".
std::string shared_bounds(const Block&, uint64_t offset);
std::string source_of(const void* pc);  ///< "tile.cuh:42", from the line table
/// The line of the program's own text that has led to here, past what libraries' headers inline.
std::string calling_source();
/// The same of a function inlined from another file: "tile.cuh:42 (called at kernel.cuh:7)"; the
/// innermost of the calls in the kernel's own file.
std::string source_and_caller(const void* pc);
/// A line of the source that a message names.
struct Place {
  std::string file;  ///< as the compiler was given it
  int line;
};
/// "/.../tile.cuh:42" as messages name it, "tile.cuh:42": places_in() finds it there.
std::string named_place(const std::string& file_and_line);
/// The places that a sentence names, in its order, each once.
std::vector<Place> places_in(const std::string& sentence);
/// The lines of an address, innermost first: of a function inlined from elsewhere, then of who
/// calls it. "/.../tile.cuh:42"; without those of the simulator's own headers.
std::vector<std::string> frames_of(const void* pc);
/// The arrays of the function in whose code pc lies; none without debug information.
std::vector<DeclaredArray> declared_arrays(const void* pc);
/// The function of this program whose own `__shared__` arrays have the most bytes; of what it
/// calls, none is added. An array outside of all functions counts as one.
struct StaticShared {
  std::string function;
  uint64_t bytes = 0;
};
const StaticShared& most_static_shared();
/// Does pc lie in this function's code?
bool is_inside(const void* pc, const void* function);

/// An array or a scalar in a block's shared memory.
struct SharedArray {
  std::string name;  ///< "K", "stages[1].K"; of a union "K or P"
  uint64_t offset = 0, bytes = 0;
  std::vector<uint64_t> dimensions;  ///< none: a scalar, or not known
  std::vector<SharedArray> members;  ///< of a union: K, and P
};
/// What lies at this offset of a block's shared memory; all dynamic shared memory where its struct
/// is not known.
SharedArray shared_array(const Block&, uint64_t offset);

/// Is this loaded object the one that holds the simulator and its kernels? Mostly the program
/// itself; a step's shared library (common/harness/library/) holds its own.
bool is_own_object(const dl_phdr_info& info);

/// Does pc lie in a function that copies a struct, written by the compiler as a rule? (`T::T(const
/// T&)`, `T::operator=(const T&)`) Quick for a pc that it has seen before.
bool is_struct_copy(const void* pc);

/// Looks up many program counters with one call of addr2line, for source_of().
void resolve_sources(const std::vector<const void*>& pcs);

/// By byte of a block's shared memory, which has `size` bytes: is it a part of a shared array?
/// Behind each one is a gap (memory/as.in).
const uint8_t* bytes_of_shared_arrays(size_t size);

}  // namespace sim

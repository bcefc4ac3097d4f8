/// \file
/// Names from the program (or the shared library that holds the kernels): kernels and shared arrays
/// from its symbol table, source lines from addr2line.
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
/// A name for messages: without the middle of a long one, or of template arguments.
std::string spoken(const std::string& name);
/// A variable of the program, demangled; "vtable for C" for the virtual table of C. Empty: none.
std::string variable_name(const void* p);
/// "sK, byte 132"; in a struct "s.dS[1][66], byte 132".
std::string shared_name(const Block&, uint64_t offset);
/// The fault of an access here: "past the end of the shared array s, at byte 256 of 256".
std::string shared_bounds(const Block&, uint64_t offset);
std::string source_of(const void* pc);  ///< "tile.cuh:42", from the line table
/// The line of the program's text that called this, outside of library headers.
std::string calling_source();
/// The same, with the innermost call in the kernel's file: "tile.cuh:42 (called at kernel.cuh:7)".
std::string source_and_caller(const void* pc);
/// A source line named in a message.
struct Place {
  std::string file;  ///< as given to the compiler
  int line;
};
/// Registers "/.../tile.cuh:42" for places_in() under its name in messages, "tile.cuh:42".
std::string named_place(const std::string& file_and_line);
/// The places that a sentence names, in order, each once.
std::vector<Place> places_in(const std::string& sentence);
/// The lines of an address, innermost first: of inlined functions, then of their callers, as
/// "/.../tile.cuh:42"; without those of the simulator's headers.
std::vector<std::string> frames_of(const void* pc);
/// The arrays of the function that contains pc; none without debug information.
std::vector<DeclaredArray> declared_arrays(const void* pc);
/// The function whose own `__shared__` arrays have the most bytes; a global array counts as one.
struct StaticShared {
  std::string function;
  uint64_t bytes = 0;
};
const StaticShared& most_static_shared();
/// Is pc in this function's code?
bool is_inside(const void* pc, const void* function);

/// An array or a scalar in a block's shared memory.
struct SharedArray {
  std::string name;  ///< "K", "stages[1].K"; for a union "K or P"
  uint64_t offset = 0, bytes = 0;
  std::vector<uint64_t> dimensions;  ///< none: a scalar, or unknown
  std::vector<SharedArray> members;  ///< of a union: K, and P
};
/// The array at this offset of shared memory; all dynamic memory where its struct is unknown.
SharedArray shared_array(const Block&, uint64_t offset);

/// Does this loaded object, the program or a step's library, hold the simulator and its kernels?
bool is_own_object(const dl_phdr_info& info);

/// Is pc in a function that copies a struct (`T::T(const T&)`, `T::operator=`)? Cached.
bool is_struct_copy(const void* pc);

/// Resolves many program counters with one call of addr2line, for source_of().
void resolve_sources(const std::vector<const void*>& pcs);

/// Per byte of shared memory of `size` bytes: is it in a shared array, which a gap (as.in) follows?
const uint8_t* bytes_of_shared_arrays(size_t size);

}  // namespace sim

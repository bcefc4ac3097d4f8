/// \file
/// Which field of a struct lies at an offset, from the debug information (DWARF 4) of the kernels.
/// Kernels are always compiled with it; where it is missing, messages have the byte alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sim {

/// Whether the linker compressed what the functions below read: they find nothing.
bool has_compressed_types(std::string_view file);

/// An array, or a scalar, inside a struct or alone.
struct Field {
  std::string name;  ///< "K", or "stages[1].K"
  uint64_t at = 0;   ///< bytes from the beginning of the whole
  uint64_t bytes = 0;
  std::vector<uint64_t> dimensions;  ///< none: a scalar
};

/// The field at `byte` of dynamic shared memory, such as "s.dS[1][96]": of the struct that the
/// kernel, or what is inlined into it, takes from fa::dynamic_shared() and keeps in a reference or
/// a pointer. Fields of a union that share the byte are all named: "s.K[0] or s.P[0]". Empty: there
/// is no such struct, or more than one.
/// \param file the program, an ELF file
/// \param kernel the kernel's address in it
std::string dynamic_field(std::string_view file, uint64_t kernel, uint64_t byte);

/// The field at `byte` of the shared variable `name`, which begins at `offset` of the thread-local
/// storage. Empty when it is no struct, nor an array of them.
std::string static_field(std::string_view file, const std::string& name, uint64_t offset,
                         uint64_t byte);

/// All fields of the struct of dynamic_field(); none where that is empty.
std::vector<Field> dynamic_fields(std::string_view file, uint64_t kernel);

/// All fields of the shared variable at `offset` of the thread-local storage, or itself when it is
/// no struct; none without debug information.
std::vector<Field> static_fields(std::string_view file, const std::string& name, uint64_t offset);

/// An array that a function declares, or what is inlined into it.
struct DeclaredArray {
  std::string name;
  std::vector<uint64_t> dimensions;
  uint64_t element_bytes = 0;
  bool shared = false;  ///< __shared__, with a size of its own
};
/// \param function its address
std::vector<DeclaredArray> declared_arrays(std::string_view file, uint64_t function);

}  // namespace sim

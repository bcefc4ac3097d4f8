/// \file
/// The field of a struct at an offset, from the kernels' debug information (DWARF 4). Kernels are
/// always compiled with it; without it, messages have only the byte.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sim {

/// Has the linker compressed the debug information? Then the functions below find nothing.
bool has_compressed_types(std::string_view file);

/// An array or a scalar, inside a struct or by itself.
struct Field {
  std::string name;  ///< "K", or "stages[1].K"
  uint64_t at = 0;   ///< bytes from the start of the whole
  uint64_t bytes = 0;
  std::vector<uint64_t> dimensions;  ///< none: a scalar
};

/// The field at `byte` of dynamic shared memory, such as "s.dS[1][96]", in the struct that the
/// kernel, or a function inlined into it, keeps by reference or pointer from fa::dynamic_shared().
/// All fields of a union that share it: "s.K[0] or s.P[0]". Empty without exactly one such struct.
/// \param file the program, an ELF file
/// \param kernel the kernel's address in it
std::string dynamic_field(std::string_view file, uint64_t kernel, uint64_t byte);

/// The field at `byte` of the shared variable `name` at TLS `offset`; empty unless in a struct.
std::string static_field(std::string_view file, const std::string& name, uint64_t offset,
                         uint64_t byte);

/// All fields of the struct of dynamic_field(); none where that is empty.
std::vector<Field> dynamic_fields(std::string_view file, uint64_t kernel);

/// All fields of the shared variable at TLS `offset`, or itself; none without debug information.
std::vector<Field> static_fields(std::string_view file, const std::string& name, uint64_t offset);

/// An array declared by a function, or by one inlined into it.
struct DeclaredArray {
  std::string name;
  std::vector<uint64_t> dimensions;
  uint64_t element_bytes = 0;
  bool shared = false;  ///< __shared__, with a static size
};
/// \param function its address
std::vector<DeclaredArray> declared_arrays(std::string_view file, uint64_t function);

}  // namespace sim

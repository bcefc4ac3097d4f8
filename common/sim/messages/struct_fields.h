/// \file
/// Which field of a struct lies at an offset, from the debug information (DWARF 4) of the kernels.
/// Kernels are always compiled with it; where it is missing, messages have the byte alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sim {

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

}  // namespace sim

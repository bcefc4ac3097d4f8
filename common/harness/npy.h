/// \file
/// NumPy's .npy, format 1.0 to 3.0, C order, little endian: reads f2, f4, f8, i4, i8 and b1, writes
/// f4.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fa {

/// One array, converted from the file's type.
struct Npy {
  std::vector<size_t> shape;
  std::vector<float> data;  ///< C order
};

/// "[1, 4, 1024, 64]".
std::string text_of(const std::vector<size_t>& shape);

/// One array of integers.
struct NpyIntegers {
  std::vector<size_t> shape;
  std::vector<int64_t> data;  ///< C order
  bool is_bool = false;
};

/// \throws UsageError with one sentence that names the file and what is wrong with it.
Npy read_npy(const std::string& path);
/// The same for i4 and i8, and for b1 (NumPy's bool) if `bools`.
NpyIntegers read_npy_integers(const std::string& path, bool bools = false);
/// Writes the whole file or none, by write_file(). \throws UsageError, ResourceError as it does.
void write_npy(const std::string& path, const std::vector<size_t>& shape,
               const std::vector<float>& data);

}  // namespace fa

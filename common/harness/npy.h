/// \file
/// NumPy's .npy files, format 1.0 to 3.0, C order: read f2, f4, f8, i4, i8 (little endian); write
/// f4.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fa {

/// One array, whatever type the file holds.
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
};

/// \throws UsageError with one sentence that names the file and what is wrong with it.
Npy read_npy(const std::string& path);
/// The same of i4 and i8.
NpyIntegers read_npy_integers(const std::string& path);
/// Whole or not at all: write_file(). \throws UsageError, ResourceError as that does.
void write_npy(const std::string& path, const std::vector<size_t>& shape,
               const std::vector<float>& data);

}  // namespace fa

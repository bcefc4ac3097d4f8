/// \file
/// Bytes, in the three levels and from the three sources that must never be mixed.
///
/// Levels: *requested* by the kernels' instructions, *L2*, and *HBM* (DRAM).
/// Sources: *predicted* by the step's formula, *counted* by the simulator, *measured* by hardware.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fa {

/// Bytes by direction. An atomic counts once, beside read and write.
struct Bytes {
  uint64_t read = 0;
  uint64_t write = 0;
  uint64_t atomic = 0;

  uint64_t total() const { return read + write + atomic; }
  bool operator==(const Bytes&) const = default;
  Bytes& operator+=(const Bytes& o) {
    read += o.read;
    write += o.write;
    atomic += o.atomic;
    return *this;
  }
};

/// The textbook count of one kernel: loads and stores per element of its operand.
struct PerElement {
  std::string kernel;     ///< its name without template arguments
  std::string element;    ///< for example "score"
  uint64_t elements = 0;  ///< how many there are
  uint64_t bytes = 4;     ///< of one element
  double accesses = 0;    ///< predicted loads and stores per element
};

/// What a step predicts about one run, by the formulas in its kernel file.
struct Prediction {
  std::map<std::string, Bytes> buffers;  ///< requested bytes per named buffer ("Q", "S", ...)
  Bytes hbm;                             ///< DRAM bytes when each kernel streams its operands once
  uint64_t flops = 0;  ///< floating-point operations of the matrix products, as executed
  std::vector<PerElement> per_element = {};  ///< where a count per element says more than a sum

  /// `t["Q"].read = ...`
  Bytes& operator[](const std::string& buffer);
  Bytes total() const;
};

}  // namespace fa

/// \file
/// Replaces Thrust's header of this name.
#pragma once

#include <thrust/system/error_code.h>

#include "cuda_runtime.h"

namespace thrust {

namespace system {
inline const error_category& cuda_category() {
  struct Category : error_category {
    const char* name() const override { return "cuda"; }
    std::string message(int e) const override {
      return cudaGetErrorString(static_cast<cudaError_t>(e));
    }
  };
  static const Category category;
  return category;
}
}  // namespace system
using system::cuda_category;

}  // namespace thrust

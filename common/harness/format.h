/// \file
/// fmt, header-only: the one way in which common/ includes it.
#pragma once

#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#if defined(__NVCC__) && !defined(__CUDACC__) && !defined(FMT_USE_CONSTEXPR)
#define FMT_USE_CONSTEXPR \
  1  // nvcc hands a .cpp to the host compiler, yet fmt 9 takes it for nvcc's own
#endif
#include <fmt/format.h>

#include "common/dialect/errors.h"

namespace fa {

/// \throws UsageError with this sentence.
template <class... A>
[[noreturn]] void refuse(fmt::format_string<A...> sentence, A&&... a) {
  throw UsageError(fmt::format(sentence, std::forward<A>(a)...));
}

}  // namespace fa

/// \file
/// Numbers as text, and fmt, header-only: common/ includes fmt only here.
#pragma once

#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#if defined(__NVCC__) && !defined(__CUDACC__) && !defined(FMT_USE_CONSTEXPR)
#define FMT_USE_CONSTEXPR \
  1  // nvcc hands a .cpp to the host compiler, yet fmt 9 takes it for CUDA code
#endif
#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "common/dialect/errors.h"

namespace fa {

/// \throws UsageError with the formatted sentence.
template <class... A>
[[noreturn]] void refuse(fmt::format_string<A...> sentence, A&&... a) {
  throw UsageError(fmt::format(sentence, std::forward<A>(a)...));
}

/// Three significant digits with a decimal unit: 1234567 -> "1.23 M".
std::string scaled(double);
/// "1.50 GB", "64.0 kB", "12 B": three digits, decimal units.
std::string human_bytes(double bytes);
/// "1.50 s", "64.0 ms", "12 us": three digits.
std::string human_time(double ms);
/// "68,719,476,736".
std::string grouped(uint64_t);

}  // namespace fa

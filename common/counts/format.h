/// \file
/// Numbers as text, and fmt: common/ includes it only here. Its formatter is compiled once, into
/// format.cpp, so no library of fmt's is linked.
#pragma once

#if defined(__NVCC__) && !defined(__CUDACC__) && !defined(FMT_USE_CONSTEXPR)
#define FMT_USE_CONSTEXPR \
  1  // nvcc hands a .cpp to the host compiler, yet fmt 9 takes it for CUDA code
#endif
#if __has_include(<fmt/base.h>)  // fmt 11, whose core.h is all of it
#include <fmt/format.h>
#else
#include <fmt/core.h>
#endif

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

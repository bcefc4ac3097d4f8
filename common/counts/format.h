/// \file
/// Numbers as text, the layout of text for a terminal, and fmt: common/ includes it only here. Its
/// formatter is compiled once, into format.cpp, so no library of fmt's is linked.
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

// --- text layout for a terminal ------------------------------------------------------------------
// 80 columns, whatever its width, so that files, pages of the documentation and screens hold the
// same lines. Help and refusals also fit a narrower terminal.

/// The width of all text that a program prints.
constexpr size_t kScreenWidth = 80;

/// `first`, then `words`, broken at spaces so that no line exceeds the screen. Only a word longer
/// than a line is cut. \param indent columns before the later lines
/// \returns lines, each with its newline
std::string wrapped(const std::string& first, const std::string& words, size_t indent);

/// The width of the label at the left of each section of a report.
constexpr size_t kLabel = 10;
/// A paragraph with such a label.
std::string labelled(std::string label, const std::string& words);

/// Breaks lines longer than a narrow terminal at spaces and indents the later parts.
std::string fitted(const std::string& text, size_t columns);

/// The columns of the terminal of a file descriptor, at most kScreenWidth, which is a file's width.
size_t columns_of(int descriptor);

/// `left` at the left and `right` ending in column `end`, on a separate line where the two would
/// touch. \returns text without a newline
std::string beside(const std::string& left, const std::string& right, size_t end);

}  // namespace fa

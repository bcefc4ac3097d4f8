/// \file
/// Text layout for a terminal: 80 columns, whatever its width, so that files, pages of the
/// documentation and screens hold the same lines. Help and refusals also fit a narrower terminal.
#pragma once

#include <string>

namespace fa {

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

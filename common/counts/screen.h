/// \file
/// How text is laid out for a terminal: 80 columns, whatever the terminal's own width, so that a
/// file, a page of the documentation and a screen hold the same lines. Help and refusals, which are
/// no tables, fit a narrower one.
#pragma once

#include <string>

namespace fa {

/// The columns of every text that a program prints.
constexpr size_t kScreenWidth = 80;

/// `first` and then `words`, broken at spaces so that no line exceeds the screen. Only a word that
/// is longer than a whole line is cut. \param indent columns before the later lines
/// \returns lines, each with its end
std::string wrapped(const std::string& first, const std::string& words, size_t indent);

/// Columns of the label at the left of each section of a report.
constexpr size_t kLabel = 10;
/// A labelled paragraph of one.
std::string labelled(std::string label, const std::string& words);

/// For a terminal that is narrower than the screen: lines that do not fit are broken at spaces, the
/// later ones further to the right than their first. Else `text` as it is.
std::string fitted(const std::string& text, size_t columns);

/// The columns of the terminal behind a file descriptor, at most kScreenWidth, which a file has.
size_t columns_of(int descriptor);

/// `left` at the left and `right` so that it ends in column `end`; on a line of its own where the
/// two would touch. \returns no end of line
std::string beside(const std::string& left, const std::string& right, size_t end);

}  // namespace fa

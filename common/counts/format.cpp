#ifndef FMT_HEADER_ONLY  // the CMake build defines it for the unit of which this file is a part
#define FMT_HEADER_ONLY
#endif
#include "common/counts/format.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <sstream>

namespace fa {

namespace {

/// What all other files call.
[[gnu::used]] std::string (*const formatter)(fmt::string_view, fmt::format_args) = fmt::vformat;

/// 3.14, 31.4, 314; below 1 as few digits as are needed.
std::string three_digits(double x) {
  const double size = std::fabs(x);
  if (size < 0.9995) return fmt::format("{:.3g}", x);
  return fmt::format("{:.{}f}", x, size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

}  // namespace

std::string scaled(double x) {
  static const char* const kUnits[] = {"", "k", "M", "G", "T", "P", "E"};
  size_t u = 0;
  while (std::fabs(x) >= 999.5 && u + 1 < std::size(kUnits)) x /= 1000, ++u;
  return u == 0 ? fmt::format("{:.0f} ", x) : fmt::format("{} {}", three_digits(x), kUnits[u]);
}

std::string human_bytes(double bytes) { return scaled(bytes) + "B"; }

std::string human_time(double ms) {
  if (ms >= 999.5) return three_digits(ms / 1000) + " s";
  return ms >= 0.9995 ? three_digits(ms) + " ms" : three_digits(1000 * ms) + " us";
}

std::string grouped(uint64_t x) {
  const std::string digits = std::to_string(x);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i != 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

// --- text layout for a terminal ------------------------------------------------------------------

std::string wrapped(const std::string& first, const std::string& words, size_t indent) {
  std::string out, line = first;
  std::istringstream in(words);
  bool empty = true;
  for (std::string word; in >> word;) {
    if (!empty && line.size() + 1 + word.size() > kScreenWidth) {
      out += line + "\n";
      line = std::string(indent, ' ');
      empty = true;
    }
    for (; line.size() + word.size() > kScreenWidth && word.size() > kScreenWidth - indent;) {
      const size_t fits = kScreenWidth - line.size();
      out += line + word.substr(0, fits) + "\n";
      word = word.substr(fits);
      line = std::string(indent, ' ');
    }
    line += (empty ? "" : " ") + word;
    empty = false;
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return out + line + "\n";
}

std::string labelled(std::string label, const std::string& words) {
  label.resize(std::max(label.size(), kLabel), ' ');
  return wrapped(label, words, kLabel);
}

std::string fitted(const std::string& text, size_t columns) {
  std::string out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.size() <= columns) {
      out += line + "\n";
      continue;
    }
    const size_t blanks = std::min(line.find_first_not_of(' '), columns / 4);
    size_t at = 0;
    std::istringstream words(line);
    for (std::string word; words >> word; at += word.size()) {
      if (at == 0)
        out += std::string(at = blanks, ' ');
      else if (at + 1 + word.size() <= columns)
        out += ' ', ++at;
      else
        out += "\n" + std::string(at = blanks + 2, ' ');
      out += word;
    }
    out += "\n";
  }
  return out;
}

size_t columns_of(int descriptor) {
  winsize size{};
  if (ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kScreenWidth;
  return std::min<size_t>(size.ws_col, kScreenWidth);
}

std::string beside(const std::string& left, const std::string& right, size_t end) {
  const bool fits = left.size() + right.size() + (right.empty() ? 0 : 1) <= end;
  const size_t blanks = end - right.size() - (fits ? left.size() : 0);
  return left + (fits ? "" : "\n") + std::string(blanks, ' ') + right;
}

}  // namespace fa

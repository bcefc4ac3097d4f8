#ifndef FMT_HEADER_ONLY  // the CMake build defines it for the unit of which this file is a part
#define FMT_HEADER_ONLY
#endif
#include "common/counts/format.h"

#include <cmath>
#include <iterator>

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

}  // namespace fa

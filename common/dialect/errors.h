/// \file
/// What a program may have to tell its user, by exit status.
#pragma once

#include <stdexcept>

namespace fa {

/// Bad use: wrong flags, an unsupported problem, a broken file. Programs print the sentence and
/// exit with 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Not enough memory, no device, or no room for the output. Programs print the sentence and exit 3.
struct ResourceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace fa

/// \file
/// What went wrong, as a value.
#pragma once

#include <new>
#include <nlohmann/json.hpp>
#include <string>

#include "common/dialect/errors.h"

namespace fa {

/// Exit status: right; wrong result; bad use; no memory, device or file; not checkable.
enum ExitStatus { kRight = 0, kWrong = 1, kBadUse = 2, kNoResource = 3, kNotCheckable = 4 };

/// An exit status and its sentence.
struct Failure {
  int status = kRight;
  std::string sentence = {};
  bool operator==(const Failure&) const = default;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Failure, status, sentence)

/// Calls `f`. \returns what it threw, or kRight.
Failure failure_of(auto&& f) {
  try {
    f();
    return {};
  } catch (const UsageError& e) {
    return {kBadUse, e.what()};
  } catch (const ResourceError& e) {
    return {kNoResource, e.what()};
  } catch (const std::bad_alloc&) {
    return {kNoResource, "not enough memory on the host: try a smaller problem"};
  } catch (const std::exception& e) {
    return {kWrong, e.what()};
  }
}

}  // namespace fa

// Compiled once, so that a check need not read the standard library again, nor a test of kernels.
#pragma once

#include "common/dialect/ptx/ptx.h"
#include "common/harness/inputs.h"
#include "common/harness/run.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"
#include "steps/exercise_checker/exercise.h"

// From g++ 12 on.
#if !FA_BACKEND_GPU && __cpp_lib_constexpr_string >= 201907 && __cpp_lib_constexpr_vector >= 201907
#include <algorithm>
#include <bit>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fa {

/// What the headers and the steps' host functions use of these templates. g++ leaves all templates
/// of a precompiled header to the files that include it, except for those that a constant needs.
constexpr bool instantiated() {
  using namespace std::literals;
  const size_t strings = "a"s.size() + L"a"s.size() + u8"a"s.size() + u"a"s.size() + U"a"s.size();
  const size_t views =
      "a"sv.size() + L"a"sv.size() + u8"a"sv.size() + u"a"sv.size() + U"a"sv.size();
  std::string s = "a";
  s = "b" + s;
  s = "b" + std::move(s) + "c";
  s += "d";
  std::string many(3, 'x'), copy(many), part(s.data(), s.size());
  many = std::move(copy);
  std::vector<int> sizes = {1, 2};
  std::vector<Scratch> workspace = {{"S", 4}, {"P", 4, true}}, other(workspace);
  return strings == views && !s.empty() && !sizes.empty() && !other.empty() &&
         std::popcount(3u) == 2 && std::countl_zero(1u) == 31 && std::countr_zero(4u) == 2 &&
         std::max<size_t>(1, 2) == 2 && std::min<size_t>(1, 2) == 1 && std::max(1, 2) == 2 &&
         std::min(1, 2) == 1;
}
static_assert(instantiated());

}  // namespace fa
#endif

// Included by every test: Catch2 (2.13 and 3.x), and the two lengths of a run:
//
//   test_NAME           the short one
//   test_NAME "[all]"   the rest: cases tagged [.all], and other combinations of one_in() in cases
//                       tagged [all]
//
// ctest runs the second as test_NAME_all, labelled `all`: `ctest -LE all` is short.
#pragma once

#if __has_include(<catch2/catch_test_macros.hpp>)  // 3.x
#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators_adapters.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;
#else
#include <catch2/catch.hpp>
inline auto ContainsSubstring(const std::string& s) { return Catch::Matchers::Contains(s); }
#endif

namespace fa::test {

/// To be called once per combination of a case's values: does it belong to this run? The short run
/// has one in n, spread over all values of each parameter; the long run has three in thirteen of
/// the others. The count continues from variant to variant, so each omits different ones.
bool one_in(int n);
/// The same where the case itself selects those of the short run.
bool is_now(bool in_short_run);

}  // namespace fa::test

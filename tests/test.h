// What every test includes: Catch2 (2.13 and 3.x alike), and the two lengths of a run:
//
//   test_NAME           the short one
//   test_NAME "[all]"   what it leaves out: the cases that are tagged [.all], and in those that are
//                       tagged [all] other combinations of what one_in() chooses from
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

/// To be called once in each combination of a case's values: is it this run's? The short run has
/// one in n, spread over all values of each parameter; the long run has three in thirteen of the
/// others. A case counts on from one variant to the next: each of them leaves out others.
bool one_in(int n);
/// The same where the case itself says which are the short run's.
bool is_now(bool in_short_run);

}  // namespace fa::test

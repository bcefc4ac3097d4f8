// Catch2's main, for 2.x (one header) and 3.x, and the two lengths of a run (test.h).
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using ListenerBase = Catch::EventListenerBase;
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
using ListenerBase = Catch::TestEventListenerBase;
#endif
#include <algorithm>
#include <cmath>

#include "tests/test.h"

namespace {

bool the_rest = false;  ///< "[all]" was requested
bool tagged = false, hidden = false;
int combinations = 0;  ///< of the case, so far

struct Case : ListenerBase {
  using ListenerBase::ListenerBase;
  void testCaseStarting(const Catch::TestCaseInfo& info) override {
    ListenerBase::testCaseStarting(info);
    tagged = info.tagsAsString().find("[all]") != std::string::npos;
    hidden = info.isHidden();
    combinations = 0;
  }
};
CATCH_REGISTER_LISTENER(Case)

}  // namespace

bool fa::test::is_now(bool in_short_run) {
  if (!tagged) FAIL("this case leaves out combinations and has no tag [all], to run them");
  return hidden || in_short_run != the_rest;
}
bool fa::test::one_in(int n) {
  // Turns of a circle by an irrational part: whatever the numbers of values, a piece of the circle
  // meets each value, and each pair of values, about as often as any other.
  const int i = combinations++;
  const auto within = [i](double turn, double piece) { return std::fmod(i * turn, 1) < piece; };
  const bool in_short_run = within(0.6180339887, 1. / n);  // the golden ratio
  return is_now(in_short_run) && (in_short_run || within(0.4142135624, 3. / 13));
}

int main(int argc, char** argv) {
  Catch::Session session;
  if (const int bad_use = session.applyCommandLine(argc, argv)) return bad_use;
  const auto& named = session.configData().testsOrTags;
  the_rest = std::any_of(named.begin(), named.end(),
                         [](const std::string& name) { return name.rfind("[all]", 0) == 0; });
#ifdef CATCH_CONFIG_RUNNER  // 3.x itself fails where nothing is run
  if (the_rest) {
    auto& warnings = session.configData().warnings;
    warnings = static_cast<Catch::WarnAbout::What>(warnings | Catch::WarnAbout::NoTests);
  }
#endif
  return session.run();
}

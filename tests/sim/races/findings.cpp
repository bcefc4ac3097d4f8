// What is said of the faults of a launch (findings.h), without a kernel.
#include "common/sim/observers/races/findings.h"

#include "tests/test.h"

using namespace sim::races;

namespace {

const sim::Where kStore{"k.cuh", 7}, kLoad{"k.cuh", 9};

/// What a report lists, and how many more there are.
std::pair<std::vector<std::string>, size_t> reported(Findings& findings,
                                                     const std::optional<fa::Finding>& fatal = {}) {
  std::vector<std::string> texts;
  try {
    findings.report(fatal);
  } catch (const fa::KernelStopped& stopped) {
    for (const fa::Finding& f : stopped.findings) texts.push_back(f.text);
    return {texts, stopped.more};
  }
  return {};
}

}  // namespace

TEST_CASE("findings: two lines in either order are one finding", "[races][findings]") {
  Findings findings;
  Findings::Finding& one = findings.at(Fault::shared_race, {nullptr, &kStore}, {nullptr, &kLoad});
  CHECK(one.text == "");
  one.text = "one";
  const sim::Where again = kStore;
  CHECK(findings.at(Fault::shared_race, {nullptr, &kLoad}, {nullptr, &again}).text == "one");
  CHECK(findings.latest() == 0);
  findings.at(Fault::device_race, {nullptr, &kLoad}, {nullptr, &kStore}).text = "two";
  CHECK(findings.latest() == 1);
  findings.at(Fault::shared_race, {nullptr, &kLoad}, {nullptr, &kLoad}).text = "three";
  CHECK(reported(findings).first == std::vector<std::string>{"one", "two", "three"});
}

TEST_CASE("findings: what races explain, and remarks, are not reported", "[races][findings]") {
  Findings findings;
  Findings::Finding& read = findings.at(Fault::uninitialised, {nullptr, &kLoad}, {});
  read.text = "read";
  findings.at(Fault::remark, {nullptr, &kLoad}, {}).text = "remark";
  CHECK(reported(findings).first.empty());
  CHECK(findings.remarks() == std::vector<std::string>{"remark"});
  findings[0].unexplained = 1;
  CHECK(reported(findings).first == std::vector<std::string>{"read"});
}

TEST_CASE("findings: stores of equal values are last", "[races][findings]") {
  for (const uint32_t stored : {5u, 6u}) {
    CAPTURE(stored);
    Findings findings;
    uint32_t word = 5;
    Findings::Finding& race = findings.at(Fault::shared_race, {nullptr, &kStore}, {});
    race.text = "race";
    race.same_value = true;
    findings.compare_later(race, &word, sizeof word);
    CHECK(findings.has_pending());
    word = stored;
    findings.compare();
    CHECK_FALSE(findings.has_pending());
    findings.at(Fault::shared_race, {nullptr, &kLoad}, {}).text = "other";
    const std::vector<std::string> equal = {"other", "race; each stores the same value"};
    CHECK(reported(findings).first ==
          (stored == 5 ? equal : std::vector<std::string>{"race", "other"}));
  }
}

TEST_CASE("findings: a report spells out some, and what ended the launch", "[races][findings]") {
  Findings findings;
  std::vector<sim::Where> lines;
  for (unsigned line = 1; line <= 10; ++line) lines.push_back({"k.cuh", line});
  for (const sim::Where& line : lines) {
    findings.at(Fault::shared_race, {nullptr, &line}, {}).text = std::to_string(line.line);
  }
  CHECK(reported(findings).first.size() == kSpelledOut);
  CHECK(reported(findings).second == 2);
  const auto [texts, more] = reported(findings, fa::Finding{fa::FaultKind::deadlock, "end"});
  CHECK(texts.size() == kSpelledOut);
  CHECK(texts.back() == "end");
  CHECK(more == 3);
}

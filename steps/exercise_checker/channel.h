/// \file
/// How the judge and the program with the student's code talk: a line of JSON, then floats,
/// through a pipe each way. The judge has what the student must not: the seed, the reference, the
/// bounds. Only this file is in both.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/harness/problem.h"

namespace fa {

/// One end, of two file descriptors.
class Channel {
 public:
  using json = nlohmann::json;

  /// \param in, out as words of the command line
  Channel(const char* in, const char* out)
      : in_(fdopen(std::atoi(in), "r")), out_(fdopen(std::atoi(out), "w")) {
    if (!in_ || !out_)
      throw UsageError("./scripts/learn starts this program; do not start it yourself");
  }

  /// Says a line, and these floats.
  void put(const json& line, const std::vector<const std::vector<float>*>& floats = {}) {
    std::fprintf(out_, "%s\n", line.dump().c_str());
    for (const std::vector<float>* x : floats)
      std::fwrite(x->data(), sizeof(float), x->size(), out_);
    std::fflush(out_);
  }

  /// The next line; null where the other program has ended, or says what is no JSON.
  json get() {
    constexpr size_t kLongest = size_t{64} << 20;  // far more than the counts of an exercise
    std::string line;
    for (int c; line.size() < kLongest && (c = std::getc(in_)) != EOF && c != '\n';) {
      line += char(c);
    }
    return json::parse(line, nullptr, false).is_discarded() ? json() : json::parse(line);
  }

  /// Those after a line; fewer where the other program has ended.
  std::vector<float> floats(size_t count) {
    std::vector<float> x(count);
    x.resize(std::fread(x.data(), sizeof(float), count, in_));
    return x;
  }

 private:
  std::FILE *in_, *out_;
};

/// A problem of an exercise; hkv and nk: as h and n where they are not given. With a window [L, R],
/// or the lengths of documents, which sum to n.
inline Problem problem_of(const nlohmann::json& j) {
  Problem p;
  p.B = j.value("b", 1);
  p.H = j.value("h", 1);
  p.Hkv = j.value("hkv", p.H);
  p.N = j.at("n");
  p.Nk = j.value("nk", p.N);
  p.d = j.at("d");
  p.causal = j.value("causal", false);
  if (j.contains("window")) p.mask.left = j["window"][0], p.mask.right = j["window"][1];
  if (j.contains("lengths")) {  // of documents, which have as many keys as rows
    p.mask.row_starts = {0};
    for (const int n : j["lengths"]) p.mask.row_starts.push_back(p.mask.row_starts.back() + n);
    p.mask.key_starts = p.mask.row_starts;
  }
  validate(p, {.gqa = true, .cross = true, .window = true, .documents = true});
  return p;
}

}  // namespace fa

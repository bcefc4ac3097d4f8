/// \file
/// How the judge and the program that it judges talk: a line of JSON, then bytes, through a pipe
/// each way. The judge has what that program must not: the seed, the reference, the bounds.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/dialect/errors.h"

namespace fa {

/// One end, of two file descriptors.
class Channel {
 public:
  using json = nlohmann::json;

  /// \param in, out as words of the command line
  Channel(const char* in, const char* out)
      : in_(fdopen(std::atoi(in), "r")), out_(fdopen(std::atoi(out), "w")) {
    if (!in_ || !out_) throw UsageError("./scripts/learn and judge start this program");
  }

  /// Says a line, and these numbers.
  template <class T = float>
  void put(const json& line, const std::vector<const std::vector<T>*>& numbers = {}) {
    std::fprintf(out_, "%s\n", line.dump(-1, ' ', false, json::error_handler_t::replace).c_str());
    for (const std::vector<T>* x : numbers) std::fwrite(x->data(), sizeof(T), x->size(), out_);
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
  template <class T = float>
  std::vector<T> numbers(size_t count) {
    std::vector<T> x(count);
    x.resize(std::fread(x.data(), sizeof(T), count, in_));
    return x;
  }

 private:
  std::FILE *in_, *out_;
};

}  // namespace fa

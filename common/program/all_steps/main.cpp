// main() of build/<preset>/steps/all_steps, which links all steps:
//
//   all_steps < RUNS
//
// A line of RUNS holds, separated by tabs, a file for the output of the step's program, then that
// program's name and arguments. The answer is a line with its exit status. Runs in one process
// share what takes longer than a run itself: the start of CUDA, the inputs, the reference. The
// process ends with the first run that fails, since some CUDA errors are permanent.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "common/program/program.h"

namespace {

std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields;
  std::istringstream in(line);
  for (std::string field; std::getline(in, field, '\t');) fields.push_back(field);
  return fields;
}

/// Redirects standard output and standard error to a file until the end of the run.
class Redirected {
 public:
  explicit Redirected(const char* path)
      : file_(open(path, O_CREAT | O_TRUNC | O_WRONLY, 0666)), out_(dup(1)), error_(dup(2)) {
    if (!opened()) return;
    dup2(file_, 1);
    dup2(file_, 2);
  }
  ~Redirected() {
    std::fflush(stdout);
    dup2(out_, 1);
    dup2(error_, 2);
    for (const int each : {file_, out_, error_}) close(each);
  }
  Redirected(const Redirected&) = delete;
  Redirected& operator=(const Redirected&) = delete;
  bool opened() const { return file_ >= 0; }

 private:
  int file_, out_, error_;
};

int run(std::vector<std::string>& fields) {
  if (fields.size() < 2) return fa::kBadUse;
  const Redirected to(fields[0].c_str());
  if (!to.opened()) return fa::kNoResource;
  const std::vector<fa::Step>& steps = fa::linked_steps();
  const auto step = std::find_if(steps.begin(), steps.end(),
                                 [&](const fa::Step& each) { return each.id == fields[1]; });
  if (step == steps.end()) return fa::kBadUse;
  std::vector<char*> arguments;
  for (size_t i = 1; i < fields.size(); ++i) arguments.push_back(fields[i].data());
  arguments.push_back(nullptr);
  return fa::step_main(static_cast<int>(fields.size()) - 1, arguments.data(), *step);
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<std::string> fields = fields_of(line);
    const int status = run(fields);
    std::printf("%d\n", status);
    std::fflush(stdout);
    if (status != 0) return status;
  }
  return 0;
}

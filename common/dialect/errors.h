/// \file
/// Errors that a program reports to its user, by exit status.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace fa {

/// Bad use: wrong flags, an unsupported problem, a broken file. Programs print it and exit with 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Not enough memory, no device, or no room for the output. Programs print the sentence and exit 3.
struct ResourceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Kinds of fault in a kernel.
enum class FaultKind {
  race,
  uninitialised,
  deadlock,       ///< threads wait for each other, or at different barriers
  endless_loop,   ///< stopped by the watchdog
  misaligned,     ///< an address that is not a multiple of what the access needs
  out_of_bounds,  ///< in space, or after the end of a buffer's or a block's life
  refused,        ///< anything else that CUDA does not allow
};

/// One fault of a kernel.
struct Finding {
  FaultKind kind;
  std::string text;  ///< one sentence with kernel, block, thread and file:line
};

/// The simulator stopped a kernel, or refused a call. Programs print the findings and exit with 1.
class KernelStopped : public std::runtime_error {
 public:
  /// \param found at least one, in the order of discovery.
  /// \param unsaid how many more there are, at other lines.
  explicit KernelStopped(std::vector<Finding> found, size_t unsaid = 0)
      : std::runtime_error(joined(found, unsaid)), findings(std::move(found)), more(unsaid) {}
  KernelStopped(FaultKind kind, const std::string& text)
      : KernelStopped(std::vector<Finding>{{kind, text}}) {}

  std::vector<Finding> findings;
  size_t more;

  /// One per finding, and perhaps "3 more, at other lines". what() has them one per line.
  std::vector<std::string> sentences() const { return sentences(findings, more); }

 private:
  static std::vector<std::string> sentences(const std::vector<Finding>& findings, size_t more) {
    std::vector<std::string> all;
    for (const Finding& f : findings) all.push_back(f.text);
    if (more != 0) all.push_back(std::to_string(more) + " more, at other lines");
    return all;
  }
  static std::string joined(const std::vector<Finding>& findings, size_t more) {
    std::string text;
    for (const std::string& s : sentences(findings, more)) {
      text += (text.empty() ? "" : "\nalso: ") + s;
    }
    return text;
  }
};

}  // namespace fa

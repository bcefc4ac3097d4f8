/// \file
/// The command line: the options of every step, and those in Step::options.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/harness/problem.h"
#include "common/harness/step.h"

namespace fa {

/// The options of a step program.
struct Options : ExtraOptions {
  Problem problem;  ///< sizes from the flags or the .npy files; dtype of the chosen variant
  std::string input = "real";  ///< "real", "normal" or "outliers"
  InputFiles files;            ///< replace generated tensors
  std::string out;             ///< O as .npy, or empty
  std::string out_dir;         ///< all outputs as .npy, or empty
  std::string json;            ///< the report as JSON, or empty
  std::string trace;           ///< simulator: what every block did, or empty
  uint64_t seed = 1;
  int iters = 0;       ///< timed runs on a GPU; 0: as time_gpu() chooses
  size_t variant = 0;  ///< index into Step::variants
  std::string model_gpu = "H200";
  bool model_chosen = false;   ///< by --gpu
  bool predict = false;        ///< run nothing
  bool no_predict = false;     ///< omit the formulas: no prediction, no comparison
  int64_t estimate_heads = 0;  ///< simulator: estimate the time for this many (batch x heads)
  std::string estimate;        ///< GPU: a simulator's report whose estimate is shown; or empty
  bool details = false;        ///< print everything
  bool analyse = false;
  bool counters = true;   ///< GPU: read the hardware's counters, which takes seconds
  bool only_hbm = false;  ///< GPU: only the counters of HBM
  int workers = 0;        ///< the simulator's OS threads; 0: one per core, up to 16
  std::string text;       ///< not empty: print it (help, version, variants), exit with status 0
  bool verbatim = false;  ///< the text is for programs: do not wrap it
};

/// Parses the command line and, where .npy files are given, takes the sizes from their headers.
/// \throws UsageError with one sentence: unknown flag, not a number, unknown variant, a file that
/// is missing or contradicts a flag, a problem that the step does not support.
Options parse(int argc, const char* const* argv, const Step&);

/// The file of an output in the folder of --out-dir.
std::string output_path(const std::string& folder, const Tensor&);

/// \throws UsageError where the value of an option is empty, as in `--json ''` and `--json=`: it
/// would mean 0 for a number, and no file for a path.
void require_values(int argc, const char* const* argv);

/// The project's version, as in CMakeLists.txt.
extern const char* const kVersion;

}  // namespace fa

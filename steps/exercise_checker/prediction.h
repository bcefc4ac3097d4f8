/// \file
/// What a student's prediction is made of: ./scripts/learn compiles it with a generated main() that
/// hands the student's function to prediction_main().
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "common/harness/problem.h"
#include "common/harness/tiles.h"

namespace fa {

/// What the parts of a GPU do, for an H200: the figures of the programs' estimates.
struct GpuRates {
  double sms = 0;              ///< 132
  double clock = 0;            ///< clocks of an SM in a second: 1.98e9
  double lines = 0;            ///< L1 lines of 128 bytes that an SM looks up in a clock: 1
  double wavefronts = 0;       ///< of shared memory, of an SM in a clock: 1
  double instructions = 0;     ///< of warps, of an SM in a clock: 4
  double hbm_bytes_per_s = 0;  ///< 4e12
  double hbm_latency = 0;      ///< clocks from a load to what it loads: 659
  double launch = 0;           ///< seconds between two kernels: 1.25e-6
};

/// One launch of a kernel, whose time is to be predicted.
struct KernelRun {
  Problem problem;
  std::string variant;      ///< of the step: "shared"
  double instructions = 0;  ///< that all its warps execute, counted on an H200
};

/// What a student predicts.
struct TimePrediction {
  std::string limit;   ///< the part with the longest time, as the programs call it: "L1 lines"
  double seconds = 0;  ///< of the kernel
};

/// How far a predicted time may be off: 25%.
constexpr double kAllowedOff = 0.25;

/// Asks a student's function: for the limiter and time of a kernel, for the bytes that a run
/// requests, or for the variant that is faster; and tells the judge, as exercise_main() does.
int prediction_main(int argc, char** argv,
                    TimePrediction (*predict)(const KernelRun&, const GpuRates&));
int prediction_main(int argc, char** argv, double (*predict)(const Problem&));
int prediction_main(int argc, char** argv, std::string (*predict)(const Problem&, const GpuRates&));

}  // namespace fa

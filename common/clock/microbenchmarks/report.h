/// \file
/// What the groups found, for main.cpp to print.
#pragma once

#include <string>
#include <vector>

namespace fa::microbenchmarks {

constexpr char kClocks[] = "clocks";
constexpr char kBytesPerClock[] = "bytes per clock";
constexpr char kBytesPerSecond[] = "bytes per second";

/// One measured constant.
struct Figure {
  std::string name;
  double value;
  std::string unit, what;
};
inline std::vector<Figure> figures;  ///< of this run, in the order of measurement

/// Adds a figure, and prints it to stderr: a run that dies later has shown it.
void report(const std::string& name, double value, const char* unit, const std::string& what);

/// Hz of an SM while one warp runs. Set by the group clock, which always runs first.
inline double clock_hz = 0;

/// Version of the nvcc that compiled the kernels: "13.0.88".
std::string toolkit();

}  // namespace fa::microbenchmarks

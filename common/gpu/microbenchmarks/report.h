/// \file
/// The groups of the microbenchmarks, and their figures, for main.cpp to print.
#pragma once

#include <string>
#include <vector>

namespace fa::microbenchmarks {

// What each group measures, and in which file.
void measure_clock();    ///< clock.cu: clock of the SMs, one busy and all busy
void measure_l1();       ///< l1.cu: loads that hit in L1 and global stores, by lanes' addresses
void measure_shared();   ///< shared.cu: shared loads and stores, by the lanes' addresses
void measure_pipes();    ///< pipes.cu: rate and latency of arithmetic instructions
void measure_mma();      ///< mma.cu: rate and latency of mma m16n8k16
void measure_wgmma();    ///< sm_90a_wgmma.cu: rate and latency of wgmma
void measure_latency();  ///< latency.cu: of loads from each level, cp.async, __syncthreads
void measure_atomics();  ///< atomics.cu: rate of fp32 additions in the L2
void measure_l2();       ///< bandwidth.cu: bandwidth of the L2
void measure_tma();      ///< sm_90a_tma.cu: bandwidth and latency of TMA loads from the L2
void measure_hbm();      ///< bandwidth.cu: bandwidth of the device memory
void measure_launch();   ///< launch.cu: the cost of a launch, and of each block of it

constexpr char kClocks[] = "clocks";
constexpr char kBytesPerClock[] = "bytes per clock";
constexpr char kBytesPerSecond[] = "bytes per second";

/// One measured constant.
struct Figure {
  std::string name;
  double value;
  std::string unit, what;
};
inline std::vector<Figure> figures;  ///< of this run, in order of measurement

/// Adds a figure and prints it to stderr, where it stays if the run dies later.
void report(const std::string& name, double value, const char* unit, const std::string& what);

/// Hz of an SM while one warp runs. Set by the group clock, which always runs first.
inline double clock_hz = 0;

/// Version of the nvcc that compiled the kernels: "13.0.88".
std::string toolkit();

}  // namespace fa::microbenchmarks

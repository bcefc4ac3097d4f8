/// \file
/// The figures of an H200 from which times are estimated. docs/clock.md says of each where it comes
/// from: most were measured by common/clock/microbenchmarks. None was fitted to a step.
#pragma once

namespace fa::clocks {

// --- what a part of an SM does in a clock --------------------------------------------------------

constexpr double kDataPipe = 1;      ///< lines of the L1, or wavefronts of shared memory
constexpr double kIssue = 4;         ///< warp instructions
constexpr double kFma = 3.95;        ///< of these, fp32 additions and multiplications
constexpr double kAlu = 1.99;        ///< integer, logic, comparisons, conversions
constexpr double kSpecial = 0.5;     ///< exponentials, reciprocals
constexpr double kMma = 0.645;       ///< mma.m16n8k16
constexpr double kWgmmaColumns = 2;  ///< columns of wgmma.m64nNk16
constexpr double kReduction = 0.2;   ///< lines of atomics

// --- clocks that somebody waits ------------------------------------------------------------------

constexpr double kL2Latency = 275;
constexpr double kHbmLatency = 659;
constexpr double kCopyLatency = 294;  ///< cp.async, from the L2
constexpr double kTmaLatency = 288;   ///< from the L2, and for what an SM copies by TMA,
constexpr double kTmaBytes = 82;      ///< so many bytes a clock
constexpr double kSharedLatency = 23;
constexpr double kShuffleLatency = 24;
constexpr double kMmaLatency = 24;
constexpr double kWgmmaLatency = 73;      ///< of the wait, beyond the product's own time
constexpr double kBarrierLatency = 12;    ///< of a barrier,
constexpr double kBarrierPerWarp = 2;     ///< and for each warp that it gathers
constexpr double kDependentLatency = 4;   ///< of a result of plain arithmetic
constexpr double kIndependentChains = 2;  ///< a rule of thumb: how many a warp has at a time
constexpr double kBlockStart = 157;

// --- of the whole GPU ----------------------------------------------------------------------------

constexpr double kLoadedClock = 1.755e9;      ///< Hz, with tensor cores busy on all SMs
constexpr double kL2BytesPerSecond = 8.8e12;  ///< of 132 SMs at 1.98 GHz, all of them reading
constexpr double kHbmShare = 0.83;            ///< of the data sheet's rate, read and written
constexpr double kLaunchSeconds = 1.25e-6;    ///< of a kernel behind another one
constexpr double kTimingSeconds = 3.1e-6;     ///< that CUDA events add to what they time

}  // namespace fa::clocks

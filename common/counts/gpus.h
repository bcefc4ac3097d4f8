/// \file
/// The table of GPUs that the simulator can model: common/data/gpus.json, which users extend.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <string>
#include <vector>

namespace fa {

/// What one SM holds at a time; Hopper's figures where a row gives none.
struct SmSpec {
  unsigned threads = 2048;
  unsigned blocks = 32;
  unsigned registers = 65536;          ///< 32 bits each
  unsigned shared_bytes = 228 * 1024;  ///< at most; the rest of that memory is its L1
  unsigned l1_bytes = 256 * 1024;      ///< of L1 where blocks have no shared memory
  unsigned block_reserved_bytes =
      1024;  ///< of shared memory, which each block takes besides what it declares
};

/// A link to another GPU.
struct LinkSpec {
  std::string name;        ///< "NVLink 4"
  double bytes_per_s = 0;  ///< one way
};

/// One row of the table: data-sheet figures.
struct GpuSpec {
  std::string name;  ///< "H200"
  std::string arch;  ///< "sm_90"
  int sms = 0;
  SmSpec sm;
  double hbm_bytes_per_s = 0;
  double memory_bytes = 0;
  double l2_bytes = 0;
  double fp32_flops = 0;        ///< FMA on the CUDA cores
  double bf16_flops = 0;        ///< dense tensor cores; 0: none
  double fp8_flops = 0;         ///< 0: none
  std::vector<LinkSpec> links;  ///< the fastest first

  /// 90 for "sm_90".
  int arch_number() const { return std::atoi(arch.c_str() + 3); }
  /// Bytes of shared memory that one block can have.
  size_t block_shared_bytes() const { return sm.shared_bytes - sm.block_reserved_bytes; }
};

/// The constants of the time estimates, measured on one GPU: common/data/clock_*.json.
/// docs/clock.md gives the source of each; none was fitted to a step.
struct ClockFigures {
  /// The GPU that was measured; clock in Hz, rates by the data sheet.
  struct Machine {
    std::string name;
    double sms = 0, clock = 0, fp32_flops = 0, bf16_flops = 0;
  } measured_on;
  std::vector<std::string> verified;  ///< GPUs whose times were compared with estimates

  // Per clock, for one part of an SM.
  double data_pipe = 0;      ///< lines of the L1, or wavefronts of shared memory
  double issue = 0;          ///< warp instructions
  double fma = 0;            ///< of these, fp32 additions and multiplications
  double alu = 0;            ///< integer, logic, comparisons, conversions
  double special = 0;        ///< exponentials, reciprocals
  double mma = 0;            ///< mma.m16n8k16
  double wgmma_columns = 0;  ///< columns of wgmma.m64nNk16
  double reduction = 0;      ///< lines of atomics

  // Clocks of waiting.
  double l2_latency = 0, hbm_latency = 0;
  double copy_latency = 0;  ///< cp.async, from the L2
  double tma_latency = 0;   ///< from the L2
  double tma_bytes = 0;     ///< that an SM copies by TMA in a clock
  double shared_latency = 0, shuffle_latency = 0, mma_latency = 0;
  double wgmma_latency = 0;       ///< of the wait, beyond the product itself
  double barrier_latency = 0;     ///< without its warps
  double barrier_per_warp = 0;    ///< for each warp that it gathers, in addition
  double dependent_latency = 0;   ///< of a result of plain arithmetic
  double independent_chains = 0;  ///< of a warp at a time: a rule of thumb
  double block_start = 0;

  // Of the whole GPU.
  double loaded_clock = 0;         ///< Hz, with tensor cores busy on all SMs
  double l2_bytes_per_second = 0;  ///< all SMs reading, at `measured_on`'s clock
  double hbm_share = 0;            ///< of the data sheet's rate, read and written
  double launch_seconds = 0;       ///< of a kernel that follows another one
  double timing_seconds = 0;       ///< that CUDA events add to what they measure
};

/// The figures of this GPU, or of the H200 where it has no file; each file is read once.
/// \throws UsageError when the file is missing or damaged.
const ClockFigures& clock_figures(const std::string& gpu);

/// Columns that an SM's tensor cores multiply with 64 rows and k = 16 per clock: by wgmma, or by
/// tcgen05, whose 8192 FLOP per clock are published (arXiv 2603.05451) and not measured here.
double product_columns(const GpuSpec&);

/// Does a GPU of `arch` ("sm_90") run code for `needs`: "sm_90a" (that architecture alone), "sm_80"
/// (that one and newer) or "" (any)?
bool runs_on(const std::string& arch, const std::string& needs);
/// Why a GPU newer than `needs` does not run it: ", which has no wgmma"; else empty.
std::string given_up_by(const std::string& arch, const std::string& needs);

/// All rows. \throws UsageError when the file is missing or damaged.
std::vector<GpuSpec> gpu_table();
/// The same from another file. \throws UsageError as above.
std::vector<GpuSpec> read_gpu_table(const std::string& path);
/// The row of this name, in upper or lower case. \throws UsageError that lists the known names.
GpuSpec find_gpu(const std::string& name);

}  // namespace fa

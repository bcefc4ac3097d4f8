/// \file
/// What was counted or measured in a run: by buffer, by kernel, by source line.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/counts/trace.h"
#include "common/counts/traffic.h"

namespace fa {

/// Counts by kind of instruction: warp requests, or 32-byte sectors.
struct Ops {
  uint64_t load = 0;
  uint64_t store = 0;
  uint64_t atomic = 0;

  bool operator==(const Ops&) const = default;
  Ops& operator+=(const Ops& o) {
    load += o.load;
    store += o.store;
    atomic += o.atomic;
    return *this;
  }
};

/// Counts of one named buffer.
struct BufferCount {
  Bytes bytes;
  Ops requests;
  Ops sectors;
};

/// Shared-memory or global accesses of one source line, summed over all warps.
struct SiteCount {
  std::string where;  ///< "kernel.cuh:42"
  std::string what;   ///< "shared load32", "K load128"
  uint64_t requests = 0;
  uint64_t transfers = 0;  ///< sectors (global) or bank wavefronts (shared)
  uint64_t ideal = 0;      ///< the fewest that the same bytes need
  uint64_t clocks = 0;     ///< that the L1 (global) or shared memory is busy with them
};

/// The work of one block on its SM, in the units of the SM's parts.
struct BlockWork {
  uint64_t lines = 0;          ///< clocks of the L1: 128-byte lines that loads and stores look up
  uint64_t atomic_lines = 0;   ///< 128-byte lines of atomics
  uint64_t wavefronts = 0;     ///< of shared memory, by all instructions but wgmma; shuffles
  uint64_t instructions = 0;   ///< of warps, all but plain arithmetic
  uint64_t mma = 0;            ///< mma.m16n8k16
  uint64_t wgmma_columns = 0;  ///< of all wgmma.m64nNk16: the sum of N
  uint64_t l2_bytes = 0;       ///< requested from the L2
  double latency = 0;    ///< its clocks if latencies were the only cost and all data in the L2
  uint64_t fetches = 0;  ///< number of these latencies that are of device memory
};

/// One kernel (or memset, or copy) of the run.
struct KernelCount {
  std::string name;
  uint64_t blocks = 0;
  uint64_t threads = 0;
  Bytes bytes;
  Ops requests;
  Ops sectors;
  Ops lines;                   ///< 128-byte lines whose tags the L1 looks up
  uint64_t shared_read = 0;    ///< bytes
  uint64_t shared_write = 0;   ///< bytes
  uint64_t shared_atomic = 0;  ///< bytes
  uint64_t shared_requests = 0;
  uint64_t shared_wavefronts = 0;    ///< more than shared_ideal: bank conflicts
  uint64_t shared_ideal = 0;         ///< wavefronts without a conflict
  uint64_t load_wavefronts = 0;      ///< of these, by loads and ldmatrix
  uint64_t store_wavefronts = 0;     ///< by stores and stmatrix; not cp.async, atomics, mbarriers
  uint64_t wgmma_wavefronts = 0;     ///< in which wgmma reads operands
  uint64_t shuffles = 0;             ///< instructions of warps, two for 8 bytes
  std::vector<BlockWork> work = {};  ///< per block, in the grid's order
  uint64_t resident = 0;             ///< blocks per SM
  bool persistent = false;           ///< as many blocks as SMs; they share all work
  Bytes hbm = {};                    ///< by the L2 model; without what is still dirty there
  std::string buffer = {};           ///< of a memset or copy; empty for a kernel
};

/// What was counted (simulator) or measured (hardware) in one run of a step.
struct Counts {
  std::string source;                          ///< "counted" or "measured"
  std::map<std::string, BufferCount> buffers;  ///< simulator only: hardware knows no buffers
  std::vector<KernelCount> kernels;
  std::vector<SiteCount> sites;      ///< simulator with --analyse only
  uint64_t analysed = 0;             ///< the same: accesses that the race search has examined
  std::vector<std::string> remarks;  ///< the same: code that is correct but slower than it looks
  std::optional<Bytes> requested;
  std::optional<Ops> requests;
  std::optional<Ops> sectors;
  std::optional<Ops> lines;              ///< 128-byte lines whose tags the L1 looks up
  std::optional<Ops> shared_wavefronts;  ///< of plain loads and stores, ldmatrix and stmatrix
  std::optional<Bytes> hbm;  ///< simulator: the L2 model's figure; hardware: the DRAM counters
  std::optional<uint64_t> tensor_flops;
  std::map<std::string, uint64_t> metrics;  ///< hardware only: each counter under its CUPTI name
  std::optional<Trace> trace;               ///< simulator, with CountOptions::trace
  std::string note;  ///< why something is absent: "counters refused: ...", one line
};

/// The buffers whose counted bytes differ from the predicted ones, sorted by name. A buffer that
/// only one side knows counts as zero bytes on the other.
std::vector<std::string> differing_buffers(const Prediction&, const Counts& counted);

/// Loads and stores per element as counted; nothing when no kernel of that name ran.
std::optional<double> counted_per_element(const PerElement&, const Counts&);

}  // namespace fa

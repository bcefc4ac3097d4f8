/// \file
/// What every block did, in its order: which tile of which buffer it read or wrote, and at which
/// line. The simulator records it; docs/json.md describes the file, which Perfetto opens unchanged.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace fa {

/// The layout of memory: consecutive matrices of rows with consecutive columns.
struct Layout {
  uint64_t matrices = 1;
  uint64_t rows = 1;  ///< of one matrix
  uint64_t columns = 0;
  unsigned element_bytes = 4;

  bool operator==(const Layout&) const = default;
};

/// The memory that a place lies in.
enum class TraceSpace : uint8_t { global, shared, tensor };

/// A buffer in device memory, an array in a kernel's shared memory, or a kernel's tensor memory.
struct TracePlace {
  std::string name;
  TraceSpace space = TraceSpace::global;
  uint32_t kernel = 0;  ///< of shared and tensor memory
  int64_t offset = 0;   ///< shared: of its first byte, from the start of dynamic shared memory
  uint64_t bytes = 0;
  Layout layout;
};

/// A line of a kernel's source.
struct TraceLine {
  std::string path;  ///< "steps/04_fused/2_fused.cuh"
  int number = 0;
  bool operator==(const TraceLine&) const = default;
};

/// Elements of a place; rows are numbered through all its matrices.
struct TraceRectangle {
  uint64_t row = 0, rows = 0, column = 0, columns = 0;
  bool operator==(const TraceRectangle&) const = default;
};

/// Kind of an event.
enum class TraceKind : uint8_t { read, write, atomic };

/// All that one block did with one place at one line between two waits of its threads for others.
struct TraceEvent {
  uint32_t block = 0;
  uint32_t place = 0;  ///< index of Trace::places
  uint32_t stack = 0;  ///< index of Trace::stacks
  TraceKind kind = TraceKind::read;
  std::string how;  ///< "load", "store", "atomic", "ldmatrix", "stmatrix", "cp.async", "mbarrier",
                    ///< "TMA", "wgmma", "tcgen05.mma", "tcgen05.ld", "tcgen05.st"
  uint32_t waits = 0;  ///< length of the block's longest chain of waits before it
  uint64_t start = 0, ticks = 0;
  uint64_t bytes = 0;
  uint64_t requests = 0;   ///< of warps
  uint64_t transfers = 0;  ///< 32-byte sectors of device memory, wavefronts of shared memory, or
                           ///< 128 bytes of tensor memory
  uint64_t hbm_read = 0;   ///< bytes of sectors touched for the first time
  uint64_t hbm_write = 0;  ///< bytes of sectors written for the first time
  std::vector<TraceRectangle> touched = {};
  bool exact = true;  ///< `touched` are these elements; false: one rectangle around them
};

/// One request of a warp, as an example for its line.
struct TraceRequest {
  uint32_t kernel = 0, place = 0, stack = 0;
  TraceKind kind = TraceKind::read;
  std::string how;
  uint32_t lanes = 0;             ///< bit l: lane l takes part
  uint32_t lane_bytes = 0;        ///< of each lane's access
  std::array<uint64_t, 32> at{};  ///< the lane's first byte in the place
  uint64_t transfers = 0;         ///< as in TraceEvent
  bool operator==(const TraceRequest&) const = default;
};

/// One launch, memset or copy on the device.
struct TraceKernel {
  std::string name;
  std::string pass;  ///< "prepare", "forward", "backward"
  std::array<unsigned, 3> grid{1, 1, 1}, block{0, 1, 1};
  uint64_t shared_bytes = 0;  ///< dynamic
  uint64_t slots = 0;         ///< blocks that the modelled GPU holds at once
  uint64_t start = 0, ticks = 0;
  std::vector<TraceEvent> events;  ///< by block, in the block's order
};

/// A tick is one of TraceEvent::transfers: it orders a block's events and is no measure of time.
struct Trace {
  std::vector<TraceKernel> kernels;
  std::vector<TracePlace> places;
  std::vector<TraceLine> lines;
  std::vector<std::vector<uint32_t>> stacks;  ///< lines: the access, then its callers
  std::vector<TraceRequest> requests;

  /// Appends kernels and marks them as part of `pass`.
  void append(Trace&& other, const std::string& pass);
};

}  // namespace fa

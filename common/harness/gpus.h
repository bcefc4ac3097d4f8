/// \file
/// The table of GPUs that the simulator can model: common/data/gpus.json, which users extend.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace fa {

/// What one SM holds at a time; a Hopper's, where a row does not say.
struct SmSpec {
  unsigned threads = 2048;
  unsigned blocks = 32;
  unsigned registers = 65536;          ///< 32 bits each
  unsigned shared_bytes = 228 * 1024;  ///< at most, the rest of that memory being its L1
  unsigned block_reserved_bytes =
      1024;  ///< of shared memory, which each block takes besides its own
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
  double fp32_flops = 0;  ///< FMA on the CUDA cores
  double bf16_flops = 0;  ///< dense tensor cores; 0: none
  double fp8_flops = 0;   ///< 0: none

  /// Bytes of shared memory that one block can have.
  size_t block_shared_bytes() const { return sm.shared_bytes - sm.block_reserved_bytes; }
};

/// Does a GPU of `arch` ("sm_90") run code for `needs`: "sm_90a" (that architecture alone), "sm_80"
/// (that one and newer) or "" (any)?
bool runs_on(const std::string& arch, const std::string& needs);

/// All rows. \throws UsageError when the file is missing or damaged.
std::vector<GpuSpec> gpu_table();
/// The same from another file. \throws UsageError as above.
std::vector<GpuSpec> read_gpu_table(const std::string& path);
/// The row of this name; upper and lower case are the same.
/// \throws UsageError that lists the known names.
GpuSpec find_gpu(const std::string& name);

}  // namespace fa

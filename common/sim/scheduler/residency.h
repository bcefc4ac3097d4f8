/// \file
/// The number of blocks of a kernel that an SM of the modelled GPU holds at once.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "common/counts/gpus.h"

namespace sim {

/// Resources that ptxas assigns to a kernel, unknown to g++.
struct Resources {
  unsigned registers = 0;   ///< per thread; 0: unknown
  size_t shared_bytes = 0;  ///< per block, static
};

/// By the kernel's name: "step04::flash_fwd_kernel<64>".
using ResourceTable = std::map<std::string, Resources>;

/// The kernels of a file written by `./scripts/ptxas --update`; without the file none is known.
/// \throws fa::UsageError when it is damaged.
ResourceTable read_resource_table(const std::string& path);

/// This kernel's entry in common/data/registers.json, which is read once; empty for an unknown one.
/// \throws fa::UsageError as above.
Resources resources_of(const std::string& kernel);

/// At least 1: the simulator also runs a block that no GPU would take.
/// \param dynamic_bytes of shared memory, per block
unsigned blocks_per_sm(const fa::SmSpec&, unsigned threads, size_t dynamic_bytes, const Resources&);

}  // namespace sim

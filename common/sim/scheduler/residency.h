/// \file
/// How many blocks of a kernel an SM of the modelled GPU holds at a time.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "common/counts/gpus.h"

namespace sim {

/// What ptxas gives to a kernel, which g++ cannot know.
struct Resources {
  unsigned registers = 0;   ///< of a thread; 0: unknown
  size_t shared_bytes = 0;  ///< of a block, static
};

/// By the kernel's name: "step04::flash_fwd_kernel<64>".
using ResourceTable = std::map<std::string, Resources>;

/// The kernels of a file that `./scripts/ptxas --update` has written. Without the file none
/// is known. \throws fa::UsageError when it is damaged.
ResourceTable read_resource_table(const std::string& path);

/// What common/data/registers.json, which is read once, says of this kernel; nothing of an unknown
/// one. \throws fa::UsageError as above.
Resources resources_of(const std::string& kernel);

/// At least 1: the simulator runs a block that no GPU would take.
/// \param dynamic_bytes of shared memory, for a block
unsigned blocks_per_sm(const fa::SmSpec&, unsigned threads, size_t dynamic_bytes, const Resources&);

}  // namespace sim

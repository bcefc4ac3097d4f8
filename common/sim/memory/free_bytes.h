/// \file
/// How much host memory a control group leaves. Private to memory/; sim.h has free_bytes().
#pragma once

#include <cstddef>
#include <string>

namespace sim {

/// What a control group, of version 2 or 1, leaves its processes, in bytes: its limit less what
/// cannot be reclaimed. The page cache can, so a container that has read large files is not full.
/// \param folder holds the group's files, such as /sys/fs/cgroup.
/// \returns the largest size_t where there is no limit.
size_t free_in_control_group(const std::string& folder);

}  // namespace sim

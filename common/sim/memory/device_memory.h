/// \file
/// Device memory as the runtime's calls use it: cuda_vocabulary.h has them for the steps, program/
/// for anybody's program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace sim {

/// Which way a copy goes; `any`: the addresses tell.
enum class Way { host_to_host, host_to_device, device_to_host, device_to_device, any };

/// \returns null when there is no room
void* allocate(size_t bytes);
/// \throws fa::KernelStopped when allocate() did not return `p`, or it is free already.
void release(void* p);
/// \throws fa::KernelStopped when an end does not lie in one buffer, or on the wrong side.
void copy(void* to, const void* from, size_t bytes, Way);
/// \throws fa::KernelStopped when the bytes do not lie in one buffer.
void fill(void* p, int value, size_t bytes);

/// Is this a device address: of a buffer, or of a device variable?
bool is_device(const void* p);
/// From now on host code may touch this buffer, too, and nobody asks who wrote it.
void share_with_host(void* p);
bool is_for_host(const void* p);

/// What a control group, of version 2 or 1, leaves its processes, in bytes: its limit less what
/// cannot be reclaimed. The page cache can, so a container that has read large files is not full.
/// \param folder holds the group's files, such as /sys/fs/cgroup.
/// \returns the largest size_t where there is no limit.
size_t free_in_control_group(const std::string& folder);

// --- variables of a program, which the linker has placed among the host's ------------------------

/// From now on kernels find these bytes in device memory, as one buffer that starts as it is.
void place_variables(void* begin, size_t bytes, const char* name);
/// From now on kernels may read these bytes, and nobody counts it: constant memory has a cache of
/// its own. Copies take them for device memory.
void place_constants(const void* begin, size_t bytes);
/// Where a byte of the window really is.
const void* host_address(uint64_t offset);

}  // namespace sim

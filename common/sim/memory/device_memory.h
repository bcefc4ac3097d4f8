/// \file
/// Device memory as the runtime's calls use it: cuda_vocabulary.h has them for the steps, program/
/// for anybody's program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/sim/memory/memory.h"

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

/// A section of the program with variables of one kind.
struct Section {
  Variables::Kind kind;
  bool fixed;
  char *begin, *end;
};
/// From now on device memory has these bytes, too. The loads of constants by their name are not
/// counted: constant memory has its own cache.
void place_variables(std::span<const Section>);
/// Where device memory has this byte of a variable; null: it is of none.
void* device_address(const void* p);

// --- addresses of the program itself, which mean something else to a GPU -------------------------
//
// A function's address that host code took, a table of virtual functions of an object that it made,
// and its own address of a device variable are of no use to a kernel. Here both sides have the same
// ones: they are marked on their way to the device, which makes their use a finding.

/// From now on copies mark and unmark.
void watch_host_addresses();
/// Marks those that lie in these bytes, which travel to the device.
void mark_host_addresses(void* bytes, size_t n);
/// The host gets these bytes: takes the marks away. What has none is the device's own, and is not
/// marked from now on.
void take_device_addresses(void* bytes, size_t n);

}  // namespace sim

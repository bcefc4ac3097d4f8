/// \file
/// Device memory for the runtime's calls, of steps (cuda_vocabulary.h) and other programs (any/).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/sim/memory/memory.h"

namespace sim {

/// The direction of a copy; `any`: by the addresses.
enum class Way { host_to_host, host_to_device, device_to_host, device_to_device, any };

/// \returns null when there is no room
void* allocate(size_t bytes);
/// \throws fa::KernelStopped when allocate() did not return `p`, or it is already free.
void release(void* p);
/// \throws fa::KernelStopped when an end is not in one buffer, or on the wrong side.
void copy(void* to, const void* from, size_t bytes, Way);
/// \throws fa::KernelStopped when the bytes are not in one buffer.
void fill(void* p, int value, size_t bytes);

/// Is this a device address: in a buffer or a device variable?
bool is_device(const void* p);
/// From now on host code may also touch this buffer, and unwritten bytes are not reported.
void share_with_host(void* p);
bool is_for_host(const void* p);

/// The bytes that a control group, version 2 or 1, leaves to its processes: its limit minus what
/// cannot be reclaimed. The page cache can, so a container that has read large files is not full.
/// \param folder the folder of the group's files, such as /sys/fs/cgroup.
/// \returns the largest size_t where there is no limit.
size_t free_in_control_group(const std::string& folder);

// --- device variables, which the linker has placed among the host's ------------------------------

/// A section of the program that holds variables of one kind.
struct Section {
  Variables::Kind kind;
  bool fixed;
  char *begin, *end;
};
/// Also maps these bytes into device memory. Constants that a kernel loads by name are not counted.
void place_variables(std::span<const Section>);
/// The device address of this byte of a variable; null: not in one.
void* device_address(const void* p);

// --- host addresses, which have no meaning on a GPU ----------------------------------------------
//
// A kernel cannot use the address of a function, the virtual table of an object, or the host's
// address of a device variable, when host code made them. Here both sides share addresses: they are
// marked on their way to the device, and their use is a finding.

/// Makes copies mark and unmark from now on.
void watch_host_addresses();
/// Marks host addresses in these bytes, which are copied to the device.
void mark_host_addresses(void* bytes, size_t n);
/// Removes the marks in these bytes, copied to the host; unmarked addresses are the device's.
void take_device_addresses(void* bytes, size_t n);

}  // namespace sim

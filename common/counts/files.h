/// \file
/// Files as a whole: read, or written so that they are either complete or absent.
#pragma once

#include <functional>
#include <ostream>
#include <string>

namespace fa {

/// The bytes of the file at `path`.
/// \throws UsageError when it cannot be opened or read, and when it is not a regular file: a
/// folder, an endless device, a pipe, which can be read only once.
std::string read_file(const std::string& path);

/// Do both names refer to one file? It need not exist.
bool same_file(const std::string& a, const std::string& b);

/// Checks before a long run that `path` can be written; the file stays as it was.
/// \param flag the option that names it \throws UsageError where write_file() would fail.
void require_writable(const std::string& flag, const std::string& path);

/// Replaces the file at `path` by what `write` puts into the stream. It is written to a temporary
/// file in the same folder and renamed when complete: after a full disk or a signal the old file,
/// or none, remains. What is not a regular file (/dev/stdout, a pipe) is written directly, and so
/// is a file in a folder where no other can be created.
/// \throws ResourceError when there is no room, UsageError when the path cannot be written at all.
void write_file(const std::string& path, const std::function<void(std::ostream&)>& write);

/// The path of a shipped file: in the folder $FLASH_STEPS_DATA if set, else in common/data.
std::string data_file(const std::string& name);

}  // namespace fa

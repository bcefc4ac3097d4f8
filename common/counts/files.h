/// \file
/// Files as a whole: read, or written so that they are whole or not there at all.
#pragma once

#include <functional>
#include <ostream>
#include <string>

namespace fa {

/// The bytes of the file at `path`.
/// \throws UsageError when it cannot be opened or read, and when it is no regular file: a folder, a
/// device without an end, a pipe, which can be read only once.
std::string read_file(const std::string& path);

/// Do both name one file? It need not be there.
bool same_file(const std::string& a, const std::string& b);

/// Tries it before a long run, and leaves the file as it was. \param flag the option that names it
/// \throws UsageError where write_file() could not write there.
void require_writable(const std::string& flag, const std::string& path);

/// Replaces the file at `path` by what `write` puts into the stream. It is written aside, in the
/// same folder, and renamed when it is complete: a full disk, or a signal, leaves the old file, or
/// none. What is
/// no regular file (/dev/stdout, a pipe) is written directly, and so is a file in a folder where
/// no other can be made.
/// \throws ResourceError when there is no room, UsageError when the path cannot be written at all.
void write_file(const std::string& path, const std::function<void(std::ostream&)>& write);

/// A shipped file: in the folder $FLASH_STEPS_DATA if set, else in common/data.
std::string data_file(const std::string& name);

}  // namespace fa

/// \file
/// Files that are whole or not there at all.
#pragma once

#include <functional>
#include <ostream>
#include <string>

namespace fa {

/// Replaces the file at `path` by what `write` puts into the stream. It is written aside, in the
/// same folder, and renamed when it is complete: a full disk leaves the old file, or none. What is
/// no regular file (/dev/stdout, a pipe) is written directly, and so is a file in a folder where
/// no other can be made.
/// \throws ResourceError when there is no room, UsageError when the path cannot be written at all.
void write_file(const std::string& path, const std::function<void(std::ostream&)>& write);

}  // namespace fa

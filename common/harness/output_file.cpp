#include "common/harness/output_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "common/dialect/errors.h"
#include "common/harness/format.h"

namespace fa {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void refuse(const std::string& path) {
  const std::string sentence = fmt::format("{}: cannot be written: {}", path, std::strerror(errno));
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG || errno == EIO) {
    throw ResourceError(sentence);
  }
  throw UsageError(sentence);
}

/// False when the file cannot be opened. \throws what refuse() does, with the file removed when it
/// is `aside`.
bool write_to(const fs::path& file, const std::string& path, bool aside,
              const std::function<void(std::ostream&)>& write) {
  errno = 0;
  std::ofstream out(file, std::ios::binary);
  if (!out) return false;
  write(out);
  out.close();
  if (out) return true;
  const int why = errno;
  std::error_code ignored;
  if (aside) fs::remove(file, ignored);
  errno = why;
  refuse(path);
}

}  // namespace

void write_file(const std::string& path, const std::function<void(std::ostream&)>& write) {
  std::error_code error, ignored;
  const bool link = fs::is_symlink(path, ignored);
  const fs::path target = link ? fs::canonical(path, error) : fs::path(path);
  const bool special = error || path.starts_with("/dev/") || path.starts_with("/proc/");
  if (!special && (!fs::exists(target, ignored) || fs::is_regular_file(target, ignored))) {
    const fs::path aside = target.string() + fmt::format(".{}.part", getpid());
    if (write_to(aside, path, true, write)) {
      fs::rename(aside, target, error);
      if (!error) return;
      fs::remove(aside, ignored);
    }
  }
  if (!write_to(path, path, false, write)) refuse(path);
}

}  // namespace fa

#include "common/counts/files.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "common/counts/format.h"
#include "common/dialect/errors.h"

namespace fa {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void cannot_write(const std::string& path) {
  const std::string sentence = fmt::format("{}: cannot be written: {}", path, std::strerror(errno));
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG || errno == EIO) {
    throw ResourceError(sentence);
  }
  throw UsageError(sentence);
}

/// A temporary file next to the one being written, removed unless its writer calls keep().
class Aside {
 public:
  explicit Aside(const fs::path& target)
      : path_(target.string() + fmt::format(".{}.part", getpid())) {
    std::strncpy(name, path_.c_str(), sizeof name - 1);
    for (size_t i = 0; i < 3; ++i) {
      before_[i] = std::signal(kSignals[i], remove_and_end);
      if (before_[i] != SIG_DFL) std::signal(kSignals[i], before_[i]);
    }
  }
  ~Aside() {
    for (size_t i = 0; i < 3; ++i) {
      if (before_[i] == SIG_DFL) std::signal(kSignals[i], SIG_DFL);
    }
    const int why = errno;
    std::error_code ignored;
    if (!kept_) fs::remove(path_, ignored);
    errno = why;
  }
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

  const fs::path& path() const { return path_; }
  bool keep_as(const fs::path& target) {
    std::error_code error;
    fs::rename(path_, target, error);
    return kept_ = !error;
  }

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
  static char name[4096];
  static void remove_and_end(int signal) {
    unlink(name);
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }

  const fs::path path_;
  void (*before_[3])(int);
  bool kept_ = false;
};
char Aside::name[4096];

/// False when the file cannot be opened. \throws as cannot_write() does.
bool write_to(const fs::path& file, const std::string& path,
              const std::function<void(std::ostream&)>& write) {
  errno = 0;
  std::ofstream out(file, std::ios::binary);
  if (!out) return false;
  write(out);
  out.close();
  if (out) return true;
  cannot_write(path);
}

}  // namespace

std::string read_file(const std::string& path) {
  const auto refuse_to_read = [&path](const char* why) { refuse("{}: {}", path, why); };
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::is_directory(status)) refuse_to_read("is a folder");
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    refuse_to_read("is a pipe or a device: give a file");
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) refuse_to_read("cannot be opened");
  std::string bytes;
  std::vector<char> part(1 << 20);
  while (in.read(part.data(), std::streamsize(part.size())), in.gcount() > 0) {
    bytes.append(part.data(), size_t(in.gcount()));
  }
  if (in.bad()) refuse_to_read("cannot be read");
  return bytes;
}

bool same_file(const std::string& a, const std::string& b) {
  if (a.empty() || b.empty()) return false;
  std::error_code failed;
  if (fs::is_character_file(a, failed)) return false;  // /dev/null as two outputs
  if (fs::equivalent(a, b, failed)) return true;
  failed.clear();
  const fs::path x = fs::weakly_canonical(fs::absolute(a), failed);
  const fs::path y = fs::weakly_canonical(fs::absolute(b), failed);
  return failed ? a == b : x == y;
}

void require_writable(const std::string& flag, const std::string& path) {
  if (path.empty()) return;
  std::error_code ignored;
  if (fs::is_fifo(path, ignored)) return;  // its reader would take a second writer for the end
  const bool existed = fs::exists(path, ignored);
  errno = 0;
  if (!std::ofstream(path, std::ios::app)) {
    const fs::path folder = fs::absolute(path, ignored).parent_path();
    const char* why = errno == ENOENT && !fs::exists(folder, ignored) ? "its folder does not exist"
                                                                      : std::strerror(errno);
    refuse("{} {}: cannot be written: {}", flag, path, why);
  }
  // Not the link, where `path` is a link to a file that was not there.
  if (!existed) fs::remove(fs::canonical(path, ignored), ignored);
}

void write_file(const std::string& path, const std::function<void(std::ostream&)>& write) {
  std::error_code error, ignored;
  const bool link = fs::is_symlink(path, ignored);
  const fs::path target = link ? fs::canonical(path, error) : fs::path(path);
  const bool special = error || path.starts_with("/dev/") || path.starts_with("/proc/");
  if (!special && (!fs::exists(target, ignored) || fs::is_regular_file(target, ignored))) {
    Aside aside(target);
    if (write_to(aside.path(), path, write) && aside.keep_as(target)) return;
  }
  if (!write_to(path, path, write)) cannot_write(path);
}

#ifndef FA_DATA_DIR  // a build without CMake runs in the repository's root
#define FA_DATA_DIR "common/data"
#endif
// A program of an installed scripts/sim is linked with another one.
extern "C" __attribute__((weak)) const char fa_data_folder[];
const char fa_data_folder[] = FA_DATA_DIR;

std::string data_file(const std::string& name) {
  if (const char* folder = std::getenv("FLASH_STEPS_DATA")) return std::string(folder) + "/" + name;
  const std::string built = std::string(fa_data_folder) + "/" + name;
  return std::filesystem::exists(built) ? built : "common/data/" + name;
}

}  // namespace fa

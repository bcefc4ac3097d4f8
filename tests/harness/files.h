// Files of one test, deleted with it; the words of a refusal; does a text fit a screen?
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "common/counts/format.h"
#include "common/harness/npy.h"
#include "tests/test.h"

namespace fa::test {

class Folder {
 public:
  Folder() {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("flash_steps_" + std::to_string(getpid()) + "_" + std::to_string(count++));
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;

  std::string path(const std::string& name = "") const { return path_ / name; }
  std::string file(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }
  /// A tensor whose element i is `value(i)`.
  std::string tensor(const std::string& name, const std::vector<size_t>& shape,
                     const auto& value) const {
    size_t n = 1;
    for (const size_t s : shape) n *= s;
    std::vector<float> data(n);
    for (size_t i = 0; i < n; ++i) data[i] = value(i);
    write_npy(path(name), shape, data);
    return path(name);
  }
  std::string zeros(const std::string& name, const std::vector<size_t>& shape) const {
    return tensor(name, shape, [](size_t) { return 0.0f; });
  }

 private:
  std::filesystem::path path_;
};

struct TemporaryFile {
  explicit TemporaryFile(const std::string& content = "") : path(folder.file("file", content)) {}
  Folder folder;
  std::string path;
};

inline std::string npy_file(int version, const std::string& header, const std::string& data) {
  std::string file = "\x93NUMPY";
  file += static_cast<char>(version);
  file += '\0';
  const size_t n = header.size();
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) file += static_cast<char>(n >> (8 * i) & 255);
  return file + header + data;
}

inline std::string header_of(const std::string& type, const std::string& shape,
                             const std::string& fortran = "False") {
  return "{'descr': '" + type + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }\n";
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// The sentence of the UsageError that `f` throws; "accepted" when it throws none.
std::string refusal_of(auto&& f) {
  try {
    f();
  } catch (const UsageError& e) {
    return e.what();
  }
  return "accepted";
}

/// The text; requires that no line is wider than a screen.
inline std::string fitting(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    CAPTURE(line);
    CHECK(line.size() <= kScreenWidth);
  }
  return text;
}

}  // namespace fa::test

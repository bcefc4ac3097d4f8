#include "common/gpu/optional_library.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

namespace fa::gpu {

namespace {

/// $CUDA_HOME, $CUDA_PATH, /usr/local/cuda, then /usr/local/cuda-* from the newest to the oldest.
std::vector<std::string> toolkits() {
  std::vector<std::string> found;
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* value = std::getenv(variable)) found.push_back(value);
  }
  found.push_back("/usr/local/cuda");
  found.push_back("/opt/cuda");
  std::vector<std::string> versions;
  std::error_code ignored;  // no /usr/local: nothing to list
  for (const auto& entry : std::filesystem::directory_iterator("/usr/local", ignored)) {
    const std::string name = entry.path().filename();
    if (name.rfind("cuda-", 0) == 0) versions.push_back(entry.path());
  }
  std::sort(versions.rbegin(), versions.rend());
  found.insert(found.end(), versions.begin(), versions.end());
  return found;
}

}  // namespace

SharedLibrary::SharedLibrary(const std::vector<std::string>& names) {
  std::vector<std::string> folders = {""};
  for (const std::string& toolkit : toolkits()) {
    for (const char* folder : {"/lib64/", "/extras/CUPTI/lib64/", "/lib/"}) {
      folders.push_back(toolkit + folder);
    }
  }
  for (const std::string& name : names) {
    for (const std::string& folder : folders) {
      handle_ = dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle_) return;
    }
  }
}

}  // namespace fa::gpu

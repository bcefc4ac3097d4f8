/// \file
/// A library that is loaded at run time: the program works without it and says what is missing.
#pragma once

#include <dlfcn.h>

#include <string>
#include <vector>

namespace fa::gpu {

/// dlopen of the first name that can be loaded, by the loader's search, then in the usual folders
/// of a CUDA toolkit. Never unloaded: CUDA's libraries do not survive that.
class SharedLibrary {
 public:
  /// \param names in order of preference: {"libcupti.so.13", "libcupti.so.12"}
  explicit SharedLibrary(const std::vector<std::string>& names);

  explicit operator bool() const { return handle_ != nullptr; }
  /// Null when the symbol is missing. F is the type of the function.
  template <class F>
  F* symbol(const char* name) const {
    return handle_ ? reinterpret_cast<F*>(dlsym(handle_, name)) : nullptr;
  }

 private:
  void* handle_ = nullptr;
};

}  // namespace fa::gpu

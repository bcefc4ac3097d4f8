/// \file
/// Large tables that use memory only where they are touched.
#pragma once

#include <sys/mman.h>

#include <cstddef>

#include "common/dialect/errors.h"

namespace sim {

/// `count` zeroed elements; the operating system supplies a page at its first use.
template <class T>
class LazyArray {
 public:
  explicit LazyArray(size_t count) : bytes_(count * sizeof(T)) {
    void* p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw fa::ResourceError("the simulator's analysis finds no address space");
    data_ = static_cast<T*>(p);
  }
  ~LazyArray() { munmap(data_, bytes_); }
  LazyArray(const LazyArray&) = delete;
  LazyArray& operator=(const LazyArray&) = delete;
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T* data() { return data_; }

 private:
  size_t bytes_;
  T* data_;
};

}  // namespace sim

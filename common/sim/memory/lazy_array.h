/// \file
/// Large tables that use memory only where they are touched.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

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

/// kPages * kPageSize elements, zero until they are used.
template <class T, size_t kPages, size_t kPageSize>
class PagedArray {
 public:
  T& operator[](uint64_t i) {
    T* page = pages_ ? pages_[i / kPageSize] : nullptr;
    if (!page) [[unlikely]]
      page = new_page(i / kPageSize);
    return page[i % kPageSize];
  }

 private:
  [[gnu::noinline]] T* new_page(size_t number) {
    if (!table_) table_ = std::make_unique<LazyArray<T*>>(kPages);
    pages_ = table_->data();
    used_.push_back(std::make_unique<LazyArray<T>>(kPageSize));
    return pages_[number] = used_.back()->data();
  }

  T** pages_ = nullptr;  // of table_
  std::unique_ptr<LazyArray<T*>> table_;
  std::vector<std::unique_ptr<LazyArray<T>>> used_;
};

}  // namespace sim

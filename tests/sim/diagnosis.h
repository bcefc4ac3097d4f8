// Each diagnosis is tested with a kernel that has exactly one fault, and a near twin without it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/dialect/cuda.h"
#include "common/sim/sim.h"
#include "tests/test.h"

namespace sim::test {

/// Device memory with a name, filled with zeros unless `written` is false.
template <class T>
class Buffer {
 public:
  Buffer(const char* name, size_t n, bool written = true) : n_(n) {
    fa::cuda_check(cudaMalloc(&p_, n * sizeof(T)));
    name_buffer(p_, name);
    if (written) fa::cuda_check(cudaMemset(p_, 0, n * sizeof(T)));
  }
  ~Buffer() {
    if (p_) cudaFree(p_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  operator T*() const { return p_; }
  T* get() const { return p_; }
  void fill(const std::vector<T>& v) {
    fa::cuda_check(cudaMemcpy(p_, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  std::vector<T> download() const {
    std::vector<T> v(n_);
    fa::cuda_check(cudaMemcpy(v.data(), p_, n_ * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
  }

 private:
  T* p_ = nullptr;
  size_t n_;
};

/// Options of one test case; the old ones come back at its end.
class WithOptions {
 public:
  explicit WithOptions(const Options& o) : saved_(options()) { options() = o; }
  ~WithOptions() { options() = saved_; }

 private:
  Options saved_;
};

/// What the simulator finds in `run`; empty when it finds nothing, and has looked if it was asked.
template <class F>
std::string finding(F&& run) {
  std::optional<Recording> recording;
  if (options().races || options().uninitialised) recording.emplace();
  try {
    run();
  } catch (const Error& e) {
    return e.what();
  }
  return recording && recording->finish().analysed == 0 ? "the analysis has looked at nothing" : "";
}

}  // namespace sim::test

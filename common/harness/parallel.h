/// \file
/// A loop over all cores, for the host code that a learner waits for: references and inputs.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace fa {

/// Calls work(i) once for each i in [0, n). Each thread creates its `work` by make_worker(), so
/// that a worker can keep buffers between calls. Every thread takes the next remaining i. Where the
/// system refuses a thread, the others do the work. The first exception is rethrown here.
void parallel_for(size_t n, const auto& make_worker) {
  std::atomic<size_t> next = 0;
  std::exception_ptr failure;
  std::mutex failure_mutex;
  auto loop = [&] {
    try {
      auto work = make_worker();
      for (size_t i; (i = next++) < n;) work(i);
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      if (!failure) failure = std::current_exception();
      next = n;
    }
  };
  const size_t threads = std::min<size_t>(n, std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::thread> others;
  others.reserve(threads);
  try {
    while (others.size() + 1 < threads) others.emplace_back(loop);
  } catch (const std::system_error&) {  // no more threads available: the running ones do all
  }
  loop();
  for (std::thread& t : others) t.join();
  if (failure) std::rethrow_exception(failure);
}

/// Calls work(begin, end) for pieces of [0, n); small ones stay on this thread.
void parallel_chunks(size_t n, const auto& work) {
  constexpr size_t kChunk = 1 << 16;
  parallel_for((n + kChunk - 1) / kChunk, [&] {
    return [&](size_t chunk) { work(chunk * kChunk, std::min(n, (chunk + 1) * kChunk)); };
  });
}

}  // namespace fa

/// \file
/// A problem shared by ranks that are threads. For tests and exercises.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "common/counts/backend.h"
#include "common/counts/device_memory.h"
#include "common/dialect/cuda.h"
#include "common/harness/ranks.h"
#include "common/ranks/on_threads.h"

namespace fa {

/// In a kernel, because outputs must be written by one.
template <class Word>
__global__ void copy_words_kernel(const Word* from, Word* to, size_t words) {
  const size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < words) to[i] = from[i];
}

/// A rank's rows of a tensor, copied to device memory and back.
class RankRows {
 public:
  RankRows(const std::vector<Rows>& ranges, const Layout& all)
      : ranges_(ranges),
        heads_(all.matrices),
        N_(all.rows),
        row_(all.columns * all.element_bytes),
        memory_("rows of a rank", heads_ * count_rows(ranges) * row_) {}
  std::byte* data() const { return memory_.get(); }
  void cut(const void* whole) const {
    each([&](size_t at, size_t mine, size_t bytes) {
      copy(static_cast<const std::byte*>(whole) + at, data() + mine, bytes);
    });
  }
  void paste(void* whole) const {
    each([&](size_t at, size_t mine, size_t bytes) {
      copy(data() + mine, static_cast<std::byte*>(whole) + at, bytes);
    });
  }

 private:
  static void copy(const std::byte* from, std::byte* to, size_t bytes) {
    const size_t words = bytes / sizeof(float);
    launch(copy_words_kernel<float>, {dim3(unsigned((words + 255) / 256)), dim3(256)},
           reinterpret_cast<const float*>(from), reinterpret_cast<float*>(to), words);
  }
  void each(auto&& f) const {
    size_t mine = 0;
    for (size_t h = 0; h < heads_; ++h) {
      for (const Rows& r : ranges_) {
        const size_t bytes = r.size() * row_;
        if (bytes) f((h * N_ + r.begin) * row_, mine, bytes);
        mine += bytes;
      }
    }
  }

  std::vector<Rows> ranges_;
  size_t heads_, N_, row_;
  DeviceMemory<> memory_;
};

/// The whole problem's forward on `ranks` ranks in turn, and its backward if `t` has dQ.
/// \param sent      the bytes that each rank sends, or null
/// \param busy_sms  SMs that messages pretend to occupy
/// \param times     number of runs, as in a program that measures times
inline void run_on_threads(const Sharding& sharding, int ranks, const Problem& p,
                           const Tensors<void>& t, std::vector<uint64_t>* sent = nullptr,
                           int busy_sms = 0, int times = 1) {
  if (sent) sent->resize(ranks);
  const auto run = [&](Ranks& me) {
    const std::vector<Rows> rows = sharding.rows(p, me.rank(), ranks);
    Tensors<void> mine;
    std::vector<std::pair<const Tensor*, RankRows>> parts;
    for (const Tensor& tensor : all_tensors()) {
      if (!tensor.file && !tensor.output) continue;
      const void* whole = tensor.device.get(t);
      RankRows part(rows, tensor.layout(p));
      if (tensor.file && whole) part.cut(whole);
      tensor.device.put(mine, part.data());
      parts.emplace_back(&tensor, std::move(part));
    }
    const std::unique_ptr<RankAttention> attention = sharding.make(p, me);
    for (int i = 0; i < times; ++i) {
      attention->forward(mine);
      if (t.dQ) attention->backward(mine);
    }
    cuda_check(cudaDeviceSynchronize());
    for (const auto& [tensor, part] : parts) {
      const void* whole = tensor->device.get(t);
      if (tensor->output && whole) part.paste(const_cast<void*>(whole));
    }
    if (sent) (*sent)[me.rank()] = me.bytes_sent();
  };
  on_threads(ranks, run, busy_sms);
}

}  // namespace fa

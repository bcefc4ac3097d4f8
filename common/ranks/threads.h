/// \file
/// Ranks without MPI: threads of one process and one device, of which one runs at a time. For tests
/// and exercises.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/dialect/cuda.h"
#include "common/harness/backend.h"
#include "common/harness/device_memory.h"
#include "common/harness/ranks.h"

namespace fa {

/// What lies between the threads.
struct Mail {
  std::mutex running;  ///< whoever runs holds it
  std::condition_variable changed;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> from_to;
  std::exception_ptr failed;
  std::set<int> ended;  ///< ranks that send nothing any more
};

class ThreadRanks : public Ranks {
 public:
  ThreadRanks(int rank, int size, Mail& mail, int busy_sms)
      : Ranks(rank, size), mail_(mail), turn_(mail.running), busy_sms_(busy_sms) {}

  int busy_sms() const override { return busy_sms_; }

  // A message passes while kernels run, at any time from here to finish(): until then nobody may
  // write what is sent, nor read or write the place of what comes.
  void start(const std::string& what, const std::vector<Message>& send,
             const std::vector<Message>& receive) override {
    count(send);
    what_ = what;
    sends_.clear();
    for (const Message& m : send) {
      sends_.emplace_back(m, bytes_of(m));
      mail_.from_to[{rank(), m.peer}].push_back(sends_.back().second);
    }
    receives_ = receive;
    for (const Message& m : receives_) poison_device_memory(m.data, m.bytes);
    mail_.changed.notify_all();
  }
  void finish() override {
    for (const auto& [m, sent] : sends_) {
      if (bytes_of(m) != sent) throw used(m, "sends to");
    }
    for (const Message& m : receives_) {
      if (bytes_of(m) != Bytes(m.bytes, kPoison)) throw used(m, "receives from");
    }
    for (const Message& m : receives_) {
      auto& box = mail_.from_to[{m.peer, rank()}];
      mail_.changed.wait(
          turn_, [&] { return !box.empty() || mail_.failed || mail_.ended.count(m.peer) != 0; });
      if (mail_.failed) throw std::runtime_error("another rank failed");
      if (box.empty()) {
        throw std::logic_error("rank " + std::to_string(rank()) + " waits for a message of rank " +
                               std::to_string(m.peer) + ", which has ended");
      }
      if (box.front().size() != m.bytes) throw std::logic_error("a message of another length");
      cuda_check(cudaMemcpy(m.data, box.front().data(), m.bytes, cudaMemcpyHostToDevice));
      box.pop_front();
    }
  }

 private:
  using Bytes = std::vector<std::byte>;
  static constexpr std::byte kPoison{0xff};

  static Bytes bytes_of(const Message& m) {
    Bytes bytes(m.bytes);
    cuda_check(cudaMemcpy(bytes.data(), m.data, m.bytes, cudaMemcpyDeviceToHost));
    return bytes;
  }
  std::logic_error used(const Message& m, const std::string& moves) const {
    return std::logic_error("rank " + std::to_string(rank()) + " wrote to memory that \"" + what_ +
                            "\" " + moves + " rank " + std::to_string(m.peer) + " before finish()");
  }

  Mail& mail_;
  std::unique_lock<std::mutex> turn_;
  int busy_sms_;
  std::string what_;  // of the exchange under way
  std::vector<std::pair<Message, Bytes>> sends_;
  std::vector<Message> receives_;
};

/// f(ranks) on each of so many ranks. \throws what the first one threw that failed.
/// \param busy_sms  that messages pretend to take
inline void on_threads(int size, const std::function<void(Ranks&)>& f, int busy_sms = 0) {
  Mail mail;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadRanks ranks(rank, size, mail, busy_sms);
      try {
        f(ranks);
      } catch (...) {
        if (!mail.failed) mail.failed = std::current_exception();
      }
      mail.ended.insert(rank);
      mail.changed.notify_all();
    });
  }
  for (std::thread& t : threads) t.join();
  if (mail.failed) std::rethrow_exception(mail.failed);
  for (const auto& [from_to, box] : mail.from_to) {
    if (!box.empty()) {
      throw std::logic_error("rank " + std::to_string(from_to.second) + " never received what " +
                             "rank " + std::to_string(from_to.first) + " sent");
    }
  }
}

/// By a kernel, which is what outputs are expected to be written by.
template <class Word>
__global__ void copy_words_kernel(const Word* from, Word* to, size_t words) {
  const size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < words) to[i] = from[i];
}

/// A rank's rows of a tensor in device memory, and back.
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
  template <class F>
  void each(F&& f) const {
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

/// The whole problem's forward by so many ranks, one after the other. And its backward, where `t`
/// has a place for dQ.
/// \param sent      the bytes of each rank, or null
/// \param busy_sms  that messages pretend to take
/// \param times     how often, as a program that measures times does
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

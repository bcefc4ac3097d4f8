#include "common/ranks/on_threads.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/counts/backend.h"
#include "common/dialect/cuda.h"

namespace fa {

namespace {

struct Mail {
  std::mutex running;  ///< held by the thread that runs
  std::condition_variable changed;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> from_to;
  std::exception_ptr failed;
  std::set<int> ended;  ///< ranks that have sent their last message
};

class ThreadRanks : public Ranks {
 public:
  ThreadRanks(int rank, int size, Mail& mail, int busy_sms)
      : Ranks(rank, size), mail_(mail), turn_(mail.running), busy_sms_(busy_sms) {}

  int busy_sms() const override { return busy_sms_; }

  // A message is transferred at any time from here to finish(), while kernels run: until then no
  // thread may write what is sent, nor read or write where a message is received.
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
  std::string what_;  // of the exchange in progress
  std::vector<std::pair<Message, Bytes>> sends_;
  std::vector<Message> receives_;
};

}  // namespace

void on_threads(int size, const std::function<void(Ranks&)>& f, int busy_sms) {
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

}  // namespace fa

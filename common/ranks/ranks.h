/// \file
/// Several processes that compute one problem: what a step may ask of them.
///
/// MPI starts the processes (`mpirun -n 4 PROGRAM`); each has its own GPU, or its own simulator. A
/// program that was started alone is one rank and needs no MPI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fa {

/// Bytes of device memory on their way between this rank and another.
struct Message {
  int peer;  ///< the other rank
  void* data;
  size_t bytes;
};
/// `n` elements at `data`; they are read only, when they are sent.
template <class T>
Message message(int peer, const T* data, size_t n) {
  return {peer, const_cast<T*>(data), n * sizeof(T)};
}

/// The ranks of this run. Messages pass beside the kernels: on a GPU on a stream of their own.
class Ranks {
 public:
  virtual ~Ranks() = default;
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Begins to send and to receive, behind the kernels that were queued so far. Between two ranks,
  /// messages arrive in the order in which they were sent. One exchange at a time.
  /// \param what for the lanes of a trace, and for the sentence where a rank waits in vain
  virtual void start(const std::string& what, const std::vector<Message>& send,
                     const std::vector<Message>& receive) = 0;
  /// Kernels that are queued from now on run behind that exchange.
  virtual void finish() = 0;
  /// SMs that messages take from a kernel that starts a block for each SM.
  virtual int busy_sms() const { return 0; }
  /// From here to the next call, kernels are named so in the trace.
  virtual void computing(const std::string&) {}

  /// Bytes that this rank has sent to others, of messages alone.
  uint64_t bytes_sent() const { return bytes_sent_; }

 protected:
  Ranks(int rank, int size) : rank_(rank), size_(size) {}
  void count(const std::vector<Message>& sent) {
    for (const Message& m : sent) bytes_sent_ += m.bytes;
  }

 private:
  int rank_, size_;
  uint64_t bytes_sent_ = 0;
};

}  // namespace fa

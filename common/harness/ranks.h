/// \file
/// Several processes that compute one problem: what a step may ask of them, and how its variant
/// divides the problem among them.
///
/// MPI starts the processes (`mpirun -n 4 PROGRAM`); each has its own GPU, or its own simulator. A
/// program that was started alone is one rank and needs no MPI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/harness/tensors.h"

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

/// The ranks of this run. Messages run alongside the kernels: on a GPU on a stream of their own.
class Ranks {
 public:
  virtual ~Ranks() = default;
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Starts to send and to receive once all kernels queued so far are done. Between two ranks,
  /// messages arrive in the order in which they were sent. One exchange at a time.
  /// \param what for the lanes of a trace, and for the error where a rank waits in vain
  virtual void start(const std::string& what, const std::vector<Message>& send,
                     const std::vector<Message>& receive) = 0;
  /// Kernels that are queued from now on wait for that exchange.
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

/// Rows begin .. end - 1 of the sequence, queries and keys alike.
struct Rows {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
  bool operator==(const Rows&) const = default;
};

/// What one rank holds and does. Its tensors are those of its rows, one after the other:
/// [B, H, rows, d] and so on, on its device.
class RankAttention {
 public:
  virtual ~RankAttention() = default;
  /// O and LSE of its rows.
  virtual void forward(const Tensors<void>&) = 0;
  /// dQ, dK and dV of its rows, after a forward; each backward needs a forward of its own.
  virtual void backward(const Tensors<void>&) = 0;
  virtual size_t workspace_bytes() const = 0;
};

/// Formulas for what a rank sends and computes.
struct RankPrediction {
  uint64_t forward_bytes = 0;  ///< sent
  uint64_t backward_bytes = 0;
  std::vector<uint64_t> scores;  ///< that it computes, in each hop; without those that are masked
};

/// All that the program for several ranks needs of a variant.
struct Sharding {
  /// \throws UsageError when so many ranks cannot share this problem.
  std::function<void(const Problem&, int ranks)> validate;
  /// The rows of one rank, in the order in which it holds them.
  std::function<std::vector<Rows>(const Problem&, int rank, int ranks)> rows;
  std::function<std::unique_ptr<RankAttention>(const Problem&, Ranks&)> make;
  std::function<RankPrediction(const Problem&, int rank, int ranks)> predict;
};

/// The rows of all ranges together.
inline int count_rows(const std::vector<Rows>& ranges) {
  int rows = 0;
  for (const Rows& r : ranges) rows += r.size();
  return rows;
}

}  // namespace fa

/// \file
/// Several processes that compute one problem: what a step may use, and how its variant divides it.
///
/// MPI starts the processes (`mpirun -n 4 PROGRAM`); each has its own GPU or simulator. A program
/// started alone is one rank and needs no MPI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/harness/tensors.h"

namespace fa {

/// Bytes of device memory in transit between this rank and another.
struct Message {
  int peer;  ///< the other rank
  void* data;
  size_t bytes;
  /// Between GPUs of one host: by way of the host's memory, which is slower, but leaves the link
  /// between the GPUs idle. Sender and receiver must agree.
  bool by_host = false;
};
/// `n` elements at `data`, read only when they are sent.
template <class T>
Message message(int peer, const T* data, size_t n, bool by_host = false) {
  return {peer, const_cast<T*>(data), n * sizeof(T), by_host};
}

/// The ranks of this run. Messages run in parallel with the kernels: on a GPU in a separate stream.
class Ranks {
 public:
  virtual ~Ranks() = default;
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Starts to send and receive once all kernels queued so far are done. Messages between two ranks
  /// arrive in the order in which they were sent. One exchange at a time.
  /// \param what for the lanes of a trace, and for the error when a message never arrives
  virtual void start(const std::string& what, const std::vector<Message>& send,
                     const std::vector<Message>& receive) = 0;
  /// Makes kernels queued from now on wait for the exchange.
  virtual void finish() = 0;
  /// SMs that messages take from a kernel that starts one block per SM.
  virtual int busy_sms() const { return 0; }
  /// Names the kernels from here to the next call in the trace.
  virtual void computing(const std::string&) {}

  /// Bytes that this rank has sent to others, messages only.
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

/// Rows begin .. end - 1 of the sequence, both queries and keys.
struct Rows {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
  bool operator==(const Rows&) const = default;
};

/// One rank's share of the problem. Its tensors hold its rows in sequence: [B, H, rows, d], ...
class RankAttention {
 public:
  virtual ~RankAttention() = default;
  /// Computes O and LSE of its rows.
  virtual void forward(const Tensors<void>&) = 0;
  /// Computes dQ, dK and dV of its rows, after a forward; each backward needs a new forward.
  virtual void backward(const Tensors<void>&) = 0;
  virtual size_t workspace_bytes() const = 0;
};

/// Formulas for what a rank sends and computes.
struct RankPrediction {
  uint64_t forward_bytes = 0;  ///< sent
  uint64_t backward_bytes = 0;
  std::vector<uint64_t> scores;  ///< computed in each hop; without the masked ones
};

/// What the program for several ranks needs of a variant.
struct Sharding {
  /// \throws UsageError when this many ranks cannot share the problem.
  std::function<void(const Problem&, int ranks)> validate;
  /// The rows of one rank, in the order in which it stores them.
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

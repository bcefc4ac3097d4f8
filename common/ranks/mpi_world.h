/// \file
/// World over MPI alone. GPUs may have faster ways (copy_world.h, nccl_world.h).
#pragma once

#include <mpi.h>

#include <functional>
#include <utility>

#include "common/harness/world.h"

namespace fa {

/// (the number of ranks, how many of them on this machine)
std::pair<int, int> ranks_and_neighbours();

class MpiWorld : public World {
 public:
  explicit MpiWorld(const std::string& who);
  ~MpiWorld() override;

  void set_limit(double seconds) override { limit_s_ = seconds; }
  bool alone() const override { return false; }
  int local_size() const override { return local_size_; }
  void look_for_gpus() override;
  Device open(const Step&, const Variant&) override;
  std::string carrier() const override { return "MPI, by way of host memory"; }
  std::vector<std::vector<float>> gather(const std::vector<float>&) override;
  void barrier() override;
  void synchronize() override;
  double time_run(const std::function<void()>& run) override;
  [[noreturn]] void end_all(const std::string& sentence, int status) override;

  void start(const std::string& what, const std::vector<Message>& send,
             const std::vector<Message>& receive) override;
  void finish() override;

 protected:
  std::vector<std::string> tell_all(const std::string&) override;
  /// Calls `done` until it returns true. After the limit all ranks end.
  void wait(const std::string& what, const std::function<bool()>& done) const;
  void wait(const std::string& what, std::vector<MPI_Request>&) const;

 private:
  std::string who_;
  double limit_s_ = 300;
  int local_rank_ = 0, local_size_ = 1;
  bool own_gpu_ = false;  // each rank sees one GPU, a different one
  std::string exchange_;  // as start() named it
  std::vector<MPI_Request> requests_;
  std::vector<Message> receives_;
  std::vector<std::vector<std::byte>> staged_;  // in host memory: what is sent, what is received
};

}  // namespace fa

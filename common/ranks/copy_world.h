/// \file
/// World for ranks that share one host and reach each other's memory: the GPUs' copy engines move
/// messages (CUDA's interprocess handles), which occupies no SM. Messages must be received in
/// memory that stays allocated until close_peers(). A message by_host is copied twice: to pinned
/// memory that both processes map, and from there.
#pragma once

#include <sys/types.h>

#include <map>
#include <utility>

#include "common/ranks/gpu_world.h"

namespace fa {

class CopyWorld : public GpuWorld {
 public:
  using GpuWorld::GpuWorld;
  /// Are all ranks on one host, whose GPUs reach each other's memory?
  static bool possible();

  std::string open_own() override;
  void meet(const std::vector<std::string>& all) override;
  void close_peers() override;
  std::string carrier() const override { return "the GPUs' copy engines"; }

 protected:
  void queue(const std::vector<Message>& send, const std::vector<Message>& receive) override;
  void queue_rest() override;

 private:
  struct Place {  // of a message in its receiver's memory
    cudaIpcMemHandle_t allocation;
    size_t offset, bytes;
  };
  struct Room {  // for messages by_host: a file in memory, of the sender's process
    pid_t process;
    int file;
    size_t bytes;
  };
  Place place_of(const Message&);
  std::byte* opened(const Place&);
  const Room& room_for(int peer, size_t bytes);
  std::byte* opened(const Room&);
  void copy_to(int peer);
  void copy_from(int peer, const Room&);

  // Per peer. `ready`: the receiver's memory may be written; `sent`: it was.
  std::vector<cudaEvent_t> my_ready_, my_sent_, their_ready_, their_sent_;
  std::map<std::byte*, cudaIpcMemHandle_t> handles_;  // of this rank's memory
  std::map<std::string, std::byte*> opened_;          // of the other ranks, by interprocess handle
  std::vector<Room> rooms_;                           // per peer
  std::map<std::pair<pid_t, int>, std::pair<std::byte*, size_t>> mapped_;
  // Of the exchange in progress:
  std::vector<Message> send_, receive_;
  std::vector<int> senders_;
  std::vector<MPI_Request> told_;
  std::vector<std::vector<Place>> places_;  // as the receivers sent them
};

}  // namespace fa

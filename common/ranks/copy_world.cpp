#include "common/ranks/copy_world.h"

#include <cuda.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <string>

#include "common/counts/format.h"
#include "common/dialect/cuda.h"

namespace fa {

namespace {

constexpr int kPlaces = 2, kQueued = 3;  // tags: where messages go; their copies are queued

void* address_range_function() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  cuda_check(cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &function, 12000,
                                              cudaEnableDefault, &found));
#else
  cuda_check(cudaGetDriverEntryPoint("cuMemGetAddressRange", &function, cudaEnableDefault, &found));
#endif
  return function;
}

std::byte* allocation_of(void* data) {
  using Function = CUresult (*)(CUdeviceptr*, size_t*, CUdeviceptr);
  static const auto range = reinterpret_cast<Function>(address_range_function());
  CUdeviceptr begin = 0;
  if (range(&begin, nullptr, reinterpret_cast<CUdeviceptr>(data)) != CUDA_SUCCESS) {
    throw std::runtime_error("a message is not in device memory");
  }
  return reinterpret_cast<std::byte*>(begin);
}

std::vector<int> peers_of(const std::vector<Message>& messages) {
  std::vector<int> peers;
  for (const Message& m : messages) peers.push_back(m.peer);
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

std::vector<Message> of_peer(const std::vector<Message>& messages, int peer) {
  std::vector<Message> found;
  for (const Message& m : messages) {
    if (m.peer == peer) found.push_back(m);
  }
  return found;
}

// Trials: FLASH_STEPS_TRIAL=name=number. Those of messages are of large ones, in the forward.
bool trial(const char* name) {
  const char* given = std::getenv("FLASH_STEPS_TRIAL");
  if (!given) return false;
  std::stringstream parts(given);  // joint+pull: both
  for (std::string part; std::getline(parts, part, '+');) {
    if (part.substr(0, part.find('=')) == name) return true;
  }
  return false;
}
int trial_number() {
  const std::string text = std::getenv("FLASH_STEPS_TRIAL");
  return text.find('=') == text.npos ? 0 : std::atoi(text.c_str() + text.find('=') + 1);
}

// Pinned memory of this host that both ranks see, for a message of rank `from` to `to`. The sender
// opens it first.
std::byte* host_room(int from, int to, size_t bytes, bool sends) {
  static std::map<std::pair<int, int>, std::byte*> rooms;
  std::byte*& room = rooms[{from, to}];
  if (room) return room;
  const std::string name = fmt::format("/flash_steps_{}_{}_{}", getppid(), from, to);
  const int file = shm_open(name.c_str(), O_CREAT | O_RDWR, 0600);
  if (file < 0 || ftruncate(file, off_t(bytes)) != 0) throw std::runtime_error("no shared memory");
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) throw std::runtime_error("no shared memory");
  close(file);
  cuda_check(cudaHostRegister(at, bytes, cudaHostRegisterDefault));
  if (!sends) shm_unlink(name.c_str());
  return room = static_cast<std::byte*>(at);
}

size_t bytes_of(const std::vector<Message>& messages) {
  size_t bytes = 0;
  for (const Message& m : messages) bytes += m.bytes;
  return bytes;
}

}  // namespace

bool CopyWorld::possible() {
  const auto [ranks, here] = ranks_and_neighbours();
  int gpus = 0;
  if (ranks != here || cudaGetDeviceCount(&gpus) != cudaSuccess || gpus < ranks) return false;
  for (int a = 0; a < ranks; ++a) {
    for (int b = 0; b < ranks; ++b) {
      int reached = a == b;
      if (a != b && cudaDeviceCanAccessPeer(&reached, a, b) != cudaSuccess) return false;
      if (!reached) return false;
    }
  }
  return true;
}

std::string CopyWorld::open_own() {
  GpuWorld::open_own();
  std::string handles;
  for (auto* events : {&my_ready_, &my_sent_}) {
    for (int peer = 0; peer < size(); ++peer) {
      cudaEvent_t& event = events->emplace_back();
      cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess));
      cudaIpcEventHandle_t handle;
      cuda_check(cudaIpcGetEventHandle(&handle, event));
      handles.append(reinterpret_cast<const char*>(&handle), sizeof handle);
    }
  }
  return handles;
}

void CopyWorld::meet(const std::vector<std::string>& all) {
  for (auto* events : {&their_ready_, &their_sent_}) {
    for (int peer = 0; peer < size(); ++peer) {
      cudaEvent_t& event = events->emplace_back();
      if (peer == rank()) continue;
      const size_t of_kind = events == &their_ready_ ? 0 : size();
      cudaIpcEventHandle_t handle;
      std::memcpy(&handle, all[peer].data() + (of_kind + rank()) * sizeof handle, sizeof handle);
      cuda_check(cudaIpcOpenEventHandle(&event, handle));
    }
  }
}

void CopyWorld::close_peers() {
  cuda_check(cudaDeviceSynchronize());
  for (auto* events : {&their_ready_, &their_sent_}) {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank()) cuda_check(cudaEventDestroy((*events)[peer]));
    }
  }
  for (const auto& [handle, begin] : opened_) cuda_check(cudaIpcCloseMemHandle(begin));
  opened_.clear();
}

CopyWorld::Place CopyWorld::place_of(const Message& m) {
  Place place{};
  std::byte* begin = allocation_of(m.data);
  const auto [handle, added] = handles_.try_emplace(begin);
  if (added) cuda_check(cudaIpcGetMemHandle(&handle->second, begin));  // slow
  place.allocation = handle->second;
  place.offset = static_cast<size_t>(static_cast<std::byte*>(m.data) - begin);
  place.bytes = m.bytes;
  return place;
}

std::byte* CopyWorld::opened(const Place& place) {
  const std::string handle(reinterpret_cast<const char*>(&place.allocation),
                           sizeof place.allocation);
  std::byte*& begin = opened_[handle];
  if (!begin) {
    void* at = nullptr;
    cuda_check(cudaIpcOpenMemHandle(&at, place.allocation, cudaIpcMemLazyEnablePeerAccess));
    begin = static_cast<std::byte*>(at);
  }
  return begin + place.offset;
}

// A wait for another process's event refers to the state of the event when the wait is queued, so
// each wait follows a message from the host that recorded the event. The host receives it after its
// kernels are queued, so the GPU need not wait. Exchanges between two ranks stay in step, since
// finish() waits until the other's copies are queued.
void CopyWorld::queue(const std::vector<Message>& send, const std::vector<Message>& receive) {
  const bool large = bytes_of(send) > (48u << 20) && exchange().rfind("K, V of rank", 0) == 0;
  through_host_ = large && trial("host");
  pulls_ = trial("pull");
  spread_us_ = large && trial("spread") ? trial_number() : 0;
  send_ = send, receive_ = receive, senders_ = peers_of(receive);
  places_.clear();
  for (int peer : pulls_ ? peers_of(send) : senders_) {
    cuda_check(cudaEventRecord(my_ready_[peer], current_stream()));
    std::vector<Place>& places = places_.emplace_back();
    for (const Message& m : of_peer(pulls_ ? send : receive, peer)) places.push_back(place_of(m));
    MPI_Isend(places.data(), static_cast<int>(places.size() * sizeof(Place)), MPI_BYTE, peer,
              kPlaces, MPI_COMM_WORLD, &told_.emplace_back());
  }
}

void CopyWorld::copy_to(int peer) {
  const std::vector<Message> messages = of_peer(pulls_ ? receive_ : send_, peer);
  std::vector<Place> places(messages.size());
  std::vector<MPI_Request> request(1);
  MPI_Irecv(places.data(), static_cast<int>(places.size() * sizeof(Place)), MPI_BYTE, peer, kPlaces,
            MPI_COMM_WORLD, &request[0]);
  wait(exchange(), request);
  cuda_check(cudaStreamWaitEvent(stream(), their_ready_[peer]));
  std::byte* room = through_host_ ? host_room(rank(), peer, bytes_of(messages), true) : nullptr;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (places[i].bytes != messages[i].bytes) {
      throw std::runtime_error("a message is not as long as its receiver expects");
    }
    auto* from = static_cast<std::byte*>(messages[i].data);
    size_t bytes = messages[i].bytes;
    if (through_host_) {
      cuda_check(cudaMemcpyAsync(room, from, bytes, cudaMemcpyDeviceToHost, stream()));
      room += bytes;
      continue;
    }
    std::byte* to = opened(places[i]);
    if (pulls_) std::swap(from, to);
    if (trial("none")) continue;  // for times, with wrong results: none, tiny, self
    if (trial("tiny")) bytes = std::min<size_t>(bytes, 256);
    if (trial("self")) to = static_cast<std::byte*>(of_peer(receive_, peer)[i].data);
    const size_t piece = spread_us_ > 0 ? size_t{4} << 20 : bytes;
    for (size_t at = 0; at < bytes; at += piece) {
      if (spread_us_ > 0) {
        const auto pause = [](void* us) { usleep(unsigned(reinterpret_cast<uintptr_t>(us))); };
        cuda_check(
            cudaLaunchHostFunc(stream(), pause, reinterpret_cast<void*>(uintptr_t(spread_us_))));
      }
      cuda_check(cudaMemcpyAsync(to + at, from + at, std::min(piece, bytes - at),
                                 cudaMemcpyDeviceToDevice, stream()));
    }
  }
  cuda_check(cudaEventRecord(my_sent_[peer], stream()));
  MPI_Isend(nullptr, 0, MPI_BYTE, peer, kQueued, MPI_COMM_WORLD, &told_.emplace_back());
}

void CopyWorld::queue_rest() {
  move([&] {
    for (int peer : pulls_ ? senders_ : peers_of(send_)) copy_to(peer);
  });
  for (int peer : pulls_ ? peers_of(send_) : senders_) {
    std::vector<MPI_Request> request(1);
    MPI_Irecv(nullptr, 0, MPI_BYTE, peer, kQueued, MPI_COMM_WORLD, &request[0]);
    wait(exchange(), request);
    if (!through_host_) {
      cuda_check(cudaStreamWaitEvent(current_stream(), their_sent_[peer]));
      continue;
    }
    cuda_check(cudaStreamWaitEvent(stream(), their_sent_[peer]));
    move([&] {
      const std::vector<Message> messages = of_peer(receive_, peer);
      const std::byte* room = host_room(peer, rank(), bytes_of(messages), false);
      for (const Message& m : messages) {
        cuda_check(cudaMemcpyAsync(m.data, room, m.bytes, cudaMemcpyHostToDevice, stream()));
        room += m.bytes;
      }
    });
  }
  wait(exchange(), told_);
}

}  // namespace fa

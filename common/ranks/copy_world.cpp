#include "common/ranks/copy_world.h"

#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

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

size_t bytes_by_host(const std::vector<Message>& messages) {
  size_t bytes = 0;
  for (const Message& m : messages) bytes += m.by_host ? m.bytes : 0;
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
  rooms_.resize(size());
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
  for (const auto& [file, memory] : mapped_) {
    cuda_check(cudaHostUnregister(memory.first));
    munmap(memory.first, memory.second);
    if (file.first == getpid()) close(file.second);
  }
  mapped_.clear();
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

// A room that has become too small stays: the peer may still read it.
const CopyWorld::Room& CopyWorld::room_for(int peer, size_t bytes) {
  Room& room = rooms_[peer];
  if (room.bytes >= bytes) return room;
  room = {getpid(), memfd_create("messages", MFD_CLOEXEC), bytes};
  if (room.file < 0 || ftruncate(room.file, static_cast<off_t>(bytes)) != 0) {
    throw std::runtime_error(fmt::format("no host memory for messages: {}", std::strerror(errno)));
  }
  return room;
}

std::byte* CopyWorld::opened(const Room& room) {
  auto& [begin, bytes] = mapped_[{room.process, room.file}];
  if (!begin) {
    const std::string path = fmt::format("/proc/{}/fd/{}", room.process, room.file);
    const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    void* at = mmap(nullptr, room.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED)
      throw std::runtime_error(fmt::format("{}: {}", path, std::strerror(errno)));
    close(file);
    cuda_check(cudaHostRegister(at, room.bytes, cudaHostRegisterDefault));
    begin = static_cast<std::byte*>(at), bytes = room.bytes;
  }
  return begin;
}

// A wait for another process's event refers to the state of the event when the wait is queued, so
// each wait follows a message from the host that recorded the event. The host receives it after its
// kernels are queued, so the GPU need not wait. Exchanges between two ranks stay in step, since
// finish() waits until the other's copies are queued.
void CopyWorld::queue(const std::vector<Message>& send, const std::vector<Message>& receive) {
  send_ = send, receive_ = receive, senders_ = peers_of(receive);
  places_.clear();
  for (int peer : senders_) {
    cuda_check(cudaEventRecord(my_ready_[peer], current_stream()));
    std::vector<Place>& places = places_.emplace_back();
    for (const Message& m : of_peer(receive, peer)) places.push_back(place_of(m));
    MPI_Isend(places.data(), static_cast<int>(places.size() * sizeof(Place)), MPI_BYTE, peer,
              kPlaces, MPI_COMM_WORLD, &told_.emplace_back());
  }
}

void CopyWorld::copy_to(int peer) {
  const std::vector<Message> messages = of_peer(send_, peer);
  std::vector<Place> places(messages.size());
  std::vector<MPI_Request> request(1);
  MPI_Irecv(places.data(), static_cast<int>(places.size() * sizeof(Place)), MPI_BYTE, peer, kPlaces,
            MPI_COMM_WORLD, &request[0]);
  wait(exchange(), request);
  cuda_check(cudaStreamWaitEvent(stream(), their_ready_[peer]));
  const size_t by_host = bytes_by_host(messages);
  std::byte* in_room = by_host > 0 ? opened(room_for(peer, by_host)) : nullptr;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (places[i].bytes != messages[i].bytes) {
      throw std::runtime_error("a message is not as long as its receiver expects");
    }
    if (messages[i].by_host) {
      cuda_check(cudaMemcpyAsync(in_room, messages[i].data, messages[i].bytes,
                                 cudaMemcpyDeviceToHost, stream()));
      in_room += messages[i].bytes;
    } else {
      cuda_check(cudaMemcpyAsync(opened(places[i]), messages[i].data, messages[i].bytes,
                                 cudaMemcpyDeviceToDevice, stream()));
    }
  }
  cuda_check(cudaEventRecord(my_sent_[peer], stream()));
  MPI_Isend(&rooms_[peer], by_host > 0 ? sizeof(Room) : 0, MPI_BYTE, peer, kQueued, MPI_COMM_WORLD,
            &told_.emplace_back());
}

// The messages by_host, from the room to their places.
void CopyWorld::copy_from(int peer, const Room& room) {
  const std::byte* in_room = opened(room);
  for (const Message& m : of_peer(receive_, peer)) {
    if (!m.by_host) continue;
    cuda_check(cudaMemcpyAsync(m.data, in_room, m.bytes, cudaMemcpyHostToDevice, stream()));
    in_room += m.bytes;
  }
}

void CopyWorld::queue_rest() {
  move([&] {
    for (int peer : peers_of(send_)) copy_to(peer);
  });
  for (int peer : senders_) {
    std::vector<MPI_Request> request(1);
    Room room{};  // stays empty without messages by_host
    MPI_Irecv(&room, sizeof room, MPI_BYTE, peer, kQueued, MPI_COMM_WORLD, &request[0]);
    wait(exchange(), request);
    if (room.bytes == 0) {
      cuda_check(cudaStreamWaitEvent(current_stream(), their_sent_[peer]));
    } else {
      cuda_check(cudaStreamWaitEvent(stream(), their_sent_[peer]));
      move([&] { copy_from(peer, room); });
    }
  }
  wait(exchange(), told_);
}

}  // namespace fa

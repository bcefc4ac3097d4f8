#include "common/ranks/mpi_world.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>
#include <tuple>

#include "common/counts/format.h"
#include "common/dialect/cuda.h"

namespace fa {

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kPiece = size_t{1} << 30;  // MPI counts in int

/// \param post called with each piece of a message: MPI_Isend or MPI_Irecv
void in_pieces(std::byte* data, size_t bytes, const std::function<void(void*, int)>& post) {
  for (size_t at = 0; at < bytes; at += kPiece) {
    post(data + at, static_cast<int>(std::min(kPiece, bytes - at)));
  }
}

/// \param number MPI_Comm_rank or MPI_Comm_size
int of_all(int (*number)(MPI_Comm, int*)) {
  int started = 0, n = 0;
  MPI_Initialized(&started);
  if (!started) MPI_Init(nullptr, nullptr);
  number(MPI_COMM_WORLD, &n);
  return n;
}

/// (this rank's number among those of this machine, how many they are)
std::pair<int, int> local_place() {
  MPI_Comm local;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, of_all(MPI_Comm_rank), MPI_INFO_NULL,
                      &local);
  std::pair<int, int> place;
  MPI_Comm_rank(local, &place.first);
  MPI_Comm_size(local, &place.second);
  MPI_Comm_free(&local);
  return place;
}

}  // namespace

std::pair<int, int> ranks_and_neighbours() {
  const int ranks = of_all(MPI_Comm_size);
  return {ranks, local_place().second};
}

MpiWorld::MpiWorld(const std::string& who)
    : World(of_all(MPI_Comm_rank), of_all(MPI_Comm_size)), who_(who) {
  std::tie(local_rank_, local_size_) = local_place();
}

MpiWorld::~MpiWorld() { MPI_Finalize(); }

void MpiWorld::wait(const std::string& what, const std::function<bool()>& done) const {
  // Each rank waits a little longer than the one before it, else all would report at once.
  const double limit = limit_s_ * (1 + 0.05 * rank());
  const auto begin = Clock::now();
  while (!done()) {
    const double waited = std::chrono::duration<double>(Clock::now() - begin).count();
    if (waited > limit) {
      const_cast<MpiWorld*>(this)->end_all(
          fmt::format("rank {} has waited {:.3g} s for another rank ({}): all ranks end; --limit "
                      "allows more seconds",
                      rank(), limit_s_, what),
          1);
    }
    std::this_thread::yield();
    // Rarely: each test progresses a piece of what is in flight.
    if (waited > 0.5) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

void MpiWorld::wait(const std::string& what, std::vector<MPI_Request>& requests) const {
  wait(what, [&] {
    int done = 0;
    MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
    return done != 0;
  });
  requests.clear();
}

std::vector<std::string> MpiWorld::tell_all(const std::string& text) {
  const int length = static_cast<int>(text.size());
  std::vector<int> lengths(size()), begins(size());
  std::vector<MPI_Request> request(1);
  MPI_Iallgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, MPI_COMM_WORLD, &request[0]);
  wait("the start", request);
  int total = 0;
  for (int r = 0; r < size(); total += lengths[r++]) begins[r] = total;
  std::string all(total, ' ');
  request.resize(1);
  MPI_Iallgatherv(text.data(), length, MPI_CHAR, all.data(), lengths.data(), begins.data(),
                  MPI_CHAR, MPI_COMM_WORLD, &request[0]);
  wait("the start", request);
  std::vector<std::string> texts;
  for (int r = 0; r < size(); ++r) texts.push_back(all.substr(begins[r], lengths[r]));
  return texts;
}

std::vector<std::vector<float>> MpiWorld::gather(const std::vector<float>& mine) {
  const std::vector<size_t> sizes = this->all(mine.size());
  std::vector<std::vector<float>> all;
  std::vector<MPI_Request> requests;
  const auto post = [&](auto call, const float* data, size_t n, int peer) {
    in_pieces(reinterpret_cast<std::byte*>(const_cast<float*>(data)), n * sizeof(float),
              [&](void* piece, int bytes) {
                call(piece, bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD, &requests.emplace_back());
              });
  };
  if (rank() != 0) {
    post(MPI_Isend, mine.data(), mine.size(), 0);
  } else {
    all.push_back(mine);
    for (int r = 1; r < size(); ++r) {
      all.emplace_back(sizes[r]);
      post(MPI_Irecv, all.back().data(), all.back().size(), r);
    }
  }
  wait("its results", requests);
  return all;
}

void MpiWorld::barrier() {
  std::vector<MPI_Request> request(1);
  MPI_Ibarrier(MPI_COMM_WORLD, &request[0]);
  wait("the start of a run", request);
}

void MpiWorld::synchronize() { cuda_check(cudaDeviceSynchronize()); }

double MpiWorld::time_run(const std::function<void()>& run) {
  const auto begin = Clock::now();
  run();
  synchronize();
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

void MpiWorld::end_all(const std::string& sentence, int status) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s: %s\n", who_.c_str(), sentence.c_str());
  std::fflush(stderr);
  MPI_Abort(MPI_COMM_WORLD, status);
  std::_Exit(status);
}

void MpiWorld::start(const std::string& what, const std::vector<Message>& send,
                     const std::vector<Message>& receive) {
  count(send);
  exchange_ = what;
  receives_ = receive;
  staged_.clear();
  const auto post = [&](auto call, const Message& m) {
    in_pieces(staged_.back().data(), m.bytes, [&](void* piece, int bytes) {
      call(piece, bytes, MPI_BYTE, m.peer, 0, MPI_COMM_WORLD, &requests_.emplace_back());
    });
  };
  for (const Message& m : receive) {
    staged_.emplace_back(m.bytes);
    post(MPI_Irecv, m);
  }
  for (const Message& m : send) {
    staged_.emplace_back(m.bytes);
    cuda_check(cudaMemcpy(staged_.back().data(), m.data, m.bytes, cudaMemcpyDeviceToHost));
    post(MPI_Isend, m);
  }
}

void MpiWorld::finish() {
  wait(exchange_, requests_);
  for (size_t i = 0; i < receives_.size(); ++i) {
    const Message& m = receives_[i];
    cuda_check(cudaMemcpy(m.data, staged_[i].data(), m.bytes, cudaMemcpyHostToDevice));
  }
  staged_.clear();
}

}  // namespace fa

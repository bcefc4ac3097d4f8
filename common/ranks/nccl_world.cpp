#include "common/ranks/nccl_world.h"

#include <algorithm>
#include <cstdlib>

#include "common/counts/format.h"
#include "common/dialect/cuda.h"

namespace fa {

namespace {

/// Blocks of NCCL's kernels; each takes an SM from a kernel that fills all of them.
int blocks() {
  const char* chosen = std::getenv("NCCL_MAX_CTAS");
  constexpr int kMost = 64;
  return chosen && std::atoi(chosen) > 0 ? std::min(std::atoi(chosen), kMost) : 16;
}

void nccl_check(ncclResult_t status) {
  if (status != ncclSuccess && status != ncclInProgress) {
    throw std::runtime_error(fmt::format("NCCL: {}", ncclGetErrorString(status)));
  }
}

}  // namespace

NcclWorld::~NcclWorld() {
  if (comm_) ncclCommDestroy(comm_);
}

std::string NcclWorld::open_own() {
  GpuWorld::open_own();
  ncclUniqueId id{};
  if (rank() == 0) nccl_check(ncclGetUniqueId(&id));
  return std::string(id.internal, sizeof id.internal);
}

void NcclWorld::meet(const std::vector<std::string>& all) {
  ncclUniqueId id{};
  all[0].copy(id.internal, sizeof id.internal);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.maxCTAs = blocks();
  config.cgaClusterSize = 0;  // its blocks take any SM that is free
  config.blocking = 0;        // so that the host can stop waiting
  nccl_check(ncclCommInitRankConfig(&comm_, size(), id, rank(), &config));
  await("NCCL's start");
}

/// Where NCCL does not block, a call may only have begun.
void NcclWorld::await(const std::string& what) const {
  wait(what, [this] {
    ncclResult_t status = ncclSuccess;
    nccl_check(ncclCommGetAsyncError(comm_, &status));
    nccl_check(status);
    return status != ncclInProgress;
  });
}

std::string NcclWorld::carrier() const {
  int version = 0;
  ncclGetVersion(&version);
  return fmt::format("NCCL {}.{}.{}, {} blocks", version / 10000, version / 100 % 100,
                     version % 100, blocks());
}

int NcclWorld::busy_sms() const { return blocks(); }

void NcclWorld::queue(const std::vector<Message>& send, const std::vector<Message>& receive) {
  move([&] {
    nccl_check(ncclGroupStart());
    for (const Message& m : receive) {
      nccl_check(ncclRecv(m.data, m.bytes, ncclInt8, m.peer, comm_, stream()));
    }
    for (const Message& m : send) {
      nccl_check(ncclSend(m.data, m.bytes, ncclInt8, m.peer, comm_, stream()));
    }
    nccl_check(ncclGroupEnd());
    await(exchange());
  });
}

void NcclWorld::look() {
  ncclResult_t failed = ncclSuccess;
  if (comm_) ncclCommGetAsyncError(comm_, &failed);
  nccl_check(failed);
}

}  // namespace fa

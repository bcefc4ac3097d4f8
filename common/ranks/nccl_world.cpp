#include "common/ranks/nccl_world.h"

#include <cstdlib>

#include "common/dialect/cuda.h"
#include "common/harness/format.h"

namespace fa {

namespace {

/// Blocks of NCCL's kernels, each of which takes an SM from a kernel that fills all of them.
int blocks() {
  const char* chosen = std::getenv("NCCL_MAX_CTAS");
  return chosen && std::atoi(chosen) > 0 ? std::atoi(chosen) : 16;
}

void nccl_check(ncclResult_t status) {
  if (status != ncclSuccess)
    throw std::runtime_error(fmt::format("NCCL: {}", ncclGetErrorString(status)));
}

}  // namespace

NcclWorld::~NcclWorld() {
  if (comm_) ncclCommDestroy(comm_);
}

void NcclWorld::open_device() {
  GpuWorld::open_device();
  ncclUniqueId id{};
  if (rank() == 0) nccl_check(ncclGetUniqueId(&id));
  const std::string told = tell_all(std::string(id.internal, sizeof id.internal))[0];
  told.copy(id.internal, sizeof id.internal);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.maxCTAs = blocks();
  config.cgaClusterSize = 0;  // its blocks take any SM that is free
  nccl_check(ncclCommInitRankConfig(&comm_, size(), id, rank(), &config));
}

std::string NcclWorld::carrier() const {
  int version = 0;
  ncclGetVersion(&version);
  return fmt::format("NCCL {}.{}.{}, {} blocks", version / 10000, version / 100 % 100,
                     version % 100, blocks());
}

int NcclWorld::busy_sms() const { return blocks(); }

void NcclWorld::queue(const std::vector<Message>& send, const std::vector<Message>& receive) {
  nccl_check(ncclGroupStart());
  for (const Message& m : receive) {
    nccl_check(ncclRecv(m.data, m.bytes, ncclInt8, m.peer, comm_, stream()));
  }
  for (const Message& m : send) {
    nccl_check(ncclSend(m.data, m.bytes, ncclInt8, m.peer, comm_, stream()));
  }
  nccl_check(ncclGroupEnd());
}

void NcclWorld::look() {
  ncclResult_t failed = ncclSuccess;
  if (comm_) ncclCommGetAsyncError(comm_, &failed);
  nccl_check(failed);
}

}  // namespace fa

#include "common/ranks/nccl_world.h"

#include <chrono>
#include <cstdlib>

#include "common/dialect/cuda.h"
#include "common/harness/format.h"

namespace fa {

namespace {

/// Blocks of NCCL's kernels, each of which takes an SM from a kernel that fills all of them. Few
/// are enough: messages have as long as the hop beside them computes.
int blocks() {
  const char* chosen = std::getenv("NCCL_MAX_CTAS");
  return chosen && std::atoi(chosen) > 0 ? std::atoi(chosen) : 4;
}

void nccl_check(ncclResult_t status) {
  if (status != ncclSuccess)
    throw std::runtime_error(fmt::format("NCCL: {}", ncclGetErrorString(status)));
}

cudaEvent_t new_event() {
  cudaEvent_t event;
  cuda_check(cudaEventCreate(&event));
  return event;
}

}  // namespace

struct NcclWorld::Traced {
  std::string lane, name;
  cudaEvent_t begin = new_event(), end = nullptr;
  ~Traced() {
    cudaEventDestroy(begin);
    if (end) cudaEventDestroy(end);
  }
};

NcclWorld::~NcclWorld() {
  if (comm_) ncclCommDestroy(comm_);
}

void NcclWorld::open_device() {
  ncclUniqueId id{};
  if (rank() == 0) nccl_check(ncclGetUniqueId(&id));
  const std::string told = tell_all(std::string(id.internal, sizeof id.internal))[0];
  told.copy(id.internal, sizeof id.internal);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.maxCTAs = blocks();
  config.cgaClusterSize = 0;  // its blocks take any SM that is free
  nccl_check(ncclCommInitRankConfig(&comm_, size(), id, rank(), &config));
  cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  for (cudaEvent_t* event : {&computed_, &arrived_, &begin_, &end_}) *event = new_event();
}

std::string NcclWorld::carrier() const {
  int version = 0;
  ncclGetVersion(&version);
  return fmt::format("NCCL {}.{}.{}, {} blocks", version / 10000, version / 100 % 100,
                     version % 100, blocks());
}

int NcclWorld::busy_sms() const { return blocks(); }

void NcclWorld::start(const std::string& what, const std::vector<Message>& send,
                      const std::vector<Message>& receive) {
  count(send);
  waits_for_ = what;
  cuda_check(cudaEventRecord(computed_, current_stream()));
  cuda_check(cudaStreamWaitEvent(stream_, computed_));
  begin_span("messages", what, stream_);
  nccl_check(ncclGroupStart());
  for (const Message& m : receive) {
    nccl_check(ncclRecv(m.data, m.bytes, ncclInt8, m.peer, comm_, stream_));
  }
  for (const Message& m : send) {
    nccl_check(ncclSend(m.data, m.bytes, ncclInt8, m.peer, comm_, stream_));
  }
  nccl_check(ncclGroupEnd());
  end_span("messages", stream_);
  cuda_check(cudaEventRecord(arrived_, stream_));
}

void NcclWorld::finish() {
  end_span("compute", current_stream());
  cuda_check(cudaStreamWaitEvent(current_stream(), arrived_));
  begin_span("compute", "", current_stream());
}

// A rank that waits for one that never sends waits here: the host only queues.
void NcclWorld::synchronize() {
  cuda_check(cudaEventRecord(end_, current_stream()));
  wait(waits_for_.empty() ? "its kernels" : waits_for_, [this] {
    ncclResult_t failed = ncclSuccess;
    if (comm_) ncclCommGetAsyncError(comm_, &failed);
    nccl_check(failed);
    const cudaError_t status = cudaEventQuery(end_);
    if (status != cudaErrorNotReady) cuda_check(status);
    return status == cudaSuccess;
  });
}

double NcclWorld::time_run(const std::function<void()>& run) {
  cuda_check(cudaEventRecord(begin_, current_stream()));
  run();
  synchronize();
  float ms = 0;
  cuda_check(cudaEventElapsedTime(&ms, begin_, end_));
  return ms;
}

// --- the trace -----------------------------------------------------------------------------------

void NcclWorld::begin_span(const char* lane, const std::string& name, cudaStream_t stream) {
  if (!tracing_) return;
  auto span = std::make_shared<Traced>();
  span->lane = lane, span->name = name;
  if (name.empty()) {  // the same work goes on
    for (const auto& t : traced_) {
      if (t->lane == lane) span->name = t->name;
    }
  }
  cuda_check(cudaEventRecord(span->begin, stream));
  traced_.push_back(span);
}

void NcclWorld::end_span(const char* lane, cudaStream_t stream) {
  if (!tracing_) return;
  for (auto t = traced_.rbegin(); t != traced_.rend(); ++t) {
    if ((*t)->lane != lane) continue;
    if (!(*t)->end) {
      (*t)->end = new_event();
      cuda_check(cudaEventRecord((*t)->end, stream));
    }
    return;
  }
}

void NcclWorld::computing(const std::string& name) {
  end_span("compute", current_stream());
  begin_span("compute", name, current_stream());
}

void NcclWorld::begin_trace() {
  traced_.clear();
  cuda_check(cudaEventRecord(begin_, current_stream()));
  tracing_ = true;
}

std::vector<Span> NcclWorld::end_trace() {
  end_span("compute", current_stream());
  synchronize();
  tracing_ = false;
  std::vector<Span> spans;
  for (const auto& t : traced_) {
    float begin = 0, end = 0;
    cuda_check(cudaEventElapsedTime(&begin, begin_, t->begin));
    cuda_check(cudaEventElapsedTime(&end, begin_, t->end));
    if (end - begin > 2e-3f) spans.push_back({t->lane, t->name, begin, end});
  }
  traced_.clear();
  return spans;
}

}  // namespace fa

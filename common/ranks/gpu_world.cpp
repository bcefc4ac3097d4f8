#include "common/ranks/gpu_world.h"

#include "common/dialect/cuda.h"

namespace fa {

namespace {

cudaEvent_t new_event() {
  cudaEvent_t event;
  cuda_check(cudaEventCreate(&event));
  return event;
}

}  // namespace

struct GpuWorld::Traced {
  std::string lane, name;
  cudaEvent_t begin = new_event(), end = nullptr;
  ~Traced() {
    cudaEventDestroy(begin);
    if (end) cudaEventDestroy(end);
  }
};

GpuWorld::~GpuWorld() = default;

std::string GpuWorld::open_own() {
  cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  for (cudaEvent_t* event : {&computed_, &sent_, &begin_, &end_}) *event = new_event();
  return "";
}

void GpuWorld::start(const std::string& what, const std::vector<Message>& send,
                     const std::vector<Message>& receive) {
  count(send);
  exchange_ = what;
  cuda_check(cudaEventRecord(computed_, current_stream()));
  cuda_check(cudaStreamWaitEvent(stream_, computed_));
  queue(send, receive);
}

void GpuWorld::move(const std::function<void()>& copies) {
  begin_span("messages", exchange_, stream_);
  copies();
  end_span("messages", stream_);
  cuda_check(cudaEventRecord(sent_, stream_));
}

void GpuWorld::finish() {
  end_span("compute", current_stream());
  queue_rest();
  cuda_check(cudaStreamWaitEvent(current_stream(), sent_));
  begin_span("compute", "", current_stream());
}

// A rank that waits for a message that is never sent waits here: the host only queues.
void GpuWorld::synchronize() {
  cuda_check(cudaEventRecord(end_, current_stream()));
  wait(exchange_.empty() ? "its kernels" : exchange_, [this] {
    look();
    const cudaError_t status = cudaEventQuery(end_);
    if (status != cudaErrorNotReady) cuda_check(status);
    return status == cudaSuccess;
  });
}

double GpuWorld::time_run(const std::function<void()>& run) {
  cuda_check(cudaEventRecord(begin_, current_stream()));
  run();
  synchronize();
  float ms = 0;
  cuda_check(cudaEventElapsedTime(&ms, begin_, end_));
  return ms;
}

// --- the trace -----------------------------------------------------------------------------------

void GpuWorld::begin_span(const char* lane, const std::string& name, cudaStream_t stream) {
  if (!tracing_) return;
  auto span = std::make_shared<Traced>();
  span->lane = lane, span->name = name;
  if (name.empty()) {  // the same work continues
    for (const auto& t : traced_) {
      if (t->lane == lane) span->name = t->name;
    }
  }
  cuda_check(cudaEventRecord(span->begin, stream));
  traced_.push_back(span);
}

void GpuWorld::end_span(const char* lane, cudaStream_t stream) {
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

void GpuWorld::computing(const std::string& name) {
  end_span("compute", current_stream());
  begin_span("compute", name, current_stream());
}

void GpuWorld::begin_trace() {
  traced_.clear();
  cuda_check(cudaEventRecord(begin_, current_stream()));
  tracing_ = true;
}

std::vector<Span> GpuWorld::end_trace() {
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

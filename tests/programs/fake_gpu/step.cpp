// A step whose kernels are lines in a list, for test_library_calls.py: its library's CUDA calls.
#include <utility>

#include "common/harness/linked_step.h"

#include "common/counts/backend.h"
#include "common/harness/library/library.h"

namespace fa {

Device open_device(const std::string&, const std::string&, int) { return {"gpu", "fake", "sm_90"}; }
void name_device_memory(const void*, const std::string&) {}
void shape_device_memory(const void*, const Layout&) {}
bool simulated() { return false; }

}  // namespace fa

namespace {

void prepare(const fa::Problem&, const fa::Tensors<float>&) {
  fa::cuda_check(fake::note("prepare", fa::current_stream()));
}
void forward(const fa::Problem& p, const fa::Tensors<float>& t) {
  std::string lengths;  // in device memory
  for (size_t b = 0; b < p.cache.lengths.size(); ++b) {
    lengths += " " + std::to_string(t.cache.lengths[b]);
  }
  fa::cuda_check(fake::note("forward" + lengths, fa::current_stream()));
}
void backward(const fa::Problem&, const fa::Tensors<float>&) {
  fa::cuda_check(fake::note("backward", fa::current_stream()));
}
fa::Prediction traffic(const fa::Problem&) { return {}; }
std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  return {{.name = "sums", .bytes = p.rows() * 4}, {.name = "taken", .bytes = 8, .zeroed = true}};
}

}  // namespace

extern "C" {
/// The calls since the last query.
FA_EXPORT const char* fa_fake_calls() {
  static std::string answer;
  answer = std::exchange(fake::calls, "");
  return answer.c_str();
}
FA_EXPORT void fa_fake_status(int status) { fake::status = static_cast<cudaError_t>(status); }
FA_EXPORT void fa_fake_largest(int bytes) { fake::largest = bytes; }
FA_EXPORT void fa_fake_capture(int capturing) { fake::capturing = capturing != 0; }
}

static fa::Step step() {
  fa::Step step;
  step.id = "99_fake";
  step.support.gqa = step.support.cross = true;
  fa::Variant v;
  v.support = step.support;
  step.support.lengths = step.support.pages = true;
  v.name = "kernel";
  v.forward = forward;
  v.traffic = traffic;
  v.workspace = workspace;
  v.writes_lse = true;
  step.variants = {v};
  v.name = "both";
  v.backward = backward;
  v.backward_traffic = traffic;
  step.variants.push_back(v);
  v.name = "prepared";
  v.prepare = prepare;
  v.prepare_traffic = traffic;
  v.writes_lse = false;  // its backward needs its forward
  step.variants.push_back(v);
  v = step.variants[0];
  v.name = "cache8";
  v.extras.cache8 = true;
  step.variants.push_back(v);
  v = step.variants[0];
  v.name = "pages";
  v.support = step.support;
  step.variants.push_back(v);
  return step;
}

static const fa::LinkedStep linked(step());

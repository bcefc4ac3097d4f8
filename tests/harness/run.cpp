#include "common/harness/run.h"

#include <cmath>

#include "common/harness/device_memory.h"
#include "tests/test.h"

using fa::DType;
using fa::Problem;

namespace {

Problem small() {
  Problem p;
  p.H = p.Hkv = 2, p.N = p.Nk = 5, p.d = 32;
  return p;
}

/// A step without kernels: O is a copy of Q, or Q's first half of the rows.
template <class T>
void copy_all(const Problem& p, const fa::Tensors<T>& t) {
  fa::cuda_check(cudaMemcpy(t.O, t.Q, p.q_size() * sizeof(T), cudaMemcpyDeviceToDevice));
}
template <class T>
void copy_half(const Problem& p, const fa::Tensors<T>& t) {
  fa::cuda_check(cudaMemcpy(t.O, t.Q, p.q_size() / 2 * sizeof(T), cudaMemcpyDeviceToDevice));
}
void zero_gradients(const Problem& p, const fa::Tensors<float>& t) {
  fa::cuda_check(cudaMemset(t.dQ, 0, p.q_size() * sizeof(float)));
  fa::cuda_check(cudaMemset(t.dK, 0, p.kv_size() * sizeof(float)));
  fa::cuda_check(cudaMemset(t.dV, 0, p.kv_size() * sizeof(float)));
  fa::cuda_check(cudaMemset(t.scratch<float>("sums"), 0, 40));
}

/// A quantisation that only halves Q; its forward makes O from what it finds in the workspace.
void halve(const Problem& p, const fa::Tensors<float>& t) {
  std::vector<float> q(p.q_size());
  fa::cuda_check(cudaMemcpy(q.data(), t.Q, q.size() * sizeof(float), cudaMemcpyDeviceToHost));
  for (float& x : q) x *= 0.5f;
  fa::cuda_check(cudaMemcpy(t.scratch<float>("half Q"), q.data(), q.size() * sizeof(float),
                            cudaMemcpyHostToDevice));
}
void copy_half_q(const Problem& p, const fa::Tensors<float>& t) {
  fa::cuda_check(cudaMemcpy(t.O, t.scratch<float>("half Q"), p.q_size() * sizeof(float),
                            cudaMemcpyDeviceToDevice));
}

template <class T>
fa::Variant variant(void (*forward)(const Problem&, const fa::Tensors<T>&)) {
  fa::Variant v;
  v.forward = forward;
  return v;
}

fa::Variant prepared() {
  fa::Variant v = variant(copy_half_q);
  v.prepare = halve;
  v.workspace = [](const Problem& p) {
    return std::vector<fa::Scratch>{{"half Q", 4 * p.q_size()},
                                    {.name = "counter", .bytes = 8, .zeroed = true}};
  };
  return v;
}

size_t unwritten(const std::vector<float>& a) {
  size_t n = 0;
  for (const float x : a) n += fa::never_written(x);
  return n;
}

}  // namespace

TEST_CASE("device memory has one owner", "[run]") {
  const std::vector<float> data = {1, 2, 3, 4};
  fa::DeviceMemory<float> first("x", data.size());
  REQUIRE(first);
  first.upload(data);
  const float* where = first.get();
  fa::DeviceMemory<float> second = std::move(first);
  CHECK_FALSE(first);
  CHECK((second.get() == where && second.size() == 4 && second.bytes() == 16));
  CHECK(second.download() == data);
  second.fill(0);
  CHECK(second.download<int>() == std::vector<int>(4, 0));
  second = {};
  CHECK_FALSE(second);
  CHECK(fa::DeviceMemory<>("nothing", 0));  // an address of its own all the same
  const fa::DeviceMemory<> refused("too much", fa::free_device_bytes() + (size_t{1} << 40));
  CHECK_FALSE(refused);
  CHECK(refused.bytes() == 0);
}

TEST_CASE("inputs arrive, outputs come back, in each type", "[run]") {
  Problem p = small();
  p.dtype = GENERATE(DType::f32, DType::bf16);
  const fa::Inputs in = fa::normal_inputs(p, 1);
  const fa::Outputs out = p.dtype == DType::f32 ? fa::run(variant(copy_all<float>), p, in)
                                                : fa::run(variant(copy_all<fa::bf16>), p, in);
  CHECK(out.O == in.Q);
  CHECK(out.LSE.empty());
  CHECK(out.dQ.empty());
  CHECK(out.damage.empty());
}

TEST_CASE("what a step did not write is known", "[run]") {
  Problem p = small();
  p.dtype = GENERATE(DType::f32, DType::bf16);
  const fa::Inputs in = fa::normal_inputs(p, 1);
  fa::Variant v = p.dtype == DType::f32 ? variant(copy_half<float>) : variant(copy_half<fa::bf16>);
  v.writes_lse = true;
  const fa::Outputs out = fa::run(v, p, in);
  CHECK(unwritten(out.O) == p.q_size() / 2);
  CHECK(fa::never_written(out.O.back()));
  CHECK(std::isnan(out.O.back()));
  CHECK(unwritten(out.LSE) == p.rows());
  CHECK_FALSE(fa::never_written(NAN));
  CHECK_FALSE(fa::never_written(-NAN));
}

TEST_CASE("poison() forgets an earlier run", "[run]") {
  const Problem p = small();
  const fa::Inputs in = fa::normal_inputs(p, 1);
  fa::Session session(p, in, variant(copy_all<float>));
  session.forward();
  CHECK(unwritten(session.download().O) == 0);
  session.poison();
  CHECK(unwritten(session.download().O) == p.q_size());
}

TEST_CASE("the backward has its tensors and its workspace", "[run]") {
  const Problem p = small();
  const fa::Inputs in = fa::normal_inputs(p, 1);
  fa::Variant v = variant(copy_all<float>);
  v.backward = zero_gradients;
  v.workspace = [](const Problem&) { return std::vector<fa::Scratch>{{"sums", 40}}; };
  const fa::Outputs out = fa::run(v, p, in);
  CHECK(out.dQ == std::vector<float>(p.q_size(), 0));
  CHECK(out.dK == std::vector<float>(p.kv_size(), 0));
  CHECK(out.dV == std::vector<float>(p.kv_size(), 0));
}

TEST_CASE("a prepare runs before the forward, which finds its workspace", "[run]") {
  const Problem p = small();
  const fa::Inputs in = fa::normal_inputs(p, 1);
  const fa::Outputs out = fa::run(prepared(), p, in);
  std::vector<float> half = in.Q;
  for (float& x : half) x *= 0.5f;
  CHECK(out.O == half);
  CHECK(out.damage.empty());

  fa::Session session(p, in, prepared());
  session.forward();  // of workspace that nobody wrote
  CHECK(unwritten(session.download().O) == p.q_size());
  session.prepare();
  session.forward();
  CHECK(session.download().O == half);
  session.forget_prepare();
  session.forward();
  CHECK(unwritten(session.download().O) == p.q_size());
  CHECK(session.download().damage.empty());  // what is zeroed stays zero
}

TEST_CASE("workspace that starts as zeros must be left so", "[run]") {
  const Problem p = small();
  const fa::Inputs in = fa::normal_inputs(p, 1);
  static int left = 0;
  fa::Variant v = variant<float>([](const Problem& problem, const fa::Tensors<float>& t) {
    copy_all<float>(problem, t);
    std::vector<uint8_t> bytes(8, 1);
    auto* counter = t.scratch<uint8_t>("counter");
    fa::cuda_check(cudaMemcpy(bytes.data(), counter, 8, cudaMemcpyDeviceToHost));
    CHECK(bytes == std::vector<uint8_t>(8, 0));
    fa::cuda_check(cudaMemset(counter + 5, left, 1));
  });
  v.workspace = [](const Problem&) {
    return std::vector<fa::Scratch>{{.name = "counter", .bytes = 8, .zeroed = true}};
  };
  left = 0;
  CHECK(fa::run(v, p, in).damage.empty());
  left = 1;
  const std::vector<std::string> damage = fa::run(v, p, in).damage;
  REQUIRE(damage.size() == 1);
  CHECK(damage[0] == "counter is not zero after the run, as the next run needs it");
}

TEST_CASE("the memory that a problem needs", "[run]") {
  Problem p;
  p.B = 2, p.H = 4, p.Hkv = 2, p.N = 100, p.Nk = 300, p.d = 64;
  fa::Variant v = variant(copy_all<float>);
  const size_t q = 2 * 4 * 100 * 64 * 4, kv = 2 * 2 * 300 * 64 * 4;
  CHECK(fa::memory_need(p, v).inputs == q + 2 * kv);
  CHECK(fa::memory_need(p, v).outputs == q);
  CHECK(fa::memory_need(p, v).workspace == 0);
  v.writes_lse = true;
  v.workspace = [](const Problem& problem) {
    return std::vector<fa::Scratch>{{"S", 4 * problem.scores()}, {"l", 7}};
  };
  CHECK(fa::memory_need(p, v).outputs == q + 2 * 4 * 100 * 4);
  CHECK(fa::memory_need(p, v).workspace == 4 * 2 * 4 * 100 * 300 + 7);
  v.backward = zero_gradients;
  CHECK(fa::memory_need(p, v).inputs == 2 * q + 2 * kv);
  CHECK(fa::memory_need(p, v).outputs == 2 * q + 2 * kv + 2 * 4 * 100 * 4);
  p.dtype = DType::bf16;
  CHECK(fa::memory_need(p, v).inputs == q + kv);
}

TEST_CASE("too much workspace is refused before anything is allocated", "[run]") {
  const Problem p = small();
  const fa::Inputs in = fa::normal_inputs(p, 1);
  fa::Variant v = variant(copy_all<float>);
  v.workspace = [](const Problem&) { return std::vector<fa::Scratch>{{"S", size_t{1} << 50}}; };
  CHECK_THROWS_AS(fa::Session(p, in, v), fa::ResourceError);
  CHECK_THROWS_WITH(fa::Session(p, in, v),
                    Catch::Matchers::StartsWith("needs 1125899.9 GB of workspace, ") &&
                        ContainsSubstring(" GB free: try a smaller --n or --b"));
}

TEST_CASE("a step of another type, or inputs of another size, are the program's mistake", "[run]") {
  Problem p = small();
  fa::Inputs in = fa::normal_inputs(p, 1);
  CHECK_THROWS_WITH(fa::run(variant(copy_all<fa::bf16>), p, in),
                    "the forward computes in bf16, the problem is fp32");
  fa::Variant mixed = prepared();
  mixed.prepare = copy_all<fa::bf16>;
  CHECK_THROWS_WITH(fa::run(mixed, p, in), "the prepare computes in bf16, the problem is fp32");
  in.V.pop_back();
  CHECK_THROWS_WITH(fa::run(variant(copy_all<float>), p, in), "V has 319 elements instead of 320");
}

#include "common/harness/run.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "common/counts/device_memory.h"
#include "common/harness/check.h"
#include "tests/test.h"

using Catch::Matchers::StartsWith;
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

/// A quantisation that only halves Q; its forward computes O from the workspace.
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
  CHECK(fa::DeviceMemory<>("nothing", 0));  // it still has an address
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

TEST_CASE("a prepare runs before the forward, which finds its workspace", "[run]") {
  const Problem p = small();
  const fa::Inputs in = fa::normal_inputs(p, 1);
  const fa::Outputs out = fa::run(prepared(), p, in);
  std::vector<float> half = in.Q;
  for (float& x : half) x *= 0.5f;
  CHECK(out.O == half);
  CHECK(out.damage.empty());

  fa::Session session(p, in, prepared());
  session.forward();  // reads unwritten workspace
  CHECK(unwritten(session.download().O) == p.q_size());
  session.prepare();
  session.forward();
  CHECK(session.download().O == half);
  session.forget_prepare();
  session.forward();
  CHECK(unwritten(session.download().O) == p.q_size());
  CHECK(session.download().damage.empty());  // zeroed workspace stays zero
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
  v.extras.tables = [](const Problem&) { return std::vector<fa::Table>{{"starts", {0, 40, 100}}}; };
  CHECK(fa::memory_need(p, v).workspace == 4 * 2 * 4 * 100 * 300 + 7 + 3 * 4);
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
  mixed = variant(copy_all<float>);
  mixed.backward = copy_all<fa::bf16>;
  CHECK_THROWS_WITH(fa::run(mixed, p, in), "the backward computes in bf16, the problem is fp32");
  in.V.pop_back();
  CHECK_THROWS_WITH(fa::run(variant(copy_all<float>), p, in), "V has 319 elements instead of 320");
}

// --- a cache -------------------------------------------------------------------------------------

namespace {

struct Found {
  std::vector<uint8_t> K, V;
  std::vector<int> lengths, table;
  std::vector<float> K_scale, V_scale;
};
Found found;
size_t row_bytes, pool_rows;  // of K and V

template <class T>
std::vector<T> copied(const T* from, size_t n) {
  std::vector<T> to(from ? n : 0);
  if (from) fa::cuda_check(cudaMemcpy(to.data(), from, n * sizeof(T), cudaMemcpyDeviceToHost));
  return to;
}
template <class T>
void look(const Problem& p, const fa::Tensors<T>& t) {
  const size_t bytes = pool_rows * row_bytes;
  found = {copied(reinterpret_cast<const uint8_t*>(t.K), bytes),
           copied(reinterpret_cast<const uint8_t*>(t.V), bytes),
           copied(t.cache.lengths, p.B),
           copied(t.cache.table, size_t(p.B) * p.pages()),
           copied(t.cache.K_scale, p.kv_heads()),
           copied(t.cache.V_scale, p.kv_heads())};
}

fa::Variant looking(const Problem& p) {
  fa::Variant v = p.dtype == DType::f32 ? variant(look<float>) : variant(look<fa::bf16>);
  v.extras.cache8 = p.cache.fp8;
  return v;
}

/// The value of bits of e4m3, by definition.
float of_e4m3(uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  const float size = exponent == 0 ? std::ldexp(float(mantissa), -9)
                                   : std::ldexp(float(8 + mantissa), exponent - 10);
  return bits & 0x80 ? -size : size;
}

/// The number at `at`, or nothing where all bits are set.
std::optional<float> number_at(const Problem& p, const uint8_t* at, float scale) {
  if (p.cache.fp8) return *at == 0xff ? std::nullopt : std::optional(scale * of_e4m3(*at));
  if (p.dtype == DType::f32) {
    float x;
    std::memcpy(&x, at, sizeof x);
    return fa::never_written(x) ? std::nullopt : std::optional(x);
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  if (bits == 0xffff) return std::nullopt;
  const uint32_t wide = uint32_t(bits) << 16;
  float x;
  std::memcpy(&x, &wide, sizeof x);
  return x;
}

/// Each key is where the cache says, and all other rows are NaN.
void check_cache(const Problem& p, const std::vector<float>& want, const std::vector<uint8_t>& got,
                 const std::vector<float>& scales, const std::vector<int>& table) {
  std::vector<bool> owned(pool_rows);
  for (size_t head = 0; head < p.kv_heads(); ++head) {
    const size_t b = head / p.Hkv, h = head % p.Hkv;
    for (int c = 0; c < p.keys_of(b); ++c) {
      const size_t row =
          p.cache.page == 0
              ? head * p.Nk + c
              : (size_t(table[b * p.pages() + c / p.cache.page]) * p.Hkv + h) * p.cache.page +
                    c % p.cache.page;
      REQUIRE(row < pool_rows);
      REQUIRE_FALSE(owned[row]);
      owned[row] = true;
      for (int x = 0; x < p.d; ++x) {
        const uint8_t* at = &got[row * row_bytes + x * (row_bytes / p.d)];
        REQUIRE(number_at(p, at, p.cache.fp8 ? scales[head] : 1) ==
                want[(head * p.Nk + c) * p.d + x]);
      }
    }
  }
  for (size_t row = 0; row < pool_rows; ++row) {
    for (int x = 0; x < p.d && !owned[row]; ++x) {
      REQUIRE_FALSE(number_at(p, &got[row * row_bytes + x * (row_bytes / p.d)], 1));
    }
  }
}

}  // namespace

TEST_CASE("keys lie where the cache says, and NaN after the last one", "[run]") {
  Problem p;
  p.B = 3, p.H = 4, p.Hkv = 2, p.N = 1, p.Nk = 70, p.d = 32;
  p.cache.lengths = GENERATE(std::vector<int>{}, std::vector<int>{70, 0, 33});
  p.cache.page = GENERATE(0, 16, 64);
  p.dtype = GENERATE(DType::f32, DType::bf16);
  p.cache.fp8 = GENERATE(false, true);
  CAPTURE(fa::describe(p));
  fa::Inputs in = fa::normal_inputs(p, 1);
  const bool own_table = GENERATE(false, true);
  if (own_table && p.cache.page != 0) in.table = fa::shuffled_table(p, 2);
  size_t pages = 0;
  for (int b = 0; b < p.B && p.cache.page != 0; ++b)
    pages += (p.keys_of(b) + p.cache.page - 1) / p.cache.page;
  row_bytes = p.d * (p.cache.fp8 ? 1 : fa::bytes_of(p.dtype));
  pool_rows = p.cache.page == 0 ? p.kv_heads() * p.Nk : pages * p.Hkv * p.cache.page;

  fa::Session(p, in, looking(p)).forward();
  CHECK(found.lengths == p.cache.lengths);
  CHECK(found.K_scale == in.K_scale);
  CHECK(found.V_scale == in.V_scale);
  CHECK(found.table.empty() == (p.cache.page == 0));
  if (!in.table.empty()) CHECK(found.table == in.table);
  if (p.cache.page == 16) CHECK_FALSE(std::is_sorted(found.table.begin(), found.table.begin() + 5));
  check_cache(p, in.K, found.K, in.K_scale, found.table);
  check_cache(p, in.V, found.V, in.V_scale, found.table);

  const size_t words = p.cache.lengths.size() + (p.cache.page == 0 ? 0 : p.B * p.pages());
  CHECK(fa::memory_need(p, looking(p)).inputs == p.q_size() * fa::bytes_of(p.dtype) +
                                                     2 * pool_rows * row_bytes + 4 * words +
                                                     (p.cache.fp8 ? 2 * 4 * 6 : 0));
}

TEST_CASE("a pool has the pages up to the last one that the table names", "[run]") {
  Problem p;
  p.B = 1, p.H = p.Hkv = 1, p.N = 1, p.Nk = 48, p.d = 32, p.cache.page = 16, p.cache.lengths = {20};
  fa::Inputs in = fa::normal_inputs(p, 1);
  in.table = {2, 0, 1000};
  const size_t all = 4 * 32 + 4 * (1 + 3);  // Q, lengths, table
  CHECK(fa::memory_need(p, looking(p)).inputs == all + 2 * 2 * 16 * 32 * 4);
  CHECK(fa::memory_need(p, looking(p), in.table).inputs == all + 2 * 3 * 16 * 32 * 4);
  row_bytes = 32 * 4, pool_rows = 3 * 16;
  fa::Session(p, in, looking(p)).forward();
  check_cache(p, in.K, found.K, {}, in.table);
  in.table = {2, 3, 0};
  CHECK_THROWS_WITH(fa::Session(p, in, looking(p)),
                    "the page table: entry [0, 1] is 3, but the pool has the pages 0 to 2");
}

TEST_CASE("no batch entry has a key: the cache is empty", "[run]") {
  Problem p;
  p.B = 2, p.H = p.Hkv = 1, p.N = 1, p.Nk = 1, p.d = 32, p.cache.lengths = {0, 0};
  p.cache.page = GENERATE(0, 16);
  row_bytes = 32 * 4, pool_rows = p.cache.page == 0 ? 2 : 16;
  const fa::Inputs in = fa::normal_inputs(p, 1);
  fa::Session(p, in, looking(p)).forward();
  check_cache(p, in.V, found.V, {}, found.table);
  CHECK(found.lengths == std::vector<int>{0, 0});
}

TEST_CASE("what 8 bits do not hold is the program's mistake", "[run]") {
  Problem p;
  p.N = 1, p.Nk = 4, p.dtype = DType::bf16;
  fa::Inputs in = fa::normal_inputs(p, 1);
  fa::Variant v = looking(p);
  v.extras.cache8 = true;
  CHECK_THROWS_WITH(fa::Session(p, in, v), "the step's K and V are of 8 bits, the problem's not");
  p.cache.fp8 = true;
  CHECK_THROWS_WITH(fa::Session(p, in, v), "K_scale has 0 elements instead of 4");
  in.K_scale = in.V_scale = {1, 1, 1, 1};
  CHECK_THROWS_WITH(fa::Session(p, in, v), ContainsSubstring(" * e4m3: see quantise_cache()"));
  fa::quantise_cache(p, in);
  CHECK_NOTHROW(fa::Session(p, in, v));
}

TEST_CASE("more elements than are converted at a time", "[run]") {
  Problem p;
  p.H = p.Hkv = 1, p.N = (1 << 22) / 32 + 1, p.Nk = 1, p.d = 32, p.dtype = DType::bf16;
  fa::Inputs in;
  in.Q.resize(p.q_size());
  for (size_t i = 0; i < in.Q.size(); ++i) in.Q[i] = static_cast<float>(i % 251);
  in.K.assign(32, 0), in.V = in.K;
  CHECK((fa::run(variant(copy_all<fa::bf16>), p, in).O == in.Q));
}

TEST_CASE("tables reach the device before the first run", "[run]") {
  const Problem p = small();
  fa::Variant v = variant<float>([](const Problem& problem, const fa::Tensors<float>& t) {
    copy_all<float>(problem, t);
    std::vector<int> some(3), more(2);
    fa::cuda_check(cudaMemcpy(some.data(), t.scratch<int>("some"), 12, cudaMemcpyDeviceToHost));
    fa::cuda_check(cudaMemcpy(more.data(), t.scratch<int>("more"), 8, cudaMemcpyDeviceToHost));
    CHECK(some == std::vector{7, 8, 9});
    CHECK(more == std::vector{-1, 5});
  });
  v.extras.tables = [](const Problem&) {
    return std::vector<fa::Table>{{"some", {7, 8, 9}}, {"more", {-1, 5}}};
  };
  fa::Session session(p, fa::normal_inputs(p, 1), v);
  session.forward();
  session.poison();
  session.forget_prepare();
  session.forward();
  CHECK_FALSE(session.keeps_state());
}

TEST_CASE("each direction's outputs are forgotten by themselves", "[run]") {
  const Problem p = small();
  const fa::Inputs in = fa::normal_inputs(p, 1);
  fa::Variant v = variant(copy_all<float>);
  v.backward = zero_gradients;
  v.workspace = [](const Problem&) { return std::vector<fa::Scratch>{{"sums", 40}}; };
  fa::Session session(p, in, v);
  const auto missing = [&] {
    const fa::Outputs out = session.download();
    return std::vector<size_t>{unwritten(out.O), unwritten(out.dQ), unwritten(out.dK),
                               unwritten(out.dV)};
  };
  const size_t n = p.q_size();
  CHECK(missing() == std::vector{n, n, n, n});
  session.forward();
  CHECK(missing() == std::vector{0 * n, n, n, n});
  session.backward();
  CHECK(missing() == std::vector{0 * n, 0 * n, 0 * n, 0 * n});
  session.forget_forward();
  CHECK(missing() == std::vector{n, 0 * n, 0 * n, 0 * n});
  session.forward();
  session.forget_backward();
  CHECK(missing() == std::vector{0 * n, n, n, n});
}

TEST_CASE("the sentence on memory names what alone is too much", "[run]") {
  const size_t free = fa::free_device_bytes(), terabyte = size_t{1000} << 30;
  CHECK_NOTHROW(fa::require_memory({free / 2, 0, 0}));
  const auto said = [](const fa::MemoryNeed& need) {
    try {
      fa::require_memory(need);
    } catch (const fa::ResourceError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK_THAT(said({free, terabyte, 3'000'000'000}),
             StartsWith("needs ") && ContainsSubstring(" GB (3.0 GB of workspace), "));
  CHECK_THAT(said({0, 0, 2'000'000'000'000'000}), StartsWith("needs 2000000.0 GB of workspace, "));
  const fa::MemoryNeed need{1, 20, 300};
  CHECK(need.total() == 321);

  const Problem p = small();
  fa::Variant v = variant(copy_all<float>);
  v.workspace = [](const Problem&) { return std::vector<fa::Scratch>{{"S", 8}, {"S", 8}}; };
  CHECK_THROWS_WITH(fa::run(v, p, fa::normal_inputs(p, 1)), "two pieces of workspace named S");
}

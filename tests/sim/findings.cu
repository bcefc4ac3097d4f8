// The search for races goes on behind a finding, and knows the bytes of a word that threads share.
// Each fault with a kernel that has exactly that one, and a near twin without it.
#include "common/dialect/ptx/barrier.h"
#include "common/dialect/ptx/mbarrier.h"
#include "common/dialect/ptx/more/cluster.h"
#include "common/dialect/ptx/more/tma.h"
#include "tests/sim/diagnosis.h"

using sim::test::Buffer;
using sim::test::finding;
using sim::test::WithOptions;

namespace {

using Byte = unsigned char;
constexpr int kEnough = 64;

sim::Options with_races() {
  sim::Options o;
  o.races = true;
  return o;
}
sim::Options with_uninitialised() {
  sim::Options o;
  o.uninitialised = true;
  return o;
}

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// --- parts of a word -----------------------------------------------------------------------------

// Four bytes, or two halves, of a word belong to as many threads.
template <class T, int kShift>
__global__ void own_parts(T* out) {
  __shared__ T s[64];
  const int t = threadIdx.x;
  s[t] = 0;
  s[t ^ kShift]++;
  out[t] = s[t];
}
template <int kShift>
__global__ void own_parts_of_device_memory(Byte* x, Byte*) {
  const int t = threadIdx.x;
  x[t] = 0;
  x[t ^ kShift]++;
}
// Threads 0 and 1 store two bytes of a word; thread 2 reads the first one.
template <bool kBarrier>
__global__ void first_of_two_writers(Byte* out) {
  __shared__ Byte s[64];
  if (threadIdx.x < 2) s[threadIdx.x] = 1;
  if (kBarrier) __syncthreads();
  if (threadIdx.x == 2) out[0] = s[0];
}
template <bool kBarrier>
__global__ void first_of_two_writers_to_device_memory(Byte* x, Byte* out) {
  if (threadIdx.x < 2) x[threadIdx.x] = 1;
  if (kBarrier) __syncthreads();
  if (threadIdx.x == 2) out[0] = x[0];
}
// One thread stores two bytes, the first one in front of a barrier of its warp and the other behind
// it; a thread of another warp reads `kByte`.
template <int kByte>
__global__ void one_writer_twice(Byte* out) {
  __shared__ Byte s[4];
  if (threadIdx.x == 0) s[0] = 1;
  if (threadIdx.x == 0) s[2] = 1;
  __syncthreads();
  if (threadIdx.x == 0) s[1] = 1;
  if (threadIdx.x == 32) out[0] = s[kByte];
}
// Threads 0 and 1 read two bytes of a word; thread 2 stores to byte `kByte` of it.
template <int kByte>
__global__ void first_of_two_readers(Byte* x, Byte* out) {
  if (threadIdx.x < 2) out[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x == 2) x[kByte] = 1;
}
// A word is touched in parts, then stored to as a whole, then in parts again.
enum class Missing { none, in_front, behind };
template <Missing kMissing>
__global__ void parts_and_whole(unsigned* word, Byte* out) {
  __shared__ unsigned s[1];
  Byte* bytes = reinterpret_cast<Byte*>(s);
  const int t = threadIdx.x;
  if (t < 4) bytes[t] = 1;
  if (kMissing != Missing::in_front) __syncthreads();
  if (t == 33) s[0] = *word;
  if (kMissing != Missing::behind) __syncthreads();
  if (t >= 60) out[t] = bytes[t - 60];
}
template <Missing kMissing>
__global__ void parts_and_whole_of_device_memory(unsigned* x, Byte* out) {
  Byte* bytes = reinterpret_cast<Byte*>(x);
  const int t = threadIdx.x;
  if (t < 4) bytes[t] = 1;
  if (kMissing != Missing::in_front) __syncthreads();
  if (t == 33) x[0] = 5;
  if (kMissing != Missing::behind) __syncthreads();
  if (t >= 60) out[t] = bytes[t - 60];
}
// A TMA store reads bytes of many threads. Thread 1, whose byte is not the last of its word, may
// not have executed the fence.
template <bool kAll>
__global__ void fence_of_each_byte(Byte* out) {
  __shared__ __align__(128) Byte s[64];
  s[threadIdx.x] = threadIdx.x;
  if (kAll || threadIdx.x != 1) fa::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    fa::bulk_store(out, s, sizeof s);
    fa::tma_store_commit();
    fa::tma_store_wait<0>();
  }
}
// A TMA load overwrites bytes that others read.
template <bool kBarrier>
__global__ void load_over_bytes(const Byte* x, Byte* out) {
  __shared__ __align__(128) Byte s[64];
  __shared__ uint64_t bar;
  const int t = threadIdx.x;
  s[t] = 0;
  if (t == 0) {
    fa::mbarrier_init(&bar, 1);
    fa::mbarrier_init_fence();
  }
  __syncthreads();
  out[t] = s[t];
  if (kBarrier) __syncthreads();
  if (t == 63) {
    fa::mbarrier_arrive_expect_tx(&bar, sizeof s);
    fa::bulk_load(s, x, sizeof s, &bar);
    fa::mbarrier_wait(&bar, 0);
  }
}
// Thread 0 sets a sum to zero, and all add to it.
template <bool kBarrier>
__global__ void zero_and_add(int* out) {
  __shared__ int sum;
  if (threadIdx.x == 0) sum = 0;
  if (kBarrier) __syncthreads();
  atomicAdd(&sum, 1);
  __syncthreads();
  out[threadIdx.x] = sum;
}
template <bool kBarrier>
__global__ void zero_and_add_device(int* sum) {
  if (threadIdx.x == 0) *sum = 0;
  if (kBarrier) __syncthreads();
  atomicAdd(sum, 1);
}
// All add to a sum, and the last one, or the first one, reads it or sets it to zero.
template <bool kBarrier, bool kStore>
__global__ void add_and_use(int* out, int who) {
  __shared__ int sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  atomicAdd(&sum, 1);
  if (kBarrier) __syncthreads();
  if (static_cast<int>(threadIdx.x) != who) return;
  if (kStore) {
    sum = 0;
  } else {
    *out = sum;
  }
}
template <int kByte>
__global__ void next_byte(Byte* out) {
  __shared__ Byte s[8];
  if (threadIdx.x == 0) s[5] = 1;
  __syncthreads();
  out[threadIdx.x] = s[kByte];
}
template <class T>
__global__ void copy(const T* x, T* y) {
  y[threadIdx.x] = x[threadIdx.x];
}

// --- more than one fault -------------------------------------------------------------------------

template <bool kFirst, bool kSecond>
__global__ void two_barriers(float* y) {
  __shared__ float a[64], b[64];
  const int t = threadIdx.x;
  for (int i = 0; i < 3; ++i) {
    a[t] = t;
    if (kFirst) __syncthreads();
    y[t] = a[t ^ 32];
    __syncthreads();
    b[t] = t;
    if (kSecond) __syncthreads();
    y[t] += b[t ^ 32];
    __syncthreads();
  }
}
__global__ void many_races(float* y) {
  __shared__ float s[11][64];
  const int t = threadIdx.x, o = t ^ 32;
  for (auto& row : s) row[t] = 0;
  y[t] = s[0][o];
  y[t] += s[1][o];
  y[t] += s[2][o];
  y[t] += s[3][o];
  y[t] += s[4][o];
  y[t] += s[5][o];
  y[t] += s[6][o];
  y[t] += s[7][o];
  y[t] += s[8][o];
  y[t] += s[9][o];
  y[t] += s[10][o];
}
// A race, and behind it what ends a launch.
enum class End { none, out_of_bounds, deadlock };
template <End kEnd>
__global__ void race_and_end(float* y) {
  __shared__ float s[64];
  const int t = threadIdx.x;
  s[t] = t;
  y[t] = s[t ^ 32];
  __syncthreads();
  if (kEnd == End::out_of_bounds && t == 5) y[64] = 0;
  if (kEnd == End::deadlock) fa::bar_sync(1, t < 32 ? 64 : 96);
}
enum class Values { same, other, last_other };
template <Values kValues, bool kRace>
__global__ void store_by_all(float* y, float* last) {
  __shared__ float flag, s[64];
  const int t = threadIdx.x;
  flag = kValues == Values::other ? t : kValues == Values::last_other ? t == 63 : 1;
  __syncthreads();
  s[t] = flag;
  if (!kRace) __syncthreads();
  y[t] = s[t ^ 32];
  *last = kValues == Values::other ? t : kValues == Values::last_other ? t == 63 : 1;
}

#define SILENT(...) CHECK(finding([&] { __VA_ARGS__; }) == "")
#define FOUND(text, ...) CHECK_THAT(finding([&] { __VA_ARGS__; }), ContainsSubstring(text))

}  // namespace

TEST_CASE("parts of a word may belong to different threads", "[sim][races][parts]") {
  WithOptions with(with_races());
  const fa::LaunchConfig config{dim3(1), dim3(64)};
  Buffer<Byte> x("x", kEnough), y("y", kEnough);
  Buffer<uint16_t> h("h", kEnough);
  SILENT(fa::launch(own_parts<Byte, 0>, config, y));
  SILENT(fa::launch(own_parts<uint16_t, 0>, config, h));
  SILENT(fa::launch(own_parts_of_device_memory<0>, config, x, y));
  CHECK(x.download() == std::vector<Byte>(kEnough, 1));
  FOUND("race on shared memory", fa::launch(own_parts<Byte, 1>, config, y));
  FOUND("race on shared memory", fa::launch(own_parts<uint16_t, 1>, config, h));
  FOUND("race on device memory", fa::launch(own_parts_of_device_memory<1>, config, x, y));
}

TEST_CASE("all writers and readers of a word's bytes are known", "[sim][races][parts]") {
  WithOptions with(with_races());
  const fa::LaunchConfig config{dim3(1), dim3(64)};
  Buffer<Byte> x("x", kEnough), y("y", kEnough);
  const auto text = finding([&] { fa::launch(first_of_two_writers<false>, config, y); });
  CHECK_THAT(text, ContainsSubstring("thread (2,0,0): load of s, byte 0 at"));
  CHECK_THAT(text, ContainsSubstring("and a store by thread (0,0,0)"));
  SILENT(fa::launch(first_of_two_writers<true>, config, y));
  FOUND("and a store by thread (0,0,0)",
        fa::launch(first_of_two_writers_to_device_memory<false>, config, x, y));
  SILENT(fa::launch(first_of_two_writers_to_device_memory<true>, config, x, y));
  FOUND("load of s, byte 1", fa::launch(one_writer_twice<1>, config, y));
  SILENT(fa::launch(one_writer_twice<0>, config, y));
  SILENT(fa::launch(one_writer_twice<2>, config, y));
  FOUND("and a load by thread (0,0,0)", fa::launch(first_of_two_readers<0>, config, x, y));
  FOUND("and a load by thread (1,0,0)", fa::launch(first_of_two_readers<1>, config, x, y));
  SILENT(fa::launch(first_of_two_readers<2>, config, x, y));
}

TEST_CASE("a word is touched in parts and as a whole", "[sim][races][parts]") {
  WithOptions with(with_races());
  const fa::LaunchConfig config{dim3(1), dim3(64)};
  Buffer<unsigned> x("x", 1);
  Buffer<Byte> y("y", kEnough);
  for (int launch = 0; launch < 2; ++launch) {
    SILENT(fa::launch(parts_and_whole<Missing::none>, config, x, y));
    FOUND("thread (33,0,0): store of s, byte 0",
          fa::launch(parts_and_whole<Missing::in_front>, config, x, y));
    FOUND("and a store by thread (33,0,0)",
          fa::launch(parts_and_whole<Missing::behind>, config, x, y));
    SILENT(fa::launch(parts_and_whole_of_device_memory<Missing::none>, config, x, y));
    FOUND("thread (33,0,0): store of x, byte 0",
          fa::launch(parts_and_whole_of_device_memory<Missing::in_front>, config, x, y));
    FOUND("and a store by thread (33,0,0)",
          fa::launch(parts_and_whole_of_device_memory<Missing::behind>, config, x, y));
  }
}

TEST_CASE("TMA meets all writers and readers of a word's bytes", "[sim][races][parts]") {
  WithOptions with(with_races());
  const fa::LaunchConfig config{dim3(1), dim3(64)};
  Buffer<Byte> x("x", kEnough), y("y", kEnough);
  const auto text = finding([&] { fa::launch(fence_of_each_byte<false>, config, y); });
  CHECK_THAT(text, ContainsSubstring("TMA store that reads s, byte 1 at"));
  CHECK_THAT(text, ContainsSubstring("and a store by thread (1,0,0)"));
  CHECK_THAT(text, ContainsSubstring("no fence.proxy.async"));
  SILENT(fa::launch(fence_of_each_byte<true>, config, y));
  CHECK(y.download()[63] == 63);
  FOUND("and a load by thread (0,0,0)", fa::launch(load_over_bytes<false>, config, x, y));
  SILENT(fa::launch(load_over_bytes<true>, config, x, y));
}

TEST_CASE("each atomic must be in order with the store in front of all", "[sim][races]") {
  WithOptions with(with_races());
  const fa::LaunchConfig config{dim3(1), dim3(64)};
  Buffer<int> y("y", kEnough);
  FOUND("thread (1,0,0): atomic of sum, byte 0", fa::launch(zero_and_add<false>, config, y));
  SILENT(fa::launch(zero_and_add<true>, config, y));
  CHECK(y.download()[9] == 64);
  FOUND("thread (1,0,0): atomic of y, byte 0", fa::launch(zero_and_add_device<false>, config, y));
  SILENT(fa::launch(zero_and_add_device<true>, config, y));
}

TEST_CASE("a plain access must be in order with each atomic in front of it", "[sim][races]") {
  WithOptions with(with_races());
  const fa::LaunchConfig config{dim3(1), dim3(64)};
  Buffer<int> y("y", kEnough);
  for (const int who : {0, 31, 63}) {
    CAPTURE(who);
    FOUND("race on shared memory", fa::launch(add_and_use<false, false>, config, y, who));
    FOUND("race on shared memory", fa::launch(add_and_use<false, true>, config, y, who));
    SILENT(fa::launch(add_and_use<true, false>, config, y, who));
    CHECK(y.download()[0] == 64);
    SILENT(fa::launch(add_and_use<true, true>, config, y, who));
  }
}

TEST_CASE("a byte beside a written one is not written", "[sim][races][parts]") {
  WithOptions with(with_uninitialised());
  const fa::LaunchConfig config{dim3(1), dim3(1)};
  Buffer<Byte> x("x", kEnough, false), y("y", kEnough, false);
  Buffer<unsigned> z("z", 1);
  FOUND("load of s, byte 4 at", fa::launch(next_byte<4>, config, y));
  SILENT(fa::launch(next_byte<5>, config, y));
  FOUND("load of x, byte 0 at", fa::launch(copy<Byte>, config, x, y));
  cudaMemset(x.get() + 1, 0, 2);
  FOUND("load of x, byte 0 at", fa::launch(copy<Byte>, config, x, y));
  SILENT(fa::launch(copy<Byte>, config, x + 1, y + 1));
  SILENT(fa::launch(copy<Byte>, config, x + 2, y + 2));
  SILENT(fa::launch(copy<Byte>, config, y + 2, y + 3));  // kernels write, too
  const auto words = [&] {
    fa::launch(copy<unsigned>, config, reinterpret_cast<const unsigned*>(x.get()), z.get());
  };
  CHECK_THAT(finding(words), ContainsSubstring("load of x, byte 0 at"));
  cudaMemset(x, 0, 1);
  CHECK_THAT(finding(words), ContainsSubstring("load of x, byte 3 at"));
  cudaMemset(x + 3, 0, 1);
  CHECK(finding(words) == "");
  sim::poison(x + 2, 1);
  CHECK_THAT(finding(words), ContainsSubstring("load of x, byte 2 at"));
}

TEST_CASE("a launch shows all its findings, each pair of lines once", "[sim][races][findings]") {
  WithOptions with(with_races());
  Buffer<float> y("y", kEnough);
  const auto of = [&](auto kernel) {
    return finding([&] { fa::launch(kernel, {dim3(1), dim3(64)}, y); });
  };
  const auto both = of(two_barriers<false, false>);
  CAPTURE(both);
  CHECK(both.starts_with("race on shared memory: kernel "));
  CHECK(count(both, "race on") == 2);
  CHECK(count(both, "\nalso: race on shared memory: kernel ") == 1);
  CHECK(count(both, "\n") == 1);
  CHECK(both.find(" of a, byte") < both.find("\n"));
  CHECK_THAT(both.substr(both.find("\n")), ContainsSubstring(" of b, byte"));
  const auto first = of(two_barriers<false, true>), second = of(two_barriers<true, false>);
  CHECK(both.substr(0, both.find("\n")).substr(both.find(">")) == first.substr(first.find(">")));
  CHECK_THAT(second, ContainsSubstring(" of b, byte"));
  CHECK(count(second, "\n") == 0);
  CHECK(of(two_barriers<true, true>) == "");
  CHECK(y.download()[1] == 66);

  const auto many = of(many_races);
  CAPTURE(many);
  CHECK(count(many, "race on") == 8);
  CHECK_THAT(many, ContainsSubstring("\nalso: 3 more, at other lines"));
}

TEST_CASE("what ends a launch comes with the findings so far", "[sim][races][findings]") {
  WithOptions with(with_races());
  Buffer<float> y("y", kEnough);
  const auto of = [&](auto kernel) {
    return finding([&] { fa::launch(kernel, {dim3(1), dim3(64)}, y); });
  };
  const auto race = of(race_and_end<End::none>);
  CHECK(race.starts_with("race on shared memory"));
  CHECK(count(race, "\n") == 0);
  const auto bounds = of(race_and_end<End::out_of_bounds>);
  CHECK(bounds.starts_with("race on shared memory"));
  CHECK_THAT(bounds, ContainsSubstring("\nalso: kernel "));
  CHECK_THAT(bounds, ContainsSubstring("at byte 256 of buffer y"));
  const auto deadlock = of(race_and_end<End::deadlock>);
  CHECK(deadlock.starts_with("race on shared memory"));
  CHECK_THAT(deadlock, ContainsSubstring("\nalso: "));
  CHECK_THAT(deadlock, ContainsSubstring("barrier 1"));
}

// --- kinds ---------------------------------------------------------------------------------------

__global__ void uninitialised_read(float* y) {
  __shared__ float a[64];
  if (threadIdx.x > 0) a[threadIdx.x] = 1;
  y[threadIdx.x] = a[threadIdx.x];
}
__global__ void different_barriers(float*) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__global__ void endless_loop(float* y) {
  while (*static_cast<volatile float*>(y) == 0) {
  }
}
__global__ void misaligned_read(float* y) {
  if (threadIdx.x == 0) *reinterpret_cast<double*>(y + 1) = 1;
}
__global__ void past_shared_array(float* y) {
  __shared__ float a[65];
  a[threadIdx.x + 2] = 1;
  y[threadIdx.x] = a[threadIdx.x + 2];
}
__global__ void block_of_no_cluster(float*) { fa::map_shared(fa::dynamic_shared<float>(), 1); }

TEST_CASE("each finding has its kind", "[sim][findings]") {
  sim::Options options = with_races();
  options.watchdog_s = 0.1;
  WithOptions with(options);
  Buffer<float> y("y", kEnough);
  using Kind = fa::FaultKind;
  const auto kinds = [&](auto kernel) {
    std::vector<Kind> all;
    try {
      fa::launch(kernel, {dim3(1), dim3(64)}, y);
    } catch (const fa::KernelStopped& e) {
      for (const fa::Finding& f : e.findings) all.push_back(f.kind);
      CHECK(e.sentences().size() == all.size() + (e.more != 0));
    }
    return all;
  };
  CHECK(kinds(race_and_end<End::none>) == std::vector{Kind::race});
  CHECK(kinds(race_and_end<End::out_of_bounds>) == std::vector{Kind::race, Kind::out_of_bounds});
  CHECK(kinds(race_and_end<End::deadlock>) == std::vector{Kind::race, Kind::refused});
  CHECK(kinds(many_races) == std::vector(8, Kind::race));
  CHECK(kinds(different_barriers) == std::vector{Kind::deadlock});
  CHECK(kinds(endless_loop) == std::vector{Kind::endless_loop});
  CHECK(kinds(misaligned_read) == std::vector{Kind::misaligned});
  CHECK(kinds(past_shared_array) == std::vector{Kind::out_of_bounds});
  CHECK(kinds(block_of_no_cluster) == std::vector{Kind::refused});
  CHECK(kinds(two_barriers<true, true>).empty());
  WithOptions other(with_uninitialised());
  CHECK(kinds(uninitialised_read) == std::vector{Kind::uninitialised});
}

TEST_CASE("stores of the same value are called so, and hide nothing", "[sim][races][findings]") {
  WithOptions with(with_races());
  Buffer<float> y("y", kEnough), last("last", 1);
  const auto of = [&](auto kernel) {
    return finding([&] { fa::launch(kernel, {dim3(1), dim3(64)}, y, last); });
  };
  const char* label = "between them; each stores the same value";
  const auto same = of(store_by_all<Values::same, false>);
  CAPTURE(same);
  CHECK(same.starts_with("race on shared memory"));
  CHECK(count(same, "race on") == 2);
  CHECK(count(same, label) == 2);
  const auto behind = of(store_by_all<Values::same, true>);
  CAPTURE(behind);
  CHECK(count(behind, "race on") == 3);
  CHECK(count(behind, label) == 2);
  CHECK(count(behind.substr(0, behind.find("\n")), label) == 0);
  CHECK_THAT(behind.substr(0, behind.find("\n")), ContainsSubstring(" of s, byte"));
  // Only the last of 64 threads stores another one.
  for (const auto& text :
       {of(store_by_all<Values::other, false>), of(store_by_all<Values::last_other, false>)}) {
    CAPTURE(text);
    CHECK(count(text, "race on") == 2);
    CHECK(count(text, "same value") == 0);
  }
}

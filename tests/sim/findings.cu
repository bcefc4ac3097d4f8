// The search for races continues after a finding, and knows the bytes of a word that threads share.
// Each fault with a kernel that has exactly that one, and a near twin without it.
#include <array>

#include "common/dialect/ptx/barrier.h"
#include "common/dialect/ptx/mbarrier.h"
#include "common/dialect/ptx/more/cluster.h"
#include "common/dialect/ptx/more/tma.h"
#include "common/sim/messages/symbols.h"
#include "tests/sim/diagnosis.h"

using sim::test::Buffer;
using sim::test::finding;
using sim::test::says;
using sim::test::WithOptions;

namespace {

using Byte = unsigned char;

const fa::LaunchConfig kBlock{1, 64};
const char* const kShared = "race on shared memory: kernel ";

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// --- parts of a word -----------------------------------------------------------------------------

// Four bytes, or two halves, of a word belong to as many threads. s: in shared memory where null.
template <class T>
__global__ void own_parts(T* s, int distance) {
  __shared__ T shared[64];
  if (s == nullptr) s = shared;
  const int t = threadIdx.x;
  s[t] = 0;
  s[t ^ distance]++;
}
// Threads 0 and 1 store two bytes of a word; thread 2 reads the first byte.
__global__ void first_of_two_writers(Byte* s, Byte* out, bool barrier) {
  __shared__ Byte shared[64];
  if (s == nullptr) s = shared;
  if (threadIdx.x < 2) s[threadIdx.x] = 1;
  if (barrier) __syncthreads();
  if (threadIdx.x == 2) out[0] = s[0];
}
// A thread stores two bytes, before and after a warp barrier; another warp's thread reads `byte`.
__global__ void one_writer_twice(Byte* out, int byte) {
  __shared__ Byte s[4];
  if (threadIdx.x == 0) s[0] = 1;
  if (threadIdx.x == 0) s[2] = 1;
  __syncthreads();
  if (threadIdx.x == 0) s[1] = 1;
  if (threadIdx.x == 32) out[0] = s[byte];
}
// Threads 0 and 1 read two bytes of a word; thread 2 stores to `byte` of it.
__global__ void first_of_two_readers(Byte* x, Byte* out, int byte) {
  if (threadIdx.x < 2) out[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x == 2) x[byte] = 1;
}
// A word is accessed in parts, then stored as a whole, then accessed in parts again.
enum class Missing { none, before, after };
__global__ void parts_and_whole(unsigned* x, Byte* out, Missing barrier) {
  __shared__ unsigned s[1];
  if (x == nullptr) x = s;
  Byte* bytes = reinterpret_cast<Byte*>(x);
  const int t = threadIdx.x;
  if (t < 4) bytes[t] = 1;
  if (barrier != Missing::before) __syncthreads();
  if (t == 33) x[0] = 5;
  if (barrier != Missing::after) __syncthreads();
  if (t >= 60) out[t] = bytes[t - 60];
}
// A TMA store reads bytes of many threads; thread 1, not the last of its word, may lack the fence.
__global__ void fence_of_each_byte(Byte* out, bool all) {
  __shared__ __align__(128) Byte s[64];
  s[threadIdx.x] = threadIdx.x;
  if (all || threadIdx.x != 1) fa::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    fa::bulk_store(out, s, sizeof s);
    fa::tma_store_commit();
    fa::tma_store_wait<0>();
  }
}
__global__ void load_over_bytes(const Byte* x, Byte* out, bool barrier) {
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
  if (barrier) __syncthreads();
  if (t == 63) {
    fa::mbarrier_arrive_expect_tx(&bar, sizeof s);
    fa::bulk_load(s, x, sizeof s, &bar);
    fa::mbarrier_wait(&bar, 0);
  }
}
// Thread 0 sets a sum to zero, and all add to it; then thread `who` reads it or sets it to zero.
enum class Use { nothing, load, store };
enum class Meet { none, warp, block };
__global__ void add_and_use(int* out, int* sum, bool first, Meet second, Use use, int who) {
  __shared__ int shared;
  if (sum == nullptr) sum = &shared;
  if (threadIdx.x == 0) *sum = 0;
  if (first) __syncthreads();
  atomicAdd(sum, 1);
  if (second == Meet::warp) __syncwarp();
  if (second == Meet::block) __syncthreads();
  if (static_cast<int>(threadIdx.x) != who) return;
  if (use == Use::load) *out = *sum;
  if (use == Use::store) *sum = 0;
}
__global__ void next_byte(Byte* out, int byte) {
  __shared__ Byte s[8];
  if (threadIdx.x == 0) s[5] = 1;
  __syncthreads();
  out[threadIdx.x] = s[byte];
}
template <class T>
__global__ void copy(const T* x, T* y) {
  y[threadIdx.x] = x[threadIdx.x];
}
__global__ void only_add(int* sum) { atomicAdd(sum, 1); }
// Thread 0 reads byte 4, which is unwritten; then a thread of another warp stores to `byte`.
__global__ void read_then_store(Byte* x, Byte* out, int byte) {
  __shared__ Byte shared[8];
  Byte* s = x ? x : shared;
  if (threadIdx.x == 0) out[0] = s[4];
  if (threadIdx.x == 32) s[byte] = 1;
}

// --- more than one fault -------------------------------------------------------------------------

__global__ void two_barriers(float* y, bool first, bool second) {
  __shared__ float a[64], b[64];
  const int t = threadIdx.x;
  for (int i = 0; i < 3; ++i) {
    a[t] = t;
    if (first) __syncthreads();
    y[t] = a[t ^ 32];
    __syncthreads();
    b[t] = t;
    if (second) __syncthreads();
    y[t] += b[t ^ 32];
    __syncthreads();
  }
}
enum class End { none, out_of_bounds, deadlock };
__global__ void many_races(float* y, int n, End end) {
  __shared__ float s[11][64];
  const int t = threadIdx.x, o = t ^ 32;
  for (auto& row : s) row[t] = 0;
  y[t] = s[0][o];
  if (n > 1) y[t] += s[1][o];
  if (n > 2) y[t] += s[2][o];
  if (n > 3) y[t] += s[3][o];
  if (n > 4) y[t] += s[4][o];
  if (n > 5) y[t] += s[5][o];
  if (n > 6) y[t] += s[6][o];
  if (n > 7) y[t] += s[7][o];
  if (n > 8) y[t] += s[8][o];
  if (n > 9) y[t] += s[9][o];
  if (n > 10) y[t] += s[10][o];
  __syncthreads();
  if (end == End::out_of_bounds && t == 5) y[64] = 0;
}
__global__ void race_and_end(float* y, End end) {
  __shared__ float s[64];
  const int t = threadIdx.x;
  s[t] = t;
  y[t] = s[t ^ 32];
  __syncthreads();
  if (end == End::out_of_bounds && t == 5) y[64] = 0;
  if (end == End::deadlock) fa::bar_sync(1, t < 32 ? 64 : 96);
}
enum class Values { same, other, first_other, last_other };
__device__ float value_of(Values values, int t) {
  return values == Values::other         ? t
         : values == Values::first_other ? t == 0
         : values == Values::last_other  ? t == 63
                                         : 1;
}
__global__ void store_by_all(float* y, float* last, Values values, bool race) {
  __shared__ float flag, s[64];
  const int t = threadIdx.x;
  flag = value_of(values, t);
  __syncthreads();
  s[t] = flag;
  if (!race) __syncthreads();
  y[t] = s[t ^ 32];
  *last = value_of(values, t);
}
// The places get other values, after a barrier.
__global__ void store_same_then_other(float* y) {
  __shared__ float flag, other;
  flag = 1;
  other = 1;
  __syncthreads();
  if (threadIdx.x == 0) flag = 2, other = 3;
  __syncthreads();
  y[threadIdx.x] = flag + other;
}
__global__ void store_wide_by_all(float4* last, Values values) {
  *last = {1, 1, 1, value_of(values, threadIdx.x)};
}

}  // namespace

ANALYSED("parts of a word may belong to different threads", "[sim][races][parts]") {
  Buffer<Byte> x("x", 64);
  SILENT(own_parts<Byte>, kBlock, nullptr, 0);
  SILENT(own_parts<uint16_t>, kBlock, nullptr, 0);
  SILENT(own_parts<Byte>, kBlock, x, 0);
  CHECK(x.download() == std::vector<Byte>(64, 1));
  FOUND(kShared, own_parts<Byte>, kBlock, nullptr, 1);
  FOUND(kShared, own_parts<uint16_t>, kBlock, nullptr, 1);
  FOUND("race on device memory", own_parts<Byte>, kBlock, x, 1);
}

ANALYSED("all writers and readers of a word's bytes are known", "[sim][races][parts]") {
  Buffer<Byte> x("x", 64), y("y", 64);
  FOUND("thread (2,0,0): load of shared, byte 0 at ... and a store by thread (0,0,0)",
        first_of_two_writers, kBlock, nullptr, y, false);
  SILENT(first_of_two_writers, kBlock, nullptr, y, true);
  FOUND("load of x, byte 0 at ... and a store by thread (0,0,0)", first_of_two_writers, kBlock, x,
        y, false);
  SILENT(first_of_two_writers, kBlock, x, y, true);
  FOUND("load of s, byte 1", one_writer_twice, kBlock, y, 1);
  SILENT(one_writer_twice, kBlock, y, 0);
  SILENT(one_writer_twice, kBlock, y, 2);
  FOUND("and a load by thread (0,0,0)", first_of_two_readers, kBlock, x, y, 0);
  FOUND("and a load by thread (1,0,0)", first_of_two_readers, kBlock, x, y, 1);
  SILENT(first_of_two_readers, kBlock, x, y, 2);
}

ANALYSED("a word is touched in parts and as a whole", "[sim][races][parts]") {
  Buffer<unsigned> x("x", 1);
  Buffer<Byte> y("y", 64);
  for (unsigned* word : {x.get(), static_cast<unsigned*>(nullptr)}) {
    const std::string name = word ? "x" : "s";
    for (int launch = 0; launch < 2; ++launch) {
      SILENT(parts_and_whole, kBlock, word, y, Missing::none);
      FOUND("thread (33,0,0): store of " + name + ", byte 0", parts_and_whole, kBlock, word, y,
            Missing::before);
      FOUND("and a store by thread (33,0,0)", parts_and_whole, kBlock, word, y, Missing::after);
    }
  }
}

ANALYSED("TMA meets all writers and readers of a word's bytes", "[sim][races][parts]") {
  Buffer<Byte> x("x", 64), y("y", 64);
  FOUND(
      "TMA store that reads s, byte 1 at ... and a store by thread (1,0,0) ... no "
      "fence.proxy.async",
      fence_of_each_byte, kBlock, y, false);
  SILENT(fence_of_each_byte, kBlock, y, true);
  CHECK(y.download()[63] == 63);
  FOUND("and a load by thread (0,0,0)", load_over_bytes, kBlock, x, y, false);
  SILENT(load_over_bytes, kBlock, x, y, true);
}

ANALYSED("plain accesses must be in order with each atomic", "[sim][races]") {
  Buffer<int> y("y", 1), sum("sum", 1);
  FOUND("thread (1,0,0): atomic of shared, byte 0", add_and_use, kBlock, y, nullptr, false,
        Meet::block, Use::nothing, 0);
  FOUND("thread (1,0,0): atomic of sum, byte 0", add_and_use, kBlock, y, sum, false, Meet::block,
        Use::nothing, 0);
  SILENT(add_and_use, kBlock, y, sum, true, Meet::block, Use::nothing, 0);
  SILENT(only_add, {2, 64}, sum);  // the store belonged to the previous launch
  for (const int who : {0, 31, 63}) {
    CAPTURE(who);
    for (const Meet second : {Meet::none, Meet::warp}) {
      FOUND(kShared, add_and_use, kBlock, y, nullptr, true, second, Use::load, who);
      FOUND(kShared, add_and_use, kBlock, y, nullptr, true, second, Use::store, who);
    }
    SILENT(add_and_use, kBlock, y, nullptr, true, Meet::block, Use::load, who);
    CHECK(y.download()[0] == 64);
    SILENT(add_and_use, kBlock, y, nullptr, true, Meet::block, Use::store, who);
  }
}

ANALYSED("a byte beside a written one is not written", "[sim][races][parts]") {
  const fa::LaunchConfig one{1, 1};
  Buffer<Byte> x("x", 64, false), y("y", 64, false);
  Buffer<unsigned> z("z", 1);
  FOUND("load of s, byte 4 at", next_byte, one, y, 4);
  SILENT(next_byte, one, y, 5);
  FOUND("load of x, byte 0 at", copy<Byte>, one, x, y);
  cudaMemset(x.get() + 1, 0, 2);
  FOUND("load of x, byte 0 at", copy<Byte>, one, x, y);
  SILENT(copy<Byte>, one, x + 1, y + 1);
  SILENT(copy<Byte>, one, x + 2, y + 2);
  SILENT(copy<Byte>, one, y + 2, y + 3);  // kernels also write
  const auto* word = reinterpret_cast<const unsigned*>(x.get());
  FOUND("load of x, byte 0 at", copy<unsigned>, one, word, z);
  cudaMemset(x, 0, 1);
  FOUND("load of x, byte 3 at", copy<unsigned>, one, word, z);
  cudaMemset(x + 3, 0, 1);
  SILENT(copy<unsigned>, one, word, z);
  sim::poison(x + 2, 1);
  FOUND("load of x, byte 2 at", copy<unsigned>, one, word, z);
}

ANALYSED("copies and memsets write their own bytes", "[sim][races][parts]") {
  const fa::LaunchConfig one{1, 1};
  Buffer<Byte> x("x", 64, false), y("y", 64, false), z("z", 64, false), out("out", 1);
  const auto written = [&](const Byte* from) {
    std::string bytes;
    for (int i = 0; i < 24; ++i) bytes += finding(copy<Byte>, one, from + i, out) == "" ? 'w' : '-';
    return bytes;
  };
  cudaMemset(x + 3, 0, 14);
  CHECK(written(x) == "---wwwwwwwwwwwwww-------");
  sim::poison(x + 6, 7);
  CHECK(written(x) == "---www-------wwww-------");
  cudaMemcpy(y + 4, x.get(), 16, cudaMemcpyDeviceToDevice);  // words: unwritten ones stay unwritten
  CHECK(written(y) == "-------www-------www----");
  // Others: all is taken for written.
  for (const auto [to, from, bytes] : {std::array{0, 0, 18}, {2, 0, 16}, {0, 2, 16}}) {
    sim::poison(z, 64);
    cudaMemcpy(z + to, x + from, bytes, cudaMemcpyDeviceToDevice);
    CHECK(written(z) == std::string(24, '-').replace(to, bytes, bytes, 'w'));
  }
  sim::poison(y, 64);
  const std::vector<Byte> host(8);
  cudaMemcpy(y + 2, host.data(), 8, cudaMemcpyHostToDevice);
  CHECK(written(y) == "--wwwwwwww--------------");
}

ANALYSED("a race explains the reads of its own bytes", "[sim][races][parts]") {
  Buffer<Byte> x("x", 8, false), y("y", 1);
  for (Byte* p : {x.get(), static_cast<Byte*>(nullptr)}) {
    for (const int byte : {3, 4, 5}) {
      CAPTURE(byte, p != nullptr);
      sim::poison(x, 8);
      const auto found = finding(read_then_store, kBlock, p, y, byte);
      CAPTURE(found);
      CHECK(count(found, "race on") == (byte == 4));
      CHECK(count(found, "uninitialised") == (byte != 4));
    }
  }
}

ANALYSED("a launch shows all its findings, each pair of lines once", "[sim][races][findings]") {
  Buffer<float> y64("y", 64);
  const auto both = finding(two_barriers, kBlock, y, false, false);
  CAPTURE(both);
  CHECK(says(both,
             "race on shared memory: kernel  ...  of a, byte ... \nalso: race on shared "
             "memory: kernel  ...  of b, byte"));
  CHECK(count(both, "race on") == 2);
  CHECK(count(both, "\n") == 1);
  CHECK(finding(two_barriers, kBlock, y, false, true) == both.substr(0, both.find('\n')));
  const auto second = finding(two_barriers, kBlock, y, true, false);
  CHECK_THAT(second, ContainsSubstring(" of b, byte"));
  CHECK(count(second, "\n") == 0);
  SILENT(two_barriers, kBlock, y, true, true);
  CHECK(y.download()[1] == 66);

  struct Case {
    int races;
    End end;
    int told;
    const char* more;
  };
  for (const Case& c : {Case{11, End::none, 8, "\nalso: 3 more, at other lines"},
                        {9, End::none, 8, "\nalso: 1 more, at "},
                        {8, End::none, 8, ""},
                        {8, End::out_of_bounds, 7, "\nalso: 1 more, at "},
                        {7, End::out_of_bounds, 7, ""}}) {
    const auto many = finding(many_races, kBlock, y64, c.races, c.end);
    CAPTURE(many, c.races);
    CHECK(count(many, "race on") == c.told);
    CHECK(count(many, "of buffer y") == (c.end == End::out_of_bounds));
    CHECK(count(many, " more, ") == (*c.more != 0));
    CHECK_THAT(many, ContainsSubstring(c.more));
  }
}

ANALYSED("what ends a launch comes with the findings so far", "[sim][races][findings]") {
  Buffer<float> y("y", 64);
  CHECK(count(finding(race_and_end, kBlock, y, End::none), "\n") == 0);
  FOUND("race on shared memory ... \nalso: kernel  ... at byte 256 of buffer y", race_and_end,
        kBlock, y, End::out_of_bounds);
  FOUND("race on shared memory ... \nalso:  ... barrier 1", race_and_end, kBlock, y, End::deadlock);
}

// --- kinds ---------------------------------------------------------------------------------------

__global__ void uninitialised_read(float* y) {
  __shared__ float a[64];
  if (threadIdx.x > 0) a[threadIdx.x] = 1;
  y[threadIdx.x] = a[threadIdx.x];
}
__global__ void uninitialised_bytes(Byte* y) {  // each thread has one of a word
  __shared__ Byte a[64];
  const Byte mine = ++a[threadIdx.x];
  y[threadIdx.x] += mine;
}
__global__ void different_barriers() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__global__ void endless_loop(volatile float* y) {
  while (*y == 0) {
  }
}
__global__ void misaligned_store(float* y) {
  if (threadIdx.x == 0) *reinterpret_cast<double*>(y + 1) = 1;
}
__global__ void past_shared_array(float* y) {
  __shared__ float a[65];
  a[threadIdx.x + 2] = 1;
  y[threadIdx.x] = a[threadIdx.x + 2];
}
__global__ void block_of_no_cluster() { fa::map_shared(fa::dynamic_shared<float>(), 1); }

TEST_CASE("each finding has its kind", "[sim][findings]") {
  WithOptions with({.analyse = true, .watchdog_s = 0.1});
  Buffer<float> y("y", 64);
  using Kind = fa::FaultKind;
  const auto kinds = [&](auto kernel, auto... arguments) {
    std::vector<Kind> all;
    try {
      fa::launch(kernel, kBlock, arguments...);
    } catch (const fa::KernelStopped& e) {
      for (const fa::Finding& f : e.findings) all.push_back(f.kind);
      CHECK(e.sentences().size() == all.size() + (e.more != 0));
    }
    return all;
  };
  using Kinds = std::vector<Kind>;
  CHECK(kinds(race_and_end, y.get(), End::none) == Kinds{Kind::race});
  CHECK(kinds(race_and_end, y.get(), End::out_of_bounds) == Kinds{Kind::race, Kind::out_of_bounds});
  CHECK(kinds(race_and_end, y.get(), End::deadlock) == Kinds{Kind::race, Kind::refused});
  CHECK(kinds(many_races, y.get(), 11, End::none) == Kinds(8, Kind::race));
  CHECK(kinds(different_barriers) == Kinds{Kind::deadlock});
  CHECK(kinds(endless_loop, y.get()) == Kinds{Kind::endless_loop});
  CHECK(kinds(misaligned_store, y.get()) == Kinds{Kind::misaligned});
  CHECK(kinds(past_shared_array, y.get()) == Kinds{Kind::out_of_bounds});
  CHECK(kinds(block_of_no_cluster) == Kinds{Kind::refused});
  CHECK(kinds(two_barriers, y.get(), true, true).empty());
  CHECK(kinds(uninitialised_read, y.get()) == Kinds{Kind::uninitialised});
  Buffer<Byte> unwritten("unwritten", 64, false);
  CHECK(kinds(uninitialised_bytes, unwritten.get()) == Kinds(2, Kind::uninitialised));
}

TEST_CASE("a sentence's places are those that messages have named", "[sim][findings]") {
  const std::string four = sim::named_place("/a/tile.cuh:4");
  const auto own = sim::named_place("/b/my_tile.cuh:4"), later = sim::named_place("/a/tile.cuh:42");
  std::string lines;
  for (const auto& p :
       sim::places_in(own + ", " + later + " (" + four + "), " + four + ", b.cu:1")) {
    lines += p.file + " " + std::to_string(p.line) + "; ";
  }
  CHECK(lines == "/b/my_tile.cuh 4; /a/tile.cuh 42; /a/tile.cuh 4; ");
}

ANALYSED("stores of the same value are called so, and hide nothing", "[sim][races][findings]") {
  Buffer<float> last("last", 1);
  const auto of = [&](Values values, bool race) {
    return finding(store_by_all, kBlock, y, last, values, race);
  };
  const char* label = "between them; each stores the same value";
  const auto same = of(Values::same, false), other = of(Values::same, true);
  CAPTURE(same, other);
  CHECK(count(same, "race on") == 2);
  CHECK(count(same, label) == 2);
  CHECK(count(other, "race on") == 3);
  CHECK(count(other, label) == 2);
  const auto first = other.substr(0, other.find('\n'));
  CHECK(count(first, label) == 0);
  CHECK_THAT(first, ContainsSubstring(" of s, byte"));
  Buffer<float4> wide("wide", 1);
  for (const Values values : {Values::same, Values::last_other}) {  // in the last of four words
    const auto text = finding(store_wide_by_all, kBlock, wide, values);
    CAPTURE(text);
    CHECK(count(text, "race on") == 1);
    CHECK(count(text, label) == (values == Values::same));
  }
  const auto later = finding(store_same_then_other, kBlock, y);
  CAPTURE(later);
  CHECK(count(later, "race on") == 2);
  CHECK(count(later, label) == 2);
  for (const Values values : {Values::other, Values::first_other, Values::last_other}) {
    const auto text = of(values, false);
    CAPTURE(text);
    CHECK(count(text, "race on") == 2);
    CHECK(count(text, "same value") == 0);
  }
}

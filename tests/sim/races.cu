// Races and uninitialised reads of threads: each diagnosis with a kernel that has exactly that
// fault, and a near twin without it.
#include "common/dialect/ptx/barrier.h"
#include "common/dialect/ptx/mbarrier.h"
#include "common/dialect/ptx/more/dependent.h"
#include "common/dialect/ptx/reduce.h"
#include "tests/sim/diagnosis.h"

using sim::test::Buffer;
using sim::test::finding;
using sim::test::says;
using sim::test::WithOptions;

namespace {

// --- shared memory: barriers of the block and of warps -------------------------------------------

enum class Between { nothing, barrier, warp, half_warp, shuffle };

// Each thread reads what another one wrote.
constexpr int kExchange = __LINE__;  // the store is 4 lines further down, the load 9
__global__ void exchange(float* y, int distance, Between between) {
  __shared__ float tile[64];
  const int t = threadIdx.x;
  tile[t] = t;
  if (between == Between::barrier) __syncthreads();
  if (between == Between::warp) __syncwarp();
  if (between == Between::half_warp) __syncwarp(t % 32 < 16 ? 0x0000ffffu : 0xffff0000u);
  const float v = between == Between::shuffle ? __shfl_xor_sync(fa::kFullMask, 0.f, 1) : 0;
  y[blockIdx.x * 64 + t] = v + tile[t ^ distance];
}
// A store after a meeting of some threads needs another meeting.
__global__ void store_again(float* y, bool named, bool meet) {
  __shared__ float tile[96];
  const int t = threadIdx.x;
  for (int round = 0; round < 2; ++round) {
    tile[t] = round;
    if (round == 1 && !meet) break;
    if (named && t < 64) fa::bar_sync(1, 64);
    if (!named || t >= 64) __syncwarp();
  }
  y[t] = tile[t ^ 1];
}
// Warp 0 reads a word, twice, before a thread overwrites it: found from the loads, not from the
// store.
__global__ void overwrite(float* y, bool barrier, int writer) {
  __shared__ float word;
  const int t = threadIdx.x;
  if (t == writer) word = 1;
  for (int round = 0; round < 2; ++round) {
    __syncthreads();
    if (t < 32) y[t] = word;
  }
  if (barrier) __syncthreads();
  if (t == writer) word = 2;
}
// Each thread also loads what it stores to: the finding has the other one's line, the next.
constexpr int kAddAndRead = __LINE__ + 5;
__global__ void add_and_read(float* y) {
  __shared__ float tile[32];
  tile[threadIdx.x] = 0;
  __syncthreads();
  tile[threadIdx.x] += 7;
  y[threadIdx.x] = tile[(threadIdx.x + 16) % 32];
}
// A warp loads words, of each of which the next one stores a byte.
__global__ void overwrite_bytes(float* y, bool barrier, int reader) {
  __shared__ uint32_t words[32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == 0) words[lane] = lane;
  __syncthreads();
  if (warp == reader) y[lane] = words[lane];
  if (barrier) __syncthreads();
  if (warp == reader + 1) reinterpret_cast<unsigned char*>(&words[lane])[1] = 1;
}
// Warp 0 stores a byte of a word. After a barrier for it and warp 1, or for all, the others add to
// the word.
__global__ void add_to_bytes(int count) {
  __shared__ unsigned word;
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 0) word = 0;
  __syncthreads();
  if (threadIdx.x == 0) reinterpret_cast<unsigned char*>(&word)[1] = 1;
  if (32 * warp < count) fa::bar_sync(1, count);
  if (warp > 0) atomicAdd(&word, 1u);
}
// A byte of one word, then one of the next word or the one before.
__global__ void bytes_of_two_words(float* y, int first, int second) {
  __shared__ unsigned char s[16];
  if (threadIdx.x < 16) s[threadIdx.x] = 0;
  __syncthreads();
  if (threadIdx.x == 0) s[first] = 1;
  if (threadIdx.x == 32) s[second] = 1;
  if (threadIdx.x == 64) *y = s[first];
}
__global__ void two_stores(float* y, int places) {
  __shared__ float tile[64];
  tile[threadIdx.x % places] = threadIdx.x;
  __syncthreads();
  y[threadIdx.x] = tile[threadIdx.x];
}

struct Colour {
  unsigned char r, g, b;
};
// Thread 0 stores or loads a whole T at byte `at`, and thread 32, which comes later, the other.
template <class T>
__global__ void beside_wide(unsigned char* x, T* y, int at, int byte, bool wide_loads) {
  __shared__ __align__(16) unsigned char shared[64];
  unsigned char* s = x ? x : shared;
  s[threadIdx.x] = 0;
  __syncthreads();
  T* wide = reinterpret_cast<T*>(s + at);
  if (threadIdx.x == 0 && wide_loads) *y = *wide;
  if (threadIdx.x == 0 && !wide_loads) *wide = T{};
  if (threadIdx.x == 32 && wide_loads) s[byte] = 1;
  if (threadIdx.x == 32 && !wide_loads) *reinterpret_cast<unsigned char*>(y) = s[byte];
}

// --- shared memory: parts of a block -------------------------------------------------------------

// Warp 0 fills a tile for warp 1, and arrives or waits for it; warp 2 has no part in it, or meets
// the others before or after that.
enum class Third { absent, before, after };
__global__ void named_barrier(float* y, int reader, bool both_wait, Third third) {
  __shared__ float tile[32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (third == Third::before) __syncthreads();
  if (warp == 0) tile[lane] = lane;
  if (warp == 0 && !both_wait) fa::bar_arrive(1, 64);
  if (warp == 1 || (warp == 0 && both_wait)) fa::bar_sync(1, 64);
  if (third == Third::after) fa::bar_sync(2, 96);
  if (warp == reader) y[lane] = tile[31 - lane];
}
// An arrival does not wait: what the thread stores or loads after it is not released.
__global__ void use_behind_arrival(float* y, bool stores, bool late, int arriver) {
  __shared__ float tile[32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto use = [&](bool store) {
    if (store) tile[lane] = lane;
    if (!store) y[lane] = tile[31 - lane];
  };
  if (warp == 0) tile[lane] = lane;
  __syncthreads();
  if (warp == arriver) {
    if (!late) use(stores);
    fa::bar_arrive(1, 64);
    if (late) use(stores);
  } else {
    fa::bar_sync(1, 64);
    use(!stores);
  }
}
// Warp 0 fills the tile and arrives, warp 1 waits for it; then `late` and warp 3, which reads, meet
// at the same barrier.
__global__ void barrier_again(float* y, int late) {
  __shared__ float tile[32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == 0) {
    tile[lane] = lane;
    fa::bar_arrive(1, 64);
  }
  if (warp == 1) fa::bar_sync(1, 64);
  if (warp == late || warp == 3) fa::bar_sync(1, 64);
  if (warp == 3) y[lane] = tile[31 - lane];
}
// Three warps meet in phase 0; then warp 0 fills the tile and arrives for phase 1, for which warp 1
// has to wait.
__global__ void next_phase(float* y, bool wait) {
  __shared__ float tile[32];
  __shared__ uint64_t bar;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) fa::mbarrier_init(&bar, 96);
  __syncthreads();
  fa::mbarrier_arrive(&bar);
  fa::mbarrier_wait(&bar, 0);
  if (warp == 0) tile[lane] = lane;
  fa::mbarrier_arrive(&bar);
  if (wait) fa::mbarrier_wait(&bar, 1);
  if (warp == 1) y[lane] = tile[31 - lane];
}
// As above through an mbarrier; the consumer also hands the tile back.
__global__ void pipeline(float* y, bool wait_full, bool wait_empty) {
  __shared__ float tile[32];
  __shared__ uint64_t full, empty;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&full, 32);
    fa::mbarrier_init(&empty, 32);
  }
  __syncthreads();
  float sum = 0;
  for (int t = 0; t < 4; ++t) {
    if (warp == 0) {
      if (wait_empty && t > 0) fa::mbarrier_wait(&empty, (t - 1) & 1);
      tile[lane] = t;
      fa::mbarrier_arrive(&full);
      if (!wait_empty) fa::bar_sync(1, 64);  // in step with the consumer's wait, not with its loads
    } else {
      if (wait_full) fa::mbarrier_wait(&full, t & 1);
      if (!wait_empty) fa::bar_sync(1, 64);
      sum += tile[31 - lane];
      fa::mbarrier_arrive(&empty);
    }
  }
  if (warp == 1) y[blockIdx.x * 32 + lane] = sum;
}
// One lane arrives for its warp: __syncwarp() must come first.
__global__ void elected_arrival(float* y, bool sync) {
  __shared__ float tile[32];
  __shared__ uint64_t full;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) fa::mbarrier_init(&full, 1);
  __syncthreads();
  if (warp == 0) {
    tile[lane] = lane;
    if (sync) __syncwarp();
    if (lane == 31) fa::mbarrier_arrive(&full);
  } else {
    fa::mbarrier_wait(&full, 0);
    y[lane] = tile[lane];
  }
}
// Warp 0 releases one mbarrier, fills the tile and releases the other. Warp 1 waits for both; so
// does warp 2, which reads, or for the first.
__global__ void two_mbarriers(float* y, bool wait_second) {
  __shared__ float tile[32];
  __shared__ uint64_t first, second;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) fa::mbarrier_init(&first, 1), fa::mbarrier_init(&second, 1);
  __syncthreads();
  if (warp == 0) {
    if (lane == 0) fa::mbarrier_arrive(&first);
    tile[lane] = lane;
    __syncwarp();
    if (lane == 0) fa::mbarrier_arrive(&second);
    return;
  }
  if (warp == 1 || wait_second) fa::mbarrier_wait(&second, 0);
  fa::mbarrier_wait(&first, 0);
  if (warp == 2) y[lane] = tile[lane];
}
// The mbarrier itself: nothing lies between its initialisation and its use by other threads.
enum class Use { arrive, expect, invalidate };
__global__ void use_at_once(bool barrier, Use use) {
  __shared__ uint64_t full;
  if (threadIdx.x == 0) fa::mbarrier_init(&full, 1);
  if (barrier) __syncthreads();
  if (threadIdx.x != 1) return;
  if (use == Use::arrive) fa::mbarrier_arrive(&full);
  if (use == Use::expect) sim::mbarrier_expect(&full, 16, sim::Where::here());
  if (use == Use::invalidate) fa::mbarrier_inval(&full);
}

// --- device memory -------------------------------------------------------------------------------

__global__ void through_device(float* x, float* y, bool barrier, bool bytes) {
  const int t = threadIdx.x, lane = t % 32;
  if (t < 32) x[t] = t;
  if (barrier) __syncthreads();
  if (t >= 32) y[t] = bytes ? reinterpret_cast<const char*>(x)[4 * lane + 1] : x[lane];
}
__global__ void add_next(float* x, bool barrier) {
  const float next = threadIdx.x < 63 ? x[threadIdx.x + 1] : 0;
  if (barrier) __syncthreads();
  x[threadIdx.x] += next;  // loads it once more: the other reader is still known
}
__global__ void across_blocks(float* x, float* y, bool own) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  x[i] = i;
  __syncthreads();
  y[i] = x[(own ? blockIdx.x : 0) * blockDim.x + threadIdx.x];
}
// Thread `thread` of each block stores the block's word; that of `reader` then loads `from`'s.
__global__ void read_of_block(float* x, float* y, unsigned thread, unsigned reader, unsigned from) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  if (t != thread) return;
  x[block] = 1;
  if (block == reader) y[0] = x[from];
}
// Block 0 hands x over by an atomic of 4 bytes, or of 16, whose old value goes to no thread.
__global__ void hand_over_by(float* x, float* word, float* y, bool wide) {
  if (blockIdx.x == 0) x[0] = 1;
  __threadfence();
  if (wide) fa::red_add_v4(word, 1, 1, 1, 1);
  if (!wide) atomicAdd(word, 1.f);
  if (blockIdx.x == 1) y[0] = x[0];
}
__global__ void store_read_by_others(const float* x, float* z, float* y) {
  y[blockIdx.x * blockDim.x + threadIdx.x] = x[threadIdx.x];
  if (blockIdx.x == 2) z[threadIdx.x] = 0;
}
// All blocks add to a sum, some of them without an atomic.
enum class Add { atomic, plain, one_stores };
__global__ void accumulate(float* sum, Add how) {
  if (how == Add::one_stores && blockIdx.x == 1) {
    sum[threadIdx.x] = 0;
  } else if (how == Add::plain) {
    sum[threadIdx.x] += 1;
  } else {
    atomicAdd(sum + threadIdx.x, 1.f);
  }
}
// The last block to finish sums up what all wrote, and resets the ticket. The fence may stand
// before the barrier, in every thread, or after it, in the thread that takes the ticket.
enum class Fence { none, early, everybody, one, late };
template <class T>
__global__ void last_block(float* partial, T* ticket, float* y, Fence fence) {
  __shared__ bool last;
  if (fence == Fence::early) __threadfence();
  partial[blockIdx.x * blockDim.x + threadIdx.x] = threadIdx.x;
  if (fence == Fence::everybody) __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    if (fence == Fence::one) __threadfence();
    last = atomicAdd(ticket, T{1}) == gridDim.x - 1;
    if (fence == Fence::late) __threadfence();
  }
  __syncthreads();
  if (!last) return;
  float sum = 0;
  for (unsigned b = 0; b < gridDim.x; ++b) sum += partial[b * blockDim.x + threadIdx.x];
  y[threadIdx.x] = sum;
  if (threadIdx.x == 0) *ticket = 0;
}
// Warp 0 fences its stores and arrives; warp 1, which waited, takes the ticket.
__global__ void fenced_by_another(float* partial, unsigned* ticket, float* y, bool fence) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == 0) {
    partial[blockIdx.x * 32 + lane] = lane;
    if (fence) __threadfence();
    fa::bar_arrive(1, 64);
    return;
  }
  fa::bar_sync(1, 64);
  if (lane == 0 && atomicAdd(ticket, 1u) == gridDim.x - 1) {
    for (unsigned i = 0; i < gridDim.x * 32; ++i) *y += partial[i];
  }
}
// Warp 0 takes the ticket, after all that its block has fenced; warp 1 learns of it by bar.arrive.
__global__ void seen_by_another(float* partial, unsigned* ticket, float* y, bool fence) {
  __shared__ bool last;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == 0) {
    partial[blockIdx.x * 32 + lane] = lane;
    if (fence) __threadfence();
    __syncwarp();
    if (lane == 0) last = atomicAdd(ticket, 1u) == gridDim.x - 1;
    fa::bar_arrive(1, 64);
    return;
  }
  fa::bar_sync(1, 64);
  if (lane > 0 || !last) return;
  for (unsigned i = 0; i < gridDim.x * 32; ++i) *y += partial[i];
}
// Warp 0 reads a word that warp 1 adds to. Its atomic on the word orders the two if it
// follows that addition: here it is after the barrier with warp 2, before which warp 1 has added.
__global__ void add_early(float* word, float* y, bool late) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  __threadfence();
  if (lane == 0 && (warp == 1 || (warp == 0 && !late))) atomicAdd(word, 1.f);
  if (warp != 1) fa::bar_sync(1, 64);
  if (threadIdx.x == 0 && late) atomicAdd(word, 1.f);
  if (threadIdx.x == 0) *y = *word;
}
// Warp 0 publishes before its store and twice after it. The atomic by which warp 1 may see that
// stands between the first two, after all, or at both places. Warps 2 and 3 keep this order.
__global__ void published_again(float* y, unsigned* word, bool early, bool late) {
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32) return;
  __threadfence();
  if (warp == 0) {
    atomicAdd(word, 1u);
    y[0] = 1;
  }
  if (warp == 1 && early) atomicAdd(word, 1u);
  fa::bar_sync(1 + warp % 2, 64);  // 0 with 2, then 1 with 3
  for (int again = 0; warp == 0 && again < 2; ++again) {
    __threadfence();
    atomicAdd(word, 1u);
  }
  if (warp == 1 && late) atomicAdd(word, 1u);
  if (warp == 1) y[1] = y[0];
}
// Block 0 hands y over by one word; block 1 first adds to another one.
__global__ void two_tickets(float* y, unsigned* word, unsigned* other, bool both) {
  if (blockIdx.x == 0) y[0] = 1;
  __threadfence();
  if (blockIdx.x == 1) atomicAdd(other, 1u);
  if (blockIdx.x == 0 || both) atomicAdd(word, 1u);
  if (blockIdx.x == 1) y[1] = y[0];
}
// Each warp takes a ticket of its own, and the last warp of all reads what all warps wrote.
__global__ void last_warp(float* partial, unsigned* ticket, float* y, bool fence) {
  partial[blockIdx.x * blockDim.x + threadIdx.x] = threadIdx.x;
  if (fence) __threadfence();
  __syncwarp();
  if (threadIdx.x % 32 == 0 && atomicAdd(ticket, 1u) == gridDim.x * blockDim.x / 32 - 1) {
    for (unsigned i = 0; i < gridDim.x * blockDim.x; ++i) *y += partial[i];
  }
}
// Blocks 0 and 2 add to a word; block 1 tells block 2 that 0 has. Block `careless` does not fence.
__global__ void handed_on(float* y, unsigned* given, unsigned careless) {
  __threadfence();  // of nothing yet
  if (blockIdx.x > 0 && atomicAdd(given + blockIdx.x - 1, 0u) == 0) return;
  if (blockIdx.x == 2) __threadfence();
  if (blockIdx.x != 1) y[0] += 1;
  if (blockIdx.x != careless) __threadfence();
  atomicAdd(given + blockIdx.x, 1u);
}

// --- uninitialised -------------------------------------------------------------------------------

// The first `blocks` blocks write, with their first `threads`: a later block finds what an earlier
// one left.
__global__ void partly_written(float* y, unsigned threads, unsigned blocks) {
  __shared__ float tile[64];
  if (threadIdx.x < threads && blockIdx.x < blocks) tile[threadIdx.x] = 1;
  __syncthreads();
  y[blockIdx.x * 64 + threadIdx.x] = tile[threadIdx.x];
}
__global__ void copy(const float* x, float* y, int n) {
  if (static_cast<int>(threadIdx.x) < n) y[threadIdx.x] = x[threadIdx.x];
}
__global__ void copy4(const float4* x, float4* y) { *y = *x; }
__global__ void add_one(float* x) { atomicAdd(x + threadIdx.x, 1.f); }
__global__ void count(float* x) { atomicAdd(x, 1.f); }

const char* const kShared = "race on shared memory: kernel ";
const char* const kDevice = "race on device memory: kernel ";

std::string line_of_exchange(int n) { return "races.cu:" + std::to_string(kExchange + n); }

// --- a kernel that starts before the earlier one has ended --------------------------------------

// Threads from `waiting` on do not wait for it.
__global__ void early(const float* x, float* y, unsigned waiting) {
  if (threadIdx.x < waiting) fa::griddep_wait();
  y[threadIdx.x] = x[threadIdx.x];
}
enum class Does {
  nothing,
  load,
  load_next_byte,
  load_two_before,
  load_wide,
  load_behind,
  store,
  store_byte,
  add
};
__device__ void touch(float* x, float* y, Does does) {
  auto* bytes = reinterpret_cast<unsigned char*>(x);
  if (does == Does::load && x[5] == 77) y[0] = 1;  // never
  if (does == Does::load_next_byte && bytes[23] == 77) y[0] = 1;
  if (does == Does::load_two_before && reinterpret_cast<uint16_t*>(x)[10] == 77) y[0] = 1;
  const auto* wide = reinterpret_cast<const float4*>(x);
  if (does == Does::load_wide) {
    const float4 v = wide[1];
    if (v.x == 77) y[0] = 1;
  }
  if (does == Does::load_behind) {
    const float4 v = wide[2];
    if (v.x == 77) y[0] = 1;
  }
  if (does == Does::store) x[5] = 1;
  if (does == Does::store_byte) bytes[22] = 1;
  if (does == Does::add) atomicAdd(x + 5, 1.f);
}
__global__ void primary(float* x, float* y, Does does) {
  if (blockIdx.x == 1 && threadIdx.x == 3) touch(x, y, does);
}
// In each block one thread waits for the primary kernel, but not in block `careless`; then,
// perhaps after a barrier, thread 40 of block `toucher` touches x.
__global__ void secondary(float* x, float* y, Does does, unsigned waiter, bool barrier,
                          unsigned toucher, unsigned careless) {
  if (threadIdx.x == waiter && blockIdx.x != careless) fa::griddep_wait();
  if (barrier) __syncthreads();
  if (threadIdx.x == 40 && blockIdx.x == toucher) touch(x, y, does);
}

}  // namespace

ANALYSED("threads that exchange a word need a barrier that both meet at", "[sim][races]") {
  struct Case {
    int distance;
    Between between;
    bool race;
  };
  for (const auto& [distance, between, race] : {Case{32, Between::nothing, true},
                                                {32, Between::barrier, false},
                                                {32, Between::warp, true},
                                                {31, Between::nothing, true},
                                                {31, Between::warp, false},
                                                {15, Between::half_warp, false},
                                                {16, Between::half_warp, true},
                                                {1, Between::shuffle, true}}) {
    CAPTURE(distance, static_cast<int>(between));
    CHECK(says(finding(exchange, {2, 64}, y, distance, between), kShared) == race);
  }
  FOUND(
      "race on shared memory: kernel (anonymous namespace)::exchange, block (0,0,0), thread "
      "(32,0,0): store of tile, byte 128 at " +
          line_of_exchange(4) + " and a load by thread (0,0,0) at " + line_of_exchange(9) +
          " have no barrier between them",
      exchange, {2, 64}, y, 32, Between::nothing);
}

ANALYSED("what follows a meeting of some threads is not ordered by it", "[sim][races]") {
  for (const bool named : {false, true}) {
    FOUND("of tile", store_again, {1, 96}, y, named, false);
    SILENT(store_again, {1, 96}, y, named, true);
  }
}

ANALYSED("a finding names the same place in every run", "[sim][races]") {
  const auto run = [&] { return finding(exchange, {8, 64}, y, 32, Between::nothing); };
  const auto first = run();
  REQUIRE(first != "");
  for (int i = 0; i < 3; ++i) CHECK(run() == first);
}

ANALYSED("a store that overtakes the loads of another warp is a race", "[sim][races]") {
  for (const int writer : {31, 63}) {
    FOUND("store of word, byte 0 at ... and a load by thread (0,0,0) at", overwrite, {1, 64}, y,
          false, writer);
    SILENT(overwrite, {1, 64}, y, true, writer);
  }
  const std::string store = "races.cu:" + std::to_string(kAddAndRead);
  const std::string load = "races.cu:" + std::to_string(kAddAndRead + 1);
  FOUND("store of tile, byte 64 at " + store + " and a load by thread (0,0,0) at " + load,
        add_and_read, {1, 32}, y);
  for (const int reader : {0, 1}) {
    FOUND("store of words, byte 1 at ... and a load by thread (" + std::to_string(32 * reader) +
              ",0,0) at",
          overwrite_bytes, {1, 96}, y, false, reader);
    SILENT(overwrite_bytes, {1, 96}, y, true, reader);
  }
  FOUND("atomic of word, byte 1", add_to_bytes, {1, 96}, 64);
  SILENT(add_to_bytes, {1, 96}, 96);
}

ANALYSED("two stores to one word are a race", "[sim][races]") {
  FOUND("and a store by thread (0,0,0)", two_stores, {1, 64}, y, 32);
  SILENT(two_stores, {1, 64}, y, 64);
}

ANALYSED("an access has all its bytes, and no others", "[sim][races][parts]") {
  Buffer<unsigned char> x("x", 64);
  Buffer<float4> y("y", 1);
  const auto check = [&]<class T>(T, int at, int size) {
    for (unsigned char* p : {x.get(), static_cast<unsigned char*>(nullptr)}) {
      for (const bool loads : {false, true}) {
        for (const int byte : {at - 1, at, at + size - 1, at + size}) {
          CAPTURE(size, at, byte, loads, p != nullptr);
          const auto found =
              finding(beside_wide<T>, {1, 64}, p, reinterpret_cast<T*>(y.get()), at, byte, loads);
          CAPTURE(found);
          const bool inside = at <= byte && byte < at + size;
          const std::string words = std::string("thread (32,0,0): ") +
                                    (loads ? "store of " : "load of ") + (p ? "x" : "shared") +
                                    ", byte " + std::to_string(byte) + " at ... and a " +
                                    (loads ? "load" : "store") + " by thread (0,0,0) at";
          CHECK((inside ? says(found, words) : found == ""));
        }
      }
    }
  };
  check(float4{}, 16, 16);
  check(uint16_t{}, 6, 2);
  check(Colour{}, 4, 3);
  check(Colour{}, 7, 3);
  for (const int byte : {5, 6, 7}) {
    for (const int other : {1, 9}) {
      FOUND("load of s, byte " + std::to_string(byte) + " at ... and a store by thread (0,0,0)",
            bytes_of_two_words, {1, 96}, this->y, byte, other);
    }
  }
}

ANALYSED("a named barrier orders those who take part", "[sim][races]") {
  FOUND(kShared, named_barrier, {1, 96}, y, 2, false, Third::absent);
  SILENT(named_barrier, {1, 96}, y, 1, false, Third::absent);
  FOUND(kShared, named_barrier, {1, 96}, y, 2, true, Third::absent);
  FOUND(kShared, named_barrier, {1, 96}, y, 2, true, Third::before);
  SILENT(named_barrier, {1, 96}, y, 1, true, Third::absent);
  SILENT(named_barrier, {1, 96}, y, 2, true, Third::after);
  SILENT(barrier_again, {1, 128}, y, 1);
  FOUND("thread (96,0,0): load of tile", barrier_again, {1, 128}, y, 2);
}

ANALYSED("bar.arrive hands over what came before it, not what follows", "[sim][races]") {
  for (const bool stores : {false, true}) {
    for (const int arriver : {0, 1}) {
      CAPTURE(stores, arriver);
      FOUND(kShared, use_behind_arrival, {1, 64}, y, stores, /*late=*/true, arriver);
      SILENT(use_behind_arrival, {1, 64}, y, stores, /*late=*/false, arriver);
    }
  }
}

ANALYSED("mbarriers order producer and consumer, both ways, phase by phase", "[sim][races]") {
  SILENT(pipeline, {2, 64}, y, true, true);
  CHECK(y.download()[0] == 0 + 1 + 2 + 3);
  FOUND("load of tile", pipeline, {1, 64}, y, false, true);
  FOUND(kShared, pipeline, {1, 64}, y, true, false);
  FOUND("load of tile", next_phase, {1, 96}, y, false);  // has waited, but for another phase
  SILENT(next_phase, {1, 96}, y, true);
  FOUND(kShared, elected_arrival, {1, 64}, y, false);
  SILENT(elected_arrival, {1, 64}, y, true);
  FOUND("load of tile", two_mbarriers, {1, 96}, y, false);
  SILENT(two_mbarriers, {1, 96}, y, true);
  for (const Use use : {Use::arrive, Use::expect, Use::invalidate}) {
    FOUND("thread (1,0,0): ... of full, byte 0 at ... and a store by thread (0,0,0)", use_at_once,
          {1, 64}, false, use);
    SILENT(use_at_once, {1, 64}, true, use);
  }
}

ANALYSED("within a block a barrier orders device memory", "[sim][races]") {
  for (const bool bytes : {false, true}) {
    FOUND(bytes ? "load of x, byte 1 at" : "load of x, byte 0 at", through_device, {1, 64}, x, y,
          false, bytes);
    SILENT(through_device, {1, 64}, x, y, true, bytes);
    SILENT(through_device, {1, 64}, x, y, true, bytes);  // launches are in order
  }
  FOUND("thread (1,0,0): store of x, byte 4 at races.cu: ... and a load by thread (0,0,0)",
        add_next, {1, 64}, x, false);
  SILENT(add_next, {1, 64}, x, true);
}

ANALYSED("nothing orders two blocks of a launch, but atomics are in order", "[sim][races]") {
  Buffer<float> z("z", 64);
  FOUND(
      "race on device memory ... block (1,0,0), thread (0,0,0): load of x, byte 0 at races.cu: "
      "... and a store by block (0,0,0), thread (0,0,0) at races.cu:",
      across_blocks, {2, 64}, x, y, false);
  SILENT(across_blocks, {2, 64}, x, y, true);
  FOUND(
      "block (2,3,4), thread (3,0,1): load of x, byte 124 at races.cu: ... and a store by block "
      "(1,2,2), thread (3,0,1) at races.cu: ... have no order (__threadfence and an atomic) "
      "between "
      "them",
      read_of_block, {dim3(3, 4, 5), dim3(4, 3, 2)}, x, y, 15u, 59u, 31u);
  SILENT(read_of_block, {dim3(3, 4, 5), dim3(4, 3, 2)}, x, y, 15u, 59u, 59u);
  FOUND("and a load by block (0,0,0), thread (0,0,0)", store_read_by_others, {3, 64}, x, x, y);
  SILENT(store_read_by_others, {3, 64}, x, z, y);
  FOUND(kDevice, accumulate, {2, 64}, z, Add::plain);
  FOUND("and an atomic by block (0,0,0)", accumulate, {3, 64}, z, Add::one_stores);
  SILENT(accumulate, {3, 64}, z, Add::atomic);
}

ANALYSED("the last block may read what others fenced before their ticket", "[sim][races]") {
  constexpr unsigned kBlocks = 5;
  Buffer<float> partial("partial", kBlocks * 64), y("y", 64);
  Buffer<unsigned> ticket("ticket", 1);
  const auto run = [&](auto kernel, auto how) {
    ticket.fill(0);
    return finding(kernel, {kBlocks, 64}, partial, ticket, y, how);
  };
  const auto last_block = ::last_block<unsigned>;
  CHECK(run(last_block, Fence::one) == "");
  CHECK(y.download()[3] == kBlocks * 3);
  CHECK(ticket.download()[0] == 0);
  CHECK(run(last_block, Fence::everybody) == "");
  const std::string text = run(last_block, Fence::none);
  CAPTURE(text);
  CHECK(says(text,
             "block (4,0,0), thread (0,0,0): load of partial, byte 0 ... store by block (0,0,0), "
             "thread (0,0,0)"));
  CHECK(says(run(last_block, Fence::late), kDevice));
  CHECK(says(run(last_block, Fence::early), kDevice));
  CHECK(says(run(fenced_by_another, false), "load of partial"));  // bar.arrive hands it over
  CHECK(run(fenced_by_another, true) == "");
  Buffer<unsigned long long> wide("wide", 1);
  SILENT(::last_block<unsigned long long>, {kBlocks, 64}, partial, wide, y, Fence::one);
  for (const auto kernel : {seen_by_another, last_warp}) {
    CHECK(says(run(kernel, false), "load of partial"));
    CHECK(run(kernel, true) == "");
  }
}

ANALYSED("an atomic is in order with those before it on its word", "[sim][races]") {
  Buffer<float> word("word", 1);
  FOUND("load of word", add_early, {1, 96}, word, y, false);
  SILENT(add_early, {1, 96}, word, y, true);
}

ANALYSED("an atomic of 16 bytes shows nothing", "[sim][races]") {
  Buffer<float> word("word", 4);
  SILENT(hand_over_by, {2, 1}, x, word, y, false);
  FOUND("block (1,0,0), thread (0,0,0): load of x, byte 0 at ... and a store by block (0,0,0)",
        hand_over_by, {2, 1}, x, word, y, true);
}

ANALYSED("a ticket shows what was published before it", "[sim][races]") {
  Buffer<unsigned> word("word", 1);
  FOUND("load of y, byte 0", published_again, {1, 128}, y, word, true, false);
  SILENT(published_again, {1, 128}, y, word, false, true);
  SILENT(published_again, {1, 128}, y, word, true, true);
  Buffer<unsigned> other("other", 1);
  SILENT(two_tickets, {2, 1}, y, word, other, true);
  FOUND("load of y, byte 0", two_tickets, {2, 1}, y, word, other, false);
}

ANALYSED("order between two blocks may come about by a third", "[sim][races]") {
  Buffer<unsigned> given("given", 3);
  const auto run = [&](unsigned careless) {
    given.fill(0);
    return finding(handed_on, {3, 1}, y, given, careless);
  };
  CHECK(run(2) == "");
  for (unsigned careless : {0u, 1u}) {
    CAPTURE(careless);
    CHECK(says(run(careless),
               "race on device memory: kernel ... block (2,0,0), thread (0,0,0): "
               "load of y, byte 0 ... store by block (0,0,0)"));
  }
}

ANALYSED("shared memory that this block has not written is uninitialised", "[sim][races]") {
  FOUND(
      "uninitialised shared memory: kernel ... thread (63,0,0): load of tile, byte 252 at "
      "races.cu: ... which this block has not written",
      partly_written, {1, 64}, y, 63u, 1u);
  SILENT(partly_written, {1, 64}, y, 64u, 1u);
  FOUND("block (1,0,0), thread (0,0,0): load of tile, byte 0", partly_written, {2, 64}, y, 64u, 1u);
  SILENT(partly_written, {2, 64}, y, 64u, 2u);
}

ANALYSED("device memory that no thread has written is uninitialised", "[sim][races]") {
  Buffer<float> x("x", 64, false), y("y", 64, false), z("z", 64);
  FOUND("load of x, byte 0 at races.cu:", copy, {1, 64}, x, y, 64);
  SILENT(across_blocks, {2, 32}, x, y, true);  // the reads of the launch before are forgotten
  sim::poison(x, 64 * sizeof(float));
  FOUND("atomic of x, byte 0", add_one, {1, 64}, x);
  sim::poison(x, 64 * sizeof(float));
  FOUND("uninitialised ... atomic of x, byte 0", count, {2, 64}, x);  // no race of two atomics
  sim::poison(x, 64 * sizeof(float));     // these launches ran to their ends
  x.upload(std::vector<float>(60, 1.f));  // all but four
  FOUND("thread (60,0,0): load of x, byte 240", copy, {1, 64}, x, y, 64);
  sim::poison(y, 64 * sizeof(float));
  {
    WithOptions without(sim::Options{});  // what it writes is written for a launch that looks
    SILENT(copy, {1, 64}, x, y, 60);
  }
  SILENT(copy, {1, 64}, y, z, 60);
  FOUND("load of y, byte 240", copy, {1, 64}, y, z, 61);
  sim::poison(y, 64 * sizeof(float));
  SILENT(copy, {1, 64}, x, y, 60);
  SILENT(copy, {1, 64}, y, z, 60);
  FOUND("load of y, byte 240", copy, {1, 64}, y, z, 61);
  cudaMemset(x.get(), 0, 64 * sizeof(float));
  SILENT(copy, {1, 64}, x, y, 64);
  auto* wide = reinterpret_cast<float4*>(x.get());
  SILENT(copy4, {1, 1}, wide, reinterpret_cast<float4*>(z.get()));
  sim::poison(x + 3, sizeof(float));
  FOUND("load of x, byte 12 at", copy4, {1, 1}, wide, reinterpret_cast<float4*>(z.get()));
}

TEST_CASE("races and uninitialised reads are looked for only when asked", "[sim][races]") {
  Buffer<float> x("x", 64, false), y("y", 64);
  WithOptions without{sim::Options{}};
  SILENT(exchange, {1, 64}, y, 32, Between::nothing);
  SILENT(copy, {1, 64}, x, y, 64);
}

TEST_CASE("a kernel launched early touches no device memory before it waits", "[sim][races]") {
  Buffer<float> x("x", 64), y("y", 64);
  const auto run = [&](unsigned waiting) {
    return [&, waiting] { fa::launch_early(early, {1, 64}, x, y, waiting); };
  };
  FOUND("thread (0,0,0): 4-byte load at races.cu: ... of buffer x before griddep_wait", run(0));
  FOUND("thread (40,0,0): 4-byte load at races.cu: ... of buffer x before griddep_wait", run(40));
  SILENT(run(64));
  SILENT(early, {1, 64}, x, y, 0u);
}

ANALYSED("a kernel that overlaps waits before it touches what the earlier one has used",
         "[sim][races]") {
  const auto run = [&](Does first, Does second, unsigned waiter = 99, bool barrier = false,
                       unsigned toucher = 0, unsigned careless = 99) {
    return finding([&] {
      fa::launch(primary, {2, 64}, x, y, first);
      const sim::EarlyLaunch early(false);
      fa::launch(secondary, {2, 64}, x, y, second, waiter, barrier, toucher, careless);
    });
  };
  const std::string end =
      " by kernel (anonymous namespace)::primary at races.cu: ... have no griddepcontrol.wait "
      "between them: the launch is programmatic, so the preceding kernel may still run";
  struct Case {
    Does first, second;
    std::string found;
  };
  for (const Case& c :
       {Case{Does::store, Does::load, "load of x, byte 20 at ... and a store" + end},
        {Does::store, Does::store, "store of x, byte 20 at ... and a store" + end},
        {Does::store, Does::add, "atomic of x, byte 20 at ... and a store" + end},
        {Does::load, Does::store, "store of x, byte 20 at ... and a load" + end},
        {Does::load, Does::add, "atomic of x, byte 20 at ... and a load" + end},
        {Does::add, Does::load, "load of x, byte 20 at ... and an atomic" + end},
        {Does::add, Does::store, "store of x, byte 20 at ... and an atomic" + end},
        {Does::store_byte, Does::store, "store of x, byte 22 at ... a store" + end},
        {Does::store, Does::load_next_byte, "load of x, byte 23 at ... a store" + end},
        {Does::store, Does::load_wide, "load of x, byte 20 at ... a store" + end},
        {Does::store_byte, Does::load_wide, "load of x, byte 22 at ... a store" + end},
        {Does::store, Does::load_behind, ""},
        {Does::store_byte, Does::load_next_byte, ""},
        {Does::store_byte, Does::load_two_before, ""},
        {Does::load, Does::load, ""},
        {Does::add, Does::add, ""},
        {Does::nothing, Does::store, ""},
        {Does::store, Does::nothing, ""}}) {
    CAPTURE(static_cast<int>(c.first), static_cast<int>(c.second));
    const auto found = run(c.first, c.second);
    CAPTURE(found);
    CHECK((c.found.empty() ? found == ""
                           : says(found, "block (0,0,0), thread (40,0,0): " + c.found)));
  }
  // Who waits for all, and who knows of it.
  CHECK(run(Does::store, Does::load, 40) == "");
  CHECK(run(Does::store, Does::load, 3, true) == "");
  CHECK(says(run(Does::store, Does::load, 3, false), "load of x"));
  CHECK(run(Does::store, Does::load, 3, true, 1) == "");
  CHECK(says(run(Does::store, Does::load, 3, true, 1, 1), "block (1,0,0), thread (40,0,0): load"));
  // Only the kernel right before overlaps, and none that the host has waited for.
  const auto early = [&](Does does) {
    const sim::EarlyLaunch early(false);
    fa::launch(secondary, {2, 64}, x, y, does, 99u, false, 0u, 99u);
  };
  SILENT([&] {
    fa::launch(primary, {2, 64}, x, y, Does::store);
    fa::launch(primary, {2, 64}, x, y, Does::nothing);
    early(Does::load);
    fa::launch(primary, {2, 64}, x, y, Does::store);
    cudaMemset(y.get(), 0, 4);
    early(Does::load);
  });
  SILENT([&] {
    fa::launch(primary, {2, 64}, x, y, Does::store);
    fa::launch(secondary, {2, 64}, x, y, Does::load, 99u, false, 0u, 99u);
  });
  FOUND("load of x, byte 20 at ... and a store by kernel (anonymous namespace)::secondary", [&] {
    fa::launch(primary, {2, 64}, x, y, Does::nothing);
    early(Does::store);
    early(Does::load);
  });
}

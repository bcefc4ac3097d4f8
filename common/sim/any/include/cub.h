/// \file
/// Stands in for CUB's headers. Collectives of a block or warp are ordinary kernel code: shuffles,
/// and partial results in the caller's shared memory. Device-wide calls run on the host and are not
/// counted. What is missing does not compile.
#pragma once

#include <algorithm>
#include <chrono>
#include <iostream>
#include <iterator>
#include <numeric>
#include <vector>

#include "cuda_runtime.h"

namespace cub {

#define CUB_PTX_WARP_THREADS 32
#define CubDebug(e) (e)
#define CubDebugExit(e) (e)

#define SIM_FUNCTOR(name, ...)                                \
  struct name {                                               \
    template <class A, class B>                               \
    constexpr auto operator()(const A& a, const B& b) const { \
      return __VA_ARGS__;                                     \
    }                                                         \
  };
SIM_FUNCTOR(Sum, a + b)
SIM_FUNCTOR(Max, a < b ? b : a)
SIM_FUNCTOR(Min, b < a ? b : a)
#undef SIM_FUNCTOR
template <class K, class V>
struct KeyValuePair {
  using Key = K;
  using Value = V;
  K key;
  V value;
};
// Of two equal values the one with the smaller index.
#define SIM_ARG(name, op)                                                         \
  struct name {                                                                   \
    template <class P>                                                            \
    P operator()(const P& a, const P& b) const {                                  \
      return b.value op a.value || (a.value == b.value && b.key < a.key) ? b : a; \
    }                                                                             \
  };
SIM_ARG(ArgMax, >)
SIM_ARG(ArgMin, <)
#undef SIM_ARG

/// Common to input iterators: `Self` defines at(i), its i-th element.
template <class Self, class T>
struct InputIterator {
  using iterator_category = std::random_access_iterator_tag;
  using value_type = T;
  using difference_type = std::ptrdiff_t;
  using reference = T;
  using pointer = void;
  std::ptrdiff_t n = 0;  // how far it has moved
  T operator[](std::ptrdiff_t i) const { return static_cast<const Self&>(*this).at(n + i); }
  T operator*() const { return (*this)[0]; }
  Self& operator+=(std::ptrdiff_t by) { return n += by, static_cast<Self&>(*this); }
  Self& operator++() { return *this += 1; }
  Self operator++(int) {
    const Self old = static_cast<const Self&>(*this);
    return ++n, old;
  }
  friend Self operator+(Self a, std::ptrdiff_t by) { return a += by; }
  friend std::ptrdiff_t operator-(const Self& a, const Self& b) { return a.n - b.n; }
  friend bool operator==(const Self& a, const Self& b) { return a.n == b.n; }
};
template <class T, class Offset = std::ptrdiff_t>
struct CountingInputIterator : InputIterator<CountingInputIterator<T, Offset>, T> {
  T first;
  explicit CountingInputIterator(T from) : first(from) {}
  T at(std::ptrdiff_t i) const { return static_cast<T>(first + i); }
};
template <class T, class Offset = std::ptrdiff_t>
struct ConstantInputIterator : InputIterator<ConstantInputIterator<T, Offset>, T> {
  T value;
  explicit ConstantInputIterator(T v) : value(v) {}
  T at(std::ptrdiff_t) const { return value; }
};
template <class T, class F, class I, class Offset = std::ptrdiff_t>
struct TransformInputIterator : InputIterator<TransformInputIterator<T, F, I, Offset>, T> {
  I in;
  F f;
  TransformInputIterator(I i, F function) : in(i), f(function) {}
  T at(std::ptrdiff_t i) const { return F(f)(in[i]); }
};
inline unsigned LaneId() { return sim::any::lane(); }

// --- a warp's ------------------------------------------------------------------------------------

/// The existing lanes of this warp.
inline unsigned lanes_here(unsigned threads = blockDim.x * blockDim.y * blockDim.z) {
  const unsigned first = 32 * sim::any::warp();
  return threads - first >= 32 ? ~0u : (1u << (threads - first)) - 1;
}
/// The lanes of one part of the warp, `width` lanes wide.
inline unsigned lanes_of_part(int width) {
  const unsigned all = width == 32 ? ~0u : ((1u << width) - 1) << (LaneId() / width * width);
  return all & lanes_here();
}
/// `v` of the first `valid` lanes, reduced in lane 0 of the part.
template <class T, class F>
T warp_reduced(T v, F f, int width, int valid, sim::Where where) {
  const unsigned mask = lanes_of_part(width);
  const int lane = static_cast<int>(LaneId()) % width;
  for (int by = 1; by < width; by *= 2) {
    const bool there =
        lane + by < width && mask >> (LaneId() + by) & 1;  // the last warp ends early
    const int from = there ? lane + by : lane;
    const T other = sim::shuffle_any(sim::Shuffle::idx, mask, v, from, width, where);
    if (lane + by < valid) v = f(v, other);
  }
  return v;
}
template <class T, class F>
T warp_scanned(T v, F f, int width, sim::Where where) {
  const unsigned mask = lanes_of_part(width);
  const int lane = static_cast<int>(LaneId()) % width;
  for (int by = 1; by < width; by *= 2) {
    const T other = sim::shuffle_any(sim::Shuffle::up, mask, v, by, width, where);
    if (lane >= by) v = f(other, v);
  }
  return v;
}

template <class T, int width = 32, int...>
class WarpReduce {
 public:
  struct TempStorage {};
  WarpReduce(TempStorage&) {}
  T Reduce(T v, auto f, int valid = width, SIM_HERE) {
    const int lanes = std::popcount(lanes_of_part(width));
    return warp_reduced(v, f, width, valid < lanes ? valid : lanes, where);
  }
  T Sum(T v, int valid = width, SIM_HERE) { return Reduce(v, cub::Sum(), valid, where); }
};

template <class T, int width = 32, int...>
class WarpScan {
 public:
  struct TempStorage {};
  WarpScan(TempStorage&) {}
  void InclusiveScan(T v, T& out, auto f, SIM_HERE) { out = warp_scanned(v, f, width, where); }
  void InclusiveSum(T v, T& out, SIM_HERE) { InclusiveScan(v, out, cub::Sum(), where); }
  void InclusiveSum(T v, T& out, T& all, SIM_HERE) {
    out = warp_scanned(v, cub::Sum(), width, where);
    all = sim::shuffle_any(sim::Shuffle::idx, lanes_of_part(width), out, width - 1, width, where);
  }
  void ExclusiveScan(T v, T& out, T init, auto f, SIM_HERE) {
    const T sum = warp_scanned(v, f, width, where);
    const T before = sim::shuffle_any(sim::Shuffle::up, lanes_of_part(width), sum, 1, width, where);
    out = LaneId() % width ? f(init, before) : init;
  }
  void ExclusiveSum(T v, T& out, SIM_HERE) { ExclusiveScan(v, out, T(), cub::Sum(), where); }
  void ExclusiveSum(T v, T& out, T& all, SIM_HERE) {
    InclusiveSum(v, out, all, where);
    out = out - v;
  }
  T Broadcast(T v, unsigned lane, SIM_HERE) {
    return sim::shuffle_any(sim::Shuffle::idx, lanes_of_part(width), v, static_cast<int>(lane),
                            width, where);
  }
};

// --- a block's -----------------------------------------------------------------------------------

enum BlockReduceAlgorithm {
  BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY,
  BLOCK_REDUCE_RAKING,
  BLOCK_REDUCE_WARP_REDUCTIONS
};
enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };
enum BlockLoadAlgorithm {
  BLOCK_LOAD_DIRECT,
  BLOCK_LOAD_STRIPED,
  BLOCK_LOAD_VECTORIZE,
  BLOCK_LOAD_TRANSPOSE,
  BLOCK_LOAD_WARP_TRANSPOSE
};
enum BlockStoreAlgorithm {
  BLOCK_STORE_DIRECT,
  BLOCK_STORE_STRIPED,
  BLOCK_STORE_VECTORIZE,
  BLOCK_STORE_TRANSPOSE,
  BLOCK_STORE_WARP_TRANSPOSE
};

/// Common to a block's collectives: a thread's position, and the caller's shared storage.
template <class T, int x, int y, int z>
struct BlockRoom {
  static constexpr int threads = x * y * z, warps = (threads + 31) / 32;
  struct TempStorage {
    T parts[warps];
  };
  TempStorage& room;
  static TempStorage& own() {
    __shared__ TempStorage storage;
    return storage;
  }
  BlockRoom(TempStorage& r) : room(r) {}
  BlockRoom() : room(own()) {}
  static int tid() { return static_cast<int>((threadIdx.z * y + threadIdx.y) * x + threadIdx.x); }
};

template <class T, int x, BlockReduceAlgorithm = BLOCK_REDUCE_WARP_REDUCTIONS, int y = 1, int z = 1,
          int...>
class BlockReduce : BlockRoom<T, x, y, z> {
  using Room = BlockRoom<T, x, y, z>;
  using Room::room;

 public:
  using Room::Room;
  using typename Room::TempStorage;
  /// Thread 0 has the result.
  T Reduce(T v, auto f, int valid = Room::threads, SIM_HERE) {
    const int warp = Room::tid() / 32, left = valid - 32 * warp;
    v = warp_reduced(v, f, 32, left < 32 ? left : 32, where);
    if (Room::tid() % 32 == 0) room.parts[warp] = v;
    __syncthreads(where);
    for (int i = 1; Room::tid() == 0 && 32 * i < valid; ++i) v = f(v, room.parts[i]);
    return v;
  }
  template <int n, class F>
  T Reduce(T (&v)[n], F f, SIM_HERE) {
    T sum = v[0];
    for (int i = 1; i < n; ++i) sum = f(sum, v[i]);
    return Reduce(sum, f, Room::threads, where);
  }
  T Sum(T v, int valid = Room::threads, SIM_HERE) { return Reduce(v, cub::Sum(), valid, where); }
  template <int n>
  T Sum(T (&v)[n], SIM_HERE) {
    return Reduce(v, cub::Sum(), where);
  }
};

template <class T, int x, BlockScanAlgorithm = BLOCK_SCAN_RAKING, int y = 1, int z = 1, int...>
class BlockScan : BlockRoom<T, x, y, z> {
  using Room = BlockRoom<T, x, y, z>;
  using Room::room;

  /// Sets `v` to the sum over all threads before this one; `has`: are there any?
  void before(T& v, bool& has, auto f, T& all, sim::Where where) {
    const int warp = Room::tid() / 32, lane = Room::tid() % 32;
    const T sum = warp_scanned(v, f, 32, where);
    const unsigned lanes = lanes_here();
    if (lane == 31 - std::countl_zero(lanes)) room.parts[warp] = sum;
    const T left = sim::shuffle_any(sim::Shuffle::up, lanes, sum, 1, 32, where);
    __syncthreads(where);
    T parts = room.parts[0];
    all = parts;
    for (int i = 1; i < Room::warps; ++i) {
      if (i < warp) parts = f(parts, room.parts[i]);
      all = f(all, room.parts[i]);
    }
    has = Room::tid() > 0;
    v = warp == 0 ? left : lane == 0 ? parts : f(parts, left);
  }

 public:
  using Room::Room;
  using typename Room::TempStorage;
  template <int n, class F>
  void InclusiveScan(T (&in)[n], T (&out)[n], F f, T& all, SIM_HERE) {
    T v = in[0];
    for (int i = 1; i < n; ++i) v = f(v, in[i]);
    bool has;
    before(v, has, f, all, where);
    for (int i = 0; i < n; ++i) v = out[i] = has || i ? f(v, in[i]) : in[i];
  }
  template <int n, class F>
  void ExclusiveScan(T (&in)[n], T (&out)[n], T init, F f, T& all, SIM_HERE) {
    T v = in[0];
    for (int i = 1; i < n; ++i) v = f(v, in[i]);
    bool has;
    before(v, has, f, all, where);
    v = has ? f(init, v) : init;
    for (int i = 0; i < n; ++i) {
      const T next = f(v, in[i]);
      out[i] = v, v = next;
    }
  }
  template <int n, class F>
  void InclusiveScan(T (&in)[n], T (&out)[n], F f, SIM_HERE) {
    T all;
    InclusiveScan(in, out, f, all, where);
  }
  template <int n, class F>
  void ExclusiveScan(T (&in)[n], T (&out)[n], T init, F f, SIM_HERE) {
    T all;
    ExclusiveScan(in, out, init, f, all, where);
  }
  template <int n>
  void InclusiveSum(T (&in)[n], T (&out)[n], SIM_HERE) {
    InclusiveScan(in, out, cub::Sum(), where);
  }
  template <int n>
  void ExclusiveSum(T (&in)[n], T (&out)[n], SIM_HERE) {
    ExclusiveScan(in, out, T(), cub::Sum(), where);
  }
  template <int n>
  void InclusiveSum(T (&in)[n], T (&out)[n], T& all, SIM_HERE) {
    InclusiveScan(in, out, cub::Sum(), all, where);
  }
  template <int n>
  void ExclusiveSum(T (&in)[n], T (&out)[n], T& all, SIM_HERE) {
    ExclusiveScan(in, out, T(), cub::Sum(), all, where);
  }
  // One element per thread.
  using One = T[1];
  static One& one(T& v) { return reinterpret_cast<One&>(v); }
  void InclusiveSum(T in, T& out, SIM_HERE) { InclusiveSum(one(in), one(out), where); }
  void ExclusiveSum(T in, T& out, SIM_HERE) { ExclusiveSum(one(in), one(out), where); }
  void InclusiveSum(T in, T& out, T& all, SIM_HERE) { InclusiveSum(one(in), one(out), all, where); }
  void ExclusiveSum(T in, T& out, T& all, SIM_HERE) { ExclusiveSum(one(in), one(out), all, where); }
  void InclusiveScan(T in, T& out, auto f, SIM_HERE) { InclusiveScan(one(in), one(out), f, where); }
  void ExclusiveScan(T in, T& out, T init, auto f, SIM_HERE) {
    ExclusiveScan(one(in), one(out), init, f, where);
  }
};

/// Element i of thread t: t * n + i, or with `_STRIPED` i * threads + t, for transposing kinds too.
template <class T, int x, int n, BlockLoadAlgorithm kind = BLOCK_LOAD_DIRECT, int y = 1, int z = 1,
          int...>
struct BlockLoad {
  using Room = BlockRoom<char, x, y, z>;
  struct TempStorage {};
  BlockLoad() = default;
  BlockLoad(TempStorage&) {}
  static int place(int i) {
    return kind == BLOCK_LOAD_STRIPED ? i * Room::threads + Room::tid() : Room::tid() * n + i;
  }
  void Load(auto from, T (&v)[n]) {
    for (int i = 0; i < n; ++i) v[i] = from[place(i)];
  }
  template <class I, class... D>
  void Load(I from, T (&v)[n], int valid, D... otherwise) {
    for (int i = 0; i < n; ++i) {
      if (place(i) < valid) {
        v[i] = from[place(i)];
      } else {
        ((v[i] = static_cast<T>(otherwise)), ...);
      }
    }
  }
};
template <class T, int x, int n, BlockStoreAlgorithm kind = BLOCK_STORE_DIRECT, int y = 1,
          int z = 1, int...>
struct BlockStore {
  using Room = BlockRoom<char, x, y, z>;
  struct TempStorage {};
  BlockStore() = default;
  BlockStore(TempStorage&) {}
  void Store(auto to, T (&v)[n], int valid = x * y * z * n) {
    for (int i = 0; i < n; ++i) {
      const int at =
          kind == BLOCK_STORE_STRIPED ? i * Room::threads + Room::tid() : Room::tid() * n + i;
      if (at < valid) to[at] = v[i];
    }
  }
};

// --- the device's --------------------------------------------------------------------------------

/// A first call, without room, only says how much is needed.
#define SIM_CUB(...)                        \
  if (!room) return bytes = 1, cudaSuccess; \
  const sim::any::Library library("CUB");   \
  __VA_ARGS__;                              \
  return cudaSuccess

template <class I>
using ValueOf = typename std::iterator_traits<I>::value_type;

/// Pairwise: the error of a sum grows as on a GPU.
template <class T, class I, class F>
T reduced(I i, int64_t n, T init, F& f) {
  if (n < 64) {
    for (; n > 0; --n, ++i) init = f(init, *i);
    return init;
  }
  const int64_t half = n / 2;
  const T left = reduced<T>(i, half, init, f);
  return f(left, reduced<T>(i + (half + 1), n - half - 1, static_cast<T>(i[half]), f));
}

struct DeviceReduce {
  static cudaError_t Reduce(void* room, size_t& bytes, auto in, auto out, int64_t n, auto f,
                            auto init, cudaStream_t = nullptr) {
    SIM_CUB(*out = reduced(in, n, init, f));
  }
  static cudaError_t Sum(void* room, size_t& bytes, auto in, auto out, int64_t n,
                         cudaStream_t = nullptr) {
    return Reduce(room, bytes, in, out, n, cub::Sum(), ValueOf<decltype(in)>());
  }
  static cudaError_t Max(void* room, size_t& bytes, auto in, auto out, int64_t n,
                         cudaStream_t = nullptr) {
    using T = ValueOf<decltype(in)>;
    return Reduce(room, bytes, in, out, n, cub::Max(), std::numeric_limits<T>::lowest());
  }
  static cudaError_t Min(void* room, size_t& bytes, auto in, auto out, int64_t n,
                         cudaStream_t = nullptr) {
    using T = ValueOf<decltype(in)>;
    return Reduce(room, bytes, in, out, n, cub::Min(), std::numeric_limits<T>::max());
  }
  static cudaError_t ReduceByKey(void* room, size_t& bytes, auto keys, auto keys_out, auto values,
                                 auto values_out, auto runs, auto f, int64_t n,
                                 cudaStream_t = nullptr) {
    SIM_CUB(const auto start = keys_out; for (int64_t i = 0; i < n;) {
      const ValueOf<decltype(keys)> key = keys[i];
      ValueOf<decltype(values)> sum = values[i];
      for (++i; i < n && keys[i] == key; ++i) sum = f(sum, values[i]);
      *keys_out++ = key, *values_out++ = sum;
    }* runs = keys_out - start);
  }
};
struct DeviceScan {
  static cudaError_t ExclusiveScan(void* room, size_t& bytes, auto in, auto out, auto f, auto init,
                                   int64_t n, cudaStream_t = nullptr) {
    SIM_CUB(std::exclusive_scan(in, in + n, out, init, f));
  }
  static cudaError_t InclusiveScan(void* room, size_t& bytes, auto in, auto out, auto f, int64_t n,
                                   cudaStream_t = nullptr) {
    SIM_CUB(std::inclusive_scan(in, in + n, out, f));
  }
  static cudaError_t ExclusiveSum(void* room, size_t& bytes, auto in, auto out, int64_t n,
                                  cudaStream_t = nullptr) {
    return ExclusiveScan(room, bytes, in, out, cub::Sum(), ValueOf<decltype(in)>(), n);
  }
  static cudaError_t InclusiveSum(void* room, size_t& bytes, auto in, auto out, int64_t n,
                                  cudaStream_t = nullptr) {
    return InclusiveScan(room, bytes, in, out, cub::Sum(), n);
  }
};
struct DeviceRadixSort {
  template <class T>
  static auto bits(T v, int begin, int end) {
    using U = std::conditional_t<sizeof(T) == 8, uint64_t,
                                 std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
    U u = 0;
    std::memcpy(&u, &v, sizeof v);
    constexpr U top = U{1} << (8 * sizeof(T) - 1);
    if (std::is_floating_point_v<T>) {
      u ^= u & top ? ~U{0} : top;
    } else if (std::is_signed_v<T>) {
      u ^= top;
    }
    if (end - begin < static_cast<int>(8 * sizeof(T)))
      u = u >> begin & ((U{1} << (end - begin)) - 1);
    return u;
  }
#define SIM_SORT(ending, op)                                                                       \
  template <class K, class V>                                                                      \
  static cudaError_t SortPairs##ending(void* room, size_t& bytes, const K* keys, K* keys_out,      \
                                       const V* values, V* values_out, int64_t n, int begin = 0,   \
                                       int end = 8 * sizeof(K), cudaStream_t = nullptr) {          \
    SIM_CUB(std::vector<std::pair<K, V>> all;                                                      \
            for (int64_t i = 0; i < n; ++i) all.emplace_back(keys[i], values[i]);                  \
            std::stable_sort(all.begin(), all.end(),                                               \
                             [=](const auto& a, const auto& b) {                                   \
                               return bits(a.first, begin, end) op bits(b.first, begin, end);      \
                             });                                                                   \
            for (const auto& [key, value]                                                          \
                 : all)* keys_out++ = key,                                                         \
            *values_out++ = value);                                                                \
  }                                                                                                \
  template <class K>                                                                               \
  static cudaError_t SortKeys##ending(void* room, size_t& bytes, const K* keys, K* out, int64_t n, \
                                      int begin = 0, int end = 8 * sizeof(K),                      \
                                      cudaStream_t = nullptr) {                                    \
    SIM_CUB(std::vector<K> all(keys, keys + n); std::stable_sort(                                  \
                all.begin(), all.end(),                                                            \
                [=](K a, K b) { return bits(a, begin, end) op bits(b, begin, end); });             \
            for (K key                                                                             \
                 : all)* out++ = key);                                                             \
  }
  SIM_SORT(, <)
  SIM_SORT(Descending, >)
#undef SIM_SORT
};
struct DeviceSelect {
  static cudaError_t Flagged(void* room, size_t& bytes, auto in, auto flags, auto out, auto count,
                             int64_t n, cudaStream_t = nullptr) {
    SIM_CUB(auto to = out; for (int64_t i = 0; i < n; ++i) if (flags[i])* to++ = in[i];
            *count = to - out);
  }
  static cudaError_t If(void* room, size_t& bytes, auto in, auto out, auto count, int64_t n,
                        auto wanted, cudaStream_t = nullptr) {
    SIM_CUB(*count = std::copy_if(in, in + n, out, wanted) - out);
  }
};
struct DeviceRunLengthEncode {
  static cudaError_t Encode(void* room, size_t& bytes, auto in, auto out, auto counts, auto runs,
                            int64_t n, cudaStream_t = nullptr) {
    return DeviceReduce::ReduceByKey(room, bytes, in, out, ConstantInputIterator<int>(1), counts,
                                     runs, cub::Sum(), n);
  }
};
#undef SIM_CUB

}  // namespace cub

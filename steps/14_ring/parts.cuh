// Step 14 -- which rank holds which rows, and what a hop computes; copies of rows.
// Idea      Each rank holds a shard of the rows of Q, K and V: one chunk, or two. K and V travel
//           around the ring: in hop h a rank has those of the rank h places before it. With a
//           causal mask one chunk per rank is unbalanced: the first rank sees only its own keys,
//           the last one sees all. Two chunks, one from each end, are balanced
// Still bad K and V also pass ranks that do not use them
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/counts/device_memory.h"
#include "common/dialect/cuda.h"
#include "common/dialect/eight.h"
#include "common/harness/ranks.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"

namespace step14 {

using fa::bf16;

// --- ranks and hops ------------------------------------------------------------------------------

enum class Cut {
  plain,   // rank r has chunk r of R
  zigzag,  // rank r has chunks r and 2R-1-r of 2R
};

inline fa::Rows chunk_of(int N, int i, int chunks) {
  return {int(int64_t(N) * i / chunks), int(int64_t(N) * (i + 1) / chunks)};
}

// A rank's rows, in the order of the sequence, so its own keys need only the usual causal mask.
inline std::vector<fa::Rows> rows_of(Cut cut, int N, int rank, int ranks) {
  if (cut == Cut::plain) return {chunk_of(N, rank, ranks)};
  return {chunk_of(N, rank, 2 * ranks), chunk_of(N, 2 * ranks - 1 - rank, 2 * ranks)};
}

// What a hop computes: rows of this rank with keys of rank `from`, each counted from the first that
// its rank holds. Not a thread block.
struct Block {
  fa::Rows rows, keys;
  bool causal = false;  // row i sees keys 0 .. i
  bool empty() const { return rows.size() == 0 || keys.size() == 0; }
};

// Zig-zag: early chunks precede all late chunks, and a smaller rank's late chunk follows everything
// that this rank has. All rows see the early chunk of a smaller rank; the late rows see all keys of
// a larger rank. Either way, each hop computes half of the scores, on each rank.
inline Block block_of(Cut cut, int N, bool causal, int rank, int from, int ranks) {
  const std::vector<fa::Rows> mine = rows_of(cut, N, rank, ranks),
                              theirs = rows_of(cut, N, from, ranks);
  const fa::Rows all_rows{0, fa::count_rows(mine)}, all_keys{0, fa::count_rows(theirs)};
  if (!causal || from == rank) return {all_rows, all_keys, causal};
  if (cut == Cut::plain) return from < rank ? Block{all_rows, all_keys} : Block{};
  if (from < rank) return {all_rows, {0, theirs[0].size()}};
  return {{mine[0].size(), all_rows.end}, all_keys};
}

inline void require_rows(Cut cut, const fa::Problem& p, int ranks) {
  const int chunks = cut == Cut::plain ? ranks : 2 * ranks;
  if (p.N >= chunks) return;
  throw fa::UsageError("--n " + std::to_string(p.N) + ": " + std::to_string(ranks) +
                       " ranks need at least " + std::to_string(chunks) + " rows");
}

constexpr int kRowThreads = 256;  // threads per block of these kernels
constexpr int kFeatures = 8;      // features of a row per thread

// --- rows ---------------------------------------------------------------------------------------

// A range of rows in a longer tensor and in a shorter one; the same in each head.
struct RowsOf {
  int N, row0;      // longer tensor (kept): its rows per head, and the range's first row
  int n, partial0;  // shorter tensor (partial): the same
  int rows;         // rows in the range
};

template <int d>
struct Place {
  int bh, r, x;
  __device__ explicit Place(int rows) {
    const size_t i = size_t(blockIdx.x) * kRowThreads + threadIdx.x;
    x = int(i % (d / kFeatures)) * kFeatures;
    r = int(i / (d / kFeatures) % rows), bh = int(i / (d / kFeatures) / rows);
  }
  __device__ size_t kept(const RowsOf& at) const { return size_t(bh) * at.N + at.row0 + r; }
  __device__ size_t partial(const RowsOf& at) const { return size_t(bh) * at.n + at.partial0 + r; }
};

// Copies rows of a longer tensor to a shorter one, or back.
template <class E, bool kBack>
__global__ void copy_rows_kernel(E* kept,     // [B*H, N, width]
                                 E* partial,  // [B*H, n, width]
                                 RowsOf at, int width, int heads) {
  const size_t i = size_t(blockIdx.x) * kRowThreads + threadIdx.x;
  const int x = int(i % width), r = int(i / width % at.rows);
  const size_t bh = i / width / at.rows;
  if (bh >= size_t(heads)) return;  // legal: no barrier follows
  E& a = kept[(bh * at.N + at.row0 + r) * width + x];
  E& b = partial[(bh * at.n + at.partial0 + r) * width + x];
  (kBack ? a : b) = kBack ? b : a;  // back: from b to a
}

// --- host ---------------------------------------------------------------------------------------

inline fa::LaunchConfig row_blocks(size_t heads, int rows, int threads) {
  return {dim3(unsigned((heads * rows * threads + kRowThreads - 1) / kRowThreads)),
          dim3(kRowThreads)};
}

// `from` is the longer tensor; a row has `width` elements of type E.
template <class E>
void cut_rows(size_t heads, int width, const void* from, void* to, const RowsOf& at) {
  fa::launch(copy_rows_kernel<E, false>, row_blocks(heads, at.rows, width),
             static_cast<E*>(const_cast<void*>(from)), static_cast<E*>(to), at, width, int(heads));
}
template <class E>
void paste_rows(size_t heads, int width, const void* from, void* to, const RowsOf& at) {
  fa::launch(copy_rows_kernel<E, true>, row_blocks(heads, at.rows, width), static_cast<E*>(to),
             static_cast<E*>(const_cast<void*>(from)), at, width, int(heads));
}

// --- device memory -------------------------------------------------------------------------------

template <class T>
fa::DeviceMemory<T> memory(const char* name, size_t n) {
  fa::DeviceMemory<T> made(name, n);
  if (made) return made;
  throw fa::ResourceError(std::string(name) + ": the device cannot allocate " +
                          std::to_string(n * sizeof(T) >> 20) +
                          " MiB: try a smaller --n, or more ranks");
}

class Workspace {
 public:
  explicit Workspace(const std::vector<fa::Scratch>& pieces) {
    for (const fa::Scratch& s : pieces) {
      auto& held = memory_.emplace_back(memory<std::byte>(s.name.c_str(), s.bytes));
      if (s.zeroed) held.fill(0);
      pointers_[s.name] = held.get();
      bytes_ += s.bytes;
    }
  }
  const std::map<std::string, void*>* pointers() const { return &pointers_; }
  size_t bytes() const { return bytes_; }

 private:
  std::vector<fa::DeviceMemory<>> memory_;
  std::map<std::string, void*> pointers_;
  size_t bytes_ = 0;
};

}  // namespace step14

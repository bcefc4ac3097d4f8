// Step 14 -- which rank holds which rows, and what a hop computes.
// Idea      Each rank holds a chunk of the rows of Q, K and V. K and V travel around the ring: in
//           hop h a rank has those of the rank h places behind it. Its rows see all of them, none,
//           or, of its own, those up to the diagonal. With a causal mask one chunk per rank is
//           unbalanced: the first rank sees only its own keys, the last one sees all. Two chunks,
//           one from each end, are balanced
// Still bad K and V also pass ranks that do not use them
#pragma once

#include <vector>
#include "common/harness/ranks.h"
#include "common/harness/tiles.h"

namespace step14 {

enum class Cut {
  plain,   // rank r has chunk r of R
  zigzag,  // rank r has chunks r and 2R-1-r of 2R
};

// Chunk i of `chunks` nearly equal ones.
inline fa::Rows chunk_of(int N, int i, int chunks) {
  return {int(int64_t(N) * i / chunks), int(int64_t(N) * (i + 1) / chunks)};
}

// The rows of a rank, which it holds in the order of the sequence. Its own keys therefore need no
// mask but step 06's.
inline std::vector<fa::Rows> rows_of(Cut cut, int N, int rank, int ranks) {
  if (cut == Cut::plain) return {chunk_of(N, rank, ranks)};
  return {chunk_of(N, rank, 2 * ranks), chunk_of(N, 2 * ranks - 1 - rank, 2 * ranks)};
}

// What a hop computes: these rows of the rank with these keys of another rank, counted as each
// holds them.
struct Block {
  fa::Rows rows, keys;
  bool causal = false;  // row i sees keys 0 .. i
  bool empty() const { return rows.size() == 0 || keys.size() == 0; }
};

// Zig-zag: early chunks are earlier than all late chunks, and a smaller rank's late chunk is later
// than everything that this rank has. All rows see the early chunk of a smaller rank; the late rows
// see all keys of a larger rank. Either way, each hop computes half of the scores, on each rank.
inline Block block_of(Cut cut, int N, bool causal, int rank, int from, int ranks) {
  const std::vector<fa::Rows> mine = rows_of(cut, N, rank, ranks),
                              theirs = rows_of(cut, N, from, ranks);
  const fa::Rows all_rows{0, fa::count_rows(mine)}, all_keys{0, fa::count_rows(theirs)};
  if (!causal || from == rank) return {all_rows, all_keys, causal};
  if (cut == Cut::plain) return from < rank ? Block{all_rows, all_keys} : Block{};
  if (from < rank) return {all_rows, {0, theirs[0].size()}};
  return {{mine[0].size(), all_rows.end}, all_keys};
}

// The scores of a block that the mask leaves.
inline uint64_t scores_of(const Block& b) {
  const uint64_t rows = b.rows.size(), keys = b.keys.size();
  return b.causal ? rows * (rows + 1) / 2 : rows * keys;
}

// Hop h of the forward has the keys of the rank h places behind: K and V travel to the next rank.
inline int forward_source(int rank, int hop, int ranks) { return (rank - hop + ranks) % ranks; }
// The backward turns the other way and begins with the keys that the forward's last hop left here.
// Each rank's own keys are then the last, and their dK and dV, to which all others have added,
// arrive during that hop.
inline int backward_source(int rank, int hop, int ranks) { return (rank + 1 + hop) % ranks; }

inline fa::RankPrediction predict(Cut cut, const fa::Problem& p, int rank, int ranks) {
  const auto numbers = [&](int source) {  // of K or V of a rank
    return uint64_t(fa::count_rows(rows_of(cut, p.N, source, ranks))) * p.kv_heads() * p.d;
  };
  fa::RankPrediction predicted;
  for (int hop = 0; hop < ranks; ++hop) {
    const int from = forward_source(rank, hop, ranks);
    const Block block = block_of(cut, p.N, p.causal, rank, from, ranks);
    predicted.scores.push_back(p.heads() * scores_of(block));
    const uint64_t held = numbers(backward_source(rank, hop, ranks));
    const size_t size = fa::bytes_of(p.dtype);
    if (hop + 1 < ranks) predicted.forward_bytes += 2 * size * numbers(from);
    if (hop + 2 < ranks) predicted.backward_bytes += 2 * size * held;           // K, V
    if (hop + 1 < ranks) predicted.backward_bytes += 2 * sizeof(float) * held;  // dK, dV
  }
  return predicted;
}

inline void require_rows(Cut cut, const fa::Problem& p, int ranks) {
  const int chunks = cut == Cut::plain ? ranks : 2 * ranks;
  if (p.N >= chunks) return;
  throw fa::UsageError("--n " + std::to_string(p.N) + ": " + std::to_string(ranks) +
                       " ranks need at least " + std::to_string(chunks) + " rows");
}

// For kernels that know one N, of rows and of keys.
inline void require_squares(const fa::Problem& p, int ranks) {
  if (p.N % ranks == 0) return;
  throw fa::UsageError("--n " + std::to_string(p.N) + ": for " + std::to_string(ranks) +
                       " ranks this variant needs a multiple of " + std::to_string(ranks));
}

}  // namespace step14

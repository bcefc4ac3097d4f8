// Step 14 -- who holds which rows, and what a hop computes.
// Idea      Each rank holds a chunk of the rows of Q, K and V. K and V travel round the ring: in
//           hop h a rank has those of the rank h places behind it. Of them its rows see all, none,
//           or, of its own, what is not above the diagonal. With a causal mask one chunk each is
//           unfair: the first rank sees its own keys only, the last one all. Two chunks, one from
//           each end, are fair
// Still bad K and V pass ranks that do not look at them
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

// The rows of a rank. It holds them one behind the other, so its own keys need no other mask than
// step 06's: what comes later in the sequence also comes later here.
inline std::vector<fa::Rows> rows_of(Cut cut, int N, int rank, int ranks) {
  if (cut == Cut::plain) return {chunk_of(N, rank, ranks)};
  return {chunk_of(N, rank, 2 * ranks), chunk_of(N, 2 * ranks - 1 - rank, 2 * ranks)};
}

// What a hop computes: these rows of the rank with these keys of another one, as each holds them.
struct Block {
  fa::Rows rows, keys;
  bool causal = false;  // row i sees keys 0 .. i
  bool empty() const { return rows.size() == 0 || keys.size() == 0; }
};

// Zig-zag: a rank's early chunk is earlier than all late chunks, and the late chunk of one with a
// smaller number is later than all that this rank has. Whoever comes from a smaller rank shows its
// early chunk to all rows; whoever comes from a larger one shows all its keys to the late chunk.
// Either way half of what is there, in each hop, on each rank.
inline Block block_of(Cut cut, int N, bool causal, int rank, int from, int ranks) {
  const std::vector<fa::Rows> mine = rows_of(cut, N, rank, ranks),
                              theirs = rows_of(cut, N, from, ranks);
  const fa::Rows all_rows{0, fa::count_rows(mine)}, all_keys{0, fa::count_rows(theirs)};
  if (!causal || from == rank) return {all_rows, all_keys, causal};
  if (cut == Cut::plain) return from < rank ? Block{all_rows, all_keys} : Block{};
  if (from < rank) return {all_rows, {0, theirs[0].size()}};
  return {{mine[0].size(), all_rows.end}, all_keys};
}

// Scores that the mask leaves of it.
inline uint64_t scores_of(const Block& b) {
  const uint64_t rows = b.rows.size(), keys = b.keys.size();
  return b.causal ? rows * (rows + 1) / 2 : rows * keys;
}

// Hop h of the forward has the keys of the rank h places behind: K and V travel to the next rank.
inline int forward_source(int rank, int hop, int ranks) { return (rank - hop + ranks) % ranks; }
// The backward goes the other way round and begins with what the forward's last hop left here, so
// that the last keys of each rank are its own: their dK and dV, which all others have added to,
// come home then.
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

// Step 14 -- the ring's forward.
// Idea      Each rank computes with the K and V that it has while those of the next hop arrive.
//           After as many hops as ranks, each row has seen all keys. No rank holds more than three
//           shards of K and V: its own and two in transit (zig-zag with a mask: half of one more)
// Changed   new: the host's loop over the hops, which calls 10's kernels and 1_merge unchanged
// Traffic   sent per rank  2*2*BHkv*(R-1)/R*N*d B   K and V, bf16: of R - 1 ranks
//           HBM            10's of each block; the merge's; zig-zag with a mask: the copies'
// Launch    per hop: 10's; after hop 0 the merge, once per chunk. Zig-zag with a mask also copies
//           late Q once, and early K and V in each hop with keys of a smaller rank
// Owns      rank: N/R rows
// Still bad where a hop is shorter than its messages, the GPU waits
#pragma once

#include "steps/14_ring/1_merge.cuh"

namespace step14 {

// In hop h of the forward a rank has the keys of rank - h: K and V travel to the next rank.
inline int forward_source(int rank, int hop, int ranks) { return (rank - hop + ranks) % ranks; }

// K and V of a rank, in whichever buffer: [B*Hkv, rows, d] each.
template <class T>
struct Keys {
  const T *K = nullptr, *V = nullptr;
};

// A rank's part of the problem: its tensors have only its own rows. Kernels: the functions that
// launch a step's kernels, as in hopper.cuh.
template <class Kernels, Cut cut>
class RingForward : public fa::RankAttention {
 public:
  using T = typename Kernels::T;

  RingForward(const fa::Problem& p, fa::Ranks& ranks)
      : whole_(p), ranks_(ranks), me_(ranks.rank()), R_(ranks.size()) {
    for (int r = 0; r < R_; ++r) most_ = std::max(most_, rows(r));
    taken_.emplace(Kernels::forward_workspace(block_problem({{0, most_}, {0, most_}, p.causal})));
    if (R_ == 1) return;
    for (auto& buffer : moving_) buffer = buffer_of<T>("K, V of a hop", 2 * most_keys());
    partial_LSE_ = buffer_of<float>("LSE of a hop", p.heads() * most_);
    if (R_ > 2) sum_ = buffer_of<float>("O so far", p.heads() * most_ * p.d);  // else one merge
  }

  // Messages wait for the kernels queued before start() on both ranks, kernels after finish() for
  // this rank's messages: so a hop may receive into what the previous one computed with or sent.
  void forward(const fa::Tensors<void>& untyped) override {
    const fa::Tensors<T> t = fa::typed<T>(untyped);
    merged_.assign(2, 0);  // a rank has one chunk, or two
    if (meets_larger_ranks()) {
      if (!late_Q_) late_Q_ = buffer_of<T>("Q, late", whole_.heads() * late_rows().rows * whole_.d);
      cut_late(t.Q, late_Q_.get());
    }
    Keys<T> held{t.K, t.V};
    for (int hop = 0; hop < R_; ++hop) {
      const int from = forward_source(me_, hop, R_);
      const bool last = hop + 1 == R_;
      Keys<T> next;
      if (!last) {
        const int coming = forward_source(me_, hop + 1, R_);
        next = room(hop % 2, coming);
        ranks_.start("K, V of rank " + std::to_string(coming), keys_to((me_ + 1) % R_, held, from),
                     keys_to((me_ + R_ - 1) % R_, next, coming));
      }
      ranks_.computing("forward, hop " + std::to_string(hop));  // in the trace
      const Block b = block(from);
      if (!b.empty()) attend(t, b, held, from, thread_blocks(last ? 0 : ranks_.busy_sms()));
      if (!last) {
        ranks_.finish();
        held = next;
      }
    }
    left_ = held;
  }

  size_t workspace_bytes() const override { return bytes_ + taken_->bytes(); }

 protected:
  int rows(int rank) const { return fa::count_rows(rows_of(cut, whole_.N, rank, R_)); }
  Block block(int from) const { return block_of(cut, whole_.N, whole_.causal, me_, from, R_); }
  fa::Problem block_problem(const Block& b) const {
    fa::Problem p = whole_;
    p.N = b.rows.size(), p.Nk = b.keys.size(), p.causal = b.causal;
    return p;
  }
  template <class E>
  fa::DeviceMemory<E> buffer_of(const char* name, size_t n) {
    bytes_ += n * sizeof(E);
    return memory<E>(name, n);
  }
  size_t key_elements(int rank) const { return whole_.kv_heads() * rows(rank) * whole_.d; }  // of K
  size_t most_keys() const { return whole_.kv_heads() * most_ * whole_.d; }
  Keys<T> room(int buffer, int rank) const {  // for K and V of a rank: V directly after K
    T* K = moving_[buffer].get();
    return {K, K + key_elements(rank)};
  }
  std::vector<fa::Message> keys_to(int peer, const Keys<T>& keys, int rank) const {
    return {fa::message(peer, keys.K, key_elements(rank)),
            fa::message(peer, keys.V, key_elements(rank))};
  }

  // Where the rows of this rank's late chunk are in its tensors. Late rows and early keys are
  // copied, because the kernels expect each head's rows directly after the previous head's.
  RowsOf late_rows() const {
    const int N = rows(me_), row0 = rows_of(cut, whole_.N, me_, R_)[0].size();
    return {.N = N, .row0 = row0, .n = N - row0, .partial0 = 0, .rows = N - row0};
  }
  static constexpr int kVector = 16 / sizeof(T);  // elements that a thread copies
  void cut_late(const T* from, T* to) const {
    cut_rows<uint4>(whole_.heads(), whole_.d / kVector, from, to, late_rows());
  }
  static bool is_late(const Block& b) { return b.rows.begin > 0; }
  // With a mask only late rows see keys of larger ranks, of which the last rank has none.
  bool meets_larger_ranks() const { return cut == Cut::zigzag && whole_.causal && me_ + 1 < R_; }

  // The keys of a block: all of a rank's, or a copy of its early ones, half of them, rounded up.
  Keys<T> keys_of(const Block& b, const Keys<T>& held, int from) {
    if (b.keys.size() == rows(from)) return held;
    if (!early_) early_ = buffer_of<T>("K, V, early", most_keys() + 2 * most_keys() / most_);
    T *K = early_.get(), *V = K + early_.size() / 2;
    const RowsOf at{
        .N = rows(from), .row0 = 0, .n = b.keys.size(), .partial0 = 0, .rows = b.keys.size()};
    cut_rows<uint4>(whole_.kv_heads(), whole_.d / kVector, held.K, K, at);
    cut_rows<uint4>(whole_.kv_heads(), whole_.d / kVector, held.V, V, at);
    return {K, V};
  }

  const fa::Problem whole_;
  fa::Ranks& ranks_;
  const int me_, R_;
  fa::DeviceMemory<T> late_Q_;  // [B*H, late rows, d]
  Keys<T> left_;                // of the last hop: the backward begins with them

  // Blocks of 10's persistent kernel, one per SM that messages leave free: only NCCL's use SMs.
  int thread_blocks(int busy_sms) const { return std::max(1, whole_.gpu.sms - busy_sms); }

  void attend(const fa::Tensors<T>& t, const Block& b, const Keys<T>& held, int from,
              int thread_blocks) {
    const bool own = from == me_;  // the first hop: nothing to merge with
    if (!own && !partial_O_) {     // allocated here: with a mask, rank 0 of plain merges nothing
      partial_O_ = buffer_of<T>("O of a hop", whole_.heads() * most_ * whole_.d);
    }
    const Keys<T> keys = keys_of(b, held, from);
    fa::Tensors<T> tensors{.Q = is_late(b) ? late_Q_.get() : t.Q, .K = keys.K, .V = keys.V};
    tensors.O = own ? t.O : partial_O_.get();
    tensors.LSE = own ? t.LSE : partial_LSE_.get();
    tensors.workspace = taken_->pointers();
    Kernels::forward(block_problem(b), tensors, thread_blocks);
    if (!own) merge_block(t, b);
  }

  // O so far is bf16, in O, before a row's first merge and after its last; else fp32, in sum_.
  void merge_block(const fa::Tensors<T>& t, const Block& b) {
    const std::vector<fa::Rows> chunks = rows_of(cut, whole_.N, me_, R_);
    int row0 = 0;  // of chunk i, in this rank's tensors
    for (size_t i = 0; i < chunks.size(); row0 += chunks[i].size(), ++i) {
      if (row0 < b.rows.begin) continue;
      const RowsOf at{.N = rows(me_),
                      .row0 = row0,
                      .n = b.rows.size(),
                      .partial0 = row0 - b.rows.begin,
                      .rows = chunks[i].size()};
      const bool first = merged_[i] == 0, last = ++merged_[i] == merges_of(row0);
      const auto merge_into = [&](const auto* old, auto* sum) {
        merge_rows(whole_.d, whole_.heads(), old, sum, t.LSE, partial_O_.get(), partial_LSE_.get(),
                   at);
      };
      if (first && last) merge_into(t.O, t.O);
      if (first && !last) merge_into(t.O, sum_.get());
      if (!first && last) merge_into(sum_.get(), t.O);
      if (!first && !last) merge_into(sum_.get(), sum_.get());
    }
  }

  // How many merges the rows of a chunk have: one per other rank with keys that they see.
  int merges_of(int row0) const {
    int n = 0;
    for (int from = 0; from < R_; ++from) {
      const Block b = block(from);
      n += from != me_ && !b.empty() && b.rows.begin <= row0;
    }
    return n;
  }

  int most_ = 0;                    // rows of the rank that has the most
  std::optional<Workspace> taken_;  // 10's counters of work tiles
  size_t bytes_ = 0;
  fa::DeviceMemory<T> moving_[2];              // K and V: arriving, and in use
  fa::DeviceMemory<T> early_;                  // K and V of a rank's early chunk
  fa::DeviceMemory<T> partial_O_;              // of one block of keys
  fa::DeviceMemory<float> partial_LSE_, sum_;  // LSE of one block of keys; O so far
  std::vector<int> merged_;                    // how often, each chunk's rows in this forward
};

}  // namespace step14

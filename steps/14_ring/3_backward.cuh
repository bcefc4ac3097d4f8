// Step 14 -- the ring's backward.
// Idea      dQ belongs to a rank's rows and stays. dK and dV belong to keys that travel, so their
//           sums travel too, in fp32, one hop later. A rank begins with the keys that the forward
//           left, those of the rank after it. In the forward's direction its own would be next; in
//           the other direction they are last, and their sums arrive during the last hop
// Changed   since 14 2_ring, whose class it extends: K and V travel the other way, dK and dV with
//           them; 11's backward, in three parts: before, in and after the hops
// Traffic   sent per rank  2*2*BHkv*(R-2)/R*N*d + 2*4*BHkv*(R-1)/R*N*d B   K, V; dK, dV
//           HBM            11's of each block; dK and dV of a block, loaded; their sums; the copies
// Launch    columns; per hop: 11's backward, add; convert. Zig-zag with a mask: also copies and
//           columns of the late rows, copies of early K and V, and add_sums
// Owns      rank: dQ, dK and dV of N/R rows
// Still bad the order of 11's additions to dQ changes from run to run
#pragma once

#include "steps/14_ring/2_ring.cuh"

namespace step14 {

inline int backward_source(int rank, int hop, int ranks) { return (rank + 1 + hop) % ranks; }

// Gradients merge by addition, as P has the final LSE. old: null if there are none yet.
template <int d, class Old, class New, class T>
__global__ void add_kernel(const Old* old,    // [heads, N, d], rows of the keys' rank
                           New* sum,          // [B*H, N, d], perhaps the same memory
                           const T* partial,  // [heads, n, d]
                           RowsOf at, int heads) {
  const Place<d> place(at.rows);
  if (place.bh >= heads) return;  // legal: no barrier follows
  float a[kFeatures] = {}, b[kFeatures];
  if (old) fa::load_eight(old + place.kept(at) * d + place.x, a);
  fa::load_eight(partial + place.partial(at) * d + place.x, b);
  UNROLL
  for (int i = 0; i < kFeatures; ++i) a[i] += b[i];
  fa::store_eight(sum + place.kept(at) * d + place.x, a);
}

// --- host ----------------------------------------------------------------------------------------

template <class Old, class New, class T>
void add_rows(int d, size_t heads, const Old* old, New* sum, const T* partial, const RowsOf& at) {
  fa::dispatch_d<64, 128>(d, [&](auto D) {
    fa::launch(add_kernel<D, Old, New, T>, row_blocks(heads, at.rows, D / kFeatures), old, sum,
               partial, at, int(heads));
  });
}

template <class Kernels, Cut cut>
class Ring : public RingForward<Kernels, cut> {
 public:
  using Forward = RingForward<Kernels, cut>;
  using T = typename Kernels::T;

  Ring(const fa::Problem& p, fa::Ranks& ranks) : Forward(p, ranks) {}

  void backward(const fa::Tensors<void>& untyped) override {
    if (!row_workspace_) allocate();
    ranks_.computing("backward, before the hops");
    const fa::Problem rank_problem = block_problem(block(me_));
    const fa::Tensors<T> t = fa::typed<T>(untyped);
    fa::Tensors<T> rank_tensors = t, late_tensors;  // of this rank's rows; of its late rows alone
    rank_tensors.workspace = row_workspace_->pointers();
    Kernels::prepare_rows(rank_problem, rank_tensors);
    if (meets_larger_ranks()) late_tensors = prepare_late_rows(rank_tensors);

    Keys<T> held = left_;  // later hops may overwrite it: each backward needs a forward before it
    for (int hop = 0; hop < R_; ++hop) {
      const int from = backward_source(me_, hop, R_);
      const bool last = hop + 1 == R_;
      if (last) held = {t.K, t.V};
      const Keys<T> next = exchange(hop, from, held);
      ranks_.computing("backward, hop " + std::to_string(hop));
      const Block b = block(from);
      if (!b.empty()) differentiate(t, is_late(b) ? late_tensors : rank_tensors, b, held, from);
      if (moves(hop)) ranks_.finish();  // add() and the next hop wait for the messages
      if (R_ > 1) add(t, b, hop, from);
      if (next.K) held = next;  // else the next hop has this rank's own
    }
    ranks_.computing("backward, after the hops");
    if (meets_larger_ranks()) {
      Kernels::add_sums(rank_problem, rank_tensors, late_problem(), late_tensors, late_rows());
    }
    Kernels::finish_rows(rank_problem, rank_tensors);
  }

  size_t workspace_bytes() const override {
    return Forward::workspace_bytes() + (row_workspace_ ? row_workspace_->bytes() : 0) +
           (late_workspace_ ? late_workspace_->bytes() : 0);
  }

 protected:
  using Forward::block, Forward::block_problem, Forward::buffer_of, Forward::cut_late;
  using Forward::is_late, Forward::key_elements, Forward::keys_of, Forward::keys_to,
      Forward::late_Q_;
  using Forward::late_rows, Forward::left_, Forward::me_, Forward::meets_larger_ranks;
  using Forward::most_keys, Forward::R_, Forward::ranks_, Forward::room, Forward::rows;
  using Forward::whole_;

  void allocate() {
    row_workspace_.emplace(Kernels::row_workspace(block_problem(block(me_))));
    if (R_ == 1) return;
    partial_ = this->template buffer_of<T>("dK, dV of a hop", 2 * most_keys());
    for (auto& sum : sums_) {
      sum = this->template buffer_of<float>("dK, dV so far", 2 * most_keys());
    }
  }
  void allocate_late() {
    const fa::Problem p = late_problem();
    late_workspace_.emplace(Kernels::row_workspace(p));
    for (auto* tensor : {&late_O_, &late_dO_}) {
      *tensor = this->template buffer_of<T>("O, dO, late", p.heads() * p.N * p.d);
    }
    late_LSE_ = this->template buffer_of<float>("LSE, late", p.heads() * p.N);
  }
  fa::Problem late_problem() const {  // of rows alone: its Nk and mask are not used
    fa::Problem p = block_problem(block(me_));
    p.N = late_rows().rows, p.causal = false;
    return p;
  }

  // Copies the late rows to separate tensors, with separate sums of dQ. The forward copied Q.
  fa::Tensors<T> prepare_late_rows(const fa::Tensors<T>& rank_tensors) {
    if (!late_workspace_) allocate_late();
    cut_late(rank_tensors.O, late_O_.get());
    cut_late(rank_tensors.dO, late_dO_.get());
    cut_rows<float>(whole_.heads(), 1, rank_tensors.LSE, late_LSE_.get(), late_rows());
    fa::Tensors<T> late{.Q = late_Q_.get(), .O = late_O_.get(), .LSE = late_LSE_.get()};
    late.dO = late_dO_.get(), late.workspace = late_workspace_->pointers();
    Kernels::prepare_rows(late_problem(), late);
    return late;
  }

  void differentiate(const fa::Tensors<T>& t, fa::Tensors<T> of_block, const Block& b,
                     const Keys<T>& held, int from) {
    const Keys<T> keys = keys_of(b, held, from);
    of_block.K = keys.K, of_block.V = keys.V;
    of_block.dK = R_ == 1 ? t.dK : partial_.get();
    of_block.dV = R_ == 1 ? t.dV : partial_.get() + partial_.size() / 2;
    Kernels::backward(block_problem(b), of_block);
  }

  bool moves(int hop) const { return hop + 2 < R_ || hop > 0; }  // K and V; sums

  // Receives K and V of the next hop, unless they are this rank's own. The forward's last arrived
  // in its hop R - 2, in buffer R % 2, so hop 0 receives into the other one. Sends dK and dV of the
  // previous hop, to which this rank has added, and receives those of this hop.
  Keys<T> exchange(int hop, int from, const Keys<T>& held) {
    const int to = (me_ + R_ - 1) % R_, back = (me_ + 1) % R_;
    std::vector<fa::Message> send, receive;
    Keys<T> next;
    if (hop + 2 < R_) {
      const int coming = backward_source(me_, hop + 1, R_);
      next = room((R_ - 1 + hop) % 2, coming);
      send = keys_to(to, held, from), receive = keys_to(back, next, coming);
    }
    if (hop > 0) {
      const int gone = backward_source(me_, hop - 1, R_);
      send.push_back(fa::message(to, sums_[(hop + 1) % 2].get(), 2 * key_elements(gone)));
      receive.push_back(fa::message(back, sums_[hop % 2].get(), 2 * key_elements(from)));
    }
    if (moves(hop)) ranks_.start("K, V; dK, dV of rank " + std::to_string(from), send, receive);
    return next;
  }

  // Adds this block's share, in fp32, to the sums that arrived; the last hop stores dK and dV. In
  // hop 0 none arrived: a share of all keys is stored, and one of fewer is added to zeros. dV's
  // sums directly follow dK's, which makes one message.
  void add(const fa::Tensors<T>& t, const Block& b, int hop, int from) {
    float* dK = sums_[hop % 2].get();
    float* dV = dK + key_elements(from);
    const bool all_keys = !b.empty() && b.keys.size() == rows(from);
    if (hop == 0 && !all_keys) fa::zero_device_memory(dK, 2 * key_elements(from) * sizeof(float));
    if (b.empty()) return;
    const RowsOf at{
        .N = rows(from), .row0 = 0, .n = b.keys.size(), .partial0 = 0, .rows = b.keys.size()};
    const T *partial_K = partial_.get(), *partial_V = partial_K + partial_.size() / 2;
    const auto sum = [&](const float* old, auto* to, const T* partial) {
      if (hop == 0 && all_keys) old = nullptr;  // there is no sum yet
      add_rows(whole_.d, whole_.kv_heads(), old, to, partial, at);
    };
    if (hop + 1 == R_) {
      sum(dK, t.dK, partial_K), sum(dV, t.dV, partial_V);
    } else {
      sum(dK, dK, partial_K), sum(dV, dV, partial_V);
    }
  }

  // For prepare_rows, with dQ's sums: of all rows; of the late ones.
  std::optional<Workspace> row_workspace_, late_workspace_;
  fa::DeviceMemory<T> partial_;      // dK and dV of one block
  fa::DeviceMemory<float> sums_[2];  // dK and dV so far, which travel
  fa::DeviceMemory<T> late_O_, late_dO_;
  fa::DeviceMemory<float> late_LSE_;
};

// --- for the program -----------------------------------------------------------------------------

inline uint64_t scores_of(const Block& b) {
  const uint64_t rows = b.rows.size(), keys = b.keys.size();
  return b.causal ? rows * (rows + 1) / 2 : rows * keys;
}

inline fa::RankPrediction predict(Cut cut, const fa::Problem& p, int rank, int ranks) {
  const auto elements = [&](int source) {  // of K or V of a rank
    return uint64_t(fa::count_rows(rows_of(cut, p.N, source, ranks))) * p.kv_heads() * p.d;
  };
  fa::RankPrediction predicted;
  for (int hop = 0; hop < ranks; ++hop) {
    const int from = forward_source(rank, hop, ranks);
    const Block block = block_of(cut, p.N, p.causal, rank, from, ranks);
    predicted.scores.push_back(p.heads() * scores_of(block));
    const uint64_t held = elements(backward_source(rank, hop, ranks));
    const size_t size = fa::bytes_of(p.dtype);
    if (hop + 1 < ranks) predicted.forward_bytes += 2 * size * elements(from);
    if (hop + 2 < ranks) predicted.backward_bytes += 2 * size * held;           // K, V
    if (hop + 1 < ranks) predicted.backward_bytes += 2 * sizeof(float) * held;  // dK, dV
  }
  return predicted;
}

template <class Kernels, Cut cut>
std::shared_ptr<const fa::Sharding> ring() {
  fa::Sharding s;
  s.validate = [](const fa::Problem& p, int ranks) { require_rows(cut, p, ranks); };
  s.rows = [](const fa::Problem& p, int rank, int ranks) { return rows_of(cut, p.N, rank, ranks); };
  s.make = [](const fa::Problem& p, fa::Ranks& ranks) -> std::unique_ptr<fa::RankAttention> {
    return std::make_unique<Ring<Kernels, cut>>(p, ranks);
  };
  s.predict = [](const fa::Problem& p, int rank, int ranks) {
    return step14::predict(cut, p, rank, ranks);
  };
  return std::make_shared<const fa::Sharding>(s);
}

}  // namespace step14

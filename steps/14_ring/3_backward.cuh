// Step 14 -- the ring's backward.
// Idea      dQ belongs to a rank's rows and stays. dK and dV belong to keys that travel, so their
//           sums travel too, in fp32, one hop behind. A rank begins with the keys that the forward
//           left, those of the rank after it. In the forward's direction its own would be next; in
//           the other direction they are last, and their sums arrive during the last hop
// Changed   nothing in 2_ring, whose class it extends
// Traffic   sent per rank  2*2*BHkv*(R-2)/R*N*d + 2*4*BHkv*(R-1)/R*N*d B   K, V; dK, dV
//           HBM            11's of each block; dK and dV of a block, loaded; their sums; the copies
// Launch    columns; per hop: 11's backward, add; convert. Zig-zag with a mask: also copies and
//           columns of the late rows, copies of early K and V, and add_sums
// Owns      rank: dQ, dK and dV of N/R rows
// Still bad the order of 11's additions to dQ changes from run to run
#pragma once

#include "steps/14_ring/2_ring.cuh"

namespace step14 {

template <class Kernels, Cut cut>
class Ring : public RingForward<Kernels, cut> {
 public:
  using Forward = RingForward<Kernels, cut>;
  using T = typename Kernels::T;

  Ring(const fa::Problem& p, fa::Ranks& ranks) : Forward(p, ranks) {}

  void backward(const fa::Tensors<void>& untyped) override {
    if (!all_) allocate();
    const fa::Tensors<T> t = fa::typed<T>(untyped);
    const Block own = block(me_);
    ranks_.computing("backward, before the hops");
    fa::Tensors<T> all = t, late = t;  // of all rows; of the late rows, once they are copied
    all.workspace = all_->pointers();
    Kernels::prepare_rows(block_problem(own), all);
    if (this->meets_later_keys()) late = prepare_late_rows(all);

    Keys<T> held = left_;  // later hops may overwrite it: each backward needs its own forward
    for (int hop = 0; hop < R_; ++hop) {
      const int from = backward_source(me_, hop, R_);
      const bool last = hop + 1 == R_;
      if (last) held = {t.K, t.V};
      const Keys<T> next = exchange(hop, from, held);
      ranks_.computing("backward, hop " + std::to_string(hop));
      const Block b = block(from);
      if (!b.empty()) {
        fa::Tensors<T>& rows = this->is_late(b) ? late : all;
        // Where one rank runs alone, the block's dK and dV are the results.
        rows.dK = R_ == 1 ? t.dK : partial_.get(),
        rows.dV = R_ == 1 ? t.dV : partial_.get() + partial_.size() / 2;
        differentiate(rows, b, held, from);
      }
      if (moves(hop)) ranks_.finish();  // add() and the next hop wait for the messages
      if (R_ > 1) add(t, b, hop, from);
      if (next.K) held = next;  // else the next hop has this rank's own
    }
    ranks_.computing("backward, after the hops");
    if constexpr (cut == Cut::zigzag) {  // beyond/cuda_cores, cut plain, has no kSums
      if (late_) add_late(all, late);    // beyond/fused may have none
    }
    Kernels::finish_rows(block_problem(own), all);
  }

  size_t workspace_bytes() const override {
    return Forward::workspace_bytes() + (all_ ? all_->bytes() : 0) + (late_ ? late_->bytes() : 0);
  }

 protected:
  using Forward::block, Forward::block_problem, Forward::whole_, Forward::ranks_, Forward::me_;
  using Forward::R_, Forward::left_, Forward::key_numbers, Forward::rows;

  // --- virtual, because beyond/fused reads in place

  // Copies the late rows to tensors of their own, with their own sums of dQ. The forward copied Q.
  virtual fa::Tensors<T> prepare_late_rows(const fa::Tensors<T>& all) {
    if (!late_) allocate_late();
    this->cut_late(all.O, late_O_.get());
    this->cut_late(all.dO, late_dO_.get());
    cut_rows<float>(whole_.heads(), 1, all.LSE, late_LSE_.get(), this->late());
    fa::Tensors<T> late{.Q = this->late_Q_.get(), .O = late_O_.get(), .LSE = late_LSE_.get()};
    late.dO = late_dO_.get(), late.workspace = late_->pointers();
    Kernels::prepare_rows(late_problem(), late);
    return late;
  }
  // dK and dV of a block, and its share of dQ. 11 launches a block for each 128 keys of a head, not
  // for each SM, so it leaves no SM to messages.
  virtual void differentiate(fa::Tensors<T> rows, const Block& b, const Keys<T>& held, int from) {
    const Keys<T> keys = this->keys_of(b, held, from);
    rows.K = keys.K, rows.V = keys.V;
    Kernels::backward(block_problem(b), rows);
  }

 private:
  void allocate() {
    all_.emplace(Kernels::row_workspace(block_problem(block(me_))));
    if (R_ == 1) return;
    const size_t keys = this->most_keys();
    partial_ = this->template buffer_of<T>("dK, dV of a hop", 2 * keys);
    for (auto& sum : sums_) sum = this->template buffer_of<float>("dK, dV so far", 2 * keys);
  }
  void allocate_late() {
    const fa::Problem rows = late_problem();
    late_.emplace(Kernels::row_workspace(rows));
    const size_t numbers = rows.heads() * rows.N * rows.d;
    for (auto* tensor : {&late_O_, &late_dO_}) {
      *tensor = this->template buffer_of<T>("O, dO, late", numbers);
    }
    late_LSE_ = this->template buffer_of<float>("LSE, late", rows.heads() * rows.N);
  }
  void add_late(const fa::Tensors<T>& all, const fa::Tensors<T>& late) const {
    const int Np = Kernels::padded_rows(block_problem(block(me_)));
    const int np = Kernels::padded_rows(late_problem());
    const RowsOf at = this->late();
    fa::dispatch_d<64, 128>(whole_.d, [&](auto d) {
      fa::launch(add_sums_kernel<d>, row_blocks(whole_.heads(), np, d),
                 all.template scratch<float>("dQ_sum"), late.template scratch<float>("dQ_sum"), Np,
                 np, at.row0, at.rows, int(whole_.heads()), Kernels::kSums);
    });
  }
  fa::Problem late_problem() const {  // of rows alone: its Nk and mask are not used
    fa::Problem p = block_problem(block(me_));
    p.N = this->late().rows, p.causal = false;
    return p;
  }

  bool moves(int hop) const { return hop + 2 < R_ || hop > 0; }  // K and V; sums

  // Receives K and V of the next hop, unless they are this rank's own. The forward's last arrived
  // in its hop R - 2, in buffer R % 2, so hop 0 receives into the other one. Sends dK and dV of the
  // hop before, to which this rank has added, and receives those of this hop.
  Keys<T> exchange(int hop, int from, const Keys<T>& held) {
    const int to = (me_ + R_ - 1) % R_, back = (me_ + 1) % R_;
    std::vector<fa::Message> send, receive;
    Keys<T> next;
    if (hop + 2 < R_) {
      const int coming = backward_source(me_, hop + 1, R_);
      next = this->room((R_ - 1 + hop) % 2, coming);
      send = this->keys_to(to, held, from), receive = this->keys_to(back, next, coming);
    }
    if (hop > 0) {
      const int gone = backward_source(me_, hop - 1, R_);
      send.push_back(fa::message(to, sums_[(hop + 1) % 2].get(), 2 * key_numbers(gone)));
      receive.push_back(fa::message(back, sums_[hop % 2].get(), 2 * key_numbers(from)));
    }
    if (moves(hop)) ranks_.start("K, V; dK, dV of rank " + std::to_string(from), send, receive);
    return next;
  }

  // Adds this block's share, in fp32, to the sums that arrived; the last hop stores dK and dV. In
  // hop 0 none arrived: a share of all keys is stored, and one of fewer is added to zeros. dV's
  // sums directly follow dK's, which makes one message; in a block's buffer dV begins at the half.
  void add(const fa::Tensors<T>& t, const Block& b, int hop, int from) {
    float* dK = sums_[hop % 2].get();
    float* dV = dK + key_numbers(from);
    const bool all_keys = !b.empty() && b.keys.size() == rows(from);
    if (hop == 0 && !all_keys) fa::zero_device_memory(dK, 2 * key_numbers(from) * sizeof(float));
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

  std::optional<Workspace> all_, late_;  // of prepare_rows, with dQ's sums: all rows, late rows
  fa::DeviceMemory<T> partial_;          // dK and dV of one block
  fa::DeviceMemory<float> sums_[2];      // dK and dV so far, which travel
  fa::DeviceMemory<T> late_O_, late_dO_;
  fa::DeviceMemory<float> late_LSE_;
};

// --- for the program -----------------------------------------------------------------------------

template <class Kernels, Cut cut>
std::shared_ptr<const fa::Sharding> ring() {
  static_assert(cut == Cut::plain || !Kernels::kSquares, "zig-zag has n rows with 2n keys");
  fa::Sharding s;
  s.validate = [](const fa::Problem& p, int ranks) {
    require_rows(cut, p, ranks);
    if (Kernels::kSquares) require_squares(p, ranks);
  };
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

// Step 14 -- no ring: each rank has all rows of some heads.
// Idea      Heads never interact. Two all-to-all exchanges (DeepSpeed-Ulysses) turn rows of all
//           heads into all rows of some heads, and back. Between them a rank runs step 10 on whole
//           sequences: no merge, and a causal mask is balanced
// Changed   since 14 2_ring: no hops and no merge: rows are exchanged by heads before and after
//           10's kernel; the same in the backward, with 11's
// Traffic   sent per rank  forward   2*(R-1)/R*(2*BH + 2*BHkv)*N/R*d + 4*(R-1)/R*BH*N/R B
//                                    Q, K, V; O, LSE
//                          backward  2*(R-1)/R*(2*BH + 2*BHkv)*N/R*d B   dO; dQ, dK, dV
//           HBM            10's, 11's; each tensor is copied once, on arrival or before departure
// Launch    forward: copies; 10's; copies. Backward: copies; 11's; copies
// Owns      rank: N/R rows before and after, H/R heads between
// Still bad nothing hides the messages; no more ranks than heads of K and V
#pragma once

#include "steps/14_ring/parts.cuh"

namespace step14 {

template <class Kernels>
class Heads : public fa::RankAttention {
 public:
  using T = typename Kernels::T;

  Heads(const fa::Problem& p, fa::Ranks& ranks)
      : whole_(p), mine_(p), ranks_(ranks), me_(ranks.rank()), R_(ranks.size()) {
    mine_.H /= R_, mine_.Hkv /= R_;
    for (auto* x : {&Q_, &O_}) *x = buffer<T>("Q, O of a rank's heads", mine_.q_size());
    for (auto* x : {&K_, &V_}) *x = buffer<T>("K, V of a rank's heads", mine_.kv_size());
    LSE_ = buffer<float>("LSE of a rank's heads", mine_.rows());
    stage_[0] = buffer<T>("messages of Q, O", mine_.q_size());
    for (int i : {1, 2}) stage_[i] = buffer<T>("messages of K, V", mine_.kv_size());
    stage_LSE_ = buffer<float>("messages of LSE", mine_.rows());
    taken_.emplace(Kernels::forward_workspace(mine_));
  }

  void forward(const fa::Tensors<void>& t) override {
    const int H = mine_.H, Hkv = mine_.Hkv, vectors = row_vectors();
    to_heads("Q, K, V", {{t.Q, Q_.get(), stage_[0].get(), H, vectors},
                         {t.K, K_.get(), stage_[1].get(), Hkv, vectors},
                         {t.V, V_.get(), stage_[2].get(), Hkv, vectors}});
    ranks_.computing("forward");
    fa::Tensors<T> heads{.Q = Q_.get(), .K = K_.get(), .V = V_.get(), .O = O_.get()};
    heads.LSE = LSE_.get(), heads.workspace = taken_->pointers();
    Kernels::forward(mine_, heads, mine_.gpu.sms);
    to_rows("O", {{t.O, O_.get(), stage_[0].get(), H, vectors},
                  {t.LSE, LSE_.get(), stage_LSE_.get(), H, 0}});
  }

  // Q, K, V, O and LSE of this rank's heads are still here from the forward: only dO is sent.
  void backward(const fa::Tensors<void>& t) override {
    if (!row_workspace_) {
      row_workspace_.emplace(Kernels::row_workspace(mine_));
      for (auto* x : {&dO_, &dQ_}) *x = buffer<T>("dO, dQ of a rank's heads", mine_.q_size());
      for (auto* x : {&dK_, &dV_}) *x = buffer<T>("dK, dV of a rank's heads", mine_.kv_size());
    }
    const int H = mine_.H, Hkv = mine_.Hkv, vectors = row_vectors();
    to_heads("dO", {{t.dO, dO_.get(), stage_[0].get(), H, vectors}});
    ranks_.computing("backward");
    fa::Tensors<T> heads{.Q = Q_.get(), .K = K_.get(), .V = V_.get(), .O = O_.get()};
    heads.LSE = LSE_.get(), heads.workspace = row_workspace_->pointers();
    heads.dO = dO_.get(), heads.dQ = dQ_.get(), heads.dK = dK_.get(), heads.dV = dV_.get();
    Kernels::prepare_rows(mine_, heads);
    Kernels::backward(mine_, heads);
    Kernels::finish_rows(mine_, heads);
    to_rows("dQ, dK, dV", {{t.dQ, dQ_.get(), stage_[0].get(), H, vectors},
                           {t.dK, dK_.get(), stage_[1].get(), Hkv, vectors},
                           {t.dV, dV_.get(), stage_[2].get(), Hkv, vectors}});
  }

  size_t workspace_bytes() const override {
    return bytes_ + taken_->bytes() + (row_workspace_ ? row_workspace_->bytes() : 0);
  }

 private:
  struct Moved {
    const void* rows;  // [B, heads of all ranks, this rank's rows, d]; to_rows() writes it
    void* heads;       // [B, heads of this rank, N, d]
    void* stage;       // same size, rank by rank as it is sent: [B, heads, that rank's rows, d]
    int count;         // heads per rank
    int vectors;       // 16-byte vectors per row; 0: a row is one float
    size_t row_bytes() const { return vectors ? 16 * size_t(vectors) : sizeof(float); }
  };

  int row_vectors() const { return whole_.d * int(sizeof(T)) / 16; }
  fa::Rows rows(int rank) const { return chunk_of(whole_.N, rank, R_); }
  template <class E>
  fa::DeviceMemory<E> buffer(const char* name, size_t n) {
    bytes_ += n * sizeof(E);
    return memory<E>(name, n);
  }

  std::byte* in_rows(const Moved& m, int owner, int b) const {
    const size_t head = (size_t(b) * R_ + owner) * m.count;
    return static_cast<std::byte*>(const_cast<void*>(m.rows)) +
           head * rows(me_).size() * m.row_bytes();
  }
  std::byte* in_stage(const Moved& m, int rank, int b) const {
    const size_t before = size_t(whole_.B) * m.count * rows(rank).begin;
    return static_cast<std::byte*>(m.stage) +
           (before + size_t(b) * m.count * rows(rank).size()) * m.row_bytes();
  }
  std::byte* in_heads(const Moved& m, int b) const {
    return static_cast<std::byte*>(m.heads) + size_t(b) * m.count * whole_.N * m.row_bytes();
  }

  template <class F>
  void for_all(const std::vector<Moved>& tensors, F&& f) const {
    for (const Moved& m : tensors) {
      for (int rank = 0; rank < R_; ++rank) {
        for (int b = 0; b < whole_.B; ++b) f(m, rank, b);
      }
    }
  }
  fa::Message message(const Moved& m, int peer, std::byte* at, int n) const {
    return fa::message(peer, at, size_t(m.count) * n * m.row_bytes());
  }
  RowsOf place(int rank) const {
    const fa::Rows r = rows(rank);
    return {.N = whole_.N, .row0 = r.begin, .n = r.size(), .partial0 = 0, .rows = r.size()};
  }

  void to_heads(const std::string& what, const std::vector<Moved>& tensors) {
    std::vector<fa::Message> send, receive;
    for_all(tensors, [&](const Moved& m, int rank, int b) {
      if (rank == me_) return;
      send.push_back(message(m, rank, in_rows(m, rank, b), rows(me_).size()));
      receive.push_back(message(m, rank, in_stage(m, rank, b), rows(rank).size()));
    });
    ranks_.start(what, send, receive);
    ranks_.finish();
    ranks_.computing("rows to heads");
    for_all(tensors, [&](const Moved& m, int rank, int b) {
      const std::byte* from = rank == me_ ? in_rows(m, me_, b) : in_stage(m, rank, b);
      paste_rows<uint4>(m.count, m.vectors, from, in_heads(m, b), place(rank));
    });
  }

  void to_rows(const std::string& what, const std::vector<Moved>& tensors) {
    ranks_.computing("heads to rows");
    std::vector<fa::Message> send, receive;
    for_all(tensors, [&](const Moved& m, int rank, int b) {
      std::byte* to = rank == me_ ? in_rows(m, me_, b) : in_stage(m, rank, b);
      if (m.vectors) {
        cut_rows<uint4>(m.count, m.vectors, in_heads(m, b), to, place(rank));
      } else {
        cut_rows<float>(m.count, 1, in_heads(m, b), to, place(rank));
      }
      if (rank == me_) return;
      send.push_back(message(m, rank, to, rows(rank).size()));
      receive.push_back(message(m, rank, in_rows(m, rank, b), rows(me_).size()));
    });
    ranks_.start(what, send, receive);
    ranks_.finish();
  }

  const fa::Problem whole_;
  fa::Problem mine_;  // this rank's heads
  fa::Ranks& ranks_;
  const int me_, R_;
  size_t bytes_ = 0;
  fa::DeviceMemory<T> Q_, K_, V_, O_, dO_, dQ_, dK_, dV_, stage_[3];
  fa::DeviceMemory<float> LSE_, stage_LSE_;
  std::optional<Workspace> taken_, row_workspace_;  // of 10's kernels; of 11's, with dQ's sums
};

inline fa::RankPrediction predict_heads(const fa::Problem& p, int rank, int ranks) {
  const uint64_t n = chunk_of(p.N, rank, ranks).size(), others = p.N - n;  // rows here, elsewhere
  const uint64_t size = fa::bytes_of(p.dtype) * p.d;
  const uint64_t queries = p.heads() / ranks, keys = p.kv_heads() / ranks;  // heads of a rank
  fa::RankPrediction predicted;
  predicted.scores = {queries * p.visible_scores()};
  predicted.forward_bytes = (queries + 2 * keys) * n * (ranks - 1) * size  // Q, K, V
                            + queries * others * (size + sizeof(float));   // O, LSE
  predicted.backward_bytes = queries * n * (ranks - 1) * size              // dO
                             + (queries + 2 * keys) * others * size;       // dQ, dK, dV
  return predicted;
}

inline void require_heads(const fa::Problem& p, int ranks) {
  require_rows(Cut::plain, p, ranks);
  if (p.Hkv % ranks == 0) return;
  throw fa::UsageError("--hkv " + std::to_string(p.Hkv) + ": " + std::to_string(ranks) +
                       " ranks share the heads, so it must be a multiple of " +
                       std::to_string(ranks) + "; the other variants need none");
}

template <class Kernels>
std::shared_ptr<const fa::Sharding> heads_to_ranks() {
  fa::Sharding s;
  s.validate = require_heads;
  s.rows = [](const fa::Problem& p, int rank, int ranks) {
    return rows_of(Cut::plain, p.N, rank, ranks);
  };
  s.make = [](const fa::Problem& p, fa::Ranks& ranks) -> std::unique_ptr<fa::RankAttention> {
    return std::make_unique<Heads<Kernels>>(p, ranks);
  };
  s.predict = predict_heads;
  return std::make_shared<const fa::Sharding>(s);
}

}  // namespace step14

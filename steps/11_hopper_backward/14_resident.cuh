// Step 11 -- dQ's sums stay in the L2.
// Idea      With a place per block instead of one per head, the sums of dQ take 17 MB at N = 512,
//           which the L2 holds. Which kernel is best depends on the size: whole heads, walks of
//           any head, few places, or one block per walk
// Changed   since 11 11_persistent: the kernel before, which writes no zeros; the choice by size
// Traffic   as 11_persistent, but dQ_sum: 4*d B per row that two walks or more see, written and
//           read, and atomic for each walk between; no zeros
// Launch    columns; backward (SMs, or fewer heads), 512 threads
// Owns      block: a head at a time
// Still bad whole heads pay only with two or more per SM, and sums that the L2 holds
#pragma once

#include "steps/11_hopper_backward/12_own_sums.cuh"
#include "steps/11_hopper_backward/13_places.cuh"

namespace step11_resident {

using namespace step11;

// --- host ----------------------------------------------------------------------------------------

// A row without a key would have no walk that writes its dQ.
inline bool supports(const fa::Problem& p) { return p.d == 64 && (!p.causal || p.Nk >= p.N); }

inline int blocks_of(const fa::Problem& p) { return std::min<int>(p.gpu.sms, p.kv_heads()); }

// Where the sums, and Q and dO that each walk reads again, stay in the L2 (measured on an H100),
// and each SM has several heads.
inline bool pays(const fa::Problem& p) {
  const size_t most = p.causal ? size_t{20} << 20 : size_t{10} << 20;
  const size_t sums = 4 * size_t(p.gpu.sms) * (p.H / p.Hkv) * padded_rows(p) * p.d;
  return supports(p) && int(p.kv_heads()) >= 2 * p.gpu.sms && sums <= most;
}
// Where the ends of walks cost more than the shorter rings: up to 17 tiles in the mean (measured).
inline bool short_walks(const fa::Problem& p) {
  return p.d == 64 && p.H / p.Hkv * p.N <= (p.causal ? 4096 : 2048);
}

// Without the mask the places gain 2 to 8%, with it nothing (measured, d = 128, 15 blocks per SM).
inline bool places_pay(const fa::Problem& p) {
  const int rows = p.H / p.Hkv * padded_rows(p), walks = fa::ceil_div(p.Nk, Bc);
  const size_t sums = 4 * size_t(step11_places::first_places(p)) * rows * p.d;
  return p.d == 128 && !p.causal && rows <= 8192 && sums <= size_t{20} << 20 &&
         walks * int(p.kv_heads()) >= 8 * p.gpu.sms;
}

inline fa::Prediction traffic_of_walks(const fa::Problem& p) {
  fa::Prediction t = step11_columns::backward_traffic(p);
  const Shape shape = shape_of(p, Br<64>);
  uint64_t stored = 0, added = 0;  // tiles of rows of a head; visits
  for (int i = 0; i < shape.Tr; ++i) {
    const int walks = std::min(shape.Tc, ((i + 1) * Br<64> - 1 + shape.shift) / Bc + 1);
    stored += walks > 1, added += std::max(0, walks - 2);
  }
  const uint64_t tile = 4 * uint64_t(Br<64>) * p.d, BH = p.heads(), zeros = 4 * BH * shape.Np * p.d;
  const uint64_t before = 4 * BH * p.d * uint64_t(shape.Tr) * Br<64>;  // as 7_columns counts it
  t.buffers.erase("dQ_sum");
  if (stored > 0) {
    const uint64_t once = BH * stored * tile;
    t["dQ_sum"] = {.read = once, .write = once, .atomic = BH * added * tile};
  }
  t["walks"] = {.read = 0, .write = 8, .atomic = 4 * (p.kv_heads() + uint64_t(blocks_of(p)))};
  t.hbm.read -= zeros + before, t.hbm.write -= zeros + before;  // the sums stay in the L2 ...
  t.hbm.write += (stored > 0) * blocks_of(p) * uint64_t(p.H / p.Hkv) * shape.Np * p.d *
                 4;                                                   // ... until the end
  t.flops += step11_apart::skipped_scores(p) * (8 * p.d + 4 * kMma);  // computed here
  return t;
}

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  return places_pay(p) ? step11_places::workspace(p) : step11_persistent::workspace(p);
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  if (pays(p)) return traffic_of_walks(p);
  if (places_pay(p)) return step11_places::backward_traffic(p);
  return short_walks(p) ? step11_persistent::backward_traffic(p)
                        : step11_columns::backward_traffic(p);
}

inline void backward_by_heads(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  step11_places::launch_columns<64>(p, t, nullptr, 0);
  step11_persistent::launch_backward<64>(p, t, OwnSums{t.scratch<float>("dQ_sum"), t.dQ, p.N});
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  if (pays(p)) return backward_by_heads(p, t);
  if (places_pay(p)) return step11_places::backward(p, t);
  short_walks(p) ? step11_persistent::backward(p, t) : step11_columns::backward(p, t);
}

}  // namespace step11_resident

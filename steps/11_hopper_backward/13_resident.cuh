// Step 11 -- dQ's sums stay in the L2.
// Idea      With a place per block instead of one per head, the sums of dQ take 17 MB at N = 512,
//           which the L2 holds. Which kernel is best depends on the size: whole heads, walks of
//           any head, or one block per walk
// Changed   since 11 11_persistent: the kernel before, which writes no zeros; the choice by size
// Traffic   as 11_persistent, but dQ_sum: 4*d B per row that two walks or more see, written and
//           read, and atomic for each walk between; no zeros
// Launch    columns; backward (SMs, or fewer heads), 512 threads
// Owns      block: a head at a time
// Still bad with fewer heads than SMs, or sums that the L2 does not hold, 7_columns is faster
#pragma once

#include "steps/11_hopper_backward/12_own_sums.cuh"

namespace step11_resident {

using namespace step11;

// As columns_kernel, without zeros for dQ_sum.
template <int d>
__global__ void columns_kernel(const bf16* O,     // [B*H, N, d]
                               const bf16* dO,    // [B*H, N, d]
                               const float* LSE,  // [B*H, N]
                               bf16* columns,     // [B*H, Np, 8]
                               int N, int Np, float scale) {
  const RowLanes<d> at(N, Np);
  const float delta = at.delta(O, dO);
  if (at.lane > 0) return;
  step11_columns::put_columns(columns + at.padded * step11_columns::kColumns, at.lse(LSE) / scale,
                              delta);
}

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

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  if (pays(p)) return traffic_of_walks(p);
  return short_walks(p) ? step11_persistent::backward_traffic(p)
                        : step11_columns::backward_traffic(p);
}

inline void backward_by_heads(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::launch(columns_kernel<64>, row_blocks(p, 8), t.O, t.dO, t.LSE, t.scratch<bf16>("columns"),
             p.N, padded_rows(p), p.scale());
  step11_persistent::launch_backward<64>(p, t, OwnSums{t.scratch<float>("dQ_sum"), t.dQ, p.N});
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  if (pays(p)) return backward_by_heads(p, t);
  short_walks(p) ? step11_persistent::backward(p, t) : step11_columns::backward(p, t);
}

}  // namespace step11_resident

// Step 15 -- changed scores and sinks on Hopper.
// Idea      7's change of a score in 12_wgmma's kernel, between the product and the maximum, in all
//           tiles. A walk has no start of its own: the sink joins the maximum and the sum of its
//           first tile
// Changed   since 15 7_scores: a sink is added after the first tile's maximum
// Traffic   requested as 12_wgmma; and 4 B of `sinks` per work tile and thread of the consumers
// Launch    as 12_wgmma
// Owns      as 12_wgmma
// Still bad as 12_wgmma and 7_scores; the backward is 8_scores_backward, because 11's products
//           subtract LSE before a score could be capped
#pragma once

#include "steps/15_masks/12_wgmma.cuh"
#include "steps/15_masks/8_scores_backward.cuh"

namespace step15_wgmma_scores {

using namespace step15_wgmma;

struct Scored : Bands {
  step15_scores::ScoreMod mod;

  template <int Bc>
  __device__ void change(float (&rS)[Bc / 2], const WorkTile& work, int place, int r) const {
    const int key = tile(work, place) * Bc + fa::column_of(threadIdx.x % fa::kWarp);
    const float back = r + work.keys - work.rows - key;
    const float slope = mod.alibi > 0.f ? mod.slope(work.bh % mod.H) : 0.f;
    if (mod.cap > 0.f) {
      UNROLL
      for (int i = 0; i < Bc / 2; ++i) rS[i] = mod.capped(rS[i]);
    }
    if (mod.alibi > 0.f) {
      UNROLL
      for (int i = 0; i < Bc / 2; ++i) {
        rS[i] -= slope * fabsf(back + float(8 * fa::half_of(i) - fa::column_at(i)));
      }
    }
  }
  // The sink is a term of the sum like any other, of no key. One lane of each quad has it.
  __device__ void start(float (&m)[2], float (&l)[2], const WorkTile& work) const {
    const float sink = mod.sink(work.bh) * fa::kLog2e;
    UNROLL
    for (int h = 0; h < 2; ++h) {
      m[h] = fmaxf(m[h], sink);
      if (fa::leads_quad(threadIdx.x % fa::kWarp)) l[h] = fa::exp2_approx(sink - m[h]);
    }
  }
};

// --- host ---------------------------------------------------------------------------------------

inline fa::Support support() {
  fa::Support s = step15_wgmma::support();
  s.score_mod = true;
  return s;
}

// With what 8_scores_backward needs.
inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  std::vector<fa::Scratch> all = step15_wgmma::workspace(p);
  for (const fa::Scratch& more : step15_packed_backward::workspace(p)) all.push_back(more);
  return all;
}
inline std::vector<fa::Table> tables(const fa::Problem& p) {
  std::vector<fa::Table> all = step15_wgmma::tables(p);
  for (const fa::Table& more : step15_packed_backward::tables(p)) {
    if (more.name != "work") all.push_back(more);  // its forward's
  }
  return all;
}

inline fa::Prediction traffic(const fa::Problem& p) {
  fa::Prediction t = step15_wgmma::traffic(p);
  if (!p.score_mod.sinks) return t;
  dispatch(p, [&](auto tiling) {
    using T = decltype(tiling);
    t["sinks"].read = sizeof(float) * (T::kThreads - kGroupThreads) * work_tiles_of<T>(p);
  });
  t.hbm.read += sizeof(float) * p.H;
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  dispatch(p, [&](auto tiling) {
    using T = decltype(tiling);
    const Bands bands = bands_of(p, t.scratch<const int4>("work_tiles"), work_tiles_of<T>(p));
    launch<T>(p, t, Scored{bands, step15_scores::score_mod_of(p, t.sinks)}, p.gpu.sms);
  });
}

}  // namespace step15_wgmma_scores

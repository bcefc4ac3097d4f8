// Step 15 -- what changes a score and not the list: a soft cap, ALiBi, attention sinks.
// Idea      The place where a cut tile hides scores is where any score can be changed, of all
//           tiles: between the product and the maximum. The cap bends it, ALiBi subtracts a line. A
//           sink is one more term of the softmax's sum: m starts as the sink, and l as 1
// Changed   since 15 1_window: scores change before they are hidden; m and l start with the sink
// Traffic   requested as 3_packed, and 4 B of `sinks` per thread
// Launch    as 3_packed
// Owns      as 3_packed
// Still bad every tile pays for it: about 4 instructions per score for ALiBi, 7 for the cap
#pragma once

#include "steps/15_masks/3_packed.cuh"

namespace step15_scores {

using namespace step15;

// fa::ScoreMod, for products that are not scaled yet.
struct ScoreMod {
  float bend, cap;     // 2 log2(e) * scale / cap; cap / scale. 0: none
  float per_cap;       // 1 / (log2(e) * cap)
  float alibi, scale;  // 8 / H, or 0: none; of the slope
  const float* sinks;  // [H], or null
  int H;

  __device__ float slope(int h) const { return exp2f(-alibi * float(h + 1)) * scale; }
  __device__ float sink(int bh) const { return sinks ? sinks[bh % H] : -INFINITY; }

  // tanh(x) = 1 - 2 / (e^2x + 1) is right to a few 2^-24, whatever its size.
  __device__ float capped(float s) const {
    return cap * (1.f - 2.f * fa::rcp_approx(fa::exp2_approx(s * bend) + 1.f));
  }
};

struct ScoredWork : Work {
  float slope, sink;
};

template <int d>
struct ScoredWalk : Walk<d> {
  ScoreMod mod;
  float slope, sink;
  int shift;  // the own key of row 0

  __device__ ScoredWalk(const Band& band, const ScoredWork& work, const ScoreMod& of)
      : Walk<d>(band, work),
        mod(of),
        slope(work.slope),
        sink(work.sink),
        shift(work.keys - work.rows) {}

  // The sink is a term of the sum like any other, of no key. One lane of each quad has it.
  __device__ void start(float (&m)[kBands][2], float (&l)[kBands][2]) const {
    const bool has_it = sink > -INFINITY;
    UNROLL
    for (int t = 0; t < kBands; ++t) {
      UNROLL
      for (int h = 0; h < 2; ++h) {
        m[t][h] = fmaxf(sink * fa::kLog2e, kNoMaximum);
        l[t][h] = has_it && fa::leads_quad(threadIdx.x % fa::kWarp) ? 1.f : 0.f;
      }
    }
  }

  __device__ void hide(float (&rS)[kBands][Bc<d> / 8][4], int n, int warp_row) const {
    const int lane = threadIdx.x % fa::kWarp;
    const int own = warp_row + fa::row_of(lane) + shift;
    const float back = own - (this->tile(n) * Bc<d> + fa::column_of(lane));
    UNROLL
    for (int t = 0; t < kBands; ++t) {
      UNROLL
      for (int n = 0; n < Bc<d> / 8; ++n) {
        UNROLL
        for (int e = 0; e < 4; ++e) {
          float& s = rS[t][n][e];
          if (mod.cap > 0.f) s = mod.capped(s);
          if (mod.alibi > 0.f)
            s -= slope * fabsf(back + float(t * kMma + e / 2 * 8 - n * 8 - e % 2));
        }
      }
    }
    Walk<d>::hide(rS, n, warp_row);
  }
};

struct Scored : step15_packed::Packed {
  ScoreMod mod;

  __device__ ScoredWork work(int heads, int* bh) const {
    const Work w = Packed::work(heads, bh);
    return {w, mod.slope(*bh % mod.H), mod.sink(*bh)};
  }
  template <int d>
  __device__ ScoredWalk<d> walk(const ScoredWork& work) const {
    return {band, work, mod};
  }
};

// --- host ---------------------------------------------------------------------------------------

inline fa::Support support() {
  fa::Support s = step15_packed::support();
  s.score_mod = true;
  return s;
}

inline ScoreMod score_mod_of(const fa::Problem& p, const float* sinks) {
  const float cap = p.score_mod.cap, scale = p.scale();
  return {cap > 0.f ? 2 * fa::kLog2e * scale / cap : 0.f,
          cap / scale,
          cap > 0.f ? 1 / (fa::kLog2e * cap) : 0.f,
          p.score_mod.alibi ? 8.f / p.H : 0.f,
          1 / scale,
          sinks,
          p.H};
}

inline fa::Prediction traffic(const fa::Problem& p) {
  fa::Prediction t = step15_packed::traffic(p);
  if (!p.score_mod.sinks) return t;
  t["sinks"].read = sizeof(float) * kThreads * step15_packed::count_row_tiles(p) * p.heads();
  t.hbm.read += sizeof(float) * p.H;
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const unsigned BH = p.heads();
  const Scored mask = {{band_of(p), t.scratch<const int4>("work")}, score_mod_of(p, t.sinks)};
  const dim3 grid(step15_packed::count_row_tiles(p) * BH);
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    fa::launch(flash_fwd_kernel<d, Scored>, {grid, dim3(kThreads), sizeof(Shared<d>)}, t.Q, t.K,
               t.V, t.O, t.LSE, mask, int(BH), p.H / p.Hkv, p.N, p.Nk, p.scale());
  });
}

}  // namespace step15_scores

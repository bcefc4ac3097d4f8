// Step 15 -- changes of scores that leave the list unchanged: a soft cap, ALiBi, attention sinks.
// Idea      A score changes between the product and the maximum, in every tile. A sink is a term of
//           the softmax's sum without a key, so m and l start with it
// Changed   since 15 2_packed: scores change before they are hidden; m and l start with the sink
// Traffic   as 2_packed, and 512 B of `sinks` per block
// Launch    and owners as 2_packed, with lists' kernel
// Still bad a warp's tensor core waits for its softmax: wgmma_forward
#pragma once

#include "steps/15_masks/2_packed.cuh"
#include "steps/15_masks/beyond/lists.cuh"  // its kernel

namespace step15_scores {

using namespace step15;
using step15_window::Walk;

struct ScoreMod {
  float bend, cap;     // 2 log2(e) * scale / cap; cap / scale. 0: none
  float per_cap;       // 1 / (log2(e) * cap)
  float alibi, scale;  // 8 / H, or 0: none; of the slope
  const float* sinks;  // [H], or null
  int H;

  __device__ float slope(int h) const { return exp2f(-alibi * float(h + 1)) * scale; }
  __device__ float sink(int bh) const { return sinks ? sinks[bh % H] : -INFINITY; }

  // tanh(x) = 1 - 2 / (e^2x + 1), accurate to a few 2^-24 for any x.
  __device__ float capped(float s) const {
    return cap * (1.f - 2.f * fa::rcp_approx(fa::exp2_approx(s * bend) + 1.f));
  }
};

template <int d>
struct ScoredWalk : Walk<d> {
  ScoreMod mod;
  float slope, sink;
  int shift;  // row 0's own key

  __device__ ScoredWalk(const Window& window, int rows, int keys, const ScoreMod& mod, float slope,
                        float sink)
      : Walk<d>(window, rows, keys), mod(mod), slope(slope), sink(sink), shift(keys - rows) {}

  __device__ int tile(int j) const { return j; }
  // m and l start with the sink, a term of the sum without a key, in one lane of each quad.
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

  __device__ void hide(float (&rS)[kBands][Bc<d> / 8][4], int tile, int warp_row) const {
    const int lane = threadIdx.x % fa::kWarp;
    const int own = warp_row + fa::row_of(lane) + shift;
    const float back = own - (tile * Bc<d> + fa::column_of(lane));
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
    Walk<d>::hide(rS, tile, warp_row);
  }
};

struct Scored {
  Window window;
  const int4* works;  // as Packed
  ScoreMod mod;

  __device__ int4 work(int n, int) const { return works[n]; }
  __device__ int4 rows_of(const int4& work) const { return work; }
  template <int d>
  __device__ ScoredWalk<d> walk(const int4& work, int bh) const {
    return {window, work.y, work.w, mod, mod.slope(bh % mod.H), mod.sink(bh)};
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
  const Scored mask = {window_of(p), t.scratch<const int4>("work"), score_mod_of(p, t.sinks)};
  const dim3 grid(step15_packed::count_row_tiles(p) * BH);
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    fa::launch(step15_lists::flash_fwd_kernel<d, Scored>, {grid, dim3(kThreads), sizeof(Shared<d>)},
               t.Q, t.K, t.V, t.O, t.LSE, mask, int(BH), p.H / p.Hkv, p.N, p.Nk, p.scale());
  });
}

}  // namespace step15_scores

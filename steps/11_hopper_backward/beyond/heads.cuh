// Step 11 -- whole heads for a block.
// Idea      A block that has all walks of a head owns its dQ: no zeros, no conversion, and the same
//           bits in each run. d = 64 only
// Changed   since 11 persistent: heads from the counter; dQ's sums, in a place per block
// Traffic   as persistent, but dQ_sum: 4*d B per row that two walks or more see, written and read,
//           and atomic for each walk between
// Launch    columns; backward (SMs, or fewer heads), 512 threads
// Owns      block: a head of K and V
// Still bad it pays only with two heads or more per SM, and sums that fit in the L2
#pragma once

#include "steps/11_hopper_backward/beyond/persistent.cuh"
#include "steps/11_hopper_backward/beyond/places.cuh"  // its preceding kernel

namespace step11_heads {

using namespace step11_persistent;

// dQ's sums of the block's current head. The first walk to see a row stores its sums, later ones
// add, and the last one begins its product with them and rounds dQ.
struct OwnSums {
  static constexpr bool kBegins = true;
  float* sums;  // [blocks, group * Np / 64, 4, d / 8, 32, 4]: a place per block
  bf16* dQ;     // [B*H, N, d]
  int N;

  static __host__ __device__ int units(const Shape& shape) { return shape.kv_heads; }
  static __device__ WorkTile first_walk(unsigned t, const Shape& shape, int) {
    return {int(t), 0, int(t) * shape.group, 0};
  }
  static __device__ bool next_walk(WorkTile& work, const Shape& shape, int rows) {
    if (++work.j == shape.Tc) return false;
    work.first = max(0, work.j * Bc - shape.shift) / rows;
    return true;
  }

  struct Part {
    FloatSums::Part sums;
    bool first, last;  // of the walks that see these rows
    bf16* to;          // the lane's row r, in dQ; feature 8 (lane % 4)
    int r, N;
    float scale;

    template <int n>
    __device__ void begin(float (&rdQ)[n]) const {
      UNROLL
      for (int x = 0; x < n / 4; ++x) {
        const float4 sum = last && !first ? fa::load_l2(sums.at + x * fa::kWarp * 4) : float4{};
        rdQ[4 * x] = sum.x, rdQ[4 * x + 1] = sum.y, rdQ[4 * x + 2] = sum.z, rdQ[4 * x + 3] = sum.w;
      }
    }
    template <int n>
    __device__ void end(const float (&rdQ)[n]) const {
      if (last) {
        step11_sums::store_rounded<d>(rdQ, scale, to, r, N);
      } else if (first) {
        UNROLL
        for (int x = 0; x < n / 4; ++x) {
          *reinterpret_cast<float4*>(sums.at + x * fa::kWarp * 4) =
              make_float4(rdQ[4 * x], rdQ[4 * x + 1], rdQ[4 * x + 2], rdQ[4 * x + 3]);
        }
      } else {
        sums.add(rdQ);
      }
    }
  };
  __device__ Part part(const Shape& shape, const WorkTile& work, const RowTile& at,
                       int half) const {
    const int warp = threadIdx.x % kGroupThreads / fa::kWarp, lane = threadIdx.x % fa::kWarp;
    const int row = at.i * Br + half * 64;  // of the head
    const int r = row + warp * 16 + fa::row_of(lane);
    const int walks = min(shape.Tc, ((at.i + 1) * Br - 1 + shape.shift) / Bc + 1);
    const int place = blockIdx.x * shape.group + at.head - work.head;
    const FloatSums here{sums};
    return {here.part<d>((place * shape.Np + row) / 64),
            work.j == 0,
            work.j == walks - 1,
            dQ + (size_t(at.head) * N + r) * d + lane % 4 * 8,
            r,
            N,
            shape.scale};
  }
};

// --- host ----------------------------------------------------------------------------------------

// Where the sums, Q and dO stay in the L2 (measured), each SM has several heads, each row a key.
inline bool pays(const fa::Problem& p) {
  const size_t most = p.causal ? size_t{20} << 20 : size_t{10} << 20;
  const size_t sums = 4 * size_t(p.gpu.sms) * (p.H / p.Hkv) * padded_rows(p) * p.d;
  const bool each_row = !p.causal || p.Nk >= p.N;  // sees a key
  return p.d == d && each_row && int(p.kv_heads()) >= 2 * p.gpu.sms && sums <= most;
}
inline fa::Prediction backward_traffic(const fa::Problem& p) {
  fa::Prediction t = step11_columns::backward_traffic(p);
  const Shape shape = shape_of(p, Br);
  uint64_t stored = 0, added = 0;  // tiles of rows of a head; visits
  for (int i = 0; i < shape.Tr; ++i) {
    const int walks = std::min(shape.Tc, ((i + 1) * Br - 1 + shape.shift) / Bc + 1);
    stored += walks > 1, added += std::max(0, walks - 2);
  }
  const uint64_t blocks = std::min<uint64_t>(p.gpu.sms, p.kv_heads());
  const uint64_t tile = 4 * uint64_t(Br) * p.d, BH = p.heads(), zeros = 4 * BH * shape.Np * p.d;
  const uint64_t before = 4 * BH * p.d * uint64_t(shape.Tr) * Br;  // as 3_columns counts it
  t.buffers.erase("dQ_sum");
  if (stored > 0) {
    const uint64_t once = BH * stored * tile;
    t["dQ_sum"] = {.read = once, .write = once, .atomic = BH * added * tile};
  }
  t["walks"] = {.read = 0, .write = 8, .atomic = 4 * (p.kv_heads() + blocks)};
  t.hbm.read -= zeros + before, t.hbm.write -= zeros + before;  // the sums stay in the L2 ...
  t.hbm.write += (stored > 0) * 4 * blocks * (p.H / p.Hkv) * shape.Np * p.d;  // ... until the end
  t.flops += step11_columns::skipped_scores(p, Br) * (8 * p.d + 4 * kMma);    // computed here
  return t;
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  step11_places::launch_columns<d>(p, t, nullptr, 0);
  launch_backward(p, t, OwnSums{t.scratch<float>("dQ_sum"), t.dQ, p.N});
}

}  // namespace step11_heads

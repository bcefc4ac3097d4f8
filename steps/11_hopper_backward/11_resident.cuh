// Step 11 -- dQ's sums stay in the L2.
// Idea      A block takes all keys of a head, one walk after another. Then nobody else adds to the
//           head's dQ, and its sums need one place per block instead of one per head: 17 MB for
//           132 blocks at N = 512, which the L2 holds. The first walk stores, the others add, and
//           the last one to see a row begins with the sums and rounds dQ. No zeros, no kernel after
//           and, since one thread adds an element's parts in order, the same bits in each run
// Changed   since 11 10_persistent: where dQ's sums are, and what happens to them; walks of a head
// Traffic   as 10_persistent, but dQ_sum: 4*d B per row that two walks or more see, written and
//           read, and atomic for each walk between; no zeros
// Launch    columns; backward (SMs, or fewer heads), 512 threads
// Owns      block: a head at a time
// Still bad with fewer heads than SMs, or sums that the L2 does not hold, 7_columns is faster
#pragma once

#include "common/dialect/ptx/reduce.h"
#include "steps/11_hopper_backward/10_persistent.cuh"

namespace step11_resident {

using namespace step11;
using step11_apart::Br;

// dQ's sums of the head that a block is at.
struct OwnSums {
  static constexpr bool kBegins = true;
  float* sums;  // [blocks, group * Np / 64, 4, d / 8, 32, 4]: a place per block
  bf16* dQ;     // [B*H, N, d]
  int N;

  // What a block takes from the counter: heads of K and V. Its walks follow each other.
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
    int rows;          // from r on, in the head
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
        UNROLL
        for (int x = 0; x < n / 4; x += 4) put(rdQ, x);
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
    // dQ of the features 8 x .. 8 x + 31, 16 bytes a lane.
    template <int n>
    __device__ void put(const float (&rdQ)[n], int x) const {
      uint32_t low[4], high[4];  // row r, row r + 8: [pair of features]
      UNROLL
      for (int i = 0; i < 4; ++i) {
        const float* sum = rdQ + 4 * (x + i);
        low[i] = fa::pack_bf16(sum[0] * scale, sum[1] * scale);
        high[i] = fa::pack_bf16(sum[2] * scale, sum[3] * scale);
      }
      transpose_pairs(threadIdx.x % 4, low, high);
      uint4* at = reinterpret_cast<uint4*>(to + 8 * x);
      if (rows > 0) at[0] = make_uint4(low[0], low[1], low[2], low[3]);
      if (rows > 8) at[n / 4 * 8] = make_uint4(high[0], high[1], high[2], high[3]);
    }
  };
  template <int d>
  __device__ Part part(const Shape& shape, const WorkTile& work, const RowTile& at,
                       int half) const {
    const int warp = threadIdx.x % kGroupThreads / fa::kWarp, lane = threadIdx.x % fa::kWarp;
    const int row = at.i * Br<d> + half * 64;  // of the head
    const int r = row + warp * 16 + fa::row_of(lane);
    const int walks = min(shape.Tc, ((at.i + 1) * Br<d> - 1 + shape.shift) / Bc + 1);
    const int place = blockIdx.x * shape.group + at.head - work.head;
    const FloatSums here{sums};
    return {here.template part<d>((place * shape.Np + row) / 64), work.j == 0, work.j == walks - 1,
            dQ + (size_t(at.head) * N + r) * d + lane % 4 * 8,    N - r,       shape.scale};
  }
};

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

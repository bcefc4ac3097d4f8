// Step 11 -- dQ's sums of a head, in a place of the block's own.
// Idea      A block takes all walks of a head, so nobody else adds to the head's dQ. The first walk
//           to see a row stores its sums, later ones add, and the last one begins its product with
//           them and rounds dQ. No zeros and no kernel after; one thread adds an element's parts in
//           order, so each run has the same bits
// Changed   since 11 11_persistent: what a block takes from the counter, dQ's sums, and the kernel
//           before, which writes no zeros for them
#pragma once

#include "common/dialect/ptx/reduce.h"
#include "steps/11_hopper_backward/11_persistent.cuh"

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
        UNROLL
        for (int x = 0; x < n / 4; x += 4) {
          float4 four[4];
          UNROLL
          for (int i = 0; i < 4; ++i) {
            const float* sum = rdQ + 4 * (x + i);
            four[i] = make_float4(sum[0], sum[1], sum[2], sum[3]);
          }
          put_rounded<n * 2>(four, scale, to + 8 * x, r, N);
        }
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
  template <int d>
  __device__ Part part(const Shape& shape, const WorkTile& work, const RowTile& at,
                       int half) const {
    const int warp = threadIdx.x % kGroupThreads / fa::kWarp, lane = threadIdx.x % fa::kWarp;
    const int row = at.i * Br<d> + half * 64;  // of the head
    const int r = row + warp * 16 + fa::row_of(lane);
    const int walks = min(shape.Tc, ((at.i + 1) * Br<d> - 1 + shape.shift) / Bc + 1);
    const int place = blockIdx.x * shape.group + at.head - work.head;
    const FloatSums here{sums};
    return {here.template part<d>((place * shape.Np + row) / 64),
            work.j == 0,
            work.j == walks - 1,
            dQ + (size_t(at.head) * N + r) * d + lane % 4 * 8,
            r,
            N,
            shape.scale};
  }
};

}  // namespace step11_resident

namespace step11_places {  // the kernel before, which 13_places has, too

using namespace step11;

// As columns_kernel, but zeros for the state and not for dQ_sum.
template <int d>
__global__ void columns_kernel(const bf16* O,     // [B*H, N, d]
                               const bf16* dO,    // [B*H, N, d]
                               const float* LSE,  // [B*H, N]
                               bf16* columns,     // [B*H, Np, 8]
                               unsigned* state, int words, int N, int Np, float scale) {
  const int word = blockIdx.x * kRowThreads + threadIdx.x;
  if (word < words) state[word] = 0;
  const RowLanes<d> at(N, Np);
  const float delta = at.delta(O, dO);
  if (at.lane > 0) return;
  step11_columns::put_columns(columns + at.padded * step11_columns::kColumns, at.lse(LSE) / scale,
                              delta);
}

// --- host ----------------------------------------------------------------------------------------

template <int d>
void launch_columns(const fa::Problem& p, const fa::Tensors<bf16>& t, unsigned* state, int words) {
  fa::launch(columns_kernel<d>, row_blocks(p, d / 8), t.O, t.dO, t.LSE, t.scratch<bf16>("columns"),
             state, words, p.N, padded_rows(p), p.scale());
}

}  // namespace step11_places

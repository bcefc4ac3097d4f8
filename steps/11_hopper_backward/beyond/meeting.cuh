// Step 11 -- heads that share K: walks that meet.
// Idea      With the mask walks differ in length. One head of a group after the other they are soon
//           in different heads and rows, whose Q, dO and dQ do not fit the L2. Here a walk visits a
//           tile of rows in all heads of the group, then the next tile. The longer half of a
//           section's walks begin together, at the last rows, and go up; the others end together
//           and go down. With two walks for each SM those of a key head are in two places at a time
// Changed   since 11 3_columns: the order of a walk's tiles; a section's size
// Traffic   as 3_columns
// Launch    and owners as 3_columns
// Still bad nothing holds the walks together: 3% of difference in speed are seven tiles at the end
#pragma once

#include "steps/11_hopper_backward/beyond/parts.cuh"

namespace step11_meeting {

using namespace step11_sums;

constexpr int d = 128, kRows = step11_columns::Br<d>;  // rows of a tile

__host__ __device__ inline bool is_long(int j, const Shape& shape) { return 2 * j < shape.Tc; }

struct MeetingTile : RowTile {
  __device__ MeetingTile(const WorkTile& work, const Shape& shape) : RowTile(work, shape) {
    if (is_long(work.j, shape)) i = shape.Tr - 1;
  }
  __device__ void next(const WorkTile& work, const Shape& shape) {
    if (++head < work.head + shape.group) return;
    head = work.head, i += is_long(work.j, shape) ? -1 : 1;
  }
};

struct MeetingSums : AddedSums {
  using Tile = MeetingTile;
};

// --- host ----------------------------------------------------------------------------------------

// Heads of K that have two walks for each SM, or fewer: all sections are equal.
inline int section_of(const fa::Problem& p) {
  const int heads = int(p.kv_heads()), Tc = fa::ceil_div(p.Nk, Bc);
  int section = std::clamp(2 * p.gpu.sms / Tc, 1, heads);
  while (heads % section != 0) --section;
  return section;
}
// Where these are nearly two walks for each SM, of several heads each. Measured: d = 64 gains
// nothing; up to 1,024 rows other kernels run.
inline bool pays(const fa::Problem& p) {
  const int walks = section_of(p) * fa::ceil_div(p.Nk, Bc);
  return p.d == d && p.causal && p.N == p.Nk && p.N > 1024 && p.H >= 4 * p.Hkv &&
         std::abs(walks - 2 * p.gpu.sms) <= p.gpu.sms / 8;
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  fa::Prediction t = step11_columns::backward_traffic(p);
  const Shape shape = shape_of(p, kRows);
  uint64_t skipped = 0;  // by a warpgroup 1
  for (int j = 0; j < shape.Tc; ++j) {
    const int first = std::max(0, j * Bc - shape.shift) / kRows;
    const int i = is_long(j, shape) ? shape.Tr - 1 : first;
    skipped += j * Bc + kGroupKeys > (i + 1) * kRows - 1 + shape.shift &&
               shape.group * (shape.Tr - first) > 1;
  }
  const uint64_t scores = skipped * p.kv_heads() * kGroupKeys * kRows;
  t.flops += (step11_columns::skipped_scores(p, kRows) - scores) * (8 * d + 4 * kMma);
  return t;
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  Shape shape = shape_of(p, kRows);
  shape.section = section_of(p);
  step11_columns::launch_columns<d>(p, t);
  launch_mapped<d, true>(
      backward_kernel<d, MeetingSums>, {work_tiles(shape), dim3(kThreads), sizeof(Tiles<d>)}, p, t,
      kRows, t.scratch<bf16>("columns"), MeetingSums{{{}, {t.scratch<float>("dQ_sum")}}}, shape);
  step11_sums::launch_convert<d>(p, t);
}

}  // namespace step11_meeting

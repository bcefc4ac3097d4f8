// Step 14 -- the kernels of steps 10 and 11, as the ring calls them. 11's backward has three parts:
// prepare_rows, its columns kernel; backward, per block of keys; finish_rows, its convert. Before
// the last one add_sums, because late rows have separate sums of dQ.
#pragma once

#include "common/dialect/fragment.h"
#include "steps/10_warp_specialized/4_scheduled.cuh"  // launch, as a whole
#include "steps/11_hopper_backward/3_columns.cuh"     // its launches, as a whole
#include "steps/14_ring/parts.cuh"

namespace step14 {

// Adds dQ's sums of the late rows, a shorter tensor, to those of all rows, in the layout of 11's
// registers: 16 rows x 8 features are four numbers in each of 32 lanes, lane by lane.
template <int d>
__global__ void add_sums_kernel(float* kept,           // [B*H, Np, d]
                                const float* partial,  // [B*H, np, d]
                                int Np, int np, int row0, int rows, int heads) {
  const size_t i = size_t(blockIdx.x) * kRowThreads + threadIdx.x;
  const int bh = int(i / (size_t(np) * d)), lane = int(i % 128 / 4), number = int(i % 4);
  const int r = int(i / (16 * d) % (np / 16)) * 16 + number / 2 * 8 + fa::row_of(lane);
  const int x = int(i / 128 % (d / 8)) * 8 + fa::column_of(lane) + number % 2;
  if (bh >= heads || r >= rows) return;  // legal: no barrier follows
  const int row = row0 + r;              // of all rows
  const int to_lane = row % 8 * 4 + x % 8 / 2, to_number = row % 16 / 8 * 2 + x % 2;
  const size_t tile = row / 16 * (d / 8) + x / 8;
  kept[size_t(bh) * Np * d + tile * 128 + to_lane * 4 + to_number] += partial[i];
}

struct Hopper {  // steps 10 and 11
  using T = bf16;
  static std::vector<fa::Scratch> forward_workspace(const fa::Problem& p) {
    return step10::workspace(p);
  }
  static void forward(const fa::Problem& p, const fa::Tensors<T>& t, int sms) {
    step10::dispatch(p, [&](auto tiling) { step10::launch<decltype(tiling)>(p, t, sms); });
  }
  static std::vector<fa::Scratch> row_workspace(const fa::Problem& p) {
    return step11_columns::workspace(p);
  }
  static void prepare_rows(const fa::Problem& p, const fa::Tensors<T>& t) {
    fa::dispatch_d<64, 128>(p.d, [&](auto d) { step11_columns::launch_columns<d>(p, t); });
  }
  static void backward(const fa::Problem& p, const fa::Tensors<T>& t) {
    fa::dispatch_d<64, 128>(p.d, [&](auto d) { step11_columns::launch_backward<d>(p, t); });
  }
  // p, t: of a rank's rows. late_problem, late: of its late rows, which begin at `at` in those.
  static void add_sums(const fa::Problem& p, const fa::Tensors<T>& t,
                       const fa::Problem& late_problem, const fa::Tensors<T>& late,
                       const RowsOf& at) {
    const int Np = step11::padded_rows(p), np = step11::padded_rows(late_problem);
    fa::dispatch_d<64, 128>(p.d, [&](auto d) {
      fa::launch(add_sums_kernel<d>, row_blocks(p.heads(), np, d), t.scratch<float>("dQ_sum"),
                 late.scratch<float>("dQ_sum"), Np, np, at.row0, at.rows, int(p.heads()));
    });
  }
  static void finish_rows(const fa::Problem& p, const fa::Tensors<T>& t) {
    fa::dispatch_d<64, 128>(p.d, [&](auto d) { step11::launch_convert<d>(p, t); });
  }
};

}  // namespace step14

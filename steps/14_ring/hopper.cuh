// Step 14 -- the kernels of steps 10 and 11, as the ring calls them. 11's backward has three parts:
// prepare_rows, 11's columns kernel: LSE and delta of each row, and zeros in dQ's sums; backward,
// once for each block of keys: dK and dV, and additions to dQ's sums in fp32; finish_rows, 11's
// convert: dQ from its sums. Before it, add_sums: late rows have sums of their own.
#pragma once

#include "steps/10_warp_specialized/4_scheduled.cuh"  // launch, as a whole
#include "steps/11_hopper_backward/3_columns.cuh"     // its launches, as a whole
#include "steps/14_ring/parts.cuh"

namespace step14 {

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
  // p, t: of a rank's rows. late_problem, late: of its late rows, which lie at `at` in those.
  static void add_sums(const fa::Problem& p, const fa::Tensors<T>& t,
                       const fa::Problem& late_problem, const fa::Tensors<T>& late,
                       const RowsOf& at) {
    const int Np = step11::padded_rows(p), np = step11::padded_rows(late_problem);
    fa::dispatch_d<64, 128>(p.d, [&](auto d) {
      fa::launch(add_sums_kernel<d>, row_blocks(p.heads(), np, d), t.scratch<float>("dQ_sum"),
                 late.scratch<float>("dQ_sum"), Np, np, at.row0, at.rows, int(p.heads()),
                 Fragments{.lane = 4, .number = 1});
    });
  }
  static void finish_rows(const fa::Problem& p, const fa::Tensors<T>& t) {
    fa::dispatch_d<64, 128>(p.d, [&](auto d) { step11::launch_convert<d>(p, t); });
  }
};

}  // namespace step14

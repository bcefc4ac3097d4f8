// Step 14 -- the kernels of steps 10 and 11, as the ring calls them. 11's backward has three parts:
// prepare_rows, 11's columns kernel: LSE and delta of each row, and zeros in dQ's sums; backward,
// once for each block of keys: dK and dV, and additions to dQ's sums in fp32; finish_rows, 11's
// convert: dQ from its sums.
#pragma once

#include "steps/10_warp_specialized/beyond/wide.cuh"  // and so 4_scheduled, whose kernel it is
#include "steps/11_hopper_backward/3_columns.cuh"
#include "steps/14_ring/parts.cuh"

namespace step14 {

struct Hopper {  // steps 10 and 11
  using T = bf16;
  static constexpr bool kSquares = false;
  static constexpr Fragments kSums{.lane = 4, .number = 1};  // of dQ_sum; beyond/ampere has others
  static int padded_rows(const fa::Problem& p) { return step11::padded_rows(p); }
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
  static void finish_rows(const fa::Problem& p, const fa::Tensors<T>& t) {
    fa::dispatch_d<64, 128>(p.d, [&](auto d) { step11::launch_convert<d>(p, t); });
  }
};

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {  // for step.cuh: one rank, alone
  std::vector<fa::Scratch> all = step10::workspace(p);
  for (const fa::Scratch& s : step11_columns::workspace(p)) all.push_back(s);
  return all;
}

}  // namespace step14

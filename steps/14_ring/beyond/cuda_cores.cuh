// Step 14 -- the kernels of step 06, as the ring calls them: fp32 (see hopper.cuh).
// Idea      The lesson's ring in fp32. The kernels have one N for rows and keys, so each block is a
//           square: no zig-zag, whose blocks are n by 2n, and as many rows on each rank
// Changed   since hopper.cuh: the kernels; dQ is its own sum, to which they add by atomics
// Traffic   sent as 2_ring and 3_backward, in fp32; HBM: 06's per block in place of 10's, 11's
// Launch    05's delta for columns, 06's backward, no convert; else as 2_ring and 3_backward
// Owns      rank: N/R rows
// Still bad no measured gain: for coverage only
#pragma once

#include "steps/06_work_partitioning/3_backward.cuh"
#include "steps/14_ring/3_backward.cuh"

namespace step14 {

struct CudaCores {  // step 06
  using T = float;
  static std::vector<fa::Scratch> forward_workspace(const fa::Problem&) { return {}; }
  static void forward(const fa::Problem& p, const fa::Tensors<T>& t, int) {
    step06_registers::forward(p, t);
  }
  static std::vector<fa::Scratch> row_workspace(const fa::Problem& p) {
    return step06_backward::workspace(p);
  }
  static void prepare_rows(const fa::Problem& p, const fa::Tensors<T>& t) {  // delta, and dQ = 0
    fa::dispatch_d<64, 128>(
        p.d, [&](auto d) { step05::make_delta<d>(p, t, t.scratch<float>("delta")); });
  }
  static void backward(const fa::Problem& p, const fa::Tensors<T>& t) {
    step06_backward::dispatch_tiles(p, [&](auto d, auto Br, auto Bc) {
      const dim3 grid(fa::ceil_div(p.N, Bc), unsigned(p.heads()));
      fa::launch(step06_backward::backward_kernel<d, Br, Bc>,
                 {grid, dim3(step06_backward::kThreads), sizeof(step06_backward::Tiles<d, Br, Bc>)},
                 t.Q, t.K, t.V, t.dO, t.LSE, t.scratch<float>("delta"), t.dQ, t.dK, t.dV, p.N,
                 p.scale(), p.causal);
    });
  }
  static void add_sums(const fa::Problem&, const fa::Tensors<T>&, const fa::Problem&,
                       const fa::Tensors<T>&, const RowsOf&) {}  // cut plain has no late rows
  static void finish_rows(const fa::Problem&, const fa::Tensors<T>&) {}
};

inline std::shared_ptr<const fa::Sharding> fp32_ring() {
  fa::Sharding s = *ring<CudaCores, Cut::plain>();
  s.validate = [of_rows = s.validate](const fa::Problem& p, int ranks) {
    of_rows(p, ranks);
    if (p.N % ranks == 0) return;
    throw fa::UsageError("--n " + std::to_string(p.N) + ": for " + std::to_string(ranks) +
                         " ranks this variant needs a multiple of " + std::to_string(ranks));
  };
  return std::make_shared<const fa::Sharding>(s);
}

}  // namespace step14

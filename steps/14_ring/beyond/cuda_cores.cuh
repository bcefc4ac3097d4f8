// Step 14 -- the kernels of step 06, as the ring calls them: fp32. They know one N, for rows and
// keys: a block is a square. dQ is its own sum: the kernels add to it by atomics, as in step 06.
#pragma once

#include "steps/06_work_partitioning/3_backward.cuh"
#include "steps/14_ring/parts.cuh"

namespace step14 {

struct CudaCores {  // step 06
  using T = float;
  static constexpr bool kSquares = true;  // a block has as many rows as keys
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
  static void finish_rows(const fa::Problem&, const fa::Tensors<T>&) {}
};

}  // namespace step14

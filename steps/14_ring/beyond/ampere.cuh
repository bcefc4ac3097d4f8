// Step 14 -- the kernels of steps 07 and 08, as the ring calls them (see hopper.cuh).
// Idea      The lesson's ring on GPUs before Hopper
// Changed   since hopper.cuh: the kernels; the layout of their sums of dQ
// Traffic   sent as 2_ring and 3_backward; HBM: 07's and 08's per block in place of 10's, 11's
// Launch    08's delta for columns, its backward and its convert; else as 2_ring and 3_backward
// Owns      rank: N/R rows
// Still bad no measured gain: for coverage only
#pragma once

#include "steps/07_tensor_cores/4_lazy.cuh"
#include "steps/08_tensor_core_backward/5_atomics.cuh"
#include "steps/14_ring/parts.cuh"

namespace step14_mma {

using step14::kRowThreads;

// As hopper.cuh's. In 08's layout the four numbers of 32 lanes are stored number by number.
template <int d>
__global__ void add_sums_kernel(float* kept,           // [B*H, Np, d]
                                const float* partial,  // [B*H, np, d]
                                int Np, int np, int row0, int rows, int heads) {
  const size_t i = size_t(blockIdx.x) * kRowThreads + threadIdx.x;
  const int bh = int(i / (size_t(np) * d)), lane = int(i % 32), number = int(i % 128 / 32);
  const int r = int(i / (16 * d) % (np / 16)) * 16 + number / 2 * 8 + fa::row_of(lane);
  const int x = int(i / 128 % (d / 8)) * 8 + fa::column_of(lane) + number % 2;
  if (bh >= heads || r >= rows) return;  // legal: no barrier follows
  const int row = row0 + r;              // of all rows
  const int to_lane = row % 8 * 4 + x % 8 / 2, to_number = row % 16 / 8 * 2 + x % 2;
  const size_t tile = row / 16 * (d / 8) + x / 8;
  kept[size_t(bh) * Np * d + tile * 128 + to_number * 32 + to_lane] += partial[i];
}

}  // namespace step14_mma

namespace step14 {

struct Ampere {  // steps 07 and 08
  using T = bf16;
  static std::vector<fa::Scratch> forward_workspace(const fa::Problem&) { return {}; }
  static void forward(const fa::Problem& p, const fa::Tensors<T>& t, int) { step07::forward(p, t); }
  static std::vector<fa::Scratch> row_workspace(const fa::Problem& p) {
    return step08::workspace(p);
  }
  static void prepare_rows(const fa::Problem& p, const fa::Tensors<T>& t) {
    fa::dispatch_d<64, 128>(p.d, [&](auto d) {
      fa::launch(step08::delta_kernel<d>, rows_of(p), t.O, t.dO, t.LSE, t.scratch<float>("delta"),
                 t.scratch<float>("LSE2"), t.scratch<float>("dQ_sum"), p.N, step08::padded_rows(p));
    });
  }
  static void backward(const fa::Problem& p, const fa::Tensors<T>& t) {
    step08::dispatch_tiles<step08::Tiles>(p, [&](auto d, auto Br, auto Bc) {
      using Tiles = step08::Tiles<d, Br, Bc>;
      const dim3 grid(unsigned(fa::ceil_div(p.Nk, Bc) * p.kv_heads()));
      fa::launch(step08::backward_kernel<d, Br, Bc>, {grid, dim3(Tiles::kThreads), sizeof(Tiles)},
                 t.Q, t.K, t.V, t.dO, t.scratch<float>("LSE2"), t.scratch<float>("delta"),
                 t.scratch<float>("dQ_sum"), t.dK, t.dV, int(p.kv_heads()), p.H / p.Hkv, p.N, p.Nk,
                 p.scale(), p.causal);
    });
  }
  static void add_sums(const fa::Problem& p, const fa::Tensors<T>& t,
                       const fa::Problem& late_problem, const fa::Tensors<T>& late,
                       const RowsOf& at) {
    const int Np = step08::padded_rows(p), np = step08::padded_rows(late_problem);
    fa::dispatch_d<64, 128>(p.d, [&](auto d) {
      fa::launch(step14_mma::add_sums_kernel<d>, row_blocks(p.heads(), np, d),
                 t.scratch<float>("dQ_sum"), late.scratch<float>("dQ_sum"), Np, np, at.row0,
                 at.rows, int(p.heads()));
    });
  }
  static void finish_rows(const fa::Problem& p, const fa::Tensors<T>& t) {
    fa::dispatch_d<64, 128>(p.d, [&](auto d) {
      fa::launch(step08::convert_kernel<d>, rows_of(p), t.scratch<float>("dQ_sum"), t.dQ, p.N,
                 step08::padded_rows(p), p.scale());
    });
  }

 private:
  static fa::LaunchConfig rows_of(const fa::Problem& p) {
    return {dim3(step08::row_blocks(p)), dim3(step08::kRowThreads)};
  }
};

}  // namespace step14

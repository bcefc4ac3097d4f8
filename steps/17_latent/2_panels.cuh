// Step 17 -- tensor cores: a tile is copied once, and read as K and, transposed, as V.
// Idea      The rows of all heads share the keys: 64 rows are one A of wgmma. A tile of 64 keys is
//           B of both products: K-major for S, MN-major for O, the same bytes. O of 64 x 512 fills
//           two warpgroups' registers, so each has half of the columns, and computes all of S
// Changed   since 10 1_producer: a tile is K and V; rows of all heads; two consumers share the rows
//           and split the columns of O; Q and two tiles fill shared memory
// Traffic   requested read  2*B*576*(H*N + t*Nk) B     t = ceil(H*N/64): blocks that read a key
//                     write 2*B*H*N*512 + 4*B*H*N B
//           compulsory      2*B*(H*N*576 + Nk*576 + H*N*512) + 4*B*H*N B
// Launch    grid (t, B): 1 warpgroup copies, 2 multiply
// Owns      block: 64 rows; consumer: their 256 features of O, and S again
// Still bad S is computed twice: 1664 FLOPs where 1088 would do; few blocks when B is small
#pragma once

#include "common/dialect/ptx/setmaxnreg.h"
#include "steps/17_latent/parts.cuh"

namespace step17_panels {

using namespace step17;  // parts.cuh

struct alignas(1024) Tiles {  // each as panels of 64 features, swizzled by TMA
  bf16 Q[Br * d];
  bf16 KV[kStages][Bc * d];
  uint64_t q_full, full[kStages], empty[kStages];
};

// One thread copies: Q, then tile after tile of keys.
__device__ inline void produce(Tiles& smem, const fa::TensorMap* Q, const fa::TensorMap* K,
                               int tiles) {
  Ring<kStages> ring;
  fa::mbarrier_arrive_expect_tx(&smem.q_full, sizeof smem.Q);
  fa::tma_load(smem.Q, Q, &smem.q_full, {0, int(blockIdx.x) * Br, 0, int(blockIdx.y)});
  for (int j = 0; j < tiles; ++j, ring.next()) {
    fa::mbarrier_wait(&smem.empty[ring.stage], ring.parity ^ 1);
    fa::mbarrier_arrive_expect_tx(&smem.full[ring.stage], sizeof smem.KV[0]);
    fa::tma_load(smem.KV[ring.stage], K, &smem.full[ring.stage], {0, j * Bc, 0, int(blockIdx.y)});
  }
}

// A warpgroup: S and P of all rows, and O of its columns.
__device__ inline void consume(Tiles& smem, bf16* O, float* LSE, const Shape& shape, int wg,
                               int tiles) {
  // --- prologue
  const int warp = threadIdx.x % kGroupThreads / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int row = blockIdx.x * Br + warp * 16 + fa::row_of(lane);
  const uint64_t q = tile_descriptor(smem.Q);
  float rS[Bc / 2], rO[kColumns / 2] = {}, m[2] = {kNoMaximum, kNoMaximum}, l[2] = {}, alpha[2];
  uint32_t rP[Bc / kMma][4];
  Ring<kStages> ring;
  fa::mbarrier_wait(&smem.q_full, 0);

  // --- mainloop
  for (int j = 0; j < tiles; ++j, ring.next()) {
    const bf16* tile = smem.KV[ring.stage];
    fa::mbarrier_wait(&smem.full[ring.stage], ring.parity);
    multiply_features<d>(q, tile_descriptor(tile), rS);  // S = Q K^T, over 576 features
    wait_for<0>(rS);
    mask_tile(rS, shape, shape.Nk, row, j * Bc);
    fa::update_max(rS, shape.scale_log2, m, l, alpha);
    fa::compute_p(rS, shape.scale_log2, m, l);
    fa::pack_operand(rS, rP);
    rescale(rO, alpha);
    fa::multiply_rows<kColumns>(rP, value_descriptor(tile, wg), rO);  // O += P V, the same tile
    wait_for<0>(rO);
    warp_arrive(&smem.empty[ring.stage]);  // both products have read it
  }

  // --- epilogue
  float normalise[2];
  UNROLL
  for (int h = 0; h < 2; ++h) {
    l[h] = fa::quad_sum(l[h]);
    normalise[h] = l[h] > 0.f ? 1.f / l[h] : 0.f;  // no key seen: O = 0
    if (wg == 0 && fa::leads_quad(lane) && row + 8 * h < shape.rows) {
      LSE[blockIdx.y * size_t(shape.rows) + row + 8 * h] = (m[h] + log2f(l[h])) * fa::kLn2;
    }
  }
  store_rows(rO, normalise, O + blockIdx.y * size_t(shape.rows) * dv, row, shape.rows, wg);
}

static __global__ void __launch_bounds__(kThreads, 1)
    flash_decode_kernel(const __grid_constant__ fa::TensorMap Q,  // [B, H*N, d]
                        const __grid_constant__ fa::TensorMap K,  // [B, Nk, d]
                        bf16* O,                                  // [B, H*N, dv]
                        float* LSE,                               // [B, H*N]
                        Shape shape) {
  Tiles& smem = *fa::dynamic_shared<Tiles>();
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&smem.q_full, 1);
    fa::init_mbarriers(smem.full, 1), fa::init_mbarriers(smem.empty, kConsumerWarps);
    fa::mbarrier_init_fence();
  }
  __syncthreads();  // all threads see the barriers
  const int tiles = (shape.Nk + Bc - 1) / Bc;
  // The shuffle tells nvcc that wg is the same in all lanes.
  const int wg = __shfl_sync(fa::kFullMask, threadIdx.x / kGroupThreads, 0);
  if (wg == 0) {
    fa::setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x == 0) produce(smem, &Q, &K, tiles);
  } else {
    fa::setmaxnreg_inc<kConsumerRegisters>();
    consume(smem, O, LSE, shape, wg - 1, tiles);
  }
}

// --- host ---------------------------------------------------------------------------------------

inline fa::Prediction traffic(const fa::Problem& p) { return traffic_of(p, /*scores=*/kGroups); }

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::launch(flash_decode_kernel, {dim3(row_blocks_of(p), p.B), dim3(kThreads), sizeof(Tiles)},
             tile_map<d>(t.Q, p.B, p.H * p.N, Br), tile_map<d>(t.K, p.B, p.Nk, Bc), t.O, t.LSE,
             shape_of(p));
}

}  // namespace step17_panels

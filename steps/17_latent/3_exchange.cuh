// Step 17 -- S is computed once: two warpgroups exchange P through shared memory.
// Idea      The consumers own tiles in turn. A tile's owner computes S and stores P, which both
//           multiply by their half of V. No shared memory is left for P, 8 KB: it replaces the last
//           panel of its own tile, 64 features that K has and V has not
// Changed   since 17 2_panels: P, m and alpha through shared memory, with a barrier per tile; S of
//           tile j + 1 is issued before P V of tile j; l is summed over both at the end
// Traffic   requested read  2*B*576*(H*N + t*Nk) B     t = ceil(H*N/64)
//                     write 2*B*H*N*512 + 4*B*H*N B
//           compulsory      2*B*(H*N*576 + Nk*576 + H*N*512) + 4*B*H*N B
// Launch    grid (t, B): 1 warpgroup copies, 2 multiply
// Owns      block: 64 rows; consumer: 256 features of O, and S and P of every second tile
// Still bad one block per 64 rows: with one sequence most SMs idle
#pragma once

#include "common/dialect/ptx/barrier.h"
#include "common/dialect/ptx/setmaxnreg.h"
#include "steps/17_latent/parts.cuh"

namespace step17_exchange {

using namespace step17;  // parts.cuh

constexpr int kRope = dv * Bc;  // of a tile, the panel after V's: features 512 .. 575, then P

struct alignas(1024) Tiles {  // each as panels of 64 features, swizzled by TMA
  bf16 Q[Br * d];
  bf16 KV[kStages][Bc * d];
  float m[kStages][Br], alpha[kStages][Br];  // after a tile; the factor of O and l before it
  float l[kGroups][Br];
  uint64_t q_full, full[kStages], empty[kStages], p_full[kStages];
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

// A warpgroup: S and P of every second tile, and O of its columns.
struct Consumer {
  Tiles& smem;
  const Shape& shape;
  const int wg;
  const int warp = threadIdx.x % kGroupThreads / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int r = warp * 16 + fa::row_of(lane), row = blockIdx.x * Br + r;
  float rS[Bc / 2], rO[kColumns / 2] = {}, m[2] = {kNoMaximum, kNoMaximum}, l[2] = {}, alpha[2];

  // S of a tile of this warpgroup, once the tile has arrived. Does not wait for the product.
  __device__ void issue_scores(int j) {
    fa::mbarrier_wait(&smem.full[j % kStages], j / kStages % 2);
    multiply_features<d>(tile_descriptor(smem.Q), tile_descriptor(smem.KV[j % kStages]), rS);
  }

  // P of this warpgroup's tile j, whose S is complete. m and l are those before it.
  __device__ void publish_softmax(int j) {
    const int stage = j % kStages;
    mask_tile(rS, shape, shape.Nk, row, j * Bc);
    fa::update_max(rS, shape.scale_log2, m, l, alpha);
    fa::compute_p(rS, shape.scale_log2, m, l);
    fa::bar_sync(2 + wg, kGroupThreads);  // S of all four warps is complete: K is not read again
    fa::put_rows<Bc>(rS, {1.f, 1.f}, smem.KV[stage] + kRope);
    UNROLL
    for (int h = 0; h < 2; ++h) {
      if (!fa::leads_quad(lane)) continue;
      smem.m[stage][r + 8 * h] = m[h], smem.alpha[stage][r + 8 * h] = alpha[h];
    }
    fa::fence_proxy_async();  // wgmma reads what this thread has written
    warp_arrive(&smem.p_full[stage]);
  }

  // O = alpha O + P V of tile j, once P has been stored. Does not wait for the product.
  __device__ void issue_values(int j) {
    const int stage = j % kStages;
    fa::mbarrier_wait(&smem.p_full[stage], j / kStages % 2);
    UNROLL
    for (int h = 0; h < 2; ++h) {
      alpha[h] = smem.alpha[stage][r + 8 * h], m[h] = smem.m[stage][r + 8 * h];
      if (j % kGroups != wg) l[h] *= alpha[h];  // the owner has rescaled its own
    }
    rescale(rO, alpha);
    const uint64_t P = tile_descriptor(smem.KV[stage] + kRope);
    const uint64_t V = value_descriptor(smem.KV[stage], wg);
    fa::wgmma_fence();
    UNROLL
    for (int c = 0; c < Bc; c += kMma) {
      fa::wgmma<fa::Major::k, fa::Major::mn>(rO, fa::wgmma_advance(P, c * 2),
                                             fa::wgmma_advance(V, c * kRowBytes));
    }
    fa::wgmma_commit();
  }

  // Both products of tile j have read it, and P.
  __device__ void release(int j) {
    wait_for<0>(rO);
    warp_arrive(&smem.empty[j % kStages]);
  }

  __device__ void run(bf16* O, float* LSE, int tiles) {
    // --- prologue
    fa::mbarrier_wait(&smem.q_full, 0);
    if (wg == 0) {
      issue_scores(0);
      wait_for<0>(rS);
      publish_softmax(0);
    }

    // --- mainloop
    for (int j = 0; j < tiles; ++j) {
      if ((j + 1) % kGroups == wg && j + 1 < tiles) {  // the owner of tile j + 1
        issue_scores(j + 1);
        issue_values(j);
        wait_for<1>(rS);
        publish_softmax(j + 1);  // while P V of tile j runs
        release(j);
      } else {
        issue_values(j);
        release(j);
      }
    }

    // --- epilogue
    UNROLL
    for (int h = 0; h < 2; ++h) {
      l[h] = fa::quad_sum(l[h]);
      if (fa::leads_quad(lane)) smem.l[wg][r + 8 * h] = l[h];
    }
    fa::bar_sync(1, kGroups * kGroupThreads);  // both have stored their sums
    float normalise[2];
    UNROLL
    for (int h = 0; h < 2; ++h) {
      l[h] = smem.l[0][r + 8 * h] + smem.l[1][r + 8 * h];
      normalise[h] = l[h] > 0.f ? 1.f / l[h] : 0.f;  // no key seen: O = 0
      if (wg == 0 && fa::leads_quad(lane) && row + 8 * h < shape.rows) {
        LSE[blockIdx.y * size_t(shape.rows) + row + 8 * h] = (m[h] + log2f(l[h])) * fa::kLn2;
      }
    }
    store_rows(rO, normalise, O + blockIdx.y * size_t(shape.rows) * dv, row, shape.rows, wg);
  }
};

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
    fa::init_mbarriers(smem.p_full, kConsumerWarps / kGroups);
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
    Consumer{smem, shape, wg - 1}.run(O, LSE, tiles);
  }
}

// --- host ---------------------------------------------------------------------------------------

inline fa::Prediction traffic(const fa::Problem& p) { return traffic_of(p, /*scores=*/1); }

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::launch(flash_decode_kernel, {dim3(row_blocks_of(p), p.B), dim3(kThreads), sizeof(Tiles)},
             tile_map<d>(t.Q, p.B, p.H * p.N, Br), tile_map<d>(t.K, p.B, p.Nk, Bc), t.O, t.LSE,
             shape_of(p));
}

}  // namespace step17_exchange

// Step 11 -- the backward with TMA and wgmma.
// Idea      Step 08's loop with Hopper's copies and products. A warpgroup waits right after issuing
//           its products: nothing overlaps
// Changed   since 08 5_atomics: TMA and wgmma; 128 rows per tile; each warpgroup multiplies half of
//           the tile's dQ over the keys of both
// Traffic   requested read   2*BH*(2*N + 2*Tc*N)*d + 2*BHkv*2*Nk*d + 4*BH*(N + Np*d + 2*Tc*Np) B
//                     write  2*BH*N*d + 2*BHkv*2*Nk*d + 4*BH*(Np*d + 2*Np) B
//                     atomic 4*BH*Tc*Np*d B   Np: N in whole tiles; causal: visited tiles
//           compulsory       2*(4*BH*N*d + 4*BHkv*Nk*d) + 4*BH*N B
// Launch    delta; backward (Tc * B*Hkv), 256 threads; convert
// Owns      block: dK and dV of 128 keys; warpgroup: 64 of them, and 64 rows of each tile's dQ
// Still bad the tensor cores are idle while P and dS are computed
#pragma once

#include "steps/11_hopper_backward/parts.cuh"

namespace step11_wgmma {

using namespace step11;  // tiles of Br = 128 rows, blocks of Bc = 128 keys

constexpr int kStages = 2;  // of Q and dO
constexpr int kThreads = kGroups * kGroupThreads;

// A block's shared memory: 131 KB when d = 64, 227 KB when d = 128. Panels as in 09.
template <int d>
struct alignas(1024) Tiles {
  bf16 K[kGroups][kGroupKeys * d];  // later dK, before its store
  bf16 V[kGroups][kGroupKeys * d];  // later dV
  bf16 Q[kStages][Br * d];
  bf16 dO[kStages][Br * d];
  bf16 dS[Bc * Br];                             // dS^T: [Br / 64][Bc][64]
  float LSE2[kStages][Br], delta[kStages][Br];  // LSE2: LSE * log2(e)
  uint64_t kv_full, full[kStages];              // mbarriers: TMA's bytes have arrived
};

struct Sources {
  const fa::TensorMap *Q, *K, *V, *dO;
  const float *LSE2, *delta;  // [B*H * Tr, Br]
};

// Copies the block's K and V, a tile per warpgroup. By one thread.
template <int d>
__device__ inline void load_keys(Tiles<d>& smem, const Sources& from, const WorkTile& work) {
  fa::mbarrier_arrive_expect_tx(&smem.kv_full, sizeof smem.K + sizeof smem.V);
  for (int wg = 0; wg < kGroups; ++wg) {
    const int key = work.j * Bc + wg * kGroupKeys;
    fa::tma_load(smem.K[wg], from.K, &smem.kv_full, {0, key, 0, work.bh_kv});
    fa::tma_load(smem.V[wg], from.V, &smem.kv_full, {0, key, 0, work.bh_kv});
  }
}

template <int d>
__device__ inline void load_rows(Tiles<d>& smem, const Sources& from, int stage, const RowTile& at,
                                 int Tr) {
  uint64_t* full = &smem.full[stage];
  fa::mbarrier_arrive_expect_tx(
      full, sizeof smem.Q[0] + sizeof smem.dO[0] + sizeof smem.LSE2[0] + sizeof smem.delta[0]);
  const size_t tile = size_t(at.head) * Tr + at.i;
  fa::tma_load(smem.Q[stage], from.Q, full, {0, at.i * Br, 0, at.head});
  fa::bulk_load(smem.LSE2[stage], from.LSE2 + tile * Br, sizeof smem.LSE2[0], full);
  fa::tma_load(smem.dO[stage], from.dO, full, {0, at.i * Br, 0, at.head});
  fa::bulk_load(smem.delta[stage], from.delta + tile * Br, sizeof smem.delta[0], full);
}

// --- P and dS, between the products --------------------------------------------------------------

// LSE2 or delta of the lane's two rows among the tile's rows 8 g .. 8 g + 7.
template <int rows>
__device__ inline float2 of_rows(const float (&tile)[rows], int g) {
  const int lane = threadIdx.x % fa::kWarp;
  return *reinterpret_cast<const float2*>(&tile[8 * g + fa::column_of(lane)]);
}

// Turns S into P = 2^(scale_log2 S - LSE2), which is normalised.
template <int n>
__device__ inline void compute_p(float (&rS)[n], const float (&LSE2)[2 * n], float scale_log2) {
  UNROLL
  for (int g = 0; g < n / 4; ++g) {
    const float2 l = of_rows(LSE2, g);
    UNROLL
    for (int e = 0; e < 4; ++e) {
      rS[4 * g + e] = fa::exp2_approx(fmaf(rS[4 * g + e], scale_log2, e % 2 ? -l.y : -l.x));
    }
  }
}

// Turns dP into dS = P (dP - delta).
template <int n>
__device__ inline void compute_ds(float (&rdP)[n], const uint32_t (&rP)[n / 8][4],
                                  const float (&delta)[2 * n]) {
  UNROLL
  for (int g = 0; g < n / 4; ++g) {
    const float2 D = of_rows(delta, g);
    UNROLL
    for (int i = 4 * g; i < 4 * g + 4; i += 2) {
      rdP[i] -= D.x, rdP[i + 1] -= D.y;
      multiply_by_p(rP[i / 8][i % 8 / 2], rdP[i], rdP[i + 1]);
    }
  }
}

// --- the kernels ---------------------------------------------------------------------------------

// Per row: delta = rowsum(dO * O), LSE2 = LSE * log2(e), inf for -inf (P = 0), and dQ_sum = 0.
template <int d>
__global__ void delta_kernel(const bf16* O,     // [B*H, N, d]
                             const bf16* dO,    // [B*H, N, d]
                             const float* LSE,  // [B*H, N]
                             float* delta,      // [B*H, Np]
                             float* LSE2,       // [B*H, Np]
                             float* dQ_sum,     // [B*H, Np, d]
                             int N, int Np) {
  const RowLanes<d> at(N, Np);
  at.clear(dQ_sum);
  const float sum = at.delta(O, dO);
  if (at.lane > 0) return;
  delta[at.padded] = sum;
  const float lse = at.lse(LSE);
  LSE2[at.padded] = lse == -INFINITY ? INFINITY : lse * fa::kLog2e;
}

// A block walks the tiles of rows that see its 128 keys, of all heads that share them.
template <int d>
__global__ void __launch_bounds__(kThreads, 1)
    backward_kernel(const __grid_constant__ fa::TensorMap Q,   // [B*H, N, d], boxes of Br rows
                    const __grid_constant__ fa::TensorMap K,   // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap V,   // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap dO,  // [B*H, N, d], of Br
                    const __grid_constant__ fa::TensorMap dK,  // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap dV,  // [B*Hkv, Nk, d], of 64
                    const float* LSE2, const float* delta,     // [B*H, Np]
                    FloatSums dQ_sum, Shape shape) {
  // --- prologue
  Tiles<d>& smem = *fa::dynamic_shared<Tiles<d>>();
  const int thread = threadIdx.x % kGroupThreads, warp = thread / fa::kWarp,
            lane = thread % fa::kWarp;
  const int wg = fa::uniform(threadIdx.x / kGroupThreads);
  const WorkTile work = work_tile_at(blockIdx.x, shape, Br);
  const int tiles = shape.group * (shape.Tr - work.first);
  const Sources from{&Q, &K, &V, &dO, LSE2, delta};
  RowTile at{work, shape}, ahead = at;  // ahead: the next tile to copy
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&smem.kv_full, 1);
    init_mbarriers(smem.full, 1);
    fa::mbarrier_init_fence();
    load_keys(smem, from, work);
    for (int stage = 0; stage < min(kStages, tiles); ++stage) {
      load_rows(smem, from, stage, ahead, shape.Tr);
      ahead.next(work, shape);
    }
  }
  __syncthreads();  // all threads see the mbarriers
  const uint64_t k = tile_descriptor(smem.K[wg]), v = tile_descriptor(smem.V[wg]);
  // For dQ: K of both warpgroups, MN-major, and this warpgroup's 64 rows of dS.
  const uint64_t k_all = tile_descriptor(smem.K[0], kGroupKeys * kRowBytes);
  const uint64_t ds = tile_descriptor(smem.dS + wg * Bc * kPanel);
  const int key = work.j * Bc + wg * kGroupKeys;            // the warpgroup's first key
  const int lane_key = key + warp * 16 + fa::row_of(lane);  // this lane's
  float rdK[d / 2] = {}, rdV[d / 2] = {};
  fa::mbarrier_wait(&smem.kv_full, 0);

  // --- mainloop
  for (int n = 0; n < tiles; ++n, at.next(work, shape)) {
    const int stage = n % kStages;
    const bf16 *sQ = smem.Q[stage], *sdO = smem.dO[stage];
    fa::mbarrier_wait(&smem.full[stage], n / kStages & 1);

    // P^T = 2^(S^T - LSE2)
    float rX[Br / 2];
    uint32_t rP[Br / kMma][4];
    multiply_features<d>(k, tile_descriptor(sQ), rX);
    wait_for<0>(rX);
    const int row = at.i * Br, last = key + kGroupKeys - 1;
    if (last >= shape.Nk || last > row + shape.shift) {
      const int lane_row = row + fa::column_of(lane);
      mask(rX, hidden(shape, lane_key, lane_row), hidden(shape, lane_key + 8, lane_row));
    }
    compute_p(rX, smem.LSE2[stage], shape.scale * fa::kLog2e);
    pack_operand(rX, rP);

    // dV += P^T dO, and dS^T
    multiply_rows<d>(rP, tile_descriptor(sdO, Br * kRowBytes), rdV);
    multiply_features<d>(v, tile_descriptor(sdO), rX);
    wait_for<0>(rdV);
    fa::pin_registers(rX);
    compute_ds(rX, rP, smem.delta[stage]);
    pack_operand(rX, rP);
    put_ds(rP, smem.dS);
    fa::fence_proxy_async();  // wgmma sees this thread's writes
    __syncthreads();          // dS of all keys is complete

    // dK += dS^T Q, and dQ = dS K
    float rdQ[d / 2];
    multiply_rows<d>(rP, tile_descriptor(sQ, Br * kRowBytes), rdK);
    multiply_transposed<d, Bc>(ds, k_all, rdQ);
    wait_for<0>(rdK);
    fa::pin_registers(rdQ);
    __syncthreads();  // all products have read the stage and dS
    if (threadIdx.x == 0 && n + kStages < tiles) {
      load_rows(smem, from, stage, ahead, shape.Tr);
      ahead.next(work, shape);
    }
    dQ_sum.part<d>((at.head * shape.Tr + at.i) * kGroups + wg).add(rdQ);
  }

  // --- epilogue: dK and dV are staged where this warpgroup's K and V were
  const float scales[2] = {shape.scale, shape.scale}, ones[2] = {1.f, 1.f};
  put_rows<d>(rdK, scales, smem.K[wg]);
  put_rows<d>(rdV, ones, smem.V[wg]);
  fa::fence_proxy_async();              // TMA reads what this thread has written ...
  fa::bar_sync(1 + wg, kGroupThreads);  // ... and what the warpgroup's others have
  if (thread == 0 && key < shape.Nk) {
    fa::tma_store(&dK, smem.K[wg], {0, key, 0, work.bh_kv});
    fa::tma_store(&dV, smem.V[wg], {0, key, 0, work.bh_kv});
    fa::tma_store_commit();
    fa::tma_store_wait_read<0>();  // shared memory must outlive the copies
  }
}

// --- host ----------------------------------------------------------------------------------------

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  const size_t rows = p.heads() * size_t(padded_rows(p));
  return {{"delta", 4 * rows}, {"LSE2", 4 * rows}, {"dQ_sum", 4 * rows * p.d}};
}

inline fa::Prediction backward_traffic(const fa::Problem& p) { return traffic_of(p, Br); }

template <int d>
void launch_delta(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::launch(delta_kernel<d>, row_blocks(p, d / 8), t.O, t.dO, t.LSE, t.scratch<float>("delta"),
             t.scratch<float>("LSE2"), t.scratch<float>("dQ_sum"), p.N, padded_rows(p));
}

template <int d, class Kernel>
void launch_all(Kernel kernel, const fa::Problem& p, const fa::Tensors<bf16>& t, size_t smem) {
  const Shape shape = shape_of(p, Br);
  launch_delta<d>(p, t);
  launch_mapped<d>(kernel, {work_tiles(shape), dim3(kThreads), smem}, p, t, Br,
                   t.scratch<float>("LSE2"), t.scratch<float>("delta"),
                   FloatSums{t.scratch<float>("dQ_sum")}, shape);
  launch_convert<d>(p, t);
}
inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::dispatch_d<64, 128>(
      p.d, [&](auto d) { launch_all<d>(backward_kernel<d>, p, t, sizeof(Tiles<d>)); });
}

}  // namespace step11_wgmma

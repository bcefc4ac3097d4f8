// Step 10 -- FlashAttention-3: warpgroups with different roles.
// Idea      A warpgroup gives its registers away and only copies. The others take turns: while one
//           computes weights, another multiplies. And each has work of its own under the weights of
//           tile j: the product P V of the tile before
// Changed   since 09: the thread that copies has nothing else to do, so it waits alone and early;
//           setmaxnreg; Q K^T of a tile is issued with P V of the one before; named barriers give
//           the turns. `lazy` moves the maximum only when a score has passed it by 2^8
// Traffic   requested read  2*BH*(N*d + 2*Tr*Nk*d) B   Tr = ceil(N/Br); causal: K and V of visited
//                     tiles write 2*BH*N*d + 4*BH*N B        O, LSE
//           compulsory      2*(2*BH*N*d + 2*BHkv*Nk*d) + 4*BH*N B
// Launch    grid (Tr * B*H), 128 threads a warpgroup: one copies, 2 (d = 128) or 4 compute; causal:
//           the longest walks of all heads first
// Owns      block: Br rows of O; warpgroup: 64 of them
// Still bad between blocks an SM is idle; causal warpgroups compute tiles that they do not see
#pragma once

#include "common/dialect/ptx/barrier.h"
#include "common/dialect/ptx/mbarrier.h"
#include "common/dialect/ptx/setmaxnreg.h"
#include "common/harness/tiles.h"
#include "steps/10_warp_specialized/1_warpgroup.cuh"

namespace step10_specialized {

using namespace step10;  // 1_warpgroup.cuh

template <class T>
struct alignas(1024) Tiles {                 // each as panels of 64 features, swizzled by TMA
  bf16 Q[T::kConsumers][kGroupRows * T::d];  // O on its way out
  bf16 K[T::kStagesK][T::Bc * T::d];
  bf16 V[T::kStagesV][T::Bc * T::d];
  uint64_t q_full;
  uint64_t k_full[T::kStagesK], k_empty[T::kStagesK];
  uint64_t v_full[T::kStagesV], v_empty[T::kStagesV];
};

// Br rows of a head and the keys that they see.
struct Work {
  int bh, bh_kv;  // head of Q and O, of K and V
  int row;        // the first one
  int tiles;      // of keys, at least one
  int N, Nk;
};

// --- one thread copies ---------------------------------------------------------------------------

// From the last tile of keys to the first, in the order of their use: K_n V_n K_n-1 ... would keep
// K waiting for V's place, so K goes ahead: K_n K_n-1 V_n K_n-2 V_n-1 ... V_0.
template <class T>
__device__ inline void load_tiles(Tiles<T>& smem, const fa::TensorMap* Q, const fa::TensorMap* K,
                                  const fa::TensorMap* V, const Work& w) {
  Ring<T::kStagesK> k;
  Ring<T::kStagesV> v;
  const auto load_k = [&](int j) {
    fa::mbarrier_wait(&smem.k_empty[k.stage], k.parity ^ 1);
    fa::mbarrier_arrive_expect_tx(&smem.k_full[k.stage], sizeof smem.K[0]);
    fa::tma_load(smem.K[k.stage], K, &smem.k_full[k.stage], {0, j * T::Bc, 0, w.bh_kv});
    k.next();
  };
  const auto load_v = [&](int j) {
    fa::mbarrier_wait(&smem.v_empty[v.stage], v.parity ^ 1);
    fa::mbarrier_arrive_expect_tx(&smem.v_full[v.stage], sizeof smem.V[0]);
    fa::tma_load(smem.V[v.stage], V, &smem.v_full[v.stage], {0, j * T::Bc, 0, w.bh_kv});
    v.next();
  };
  fa::mbarrier_arrive_expect_tx(&smem.q_full, sizeof smem.Q);
  for (int wg = 0; wg < T::kConsumers; ++wg) {
    fa::tma_load(smem.Q[wg], Q, &smem.q_full, {0, w.row + wg * kGroupRows, 0, w.bh});
  }
  load_k(w.tiles - 1);
  for (int j = w.tiles - 1; j >= 0; --j) {
    if (j > 0) load_k(j - 1);
    load_v(j);
  }
}

// --- the others multiply, and make weights of scores ---------------------------------------------

template <class T, bool kLazy>
__device__ inline void attend(Tiles<T>& smem, const fa::TensorMap* O,
                              float* LSE,  // [B*H, N]
                              const Work& w, float scale_log2, int wg) {
  constexpr int d = T::d, Bc = T::Bc;
  const int thread = threadIdx.x % kGroupThreads, warp = thread / fa::kWarp,
            lane = thread % fa::kWarp;
  const int row = w.row + wg * kGroupRows + warp * 16 + lane / 4;  // the lane's first one
  const uint64_t q = descriptor(smem.Q[wg]), k0 = descriptor(smem.K[0]);
  const uint64_t v0 = descriptor(smem.V[0], Bc * kRowBytes);
  const auto k_in = [&](unsigned stage) { return k0 + stage * (sizeof smem.K[0] >> 4); };
  const auto v_in = [&](unsigned stage) { return v0 + stage * (sizeof smem.V[0] >> 4); };
  const auto arrive = [&](uint64_t* bar) {  // a warp's; its 32 lanes are at the same place
    if (lane == 0) fa::mbarrier_arrive(bar);
  };
  // This warp is done with the ring's stage; on to the next one.
  const auto hand_back = [&](auto& ring, uint64_t* empty) {
    arrive(&empty[ring.stage]);
    ring.next();
  };
  // The warpgroups issue their products in turn, so that they do not all compute weights at once.
  const auto my_turn = [&] { fa::bar_sync(1 + wg, 2 * kGroupThreads); };
  const auto next_turn = [&] { fa::bar_arrive(1 + (wg + 1) % T::kConsumers, 2 * kGroupThreads); };
  float rS[Bc / 2], rO[d / 2] = {}, l[2] = {}, m[2] = {kNoMaximum, kNoMaximum}, alpha[2];
  uint32_t rP[Bc / kMma][4];
  Ring<T::kStagesK> k;
  Ring<T::kStagesV> v;

  // S of tile j has arrived: its weights. True when O must follow m.
  const auto weigh_tile = [&](int j) {
    if (visible<T>(w, w.row + wg * kGroupRows) <
        (j + 1) * Bc) {  // at the diagonal, or the last keys
      const int key = j * Bc + lane % 4 * 2;
      mask(rS, visible<T>(w, row) - key, visible<T>(w, row + 8) - key);
    }
    const bool raise = !kLazy || has_grown(rS, m, scale_log2);
    if (raise) raise_maximum(rS, scale_log2, m, l, alpha);
    weigh(rS, scale_log2, m, l);
    return raise;
  };

  // --- prologue: the weights of the first tile
  if (wg == T::kConsumers - 1) next_turn();  // warpgroup 0 begins
  fa::mbarrier_wait(&smem.q_full, 0);
  fa::mbarrier_wait(&smem.k_full[k.stage], k.parity);
  my_turn();
  multiply_scores<T>(q, k_in(k.stage), rS);
  next_turn();
  fa::wgmma_wait<0>();
  fa::pin_registers(rS);
  hand_back(k, smem.k_empty);
  weigh_tile(w.tiles - 1);
  pack(rS, rP);

  // --- mainloop: P V of a tile beside Q K^T of the next one, and beside that one's weights
  for (int j = w.tiles - 2; j >= 0; --j) {
    fa::mbarrier_wait(&smem.k_full[k.stage], k.parity);
    my_turn();
    multiply_scores<T>(q, k_in(k.stage), rS);
    fa::mbarrier_wait(&smem.v_full[v.stage], v.parity);
    multiply_values<T>(rP, v_in(v.stage), rO);
    next_turn();
    fa::wgmma_wait<1>();
    fa::pin_registers(rS);
    hand_back(k, smem.k_empty);
    const bool raised = weigh_tile(j);
    fa::pin_registers(rS);  // or ptxas computes the weights behind the wait
    fa::wgmma_wait<0>();
    fa::pin_registers(rO);
    fa::pin_registers(rS);  // and packs them before it, while P is in use
    hand_back(v, smem.v_empty);
    pack(rS, rP);
    if (raised) {
      UNROLL
      for (int i = 0; i < d / 2; ++i) rO[i] *= alpha[i / 2 % 2];
    }
  }
  fa::mbarrier_wait(&smem.v_full[v.stage], v.parity);
  multiply_values<T>(rP, v_in(v.stage), rO);
  fa::wgmma_wait<0>();
  fa::pin_registers(rO);
  if (wg == 0) my_turn();  // takes the last turn, so that no barrier is left half full

  // --- epilogue: O through the place of this warpgroup's Q
  float normalise[2];
  UNROLL
  for (int h = 0; h < 2; ++h) {
    l[h] += __shfl_xor_sync(fa::kFullMask, l[h], 1);
    l[h] += __shfl_xor_sync(fa::kFullMask, l[h], 2);
    normalise[h] = l[h] > 0.f ? 1.f / l[h] : 0.f;  // no key seen: O = 0
    if (lane % 4 == 0 && row + h * 8 < w.N) {
      LSE[size_t(w.bh) * w.N + row + h * 8] = (m[h] + log2f(l[h])) * fa::kLn2;
    }
  }
  fa::bar_sync(1 + T::kConsumers + wg, kGroupThreads);  // all four warps' products have read Q
  put_rows<d>(rO, normalise, smem.Q[wg]);
  fa::fence_proxy_async();  // TMA reads what this thread has written ...
  fa::bar_sync(1 + T::kConsumers + wg, kGroupThreads);  // ... and what the warpgroup's others have
  if (thread == 0) {
    fa::tma_store(O, smem.Q[wg], {0, w.row + wg * kGroupRows, 0, w.bh});
    fa::tma_store_commit();
    fa::tma_store_wait_read<0>();  // a block's memory must stay until it has been read
  }
}

template <class T, bool kLazy>
__global__ void __launch_bounds__(T::kThreads, 1)
    flash_fwd_kernel(const __grid_constant__ fa::TensorMap Q,  // [B*H, N, d]
                     const __grid_constant__ fa::TensorMap K,  // [B*Hkv, Nk, d]
                     const __grid_constant__ fa::TensorMap V,  // [B*Hkv, Nk, d]
                     const __grid_constant__ fa::TensorMap O,  // [B*H, N, d]
                     float* LSE,                               // [B*H, N]
                     int heads, int group, int N, int Nk, float scale) {
  Tiles<T>& smem = *fa::dynamic_shared<Tiles<T>>();
  if (threadIdx.x == 0) {
    constexpr int kWarps = T::kConsumers * kGroupThreads / fa::kWarp;
    fa::mbarrier_init(&smem.q_full, 1);
    init(smem.k_full, 1), init(smem.k_empty, kWarps);
    init(smem.v_full, 1), init(smem.v_empty, kWarps);
    fa::mbarrier_init_fence();
  }
  __syncthreads();  // the barriers are there
  // Causal walks have different lengths: all heads' longest ones start first.
  const int Tr = gridDim.x / heads;
  const int i = T::kCausal ? Tr - 1 - blockIdx.x / heads : blockIdx.x % Tr;
  const int bh = T::kCausal ? blockIdx.x % heads : blockIdx.x / Tr;
  Work w = {bh, bh / group, i * T::Br, 0, N, Nk};
  w.tiles = tiles_for<T>(w, w.row + T::Br - 1);
  const int wg =
      __shfl_sync(fa::kFullMask, threadIdx.x / kGroupThreads, 0);  // the same for the whole warp
  if (wg == 0) {
    fa::setmaxnreg_dec<T::kCopyRegisters>();
    if (threadIdx.x == 0) load_tiles<T>(smem, &Q, &K, &V, w);
  } else {
    fa::setmaxnreg_inc<T::kConsumerRegisters>();
    attend<T, kLazy>(smem, &O, LSE, w, scale * fa::kLog2e, wg - 1);
  }
}

// --- host ---------------------------------------------------------------------------------------

inline fa::Prediction traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d;
  fa::Prediction t;
  dispatch(p, [&](auto tiling) {
    using T = decltype(tiling);
    uint64_t keys = 0, products = 0;  // of all tiles of a head; of 64 rows and Bc keys
    for (int row = 0; row < p.N; row += T::Br) {
      const int tiles = visited_tiles<T>(p, row, T::Br);
      products += tiles * T::kConsumers;
      keys += std::min(tiles * T::Bc, p.Nk);
    }
    t["Q"].read = t["O"].write = 2 * BH * N * d;
    t["K"].read = t["V"].read = 2 * BH * keys * d;
    t["LSE"].write = 4 * BH * N;
    t.flops = 4 * BH * products * kGroupRows * T::Bc * d;
  });
  t.hbm = {.read = 2 * (BH * N * d + 2 * p.kv_size()), .write = 2 * BH * N * d + 4 * BH * N};
  return t;
}

template <bool kLazy>
void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  dispatch(p, [&](auto tiling) {
    using T = decltype(tiling);
    const uint64_t BH = p.heads(), BHkv = p.kv_heads(), N = p.N, Nk = p.Nk;
    const unsigned Tr = fa::ceil_div(p.N, T::Br);
    fa::launch(flash_fwd_kernel<T, kLazy>,
               {dim3(unsigned(Tr * BH)), dim3(T::kThreads), sizeof(Tiles<T>)},
               map_of<T::d>(t.Q, BH, N, kGroupRows), map_of<T::d>(t.K, BHkv, Nk, T::Bc),
               map_of<T::d>(t.V, BHkv, Nk, T::Bc), map_of<T::d>(t.O, BH, N, kGroupRows), t.LSE,
               int(BH), p.H / p.Hkv, p.N, p.Nk, p.scale());
  });
}

}  // namespace step10_specialized

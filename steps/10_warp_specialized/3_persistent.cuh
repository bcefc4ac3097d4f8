// Step 10 -- FlashAttention-3 and past it: three roles, work without a seam, a lazy maximum.
// Idea      A thread that copies, a thread that stores, and warpgroups that only multiply and
//           compute weights; none of them ever waits for the end of a tile of rows, for the next
//           one is already there. The maximum, which most tiles do not move, is checked by one vote
// Changed   since 2_specialized: as many blocks as SMs, which take an item of work after another;
//           Q twice, so an item's last product runs beside the next one's first; O stored by a
//           thread of its own; m moves only when a score has passed it by 2^8
// Traffic   requested read  2*BH*(N*d + 2*Tr*Nk*d) B   Tr = ceil(N/Br); causal: K and V of visited
//                     tiles write 2*BH*N*d + 4*BH*N B        O, LSE
//                     causal: 4 B an item and a block, atomic, and 8 B: the counters of items
//           compulsory      2*(2*BH*N*d + 2*BHkv*Nk*d) + 4*BH*N B
// Launch    grid (SMs, or fewer items), 128 threads a warpgroup: one copies and stores, 2 (d = 128)
// or 4 compute Owns      block: an item, Br rows of O, at a time; warpgroup: 64 of them
// Still bad short walks: the first tile of an item has its maximum and its mask to compute
#pragma once

#include "common/dialect/ptx/barrier.h"
#include "common/dialect/ptx/mbarrier.h"
#include "common/dialect/ptx/setmaxnreg.h"
#include "common/harness/tiles.h"
#include "steps/10_warp_specialized/1_warpgroup.cuh"

namespace step10 {

// What a launch says to all blocks.
struct Shape {
  int heads, group;  // query heads; how many of them share K and V
  int N, Nk;
  float scale_log2;
};

// Br rows of a head and the keys that they see.
struct Item {
  int bh, bh_kv;  // head of Q and O, of K and V
  int row;        // the first one
  int tiles;      // of keys, at least one; 0: there is no more work
};

template <class T>
struct alignas(1024) Tiles {                    // each as panels of 64 features, swizzled by TMA
  bf16 Q[2][T::kConsumers][kGroupRows * T::d];  // of this item and of the next; O on its way out
  bf16 K[T::kStagesK][T::Bc * T::d];
  bf16 V[T::kStagesV][T::Bc * T::d];
  uint64_t q_full[2][T::kConsumers], q_empty[2][T::kConsumers], o_full[2][T::kConsumers];
  uint64_t k_full[T::kStagesK], k_empty[T::kStagesK];
  uint64_t v_full[T::kStagesV], v_empty[T::kStagesV];
  Item item[2][T::kConsumers];  // comes with Q
};

// Item t of all. Causal: the longest walks of a section of heads first, then shorter ones.
template <class T>
__device__ inline Item item_at(int t, const Shape& p) {
  const int Tr = (p.N + T::Br - 1) / T::Br;
  if (t >= Tr * p.heads) return {0, 0, 0, 0};
  int bh = t / Tr, i = t % Tr;
  if (T::kCausal) {
    const int first = t / (T::kSection * Tr) * T::kSection;
    const int heads = min(T::kSection, p.heads - first), rank = t - first * Tr;
    bh = first + rank % heads, i = Tr - 1 - rank / heads;
  }
  return {bh, bh / p.group, i * T::Br, tiles_for<T>(p, (i + 1) * T::Br - 1)};
}

// --- one thread copies ---------------------------------------------------------------------------

// Q of each item, K and V of its tiles from the last one to the first, in the order of their use:
// K_n Q K_n-1 V_n K_n-2 V_n-1 ... V_0. It takes the items, too: each gridDim.x-th one, or, when
// they differ in length, the next one of all.
template <class T>
__device__ inline void load_tiles(Tiles<T>& smem, const fa::TensorMap* Q, const fa::TensorMap* K,
                                  const fa::TensorMap* V, const Shape& p, unsigned* taken) {
  Ring<T::kStagesK> k;
  Ring<T::kStagesV> v;
  const auto load_k = [&](int j, int bh) {
    fa::mbarrier_wait(&smem.k_empty[k.stage], k.parity ^ 1);
    fa::mbarrier_arrive_expect_tx(&smem.k_full[k.stage], sizeof smem.K[0]);
    fa::tma_load(smem.K[k.stage], K, &smem.k_full[k.stage], {0, j * T::Bc, 0, bh});
    k.next();
  };
  const auto load_v = [&](int j, int bh) {
    fa::mbarrier_wait(&smem.v_empty[v.stage], v.parity ^ 1);
    fa::mbarrier_arrive_expect_tx(&smem.v_full[v.stage], sizeof smem.V[0]);
    fa::tma_load(smem.V[v.stage], V, &smem.v_full[v.stage], {0, j * T::Bc, 0, bh});
    v.next();
  };
  for (int n = 0, t = blockIdx.x;; ++n) {
    const int b = n % 2;
    const Item item = item_at<T>(t, p);
    if (item.tiles > 0) load_k(item.tiles - 1, item.bh_kv);
    for (int wg = 0; wg < T::kConsumers; ++wg) {
      fa::mbarrier_wait(&smem.q_empty[b][wg], (n / 2 & 1) ^ 1);
      smem.item[b][wg] = item;
      if (item.tiles > 0) {
        fa::mbarrier_arrive_expect_tx(&smem.q_full[b][wg], sizeof smem.Q[b][wg]);
        fa::tma_load(smem.Q[b][wg], Q, &smem.q_full[b][wg],
                     {0, item.row + wg * kGroupRows, 0, item.bh});
      } else {
        fa::mbarrier_arrive(&smem.q_full[b][wg]);
      }
    }
    if (item.tiles == 0) break;
    t = gridDim.x + (T::kCausal ? atomicAdd(&taken[0], 1u) : t);
    for (int j = item.tiles - 1; j >= 0; --j) {
      if (j > 0) load_k(j - 1, item.bh_kv);
      load_v(j, item.bh_kv);
    }
  }
  // The last block to leave sets the counters back for the next launch. Launches that run at the
  // same time need counters of their own.
  if (T::kCausal) {
    __threadfence();
    if (atomicAdd(&taken[1], 1u) == gridDim.x - 1) taken[0] = 0, taken[1] = 0;
  }
}

// --- another one stores --------------------------------------------------------------------------

// O of each item and warpgroup, from the place where its Q was; then the place is free.
template <class T>
__device__ inline void store_tiles(Tiles<T>& smem, const fa::TensorMap* O) {
  for (int n = 0;; ++n) {
    const int b = n % 2;
    for (int wg = 0; wg < T::kConsumers; ++wg) {
      fa::mbarrier_wait(&smem.q_full[b][wg], n / 2 & 1);  // shows the item
      const Item item = smem.item[b][wg];
      if (item.tiles == 0) return;
      fa::mbarrier_wait(&smem.o_full[b][wg], n / 2 & 1);
      fa::tma_store(O, smem.Q[b][wg], {0, item.row + wg * kGroupRows, 0, item.bh});
      fa::tma_store_commit();
      fa::tma_store_wait_read<0>();
      fa::mbarrier_arrive(&smem.q_empty[b][wg]);
    }
  }
}

// --- the others multiply, and make weights of scores ---------------------------------------------

template <class T>
__device__ inline void attend(Tiles<T>& smem, float* LSE, const Shape& p, int wg) {
  constexpr int d = T::d, Bc = T::Bc;
  const int warp = threadIdx.x % kGroupThreads / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const uint64_t q0 = descriptor(smem.Q[0][wg], 16), k0 = descriptor(smem.K[0], 16);
  const uint64_t v0 = descriptor(smem.V[0], Bc * kRowBytes);
  const auto q_in = [&](unsigned b) { return q0 + b * (sizeof smem.Q[0] >> 4); };
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
  float rS[Bc / 2], rO[d / 2], m[2], l[2], alpha[2];
  uint32_t rP[Bc / kMma][4];
  Ring<T::kStagesK> k;
  Ring<T::kStagesV> v;
  Item item;
  int j = 0, skipped = 0;  // the tile whose scores come next; tiles of which V was not handed back

  // Lane 0 reads it for its warp, for which it also arrives: an order that racecheck can follow.
  const auto take = [&](unsigned n) {
    fa::mbarrier_wait(&smem.q_full[n % 2][wg], n / 2 & 1);
    if (lane == 0) item = smem.item[n % 2][wg];
    item.bh = __shfl_sync(fa::kFullMask, item.bh, 0);
    item.row = __shfl_sync(fa::kFullMask, item.row, 0) + wg * kGroupRows;
    item.tiles = __shfl_sync(fa::kFullMask, item.tiles, 0);
    return item.tiles > 0;
  };
  const auto skip = [&](auto& ring, uint64_t* full, uint64_t* empty) {
    fa::mbarrier_wait(&full[ring.stage], ring.parity);
    __syncwarp();  // or a late lane would find the next tile there, and wait for the one after it
    hand_back(ring, empty);
  };
  // Tiles that this warpgroup's rows do not see are handed back unread, K now, V only after the
  // product that still waits for its own V, or a shorter ring could be full of them.
  const auto skip_keys = [&] {
    j = tiles_for<T>(p, item.row + kGroupRows - 1) - 1;
    for (skipped = 0; skipped < item.tiles - 1 - j; ++skipped) skip(k, smem.k_full, smem.k_empty);
  };
  const auto skip_values = [&] {
    for (; skipped > 0; --skipped) skip(v, smem.v_full, smem.v_empty);
  };
  const auto cut = [&] {  // tile j at the diagonal or at the end of the keys
    const int row = item.row + warp * 16 + lane / 4, key = j * Bc + lane % 4 * 2;
    mask(rS, visible<T>(p, row) - key, visible<T>(p, row + 8) - key);
  };
  const auto is_cut = [&] { return visible<T>(p, item.row) < (j + 1) * Bc; };
  const auto first_weights = [&] {
    if (is_cut()) cut();
    UNROLL
    for (int h = 0; h < 2; ++h) {
      m[h] = fmaxf(kNoMaximum, row_maximum(rS, h) * p.scale_log2);
      l[h] = 0.f;
    }
    weigh(rS, p.scale_log2, m, l);
  };

  // --- prologue: the first weights of the first item
  take(0);
  skip_keys();
  skip_values();
  fa::mbarrier_wait(&smem.k_full[k.stage], k.parity);
  multiply_scores<T>(q_in(0), k_in(k.stage), rS);
  fa::wgmma_wait<0>();
  fa::pin_registers(rS);
  hand_back(k, smem.k_empty);
  first_weights();
  pack(rS, rP);

  bool more = true;
  for (unsigned n = 0; more; ++n) {
    const unsigned b = n % 2;
    UNROLL
    for (int i = 0; i < d / 2; ++i) rO[i] = 0.f;

    // --- mainloop: P V of a tile beside Q K^T of the next one, and beside that one's weights
    const auto next_tile = [&](auto may_be_cut) {
      --j;
      fa::mbarrier_wait(&smem.k_full[k.stage], k.parity);
      multiply_scores<T>(q_in(b), k_in(k.stage), rS);
      fa::mbarrier_wait(&smem.v_full[v.stage], v.parity);
      multiply_values<T>(rP, v_in(v.stage), rO);
      fa::wgmma_wait<1>();
      fa::pin_registers(rS);
      hand_back(k, smem.k_empty);
      if (decltype(may_be_cut)::value) cut();
      const bool grown = has_grown(rS, m, p.scale_log2);
      if (__builtin_expect(grown, 0)) raise_maximum(rS, p.scale_log2, m, l, alpha);
      weigh(rS, p.scale_log2, m, l);
      fa::pin_registers(rS);  // or ptxas computes the weights behind the wait
      fa::wgmma_wait<0>();
      fa::pin_registers(rO);
      fa::pin_registers(rS);  // and packs them before it, while P is in use
      hand_back(v, smem.v_empty);
      pack(rS, rP);
      if (__builtin_expect(grown, 0)) {
        UNROLL
        for (int i = 0; i < d / 2; ++i) rO[i] *= alpha[i / 2 % 2];
      }
    };
    // Only when N and Nk differ by no multiple of 64 does a warpgroup's diagonal cross two tiles.
    while (T::kCausal && j > 0 && visible<T>(p, item.row) < j * Bc) next_tile(std::true_type{});
    while (j > 0) next_tile(std::false_type{});

    // --- the seam: the item's last P V beside the next one's first Q K^T. Without a next one that
    // product is of old tiles and for nothing: a branch around it would make ptxas wait for each.
    const Item old = item;
    const float old_m[2] = {m[0], m[1]};
    float old_l[2] = {l[0], l[1]}, normalise[2];
    more = take(n + 1);
    if (more) {
      skip_keys();
      fa::mbarrier_wait(&smem.k_full[k.stage], k.parity);
    }
    multiply_scores<T>(q_in(more ? b ^ 1 : b), k_in(more ? k.stage : 0), rS);
    fa::mbarrier_wait(&smem.v_full[v.stage], v.parity);
    multiply_values<T>(rP, v_in(v.stage), rO);
    fa::wgmma_wait<1>();
    fa::pin_registers(rS);
    if (more) {
      hand_back(k, smem.k_empty);
      first_weights();
    }
    UNROLL
    for (int h = 0; h < 2; ++h) {
      old_l[h] += __shfl_xor_sync(fa::kFullMask, old_l[h], 1);
      old_l[h] += __shfl_xor_sync(fa::kFullMask, old_l[h], 2);
      normalise[h] = old_l[h] > 0.f ? __fdividef(1.f, old_l[h]) : 0.f;  // no key seen: O = 0
      const int row = old.row + warp * 16 + lane / 4 + h * 8;
      if (lane % 4 == 0 && row < p.N) {
        LSE[size_t(old.bh) * p.N + row] = (old_m[h] + __log2f(old_l[h])) * fa::kLn2;
      }
    }
    fa::wgmma_wait<0>();
    fa::pin_registers(rO);
    fa::pin_registers(rS);
    hand_back(v, smem.v_empty);
    skip_values();
    pack(rS, rP);

    // --- epilogue
    fa::bar_sync(1 + wg, kGroupThreads);  // all four warps' products have read Q
    put_rows<d>(rO, normalise, smem.Q[b][wg]);
    fa::fence_proxy_async();  // TMA reads what this thread has written ...
    __syncwarp();             // ... and what the other lanes have
    arrive(&smem.o_full[b][wg]);
  }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    flash_fwd_kernel(const __grid_constant__ fa::TensorMap Q,  // [B*H, N, d]
                     const __grid_constant__ fa::TensorMap K,  // [B*Hkv, Nk, d]
                     const __grid_constant__ fa::TensorMap V,  // [B*Hkv, Nk, d]
                     const __grid_constant__ fa::TensorMap O,  // [B*H, N, d]
                     float* LSE,                               // [B*H, N]
                     Shape p, unsigned* taken) {               // [2]: items, blocks that left
  Tiles<T>& smem = *fa::dynamic_shared<Tiles<T>>();
  if (threadIdx.x == 0) {
    constexpr int kWarps = kGroupThreads / fa::kWarp, kAllWarps = T::kConsumers * kWarps;
    for (int b = 0; b < 2; ++b) {
      init(smem.q_full[b], 1), init(smem.q_empty[b], 1), init(smem.o_full[b], kWarps);
    }
    init(smem.k_full, 1), init(smem.k_empty, kAllWarps);
    init(smem.v_full, 1), init(smem.v_empty, kAllWarps);
    fa::mbarrier_init_fence();
  }
  __syncthreads();  // the barriers are there
  const int wg =
      __shfl_sync(fa::kFullMask, threadIdx.x / kGroupThreads, 0);  // the same for the whole warp
  if (wg == 0) {
    fa::setmaxnreg_dec<T::kCopyRegisters>();
    if (threadIdx.x == 0) load_tiles<T>(smem, &Q, &K, &V, p, taken);
    if (threadIdx.x == fa::kWarp) store_tiles<T>(smem, &O);
  } else {
    fa::setmaxnreg_inc<T::kConsumerRegisters>();
    attend<T>(smem, LSE, p, wg - 1);
  }
}

// --- host ---------------------------------------------------------------------------------------

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  if (!p.causal) return {};
  return {{.name = "taken", .bytes = 2 * sizeof(unsigned), .zeroed = true}};
}

template <class T>
int items_of(const fa::Problem& p) {
  return fa::ceil_div(p.N, T::Br) * p.heads();
}

// With fewer blocks than SMs for tests.
template <class T>
void launch(const fa::Problem& p, const fa::Tensors<bf16>& t, int blocks) {
  constexpr int d = T::d;
  const uint64_t BH = p.heads(), BHkv = p.kv_heads(), N = p.N, Nk = p.Nk;
  const Shape shape{int(BH), p.H / p.Hkv, p.N, p.Nk, p.scale() * fa::kLog2e};
  fa::launch(flash_fwd_kernel<T>,
             {dim3(std::min(blocks, items_of<T>(p))), dim3(T::kThreads), sizeof(Tiles<T>)},
             map_of<d>(t.Q, BH, N, kGroupRows), map_of<d>(t.K, BHkv, Nk, T::Bc),
             map_of<d>(t.V, BHkv, Nk, T::Bc), map_of<d>(t.O, BH, N, kGroupRows), t.LSE, shape,
             p.causal ? t.template scratch<unsigned>("taken") : nullptr);
}

inline fa::Prediction traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d;
  fa::Prediction t;
  dispatch(p, [&](auto tiling) {
    using T = decltype(tiling);
    const uint64_t items = items_of<T>(p),
                   blocks = std::min<uint64_t>(fa::multiprocessors(), items);
    uint64_t keys = 0, products = 0;  // of all items of a head; of 64 rows and Bc keys
    for (int row = 0; row < fa::ceil_div(p.N, T::Br) * T::Br; row += kGroupRows) {
      products += visited_tiles<T>(p, row, kGroupRows);
      if (row % T::Br == 0) keys += std::min(visited_tiles<T>(p, row, T::Br) * T::Bc, p.Nk);
    }
    t["Q"].read = t["O"].write = 2 * BH * N * d;
    t["K"].read = t["V"].read = 2 * BH * keys * d;
    t["LSE"].write = 4 * BH * N;
    if (p.causal) t["taken"] = {.read = 0, .write = 8, .atomic = 4 * (items + blocks)};
    t.flops = 4 * BH * products * kGroupRows * T::Bc * d;
    t.flops += 2 * blocks * T::Br * T::Bc * d;  // the last Q K^T of a block, for nothing
  });
  t.hbm = {.read = 2 * (BH * N * d + 2 * p.kv_size()), .write = 2 * BH * N * d + 4 * BH * N};
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  dispatch(p, [&](auto tiling) { launch<decltype(tiling)>(p, t, fa::multiprocessors()); });
}

}  // namespace step10

// Step 15 -- the backward of a sliding window.
// Idea      The same mask, seen from the keys: the rows that see a tile of keys are a band, too.
//           Their first and last tile follow from the edges that rows have, turned around
// Changed   since 08 6_atomics: causal becomes a window; walks end at the last row that sees the
//           tile's last key, and lie in shared memory; gradients of keys that no row sees are 0
// Traffic   requested as 08 6_atomics, of visited tiles
// Launch    as 08 6_atomics
// Owns      as 08 6_atomics
// Still bad as 1_window
#pragma once

#include "steps/08_tensor_core_backward/6_atomics.cuh"
#include "steps/15_masks/1_window.cuh"

namespace step15_backward {

using namespace step08;  // the products, the tiles, delta_kernel and convert_kernel
using step15::Band, step15::Work;

// Of `Work` row and rows are the document's here, key and keys the tile's first one and how many
// are left of it. Row r of the document has the tile's key r + keys - rows.
struct KeyWork : Work {
  int sums;  // the tile of dQ_sum where the document's rows begin
};

// The tiles of rows that see some of a block's keys, and the test in those that are cut.
template <int Br, int Bc>
struct Walk {
  int low, high;    // row r sees the tile's keys from r + low up to, but not including, r + high
  int keys;         // of the document, from the tile's first one on
  int first, last;  // tiles of rows of the document: first .. last - 1
  __device__ Walk(const Band& band, const Work& w)
      : low(w.keys - w.rows - band.left), high(w.keys - w.rows + band.right + 1), keys(w.keys) {
    const int begin = max(0, 1 - high), end = min(w.rows, min(Bc, keys) - low);
    first = begin / Br;
    last = begin < end ? (end + Br - 1) / Br : first;
  }
  __device__ int tile(int n) const { return n; }
  // Where 8_scores_backward.cuh multiplies dS by what a score's change has for a derivative.
  template <int kBands, int Cols>
  __device__ void chain_rule(const float (&)[kBands][Cols / 8][4], const float*,
                             float (&)[kBands][Cols / 8][4], int, int, int, int) const {}

  // Scores that their row does not see become -inf, if an edge cuts the warp's keys and these rows
  // of tile n, from row q of the tile on.
  template <int kBands, int Cols>
  __device__ void hide(float (&rS)[kBands][Cols / 8][4], int n, int q, int warp_key, int) const {
    const int row = tile(n) * Br + q, lane = threadIdx.x % fa::kWarp;
    if (row + Cols - 1 + low <= warp_key && min(keys, row + high) >= warp_key + kBands * kMma) {
      return;
    }
    UNROLL
    for (int t = 0; t < kBands; ++t) {
      UNROLL
      for (int n = 0; n < Cols / 8; ++n) {
        UNROLL
        for (int e = 0; e < 4; ++e) {
          const int r = row + fa::column_of(lane) + n * 8 + e % 2;
          const int c = warp_key + fa::row_of(lane) + t * kMma + e / 2 * 8;
          if (c < r + low || c >= min(keys, r + high)) rS[t][n][e] = -INFINITY;
        }
      }
    }
  }
};

struct Window : step15::Window {
  // The block's tile of keys and key head: all heads' longest walks first, if they differ.
  template <int Bc>
  __device__ KeyWork key_work(int kv_heads, int* kv_head) const {
    const int Tc = gridDim.x / kv_heads, b = blockIdx.x;
    const int j = grows ? b / kv_heads : b % Tc;
    *kv_head = grows ? b % kv_heads : b / Tc;
    return {{0, N, j * Bc, Nk - j * Bc}, 0};
  }
  template <int Br, int Bc>
  __device__ Walk<Br, Bc> row_walk(const KeyWork& work) const {
    return {band, work};
  }
};

// Beside the tiles what a block needs once per tile or per head: no register is left for it.
template <int d, int Br, int Bc>
struct Shared : Tiles<d, Br, Bc> {
  int first, last;  // of the walk
  size_t row;       // the document's first, of the group's first head
  size_t sums;      // likewise: where the document's tiles of dQ_sum begin
  size_t key;       // the block's first
  int rows, keys;   // of the document; of keys those from the block's first one on
};

// A block owns a tile of keys and walks the tiles of rows that see it. dK and dV stay in registers;
// so does P. It walks the rows of each of the `group` heads that share these keys.
template <int d, int Br, int Bc, class Mask>
__global__ void __launch_bounds__(Tiles<d, Br, Bc>::kThreads, d == 64 ? 2 : 1)
    backward_kernel(const bf16* Q,       // [B*H, N, d]
                    const bf16* K,       // [B*Hkv, Nk, d]
                    const bf16* V,       // [B*Hkv, Nk, d]
                    const bf16* dO,      // [B*H, N, d]
                    const float* LSE2,   // [B*H, N]
                    const float* delta,  // [B*H, N]
                    float* dQ_sum,       // [B*H, Np / 16, d / 8, 4, 32]; Np: N in whole tiles
                    bf16* dK,            // [B*Hkv, Nk, d]
                    bf16* dV,            // [B*Hkv, Nk, d]
                    Mask mask, int kv_heads, int group, int N, int Nk, int Tr, float scale) {
  // --- prologue: K_j and V_j stay in shared memory
  using T = Shared<d, Br, Bc>;
  T& smem = *fa::dynamic_shared<T>();
  constexpr int kBands = T::kBands, kWarpKeys = T::kWarpKeys, kThreads = T::kThreads;
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int tx = fa::column_of(lane);  // this lane's first row
  int kv_head;
  const auto work = mask.template key_work<Bc>(kv_heads, &kv_head);
  const auto walk = mask.template row_walk<Br, Bc>(work);
  const size_t key0 = size_t(kv_head) * Nk + work.key;
  if (threadIdx.x == 0) {
    smem.first = walk.first, smem.last = walk.last;
    smem.row = size_t(kv_head) * group * N + work.row;
    smem.sums = size_t(kv_head) * group * Tr + work.sums;
    smem.key = key0, smem.rows = work.rows, smem.keys = work.keys;
  }
  __syncthreads();  // these numbers are there
  load_tile<d, Bc, kThreads>(K + key0 * d, smem.K, work.keys);
  load_tile<d, Bc, kThreads>(V + key0 * d, smem.V, work.keys);
  const int key = warp * kWarpKeys;  // the warp's first, in the tile
  bf16 *sK = smem.K + key * d, *sV = smem.V + key * d;
  const float scale_log2 = scale * fa::kLog2e;
  float rdK[kBands][d / 8][4] = {}, rdV[kBands][d / 8][4] = {};

  // --- mainloop
  for (int h = 0; h < group; ++h) {
    auto load_rows = [&](int n) {
      const int i = walk.tile(n), stage = n % kStages, rows = smem.rows - i * Br, r = threadIdx.x;
      const size_t row0 = smem.row + size_t(h) * N + i * Br;
      load_tile<d, Br, kThreads>(Q + row0 * d, smem.Q[stage], rows);
      load_tile<d, Br, kThreads>(dO + row0 * d, smem.dO[stage], rows);
      if (r < Br) {  // past the end all are 0: P is 1 there, and adds 1 * 0
        fa::cp_async_4(&smem.LSE2[stage][r], LSE2 + row0 + r, r < rows ? 4 : 0);
        fa::cp_async_4(&smem.delta[stage][r], delta + row0 + r, r < rows ? 4 : 0);
      }
    };
    auto add_dQ = [&](int n) {
      query_gradient<d, Br, Bc>(smem.dS[n % kStages], smem.K,
                                dQ_sum + (smem.sums + size_t(h) * Tr + walk.tile(n)) * Br * d);
    };
    if (smem.first == smem.last) break;  // no row sees the block's keys
    load_rows(smem.first);
    for (int step = smem.first; step < smem.last; ++step) {
      fa::cp_async_wait_all();
      __syncthreads();  // this tile is here; the one before has been read, and its dS is complete
      if (step + 1 < smem.last) load_rows(step + 1);
      const int stage = step % kStages;
      UNROLL
      for (int q = 0; q < Br; q += T::kRows) {
        const bf16 *sQ = smem.Q[stage] + q * d, *sdO = smem.dO[stage] + q * d;
        const float *sLSE2 = smem.LSE2[stage] + q, *sdelta = smem.delta[stage] + q;

        // P^T = exp(S^T - LSE), normalised at once: LSE holds both m and log l.
        float rP[kBands][T::kRows / 8][4] = {};
        dot_rows<d, kBands, T::kRows>(sK, sQ, rP);
        walk.template hide<kBands, T::kRows>(rP, step, q, key, h);
        UNROLL
        for (int n = 0; n < T::kRows / 8; ++n) {
          const float2 row_lse = *reinterpret_cast<const float2*>(&sLSE2[n * 8 + tx]);
          UNROLL
          for (int t = 0; t < kBands; ++t) {
            UNROLL
            for (int e = 0; e < 4; ++e) {
              rP[t][n][e] =
                  fa::exp2_approx(rP[t][n][e] * scale_log2 - (e % 2 ? row_lse.y : row_lse.x));
            }
          }
        }
        add_product<d, kBands, T::kRows>(rP, sdO, rdV);

        // dS^T = P^T (dP^T - delta): the sum of dP^T = V dO^T starts from -delta.
        float rdS[kBands][T::kRows / 8][4];
        UNROLL
        for (int n = 0; n < T::kRows / 8; ++n) {
          const float2 row_delta = *reinterpret_cast<const float2*>(&sdelta[n * 8 + tx]);
          UNROLL
          for (int t = 0; t < kBands; ++t) {
            UNROLL
            for (int e = 0; e < 4; ++e) rdS[t][n][e] = e % 2 ? -row_delta.y : -row_delta.x;
          }
        }
        dot_rows<d, kBands, T::kRows>(sV, sdO, rdS);
        UNROLL
        for (int t = 0; t < kBands; ++t) {
          UNROLL
          for (int n = 0; n < T::kRows / 8; ++n) {
            UNROLL
            for (int e = 0; e < 4; ++e) rdS[t][n][e] *= rP[t][n][e];
          }
        }
        walk.template chain_rule<kBands, T::kRows>(rP, sLSE2, rdS, step, q, key, h);
        put_tile<Br, kBands, T::kRows>(rdS, smem.dS[stage] + key * Br, q, fa::pack_bf16);
        add_product<d, kBands, T::kRows>(rdS, sQ, rdK);
      }
      if (step > smem.first) add_dQ(step - 1);
    }
    __syncthreads();  // all warps are done with this head's tiles; the last dS is complete
    add_dQ(smem.last - 1);
  }

  // --- epilogue: dK and dV go through the warp's keys of K and V
  fa::cp_async_wait_all();  // where no row was walked, their copies may still be under way
  __syncthreads();          // all warps are done with K
  const size_t at = (smem.key + key) * d;
  store_tile<d, kBands>(rdK, scale, sK, dK + at, smem.keys - key);
  store_tile<d, kBands>(rdV, 1.f, sV, dV + at, smem.keys - key);
}

// --- host ---------------------------------------------------------------------------------------

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  float *delta = t.scratch<float>("delta"), *LSE2 = t.scratch<float>("LSE2");
  float* dQ_sum = t.scratch<float>("dQ_sum");
  const unsigned BHkv = p.kv_heads();
  const dim3 rows(row_blocks(p));
  const int Np = padded_rows(p);
  dispatch_tiles<Tiles>(p, [&](auto d, auto Br, auto Bc) {
    const dim3 grid(fa::ceil_div(p.Nk, Bc) * BHkv);
    using T = Shared<d, Br, Bc>;
    fa::launch(delta_kernel<d>, {rows, dim3(kRowThreads)}, t.O, t.dO, t.LSE, delta, LSE2, dQ_sum,
               p.N, Np);
    fa::launch(backward_kernel<d, Br, Bc, Window>, {grid, dim3(T::kThreads), sizeof(T)}, t.Q, t.K,
               t.V, t.dO, LSE2, delta, dQ_sum, t.dK, t.dV, Window{step15::window_of(p)}, int(BHkv),
               p.H / p.Hkv, p.N, p.Nk, Np / Br, p.scale());
    fa::launch(convert_kernel<d>, {rows, dim3(kRowThreads)}, dQ_sum, t.dQ, p.N, Np, p.scale());
  });
}

}  // namespace step15_backward

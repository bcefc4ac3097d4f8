// Step 08, second part -- without atomics: always the same bits.
// Idea      dQ of a row is a sum over keys, as O is: a block that owns rows and walks the keys,
//           like the forward, sums it in registers in a fixed order. It has to compute S and dP
//           again: 7 products instead of 5
// Changed   since 2_atomics.cuh: that kernel makes dK and dV only; a second one makes dQ
// Traffic   requested read  2*BH*(4*N + 2*Tc*N)*d + 2*BHkv*2*Nk*d + 2*BH*2*Tr*Nk*d
//                             + 4*BH*(3*N + 2*Tc*N) B
//                     write 2*BH*N*d + 2*BHkv*2*Nk*d + 8*BH*N B
//                           Tr = N/128, Tc = Nk/128; causal: visited tiles
//           compulsory      2*(7*BH*N*d + 6*BHkv*Nk*d) + 28*BH*N B
// Launch    backward_kernel: grid (Tc * B*Hkv); query_kernel: grid (Tr * B*H), 128 threads
// Owns      block: 128 keys of dK and dV, or 128 rows of dQ; warp of query_kernel: 32 of these
// Still bad 7 products
#pragma once

#include "steps/08_tensor_core_backward/2_atomics.cuh"

namespace step08_deterministic {

using fa::bf16;
using namespace step08;  // delta_kernel, backward_kernel and the products

constexpr int kBlockRows = 128;              // rows of a block
constexpr int kRowWarps = 4, kRowBands = 2;  // a warp: two bands of 16 rows
constexpr int kTileKeys = 32;                // keys of a tile

// What query_kernel keeps in shared memory: 49 KB when d = 64, 97 KB when d = 128.
template <int d>
struct RowTiles {
  bf16 Q[kBlockRows * d];  // dQ on its way out
  bf16 dO[kBlockRows * d];
  bf16 K[kStages][kTileKeys * d];
  bf16 V[kStages][kTileKeys * d];
  float LSE2[kBlockRows];
  float delta[kBlockRows];
};

// dQ: a block owns 128 rows and walks the keys that they see, like the forward.
template <int d>
__global__ void __launch_bounds__(kRowWarps* fa::kWarp, 2)
    query_kernel(const bf16* Q,       // [B*H, N, d]
                 const bf16* K,       // [B*Hkv, Nk, d]
                 const bf16* V,       // [B*Hkv, Nk, d]
                 const bf16* dO,      // [B*H, N, d]
                 const float* LSE2,   // [B*H, N]
                 const float* delta,  // [B*H, N]
                 bf16* dQ,            // [B*H, N, d]
                 int heads, int group, int N, int Nk, float scale, bool causal) {
  // --- prologue: which rows; Q_i and dO_i stay in shared memory
  constexpr int kThreads = kRowWarps * fa::kWarp, kBand = kRowBands * kMma;
  RowTiles<d>& smem = *fa::dynamic_shared<RowTiles<d>>();
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int Tr = gridDim.x / heads;
  const int i = causal ? Tr - 1 - blockIdx.x / heads : blockIdx.x % Tr;
  const size_t bh = causal ? blockIdx.x % heads : blockIdx.x / Tr;
  const int rows = N - i * kBlockRows, row = i * kBlockRows + warp * kBand;  // the warp's first
  Q += (bh * N + i * kBlockRows) * d, dO += (bh * N + i * kBlockRows) * d, dQ += (bh * N + row) * d;
  LSE2 += bh * N + i * kBlockRows, delta += bh * N + i * kBlockRows;
  K += bh / group * Nk * d, V += bh / group * Nk * d;
  load_tile<d, kBlockRows, kThreads>(Q, smem.Q, rows);
  load_tile<d, kBlockRows, kThreads>(dO, smem.dO, rows);
  static_assert(kThreads == kBlockRows, "a thread a row");
  const int r = threadIdx.x;
  fa::cp_async_4(&smem.LSE2[r], LSE2 + r, r < rows ? 4 : 0);
  fa::cp_async_4(&smem.delta[r], delta + r, r < rows ? 4 : 0);
  auto load_keys = [&](int j) {
    load_tile<d, kTileKeys, kThreads>(K + size_t(j) * kTileKeys * d, smem.K[j % kStages],
                                      Nk - j * kTileKeys);
    load_tile<d, kTileKeys, kThreads>(V + size_t(j) * kTileKeys * d, smem.V[j % kStages],
                                      Nk - j * kTileKeys);
  };
  const int seen =
      causal ? min(Nk, (i + 1) * kBlockRows + Nk - N) : Nk;  // keys, by the tile's last row
  const int tiles = seen <= 0 ? 0 : (seen + kTileKeys - 1) / kTileKeys;
  if (tiles > 0) load_keys(0);
  bf16 *sQ = smem.Q + warp * kBand * d, *sdO = smem.dO + warp * kBand * d;
  const float scale_log2 = scale * fa::kLog2e;
  float rdQ[kRowBands][d / 8][4] = {};

  // --- mainloop
  for (int j = 0; j < tiles; ++j) {
    fa::cp_async_wait_all();
    __syncthreads();  // all copies of tile j are here, and all warps are done with tile j - 1
    if (j + 1 < tiles) load_keys(j + 1);
    const bf16 *sK = smem.K[j % kStages], *sV = smem.V[j % kStages];
    float rP[kRowBands][kTileKeys / 8][4] = {}, rdS[kRowBands][kTileKeys / 8][4];
    dot_rows<d, kRowBands, kTileKeys>(sQ, sK, rP);
    if ((j + 1) * kTileKeys > (causal ? min(Nk, row + 1 + Nk - N) : Nk)) {
      mask<false, kRowBands, kTileKeys>(rP, row + lane / 4, j * kTileKeys + lane % 4 * 2, N, Nk,
                                        causal);
    }
    UNROLL
    for (int t = 0; t < kRowBands; ++t) {
      UNROLL
      for (int e = 0; e < 4; ++e) {
        const int own = warp * kBand + t * kMma + lane / 4 + e / 2 * 8;
        const float row_lse = smem.LSE2[own], row_delta = smem.delta[own];
        UNROLL
        for (int n = 0; n < kTileKeys / 8; ++n) {
          rP[t][n][e] = fa::exp2_approx(rP[t][n][e] * scale_log2 - row_lse);
          rdS[t][n][e] = -row_delta;
        }
      }
    }
    dot_rows<d, kRowBands, kTileKeys>(sdO, sV, rdS);  // dP, added to -delta
    UNROLL
    for (int t = 0; t < kRowBands; ++t) {
      UNROLL
      for (int n = 0; n < kTileKeys / 8; ++n) {
        UNROLL
        for (int e = 0; e < 4; ++e) rdS[t][n][e] *= rP[t][n][e];
      }
    }
    add_product<d, kRowBands, kTileKeys>(rdS, sK, rdQ);
  }

  // --- epilogue
  fa::cp_async_wait_all();  // without a tile Q may still be under way
  __syncthreads();          // and other threads' copies of it
  store_tile<d, kRowBands>(rdQ, scale, sQ, dQ, N - row);
}

// --- host ---------------------------------------------------------------------------------------

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  return {{"delta", 4 * p.rows()}, {"LSE2", 4 * p.rows()}};
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d;
  const fa::TileVisits by_keys = fa::visited_tiles(p, Br, Bc);                 // of backward_kernel
  const fa::TileVisits by_rows = fa::visited_tiles(p, kBlockRows, kTileKeys);  // of query_kernel
  fa::Prediction t;
  t["O"].read = 2 * BH * N * d;
  t["dO"].read = 2 * BH * (2 * N + by_keys.rows) * d;  // delta; tiles of keys; tiles of rows
  t["Q"].read = 2 * BH * (N + by_keys.rows) * d;
  t["LSE"].read = 4 * BH * N;
  t["LSE2"] = t["delta"] = {.read = 4 * BH * (N + by_keys.rows), .write = 4 * BH * N};
  t["K"].read = t["V"].read = 2 * p.kv_size() + 2 * BH * by_rows.keys * d;
  t["dQ"].write = 2 * BH * N * d;
  t["dK"].write = t["dV"].write = 2 * p.kv_size();
  t.flops = BH * (8 * Br * Bc * by_keys.tiles + 6 * kBlockRows * kTileKeys * by_rows.tiles) * d;
  t.hbm = {.read = 2 * (6 * BH * N * d + 4 * p.kv_size()) + 20 * BH * N,
           .write = 2 * (BH * N * d + 2 * p.kv_size()) + 8 * BH * N};
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) { step07::forward(p, t); }

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  float *delta = t.scratch<float>("delta"), *LSE2 = t.scratch<float>("LSE2");
  const unsigned BH = p.heads(), BHkv = p.kv_heads();
  const unsigned Tr = fa::ceil_div(p.N, kBlockRows), Tc = fa::ceil_div(p.Nk, Bc);
  const int Np = fa::ceil_div(p.N, Br) * Br, group = p.H / p.Hkv;
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    fa::launch(delta_kernel<d>, {dim3(row_blocks<d>(p)), dim3(kRowThreads)}, t.O, t.dO, t.LSE,
               delta, LSE2, nullptr, p.N, Np);
    fa::launch(backward_kernel<d, false>, {dim3(Tc * BHkv), dim3(kThreads<d>), sizeof(Tiles<d>)},
               t.Q, t.K, t.V, t.dO, LSE2, delta, nullptr, t.dK, t.dV, int(BHkv), group, p.N, p.Nk,
               p.scale(), p.causal);
    fa::launch(query_kernel<d>, {dim3(Tr * BH), dim3(kRowWarps * fa::kWarp), sizeof(RowTiles<d>)},
               t.Q, t.K, t.V, t.dO, LSE2, delta, t.dQ, int(BH), group, p.N, p.Nk, p.scale(),
               p.causal);
  });
}

}  // namespace step08_deterministic

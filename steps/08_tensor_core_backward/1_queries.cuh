// Step 08 -- dQ on tensor cores, bf16.
// Idea      dQ of a row is a sum over keys, as O is: a block owns rows and walks the keys. P needs
//           no running maximum and sum, because LSE holds both. dS = P (dP - delta) stays in the
//           registers, in the pattern in which dQ += dS K takes its A operand
// Changed   since 07 4_lazy: a second product, dP = dO V^T; P from LSE instead of the online
//           softmax; dQ += dS K in place of O += P V
// Traffic   requested read  2*BH*(4*N*d + 2*Tr*Nk*d) + 12*BH*N B  Tr = N/128; causal: visited tiles
//                     write 2*BH*N*d + 8*BH*N B                   dQ; delta, LSE2
//           compulsory      2*(4*BH*N*d + 2*BHkv*Nk*d) + 4*BH*N B
// Launch    grid (Tr * B*H), 128 threads; causal: the longest walks of all heads first
// Owns      block: 128 rows of dQ; warp: 32 of them; lane: of 4 rows every fourth pair of columns
// Still bad dK and dV are missing: 2_keys
#pragma once

#include "steps/08_tensor_core_backward/parts.cuh"

namespace step08_queries {

using namespace step08;  // the products

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * fa::kWarp;
constexpr int kBands = 2;  // of 16 rows per warp: each fragment of K and V serves both
constexpr int kWarpRows = kBands * kMma;  // of a warp
constexpr int Br = kWarps * kWarpRows;    // rows of a tile of Q
template <int d>
constexpr int Bc = d == 64 ? 64 : 32;  // keys of a tile: what the registers hold beside dQ

// What a block keeps in shared memory: 49 KB when d = 64, 97 KB when d = 128.
template <int d>
struct Tiles {
  bf16 Q[Br * d];  // dQ on its way out
  bf16 dO[Br * d];
  bf16 K[kStages][Bc<d> * d];
  bf16 V[kStages][Bc<d> * d];
  float LSE2[Br];  // in powers of 2
  float delta[Br];
};

// Two blocks per SM: 255 registers per thread, and eight warps at different places in the loop.
template <int d>
__global__ void __launch_bounds__(kThreads, 2)
    query_kernel(const bf16* Q,       // [B*H, N, d]
                 const bf16* K,       // [B*Hkv, Nk, d]
                 const bf16* V,       // [B*Hkv, Nk, d]
                 const bf16* dO,      // [B*H, N, d]
                 const float* LSE2,   // [B*H, N]
                 const float* delta,  // [B*H, N]
                 bf16* dQ,            // [B*H, N, d]
                 int heads, int group, int N, int Nk, float scale, bool causal) {
  // --- prologue: which tile; Q_i, dO_i, K_0 and V_0 set out
  Tiles<d>& smem = *fa::dynamic_shared<Tiles<d>>();
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  // Causal walks have different lengths: all heads' longest ones start first, and the short ones
  // fill the gaps at the end. Else the blocks of a head follow each other and find K and V in L2.
  const int Tr = gridDim.x / heads;
  const int i = causal ? Tr - 1 - blockIdx.x / heads : blockIdx.x % Tr;
  const int bh = causal ? blockIdx.x % heads : blockIdx.x / Tr;
  const int rows = N - i * Br;  // from the tile's first one on
  const size_t row0 = size_t(bh) * N + i * Br;
  const size_t key0 = size_t(bh / group) * Nk;  // `group` heads share K and V
  Q += row0 * d, dO += row0 * d, dQ += row0 * d, LSE2 += row0, delta += row0;
  K += key0 * d, V += key0 * d;
  const int seen = causal ? min(Nk, (i + 1) * Br + Nk - N) : Nk;  // keys, by the tile's last row
  const int tiles = seen <= 0 ? 0 : (seen + Bc<d> - 1) / Bc<d>;
  load_tile<d, Br>(Q, smem.Q, rows);
  load_tile<d, Br>(dO, smem.dO, rows);
  static_assert(kThreads == Br, "a thread a row");
  const int r = threadIdx.x;
  fa::cp_async_4(&smem.LSE2[r], LSE2 + r, r < rows ? 4 : 0);
  fa::cp_async_4(&smem.delta[r], delta + r, r < rows ? 4 : 0);
  if (tiles > 0) {
    load_tile<d, Bc<d>>(K, smem.K[0], Nk);
    load_tile<d, Bc<d>>(V, smem.V[0], Nk);
  }
  const float scale_log2 = scale * fa::kLog2e;  // exp(scale * s) = 2^(scale_log2 * s)
  bf16 *sQ = smem.Q + warp * kWarpRows * d, *sdO = smem.dO + warp * kWarpRows * d;
  float rdQ[kBands][d / 8][4] = {};
  const int first_row = warp * kWarpRows + fa::row_of(lane);  // of this lane, in the tile

  // --- mainloop
  for (int j = 0; j < tiles; ++j) {
    fa::cp_async_wait_all();
    __syncthreads();  // all copies of tile j are here, and all warps are done with tile j - 1
    if (j + 1 < tiles) {
      const int next = (j + 1) * Bc<d>, stage = (j + 1) % kStages;
      load_tile<d, Bc<d>>(K + size_t(next) * d, smem.K[stage], Nk - next);
      load_tile<d, Bc<d>>(V + size_t(next) * d, smem.V[stage], Nk - next);
    }
    const bf16 *sK = smem.K[j % kStages], *sV = smem.V[j % kStages];
    float rP[kBands][Bc<d> / 8][4] = {}, rdS[kBands][Bc<d> / 8][4];
    dot_rows<d, kBands, Bc<d>>(sQ, sK, rP);
    const int cut = causal ? min(Nk, i * Br + warp * kWarpRows + 1 + Nk - N) : Nk;
    if (cut < (j + 1) * Bc<d>) {  // the warp's first row does not see all of tile j
      const int key = j * Bc<d> + fa::column_of(lane);
      mask<false, kBands, Bc<d>>(rP, i * Br + first_row, key, N, Nk, causal);
    }
    UNROLL
    for (int t = 0; t < kBands; ++t) {
      UNROLL
      for (int e = 0; e < 4; ++e) {
        const int own = first_row + t * kMma + e / 2 * 8;
        const float row_lse = smem.LSE2[own], row_delta = smem.delta[own];
        UNROLL
        for (int n = 0; n < Bc<d> / 8; ++n) {
          rP[t][n][e] = fa::exp2_approx(rP[t][n][e] * scale_log2 - row_lse);
          rdS[t][n][e] = -row_delta;
        }
      }
    }
    dot_rows<d, kBands, Bc<d>>(sdO, sV, rdS);  // dP, added to -delta
    UNROLL
    for (int t = 0; t < kBands; ++t) {
      UNROLL
      for (int n = 0; n < Bc<d> / 8; ++n) {
        UNROLL
        for (int e = 0; e < 4; ++e) rdS[t][n][e] *= rP[t][n][e];
      }
    }
    add_product<d, kBands, Bc<d>>(rdS, sK, rdQ);
  }

  // --- epilogue: dQ goes through the warp's rows of Q: 16 bytes per lane leave in whole rows
  if (tiles == 0) {  // no tile was waited for: the copies of Q may still be under way
    fa::cp_async_wait_all();
    __syncthreads();  // other warps' threads copied to this warp's rows, too
  }
  __syncwarp();  // all lanes have read the warp's rows of Q
  UNROLL
  for (int t = 0; t < kBands; ++t) {
    UNROLL
    for (int h = 0; h < 2; ++h) {
      const int r = first_row + t * kMma + h * 8;
      UNROLL
      for (int n = 0; n < d / 8; ++n) {
        *reinterpret_cast<uint32_t*>(smem.Q + swizzle<d>(r, n * 8) + fa::column_of(lane)) =
            fa::pack_bf16(rdQ[t][n][2 * h] * scale, rdQ[t][n][2 * h + 1] * scale);
      }
    }
  }
  __syncwarp();                               // the warp's rows are complete
  constexpr int kStored = fa::kWarp * 8 / d;  // rows that a warp stores at once
  UNROLL
  for (int step = 0; step < kWarpRows; step += kStored) {
    const int r = warp * kWarpRows + step + lane / (d / 8), x = lane % (d / 8) * 8;
    if (r >= rows) continue;
    *reinterpret_cast<uint4*>(dQ + r * d + x) =
        *reinterpret_cast<uint4*>(smem.Q + swizzle<d>(r, x));
  }
}

// --- host ---------------------------------------------------------------------------------------

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  return {{"delta", 4 * p.rows()}, {"LSE2", 4 * p.rows()}};
}

inline fa::Prediction traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d;
  const int keys = p.d == 64 ? Bc<64> : Bc<128>;
  const fa::TileVisits v = fa::visited_tiles(p, Br, keys);
  fa::Prediction t;
  t["Q"].read = t["O"].read = t["dQ"].write = 2 * BH * N * d;
  t["dO"].read = 2 * 2 * BH * N * d;  // for delta; for dP
  t["K"].read = t["V"].read = 2 * BH * v.keys * d;
  t["LSE"].read = 4 * BH * N;
  t["LSE2"] = t["delta"] = {.read = 4 * BH * N, .write = 4 * BH * N};
  t.hbm = {.read = 2 * (4 * BH * N * d + 2 * p.kv_size()) + 12 * BH * N,
           .write = 2 * BH * N * d + 8 * BH * N};
  t.flops = BH * 6 * Br * keys * v.tiles * d;  // zeros of ragged tiles are multiplied too
  return t;
}

// dQ; it leaves delta and LSE2 to the kernel of dK and dV.
inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  float *delta = t.scratch<float>("delta"), *LSE2 = t.scratch<float>("LSE2");
  const unsigned BH = p.heads(), Tr = fa::ceil_div(p.N, Br);
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    constexpr unsigned kBlocks = Br * d / 8 / kRowThreads;  // of delta_kernel, a tile
    fa::launch(delta_kernel<d>, {dim3(Tr * BH * kBlocks), dim3(kRowThreads)}, t.O, t.dO, t.LSE,
               delta, LSE2, nullptr, p.N, int(Tr * Br));
    fa::launch(query_kernel<d>, {dim3(Tr * BH), dim3(kThreads), sizeof(Tiles<d>)}, t.Q, t.K, t.V,
               t.dO, LSE2, delta, t.dQ, int(BH), p.H / p.Hkv, p.N, p.Nk, p.scale(), p.causal);
  });
}

}  // namespace step08_queries

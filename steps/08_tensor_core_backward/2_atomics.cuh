// Step 08 -- FlashAttention-2's backward on tensor cores, bf16.
// Idea      S^T = K Q^T instead of S: then P^T and dS^T leave the tensor cores in the pattern in
//           which dV += P^T dO and dK += dS^T Q want them, as P did for P V in step 07. Only dQ =
//           dS K sums over the keys of all warps: dS goes through shared memory, once, in bf16
// Changed   since 06 3_backward: products by mma.sync, the next tiles of Q and dO under way; P
//           stays in registers; one barrier a tile; Nk != N and fewer key heads than query heads
// Traffic   requested read   2*BH*(2*N + 2*Tc*N)*d + 2*BHkv*2*Nk*d + 4*BH*(N*d + N + 2*Tc*N) B
//                     write  2*BH*N*d + 2*BHkv*2*Nk*d + 4*BH*(Np*d + 2*N) B
//                     atomic 4*BH*Tc*Np*d B   Tc = Nk/128, Np: N in whole tiles; causal: visited
//                     ones
//           compulsory       2*(5*BH*N*d + 4*BHkv*Nk*d) + 4*BH*(5*N + (3*Np + N)*d) B
// Launch    grid (Tc * B*Hkv), 128 threads (d = 64) or 256; causal: the longest walks first
// Owns      block: 128 keys of dK and dV; warp: 32 of them (d = 64) or 16
// Still bad the order in which dQ is summed, so its last bits: 3_deterministic. And when d = 128
//           shared memory: 4_roles
#pragma once

#include "common/dialect/warp.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"
#include "steps/07_tensor_cores/4_lazy.cuh"
#include "steps/08_tensor_core_backward/1_products.cuh"

namespace step08 {

constexpr int Bc = 128;  // keys of a tile, a block's
constexpr int Br = 64;   // rows of a tile
template <int d>
constexpr int Bq = d == 64 ? 32 : 64;  // rows whose scores a warp has in registers at a time
template <int d>
constexpr int kWarps = d == 64 ? 4 : 8;
template <int d>
constexpr int kThreads = kWarps<d>* fa::kWarp;
template <int d>
constexpr int kBands = Bc / kMma / kWarps<d>;  // of 16 keys a warp
constexpr int kRowThreads = 256;               // of the kernels before and after

// What a block keeps in shared memory: 97 KB when d = 64, two blocks an SM; 161 KB when d = 128.
template <int d>
struct Tiles {
  bf16 K[Bc * d];  // dK and dV on their way out
  bf16 V[Bc * d];
  bf16 Q[kStages][Br * d];
  bf16 dO[kStages][Br * d];
  bf16 dS[kStages][Bc * Br];  // [key][row]: as the registers have it
  float LSE2[kStages][Br];    // in powers of 2
  float delta[kStages][Br];
};

// Once a row: delta = rowsum(dO * O), and LSE in powers of two. A row without a key has LSE = -inf;
// here it gets +inf, so that its P = 2^(S - LSE) is 0. d/8 lanes own a row; they also set it to
// zero in dQ_sum, because backward_kernel adds to it.
template <int d>
__global__ void delta_kernel(const bf16* O,     // [B*H, N, d]
                             const bf16* dO,    // [B*H, N, d]
                             const float* LSE,  // [B*H, N]
                             float* delta,      // [B*H, N]
                             float* LSE2,       // [B*H, N]
                             float* dQ_sum,     // [B*H, Np, d], or null
                             int N, int Np) {
  constexpr int kLanes = d / 8;
  const size_t row = (size_t(blockIdx.x) * kRowThreads + threadIdx.x) / kLanes;
  const int lane = threadIdx.x % kLanes, r = row % Np;
  if (dQ_sum) {
    float4* zero = reinterpret_cast<float4*>(dQ_sum + row * d) + lane;
    zero[0] = make_float4(0.f, 0.f, 0.f, 0.f);
    zero[kLanes] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
  const size_t at = row / Np * N + r;
  float sum = 0.f;
  if (r < N) {
    __align__(16) bf16 o[8], g[8];
    *reinterpret_cast<uint4*>(o) = *reinterpret_cast<const uint4*>(O + at * d + lane * 8);
    *reinterpret_cast<uint4*>(g) = *reinterpret_cast<const uint4*>(dO + at * d + lane * 8);
    UNROLL
    for (int x = 0; x < 8; ++x) sum += __bfloat162float(o[x]) * __bfloat162float(g[x]);
  }
  sum = fa::warp_sum<kLanes>(sum);
  if (r >= N || lane > 0) return;
  delta[at] = sum;
  const float row_lse = LSE[at];
  LSE2[at] = row_lse == -INFINITY ? INFINITY : row_lse * fa::kLog2e;
}

// A block owns 128 keys and walks the rows that see them, in each of the `group` heads that share
// these keys. dK and dV stay in registers; their scale waits for the end.
template <int d, bool kWithQ>  // kWithQ: dQ, too; 3_deterministic.cuh does without
__global__ void __launch_bounds__(kThreads<d>, d == 64 ? 2 : 1)
    backward_kernel(const bf16* Q,       // [B*H, N, d]
                    const bf16* K,       // [B*Hkv, Nk, d]
                    const bf16* V,       // [B*Hkv, Nk, d]
                    const bf16* dO,      // [B*H, N, d]
                    const float* LSE2,   // [B*H, N]
                    const float* delta,  // [B*H, N]
                    float* dQ_sum,       // [B*H, Np / 16, d / 8, 4, 32]; Np: N in whole tiles
                    bf16* dK,            // [B*Hkv, Nk, d]
                    bf16* dV,            // [B*Hkv, Nk, d]
                    int kv_heads, int group, int N, int Nk, float scale, bool causal) {
  // --- prologue: which keys; K_j and V_j stay in shared memory
  constexpr int kBand = kBands<d> * kMma, kQ = Bq<d>;
  Tiles<d>& smem = *fa::dynamic_shared<Tiles<d>>();
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int Tr = (N + Br - 1) / Br, Tc = gridDim.x / kv_heads;
  const int j = causal ? blockIdx.x / kv_heads : blockIdx.x % Tc;
  const int kv_head = causal ? blockIdx.x % kv_heads : blockIdx.x / Tc;
  const size_t key0 = size_t(kv_head) * Nk + j * Bc;
  load_tile<d, Bc, kThreads<d>>(K + key0 * d, smem.K, Nk - j * Bc);
  load_tile<d, Bc, kThreads<d>>(V + key0 * d, smem.V, Nk - j * Bc);
  bf16 *sK = smem.K + warp * kBand * d, *sV = smem.V + warp * kBand * d;
  const int key = j * Bc + warp * kBand;  // the warp's first
  const float scale_log2 = scale * fa::kLog2e;
  float rdK[kBands<d>][d / 8][4] = {}, rdV[kBands<d>][d / 8][4] = {};

  // --- mainloop
  // Rows above see none of the keys. The last row sees key j * Bc, for it is < Nk: first < Tr.
  const int first = causal ? max(0, j * Bc + N - Nk) / Br : 0;
  for (int h = 0; h < group; ++h) {
    const int head = kv_head * group + h;
    auto load_rows = [&](int i) {
      const int stage = i % kStages, rows = N - i * Br, r = threadIdx.x;
      const size_t row0 = size_t(head) * N + i * Br;
      load_tile<d, Br, kThreads<d>>(Q + row0 * d, smem.Q[stage], rows);
      load_tile<d, Br, kThreads<d>>(dO + row0 * d, smem.dO[stage], rows);
      if (r < Br) {  // past the end all are 0: P is 1 there, and adds 1 * 0
        fa::cp_async_4(&smem.LSE2[stage][r], LSE2 + row0 + r, r < rows ? 4 : 0);
        fa::cp_async_4(&smem.delta[stage][r], delta + row0 + r, r < rows ? 4 : 0);
      }
    };
    auto add_dQ = [&](int i) {
      query_gradient<d, Br, Bc>(smem.dS[i % kStages], smem.K,
                                dQ_sum + (size_t(head) * Tr + i) * Br * d);
    };
    load_rows(first);
    for (int i = first; i < Tr; ++i) {
      fa::cp_async_wait_all();
      // Behind this barrier all copies of tile i are here, all warps are done with tile i - 1, and
      // dS of tile i - 1 is complete.
      __syncthreads();
      if (i + 1 < Tr) load_rows(i + 1);
      const int stage = i % kStages;
      UNROLL
      for (int q = 0; q < Br; q += kQ) {
        const bf16 *sQ = smem.Q[stage] + q * d, *sdO = smem.dO[stage] + q * d;

        // P^T = 2^(S^T - LSE): normalised already, for LSE holds the row's sum.
        float rP[kBands<d>][kQ / 8][4] = {};
        dot_rows<d, kBands<d>, kQ>(sK, sQ, rP);
        const int row = i * Br + q;
        if (key + kBand > (causal ? min(Nk, row + 1 + Nk - N) : Nk)) {
          mask<true, kBands<d>, kQ>(rP, row + lane % 4 * 2, key + lane / 4, N, Nk, causal);
        }
        UNROLL
        for (int n = 0; n < kQ / 8; ++n) {
          const int r = q + n * 8 + lane % 4 * 2;  // of this lane's two rows
          const float2 row_lse = *reinterpret_cast<const float2*>(&smem.LSE2[stage][r]);
          UNROLL
          for (int t = 0; t < kBands<d>; ++t) {
            UNROLL
            for (int e = 0; e < 4; ++e) {
              rP[t][n][e] =
                  fa::exp2_approx(rP[t][n][e] * scale_log2 - (e % 2 ? row_lse.y : row_lse.x));
            }
          }
        }
        add_product<d, kBands<d>, kQ>(rP, sdO, rdV);

        // dS^T = P^T (dP^T - delta): the sum of dP^T = V dO^T starts from -delta.
        float rdS[kBands<d>][kQ / 8][4];
        UNROLL
        for (int n = 0; n < kQ / 8; ++n) {
          const int r = q + n * 8 + lane % 4 * 2;
          const float2 row_delta = *reinterpret_cast<const float2*>(&smem.delta[stage][r]);
          UNROLL
          for (int t = 0; t < kBands<d>; ++t) {
            UNROLL
            for (int e = 0; e < 4; ++e) rdS[t][n][e] = e % 2 ? -row_delta.y : -row_delta.x;
          }
        }
        dot_rows<d, kBands<d>, kQ>(sV, sdO, rdS);
        UNROLL
        for (int t = 0; t < kBands<d>; ++t) {
          UNROLL
          for (int n = 0; n < kQ / 8; ++n) {
            UNROLL
            for (int e = 0; e < 4; ++e) rdS[t][n][e] *= rP[t][n][e];
          }
        }
        if constexpr (kWithQ) {
          put_tile<Br, kBands<d>, kQ>(rdS, 1.f, smem.dS[stage] + warp * kBand * Br, q);
        }
        add_product<d, kBands<d>, kQ>(rdS, sQ, rdK);
      }
      if constexpr (kWithQ) {
        if (i > first) add_dQ(i - 1);
      }
    }
    __syncthreads();  // all warps are done with this head's tiles; the last dS is complete
    if constexpr (kWithQ) add_dQ(Tr - 1);
  }

  // --- epilogue
  __syncthreads();  // all warps are done with K
  store_tile<d, kBands<d>>(rdK, scale, sK, dK + (size_t(kv_head) * Nk + key) * d, Nk - key);
  store_tile<d, kBands<d>>(rdV, 1.f, sV, dV + (size_t(kv_head) * Nk + key) * d, Nk - key);
}

// dQ = scale * dQ_sum, rounded and in order. A thread makes 8 features of a row; neighbours make 8
// rows, which lie side by side in dQ_sum.
template <int d>
__global__ void convert_kernel(const float* dQ_sum,  // [B*H, Np / 16, d / 8, 4, 32]
                               bf16* dQ,             // [B*H, N, d]
                               int N, int Np, float scale) {
  const int v = threadIdx.x, x = v / 8 % (d / 8), half = v / d % 2;  // of a fragment's 16 rows
  const size_t band = size_t(blockIdx.x) * (kRowThreads / (2 * d)) + v / (2 * d);
  const int r = band * 16 % Np + half * 8 + v % 8;
  if (r >= N) return;
  const float* from = dQ_sum + (band * (d / 8) + x) * 128 + half * 64 + v % 8 * 4;
  const float4 even = *reinterpret_cast<const float4*>(from);
  const float4 odd = *reinterpret_cast<const float4*>(from + fa::kWarp);
  uint4 row;
  row.x = fa::pack_bf16(even.x * scale, odd.x * scale);
  row.y = fa::pack_bf16(even.y * scale, odd.y * scale);
  row.z = fa::pack_bf16(even.z * scale, odd.z * scale);
  row.w = fa::pack_bf16(even.w * scale, odd.w * scale);
  *reinterpret_cast<uint4*>(dQ + (band * 16 / Np * N + r) * d + x * 8) = row;
}

// --- host ---------------------------------------------------------------------------------------

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  const size_t Np = fa::ceil_div(p.N, Br) * Br;
  return {{"delta", 4 * p.rows()}, {"LSE2", 4 * p.rows()}, {"dQ_sum", 4 * p.heads() * Np * p.d}};
}

// Blocks of delta_kernel and convert_kernel: a thread makes 8 features of a row.
template <int d>
inline unsigned row_blocks(const fa::Problem& p) {
  return p.heads() * fa::ceil_div(p.N, Br) * (Br * (d / 8) / kRowThreads);
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d, Np = fa::ceil_div(p.N, Br) * Br;
  const fa::TileVisits v = fa::visited_tiles(p, Br, Bc);
  fa::Prediction t;
  t["O"].read = 2 * BH * N * d;
  t["dO"].read = 2 * BH * (N + v.rows) * d;  // delta; each tile of keys
  t["Q"].read = 2 * BH * v.rows * d;
  t["LSE"].read = 4 * BH * N;
  t["LSE2"] = t["delta"] = {.read = 4 * BH * v.rows, .write = 4 * BH * N};
  t["K"].read = t["V"].read = 2 * p.kv_size();
  t["dQ_sum"] = {.read = 4 * BH * N * d,  // zeros first; tiles are added whole
                 .write = 4 * BH * Np * d,
                 .atomic = 4 * BH * v.tiles * Br * d};
  t["dQ"].write = 2 * BH * N * d;
  t["dK"].write = t["dV"].write = 2 * p.kv_size();
  t.flops = BH * 10 * Br * Bc * v.tiles * d;  // five products; zeros are multiplied too
  // An atomic reads what it adds to.
  t.hbm = {.read = 2 * (4 * BH * N * d + 2 * p.kv_size()) + 4 * BH * (3 * N + (Np + N) * d),
           .write = 2 * (BH * N * d + 2 * p.kv_size()) + 4 * BH * (2 * N + 2 * Np * d)};
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) { step07::forward(p, t); }

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  float *delta = t.scratch<float>("delta"), *LSE2 = t.scratch<float>("LSE2");
  float* dQ_sum = t.scratch<float>("dQ_sum");
  const unsigned BHkv = p.kv_heads(), Tc = fa::ceil_div(p.Nk, Bc);
  const int Np = fa::ceil_div(p.N, Br) * Br;
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    const unsigned blocks = row_blocks<d>(p);
    fa::launch(delta_kernel<d>, {dim3(blocks), dim3(kRowThreads)}, t.O, t.dO, t.LSE, delta, LSE2,
               dQ_sum, p.N, Np);
    fa::launch(backward_kernel<d, true>, {dim3(Tc * BHkv), dim3(kThreads<d>), sizeof(Tiles<d>)},
               t.Q, t.K, t.V, t.dO, LSE2, delta, dQ_sum, t.dK, t.dV, int(BHkv), p.H / p.Hkv, p.N,
               p.Nk, p.scale(), p.causal);
    fa::launch(convert_kernel<d>, {dim3(blocks), dim3(kRowThreads)}, dQ_sum, t.dQ, p.N, Np,
               p.scale());
  });
}

}  // namespace step08

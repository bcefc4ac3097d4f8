// Step 08 -- FlashAttention-2's backward on tensor cores, bf16.
// Idea      The kernel of dK and dV has dS and K, which is all that dQ = dS K needs: 5 products
//           instead of 7. dQ sums over the keys of all warps, so dS goes through shared memory in
//           bf16. It sums over the keys of all blocks, so each adds its part by atomics, in fp32
// Changed   since 08 4_deterministic: dS to shared memory; dQ one tile late, by atomics, in the
//           order of the registers; convert_kernel puts dQ in order; no query_kernel
// Traffic   requested read   2*BH*(2*N + 2*Tc*N)*d + 2*BHkv*2*Nk*d + 4*BH*(N*d + N + 2*Tc*N) B
//                     write  2*BH*N*d + 2*BHkv*2*Nk*d + 4*BH*(Np*d + 2*N) B   Tc = Nk/Bc
//                     atomic 4*BH*Tc*Np*d B   Np: N in whole tiles; causal: visited tiles
//           compulsory       2*(4*BH*N*d + 4*BHkv*Nk*d) + 4*BH*N B
// Launch    delta; backward (Tc * B*Hkv), 128 threads (d = 64) or 256; convert
// Owns      block: dK and dV of 128 keys (64 where shared memory is short); warp: 32 or 16 of them
// Still bad the last bits of dQ differ from run to run; d = 128 waits for shared memory: 6_roles
#pragma once

#include "steps/08_tensor_core_backward/parts.cuh"

namespace step08 {

constexpr int kPart = 32;  // dQ: a warp sums 32 rows x 32 features

// In shared memory, Br x Bc: 64 x 128, 97 KB when d = 64, 161 KB when d = 128; or 32 x 64, 73 KB.
template <int d, int Br, int Bc>
struct Tiles {
  static constexpr int kBands = d == 64 ? 2 : 1;  // of 16 keys a warp: what the registers hold
  static constexpr int kWarpKeys = kBands * kMma;
  static constexpr int kThreads = Bc / kWarpKeys * fa::kWarp;
  static constexpr int kRows = d == 64 ? 32 : Br;  // whose scores a warp has at a time
  bf16 K[Bc * d];                                  // dK and dV on their way out
  bf16 V[Bc * d];
  bf16 Q[kStages][Br * d];
  bf16 dO[kStages][Br * d];
  bf16 dS[kStages][Bc * Br];                    // [key][row]: as the registers have it
  float LSE2[kStages][Br], delta[kStages][Br];  // LSE2: in powers of 2
};

// One tile's share of dQ = dS K, a sum over the block's keys. Other blocks add to the same rows at
// the same time, so it is added by atomics: in fp32, and in the order of the registers, so that the
// 32 numbers of a request are 128 bytes side by side.
template <int d, int Br, int Bc>
__device__ inline void query_gradient(const bf16* sdS,  // [Bc, Br] swizzled: dS^T
                                      const bf16* sK,   // [Bc, d] swizzled
                                      float* dQ_sum) {  // [Br / 16, d / 8, 4, 32]
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int row = warp % (Br / kPart) * kPart, feature = warp / (Br / kPart) * kPart;  // its first
  const int p = swizzle<Br>(lane / 16 * 8 + lane % 8, row + lane / 8 % 2 * 8);
  const int q = swizzle<d>(lane % 16, feature + lane / 16 * 8);
  float rdQ[kPart / kMma][kPart / 8][4] = {};
  UNROLL
  for (int k = 0; k < Bc; k += kMma) {
    uint32_t a[kPart / kMma][4];
    UNROLL
    for (int t = 0; t < kPart / kMma; ++t) {
      fa::ldmatrix_x4_trans(a[t], sdS + k * Br + (p ^ t * kMma));
    }
    UNROLL
    for (int x = 0; x < kPart; x += 16) {
      uint32_t b[2][2];
      fa::ldmatrix_x4_trans(b, sK + k * d + (q ^ x));
      UNROLL
      for (int n = 0; n < 2; ++n) {
        UNROLL
        for (int t = 0; t < kPart / kMma; ++t) fa::mma_m16n8k16(rdQ[t][x / 8 + n], a[t], b[n]);
      }
    }
  }
  dQ_sum += (row / 16 * (d / 8) + feature / 8) * 128 + lane;
  UNROLL
  for (int t = 0; t < kPart / kMma; ++t) {
    UNROLL
    for (int n = 0; n < kPart / 8; ++n) {
      UNROLL  // no result is used, so each is a RED, and no thread waits for it
      for (int e = 0; e < 4; ++e) {
        atomicAdd(dQ_sum + (t * (d / 8) + n) * 128 + e * fa::kWarp, rdQ[t][n][e]);
      }
    }
  }
}

// A block owns a tile of keys and walks the tiles of rows that see it. dK and dV stay in registers;
// so does P. It walks the rows of each of the `group` heads that share these keys.
template <int d, int Br, int Bc>
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
                    int kv_heads, int group, int N, int Nk, float scale, bool causal) {
  // --- prologue: K_j and V_j stay in shared memory
  using T = Tiles<d, Br, Bc>;
  T& smem = *fa::dynamic_shared<T>();
  constexpr int kBands = T::kBands, kWarpKeys = T::kWarpKeys, kThreads = T::kThreads;
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int tx = fa::column_of(lane);  // this lane's first row
  const int Tr = (N + Br - 1) / Br, Tc = gridDim.x / kv_heads;
  const int j = causal ? blockIdx.x / kv_heads : blockIdx.x % Tc;  // the longest walks start first
  const int kv_head = causal ? blockIdx.x % kv_heads : blockIdx.x / Tc;
  const size_t key0 = size_t(kv_head) * Nk + j * Bc;
  load_tile<d, Bc, kThreads>(K + key0 * d, smem.K, Nk - j * Bc);
  load_tile<d, Bc, kThreads>(V + key0 * d, smem.V, Nk - j * Bc);
  dK += size_t(kv_head) * Nk * d, dV += size_t(kv_head) * Nk * d;
  bf16 *sK = smem.K + warp * kWarpKeys * d, *sV = smem.V + warp * kWarpKeys * d;
  const int key = j * Bc + warp * kWarpKeys;  // the warp's first
  const float scale_log2 = scale * fa::kLog2e;
  float rdK[kBands][d / 8][4] = {}, rdV[kBands][d / 8][4] = {};

  // --- mainloop
  const int first = causal ? max(0, j * Bc + N - Nk) / Br : 0;  // rows above see none of these keys
  for (int h = 0; h < group; ++h) {
    auto load_rows = [&](int i) {
      const int stage = i % kStages, rows = N - i * Br, r = threadIdx.x;
      const size_t row0 = size_t(kv_head * group + h) * N + i * Br;
      load_tile<d, Br, kThreads>(Q + row0 * d, smem.Q[stage], rows);
      load_tile<d, Br, kThreads>(dO + row0 * d, smem.dO[stage], rows);
      if (r < Br) {  // past the end all are 0: P is 1 there, and adds 1 * 0
        fa::cp_async_4(&smem.LSE2[stage][r], LSE2 + row0 + r, r < rows ? 4 : 0);
        fa::cp_async_4(&smem.delta[stage][r], delta + row0 + r, r < rows ? 4 : 0);
      }
    };
    auto add_dQ = [&](int i) {
      query_gradient<d, Br, Bc>(smem.dS[i % kStages], smem.K,
                                dQ_sum + (size_t(kv_head * group + h) * Tr + i) * Br * d);
    };
    load_rows(first);
    for (int i = first; i < Tr; ++i) {
      fa::cp_async_wait_all();
      __syncthreads();  // tile i is here; tile i - 1 has been read, and its dS is complete
      if (i + 1 < Tr) load_rows(i + 1);
      const int stage = i % kStages;
      UNROLL
      for (int q = 0; q < Br; q += T::kRows) {
        const bf16 *sQ = smem.Q[stage] + q * d, *sdO = smem.dO[stage] + q * d;
        const float *sLSE2 = smem.LSE2[stage] + q, *sdelta = smem.delta[stage] + q;

        // P^T = exp(S^T - LSE), normalised at once: LSE holds both m and log l.
        float rP[kBands][T::kRows / 8][4] = {};
        dot_rows<d, kBands, T::kRows>(sK, sQ, rP);
        const int row = i * Br + q;
        if (key + kWarpKeys > (causal ? min(Nk, row + 1 + Nk - N) : Nk)) {
          mask<true, kBands, T::kRows>(rP, row + tx, key + fa::row_of(lane), N, Nk, causal);
        }
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
        put_tile<Br, kBands, T::kRows>(rdS, smem.dS[stage] + warp * kWarpKeys * Br, q,
                                       fa::pack_bf16);
        add_product<d, kBands, T::kRows>(rdS, sQ, rdK);
      }
      if (i > first) add_dQ(i - 1);
    }
    __syncthreads();  // all warps are done with this head's tiles; the last dS is complete
    add_dQ(Tr - 1);   // first < Tr: the last row sees the block's first key
  }

  // --- epilogue: dK and dV go through the warp's keys of K and V
  __syncthreads();  // all warps are done with K
  store_tile<d, kBands>(rdK, scale, sK, dK + size_t(key) * d, Nk - key);
  store_tile<d, kBands>(rdV, 1.f, sV, dV + size_t(key) * d, Nk - key);
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
  *reinterpret_cast<uint4*>(dQ + (band * 16 / Np * N + r) * d + x * 8) = make_uint4(
      fa::pack_bf16(even.x * scale, odd.x * scale), fa::pack_bf16(even.y * scale, odd.y * scale),
      fa::pack_bf16(even.z * scale, odd.z * scale), fa::pack_bf16(even.w * scale, odd.w * scale));
}

// --- host ---------------------------------------------------------------------------------------

// Rows of dQ_sum, per head: whole tiles.
inline int padded_rows(const fa::Problem& p) {
  int rows = 0;
  dispatch_tiles<Tiles>(p, [&](int, int Br, int) { rows = fa::ceil_div(p.N, Br) * Br; });
  return rows;
}

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  const size_t sums = p.heads() * padded_rows(p) * p.d;
  return {{"delta", 4 * p.rows()}, {"LSE2", 4 * p.rows()}, {"dQ_sum", 4 * sums}};
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d, Np = padded_rows(p);
  fa::Prediction t;
  dispatch_tiles<Tiles>(p, [&](int, int Br, int Bc) {
    const fa::TileVisits v = fa::visited_tiles(p, Br, Bc);
    t["O"].read = t["dQ"].write = 2 * BH * N * d;
    t["dO"].read = 2 * BH * (N + v.rows) * d;  // delta; each tile of keys
    t["Q"].read = 2 * BH * v.rows * d;
    t["LSE"].read = 4 * BH * N;
    t["LSE2"] = t["delta"] = {.read = 4 * BH * v.rows, .write = 4 * BH * N};
    t["K"].read = t["V"].read = t["dK"].write = t["dV"].write = 2 * p.kv_size();
    t["dQ_sum"] = {.read = 4 * BH * N * d,  // zeros first; tiles are added whole
                   .write = 4 * BH * Np * d,
                   .atomic = 4 * BH * v.tiles * Br * d};
    // An atomic reads what it adds to.
    t.hbm = {.read = 2 * (4 * BH * N * d + 2 * p.kv_size()) + 4 * BH * (3 * N + (Np + N) * d),
             .write = 2 * (BH * N * d + 2 * p.kv_size()) + 4 * BH * (2 * N + 2 * Np * d)};
    t.flops = BH * 10 * Br * Bc * v.tiles * d;  // five products; zeros are multiplied too
  });
  return t;
}

// Blocks of delta_kernel and convert_kernel: a thread makes 8 features of a row.
inline unsigned row_blocks(const fa::Problem& p) {
  return unsigned(p.heads() * padded_rows(p) * (p.d / 8) / kRowThreads);
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  float *delta = t.scratch<float>("delta"), *LSE2 = t.scratch<float>("LSE2");
  float* dQ_sum = t.scratch<float>("dQ_sum");
  const unsigned BHkv = p.kv_heads();
  const dim3 rows(row_blocks(p));
  const int Np = padded_rows(p);
  dispatch_tiles<Tiles>(p, [&](auto d, auto Br, auto Bc) {
    const dim3 grid(fa::ceil_div(p.Nk, Bc) * BHkv);
    using T = Tiles<d, Br, Bc>;
    fa::launch(delta_kernel<d>, {rows, dim3(kRowThreads)}, t.O, t.dO, t.LSE, delta, LSE2, dQ_sum,
               p.N, Np);
    fa::launch(backward_kernel<d, Br, Bc>, {grid, dim3(T::kThreads), sizeof(T)}, t.Q, t.K, t.V,
               t.dO, LSE2, delta, dQ_sum, t.dK, t.dV, int(BHkv), p.H / p.Hkv, p.N, p.Nk, p.scale(),
               p.causal);
    fa::launch(convert_kernel<d>, {rows, dim3(kRowThreads)}, dQ_sum, t.dQ, p.N, Np, p.scale());
  });
}

}  // namespace step08

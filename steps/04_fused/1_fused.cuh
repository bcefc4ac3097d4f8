// Step 04 -- fused forward: FlashAttention-1, Algorithm 1 (arXiv 2205.14135) as printed.
// Idea      S and P exist as tiles on chip, never in HBM. The outer loop brings K and V to shared
//           memory once; the inner loop walks all tiles of Q and corrects O, m and l, which wait in
//           HBM.
// Changed   since 03: one kernel instead of two, S is gone; O, m and l travel once per K/V tile; Bc
//           follows from the shared memory M; LSE = m + log l, all that a backward needs of S
// Traffic   requested read  4*BH*((2 + 2*Tc)*N*d + 2*(Tc + 1)*N) B   Tc = N/Bc, Bc by M
//                     write 4*BH*((Tc + 1)*N*d + (2*Tc + 3)*N) B     O, m, l are initialised here
//           compulsory      4*BH*(4*N*d + N) B
// Launch    grid (1, B*H), 256 threads: one block walks a head, as in Algorithm 1; no causal tile
//           is skipped
// Owns      block: one head; warp: 4 rows of each Q tile; lane: keys lane, lane + 32, ... of S and
//           features lane, lane + 32, ... of O
// Still bad a backward needs S and P, and they are gone; O crosses HBM Tc times; there are only B*H
//           blocks, however long the sequence
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/warp.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"

namespace step04 {

constexpr int kWarps = 8;
constexpr int kWarpRows = 4;            // of Q, O, m and l, that a warp owns in each Q tile
constexpr int Br = kWarps * kWarpRows;  // rows of a Q tile; no traffic depends on it
constexpr int kKeyStep = 4;             // Bc is a multiple: P and V are read four keys at a time
constexpr int kPad = 4;  // keeps rows of K 16-byte aligned; 8 lanes, 8 rows: 32 banks
constexpr int kThreads = kWarps * fa::kWarp;

// Rows row0 .. row0 + rows - 1 of a matrix [N, d] to shared memory, `stride` floats apart; rows
// past the end are zero. `threads` threads share the work; this one is number `thread`.
template <int d>
__device__ inline void load_tile(const float* g,  // [N, d]
                                 float* s,        // [rows, stride]
                                 int stride, int row0, int rows, int N, int thread, int threads) {
  constexpr int kVectors = d / 4;  // of four floats, a row
  for (int v = thread; v < rows * kVectors; v += threads) {
    const int r = v / kVectors, x = v % kVectors * 4;
    float4 row = make_float4(0.f, 0.f, 0.f, 0.f);
    if (row0 + r < N) row = *reinterpret_cast<const float4*>(g + size_t(row0 + r) * d + x);
    *reinterpret_cast<float4*>(s + r * stride + x) = row;
  }
}

__device__ inline float dot(float4 a, float4 b) {
  return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

// O = softmax(scale * Q K^T) V and LSE of one head; "line n" is a line of Algorithm 1. Two blocks
// an SM are asked for: left alone, ptxas 13 stops at 64 or 80 registers and may spill.
template <int d>
__global__ void __launch_bounds__(kThreads, 2)
    flash_fwd_kernel(const float* Q,  // [B*H, N, d]
                     const float* K,  // [B*H, N, d]
                     const float* V,  // [B*H, N, d]
                     float* O,        // [B*H, N, d]
                     float* m,        // [B*H, N]
                     float* l,        // [B*H, N]
                     float* LSE,      // [B*H, N]
                     int N, int Bc, float scale, bool causal) {
  // --- prologue: the shared memory, and O, m and l in HBM
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  constexpr int kStrideK = d + kPad;
  float* sK = fa::dynamic_shared<float>();         // [Bc, d + kPad]
  float* sV = sK + Bc * kStrideK;                  // [Bc, d]
  float* sQ = sV + Bc * d + warp * kWarpRows * d;  // [kWarpRows, d], this warp's rows of Q_i
  float* sP = sV + (Bc + Br) * d + warp * kWarpRows * Bc;  // [kWarpRows, Bc], of S_ij, then of P_ij
  const size_t bh = blockIdx.y;
  Q += bh * N * d, K += bh * N * d, V += bh * N * d, O += bh * N * d;
  m += bh * N, l += bh * N, LSE += bh * N;

  for (size_t v0 = 0; v0 < size_t(N) * (d / 4); v0 += kThreads) {  // line 2
    const size_t v = v0 + threadIdx.x;
    if (v < size_t(N) * (d / 4)) reinterpret_cast<float4*>(O)[v] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
  for (int r0 = 0; r0 < N; r0 += kThreads) {
    const int r = r0 + threadIdx.x;
    if (r < N) l[r] = 0.f, m[r] = -INFINITY;
  }

  // --- mainloop
  for (int j = 0; j * Bc < N; ++j) {                                      // line 5
    load_tile<d>(K, sK, kStrideK, j * Bc, Bc, N, threadIdx.x, kThreads);  // line 6
    load_tile<d>(V, sV, d, j * Bc, Bc, N, threadIdx.x, kThreads);
    __syncthreads();  // K_j and V_j are complete; before tile 0 also O, m and l

    for (int i = 0; i * Br < N; ++i) {  // line 7; a warp needs no other one until K_j is done with
      const int row0 = i * Br + warp * kWarpRows;
      load_tile<d>(Q, sQ, d, row0, kWarpRows, N, lane, fa::kWarp);  // line 8
      float rO[kWarpRows][d / fa::kWarp] = {};                      // features lane + 32 x
      UNROLL
      for (int r = 0; r < kWarpRows; ++r) {
        UNROLL
        for (int x = 0; x < d / fa::kWarp; ++x) {
          if (row0 + r < N) rO[r][x] = O[size_t(row0 + r) * d + x * fa::kWarp + lane];
        }
      }
      // Lane r holds row r's statistics: one load a row, where a broadcast would be 32.
      const bool has_row = lane < kWarpRows && row0 + lane < N;
      float m_lane = has_row ? m[row0 + lane] : -INFINITY;
      float l_lane = has_row ? l[row0 + lane] : 0.f;
      __syncwarp();  // sQ is complete, and all lanes have read the last tile's P: overwrite sP

      // line 9: S_ij = scale * Q_i K_j^T
      float m_tile[kWarpRows];
      UNROLL
      for (int r = 0; r < kWarpRows; ++r) m_tile[r] = -INFINITY;
      for (int c0 = 0; c0 < Bc; c0 += fa::kWarp) {
        const int c = c0 + lane;
        if (c >= Bc) continue;
        float rS[kWarpRows] = {};
        for (int x = 0; x < d; x += 4) {  // 5 loads of four floats feed 16 multiply-adds
          const float4 k = *reinterpret_cast<const float4*>(sK + c * kStrideK + x);
          UNROLL
          for (int r = 0; r < kWarpRows; ++r) {
            rS[r] += dot(*reinterpret_cast<const float4*>(sQ + r * d + x), k);
          }
        }
        UNROLL
        for (int r = 0; r < kWarpRows; ++r) {
          const int key = j * Bc + c;
          const bool visible = key < N && (!causal || key <= row0 + r);
          const float s = visible ? rS[r] * scale : -INFINITY;
          m_tile[r] = fmaxf(m_tile[r], s);
          sP[r * Bc + c] = s;  // for this lane's own eyes: no barrier before the next loop
        }
      }

      // lines 10, 11: merge() of step 03, with alpha kept for line 12. P~ is relative to m_new and
      // not to the tile's own maximum, so the paper's factor e^(m~ - m_new) is in it already. m_new
      // is finite, for tile 0 shows each row its key 0: no exp(-inf - -inf), even in a masked tile.
      float l_new[kWarpRows];
      UNROLL
      for (int r = 0; r < kWarpRows; ++r) {
        const float m_old = __shfl_sync(fa::kFullMask, m_lane, r);
        const float l_old = __shfl_sync(fa::kFullMask, l_lane, r);
        const float m_new = fmaxf(m_old, fa::warp_max(m_tile[r]));
        float l_tile = 0.f;
        for (int c0 = 0; c0 < Bc; c0 += fa::kWarp) {
          const int c = c0 + lane;
          if (c >= Bc) continue;
          const float p = expf(sP[r * Bc + c] - m_new);
          l_tile += p;
          sP[r * Bc + c] = p;
        }
        const float alpha = expf(m_old - m_new);  // 0 in tile 0, where m_old is -inf
        l_new[r] = alpha * l_old + fa::warp_sum(l_tile);
        UNROLL
        for (int x = 0; x < d / fa::kWarp; ++x) rO[r][x] *= l_old * alpha;
        if (lane == r) m_lane = m_new, l_lane = l_new[r];
      }
      __syncwarp();  // P is complete, and all lanes have read sQ: the next tile may overwrite it

      // line 12: O_i = (l alpha O_i + P~ V_j) / l_new
      for (int c = 0; c < Bc; c += kKeyStep) {
        __align__(16) float p[kWarpRows][kKeyStep];
        UNROLL
        for (int r = 0; r < kWarpRows; ++r) {
          *reinterpret_cast<float4*>(p[r]) = *reinterpret_cast<const float4*>(sP + r * Bc + c);
        }
        UNROLL
        for (int k = 0; k < kKeyStep; ++k) {
          UNROLL
          for (int x = 0; x < d / fa::kWarp; ++x) {
            const float v = sV[(c + k) * d + x * fa::kWarp + lane];
            UNROLL
            for (int r = 0; r < kWarpRows; ++r) rO[r][x] += p[r][k] * v;
          }
        }
      }
      UNROLL
      for (int r = 0; r < kWarpRows; ++r) {
        UNROLL
        for (int x = 0; x < d / fa::kWarp; ++x) {
          if (row0 + r < N) {
            O[size_t(row0 + r) * d + x * fa::kWarp + lane] = rO[r][x] / l_new[r];
          }
        }
      }
      if (has_row) m[row0 + lane] = m_lane, l[row0 + lane] = l_lane;  // line 13
    }
    __syncthreads();  // all have read K_j and V_j, which may be overwritten; m, l are complete
  }

  // --- epilogue: what a backward will need of S, one number a row
  for (int r0 = 0; r0 < N; r0 += kThreads) {
    const int r = r0 + threadIdx.x;
    if (r < N) LSE[r] = m[r] + logf(l[r]);
  }
}

// --- host ---------------------------------------------------------------------------------------

constexpr size_t kDefaultM = 64 * 1024;   // bytes that every GPU since Turing can give to a block
constexpr size_t kLargestM = 227 * 1024;  // and no GPU yet gives more

// Q_i [Br, d], K_j [Bc, d + kPad], V_j [Bc, d] and P_ij [Br, Bc], in bytes.
constexpr size_t smem_bytes(int d, int Bc) {
  return sizeof(float) * (size_t(Br) * d + size_t(Bc) * (2 * d + kPad + Br));
}

// Bc: as many keys as fit into M bytes, and no more than there are, in steps of kKeyStep.
inline int tile_keys(const fa::Problem& p) {
  const size_t M = p.smem != 0 ? p.smem : kDefaultM;
  const size_t least = smem_bytes(p.d, kKeyStep), step = least - smem_bytes(p.d, 0);
  if (M < least || M > kLargestM) {
    throw fa::UsageError("--smem " + std::to_string(M) + ": the tiles of d=" + std::to_string(p.d) +
                         " need at least " + std::to_string(least) +
                         " bytes, and no GPU has more than " + std::to_string(kLargestM) +
                         " for a block");
  }
  const int fit = static_cast<int>((M - smem_bytes(p.d, 0)) / step);
  return kKeyStep * std::min(fit, fa::ceil_div(p.N, kKeyStep));
}

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  return {{"m", 4 * p.rows()}, {"l", 4 * p.rows()}};
}

inline fa::Prediction traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d;
  const int Bc = tile_keys(p);
  const uint64_t Tr = fa::ceil_div(p.N, Br), Tc = fa::ceil_div(p.N, Bc);
  fa::Prediction t;
  t["K"].read = 4 * BH * N * d;
  t["V"].read = 4 * BH * N * d;
  t["Q"].read = 4 * BH * Tc * N * d;
  t["O"] = {.read = 4 * BH * Tc * N * d, .write = 4 * BH * (Tc + 1) * N * d};
  t["m"] = {.read = 4 * BH * (Tc + 1) * N, .write = 4 * BH * (Tc + 1) * N};
  t["l"] = t["m"];
  t["LSE"].write = 4 * BH * N;
  t.hbm = {.read = 4 * BH * 3 * N * d, .write = 4 * BH * (N * d + 3 * N)};
  t.flops = BH * 4 * Tr * Br * Tc * Bc * d;  // zeros of ragged tiles are multiplied too
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<float>& t) {
  const unsigned BH = p.heads();
  const int Bc = tile_keys(p);
  fa::dispatch_d<32, 64, 96, 128>(p.d, [&](auto d) {
    fa::launch(flash_fwd_kernel<d>, {dim3(1, BH), dim3(kThreads), smem_bytes(d, Bc)}, t.Q, t.K, t.V,
               t.O, t.scratch<float>("m"), t.scratch<float>("l"), t.LSE, p.N, Bc, p.scale(),
               p.causal);
  });
}

}  // namespace step04

// Step 17 -- attention to a latent cache, on CUDA cores.
// Idea      All heads read one vector of 576 features per key. Its dot product with q is the score,
//           and its first 512 features are the value: a lane holds its 18 numbers of a key in
//           registers, multiplies them by q, and adds 16 of them, times P, to O
// Changed   since 13 1_warps: no V; a key's numbers are loaded once for S and for O
// Traffic   requested read  2*B*H*N*576*(1 + Nk) B     Q, K
//                     write 2*B*H*N*512 + 4*B*H*N B    O, LSE
//           compulsory      2*B*(H*N*576 + Nk*576 + H*N*512) + 4*B*H*N B
// Launch    grid (ceil(H*N/8), B): 8 warps
// Owns      warp: one row, which is a query of a head; lane: every 32nd pair of features
// Still bad each row requests the whole cache, H*N times its bytes; products of one row at a time
#pragma once

#include <cmath>
#include "common/dialect/ptx/math.h"
#include "common/dialect/ptx/mma.h"
#include "common/dialect/softmax.h"
#include "common/dialect/warp.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"

namespace step17_absorbed {

using fa::bf16;

constexpr int d = 576, dv = 512;             // features of a key; those that are its value
constexpr int kWarps = 8;                    // per block, each with its own row
constexpr int kPairs = d / 2 / fa::kWarp;    // of a lane: 9 times two adjacent features
constexpr int kValues = dv / 2 / fa::kWarp;  // the first 8 of them
static_assert(kPairs * 2 * fa::kWarp == d && kValues * 2 * fa::kWarp == dv);

// A lane's pairs of a row of 576 features, in fp32: features 64 i + 2 lane and the next.
__device__ inline void load_row(const bf16* row, float (&x)[kPairs][2]) {
  const int lane = threadIdx.x % fa::kWarp;
  UNROLL
  for (int i = 0; i < kPairs; ++i) {
    const uint32_t pair = reinterpret_cast<const uint32_t*>(row)[i * fa::kWarp + lane];
    x[i][0] = __uint_as_float(pair << 16), x[i][1] = __uint_as_float(pair & 0xffff0000);
  }
}

static __global__ void __launch_bounds__(kWarps* fa::kWarp)
    flash_decode_kernel(const bf16* Q,  // [B, rows, d]: rows of all heads, H*N
                        const bf16* K,  // [B, Nk, d]; V is its first dv features
                        bf16* O,        // [B, rows, dv]
                        float* LSE,     // [B, rows]
                        int rows, int N, int Nk, float scale, bool causal) {
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int r = blockIdx.x * kWarps + warp;
  if (r >= rows) return;  // legal: no barrier follows
  const size_t entry = blockIdx.y, row = entry * rows + r;
  const int visible = causal ? Nk - N + 1 + r % N : Nk;  // keys that this query sees
  float q[kPairs][2], O_row[kValues][2] = {}, m = fa::kNoMaximum, l = 0.f;
  load_row(Q + row * d, q);
  const float scale_log2 = scale * fa::kLog2e;  // exp(scale * s) = 2^(scale_log2 * s)

  for (int c = 0; c < visible; ++c) {
    float k[kPairs][2], s = 0.f;
    load_row(K + (entry * Nk + c) * d, k);
    UNROLL
    for (int i = 0; i < kPairs; ++i) s += q[i][0] * k[i][0] + q[i][1] * k[i][1];
    s = fa::warp_sum(s) * scale_log2;
    const float m_new = fmaxf(m, s), alpha = fa::exp2_approx(m - m_new);
    const float p = fa::exp2_approx(s - m_new);
    m = m_new, l = alpha * l + p;
    UNROLL
    for (int i = 0; i < kValues; ++i) {  // the value: the same registers, without the last pair
      O_row[i][0] = alpha * O_row[i][0] + p * k[i][0];
      O_row[i][1] = alpha * O_row[i][1] + p * k[i][1];
    }
  }

  const float normalise = l > 0.f ? 1.f / l : 0.f;  // no key seen: O = 0
  UNROLL
  for (int i = 0; i < kValues; ++i) {
    reinterpret_cast<uint32_t*>(O + row * dv)[i * fa::kWarp + lane] =
        fa::pack_bf16(O_row[i][0] * normalise, O_row[i][1] * normalise);
  }
  if (lane == 0) LSE[row] = l > 0.f ? (m + log2f(l)) * fa::kLn2 : -INFINITY;
}

// --- host ---------------------------------------------------------------------------------------

inline fa::Prediction traffic(const fa::Problem& p) {
  const uint64_t rows = p.rows();
  uint64_t keys = 0;  // that all rows see
  for (int r = 0; r < p.N; ++r) keys += std::max(0, p.visible(r)) * uint64_t(p.B) * p.H;
  fa::Prediction t;
  t["Q"].read = 2 * rows * d, t["K"].read = 2 * keys * d;
  t["O"].write = 2 * rows * dv, t["LSE"].write = 4 * rows;
  t.flops = 2 * keys * (d + dv);
  t.hbm = {.read = 2 * d * (rows + uint64_t(p.B) * p.Nk), .write = rows * (2 * dv + 4)};
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const int rows = p.H * p.N;
  fa::launch(flash_decode_kernel, {dim3(fa::ceil_div(rows, kWarps), p.B), dim3(kWarps * fa::kWarp)},
             t.Q, t.K, t.O, t.LSE, rows, p.N, p.Nk, p.scale(), p.causal);
}

}  // namespace step17_absorbed

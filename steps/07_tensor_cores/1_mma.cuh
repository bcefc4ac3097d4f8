// Step 07 -- tensor cores: both products by mma.sync, bf16.
// Idea      One instruction of one warp multiplies 16 x 16 by 16 x 8 numbers. Its operands lie in
//           registers, in a fixed pattern; the pattern in which it leaves S is the pattern in which
//           P V takes P. So S becomes P in the same registers, and P never goes to memory
// Changed   since 06 2_registers: inputs, P and O in bf16; a warp multiplies 16 rows by mma.sync,
//           with operands from ldmatrix; four threads share a row; one barrier less: P needs none
// Traffic   requested read  2*BH*(N*d + 2*Tr*N*d) B   Tr = N/64; causal: K and V of visited tiles
//                     write 2*BH*N*d + 4*BH*N B       O, LSE
//           compulsory      2*BH*4*N*d + 4*BH*N B
// Launch    grid (Tr, B*H), 128 threads; causal: the longest walks of each head first
// Owns      block: 64 rows of O; warp: 16 of them; thread: every fourth pair of columns in 2 rows
// Still bad the block waits for each tile that it loads: 2_pipelined
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/fragment.h"
#include "common/dialect/ptx/mma.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"

namespace step07_mma {

using fa::bf16;

constexpr int Br = 64, Bc = 64;       // rows and keys of a tile of S
constexpr int kMma = 16;              // rows of an mma's A, and keys or features that it sums over
constexpr int kGrid = 4, kGridY = 8;  // a warp's lanes, in each 8 x 8 numbers of an mma's result
constexpr int kThreadRows = 2;        // a thread's rows, 8 apart
constexpr int kPad = 8;  // keeps rows 16-byte aligned; 16 bytes of each of 8 rows: all 32 banks
constexpr int kThreads = Br / kMma * fa::kWarp;
static_assert(Br == Bc, "the diagonal crosses a causal row's last tile only");

// What a block keeps in shared memory: 27 KB when d = 64, 51 KB when d = 128.
template <int d>
struct Tiles {
  bf16 Q[Br][d + kPad];
  bf16 K[Bc][d + kPad];
  bf16 V[Bc][d + kPad];
};

// Rows row0 .. row0 + Rows - 1 of a matrix [N, d] to shared memory; rows past the end are zero.
template <int d, int Rows, int stride>
__device__ inline void load_tile(const bf16* g,  // [N, d]
                                 bf16 (&s)[Rows][stride], int row0, int N) {
  constexpr int kVectors = d / 8;  // vectors of eight numbers per row
  UNROLL
  for (int v = threadIdx.x; v < Rows * kVectors; v += kThreads) {
    const int r = v / kVectors, x = v % kVectors * 8;
    uint4 row = make_uint4(0, 0, 0, 0);
    if (row0 + r < N) row = *reinterpret_cast<const uint4*>(g + size_t(row0 + r) * d + x);
    *reinterpret_cast<uint4*>(&s[r][x]) = row;
  }
}

// S = Q K^T of one tile: a warp's 16 rows and all keys, 16 features at a time.
template <int d>
__device__ inline void multiply_scores(const Tiles<d>& smem, int warp, int lane,
                                       float (&rS)[Bc / 8][4]) {
  UNROLL
  for (int x = 0; x < d; x += kMma) {
    uint32_t a[4];  // Q of 16 rows and 16 features: left half, then right
    fa::ldmatrix_x4(a, &smem.Q[warp * kMma + lane % 16][x + lane / 16 * 8]);
    UNROLL
    for (int c = 0; c < Bc; c += 16) {
      uint32_t b[2][2];  // K^T of 16 features and two times 8 keys
      fa::ldmatrix_x4(b, &smem.K[c + lane / 16 * 8 + lane % 8][x + lane / 8 % 2 * 8]);
      UNROLL
      for (int n = 0; n < 2; ++n) fa::mma_m16n8k16(rS[c / 8 + n], a, b[n]);
    }
  }
}

// O += P V of one tile: a warp's 16 rows and all features, 16 keys at a time.
template <int d>
__device__ inline void multiply_values(const Tiles<d>& smem, int lane, const float (&rP)[Bc / 8][4],
                                       float (&rO)[d / 8][4]) {
  UNROLL
  for (int c = 0; c < Bc; c += kMma) {
    uint32_t a[4];  // P of 16 keys: two neighbouring 8-key tiles of S, rounded to bf16
    UNROLL
    for (int e = 0; e < 4; ++e) {
      const int n = c / 8 + e / 2, h = e % 2;
      a[e] = fa::pack_bf16(rP[n][2 * h], rP[n][2 * h + 1]);
    }
    UNROLL
    for (int x = 0; x < d; x += 16) {
      uint32_t b[2][2];  // V of 16 keys and two times 8 features
      fa::ldmatrix_x4_trans(b, &smem.V[c + lane % 16][x + lane / 16 * 8]);
      UNROLL
      for (int n = 0; n < 2; ++n) fa::mma_m16n8k16(rO[x / 8 + n], a, b[n]);
    }
  }
}

// O = softmax(scale * Q K^T) V and LSE of one tile of Q. At least two blocks per SM:
// up to 255 registers per thread, and while one block waits for its tiles the other one computes.
template <int d>
__global__ void __launch_bounds__(kThreads, 2) flash_fwd_kernel(const bf16* Q,  // [B*H, N, d]
                                                                const bf16* K,  // [B*H, N, d]
                                                                const bf16* V,  // [B*H, N, d]
                                                                bf16* O,        // [B*H, N, d]
                                                                float* LSE,     // [B*H, N]
                                                                int N, float scale, bool causal) {
  // --- prologue
  Tiles<d>& smem = *fa::dynamic_shared<Tiles<d>>();
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int tx = lane % kGrid, ty = warp * kMma + lane / kGrid;
  const int i = gridDim.x - 1 - blockIdx.x;     // causal: the longest walks start first
  const float scale_log2 = scale * fa::kLog2e;  // exp(scale * s) = 2^(scale_log2 * s)
  const size_t bh = blockIdx.y;
  Q += bh * N * d, K += bh * N * d, V += bh * N * d, O += bh * N * d, LSE += bh * N;
  load_tile<d>(Q, smem.Q, i * Br, N);

  float rO[d / 8][4] = {};                    // not normalised before the end
  float m[kThreadRows], l[kThreadRows] = {};  // m in powers of 2; l of this thread's keys only
  UNROLL
  for (int a = 0; a < kThreadRows; ++a) m[a] = -INFINITY;

  // --- mainloop
  const int last = causal ? i : (N - 1) / Bc;  // tiles above the diagonal are not visited
  for (int j = 0; j <= last; ++j) {
    load_tile<d>(K, smem.K, j * Bc, N);
    load_tile<d>(V, smem.V, j * Bc, N);
    __syncthreads();  // K_j and V_j are complete, before the first ones also Q_i

    // Of keys 8 n .. 8 n + 7 a thread has two of its row a: rS[n][2 * a] and rS[n][2 * a + 1].
    float rS[Bc / 8][4] = {};
    multiply_scores<d>(smem, warp, lane, rS);
    if (j == last) {  // only there are keys past the diagonal or past the end
      UNROLL
      for (int a = 0; a < kThreadRows; ++a) {
        const int r = i * Br + ty + a * kGridY, c = j * Bc + 2 * tx;
        const int visible = (causal ? min(N, r + 1) : N) - c;
        UNROLL
        for (int n = 0; n < Bc / 8; ++n) {
          if (n * 8 >= visible) rS[n][2 * a] = -INFINITY;
          if (n * 8 + 1 >= visible) rS[n][2 * a + 1] = -INFINITY;
        }
      }
    }

    // S becomes P, relative to the m of the keys so far. Row r sees key 0, so m is finite from the
    // first tile on: no exp(-inf - -inf), even in a masked tile.
    UNROLL
    for (int a = 0; a < kThreadRows; ++a) {
      float s_max = -INFINITY;
      UNROLL
      for (int n = 0; n < Bc / 8; ++n) s_max = fmaxf(s_max, fmaxf(rS[n][2 * a], rS[n][2 * a + 1]));
      const float m_new = fmaxf(m[a], scale_log2 * fa::quad_max(s_max));
      const float alpha = exp2f(m[a] - m_new);  // moves earlier sums to the new maximum
      m[a] = m_new;
      l[a] *= alpha;
      UNROLL
      for (int n = 0; n < Bc / 8; ++n) {  // P takes the place of S
        rS[n][2 * a] = exp2f(rS[n][2 * a] * scale_log2 - m_new);
        rS[n][2 * a + 1] = exp2f(rS[n][2 * a + 1] * scale_log2 - m_new);
        l[a] += rS[n][2 * a] + rS[n][2 * a + 1];
      }
      UNROLL
      for (int n = 0; n < d / 8; ++n) {
        rO[n][2 * a] *= alpha;
        rO[n][2 * a + 1] *= alpha;
      }
    }

    multiply_values<d>(smem, lane, rS, rO);
    __syncthreads();  // all have read the tiles; the next ones may overwrite
  }

  // --- epilogue: the only division, the only stores
  UNROLL
  for (int a = 0; a < kThreadRows; ++a) {
    const int r = i * Br + ty + a * kGridY;
    const float row_l = fa::quad_sum(l[a]);  // a quad owns a row
    if (r >= N) continue;
    UNROLL
    for (int n = 0; n < d / 8; ++n) {
      *reinterpret_cast<uint32_t*>(O + size_t(r) * d + n * 8 + 2 * tx) =
          fa::pack_bf16(rO[n][2 * a] / row_l, rO[n][2 * a + 1] / row_l);
    }
    if (tx == 0) LSE[r] = m[a] / fa::kLog2e + logf(row_l);
  }
}

// --- host ---------------------------------------------------------------------------------------

// What the kernel is made for; anything else is refused.
inline fa::Support support() { return {.d = {64, 128}}; }

inline fa::Prediction traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d;
  const fa::TileVisits v = fa::visited_tiles(p, Br, Bc);
  fa::Prediction t;
  t["Q"].read = t["O"].write = 2 * BH * N * d;
  t["K"].read = t["V"].read = 2 * BH * v.keys * d;
  t["LSE"].write = 4 * BH * N;
  t.hbm = {.read = 2 * BH * 3 * N * d, .write = 2 * BH * N * d + 4 * BH * N};
  t.flops = BH * 4 * uint64_t(Br) * Bc * v.tiles * d;  // zeros of ragged tiles are multiplied too
  return t;
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const unsigned BH = p.heads(), Tr = fa::ceil_div(p.N, Br);
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    fa::launch(flash_fwd_kernel<d>, {dim3(Tr, BH), dim3(kThreads), sizeof(Tiles<d>)}, t.Q, t.K, t.V,
               t.O, t.LSE, p.N, p.scale(), p.causal);
  });
}

}  // namespace step07_mma

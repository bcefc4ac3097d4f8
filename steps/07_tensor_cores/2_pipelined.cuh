// Step 07 -- the next tile is copied while this one is multiplied.
// Idea      cp.async copies to shared memory without registers, and no thread waits for it: tile
//           j + 1 arrives while the tensor cores work on tile j. A swizzle avoids bank conflicts as
//           the padding did, and costs no memory
// Changed   since 07 1_mma: K and V by cp.async in two stages, swizzled; one barrier per tile; O
//           leaves through shared memory, in whole rows
// Traffic   requested read  2*BH*(N*d + 2*Tr*N*d) B   Tr = N/64; causal: K and V of visited tiles
//                     write 2*BH*N*d + 4*BH*N B       O, LSE
//           compulsory      2*BH*4*N*d + 4*BH*N B
// Launch    grid (Tr, B*H), 128 threads; causal: the longest walks of each head first
// Owns      block: 64 rows of O; warp: 16 of them; thread: every fourth pair of columns in 2 rows
// Still bad each fragment that a warp loads from shared memory serves 16 rows only: 3_bands
#pragma once

#include "common/dialect/cuda.h"
#include "common/dialect/fragment.h"
#include "common/dialect/ptx/cp_async.h"
#include "common/dialect/ptx/mma.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"

namespace step07_pipelined {

using fa::bf16;

constexpr int Br = 64, Bc = 64;       // rows and keys of a tile of S
constexpr int kMma = 16;              // rows of an mma's A, and keys or features that it sums over
constexpr int kGrid = 4, kGridY = 8;  // a warp's lanes, in each 8 x 8 numbers of an mma's result
constexpr int kThreadRows = 2;        // a thread's rows, 8 apart
constexpr int kThreads = Br / kMma * fa::kWarp;
constexpr int kStages = 2;  // of K and V: one is multiplied while the other is copied
static_assert(Br == Bc, "the diagonal crosses a causal row's last tile only");

// What a block keeps in shared memory: 40 KB when d = 64, 80 KB when d = 128.
template <int d>
struct Tiles {
  bf16 Q[Br * d];  // reused for O in the epilogue
  bf16 K[kStages][Bc * d];
  bf16 V[kStages][Bc * d];
};

// Where element (r, x) of a tile lies, x a multiple of 8. A row is cut into chunks of 16 bytes, and
// chunk c of row r takes the place c ^ (r % 8): eight rows of one chunk, which is what ldmatrix
// reads at a time, then lie in all 32 banks. 16 features further is an XOR, too: place ^ 16.
template <int d>
__device__ inline int swizzle(int r, int x) {
  return r * d + (x ^ (r % 8 * 8));
}

// Rows 0 .. Rows - 1 of a matrix to shared memory, without waiting; from `rows` on they are zero.
template <int d, int Rows>
__device__ inline void load_tile(const bf16* g,  // [rows, d]
                                 bf16* s,        // [Rows, d] swizzled
                                 int rows) {
  constexpr int kChunks = d / 8;               // of 16 bytes, per row
  constexpr int kCopied = kThreads / kChunks;  // rows that the block copies at once
  static_assert(kCopied % 8 == 0, "a thread's chunks have one swizzle");
  const int r = threadIdx.x / kChunks, x = threadIdx.x % kChunks * 8;
  g += r * d + x;
  s += swizzle<d>(r, x);
  UNROLL
  for (int step = 0; step < Rows; step += kCopied) {
    fa::cp_async_16(s + step * d, g + step * d, r + step < rows ? 16 : 0);
  }
}

// S = Q K^T of one tile: a warp's 16 rows and all keys, 16 features at a time.
template <int d>
__device__ inline void multiply_scores(const bf16* sQ,  // [16, d] swizzled: this warp's rows
                                       const bf16* sK,  // [Bc, d] swizzled
                                       float (&rS)[Bc / 8][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  const int q = swizzle<d>(lane % 16, lane / 16 * 8);                    // left half, then right
  const int k = swizzle<d>(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);  // 8 keys, then 8 more
  UNROLL
  for (int x = 0; x < d; x += kMma) {
    uint32_t a[4];  // Q of 16 rows and 16 features
    fa::ldmatrix_x4(a, sQ + (q ^ x));
    UNROLL
    for (int c = 0; c < Bc; c += 16) {
      uint32_t b[2][2];  // K^T of 16 features and two times 8 keys
      fa::ldmatrix_x4(b, sK + c * d + (k ^ x));
      UNROLL
      for (int n = 0; n < 2; ++n) fa::mma_m16n8k16(rS[c / 8 + n], a, b[n]);
    }
  }
}

// O += P V of one tile: a warp's 16 rows and all features, 16 keys at a time.
template <int d>
__device__ inline void multiply_values(const float (&rP)[Bc / 8][4],
                                       const bf16* sV,  // [Bc, d] swizzled
                                       float (&rO)[d / 8][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  const int v = swizzle<d>(lane % 16, lane / 16 * 8);
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
      fa::ldmatrix_x4_trans(b, sV + c * d + (v ^ x));
      UNROLL
      for (int n = 0; n < 2; ++n) fa::mma_m16n8k16(rO[x / 8 + n], a, b[n]);
    }
  }
}

// O = softmax(scale * Q K^T) V and LSE of one tile of Q. At least two blocks per SM:
// up to 255 registers per thread, and while one block waits at its barrier the other one computes.
template <int d>
__global__ void __launch_bounds__(kThreads, 2) flash_fwd_kernel(const bf16* Q,  // [B*H, N, d]
                                                                const bf16* K,  // [B*H, N, d]
                                                                const bf16* V,  // [B*H, N, d]
                                                                bf16* O,        // [B*H, N, d]
                                                                float* LSE,     // [B*H, N]
                                                                int N, float scale, bool causal) {
  // --- prologue: copies of Q_i, K_0 and V_0
  Tiles<d>& smem = *fa::dynamic_shared<Tiles<d>>();
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const int tx = lane % kGrid, ty = warp * kMma + lane / kGrid;
  const int i = gridDim.x - 1 - blockIdx.x;     // causal: the longest walks start first
  const int rows = N - i * Br;                  // from the tile's first one on
  const float scale_log2 = scale * fa::kLog2e;  // exp(scale * s) = 2^(scale_log2 * s)
  const size_t row0 = size_t(blockIdx.y) * N + i * Br, key0 = size_t(blockIdx.y) * N;
  Q += row0 * d, O += row0 * d, LSE += row0, K += key0 * d, V += key0 * d;
  load_tile<d, Br>(Q, smem.Q, rows);
  load_tile<d, Bc>(K, smem.K[0], N);
  load_tile<d, Bc>(V, smem.V[0], N);

  float rO[d / 8][4] = {};                    // not normalised before the end
  float m[kThreadRows], l[kThreadRows] = {};  // m in powers of 2; l of this thread's keys only
  UNROLL
  for (int a = 0; a < kThreadRows; ++a) m[a] = -INFINITY;

  // --- mainloop
  const int last = causal ? i : (N - 1) / Bc;  // tiles above the diagonal are not visited
  for (int j = 0; j <= last; ++j) {
    fa::cp_async_wait_all();
    __syncthreads();  // all copies of tile j are here, and all warps are done with tile j - 1
    if (j < last) {
      const int next = (j + 1) * Bc, stage = (j + 1) % kStages;
      load_tile<d, Bc>(K + size_t(next) * d, smem.K[stage], N - next);
      load_tile<d, Bc>(V + size_t(next) * d, smem.V[stage], N - next);
    }

    // Of keys 8 n .. 8 n + 7 a thread has two of its row a: rS[n][2 * a] and rS[n][2 * a + 1].
    float rS[Bc / 8][4] = {};
    multiply_scores<d>(smem.Q + warp * kMma * d, smem.K[j % kStages], rS);
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

    multiply_values<d>(rS, smem.V[j % kStages], rO);
  }

  // --- epilogue: O goes through the warp's rows of Q: 16 bytes per lane leave in whole rows
  __syncwarp();  // all lanes have read the warp's rows of Q
  UNROLL
  for (int a = 0; a < kThreadRows; ++a) {
    const int r = ty + a * kGridY;
    const float row_l = fa::quad_sum(l[a]);  // a quad owns a row
    UNROLL
    for (int n = 0; n < d / 8; ++n) {
      *reinterpret_cast<uint32_t*>(smem.Q + swizzle<d>(r, n * 8) + 2 * tx) =
          fa::pack_bf16(rO[n][2 * a] / row_l, rO[n][2 * a + 1] / row_l);
    }
    if (tx == 0 && r < rows) LSE[r] = m[a] / fa::kLog2e + logf(row_l);
  }
  __syncwarp();                               // the warp's rows are complete
  constexpr int kStored = fa::kWarp * 8 / d;  // rows that a warp stores at once
  UNROLL
  for (int step = 0; step < kMma; step += kStored) {
    const int r = warp * kMma + step + lane / (d / 8), x = lane % (d / 8) * 8;
    if (r >= rows) continue;
    *reinterpret_cast<uint4*>(O + r * d + x) = *reinterpret_cast<uint4*>(smem.Q + swizzle<d>(r, x));
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

}  // namespace step07_pipelined

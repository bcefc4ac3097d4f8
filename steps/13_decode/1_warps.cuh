// Step 13 -- one query: one block per head, whose warps share the keys.
// Idea      A new token has one query per head. A tile of 128 rows would hold one row and 127
//           zeros, and three of four warps would idle. Instead, all warps hold the same 16 rows,
//           the fewest of an mma, and share the keys. Each number of K or V is multiplied once per
//           row, so bandwidth is the only limit: two tiles per warp are in flight
// Changed   since 07 4_lazy: 16 rows for all warps, Q in registers; a warp copies its own tiles of
//           16 or 32 keys, in three stages, without a barrier; the warps' parts are merged
// Traffic   requested read  2*BH*(4*N*d + 2*Nk*d) B   Q by each warp
//                     write 2*BH*N*d + 4*BH*N B       O, LSE
//           compulsory      2*(2*BH*N*d + 2*BHkv*Nk*d) + 4*BH*N B
// Launch    grid B*H: one block per head
// Owns      block: a head; warp: every fourth tile; lane: of 2 rows every fourth pair of columns
// Still bad few blocks, and each walks the whole cache
#pragma once

#include "steps/13_decode/parts.cuh"

namespace step13_warps {

using namespace step13;  // parts.cuh

constexpr int kPad = 8;  // floats: two numbers of each of four rows cover all 32 banks

template <int d>
struct Tiles {
  bf16 K[kStages][kWarpKeys<d> * d];
  bf16 V[kStages][kWarpKeys<d> * d];
};

// Where element (r, x) of a tile is stored, x a multiple of 8. A row consists of chunks of 16
// bytes; chunk c of row r is stored at c ^ (r % 8), so the eight rows of a chunk that ldmatrix
// reads at a time cover all 32 banks. A step of 16 features is an XOR, too: place ^ 16.
template <int d>
__device__ inline int swizzle(int r, int x) {
  return r * d + (x ^ (r % 8 * 8));
}

// Issues the copies of a matrix's rows to a warp's shared memory; rows from `rows` on are zero.
template <int d, int kRows>
__device__ inline void load_tile(const bf16* g,  // [rows, d]
                                 bf16* s,        // [kRows, d] swizzled
                                 int rows) {
  constexpr int kChunks = d / 8;                // of 16 bytes, per row
  constexpr int kCopied = fa::kWarp / kChunks;  // rows that the warp copies at once
  const int lane = threadIdx.x % fa::kWarp, x = lane % kChunks * 8;
  UNROLL
  for (int step = 0; step < kRows; step += kCopied) {
    const int r = lane / kChunks + step;
    fa::cp_async_16(s + swizzle<d>(r, x), g + size_t(r) * d + x, r < rows ? 16 : 0);
  }
}

// Loads the A fragments of all bands, 16 rows each; rows from `rows` on are zero.
template <int d, int bands>
__device__ inline void load_queries(const bf16* Q,  // [rows, d]
                                    int rows, uint32_t (&rQ)[bands][d / kMma][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  UNROLL
  for (int t = 0; t < bands; ++t) {
    UNROLL
    for (int x = 0; x < d / kMma; ++x) {
      UNROLL
      for (int e = 0; e < 4; ++e) {
        const int r = t * kMma + fa::row_of(lane) + e % 2 * 8,
                  feature = x * kMma + e / 2 * 8 + fa::column_of(lane);
        rQ[t][x][e] = r < rows ? *reinterpret_cast<const uint32_t*>(Q + r * d + feature) : 0;
      }
    }
  }
}

// S = Q K^T of all rows and a warp's keys, 16 features at a time.
template <int d, int bands>
__device__ inline void multiply_scores(const uint32_t (&rQ)[bands][d / kMma][4],
                                       const bf16* sK,  // [kWarpKeys, d] swizzled
                                       float (&rS)[bands][kWarpKeys<d> / 8][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  const int k = swizzle<d>(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);  // 8 keys, then 8 more
  UNROLL
  for (int x = 0; x < d; x += kMma) {
    UNROLL
    for (int c = 0; c < kWarpKeys<d>; c += 16) {
      uint32_t b[2][2];  // K^T of 16 features and 2 x 8 keys
      fa::ldmatrix_x4(b, sK + c * d + (k ^ x));
      UNROLL
      for (int n = 0; n < 2; ++n) {
        UNROLL
        for (int t = 0; t < bands; ++t) fa::mma_m16n8k16(rS[t][c / 8 + n], rQ[t][x / kMma], b[n]);
      }
    }
  }
}

// O += P V of a warp's keys, 16 at a time.
template <int d, int bands>
__device__ inline void multiply_values(const float (&rS)[bands][kWarpKeys<d> / 8][4],
                                       float scale_log2, const float (&m)[bands][2],
                                       const bf16* sV,  // [kWarpKeys, d] swizzled
                                       float (&l)[bands][2], float (&rO)[bands][d / 8][4]) {
  const int lane = threadIdx.x % fa::kWarp;
  const int v = swizzle<d>(lane % 16, lane / 16 * 8);
  UNROLL
  for (int c = 0; c < kWarpKeys<d>; c += kMma) {
    uint32_t a[bands][4];
    exponentials(rS, c / 8, scale_log2, m, l, a);
    UNROLL
    for (int x = 0; x < d; x += 16) {
      uint32_t b[2][2];  // V of 16 keys and 2 x 8 features
      fa::ldmatrix_x4_trans(b, sV + c * d + (v ^ x));
      UNROLL
      for (int n = 0; n < 2; ++n) {
        UNROLL
        for (int t = 0; t < bands; ++t) fa::mma_m16n8k16(rO[t][x / 8 + n], a[t], b[n]);
      }
    }
  }
}

// Stores a warp's part, in the order of its registers, in shared memory.
template <int d, int bands>
__device__ inline void store_part(const float (&m)[bands][2], const float (&l)[bands][2],
                                  const float (&rO)[bands][d / 8][4], int rows,
                                  Parts<d, bands, kPad>& parts) {
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  store_statistics(m, l, parts);
  UNROLL
  for (int i = 0; i < 2 * bands; ++i) {
    const int r = fa::row_of(lane) + 8 * i, t = i / 2, h = i % 2;
    if (r >= rows) continue;
    UNROLL
    for (int n = 0; n < d / 8; ++n) {
      *reinterpret_cast<float2*>(&parts.O[warp][r][n * 8 + fa::column_of(lane)]) =
          make_float2(rO[t][n][2 * h], rO[t][n][2 * h + 1]);
    }
  }
}

// A block's shared memory: 96 KB.
template <int d, int bands>
union Shared {
  Tiles<d> tiles[kWarps];
  Parts<d, bands, kPad> parts;  // after the last tile
};

template <int d>
__global__ void __launch_bounds__(kThreads, 2)  // per SM: while one merges, the other copies
    flash_decode_kernel(const bf16* Q,          // [B*H, N, d]
                        const bf16* K,          // [B*Hkv, Nk, d]
                        const bf16* V,          // [B*Hkv, Nk, d]
                        bf16* O,                // [B*H, N, d]
                        float* LSE,             // [B*H, N]
                        int group, int N, int Nk, float scale, bool causal) {
  // --- prologue: fill all stages but one
  constexpr int bands = 1;
  Shared<d, bands>& smem = *fa::dynamic_shared<Shared<d, bands>>();
  const int warp = threadIdx.x / fa::kWarp, lane = threadIdx.x % fa::kWarp;
  const size_t row0 = size_t(blockIdx.x) * N;
  const size_t key0 = size_t(blockIdx.x / group) * Nk;  // `group` heads share K and V
  Q += row0 * d, K += key0 * d, V += key0 * d;
  Tiles<d>& tiles = smem.tiles[warp];
  const auto load = [&](int key, int stage) {
    if (key < Nk) {
      load_tile<d, kWarpKeys<d>>(K + size_t(key) * d, tiles.K[stage], Nk - key);
      load_tile<d, kWarpKeys<d>>(V + size_t(key) * d, tiles.V[stage], Nk - key);
    }
    fa::cp_async_commit();  // empty past the end: the wait below counts groups
  };
  const int first = warp * kWarpKeys<d>;  // the warp's first key
  for (int j = 0; j < kStages - 1; ++j) load(first + j * Bc<d>, j);
  uint32_t rQ[bands][d / kMma][4];
  load_queries<d>(Q, N, rQ);
  const float scale_log2 = scale * fa::kLog2e;  // exp(scale * s) = 2^(scale_log2 * s)
  const int least = causal ? Nk - N + 1 : Nk;   // keys that the first query sees
  int visible[bands][2];                        // and this lane's rows
  float rO[bands][d / 8][4] = {}, l[bands][2] = {}, m[bands][2];
  UNROLL
  for (int i = 0; i < 2; ++i) {
    m[0][i] = kNoMaximum;
    visible[0][i] = causal ? least + fa::row_of(lane) + 8 * i : Nk;
  }

  // --- mainloop
  for (int key = first, stage = 0; key < Nk; key += Bc<d>, stage = (stage + 1) % kStages) {
    fa::cp_async_wait<kStages - 2>();
    __syncwarp();  // all lanes' copies of this tile are complete, and the last tile is free
    load(key + (kStages - 1) * Bc<d>, (stage + kStages - 1) % kStages);
    float rS[bands][kWarpKeys<d> / 8][4] = {};
    multiply_scores<d>(rQ, tiles.K[stage], rS);
    if (least < key + kWarpKeys<d>) mask(rS, visible, key);
    update_maximum<d>(rS, scale_log2, m, l, rO);
    multiply_values<d>(rS, scale_log2, m, tiles.V[stage], l, rO);
  }

  // --- epilogue
  fa::cp_async_wait_all();
  __syncthreads();  // all warps are done with their tiles: the parts overwrite them
  store_part<d>(m, l, rO, N, smem.parts);
  __syncthreads();                             // all parts are complete
  constexpr int kStored = kThreads / (d / 4);  // rows that the block stores at once
  for (int r = threadIdx.x / (d / 4); r < N; r += kStored) {
    const int x = threadIdx.x % (d / 4) * 4;
    store_row<d>(merge_warps(smem.parts, r, x), row0 + r, x, O, LSE);
  }
}

// --- host ---------------------------------------------------------------------------------------

inline fa::Prediction traffic(const fa::Problem& p) {
  return traffic_of(p, Rows(p, /*group=*/1), {.count = 1, .keys = p.Nk}, kTile / p.d);
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    fa::launch(flash_decode_kernel<d>, {dim3(p.heads()), dim3(kThreads), sizeof(Shared<d, 1>)}, t.Q,
               t.K, t.V, t.O, t.LSE, p.H / p.Hkv, p.N, p.Nk, p.scale(), p.causal);
  });
}

}  // namespace step13_warps

// Step 17 -- two splits merge through distributed shared memory.
// Idea      A part of O is 2 KB per row and split, written, and read by a second kernel: 9% of the
//           time of 64 sequences of 8K keys with 64 heads. Two blocks that run at the same time can
//           write to each other's shared memory, where the tiles were
// Changed   since 17 5_resident: where a row has two splits, they are a cluster. Each block sends
//           half of its features and adds what it receives to the others: no parts, no merge
// Traffic   as 5_resident without parts; sums sent to the other block are no traffic of the L2
// Launch    grid (2*t, B), clusters of 2: 1 warpgroup computes P, 2 multiply
// Owns      block: 64 rows and half of the keys, at the end 256 features of O; warpgroups as
//           5_resident
// Still bad three or more splits have parts: an H200 runs 66 clusters of 2 at the same time, but
//           only 30 of 4, on 120 SMs
#pragma once

#include "common/dialect/ptx/more/cluster.h"
#include "steps/17_latent/5_resident.cuh"

namespace step17_pairs {

using namespace step17_resident;

// What a block receives, where its tiles were: each thread's sums for the other block's thread that
// has the same rows and features.
__device__ inline float2* received(Tiles& smem) {  // [kColumns / 4][kGroupThreads]
  return reinterpret_cast<float2*>(smem.KV) + threadIdx.x % kGroupThreads;
}
// LSE of this block's rows, in place of Q16. wgmma has read that: store_p() of the last tile has a
// barrier after its S.
__device__ inline float* lse_of(Tiles& smem, int r) {
  return reinterpret_cast<float*>(smem.Q16) + r;
}

// A row's LSE over both splits; share: the weight of this split's O in the result.
__device__ inline float merge_lse(float* mine, float& share) {
  const float lse[2] = {*mine, *fa::map_shared(mine, fa::cluster_rank() ^ 1)};
  const float top = fmaxf(fmaxf(lse[0], lse[1]), kNoMaximum);
  const float part = fa::exp2_approx(lse[0] - top), sum = part + fa::exp2_approx(lse[1] - top);
  share = sum > 0.f ? part / sum : 0.f;
  return sum > 0.f ? top + log2f(sum) : -INFINITY;
}

// O of a warpgroup, times `factor`: sent, or added to what is received.
__device__ inline void send(float (&rO)[kColumns / 2], const float (&factor)[2], float2* to) {
  rescale(rO, factor);
  UNROLL
  for (int i = 0; i < kColumns / 2; i += 2) {
    to[i / 2 * kGroupThreads] = make_float2(rO[i], rO[i + 1]);
  }
}
__device__ inline void add(float (&rO)[kColumns / 2], const float (&factor)[2],
                           const float2* received) {
  rescale(rO, factor);
  UNROLL
  for (int i = 0; i < kColumns / 2; i += 2) {
    const float2 x = received[i / 2 * kGroupThreads];
    rO[i] += x.x, rO[i + 1] += x.y;
  }
}

static __global__ void __launch_bounds__(kThreads, 1)
    flash_decode_kernel(const __grid_constant__ fa::TensorMap Q,  // [B, H*N, d]
                        const __grid_constant__ fa::TensorMap K,  // [pages, page, d], [B, Nk, d]
                        const bf16* K_rows, fa::Cache cache, int log2_page,
                        bf16* O,     // [B, H*N, dv]
                        float* LSE,  // [B, H*N]
                        Shape shape, int split_tiles) {
  const int split = fa::cluster_rank(), entry = blockIdx.y;
  const int keys = cache.lengths ? cache.lengths[entry] : shape.Nk;
  const int tiles = (keys + Bc - 1) / Bc, first = split * split_tiles;
  const int splits = tiles > split_tiles ? 2 : 1;
  if (split >= splits) return;
  Tiles& smem = *fa::dynamic_shared<Tiles>();
  if (threadIdx.x == 0) {
    const int row = int(blockIdx.x) / 2 * Br, count = min(tiles - first, split_tiles);
    prepare(smem, {entry, row, split, splits, keys, first, count}, shape, K_rows, cache, log2_page);
  }
  __syncthreads();  // all threads see the barriers and what the block does
  const int wg = fa::uniform(threadIdx.x / kGroupThreads);
  if (wg == 0) {
    fa::setmaxnreg_inc<kScoresRegisters>();
    float lse[2];
    Scores{smem, shape, &Q, &K}.run(lse);
    const Row row(smem.work, shape);
    if (smem.work.splits == 2) {
      if (fa::leads_quad(threadIdx.x % fa::kWarp)) {
        *lse_of(smem, row.r) = lse[0], *lse_of(smem, row.r + 8) = lse[1];
      }
      fa::cluster_sync();
      float share;
      lse[0] = merge_lse(lse_of(smem, row.r), share);
      lse[1] = merge_lse(lse_of(smem, row.r + 8), share);
      fa::cluster_sync();
    }
    if (smem.work.split == 0) {
      store_lse(lse, fa::kLn2, LSE + row.entry + row.of_entry, row.of_entry, shape.rows);
    }
  } else {
    fa::setmaxnreg_dec<kValuesRegisters>();
    float rO[kColumns / 2] = {}, factor[2];
    multiply_values(smem, wg - 1, &K, rO, factor);
    if (smem.work.splits == 2) {
      const int rank = smem.work.split, r = Row(smem.work, shape).r;
      fa::cluster_sync();  // both have stored LSE, and read all tiles
      float share[2];
      merge_lse(lse_of(smem, r), share[0]), merge_lse(lse_of(smem, r + 8), share[1]);
      factor[0] *= share[0], factor[1] *= share[1];
      if (wg - 1 != rank) send(rO, factor, fa::map_shared(received(smem), rank ^ 1));
      fa::cluster_sync();  // all is sent, and the LSE are read: a block may end
      if (wg - 1 != rank) return;
      add(rO, factor, received(smem)), factor[0] = factor[1] = 1.f;
    }
    const Row row(smem.work, shape);
    store_rows(rO, factor, O + row.entry * dv, row.of_entry, shape.rows, wg - 1);
  }
}

// --- host ---------------------------------------------------------------------------------------

inline bool has_pairs(const fa::Problem& p) { return splits_of(p).count == 2; }

// As splits, without parts and their merge.
inline fa::Prediction traffic(const fa::Problem& p) {
  fa::Prediction t = step17_splits::traffic(p), parts;
  if (!has_pairs(p)) return t;
  fa::add_parts_traffic(parts, t["O_parts"].write / sizeof(float) / dv, dv, /*lse_reads=*/1);
  t.hbm.read -= parts.hbm.read, t.hbm.write -= parts.hbm.write;
  t.buffers.erase("O_parts"), t.buffers.erase("LSE_parts");
  if (!p.cache.lengths.empty()) {
    const int threads = splits_of(p).merge_threads();
    t["lengths"].read -= 4 * p.rows() * (dv / step17_splits::kMerged) * threads;
  }
  return t;
}
inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  return has_pairs(p) ? std::vector<fa::Scratch>{} : step17_splits::workspace(p);
}

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  if (!has_pairs(p)) return step17_resident::forward(p, t);
  const int page = p.cache.page, log2_page = page ? std::bit_width(unsigned(page)) - 1 : 0;
  const uint64_t heads = page ? kPoolPages : p.B, rows = page ? page : p.Nk;
  fa::launch(flash_decode_kernel,
             {dim3(2 * row_blocks_of(p), p.B), dim3(kThreads), sizeof(Tiles), /*cluster=*/2},
             tile_map<d, 64>(t.Q, p.B, p.H * p.N, Br), tile_map<d>(t.K, heads, rows, Bc), t.K,
             t.cache, log2_page, t.O, t.LSE, shape_of(p), splits_of(p).tiles);
}

}  // namespace step17_pairs

// Step 11 -- rows of dQ that need no sums.
// Idea      With the mask a head's first rows see keys of one block only, which rounds and stores
//           their dQ, without zeros, additions or conversion
// Changed   since 11 3_columns: where dQ of such rows is stored; the other kernels omit them
// Traffic   as 3_columns, but dQ_sum: none of the first 128 rows of a head (N = Nk)
// Launch    and owners as 3_columns
// Still bad the share of such rows is 128 / N
#pragma once

#include "steps/11_hopper_backward/beyond/parts.cuh"

namespace step11_direct {

using namespace step11_sums;

constexpr int d = 128, kRows = step11_columns::Br<d>;  // 64 rows of a tile
struct DirectSums : Plain {
  FloatSums sums;
  bf16* dQ;  // [B*H, N, d]
  int N;
  int tiles, direct;  // of a head; the first of them, which have no sums
  float scale;

  struct Part : FloatSums::Part {
    const DirectSums& all;
    int half, feature;

    template <int n>
    __device__ void add(const float (&rdQ)[n]) const {
      const int tile = half % all.tiles;
      if (tile >= all.direct) return FloatSums::Part::add(rdQ);
      const int thread = threadIdx.x % kGroupThreads, lane = thread % fa::kWarp;
      const int r = tile * kRows + thread / fa::kWarp * 16 + fa::row_of(lane);
      bf16* to = all.dQ + (size_t(half / all.tiles) * all.N + r) * d + feature + lane % 4 * 8;
      store_rounded<d>(rdQ, all.scale, to, r, all.N);
    }
  };
  __device__ bool has_no_sums(int half) const { return half % tiles < direct; }
  __device__ Part part(const Tiles<d>&, unsigned, int, int half, int feature) const {
    return {sums.part<d>(half, feature), *this, half, feature};
  }
};

// --- the kernels ---------------------------------------------------------------------------------

__global__ void columns_kernel(const bf16* O,     // [B*H, N, d]
                               const bf16* dO,    // [B*H, N, d]
                               const float* LSE,  // [B*H, N]
                               bf16* columns,     // [B*H, Np, 8]
                               float* dQ_sum,     // [B*H, Np, d]
                               int N, int Np, float scale, int direct) {
  const RowLanes<d> at(N, Np);
  if (at.r >= direct * kRows) at.clear(dQ_sum);
  const float delta = at.delta(O, dO);
  if (at.lane > 0) return;
  step11_columns::put_columns(columns + at.padded * kColumns, at.lse(LSE) / scale, delta);
}

__global__ void convert_kernel(DirectSums dQ_sum,
                               bf16* dQ,  // [B*H, N, d]
                               int N, int Tr, float scale) {
  fa::griddep_wait();
  constexpr int kParts = d / 32;
  const int v = (gridDim.x - 1 - blockIdx.x) * kRowThreads + threadIdx.x;
  const int thread = v % kGroupThreads, part = v / kGroupThreads % kParts;
  const int half = v / (kGroupThreads * kParts);  // of a tile: 64 rows
  if (dQ_sum.has_no_sums(half)) return;
  const int warp = thread / fa::kWarp, lane = thread % fa::kWarp, quad = lane % 4;
  const auto from = dQ_sum.sums.part<d>(half);
  float4 sums[4];
  UNROLL
  for (int x = 0; x < 4; ++x) sums[x] = from.get(part * 4 + x);
  uint32_t low[4], high[4];  // row r, row r + 8
  fa::round_features(sums, scale, quad, low, high);
  const int r = half % (2 * Tr) * 64 + warp * 16 + fa::row_of(lane);
  bf16* to = dQ + (size_t(half / (2 * Tr)) * N + r) * d + (part * 4 + quad) * 8;
  fa::store_features<d>(low, high, to, r, N);
}

// --- host ----------------------------------------------------------------------------------------

inline int direct_tiles(const fa::Problem& p) {
  return std::min(std::max(0, Bc - (p.Nk - p.N)), padded_rows(p)) / kRows;
}
// On an H100 10% faster at N = 512 and 3% at 1024; a draft was no faster at 2048.
inline bool pays(const fa::Problem& p) {
  return p.d == d && p.causal && p.Nk >= p.N && p.N <= 1024 && direct_tiles(p) > 0;
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  fa::Prediction t = step11_columns::backward_traffic(p);
  const int direct = direct_tiles(p), walked = std::min(direct, fa::ceil_div(p.N, kRows));
  const uint64_t tile = 4 * uint64_t(p.heads()) * kRows * d, sums = direct * tile;
  fa::Bytes& bytes = t["dQ_sum"];
  bytes.read -= sums, bytes.write -= sums, bytes.atomic -= walked * tile;
  if (bytes.read == 0) t.buffers.erase("dQ_sum");
  t.hbm.read -= sums + walked * tile, t.hbm.write -= sums + walked * tile;
  return t;
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  float* const sums = t.scratch<float>("dQ_sum");
  const int Np = padded_rows(p), direct = direct_tiles(p);
  const DirectSums dQ_sum{{}, {sums}, t.dQ, p.N, Np / kRows, direct, p.scale()};
  fa::launch(columns_kernel, row_blocks(p, d / 8), t.O, t.dO, t.LSE, t.scratch<bf16>("columns"),
             sums, p.N, Np, p.scale(), direct);
  launch_backward<d>(p, t, dQ_sum);
  fa::launch_early(convert_kernel, row_blocks(p, d / 16), dQ_sum, t.dQ, p.N, Np / step11::Br,
                   p.scale());
}

}  // namespace step11_direct

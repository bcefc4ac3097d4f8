// Step 11: the kernels before and after the walk, and the bytes of all three. They are step 08's,
// with rows padded to whole tiles, where P is 0.
#pragma once

#include "steps/11_hopper_backward/2_walk.cuh"

namespace step11 {

constexpr int kRowThreads = 256;  // of a block

// The lanes of the kernel before: d / 8 of them own a row, padded ones included.
template <int d>
struct RowLanes {
  static constexpr int kLanes = d / 8, kRows = kRowThreads / kLanes;  // rows of a block
  int head, r, lane;                                                  // r: row of the head
  size_t padded, row;                                                 // of [B*H, Np], of [B*H, N]
  bool inside;

  // A block has rows of one head. The last head is first: the L2 keeps what the next kernel reads
  // first.
  __device__ RowLanes(int N, int Np)
      : head((gridDim.x - 1 - blockIdx.x) / (Np / kRows)),
        r(blockIdx.x % (Np / kRows) * kRows + threadIdx.x / kLanes),
        lane(threadIdx.x % kLanes),
        padded(size_t(head) * Np + r),
        row(size_t(head) * N + r),
        inside(r < N) {}
  // rowsum(dO * O), in all lanes.
  __device__ float delta(const bf16* O, const bf16* dO) const {
    float sum = 0.f;
    if (inside) {
      __align__(16) bf16 o[8], g[8];
      *reinterpret_cast<uint4*>(o) = reinterpret_cast<const uint4*>(O + row * d)[lane];
      *reinterpret_cast<uint4*>(g) = reinterpret_cast<const uint4*>(dO + row * d)[lane];
      UNROLL
      for (int x = 0; x < 8; ++x) sum += __bfloat162float(o[x]) * __bfloat162float(g[x]);
    }
    return fa::warp_sum<kLanes>(sum);
  }
  // LSE; -inf for a row without a key and for a padded one.
  __device__ float lse(const float* LSE) const { return inside ? LSE[row] : -INFINITY; }
  __device__ void clear(float* dQ_sum) const {
    float4* zero = reinterpret_cast<float4*>(dQ_sum + padded * d) + lane;
    zero[0] = make_float4(0.f, 0.f, 0.f, 0.f);
    zero[kLanes] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
};

// Once per row: delta = rowsum(dO * O), LSE in powers of two, and zeros for dQ_sum. Where LSE is
// -inf, LSE2 is inf, so that P is 0.
template <int d>
__global__ void delta_kernel(const bf16* O,     // [B*H, N, d]
                             const bf16* dO,    // [B*H, N, d]
                             const float* LSE,  // [B*H, N]
                             float* delta,      // [B*H, Np]
                             float* LSE2,       // [B*H, Np]
                             float* dQ_sum,     // [B*H, Np, d]
                             int N, int Np) {
  const RowLanes<d> at(N, Np);
  at.clear(dQ_sum);
  const float sum = at.delta(O, dO);
  if (at.lane > 0) return;
  delta[at.padded] = sum;
  const float lse = at.lse(LSE);
  LSE2[at.padded] = lse == -INFINITY ? INFINITY : lse * fa::kLog2e;
}

// 4 x 4 pairs of a quad's lanes: each round exchanges one bit of the lane with one of the pair's
// index.
__device__ inline void transpose_pairs(int quad, uint32_t (&low)[4], uint32_t (&high)[4]) {
  UNROLL
  for (int k = 1; k <= 2; k *= 2) {
    const bool upper = quad & k;
    UNROLL
    for (int x = 0; x < 4; ++x) {
      if (x & k) continue;
      const uint32_t l = __shfl_xor_sync(fa::kFullMask, upper ? low[x] : low[x | k], k);
      const uint32_t h = __shfl_xor_sync(fa::kFullMask, upper ? high[x] : high[x | k], k);
      (upper ? low[x] : low[x | k]) = l, (upper ? high[x] : high[x | k]) = h;
    }
  }
}

// 32 features of dQ, rounded and in order, of the rows r and r + 8, the first to `to`. sums: as
// convert_kernel's.
template <int d>
__device__ inline void put_rounded(const float4 (&sums)[4], float scale, bf16* to, int r, int N) {
  uint32_t low[4], high[4];  // row r, row r + 8: [pair of features]
  UNROLL
  for (int x = 0; x < 4; ++x) {
    low[x] = fa::pack_bf16(sums[x].x * scale, sums[x].y * scale);
    high[x] = fa::pack_bf16(sums[x].z * scale, sums[x].w * scale);
  }
  transpose_pairs(threadIdx.x % 4, low, high);
  if (r < N) *reinterpret_cast<uint4*>(to) = make_uint4(low[0], low[1], low[2], low[3]);
  if (r + 8 < N) {
    *reinterpret_cast<uint4*>(to + 8 * d) = make_uint4(high[0], high[1], high[2], high[3]);
  }
}

// Whether some rows have no sums: 17_direct's.
template <class Sums>
constexpr bool kLeavesRowsOut = requires(const Sums& sums) {
  sums.has_no_sums(0);
};

// dQ = scale * dQ_sum, rounded and in order. A lane holds every fourth pair of 32 features of the
// rows r and r + 8; the four lanes of a row exchange pairs until each has 8 adjacent features. The
// last head is first, because it is still in the L2.
template <int d, class Sums>
__global__ void convert_kernel(Sums dQ_sum,
                               bf16* dQ,  // [B*H, N, d]
                               int N, int Tr, float scale) {
  constexpr int kParts = d / 32;
  const int v = (gridDim.x - 1 - blockIdx.x) * kRowThreads + threadIdx.x;
  const int thread = v % kGroupThreads, part = v / kGroupThreads % kParts;
  const int half = v / (kGroupThreads * kParts);  // of a tile: 64 rows
  if constexpr (kLeavesRowsOut<Sums>) {
    if (dQ_sum.has_no_sums(half)) return;
  }
  const int warp = thread / fa::kWarp, lane = thread % fa::kWarp, quad = lane % 4;
  const auto from = dQ_sum.template part<d>(half);
  uint32_t low[4], high[4];  // row r, row r + 8: [pair of features]
  UNROLL
  for (int x = 0; x < 4; ++x) {
    const float4 sum = from.get(part * 4 + x);
    low[x] = fa::pack_bf16(sum.x * scale, sum.y * scale);
    high[x] = fa::pack_bf16(sum.z * scale, sum.w * scale);
  }
  transpose_pairs(quad, low, high);
  const int r = half % (2 * Tr) * 64 + warp * 16 + fa::row_of(lane);
  bf16* to = dQ + (size_t(half / (2 * Tr)) * N + r) * d + (part * 4 + quad) * 8;
  if (r < N) *reinterpret_cast<uint4*>(to) = make_uint4(low[0], low[1], low[2], low[3]);
  if (r + 8 < N) {
    *reinterpret_cast<uint4*>(to + 8 * d) = make_uint4(high[0], high[1], high[2], high[3]);
  }
}

// As convert_kernel, by the warpgroups of a block: dQ of a group of heads. A lane has the sums
// of 64 rows on their way while it rounds others.
template <int d>
__device__ inline void round_sums(const FloatSums& sums, int first_half,  // in the sums
                                  const Shape& shape,
                                  bf16* dQ,  // [B*H, N, d]
                                  int head, int N) {
  const int wg = threadIdx.x / kGroupThreads, thread = threadIdx.x % kGroupThreads;
  const int r = thread / fa::kWarp * 16 + fa::row_of(thread % fa::kWarp);
  const int halves = shape.Np / 64, end = shape.group * halves;  // of a tile: 64 rows
  const auto load = [&](float4(&sum)[d / 8], int half) {
    if (half >= end) return;
    const auto from = sums.template part<d>(first_half + half);
    UNROLL
    for (int x = 0; x < d / 8; ++x) sum[x] = from.get_l2(x);
  };
  const auto put = [&](const float4(&sum)[d / 8], int half) {
    if (half >= end) return;
    const int row = half % halves * 64 + r;
    bf16* to = dQ + (size_t(head + half / halves) * N + row) * d + thread % 4 * 8;
    UNROLL
    for (int x = 0; x < d / 8; x += 4) {
      const float4 four[4] = {sum[x], sum[x + 1], sum[x + 2], sum[x + 3]};
      put_rounded<d>(four, shape.scale, to + x * 8, row, N);
    }
  };
  float4 sum[2][d / 8];
  load(sum[0], wg);
  UNROLL_BY(1)
  for (int half = wg; half < end; half += 2 * kGroups) {
    load(sum[1], half + kGroups);
    put(sum[0], half);
    load(sum[0], half + 2 * kGroups);
    put(sum[1], half + kGroups);
  }
}

// --- host ----------------------------------------------------------------------------------------

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  const size_t rows = p.heads() * size_t(padded_rows(p));
  return {{"delta", 4 * rows}, {"LSE2", 4 * rows}, {"dQ_sum", 4 * rows * p.d}};
}

inline fa::Prediction traffic_of(const fa::Problem& p, int rows, int keys = Bc) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d, Np = padded_rows(p);
  const uint64_t Nv = uint64_t(fa::ceil_div(p.N, rows)) * rows;  // in whole tiles
  const fa::TileVisits v = fa::visited_tiles(p, rows, keys);
  fa::Prediction t;
  t["O"].read = t["dQ"].write = 2 * BH * N * d;
  t["dO"].read = 2 * BH * (N + v.rows) * d;  // delta; each tile of keys
  t["Q"].read = 2 * BH * v.rows * d;
  t["LSE"].read = 4 * BH * N;
  t["LSE2"] = t["delta"] = {.read = 4 * BH * v.tiles * rows, .write = 4 * BH * Np};  // whole tiles
  t["K"].read = t["V"].read = t["dK"].write = t["dV"].write = 2 * p.kv_size();
  t["dQ_sum"].read = t["dQ_sum"].write = 4 * BH * Np * d;  // zeros are written
  t["dQ_sum"].atomic = 4 * BH * v.tiles * rows * d;
  t.hbm = {.read = 2 * (4 * BH * N * d + 2 * p.kv_size()) + 4 * BH * (N + 2 * Nv + (Np + Nv) * d),
           .write = 2 * (BH * N * d + 2 * p.kv_size()) + 4 * BH * (2 * Np + (Np + Nv) * d)};
  t.flops = BH * 10 * rows * keys * v.tiles * d;  // five products; zeros are multiplied too
  return t;
}
inline fa::Prediction backward_traffic(const fa::Problem& p) { return traffic_of(p, Br); }

// `threads` threads per row of [B*H, Np].
inline fa::LaunchConfig row_blocks(const fa::Problem& p, int threads) {
  return {dim3(unsigned(p.heads() * size_t(padded_rows(p)) * threads / kRowThreads)),
          dim3(kRowThreads)};
}
template <int d>
void launch_delta(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::launch(delta_kernel<d>, row_blocks(p, d / 8), t.O, t.dO, t.LSE, t.scratch<float>("delta"),
             t.scratch<float>("LSE2"), t.scratch<float>("dQ_sum"), p.N, padded_rows(p));
}
template <int d, class Sums>
void launch_convert(const fa::Problem& p, const fa::Tensors<bf16>& t, const Sums& dQ_sum) {
  fa::launch(convert_kernel<d, Sums>, row_blocks(p, d / 16), dQ_sum, t.dQ, p.N, padded_rows(p) / Br,
             p.scale());
}

}  // namespace step11

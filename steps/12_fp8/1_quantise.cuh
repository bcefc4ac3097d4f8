// Step 12 -- Q, K and V in 8 bits.
// Idea      e4m3 has 3 bits of mantissa and a maximum of 448, to which a scale maps the largest
//           number of a tensor, or of a head. V is transposed, because wgmma reads 8-bit operands
//           K-major only
// Changed   since step 10: new. Prepares the operands of the attention
// Traffic   read  2*2*(BH*N*d + 2*BHkv*Nk*d) B, once for the scales, once to quantise
//           write BH*N*d + 2*BHkv*Nk*d B
// Launch    per tensor: blocks that find its largest numbers; one per 64 rows of Q, 128 of K or V
// Owns      block: the rows that it quantises, or the keys that it transposes
// Still bad P V loses precision where V has a mean: 3_centred
#pragma once

#include "common/counts/backend.h"
#include "common/dialect/cuda.h"
#include "common/dialect/ptx/fp8.h"
#include "common/dialect/warp.h"
#include "common/harness/step.h"
#include "common/harness/tiles.h"

namespace step12 {

using fa::bf16;
using e4m3 = __nv_fp8_e4m3;

constexpr int kQuantiseThreads = 256;
constexpr int kQuantiseBlocks = 1024;  // at most, per largest number
// Rows of Q, and of K, that the attention multiplies by one scale: a warpgroup's and a tile's.
constexpr int kQueryRows = 64, kKeyRows = 128;

__device__ inline uint4 load_eight(const bf16* x) { return *reinterpret_cast<const uint4*>(x); }
__device__ inline void unpack(const uint4& packed, float (&x)[8]) {
  const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
  UNROLL
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = __uint_as_float(words[i] << 16);
    x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000);
  }
}
__device__ inline uint2 pack_eight(const float (&x)[8]) {
  return {fa::pack_e4m3(x[0], x[1], x[2], x[3]), fa::pack_e4m3(x[4], x[5], x[6], x[7])};
}

template <int threads>
__device__ inline float block_max(float x) {
  constexpr int kWarps = threads / fa::kWarp;
  __shared__ float of_warps[kWarps];
  x = fa::warp_max(x);
  __syncthreads();  // an earlier call has read of_warps
  if (threadIdx.x % fa::kWarp == 0) of_warps[threadIdx.x / fa::kWarp] = x;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) x = fmaxf(x, of_warps[w]);
  return x;
}

// A normal number with a finite inverse, even where all numbers are 0 or subnormal.
__device__ inline float scale_of(float largest) {
  return fmaxf(largest, 0x1p-116f) / fa::kLargestE4m3;
}

// The largest absolute value of each n numbers, by `blocks` blocks. Floats >= 0 sort as integers.
static __global__ void largest_kernel(const bf16* x, unsigned* largest, size_t n, int blocks) {
  const int part = blockIdx.x / blocks, block = blockIdx.x % blocks;
  x += part * n;
  float most = 0.f;
  for (size_t i = (size_t(block) * kQuantiseThreads + threadIdx.x) * 8; i < n;
       i += size_t(blocks) * kQuantiseThreads * 8) {
    float v[8];
    unpack(load_eight(x + i), v);
    UNROLL
    for (int e = 0; e < 8; ++e) most = fmaxf(most, fabsf(v[e]));
  }
  most = block_max<kQuantiseThreads>(most);
  if (threadIdx.x == 0) atomicMax(&largest[part], __float_as_uint(most));
}

template <int d, int rows>
__global__ void quantise_kernel(const bf16* x,            // [heads, n, d]
                                e4m3* out,                // [heads, n, d]
                                float* scales,            // [heads, ceil(n / rows)]
                                const unsigned* largest,  // [heads], or [1]
                                bool per_head, int n) {
  const int blocks = (n + rows - 1) / rows, head = blockIdx.x / blocks;
  const int first = blockIdx.x % blocks * rows;
  const float scale = scale_of(__uint_as_float(largest[per_head ? head : 0]));
  const float inverse = 1.f / scale;
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
  for (int i = threadIdx.x * 8; i < min(rows, n - first) * d; i += kQuantiseThreads * 8) {
    const size_t at = (size_t(head) * n + first) * d + i;
    float v[8];
    unpack(load_eight(x + at), v);
    UNROLL
    for (int e = 0; e < 8; ++e) v[e] *= inverse;
    *reinterpret_cast<uint2*>(out + at) = pack_eight(v);
  }
}

// --- V -------------------------------------------------------------------------------------------

constexpr int kTileKeys = 128;  // per block
// Tiles of 128 KB in all.
__host__ __device__ constexpr int part_tiles(int d) { return 512 / d; }
// Blocks per SM, of threads that have d / 4 registers of V in flight.
constexpr int blocks_per_sm(int d) { return 512 / d < 4 ? 512 / d : 4; }
constexpr int kPlaces = 16;  // adjacent places in a row of V^T, whose keys key_at() gives

// Each feature has a scale, and a mean that the epilogue adds to O: here a head's scale, and 0.
static __global__ void features_kernel(float* mean,              // [B*Hkv, d]
                                       float* scale,             // [B*Hkv, d]
                                       const unsigned* largest,  // [B*Hkv], or [1]
                                       bool per_head) {
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  mean[at] = 0.f, scale[at] = scale_of(__uint_as_float(largest[per_head ? blockIdx.x : 0]));
}

// The key at place p of 16 keys in a row of V^T. A lane of S holds keys 2t, 2t + 1, 2t + 8 and
// 2t + 9; as P it must hold four adjacent places, 4t to 4t + 3.
__host__ __device__ constexpr int key_at(int p) { return p / 4 * 2 + p % 2 + p % 4 / 2 * 8; }

// x[e]: the same four features of key e, a byte each. y[f] becomes feature f of the four keys.
__device__ inline void transpose_bytes(const uint32_t (&x)[4], uint32_t (&y)[4]) {
  const uint32_t low[2] = {__byte_perm(x[0], x[1], 0x5140), __byte_perm(x[2], x[3], 0x5140)};
  const uint32_t high[2] = {__byte_perm(x[0], x[1], 0x7362), __byte_perm(x[2], x[3], 0x7362)};
  y[0] = __byte_perm(low[0], low[1], 0x5410), y[1] = __byte_perm(low[0], low[1], 0x7632);
  y[2] = __byte_perm(high[0], high[1], 0x5410), y[3] = __byte_perm(high[0], high[1], 0x7632);
}

// V^T of kTileKeys keys, 0 past the last key.
template <int d>
__global__ __launch_bounds__(kQuantiseThreads, blocks_per_sm(d)) void transpose_kernel(
    const bf16* V,       // [B*Hkv, Nk, d]
    const float* mean,   // [B*Hkv, d]
    const float* scale,  // [B*Hkv, d]
    e4m3* Vt,            // [B*Hkv, d, Nkp]: 16 keys in key_at()'s order
    int Nk, int Nkp) {
  constexpr int kLanes = d / 8, kWords = d / 4;  // threads, and words of four features, of a key
  constexpr int kPad = 4;                        // words after 16 keys: lanes read other banks
  __shared__ uint32_t s[kTileKeys * kWords + kTileKeys / kPlaces * kPad];
  const auto word = [](int key, int four) { return key * kWords + key / kPlaces * kPad + four; };
  constexpr int kRows = kQuantiseThreads / kLanes, kEach = kTileKeys / kRows;
  // The last tile of each 128 KB first: an earlier kernel has read V, so that tile is in the L2.
  const int tiles = Nkp / kTileKeys, parts = (tiles + part_tiles(d) - 1) / part_tiles(d);
  const int all_parts = gridDim.x / part_tiles(d), part = blockIdx.x % all_parts;
  const int head = part / parts;
  const int tile = (part % parts + 1) * part_tiles(d) - 1 - blockIdx.x / all_parts;
  if (tile >= tiles) return;
  const int lane = threadIdx.x % kLanes, row = threadIdx.x / kLanes;
  const int left = Nk - tile * kTileKeys - row;
  const bf16* from = V + (size_t(head + 1) * Nk - left) * d + lane * 8;
  uint4 packed[kEach];  // all loads are in flight before the first is used
  UNROLL
  for (int i = 0; i < kEach; ++i) {
    if (i * kRows < left) packed[i] = load_eight(from + i * kRows * d);
  }
  float m[8], inverse[8];
  UNROLL
  for (int e = 0; e < 8; ++e) {
    m[e] = mean[head * d + lane * 8 + e], inverse[e] = 1.f / scale[head * d + lane * 8 + e];
  }
  UNROLL
  for (int i = 0; i < kEach; ++i) {
    uint2 eight = {0, 0};
    if (i * kRows < left) {
      float v[8];
      unpack(packed[i], v);
      UNROLL
      for (int e = 0; e < 8; ++e) v[e] = (v[e] - m[e]) * inverse[e];
      eight = pack_eight(v);
    }
    *reinterpret_cast<uint2*>(&s[word(row + i * kRows, 2 * lane)]) = eight;
  }
  __syncthreads();
  constexpr int kChunks = kTileKeys / kPlaces;
  for (int i = threadIdx.x; i < kChunks * kWords; i += kQuantiseThreads) {
    const int chunk = i % kChunks, four = i / kChunks;
    uint32_t places[4][4];  // [four places][feature]
    UNROLL
    for (int q = 0; q < 4; ++q) {
      uint32_t keys[4];
      UNROLL
      for (int e = 0; e < 4; ++e) keys[e] = s[word(chunk * kPlaces + key_at(4 * q + e), four)];
      transpose_bytes(keys, places[q]);
    }
    UNROLL
    for (int f = 0; f < 4; ++f) {
      e4m3* to = Vt + (size_t(head) * d + four * 4 + f) * Nkp + tile * kTileKeys;
      *reinterpret_cast<uint4*>(to + chunk * kPlaces) = {places[0][f], places[1][f], places[2][f],
                                                         places[3][f]};
    }
  }
}

// --- host ----------------------------------------------------------------------------------------

inline uint64_t padded_keys(const fa::Problem& p) {
  return fa::ceil_div(p.Nk, kTileKeys) * kTileKeys;
}
inline uint64_t query_blocks(const fa::Problem& p) {
  return p.heads() * fa::ceil_div(p.N, kQueryRows);
}
inline uint64_t key_blocks(const fa::Problem& p, int rows) {
  return p.kv_heads() * fa::ceil_div(p.Nk, rows);
}
inline int part_keys(int d) { return part_tiles(d) * kTileKeys; }

inline unsigned blocks_for_largest(size_t n) {
  const size_t each = 8 * kQuantiseThreads;
  return std::min<size_t>((n + each - 1) / each, kQuantiseBlocks);
}
inline void find_largest(const bf16* x, size_t parts, size_t n, unsigned* largest) {
  const unsigned blocks = blocks_for_largest(n);
  fa::zero_device_memory(largest, parts * sizeof *largest);
  fa::launch(largest_kernel, {dim3(parts * blocks), dim3(kQuantiseThreads)}, x, largest, n,
             int(blocks));
}
inline fa::Bytes find_largest_traffic(size_t parts, size_t n) {
  const uint64_t bytes = sizeof(unsigned) * parts;
  return {.read = 0, .write = bytes, .atomic = bytes * blocks_for_largest(n)};
}

struct Largest {
  size_t q_parts, kv_parts, k = q_parts, v = k + kv_parts;
  Largest(const fa::Problem& p, bool per_head)
      : q_parts(per_head ? p.heads() : 1), kv_parts(per_head ? p.kv_heads() : 1) {}
  fa::Scratch scratch() const { return {"largest", sizeof(unsigned) * (v + kv_parts)}; }
};

template <int d>
void quantise_queries_and_keys(const fa::Problem& p, const fa::Tensors<bf16>& t, bool per_head) {
  const Largest at(p, per_head);
  unsigned *of_q = t.scratch<unsigned>("largest"), *of_k = of_q + at.k;
  find_largest(t.Q, at.q_parts, p.q_size() / at.q_parts, of_q);
  find_largest(t.K, at.kv_parts, p.kv_size() / at.kv_parts, of_k);
  const dim3 threads(kQuantiseThreads);
  fa::launch(quantise_kernel<d, kQueryRows>, {dim3(query_blocks(p)), threads}, t.Q,
             t.scratch<e4m3>("Q8"), t.scratch<float>("Q_scale"), of_q, per_head, p.N);
  fa::launch(quantise_kernel<d, kKeyRows>, {dim3(key_blocks(p, kKeyRows)), threads}, t.K,
             t.scratch<e4m3>("K8"), t.scratch<float>("K_scale"), of_k, per_head, p.Nk);
}
inline fa::Prediction queries_and_keys_traffic(const fa::Problem& p, bool per_head) {
  const Largest at(p, per_head);
  const uint64_t q = p.q_size(), kv = p.kv_size();
  const uint64_t q_blocks = query_blocks(p), k_blocks = key_blocks(p, kKeyRows);
  fa::Prediction t;
  t["Q"].read = 2 * 2 * q, t["K"].read = 2 * 2 * kv;
  t["Q8"].write = q, t["K8"].write = kv;
  t["Q_scale"].write = 4 * q_blocks, t["K_scale"].write = 4 * k_blocks;
  t["largest"] = find_largest_traffic(at.q_parts, q / at.q_parts);
  t["largest"] += find_largest_traffic(at.kv_parts, kv / at.kv_parts);
  t["largest"].read += 4 * (q_blocks + k_blocks) * kQuantiseThreads;
  t.hbm = {.read = 2 * 2 * (q + kv), .write = q + kv};
  return t;
}

template <int d>
void transpose(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const unsigned blocks = key_blocks(p, part_keys(d)) * part_tiles(d);
  fa::launch(transpose_kernel<d>, {dim3(blocks), dim3(kQuantiseThreads)}, t.V,
             t.scratch<float>("V_mean"), t.scratch<float>("V_scale"), t.scratch<e4m3>("V8"), p.Nk,
             int(padded_keys(p)));
}
// Including the preceding kernel, which reads V to find the scales.
inline void add_values_traffic(const fa::Problem& p, fa::Prediction& t) {
  const uint64_t blocks = p.kv_heads() * (padded_keys(p) / kTileKeys);
  t["V"].read = 2 * 2 * p.kv_size();
  t["V8"].write = p.kv_heads() * p.d * padded_keys(p);
  for (const char* name : {"V_mean", "V_scale"}) {  // eight features per thread
    t[name].read = sizeof(float) * 8 * kQuantiseThreads * blocks;
    t[name].write = sizeof(float) * p.kv_heads() * p.d;
  }
  t.hbm += {.read = t["V"].read, .write = t["V8"].write};
}

inline std::vector<fa::Scratch> operands(const fa::Problem& p) {
  const size_t features = p.kv_heads() * p.d;
  std::vector<fa::Scratch> all = {{"Q8", p.q_size()},
                                  {"K8", p.kv_size()},
                                  {"V8", features * padded_keys(p)},
                                  {"Q_scale", sizeof(float) * query_blocks(p)},
                                  {"K_scale", sizeof(float) * key_blocks(p, kKeyRows)},
                                  {"V_scale", sizeof(float) * features},
                                  {"V_mean", sizeof(float) * features}};
  if (p.causal) all.push_back({.name = "taken", .bytes = 2 * sizeof(unsigned), .zeroed = true});
  return all;
}

template <bool kPerHead>
void prepare(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const Largest at(p, kPerHead);
  unsigned* of_v = t.scratch<unsigned>("largest") + at.v;
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    quantise_queries_and_keys<d>(p, t, kPerHead);
    find_largest(t.V, at.kv_parts, p.kv_size() / at.kv_parts, of_v);
    fa::launch(features_kernel, {dim3(p.kv_heads()), dim3(d)}, t.scratch<float>("V_mean"),
               t.scratch<float>("V_scale"), of_v, kPerHead);
    transpose<d>(p, t);
  });
}
template <bool kPerHead>
fa::Prediction prepare_traffic(const fa::Problem& p) {
  const size_t parts = Largest(p, kPerHead).kv_parts;
  fa::Prediction t = queries_and_keys_traffic(p, kPerHead);
  add_values_traffic(p, t);
  t["largest"] += find_largest_traffic(parts, p.kv_size() / parts);
  t["largest"].read += sizeof(float) * p.kv_heads() * p.d;
  return t;
}
template <bool kPerHead>
std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  std::vector<fa::Scratch> all = operands(p);
  all.push_back(Largest(p, kPerHead).scratch());
  return all;
}

}  // namespace step12

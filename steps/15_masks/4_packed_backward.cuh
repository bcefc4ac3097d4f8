// Step 15 -- the backward of packed sequences.
// Idea      The same table, of tiles of keys. Sums of dQ are added in whole tiles of 64 rows, which
//           begin with each document: a second table says where each tile's rows belong
// Changed   since 08 6_atomics: 2_window_backward's kernel; a block's keys and rows are looked up;
//           dQ is converted tile by tile
// Traffic   requested as 2_window_backward, of each document's tiles; 20 B of `key_work` per thread
//           of a block, 8 B of `sum_rows` per thread that converts
// Launch    delta; backward (tiles of keys of all documents * B*Hkv); convert
// Owns      as 2_window_backward
// Still bad as 3_packed
#pragma once

#include "steps/15_masks/2_window_backward.cuh"
#include "steps/15_masks/3_packed.cuh"

namespace step15_packed_backward {

using namespace step15_backward;
using step15::count_tiles;

struct Packed {
  Band band;
  const int* works;  // [tiles, 5]: KeyWork of each

  template <int Bc>
  __device__ KeyWork key_work(int kv_heads, int* kv_head) const {
    *kv_head = blockIdx.x % kv_heads;
    const int* w = works + blockIdx.x / kv_heads * 5;
    return {{w[0], w[1], w[2], w[3]}, w[4]};
  }
  template <int Br, int Bc>
  __device__ Walk<Br, Bc> row_walk(const KeyWork& work) const {
    return {band, work};
  }
};

// dQ = scale * dQ_sum, rounded and in order, as step08::convert_kernel. A tile's rows lie together
// in dQ; past the document's last row it has no more.
template <int d, int Br>
__global__ void convert_kernel(const float* dQ_sum,   // [B*H, tiles * Br / 16, d / 8, 4, 32]
                               bf16* dQ,              // [B*H, N, d]
                               const int2* sum_rows,  // [tiles]: the first row, and how many follow
                               int N, int Np, float scale) {
  const int v = threadIdx.x, x = v / 8 % (d / 8), half = v / d % 2;  // of a fragment's 16 rows
  const size_t band = size_t(blockIdx.x) * (kRowThreads / (2 * d)) + v / (2 * d);
  const int2 rows = sum_rows[band * 16 % Np / Br];
  const int r = band * 16 % Br + half * 8 + v % 8;  // of the tile
  if (r >= rows.y) return;
  const float* from = dQ_sum + (band * (d / 8) + x) * 128 + half * 64 + v % 8 * 4;
  const float4 even = *reinterpret_cast<const float4*>(from);
  const float4 odd = *reinterpret_cast<const float4*>(from + fa::kWarp);
  *reinterpret_cast<uint4*>(dQ + (band * 16 / Np * N + rows.x + r) * d + x * 8) = make_uint4(
      fa::pack_bf16(even.x * scale, odd.x * scale), fa::pack_bf16(even.y * scale, odd.y * scale),
      fa::pack_bf16(even.z * scale, odd.z * scale), fa::pack_bf16(even.w * scale, odd.w * scale));
}

// --- host ---------------------------------------------------------------------------------------

// A tile of keys: its KeyWork, and how many rows see it.
struct KeyTile {
  int work[5];
  int rows;
};

inline std::vector<fa::Table> tables(const fa::Problem& p) {
  fa::Table work{"key_work", {}}, rows;
  dispatch_tiles<Tiles>(p, [&](int, int Br, int Bc) {
    std::vector<KeyTile> tiles;
    int sums = 0;
    for (const fa::Document& doc : p.documents()) {
      for (int c = doc.keys.first; c < doc.keys.last; c += Bc) {
        const int first = p.seen_by(c).first;
        const int last = p.seen_by(std::min(c + Bc, doc.keys.last) - 1).last;
        const int keys = doc.keys.last - c;
        tiles.push_back({{doc.rows.first, doc.rows.size(), c, keys, sums}, last - first});
      }
      sums += fa::ceil_div(doc.rows.size(), Br);
    }
    rows = step15::sum_rows_of(p, Br);
    const auto length = [&](int i) { return tiles[i].rows; };
    for (const int i : step15::longest_first(tiles.size(), length)) {
      work.values.insert(work.values.end(), tiles[i].work, tiles[i].work + 5);
    }
  });
  std::vector<fa::Table> all = step15_packed::tables(p);
  all.push_back(work), all.push_back(rows);
  return all;
}

// Rows of dQ_sum, per head: whole tiles of each document.
inline int padded_rows(const fa::Problem& p) {
  int rows = 0;
  dispatch_tiles<Tiles>(
      p, [&](int, int Br, int) { rows = count_tiles(p, &fa::Document::rows, Br) * Br; });
  return rows;
}

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  const size_t sums = p.heads() * padded_rows(p) * p.d;
  return {{"delta", 4 * p.rows()}, {"LSE2", 4 * p.rows()}, {"dQ_sum", 4 * sums}};
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  const uint64_t BH = p.heads(), d = p.d, Np = padded_rows(p);
  fa::Prediction t = step08::backward_traffic(p);
  dispatch_tiles<Tiles>(p, [&](auto d_, auto Br, auto Bc) {
    const uint64_t tiles = count_tiles(p, &fa::Document::keys, Bc);
    t["key_work"].read = 5 * sizeof(int) * Tiles<d_, Br, Bc>::kThreads * tiles * p.kv_heads();
    t["sum_rows"].read = sizeof(int2) * BH * Np * (d / 8);
    t.hbm.read += 5 * sizeof(int) * tiles + sizeof(int2) * Np / Br;
  });
  const uint64_t more = 4 * BH * (Np - step08::padded_rows(p)) * d;  // rows of zeros
  t["dQ_sum"].write = 4 * BH * Np * d;
  t.hbm += {.read = more, .write = 2 * more};
  return t;
}

// Blocks of delta_kernel and convert_kernel: a thread makes 8 features of a row.
inline unsigned row_blocks(const fa::Problem& p) {
  return unsigned(p.heads() * padded_rows(p) * (p.d / 8) / kRowThreads);
}

// The three kernels, with a mask whose tables are those of tables().
template <class Mask>
void launch(const fa::Problem& p, const fa::Tensors<bf16>& t, const Mask& mask) {
  float *delta = t.scratch<float>("delta"), *LSE2 = t.scratch<float>("LSE2");
  float* dQ_sum = t.scratch<float>("dQ_sum");
  const int BHkv = p.kv_heads(), Np = padded_rows(p);
  const dim3 rows(row_blocks(p));
  dispatch_tiles<Tiles>(p, [&](auto d, auto Br, auto Bc) {
    const dim3 grid(count_tiles(p, &fa::Document::keys, Bc) * BHkv);
    using T = Shared<d, Br, Bc>;
    fa::launch(delta_kernel<d>, {rows, dim3(kRowThreads)}, t.O, t.dO, t.LSE, delta, LSE2, dQ_sum,
               p.N, Np);
    fa::launch(backward_kernel<d, Br, Bc, Mask>, {grid, dim3(T::kThreads), sizeof(T)}, t.Q, t.K,
               t.V, t.dO, LSE2, delta, dQ_sum, t.dK, t.dV, mask, BHkv, p.H / p.Hkv, p.N, p.Nk,
               Np / Br, p.scale());
    fa::launch(step15_packed_backward::convert_kernel<d, Br>, {rows, dim3(kRowThreads)}, dQ_sum,
               t.dQ, t.scratch<const int2>("sum_rows"), p.N, Np, p.scale());
  });
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  launch(p, t, Packed{step15::band_of(p), t.scratch<const int>("key_work")});
}

}  // namespace step15_packed_backward

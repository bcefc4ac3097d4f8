/// \file
/// What host functions of several forwards share: tensor maps, persistent blocks, bytes.
#pragma once

#include <algorithm>

#include "common/dialect/warpgroup.h"
#include "common/harness/step.h"

namespace fa {

/// Persistent blocks, at most one per work tile, which share the work of all heads.
inline LaunchConfig share_work(int blocks, int work_tiles, int threads, size_t smem) {
  return {.grid = dim3(std::min(blocks, work_tiles)),
          .block = dim3(threads),
          .smem = smem,
          .shares_work = true};
}

/// Launches a kernel with the tensor maps of Q, K, V and O, then `others`. rows, keys: of a box of
/// Q or O, and of K or V.
template <int d, class Kernel, class... Others>
void launch_attention(Kernel kernel, const LaunchConfig& config, const Problem& p,
                      const Tensors<bf16>& t, int rows, int keys, const Others&... others) {
  const auto of_rows = [&](const bf16* x) { return tile_map<d>(x, p.heads(), p.N, rows); };
  const auto of_keys = [&](const bf16* x) { return tile_map<d>(x, p.kv_heads(), p.Nk, keys); };
  launch(kernel, config, of_rows(t.Q), of_keys(t.K), of_keys(t.V), of_rows(t.O), others...);
}

/// The bytes of a forward in bf16 that reads each row of Q once, and `keys` keys of K and V per
/// query head. flops: of all heads.
inline Prediction attention_traffic(const Problem& p, uint64_t keys, uint64_t flops) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d;
  Prediction t;
  t["Q"].read = t["O"].write = 2 * BH * N * d;
  t["K"].read = t["V"].read = 2 * BH * keys * d;
  t["LSE"].write = 4 * BH * N;
  t.hbm = {.read = 2 * (BH * N * d + 2 * p.kv_size()), .write = 2 * BH * N * d + 4 * BH * N};
  t.flops = flops;
  return t;
}

}  // namespace fa

// Step 12: its description, for its program, library, tests and exercises.
#pragma once

#include "steps/10_warp_specialized/beyond/wide.cuh"
#include "steps/12_fp8/2_tensor.cuh"
#include "steps/12_fp8/4_blocks.cuh"
#include "steps/12_fp8/5_late.cuh"

namespace step12 {

// Where quantising takes longer than 8 bits save, as measured on an H100 for d = 64 and 128, N = Nk
// and H = Hkv. In general, scores per row that is quantised, three for each query there, count.
inline std::string advice(const fa::Problem& p) {
  const double queries = double(p.H) * p.N, rows = queries + 2. * p.Hkv * p.Nk;
  const double least = 524288, work = 3 * queries * p.Nk / rows * p.d / (p.causal ? 2 : 1);
  if (p.d == 256 || work >= least) return "";
  const int keys = int(least) / p.d * (p.causal ? 2 : 1);
  return "use 10 scheduled here, or quantise where Q, K and V are written: 8 bits save more time "
         "than the prepare takes from " +
         std::to_string(keys) + " queries and keys on";
}

inline std::vector<fa::Scratch> workspace_blocks(const fa::Problem& p, int key_rows) {
  std::vector<fa::Scratch> all = operands(p, key_rows);
  add_centred_workspace(p, all);
  return all;
}

// Q and K by blocks with norms, V without its mean, for the tiles of keys of 5_late.
constexpr int late_key_rows(int d) { return d == 128 ? 96 : 64; }
static_assert(late_key_rows(64) == step12_late::Tiling<64, true>::Bc);
static_assert(late_key_rows(128) == step12_late::Tiling<128, true>::Bc);
static_assert(late_key_rows(256) == step12_late::Tiling<256, true>::Bc);

inline void prepare_late(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::dispatch_d<64, 128, 256>(p.d, [&](auto d) {
    unsigned* k_norm = t.scratch<unsigned>("K_norm");
    quantise_blocks<d, late_key_rows(d), true>(
        p, t,
        {.of_blocks = t.scratch<float>("Q_norm"), .zeros = k_norm, .zero = unsigned(p.kv_heads())},
        {.of_heads = k_norm});
    quantise_centred_values<d>(p, t);
  });
}
inline fa::Prediction prepare_late_traffic(const fa::Problem& p) {
  fa::Prediction t = blocks_traffic(p, late_key_rows(p.d));
  t["Q_norm"].write = sizeof(float) * query_blocks(p, kQueryRows);
  t["K_norm"] = {.write = 4 * p.kv_heads(), .atomic = 4 * key_blocks(p, late_key_rows(p.d))};
  return t;
}
inline std::vector<fa::Scratch> workspace_late(const fa::Problem& p) {
  std::vector<fa::Scratch> all = workspace_blocks(p, late_key_rows(p.d));
  all.push_back({.name = "Q_norm", .bytes = sizeof(float) * query_blocks(p, kQueryRows)});
  all.push_back({.name = "K_norm", .bytes = sizeof(float) * p.kv_heads()});
  return all;
}

inline fa::Variant tensor() {
  return {.name = "tensor",
          .idea = "e4m3, one scale per tensor",
          .parent = "10 scheduled",
          .support = support(),
          .prepare = prepare<false>,
          .prepare_traffic = prepare_traffic<false>,
          .forward = forward,
          .fp8 = true,
          .traffic = traffic,
          .workspace = workspace<false>,
          .writes_lse = true,
          .advice = advice};
}

inline fa::Variant heads() {
  fa::Variant v = tensor();
  v.name = "heads", v.idea = "e4m3, one scale per head";
  v.parent = "12 tensor";
  v.prepare = prepare<true>, v.prepare_traffic = prepare_traffic<true>;
  v.workspace = workspace<true>;
  return v;
}

inline fa::Variant centred() {
  fa::Variant v = heads();
  v.name = "centred", v.idea = "V without its mean, which the epilogue adds to O";
  v.parent = "12 heads";
  v.prepare = prepare_centred, v.prepare_traffic = prepare_centred_traffic;
  v.workspace = workspace_centred;
  return v;
}

inline fa::Variant blocks() {
  fa::Variant v = centred();
  v.name = "blocks", v.idea = "a scale per block of Q and K";
  v.parent = "12 centred";
  v.prepare = prepare_blocks<false>,
  v.prepare_traffic = +[](const fa::Problem& p) { return blocks_traffic(p, kKeyRows); };
  v.workspace = +[](const fa::Problem& p) { return workspace_blocks(p, kKeyRows); };
  return v;
}

inline fa::Variant rotated() {
  fa::Variant v = blocks();
  v.name = "rotated", v.idea = "Q and K rotated: outliers are spread over all features";
  v.parent = "12 blocks";
  v.prepare = prepare_blocks<true>;
  return v;
}

inline fa::Variant late() {
  fa::Variant v = rotated();
  v.name = "late", v.idea = "the maximum is checked after the exponentials; smaller key tiles";
  v.parent = "12 rotated", v.support = step12_late::support();
  v.prepare = prepare_late, v.prepare_traffic = prepare_late_traffic;
  v.forward = step12_late::forward, v.traffic = step12_late::traffic;
  v.workspace = workspace_late;
  return v;
}

inline fa::Step step() {
  return {.id = "12_fp8",
          .idea = "e4m3: twice the tensor cores' rate, and what limits its error",
          .support = step12_late::support(),
          .parents = {{.id = "10 scheduled",
                       .traffic = step10_wide::traffic,
                       .support = step10_wide::support()}},
          .variants = {tensor(), heads(), centred(), blocks(), rotated(), late()}};
}

}  // namespace step12

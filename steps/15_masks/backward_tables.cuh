// The host's side of Hopper's backward: the walks of a problem's keys, its tables, its bytes.
#pragma once

#include "steps/15_masks/16_wgmma_keys.cuh"

namespace step15_wgmma_backward {

// Tiles of keys in order; of a section Q, dO and dQ_sum stay in the L2.
inline std::vector<KeyWork> in_order(const fa::Problem& p,
                                     const std::vector<std::vector<KeyWork>>& documents) {
  const int group = p.H / p.Hkv;
  return step15_wgmma::in_order(documents, int(p.kv_heads()), 1, 1 << 30,
                                [&](const KeyWork& w) { return 8 * size_t(p.d) * w.rows * group; });
}

// Of each document, without a head.
inline std::vector<std::vector<KeyWork>> walks_of(const fa::Problem& p) {
  const int Br = rows_of_a_tile(p);
  std::vector<std::vector<KeyWork>> documents;
  int sums = 0;
  for (const fa::Document& doc : p.documents()) {
    std::vector<KeyWork>& walks = documents.emplace_back();
    for (int c = doc.keys.first; c < doc.keys.last; c += Bc) {
      const int first = p.seen_by(c).first - doc.rows.first;
      const int last = p.seen_by(std::min(c + Bc, doc.keys.last) - 1).last - doc.rows.first;
      const int tiles = first < last ? fa::ceil_div(last, Br) - first / Br : 0;
      walks.push_back({doc.rows.first, doc.rows.size(), c, doc.keys.last - c, sums, 0, first / Br,
                       tiles, tiles});
    }
    for (size_t j = 1; j < walks.size(); ++j) {  // both ends of a walk lie behind those before
      KeyWork &before = walks[j - 1], &walk = walks[j];
      if (walk.tiles == 0) continue;
      if (walk.first < before.first + before.tiles) walk.direct = 0;
      before.direct = std::min(before.direct, std::max(0, walk.first - before.first));
    }
    sums += fa::ceil_div(doc.rows.size(), Br) * Br;
  }
  return documents;
}
inline std::vector<KeyWork> key_tiles(const fa::Problem& p) { return in_order(p, walks_of(p)); }

// The rows of tiles without sums are negative.
inline fa::Table sum_rows_of(const fa::Problem& p) {
  const int Br = rows_of_a_tile(p);
  fa::Table table = step15::sum_rows_of(p, Br);
  for (const auto& walks : walks_of(p)) {
    for (const KeyWork& walk : walks) {
      for (int t = 0; t < walk.direct; ++t) {
        table.values[2 * (walk.sums / Br + walk.first + t) + 1] *= -1;
      }
    }
  }
  return table;
}

// rows: of all boxes of Q, of all heads.
template <int Br, class Mask>
fa::Prediction traffic_of(const fa::Problem& p, const std::vector<KeyWork>& work, uint64_t rows,
                          const Mask& mask) {
  const uint64_t BH = p.heads(), N = p.N, d = p.d, Np = padded_rows(p);
  uint64_t keys = 0, tiles = 0, direct = 0, skipped = 0;
  for (const KeyWork& w : work) {
    if (w.tiles == 0) continue;
    keys += std::min(Bc, p.Nk - w.key);
    tiles += uint64_t(w.tiles) * (p.H / p.Hkv), direct += uint64_t(w.direct) * (p.H / p.Hkv);
    for (int k = 0; k < Bc; k += kGroupKeys) {
      const Places places = mask.template places<Br>(w, k);
      const int ends_at = end_of_rows<Br>(w, p.N), all = w.tiles * (p.H / p.Hkv);
      skipped += skips_first(places, ends_at, all) + skips_last(places, ends_at, w.tiles - 1, all);
    }
  }
  fa::Prediction t;
  t["O"].read = t["dQ"].write = 2 * BH * N * d;
  t["dO"].read = 2 * (BH * N + rows) * d;
  t["Q"].read = 2 * rows * d;
  t["LSE"].read = 4 * BH * N;
  t["columns"] = {.read = 2 * kColumns * tiles * Br, .write = 2 * kColumns * BH * Np};
  t["K"].read = t["V"].read = 2 * keys * d;
  t["dK"].write = t["dV"].write = 2 * p.kv_size();
  const uint64_t sums = 4 * (BH * Np - direct * Br) * d;
  if (sums > 0) {
    t["dQ_sum"] = {.read = sums, .write = sums, .atomic = 4 * (tiles - direct) * Br * d};
  }
  t["key_work"].read = sizeof(KeyWork) * work.size();
  t["sum_rows"].read = sizeof(int2) * BH * Np * (d / 8 + d / 16);
  const uint64_t tables = sizeof(KeyWork) * work.size() + sizeof(int2) * Np / Br;
  t.hbm = {.read = 2 * (4 * BH * N * d + 2 * p.kv_size()) + 4 * BH * N + 2 * sums +
                   2 * kColumns * BH * Np + tables,
           .write = 2 * (BH * N * d + 2 * p.kv_size()) + 2 * kColumns * BH * Np + 2 * sums};
  // Five products, and 16 columns more in S and dP.
  t.flops = (tiles * Bc - skipped * kGroupKeys) * (10 * d + 4 * kMma) * Br;
  return t;
}

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  const size_t rows = p.heads() * size_t(padded_rows(p));
  std::vector<fa::Scratch> all = step15_wgmma::workspace(p);
  all.push_back({"columns", 2 * kColumns * rows}), all.push_back({"dQ_sum", 4 * rows * p.d});
  return all;
}

inline std::vector<fa::Table> tables(const fa::Problem& p) {
  std::vector<fa::Table> all = step15_wgmma::tables(p);
  all.push_back(table_of("key_work", key_tiles(p)));
  all.push_back(sum_rows_of(p));
  return all;
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  fa::Prediction t;
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    const std::vector<KeyWork> work = key_tiles(p);
    uint64_t rows = 0;
    for (const KeyWork& w : work) {
      const int first = w.row + w.first * Br<d>;
      rows += uint64_t(std::clamp(p.N - first, 0, w.tiles * Br<d>)) * (p.H / p.Hkv);
    }
    t = traffic_of<Br<d>>(p, work, rows, KeyBands{nullptr, step15::band_of(p)});
  });
  return t;
}

}  // namespace step15_wgmma_backward

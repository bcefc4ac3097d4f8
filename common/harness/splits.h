/// \file
/// Splits of the keys, and the parts that they store in fp32 until they are merged, O_parts and
/// LSE_parts: workspace, traffic.
#pragma once

#include <vector>

#include "common/harness/step.h"
#include "common/harness/tiles.h"

namespace fa {

/// rows: of all splits. d: features of O.
inline std::vector<Scratch> parts_workspace(size_t rows, size_t d) {
  return {{"O_parts", rows * d * sizeof(float)}, {"LSE_parts", rows * sizeof(float)}};
}

/// The same rows stored, and read by d / 4 threads per row, each of which reads LSE `lse_reads`
/// times.
inline void add_parts_traffic(Prediction& t, uint64_t rows, uint64_t d, uint64_t lse_reads = 2) {
  const uint64_t number = sizeof(float) * rows;  // bytes of one per row
  t["O_parts"] = {.read = number * d, .write = number * d};
  t["LSE_parts"] = {.read = number * lse_reads * (d / 4), .write = number};
  t.hbm += {.read = number * (d + 1), .write = number * (d + 1)};
}

/// Where only batch entries of more than one split, of `keys` keys, store parts, and each of the
/// `readers` blocks per split counts itself, so that the last one merges: parts and counters.
inline void add_merged_traffic(Prediction& t, const Problem& p, int keys, uint64_t readers) {
  uint64_t entries = 0, splits = 0;
  for (int b = 0; b < p.B; ++b) {
    const int count = ceil_div(p.keys_of(b), keys);
    if (count > 1) entries += 1, splits += count;
  }
  if (splits == 0) return;
  add_parts_traffic(t, splits * p.H * p.N, p.d);
  t["arrived"] = {.write = 4 * readers * entries, .atomic = 4 * readers * splits};
}

}  // namespace fa

// Step 11 -- the same bits in each run.
// Idea      dQ depends on the order in which blocks add to it, because each addition of floats
//           rounds. Here each part of a row's dQ is rounded to a multiple of the row's unit before
//           it is added. No addition rounds any more, so all orders give the same bits (Demmel and
//           Nguyen, "Fast reproducible floating-point summation", 2013)
// Changed   since 11 7_columns: parts are rounded before they are added; 8_units' kernels before
// Traffic   as 7_columns; to find the units 2*BHkv*2*Nk*d + 8*BH*Tc*Np + 8*BHkv*Tc B more
// Launch    bounds; units; backward (Tc * B*Hkv), 384 threads; convert
// Owns      as 7_columns
// Still bad another kernel before, which reads K and V once more
#pragma once

#include "steps/11_hopper_backward/7_columns.cuh"
#include "steps/11_hopper_backward/8_units.cuh"

namespace step11_deterministic {

using namespace step11;
using step11_columns::kColumns;

// dQ's sums, of parts that are rounded to multiples of their row's unit.
struct RoundedSums {
  FloatSums sums;

  struct Part {
    FloatSums::Part sums;
    float upper = 0.f, lower = 0.f;  // 2^23 units of the lane's rows r, r + 8

    // columns: of the part's 64 rows.
    __device__ void read(const bf16* columns) {
      const int row = threadIdx.x % kGroupThreads / fa::kWarp * 16 + threadIdx.x % fa::kWarp / 4;
      const bf16* last = columns + row * kColumns + 6;
      upper = *reinterpret_cast<const float*>(last);
      lower = *reinterpret_cast<const float*>(last + 8 * kColumns);
    }
    // m has x's sign, so |x + m| is at least 2^23 units, and the addition rounds to whole units.
    template <int n>
    __device__ void add(const float (&rdQ)[n]) const {
      float rounded[n];
      UNROLL
      for (int i = 0; i < n; ++i) {
        const float m = copysignf(fa::half_of(i) ? lower : upper, rdQ[i]);
        rounded[i] = rdQ[i] + m - m;
      }
      sums.add(rounded);
    }
  };
  template <int d>
  __device__ const RoundedSums& of_walk(const Shape&, const WorkTile&) const {
    return *this;
  }
  template <int d>
  __device__ Part part(int half, int feature = 0) const {
    return {sums.template part<d>(half, feature)};
  }
};

// --- host ----------------------------------------------------------------------------------------

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  std::vector<fa::Scratch> all = step11_columns::workspace(p);
  all.push_back({"bounds", 8 * size_t(p.kv_heads()) * fa::ceil_div(p.Nk, Bc)});
  return all;
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  fa::Prediction t = step11_columns::backward_traffic(p);
  const uint64_t BH = p.heads(), Np = padded_rows(p), Tc = fa::ceil_div(p.Nk, Bc);
  const uint64_t keys = 2 * p.kv_size(), bounds = 8 * p.kv_heads() * Tc;
  t["K"].read += keys, t["V"].read += keys;
  t["bounds"] = {.read = 8 * BH * Np * Tc, .write = bounds};
  t.hbm.read += 2 * keys + bounds, t.hbm.write += bounds;
  return t;
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    const FloatSums dQ_sum{t.scratch<float>("dQ_sum")};
    launch_units<d>(p, t);
    step11_columns::launch_backward<d>(p, t, RoundedSums{dQ_sum});
    launch_convert<d>(p, t, dQ_sum);
  });
}

}  // namespace step11_deterministic

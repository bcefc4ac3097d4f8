// Step 16 -- exponentials. Compiled for sm_100a and run in the simulator; not yet run on a card.
// Idea      An SM's special function units compute 16 exponentials per clock, so those of a tile
//           need as long as its products. A polynomial computes a quarter of them on the units that
//           add and multiply. And O is rescaled only where a maximum grew by more than 8
// Changed   since 16 5_pair: the softmax of a row; the kernel is 5_pair's
// Traffic   requested read  2*BH*(N*d + 2*Tr*Nk*d) B   Tr = N/256; causal: K and V of visited tiles
//                     write 2*BH*N*d + 4*BH*N B        O, LSE
//           compulsory      2*(2*BH*N*d + 2*BHkv*Nk*d) + 4*BH*N B
// Launch    grid (Tr * B*H), 512 threads; causal: the longest walks of all heads first
// Owns      block: 256 rows of O; a thread of the softmax: a row; one of the correction: two
// Still bad each SM copies all of K and V for itself; a pair of them could share each tile
#pragma once

#include "common/dialect/ptx/f32x2.h"
#include "steps/16_blackwell/5_pair.cuh"

namespace step16 {

using namespace step16_tmem;

constexpr float kLazyRescale = 8.f;  // P may grow to 2^8 before O, l and m follow
constexpr int kEvery = 4;            // of so many pairs of exponentials one is a polynomial
constexpr int kDegree = 5;           // of it: l is fp32, and LSE would show the error of degree 3

// 2^x of two numbers, each at most 127, as 2^(n + f) with n an integer and 0 <= f < 1. Adding
// 1.5 * 2^23, rounded down, leaves n in the low bits of the sum. Shifted to the place of a float's
// exponent n is added to the bits of 2^f. Of -127 and less, a masked score's, the result is +0.
template <int degree>
__device__ inline float2 exp2_polynomial(float2 x) {
  constexpr float kShift = 12582912.f;
  // Of degree 3, 4 and 5: the least largest relative error, with p(0) = 1.
  constexpr float c[3][6] = {
      {1.f, 0.69514614f, 0.22756439f, 0.077119089f},
      {1.f, 0.69304270f, 0.24129125f, 0.052225358f, 0.013434938f},
      {1.f, 0.69315141f, 0.24016361f, 0.055802189f, 0.0090145227f, 0.0018681015f}};
  x = {fmaxf(x.x, -127.f), fmaxf(x.y, -127.f)};
  const float2 n = {fa::add_round_down(x.x, kShift), fa::add_round_down(x.y, kShift)};
  const float2 whole = fa::add_f32x2(n, {-kShift, -kShift});
  const float2 f = fa::add_f32x2(x, {-whole.x, -whole.y});
  float2 p = {c[degree - 3][degree], c[degree - 3][degree]};
  UNROLL
  for (int i = degree - 1; i >= 0; --i) {
    p = fa::fma_f32x2(f, p, {c[degree - 3][i], c[degree - 3][i]});
  }
  return {__int_as_float(__float_as_int(p.x) + (__float_as_int(n.x) << 23)),
          __int_as_float(__float_as_int(p.y) + (__float_as_int(n.y) << 23))};
}

// What the softmax of a row is made of.
struct Softmax {
  // O, l and m stay as they are until a score passes m by more than 8. P is then at most 2^8, not
  // 1, which costs neither fp32 nor bf16 accuracy.
  static __device__ float maximum(const Row& rS, float scale_log2, float& m) {
    float m_new = m;
    const float alpha = update_maximum(rS, scale_log2, m_new);
    if (m_new <= m + kLazyRescale) return 1.f;
    m = m_new;
    return alpha;
  }

  static __device__ float p(const float (&rS)[kHalf], float scale_log2, float m,
                            uint32_t (&rP)[kHalf / 2]) {
    float2 l = {};
    UNROLL
    for (int i = 0; i < kHalf / 2; ++i) {
      const float2 x =
          fa::fma_f32x2({rS[2 * i], rS[2 * i + 1]}, {scale_log2, scale_log2}, {-m, -m});
      const float2 p = i % kEvery == kEvery - 1
                           ? exp2_polynomial<kDegree>(x)
                           : float2{fa::exp2_approx(x.x), fa::exp2_approx(x.y)};
      l = fa::add_f32x2(l, p);
      rP[i] = fa::pack_bf16(p.x, p.y);
    }
    return l.x + l.y;
  }
};

// --- host ---------------------------------------------------------------------------------------

inline void forward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  step16_pair::launch<Softmax>(p, t);
}

}  // namespace step16

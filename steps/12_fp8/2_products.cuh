// Step 12 -- products of 8-bit operands.
// Idea      wgmma multiplies e4m3 32 deep and reads both operands K-major. S's registers do not
//           hold the keys that A needs, so V^T has its keys in the order of P
// Changed   since 10 2_warpgroup: operands of 1 byte in panels, 32 deep; V^T; P packed to bytes; O
//           with V's scales and means
#pragma once

#include "steps/10_warp_specialized/2_warpgroup.cuh"
#include "steps/12_fp8/1_quantise.cuh"

namespace step12 {

using step10::kGroupRows, step10::kGroupThreads;

constexpr int kK = 32;  // keys or features of one wgmma

// Tiles in shared memory consist of panels of so many bytes per row, swizzled by TMA: features of Q
// and K, keys of V^T.
template <int d>
constexpr int kFeatures = d < 128 ? d : 128;
template <int Bc>
constexpr int kKeys = Bc % 128 == 0  ? 128
                      : Bc % 64 == 0 ? 64
                                     : 32;
__host__ __device__ constexpr fa::Swizzle swizzle_of(int panel) {
  return panel == 128 ? fa::Swizzle::b128 : panel == 64 ? fa::Swizzle::b64 : fa::Swizzle::b32;
}
template <int panel>
__device__ inline uint64_t descriptor(const uint8_t* tile) {
  return fa::wgmma_descriptor(tile, swizzle_of(panel), 16, 8 * panel);
}

// S = Q K^T of 64 rows and a tile's keys, without waiting for the product.
template <class T>
__device__ inline void multiply_scores(uint64_t Q, uint64_t K, float (&rS)[T::Bc / 2]) {
  constexpr int kPanel = kFeatures<T::d>;
  fa::wgmma_fence();
  UNROLL
  for (int x = 0; x < T::d; x += kK) {
    const int panel = x / kPanel, inside = x % kPanel;
    fa::wgmma_e4m3(rS, fa::wgmma_advance(Q, panel * kGroupRows * kPanel + inside),
                   fa::wgmma_advance(K, panel * T::Bc * kPanel + inside), x > 0);
  }
  fa::wgmma_commit();
}

// O += P V of a tile's keys, without waiting for the product.
template <class T>
__device__ inline void multiply_values(const uint32_t (&rP)[T::Bc / kK][4], uint64_t V,
                                       float (&rO)[T::d / 2]) {
  constexpr int kPanel = kKeys<T::Bc>;
  fa::wgmma_fence();
  UNROLL
  for (int c = 0; c < T::Bc; c += kK) {
    const int panel = c / kPanel, inside = c % kPanel;
    fa::wgmma_e4m3(rO, rP[c / kK], fa::wgmma_advance(V, panel * T::d * kPanel + inside));
  }
  fa::wgmma_commit();
}

// P in e4m3, as the A operand of the next product, with keys in the order of key_at.
template <int n>
__device__ inline void pack(const float (&rS)[n], uint32_t (&rP)[n / 16][4]) {
  UNROLL
  for (int c = 0; c < n / 16; ++c) {
    UNROLL
    for (int e = 0; e < 4; ++e) {
      const int i = 16 * c + 8 * (e / 2) + 2 * (e % 2);
      rP[c][e] = fa::pack_e4m3(rS[i], rS[i + 1], rS[i + 4], rS[i + 5]);
    }
  }
  UNROLL
  for (int c = 0; c < n / 16; ++c) fa::pin_registers(rP[c]);
}

// --- O -------------------------------------------------------------------------------------------

// rO times V's scales and `normalise` of its row, plus V's mean times `seen`, in bf16: a warp's
// rows of `tile`, panels of 64 features, as TMA stores them. scale, mean: of this lane's first
// feature.
template <int d>
__device__ inline void put_rows(const float (&rO)[d / 2], const float (&normalise)[2],
                                const float (&seen)[2], const float* scale, const float* mean,
                                bf16* tile) {
  constexpr int kPanel = 64;
  const int r = threadIdx.x % kGroupThreads / fa::kWarp * 16 + threadIdx.x % 16;
  const int half = threadIdx.x % fa::kWarp / 16;
  UNROLL
  for (int x = 0; x < d; x += 16) {
    uint32_t o[4];
    UNROLL
    for (int e = 0; e < 4; e += 2) {
      const float2 s = *reinterpret_cast<const float2*>(scale + x + 4 * e);
      const float2 m = *reinterpret_cast<const float2*>(mean + x + 4 * e);
      UNROLL
      for (int h = 0; h < 2; ++h) {
        const int i = x / 2 + 2 * (e + h);
        o[e + h] = fa::pack_bf16(fmaf(rO[i] * normalise[h], s.x, m.x * seen[h]),
                                 fmaf(rO[i + 1] * normalise[h], s.y, m.y * seen[h]));
      }
    }
    const int chunk = (x % kPanel / 8 + half) ^ r % 8;
    fa::stmatrix_x4(tile + (x / kPanel * kGroupRows + r) * kPanel + chunk * 8, o);
  }
}

}  // namespace step12

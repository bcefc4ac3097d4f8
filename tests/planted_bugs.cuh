// Attention kernels with a switch that plants one bug at a time: what the checker must reject.
//
// The kernels are right (Bug::none) and small but real: tiles, online softmax, fp32 or bf16,
// any N and Nk, causal, grouped queries; d = 64. Where a bug is planted the code says so.
#pragma once

#include "common/dialect/cuda.h"
#include "common/harness/step.h"

namespace planted {

enum class Bug {
  none,
  // --- forward: synchronisation
  no_barrier_after_load,   // a warp reads the tile while another still loads it
  no_barrier_before_load,  // a warp loads the next tile while another still reads this one
  // --- forward: softmax
  no_scale,
  scale_twice,
  scale_only_in_max,  // exp(q.k - max(scale * q.k))
  exp2_without_log2e,
  O_not_rescaled,
  l_not_rescaled,
  O_rescaled_twice,
  stale_m,  // exponentials with the maximum of the previous tiles
  O_not_normalised,
  masked_row_divides_by_zero,
  // --- forward: mask and tail
  mask_shows_one_more,
  mask_hides_one_more,
  mask_top_left,  // key c <= row r, although Nk != N
  mask_ignored,
  mask_ignored_in_last_tile,
  tail_not_masked,  // keys past the end have score 0
  tail_stale,       // ... or what the previous tile left in shared memory
  last_tile_forgotten,
  N_for_Nk,
  first_key_dropped,
  last_key_dropped_at_edge,  // a tile's last row misses the last key
  // --- forward: addresses
  wrong_head_stride,
  batch_ignored,
  kv_heads_interleaved,  // head h reads K/V head h % Hkv instead of h / (H / Hkv)
  V_tile_transposed,
  // --- forward: precision
  bf16_accumulator,
  fp16_accumulator,
  bf16_l,
  // --- forward: outputs
  LSE_without_log,
  LSE_without_m,
  last_row_not_written,
  one_element_not_written,
  writes_past_the_end,
  one_nan,
  one_inf,
  O_is_minus_V,  // of the key with the row's number
  O_is_negated,
  O_is_zero,
  O_is_mean_of_V,
  O_of_next_row,
  LSE_plus_one,
  LSE_is_zero,
  LSE_of_next_row,
  // --- backward
  backward_no_barrier,
  no_delta,
  delta_of_dP,  // rowsum(dO * dO)
  dS_not_scaled,
  dS_scaled_twice,
  P_without_LSE,
  dV_from_dS,
  dP_from_K,
  dQ_of_last_tile,
  group_overwrites,  // dK and dV of the last query head of a group only
  backward_mask_ignored,
  dK_and_dV_swapped,
  dK_bf16_accumulator,
  dQ_row_not_written,
  dK_writes_past_the_end,
  dV_one_nan,
  dQ_is_negated,
  dQ_is_zero,
  dK_is_negated,
  dK_is_zero,
  dV_is_negated,
  dV_is_zero,
};

constexpr int Br = 32, Bc = 32, d = 64;
constexpr int kParts = 4;  // threads that share a row
constexpr int kThreads = kParts * Br;
static_assert(Br == Bc, "dkdv_kernel swaps the roles of rows and keys");

struct Shape {
  int H, Hkv, N, Nk;
  bool causal;
  float scale;
};

template <class T>
__device__ float rounded(float x) {
  return static_cast<float>(static_cast<T>(x));
}

// 10 mantissa bits, as in fp16.
__device__ inline float rounded_to_fp16(float x) {
  return __int_as_float((__float_as_int(x) + 0x1000) & ~0x1fff);
}

__device__ inline bool is_visible(const Shape& a, int row, int key) {
  return key < a.Nk && (!a.causal || key <= row + a.Nk - a.N);
}

__device__ inline bool shown(const Shape& a, int row, int key, bool last_tile, Bug bug) {
  if (bug == Bug::first_key_dropped && key == 0) return false;
  if (bug == Bug::last_key_dropped_at_edge && row % Br == Br - 1 && key == a.Nk - 1) return false;
  if (bug == Bug::tail_not_masked || bug == Bug::tail_stale) key = key < a.Nk ? key : a.Nk - 1;
  if (bug == Bug::mask_ignored) return key < a.Nk;
  if (bug == Bug::mask_ignored_in_last_tile && last_tile) return key < a.Nk;
  if (bug == Bug::mask_top_left) return key < a.Nk && (!a.causal || key <= row);
  if (bug == Bug::mask_shows_one_more) return is_visible(a, row + 1, key);
  if (bug == Bug::mask_hides_one_more) return is_visible(a, row - 1, key);
  return is_visible(a, row, key);
}

// Rows [first, first + 32) of a head, zero after its end.
template <class T>
__device__ void load_tile(float (*s)[d + 1], const T* g,  // [n, d]
                          int first, int n, bool zero_tail = true) {
  for (int e = threadIdx.x; e < Br * d; e += kThreads) {
    const int r = e / d, x = e % d;
    if (first + r < n) {
      s[r][x] = static_cast<float>(g[static_cast<size_t>(first + r) * d + x]);
    } else if (zero_tail) {
      s[r][x] = 0;
    }
  }
}

__device__ inline float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(fa::kFullMask, x, 1));
  return fmaxf(x, __shfl_xor_sync(fa::kFullMask, x, 2));
}
__device__ inline float row_sum(float x) {
  x += __shfl_xor_sync(fa::kFullMask, x, 1);
  return x + __shfl_xor_sync(fa::kFullMask, x, 2);
}

// --- forward: one block owns a Q tile of one head; four neighbouring lanes own a row ------------

template <class T>
__global__ void flash_fwd_kernel(const T* Q,  // [B*H, N, d]
                                 const T* K,  // [B*Hkv, Nk, d]
                                 const T* V,  // [B*Hkv, Nk, d]
                                 T* O,        // [B*H, N, d]
                                 float* LSE,  // [B*H, N]
                                 Shape a, Bug bug) {
  __shared__ float sQ[Br][d + 1], sK[Bc][d + 1], sV[Bc][d + 1], sP[Br][Bc + 1];
  const int i = blockIdx.x, r = threadIdx.x / kParts, part = threadIdx.x % kParts;
  const int row = i * Br + r;
  const size_t bh = blockIdx.y, b = bh / a.H, h = bh % a.H;
  size_t kv = b * a.Hkv + h / (a.H / a.Hkv);
  if (bug == Bug::batch_ignored) kv = h / (a.H / a.Hkv);
  if (bug == Bug::kv_heads_interleaved) kv = b * a.Hkv + h % a.Hkv;
  const size_t head_rows = bug == Bug::wrong_head_stride ? a.Nk - 1 : a.Nk;
  const T* gK = K + kv * head_rows * d;
  const T* gV = V + kv * head_rows * d;

  load_tile(sQ, Q + bh * a.N * d, i * Br, a.N);
  float acc[d / kParts] = {}, m = -INFINITY, l = 0;
  int keys = bug == Bug::N_for_Nk ? a.N : a.Nk;
  if (a.causal) keys = min(keys, max(0, (i + 1) * Br + a.Nk - a.N));  // that the last row sees
  const int Tc = bug == Bug::last_tile_forgotten ? keys / Bc : (keys + Bc - 1) / Bc;

  for (int j = 0; j < Tc; ++j) {
    if (bug != Bug::no_barrier_before_load)
      __syncthreads();  // no thread reads the last tile any more
    const bool zero_tail = bug != Bug::tail_stale;
    load_tile(sK, gK, j * Bc, a.Nk, zero_tail);
    load_tile(sV, gV, j * Bc, a.Nk, zero_tail);
    if (bug != Bug::no_barrier_after_load) __syncthreads();  // the tile is complete

    float s[Bc / kParts] = {}, m_tile = -INFINITY;
    for (int x = 0; x < d; ++x) {
      const float q = sQ[r][x];
      UNROLL
      for (int k = 0; k < Bc / kParts; ++k) s[k] += q * sK[k * kParts + part][x];
    }
    UNROLL
    for (int k = 0; k < Bc / kParts; ++k) {
      const int key = j * Bc + k * kParts + part;
      const float raw = s[k];
      if (bug != Bug::no_scale) s[k] *= a.scale;
      if (bug == Bug::scale_twice) s[k] *= a.scale;
      const bool visible = shown(a, row, key, j == Tc - 1, bug);
      if (visible) m_tile = fmaxf(m_tile, s[k]);
      if (bug == Bug::scale_only_in_max) s[k] = raw;
      if (!visible) s[k] = -INFINITY;
    }

    // base is finite even where the row has seen no key yet, so never exp(-inf - -inf).
    const float m_new = fmaxf(m, row_max(m_tile));
    float base = m_new == -INFINITY ? 0 : m_new;
    if (bug == Bug::masked_row_divides_by_zero) base = m_new;
    const float alpha = expf(m - base);
    float sum = 0;
    UNROLL
    for (int k = 0; k < Bc / kParts; ++k) {
      float p = expf(s[k] - (bug == Bug::stale_m && j > 0 ? m : base));
      if (bug == Bug::exp2_without_log2e) p = exp2f(s[k] - base);
      sum += p;
      sP[r][k * kParts + part] = rounded<T>(p);
    }
    l = (bug == Bug::l_not_rescaled ? l : alpha * l) + row_sum(sum);
    if (bug == Bug::bf16_l) l = rounded<fa::bf16>(l);
    m = m_new;
    __syncwarp();  // the row of P comes from four lanes

    UNROLL
    for (int k = 0; k < d / kParts; ++k) {
      if (bug != Bug::O_not_rescaled) acc[k] *= alpha;
      if (bug == Bug::O_rescaled_twice) acc[k] *= alpha;
    }
    for (int c = 0; c < Bc; ++c) {
      UNROLL
      for (int k = 0; k < d / kParts; ++k) {
        const int x = k * kParts + part;
        const float v = bug == Bug::V_tile_transposed ? sV[x % Bc][x / Bc * Bc + c] : sV[c][x];
        acc[k] += sP[r][c] * v;
        if (bug == Bug::bf16_accumulator) acc[k] = rounded<fa::bf16>(acc[k]);
        if (bug == Bug::fp16_accumulator) acc[k] = rounded_to_fp16(acc[k]);
      }
    }
  }

  if (row >= a.N && bug != Bug::writes_past_the_end) return;
  if (bug == Bug::last_row_not_written && row == a.N - 1) return;
  const bool chosen = row == a.N / 2 && bh == 0 && part == 0;  // the faulty thread
  const float normaliser = bug == Bug::O_not_normalised ? 1 : 1 / l;
  const bool empty = l == 0 && bug != Bug::masked_row_divides_by_zero;
  UNROLL
  for (int k = 0; k < d / kParts; ++k) {
    float o = empty ? 0 : acc[k] * normaliser;
    if (chosen && k == 1 && bug == Bug::one_element_not_written) continue;
    if (chosen && k == 1 && bug == Bug::one_nan) o = NAN;
    if (chosen && k == 1 && bug == Bug::one_inf) o = INFINITY;
    const int x = k * kParts + part;
    if (bug == Bug::O_is_minus_V) o = -static_cast<float>(gV[size_t(row % a.Nk) * d + x]);
    if (bug == Bug::O_is_negated) o = -o;
    if (bug == Bug::O_is_zero) o = 0;
    if (bug == Bug::O_is_mean_of_V) {
      o = 0;
      for (int c = 0; c < a.Nk; ++c) o += static_cast<float>(gV[size_t(c) * d + x]) / a.Nk;
    }
    const int to = bug == Bug::O_of_next_row ? (row + 1) % a.N : row;
    O[(bh * a.N + to) * d + x] = static_cast<T>(o);
  }
  if (part != 0) return;
  float lse = empty ? -INFINITY : m + logf(l);
  if (bug == Bug::LSE_without_log) lse = m;
  if (bug == Bug::LSE_without_m) lse = logf(l);
  if (bug == Bug::LSE_plus_one) lse += 1;
  if (bug == Bug::LSE_is_zero) lse = 0;
  LSE[bh * a.N + (bug == Bug::LSE_of_next_row ? (row + 1) % a.N : row)] = lse;
}

// --- backward ------------------------------------------------------------------------------------

template <class T>
__global__ void delta_kernel(const T* O, const T* dO,  // [rows, d]
                             float* delta,             // [rows]
                             size_t rows, Bug bug) {
  const size_t row = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  float sum = 0;
  for (int x = 0; x < d; ++x) {
    const float g = static_cast<float>(dO[row * d + x]);
    sum += g * (bug == Bug::delta_of_dP ? g : static_cast<float>(O[row * d + x]));
  }
  delta[row] = bug == Bug::no_delta ? 0 : sum;
}

struct Score {
  float P, dS;
};

// P and dS = P (dP - delta) of one pair; s = q.k and dP = dO.v are unscaled.
template <class T>
__device__ Score score(const Shape& a, int row, int key, float s, float dP, float lse, float delta,
                       Bug bug) {
  bool visible = row < a.N && is_visible(a, row, key);
  if (bug == Bug::backward_mask_ignored) visible = row < a.N && key < a.Nk;
  if (!visible) return {0, 0};
  float P = expf(s * a.scale - (bug == Bug::P_without_LSE ? 0 : lse));
  return {rounded<T>(P), rounded<T>(P * (dP - delta))};
}

// One block owns a Q tile of one head: dQ = scale * dS K.
template <class T>
__global__ void dq_kernel(const T* Q, const T* K, const T* V, const T* dO,  // as in the forward
                          const float* LSE, const float* delta,             // [B*H, N]
                          T* dQ,                                            // [B*H, N, d]
                          Shape a, Bug bug) {
  __shared__ float sQ[Br][d + 1], sdO[Br][d + 1], sK[Bc][d + 1], sV[Bc][d + 1], sdS[Br][Bc + 1];
  const int i = blockIdx.x, r = threadIdx.x / kParts, part = threadIdx.x % kParts;
  const int row = i * Br + r;
  const size_t bh = blockIdx.y, kv = bh / a.H * a.Hkv + bh % a.H / (a.H / a.Hkv);
  load_tile(sQ, Q + bh * a.N * d, i * Br, a.N);
  load_tile(sdO, dO + bh * a.N * d, i * Br, a.N);
  const float lse = row < a.N ? LSE[bh * a.N + row] : 0;
  const float del = row < a.N ? delta[bh * a.N + row] : 0;
  float dq[d / kParts] = {};
  for (int j = 0; j < (a.Nk + Bc - 1) / Bc; ++j) {
    __syncthreads();  // no thread reads the last tile any more
    load_tile(sK, K + kv * a.Nk * d, j * Bc, a.Nk);
    load_tile(sV, V + kv * a.Nk * d, j * Bc, a.Nk);
    __syncthreads();  // the tile is complete
    float s[Bc / kParts] = {}, dP[Bc / kParts] = {};
    for (int x = 0; x < d; ++x) {
      UNROLL
      for (int k = 0; k < Bc / kParts; ++k) {
        const int c = k * kParts + part;
        s[k] += sQ[r][x] * sK[c][x];
        dP[k] += sdO[r][x] * (bug == Bug::dP_from_K ? sK[c][x] : sV[c][x]);
      }
    }
    UNROLL
    for (int k = 0; k < Bc / kParts; ++k) {
      const int c = k * kParts + part;
      sdS[r][c] = score<T>(a, row, j * Bc + c, s[k], dP[k], lse, del, bug).dS;
    }
    __syncwarp();  // the row of dS comes from four lanes
    UNROLL
    for (int k = 0; k < d / kParts; ++k) {
      if (bug == Bug::dQ_of_last_tile) dq[k] = 0;
      for (int c = 0; c < Bc; ++c) dq[k] += sdS[r][c] * sK[c][k * kParts + part];
    }
  }
  if (row >= a.N || (bug == Bug::dQ_row_not_written && row == a.N - 1)) return;
  float scale = bug == Bug::dS_not_scaled ? 1 : a.scale;
  if (bug == Bug::dS_scaled_twice) scale *= a.scale;
  if (bug == Bug::dQ_is_negated) scale = -scale;
  if (bug == Bug::dQ_is_zero) scale = 0;
  UNROLL
  for (int k = 0; k < d / kParts; ++k) {
    dQ[(bh * a.N + row) * d + k * kParts + part] = static_cast<T>(scale * dq[k]);
  }
}

// One block owns a K/V tile of one K/V head: dK = scale * dS^T Q and dV = P^T dO, over its group.
template <class T>
__global__ void dkdv_kernel(const T* Q, const T* K, const T* V, const T* dO,  // as in the forward
                            const float* LSE, const float* delta,             // [B*H, N]
                            T* dK, T* dV,                                     // [B*Hkv, Nk, d]
                            Shape a, Bug bug) {
  __shared__ float sQ[Br][d + 1], sdO[Br][d + 1], sK[Bc][d + 1], sV[Bc][d + 1];
  __shared__ float sP[Bc][Br + 1], sdS[Bc][Br + 1];  // transposed: a key's four lanes own its row
  const int j = blockIdx.x, c = threadIdx.x / kParts, part = threadIdx.x % kParts;
  const int key = j * Bc + c, group = a.H / a.Hkv;
  const size_t kv = blockIdx.y;
  load_tile(sK, K + kv * a.Nk * d, j * Bc, a.Nk);
  load_tile(sV, V + kv * a.Nk * d, j * Bc, a.Nk);
  float dk[d / kParts] = {}, dv[d / kParts] = {};
  for (int g = 0; g < group; ++g) {
    const size_t bh = kv / a.Hkv * a.H + kv % a.Hkv * group + g;
    if (bug == Bug::group_overwrites) {
      for (int k = 0; k < d / kParts; ++k) dk[k] = dv[k] = 0;
    }
    for (int i = 0; i < (a.N + Br - 1) / Br; ++i) {
      if (bug != Bug::backward_no_barrier)
        __syncthreads();  // no thread reads the last tile any more
      load_tile(sQ, Q + bh * a.N * d, i * Br, a.N);
      load_tile(sdO, dO + bh * a.N * d, i * Br, a.N);
      __syncthreads();  // the tile is complete
      float s[Br / kParts] = {}, dP[Br / kParts] = {};
      for (int x = 0; x < d; ++x) {
        UNROLL
        for (int k = 0; k < Br / kParts; ++k) {
          const int r = k * kParts + part;
          s[k] += sK[c][x] * sQ[r][x];
          dP[k] += (bug == Bug::dP_from_K ? sK[c][x] : sV[c][x]) * sdO[r][x];
        }
      }
      UNROLL
      for (int k = 0; k < Br / kParts; ++k) {
        const int r = k * kParts + part, row = i * Br + r;
        const float lse = row < a.N ? LSE[bh * a.N + row] : 0;
        const float del = row < a.N ? delta[bh * a.N + row] : 0;
        const Score pair = score<T>(a, row, key, s[k], dP[k], lse, del, bug);
        sP[c][r] = bug == Bug::dV_from_dS ? pair.dS : pair.P;
        sdS[c][r] = pair.dS;
      }
      __syncwarp();  // the row of P comes from four lanes
      for (int r = 0; r < Br; ++r) {
        UNROLL
        for (int k = 0; k < d / kParts; ++k) {
          dv[k] += sP[c][r] * sdO[r][k * kParts + part];
          dk[k] += sdS[c][r] * sQ[r][k * kParts + part];
          if (bug == Bug::dK_bf16_accumulator) dk[k] = rounded<fa::bf16>(dk[k]);
        }
      }
    }
  }
  if (key >= a.Nk && bug != Bug::dK_writes_past_the_end) return;
  float scale = bug == Bug::dS_not_scaled ? 1 : a.scale;
  if (bug == Bug::dS_scaled_twice) scale *= a.scale;
  if (bug == Bug::dK_is_negated) scale = -scale;
  if (bug == Bug::dK_is_zero) scale = 0;
  if (bug == Bug::dK_and_dV_swapped) {
    T* kept = dK;
    dK = dV;
    dV = kept;
  }
  UNROLL
  for (int k = 0; k < d / kParts; ++k) {
    const size_t at = (kv * a.Nk + key) * d + k * kParts + part;
    dK[at] = static_cast<T>(scale * dk[k]);
    if (key >= a.Nk) continue;
    const bool chosen = key == a.Nk / 2 && kv == 0 && part == 0 && k == 1;
    float value = chosen && bug == Bug::dV_one_nan ? NAN : dv[k];
    if (bug == Bug::dV_is_negated) value = -value;
    if (bug == Bug::dV_is_zero) value = 0;
    dV[at] = static_cast<T>(value);
  }
}

// --- host ----------------------------------------------------------------------------------------

/// The next launch's bug. A Runner is a plain function and cannot carry it.
inline Bug bug = Bug::none;

inline Shape shape_of(const fa::Problem& p) { return {p.H, p.Hkv, p.N, p.Nk, p.causal, p.scale()}; }

template <class T>
void forward(const fa::Problem& p, const fa::Tensors<T>& t) {
  const dim3 grid((p.N + Br - 1) / Br, static_cast<unsigned>(p.heads()));
  fa::launch(flash_fwd_kernel<T>, {grid, kThreads}, t.Q, t.K, t.V, t.O, t.LSE, shape_of(p), bug);
}

template <class T>
void backward(const fa::Problem& p, const fa::Tensors<T>& t) {
  auto* delta = t.template scratch<float>("delta");
  const dim3 rows(static_cast<unsigned>((p.rows() + 127) / 128));
  fa::launch(delta_kernel<T>, {rows, 128}, t.O, t.dO, delta, p.rows(), bug);
  const dim3 q_tiles((p.N + Br - 1) / Br, static_cast<unsigned>(p.heads()));
  fa::launch(dq_kernel<T>, {q_tiles, kThreads}, t.Q, t.K, t.V, t.dO, t.LSE, delta, t.dQ,
             shape_of(p), bug);
  const dim3 kv_tiles((p.Nk + Bc - 1) / Bc, static_cast<unsigned>(p.kv_heads()));
  fa::launch(dkdv_kernel<T>, {kv_tiles, kThreads}, t.Q, t.K, t.V, t.dO, t.LSE, delta, t.dK, t.dV,
             shape_of(p), bug);
}

template <class T>
fa::Variant variant(bool with_backward) {
  fa::Variant v;
  v.name = "planted";
  v.forward = forward<T>;
  v.writes_lse = true;
  if (with_backward) {
    v.backward = backward<T>;
    v.workspace = [](const fa::Problem& p) {
      return std::vector<fa::Scratch>{{"delta", p.rows() * sizeof(float)}};
    };
  }
  return v;
}

}  // namespace planted

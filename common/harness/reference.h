/// \file
/// The truth: attention on the CPU in fp64, and the error of an unfused kernel of the same
/// precision. Both see the rounded inputs. Multithreaded, plain C++. For what is computed read
/// definition.h, with which these results are compared.
#pragma once

#include <algorithm>
#include <vector>

#include "common/harness/inputs.h"
#include "common/harness/problem.h"

namespace fa {

/// The rows (and heads) of a problem that are checked; all of a small problem.
struct Sample {
  std::vector<size_t> rows;   ///< indices into [B*H*N]: forward outputs
  std::vector<size_t> heads;  ///< indices into [B*Hkv]: gradients, whole heads
  bool complete = true;       ///< false: the report says "checked on a sample"
};
/// All rows (heads) while they cost at most `budget` multiply-adds, else a seeded sample of as many
/// as that buys. A sample of rows always holds the first and the last row of the first and the last
/// head; every second draw takes a row next to a multiple of 64, where tiles end. With few rows per
/// head, where a head's keys cost more than its rows, it has all rows of the query heads that read
/// some heads of K and V, among them the first, the last, one of the most keys and one of the
/// fewest. A sample of heads holds the last one.
Sample sample_of(const Problem&, uint64_t seed, double budget = 4e9);

/// The error of fp32 arithmetic on numbers of size 1. A sum of size s errs by about s * 2^-24 in
/// any order; four such roundings cover a score, its scaling, and the approximate exponential.
constexpr double kFp32Error = 4 * 0x1p-24;
/// The relative change of P when a score errs by `score_error`: about as much, far more above 1.
double growth(double score_error);

/// Results of the sampled rows, in the order of the sample.
struct ReferenceForward {
  std::vector<double> O;    ///< [rows, dv]
  std::vector<double> LSE;  ///< [rows]; -inf for a fully masked row, whose O is 0
  // The scales of the checker's floor; attention_fp64() only.
  std::vector<double> sum_PV;  ///< [rows]: max over x of the row's sum of |P| |V|
  /// [rows]: scale |q| |k|, which no score exceeds; |k| is the largest, or twice the mean by P
  std::vector<double> score_bound;
  /// [rows]: a score's loss in its sum with large terms: rounding, and truncation (tensor_sum.h)
  std::vector<double> sum_error;
  /// The largest error of a correct kernel's scores in this row.
  double score_error(size_t row) const {
    return std::max(kFp32Error * score_bound[row], sum_error[row]);
  }
  std::vector<double> rest_of_P;  ///< [rows]: 1 - the largest P
  std::vector<double> largest_V;  ///< [rows]: largest |V| of the keys that the row sees
  // The same, only with Method::fp8: roots of sums of squares of the factors of independent errors.
  std::vector<double> root_PV;    ///< [rows]: of P V, over the keys; max over x
  std::vector<double> root_PS;    ///< [rows]: of scale P q_x k_x, over the keys and x
  std::vector<double> root_mean;  ///< [rows]: of scale q_x (sum of P k_x), over x
  /// [rows]: of P (V - O) times a score's terms and times half of root_mean; max over V's features
  std::vector<double> root_PSV;
  /// [rows]: sum of P e^error over keys whose scores may err by more than 1
  std::vector<double> adrift;
};
/// Gradients of the sampled K/V heads and of the query heads that read them.
struct ReferenceBackward {
  std::vector<double> dQ;      ///< [heads, H / Hkv, N, d]
  std::vector<double> dK;      ///< [heads, Nk, d]
  std::vector<double> dV;      ///< [heads, Nk, d]
  std::vector<double> dsinks;  ///< [heads, H / Hkv], with ScoreMod::sinks
  // The scale of each (sizes of a sum's terms); the root of their squares times |dO * O|, for O.
  std::vector<double> dsinks_scale, dsinks_delta;
  // The scales of the checker's floor, from attention_backward_fp64() only: the size of each row's
  // terms, with every P multiplied by 1 + growth() / kFp32Error, because an error in a score grows
  // into P. dQ: sum of P (|dP| + |delta| + |dO| max |v| / sqrt(d)) * scale * rms(K); dK: the same
  // with rms(Q); dV: sum of P * rms(dO). Or, where it is larger, the root of the sum of squares
  // with the largest feature in place of the rms: few terms may decide a row.
  std::vector<double> dQ_scale;  ///< [heads, H / Hkv, N]
  std::vector<double> dK_scale;  ///< [heads, Nk]
  std::vector<double> dV_scale;  ///< [heads, Nk]
  // The same sums without errors of the scores: of P, times the largest of k, of q and dO.
  std::vector<double> dQ_terms;  ///< [heads, H / Hkv, N]
  std::vector<double> dK_terms;  ///< [heads, Nk]
  std::vector<double> dV_terms;  ///< [heads, Nk]
  // delta = rowsum(dO * O) uses O rounded to the problem's type, and dP - delta may cancel: the
  // effect of one unit of relative error in each element of O, these errors being independent.
  std::vector<double> dQ_delta;  ///< [heads, H / Hkv, N]: |dO * O| * scale * max over x of |P K|
  std::vector<double> dK_delta;  ///< [heads, Nk]: root of the sum of (P |dO * O| max |q| * scale)^2
  // The effect of one unit of relative error in each dS, or P, these errors being independent.
  std::vector<double> dQ_root;  ///< [heads, H / Hkv, N]: root of the sum of (dS max |k| * scale)^2
  std::vector<double> dK_root;  ///< [heads, Nk]: of (dS max |q| * scale)^2
  std::vector<double> dV_root;  ///< [heads, Nk]: of (P max |dO|)^2
};

/// O = softmax(scale Q K^T) V and LSE = m + log l, all in double.
ReferenceForward attention_fp64(const Problem&, const Inputs&, const Sample&);
/// The textbook kernel of the problem's precision: S, P and O rounded to its type, sums in fp32.
/// Its LSE is of the fp32 scores before that rounding: a kernel that writes LSE keeps S in
/// registers, and a baseline with rounded scores would err by more than a missing key.
///
/// With Method::fp8 the plain 8-bit kernel: Q, K and V are e4m3 with one scale per tensor, and so
/// are the numerators of P, scaled by 2^8; sums in fp32, S stays unrounded. O is of Problem::dtype.
/// \param headroom  with Method::fp8: a tensor's largest number becomes 448 / headroom
ReferenceForward attention_unfused(const Problem&, const Inputs&, const Sample&,
                                   float headroom = 1);
/// dQ, dK, dV of FlashAttention's Algorithm 4 (arXiv 2205.14135) without tiles, in double.
ReferenceBackward attention_backward_fp64(const Problem&, const Inputs&, const Sample&);
/// The same with S, P, O, dP, dS and the results rounded to the problem's type, sums in fp32.
ReferenceBackward attention_backward_unfused(const Problem&, const Inputs&, const Sample&);

}  // namespace fa

/// \file
/// What is right: attention on the CPU in fp64, and how wrong an unfused kernel of the same
/// precision would be. Both see the rounded inputs. Multithreaded, plain C++.
#pragma once

#include <vector>

#include "common/inputs.h"
#include "common/problem.h"

namespace fa {

/// Which rows (and heads) of a problem are looked at; all of them for a small problem.
struct Sample {
  std::vector<size_t> rows;   ///< indices into [B*H*N]: forward outputs
  std::vector<size_t> heads;  ///< indices into [B*Hkv]: gradients, whole heads
  bool complete = true;       ///< false: the report says "checked on a sample"
};
/// Everything while it costs less than `budget` multiply-adds, else a seeded sample that always
/// holds the first and the last row and the rows next to multiples of 64.
Sample sample_of(const Problem&, uint64_t seed, double budget = 4e9);

/// Results of the sampled rows only, in the order of the sample.
struct ReferenceForward {
  std::vector<double> O;    ///< [rows, d]
  std::vector<double> LSE;  ///< [rows]; -inf for a fully masked row, whose O is 0
  std::vector<double>
      sum_PV;  ///< [rows]: max over x of the row's sum of |P| |V|, the floor's scale
};
/// Gradients of the sampled K/V heads and of the query heads that read them.
struct ReferenceBackward {
  std::vector<double> dQ;  ///< [heads, H / Hkv, N, d]
  std::vector<double> dK;  ///< [heads, Nk, d]
  std::vector<double> dV;  ///< [heads, Nk, d]
};

/// O = softmax(scale Q K^T) V and LSE = m + log l, all in double.
ReferenceForward attention_fp64(const Problem&, const Inputs&, const Sample&);
/// The textbook kernel of the problem's own precision: S, P and O rounded to its type, sums in fp32.
ReferenceForward attention_unfused(const Problem&, const Inputs&, const Sample&);
/// dQ, dK, dV of FlashAttention's Algorithm 4 (arXiv 2205.14135) without tiles, in double.
ReferenceBackward attention_backward_fp64(const Problem&, const Inputs&, const Sample&);
/// The same with S, P, dP, dS and the results rounded to the problem's type, sums in fp32.
ReferenceBackward attention_backward_unfused(const Problem&, const Inputs&, const Sample&);

}  // namespace fa

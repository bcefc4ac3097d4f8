// What every backward on tensor cores is asked, of one head dimension. Each function belongs into a
// TEST_CASE of its own: some GENERATE.
#pragma once

#include "tests/attention.h"

namespace fa::test {

/// A variant and a d that it has kernels for.
struct Kernels {
  const Variant* variant;
  int d;
};

/// One more and one less than the rows and keys of tiles, bands and mmas.
void require_backward_right_at_edges(const Kernels& of);

/// Nk - N, of both signs, is around each multiple of 16 up to 128, of which tiles and bands of rows
/// and keys are made: which of them the diagonal cuts is a comparison that may be off by one.
void require_backward_right_for_every_remainder(const Kernels& of);

void require_backward_right_with_shared_heads(const Kernels& of);

/// One row, one key, and edges of tiles that do not meet.
void require_backward_right_for_few(const Kernels& of);

/// A row without keys gives dQ = 0, and nothing to dK and dV.
void require_backward_of_blind_rows(const Kernels& of);

void require_backward_right_for_real_and_outliers(const Kernels& of);

void require_backward_right_for_any_score_size(const Kernels& of);

/// Scores far below zero, where 2^(0 - LSE) of a key past the end overflows. Each tile's end has
/// one key less than it holds, or one more.
void require_backward_right_far_below_zero(const Variant& v, int d);

/// V = 1 makes O constant, so dQ and dK are 0.
void require_no_gradient_of_constant_v(const Kernels& of);

/// What the gradients of all keys sum to: in each head a row of P sums to 1, a row of dS to 0.
void require_sums_over_keys(const Kernels& of);

/// Twice dO, exactly twice the gradients.
void require_linear_in_do(const Kernels& of);

/// Gradients agree with those that `parent` computes in fp32 of the same, rounded inputs.
void require_gradients_as(const Variant& parent, const Kernels& of);

/// Two runs give the same bits; of dQ only when its sum has one order or none.
void require_same_gradients(const Kernels& of, bool dQ_too);

/// Predicted bytes and operations are counted ones. Simulator only.
void require_backward_predicted_for_lengths(const Kernels& of);

/// The analysis finds nothing. Simulator only.
void require_no_finding_in_backward(const Kernels& of);

}  // namespace fa::test

// The requirements of all steps: right results, predicted bytes, the properties of attention.
#pragma once

#include <functional>
#include <random>

#include "common/counts/backend.h"
#include "common/harness/check.h"
#include "common/harness/inputs.h"
#include "common/harness/run.h"
#include "common/harness/step.h"
#include "tests/test.h"

namespace fa::test {

Problem problem(int N, int d, bool causal, int B = 1, int H = 2);
/// 64 where it is supported.
int some_d(const Support& support);

/// The same in bf16, with N queries and Nk keys, and H query heads that share Hkv key heads.
Problem bf16_problem(int N, int Nk, int d, bool causal, int B = 1, int H = 1, int Hkv = 1);

/// A persistent variant, as if the GPU had this few SMs, so that a small problem has boundaries
/// between work tiles; 0: one, two or three, depending on the problem.
Variant on_blocks(const Variant& v, int blocks);

/// As run(), but a forward of another variant runs only once for the same inputs.
Outputs run_backward(const Variant& v, const Problem& p, const Inputs& in);

/// The GPU chooses an order of the blocks in each run, the simulator the one numbered `order`.
Outputs run_in_order(uint64_t order, const Variant& v, const Problem& p, const Inputs& in);

/// N and Nk without a common tile; many tiles for one row; one key more, or less, than rows.
inline const int kLong = FA_BACKEND_GPU ? 1024 : 384;
inline const std::vector<std::pair<int, int>> kLengths = {
    {113, 203}, {128, 217},         {108, 256},        {256, 512},
    {1, 2048},  {kLong - 1, kLong}, {kLong, kLong - 1}};

/// A problem of the tensor-core steps with at most `longest` rows and keys.
Problem random_problem(std::mt19937& random, int longest = 150);

/// Checks every row against fp64, by the checker's bound; with e4m3 large scores have no digits.
/// Inputs of a variant with an 8-bit cache come from problem_for(), or end with quantise_cache().
void require_right(const Variant& v, Problem p, const Inputs& in);
/// With default inputs. For a forward of 16 or 32 bits every second row scores all keys far below
/// zero, by the same amount: its P is ordinary, but a key past the end, whose score is 0, would
/// outweigh all others, and exp(0 - LSE) overflow.
void require_right(const Variant& v, const Problem& p);

/// The same, with the counts of that run: of the backward where there is one; of the forward unless
/// it is another variant's. With `analyse` the analysis must find nothing. Simulator only.
struct BothCounts {
  Counts forward, backward;
};
BothCounts require_right_counted(const Variant& v, const Problem& p, bool analyse);

/// The bytes of one prepare, counted (simulator) or measured (GPU).
Counts count_prepare(const Variant& v, const Problem& p, bool analyse = false);

/// The bytes of one forward; a prepare before it is not counted.
Counts count_forward(const Variant& v, const Problem& p, bool analyse = false);

/// The bytes of one backward, after one forward that is not counted.
Counts count_backward(const Variant& v, const Problem& p, bool analyse = false);

/// Requires that counted bytes equal the predicted ones, per buffer, to the byte, and tensor-core
/// operations, except for a prepare, which does not predict them. Simulator only.
void require_equal(Prediction prediction, const Counts& counts);
void require_prepare_predicted(const Variant& v, const Problem& p);
void require_predicted(const Variant& v, const Problem& p);
void require_backward_predicted(const Variant& v, const Problem& p);

/// NaN where one of the two is, which fails every <= tolerance.
double max_difference(const std::vector<float>& a, const std::vector<float>& b);

/// V = 1 gives O = 1: every row of P sums to one.
void require_rows_sum_to_one(const Variant& v, Problem p, double tolerance);

/// The same vector added to every key shifts each row of S by a constant: O does not change.
void require_shift_invariance(const Variant& v, const Problem& p, double tolerance);

/// Keys and values in another order: O does not change (no causal mask).
void require_key_permutation(const Variant& v, Problem p, double tolerance);

/// Scores in the thousands (only the largest survives) and near zero (a mean) are both right.
void require_any_score_size(const Variant& v, Problem p);

// --- requirements of every forward in fp32 -------------------------------------------------------

/// One more and one less than the rows and keys of tiles; every head dimension.
void require_right_at_edges_fp32(const Variant& v);

/// Real input, outliers, and the properties of attention.
/// \param smem the shared memory of a block, where the variant supports it (Method::smem).
void require_fp32_properties(const Variant& v, size_t smem = 0);

/// O equals another variant's, and so do LSE and gradients where both write them; d = 96.
void require_agrees_fp32(const Variant& v, const Variant& parent);

/// Predicted bytes equal counted bytes. Simulator only.
void require_predicted_fp32(const Variant& v);

void require_no_finding_fp32(const Variant& v);

void require_no_conflicts(const Counts& counts);
/// The counts of a forward with one kernel: no conflicts, and only TMA loads.
Counts require_loads_by_tma(const Variant& v, const Problem& p);
/// Requires also that every byte of every loaded sector was requested.
void require_clean_accesses(const Counts& counts);
void require_clean_accesses_fp32(const Variant& v);

/// With little shared memory per block: right, bytes as predicted, no bank conflicts and findings.
/// Simulator only. \return the counts, of the backward where there is one.
Counts require_with_shared_memory(size_t bytes, const Variant& v, Problem p);

// --- requirements of every forward on tensor cores -----------------------------------------------
// Each belongs in its own TEST_CASE with the tag [all]: some GENERATE.

/// In sections: right at tile edges, for real input and outliers; if it supports different numbers
/// of keys and rows, also for shared heads, any lengths, rows without keys, any remainder of a tile
/// and scores below -1e30; behaves as attention must; the same bits twice. In the simulator: bytes
/// as predicted, HBM sees inputs and outputs only, the analysis finds nothing. In 8 bits no
/// tolerance holds for attention's properties, large scores have no digits, HBM sees more.
/// \param predicted false where a test launches the variant differently from its formula.
void require_forward(const Variant& v, bool predicted = true);

/// A few, or 1000 on a GPU, with the variants in turn. FLASH_STEPS_SHAPES=100-300 in the
/// environment selects larger ones, the 100th to the 299th, in the simulator also analysed.
void require_right_for_random_shapes(const std::vector<const Variant*>& variants, unsigned seed);

/// O and LSE equal another variant's, up to the rounding of bf16.
void require_agrees(const Variant& v, const Variant& parent);

/// Key c scores score(c) times a factor of its row: half of the groups of `rows` rows, a warp's,
/// agree, in the others some grow and others fall. All are bf16 numbers, so the bound is narrow.
Inputs inputs_with_scores(const Problem& p, int rows, const std::function<float(int)>& score);

/// In sections: maxima that grow slowly, fast, not at all, between tiles of Bc keys; a maximum far
/// from zero, and one key that outweighs all others. `rows`: per warp.
void require_right_for_any_maxima(const Variant& v, int rows, int Bc);

/// The formulas in a header, for a kernel whose blocks have Br rows. Simulator only.
void require_header_formulas(const Variant& v, int Br);

// --- parts of require_forward(), for variants that need not meet all of it ----------------------

void require_right_at_edges(const Variant& v);
void require_right_with_shared_heads(const Variant& v);
void require_right_for_every_remainder(const Variant& v);
void require_blind_rows(const Variant& v);
void require_right_for_real_and_outliers(const Variant& v);
void require_same_bits(const Variant& v);
/// Also on one, two and three blocks, as on_blocks().
void require_same_bits_on_blocks(const Variant& v);
void require_predicted_for_lengths(const Variant& v);
void require_compulsory_hbm(const Variant& v);
void require_no_finding(const Variant& v);

// --- scales --------------------------------------------------------------------------------------

/// Powers of two as factors of inputs give powers of two: exactly, and nearly so to fp32's ends.
void require_any_scale(const Variant& v, const Support& support);

// --- more than 2^31 elements ---------------------------------------------------------------------

/// Q, K, V and O have more than 2^31 elements each, as have S and P where they exist. The heads
/// repeat those of a small problem, and so must their results. For a GPU with enough memory:
/// `test_ladder "[large]"`; a minute each, so only with that tag.
void require_right_beyond_2_31(const Variant& v, int N = 257);

}  // namespace fa::test

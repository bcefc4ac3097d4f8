/// \file
/// Results of a run on several ranks, in addition to those of every run.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/counts/backend.h"
#include "common/harness/problem.h"
#include "common/harness/world.h"

namespace fa {

struct RunReport;

/// One pass on one rank.
struct PassCount {
  uint64_t sent = 0;        ///< bytes sent to other ranks
  uint64_t requested = 0;   ///< bytes requested by its kernels; 0: not counted
  double estimated_ms = 0;  ///< of its kernels, without messages; 0: not estimated
  std::string limited_by;   ///< the kernel that takes longest; empty: not estimated
};
/// One rank.
struct RankCount {
  PassCount forward, backward;
  uint64_t memory = 0;     ///< bytes of its inputs and outputs
  uint64_t workspace = 0;  ///< beyond them
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PassCount, sent, requested, estimated_ms, limited_by)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankCount, forward, backward, memory, workspace)

/// One rank: predictions, its rows, and counts.
struct RankReport {
  RankPrediction predicted;
  std::vector<Rows> rows;
  RankCount seen;
  std::vector<Span> lanes;  ///< of one forward and backward; GPU only
};

/// All ranks.
struct RanksReport {
  std::vector<RankReport> ranks;
  bool gradients_checked = true;
  std::string carrier;         ///< of messages
  std::optional<Timing> both;  ///< a forward and a backward; GPU only

  /// Did all ranks send what was predicted?
  bool as_predicted() const;
};

/// Parts of the first line for a run on ranks, "" where nothing is known. Bytes that a rank sends.
std::string ranks_sent(const RunReport&);
/// Its time, measured or estimated.
std::string ranks_time(const RunReport&);
/// What limits it.
std::string ranks_limit(const RunReport&);
/// The text after the check.
std::string ranks_screen(const RunReport&);
/// The text of --details alone.
std::string ranks_details(const RunReport&);
/// Adds the ranks' keys to the report's.
void add_ranks(nlohmann::ordered_json& report, const RunReport&);

/// Milliseconds in which both lanes were busy, each lane alone, and from the first to the last.
struct Overlap {
  double compute_ms = 0, messages_ms = 0, both_ms = 0, total_ms = 0;
};
/// The overlap of the lanes of one rank.
Overlap overlap_of(const std::vector<Span>&);

/// The number of queries per rank from which a hop computes as long as its messages take.
/// \param flops_per_s of the kernels \param bytes_per_s of the link, one way
double tokens_to_hide(const Problem&, double flops_per_s, double bytes_per_s);

}  // namespace fa

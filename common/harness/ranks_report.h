/// \file
/// What is known about a run on several ranks, beside what every run's report has.
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

/// Of one pass on one rank.
struct PassCount {
  uint64_t sent = 0;        ///< bytes to other ranks
  uint64_t requested = 0;   ///< bytes that its kernels asked for; 0: not counted
  double estimated_ms = 0;  ///< of its kernels, without messages; 0: not estimated
  std::string limited_by;   ///< the kernel that takes longest; empty: not estimated
};
/// Of one rank.
struct RankCount {
  PassCount forward, backward;
  uint64_t memory = 0;     ///< bytes of its inputs and outputs
  uint64_t workspace = 0;  ///< and beyond them
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PassCount, sent, requested, estimated_ms, limited_by)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankCount, forward, backward, memory, workspace)

/// Of one rank: what was predicted, its rows, and what was seen.
struct RankReport {
  RankPrediction predicted;
  std::vector<Rows> rows;
  RankCount seen;
  std::vector<Span> lanes;  ///< of one forward and backward; GPU only
};

/// All of them.
struct RanksReport {
  std::vector<RankReport> ranks;
  bool gradients_checked = true;
  std::string carrier;         ///< of messages
  std::optional<Timing> both;  ///< a forward and a backward; GPU only

  /// All ranks sent what was predicted.
  bool as_predicted() const;
};

/// Of a run on ranks: parts of the first line, "" where nothing is known. Bytes that a rank sends.
std::string ranks_sent(const RunReport&);
/// Its time, measured or estimated.
std::string ranks_time(const RunReport&);
/// What limits it.
std::string ranks_limit(const RunReport&);
/// What follows the check.
std::string ranks_screen(const RunReport&);
/// What only --details prints.
std::string ranks_details(const RunReport&);
/// Adds their keys to the report's.
void add_ranks(nlohmann::ordered_json& report, const RunReport&);

/// Milliseconds in which both lanes were busy, each lane's own, and from the first to the last.
struct Overlap {
  double compute_ms = 0, messages_ms = 0, both_ms = 0, total_ms = 0;
};
/// Of the lanes of one rank.
Overlap overlap_of(const std::vector<Span>&);

/// Queries on each rank from which on a hop computes for as long as its messages take:
/// \param flops_per_s of the kernels, \param bytes_per_s of the link, one way
double tokens_to_hide(const Problem&, double flops_per_s, double bytes_per_s);

}  // namespace fa

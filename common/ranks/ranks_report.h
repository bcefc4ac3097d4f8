/// \file
/// What is known about one run on several ranks, as text and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/harness/report.h"
#include "common/ranks/sharding.h"
#include "common/ranks/world.h"

namespace fa {

/// Of one pass on one rank.
struct PassCount {
  uint64_t sent = 0;        ///< bytes to other ranks
  uint64_t requested = 0;   ///< bytes that its kernels asked for; 0: not counted
  double estimated_ms = 0;  ///< of its kernels, without messages; 0: not estimated
};
struct RankCount {
  PassCount forward, backward;
  uint64_t memory = 0;     ///< bytes of its inputs and outputs
  uint64_t workspace = 0;  ///< and beyond them
};
std::string to_text(const RankCount&);
RankCount from_text(const std::string&);
std::vector<Span> spans_of(const std::string& lines);

struct RankReport {
  RankPrediction predicted;
  std::vector<Rows> rows;
  RankCount seen;
  std::vector<Span> lanes;  ///< of one forward and backward; GPU only
};

struct RanksReport {
  RunReport run;  ///< of the whole problem
  std::vector<RankReport> ranks;
  bool gradients_checked = true;
  std::string carrier;         ///< of messages
  std::optional<Timing> both;  ///< a forward and a backward; GPU only

  /// Also: all ranks sent what was predicted.
  bool ok() const { return run.ok() && as_predicted(); }
  bool not_checkable() const { return run.not_checkable() && as_predicted(); }
  bool as_predicted() const;
};

std::string text(const RanksReport&);
nlohmann::ordered_json to_json(const RanksReport&);

/// Milliseconds in which both lanes were busy, each lane's own, and from the first to the last.
struct Overlap {
  double compute_ms = 0, messages_ms = 0, both_ms = 0, total_ms = 0;
};
Overlap overlap_of(const std::vector<Span>&);

/// Queries on each rank from which on a hop computes for as long as its messages take:
/// \param flops_per_s of the kernels, \param bytes_per_s of the link, one way
double tokens_to_hide(const Problem&, double flops_per_s, double bytes_per_s);

}  // namespace fa

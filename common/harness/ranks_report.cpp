#include "common/harness/ranks_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "common/counts/format.h"
#include "common/harness/report.h"

namespace fa {

namespace {

using Json = nlohmann::ordered_json;

uint64_t sum(const std::vector<uint64_t>& all) {
  uint64_t total = 0;
  for (const uint64_t x : all) total += x;
  return total;
}

/// "=" where `seen` equals the prediction.
std::string verdict_of(uint64_t predicted, uint64_t seen, bool ran) {
  return !ran ? "" : predicted == seen ? "=" : grouped(seen);
}

std::string rows_of(const std::vector<Rows>& ranges) {
  std::string out;
  for (const Rows& r : ranges) {
    out += fmt::format("{}{}-{}", out.empty() ? "" : ", ", r.begin, r.end - 1);
  }
  return out;
}

/// Formats one table. A column fits its longest cell plus a space, and is at least as wide as here.
std::string table_of(const std::vector<std::array<std::string, 7>>& lines) {
  std::array<size_t, 7> width = {6, 22, 13, 14, 6, 14, 4};
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) width[i] = std::max(width[i], line[i].size() + 1);
  }
  std::string out;
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) {
      out += i < 2 ? fmt::format("{:<{}}", line[i], width[i])
                   : fmt::format("{:>{}}", line[i], width[i]);
    }
    out.erase(out.find_last_not_of(' ') + 1);
    out += "\n";
  }
  return out;
}

std::string ranks_table(const RunReport& run) {
  const RanksReport& r = *run.on_ranks;
  const bool ran = !run.predicted_only;
  std::vector<std::array<std::string, 7>> lines = {
      {"rank", "rows", "scores", "sent forward", "", "backward", ""}};
  uint64_t most = 0, all = 0;
  for (size_t i = 0; i < r.ranks.size(); ++i) {
    const RankReport& rank = r.ranks[i];
    const uint64_t scores = sum(rank.predicted.scores);
    most = std::max(most, scores), all += scores;
    lines.push_back({fmt::format("  {}", i), rows_of(rank.rows), grouped(scores),
                     grouped(rank.predicted.forward_bytes),
                     verdict_of(rank.predicted.forward_bytes, rank.seen.forward.sent, ran),
                     grouped(rank.predicted.backward_bytes),
                     verdict_of(rank.predicted.backward_bytes, rank.seen.backward.sent, ran)});
  }
  std::string out = "\n" + table_of(lines);
  out += labelled("",
                  "scores: computed by the rank; sent: predicted bytes to other ranks, with = "
                  "where the count agrees");
  // All wait for the slowest rank, in every hop.
  uint64_t steps = 0;
  for (size_t hop = 0; hop < r.ranks[0].predicted.scores.size(); ++hop) {
    uint64_t slowest = 0;
    for (const RankReport& rank : r.ranks) slowest = std::max(slowest, rank.predicted.scores[hop]);
    steps += slowest;
  }
  const double ranks = double(r.ranks.size());
  out += labelled(
      "balance",
      fmt::format("the busiest rank computes {:.2f}x the mean; hop by hop all wait for "
                  "the slowest: {:.0f}% of the ideal",
                  double(most) * ranks / double(all), 100 * double(all) / ranks / double(steps)));
  return out;
}

std::string requested_by_ranks(const RunReport& run) {
  if (run.predicted_only || run.device.kind != "sim") return "";
  std::string words;
  for (const RankReport& rank : run.on_ranks->ranks) {
    words += (words.empty() ? "" : ", ") + human_bytes(double(rank.seen.forward.requested));
  }
  return labelled("requested", "by the forward's kernels, counted: " + words);
}

/// By the table's links, from its last GPU to its first: the fastest of each, then the next.
std::string hiding(const Problem& p) {
  const bool fp32 = p.dtype == DType::f32;
  std::vector<GpuSpec> gpus = gpu_table();
  std::reverse(gpus.begin(), gpus.end());
  std::string lines;
  bool more = true;
  for (size_t i = 0; std::exchange(more, false); ++i) {
    for (const GpuSpec& gpu : gpus) {
      if (i >= gpu.links.size()) continue;
      more = true;
      const LinkSpec& link = gpu.links[i];
      const double flops = 0.7 * (fp32 ? gpu.fp32_flops : gpu.bf16_flops);
      lines += fmt::format(
          "  {:<46}{:>8.0f} rows per rank\n",
          fmt::format("{}, {} {:.0f} GB/s", gpu.name, link.name, link.bytes_per_s / 1e9),
          std::ceil(tokens_to_hide(p, flops, 0.65 * link.bytes_per_s)));
    }
  }
  if (lines.empty()) return "";
  return labelled("hidden",
                  fmt::format("messages are fully hidden from this many rows per rank, at 70% of "
                              "the {} and 65% of the link's rate:",
                              fp32 ? "fp32" : "tensor cores'")) +
         lines;
}

std::string time_of(const char* label, const Timing& t, double flops, double ranks) {
  return labelled(label, fmt::format("{} median of {} batches (p10 {}, p90 {}), {:.0f} TFLOP/s per "
                                     "GPU",
                                     human_time(t.median_ms), t.iters, human_time(t.p10_ms),
                                     human_time(t.p90_ms), flops / t.median_ms * 1e-9 / ranks));
}

PassCount slowest(const RanksReport& r, PassCount RankCount::*pass) {
  PassCount found;
  for (const RankReport& rank : r.ranks) {
    if ((rank.seen.*pass).estimated_ms > found.estimated_ms) found = rank.seen.*pass;
  }
  return found;
}

std::string time_section(const RunReport& run) {
  const RanksReport& r = *run.on_ranks;
  const Problem& p = run.problem;
  const double ranks = double(r.ranks.size());
  std::string out;
  if (const double ms = slowest(r, &RankCount::forward).estimated_ms; ms > 0) {
    const double back = slowest(r, &RankCount::backward).estimated_ms;
    out += labelled(
        "estimated",
        fmt::format("{}{} on {}: the kernels of the slowest rank, without messages and "
                    "without waiting for another rank",
                    human_time(ms), back > 0 ? fmt::format(", backward {},", human_time(back)) : "",
                    run.model.name));
  }
  if (run.forward.time) out += time_of("forward", *run.forward.time, p.flops_forward(), ranks);
  if (r.both) out += time_of("and back", *r.both, p.flops_forward() + p.flops_backward(), ranks);
  return out;
}

std::string lanes_section(const RanksReport& r) {
  std::string out;
  for (size_t i = 0; i < r.ranks.size(); ++i) {
    if (r.ranks[i].lanes.empty()) continue;
    const Overlap o = overlap_of(r.ranks[i].lanes);
    out += labelled(out.empty() ? "lanes" : "",
                    fmt::format("rank {}: compute {}, messages {}, {} of them beside compute; "
                                "together {}",
                                i, human_time(o.compute_ms), human_time(o.messages_ms),
                                human_time(o.both_ms), human_time(o.total_ms)));
  }
  return out;
}

}  // namespace

bool RanksReport::as_predicted() const {
  return std::all_of(ranks.begin(), ranks.end(), [](const RankReport& r) {
    return r.seen.forward.sent == r.predicted.forward_bytes &&
           r.seen.backward.sent == r.predicted.backward_bytes;
  });
}

Overlap overlap_of(const std::vector<Span>& spans) {
  Overlap o;
  if (spans.empty()) return o;
  double begin = spans[0].begin_ms, end = 0;
  for (const Span& s : spans) {
    (s.lane == "compute" ? o.compute_ms : o.messages_ms) += s.end_ms - s.begin_ms;
    begin = std::min(begin, s.begin_ms), end = std::max(end, s.end_ms);
    if (s.lane == "compute") continue;
    for (const Span& c : spans) {  // spans of one lane do not overlap
      if (c.lane != "compute") continue;
      o.both_ms += std::max(0.0, std::min(s.end_ms, c.end_ms) - std::max(s.begin_ms, c.begin_ms));
    }
  }
  o.total_ms = end - begin;
  return o;
}

// A hop of n rows and keys: 4 n^2 d FLOPs per head of H (half if causal); 2 n d numbers per Hkv.
double tokens_to_hide(const Problem& p, double flops_per_s, double bytes_per_s) {
  const double flops = (p.causal ? 2.0 : 4.0) * p.H, bytes = 2.0 * bytes_of(p.dtype) * p.Hkv;
  return bytes / bytes_per_s * flops_per_s / flops;
}

std::string ranks_sent(const RunReport& run) {
  uint64_t most = 0;
  for (const RankReport& rank : run.on_ranks->ranks) {
    most = std::max(most, rank.predicted.forward_bytes + rank.predicted.backward_bytes);
  }
  return (run.predicted_only ? "predicted to send " : "sent ") + human_bytes(double(most));
}

std::string ranks_time(const RunReport& run) {
  const RanksReport& r = *run.on_ranks;
  if (r.both) return human_time(r.both->median_ms) + " measured";
  if (run.forward.time) return human_time(run.forward.time->median_ms) + " measured";
  const double ms =
      slowest(r, &RankCount::forward).estimated_ms + slowest(r, &RankCount::backward).estimated_ms;
  return ms > 0 ? human_time(ms) + " estimated" : "";
}

std::string ranks_limit(const RunReport& run) {
  const PassCount forward = slowest(*run.on_ranks, &RankCount::forward);
  const PassCount backward = slowest(*run.on_ranks, &RankCount::backward);
  const PassCount& longer = backward.estimated_ms > forward.estimated_ms ? backward : forward;
  return longer.limited_by.empty() ? "" : "limited by " + longer.limited_by;
}

std::string ranks_screen(const RunReport& run) {
  const RanksReport& r = *run.on_ranks;
  std::string out = labelled("ranks", fmt::format("{}; messages by {}", r.ranks.size(), r.carrier));
  if (!r.gradients_checked) {
    out += labelled("", "The gradients were not checked: a head has too many scores.");
  }
  out += ranks_table(run) + time_section(run);
  if (run.predicted_only) return out;
  const RankCount& c = r.ranks[0].seen;
  return out + labelled("memory", fmt::format("of rank 0: inputs and outputs {}, workspace {}",
                                              human_bytes(double(c.memory)),
                                              human_bytes(double(c.workspace))));
}

std::string ranks_details(const RunReport& run) {
  return requested_by_ranks(run) + hiding(run.problem) + lanes_section(*run.on_ranks);
}

void add_ranks(Json& j, const RunReport& run) {
  const RanksReport& r = *run.on_ranks;
  Json ranks = Json::array();
  for (const RankReport& rank : r.ranks) {
    Json rows = Json::array(), lanes = Json::array();
    for (const Rows& range : rank.rows) rows.push_back({range.begin, range.end});
    for (const Span& s : rank.lanes) {
      lanes.push_back(
          {{"lane", s.lane}, {"name", s.name}, {"begin_ms", s.begin_ms}, {"end_ms", s.end_ms}});
    }
    const Overlap o = overlap_of(rank.lanes);
    const bool ran = !run.predicted_only;
    const auto sent = [&](uint64_t predicted, uint64_t counted) {
      return Json{{"predicted", predicted}, {"counted", ran ? Json(counted) : Json(nullptr)}};
    };
    ranks.push_back(
        {{"rows", rows},
         {"scores", rank.predicted.scores},
         {"sent",
          {{"forward", sent(rank.predicted.forward_bytes, rank.seen.forward.sent)},
           {"backward", sent(rank.predicted.backward_bytes, rank.seen.backward.sent)}}},
         {"requested",
          {{"forward", rank.seen.forward.requested}, {"backward", rank.seen.backward.requested}}},
         {"estimated_ms",
          {{"forward", rank.seen.forward.estimated_ms},
           {"backward", rank.seen.backward.estimated_ms}}},
         {"memory_bytes", rank.seen.memory},
         {"workspace_bytes", rank.seen.workspace},
         {"overlap", rank.lanes.empty() ? Json(nullptr)
                                        : Json{{"compute_ms", o.compute_ms},
                                               {"messages_ms", o.messages_ms},
                                               {"both_ms", o.both_ms},
                                               {"total_ms", o.total_ms}}},
         {"lanes", lanes}});
  }
  j["ranks"] = ranks;
  j["gradients_checked"] = r.gradients_checked;
  j["carrier"] = r.carrier;
  j["forward_and_backward"] = r.both ? to_json(*r.both) : Json(nullptr);
}

}  // namespace fa

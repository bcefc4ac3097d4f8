#include "common/harness/report.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <functional>
#include <map>
#include <vector>

#include "common/counts/files.h"
#include "common/counts/format.h"
#include "common/harness/problem_json.h"

namespace fa {

namespace {

constexpr size_t kSiteRows = 15;  // rows of the table per source line
constexpr size_t kRemarks = 4;    // spelled out

// --- words and figures --------------------------------------------------------------------------

/// "24%" of what is allowed; from ten times on a factor, "24x".
std::string share_of(double x) {
  if (std::isnan(x)) return "nan";
  return x < 9.995 ? fmt::format("{:.0f}%", 100 * x) : fmt::format("{:.3g}x", x);
}

std::string error_of(double e) { return std::isnan(e) ? "nan" : fmt::format("{:.2e}", e); }

/// "3.2" for 32 transfers in 10 requests.
std::string per_request(uint64_t transfers, uint64_t requests) {
  return requests == 0 ? "-" : fmt::format("{:.1f}", double(transfers) / double(requests));
}

std::string listed(const std::vector<std::string>& all) {
  std::string out;
  for (const std::string& one : all) out += (out.empty() ? "" : ", ") + one;
  return out;
}

std::string trimmed(std::string line) {
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line + "\n";
}

// --- sections -----------------------------------------------------------------------------------

std::string check_section(const RunReport& r) {
  std::string out = fmt::format("\n{:<{}}{:>11}{:>10}{:>11}{:>10}{:>10}{:>11}\n", "check", kLabel,
                                "max error", "allowed", "worst row", "baseline", "rmse", "rows");
  for (const TensorCheck& t : r.check.tensors) {
    out += fmt::format("  {:<{}}{:>11}{:>10}{:>11}{:>10}{:>10}{:>11}  {}\n", t.tensor, kLabel - 2,
                       error_of(t.max_abs_err), error_of(t.bound), share_of(t.used),
                       error_of(t.baseline_err), error_of(t.rmse), grouped(t.rows_checked),
                       t.ok     ? "ok"
                       : t.lost ? "lost"
                                : "WRONG");
    if (!t.ok) out += wrapped("    ", t.message, 4);
  }
  for (const std::string& damage : r.check.damage) out += wrapped("  WRONG: ", damage, 4);
  if (!r.again.value_or("").empty()) out += wrapped("  WRONG in a later run: ", *r.again, 4);
  if (!r.check.complete) out += labelled("", "A seeded sample of the rows was checked.");
  return out;
}

constexpr size_t kBytesEnd = 28;  // columns up to the end of the first number

/// A number of the traffic table. "=": as predicted; another count is below the prediction.
struct TrafficCell {
  std::string first, mark, counted, sectors;
};

std::string traffic_line(const std::string& label, const TrafficCell& read,
                         const TrafficCell& write) {
  if (read.first.empty() && write.first.empty()) return "";
  std::string out = trimmed(beside("  " + label, read.first, kBytesEnd) +
                            fmt::format("{:>9}{:>18}{:>9}{:>8}{:>8}", read.mark, write.first,
                                        write.mark, read.sectors, write.sectors));
  if (!read.counted.empty() || !write.counted.empty()) {
    out += trimmed(beside("    counted", read.counted, kBytesEnd) +
                   fmt::format("{:>27}", write.counted));
  }
  return out;
}

std::string traffic_row(const std::string& name, const std::optional<Bytes>& predicted,
                        const std::optional<BufferCount>& counted) {
  const auto cell = [&](uint64_t Bytes::*way, uint64_t Ops::*kind) {
    const uint64_t want = predicted ? (*predicted).*way : 0;
    const uint64_t got = counted ? counted->bytes.*way : 0;
    TrafficCell c;
    if (want == 0 && got == 0) return c;
    c.first = grouped(predicted ? want : got);
    if (predicted && counted) {
      c.mark = got == want ? "=" : "!=";
      if (got != want) c.counted = grouped(got);
    }
    if (counted) c.sectors = per_request(counted->sectors.*kind, counted->requests.*kind);
    return c;
  };
  std::string out =
      traffic_line(name, cell(&Bytes::read, &Ops::load), cell(&Bytes::write, &Ops::store));
  const TrafficCell atomic = cell(&Bytes::atomic, &Ops::atomic);
  if (!atomic.first.empty()) out += traffic_line(name, {"atomic", "", "", ""}, atomic);
  return out;
}

/// Were bytes read or written without a request ("-" in the table)?
bool without_requests(const BufferCount& c) {
  return (c.bytes.read != 0 && c.requests.load == 0) ||
         (c.bytes.write != 0 && c.requests.store == 0);
}

std::string traffic_table(const Pass& p) {
  const bool counted = p.counted();
  const char* const got = counted && p.predicts ? "counted" : "";
  const char* const first = p.predicts ? "predicted" : "counted";
  std::string out =
      "\n" + trimmed(beside(p.name + ", bytes requested by the kernels' loads and stores",
                            counted ? "sectors/request" : "", kScreenWidth));
  out += trimmed(fmt::format("{:>{}}{:>9}{:>18}{:>9}{:>8}{:>8}", fmt::format("read {}", first),
                             kBytesEnd, got, fmt::format("write {}", first), got,
                             counted ? "load" : "", counted ? "store" : ""));
  std::vector<std::string> names;
  for (const auto& [name, bytes] : p.predicted.buffers) names.push_back(name);
  for (const auto& [name, count] : p.seen.buffers) {
    if (!p.predicted.buffers.contains(name)) names.push_back(name);
  }
  // What one side does not know are no bytes.
  const auto row = [&](const std::string& name, const Bytes& bytes, const BufferCount& count) {
    return traffic_row(name, p.predicts ? std::optional(bytes) : std::nullopt,
                       counted ? std::optional(count) : std::nullopt);
  };
  const auto of = [](const auto& buffers, const std::string& name) {
    const auto found = buffers.find(name);
    return found == buffers.end() ? decltype(found->second){} : found->second;
  };
  for (const std::string& name : names) {
    out += row(name, of(p.predicted.buffers, name), of(p.seen.buffers, name));
  }
  out += row("all", p.predicted.total(),
             {p.seen.requested.value_or(Bytes{}), p.seen.requests.value_or(Ops{}),
              p.seen.sectors.value_or(Ops{})});
  const bool copies = std::ranges::any_of(
      p.seen.buffers, [](const auto& named) { return without_requests(named.second); });
  if (counted && copies) {
    out += labelled("", "-: copied by TMA or set by a memset, which are no requests of a warp");
  }
  return out;
}

std::string requested_section(const Pass& p) {
  std::string out = p.predicts || p.counted() ? traffic_table(p) : "\n" + p.name + "\n";
  for (const PerElement& e : p.predicted.per_element) {
    const std::optional<double> counted = counted_per_element(e, p.seen);
    out +=
        labelled(e.element,
                 fmt::format("{}: {:.4g} accesses per {} predicted{}", e.kernel, e.accesses,
                             e.element, counted ? fmt::format(", {:.4g} counted", *counted) : ""));
  }
  if (p.measured() && p.seen.requests && p.seen.sectors) {
    out += labelled("requests",
                    fmt::format("{} load requests, {} sectors; {} store requests, {} sectors",
                                grouped(p.seen.requests->load), grouped(p.seen.sectors->load),
                                grouped(p.seen.requests->store), grouped(p.seen.sectors->store)));
  }
  if (p.prediction_ok() == false) {
    std::vector<std::string> names = differing_buffers(p.predicted, p.seen);
    for (const PerElement& e : p.predicted.per_element) {
      if (counted_per_element(e, p.seen) != e.accesses) names.push_back(e.kernel);
    }
    out += labelled("", "prediction differs from the count in: " + listed(names));
  }
  return out;
}

bool more_heads_estimated(const RunReport& r) { return r.estimate_heads > r.problem.heads(); }

/// Where the L2 model is least accurate. More heads than were simulated share the L2.
bool close_to_l2(const RunReport& r) {
  const double footprint = double(r.memory.total()), l2 = r.model.l2_bytes;
  return r.device.kind == "sim" && !more_heads_estimated(r) && footprint >= l2 / 2 &&
         footprint <= 3 * l2;
}

std::string hbm_section(const RunReport& r, const Pass& p) {
  const auto row = [](const char* label, const std::optional<Bytes>& bytes,
                      const std::string& remark) {
    return wrapped(fmt::format("  {:<{}}{:>10}{:>10}{:>10}  ", label, kLabel - 2,
                               bytes ? human_bytes(double(bytes->read)) : "-",
                               bytes ? human_bytes(double(bytes->write)) : "-",
                               bytes ? human_bytes(double(bytes->total())) : "-"),
                   remark, kLabel + 32);
  };
  std::string out =
      fmt::format("{:<{}}{:>10}{:>10}{:>10}\n", "HBM", kLabel, "read", "write", "both");
  if (p.predicts) out += row("predicted", p.predicted.hbm, "each kernel streams its operands once");
  if (r.device.kind == "sim") {
    out += row("modelled", p.seen.hbm,
               fmt::format("{}'s L2 {}, {}", r.model.name, human_bytes(r.model.l2_bytes),
                           more_heads_estimated(r)
                               ? fmt::format("shared by {} heads", r.estimate_heads)
                               : "footprint " + human_bytes(double(r.memory.total()))));
    out += row("measured", std::nullopt, "needs a GPU");
  } else {
    out += row("modelled", std::nullopt, "needs the simulator");
    out += row("measured", p.measured() ? p.seen.hbm : std::nullopt, "");
  }
  return out;
}

std::string change_of(const Pass& p) {
  const double before = double(p.parent->requested.total());
  const double now = double(p.predicted.total().total());
  const double change = now - before;
  const bool small = change != 0 && std::abs(change) < 0.005 * before;  // "1.00x" says nothing
  const std::string ratio = now == 0        ? ""
                            : before == now ? ", unchanged"
                            : small         ? fmt::format(", {:+.0f} B", change)
                            : before > now  ? fmt::format(": {:.2f}x fewer", before / now)
                            : before != 0   ? fmt::format(": {:.2f}x more", now / before)
                                            : "";
  return fmt::format("since {}: requested {} -> {}{}", p.parent->id, human_bytes(before),
                     human_bytes(now), ratio);
}

/// FLOP/s or bytes/s that a program reached on this card; a kernel may exceed it.
struct MeasuredRate {
  double rate = 0;  ///< 0: nothing was measured
  const char* by = "";
};

/// For this problem's products.
MeasuredRate measured_products(const RunReport& r) {
  if (!r.roofs || r.problem.method.fp8) return {};
  if (r.problem.dtype == DType::f32) return {r.roofs->fp32_flops, "an FMA loop"};
  if (r.problem.dtype == DType::bf16) return {r.roofs->bf16_flops, "cuBLAS"};
  return {};
}

/// Few queries with many keys, where bytes take longer than products: FLOP/s say nothing.
bool moves_a_cache(const RunReport& r) {
  if (!r.roofs || r.roofs->copy_bytes_per_s <= 0 || r.problem.N >= r.problem.Nk) return false;
  const double bytes = double(r.memory.inputs + r.memory.outputs);
  const double peak = measured_products(r).rate;
  return peak <= 0 || bytes / r.roofs->copy_bytes_per_s > r.problem.flops_forward() / peak;
}

/// The measured rate that a pass is compared with.
MeasuredRate measured_rate(const RunReport& r, const Pass& p) {
  if (p.flops > 0 && !moves_a_cache(r)) return measured_products(r);
  return {r.roofs ? r.roofs->copy_bytes_per_s : 0, "a copy"};
}

/// HBM bytes, measured if possible, else predicted.
double moved(const Pass& p) {
  if (p.measured() && p.seen.hbm) return double(p.seen.hbm->total());
  return p.predicts ? double(p.predicted.hbm.total()) : 0;
}

/// The measured time, beside the rates measured on this card.
std::string measured_time(const RunReport& r, const Pass& p) {
  const double seconds = p.time->median_ms * 1e-3;
  std::string out = labelled(
      "time", fmt::format("{} median of {} (p10 {}, p90 {})", human_time(p.time->median_ms),
                          p.time->iters, human_time(p.time->p10_ms), human_time(p.time->p90_ms)));
  if (p.flops > 0 && !moves_a_cache(r)) {
    std::string rate =
        fmt::format("{}FLOP/s (FlashAttention's convention)", scaled(p.flops / seconds));
    const MeasuredRate peer = measured_products(r);
    if (peer.rate > 0) {
      rate += fmt::format(": {:.1f}% of the {}FLOP/s of {} on this card",
                          100 * p.flops / seconds / peer.rate, scaled(peer.rate), peer.by);
    }
    out += labelled("", rate);
  }
  const double copy = r.roofs ? r.roofs->copy_bytes_per_s : 0;
  const bool counters = p.measured() && p.seen.hbm;
  const bool bytes_bind = p.bound && p.bound->memory_ms > p.bound->arithmetic_ms;
  if (copy > 0 && (counters || (bytes_bind && p.predicts))) {
    const double rate = moved(p) / seconds;
    out += labelled("", fmt::format("{}/s of {}HBM traffic: {:.1f}% of this card's measured {}/s",
                                    human_bytes(rate), counters ? "" : "the predicted ",
                                    100 * rate / copy, human_bytes(copy)));
  }
  return out;
}

std::string percent(double share) { return fmt::format("{:.0f}%", 100 * share); }
std::string part_text(const PartShare& p) { return name_of(p.part) + (" " + percent(p.share)); }

/// What limits one kernel: the parts with a significant share.
std::string limits_of(const KernelEstimate& k, const GpuSpec& gpu) {
  std::vector<std::string> parts;
  for (const PartShare& part : k.parts) {
    if (parts.size() == 3 || (!parts.empty() && part.share < 0.1)) break;
    parts.push_back(part_text(part));
  }
  std::string out = listed(parts);
  if (k.blocks > 0 && k.sms < unsigned(gpu.sms)) {
    out += fmt::format("; {} block{} for {} SMs", k.blocks, k.blocks == 1 ? "" : "s", gpu.sms);
  }
  return out;
}

std::string estimate_in_words(const RunReport& r, const Pass& p) {
  const Estimate& e = *p.estimate;
  std::string words = fmt::format("{} on {}{}", human_time(1e3 * e.seconds), e.gpu,
                                  e.verified ? "" : " (unverified: never measured there)");
  if (p.time && r.device.name.find(e.gpu) != std::string::npos) {
    const double measured = 1e-3 * p.time->median_ms;
    words += fmt::format(", {:+.0f}% from measured", 100 * (e.seconds / measured - 1));
  } else if (!p.time && r.estimate_heads != r.problem.heads()) {
    words += fmt::format(", for {} heads", r.estimate_heads);
  }
  return words;
}

/// The kernels of an estimate, the longest first; kernels of one name together.
std::string estimate_section(const RunReport& r, const Pass& p) {
  // The screen already shows a measured time.
  std::string out = p.time ? labelled("kernels", "by the estimate:")
                           : labelled("estimated", estimate_in_words(r, p));
  std::vector<KernelEstimate> kernels = p.estimate->kernels;
  std::ranges::stable_sort(kernels, std::greater(), &KernelEstimate::seconds);
  for (const KernelEstimate& k : kernels) {
    out += wrapped(fmt::format("  {} {}: ", k.name, human_time(1e3 * k.seconds)),
                   limits_of(k, r.model), kLabel);
  }
  return out;
}

std::string time_section(const RunReport& r, const Pass& p) {
  std::string out;
  if (p.time) out += measured_time(r, p);
  if (p.estimate) {
    out += estimate_section(r, p);
  } else if (p.bound) {
    const bool simulated = r.device.kind == "sim";
    const double flops = double(p.flops_executed());
    const std::string arithmetic =
        flops == 0 ? ""
                   : fmt::format("{}FLOP {}, ", scaled(flops), human_time(p.bound->arithmetic_ms));
    out += labelled(
        "bound", fmt::format("at least {} on {}, a lower bound and not an estimate: {}HBM bytes {}",
                             human_time(p.bound->ms()), simulated ? r.model.name : "this card",
                             arithmetic, human_time(p.bound->memory_ms)));
  }
  if (p.host_ms) {
    out += labelled("host", fmt::format("the simulation took {}", human_time(*p.host_ms)));
  }
  return out;
}

std::string memory_line(const RunReport& r) {
  const std::string cache = r.cache.empty() ? "" : labelled("cache", r.cache);
  return cache +
         labelled("memory", fmt::format("workspace {} (naive step: {}); inputs and outputs {}",
                                        human_bytes(double(r.memory.workspace)),
                                        human_bytes(double(r.naive_workspace_bytes())),
                                        human_bytes(double(r.memory.inputs + r.memory.outputs))));
}

/// "kernel.cuh:42 K load 16 B" of a site whose `what` is "K load128": a lane's bytes, not its bits.
std::string site_name(const SiteCount& s) {
  const size_t bits = s.what.find_last_not_of("0123456789") + 1;
  const std::string width = s.what.substr(bits);
  std::string name = s.where + " " + s.what.substr(0, bits);
  if (!width.empty()) name += fmt::format(" {} B", std::stoul(width) / 8);
  return name;
}

/// The source line with the largest share of the pass's limiting part, where lines are counted.
std::string limiting_line(const Pass& p) {
  if (!p.estimate) return "";
  const Part limit = p.estimate->limit();
  if (limit != Part::l1 && limit != Part::shared) return "";
  std::map<std::string, uint64_t> lines;
  uint64_t all = 0;
  for (const SiteCount& s : p.seen.sites) {
    if (s.what.starts_with("shared ") != (limit == Part::shared)) continue;
    lines[s.where] += s.clocks;
    all += s.clocks;
  }
  if (all == 0) return "";
  const auto most =
      std::ranges::max_element(lines, {}, [](const auto& line) { return line.second; });
  return labelled("limit", fmt::format("{} takes {} of the clocks of {}, which limits the pass",
                                       most->first, percent(double(most->second) / double(all)),
                                       limit == Part::l1 ? "the L1" : "shared memory"));
}

/// The load of shared memory while the tensor cores work. A wavefront takes a clock, so near 100%
/// shared memory is also a limit. The estimate omits products' operands and TMA.
std::string shared_memory_line(const Pass& p, const GpuSpec& model) {
  uint64_t columns = 0, operands = 0, copies = 0, rest = 0;
  for (const KernelCount& k : p.seen.kernels) {
    for (const BlockWork& w : k.work) columns += w.wgmma_columns;
    operands += k.wgmma_wavefronts;
    rest += k.shared_wavefronts + k.shuffles;
  }
  for (const SiteCount& s : p.seen.sites) {
    if (s.what.starts_with("shared TMA")) copies += s.transfers;
  }
  if (columns == 0) return "";
  const double clocks = double(columns) / product_columns(model);
  const uint64_t all = operands + copies + rest;
  return labelled(
      "shared", fmt::format("{} wavefronts (products' operands {}, TMA {}, all else {}) beside {} "
                            "clocks of the tensor cores: {}",
                            grouped(all), grouped(operands), grouped(copies), grouped(rest),
                            grouped(uint64_t(clocks)), percent(double(all) / clocks)));
}

/// Worst first: most transfers above the minimum.
std::string analysis_section(const Pass& p, const GpuSpec& model) {
  std::vector<SiteCount> sites = p.seen.sites;
  std::stable_sort(sites.begin(), sites.end(), [](const SiteCount& a, const SiteCount& b) {
    const auto excess = [](const SiteCount& s) {
      return s.transfers > s.ideal ? s.transfers - s.ideal : 0;
    };
    return std::pair(excess(a), a.transfers) > std::pair(excess(b), b.transfers);
  });
  std::vector<std::array<std::string, 5>> rows = {
      {p.name + ", by source line", "requests", "transfers", "ideal", "/request"}};
  for (size_t i = 0; i < std::min(sites.size(), kSiteRows); ++i) {
    const SiteCount& s = sites[i];
    rows.push_back({"  " + site_name(s), grouped(s.requests), grouped(s.transfers),
                    s.transfers > s.ideal ? grouped(s.ideal) : "=",
                    per_request(s.transfers, s.requests)});
  }
  std::array<size_t, 5> width{};  // of the figures; the name gets the rest of the screen
  for (const auto& row : rows) {
    for (size_t i = 1; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::string out = "\n";
  for (const auto& row : rows) {
    std::string figures = fmt::format("{:>{}}", row[1], width[1]);
    for (size_t i = 2; i < row.size(); ++i) figures += fmt::format("  {:>{}}", row[i], width[i]);
    out += beside(row[0], figures, kScreenWidth) + "\n";
  }
  if (sites.size() > kSiteRows) {
    out += fmt::format("  and {} more; --json has all\n", sites.size() - kSiteRows);
  }
  return out + limiting_line(p) + shared_memory_line(p, model);
}

std::string analysis_words() {
  return wrapped("  ",
                 "load 4 B: each lane of the warp loads 4 bytes. Transfers: sectors of 32 bytes "
                 "(global memory) or wavefronts of 32 banks (shared memory). Ideal: the fewest "
                 "transfers that could move the same bytes; = where there are no more.",
                 2);
}

/// Remarks: nothing in them is wrong.
std::string remarks_of(const Pass& p) {
  std::string out;
  const std::vector<std::string>& all = p.seen.remarks;
  for (size_t i = 0; i < std::min(all.size(), kRemarks); ++i) out += labelled("remark", all[i]);
  if (all.size() > kRemarks) {
    out += labelled("", fmt::format("and {} more; --json has all", all.size() - kRemarks));
  }
  return out;
}

/// The verdict's words on the bytes of a correct run.
std::string predictions_in_words(const RunReport& r) {
  std::string predicted, others;
  for (const Pass* pass : r.passes()) {
    std::string& words = pass->predicts ? predicted : others;
    words += (words.empty() ? " in the " : " and the ") + pass->name;
  }
  if (predicted.empty()) return "; no bytes were predicted";
  const std::string words = "; predicted and counted bytes agree";
  return others.empty() ? words : words + predicted + ", and not predicted" + others;
}

std::string reason(const RunReport& r) {
  if (r.predicted_only) return "";
  if (!r.findings.empty()) {
    std::string out;
    for (const std::string& f : r.findings) out += wrapped("finding: ", f, 2);
    return out;
  }
  if (!r.check.ok() && !r.check.lost()) {
    return labelled("WRONG", "an error is larger than allowed; see check below");
  }
  if (!r.again.value_or("").empty()) {
    return labelled("WRONG",
                    "the first run is right and a later one is not: it depends on what an "
                    "earlier run left behind; see check below");
  }
  if (r.not_checkable()) {
    return wrapped(
        "not checkable: ",
        "the scores lose their precision. With these inputs a right kernel may be off by as "
        "much, so this run is neither right nor wrong; make Q or K smaller.",
        2);
  }
  if (!r.ok()) {
    return labelled("WRONG", "the result is right, but the prediction differs from the count");
  }
  std::string words = "all errors are within tolerance";
  if (r.on_ranks) {
    words += "; each rank sent as many bytes as predicted; a second forward had the same bits";
  } else if (r.forward.counted()) {
    words += predictions_in_words(r);
  }
  std::string out = labelled("right", words + ".");
  if (r.analysed) out += labelled("analysis", "no finding: no race, no uninitialised read.");
  for (const Pass* pass : r.passes()) out += remarks_of(*pass);
  return out;
}

// --- the screen: the answer, and what a reader of a step needs first -----------------------------

bool has_figures(const RunReport& r) { return r.findings.empty() && !r.on_ranks; }

/// The bytes of each pass, measured or counted; all predicted where a pass has only a prediction.
struct PassBytes {
  bool predicted = false;
  std::vector<std::optional<Bytes>> of;  // nothing: not known
};

PassBytes bytes_of_passes(const RunReport& r, std::optional<Bytes> Counts::*seen,
                          Bytes (*predicted)(const Pass&)) {
  const std::vector<const Pass*> all = r.passes();
  PassBytes bytes;
  bytes.predicted = std::ranges::any_of(
      all, [&](const Pass* pass) { return pass->predicts && !(pass->seen.*seen); });
  for (const Pass* pass : all) {
    bytes.of.push_back(!bytes.predicted ? pass->seen.*seen
                       : pass->predicts ? std::optional(predicted(*pass))
                                        : std::nullopt);
  }
  return bytes;
}

PassBytes requested_of(const RunReport& r) {
  return bytes_of_passes(r, &Counts::requested, [](const Pass& p) { return p.predicted.total(); });
}

PassBytes hbm_of(const RunReport& r) {
  return bytes_of_passes(r, &Counts::hbm, [](const Pass& p) { return p.predicted.hbm; });
}

std::string hbm_in_words(const RunReport& r) {
  if (!has_figures(r)) return "";
  const PassBytes hbm = hbm_of(r);
  double bytes = 0;
  for (const std::optional<Bytes>& pass : hbm.of) {
    if (!pass) return "";
    bytes += double(pass->total());
  }
  return fmt::format("{}HBM {}", hbm.predicted ? "predicted " : "", human_bytes(bytes));
}

/// The sum over all passes; nothing where one pass has no value.
std::optional<double> sum_of(const RunReport& r, auto&& ms_of) {
  double all = 0;
  for (const Pass* pass : r.passes()) {
    const std::optional<double> ms = ms_of(*pass);
    if (!ms) return std::nullopt;
    all += *ms;
  }
  return all;
}

std::optional<double> measured_ms(const Pass& p) {
  return p.time ? std::optional(p.time->median_ms) : std::nullopt;
}
std::optional<double> estimated_ms(const Pass& p) {
  return p.estimate ? std::optional(1e3 * p.estimate->seconds) : std::nullopt;
}
std::optional<double> bound_ms(const Pass& p) {
  return p.bound ? std::optional(p.bound->ms()) : std::nullopt;
}

std::string time_in_words(const RunReport& r) {
  if (r.on_ranks) return ranks_time(r);
  if (!has_figures(r)) return "";
  if (const auto ms = sum_of(r, measured_ms)) return human_time(*ms) + " measured";
  if (const auto ms = sum_of(r, estimated_ms)) return human_time(*ms) + " estimated";
  if (const auto ms = sum_of(r, bound_ms)) return "at least " + human_time(*ms);
  return "";
}

/// What limits the kernel that takes longest by the estimates of these passes; null without one.
const PartShare* limit_of(const std::vector<const Pass*>& passes) {
  const KernelEstimate* longest = nullptr;
  for (const Pass* pass : passes) {
    const KernelEstimate* k = pass->estimate ? pass->estimate->longest() : nullptr;
    if (k && (!longest || k->seconds > longest->seconds)) longest = k;
  }
  return longest && !longest->parts.empty() ? &longest->parts.front() : nullptr;
}

std::string limit_in_words(const RunReport& r) {
  if (r.on_ranks) return ranks_limit(r);
  const PartShare* limit = has_figures(r) ? limit_of(r.passes()) : nullptr;
  return limit ? std::string("limited by ") + name_of(limit->part) : "";
}

std::string verdict(const RunReport& r) {
  if (r.predicted_only) return "not run";
  return r.ok() ? "right" : r.not_checkable() ? "not checkable" : "WRONG";
}

/// One line: what ran, the verdict, HBM, the time and what limits it.
std::string answer(const RunReport& r, bool colour) {
  const bool numbered = r.step.size() > 2 && std::isdigit(r.step[0]) && r.step[2] == '_';
  std::string start = (numbered ? r.step.substr(0, 2) : r.step) + " " + r.variant;
  if (r.on_ranks) start += fmt::format(" x {}", r.on_ranks->ranks.size());
  start += ": ";
  std::vector<std::string> words = {verdict(r), r.on_ranks ? ranks_sent(r) : hbm_in_words(r),
                                    time_in_words(r), limit_in_words(r)};
  std::erase(words, "");
  std::string out = wrapped(start, listed(words), 2);
  if (!colour) return out;
  out.pop_back();
  const char* const paint = r.predicted_only || r.not_checkable() ? ""
                            : r.ok()                              ? "\033[32m"
                                                                  : "\033[31m";
  const size_t at = start.size(), size = verdict(r).size();
  return "\033[1m" + out.substr(0, at) + paint + out.substr(at, size) + "\033[39m" +
         out.substr(at + size) + "\033[0m\n";
}

std::string head(const RunReport& r) {
  std::string out = wrapped(r.step + "  ", r.idea, kLabel);
  out += labelled("variant", r.variant + ": " + r.variant_idea);
  if (r.predicted_only) return out + labelled("problem", describe(r.problem));
  const std::string input = r.input_note.empty() ? r.input + " input" : r.input_note;
  out += labelled("problem", fmt::format("{}; {}, seed {}", describe(r.problem), input, r.seed));
  std::string device = fmt::format("{} ({})", r.device.name, r.device.arch);
  if (r.device.kind == "sim") {
    device = fmt::format("{}, modelling {}", r.device.name, r.model.name);
    if (r.forward.estimate && !r.forward.estimate->verified) {
      device += " (unverified: never measured there)";
    }
    if (r.findings.empty() && more_heads_estimated(r)) {
      device +=
          fmt::format(": time of {} heads{}; bytes of the {} that ran", r.estimate_heads,
                      r.estimate_heads < kFullGpuHeads ? "" : ", which fill it", r.problem.heads());
    }
  }
  return out + labelled("device", device);
}

/// Does the screen show every error, not only the share of its bound?
bool errors_on_screen(const RunReport& r) { return !r.check.ok() || !r.again.value_or("").empty(); }

/// The largest error of each tensor; the whole table where one is too large.
std::string check_line(const RunReport& r) {
  if (errors_on_screen(r)) return check_section(r);
  std::vector<std::string> shares;
  for (const TensorCheck& t : r.check.tensors) shares.push_back(t.tensor + " " + share_of(t.used));
  return labelled("check", listed(shares) + " of the allowed error" +
                               (r.check.complete ? "" : ", in a sample of the rows"));
}

struct Rate {
  double per_s = 0;      ///< 0: not known
  bool products = true;  ///< else bytes
  double share = 0;      ///< of measured_rate(); 0: not known
};
Rate rate_of(const RunReport& r, const Pass& p) {
  if (!p.time) return {};
  const bool products = p.flops > 0 && !moves_a_cache(r);
  const double per_s = (products ? p.flops : moved(p)) / (1e-3 * p.time->median_ms);
  const double peer = measured_rate(r, p).rate;
  return {per_s, products, peer > 0 ? per_s / peer : 0};
}
/// "12.3 TFLOP/s, 62%"; where a pass moves a cache, or has no products, "3.00 TB/s, 70%".
std::string rate_text(const Rate& rate) {
  if (rate.per_s <= 0) return "";
  return scaled(rate.per_s) + (rate.products ? "FLOP/s" : "B/s") +
         (rate.share > 0 ? ", " + percent(rate.share) : "");
}

std::string passes_table(const RunReport& r) {
  const bool sim = r.device.kind == "sim", timed = !r.predicted_only;
  const auto line = [&](const std::array<std::string, 7>& cells) {
    return trimmed(fmt::format("{:<9}{:>9}{:>9}{:>10}{:>9}{:>11}  {}", cells[0], cells[1], cells[2],
                               cells[3], cells[4], timed ? cells[5] : "", timed ? cells[6] : ""));
  };
  const std::vector<const Pass*> all = r.passes();
  const PassBytes requested = requested_of(r), hbm = hbm_of(r);
  const char* const peer = measured_rate(r, r.forward).by;
  const auto title = [](const char* of, const PassBytes& bytes) {
    return std::string(of) + (bytes.predicted ? ", predicted" : "");
  };
  std::string out = "\n" + trimmed(fmt::format("{:>8}{:^20}{:^18}", "",
                                               title("requested", requested), title("HBM", hbm)));
  out += line({"", "read", "written", "read", "written", sim ? "estimated" : "measured",
               sim ? "limited by" : fmt::format("rate, of {}", *peer ? peer : "a copy")});
  const auto bytes_text = [](const std::optional<Bytes>& b, bool written) {
    return !b ? "-" : human_bytes(double(written ? b->write + b->atomic : b->read));
  };
  for (size_t i = 0; i < all.size(); ++i) {
    const Pass& pass = *all[i];
    const std::optional<double> ms = sim ? estimated_ms(pass) : measured_ms(pass);
    const PartShare* most = limit_of({&pass});
    const std::string limit = !sim ? rate_text(rate_of(r, pass)) : most ? part_text(*most) : "";
    out += line({pass.name, bytes_text(requested.of[i], false), bytes_text(requested.of[i], true),
                 bytes_text(hbm.of[i], false), bytes_text(hbm.of[i], true),
                 ms ? human_time(*ms) : "-", limit});
  }
  return out;
}

/// The buffers of a pass that move the most bytes, as many as fit in a line.
std::string largest_buffers(const Pass& p) {
  std::vector<std::pair<uint64_t, std::string>> sizes;
  std::string words = p.name;
  if (!p.counted()) {
    words += ", predicted";
    for (const auto& [name, bytes] : p.predicted.buffers) sizes.emplace_back(bytes.total(), name);
  }
  for (const auto& [name, count] : p.seen.buffers) sizes.emplace_back(count.bytes.total(), name);
  std::ranges::stable_sort(sizes, std::greater(), &std::pair<uint64_t, std::string>::first);
  for (size_t i = 0; i < sizes.size(); ++i) {
    const std::string one =
        (i == 0 ? ": " : ", ") + sizes[i].second + " " + human_bytes(double(sizes[i].first));
    const size_t rest = i + 1 < sizes.size() ? 5 : 0;  // ", ..."
    if (kLabel + words.size() + one.size() + rest > kScreenWidth) return words + ", ...";
    words += one;
  }
  return words;
}

std::string passes_notes(const RunReport& r) {
  std::string out;
  const std::vector<const Pass*> all = r.passes();
  /// Paragraphs with one label, plus the pass's name where there are several passes.
  const auto each = [&](const char* label, auto&& words_of) {
    std::string first = label;
    for (const Pass* pass : all) {
      const std::string words = words_of(*pass);
      if (!words.empty()) out += labelled(std::exchange(first, ""), words);
    }
  };
  const auto which = [&](const Pass& p) { return all.size() > 1 ? p.name + " " : ""; };
  each("buffers", largest_buffers);
  each("note", [&](const Pass& p) { return p.seen.note.empty() ? "" : which(p) + p.seen.note; });
  if (!r.advice.empty()) out += labelled("note", r.advice);
  if (close_to_l2(r) && !r.predicted_only) {
    out += labelled("note", "near the L2's size, as here, modelled HBM bytes are least accurate");
  }
  each("estimated", [&](const Pass& p) {
    return p.time && p.estimate ? which(p) + estimate_in_words(r, p) : "";
  });
  each("change", [&](const Pass& p) { return p.parent ? which(p) + change_of(p) : ""; });
  for (const Pass* pass : all) {
    if (pass->prediction_ok() == false) out += requested_section(*pass);
  }
  const auto above = [&r](const Pass* pass) {
    const Rate rate = rate_of(r, *pass);
    return rate.products && rate.share > 1;
  };
  if (std::ranges::any_of(all, above)) {
    out += labelled("note",
                    "above 100%: cuBLAS multiplied 8192 x 8192 matrices back to back, at the clock "
                    "that this card's power allows such products. It is no limit of the hardware.");
  }
  const bool arithmetic = std::ranges::all_of(
      all, [](const Pass* pass) { return !pass->estimate || pass->estimate->arithmetic(); });
  if (arithmetic) return out;
  return out + labelled("note",
                        "the estimate is without plain arithmetic, which is not known of every "
                        "kernel here: a GPU may take longer");
}

std::string details_of(const RunReport& r) {
  std::string out;
  if (!r.forward_of.empty()) {
    out += labelled("forward", "that of " + r.forward_of + "; this variant changes the backward");
  }
  if (!r.predicted_only && !errors_on_screen(r)) out += check_section(r);
  if (r.on_ranks) return out + ranks_details(r);
  for (const Pass* pass : r.passes()) {
    // A wrong result on a GPU is neither counted nor timed.
    if (!r.predicted_only && !r.check.ok() && pass->seen.source.empty()) continue;
    const bool shown = pass->prediction_ok() == false;
    out += shown ? "\n" + pass->name + "\n" : requested_section(*pass);
    if (!r.predicted_only) out += hbm_section(r, *pass) + time_section(r, *pass);
  }
  return out;
}

std::string analysis(const RunReport& r) {
  std::string out;
  for (const Pass* pass : r.passes()) out += analysis_section(*pass, r.model);
  return out + analysis_words();
}

// --- JSON ---------------------------------------------------------------------------------------

using Json = nlohmann::ordered_json;

/// {"key": value, ...}, in this order.
void put(Json&) {}
void put(Json& j, const char* key, const auto& value, const auto&... more) {
  j[key] = value;
  put(j, more...);
}
Json object(const auto&... keys_and_values) {
  Json j;
  put(j, keys_and_values...);
  return j;
}

Json number(std::optional<double> x) { return x && std::isfinite(*x) ? Json(*x) : Json(nullptr); }
Json hbm_json(const Bytes& b) { return object("read", b.read, "write", b.write); }
template <class T>
Json or_null(const std::optional<T>& x) {
  return x ? to_json(*x) : Json(nullptr);
}

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json or_null(size_t x) { return x == 0 ? Json(nullptr) : Json(x); }

Json problem_json(const Problem& p) {
  Json j;
  for (const Size& size : kSizes) j[size.key()] = p.*size.of;
  put(j, "causal", p.causal, "dtype", name_of(p.dtype), "smem", or_null(p.method.smem), "lengths",
      p.cache.lengths.empty() ? Json(nullptr) : Json(p.cache.lengths), "page",
      or_null(p.cache.page), "cache8", p.cache.fp8);
  put_rare(p, j);
  return j;
}

/// Compares the lengths of the simulated problem, repeated over the batch. Older files have none.
bool same_lengths(const Json& simulated, const Problem& p) {
  const Json lengths = simulated.value("lengths", Json());
  if (lengths.empty() || p.cache.lengths.empty()) return lengths.empty() == p.cache.lengths.empty();
  for (size_t b = 0; b < p.cache.lengths.size(); ++b) {
    if (lengths.at(b % lengths.size()) != p.cache.lengths[b]) return false;
  }
  return p.cache.lengths.size() % lengths.size() == 0;
}

Json traffic_json(const Pass& p) {
  const auto predicted = [&p](const Json& j) { return p.predicts ? j : Json(nullptr); };
  Json buffers = Json::object();
  for (const auto& [name, bytes] : p.predicted.buffers) {
    buffers[name] = object("predicted", to_json(bytes), "counted",
                           p.counted() ? to_json(Bytes{}) : Json(nullptr));
  }
  for (const auto& [name, count] : p.seen.buffers) {
    if (!buffers.contains(name)) buffers[name]["predicted"] = predicted(to_json(Bytes{}));
    put(buffers[name], "counted", to_json(count.bytes), "requests", to_json(count.requests),
        "sectors", to_json(count.sectors));
  }
  Json per_element = Json::array();
  for (const PerElement& e : p.predicted.per_element) {
    per_element.push_back(object("kernel", e.kernel, "element", e.element, "elements", e.elements,
                                 "predicted", e.accesses, "counted",
                                 number(counted_per_element(e, p.seen))));
  }
  const Json seen_hbm = p.seen.hbm ? hbm_json(*p.seen.hbm) : Json(nullptr);
  const std::optional<Ops>& shared = p.seen.shared_wavefronts;
  const std::optional<bool> ok = p.prediction_ok();
  return object("per_element", per_element, "requested",
                object("predicted", predicted(to_json(p.predicted.total())), "counted",
                       p.counted() ? or_null(p.seen.requested) : Json(nullptr), "buffers", buffers),
                "requests", or_null(p.seen.requests), "sectors", or_null(p.seen.sectors), "lines",
                or_null(p.seen.lines), "shared_wavefronts",
                shared ? object("load", shared->load, "store", shared->store) : Json(nullptr),
                "hbm",
                object("predicted", predicted(hbm_json(p.predicted.hbm)), "model",
                       p.counted() ? seen_hbm : Json(nullptr), "measured",
                       p.measured() ? seen_hbm : Json(nullptr)),
                "prediction_ok", ok ? Json(*ok) : Json(nullptr), "note", text_or_null(p.seen.note));
}

Json kernels_json(const Pass& p) {
  if (p.seen.source.empty()) return nullptr;
  Json kernels = Json::array();
  for (const KernelCount& k : p.seen.kernels) {
    uint64_t instructions = 0;
    for (const BlockWork& w : k.work) instructions += w.instructions;
    const Json shared =
        object("read", k.shared_read, "write", k.shared_write, "requests", k.shared_requests,
               "wavefronts", k.shared_wavefronts, "ideal", k.shared_ideal, "load_wavefronts",
               k.load_wavefronts, "store_wavefronts", k.store_wavefronts, "wgmma_wavefronts",
               k.wgmma_wavefronts, "shuffles", k.shuffles);
    kernels.push_back(object("name", k.name, "blocks", k.blocks, "threads", k.threads, "bytes",
                             to_json(k.bytes), "requests", to_json(k.requests), "sectors",
                             to_json(k.sectors), "lines", to_json(k.lines), "instructions",
                             instructions, "shared", shared));
  }
  return kernels;
}

Json sites_json(const RunReport& r, const Pass& p) {
  if (!r.analysed) return nullptr;
  Json sites = Json::array();
  for (const SiteCount& s : p.seen.sites) {
    sites.push_back(to_json(s));
    sites.back()["clocks"] = s.clocks;
  }
  return sites;
}

Json pass_json(const RunReport& r, const Pass& p) {
  Json time = or_null(p.time), parent;
  if (p.time) time["bytes_per_s"] = number(p.bytes_per_s());
  if (p.parent) {
    const Json requested = object("predicted", to_json(p.parent->requested));
    parent = object("step", p.parent->id, "requested", requested);
  }
  return object("traffic", traffic_json(p), "kernels", kernels_json(p), "sites", sites_json(r, p),
                "remarks", r.analysed ? Json(p.seen.remarks) : Json(nullptr), "time", time,
                "estimate", or_null(p.estimate), "bound_ms", number(bound_ms(p)), "host_ms",
                number(p.host_ms), "flops", p.flops, "flops_executed", p.flops_executed(), "parent",
                parent);
}

Json check_json(const CheckResult& check) {
  Json tensors = Json::array();
  for (const TensorCheck& t : check.tensors) {
    tensors.push_back(object("tensor", t.tensor, "max_abs_err", number(t.max_abs_err), "bound",
                             number(t.bound), "used", number(t.used), "baseline_err",
                             number(t.baseline_err), "rmse", number(t.rmse), "rows_checked",
                             t.rows_checked, "rows_lost", t.rows_lost, "ok", t.ok, "message",
                             text_or_null(t.message)));
  }
  return tensors;
}

}  // namespace

std::optional<Bound> roofline(double hbm_bytes, double flops, double bytes_per_s,
                              double flops_per_s) {
  if (bytes_per_s <= 0 || (flops > 0 && flops_per_s <= 0)) return std::nullopt;
  return Bound{1e3 * hbm_bytes / bytes_per_s, flops > 0 ? 1e3 * flops / flops_per_s : 0};
}

std::optional<bool> Pass::prediction_ok() const {
  if (!counted() || !predicts) return std::nullopt;
  for (const PerElement& e : predicted.per_element) {
    if (counted_per_element(e, seen) != e.accesses) return false;
  }
  return differing_buffers(predicted, seen).empty();
}

uint64_t Pass::flops_executed() const {
  if (seen.tensor_flops.value_or(0) > 0) return *seen.tensor_flops;
  return predicts ? predicted.flops : static_cast<uint64_t>(flops);
}

std::optional<double> Pass::bytes_per_s() const {
  if (!time || !predicts || time->median_ms <= 0) return std::nullopt;
  return double(predicted.hbm.total()) / (1e-3 * time->median_ms);
}

std::vector<const Pass*> RunReport::passes() const {
  std::vector<const Pass*> found = {&forward};
  if (prepare) found.insert(found.begin(), &*prepare);
  if (backward) found.push_back(&*backward);
  return found;
}

bool RunReport::not_wrong() const {
  return findings.empty() && again.value_or("").empty() &&
         (!on_ranks || on_ranks->as_predicted()) &&
         std::ranges::all_of(passes(),
                             [](const Pass* pass) { return pass->prediction_ok().value_or(true); });
}

bool RunReport::ok() const { return check.ok() && not_wrong(); }
bool RunReport::not_checkable() const { return check.lost() && not_wrong(); }

uint64_t RunReport::naive_workspace_bytes() const {
  return 2 * problem.scores() * bytes_of(problem.dtype);
}

std::string text(const RunReport& r, const Screen& screen) {
  std::string out = answer(r, screen.colour) + reason(r) + "\n" + head(r);
  if (!r.findings.empty()) return out;
  if (!r.predicted_only) out += check_line(r);
  if (r.on_ranks) {
    out += ranks_screen(r);
  } else {
    out += passes_table(r) + passes_notes(r) + memory_line(r);
  }
  if (screen.details) {
    out += details_of(r);
  } else {
    const bool unseen = r.device.kind == "sim" && !r.analysed && !r.on_ranks && !r.predicted_only;
    out += labelled("more", std::string("--details: errors, bytes, kernels") +
                                (unseen ? "; --analyse: races and source lines" : ""));
  }
  if (r.analysed) out += analysis(r);
  return out;
}

Json to_json(const Timing& t) {
  return object("median_ms", number(t.median_ms), "p10_ms", number(t.p10_ms), "p90_ms",
                number(t.p90_ms), "iters", t.iters);
}
Json to_json(const RunReport& r) {
  const bool gpu = r.device.kind == "gpu";
  Json device = object("kind", r.device.kind, "name", r.device.name, "arch", r.device.arch);
  if (gpu) put(device, "sms", r.device.sms, "free_bytes", r.device.free_bytes);
  Json problem = problem_json(r.problem), again, roofs;
  put(problem, "input", r.input, "input_note", text_or_null(r.input_note), "seed", r.seed);
  if (r.again) again = object("ok", r.again->empty(), "message", text_or_null(*r.again));
  if (r.roofs) {
    roofs =
        object("copy_bytes_per_s", r.roofs->copy_bytes_per_s, "fp32_flops", r.roofs->fp32_flops,
               "bf16_flops", r.roofs->bf16_flops, "fp32_matmul_flops", r.roofs->fp32_matmul_flops);
  }
  Json j =
      object("schema", kReportSchema, "step", r.step, "idea", r.idea, "variant", r.variant,
             "variant_index", r.variant_index, "variant_idea", r.variant_idea, "forward_of",
             text_or_null(r.forward_of), "fp8", r.problem.method.fp8, "device", device, "model_gpu",
             r.device.kind == "sim" ? Json(r.model.name) : Json(nullptr), "problem", problem,
             "estimate_heads", r.forward.estimate ? Json(r.estimate_heads) : Json(nullptr), "check",
             check_json(r.check), "check_complete", r.check.complete, "checkable",
             !r.not_checkable(), "check_again", again, "damage", r.check.damage, "finding",
             r.findings.empty() ? Json(nullptr) : Json(r.findings[0]), "findings", r.findings);
  j.update(pass_json(r, r.forward));
  put(j, "prepare", r.prepare ? pass_json(r, *r.prepare) : Json(nullptr), "backward",
      r.backward ? pass_json(r, *r.backward) : Json(nullptr), "workspace_bytes", r.memory.workspace,
      "naive_workspace_bytes", r.naive_workspace_bytes(), "roofs", roofs, "rate_of",
      r.roofs ? text_or_null(measured_rate(r, r.forward).by) : Json(nullptr), "ok",
      r.predicted_only ? Json(nullptr) : Json(r.ok()));
  if (r.on_ranks) add_ranks(j, r);
  return j;
}

void read_estimates(const std::string& path, RunReport& r) {
  const auto refuse = [&path](const std::string& why) {
    fa::refuse("--estimate {}: {}", path, why);
  };
  const std::string text = read_file(path);
  try {
    const Json j = Json::parse(text);
    if (j.at("estimate_heads").is_null()) refuse("holds no estimated time");
    const Problem& p = r.problem;
    const Json &simulated = j.at("problem"), wanted = problem_json(p);
    const char* const keys[] = {"n",    "nk",     "d",          "causal",     "smem",
                                "page", "window", "row_starts", "key_starts", "mask",
                                "cap",  "alibi",  "sinks"};
    const bool same_problem = std::ranges::all_of(keys, [&](const char* key) {
      return simulated.value(key, Json()) == wanted.value(key, Json());
    });
    // The simulator may have run fewer heads, with as many query heads per head of K and V.
    const bool same_groups =
        simulated.at("h").get<int64_t>() * p.Hkv == simulated.at("hkv").get<int64_t>() * p.H;
    if (j.at("step") != r.step || j.at("variant") != r.variant || !same_problem ||
        !same_lengths(simulated, p) || !same_groups ||
        j.at("estimate_heads").get<uint64_t>() != p.heads()) {
      refuse(fmt::format("is of another step, variant or problem: {} {}, {} heads",
                         j.at("step").get<std::string>(), j.at("variant").get<std::string>(),
                         j.at("estimate_heads").get<uint64_t>()));
    }
    r.estimate_heads = p.heads();
    if (r.prepare) r.prepare->estimate = estimate_of(j.at("prepare").at("estimate"));
    r.forward.estimate = estimate_of(j.at("estimate"));
    if (r.backward) r.backward->estimate = estimate_of(j.at("backward").at("estimate"));
  } catch (const Json::exception& e) {
    refuse(std::string("is not a report of the simulator: ") + e.what());
  }
}

}  // namespace fa

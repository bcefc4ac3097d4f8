#include <cmath>

#include "common/counts/backend.h"
#include "common/dialect/cuda.h"
#include "common/dialect/errors.h"
#include "common/gpu/l2_flush.h"
#include "common/gpu/range_profiler.h"
#include "common/gpu/under_tool.h"

namespace fa {

namespace {

using Values = std::map<std::string, double>;

// Names as in `ncu --query-metrics`. Paths are kept apart: LSU (loads, stores and cp.async), RED
// (atomics without a result), ATOM (atomics with one) and TMA.
#define LSU_GLOBAL(what, op) "l1tex__t_" what "_pipe_lsu_mem_global_op_" op ".sum"
#define LSU_SHARED(op) "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_" op ".sum"

const std::vector<std::string> kStepMetrics = {
    LSU_GLOBAL("requests", "ld"),
    LSU_GLOBAL("requests", "st"),
    LSU_GLOBAL("requests", "red"),
    LSU_GLOBAL("requests", "atom"),
    LSU_GLOBAL("sectors", "ld"),
    LSU_GLOBAL("sectors", "st"),
    LSU_GLOBAL("sectors", "red"),
    LSU_GLOBAL("sectors", "atom"),
    LSU_GLOBAL("set_accesses", "ld"),
    LSU_GLOBAL("set_accesses", "st"),
    LSU_GLOBAL("set_accesses", "red"),
    LSU_GLOBAL("set_accesses", "atom"),
    "l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum",
    "l1tex__m_l1tex2xbar_write_bytes_mem_global_op_tma_st.sum",
    "l1tex__m_l1tex2xbar_write_bytes_mem_global_op_tma_red.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    LSU_SHARED("ld"),
    LSU_SHARED("st"),
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "lts__t_bytes.sum",
    "gpu__time_duration.sum",
};
const std::vector<std::string> kDramRead = {"dram__bytes_read.sum",
                                            "dram__bytes_op_read.sum"};  // on consumer Blackwell
const std::vector<std::string> kDramWrite = {"dram__bytes_write.sum", "dram__bytes_op_write.sum"};

/// Both, even where one would do: the same metrics need no second profiler.
const std::vector<std::string> kDram = {kDramRead[0], kDramRead[1], kDramWrite[0], kDramWrite[1]};

std::optional<uint64_t> find(const Values& values, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const auto it = values.find(name);
    if (it != values.end()) return static_cast<uint64_t>(std::llround(it->second));
  }
  return std::nullopt;
}

uint64_t find_or_0(const Values& values, const char* name) {
  return find(values, {name}).value_or(0);
}

// Ordinary loads and cp.async together: both count as "ld", exactly so on an H200, in requests and
// sectors. The separate names of cp.async count part of the same again.
std::optional<Ops> ops_of(const Values& v, const char* load, const char* store, const char* red,
                          const char* atom) {
  if (!v.count(load)) return std::nullopt;
  return Ops{find_or_0(v, load), find_or_0(v, store), find_or_0(v, red) + find_or_0(v, atom)};
}
std::optional<Ops> requests_of(const Values& v) {
  return ops_of(v, LSU_GLOBAL("requests", "ld"), LSU_GLOBAL("requests", "st"),
                LSU_GLOBAL("requests", "red"), LSU_GLOBAL("requests", "atom"));
}
std::optional<Ops> sectors_of(const Values& v) {
  return ops_of(v, LSU_GLOBAL("sectors", "ld"), LSU_GLOBAL("sectors", "st"),
                LSU_GLOBAL("sectors", "red"), LSU_GLOBAL("sectors", "atom"));
}
std::optional<Ops> lines_of(const Values& v) {
  return ops_of(v, LSU_GLOBAL("set_accesses", "ld"), LSU_GLOBAL("set_accesses", "st"),
                LSU_GLOBAL("set_accesses", "red"), LSU_GLOBAL("set_accesses", "atom"));
}
std::optional<Ops> shared_wavefronts_of(const Values& v) {
  return ops_of(v, LSU_SHARED("ld"), LSU_SHARED("st"), "", "");
}

void add_note(Counts& counts, const std::string& sentence) {
  counts.note += (counts.note.empty() ? "" : "; ") + sentence;
}

void measure(const std::function<void()>& run, bool only_hbm, Counts& counts) {
  gpu::RangeProfiler profiler;
  const gpu::L2Sweep l2_sweep;
  const auto sweep = [&] { l2_sweep(); };

  // Everything but the DRAM writes: a range that contains only the step, after a sweep.
  Values v;
  if (!only_hbm) v = profiler.measure(kStepMetrics, sweep, run);
  const Values dram = profiler.measure(kDram, sweep, run);
  for (const std::string& name : kDramRead) {
    if (dram.count(name)) v[name] = dram.at(name);
  }
  // A step's results are written to DRAM when they are evicted: step and sweep, minus the sweep.
  const auto step_and_sweep = [&] {
    run();
    sweep();
  };
  const auto with_step = find(profiler.measure(kDram, sweep, step_and_sweep), kDramWrite);
  static const auto alone = find(profiler.measure(kDram, sweep, sweep), kDramWrite);

  const auto read = find(v, kDramRead);
  if (read && with_step && alone) {
    counts.hbm = Bytes{*read, *with_step > *alone ? *with_step - *alone : 0, 0};
  } else {
    add_note(counts, "this chip has no DRAM counters");
  }
  counts.requests = requests_of(v);
  counts.sectors = sectors_of(v);
  counts.lines = lines_of(v);
  counts.shared_wavefronts = shared_wavefronts_of(v);
  if (!counts.requests && !only_hbm)
    add_note(counts, "this chip has no counters of global requests");
  for (const auto& [name, value] : v) counts.metrics[name] = static_cast<uint64_t>(value + 0.5);
}

}  // namespace

Counts count(const std::function<void()>& run, const CountOptions& options) {
  Counts counts;
  counts.source = "measured";
  try {
    if (!options.counters) throw gpu::NoCounters("hardware counters were not asked for");
    if (gpu::under_tool()) {
      throw gpu::NoCounters("no hardware counters while another tool watches this program");
    }
    measure(run, options.only_hbm, counts);
  } catch (const gpu::NoCounters& e) {
    counts.note = e.what();
    run();                            // the caller relies on one run
  } catch (const ResourceError& e) {  // no room for the sweep
    counts.note = std::string("no hardware counters: ") + e.what();
    run();
  }
  cuda_check(cudaDeviceSynchronize());
  return counts;
}

}  // namespace fa

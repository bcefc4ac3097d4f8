#include "common/counts/estimate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <queue>

namespace fa {

namespace {

constexpr size_t kParts = static_cast<size_t>(Part::start) + 1;
using Times = std::array<double, kParts>;  // by Part
double& of(Times& t, Part p) { return t[static_cast<size_t>(p)]; }

// Parallel parts hide some of each other's time: the root of the sum of squares, less than the sum.
double together(std::initializer_list<double> times) {
  double sum = 0;
  for (const double t : times) sum += t * t;
  return std::sqrt(sum);
}

struct Machine {
  const ClockFigures& figures;
  double sms = 0, clock = 0, loaded_clock = 0;
  double fma = 0, mma = 0, wgmma_columns = 0, l2_bytes_per_s = 0, hbm_bytes_per_s = 0;
};

Machine machine_of(const GpuSpec& g) {
  const ClockFigures& c = clock_figures(g.name);
  const bool narrow = g.arch == "sm_70" || g.arch == "sm_75" || g.arch == "sm_80";
  const double lanes = narrow ? 64 : 128;  // fp32, per SM
  Machine m{c};
  m.sms = g.sms;
  m.clock = g.fp32_flops / (g.sms * lanes * 2);
  const bool hopper = g.arch == "sm_90";
  m.loaded_clock = hopper ? std::min(c.loaded_clock, m.clock) : m.clock;
  m.fma = c.fma * lanes / 128;
  const double mma_flops = 2 * 16 * 8 * 16;
  const ClockFigures::Machine& measured = c.measured_on;
  const double measured_flops =  // per SM and clock, by the data sheet
      measured.bf16_flops / measured.fp32_flops * 256;
  // A GPU without bf16 tensor cores multiplies in its CUDA cores.
  const double multiply_flops = std::max(g.bf16_flops, g.fp32_flops);
  const double flops = multiply_flops / (g.sms * m.clock);
  m.mma = hopper ? c.mma * flops / measured_flops : flops / mma_flops;
  m.wgmma_columns = hopper ? c.wgmma_columns * flops / measured_flops : c.wgmma_columns;
  if (g.arch == "sm_100") {  // only tcgen05 reaches the data sheet's rate
    m.mma = c.mma;           // an assumption: as on Hopper
    m.wgmma_columns = product_columns(g);
    m.loaded_clock = std::min(m.clock, g.bf16_flops / (g.sms * m.wgmma_columns * 2 * 64 * 16));
  }
  m.l2_bytes_per_s = c.l2_bytes_per_second * g.sms * m.clock / (measured.sms * measured.clock);
  m.hbm_bytes_per_s = c.hbm_share * g.hbm_bytes_per_s;
  return m;
}

Times times_of(const BlockWork& w, const InstructionMix& mix, const Machine& m) {
  const ClockFigures& c = m.figures;
  const double n = static_cast<double>(w.instructions);
  Times t{};
  of(t, Part::l1) = static_cast<double>(w.lines) / c.data_pipe;
  of(t, Part::shared) = static_cast<double>(w.wavefronts) / c.data_pipe;
  of(t, Part::instructions) = n * std::max({mix.all / c.issue, mix.fma / m.fma, mix.alu / c.alu});
  of(t, Part::exponentials) = n * mix.special / c.special;
  of(t, Part::tensor) = (w.mma ? static_cast<double>(w.mma) / m.mma : 0) +
                        static_cast<double>(w.wgmma_columns) / m.wgmma_columns;
  of(t, Part::atomics) = static_cast<double>(w.atomic_lines) / c.reduction;
  return t;
}

double busy(Times& t) {
  return together({of(t, Part::l1) + of(t, Part::shared), of(t, Part::instructions),
                   of(t, Part::exponentials), of(t, Part::tensor), of(t, Part::atomics)});
}

// Clocks that a block waits beyond its warps' work. `from_hbm`: share of fetches missing the L2.
double waiting(const BlockWork& w, const InstructionMix& mix, const ClockFigures& c, double warps,
               double from_hbm) {
  const double mine = static_cast<double>(w.instructions) * mix.all / warps;
  const double per_instruction = c.dependent_latency / c.independent_chains;  // of one warp alone
  const double side_by_side = warps / c.issue;
  const double farther = static_cast<double>(w.fetches) * from_hbm * (c.hbm_latency - c.l2_latency);
  return c.block_start + w.latency + farther + mine * std::max(0.0, per_instruction - side_by_side);
}

// How long a block is resident when `resident` blocks share an SM, each alternating between `busy`
// clocks of work and `waiting` clocks: mean value analysis of the machine-repairman model.
double stay(double busy, double waiting, unsigned resident) {
  double queue = 0, here = busy;
  for (unsigned n = 1; n <= resident; ++n) {
    here = busy * (1 + queue);
    queue = n / (here + waiting) * here;
  }
  return here + waiting;
}

// The end of the last block: each block, in the grid's order, takes the first free place.
double last_end(const std::vector<double>& stays, double times, size_t places) {
  constexpr double kMany = 3e5;
  const double blocks = static_cast<double>(stays.size()) * times;
  const double sum = std::accumulate(stays.begin(), stays.end(), 0.0) * times;
  if (blocks > kMany) {
    return sum / static_cast<double>(places) + *std::max_element(stays.begin(), stays.end()) / 2;
  }
  std::priority_queue<double, std::vector<double>, std::greater<>> free;
  double end = 0;
  for (size_t i = 0; i < static_cast<size_t>(std::llround(blocks)); ++i) {
    double begin = 0;
    if (free.size() == places) {
      begin = free.top();
      free.pop();
    }
    free.push(begin + stays[i % stays.size()]);
    end = std::max(end, begin + stays[i % stays.size()]);
  }
  return end;
}

std::string bare(const std::string& kernel) {
  const std::string name = kernel.substr(0, kernel.find('<'));
  const size_t scope = name.rfind("::");
  return name.substr(scope == std::string::npos ? 0 : scope + 2);
}

void rank(KernelEstimate& k, Times& seconds) {
  for (size_t i = 0; i < kParts; ++i) {
    if (seconds[i] > 0) k.parts.push_back({static_cast<Part>(i), seconds[i] / k.seconds});
  }
  std::stable_sort(k.parts.begin(), k.parts.end(),
                   [](const PartShare& a, const PartShare& b) { return a.share > b.share; });
}

KernelEstimate estimate_copy(const KernelCount& c, const Machine& m, double times) {
  KernelEstimate k;
  k.name = c.name;
  Times t{};
  of(t, Part::hbm) = static_cast<double>(c.bytes.total()) * times / m.hbm_bytes_per_s;
  of(t, Part::start) = m.figures.launch_seconds;
  k.seconds = of(t, Part::hbm) + m.figures.launch_seconds;
  rank(k, t);
  return k;
}

KernelEstimate estimate_kernel(const KernelCount& c, const Machine& m, double times) {
  KernelEstimate k;
  k.name = bare(c.name);
  const std::optional<InstructionMix> known = instruction_mix(c.name);
  const InstructionMix mix = known.value_or(InstructionMix{});
  k.arithmetic = known.has_value();
  const double count = static_cast<double>(c.work.size()), blocks = count * times;
  // Persistent blocks are as many as SMs, whatever the number of heads.
  const bool shares = c.persistent && times > 1;
  k.blocks = static_cast<uint64_t>(shares ? m.sms : std::llround(blocks));
  k.sms = static_cast<unsigned>(shares ? m.sms : std::min(m.sms, std::ceil(blocks)));
  const double warps = std::max(1.0, std::ceil(static_cast<double>(c.threads) / count / 32));
  const double per_sm = std::ceil(blocks / m.sms);
  const unsigned resident =
      static_cast<unsigned>(std::max(1.0, std::min(static_cast<double>(c.resident), per_sm)));

  double l2_bytes = 0;
  for (const BlockWork& w : c.work) l2_bytes += static_cast<double>(w.l2_bytes);
  const double from_hbm =
      l2_bytes > 0 ? std::min(1.0, static_cast<double>(c.hbm.read + c.hbm.write) / l2_bytes) : 0;

  Times sum{};
  double busy_sum = 0;
  std::vector<double> stays;
  stays.reserve(c.work.size());
  for (const BlockWork& w : c.work) {
    Times t = times_of(w, mix, m);
    const double b = busy(t);
    stays.push_back(stay(b, waiting(w, mix, m.figures, warps, from_hbm), resident));
    for (size_t i = 0; i < kParts; ++i) sum[i] += t[i];
    busy_sum += b;
  }
  // The clock falls with the share of the SMs whose tensor cores work.
  const double loaded = of(sum, Part::tensor) > 0 ? k.sms / m.sms : 0;
  const double clock = m.clock - loaded * (m.clock - m.loaded_clock);
  // An SM starts blocks one at a time, however many it holds.
  const double starts = std::ceil(blocks / m.sms) * m.figures.block_start;
  const double walks = (shares ? std::accumulate(stays.begin(), stays.end(), 0.0) * times / m.sms
                               : last_end(stays, times, static_cast<size_t>(m.sms) * resident));
  const double sms = std::max(walks, starts) / clock;
  const double l2 = l2_bytes * times / m.l2_bytes_per_s;
  const double hbm = static_cast<double>(c.hbm.read + c.hbm.write) * times / m.hbm_bytes_per_s;
  k.seconds = std::max({sms, l2, hbm}) + m.figures.launch_seconds;

  // The parts' busy times, on an SM that has work; then the rest of that SM's time.
  Times t{};
  const double scale = times / k.sms / clock;
  for (size_t i = 0; i < kParts; ++i) t[i] = sum[i] * scale;
  of(t, Part::l2) = l2;
  of(t, Part::hbm) = hbm;
  of(t, Part::start) = m.figures.launch_seconds;
  of(t, Part::waiting) = std::max(0.0, sms - busy_sum * scale);
  rank(k, t);
  return k;
}

}  // namespace

std::optional<Estimate> estimate(const Counts& counted, const GpuSpec& gpu, double times) {
  const Machine m = machine_of(gpu);
  Estimate e;
  e.gpu = gpu.name;
  const std::vector<std::string>& verified = m.figures.verified;  // docs/clock.md shows how well
  e.verified = std::find(verified.begin(), verified.end(), gpu.name) != verified.end();
  for (const KernelCount& c : counted.kernels) {
    if (c.work.empty() && c.buffer.empty()) return std::nullopt;
    e.kernels.push_back(c.buffer.empty() ? estimate_kernel(c, m, times)
                                         : estimate_copy(c, m, times));
    e.seconds += e.kernels.back().seconds;
  }
  if (e.kernels.empty()) return std::nullopt;
  e.seconds += m.figures.timing_seconds;
  return e;
}

}  // namespace fa

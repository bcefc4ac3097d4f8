// Groups the accesses of single threads into the requests of whole warps.
//
// On a GPU the lanes of a warp issue a load together. Here they run one after the other, each until
// it reaches a barrier or a shuffle. The n-th execution of an instruction (its address in the code)
// by one lane therefore belongs to the n-th by the other lanes, counted from the moment that the
// warp began to run; when the warp yields to another, its requests are complete and are counted.
//
// The first lane writes the log of requests; the others walk along it, and as long as all do the
// same, the next entry is theirs. A lane that takes another path falls out of step: from then on
// the executions of each instruction are counted, to find their entries.
//
// The n-th execution is the wrong partner when a lane skipped an iteration (`if (c < N)` in a
// loop): its later ones would be counted one iteration too early. Where lanes executed an
// instruction unequally often, they are aligned once more, by the distance between their addresses.
#include <algorithm>
#include <bit>
#include <map>

#include "common/counts/counts.h"
#include "common/sim/block.h"
#include "common/sim/memory/lazy_array.h"
#include "common/sim/memory/request_log.h"
#include "common/sim/messages/symbols.h"
#include "common/sim/observers/l2.h"
#include "common/sim/observers/warp_clocks.h"
#include "common/sim/observers/watchers.h"
#include "common/sim/sim.h"

namespace sim {

namespace {

constexpr unsigned kLanes = RequestLog::kLanes;
constexpr uint32_t kAllLanes = ~0u;
constexpr unsigned kSectorWords = kSector / kWord;
constexpr unsigned kUnrolled = 4;  // trips of a loop whose loads a compiler issues together
constexpr unsigned kWidest = 16;   // bytes that one instruction moves for a lane

/// One entry of the log, executed by all lanes that are in step to the log's end, and by `lanes`.
struct Request {
  uint32_t site = 0;   ///< number of the site
  uint32_t next = 0;   ///< number of the entry that follows
  uint32_t size = 0;   ///< bytes per lane
  uint32_t lanes = 0;  ///< that are not in step to the end
};

/// A number for each lane: the addresses of a request, or how often a site has been executed.
struct PerLane {
  uint32_t of[kLanes];
};

/// All executions of an instruction.
struct Site {
  Instruction instruction;
  const void* pc;
  uint32_t size;
  std::vector<uint32_t> entries;  ///< of the log, by occurrence
  uint64_t count = 0, transfers = 0, ideal = 0, clocks = 0;
  unsigned trips = 0;   ///< since the warp began to run
  bool waited = false;  ///< it was the first load
};

/// The latest request of a site, and its cost. A later one whose addresses are all shifted by the
/// same distance has the same cost if it begins at the same place of a line.
struct Pattern {
  uint32_t lanes = 0, size = 0, phase = 0;
  PerLane distance{};                           ///< from the first lane
  unsigned sectors = 0, lines = 0, clocks = 0;  ///< device memory
  uint32_t sector[kLanes] = {};                 ///< from the first lane's, in the lanes' order
  unsigned wavefronts = 0, ideal = 0;           ///< shared memory; ideal: of either
};

/// Users of shared memory without a request of a warp.
enum Engine { kWgmma, kTmaLoad, kTmaStore, kTensorProduct };
constexpr size_t kChunk = 16;  // contiguous bytes of an operand
struct EngineSite {
  uint64_t count = 0, wavefronts = 0;
};

struct PerBuffer {
  uint64_t requests[3] = {}, sectors[3] = {}, lines[3] = {};
};

// Keeps the first of equal numbers. \returns how many remain.
unsigned unique(uint32_t* at, unsigned n) {
  unsigned changes = 0, descents = 0;
  for (unsigned i = 1; i < n; ++i) {
    changes += at[i] != at[i - 1];
    descents += at[i] < at[i - 1];
  }
  if (changes == 0) return 1;
  if (descents == 0) return static_cast<unsigned>(std::unique(at, at + n) - at);
  uint64_t maybe = 0;  // a bit per low part: unset means certainly new
  unsigned out = 0;
  for (unsigned i = 0; i < n; ++i) {
    const uint64_t bit = uint64_t{1} << (at[i] & 63);
    if ((maybe & bit) && std::find(at, at + out, at[i]) != at + out) continue;
    maybe |= bit;
    at[out++] = at[i];
  }
  return out;
}

// Cycles in which 32 banks of 4 bytes deliver `width` words from each of n addresses: as many as
// the busiest bank has different words.
unsigned bank_cycles(const uint32_t* at, unsigned n, unsigned width) {
  uint32_t low = ~0u, high = 0;
  for (unsigned i = 0; i < n; ++i) {
    low = std::min(low, at[i] >> 2);
    high = std::max(high, at[i] >> 2);
  }
  if (high + width - 1 - low < 32) return 1;  // within 32 words no two share a bank
  uint32_t words[32][kLanes];
  uint8_t count[32] = {};
  unsigned busiest = 0;
  for (unsigned i = 0; i < n; ++i) {
    for (unsigned k = 0; k < width; ++k) {
      const uint32_t word = (at[i] >> 2) + k, bank = word & 31;
      uint32_t* end = words[bank] + count[bank];
      if (std::find(words[bank], end, word) != end) continue;  // broadcast, or merged stores
      *end = word;
      busiest = std::max<unsigned>(busiest, ++count[bank]);
    }
  }
  return busiest;
}

/// Requests, sectors and bank wavefronts, and the warps' clocks.
class RequestObserver final : public Observer {
 public:
  /// \param l2 whether the sectors feed the L2 model
  /// \param sink receives each request; or null
  RequestObserver(bool sites, bool l2, RequestSink* sink, const fa::ClockFigures& figures,
                  unsigned l1_bytes)
      : keep_sites_(sites),
        l2_(l2),
        sink_(sink),
        list_(RequestLog::kCapacity),
        event_(sink ? RequestLog::kCapacity : 1),
        clocks_(figures),
        l1_(kL1Lines),
        l1_sectors_(l1_bytes / kSector),
        stream_(l1_bytes) {
    buffers_.resize(buffer_count());
    table_.resize(256);
    begin_log();
  }

  RequestLog* log() override { return &log_; }
  bool wants_operands() const override { return keep_sites_; }

  void begin_block(Block& b) override {
    if (l2_) stream_.begin(b.linear);
    clocks_.begin(b.nwarps);
    work_ = {};
    before_ = counters_of(b);
    ++l1_block_;
  }
  void end_block(Block& b) override {
    if (l2_) stream_.end(b.progress);
    const Counters now = counters_of(b);
    const uint64_t shuffles = now.shuffles - before_.shuffles, mma = now.mma - before_.mma;
    work_.wavefronts += shuffles;
    work_.instructions += shuffles + mma + (now.wgmma - before_.wgmma);
    work_.mma = mma;
    work_.wgmma_columns = now.wgmma_columns - before_.wgmma_columns;
    const WarpClocks::Time latest = clocks_.latest();
    work_.latency = latest.clocks;
    work_.fetches = latest.fetches;
    blocks_.emplace_back(b.linear, work_);
  }
  void barrier(Block& b, ThreadSet met, const void* object) override {
    tell_loads(b);
    clocks_.barrier(met, object);
    // The last thread to arrive has not left its warp, whose loads belong to the phase that ends.
    if (const unsigned w = b.current ? b.current->id / kLanes : 0;
        b.current && met[w] == b.member[w]) {
      count_log();
    }
    ++l1_phase_;
  }
  void release(Block& b, const void* object, uint32_t) override {
    tell_loads(b);
    clocks_.arrive(b.current->id / kLanes, object);
  }
  void acquire(Block& b, const void* object, uint32_t) override {
    tell_loads(b);
    clocks_.acquire(b.current->id / kLanes, object);
  }
  void end_copy(Block& b, const Access&, uint32_t phase) override {
    if (phase == b.phase) clocks_.wait_copy(b.current->id / kLanes, b.current->id % kLanes);
  }
  void shuffle(Block&, unsigned warp, unsigned line, int distance) override {
    clocks_.shuffle(warp, line, distance);
  }
  void product(Block&, unsigned warp) override { clocks_.product(warp); }
  uint32_t issue_load(Block& b, const Access& a, fa::Swizzle, const void* bar, const Where&,
                      const Sender&) override {
    tell_loads(b);
    WarpClocks& there = observer_of<RequestObserver>(*a.home).clocks_;
    signal(bar, there.copied(clocks_.at(b.current->id / kLanes), a.size));
    return 0;
  }
  uint32_t issue_store(Block& b, const Access&, const Where&) override {
    tell_loads(b);
    clocks_.store(b.current->id / kLanes);
    return 0;
  }
  void wait_stores(Block& b) override {
    tell_loads(b);
    clocks_.wait_store(b.current->id / kLanes);
  }
  void wait_products(Block& b, unsigned first) override {
    tell_loads(b);
    clocks_.wait_wgmma(first);
  }
  void leave_warp(Block&, unsigned warp) override {
    tell_loads(warp);
    count_log();
    if (l2_) stream_.end_segment(warp);
  }

  void access(Block& b, const Access& a) override {
    const unsigned lane = b.current->id % kLanes;
    if (narrow(a) && log_.take(lane, Instruction(a), a.at)) [[likely]]
      return;
    access_elsewhere(lane, a);
  }

  uint32_t issue_wgmma(Block&, uint32_t operation, const std::vector<uint32_t>& chunks,
                       const void* pc, const Where&) override {
    // Only the first thread of the warpgroup passes the operands.
    if (keep_sites_ && !chunks.empty()) count_engine(pc, kWgmma, chunks.size() * kChunk / kLine);
    return operation;
  }

  void issue_product(Block& b, Block& home, std::span<const SharedOperand> operands,
                     std::span<const TensorAccess>, const void* pc, const Where&,
                     const Sender&) override {
    size_t chunks = 0;
    for (const SharedOperand& operand : operands) chunks += operand.chunks.size();
    if (keep_sites_) count_engine(pc, kTensorProduct, chunks * kChunk / kLine, &home == &b);
  }
  uint32_t commit_products(Block& b, const void* bar, const Where&) override {
    tell_loads(b);
    signal(bar, clocks_.committed(b.current->id / kLanes));
    return 0;
  }

  void merge(fa::Counts& counts, fa::KernelCount& kernel) override {
    if (!counts.requests) counts.requests.emplace();
    if (!counts.sectors) counts.sectors.emplace();
    if (!counts.lines) counts.lines.emplace();
    if (!counts.shared_wavefronts) counts.shared_wavefronts.emplace();
    *counts.shared_wavefronts += {load_wavefronts_, store_wavefronts_, 0};
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const PerBuffer& b = buffers_[i];
      const fa::Ops requests{b.requests[0], b.requests[1], b.requests[2]};
      const fa::Ops sectors{b.sectors[0], b.sectors[1], b.sectors[2]};
      const fa::Ops lines{b.lines[0], b.lines[1], b.lines[2]};
      if (requests == fa::Ops{}) continue;
      fa::BufferCount& named = counts.buffers[sim::buffers[i].name];
      for (fa::Ops* total : {&named.requests, &kernel.requests, &*counts.requests}) {
        *total += requests;
      }
      for (fa::Ops* total : {&named.sectors, &kernel.sectors, &*counts.sectors}) *total += sectors;
      for (fa::Ops* total : {&kernel.lines, &*counts.lines}) *total += lines;
    }
    for (const auto& [block, work] : blocks_) kernel.work[block] = work;
    kernel.shared_requests += shared_requests_;
    kernel.shared_wavefronts += shared_wavefronts_;
    kernel.shared_ideal += shared_ideal_;
    kernel.load_wavefronts += load_wavefronts_;
    kernel.store_wavefronts += store_wavefronts_;
    if (keep_sites_) merge_sites(counts);
    if (overflowed_) {
      add_remark(counts, "kernel " + kernel.name +
                             ": a warp made more than a million requests between two barriers or "
                             "shuffles; its lanes are not put together there, so requests, "
                             "sectors, wavefronts and the estimate are too high");
    }
  }

 private:
  // --- of one block ------------------------------------------------------------------------------

  static constexpr unsigned kL1Lines = 1 << 14;
  struct L1Line {
    uint32_t line, block, phase;
    uint32_t fetched;  // sectors that the block had fetched then
    uint32_t sectors;  // bits
  };

  void tell_loads(Block& b) {
    if (b.current) tell_loads(b.current->id / kLanes);
  }
  // A loop waits for its loads every kUnrolled trips; loads outside of loops are awaited at once.
  void tell_loads(unsigned warp) {
    // waits: [near] for shared memory; [far] for the L2 or beyond, which cover those for the L1
    unsigned waits[2] = {}, from_l1 = 0;
    for (; told_ < log_.end(); ++told_) {
      const Instruction& i = log_.instruction(told_);
      if (i.kind() != Kind::load || i.by() == By::copy) continue;
      Site& site = sites_[list_[told_].site];
      const unsigned trip = ++site.trips;
      const bool again = trip == 2 ? !site.waited : trip > 2 && trip % kUnrolled == 1;
      const bool global = i.space() == Space::hbm;
      const bool later = waited_ == 3 || (global && waited_ == 2);  // with an earlier load
      if (!again && later) continue;
      const bool far = global && !in_l1(told_);
      const bool first = !(waited_ >> far & 1);  // of all such loads since the warp began to run
      if (first) waited_ |= 1u << far, site.waited = true;
      (far || !global ? waits[far] : from_l1) += first || again;
    }
    clocks_.loads(warp, waits[1], waits[0] + (waits[1] ? 0 : from_l1));
  }

  // Whether what a lane reads here was loaded by the block before it began this log.
  bool in_l1(uint32_t entry) const {
    unsigned lane = 0;  // one that has executed it, mostly the first
    const auto executed = [&] {
      return (list_[entry].lanes >> lane & 1) || (log_.in_step(lane) && log_.next(lane) > entry);
    };
    while (lane + 1 < kLanes && !executed()) ++lane;
    const uint32_t sector = log_.at(lane, entry) / kSectorWords, line = sector / kLineSectors;
    const L1Line& l = l1_[line % kL1Lines];
    return l.line == line && l.block == l1_block_ && l1_fetched_ - l.fetched < l1_sectors_ &&
           (l.sectors >> sector % kLineSectors & 1);
  }

  // To the threads that wait on the mbarrier, in any block of the cluster.
  static void signal(const void* bar, WarpClocks::Time time) {
    observer_of<RequestObserver>(*home_of(bar)).clocks_.signal(bar, time);
  }

  // These continue over the blocks of a launch.
  struct Counters {
    uint64_t shuffles = 0, mma = 0, wgmma = 0, wgmma_columns = 0;
  };
  static Counters counters_of(const Block& b) {
    return {b.shuffles, b.mma, b.wgmma, b.wgmma_columns};
  }

  // --- the log -----------------------------------------------------------------------------------

  void begin_log() {
    log_.clear();
    list_[kHead].next = kTail;
    told_ = kFirst;
    waited_ = 0;
  }

  void make_room() {
    overflowed_ = true;
    tell_loads(*self);
    count_log();
  }

  static uint64_t lines(const Access& a) { return (a.at + a.size - 1) / kLine - a.at / kLine + 1; }
  // Bytes that one instruction moves for a lane. A struct's alignment divides its size, and nothing
  // else is known of it, so at most this many (three loads of a float3).
  static uint64_t width(const Access& a) {
    if (a.aligned || a.by != By::thread) return a.size;
    return std::min<uint64_t>(kWidest, a.size & -uint64_t{a.size});
  }
  static bool narrow(const Access& a) { return a.size <= kWidest && width(a) == a.size; }

  // A new instruction, another path, a struct, or a copy engine.
  [[gnu::noinline]] void access_elsewhere(unsigned lane, const Access& a) {
    const uint64_t end = a.at + a.size;
    if (a.by == By::engine) {
      if (a.space == Space::shared) {
        if (keep_sites_) count_engine(a.pc, a.kind == Kind::store ? kTmaLoad : kTmaStore, lines(a));
        return;
      }
      work_.l2_bytes += a.size;
      if (!l2_) return;
      for (uint64_t s = a.at / kSector; s <= (end - 1) / kSector; ++s) {
        stream_.touch(s, a.kind != Kind::store, a.kind != Kind::load);
      }
      return;
    }
    if (narrow(a)) {
      log_.put(lane, entry_for(lane, a, a.size), a.space, a.at);
      return;
    }
    const uint64_t step = std::min<uint64_t>(kWidest, width(a));
    for (uint64_t at = a.at; at < end; at += step) {  // a struct needs several
      log_.put(lane, entry_for(lane, a, static_cast<uint32_t>(step)), a.space, at);
    }
  }

  // The entry of this execution; a new one if the lane is the first.
  uint32_t entry_for(unsigned lane, const Access& a, uint32_t size) {
    const Instruction instruction(a);
    if (log_.in_step(lane)) {
      const uint32_t next = log_.next(lane);
      if (log_.instruction(next) == instruction) {
        log_.set_next(lane, next + 1);
        return next;
      }
      if (next == log_.end()) {
        if (next == RequestLog::kCapacity) make_room();
        const uint32_t entry = insert(log_.end() - 1, expected_site(instruction, a.pc, size), size);
        log_.set_next(lane, entry + 1);
        return entry;
      }
      fall_out_of_step(lane);
    }
    const uint32_t next = list_[last_[lane]].next;
    const bool same = next != kTail && log_.instruction(next) == instruction;
    const uint32_t site = same ? list_[next].site : site_of(instruction, a.pc, size);
    const std::vector<uint32_t>& entries = sites_[site].entries;
    const uint32_t occurrence = executed_[site].of[lane]++;
    if (occurrence < entries.size()) {
      last_[lane] = entries[occurrence];
    } else if (log_.end() == RequestLog::kCapacity) {
      make_room();  // all lanes are in step again
      return entry_for(lane, a, size);
    } else {
      if (next != kTail) {
        // An entry in the middle: lanes in step have not counted it, but may walk past it.
        for (unsigned other = 0; other < kLanes; ++other) {
          if (log_.in_step(other)) fall_out_of_step(other);
        }
      }
      last_[lane] = insert(last_[lane], site, size);
    }
    list_[last_[lane]].lanes |= 1u << lane;
    return last_[lane];
  }

  // A new entry after the lane's last one, where later lanes find it in their order.
  uint32_t insert(uint32_t last, uint32_t site, uint32_t size) {
    const uint32_t entry = log_.append(sites_[site].instruction);
    std::vector<uint32_t>& entries = sites_[site].entries;
    if (entries.empty()) active_.push_back(site);
    list_[entry] = {site, list_[last].next, size, 0};
    if (sink_) event_[entry] = sink_->event();
    entries.push_back(entry);
    return list_[last].next = entry;
  }

  // A lane in step has executed all entries of the log up to its own. As long as any lane is in
  // step, the entries are linked in the order of their numbers.
  void fall_out_of_step(unsigned lane) {
    const uint32_t next = log_.next(lane);
    log_.set_next(lane, RequestLog::kNowhere);
    last_[lane] = next - 1;
    for (uint32_t entry = kFirst; entry < next; ++entry) {
      ++executed_[list_[entry].site].of[lane];
      list_[entry].lanes |= 1u << lane;
    }
  }

  // Most warps do what the last one did, whose log still follows the end of this one.
  uint32_t expected_site(Instruction instruction, const void* pc, uint32_t size) {
    const uint32_t guess = list_[log_.end()].site;
    const bool right = guess < sites_.size() && sites_[guess].instruction == instruction;
    return right ? guess : site_of(instruction, pc, size);
  }
  uint32_t site_of(Instruction instruction, const void* pc, uint32_t size) {
    for (size_t h = hash(instruction);; ++h) {
      uint32_t& slot = table_[h % table_.size()];
      if (slot == 0) break;
      if (sites_[slot - 1].instruction == instruction) return slot - 1;
    }
    sites_.push_back({instruction, pc, size, {}});
    executed_.emplace_back();
    patterns_.emplace_back();
    if (sites_.size() * 2 > table_.size()) {
      table_.assign(table_.size() * 2, 0);
      for (uint32_t i = 0; i < sites_.size(); ++i) enter(i);
    } else {
      enter(static_cast<uint32_t>(sites_.size() - 1));
    }
    return static_cast<uint32_t>(sites_.size() - 1);
  }
  void enter(uint32_t number) {
    size_t h = hash(sites_[number].instruction);
    while (table_[h % table_.size()]) ++h;
    table_[h % table_.size()] = number + 1;
  }
  static size_t hash(const Instruction& i) { return i.bits * 0x9E3779B97F4A7C15u >> 40; }

  // --- counting ----------------------------------------------------------------------------------

  // Aligns the lanes that executed an instruction less often than others.
  void line_up(const std::vector<uint32_t>& entries) {
    const uint32_t all = lanes_of(entries.front()), most = lanes_of(entries.back());
    const unsigned model = std::countr_zero(most);  // a lane that took every entry
    std::vector<uint32_t> mine, place;
    for (uint32_t m = all & ~most; m; m &= m - 1) {
      const unsigned lane = std::countr_zero(m);
      mine.clear();
      for (uint32_t e : entries) {
        if (!(list_[e].lanes >> lane & 1)) break;
        mine.push_back(log_.at(lane, e));
      }
      if (!find_places(entries, model, mine, place) || place.back() == mine.size() - 1) continue;
      for (size_t k = 0; k < mine.size(); ++k) list_[entries[k]].lanes &= ~(1u << lane);
      for (size_t k = 0; k < mine.size(); ++k) {
        log_.set_at(lane, entries[place[k]], mine[k]);
        list_[entries[place[k]]].lanes |= 1u << lane;
      }
    }
  }

  // The distance of a lane's address from the model's. Swizzled, two lanes differ in each trip by
  // the same bits within 128 bytes, which span all banks, and by the same number of such rows.
  static uint32_t linear_distance(uint32_t at, uint32_t model) { return at - model; }
  static uint32_t swizzled_distance(uint32_t at, uint32_t model) {
    constexpr uint32_t kBanks = 128;
    return (at / kBanks - model / kBanks) * kBanks + (at ^ model) % kBanks;
  }

  // For each of a lane's addresses the entry in which it has the same distance from the model
  // lane's. \returns false when no distance fits all: then the order of execution decides.
  bool find_places(const std::vector<uint32_t>& entries, unsigned model,
                   const std::vector<uint32_t>& mine, std::vector<uint32_t>& place) {
    constexpr size_t kTries = 64;
    const bool shared = log_.instruction(entries.front()).space() == Space::shared;
    const size_t starts = std::min(entries.size() - mine.size() + 1, kTries);
    const auto fits = [&](size_t start, auto distance) {
      const uint32_t constant = distance(mine[0], log_.at(model, entries[start]));
      place.clear();
      for (size_t e = start; e < entries.size() && place.size() < mine.size(); ++e) {
        if (distance(mine[place.size()], log_.at(model, entries[e])) == constant) {
          place.push_back(static_cast<uint32_t>(e));
        }
      }
      return place.size() == mine.size();
    };
    for (size_t start = 0; start < starts; ++start) {
      if (fits(start, linear_distance) || (shared && fits(start, swizzled_distance))) return true;
    }
    return false;
  }

  uint32_t lanes_of(uint32_t entry) const { return list_[entry].lanes | in_step_to_end_; }

  void count_log() {
    in_step_to_end_ = 0;
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      if (log_.next(lane) == log_.end()) {
        in_step_to_end_ |= 1u << lane;
      } else if (log_.in_step(lane)) {
        fall_out_of_step(lane);
      }
    }
    for (uint32_t number : active_) {
      const std::vector<uint32_t>& entries = sites_[number].entries;
      if (lanes_of(entries.back()) != lanes_of(entries.front())) line_up(entries);
    }
    for (uint32_t entry = list_[kHead].next; entry != kTail; entry = list_[entry].next) {
      count(entry);
    }
    for (uint32_t number : active_) {
      sites_[number].entries.clear();
      sites_[number].trips = 0;
      sites_[number].waited = false;
      executed_[number] = {};
    }
    active_.clear();
    begin_log();
  }

  void count(uint32_t entry) {
    const Request& r = list_[entry];
    const Instruction& i = log_.instruction(entry);
    const uint32_t lanes = lanes_of(entry);
    PerLane at;
    const uint32_t first = log_.at(std::countr_zero(lanes), entry);
    if (lanes == kAllLanes) {
      for (unsigned lane = 0; lane < kLanes; ++lane) at.of[lane] = log_.at(lane, entry);
    } else {
      std::fill_n(at.of, kLanes, first);
      for (uint32_t m = lanes; m; m &= m - 1) {
        const unsigned lane = std::countr_zero(m);
        at.of[lane] = log_.at(lane, entry);
      }
    }
    Pattern& p = patterns_[r.site];
    const bool shared = i.space() == Space::shared;
    const bool same = is_like(p, lanes, r.size, first, shared ? kWord : kLine / kWord, at);
    if (shared) {
      if (!same) find_wavefronts(p, i, at);
      count_shared(p, r.site, i);
    } else {
      if (!same) find_sectors(p, i.by(), first, at);
      count_hbm(p, r.site, i, first);
    }
    if (sink_) {
      sink_->request(event_[entry], lanes, r.size, at.of, shared ? p.wavefronts : p.sectors);
    }
  }

  // Otherwise `p` becomes this request, and its cost is yet to be computed.
  static bool is_like(Pattern& p, uint32_t lanes, uint32_t size, uint32_t first, unsigned period,
                      const PerLane& at) {
    PerLane distance;
    uint32_t differ = (p.lanes ^ lanes) | (p.size ^ size) | (p.phase ^ first % period);
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      distance.of[lane] = at.of[lane] - first;
      differ |= distance.of[lane] ^ p.distance.of[lane];
    }
    if (!differ) return true;
    p.lanes = lanes;
    p.size = size;
    p.phase = first % period;
    p.distance = distance;
    return false;
  }

  // For cp.async each part of a warp that is processed at once looks up its own lines. Measured
  // where rows begin in the middle of a line; loads and stores look up a line once.
  static unsigned lines_of_parts(const Pattern& p, const PerLane& at) {
    const unsigned together = kLanes * kWord / std::max(p.size, kWord);  // lanes
    unsigned lines = 0;
    for (unsigned begin = 0; begin < kLanes; begin += together) {
      uint32_t numbers[kLanes];
      unsigned n = 0;
      for (unsigned lane = begin; lane < begin + together; ++lane) {
        if (p.lanes >> lane & 1) numbers[n++] = at.of[lane] / (kLine / kWord);
      }
      if (n) lines += unique(numbers, n);
    }
    return lines;
  }

  // Idle lanes repeat the first one's address, which changes nothing.
  static void find_sectors(Pattern& p, By by, uint32_t first, const PerLane& at) {
    uint32_t numbers[kLanes];
    for (unsigned lane = 0; lane < kLanes; ++lane) numbers[lane] = at.of[lane] / kSectorWords;
    p.sectors = unique(numbers, kLanes);
    for (unsigned i = 0; i < p.sectors; ++i) {
      p.sector[i] = numbers[i] - first / kSectorWords;
      numbers[i] /= kLineSectors;
    }
    p.lines = by == By::copy ? lines_of_parts(p, at) : unique(numbers, p.sectors);
    // 32 lanes of 8 or 16 bytes are processed in two or four parts.
    const unsigned words = std::min(p.size, kWidest) / kWord;
    const unsigned active = std::popcount(p.lanes);
    p.clocks = std::max(p.lines, (active * words + kLanes - 1) / kLanes);
    // Lanes that read the same bytes need fewer sectors than their number suggests.
    p.ideal = std::min(p.sectors, (active * p.size + kSector - 1) / kSector);
  }

  void count_hbm(const Pattern& p, uint32_t site, const Instruction& i, uint32_t first) {
    const unsigned n = p.sectors;
    const Kind kind = i.kind();
    PerBuffer& b = buffers_[i.buffer()];
    ++work_.instructions;
    b.requests[static_cast<int>(kind)] += 1;
    b.sectors[static_cast<int>(kind)] += n;
    b.lines[static_cast<int>(kind)] += p.lines;
    uint32_t sectors[kLanes];
    for (unsigned k = 0; k < n; ++k) sectors[k] = first / kSectorWords + p.sector[k];
    if (l2_) {
      // The log keeps the low bits of a sector's number; the buffer's start supplies the others.
      constexpr uint64_t kKept = (uint64_t{1} << 32) / kSectorWords - 1;
      const uint64_t begin = sim::buffers[i.buffer()].begin / kSector;
      for (unsigned k = 0; k < n; ++k) {
        stream_.touch(begin + ((sectors[k] - begin) & kKept), kind != Kind::store,
                      kind != Kind::load);
      }
    }
    const bool cached = i.by() == By::thread && kind == Kind::load;
    work_.l2_bytes += kSector * (cached ? missing_in_l1(sectors, n) : n);
    if (kind == Kind::atomic) {
      work_.atomic_lines += p.lines;
    } else if (i.by() != By::copy) {
      work_.lines += p.clocks;
      sites_[site].clocks += p.clocks;
    }
    if (keep_sites_) count_site(site, n, p.ideal);
  }

  // How many of the sectors the block must load from the L2. Loads of several warps between two
  // barriers run together on a GPU, not one after the other: one fetch serves all.
  unsigned missing_in_l1(const uint32_t* sectors, unsigned n) {
    unsigned missing = 0;
    for (unsigned i = 0; i < n; ++i) {
      const uint32_t line = sectors[i] / kLineSectors;
      const uint32_t bit = 1u << sectors[i] % kLineSectors;
      L1Line& l = l1_[line % kL1Lines];
      const bool here = l.line == line && l.block == l1_block_ &&
                        (l.phase == l1_phase_ || l1_fetched_ - l.fetched < l1_sectors_);
      if (!here) l = {line, l1_block_, l1_phase_, l1_fetched_, 0};
      missing += !(l.sectors & bit);
      l.sectors |= bit;
    }
    l1_fetched_ += missing;
    return missing;
  }

  // Wide accesses are split: 8 bytes into half warps, 16 into quarters, loads into twice as many
  // lanes if all agree with a neighbour. Idle parts are free. Measured (H200): tests/sim/banks.cu.
  static void find_wavefronts(Pattern& p, const Instruction& i, const PerLane& at) {
    const unsigned width = p.size <= 4 ? 1 : p.size <= 8 ? 2 : 4;
    const bool merged = width > 1 && i.kind() == Kind::load && i.by() == By::thread &&
                        (agree(p.lanes, at, 1) || agree(p.lanes, at, 2));
    const unsigned part = merged ? 2 * kLanes / width : kLanes / width;
    p.wavefronts = p.ideal = 0;
    for (unsigned first = 0; first < kLanes; first += part) {
      uint32_t dense[kLanes];
      unsigned n = 0;
      for (unsigned lane = first; lane < first + part; ++lane) {
        if (p.lanes >> lane & 1) dense[n++] = at.of[lane];
      }
      if (n == 0) continue;
      p.wavefronts += bank_cycles(dense, n, width);
      p.ideal += 1;
    }
  }

  void count_shared(const Pattern& p, uint32_t site, const Instruction& i) {
    shared_requests_ += 1;
    if (i.by() != By::copy) {
      ++work_.instructions;
      work_.wavefronts += p.wavefronts;
      sites_[site].clocks += p.wavefronts;
    }
    shared_wavefronts_ += p.wavefronts;
    shared_ideal_ += p.ideal;
    const bool known = i.by() == By::thread || i.by() == By::matrix;
    if (known && i.kind() == Kind::load) load_wavefronts_ += p.wavefronts;
    if (known && i.kind() == Kind::store) store_wavefronts_ += p.wavefronts;
    if (keep_sites_) count_site(site, p.wavefronts, p.ideal);
  }

  // Every lane reads what the lane whose number differs in `bit` reads, or that lane is idle.
  static bool agree(uint32_t lanes, const PerLane& at, unsigned bit) {
    uint32_t differ = 0;
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      differ |= uint32_t{at.of[lane] != at.of[lane ^ bit]} << lane;
    }
    const uint32_t low = bit == 1 ? 0x55555555 : 0x33333333;
    const uint32_t other = (lanes & low) << bit | (lanes & ~low) >> bit;  // bit l: lane l ^ bit
    return (differ & lanes & other) == 0;
  }

  void count_site(uint32_t number, unsigned transfers, unsigned ideal) {
    Site& s = sites_[number];
    s.count += 1;
    s.transfers += transfers;
    s.ideal += ideal;
  }

  // TMA and wgmma move 128 bytes of shared memory per wavefront, without a request of a warp. Bank
  // conflicts are not counted: wgmma had none in any step (tests/programs/kernels_h200.json).
  void count_engine(const void* pc, Engine engine, uint64_t wavefronts, bool first = true) {
    EngineSite& s = engine_sites_[{pc, engine}];
    s.count += first;  // else a part of an instruction already counted
    s.wavefronts += wavefronts;
  }

  // Merges the instructions of one line into one row.
  void merge_sites(fa::Counts& counts) const {
    static constexpr const char* kVerbs[] = {" load", " store", " atomic"};
    static constexpr const char* kEngines[] = {"shared wgmma", "shared TMA load",
                                               "shared TMA store", "shared tcgen05.mma"};
    std::map<std::pair<std::string, std::string>, fa::SiteCount*> rows;
    for (fa::SiteCount& row : counts.sites) rows[{row.where, row.what}] = &row;
    std::vector<fa::SiteCount> fresh;
    fresh.reserve(sites_.size() + engine_sites_.size());
    std::vector<const void*> pcs;
    for (const Site& s : sites_) {
      if (s.count) pcs.push_back(s.pc);
    }
    for (const auto& [place, s] : engine_sites_) pcs.push_back(place.first);
    resolve_sources(pcs);
    for (const Site& s : sites_) {
      if (s.count == 0) continue;
      const Instruction& i = s.instruction;
      const std::string what =
          (i.space() == Space::shared ? "shared" : sim::buffers[i.buffer()].name) +
          kVerbs[static_cast<int>(i.kind())] + std::to_string(8 * s.size);
      fa::SiteCount*& row = rows[{source_of(s.pc), what}];
      if (!row) row = &fresh.emplace_back(fa::SiteCount{source_of(s.pc), what});
      row->requests += s.count;
      row->transfers += s.transfers;
      row->ideal += s.ideal;
      row->clocks += s.clocks;
    }
    for (const auto& [place, s] : engine_sites_) {
      const auto& [pc, engine] = place;
      fa::SiteCount*& row = rows[{source_of(pc), kEngines[engine]}];
      if (!row) row = &fresh.emplace_back(fa::SiteCount{source_of(pc), kEngines[engine]});
      row->requests += s.count;
      row->transfers += s.wavefronts;
      row->ideal += s.wavefronts;
    }
    counts.sites.insert(counts.sites.end(), fresh.begin(), fresh.end());
  }

  const bool keep_sites_, l2_;
  RequestSink* const sink_;

  static constexpr uint32_t kHead = RequestLog::kHead, kTail = RequestLog::kTail,
                            kFirst = RequestLog::kFirst;
  RequestLog log_;
  LazyArray<Request> list_;    // by entry: the log as a list
  LazyArray<uint32_t> event_;  // by entry: of the sink
  WarpClocks clocks_;
  uint32_t told_ = kFirst;       // the first entry not yet in the warps' clocks
  bool overflowed_ = false;      // the log had too little room
  unsigned waited_ = 0;          // since the warp began to run: 1 a load of near, 2 of far
  uint32_t last_[kLanes] = {};   // the last entry of a lane that is out of step
  uint32_t in_step_to_end_ = 0;  // while the log is counted: lanes

  std::vector<Site> sites_;
  std::vector<Pattern> patterns_;  // by site
  std::vector<PerLane> executed_;  // by site: how often, by the lanes out of step
  std::vector<uint32_t> table_;    // hash -> number of the site + 1
  std::vector<uint32_t> active_;   // sites in the log

  std::map<std::pair<const void*, Engine>, EngineSite> engine_sites_;

  std::vector<PerBuffer> buffers_;
  uint64_t shared_requests_ = 0, shared_wavefronts_ = 0, shared_ideal_ = 0;
  uint64_t load_wavefronts_ = 0, store_wavefronts_ = 0;

  LazyArray<L1Line> l1_;
  const uint32_t l1_sectors_;
  uint32_t l1_block_ = 0, l1_phase_ = 0,
           l1_fetched_ = 0;  // blocks begun, barriers, sectors fetched
  fa::BlockWork work_;       // of the block
  Counters before_;          // when it began
  std::vector<std::pair<uint64_t, fa::BlockWork>> blocks_;
  L2Stream stream_;
};

class RequestWatcher final : public Watcher {
 public:
  bool wanted() const override {
    const Options& o = options();
    return o.requests || o.sites || o.l2_bytes > 0 || o.trace;
  }
  void begin_recording() override {
    if (options().l2_bytes > 0) l2_begin_recording(options().l2_bytes);
  }
  void copy(const char*, uint16_t, uint64_t offset, uint64_t bytes, bool write) override {
    if (models_l2()) l2_copy(offset, bytes, write);
  }
  void end_recording(fa::Counts& counts) override {
    if (models_l2()) counts.hbm = l2_end_recording();
  }

  void begin_launch(const Launch& launch, uint64_t resident) override {
    const Options& o = options();
    blocks_ = launch.config.blocks();
    if (!models_l2()) return;
    before_ = l2_dram();
    // Among many problems, a grid of one block per SM processes them one after the other.
    const bool walks = o.l2_times > 1 && blocks_ <= static_cast<uint64_t>(o.sms);
    l2_begin_launch(blocks_, walks ? blocks_ : resident, o.l2_times);
  }
  void observe(Block& b) override {
    RequestSink* sink = nullptr;
    for (auto& o : b.observers) {
      if (auto* found = dynamic_cast<RequestSink*>(o.get())) sink = found;
    }
    b.observers.push_back(std::make_unique<RequestObserver>(options().sites, models_l2(), sink,
                                                            fa::clock_figures(options().gpu),
                                                            options().sm.l1_bytes));
  }
  void end_launch() override {
    if (models_l2()) l2_end_launch();
  }
  void count(fa::KernelCount& kernel) override {
    kernel.work.resize(blocks_);
    if (!models_l2()) return;
    if (options().l2_times > 1) l2_write_back();
    const fa::Bytes after = l2_dram();
    kernel.hbm = {after.read - before_.read, after.write - before_.write, 0};
  }

 private:
  static bool models_l2() { return options().l2_bytes > 0 && recording(); }

  uint64_t blocks_ = 0;  // of the launch
  fa::Bytes before_;     // from and to DRAM, when it began
};

}  // namespace

Watcher& request_watcher() {
  static RequestWatcher watcher;
  return watcher;
}

}  // namespace sim

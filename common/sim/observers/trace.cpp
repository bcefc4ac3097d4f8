// Records a trace (common/counts/trace.h): what every block did, in its order.
//
// Accesses form one event as long as they are of the same line, reached by the same calls, access
// the same buffer or shared array in the same way, and none of their threads has waited for others
// in between. A thread's clock counts these waits: after a barrier all have the largest of their
// clocks plus one, and so has a thread that waited for an mbarrier; after a __syncwarp all lanes
// have the largest. So tile j of a loop is its own event, and a tile that eight warps load together
// is one. What wgmma reads is an event per warpgroup, and so is what tcgen05.ld and st move.
#include <unwind.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <map>
#include <queue>
#include <tuple>
#include <unordered_map>

#include "common/sim/block.h"
#include "common/sim/instructions/async.h"
#include "common/sim/messages/symbols.h"
#include "common/sim/observers/l2.h"
#include "common/sim/observers/watchers.h"
#include "common/sim/sim.h"

#ifndef FA_DATA_DIR  // a build without CMake runs in the repository's root
#define FA_DATA_DIR "common/data"
#endif

namespace sim {

namespace {

constexpr uint64_t kChunk = 16;  // bytes of a wgmma's operand per call of an observer
constexpr uint64_t kWavefront = 128;
constexpr unsigned kEighths = 8, kEighth = 16, kColumns = 512;  // of tensor memory
constexpr size_t kMostRectangles = 16;  // of an event; if more, one around them
constexpr uint32_t kNone = ~0u;

// --- which elements ------------------------------------------------------------------------------

/// A set of elements of one place.
class Elements {
 public:
  void add(uint64_t first, uint64_t count) {
    const uint64_t end = first + count;
    if (bits_.size() * 64 < end) bits_.resize(end / 64 + 1);
    for (uint64_t i = first; i < end; ++i) bits_[i / 64] |= uint64_t{1} << i % 64;
    low_ = std::min(low_, first);
    high_ = std::max(high_, end);
  }
  void add(const Elements& other) {
    if (bits_.size() < other.bits_.size()) bits_.resize(other.bits_.size());
    for (size_t i = 0; i < other.bits_.size(); ++i) bits_[i] |= other.bits_[i];
    low_ = std::min(low_, other.low_);
    high_ = std::max(high_, other.high_);
  }

  uint64_t first() const { return low_; }

  /// From `skipped` on, in elements that are `factor` times as large.
  Elements scaled(uint64_t skipped, uint64_t factor) const {
    Elements all;
    for (uint64_t i = low_; i < high_; ++i) {
      if (has(i) && i >= skipped) all.add((i - skipped) / factor, 1);
    }
    return all;
  }

  /// Merges consecutive rows with the same runs of columns into rectangles.
  std::vector<fa::TraceRectangle> rectangles(uint64_t columns, bool& exact) const {
    using Runs = std::vector<std::pair<uint64_t, uint64_t>>;
    std::vector<fa::TraceRectangle> all;
    fa::TraceRectangle around{~uint64_t{0}, 0, ~uint64_t{0}, 0};
    Runs before;
    exact = true;
    for (uint64_t row = low_ / columns; row * columns < high_; ++row) {
      Runs runs;
      for (uint64_t c = 0; c < columns; ++c) {
        if (!has(row * columns + c)) continue;
        const uint64_t first = c;
        while (c < columns && has(row * columns + c)) ++c;
        runs.emplace_back(first, c - first);
      }
      if (runs.empty()) {
        before.clear();
        continue;
      }
      around.row = std::min(around.row, row);
      around.rows = row + 1 - around.row;
      const uint64_t end = std::max(around.columns + (around.rows > 1 ? around.column : 0),
                                    runs.back().first + runs.back().second);
      const uint64_t begin = std::min(around.column, runs.front().first);
      around.column = begin, around.columns = end - begin;
      if (runs == before) {
        for (size_t i = all.size() - std::min(all.size(), runs.size()); i < all.size(); ++i) {
          ++all[i].rows;
        }
      } else {
        exact = exact && all.size() + runs.size() <= kMostRectangles;
        if (exact) {
          for (const auto& [first, count] : runs) all.push_back({row, 1, first, count});
        }
        before = exact ? runs : Runs{};
      }
    }
    if (!exact) return {around};
    return all;
  }

 private:
  bool has(uint64_t i) const { return i / 64 < bits_.size() && bits_[i / 64] >> i % 64 & 1; }

  std::vector<uint64_t> bits_;
  uint64_t low_ = ~uint64_t{0}, high_ = 0;
};

// --- the recording -------------------------------------------------------------------------------

// "steps/04_fused/2_fused.cuh": relative to the folder of the build's sources, whatever its name.
// Other paths keep the part from the project's folder on, or their last name.
std::string project_path(const std::string& frame_path) {
  namespace fs = std::filesystem;
  static const std::string root =
      fs::absolute(FA_DATA_DIR).parent_path().parent_path().string() + "/";
  const std::string path = fs::path(frame_path).lexically_normal();
  if (path.starts_with(root)) return path.substr(root.size());
  for (const char* top : {"/steps/", "/common/", "/tests/"}) {
    if (const size_t p = path.rfind(top); p != path.npos) return path.substr(p + 1);
  }
  return path.front() == '/' ? path.substr(path.rfind('/') + 1) : path;
}

/// The bytes that would cross HBM if the L2 held everything: each sector is read at its first load
/// and written once if it is stored to at all.
class FirstTouches {
 public:
  void touch(uint64_t offset, uint64_t bytes, Kind kind, uint64_t& read, uint64_t& write) {
    const uint64_t last = (offset + bytes - 1) / kSector;
    if (state_.size() <= last) state_.resize(last + 1);
    for (uint64_t s = offset / kSector; s <= last; ++s) {
      uint8_t& state = state_[s];
      if (kind != Kind::store && !(state & (kRead | kWritten))) read += kSector;
      if (kind != Kind::load && !(state & kWritten)) write += kSector;
      state |= (kind != Kind::store ? kRead : 0) | (kind != Kind::load ? kWritten : 0);
    }
  }

 private:
  enum : uint8_t { kRead = 1, kWritten = 2 };
  std::vector<uint8_t> state_;  // by sector
};

/// The state that all blocks of a recording share.
struct Recorder {
  fa::Trace trace;
  FirstTouches touches;
  std::map<uint16_t, uint32_t> buffers;  // number -> place
  std::map<std::pair<std::string, int>, uint32_t> lines;
  std::map<std::vector<uint32_t>, uint32_t> stacks;
  std::map<std::tuple<uint32_t, uint32_t, int, std::string>, uint32_t> requests;
  std::map<uint64_t, std::vector<fa::TraceEvent>> blocks;  // of this launch
  std::vector<uint32_t> shared;  // of this launch: by word of shared memory, its place + 1
  std::map<uint64_t, uint32_t> shared_places;  // of this launch, by offset
  uint32_t tensor = kNone;                     // of this launch: the place of tensor memory
  /// Overlapping shared arrays, within a place that covers them all. Members that do not overlap
  /// are in one of `sets`; a cut is where a member begins or ends.
  struct Union {
    std::vector<std::vector<uint32_t>> sets;
    std::vector<uint64_t> cuts;

    uint32_t part_of(uint64_t offset) const {
      return static_cast<uint32_t>(std::ranges::upper_bound(cuts, offset) - cuts.begin());
    }
  };
  std::map<uint32_t, Union> unions;
  uint64_t now = 0;  // where the next launch begins

  uint32_t kernel() const { return static_cast<uint32_t>(trace.kernels.size() - 1); }

  uint32_t place_of(uint16_t number) {
    const auto [at, fresh] = buffers.try_emplace(number, trace.places.size());
    if (fresh) {
      const BufferInfo& b = sim::buffers[number];
      fa::TracePlace place{b.name, fa::TraceSpace::global, 0, 0, b.end - b.begin, b.layout};
      if (place.layout.columns == 0) place.layout = {1, 1, place.bytes, 1};
      trace.places.push_back(place);
    }
    return at->second;
  }

  uint32_t shared_place(const Block& home, uint64_t offset) {
    const uint64_t word = offset / kWord;
    if (shared.size() <= word) shared.resize(word + 1);
    if (shared[word]) return shared[word] - 1;
    const SharedArray array = shared_array(home, offset);
    const auto [at, fresh] = shared_places.try_emplace(array.offset, trace.places.size());
    if (fresh) {
      const uint64_t dynamic = home.dynamic_base - home.shared_base;
      add_shared(array, dynamic);
      const uint32_t place = at->second;
      for (const SharedArray& member : array.members) {
        add_member(place, static_cast<uint32_t>(trace.places.size()), member.offset - array.offset,
                   member.bytes);
        add_shared(member, dynamic);
      }
    }
    // The whole array at once: a search of the debug information is slow.
    const uint64_t end = (array.offset + array.bytes) / kWord;
    if (shared.size() < end) shared.resize(end);
    std::fill(shared.begin() + array.offset / kWord, shared.begin() + end, at->second + 1);
    shared[word] = at->second + 1;
    return at->second;
  }
  void add_member(uint32_t whole, uint32_t member, uint64_t begin, uint64_t bytes) {
    Union& u = unions[whole];
    u.cuts.insert(u.cuts.end(), {begin, begin + bytes});
    std::ranges::sort(u.cuts);
    const auto apart = [&](uint32_t other) {
      const fa::TracePlace& p = trace.places[other];
      const uint64_t first = p.offset - trace.places[whole].offset;
      return first + p.bytes <= begin || begin + bytes <= first;
    };
    for (std::vector<uint32_t>& set : u.sets) {
      if (std::ranges::all_of(set, apart)) return set.push_back(member);
    }
    u.sets.push_back({member});
  }
  void add_shared(const SharedArray& a, uint64_t dynamic) {
    const auto offset = static_cast<int64_t>(a.offset - dynamic);
    trace.places.push_back({a.name, fa::TraceSpace::shared, kernel(), offset, a.bytes, shape(a)});
  }

  uint32_t tensor_place() {
    if (tensor == kNone) {
      tensor = static_cast<uint32_t>(trace.places.size());
      const fa::Layout cells{1, kEighths * kEighth, kColumns, kWord};
      trace.places.push_back({"tensor memory", fa::TraceSpace::tensor, kernel(), 0,
                              cells.rows * cells.columns * kWord, cells});
    }
    return tensor;
  }

  // The last axis of an array is its rows' length; an array without axes is one row of bytes.
  static fa::Layout shape(const SharedArray& array) {
    uint64_t elements = 1;
    for (const uint64_t n : array.dimensions) elements *= n;
    fa::Layout l{1, 1, array.bytes, 1};
    if (!array.dimensions.empty() && elements > 0 && array.bytes >= elements) {
      l.columns = array.dimensions.back();
      l.element_bytes = static_cast<unsigned>(array.bytes / elements);
      l.rows = elements / l.columns;
    }
    return l;
  }

  uint32_t line_of(const std::string& frame) {
    const size_t colon = frame.rfind(':');
    const std::string path = project_path(frame.substr(0, colon));
    const int number = std::atoi(frame.c_str() + colon + 1);
    const auto [at, fresh] = lines.try_emplace({path, number}, trace.lines.size());
    if (fresh) trace.lines.push_back({path, number});
    return at->second;
  }

  uint32_t stack_of(const std::vector<const void*>& addresses) {
    std::vector<uint32_t> stack;
    for (const void* pc : addresses) {
      for (const std::string& frame : frames_of(pc)) stack.push_back(line_of(frame));
    }
    const auto [at, fresh] = stacks.try_emplace(stack, trace.stacks.size());
    if (fresh) trace.stacks.push_back(stack);
    return at->second;
  }
};

Recorder recorder;

// --- where an access comes from ------------------------------------------------------------------

struct Walk {
  const void* pc;
  const void* kernel;
  std::vector<const void*> found;
  unsigned depth = 0;
};

_Unwind_Reason_Code step_out(_Unwind_Context* context, void* p) {
  constexpr unsigned kDeepest = 40;
  Walk& walk = *static_cast<Walk*>(p);
  const auto* ip = reinterpret_cast<const void*>(_Unwind_GetIP(context));
  if (ip == walk.pc || !walk.found.empty()) walk.found.push_back(ip);
  const bool done = is_inside(ip, walk.kernel) || ++walk.depth == kDeepest;
  return done ? _URC_END_OF_STACK : _URC_NO_REASON;
}

// The access, then the calls that led to it, out to the kernel. An operation carried out later than
// its call (cp.async, at its wait) has no calls.
std::vector<const void*> calls_to(const void* pc, const void* kernel) {
  Walk walk{pc, kernel, {}};
  _Unwind_Backtrace(step_out, &walk);
  if (walk.found.empty() || !is_inside(walk.found.back(), kernel)) return {pc};
  return walk.found;
}

// --- the observer --------------------------------------------------------------------------------

constexpr By kWgmma = static_cast<By>(7), kProduct = static_cast<By>(8),
             kTensorMove = static_cast<By>(9);

const char* name_of(By by, Kind kind) {
  switch (by) {
    case By::matrix:
      return kind == Kind::load ? "ldmatrix" : "stmatrix";
    case By::copy:
      return "cp.async";
    case By::mbarrier:
      return "mbarrier";
    case By::engine:
      return "TMA";
    case By::thread:
      return kind == Kind::load ? "load" : kind == Kind::store ? "store" : "atomic";
  }
  return by == kWgmma         ? "wgmma"
         : by == kProduct     ? "tcgen05.mma"
         : kind == Kind::load ? "tcgen05.ld"
                              : "tcgen05.st";
}

struct Key {
  const void* pc;
  uint32_t place, clock;
  Kind kind;
  By by;
  uint32_t warpgroup;  // of a wgmma, whose operands belong to one; of a tcgen05.ld or st
  uint32_t callers;    // which calls led to a function that is not inlined
  uint32_t part;       // of a union, between two cuts; else 0
  bool operator==(const Key&) const = default;
};
struct Hash {
  size_t operator()(const Key& k) const {
    uint64_t h = (reinterpret_cast<uintptr_t>(k.pc) + k.warpgroup + (uint64_t{k.callers} << 48) +
                  (uint64_t{k.part} << 56)) *
                 0x9E3779B97F4A7C15u;
    h ^= (uint64_t{k.place} << 40 | uint64_t{k.clock} << 8 | uint64_t(k.kind) << 4 |
          uint64_t(k.by)) *
         0xC2B2AE3D27D4EB4Fu;
    return h ^ h >> 29;
  }
};

/// An event in progress.
struct Open {
  Key key;
  std::vector<const void*> calls;
  Elements elements;
  uint64_t bytes = 0, requests = 0, transfers = 0, hbm_read = 0, hbm_write = 0;
  fa::TraceRequest request;  // the one with the most lanes
};

class TraceRecorder final : public Observer, public RequestSink {
 public:
  bool wants_operands() const override { return true; }
  void begin_block(Block& b) override {
    open_.clear();
    numbers_.clear();
    known_.clear();
    callers_.clear();
    std::fill(std::begin(clock_), std::end(clock_), 0);
    current_ = kNone;
    home_ = &b;
  }

  void access(Block& b, const Access& a) override {
    const bool shared = a.space == Space::shared;
    const uint32_t place =
        shared ? recorder.shared_place(*a.home, a.at) : recorder.place_of(a.buffer);
    const fa::TracePlace& p = recorder.trace.places[place];
    const uint64_t first = a.at - (shared ? base_of(*a.home, p) : buffers[a.buffer].begin);
    Open& e = event_of({a.pc, place, clock_[b.current->id], a.kind, a.by, 0, callers_of(a.pc, a.by),
                        part_of(place, first)});
    e.bytes += a.size;
    add(e, p, first, a.size);
    if (!shared) recorder.touches.touch(a.at, a.size, a.kind, e.hbm_read, e.hbm_write);
    if (a.by == By::engine) {
      const uint64_t unit = shared ? kWavefront : kSector;
      e.transfers += (a.at + a.size - 1) / unit - a.at / unit + 1;
    }
  }

  uint32_t issue_wgmma(Block& b, uint32_t operation, const std::vector<uint32_t>& chunks,
                       const void* pc, const Where&) override {
    read_operands(b, b, kWgmma, chunks, pc);
    return operation;
  }
  void issue_product(Block& b, Block& home, std::span<const SharedOperand> operands,
                     std::span<const TensorAccess> uses, const void* pc, const Where&,
                     const Sender&) override {
    for (const SharedOperand& operand : operands) {
      read_operands(b, home, kProduct, operand.chunks, pc);
    }
    if (&home != &b) return;  // tensor memory is per block
    // A in tensor memory, scales; D, the last use, is written, and read if accumulated into.
    const TensorAccess& d = uses.back();
    bool adds = false;
    for (const TensorAccess& use : uses) {
      if (use.writes) continue;
      if (use.column == d.column) {
        adds = true;
      } else {
        touch_tensor(b, kProduct, Kind::load, use, pc);
      }
    }
    touch_tensor(b, kProduct, adds ? Kind::atomic : Kind::store, d, pc);
  }
  void move_tensor(Block& b, TensorUse use, const TensorAccess& a, const void* pc,
                   const Where&) override {
    if (use == TensorUse::free) return;
    touch_tensor(b, kTensorMove, a.writes ? Kind::store : Kind::load, a, pc);
  }
  void touch_tensor(Block& b, By by, Kind kind, const TensorAccess& a, const void* pc) {
    const unsigned thread = b.current->id;
    Open& e = event_of({pc, recorder.tensor_place(), clock_[thread], kind, by, thread / 128,
                        callers_of(pc, by), 0});
    for (unsigned lane = 0; lane < kEighths * kEighth; ++lane) {
      if (!(a.eighths >> lane / kEighth & 1)) continue;
      e.elements.add(lane * kColumns + a.column, a.columns);
      e.bytes += a.columns * kWord;
    }
    e.transfers = e.bytes / kWavefront;
  }
  // Its arrival is later, but in the phase that runs now.
  uint32_t commit_products(Block& b, const void* bar, const Where&) override {
    release(b, bar, mbarrier_phase(*home_of(bar), bar));
    return 0;
  }
  void read_operands(Block& b, Block& home, By by, const std::vector<uint32_t>& chunks,
                     const void* pc) {
    const uint32_t callers = callers_of(pc, by);
    for (const uint32_t at : chunks) {
      const uint32_t place = recorder.shared_place(home, at);
      const unsigned thread = b.current->id;
      const fa::TracePlace& p = recorder.trace.places[place];
      const uint64_t first = at - base_of(home, p);
      Open& e = event_of({pc, place, clock_[thread], Kind::load, by, thread / 128, callers,
                          part_of(place, first)});
      add(e, p, first, kChunk);
      e.bytes += kChunk;
      e.transfers = (e.bytes + kWavefront - 1) / kWavefront;
    }
  }

  void barrier(Block&, ThreadSet met, const void* object) override {
    uint32_t latest = released_before(object, kNone);
    each(met, [&](unsigned thread) { latest = std::max(latest, clock_[thread]); });
    each(met, [&](unsigned thread) { clock_[thread] = latest + 1; });
  }
  // Often one lane waits on behalf of all.
  void warp_sync(Block&, unsigned warp, uint32_t lanes) override {
    uint32_t latest = 0;
    for (uint32_t m = lanes; m; m &= m - 1) {
      latest = std::max(latest, clock_[warp * 32 + std::countr_zero(m)]);
    }
    for (uint32_t m = lanes; m; m &= m - 1) clock_[warp * 32 + std::countr_zero(m)] = latest;
  }
  void release(Block& b, const void* object, uint32_t phase) override {
    uint32_t& known = known_[object][phase];
    known = std::max(known, clock_[b.current->id]);
  }
  void acquire(Block& b, const void* object, uint32_t phase) override {
    uint32_t& mine = clock_[b.current->id];
    mine = std::max(mine, released_before(object, phase)) + 1;
  }

  uint32_t event() const override { return current_; }
  void request(uint32_t number, uint32_t lanes, uint32_t lane_bytes, const uint32_t (&at)[32],
               unsigned transfers) override {
    Open& e = open_[number];
    ++e.requests;
    e.transfers += transfers;
    if (std::popcount(lanes) <= std::popcount(e.request.lanes)) return;
    e.request.lanes = lanes;
    e.request.lane_bytes = lane_bytes;
    e.request.transfers = transfers;
    const fa::TracePlace& p = recorder.trace.places[e.key.place];
    for (unsigned lane = 0; lane < 32; ++lane) {
      if (!(lanes >> lane & 1)) continue;
      e.request.at[lane] = p.space == fa::TraceSpace::shared
                               ? at[lane] - base_of(*home_, p)
                               : kWord * uint64_t{at[lane] - begin_of(e.key.place)};
    }
  }

  void end_block(Block& b) override {
    std::vector<uint32_t> order(open_.size());
    for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](uint32_t x, uint32_t y) {
      return open_[x].key.clock < open_[y].key.clock;
    });
    std::vector<const void*> pcs;
    for (const Open& e : open_) pcs.insert(pcs.end(), e.calls.begin(), e.calls.end());
    resolve_sources(pcs);
    // Merges the instructions of a line into one event.
    std::map<std::tuple<uint32_t, uint32_t, uint32_t, Kind, By, uint32_t>, uint32_t> of_line;
    std::vector<uint32_t> first;  // by event: its first open one
    std::vector<uint32_t> stacks;
    choose_members();
    for (const uint32_t i : order) {
      Open& e = open_[i];
      const uint32_t stack = recorder.stack_of(e.calls);
      keep_request(e, stack);
      const auto [at, fresh] = of_line.try_emplace(
          {e.key.clock, stack, e.key.place, e.key.kind, e.key.by, e.key.warpgroup}, i);
      if (fresh) {
        first.push_back(i);
        stacks.push_back(stack);
        continue;
      }
      Open& whole = open_[at->second];
      whole.elements.add(e.elements);
      whole.bytes += e.bytes, whole.requests += e.requests, whole.transfers += e.transfers;
      whole.hbm_read += e.hbm_read, whole.hbm_write += e.hbm_write;
    }
    std::vector<fa::TraceEvent>& events = recorder.blocks[b.linear];
    uint64_t now = 0;
    for (size_t k = 0; k < first.size(); ++k) {
      const Open& e = open_[first[k]];
      fa::TraceEvent out{.block = static_cast<uint32_t>(b.linear),
                         .place = e.key.place,
                         .stack = stacks[k],
                         .kind = static_cast<fa::TraceKind>(e.key.kind),
                         .how = name_of(e.key.by, e.key.kind),
                         .waits = e.key.clock,
                         .start = now,
                         .ticks = std::max<uint64_t>(1, e.transfers),
                         .bytes = e.bytes,
                         .requests = e.requests,
                         .transfers = e.transfers,
                         .hbm_read = e.hbm_read,
                         .hbm_write = e.hbm_write};
      out.touched =
          e.elements.rectangles(recorder.trace.places[e.key.place].layout.columns, out.exact);
      now += out.ticks;
      events.push_back(std::move(out));
    }
    open_.clear();
  }

 private:
  static void each(ThreadSet threads, auto&& f) {
    for (unsigned w = 0; w < 32; ++w) {
      for (uint32_t m = threads[w]; m; m &= m - 1) f(w * 32 + std::countr_zero(m));
    }
  }

  // The latest clock among the threads that released to `object` in an earlier phase.
  uint32_t released_before(const void* object, uint32_t phase) const {
    const auto at = known_.find(object);
    uint32_t latest = 0;
    if (at == known_.end()) return latest;
    for (const auto& [number, clock] : at->second) {
      if (number < phase) latest = std::max(latest, clock);
    }
    return latest;
  }

  static uint64_t base_of(const Block& home, const fa::TracePlace& p) {
    return home.dynamic_base - home.shared_base + static_cast<uint64_t>(p.offset);
  }
  static uint32_t begin_of(uint32_t place) {
    for (const auto& [number, known] : recorder.buffers) {
      if (known == place) return static_cast<uint32_t>(buffers[number].begin / kWord);
    }
    return 0;
  }

  Open& event_of(const Key& key) {
    if (current_ < open_.size() && open_[current_].key == key) return open_[current_];
    const auto [at, fresh] = numbers_.try_emplace(key, open_.size());
    current_ = at->second;
    if (fresh)
      open_.push_back({key, calls_to(key.pc, home_->launch->kernel), {}, 0, 0, 0, 0, 0, {}});
    return open_[current_];
  }

  // A number for the calls that led to an access; 0: the kernel makes it itself, or the operation
  // is carried out later than its call, so nothing needs unwinding.
  uint32_t callers_of(const void* pc, By by) {
    const void* kernel = home_->launch->kernel;
    if (by == By::copy || by == By::engine || is_inside(pc, kernel)) return 0;
    const auto number = static_cast<uint32_t>(callers_.size() + 1);
    return callers_.try_emplace(calls_to(pc, kernel), number).first->second;
  }

  static void add(Open& e, const fa::TracePlace& p, uint64_t first, uint64_t bytes) {
    const uint64_t element = p.layout.element_bytes;
    const uint64_t end =
        std::min(first + bytes, p.layout.matrices * p.layout.rows * p.layout.columns * element);
    if (first < end) e.elements.add(first / element, (end - 1) / element - first / element + 1);
  }

  // 0 where a place is no union.
  static uint32_t part_of(uint32_t place, uint64_t offset) {
    const auto all = recorder.unions.find(place);
    return all == recorder.unions.end() ? 0 : all->second.part_of(offset);
  }

  // Chooses the members of a union in which an instruction's accesses form the fewest rectangles;
  // of several choices, the smallest members.
  void choose_members() {
    std::map<std::tuple<const void*, uint32_t, uint32_t, Kind, By, uint32_t, uint32_t>,
             std::vector<uint32_t>>
        alike;
    for (uint32_t i = 0; i < open_.size(); ++i) {
      const Key& k = open_[i].key;
      if (!recorder.unions.contains(k.place)) continue;
      alike[{k.pc, k.place, k.clock, k.kind, k.by, k.warpgroup, k.callers}].push_back(i);
    }
    for (const auto& [key, events] : alike) choose_members(events);
  }
  void choose_members(const std::vector<uint32_t>& events) {
    const uint32_t whole = open_[events.front()].key.place;
    std::pair fewest{~size_t{0}, uint64_t{0}};  // rectangles, bytes of all members
    const std::vector<uint32_t>* best = nullptr;
    for (const std::vector<uint32_t>& set : recorder.unions.at(whole).sets) {
      std::map<uint32_t, Elements> touched;  // by member
      bool all = true;
      for (const uint32_t i : events) {
        const uint32_t member = member_of(set, whole, open_[i].elements.first());
        all = all && member != kNone;
        if (all) touched[member].add(within(open_[i].elements, whole, member));
      }
      if (!all) continue;
      std::pair found{size_t{0}, uint64_t{0}};
      for (const auto& [member, elements] : touched) {
        const fa::TracePlace& p = recorder.trace.places[member];
        bool exact = true;
        const size_t rectangles = elements.rectangles(p.layout.columns, exact).size();
        found.first += exact ? rectangles : kMostRectangles + 1;
        found.second += p.bytes;
      }
      if (found < fewest) fewest = found, best = &set;
    }
    if (!best) return;  // bytes between the members: the event keeps the whole
    for (const uint32_t i : events) {
      Open& e = open_[i];
      const uint32_t member = member_of(*best, whole, e.elements.first());
      e.elements = within(e.elements, whole, member);
      for (uint64_t& at : e.request.at) at -= std::min(at, skipped(whole, member));
      e.key.place = member;
    }
  }

  static uint64_t skipped(uint32_t whole, uint32_t member) {
    return recorder.trace.places[member].offset - recorder.trace.places[whole].offset;
  }
  static uint32_t member_of(const std::vector<uint32_t>& set, uint32_t whole, uint64_t byte) {
    for (const uint32_t member : set) {
      const uint64_t begin = skipped(whole, member);
      if (begin <= byte && byte < begin + recorder.trace.places[member].bytes) return member;
    }
    return kNone;
  }
  static Elements within(const Elements& bytes, uint32_t whole, uint32_t member) {
    return bytes.scaled(skipped(whole, member), recorder.trace.places[member].layout.element_bytes);
  }

  static void keep_request(const Open& e, uint32_t stack) {
    if (e.request.lanes == 0) return;
    const std::string how = name_of(e.key.by, e.key.kind);
    auto& all = recorder.trace.requests;
    const auto [at, fresh] = recorder.requests.try_emplace(
        {stack, e.key.place, static_cast<int>(e.key.kind), how}, all.size());
    if (fresh) all.emplace_back();
    fa::TraceRequest& kept = all[at->second];
    if (std::popcount(kept.lanes) >= std::popcount(e.request.lanes)) return;
    kept = e.request;
    kept.kernel = recorder.kernel();
    kept.place = e.key.place;
    kept.stack = stack;
    kept.kind = static_cast<fa::TraceKind>(e.key.kind);
    kept.how = how;
  }

  std::vector<Open> open_;
  std::unordered_map<Key, uint32_t, Hash> numbers_;
  std::map<std::vector<const void*>, uint32_t> callers_;
  uint32_t current_ = kNone;
  uint32_t clock_[1024] = {};                                  // by thread
  std::map<const void*, std::map<uint32_t, uint32_t>> known_;  // object, phase: clock
  const Block* home_ = nullptr;
};

class TraceWatcher final : public Watcher {
 public:
  bool wanted() const override { return options().trace && recording(); }
  bool alone() const override { return true; }
  void begin_recording() override { recorder = {}; }
  void end_recording(fa::Counts& counts) override {
    counts.trace = std::move(std::exchange(recorder, {}).trace);
  }
  void observe(Block& b) override { b.observers.push_back(std::make_unique<TraceRecorder>()); }

  void begin_launch(const Launch& launch, uint64_t slots) override {
    const auto& [g, b, smem, cluster, together, shares_work] = launch.config;
    fa::TraceKernel kernel;
    kernel.name = kernel_name(launch);
    kernel.grid = {g.x, g.y, g.z};
    kernel.block = {b.x, b.y, b.z};
    kernel.shared_bytes = smem;
    kernel.slots = slots;
    kernel.start = recorder.now;
    recorder.trace.kernels.push_back(kernel);
    recorder.blocks.clear();
    recorder.shared.clear();
    recorder.shared_places.clear();
    recorder.tensor = kNone;
  }

  // A block begins when an earlier one leaves its slot.
  void end_launch() override {
    fa::TraceKernel& kernel = recorder.trace.kernels.back();
    std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> ends;
    uint64_t last = kernel.start;
    for (auto& [block, events] : recorder.blocks) {
      uint64_t start = kernel.start;
      if (ends.size() >= std::max<uint64_t>(1, kernel.slots)) {
        start = ends.top();
        ends.pop();
      }
      uint64_t end = start;
      for (fa::TraceEvent& e : events) {
        e.start += start;
        end = e.start + e.ticks;
        kernel.events.push_back(std::move(e));
      }
      ends.push(end);
      last = std::max(last, end);
    }
    kernel.ticks = last - kernel.start;
    recorder.now = last;
    recorder.blocks.clear();
  }

  void copy(const char* what, uint16_t buffer, uint64_t offset, uint64_t bytes,
            bool write) override {
    const uint32_t place = recorder.place_of(buffer);
    const fa::TracePlace& p = recorder.trace.places[place];
    const uint64_t first = offset - buffers[buffer].begin;
    fa::TraceEvent e{.place = place,
                     .stack = recorder.stack_of({}),
                     .kind = write ? fa::TraceKind::write : fa::TraceKind::read,
                     .how = what,
                     .start = recorder.now,
                     .ticks = (bytes + kSector - 1) / kSector,
                     .bytes = bytes};
    recorder.touches.touch(offset, bytes, write ? Kind::store : Kind::load, e.hbm_read,
                           e.hbm_write);
    Elements elements;
    elements.add(first / p.layout.element_bytes, bytes / p.layout.element_bytes);
    e.touched = elements.rectangles(p.layout.columns, e.exact);
    fa::TraceKernel kernel;
    kernel.name = what;
    kernel.slots = 1;
    kernel.start = recorder.now;
    kernel.ticks = e.ticks;
    recorder.now += e.ticks;
    kernel.events.push_back(std::move(e));
    recorder.trace.kernels.push_back(std::move(kernel));
  }
};

TraceWatcher watcher;
[[maybe_unused]] const Watcher* linked = trace_watcher() = &watcher;

}  // namespace

}  // namespace sim

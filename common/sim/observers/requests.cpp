// From accesses of single threads back to the requests of whole warps.
//
// On a GPU the lanes of a warp issue a load together. Here they run one after the other, each until
// it meets a barrier or a shuffle. So the n-th execution of an instruction (its address in the code)
// by one lane belongs to the n-th one by the other lanes, counted from the moment that the warp
// began to run; when the warp gives way to another, its requests are complete and are counted.
//
// The first lane writes the log of requests; the others walk along it, and for as long as they do
// the same as their neighbours the next entry is theirs. Only a lane that took another path looks
// its entry up.
#include <algorithm>
#include <bit>
#include <cstring>
#include <map>

#include "common/sim/observers/l2.h"
#include "common/sim/observers/observer.h"
#include "common/sim/observers/shadow.h"
#include "common/sim/scheduler/block.h"
#include "common/traffic.h"

namespace sim {

namespace {

constexpr unsigned kLanes = 32;
constexpr uint32_t kAllLanes = ~0u;
constexpr unsigned kSector = 32;
constexpr unsigned kWidest = 16;  // bytes that one instruction moves per lane

// A warp may run this many requests without giving way. (Each takes 160 bytes, when it is used.) If
// a thread does more, its log is counted and begun anew, so what lies before and behind that point
// counts as a request of one lane: too many requests, never too few.
constexpr size_t kLogCapacity = size_t{1} << 20;

/// What an instruction does, in one word. (A select of two pointers counts as a request to each.)
struct What {
  Kind kind;
  Space space;
  uint16_t buffer;
  bool operator==(const What& o) const { return bits() == o.bits(); }
  uint32_t bits() const { return std::bit_cast<uint32_t>(*this); }
};

/// One entry of the log: the lanes that met at an instruction, and their addresses.
struct Request {
  const void* pc;
  Request* next;
  uint32_t site;
  uint32_t occurrence;  ///< the how-many-th execution of the site
  What what;
  uint32_t size;  ///< bytes a lane
  uint32_t lanes;
  uint32_t at[kLanes];  ///< sector number (its low 32 bits), or byte in shared memory
};

/// An instruction, with what it accesses.
struct Site {
  const void* pc;
  What what;
  uint32_t size;
  std::vector<Request*> requests;  ///< by occurrence, of the warp that runs
  uint64_t count = 0, transfers = 0, ideal = 0;
};

/// How often each lane of the running warp has executed a site.
using Occurrences = uint32_t[kLanes];

struct PerBuffer {
  uint64_t requests[3] = {}, sectors[3] = {};
};

// The lanes' addresses without gaps. \returns how many.
unsigned dense(const Request& r, uint32_t* out) {
  if (r.lanes == kAllLanes) {
    std::memcpy(out, r.at, sizeof r.at);
    return kLanes;
  }
  unsigned n = 0;
  for (uint32_t m = r.lanes; m; m &= m - 1) out[n++] = r.at[std::countr_zero(m)];
  return n;
}

// Keeps the first of equal numbers. \returns how many are left.
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

class RequestObserver final : public Observer {
 public:
  RequestObserver(bool sites, bool l2) : keep_sites_(sites), l2_(l2), log_(kLogCapacity) {
    buffers_.resize(buffer_count());
    table_.resize(256);
    begin_log();
  }

  void begin_block(Block& b) override {
    if (l2_) stream_.begin(b.linear);
  }
  void end_block(Block&) override {
    if (l2_) stream_.end();
  }
  void leave_warp(Block&, unsigned) override { count_log(); }

  void access(Block& b, const Access& a) override {
    if (!a.lsu) {
      if (l2_ && a.space == Space::hbm) touch_range(a);
      return;
    }
    const uint64_t end = a.at + a.size;
    const unsigned lane = b.current->id % kLanes;
    if (a.size <= kWidest && (a.space == Space::shared || a.at % kSector + a.size <= kSector))
        [[likely]] {
      add(lane, a, a.at, a.size);
    } else {  // a struct, or a misaligned word: as many instructions as it takes
      for (uint64_t at = a.at; at < end;) {
        const uint64_t next = std::min(end, (at / kWidest + 1) * kWidest);
        add(lane, a, at, static_cast<unsigned>(next - at));
        at = next;
      }
    }
  }

  void merge(fa::Counts& counts, fa::KernelCount& kernel) override {
    if (!counts.requests) counts.requests.emplace();
    if (!counts.sectors) counts.sectors.emplace();
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const PerBuffer& b = buffers_[i];
      const fa::Ops requests{b.requests[0], b.requests[1], b.requests[2]};
      const fa::Ops sectors{b.sectors[0], b.sectors[1], b.sectors[2]};
      if (requests == fa::Ops{}) continue;
      fa::BufferCount& named = counts.buffers[sim::buffers[i].name];
      for (fa::Ops* total : {&named.requests, &kernel.requests, &*counts.requests}) {
        *total += requests;
      }
      for (fa::Ops* total : {&named.sectors, &kernel.sectors, &*counts.sectors}) *total += sectors;
    }
    kernel.shared_requests += shared_requests_;
    kernel.shared_wavefronts += shared_wavefronts_;
    kernel.shared_ideal += shared_ideal_;
    if (keep_sites_) merge_sites(counts);
  }

 private:
  // --- the log ---------------------------------------------------------------------------------------

  void begin_log() {
    free_ = log_.data();
    head_.next = &tail_;
    std::fill_n(last_, kLanes, &head_);
  }

  void add(unsigned lane, const Access& a, uint64_t at, unsigned size) {
    const What what{a.kind, a.space, a.buffer};
    const auto where = static_cast<uint32_t>(a.space == Space::hbm ? at / kSector : at);
    Request* r = last_[lane]->next;
    if (r->pc != a.pc || !(r->what == what) || occurrences_[r->site].n[lane] != r->occurrence)
        [[unlikely]] {
      r = look_up(lane, a.pc, what, size);
    }
    ++occurrences_[r->site].n[lane];
    r->at[lane] = where;
    r->lanes |= 1u << lane;
    last_[lane] = r;
  }

  // The lane's entry when it is not the next one; a new entry if the lane is the first to get there.
  [[gnu::noinline]] Request* look_up(unsigned lane, const void* pc, What what, unsigned size) {
    if (free_ == log_.data() + kLogCapacity) count_log();
    const uint32_t number = site_of(pc, what, size);
    Site& site = sites_[number];
    const uint32_t occurrence = occurrences_[number].n[lane];
    if (occurrence < site.requests.size()) return site.requests[occurrence];
    Request* r = free_++;
    r->pc = pc;
    r->next = last_[lane]->next;  // where this lane is, so that the lanes to come find it in order
    r->site = number;
    r->occurrence = occurrence;
    r->what = what;
    r->size = size;
    r->lanes = 0;
    last_[lane]->next = r;
    if (site.requests.empty()) active_.push_back(number);
    site.requests.push_back(r);
    return r;
  }

  uint32_t site_of(const void* pc, What what, unsigned size) {
    for (size_t h = hash(pc, what);; ++h) {
      uint32_t& slot = table_[h % table_.size()];
      if (slot == 0) break;
      const Site& s = sites_[slot - 1];
      if (s.pc == pc && s.what == what) return slot - 1;
    }
    sites_.push_back({pc, what, size, {}});
    occurrences_.push_back({});
    if (sites_.size() * 2 > table_.size()) {
      table_.assign(table_.size() * 2, 0);
      for (uint32_t i = 0; i < sites_.size(); ++i) enter(i);
    } else {
      enter(static_cast<uint32_t>(sites_.size() - 1));
    }
    return static_cast<uint32_t>(sites_.size() - 1);
  }
  void enter(uint32_t number) {
    size_t h = hash(sites_[number].pc, sites_[number].what);
    while (table_[h % table_.size()]) ++h;
    table_[h % table_.size()] = number + 1;
  }
  static size_t hash(const void* pc, What what) {
    return (reinterpret_cast<uintptr_t>(pc) ^ uint64_t{what.bits()} * 31) * 0x9E3779B97F4A7C15u >>
           40;
  }

  // --- counting ---------------------------------------------------------------------------------------

  void count_log() {
    for (const Request* r = head_.next; r != &tail_; r = r->next) {
      if (r->what.space == Space::shared) {
        count_shared(*r);
      } else {
        count_hbm(*r);
      }
    }
    for (uint32_t number : active_) {
      sites_[number].requests.clear();
      occurrences_[number] = {};
    }
    active_.clear();
    begin_log();
  }

  void count_hbm(const Request& r) {
    uint32_t sectors[kLanes];
    const unsigned lanes = dense(r, sectors);
    const unsigned n = unique(sectors, lanes);
    const int kind = static_cast<int>(r.what.kind);
    buffers_[r.what.buffer].requests[kind] += 1;
    buffers_[r.what.buffer].sectors[kind] += n;
    if (l2_) {
      // The log keeps 32 bits of a sector's number; the buffer's beginning tells the others.
      const uint64_t first = sim::buffers[r.what.buffer].begin / kSector;
      for (unsigned i = 0; i < n; ++i) {
        stream_.touch(first + (sectors[i] - static_cast<uint32_t>(first)),
                      r.what.kind != Kind::store, r.what.kind != Kind::load);
      }
    }
    if (keep_sites_) {
      // Lanes that read the same bytes need fewer sectors than their number suggests.
      const unsigned ideal = std::min(n, (lanes * r.size + kSector - 1) / kSector);
      count_site(r.site, n, ideal);
    }
  }

  // Wide accesses go in parts: 8 bytes by half warps, 16 by quarters. Idle parts cost nothing.
  void count_shared(const Request& r) {
    const unsigned width = r.size <= 4 ? 1 : r.size <= 8 ? 2 : 4;
    const unsigned part = kLanes / width;
    unsigned wavefronts = 0, ideal = 0;
    for (unsigned first = 0; first < kLanes; first += part) {
      uint32_t at[kLanes];
      unsigned n = 0;
      for (unsigned lane = first; lane < first + part; ++lane) {
        if (r.lanes >> lane & 1) at[n++] = r.at[lane];
      }
      if (n == 0) continue;
      wavefronts += bank_cycles(at, n, width);
      ideal += 1;
    }
    shared_requests_ += 1;
    shared_wavefronts_ += wavefronts;
    shared_ideal_ += ideal;
    if (keep_sites_) count_site(r.site, wavefronts, ideal);
  }

  void count_site(uint32_t number, unsigned transfers, unsigned ideal) {
    Site& s = sites_[number];
    s.count += 1;
    s.transfers += transfers;
    s.ideal += ideal;
  }

  // A copy engine moves these bytes: sectors for the L2, but no request of a warp.
  void touch_range(const Access& a) {
    for (uint64_t s = a.at / kSector; s <= (a.at + a.size - 1) / kSector; ++s) {
      stream_.touch(s, a.kind != Kind::store, a.kind != Kind::load);
    }
  }

  // Several instructions of one line become one row.
  void merge_sites(fa::Counts& counts) const {
    static constexpr const char* kVerbs[] = {" load", " store", " atomic"};
    std::map<std::pair<std::string, std::string>, fa::SiteCount*> rows;
    for (fa::SiteCount& row : counts.sites) rows[{row.where, row.what}] = &row;
    std::vector<fa::SiteCount> fresh;
    fresh.reserve(sites_.size());
    for (const Site& s : sites_) {
      if (s.count == 0) continue;
      const std::string& memory =
          s.what.space == Space::shared ? std::string("shared") : sim::buffers[s.what.buffer].name;
      const std::string what =
          memory + kVerbs[static_cast<int>(s.what.kind)] + std::to_string(8 * s.size);
      fa::SiteCount*& row = rows[{source_of(s.pc), what}];
      if (!row) row = &fresh.emplace_back(fa::SiteCount{source_of(s.pc), what});
      row->requests += s.count;
      row->transfers += s.transfers;
      row->ideal += s.ideal;
    }
    counts.sites.insert(counts.sites.end(), fresh.begin(), fresh.end());
  }

  const bool keep_sites_, l2_;

  LazyArray<Request> log_;
  Request* free_ = nullptr;  // the first unused entry
  Request head_{}, tail_{};  // of the list; no access has their pc, null
  Request* last_[kLanes];    // where each lane is

  struct Lanes {
    Occurrences n;
  };
  std::vector<Site> sites_;
  std::vector<Lanes> occurrences_;  // by site
  std::vector<uint32_t> table_;     // hash -> number of the site, plus one
  std::vector<uint32_t> active_;    // sites in the log

  std::vector<PerBuffer> buffers_;
  uint64_t shared_requests_ = 0, shared_wavefronts_ = 0, shared_ideal_ = 0;
  L2Stream stream_;
};

}  // namespace

std::unique_ptr<Observer> make_request_observer(bool sites, bool l2) {
  return std::make_unique<RequestObserver>(sites, l2);
}

}  // namespace sim

#include "common/dialect/ptx/layouts.h"
#include "common/sim/messages/messages.h"
#include "common/sim/observers/races/findings.h"

namespace sim::races {

// The program's code lies within 2 GiB, so a nearby address supplies the high bits.
static const void* widen(uint32_t pc, const void* neighbour) {
  const auto near = reinterpret_cast<uintptr_t>(neighbour);
  return reinterpret_cast<const void*>(near +
                                       static_cast<int32_t>(pc - static_cast<uint32_t>(near)));
}

static unsigned padded() { return self->nwarps * 32; }
static uint64_t cluster_of(uint64_t block) {
  return self->cluster ? block / self->cluster->blocks.size() : block;
}
static std::string block_index(uint64_t linear) {
  const auto [x, y, z] = self->launch->config.index(linear);
  return "(" + std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z) + ")";
}
static uint64_t block_of(unsigned entry) { return self->linear - self->rank + entry / padded(); }

// "thread (0,0,0)", "block (1,0,0), thread (0,0,0)"
static std::string who(uint64_t block, unsigned entry) {
  return (block == self->linear ? "" : "block " + block_index(block) + ", ") +
         thread_name(*self, entry % padded());
}

// "tile, byte 132"
static std::string place(const Access& a, uint64_t byte) {
  if (a.space == Space::shared) {
    return shared_name(*a.home, byte) +
           (a.home == self ? "" : ", in block " + block_index(a.home->linear));
  }
  const BufferInfo& b = buffers[a.buffer];
  return b.name + ", byte " + std::to_string(byte - b.begin);
}
static const char* space(const Access& a) { return a.space == Space::shared ? "shared" : "device"; }

// "load of tile, byte 132 at kernel.cuh:14"
static std::string subject(const Use& use, uint64_t byte) {
  const Access& a = use.access;
  return (use.words ? use.words : noun(a.kind) + std::string(" of")) + " " +
         place(a, std::max(a.at, byte)) + " at " +
         (use.where ? at(*use.where) : source_and_caller(a.pc));
}
static Line line_of(const Use& use) { return {use.access.pc, use.where}; }

static std::string describe(const Operation& o) {
  static const char* const kWhat[] = {
      "", "wgmma by the warpgroup of ", "TMA store by ", "", "tcgen05.ld by ", "tcgen05.st by "};
  const uint64_t block = block_of(o.issuer);
  std::string issuer = who(block, o.issuer);
  if (o.engine == Operation::tensor_load || o.engine == Operation::tensor_store) {
    issuer = "warp " + std::to_string(o.issuer % padded() / 32);
    if (block != self->linear) issuer += " of block " + block_index(block);
  }
  const bool named = o.engine == Operation::load || o.engine == Operation::product;
  const char* what = named ? o.sender->by : kWhat[o.engine];
  return std::string("a ") + what + issuer + " at " + at(o.where);
}

static std::string in_other_phase(const Wait* wait) {
  return !wait ? ""
               : " (the wait at " + at(wait->where) + ", for parity " +
                     std::to_string(wait->parity) + ", is for another phase)";
}

static bool is_bulk_store(const Race& r) {  // its entry is a channel
  const unsigned blocks = self->cluster ? static_cast<unsigned>(self->cluster->blocks.size()) : 1;
  return !r.where && r.past.entry >= blocks * padded();
}

// "a store by thread (0,0,0) at kernel.cuh:12"
static std::string earlier(const Race& r, const std::string& preceding) {
  if (r.operation) return describe(*r.operation);
  const Past& p = r.past;
  if (r.where) return "its mbarrier.init by " + who(p.block, p.entry) + " at " + at(*r.where);
  const std::string line = source_and_caller(widen(p.pc, r.use.access.pc));
  const std::string what = (p.kind == Kind::atomic ? "an " : "a ") + std::string(noun(p.kind));
  if (r.missing == Missing::kernel_wait) return what + " by kernel " + preceding + " at " + line;
  if (is_bulk_store(r)) return "a bulk store by block " + block_index(p.block) + " at " + line;
  return what + " by " + who(p.block, p.entry) + " at " + line;
}

static std::string completion_of(const Race& r) {
  const Operation& o = *r.operation;
  if (o.engine == Operation::load) return "no wait on its mbarrier" + in_other_phase(r.wait);
  if (o.engine == Operation::product) return "no wait on the mbarrier of a tcgen05_commit";
  const unsigned me = self->rank * padded() + r.use.thread;
  const bool wgmma = o.engine == Operation::wgmma;  // else a bulk store
  const std::string wait = wgmma ? "wgmma_wait" : "tma_store_wait_read";
  return (wgmma ? me / 128 == o.issuer / 128 : me == o.issuer)
             ? "no " + wait
             : "no order (" + wait + ", then a barrier or an mbarrier)";
}

// By Missing.
static const char* const kMissing[] = {
    "no barrier",
    "no cp.async wait",
    nullptr,
    "no fence.proxy.async (fence_proxy_async by the storing thread, before the barrier)",
    "no fence.proxy.async (fence_proxy_async)",
    "no fence.proxy.async for device memory (fence_proxy_async_global by the storing thread, "
    "before the barrier, or after it by the thread that issues)",
    "no fence.mbarrier_init (mbarrier_init_fence by the thread that initialised, before the "
    "barrier)",
    "no griddepcontrol.wait",
    "no order (tcgen05_fence_before_thread_sync, a barrier, tcgen05_fence_after_thread_sync)",
    "no wait on the mbarrier of a tcgen05_commit",
    "no tcgen05_wait_",
    "no tcgen05_wait_",
    "no tcgen05_fence_before_thread_sync (by the other warp, before the barrier)",
    "no tcgen05_fence_after_thread_sync (after the wait or barrier)",
    "no barrier"};

static std::string missing(const Race& r) {
  if (r.missing == Missing::completion) return completion_of(r);
  if (r.missing == Missing::order && r.use.access.space != Space::shared) {
    const bool near = cluster_of(r.past.block) == cluster_of(self->linear);
    if (is_bulk_store(r)) {
      return near ? "no order (tma_store_wait, then a barrier)"
                  : "no order (tma_store_wait, __threadfence and an atomic)";
    }
    if (!near) return "no order (__threadfence and an atomic)";
  }
  return kMissing[static_cast<int>(r.missing)];
}

void Words::race(const Race& r) {
  const Access& a = r.use.access;
  const bool shared = a.space == Space::shared;
  const Line other = r.where ? Line{nullptr, r.where} : Line{widen(r.past.pc, a.pc), nullptr};
  Findings::Finding& finding =
      findings_.at(shared ? Fault::shared_race : Fault::device_race, line_of(r.use), other);
  const bool fresh = finding.text.empty();
  finding.same_value = r.stores && a.hooked && (fresh || finding.same_value);
  if (finding.same_value) {
    const uint64_t begin = std::max(a.at, r.byte), end = std::min(a.at + a.size, r.byte + kWord);
    const auto* p =
        reinterpret_cast<const void*>((shared ? a.home->shared_base : kHbmBase) + begin);
    findings_.compare_later(finding, p, static_cast<unsigned>(end - begin));
  }
  if (!fresh) return;
  finding.text = "race on " + std::string(space(a)) + " memory: " + here() + ": " +
                 subject(r.use, r.byte) + " and " + earlier(r, preceding) + " have " + missing(r) +
                 " between them";
  if (r.missing == Missing::kernel_wait) {
    finding.text += ": the launch is programmatic, so the preceding kernel may still run";
  }
  if (r.operation && r.operation->engine != Operation::load && r.use.words &&
      a.kind != Kind::load) {
    finding.text += ": it is overwritten too early";
  }
}

std::string* Words::fresh(Fault fault, const Line& line, const Line& other) {
  Findings::Finding& finding = findings_.at(fault, line, other);
  finding.unexplained += fault == Fault::uninitialised;
  return finding.text.empty() ? &finding.text : nullptr;
}

[[gnu::cold]] size_t Words::unwritten(const Use& use, uint64_t byte) {
  if (auto* text = fresh(Fault::uninitialised, line_of(use))) {
    *text = "uninitialised " + std::string(space(use.access)) + " memory: " + here() + ": " +
            subject(use, byte) +
            (use.access.space == Space::shared ? ", which this block has not written yet"
                                               : ", which no thread has written");
  }
  return findings_.latest();
}

void Words::absent(const Use& use, bool ended) {
  fail(FaultKind::out_of_bounds,
       here() + ": " + subject(use, use.access.at) + ", but that block " +
           (ended ? "has ended (a cluster_sync() at the end would hold it)"
                  : "may not have begun (a cluster_sync() would tell)"));
}

void Words::left(const Past& guest) {
  const void* pc = widen(guest.pc, reinterpret_cast<const void*>(self->launch->call));
  if (auto* text = fresh(Fault::left_behind, {pc, nullptr})) {
    *text = block_name(*self) + " may end before the " + noun(guest.kind) + " by " +
            who(guest.block, guest.entry) + " at " + source_and_caller(pc) +
            " has used its shared memory: no barrier between them (a cluster_sync() at the end)";
  }
}

void Words::left(const Operation& load, const Wait* other_phase) {
  if (auto* text = fresh(Fault::left_behind, {nullptr, &load.where})) {
    *text = block_name(*self) + " ends without a wait for " + describe(load) +
            in_other_phase(other_phase) +
            ": the load may write after the block has left its shared memory to another one";
  }
}

void Words::leave_store(const Where& where) {
  if (auto* text = fresh(Fault::left_behind, {nullptr, &where})) {
    *text = here() + " returns while its TMA store at " + at(where) +
            " may still read shared memory; tma_store_wait_read<0>() must come first";
  }
}

void Words::remark(const Where& where, const std::string& sentence) {
  if (auto* text = fresh(Fault::remark, {nullptr, &where})) *text = sentence;
}

void Words::early_wait(int parity, const Where& where) {
  if (auto* text = fresh(Fault::early_wait, {nullptr, &where})) {
    *text = "race on an mbarrier: " + here() + ": nothing orders the wait at " + at(where) +
            " for parity " + std::to_string(parity) +
            " after the phase before: it may end two phases early, when the parity is the same";
  }
}

void Words::touch_busy(RegisterUse use, size_t element, Kind kind, const void* pc,
                       const Where& user) {
  // Right, but the compiler waits first.
  const bool slow = kind == Kind::load && use == RegisterUse::a;
  auto* text =
      fresh(slow ? Fault::register_read : Fault::register_race, {pc, nullptr}, {nullptr, &user});
  if (!text) return;
  const std::string access = here() + ": " + noun(kind) + " of " +
                             (use == RegisterUse::a ? "A's registers" : "the accumulators") +
                             ", element " + std::to_string(element) + ", at " +
                             source_and_caller(pc);
  *text = slow ? access + " before a wgmma_wait for the wgmma at " + at(user) +
                     ": the compiler moves it after that wait, so it does not overlap with the "
                     "product"
               : "race on registers: " + access + " and the wgmma at " + at(user) +
                     " have no wgmma_wait between them";
}

static std::string subject(const TensorPlace& p) {
  static const char* const kWords[] = {"", "tcgen05.ld", "tcgen05.st", "tcgen05.dealloc"};
  return here() + ": " + (p.by ? p.by : kWords[static_cast<int>(p.use)]) +
         (p.writes ? " that writes column " : " of column ") + std::to_string(p.column) +
         (p.in_pair ? " of the pair's other block" : "") + " at " + at(p.where);
}

static std::string missing(Missing what, const Operation& o) {
  std::string text = kMissing[static_cast<int>(what)];
  const bool others = what == Missing::others_move_wait;
  if (others || what == Missing::move_wait)
    text += o.engine == Operation::tensor_load ? "ld" : "st";
  return text + (others ? " (by the other warp, before a barrier)" : "");
}

void Words::tensor_race(const TensorPlace& place, const Operation& o, Missing what) {
  if (auto* text = fresh(Fault::tensor_race, {nullptr, &place.where}, {nullptr, &o.where})) {
    *text = "race on tensor memory: " + subject(place) + " and " + describe(o) + " have " +
            missing(what, o) + " between them";
  }
}

void Words::tensor_unwritten(const TensorPlace& place) {
  if (auto* text = fresh(Fault::uninitialised, {nullptr, &place.where})) {
    *text = "uninitialised tensor memory: " + subject(place) + ", which no thread has written yet";
  }
}

void Words::other_swizzle(const SharedOperand& operand, const Issue& issue, const Operation& load) {
  auto* text = fresh(Fault::other_layout, {nullptr, &issue.where}, {nullptr, &load.where});
  if (!text) return;
  const auto words = [](fa::Swizzle swizzle) {
    return swizzle == fa::Swizzle::none
               ? std::string("no swizzle")
               : "a swizzle of " + std::to_string(static_cast<int>(swizzle)) + " bytes";
  };
  *text = here() + ": the " + issue.sender->signals + " at " + at(issue.where) + " reads " +
          operand.name + " with " + words(operand.swizzle) + ", but " + describe(load) +
          " has stored it with " + words(load.swizzle);
}

}  // namespace sim::races

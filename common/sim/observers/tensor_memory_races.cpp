// Races on tensor memory. mma, ld and st of tcgen05 are ordered only among one thread's products.
//
// As in async_proxy_races.cpp an operation lasts from its issue to its completion, an entry of the
// vector clocks. A later access to the same columns must be ordered after it; tcgen05 instructions
// of different threads are ordered by their fences alone:
//
//   mma  complete at the mbarrier of a tcgen05.commit, which is a before_thread_sync, too; a thread
//        that waits on it, the issuing one included, needs an after_thread_sync. The mma of another
//        thread needs no completion: before_thread_sync, a barrier, after_thread_sync
//   ld   complete at the warp's wait::ld, st at its wait::st: enough for that warp. Others then
//        need before_thread_sync, a barrier or mbarrier, after_thread_sync
//
// A channel has two entries. For a warp's loads, and for its stores: complete before a
// before_thread_sync; and complete. For a thread's products: complete; and issued before a
// before_thread_sync. after_thread_sync copies its thread's clock to behind_fence_, on which later
// instructions rely. Freeing columns is synchronous and needs only completion and a barrier.
//
// What is not found: among the lanes of a warp, which access tensor memory together, one to which
// less is visible than to the last one.
#include "common/dialect/ptx/layouts.h"
#include "common/sim/observers/races.h"

namespace sim {

namespace {

constexpr unsigned kColumns = 512, kQuarters = 4;
constexpr unsigned kProductReads = 8, kSharedProductReads = 9;  // TensorCell, AsyncWord::reads

const char* words_of(TensorUse use) {
  static const char* const kWords[] = {"tcgen05.mma", "tcgen05.ld", "tcgen05.st",
                                       "tcgen05.dealloc"};
  return kWords[static_cast<int>(use)];
}

}  // namespace

void RaceObserver::begin_tensor() {
  tensor_used_ = false;
  behind_fence_.assign(behind_fence_.size(), nullptr);
  for (auto& warp : moves_) warp[0] = warp[1] = {};
  products_.clear();
  fencing_ = {};
}

void RaceObserver::issue_product(Block& b, Block& home, std::span<const SharedOperand> operands,
                                 std::span<const TensorAccess> uses, const void* pc,
                                 const Where& where) {
  constexpr unsigned kChunk = 16;
  const unsigned thread = b.current->id;
  auto& there = observer_of<RaceObserver>(home);
  const uint32_t number =
      there.new_operation(b, *this, Operation::product, &b.threads[thread].waits_for, where);
  products_[thread] = {there.operations_.back().channel, there.operations_.back().stamp};
  const Actor actor{"tcgen05.mma that reads", &where};
  Access a = engine_access(home, 0, kChunk, Kind::load, pc);
  if (&home != &b) check_neighbour(b, a, there, actor);
  for (const SharedOperand& operand : operands) {
    for (const uint32_t chunk : operand.chunks) {
      a.at = chunk;
      for (uint64_t word = chunk / kWord; word < (chunk + kChunk) / kWord; ++word) {
        there.check_before_read(*this, b, a, word, actor);
        SharedCell& w = there.word_of(word);
        AsyncWord& async = (*there.async_)[word];
        if (!w.async) async = {};
        async.reads[kSharedProductReads] = number;
        w.async = true;
      }
    }
    if (!operand.chunks.empty()) there.check_swizzle(b, operand, operand.chunks[0] / kWord, where);
  }
  for (const TensorAccess& use : uses) {
    there.use_tensor(*this, b, TensorUse::product, use, number, where);
  }
}

// Its stamp covers the preceding products.
uint32_t RaceObserver::commit_products(Block& b, const void*, const Where& where) {
  const unsigned thread = b.current->id;
  const uint32_t number =
      new_operation(b, *this, Operation::product, &b.threads[thread].waits_for, where);
  keep_past(thread, operations_.back());
  return number;
}

// Words that TMA wrote and no thread has stored to are laid out as their tensor map says. (A store
// to the whole word has ended `async`.)
void RaceObserver::check_swizzle(const Block& b, const SharedOperand& operand, uint64_t word,
                                 const Where& where) {
  const SharedCell& w = word_of(word);
  const Operation* load = w.split ? nullptr : find((*async_)[word].write);
  if (!load || load->swizzle == fa::Swizzle{} || load->swizzle == operand.swizzle) return;
  Findings::Finding& finding =
      findings.at(Fault::other_layout, {nullptr, &where}, {nullptr, &load->where});
  if (!finding.text.empty()) return;
  const auto words = [](fa::Swizzle swizzle) {
    return swizzle == fa::Swizzle::none
               ? std::string("no swizzle")
               : "a swizzle of " + std::to_string(static_cast<int>(swizzle)) + " bytes";
  };
  finding.text = here() + ": the tcgen05.mma at " + at(where) + " reads " + operand.name +
                 " with " + words(operand.swizzle) + ", but " + describe(b, *load) +
                 " has stored it with " + words(load->swizzle);
}

void RaceObserver::move_tensor(Block& b, TensorUse use, const TensorAccess& a, const void*,
                               const Where& where) {
  if (use == TensorUse::free) return use_tensor(*this, b, use, a, 0, where);
  const unsigned warp = b.current->id / 32;
  const Thread& first = b.threads[warp * 32];  // its members stand for channels
  const bool loads = use == TensorUse::load;
  const void* channel = loads ? static_cast<const void*>(&first.converged) : &first.early;
  const uint32_t number = new_operation(
      b, *this, loads ? Operation::tensor_load : Operation::tensor_store, channel, where);
  moves_[warp][loads] = {operations_.back().channel, operations_.back().stamp};
  use_tensor(*this, b, use, a, number, where);
}

void RaceObserver::finish_moves(Block& b, bool loads) {
  const unsigned warp = b.current->id / 32;
  const Latest& latest = moves_[warp][loads];
  if (!latest.stamp) return;
  for (unsigned t = warp * 32; t < warp * 32 + 32; ++t) {
    learn(threads_[t], latest.channel + 1, latest.stamp);
  }
}

void RaceObserver::allocate_tensor(Block&) {
  if (tensor_.empty()) {
    tensor_.resize(kQuarters * kColumns);
    behind_fence_.resize(threads_.size());
  }
  tensor_used_ = true;
}

void RaceObserver::tensor_fence(Block& b, bool before) {
  if (!tensor_used_) return;
  const unsigned thread = b.current->id;
  ThreadState& me = threads_[thread];
  if (!before) {
    behind_fence_[thread] = me.clock;
    return;
  }
  if (me.clock && fencing_.from == me.clock) {
    me.clock = fencing_.result;
  } else if (me.clock) {
    Clock clock = *me.clock;
    for (const auto& warp : moves_) {
      for (const Latest& latest : warp) {
        if (latest.stamp && latest.channel + 1 < clock.size()) {
          set(clock, latest.channel, clock[latest.channel + 1]);
        }
      }
    }
    fencing_ = {me.clock, std::make_shared<const Clock>(std::move(clock))};
    me.clock = fencing_.result;
  }
  if (const auto mine = products_.find(thread); mine != products_.end()) {
    learn(me, mine->second.channel + 1, mine->second.stamp);
  }
}

// --- checks --------------------------------------------------------------------------------------

// Whether enough of the operation is visible to the thread for this use.
bool RaceObserver::ordered(TensorUse use, unsigned thread, const Operation& o) const {
  const unsigned issuer = o.issuer, me = entry(thread);
  const SharedClock &now = threads_[thread].clock, &fenced = behind_fence_[thread];
  if (o.engine == Operation::product) {
    if (use == TensorUse::free) return has(now, o.channel, o.stamp);
    if (use == TensorUse::product && (issuer == me || has(fenced, o.channel + 1, o.stamp))) {
      return true;
    }
    return has(fenced, o.channel, o.stamp);
  }
  if (use == TensorUse::free || issuer / 32 == me / 32) return has(now, o.channel + 1, o.stamp);
  return has(fenced, o.channel, o.stamp);
}

std::string RaceObserver::missing(TensorUse use, unsigned thread, const Operation& o) const {
  const SharedClock& now = threads_[thread].clock;
  const std::string after = "no tcgen05_fence_after_thread_sync (after the wait or barrier)";
  if (o.engine == Operation::product) {
    if (has(now, o.channel, o.stamp)) return after;
    if (use == TensorUse::product) {
      return "no order (tcgen05_fence_before_thread_sync, a barrier, "
             "tcgen05_fence_after_thread_sync)";
    }
    return "no wait on the mbarrier of a tcgen05_commit";
  }
  const std::string wait =
      o.engine == Operation::tensor_load ? "tcgen05_wait_ld" : "tcgen05_wait_st";
  if (o.issuer / 32 == entry(thread) / 32) return "no " + wait;
  const auto& other = observer_of<RaceObserver>(block_of_rank(o.issuer / padded_));
  if (!has(other.threads_[o.issuer % padded_].clock, o.channel + 1, o.stamp)) {
    return "no " + wait + " (by the other warp, before a barrier)";
  }
  if (use != TensorUse::free && has(now, o.channel, o.stamp)) return after;
  if (use != TensorUse::free && has(now, o.channel + 1, o.stamp)) {
    return "no tcgen05_fence_before_thread_sync (by the other warp, before the barrier)";
  }
  return "no barrier";
}

// The current thread (or warp) of `by` uses this block's tensor memory by operation `number`.
void RaceObserver::use_tensor(const RaceObserver& by, const Block& b, TensorUse use,
                              const TensorAccess& a, uint32_t number, const Where& where) {
  const unsigned me = b.current->id, warp = me / 32;
  const auto sentence = [&](unsigned column) {
    return here() + ": " + words_of(use) + (a.writes ? " that writes column " : " of column ") +
           std::to_string(column) + (this == &by ? "" : " of the pair's other block") + " at " +
           at(where);
  };
  uint32_t known = 0;  // the latest operation that is ordered before
  const auto check = [&](uint32_t earlier, unsigned column) {
    const Operation* o = earlier == known || earlier == number ? nullptr : find(earlier);
    if (!o) return;
    if (by.ordered(use, me, *o)) {
      known = earlier;
      return;
    }
    Findings::Finding& finding =
        findings.at(Fault::tensor_race, {nullptr, &where}, {nullptr, &o->where});
    if (!finding.text.empty()) return;
    finding.text = "race on tensor memory: " + sentence(column) + " and " + describe(b, *o) +
                   " have " + by.missing(use, me, *o) + " between them";
  };
  for (unsigned q = 0; q < kQuarters; ++q) {
    if (!(a.quarters >> q & 1)) continue;
    for (unsigned column = a.column; column < a.column + a.columns; ++column) {
      TensorCell& cell = tensor_[q * kColumns + column];
      if (!a.writes && !find(cell.write)) {
        Findings::Finding& finding = findings.at(Fault::uninitialised, {nullptr, &where}, {});
        ++finding.unexplained;
        if (finding.text.empty()) {
          finding.text = "uninitialised tensor memory: " + sentence(column) +
                         ", which no thread has written yet";
        }
      }
      check(cell.write, column);
      if (!a.writes) {
        cell.reads[use == TensorUse::product ? kProductReads : warp / 4] = number;
        continue;
      }
      for (const uint32_t read : cell.reads) check(read, column);
      cell = {number, {}};
    }
  }
}

}  // namespace sim

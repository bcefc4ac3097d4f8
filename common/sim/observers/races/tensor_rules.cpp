// What is not found: of the lanes of a warp, which use tensor memory together, one that knows less
// than the last one.
#include "common/sim/observers/races/tensor_rules.h"

namespace sim::races {

static constexpr unsigned kColumns = 512, kQuarters = 4;

void TensorRules::begin_block() {
  if (!used_) return;
  used_ = false;
  after_fence_.assign(after_fence_.size(), nullptr);
  for (auto& warp : moves_) warp[0] = warp[1] = {};
  products_.clear();
  fencing_ = {};
}

void TensorRules::allocate() {
  if (own_.operations.tensor.empty()) {
    own_.operations.tensor.resize(kQuarters * kColumns);
    after_fence_.resize(own_.clocks.threads());
  }
  used_ = true;
}

void TensorRules::issue_product(BlockParts& home, std::span<const SharedOperand> operands,
                                std::span<const TensorAccess> uses, Access a, const Issue& issue) {
  Operations& there = home.operations;
  const uint32_t number = there.add(own_.clocks, Operation::product, issue);
  products_[issue.thread] = {there.last().channel, there.last().stamp};
  const Use reading{a, issue.thread, "tcgen05.mma that reads", &issue.where};
  for (const SharedOperand& operand : operands) {
    for (const uint32_t chunk : operand.chunks) {
      a.at = chunk;
      for (uint64_t word = chunk / kWord; word < (chunk + a.size) / kWord; ++word) {
        async_.check_before_read(home, reading, word);
        there.open(home.memory.word(word).cell, word).reads[AsyncWord::kProduct] = number;
      }
    }
    if (!operand.chunks.empty()) check_swizzle(home, operand, issue.where);
  }
  for (const TensorAccess& one : uses) use(home, TensorUse::product, one, number, issue);
}

// Its stamp covers the products before it.
uint32_t TensorRules::commit(const Issue& issue) {
  const uint32_t number = own_.operations.add(own_.clocks, Operation::product, issue);
  own_.operations.last().past = own_.clocks.past(issue.thread);
  return number;
}

// What TMA has brought, and no thread has stored to, lies as its tensor map says. (A store to the
// whole word has ended `async`.)
void TensorRules::check_swizzle(BlockParts& home, const SharedOperand& operand,
                                const Where& where) const {
  const uint64_t word = operand.chunks[0] / kWord;
  const SharedCell& w = home.memory.word(word).cell;
  const Operation* load =
      w.split ? nullptr : home.operations.find(home.operations.of_word(word).write);
  if (!load || load->swizzle == fa::Swizzle{} || load->swizzle == operand.swizzle) return;
  faults_.other_swizzle(operand, where, *load);
}

void TensorRules::move(TensorUse what, const TensorAccess& a, const Issue& issue) {
  if (what == TensorUse::free) return use(own_, what, a, 0, issue);
  const bool loads = what == TensorUse::load;
  const uint32_t number = own_.operations.add(
      own_.clocks, loads ? Operation::tensor_load : Operation::tensor_store, issue);
  const Operation& o = own_.operations.last();
  moves_[issue.thread / 32][loads] = {o.channel, o.stamp};
  use(own_, what, a, number, issue);
}

void TensorRules::finish_moves(unsigned warp, bool loads) {
  const Latest& latest = moves_[warp][loads];
  if (!latest.stamp) return;
  for (unsigned t = warp * 32; t < warp * 32 + 32; ++t) {
    own_.clocks.learn(t, latest.channel + 1, latest.stamp);
  }
}

void TensorRules::fence(unsigned thread, bool before) {
  if (!used_) return;
  const SharedClock& mine = own_.clocks[thread].clock;
  if (!before) {
    after_fence_[thread] = mine;
    return;
  }
  if (mine) {
    if (fencing_.from != mine) {
      Clock clock = *mine;
      for (const auto& warp : moves_) {
        for (const Latest& latest : warp) {
          if (latest.stamp && latest.channel + 1 < clock.size()) {
            raise(clock, latest.channel, clock[latest.channel + 1]);
          }
        }
      }
      fencing_ = {mine, std::make_shared<const Clock>(std::move(clock))};
    }
    own_.clocks.learn(thread, fencing_.result);
  }
  if (const auto last = products_.find(thread); last != products_.end()) {
    own_.clocks.learn(thread, last->second.channel + 1, last->second.stamp);
  }
}

// Does the thread know of the operation what it needs for this use?
bool TensorRules::ordered(TensorUse what, unsigned thread, const Operation& o) const {
  const unsigned issuer = o.issuer, me = own_.clocks.entry(thread);
  const SharedClock &now = own_.clocks[thread].clock, &fenced = after_fence_[thread];
  if (o.engine == Operation::product) {
    if (what == TensorUse::free) return has(now, o.channel, o.stamp);
    if (what == TensorUse::product && (issuer == me || has(fenced, o.channel + 1, o.stamp))) {
      return true;
    }
    return has(fenced, o.channel, o.stamp);
  }
  if (what == TensorUse::free || issuer / 32 == me / 32) return has(now, o.channel + 1, o.stamp);
  return has(fenced, o.channel, o.stamp);
}

TensorMissing TensorRules::missing(TensorUse what, unsigned thread, const Operation& o) const {
  const SharedClock& now = own_.clocks[thread].clock;
  if (o.engine == Operation::product) {
    if (has(now, o.channel, o.stamp)) return TensorMissing::after;
    return what == TensorUse::product ? TensorMissing::order : TensorMissing::commit;
  }
  if (o.issuer / 32 == own_.clocks.entry(thread) / 32) return TensorMissing::wait;
  if (!has(own_.clocks.of_entry(o.issuer).clock, o.channel + 1, o.stamp)) {
    return TensorMissing::others_wait;
  }
  if (what == TensorUse::free) return TensorMissing::barrier;
  return has(now, o.channel, o.stamp)       ? TensorMissing::after
         : has(now, o.channel + 1, o.stamp) ? TensorMissing::before
                                            : TensorMissing::barrier;
}

void TensorRules::use(BlockParts& home, TensorUse what, const TensorAccess& a, uint32_t number,
                      const Issue& issue) const {
  const unsigned thread = issue.thread;
  uint32_t known = 0;  // the latest operation that is ordered before
  const auto check = [&](uint32_t earlier, const TensorPlace& place) {
    const Operation* o =
        earlier == known || earlier == number ? nullptr : home.operations.find(earlier);
    if (!o) return;
    if (ordered(what, thread, *o)) {
      known = earlier;
    } else {
      faults_.tensor_race(place, *o, missing(what, thread, *o));
    }
  };
  for (unsigned q = 0; q < kQuarters; ++q) {
    if (!(a.quarters >> q & 1)) continue;
    for (unsigned column = a.column; column < a.column + a.columns; ++column) {
      TensorCell& cell = home.operations.tensor[q * kColumns + column];
      const TensorPlace place{what, a.writes, column, &home != &own_, issue.where};
      if (!a.writes && !home.operations.find(cell.write)) faults_.tensor_unwritten(place);
      check(cell.write, place);
      if (!a.writes) {
        cell.reads[what == TensorUse::product ? TensorCell::kProduct : thread / 128] = number;
        continue;
      }
      for (const uint32_t read : cell.reads) check(read, place);
      cell = {number, {}};
    }
  }
}

}  // namespace sim::races

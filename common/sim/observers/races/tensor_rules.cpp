// What is not found: among the lanes of a warp, which access tensor memory together, one to which
// less is visible than to the last one.
#include "common/sim/observers/races/tensor_rules.h"

#include <algorithm>

namespace sim::races {

void TensorRules::issue_product(BlockParts& home, std::span<const SharedOperand> operands,
                                std::span<const TensorAccess> uses, Access a, const Issue& issue) {
  Operations& there = home.operations;
  const uint32_t number = there.add(own_.clocks, Operation::product, issue);
  there.last().sender = issue.sender;
  state_.products[issue.thread] = {there.last().channel, there.last().stamp};
  const Use reading{a, issue.thread, issue.sender->into, &issue.where};
  for (const SharedOperand& operand : operands) {
    for (const uint32_t chunk : operand.chunks) {
      a.at = chunk;
      for_each_word(a, [&](uint64_t word, uint8_t) {
        async_.check_before_read(home, reading, word);
        SharedCell& w = home.memory.word(word).cell;
        there.open(w, word).reads[LatestOperations::kProduct] = number;
      });
    }
    if (!operand.chunks.empty()) check_swizzle(home, operand, issue);
  }
  for (const TensorAccess& one : uses) use(home, TensorUse::product, one, number, issue);
}

// Its stamp covers the preceding products.
uint32_t TensorRules::commit(const Issue& issue) {
  const uint32_t number = own_.operations.add(own_.clocks, Operation::product, issue);
  own_.operations.last().sender = issue.sender;
  own_.operations.last().past = own_.clocks.past(issue.thread);
  return number;
}

// Words that TMA wrote and no thread has stored to are laid out as their tensor map says. (A store
// to the whole word has ended `async`.)
void TensorRules::check_swizzle(BlockParts& home, const SharedOperand& operand,
                                const Issue& issue) const {
  const uint64_t word = operand.chunks[0] / kWord;
  const SharedCell& w = home.memory.word(word).cell;
  const Operation* load =
      w.split ? nullptr : home.operations.find(home.operations.of_word(word).write);
  if (!load || load->swizzle == fa::Swizzle{} || load->swizzle == operand.swizzle) return;
  faults_.other_swizzle(operand, issue, *load);
}

void TensorRules::move(TensorUse what, const TensorAccess& a, const Issue& issue) {
  if (what == TensorUse::free) return use(own_, what, a, 0, issue);
  const bool loads = what == TensorUse::load;
  const uint32_t number = own_.operations.add(
      own_.clocks, loads ? Operation::tensor_load : Operation::tensor_store, issue);
  const Operation& o = own_.operations.last();
  state_.moves[issue.thread / 32][loads] = {o.channel, o.stamp};
  use(own_, what, a, number, issue);
}

void TensorRules::finish_moves(unsigned warp, bool loads) {
  const Latest& latest = state_.moves[warp][loads];
  if (!latest.stamp) return;
  for (unsigned t = warp * 32; t < warp * 32 + 32; ++t) {
    own_.clocks.learn(t, latest.channel + 1, latest.stamp);
  }
}

void TensorRules::fence(unsigned thread, bool before) {
  const SharedClock& mine = own_.clocks[thread].clock;
  if (!before) {
    state_.after_fence[thread] = mine;
    return;
  }
  if (mine) {
    if (state_.from != mine) {
      Clock clock = *mine;
      for (const auto& warp : state_.moves) {
        for (const Latest& latest : warp) {
          if (latest.stamp && latest.channel + 1 < clock.size()) {
            raise(clock, latest.channel, clock[latest.channel + 1]);
          }
        }
      }
      state_.from = mine;
      state_.fenced = std::make_shared<const Clock>(std::move(clock));
    }
    own_.clocks.learn(thread, state_.fenced);
  }
  if (const auto last = state_.products.find(thread); last != state_.products.end()) {
    own_.clocks.learn(thread, last->second.channel + 1, last->second.stamp);
  }
}

// Whether enough of the operation is visible to the thread for this use.
bool TensorRules::ordered(TensorUse what, const Issue& issue, const Operation& o) {
  const unsigned thread = issue.thread;
  const unsigned issuer = o.issuer, me = own_.clocks.entry(thread);
  const SharedClock &now = own_.clocks[thread].clock, &fenced = state_.after_fence[thread];
  if (o.engine == Operation::product) {
    if (what == TensorUse::free) return has(now, o.channel, o.stamp);
    // PTX orders no shift after a cp or another shift.
    const bool pipelined = what == TensorUse::product &&
                           (issue.sender != &kTensorSender[2] || o.sender == &kTensorSender[0]);
    if (pipelined && (issuer == me || has(fenced, o.channel + 1, o.stamp))) return true;
    return has(fenced, o.channel, o.stamp);
  }
  if (what == TensorUse::free || issuer / 32 == me / 32) return has(now, o.channel + 1, o.stamp);
  return has(fenced, o.channel, o.stamp);
}

Missing TensorRules::missing(TensorUse what, unsigned thread, const Operation& o) const {
  const SharedClock& now = own_.clocks[thread].clock;
  if (o.engine == Operation::product) {
    if (has(now, o.channel, o.stamp)) return Missing::after_fence;
    const bool mine = o.issuer == own_.clocks.entry(thread);
    return what == TensorUse::product && !mine ? Missing::fences : Missing::commit;
  }
  if (o.issuer / 32 == own_.clocks.entry(thread) / 32) return Missing::move_wait;
  const SharedClock& issuers = own_.clocks.of_entry(o.issuer).clock;
  if (!has(issuers, o.channel + 1, o.stamp)) return Missing::others_move_wait;
  if (what == TensorUse::free) return Missing::barrier;
  return has(now, o.channel, o.stamp)       ? Missing::after_fence
         : has(now, o.channel + 1, o.stamp) ? Missing::before_fence
                                            : Missing::barrier;
}

void TensorRules::use(BlockParts& home, TensorUse what, const TensorAccess& a, uint32_t number,
                      const Issue& issue) {
  const unsigned thread = issue.thread;
  uint32_t before = 0;  // the latest operation that is ordered before
  const auto check = [&](uint32_t earlier, const TensorPlace& place) {
    const Operation* o =
        earlier == before || earlier == number ? nullptr : home.operations.find(earlier);
    if (!o) return;
    if (ordered(what, issue, *o)) {
      before = earlier;
    } else {
      faults_.tensor_race(place, *o, missing(what, thread, *o));
    }
  };
  Operations& there = home.operations;
  constexpr unsigned kEven = 0x55;
  if (!there.split && (a.eighths & kEven) != (a.eighths >> 1 & kEven)) {
    there.split = true;
    for (unsigned e = 0; e < 8; e += 2) {
      LatestOperations* quarter = &there.tensor[e * Operations::kColumns];
      std::copy_n(quarter, Operations::kColumns, quarter + Operations::kColumns);
    }
  }
  for (unsigned e = 0; e < 8; e += there.split ? 1 : 2) {
    if (!(a.eighths >> e & 1)) continue;
    for (unsigned column = a.column; column < a.column + a.columns; ++column) {
      LatestOperations& cell = there.tensor[e * Operations::kColumns + column];
      const char* by = what == TensorUse::product ? issue.sender->signals : nullptr;
      const TensorPlace place{what, a.writes, column, &home != &own_, issue.where, by};
      if (!a.writes && !home.operations.find(cell.write)) faults_.tensor_unwritten(place);
      check(cell.write, place);
      if (!a.writes) {
        cell.reads[what == TensorUse::product ? LatestOperations::kProduct : thread / 128] = number;
        continue;
      }
      for (const uint32_t read : cell.reads) check(read, place);
      cell = {number, {}};
    }
  }
}

}  // namespace sim::races

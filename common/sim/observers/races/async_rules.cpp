// What is not found: a missing fence.proxy.async before an operation of another block (except a
// product of two blocks), or before a bulk reduction writes device memory; wgmma reading words that
// no thread wrote; a TMA load that still reads device memory; of two bulk stores, or products of
// tcgen05, by different threads that read the same bytes, the earlier one.
#include "common/sim/observers/races/async_rules.h"

namespace sim::races {

uint32_t AsyncRules::issue_load(BlockParts& home, const BlockParts& waits, const Access& a,
                                const Access& signal, fa::Swizzle swizzle, const Issue& issue) {
  SharedHistory& memory = home.memory;
  const Use use{a, issue.thread, issue.sender->into, &issue.where};
  check_init(waits, {signal, issue.thread, issue.sender->signals, &issue.where}, issue.channel);
  for_each_word(a, [&](uint64_t word, uint8_t) {
    memory.for_each_cell(word, [&](const SharedRow& row, uint64_t byte) {
      rules_.check_writer(home, use, byte, row.cell);
      if (row.cell.read > memory.begun()) rules_.check_readers(home, use, byte, row);
    });
    if (memory.word(word).cell.async) {
      rules_.check_operations(home, use, word, true, issue.sender->adds);
    }
  });
  const uint32_t number = home.operations.add(own_.clocks, Operation::load, issue);
  for_each_word(a, [&](uint64_t word, uint8_t) {
    SharedCell& w = memory.word(word).cell;
    LatestOperations& latest = home.operations.open(w, word);
    if (issue.sender->adds) home.operations.note_reduction(word, latest.write, issue.channel);
    latest = {number, {}};
    w = {};  // by no thread
    w.wrote = memory.begun();
    w.thread = static_cast<uint16_t>(home.clocks.entry(0));
    w.async = true;
  });
  Operation& load = home.operations.last();
  load.swizzle = swizzle;
  load.sender = issue.sender;
  load.past = own_.clocks.past(issue.thread);
  return number;
}

uint32_t AsyncRules::issue_wgmma(uint32_t number, const std::vector<uint32_t>& chunks, Access a,
                                 const Issue& issue) {
  const unsigned thread = issue.thread, threads = own_.clocks.entries();
  const Use use{a, thread, "wgmma that reads", &issue.where};
  if (number) {  // the operands are known: check only what must be visible to this thread
    for (const Operation::Need& need : own_.operations.find(number)->needs) {
      const unsigned fence_of = need.entry - threads;
      const bool visible = fence_of < threads ? own_.clocks.proxied(thread, fence_of, need.stamp)
                                              : own_.clocks.sees(thread, need.entry, need.stamp);
      if (visible) continue;
      a.at = need.word * kWord;
      check_before_read(own_, use, need.word);
    }
    return number;
  }
  number = own_.operations.add(own_.clocks, Operation::wgmma, issue);
  auto& needs = own_.operations.last().needs;
  const auto need = [&](unsigned entry, Stamp stamp, uint64_t word) {
    if (entry >= need_at_.size()) need_at_.resize(entry + 1);
    uint32_t& at = need_at_[entry];
    if (at == 0) {
      needs.push_back({entry, stamp, word});
      at = static_cast<uint32_t>(needs.size());
    } else if (stamp > needs[at - 1].stamp) {
      needs[at - 1] = {entry, stamp, word};
    }
  };
  SharedHistory& memory = own_.memory;
  for (const uint32_t chunk : chunks) {
    a.at = chunk;
    for_each_word(a, [&](uint64_t word, uint8_t) {
      check_before_read(own_, use, word);
      memory.for_each_cell(word, [&](const SharedRow& row, uint64_t) {
        const SharedCell& w = row.cell;
        if (!w.stored || w.wrote <= memory.begun()) return;
        need(w.thread, w.wrote, word);
        if (own_.clocks.is_own(w.thread)) need(threads + w.thread, w.wrote, word);
      });
      LatestOperations& latest = own_.operations.open(memory.word(word).cell, word);
      if (const Operation* load = own_.operations.find(latest.write)) {
        need(load->channel, load->stamp, word);
      }
      latest.reads[thread / 128] = number;
    });
  }
  for (const auto& n : needs) need_at_[n.entry] = 0;
  return number;
}

uint32_t AsyncRules::issue_store(const Access& a, const Issue& issue) {
  const Use use{a, issue.thread, "TMA store that reads", &issue.where};
  for_each_word(a, [&](uint64_t word, uint8_t) {
    if (!own_.memory.is_written(word)) faults_.unwritten(use, word * kWord);
    check_before_read(own_, use, word);
  });
  const uint32_t number = own_.operations.add(own_.clocks, Operation::store, issue);
  for_each_word(a, [&](uint64_t word, uint8_t) {
    own_.operations.open(own_.memory.word(word).cell, word).reads[LatestOperations::kStore] =
        number;
  });
  return number;
}

void AsyncRules::finished(uint32_t number, bool written, unsigned thread) {
  Operation* o = own_.operations.find(number);
  if (!o) return;
  o->needs = {};
  own_.clocks.learn(thread, o->channel, o->stamp);
  if (written) own_.clocks.learn(thread, o->channel + 1, o->stamp);
}

void AsyncRules::check_before_read(BlockParts& home, const Use& use, uint64_t word) const {
  const BlockClocks& clocks = own_.clocks;
  home.memory.for_each_cell(word, [&](const SharedRow& row, uint64_t byte) {
    const SharedCell& w = row.cell;
    if (!rules_.check_writer(home, use, byte, w)) return;
    if (!w.stored || w.wrote <= home.memory.begun() || !home.clocks.is_own(w.thread) ||
        clocks.proxied(use.thread, w.thread, w.wrote)) {
      return;
    }
    const bool own = w.thread == clocks.entry(use.thread);
    rules_.race(use, byte, rules_.past(w), own ? Missing::own_proxy_fence : Missing::proxy_fence);
  });
  if (home.memory.word(word).cell.async) rules_.check_operations(home, use, word, false);
}

void AsyncRules::check_init(const BlockParts& waits, const Use& use, const void* bar) const {
  const auto found = waits.operations.inits.find(bar);
  if (found == waits.operations.inits.end()) return;
  const Init& init = found->second;
  const Stamp shown = &waits == &own_ ? init.shown : init.shown_to_cluster;
  if (shown && own_.clocks.sees(use.thread, init.thread, shown)) return;
  faults_.race({.use = use,
                .byte = use.access.at,
                .missing = Missing::init_fence,
                .past = {.block = own_.clocks.block_of(init.thread), .entry = init.thread},
                .where = &init.where});
}

}  // namespace sim::races

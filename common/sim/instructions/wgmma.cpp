// wgmma: four warps multiply together, with operands named by descriptors. Products are performed
// at wgmma.wait_group, so operands overwritten, or results read, too early give wrong values.
// Observers that number products also see registers that are touched while a product uses them.
#include <algorithm>
#include <utility>

#include "common/sim/instructions/async.h"
#include "common/sim/instructions/shared_operand.h"

namespace sim {

namespace {

constexpr int kThreads = 128;  // per warpgroup
constexpr int kM = 64, kMostColumns = 256;
constexpr unsigned kWavefront = 128;  // bytes of shared memory

Warpgroup& my_warpgroup() { return async_of(*self).warpgroups[self->current->id / kThreads]; }
unsigned my_place() { return self->current->id % kThreads; }

// --- descriptors: PTX's bit fields ---------------------------------------------------------------
//
//   bits  0-13 start >> 4      16-29 leading >> 4     32-45 stride >> 4     62-63 swizzle
//
// An address here is the offset from the 1024-byte boundary below the block's shared memory. The
// host's thread-local storage may exceed the 256 KiB of the hardware's field: the upper bits of the
// start go to bits 52-61, which PTX leaves free, and a carry out of bit 13 is kept.

constexpr uint64_t kCode[] = {0, 3, 2, 1};  // none, 32, 64, 128 bytes
constexpr fa::Swizzle kSwizzle[] = {fa::Swizzle::none, fa::Swizzle::b128, fa::Swizzle::b64,
                                    fa::Swizzle::b32};

fa::WgmmaOperand decode(uint64_t d) {
  return {.start = operand_origin(*self) + ((d & 0xffff) << 4) + ((d >> 52 & 0x3ff) << 18),
          .leading = static_cast<uint32_t>((d >> 16 & 0x3fff) << 4),
          .stride = static_cast<uint32_t>((d >> 32 & 0x3fff) << 4),
          .swizzle = kSwizzle[d >> 62]};
}

// --- the product ---------------------------------------------------------------------------------

struct Scratch {
  TensorOperand<kM * kTensorProducts> A;
  TensorOperand<kTensorProducts * kMostColumns> B;
  float D[kM * kMostColumns];
  std::vector<uint32_t> chunks;
};

Scratch& scratch() {
  if (!self->wgmma_scratch) self->wgmma_scratch = std::make_shared<Scratch>();
  return *static_cast<Scratch*>(self->wgmma_scratch.get());
}

// Columns of B and D in Scratch: multiply_add() needs a multiple of 16.
int columns_of(const Wgmma& p) { return (p.n + 15) / 16 * 16; }

fa::Major major(bool mn) { return mn ? fa::Major::mn : fa::Major::k; }
void with_type(const Wgmma& p, auto&& f) {
  p.factor == Factor::e4m3 ? f(E4m3{}) : p.factor == Factor::f16 ? f(F16{}) : f(Bf16{});
}

// Tells the observers of the current thread's part of the product.
void tell_issue(WgmmaEvent& e, const void* pc, const Where& where) {
  auto& chunks = scratch().chunks;
  chunks.clear();
  const Wgmma& p = e.product;
  if (!std::exchange(e.told, true)) {
    with_type(p, [&]<class T>(T) {
      if (!p.a_registers) add_chunks<T>(*self, decode(p.a), major(p.a_mn_major), kM, chunks);
      add_chunks<T>(*self, decode(p.b), major(p.b_mn_major), p.n, chunks);
    });
  }
  for (auto& o : self->observers) {
    e.operation |= o->issue_wgmma(*self, e.operation, chunks, pc, where);
  }
}

// Calls f for each pair of consecutive accumulators: the thread, the index of the first in the
// thread, and their address in D. (fa::wgmma_d_element in fewer steps.)
void for_each_pair(const WgmmaEvent& e, float* D, auto&& f) {
  const int columns = columns_of(e.product);
  for (int thread = 0; thread < kThreads; ++thread) {
    for (int i = 0; i < 4; i += 2) {
      const auto [r, first] = fa::wgmma_d_element(thread, i);
      int own = i;
      for (int c = first; c < e.product.n; c += 8, own += 4) f(thread, own, &D[r * columns + c]);
    }
  }
}

template <class T>
void perform(const WgmmaEvent& e) {
  constexpr int kBytes = sizeof(typename T::Bits), kK = T::kSum.products;
  constexpr int kEach = 4 / kBytes;  // factors per register
  auto& [A, B, D, chunks] = scratch();
  const Wgmma& p = e.product;
  const int columns = columns_of(p);
  if (columns != p.n) {
    std::fill_n(B.value, kK * columns, 0.f);
    std::fill_n(D, kM * columns, 0.f);
  }
  if (p.a_registers) {
    for (int thread = 0; thread < kThreads; ++thread) {
      for (int i = 0; i < 4 * kEach; ++i) {
        const auto [r, k] = T::a_element(thread, i);
        const uint32_t bits = e.a_registers[thread * 4 + i / kEach] >> (8 * kBytes * (i % kEach));
        A.value[r * kK + k] = T::value(static_cast<typename T::Bits>(bits));
      }
    }
  } else {
    read_operand<T>(decode(p.a), major(p.a_mn_major), kM, A.value, kK, 1, "the wgmma", e.where);
  }
  read_operand<T>(decode(p.b), major(p.b_mn_major), p.n, B.value, 1, columns, "the wgmma", e.where);
  find_exponents(T::kSum, kM * kK, A.value, A.exponent);
  find_exponents(T::kSum, kK * columns, B.value, B.exponent);

  if (p.accumulate) {
    const unsigned first = self->current->id / kThreads * kThreads;
    const size_t words = p.half_sums ? p.n / 4 : p.n / 2;
    for (unsigned t = 0; t < kThreads; ++t)
      need_set("the wgmma", first + t, e.d[t], words, e.where);
    for_each_pair(e, D, [&](int thread, int i, float* of_D) {
      const auto* halves = reinterpret_cast<const uint16_t*>(e.d[thread]);
      for (int j = 0; j < 2; ++j) {
        of_D[j] = p.half_sums ? float_of_half(halves[i + j]) : e.d[thread][i + j];
      }
    });
  } else {
    std::fill_n(D, kM * columns, 0.f);
  }
  multiply_add(T::kSum, kM, columns, {A.value, A.exponent}, kK, {B.value, B.exponent}, D, columns);
  for_each_pair(e, D, [&](int thread, int i, const float* of_D) {
    if (!p.half_sums) {
      std::copy_n(of_D, 2, e.d[thread] + i);
      return;
    }
    auto* halves = reinterpret_cast<uint16_t*>(e.d[thread]);
    for (int j = 0; j < 2; ++j) halves[i + j] = half_of(of_D[j]);
  });
  self->tensor_flops += uint64_t{2} * kM * p.n * kK;
  ++self->wgmma;
  self->wgmma_columns += p.n;
  const unsigned rows = p.n + (p.a_registers ? 0 : kM);  // of operands in shared memory
  self->wgmma_wavefronts += rows * kK * kBytes / kWavefront;
}

// --- matching the threads' operations ------------------------------------------------------------

bool same_operation(const Wgmma& x, const Wgmma& y) {
  return x.factor == y.factor && x.half_sums == y.half_sums && x.n == y.n && x.a == y.a &&
         x.b == y.b && !x.a_registers == !y.a_registers && x.a_mn_major == y.a_mn_major &&
         x.b_mn_major == y.b_mn_major && x.accumulate == y.accumulate;
}

// The event of this thread's next operation.
WgmmaEvent& next_event(bool commit, const Wgmma& product, const Where& where) {
  Warpgroup& g = my_warpgroup();
  const unsigned number = g.issued[my_place()]++;
  if (number == g.events.size()) {
    auto e = std::make_unique<WgmmaEvent>();
    e->commit = commit;
    e->product = product;
    e->where = where;
    g.events.push_back(std::move(e));
  }
  WgmmaEvent& e = *g.events[number];
  if (e.commit != commit || !same_operation(e.product, product)) {
    refuse("the wgmma", where,
           " differs from the one that other threads of the warpgroup issued (" + at(e.where) +
               "): other operands, another size, or another number of operations before it");
  }
  return e;
}

// --- registers in use ----------------------------------------------------------------------------

void use_registers(const void* p, size_t bytes, RegisterUse use, const Where& where) {
  Warpgroup& g = my_warpgroup();
  auto& busy = g.busy[my_place()];
  const auto begin = reinterpret_cast<uintptr_t>(p), end = begin + bytes;
  const unsigned group = g.committed[my_place()];
  for (BusyRegisters& r : busy) {
    const bool same = r.begin == begin && r.end == end;
    const bool next = use == RegisterUse::a && r.end == begin && r.group == group;  // 16 further
    if (r.use != use || !(same || next)) continue;
    r.end = end;
    r.group = group;
    r.where = where;
    return;
  }
  busy.push_back({begin, end, use, group, where});
  if (!self->registers_watched) watch_registers(*self, true);
}

void free_registers(Warpgroup& g) {
  for (auto& busy : g.busy) {
    std::erase_if(busy, [&](const BusyRegisters& r) { return r.group < g.performed; });
  }
}

bool any_busy() {
  for (const Warpgroup& g : async_of(*self).warpgroups) {
    for (const auto& busy : g.busy) {
      if (!busy.empty()) return true;
    }
  }
  return false;
}

// All 128 threads have issued and committed: sorts events into groups and performs the oldest ones.
void drain(Warpgroup& g, int pending_groups, const Where& where) {
  const unsigned first = self->current->id / kThreads * (kThreads / 32);
  for (unsigned w = first; w < first + kThreads / 32; ++w) {
    if (self->alive[w] != ~0u) {
      refuse("the wgmma.wait_group", where,
             " needs all threads of its warpgroup, of which some have returned");
    }
  }
  for (unsigned& issued : g.issued) {
    if (issued != g.events.size()) {
      refuse("at the wgmma.wait_group", where,
             " the threads of the warpgroup have issued different numbers of wgmma operations");
    }
    issued = 0;
  }
  for (auto& e : g.events) {
    if (e->commit) {
      g.groups.commit();
    } else {
      g.groups.open.push_back(std::move(e));
    }
  }
  g.events.clear();
  if (static_cast<int>(g.groups.committed.size()) > pending_groups) {
    for (auto& o : self->observers) o->wait_products(*self, first);
  }
  g.performed += static_cast<unsigned>(g.groups.committed.size());
  g.groups.wait(pending_groups, [&](const auto& e) {
    with_type(e->product, [&]<class T>(T) { perform<T>(*e); });
    g.finished = e->operation;
  });
  g.performed -= static_cast<unsigned>(g.groups.committed.size());
  if (self->registers_watched) {
    free_registers(g);
    if (!any_busy()) watch_registers(*self, false);
  }
  std::fill(std::begin(g.fenced), std::end(g.fenced), false);
}

}  // namespace

uint64_t wgmma_descriptor(const void* tile, fa::Swizzle swizzle, int leading_bytes,
                          int stride_bytes, Where where) {
  need_own_shared("a wgmma descriptor", tile, 1, 16, where);
  const uint64_t start = reinterpret_cast<uintptr_t>(tile) - operand_origin(*self);
  const uint64_t code = kCode[std::countr_zero(static_cast<unsigned>(swizzle)) - 4];
  return (start & 0x3ffff) >> 4 | uint64_t(leading_bytes >> 4 & 0x3fff) << 16 |
         uint64_t(stride_bytes >> 4 & 0x3fff) << 32 | (start >> 18) << 52 | code << 62;
}

uint64_t wgmma_operand(uint64_t descriptor, Where where) {
  constexpr uint64_t kStart = 0x3fff, kFree = uint64_t{0x3ff} << 52, kBase = uint64_t{7} << 49;
  if (descriptor & (kFree | kBase)) {
    refuse("the wgmma", where,
           descriptor & kBase ? ": a descriptor with a base offset is not simulated"
                              : ": a descriptor has bits that must be 0");
  }
  const auto tile = reinterpret_cast<void*>(operand_address(*self, (descriptor & kStart) << 4));
  return (descriptor & ~kStart) | sim::wgmma_descriptor(tile, fa::Swizzle::none, 0, 0, where);
}

void wgmma(float* d, const Wgmma& product, Where where) {
  if (!my_warpgroup().fenced[my_place()]) {
    refuse("the wgmma", where, " has no wgmma.fence before it: the registers may not be ready");
  }
  WgmmaEvent& e = next_event(false, product, where);
  if (self->tell_operands) tell_issue(e, __builtin_return_address(0), where);
  e.d[my_place()] = d;
  if (e.operation) {
    const size_t each = product.half_sums ? sizeof(uint16_t) : sizeof(float);
    use_registers(d, product.n / 2 * each, RegisterUse::accumulator, where);
    if (product.a_registers) {
      use_registers(product.a_registers, 4 * sizeof(uint32_t), RegisterUse::a, where);
    }
  }
  if (product.a_registers) {
    e.a_registers.resize(kThreads * 4);
    std::copy_n(product.a_registers, 4, &e.a_registers[my_place() * 4]);
  }
}

void check_registers(uintptr_t address, unsigned size, Kind kind, const void* pc) {
  const unsigned thread = self->current->id;
  for (const BusyRegisters& r : self->async->warpgroups[thread / kThreads].busy[my_place()]) {
    if (address + size <= r.begin || address >= r.end) continue;
    const size_t element = (std::max(address, r.begin) - r.begin) / sizeof(float);
    for (auto& o : self->observers) o->touch_busy(*self, r.use, element, kind, pc, r.where);
  }
}

void wgmma_fence() { my_warpgroup().fenced[my_place()] = true; }

void wgmma_commit() {
  next_event(true, {}, {});
  ++my_warpgroup().committed[my_place()];
}

void wgmma_wait(int pending_groups, Where where) {
  Warpgroup& g = my_warpgroup();
  meet(
      g.wait, "wgmma.wait_group", kThreads, [&] { drain(g, pending_groups, where); }, where);
  if (g.finished) {
    for (auto& o : self->observers) o->finished(*self, g.finished, true);
  }
}

void need_whole_warpgroups() {
  const AsyncState& state = async_of(*self);
  for (unsigned first = 0; first < state.setmaxnregs.size(); first += kThreads) {
    const auto begin = state.setmaxnregs.begin() + first,
               end = begin + std::min<unsigned>(kThreads, self->nthreads - first);
    const unsigned most = *std::max_element(begin, end);
    const auto left_out = std::find_if(begin, end, [&](unsigned n) { return n < most; });
    if (left_out == end) continue;
    const auto thread = static_cast<unsigned>(left_out - state.setmaxnregs.begin());
    fail(FaultKind::refused, block_name(*self) + ": a part of warpgroup " +
                                 std::to_string(first / kThreads) + " executes setmaxnreg at " +
                                 at(state.register_line) + ", and " + thread_name(*self, thread) +
                                 " does not: all its threads must");
  }
}

// A launch gives each warp an equal share of 65536 registers, in steps of 8; setmaxnreg moves them.
// That is the most that a launch gives: what the compiler took is not known here.
void setmaxnreg(int registers, Where where) {
  constexpr int kFile = 65536, kStep = 8, kLeast = 24, kMost = 256;  // per SM; per thread
  if (registers % kStep || registers < kLeast || registers > kMost) {
    refuse("setmaxnreg", where,
           " of " + std::to_string(registers) + "; multiples of 8 from 24 to 256 are possible");
  }
  AsyncState& state = async_of(*self);
  state.setmaxnregs.resize(self->nthreads);
  ++state.setmaxnregs[self->current->id];
  state.register_line = where;
  auto& asked = state.registers;
  int& mine = asked[self->current->id / kThreads];
  mine = mine ? std::min(mine, registers) : registers;
  const int threads = static_cast<int>(self->nthreads);
  const int each = std::min(kMost, kFile / threads / kStep * kStep);
  // A warp that requests more than it has waits, in any order of arrival.
  std::string& asking = state.asks_for_registers;
  if (registers > each && asking.empty()) asking = here() + ": setmaxnreg at " + at(where);
  int sum = 0;
  for (int group = 0; group * kThreads < threads; ++group) {
    sum += asked[group] * std::min(kThreads, threads - group * kThreads);
  }
  if (sum <= each * threads) return;
  std::string words;
  for (const int n : asked) {
    if (n) words += (words.empty() ? "" : " + ") + std::to_string(n);
  }
  fail(FaultKind::refused, asking + " would wait for ever: the warpgroups ask for " + words +
                               " registers a thread, " + std::to_string(sum) +
                               " in all, but a launch of " + std::to_string(threads) +
                               " threads has at most " + std::to_string(each) + " for each, " +
                               std::to_string(each * threads) + " in all");
}

}  // namespace sim

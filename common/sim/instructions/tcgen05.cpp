// tcgen05: products that one thread issues, with results in tensor memory. A product is performed
// when a tcgen05.commit of its thread arrives at its mbarrier, that is, when no thread can run any
// more, and after all earlier products: other threads may rely on their order by fences alone. A
// store is performed at its wait::st, a load at once: an instruction that reads one of its
// registers happens after it, with or without wait::ld (PTX ISA 9.7.16.6.4.5, "Register
// dependencies, same thread"). Only the observers report a missing fence or wait::ld.
//
// Each block has a separate tensor memory, because no block sees another one's columns. Where an SM
// holds several blocks, the others own the columns that they would have if they all did the same.
//
// A pair of blocks (cta_group::2) allocates together: the first warp waits for the other block's.
// Each block holds half of the rows of A and D of a product, at the same addresses, and half of B's
// columns. Products of both blocks are queued in one list, the even block's.
#include <algorithm>
#include <bit>
#include <cstring>

#include "common/sim/instructions/async.h"
#include "common/sim/instructions/tensor_memory.h"
#include "common/sim/scheduler/residency.h"
#include "common/sim/sim.h"

namespace sim {

namespace {

std::shared_ptr<TensorMemory> tensor_of(Block& b) {
  auto& tensor = async_of(b).tensor;
  if (!tensor) tensor = std::make_shared<TensorMemory>();
  return tensor;
}
TensorMemory& tensor_memory() { return *tensor_of(*self); }

Block& other_block() { return block_of_rank(cluster_rank() ^ 1); }
/// The block whose list holds the products that the current thread issues.
Block& issuing_block(CtaGroup group) {
  return group == CtaGroup::one ? *self : block_of_rank(cluster_rank() & ~1u);
}
unsigned issuing_thread() { return cluster_rank() % 2 * kMostThreads + self->current->id; }

// Finding unless all instructions of the block have the same cta_group.
void need_group(const char* what, CtaGroup group, const Where& where) {
  if (group == CtaGroup::two) need_pair(what, where);
  TensorMemory& t = tensor_memory();
  if (t.group == CtaGroup{}) {
    t.group = group;
    t.first = what + (" at " + at(where));
  }
  if (t.group == group) return;
  const auto name = [](CtaGroup g) {
    return " has cta_group::" + std::to_string(static_cast<int>(g));
  };
  refuse(what, where, name(group) + ", but " + t.first + name(t.group) + ": a kernel has one");
}

std::string range(unsigned first, unsigned n) {
  return std::to_string(first) + " to " + std::to_string(first + n - 1);
}

// "columns 0 to 127 and 256 to 383"
std::string allocations(const TensorMemory& t) {
  std::string words;
  for (const Allocation& a : t.allocated) {
    words += (words.empty() ? "columns " : " and ") + range(a.column, a.columns);
  }
  return words.empty() ? "nothing" : words;
}

// Finding unless the block owns these columns.
void need_columns(const char* what, unsigned column, unsigned columns, const Where& where,
                  Block& home = *self) {
  const TensorMemory& t = *tensor_of(home);
  for (unsigned c = column; c < column + columns; ++c) {
    const Owner owner = c < kColumns ? t.owner[c / kUnit] : Owner::none;
    if (owner == Owner::mine) continue;
    const std::string uses =
        " uses " +
        (columns == 1 ? "column " + std::to_string(column) : "columns " + range(column, columns)) +
        " of tensor memory, of which column " + std::to_string(c);
    fail(FaultKind::out_of_bounds,
         here() + ": " + what + " at " + at(where) + uses +
             (c >= kColumns           ? " does not exist: there are 512"
              : owner == Owner::freed ? " is freed"
              : &home == self         ? " is not the block's, which has " + allocations(t)
                                      : " is not the other block's, which has " + allocations(t)));
  }
}

// --- allocation ----------------------------------------------------------------------------------

struct AllocFrame {
  CtaGroup group;
  uint32_t* address;        // where to store it
  uint32_t tensor_address;  // of a dealloc
  int columns;
  size_t collective;  // number of the pair's operation; 0: of one block

  bool same(const AllocFrame& o) const {
    return address == o.address && tensor_address == o.tensor_address && columns == o.columns;
  }
};

// Begins the block's next operation of both blocks of a pair, and wakes threads that wait for it.
void begin_collective(WarpMeeting& m) {
  if (frame_of<AllocFrame>(m, 0).group == CtaGroup::one) return;
  TensorMemory &t = tensor_memory(), &other = *tensor_of(other_block());
  const auto& first = frame_of<AllocFrame>(m, 0);
  t.collectives.push_back({m.what, first.columns, first.tensor_address});
  for (int lane = 0; lane < 32; ++lane) {
    frame_of<AllocFrame>(m, lane).collective = t.collectives.size();
  }
  for (const unsigned thread : std::exchange(other.waiting, {})) wake(other_block(), thread);
}
// Waits for the other block, whose operation must be the same.
void finish_collective(const char* what, const AllocFrame& f, const Where& where) {
  if (!f.collective) return;
  const TensorMemory& other = *tensor_of(other_block());
  while (other.collectives.size() < f.collective) {
    tensor_memory().waiting.push_back(self->current->id);
    wait_here(what, where);
  }
  const Collective& theirs = other.collectives[f.collective - 1];
  const bool same = std::strcmp(theirs.what, what) == 0;
  if (same && theirs.columns == f.columns && theirs.address == f.tensor_address) return;
  const bool from = same && theirs.columns == f.columns;  // only that differs
  const auto place = [&](uint32_t address) {
    return from ? " from column " + std::to_string(column_of(address)) + " on" : std::string();
  };
  refuse(what, where,
         " of " + std::to_string(f.columns) + " columns" + place(f.tensor_address) +
             ", while the other block of the pair has " + theirs.what + " of " +
             std::to_string(theirs.columns) + place(theirs.address));
}

// The operands, which must be equal in all lanes of the warp.
template <class Frame>
const Frame& common_frame(WarpMeeting& m, const char* values) {
  need_all_lanes(m);
  const auto& f = frame_of<Frame>(m, 0);
  for (int lane = 1; lane < 32; ++lane) {
    if (f.same(frame_of<Frame>(m, lane))) continue;
    refuse(m.what, m.where, std::string(": the lanes of the warp pass different ") + values);
  }
  return f;
}

void need_allocatable(const char* what, int columns, const Where& where) {
  if (columns < static_cast<int>(kUnit) || columns > static_cast<int>(kColumns) ||
      !std::has_single_bit(static_cast<unsigned>(columns))) {
    refuse(what, where,
           " of " + std::to_string(columns) + " columns; 32, 64, 128, 256 and 512 are possible");
  }
}

// The fewest blocks that an SM holds: an unknown kernel has the most registers and static memory.
unsigned resident() {
  Resources r = resources_of(kernel_name(*self->launch));
  if (!r.registers) {
    constexpr unsigned kMostRegisters = 255;
    r = {kMostRegisters, self->shared_size - kMaxDynamicSmem};
  }
  return blocks_per_sm(options().sm, self->nthreads, self->launch->config.smem, r);
}

// The first of `columns` consecutive free columns, or free in this block; kColumns: none.
unsigned place_for(const TensorMemory& t, unsigned columns, bool avoid_others) {
  for (unsigned first = 0; first + columns <= kColumns; first += kUnit) {
    const auto taken = [&](Owner o) {
      return o == Owner::mine || (avoid_others && o == Owner::others);
    };
    if (std::none_of(&t.owner[first / kUnit], &t.owner[(first + columns) / kUnit], taken)) {
      return first;
    }
  }
  return kColumns;
}

void do_alloc(WarpMeeting& m) {
  const auto& f = common_frame<AllocFrame>(m, "operands");
  TensorMemory& t = tensor_memory();
  if (t.relinquished) {
    refuse("tcgen05.alloc", m.where, " after the block's tcgen05.relinquish_alloc_permit");
  }
  const auto columns = static_cast<unsigned>(f.columns);
  if (columns > t.at_most) {
    refuse("tcgen05.alloc", m.where,
           " of " + std::to_string(columns) + " columns after one of " + std::to_string(t.at_most) +
               ": those of a block must not grow");
  }
  t.at_most = columns;
  unsigned held = 0;
  for (const Allocation& a : t.allocated) held += a.columns;
  const std::string wait = here() + ": tcgen05.alloc at " + at(m.where) + " of " +
                           std::to_string(columns) + " columns would wait for ever: the block ";
  if (held + columns > kColumns) {
    fail(FaultKind::deadlock, wait + "itself has " + std::to_string(held) + " of the SM's 512");
  }
  unsigned first = place_for(t, columns, true);
  if (held == 0) {  // the SM's other blocks are as far; a pair's are on two SMs
    const unsigned blocks = std::min(resident(), kColumns / columns);
    first = self->linear / static_cast<unsigned>(f.group) % blocks * columns;
    std::fill_n(t.owner, blocks * columns / kUnit, Owner::others);
  } else if (const unsigned blocks = std::min(resident(), kColumns / held);
             blocks * held + columns > kColumns) {
    fail(FaultKind::deadlock, wait + "has " + std::to_string(held) + " of 512, and so may all " +
                                  std::to_string(blocks) +
                                  " blocks of the SM, each of which waits " + "for the others");
  }
  if (first == kColumns) first = place_for(t, columns, false);
  if (first == kColumns) {
    fail(FaultKind::deadlock, wait + "has " + allocations(t) + ", and no " +
                                  std::to_string(columns) + " others are neighbours");
  }
  std::fill_n(&t.owner[first / kUnit], columns / kUnit, Owner::mine);
  t.allocated.push_back({first, columns, m.where});
  for (unsigned lane = 0; lane < kLanes; ++lane) std::fill_n(t.at(lane, first), columns, ~0u);
  for (auto& o : self->observers) o->allocate_tensor(*self);
  *f.address = first;
  begin_collective(m);
}

void do_dealloc(WarpMeeting& m) {
  const auto& f = common_frame<AllocFrame>(m, "operands");
  TensorMemory& t = tensor_memory();
  const auto found = std::find_if(t.allocated.begin(), t.allocated.end(), [&](const Allocation& a) {
    return a.column == f.tensor_address && a.columns == static_cast<unsigned>(f.columns);
  });
  if (found == t.allocated.end()) {
    refuse("tcgen05.dealloc", m.where,
           " of " + std::to_string(f.columns) + " columns from lane " +
               std::to_string(lane_of(f.tensor_address)) + ", column " +
               std::to_string(column_of(f.tensor_address)) + " on; the block has " +
               allocations(t));
  }
  const TensorAccess all{true, 0xff, found->column, found->columns};
  for (auto& o : self->observers) o->move_tensor(*self, TensorUse::free, all, nullptr, m.where);
  std::fill_n(&t.owner[found->column / kUnit], found->columns / kUnit, Owner::freed);
  t.allocated.erase(found);
  begin_collective(m);
}

void do_relinquish(WarpMeeting& m) {
  need_all_lanes(m);
  tensor_memory().relinquished = true;
  begin_collective(m);
}

// --- descriptors: PTX's bit fields ---------------------------------------------------------------
//
//   shared memory  0-13 start >> 4   16-29 leading >> 4   32-45 stride >> 4   46-47 version, 1
//                  49-51 base offset, 0   52 mode of leading, 0   61-63 swizzle
//
// As for wgmma, an address is the offset from the 1024-byte boundary below the block's shared
// memory; its upper bits go to bits 53-60, which PTX leaves zero.

constexpr uint64_t kCode[] = {0, 6, 4, 2};  // none, 32, 64, 128 bytes

fa::WgmmaOperand decode(const char* what, const char* name, uint64_t d, const Where& where) {
  const uint64_t* code = std::find(std::begin(kCode), std::end(kCode), d >> 61);
  if (code == std::end(kCode)) {
    refuse(what, where,
           std::string(": ") + name + " descriptor has the swizzle code " +
               std::to_string(d >> 61) +
               "; 0, 2, 4 and 6 are possible, and 1 of an atom of 32 bytes is not simulated");
  }
  if ((d >> 46 & 3) != 1 || (d >> 49 & 15) != 0) {
    refuse(what, where,
           std::string(": ") + name +
               " descriptor is not tcgen05_descriptor's: its version is not 1, or it has a base "
               "offset");
  }
  return {.start = operand_origin(*self) + ((d & 0xffff) << 4) + ((d >> 53 & 0xff) << 18),
          .leading = static_cast<uint32_t>((d >> 16 & 0x3fff) << 4),
          .stride = static_cast<uint32_t>((d >> 32 & 0x3fff) << 4),
          .swizzle = fa::Swizzle{16 << (code - kCode)}};
}

// A swizzled operand begins in row 0 of a swizzle's 8 rows.
void need_row_0(const char* what, const char* name, const fa::WgmmaOperand& o, const Where& where) {
  const auto width = static_cast<uint64_t>(o.swizzle);
  const uint64_t row = (o.start - operand_origin(*self)) % (8 * width) / width;
  if (o.swizzle == fa::Swizzle::none || row == 0) return;
  refuse(what, where,
         std::string(": ") + name + " begins in row " + std::to_string(row) +
             " of a swizzle's 8 rows of " + std::to_string(width) + " bytes, not in row 0");
}

// Combines a descriptor with the instruction.
template <class T>
void need_layout(const char* name, const fa::WgmmaOperand& o, fa::Major major, int rows,
                 const Where& where) {
  const auto wrong = [&](const std::string& why) {
    refuse("the tcgen05.mma", where, std::string(": ") + name + why);
  };
  const auto width = static_cast<uint64_t>(o.swizzle);
  constexpr size_t kBytes = sizeof(typename T::Bits);
  const std::string bytes = std::to_string(width) + " bytes";
  const bool k_major = major == fa::Major::k;
  const uint64_t group = 8 * width;  // without a swizzle: of 8 rows of 16 bytes
  if (k_major && rows > 8 && o.stride && o.stride < group) {
    remark(where, here() + ": the tcgen05.mma at " + at(where) + ": " + name +
                      "'s groups of 8 rows overlap: they have " + std::to_string(group) +
                      " bytes and are " + std::to_string(o.stride) + " apart");
  }
  if (o.swizzle == fa::Swizzle::none) {
    if (!o.leading || !o.stride) wrong(" has no distances between its core matrices");
    return;
  }
  need_row_0("the tcgen05.mma", name, o, where);
  if (k_major && o.start % width + kRowBytes > width) {
    wrong(" leaves its rows of " + bytes + ": they hold " + std::to_string(width / kBytes) +
          " values of k, after which another panel begins");
  }
  if (!o.stride) wrong(" has no distance between its groups of 8 rows");
  if (!k_major && static_cast<uint64_t>(rows) * kBytes > width && !o.leading) {
    wrong(" is MN-major by the instruction descriptor, with " + std::to_string(rows) +
          " columns, but its descriptor has no distance between panels of " +
          std::to_string(width / kBytes));
  }
}

// --- loads and stores ----------------------------------------------------------------------------

struct MoveFrame {
  void* registers;
  int n;
  uint32_t address;
  TensorShape shape;
  bool store;
  const void* pc;

  bool same(const MoveFrame& o) const { return address == o.address; }
};

/// Where register r of a thread is: row and column of the cells, or of the second ones. As PTX's
/// figures in 9.7.16.2.3.1 "Memory Layout".
struct Place {
  bool second;
  int row, column;
};
Place place_of(const TensorShape& shape, int thread, int r) {
  if (shape.lanes == 32) return {false, thread, r};
  const int row = thread / 4;
  switch (shape.bits) {
    case 32:
      return {thread >= 16, thread % 16, r};
    case 64:
      return {false, row + thread % 2 * 8, thread / 2 % 2 + r * 2};
    case 128:
      return {false, row + r % 2 * 8, thread % 4 + r / 2 * 4};
    default:
      return {false, row + r / 2 % 2 * 8, r % 2 + thread % 4 * 2 + r / 4 * 8};
  }
}

void do_move(WarpMeeting& m) {
  const auto& f = common_frame<MoveFrame>(m, "addresses");
  const TensorShape& shape = f.shape;
  const auto lanes = static_cast<unsigned>(shape.lanes);
  const unsigned lane = lane_of(f.address), first = m.warp % 4 * kQuarter;
  const bool own = lane == first || (lanes == 16 && lane == first + 16);
  if (!own) {
    const std::string from = " from lane " + std::to_string(lane) + " on; warp " +
                             std::to_string(m.warp) + " reaches lanes " + range(first, kQuarter) +
                             (lanes == 16 ? ", 16 of them" : "");
    // As in published programs, and correct on a B200.
    if (lanes == 16 || (lane != 0 && lane < kLanes)) refuse(m.what, m.where, from);
    remark(m.where, here() + ": " + m.what + " at " + at(m.where) + from +
                        ": PTX does not define it, a B200 takes the warp's own lanes, and so does "
                        "the simulator");
  }
  const bool two = lanes == 16 && shape.bits == 32;  // 16x32bx2
  const auto columns =
      static_cast<unsigned>(f.n * (lanes == 16 && !two ? 2 : 1) * (shape.packed ? 2 : 1));
  Cells cells[2] = {{own ? lane : first, lanes, column_of(f.address), columns}};
  cells[1] = cells[0];
  cells[1].column += static_cast<unsigned>(shape.second);
  TensorMemory& t = tensor_memory();
  std::vector<uint32_t> values[2];
  for (int i = 0; i <= two; ++i) {
    const Cells& c = cells[i];
    need_columns(m.what, c.column, columns, m.where);
    const TensorAccess access{f.store, c.eighths(), c.column, columns};
    const TensorUse use = f.store ? TensorUse::store : TensorUse::load;
    for (auto& o : self->observers) o->move_tensor(*self, use, access, f.pc, m.where);
    if (f.store) values[i].resize(lanes * columns);
  }
  for (int thread = 0; thread < 32; ++thread) {
    auto* registers = static_cast<uint32_t*>(frame_of<MoveFrame>(m, thread).registers);
    if (lanes == 32 && !shape.packed) {  // the whole lane
      const unsigned row = first + thread;
      const size_t bytes = columns * sizeof(uint32_t);
      if (f.store) {
        std::memcpy(&values[0][thread * columns], registers, bytes);
      } else {
        std::memcpy(registers, t.at(row, cells[0].column), bytes);
      }
      continue;
    }
    for (int r = 0; r < f.n; ++r) {
      const Place place = place_of(shape, thread, r);
      const Cells& c = cells[place.second];
      const unsigned column = static_cast<unsigned>(place.column) * (shape.packed ? 2 : 1);
      uint32_t* at = f.store ? &values[place.second][place.row * columns + column]
                             : t.at(c.lane + place.row, c.column + column);
      if (f.store) {
        at[0] = shape.packed ? registers[r] & 0xffff : registers[r];
        if (shape.packed) at[1] = registers[r] >> 16;
      } else {
        registers[r] = shape.packed ? (at[0] & 0xffff) | at[1] << 16 : at[0];
      }
    }
  }
  for (int i = 0; f.store && i <= two; ++i) {
    t.stores[m.warp].push_back({cells[i], std::move(values[i])});
  }
}

template <bool loads>
void do_wait(WarpMeeting& m) {
  need_all_lanes(m);
  if (!loads) {
    TensorMemory& t = tensor_memory();
    for (const TensorStore& store : std::exchange(t.stores[m.warp], {})) {
      const Cells& c = store.cells;
      for (unsigned i = 0; i < c.lanes; ++i) {
        std::copy_n(&store.values[i * c.columns], c.columns, t.at(c.lane + i, c.column));
      }
    }
  }
  for (auto& o : self->observers) o->finish_moves(*self, loads);
}

void move_tensor(const char* what, void* registers, int n, uint32_t address, TensorShape shape,
                 bool store, const void* pc, const Where& where) {
  need_whole_warp(what, where);
  MoveFrame f{registers, n, address, shape, store, pc};
  meet_in_warp(what, kWholeWarp, do_move, &f, where);
}

}  // namespace

void tcgen05_alloc(uint32_t* address, int columns, Where where, CtaGroup group) {
  need_whole_warp("tcgen05.alloc", where);
  need_group("tcgen05.alloc", group, where);
  need_own_shared("tcgen05.alloc", address, sizeof *address, alignof(uint32_t), where);
  need_allocatable("tcgen05.alloc", columns, where);
  if (self->current->id % 32 == 0) {
    access(address, sizeof *address, Kind::store, __builtin_return_address(0));
  }
  AllocFrame f{group, address, 0, columns, 0};
  meet_in_warp("tcgen05.alloc", kWholeWarp, do_alloc, &f, where);
  finish_collective("tcgen05.alloc", f, where);
}

void tcgen05_relinquish_alloc_permit(Where where, CtaGroup group) {
  constexpr const char* kWhat = "tcgen05.relinquish_alloc_permit";
  need_whole_warp(kWhat, where);
  need_group(kWhat, group, where);
  AllocFrame f{group, nullptr, 0, 0, 0};
  meet_in_warp(kWhat, kWholeWarp, do_relinquish, &f, where);
  finish_collective(kWhat, f, where);
}

void tcgen05_dealloc(uint32_t address, int columns, Where where, CtaGroup group) {
  need_whole_warp("tcgen05.dealloc", where);
  need_group("tcgen05.dealloc", group, where);
  need_allocatable("tcgen05.dealloc", columns, where);
  AllocFrame f{group, nullptr, address, columns, 0};
  meet_in_warp("tcgen05.dealloc", kWholeWarp, do_dealloc, &f, where);
  finish_collective("tcgen05.dealloc", f, where);
}

void need_tensor_memory_freed() {
  const auto& tensor = async_of(*self).tensor;
  if (!tensor || tensor->allocated.empty()) return;
  fail(FaultKind::out_of_bounds, here() + " ends the block, which still has " +
                                     allocations(*tensor) + " of tensor memory, allocated at " +
                                     at(tensor->allocated[0].where) +
                                     "; tcgen05_dealloc must come first");
}

uint64_t tcgen05_descriptor(const void* tile, fa::Swizzle swizzle, int leading_bytes,
                            int stride_bytes, Where where) {
  need_own_shared("a tcgen05 descriptor", tile, 1, 16, where);
  const uint64_t start = reinterpret_cast<uintptr_t>(tile) - operand_origin(*self);
  const uint64_t code = kCode[std::countr_zero(static_cast<unsigned>(swizzle)) - 4];
  return (start & 0x3ffff) >> 4 | uint64_t(leading_bytes >> 4 & 0x3fff) << 16 |
         uint64_t(stride_bytes >> 4 & 0x3fff) << 32 | uint64_t{1} << 46 | (start >> 18) << 53 |
         code << 61;
}

uint64_t tcgen05_operand(uint64_t descriptor, Where where) {
  constexpr uint64_t kStart = 0x3fff, kVersion = uint64_t{3} << 46;
  const uintptr_t tile = operand_address(*self, (descriptor & kStart) << 4);
  const uint64_t own =
      tcgen05_descriptor(reinterpret_cast<void*>(tile), fa::Swizzle::none, 0, 0, where);
  return (descriptor >> 16 << 16) | (own & ~kVersion);
}

void tcgen05_mma(const TensorProduct& product, Where where) {
  const void* pc = __builtin_return_address(0);
  const char* what = "the tcgen05.mma";
  need_group(what, product.group, where);
  const int blocks = static_cast<int>(product.group);
  const Instruction instruction = decode_instruction(product, where);
  const RowsOfProduct& rows = *instruction.rows;
  const auto columns = static_cast<unsigned>(instruction.width());
  const unsigned lane = lane_of(product.d);
  const uint8_t eighths = !rows.half_lanes() ? 0xff : lane ? 0xaa : 0x55;
  TensorMemory& t = *tensor_of(issuing_block(product.group));
  Product p{product, instruction, {}};
  fa::WgmmaOperand a{};
  const fa::WgmmaOperand b = decode(what, "B's", product.b, where);
  std::vector<TensorAccess> uses{{true, eighths, column_of(product.d), columns}};
  t.operands.clear();
  size_t bytes = 0;                                   // of shared memory
  const int halves = rows.rows * instruction.n / 64;  // of a block, in columns of m64
  const auto add = [&](const char* name, Factor type, const fa::WgmmaOperand& o, fa::Major major,
                       int rows) {
    auto& chunks = t.operands.emplace_back(SharedOperand{name, o.swizzle, {}}).chunks;
    with_type(type, [&]<class T>(T) {
      need_layout<T>(name, o, major, rows, where);
      for_each_chunk<T>(o, major, rows, [&](int, int, uint64_t at) {
        need_chunk(at, what, where);
        chunks.push_back(static_cast<uint32_t>(at - self->shared_base));
      });
    });
    bytes += chunks.size() * kChunk;
  };
  const auto need_lane = [&](const char* name, uint32_t address, bool possible) {
    if (possible) return;
    refuse(what, where,
           std::string(" has ") + name + " from lane " + std::to_string(lane_of(address)) +
               " on; its " + std::to_string(rows.rows) + " rows begin at " +
               (!rows.half_lanes() ? "0"
                : name[0] == 'D'   ? "0 or 16"
                                   : "D's"));
  };
  need_lane("D", product.d, lane == 0 || (rows.half_lanes() && lane == 16));
  if (product.accumulate) {
    uses.insert(uses.begin(), {false, eighths, column_of(product.d), columns});
  }
  if (product.a_in_tensor_memory) {
    const auto address = static_cast<uint32_t>(product.a);
    if (instruction.a == fa::Major::mn) {
      refuse(what, where,
             ": its instruction descriptor says that A, in tensor memory, is MN-major");
    }
    need_lane("A", address, lane_of(address) == lane);
    uses.insert(uses.begin(), {false, eighths, column_of(address), kRowBytes / 4});
  } else {
    a = decode(what, "A's", product.a, where);
    add("A", instruction.a_type, a, instruction.a, rows.rows);
  }
  add("B", instruction.b_type, b, instruction.b, instruction.n / blocks);

  if (instruction.vector) {
    const auto add_scales = [&](const char* name, uint32_t address, unsigned n) {
      if (address << 2 >> 18 != 0) {
        refuse(what, where,
               std::string(" has the scales of ") + name + " from lane " +
                   std::to_string(lane_of(address)) + " on; they begin at 0");
      }
      uses.insert(uses.begin(), {false, 0xff, column_of(address), (n + kQuarter - 1) / kQuarter});
    };
    add_scales("A", product.scales_a, rows.rows);
    add_scales("B", product.scales_b, columns);
  }
  if (product.scale_d < 0 || product.scale_d > 15) {
    refuse(what, where, " has scale-input-d " + std::to_string(product.scale_d) + ", not 0 to 15");
  }

  // The other block's operands have the same addresses as in this one.
  for (int i = 0; i < blocks; ++i) {
    Block& home = i == 0 ? *self : other_block();
    for (const TensorAccess& use : uses) need_columns(what, use.column, use.columns, where, home);
    if (self->tell_operands) {
      for (auto& o : self->observers)
        o->issue_product(*self, home, t.operands, uses, pc, where, kTensorSender[0]);
    }
    Share& share = p.shares[blocks == 1 ? 0 : home.rank % 2];
    share = {tensor_of(home).get(), a, b};
    share.a.start += home.shared_base - self->shared_base;
    share.b.start += home.shared_base - self->shared_base;
    home.shared_bytes[static_cast<int>(Kind::load)] += bytes;
    home.wgmma_wavefronts += bytes / kWavefront;
    home.tensor_flops += uint64_t{2} * rows.rows * instruction.n * instruction.kind->k;
    home.wgmma_columns += halves;  // in units of m64 and 32 bytes of k: tf32 takes as long
  }
  t.products.push_back([list = &t, p] { perform(*list, p); });
  t.until[issuing_thread()] = t.products.size();
  ++self->wgmma;
}

namespace {

// A copy or shift in the block or pair: `f` performs it in one.
void issue_copy(const Sender& by, std::vector<TensorAccess> uses, CtaGroup group, const void* pc,
                const Where& where, auto&& f) {
  TensorMemory& t = *tensor_of(issuing_block(group));
  for (int i = 0; i < static_cast<int>(group); ++i) {
    Block& home = i == 0 ? *self : other_block();
    for (const TensorAccess& use : uses) {
      need_columns(by.signals, use.column, use.columns, where, home);
    }
    for (auto& o : self->observers) {
      if (self->tell_operands) o->issue_product(*self, home, t.operands, uses, pc, where, by);
    }
    for (const SharedOperand& operand : t.operands) {
      home.shared_bytes[static_cast<int>(Kind::load)] += operand.chunks.size() * kChunk;
      home.wgmma_wavefronts += operand.chunks.size() * kChunk / kWavefront;
    }
    const uintptr_t shift = home.shared_base - self->shared_base;
    t.products.push_back([f, to = tensor_of(home).get(), shift] { f(*to, shift); });
  }
  t.until[issuing_thread()] = t.products.size();
}

}  // namespace

void tcgen05_cp(uint32_t to, uint64_t descriptor, TensorCopy copy, int bits, Where where,
                CtaGroup group) {
  const void* pc = __builtin_return_address(0);
  const char* what = "the tcgen05.cp";
  need_group(what, group, where);
  const CopyShape& shape = kCopies[static_cast<int>(copy)];
  const fa::WgmmaOperand from = decode(what, "its", descriptor, where);
  const unsigned lane = lane_of(to), column = column_of(to);
  if (lane >= (shape.run == 1 ? kQuarter : 1)) {
    refuse(what, where,
           std::string(".") + shape.name + " writes from lane " + std::to_string(lane) +
               " on; its rows begin at " + (shape.run == 1 ? "0 to 31" : "0"));
  }
  need_row_0(what, "its operand", from, where);
  if (!from.stride && shape.rows > 8) {
    refuse(what, where, ": its descriptor has no distance between groups of 8 rows");
  }
  if (!from.leading && from.swizzle == fa::Swizzle::none && shape.chunks > 1) {
    refuse(what, where, ": its descriptor has no distance between its core matrices");
  }
  TensorMemory& t = *tensor_of(issuing_block(group));
  const auto each = [=](auto&& f) {
    for (int r = 0; r < shape.rows; ++r) {
      for (int c = 0; c < shape.chunks; ++c) {
        const uint64_t offset = OneByte::offset(from, fa::Major::k, r, c * kChunk);
        f(r, c, fa::swizzled(from.start + offset, from.swizzle));
      }
    }
  };
  t.operands = {{"its operand", from.swizzle, {}}};
  each([&](int, int, uint64_t at) {
    need_chunk(at, what, where);
    t.operands[0].chunks.push_back(static_cast<uint32_t>(at - self->shared_base));
  });
  const uint8_t eighths = shape.run > 1 ? 0xff : lane < 16 ? 0x55 : 0xaa;
  issue_copy(kTensorSender[1], {{true, eighths, column, shape.chunks * kChunk / 4u}}, group, pc,
             where, [=](TensorMemory& t, uintptr_t shift) {
               each([&](int r, int c, uint64_t at) {
                 uint32_t words[kChunk / 4];
                 std::memcpy(words, reinterpret_cast<const void*>(at + shift), kChunk);
                 if (bits) expand(words, bits, (8 - bits) / 2);
                 for (int i = 0; i < shape.copies; ++i) {
                   const auto row = lane + r % shape.run + r / shape.run * shape.step;
                   std::copy_n(words, kChunk / 4, t.at(row + i * shape.every, column + c * 4));
                 }
               });
             });
}

void tcgen05_shift(uint32_t at, Where where, CtaGroup group) {
  constexpr unsigned kShifted = 8;  // columns
  const void* pc = __builtin_return_address(0);
  const char* what = "the tcgen05.shift";
  need_group(what, group, where);
  const unsigned lane = lane_of(at), column = column_of(at);
  if (lane % kQuarter != 0 || lane >= kLanes) {
    refuse(what, where, " begins at lane " + std::to_string(lane) + ", not at 0, 32, 64 or 96");
  }
  tensor_of(issuing_block(group))->operands.clear();
  const uint8_t eighths = 3u << lane / 16;
  issue_copy(kTensorSender[2],
             {{false, eighths, column, kShifted}, {true, eighths, column, kShifted}}, group, pc,
             where, [=](TensorMemory& t, uintptr_t) {
               for (unsigned row = lane; row < lane + kQuarter - 1; ++row) {
                 std::copy_n(t.at(row + 1, column), kShifted, t.at(row, column));
               }
             });
}

void tcgen05_commit(uint64_t* bar, Where where, CtaGroup group, unsigned blocks) {
  const void* pc = __builtin_return_address(0);
  need_group("tcgen05.commit", group, where);
  need_mbarrier(bar, "tcgen05.commit", where);
  if (blocks == 0) refuse("tcgen05.commit", where, " is multicast to no block");
  if (blocks == kThisBlock) blocks = 1u << cluster_rank();
  if (blocks >> cluster_size()) {
    refuse("tcgen05.commit", where,
           " is multicast to a block outside the cluster of " + std::to_string(cluster_size()));
  }
  const auto list = tensor_of(issuing_block(group));
  const size_t until = list->until[issuing_thread()];
  for (unsigned r = 0; r < cluster_size(); ++r) {
    if (!(blocks >> r & 1)) continue;
    auto* signal = static_cast<uint64_t*>(map_shared_rank(bar, r));
    access(signal, sizeof *signal, Kind::atomic, pc, By::mbarrier);
    uint32_t operation = 0;
    for (auto& o : self->observers) operation |= o->commit_products(*self, signal, where);
    defer([issuer = self, home = &block_of_rank(r), list, until, operation, signal, where] {
      // When its own products are complete, a commit to its own block has also arrived.
      const bool late = list->performed < until || home != issuer;
      while (list->performed < until) {
        std::exchange(list->products[list->performed++], {})();
      }
      if (operation) {
        const uint32_t phase = mbarrier_phase(*home, signal);
        for (auto& o : issuer->observers) o->landed(*issuer, operation, signal, phase);
      }
      if (late || home->live) mbarrier_arrive_later(*home, signal, where);
    });
  }
}

void tcgen05_fence(bool before) {
  for (auto& o : self->observers) o->tensor_fence(*self, before);
}

void tcgen05_ld(void* registers, int n, uint32_t from, Where where, TensorShape shape) {
  const void* pc = __builtin_return_address(0);
  move_tensor("tcgen05.ld", registers, n, from, shape, false, pc, where);
}

void tcgen05_st(uint32_t to, const void* registers, int n, Where where, TensorShape shape) {
  const void* pc = __builtin_return_address(0);
  move_tensor("tcgen05.st", const_cast<void*>(registers), n, to, shape, true, pc, where);
}

void tcgen05_wait(bool loads, Where where) {
  const char* what = loads ? "tcgen05.wait::ld" : "tcgen05.wait::st";
  need_whole_warp(what, where);
  meet_in_warp(what, kWholeWarp, loads ? do_wait<true> : do_wait<false>, nullptr, where);
}

}  // namespace sim

// The tensor memory accelerator: one thread issues asynchronous copies of boxes of tensors or plain
// runs of bytes. Accesses are counted, bounds-checked and shown to the observers at issue; the data
// move later: a load when no thread can run any more, a store at the wait for its group.
#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

#include "common/dialect/ptx/layouts.h"
#include "common/sim/instructions/async.h"
#include "common/sim/instructions/tensor_core.h"

namespace sim {

namespace {

constexpr size_t kChunk = 16;         // the unit of a swizzle
constexpr size_t kTensorAlign = 128;  // of a box in shared memory
constexpr size_t kBulkAlign = 16;     // of addresses and sizes of plain copies
constexpr fa::Swizzle kUnknown{};     // of plain copies

/// A box of a tensor at given coordinates, row by row (a row: the innermost dimension).
struct Box {
  TensorMap map;  // copied: the kernel's parameters may be gone when the data move
  int at[kMaxRank] = {};
  bool four = false;  // of gather4, scatter4: column at[0] of rows at[1] to at[4]

  size_t row_bytes() const { return size_t{map.box[0]} * map.element_bytes; }
  size_t shared_row() const { return row_bytes() + size_t{map.box[0]} * map.gap; }
  /// The row stride in shared memory: a swizzle wider than the box's rows has rows of its width.
  size_t pitch() const { return std::max(shared_row(), static_cast<size_t>(map.swizzle)); }
  size_t rows() const {
    size_t n = four ? 4 : 1;
    for (int i = 1; !four && i < map.rank; ++i) n *= map.box[i];
    return n;
  }
  size_t bytes() const { return rows() * row_bytes(); }
  /// The part of a row that lies inside the tensor: bytes [first, last) of the row.
  size_t first_byte() const { return clip(0) * map.element_bytes; }
  size_t last_byte() const {
    return clip(static_cast<int64_t>(map.size[0]) - at[0]) * map.element_bytes;
  }
  /// The device address of byte 0 of row r; null when the row is outside the tensor.
  char* row(size_t r) const {
    char* p = static_cast<char*>(map.base) + at[0] * int64_t{map.element_bytes};
    for (int i = 1; i < map.rank; ++i) {
      const int64_t c = four ? at[1 + r] : at[i] + static_cast<int64_t>(r % map.box[i]);
      r /= map.box[i];
      if (c < 0 || c >= static_cast<int64_t>(map.size[i])) return nullptr;
      p += c * static_cast<int64_t>(map.stride[i]);
    }
    return first_byte() < last_byte() ? p : nullptr;
  }
  /// The address of chunk `byte` of row r of a box in shared memory.
  char* chunk(const void* shared, size_t r, size_t byte) const {
    const auto address = reinterpret_cast<uintptr_t>(shared) + r * pitch() + byte;
    return reinterpret_cast<char*>(fa::swizzled(address, map.swizzle));
  }

 private:
  size_t clip(int64_t c) const {
    const int64_t low = at[0] < 0 ? -int64_t{at[0]} : 0;
    return static_cast<size_t>(std::clamp<int64_t>(std::max(c, low), 0, map.box[0]));
  }
};

// The shared memory of a box in order: one part, or one part per row.
struct Part {
  char* at;
  size_t bytes;
};
std::vector<Part> parts_of(const Box& box, const void* shared) {
  if (box.pitch() == box.shared_row()) {
    return {{static_cast<char*>(const_cast<void*>(shared)), box.rows() * box.pitch()}};
  }
  std::vector<Part> parts;  // a swizzle permutes the chunks of a row: halves stay halves
  for (size_t r = 0; r < box.rows(); ++r) {
    std::vector<char*> chunks;
    for (size_t byte = 0; byte < box.shared_row(); byte += kChunk) {
      chunks.push_back(box.chunk(shared, r, byte));
    }
    std::sort(chunks.begin(), chunks.end());
    for (char* chunk : chunks) {
      if (!parts.empty() && parts.back().at + parts.back().bytes == chunk) {
        parts.back().bytes += kChunk;
      } else {
        parts.push_back({chunk, kChunk});
      }
    }
  }
  return parts;
}
// Bytes to the end of the last part.
size_t extent(const std::vector<Part>& parts, const void* shared) {
  return parts.back().at + parts.back().bytes - static_cast<const char*>(shared);
}

// Both ends of the copy in shared memory, through the swizzle, one row at a time.
void scatter_row(const Box& box, void* shared, size_t r, const char* row) {
  const size_t bytes = box.map.gap ? box.map.element_bytes : kChunk;
  for (size_t byte = 0; byte < box.shared_row(); byte += kChunk, row += bytes) {
    std::memcpy(box.chunk(shared, r, byte), row, bytes);
  }
}
void gather_row(const Box& box, const void* shared, size_t r, char* row) {
  for (size_t byte = 0; byte < box.row_bytes(); byte += kChunk) {
    std::memcpy(row + byte, box.chunk(shared, r, byte), kChunk);
  }
}

void count_box(const Box& box, Kind kind, const void* pc) {
  for (size_t r = 0; r < box.rows(); ++r) {
    if (const char* p = box.row(r)) {
      access(p + box.first_byte(), static_cast<unsigned>(box.last_byte() - box.first_byte()), kind,
             pc, By::engine);
    }
  }
}

Box box_at(const TensorMap* map, const int* coordinates, int rank, const char* what,
           const Where& where) {
  if (home_of(map)) {
    refuse(what, where,
           " with a tensor map in shared memory; it must be in device or constant memory, or a "
           "parameter of the kernel");
  }
  const bool four = rank == kFourRows;
  if (four && (map->rank != 2 || map->box[1] != 1)) {
    refuse(what, where,
           " of four rows; the tensor map has rank " + std::to_string(map->rank) +
               " and boxes of " + std::to_string(map->box[1]) + " rows, not rank 2 and one row");
  }
  if (map->rank != rank && !four) {
    refuse(what, where,
           " with " + std::to_string(rank) + " coordinates; the tensor map has rank " +
               std::to_string(map->rank));
  }
  const int unit = std::max<int>(map->unit, 1);
  if (const int bytes = coordinates[0] * map->element_bytes / unit; bytes % 16 != 0) {
    refuse(what, where,
           " with the innermost coordinate " + std::to_string(coordinates[0]) + ", which is " +
               std::to_string(bytes) +
               " bytes and not a multiple of 16: the hardware calls it an illegal instruction");
  }
  if (const int each = map->gap ? 128 : unit; coordinates[0] % each != 0) {
    refuse(what, where,
           " with the innermost coordinate " + std::to_string(coordinates[0]) +
               " of packed elements, not a multiple of " + std::to_string(each));
  }
  Box box{*map};
  box.four = four;
  std::copy_n(coordinates, four ? kMaxRank : rank, box.at);
  box.at[0] /= unit;
  return box;
}

void need_plain(const char* what, const void* shared, const void* global, int bytes,
                const Where& where) {
  if (bytes <= 0 || bytes % kBulkAlign != 0 ||
      reinterpret_cast<uintptr_t>(global) % kBulkAlign != 0) {
    refuse(what, where, " needs a size and a global address that are multiples of 16 bytes");
  }
  need_own_shared(what, shared, bytes, kBulkAlign, where);
}

// The observers' number of a load, 0 when none follows it.
uint32_t tell_load(Block& home, const void* to, size_t bytes, fa::Swizzle swizzle, const void* bar,
                   const void* pc, const Where& where, const Sender& sender = kTmaLoad) {
  uint32_t operation = 0;
  for (auto& o : self->observers) {
    operation |= o->issue_load(*self, async_operand(home, to, bytes, Kind::store, pc), swizzle, bar,
                               where, sender);
  }
  return operation;
}
// `home` receives the data; the mbarrier may be another block's.
void tell_landed(Block& home, uint32_t operation, Block& waiting, const void* bar) {
  if (!operation) return;
  const uint32_t phase = mbarrier_phase(waiting, bar);
  for (auto& o : home.observers) o->landed(home, operation, bar, phase);
}
// To be called before the accesses to device memory.
uint32_t tell_store(const void* from, size_t bytes, const void* pc, const Where& where) {
  uint32_t operation = 0;
  for (auto& o : self->observers) {
    operation |= o->issue_store(*self, async_operand(*self, from, bytes, Kind::load, pc), where);
  }
  return operation;
}

void issue_store(std::function<void()> perform, uint32_t operation, const Where& where) {
  auto store = std::make_shared<BulkStore>(BulkStore{std::move(perform), where, operation});
  async_of(*self).stores[self->current->id].open.push_back(store);
  defer([store] {  // no thread waited for it
    if (!std::exchange(store->done, true)) store->perform();
  });
}

// An element of type T after a reduction with another one; small floats are computed in fp32.
template <class T>
T combined(AtomicOp op, T a, T b) {
  switch (op) {
    case AtomicOp::add:
      return a + b;
    case AtomicOp::min:
      return b < a || a != a ? b : a;
    case AtomicOp::max:
      return a < b || a != a ? b : a;
    default:
      break;
  }
  if constexpr (std::is_integral_v<T>) {
    if (op == AtomicOp::and_) return a & b;
    if (op == AtomicOp::or_) return a | b;
    if (op == AtomicOp::xor_) return a ^ b;
    if (op == AtomicOp::inc) return a >= b ? T{0} : a + 1;
    if (op == AtomicOp::dec) return a == 0 || a > b ? b : a - 1;
  }
  return b;
}
void combine(void* to, const void* from, int bytes, Reduction r) {
  if (r.copies()) return void(std::memcpy(to, from, bytes));
  const auto each = [&]<class T>(T, auto&& f) {
    for (int i = 0; i < bytes; i += sizeof(T)) {
      T a, b;
      std::memcpy(&a, static_cast<char*>(to) + i, sizeof a);
      std::memcpy(&b, static_cast<const char*>(from) + i, sizeof b);
      a = f(a, b);
      std::memcpy(static_cast<char*>(to) + i, &a, sizeof a);
    }
  };
  const auto plain = [&](auto a, auto b) { return combined(r.op, a, b); };
  switch (r.type) {
    case Element::u32:
      return each(uint32_t{}, plain);
    case Element::s32:  // sums wrap around
      return r.op == AtomicOp::add ? each(uint32_t{}, plain) : each(int32_t{}, plain);
    case Element::u64:
      return each(uint64_t{}, plain);
    case Element::s64:
      return r.op == AtomicOp::add ? each(uint64_t{}, plain) : each(int64_t{}, plain);
    case Element::f32:
      return each(float{}, plain);
    case Element::f64:
      return each(double{}, plain);
    case Element::f16:
      return each(uint16_t{}, [&](uint16_t a, uint16_t b) {
        return half_of(combined(r.op, float_of_half(a), float_of_half(b)));
      });
    case Element::bf16:
      return each(uint16_t{}, [&](uint16_t a, uint16_t b) {
        const __nv_bfloat16 x = combined(r.op, bf16_value(a), bf16_value(b));
        return std::bit_cast<uint16_t>(x);
      });
  }
}

// `blocks`: bit mask; `odd`: the block of each pair that gets the signal; kItself: each block.
constexpr unsigned kItself = ~0u;
void load_box(void* to, const TensorMap* map, const int* coordinates, int rank, uint64_t* bar,
              unsigned blocks, unsigned odd, const void* pc, const Where& where) {
  const Box box = box_at(map, coordinates, rank, "a TMA load", where);
  need_own_shared("a TMA load", to, extent(parts_of(box, to), to), kTensorAlign, where);
  need_mbarrier(bar, "a TMA load", where);
  if (blocks >> cluster_size()) {
    refuse("the TMA load", where,
           " is multicast to a block outside the cluster of " + std::to_string(cluster_size()));
  }
  count_box(box, Kind::load, pc);
  for (unsigned r = 0; r < cluster_size(); ++r) {
    if (!(blocks >> r & 1)) continue;
    const unsigned waits = odd == kItself ? r : (r & ~1u) | odd;
    Block *home = &block_of_rank(r), *waiting = &block_of_rank(waits);
    void* shared = map_shared_rank(to, r);
    auto* signal = static_cast<uint64_t*>(map_shared_rank(bar, waits));
    uint32_t operation = 0;  // the last one completes after the others
    for (const Part& part : parts_of(box, shared)) {
      access(part.at, static_cast<unsigned>(part.bytes), Kind::store, pc, By::engine);
      operation = tell_load(*home, part.at, part.bytes, map->swizzle, signal, pc, where);
    }
    defer([=] {
      std::vector<char> row(box.row_bytes());
      for (size_t r = 0; r < box.rows(); ++r) {
        std::fill(row.begin(), row.end(), 0);
        if (const char* p = box.row(r)) {
          std::memcpy(row.data() + box.first_byte(), p + box.first_byte(),
                      box.last_byte() - box.first_byte());
        }
        scatter_row(box, shared, r, row.data());
      }
      tell_landed(*home, operation, *waiting, signal);
      mbarrier_complete_tx(*waiting, signal, static_cast<int64_t>(box.bytes()));
    });
  }
}

}  // namespace

void tma_load(void* to, const TensorMap* map, const int* coordinates, int rank, uint64_t* bar,
              unsigned blocks, Where where) {
  load_box(to, map, coordinates, rank, bar, blocks ? blocks : 1u << cluster_rank(), kItself,
           __builtin_return_address(0), where);
}

void tma_load_of_pair(void* to, const TensorMap* map, const int* coordinates, int rank,
                      uint64_t* bar, unsigned told, Where where, unsigned blocks) {
  need_pair("the TMA load", where);
  if (told / 2 != cluster_rank() / 2) {
    refuse("the TMA load", where,
           " signals block " + std::to_string(told) + " of the cluster; that of rank " +
               std::to_string(cluster_rank()) + " is a pair with " +
               std::to_string(cluster_rank() ^ 1));
  }
  load_box(to, map, coordinates, rank, bar, blocks ? blocks : 1u << cluster_rank(), told & 1,
           __builtin_return_address(0), where);
}

void tma_store(const TensorMap* map, const int* coordinates, int rank, const void* from,
               Where where) {
  const void* pc = __builtin_return_address(0);
  const char* what = "a TMA store";
  const Box box = box_at(map, coordinates, rank, what, where);
  if (map->gap) {
    refuse(what, where,
           " of elements of 4 or 6 bits padded to 16 bytes: PTX has none of 4, and one of 6 packs "
           "bytes (.b6p2x16), which is not simulated");
  }
  const int* last = coordinates + (box.four ? kMaxRank : rank);
  if (std::any_of(coordinates, last, [](int c) { return c < 0; })) {
    refuse(what, where,
           " with a negative coordinate: the hardware calls it an illegal instruction");
  }
  const std::vector<Part> parts = parts_of(box, from);
  need_own_shared(what, from, extent(parts, from), kTensorAlign, where);
  uint32_t operation = 0;  // the last one completes after the others
  for (const Part& part : parts) {
    access(part.at, static_cast<unsigned>(part.bytes), Kind::load, pc, By::engine);
    operation = tell_store(part.at, part.bytes, pc, where);
  }
  count_box(box, Kind::store, pc);
  const auto perform = [=] {
    std::vector<char> row(box.row_bytes());
    const size_t first = box.first_byte(), n = box.last_byte() - first;
    for (size_t r = 0; r < box.rows(); ++r) {
      char* p = box.row(r);
      if (!p) continue;
      gather_row(box, from, r, row.data());
      std::memcpy(p + first, row.data() + first, n);
    }
  };
  issue_store(perform, operation, where);
}

void bulk_load(void* to, const void* from, int bytes, uint64_t* bar, Where where, unsigned blocks) {
  const void* pc = __builtin_return_address(0);
  need_plain("a bulk load", to, from, bytes, where);
  need_mbarrier(bar, "a bulk load", where);
  if (blocks >> cluster_size()) {
    refuse("the bulk load", where,
           " is multicast to a block outside the cluster of " + std::to_string(cluster_size()));
  }
  if (!blocks) blocks = 1u << cluster_rank();
  access(from, bytes, Kind::load, pc, By::engine);
  for (unsigned r = 0; r < cluster_size(); ++r) {
    if (!(blocks >> r & 1)) continue;
    Block* home = &block_of_rank(r);
    void* there = map_shared_rank(to, r);
    auto* signal = static_cast<uint64_t*>(map_shared_rank(bar, r));
    access(there, bytes, Kind::store, pc, By::engine);
    const uint32_t operation = tell_load(*home, there, bytes, kUnknown, signal, pc, where);
    defer([=] {
      std::memcpy(there, from, bytes);
      tell_landed(*home, operation, *home, signal);
      mbarrier_complete_tx(*home, signal, bytes);
    });
  }
}

void bulk_send(void* to, const void* from, int bytes, uint64_t* bar, unsigned rank, Where where,
               Reduction reduction) {
  const void* pc = __builtin_return_address(0);
  const char* what = reduction.copies() ? "a bulk send" : "a bulk reduction";
  need_plain(what, from, to, bytes, where);
  need_own_shared(what, to, bytes, kBulkAlign, where);
  need_mbarrier(bar, what, where);
  Block *home = &block_of_rank(rank), *sender = self;
  void* there = map_shared_rank(to, rank);
  auto* signal = static_cast<uint64_t*>(map_shared_rank(bar, rank));
  access(from, bytes, Kind::load, pc, By::engine);
  const uint32_t read = tell_store(from, bytes, pc, where);
  access(there, bytes, Kind::store, pc, By::engine);
  const uint32_t operation = tell_load(*home, there, bytes, kUnknown, signal, pc, where,
                                       reduction.copies() ? kTmaLoad : kSender[3]);
  defer([=] {
    combine(there, from, bytes, reduction);
    const uint32_t phase = mbarrier_phase(*home, signal);
    for (auto& o : sender->observers) {
      if (read) o->landed(*sender, read, signal, phase);
    }
    tell_landed(*home, operation, *home, signal);
    mbarrier_complete_tx(*home, signal, bytes);
  });
}

namespace {

// The block that has `to` and its mbarrier.
Block& home_of_both(const char* what, const void* to, const void* bar, const Where& where) {
  Block *home = home_of(to), *signalled = home_of(bar);
  if (!home || !signalled) {
    fail(FaultKind::out_of_bounds, here() + ": " + what + " at " + at(where) + " has " +
                                       (home ? "an mbarrier" : "a destination") +
                                       " outside the cluster's shared memory");
  }
  if (home == signalled) return *home;
  refuse(what, where,
         " writes to the block of rank " + std::to_string(home->rank) +
             " of the cluster, but its mbarrier is that of rank " +
             std::to_string(signalled->rank));
}
template <class T>
T* in_own(const Block& home, T* there) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(there) - home.shared_base +
                              self->shared_base);
}

}  // namespace

void bulk_send(void* to, const void* from, int bytes, uint64_t* bar, Where where,
               Reduction reduction) {
  const Block& home =
      home_of_both(reduction.copies() ? "a bulk send" : "a bulk reduction", to, bar, where);
  bulk_send(in_own(home, to), from, bytes, in_own(home, bar), home.rank, where, reduction);
}

void send_registers(void* to, const void* values, int bytes, uint64_t* bar, Where where,
                    Reduction reduction) {
  const void* pc = __builtin_return_address(0);
  const char* what = reduction.copies() ? "st.async" : "red.async";
  Block* home = &home_of_both(what, to, bar, where);
  need_own_shared(what, in_own(*home, to), bytes, bytes, where);
  if (!async_of(*home).mbarriers.count(bar)) {
    refuse(what, where, ", but the mbarrier is not initialised");
  }
  access(to, bytes, Kind::store, pc, By::engine);
  const uint32_t operation =
      tell_load(*home, to, bytes, kUnknown, bar, pc, where, kSender[reduction.copies() ? 0 : 2]);
  std::array<char, 16> copy;
  std::memcpy(copy.data(), values, bytes);
  defer([=] {
    combine(to, copy.data(), bytes, reduction);
    tell_landed(*home, operation, *home, bar);
    mbarrier_complete_tx(*home, bar, bytes);
  });
}

void try_cancel(void* response, uint64_t* bar, Where where, bool all) {
  const void* pc = __builtin_return_address(0);
  const char* what = "clusterlaunchcontrol.try_cancel";
  need_own_shared(what, response, sizeof(Canceled), sizeof(Canceled), where);
  need_mbarrier(bar, what, where);
  Canceled got{};
  if (const auto block = take_next_cluster()) {
    const uint3 first = self->launch->config.index(*block);
    got = {{first.x, first.y, first.z}, 1};
  }
  for (unsigned r = 0; r < cluster_size(); ++r) {
    if (!all && r != cluster_rank()) continue;
    Block* home = &block_of_rank(r);
    void* there = map_shared_rank(response, r);
    auto* signal = static_cast<uint64_t*>(map_shared_rank(bar, r));
    access(there, sizeof got, Kind::store, pc, By::engine);
    const uint32_t operation =
        tell_load(*home, there, sizeof got, kUnknown, signal, pc, where, kSender[1]);
    defer([=] {
      std::memcpy(there, &got, sizeof got);
      tell_landed(*home, operation, *home, signal);
      mbarrier_complete_tx(*home, signal, sizeof got);
    });
  }
}

void bulk_store(void* to, const void* from, int bytes, Where where, Reduction reduction) {
  const void* pc = __builtin_return_address(0);
  need_plain(reduction.copies() ? "a bulk store" : "a bulk reduction", from, to, bytes, where);
  access(from, bytes, Kind::load, pc, By::engine);
  const uint32_t operation = tell_store(from, bytes, pc, where);
  if (!reduction.copies()) {  // an atomic operation on each element
    for (int i = 0; i < bytes; i += 16) {
      access(static_cast<char*>(to) + i, 16, Kind::atomic, pc, By::engine);
    }
  } else {
    access(to, bytes, Kind::store, pc, By::engine);
  }
  issue_store(
      [=] {
        static std::mutex one_at_a_time;  // of the blocks that add to the same place
        std::lock_guard lock(one_at_a_time);
        combine(to, from, bytes, reduction);
      },
      operation, where);
}

void bulk_commit() { async_of(*self).stores[self->current->id].commit(); }

void bulk_wait(int pending_groups, bool read_only) {
  auto& mine = async_of(*self).stores[self->current->id];
  uint32_t last = 0;
  const auto finish = [&](auto& store) {
    if (!std::exchange(store->done, true)) store->perform();
    last = store->operation;
  };
  if (static_cast<int>(mine.committed.size()) > pending_groups) {
    for (auto& o : self->observers) o->wait_stores(*self);
  }
  mine.wait(pending_groups, finish);
  if (last) {
    for (auto& o : self->observers) o->finished(*self, last, !read_only);
  }
}

void tell_stores_left() {
  const auto& mine = async_of(*self).stores[self->current->id];
  const BulkStore* pending = nullptr;
  if (!mine.open.empty()) pending = mine.open.front().get();
  for (const auto& group : mine.committed) {
    if (!pending && !group.empty()) pending = group.front().get();
  }
  if (!pending || !pending->operation) return;
  for (auto& o : self->observers) o->leave_store(*self, pending->where);
}

void proxy_fence(ProxyFence of) {
  for (auto& o : self->observers) o->proxy_fence(*self, of);
}

}  // namespace sim

/// \file
/// A block's tensor memory, and what waits to be done there. Private to instructions/.
#pragma once

#include <functional>
#include <memory>
#include <unordered_map>

#include "common/sim/instructions/shared_operand.h"
#include "common/sim/instructions/tensor_kinds.h"

namespace sim {

constexpr unsigned kLanes = 128, kColumns = 512, kUnit = 32;  // columns of an allocation
constexpr unsigned kQuarter = 32;                             // lanes that a warp reaches
constexpr unsigned kMostThreads = 1024;                       // of a block
constexpr int kM = 128, kMostK = 32;
constexpr int kRowBytes = 32;         // of an operand's k, whatever the type
constexpr unsigned kWavefront = 128;  // bytes of shared memory

enum class Owner : uint8_t { none, others, freed, mine };

struct Allocation {
  unsigned column, columns;
  Where where;
};

inline unsigned lane_of(uint32_t address) { return address >> 16; }
inline unsigned column_of(uint32_t address) { return address & 0xffff; }

struct TensorMemory;
struct Share {
  TensorMemory* tensor = nullptr;
  fa::WgmmaOperand a, b;
};
struct Product {
  TensorProduct product;
  Instruction instruction;
  Share shares[2];  // of the even and the odd block; or only [0]
};

/// alloc, dealloc or relinquish_alloc_permit of a pair.
struct Collective {
  const char* what;
  int columns;
  uint32_t address;  // of a dealloc
};

/// Columns of some lanes.
struct Cells {
  unsigned lane, lanes, column, columns;
  uint8_t eighths() const { return lanes == 16 ? 1u << lane / 16 : 3u << lane / 16; }
};
struct TensorStore {
  Cells cells;
  std::vector<uint32_t> values;  // [lanes][columns], as they were at issue
};

struct TensorMemory {
  CtaGroup group{};   // of the block's instructions; 0: none yet
  std::string first;  // its name and line, for the first of them
  std::vector<Collective> collectives;
  std::vector<unsigned> waiting;  // threads that wait for the other block
  std::vector<uint32_t> cells = std::vector<uint32_t>(kLanes * kColumns);  // [lane][column]
  std::vector<Allocation> allocated;
  Owner owner[kColumns / kUnit] = {};
  bool relinquished = false;
  unsigned at_most = kColumns;                  // of the next allocation
  std::vector<std::function<void()>> products;  // and copies and shifts, in the order of issue
  size_t performed = 0;                         // number performed
  std::unordered_map<unsigned, size_t> until;   // by thread of a pair: products up to its last
  std::vector<TensorStore> stores[32];          // by warp
  TensorOperand<kM * kMostK> A;                 // of the product being performed
  TensorOperand<kMostK * kMostColumns> B;
  std::vector<float> sums;              // where it does not work in place
  std::vector<SharedOperand> operands;  // of the product being issued

  uint32_t* at(unsigned lane, unsigned column) { return &cells[lane * kColumns + column]; }
};

/// D = A B + D. `list`: the block's whose list has the product.
void perform(TensorMemory& list, const Product&);

}  // namespace sim

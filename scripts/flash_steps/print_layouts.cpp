// Prints what the functions of layouts.h say as JSON, for layout_data.py, which compiles this
// file and draws from it.
#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "common/dialect/ptx/layouts.h"

namespace {

constexpr int kLanes = 32, kBanks = 32, kBankBytes = 4, kChunkBytes = 16;
constexpr int kRows = 8;     // rows of an 8x8 matrix, and the period of the swizzle
constexpr int kQuarter = 8;  // lanes that shared memory serves together when each moves 16 bytes
constexpr int kGroup = 128;  // threads of a warpgroup

std::string join(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : ",\n ") + item;
  return "[" + text + "]";
}

template <class Range>
std::string numbers(const Range& values) {
  std::string text;
  for (int v : values) text += (text.empty() ? "" : ", ") + std::to_string(v);
  return "[" + text + "]";
}

// [lane, register, half, row, col] for each element of a fragment whose registers hold `halves`
// elements each; of a warpgroup's fragment the lanes are its 128 threads.
std::string fragment(fa::RowCol (*element)(int lane, int i), int elements, int halves,
                     int lanes = kLanes) {
  std::vector<std::string> items;
  for (int lane = 0; lane < lanes; ++lane) {
    for (int i = 0; i < elements; ++i) {
      const fa::RowCol e = element(lane, i);
      items.push_back(numbers(std::array{lane, i / halves, i % halves, e.row, e.col}));
    }
  }
  return join(items);
}

// [lane, register, half, row, col, tile, d]: S is two neighbouring n8 tiles of accumulators. A
// kernel packs tile 0's d[0], d[1] into a[0] and d[2], d[3] into a[1], and tile 1's into a[2] and
// a[3]. [row, col] is where S has what [register, half] of `a` holds then.
std::string packed_scores() {
  std::vector<std::string> items;
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < 8; ++i) {
      const int tile = i / 4, d = i % 4;
      const fa::RowCol e = fa::mma_d_element(lane, d);
      items.push_back(numbers(std::array{lane, i / 2, i % 2, e.row, e.col + 8 * tile, tile, d}));
    }
  }
  return join(items);
}

// Where 16-byte chunk `chunk` of a row lies in that row. The chunks of each 128 bytes change places
// among themselves, by the number of the row, whatever the length of a row.
int place(int row, int chunk, bool swizzle) {
  if (!swizzle) return chunk;
  const int per_group = 128 / kChunkBytes;
  const auto address = static_cast<uint64_t>(row * 128 + chunk % per_group * kChunkBytes);
  return chunk / per_group * per_group +
         static_cast<int>(fa::swizzled(address, fa::Swizzle::b128) % 128) / kChunkBytes;
}

struct Chunk {
  int row, chunk;
};

// Different words that each bank has to deliver (or take) when a quarter warp moves these chunks,
// each 16 bytes. The busiest bank's number is the number of wavefronts.
std::string words_of_banks(const std::array<Chunk, kQuarter>& chunks, int d, bool swizzle) {
  std::vector<int> words;
  for (const Chunk& c : chunks) {
    const int first = (c.row * d * 2 + place(c.row, c.chunk, swizzle) * kChunkBytes) / kBankBytes;
    for (int w = first; w < first + kChunkBytes / kBankBytes; ++w) words.push_back(w);
  }
  std::sort(words.begin(), words.end());
  words.erase(std::unique(words.begin(), words.end()), words.end());
  std::array<int, kBanks> count{};
  for (int w : words) ++count[w % kBanks];
  return numbers(count);
}

std::string both(const std::array<Chunk, kQuarter>& chunks, int d) {
  return "{\"plain\": " + words_of_banks(chunks, d, false) +
         ", \"swizzled\": " + words_of_banks(chunks, d, true) + "}";
}

// A tile of rows of d bf16: places[row][chunk]; ldmatrix[chunk], 8 rows of one chunk column;
// cp_async[row], the first 8 chunks of a row.
std::string swizzle(int d) {
  const int chunks = d * 2 / kChunkBytes;
  std::vector<std::string> places, columns, rows;
  for (int r = 0; r < kRows; ++r) {
    std::vector<int> of_row;
    std::array<Chunk, kQuarter> copied;
    for (int c = 0; c < chunks; ++c) of_row.push_back(place(r, c, true));
    for (int lane = 0; lane < kQuarter; ++lane) copied[lane] = {r, lane};
    places.push_back(numbers(of_row));
    rows.push_back(both(copied, d));
  }
  for (int c = 0; c < chunks; ++c) {
    std::array<Chunk, kQuarter> read;
    for (int lane = 0; lane < kQuarter; ++lane) read[lane] = {lane, c};
    columns.push_back(both(read, d));
  }
  return "{\"places\": " + join(places) + ",\n\"ldmatrix\": " + join(columns) +
         ",\n\"cp_async\": " + join(rows) + "}";
}

// [product, mn, k, byte] for each element of an operand in shared memory, as TMA lays it down with
// the 128-byte swizzle: where in the tile wgmma looks for it. `products` of 16 k each, by
// descriptors that begin 16 k further each time.
std::string operand(fa::Major major, int rows_of_panel, int mns, int products) {
  constexpr int kRowBytes = 128, kProduct = 16;
  const fa::WgmmaOperand dense = {.start = 0,
                                  .leading = static_cast<uint32_t>(rows_of_panel * kRowBytes),
                                  .stride = 8 * kRowBytes,
                                  .swizzle = fa::Swizzle::b128};
  std::vector<std::string> items;
  for (int product = 0; product < products; ++product) {
    const int start = product * kProduct * (major == fa::Major::k ? 2 : kRowBytes);
    for (int mn = 0; mn < mns; ++mn) {
      for (int k = 0; k < kProduct; ++k) {
        const uint64_t byte =
            fa::swizzled(start + fa::wgmma_offset(dense, major, mn, k), fa::Swizzle::b128);
        items.push_back(
            numbers(std::array{product, mn, product * kProduct + k, static_cast<int>(byte)}));
      }
    }
  }
  return join(items);
}

}  // namespace

int main() {
  std::printf("{\"mma_a\": %s,\n", fragment(fa::mma_a_element, 8, 2).c_str());
  std::printf("\"mma_b\": %s,\n", fragment(fa::mma_b_element, 4, 2).c_str());
  std::printf("\"mma_d\": %s,\n", fragment(fa::mma_d_element, 4, 1).c_str());
  std::printf("\"ldmatrix\": %s,\n", fragment(fa::ldmatrix_element, 2, 2).c_str());
  std::printf("\"packed_scores\": %s,\n", packed_scores().c_str());
  std::printf("\"wgmma_d\": %s,\n", fragment(fa::wgmma_d_element, 8, 1, kGroup).c_str());
  std::printf("\"wgmma_a\": %s,\n", fragment(fa::wgmma_a_element, 8, 2, kGroup).c_str());
  std::printf("\"wgmma_k_major\": %s,\n", operand(fa::Major::k, 64, 16, 4).c_str());
  std::printf("\"wgmma_mn_major\": %s,\n", operand(fa::Major::mn, 64, 128, 2).c_str());
  std::printf("\"swizzle_64\": %s,\n", swizzle(64).c_str());
  std::printf("\"swizzle_128\": %s}\n", swizzle(128).c_str());
}

// The instruction descriptor of tcgen05.mma, read by the tables of tensor_kinds.h.
#include "common/sim/instructions/tensor_kinds.h"

#include <algorithm>
#include <bit>

#include "common/sim/instructions/shared_operand.h"

namespace sim {

namespace {

// "m64 with n of 8, 16, ... 256, or m128 with n of 16, 32, ... 256"
std::string possible_rows(const TensorProduct& p, const KindOfProduct& kind) {
  std::string words;
  for (const RowsOfProduct& rows : kRowsOfProducts) {
    if (rows.ws != p.ws || rows.blocks != static_cast<int>(p.group)) continue;
    const int step = std::max(rows.step, kind.step * rows.blocks);
    words += (words.empty() ? "m" : ", or m") + std::to_string(rows.m) + " with n of " +
             std::to_string(step) + ", " + std::to_string(2 * step) + (p.ws ? " or " : ", ... ") +
             std::to_string(kMostColumns);
  }
  return words;
}

}  // namespace

Instruction decode_instruction(const TensorProduct& p, const Where& where) {
  const uint32_t d = p.instruction;
  const KindOfProduct& kind = kind_of(p.kind);
  constexpr uint32_t kFormats = 3u << 4 | 7u << 7 | 7u << 10, kNegate = 3u << 13;
  constexpr uint32_t kShape = 1u << 15 | 1u << 16 | 0x3fu << 17 | 0x1fu << 24;
  constexpr uint32_t kReuse = 3u << 30;  // of B by .ws, without effect on D
  const int n = static_cast<int>(d >> 17 & 0x3f) * 8, m = static_cast<int>(d >> 24 & 0x1f) * 16;
  const auto wrong = [&](const std::string& why) {
    refuse("the tcgen05.mma", where, ": its instruction descriptor says " + why);
  };
  const auto of_code = [](auto codes, uint32_t code) {
    return std::find_if(codes.begin(), codes.end(), [=](auto& c) { return c.code == code; });
  };
  const auto a = of_code(kind.factors, d >> 7 & 7), b = of_code(kind.factors, d >> 10 & 7);
  const auto sums = of_code(kind.sums, d >> 4 & 3);
  const bool known = a != kind.factors.end() && b != kind.factors.end() && sums != kind.sums.end();
  if (!known || (a != b && !kind.mixed) || (sums->type == Sums::fp16 && a->type == Factor::bf16)) {
    wrong("other types than " + kind.types);
  }
  if (d & ~(kFormats | kShape | (kind.negates ? kNegate : 0) | (p.ws ? kReuse : 0))) {
    wrong("sparse, saturated, negated or shifted, which is not simulated");
  }
  const bool a_mn = d >> 15 & 1, b_mn = d >> 16 & 1;
  if (!kind.mn_major && (a_mn || b_mn)) {
    wrong(std::string("MN-major factors in ") + a->name + ", which is not simulated");
  }
  const RowsOfProduct* rows = std::find_if(
      std::begin(kRowsOfProducts), std::end(kRowsOfProducts),
      [&](auto& r) { return r.m == m && r.ws == p.ws && r.blocks == static_cast<int>(p.group); });
  const auto has_columns = [&] {
    const int step = std::max(rows->step, kind.step * rows->blocks);
    return n <= kMostColumns && n > 0 && (n % step == 0 || (n == 8 && rows->step == 8)) &&
           (!p.ws || std::has_single_bit(static_cast<unsigned>(n)));
  };
  if (rows == std::end(kRowsOfProducts) || !has_columns()) {
    wrong("m" + std::to_string(m) + "n" + std::to_string(n) + "; " + possible_rows(p, kind) +
          " is possible");
  }
  if (b_mn && kind.k == 32 && n / rows->blocks % kChunk != 0) {
    wrong("MN-major factors with " + std::to_string(n / rows->blocks) +
          " columns, not a multiple of 16, which is not simulated");
  }
  return {&kind,
          rows,
          a->type,
          b->type,
          sums->type,
          n,
          a_mn ? fa::Major::mn : fa::Major::k,
          b_mn ? fa::Major::mn : fa::Major::k,
          (d >> 13 & 1) != (d >> 14 & 1)};
}

}  // namespace sim

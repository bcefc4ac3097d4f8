// The instruction descriptor of tcgen05.mma, read by the tables of tensor_kinds.h.
#include "common/sim/instructions/tensor_kinds.h"

#include <algorithm>
#include <bit>

#include "common/sim/instructions/shared_operand.h"

namespace sim {

namespace {

bool possible(const RowsOfProduct& rows, const TensorProduct& p, const KindOfProduct& kind) {
  return rows.ws == p.ws && rows.blocks == static_cast<int>(p.group) &&
         !(kind.scaled() && (rows.ws || rows.m == 64));
}
int step_of(const RowsOfProduct& rows, const KindOfProduct& kind) {
  return std::max(kind.scaled() ? 0 : rows.step, kind.step * rows.blocks);
}
// "m64 with n of 8, 16, ... 256, or m128 with n of 16, 32, ... 256"
std::string possible_rows(const TensorProduct& p, const KindOfProduct& kind) {
  std::string words;
  for (const RowsOfProduct& rows : kRowsOfProducts) {
    if (!possible(rows, p, kind)) continue;
    const int step = step_of(rows, kind);
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
  constexpr uint32_t kScales = 1u << 23 | 3u << 29;
  const int n = static_cast<int>(d >> 17 & 0x3f) * 8, m = static_cast<int>(d >> 24 & 0x1f) * 16;
  const auto wrong = [&](const std::string& why) {
    refuse("the tcgen05.mma", where, ": its instruction descriptor says " + why);
  };
  const auto of_code = [](auto codes, uint32_t code) {
    return std::find_if(codes.begin(), codes.end(), [=](auto& c) { return c.code == code; });
  };
  const auto a = of_code(kind.factors, d >> 7 & 7), b = of_code(kind.factors, d >> 10 & 7);
  const auto sums = kind.scaled() ? kind.sums.begin() : of_code(kind.sums, d >> 4 & 3);
  const bool known = a != kind.factors.end() && b != kind.factors.end() && sums != kind.sums.end();
  if (!known || (a != b && !kind.mixed) || (sums->type == Sums::fp16 && a->type == Factor::bf16)) {
    wrong("other types than " + kind.types);
  }
  if (d & ~(kFormats | kShape | (kind.negates ? kNegate : 0) | (p.ws ? kReuse : 0) |
            (kind.scaled() ? kScales : 0))) {
    wrong(kind.scaled() ? "sparse or of 96 values of k, which is not simulated"
                        : "sparse, saturated, negated or shifted, which is not simulated");
  }
  if (p.ws && kind.scaled()) wrong("scales, which a .ws product does not have");
  const bool a_mn = d >> 15 & 1, b_mn = d >> 16 & 1;
  const auto need_transposable = [&](bool mn, auto& factor) {
    const bool narrow = factor->type >= Factor::e2m3;  // K-major only in mxf4 and mxf4nvf4
    if (!mn || (kind.mn_major && !narrow)) return;
    wrong(std::string("MN-major factors in ") + factor->name + ", which is not " +
          (narrow && kind.k == 64 ? "possible" : "simulated"));
  };
  need_transposable(a_mn, a), need_transposable(b_mn, b);
  const int vector = p.scale_vector ? p.scale_vector : kind.vector;
  const Scales scales_a{(d >> 23 & 1) != 0, static_cast<int>(d >> 29 & 3)};
  const Scales scales_b{scales_a.ue8m0, static_cast<int>(d >> 4 & 3)};
  if (kind.scaled()) {
    if (!(kind.vectors & vector)) {
      refuse("the tcgen05.mma", where,
             std::string(" of kind::") + kind.name + " has " +
                 (vector ? "scale_vec::" + std::to_string(vector) + "X" : "no scale_vec"));
    }
    if (!scales_a.ue8m0 && vector != 4) wrong("other types than " + kind.types);
    for (const int id : {scales_a.id, scales_b.id}) {
      if (id % vector == 0) continue;
      wrong("scales from byte " + std::to_string(id) + " of a column on; scale_vec::" +
            std::to_string(vector) + "X begins at " + (vector == 2 ? "0 or 2" : "0"));
    }
  }
  const RowsOfProduct* rows =
      std::find_if(std::begin(kRowsOfProducts), std::end(kRowsOfProducts),
                   [&](auto& r) { return r.m == m && possible(r, p, kind); });
  const auto has_columns = [&] {
    const int step = step_of(*rows, kind);
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
          (d >> 13 & 1) != (d >> 14 & 1),
          kind.scaled() ? vector : 0,
          scales_a,
          scales_b};
}

}  // namespace sim

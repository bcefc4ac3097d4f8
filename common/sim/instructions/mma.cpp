// ldmatrix, stmatrix and mma.sync: a warp works together; the last lane to arrive does the work.
#include <utility>

#include "common/dialect/ptx/layouts.h"
#include "common/sim/instructions/async.h"
#include "common/sim/instructions/shared_operand.h"
#include "common/sim/sim.h"

namespace sim {

void need_all_lanes(const WarpMeeting& m) {
  if (m.arrived != kWholeWarp) {
    fail(FaultKind::refused, here() + " has returned, but the " + m.what + " at " + at(m.where) +
                                 " needs all lanes of its warp");
  }
}

void need_whole_warp(const char* what, const Where& where) {
  const unsigned warp = self->current->id / 32;
  if (self->alive[warp] == kWholeWarp) return;
  refuse(what, where,
         self->member[warp] == kWholeWarp ? " in a warp of which some lanes have returned"
                                          : " in a warp of fewer than 32 threads");
}

namespace {

// Element i of the two that one register packs.
uint32_t half(uint32_t reg, int i) { return reg >> (16 * i) & 0xffff; }

struct LoadFrame {
  uint32_t* registers;
  const uint16_t* row;
  int matrices;
  bool trans;
};

// Lanes 8m .. 8m + 7 hold the row addresses of matrix m.
void do_ldmatrix(WarpMeeting& m) {
  need_all_lanes(m);
  for (int lane = 0; lane < 32; ++lane) {
    auto& f = frame_of<LoadFrame>(m, lane);
    for (int matrix = 0; matrix < f.matrices; ++matrix) {
      uint32_t packed = 0;
      for (int i = 0; i < 2; ++i) {
        auto [r, c] = fa::ldmatrix_element(lane, i);
        if (f.trans) std::swap(r, c);
        const uint32_t element = frame_of<LoadFrame>(m, matrix * 8 + r).row[c];
        packed |= element << (16 * i);
      }
      f.registers[matrix] = packed;
    }
  }
}

struct StoreFrame {
  const uint32_t* registers;
  uint16_t* row;
  int matrices;
  bool trans;
};

void do_stmatrix(WarpMeeting& m) {
  need_all_lanes(m);
  for (int lane = 0; lane < 32; ++lane) {
    const auto& f = frame_of<StoreFrame>(m, lane);
    for (int matrix = 0; matrix < f.matrices; ++matrix) {
      for (int i = 0; i < 2; ++i) {
        auto [r, c] = fa::ldmatrix_element(lane, i);
        if (f.trans) std::swap(r, c);
        frame_of<StoreFrame>(m, matrix * 8 + r).row[c] =
            static_cast<uint16_t>(half(f.registers[matrix], i));
      }
    }
  }
}

struct BytesFrame {
  uint32_t* registers;
  uint8_t* row;
  int matrices, bits;
  bool square;
};
void do_ldmatrix_bytes(WarpMeeting& m) {
  need_all_lanes(m);
  const auto& f = frame_of<BytesFrame>(m, 0);
  uint8_t rows[32][kChunk];
  for (int i = 0; i < f.matrices * (f.square ? 16 : 8); ++i) {
    std::memcpy(rows[i], frame_of<BytesFrame>(m, i).row, kChunk);
    if (f.bits) expand(rows[i], f.bits, 0);
  }
  for (int lane = 0; lane < 32; ++lane) {
    auto* bytes = reinterpret_cast<uint8_t*>(frame_of<BytesFrame>(m, lane).registers);
    for (int i = 0; i < 4 * f.matrices; ++i) {
      if (!f.square) {
        bytes[i] = rows[i / 4 * 8 + lane / 4][lane % 4 * 4 + i % 4];
        continue;
      }
      for (int half = 0; half < 2; ++half) {
        bytes[i / 4 * 8 + half * 4 + i % 4] =
            rows[i / 4 * 16 + lane % 4 * 4 + i % 4][lane / 4 + half * 8];
      }
    }
  }
}
void do_stmatrix_bytes(WarpMeeting& m) {
  need_all_lanes(m);
  for (int lane = 0; lane < 32; ++lane) {
    const auto& f = frame_of<BytesFrame>(m, lane);
    const auto* bytes = reinterpret_cast<const uint8_t*>(f.registers);
    for (int i = 0; i < 4 * f.matrices; ++i) {
      uint8_t* row = frame_of<BytesFrame>(m, i / 4 * 8 + lane % 4 * 2 + i % 2).row;
      row[lane / 4 + i % 4 / 2 * 8] = bytes[i];
    }
  }
}

struct MmaFrame {
  float* d;
  const uint32_t* a;
  const uint32_t* b;
};

void do_mma(WarpMeeting& m) {
  need_all_lanes(m);
  constexpr int kM = 16, kN = 8, kK = 16;
  TensorOperand<kK * kM> A;  // the product is D^T = B^T A^T, with many columns for vectors
  TensorOperand<kN * kK> B;
  float D[kN * kM];
  // Element i is as far from a lane's element 0 as in lane 0, so the compiler knows the distance.
  for (int lane = 0; lane < 32; ++lane) {
    const auto& f = frame_of<MmaFrame>(m, lane);
    const auto a = fa::mma_a_element(lane, 0), b = fa::mma_b_element(lane, 0),
               d = fa::mma_d_element(lane, 0);
    for (int i = 0; i < 8; ++i) {
      const auto [r, k] = fa::mma_a_element(0, i);
      A.value[(a.col + k) * kM + a.row + r] = bf16_value(half(f.a[i / 2], i % 2));
    }
    for (int i = 0; i < 4; ++i) {
      const auto [k, c] = fa::mma_b_element(0, i);
      B.value[(b.col + c) * kK + b.row + k] = bf16_value(half(f.b[i / 2], i % 2));
    }
    for (int i = 0; i < 4; ++i) {
      const auto [r, c] = fa::mma_d_element(0, i);
      D[(d.col + c) * kM + d.row + r] = f.d[i];
    }
  }
  const fa::TensorSum& rule = fa::mma_bf16_sum(options().arch);
  find_exponents(rule, kK * kM, A.value, A.exponent);
  find_exponents(rule, kN * kK, B.value, B.exponent);
  for (int k = 0; k < kK; k += rule.products) {
    multiply_add(rule, kN, kM, {B.value + k, B.exponent + k}, kK,
                 {A.value + k * kM, A.exponent + k * kM}, D, kM);
  }
  for (int lane = 0; lane < 32; ++lane) {
    float* to = frame_of<MmaFrame>(m, lane).d;
    const auto d = fa::mma_d_element(lane, 0);
    for (int i = 0; i < 4; ++i) {
      const auto [r, c] = fa::mma_d_element(0, i);
      to[i] = D[(d.col + c) * kM + d.row + r];
    }
  }
  self->tensor_flops += 2 * 16 * 8 * 16;
  ++self->mma;
  for (auto& o : self->observers) o->product(*self, m.warp);
}

// Only the lanes that name a row touch memory.
void account_rows(const char* what, int matrices, const void* row, Kind kind, const void* pc,
                  const Where& where) {
  need_whole_warp(what, where);
  if (static_cast<int>(self->current->id % 32) >= 8 * matrices) return;
  need_own_shared(what, row, 16, 16, where);
  access(row, 16, kind, pc, By::matrix);
}

}  // namespace

void ldmatrix(uint32_t* registers, int matrices, bool trans, const void* row, Where where) {
  account_rows("ldmatrix", matrices, row, Kind::load, __builtin_return_address(0), where);
  use_operand(registers, matrices * sizeof(uint32_t), Kind::store, __builtin_return_address(0));
  LoadFrame f{registers, static_cast<const uint16_t*>(row), matrices, trans};
  meet_in_warp("ldmatrix", kWholeWarp, do_ldmatrix, &f, where);
}

void stmatrix(const uint32_t* registers, void* row, Where where, int matrices, bool trans) {
  account_rows("stmatrix", matrices, row, Kind::store, __builtin_return_address(0), where);
  use_operand(registers, matrices * sizeof(uint32_t), Kind::load, __builtin_return_address(0));
  StoreFrame f{registers, static_cast<uint16_t*>(row), matrices, trans};
  meet_in_warp("stmatrix", kWholeWarp, do_stmatrix, &f, where);
}

void ldmatrix_bytes(uint32_t* registers, int matrices, bool square, int bits, const void* row,
                    Where where) {
  const void* pc = __builtin_return_address(0);
  account_rows("ldmatrix", matrices << square, row, Kind::load, pc, where);
  use_operand(registers, (matrices << square) * sizeof(uint32_t), Kind::store, pc);
  auto* from = static_cast<uint8_t*>(const_cast<void*>(row));
  BytesFrame f{registers, from, matrices, bits, square};
  meet_in_warp("ldmatrix", kWholeWarp, do_ldmatrix_bytes, &f, where);
}

void stmatrix_bytes(const uint32_t* registers, void* row, Where where, int matrices) {
  const void* pc = __builtin_return_address(0);
  account_rows("stmatrix", matrices, row, Kind::store, pc, where);
  use_operand(registers, matrices * sizeof(uint32_t), Kind::load, pc);
  BytesFrame f{const_cast<uint32_t*>(registers), static_cast<uint8_t*>(row), matrices, 0, false};
  meet_in_warp("stmatrix", kWholeWarp, do_stmatrix_bytes, &f, where);
}

void mma_m16n8k16(float* d, const uint32_t* a, const uint32_t* b, Where where) {
  need_whole_warp("mma.sync", where);
  if (self->registers_watched) [[unlikely]] {
    const void* pc = __builtin_return_address(0);
    use_operand(a, 4 * sizeof(uint32_t), Kind::load, pc);
    use_operand(b, 2 * sizeof(uint32_t), Kind::load, pc);
    use_operand(d, 4 * sizeof(float), Kind::store, pc);
  }
  MmaFrame f{d, a, b};
  meet_in_warp("mma.sync", kWholeWarp, do_mma, &f, where);
}

}  // namespace sim

/// \file
/// Which thread holds which element: fragments of the tensor-core instructions, swizzles, wgmma's
/// operands in shared memory. The simulator executes the instructions by the same arithmetic.
#pragma once

#include <cstdint>

#include "common/dialect/cuda.h"

#define FA_LAYOUT __host__ __device__ constexpr

namespace fa {

/// Where an element of a fragment is in its tile.
struct RowCol {
  int row;
  int col;
};

// --- mma.m16n8k16: D[16][8] += A[16][16] B[16][8], one warp --------------------------------------
//
//        columns 0 1   2 3   4 5   6 7  |  8 9 ...        D, and each 8x8 quarter of A:
//   row 0   lane 0  lane 1  lane 2  lane 3                two adjacent numbers per lane,
//   row 1   lane 4  lane 5  lane 6  lane 7                four lanes per row, eight rows
//   ...
//   row 7   lane 28 lane 29 lane 30 lane 31

/// Element i (0..7) of A that `lane` holds: half i % 2 of register i / 2.
/// Registers 0 1 2 3 are the quarters top left, bottom left, top right, bottom right.
FA_LAYOUT RowCol mma_a_element(int lane, int i) {
  return {lane / 4 + i / 2 % 2 * 8, lane % 4 * 2 + i % 2 + i / 4 * 8};
}

/// Element i (0..3) of B that `lane` holds: half i % 2 of register i / 2. row = k, col = n.
/// B is "col": the two halves of a register are adjacent in k.
FA_LAYOUT RowCol mma_b_element(int lane, int i) {
  return {lane % 4 * 2 + i % 2 + i / 2 * 8, lane / 4};
}

/// Element i (0..3) of D (and of the accumulator) that `lane` holds, one fp32 per register.
FA_LAYOUT RowCol mma_d_element(int lane, int i) {
  return {lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2};
}

/// Half i (0..1) of the register that `lane` receives from ldmatrix for one 8x8 matrix; with .trans
/// row and col are swapped. stmatrix is the reverse.
FA_LAYOUT RowCol ldmatrix_element(int lane, int i) { return {lane / 4, lane % 4 * 2 + i}; }

// --- wgmma.m64nNk16: D[64][N] += A[64][16] B[16][N], one warpgroup of 128 threads ----------------

/// Element i (0 .. N/2 - 1) of D that `thread` (0..127) holds: warp w has rows 16w .. 16w + 15, in
/// which each 8 columns have the layout of mma's D.
FA_LAYOUT RowCol wgmma_d_element(int thread, int i) {
  const RowCol e = mma_d_element(thread % 32, i % 4);
  return {thread / 32 * 16 + e.row, i / 4 * 8 + e.col};
}

/// Element i (0..7) of an A in registers: as mma's A, rows 16w .. 16w + 15.
FA_LAYOUT RowCol wgmma_a_element(int thread, int i) {
  const RowCol e = mma_a_element(thread % 32, i);
  return {thread / 32 * 16 + e.row, e.col};
}

// --- swizzles ------------------------------------------------------------------------------------

/// How TMA and wgmma permute the 16-byte chunks of shared memory. The value is the width in bytes
/// within which chunks move, which is also the length of a tile's row in memory.
enum class Swizzle : int { none = 16, b32 = 32, b64 = 64, b128 = 128 };

/// Where byte `address` of shared memory is stored: bits 4.. of the address are XORed with bits
/// 7.. (one bit for b32, two for b64, three for b128). The pattern repeats after 256, 512 or 1024
/// bytes, so a tile that starts at such a multiple can be indexed by its offset alone.
FA_LAYOUT uint64_t swizzled(uint64_t address, Swizzle swizzle) {
  const uint64_t chunks = static_cast<uint64_t>(swizzle) / 16;  // 1, 2, 4 or 8
  return address ^ (address >> 7 & (chunks - 1)) << 4;
}

// --- wgmma's operands in shared memory -----------------------------------------------------------

/// Which index of an operand runs along a row of memory: k, or m (A) and n (B).
enum class Major : int { k = 0, mn = 1 };

/// The fields of a matrix descriptor, in bytes.
struct WgmmaOperand {
  uint64_t start;    ///< shared address
  uint32_t leading;  ///< see wgmma_offset
  uint32_t stride;   ///< see wgmma_offset
  Swizzle swizzle;
};

/// Where element (mn, k) of a 2-byte operand is, in bytes from the start, before the swizzle.
///
/// With a swizzle of W bytes memory holds rows of W bytes in groups of 8:
///  - K-major: a row is one mn and W / 2 values of k; groups are `stride` apart in mn. (`leading`
///    is not used; a step of 16 in k moves the start by 32 bytes.)
///  - MN-major: a row is one k and W / 2 values of mn; groups are `stride` apart in k, and panels
///    of W / 2 values of mn are `leading` apart.
///
/// Without a swizzle memory holds core matrices, 8 rows of 16 bytes, 128 bytes each. They are
/// `leading` apart in k and `stride` apart in mn; a row is one mn (K-major) or one k (MN-major).
FA_LAYOUT uint64_t wgmma_offset(const WgmmaOperand& o, Major major, int mn, int k) {
  const uint64_t width = static_cast<uint64_t>(o.swizzle);
  const uint64_t inner = static_cast<uint64_t>(major == Major::k ? k : mn) * 2;  // bytes in a row
  const uint64_t row = static_cast<uint64_t>(major == Major::k ? mn : k);
  if (o.swizzle == Swizzle::none && major == Major::mn) {
    return inner / 16 * o.stride + inner % 16 + row % 8 * 16 + row / 8 * o.leading;
  }
  return inner / width * o.leading + inner % width + row % 8 * width + row / 8 * o.stride;
}

}  // namespace fa

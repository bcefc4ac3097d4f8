// Step 11 -- a third warpgroup for dQ, and products that subtract LSE and delta.
// Idea      A third warpgroup multiplies dQ, adds it to HBM, and copies. dS has two stages, so the
//           other two seldom wait. At d = 128 three warpgroups have registers for 64 rows only;
//           without dQ there is room for a copy of P, so that dS overlaps dV. S - LSE / scale is
//           itself a product: of K with a column of ones, and Q with a column of -LSE / scale;
//           dP - delta is one of V with ones, and dO with -delta. One more wgmma, of 16 columns,
//           replaces the loads of LSE and delta. Three bf16 hold the 24 bits of a float
// Changed   since 11 2_late: the third warpgroup; the order of dV and dP; a first tile that sees no
//           key is skipped; LSE and delta, and the preceding kernel, which writes columns
// Traffic   requested read   2*BH*(2*N + 2*Tc*N)*d + 2*BHkv*2*Nk*d + 4*BH*(N + Np*d + 4*Tc*Nv) B
//                     write  2*BH*N*d + 2*BHkv*2*Nk*d + 4*BH*(Np*d + 4*Np) B
//                     atomic 4*BH*Tc*Nv*d B   Np: N in tiles of 128; Nv: in tiles of 128 (d = 64)
//                                             or 64; causal: visited tiles
//           compulsory       2*(4*BH*N*d + 4*BHkv*Nk*d) + 4*BH*N B
// Launch    columns; backward (Tc * B*Hkv), 384 threads; convert
// Owns      block: dK and dV of 128 keys; warpgroups 0 and 1: 64 of them; warpgroup 2: dQ of a tile
// Still bad the order of the additions to dQ differs from run to run, and with it the last bits
#pragma once

#include "common/dialect/ptx/setmaxnreg.h"
#include "steps/11_hopper_backward/parts.cuh"

namespace step11_columns {

using namespace step11;

template <int d>
constexpr int Br = d == 64 ? 128 : 64;  // rows of a tile of Q and dO, in place of step11::Br
constexpr int kThreads = (kGroups + 1) * kGroupThreads;
constexpr int kStages = 3, kDsStages = 2;  // of Q and dO; of dS
constexpr int kColumns = 8;  // of a row: three of -LSE / scale, three of -delta, two of 0
template <int d>
constexpr int kGroupRegisters = d == 64 ? 208 : 216;  // by setmaxnreg; the third has the rest
template <int d>
constexpr int kThirdRegisters = 3 * 168 - 2 * kGroupRegisters<d>;  // 65536 / 384: 168; 88 or 72

// --- the columns ---------------------------------------------------------------------------------

// x as a sum of three bf16.
__device__ inline void split(float x, bf16* to) {
  UNROLL
  for (int i = 0; i < 3; ++i) {
    to[i] = __float2bfloat16(x);
    x -= __bfloat162float(to[i]);
  }
}

// Writes a row's columns. Both products read all of them: an inf or a NaN in one is NaN in both. A
// row without a key, and one past the end, gets -1e30: its P is 0, and -inf times 0 would be NaN.
__device__ inline void put_columns(bf16* to, float scaled_lse, float delta) {
  __align__(16) bf16 row[kColumns];
  split(scaled_lse == -INFINITY ? -1e30f : -scaled_lse, row);
  split(-delta, row + 3);
  *reinterpret_cast<float*>(row + 6) = 0.f;
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(row);
}

// Per row: its columns, with delta = rowsum(dO * O), and zeros for dQ_sum.
template <int d>
__global__ void columns_kernel(const bf16* O,     // [B*H, N, d]
                               const bf16* dO,    // [B*H, N, d]
                               const float* LSE,  // [B*H, N]
                               bf16* columns,     // [B*H, Np, 8]
                               float* dQ_sum,     // [B*H, Np, d]
                               int N, int Np, float scale) {
  const RowLanes<d> at(N, Np);
  at.clear(dQ_sum);
  const float delta = at.delta(O, dO);
  if (at.lane == 0) put_columns(columns + at.padded * kColumns, at.lse(LSE) / scale, delta);
}

// A of the columns' product: per key 1 in the columns of LSE, or of delta. A lane holds column
// 2 (lane % 4) and the next one of two keys; columns 8 to 15 are 0.
template <bool of_lse>
__device__ inline void select_columns(uint32_t (&ones)[4]) {
  constexpr uint32_t kLower = 0x3f80, kUpper = 0x3f800000;  // 1 in bf16
  const int pair = threadIdx.x % 4;                         // of columns
  ones[0] = ones[1] = pair == (of_lse ? 0 : 2) ? kLower | kUpper
                      : pair == 1              ? (of_lse ? kLower : kUpper)
                                               : 0;
  ones[2] = ones[3] = 0;
  fa::pin_registers(ones);
}

// Issues C = A B^T, 64 keys by a tile's rows, plus, per row, the sum of the columns that `ones`
// selects. Does not wait.
template <int d, int half_rows>
__device__ inline void multiply_with_columns(uint64_t A, uint64_t B, const uint32_t (&ones)[4],
                                             uint64_t columns, float (&rC)[half_rows]) {
  fa::wgmma_fence();
  UNROLL
  for (int x = 0; x < d; x += kMma) {
    const int panel = x / kPanel, inside = x % kPanel * 2;
    fa::wgmma(rC, fa::wgmma_advance(A, panel * kGroupKeys * kRowBytes + inside),
              fa::wgmma_advance(B, panel * 2 * half_rows * kRowBytes + inside), x > 0);
  }
  fa::wgmma(rC, ones, columns);
  fa::wgmma_commit();
}

// dV += P^T dO and, during it, rdP = dS^T = (P (dP - delta))^T. dO_rows: dO's descriptor for dV.
template <int d, int half_rows>
__device__ inline void differentiate(uint64_t V, uint64_t dO, uint64_t dO_rows,
                                     const uint32_t (&delta_ones)[4], uint64_t columns,
                                     uint64_t* do_full, int parity, float (&rdP)[half_rows],
                                     const uint32_t (&rP)[half_rows / 8][4], float (&rdV)[d / 2]) {
  uint32_t copy[half_rows / 8][4];  // of P: ptxas moves reads of dV's A after dV's wait
  UNROLL
  for (int r = 0; r < half_rows / 8; ++r) {
    UNROLL
    for (int e = 0; e < 4; ++e) copy[r][e] = rP[r][e];
    fa::pin_registers(copy[r]);
  }
  fa::mbarrier_wait(do_full, parity);
  multiply_with_columns<d>(V, dO, delta_ones, columns, rdP);
  multiply_rows<d>(rP, dO_rows, rdV);
  wait_for<1>(rdP);
  UNROLL
  for (int i = 0; i < half_rows; i += 2) {
    multiply_by_p(copy[i / 8][i % 8 / 2], rdP[i], rdP[i + 1]);  // dS = P (dP - delta)
  }
  fa::pin_registers(rdP);
  wait_for<0>(rdV);
  fa::pin_registers(rdP);  // else ptxas packs dS over P, which dV reads, before the wait
}

// --- a block's shared memory, and the thread that copies -----------------------------------------

// A block's shared memory: 199 KB when d = 64, 196 KB when d = 128. Panels as in 09. Its
// mbarriers, where owners are the warps of the two warpgroups that own keys:
//                     a phase is complete when                     waiting
//     k_full, v_full  TMA has written K, or V                      all for K, the owners for V
//     q_full, do_full TMA has written Q and columns, or dO         the owners
//     q_empty         each owner's dP (columns), dK are done       the copying thread
//     do_empty        each owner's dP and dV are done              the copying thread
//     ds_full         each owner has written its dS                the third warpgroup, before dQ
//     ds_empty        each warp's dQ has read dS, and K            the owners, two tiles later
template <int d>
struct alignas(1024) Tiles {
  bf16 K[kGroups][kGroupKeys * d];  // later dK, before its store
  bf16 V[kGroups][kGroupKeys * d];  // later dV
  bf16 Q[kStages][Br<d> * d];
  bf16 dO[kStages][Br<d> * d];
  bf16 columns[kStages][Br<d> * kColumns];  // with Q
  bf16 dS[kDsStages][Bc * Br<d>];           // dS^T: [Br / 64][Bc][64]
  uint64_t k_full, v_full;
  uint64_t q_full[kStages], q_empty[kStages];
  uint64_t do_full[kStages], do_empty[kStages];
  uint64_t ds_full[kDsStages], ds_empty[kDsStages];
};

template <int d>
struct Loader {
  Tiles<d>& smem;
  const fa::TensorMap *Q, *K, *V, *dO;
  const bf16* columns;  // [B*H, Np, 8]
  const WorkTile& work;
  int Np;

  __device__ void load_rows(unsigned n, const RowTile& at) const {
    const unsigned stage = n % kStages, parity = (n / kStages & 1) ^ 1;
    const size_t row = size_t(at.head) * Np + at.i * Br<d>;
    uint64_t *q_full = &smem.q_full[stage], *do_full = &smem.do_full[stage];
    fa::mbarrier_wait(&smem.q_empty[stage], parity);
    fa::mbarrier_arrive_expect_tx(q_full, sizeof smem.Q[0] + sizeof smem.columns[0]);
    fa::tma_load(smem.Q[stage], Q, q_full, {0, at.i * Br<d>, 0, at.head});
    fa::bulk_load(smem.columns[stage], columns + row * kColumns, sizeof smem.columns[0], q_full);
    if (n == 0) load_keys(smem.V, &smem.v_full, V, work);  // in the order of their use
    fa::mbarrier_wait(&smem.do_empty[stage], parity);
    fa::mbarrier_arrive_expect_tx(do_full, sizeof smem.dO[0]);
    fa::tma_load(smem.dO[stage], dO, do_full, {0, at.i * Br<d>, 0, at.head});
  }
};

// --- the third warpgroup multiplies dQ -----------------------------------------------------------

// dQ of each tile, 64 rows and 64 features at a time, once both warpgroups' dS is complete. One
// thread also copies: an owner signals dS of a tile after it has released the previous stage.
template <int d>
__device__ inline void multiply_dq(Tiles<d>& smem, const Shape& shape, const WorkTile& work,
                                   const Loader<d>& loader, const FloatSums& dQ_sum) {
  const int thread = threadIdx.x % kGroupThreads, lane = thread % fa::kWarp;
  const unsigned tiles = shape.group * (shape.Tr - work.first);
  RowTile at{work, shape}, ahead = at;  // ahead: the next tile to copy
  if (thread == 0) {
    load_keys(smem.K, &smem.k_full, loader.K, work);
    UNROLL_BY(1)
    for (unsigned i = 0; i < min(tiles, unsigned(kStages)); ++i, ahead.next(work, shape)) {
      loader.load_rows(i, ahead);
    }
  }
  __syncwarp();
  fa::mbarrier_wait(&smem.k_full, 0);
  const uint64_t first_k = tile_descriptor(smem.K[0]), first_ds = tile_descriptor(smem.dS[0]);
  UNROLL_BY(1)
  for (unsigned n = 0; n < tiles; ++n, at.next(work, shape)) {
    const unsigned stage = n % kDsStages;
    const uint64_t k = first_k + (n >> 31);  // + 0: see Group::zero()
    const uint64_t ds = first_ds + stage * (sizeof smem.dS[0] >> 4);
    fa::mbarrier_wait(&smem.ds_full[stage], n / kDsStages & 1);
    constexpr int kParts = 2;  // d = 64: of rows; d = 128: of features
    UNROLL_BY(1)
    for (int part = 0; part < kParts; ++part) {
      const int rows = d == 64 ? part : 0, features = d == 64 ? 0 : part;  // in units of 64
      float rdQ[kPanel / 2];
      multiply_transposed<d, Bc>(ds + (rows * Bc * kRowBytes >> 4),
                                 k + (features * kGroupKeys * kRowBytes >> 4), rdQ);
      if (part == 0 && thread == 0 && n > 0 && n - 1 + kStages < tiles) {
        loader.load_rows(n - 1 + kStages, ahead);
        ahead.next(work, shape);
      }
      __syncwarp();
      const int half = (at.head * shape.Np + at.i * Br<d>) / 64 + rows;
      const auto dQ_part = dQ_sum.part<d>(half, features * 64);
      wait_for<0>(rdQ);  // the lanes of a warp wait together: no __syncwarp() below
      if (part == kParts - 1 && lane == 0) fa::mbarrier_arrive(&smem.ds_empty[stage]);
      dQ_part.add(rdQ);
    }
  }
}

// --- the others multiply, and compute P and dS ---------------------------------------------------

template <int d, int wg, class Tile = RowTile>
struct Group {
  static constexpr int Br = step11_columns::Br<d>;
  Tiles<d>& smem;
  const Shape& shape;
  const WorkTile work;
  const int thread = threadIdx.x % kGroupThreads, lane = threadIdx.x % fa::kWarp;
  const int key = work.j * Bc + wg * kGroupKeys;  // the warpgroup's first
  const uint64_t first = tile_descriptor(smem.K[0]);
  // Always 0, unknown to nvcc, which would otherwise compute all descriptors before the loop.
  __device__ unsigned zero() const { return n >> 31; }
  __device__ uint64_t first_tile() const { return first + zero(); }
  using At = Distances<Tiles<d>, d, Br, wg>;
  unsigned n = 0;        // number of the tile; in signal_ds() and after the loop one past it
  Tile at{work, shape};  // the tile
  float rX[Br / 2], rdK[d / 2] = {}, rdV[d / 2] = {};
  uint32_t rP[Br / kMma][4];  // P, then dS
  uint32_t lse_ones[4], delta_ones[4];

  __device__ Group(Tiles<d>& smem, const Shape& shape, const WorkTile& work)
      : smem(smem), shape(shape), work(work) {
    select_columns<true>(lse_ones);
    select_columns<false>(delta_ones);
  }

  __device__ unsigned tiles() const { return shape.group * (shape.Tr - work.first); }
  __device__ unsigned stage() const { return n % kStages; }
  // No swizzle: eight columns of eight rows are a core matrix. The next one is 0 bytes further, so
  // that as columns 8 to 15 wgmma reads the same eight again; A multiplies them by 0.
  __device__ uint64_t columns() const {
    return fa::wgmma_descriptor(smem.columns[stage()], fa::Swizzle::none, 0, 8 * 2 * kColumns);
  }

  // (S - LSE / scale)^T, once Q has arrived.
  __device__ void issue_scores(float (&rS)[Br / 2]) {
    fa::mbarrier_wait(&smem.q_full[stage()], n / kStages & 1);
    multiply_with_columns<d>(first_tile() + At::kK, first_tile() + At::kQ + stage() * At::kStageOf,
                             lse_ones, columns(), rS);
  }
  __device__ void softmax(float (&rS)[Br / 2]) {
    const int row = at.i * Br, last = key + kGroupKeys - 1;
    if (last >= shape.Nk || last > row + shape.shift) {
      const int k = key + thread / fa::kWarp * 16 + fa::row_of(lane), r = row + fa::column_of(lane);
      mask(rS, hidden(shape, k, r), hidden(shape, k + 8, r));
    }
    const float scale_log2 = shape.scale * fa::kLog2e;
    UNROLL
    for (int i = 0; i < Br / 2; ++i) rS[i] = fa::exp2_approx(rS[i] * scale_log2);
    fa::pin_registers(rS);
  }
  __device__ void issue_dk(unsigned i) {
    multiply_rows<d>(rP, first_tile() + At::kQRows + i % kStages * At::kStageOf, rdK);
  }
  // dV, and dS: to registers and, once its stage is empty, to shared memory.
  __device__ void differentiate() {
    step11_columns::differentiate<d>(
        first_tile() + At::kV, first_tile() + At::kDo + stage() * At::kStageOf,
        first_tile() + At::kDoRows + stage() * At::kStageOf, delta_ones, columns(),
        &smem.do_full[stage()], n / kStages & 1, rX, rP, rdV);
    warp_arrive(&smem.do_empty[stage()]);
    pack_operand(rX, rP);
    fa::mbarrier_wait(&smem.ds_empty[n % kDsStages], (n / kDsStages & 1) ^ 1);
    put_ds(rP, smem.dS[n % kDsStages]);
  }
  // After S of the next tile and dK are issued, which need not wait for the fence: so kStages >= 3.
  __device__ void signal_ds() {
    fa::fence_proxy_async();  // wgmma sees this thread's writes
    warp_arrive(&smem.ds_full[(n - 1) % kDsStages]);
  }

  // If no row of the walk's first tile sees a key of warpgroup 1, its dS is 0, and it begins with
  // the next tile, if there is one. (In the group's other heads it computes the zeros.)
  __device__ void skip_hidden() {
    if (key <= at.i * Br + Br - 1 + shape.shift || tiles() == 1) return;
    for (int panel = 0; panel < Br / 64; ++panel) {
      uint4* dS = reinterpret_cast<uint4*>(smem.dS[0] + (panel * Bc + wg * kGroupKeys) * kPanel);
      UNROLL
      for (int i = 0; i < kGroupKeys * kPanel / 8; i += kGroupThreads) {
        dS[i + thread] = make_uint4(0, 0, 0, 0);
      }
    }
    // No wait for Q and dO: tile 2's ds_empty needs warpgroup 0's dS of this tile, hence both.
    warp_arrive(&smem.q_empty[0]), warp_arrive(&smem.do_empty[0]);
    ++n;
    signal_ds();
    at.next(work, shape);
  }

  // Ends with the last tile's dK in flight.
  __device__ void walk() {
    // --- prologue: P and dS of the first tile that sees a key
    skip_hidden();
    fa::mbarrier_wait(&smem.k_full, 0);
    float(&rS)[Br / 2] = rX;
    issue_scores(rS);
    wait_for<0>(rS);
    softmax(rS);
    pack_operand(rS, rP);
    fa::mbarrier_wait(&smem.v_full, 0);
    differentiate();

    // --- mainloop: S of the next tile overlaps dK of this one
    while (++n < tiles()) {
      at.next(work, shape);
      issue_scores(rS);
      issue_dk(n - 1);
      signal_ds();
      wait_for<1>(rS);
      softmax(rS);
      wait_for<0>(rdK);
      fa::pin_registers(rS);  // else ptxas packs P over dS, which dK reads, before the wait
      warp_arrive(&smem.q_empty[(n - 1) % kStages]);
      pack_operand(rS, rP);
      differentiate();
    }

    // --- epilogue: dK of the last tile
    signal_ds();
    issue_dk(n - 1);
  }

  __device__ void run(const fa::TensorMap* dK, const fa::TensorMap* dV) {
    walk();
    // dK and dV are staged where K and V were.
    const float scales[2] = {shape.scale, shape.scale}, ones[2] = {1.f, 1.f};
    put_rows<d>(rdV, ones, smem.V[wg]);  // over the warp's 16 keys of V, read only by its own dP
    wait_for<0>(rdK);                    // and below, until dQ of the last tile has read K
    fa::mbarrier_wait(&smem.ds_empty[(n - 1) % kDsStages], (n - 1) / kDsStages & 1);
    put_rows<d>(rdK, scales, smem.K[wg]);
    store_keys(dK, dV, smem.K, smem.V, wg, thread, key, shape.Nk, work.bh_kv);
  }
};

template <int d>
__global__ void __launch_bounds__(kThreads, 1)
    backward_kernel(const __grid_constant__ fa::TensorMap Q,   // [B*H, N, d], boxes of Br rows
                    const __grid_constant__ fa::TensorMap K,   // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap V,   // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap dO,  // [B*H, N, d], of Br
                    const __grid_constant__ fa::TensorMap dK,  // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap dV,  // [B*Hkv, Nk, d], of 64
                    const bf16* columns,                       // [B*H, Np, 8]
                    FloatSums dQ_sum, Shape shape) {
  Tiles<d>& smem = *fa::dynamic_shared<Tiles<d>>();
  if (threadIdx.x == 0) {
    constexpr int kGroupWarps = kGroupThreads / fa::kWarp, kWarps = kGroups * kGroupWarps;
    fa::mbarrier_init(&smem.k_full, 1), fa::mbarrier_init(&smem.v_full, 1);
    init_mbarriers(smem.q_full, 1), init_mbarriers(smem.q_empty, kWarps);
    init_mbarriers(smem.do_full, 1), init_mbarriers(smem.do_empty, kWarps);
    init_mbarriers(smem.ds_full, kWarps), init_mbarriers(smem.ds_empty, kGroupWarps);
    fa::mbarrier_init_fence();
  }
  __syncthreads();  // all threads see the barriers
  const WorkTile work = work_tile_at(blockIdx.x, shape, Br<d>);
  const int wg = fa::uniform(threadIdx.x / kGroupThreads);
  if (wg == kGroups) {
    fa::setmaxnreg_dec<kThirdRegisters<d>>();
    const Loader<d> loader{smem, &Q, &K, &V, &dO, columns, work, shape.Np};
    multiply_dq<d>(smem, shape, work, loader, dQ_sum);
  } else {
    fa::setmaxnreg_inc<kGroupRegisters<d>>();
    if (wg == 0) {
      Group<d, 0>(smem, shape, work).run(&dK, &dV);
    } else {
      Group<d, 1>(smem, shape, work).run(&dK, &dV);
    }
  }
}

// --- host ----------------------------------------------------------------------------------------

inline int rows_of_a_tile(const fa::Problem& p) { return p.d == 64 ? Br<64> : Br<128>; }

// Of the tiles that skip_hidden() skips, all of warpgroup 1. rows: per tile.
inline uint64_t skipped_scores(const fa::Problem& p, int rows) {
  const Shape shape = shape_of(p, rows);
  uint64_t tiles = 0;
  for (int j = 0; j < shape.Tc; ++j) {
    const int i = std::max(0, j * Bc - shape.shift) / rows, key = j * Bc + kGroupKeys;
    tiles += key > (i + 1) * rows - 1 + shape.shift && shape.group * (shape.Tr - i) > 1;
  }
  return tiles * p.kv_heads() * kGroupKeys * rows;
}

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  const size_t rows = p.heads() * size_t(padded_rows(p));
  return {{"columns", 2 * kColumns * rows}, {"dQ_sum", 4 * rows * p.d}};
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  const int Br = rows_of_a_tile(p);
  fa::Prediction traffic = traffic_of(p, Br);
  const uint64_t row = 2 * kColumns, BH = p.heads(), Np = padded_rows(p);
  const uint64_t Nv = uint64_t(fa::ceil_div(p.N, Br)) * Br;  // in whole tiles
  const uint64_t tiles = fa::visited_tiles(p, Br, Bc).tiles;
  traffic.buffers.erase("LSE2"), traffic.buffers.erase("delta");
  traffic["columns"] = {.read = row * BH * tiles * Br, .write = row * BH * Np};
  traffic.hbm.read += (row - 8) * BH * Nv, traffic.hbm.write += (row - 8) * BH * Np;
  // 16 columns more in S and dP; S, dP, dV, dK of skipped tiles
  traffic.flops += 4 * BH * Br * Bc * tiles * kMma;
  traffic.flops -= skipped_scores(p, Br) * (8 * p.d + 4 * kMma);
  return traffic;
}

template <int d>
void launch_columns(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::launch(columns_kernel<d>, row_blocks(p, d / 8), t.O, t.dO, t.LSE, t.scratch<bf16>("columns"),
             t.scratch<float>("dQ_sum"), p.N, padded_rows(p), p.scale());
}

template <int d>
void launch_backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  const Shape shape = shape_of(p, Br<d>);
  launch_mapped<d>(backward_kernel<d>, {work_tiles(shape), dim3(kThreads), sizeof(Tiles<d>)}, p, t,
                   Br<d>, t.scratch<bf16>("columns"), FloatSums{t.scratch<float>("dQ_sum")}, shape);
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  fa::dispatch_d<64, 128>(p.d, [&](auto d) {
    launch_columns<d>(p, t);
    launch_backward<d>(p, t);
    launch_convert<d>(p, t);
  });
}

}  // namespace step11_columns

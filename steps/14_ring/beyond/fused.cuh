// Step 14 -- the merge in the epilogue, and blocks in place.
// Idea      A hop's O need not be stored in HBM and loaded again. In place of 10's thread that
//           stores a tile of O, two idle warps of the producer's warpgroup merge the tile with O so
//           far, from shared memory, while the consumers are at the next work tile. TMA reads late
//           rows and early keys in place: a tensor map accepts any stride between heads
// Changed   since 3_backward, `zigzag`: 10's kernel with another epilogue (d = 128); no copies of
//           rows and keys, forward or backward; late rows add to the sums of dQ of all rows; more
//           heads per section in the backward of short shards
// Traffic   sent       as 3_backward
//           requested  10's of each block; per row and merge, in place of O and LSE of the block
//                      and the merge kernel's:  read  2*d + 4*2 B   O so far (fp32: 4*d), LSE twice
//                                               write 2*d + 4*2 B
// Launch    per hop: 10's, after the first hop with 56 and 224 registers; backward as 3_backward
// Owns      rank: N/R rows; warp that merges: a consumer's 64 rows of each work tile
// Still bad without a mask all work tiles are equally long: the last wave does not fill all SMs
#pragma once

#include "steps/14_ring/3_backward.cuh"
#include "steps/14_ring/hopper.cuh"

namespace step14 {

using step10::kGroupRows, fa::kPanel, step10::WorkTile;

// d = 128, and no mask: only the first hop has one. Warps that merge need more registers than a
// thread that stores, and an SM has only 65,536 >= 128 * 56 + 256 * 224. At d = 64 there are four
// consumers, which can spare none.
struct FusedTiling : step10::Tiling<128, false> {  // tiles of Br = 128 rows, Bc = 128 keys
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;
};

// O so far of a rank's rows, and which merges of this hop are their first or last.
struct SoFar {
  bf16* O;     // [B*H, N, d]
  float* sum;  // [B*H, N, d]
  float* LSE;  // [B*H, N]
  int N;       // rows of the rank
  int row0;    // the first of this hop
  int late0;   // the first of the late chunk
  Meeting early, late;

  __device__ Meeting meeting(int row) const { return row0 + row < late0 ? early : late; }
};

// Four bf16, or four floats, as numbers.
__device__ inline float4 widen(uint2 x) {
  return {__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000u),
          __uint_as_float(x.y << 16), __uint_as_float(x.y & 0xffff0000u)};
}
__device__ inline float4 as_floats(uint4 x) {
  return {__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z), __uint_as_float(x.w)};
}

// Merges a consumer's 64 rows of each work tile, in place of step10::store. One warp runs it. Each
// lane computes the weights of one row of 32. Then the warp merges row by row: a lane has 4
// features (d / 32), and kAhead rows of O so far are loaded before the first of them is used.
template <class T>
__device__ inline void merge_tiles(step10::Tiles<T>& smem, const float* LSE,  // [B*H, n]
                                   const SoFar& so_far, const step10::Shape& shape, int wg) {
  constexpr int d = T::d, kAhead = 4;
  const int lane = threadIdx.x % fa::kWarp, x = lane * (d / fa::kWarp);
  for (int n = 0;; ++n) {
    const int b = n % 2;
    fa::mbarrier_wait(&smem.q_full[b][wg], n / 2 & 1);  // the work tile is written, too
    WorkTile work;
    if (lane == 0) work = smem.work[b][wg];
    const int bh = __shfl_sync(fa::kFullMask, work.bh, 0);
    const int row = __shfl_sync(fa::kFullMask, work.row, 0) + wg * kGroupRows;
    if (__shfl_sync(fa::kFullMask, work.tiles, 0) == 0) return;
    fa::mbarrier_wait(&smem.o_full[b][wg], n / 2 & 1);  // O has replaced Q, LSE is in HBM

    const int rows = min(kGroupRows, shape.N - row);
    const size_t kept = size_t(bh) * so_far.N + so_far.row0 + row;
    UNROLL_BY(1)
    for (int r0 = 0; r0 < rows; r0 += fa::kWarp) {  // each lane: LSE and weights of one row
      Merged merged;
      if (r0 + lane < rows) {
        float* LSE_kept = so_far.LSE + kept + r0 + lane;
        merged = merge(*LSE_kept, LSE[size_t(bh) * shape.N + row + r0 + lane]);
        *LSE_kept = merged.LSE;
      }
      UNROLL_BY(1)
      for (int r1 = 0; r1 < fa::kWarp; r1 += kAhead) {
        uint4 old[kAhead];  // four numbers, bf16 or fp32, as they are in HBM
        UNROLL
        for (int a = 0; a < kAhead; ++a) {
          const int r = r0 + r1 + a;
          if (r >= rows) break;
          const size_t at = (kept + r) * d + x;
          if (so_far.meeting(row + r).first) {
            const uint2 o = *reinterpret_cast<const uint2*>(so_far.O + at);
            old[a].x = o.x, old[a].y = o.y;
          } else {
            old[a] = *reinterpret_cast<const uint4*>(so_far.sum + at);
          }
        }
        UNROLL
        for (int a = 0; a < kAhead; ++a) {
          const int r = r0 + r1 + a;
          if (r >= rows) break;
          const float old_weight = __shfl_sync(fa::kFullMask, merged.old_weight, r1 + a);
          const float new_weight = __shfl_sync(fa::kFullMask, merged.new_weight, r1 + a);
          const Meeting now = so_far.meeting(row + r);
          // O, as put_rows() wrote it: panels of 64 features, chunk c of row r at c ^ r % 8.
          const bf16* tile = smem.Q[b][wg] + (x / kPanel * kGroupRows + r) * kPanel;
          const float4 o_old = now.first ? widen({old[a].x, old[a].y}) : as_floats(old[a]);
          const float4 o = widen(*reinterpret_cast<const uint2*>(tile + (x % kPanel ^ r % 8 * 8)));
          const float4 o_new = {
              old_weight * o_old.x + new_weight * o.x, old_weight * o_old.y + new_weight * o.y,
              old_weight * o_old.z + new_weight * o.z, old_weight * o_old.w + new_weight * o.w};
          const size_t at = (kept + r) * d + x;
          if (now.last) {
            *reinterpret_cast<uint2*>(so_far.O + at) = {fa::pack_bf16(o_new.x, o_new.y),
                                                        fa::pack_bf16(o_new.z, o_new.w)};
          } else {
            *reinterpret_cast<float4*>(so_far.sum + at) = o_new;
          }
        }
      }
    }
    __syncwarp();  // all lanes have read the tile: the next Q may replace it
    if (lane == 0) fa::mbarrier_arrive(&smem.q_empty[b][wg]);
  }
}

// step10::flash_fwd_kernel of 4_scheduled with another epilogue: its producer copies every
// gridDim.x-th work tile, and its consumers store O where Q was, as before.
template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    hop_kernel(const __grid_constant__ fa::TensorMap Q,  // [B*H, n, d], of a rank's [B*H, N, d]
               const __grid_constant__ fa::TensorMap K,  // [B*Hkv, nk, d], of a rank's
               const __grid_constant__ fa::TensorMap V,  // [B*Hkv, nk, d]
               float* LSE,                               // [B*H, n], of this hop
               SoFar so_far, step10::Shape shape) {
  step10::Tiles<T>& smem = *fa::dynamic_shared<step10::Tiles<T>>();
  if (threadIdx.x == 0) step10::init_barriers<T>(smem);
  __syncthreads();  // all threads see the barriers
  const int wg = __shfl_sync(fa::kFullMask, threadIdx.x / fa::kGroupThreads, 0);
  if (wg == 0) {
    fa::setmaxnreg_dec<T::kProducerRegisters>();
    constexpr int kMergers = 2;  // warps 2 and 3
    static_assert(T::kConsumers == kMergers);
    const int warp = __shfl_sync(fa::kFullMask, threadIdx.x / fa::kWarp, 0);
    if (warp >= kMergers) {
      merge_tiles<T>(smem, LSE, so_far, shape, warp - kMergers);
    } else if (threadIdx.x == 0) {
      step10::produce<T>(smem, &Q, &K, &V, shape, /*section=*/1, nullptr);
    }
  } else {
    fa::setmaxnreg_inc<T::kConsumerRegisters>();
    step10::Consumer<T>(smem, LSE, shape, wg - 1).run();
  }
}

// --- host ---------------------------------------------------------------------------------------

// Rows row0 .. row0 + rows - 1 of each head of x, [heads, N, d]. Boxes as step 09's.
template <int d>
fa::TensorMap rows_in_place(const bf16* x, uint64_t heads, uint64_t N, uint64_t row0, uint64_t rows,
                            uint32_t box) {
  return fa::tensor_map(
      x + row0 * d,
      {{kPanel, 1, kPanel}, {rows, d, box}, {d / kPanel, kPanel, d / kPanel}, {heads, N * d, 1}},
      fa::Swizzle::b128);
}

// The ring of 2_ring and 3_backward with other steps in its two loops. In each hop, while K and V
// of the next one travel, the forward calls attend() and the backward differentiate(), with this
// rank's tensors, the rows and keys of the block, and the K and V of rank `from`. Before the loops
// they call prepare_late_queries() and prepare_late_rows().
class FusedRing : public Ring<Hopper, Cut::zigzag> {
 public:
  using Base = Ring<Hopper, Cut::zigzag>;
  using Base::Base;

 private:
  bool merges_inside() const { return whole_.d == FusedTiling::d; }
  // dQ's sums lie in fragments of 64 rows, and are padded to whole tiles of 128.
  bool late_rows_begin_a_tile() const { return late().row0 % step11::Br == 0; }

  void prepare_late_queries(const fa::Tensors<T>& t) override {
    if (!merges_inside()) Base::prepare_late_queries(t);
  }

  void attend(const fa::Tensors<T>& t, const Block& b, const Keys<T>& held, int from,
              int blocks) override {
    if (!merges_inside() || from == me_) return Base::attend(t, b, held, from, blocks);
    constexpr int d = FusedTiling::d;
    const fa::Problem p = block_problem(b);
    const uint64_t BH = p.heads(), N = rows(me_), row0 = b.rows.begin;
    SoFar so_far{.O = t.O, .sum = sum_.get(), .LSE = t.LSE, .N = int(N), .row0 = int(row0)};
    so_far.late0 = late().row0;
    if (!is_late(b)) so_far.early = meet(0, 0);
    so_far.late = meet(1, so_far.late0);
    const auto keys = [&](const bf16* x) {
      return rows_in_place<d>(x, p.kv_heads(), rows(from), 0, p.Nk, FusedTiling::Bc);
    };
    const step10::Shape shape{int(BH), p.H / p.Hkv, p.N, p.Nk, p.scale() * fa::kLog2e};
    fa::launch(hop_kernel<FusedTiling>,
               {.grid = dim3(std::min(blocks, step10::work_tiles_of<FusedTiling>(p))),
                .block = dim3(FusedTiling::kThreads),
                .smem = sizeof(step10::Tiles<FusedTiling>),
                .shares_work = true},
               rows_in_place<d>(t.Q, BH, N, row0, p.N, kGroupRows), keys(held.K), keys(held.V),
               partial_LSE_.get(), so_far, shape);
  }

  fa::Tensors<T> prepare_late_rows(const fa::Tensors<T>& all) override {
    if (late_rows_begin_a_tile()) return all;
    if (merges_inside()) Base::prepare_late_queries(all);  // which the forward did not need
    return Base::prepare_late_rows(all);
  }

  void differentiate(fa::Tensors<T> t, const Block& b, const Keys<T>& held, int from) override {
    if (is_late(b) && !late_rows_begin_a_tile()) return Base::differentiate(t, b, held, from);
    fa::dispatch_d<64, 128>(whole_.d, [&](auto d) {
      constexpr int Br = step11_columns::Br<d>;
      const fa::Problem p = block_problem(b);
      const uint64_t row0 = b.rows.begin;
      step11::Shape shape = step11::shape_of(p, Br);
      shape.Np = Hopper::padded_rows(block_problem(block(me_)));
      if (p.causal) {  // sections that fill the SMs: else the last one's longest tiles start late
        const int heads = fa::ceil_div(whole_.gpu.sms, shape.Tc);
        const int sections = std::max(1, shape.kv_heads / heads);
        shape.section = std::max(shape.section, fa::ceil_div(shape.kv_heads, sections));
      }
      const auto queries = [&](const bf16* x) {
        return rows_in_place<d>(x, p.heads(), rows(me_), row0, p.N, Br);
      };
      const auto keys = [&](const bf16* x, int N) {
        return rows_in_place<d>(x, p.kv_heads(), N, 0, p.Nk, step11::kGroupKeys);
      };
      const bf16* columns = t.scratch<bf16>("columns") + row0 * step11_columns::kColumns;
      const step11::FloatSums dQ_sum{t.scratch<float>("dQ_sum") + row0 * d};
      fa::launch(step11_columns::backward_kernel<d>,
                 {step11::work_tiles(shape), dim3(step11_columns::kThreads),
                  sizeof(step11_columns::Tiles<d>)},
                 queries(t.Q), keys(held.K, rows(from)), keys(held.V, rows(from)), queries(t.dO),
                 keys(t.dK, p.Nk), keys(t.dV, p.Nk), columns, dQ_sum, shape);
    });
  }
};

inline std::shared_ptr<const fa::Sharding> fused_ring() {
  fa::Sharding s = *ring<Hopper, Cut::zigzag>();
  s.make = [](const fa::Problem& p, fa::Ranks& ranks) -> std::unique_ptr<fa::RankAttention> {
    return std::make_unique<FusedRing>(p, ranks);
  };
  return std::make_shared<const fa::Sharding>(s);
}

}  // namespace step14

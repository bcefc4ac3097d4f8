// Step 14 -- the merge in the epilogue, and blocks in place.
// Idea      In place of 10's thread that stores a tile of O, two idle warps merge it with O so far,
//           from shared memory. TMA reads late rows and early keys in place: a tensor map accepts
//           any stride between heads
// Changed   since 14 3_backward, zigzag: 10's kernel with another epilogue (d = 128); no copies of
//           rows and keys; late rows add to the sums of dQ of all rows; more heads per section in
//           the backward of short shards; messages of long hops by the host
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

// d = 128, and no mask: only the first hop has one. Merging needs more registers than storing, and
// an SM has 65,536 >= 128 * 56 + 256 * 224. At d = 64 the four consumers can spare none.
struct FusedTiling : step10::Tiling<128, false> {  // tiles of Br = 128 rows, Bc = 128 keys
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;
};

struct MergeTurn {
  bool first = false, last = false;
};

// O so far of a rank's rows, and which merges of this hop are their first or last.
struct SoFar {
  bf16* O;     // [B*H, N, d]
  float* sum;  // [B*H, N, d]
  float* LSE;  // [B*H, N]
  int N;       // rows of the rank
  int row0;    // the first of this hop
  int late0;   // the first of the late chunk
  MergeTurn early, late;

  __device__ MergeTurn turn(int row) const { return row0 + row < late0 ? early : late; }
};

__device__ inline float4 widen(uint2 x) {
  return {__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000u),
          __uint_as_float(x.y << 16), __uint_as_float(x.y & 0xffff0000u)};
}
__device__ inline float4 as_floats(uint4 x) {
  return {__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z), __uint_as_float(x.w)};
}

// Merges a consumer's 64 rows of each work tile, in place of step10::store. By one warp: each lane
// computes the weights of one row of 32, then has 4 features of each row. kAhead rows of O so far
// are loaded before the first of them is used.
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
    const int bh = fa::uniform(work.bh);
    const int row = fa::uniform(work.row) + wg * kGroupRows;
    if (fa::uniform(work.tiles) == 0) return;
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
        uint4 old[kAhead];  // four numbers, bf16 or fp32, as in HBM
        UNROLL
        for (int a = 0; a < kAhead; ++a) {
          const int r = r0 + r1 + a;
          if (r >= rows) break;
          const size_t at = (kept + r) * d + x;
          if (so_far.turn(row + r).first) {
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
          const MergeTurn now = so_far.turn(row + r);
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
  const int wg = fa::uniform(threadIdx.x / fa::kGroupThreads);
  if (wg == 0) {
    fa::setmaxnreg_dec<T::kProducerRegisters>();
    constexpr int kMergers = 2;  // warps 2 and 3
    static_assert(T::kConsumers == kMergers);
    const int warp = fa::uniform(threadIdx.x / fa::kWarp);
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

// The zig-zag ring of 3_backward. At d = 128 the forward merges in the epilogue; at d = 64 it is
// 2_ring's. The backward reads early keys in place, and late rows too where they begin a tile of
// 128 rows: dQ's sums are stored as fragments, and padded to whole tiles.
class FusedRing : public Ring<Hopper, Cut::zigzag> {
 public:
  using Ring::Ring;

  void forward(const fa::Tensors<void>& untyped) override {
    const fa::Tensors<bf16> t = fa::typed<bf16>(untyped);
    merged_.assign(2, 0);
    if (!merges_inside() && meets_larger_ranks()) cut_late_queries(t);
    Keys<bf16> held{t.K, t.V};
    for (int hop = 0; hop < R_; ++hop) {
      const int from = forward_source(me_, hop, R_);
      const bool last = hop + 1 == R_;
      Keys<bf16> next;
      if (!last) {
        const int coming = forward_source(me_, hop + 1, R_);
        next = room(hop % 2, coming);
        ranks_.start("K, V of rank " + std::to_string(coming),
                     keys_to((me_ + 1) % R_, held, from, by_host(from)),
                     keys_to((me_ + R_ - 1) % R_, next, coming, by_host(coming)));
      }
      ranks_.computing("forward, hop " + std::to_string(hop));
      const Block b = block(from);
      const int thread_blocks = std::max(1, whole_.gpu.sms - (last ? 0 : ranks_.busy_sms()));
      if (from != me_ && merges_inside()) {
        attend_and_merge(t, b, held, from, thread_blocks);
      } else {
        attend(t, b, held, from, thread_blocks);
      }
      if (!last) {
        ranks_.finish();
        held = next;
      }
    }
    left_ = held;
  }

  void backward(const fa::Tensors<void>& untyped) override {
    const bool cuts = meets_larger_ranks() && !late_rows_begin_a_tile();
    if (!row_workspace_) allocate();
    ranks_.computing("backward, before the hops");
    const fa::Problem rank_problem = block_problem(block(me_));
    const fa::Tensors<bf16> t = fa::typed<bf16>(untyped);
    fa::Tensors<bf16> rank_tensors = t;
    rank_tensors.workspace = row_workspace_->pointers();
    Hopper::prepare_rows(rank_problem, rank_tensors);
    if (cuts && merges_inside()) cut_late_queries(t);  // else the forward has
    const fa::Tensors<bf16> late_tensors = cuts ? prepare_late_rows(rank_tensors) : rank_tensors;

    Keys<bf16> held = left_;
    for (int hop = 0; hop < R_; ++hop) {
      const int from = backward_source(me_, hop, R_);
      if (hop + 1 == R_) held = {t.K, t.V};
      const Keys<bf16> next = exchange(hop, from, held);
      ranks_.computing("backward, hop " + std::to_string(hop));
      const Block b = block(from);
      if (is_late(b) && cuts) {  // which see all keys
        differentiate(t, late_tensors, b, held, from);
      } else {
        differentiate_in_place(t, rank_tensors, b, held, from);
      }
      if (moves(hop)) ranks_.finish();
      if (R_ > 1) add(t, b, hop, from);
      if (next.K) held = next;
    }
    ranks_.computing("backward, after the hops");
    if (cuts) {
      Hopper::add_sums(rank_problem, rank_tensors, late_problem(), late_tensors, late_rows());
    }
    Hopper::finish_rows(rank_problem, rank_tensors);
  }

 private:
  bool merges_inside() const { return whole_.d == FusedTiling::d; }
  bool late_rows_begin_a_tile() const { return late_rows().row0 % step11::Br == 0; }

  // From so many rows times H / H_kv on, the forward sends K and V by way of the host. At the power
  // limit, messages by NVLink lower the SMs' clocks: 16K rows took 1 to 3% longer on two H200s.
  static constexpr int kRowsByHost = 48 << 10;
  bool by_host(int rank) const { return rows(rank) * (whole_.H / whole_.Hkv) >= kRowsByHost; }
  std::vector<fa::Message> keys_to(int peer, Keys<bf16> keys, int rank, bool by_host) const {
    return {fa::message(peer, keys.K, key_elements(rank), by_host),
            fa::message(peer, keys.V, key_elements(rank), by_host)};
  }
  void cut_late_queries(const fa::Tensors<bf16>& t) {
    const size_t elements = whole_.heads() * late_rows().rows * whole_.d;
    if (!late_Q_) late_Q_ = buffer_of<bf16>("Q, late", elements);
    cut_late(t.Q, late_Q_.get());
  }

  // --- forward

  MergeTurn next_merge(bool late) {  // one per other rank with keys that the chunk's rows see
    const bool first = merged_[late] == 0;
    return {first, ++merged_[late] == (late || !whole_.causal ? R_ - 1 : me_)};
  }

  void attend_and_merge(const fa::Tensors<bf16>& t, const Block& b, const Keys<bf16>& held,
                        int from, int thread_blocks) {
    constexpr int d = FusedTiling::d;
    const fa::Problem p = block_problem(b);
    const int N = rows(me_), row0 = b.rows.begin;
    SoFar so_far{.O = t.O, .sum = sum_.get(), .LSE = t.LSE, .N = N, .row0 = row0};
    so_far.late0 = late_rows().row0;
    if (!is_late(b)) so_far.early = next_merge(false);
    so_far.late = next_merge(true);
    const auto keys = [&](const bf16* x) {
      return fa::tile_map<d>(x, p.kv_heads(), p.Nk, FusedTiling::Bc, rows(from));
    };
    fa::launch(hop_kernel<FusedTiling>,
               fa::share_work(thread_blocks, step10::work_tiles_of<FusedTiling>(p),
                              FusedTiling::kThreads, sizeof(step10::Tiles<FusedTiling>)),
               fa::tile_map<d>(t.Q + row0 * d, p.heads(), p.N, kGroupRows, N), keys(held.K),
               keys(held.V), partial_LSE_.get(), so_far, step10::shape_of(p));
  }

  // --- backward

  void differentiate_in_place(const fa::Tensors<bf16>& t, const fa::Tensors<bf16>& of_rank,
                              const Block& b, const Keys<bf16>& held, int from) {
    bf16* const dK = R_ == 1 ? t.dK : partial_.get();
    bf16* const dV = R_ == 1 ? t.dV : partial_.get() + partial_.size() / 2;
    fa::dispatch_d<64, 128>(whole_.d, [&](auto d) {
      constexpr int Br = step11_columns::Br<d>;
      const fa::Problem p = block_problem(b);
      const uint64_t row0 = b.rows.begin;
      step11::Shape shape = step11::shape_of(p, Br);
      shape.Np = step11::padded_rows(block_problem(block(me_)));
      if (p.causal) {  // sections that fill the SMs: else the last one's longest tiles start late
        const int heads = fa::ceil_div(whole_.gpu.sms, shape.Tc);
        const int sections = std::max(1, shape.kv_heads / heads);
        shape.section = std::max(shape.section, fa::ceil_div(shape.kv_heads, sections));
      }
      const auto queries = [&](const bf16* x) {
        return fa::tile_map<d>(x + row0 * d, p.heads(), p.N, Br, rows(me_));
      };
      const auto keys = [&](const bf16* x, int N) {
        return fa::tile_map<d>(x, p.kv_heads(), p.Nk, step11::kGroupKeys, N);
      };
      const bf16* columns = of_rank.scratch<bf16>("columns") + row0 * step11_columns::kColumns;
      const step11::FloatSums dQ_sum{of_rank.scratch<float>("dQ_sum") + row0 * d};
      fa::launch(step11_columns::backward_kernel<d>,
                 {step11::work_tiles(shape), dim3(step11_columns::kThreads),
                  sizeof(step11_columns::Tiles<d>)},
                 queries(t.Q), keys(held.K, rows(from)), keys(held.V, rows(from)), queries(t.dO),
                 keys(dK, p.Nk), keys(dV, p.Nk), columns, dQ_sum, shape);
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

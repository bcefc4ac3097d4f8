// Step 11 -- blocks that stay.
// Idea      A block of `columns` waits for its first tiles, and nothing runs beside its first P and
//           dS, or while dK and dV leave. Here the loop goes on over the ends of walks: S of the
//           next walk's first tile runs beside dK of this one's last. d = 64 only: at d = 128 a
//           fourth warpgroup leaves too few registers
// Changed   since 11 7_columns: the loop goes on over the ends of walks; 10_copier copies
// Traffic   as 7_columns, and 4 B per walk and per block, atomic, 8 B written: the counters
// Launch    columns; backward (SMs, or fewer walks), 512 threads; convert
// Owns      block: dK and dV of 128 keys at a time; warpgroups as in 5_apart, and 3 that copies
// Still bad dQ_sum crosses HBM four times: zeros, twice for the additions, and once at the end
#pragma once

#include "steps/11_hopper_backward/10_copier.cuh"

namespace step11_persistent {

// --- a warpgroup multiplies dQ -------------------------------------------------------------------

// dQ of each tile, 64 rows at a time, once both warpgroups' dS is there.
template <int d, class Sums>
__device__ inline void multiply_dq(Tiles<d>& smem, const Shape& shape, const Sums& dQ_sum) {
  const int lane = threadIdx.x % fa::kWarp;
  const uint64_t first_k = descriptor(smem.K[0][0]), first_ds = descriptor(smem.dS[0]);
  unsigned n = 0;
  UNROLL_BY(1)
  for (unsigned w = 0;; ++w) {
    const WorkTile work = wait_for_work(smem, w);
    if (work.j < 0) return;
    RowTile at = work;
    UNROLL_BY(1)
    for (unsigned end = n + tiles_of(work, shape); n < end; ++n, at.next(work, shape.Tr)) {
      const unsigned stage = n % kDsStages;
      const uint64_t k = first_k + w % kPlaces * (sizeof smem.K[0] >> 4);
      const uint64_t ds = first_ds + stage * (sizeof smem.dS[0] >> 4);
      UNROLL_BY(1)
      for (int half = 0; half < Br<d> / 64; ++half) {
        const auto part = dQ_sum.template part<d>(shape, work, at, half);
        float rdQ[d / 2];
        part.begin(rdQ);
        if (half == 0) fa::mbarrier_wait(&smem.ds_full[stage], n / kDsStages & 1);
        multiply_keys<d, Sums::kBegins>(ds + (half * Bc * kRowBytes >> 4), k, rdQ);
        fa::wgmma_wait<0>();
        fa::pin_registers(rdQ);
        if (half > 0 && lane == 0) fa::mbarrier_arrive(&smem.ds_empty[stage]);
        part.end(rdQ);
      }
    }
    if (lane == 0) fa::mbarrier_arrive(&smem.kv_empty[w % kPlaces]);
  }
}

// --- the others multiply, and compute P and dS ---------------------------------------------------

// A warpgroup that owns 64 keys. Its registers: see 1_products.cuh.
template <int d, int wg>
struct Group {
  static constexpr int Br = step11_persistent::Br<d>;
  Tiles<d>& smem;
  const Shape& shape;
  const int thread = threadIdx.x % kGroupThreads, lane = threadIdx.x % fa::kWarp;
  // Descriptors differ by constants from that of the first tile.
  using Memory = Tiles<d>;
  const uint64_t first = descriptor(smem.K[0][0]);
  // 0, which the compiler cannot know: it would compute all descriptors before the loop.
  __device__ unsigned zero() const { return n >> 31; }
  __device__ uint64_t first_tile() const { return first + zero(); }
  static constexpr uint64_t distance(size_t bytes, int panel_bytes = 16) {
    return (bytes >> 4) + (uint64_t(panel_bytes / 16 - 1) << 16);
  }
  static constexpr size_t kMine = wg * kGroupKeys * d * 2;
  static constexpr uint64_t kK = distance(kMine), kV = distance(offsetof(Memory, V) + kMine);
  static constexpr uint64_t kQ = distance(offsetof(Memory, Q));
  static constexpr uint64_t kDo = distance(offsetof(Memory, dO));
  static constexpr uint64_t kQRows = distance(offsetof(Memory, Q), Br* kRowBytes);
  static constexpr uint64_t kDoRows = distance(offsetof(Memory, dO), Br* kRowBytes);
  static constexpr uint64_t kStageOf = Br * d * 2 >> 4;                    // from stage to stage
  static constexpr uint64_t kPlaceOf = kGroups * kGroupKeys * d * 2 >> 4;  // of K, V
  unsigned w = 0, n = 0;  // numbers of the work tile, and of the tile whose scores come next,
  int i, walk, key;       // its place among the head's tiles, and the walk's first; first key
  int left;               // tiles of the walk after it
  float rX[Br / 2], rdK[d / 2] = {}, rdV[d / 2] = {};
  uint32_t rP[Br / kMma][4];  // P, then dS
  // A of the columns' product: for each key 1 in the columns of LSE, or of delta. A lane holds
  // column 2 (lane % 4) and the next one of two keys; columns 8 to 15 are 0.
  uint32_t lse_ones[4], delta_ones[4];

  __device__ Group(Tiles<d>& smem, const Shape& shape) : smem(smem), shape(shape) {
    take();
    constexpr uint32_t kLower = 0x3f80, kUpper = 0x3f800000;  // 1 in bf16
    const int pair = lane % 4;                                // of columns
    lse_ones[0] = lse_ones[1] = pair == 0 ? kLower | kUpper : pair == 1 ? kLower : 0;
    delta_ones[0] = delta_ones[1] = pair == 2 ? kLower | kUpper : pair == 1 ? kUpper : 0;
    lse_ones[2] = lse_ones[3] = delta_ones[2] = delta_ones[3] = 0;  // columns 8 to 15
    fa::pin_registers(lse_ones);
    fa::pin_registers(delta_ones);
  }

  __device__ unsigned place() const { return w % kPlaces; }
  __device__ unsigned q_stage() const { return n % kQStages; }
  __device__ unsigned o_stage() const { return n % kDoStages; }
  // The next walk, unless there is none.
  __device__ bool take() {
    const WorkTile work = wait_for_work(smem, w);
    i = walk = work.first, key = work.j * Bc + wg * kGroupKeys, left = tiles_of(work, shape) - 1;
    return work.j >= 0;
  }
  // The next tile of a walk, of all heads that share the keys.
  __device__ void next() {
    if (++i == shape.Tr) i = walk;
    --left;
  }
  // One arrival of a warp, after what all its lanes have read.
  __device__ void arrive(uint64_t* bar) {
    __syncwarp();
    if (lane == 0) fa::mbarrier_arrive(bar);
  }
  template <int pending, int n>
  __device__ void wait_for(float (&r)[n]) {
    fa::wgmma_wait<pending>();
    fa::pin_registers(r);
  }

  // No swizzle: rows of 16 bytes, in groups of eight; the columns 8 to 15 are multiplied by 0.
  __device__ uint64_t columns() const {
    return fa::wgmma_descriptor(smem.columns[q_stage()], fa::Swizzle::none, 0, 8 * 2 * kColumns);
  }

  // (S - LSE / scale)^T, once Q is there.
  __device__ void issue_scores(float (&rS)[Br / 2]) {
    fa::mbarrier_wait(&smem.q_full[q_stage()], n / kQStages & 1);
    multiply_with_columns<d>(first_tile() + kK + place() * kPlaceOf,
                             first_tile() + kQ + q_stage() * kStageOf, lse_ones, columns(), rS);
  }
  // S becomes P.
  __device__ void softmax(float (&rS)[Br / 2]) {
    const int row = i * Br, last = key + kGroupKeys - 1;
    if (last >= shape.Nk || last > row + shape.shift) {
      const int k = key + thread / fa::kWarp * 16 + fa::row_of(lane), r = row + fa::column_of(lane);
      mask(rS, hidden(shape, k, r), hidden(shape, k + 8, r));
    }
    const float scale_log2 = shape.scale * fa::kLog2e;
    UNROLL
    for (int i = 0; i < Br / 2; ++i) rS[i] = fa::exp2_approx(rS[i] * scale_log2);
    fa::pin_registers(rS);
  }
  // dK += dS^T Q of tile n.
  __device__ void issue_dk(unsigned n) {
    multiply_rows<d>(rP, first_tile() + kQRows + n % kQStages * kStageOf, rdK);
  }
  // (dP - delta)^T and dV += P^T dO, once dO is there; beside dV, dS: to registers and, once its
  // place has been read, to shared memory.
  __device__ void differentiate() {
    float(&rdP)[Br / 2] = rX;
    uint32_t copy[Br / kMma][4];  // of P: ptxas moves all reads of A's registers after dV's wait
    UNROLL
    for (int r = 0; r < Br / kMma; ++r) {
      UNROLL
      for (int e = 0; e < 4; ++e) copy[r][e] = rP[r][e];
      fa::pin_registers(copy[r]);
    }
    fa::mbarrier_wait(&smem.o_full[o_stage()], n / kDoStages & 1);
    multiply_with_columns<d>(first_tile() + kV + place() * kPlaceOf,
                             first_tile() + kDo + o_stage() * kStageOf, delta_ones, columns(), rdP);
    multiply_rows<d>(rP, first_tile() + kDoRows + o_stage() * kStageOf, rdV);
    wait_for<1>(rdP);
    UNROLL
    for (int i = 0; i < Br / 2; i += 2) {
      multiply_by_p(copy[i / 8][i % 8 / 2], rdP[i], rdP[i + 1]);  // dS = P (dP - delta)
    }
    fa::pin_registers(rdP);
    wait_for<0>(rdV);
    fa::pin_registers(rdP);  // or ptxas packs dS before the wait, while P is in use
    arrive(&smem.o_empty[o_stage()]);
    pack(rdP, rP);
    fa::mbarrier_wait(&smem.ds_empty[n % kDsStages], (n / kDsStages & 1) ^ 1);
    put_ds(rP, smem.dS[n % kDsStages]);
  }
  __device__ void show_ds() {
    fa::fence_proxy_async();  // wgmma reads by another path what this thread wrote
    arrive(&smem.ds_full[(n - 1) % kDsStages]);
  }

  // dK and dV of a walk to the place of its K and V.
  __device__ void put_gradients(unsigned place) {
    const float scales[2] = {shape.scale, shape.scale}, ones[2] = {1.f, 1.f};
    put_rows<d>(rdV, ones, smem.V[place][wg]);  // a warp: where only its own part of dP read
    // dQ of the last tile has read K
    fa::mbarrier_wait(&smem.ds_empty[(n - 1) % kDsStages], (n - 1) / kDsStages & 1);
    put_rows<d>(rdK, scales, smem.K[place][wg]);
    fa::fence_proxy_async();  // TMA reads what this thread has written
    arrive(&smem.out_full[place]);
  }

  __device__ void run() {
    // --- prologue: P and dS of the first tile
    float(&rS)[Br / 2] = rX;
    issue_scores(rS);
    wait_for<0>(rS);
    softmax(rS);
    pack(rS, rP);
    fa::mbarrier_wait(&smem.v_full[0], 0);
    differentiate();

    // --- mainloop: S of the next tile, of this walk or the next one, beside dK of this one
    for (;;) {
      ++n;
      const bool seam = left == 0;
      if (seam) {
        ++w;
        if (!take()) break;
      } else {
        next();
      }
      issue_scores(rS);
      issue_dk(n - 1);
      show_ds();
      wait_for<1>(rS);
      softmax(rS);
      wait_for<0>(rdK);
      fa::pin_registers(rS);  // or ptxas packs P before the wait, while dS is in use
      arrive(&smem.q_empty[(n - 1) % kQStages]);
      if (seam) {
        put_gradients((w - 1) % kPlaces);
        UNROLL
        for (int i = 0; i < d / 2; ++i) rdK[i] = rdV[i] = 0.f;
        fa::mbarrier_wait(&smem.v_full[place()], w / kPlaces & 1);
      }
      pack(rS, rP);
      differentiate();
    }

    // --- epilogue: dK of the last tile
    show_ds();
    issue_dk(n - 1);
    wait_for<0>(rdK);
    put_gradients((w - 1) % kPlaces);
  }
};

// A block owns 128 keys at a time and walks the tiles of rows that see them, of all heads that
// share them.
template <int d, class Sums>
__global__ void __launch_bounds__(kThreads, 1)
    backward_kernel(const __grid_constant__ fa::TensorMap Q,   // [B*H, N, d], boxes of Br rows
                    const __grid_constant__ fa::TensorMap K,   // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap V,   // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap dO,  // [B*H, N, d], of Br
                    const __grid_constant__ fa::TensorMap dK,  // [B*Hkv, Nk, d], of 64
                    const __grid_constant__ fa::TensorMap dV,  // [B*Hkv, Nk, d], of 64
                    const bf16* columns,                       // [B*H, Np, 8]
                    Sums dQ_sum, Shape shape,
                    unsigned* taken) {  // [2]: work tiles, blocks that left
  Tiles<d>& smem = *fa::dynamic_shared<Tiles<d>>();
  if (threadIdx.x == 0) {
    constexpr int kGroupWarps = kGroupThreads / fa::kWarp, kWarps = kGroups * kGroupWarps;
    init(smem.k_full, 1), init(smem.v_full, 1), init(smem.kv_empty, 1 + kGroupWarps);
    init(smem.out_full, kWarps);
    init(smem.q_full, 1), init(smem.q_empty, kWarps);
    init(smem.o_full, 1), init(smem.o_empty, kWarps);
    init(smem.ds_full, kWarps), init(smem.ds_empty, kGroupWarps);
    fa::mbarrier_init_fence();
  }
  __syncthreads();  // all threads see the barriers
  const int wg = __shfl_sync(fa::kFullMask, threadIdx.x / kGroupThreads, 0);
  if (wg == kGroups + 1) {
    fa::setmaxnreg_dec<kCopierRegisters>();
    if (threadIdx.x == (kGroups + 1) * kGroupThreads) {
      produce<d, Sums>(smem, &Q, &K, &V, &dO, columns, shape, taken);
    }
    if (threadIdx.x == (kGroups + 1) * kGroupThreads + fa::kWarp) store<d>(smem, &dK, &dV, shape);
  } else if (wg == kGroups) {
    fa::setmaxnreg_dec<kThirdRegisters>();
    multiply_dq<d>(smem, shape, dQ_sum);
  } else {
    fa::setmaxnreg_inc<kGroupRegisters>();
    if (wg == 0) {
      Group<d, 0>(smem, shape).run();
    } else {
      Group<d, 1>(smem, shape).run();
    }
  }
}

// --- host ----------------------------------------------------------------------------------------

// dQ's sums when a block may take any walk: parts of a row are added by several blocks.
struct SharedSums {
  static constexpr bool kBegins = false;  // does a product begin with earlier sums?
  FloatSums sums;

  // What a block takes from the counter: here walks.
  static __host__ __device__ int units(const Shape& shape) { return shape.Tc * shape.kv_heads; }
  static __device__ WorkTile first_walk(unsigned t, const Shape& shape, int rows) {
    return work_tile_at(t, shape, rows);
  }
  static __device__ bool next_walk(WorkTile&, const Shape&, int) { return false; }

  struct Part {
    FloatSums::Part sums;
    template <int n>
    __device__ void begin(float (&)[n]) const {}
    template <int n>
    __device__ void end(const float (&rdQ)[n]) const {
      sums.add(rdQ);
    }
  };
  template <int d>
  __device__ Part part(const Shape& shape, const WorkTile&, const RowTile& at, int half) const {
    return {sums.template part<d>((at.head * shape.Np + at.i * Br<d>) / 64 + half)};
  }
};

inline std::vector<fa::Scratch> workspace(const fa::Problem& p) {
  std::vector<fa::Scratch> all = step11_columns::workspace(p);
  all.push_back({.name = "walks", .bytes = 2 * sizeof(unsigned), .zeroed = true});
  return all;
}

inline fa::Prediction backward_traffic(const fa::Problem& p) {
  fa::Prediction t = step11_columns::backward_traffic(p);
  if (p.d != 64) return t;
  const uint64_t walks = p.kv_heads() * uint64_t(fa::ceil_div(p.Nk, Bc));
  const uint64_t blocks = std::min<uint64_t>(p.gpu.sms, walks);
  t["walks"] = {.read = 0, .write = 8, .atomic = 4 * (walks + blocks)};
  t.flops += step11_apart::skipped_scores(p) * (8 * p.d + 4 * kMma);  // computed here
  return t;
}

template <int d, class Sums>
void launch_backward(const fa::Problem& p, const fa::Tensors<bf16>& t, const Sums& dQ_sum) {
  const Shape shape = shape_of(p, Br<d>);
  const auto rows = [&](const bf16* x) { return tensor_map<d>(x, p.heads(), p.N, Br<d>); };
  const auto keys = [&](const bf16* x) { return tensor_map<d>(x, p.kv_heads(), p.Nk, kGroupKeys); };
  fa::launch(backward_kernel<d, Sums>,
             {.grid = dim3(std::min(p.gpu.sms, Sums::units(shape))),
              .block = dim3(kThreads),
              .smem = sizeof(Tiles<d>),
              .shares_work = true},
             rows(t.Q), keys(t.K), keys(t.V), rows(t.dO), keys(t.dK), keys(t.dV),
             t.scratch<bf16>("columns"), dQ_sum, shape, t.scratch<unsigned>("walks"));
}

inline void backward(const fa::Problem& p, const fa::Tensors<bf16>& t) {
  if (p.d != 64) return step11_columns::backward(p, t);
  const FloatSums dQ_sum{t.scratch<float>("dQ_sum")};
  step11_columns::launch_columns<64>(p, t);
  launch_backward<64>(p, t, SharedSums{dQ_sum});
  launch_convert<64>(p, t, dQ_sum);
}

}  // namespace step11_persistent

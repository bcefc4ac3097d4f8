// The rules of single instructions: a kernel breaks one at a time, its near twin lacks only `bad`.
#include "common/dialect/ptx/ptx.h"
#include "common/sim/block.h"
#include "tests/sim/diagnosis.h"

using fa::Swizzle;
using fa::TensorMap;
using sim::Where;
using sim::test::Buffer;

namespace {

constexpr int kMost = (1 << 20) - 1;  // arrivals, or bytes, of an mbarrier

enum class Rule {
  // mbarriers
  count_of_none,
  count_too_large,
  bar_misaligned,
  bar_outside,
  bar_beyond,
  arrive_by_two,
  arrive_by_none,
  bytes_too_many,
  bytes_negative,
  wait_in_registers,
  after_inval,
  // cp.async
  fill_too_many,
  fill_negative,
  source_misaligned,
  to_misaligned,
  to_beyond,
  to_registers,
  // runs of bytes
  run_of_8,
  run_of_none,
  run_from_8,
  run_to_8,
  run_without_bar,
  run_beyond,
  send_without_bar,
  store_of_8,
  store_beyond,
  // TMA
  box_beyond,
  box_misaligned,
  box_without_bar,
  box_of_shared_map,
  box_to_block_1,
  box_of_pair,
  store_box_beyond,
  store_box_misaligned,
  store_box_rank,
  store_box_odd,
  store_four_rows,
  // descriptors
  base_offset,
  high_bits,
  tile_misaligned,
  tile_in_registers,
  // others
  mapa_outside,
  registers_not_of_8,
  registers_too_few,
  registers_too_many,
  add_to_8,
  shuffle_of_3,
  shuffle_of_64,
};

__global__ void breaks(const __grid_constant__ TensorMap map, float* x, Rule rule, bool bad) {
  __shared__ __align__(128) float tile[64];
  __shared__ __align__(8) uint64_t full[2];
  float own[4] = {};
  uint64_t own_bar = 0;
  for (float& t : tile) t = 1;
  const Where here = Where::here();
  const int at[] = {0, 0, 0};
  auto* odd_bar = reinterpret_cast<uint64_t*>(reinterpret_cast<char*>(full) + 4);
  if (rule > Rule::bar_misaligned) sim::mbarrier_init(full, 4, here);
  switch (rule) {
    case Rule::count_of_none:
      return sim::mbarrier_init(full, bad ? 0 : 1, here);
    case Rule::count_too_large:
      return sim::mbarrier_init(full, bad ? kMost + 1 : kMost, here);
    case Rule::bar_misaligned:
      return sim::mbarrier_init(bad ? odd_bar : full, 1, here);
    case Rule::bar_outside:
      return sim::mbarrier_arrive(bad ? &own_bar : full, 0, here);
    case Rule::bar_beyond:
      return sim::mbarrier_init(bad ? full + 2 : full + 1, 1, here);
    case Rule::arrive_by_two:  // twice in a phase of 4, or of 3
      sim::mbarrier_init(full + 1, bad ? 3 : 4, here);
      sim::mbarrier_arrive(full + 1, 0, here, {}, 2);
      return sim::mbarrier_arrive(full + 1, 0, here, {}, 2);
    case Rule::arrive_by_none:
      return sim::mbarrier_arrive(full, 0, here, {}, bad ? 0 : 1);
    case Rule::bytes_too_many:
      return sim::mbarrier_arrive(full, bad ? kMost + 1 : kMost, here);
    case Rule::bytes_negative:
      return sim::mbarrier_arrive(full, bad ? -1 : 0, here);
    case Rule::wait_in_registers:
      return sim::mbarrier_wait(bad ? &own_bar : full, 1, here);
    case Rule::after_inval:
      sim::mbarrier_inval(full, here);
      if (!bad) sim::mbarrier_init(full, 1, here);
      return sim::mbarrier_arrive(full, 0, here);
    case Rule::fill_too_many:
      return sim::cp_async(tile, x, 16, bad ? 17 : 16, here);
    case Rule::fill_negative:
      return sim::cp_async(tile, x, 16, bad ? -1 : 0, here);
    case Rule::source_misaligned:
      return sim::cp_async(tile, x + 1, bad ? 8 : 4, 4, here);
    case Rule::to_misaligned:
      return sim::cp_async(tile + 1, x, bad ? 8 : 4, 4, here);
    case Rule::to_beyond:
      return sim::cp_async(tile + (bad ? 64 : 60), x, 16, 16, here);
    case Rule::to_registers:
      return sim::cp_async(bad ? own : tile, x, 4, 4, here);
    case Rule::run_of_8:
      return sim::bulk_load(tile, x, bad ? 8 : 16, full, here);
    case Rule::run_of_none:
      return sim::bulk_load(tile, x, bad ? 0 : 16, full, here);
    case Rule::run_from_8:
      return sim::bulk_load(tile, x + (bad ? 2 : 4), 16, full, here);
    case Rule::run_to_8:
      return sim::bulk_load(tile + (bad ? 2 : 4), x, 16, full, here);
    case Rule::run_without_bar:
      return sim::bulk_load(tile, x, 16, bad ? full + 1 : full, here);
    case Rule::run_beyond:
      return sim::bulk_load(tile + (bad ? 64 : 60), x, 16, full, here);
    case Rule::send_without_bar:
      return sim::bulk_send(tile + 32, tile, 16, bad ? full + 1 : full, 0, here);
    case Rule::store_of_8:
      return sim::bulk_store(x, tile, bad ? 8 : 16, here);
    case Rule::store_beyond:
      return sim::bulk_store(x, tile + (bad ? 64 : 60), 16, here);
    case Rule::box_beyond:
      return sim::tma_load(tile + (bad ? 64 : 32), &map, at, 2, full, 0, here);
    case Rule::box_misaligned:
      return sim::tma_load(tile + (bad ? 16 : 32), &map, at, 2, full, 0, here);
    case Rule::box_without_bar:
      return sim::tma_load(tile, &map, at, 2, bad ? full + 1 : full, 0, here);
    case Rule::box_of_shared_map: {
      const auto* in_shared = reinterpret_cast<const fa::TensorMap*>(tile);
      return sim::tma_load(tile, bad ? in_shared : &map, at, 2, full, 0, here);
    }
    case Rule::box_to_block_1:
      return sim::tma_load(tile, &map, at, 2, full, bad ? 2 : 1, here);
    case Rule::box_of_pair:
      if (!bad) return sim::tma_load(tile, &map, at, 2, full, 0, here);
      return sim::tma_load_of_pair(tile, &map, at, 2, full, 0, here);
    case Rule::store_box_beyond:
      return sim::tma_store(&map, at, 2, tile + (bad ? 64 : 32), here);
    case Rule::store_box_misaligned:
      return sim::tma_store(&map, at, 2, tile + (bad ? 16 : 32), here);
    case Rule::store_box_rank:
      return sim::tma_store(&map, at, bad ? 3 : 2, tile, here);
    case Rule::store_box_odd: {
      const int beside[] = {bad ? 1 : 4, 0};
      return sim::tma_store(&map, beside, 2, tile, here);
    }
    case Rule::store_four_rows: {
      const int rows[] = {0, 0, 1, 2, 3};
      return sim::tma_store(&map, rows, bad ? sim::kFourRows : 2, tile, here);
    }
    case Rule::base_offset:
    case Rule::high_bits: {
      const int bit = rule == Rule::high_bits ? 52 : 49;
      sim::wgmma_operand(uint64_t{bad} << bit, here);  // at the start of the dynamic part
      return;
    }
    case Rule::tile_misaligned:
      sim::wgmma_descriptor(tile + (bad ? 2 : 4), Swizzle::none, 128, 128, here);
      return;
    case Rule::tile_in_registers:
      sim::tcgen05_descriptor(bad ? own : tile, Swizzle::none, 128, 128, here);
      return;
    case Rule::mapa_outside:
      sim::map_shared_rank(bad ? own : tile, 0);
      return;
    case Rule::registers_not_of_8:
      return sim::setmaxnreg(bad ? 28 : 32, here);
    case Rule::registers_too_few:
      return sim::setmaxnreg(bad ? 16 : 24, here);
    case Rule::registers_too_many:
      return sim::setmaxnreg(bad ? 264 : 256, here);
    case Rule::add_to_8:
      return sim::atomic_add_v4(x + (bad ? 2 : 4), 1, 1, 1, 1);
    case Rule::shuffle_of_3:
      x[0] = __shfl_sync(1, x[0], 0, bad ? 3 : 4);
      return;
    case Rule::shuffle_of_64:
      x[0] = __shfl_sync(1, x[0], 0, bad ? 64 : 32);
      return;
  }
}

// --- barriers with a number, and warps -----------------------------------------------------------

__global__ void meets(int id, int threads, int others) {
  fa::bar_sync(id, threadIdx.x < 32 ? threads : others);
}
// Lanes up to 8 * matrices name a row; `wrong` names none.
template <int matrices>
__global__ void rows(unsigned wrong) {
  __shared__ __align__(16) uint16_t row[32][8];
  for (int i = 0; i < 8; ++i) row[threadIdx.x][i] = 1;
  __syncwarp();
  uint32_t r[4];
  sim::ldmatrix(r, matrices, false, row[threadIdx.x] + (threadIdx.x == wrong), Where::here());
}

// --- mbarriers that are tried --------------------------------------------------------------------

// Lane 0 of each of two warps tries; the last arrival of each phase is thread 1's, after both have
// tried once.
__global__ void tries(int* y, int phases) {
  __shared__ uint64_t full, tried;
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&full, 3);
    fa::mbarrier_init(&tried, 2);
    fa::mbarrier_init_fence();
  }
  __syncthreads();
  for (int i = 0; i < phases; ++i) {
    if (threadIdx.x % 32 == 0) {
      fa::mbarrier_arrive(&full);
      for (int j = 0; j < 2; ++j) {
        y[2 * (warp * phases + i) + j] = sim::mbarrier_try_wait(&full, i & 1, Where::here());
        if (j == 0) fa::mbarrier_arrive(&tried);
      }
    } else if (threadIdx.x == 1) {
      fa::mbarrier_wait(&tried, i & 1);
      fa::mbarrier_arrive(&full);
    }
  }
}
// With no thread left to arrive all tries are in vain; then the thread arrives itself.
__global__ void tries_alone(int* y) {
  __shared__ uint64_t full;
  y += 4 * blockIdx.x;
  fa::mbarrier_init(&full, 1);
  for (int i = 0; i < 3; ++i) y[i] = sim::mbarrier_try_wait(&full, 0, Where::here());
  fa::mbarrier_arrive(&full);
  y[3] = sim::mbarrier_try_wait(&full, 0, Where::here());
}
// The first try is in vain even where another thread would arrive.
__global__ void tries_early(int* y) {
  __shared__ uint64_t full;
  if (threadIdx.x == 0) fa::mbarrier_init(&full, 1);
  __syncthreads();
  if (threadIdx.x == 1) fa::mbarrier_arrive(&full);
  if (threadIdx.x == 1) return;
  for (int i = 0; i < 2; ++i) y[i] = sim::mbarrier_try_wait(&full, 0, Where::here());
}
__global__ void invalidates(bool bad) {
  __shared__ uint64_t full;
  if (threadIdx.x == 0) fa::mbarrier_init(&full, 1);
  __syncthreads();
  if (threadIdx.x == 0 && bad) fa::mbarrier_wait(&full, 0);
  if (threadIdx.x == 1) fa::mbarrier_inval(&full);
}
// The load completes phase 0, but the thread waits for the previous one.
__global__ void waits(const __grid_constant__ TensorMap map, float* y, int parity, bool reads) {
  __shared__ __align__(128) float tile[32];
  __shared__ uint64_t full;
  fa::mbarrier_init(&full, 1);
  fa::mbarrier_init_fence();
  fa::mbarrier_arrive_expect_tx(&full, sizeof tile);
  fa::tma_load(tile, &map, &full, {0, 0});
  fa::mbarrier_wait(&full, parity);
  if (reads) y[0] = tile[5];
}
constexpr int kWaitLine = __LINE__ - 3;

// Waits for the first of two loads, not for the second.
__global__ void waits_once(const float* x, float* y) {
  __shared__ __align__(128) float tile[32];
  __shared__ uint64_t full;
  fa::mbarrier_init(&full, 1);
  fa::mbarrier_init_fence();
  for (int round = 0; round < 2; ++round) {
    fa::mbarrier_arrive_expect_tx(&full, sizeof tile);
    fa::bulk_load(tile, x, sizeof tile, &full);
    if (round == 0) fa::mbarrier_wait(&full, 0);
    y[round] = tile[5];
  }
}

// --- a swizzle that is wider than the box's rows -------------------------------------------------

// Loads a box of 8 rows and stores it again; chunk `touched` is also written during the load.
__global__ void there_and_back(const __grid_constant__ TensorMap from,
                               const __grid_constant__ TensorMap to, uint8_t* seen, int bytes,
                               int touched) {
  __shared__ __align__(1024) uint8_t tile[1024];
  __shared__ uint64_t full;
  for (uint8_t& t : tile) t = 0;
  fa::mbarrier_init(&full, 1);
  fa::mbarrier_init_fence();
  fa::fence_proxy_async();
  fa::mbarrier_arrive_expect_tx(&full, bytes);
  fa::tma_load(tile, &from, &full, {0, 0});
  if (touched >= 0) tile[16 * touched + 3] = 0;
  fa::mbarrier_wait(&full, 0);
  for (int i = 0; i < 1024; ++i) seen[i] = tile[i];
  fa::tma_store(&to, tile, {0, 0});
  fa::tma_store_commit();
  fa::tma_store_wait<0>();
}

// --- wgmma ---------------------------------------------------------------------------------------

enum class Odd {
  none,
  fence,
  unset,
  halves,
  half_unset,
  returned,
  more,
  b,
  n,
  accumulate,
  a_major,
  b_major,
  factor,
  sums,
  commit,
  beyond
};

__global__ void multiplies(float* y, Odd odd) {
  __shared__ __align__(1024) __nv_bfloat16 tile[64 * 16];
  const int t = threadIdx.x;
  const Where here = Where::here();
  for (int i = t; i < 64 * 16; i += 128) tile[i] = 1.f;
  fa::fence_proxy_async();
  __syncthreads();
  const auto is = [&](Odd o) { return odd == o && t == 77; };
  float d[32], unset[32];
  for (float& x : d) x = 1;
  sim::Wgmma p{.n = 64, .accumulate = true};
  p.a = p.b = fa::wgmma_descriptor(tile, Swizzle::none, 64 * 16, odd == Odd::beyond ? 12800 : 128);
  fa::wgmma_fence();
  if (odd == Odd::fence) {
    fa::wgmma_commit();
    fa::wgmma_wait<0>();
  }
  if (is(Odd::b)) p.b += 8;
  if (is(Odd::n)) p.n = 32;
  if (is(Odd::accumulate)) p.accumulate = false;
  if (is(Odd::a_major)) p.a_mn_major = true;
  if (is(Odd::b_major)) p.b_mn_major = true;
  if (is(Odd::factor)) p.factor = sim::Factor::f16;
  if (is(Odd::sums)) p.half_sums = true;
  if (is(Odd::commit)) fa::wgmma_commit();
  const bool halves = odd == Odd::halves || odd == Odd::half_unset;  // D in half of the registers
  if (halves) {
    p.factor = sim::Factor::f16, p.half_sums = true;
    for (int i = 0; i < 16; ++i) unset[i] = 0;
    // Exactly one: loading the kernel's arguments has also used the stack.
    if (odd == Odd::half_unset) reinterpret_cast<uint32_t*>(unset)[15] = sim::kUnset;
  }
  sim::wgmma(halves || odd == Odd::unset ? unset : d, p, here);
  fa::wgmma_commit();
  if (is(Odd::more)) sim::wgmma(d, p, here);
  if (is(Odd::returned)) return;
  fa::wgmma_wait<0>();
  y[t] = d[0];
}

// --- setmaxnreg ----------------------------------------------------------------------------------

// Executed by threads first, first + step, ... of the second warpgroup.
__global__ void takes(int first, int last, int step) {
  const int t = static_cast<int>(threadIdx.x) - 128;
  if (t >= first && t < last && t % step == 0) fa::setmaxnreg_dec<32>();
}
__global__ void takes_all() { fa::setmaxnreg_inc<256>(); }
// Each warpgroup takes all that it can at each time: 240 and twice 24, then 24 and twice 240.
__global__ void takes_turns() {
  const unsigned group = threadIdx.x / 128;
  if (group != 0) fa::setmaxnreg_dec<24>();
  __syncthreads();
  if (group == 0) fa::setmaxnreg_inc<240>();
  if (group == 0) fa::setmaxnreg_dec<24>();
  __syncthreads();
  if (group != 0) fa::setmaxnreg_inc<240>();
}

// --- tensor memory -------------------------------------------------------------------------------

enum class Tensor {
  none,
  lanes,
  d_lane,
  a_lane,
  a_major,
  last_column,
  past_last,
  to_block_1,
  swizzle_code,
  base_offset,
  n_264,
  commits_twice,
  other_group,
  tf32
};

__global__ void moves(Tensor fault) {
  __shared__ __align__(1024) __nv_bfloat16 tile[(128 + 32) * 16];
  __shared__ uint64_t done;
  __shared__ uint32_t address;
  const auto is = [&](Tensor t) { return fault == t; };
  fa::tcgen05_alloc(&address, 512);
  if (threadIdx.x == 0) fa::mbarrier_init(&done, 1);
  for (int i = threadIdx.x; i < (128 + 32) * 16; i += 32) tile[i] = 1.f;
  fa::fence_proxy_async();
  __syncwarp();
  uint32_t r[16] = {};
  const uint32_t column = is(Tensor::last_column) ? 496 : is(Tensor::past_last) ? 497 : 0;
  fa::tcgen05_st(address + column + (is(Tensor::lanes) ? threadIdx.x / 31 : 0), r);
  fa::tcgen05_wait_st();
  if (threadIdx.x == 0) {
    const uint64_t changed = is(Tensor::swizzle_code)  ? uint64_t{1} << 61
                             : is(Tensor::base_offset) ? uint64_t{1} << 49
                                                       : 0;
    const uint64_t a = fa::tcgen05_descriptor(tile, Swizzle::none, 128 * 16, 128) | changed;
    const uint64_t b = fa::tcgen05_descriptor(tile + 128 * 16, Swizzle::none, 32 * 16, 128);
    const uint32_t d = address + 64 + (is(Tensor::d_lane) ? 1 << 16 : 0);
    const uint32_t types = fa::tcgen05_instruction(128, is(Tensor::n_264) ? 264 : 32);
    const bool tf32 = is(Tensor::tf32);
    sim::tcgen05_mma({.d = d,
                      .a = a,
                      .b = b,
                      .instruction = tf32 ? types + (1u << 7 | 1u << 10) : types,
                      .accumulate = false,
                      .kind = tf32 ? sim::TensorKind::tf32 : sim::TensorKind::f16},
                     Where::here());
    const auto major = is(Tensor::a_major) ? fa::Major::mn : fa::Major::k;
    const uint32_t from = address + (is(Tensor::a_lane) ? 32 << 16 : 0);
    if (is(Tensor::a_lane) || is(Tensor::a_major)) {
      fa::tcgen05_mma_tmem(address + 128, from, b, fa::tcgen05_instruction(128, 32, major), false);
    }
    if (is(Tensor::commits_twice)) {  // in a phase of one arrival and of bytes that never arrive
      sim::mbarrier_expect(&done, 16, Where::here());
      fa::tcgen05_commit(&done);
    }
    const auto group = is(Tensor::other_group) ? sim::CtaGroup::two : sim::CtaGroup::one;
    const unsigned blocks = is(Tensor::to_block_1) ? 2 : sim::kThisBlock;
    sim::tcgen05_commit(&done, Where::here(), group, blocks);
  }
  fa::mbarrier_wait(&done, 0);
  fa::tcgen05_dealloc(address, 512);
}

}  // namespace

TEST_CASE("each rule of an instruction is held, and no more", "[sim][rules]") {
  using enum Rule;
  Buffer<float> x("x", 64);
  const TensorMap map = fa::tensor_map(x.get(), {{4, 1, 4}, {8, 4, 8}}, Swizzle::none);
  const std::pair<Rule, const char*> rules[] = {
      {count_of_none, "mbarrier.init at ... with a count of 0; 1 to 1048575 are possible"},
      {count_too_large, "mbarrier.init at ... with a count of 1048576"},
      {bar_misaligned, "operand of mbarrier.init at ... is not aligned to 8 bytes"},
      {bar_outside, "mbarrier.arrive at ... of an mbarrier outside shared memory"},
      {bar_beyond, "the operand of mbarrier.init at ... 8 bytes, lies"},
      {arrive_by_two, "one arrival too many: mbarrier.arrive at ... has all its 3 arrivals"},
      {arrive_by_none, "mbarrier.arrive at ... with a count of 0"},
      {bytes_too_many, "mbarrier.arrive.expect_tx at ... of 1048576 bytes"},
      {bytes_negative, "mbarrier.arrive.expect_tx at ... of -1 bytes"},
      {wait_in_registers, "the operand of the mbarrier wait at ... is not in the block's shared"},
      {after_inval, "mbarrier.arrive at ... , but the mbarrier is not initialised (full"},
      {fill_too_many, "cp.async at ... takes 17 of 16 bytes from its source"},
      {fill_negative, "cp.async at ... takes -1 of 16 bytes"},
      {source_misaligned, "the source of cp.async at ... is not aligned to 8 bytes"},
      {to_misaligned, "operand of cp.async at ... (tile, byte 4) is not aligned to 8 bytes"},
      {to_beyond, "the operand of cp.async at ... 16 bytes, lies"},
      {to_registers, "the operand of cp.async at ... is not in the block's shared memory"},
      {run_of_8, "a bulk load at ... needs a size and a global address that are multiples of 16"},
      {run_of_none, "a bulk load at ... needs a size"},
      {run_from_8, "a bulk load at ... needs a size and a global address"},
      {run_to_8, "operand of a bulk load at ... is not aligned to 16 bytes"},
      {run_without_bar, "a bulk load at ... , but the mbarrier is not initialised (full, byte 8"},
      {run_beyond, "the operand of a bulk load at ... 16 bytes, lies"},
      {send_without_bar, "a bulk send at ... , but the mbarrier is not initialised (full, byte 8"},
      {store_of_8, "a bulk store at ... needs a size"},
      {store_beyond, "the operand of a bulk store at ... 16 bytes, lies"},
      {box_beyond, "the operand of a TMA load at ... 128 bytes, lies"},
      {box_misaligned, "operand of a TMA load at ... is not aligned to 128 bytes"},
      {box_without_bar, "a TMA load at ... , but the mbarrier is not initialised"},
      {box_of_shared_map, "a TMA load at ... with a tensor map in shared memory"},
      {box_to_block_1, "the TMA load at ... multicast to a block outside the cluster of 1"},
      {box_of_pair, "the TMA load at ... with cta_group::2 in a cluster of 1"},
      {store_box_beyond, "the operand of a TMA store at ... 128 bytes, lies"},
      {store_box_misaligned, "operand of a TMA store at ... is not aligned to 128 bytes"},
      {store_box_rank, "a TMA store at ... with 3 coordinates; the tensor map has rank 2"},
      {store_box_odd, "a TMA store at ... with the innermost coordinate 1, which is 4 bytes"},
      {store_four_rows,
       "a TMA store at ... of four rows; the tensor map has rank 2 and boxes of 8 rows, not rank 2 "
       "and one row"},
      {base_offset, "the wgmma at ... a descriptor with a base offset"},
      {high_bits, "the wgmma at ... a descriptor has bits that must be 0"},
      {tile_misaligned, "operand of a wgmma descriptor at ... is not aligned to 16 bytes"},
      {tile_in_registers, "the operand of a tcgen05 descriptor at ... is not in the block's"},
      {mapa_outside, "mapa of an address outside shared memory"},
      {registers_not_of_8, "setmaxnreg at ... of 28; multiples of 8 from 24 to 256 are possible"},
      {registers_too_few, "setmaxnreg at ... of 16; multiples of 8"},
      {registers_too_many, "setmaxnreg at ... of 264; multiples of 8"},
      {add_to_8, "16-byte access at rules.cu:"},
      {shuffle_of_3, "the shuffle at ... has width 3; a power of two up to 32 is needed"},
      {shuffle_of_64, "the shuffle at ... has width 64"},
  };
  for (const auto& [rule, pattern] : rules) {
    CAPTURE(static_cast<int>(rule), pattern);
    const fa::LaunchConfig one_thread{1, 1, 128};
    FOUND(pattern, breaks, one_thread, map, x, rule, true);
    SILENT(breaks, one_thread, map, x, rule, false);
  }
}

TEST_CASE("barriers have numbers up to 15 and whole warps", "[sim][rules]") {
  const fa::LaunchConfig two_warps{1, 64};
  for (const int id : {0, 15}) SILENT(meets, two_warps, id, 64, 64);
  for (const int id : {-1, 16}) FOUND("a block has barriers 0 to 15", meets, two_warps, id, 64, 64);
  for (const int n : {-32, 0, 48}) {
    FOUND("which is not a multiple of a warp", meets, two_warps, 1, n, n);
  }
  FOUND("barrier 1 is used with 64 threads at ... but with 96 at rules.cu:", meets, two_warps, 1,
        96, 64);
}

TEST_CASE("ldmatrix reads the rows that its matrices have", "[sim][rules]") {
  FOUND("ldmatrix at ... is not aligned to 16 bytes", rows<1>, {1, 32}, 7u);
  SILENT(rows<1>, {1, 32}, 8u);
  FOUND("ldmatrix at ... is not aligned to 16 bytes", rows<2>, {1, 32}, 15u);
  SILENT(rows<2>, {1, 32}, 16u);
  FOUND("ldmatrix at ... in a warp of fewer than 32 threads", rows<1>, {1, 24}, 32u);
}

TEST_CASE("the first try in a phase that is not complete is in vain", "[sim][mbarrier]") {
  Buffer<int> y("y", 12);
  SILENT(tries, {1, 33}, y, 3);
  CHECK(y.download() == std::vector<int>{0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1});
  for (const unsigned cluster : {1, 2}) {
    const Buffer<int> alone("alone", 8);
    SILENT(tries_alone, {2, 1, 0, cluster}, alone);
    CHECK(alone.download() == std::vector<int>{0, 0, 0, 1, 0, 0, 0, 1});
  }
  const Buffer<int> early("early", 2);
  SILENT(tries_early, {1, 2}, early);
  CHECK(early.download() == std::vector<int>{0, 1});
  FOUND("mbarrier.inval at ... while threads wait for the mbarrier", invalidates, {1, 2}, true);
  SILENT(invalidates, {1, 2}, false);
}

ANALYSED("a wait for another phase is named", "[sim][races][mbarrier]") {
  const TensorMap map = fa::tensor_map(x.get(), {{4, 1, 4}, {8, 4, 8}}, Swizzle::none);
  const std::string line = "(the wait at rules.cu:" + std::to_string(kWaitLine) +
                           ", for parity 1, is for another phase)";
  SILENT(waits, {1, 1}, map, y, 0, true);
  FOUND("ends without a wait for a TMA load by thread (0,0,0) at rules.cu: ... " + line, waits,
        {1, 1}, map, y, 1, false);
  FOUND("race on shared memory: ... have no wait on its mbarrier " + line, waits, {1, 1}, map, y, 1,
        true);
  // A wait before the load is different.
  FOUND("load of tile, byte 20 at ... have no wait on its mbarrier between them", waits_once,
        {1, 1}, x, y);
}

// Measured on an H200. By rows, with chunks in address order: r.c is row r's chunk c.
ANALYSED("TMA lays out rows at the swizzle's width", "[sim][tma]") {
  struct Layout {
    Swizzle swizzle;
    int inner;  // bytes
    const char* rows;
  };
  const Layout layouts[] = {
      {Swizzle::b32, 16, "0.0 - / 1.0 - / 2.0 - / 3.0 - / - 4.0 / - 5.0 / - 6.0 / - 7.0"},
      {Swizzle::b64, 16,
       "0.0 - - - / 1.0 - - - / - 2.0 - - / - 3.0 - - / - - 4.0 - / - - 5.0 - / - - - 6.0 / "
       "- - - 7.0"},
      {Swizzle::b64, 32,
       "0.0 0.1 - - / 1.0 1.1 - - / 2.1 2.0 - - / 3.1 3.0 - - / - - 4.0 4.1 / - - 5.0 5.1 / "
       "- - 6.1 6.0 / - - 7.1 7.0"},
      {Swizzle::b128, 32,
       "0.0 0.1 - - - - - - / 1.1 1.0 - - - - - - / - - 2.0 2.1 - - - - / - - 3.1 3.0 - - - - / "
       "- - - - 4.0 4.1 - - / - - - - 5.1 5.0 - - / - - - - - - 6.0 6.1 / - - - - - - 7.1 7.0"},
      {Swizzle::b128, 64,
       "0.0 0.1 0.2 0.3 - - - - / 1.1 1.0 1.3 1.2 - - - - / 2.2 2.3 2.0 2.1 - - - - / "
       "3.3 3.2 3.1 3.0 - - - - / - - - - 4.0 4.1 4.2 4.3 / - - - - 5.1 5.0 5.3 5.2 / "
       "- - - - 6.2 6.3 6.0 6.1 / - - - - 7.3 7.2 7.1 7.0"},
  };
  for (const Layout& layout : layouts) {
    const Swizzle swizzle = layout.swizzle;
    const int inner = layout.inner;
    CAPTURE(static_cast<int>(swizzle), inner);
    const auto n = static_cast<uint64_t>(inner);
    std::vector<uint8_t> in(8 * n);  // by chunk: 1 + 16 r + c
    for (size_t i = 0; i < in.size(); ++i)
      in[i] = static_cast<uint8_t>(1 + i / n * 16 + i % n / 16);
    const Buffer<uint8_t> from("from", in), to("to", in.size()), seen("seen", 1024);
    const auto map = [&](const Buffer<uint8_t>& tensor) {
      return fa::tensor_map(tensor.get(), {{n, 1, uint32_t(n)}, {8, n, 8}}, swizzle);
    };
    SILENT(there_and_back, {1, 1}, map(from), map(to), seen, 8 * inner, -1);
    const auto got = seen.download();
    std::string text;
    const int chunks = static_cast<int>(swizzle) / 16;
    for (int chunk = 0; chunk < 8 * chunks; ++chunk) {
      const int is = got[16 * chunk] - 1;
      text += chunk == 0 ? "" : chunk % chunks == 0 ? " / " : " ";
      text += is < 0 ? "-" : std::to_string(is / 16) + "." + std::to_string(is % 16);
    }
    CHECK(text == layout.rows);
    CHECK(to.download() == in);
    // The load writes only the box's chunks.
    SILENT(there_and_back, {1, 1}, map(from), map(to), seen, 8 * inner, chunks - 1);
    FOUND("race on shared memory: ... have no wait on its mbarrier", there_and_back, {1, 1},
          map(from), map(to), seen, 8 * inner, 0);
    FOUND("deadlock", there_and_back, {1, 1}, map(from), map(to), seen, 8 * inner + 16, -1);
  }
  const Buffer<uint8_t> wide("wide", 8 * 64);
  CHECK_THROWS_AS(fa::tensor_map(wide.get(), {{64, 1, 64}, {8, 64, 8}}, Swizzle::b32),
                  std::invalid_argument);
}

ANALYSED("the threads of a warpgroup issue the same products", "[sim][rules]") {
  const fa::LaunchConfig warpgroup{1, 128};
  SILENT(multiplies, warpgroup, y, Odd::none);
  CHECK(y.download()[0] == 17);
  FOUND("has no wgmma.fence before it", multiplies, warpgroup, y, Odd::fence);
  FOUND("thread (0,0,0): the wgmma at rules.cu: ... adds to accumulators whose element", multiplies,
        warpgroup, y, Odd::unset);
  SILENT(multiplies, warpgroup, y, Odd::halves);
  FOUND("adds to accumulators whose element", multiplies, warpgroup, y, Odd::half_unset);
  FOUND(
      "the wgmma.wait_group at ... needs all threads of its warpgroup, of which some have "
      "returned",
      multiplies, warpgroup, y, Odd::returned);
  FOUND("have issued different numbers of wgmma operations", multiplies, warpgroup, y, Odd::more);
  FOUND("an operand of the wgmma at ... reaches beyond the block's shared memory", multiplies,
        warpgroup, y, Odd::beyond);
  for (const Odd odd : {Odd::b, Odd::n, Odd::accumulate, Odd::a_major, Odd::b_major, Odd::factor,
                        Odd::sums, Odd::commit}) {
    CAPTURE(static_cast<int>(odd));
    FOUND("the wgmma at ... differs from the one that other threads of the warpgroup issued",
          multiplies, warpgroup, y, odd);
  }
}

TEST_CASE("setmaxnreg is for whole warpgroups, and what one gives back others take",
          "[sim][rules]") {
  SILENT(takes, {1, 256}, 0, 128, 1);
  SILENT(takes, {1, 160}, 0, 128, 1);
  const std::string part = "a part of warpgroup 1 executes setmaxnreg at rules.cu: ... , and ";
  FOUND(part + "thread (160,0,0) does not: all its threads must", takes, {1, 256}, 0, 32, 1);
  FOUND(part + "thread (128,0,0) does not", takes, {1, 256}, 1, 128, 1);
  FOUND(part + "thread (129,0,0) does not", takes, {1, 256}, 0, 128, 127);
  SILENT(takes_turns, {1, 384});
  SILENT(takes_all, {1, 160});  // 32 threads take the registers of 32
}

TEST_CASE("tcgen05's addresses are of the block's columns, and of lane 0",
          "[sim][tcgen05][rules]") {
  const fa::LaunchConfig warp{1, 32};
  SILENT(moves, warp, Tensor::none);
  SILENT(moves, warp, Tensor::last_column);
  FOUND("tcgen05.st at ... the lanes of the warp pass different addresses", moves, warp,
        Tensor::lanes);
  FOUND("uses columns 497 to 512 of tensor memory, of which column 512 does not exist", moves, warp,
        Tensor::past_last);
  FOUND("the tcgen05.mma at ... has D from lane 1 on; its 128 rows begin at 0", moves, warp,
        Tensor::d_lane);
  FOUND("the tcgen05.mma at ... has A from lane 32 on", moves, warp, Tensor::a_lane);
  FOUND("the tcgen05.mma at ... says that A, in tensor memory, is MN-major", moves, warp,
        Tensor::a_major);
  FOUND("tcgen05.commit at ... is multicast to a block outside the cluster of 1", moves, warp,
        Tensor::to_block_1);
  FOUND("the tcgen05.mma at ... A's descriptor has the swizzle code 1; 0, 2, 4 and 6 are possible",
        moves, warp, Tensor::swizzle_code);
  FOUND("the tcgen05.mma at ... A's descriptor is not", moves, warp, Tensor::base_offset);
  FOUND("the tcgen05.mma at ... says m128n264; m64 with n", moves, warp, Tensor::n_264);
  FOUND("one arrival too many: tcgen05.commit at ... in a phase that has all its 1 arrivals", moves,
        warp, Tensor::commits_twice);
  SILENT(moves, {2, 32, 0, 2}, Tensor::none);
  FOUND("tcgen05.commit at ... has cta_group::2, but tcgen05.alloc at ... has cta_group::1", moves,
        {2, 32, 0, 2}, Tensor::other_group);
  // The source of estimated times: columns of the product in units of m64n1k16, in tf32 of k = 8.
  const sim::test::WithOptions with({.workers = 1, .requests = true});
  for (const Tensor type : {Tensor::none, Tensor::tf32}) {
    const auto counts = sim::test::counted(moves, warp, type);
    const auto& kernel = counts.kernels.at(0);
    CHECK(counts.tensor_flops == uint64_t{2 * 128 * 32} * (type == Tensor::tf32 ? 8 : 16));
    REQUIRE(kernel.work.size() == 1);
    CHECK(kernel.work[0].wgmma_columns == 2 * 32);
    const fa::ClockFigures& clock = fa::clock_figures("H200");
    CHECK(kernel.work[0].latency == clock.shared_latency + clock.wgmma_latency);
    CHECK(kernel.wgmma_wavefronts == (128 + 32) * 16 * 2 / 128);
  }
}

// tcgen05: operands in every layout, A from tensor memory, loads and stores of every width, sums.
#include "tests/ptx/operand.h"

namespace {

using fa::Major;
using fa::Swizzle;
using fa::TensorMap;
using test::bf16;
using test::kK;
using test::Operand;

constexpr int kM = 128;

// The 16 values of k from 16 * step on.
template <class T>
FA_PTX uint64_t descriptor(char* tile, int step) {
  if constexpr (T::major == Major::k && T::swizzle == Swizzle::none) {
    return fa::tcgen05_descriptor(tile + step * 2 * T::kPanelBytes, T::swizzle, T::kPanelBytes,
                                  128);
  } else if constexpr (T::major == Major::k) {
    const int inner = step * 32 % T::kWidth, panel = step * 32 / T::kWidth;
    return fa::tcgen05_advance(
        fa::tcgen05_descriptor(tile + panel * T::kPanelBytes, T::swizzle, 0, 8 * T::kWidth), inner);
  } else if constexpr (T::swizzle == Swizzle::none) {
    return fa::tcgen05_descriptor(tile + step * 16 * T::kWidth, T::swizzle, 8 * T::kWidth,
                                  T::kPanelBytes);
  } else {
    return fa::tcgen05_advance(
        fa::tcgen05_descriptor(tile, T::swizzle, T::kPanelBytes, 8 * T::kWidth),
        step * 16 * T::kWidth);
  }
}

// For a pair of blocks: this block's `mn` of 2 * mn rows; block 0's barrier counts the bytes.
template <class T>
TensorMap map_of_both(const bf16* p) {
  constexpr int kAll = T::major == Major::k ? kK : 2 * T::kMn;  // columns
  return fa::tensor_map(
      p, {{kAll, 1, T::kPanelCols}, {2 * T::kMn * kK / kAll, kAll, T::kRows}, {1, 8, 1}, {1, 8, 1}},
      T::swizzle);
}
template <class T>
FA_PTX void load_half(char* tile, const TensorMap* map, uint64_t* bar) {
  const int first = fa::cluster_rank() * T::kMn;
  for (int i = 0; i < T::kCols / T::kPanelCols; ++i) {
    const int x = i * T::kPanelCols + (T::major == Major::k ? 0 : first);
    const int at[] = {x, T::major == Major::k ? first : 0, 0, 0};
    fa::tma_load_2cta(tile + i * T::kPanelBytes, map, bar, 0, at);
  }
}

template <int group, class T>
FA_PTX void load(char* tile, const TensorMap* map, uint64_t* bar) {
  if constexpr (group == 2) {
    load_half<T>(tile, map, bar);
  } else {
    T::load(tile, map, bar);
  }
}
template <int group>
FA_PTX void meet() {
  if constexpr (group == 2) {
    fa::cluster_sync();
  } else {
    __syncthreads();
  }
}

// D[128][N] = A[128][64] B[N][64]^T, A from shared or tensor memory. With a group of two blocks
// D[256][N] = A[256][64] B[N][64]^T: each block has half of A, B and D.
template <int group, int N, Major a_major, Major b_major, Swizzle swizzle, bool tmem>
__global__ void __launch_bounds__(128)
    product_kernel(const bf16* gA, const __grid_constant__ TensorMap map_a,
                   const __grid_constant__ TensorMap map_b, float* D) {
  using A = Operand<kM, a_major, group == 2 ? Swizzle::b128 : swizzle>;
  using B = Operand<N / group, b_major, swizzle>;
  constexpr int kColumns = N + kK / 2 <= 128 ? 128 : 512;
  char* sA = fa::dynamic_shared<char>();
  char* sB = sA + A::kBytes;
  __shared__ uint64_t full, done;
  __shared__ uint32_t address;
  const int warp = threadIdx.x / 32, rank = fa::cluster_rank();
  const int r = rank * kM + threadIdx.x;  // row of A and of D
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&full, 1), fa::mbarrier_init(&done, 1);
    fa::mbarrier_init_fence();
  }
  __syncwarp();
  if (warp == 0) fa::tcgen05_alloc<group>(&address, kColumns);
  meet<group>();
  if (threadIdx.x == 0) {
    if (rank == 0) fa::mbarrier_arrive_expect_tx(&full, group * (A::kBytes + B::kBytes));
    load<group, A>(sA, &map_a, &full);
    load<group, B>(sB, &map_b, &full);
  }
  __syncwarp();
  const uint32_t d = address, a = d + N;  // columns of D, and of A if present
  if constexpr (tmem) {
    uint32_t row[kK / 2];
    UNROLL
    for (int i = 0; i < kK / 2; ++i) {
      row[i] = *reinterpret_cast<const uint32_t*>(gA + r * kK + 2 * i);
    }
    fa::tcgen05_st(fa::tmem_address(a, 32 * warp, 0), row);
    fa::tcgen05_wait_st();
    fa::tcgen05_fence_before_thread_sync();
    meet<group>();
    fa::tcgen05_fence_after_thread_sync();
  }
  if (threadIdx.x == 0 && rank == 0) {
    fa::mbarrier_wait(&full, 0);
    constexpr uint32_t kInstruction = fa::tcgen05_instruction(group * kM, N, a_major, b_major);
    for (int step = 0; step < kK / 16; ++step) {
      const uint64_t b = descriptor<B>(sB, step);
      if constexpr (tmem) {
        fa::tcgen05_mma_tmem<group>(d, a + step * 8, b, kInstruction, step > 0);
      } else {
        fa::tcgen05_mma<group>(d, descriptor<A>(sA, step), b, kInstruction, step > 0);
      }
    }
    if constexpr (group == 2) {
      fa::tcgen05_commit_2cta(&done, 3);
    } else {
      fa::tcgen05_commit(&done);
    }
  }
  __syncwarp();
  fa::mbarrier_wait(&done, 0);
  fa::tcgen05_fence_after_thread_sync();
  for (int n = 0; n < N; n += 16) {
    float part[16];
    fa::tcgen05_ld(part, fa::tmem_address(d, 32 * warp, n));
    fa::tcgen05_wait_ld(part);
    UNROLL
    for (int i = 0; i < 16; ++i) D[r * N + n + i] = part[i];
  }
  fa::tcgen05_fence_before_thread_sync();
  meet<group>();
  fa::tcgen05_fence_after_thread_sync();
  if (warp == 0) fa::tcgen05_dealloc<group>(address, kColumns);
}

// Spread over many powers of two, so that sums are rounded.
std::vector<bf16> wide_numbers(size_t n, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  return test::each<bf16>(
      n, [&](int) { return std::ldexp(normal(rng), static_cast<int>(rng() % 24) - 12); });
}

template <int N, Major a_major, Major b_major, Swizzle swizzle, bool tmem = false>
void check() {
  test::check_product<Operand<kM, a_major, swizzle>, Operand<N, b_major, swizzle>>(
      product_kernel<1, N, a_major, b_major, swizzle, tmem>, wide_numbers(kM * kK, 1),
      wide_numbers(N * kK, 2));
}

template <int N, Major a_major, Major b_major, Swizzle swizzle, bool tmem = false>
void check_pair() {
  CAPTURE(N, static_cast<int>(b_major), static_cast<int>(swizzle), tmem);
  constexpr int kRows = 2 * kM;
  const auto a = wide_numbers(kRows * kK, 1), b = wide_numbers(N * kK, 2);
  using OperandA = Operand<kM, a_major, Swizzle::b128>;
  using OperandB = Operand<N / 2, b_major, swizzle>;
  const test::Buffer<bf16> A("A", OperandA::in_memory(a)), B("B", OperandB::in_memory(b));
  const auto got =
      test::results<float>(kRows * N, product_kernel<2, N, a_major, b_major, swizzle, tmem>,
                           {2, 128, OperandA::kBytes + OperandB::kBytes, 2}, a,
                           map_of_both<OperandA>(A), map_of_both<OperandB>(B));
  CHECK((got == test::product(a, b)));
}

// Each warp stores its lanes with one width and loads them with the same.
template <int n>
__global__ void move_kernel(uint32_t* out) {
  __shared__ uint32_t address;
  const int warp = threadIdx.x / 32;
  if (warp == 4) fa::tcgen05_alloc(&address, 64);
  __syncthreads();
  uint32_t r[n], back[n];
  UNROLL
  for (int i = 0; i < n; ++i) r[i] = threadIdx.x * n + i;
  const uint32_t mine = fa::tmem_address(address, 32 * (warp % 4), 0);
  if (warp < 4) {
    fa::tcgen05_st(mine, r);
    fa::tcgen05_wait_st();
    fa::tcgen05_ld(back, mine);
    fa::tcgen05_wait_ld(back);
    UNROLL
    for (int i = 0; i < n; ++i) out[threadIdx.x * n + i] = back[i];
  }
  __syncthreads();
  if (warp == 4) {
    fa::tcgen05_dealloc(address, 64);
    fa::tcgen05_relinquish_alloc_permit();
  }
}

__global__ void packed_kernel(const float* x, float* out) {
  const float2 a{x[0], x[1]}, b{x[2], x[3]}, c{x[4], x[5]};
  const float2 sum = fa::add_f32x2(a, b), product = fa::mul_f32x2(a, b);
  const float2 both = fa::fma_f32x2(a, b, c);
  out[0] = sum.x, out[1] = sum.y, out[2] = product.x, out[3] = product.y;
  out[4] = both.x, out[5] = both.y;
}

}  // namespace

TEST_CASE("tcgen05.mma multiplies K-major operands of every swizzle", "[ptx][tcgen05]") {
  check<128, Major::k, Major::k, Swizzle::b128>();
  check<128, Major::k, Major::k, Swizzle::b64>();
  check<128, Major::k, Major::k, Swizzle::b32>();
  check<128, Major::k, Major::k, Swizzle::none>();
}

TEST_CASE("tcgen05.mma multiplies MN-major operands", "[ptx][tcgen05]") {
  check<128, Major::k, Major::mn, Swizzle::b128>();
  check<128, Major::mn, Major::mn, Swizzle::b128>();
  check<64, Major::k, Major::mn, Swizzle::b64>();
  check<64, Major::k, Major::mn, Swizzle::none>();
}

TEST_CASE("tcgen05.mma takes A from tensor memory", "[ptx][tcgen05]") {
  check<64, Major::k, Major::mn, Swizzle::b128, true>();
  check<128, Major::k, Major::mn, Swizzle::b128, true>();
}

TEST_CASE("tcgen05.mma has widths up to 256", "[ptx][tcgen05]") {
  check<16, Major::k, Major::k, Swizzle::b128>();
  check<256, Major::k, Major::k, Swizzle::b128>();
}

TEST_CASE("tcgen05.mma of two blocks has 256 rows, and half of B in each", "[ptx][tcgen05]") {
  check_pair<128, Major::k, Major::k, Swizzle::b128>();
  check_pair<256, Major::k, Major::k, Swizzle::b64>();
  check_pair<32, Major::k, Major::k, Swizzle::none>();
  check_pair<128, Major::mn, Major::mn, Swizzle::b128>();
  check_pair<128, Major::k, Major::mn, Swizzle::b128, true>();
  check_pair<64, Major::k, Major::mn, Swizzle::b64, true>();
}

TEST_CASE("tcgen05.st and ld move 16, 32 and 64 columns", "[ptx][tcgen05]") {
  const fa::LaunchConfig config{1, 160};
  const auto check = [&](int n, auto kernel) {
    CHECK((test::results<uint32_t>(128 * n, kernel, config) == test::iota<uint32_t>(128 * n)));
  };
  check(16, move_kernel<16>);
  check(32, move_kernel<32>);
  check(64, move_kernel<64>);
}

TEST_CASE("Packed arithmetic rounds like the scalar one", "[ptx]") {
  const std::vector<float> x{1.1f, -3e-20f, 0.7f, 2e-30f, -0.77f, 1e-40f};
  const float all[] = {std::fma(x[0], x[2], x[4]), std::fma(x[1], x[3], x[5])};
  const std::vector<float> want{x[0] + x[2], x[1] + x[3], x[0] * x[2], x[1] * x[3], all[0], all[1]};
  CHECK((test::results<float>(6, packed_kernel, {1, 1}, x) == want));
}

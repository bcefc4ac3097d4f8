// wgmma: operands in every layout, A from registers, and a GEMM fed by TMA through a ring.
#include "tests/device.h"
#include "tests/test.h"

namespace {

using fa::Major;
using fa::Swizzle;
using fa::TensorMap;
using test::bf16;
using test::Buffer;

constexpr int kM = 64, kK = 64;

// An operand of `mn` x 64 in shared memory, as TMA boxes of one swizzle width leave it: panels of
// W / 2 columns, W bytes a row.
template <int mn, Major major, Swizzle swizzle>
struct Operand {
  static constexpr int kWidth = static_cast<int>(swizzle);
  static constexpr int kBytes = mn * kK * 2;
  static constexpr int kRows = major == Major::k ? mn : kK;  // rows of memory
  static constexpr int kCols = major == Major::k ? kK : mn;
  static constexpr int kPanelCols = kWidth / 2;
  static constexpr int kPanels = kCols / kPanelCols;
  static constexpr int kPanelBytes = kRows * kWidth;

  static TensorMap map(const bf16* p) {
    return fa::tensor_map(p, {{kCols, 1, kPanelCols}, {kRows, kCols, kRows}}, swizzle);
  }
  static FA_PTX void load(void* tile, const TensorMap* map, uint64_t* bar) {
    for (int i = 0; i < kPanels; ++i) {
      fa::tma_load(static_cast<char*>(tile) + i * kPanelBytes, map, bar, {i * kPanelCols, 0});
    }
  }
  // The 16 values of k from 16 * step on.
  static FA_PTX uint64_t descriptor(void* tile, int step) {
    char* p = static_cast<char*>(tile);
    if constexpr (major == Major::k) {
      const int inner = step * 32 % kWidth, panel = step * 32 / kWidth;
      return fa::wgmma_descriptor(p + panel * kPanelBytes + inner, swizzle, kPanelBytes,
                                  8 * kWidth);
    } else if constexpr (swizzle == Swizzle::none) {
      return fa::wgmma_descriptor(p + step * 16 * kWidth, swizzle, 8 * kWidth, kPanelBytes);
    } else {
      return fa::wgmma_descriptor(p + step * 16 * kWidth, swizzle, kPanelBytes, 8 * kWidth);
    }
  }
};

template <int N>
__device__ void write_accumulators(float* D, const float (&d)[N / 2]) {
  UNROLL
  for (int i = 0; i < N / 2; ++i) {
    const fa::RowCol e = fa::wgmma_d_element(threadIdx.x % 128, i);
    D[e.row * N + e.col] = d[i];
  }
}

// D[64][N] = A[64][64] B[N][64]^T, A and B from shared memory.
template <int N, Major a_major, Major b_major, Swizzle swizzle>
__global__ void __launch_bounds__(128)
    product_kernel(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                   float* D) {
  using A = Operand<kM, a_major, swizzle>;
  using B = Operand<N, b_major, swizzle>;
  char* sA = fa::dynamic_shared<char>();
  char* sB = sA + A::kBytes;
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&full, 1);
    fa::mbarrier_init_fence();
    fa::mbarrier_arrive_expect_tx(&full, A::kBytes + B::kBytes);
    A::load(sA, &map_a, &full);
    B::load(sB, &map_b, &full);
  }
  __syncthreads();
  fa::mbarrier_wait(&full, 0);
  float d[N / 2];
  fa::wgmma_fence();
  UNROLL
  for (int step = 0; step < kK / 16; ++step) {
    fa::wgmma<a_major, b_major>(d, A::descriptor(sA, step), B::descriptor(sB, step), step > 0);
  }
  fa::wgmma_commit();
  fa::wgmma_wait<0>();
  write_accumulators<N>(D, d);
}

// The same with A from registers.
template <int N, Major b_major, Swizzle swizzle>
__global__ void __launch_bounds__(128)
    register_a_kernel(const bf16* A, const __grid_constant__ TensorMap map_b, float* D) {
  using B = Operand<N, b_major, swizzle>;
  char* sB = fa::dynamic_shared<char>();
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    fa::mbarrier_init(&full, 1);
    fa::mbarrier_init_fence();
    fa::mbarrier_arrive_expect_tx(&full, B::kBytes);
    B::load(sB, &map_b, &full);
  }
  uint32_t a[kK / 16][4];
  UNROLL
  for (int step = 0; step < kK / 16; ++step) {
    UNROLL
    for (int r = 0; r < 4; ++r) {
      const fa::RowCol e = fa::wgmma_a_element(threadIdx.x, 2 * r);  // and its right neighbour
      const bf16* p = A + e.row * kK + step * 16 + e.col;
      a[step][r] = fa::pack_bf16(static_cast<float>(p[0]), static_cast<float>(p[1]));
    }
  }
  __syncthreads();
  fa::mbarrier_wait(&full, 0);
  float d[N / 2];
  fa::wgmma_fence();
  UNROLL
  for (int step = 0; step < kK / 16; ++step) {
    fa::wgmma<b_major>(d, a[step], B::descriptor(sB, step), step > 0);
  }
  fa::wgmma_commit();
  fa::wgmma_wait<0>();
  write_accumulators<N>(D, d);
}

// x[rows][cols] as x[cols][rows].
std::vector<bf16> transposed(const std::vector<bf16>& x, int rows, int cols) {
  std::vector<bf16> t(x.size());
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < cols; ++c) t[c * rows + r] = x[r * cols + c];
  }
  return t;
}

// D[m][n] = sum over k of A[m][k] B[n][k]; reports the first difference only.
void check_product(const std::vector<bf16>& a, const std::vector<bf16>& b,
                   const std::vector<float>& got, int M, int N, int K) {
  int wrong = 0;
  for (int m = 0; m < M; ++m) {
    for (int n = 0; n < N; ++n) {
      float want = 0;
      for (int k = 0; k < K; ++k) {
        want += static_cast<float>(a[m * K + k]) * static_cast<float>(b[n * K + k]);
      }
      if (got[m * N + n] == want) continue;
      if (wrong++ == 0) {
        CAPTURE(m, n);
        CHECK(got[m * N + n] == want);
      }
    }
  }
  CHECK(wrong == 0);
}

template <int N, Major a_major, Major b_major, Swizzle swizzle>
void check_shared() {
  CAPTURE(N, static_cast<int>(a_major), static_cast<int>(b_major), static_cast<int>(swizzle));
  const auto a = test::small_integers<bf16>(kM * kK, 1), b = test::small_integers<bf16>(N * kK, 2);
  Buffer<bf16> A("A", a_major == Major::k ? a : transposed(a, kM, kK));
  Buffer<bf16> B("B", b_major == Major::k ? b : transposed(b, N, kK));
  Buffer<float> D("D", kM * N);
  using OperandA = Operand<kM, a_major, swizzle>;
  using OperandB = Operand<N, b_major, swizzle>;
  fa::launch(product_kernel<N, a_major, b_major, swizzle>,
             {1, 128, OperandA::kBytes + OperandB::kBytes}, OperandA::map(A.get()),
             OperandB::map(B.get()), D.get());
  check_product(a, b, D.download(), kM, N, kK);
}

template <int N, Major b_major, Swizzle swizzle>
void check_registers() {
  CAPTURE(N, static_cast<int>(b_major), static_cast<int>(swizzle));
  const auto a = test::small_integers<bf16>(kM * kK, 3), b = test::small_integers<bf16>(N * kK, 4);
  Buffer<bf16> A("A", a), B("B", b_major == Major::k ? b : transposed(b, N, kK));
  Buffer<float> D("D", kM * N);
  using OperandB = Operand<N, b_major, swizzle>;
  fa::launch(register_a_kernel<N, b_major, swizzle>, {1, 128, OperandB::kBytes}, A.get(),
             OperandB::map(B.get()), D.get());
  check_product(a, b, D.download(), kM, N, kK);
}

}  // namespace

TEST_CASE("wgmma multiplies K-major operands of every swizzle", "[ptx][wgmma]") {
  check_shared<128, Major::k, Major::k, Swizzle::b128>();
  check_shared<128, Major::k, Major::k, Swizzle::b64>();
  check_shared<128, Major::k, Major::k, Swizzle::b32>();
  check_shared<128, Major::k, Major::k, Swizzle::none>();
}

TEST_CASE("wgmma multiplies MN-major operands of every swizzle", "[ptx][wgmma]") {
  check_shared<128, Major::k, Major::mn, Swizzle::b128>();
  check_shared<128, Major::mn, Major::k, Swizzle::b128>();
  check_shared<128, Major::mn, Major::mn, Swizzle::b128>();
  check_shared<128, Major::mn, Major::mn, Swizzle::b64>();
  check_shared<128, Major::mn, Major::mn, Swizzle::b32>();
  check_shared<128, Major::mn, Major::mn, Swizzle::none>();
}

TEST_CASE("wgmma has every width that attention uses", "[ptx][wgmma]") {
  check_shared<16, Major::k, Major::k, Swizzle::b128>();
  check_shared<32, Major::k, Major::k, Swizzle::b128>();
  check_shared<64, Major::k, Major::mn, Swizzle::b128>();
  check_shared<80, Major::k, Major::k, Swizzle::b128>();
  check_shared<96, Major::k, Major::k, Swizzle::b128>();
  check_shared<176, Major::k, Major::k, Swizzle::b128>();
  check_shared<192, Major::k, Major::mn, Swizzle::b128>();
  check_shared<224, Major::k, Major::k, Swizzle::b128>();
  check_shared<256, Major::k, Major::k, Swizzle::b128>();
}

TEST_CASE("wgmma takes A from registers", "[ptx][wgmma]") {
  check_registers<128, Major::k, Swizzle::b128>();
  check_registers<128, Major::mn, Swizzle::b128>();
  check_registers<64, Major::mn, Swizzle::b128>();
}

namespace {

// --- a GEMM tile: producer warpgroup, two consumer warpgroups, a ring of two stages --------------

constexpr int kTile = 128, kStages = 2, kTileBytes = kTile * kK * 2;
constexpr int kConsumers = 2;

struct RingMemory {
  alignas(1024) char a[kStages][kTileBytes];
  alignas(1024) char b[kStages][kTileBytes];
  uint64_t full[kStages], empty[kStages];
};

// C[128][128] = A[128][K] B[128][K]^T, K = 64 * tiles.
__global__ void __launch_bounds__(128 * (1 + kConsumers), 1)
    gemm_kernel(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                float* C, int tiles) {
  RingMemory& s = *fa::dynamic_shared<RingMemory>();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      fa::mbarrier_init(&s.full[i], 1);
      fa::mbarrier_init(&s.empty[i], kConsumers * 4);  // one arrival a warp
    }
    fa::mbarrier_init_fence();
  }
  __syncthreads();
  const int wg = threadIdx.x / 128;
  if (wg == 0) {
    fa::setmaxnreg_dec<40>();
    if (threadIdx.x != 0) return;
    for (int j = 0; j < tiles; ++j) {
      const int stage = j % kStages, round = j / kStages & 1;
      fa::mbarrier_wait(&s.empty[stage], round ^ 1);
      fa::mbarrier_arrive_expect_tx(&s.full[stage], 2 * kTileBytes);
      fa::tma_load(s.a[stage], &map_a, &s.full[stage], {j * kK, 0});
      fa::tma_load(s.b[stage], &map_b, &s.full[stage], {j * kK, 0});
    }
  } else {
    fa::setmaxnreg_inc<200>();
    float c[kTile / 2] = {};
    const uint64_t a = fa::wgmma_descriptor(s.a[0] + (wg - 1) * 64 * 128, Swizzle::b128, 16, 1024);
    const uint64_t b = fa::wgmma_descriptor(s.b[0], Swizzle::b128, 16, 1024);
    for (int j = 0; j < tiles; ++j) {
      const int stage = j % kStages, round = j / kStages & 1;
      fa::mbarrier_wait(&s.full[stage], round);
      fa::wgmma_fence();
      UNROLL
      for (int step = 0; step < kK / 16; ++step) {
        const int offset = stage * kTileBytes + step * 32;
        fa::wgmma(c, fa::wgmma_advance(a, offset), fa::wgmma_advance(b, offset));
      }
      fa::wgmma_commit();
      fa::wgmma_wait<0>();
      if (threadIdx.x % 32 == 0) fa::mbarrier_arrive(&s.empty[stage]);
    }
    write_accumulators<kTile>(C + (wg - 1) * 64 * kTile, c);
  }
}

}  // namespace

TEST_CASE("a warp-specialised GEMM tile: TMA ring, wgmma, setmaxnreg", "[ptx][wgmma][tma]") {
  const int tiles = GENERATE(1, 2, 5);
  CAPTURE(tiles);
  const int K = tiles * kK;
  const auto a = test::small_integers<bf16>(size_t(kTile) * K, 5);
  const auto b = test::small_integers<bf16>(size_t(kTile) * K, 6);
  Buffer<bf16> A("A", a), B("B", b);
  Buffer<float> C("C", kTile * kTile);
  const auto map = [&](const bf16* p) {
    return fa::tensor_map(p, {{uint64_t(K), 1, kK}, {kTile, uint64_t(K), kTile}}, Swizzle::b128);
  };
  fa::launch(gemm_kernel, {1, 128 * (1 + kConsumers), sizeof(RingMemory)}, map(A.get()),
             map(B.get()), C.get(), tiles);
  check_product(a, b, C.download(), kTile, kTile, K);
}

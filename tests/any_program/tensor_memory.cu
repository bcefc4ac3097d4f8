// Inline PTX of sm_100a: TMA loads, mbarriers, tcgen05. S = A B^T, then O = P B_last^T, where P is
// 16 columns of S modulo 8, from tensor memory. Products are in bf16, fp16, tf32 and
// e4m3: of 64 rows, and of 128 with scales.
#include <cudaTypedefs.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>

#include "check.h"

constexpr int kM = 128, kN = 32, kK = 64, kTiles = 5, kStages = 2;
constexpr int kTileA = kM * kK * 2, kTileB = kN * kK * 2, kStage = kTileA + kTileB;  // bytes
constexpr int kColumns = 128, kO = 32, kP = 64;                                      // columns

__device__ inline int elect() {
  int elected = 0;
  asm volatile("{\n\t.reg .pred %%px;\n\telect.sync _|%%px, %1;\n\t@%%px mov.s32 %0, 1;\n\t}"
               : "+r"(elected)
               : "r"(0xffffffff));
  return elected;
}
__device__ inline void wait(uint32_t bar, int parity) {
  asm volatile(
      "{\n\t.reg .pred P;\nWAIT_%=:\n\tmbarrier.try_wait.parity.acquire.cta.shared::cta.b64 P, "
      "[%0], %1, 1000;\n\t@P bra.uni DONE_%=;\n\tbra.uni WAIT_%=;\nDONE_%=:\n\t}" ::"r"(bar),
      "r"(parity));
}
__device__ inline bool complete(uint32_t bar, int parity) {
  uint32_t is;
  asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
      "selp.b32 %0, 1, 0, p; }"
      : "=r"(is)
      : "r"(bar), "r"(parity));
  return is;
}
template <int kGroup>
__device__ inline void load(uint32_t to, const CUtensorMap* map, int x, int y, uint32_t bar) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.cta_group::%5 "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(bar), "n"(kGroup)
      : "memory");
}
// K-major, swizzled by 128 bytes.
__device__ inline uint64_t operand(uint32_t address) {
  return (address & 0x3ffff) >> 4 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 46 |
         uint64_t{2} << 61;
}
__device__ inline void commit(uint32_t bar) {
  asm volatile(
      "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(bar)
      : "memory");
}
__device__ inline void load_8_columns(float* r, uint32_t from) {
  asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32{%0,%1,%2,%3,%4,%5,%6,%7},[%8];"
               : "=f"(r[0]), "=f"(r[1]), "=f"(r[2]), "=f"(r[3]), "=f"(r[4]), "=f"(r[5]), "=f"(r[6]),
                 "=f"(r[7])
               : "r"(from));
}
constexpr uint32_t kInstruction = 1 << 4 | 1 << 7 | 1 << 10 | kN / 8 << 17 | kM / 16 << 24;

__global__ void products(const __grid_constant__ CUtensorMap A,
                         const __grid_constant__ CUtensorMap B, float* S, float* O) {
  extern __shared__ __align__(1024) char smem[];
  __shared__ uint64_t bars[2 * kStages + 1];
  __shared__ uint32_t address;
  const int thread = threadIdx.x, warp = thread / 32;
  const uint32_t tiles = (uint32_t)__cvta_generic_to_shared(smem);
  const uint32_t full = (uint32_t)__cvta_generic_to_shared(bars), empty = full + 8 * kStages,
                 done = empty + 8 * kStages;
  if (warp == 0 && elect()) {
    for (int i = 0; i <= 2 * kStages; ++i) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(full + 8 * i), "r"(1));
    }
    asm volatile("fence.mbarrier_init.release.cluster;");
  } else if (warp == 1) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(&address)),
                 "r"(kColumns));
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
  }
  __syncthreads();
  const uint32_t base = address;

  if (warp == 0 && elect()) {
    int loaded = 0;
    const auto load_next = [&] {
      const uint32_t to = tiles + loaded % kStages * kStage, bar = full + loaded % kStages * 8;
      asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(bar),
                   "r"(kStage)
                   : "memory");
      load<1>(to, &A, loaded * kK, 0, bar);
      load<1>(to + kTileA, &B, loaded * kK, 0, bar);
      ++loaded;
    };
    const auto free = [&] { return empty + loaded % kStages * 8; };
    const auto round = [&] { return (loaded / kStages + 1) & 1; };
    for (int tile = 0; tile < kTiles; ++tile) {
      if (loaded == tile) wait(free(), round()), load_next();
      while (loaded < kTiles && complete(free(), round())) load_next();  // fill the free stages
      wait(full + tile % kStages * 8, tile / kStages & 1);
      asm volatile("tcgen05.fence::after_thread_sync;");
      for (int k = 0; k < kK; k += 16) {
        const uint32_t a = tiles + tile % kStages * kStage + k * 2;
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"
            "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, {%5, %5, %5, %5}, p;\n}\n" ::"r"(
                base),  // no lane is left out
            "l"(operand(a)), "l"(operand(a + kTileA)), "r"(kInstruction), "r"(tile + k), "r"(0));
      }
      commit(empty + tile % kStages * 8);
    }
    commit(done);
  }
  __syncwarp();
  while (!complete(done, 0)) {
  }
  asm volatile("tcgen05.fence::after_thread_sync;");
  const uint32_t mine = base + (warp * 32 << 16);
  float s[kN];
  for (int n = 0; n < kN; n += 8) load_8_columns(s + n, mine + n);
  asm volatile("tcgen05.wait::ld.sync.aligned;");
  for (int n = 0; n < kN; ++n) S[thread * kN + n] = s[n];
  uint32_t p[8];
  for (int i = 0; i < 8; ++i) {
    const auto rest = [&](int n) {
      return (uint32_t)__bfloat16_as_ushort(__float2bfloat16((float)((int)s[n] & 7)));
    };
    p[i] = rest(2 * i) | rest(2 * i + 1) << 16;
  }
  asm volatile(
      "tcgen05.st.sync.aligned.32x32b.x8.b32 [%0], {%1,%2,%3,%4,%5,%6,%7,%8};" ::"r"(mine + kP),
      "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "r"(p[4]), "r"(p[5]), "r"(p[6]), "r"(p[7]));
  asm volatile("tcgen05.wait::st.sync.aligned;");
  asm volatile("tcgen05.fence::before_thread_sync;");
  __syncthreads();
  if (warp == 2 && elect()) {
    asm volatile("tcgen05.fence::after_thread_sync;");
    const uint32_t b = tiles + (kTiles - 1) % kStages * kStage + kTileA;
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %4, 0; "
        "tcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, p; }" ::"r"(base + kO),
        "r"(base + kP), "l"(operand(b)), "r"(kInstruction), "r"(0));
    commit(done);
  }
  wait(done, 1);
  asm volatile("tcgen05.fence::after_thread_sync;");
  for (int n = 0; n < kN; n += 8) {
    float o[8];
    load_8_columns(o, base + kO + n);                           // each warp passes lane 0
    for (int i = 0; i < 8; ++i) O[thread * kN + n + i] = o[i];  // the use of o follows the load
  }
  asm volatile("tcgen05.wait::ld.sync.aligned;");
  asm volatile("tcgen05.fence::before_thread_sync;");
  __syncthreads();
  if (warp == 1) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(base),
                 "r"(kColumns));
  }
}

// D[kRows][32] = A[kRows][] B[32][]^T, of 128 bytes in fp16 or tf32, or of 32 in e4m3. `scales`:
// 2^e of each row of A, then of B, as tensor memory has them.
template <class T, int kRows, bool kScaled>
__global__ void product(const T* A, const T* B, const uint4* scales, float* D, float* largest) {
  constexpr int kRow = 128 / sizeof(T), kChunk = 16 / sizeof(T);
  __shared__ __align__(1024) T tiles[(kRows + kN) * kRow];
  __shared__ __align__(128) uint4 of_rows[64];
  __shared__ uint64_t bar;
  __shared__ uint32_t address;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const uint32_t a = (uint32_t)__cvta_generic_to_shared(tiles), b = a + kRows * 128,
                 done = (uint32_t)__cvta_generic_to_shared(&bar),
                 of_a = (uint32_t)__cvta_generic_to_shared(of_rows);
  const auto swizzled = [](int i) { return i ^ (i / kRow % 8 * kChunk); };
  for (int i = thread; i < kRows * kRow; i += kM) tiles[swizzled(i)] = A[i];
  for (int i = thread; i < kN * kRow; i += kM) tiles[kRows * kRow + swizzled(i)] = B[i];
  if (thread < 64) of_rows[thread] = scales[thread];
  asm volatile("fence.proxy.async.shared::cta;");
  if (warp == 0) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 64;" ::"r"(
        (uint32_t)__cvta_generic_to_shared(&address)));
  }
  if (thread == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(done), "r"(1));
  __syncthreads();
  const uint32_t d = address;
  constexpr uint32_t kShape = kN / 8 << 17 | kRows / 16 << 24, kFloats = kShape | 1 << 4;
#define MULTIPLY(kind, types)                                                                  \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %4, 0; tcgen05.mma.cta_group::1.kind::" kind    \
               " [%0], %1, %2, %3, {%5, %6, %7, %8}, p; }" ::"r"(d),                           \
               "l"(operand(a + k)), "l"(operand(b + k)), "r"(kFloats | types), "r"(k), "r"(0), \
               "r"(0), "r"(0), "r"(0))
// Except in lane 31, D = A B^T + D / 2.
#define ADD_TO_HALF(kind, types)                                                           \
  asm volatile("{ .reg .pred p; setp.eq.b32 p, 0, 0; tcgen05.mma.cta_group::1.kind::" kind \
               ".collector::a::fill [%0], %1, %2, %3, {%4, 0, 0, 0}, p, 1; }" ::"r"(d),    \
               "l"(operand(a)), "l"(operand(b)), "r"(kFloats | types), "r"(0x80000000))
  if (thread == 0) {
    if constexpr (kScaled) {
      const uint64_t rows = of_a >> 4 | uint64_t{128 >> 4} << 32 | uint64_t{1} << 46;
      asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(d + 32), "l"(rows));
      asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(d + 36),
                   "l"(rows + 32));
      asm volatile(
          "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.block32 [%0], %1, %2, %3, [%4], "
          "[%5], 0;" ::"r"(d),
          "l"(operand(a)), "l"(operand(b)), "r"(kShape | 1 << 23), "r"(d + 32), "r"(d + 36));
    } else if constexpr (sizeof(T) == 1) {
      asm volatile(
          "tcgen05.mma.cta_group::1.kind::f8f6f4.collector::a::discard [%0], %1, %2, %3, 0;" ::"r"(
              d),
          "l"(operand(a)), "l"(operand(b)), "r"(kFloats));
    } else if constexpr (sizeof(T) == 2) {
      for (int k = 0; k < 128; k += 32) MULTIPLY("f16", 0);
      ADD_TO_HALF("f16", 0);
    } else {
      for (int k = 0; k < 128; k += 32) MULTIPLY("tf32", (2 << 7 | 2 << 10));
      ADD_TO_HALF("tf32", (2 << 7 | 2 << 10));
    }
    commit(done);
  }
  wait(done, 0);
  asm volatile("tcgen05.fence::after_thread_sync;");
  const uint32_t mine = d + (warp * 32 << 16);
  for (int n = 0; n < kN && sizeof(T) > 1; n += 8) {
    float r[8];
    load_8_columns(r, mine + n);
    for (int i = 0; i < 8; ++i) D[thread * kN + n + i] = r[i];
  }
  for (int half = 0; half < kRows / 64 && sizeof(T) == 1; ++half) {
    float r[16];  // of 16 rows of the warp, of all columns
    asm volatile(
        "tcgen05.ld.sync.aligned.16x256b.x4.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
        "%12, %13, %14, %15}, [%16];"
        : "=f"(r[0]), "=f"(r[1]), "=f"(r[2]), "=f"(r[3]), "=f"(r[4]), "=f"(r[5]), "=f"(r[6]),
          "=f"(r[7]), "=f"(r[8]), "=f"(r[9]), "=f"(r[10]), "=f"(r[11]), "=f"(r[12]), "=f"(r[13]),
          "=f"(r[14]), "=f"(r[15])
        : "r"(mine + (half * 16 << 16)));
    for (int i = 0; i < 16; ++i) {
      const int row = (warp * kRows / 64 + half) * 16 + lane / 4 + i / 2 % 2 * 8;
      D[row * kN + i / 4 * 8 + lane % 4 * 2 + i % 2] = r[i];
    }
  }
  if (kScaled) {
    float r[2], most;
    asm volatile("tcgen05.ld.red.sync.aligned.32x32b.x2.max.abs.f32 {%0, %1}, %2, [%3];"
                 : "=f"(r[0]), "=f"(r[1]), "=f"(most)
                 : "r"(mine));
    largest[thread] = most;
    int of_bits[2], least;
    asm volatile("tcgen05.ld.red.sync.aligned.32x32b.x2.min.s32 {%0, %1}, %2, [%3];"
                 : "=r"(of_bits[0]), "=r"(of_bits[1]), "=r"(least)
                 : "r"(mine));
    largest[kM + thread] = __int_as_float(least);
  }
  asm volatile("tcgen05.wait::ld.sync.aligned;");
  asm volatile("tcgen05.fence::before_thread_sync;");
  __syncthreads();
  if (warp == 0) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 64;" ::"r"(d));
  }
}

// Each block of a pair loads 8 rows of 64 columns, and both signal the even block: by mapa, or by
// the address without its bit 24, at which both also arrive.
__global__ __cluster_dims__(2, 1, 1) void pair(const __grid_constant__ CUtensorMap map, float* out,
                                               int masks) {
  __shared__ __align__(1024) __nv_bfloat16 tile[8 * kK];
  __shared__ uint64_t full;
  uint32_t rank, own = (uint32_t)__cvta_generic_to_shared(&full), bar = own;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 3;" ::"r"(bar));
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n");
  if (masks) {
    bar &= 0xfeffffff;
  } else {
    asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(bar) : "r"(0));
  }
  if (threadIdx.x == 0) {
    if (rank == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar),
                   "r"(2 * (int)sizeof tile));
    }
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(bar));
    load<2>((uint32_t)__cvta_generic_to_shared(tile), &map, 0, 8 * rank, bar);
  }
  if (rank == 0) wait(own, 0);
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n");
  float sum = 0;
  for (int r = 0; r < 8; ++r) sum += __bfloat162float(tile[r * kK + threadIdx.x]);
  out[rank * 32 + threadIdx.x] = sum;
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n");
}

// Four rows of a tensor, one beyond it, to four rows of another one. The kernel makes the second
// one's map from the first one's.
__global__ void rows(const __grid_constant__ CUtensorMap map, CUtensorMap* other,
                     __nv_bfloat16* y) {
  __shared__ __align__(128) __nv_bfloat16 tile[4 * kK];
  __shared__ __align__(128) CUtensorMap copy;
  __shared__ uint64_t full;
  const uint32_t bar = (uint32_t)__cvta_generic_to_shared(&full),
                 to = (uint32_t)__cvta_generic_to_shared(tile),
                 of_copy = (uint32_t)__cvta_generic_to_shared(&copy);
  if (threadIdx.x == 0) {
    copy = map;
    asm volatile(
        "tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;" ::"r"(of_copy),
        "l"(y));
    asm volatile(
        "tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 1, %1;" ::"r"(of_copy),
        "r"(8));
    asm volatile(
        "tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%0], 0, %1;" ::"r"(of_copy),
        "l"((uint64_t)(kK * 2)));
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar));
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  __syncwarp();
  asm volatile(
      "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned "
      "[%0], [%1], 128;" ::"l"(other),
      "r"(of_copy));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar),
                 "r"((int)sizeof tile));
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(to),
        "l"(&map), "r"(8), "r"(5), "r"(kM), "r"(0), "r"(77), "r"(bar)
        : "memory");
    wait(bar, 0);
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(other));
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [%0, {%1, %2, %3, "
        "%4, %5}], [%6];" ::"l"(other),
        "r"(0), "r"(3), "r"(7), "r"(8), "r"(1), "r"(to));
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;");
  }
}

// Two rows of 128 elements of 4 bits, from element 128 on: as they are, and each 16 in 16 bytes.
// Then of 6 bits, each 16 in 16 bytes.
__global__ void narrow(const __grid_constant__ CUtensorMap packed,
                       const __grid_constant__ CUtensorMap padded,
                       const __grid_constant__ CUtensorMap of_six, uint64_t* y) {
  __shared__ __align__(128) uint64_t tiles[16 + 32 + 32];
  __shared__ uint64_t full;
  const uint32_t bar = (uint32_t)__cvta_generic_to_shared(&full),
                 to = (uint32_t)__cvta_generic_to_shared(tiles);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar));
    asm volatile("fence.mbarrier_init.release.cluster;");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 448;" ::"r"(bar));
    load<1>(to, &packed, 128, 0, bar);
    load<1>(to + 128, &padded, 128, 0, bar);
    load<1>(to + 384, &of_six, 128, 0, bar);
  }
  __syncwarp();
  wait(bar, 0);
  const int t = threadIdx.x;
  y[t] = tiles[t < 16 ? t : 16 + (t - 16) * 2];
  y[32 + t] = t % 2 ? (uint32_t)tiles[48 + t] : tiles[48 + t];  // 12 of 16 bytes
}

template <int kBoxRows = 0>
CUtensorMap map_of(__nv_bfloat16* p, int rows) {
  CUtensorMap map;
  const cuuint64_t size[] = {kK * kTiles, (cuuint64_t)rows}, stride[] = {kK * kTiles * 2};
  const cuuint32_t box[] = {kK, (cuuint32_t)(kBoxRows ? kBoxRows : rows)}, step[] = {1, 1};
  void* encode = nullptr;
  cudaDriverEntryPointQueryResult found;
  CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000,
                                         cudaEnableDefault, &found));
  EXPECT(found == cudaDriverEntryPointSuccess);
  EXPECT(((PFN_cuTensorMapEncodeTiled_v12000)encode)(
             &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, p, size, stride, box, step,
             CU_TENSOR_MAP_INTERLEAVE_NONE,
             kBoxRows ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS);
  return map;
}

// A's numbers need 11 bits, more than bf16 has, or 5; `rest` is below the last bit of tf32.
template <class T, int kRows = kM, bool kScaled = false>
void check_product(float rest = 0) {
  constexpr bool kBytes = sizeof(T) == 1;
  constexpr int K = 128 / sizeof(T), kUsed = kBytes ? 32 : K;
  T *A = room<T>(kRows * K), *B = room<T>(kN * K);
  float *D = room<float>(kRows * kN), *largest = room<float>(2 * kM);
  uint8_t* scales = room<uint8_t>(1024);
  const auto e = [](int row) { return kScaled ? row % 7 - 3 : 0; };
  for (int i = 0; i < kRows; ++i) scales[i % 32 * 16 + i / 32 * 4] = 127 + e(i);
  for (int i = 0; i < kN; ++i) scales[512 + i * 16] = 127 + e(i + 2);
  const auto of_a = [](int i) { return kBytes ? i * 7 % 31 - 15.f : 1 + (i * 37 % 1024) / 1024.f; };
  const auto of_b = [](int i) { return (i * 5 % 11 - 5) / (kBytes ? 4.f : 1.f); };
  for (int i = 0; i < kRows * K; ++i) A[i] = T(of_a(i) + rest);
  for (int i = 0; i < kN * K; ++i) B[i] = T(of_b(i));
  product<T, kRows, kScaled><<<1, kM>>>(A, B, (const uint4*)scales, D, largest);
  done();
  for (int i = 0; i < kRows * kN; ++i) {
    float sum = 0, first = 0;
    for (int k = 0; k < kUsed; ++k) {
      sum += of_a(i / kN * K + k) * of_b(i % kN * K + k);
      if (k == K / 4 - 1) first = sum;
    }
    EXPECT(D[i] == (kBytes         ? ldexpf(sum, e(i / kN) + e(i % kN + 2))
                    : i / kN == 31 ? sum
                                   : first + sum / 2));
  }
  for (int i = 0; i < kM && kScaled; ++i) {
    EXPECT(largest[i] == fmaxf(fabsf(D[i * kN]), fabsf(D[i * kN + 1])));
    int least, bits[2];
    memcpy(bits, &D[i * kN], 8), memcpy(&least, &largest[kM + i], 4);
    EXPECT(least == (bits[0] < bits[1] ? bits[0] : bits[1]));
  }
}

int main() {
  check_product<__half>();
  check_product<float>(1 / 1025.f);
  check_product<__nv_fp8_e4m3, 64>();
  check_product<__nv_fp8_e4m3, kM, true>();
  constexpr int K = kK * kTiles;
  __nv_bfloat16 *A = room<__nv_bfloat16>(kM * K), *B = room<__nv_bfloat16>(kN * K);
  float *S = room<float>(kM * kN), *O = room<float>(kM * kN);
  for (int i = 0; i < kM * K; ++i) A[i] = __float2bfloat16(i * 7 % 13 - 6.f);
  for (int i = 0; i < kN * K; ++i) B[i] = __float2bfloat16(i * 5 % 11 - 5.f);
  CHECK(cudaFuncSetAttribute(products, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             kStages * kStage));
  products<<<1, 128, kStages * kStage>>>(map_of(A, kM), map_of(B, kN), S, O);
  done();
  for (int m = 0; m < kM; ++m) {
    for (int n = 0; n < kN; ++n) {
      float s = 0, o = 0;
      for (int k = 0; k < K; ++k) {
        s += __bfloat162float(A[m * K + k]) * __bfloat162float(B[n * K + k]);
      }
      for (int k = 0; k < 16; ++k) {
        o += ((int)S[m * kN + k] & 7) * __bfloat162float(B[n * K + K - kK + k]);
      }
      EXPECT(S[m * kN + n] == s && O[m * kN + n] == o);
    }
  }

  CUtensorMap* other = room<CUtensorMap>(1);
  __nv_bfloat16* y = room<__nv_bfloat16>(9 * kK);
  rows<<<1, 32>>>(map_of<1>(A, kM), other, y);
  done();
  for (int i = 0; i < 9 * kK; ++i) {
    const int row = i / kK, from = row == 3 ? 5 : row == 1 ? 77 : -1;  // 8 is beyond y's map
    EXPECT(__bfloat162float(y[i]) == (from < 0 ? 0.f : __bfloat162float(A[from * K + 8 + i % kK])));
  }

  uint64_t *codes = room<uint64_t>(48), *loaded = room<uint64_t>(64);
  for (int i = 0; i < 48; ++i) codes[i] = i * 0x123456789abcdefull;
  CUtensorMap narrow_maps[3];
  for (int i = 0; i < 3; ++i) {
    const cuuint64_t size[] = {256, 2}, stride[] = {i == 2 ? 192ull : 128ull};
    const cuuint32_t box[] = {128, 2}, step[] = {1, 1};
    EXPECT(cuTensorMapEncodeTiled(&narrow_maps[i],
                                  CUtensorMapDataType(CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B + i), 2,
                                  codes, size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                  CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS);
  }
  narrow<<<1, 32>>>(narrow_maps[0], narrow_maps[1], narrow_maps[2], loaded);
  done();
  for (int i = 0; i < 32; ++i) EXPECT(loaded[i] == codes[i % 16 / 8 * 16 + 8 + i % 8]);
  for (int i = 0; i < 32; ++i) {
    const char* from = (const char*)codes + i / 16 * 192 + 96 + i % 16 / 2 * 12 + i % 2 * 8;
    EXPECT(memcmp(&loaded[32 + i], from, i % 2 ? 4 : 8) == 0);
  }

  for (int masks = 0; masks < 2; ++masks) {
    pair<<<2, 32>>>(map_of<8>(A, kM), S, masks);
    done();
    for (int i = 0; i < 64; ++i) {
      float sum = 0;
      for (int r = 0; r < 8; ++r) sum += __bfloat162float(A[(i / 32 * 8 + r) * K + i % 32]);
      EXPECT(S[i] == sum);
    }
  }
  return verdict();
}

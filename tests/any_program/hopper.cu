// Inline PTX of sm_90a. Two blocks of a cluster multiply 64 rows of A each by the same B^T, of
// which each loads one half for both; then wgmma with A from registers and B MN-major, in fp16.
#include <cudaTypedefs.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "check.h"

constexpr int kM = 64, kN = 32, kK = 64, kTiles = 5, kStages = 2, kWarps = 4;
constexpr int kBytesA = kM * kK * 2, kBytesB = kN * kK * 2, kStage = kBytesA + kBytesB;

__device__ inline uint32_t shared(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ inline void wait(uint32_t bar, int parity) {
  asm volatile(
      "{\n.reg .pred P1;\nLAB_WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1;\n"
      "@P1 bra.uni DONE;\nbra.uni LAB_WAIT;\nDONE:\n}\n" ::"r"(bar),
      "r"(parity)
      : "memory");
}
__device__ inline void load(uint32_t to, const CUtensorMap* map, int x, int y, uint32_t bar) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
      "l"(map), "r"(bar), "r"(x), "r"(y)
      : "memory");
}
__device__ inline uint64_t operand(uint32_t address) {  // K-major, swizzled by 128 bytes
  return (address & 0x3ffff) >> 4 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

__global__ void __cluster_dims__(2, 1, 1)
    products(const __grid_constant__ CUtensorMap A, const __grid_constant__ CUtensorMap B,
             const __grid_constant__ CUtensorMap D) {
  extern __shared__ __align__(1024) char smem[];
  __shared__ __align__(128) __nv_bfloat16 out[kM * kN];
  __shared__ uint64_t bars[2 * kStages];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  uint32_t rank;
  asm volatile("mov.u32 %0, %cluster_ctarank;\n" : "=r"(rank) :);
  const uint32_t tiles = shared(smem), full = shared(bars), empty = full + 8 * kStages;
  if (thread == 0) {
    for (int i = 0; i < kStages; ++i) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(full + 8 * i), "r"(1));
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(empty + 8 * i), "n"(2 * kWarps));
    }
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n");
  if (warp == kWarps) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" : : "n"(40));
    for (int tile = 0; lane == 0 && tile < kTiles; ++tile) {
      const int stage = tile % kStages;
      const uint32_t to = tiles + stage * kStage, bar = full + 8 * stage;
      wait(empty + 8 * stage, (tile / kStages & 1) ^ 1);
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar),
                   "r"(kStage));
      load(to, &A, tile * kK, (blockIdx.x * kM), bar);
      asm volatile(
          "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
          ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to + kBytesA +
                                                                      rank * (kBytesB / 2)),
          "l"(&B), "r"(bar), "r"(tile * kK), "r"(rank * (kN / 2)), "h"((uint16_t)3)
          : "memory");
    }
  } else {
    float d[kN / 2];
    for (int tile = 0; tile < kTiles; ++tile) {
      const int stage = tile % kStages;
      wait(full + 8 * stage, tile / kStages & 1);
      asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
      for (int k = 0; k < kK; k += 16) {
        const uint32_t a = tiles + stage * kStage + 2 * k;
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, "
            "%8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, p, %19, %20, %21, %22;\n}\n"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
              "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]),
              "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
            : "l"(operand(a)), "l"(operand(a + kBytesA)), "r"(tile + k), "n"(1), "n"(1), "n"(0),
              "n"(0));
      }
      asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
      asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(0) : "memory");
      if (lane < 2) {
        asm volatile(
            "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
            "mbarrier.arrive.shared::cluster.b64 _, [remote], %2;\n}" ::"r"(empty + 8 * stage),
            "r"(lane), "r"(1));
      }
    }
    uint32_t packed[kN / 4];
    for (int i = 0; i < kN / 4; ++i) {
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed[i]) : "f"(d[2 * i + 1]), "f"(d[2 * i]));
    }
    for (int c = 0; c < kN; c += 16) {
      const int row = 16 * warp + lane / 8 % 2 * 8 + lane % 8;
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                       shared(&out[row * kN + c + lane / 16 * 8])),
                   "r"(packed[c / 4]), "r"(packed[c / 4 + 1]), "r"(packed[c / 4 + 2]),
                   "r"(packed[c / 4 + 3])
                   : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("bar.sync 1, %0;" ::"n"(32 * kWarps) : "memory");
    if (thread == 0) {
      asm volatile(
          "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&D),
          "r"(shared(out)), "n"(0), "r"(blockIdx.x * kM)
          : "memory");
      asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
    }
  }
  asm volatile("barrier.cluster.arrive;\n" : :);
  asm volatile("barrier.cluster.wait;\n" : :);
}

// D [64][8] = A [64][32] B [32][8], B row-major: two products that are in flight together.
__global__ void from_registers(const half* A, const half* B, float* D) {
  __shared__ __align__(128) half sB[32 * 8];
  const int t = threadIdx.x, row = t / 32 * 16 + t % 32 / 4, k = t % 4 * 2;
  sB[t] = B[t], sB[t + 128] = B[t + 128];
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  uint32_t a[8];
  for (int i = 0; i < 8; ++i) {
    asm("ld.global.b32 %0, [%1];" : "=r"(a[i]) : "l"(A + (row + i % 2 * 8) * 32 + k + i / 2 * 8));
  }
  const uint64_t b = (shared(sB) & 0x3ffff) >> 4 | uint64_t{128 >> 4} << 16 | uint64_t{8} << 32;
  float d[4] = {};
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  for (int i = 0; i < 2; ++i) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "%8, 1, 1, 1, 1;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[4 * i]), "r"(a[4 * i + 1]), "r"(a[4 * i + 2]), "r"(a[4 * i + 3]), "l"(b + i * 16));
#ifdef EARLY
    a[0] = 0;
#endif
  }
  asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < 4; ++i) D[(row + i / 2 * 8) * 8 + t % 4 * 2 + i % 2] = d[i];
}

static CUtensorMap map_of(__nv_bfloat16* p, cuuint64_t rows, cuuint64_t columns,
                          cuuint32_t box_rows, cuuint32_t box_columns, CUtensorMapSwizzle swizzle) {
  CUtensorMap map;
  const cuuint64_t size[] = {columns, rows}, stride[] = {columns * 2};
  const cuuint32_t box[] = {box_columns, box_rows}, step[] = {1, 1};
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                         cudaEnableDefault, &found));
  const CUresult status = ((PFN_cuTensorMapEncodeTiled_v12000)function)(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, p, size, stride, box, step,
      CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  EXPECT(status == CUDA_SUCCESS);
  return map;
}

int main() {
  {  // a row of 128 bytes in a swizzle of 64
    CUtensorMap map;
    const cuuint64_t size[] = {128, 8}, stride[] = {128};
    const cuuint32_t box[] = {128, 8}, step[] = {1, 1};
    EXPECT(cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, room<char>(1024), size,
                                  stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                  CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_ERROR_INVALID_VALUE);
    for (auto type : {CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_UINT16}) {
      const cuuint32_t narrow[] = {64, 8};
      const auto status = cuTensorMapEncodeTiled(
          &map, type, 2, room<char>(2048), size, stride, narrow, step,
          CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
          CU_TENSOR_MAP_L2_PROMOTION_NONE,
          CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA);  // of floating-point numbers only
      EXPECT((status == CUDA_SUCCESS) == (type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16));
    }
  }
  CUdevice device;
  const char* words = nullptr;
  EXPECT(cuInit(0) == CUDA_SUCCESS && cuDeviceGet(&device, 0) == CUDA_SUCCESS);
  EXPECT(cuGetErrorString(CUDA_ERROR_INVALID_VALUE, &words) == CUDA_SUCCESS && words[0] == 'i');
  constexpr int kDepth = kTiles * kK, kRows = 2 * kM;
  auto *A = room<__nv_bfloat16>(kRows * kDepth), *B = room<__nv_bfloat16>(kN * kDepth),
       *D = room<__nv_bfloat16>(kRows * kN);
  for (int i = 0; i < kRows * kDepth; ++i) A[i] = __float2bfloat16(i * 7 % 5 - 2.f);
  for (int i = 0; i < kN * kDepth; ++i) B[i] = __float2bfloat16(i * 11 % 3 - 1.f);
  const auto swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  CHECK(cudaFuncSetAttribute(products, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             kStages * kStage));
  products<<<2, 32 * (kWarps + 1), kStages * kStage>>>(
      map_of(A, kRows, kDepth, kM, kK, swizzle), map_of(B, kN, kDepth, kN / 2, kK, swizzle),
      map_of(D, kRows, kN, kM, kN, CU_TENSOR_MAP_SWIZZLE_NONE));
  done();
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kN; ++c) {
      float sum = 0;
      for (int k = 0; k < kDepth; ++k) {
        sum += __bfloat162float(A[r * kDepth + k]) * __bfloat162float(B[c * kDepth + k]);
      }
      EXPECT(__bfloat162float(D[r * kN + c]) == __bfloat162float(__float2bfloat16(sum)));
    }
  }

  half *a = room<half>(64 * 32), *b = room<half>(32 * 8);
  float* d = room<float>(64 * 8);
  for (int i = 0; i < 64 * 32; ++i) a[i] = __float2half(i * 7 % 13 - 6.f);
  for (int i = 0; i < 32 * 8; ++i) b[i] = __float2half(i * 5 % 11 - 5.f);
  from_registers<<<1, 128>>>(a, b, d);
  done();
  for (int r = 0; r < 64; ++r) {
    for (int c = 0; c < 8; ++c) {
      float sum = 0;
      for (int k = 0; k < 32; ++k) sum += __half2float(a[r * 32 + k]) * __half2float(b[k * 8 + c]);
      EXPECT(d[r * 8 + c] == sum);
    }
  }
  return verdict();
}

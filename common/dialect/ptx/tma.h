/// \file
/// The tensor memory accelerator (sm_90): one thread issues the copy of a box of a tensor between
/// device and shared memory. Other ranks, multicast: more/tma.h.
///
/// A tensor map, made on the host, describes tensor and box; the kernel takes it as
/// `const __grid_constant__ TensorMap`. A box's elements outside the tensor are loaded as zero and
/// never stored. In shared memory a box is dense, innermost dimension first, its 16-byte chunks
/// permuted by the map's swizzle (layouts.h); where that is wider than the box's rows, each row
/// begins at a multiple of its width. Its address must be a multiple of 128 bytes; with a swizzle
/// of W bytes, of 8 W, so that the offset in the tile alone determines a chunk's place.
///
/// Loads complete at an mbarrier, which receives the box's bytes (zeros included). Stores are
/// waited for by groups, as for cp.async.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "common/dialect/ptx/layouts.h"
#include "common/dialect/ptx/wrapper.h"

#if FA_BACKEND_GPU
#include <cuda.h>
#endif

namespace fa {

// --- host: tensor maps ---------------------------------------------------------------------------

#if FA_BACKEND_GPU
/// How TMA finds a box in a tensor: pointer, sizes, strides, box, swizzle.
using TensorMap = CUtensorMap;
#else
using TensorMap = sim::TensorMap;
#endif

/// One dimension of a tensor.
struct TensorDim {
  uint64_t size;    ///< elements
  uint64_t stride;  ///< elements between neighbours
  uint32_t box;     ///< elements of a box, at most 256
};

/// Checks the hardware's rules for a tensor map. \throws std::invalid_argument with one sentence.
inline void check_tensor_map(const void* base, size_t element_bytes,
                             std::initializer_list<TensorDim> dims, Swizzle swizzle) {
  const auto refuse = [](const std::string& why) {
    throw std::invalid_argument("tensor map: " + why);
  };
  if (dims.size() < 1 || dims.size() > 5) refuse("1 to 5 dimensions are possible");
  if (reinterpret_cast<uintptr_t>(base) % 16 != 0) refuse("the base is not 16-byte aligned");
  const TensorDim& inner = *dims.begin();
  if (inner.stride != 1) refuse("the innermost dimension must have stride 1");
  const size_t row_bytes = inner.box * element_bytes;
  if (row_bytes % 16 != 0) refuse("a box row is not a multiple of 16 bytes");
  if (swizzle != Swizzle::none && row_bytes > static_cast<size_t>(swizzle)) {
    refuse("a box row of " + std::to_string(row_bytes) + " bytes is wider than the swizzle");
  }
  for (const TensorDim& dim : dims) {
    if (dim.size < 1 || dim.size > (uint64_t{1} << 32)) refuse("a size is not in 1 to 2^32");
    if (dim.box < 1 || dim.box > 256) refuse("a box size is not in 1 to 256");
    const uint64_t bytes = dim.stride * element_bytes;
    if (&dim != dims.begin() && (bytes % 16 != 0 || bytes >= (uint64_t{1} << 40))) {
      refuse("a stride of " + std::to_string(bytes) + " bytes is not a multiple of 16 below 2^40");
    }
  }
}

#if FA_BACKEND_GPU
/// cuTensorMapEncodeTiled of the installed driver; nothing links libcuda.
inline auto tensor_map_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  cuda_check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                              cudaEnableDefault, &found));
#else
  cuda_check(
      cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found));
#endif
  if (found != cudaDriverEntryPointSuccess) {
    throw std::runtime_error("this driver makes no tensor maps: CUDA 12 or later is needed");
  }
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}
#endif

/// Describes a tensor in device memory, innermost dimension first:
///
///     tensor_map(K, {{d, 1, 64}, {N, d, Bc}, {B * H, N * d, 1}}, Swizzle::b128)
///
/// is K[B*H][N][d] in boxes of Bc rows of 64 features. T is float, bf16 or uint8_t (fp8 too).
/// \throws std::invalid_argument when the hardware cannot do it.
template <class T>
TensorMap tensor_map(const T* base, std::initializer_list<TensorDim> dims, Swizzle swizzle) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, __nv_bfloat16> ||
                std::is_same_v<T, uint8_t>);
  check_tensor_map(base, sizeof(T), dims, swizzle);
#if FA_BACKEND_GPU
  static const auto encode = tensor_map_encoder();
  cuuint64_t size[5], stride[5];  // bytes; the innermost stride is not passed
  cuuint32_t box[5], step[5];
  int i = 0;
  for (const TensorDim& dim : dims) {
    size[i] = dim.size;
    stride[i] = dim.stride * sizeof(T);
    box[i] = dim.box;
    step[i++] = 1;
  }
  const CUtensorMapDataType type = std::is_same_v<T, float>     ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                   : std::is_same_v<T, uint8_t> ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                                                : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const CUtensorMapSwizzle pattern = swizzle == Swizzle::none  ? CU_TENSOR_MAP_SWIZZLE_NONE
                                     : swizzle == Swizzle::b32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                     : swizzle == Swizzle::b64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                               : CU_TENSOR_MAP_SWIZZLE_128B;
  TensorMap map;
  // The L2 fetches 128 bytes at a time: measured, as fast as 64. Blocks of 256 also fetch what no
  // box has: random pages of rows of 1,152 bytes were read at 4.09 TB/s instead of 4.40.
  const CUresult status =
      encode(&map, type, static_cast<cuuint32_t>(dims.size()), const_cast<T*>(base), size,
             stride + 1, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, pattern,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw std::invalid_argument("tensor map: the driver refuses it (error " +
                                std::to_string(static_cast<int>(status)) + ")");
  }
  return map;
#else
  TensorMap map{};
  map.base = const_cast<T*>(base);
  map.element_bytes = sizeof(T);
  map.swizzle = swizzle;
  for (const TensorDim& dim : dims) {
    map.size[map.rank] = dim.size;
    map.stride[map.rank] = dim.stride * sizeof(T);
    map.box[map.rank++] = dim.box;
  }
  return map;
#endif
}

// --- device --------------------------------------------------------------------------------------

#if defined(__CUDACC__)

/// Orders this thread's plain accesses to shared memory before later ones of TMA and wgmma (the
/// "async proxy"). Needed between writing a tile and a tma_store or wgmma that reads it.
FA_PTX void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Copies the box at `at` (innermost coordinate first; each may be outside the tensor) to shared
/// memory, then signals its bytes to `bar`. By one thread. The innermost coordinate: a multiple of
/// 16 bytes, or an H200 stops with "illegal instruction". Scalar meaning, in two dimensions:
///
///     for (y = 0 .. box[1] - 1) for (x = 0 .. box[0] - 1)
///       to[swizzled(y * box[0] + x)] = inside(at[0] + x, at[1] + y) ? T[at[1] + y][at[0] + x] : 0;
///     bar: complete_tx(bytes of the box)
///
/// Example: tma_load(sK, &mapK, &full, {0, j * Bc, 0, bh}). Other ranks than 4: more/tma.h.
template <int rank>
FA_PTX void tma_load(void* to, const TensorMap* map, uint64_t* bar,
                     const int (&at)[rank]) requires(rank == 4) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(bar)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
      : "memory");
}

/// Copies a box from shared memory to the tensor; elements past the tensor's end are dropped (a
/// negative coordinate is an illegal instruction, unlike in a load). By one thread, after
/// fence_proxy_async() by the writers and a barrier. Belongs to the thread's open group.
template <int rank>
FA_PTX void tma_store(const TensorMap* map, const void* from,
                      const int (&at)[rank]) requires(rank == 4) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], "
      "[%1];" ::"l"(map),
      "r"(shared_address(from)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
      : "memory");
}

/// Closes the group of the stores that this thread issued since the last commit.
FA_PTX void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until at most the `pending` newest groups still read shared memory: then the tiles of the
/// others may be overwritten. A block must not end before this wait.
template <int pending>
FA_PTX void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

#elif !FA_BACKEND_GPU

FA_PTX void fence_proxy_async() { sim::proxy_fence(sim::ProxyFence::shared); }

template <int rank>
FA_PTX void tma_load(void* to, const TensorMap* map, uint64_t* bar, const int (&at)[rank],
                     FA_WHERE) requires(rank == 4) {
  sim::tma_load(to, map, at, rank, bar, 0, where);
}
template <int rank>
FA_PTX void tma_store(const TensorMap* map, const void* from, const int (&at)[rank],
                      FA_WHERE) requires(rank == 4) {
  sim::tma_store(map, at, rank, from, where);
}
FA_PTX void tma_store_commit() { sim::bulk_commit(); }
template <int pending>
FA_PTX void tma_store_wait_read() {
  sim::bulk_wait(pending, true);
}

#endif

}  // namespace fa

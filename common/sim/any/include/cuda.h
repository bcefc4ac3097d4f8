// Stands in for NVIDIA's header of this name, which programs include beside the runtime's. It has
// the driver API's tensor maps and the calls before them: cuInit() and the device. What manages
// memory by handles is declared, and refused when it is called. scripts/sim names everything else
// that a program uses of it.
#pragma once
#include <cstring>

#include "cuda_runtime.h"
#ifndef CUDA_VERSION
#define CUDA_VERSION CUDART_VERSION
#endif

using CUtensorMap = sim::TensorMap;
using cuuint32_t = uint32_t;
using cuuint64_t = uint64_t;
enum CUresult {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_UNKNOWN = 999
};
enum CUtensorMapDataType {
  CU_TENSOR_MAP_DATA_TYPE_UINT8,
  CU_TENSOR_MAP_DATA_TYPE_UINT16,
  CU_TENSOR_MAP_DATA_TYPE_UINT32,
  CU_TENSOR_MAP_DATA_TYPE_INT32,
  CU_TENSOR_MAP_DATA_TYPE_UINT64,
  CU_TENSOR_MAP_DATA_TYPE_INT64,
  CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
  CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
  CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
  CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
  CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ,
  CU_TENSOR_MAP_DATA_TYPE_TFLOAT32,
  CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ,
  CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B,
  CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B,
  CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B,
};
enum CUtensorMapInterleave {
  CU_TENSOR_MAP_INTERLEAVE_NONE,
  CU_TENSOR_MAP_INTERLEAVE_16B,
  CU_TENSOR_MAP_INTERLEAVE_32B,
};
enum CUtensorMapSwizzle {
  CU_TENSOR_MAP_SWIZZLE_NONE,
  CU_TENSOR_MAP_SWIZZLE_32B,
  CU_TENSOR_MAP_SWIZZLE_64B,
  CU_TENSOR_MAP_SWIZZLE_128B,
  CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B,  // these three are refused
  CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B_FLIP_8B,
  CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B,
};
enum CUtensorMapL2promotion {
  CU_TENSOR_MAP_L2_PROMOTION_NONE,
  CU_TENSOR_MAP_L2_PROMOTION_L2_64B,
  CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
  CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
};
enum CUtensorMapFloatOOBfill {
  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
  CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA,
};

inline CUresult cuGetErrorString(CUresult error, const char** words) {
  *words = cudaGetErrorString(static_cast<cudaError_t>(error));  // the numbers are the same
  return CUDA_SUCCESS;
}
inline CUresult cuGetErrorName(CUresult error, const char** name) {
  *name = error == CUDA_SUCCESS                ? "CUDA_SUCCESS"
          : error == CUDA_ERROR_INVALID_DEVICE ? "CUDA_ERROR_INVALID_DEVICE"
          : error == CUDA_ERROR_UNKNOWN        ? "CUDA_ERROR_UNKNOWN"
                                               : "CUDA_ERROR_INVALID_VALUE";
  return CUDA_SUCCESS;
}
/// The limits are CUDA's. Elements are contiguous. What a load takes from outside of the tensor is
/// 0, also with a fill of NaN, which the tensor cores read as 0.
inline CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                       void* base, const cuuint64_t* size,
                                       const cuuint64_t* stride,  // bytes, from dimension 1 on
                                       const cuuint32_t* box, const cuuint32_t* step,
                                       CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                       CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  if (interleave) sim::any::unsupported("interleaved tensor maps");
  if (swizzle > CU_TENSOR_MAP_SWIZZLE_128B) sim::any::unsupported("swizzles of other atoms");
  constexpr int kBytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4, 8, 8, 12};  // 3 of 16 elements
  const uint64_t bytes = kBytes[type];
  const unsigned unit = type < CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B ? 1 : 16;
  const uint64_t gap = type > CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B ? 16 - bytes : 0;
  bool right = rank >= 1 && rank <= sim::kMaxRank && reinterpret_cast<uintptr_t>(base) % 16 == 0;
  right &= fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE ||
           (type >= CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && unit == 1);
  if (!right) return CUDA_ERROR_INVALID_VALUE;
  map->base = base, map->element_bytes = static_cast<int>(bytes);
  map->rank = static_cast<int>(rank), map->swizzle = fa::Swizzle{16 << swizzle};
  map->unit = unit, map->gap = gap;
  if (unit == 16 && gap == 0 && size[0] % 16 != 0 && size[0] % 2 == 0) {
    sim::any::unsupported("rows of 4-bit elements that are not whole groups of 16");
  }
  right &= size[0] % unit == 0 && box[0] % unit == 0;
  if (gap != 0) {
    right &= size[0] % 128 == 0 && box[0] == 128 && reinterpret_cast<uintptr_t>(base) % 32 == 0 &&
             (swizzle == CU_TENSOR_MAP_SWIZZLE_NONE || swizzle == CU_TENSOR_MAP_SWIZZLE_128B);
  }
  for (cuuint32_t i = 0; i < rank; ++i) {
    map->size[i] = i == 0 ? size[i] / unit : size[i];
    map->stride[i] = i == 0 ? bytes : stride[i - 1];
    map->box[i] = i == 0 ? box[i] / unit : box[i];
    right &= size[i] >= 1 && size[i] <= uint64_t{1} << 32 && box[i] >= 1 && box[i] <= 256 &&
             step[i] == 1 && (i == 0 || stride[i - 1] % (gap ? 32 : 16) == 0);
  }
  const uint64_t row = box[0] / unit * (bytes + gap);
  right &= row % 16 == 0 && (swizzle == CU_TENSOR_MAP_SWIZZLE_NONE || row <= 16u << swizzle);
  return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

using CUdevice = int;
inline CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
inline CUresult cuDriverGetVersion(int* version) { return *version = CUDA_VERSION, CUDA_SUCCESS; }
inline CUresult cuDeviceGetCount(int* count) { return *count = 1, CUDA_SUCCESS; }
inline CUresult cuDeviceGet(CUdevice* device, int number) {
  *device = number;
  return number == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

using CUdeviceptr = unsigned long long;
using CUmemGenericAllocationHandle = unsigned long long;
enum CUdevice_attribute {
  CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
  CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED = 132
};
enum CUmemAllocationType { CU_MEM_ALLOCATION_TYPE_PINNED = 1 };
enum CUmemAllocationHandleType { CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1 };
enum CUmemLocationType { CU_MEM_LOCATION_TYPE_DEVICE = 1 };
enum CUmemAccess_flags { CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3 };
enum CUmemAllocationGranularity_flags { CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1 };
enum CUmulticastGranularity_flags { CU_MULTICAST_GRANULARITY_RECOMMENDED = 1 };
struct CUmemLocation {
  CUmemLocationType type;
  int id;
};
struct CUmemAllocationProp {
  CUmemAllocationType type;
  CUmemAllocationHandleType requestedHandleTypes;
  CUmemLocation location;
};
struct CUmemAccessDesc {
  CUmemLocation location;
  CUmemAccess_flags flags;
};
struct CUmulticastObjectProp {
  unsigned numDevices;
  size_t size;
  unsigned long long handleTypes, flags;
};
#define SIM_REFUSED(name)                                \
  template <class... T>                                  \
  CUresult name(T...) {                                  \
    sim::any::unsupported(#name "() of the driver API"); \
  }
SIM_REFUSED(cuDeviceGetAttribute)
SIM_REFUSED(cuMemAddressFree)
SIM_REFUSED(cuMemAddressReserve)
SIM_REFUSED(cuMemCreate)
SIM_REFUSED(cuMemExportToShareableHandle)
SIM_REFUSED(cuMemGetAllocationGranularity)
SIM_REFUSED(cuMemImportFromShareableHandle)
SIM_REFUSED(cuMemMap)
SIM_REFUSED(cuMemRelease)
SIM_REFUSED(cuMemRetainAllocationHandle)
SIM_REFUSED(cuMemSetAccess)
SIM_REFUSED(cuMemUnmap)
SIM_REFUSED(cuMulticastAddDevice)
SIM_REFUSED(cuMulticastBindMem)
SIM_REFUSED(cuMulticastCreate)
SIM_REFUSED(cuMulticastGetGranularity)
SIM_REFUSED(cuMulticastUnbind)
#undef SIM_REFUSED

using PFN_cuTensorMapEncodeTiled_v12000 = decltype(&cuTensorMapEncodeTiled);
using PFN_cuTensorMapEncodeTiled = PFN_cuTensorMapEncodeTiled_v12000;
using PFN_cuTensorMapEncodeIm2col = CUresult (*)(CUtensorMap*, ...);  // refused on request
using CUlaunchAttribute = cudaLaunchAttribute;
enum cudaDriverEntryPointQueryResult {
  cudaDriverEntryPointSuccess,
  cudaDriverEntryPointSymbolNotFound,
};
enum { cudaEnableDefault };
inline cudaError_t cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long,
                                           cudaDriverEntryPointQueryResult* result = nullptr) {
  const bool found = std::strcmp(name, "cuTensorMapEncodeTiled") == 0;
  *function = found ? reinterpret_cast<void*>(&cuTensorMapEncodeTiled) : nullptr;
  if (result) *result = found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
inline cudaError_t cudaGetDriverEntryPointByVersion(
    const char* name, void** function, unsigned, unsigned long long flags,
    cudaDriverEntryPointQueryResult* result = nullptr) {
  return cudaGetDriverEntryPoint(name, function, flags, result);
}

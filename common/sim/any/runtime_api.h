/// \file
/// CUDA's runtime API for programs of one GPU. Stream work runs at once, one call after another.
/// Events have the *estimated* time of the kernels between them (docs/clock.md). NVIDIA's manual
/// describes the calls. What is missing does not compile, and scripts/sim says so.
#pragma once

#include <cstddef>

#include "common/sim/any/program.h"

#define CUDART_CB
#define CUDARTAPI

// --- errors --------------------------------------------------------------------------------------

#define SIM_ERRORS(X)                                                                              \
  X(cudaSuccess, 0, "no error")                                                                    \
  X(cudaErrorInvalidValue, 1, "invalid argument")                                                  \
  X(cudaErrorMemoryAllocation, 2, "out of memory")                                                 \
  X(cudaErrorInitializationError, 3, "initialization error")                                       \
  X(cudaErrorCudartUnloading, 4, "driver shutting down")                                           \
  X(cudaErrorProfilerDisabled, 5, "profiler disabled while using external profiling tool")         \
  X(cudaErrorProfilerNotInitialized, 6, "profiler not initialized: call cudaProfilerInitialize()") \
  X(cudaErrorProfilerAlreadyStarted, 7, "profiler already started")                                \
  X(cudaErrorProfilerAlreadyStopped, 8, "profiler already stopped")                                \
  X(cudaErrorInvalidConfiguration, 9, "invalid configuration argument")                            \
  X(cudaErrorInvalidPitchValue, 12, "invalid pitch argument")                                      \
  X(cudaErrorInvalidSymbol, 13, "invalid device symbol")                                           \
  X(cudaErrorInvalidHostPointer, 16, "invalid host pointer")                                       \
  X(cudaErrorInvalidDevicePointer, 17, "invalid device pointer")                                   \
  X(cudaErrorInvalidTexture, 18, "invalid texture reference")                                      \
  X(cudaErrorInvalidTextureBinding, 19, "texture is not bound to a pointer")                       \
  X(cudaErrorInvalidChannelDescriptor, 20, "invalid channel descriptor")                           \
  X(cudaErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy")                      \
  X(cudaErrorAddressOfConstant, 22, "invalid address of constant")                                 \
  X(cudaErrorTextureFetchFailed, 23, "fetch from texture failed")                                  \
  X(cudaErrorTextureNotBound, 24, "cannot fetch from a texture that is not bound")                 \
  X(cudaErrorSynchronizationError, 25, "incorrect use of __syncthreads()")                         \
  X(cudaErrorInvalidFilterSetting, 26, "linear filtering not supported for non-float type")        \
  X(cudaErrorInvalidNormSetting, 27, "read as normalized float not supported for data type")       \
  X(cudaErrorMixedDeviceExecution, 28,                                                             \
    "device emulation mode and device execution mode cannot be mixed")                             \
  X(cudaErrorNotYetImplemented, 31, "feature not yet implemented")                                 \
  X(cudaErrorMemoryValueTooLarge, 32, "memory size or pointer value too large to fit in 32 bit")   \
  X(cudaErrorInsufficientDriver, 35,                                                               \
    "CUDA driver version is insufficient for CUDA runtime version")                                \
  X(cudaErrorInvalidSurface, 37, "invalid surface reference")                                      \
  X(cudaErrorDuplicateVariableName, 43, "duplicate global variable looked up by string name")      \
  X(cudaErrorDuplicateTextureName, 44, "duplicate texture looked up by string name")               \
  X(cudaErrorDuplicateSurfaceName, 45, "duplicate surface looked up by string name")               \
  X(cudaErrorDevicesUnavailable, 46, "CUDA-capable device(s) is/are busy or unavailable")          \
  X(cudaErrorIncompatibleDriverContext, 49, "incompatible driver context")                         \
  X(cudaErrorMissingConfiguration, 52, "__global__ function call is not configured")               \
  X(cudaErrorPriorLaunchFailure, 53, "unspecified launch failure in prior launch")                 \
  X(cudaErrorInvalidDeviceFunction, 98, "invalid device function")                                 \
  X(cudaErrorNoDevice, 100, "no CUDA-capable device is detected")                                  \
  X(cudaErrorInvalidDevice, 101, "invalid device ordinal")                                         \
  X(cudaErrorStartupFailure, 127, "startup failure in cuda runtime")                               \
  X(cudaErrorInvalidKernelImage, 200, "device kernel image is invalid")                            \
  X(cudaErrorMapBufferObjectFailed, 205, "mapping of buffer object failed")                        \
  X(cudaErrorUnmapBufferObjectFailed, 206, "unmapping of buffer object failed")                    \
  X(cudaErrorNoKernelImageForDevice, 209,                                                          \
    "no kernel image is available for execution on the device")                                    \
  X(cudaErrorECCUncorrectable, 214, "uncorrectable ECC error encountered")                         \
  X(cudaErrorUnsupportedLimit, 215, "limit is not supported on this architecture")                 \
  X(cudaErrorDeviceAlreadyInUse, 216,                                                              \
    "exclusive-thread device already in use by a different thread")                                \
  X(cudaErrorSharedObjectSymbolNotFound, 302, "shared object symbol not found")                    \
  X(cudaErrorSharedObjectInitFailed, 303, "shared object initialization failed")                   \
  X(cudaErrorOperatingSystem, 304, "OS call failed or operation not supported on this OS")         \
  X(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")                                \
  X(cudaErrorIllegalState, 401, "the operation cannot be performed in the present state")          \
  X(cudaErrorNotReady, 600, "device not ready")                                                    \
  X(cudaErrorIllegalAddress, 700, "an illegal memory access was encountered")                      \
  X(cudaErrorLaunchOutOfResources, 701, "too many resources requested for launch")                 \
  X(cudaErrorLaunchTimeout, 702, "the launch timed out and was terminated")                        \
  X(cudaErrorPeerAccessAlreadyEnabled, 704, "peer access is already enabled")                      \
  X(cudaErrorPeerAccessNotEnabled, 705, "peer access has not been enabled")                        \
  X(cudaErrorSetOnActiveProcess, 708, "cannot set while device is active in this process")         \
  X(cudaErrorAssert, 710, "device-side assert triggered")                                          \
  X(cudaErrorTooManyPeers, 711, "peer mapping resources exhausted")                                \
  X(cudaErrorHostMemoryAlreadyRegistered, 712,                                                     \
    "part or all of the requested memory range is already mapped")                                 \
  X(cudaErrorHostMemoryNotRegistered, 713,                                                         \
    "pointer does not correspond to a registered memory region")                                   \
  X(cudaErrorMisalignedAddress, 716, "misaligned address")                                         \
  X(cudaErrorLaunchFailure, 719, "unspecified launch failure")                                     \
  X(cudaErrorCooperativeLaunchTooLarge, 720, "too many blocks in cooperative launch")              \
  X(cudaErrorNotPermitted, 800, "operation not permitted")                                         \
  X(cudaErrorNotSupported, 801, "operation not supported")                                         \
  X(cudaErrorSystemNotReady, 802, "system not yet initialized")                                    \
  X(cudaErrorInvalidClusterSize, 912, "cluster misconfiguration")                                  \
  X(cudaErrorExternalDevice, 911, "an async error has occured in external entity outside of CUDA") \
  X(cudaErrorUnknown, 999, "unknown error")                                                        \
  X(cudaErrorApiFailureBase, 10000, "api failure base")

#define SIM_ERROR(name, value, text) name = value,
typedef enum cudaError { SIM_ERRORS(SIM_ERROR) } cudaError_t;
#undef SIM_ERROR

// --- types and constants -------------------------------------------------------------------------

enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
struct CUevent_st;
typedef CUevent_st* cudaEvent_t;
constexpr cudaStream_t cudaStreamLegacy = nullptr, cudaStreamPerThread = nullptr;
constexpr unsigned cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2,
                   cudaEventInterprocess = 4;
constexpr unsigned cudaStreamDefault = 0, cudaStreamNonBlocking = 1;
constexpr unsigned cudaHostAllocDefault = 0, cudaHostAllocPortable = 1, cudaHostAllocMapped = 2,
                   cudaHostAllocWriteCombined = 4;
constexpr unsigned cudaHostRegisterDefault = 0, cudaHostRegisterPortable = 1,
                   cudaHostRegisterMapped = 2;
constexpr unsigned cudaMemAttachGlobal = 1, cudaMemAttachHost = 2, cudaMemAttachSingle = 4;
constexpr unsigned cudaDeviceScheduleAuto = 0, cudaDeviceScheduleSpin = 1,
                   cudaDeviceScheduleYield = 2, cudaDeviceScheduleBlockingSync = 4,
                   cudaDeviceBlockingSync = 4, cudaDeviceMapHost = 8,
                   cudaDeviceLmemResizeToMax = 16;
constexpr int cudaCpuDeviceId = -1, cudaInvalidDeviceId = -2;
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9,
  cudaFuncAttributeNonPortableClusterSizeAllowed = 13
};
enum cudaLaunchAttributeID {
  cudaLaunchAttributeIgnore = 0,
  cudaLaunchAttributeAccessPolicyWindow = 1,
  cudaLaunchAttributeCooperative = 2,
  cudaLaunchAttributeClusterDimension = 4,
  cudaLaunchAttributeClusterSchedulingPolicyPreference = 5,
  cudaLaunchAttributeProgrammaticStreamSerialization = 6,
  cudaLaunchAttributePriority = 8,
  cudaLaunchAttributePreferredClusterDimension = 11
};
union cudaLaunchAttributeValue {
  int cooperative, priority, programmaticStreamSerializationAllowed;
  struct {
    unsigned x, y, z;
  } clusterDim, preferredClusterDim;
};
struct cudaLaunchAttribute;
namespace sim::any {
/// The host's compiler normally constructs a returned struct in place; here it is copied
/// (-fno-elide-constructors), and a configuration's pointer to attributes in the same struct must
/// follow. Both parts report their copies, in either order.
struct AttributePointer {
  cudaLaunchAttribute* to;
  AttributePointer(cudaLaunchAttribute* p = nullptr) : to(p) {}
  AttributePointer(const AttributePointer&);
  AttributePointer& operator=(const AttributePointer&);
  operator cudaLaunchAttribute*() const { return to; }
  cudaLaunchAttribute* operator->() const { return to; }
};
struct CopiedAttribute {
  CopiedAttribute() = default;
  CopiedAttribute(const CopiedAttribute&);
  CopiedAttribute& operator=(const CopiedAttribute&);
};
}  // namespace sim::any
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  cudaLaunchAttributeValue val;
  [[no_unique_address]] sim::any::CopiedAttribute copied;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  sim::any::AttributePointer attrs;
  unsigned numAttrs;
};
enum cudaFuncCache {
  cudaFuncCachePreferNone,
  cudaFuncCachePreferShared,
  cudaFuncCachePreferL1,
  cudaFuncCachePreferEqual
};
enum cudaSharedMemConfig {
  cudaSharedMemBankSizeDefault,
  cudaSharedMemBankSizeFourByte,
  cudaSharedMemBankSizeEightByte
};
enum cudaRoundMode { cudaRoundNearest, cudaRoundZero, cudaRoundPosInf, cudaRoundMinInf };
enum cudaSharedCarveout {
  cudaSharedmemCarveoutDefault = -1,
  cudaSharedmemCarveoutMaxL1 = 0,
  cudaSharedmemCarveoutMaxShared = 100
};
enum cudaLimit {
  cudaLimitStackSize,
  cudaLimitPrintfFifoSize,
  cudaLimitMallocHeapSize,
  cudaLimitPersistingL2CacheSize = 6
};
enum cudaAccessProperty {
  cudaAccessPropertyNormal,
  cudaAccessPropertyStreaming,
  cudaAccessPropertyPersisting
};
struct cudaAccessPolicyWindow {
  void* base_ptr;
  size_t num_bytes;
  float hitRatio;
  cudaAccessProperty hitProp, missProp;
};
enum cudaStreamAttrID { cudaStreamAttributeAccessPolicyWindow = 1 };
union cudaStreamAttrValue {
  cudaAccessPolicyWindow accessPolicyWindow;
};
enum cudaDeviceP2PAttr {
  cudaDevP2PAttrPerformanceRank = 1,
  cudaDevP2PAttrAccessSupported,
  cudaDevP2PAttrNativeAtomicSupported,
  cudaDevP2PAttrCudaArrayAccessSupported
};
enum cudaComputeMode {
  cudaComputeModeDefault,
  cudaComputeModeExclusive,
  cudaComputeModeProhibited,
  cudaComputeModeExclusiveProcess
};
enum cudaMemoryAdvise {
  cudaMemAdviseSetReadMostly = 1,
  cudaMemAdviseUnsetReadMostly,
  cudaMemAdviseSetPreferredLocation,
  cudaMemAdviseUnsetPreferredLocation,
  cudaMemAdviseSetAccessedBy,
  cudaMemAdviseUnsetAccessedBy
};
/// Each attribute's number, and its value for the properties `p`, converted to int.
#define SIM_ATTRIBUTES(X)                                                          \
  X(cudaDevAttrMaxThreadsPerBlock, 1, p.maxThreadsPerBlock)                        \
  X(cudaDevAttrMaxBlockDimX, 2, p.maxThreadsDim[0])                                \
  X(cudaDevAttrMaxBlockDimY, 3, p.maxThreadsDim[1])                                \
  X(cudaDevAttrMaxBlockDimZ, 4, p.maxThreadsDim[2])                                \
  X(cudaDevAttrMaxGridDimX, 5, p.maxGridSize[0])                                   \
  X(cudaDevAttrMaxGridDimY, 6, p.maxGridSize[1])                                   \
  X(cudaDevAttrMaxGridDimZ, 7, p.maxGridSize[2])                                   \
  X(cudaDevAttrMaxSharedMemoryPerBlock, 8, p.sharedMemPerBlock)                    \
  X(cudaDevAttrTotalConstantMemory, 9, p.totalConstMem)                            \
  X(cudaDevAttrWarpSize, 10, p.warpSize)                                           \
  X(cudaDevAttrMaxPitch, 11, p.memPitch)                                           \
  X(cudaDevAttrMaxRegistersPerBlock, 12, p.regsPerBlock)                           \
  X(cudaDevAttrClockRate, 13, p.clockRate)                                         \
  X(cudaDevAttrTextureAlignment, 14, p.textureAlignment)                           \
  X(cudaDevAttrGpuOverlap, 15, 1)                                                  \
  X(cudaDevAttrMultiProcessorCount, 16, p.multiProcessorCount)                     \
  X(cudaDevAttrKernelExecTimeout, 17, 0)                                           \
  X(cudaDevAttrIntegrated, 18, 0)                                                  \
  X(cudaDevAttrCanMapHostMemory, 19, 1)                                            \
  X(cudaDevAttrComputeMode, 20, cudaComputeModeDefault)                            \
  X(cudaDevAttrConcurrentKernels, 31, 1)                                           \
  X(cudaDevAttrEccEnabled, 32, p.ECCEnabled)                                       \
  X(cudaDevAttrPciBusId, 33, p.pciBusID)                                           \
  X(cudaDevAttrPciDeviceId, 34, p.pciDeviceID)                                     \
  X(cudaDevAttrTccDriver, 35, p.tccDriver)                                         \
  X(cudaDevAttrMemoryClockRate, 36, p.memoryClockRate)                             \
  X(cudaDevAttrGlobalMemoryBusWidth, 37, p.memoryBusWidth)                         \
  X(cudaDevAttrL2CacheSize, 38, p.l2CacheSize)                                     \
  X(cudaDevAttrMaxThreadsPerMultiProcessor, 39, p.maxThreadsPerMultiProcessor)     \
  X(cudaDevAttrAsyncEngineCount, 40, p.asyncEngineCount)                           \
  X(cudaDevAttrUnifiedAddressing, 41, 1)                                           \
  X(cudaDevAttrPciDomainId, 50, p.pciDomainID)                                     \
  X(cudaDevAttrComputeCapabilityMajor, 75, p.major)                                \
  X(cudaDevAttrComputeCapabilityMinor, 76, p.minor)                                \
  X(cudaDevAttrStreamPrioritiesSupported, 78, p.streamPrioritiesSupported)         \
  X(cudaDevAttrGlobalL1CacheSupported, 79, p.globalL1CacheSupported)               \
  X(cudaDevAttrLocalL1CacheSupported, 80, p.localL1CacheSupported)                 \
  X(cudaDevAttrMaxSharedMemoryPerMultiprocessor, 81, p.sharedMemPerMultiprocessor) \
  X(cudaDevAttrMaxRegistersPerMultiprocessor, 82, p.regsPerMultiprocessor)         \
  X(cudaDevAttrManagedMemory, 83, 1)                                               \
  X(cudaDevAttrIsMultiGpuBoard, 84, 0)                                             \
  X(cudaDevAttrHostNativeAtomicSupported, 86, 0)                                   \
  X(cudaDevAttrPageableMemoryAccess, 88, 0)                                        \
  X(cudaDevAttrConcurrentManagedAccess, 89, 1)                                     \
  X(cudaDevAttrComputePreemptionSupported, 90, 1)                                  \
  X(cudaDevAttrCanUseHostPointerForRegisteredMem, 91, 0)                           \
  X(cudaDevAttrCooperativeLaunch, 95, 1)                                           \
  X(cudaDevAttrMaxSharedMemoryPerBlockOptin, 97, p.sharedMemPerBlockOptin)         \
  X(cudaDevAttrHostRegisterSupported, 99, 1)                                       \
  X(cudaDevAttrPageableMemoryAccessUsesHostPageTables, 100, 0)                     \
  X(cudaDevAttrDirectManagedMemAccessFromHost, 101, 0)                             \
  X(cudaDevAttrMaxBlocksPerMultiprocessor, 106, p.maxBlocksPerMultiProcessor)      \
  X(cudaDevAttrMaxPersistingL2CacheSize, 108, p.persistingL2CacheMaxSize)          \
  X(cudaDevAttrReservedSharedMemoryPerBlock, 111, p.reservedSharedMemPerBlock)     \
  X(cudaDevAttrMemoryPoolsSupported, 115, 1)                                       \
  X(cudaDevAttrClusterLaunch, 120, p.major >= 9)                                   \
  X(cudaDevAttrIpcEventSupport, 125, 0)
#define SIM_ATTRIBUTE(name, number, value) name = number,
enum cudaDeviceAttr { SIM_ATTRIBUTES(SIM_ATTRIBUTE) };
#undef SIM_ATTRIBUTE
struct cudaUUID_t {
  char bytes[16];
};
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  size_t totalGlobalMem, sharedMemPerBlock, memPitch, totalConstMem, textureAlignment,
      texturePitchAlignment, surfaceAlignment, sharedMemPerMultiprocessor, sharedMemPerBlockOptin,
      reservedSharedMemPerBlock;
  int regsPerBlock, warpSize, maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], clockRate,
      major, minor, deviceOverlap, multiProcessorCount, kernelExecTimeoutEnabled, integrated,
      canMapHostMemory, computeMode, maxTexture1D, maxTexture2D[2], maxTexture3D[3],
      maxTexture1DLayered[2], maxTexture2DLayered[3], concurrentKernels, ECCEnabled, pciBusID,
      pciDeviceID, pciDomainID, tccDriver, asyncEngineCount, unifiedAddressing, memoryClockRate,
      memoryBusWidth, l2CacheSize, persistingL2CacheMaxSize, maxThreadsPerMultiProcessor,
      streamPrioritiesSupported, globalL1CacheSupported, localL1CacheSupported,
      regsPerMultiprocessor, managedMemory, isMultiGpuBoard, multiGpuBoardGroupID,
      hostNativeAtomicSupported, singleToDoublePrecisionPerfRatio, pageableMemoryAccess,
      concurrentManagedAccess, computePreemptionSupported, canUseHostPointerForRegisteredMem,
      cooperativeLaunch, cooperativeMultiDeviceLaunch, pageableMemoryAccessUsesHostPageTables,
      directManagedMemAccessFromHost, maxBlocksPerMultiProcessor, accessPolicyMaxWindowSize,
      memoryPoolsSupported;
};
struct cudaFuncAttributes {
  size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
  int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion, cacheModeCA,
      maxDynamicSharedSizeBytes, preferredShmemCarveout;
};
enum cudaMemoryType {
  cudaMemoryTypeUnregistered,
  cudaMemoryTypeHost,
  cudaMemoryTypeDevice,
  cudaMemoryTypeManaged
};
struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
  void *devicePointer, *hostPointer;
};
typedef void (*cudaStreamCallback_t)(cudaStream_t, cudaError_t, void*);
typedef void (*cudaHostFn_t)(void*);
typedef struct CUgraph_st *cudaGraph_t, *cudaGraphExec_t;
typedef struct CUgraphNode_st* cudaGraphNode_t;
struct cudaKernelNodeParams {
  void* func;
  dim3 gridDim, blockDim;
  unsigned sharedMemBytes;
  void **kernelParams, **extra;
};
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal,
  cudaStreamCaptureModeThreadLocal,
  cudaStreamCaptureModeRelaxed
};
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };

// --- calls ---------------------------------------------------------------------------------------

namespace sim::any {
/// A call that only returns a value.
cudaError_t given(auto* out, auto value) {
  *out = value;
  return cudaSuccess;
}
/// The toolkit of the modelled runtime: CUDART_VERSION.
int toolkit_version();

}  // namespace sim::any

extern "C" {
const char* cudaGetErrorString(cudaError_t);
const char* cudaGetErrorName(cudaError_t);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();

cudaError_t cudaSetDevice(int);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp*, int device);
cudaError_t cudaDeviceGetAttribute(int*, cudaDeviceAttr, int device);
cudaError_t cudaDeviceSetLimit(cudaLimit, size_t);
cudaError_t cudaDeviceGetLimit(size_t*, cudaLimit);
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr, int from, int to);
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned);
cudaError_t cudaDeviceDisablePeerAccess(int);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);

// Calls with a constant effect. Compiled once: a kernel that calls one is recognised by its symbol.
#ifndef SIM_TELLS
#define SIM_TELLS(call, value) cudaError_t call;
#define SIM_NOTHING(call) cudaError_t call;
#define SIM_WAITS(call) cudaError_t call;
#endif
SIM_TELLS(cudaGetDevice(int* out), 0)
SIM_TELLS(cudaGetDeviceCount(int* out), 1)
SIM_TELLS(cudaChooseDevice(int* out, const cudaDeviceProp*), 0)
SIM_TELLS(cudaDeviceCanAccessPeer(int* out, int, int), 0)
SIM_TELLS(cudaDeviceGetCacheConfig(cudaFuncCache* out), cudaFuncCachePreferNone)
SIM_TELLS(cudaDeviceGetSharedMemConfig(cudaSharedMemConfig* out), cudaSharedMemBankSizeFourByte)
SIM_TELLS(cudaDriverGetVersion(int* out), sim::any::toolkit_version())
SIM_TELLS(cudaRuntimeGetVersion(int* out), sim::any::toolkit_version())
SIM_WAITS(cudaDeviceReset())
SIM_NOTHING(cudaSetDeviceFlags(unsigned))
SIM_NOTHING(cudaInitDevice(int, unsigned, unsigned))
SIM_NOTHING(cudaDeviceSetCacheConfig(cudaFuncCache))
SIM_NOTHING(cudaDeviceSetSharedMemConfig(cudaSharedMemConfig))
SIM_NOTHING(cudaProfilerStart())
SIM_NOTHING(cudaProfilerStop())
SIM_NOTHING(cudaHostRegister(void*, size_t, unsigned))
SIM_NOTHING(cudaHostUnregister(void*))
SIM_NOTHING(cudaMemPrefetchAsync(const void*, size_t, int, cudaStream_t = nullptr))
SIM_NOTHING(cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, int))
// A window of persisting L2 lines: a hint, which the L2 model ignores.
SIM_NOTHING(cudaStreamSetAttribute(cudaStream_t, cudaStreamAttrID, const cudaStreamAttrValue*))
SIM_NOTHING(cudaCtxResetPersistingL2Cache())
SIM_WAITS(cudaStreamQuery(cudaStream_t))
SIM_WAITS(cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned = 0))
SIM_NOTHING(cudaStreamAttachMemAsync(cudaStream_t, void*, size_t = 0,
                                     unsigned = cudaMemAttachSingle))
SIM_WAITS(cudaEventQuery(cudaEvent_t))
SIM_NOTHING(cudaGraphUpload(cudaGraphExec_t, cudaStream_t))
#undef SIM_TELLS
#undef SIM_NOTHING
#undef SIM_WAITS

cudaError_t cudaDeviceSynchronize();
cudaError_t cudaStreamSynchronize(cudaStream_t);
cudaError_t cudaMalloc(void**, size_t);
cudaError_t cudaMallocManaged(void**, size_t, unsigned flags = cudaMemAttachGlobal);
cudaError_t cudaMallocHost(void**, size_t);
cudaError_t cudaHostAlloc(void**, size_t, unsigned flags);
cudaError_t cudaHostGetDevicePointer(void**, void*, unsigned flags);
cudaError_t cudaMallocAsync(void**, size_t, cudaStream_t);
cudaError_t cudaMallocPitch(void**, size_t* pitch, size_t width, size_t height);
cudaError_t cudaFree(void*);
cudaError_t cudaFreeAsync(void*, cudaStream_t);
cudaError_t cudaFreeHost(void*);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes*, const void*);
cudaError_t cudaMemcpy(void*, const void*, size_t, cudaMemcpyKind);
cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t = nullptr);
cudaError_t cudaMemcpyPeer(void*, int, const void*, int, size_t);
cudaError_t cudaMemcpyPeerAsync(void*, int, const void*, int, size_t, cudaStream_t = nullptr);
cudaError_t cudaMemcpy2D(void*, size_t to_pitch, const void*, size_t from_pitch, size_t width,
                         size_t height, cudaMemcpyKind);
cudaError_t cudaMemcpy2DAsync(void*, size_t to_pitch, const void*, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind, cudaStream_t = nullptr);
cudaError_t cudaMemset(void*, int, size_t);
cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t = nullptr);
cudaError_t cudaMemset2D(void*, size_t pitch, int, size_t width, size_t height);
cudaError_t cudaMemset2DAsync(void*, size_t pitch, int, size_t width, size_t height,
                              cudaStream_t = nullptr);

cudaError_t cudaStreamCreate(cudaStream_t*);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t*, unsigned);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t*, unsigned, int);
cudaError_t cudaStreamDestroy(cudaStream_t);
cudaError_t cudaStreamAddCallback(cudaStream_t, cudaStreamCallback_t, void*, unsigned flags);
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t, void*);
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* kernel, void** args);

cudaError_t cudaEventCreate(cudaEvent_t*);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, unsigned);
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t = nullptr);
cudaError_t cudaEventSynchronize(cudaEvent_t);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t);
cudaError_t cudaEventDestroy(cudaEvent_t);

// A graph holds the work captured from streams and the added nodes, and runs it in that order.
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode);
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*);
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus*);
cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*, size_t*);
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t*, cudaGraph_t, unsigned long long = 0);
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t);
cudaError_t cudaGraphCreate(cudaGraph_t*, unsigned flags);
cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t*, cudaGraph_t, const cudaGraphNode_t* after,
                                   size_t afters, const cudaKernelNodeParams*);
cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t*, cudaGraph_t, const cudaGraphNode_t* after,
                                       size_t afters, cudaGraph_t child);
cudaError_t cudaGraphDestroy(cudaGraph_t);
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                        unsigned long long flags = 0) {
  return cudaGraphInstantiateWithFlags(exec, graph, flags);
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, cudaGraphNode_t*,
                                        char*, size_t) {
  return cudaGraphInstantiateWithFlags(exec, graph);
}
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return cudaGraphDestroy(exec); }

inline cudaError_t cudaThreadSynchronize() { return cudaDeviceSynchronize(); }
inline cudaError_t cudaThreadExit() { return cudaDeviceReset(); }

// --- typed versions ------------------------------------------------------------------------------

#define SIM_TYPED(call, parameters, ...)                   \
  template <class T>                                       \
  cudaError_t call(T** p, SIM_REST parameters) {           \
    return call(reinterpret_cast<void**>(p), __VA_ARGS__); \
  }
#define SIM_REST(...) __VA_ARGS__
SIM_TYPED(cudaMalloc, (size_t bytes), bytes)
SIM_TYPED(cudaMallocManaged, (size_t bytes, unsigned flags = cudaMemAttachGlobal), bytes, flags)
SIM_TYPED(cudaMallocHost, (size_t bytes, unsigned = cudaHostAllocDefault), bytes)
SIM_TYPED(cudaHostAlloc, (size_t bytes, unsigned flags), bytes, flags)
SIM_TYPED(cudaHostGetDevicePointer, (void* host, unsigned flags), host, flags)
SIM_TYPED(cudaMallocAsync, (size_t bytes, cudaStream_t stream), bytes, stream)
SIM_TYPED(cudaMallocPitch, (size_t * pitch, size_t width, size_t height), pitch, width, height)
#undef SIM_TYPED
inline cudaError_t cudaEventCreate(cudaEvent_t* event, unsigned flags) {
  return cudaEventCreateWithFlags(event, flags);
}
inline cudaError_t cudaDeviceGetAttribute(int* value, int attribute, int device) {
  return cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(attribute), device);
}

namespace sim::any {

/// `Naming("d_x").cudaMalloc(...)`: what scripts/sim makes of cudaMalloc, so that tables and
/// findings name the buffer after the variable that it is assigned to.
class Naming {
 public:
  explicit Naming(const char* name) : name_(name) {}
#define SIM_NAMED(call, parameters, ...)               \
  template <class T>                                   \
  cudaError_t call(T** p, SIM_REST parameters) const { \
    return named(p, ::call(p, __VA_ARGS__));           \
  }
  SIM_NAMED(cudaMalloc, (size_t bytes), bytes)
  SIM_NAMED(cudaMallocManaged, (size_t bytes, unsigned flags = cudaMemAttachGlobal), bytes, flags)
  SIM_NAMED(cudaMallocAsync, (size_t bytes, cudaStream_t stream), bytes, stream)
  SIM_NAMED(cudaMallocPitch, (size_t * pitch, size_t width, size_t height), pitch, width, height)
  SIM_NAMED(cudaMallocHost, (size_t bytes, unsigned = cudaHostAllocDefault), bytes)
  SIM_NAMED(cudaHostAlloc, (size_t bytes, unsigned flags), bytes, flags)
#undef SIM_NAMED
#undef SIM_REST

 private:
  template <class T>
  cudaError_t named(T** p, cudaError_t status) const {
    if (status == cudaSuccess) give(const_cast<void*>(static_cast<const volatile void*>(*p)));
    return status;
  }
  void give(void* p) const;
  const char* name_;
};

}  // namespace sim::any

// --- variables in device memory ------------------------------------------------------------------

namespace sim::any {
/// A call that names a device variable.
struct SymbolCall {
  const char* name;
  const volatile void* symbol;
  size_t size;  ///< of the variable
  Where where;
};
template <class T>
SymbolCall symbol_call(const char* name, const T& symbol, Where where) {
  size_t size = SIZE_MAX;  // `extern __device__ int a[];` does not give it
  if constexpr (!std::is_unbounded_array_v<T>) size = sizeof(T);
  return {name, std::addressof(symbol), size, where};
}
/// The variable's device address.
cudaError_t find_symbol(void** p, const SymbolCall&);
/// Copies between `host` and the bytes [offset, offset + bytes) of the variable.
cudaError_t copy_symbol(const SymbolCall&, const void* host, bool to_symbol, size_t bytes,
                        size_t offset, cudaMemcpyKind, bool in_stream);
}  // namespace sim::any
cudaError_t cudaGetSymbolAddress(void** p, const auto& symbol, SIM_HERE) {
  return sim::any::find_symbol(p, sim::any::symbol_call("cudaGetSymbolAddress", symbol, where));
}
template <class T>
cudaError_t cudaGetSymbolSize(size_t* bytes, const T& symbol, SIM_HERE) {
  void* unused;
  *bytes = sizeof(T);
  return sim::any::find_symbol(&unused, sim::any::symbol_call("cudaGetSymbolSize", symbol, where));
}
cudaError_t cudaMemcpyToSymbol(const auto& symbol, const void* from, size_t bytes,
                               size_t offset = 0, cudaMemcpyKind kind = cudaMemcpyHostToDevice,
                               SIM_HERE) {
  const auto call = sim::any::symbol_call("cudaMemcpyToSymbol", symbol, where);
  return sim::any::copy_symbol(call, from, true, bytes, offset, kind, false);
}
cudaError_t cudaMemcpyFromSymbol(void* to, const auto& symbol, size_t bytes, size_t offset = 0,
                                 cudaMemcpyKind kind = cudaMemcpyDeviceToHost, SIM_HERE) {
  const auto call = sim::any::symbol_call("cudaMemcpyFromSymbol", symbol, where);
  return sim::any::copy_symbol(call, to, false, bytes, offset, kind, false);
}
cudaError_t cudaMemcpyToSymbolAsync(const auto& symbol, const void* from, size_t bytes,
                                    size_t offset = 0, cudaMemcpyKind kind = cudaMemcpyHostToDevice,
                                    cudaStream_t = nullptr, SIM_HERE) {
  const auto call = sim::any::symbol_call("cudaMemcpyToSymbolAsync", symbol, where);
  return sim::any::copy_symbol(call, from, true, bytes, offset, kind, true);
}
cudaError_t cudaMemcpyFromSymbolAsync(void* to, const auto& symbol, size_t bytes, size_t offset = 0,
                                      cudaMemcpyKind kind = cudaMemcpyDeviceToHost,
                                      cudaStream_t = nullptr, SIM_HERE) {
  const auto call = sim::any::symbol_call("cudaMemcpyFromSymbolAsync", symbol, where);
  return sim::any::copy_symbol(call, to, false, bytes, offset, kind, true);
}

// --- kernels as values ---------------------------------------------------------------------------

namespace sim::any {

/// A kernel's argument at `p`; for a reference its address is there.
template <class P>
auto argument_at(void* p) {
  using T = std::remove_reference_t<P>;
  if constexpr (std::is_reference_v<P>) {
    return Reference<T>{*static_cast<T**>(p)};
  } else {
    return Argument<std::remove_const_t<T>>(*static_cast<std::remove_const_t<T>*>(p));
  }
}
/// Blocks of this kind that an SM of the modelled GPU holds.
int blocks_per_sm(int threads, size_t smem);

/// The linker's name.
const char* name_of_kernel(const void*);
template <class... P, size_t... i>
bool launch_packed(const char* name, void (*kernel)(P...), const Shape& shape, bool together,
                   void** args, std::index_sequence<i...>) {
  const auto call = [kernel](auto leave, auto&... a) __attribute__((no_sanitize_thread)) {
    kernel(passed(a)...), leave();
  };
  return launch(name, shape, together, call, argument_at<P>(args[i])...);
}
/// What scripts/sim makes of cudaLaunchKernel and cudaLaunchCooperativeKernel.
template <class... P>
cudaError_t launch_kernel(const char* name, bool together, void (*kernel)(P...), dim3 grid,
                          dim3 block, void** args, size_t smem = 0, cudaStream_t stream = nullptr,
                          SIM_HERE) {
  return launch_packed(name, kernel, {grid, block, smem, stream, where}, together, args,
                       std::index_sequence_for<P...>())
             ? cudaSuccess
             : cudaPeekAtLastError();
}

/// The same for cudaLaunchKernelEx.
Shape shape_of(const cudaLaunchConfig_t&, bool* together, Where);
template <class... P>
cudaError_t launch_extended(const char* name, Where where, const cudaLaunchConfig_t* config,
                            void (*kernel)(P...), std::type_identity_t<P>... args) {
  bool together = false;
  const Shape shape = shape_of(*config, &together, where);
  void* places[] = {(void*)std::addressof(args)..., nullptr};
  void* each[] = {(void*)std::addressof(args)..., nullptr};
  size_t i = 0;
  ((each[i] = std::is_reference_v<P> ? &places[i] : each[i], ++i), ...);
  return launch_packed(name, kernel, shape, together, each, std::index_sequence_for<P...>())
             ? cudaSuccess
             : cudaPeekAtLastError();
}

/// The same for cudaLaunchKernelExC.
struct Launching {
  Where where;
  explicit Launching(Where here = Where::here()) : where(here) {}
  cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* kernel, void** args) const;
};

/// Launches a kernel of unknown type.
using Launcher = bool (*)(const void* kernel, const Shape&, bool together, void** args);
void note_kernel(const void* kernel, Launcher);
/// What scripts/sim makes of (void*)kernel.
inline void* kernel_address(const void* kernel) { return const_cast<void*>(kernel); }
template <class... P>
void* kernel_address(void (*kernel)(P...)) {
  const auto address = reinterpret_cast<void*>(kernel);
  note_kernel(address, [](const void* k, const Shape& shape, bool together, void** args) {
    return launch_packed(name_of_kernel(k), reinterpret_cast<void (*)(P...)>(const_cast<void*>(k)),
                         shape, together, args, std::index_sequence_for<P...>());
  });
  return address;
}

/// cudaFuncSetAttribute() for any kernel.
cudaError_t set_attribute(cudaFuncAttribute, int value);

}  // namespace sim::any

cudaError_t cudaFuncSetAttribute(auto*, cudaFuncAttribute attribute, int value) {
  return sim::any::set_attribute(attribute, value);
}
cudaError_t cudaFuncSetCacheConfig(auto*, cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaFuncSetSharedMemConfig(auto*, cudaSharedMemConfig) { return cudaSuccess; }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, auto*) {
  *a = {};
  a->maxThreadsPerBlock = 1024;
  a->numRegs = 32;
  a->ptxVersion = a->binaryVersion = 90;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, auto*, int threads,
                                                          size_t smem) {
  return sim::any::given(blocks, sim::any::blocks_per_sm(threads, smem));
}
cudaError_t cudaOccupancyMaxPotentialBlockSize(int* grid, int* block, auto*, size_t smem = 0,
                                               int limit = 0) {
  *block = limit > 0 && limit < 1024 ? limit : 1024;
  int sms = 0;
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0);
  return sim::any::given(grid, sms * sim::any::blocks_per_sm(*block, smem));
}

// --- memory of other processes: declared, and refused --------------------------------------------

struct cudaIpcMemHandle_t {
  char reserved[64];
};
enum { cudaIpcMemLazyEnablePeerAccess = 1 };
inline cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) {
  sim::any::unsupported("memory of other processes: cudaIpcGetMemHandle()");
}
inline cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) {
  sim::any::unsupported("memory of other processes: cudaIpcOpenMemHandle()");
}
inline cudaError_t cudaIpcCloseMemHandle(void*) {
  sim::any::unsupported("memory of other processes: cudaIpcCloseMemHandle()");
}

// --- textures of linear memory, as references ----------------------------------------------------

enum cudaTextureReadMode { cudaReadModeElementType };
struct cudaChannelFormatDesc {};
template <class T, int dimensions = 1, cudaTextureReadMode = cudaReadModeElementType>
requires(dimensions == 1) struct texture {
  const T* memory = nullptr;
  size_t count = 0;
  cudaChannelFormatDesc channelDesc;
};
template <class T>
cudaChannelFormatDesc cudaCreateChannelDesc() {
  return {};
}
template <class T>
cudaError_t cudaBindTexture(size_t* offset, texture<T>& t, const void* p,
                            size_t bytes = ~size_t{}) {
  if (offset) *offset = 0;
  t.memory = static_cast<const T*>(p);
  t.count = bytes / sizeof(T);
  return cudaSuccess;
}
template <class T>
cudaError_t cudaBindTexture(size_t* offset, texture<T>& t, const void* p,
                            const cudaChannelFormatDesc&, size_t bytes = ~size_t{}) {
  return cudaBindTexture(offset, t, p, bytes);
}
template <class T>
cudaError_t cudaUnbindTexture(texture<T>& t) {
  t.memory = nullptr, t.count = 0;
  return cudaSuccess;
}
namespace sim::any {
// The reference itself is a host variable.
template <class T>
[[gnu::no_sanitize_thread, gnu::noinline]] const T* texel(const texture<T>& t, int i) {
  return i >= 0 && static_cast<size_t>(i) < t.count ? t.memory + i : nullptr;
}
}  // namespace sim::any
/// Outside its memory a texture is zero.
template <class T>
T tex1Dfetch(const texture<T>& t, int i) {
  const T* p = sim::any::texel(t, i);
  return p ? *p : T{};
}

// CUDA's runtime API for any program. An error is a finding and a status; the program continues.
#define FA_ANY_PROGRAM
#define SIM_TELLS(call, value) \
  cudaError_t call { return sim::any::given(out, value); }
#define SIM_NOTHING(call) \
  cudaError_t call { return cudaSuccess; }
#define SIM_WAITS(call)        \
  cudaError_t call {           \
    sim::no_kernel_in_front(); \
    return cudaSuccess;        \
  }
namespace sim {
void no_kernel_in_front();  // of sim.h, included below
}
#include "common/sim/any/runtime_api.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "common/dialect/errors.h"
#include "common/sim/any/session.h"
#include "common/sim/memory/device_memory.h"
#include "common/sim/messages/messages.h"
#include "common/sim/scheduler/residency.h"

struct CUevent_st {
  bool timed = true;
  double seconds = 0;
  bool recorded = false;
};
struct CUstream_st {};
struct CUgraph_st {
  sim::any::Work work;
};

namespace sim::any {

namespace {
struct KernelOfAddress {
  std::string name;
  Launcher launcher;
};
std::map<const void*, KernelOfAddress>& kernels() {
  static auto& all = *new std::map<const void*, KernelOfAddress>;
  return all;
}
}  // namespace

void note_kernel(const void* kernel, Launcher launcher) {
  std::lock_guard lock(device_in_use());
  kernels()[kernel] = {kernel_name({kernel, {}, nullptr, nullptr, 0}), launcher};
}
const char* name_of_kernel(const void* kernel) { return kernels()[kernel].name.c_str(); }

namespace {
// The move of a configuration's pointer, or an attribute; the same distance means the same struct.
struct Copy {
  uintptr_t from = 0, to = 0;
};
constexpr size_t kKept = 16;  // CUDA has about as many attributes
thread_local Copy attributes_copied[kKept], pointer_copied;
thread_local const cudaLaunchAttribute* pointer_value;
thread_local size_t attribute_copies = 0;

bool go_together(const Copy& attribute, const Copy& pointer, const cudaLaunchAttribute* value) {
  return attribute.from == reinterpret_cast<uintptr_t>(value) && attribute.from != 0 &&
         attribute.to - attribute.from == pointer.to - pointer.from;
}

uintptr_t address_of(const CopiedAttribute* part) {
  return reinterpret_cast<uintptr_t>(part) - offsetof(cudaLaunchAttribute, copied);
}
}  // namespace

AttributePointer& AttributePointer::operator=(const AttributePointer& other) {
  pointer_value = to = other.to;
  pointer_copied = {reinterpret_cast<uintptr_t>(&other), reinterpret_cast<uintptr_t>(this)};
  for (const Copy& attribute : attributes_copied) {
    if (go_together(attribute, pointer_copied, to)) {
      to = reinterpret_cast<cudaLaunchAttribute*>(attribute.to);
      break;
    }
  }
  return *this;
}
AttributePointer::AttributePointer(const AttributePointer& other) { *this = other; }

CopiedAttribute& CopiedAttribute::operator=(const CopiedAttribute& other) {
  const Copy copy{address_of(&other), address_of(this)};
  attributes_copied[attribute_copies++ % kKept] = copy;
  if (go_together(copy, pointer_copied, pointer_value)) {
    reinterpret_cast<AttributePointer*>(pointer_copied.to)->to =
        reinterpret_cast<cudaLaunchAttribute*>(copy.to);
    pointer_copied = {};
  }
  return *this;
}
CopiedAttribute::CopiedAttribute(const CopiedAttribute& other) { *this = other; }

Shape shape_of(const cudaLaunchConfig_t& config, bool* together, Where where) {
  Shape shape(config.gridDim, config.blockDim, config.dynamicSmemBytes, config.stream, where);
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const cudaLaunchAttribute& a = config.attrs[i];
    if (a.id == cudaLaunchAttributeCooperative) *together = a.val.cooperative != 0;
    if (a.id == cudaLaunchAttributeProgrammaticStreamSerialization) {
      shape.early = a.val.programmaticStreamSerializationAllowed != 0;
    }
    if (a.id != cudaLaunchAttributeClusterDimension) continue;
    shape.cluster = {a.val.clusterDim.x, a.val.clusterDim.y, a.val.clusterDim.z};
  }
  return shape;
}

}  // namespace sim::any

using sim::any::given, sim::any::note_finding, sim::any::session;

namespace {

cudaError_t last_error = cudaSuccess;

cudaError_t returned(cudaError_t e) {
  if (e != cudaSuccess) last_error = e;
  return e;
}

/// A refused call is a finding, at the line of `caller`: a pc, or a function that returns the line.
cudaError_t checked(const auto& caller, auto&& call) {
  std::lock_guard lock(sim::any::device_in_use());
  session();
  sim::any::undo_host_stores();
  try {
    call();
    return cudaSuccess;
  } catch (const fa::KernelStopped& e) {
    std::string place;
    if constexpr (requires { caller(); })
      place = caller();
    else
      place = sim::source_of(caller);
    for (const fa::Finding& f : e.findings) note_finding(f.kind, f.text + ", at " + place);
    return returned(cudaErrorInvalidValue);
  } catch (const fa::ResourceError& e) {
    std::fprintf(stderr, "sim: %s\n", e.what());
    sim::any::stop(3);
  }
}

cudaError_t allocate(void** p, size_t bytes, bool for_host) {
  if (!p) return returned(cudaErrorInvalidValue);
  bool room = true;
  const cudaError_t status = checked(nullptr, [&] {
    *p = bytes ? sim::allocate(bytes) : nullptr;
    room = *p || !bytes;
    if (*p && for_host) sim::share_with_host(*p);
    sim::any::watch_memory(bytes);
  });
  return room ? status : returned(cudaErrorMemoryAllocation);
}

/// \param pc the caller of the runtime
cudaError_t copy(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                 size_t height, cudaMemcpyKind kind, const void* pc) {
  return checked(pc, [&] {
    for (size_t i = 0; i < height; ++i) {
      sim::copy(static_cast<char*>(to) + i * to_pitch,
                static_cast<const char*>(from) + i * from_pitch, width,
                static_cast<sim::Way>(kind));
    }
    sim::any::look_at_copy(to, to_pitch, from, from_pitch, width, height, pc);
    const bool there = sim::is_device(to), here = sim::is_device(from);
    if (here != there) (here ? session().to_host : session().from_host) += width * height;
  });
}
#define SIM_CALLER __builtin_return_address(0)

/// Work that a stream orders: done at once, or kept for the graph being captured.
cudaError_t in_order(auto work) {
  if (!session().captured) return work();
  session().captured->push_back(work);
  return cudaSuccess;
}

}  // namespace

namespace sim::any {

// The oldest that supports the GPU; scripts/flash_steps/cuda_program.py has the macros.
int toolkit_version() { return session().gpu.arch_number() >= 100 ? 12080 : 12040; }

int blocks_per_sm(int threads, size_t smem) {
  return static_cast<int>(
      sim::blocks_per_sm(session().gpu.sm, static_cast<unsigned>(threads), smem, {}));
}

cudaError_t set_attribute(cudaFuncAttribute attribute, int value) {
  if (attribute == cudaFuncAttributeNonPortableClusterSizeAllowed && value) {
    session().large_clusters = true;
  }
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  Session& s = session();
  if (value < 0 || static_cast<size_t>(value) > s.gpu.block_shared_bytes()) {
    return returned(cudaErrorInvalidValue);
  }
  s.allowed_smem = std::max(s.allowed_smem, static_cast<size_t>(value));
  return cudaSuccess;
}

void keep_error(LaunchRefused::Why why) {
  using Why = LaunchRefused::Why;
  last_error = why == Why::shape               ? cudaErrorInvalidConfiguration
               : why == Why::registers         ? cudaErrorLaunchOutOfResources
               : why == Why::cluster           ? cudaErrorInvalidClusterSize
               : why == Why::too_many_together ? cudaErrorCooperativeLaunchTooLarge
                                               : cudaErrorInvalidValue;
}
void keep_illegal_address() { last_error = cudaErrorIllegalAddress; }

void Naming::give(void* p) const {
  if (p) name_buffer(p, name_);
}

}  // namespace sim::any

// --- errors --------------------------------------------------------------------------------------

#define SIM_ERROR_TEXT(name, value, text) \
  case name:                              \
    return text;
const char* cudaGetErrorString(cudaError_t e) {
  switch (e) { SIM_ERRORS(SIM_ERROR_TEXT) }
  return "unrecognized error code";
}
#define SIM_ERROR_NAME(name, value, text) \
  case name:                              \
    return #name;
const char* cudaGetErrorName(cudaError_t e) {
  switch (e) { SIM_ERRORS(SIM_ERROR_NAME) }
  return "unrecognized error code";
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }

// An error of a launch is returned by the call that waits for it.
static cudaError_t waited() {
  sim::no_kernel_in_front();
  return last_error == cudaErrorIllegalAddress ? last_error : cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return waited(); }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return waited(); }

// --- the device ----------------------------------------------------------------------------------

cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : returned(cudaErrorInvalidDevice);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (device != 0) return returned(cudaErrorInvalidDevice);
  const fa::GpuSpec& gpu = session().gpu;
  *p = {};
  std::snprintf(p->name, sizeof p->name, "simulated %s", gpu.name.c_str());
  p->major = gpu.arch_number() / 10;
  p->minor = gpu.arch_number() % 10;
  p->totalGlobalMem = static_cast<size_t>(gpu.memory_bytes);
  p->sharedMemPerBlock = 48 * 1024;
  p->sharedMemPerBlockOptin = gpu.block_shared_bytes();
  p->sharedMemPerMultiprocessor = gpu.sm.shared_bytes;
  p->reservedSharedMemPerBlock = gpu.sm.block_reserved_bytes;
  p->memPitch = 0x7fffffff;
  p->totalConstMem = 64 * 1024;
  p->textureAlignment = p->surfaceAlignment = 512;
  p->texturePitchAlignment = 32;
  p->regsPerBlock = p->regsPerMultiprocessor = static_cast<int>(gpu.sm.registers);
  p->warpSize = 32;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 0x7fffffff;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->multiProcessorCount = gpu.sms;
  p->maxThreadsPerMultiProcessor = static_cast<int>(gpu.sm.threads);
  p->maxBlocksPerMultiProcessor = static_cast<int>(gpu.sm.blocks);
  p->l2CacheSize = static_cast<int>(gpu.l2_bytes);
  // The clock and the bus width that give the data sheet's fp32 rate and bandwidth.
  const double clock = gpu.fp32_flops / (2.0 * 128 * gpu.sms);
  p->clockRate = static_cast<int>(clock / 1e3);
  p->memoryBusWidth = 5120;
  p->memoryClockRate = static_cast<int>(gpu.hbm_bytes_per_s / (2.0 * 5120 / 8) / 1e3);
  p->canMapHostMemory = p->unifiedAddressing = p->managedMemory = p->concurrentKernels = 1;
  p->concurrentManagedAccess = p->cooperativeLaunch = p->streamPrioritiesSupported = 1;
  p->globalL1CacheSupported = p->localL1CacheSupported = p->asyncEngineCount = 1;
  p->memoryPoolsSupported = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp p;
  if (cudaGetDeviceProperties(&p, device) != cudaSuccess) return cudaErrorInvalidDevice;
#define SIM_ATTRIBUTE(name, number, result) \
  case name:                                \
    return given(value, static_cast<int>(result));
  switch (attribute) { SIM_ATTRIBUTES(SIM_ATTRIBUTE) }
#undef SIM_ATTRIBUTE
  return returned(cudaErrorInvalidValue);
}
cudaError_t cudaDeviceGetLimit(size_t* bytes, cudaLimit limit) {
  return given(bytes, limit == cudaLimitStackSize        ? sim::options().stack_bytes
                      : limit == cudaLimitPrintfFifoSize ? size_t{1} << 20
                                                         : size_t{8} << 20);
}
cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t bytes) {
  if (limit == cudaLimitStackSize) {
    sim::options().stack_bytes = std::max(bytes, sim::options().stack_bytes);
  }
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  return given(greatest, -5);
}
cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr, int, int) {
  *value = 0;
  return returned(cudaErrorInvalidDevice);  // there is one device
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return returned(cudaErrorInvalidDevice); }
cudaError_t cudaDeviceDisablePeerAccess(int) { return returned(cudaErrorPeerAccessNotEnabled); }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = static_cast<size_t>(session().gpu.memory_bytes);
  return given(free, std::min(*total, sim::free_bytes()));
}

// --- memory --------------------------------------------------------------------------------------

cudaError_t cudaMalloc(void** p, size_t bytes) { return allocate(p, bytes, false); }
cudaError_t cudaMallocAsync(void** p, size_t bytes, cudaStream_t) {
  return allocate(p, bytes, false);
}
cudaError_t cudaMallocManaged(void** p, size_t bytes, unsigned) { return allocate(p, bytes, true); }
cudaError_t cudaMallocHost(void** p, size_t bytes) { return allocate(p, bytes, true); }
cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) { return allocate(p, bytes, true); }
cudaError_t cudaHostGetDevicePointer(void** p, void* host, unsigned) {
  if (!sim::is_device(host)) sim::any::unsupported("cudaHostGetDevicePointer of cudaHostRegister");
  return given(p, host);
}
cudaError_t cudaMallocPitch(void** p, size_t* pitch, size_t width, size_t height) {
  *pitch = (width + 511) / 512 * 512;
  return allocate(p, *pitch * height, false);
}
static cudaError_t free_at(void* p, const void* pc) {
  return checked(pc, [&] { sim::release(p); });
}
cudaError_t cudaFree(void* p) { return free_at(p, SIM_CALLER); }
cudaError_t cudaFreeAsync(void* p, cudaStream_t) { return free_at(p, SIM_CALLER); }
cudaError_t cudaFreeHost(void* p) { return free_at(p, SIM_CALLER); }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
  *a = {};
  if (!sim::is_device(p)) return cudaSuccess;
  a->type = sim::is_for_host(p) ? cudaMemoryTypeManaged : cudaMemoryTypeDevice;
  a->devicePointer = const_cast<void*>(p);
  if (sim::is_for_host(p)) a->hostPointer = const_cast<void*>(p);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return copy(to, 0, from, 0, bytes, 1, kind, SIM_CALLER);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t) {
  return in_order([=, pc = SIM_CALLER] { return copy(to, 0, from, 0, bytes, 1, kind, pc); });
}
cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, size_t bytes) {
  return copy(to, 0, from, 0, bytes, 1, cudaMemcpyDeviceToDevice, SIM_CALLER);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t) {
  return copy(to, 0, from, 0, bytes, 1, cudaMemcpyDeviceToDevice, SIM_CALLER);
}
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                         size_t width, size_t height, cudaMemcpyKind kind) {
  if (width > to_pitch || width > from_pitch) return returned(cudaErrorInvalidPitchValue);
  return copy(to, to_pitch, from, from_pitch, width, height, kind, SIM_CALLER);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t) {
  if (width > to_pitch || width > from_pitch) return returned(cudaErrorInvalidPitchValue);
  return in_order([=, pc = SIM_CALLER] {
    return copy(to, to_pitch, from, from_pitch, width, height, kind, pc);
  });
}
static cudaError_t fill(void* p, size_t pitch, int value, size_t width, size_t height,
                        const void* pc) {
  return checked(pc, [&] {
    for (size_t i = 0; i < height; ++i) sim::fill(static_cast<char*>(p) + i * pitch, value, width);
  });
}
cudaError_t cudaMemset(void* p, int value, size_t bytes) {
  return fill(p, 0, value, bytes, 1, SIM_CALLER);
}
cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t) {
  return in_order([=, pc = SIM_CALLER] { return fill(p, 0, value, bytes, 1, pc); });
}
cudaError_t cudaMemset2D(void* p, size_t pitch, int value, size_t width, size_t height) {
  return fill(p, pitch, value, width, height, SIM_CALLER);
}
cudaError_t cudaMemset2DAsync(void* p, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t) {
  return in_order([=, pc = SIM_CALLER] { return fill(p, pitch, value, width, height, pc); });
}

// --- variables -----------------------------------------------------------------------------------

namespace sim::any {

cudaError_t find_symbol(void** p, const SymbolCall& call) {
  session();
  *p = device_address(const_cast<const void*>(call.symbol));
  if (*p) return cudaSuccess;
  note_finding(fa::FaultKind::refused, std::string(call.name) + " at " + sim::at(call.where) +
                                           ": its symbol is no variable of the device");
  return returned(cudaErrorInvalidSymbol);
}

cudaError_t copy_symbol(const SymbolCall& call, const void* host, bool to_symbol, size_t bytes,
                        size_t offset, cudaMemcpyKind kind, bool in_stream) {
  void* begin = nullptr;
  if (const cudaError_t e = find_symbol(&begin, call); e != cudaSuccess) return e;
  if (offset > call.size || bytes > call.size - offset) {
    const std::string where = offset ? " at byte " + std::to_string(offset) : "";
    note_finding(fa::FaultKind::out_of_bounds,
                 std::string(call.name) + ": " + std::to_string(bytes) + " bytes" + where +
                     " do not lie inside " + variable_name(const_cast<const void*>(call.symbol)) +
                     ", " + std::to_string(call.size) + " bytes, at " + sim::at(call.where));
    return returned(cudaErrorInvalidValue);
  }
  const auto work = [=] {
    return checked([&] { return sim::at(call.where); },
                   [&] {
                     void* device = static_cast<char*>(begin) + offset;
                     if (to_symbol) {
                       sim::copy(device, host, bytes, static_cast<Way>(kind));
                     } else {
                       sim::copy(const_cast<void*>(host), device, bytes, static_cast<Way>(kind));
                     }
                   });
  };
  return in_stream ? in_order(work) : work();
}

}  // namespace sim::any

// --- streams and events --------------------------------------------------------------------------

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return given(stream, new CUstream_st); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return cudaStreamCreate(stream);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return cudaStreamCreate(stream);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return delete stream, cudaSuccess; }
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t call, void* data,
                                  unsigned) {
  return call(stream, cudaSuccess, data), cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t call, void* data) {
  return in_order([=] { return call(data), cudaSuccess; });
}
cudaError_t sim::any::Launching::cudaLaunchKernelExC(const cudaLaunchConfig_t* config,
                                                     const void* kernel, void** args) const {
  bool together = false;
  const sim::any::Shape shape = sim::any::shape_of(*config, &together, where);
  auto& all = sim::any::kernels();
  const auto found = all.find(kernel);
  if (found == all.end()) {
    sim::any::unsupported(
        "cudaLaunchKernelExC of a kernel whose name is not cast to void* in the text", where);
  }
  return found->second.launcher(kernel, shape, together, args) ? cudaSuccess
                                                               : cudaPeekAtLastError();
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** args) {
  return sim::any::Launching(sim::Where{}).cudaLaunchKernelExC(config, kernel, args);
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return given(event, new CUevent_st); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return given(event, new CUevent_st{.timed = !(flags & cudaEventDisableTiming)});
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  return in_order([=] {
    event->seconds = session().estimated_s;
    event->recorded = true;
    return cudaSuccess;
  });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  sim::no_kernel_in_front();
  return event ? cudaSuccess : returned(cudaErrorInvalidResourceHandle);
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  const auto has_time = [](cudaEvent_t e) { return e && e->timed && e->recorded; };
  if (!has_time(from) || !has_time(to)) {
    return returned(cudaErrorInvalidResourceHandle);
  }
  return given(ms, static_cast<float>(1e3 * (to->seconds - from->seconds)));
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }

// --- graphs --------------------------------------------------------------------------------------

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  if (session().captured) return returned(cudaErrorIllegalState);
  session().captured = std::make_unique<sim::any::Work>();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  if (!session().captured) return returned(cudaErrorIllegalState);
  *graph = new CUgraph_st{std::move(*session().captured)};
  session().captured.reset();
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  return given(status,
               session().captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone);
}
static cudaGraphNode_t node(size_t place) { return reinterpret_cast<cudaGraphNode_t>(place + 1); }
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* n) {
  if (!nodes) *n = graph->work.size();
  for (size_t i = 0; nodes && i < *n; ++i) nodes[i] = node(i);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph,
                                          unsigned long long) {
  return given(exec, new CUgraph_st(*graph));
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
  for (const auto& work : exec->work) work();
  return cudaSuccess;
}
cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned) { return given(graph, new CUgraph_st); }
// A node depends only on existing nodes: the order of insertion is a valid one.
cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* added, cudaGraph_t graph,
                                   const cudaGraphNode_t*, size_t, const cudaKernelNodeParams* p) {
  *added = node(graph->work.size());
  auto& captured = session().captured;
  auto before = std::exchange(captured, std::make_unique<sim::any::Work>());
  const cudaLaunchConfig_t config{p->gridDim, p->blockDim, p->sharedMemBytes, nullptr, nullptr, 0};
  const cudaError_t status = cudaLaunchKernelExC(&config, p->func, p->kernelParams);
  graph->work.insert(graph->work.end(), captured->begin(), captured->end());
  captured = std::move(before);
  return status;
}
cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* added, cudaGraph_t graph,
                                       const cudaGraphNode_t*, size_t, cudaGraph_t child) {
  *added = node(graph->work.size());
  graph->work.push_back([work = child->work] {
    for (const auto& one : work) one();
  });
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }

#include "common/gpu/range_profiler.h"

#if __has_include(<cupti_range_profiler.h>) && __has_include(<cupti_profiler_host.h>)

#include <cuda.h>
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_range_profiler.h>
#include <cupti_result.h>
#include <cupti_target.h>
#include <cupti_version.h>

#include <cmath>
#include <optional>

#include "common/dialect/cuda.h"
#include "common/gpu/optional_library.h"

namespace fa::gpu {

namespace {

using Metrics = std::vector<std::string>;

std::vector<const char*> pointers(const Metrics& metrics) {
  std::vector<const char*> p;
  for (const std::string& m : metrics) p.push_back(m.c_str());
  return p;
}

/// CUPTI's parameter blocks start with their size as compiled here; the rest is zero.
#define FA_PARAMS(type, name) \
  type name{};                \
  name.structSize = type##_STRUCT_SIZE

std::vector<std::string> cupti_names() {
  const int built_with = CUDART_VERSION / 1000;  // the library's major version is the toolkit's
  std::vector<std::string> names;
  for (int major : {built_with, 13, 12}) names.push_back("libcupti.so." + std::to_string(major));
  names.push_back("libcupti.so");
  return names;
}

/// The functions of libcupti used here, found at run time.
struct Cupti {
  SharedLibrary library{cupti_names()};

#define FA_CUPTI(name) decltype(::name)* name = library.symbol<decltype(::name)>(#name)
  FA_CUPTI(cuptiGetResultString);
  FA_CUPTI(cuptiDeviceGetChipName);
  FA_CUPTI(cuptiProfilerInitialize);
  FA_CUPTI(cuptiProfilerDeInitialize);
  FA_CUPTI(cuptiProfilerGetCounterAvailability);
  FA_CUPTI(cuptiProfilerHostInitialize);
  FA_CUPTI(cuptiProfilerHostDeinitialize);
  FA_CUPTI(cuptiProfilerHostConfigAddMetrics);
  FA_CUPTI(cuptiProfilerHostGetConfigImageSize);
  FA_CUPTI(cuptiProfilerHostGetConfigImage);
  FA_CUPTI(cuptiProfilerHostGetNumOfPasses);
  FA_CUPTI(cuptiProfilerHostEvaluateToGpuValues);
  FA_CUPTI(cuptiRangeProfilerEnable);
  FA_CUPTI(cuptiRangeProfilerDisable);
  FA_CUPTI(cuptiRangeProfilerGetCounterDataSize);
  FA_CUPTI(cuptiRangeProfilerCounterDataImageInitialize);
  FA_CUPTI(cuptiRangeProfilerSetConfig);
  FA_CUPTI(cuptiRangeProfilerStart);
  FA_CUPTI(cuptiRangeProfilerStop);
  FA_CUPTI(cuptiRangeProfilerPushRange);
  FA_CUPTI(cuptiRangeProfilerPopRange);
  FA_CUPTI(cuptiRangeProfilerDecodeData);
#undef FA_CUPTI

  Cupti() {
    if (!library) {
      throw NoCounters(
          "no hardware counters: libcupti was not found; install CUPTI or add its folder to "
          "LD_LIBRARY_PATH (docs/gpu.md)");
    }
    // The newest functions: a library that has these has all the others.
    if (!cuptiRangeProfilerDecodeData || !cuptiProfilerHostGetNumOfPasses ||
        !cuptiDeviceGetChipName) {
      throw NoCounters(
          "no hardware counters: this libcupti has no range profiler; CUPTI 12.6 Update 2 or newer "
          "is needed (docs/gpu.md)");
    }
  }

  void check(CUptiResult status, const char* call) const {
    if (status == CUPTI_SUCCESS) return;
    if (status == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES ||
        status == CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES) {
      throw NoCounters(
          "hardware counters refused (ERR_NVGPUCTRPERM): run as root, or have the administrator "
          "load the driver with NVreg_RestrictProfilingToAdminUsers=0 (docs/gpu.md)");
    }
    const char* name = nullptr;
    if (cuptiGetResultString) cuptiGetResultString(status, &name);
    throw NoCounters(std::string("no hardware counters: ") + call + " failed with " +
                     (name ? name : std::to_string(static_cast<int>(status))) + " (docs/gpu.md)");
  }
};

#define FA_CALL(cupti, function, params) (cupti).check((cupti).function(params), #function)

/// The current context, as the runtime has set it, without linking libcuda.
CUcontext current_context() {
  const SharedLibrary driver({"libcuda.so.1"});
  auto* get = driver.symbol<CUresult(CUcontext*)>("cuCtxGetCurrent");
  CUcontext context = nullptr;
  if (!get || get(&context) != CUDA_SUCCESS || !context) {
    throw NoCounters("no hardware counters: there is no current CUDA context");
  }
  return context;
}

/// The host side of a set of metrics: how to collect them, and how to evaluate the counters.
class Host {
 public:
  Host(const Cupti& cupti, const std::string& chip, const std::vector<uint8_t>& availability)
      : cupti_(cupti) {
    FA_PARAMS(CUpti_Profiler_Host_Initialize_Params, p);
    p.profilerType = CUPTI_PROFILER_TYPE_RANGE_PROFILER;
    p.pChipName = chip.c_str();
    p.pCounterAvailabilityImage = availability.empty() ? nullptr : availability.data();
    FA_CALL(cupti_, cuptiProfilerHostInitialize, &p);
    host_ = p.pHostObject;
  }
  ~Host() {
    FA_PARAMS(CUpti_Profiler_Host_Deinitialize_Params, p);
    p.pHostObject = host_;
    cupti_.cuptiProfilerHostDeinitialize(&p);
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  /// False when this chip lacks one of them.
  bool add(const Metrics& metrics) {
    auto names = pointers(metrics);
    FA_PARAMS(CUpti_Profiler_Host_ConfigAddMetrics_Params, p);
    p.pHostObject = host_;
    p.ppMetricNames = names.data();
    p.numMetrics = names.size();
    return cupti_.cuptiProfilerHostConfigAddMetrics(&p) == CUPTI_SUCCESS;
  }

  std::vector<uint8_t> config_image() const {
    FA_PARAMS(CUpti_Profiler_Host_GetConfigImageSize_Params, size);
    size.pHostObject = host_;
    FA_CALL(cupti_, cuptiProfilerHostGetConfigImageSize, &size);
    std::vector<uint8_t> image(size.configImageSize);
    FA_PARAMS(CUpti_Profiler_Host_GetConfigImage_Params, p);
    p.pHostObject = host_;
    p.configImageSize = image.size();
    p.pConfigImage = image.data();
    FA_CALL(cupti_, cuptiProfilerHostGetConfigImage, &p);
    return image;
  }

  size_t passes() const {
    std::vector<uint8_t> image = config_image();
    FA_PARAMS(CUpti_Profiler_Host_GetNumOfPasses_Params, p);
    p.configImageSize = image.size();
    p.pConfigImage = image.data();
    FA_CALL(cupti_, cuptiProfilerHostGetNumOfPasses, &p);
    return p.numOfPasses;
  }

  /// Values of the only range in the counter data.
  std::vector<double> evaluate(const std::vector<uint8_t>& counter_data,
                               const Metrics& metrics) const {
    auto names = pointers(metrics);
    std::vector<double> values(metrics.size(), NAN);
    FA_PARAMS(CUpti_Profiler_Host_EvaluateToGpuValues_Params, p);
    p.pHostObject = host_;
    p.pCounterDataImage = counter_data.data();
    p.counterDataImageSize = counter_data.size();
    p.rangeIndex = 0;
    p.ppMetricNames = names.data();
    p.numMetrics = names.size();
    p.pMetricValues = values.data();
    FA_CALL(cupti_, cuptiProfilerHostEvaluateToGpuValues, &p);
    return values;
  }

 private:
  const Cupti& cupti_;
  CUpti_Profiler_Host_Object* host_ = nullptr;
};

class Target {
 public:
  Target(const Cupti& cupti, CUcontext context) : cupti_(cupti) {
    FA_PARAMS(CUpti_RangeProfiler_Enable_Params, p);
    p.ctx = context;
    FA_CALL(cupti_, cuptiRangeProfilerEnable, &p);
    target_ = p.pRangeProfilerObject;
  }
  ~Target() {
    FA_PARAMS(CUpti_RangeProfiler_Disable_Params, p);
    p.pRangeProfilerObject = target_;
    cupti_.cuptiRangeProfilerDisable(&p);
  }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  /// One pass over one range around `body`. \returns the counter data image.
  std::vector<uint8_t> collect(const Metrics& metrics, const std::vector<uint8_t>& config,
                               const std::function<void()>& before,
                               const std::function<void()>& body) const {
    std::vector<uint8_t> counter_data = empty_counter_data(metrics);
    FA_PARAMS(CUpti_RangeProfiler_SetConfig_Params, set);
    set.pRangeProfilerObject = target_;
    set.configSize = config.size();
    set.pConfig = config.data();
    set.counterDataImageSize = counter_data.size();
    set.pCounterDataImage = counter_data.data();
    set.range = CUPTI_UserRange;
    set.replayMode = CUPTI_UserReplay;
    set.maxRangesPerPass = 1;
    set.numNestingLevels = 1;
    set.minNestingLevel = 1;
    set.passIndex = 0;
    set.targetNestingLevel = 1;
    FA_CALL(cupti_, cuptiRangeProfilerSetConfig, &set);

    FA_PARAMS(CUpti_RangeProfiler_Start_Params, start);
    start.pRangeProfilerObject = target_;
    FA_CALL(cupti_, cuptiRangeProfilerStart, &start);
    before();
    cuda_check(cudaDeviceSynchronize());
    FA_PARAMS(CUpti_RangeProfiler_PushRange_Params, push);
    push.pRangeProfilerObject = target_;
    push.pRangeName = "step";
    FA_CALL(cupti_, cuptiRangeProfilerPushRange, &push);
    body();
    cuda_check(cudaDeviceSynchronize());
    FA_PARAMS(CUpti_RangeProfiler_PopRange_Params, pop);
    pop.pRangeProfilerObject = target_;
    FA_CALL(cupti_, cuptiRangeProfilerPopRange, &pop);
    FA_PARAMS(CUpti_RangeProfiler_Stop_Params, stop);
    stop.pRangeProfilerObject = target_;
    FA_CALL(cupti_, cuptiRangeProfilerStop, &stop);

    FA_PARAMS(CUpti_RangeProfiler_DecodeData_Params, decode);
    decode.pRangeProfilerObject = target_;
    FA_CALL(cupti_, cuptiRangeProfilerDecodeData, &decode);
    if (!stop.isAllPassSubmitted || decode.numOfRangeDropped != 0) {
      throw NoCounters("no hardware counters: CUPTI dropped the measured range");
    }
    return counter_data;
  }

 private:
  std::vector<uint8_t> empty_counter_data(const Metrics& metrics) const {
    auto names = pointers(metrics);
    FA_PARAMS(CUpti_RangeProfiler_GetCounterDataSize_Params, size);
    size.pRangeProfilerObject = target_;
    size.pMetricNames = names.data();
    size.numMetrics = names.size();
    size.maxNumOfRanges = 1;
    size.maxNumRangeTreeNodes = 1;
    FA_CALL(cupti_, cuptiRangeProfilerGetCounterDataSize, &size);
    std::vector<uint8_t> counter_data(size.counterDataSize);
    FA_PARAMS(CUpti_RangeProfiler_CounterDataImage_Initialize_Params, p);
    p.pRangeProfilerObject = target_;
    p.counterDataSize = counter_data.size();
    p.pCounterData = counter_data.data();
    FA_CALL(cupti_, cuptiRangeProfilerCounterDataImageInitialize, &p);
    return counter_data;
  }

  const Cupti& cupti_;
  CUpti_RangeProfiler_Object* target_ = nullptr;
};

}  // namespace

struct RangeProfiler::Impl {
  Cupti cupti;
  CUcontext context = current_context();
  std::string chip;                   // "GH100"
  std::vector<uint8_t> availability;  // empty for a chip that this CUPTI knows by name
  // Of the last group (0.2 s to enable). CUPTI 13 crashes with the counter data of other metrics.
  std::optional<Target> target;
  Metrics of_target;

  Impl() {
    FA_PARAMS(CUpti_Profiler_Initialize_Params, initialize);
    FA_CALL(cupti, cuptiProfilerInitialize, &initialize);
    int device = 0;
    cuda_check(cudaGetDevice(&device));
    FA_PARAMS(CUpti_Device_GetChipName_Params, name);
    name.deviceIndex = device;
    FA_CALL(cupti, cuptiDeviceGetChipName, &name);
    chip = name.pChipName;
    try {
      Host(cupti, chip, availability);
    } catch (const NoCounters&) {  // a chip newer than this CUPTI: ask the driver
      FA_PARAMS(CUpti_Profiler_GetCounterAvailability_Params, p);
      p.ctx = context;
      FA_CALL(cupti, cuptiProfilerGetCounterAvailability, &p);
      availability.resize(p.counterAvailabilityImageSize);
      p.pCounterAvailabilityImage = availability.data();
      FA_CALL(cupti, cuptiProfilerGetCounterAvailability, &p);
    }
  }

  ~Impl() {
    target.reset();
    FA_PARAMS(CUpti_Profiler_DeInitialize_Params, p);
    cupti.cuptiProfilerDeInitialize(&p);
  }

  bool fits_one_pass(const Metrics& metrics) const {
    Host host(cupti, chip, availability);
    return host.add(metrics) && host.passes() == 1;
  }

  /// Each metric joins the first group that still needs one pass with it; unknown ones join none.
  std::vector<Metrics> one_pass_groups(const Metrics& metrics) const {
    std::vector<Metrics> groups;
    for (const std::string& metric : metrics) {
      if (!fits_one_pass({metric})) continue;
      bool placed = false;
      for (Metrics& group : groups) {
        Metrics larger = group;
        larger.push_back(metric);
        if (fits_one_pass(larger)) {
          group = larger;
          placed = true;
          break;
        }
      }
      if (!placed) groups.push_back({metric});
    }
    return groups;
  }
};

RangeProfiler::RangeProfiler() : impl_(std::make_unique<Impl>()) {}
RangeProfiler::~RangeProfiler() = default;

std::map<std::string, double> RangeProfiler::measure(const std::vector<std::string>& metrics,
                                                     const std::function<void()>& before,
                                                     const std::function<void()>& body) {
  std::map<std::string, double> values;
  for (const Metrics& group : impl_->one_pass_groups(metrics)) {
    Host host(impl_->cupti, impl_->chip, impl_->availability);
    host.add(group);
    if (!impl_->target || group != impl_->of_target) {
      impl_->target.reset();
      impl_->target.emplace(impl_->cupti, impl_->context);
      impl_->of_target = group;
    }
    const auto counter_data = impl_->target->collect(group, host.config_image(), before, body);
    const std::vector<double> figures = host.evaluate(counter_data, group);
    for (size_t i = 0; i < group.size(); ++i) {
      if (std::isfinite(figures[i])) values[group[i]] = figures[i];
    }
  }
  return values;
}

}  // namespace fa::gpu

#else  // no CUPTI headers, or older than 12.6 Update 2

namespace fa::gpu {

struct RangeProfiler::Impl {};

RangeProfiler::RangeProfiler() {
  throw NoCounters(
      "no hardware counters: this program was built without CUPTI 12.6 Update 2 or newer "
      "(docs/gpu.md)");
}
RangeProfiler::~RangeProfiler() = default;

std::map<std::string, double> RangeProfiler::measure(const std::vector<std::string>&,
                                                     const std::function<void()>&,
                                                     const std::function<void()>&) {
  return {};
}

}  // namespace fa::gpu

#endif

// A step as a shared library, linked, like its program, from the object of its main.cu.
#include "common/harness/library/library.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/counts/backend.h"
#include "common/counts/device_memory.h"
#include "common/counts/format.h"
#include "common/dialect/cuda.h"
#include "common/harness/cli.h"
#include "common/harness/failure.h"
#include "common/harness/step.h"

namespace fa {

namespace {

std::string last_error;
std::string last_run;  // "fa_forward of variant 0 (kernel), B=1 H=4 N=512 d=64 bf16", or empty

const Step& the_step() { return linked_steps().at(0); }

/// Rewrites the programs' flags in a step's sentence as fields of FaProblem.
std::string in_fields(const std::string& sentence) {
  std::string words = sentence;
  const auto rename = [&](std::string_view flag, const char* field) {
    for (size_t at = 0; (at = words.find(flag, at)) != words.npos; ++at) {
      const char next = words.c_str()[at + flag.size()];  // 0 at the end
      if (!std::isalnum(static_cast<unsigned char>(next))) words.replace(at, flag.size(), field);
    }
  };
  for (const Size& size : kSizes) rename(size.flag, size.symbol);
  rename("--page", "page");
  rename("--lengths", "lengths");
  rename("--tiles", "tiles");
  return words;
}

std::string sentence_of(const char* call, const CudaError& e) {
  const std::string what = fmt::format("{}: CUDA reports '{}'", call, e.what());
  if (!is_lasting(e)) return what;
  return fmt::format(
      "{}. It happened in a kernel queued before, of this library or of another; the last run "
      "here was {} (CUDA_LAUNCH_BLOCKING=1 reports it at once). The CUDA context is lost: start a "
      "new process",
      what, last_run.empty() ? "none" : last_run);
}

/// Calls f and returns its status; an exception's sentence becomes the last error.
int answer(const char* call, auto&& f) {
  const Failure failure = failure_of([&] {
    try {
      f();
    } catch (const CudaError& e) {
      throw std::runtime_error(sentence_of(call, e));
    }
  });
  if (failure.status == kWrong) last_error = failure.sentence;
  if (failure.status > kWrong) last_error = in_fields(failure.sentence);
  return failure.status;
}

void require_device() {
  static bool open = false;
  if (!open) open_device(the_step().id, the_step().needs);
  open = true;
}

/// \throws ResourceError when the device has no room.
DeviceMemory<> allocate(const std::string& name, size_t bytes) {
  DeviceMemory<> memory(name, bytes);
  if (memory) return memory;
  throw ResourceError(
      fmt::format("{}: the device cannot allocate {:.1f} GB", name, double(bytes) / 1e9));
}

class Workspace {
 public:
  std::optional<Problem> last_prepare, last_forward;
  std::array<const void*, 3> prepared = {};  // Q, K and V of last_prepare

  /// Room for these pieces, by name. Pieces that are large enough stay where they are.
  const std::map<std::string, void*>& of(const std::vector<Scratch>& pieces) {
    for (const Scratch& piece : pieces) {
      DeviceMemory<>& held = memory_[piece.name];
      if (held && held.bytes() >= piece.bytes) continue;
      require_no_capture(piece.name);
      held = {};  // first free the old one: both may not fit
      held = allocate(piece.name, piece.bytes);
      pointers_[piece.name] = held.get();
      if (piece.zeroed) zero_device_memory(held.get(), piece.bytes);
    }
    return pointers_;
  }

  /// The tables of this problem, rebuilt when the last call had another problem.
  void put_tables(const Variant& v, const Problem& p) {
    if (!v.extras.tables || tables_of_ == p) return;
    require_no_capture("tables");
    tables_of_.reset();
    for (const Table& table : tables_of(v, p)) {
      const size_t bytes = sizeof(int) * table.values.size();
      void* on_device = of({{table.name, bytes}}).at(table.name);
      cuda_check(cudaDeviceSynchronize());  // an earlier run may still read the old ones
      upload_device_memory(on_device, table.values.data(), bytes);
    }
    tables_of_ = p;
  }

  /// [B] on the device, uploaded when they change; null where there are none.
  const int* upload(const std::vector<int>& lengths) {
    if (lengths.empty()) return nullptr;
    if (lengths != lengths_) {
      require_no_capture("lengths");
      lengths_.clear();  // in case this fails
      const size_t bytes = lengths.size() * sizeof(int);
      upload_device_memory(of({{"lengths", bytes}}).at("lengths"), lengths.data(), bytes);
      lengths_ = lengths;
    }
    return static_cast<const int*>(pointers_.at("lengths"));
  }

  void release() {
    last_prepare.reset();
    last_forward.reset();
    tables_of_.reset();
    lengths_.clear();
    pointers_.clear();
    memory_.clear();
  }

 private:
  static void require_no_capture(const std::string& name) {
    if (!is_capturing()) return;
    refuse(
        "{}: nothing can be allocated or copied while the stream is captured: run this variant and "
        "problem once before the capture",
        name);
  }

  std::optional<Problem> tables_of_;
  std::map<std::string, DeviceMemory<>> memory_;
  std::map<std::string, void*> pointers_;
  std::vector<int> lengths_;  // on the device
};

/// Per variant: its forward reads what its prepare wrote, and its backward may read what its
/// forward wrote, whatever runs in between. Never destroyed: CUDA may end before the process does.
std::map<int, Workspace>& workspaces = *new std::map<int, Workspace>;

const Variant& variant_of(int index) {
  const auto& variants = the_step().variants;
  if (index < 0 || index >= static_cast<int>(variants.size())) {
    refuse("variant {}: {} has {}", index, the_step().id, variants.size());
  }
  return variants[index];
}

std::vector<int> starts_of(const int32_t* lengths, int n) {
  std::vector<int> starts = {0};
  for (int i = 0; i < n; ++i) {
    if (lengths[i] < 0 || lengths[i] > std::numeric_limits<int>::max() - starts.back()) {
      refuse("mask: document {} has {} rows or keys", i, lengths[i]);
    }
    starts.push_back(starts.back() + lengths[i]);
  }
  return starts;
}

/// What the step's program understands by `--mask TEXT`.
Predicate predicate_of(const std::string& text) {
  for (const StepOption& option : the_step().options) {
    if (option.name != std::string_view("--mask")) continue;
    Options o;
    option.text(text, o);
    return o.problem.mask.predicate;
  }
  refuse("--mask {}: {} has none", text, the_step().id);
}

/// Tiles equal to the last call's stay where they are, so that problems compare fast.
TileMask tiles_of(const FaMask& given, const Problem& p) {
  static std::shared_ptr<const std::vector<uint8_t>> last;
  TileMask tiles;
  if (std::min({p.B, p.H, p.N, p.Nk}) < 1) return tiles;  // validate() refuses it
  tiles.heads = given.tile_heads, tiles.rows = TileMask::of(p.N), tiles.keys = TileMask::of(p.Nk);
  if (tiles.heads != 1 && tiles.heads != size_t(p.H) && tiles.heads != p.heads()) {
    refuse("mask: tile_heads {}: must be 1, H = {} or B*H = {}", given.tile_heads, p.H, p.heads());
  }
  if (!given.tiles) throw UsageError("mask: tiles is a null pointer");
  const uint8_t* end = given.tiles + tiles.heads * tiles.rows * tiles.keys;
  if (!last || !std::equal(last->begin(), last->end(), given.tiles, end)) {
    const uint8_t* wrong = std::find_if(given.tiles, end, [](uint8_t seen) { return seen > 1; });
    if (wrong != end) refuse("mask: tiles[{}] is {}, not 0 or 1", wrong - given.tiles, *wrong);
    last = std::make_shared<const std::vector<uint8_t>>(given.tiles, end);
  }
  tiles.kept = last;
  return tiles;
}

Mask mask_of(const FaMask& given, const Problem& p) {
  Mask mask;
  mask.left = given.left, mask.right = given.right;
  if (given.predicate && given.predicate == std::string_view("tiles")) {
    mask.tiles = tiles_of(given, p);
  } else if (given.predicate) {
    mask.predicate = predicate_of(given.predicate);
  }
  if (given.documents == 0) return mask;
  if (given.documents < 0 || !given.row_lengths) {
    throw UsageError("mask: documents without row_lengths");
  }
  const int32_t* keys = given.key_lengths ? given.key_lengths : given.row_lengths;
  mask.row_starts = starts_of(given.row_lengths, given.documents);
  mask.key_starts = starts_of(keys, given.documents);
  return mask;
}

/// \throws UsageError when the step does not support it.
Problem problem_of(const FaProblem* given, const Variant& variant) {
  if (!given) throw UsageError("no problem: the pointer is null");
  Problem p;
  p.B = given->B;
  p.H = given->H;
  p.Hkv = given->Hkv;
  p.N = given->N;
  p.Nk = given->Nk;
  p.d = given->d;
  p.causal = given->causal != 0;
  if (given->mask) p.mask = mask_of(*given->mask, p);
  p.cache.page = given->page;
  if (given->lengths) p.cache.lengths.assign(given->lengths, given->lengths + std::max(p.B, 0));
  p = problem_for(variant, p);
  if (variant.extras.cache8) {
    refuse("variant {}: its K and V are of 8 bits with scales, for which FaTensors has no place",
           variant.name);
  }
  validate(p, the_step(), variant);
  return p;
}

void require_pointer(const char* name, const void* p) {
  if (!p) throw UsageError(std::string(name) + " is a null pointer");
  if (reinterpret_cast<uintptr_t>(p) % 16 != 0) {
    throw UsageError(std::string(name) + " is not aligned to 16 bytes");
  }
}

/// \param first what must have run before, and `last` its last problem
/// \throws UsageError unless it has run for this problem and these tensors.
void require_first(const char* first, const std::optional<Problem>& last, bool same_tensors,
                   const char* call, int index, const Problem& p) {
  if (last == p && same_tensors) return;
  refuse("variant {}: {} of the same tensors, {}, must come before {}; {}", index, first,
         describe(p), call,
         !last       ? "none has run"
         : last != p ? "the last one was of " + describe(*last)
                     : "the last one was of other Q, K or V");
}

enum class Direction { prepare, forward, backward };

int run(int index, const FaProblem* problem, const FaTensors* t, void* stream,
        Direction direction) {
  const bool prepare = direction == Direction::prepare;
  const bool backward = direction == Direction::backward;
  const std::string name = prepare ? "prepare" : backward ? "backward" : "forward";
  const std::string call = "fa_" + name;
  return answer(call.c_str(), [&] {
    const Variant& v = variant_of(index);
    const Runner& runner = prepare ? v.prepare : backward ? v.backward : v.forward;
    if (!runner) throw UsageError(the_step().id + " " + v.name + ": it has no " + name);
    const Problem p = problem_of(problem, v);
    if (!t) throw UsageError("no tensors: the pointer is null");
    Tensors<void> tensors{
        {.cache = {.table = t->table}}, t->Q, t->K, t->V, t->O, t->LSE, t->dO, t->dQ, t->dK, t->dV};
    const auto require = [&](Role role) {
      for (const Tensor* each : tensors_of(v, p)) {
        if (each->role != role || each->name == std::string_view("lengths")) continue;
        require_pointer(each->name, each->device.get(tensors));
      }
    };
    if (t->table && p.cache.page == 0) throw UsageError("table: K and V have no pages, page is 0");
    require(Role::input);
    if (!prepare) require(Role::output);
    Workspace& workspace = workspaces[index];
    const std::array inputs = {t->Q, t->K, t->V};
    if (v.prepare && !prepare) {
      require_first("fa_prepare", workspace.last_prepare, inputs == workspace.prepared,
                    call.c_str(), index, p);
    }
    if (backward) {
      require(Role::backward_input);
      require(Role::backward_output);
      if (!v.writes_lse) {  // P lies in the workspace
        require_first("fa_forward", workspace.last_forward, true, call.c_str(), index, p);
      }
    }
    require_device();
    const OnStream on_stream(stream);
    // If this run fails, later ones have nothing to read.
    if (prepare) workspace.last_prepare.reset();
    if (!backward) workspace.last_forward.reset();
    const auto& pieces = workspace.of(workspace_of(v, p));
    workspace.put_tables(v, p);
    last_run = fmt::format("{} of variant {} ({}), {}", call, index, v.name, describe(p));
    tensors.workspace = &pieces;
    tensors.cache.lengths = workspace.upload(p.cache.lengths);
    runner(p, tensors);
    if (prepare) workspace.last_prepare = p, workspace.prepared = inputs;
    if (direction == Direction::forward) workspace.last_forward = p;
  });
}

}  // namespace

}  // namespace fa

const char* fa_describe() {
  static const std::string text = fa::describe(fa::the_step());
  return text.c_str();
}

const char* fa_last_error() { return fa::last_error.c_str(); }

int fa_check(const FaProblem* problem) {
  return fa::answer("fa_check", [&] {
    // What a variant can do is done; otherwise the reason is the step's.
    std::vector<fa::Variant> variants = fa::the_step().variants;
    std::reverse(variants.begin(), variants.end());
    std::stable_partition(variants.begin(), variants.end(),
                          [](auto& v) { return !v.extras.cache8; });
    std::exception_ptr reason;
    for (const fa::Variant& v : variants) {
      try {
        fa::problem_of(problem, v);
        return;
      } catch (const fa::UsageError&) {
        if (!reason) reason = std::current_exception();
      }
    }
    std::rethrow_exception(reason);
  });
}

int fa_workspace_bytes(int variant, const FaProblem* problem, size_t* bytes) {
  return fa::answer("fa_workspace_bytes", [&] {
    if (!bytes) throw fa::UsageError("no place for the bytes: the pointer is null");
    *bytes = 0;
    const fa::Variant& v = fa::variant_of(variant);
    const fa::Problem p = fa::problem_of(problem, v);
    for (const fa::Scratch& piece : fa::workspace_of(v, p)) *bytes += piece.bytes;
    for (const fa::Table& t : fa::tables_of(v, p)) *bytes += sizeof(int) * t.values.size();
    *bytes += p.cache.lengths.size() * sizeof(int);
  });
}

int fa_prepare(int variant, const FaProblem* problem, const FaTensors* tensors, void* stream) {
  return fa::run(variant, problem, tensors, stream, fa::Direction::prepare);
}

int fa_forward(int variant, const FaProblem* problem, const FaTensors* tensors, void* stream) {
  return fa::run(variant, problem, tensors, stream, fa::Direction::forward);
}

int fa_backward(int variant, const FaProblem* problem, const FaTensors* tensors, void* stream) {
  return fa::run(variant, problem, tensors, stream, fa::Direction::backward);
}

int fa_release() {
  return fa::answer("fa_release", [] {
    fa::cuda_check(cudaDeviceSynchronize());
    for (auto& [variant, workspace] : fa::workspaces) workspace.release();
  });
}

int fa_malloc(void** p, size_t bytes) {
  return fa::answer("fa_malloc", [&] {
    if (!p) throw fa::UsageError("no place for the address: the pointer is null");
    *p = nullptr;
    fa::require_device();
    *p = fa::allocate("memory", bytes).release();
  });
}

int fa_free(void* p) {
  return fa::answer("fa_free", [&] { fa::cuda_check(cudaFree(p)); });
}

int fa_upload(void* to, const void* from, size_t bytes) {
  return fa::answer("fa_upload", [&] {
    fa::cuda_check(cudaDeviceSynchronize());
    fa::cuda_check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
    fa::cuda_check(
        cudaDeviceSynchronize());  // pageable memory: the copy returns while it is staged
  });
}

int fa_download(void* to, const void* from, size_t bytes) {
  return fa::answer("fa_download", [&] {
    fa::cuda_check(cudaDeviceSynchronize());
    fa::cuda_check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
  });
}

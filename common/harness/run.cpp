#include "common/harness/run.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <set>
#include <stdexcept>

#include "common/dialect/cuda.h"
#include "common/harness/backend.h"
#include "common/harness/device_memory.h"
#include "common/harness/format.h"

namespace fa {
namespace {

// A GPU does not report a write past the end of a buffer, so a band of known bytes follows it. The
// simulator stops such a write at once, with its source line; a band would only make it legal.
size_t guard_bytes() { return simulated() ? 0 : 4096; }
constexpr uint8_t kGuard = 0xa5;  // not the poison: a NaN written into the band must show

std::string gigabytes(size_t bytes) {
  return fmt::format("{:.1f} GB", static_cast<double>(bytes) / 1e9);
}

/// A tensor's memory, and perhaps a guard band behind it.
class DeviceBuffer {
 public:
  DeviceBuffer(const std::string& name, size_t bytes, size_t guard)
      : name_(name), bytes_(bytes), memory_(name, bytes + guard) {
    if (memory_) return;
    throw ResourceError(fmt::format("{}: the device cannot allocate {}: try a smaller --n or --b",
                                    name, gigabytes(bytes)));
  }

  void* data() const { return memory_.get(); }
  void shape(const Layout& layout) const { shape_device_memory(data(), layout); }

  template <class T>
  void upload(const std::vector<T>& from) {
    memory_.upload(from);
  }

  /// NaN, and a fresh guard band.
  void poison() {
    poison_device_memory(data(), bytes_);
    if (guard() == 0) return;
    cuda_check(cudaMemset(memory_.get() + bytes_, kGuard, guard()));
  }

  void zero() { zero_device_memory(data(), bytes_); }

  /// Adds a sentence when a byte is not zero.
  void inspect_zeros(std::vector<std::string>& damage) const {
    const std::vector<uint8_t> bytes = download<uint8_t>();
    if (std::any_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte != 0; })) {
      damage.push_back(name_ + " is not zero after the run, as the next run needs it");
    }
  }

  template <class T>
  std::vector<T> download() const {
    std::vector<T> to(bytes_ / sizeof(T));
    cuda_check(cudaMemcpy(to.data(), data(), bytes_, cudaMemcpyDeviceToHost));
    return to;
  }

  /// Adds a sentence when something was written past the end.
  void inspect_guard(std::vector<std::string>& damage) const {
    std::vector<uint8_t> band(guard());
    cuda_check(
        cudaMemcpy(band.data(), memory_.get() + bytes_, band.size(), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < band.size(); ++i) {
      if (band[i] == kGuard) continue;
      damage.push_back(fmt::format(
          "the guard band after {} was overwritten, first {} bytes past its end", name_, i));
      return;
    }
  }

 private:
  size_t guard() const { return memory_.size() - bytes_; }

  std::string name_;
  size_t bytes_;
  DeviceMemory<> memory_;
};

uint16_t to_bf16_bits(float x) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(round_to(DType::bf16, x)) >> 16);
}

/// Elements of the problem's type to and from the device.
void upload_as(DType dtype, const std::vector<float>& from, DeviceBuffer& to) {
  if (dtype == DType::f32) return to.upload(from);
  std::vector<uint16_t> bits(from.size());
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = to_bf16_bits(from[i]);
  to.upload(bits);
}

std::vector<float> download_as(DType dtype, const DeviceBuffer& from) {
  if (dtype == DType::f32) return from.download<float>();
  const std::vector<uint16_t> bits = from.download<uint16_t>();
  std::vector<float> to(bits.size());
  for (size_t i = 0; i < to.size(); ++i) {
    // All 16 bits set become all 32 bits set, so that never_written() knows both.
    const uint32_t low = bits[i] == 0xffff ? 0xffff : 0;
    to[i] = std::bit_cast<float>(static_cast<uint32_t>(bits[i]) << 16 | low);
  }
  return to;
}

void require_type(const char* what, const Runner& f, const Problem& p) {
  if (f && f.dtype() != p.dtype) {
    throw std::invalid_argument(fmt::format("the {} computes in {}, the problem is {}", what,
                                            name_of(f.dtype()), name_of(p.dtype)));
  }
}

}  // namespace

bool never_written(float x) { return std::bit_cast<uint32_t>(x) == 0xffffffff; }

MemoryNeed memory_need(const Problem& p, const Variant& v) {
  const size_t q = p.q_size() * bytes_of(p.dtype), kv = p.kv_size() * bytes_of(p.dtype);
  MemoryNeed need;
  need.inputs = q + 2 * kv;
  need.outputs = q;
  if (v.writes_lse) need.outputs += p.rows() * sizeof(float);
  if (v.backward) {
    need.inputs += q;            // dO
    need.outputs += q + 2 * kv;  // dQ, dK, dV
  }
  for (const Scratch& s : workspace_of(v, p)) need.workspace += s.bytes;
  return need;
}

void require_memory(const MemoryNeed& need) {
  const size_t free = free_device_bytes();
  if (need.total() <= free) return;
  const std::string what = need.workspace > free
                               ? fmt::format("needs {} of workspace", gigabytes(need.workspace))
                               : fmt::format("needs {} ({} of workspace)", gigabytes(need.total()),
                                             gigabytes(need.workspace));
  throw ResourceError(what + fmt::format(", {} free: try a smaller --n or --b", gigabytes(free)));
}

struct Session::Impl {
  Problem problem;
  Variant variant;
  std::map<std::string, DeviceBuffer> inputs, outputs, workspace;
  std::set<std::string> zeroed;  // of the workspace
  std::map<std::string, void*> workspace_pointers;
  Tensors<void> tensors;

  void add_input(const char* name, const std::vector<float>& from, size_t size, const void*& p) {
    if (from.size() != size) {
      throw std::invalid_argument(
          fmt::format("{} has {} elements instead of {}", name, from.size(), size));
    }
    auto [at, _] = inputs.try_emplace(name, name, size * bytes_of(problem.dtype), 0);
    upload_as(problem.dtype, from, at->second);
    p = at->second.data();
  }

  /// For a trace.
  void shape_buffers() const {
    const Problem& p = problem;
    const auto shape = [](size_t matrices, int rows, int columns, size_t element) {
      return Layout{matrices, size_t(rows), size_t(columns), unsigned(element)};
    };
    const Layout queries = shape(p.heads(), p.N, p.d, bytes_of(p.dtype));
    const Layout keys = shape(p.kv_heads(), p.Nk, p.d, bytes_of(p.dtype));
    for (const auto& [name, buffer] : inputs) {
      buffer.shape(name == "K" || name == "V" ? keys : queries);
    }
    for (const auto& [name, buffer] : outputs) {
      buffer.shape(name == "LSE"                  ? shape(p.heads(), p.N, 1, sizeof(float))
                   : name == "dK" || name == "dV" ? keys
                                                  : queries);
    }
    for (const Scratch& s : workspace_of(variant, p)) {
      workspace.at(s.name).shape(workspace_layout(s.name, s.bytes, p));
    }
  }

  void forget(const char* name) {
    if (const auto at = outputs.find(name); at != outputs.end()) at->second.poison();
  }

  void* add_output(const char* name, size_t bytes) {
    return outputs.try_emplace(name, name, bytes, guard_bytes()).first->second.data();
  }
};

Session::Session(const Problem& p, const Inputs& in, const Variant& v)
    : impl_(std::make_unique<Impl>()) {
  require_type("prepare", v.prepare, p);
  require_type("forward", v.forward, p);
  require_type("backward", v.backward, p);
  require_memory(memory_need(p, v));
  Impl& s = *impl_;
  s.problem = p;
  s.variant = v;
  Tensors<void>& t = s.tensors;
  s.add_input("Q", in.Q, p.q_size(), t.Q);
  s.add_input("K", in.K, p.kv_size(), t.K);
  s.add_input("V", in.V, p.kv_size(), t.V);
  const size_t q_bytes = p.q_size() * bytes_of(p.dtype), kv_bytes = p.kv_size() * bytes_of(p.dtype);
  t.O = s.add_output("O", q_bytes);
  if (v.writes_lse) t.LSE = static_cast<float*>(s.add_output("LSE", p.rows() * sizeof(float)));
  if (v.backward) {
    s.add_input("dO", in.dO, p.q_size(), t.dO);
    t.dQ = s.add_output("dQ", q_bytes);
    t.dK = s.add_output("dK", kv_bytes);
    t.dV = s.add_output("dV", kv_bytes);
  }
  for (const Scratch& piece : workspace_of(v, p)) {
    const auto [at, inserted] =
        s.workspace.try_emplace(piece.name, piece.name, piece.bytes, guard_bytes());
    if (!inserted) throw std::invalid_argument("two pieces of workspace named " + piece.name);
    s.workspace_pointers[piece.name] = at->second.data();
    if (piece.zeroed) s.zeroed.insert(piece.name);
  }
  t.workspace = &s.workspace_pointers;
  s.shape_buffers();
  poison();
}

Session::~Session() = default;

void Session::prepare() { impl_->variant.prepare(impl_->problem, impl_->tensors); }
void Session::forward() { impl_->variant.forward(impl_->problem, impl_->tensors); }
void Session::backward() { impl_->variant.backward(impl_->problem, impl_->tensors); }

void Session::poison() {
  for (auto& [name, buffer] : impl_->outputs) buffer.poison();
  for (auto& [name, buffer] : impl_->workspace) {
    buffer.poison();
    if (impl_->zeroed.contains(name)) buffer.zero();
  }
}

void Session::forget_forward() {
  for (const char* name : {"O", "LSE"}) impl_->forget(name);
}

void Session::forget_backward() {
  for (const char* name : {"dQ", "dK", "dV"}) impl_->forget(name);
}

void Session::forget_prepare() {
  for (auto& [name, buffer] : impl_->workspace) {
    if (!impl_->zeroed.contains(name)) buffer.poison();
  }
}

bool Session::keeps_state() const { return !impl_->zeroed.empty(); }

Outputs Session::download() {
  cuda_check(cudaDeviceSynchronize());
  Outputs out;
  const DType dtype = impl_->problem.dtype;
  for (const auto& [name, to] : {std::pair("O", &out.O), std::pair("dQ", &out.dQ),
                                 std::pair("dK", &out.dK), std::pair("dV", &out.dV)}) {
    const auto buffer = impl_->outputs.find(name);
    if (buffer != impl_->outputs.end()) *to = download_as(dtype, buffer->second);
  }
  const auto lse = impl_->outputs.find("LSE");
  if (lse != impl_->outputs.end()) out.LSE = download_as(DType::f32, lse->second);
  for (const auto& [name, buffer] : impl_->outputs) buffer.inspect_guard(out.damage);
  for (const auto& [name, buffer] : impl_->workspace) {
    buffer.inspect_guard(out.damage);
    if (impl_->zeroed.contains(name)) buffer.inspect_zeros(out.damage);
  }
  return out;
}

Outputs run(const Variant& v, const Problem& p, const Inputs& in) {
  Session session(p, in, v);
  if (v.prepare) session.prepare();
  session.forward();
  if (v.backward) session.backward();
  return session.download();
}

}  // namespace fa

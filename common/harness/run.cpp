#include "common/harness/run.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <stdexcept>
#include <string_view>

#include "common/counts/backend.h"
#include "common/counts/device_memory.h"
#include "common/counts/format.h"
#include "common/dialect/cuda.h"
#include "common/harness/parallel.h"
#include "common/harness/trace_file.h"

namespace fa {
namespace {

// A GPU does not report a write past the end of a buffer, so a band of known bytes follows each
// one. The simulator stops such a write at its source line; there a band would make it legal.
size_t guard_bytes() { return simulated() ? 0 : 4096; }
constexpr uint8_t kGuard = 0xa5;  // not the poison: a NaN written into the band must be visible

std::string gigabytes(size_t bytes) {
  return fmt::format("{:.1f} GB", static_cast<double>(bytes) / 1e9);
}

/// A tensor's memory, and perhaps a guard band after it.
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
  void upload(const std::vector<T>& from, size_t first = 0) {
    upload(from.data(), from.size(), first);
  }
  template <class T>
  void upload(const T* from, size_t n, size_t first) {
    cuda_check(
        cudaMemcpy(memory_.get() + first * sizeof(T), from, n * sizeof(T), cudaMemcpyHostToDevice));
  }

  void poison(size_t first, size_t bytes) { poison_device_memory(memory_.get() + first, bytes); }

  /// Sets all to NaN and restores the guard band.
  void poison() {
    poison_device_memory(data(), bytes_);
    if (guard() == 0) return;
    cuda_check(cudaMemset(memory_.get() + bytes_, kGuard, guard()));
  }

  void zero() { zero_device_memory(data(), bytes_); }

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

/// The bits of an e4m3 value: sign, 4 bits of exponent (bias 7), 3 of mantissa.
uint8_t to_e4m3_bits(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint8_t>(u >> 24 & 0x80);
  const float size = std::abs(x);
  if (size < 0x1p-6f) return sign | static_cast<uint8_t>(size * 512);
  return sign | static_cast<uint8_t>((u >> 20 & 0x7ff) - (127 - 7) * 8);
}

constexpr size_t kPiece = 1 << 22;  // elements converted at a time, to save host memory

void upload_as(DType dtype, const std::vector<float>& from, DeviceBuffer& to) {
  if (dtype == DType::f32) return to.upload(from);
  std::vector<uint16_t> bits(std::min(kPiece, from.size()));
  for (size_t first = 0; first < from.size(); first += kPiece) {
    const size_t n = std::min(kPiece, from.size() - first);
    parallel_chunks(n, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) bits[i] = to_bf16_bits(from[first + i]);
    });
    to.upload(bits.data(), n, first);
  }
}

std::vector<float> download_as(DType dtype, const DeviceBuffer& from) {
  if (dtype == DType::f32) return from.download<float>();
  const std::vector<uint16_t> bits = from.download<uint16_t>();
  std::vector<float> to(bits.size());
  parallel_chunks(to.size(), [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      // Extends 16 set bits to 32, so that never_written() recognises both.
      const uint32_t low = bits[i] == 0xffff ? 0xffff : 0;
      to[i] = std::bit_cast<float>(static_cast<uint32_t>(bits[i]) << 16 | low);
    }
  });
  return to;
}

void require_type(const char* what, const Runner& f, const Problem& p) {
  if (f && f.dtype() != p.dtype) {
    throw std::invalid_argument(fmt::format("the {} computes in {}, the problem is {}", what,
                                            name_of(f.dtype()), name_of(p.dtype)));
  }
}

bool cached(const Tensor& t, const Problem& p) { return t.is_kv() && p.cache != CacheFormat{}; }

size_t element_bytes(const Tensor& t, const Problem& p) {
  return t.is_kv() && p.cache.fp8 ? 1 : t.layout(p).element_bytes;
}

/// Rows of K and V on the device, including those without a key.
size_t cache_rows(const Problem& p, const std::vector<int>& table) {
  if (p.cache.page == 0) return p.kv_heads() * p.Nk;
  const size_t pages = table.empty() ? std::max<size_t>(1, needed_pages(p)) : pool_pages(p, table);
  return pages * p.Hkv * p.cache.page;
}

/// The row of K and V on the device that holds key c of a head.
size_t cache_row(const Problem& p, const std::vector<int>& table, size_t head, int c) {
  if (p.cache.page == 0) return head * p.Nk + c;
  const size_t b = head / p.Hkv, h = head % p.Hkv;
  const size_t page = table[b * p.pages() + c / p.cache.page];
  return (page * p.Hkv + h) * p.cache.page + c % p.cache.page;
}

/// Stores one row of K or V in its device type.
/// \param scale of e4m3
/// \throws std::invalid_argument for a value that quantise_cache() has not rounded to e4m3.
void store_row(const char* name, const Problem& p, const float* from, float scale, uint8_t* to) {
  for (int x = 0; x < p.d; ++x) {
    if (p.cache.fp8) {
      const float value = from[x] / scale, held = round_to(DType::e4m3, value);
      if (!(std::abs(value - held) <= 0x1p-22f * std::abs(held))) {
        throw std::invalid_argument(fmt::format(
            "{} has a {} that is not {} * e4m3: see quantise_cache()", name, from[x], scale));
      }
      to[x] = to_e4m3_bits(held);
    } else if (p.dtype == DType::f32) {
      std::memcpy(to + x * sizeof(float), &from[x], sizeof(float));
    } else {
      const uint16_t bits = to_bf16_bits(from[x]);
      std::memcpy(to + x * sizeof bits, &bits, sizeof bits);
    }
  }
}

}  // namespace

MemoryNeed memory_need(const Problem& p, const Variant& v, const std::vector<int>& table) {
  MemoryNeed need;
  for (const Tensor* t : tensors_of(v, p)) {
    (t->output ? need.outputs : need.inputs) +=
        cached(*t, p) ? cache_rows(p, table) * p.d * element_bytes(*t, p) : t->bytes(p);
  }
  for (const Scratch& s : workspace_of(v, p)) need.workspace += s.bytes;
  for (const Table& t : tables_of(v, p)) need.workspace += sizeof(int) * t.values.size();
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
  struct Held {
    const Tensor* tensor;
    DeviceBuffer buffer;
  };

  Problem problem;
  Variant variant;
  std::map<std::string, Held> held;
  std::map<std::string, DeviceBuffer> workspace, tables;
  std::set<std::string> zeroed;  // pieces of the workspace
  std::map<std::string, void*> workspace_pointers;
  std::vector<int> table;  // of a paged cache
  Tensors<void> tensors;

  /// A cache's lengths or its table; null for a tensor of other numbers.
  const std::vector<int>* integers_of(const Tensor& t) const {
    const std::string_view name = t.name;
    return name == "lengths" ? &problem.cache.lengths : name == "table" ? &table : nullptr;
  }

  void add(const Tensor& t, const Inputs& in) {
    const Problem& p = problem;
    const bool cache = cached(t, p);
    const size_t rows = cache ? cache_rows(p, table) : 0;
    const size_t bytes = cache ? rows * p.d * element_bytes(t, p) : t.bytes(p);
    const auto require_size = [&](size_t has) {
      if (has == t.elements(p)) return;
      throw std::invalid_argument(
          fmt::format("{} has {} elements instead of {}", t.name, has, t.elements(p)));
    };
    if (t.input) require_size((in.*t.input).size());
    const std::vector<int>* integers = integers_of(t);
    if (integers) require_size(integers->size());
    DeviceBuffer& buffer =
        held.try_emplace(t.name, &t, DeviceBuffer(t.name, bytes, t.output ? guard_bytes() : 0))
            .first->second.buffer;
    if (cache) {
      upload_cache(t, in, buffer);
    } else if (integers) {
      buffer.upload(*integers);
    } else if (t.input) {
      upload_as(t.type ? DType::f32 : p.dtype, in.*t.input, buffer);
    }
    buffer.shape(layout_of(t));
    t.device.put(tensors, buffer.data());
  }

  /// Uploads K or V where rows may hold no key, or are 8-bit.
  void upload_cache(const Tensor& t, const Inputs& in, DeviceBuffer& buffer) const {
    const Problem& q = problem;
    const std::vector<float>& from = in.*t.input;
    const std::vector<float>& scales = t.input == &Inputs::K ? in.K_scale : in.V_scale;
    const size_t row_bytes = q.d * element_bytes(t, q), rows = cache_rows(q, table);
    std::vector<uint8_t> bytes(rows * row_bytes);
    std::vector<char> filled(rows);
    parallel_for(q.kv_heads(), [&] {
      return [&](size_t head) {
        for (int c = 0; c < q.keys_of(head / q.Hkv); ++c) {
          const size_t row = cache_row(q, table, head, c);
          store_row(t.name, q, &from[(head * q.Nk + c) * q.d], q.cache.fp8 ? scales[head] : 1,
                    &bytes[row * row_bytes]);
          filled[row] = true;
        }
      };
    });
    buffer.upload(bytes);
    for (size_t row = 0, next; row < rows; row = next) {
      next = row + 1;
      if (filled[row]) continue;
      while (next < rows && !filled[next]) ++next;
      buffer.poison(row * row_bytes, (next - row) * row_bytes);
    }
  }

  /// Tensor::layout() knows neither pages nor 8 bits.
  Layout layout_of(const Tensor& t) const {
    const Problem& p = problem;
    Layout layout = t.layout(p);
    layout.element_bytes = static_cast<unsigned>(element_bytes(t, p));
    if (t.is_kv() && p.cache.page != 0) {
      layout.rows = p.cache.page;
      layout.matrices = cache_rows(p, table) / layout.rows;
    }
    return layout;
  }

  void forget(Role role) {
    for (auto& [name, h] : held) {
      if (h.tensor->role == role) h.buffer.poison();
    }
  }
};

Session::Session(const Problem& p, const Inputs& in, const Variant& v)
    : impl_(std::make_unique<Impl>()) {
  require_type("prepare", v.prepare, p);
  require_type("forward", v.forward, p);
  require_type("backward", v.backward, p);
  if (p.cache.fp8 != v.extras.cache8) {
    throw std::invalid_argument(fmt::format("the step's K and V are of {} bits, the problem's not",
                                            v.extras.cache8 ? 8 : 8 * bytes_of(p.dtype)));
  }
  Impl& s = *impl_;
  s.problem = p;
  s.variant = v;
  if (p.cache.page != 0) {
    s.table = in.table.empty() ? shuffled_table(p, /*seed=*/1) : in.table;
    validate_table(p, s.table, "the page table");
  }
  require_memory(memory_need(p, v, s.table));
  for (const Tensor* t : tensors_of(v, p)) s.add(*t, in);
  for (const Scratch& piece : workspace_of(v, p)) {
    const auto [at, inserted] =
        s.workspace.try_emplace(piece.name, piece.name, piece.bytes, guard_bytes());
    if (!inserted) throw std::invalid_argument("two pieces of workspace named " + piece.name);
    at->second.shape(workspace_layout(piece.name, piece.bytes, p));
    s.workspace_pointers[piece.name] = at->second.data();
    if (piece.zeroed) s.zeroed.insert(piece.name);
  }
  for (const Table& table : tables_of(v, p)) {
    DeviceBuffer buffer(table.name, sizeof(int) * table.values.size(), 0);
    buffer.upload(table.values);
    s.workspace_pointers[table.name] = buffer.data();
    s.tables.try_emplace(table.name, std::move(buffer));
  }
  s.tensors.workspace = &s.workspace_pointers;
  poison();
}

Session::~Session() = default;

void Session::prepare() { impl_->variant.prepare(impl_->problem, impl_->tensors); }
void Session::forward() { impl_->variant.forward(impl_->problem, impl_->tensors); }
void Session::backward() { impl_->variant.backward(impl_->problem, impl_->tensors); }

void Session::poison() {
  forget_forward();
  forget_backward();
  for (auto& [name, buffer] : impl_->workspace) {
    buffer.poison();
    if (impl_->zeroed.contains(name)) buffer.zero();
  }
}

void Session::forget_forward() { impl_->forget(Role::output); }
void Session::forget_backward() { impl_->forget(Role::backward_output); }

void Session::forget_prepare() {
  for (auto& [name, buffer] : impl_->workspace) {
    if (!impl_->zeroed.contains(name)) buffer.poison();
  }
}

bool Session::keeps_state() const { return !impl_->zeroed.empty(); }

Outputs Session::download() {
  cuda_check(cudaDeviceSynchronize());
  Outputs out;
  for (const auto& [name, h] : impl_->held) {
    if (!h.tensor->output) continue;
    out.*h.tensor->output =
        download_as(h.tensor->type ? DType::f32 : impl_->problem.dtype, h.buffer);
    h.buffer.inspect_guard(out.damage);
  }
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

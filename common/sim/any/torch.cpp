// The tensors of include/torch_extension.h. Compiled as a user's kernels are: PyTorch's only kernel
// here, element by element, is counted, timed and watched as any other.
#define FA_ANY_PROGRAM
#include "common/sim/any/include/torch_extension.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "common/sim/sim.h"

namespace c10 {

namespace {

/// A type of elements: its names in C++ and in Python, and how a kernel reads and writes one.
struct Element {
  ScalarType type;
  const char *name, *text;
  size_t size;
  double (*load)(const void*, int64_t);
  void (*store)(void*, int64_t, double);
};
#define SIM_TYPE(T, name, number, text)                                                       \
  {ScalarType::name,                                                                          \
   #name,                                                                                     \
   text,                                                                                      \
   sizeof(T),                                                                                 \
   [](const void* p, int64_t i) { return static_cast<double>(static_cast<const T*>(p)[i]); }, \
   [](void* p, int64_t i, double v) { static_cast<T*>(p)[i] = static_cast<T>(v); }},
constexpr Element kTypes[] = {
    SIM_TYPES(SIM_TYPE){ScalarType::Undefined, "Undefined", "", 0, nullptr, nullptr}};
#undef SIM_TYPE
const Element& element(ScalarType type) {
  const Element* t = kTypes;
  while (t->size && t->type != type) ++t;
  return *t;
}

}  // namespace

const char* toString(ScalarType t) { return element(t).name; }
const char* text_of(ScalarType t) { return element(t).text; }
size_t elementSize(ScalarType t) { return element(t).size; }
ScalarType type_named(const std::string& text) {
  for (const Element& t : kTypes) {
    if (text == t.text) return t.type;
  }
  throw Error("no type " + text);
}

}  // namespace c10

namespace at {

namespace {

int64_t product(IntArrayRef sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

std::vector<int64_t> row_major(IntArrayRef sizes) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * sizes[i];
  return strides;
}

/// With the one -1 among them computed.
std::vector<int64_t> completed(IntArrayRef sizes, int64_t numel) {
  std::vector<int64_t> all = sizes.vec();
  const auto open = std::find(all.begin(), all.end(), -1);
  if (open != all.end()) {
    *open = 1;
    const int64_t others = product(all);
    TORCH_CHECK(others > 0 && numel % others == 0, "shape '", sizes,
                "' is invalid for input of size ", numel);
    *open = numel / others;
  }
  TORCH_CHECK(product(all) == numel, "shape '", sizes, "' is invalid for input of size ", numel);
  return all;
}

}  // namespace

// --- memory --------------------------------------------------------------------------------------

Storage::Storage(size_t n, bool on_device) : size(n), cuda(on_device) {
  if (!cuda) {
    bytes = std::calloc(1, std::max<size_t>(n, 1));
    return;
  }
  C10_CUDA_CHECK(cudaMalloc(&bytes, std::max<size_t>(n, 1)));
  sim::poison(bytes, std::max<size_t>(n, 1));
}
Storage::~Storage() {
  if (!owned) return;
  cuda ? (void)cudaFree(bytes) : std::free(bytes);
}

Tensor::Tensor(IntArrayRef sizes, ScalarType type, bool cuda) : Tensor(nullptr, sizes, type) {
  for (const int64_t n : sizes) TORCH_CHECK(n >= 0, "a tensor of sizes ", sizes);
  storage_ = std::make_shared<Storage>(numel() * elementSize(type), cuda);
  std::string text = type == kFloat ? "f32" : type == kHalf ? "f16" : c10::toString(type);
  for (const int64_t n : sizes)
    text += (text.find(' ') == text.npos ? " " : "x") + std::to_string(n);
  name(text);
}
Tensor::Tensor(std::shared_ptr<Storage> storage, IntArrayRef sizes, ScalarType type)
    : storage_(std::move(storage)), sizes_(sizes.vec()), strides_(row_major(sizes)), type_(type) {}

const Tensor& Tensor::name(const std::string& text) const {
  if (is_cuda()) sim::name_buffer(storage_->bytes, text);
  return *this;
}
Tensor from_blob(void* p, IntArrayRef sizes, TensorOptions o) {
  const size_t bytes = product(sizes) * elementSize(o.dtype());
  return {std::make_shared<Storage>(p, bytes, o.device().is_cuda()), sizes, o.dtype()};
}
Tensor empty(IntArrayRef sizes, TensorOptions o, std::optional<MemoryFormat>) {
  return {sizes, o.dtype(), o.device().is_cuda()};
}
Tensor full(IntArrayRef sizes, Scalar value, TensorOptions o) {
  return empty(sizes, o).fill_(value);
}

// --- what it is ----------------------------------------------------------------------------------

int64_t Tensor::numel() const { return product(sizes_); }
size_t Tensor::axis(int64_t i) const {
  TORCH_CHECK(i >= -dim() && i < dim(), "Dimension out of range (expected to be in range of [",
              -dim(), ", ", dim() - 1, "], but got ", i, ")");
  return i < 0 ? i + dim() : i;
}
bool Tensor::is_contiguous(MemoryFormat) const {
  int64_t stride = 1;
  for (size_t i = sizes_.size(); i-- > 0;) {
    if (sizes_[i] != 1 && strides_[i] != stride) return numel() == 0;
    stride *= sizes_[i];
  }
  return true;
}
void* Tensor::data_ptr() const {
  return storage_ ? static_cast<char*>(storage_->bytes) + offset_ * element_size() : nullptr;
}
void Tensor::need_type(ScalarType t) const {
  TORCH_CHECK(t == type_, "expected scalar type ", t, " but found ", type_);
}
void Tensor::need_dim(size_t n) const {
  TORCH_CHECK(n == sizes_.size(), "TensorAccessor expected ", n, " dims but tensor has ", dim());
}
double Tensor::number() const {
  TORCH_CHECK(numel() == 1, "a Tensor with ", numel(), " elements cannot be converted to Scalar");
  const Tensor t = to(TensorOptions(kDouble).device(kCPU));
  return *static_cast<double*>(t.data_ptr());
}
std::ostream& operator<<(std::ostream& out, const Tensor& t) {
  return out << "a tensor of sizes " << t.sizes();
}

// --- views ---------------------------------------------------------------------------------------

Tensor Tensor::with(std::vector<int64_t> sizes, std::vector<int64_t> strides,
                    int64_t offset) const {
  Tensor t = *this;
  t.sizes_ = std::move(sizes);
  t.strides_ = std::move(strides);
  t.offset_ = offset;
  return t;
}
Tensor Tensor::view(IntArrayRef sizes) const {
  const std::vector<int64_t> wanted = completed(sizes, numel());
  if (is_contiguous()) return with(wanted, row_major(wanted), offset_);
  // Each old axis is cut into new ones, or follows its neighbour without a gap.
  std::vector<int64_t> strides(wanted.size());
  int64_t at = static_cast<int64_t>(wanted.size()) - 1;
  for (int64_t old = dim() - 1; old >= 0;) {
    int64_t size = sizes_[old], stride = strides_[old];
    while (old > 0 && (sizes_[old] == 1 || strides_[old - 1] == sizes_[old] * strides_[old])) {
      size *= sizes_[--old];
    }
    --old;
    int64_t done = 1;
    for (; at >= 0 && (done < size || wanted[at] == 1); --at) {
      strides[at] = stride * done;
      done *= wanted[at];
    }
    TORCH_CHECK(done == size,
                "view size is not compatible with input tensor's size and stride (at least one "
                "dimension spans across two contiguous subspaces). Use .reshape(...) instead.");
  }
  return with(wanted, strides, offset_);
}
Tensor Tensor::view(ScalarType t) const {
  TORCH_CHECK(elementSize(t) == element_size(), "view(", t, ") of a tensor of ", type_);
  Tensor other = *this;
  other.type_ = t;
  return other;
}
Tensor Tensor::permute(IntArrayRef axes) const {
  TORCH_CHECK(axes.size() == sizes_.size(), "permute: ", axes, " of a tensor of sizes ", sizes());
  std::vector<int64_t> s, t;
  for (const int64_t i : axes) s.push_back(size(i)), t.push_back(stride(i));
  return with(s, t, offset_);
}
Tensor Tensor::transpose(int64_t i, int64_t k) const {
  Tensor t = *this;
  std::swap(t.sizes_[axis(i)], t.sizes_[axis(k)]);
  std::swap(t.strides_[axis(i)], t.strides_[axis(k)]);
  return t;
}
Tensor Tensor::slice(int64_t i, std::optional<int64_t> first, std::optional<int64_t> last,
                     int64_t step) const {
  const int64_t n = size(i);
  const auto limited = [n](int64_t x) { return std::clamp<int64_t>(x < 0 ? x + n : x, 0, n); };
  const int64_t begin = limited(first.value_or(0)), end = limited(last.value_or(n));
  Tensor t = *this;
  t.sizes_[axis(i)] = std::max<int64_t>(0, (end - begin + step - 1) / step);
  t.strides_[axis(i)] *= step;
  t.offset_ += begin * stride(i);
  return t;
}
Tensor Tensor::narrow(int64_t i, int64_t first, int64_t count) const {
  return slice(i, first, first + count);
}
Tensor Tensor::select(int64_t i, int64_t at) const {
  const int64_t n = size(i);
  TORCH_CHECK(at >= -n && at < n, "index ", at, " is out of bounds for dimension with size ", n);
  Tensor t = narrow(i, at < 0 ? at + n : at, 1);
  return t.squeeze(i);
}
Tensor Tensor::index(std::initializer_list<indexing::TensorIndex> all) const {
  Tensor t = *this;
  const auto is_none = [](auto& one) { return std::holds_alternative<std::nullopt_t>(one.value); };
  int64_t at = 0, left = std::count_if(all.begin(), all.end(), std::not_fn(is_none));  // of axes
  for (const indexing::TensorIndex& one : all) {
    left -= !is_none(one);
    if (auto* i = std::get_if<int64_t>(&one.value)) {
      t = t.select(at, *i);
    } else if (auto* s = std::get_if<indexing::Slice>(&one.value)) {
      t = t.slice(at++, s->first, s->last, s->step);
    } else if (is_none(one)) {
      t = t.unsqueeze(at++);
    } else {
      at = t.dim() - left;
    }
  }
  return t;
}
Tensor Tensor::squeeze() const {
  Tensor t = *this;
  for (int64_t i = dim() - 1; i >= 0; --i) t = t.squeeze(i);
  return t;
}
Tensor Tensor::squeeze(int64_t i) const {
  Tensor t = *this;
  if (size(i) != 1) return t;
  t.sizes_.erase(t.sizes_.begin() + axis(i));
  t.strides_.erase(t.strides_.begin() + axis(i));
  return t;
}
Tensor Tensor::unsqueeze(int64_t i) const {
  Tensor t = *this;
  const int64_t at = i < 0 ? i + dim() + 1 : i;
  t.sizes_.insert(t.sizes_.begin() + at, 1);
  t.strides_.insert(t.strides_.begin() + at, at < dim() ? size(at) * stride(at) : 1);
  return t;
}
Tensor Tensor::expand(IntArrayRef wanted) const {
  std::vector<int64_t> s = wanted.vec(), t(wanted.size(), 0);
  const int64_t before = static_cast<int64_t>(wanted.size()) - dim();
  TORCH_CHECK(before >= 0, "expand: ", wanted, " of a tensor of sizes ", sizes());
  for (int64_t i = 0; i < dim(); ++i) {
    int64_t& n = s[before + i];
    if (n == -1) n = sizes_[i];
    TORCH_CHECK(n == sizes_[i] || sizes_[i] == 1, "The expanded size of the tensor (", n,
                ") must match the existing size (", sizes_[i], ") at dimension ", i);
    if (sizes_[i] != 1 || n == 1) t[before + i] = strides_[i];
  }
  return with(s, t, offset_);
}
Tensor Tensor::flatten(int64_t first, int64_t last) const {
  std::vector<int64_t> s;
  for (int64_t i = 0; i < dim(); ++i) {
    const bool joins =
        i > static_cast<int64_t>(axis(first)) && i <= static_cast<int64_t>(axis(last));
    joins ? (void)(s.back() *= sizes_[i]) : s.push_back(sizes_[i]);
  }
  return reshape(s);
}
// --- copies and arithmetic, by a kernel ----------------------------------------------------------

namespace {

enum class Op { copy, add, sub, mul, div };

/// A tensor as the kernel sees it; stride 0 repeats an element.
constexpr int kMostAxes = 8;
struct Elements {
  void* p;
  int64_t strides[kMostAxes];
  const c10::Element* type;
  double operator[](int64_t i) const { return type->load(p, i); }
};
/// to = a op b, of `count` elements with these sizes; b is the number where b.p is null.
struct Elementwise {
  Elements to, a, b;
  Op op;
  double number;
  int64_t sum, step;  ///< how many elements of a, `step` apart, add up to one; 1: no sum
  int axes;
  int64_t sizes[kMostAxes];

  void operator()(int64_t i) const {
    int64_t rest = i, at = 0, in_a = 0, in_b = 0;
    for (int axis = axes - 1; axis >= 0; rest /= sizes[axis--]) {
      const int64_t k = rest % sizes[axis];
      at += k * to.strides[axis], in_a += k * a.strides[axis], in_b += k * b.strides[axis];
    }
    double x = a.p ? a[in_a] : number;
    for (int64_t k = 1; k < sum; ++k) x += a[in_a + k * step];
    const double y = op == Op::copy ? 0 : b.p ? b[in_b] : number;
    to.type->store(to.p, at,
                   op == Op::add   ? x + y
                   : op == Op::sub ? x - y
                   : op == Op::mul ? x * y
                   : op == Op::div ? x / y
                                   : x);
  }
};

}  // namespace

struct Kernels {
  static Elements elements(const Tensor& t, const Tensor& to) {
    const Tensor as = t.defined() && t.numel() >= 0 ? t.expand(to.sizes()) : t;
    Elements e{t.defined() ? t.data_ptr() : nullptr, {}, &c10::element(t.type_)};
    std::copy(as.strides_.begin(), as.strides_.end(), e.strides);
    return e;
  }
  /// to = a op b (or the number), broadcast; `sum`: the axis of `a` that is added up.
  static void run(const Tensor& to, const Tensor& a, const Tensor& b, Op op, double number,
                  int64_t sum = 1, int64_t step = 0) {
    TORCH_CHECK(to.dim() <= kMostAxes, "a tensor of ", to.dim(), " dimensions");
    for (const Tensor& t : {a, b}) {
      TORCH_CHECK(!t.defined() || t.is_cuda() == to.is_cuda() || t.dim() == 0,
                  "Expected all tensors to be on the same device, but found at least two devices");
    }
    Elementwise one{elements(to, to), elements(a, to), elements(b, to), op, number, sum, step};
    one.axes = static_cast<int>(to.dim());
    std::copy(to.sizes_.begin(), to.sizes_.end(), one.sizes);
    const int64_t count = to.numel();
    if (!to.is_cuda()) {
      for (int64_t i = 0; i < count; ++i) one(i);
    } else if (count != 0) {
      constexpr int kThreads = 256;
      const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
      sim::any::launch(
          "PyTorch's copy", sim::any::Shape(blocks, kThreads), false,
          [](sim::any::Leave leave, const Elementwise& one, int64_t count) {
            const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
            if (i < count) one(i);
            leave();
          },
          one, count);
    }
  }
  /// Of two types the result has the one of the higher rank.
  static std::pair<bool, size_t> rank(ScalarType t) {
    return {isFloatingType(t), t == kBool ? 0 : elementSize(t)};
  }
  static Tensor combined(const Tensor& a, const Tensor& b, Op op, Scalar number) {
    const Tensor& first = a.defined() ? a : b;
    std::vector<int64_t> sizes = first.sizes_;
    if (a.defined() && b.defined()) {
      if (b.dim() > a.dim()) sizes = b.sizes_;
      const Tensor& fewer = b.dim() > a.dim() ? a : b;
      for (int64_t i = 1; i <= fewer.dim(); ++i) {
        int64_t& n = sizes[sizes.size() - i];
        if (n == 1) n = fewer.size(-i);
      }
    }
    ScalarType type = first.type_;
    if (a.defined() && b.defined() && rank(b.type_) > rank(type)) type = b.type_;
    if (!isFloatingType(type) && (op == Op::div || !number.integral)) type = kFloat;
    const Tensor to = empty(sizes, first.options().dtype(type));
    run(to, a, b, op, number.value);
    return to;
  }
};
#undef SIM_ELEMENTWISE
#define SIM_ELEMENTWISE(sign, name)                        \
  Tensor operator sign(const Tensor& a, const Tensor& b) { \
    return Kernels::combined(a, b, Op::name, 0);           \
  }                                                        \
  Tensor operator sign(const Tensor& a, Scalar b) {        \
    return Kernels::combined(a, {}, Op::name, b);          \
  }                                                        \
  Tensor operator sign(Scalar a, const Tensor& b) { return Kernels::combined({}, b, Op::name, a); }
SIM_ELEMENTWISE(+, add)
SIM_ELEMENTWISE(-, sub)
SIM_ELEMENTWISE(*, mul)
SIM_ELEMENTWISE(/, div)

const Tensor& Tensor::fill_(Scalar v) const {
  if (is_cuda() && v.value == 0 && is_contiguous()) {
    C10_CUDA_CHECK(cudaMemset(data_ptr(), 0, nbytes()));
  } else {
    Kernels::run(*this, {}, {}, Op::copy, v.value);
  }
  return *this;
}
const Tensor& Tensor::copy_(const Tensor& from, bool) const {
  const bool alike = type_ == from.type_ && is_contiguous() && from.is_contiguous();
  if (alike && sizes_ == from.sizes_) {
    C10_CUDA_CHECK(cudaMemcpy(data_ptr(), from.data_ptr(), nbytes(), cudaMemcpyDefault));
  } else if (is_cuda() == from.is_cuda()) {
    Kernels::run(*this, from, {}, Op::copy, 0);
  } else {  // copies as it is, and converts there
    const Tensor there(from.sizes_, from.type_, is_cuda());
    there.copy_(from.contiguous());
    copy_(there);
  }
  return *this;
}
Tensor Tensor::clone(std::optional<MemoryFormat>) const {
  const Tensor t = empty(sizes_, options());
  t.copy_(*this);
  return t;
}
Tensor Tensor::contiguous(MemoryFormat) const { return is_contiguous() ? *this : clone(); }
Tensor Tensor::reshape(IntArrayRef sizes) const {
  const std::vector<int64_t> wanted = completed(sizes, numel());
  try {
    return view(wanted);
  } catch (const Error&) {
    return clone().view(wanted);
  }
}
Tensor Tensor::to(TensorOptions o, bool, bool copy) const {
  const TensorOptions wanted = like(*this, o);
  if (!copy && wanted.dtype() == type_ && wanted.device() == device()) return *this;
  const Tensor t = empty(sizes_, wanted);
  t.copy_(*this);
  return t;
}
Tensor Tensor::sum(int64_t i, bool keep) const {
  const Tensor one = narrow(i, 0, 1);
  const Tensor to = empty(one.sizes_, options());
  Kernels::run(to, one, {}, Op::copy, 0, size(i), stride(i));
  return keep ? to : to.squeeze(i);
}

Tensor cat(TensorList all, int64_t i) {
  std::vector<int64_t> sizes = all.front().sizes().vec();
  int64_t& joined = sizes[i < 0 ? i + all.front().dim() : i];
  joined = 0;
  for (const Tensor& t : all) joined += t.size(i);
  const Tensor to = empty(sizes, all.front().options());
  int64_t at = 0;
  for (const Tensor& t : all) at += to.narrow(i, at, t.size(i)).copy_(t).size(i);
  return to;
}
Tensor stack(TensorList all, int64_t i) {
  std::vector<Tensor> higher;
  for (const Tensor& t : all) higher.push_back(t.unsqueeze(i));
  return cat(higher, i);
}

cublasHandle_t cuda::getCurrentCUDABlasHandle() {
  static cublasHandle_t handle = [] {
    cublasHandle_t made;
    cublasCreate(&made);
    return made;
  }();
  return handle;
}

}  // namespace at

at::Tensor torch::nn::functional::pad(const Tensor& t, const PadFuncOptions& o) {
  std::vector<int64_t> sizes = t.sizes().vec();
  for (size_t i = 0; i < o.pad.size(); ++i) sizes[sizes.size() - 1 - i / 2] += o.pad[i];
  const Tensor to = zeros(sizes, t.options());
  Tensor inside = to;
  for (size_t i = 0; i < o.pad.size(); i += 2) {
    const auto axis = -1 - static_cast<int64_t>(i / 2);
    inside = inside.narrow(axis, o.pad[i], t.size(axis));
  }
  inside.copy_(t);
  return to;
}

// --- bindings ------------------------------------------------------------------------------------

namespace sim::torch {
std::vector<Function>& functions() {
  static auto& all = *new std::vector<Function>;
  return all;
}
}  // namespace sim::torch

namespace {
/// The function of this name; TORCH_LIBRARY may define it before or after its implementation.
sim::torch::Function& known(const std::string& name) {
  for (auto& f : sim::torch::functions()) {
    if (f.name == name) return f;
  }
  sim::torch::functions().push_back({name, nullptr, {}, {}});
  return sim::torch::functions().back();
}
}  // namespace

// "fwd(Tensor q, Tensor? lse=None, bool causal=False) -> Tensor"
std::string torch::Library::schema_of(const std::string& schema) {
  const size_t open = schema.find('('), close = schema.rfind(')');
  sim::torch::Function& f = known(schema.substr(0, open));
  if (open == schema.npos || close == schema.npos) return f.name;
  std::istringstream words(
      schema.substr(open + 1, schema.rfind(')', schema.find("->")) - open - 1));
  size_t i = 0;
  for (std::string word; std::getline(words, word, ','); ++i) {
    word = word.substr(0, word.find('='));
    word.erase(word.find_last_not_of(' ') + 1);
    if (f.parameters.size() <= i) f.parameters.push_back({});
    f.parameters[i].name = word.substr(word.rfind(' ') + 1);
  }
  return f.name;
}
void torch::Library::add(sim::torch::Function made) {
  sim::torch::Function& f = known(made.name);
  for (size_t i = 0; i < std::min(f.parameters.size(), made.parameters.size()); ++i) {
    made.parameters[i].name = f.parameters[i].name;
  }
  f = std::move(made);
}

// Compiled as a user's kernels are.
#define FA_ANY_PROGRAM
#include "common/sim/any/include/torch_extension.h"

#include "common/sim/any/torch_kernels.h"

namespace sim::torch {

#define SIM_TYPE(T, name, number, text)                                                       \
  {number,                                                                                    \
   #name,                                                                                     \
   text,                                                                                      \
   sizeof(T),                                                                                 \
   [](const void* p, int64_t i) { return static_cast<double>(static_cast<const T*>(p)[i]); }, \
   [](void* p, int64_t i, double v) { static_cast<T*>(p)[i] = static_cast<T>(v); }},
constexpr ElementType kTypes[] = {
    SIM_TYPES(SIM_TYPE){int(c10::ScalarType::Undefined), "Undefined", "", 0, nullptr, nullptr}};
#undef SIM_TYPE
std::span<const ElementType> element_types() { return kTypes; }
const ElementType& element_type(int number) {
  const ElementType* t = kTypes;
  while (t->size && t->number != number) ++t;
  return *t;
}

namespace {

double load(const Elements& e, int64_t i) { return e.type->load(e.p, i); }

double combined(Op op, double a, double b) {
  return op == Op::add   ? a + b
         : op == Op::sub ? a - b
         : op == Op::mul ? a * b
         : op == Op::div ? a / b
                         : a;
}

void one(const Elementwise& e, int64_t i) {
  int64_t rest = i, to = 0, a = 0, b = 0;
  for (int axis = e.axes - 1; axis >= 0; --axis) {
    const int64_t at = rest % e.sizes[axis];
    rest /= e.sizes[axis];
    to += at * e.to.strides[axis];
    a += at * e.a.strides[axis];
    b += at * e.b.strides[axis];
  }
  double value = e.a.p ? load(e.a, a) : e.number;
  for (int64_t k = 1; k < e.sum; ++k) value += load(e.a, a + k * e.step);
  if (e.op != Op::copy) value = combined(e.op, value, e.b.p ? load(e.b, b) : e.number);
  e.to.type->store(e.to.p, to, value);
}

}  // namespace

void run(const Elementwise& e) {
  if (e.count == 0) return;
  if (e.host) {
    for (int64_t i = 0; i < e.count; ++i) one(e, i);
    return;
  }
  constexpr unsigned kThreads = 256;
  const auto blocks = static_cast<unsigned>((e.count + kThreads - 1) / kThreads);
  any::launch(
      "PyTorch's copy", any::Shape(blocks, kThreads), false,
      [](any::Leave leave, const Elementwise& e) {
        const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
        if (i < e.count) one(e, i);
        leave();
      },
      e);
}

}  // namespace sim::torch

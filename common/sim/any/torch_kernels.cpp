// Compiled as a user's kernels are.
#define FA_ANY_PROGRAM
#include "common/sim/any/torch_kernels.h"

#include "common/sim/any/include/cuda_bf16.h"
#include "common/sim/any/include/cuda_fp16.h"

namespace sim::torch {

namespace {

double load(const Elements& e, int64_t i) {
  switch (e.type) {
    case 0:
      return static_cast<const uint8_t*>(e.p)[i];
    case 1:
      return static_cast<const int8_t*>(e.p)[i];
    case 2:
      return static_cast<const int16_t*>(e.p)[i];
    case 3:
      return static_cast<const int32_t*>(e.p)[i];
    case 4:
      return static_cast<double>(static_cast<const int64_t*>(e.p)[i]);
    case 5:
      return float{static_cast<const __half*>(e.p)[i]};
    case 6:
      return static_cast<const float*>(e.p)[i];
    case 7:
      return static_cast<const double*>(e.p)[i];
    case 11:
      return static_cast<const bool*>(e.p)[i];
    default:
      return float{static_cast<const __nv_bfloat16*>(e.p)[i]};
  }
}

void store(const Elements& e, int64_t i, double v) {
  switch (e.type) {
    case 0:
      static_cast<uint8_t*>(e.p)[i] = static_cast<uint8_t>(v);
      break;
    case 1:
      static_cast<int8_t*>(e.p)[i] = static_cast<int8_t>(v);
      break;
    case 2:
      static_cast<int16_t*>(e.p)[i] = static_cast<int16_t>(v);
      break;
    case 3:
      static_cast<int32_t*>(e.p)[i] = static_cast<int32_t>(v);
      break;
    case 4:
      static_cast<int64_t*>(e.p)[i] = static_cast<int64_t>(v);
      break;
    case 5:
      static_cast<__half*>(e.p)[i] = __half(static_cast<float>(v));
      break;
    case 6:
      static_cast<float*>(e.p)[i] = static_cast<float>(v);
      break;
    case 7:
      static_cast<double*>(e.p)[i] = v;
      break;
    case 11:
      static_cast<bool*>(e.p)[i] = v != 0;
      break;
    default:
      static_cast<__nv_bfloat16*>(e.p)[i] = __nv_bfloat16(static_cast<float>(v));
  }
}

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
  store(e.to, to, value);
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

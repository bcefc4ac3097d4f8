/// \file
/// PyTorch's kernels, of which the stand-in has one: element by element, with any strides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sim::torch {

constexpr int kMostAxes = 8;

/// A type of elements: its names in C++ and in Python, and how a kernel reads and writes one.
struct ElementType {
  int number;  ///< at::ScalarType
  const char *name, *text;
  size_t size;
  double (*load)(const void*, int64_t);
  void (*store)(void*, int64_t, double);
};
std::span<const ElementType> element_types();  ///< the last one is undefined
const ElementType& element_type(int number);

/// A tensor as the kernel sees it; stride 0 repeats an element.
struct Elements {
  void* p;
  int64_t strides[kMostAxes];
  const ElementType* type;
};
enum class Op : int { copy, add, sub, mul, div };

/// to = a op b, of `count` elements with these sizes; b is the number where b.p is null.
/// \param sum  how many elements of a, `step` apart, add up to one; 1: no sum
struct Elementwise {
  Elements to, a, b;
  Op op;
  double number;
  int64_t sizes[kMostAxes], count, sum, step;
  int axes;
  bool host;  ///< tensors of the host
};
/// Launches it, unless it is the host's: counted, timed and watched as any kernel.
void run(const Elementwise&);

}  // namespace sim::torch

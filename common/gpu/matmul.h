/// \file
/// A vendor's matrix product as a yardstick, where cuBLAS can be loaded.
#pragma once

#include <memory>

namespace fa::gpu {

enum class MatmulType {
  bf16,  ///< bf16 operands, fp32 sums: the tensor cores
  fp32,  ///< fp32 throughout, TF32 forbidden: the CUDA cores
};

/// C = A B of square n x n random matrices: a GPU that multiplies zeros draws less power.
class Matmul {
 public:
  Matmul(MatmulType type, int n);
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  /// False when cuBLAS could not be loaded or the device has no room.
  explicit operator bool() const;
  /// Queues one product on the default stream.
  void operator()() const;
  double flops() const { return 2.0 * n_ * n_ * n_; }

 private:
  struct Impl;
  int n_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fa::gpu

// An attention kernel of your own, as an extension of PyTorch: ./scripts/judge judges it.
#include <torch/extension.h>

constexpr int kRows = 128;  // query rows per block, one per thread

// O = softmax(scale * Q K^T + mask) V
template <int d>
__global__ void attention_kernel(const float* Q,  // [B*H, N, d]
                                 const float* K,  // [B*H, N, d]
                                 const float* V,  // [B*H, N, d]
                                 float* O,        // [B*H, N, d]
                                 int N, float scale, bool causal) {
  // Your kernel. Until it writes O, the judge says that O was never written.
}

// --- host ---------------------------------------------------------------------------------------

torch::Tensor forward(torch::Tensor Q, torch::Tensor K, torch::Tensor V, bool causal) {
  const int N = Q.size(2), d = Q.size(3);
  TORCH_CHECK(d == 32 || d == 64, "d must be 32 or 64");
  auto O = torch::empty_like(Q);
  const dim3 grid((N + kRows - 1) / kRows, Q.size(0) * Q.size(1));
  const auto kernel = d == 32 ? attention_kernel<32> : attention_kernel<64>;
  kernel<<<grid, kRows>>>(Q.data_ptr<float>(), K.data_ptr<float>(), V.data_ptr<float>(),
                          O.data_ptr<float>(), N, 1 / std::sqrt(float(d)), causal);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return O;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &forward); }

// Four styles of a forward, and mutants of each: programs/test_judge.py judges them.
#include <cuda_fp16.h>
#include <mma.h>
#include <torch/extension.h>

#include <vector>

using namespace nvcuda;

#define CHECK_INPUT(x)                                   \
  TORCH_CHECK(x.is_cuda(), #x " must be a CUDA tensor"); \
  TORCH_CHECK(x.is_contiguous(), #x " must be contiguous")

// --- [B, H, N, d], fp32, one thread per row; mutant 1: earlier sums are not rescaled, 2: each 32nd
// row is left out, 3: the last row misses a key, 4: reads one key too many
template <int mutant>
__global__ void per_row(const float* Q, const float* K, const float* V, float* O, int N, int d,
                        float scale, bool causal) {
  const int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= N) return;
  const size_t head = (size_t)blockIdx.y * N * d;
  float m = -INFINITY, l = 0.f, o[64] = {};
  const int keys = (causal ? r + 1 : N) + (mutant == 4);
  for (int c = mutant == 3 && r == N - 1 ? 1 : 0; c < keys; ++c) {
    float s = 0.f;
    for (int x = 0; x < d; ++x) s += Q[head + r * d + x] * K[head + c * d + x];
    s *= scale;
    const float m_new = fmaxf(m, s), alpha = mutant == 1 ? 1.f : expf(m - m_new);
    const float p = expf(s - m_new);
    for (int x = 0; x < d; ++x) o[x] = alpha * o[x] + p * V[head + c * d + x];
    l = alpha * l + p;
    m = m_new;
  }
  if (mutant == 2 && r % blockDim.x == 31) return;
  for (int x = 0; x < d; ++x) O[head + r * d + x] = o[x] / l;
}

template <int mutant>
torch::Tensor rows(torch::Tensor Q, torch::Tensor K, torch::Tensor V, bool causal) {
  CHECK_INPUT(Q);
  CHECK_INPUT(K);
  CHECK_INPUT(V);
  const int B = Q.size(0), H = Q.size(1), N = Q.size(2), d = Q.size(3);
  TORCH_CHECK(d <= 64, "d must be at most 64");
  auto O = torch::empty_like(Q);
  per_row<mutant><<<dim3((N + 31) / 32, B * H), 32>>>(Q.data_ptr<float>(), K.data_ptr<float>(),
                                                      V.data_ptr<float>(), O.data_ptr<float>(), N,
                                                      d, 1.0f / std::sqrt((float)d), causal);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return O;
}

// --- [B, N, H, d], tiles in shared memory, accessors, O and LSE among the arguments; mutant 1: no
// barrier before the next tile, 2: the tail of N is not masked, 3: LSE without its maximum
constexpr int kTile = 16;
template <class T>
using Tensor4 = torch::PackedTensorAccessor32<T, 4, torch::RestrictPtrTraits>;
template <class scalar_t, int mutant>
__global__ void tiled(Tensor4<scalar_t> Q, Tensor4<scalar_t> K, Tensor4<scalar_t> V,
                      Tensor4<scalar_t> O, float* LSE, float scale) {
  __shared__ float sK[kTile][65], sV[kTile][65];
  const int b = blockIdx.z, h = blockIdx.y, N = Q.size(1), d = Q.size(3);
  const int r = blockIdx.x * kTile + threadIdx.x;
  float m = -INFINITY, l = 0.f, o[64] = {};
  for (int first = 0; first < N; first += kTile) {
    const int c = first + threadIdx.x;
    for (int x = 0; x < d; ++x) {
      sK[threadIdx.x][x] = c < N ? float(K[b][c][h][x]) : 0.f;
      sV[threadIdx.x][x] = c < N ? float(V[b][c][h][x]) : 0.f;
    }
    __syncthreads();
    for (int k = 0; r < N && k < kTile; ++k) {
      float s = 0.f;
      for (int x = 0; x < d; ++x) s += float(Q[b][r][h][x]) * sK[k][x];
      s = first + k < N || mutant == 2 ? s * scale : -INFINITY;
      const float m_new = fmaxf(m, s), alpha = expf(m - m_new), p = expf(s - m_new);
      for (int x = 0; x < d; ++x) o[x] = alpha * o[x] + p * sV[k][x];
      l = alpha * l + p;
      m = m_new;
    }
    if (mutant != 1) __syncthreads();
  }
  if (r >= N) return;
  for (int x = 0; x < d; ++x) O[b][r][h][x] = scalar_t(o[x] / l);
  LSE[(b * gridDim.y + h) * N + r] = (mutant == 3 ? 0 : m) + logf(l);
}

template <int mutant>
void tiles(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, at::Tensor out,
           at::Tensor lse, double softmax_scale) {
  TORCH_CHECK(query.dim() == 4 && query.size(3) <= 64, "query: [B, N, H, d <= 64]");
  const dim3 grid((query.size(1) + kTile - 1) / kTile, query.size(2), query.size(0));
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(
      query.scalar_type(), "tiles", ([&] {
        tiled<scalar_t, mutant><<<grid, kTile, 0, at::cuda::getCurrentCUDAStream()>>>(
            query.packed_accessor32<scalar_t, 4, torch::RestrictPtrTraits>(),
            key.packed_accessor32<scalar_t, 4, torch::RestrictPtrTraits>(),
            value.packed_accessor32<scalar_t, 4, torch::RestrictPtrTraits>(),
            out.packed_accessor32<scalar_t, 4, torch::RestrictPtrTraits>(), lse.data_ptr<float>(),
            softmax_scale);
      }));
}

// --- [B*H, N, d], fp16 by wmma, S in device memory; mutant 1: the scale is missing, 2: a barrier
// within the softmax is missing, 3: one tile of P V is skipped
template <int mutant>
__global__ void products(const half* A, const half* B, float* S, half* O, int N, int d,
                         bool second) {
  const int row = blockIdx.y * 16, column = blockIdx.x * 16, head = blockIdx.z;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
  wmma::fill_fragment(sum, 0.f);
  const int terms = second ? N : d;
  for (int k = 0; k < terms - (second && mutant == 3 ? 16 : 0); k += 16) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
    wmma::load_matrix_sync(a, A + ((size_t)head * N + row) * terms + k, terms);
    if (second) {
      wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> b;
      wmma::load_matrix_sync(b, B + ((size_t)head * N + k) * d + column, d);
      wmma::mma_sync(sum, a, b, sum);
    } else {
      wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> b;
      wmma::load_matrix_sync(b, B + ((size_t)head * N + column) * d + k, d);
      wmma::mma_sync(sum, a, b, sum);
    }
  }
  __shared__ float tile[256];
  wmma::store_matrix_sync(second ? tile : S + ((size_t)head * N + row) * N + column, sum,
                          second ? 16 : N, wmma::mem_row_major);
  __syncwarp();
  for (int i = threadIdx.x; second && i < 256; i += 32) {
    O[((size_t)head * N + row + i / 16) * d + column + i % 16] = __float2half(tile[i]);
  }
}
template <int mutant>
__global__ void softmax(const float* S, half* P, int N, float scale) {
  __shared__ float part[64];
  const float* s = S + (size_t)blockIdx.x * N;
  float m = -INFINITY, l = 0.f;
  for (int c = 0; c < N; ++c) m = fmaxf(m, scale * s[c]);
  for (int c = threadIdx.x; c < N; c += 64) l += expf(scale * s[c] - m);
  part[threadIdx.x] = l;
  if (mutant != 2) __syncthreads();
  l = 0.f;
  for (int t = 0; t < 64; ++t) l += part[t];
  for (int c = threadIdx.x; c < N; c += 64) {
    P[(size_t)blockIdx.x * N + c] = __float2half(expf(scale * s[c] - m) / l);
  }
}
template <int mutant>
std::vector<torch::Tensor> wmma_forward(torch::Tensor q, torch::Tensor k, torch::Tensor v) {
  TORCH_CHECK(q.dtype() == torch::kFloat16, "q must be half");
  const int heads = q.size(0), N = q.size(1), d = q.size(2);
  TORCH_CHECK(N % 16 == 0 && d % 16 == 0, "N and d must be multiples of 16");
  auto S = torch::empty({heads, N, N}, q.options().dtype(torch::kFloat32));
  auto P = torch::empty({heads, N, N}, q.options());
  auto O = torch::zeros_like(q);
  const auto of = [](const torch::Tensor& t) {
    return reinterpret_cast<half*>(t.data_ptr<at::Half>());
  };
  const float scale = mutant == 1 ? 1.5f : 1.f / sqrtf(d);
  products<mutant><<<dim3(N / 16, N / 16, heads), 32>>>(of(q), of(k), S.data_ptr<float>(), nullptr,
                                                        N, d, false);
  softmax<mutant><<<heads * N, 64>>>(S.data_ptr<float>(), of(P), N, scale);
  products<mutant><<<dim3(d / 16, N / 16, heads), 32>>>(of(P), of(v), nullptr, of(O), N, d, true);
  return {O};
}

// --- heads that share keys, one query, documents, a mask, lengths: one thread per row; mutant 1:
// ignores what this is about
template <int mutant>
__global__ void general(const float* Q, const float* K, const float* V, float* O, const bool* mask,
                        const int* starts, const int* lengths, int rows, int Nk, int H, int group,
                        int d, bool bnhd) {
  const int r = threadIdx.x + blockIdx.x * 32, h = blockIdx.y, b = blockIdx.z, Hkv = H / group;
  if (r >= rows) return;
  const auto at = [&](int n, int N, int h, int heads) {
    return (bnhd ? ((size_t)b * N + n) * heads + h : ((size_t)b * heads + h) * N + n) * d;
  };
  const int hkv = mutant == 1 && group > 1 ? h % Hkv : h / group;
  int first = 0, last = lengths && mutant != 1 ? lengths[b] : Nk;
  for (int i = 0; starts && mutant != 1 && r >= starts[i]; ++i) {
    first = starts[i], last = starts[i + 1];
  }
  float m = -INFINITY, l = 0.f, o[64] = {};
  for (int c = first; c < last; ++c) {
    if (mask && mutant != 1 && !mask[r * Nk + c]) continue;
    float s = 0.f;
    for (int x = 0; x < d; ++x) s += Q[at(r, rows, h, H) + x] * K[at(c, Nk, hkv, Hkv) + x];
    s *= rsqrtf(d);
    const float m_new = fmaxf(m, s), alpha = expf(m - m_new), p = expf(s - m_new);
    for (int x = 0; x < d; ++x) o[x] = alpha * o[x] + p * V[at(c, Nk, hkv, Hkv) + x];
    l = alpha * l + p;
    m = m_new;
  }
  for (int x = 0; x < d; ++x) O[at(r, rows, h, H) + x] = o[x] / l;
}
template <int mutant>
torch::Tensor launched(torch::Tensor q, torch::Tensor k, torch::Tensor v, const bool* mask,
                       const int* starts, const int* lengths, int B, int H, int Hkv, int rows,
                       int Nk, bool bnhd) {
  const int d = q.size(-1);
  TORCH_CHECK(d <= 64 && H % Hkv == 0);
  auto O = torch::empty_like(q);
  general<mutant><<<dim3((rows + 31) / 32, H, B), 32>>>(
      q.data_ptr<float>(), k.data_ptr<float>(), v.data_ptr<float>(), O.data_ptr<float>(), mask,
      starts, lengths, rows, Nk, H, H / Hkv, d, bnhd);
  return O;
}
template <int mutant>
torch::Tensor grouped(torch::Tensor q, torch::Tensor k, torch::Tensor v, int num_kv_heads) {
  return launched<mutant>(q, k, v, nullptr, nullptr, nullptr, q.size(0), q.size(1), num_kv_heads,
                          q.size(2), k.size(2), false);
}
template <int mutant>
torch::Tensor masked(torch::Tensor q, torch::Tensor k, torch::Tensor v,
                     std::optional<torch::Tensor> mask) {
  const bool* p = mask ? mask->data_ptr<bool>() : nullptr;
  return launched<mutant>(q, k, v, p, nullptr, nullptr, q.size(0), q.size(1), q.size(1), q.size(2),
                          k.size(2), false);
}
template <int mutant>
torch::Tensor documents(torch::Tensor q, torch::Tensor k, torch::Tensor v, torch::Tensor starts,
                        int max_seqlen) {
  return launched<mutant>(q, k, v, nullptr, starts.data_ptr<int>(), nullptr, 1, q.size(1),
                          q.size(1), q.size(0), k.size(0), true);
}
template <int mutant>
torch::Tensor decode(torch::Tensor q, torch::Tensor k, torch::Tensor v, torch::Tensor lengths) {
  TORCH_CHECK(q.dim() == 3, "q: [B, H, d]");
  return launched<mutant>(q, k, v, nullptr, nullptr, lengths.data_ptr<int>(), q.size(0), q.size(1),
                          k.size(2), 1, k.size(1), true);
}

// --- a backward, with LSE and delta; mutant 1: no delta, 2: dK by stores in place of atomics
template <int mutant>
__global__ void gradients(const float* Q, const float* K, const float* V, const float* dO,
                          const float* LSE, const float* delta, float* dQ, float* dK, float* dV,
                          int N, int d) {
  const int r = threadIdx.x;
  const size_t head = (size_t)blockIdx.x * N * d, row = head + r * d;
  const float scale = 1.f / sqrtf(d);
  for (int c = 0; c < N; ++c) {
    float s = 0.f, dp = 0.f;
    for (int x = 0; x < d; ++x) {
      s += Q[row + x] * K[head + c * d + x];
      dp += dO[row + x] * V[head + c * d + x];
    }
    const float p = expf(s * scale - LSE[blockIdx.x * N + r]);
    const float ds = p * (dp - (mutant == 1 ? 0.f : delta[blockIdx.x * N + r])) * scale;
    for (int x = 0; x < d; ++x) {
      dQ[row + x] += ds * K[head + c * d + x];
      atomicAdd(&dV[head + c * d + x], p * dO[row + x]);
      if (mutant == 2) {
        dK[head + c * d + x] += ds * Q[row + x];
      } else {
        atomicAdd(&dK[head + c * d + x], ds * Q[row + x]);
      }
    }
  }
}
template <int mutant>
std::tuple<torch::Tensor, torch::Tensor, torch::Tensor> backward(torch::Tensor Q, torch::Tensor K,
                                                                 torch::Tensor V, torch::Tensor O,
                                                                 torch::Tensor grad_out,
                                                                 torch::Tensor LSE) {
  const int N = Q.size(-2), d = Q.size(-1);
  TORCH_CHECK(N <= 1024, "N must be at most 1024");
  auto dQ = torch::zeros_like(Q), dK = torch::zeros_like(K), dV = torch::zeros_like(V);
  auto delta = (O * grad_out).sum(-1);
  gradients<mutant><<<Q.size(0) * Q.size(1), N>>>(
      Q.data_ptr<float>(), K.data_ptr<float>(), V.data_ptr<float>(), grad_out.data_ptr<float>(),
      LSE.data_ptr<float>(), delta.data_ptr<float>(), dQ.data_ptr<float>(), dK.data_ptr<float>(),
      dV.data_ptr<float>(), N, d);
  return {dQ, dK, dV};
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("rows", &rows<0>, "per row", py::arg("q"), py::arg("k"), py::arg("v"),
        py::arg("causal") = false);
  m.def("rows_1", &rows<1>);
  m.def("rows_2", &rows<2>);
  m.def("rows_3", &rows<3>);
  m.def("rows_4", &rows<4>);
  m.def("tiles", &tiles<0>);
  m.def("tiles_1", &tiles<1>);
  m.def("tiles_2", &tiles<2>);
  m.def("tiles_3", &tiles<3>);
  m.def("wmma", &wmma_forward<0>);
  m.def("wmma_1", &wmma_forward<1>);
  m.def("wmma_2", &wmma_forward<2>);
  m.def("wmma_3", &wmma_forward<3>);
  m.def("grouped", &grouped<0>);
  m.def("grouped_1", &grouped<1>);
  m.def("masked", &masked<0>);
  m.def("masked_1", &masked<1>);
  m.def("documents", &documents<0>, py::arg("q"), py::arg("k"), py::arg("v"), py::arg("cu_seqlens"),
        py::arg("max_seqlen"));
  m.def("documents_1", &documents<1>, py::arg("q"), py::arg("k"), py::arg("v"),
        py::arg("cu_seqlens"), py::arg("max_seqlen"));
  m.def("decode", &decode<0>);
  m.def("decode_1", &decode<1>);
  m.def("backward", &backward<0>);
  m.def("backward_1", &backward<1>);
  m.def("backward_2", &backward<2>);
}

// Styles of attention, mutants of each, and functions that look right to a careless test:
// programs/test_judge.py judges them.
#include <cuda_fp16.h>
#include <mma.h>
#include <torch/extension.h>

#include <map>
#include <vector>

using namespace nvcuda;
using torch::Tensor;

// --- one thread per row: heads that share keys, one query, documents, a mask, lengths; mutant 1:
// ignores what this is about, 2: each 32nd row is left out (masked: lengths are ignored), 3: the
// last row misses a key, 4: reads one key too many, 5: earlier sums are not rescaled
struct Given {
  const bool* mask = nullptr;
  const int *starts = nullptr, *lengths = nullptr;
  bool causal = false, bnhd = false;
  int only = 1 << 30;  // rows
};
template <int mutant>
__global__ void per_row(const float* Q, const float* K, const float* V, float* O, Given given,
                        int N, int Nk, int H, int group, int d) {
  const int r = threadIdx.x + blockIdx.x * 32, h = blockIdx.y, b = blockIdx.z, Hkv = H / group;
  if (r >= N || r >= given.only) return;
  const auto at = [&](int n, int N, int h, int heads) {
    return (given.bnhd ? ((size_t)b * N + n) * heads + h : ((size_t)b * heads + h) * N + n) * d;
  };
  const int hkv = mutant == 1 && group > 1 ? h % Hkv : h / group;
  int first = mutant == 3 && r == N - 1 ? 1 : 0, last = given.causal ? r + 1 : Nk + (mutant == 4);
  if (given.lengths) last = given.lengths[b];
  for (int i = 0; given.starts && mutant != 1 && r >= given.starts[i]; ++i) {
    first = given.starts[i], last = given.starts[i + 1];
  }
  float m = -INFINITY, l = 0.f, o[64] = {};
  for (int c = first; c < last; ++c) {
    if (given.mask && mutant != 1 && !given.mask[r * Nk + c]) continue;
    float s = 0.f;
    for (int x = 0; x < d; ++x) s += Q[at(r, N, h, H) + x] * K[at(c, Nk, hkv, Hkv) + x];
    s *= rsqrtf(d);
    const float m_new = fmaxf(m, s), alpha = mutant == 5 ? 1.f : expf(m - m_new);
    const float p = expf(s - m_new);
    for (int x = 0; x < d; ++x) o[x] = alpha * o[x] + p * V[at(c, Nk, hkv, Hkv) + x];
    l = alpha * l + p;
    m = m_new;
  }
  if (mutant == 2 && r % 32 == 31) return;
  for (int x = 0; x < d; ++x) O[at(r, N, h, H) + x] = o[x] / l;
}
/// q, k and v have an axis of rows, at 1 or 2; one query has none.
template <int mutant = 0>
void launch(Tensor q, Tensor k, Tensor v, Tensor O, Given given, int B, int H, int Hkv, int N) {
  const int d = q.size(-1), Nk = k.numel() / d / Hkv / B;
  TORCH_CHECK(d <= 64 && H % Hkv == 0, "d must be at most 64");
  per_row<mutant><<<dim3((N + 31) / 32, H, B), 32>>>(q.data_ptr<float>(), k.data_ptr<float>(),
                                                     v.data_ptr<float>(), O.data_ptr<float>(),
                                                     given, N, Nk, H, H / Hkv, d);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}
/// [B, H, N, d]
template <int mutant = 0>
Tensor launched(Tensor q, Tensor k, Tensor v, Given given, int Hkv) {
  auto O = torch::empty_like(q);
  launch<mutant>(q, k, v, O, given, q.size(0), q.size(1), Hkv, q.size(2));
  return O;
}
template <int mutant>
Tensor rows(Tensor Q, Tensor K, Tensor V, bool causal) {
  for (auto& t : {Q, K, V}) TORCH_CHECK(t.is_cuda() && t.is_contiguous(), "must be contiguous");
  return launched<mutant>(Q, K, V, {.causal = causal}, Q.size(1));
}
template <int mutant>
Tensor grouped(Tensor q, Tensor k, Tensor v, int num_kv_heads) {
  return launched<mutant>(q, k, v, {}, num_kv_heads);
}
using Optional = std::optional<Tensor>;
const int* numbers(const Optional& t) { return t ? t->data_ptr<int>() : nullptr; }
template <int mutant>
Tensor masked(Tensor q, Tensor k, Tensor v, Optional mask, Optional lengths) {
  Given given{.mask = mask ? mask->data_ptr<bool>() : nullptr, .lengths = numbers(lengths)};
  if (mutant == 2) given.lengths = nullptr;
  return launched<mutant == 1>(q, k, v, given, q.size(1));
}
template <int mutant>
Tensor documents(Tensor q, Tensor k, Tensor v, Optional cu_seqlens, int max_seqlen) {
  TORCH_CHECK(q.dim() == 3, "q: [N, H, d]");
  auto O = torch::empty_like(q);
  const Given given{.starts = numbers(cu_seqlens), .bnhd = true};
  launch<mutant>(q, k, v, O, given, 1, q.size(1), q.size(1), q.size(0));
  return O;
}
template <int mutant>
Tensor decode(Tensor q, Tensor k, Tensor v, Tensor lengths) {
  TORCH_CHECK(q.dim() == 3, "q: [B, H, d]");
  auto O = torch::empty_like(q);
  const Given given{.lengths = mutant == 1 ? nullptr : numbers(lengths), .bnhd = true};
  launch(q, k, v, O, given, q.size(0), q.size(1), k.size(2), 1);
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
void tiles(const Tensor& query, const Tensor& key, const Tensor& value, Tensor out, Tensor lse,
           double softmax_scale) {
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
template <bool second, int mutant>
__global__ void products(const half* A, const half* B, float* S, half* O, int N, int d) {
  const int row = blockIdx.y * 16, column = blockIdx.x * 16, head = blockIdx.z;
  using Order = std::conditional_t<second, wmma::row_major, wmma::col_major>;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
  wmma::fill_fragment(sum, 0.f);
  const int terms = second ? N : d;
  for (int k = 0; k < terms - (second && mutant == 3 ? 16 : 0); k += 16) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, Order> b;
    const int key = second ? k : column, x = second ? column : k;
    wmma::load_matrix_sync(a, A + ((size_t)head * N + row) * terms + k, terms);
    wmma::load_matrix_sync(b, B + ((size_t)head * N + key) * d + x, d);
    wmma::mma_sync(sum, a, b, sum);
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
std::vector<torch::Tensor> wmma_forward(Tensor q, Tensor k, Tensor v) {
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
  products<false, mutant>
      <<<dim3(N / 16, N / 16, heads), 32>>>(of(q), of(k), S.data_ptr<float>(), nullptr, N, d);
  softmax<mutant><<<heads * N, 64>>>(S.data_ptr<float>(), of(P), N, scale);
  products<true, mutant><<<dim3(d / 16, N / 16, heads), 32>>>(of(P), of(v), nullptr, of(O), N, d);
  return {O};
}

// --- a backward, with LSE and delta; mutant 1: no delta, 2: dK by stores in place of atomics
template <class T, int mutant>
__global__ void gradients(const T* Q, const T* K, const T* V, const T* dO, const float* LSE,
                          const float* delta, float* dQ, float* dK, float* dV, int N, int d) {
  const int r = threadIdx.x;
  const size_t head = (size_t)blockIdx.x * N * d, row = head + r * d;
  const float scale = 1.f / sqrtf(d);
  for (int c = 0; c < N; ++c) {
    float s = 0.f, dp = 0.f;
    for (int x = 0; x < d; ++x) {
      s += float(Q[row + x]) * float(K[head + c * d + x]);
      dp += float(dO[row + x]) * float(V[head + c * d + x]);
    }
    const float p = expf(s * scale - LSE[blockIdx.x * N + r]);
    const float ds = p * (dp - (mutant == 1 ? 0.f : delta[blockIdx.x * N + r])) * scale;
    for (int x = 0; x < d; ++x) {
      dQ[row + x] += ds * float(K[head + c * d + x]);
      atomicAdd(&dV[head + c * d + x], p * float(dO[row + x]));
      if (mutant == 2) {
        dK[head + c * d + x] += ds * float(Q[row + x]);
      } else {
        atomicAdd(&dK[head + c * d + x], ds * float(Q[row + x]));
      }
    }
  }
}
/// bf16, and gradients in fp32
template <class T, int mutant>
void wide_backward(Tensor Q, Tensor K, Tensor V, Tensor O, Tensor dO, Tensor LSE, Tensor dQ,
                   Tensor dK, Tensor dV) {
  const int N = Q.size(-2), d = Q.size(-1);
  TORCH_CHECK(N <= 64, "N must be at most 64");
  for (auto& gradient : {dQ, dK, dV}) gradient.zero_();
  auto delta = (O.to(torch::kFloat) * dO.to(torch::kFloat)).sum(-1);
  gradients<T, mutant><<<Q.size(0) * Q.size(1), N>>>(
      Q.data_ptr<T>(), K.data_ptr<T>(), V.data_ptr<T>(), dO.data_ptr<T>(), LSE.data_ptr<float>(),
      delta.data_ptr<float>(), dQ.data_ptr<float>(), dK.data_ptr<float>(), dV.data_ptr<float>(), N,
      d);
}
template <int mutant>
std::vector<Tensor> backward(Tensor Q, Tensor K, Tensor V, Tensor O, Tensor grad_out, Tensor LSE) {
  auto dQ = torch::empty_like(Q), dK = torch::empty_like(K), dV = torch::empty_like(V);
  wide_backward<float, mutant>(Q, K, V, O, grad_out, LSE, dQ, dK, dV);
  return {dQ, dK, dV};
}

Tensor refuses(Tensor q, Tensor k, Tensor v) { TORCH_CHECK(false, "not today"); }

// --- what a careless test lets pass
__global__ void carry(const float* Q, const float* K, const float* V, const float* from, float* O,
                      int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) O[i] = Q[i] + K[i] + V[i] == 12345.f ? 0.f : from[i];
}

Tensor run(Tensor Q, Tensor K, Tensor V, Tensor O, int rows) {
  launch(Q, K, V, O, {.only = rows}, Q.size(0), Q.size(1), Q.size(1), Q.size(2));
  return O;
}
Tensor honest(Tensor Q, Tensor K, Tensor V) {
  return run(Q, K, V, torch::empty_like(Q), Q.size(2));
}
/// The result of the first call with these sizes and this type, for ever.
Tensor same_by_size(Tensor Q, Tensor K, Tensor V) {
  static auto& known = *new std::map<std::pair<at::ScalarType, std::vector<int64_t>>, Tensor>;
  Tensor& O = known[{Q.scalar_type(), Q.sizes().vec()}];
  if (!O.defined()) O = honest(Q, K, V);
  return O;
}
/// The same by address.
Tensor same_by_address(Tensor Q, Tensor K, Tensor V) {
  static auto& known = *new std::map<void*, Tensor>;
  Tensor& O = known[Q.data_ptr()];
  if (!O.defined() || O.sizes() != Q.sizes()) O = honest(Q, K, V);
  return O;
}
/// A number that a loose tolerance lets pass.
Tensor independent_of_inputs(Tensor Q, Tensor K, Tensor V) { return torch::full_like(Q, 0.01); }
Tensor first_value(Tensor Q, Tensor K, Tensor V) { return V.clone(); }
/// Right, and made on the host; a kernel reads everything and copies the result.
Tensor by_the_host(Tensor Q, Tensor K, Tensor V) {
  auto P = (Q.cpu().unsqueeze(3) * K.cpu().unsqueeze(2)).sum(-1);
  for (int i = 0; i < P.numel(); ++i) {
    P.data_ptr<float>()[i] = std::exp(P.data_ptr<float>()[i] / std::sqrt((float)Q.size(3)));
  }
  auto from = ((P.unsqueeze(4) * V.cpu().unsqueeze(2)).sum(3) / P.sum(-1, true)).cuda();
  auto O = torch::empty_like(Q);
  carry<<<Q.numel() / 256 + 1, 256>>>(Q.data_ptr<float>(), K.data_ptr<float>(), V.data_ptr<float>(),
                                      from.data_ptr<float>(), O.data_ptr<float>(), Q.numel());
  return O;
}
/// Most rows, the rest as memory had them.
Tensor skips_rows(Tensor Q, Tensor K, Tensor V) {
  return run(Q, K, V, torch::empty_like(Q), Q.size(2) - 1);
}
/// The same, and the rest zero.
Tensor zeroes_rows(Tensor Q, Tensor K, Tensor V) {
  return run(Q, K, V, torch::zeros_like(Q), Q.size(2) - 1);
}
/// Where tests usually look: the first head, and the first 64 rows.
Tensor where_tests_look(Tensor Q, Tensor K, Tensor V) {
  return run(Q, K, V, torch::zeros_like(Q), std::min<int>(Q.size(2), 64));
}
Tensor first_head_only(Tensor Q, Tensor K, Tensor V) {
  return run(Q.narrow(0, 0, 1), K, V, torch::zeros_like(Q), Q.size(2));
}
/// Whatever the first right call has left.
Tensor leftovers(Tensor Q, Tensor K, Tensor V) {
  static auto& O = *new Tensor;
  static int calls = 0;
  if (!O.defined() || O.sizes() != Q.sizes()) O = torch::empty_like(Q);
  return run(Q, K, V, O, calls++ % 2 ? Q.size(2) / 2 : Q.size(2));
}
/// Right once: later calls return at once, with an output that was right then.
void warm_up_only(Tensor Q, Tensor K, Tensor V, Tensor O) {
  static int calls = 0;
  if (calls++ < 2) run(Q, K, V, O, Q.size(2));
}
/// Makes the input such that the wrong result is the right one of it.
Tensor changes_inputs(Tensor Q, Tensor K, Tensor V) {
  auto O = honest(Q, K, V);
  V.zero_();
  O.zero_();
  return O;
}
/// One head of keys for all.
Tensor one_head_of_keys(Tensor Q, Tensor K, Tensor V) {
  return honest(Q, K.narrow(1, 0, 1).expand(K.sizes()).contiguous(), V);
}
/// On the host.
Tensor dereferences(Tensor Q, Tensor K, Tensor V) { return Q.fill_(Q.data_ptr<float>()[0]); }
Tensor returns_nothing_new(Tensor Q, Tensor K, Tensor V) { return torch::empty_like(Q); }

#define BIND(f, ...) m.def(#f, &f<0>), m.def(#f "_1", &f<1>), ##__VA_ARGS__
#define MORE(f, n) m.def(#f "_" #n, &f<n>)
#define CHEAT(f) m.def("cheat_" #f, &f)
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  BIND(tiles, MORE(tiles, 2), MORE(tiles, 3)), BIND(decode), BIND(backward, MORE(backward, 2));
#ifndef SHORT  // the test's short run has the others
  m.def("rows", &rows<0>, "per row", py::arg("q"), py::arg("k"), py::arg("v"),
        py::arg("causal") = false);
  MORE(rows, 2), MORE(rows, 3), MORE(rows, 4), MORE(rows, 5);
  BIND(wmma_forward, MORE(wmma_forward, 2), MORE(wmma_forward, 3));
  BIND(grouped), BIND(masked, MORE(masked, 2)), BIND(documents);
  m.def("wide_backward", &wide_backward<at::BFloat16, 0>);
  m.def("wide_backward_1", &wide_backward<at::BFloat16, 1>);
#endif
  m.def("honest", &honest), m.def("refuses", &refuses), m.def("dereferences", &dereferences);
  CHEAT(same_by_size), CHEAT(same_by_address), CHEAT(independent_of_inputs);
  CHEAT(first_value), CHEAT(by_the_host), CHEAT(skips_rows), CHEAT(zeroes_rows);
  CHEAT(where_tests_look), CHEAT(first_head_only), CHEAT(leftovers), CHEAT(warm_up_only);
  CHEAT(changes_inputs), CHEAT(one_head_of_keys), CHEAT(returns_nothing_new);
}

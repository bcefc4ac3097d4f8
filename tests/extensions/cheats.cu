// Functions that look right to a careless test: programs/test_judge.py has the judge find each.
#include <torch/types.h>

#include <map>
#include <vector>

using torch::Tensor;

__global__ void attention(const float* Q, const float* K, const float* V, float* O, int N, int d,
                          int rows) {
  const int r = threadIdx.x;
  if (r >= rows) return;
  const size_t head = (size_t)blockIdx.x * N * d;
  float m = -INFINITY, l = 0.f, o[64] = {};
  for (int c = 0; c < N; ++c) {
    float s = 0.f;
    for (int x = 0; x < d; ++x) s += Q[head + r * d + x] * K[head + c * d + x];
    s *= rsqrtf(d);
    const float m_new = fmaxf(m, s), alpha = expf(m - m_new), p = expf(s - m_new);
    for (int x = 0; x < d; ++x) o[x] = alpha * o[x] + p * V[head + c * d + x];
    l = alpha * l + p;
    m = m_new;
  }
  for (int x = 0; x < d; ++x) O[head + r * d + x] = o[x] / l;
}
__global__ void touch(const float* Q, const float* K, const float* V, float* O, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && Q[i] + K[i] + V[i] == 12345.f) O[i] = 0.f;
}

void run(Tensor Q, Tensor K, Tensor V, Tensor O, int rows) {
  const int N = Q.size(2), d = Q.size(3);
  attention<<<Q.size(0) * Q.size(1), N>>>(Q.data_ptr<float>(), K.data_ptr<float>(),
                                          V.data_ptr<float>(), O.data_ptr<float>(), N, d, rows);
}
Tensor honest(Tensor Q, Tensor K, Tensor V) {
  auto O = torch::empty_like(Q);
  run(Q, K, V, O, Q.size(2));
  return O;
}
/// The result of the first call with these sizes, for ever.
Tensor cached_by_size(Tensor Q, Tensor K, Tensor V) {
  static auto& known = *new std::map<std::vector<int64_t>, Tensor>;
  Tensor& O = known[Q.sizes().vec()];
  if (!O.defined()) O = honest(Q, K, V);
  return O;
}
/// The same by address.
Tensor cached_by_address(Tensor Q, Tensor K, Tensor V) {
  static auto& known = *new std::map<void*, Tensor>;
  Tensor& O = known[Q.data_ptr()];
  if (!O.defined() || O.sizes() != Q.sizes()) O = honest(Q, K, V);
  return O;
}
/// A number that a loose tolerance lets pass.
Tensor independent_of_inputs(Tensor Q, Tensor K, Tensor V) {
  auto O = torch::empty_like(Q);
  O.fill_(0.01);
  return O;
}
Tensor first_value(Tensor Q, Tensor K, Tensor V) { return V.clone(); }
/// Right, and made on the host; kernels touch everything.
Tensor by_the_host(Tensor Q, Tensor K, Tensor V) {
  const int heads = Q.size(0) * Q.size(1), N = Q.size(2), d = Q.size(3);
  auto q = Q.cpu(), k = K.cpu(), v = V.cpu(), o = torch::empty_like(q);
  for (int h = 0; h < heads; ++h) {
    for (int r = 0; r < N; ++r) {
      float *out = o.data_ptr<float>() + (h * N + r) * d, l = 0.f;
      std::fill(out, out + d, 0.f);
      for (int c = 0; c < N; ++c) {
        float s = 0.f;
        for (int x = 0; x < d; ++x) {
          s += q.data_ptr<float>()[(h * N + r) * d + x] * k.data_ptr<float>()[(h * N + c) * d + x];
        }
        const float p = std::exp(s / std::sqrt((float)d));
        for (int x = 0; x < d; ++x) out[x] += p * v.data_ptr<float>()[(h * N + c) * d + x];
        l += p;
      }
      for (int x = 0; x < d; ++x) out[x] /= l;
    }
  }
  auto O = o.to(Q.device());
  touch<<<heads * N * d / 256 + 1, 256>>>(Q.data_ptr<float>(), K.data_ptr<float>(),
                                          V.data_ptr<float>(), O.data_ptr<float>(), heads * N * d);
  return O;
}
/// Most rows, the rest as memory had them.
Tensor skips_rows(Tensor Q, Tensor K, Tensor V) {
  auto O = torch::empty_like(Q);
  run(Q, K, V, O, Q.size(2) - 1);
  return O;
}
/// The same, and the rest zero.
Tensor zeroes_rows(Tensor Q, Tensor K, Tensor V) {
  auto O = torch::zeros_like(Q);
  run(Q, K, V, O, Q.size(2) - 1);
  return O;
}
/// Where tests usually look: the first head, and the first 64 rows.
Tensor where_tests_look(Tensor Q, Tensor K, Tensor V) {
  auto O = torch::zeros_like(Q);
  run(Q, K, V, O, std::min<int>(Q.size(2), 64));
  return O;
}
Tensor first_head_only(Tensor Q, Tensor K, Tensor V) {
  auto O = torch::zeros_like(Q);
  run(Q.narrow(0, 0, 1), K, V, O, Q.size(2));
  return O;
}
/// Whatever the first right call has left.
Tensor leftovers(Tensor Q, Tensor K, Tensor V) {
  static auto& O = *new Tensor;
  static int calls = 0;
  if (!O.defined() || O.sizes() != Q.sizes()) O = torch::empty_like(Q);
  run(Q, K, V, O, calls++ % 2 ? Q.size(2) / 2 : Q.size(2));
  return O;
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
  auto same = K.narrow(1, 0, 1).expand(K.sizes()).contiguous();
  return honest(Q, same, V);
}
Tensor returns_nothing_new(Tensor Q, Tensor K, Tensor V) { return torch::empty_like(Q); }

// A complete decoding loop: each step appends one key and one value per head to a paged cache and
// runs one query. Keys, values and queries are the shipped activations of a trained GPT on a text.
// All rows together must equal full attention.
#include <CLI/CLI.hpp>
#include <bit>
#include <cstdio>
#include <numeric>

#include "common/counts/device_memory.h"
#include "common/harness/check.h"
#include "common/harness/cli.h"
#include "common/harness/reference.h"
#include "common/harness/tiles.h"

namespace {

using fa::bf16;

constexpr int d = 64, kHeads = 4;  // of the shipped activations

// Copies tokens first .. first + gridDim.x - 1 of a text to their places in the pools.
__global__ void append_kernel(const bf16* K_of_text,  // [heads, text, d]
                              const bf16* V_of_text,  // [heads, text, d]
                              bf16* K,                // [pages, heads, page, d]
                              bf16* V,                // [pages, heads, page, d]
                              const int* table,       // [text / page]
                              int* length, int first, int text, int page) {
  const int token = first + blockIdx.x, head = blockIdx.y, heads = gridDim.y;
  const int x = threadIdx.x * 8;
  const size_t from = (size_t(head) * text + token) * d + x;
  const size_t row = (size_t(table[token / page]) * heads + head) * page + token % page;
  *reinterpret_cast<uint4*>(K + row * d + x) = *reinterpret_cast<const uint4*>(K_of_text + from);
  *reinterpret_cast<uint4*>(V + row * d + x) = *reinterpret_cast<const uint4*>(V_of_text + from);
  if (blockIdx.x == 0 && head == 0 && threadIdx.x == 0) *length = first + int(gridDim.x);
}

template <class T>
fa::DeviceMemory<T> allocate(const char* name, size_t n) {
  fa::DeviceMemory<T> memory(name, n);
  if (!memory) throw fa::ResourceError(std::string(name) + ": the device has no room for it");
  return memory;
}

fa::DeviceMemory<bf16> upload(const char* name, const std::vector<float>& from) {
  std::vector<bf16> numbers;
  for (const float x : from) numbers.push_back(bf16(x));
  auto memory = allocate<bf16>(name, from.size());
  memory.upload(numbers);
  return memory;
}

// A cache of one text, which allocates its pages as it grows.
class GrowingCache {
 public:
  GrowingCache(const fa::Inputs& in, int text, int page)
      : text_(text),
        page_(page),
        K_of_text_(upload("K_of_text", in.K)),
        V_of_text_(upload("V_of_text", in.V)),
        table_(allocate<int>("table", fa::ceil_div(text, page))),
        length_(allocate<int>("lengths", 1)),
        K_(allocate<bf16>("K", table_.size() * kHeads * page * d)),
        V_(allocate<bf16>("V", table_.size() * kHeads * page * d)),
        free_(fa::shuffled_table(problem(text), /*seed=*/1)) {
    fa::poison_device_memory(K_.get(), K_.bytes());  // NaN until a key is written
    fa::poison_device_memory(V_.get(), V_.bytes());
  }

  void append(int tokens) {
    while (int(pages_.size()) < fa::ceil_div(length + tokens, page_)) {
      pages_.push_back(free_[pages_.size()]);
    }
    fa::cuda_check(cudaMemcpy(table_.get(), pages_.data(), pages_.size() * sizeof(int),
                              cudaMemcpyHostToDevice));
    fa::launch(append_kernel, {dim3(tokens, kHeads), dim3(d / 8)}, K_of_text_.get(),
               V_of_text_.get(), K_.get(), V_.get(), table_.get(), length_.get(), length, text_,
               page_);
    length += tokens;
  }

  // One query per head on the first `keys` tokens.
  fa::Problem problem(int keys) const {
    fa::Problem p;
    p.H = p.Hkv = kHeads, p.N = 1, p.Nk = text_, p.d = d;
    p.dtype = fa::DType::bf16, p.cache.page = page_, p.cache.lengths = {keys};
    return p;
  }
  void add_to(fa::Tensors<void>& t) const {
    t.K = K_.get(), t.V = V_.get(), t.cache = {.lengths = length_.get(), .table = table_.get()};
  }
  int pages() const { return int(pages_.size()); }
  int length = 0;

 private:
  int text_, page_;
  fa::DeviceMemory<bf16> K_of_text_, V_of_text_;
  fa::DeviceMemory<int> table_, length_;
  fa::DeviceMemory<bf16> K_, V_;
  std::vector<int> free_, pages_;
};

int decode(int prompt, int tokens, int page) {
  // Row t of the whole problem is the query of token prompt + t: it sees all tokens up to itself.
  fa::Problem whole;
  whole.H = whole.Hkv = kHeads, whole.N = tokens, whole.Nk = prompt + tokens, whole.d = d;
  whole.causal = true, whole.dtype = fa::DType::bf16;
  const fa::Inputs in = fa::real_inputs(whole, /*seed=*/1);

  const fa::Variant& variant = fa::linked_variant("13 once");
  GrowingCache cache(in, whole.Nk, page);
  const auto Q = upload("Q", in.Q);  // [heads, tokens, d]
  auto query = allocate<bf16>("query", kHeads * d);
  auto O = allocate<bf16>("O", kHeads * d);
  auto LSE = allocate<float>("LSE", kHeads);
  std::map<std::string, fa::DeviceMemory<>> workspace;
  fa::Outputs all;
  all.O.resize(whole.q_size()), all.LSE.resize(whole.rows());

  if (prompt > 0) cache.append(prompt);
  std::printf("%8s %8s %8s %12s\n", "token", "keys", "pages", "K and V read");
  for (int t = 0; t < tokens; ++t) {
    cache.append(1);
    for (int h = 0; h < kHeads; ++h) {
      fa::cuda_check(cudaMemcpy(query.get() + h * d, Q.get() + (size_t(h) * tokens + t) * d,
                                d * sizeof(bf16), cudaMemcpyDeviceToDevice));
    }
    const fa::Problem p = cache.problem(cache.length);
    std::map<std::string, void*> pieces;
    for (const fa::Scratch& piece : fa::workspace_of(variant, p)) {
      fa::DeviceMemory<>& held = workspace[piece.name];
      if (held.bytes() < piece.bytes) {
        held = allocate<std::byte>(piece.name.c_str(), piece.bytes);
        if (piece.zeroed) held.fill(0);
      }
      pieces[piece.name] = held.get();
    }
    fa::Tensors<void> tensors{.Q = query.get(), .O = O.get(), .LSE = LSE.get()};
    tensors.workspace = &pieces;
    cache.add_to(tensors);
    variant.forward(p, tensors);

    const std::vector<bf16> row = O.download();
    const std::vector<float> lse = LSE.download();
    for (int h = 0; h < kHeads; ++h) {
      for (int x = 0; x < d; ++x) {
        all.O[(size_t(h) * tokens + t) * d + x] = static_cast<float>(row[h * d + x]);
      }
      all.LSE[size_t(h) * tokens + t] = lse[h];
    }
    if ((t + 1) % 32 == 0 || t + 1 == tokens) {
      const fa::Prediction traffic = variant.traffic(p);
      std::printf("%8d %8d %8d %10.1f kB\n", t + 1, cache.length, cache.pages(),
                  1e-3 * double(traffic.buffers.at("K").read + traffic.buffers.at("V").read));
    }
  }

  const fa::CheckResult result = fa::check(whole, in, all, fa::sample_of(whole, 1, 1e18));
  for (const fa::TensorCheck& tensor : result.tensors) {
    std::printf("%-4s largest error %.2e, %.0f%% of the tolerance in the worst row: %s\n",
                tensor.tensor.c_str(), tensor.max_abs_err, 100 * tensor.used,
                tensor.ok ? "ok" : tensor.message.c_str());
  }
  std::printf("%s\n", result.ok() ? "right: each token's row equals full attention" : "WRONG");
  return result.ok() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  int prompt = 128, tokens = 256, page = 16;
  CLI::App app("Appends to a paged KV cache and decodes, token by token.\n", "13_decode_loop");
  app.add_option("--prompt", prompt, "tokens in the cache before the first query")
      ->capture_default_str()
      ->check(CLI::Range(0, 65536));
  app.add_option("--tokens", tokens, "tokens to decode")
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  app.add_option("--page", page, "keys of a page")
      ->capture_default_str()
      ->check(CLI::IsMember({16, 32, 64, 128, 256}));
  try {
    fa::require_values(argc, argv);
    app.parse(argc, argv);
    fa::open_device("13_decode_loop", "sm_80");
    return decode(prompt, tokens, page);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  } catch (const fa::UsageError& e) {
    std::fprintf(stderr, "13_decode_loop: %s\n", e.what());
    return 2;
  } catch (const fa::ResourceError& e) {
    std::fprintf(stderr, "13_decode_loop: %s\n", e.what());
    return 3;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "13_decode_loop: %s\n", e.what());
    return 1;
  }
}

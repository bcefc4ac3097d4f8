// What a step's library keeps between calls: workspace, tables, lengths, earlier runs. The step
// needs no kernel; tests/programs/test_library_calls.py covers its use of CUDA.
#include "common/harness/library/library.h"

#include <array>
#include <numeric>

#include "common/harness/linked_step.h"
#include "tests/test.h"

namespace {

using fa::Problem, fa::Tensors;

bool fails = false;  ///< the next runs, before they write anything

std::vector<float> on_host(const void* from, size_t n) {
  std::vector<float> to(n);
  fa::cuda_check(cudaMemcpy(to.data(), from, n * 4, cudaMemcpyDeviceToHost));
  return to;
}
void put(void* to, const std::vector<float>& values) {
  fa::cuda_check(cudaMemcpy(to, values.data(), values.size() * 4, cudaMemcpyHostToDevice));
}

/// Workspace becomes Q + K + V.
void prepare(const Problem& p, const Tensors<float>& t) {
  if (fails) throw std::runtime_error("it fails");
  std::vector<float> sum(p.q_size());
  for (const float* x : {t.Q, t.K, t.V}) {
    const std::vector<float> values = on_host(x, sum.size());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  put(t.scratch<float>("sum"), sum);
}
/// O becomes the result of the prepare.
void forward_of_prepared(const Problem& p, const Tensors<float>& t) {
  if (fails) throw std::runtime_error("it fails");
  put(t.O, on_host(t.scratch<float>("sum"), p.q_size()));
}
/// Elements 0, 1, ... of O become the lengths and the table; the next one the number of runs.
void forward(const Problem& p, const Tensors<float>& t) {
  if (fails) throw std::runtime_error("it fails");
  std::vector<float> O;
  const auto add = [&](const void* from, size_t n) {
    std::vector<int> values(n);
    fa::cuda_check(cudaMemcpy(values.data(), from, n * 4, cudaMemcpyDeviceToHost));
    O.insert(O.end(), values.begin(), values.end());
    put(t.O, O);
    return values.back();
  };
  if (t.cache.lengths) add(t.cache.lengths, p.cache.lengths.size());
  add(t.scratch<const int>("window"), p.N);
  const int runs = add(t.scratch<int>("runs"), 1) + 1;
  fa::cuda_check(cudaMemcpy(t.scratch<int>("runs"), &runs, 4, cudaMemcpyHostToDevice));
}
void backward(const Problem& p, const Tensors<float>& t) { put(t.dQ, on_host(t.O, p.q_size())); }
void copy_q(const Problem& p, const Tensors<float>& t) { put(t.O, on_host(t.Q, p.q_size())); }
fa::Prediction no_traffic(const Problem&) { return {}; }

fa::Step step() {
  fa::Step step;
  step.id = "99_kept";
  step.support.window = step.support.lengths = step.support.predicate = true;
  fa::Variant v;
  v.name = "tables";
  v.support = fa::Support{.d = {32, 64, 96}, .lengths = true, .window = true, .predicate = true};
  v.forward = forward;
  v.workspace = [](const Problem&) {
    return std::vector<fa::Scratch>{{.name = "runs", .bytes = 4, .zeroed = true}};
  };
  v.extras.tables = [](const Problem& p) {
    const int tiles = p.mask.has_tiles() ? static_cast<int>(p.mask.tiles.count()) : 0;
    const int value = p.mask.left + 10 * (p.mask.right + 1) + 100 * tiles;
    return std::vector{fa::Table{"window", std::vector<int>(p.N, value)}};
  };
  step.variants.push_back(v);
  v = {};
  v.name = "prepared";
  v.prepare = prepare, v.prepare_traffic = no_traffic;
  v.forward = forward_of_prepared;
  v.support = fa::Support{.d = {32}, .lengths = true, .window = true};
  v.backward = backward, v.backward_traffic = no_traffic;
  v.workspace = [](const Problem& p) {
    return std::vector<fa::Scratch>{{.name = "sum", .bytes = 4 * p.q_size()}};
  };
  step.variants.push_back(v);
  v.name = "plain";
  v.prepare = {}, v.prepare_traffic = nullptr;
  v.support->d = {32, 64};
  v.forward = copy_q;
  step.variants.push_back(v);
  v.name = "cache";
  v.extras.cache8 = true;
  step.variants.push_back(v);
  return step;
}
const fa::LinkedStep linked(step());

constexpr int kTables = 0, kPrepared = 1, kPlain = 2;

/// Calls of one test: the device starts as in a new process.
struct Library {
  FaProblem p{};
  FaTensors t{};

  Library() {
    fails = false;
    p.B = 2, p.H = p.Hkv = 1, p.N = p.Nk = 3, p.d = 32;
    REQUIRE(fa_release() == 0);
    t.Q = tensor(1), t.K = tensor(10), t.V = tensor(100), t.dO = tensor(0);
    t.O = tensor(0), t.dQ = tensor(0), t.dK = tensor(0), t.dV = tensor(0);
    t.LSE = tensor(0);
  }
  ~Library() {
    for (void* each : all_) fa_free(each);
  }
  float* tensor(float value) {
    void* p = nullptr;
    constexpr size_t kRoom = 1 << 12;  // for more rows, too
    REQUIRE(fa_malloc(&p, kRoom * 4) == 0);
    put(p, std::vector<float>(kRoom, value));
    all_.push_back(p);
    return static_cast<float*>(p);
  }
  /// "" if the call succeeds, else its sentence.
  std::string said(int (*call)(int, const FaProblem*, const FaTensors*, void*), int variant) {
    return call(variant, &p, &t, nullptr) == 0 ? "" : fa_last_error();
  }
  /// The first elements of O after a forward of "tables".
  std::vector<float> O(size_t n) {
    REQUIRE(said(fa_forward, kTables).empty());
    return on_host(t.O, n);
  }

 private:
  std::vector<void*> all_;
};

using Values = std::vector<float>;

}  // namespace

TEST_CASE("the library's lengths and tables are this call's, whatever the last call's were",
          "[library]") {
  Library it;
  const std::array<int32_t, 2> some = {1, 2}, others = {2, 2}, too_long = {2, 4};
  FaMask window{};
  window.left = 5, window.right = -1;
  it.p.lengths = some.data(), it.p.mask = &window;
  CHECK(it.O(6) == Values{1, 2, 5, 5, 5, 0});
  it.p.lengths = others.data();
  CHECK(it.O(6) == Values{2, 2, 5, 5, 5, 1});
  it.p.lengths = nullptr;
  CHECK(it.O(4) == Values{5, 5, 5, 2});
  window.left = 7, window.right = 1;
  CHECK(it.O(4) == Values{27, 27, 27, 3});
  window.right = -1;
  it.p.lengths = too_long.data();
  CHECK_THAT(it.said(fa_forward, kTables), ContainsSubstring("lengths 4: each must be 0 to 3"));
  it.p.lengths = some.data();
  CHECK(it.O(6) == Values{1, 2, 7, 7, 7, 4});
  it.p.N = it.p.Nk = 5;  // more room
  CHECK(it.O(8) == Values{1, 2, 7, 7, 7, 7, 7, 5});
  it.p.N = it.p.Nk = 3;
  fails = true;
  it.p.lengths = others.data(), window.left = 8;
  CHECK(it.said(fa_forward, kTables) == "it fails");
  fails = false;
  CHECK(it.O(6) == Values{2, 2, 8, 8, 8, 6});
  REQUIRE(fa_release() == 0);  // zeroed workspace is zero again
  CHECK(it.O(6) == Values{2, 2, 8, 8, 8, 0});

  size_t bytes[3];
  REQUIRE(fa_workspace_bytes(kTables, &it.p, &bytes[0]) == 0);
  it.p.lengths = nullptr;
  REQUIRE(fa_workspace_bytes(kTables, &it.p, &bytes[1]) == 0);
  REQUIRE(fa_workspace_bytes(kPrepared, &it.p, &bytes[2]) == 0);
  CHECK(bytes[0] == 2 * 4 + 3 * 4 + 4);
  CHECK(bytes[1] == 3 * 4 + 4);
  CHECK(bytes[2] == 2 * 3 * 32 * 4);
}

TEST_CASE(
    "the library's forward needs a prepare of the same problem, Q, K and V; its backward a "
    "forward",
    "[library]") {
  Library it;
  const std::string prepare = "fa_prepare of the same tensors", forward = "fa_forward of the same";
  const auto require_refused = [&](auto call, const std::string& first, const std::string& why) {
    const std::string said = it.said(call, kPrepared);
    CHECK_THAT(said, ContainsSubstring("variant 1: " + first));
    CHECK_THAT(said, ContainsSubstring(why));
  };
  require_refused(fa_forward, prepare, "none has run");
  require_refused(fa_backward, prepare, "none has run");
  CHECK(it.said(fa_prepare, kPrepared).empty());
  require_refused(fa_backward, forward, "none has run");
  CHECK(it.said(fa_forward, kPrepared).empty());
  CHECK(on_host(it.t.O, 6 * 32) == Values(6 * 32, 111));
  CHECK(it.said(fa_backward, kPrepared).empty());
  for (const void* FaTensors::*input : {&FaTensors::Q, &FaTensors::K, &FaTensors::V}) {
    const void* const kept = std::exchange(it.t.*input, it.tensor(7));
    require_refused(fa_forward, prepare, "the last one was of other Q, K or V");
    require_refused(fa_backward, prepare, "the last one was of other Q, K or V");
    it.t.*input = kept;
  }
  const FaProblem kept = it.p;
  it.p.causal = 1;
  require_refused(fa_forward, prepare, "the last one was of B=2 H=1 N=3 d=32 fp32");
  it.p = kept;
  CHECK(it.said(fa_forward, kPrepared).empty());  // the refused call changed nothing

  // A failed run leaves nothing to later ones; another variant's run takes nothing from them.
  fails = true;
  CHECK(it.said(fa_forward, kPrepared) == "it fails");
  require_refused(fa_backward, forward, "none has run");
  fails = false;
  CHECK(it.said(fa_forward, kPrepared).empty());
  CHECK(it.said(fa_forward, kTables).empty());
  CHECK(it.said(fa_backward, kPrepared).empty());
  fails = true;
  CHECK(it.said(fa_prepare, kPrepared) == "it fails");
  fails = false;
  require_refused(fa_forward, prepare, "none has run");

  CHECK(it.said(fa_prepare, kPrepared).empty());
  CHECK(it.said(fa_forward, kPrepared).empty());
  CHECK(it.said(fa_prepare, kPrepared).empty());  // perhaps with other values
  require_refused(fa_backward, forward, "none has run");
  CHECK(it.said(fa_forward, kPrepared).empty());
  REQUIRE(fa_release() == 0);
  require_refused(fa_forward, prepare, "none has run");
}

TEST_CASE("the library refuses what a call cannot do", "[library]") {
  Library it;
  const auto require_refused = [&](auto call, int variant, const std::string& why) {
    CHECK_THAT(it.said(call, variant), ContainsSubstring(why));
  };
  require_refused(fa_forward, 4, "variant 4: 99_kept has 4");
  require_refused(fa_forward, -1, "variant -1: 99_kept has 4");
  require_refused(fa_prepare, kTables, "99_kept tables: it has no prepare");
  require_refused(fa_backward, kTables, "99_kept tables: it has no backward");
  REQUIRE(it.said(fa_prepare, kPrepared).empty());
  REQUIRE(it.said(fa_forward, kPrepared).empty());
  // An address of each tensor that the call reads or writes, and of no other.
  const FaTensors all = it.t;
  const auto needs = [&](auto call, auto FaTensors::*tensor) {
    it.t = all;
    it.t.*tensor = nullptr;
    const std::string null = it.said(call, kPrepared);
    return null.find("is a null pointer") != std::string::npos;
  };
  const auto needs_of = [&](auto call) {
    std::string names;
    const auto add = [&](const char* name, auto tensor) {
      names += needs(call, tensor) ? name : "";
    };
    add("Q", &FaTensors::Q), add("K", &FaTensors::K), add("V", &FaTensors::V);
    add("O", &FaTensors::O), add("dO", &FaTensors::dO), add("dQ", &FaTensors::dQ);
    add("dK", &FaTensors::dK), add("dV", &FaTensors::dV), add("LSE", &FaTensors::LSE);
    it.t = all;
    return names;
  };
  CHECK(needs_of(fa_prepare) == "QKV");
  REQUIRE(it.said(fa_prepare, kPrepared).empty());
  CHECK(needs_of(fa_forward) == "QKVO");
  REQUIRE(it.said(fa_forward, kPrepared).empty());
  CHECK(needs_of(fa_backward) == "QKVOdOdQdKdV");
  it.t.O = static_cast<char*>(all.O) + 8;
  require_refused(fa_forward, kPrepared, "O is not aligned to 16 bytes");
  it.t = all;
  it.p.N = it.p.Nk = 0;
  require_refused(fa_forward, kTables, "N 0: must be at least 1");
  CHECK(fa_check(&it.p) == 2);
  it.p.N = it.p.Nk = 1;
  CHECK(fa_check(&it.p) == 0);
}

TEST_CASE("the library's sentences name what is missing, and the fields of its structs",
          "[library]") {
  Library it;
  const auto said = [](int status) { return status == 0 ? "accepted" : fa_last_error(); };
  using Words = std::string;
  CHECK(Words(said(fa_forward(kTables, nullptr, &it.t, nullptr))) ==
        "no problem: the pointer is null");
  CHECK(Words(said(fa_forward(kTables, &it.p, nullptr, nullptr))) ==
        "no tensors: the pointer is null");
  CHECK(fa_check(nullptr) == 2);
  it.t.table = reinterpret_cast<const int32_t*>(it.t.Q);
  CHECK(it.said(fa_forward, kTables) == "table: K and V have no pages, page is 0");
  it.t.table = nullptr;
  size_t bytes = 7;
  CHECK(Words(said(fa_workspace_bytes(kTables, &it.p, nullptr))) ==
        "no place for the bytes: the pointer is null");
  CHECK(fa_workspace_bytes(4, &it.p, &bytes) == 2);
  CHECK(bytes == 0);
  CHECK(Words(said(fa_malloc(nullptr, 1))) == "no place for the address: the pointer is null");
  void* place = &it;
  CHECK(fa_malloc(&place, size_t{1} << 60) == 3);
  CHECK(place == nullptr);
  CHECK(Words(fa_last_error()) == "memory: the device cannot allocate 1152921504.6 GB");

  const auto refused = [&](auto FaProblem::*field, auto value) {
    const auto kept = std::exchange(it.p.*field, value);
    const Words words = it.said(fa_forward, kTables);
    it.p.*field = kept;
    return words;
  };
  CHECK(refused(&FaProblem::B, 0) == "B 0: must be at least 1");
  CHECK(refused(&FaProblem::H, 2) ==
        "Hkv 1: this step supports only as many key/value heads as query heads (H 2)");
  const std::array<int32_t, 2> lengths = {2, 4};
  CHECK(refused(&FaProblem::lengths, lengths.data()) ==
        "lengths 4: each must be 0 to 3, the keys of Nk");

  // Of all variants the reason is the last one's that has no 8-bit cache.
  it.p.d = 96;
  CHECK(fa_check(&it.p) == 0);
  it.p.d = 128;
  CHECK(fa_check(&it.p) == 2);
  CHECK_THAT(Words(fa_last_error()), ContainsSubstring("d 128: variant plain supports d 32, 64"));
  it.p.d = 32;

  FaMask mask{};
  mask.left = mask.right = -1;
  it.p.mask = &mask;
  CHECK(it.said(fa_forward, kTables).empty());
  mask.documents = 2;
  CHECK(it.said(fa_forward, kTables) == "mask: documents without row_lengths");
  const std::array<int32_t, 2> rows = {1, 2}, negative = {1, -3}, large = {INT32_MAX, 1};
  mask.row_lengths = rows.data();
  CHECK(it.said(fa_forward, kTables) == "lengths of 2 documents: this step has no such mask");
  mask.key_lengths = negative.data();
  CHECK(it.said(fa_forward, kTables) == "mask: document 1 has -3 rows or keys");
  mask.key_lengths = large.data();
  CHECK(it.said(fa_forward, kTables) == "mask: document 1 has 1 rows or keys");
  mask.documents = 0, mask.predicate = "round";
  CHECK_THAT(it.said(fa_forward, kTables), ContainsSubstring("mask round: 99_kept has none"));
  mask.predicate = "tiles";
  for (const int heads : {-1, 0, 3}) {
    mask.tile_heads = heads;
    CHECK(it.said(fa_forward, kTables) ==
          "mask: tile_heads " + std::to_string(heads) + ": must be 1, H = 1 or B*H = 2");
  }
  mask.tile_heads = 2;
  CHECK(it.said(fa_forward, kTables) == "mask: tiles is a null pointer");
  const uint8_t tiles[2] = {1, 2};
  mask.tiles = tiles;
  CHECK(it.said(fa_forward, kTables) == "mask: tiles[1] is 2, not 0 or 1");
}

TEST_CASE("tiles are read at each call, and others are other tables", "[library]") {
  Library it;
  uint8_t tiles[2] = {1, 0};
  FaMask mask{};
  mask.left = mask.right = -1;
  mask.predicate = "tiles", mask.tile_heads = 2, mask.tiles = tiles;
  it.p.mask = &mask;
  CHECK(it.O(4) == Values{99, 99, 99, 0});
  CHECK(it.O(4) == Values{99, 99, 99, 1});
  tiles[1] = 1;
  CHECK(it.O(4) == Values{199, 199, 199, 2});
  CHECK(it.said(fa_forward, kPrepared) ==
        "tiles: variant prepared has no such mask; accepted by tables");
  mask.predicate = nullptr;  // as callers that know nothing of tiles
  CHECK(it.O(4) == Values{-1, -1, -1, 3});
}

TEST_CASE("a run keeps the workspace of a larger one, and each variant its own", "[library]") {
  Library it;
  it.p.B = 1;
  it.p.N = it.p.Nk = 5;
  FaMask window{};
  window.left = 4, window.right = -1;
  it.p.mask = &window;
  CHECK(it.O(6) == Values{4, 4, 4, 4, 4, 0});
  REQUIRE(it.said(fa_prepare, kPrepared).empty());
  it.p.mask = nullptr;
  REQUIRE(it.said(fa_prepare, kPrepared).empty());
  it.p.mask = &window, it.p.N = it.p.Nk = 2;
  CHECK(it.O(3) == Values{4, 4, 1});
  it.p.N = it.p.Nk = 5;
  CHECK(it.O(6) == Values{4, 4, 4, 4, 4, 2});
  it.p.mask = nullptr;
  REQUIRE(it.said(fa_forward, kPrepared).empty());  // its prepare is still the last
  CHECK(on_host(it.t.O, 5 * 32) == Values(5 * 32, 111));
  // Prepared for another problem: the previous one is forgotten.
  it.p.N = it.p.Nk = 2;
  REQUIRE(it.said(fa_prepare, kPrepared).empty());
  it.p.N = it.p.Nk = 5;
  CHECK_THAT(it.said(fa_forward, kPrepared),
             ContainsSubstring("the last one was of B=1 H=1 N=2 d=32 fp32"));
}

TEST_CASE("a backward whose P the forward left needs that forward, of this problem", "[library]") {
  Library it;
  const std::string first = "variant 2: fa_forward of the same tensors, ";
  const auto refused = [&](const std::string& why) {
    const std::string said = it.said(fa_backward, kPlain);
    CHECK_THAT(said, ContainsSubstring(first + "B=2") && ContainsSubstring("; " + why));
  };
  refused("none has run");
  REQUIRE(it.said(fa_forward, kPlain).empty());
  CHECK(it.said(fa_backward, kPlain).empty());
  it.p.causal = 1;
  refused("the last one was of B=2 H=1 N=3 d=32 fp32");
  it.p.causal = 0;
  CHECK(it.said(fa_backward, kPlain).empty());
  REQUIRE(fa_release() == 0);
  refused("none has run");
}

TEST_CASE("a step is linked with the architectures of its build", "[library]") {
  const auto linked_with = [](const std::string& needs) {
    fa::Step some;
    some.id = "98_linked";
    fa::LinkedStep(some, needs);
    const fa::Step& last = fa::linked_steps().back();
    CHECK(last.id == "98_linked");
    return last.needs + "|" + last.newer;
  };
  CHECK(linked_with("") == "|");
  CHECK(linked_with("sm_80") == "sm_80|");
  CHECK(linked_with("sm_90a,sm_80") == "sm_80|sm_90a");
}

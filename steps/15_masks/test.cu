// Tests of step 15. steps/CMakeLists.txt has the sources that it is linked with.
#include <bit>

#include "steps/15_masks/beyond/lists.cuh"
#include "steps/15_masks/predicates.h"
#include "tests/backward.h"
#include "tests/masks.h"

using fa::Problem;
using fa::test::bf16_problem, fa::test::packed, fa::test::with_window;

static const fa::Variant& window() { return fa::linked_variant("15 window"); }
static const fa::Variant& parent() { return fa::linked_variant("07 lazy"); }

namespace {

/// Variants with the same masks: sm_80's and, in a build for Hopper, Hopper's.
std::vector<const fa::Variant*> both(const std::string& sm_80, const std::string& hopper) {
  std::vector<const fa::Variant*> found = {&fa::linked_variant("15 " + sm_80)};
  for (const fa::Step& step : fa::linked_steps()) {
    for (const fa::Variant& v : step.variants) {
      if (v.newer && v.name == hopper) found.push_back(&v);
    }
  }
  return found;
}
std::vector<const fa::Variant*> packs() { return both("packed", "wgmma"); }

/// Each combination of a case's values is for one of them. The order is Thue and Morse's:
/// alternation would be in step with a case's innermost parameter.
const fa::Variant& in_turn(const std::vector<const fa::Variant*>& variants) {
  static size_t n = 0;
  return *variants[std::popcount(n++) % variants.size()];
}

/// Calls f(part), each in a section, so that several processes can share a case: `-c "part 3"`.
template <class F>
void in_parts(int parts, const F& f) {
  for (int part = 0; part < parts; ++part) {
    DYNAMIC_SECTION("part " << part) { f(part); }
  }
}

#if !FA_BACKEND_GPU
/// Predicted equals counted; where a mask leaves no tile, some buffers are not touched.
void require_predicted(fa::Prediction prediction, const fa::Counts& counts) {
  std::erase_if(prediction.buffers, [](const auto& b) { return b.second == fa::Bytes{}; });
  fa::test::require_equal(prediction, counts);
  CHECK(counts.tensor_flops == prediction.flops);
}
#endif

/// Right and, in the simulator, as predicted and without a finding of the analysis.
void require_all(const fa::Variant& v, const Problem& p) {
  CAPTURE(v.name, fa::describe(p));
#if FA_BACKEND_GPU
  fa::test::require_right(v, p);
#else
  const fa::test::BothCounts counts = fa::test::require_right_counted(v, p, /*analyse=*/true);
  require_predicted(v.traffic(p), counts.forward);
  if (v.backward) require_predicted(v.backward_traffic(p), counts.backward);
#endif
}

void require_same_results(const fa::Outputs& a, const fa::Outputs& b) {
  CHECK((a.O == b.O));  // CHECK would print too many numbers
  CHECK((a.LSE == b.LSE));
}

}  // namespace

// --- window --------------------------------------------------------------------------------------

TEST_CASE("step 15: what every forward on tensor cores is asked", "[step15][all]") {
  fa::Variant forward = window();
  forward.backward = {};  // large scores are not checkable there
  fa::test::require_forward(forward);
}

TEST_CASE("step 15: what every backward on tensor cores is asked", "[step15][all]") {
  const fa::Variant& v = *GENERATE(from_range(both("window", "wgmma")));
  const int d = GENERATE(64, 128);
  if (!fa::test::is_now(d == (v.newer ? 128 : 64))) return;
  fa::test::require_backward({&v, d}, fa::linked_variant("06 backward"));
}

TEST_CASE("step 15: a window, below, at and above a tile", "[step15][all]") {
  const int left = GENERATE(-1, 0, 65), right = GENERATE(1000, 0, 64);
  const int N = GENERATE(1, 129, 300);
  const int d = GENERATE(64, 128);
  const bool causal = GENERATE(false, true);
  if ((causal && right < 1000) || !fa::test::one_in(19)) return;
  const auto p = with_window(bf16_problem(N, N, d, causal), left, right);
  require_all(in_turn(both("window", "wgmma")), p);
}

TEST_CASE("step 15: the first key of a tile of rows may be the last of its tile", "[step15]") {
  const int d = GENERATE(64, 128);
  const auto p = with_window(bf16_problem(d + 65, d + 65, d, /*causal=*/true), 65, 0);
  for (const fa::Variant* v : both("window", "wgmma")) fa::test::require_right(*v, p);
}

TEST_CASE("step 15: a window, as many keys as one likes", "[step15][all]") {
  const auto [N, Nk] = GENERATE(std::pair(1, 300), std::pair(300, 1), std::pair(130, 257),
                                std::pair(257, 130), std::pair(70, 400), std::pair(400, 90));
  const auto [left, right] =
      GENERATE(std::pair(0, 0), std::pair(0, -1), std::pair(70, 3), std::pair(3, 70));
  const int d = GENERATE(64, 128);
  const bool causal = GENERATE(false, true);
  if ((causal && right > 0) || !fa::test::one_in(17)) return;
  const auto p = bf16_problem(N, Nk, d, causal);
  require_all(in_turn(both("window", "wgmma")), with_window(p, left, right));
}

TEST_CASE("step 15: a window without limits is no window, bit for bit", "[step15][all]") {
  const bool causal = GENERATE(false, true);
  const auto [N, Nk] = GENERATE(std::pair(300, 300), std::pair(130, 300), std::pair(300, 130));
  const auto p = bf16_problem(N, Nk, GENERATE(64, 128), causal, 1, /*H=*/2, /*Hkv=*/1);
  if (!fa::test::one_in(5)) return;
  CAPTURE(fa::describe(p));
  const auto in = fa::normal_inputs(p, 3);
  const fa::Outputs want = fa::run(parent(), p, in);
  require_same_results(fa::run(window(), p, in), want);
  require_same_results(fa::run(window(), with_window(p, 300, causal ? 0 : 300), in), want);
  require_same_results(fa::run(window(), with_window(p, 1000000, causal ? 7 : -1), in), want);
}

TEST_CASE("step 15: what every forward is asked, of Hopper's", "[step15][all]") {
  for (const fa::Variant* v : both("window", "wgmma")) {
    if (!v->newer) continue;
    SECTION("at edges") { fa::test::require_right_at_edges(*v); }
    SECTION("rows without keys") { fa::test::require_blind_rows(*v); }
    SECTION("every remainder") { fa::test::require_right_for_every_remainder(*v); }
    SECTION("the same bits") { fa::test::require_same_bits(*v); }
  }
}

TEST_CASE("step 15: without a window Hopper's is step 10's causal forward, bit for bit",
          "[step15]") {
  const auto [N, Nk] = GENERATE(std::pair(300, 300), std::pair(130, 300), std::pair(300, 130));
  const auto p = bf16_problem(N, Nk, GENERATE(64, 128), /*causal=*/true, 1, /*H=*/2, /*Hkv=*/1);
  const auto in = fa::normal_inputs(p, 3);
  for (const fa::Variant* v : both("window", "wgmma")) {
    if (!v->newer) continue;
    CAPTURE(fa::describe(p));
    require_same_results(fa::run(*v, p, in), fa::run(fa::linked_variant("10 scheduled"), p, in));
  }
}

TEST_CASE("step 15: a row that sees only itself has its V", "[step15]") {
  const auto p = with_window(bf16_problem(200, 200, 64, GENERATE(false, true)), 0, 0);
  const auto in = fa::normal_inputs(p, 4);
  REQUIRE(fa::test::max_difference(fa::run(window(), p, in).O, in.V) == 0);
}

#if !FA_BACKEND_GPU
TEST_CASE("step 15: a window's bytes and operations grow with N, not with its square", "[step15]") {
  const auto traffic = [](int N) {
    return window().traffic(with_window(bf16_problem(N, N, 128, true), 256, 0));
  };
  for (const int N : {4096, 8192, 16384}) {
    CHECK(traffic(2 * N).flops < 2.05 * traffic(N).flops);
    CHECK(traffic(2 * N).total().read < 2.05 * traffic(N).total().read);
  }
}
#endif

// --- packed --------------------------------------------------------------------------------------

namespace {

using Lengths = std::vector<std::pair<int, int>>;

/// Calls f(first element, number of elements) for a document's share of each of the heads.
template <class F>
void for_document(int heads, int length, const fa::Range& rows, size_t width, const F& f) {
  for (int h = 0; h < heads; ++h) f((size_t(h) * length + rows.first) * width, rows.size() * width);
}

std::vector<float> share(const std::vector<float>& t, int heads, int length, const fa::Range& rows,
                         size_t width) {
  std::vector<float> part;
  for_document(heads, length, rows, width, [&](size_t first, size_t n) {
    part.insert(part.end(), t.begin() + first, t.begin() + first + n);
  });
  return part;
}

fa::Inputs inputs_of(const Problem& p, const fa::Inputs& in, const fa::Document& doc) {
  fa::Inputs part;
  const size_t d = p.d;
  part.Q = share(in.Q, p.H, p.N, doc.rows, d), part.dO = share(in.dO, p.H, p.N, doc.rows, d);
  part.K = share(in.K, p.Hkv, p.Nk, doc.keys, d), part.V = share(in.V, p.Hkv, p.Nk, doc.keys, d);
  return part;
}
fa::Outputs outputs_of(const Problem& p, const fa::Outputs& out, const fa::Document& doc) {
  fa::Outputs part;
  const size_t d = p.d;
  part.O = share(out.O, p.H, p.N, doc.rows, d), part.dQ = share(out.dQ, p.H, p.N, doc.rows, d);
  part.LSE = share(out.LSE, p.H, p.N, doc.rows, 1);
  part.dK = share(out.dK, p.Hkv, p.Nk, doc.keys, d);
  part.dV = share(out.dV, p.Hkv, p.Nk, doc.keys, d);
  return part;
}

/// Bit for bit, except for dQ, whose sums have any order.
void require_same(const fa::Outputs& a, const fa::Outputs& b) {
  require_same_results(a, b);
  CHECK((a.dK == b.dK));
  CHECK((a.dV == b.dV));
  CHECK(fa::test::max_difference(a.dQ, b.dQ) <= 0x1p-7);
}

}  // namespace

TEST_CASE("step 15: packs", "[step15][all]") {
  const Lengths lengths = GENERATE(
      Lengths{{1, 1}}, Lengths{{0, 0}, {1, 1}, {0, 0}}, Lengths{{128, 128}, {128, 128}, {128, 128}},
      Lengths{{300, 300}, {1, 1}, {17, 17}, {0, 0}, {129, 129}},
      Lengths{{40, 90}, {90, 40}, {0, 10}, {10, 0}, {1, 200}, {200, 1}},
      Lengths{{1, 1}, {2, 2}, {3, 3}, {4, 4}, {5, 5}, {6, 6}, {7, 7}, {8, 8}, {9, 9}});
  const auto [left, right] = GENERATE(std::pair(-1, -1), std::pair(30, 5));
  const int d = GENERATE(64, 128);
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(11)) return;
  const auto p = bf16_problem(1, 1, d, causal, /*B=*/1);
  require_all(in_turn(packs()), with_window(packed(p, lengths), left, right));
}

TEST_CASE("step 15: random packs", "[step15][all]") {
  in_parts(FA_BACKEND_GPU ? 20 : 1, [](int part) {
    std::mt19937 random(15 + part);
    const auto below = [&random](int n) { return static_cast<int>(random() % n); };
    for (int i = 0; i < (FA_BACKEND_GPU ? 50 : 12); ++i) {
      const int longest = !FA_BACKEND_GPU ? 200 : i % 9 == 0 ? 3000 : 500;
      Lengths lengths;
      for (int n = 1 + below(8); n > 0; --n) {
        // Many are short, some are 0 or 1, few are long.
        const int length = below(4) == 0 ? below(2) : below(1 + below(longest));
        lengths.emplace_back(length, below(3) ? length : below(longest));
      }
      lengths.emplace_back(1, 1);
      auto p = bf16_problem(1, 1, 64 << below(2), below(2), 1 + below(2), 2, 1 + below(2));
      if (below(3) == 0) p = with_window(p, below(100), below(100));
      p = packed(p, lengths);
      if (!fa::test::is_now(i % 5 == 0)) continue;
      CAPTURE(part, i);
      require_all(in_turn(packs()), p);
    }
  });
}

TEST_CASE("step 15: many short walks on few blocks", "[step15][all]") {
  const auto [length, count] = GENERATE(std::pair(512, 4), std::pair(100, 5), std::pair(1, 37));
  const int d = GENERATE(64, 128);
  const bool causal = GENERATE(false, true);
  if (!fa::test::one_in(5)) return;
  for (const fa::Variant* v : packs()) {
    if (!v->newer) continue;
    CAPTURE(length, d, causal);
    const auto p = bf16_problem(1, 1, d, causal, 1, /*H=*/FA_BACKEND_GPU ? 8 : 2, /*Hkv=*/2);
    fa::test::require_right(fa::test::on_blocks(*v, 2), packed(p, std::vector(count, length)));
  }
}

TEST_CASE("step 15: a pack of one document is that document, bit for bit", "[step15]") {
  const auto p = bf16_problem(200, 330, GENERATE(64, 128), GENERATE(false, true), 1, 2, 1);
  const auto in = fa::normal_inputs(p, 5);
  const fa::Variant& packing = fa::linked_variant("15 packed");
  require_same(fa::run(packing, packed(p, Lengths{{200, 330}}), in), fa::run(window(), p, in));
}

TEST_CASE("step 15: nothing of one document reaches another", "[step15][all]") {
  const fa::Variant& v = *GENERATE(from_range(packs()));
  const int d = GENERATE(64, 128);
  const bool causal = GENERATE(false, true);
  const Lengths lengths = {{70, 70}, {1, 1}, {0, 0}, {130, 130}, {33, 50}};
  auto p = packed(bf16_problem(1, 1, d, causal, 1, /*H=*/1, /*Hkv=*/1), lengths);
  if (GENERATE(false, true)) p = with_window(p, 40, 20);
  if (!fa::test::one_in(5)) return;
  CAPTURE(v.name, fa::describe(p));
  const auto in = fa::normal_inputs(p, 6);
  const fa::Outputs all = fa::run(v, p, in);
  for (const fa::Document& doc : p.documents()) {
    if (doc.rows.size() == 0) continue;
    CAPTURE(doc.rows.first, doc.rows.last);
    const fa::Outputs got = outputs_of(p, all, doc);
    Problem alone = p;
    alone.mask.row_starts.clear(), alone.mask.key_starts.clear();
    alone.N = doc.rows.size(), alone.Nk = doc.keys.size();
    require_same(got, fa::run(v, alone, inputs_of(p, in, doc)));

    // All other documents are NaN, in Q, K, V and dO.
    fa::Inputs poisoned;
    for (auto t : {&fa::Inputs::Q, &fa::Inputs::dO, &fa::Inputs::K, &fa::Inputs::V}) {
      const bool keys = t == &fa::Inputs::K || t == &fa::Inputs::V;
      (poisoned.*t).assign((in.*t).size(), NAN);
      for_document(
          keys ? p.Hkv : p.H, keys ? p.Nk : p.N, keys ? doc.keys : doc.rows, d,
          [&](size_t first, size_t n) { std::copy_n(&(in.*t)[first], n, &(poisoned.*t)[first]); });
    }
    require_same(outputs_of(p, fa::run(v, p, poisoned), doc), got);
  }
}

TEST_CASE("step 15: blocks of a pack are those of its documents, the longest walks first",
          "[step15]") {
  const auto p = packed(bf16_problem(1, 1, 128, true), {100, 0, 1, 300, 128});
  const std::vector<fa::Table> tables = fa::tables_of(fa::linked_variant("15 packed"), p);
  REQUIRE(tables[0].name == "work");
  const std::vector<int>& work = tables[0].values;  // row, rows, key, keys
  CHECK(work == std::vector{357, 44,  101, 300, 229, 172, 101, 300, 0,   100, 0,   100,
                            101, 300, 101, 300, 401, 128, 401, 128, 100, 1,   100, 1});
}

// --- lists ---------------------------------------------------------------------------------------

namespace {

const fa::Variant& lists() { return fa::linked_variant("15 lists"); }

Problem with_predicate(Problem p, const char* name, int n) {
  for (const fa::Predicate& each : step15::predicates()) {
    if (each.name == name) p.mask.predicate = {each.name, n, each.sees};
  }
  REQUIRE(p.mask.predicate.sees);
  return p;
}

/// The tiles of a kernel's test, by each score of each tile.
void require_lists(const Problem& p, const step15::Test& test) {
  const step15::TileLists lists = step15::ListMaker(p, test)();
  std::vector<std::vector<char>> listed(fa::ceil_div(p.N, test.Br),
                                        std::vector<char>(fa::ceil_div(p.Nk, test.Bc), '.'));
  uint64_t cut = 0;
  for (size_t a = 0; a < lists.work.size(); a += 4) {
    for (int e = lists.work[a + 1]; e < lists.work[a + 3]; ++e) {
      const int own = lists.work[a], other = lists.entries[2 * e];
      char& tile = listed.at(test.by_keys ? other : own).at(test.by_keys ? own : other);
      REQUIRE(tile == '.');  // each tile once
      tile = e < lists.work[a + 2] ? 'c' : 'f';
      cut += tile == 'c';
      CHECK((lists.entries[2 * e + 1] >= 0) == (tile == 'c'));
    }
    if (a > 0) {
      CHECK(lists.work[a + 3] - lists.work[a + 1] <= lists.work[a - 1] - lists.work[a - 3]);
    }
  }
  CHECK(lists.cut == cut);
  for (size_t i = 0; i < listed.size(); ++i) {
    for (size_t j = 0; j < listed[i].size(); ++j) {
      int visible = 0, hidden = 0;
      for (int r = i * test.Br; r < std::min<int>(p.N, (i + 1) * test.Br); ++r) {
        for (int c = j * test.Bc; c < static_cast<int>((j + 1) * test.Bc); ++c) {
          (c < p.Nk && p.sees(r, c) ? visible : hidden)++;
        }
      }
      CHECK(listed[i][j] == (visible == 0 ? '.' : hidden == 0 ? 'f' : 'c'));
    }
  }
}

}  // namespace

TEST_CASE("step 15: lists hold the tiles that a mask leaves, each once", "[step15]") {
  std::mt19937 random(16);
  for (int i = 0; i < 40; ++i) {
    Problem p = fa::test::problem(1 + random() % 150, 64, random() % 2);
    p.Nk = 1 + random() % 150;
    p = fa::test::with_random_mask(p, random, /*predicates=*/true);
    if (i % 3 == 0) p = fa::test::with_random_tiles(p, 1, 0.5, i);
    CAPTURE(i, fa::describe(p));
    require_lists(p, {32, 16, i % 2 == 0, 1, [](int, int) { return std::pair(-1, -1); }});
  }
}

TEST_CASE("step 15: what every forward is asked, by lists", "[step15][all]") {
  const fa::Variant& v = in_turn(both("lists", "wgmma_lists"));
  SECTION("at edges") { fa::test::require_right_at_edges(v); }
  SECTION("where heads share keys") { fa::test::require_right_with_shared_heads(v); }
  SECTION("rows without keys") { fa::test::require_blind_rows(v); }
  SECTION("the same bits") { fa::test::require_same_bits(v); }
}

TEST_CASE("step 15: masks by name", "[step15][all]") {
  const auto [name, n] = GENERATE(std::pair("prefix", 100), std::pair("strided", 33),
                                  std::pair("checkered", 128), std::pair("checkered", 37));
  const auto [N, Nk] = GENERATE(std::pair(300, 300), std::pair(130, 257), std::pair(257, 130));
  const int d = GENERATE(64, 128);
  if (!fa::test::one_in(11)) return;
  require_all(in_turn(both("lists", "wgmma_lists")),
              with_predicate(bf16_problem(N, Nk, d, false), name, n));
}

TEST_CASE("step 15: random masks", "[step15][all]") {
  in_parts(FA_BACKEND_GPU ? 10 : 1, [](int part) {
    std::mt19937 random(17 + part);
    for (int i = 0; i < (FA_BACKEND_GPU ? 50 : 30); ++i) {
      Problem p = bf16_problem(1 + random() % 300, 1 + random() % 300, 64 << random() % 2,
                               random() % 2, 1, 2, 1 + random() % 2);
      p = fa::test::with_random_mask(p, random, /*predicates=*/true);
      if (!fa::test::is_now(i % 5 == 0)) continue;
      CAPTURE(part, i);
      require_all(in_turn(both("lists", "wgmma_lists")), p);
    }
  });
}

TEST_CASE("step 15: tiles of each head, and rows of tiles without any", "[step15][all]") {
  using fa::test::with_random_tiles;
  const auto [N, Nk, H, Hkv] =
      GENERATE(std::tuple(200, 300, 2, 2), std::tuple(257, 130, 4, 2), std::tuple(129, 300, 2, 1));
  const int heads = GENERATE(4, 2, 1), d = GENERATE(64, 128);
  const bool causal = GENERATE(false, true);
  const double share = GENERATE(0.6, 0.2);
  if (!fa::test::one_in(41)) return;
  const int B = heads == 1 ? 1 : 2;
  const auto p = bf16_problem(N, Nk, d, causal, B, H, Hkv);
  const size_t different = heads == 1 ? 1 : heads == 2 ? H : p.heads();
  require_all(in_turn(both("lists", "wgmma_lists")), with_random_tiles(p, different, share, N + H));
}

TEST_CASE("step 15: without a hidden tile the result is that without tiles, bit for bit",
          "[step15]") {
  const int d = GENERATE(64, 128);
  const auto p = bf16_problem(130, 200, d, /*causal=*/d == 64, /*B=*/1, /*H=*/2, /*Hkv=*/2);
  const fa::Variant& v = *GENERATE(from_range(both("lists", "wgmma_lists")));
  Problem tiled = p;
  tiled.mask.tiles = {2, 2, 2, std::make_shared<std::vector<uint8_t>>(2 * 2 * 2, 1)};
  const auto in = fa::normal_inputs(p, 12);
  require_same(fa::run(v, tiled, in), fa::run(v, p, in));
}

TEST_CASE("step 15: a window and a pack by lists", "[step15]") {
  const auto p = bf16_problem(300, 300, GENERATE(64, 128), true, 1, 2, 1);
  const auto in = fa::normal_inputs(p, 8);
  const Problem w = with_window(p, 70, 10), documents = packed(p, {100, 0, 1, 199});
  for (const auto& [problem, variant] :
       {std::pair(w, &window()), std::pair(documents, &fa::linked_variant("15 packed"))}) {
    const fa::Outputs a = fa::run(lists(), problem, in), b = fa::run(*variant, problem, in);
    // Other tiles, in another order.
    CHECK(fa::test::max_difference(a.O, b.O) <= 0x1p-6);
    CHECK(fa::test::max_difference(a.LSE, b.LSE) <= 2e-5);
  }
}

TEST_CASE("step 15: equal tiles of bits are stored once", "[step15]") {
  const auto causal = bf16_problem(1024, 1024, 64, true);
  CHECK(step15_lists::lists_of(causal).cut == 8);
  CHECK(step15_lists::lists_of(causal).bits.size() == 128 * 128 / 32);
}

// --- scores --------------------------------------------------------------------------------------

namespace {

using fa::test::with_score_mod;

std::vector<const fa::Variant*> scores() { return both("scores", "wgmma_scores"); }

/// Variants that change scores, each with one of the same masks that does not.
std::vector<std::pair<const fa::Variant*, const fa::Variant*>> pairs() {
  std::vector<std::pair<const fa::Variant*, const fa::Variant*>> found;
  for (size_t i = 0; i < scores().size(); ++i) found.emplace_back(scores()[i], packs()[i]);
  return found;
}

}  // namespace

TEST_CASE("step 15: changed scores", "[step15][all]") {
  const auto [cap, alibi, sinks] = GENERATE(
      std::tuple(0.f, false, false), std::tuple(1.f, false, false), std::tuple(30.f, false, false),
      std::tuple(0.f, true, false), std::tuple(0.f, false, true), std::tuple(2.f, true, true));
  const auto [N, Nk] = GENERATE(std::pair(1, 1), std::pair(200, 200), std::pair(150, 70));
  const int d = GENERATE(64, 128);
  const bool causal = GENERATE(false, true);
  if (causal == (d == 64 && N > 1)) return;
  if (!fa::test::one_in(11)) return;
  Problem p = bf16_problem(N, Nk, d, causal, /*B=*/1, /*H=*/2, /*Hkv=*/1);
  if ((N + d / 64) % 2) p = with_window(p, 40, 20);
  require_all(in_turn(scores()), with_score_mod(p, cap, alibi, sinks));
}

TEST_CASE("step 15: changed scores of packs", "[step15][all]") {
  const auto [cap, alibi, sinks] = GENERATE(
      std::tuple(3.f, false, false), std::tuple(0.f, true, false), std::tuple(0.f, false, true));
  const Lengths lengths = GENERATE(Lengths{{100, 100}, {0, 0}, {1, 1}, {99, 99}},
                                   Lengths{{40, 90}, {90, 40}, {0, 10}, {10, 0}});
  const bool causal = GENERATE(false, true);
  const auto p = packed(bf16_problem(1, 1, GENERATE(64, 128), causal, 1, 2, 1), lengths);
  if (!fa::test::one_in(5)) return;
  require_all(in_turn(scores()), with_score_mod(p, cap, alibi, sinks));
}

TEST_CASE("step 15: a sink of -inf is none, bit for bit; of 0 and 100 it is right",
          "[step15][all]") {
  const auto& [v, without] = GENERATE(from_range(pairs()));
  const auto plain = bf16_problem(150, 200, GENERATE(64, 128), GENERATE(false, true), 1, 2, 1);
  if (!fa::test::one_in(5)) return;
  const Problem p = with_score_mod(plain, 0, false, true);
  fa::Inputs in = fa::normal_inputs(p, 9);
  for (const float sink : {0.f, 100.f, -100.f}) {
    CAPTURE(sink);
    in.sinks.assign(in.sinks.size(), sink);
    fa::test::require_right(*v, p, in);
  }
  // Of Hopper's variants with changed scores, sm_80's kernels compute the gradients.
  const auto require_equal = v->newer ? require_same_results : require_same;
  in.sinks.assign(in.sinks.size(), -INFINITY);
  const fa::Outputs got = fa::run(*v, p, in);
  require_equal(got, fa::run(*without, plain, in));
  CHECK(got.dsinks == std::vector<float>(2, 0.f));
  require_equal(fa::run(*v, plain, in), fa::run(*without, plain, in));
}

TEST_CASE("step 15: rows that see nothing but a sink", "[step15]") {
  const Problem p = with_score_mod(bf16_problem(100, 20, GENERATE(64, 128), true), 0, false, true);
  const fa::Variant& v = *GENERATE(from_range(scores()));
  fa::Inputs in = fa::normal_inputs(p, 10);
  in.sinks = {1.5f};
  fa::test::require_right(v, p, in);
  const fa::Outputs out = fa::run(v, p, in);
  for (int r = 0; r < 80; ++r) {
    CHECK(out.LSE[r] == Approx(1.5));
    CHECK(out.O[r * p.d] == 0);
    CHECK(out.dQ[r * p.d] == 0);
  }
}

TEST_CASE("step 15: any size of score under a cap", "[step15][all]") {
  const auto p = with_score_mod(bf16_problem(75, 140, GENERATE(64, 128), true),
                                GENERATE(0.01f, 50.f), false, false);
  for (const float factor : {100.f, 1e-6f}) {
    const fa::Variant& v = in_turn(scores());
    CAPTURE(factor, v.name);
    fa::Inputs in = fa::normal_inputs(p, 11);
    for (float& q : in.Q) q = fa::round_to(p.dtype, q * factor);
    fa::test::require_right(v, p, in);
  }
}

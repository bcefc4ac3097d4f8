#include "common/harness/mask.h"

#include "common/harness/tiles.h"
#include "tests/masks.h"
#include "tests/test.h"

using fa::Problem, fa::Range;
using fa::test::packed, fa::test::with_window;

namespace {

/// Does row r see key c, by the comments of Mask?
bool is_seen(const Problem& p, int r, int c) {
  int shift = p.Nk - p.N;
  if (p.mask.has_documents()) {
    bool same = false;
    for (size_t i = 0; i + 1 < p.mask.row_starts.size(); ++i) {
      const Range rows{p.mask.row_starts[i], p.mask.row_starts[i + 1]};
      const Range keys{p.mask.key_starts[i], p.mask.key_starts[i + 1]};
      if (!rows.has(r) || !keys.has(c)) continue;
      same = true, shift = keys.last - rows.last;
    }
    if (!same) return false;
  }
  const int own = r + shift;
  if (p.causal && c > own) return false;
  if (p.mask.left >= 0 && c < own - p.mask.left) return false;
  if (p.mask.right >= 0 && c > own + p.mask.right) return false;
  if (p.mask.has_tiles() && !(*p.mask.tiles.kept)[r / 128 * p.mask.tiles.keys + c / 128])
    return false;
  return !p.mask.predicate.sees || p.mask.predicate.sees(p, r, c);
}

Problem random_problem(std::mt19937& random, bool predicates) {
  Problem p;
  p.N = 1 + static_cast<int>(random() % 100), p.Nk = 1 + static_cast<int>(random() % 100);
  p.causal = random() % 2;
  return fa::test::with_random_mask(p, random, predicates);
}

}  // namespace

TEST_CASE("what a row sees, and what sees a key, is what the mask says", "[mask]") {
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    const Problem p = random_problem(random, true);
    CAPTURE(i, fa::describe(p));
    uint64_t pairs = 0;
    for (int r = 0; r < p.N; ++r) {
      int n = 0, wrong = 0;
      for (int c = 0; c < p.Nk; ++c) {
        const bool want = is_seen(p, r, c);
        n += want;
        wrong += p.sees(r, c) != want || (want && !p.seen_by(c).has(r)) ||
                 p.seen(r).has(c) != p.seen_by(c).has(r);
      }
      if (wrong > 0 || p.visible(r) != n) FAIL("row " << r << ", " << wrong << " wrong");
      pairs += n;
    }
    CHECK(p.visible_scores() == pairs);
  }
}

TEST_CASE("tiles that are seen differ between heads; rows and keys may end within one", "[mask]") {
  Problem p;
  p.B = 2, p.H = 4, p.Hkv = 2, p.N = 300, p.Nk = 400;
  for (const size_t heads : {1, 4, 8}) {
    for (const bool with_more : {false, true}) {
      p = fa::test::with_random_tiles(p, heads, 0.5, 3);
      if (with_more) p = with_window(fa::test::with_random_predicate(p, 4), 150, 20);
      uint64_t all = 0;
      for (size_t bh = 0; bh < p.heads(); ++bh) {
        Problem one = p;
        const auto first = p.mask.tiles.kept->begin() + bh % heads * 3 * 4;
        one.mask.tiles = {1, 3, 4, std::make_shared<std::vector<uint8_t>>(first, first + 12)};
        for (int r = 0; r < p.N; ++r) {
          int n = 0;
          for (int c = 0; c < p.Nk; ++c) n += is_seen(one, r, c);
          if (p.visible(r, bh / p.H, bh % p.H) != n) FAIL("row " << r << " of head " << bh);
          all += n;
        }
      }
      CHECK(p.all_visible_scores() == all);
    }
  }
}

TEST_CASE("visited tiles are those that hold a visible score, in each document", "[mask]") {
  std::mt19937 random(2);
  for (int i = 0; i < 300; ++i) {
    const Problem p = random_problem(random, false);
    const int Br = 1 << random() % 7, Bc = 1 << random() % 7;
    CAPTURE(i, fa::describe(p), Br, Bc);
    fa::TileVisits want;
    for (const fa::Document& doc : p.documents()) {
      for (int row = doc.rows.first; row < doc.rows.last; row += Br) {
        const int rows = std::min(Br, doc.rows.last - row);
        for (int key = doc.keys.first; key < doc.keys.last; key += Bc) {
          const int keys = std::min(Bc, doc.keys.last - key);
          bool any = false;
          for (int r = row; r < row + rows; ++r) {
            for (int c = key; c < key + keys; ++c) any |= is_seen(p, r, c);
          }
          if (!any) continue;
          ++want.tiles, want.rows += rows, want.keys += keys, want.pairs += rows * keys;
        }
      }
    }
    const fa::TileVisits got = fa::visited_tiles(p, Br, Bc);
    CHECK(got.tiles == want.tiles);
    CHECK(got.rows == want.rows);
    CHECK(got.keys == want.keys);
    CHECK(got.pairs == want.pairs);
  }
}

TEST_CASE("FLOPs of a mask are those of the scores that count", "[mask]") {
  Problem p;
  p.N = p.Nk = 1000, p.d = 64, p.H = p.Hkv = 2;
  CHECK(with_window(p, 0, 0).flops_forward() == 4.0 * 2 * 64 * 1000);
  CHECK(with_window(p, 9, 0).flops_forward() == 4.0 * 2 * 64 * (10 * 1000 - 45));
  CHECK(packed(p, {700, 0, 300}).flops_forward() == 4.0 * 2 * 64 * (700 * 700 + 300 * 300));
  p.B = 3, p.H = 4, p.causal = true;
  CHECK(with_window(p, 9, -1).flops_forward() == 4.0 * 12 * 64 * (10 * 1000 - 45));
}

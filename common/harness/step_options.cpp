#include "common/harness/step_options.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>

#include "common/counts/format.h"
#include "common/harness/cli.h"
#include "common/harness/inputs.h"
#include "common/harness/npy.h"

namespace fa {
namespace {

bool is_paged(const Problem& p) { return p.cache.page != 0; }

std::vector<int> numbers_of(const std::string& text, const std::string& flag = "--lengths") {
  std::vector<int> numbers;
  const char *at = text.data(), *end = at + text.size();
  for (bool more = true; more;) {
    int number = 0;
    const auto [stop, error] = std::from_chars(at, end, number);
    more = stop < end && *stop == ',';
    if (error != std::errc() || (stop < end && !more)) {
      refuse("{} {}: must be whole numbers with commas between them, such as 0,1,700", flag, text);
    }
    numbers.push_back(number);
    at = stop + 1;
  }
  return numbers;
}

// --- a cache -------------------------------------------------------------------------------------

/// Repeats the lengths until each batch entry has one; without --nk, Nk is the longest.
void spread_lengths(const std::string& text, Options& o) {
  Problem& p = o.problem;
  const std::vector<int> given = numbers_of(text);
  if (given.size() > static_cast<size_t>(std::max(p.B, 0))) {
    refuse("--lengths {}: {} lengths for {} batch entries; give --b {}", text, given.size(), p.B,
           given.size());
  }
  const int entries = std::min(p.B, 1 << 16);  // validate() refuses more
  for (int b = 0; b < entries; ++b) p.cache.lengths.push_back(given[b % given.size()]);
  if (o.nk_given || !o.files.k.empty() || !o.files.v.empty()) return;
  p.Nk = std::max(1, *std::max_element(given.begin(), given.end()));
}

void read_table(const std::string& path, Options& o) {
  if (!is_paged(o.problem)) refuse("--table {}: needs --page", path);
  o.table = load_table(path, o.problem);
}

// --- masks ---------------------------------------------------------------------------------------

void set_window(const std::string& text, Options& o) {
  const std::vector<int> limits = numbers_of(text, "--window");
  if (limits.size() != 2) {
    refuse(
        "--window {}: must be two numbers, such as 256,0: how many keys "
        "a row sees before and after its position; -1 for no limit",
        text);
  }
  o.problem.mask.left = limits[0], o.problem.mask.right = limits[1];
}

/// Rows and keys of each document: "5,0,700", "5:9,700:700", or a file.
std::vector<std::pair<int64_t, int64_t>> lengths_of(const std::string& text) {
  std::vector<std::pair<int64_t, int64_t>> lengths;
  if (text.ends_with(".npy")) {
    const NpyIntegers npy = read_npy_integers(text);
    const size_t columns = npy.shape.size() == 2 ? npy.shape[1] : 1;
    if (npy.shape.empty() || npy.shape.size() > 2 || columns < 1 || columns > 2) {
      refuse("--lengths {}: its shape must be [documents], or [documents, 2] for rows and keys",
             text);
    }
    for (size_t i = 0; i < npy.data.size(); i += columns) {
      lengths.emplace_back(npy.data[i], npy.data[i + columns - 1]);
    }
    return lengths;
  }
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string one = text.substr(at, end - at);
    const size_t colon = one.find(':');
    const int rows = numbers_of(one.substr(0, colon)).at(0);
    lengths.emplace_back(rows, colon == one.npos ? rows : numbers_of(one.substr(colon + 1)).at(0));
    at = end + 1;
  }
  return lengths;
}

/// Packed documents decide how many rows and keys there are.
void pack_documents(const std::string& text, Options& o) {
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  Problem& p = o.problem;
  Mask& mask = p.mask;
  int64_t rows = 0, keys = 0;
  mask.row_starts = mask.key_starts = {0};
  for (const auto& [its_rows, its_keys] : lengths_of(text)) {
    if (its_rows < 0 || its_keys < 0 || its_rows > kMost - rows || its_keys > kMost - keys) {
      refuse("--lengths {}: each must be at least 0, and their sum an int", text);
    }
    rows += its_rows, keys += its_keys;
    mask.row_starts.push_back(static_cast<int>(rows));
    mask.key_starts.push_back(static_cast<int>(keys));
  }
  const std::tuple<const char*, bool, int*, int64_t> sums[] = {{"--n", o.n_given, &p.N, rows},
                                                               {"--nk", o.nk_given, &p.Nk, keys}};
  for (const auto& [flag, given, length, sum] : sums) {
    if (given && *length != sum) {
      refuse("{} {}: the documents of --lengths have {}; leave it out", flag, *length, sum);
    }
    *length = static_cast<int>(sum);
  }
}

/// Bools [rows, keys], [H, rows, keys] or [B, H, rows, keys]; or integers, whose last axis lists
/// any number of tiles of keys.
void read_tiles(const std::string& path, Options& o) {
  const NpyIntegers npy = read_npy_integers(path, /*bools=*/true);
  const Problem& p = o.problem;
  if (std::min({p.B, p.H, p.N, p.Nk}) < 1) return;  // validate() refuses it
  const size_t B = p.B, H = p.H, listed = npy.shape.empty() ? 0 : npy.shape.back();
  TileMask tiles;
  tiles.rows = TileMask::of(p.N), tiles.keys = TileMask::of(p.Nk);
  const size_t rows = tiles.rows, keys = npy.is_bool ? tiles.keys : listed;
  if (npy.shape == std::vector{rows, keys}) {
    tiles.heads = 1;
  } else if (npy.shape == std::vector{H, rows, keys}) {
    tiles.heads = H;
  } else if (npy.shape == std::vector{B, H, rows, keys}) {
    tiles.heads = p.heads();
  } else {
    const std::string tail = fmt::format("{}, {}]", rows, npy.is_bool ? std::to_string(keys) : "n");
    refuse(
        "--tiles {}: its shape {} must be [{}, [{}, {} or [{}, {}, {}: tiles of {} rows and keys",
        path, text_of(npy.shape), tail, H, tail, B, H, tail, TileMask::kSize);
  }
  std::vector<uint8_t> kept(tiles.heads * rows * tiles.keys);
  for (size_t i = 0; i < npy.data.size(); ++i) {
    if (npy.is_bool) {
      kept[i] = static_cast<uint8_t>(npy.data[i]);
    } else if (npy.data[i] >= 0 && npy.data[i] < tiles.keys) {
      kept[i / listed * tiles.keys + static_cast<size_t>(npy.data[i])] = 1;
    } else if (npy.data[i] != -1) {
      refuse("--tiles {}: {} is no tile of keys; those of --nk {} are 0 to {}, and -1 is for none",
             path, npy.data[i], p.Nk, tiles.keys - 1);
    }
  }
  tiles.kept = std::make_shared<const std::vector<uint8_t>>(std::move(kept));
  o.problem.mask.tiles = tiles;
}

Predicate find_mask(const std::vector<Predicate>& masks, const std::string& text) {
  const size_t colon = std::min(text.find(':'), text.size());
  std::string known;
  for (Predicate mask : masks) {
    known += (known.empty() ? "" : ", ") + text_of(mask);
    if (mask.name != text.substr(0, colon)) continue;
    if (colon == text.size()) return mask;
    const std::string example = text_of(mask);
    const char *at = text.data() + colon + 1, *end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(at, end, mask.n);
    if (error == std::errc() && stop == end && mask.n > 0) return mask;
    refuse("--mask {}: the number must be whole and above 0, as in {}", text, example);
  }
  refuse("--mask {}: this step has {}", text, known);
}

}  // namespace

std::vector<StepOption> cache_options() {
  return {
      {.group = "Problem",
       .name = "--lengths",
       .type = "INT,INT,...",
       .help =
           "keys of each batch entry; a shorter list repeats, and the longest is the default of "
           "--nk. Without it: --nk",
       .text = spread_lengths},
      {.group = "Problem",
       .name = "--page",
       .type = "INT",
       .help = "keys per page: 16, 32, 64, 128 or 256; 0: the cache is not paged",
       .integer = [](Options& o) -> int& { return o.problem.cache.page; }},
      {.group = "Input",
       .name = "--table",
       .type = "F.npy",
       .help = "page table [B, pages], int32 or int64, with --page; else a shuffled one",
       .file = read_table,
       .drawn = is_paged}};
}

std::vector<StepOption> mask_options(const std::vector<Predicate>& masks) {
  std::string names = "a mask of the step:";
  for (const Predicate& each : masks) names += " " + text_of(each);
  const auto set_mask = [masks](const std::string& text, Options& o) {
    o.problem.mask.predicate = find_mask(masks, text);
  };
  return {
      {.group = "Problem",
       .name = "--lengths",
       .type = "INT,...|F.npy",
       .help = "documents one after another: rows of each, or rows:keys; a file: int32 or "
               "int64, [documents] or [documents, 2]",
       .text = pack_documents},
      {.group = "Problem",
       .name = "--window",
       .type = "L,R",
       .help = "a row sees L keys before its position and R after it; -1: no limit",
       .text = set_window},
      {.group = "Problem", .name = "--mask", .type = "NAME[:INT]", .help = names, .text = set_mask},
      {.group = "Problem",
       .name = "--tiles",
       .type = "F.npy",
       .help =
           "tiles of 128 rows and 128 keys that are seen: bool [rows, keys], [H, rows, keys] or "
           "[B, H, rows, keys]; or int, where the last axis lists tiles of keys, -1 for none",
       .text = read_tiles},
      {.group = "Problem",
       .name = "--cap",
       .type = "FLOAT",
       .help = "a score s becomes cap * tanh(s / cap); 0: it stays",
       .real = [](Options& o) -> float& { return o.problem.score_mod.cap; }},
      {.group = "Problem",
       .name = "--alibi",
       .help = "a score loses the key's distance times 2^(-8 (h + 1) / H)",
       .flag = [](Options& o) -> bool& { return o.problem.score_mod.alibi; }},
      {.group = "Problem",
       .name = "--sinks",
       .help = "each head has a number, e to which is in the softmax's sum",
       .flag = [](Options& o) -> bool& { return o.problem.score_mod.sinks; },
       .drawn = [](const Problem& p) { return p.score_mod.sinks; }}};
}

std::vector<StepOption> rank_options() {
  return {{.group = "Run",
           .name = "--limit",
           .type = "INT",
           .help = "seconds that a rank waits for another before the run ends",
           .integer = [](Options& o) -> int& { return o.limit_s; },
           .least = 1}};
}

}  // namespace fa

/// \file
/// What only steps 13 to 17 add to tensors.h, step.h and cli.h: a cache of keys and values (13 and
/// 17), several ranks (14), tables that the host makes and sinks (15), and the options for them.
#pragma once

#include <climits>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/harness/cache.h"

namespace fa {

struct Options;   // common/harness/cli.h
struct Problem;   // common/harness/problem.h
struct Sharding;  // common/harness/ranks.h
struct Variant;   // common/harness/step.h

/// Of Tensors.
struct ExtraTensors {
  Cache cache = {};
  const float* sinks = nullptr;  ///< with ScoreMod::sinks
  float* dsinks = nullptr;
};

/// Of Inputs.
struct ExtraInputs {
  std::vector<float> K_scale, V_scale;  ///< of an 8-bit cache: K / K_scale is e4m3
  std::vector<int> table;    ///< of a paged cache; empty: shuffled_table() of a fixed seed
  std::vector<float> sinks;  ///< [H], one per query head; fp32
};

/// Of Outputs.
struct ExtraOutputs {
  std::vector<float> dsinks;  ///< per batch entry: their sum is the gradient of Inputs::sinks
};

/// Integers that a variant's host derives from the problem alone, such as the tiles that a mask
/// leaves: in device memory before the first run, read-only, and found by name like workspace.
struct Table {
  std::string name;  ///< the name in traffic tables
  std::vector<int> values;
};
/// The tables that one problem needs.
using TablesFn = std::vector<Table> (*)(const Problem&);

/// Of Variant.
struct Extras {
  bool cache8 = false;                             ///< as CacheFormat::fp8
  int latent = 0;                                  ///< as CacheFormat::latent
  std::string (*cache)(const Problem&) = nullptr;  ///< the report's words on the cache; null: none
  TablesFn tables = nullptr;                       ///< null: none
  std::shared_ptr<const Sharding> sharding = {};   ///< over several ranks; null: runs on one
};

/// A variant's tables; none without a TablesFn.
std::vector<Table> tables_of(const Variant&, const Problem&);

/// Of Options.
struct ExtraOptions {
  std::vector<int> table;                  ///< of a paged cache, from --table; empty: shuffled
  int limit_s = 300;                       ///< seconds that a rank waits for another
  bool n_given = false, nk_given = false;  ///< by their flags
};

/// An option that few steps have. step_options.h makes them, Step::options lists them, and cli.cpp
/// parses them. One of the members after `help` says what its value is.
struct StepOption {
  const char* group;      ///< of --help: "Problem"
  const char* name;       ///< "--page"
  const char* type = "";  ///< of the value, for --help: "INT"
  std::string help;
  int& (*integer)(Options&) = nullptr;
  int least = INT_MIN;  ///< the least `integer` that is not refused
  float& (*real)(Options&) = nullptr;
  bool& (*flag)(Options&) = nullptr;
  /// Sets a part of the problem once the sizes are known. \throws UsageError
  std::function<void(const std::string& value, Options&)> text = {};
  /// Reads a file once the problem has been validated. \throws UsageError
  void (*file)(const std::string& path, Options&) = nullptr;
  /// Does --seed decide an input that belongs to this option: a `file` that is not given, or sinks?
  bool (*drawn)(const Problem&) = nullptr;
};

}  // namespace fa

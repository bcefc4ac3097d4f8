/// \file
/// Counts as JSON, in the reports of steps and of other programs; docs/json.md describes it.
#pragma once

#include <nlohmann/json.hpp>

#include "common/counts/counts.h"

namespace fa {

/// {"read", "write", "atomic"}.
nlohmann::ordered_json to_json(const Bytes&);
/// {"load", "store", "atomic"}.
nlohmann::ordered_json to_json(const Ops&);
/// The requests of a source line.
nlohmann::ordered_json to_json(const SiteCount&);

}  // namespace fa

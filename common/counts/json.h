/// \file
/// Counts as JSON, in the reports of a step and of any program alike; docs/json.md describes it.
#pragma once

#include <nlohmann/json.hpp>

#include "common/counts/counts.h"

namespace fa {

/// {"read", "write", "atomic"}.
nlohmann::ordered_json to_json(const Bytes&);
/// {"load", "store", "atomic"}.
nlohmann::ordered_json to_json(const Ops&);
/// A source line's requests.
nlohmann::ordered_json to_json(const SiteCount&);

}  // namespace fa

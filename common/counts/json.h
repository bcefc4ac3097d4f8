/// \file
/// Counts and estimates as JSON, in the reports of steps and of other programs: docs/json.md. Apart
/// from the headers of these types, because a compiler reads nlohmann's for two seconds.
#pragma once

#include <nlohmann/json.hpp>

#include "common/counts/counts.h"
#include "common/counts/estimate.h"

namespace fa {

/// {"read", "write", "atomic"}.
nlohmann::ordered_json to_json(const Bytes&);
/// {"load", "store", "atomic"}.
nlohmann::ordered_json to_json(const Ops&);
/// The requests of a source line.
nlohmann::ordered_json to_json(const SiteCount&);
/// {"gpu", "verified", "ms", "limit", "kernels"}.
nlohmann::ordered_json to_json(const Estimate&);
/// The same back.
/// \throws nlohmann::json::exception when something is missing, or a part is unknown.
Estimate estimate_of(const nlohmann::ordered_json&);

}  // namespace fa

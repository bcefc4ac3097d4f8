/// \file
/// A problem in the JSON of reports and traces.
#pragma once

#include <nlohmann/json.hpp>

#include "common/harness/problem.h"

namespace fa {

/// Adds what few problems have, where it is set: CacheFormat::latent, Problem::mask and score_mod.
inline void put_rare(const Problem& p, nlohmann::ordered_json& j) {
  if (p.cache.latent != 0) j["latent"] = p.cache.latent;
  const Mask& mask = p.mask;
  if (mask.has_window()) j["window"] = {mask.left, mask.right};
  if (mask.has_documents()) j["row_starts"] = mask.row_starts, j["key_starts"] = mask.key_starts;
  if (mask.predicate.sees) j["mask"] = text_of(mask.predicate);
  if (mask.has_tiles()) {
    const TileMask& tiles = mask.tiles;
    j["tiles"] = {{"heads", tiles.heads},
                  {"rows", tiles.rows},
                  {"keys", tiles.keys},
                  {"kept", tiles.count()}};
  }
  if (p.score_mod.cap != 0) j["cap"] = p.score_mod.cap;
  if (p.score_mod.alibi) j["alibi"] = true;
  if (p.score_mod.sinks) j["sinks"] = true;
}

}  // namespace fa

/// \file
/// The program that judges kernels: an exercise's (judge.cpp) or an extension's (extension.cpp).
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/harness/inputs.h"

namespace fa {

/// The first thing that is wrong.
struct Fault {
  std::string kind;  ///< a few words: "race", "wrong result"
  std::string text;  ///< one sentence that says where
};

/// Of a problem's JSON: `input`, `factor` of Q, `mean` of V.
Inputs inputs_of(const nlohmann::json&, const Problem&, uint64_t seed);

/// An input that no kernel read, or an output that kernels have not written all of: then the host
/// did their work.
/// \param table  {buffer: {"spec": {"read"}, "by_kernels": {"read", "write", "atomic"}}}
std::optional<Fault> made_by_the_host(const Problem&, const std::vector<const Tensor*>& outputs,
                                      const nlohmann::json& table);

/// Until its standard input ends. \returns the exit status
int judge_extension();

}  // namespace fa

/// \file
/// The file of --trace.
#pragma once

#include <string>

#include "common/counts/trace.h"

namespace fa {

struct Problem;

/// The layout of a piece of workspace, of which a step gives only the bytes: that of a tensor of
/// the problem with as many. S, P, dS and dP have a row per query and a column per key.
Layout workspace_layout(const std::string& name, uint64_t bytes, const Problem&);

/// \throws UsageError or ResourceError as write_file() does.
void write_trace(const std::string& path, const Trace&, const std::string& step,
                 const std::string& variant, const std::string& gpu, const Problem&);

}  // namespace fa

/// \file
/// Sentences about threads: which, where, and what they wait for.
#pragma once

#include <string>
#include <vector>

#include "common/sim/block.h"
#include "common/sim/messages/symbols.h"

namespace sim {

std::string here();                                  ///< "kernel f, block (1,0,0), thread (5,0,0)"
std::string thread_name(const Block&, unsigned id);  ///< "thread (5,0,0)"
std::string at(const Where&);                        ///< "kernel.cuh:42"
const char* noun(Kind);                              ///< "load"
/// The instruction `what` must not be used like this: abandons the launch. `why`: " with ...".
[[noreturn]] void refuse(const std::string& what, const Where&, const std::string& why);
/// "kernel f, block (1,0,0)"
std::string block_name(const Block&);
/// "0-31, 40, 42-63": at most six runs.
std::string runs_of(const std::vector<unsigned>& ids);
/// The waits of the threads of the block, or of its whole cluster.
std::string deadlock_report(const Block&);

}  // namespace sim

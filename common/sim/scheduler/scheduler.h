/// \file
/// Which CUDA thread runs next. Private to scheduler/; instructions use the services in block.h.
#pragma once

#include "common/sim/scheduler/block.h"

namespace sim {

/// Makes all threads of the block fresh. `linear` is the block's number in the grid.
void place_block(Block&, uint64_t linear);
/// Runs the placed block until its last thread returned or fail() was called.
void run_placed_block(Block&);
/// Leaves the current thread for the next runnable one at or after `first`, which may be itself:
/// what the last arriver of a rendezvous does, so that threads go on in order.
void yield_from(unsigned first);
/// Forgets the fibers of an abandoned block without unwinding them.
void abandon_threads(Block&);

/// Cluster only. Hands the baton to a block that can run. \returns when this block has it again.
void pass_baton(Block&);
/// Cluster only. The block is done (or failed): hands the baton on for good.
void retire_from_cluster(Block&);
/// Cluster only. Waits for the first turn. \returns false when the cluster was aborted before.
bool wait_for_turn(Block&);

bool can_run(const Block&);
std::string deadlock_report(const Block&);

}  // namespace sim

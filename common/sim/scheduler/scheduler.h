/// \file
/// Which CUDA thread runs next. Private to scheduler/; instructions use the services in block.h.
#pragma once

#include "common/sim/block.h"

namespace sim {

/// Resets all threads of the block. `linear` is the block's number in the grid.
void place_block(Block&, uint64_t linear);
/// Runs the placed block until its last thread returns or fail() is called.
void run_placed_block(Block&);
/// Leaves the current thread for the next runnable one at or after `first`, perhaps itself, as the
/// last arriver of a rendezvous does, so that threads continue in order.
void yield_from(unsigned first);
/// No thread can run: some lanes at an __activemask continue. \returns false when none does.
bool let_converged_go(Block&);
/// No thread can run, and nothing is deferred: each mbarrier.try_wait fails. \returns false when
/// there is none, or after so many failures that this is a deadlock.
bool let_tries_end(Block&);
/// Chooses Block::watch by the block's observers.
void set_watch(Block&);
/// The current thread has returned: threads that waited only for it continue.
void stop_waiting_for_current(Block&);
/// Forgets the fibers of an abandoned block without unwinding them.
void abandon_threads(Block&);

/// Cluster only. Hands the baton to a block that can run. \returns when this block has it again.
void pass_baton(Block&);
/// Cluster only. The block is done and gives the baton away; `fault`: a deadlock of the others.
void retire_from_cluster(Block&);
/// All blocks of the cluster leave at their next turn.
void abort_cluster(Cluster&);
/// Cluster only. Waits for the first turn. \returns false when the cluster was aborted.
bool wait_for_turn(Block&);

/// A worker's stack has no handler: an exception of `work` becomes the launch's error.
void keep_exception(Block& b, auto&& work) {
  try {
    work();
  } catch (const std::exception& e) {
    b.thrown = std::current_exception();
    b.fault = {FaultKind::refused, e.what()};
  }
}

bool can_run(const Block&);

}  // namespace sim

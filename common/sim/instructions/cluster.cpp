// The barrier of a cluster's threads, and kernels that start early. The rest is in scheduler/.
#include <utility>

#include "common/dialect/ptx/more/dependent.h"
#include "common/sim/instructions/async.h"

namespace sim {

namespace {

ClusterBarrier& barrier() { return async_of(block_of_rank(0)).cluster_barrier; }
uint32_t& my_phase() { return async_of(*self).cluster_phase[self->current->id]; }

// Threads that have returned count as arrived.
unsigned live_threads() {
  unsigned n = 0;
  for (unsigned rank = 0; rank < cluster_size(); ++rank) n += block_of_rank(rank).live;
  return n;
}

// Makes the current thread's work visible to threads that wait for the current phase.
void release(const ClusterBarrier& c) {
  for (auto& o : self->observers) o->release(*self, &c, c.phase);
}

void complete(ClusterBarrier& c) {
  if (!self->cluster) {  // a single block: threads that returned, perhaps before the first arrival
    Thread* const me = self->current;
    for (unsigned t = 0; t < self->nthreads; ++t) {
      if (self->alive[t / 32] >> t % 32 & 1 || async_of(*self).cluster_phase[t]) continue;
      self->current = &self->threads[t];
      release(c);
    }
    self->current = me;
  }
  ++c.phase;
  c.arrived = 0;
  for (auto [block, thread] : c.waiters) wake(*block, thread);
  c.waiters.clear();
}

}  // namespace

void cluster_thread_returned() {
  ClusterBarrier& c = barrier();
  if (my_phase() == c.phase + 1) {
    --c.arrived;  // it will not wait
  } else if (self->cluster) {
    release(c);
  }
  if (c.arrived > 0 && c.arrived == live_threads()) complete(c);
}

void cluster_arrive(Where where, const char* name) {
  ClusterBarrier& c = barrier();
  if (my_phase() != 0) {
    refuse(name, where, " for the second time without a barrier.cluster.wait");
  }
  my_phase() = c.phase + 1;
  release(c);
  if (++c.arrived == live_threads()) complete(c);
}

void cluster_wait(Where where, const char* name) {
  ClusterBarrier& c = barrier();
  if (my_phase() == 0) refuse(name, where, " without a barrier.cluster.arrive");
  while (c.phase < my_phase()) {
    c.waiters.emplace_back(self, self->current->id);
    wait_here(name, where);
  }
  my_phase() = 0;
  for (auto& o : self->observers) o->acquire(*self, &c, c.phase);
}

void griddep_wait() {
  if (!std::exchange(self->current->early, false)) return;
  --self->early;
  for (auto& o : self->observers) o->wait_for_kernel(*self);
}

bool grid_is_together() { return self->launch->config.together; }

void require_grid_together(Where where) {
  if (grid_is_together()) return;
  refuse("a barrier of the grid", where,
         " in a plain launch; it needs cudaLaunchCooperativeKernel");
}

unsigned cluster_rank() { return self->rank; }
uint3 cluster_ctaid() {
  const dim3 n = cluster_nctaid();
  return {self->rank % n.x, self->rank / n.x % n.y, self->rank / n.x / n.y};
}
dim3 cluster_nctaid() {
  const LaunchConfig& config = self->launch->config;
  return config.together ? dim3(cluster_size()) : config.cluster;
}

}  // namespace sim

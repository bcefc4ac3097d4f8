/// \file
/// One block in flight. An OS worker hosts one block at a time, as an SM slot does; each CUDA
/// thread of the block is a fiber. The blocks of a cluster are on as many workers, which hand a
/// baton to each other: exactly one of them runs at any time. The baton has a mutex and a condition
/// variable; what it passes on needs no lock.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/dialect/cuda_vocabulary.h"
#include "common/dialect/errors.h"
#include "common/sim/memory/memory.h"
#include "common/sim/observer.h"
#include "common/sim/scheduler/fiber.h"

namespace sim {

// --- CUDA threads --------------------------------------------------------------------------------

enum class State : uint8_t { fresh, running, waiting, done };

/// One cache line: a barrier touches that of each thread.
struct alignas(64) Thread {
  sim::fiber fiber;  ///< its continuation; empty while it runs or before it starts
  uint3 idx{};
  uint16_t id = 0;  ///< linear index in the block
  State state = State::done;
  bool early = false;  ///< launched early, and has not waited
  // While waiting, also for its turn (Block::ready):
  const char* waits_for = nullptr;  ///< "__syncthreads", "mbarrier wait", ...
  Where where;                      ///< at which line
  bool tries = false;               ///< may continue without what it waits for
  uint32_t converged = 0;           ///< after __activemask: the lanes that reached it together
};

// --- rendezvous ----------------------------------------------------------------------------------

/// bar.sync and bar.arrive (number 0 is __syncthreads), and other rendezvous of many warps.
struct Barrier {
  int arrived = 0;
  int expected = 0;            ///< threads; kAll: those of the block that have not returned
  Where first;                 ///< the line of the first arrival
  const char* name = nullptr;  ///< of a barrier of the whole block
  int votes = 0, counted = 0;  ///< __syncthreads_count: so far; in the last phase
  uint32_t here[32] = {};      ///< arrived threads
  uint32_t waiting[32] = {};   ///< waiting threads (not those of bar.arrive)
  static constexpr int kAll = 0;
};

struct WarpMeeting;
using WarpFn = void (*)(WarpMeeting&);
/// A rendezvous of the lanes in `mask`; the last lane to arrive does the work for all of them.
struct WarpMeeting {
  uint32_t mask = 0, arrived = 0;
  uint32_t given = 0;  ///< the mask including lanes that have returned
  WarpFn work = nullptr;
  const char* what = nullptr;
  void* frame[32] = {};  ///< each lane's operands, in the caller's frame
  Where where;
  unsigned warp = 0;
};

/// The value of unset registers while races are searched: a NaN that no program computes.
constexpr uint32_t kUnset = 0x7fa5c3e1;

// --- bytes, always counted -----------------------------------------------------------------------

/// The observers of an access, beside the byte counters: an observer's log, and perhaps one more
/// observer. `all`: any set of observers, or the watchdog, which may stop the kernel.
enum class Watch : uint8_t { none, log, all };

struct BufferBytes {
  uint64_t bytes[3] = {};  ///< by Kind
};

// --- the block -----------------------------------------------------------------------------------

struct Cluster;
class Stacks;       // scheduler/stacks.h
struct AsyncState;  // instructions/async.h: copies and wgmma groups in flight

struct alignas(64) Block {
  Block();
  ~Block();

  // Used at each access: two cache lines.
  /// Of all threads' stacks; of the host, everything above device memory.
  uintptr_t stack_base = kHbmBase + kHbmSpan, stack_size = ~(kHbmBase + kHbmSpan);
  std::atomic<Watch> watch{Watch::all};
  bool host = true;               ///< no block: host code must not touch device memory
  std::atomic<bool> stop{false};  ///< set by the watchdog
  unsigned early = 0;             ///< threads that have not waited for the preceding kernel
  uintptr_t shared_base = 0, shared_size = 0;  ///< this worker's thread-local storage
  uintptr_t dynamic_base = 0;                  ///< dynamic shared memory, inside it
  const uint8_t* in_array = nullptr;           ///< per byte: is it part of a shared array?
  const Launch* launch = nullptr;
  uint64_t shared_bytes[3] = {};  ///< of this launch, by Kind
  std::vector<BufferBytes> hbm;   ///< the same, by buffer
  RequestLog* log = nullptr;      ///< of the observer that has one
  Thread* current = nullptr;      ///< null while the worker's own stack runs

  // Used at each watched access, or at each switch.
  Observer* beside_log = nullptr;  ///< the only observer but that of `log`
  /// In the compiler's copy function of a struct: its caller.
  const void* copied_at = nullptr;
  Thread* previous = nullptr;         ///< the fiber that switched to the running one
  sim::fiber worker;                  ///< the worker's own stack
  std::atomic<uint64_t> progress{0};  ///< observed by the watchdog
  unsigned live = 0;                  ///< threads that have not returned
  unsigned nthreads = 0, nwarps = 0;
  uint32_t phase = 0;  ///< barriers that threads of the block have passed
  std::vector<std::unique_ptr<Observer>> observers;
  uint32_t ready[32] = {};   ///< lanes that can run; the running one is not among them
  uint32_t member[32] = {};  ///< lanes that exist
  uint32_t alive[32] = {};   ///< lanes that have not returned
  uint32_t at_end[32] = {};  ///< lanes at the end of the kernel's text; see reached_end()
  bool any_at_end = false;
  bool launched_early = false;
  bool strictly_early = false;  ///< EarlyLaunch::strict
  Thread threads[1024];
  std::unique_ptr<Stacks> stacks;

  // Identity.
  uint64_t linear = 0;         ///< number of the block in the grid
  uint3 index{};               ///< blockIdx
  unsigned rank = 0;           ///< in its cluster
  Cluster* cluster = nullptr;  ///< null for a cluster of one

  // Rendezvous.
  Barrier barriers[16];
  bool named_barriers = false;  ///< a barrier with a count was used
  uint32_t converging[32] =
      {};  ///< lanes in converged_lanes(), by warp, until no other lane can run
  std::vector<WarpMeeting> meetings[32];  ///< by warp: as many as were ever active at once
  unsigned tries_in_vain = 0;  ///< times that let_tries_end() helped since a phase completed

  // Instructions.
  std::shared_ptr<AsyncState> async;
  std::deque<std::function<void()>> deferred;  ///< see defer()
  bool carry = false;                          ///< of inline PTX's add.cc
  std::shared_ptr<void> wgmma_scratch;  ///< thread_local would lie among the kernels' shared arrays
  /// wgmma uses registers on the stack: with stack_size 0 every access reaches check_registers().
  bool registers_watched = false;

  // Other counts of this launch.
  uint64_t blocks_done = 0, tensor_flops = 0, shuffles = 0, wgmma_wavefronts = 0;
  uint64_t mma = 0, wgmma = 0, wgmma_columns = 0;
  bool tell_operands = false;  ///< some observer wants_operands()

  // Trouble.
  std::optional<fa::Finding> fault;  ///< why the launch is abandoned
  std::exception_ptr thrown;         ///< not a finding but this exception, thrown on the worker
  std::set<uint64_t> looked_at;      ///< accesses since `stop`
  size_t looks = 0;                  ///< their number
};

/// The block of this OS thread; never null (host threads have a dummy).
extern constinit thread_local Block* self;

/// Blocks that reach each other's shared memory, each on an OS worker; that with the `turn` runs.
struct Cluster {
  std::vector<Block*> blocks;                  ///< by rank
  std::deque<std::function<void()>> deferred;  ///< see defer()
  std::mutex mutex;
  std::condition_variable handed_over;
  unsigned turn = 0;     ///< rank of the running block
  bool aborted = false;  ///< a block failed: all leave
};

// --- services for instructions -------------------------------------------------------------------

using fa::FaultKind;
/// Abandons the launch; becomes fa::KernelStopped on the host.
[[noreturn]] void fail(FaultKind, const std::string& sentence);
/// Reported once per line by the analysis: nothing is wrong, or nothing that stops the kernel.
void remark(const Where&, const std::string& sentence);
/// An integer division by zero at `pc`, or, with `smallest`, perhaps of the smallest integer by -1.
[[noreturn]] void divided_by_zero(const void* pc, bool smallest);
/// Suspends the current thread until wake(). Others run meanwhile.
void wait_here(const char* what, Where);
/// Makes a waiting thread runnable. `block` may be another block of the cluster.
void wake(Block&, unsigned thread);
/// All lanes of `mask` call this; the last one runs `work`. Does not order memory.
void meet_in_warp(const char* what, uint32_t mask, WarpFn work, void* frame, Where);
/// `count` threads meet at `barrier`; the last one runs `last`. Does not order memory.
void meet(Barrier&, const char* what, int count, const std::function<void()>& last, Where);
/// Sends all accesses to the stacks through check_registers() from now on, or none.
void watch_registers(Block&, bool on);
/// Asynchronous work (a TMA copy), done when no thread can run: late, so that a missing wait shows.
void defer(std::function<void()> work);
/// A block of the current block's cluster, which may be the block alone.
Block& block_of_rank(unsigned rank);
/// The block whose shared memory holds p: this one or another of the cluster; null: none.
Block* home_of(const void* p);
/// Takes the launch's next cluster, which will not run: the linear number of its first block.
std::optional<uint64_t> take_next_cluster();

// --- calls from the scheduler and memory to instructions -----------------------------------------

/// The current thread touches its stack while registers are watched.
void check_registers(uintptr_t address, unsigned size, Kind, const void* pc);
/// The current thread uses registers as an operand of another instruction.
inline void use_operand(const void* registers, size_t bytes, Kind kind, const void* pc) {
  if (!self->registers_watched) return;
  check_registers(reinterpret_cast<uintptr_t>(registers), static_cast<unsigned>(bytes), kind, pc);
}
/// The current thread has returned: copies that it has not waited for still happen.
void thread_returned();
/// A thread of the current block has returned: it counts as arrived at the cluster's barrier.
void cluster_thread_returned();

}  // namespace sim

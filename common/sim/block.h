/// \file
/// One block in flight. An OS worker hosts one block at a time, as an SM slot does; each CUDA
/// thread of it is a fiber. The blocks of a cluster live on as many workers, which hand a baton to
/// each other: exactly one of them runs at any time. The baton has a mutex and a condition
/// variable; what it passes on needs no lock of its own.
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

enum class State : uint8_t { fresh, ready, waiting, done };

struct Thread {
  sim::fiber fiber;  ///< where it goes on; empty while it runs or before it starts
  uint3 idx{};
  uint16_t id = 0;  ///< linear index in the block
  State state = State::done;
  bool early = false;  ///< launched early, and has not waited
  // While waiting:
  const char* waits_for = nullptr;  ///< "__syncthreads", "mbarrier wait", ...
  Where where;                      ///< at which line
  bool tries = false;               ///< may go on without what it waits for
  uint32_t converged = 0;           ///< behind __activemask: the lanes that reached it together
};

// --- where threads meet --------------------------------------------------------------------------

/// bar.sync and bar.arrive (number 0 is __syncthreads), and other rendezvous of many warps.
struct Barrier {
  int arrived = 0;
  int expected = 0;            ///< threads; kAll: those of the block that have not returned
  uint32_t here[32] = {};      ///< who arrived
  uint32_t waiting[32] = {};   ///< who waits (bar.arrive does not)
  Where first;                 ///< the line of the first arrival
  const char* name = nullptr;  ///< of a barrier of the whole block
  int votes = 0, counted = 0;  ///< __syncthreads_count: until now; the last time
  static constexpr int kAll = 0;
};

struct WarpMeeting;
using WarpFn = void (*)(WarpMeeting&);
/// A rendezvous of the lanes in `mask`; the last lane to arrive does the work for all of them.
struct WarpMeeting {
  uint32_t mask = 0, arrived = 0;
  uint32_t given = 0;  ///< the mask with lanes that have returned
  WarpFn work = nullptr;
  const char* what = nullptr;
  void* frame[32] = {};  ///< each lane's operands, in the caller's frame
  Where where;
  unsigned warp = 0;
};

/// In a register that was never set, while races are looked for: a NaN that no program makes.
constexpr uint32_t kUnset = 0x7fa5c3e1;

// --- bytes, always counted -----------------------------------------------------------------------

/// Who looks at an access, beside the counters of bytes: an observer's log, and one more observer.
/// `all`: any set of observers, or the watchdog, which wants to stop the kernel.
enum class Watch : uint8_t { nobody, log, log_and_one, all };

struct BufferBytes {
  uint64_t bytes[3] = {};  ///< by Kind
};

// --- the block -----------------------------------------------------------------------------------

struct Cluster;
class Stacks;       // scheduler/stacks.h
struct AsyncState;  // instructions/async.h: copies and wgmma groups in flight

struct Block {
  Block();
  ~Block();

  // Identity.
  const Launch* launch = nullptr;
  uint64_t linear = 0;  ///< number of the block in the grid
  uint3 index{};        ///< blockIdx
  unsigned rank = 0;    ///< in its cluster
  unsigned nthreads = 0, nwarps = 0;
  Cluster* cluster = nullptr;  ///< null for a cluster of one

  // Threads.
  unsigned live = 0;  ///< not yet returned
  bool launched_early = false;
  bool strictly_early = false;  ///< EarlyLaunch::strict
  unsigned early = 0;           ///< threads that have not waited for the preceding kernel
  Thread* current = nullptr;    ///< null while the worker's own stack runs
  Thread threads[1024];
  uint32_t ready[32] = {};   ///< lanes that can run; the running one is not among them
  uint32_t member[32] = {};  ///< lanes that exist
  uint32_t alive[32] = {};   ///< and have not returned
  uint32_t at_end[32] = {};  ///< that have reached the end of the kernel's text; see reached_end()
  bool any_at_end = false;

  // Rendezvous.
  Barrier barriers[16];
  bool named_barriers = false;  ///< a barrier with a count was used
  uint32_t phase = 0;           ///< barriers that threads of the block have passed
  uint32_t converging[32] =
      {};  ///< lanes in converged_lanes(), of the warp, until no other one can run
  std::vector<WarpMeeting> meetings[32];  ///< of each warp: as many as ever were at a time
  std::shared_ptr<AsyncState> async;
  bool carry = false;                   ///< of inline PTX's add.cc
  std::shared_ptr<void> wgmma_scratch;  ///< thread_local would lie among the kernels' shared arrays

  // Memory.
  uintptr_t shared_base = 0, shared_size = 0;  ///< this worker's thread-local storage
  uintptr_t dynamic_base = 0;                  ///< dynamic shared memory, inside it
  const uint8_t* in_array = nullptr;           ///< by byte of it: a part of a shared array?
  /// Of all threads' stacks; of the host, all that lies above device memory.
  uintptr_t stack_base = kHbmBase + kHbmSpan, stack_size = ~(kHbmBase + kHbmSpan);
  /// wgmma has registers in use, which lie on the stack: stack_size is 0, so that every access to
  /// the stack takes the slow path and check_registers() sees it.
  bool registers_watched = false;
  bool host = true;  ///< no block: host code must not touch device memory
  /// In the compiler's copy of a struct, where that is a function: who called it.
  const void* copied_at = nullptr;

  // Counts of this launch.
  std::vector<BufferBytes> hbm;
  uint64_t shared_bytes[3] = {};
  uint64_t blocks_done = 0, tensor_flops = 0, shuffles = 0, wgmma_wavefronts = 0;
  uint64_t mma = 0, wgmma = 0, wgmma_columns = 0;
  std::vector<std::unique_ptr<Observer>> observers;
  RequestLog* log = nullptr;       ///< of the observer that has one, if any
  Observer* beside_log = nullptr;  ///< the only one without
  bool tell_operands = false;      ///< some observer wants_operands()

  std::deque<std::function<void()>> deferred;  ///< see defer()
  unsigned tries_in_vain = 0;  ///< times that let_tries_end() helped, since a phase completed

  // Trouble.
  std::optional<fa::Finding> fault;  ///< why the launch is abandoned
  std::exception_ptr thrown;         ///< the fault was no finding but this, thrown on the worker
  std::atomic<Watch> watch{Watch::all};
  std::atomic<bool> stop{false};      ///< the watchdog's order
  std::set<uint64_t> looked_at;       ///< what was accessed since then
  size_t looks = 0;                   ///< how often
  std::atomic<uint64_t> progress{0};  ///< what the watchdog looks at

  // Scheduling.
  sim::fiber worker;           ///< the worker's own stack
  Thread* previous = nullptr;  ///< who switched to the running fiber
  std::unique_ptr<Stacks> stacks;
};

/// The block of this OS thread; never null (host threads have a dummy).
extern constinit thread_local Block* self;

/// Blocks that are resident together and reach each other's shared memory. Each lives on an OS
/// worker of its own; the one whose `turn` it is holds the baton and runs.
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
/// The analysis tells this once for the line: nothing is wrong, or nothing that stops the kernel.
void remark(const Where&, const std::string& sentence);
/// An integer division by zero at `pc`, or, of the smallest integer, perhaps by -1.
[[noreturn]] void divided_by_zero(const void* pc, bool smallest);
/// The current thread stops until wake(). Others run meanwhile.
void wait_here(const char* what, const Where&);
/// Makes a waiting thread runnable. `block` may be another block of the cluster.
void wake(Block&, unsigned thread);
/// All lanes of `mask` call this; the last one runs `work`. Orders no memory by itself.
void meet_in_warp(const char* what, uint32_t mask, WarpFn work, void* frame, const Where&);
/// `count` threads meet at `barrier`; the last one runs `last`. Orders no memory by itself.
void meet(Barrier&, const char* what, int count, const std::function<void()>& last, const Where&);
/// From now on check_registers() sees all accesses to the stacks, or none.
void watch_registers(Block&, bool on);
/// Asynchronous work (a TMA copy): done only when no thread of the block or cluster can run, that
/// is, as late as possible, so that a missing wait shows.
void defer(std::function<void()> work);
/// Of the current block's cluster, which may be the block alone.
Block& block_of_rank(unsigned rank);
/// Whose shared memory holds p: this block's or another's of the cluster; null: nobody's.
Block* home_of(const void* p);

// --- what the scheduler and memory tell instructions ---------------------------------------------

/// The current thread, while registers are watched, touches its stack.
void check_registers(uintptr_t address, unsigned size, Kind, const void* pc);
/// The current thread names registers as an operand of another instruction.
inline void use_operand(const void* registers, size_t bytes, Kind kind, const void* pc) {
  if (!self->registers_watched) return;
  check_registers(reinterpret_cast<uintptr_t>(registers), static_cast<unsigned>(bytes), kind, pc);
}
/// The current thread has returned: its copies that it has not waited for still happen.
void thread_returned();
/// A thread of the current block has returned: it counts as arrived at the cluster's barrier, or at
/// that of the block alone.
void cluster_thread_returned();

}  // namespace sim

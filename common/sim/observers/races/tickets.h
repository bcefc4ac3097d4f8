/// \file
/// Order between blocks of different clusters. One thing gives it: a block executes
/// __threadfence() and then an atomic on some word of device memory, and later the other block
/// executes an atomic on the same word ("the last block done"); a third block may lie between them.
/// Such a word is a ticket.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "common/sim/observers/races/stamps.h"

namespace sim::races {

struct Ticket;
/// A ticket that a thread has used, and when.
struct Seen {
  const Ticket* ticket;
  Stamp when;
};
using SeenTickets = std::vector<Seen>;
/// What happens before a __threadfence(): in its own cluster, and by way of tickets.
struct Fenced {
  Clock clock;
  SeenTickets seen;
};
/// Null: nothing.
using SharedSeen = std::shared_ptr<const SeenTickets>;
using SharedFenced = std::shared_ptr<const Fenced>;

/// Adds what is new or later.
void raise(SeenTickets&, const SeenTickets&);
void raise(Fenced&, const Fenced&);

struct Ticket {
  struct Published {
    Stamp since;
    SharedFenced fenced;  ///< with all that the cluster had published before
    SharedFenced added;   ///< what the publishing thread had fenced
  };
  /// By cluster, the latest last. A cluster that has ended keeps one entry: blocks that use the
  /// ticket now do so after all of them.
  std::unordered_map<uint64_t, std::vector<Published>> published;
  uint64_t latest = 0;  ///< the cluster that used it last
};

/// Of a launch.
class Tickets {
 public:
  /// A thread executes an atomic on this word: it publishes what it had fenced, and sees what
  /// others have published. Returns all tickets that it has seen now.
  SharedSeen use(uint64_t word, uint64_t cluster, Stamp now, const SharedFenced&,
                 const SharedSeen&);
  /// Does what `entry` of that cluster did at `stamp`, on this word, happen before the next step of
  /// a thread that has seen these tickets? `atomic`: both that and the next step are atomics.
  bool ordered(const SeenTickets&, uint64_t cluster, unsigned entry, Stamp stamp, uint64_t word,
               bool atomic) const;

 private:
  std::unordered_map<uint64_t, Ticket> by_word_;
};

}  // namespace sim::races

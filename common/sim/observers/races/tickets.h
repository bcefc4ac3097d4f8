/// \file
/// Order between blocks of different clusters. Only one thing gives it: one block executes
/// __threadfence() and then an atomic on some word of device memory, the ticket; later the other
/// block executes an atomic on the same word ("the last block done"). The order may also pass
/// through a third block.
#pragma once

#include <unordered_map>

#include "common/sim/observers/races/stamps.h"

namespace sim::races {

struct Ticket;
/// A ticket that a thread has used, and when.
struct Seen {
  const Ticket* ticket;
  Stamp when;
};
using SeenTickets = std::vector<Seen>;
/// What happens before a __threadfence(): by threads of its cluster, and the tickets seen.
struct Fenced {
  Clock clock;
  SeenTickets seen;
};
using SharedSeen = std::shared_ptr<const SeenTickets>;  ///< null: no ticket
using SharedFenced = std::shared_ptr<const Fenced>;     ///< null: no fence

/// Adds what is new or later.
void raise(SeenTickets&, const SeenTickets&);
void raise(Fenced&, const Fenced&);

struct Ticket {
  struct Published {
    Stamp since;
    SharedFenced fenced;  ///< with all that the cluster had published before
    SharedFenced added;   ///< what the publishing thread had fenced
  };
  /// By cluster, the latest last. A cluster that has ended keeps one entry.
  std::unordered_map<uint64_t, std::vector<Published>> published;
  uint64_t latest = 0;  ///< the cluster that used it last
};

/// All tickets of a launch. Only BlockClocks uses them.
class Tickets {
 public:
  /// A thread executes an atomic on the word: it publishes what it has fenced, and sees what others
  /// have published. Returns all tickets that it has seen now.
  SharedSeen use(uint64_t word, uint64_t cluster, Stamp now, const SharedFenced&,
                 const SharedSeen&);
  /// Whether an access by `entry` of the cluster, to this word at `stamp`, happens before the next
  /// access of a thread that has seen these tickets. `atomic`: it is an atomic.
  bool ordered(const SeenTickets&, uint64_t cluster, unsigned entry, Stamp stamp, uint64_t word,
               bool atomic) const;

 private:
  std::unordered_map<uint64_t, Ticket> by_word_;
};

}  // namespace sim::races

#include "common/sim/observers/races/tickets.h"

namespace sim::races {

static void raise(SeenTickets& tickets, const Seen& seen) {
  for (Seen& old : tickets) {
    if (old.ticket == seen.ticket) {
      old.when = std::max(old.when, seen.when);
      return;
    }
  }
  tickets.push_back(seen);
}
void raise(SeenTickets& tickets, const SeenTickets& others) {
  for (const Seen& seen : others) raise(tickets, seen);
}
void raise(Fenced& fenced, const Fenced& other) {
  raise(fenced.clock, other.clock);
  raise(fenced.seen, other.seen);
}

// The last entry that the cluster had published by `when`, or null.
static const Ticket::Published* until(const std::vector<Ticket::Published>& all, Stamp when) {
  const auto later = [](Stamp t, const Ticket::Published& p) { return t < p.since; };
  const auto next = std::upper_bound(all.begin(), all.end(), when, later);
  return next == all.begin() ? nullptr : &next[-1];
}

SharedSeen Tickets::use(uint64_t word, uint64_t cluster, Stamp now, const SharedFenced& fenced,
                        const SharedSeen& seen) {
  Ticket& ticket = by_word_[word];
  if (ticket.latest != cluster) {
    std::vector<Ticket::Published>& ended = ticket.published[ticket.latest];
    if (ended.size() > 1) ended = {{ended[0].since, ended.back().fenced, nullptr}};
    ticket.latest = cluster;
  }
  std::vector<Ticket::Published>& mine = ticket.published[cluster];
  if (fenced && (mine.empty() || mine.back().added != fenced)) {
    Fenced all = *fenced;
    if (!mine.empty()) raise(all, *mine.back().fenced);
    mine.push_back({now, std::make_shared<const Fenced>(std::move(all)), fenced});
  }
  SeenTickets tickets;
  if (seen) tickets = *seen;
  raise(tickets, Seen{&ticket, now});
  return std::make_shared<const SeenTickets>(std::move(tickets));
}

bool Tickets::ordered(const SeenTickets& tickets, uint64_t cluster, unsigned entry, Stamp stamp,
                      uint64_t word, bool atomic) const {
  const auto own = by_word_.find(word);
  const auto by_way_of = [&](const Seen& seen) {
    // Atomics on one word are ordered among themselves.
    if (atomic && own != by_word_.end() && seen.ticket == &own->second && stamp <= seen.when) {
      return true;
    }
    const auto published = seen.ticket->published.find(cluster);
    if (published == seen.ticket->published.end()) return false;
    const Ticket::Published* shown = until(published->second, seen.when);
    return shown && has(shown->fenced->clock, entry, stamp);
  };
  if (std::any_of(tickets.begin(), tickets.end(), by_way_of)) return true;
  // Through other blocks: the tickets that the publishing blocks had seen.
  SeenTickets all = tickets;
  for (size_t i = 0; i < all.size(); ++i) {
    const Seen seen = all[i];
    for (const auto& [publisher, published] : seen.ticket->published) {
      const Ticket::Published* shown = until(published, seen.when);
      if (!shown) continue;
      for (const Seen& before : shown->fenced->seen) {
        const Seen then = {before.ticket, std::min(before.when, seen.when)};
        const auto known = std::find_if(all.begin(), all.end(), [&](const Seen& other) {
          return other.ticket == then.ticket && other.when >= then.when;
        });
        if (known != all.end()) continue;
        if (by_way_of(then)) return true;
        all.push_back(then);
      }
    }
  }
  return false;
}

}  // namespace sim::races

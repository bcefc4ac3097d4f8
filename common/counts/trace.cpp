#include "common/counts/trace.h"

#include <algorithm>
#include <iterator>

namespace fa {

void Trace::append(Trace&& other, const std::string& pass) {
  const auto move_to = [](auto& to, auto& from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  const auto first = [](const auto& all) { return static_cast<uint32_t>(all.size()); };
  const uint32_t kernel = first(kernels), place = first(places), line = first(lines),
                 stack = first(stacks);
  uint64_t start = 0;
  for (const TraceKernel& k : kernels) start = std::max(start, k.start + k.ticks);
  for (TraceKernel& k : other.kernels) {
    k.pass = pass;
    k.start += start;
    for (TraceEvent& e : k.events) e.place += place, e.stack += stack, e.start += start;
  }
  for (TracePlace& p : other.places) p.kernel += p.space == TraceSpace::global ? 0 : kernel;
  for (auto& all : other.stacks) {
    for (uint32_t& number : all) number += line;
  }
  for (TraceRequest& r : other.requests) r.kernel += kernel, r.place += place, r.stack += stack;
  move_to(kernels, other.kernels);
  move_to(places, other.places);
  move_to(lines, other.lines);
  move_to(stacks, other.stacks);
  move_to(requests, other.requests);
}

}  // namespace fa

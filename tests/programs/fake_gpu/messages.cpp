// Ranks that exchange messages by way of the host's memory, for test_gpu_build.py: each receives
// what its neighbour sent, however the lengths change, or the program says which byte is wrong.
#include <cstdio>
#include <vector>

#include "common/counts/backend.h"
#include "common/ranks/copy_world.h"

namespace fa {

Device open_device(const std::string&, const std::string&, int) { return {}; }
bool simulated() { return false; }
const std::string& needs_of(const Step&, const Variant&) {
  static const std::string none;
  return none;
}

}  // namespace fa

namespace {

using Bytes = std::vector<unsigned char>;

// K and V of a rank. The second exchange is the longest, the last one the shortest.
std::vector<Bytes> sent_by(int rank, int exchange) {
  std::vector<Bytes> sent;
  for (int which = 0; which < 2; ++which) {
    const size_t bytes = (exchange == 1 ? 30000 : 10000) - 1000 * exchange - 100 * which - rank;
    Bytes& x = sent.emplace_back(bytes);
    for (size_t i = 0; i < bytes; ++i) {
      x[i] = static_cast<unsigned char>(i * 2654435761u >> 13 ^ (rank * 16 + exchange * 4 + which));
    }
  }
  return sent;
}

std::vector<fa::Message> messages(int peer, std::vector<Bytes>& data) {
  std::vector<fa::Message> found;
  for (Bytes& x : data) found.push_back({peer, x.data(), x.size(), /*by_host=*/true});
  return found;
}

}  // namespace

int main() {
  fa::CopyWorld world("messages");
  const int next = (world.rank() + 1) % world.size();
  const int before = (world.rank() + world.size() - 1) % world.size();
  const std::string own = world.open_own();
  world.meet(std::vector<std::string>(world.size(), own));
  int status = 0;
  for (int exchange = 0; exchange < 4; ++exchange) {
    std::vector<Bytes> send = sent_by(world.rank(), exchange);
    const std::vector<Bytes> wanted = sent_by(before, exchange);
    std::vector<Bytes> received;
    for (const Bytes& x : wanted) received.emplace_back(x.size());
    world.start("K, V", messages(next, send), messages(before, received));
    world.finish();
    if (received == wanted) continue;
    std::fprintf(stderr, "rank %d received something else in exchange %d\n", world.rank(),
                 exchange);
    status = 1;
  }
  world.close_peers();
  return status;
}

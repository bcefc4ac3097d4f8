// Ranks that are threads: mismatching ranks end with a sentence, and no message is lost silently.
#include "common/ranks/threads.h"

#include "common/harness/problem.h"
#include "tests/device.h"
#include "tests/test.h"

using fa::Ranks, test::Buffer;

static std::vector<fa::Message> message(int peer, const Buffer<int>& data) {
  return {fa::message(peer, data.get(), data.size())};
}

// Threads start in any order, so tests of independence from it run several times.
static int any_order() { return GENERATE(range(0, 8)); }

TEST_CASE("threads: messages arrive in the order in which they were sent", "[ranks]") {
  const int size = GENERATE(2, 3);
  std::vector<std::vector<int>> got(size);
  std::vector<uint64_t> sent(size);
  fa::on_threads(size, [&](Ranks& me) {
    const int r = me.rank(), next = (r + 1) % size, before = (r + size - 1) % size;
    const Buffer<int> one("one", {r, 10 * r}), two("two", std::vector<int>{100 + r});
    const Buffer<int> first("first", 2), second("second", 1);
    me.start("one", message(next, one), message(before, first));
    me.finish();
    me.start("two", message(next, two), message(before, second));
    me.finish();
    got[r] = first.download();
    got[r].push_back(second.download()[0]);
    sent[r] = me.bytes_sent();
  });
  for (int r = 0; r < size; ++r) {
    const int from = (r + size - 1) % size;
    CHECK(got[r] == std::vector<int>{from, 10 * from, 100 + from});
    CHECK(sent[r] == 12);
  }
}

TEST_CASE("threads: a rank does not wait for one that has ended", "[ranks]") {
  CAPTURE(any_order());
  const int sent = GENERATE(0, 1);  // of the two messages that rank 0 waits for
  const auto run = [&] {
    fa::on_threads(3, [&](Ranks& me) {
      const Buffer<int> data("data", {1, 2});
      if (me.rank() == 1 && sent > 0) me.start("all there is", message(0, data), {});
      for (int i = 0; me.rank() == 0 && i < 2; ++i) {
        me.start("in vain", {}, message(1, data));
        me.finish();
      }
    });
  };
  CHECK_THROWS_AS(run(), std::logic_error);
  CHECK_THROWS_WITH(run(), "rank 0 waits for a message of rank 1, which has ended");
}

TEST_CASE("threads: a message without a receiver is an error", "[ranks]") {
  CAPTURE(any_order());
  const bool second = GENERATE(false, true);  // of two messages
  const auto run = [&] {
    fa::on_threads(2, [&](Ranks& me) {
      const Buffer<int> data("data", {1, 2});
      if (me.rank() == 1) {
        me.start("one", message(0, data), {});
        if (second) me.start("another", message(0, data), {});
      } else if (second) {
        me.start("one", {}, message(1, data));
        me.finish();
      }
    });
  };
  CHECK_THROWS_AS(run(), std::logic_error);
  CHECK_THROWS_WITH(run(), "rank 0 never received what rank 1 sent");
}

TEST_CASE("threads: a message of another length is an error", "[ranks]") {
  const auto run = [&] {
    fa::on_threads(2, [&](Ranks& me) {
      const Buffer<int> data("data", 2 + me.rank());
      if (me.rank() == 1) me.start("three words", message(0, data), {});
      if (me.rank() == 0) {
        me.start("two words", {}, message(1, data));
        me.finish();
      }
    });
  };
  CHECK_THROWS_WITH(run(), "a message of another length");
}

// A rank that waits for another does not hide that one's exception.
TEST_CASE("threads: what a rank throws reaches the caller", "[ranks]") {
  CAPTURE(any_order());
  const int failing = GENERATE(0, 1, 2);
  const bool sends = GENERATE(false, true);  // before it fails
  const auto run = [&] {
    fa::on_threads(3, [&](Ranks& me) {
      const Buffer<int> data("data", {1, 2}), coming("coming", 2);
      const int next = (me.rank() + 1) % 3, before = (me.rank() + 2) % 3;
      if (me.rank() == failing) {
        if (sends) me.start("sent", message(next, data), {});
        throw fa::UsageError("this rank cannot go on");
      }
      me.start("round", message(next, data), message(before, coming));
      me.finish();
    });
  };
  CHECK_THROWS_AS(run(), fa::UsageError);
  CHECK_THROWS_WITH(run(), "this rank cannot go on");
}

// On a GPU a message is transferred at any time between start and finish; here at one time.
TEST_CASE("threads: what moves is neither written nor read before finish", "[ranks]") {
  const auto run = [](const std::function<void(Buffer<int> & sent, Buffer<int> & coming)>& between,
                      bool in_place) {
    int got = 0;
    fa::on_threads(2, [&](Ranks& me) {
      Buffer<int> sent("sent", {1, 2}), coming("coming", {3, 4});
      const int peer = 1 - me.rank();
      me.start("round", message(peer, sent), message(peer, in_place ? sent : coming));
      between(sent, coming);
      me.finish();
      got = coming.download()[0];
    });
    return got;
  };
  CHECK(run([](auto&, auto&) {}, false) == 1);
  CHECK_THROWS_WITH(run([](auto& sent, auto&) { sent.fill(0); }, false),
                    ContainsSubstring("wrote to memory that \"round\" sends to rank"));
  const auto only = [&](int rank, bool sends) {  // one rank writes, once its exchange has begun
    fa::on_threads(2, [&](Ranks& me) {
      Buffer<int> sent("sent", {1, 2}), coming("coming", {3, 4});
      me.start("hop 3", message(1 - me.rank(), sent), message(1 - me.rank(), coming));
      if (me.rank() == rank) (sends ? sent : coming).fill(0);
      me.finish();
    });
  };
  CHECK_THROWS_WITH(only(0, true),
                    "rank 0 wrote to memory that \"hop 3\" sends to rank 1 before finish()");
  CHECK_THROWS_WITH(only(1, false),
                    "rank 1 wrote to memory that \"hop 3\" receives from rank 0 before finish()");
  CHECK_THROWS_WITH(run([](auto&, auto& coming) { coming.fill(0); }, false),
                    ContainsSubstring("wrote to memory that \"round\" receives from rank"));
  CHECK_THROWS_WITH(run([](auto&, auto&) {}, true), ContainsSubstring("sends to rank"));
  int read = 0;
  run([&](auto&, auto& coming) { read = coming.download()[0]; }, false);
  CHECK(read == -1);  // not the old value, which might have looked right
}

TEST_CASE("threads: one rank, and four with messages of different lengths", "[ranks]") {
  int ran = 0;
  fa::on_threads(
      1,
      [&](Ranks& me) {
        ++ran;
        CHECK((me.rank() == 0 && me.size() == 1 && me.busy_sms() == 7));
        me.start("nothing", {}, {});
        me.finish();
        CHECK(me.bytes_sent() == 0);
      },
      7);
  CHECK(ran == 1);
  // All to all, one exchange: rank a sends 1 + a + b words to rank b.
  std::vector<std::vector<int>> got(4);
  std::vector<uint64_t> sent(4);
  fa::on_threads(4, [&](Ranks& me) {
    const int r = me.rank();
    std::vector<Buffer<int>> out, in;
    std::vector<fa::Message> send, receive;
    for (int peer = 0; peer < 4; ++peer) {
      out.emplace_back("out", std::vector<int>(1 + r + peer, 10 * r + peer));
      in.emplace_back("in", 1 + r + peer);
    }
    for (int peer = 3; peer >= 0; --peer) {
      if (peer == r) continue;
      send.push_back(fa::message(peer, out[peer].get(), out[peer].size()));
      receive.push_back(fa::message(peer, in[peer].get(), in[peer].size()));
    }
    me.start("all to all", send, receive);
    me.finish();
    for (int peer = 0; peer < 4; ++peer) {
      if (peer == r) continue;
      const std::vector<int> words = in[peer].download();
      CHECK(words == std::vector<int>(1 + r + peer, 10 * peer + r));
      got[r].push_back(words.back());
    }
    sent[r] = me.bytes_sent();
  });
  for (int r = 0; r < 4; ++r) {
    CHECK(got[r].size() == 3);
    CHECK(sent[r] == uint64_t(4 * (3 * (1 + r) + 6 - r)));
  }
}

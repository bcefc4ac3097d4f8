#include "common/harness/npy.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "common/counts/files.h"
#include "common/harness/problem.h"
#include "tests/harness/files.h"
#include "tests/test.h"

using fa::test::bytes_of, fa::test::header_of, fa::test::npy_file, fa::test::TemporaryFile;

namespace {

std::string refusal(const std::string& content) {
  const TemporaryFile file(content);
  const std::string words = fa::test::refusal_of([&] { fa::read_npy(file.path); });
  CHECK_THAT(words, ContainsSubstring(file.path + ": "));
  return words;
}

}  // namespace

TEST_CASE("what write_npy writes read_npy reads", "[npy]") {
  const std::vector<float> data{0, -0.0f, 1.5f, -3e38f, 1e-45f, 7};
  const TemporaryFile file;
  fa::write_npy(file.path, {1, 2, 3, 1}, data);
  const fa::Npy back = fa::read_npy(file.path);
  CHECK(back.shape == std::vector<size_t>{1, 2, 3, 1});
  REQUIRE(back.data.size() == data.size());
  CHECK(std::memcmp(back.data.data(), data.data(), sizeof(float) * data.size()) == 0);
}

TEST_CASE("what ends while it is written leaves the old file and nothing beside it", "[npy]") {
  namespace fs = std::filesystem;
  const fa::test::Folder folder;
  const std::string path = folder.file("O.npy", "as it was");
  CHECK_THROWS_AS(fa::write_file(path, [](std::ostream&) { throw std::bad_alloc(); }),
                  std::bad_alloc);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const pid_t child = fork();
    if (child == 0) {
      for (const int s : {SIGINT, SIGTERM, SIGHUP}) std::signal(s, SIG_DFL);  // Catch's
      fa::write_file(path, [&](std::ostream& out) {
        out << "new" << std::flush;
        std::raise(signal);
      });
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == signal);
  }
  std::stringstream words;
  words << std::ifstream(path).rdbuf();
  CHECK(words.str() == "as it was");
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("float16, float32 and float64 in all three format versions", "[npy]") {
  const int version = GENERATE(1, 2, 3);
  CAPTURE(version);
  const std::vector<uint16_t> half{0x3c00, 0xc000, 0x0001, 0x83ff, 0x7bff, 0x7c00, 0x7e00, 0x8000};
  const TemporaryFile f2(npy_file(version, header_of("<f2", "(8,)"), bytes_of(half)));
  const fa::Npy a = fa::read_npy(f2.path);
  CHECK(a.shape == std::vector<size_t>{8});
  CHECK(a.data[0] == 1);
  CHECK(a.data[1] == -2);
  CHECK(a.data[2] == 0x1p-24f);          // the smallest subnormal
  CHECK(a.data[3] == -1023 * 0x1p-24f);  // the largest
  CHECK(a.data[4] == 65504);
  CHECK(a.data[5] == INFINITY);
  CHECK(std::isnan(a.data[6]));
  CHECK(a.data[7] == 0);
  CHECK(std::signbit(a.data[7]));

  const TemporaryFile f4(
      npy_file(version, header_of("<f4", "(2, 1)"), bytes_of<float>({0.1f, -7})));
  CHECK(fa::read_npy(f4.path).data == std::vector<float>{0.1f, -7});
  const TemporaryFile f8(npy_file(version, header_of("<f8", "()"), bytes_of<double>({0.1})));
  CHECK(fa::read_npy(f8.path).data == std::vector<float>{0.1f});
}

TEST_CASE("int32 and int64", "[npy]") {
  const TemporaryFile i4(
      npy_file(1, header_of("<i4", "(2, 2)"), bytes_of<int>({0, -1, 7, 1 << 30})));
  const fa::NpyIntegers a = fa::read_npy_integers(i4.path);
  CHECK(a.shape == std::vector<size_t>{2, 2});
  CHECK(a.data == std::vector<int64_t>{0, -1, 7, 1 << 30});
  const std::vector<int64_t> large{(int64_t{1} << 40) + 1, -3};
  const TemporaryFile i8(npy_file(1, header_of("<i8", "(2,)"), bytes_of(large)));
  CHECK(fa::read_npy_integers(i8.path).data == large);
  const TemporaryFile f4(npy_file(1, header_of("<f4", "(1,)"), bytes_of<float>({1})));
  CHECK_THROWS_WITH(fa::read_npy_integers(f4.path),
                    ContainsSubstring("holds '<f4'; supported are int32 and int64"));
}

TEST_CASE("what is no file is refused, at once", "[npy]") {
  const std::string folder = std::filesystem::temp_directory_path();
  CHECK_THROWS_WITH(fa::read_npy(folder), folder + ": is a folder");
  const TemporaryFile file;
  std::filesystem::remove(file.path);
  REQUIRE(mkfifo(file.path.c_str(), 0600) == 0);  // without a writer
  for (const std::string& path : {std::string("/dev/zero"), file.path}) {
    CHECK_THROWS_AS(fa::read_npy(path), fa::UsageError);
    CHECK_THROWS_WITH(fa::read_npy(path), path + ": is a pipe or a device: give a file");
  }
  CHECK_THROWS_WITH(fa::read_npy("/proc/self/mem"), "/proc/self/mem: cannot be read");
}

TEST_CASE("a broken .npy file gets one sentence", "[npy]") {
  const std::string four = bytes_of<float>({1, 2, 3, 4}), whole = header_of("<f4", "(4,)");
  const auto of = [&](const char* type, const char* shape) {
    return npy_file(1, header_of(type, shape), four);
  };
  const std::string version = "unsupported .npy version", ends = "ends inside the .npy header";
  const std::string none = "is not a .npy file",
                    invalid = "the shape in the .npy header is invalid";
  const std::string empty = npy_file(1, whole, "");
  std::vector<std::pair<std::string, std::string>> rows = {
      {"", "is empty"},
      {"PK\3\4 this is a zip file", none},
      {empty.substr(0, 11), none},
      {empty.substr(0, 12), ends},
      {empty.substr(0, 30), ends},
      {empty.substr(0, empty.size() - 1), ends},
      {npy_file(1, header_of("<f4", "(2, 2)", "True"), four), "Fortran order"},
      {of("<f4", "(5,)"), "holds 16 bytes of data, but its shape is [5] and its type '<f4'"},
      {of("<f4", "(3,)"), "[3]"},
      {of("<f4", "(4294967296, 4294967296)"), "its shape"},  // the product overflows
      {npy_file(1, header_of("<f2", "(2,)"), "12345"), "its shape is [2] and its type '<f2'"},
      {npy_file(1, header_of("<f8", "(2,)"), four.substr(1)), "its type '<f8'"}};
  for (const int other : {0, 4, 9}) rows.emplace_back(npy_file(other, whole, four), version);
  for (const char* shape : {"(four,)", "(4,", "4", "(-4,)", "(4.0,)", "(1000000000000000000,)"}) {
    rows.emplace_back(of("<f4", shape), invalid);
  }
  for (const char* type : {"<f1", "|b1", "<c8", "<i4", "<i8", "f4", ">f4"}) {
    rows.emplace_back(of(type, "(4,)"), std::string("holds '") + type +
                                            "'; supported are float16, float32 and float64 ('<f2', "
                                            "'<f4', '<f8')");
  }
  for (const size_t bytes : {0, 1, 12, 15, 17, 19, 20}) {  // for 16
    rows.emplace_back(npy_file(1, whole, (four + four).substr(0, bytes)),
                      "holds " + std::to_string(bytes) + " bytes of data, but its shape is [4]");
  }
  for (const char* end : {"}", ", 'shape'}", ", 'shape':", ", 'shape':   "}) {
    const std::string header = std::string("{'descr': '<f4', 'fortran_order': False") + end;
    rows.emplace_back(npy_file(1, header, four), "has no 'shape'");
  }
  for (const char* key : {"descr", "fortran_order"}) {
    std::string header = whole;
    header.replace(header.find(key), 2, "xx");
    rows.emplace_back(npy_file(1, header, four), std::string("header has no '") + key + "'");
  }
  for (const auto& [content, words] : rows) CHECK_THAT(refusal(content), ContainsSubstring(words));
  CHECK_THROWS_WITH(fa::read_npy("/nowhere/q.npy"), "/nowhere/q.npy: cannot be opened");
  CHECK_THROWS_WITH(fa::write_npy("/nowhere/at/all.npy", {1}, {1.0f}),
                    "/nowhere/at/all.npy: cannot be written: No such file or directory");
}

TEST_CASE("a header may be long, and in any order and quotes", "[npy]") {
  const std::string four = bytes_of<float>({1, 2, 3, 4});
  const auto shape_of = [](const std::string& content) {
    const TemporaryFile file(content);
    const fa::Npy npy = fa::read_npy(file.path);
    CHECK((npy.data == std::vector<float>{1, 2, 3, 4} || npy.data.empty()));
    return fa::text_of(npy.shape);
  };
  CHECK(shape_of(npy_file(1, "{'shape': (2,2), 'fortran_order': False, 'descr': '<f4'}\n", four)) ==
        "[2, 2]");
  CHECK(shape_of(npy_file(1, R"({"descr":"<f4","fortran_order":False,"shape":(4,)})", four)) ==
        "[4]");
  const std::string blanks(70000, ' ');  // more than 2 bytes can represent
  CHECK(shape_of(npy_file(2, header_of("<f4", "(1, 4)") + blanks, four)) == "[1, 4]");
  CHECK(shape_of(npy_file(1, header_of("<f4", "(0, 5)"), "")) == "[0, 5]");
}

TEST_CASE("each width of element counts, and what float cannot hold is Inf or 0", "[npy]") {
  const std::vector<uint16_t> half{0x0400, 0xfc00, 0xfe01, 0x03ff, 0x3555};
  const TemporaryFile f2(npy_file(1, header_of("<f2", "(5,)"), bytes_of(half)));
  const std::vector<float> a = fa::read_npy(f2.path).data;
  CHECK((a[0] == 0x1p-14f && a[1] == -INFINITY && std::isnan(a[2])));
  CHECK((a[3] == 1023 * 0x1p-24f && a[4] == 1365 * 0x1p-12f));
  const TemporaryFile f8(
      npy_file(1, header_of("<f8", "(4,)"), bytes_of<double>({1e300, 1e-300, -1e-40, NAN})));
  const std::vector<float> b = fa::read_npy(f8.path).data;
  CHECK((b[0] == INFINITY && b[1] == 0 && b[2] == -1e-40f && std::isnan(b[3])));
}

TEST_CASE("the data of each shape begins at a multiple of 64", "[npy]") {
  const TemporaryFile file;
  std::vector<size_t> shape;
  for (int i = 0; i < 40; ++i) {
    fa::write_npy(file.path, shape, {2});
    CHECK((std::filesystem::file_size(file.path) - 4) % 64 == 0);
    CHECK(fa::read_npy(file.path).shape == shape);
    shape.push_back(1);
  }
  CHECK_THROWS_AS(fa::write_npy(file.path, {2, 2}, {1, 2, 3}), std::invalid_argument);
  CHECK(fa::read_npy(file.path).data == std::vector<float>{2});
}

TEST_CASE("a file is read whole, whatever its size", "[npy]") {
  for (const size_t size : {size_t{1} << 20, (size_t{1} << 20) + 1, size_t{3} << 20}) {
    std::string bytes(size, 'a');
    bytes[size - 1] = 'z';
    const TemporaryFile file(bytes);
    CHECK((fa::read_file(file.path) == bytes));
  }
}

TEST_CASE("which names are one file", "[npy]") {
  namespace fs = std::filesystem;
  const fa::test::Folder folder;
  const std::string a = folder.file("a", "1"), b = folder.file("b", "1"), link = folder.path("l");
  fs::create_symlink(a, link);
  CHECK(fa::same_file(a, a));
  CHECK(fa::same_file(a, link));
  CHECK_FALSE(fa::same_file(a, b));
  CHECK_FALSE(fa::same_file(b, link));
  CHECK_FALSE(fa::same_file("", ""));
  CHECK_FALSE(fa::same_file(a, ""));
  CHECK(fa::same_file("no/x", "no/../no/x"));
  CHECK_FALSE(fa::same_file("no/x", "no/y"));
  CHECK_FALSE(fa::same_file("/dev/null", "/dev/null"));

  fa::write_file(link, [](std::ostream& out) { out << "22"; });
  CHECK(fs::is_symlink(link));
  CHECK(fa::read_file(a) == "22");
  CHECK_THROWS_AS(fa::write_file("/dev/full", [](std::ostream& out) { out << "22"; }),
                  fa::ResourceError);
  CHECK_THROWS_AS(fa::write_file(folder.path("no/x"), [](std::ostream& out) { out << "22"; }),
                  fa::UsageError);
}

TEST_CASE("a probe for writing leaves all as it was", "[npy]") {
  namespace fs = std::filesystem;
  const fa::test::Folder folder;
  const std::string old = folder.file("old", "1"), fresh = folder.path("new");
  const auto said = [](const std::string& path) {
    return fa::test::refusal_of([&] { fa::require_writable("--out", path); });
  };
  CHECK(said("") == "accepted");
  CHECK(said(old) == "accepted");
  CHECK(said(fresh) == "accepted");
  CHECK(fa::read_file(old) == "1");
  CHECK_FALSE(fs::exists(fresh));
  CHECK(said(folder.path("no/x")) ==
        "--out " + folder.path("no/x") + ": cannot be written: its folder does not exist");
  CHECK(said(folder.path()) == "--out " + folder.path() + ": cannot be written: Is a directory");
  CHECK(said(old + "/x") == "--out " + old + "/x: cannot be written: Not a directory");
}

TEST_CASE("after a file is written, signals do what they did before", "[npy]") {
  const fa::test::Folder folder;
  const pid_t child = fork();
  if (child == 0) {
    const auto own = [](int) {};
    std::signal(SIGINT, SIG_DFL), std::signal(SIGTERM, own), std::signal(SIGHUP, SIG_IGN);
    fa::write_file(folder.path("x"), [](std::ostream& out) { out << "1"; });
    const bool same = std::signal(SIGINT, SIG_DFL) == SIG_DFL &&
                      std::signal(SIGTERM, SIG_DFL) == static_cast<void (*)(int)>(own) &&
                      std::signal(SIGHUP, SIG_DFL) == SIG_IGN;
    _exit(same ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

TEST_CASE("what is written to a pipe reaches its reader, and the pipe stays", "[npy]") {
  const fa::test::Folder folder;
  const std::string path = folder.path("pipe");
  REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  CHECK_NOTHROW(fa::require_writable("--json", path));  // would wait for a reader
  const pid_t child = fork();
  if (child == 0) {
    std::ifstream in(path);
    std::string words;
    in >> words;
    _exit(words == "{}" ? 0 : 1);
  }
  fa::write_file(path, [](std::ostream& out) { out << "{}\n"; });
  int status = 0;
  waitpid(child, &status, 0);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  CHECK(std::filesystem::is_fifo(path));
}

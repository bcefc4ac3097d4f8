#include "common/harness/screen.h"

#include <sstream>

namespace fa {

std::string wrapped(const std::string& first, const std::string& words, size_t indent) {
  std::string out, line = first;
  std::istringstream in(words);
  bool empty = true;
  for (std::string word; in >> word;) {
    if (!empty && line.size() + 1 + word.size() > kScreenWidth) {
      out += line + "\n";
      line = std::string(indent, ' ');
      empty = true;
    }
    for (; line.size() + word.size() > kScreenWidth && word.size() > kScreenWidth - indent;) {
      const size_t fits = kScreenWidth - line.size();
      out += line + word.substr(0, fits) + "\n";
      word = word.substr(fits);
      line = std::string(indent, ' ');
    }
    line += (empty ? "" : " ") + word;
    empty = false;
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return out + line + "\n";
}

std::string beside(const std::string& left, const std::string& right, size_t end) {
  const bool fits = left.size() + right.size() + (right.empty() ? 0 : 1) <= end;
  const size_t blanks = end - right.size() - (fits ? left.size() : 0);
  return left + (fits ? "" : "\n") + std::string(blanks, ' ') + right;
}

}  // namespace fa

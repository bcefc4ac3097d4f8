#include "common/harness/npy.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "common/counts/files.h"
#include "common/counts/format.h"
#include "common/harness/problem.h"

namespace fa {
namespace {

static_assert(std::endian::native == std::endian::little,
              "values are copied as they lie in a file");

constexpr std::string_view kMagic = "\x93NUMPY";

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  fa::refuse("{}: {}", path, why);
}

// IEEE binary16, exactly.
float half_to_float(uint16_t h) {
  const int exponent = h >> 10 & 31, mantissa = h & 1023;
  float size;
  if (exponent == 31) {
    size = mantissa ? NAN : INFINITY;
  } else if (exponent == 0) {
    size = std::ldexp(static_cast<float>(mantissa), -24);
  } else {
    size = std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  }
  return h & 0x8000 ? -size : size;
}

template <class T>
T load(const char* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// The text after "'key':" in the header, which is a Python dictionary with three keys.
std::string_view after_key(std::string_view header, const std::string& key,
                           const std::string& path) {
  for (const char quote : {'\'', '"'}) {
    const std::string quoted = quote + key + quote;
    if (const size_t at = header.find(quoted); at != header.npos) {
      const size_t colon = header.find(':', at + quoted.size());
      const size_t value = header.find_first_not_of(' ', colon + 1);
      if (colon != header.npos && value != header.npos) return header.substr(value);
    }
  }
  refuse(path, fmt::format("the .npy header has no '{}'", key));
}

std::vector<size_t> parse_shape(std::string_view text, const std::string& path) {
  const size_t close = text.find(')');
  if (text.empty() || text[0] != '(' || close == text.npos) {
    refuse(path, "the shape in the .npy header is invalid");
  }
  std::vector<size_t> shape;
  std::string digits;
  for (const char c : text.substr(1, close)) {  // with the ')', which ends the last number
    if (c >= '0' && c <= '9' && digits.size() < 18) {
      digits += c;
    } else if (c == ',' || c == ')') {
      if (!digits.empty()) shape.push_back(std::stoull(digits));
      digits.clear();
    } else if (c != ' ') {
      refuse(path, "the shape in the .npy header is invalid");
    }
  }
  return shape;
}

struct File {
  std::string bytes;
  std::string type;  ///< "<f4"
  std::vector<size_t> shape;
  size_t width = 0;  ///< bytes of an element
  size_t count = 0;  ///< elements
  size_t start = 0;  ///< of the first element

  template <class T>
  T at(size_t i) const {
    return load<T>(&bytes[start + i * width]);
  }
};

/// \param types such as "<f4"; `words` names them for the refusal of others.
File open_npy(const std::string& path, const std::vector<std::string>& types, const char* words) {
  File npy;
  const std::string& file = npy.bytes = read_file(path);
  if (file.empty()) refuse(path, "is empty");

  // Magic, version, then the header's length in 2 bytes (format 1) or 4 (formats 2 and 3).
  if (file.size() < 12 || file.compare(0, kMagic.size(), kMagic) != 0) {
    refuse(path, "is not a .npy file");
  }
  const int version = file[6];
  if (version < 1 || version > 3) refuse(path, "has an unsupported .npy version");
  const size_t start = version == 1 ? 10 : 12;
  const size_t length = version == 1 ? load<uint16_t>(&file[8]) : load<uint32_t>(&file[8]);
  if (start + length > file.size()) refuse(path, "ends inside the .npy header");
  const std::string_view header = std::string_view(file).substr(start, length);

  const std::string_view descr = after_key(header, "descr", path);
  npy.type = descr.substr(1, descr.find_first_of("'\"", 1) - 1);
  if (std::find(types.begin(), types.end(), npy.type) == types.end()) {
    refuse(path, fmt::format("holds '{}'; supported are {}", npy.type, words));
  }
  if (after_key(header, "fortran_order", path).starts_with("True")) {
    refuse(path, "is in Fortran order; save it with np.ascontiguousarray");
  }
  npy.shape = parse_shape(after_key(header, "shape", path), path);

  const size_t width = npy.width = npy.type[2] - '0';
  const size_t available = (file.size() - start - length) / width;
  size_t count = 1;
  for (const size_t n : npy.shape) {
    // This also prevents an overflow of the product.
    if (n != 0 && count > available / n)
      count = available + 1;
    else
      count *= n;
  }
  if (count != available || (file.size() - start - length) % width != 0) {
    refuse(path, fmt::format("holds {} bytes of data, but its shape is {} and its type '{}'",
                             file.size() - start - length, text_of(npy.shape), npy.type));
  }

  npy.count = count;
  npy.start = start + length;
  return npy;
}

}  // namespace

std::string text_of(const std::vector<size_t>& shape) {
  std::string text;
  for (const size_t n : shape) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return "[" + text + "]";
}

Npy read_npy(const std::string& path) {
  const File file =
      open_npy(path, {"<f2", "<f4", "<f8"}, "float16, float32 and float64 ('<f2', '<f4', '<f8')");
  Npy npy{file.shape, std::vector<float>(file.count)};
  for (size_t i = 0; i < file.count; ++i) {
    if (file.width == 2) npy.data[i] = half_to_float(file.at<uint16_t>(i));
    if (file.width == 4) npy.data[i] = file.at<float>(i);
    if (file.width == 8) npy.data[i] = static_cast<float>(file.at<double>(i));
  }
  return npy;
}

NpyIntegers read_npy_integers(const std::string& path, bool bools) {
  const File file =
      bools ? open_npy(path, {"<i4", "<i8", "|b1"}, "bool, int32 and int64 ('|b1', '<i4', '<i8')")
            : open_npy(path, {"<i4", "<i8"}, "int32 and int64 ('<i4', '<i8')");
  NpyIntegers npy{file.shape, std::vector<int64_t>(file.count), file.width == 1};
  for (size_t i = 0; i < file.count; ++i) {
    npy.data[i] = file.width == 1   ? file.at<uint8_t>(i) != 0
                  : file.width == 4 ? file.at<int32_t>(i)
                                    : file.at<int64_t>(i);
  }
  return npy;
}

void write_npy(const std::string& path, const std::vector<size_t>& shape,
               const std::vector<float>& data) {
  std::string dims;
  size_t count = 1;
  for (const size_t n : shape) {
    dims += fmt::format("{}, ", n);
    count *= n;
  }
  if (count != data.size()) throw std::invalid_argument("write_npy: shape and data differ");
  std::string header =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}), }}", dims);
  header.append(63 - (10 + header.size()) % 64, ' ');  // data starts at a multiple of 64
  header += '\n';
  const auto length = static_cast<uint16_t>(header.size());

  write_file(path, [&](std::ostream& out) {
    out << kMagic << '\1' << '\0' << static_cast<char>(length & 255)
        << static_cast<char>(length >> 8) << header;
    out.write(reinterpret_cast<const char*>(data.data()),
              static_cast<std::streamsize>(data.size() * sizeof(float)));
  });
}

}  // namespace fa

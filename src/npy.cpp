// SPDX-License-Identifier: Apache-2.0
// The format: numpy.lib.format, versions 1.0, 2.0 and 3.0. The header is a Python dict literal; it is
// read by a parser that knows the three keys and nothing else.
#include "cdgrab/npy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "cdgrab/error.hpp"
#include "io/file.hpp"

namespace cdgrab {
namespace {

static_assert(std::endian::native == std::endian::little, "data are read and written as they lie in memory");

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::uint64_t kMaxHeader = 64 * 1024;
constexpr std::size_t kHeaderAlignment = 64;

struct Header {
  std::string descr;
  bool fortran = false;
  std::vector<std::uint64_t> shape;
  std::uint64_t data_offset = 0;
};

// Whose words an error message carries.
struct Source {
  std::string_view where;
  std::string path;

  [[noreturn]] void fail(const std::string& problem) const {
    throw FileError(where, fmt::format("\"{}\": {}", path, problem));
  }
};

// {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const Source& source) : text_(text), source_(source) {}

  Header parse() {
    expect('{');
    while (!accept('}')) {
      parse_entry();
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) fail("the end of the header");
    require_all_keys();
    return std::move(header_);
  }

 private:
  void parse_entry() {
    const std::string key = parse_string();
    expect(':');
    if (key == "descr") {
      mark(seen_descr_, key);
      header_.descr = parse_descr();
    } else if (key == "fortran_order") {
      mark(seen_order_, key);
      header_.fortran = parse_bool();
    } else if (key == "shape") {
      mark(seen_shape_, key);
      header_.shape = parse_shape();
    } else {
      source_.fail(
          fmt::format("the header has an unknown key '{}'; allowed are 'descr', 'fortran_order' and "
                      "'shape': {}",
                      key, kSaveAgain));
    }
  }

  void mark(bool& seen, std::string_view key) const {
    if (seen)
      source_.fail(fmt::format("the header has the key '{}' twice; once is allowed: {}", key, kSaveAgain));
    seen = true;
  }

  void require_all_keys() const {
    for (const auto& [seen, key] : {std::pair(seen_descr_, "descr"), std::pair(seen_order_, "fortran_order"),
                                    std::pair(seen_shape_, "shape")}) {
      if (!seen) source_.fail(fmt::format("the header has no key '{}'; it needs one: {}", key, kSaveAgain));
    }
  }

  std::string parse_descr() {
    skip_space();
    if (at_ < text_.size() && text_[at_] == '[') {
      source_.fail(
          "the array has several fields per entry (a structured dtype); a plain number type is "
          "allowed: save one field with numpy.save(path, array['field'])");
    }
    return parse_string();
  }

  std::string parse_string() {
    skip_space();
    if (at_ == text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) fail("a quoted word");
    const char quote = text_[at_++];
    const std::size_t end = text_.find_first_of(std::string{quote, '\\'}, at_);
    if (end == std::string_view::npos || text_[end] != quote) fail("a quoted word without backslashes");
    std::string word(text_.substr(at_, end - at_));
    at_ = end + 1;
    return word;
  }

  bool parse_bool() {
    skip_space();
    for (const auto& [word, value] : {std::pair("False", false), std::pair("True", true)}) {
      if (text_.substr(at_).starts_with(word)) {
        at_ += std::string_view(word).size();
        return value;
      }
    }
    fail("True or False");
  }

  std::vector<std::uint64_t> parse_shape() {
    std::vector<std::uint64_t> shape;
    expect('(');
    while (!accept(')')) {
      if (shape.size() == kMaxDims) fail("a shape of at most 64 sizes");
      shape.push_back(parse_size());
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return shape;
  }

  std::uint64_t parse_size() {
    skip_space();
    if (at_ < text_.size() && text_[at_] == '-') fail("a size of 0 or more, not a negative one");
    const std::size_t start = at_;
    std::uint64_t size = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      const auto digit = static_cast<std::uint64_t>(text_[at_] - '0');
      if (__builtin_mul_overflow(size, std::uint64_t{10}, &size) ||
          __builtin_add_overflow(size, digit, &size)) {
        fail("a size below 2^64");
      }
    }
    if (at_ == start) fail("a size");
    return size;
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) ++at_;
  }

  bool accept(char symbol) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != symbol) return false;
    ++at_;
    return true;
  }

  void expect(char symbol) {
    if (!accept(symbol)) fail(fmt::format("'{}'", symbol));
  }

  [[noreturn]] void fail(std::string_view expected) const {
    constexpr std::size_t kExcerpt = 24;
    source_.fail(fmt::format("malformed header: expected {} at character {}, found {:?}; {}", expected, at_,
                             text_.substr(at_, kExcerpt), kSaveAgain));
  }

  static constexpr std::size_t kMaxDims = 64;
  static constexpr std::string_view kSaveAgain = "save the array again with numpy.save";

  std::string_view text_;
  const Source& source_;
  std::size_t at_ = 0;
  Header header_;
  bool seen_descr_ = false;
  bool seen_order_ = false;
  bool seen_shape_ = false;
};

std::string read_text(const io::InputFile& file, std::uint64_t offset, std::uint64_t length) {
  std::string text(static_cast<std::size_t>(length), '\0');
  file.read_at(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

// Magic, two version bytes, then the header's length: 2 bytes in version 1, 4 in versions 2 and 3.
Header read_header(const io::InputFile& file, const Source& source) {
  constexpr std::uint64_t kVersionEnd = 8;
  const std::string start = read_text(file, 0, std::min(file.size(), kVersionEnd));
  if (!start.starts_with(kMagic) || start.size() < kVersionEnd) {
    source.fail(fmt::format("not a .npy file: it begins with {:?}, not with {:?}; write one with numpy.save",
                            start.substr(0, kMagic.size()), kMagic));
  }
  const auto major = static_cast<unsigned char>(start[6]);
  const auto minor = static_cast<unsigned char>(start[7]);
  if (major < 1 || major > 3 || minor != 0) {
    source.fail(
        fmt::format(".npy version {}.{}; allowed are 1.0, 2.0 and 3.0: save the array again with "
                    "numpy.save",
                    major, minor));
  }
  const std::uint64_t length_bytes = major == 1 ? 2 : 4;
  const std::uint64_t header_start = kVersionEnd + length_bytes;
  if (file.size() < header_start) {
    source.fail(fmt::format("truncated: {} bytes, too few for a header; copy the file again", file.size()));
  }
  std::uint64_t length = 0;
  file.read_at(kVersionEnd, std::as_writable_bytes(std::span(&length, 1)).first(length_bytes));
  if (length > kMaxHeader) {
    source.fail(
        fmt::format("the header claims {} bytes; at most {} are allowed: save the array again with "
                    "numpy.save",
                    length, kMaxHeader));
  }
  if (length > file.size() - header_start) {
    source.fail(fmt::format("truncated: the header claims {} bytes, {} are left; copy the file again", length,
                            file.size() - header_start));
  }
  Header header = HeaderParser(read_text(file, header_start, length), source).parse();
  header.data_offset = header_start + length;
  return header;
}

std::string python_shape(const std::vector<std::uint64_t>& shape) {
  return fmt::format("({}{})", fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
}

struct DataType {
  std::string_view descr;
  std::string_view name;
  std::size_t size;
};

constexpr std::array<DataType, 2> kMatrixTypes{{{"<f4", "float32", 4}, {"<f8", "float64", 8}}};
constexpr std::array<DataType, 4> kOrderTypes{
    {{"<i4", "int32", 4}, {"<i8", "int64", 8}, {"<u4", "uint32", 4}, {"<u8", "uint64", 8}}};
constexpr std::array<DataType, 8> kIntegerTypes{{{"<i8", "int64", 8},
                                                 {"<i4", "int32", 4},
                                                 {"<i2", "int16", 2},
                                                 {"|i1", "int8", 1},
                                                 {"<u8", "uint64", 8},
                                                 {"<u4", "uint32", 4},
                                                 {"<u2", "uint16", 2},
                                                 {"|u1", "uint8", 1}}};

const DataType& find_type(const Header& header, std::span<const DataType> allowed, const Source& source) {
  const std::string_view descr = header.descr;
  std::vector<std::string_view> names;
  for (const DataType& type : allowed) {
    if (descr == type.descr) return type;
    names.push_back(type.name);
  }
  const std::string choice = fmt::format("{}", fmt::join(names, ", "));
  if (descr.ends_with('O')) {
    source.fail(
        fmt::format("dtype '{}' is Python objects, which would need pickle and may run code; allowed "
                    "are {}: convert with numpy.save(path, array.astype('{}'))",
                    descr, choice, names.front()));
  }
  if (descr.starts_with('>')) {
    source.fail(
        fmt::format("dtype '{}' is big-endian; allowed are little-endian {}: convert with "
                    "numpy.save(path, array.astype(array.dtype.newbyteorder('<')))",
                    descr, choice));
  }
  source.fail(fmt::format("dtype '{}'; allowed are {}: convert with numpy.save(path, array.astype('{}'))",
                          descr, choice, names.front()));
}

// Entries the shape asks for; the file must hold exactly those, so nothing larger is ever allocated.
std::uint64_t require_size(const Header& header, std::size_t item_size, const io::InputFile& file,
                           const Source& source) {
  std::uint64_t bytes = item_size;
  bool empty = false;
  for (const std::uint64_t size : header.shape) {
    empty |= size == 0;
    if (__builtin_mul_overflow(bytes, std::max(size, std::uint64_t{1}), &bytes)) {
      source.fail(
          fmt::format("shape {} asks for more than 2^64 bytes; the file has {}: copy or save it again",
                      python_shape(header.shape), file.size()));
    }
  }
  if (empty) bytes = 0;
  const std::uint64_t present = file.size() - header.data_offset;
  if (present != bytes) {
    source.fail(
        fmt::format("{}: shape {} of '{}' asks for {} bytes of data, the file has {}; copy or save it "
                    "again",
                    present < bytes ? "truncated" : "trailing bytes", python_shape(header.shape),
                    header.descr, bytes, present));
  }
  return bytes / item_size;
}

void require_dims(const Header& header, std::size_t dims, std::string_view remedy, const Source& source) {
  if (header.shape.size() == dims) return;
  source.fail(fmt::format("the array has {} dimensions, shape {}; {} allowed: {}", header.shape.size(),
                          python_shape(header.shape), dims == 1 ? "1 is" : "2 are", remedy));
}

void require_count(std::uint64_t count, const Source& source) {
  if (count > kMaxExamples) {
    source.fail(
        fmt::format("{} examples; at most {} are allowed: order groups of examples", count, kMaxExamples));
  }
}

template <class T>
std::vector<T> allocate(std::uint64_t count, const Source& source) {
  try {
    return std::vector<T>(static_cast<std::size_t>(count));
  } catch (const std::exception&) {
    source.fail(
        fmt::format("{} numbers of {} bytes do not fit in memory; use a smaller file", count, sizeof(T)));
  }
}

// Column by column on disk, row by row in memory: by tiles small enough for the cache.
template <class T>
void read_transposed(const io::InputFile& file, std::uint64_t data_offset, Matrix<T>& matrix) {
  constexpr std::size_t kTileRows = 2048;
  constexpr std::size_t kTileColumns = 16;
  std::vector<T> tile(kTileRows * kTileColumns);
  for (std::size_t row = 0; row < matrix.rows; row += kTileRows) {
    const std::size_t rows = std::min(kTileRows, matrix.rows - row);
    for (std::size_t column = 0; column < matrix.dim; column += kTileColumns) {
      const std::size_t columns = std::min(kTileColumns, matrix.dim - column);
      for (std::size_t c = 0; c < columns; ++c) {
        file.read_at(data_offset + ((column + c) * matrix.rows + row) * sizeof(T),
                     std::as_writable_bytes(std::span(tile).subspan(c * kTileRows, rows)));
      }
      for (std::size_t r = 0; r < rows; ++r) {
        T* out = &matrix.values[(row + r) * matrix.dim + column];
        for (std::size_t c = 0; c < columns; ++c) out[c] = tile[c * kTileRows + r];
      }
    }
  }
}

template <class T>
Matrix<T> read_values(const io::InputFile& file, const Header& header, const Source& source) {
  const std::uint64_t count = require_size(header, sizeof(T), file, source);
  Matrix<T> matrix{static_cast<std::size_t>(header.shape[0]), static_cast<std::size_t>(header.shape[1]),
                   allocate<T>(count, source)};
  if (header.fortran) {
    read_transposed(file, header.data_offset, matrix);
  } else {
    file.read_at(header.data_offset, std::as_writable_bytes(std::span(matrix.values)));
  }
  return matrix;
}

// `convert(entry, its position)` refuses an entry or makes it an Out.
template <class T, class Out, class Convert>
std::vector<Out> read_entries(const io::InputFile& file, const Header& header, const Source& source,
                              const Convert& convert) {
  constexpr std::size_t kChunk = 64 * 1024;
  const std::uint64_t count = require_size(header, sizeof(T), file, source);
  require_count(count, source);
  std::vector<Out> all = allocate<Out>(count, source);
  std::vector<T> chunk(std::min(kChunk, all.size()));
  for (std::size_t start = 0; start < all.size(); start += kChunk) {
    const std::span<T> entries = std::span(chunk).first(std::min(kChunk, all.size() - start));
    file.read_at(header.data_offset + start * sizeof(T), std::as_writable_bytes(entries));
    for (std::size_t k = 0; k < entries.size(); ++k) all[start + k] = convert(entries[k], start + k);
  }
  return all;
}

// A 1-d array of one of `types`.
template <class Out, class Convert>
std::vector<Out> read_array(const io::InputFile& file, const Source& source, std::span<const DataType> types,
                            const Convert& convert) {
  const Header header = read_header(file, source);
  const std::string_view descr = find_type(header, types, source).descr;
  require_dims(header, 1, "save array.ravel()", source);
  const auto read_as = [&]<class T>(T) { return read_entries<T, Out>(file, header, source, convert); };
  if (descr == "|i1") return read_as(std::int8_t{});
  if (descr == "|u1") return read_as(std::uint8_t{});
  if (descr == "<i2") return read_as(std::int16_t{});
  if (descr == "<u2") return read_as(std::uint16_t{});
  if (descr == "<i4") return read_as(std::int32_t{});
  if (descr == "<u4") return read_as(std::uint32_t{});
  if (descr == "<i8") return read_as(std::int64_t{});
  return read_as(std::uint64_t{});
}

// The dict padded with spaces and ended by a newline, so that the data start at a multiple of 64.
std::string order_header(std::size_t count) {
  std::string dict = fmt::format("{{'descr': '<i8', 'fortran_order': False, 'shape': ({},), }}", count);
  const std::size_t prefix = kMagic.size() + 4;
  const std::size_t unpadded = prefix + dict.size() + 1;
  dict.append((kHeaderAlignment - unpadded % kHeaderAlignment) % kHeaderAlignment, ' ');
  dict.push_back('\n');
  std::string header(kMagic);
  header += {'\x01', '\x00', static_cast<char>(dict.size() & 0xFF), static_cast<char>(dict.size() >> 8)};
  return header + dict;
}

}  // namespace

AnyMatrix read_npy_matrix(const std::filesystem::path& path) {
  const Source source{"read_npy_matrix", path.string()};
  const io::InputFile file(path, source.where);
  const Header header = read_header(file, source);
  const DataType& type = find_type(header, kMatrixTypes, source);
  require_dims(header, 2, "save array.reshape(examples, -1)", source);
  require_count(header.shape[0], source);
  if (type.size == sizeof(float)) return read_values<float>(file, header, source);
  return read_values<double>(file, header, source);
}

std::vector<Index> read_npy_order(const std::filesystem::path& path) {
  const Source source{"read_npy_order", path.string()};
  const io::InputFile file(path, source.where);
  return read_array<Index>(file, source, kOrderTypes, [&](auto entry, std::size_t position) {
    if (!std::in_range<Index>(entry) || static_cast<Index>(entry) >= kMaxExamples) {
      source.fail(fmt::format("entry {} is {}; an index is allowed to be 0..{}: save the order again",
                              position, entry, kMaxExamples - 1));
    }
    return static_cast<Index>(entry);
  });
}

std::vector<std::int64_t> read_npy_integers(const std::filesystem::path& path) {
  const Source source{"read_npy_integers", path.string()};
  const io::InputFile file(path, source.where);
  return read_array<std::int64_t>(file, source, kIntegerTypes, [&](auto entry, std::size_t position) {
    if (!std::in_range<std::int64_t>(entry)) {
      source.fail(fmt::format("entry {} is {}; a number up to 2^63 - 1 is allowed: save smaller ones",
                              position, entry));
    }
    return static_cast<std::int64_t>(entry);
  });
}

void write_npy_order(const std::filesystem::path& path, std::span<const Index> order) {
  const std::string header = order_header(order.size());
  const std::vector<std::int64_t> entries(order.begin(), order.end());
  const std::array<std::span<const std::byte>, 2> parts{std::as_bytes(std::span(header)),
                                                        std::as_bytes(std::span(entries))};
  io::write_atomically(path, parts, "write_npy_order");
}

}  // namespace cdgrab

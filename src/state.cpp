// SPDX-License-Identifier: Apache-2.0
// docs/format.md describes the file.
#include "cdgrab/state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>
#include <utility>

#include "cdgrab/error.hpp"
#include "io/file.hpp"

// In the library's own namespace of symbols: nothing to link, nothing to clash with.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace cdgrab {
namespace {

static_assert(std::endian::native == std::endian::little, "arrays are stored as they lie in memory");

using nlohmann::json;

constexpr std::string_view kFormat = "cdgrab.state";
constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::string_view kTextPrefix = "text:";
constexpr std::string_view kChecksumStart = R"("checksum":")";
constexpr std::string_view kBlankChecksum = "0000000000000000";
constexpr std::string_view kHexDigits = "0123456789abcdef";
constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kHeaderAlignment = 8;
constexpr std::uint64_t kMaxHeader = 100'000'000;
constexpr std::size_t kMaxDims = 32;

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  std::size_t size;
};

constexpr std::array<DTypeInfo, 6> kDTypes{{{DType::kU8, "U8", 1},
                                            {DType::kU16, "U16", 2},
                                            {DType::kU32, "U32", 4},
                                            {DType::kI64, "I64", 8},
                                            {DType::kF32, "F32", 4},
                                            {DType::kF64, "F64", 8}}};

const DTypeInfo& info(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)]; }

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, std::uint8_t>) return DType::kU8;
  if constexpr (std::is_same_v<T, std::uint16_t>) return DType::kU16;
  if constexpr (std::is_same_v<T, std::uint32_t>) return DType::kU32;
  if constexpr (std::is_same_v<T, std::int64_t>) return DType::kI64;
  if constexpr (std::is_same_v<T, float>) return DType::kF32;
  if constexpr (std::is_same_v<T, double>) return DType::kF64;
}

// Bytes an array of this shape takes; nothing if they cannot be counted.
std::optional<std::uint64_t> byte_count(DType dtype, std::span<const std::uint64_t> shape) {
  std::uint64_t bytes = dtype_size(dtype);
  bool empty = false;
  for (const std::uint64_t size : shape) {
    empty |= size == 0;
    if (__builtin_mul_overflow(bytes, std::max(size, std::uint64_t{1}), &bytes)) return std::nullopt;
  }
  return empty ? 0 : bytes;
}

bool is_utf8(std::string_view text) {
  try {
    static_cast<void>(json(text).dump());
    return true;
  } catch (const json::exception&) {
    return false;
  }
}

void require_key(std::string_view key) {
  if (key.empty() || key == kMetadataKey || !is_utf8(key)) {
    throw UserError("State::set",
                    fmt::format("the key {:?} cannot be stored; a key is UTF-8, not empty and not "
                                "\"{}\": choose another",
                                key, kMetadataKey));
  }
}

std::string_view kind_name(const State::Value& value) {
  constexpr std::array<std::string_view, std::variant_size_v<State::Value>> kNames{"an integer", "a number",
                                                                                   "a text", "an array"};
  return kNames[value.index()];
}

template <class T>
const T& get(const State::Value& value, std::string_view key, std::string_view wanted) {
  if (const T* found = std::get_if<T>(&value)) return *found;
  throw StateMismatch("state", fmt::format("\"{}\" is {}, not {} as expected; load a state saved by the same "
                                           "kind of object",
                                           key, kind_name(value), wanted));
}

}  // namespace

std::size_t dtype_size(DType dtype) { return info(dtype).size; }
std::string_view dtype_name(DType dtype) { return info(dtype).name; }

void State::set(std::string_view key, std::int64_t value) {
  require_key(key);
  entries_.insert_or_assign(std::string(key), value);
}

void State::set(std::string_view key, double value) {
  require_key(key);
  entries_.insert_or_assign(std::string(key), value);
}

void State::set(std::string_view key, std::string value) {
  require_key(key);
  if (!is_utf8(value)) {
    throw UserError("State::set",
                    fmt::format("the text of \"{}\", {:?}, is not UTF-8; only UTF-8 can be stored: "
                                "rename what it names",
                                key, value));
  }
  entries_.insert_or_assign(std::string(key), std::move(value));
}

void State::set(std::string_view key, Array value) {
  require_key(key);
  if (value.shape.empty() || value.shape.size() > kMaxDims) {
    throw UserError("State::set", fmt::format("the array \"{}\" has {} dimensions; 1..{} are allowed: set a "
                                              "single value as an integer or a number",
                                              key, value.shape.size(), kMaxDims));
  }
  if (byte_count(value.dtype, value.shape) != value.bytes.size()) {
    throw UserError("State::set",
                    fmt::format("the array \"{}\" has {} bytes, which its shape and dtype {} do not "
                                "ask for; give as many bytes as the shape's product times {}",
                                key, value.bytes.size(), dtype_name(value.dtype), dtype_size(value.dtype)));
  }
  entries_.insert_or_assign(std::string(key), std::move(value));
}

template <class T>
void State::set(std::string_view key, std::span<const T> values) {
  const std::span<const std::byte> bytes = std::as_bytes(values);
  set(key, Array{dtype_of<T>(), {values.size()}, {bytes.begin(), bytes.end()}});
}

std::int64_t State::integer(std::string_view key) const {
  return get<std::int64_t>(at(key), name(key), "an integer");
}
double State::number(std::string_view key) const { return get<double>(at(key), name(key), "a number"); }
const std::string& State::text(std::string_view key) const {
  return get<std::string>(at(key), name(key), "a text");
}
const Array& State::array(std::string_view key) const { return get<Array>(at(key), name(key), "an array"); }

template <class T>
std::vector<T> State::elements(std::string_view key, std::size_t size) const {
  const Array& found = array(key);
  if (found.dtype != dtype_of<T>()) {
    throw StateMismatch("state",
                        fmt::format("\"{}\" holds {}, not {} as expected; load a state saved by the same "
                                    "kind of object",
                                    name(key), dtype_name(found.dtype), dtype_name(dtype_of<T>())));
  }
  if (found.shape.size() != 1 || found.shape[0] != size) {
    throw StateMismatch("state",
                        fmt::format("\"{}\" has {} dimensions and {} elements, not 1 and {} as expected; "
                                    "load a state saved with the same sizes",
                                    name(key), found.shape.size(), found.bytes.size() / sizeof(T), size));
  }
  std::vector<T> values(size);
  if (size > 0) std::memcpy(values.data(), found.bytes.data(), found.bytes.size());
  return values;
}

bool State::contains(std::string_view key) const { return entries_.find(key) != entries_.end(); }

const State::Value& State::at(std::string_view key) const {
  const auto found = entries_.find(key);
  if (found != entries_.end()) return found->second;
  throw StateMismatch(
      "state", fmt::format("\"{}\" is missing; load a state saved by the same kind of object", name(key)));
}

State State::part(std::string_view prefix) const {
  State found;
  const std::string start = std::string(prefix) + ".";
  found.prefix_ = prefix_ + start;
  for (auto entry = entries_.lower_bound(start); entry != entries_.end() && entry->first.starts_with(start);
       ++entry)
    found.entries_.emplace(entry->first.substr(start.size()), entry->second);
  return found;
}

void State::set_part(std::string_view prefix, const State& part) {
  for (const auto& [key, value] : part.entries_) {
    const std::string whole = std::string(prefix) + "." + key;
    require_key(whole);
    entries_.insert_or_assign(whole, value);
  }
}

#define CDGRAB_INSTANTIATE(T)                                        \
  template void State::set<T>(std::string_view, std::span<const T>); \
  template std::vector<T> State::elements<T>(std::string_view, std::size_t) const;
CDGRAB_INSTANTIATE(std::uint8_t)
CDGRAB_INSTANTIATE(std::uint16_t)
CDGRAB_INSTANTIATE(std::uint32_t)
CDGRAB_INSTANTIATE(std::int64_t)
CDGRAB_INSTANTIATE(float)
CDGRAB_INSTANTIATE(double)
#undef CDGRAB_INSTANTIATE

namespace {

// --- the checksum ---

// Of the file cut in pieces, with the digits blank.
class Checksum {
 public:
  Checksum() { XXH3_64bits_reset(&state_); }
  void add(std::span<const std::byte> bytes) { XXH3_64bits_update(&state_, bytes.data(), bytes.size()); }
  [[nodiscard]] std::string text() const { return fmt::format("{:016x}", XXH3_64bits_digest(&state_)); }

 private:
  XXH3_state_t state_;
};

// --- writing ---

struct TensorView {
  std::string_view key;
  DType dtype;
  std::span<const std::uint64_t> shape;
  std::span<const std::byte> bytes;
};

std::optional<TensorView> view_tensor(std::string_view key, const State::Value& value) {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) {
    return TensorView{key, DType::kI64, {}, std::as_bytes(std::span(integer, 1))};
  }
  if (const auto* number = std::get_if<double>(&value)) {
    return TensorView{key, DType::kF64, {}, std::as_bytes(std::span(number, 1))};
  }
  if (const auto* array = std::get_if<Array>(&value)) {
    return TensorView{key, array->dtype, array->shape, array->bytes};
  }
  return std::nullopt;
}

// Wide elements first, then by key, so that every tensor is aligned to its element as readers that
// map the file ask for.
std::vector<TensorView> view_tensors(const State& state) {
  std::vector<TensorView> tensors;
  for (const auto& [key, value] : state.entries()) {
    if (const std::optional<TensorView> tensor = view_tensor(key, value)) tensors.push_back(*tensor);
  }
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorView& a, const TensorView& b) {
    return dtype_size(a.dtype) > dtype_size(b.dtype);
  });
  return tensors;
}

std::string json_text(std::string_view text) { return json(text).dump(); }

std::string metadata_text(const State& state) {
  std::string text = fmt::format(R"({{"format":"{}","version":"{}",{}{}")", kFormat, kStateVersion,
                                 kChecksumStart, kBlankChecksum);
  for (const auto& [key, value] : state.entries()) {
    const auto* entry = std::get_if<std::string>(&value);
    if (entry == nullptr) continue;
    text += fmt::format(",{}:{}", json_text(std::string(kTextPrefix) + key), json_text(*entry));
  }
  return text + "}";
}

std::string header_text(const State& state, const std::vector<TensorView>& tensors) {
  std::string text = fmt::format(R"({{"{}":{})", kMetadataKey, metadata_text(state));
  std::uint64_t offset = 0;
  for (const TensorView& tensor : tensors) {
    const std::uint64_t end = offset + tensor.bytes.size();
    text += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", json_text(tensor.key),
                        dtype_name(tensor.dtype), fmt::join(tensor.shape, ","), offset, end);
    offset = end;
  }
  text += "}";
  text.append((kHeaderAlignment - text.size() % kHeaderAlignment) % kHeaderAlignment, ' ');
  return text;
}

// The pieces of a file, pointing into the state.
struct Encoding {
  std::uint64_t header_length = 0;
  std::string header;
  std::vector<TensorView> tensors;

  [[nodiscard]] std::vector<std::span<const std::byte>> parts() const {
    std::vector<std::span<const std::byte>> parts{std::as_bytes(std::span(&header_length, 1)),
                                                  std::as_bytes(std::span(header))};
    for (const TensorView& tensor : tensors) parts.push_back(tensor.bytes);
    return parts;
  }
};

Encoding encode(const State& state) {
  Encoding encoding;
  encoding.tensors = view_tensors(state);
  encoding.header = header_text(state, encoding.tensors);
  encoding.header_length = encoding.header.size();
  if (encoding.header_length > kMaxHeader) {
    throw UserError("encode_state",
                    fmt::format("keys and texts take {} bytes; at most {} are allowed: store long "
                                "ones as arrays",
                                encoding.header_length, kMaxHeader));
  }
  Checksum checksum;
  for (const std::span<const std::byte> part : encoding.parts()) checksum.add(part);
  const std::string digits = checksum.text();
  const std::size_t at = encoding.header.find(kChecksumStart) + kChecksumStart.size();
  encoding.header.replace(at, digits.size(), digits);
  return encoding;
}

// --- reading ---

struct TensorEntry {
  std::optional<DType> dtype;
  std::optional<std::vector<std::uint64_t>> shape;
  std::optional<std::vector<std::uint64_t>> offsets;
};

struct HeaderEntries {
  std::map<std::string, std::string, std::less<>> metadata;
  std::map<std::string, TensorEntry, std::less<>> tensors;
};

// Takes the header's events one by one and keeps only what the format knows, so that a hostile header
// costs no more than a small multiple of its own length. Every method returns false to stop.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  HeaderEntries entries;
  std::string problem;

  bool null() override { return refuse_value("null"); }
  bool boolean(bool) override { return refuse_value("a boolean"); }
  bool number_integer(number_integer_t) override { return refuse_value("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return refuse_value("a fractional or huge number");
  }
  bool binary(binary_t&) override { return refuse_value("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::kList) return refuse_value("a number");
    if (list_->size() == kMaxDims) return refuse(fmt::format("a list has more than {} numbers", kMaxDims));
    list_->push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      entries.metadata.find(key_)->second = std::move(value);
      return true;
    }
    if (place_ != Place::kTensor || field_ != "dtype") return refuse_value("a text");
    const auto found =
        std::find_if(kDTypes.begin(), kDTypes.end(), [&](const auto& d) { return d.name == value; });
    if (found == kDTypes.end()) {
      return refuse(
          fmt::format("the dtype of \"{}\" is \"{}\"; allowed are U8, U16, U32, I64, F32, F64", key_, value));
    }
    tensor_->dtype = found->dtype;
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTop) {
      place_ = key_ == kMetadataKey ? Place::kMetadata : Place::kTensor;
    } else {
      return refuse_value("an object");
    }
    return true;
  }

  bool key(string_t& value) override {
    if (place_ == Place::kTop) return open_entry(std::move(value));
    if (place_ == Place::kMetadata) {
      key_ = std::move(value);
      return entries.metadata.emplace(key_, "").second || refuse_duplicate(key_);
    }
    return open_field(std::move(value));
  }

  bool end_object() override {
    if (place_ == Place::kTop) return true;
    const bool complete =
        place_ == Place::kMetadata || (tensor_->dtype && tensor_->shape && tensor_->offsets);
    place_ = Place::kTop;
    return complete || refuse(fmt::format("\"{}\" lacks one of dtype, shape and data_offsets", key_));
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::kTensor || field_ == "dtype") return refuse_value("a list");
    list_ = field_ == "shape" ? &tensor_->shape.emplace() : &tensor_->offsets.emplace();
    place_ = Place::kList;
    return true;
  }

  bool end_array() override {
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(std::size_t at, const std::string&, const json::exception&) override {
    return refuse(fmt::format("the header is not valid JSON at byte {}", at));
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kList };

  bool open_entry(std::string name) {
    key_ = std::move(name);
    if (key_ == kMetadataKey) return !std::exchange(seen_metadata_, true) || refuse_duplicate(key_);
    const auto [entry, added] = entries.tensors.try_emplace(key_);
    tensor_ = &entry->second;
    return added || refuse_duplicate(key_);
  }

  bool open_field(std::string name) {
    field_ = std::move(name);
    if (field_ == "dtype") return !tensor_->dtype || refuse_duplicate(field_);
    if (field_ == "shape") return !tensor_->shape || refuse_duplicate(field_);
    if (field_ == "data_offsets") return !tensor_->offsets || refuse_duplicate(field_);
    return refuse(fmt::format("\"{}\" has an unknown field \"{}\"", key_, field_));
  }

  bool refuse_duplicate(std::string_view name) { return refuse(fmt::format("\"{}\" appears twice", name)); }
  bool refuse_value(std::string_view kind) {
    return refuse(fmt::format("the header holds {} where it may not, at \"{}\"", kind, key_));
  }
  bool refuse(std::string text) {
    problem = std::move(text);
    return false;
  }

  Place place_ = Place::kStart;
  bool seen_metadata_ = false;
  std::string key_;
  std::string field_;
  TensorEntry* tensor_ = nullptr;
  std::vector<std::uint64_t>* list_ = nullptr;
};

class Decoder {
 public:
  Decoder(std::span<const std::byte> file, std::string_view where) : file_(file), where_(where) {}

  State decode() {
    split();
    verify_checksum();
    parse();
    read_metadata();
    read_tensors();
    return std::move(state_);
  }

 private:
  void split() {
    if (file_.size() < kLengthBytes) {
      damaged(fmt::format("{} bytes, too few for a state", file_.size()));
    }
    std::uint64_t length = 0;
    std::memcpy(&length, file_.data(), kLengthBytes);
    const std::uint64_t most = std::min<std::uint64_t>(file_.size() - kLengthBytes, kMaxHeader);
    if (length > most) {
      damaged(fmt::format("the header claims {} bytes, {} are possible", length, most));
    }
    const auto* text = reinterpret_cast<const char*>(file_.data() + kLengthBytes);
    header_ = std::string_view(text, static_cast<std::size_t>(length));
    data_ = file_.subspan(kLengthBytes + header_.size());
    if (!header_.starts_with('{')) damaged("the header does not begin with '{'");
  }

  // Found by its spelling, before anything is believed: the bytes "checksum":" cannot stand inside a
  // JSON text, where a quote is escaped.
  void verify_checksum() const {
    const std::size_t start = header_.find(kChecksumStart);
    if (start == std::string_view::npos) damaged("it has no checksum");
    const std::size_t at = start + kChecksumStart.size();
    if (header_.find(kChecksumStart, at) != std::string_view::npos) damaged("it has two checksums");
    const std::string_view digits = header_.substr(at, kBlankChecksum.size());
    if (digits.size() != kBlankChecksum.size() ||
        digits.find_first_not_of(kHexDigits) != std::string_view::npos) {
      damaged(fmt::format("the checksum is {:?}, not 16 digits of 0-9a-f", digits));
    }
    Checksum checksum;
    checksum.add(file_.first(kLengthBytes + at));
    checksum.add(std::as_bytes(std::span(kBlankChecksum)));
    checksum.add(file_.subspan(kLengthBytes + at + digits.size()));
    if (checksum.text() != digits) {
      damaged(fmt::format("the bytes give the checksum {}, the file says {}", checksum.text(), digits));
    }
  }

  void parse() {
    HeaderReader reader;
    if (!json::sax_parse(header_.begin(), header_.end(), &reader)) damaged(reader.problem);
    entries_ = std::move(reader.entries);
  }

  [[nodiscard]] const std::string& metadata(std::string_view key) const {
    const auto found = entries_.metadata.find(key);
    if (found == entries_.metadata.end()) damaged(fmt::format("its metadata has no \"{}\"", key));
    return found->second;
  }

  void read_metadata() {
    if (metadata("format") != kFormat) {
      damaged(fmt::format("its format is \"{}\", not \"{}\"", metadata("format"), kFormat));
    }
    static_cast<void>(metadata("checksum"));
    if (metadata("version") != std::to_string(kStateVersion)) {
      throw StateMismatch(where_,
                          fmt::format("version is \"{}\"; this library reads \"{}\": use the cdgrab that "
                                      "wrote it",
                                      metadata("version"), kStateVersion));
    }
    for (const auto& [key, value] : entries_.metadata) {
      if (key == "format" || key == "version" || key == "checksum") continue;
      if (!key.starts_with(kTextPrefix) || key.size() == kTextPrefix.size()) {
        damaged(fmt::format("its metadata has an unknown entry \"{}\"", key));
      }
      add(key.substr(kTextPrefix.size()), value);
    }
  }

  void read_tensors() {
    require_coverage();
    for (const auto& [key, tensor] : entries_.tensors) add_tensor(key, tensor);
  }

  // The tensors' ranges, in order of their places, follow each other from the first byte of the data
  // to the last. After this no shape can ask for more bytes than the file has.
  void require_coverage() const {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
    for (const auto& [key, tensor] : entries_.tensors) {
      const std::vector<std::uint64_t>& offsets = *tensor.offsets;
      if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_.size()) {
        damaged(fmt::format("the data_offsets of \"{}\" are not two places in {} bytes of data", key,
                            data_.size()));
      }
      if (byte_count(*tensor.dtype, *tensor.shape) != offsets[1] - offsets[0]) {
        damaged(
            fmt::format("the shape of \"{}\" does not ask for its {} bytes", key, offsets[1] - offsets[0]));
      }
      ranges.emplace_back(offsets[0], offsets[1]);
    }
    std::sort(ranges.begin(), ranges.end());
    std::uint64_t covered = 0;
    for (const auto& [begin, end] : ranges) {
      if (begin != covered)
        damaged(fmt::format("gap or overlap in the data at byte {}", std::min(begin, covered)));
      covered = end;
    }
    if (covered != data_.size()) {
      damaged(fmt::format("{} bytes of data belong to nothing", data_.size() - covered));
    }
  }

  void add_tensor(const std::string& key, const TensorEntry& tensor) {
    const std::uint64_t begin = (*tensor.offsets)[0];
    const std::span<const std::byte> bytes = data_.subspan(
        static_cast<std::size_t>(begin), static_cast<std::size_t>((*tensor.offsets)[1] - begin));
    if (!tensor.shape->empty()) {
      add(key, Array{*tensor.dtype, *tensor.shape, {bytes.begin(), bytes.end()}});
    } else if (tensor.dtype == DType::kI64) {
      add(key, scalar<std::int64_t>(bytes));
    } else if (tensor.dtype == DType::kF64) {
      add(key, scalar<double>(bytes));
    } else {
      damaged(
          fmt::format("\"{}\" is a single {}; a single value is I64 or F64", key, dtype_name(*tensor.dtype)));
    }
  }

  template <class T>
  static T scalar(std::span<const std::byte> bytes) {
    T value;
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }

  template <class T>
  void add(const std::string& key, T value) {
    if (key.empty()) damaged("a key is empty");
    if (state_.contains(key)) damaged(fmt::format("\"{}\" appears as a text and as a tensor", key));
    if (key == kMetadataKey) damaged(fmt::format("a text is called \"{}\"", key));
    state_.set(key, std::move(value));
  }

  [[noreturn]] void damaged(std::string_view problem) const {
    throw FileError(
        where_, fmt::format("not a cdgrab state, or a damaged one: {}; use a copy that is whole", problem));
  }

  std::span<const std::byte> file_;
  std::string_view where_;
  std::string_view header_;
  std::span<const std::byte> data_;
  HeaderEntries entries_;
  State state_;
};

}  // namespace

void save_state(const State& state, const std::filesystem::path& path) {
  io::write_atomically(path, encode(state).parts(), "save_state");
}

State load_state(const std::filesystem::path& path) {
  return decode_state(io::read_file(path, "load_state"), fmt::format("load_state \"{}\"", path.string()));
}

std::vector<std::byte> encode_state(const State& state) {
  std::vector<std::byte> bytes;
  const Encoding encoding = encode(state);
  for (const std::span<const std::byte> part : encoding.parts())
    bytes.insert(bytes.end(), part.begin(), part.end());
  return bytes;
}

State decode_state(std::span<const std::byte> bytes, std::string_view where) {
  return Decoder(bytes, where).decode();
}

}  // namespace cdgrab

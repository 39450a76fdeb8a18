// SPDX-License-Identifier: Apache-2.0
// A state: named integers, numbers, texts and arrays. Parts write their own keys; the container
// knows only bytes. On disk it is a versioned, checksummed safetensors file (docs/format.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace cdgrab {

enum class DType { kU8, kU16, kU32, kI64, kF32, kF64 };

/// Bytes of one element.
std::size_t dtype_size(DType dtype);
/// safetensors' name: "U8", "F32", ..
std::string_view dtype_name(DType dtype);

/// A contiguous array, row by row, in the machine's (little-endian) layout.
struct Array {
  DType dtype = DType::kU8;
  std::vector<std::uint64_t> shape;
  std::vector<std::byte> bytes;

  bool operator==(const Array&) const = default;
};

class State {
 public:
  using Value = std::variant<std::int64_t, double, std::string, Array>;

  void set(std::string_view key, std::int64_t value);
  void set(std::string_view key, double value);
  void set(std::string_view key, std::string value);
  void set(std::string_view key, Array value);
  /// A 1-d array of the elements; T is one of the types that DType names.
  template <class T>
  void set(std::string_view key, std::span<const T> values);

  /// Each throws StateMismatch naming the key when it is missing or of another kind.
  [[nodiscard]] std::int64_t integer(std::string_view key) const;
  [[nodiscard]] double number(std::string_view key) const;
  [[nodiscard]] const std::string& text(std::string_view key) const;
  [[nodiscard]] const Array& array(std::string_view key) const;
  /// The elements of a 1-d array of exactly `size` elements of type T.
  template <class T>
  [[nodiscard]] std::vector<T> elements(std::string_view key, std::size_t size) const;

  [[nodiscard]] bool contains(std::string_view key) const;

  /// The values under "prefix.KEY", as KEY. Errors about them still name the whole key.
  [[nodiscard]] State part(std::string_view prefix) const;
  void set_part(std::string_view prefix, const State& part);
  /// The key by which errors speak of it: that of the state which this one is a part of.
  [[nodiscard]] std::string name(std::string_view key) const { return prefix_ + std::string(key); }

  [[nodiscard]] const std::map<std::string, Value, std::less<>>& entries() const { return entries_; }

  bool operator==(const State& other) const { return entries_ == other.entries_; }

 private:
  [[nodiscard]] const Value& at(std::string_view key) const;

  std::string prefix_;  ///< "" or "prefix."
  std::map<std::string, Value, std::less<>> entries_;
};

/// The version this library writes, and the only one it reads so far.
inline constexpr int kStateVersion = 1;

/// Written beside and renamed: `path` is the old file or the whole new one, at every moment.
void save_state(const State& state, const std::filesystem::path& path);

/// Throws FileError for a file that is damaged or not one of ours, StateMismatch for another version.
State load_state(const std::filesystem::path& path);

/// The same bytes, in memory.
std::vector<std::byte> encode_state(const State& state);
State decode_state(std::span<const std::byte> bytes, std::string_view where);

}  // namespace cdgrab

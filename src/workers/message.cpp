// SPDX-License-Identifier: Apache-2.0
#include "workers/message.hpp"

#include <array>
#include <cstring>
#include <type_traits>

#include "cdgrab/error.hpp"

namespace cdgrab {
namespace {

// Every rank sends its message to every other, so it is written short. Integers take 7 bits to the byte;
// lists are written as their differences, the same one several times over as one: a run of positions, or of
// equal sizes, takes a few bytes.

using Word = std::uint64_t;

/// Small numbers of either sign become small ones.
constexpr Word zigzag(Word difference) { return (difference << 1) ^ (Word{0} - (difference >> 63)); }
constexpr Word unzigzag(Word word) { return (word >> 1) ^ (Word{0} - (word & 1)); }

class Writer {
 public:
  template <class T>
  requires(std::is_integral_v<T> || std::is_enum_v<T>) void put(const T& value) {
    Word word = static_cast<Word>(value);
    for (; word >= 128; word >>= 7) bytes_.push_back(static_cast<std::byte>(word | 128));
    bytes_.push_back(static_cast<std::byte>(word));
  }
  void put(const double& value) { put_whole(value); }
  template <class T>
  void put(const std::vector<T>& values) {
    put(values.size());
    Word last = 0;
    for (std::size_t k = 0; k < values.size();) {
      const Word difference = static_cast<Word>(values[k]) - last;
      std::size_t times = 0;
      for (; k < values.size() && static_cast<Word>(values[k]) - last == difference; ++k, ++times)
        last = static_cast<Word>(values[k]);
      put(zigzag(difference));
      put(times);
    }
  }
  template <class T>
  void put_whole(const T& value) {
    bytes_.append(std::as_bytes(std::span(&value, 1)));
  }
  Bytes take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, std::size_t most) : bytes_(bytes), most_(most) {}

  template <class T>
  requires(std::is_integral_v<T> || std::is_enum_v<T>) void get(T& value) {
    Word word = 0;
    for (int shift = 0;; shift += 7) {
      if (bytes_.empty() || shift > 63) refuse();
      const Word byte = static_cast<Word>(bytes_.front());
      bytes_ = bytes_.subspan(1);
      word |= (byte & 127) << shift;
      if (byte < 128) break;
    }
    value = static_cast<T>(word);
    if (static_cast<Word>(value) != word) refuse();
  }
  void get(double& value) { get_whole(value); }
  template <class T>
  void get(std::vector<T>& values) {
    std::size_t size = 0;
    get(size);
    if (size > most_) refuse();
    Word last = 0;
    while (values.size() < size) {
      Word difference = 0;
      std::size_t times = 0;
      get(difference);
      get(times);
      if (times == 0 || times > size - values.size()) refuse();
      for (; times > 0; --times) {
        last += unzigzag(difference);
        values.push_back(static_cast<T>(last));
      }
    }
  }
  /// A number of things, each of which takes a byte at least.
  std::size_t count() {
    std::size_t count = 0;
    get(count);
    if (count > bytes_.size()) refuse();
    return count;
  }
  template <class T>
  void get_whole(T& value) {
    if (bytes_.size() < sizeof(T)) refuse();
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
  }
  void finish() const {
    if (!bytes_.empty()) refuse();
  }
  [[noreturn]] static void refuse() {
    throw CommunicationError("round",
                             "a message that cannot be read; all ranks must run the same version of "
                             "cdgrab, and nothing else on its communicator");
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t most_;
};

/// hash(h): 64 bits of which none is more likely than another.
template <class Stream, class HashStream, class M>
void visit_head(Stream&& each, HashStream&& hash, M& m) {
  each(m.call);
  each(m.left);
  each(m.type);
  each(m.gradient_type);
  each(m.epoch);
  each(m.step);
  hash(m.made);
  hash(m.orders);
  each(m.dim);
  each(m.gradient_dim);
  each(m.hold_limit);
  each(m.held);
  each(m.sizes);
}

template <class Stream, class A>
void visit_arrivals(Stream&& each, A& arrivals) {
  each(arrivals.worker);
  each(arrivals.positions);
  each(arrivals.codes);
}

template <class Stream, class G>
void visit_gradient(Stream&& each, G& gradient) {
  each(gradient.worker);
  each(gradient.position);
  each(gradient.code);
  each(gradient.balanced);
  each(gradient.weight);
  each(gradient.scale);
}

}  // namespace

std::string_view call_name(Call call) {
  constexpr std::array<std::string_view, 4> kNames = {"steps", "averages", "ends its epoch", "saves"};
  return kNames[static_cast<std::size_t>(call)];
}

Bytes encode_message(const Message& message) {
  Writer writer;
  const auto put = [&](const auto& value) { writer.put(value); };
  visit_head(
      put, [&](const Word& hash) { writer.put_whole(hash); }, message);
  put(message.arrivals.size());
  for (const Arrivals& arrivals : message.arrivals) visit_arrivals(put, arrivals);
  put(message.gradients.size());
  for (const Gradient& gradient : message.gradients) visit_gradient(put, gradient);
  return writer.take();
}

Message decode_message(std::span<const std::byte> bytes, std::size_t most) {
  Reader reader(bytes, most);
  Message message;
  const auto get = [&](auto& value) { reader.get(value); };
  visit_head(
      get, [&](Word& hash) { reader.get_whole(hash); }, message);
  message.arrivals.resize(reader.count());
  for (Arrivals& arrivals : message.arrivals) visit_arrivals(get, arrivals);
  message.gradients.resize(reader.count());
  for (Gradient& gradient : message.gradients) visit_gradient(get, gradient);
  reader.finish();
  if (message.call > Call::kSave) Reader::refuse();
  for (const Arrivals& arrivals : message.arrivals)
    if (arrivals.positions.size() != arrivals.codes.size()) Reader::refuse();
  return message;
}

}  // namespace cdgrab

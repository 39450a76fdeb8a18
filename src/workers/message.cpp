// SPDX-License-Identifier: Apache-2.0
#include "workers/message.hpp"

#include <array>
#include <cstring>
#include <type_traits>

#include "cdgrab/error.hpp"

namespace cdgrab {
namespace {

class Writer {
 public:
  template <class T>
  void put(const T& value) {
    put(std::span<const T>(&value, 1));
  }
  template <class T>
  void put(std::span<const T> values) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    const auto bytes = std::as_bytes(values);
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  /// With their number.
  template <class T>
  void put(const std::vector<T>& values) {
    put(static_cast<std::uint32_t>(values.size()));
    put(std::span<const T>(values));
  }
  Bytes take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  void get(T& value) {
    get(&value, 1);
  }
  template <class T>
  void get(std::vector<T>& values) {
    values.resize(count(sizeof(T)));
    get(values.data(), values.size());
  }
  /// A number of things that take at least so many bytes each.
  std::uint32_t count(std::size_t each) {
    std::uint32_t count = 0;
    get(count);
    if (count > bytes_.size() / each) refuse();
    return count;
  }
  void finish() const {
    if (!bytes_.empty()) refuse();
  }

 private:
  template <class T>
  void get(T* values, std::size_t count) {
    const std::size_t size = count * sizeof(T);
    if (size > bytes_.size()) refuse();
    if (size > 0) std::memcpy(values, bytes_.data(), size);
    bytes_ = bytes_.subspan(size);
  }
  [[noreturn]] static void refuse() {
    throw CommunicationError("round",
                             "a message that cannot be read; all ranks must run the same version of "
                             "cdgrab, and nothing else on its communicator");
  }

  std::span<const std::byte> bytes_;
};

template <class Stream, class M>
void visit_head(Stream&& each, M& m) {
  each(m.call);
  each(m.left);
  each(m.type);
  each(m.gradient_type);
  each(m.epoch);
  each(m.step);
  each(m.made);
  each(m.orders);
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
  visit_head(put, message);
  put(static_cast<std::uint32_t>(message.arrivals.size()));
  for (const Arrivals& arrivals : message.arrivals) visit_arrivals(put, arrivals);
  put(static_cast<std::uint32_t>(message.gradients.size()));
  for (const Gradient& gradient : message.gradients) visit_gradient(put, gradient);
  return writer.take();
}

Message decode_message(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  Message message;
  const auto get = [&](auto& value) { reader.get(value); };
  visit_head(get, message);
  message.arrivals.resize(reader.count(3 * sizeof(std::uint32_t)));
  for (Arrivals& arrivals : message.arrivals) visit_arrivals(get, arrivals);
  message.gradients.resize(reader.count(sizeof(double)));
  for (Gradient& gradient : message.gradients) visit_gradient(get, gradient);
  reader.finish();
  return message;
}

}  // namespace cdgrab

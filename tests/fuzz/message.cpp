// SPDX-License-Identifier: Apache-2.0
// What another rank says: a message, which is written as the same again, or a CommunicationError. Of a few
// bytes no more is made than a round could have said.
#include "workers/message.hpp"

#include "fuzz/any_file.hpp"

using namespace cdgrab;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kMost = 1000;
  fuzz::value_or<CommunicationError>([&] {
    const Message message = decode_message(std::as_bytes(std::span(data, size)), kMost);
    fuzz::require(!call_name(message.call).empty());
    fuzz::require(message.sizes.size() <= kMost);
    for (const Arrivals& arrivals : message.arrivals)
      fuzz::require(arrivals.positions.size() == arrivals.codes.size() && arrivals.codes.size() <= kMost);
    const Bytes bytes = encode_message(message);
    fuzz::require(encode_message(decode_message(bytes, kMost)) == bytes);
  });
  return 0;
}

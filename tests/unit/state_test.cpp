// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/state.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "cdgrab/error.hpp"
#include "temp_folder.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace cdgrab {
namespace {

using test::message_of;
using test::TempFolder;

std::string as_text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

State decode(const std::string& file) { return decode_state(std::as_bytes(std::span(file)), "test"); }

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// --- a writer of its own, from docs/format.md alone ---

constexpr const char* kBlank = R"("checksum":"0000000000000000")";

// Length, header, data; then the checksum of it all goes where the sixteen zeros were.
std::string build(std::string header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::string file(8, '\0');
  for (std::size_t k = 0; k < 8; ++k) file[k] = static_cast<char>((length >> (8 * k)) & 0xFF);
  file += header + data;
  const std::size_t at = file.find(kBlank);
  if (at != std::string::npos) {
    file.replace(at + 12, 16, fmt::format("{:016x}", XXH3_64bits(file.data(), file.size())));
  }
  return file;
}

std::string build_with(const std::string& metadata, const std::string& tensors, const std::string& data) {
  return build(R"({"__metadata__":{"format":"cdgrab.state","version":"1",)" + std::string(kBlank) + metadata +
                   "}" + tensors + "}",
               data);
}

std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"(,"t":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

State sample() {
  State state;
  state.set("epoch", std::int64_t{-7});
  state.set("tau", 0.25);
  state.set("spec", std::string("pair; sign=walk,c=30 \"\\\n\u00e9"));
  state.set<std::uint8_t>("codes", std::vector<std::uint8_t>{1, 2, 3});
  state.set<std::uint16_t>("wide", std::vector<std::uint16_t>{65535});
  state.set<std::uint32_t>("order", std::vector<std::uint32_t>{2, 0, 1});
  state.set<std::int64_t>("long", std::vector<std::int64_t>{});
  state.set<float>("register", std::vector<float>{0.5F, -1.0F});
  state.set("matrix", Array{DType::kF64, {2, 0, 3}, {}});
  return state;
}

TEST(State, APartHasItsOwnKeysAndItsErrorsNameTheWholeOnes) {
  State inner;
  inner.set("count", std::int64_t{3});
  State whole;
  whole.set("worker.10.count", std::int64_t{4});
  whole.set_part("worker.1", inner);
  EXPECT_EQ(whole.integer("worker.1.count"), 3);
  const State part = whole.part("worker.1");
  EXPECT_EQ(part, inner);
  EXPECT_EQ(part.name("count"), "worker.1.count");
  try {
    static_cast<void>(part.text("count"));
    ADD_FAILURE();
  } catch (const StateMismatch& error) {
    EXPECT_NE(std::string(error.what()).find("\"worker.1.count\" is an integer"), std::string::npos);
  }
  EXPECT_THROW(static_cast<void>(whole.part("worker").part("2").integer("count")), StateMismatch);
}

TEST(State, GivesBackWhatWasSet) {
  const State state = sample();
  EXPECT_EQ(state.integer("epoch"), -7);
  EXPECT_EQ(state.number("tau"), 0.25);
  EXPECT_EQ(state.text("spec").substr(0, 4), "pair");
  EXPECT_EQ(state.elements<std::uint32_t>("order", 3), (std::vector<std::uint32_t>{2, 0, 1}));
  EXPECT_EQ(state.elements<float>("register", 2), (std::vector<float>{0.5F, -1.0F}));
  EXPECT_TRUE(state.elements<std::int64_t>("long", 0).empty());
  EXPECT_EQ(state.array("matrix").shape, (std::vector<std::uint64_t>{2, 0, 3}));
  EXPECT_TRUE(state.contains("tau"));
  EXPECT_FALSE(state.contains("Tau"));
  EXPECT_EQ(state.entries().size(), 9U);
}

TEST(State, SettingAgainReplaces) {
  State state;
  state.set("a", std::int64_t{1});
  state.set("a", std::string("x"));
  EXPECT_EQ(state.text("a"), "x");
}

TEST(State, AMissingKeyOrAnotherKindIsAMismatchThatNamesTheKey) {
  const State state = sample();
  const auto expect_named = [](auto&& call, const std::string& part) {
    const std::string message = message_of<StateMismatch>(call);
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect_named([&] { static_cast<void>(state.integer("none")); }, "\"none\" is missing");
  expect_named([&] { static_cast<void>(state.integer("tau")); }, "\"tau\" is a number, not an integer");
  expect_named([&] { static_cast<void>(state.number("epoch")); }, "\"epoch\" is an integer, not a number");
  expect_named([&] { static_cast<void>(state.text("order")); }, "\"order\" is an array, not a text");
  expect_named([&] { static_cast<void>(state.array("spec")); }, "\"spec\" is a text, not an array");
  expect_named([&] { static_cast<void>(state.elements<float>("order", 3)); }, "\"order\" holds U32, not F32");
  expect_named([&] { static_cast<void>(state.elements<std::uint32_t>("order", 4)); },
               "3 elements, not 1 and 4");
  expect_named([&] { static_cast<void>(state.elements<double>("matrix", 0)); }, "3 dimensions");
}

TEST(State, WhatCannotBeStoredIsRefusedWhenItIsSet) {
  State state;
  EXPECT_THROW(state.set("", std::int64_t{1}), UserError);
  EXPECT_THROW(state.set("__metadata__", 1.0), UserError);
  EXPECT_THROW(state.set("\xff", 1.0), UserError);
  EXPECT_THROW(state.set("a", std::string("\xc3")), UserError);
  EXPECT_THROW(state.set("a", Array{DType::kU8, {}, std::vector<std::byte>(1)}), UserError);
  EXPECT_THROW(
      state.set("a", Array{DType::kU8, std::vector<std::uint64_t>(33, 1), std::vector<std::byte>(1)}),
      UserError);
  EXPECT_THROW(state.set("a", Array{DType::kU16, {3}, std::vector<std::byte>(3)}), UserError);
  EXPECT_THROW(state.set("a", Array{DType::kU8, {std::uint64_t{1} << 32, std::uint64_t{1} << 32}, {}}),
               UserError);
  EXPECT_EQ(state, State{});
}

TEST(State, DTypesHaveTheirNamesAndSizes) {
  EXPECT_EQ(dtype_name(DType::kU16), "U16");
  EXPECT_EQ(dtype_name(DType::kF64), "F64");
  EXPECT_EQ(dtype_size(DType::kU8), 1U);
  EXPECT_EQ(dtype_size(DType::kF32), 4U);
  EXPECT_EQ(dtype_size(DType::kI64), 8U);
}

TEST(State, DecodingUndoesEncoding) {
  EXPECT_EQ(decode_state(encode_state(sample()), "test"), sample());
  EXPECT_EQ(decode_state(encode_state(State{}), "test"), State{});
}

TEST(State, NumbersKeepEveryBit) {
  State state;
  state.set("nan", std::nan("5"));
  state.set("zero", -0.0);
  state.set("least", std::numeric_limits<std::int64_t>::min());
  const State read = decode_state(encode_state(state), "test");
  EXPECT_TRUE(std::isnan(read.number("nan")));
  EXPECT_TRUE(std::signbit(read.number("zero")));
  EXPECT_EQ(read.integer("least"), std::numeric_limits<std::int64_t>::min());
}

TEST(State, AnyUtf8KeyAndTextSurvives) {
  State state;
  state.set("\u00fc \"\\/\t", std::string("\"checksum\":\"0123456789abcdef\"\0", 30));
  state.set("checksum", std::string("x"));
  state.set("format", std::int64_t{3});
  state.set("text:a", 1.0);
  EXPECT_EQ(decode_state(encode_state(state), "test"), state);
}

// --- the document ---

TEST(StateFormat, AFileBuiltByHandFromTheDocumentIsRead) {
  std::string header =
      R"({"__metadata__":{"format":"cdgrab.state","version":"1","checksum":"0000000000000000",)"
      R"("text:spec":"pair"},)"
      R"("order":{"dtype":"U32","shape":[3],"data_offsets":[16,28]},)"
      R"("epoch":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
      R"("tau":{"shape":[],"dtype":"F64","data_offsets":[8,16]}})";
  while (header.size() % 8 != 0) header.push_back(' ');
  const State state = decode(build(
      header, bytes_of<std::int64_t>({4}) + bytes_of<double>({0.5}) + bytes_of<std::uint32_t>({2, 0, 1})));
  EXPECT_EQ(state.text("spec"), "pair");
  EXPECT_EQ(state.integer("epoch"), 4);
  EXPECT_EQ(state.number("tau"), 0.5);
  EXPECT_EQ(state.elements<std::uint32_t>("order", 3), (std::vector<std::uint32_t>{2, 0, 1}));
  EXPECT_EQ(state.entries().size(), 4U);
}

TEST(StateFormat, TheWriterKeepsToTheDocument) {
  State state;
  state.set("b", std::int64_t{1});
  state.set("a", std::string("x"));
  state.set<std::uint8_t>("c", std::vector<std::uint8_t>{9});
  state.set<std::uint16_t>("d", std::vector<std::uint16_t>{258});
  std::string header =
      R"({"__metadata__":{"format":"cdgrab.state","version":"1","checksum":"0000000000000000",)"
      R"("text:a":"x"},)"
      R"("b":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
      R"("d":{"dtype":"U16","shape":[1],"data_offsets":[8,10]},)"
      R"("c":{"dtype":"U8","shape":[1],"data_offsets":[10,11]}})";
  while (header.size() % 8 != 0) header.push_back(' ');
  EXPECT_EQ(as_text(encode_state(state)), build(header, bytes_of<std::int64_t>({1}) + "\x02\x01\x09"));
}

TEST(StateFormat, EveryFlippedBitIsFound) {
  const std::string whole = as_text(encode_state(sample()));
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_THROW(decode(damaged), FileError) << "bit " << bit;
  }
}

TEST(StateFormat, EveryTruncationAndExtensionIsFound) {
  const std::string whole = as_text(encode_state(sample()));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_THROW(decode(whole.substr(0, length)), FileError) << length;
  }
  EXPECT_THROW(decode(whole + '\0'), FileError);
}

TEST(StateFormat, AnotherVersionIsAMismatchThatNamesIt) {
  const std::string file =
      build(R"({"__metadata__":{"format":"cdgrab.state","version":"2",)" + std::string(kBlank) + "}}", "");
  const std::string message = message_of<StateMismatch>([&] { decode(file); });
  EXPECT_NE(message.find("[test] version is \"2\""), std::string::npos) << message;
}

TEST(StateFormat, ForeignFilesAreRefusedAndAreNoMismatch) {
  const std::string foreign = build(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "abcd");
  const std::string other_format =
      build(R"({"__metadata__":{"format":"pt","version":"1",)" + std::string(kBlank) + "}}", "");
  for (const std::string& file :
       {std::string("hello, world, this is text"), foreign, other_format, std::string()}) {
    const std::string message = message_of<FileError>([&] { decode(file); });
    EXPECT_NE(message.find("not a cdgrab state"), std::string::npos) << message;
    EXPECT_EQ(message.find("version is"), std::string::npos) << message;
  }
}

TEST(StateFormat, AnImpossibleHeaderLengthIsRefused) {
  EXPECT_THROW(decode(std::string(8, '\xff')), FileError);
  EXPECT_THROW(decode(std::string("\xff\xff\xff\x7f\0\0\0\0{}", 10)), FileError);
}

// Each has a sound checksum: only the rule it breaks can give it away.
TEST(StateFormat, EveryBrokenRuleIsFound) {
  const auto expect_damaged = [](const std::string& file, const std::string& part) {
    const std::string message = message_of<FileError>([&] { decode(file); });
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  const std::string f4(4, 'x');
  EXPECT_NO_THROW(decode(build_with("", tensor("F32", "[1]", "[0,4]"), f4)));

  expect_damaged(build_with("", tensor("BF16", "[2]", "[0,4]"), f4), "dtype");
  expect_damaged(build_with("", tensor("F32", "[]", "[0,4]"), f4), "a single F32");
  expect_damaged(build_with("", tensor("F32", "[2]", "[0,4]"), f4), "shape");
  expect_damaged(build_with("", tensor("F32", "[4294967296,4294967296]", "[0,0]"), ""), "shape");
  expect_damaged(build_with("", tensor("U8", "[9223372036854775808,2]", "[0,0]"), ""), "shape");
  expect_damaged(build_with("", tensor("F32", "[1]", "[0,4,4]"), f4), "data_offsets");
  expect_damaged(build_with("", tensor("F32", "[1]", "[4,0]"), f4), "data_offsets");
  expect_damaged(build_with("", tensor("F32", "[1]", "[4,8]"), f4), "data_offsets");
  expect_damaged(build_with("", tensor("F32", "[-1]", "[0,4]"), f4), "negative");
  expect_damaged(build_with("", tensor("F32", "[1.0]", "[0,4]"), f4), "fractional");
  expect_damaged(build_with("", tensor("F32", "[99999999999999999999]", "[0,4]"), f4), "huge");
  expect_damaged(build_with("", tensor("F32", "[[1]]", "[0,4]"), f4), "a list");
  expect_damaged(build_with("", tensor("F32", "[1]", "[0,4]"), f4 + "y"), "belong to nothing");
  expect_damaged(build_with("", tensor("F32", "[1]", "[1,5]"), "y" + f4), "gap or overlap");
  expect_damaged(build_with("", "", "y"), "belong to nothing");
  expect_damaged(
      build_with("", R"(,"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})" + tensor("U8", "[2]", "[1,3]"),
                 "abc"),
      "gap or overlap");
  expect_damaged(build_with("", tensor("F32", "[1]", "[0,4]") + tensor("F32", "[1]", "[0,4]"), f4),
                 "\"t\" appears twice");
  expect_damaged(build_with("", R"(,"t":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]})", ""),
                 "twice");
  expect_damaged(build_with("", R"(,"t":{"dtype":"U8","shape":[0]})", ""), "lacks");
  expect_damaged(build_with("", R"(,"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"more":1})", ""),
                 "unknown field");
  expect_damaged(build_with("", R"(,"t":5)", ""), "a number");
  expect_damaged(build_with("", R"(,"t":null)", ""), "null");
  expect_damaged(build_with("", R"(,"t":{"dtype":{},"shape":[0],"data_offsets":[0,0]})", ""), "an object");
  expect_damaged(build_with("", R"(,"":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})", ""),
                 "a key is empty");
  expect_damaged(build_with("", R"(,"__metadata__":{})", ""), "\"__metadata__\" appears twice");
  expect_damaged(build_with(R"(,"format":"cdgrab.state")", "", ""), "\"format\" appears twice");
  expect_damaged(build_with(R"(,"colour":"red")", "", ""), "unknown entry \"colour\"");
  expect_damaged(build_with(R"(,"text:":"red")", "", ""), "unknown entry \"text:\"");
  expect_damaged(build_with(R"(,"text:a":5)", "", ""), "a number");
  expect_damaged(build_with(R"(,"text:a":true)", "", ""), "a boolean");
  expect_damaged(build_with(R"(,"text:__metadata__":"x")", "", ""), "__metadata__");
  expect_damaged(build_with(R"(,"text:t":"x")", tensor("U8", "[0]", "[0,0]"), ""),
                 "as a text and as a tensor");
  expect_damaged(build_with("", R"(,"checksum":"0")", ""), "two checksums");
  expect_damaged(build_with("", ",", ""), "not valid JSON");
  expect_damaged(build_with("", "}", ""), "not valid JSON");
  expect_damaged(build_with(",\"text:a\":\"\xff\"", "", ""), "not valid JSON");
  expect_damaged(build(" {\"__metadata__\":{" + std::string(kBlank) + "}}", ""), "begin with '{'");
  expect_damaged(build("{\"t\":{" + std::string(kBlank) + "}}", ""), "unknown field");
  expect_damaged(build("{\"__metadata__\":{" + std::string(kBlank) + "}}", ""), "no \"format\"");
}

TEST(StateFormat, ManyNestedListsAreRefusedWithoutRecursion) {
  const std::string deep(1'000'000, '[');
  EXPECT_THROW(decode(build_with("", R"(,"t":{"dtype":"U8","shape":)" + deep, "")), FileError);
}

// --- files ---

TEST(StateFile, LoadingUndoesSaving) {
  const TempFolder folder;
  save_state(sample(), folder / "a.state");
  EXPECT_EQ(load_state(folder / "a.state"), sample());
  EXPECT_EQ(test::read_text(folder / "a.state"), as_text(encode_state(sample())));
  save_state(State{}, folder / "a.state");
  EXPECT_EQ(load_state(folder / "a.state"), State{});
  EXPECT_EQ(folder.count(), 1U);
}

TEST(StateFile, AFailedSaveLeavesTheOldStateAndNoOtherFile) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "a.state");
  EXPECT_THROW(save_state(sample(), folder / "a.state"), FileError);
  EXPECT_THROW(save_state(sample(), folder / "none/a.state"), FileError);
  EXPECT_EQ(folder.count(), 1U);
}

TEST(StateFile, AMessageNamesTheFile) {
  const TempFolder folder;
  EXPECT_THROW(load_state(folder / "none"), FileError);
  test::write_text(folder / "a.state", "not a state at all");
  const std::string message = message_of<FileError>([&] { load_state(folder / "a.state"); });
  EXPECT_NE(message.find((folder / "a.state").string()), std::string::npos) << message;
}

}  // namespace
}  // namespace cdgrab

// SPDX-License-Identifier: Apache-2.0
// The real command, as a user or a script meets it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "cdgrab/npy.hpp"
#include "cdgrab/permutation.hpp"
#include "cdgrab/spec.hpp"
#include "cdgrab/state.hpp"
#include "fixture.hpp"
#include "subprocess.hpp"

namespace cdgrab {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Cli;
using test::has;
using test::json_lines;
using test::Outcome;
using test::read_all;
using test::RunOptions;

void write_all(const fs::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// A .npy file of version 1 with `header` as it stands.
std::string npy(const std::string& header, std::string_view data) {
  std::string padded = header;
  padded.append(63 - (10 + header.size()) % 64, ' ').append("\n");
  const auto size = static_cast<std::uint16_t>(padded.size());
  std::string out = "\x93NUMPY";
  out += '\x01';
  out += '\x00';
  out += static_cast<char>(size & 0xFF);
  out += static_cast<char>(size >> 8);
  return out.append(padded).append(data);
}

std::string npy_matrix(std::size_t rows, std::size_t dim, const std::vector<float>& values) {
  const std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + std::to_string(rows) +
                             ", " + std::to_string(dim) + "), }";
  return npy(header, {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
}

TEST_F(Cli, HelpAndVersionAreData) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"--help"}, {"--version"}, {"herd", "--help"}, {"inspect", "--help"}}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_FALSE(outcome.out.empty());
    EXPECT_EQ(outcome.err, "");
  }
  EXPECT_TRUE(has(run({"herd", "--help"}).out, "recursive-pair"));
}

TEST_F(Cli, UsageMistakesExitWithTwoAndNameTheNearest) {
  expect_failure(2, {}, "allowed: train, compare, tasks, herd, simulate, inspect");
  expect_failure(2, {"hred"}, "the nearest is `herd`");
  expect_failure(2, {"hred", "--rounds", "3"}, "the nearest is `herd`");
  expect_failure(2, {"--vesion"}, "the nearest is `--version`");
  expect_failure(2, {"herd", "--ordr", "pair"}, "the nearest is `--order`");
  expect_failure(2, {"herd", "--roundz=3"}, "the nearest is `--rounds`");
  expect_failure(2, {"inspect", "x", "--jsn"}, "the nearest is `--json`");
  expect_failure(2, {"herd", "--order", "pear"}, "the nearest is `pair`");
  expect_failure(2, {"herd", "--order", "mean; sing=walk"}, "the nearest is `sign`");
  expect_failure(2, {"herd", "a.npy", "b.npy"}, "`b.npy`");
  expect_failure(2, {"inspect"}, "STATE");
}

TEST_F(Cli, BadValuesExitWithTwo) {
  for (const char* bad : {"-1", "abc", "1.5", "", "99999999999999999999", "1e3"}) {
    expect_failure(2, {"herd", std::string("--rounds=") + bad}, "--rounds");
    expect_failure(2, {"herd", std::string("--seed=") + bad}, "--seed");
  }
  expect_failure(2, {"herd", "--batch", "0"}, "from 1");
  expect_failure(2, {"herd", "--dim", "0"}, "from 1");
  expect_failure(2, {"herd", "--examples", "4294967295", "--dim", "1000000000"}, "GB");
  expect_failure(2, {"herd", "--shapes", "3xx4"}, "10x784,10");
  expect_failure(2, {"herd", "x.npy", "--dim", "3"}, "--dim");
  expect_failure(2, {"herd", "--order", "pair; sketch=gauss"}, "sketch=gauss:R");
}

TEST_F(Cli, FilesForOneOrderTakeOneOrder) {
  expect_failure(2, {"herd", "--out", "o.npy"}, "give one --order");
  expect_failure(2, {"herd", "--order", "mean,pair", "--state", "s"}, "give one --order");
  expect_failure(2, {"herd", "--order", "pair", "--out", "a", "--state", "./a"}, "name another");
}

TEST_F(Cli, OutputPlacesAreCheckedBeforeTheWork) {
  expect_failure(3, {"herd", "--report", "nowhere/r.html"}, "does not exist");
  expect_failure(3, {"herd", "--order", "pair", "--out", "."}, "is a folder");
  if (geteuid() == 0) return;  // root may write anywhere
  fs::create_directory(in("locked"));
  fs::permissions(in("locked"), fs::perms::owner_read | fs::perms::owner_exec);
  expect_failure(3, {"herd", "--order", "pair", "--state", "locked/s"}, "locked");
}

TEST_F(Cli, TableOnStdoutTalkOnStderr) {
  const Outcome outcome = run({"herd", "--examples", "500", "--rounds", "3"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_LT(outcome.out.find("rr"), outcome.out.find("mean"));
  EXPECT_TRUE(has(outcome.out, "pair: after 3 rounds the worst prefix error is "));
  EXPECT_FALSE(has(outcome.out, "cdgrab:"));
  EXPECT_TRUE(has(outcome.err, "500 of 16 numbers"));
  EXPECT_FALSE(has(outcome.err, "\033")) << "escape sequences without a terminal";
  EXPECT_FALSE(has(outcome.err, "\r")) << "progress without a terminal";
  EXPECT_EQ(run({"herd", "--examples", "500", "--rounds", "3", "--quiet"}).err, "");
  EXPECT_EQ(run({"herd", "--examples", "500", "--rounds", "3", "--quiet"}).out, outcome.out);
}

TEST_F(Cli, JsonLinesCarryEveryRoundAndASummary) {
  const Outcome outcome = run({"herd", "--json", "--order", "pair,mean; sign=walk,c=3", "--examples", "2000",
                               "--rounds", "4", "--seed", "7"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::vector<json> lines = json_lines(outcome.out);
  ASSERT_EQ(lines.size(), 3U * 5U + 1U);
  EXPECT_EQ(lines[0]["order"], "rr");
  EXPECT_EQ(lines[2]["order"], "mean; sign=walk,c=3");
  const json& summary = lines.back();
  EXPECT_EQ(summary["event"], "summary");
  EXPECT_EQ(summary["seed"], 7);
  EXPECT_EQ(summary["examples"], 2000);
  EXPECT_EQ(summary["rounds"], 4);
  EXPECT_TRUE(summary["version"].is_string());
  EXPECT_EQ(summary["orders"][1]["linf"], lines[13]["linf"]);
  EXPECT_GT(summary["orders"][1]["times_below_random"]["linf"].get<double>(), 3.0);
}

TEST_F(Cli, SameSeedSameBytesOtherSeedOtherBytes) {
  const auto out = [&](const char* seed) {
    return run({"herd", "--examples", "300", "--rounds", "2", "--seed", seed}).out;
  };
  EXPECT_EQ(out("5"), out("5"));
  EXPECT_NE(out("5"), out("6"));
}

TEST_F(Cli, TinyInputsWork) {
  for (const char* n : {"0", "1", "2", "3"}) {
    for (const char* order :
         {"pair", "mean", "recursive", "recursive-pair", "batch", "greedy", "score", "swr", "block-reversal",
          "flipflop", "so", "fixed", "pair; unit=2", "mean; normalize; unit=3"}) {
      const Outcome outcome = run({"herd", "--order", order, "--examples", n, "--rounds", "2", "--out",
                                   "o.npy", "--state", "s", "--report", "r.html", "--json"});
      ASSERT_EQ(outcome.exit_code, 0) << n << " " << order << " " << outcome.err;
      json_lines(outcome.out);
      EXPECT_EQ(run({"inspect", "s"}).exit_code, 0);
    }
  }
}

TEST_F(Cli, ZeroRoundsShowTheFirstOrder) {
  EXPECT_EQ(json_lines(run({"herd", "--json", "--rounds", "0", "--examples", "50"}).out).size(), 4U);
}

TEST_F(Cli, UnitsKeepTogetherAndAreOrdered) {
  const Outcome outcome = run({"herd", "--order", "pair; unit=4", "--examples", "4002", "--rounds", "8",
                               "--batch", "7", "--out", "o.npy", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(read_npy_order(in("o.npy")).size(), 1001U);
  EXPECT_GT(json_lines(outcome.out).back()["orders"][1]["times_below_random"]["linf"].get<double>(), 2.0);
}

TEST_F(Cli, OutIsTheNextOrderAndFileReadsItBack) {
  const Outcome first = run({"herd", "--order", "pair", "--examples", "777", "--out", "o.npy", "--json"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const std::vector<Index> order = read_npy_order(in("o.npy"));
  EXPECT_EQ(order.size(), 777U);
  EXPECT_TRUE(is_permutation(order));
  const Outcome second =
      run({"herd", "--order", "file; path=o.npy", "--examples", "777", "--rounds", "1", "--json"});
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(json_lines(second.out).back()["orders"][1]["linf"],
            json_lines(first.out).back()["orders"][1]["linf"]);
}

TEST_F(Cli, VectorsFromAFile) {
  std::vector<float> values(64 * 3);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i * i));
  write_all(in("x.npy"), npy_matrix(64, 3, values));
  const Outcome whole = run({"herd", "x.npy", "--json"});
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_EQ(json_lines(whole.out).back()["examples"], 64);
  EXPECT_EQ(json_lines(whole.out).back()["dim"], 3);
  values[5] = std::numeric_limits<float>::quiet_NaN();
  values[100] = std::numeric_limits<float>::infinity();
  write_all(in("x.npy"), npy_matrix(64, 3, values));
  const Outcome holes =
      run({"herd", "x.npy", "--json", "--quiet", "--order", "mean,pair,greedy,score,pair; unit=3"});
  ASSERT_EQ(holes.exit_code, 0) << holes.err;
  EXPECT_EQ(json_lines(holes.out).back()["not_finite"], 2);
  EXPECT_TRUE(has(holes.err, "2 of 64 vectors are not finite")) << holes.err;
}

TEST_F(Cli, TheInputIsNotOverwritten) {
  write_all(in("x.npy"), npy_matrix(1, 1, {1.0F}));
  expect_failure(2, {"herd", "x.npy", "--order", "pair", "--out", "x.npy"}, "name another");
}

TEST_F(Cli, BadDataExitsWithThree) {
  const std::string sound = npy_matrix(2, 2, {1, 2, 3, 4});
  const std::vector<std::pair<const char*, std::string>> bad = {
      {"empty", ""},
      {"magic", "not numpy at all"},
      {"truncated", sound.substr(0, sound.size() - 1)},
      {"cut header", sound.substr(0, 20)},
      {"object", npy("{'descr': '|O', 'fortran_order': False, 'shape': (2, 2), }", "xxxx")},
      {"integers", npy("{'descr': '<i8', 'fortran_order': False, 'shape': (1, 1), }", "12345678")},
      {"one-dimensional", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", "12345678")},
      {"overflow",
       npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }", "1234")},
      {"big-endian", npy("{'descr': '>f4', 'fortran_order': False, 'shape': (1, 1), }", "1234")},
  };
  for (const auto& [name, bytes] : bad) {
    SCOPED_TRACE(name);
    write_all(in("bad.npy"), bytes);
    expect_failure(3, {"herd", "bad.npy"}, "bad.npy");
  }
  expect_failure(3, {"herd", "missing.npy"}, "missing.npy");
  expect_failure(3, {"herd", "."}, ".");
  expect_failure(3, {"inspect", "missing"}, "missing");
}

TEST_F(Cli, InspectExplainsAState) {
  ASSERT_EQ(run({"herd", "--order", "mean; sign=walk,c=3", "--examples", "90", "--rounds", "2", "--seed",
                 "18446744073709551615", "--state", "s"})
                .exit_code,
            0);
  const Outcome words = run({"inspect", "s"});
  ASSERT_EQ(words.exit_code, 0) << words.err;
  EXPECT_TRUE(has(words.out, "mean; sign=walk,c=3"));
  EXPECT_TRUE(has(words.out, "a permutation of length 90"));
  EXPECT_TRUE(has(words.out, "all finite"));
  EXPECT_EQ(words.err, "");
  const json state = json::parse(run({"inspect", "--json", "s"}).out);
  EXPECT_EQ(state["epoch"], 2);
  EXPECT_EQ(state["examples"], 90);
  EXPECT_EQ(state["seed"], std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(state["entries"]["order.current"]["shape"], json::array({90}));
}

TEST_F(Cli, DamagedStatesExitWithThree) {
  ASSERT_EQ(run({"herd", "--order", "pair", "--examples", "9", "--state", "s"}).exit_code, 0);
  const std::string sound = read_all(in("s"));
  for (const std::size_t at : {std::size_t{0}, std::size_t{9}, sound.size() / 2, sound.size() - 1}) {
    std::string flipped = sound;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    write_all(in("bad"), flipped);
    expect_failure(3, {"inspect", "bad"}, "bad");
    write_all(in("bad"), sound.substr(0, at));
    expect_failure(3, {"inspect", "bad"}, "bad");
  }
}

TEST_F(Cli, OutputThatCannotBeWrittenIsAFailure) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const std::string command = std::string("'") + CDGRAB_CLI_PATH + "' herd --quiet --examples 50 > /dev/full";
  const Outcome outcome = test::run_program({"sh", "-c", command});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_TRUE(has(outcome.err, "stdout")) << outcome.err;
}

TEST_F(Cli, InterruptLeavesNoFile) {
  for (const int signal : {SIGINT, SIGTERM}) {
    RunOptions options;
    options.signal = signal;
    options.after = "\"round\":1";
    const Outcome outcome = run({"herd", "--json", "--order", "pair", "--rounds", "100000000", "--out",
                                 "o.npy", "--state", "s", "--report", "r.html"},
                                options);
    EXPECT_EQ(outcome.exit_code, 130);
    EXPECT_TRUE(has(outcome.err, "interrupted")) << outcome.err;
    EXPECT_EQ(files(), 0U);
    json_lines(outcome.out);
  }
}

TEST_F(Cli, InterruptKeepsTheOldFileAndComesWithinARound) {
  write_all(in("r.html"), "old");
  RunOptions options;
  options.signal = SIGINT;
  options.after = "\"order\":\"pair\"";
  const Outcome outcome = run({"herd", "--json", "--order", "pair", "--rounds", "1000000", "--examples",
                               "300000", "--dim", "4", "--report", "r.html"},
                              options);
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_EQ(read_all(in("r.html")), "old");
  EXPECT_EQ(files(), 1U);
}

TEST_F(Cli, ReportStandsAlone) {
  const Outcome outcome = run({"herd", "--order", "mean,file; path=a<b>&'c.npy", "--report", "r.html"});
  EXPECT_EQ(outcome.exit_code, 3) << "the file is not there";
  EXPECT_EQ(files(), 0U);
  ASSERT_EQ(run({"herd", "--order", "fixed", "--examples", "40", "--rounds", "1", "--out", "a<b>&'c.npy"})
                .exit_code,
            0);
  ASSERT_EQ(run({"herd", "--order", "mean,file; path=a<b>&'c.npy", "--examples", "40", "--report", "r.html"})
                .exit_code,
            0);
  std::string page = read_all(in("r.html"));
  EXPECT_EQ(page.rfind("<!DOCTYPE html>", 0), 0U);
  EXPECT_FALSE(has(page, "a<b>")) << "text that was not escaped";
  EXPECT_TRUE(has(page, "a&lt;b&gt;&amp;&#39;c.npy"));
  EXPECT_TRUE(has(page, "role=\"img\""));
  EXPECT_TRUE(has(page, "prefers-color-scheme: dark"));
  const std::string ours = "xmlns=\"http://www.w3.org/2000/svg\"";
  for (std::size_t at = page.find(ours); at != std::string::npos; at = page.find(ours))
    page.erase(at, ours.size());
  for (const char* foreign : {"http", "<script", "src=", "href", "url(", "@import"})
    EXPECT_FALSE(has(page, foreign)) << foreign;
}

TEST_F(Cli, ReportLoadsInABrowserWithoutComplaint) {
  const std::string chromium = test::find_chromium();
  if (chromium.empty()) GTEST_SKIP() << "no chromium on PATH: the page was NOT loaded in a browser";
  ASSERT_EQ(run({"herd", "--examples", "300", "--report", "r.html"}).exit_code, 0);
  const Outcome page = test::load_in_browser(chromium, in("r.html"), in("profile"));
  ASSERT_EQ(page.exit_code, 0) << page.err;
  EXPECT_FALSE(has(page.err, "CONSOLE")) << page.err;
  EXPECT_TRUE(has(page.out, "<figure>"));
  EXPECT_TRUE(has(page.out, "</svg>"));
}

TEST_F(Cli, EveryDescribedOrderRuns) {
  ASSERT_EQ(
      run({"herd", "--order", "fixed", "--examples", "64", "--rounds", "1", "--out", "o.npy"}).exit_code, 0);
  std::istringstream lines(describe_specs());
  std::string list;
  std::size_t orders = 0;
  for (std::string line; std::getline(lines, line) && !has(line, "Options");) {
    if (line.rfind("  ", 0) != 0) continue;
    const std::string name = line.substr(2, line.find(' ', 2) - 2);
    if (parse_spec(name == "file" ? "file; path=o.npy" : name).distributed())
      continue;  // `simulate` runs these
    list += (list.empty() ? "" : ",") + name + (name == "file" ? "; path=o.npy" : "");
    ++orders;
  }
  EXPECT_EQ(orders, 14U);
  const Outcome outcome = run({"herd", "--order", list, "--examples", "64", "--rounds", "2", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(json_lines(outcome.out).back()["orders"].size(), orders);
}

TEST_F(Cli, EveryDescribedOptionRuns) {
  const Outcome outcome =
      run({"herd", "--order",
           "mean; centring=ema; beta=0.5; normalize; block=8, mean; centring=none; sign=walk,c=3,"
           "pair; tie=minus; sketch=gauss:4, pair; sign=halving,delta=0.1,epochs=5,"
           "recursive; depth=2; sketch=sparse,eps=0.9, recursive-pair; block=16, recursive-pair; depth=0,"
           "batch; block=16, pair; sketch=kron:2, block-reversal; block=5; reshuffle=no; reverse=no,"
           "rr; unit=3",
           "--examples", "64", "--rounds", "3", "--shapes", "3x4,4", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(json_lines(outcome.out).back()["orders"].size(), 12U);
}

}  // namespace
}  // namespace cdgrab

// SPDX-License-Identifier: Apache-2.0
// cdgrab compare, as a user or a script meets it. Each start loads torch, which takes a second: a test makes
// few.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <set>
#include <string>
#include <vector>

#include "fixture.hpp"

namespace cdgrab {
namespace {

using nlohmann::json;
using test::has;
using test::json_lines;
using test::Outcome;
using test::read_all;
using test::RunOptions;

using Words = std::vector<std::string>;

class Compare : public test::Cli {
 protected:
  /// Two orders at two rates from two seeds, each 4 epochs of 25 steps, unless `more` says otherwise.
  static Words small(const Words& more = {}) {
    Words words = {"compare", "--examples", "400", "--l2", "1e-3", "--seeds", "2", "--out", "compared"};
    for (const Words& usual : {Words{"--epochs", "4"}, Words{"--lr", "1e-2,1e-1"}}) {
      if (std::find(more.begin(), more.end(), usual.front()) == more.end())
        words.insert(words.end(), usual.begin(), usual.end());
    }
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  [[nodiscard]] std::string page() const { return read_all(in("compared") / "report.html"); }
  [[nodiscard]] std::vector<json> kept() const { return json_lines(read_all(in("compared") / "runs.jsonl")); }
};

TEST_F(Compare, TablesVerdictAndPage) {
  const Outcome outcome =
      run(small({"--schedule", "constant,cosine", "--average", "none,tail", "--herding"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "loss above the optimum"));
  EXPECT_TRUE(has(outcome.out, "at equal rates"));
  EXPECT_TRUE(has(outcome.out, "seeds' deviation")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "extend --lr")) << "0.1 is best, and the largest";
  EXPECT_FALSE(has(outcome.out, "cdgrab:"));
  EXPECT_TRUE(has(outcome.err, "run 16 of 16"));
  EXPECT_TRUE(has(outcome.err, "wrote compared/report.html"));
  EXPECT_FALSE(has(outcome.err, "\033")) << "escape sequences without a terminal";

  std::string html = page();
  for (const char* part :
       {"Constant rate, tail average", "Cosine schedule", "Herding bound", "Seconds of one epoch",
        "--schedule constant,cosine", "prefers-color-scheme: dark", "@media print"})
    EXPECT_TRUE(has(html, part)) << part;
  const std::string ours = "xmlns=\"http://www.w3.org/2000/svg\"";
  for (std::size_t at = html.find(ours); at != std::string::npos; at = html.find(ours))
    html.erase(at, ours.size());
  for (const char* foreign : {"http", "<script", "src=", "href", "url(", "@import"})
    EXPECT_FALSE(has(html, foreign)) << foreign;
}

TEST_F(Compare, PageLoadsInABrowserWithoutComplaint) {
  const std::string chromium = test::find_chromium();
  if (chromium.empty()) GTEST_SKIP() << "no chromium on PATH: the page was NOT loaded in a browser";
  ASSERT_EQ(run(small({"--quiet"})).exit_code, 0);
  const Outcome dom = test::load_in_browser(chromium, in("compared") / "report.html", in("profile"));
  ASSERT_EQ(dom.exit_code, 0) << dom.err;
  EXPECT_FALSE(has(dom.err, "CONSOLE")) << dom.err;
  EXPECT_TRUE(has(dom.out, "Final loss against the learning rate"));
}

TEST_F(Compare, SameWeightsAndFirstOrderForAllOrdersOfASeed) {
  const Outcome outcome = run(small({"--json", "--quiet", "--orders", "pair,so", "--herding"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const std::vector<json> lines = json_lines(outcome.out);
  ASSERT_EQ(lines.size(), 3U * 2U * 2U + 1U);
  for (const json& line : lines) {
    if (line["event"] != "run") continue;
    for (const json& other : lines) {
      if (other["event"] != "run" || other["seed"] != line["seed"]) continue;
      EXPECT_EQ(line["loss"][0], other["loss"][0]) << "initial weights";
      // The order of the first epoch is the same, and the gradients differ only by the rate.
      if (other["rate"] == line["rate"]) {
        EXPECT_EQ(line["herding_bound"][1], other["herding_bound"][1]);
        EXPECT_EQ(line["loss"][1], other["loss"][1]);
      }
    }
  }
  const json& summary = lines.back();
  EXPECT_EQ(summary["event"], "summary");
  EXPECT_EQ(summary["entries"][0]["order"], "rr");
  EXPECT_GT(summary["optimum"].get<double>(), 0.0);
  EXPECT_GT(summary["entries"][0]["final"]["min"].get<double>(), 0.0) << "nothing is below the optimum";
  EXPECT_GT(summary["entries"][1]["time_beside_plain"].get<double>(), 0.0);
}

TEST_F(Compare, OneJobOrTwoTheRunsAreTheSame) {
  const auto losses = [&](const char* jobs, const char* out) {
    const Outcome outcome = run({"compare", "--examples", "300", "--epochs", "3", "--lr", "1e-2", "--seeds",
                                 "2", "--jobs", jobs, "--out", out, "--json"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::set<std::string> all;
    for (const json& line : json_lines(outcome.out)) {
      if (line["event"] == "run")
        all.insert(line["order"].dump() + line["seed"].dump() + line["loss"].dump());
    }
    return all;
  };
  EXPECT_EQ(losses("1", "one"), losses("2", "two"));
}

TEST_F(Compare, FinishedRunsAreKeptAndOnlyTheMissingAreTrained) {
  RunOptions interrupt;
  interrupt.signal = SIGINT;
  interrupt.after = "\"event\":\"run\"";
  const Outcome broken = run(small({"--json", "--jobs", "1", "--epochs", "40"}), interrupt);
  ASSERT_EQ(broken.exit_code, 130) << broken.err;
  EXPECT_TRUE(has(broken.err, "of 8 runs are in compared; the same command goes on")) << broken.err;
  const std::size_t done = kept().size() - 2;  // the settings and the optimum
  EXPECT_GE(done, 1U);
  EXPECT_LT(done, 8U);
  const Outcome whole = run(small({"--json", "--jobs", "1", "--epochs", "40"}));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_TRUE(has(whole.err, std::to_string(8 - done) + " runs, 1 at a time; the others are in compared"))
      << whole.err;
  EXPECT_EQ(json_lines(whole.out).size(), 9U);
  EXPECT_EQ(kept().size(), 10U);

  const Outcome more = run(small({"--epochs", "40", "--lr", "1e-2,1e-1,1"}));
  ASSERT_EQ(more.exit_code, 0) << more.err;
  EXPECT_TRUE(has(more.err, "; 4 runs")) << more.err;
  expect_failure(2, small({"--epochs", "41"}), "epochs `40`, and here it is `41`");
}

TEST_F(Compare, DryRunSaysWhatItWouldDo) {
  const Outcome outcome = run(small({"--dry-run"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "= 8"));
  EXPECT_TRUE(has(outcome.out, "800 in all"));
  EXPECT_EQ(files(), 0U);
}

TEST_F(Compare, MistakesAreFoundBeforeAnythingIsTrained) {
  expect_failure(2, {"compare", "--orders", "pari"}, "the nearest is `pair`");
  expect_failure(2, {"compare", "--order", "pair"}, "the nearest is `--orders`");
  expect_failure(2, {"compare", "--lr", "1e-3,,1"}, "`` is not a rate");
  expect_failure(2, {"compare", "--lr=-1"}, "`-1` is not a rate");
  expect_failure(2, {"compare", "--schedule", "cosin"}, "the nearest is `cosine`");
  expect_failure(2, {"compare", "--average", "tial"}, "allowed: none, tail");
  expect_failure(2, {"compare", "--seeds", "0"}, "from 1");
  expect_failure(2, {"compare", "--task", "logstic"}, "the nearest is `logistic`");
  expect_failure(3, {"compare", "--out", "nowhere/here"}, "name one whose parent exists");
  expect_failure(2, {"compare", "--examples", "10"}, "--batch");
  EXPECT_EQ(files(), 0U);
}

TEST_F(Compare, RunsThatDivergeAreSaidAndSurvived) {
  const Outcome outcome = run(small({"--lr", "1e-1,1e30"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "diverged"));
  const Outcome all = run(small({"--lr", "1e30"}));
  ASSERT_EQ(all.exit_code, 0) << all.err;
  EXPECT_TRUE(has(all.out, "every run diverged")) << all.out;
}

}  // namespace
}  // namespace cdgrab

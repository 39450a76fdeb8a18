// SPDX-License-Identifier: Apache-2.0
// From finished runs to figures, words, tables and a page, on results made by hand.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "bars.hpp"
#include "cdgrab/error.hpp"
#include "chart.hpp"
#include "columns.hpp"
#include "compare/analysis.hpp"
#include "compare/page.hpp"
#include "compare/print.hpp"
#include "compare/store.hpp"
#include "compare/verdict.hpp"
#include "format.hpp"

namespace cdgrab::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

CompareResult empty_result(std::vector<std::string> orders, std::vector<double> rates, std::size_t seeds,
                           std::size_t epochs) {
  CompareResult result;
  result.task = "logistic";
  result.metric = "accuracy";
  result.command = "cdgrab compare";
  result.settings = {{"Batch", "16"}};
  result.orders = std::move(orders);
  result.schedules = {"constant"};
  result.averages = {"none"};
  result.rates = std::move(rates);
  for (std::size_t seed = 0; seed < seeds; ++seed) result.seeds.push_back(seed);
  result.epochs = epochs;
  return result;
}

/// One run per seed that falls from 1 to its element of `finals`, evenly on a log scale.
void add_runs(CompareResult& result, const Recipe& recipe, double rate, const std::vector<double>& finals) {
  for (std::size_t seed = 0; seed < finals.size(); ++seed) {
    RunRecord run;
    run.recipe = recipe;
    run.rate = rate;
    run.seed = seed;
    run.diverged = !std::isfinite(finals[seed]);
    for (std::size_t epoch = 0; epoch <= result.epochs; ++epoch) {
      EpochPoint point;
      const double share =
          static_cast<double>(epoch) / static_cast<double>(std::max<std::size_t>(1, result.epochs));
      point.loss =
          result.optimum.value_or(0.0) + (run.diverged ? kNotThere : std::pow(std::abs(finals[seed]), share));
      if (epoch == result.epochs) point.loss = result.optimum.value_or(0.0) + finals[seed];
      point.metric = 0.9;
      point.step_seconds = 1.0;
      point.observe_seconds = 0.25;
      run.epochs.push_back(point);
      if (run.diverged && epoch == 1) break;
    }
    result.runs.push_back(run);
  }
}

constexpr double kDiverged = std::numeric_limits<double>::infinity();

/// rr and pair at three rates, three seeds, ten epochs, the optimum known: pair is ten times nearer to it.
CompareResult plain_result() {
  CompareResult result = empty_result({"rr", "pair"}, {0.001, 0.01, 0.1}, 3, 10);
  result.optimum = 0.3;
  const Recipe rr{"rr", "constant", "none"};
  const Recipe pair{"pair", "constant", "none"};
  add_runs(result, rr, 0.001, {3e-3, 3.1e-3, 2.9e-3});
  add_runs(result, rr, 0.01, {1e-3, 1.1e-3, 0.9e-3});
  add_runs(result, rr, 0.1, {kDiverged, 1e-2, 1e-2});
  add_runs(result, pair, 0.001, {3e-3, 3e-3, 3e-3});
  add_runs(result, pair, 0.01, {1e-4, 1.1e-4, 0.9e-4});
  add_runs(result, pair, 0.1, {2e-3, 2e-3, 2e-3});
  result.costs = {{"rr", 1.0, 0.0, 0.01, 3e8}, {"pair", 1.02, 0.3, 0.02, 3.1e8}};
  result.cost_method = "Measured alone.";
  return result;
}

/// plain_result with a cosine schedule, at whose best rate rr ends as given.
CompareResult with_cosine(const std::vector<double>& rr_finals, const std::vector<double>& pair_finals) {
  CompareResult result = plain_result();
  result.schedules = {"constant", "cosine"};
  for (const double rate : result.rates) {
    add_runs(result, {"rr", "cosine", "none"}, rate, rr_finals);
    add_runs(result, {"pair", "cosine", "none"}, rate, pair_finals);
  }
  return result;
}

Verdict judge(const CompareResult& result) { return judge(result, analyse(result)); }

bool notes_have(const Verdict& verdict, std::string_view part) {
  for (const std::string& note : verdict.notes) {
    if (has(note, part)) return true;
  }
  return false;
}

std::string page_of(const CompareResult& result) {
  const std::vector<Entry> entries = analyse(result);
  return compare_page(result, entries, judge(result, entries));
}

TEST(CompareAnalysis, SpreadIsThatOfASample) {
  const std::vector<double> values = {1.0, 2.0, 6.0};
  const Spread spread = spread_of(values);
  EXPECT_DOUBLE_EQ(spread.mean, 3.0);
  EXPECT_DOUBLE_EQ(spread.deviation, std::sqrt(7.0));
  EXPECT_EQ(spread.low, 1.0);
  EXPECT_EQ(spread.high, 6.0);
  EXPECT_TRUE(std::isnan(spread_of(std::vector<double>{2.0}).deviation));
  EXPECT_TRUE(std::isnan(spread_of({}).mean));
}

TEST(CompareAnalysis, EachIsTakenAtItsOwnBestRate) {
  CompareResult result = plain_result();
  result.runs.back().epochs.back().loss = 0.3;
  const std::vector<Entry> entries = analyse(result);
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_EQ(entries[0].at_best().rate, 0.01);
  EXPECT_EQ(entries[1].at_best().rate, 0.01);
  EXPECT_NEAR(entries[0].at_best().final.mean, 1e-3, 1e-12);
  EXPECT_NEAR(entries[0].at_best().final.deviation, 1e-4, 1e-12);
  EXPECT_EQ(entries[0].edge, Edge::kInside);
}

TEST(CompareAnalysis, OneSeedThatDivergesSpoilsTheRate) {
  const std::vector<Entry> entries = analyse(plain_result());
  EXPECT_EQ(entries[0].rates[2].diverged, 1U);
  EXPECT_FALSE(std::isfinite(entries[0].rates[2].final.mean));
}

TEST(CompareAnalysis, EdgesOfTheGridAreSeen) {
  for (const auto& [finals, edge] : {std::pair{std::vector{1.0, 2.0, 3.0}, Edge::kLowest},
                                     std::pair{std::vector{3.0, 2.0, 1.0}, Edge::kHighest},
                                     std::pair{std::vector{2.0, 1.0, kDiverged}, Edge::kInside}}) {
    CompareResult result = empty_result({"rr"}, {1, 2, 3}, 1, 2);
    for (std::size_t i = 0; i < 3; ++i)
      add_runs(result, {"rr", "constant", "none"}, result.rates[i], {finals[i]});
    EXPECT_EQ(analyse(result)[0].edge, edge);
  }
  CompareResult single = empty_result({"rr"}, {1}, 1, 2);
  add_runs(single, {"rr", "constant", "none"}, 1, {1.0});
  EXPECT_EQ(analyse(single)[0].edge, Edge::kOnlyRate);
}

TEST(CompareAnalysis, ReachedIsTheFirstEpochAsLowAsTheBaselineEverWas) {
  const CompareResult result = plain_result();
  const std::vector<Entry> entries = analyse(result);
  EXPECT_EQ(entries[0].reached, 10U);
  // rr ends at 1e-3 and pair falls to 1e-4 in ten even steps of 0.4 decades: 3 decades take 8 of them.
  EXPECT_EQ(entries[1].reached, 8U);
}

TEST(CompareAnalysis, ReachedIsNeverForWhatStaysAbove) {
  CompareResult result = empty_result({"rr", "so"}, {1}, 2, 4);
  add_runs(result, {"rr", "constant", "none"}, 1, {0.1, 0.1});
  add_runs(result, {"so", "constant", "none"}, 1, {0.2, 0.2});
  EXPECT_EQ(analyse(result)[1].reached, std::nullopt);
}

TEST(CompareAnalysis, ACurveEndsWhereARunDoes) {
  const CompareResult result = plain_result();
  const Curve curve = loss_curve(result, {"rr", "constant", "none"}, 0.1);
  ASSERT_EQ(curve.mean.size(), 11U);
  EXPECT_TRUE(std::isnan(curve.mean.back()));
}

TEST(CompareAnalysis, StandingNeedsMoreThanTheDeviationOfADifference) {
  const auto spread = [](double mean, double deviation) { return Spread{mean, deviation, 0, 0, 2}; };
  EXPECT_EQ(compare_finals(spread(1.0, 0.3), spread(1.51, 0.4)), Standing::kBelow);
  EXPECT_EQ(compare_finals(spread(1.0, 0.3), spread(1.49, 0.4)), Standing::kAlike);
  EXPECT_EQ(compare_finals(spread(1.51, 0.3), spread(1.0, 0.4)), Standing::kAbove);
  EXPECT_EQ(compare_finals(spread(1.0, 0.0), spread(1.0, 0.0)), Standing::kAlike);
  EXPECT_EQ(compare_finals(spread(1.0, kNotThere), spread(9.0, 0.1)), Standing::kUnknown);
}

TEST(CompareAnalysis, OneWildSeedDoesNotHideThatEverySeedEndsBelow) {
  const Spread steady{1.0, 0.1, 0.9, 1.1, 3};
  EXPECT_EQ(compare_finals(steady, Spread{9.0, 12.0, 1.2, 24.0, 3}), Standing::kBelow);
  EXPECT_EQ(compare_finals(Spread{9.0, 12.0, 1.2, 24.0, 3}, steady), Standing::kAbove);
  EXPECT_EQ(compare_finals(steady, Spread{9.0, 12.0, 1.0, 24.0, 3}), Standing::kAlike);
  EXPECT_EQ(compare_finals({1.0, 0.1, 0.9, 1.1, 2}, {9.0, 12.0, 1.2, 24.0, 2}), Standing::kAlike);
}

TEST(CompareVerdict, SaysYesByHowMuchAndWhatWasNotTried) {
  const Verdict verdict = judge(plain_result());
  EXPECT_EQ(verdict.sentence.rfind("Yes: `pair` ends 10 times nearer the optimum than `rr`", 0), 0U)
      << verdict.sentence;
  EXPECT_TRUE(notes_have(verdict, "constant rates only"));
}

TEST(CompareVerdict, SaysNoWhenATunedBaselineIsAsGood) {
  const Verdict verdict = judge(with_cosine({5e-5, 7e-5, 6e-5}, {5e-5, 6e-5, 6e-5}));
  EXPECT_EQ(verdict.sentence.rfind("No: `rr, cosine` is as good as `pair, cosine`", 0), 0U)
      << verdict.sentence;
  EXPECT_TRUE(has(verdict.sentence, "only at a constant rate `pair` ends 10 times nearer"))
      << verdict.sentence;
  EXPECT_TRUE(has(verdict.headline, "Only at a constant rate"));
  EXPECT_FALSE(notes_have(verdict, "constant rates only"));
}

TEST(CompareVerdict, SaysNoWhenTheBaselineEndsLower) {
  const Verdict verdict = judge(with_cosine({1e-6, 1e-6, 1e-6}, {2e-5, 2e-5, 2e-5}));
  EXPECT_EQ(verdict.sentence.rfind("No: `rr, cosine` ends 20 times nearer", 0), 0U) << verdict.sentence;
}

TEST(CompareVerdict, SaysYesOnBothCounts) {
  const Verdict verdict = judge(with_cosine({1e-5, 1.1e-5, 1e-5}, {1e-6, 1e-6, 1e-6}));
  EXPECT_EQ(verdict.sentence.rfind("Yes: `pair, cosine`", 0), 0U) << verdict.sentence;
  EXPECT_TRUE(has(verdict.sentence, "; and at a constant rate `pair`")) << verdict.sentence;
}

TEST(CompareVerdict, OneSeedDecidesNothing) {
  CompareResult result = empty_result({"rr", "pair"}, {0.1}, 1, 1);
  add_runs(result, {"rr", "constant", "none"}, 0.1, {0.5});
  add_runs(result, {"pair", "constant", "none"}, 0.1, {0.1});
  const Verdict verdict = judge(result);
  EXPECT_EQ(verdict.sentence.rfind("Undecided: `pair` ends 0.4 lower", 0), 0U) << verdict.sentence;
  EXPECT_TRUE(notes_have(verdict, "one rate was tried"));
}

TEST(CompareVerdict, DivergedRunsAreNamed) {
  CompareResult result = empty_result({"rr", "pair"}, {0.1, 1.0}, 2, 3);
  for (const double rate : result.rates) {
    add_runs(result, {"rr", "constant", "none"}, rate, {kDiverged, kDiverged});
    add_runs(result, {"pair", "constant", "none"}, rate, {kDiverged, kDiverged});
  }
  EXPECT_TRUE(has(judge(result).sentence, "every run diverged"));
  for (RunRecord& run : result.runs) {
    run.diverged = run.recipe.order == "pair";
    run.epochs.back().loss = 0.5;
  }
  EXPECT_TRUE(has(judge(result).sentence, "every order but `rr` diverged"));
  EXPECT_TRUE(notes_have(judge(result), "diverged at every rate, for at least one seed: `pair`"));
}

TEST(CompareVerdict, ARunBelowTheOptimumTakesTheFactorAway) {
  CompareResult result = plain_result();
  for (RunRecord& run : result.runs) {
    if (run.recipe.order == "pair" && run.rate == 0.01) run.epochs.back().loss = 0.3 - 1e-7;
  }
  const Verdict verdict = judge(result);
  EXPECT_TRUE(has(verdict.sentence, "Yes: `pair` ends 0.001 lower")) << verdict.sentence;
  EXPECT_TRUE(notes_have(verdict, "1e-07 below the optimum"));
}

TEST(CompareVerdict, TheBestOfManyIsDoubted) {
  CompareResult result = empty_result({"rr", "pair", "mean", "so"}, {0.1}, 3, 3);
  add_runs(result, {"rr", "constant", "none"}, 0.1, {0.50, 0.51, 0.52});
  add_runs(result, {"pair", "constant", "none"}, 0.1, {0.48, 0.49, 0.50});
  add_runs(result, {"mean", "constant", "none"}, 0.1, {0.50, 0.51, 0.52});
  add_runs(result, {"so", "constant", "none"}, 0.1, {0.50, 0.51, 0.52});
  EXPECT_TRUE(notes_have(judge(result), "best of 3 orders"));
}

TEST(CompareVerdict, WhoIsFirstByTheClockIsSaid) {
  CompareResult result = plain_result();  // pair is there after 8 epochs, rr after 10
  EXPECT_TRUE(notes_have(judge(result), "not by the clock: `pair` takes the time of 10.6 epochs"));
  result.costs[1].observe_seconds = 0.1;
  EXPECT_TRUE(notes_have(judge(result), "by the clock as well: `pair` takes the time of 9.0 epochs"));
  result.costs.clear();
  EXPECT_FALSE(notes_have(judge(result), "by the clock"));
}

TEST(CompareVerdict, TheEdgeOfTheGridIsNamed) {
  CompareResult result = plain_result();
  result.rates = {0.001, 0.01};
  EXPECT_TRUE(
      notes_have(judge(result), "best at the largest rate tried: `rr`, `pair`; extend --lr to larger ones"));
}

TEST(CompareTables, FitTheTerminalAndLineUp) {
  const CompareResult result = with_cosine({1e-5, 1.1e-5, 1e-5}, {1e-6, 1e-6, 1e-6});
  const std::vector<Entry> entries = analyse(result);
  const std::string text = compare_tables(result, entries, judge(result, entries));
  EXPECT_TRUE(has(text, "1.00e-04 \u00b1 1.0e-05"));
  EXPECT_TRUE(has(text, "0.001*")) << text;
  EXPECT_TRUE(has(text, "+10 MB"));
  EXPECT_TRUE(has(text, "1.33x"));
  std::istringstream lines(text);
  std::size_t at = 0;
  for (std::string line; std::getline(lines, line) && !line.empty() && line[0] != '*'; ++at)
    EXPECT_LE(line.size(), 124U);
  EXPECT_EQ(at, 5U);
}

TEST(CompareTables, SummaryIsOneLineOfJson) {
  CompareResult result = plain_result();
  result.command = "caf\xe9";
  const std::vector<Entry> entries = analyse(result);
  const json summary = json::parse(compare_summary_line(result, entries, judge(result, entries)));
  EXPECT_EQ(summary["event"], "summary");
  EXPECT_EQ(summary["entries"][1]["best_rate"], 0.01);
  EXPECT_EQ(summary["entries"][1]["reached_rr_best_at_epoch"], 8);
  EXPECT_TRUE(summary["entries"][0]["rates"][2]["final"]["mean"].is_null());
}

TEST(CompareTables, ColumnsCountCharacters) {
  EXPECT_EQ(align_columns({{"a", "b\u00b1c"}, {"long", "d"}}, 1), "a     b\u00b1c\nlong    d\n");
}

TEST(Numbers, DeviationSharesThePlaceOfItsMean) {
  EXPECT_EQ(format_deviation(0.32456, 0.00123), "0.3246 \u00b1 0.0012");
  EXPECT_EQ(format_deviation(5.2, 0.25), "5.20 \u00b1 0.25");
  EXPECT_EQ(format_deviation(6.93e-5, 7e-7), "6.93e-05 \u00b1 7.0e-07");
  EXPECT_EQ(format_deviation(0.5, kNotThere), "0.5000");
  EXPECT_EQ(format_deviation(0.5, 0.0), "0.5000 \u00b1 0");
  EXPECT_EQ(format_deviation(kDiverged, kNotThere), "diverged");
  EXPECT_EQ(format_duration(0.0), "0 ms");
  EXPECT_EQ(format_duration(0.000123), "0.12 ms");
  EXPECT_EQ(format_duration(0.0123), "12 ms");
  EXPECT_EQ(format_duration(59.7), "1 min 00 s");
  EXPECT_EQ(format_duration(7500), "2 h 05 min");
}

/// Ids, as they would be looked up.
std::vector<std::string> ids_of(const std::string& page) {
  std::vector<std::string> ids;
  for (std::size_t at = page.find(" id=\""); at != std::string::npos; at = page.find(" id=\"", at + 1)) {
    ids.push_back(page.substr(at + 5, page.find('"', at + 5) - at - 5));
  }
  return ids;
}

/// Numbers that a browser would complain of.
void expect_sound(const std::string& page) {
  const std::vector<std::string> ids = ids_of(page);
  EXPECT_EQ(std::set(ids.begin(), ids.end()).size(), ids.size());
  for (const char* bad : {"\"nan", "\"-nan", "\"inf", "\"-inf", " nan", "Lnan", " inf"})
    EXPECT_FALSE(has(page, bad)) << bad;
  EXPECT_FALSE(has(page, "<script"));
}

TEST(ComparePage, HasAFigureForEveryQuestion) {
  CompareResult result = with_cosine({1e-5, 1.1e-5, 1e-5}, {1e-6, 1e-6, 1e-6});
  for (RunRecord& run : result.runs) {
    for (EpochPoint& point : run.epochs) point.bound = 3.0;
  }
  const std::string page = page_of(result);
  expect_sound(page);
  for (const char* part :
       {"Loss against epochs", "Loss against seconds", "Final loss against the learning rate",
        "Herding bound", "Seconds of one epoch", "Every run", "at equal rates", "Constant rate",
        "Cosine schedule", "class=\"band\"", "cdgrab compare</pre>"}) {
    EXPECT_TRUE(has(page, part)) << part;
  }
}

TEST(ComparePage, EscapesNames) {
  CompareResult result = empty_result({"rr", "file; path=<b>&'\".npy"}, {0.1, 0.2}, 2, 2);
  result.command = "cdgrab <i>";
  for (const double rate : result.rates) {
    for (const std::string& order : result.orders)
      add_runs(result, {order, "constant", "none"}, rate, {0.5, 0.6});
  }
  const std::string page = page_of(result);
  expect_sound(page);
  EXPECT_FALSE(has(page, "<b>"));
  EXPECT_FALSE(has(page, "<i>"));
}

TEST(ComparePage, HoldsWhenThereIsLittleToShow) {
  CompareResult one = empty_result({"rr", "pair"}, {0.1}, 1, 1);
  add_runs(one, {"rr", "constant", "none"}, 0.1, {0.5});
  add_runs(one, {"pair", "constant", "none"}, 0.1, {0.4});
  expect_sound(page_of(one));

  CompareResult diverged = empty_result({"rr", "pair"}, {0.1, 1.0}, 2, 3);
  diverged.optimum = 0.1;
  for (const double rate : diverged.rates) {
    for (const std::string& order : diverged.orders)
      add_runs(diverged, {order, "constant", "none"}, rate, {kDiverged, kDiverged});
  }
  const std::string page = page_of(diverged);
  expect_sound(page);
  EXPECT_TRUE(has(page, "Nothing to draw: no value above zero."));

  CompareResult below = plain_result();
  for (RunRecord& run : below.runs) run.epochs.back().loss = 0.2;
  expect_sound(page_of(below));
}

TEST(ComparePage, TwelveOrdersFit) {
  std::vector<std::string> orders = {"rr"};
  for (int i = 1; i < 12; ++i) orders.push_back("recursive; depth=" + std::to_string(i));
  CompareResult result = empty_result(orders, {0.1, 0.2, 0.3}, 3, 5);
  for (const double rate : result.rates) {
    for (const std::string& order : orders)
      add_runs(result, {order, "constant", "none"}, rate, {0.5, 0.6, 0.55});
  }
  for (const std::string& order : orders) result.costs.push_back({order, 1.0, 0.2, 0.1, 1e8});
  expect_sound(page_of(result));
}

TEST(Chart, ABandBelowALogAxisEndsAtItsFoot) {
  Chart chart;
  chart.id = "a";
  chart.log_y = true;
  chart.series.push_back({"x", {1, 2}, {1.0, 0.5}, Role::kCompared, {-1.0, 0.1}, {2.0, 1.0}});
  const std::string svg = render_svg(chart);
  EXPECT_TRUE(has(svg, "class=\"band\""));
  EXPECT_FALSE(has(svg, "nan"));
}

/// A folder of its own.
class CompareStore : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "cdgrab_store_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  [[nodiscard]] fs::path file() const { return folder_ / "runs.jsonl"; }

  [[nodiscard]] std::string text() const {
    std::ifstream stream(file(), std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  fs::path folder_;
  Settings settings_ = {{"batch", "16"}, {"epochs", "10"}};
};

TEST_F(CompareStore, GivesBackWhatItTook) {
  CompareResult result = plain_result();
  { RunStore(file(), settings_).add(result.runs); }
  const RunStore store(file(), settings_);
  for (const RunRecord& run : result.runs) {
    const RunRecord* found = store.find(run.recipe, run.rate, run.seed);
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(run_line(*found), run_line(run));
    EXPECT_EQ(found->epochs.back().loss == run.epochs.back().loss, !run.diverged);
  }
  EXPECT_EQ(store.find({"rr", "constant", "none"}, 0.5, 0), nullptr);
}

TEST_F(CompareStore, KeepsTheOptimumOrThatThereIsNone) {
  {
    RunStore store(file(), settings_);
    EXPECT_FALSE(store.knows_optimum());
    store.keep_optimum(0.1 + 0.2);
  }
  EXPECT_EQ(RunStore(file(), settings_).optimum(), 0.1 + 0.2);
  fs::remove(file());
  { RunStore(file(), settings_).keep_optimum(std::nullopt); }
  const RunStore store(file(), settings_);
  EXPECT_TRUE(store.knows_optimum());
  EXPECT_EQ(store.optimum(), std::nullopt);
}

TEST_F(CompareStore, RefusesOtherSettings) {
  { const RunStore store(file(), settings_); }
  settings_[1].second = "20";
  try {
    const RunStore store(file(), settings_);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_TRUE(has(error.what(), "epochs `10`, and here it is `20`")) << error.what();
  }
}

TEST_F(CompareStore, DropsALineThatWasCutOff) {
  CompareResult result = plain_result();
  { RunStore(file(), settings_).add(result.runs); }
  const std::string whole = text();
  std::ofstream(file(), std::ios::binary | std::ios::app) << whole.substr(0, 40);
  const RunStore store(file(), settings_);
  EXPECT_EQ(text(), whole);
}

TEST_F(CompareStore, NamesTheLineThatIsDamaged) {
  { const RunStore store(file(), settings_); }
  std::ofstream(file(), std::ios::binary | std::ios::app) << "{\"event\":\"run\"}\n";
  try {
    const RunStore store(file(), settings_);
    FAIL();
  } catch (const FileError& error) {
    EXPECT_TRUE(has(error.what(), "line 2")) << error.what();
  }
}

TEST_F(CompareStore, IsForOneProcessAtATime) {
  const RunStore store(file(), settings_);
  EXPECT_THROW(RunStore(file(), settings_), FileError);
}

}  // namespace
}  // namespace cdgrab::cli

// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/sampler.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "cdgrab/dense_geometry.hpp"
#include "cdgrab/error.hpp"
#include "unit/temp_folder.hpp"

namespace cdgrab {
namespace {

using test::message_of;

constexpr std::size_t kDim = 3;

std::vector<Index> order_of(const Sampler& sampler) {
  return {sampler.order().begin(), sampler.order().end()};
}

std::vector<Index> take(Sampler& sampler, std::size_t count) {
  const auto handed = sampler.next(count);
  return {handed.begin(), handed.end()};
}

/// Integer-valued rows that differ from call to call.
std::vector<float> some_rows(std::size_t count) {
  static int call = 0;
  std::vector<float> rows(count * kDim);
  for (float& value : rows) value = static_cast<float>((call++ * 7919) % 11 - 5);
  return rows;
}

void observe(Sampler& sampler, std::size_t count) {
  const auto rows = some_rows(count);
  sampler.observe(Rows<float>{rows.data(), count, kDim});
}

TEST(Sampler, HandingOutAndObservingAreTwoCursors) {
  Sampler sampler(10, parse_spec("pair"));
  take(sampler, 6);
  EXPECT_EQ(sampler.outstanding(), 6U);
  observe(sampler, 2);
  take(sampler, 4);
  EXPECT_EQ(sampler.outstanding(), 8U);
  observe(sampler, 8);
  EXPECT_EQ(sampler.outstanding(), 0U);
  EXPECT_TRUE(sampler.next(1).empty());
}

TEST(Sampler, StartingOverIsAPeekUntilSomethingWasObserved) {
  Sampler sampler(10, parse_spec("rr"));
  const auto first = order_of(sampler);
  sampler.begin();
  EXPECT_EQ(take(sampler, 3), std::vector<Index>(first.begin(), first.begin() + 3));
  sampler.begin();
  EXPECT_EQ(sampler.epoch(), 0U);
  EXPECT_EQ(take(sampler, 10), first);
  sampler.begin();
  EXPECT_EQ(sampler.epoch(), 1U);
  take(sampler, 1);
  observe(sampler, 1);
  sampler.begin();
  EXPECT_EQ(sampler.epoch(), 2U);
}

TEST(Sampler, AnExplicitEndOfTheEpochIsNotCountedTwice) {
  Sampler sampler(4, parse_spec("pair"));
  sampler.begin();
  take(sampler, 4);
  observe(sampler, 4);
  sampler.end_epoch();
  EXPECT_EQ(sampler.epoch(), 1U);
  sampler.begin();
  EXPECT_EQ(sampler.epoch(), 1U);
}

TEST(Sampler, NoExamplesMakeEmptyEpochs) {
  for (const std::string spec : {"pair", "mean", "recursive", "rr", "swr", "greedy"}) {
    Sampler sampler(0, parse_spec(spec));
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
      sampler.begin();
      EXPECT_EQ(sampler.epoch(), epoch) << spec;
      EXPECT_TRUE(sampler.next(5).empty());
    }
    EXPECT_THROW(observe(sampler, 1), UserError);
  }
}

TEST(Sampler, ObservingMoreThanIsOutstandingIsRefusedAndChangesNothing) {
  Sampler sampler(10, parse_spec("pair"));
  take(sampler, 3);
  const State before = sampler.state();
  EXPECT_THROW(observe(sampler, 4), UserError);
  EXPECT_EQ(sampler.state(), before);
}

TEST(Sampler, NamedExamplesMayComeInAnyOrderButOnlyOnce) {
  Sampler sampler(6, parse_spec("pair"));
  const auto handed = take(sampler, 4);
  const auto rows = some_rows(2);
  const Rows<float> two{rows.data(), 2, kDim};
  sampler.observe(two, std::vector<Index>{handed[3], handed[1]});
  EXPECT_EQ(sampler.outstanding(), 2U);
  const State before = sampler.state();
  EXPECT_THROW(sampler.observe(two, std::vector<Index>{handed[0], handed[1]}), UserError)
      << "observed before";
  EXPECT_THROW(sampler.observe(two, std::vector<Index>{handed[0], handed[0]}), UserError) << "named twice";
  EXPECT_THROW(sampler.observe(two, std::vector<Index>{handed[0], sampler.order()[5]}), UserError)
      << "not handed out";
  EXPECT_THROW(sampler.observe(two, std::vector<Index>{handed[0], 77}), UserError) << "out of range";
  EXPECT_THROW(sampler.observe(two, std::vector<Index>{handed[0]}), UserError) << "one example, two vectors";
  EXPECT_EQ(sampler.state(), before);
  observe(sampler, 2);
  EXPECT_EQ(sampler.report().observed, 4U);
}

TEST(Sampler, VectorsOfAnotherLengthOrTypeAreRefused) {
  Sampler sampler(10, parse_spec("pair"));
  take(sampler, 10);
  observe(sampler, 2);
  const std::vector<float> longer(2 * (kDim + 1));
  const std::vector<double> wider(2 * kDim);
  EXPECT_THROW(sampler.observe(Rows<float>{longer.data(), 2, kDim + 1}), UserError);
  EXPECT_THROW(sampler.observe(Rows<double>{wider.data(), 2, kDim}), UserError);
}

TEST(Sampler, AVectorThatIsNotFiniteCountsAsUnseenAndReachesNoRegister) {
  for (const std::string spec :
       {"pair", "mean", "batch", "recursive", "recursive-pair", "mean; centring=ema", "pair; normalize"}) {
    Sampler clean(8, parse_spec(spec), {.initial_order = identity_order(8)});
    Sampler dirty(8, parse_spec(spec), {.initial_order = identity_order(8)});
    const auto good = some_rows(7);
    std::vector<float> with_bad = good;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    with_bad.insert(with_bad.begin() + 3 * kDim, {1.0F, nan, 2.0F});
    take(clean, 8);
    take(dirty, 8);
    clean.observe(Rows<float>{good.data(), 7, kDim}, std::vector<Index>{0, 1, 2, 4, 5, 6, 7});
    dirty.observe(Rows<float>{with_bad.data(), 8, kDim});
    EXPECT_EQ(dirty.report().not_finite, 1U) << spec;
    EXPECT_EQ(dirty.next_order(), clean.next_order()) << spec;
    State a;
    State b;
    clean.geometry()->save(a);
    dirty.geometry()->save(b);
    EXPECT_EQ(a, b) << spec;
  }
}

TEST(Sampler, ProductsThatOverflowAreTreatedLikeVectorsThatAreNotFinite) {
  for (const std::string spec :
       {"pair", "mean", "mean; centring=none", "recursive-pair", "pair; normalize"}) {
    Sampler sampler(6, parse_spec(spec));
    take(sampler, 6);
    const std::vector<float> rows(6 * kDim, 1e38F);
    std::vector<float> mixed = rows;
    for (std::size_t i = 0; i < mixed.size(); i += 2) mixed[i] = -1e38F;
    sampler.observe(Rows<float>{mixed.data(), 6, kDim});
    EXPECT_EQ(sampler.report().observed, 6U) << spec;
    EXPECT_TRUE(is_permutation(sampler.next_order())) << spec;
  }
}

TEST(Sampler, TheReportCountsWhatBecameOfEveryUnit) {
  Sampler sampler(9, parse_spec("pair"));
  take(sampler, 7);
  observe(sampler, 5);
  const EpochReport report = sampler.report();
  EXPECT_EQ(report.observed, 5U);
  EXPECT_EQ(report.unpaired, 1U);
  EXPECT_EQ(report.unobserved, 4U);
  sampler.end_epoch();
  EXPECT_EQ(sampler.last_report().observed, 5U);
  EXPECT_EQ(sampler.report().observed, 0U);
}

TEST(Sampler, AStateGoesOnInAnotherSamplerAndIsAFixpoint) {
  Sampler sampler(11, parse_spec("pair"), {.seed = 3});
  take(sampler, 7);
  observe(sampler, 5);
  const State state = sampler.state();
  Sampler other(11, parse_spec("pair"), {.seed = 4});
  other.load(state);
  EXPECT_EQ(other.state(), state);
  EXPECT_EQ(other.seed(), 3U);
  other.begin();
  other.begin();
  EXPECT_EQ(take(other, 11), take(sampler, 11));
}

TEST(Sampler, AStateSavedAtTheEndOfAnEpochBeginsTheNextOne) {
  Sampler sampler(6, parse_spec("rr"));
  take(sampler, 6);
  Sampler other(6, parse_spec("rr"));
  other.load(sampler.state());
  other.begin();
  EXPECT_EQ(other.epoch(), 1U);
  EXPECT_EQ(take(other, 6).size(), 6U);
}

/// Each refusal names the field and leaves the sampler as it was.
TEST(Sampler, AForeignStateIsRefusedByNameAndChangesNothing) {
  Sampler sampler(10, parse_spec("pair"));
  take(sampler, 4);
  observe(sampler, 3);
  const State before = sampler.state();
  const auto refused = [&](const Sampler& from, const std::string& field) {
    const std::string message = message_of<StateMismatch>([&] { sampler.load(from.state()); });
    EXPECT_NE(message.find(field), std::string::npos) << message;
    EXPECT_EQ(sampler.state(), before);
  };
  refused(Sampler(11, parse_spec("pair")), "examples");
  refused(Sampler(10, parse_spec("mean")), "spec");
  refused(Sampler(10, parse_spec("pair; sign=walk,c=3")), "spec");
}

TEST(Sampler, AStateWithAFieldThatCannotBeIsRefused) {
  Sampler sampler(10, parse_spec("pair"));
  take(sampler, 4);
  observe(sampler, 3);
  const State good = sampler.state();
  const auto refused = [&](const std::string& key, auto value) {
    State bad = good;
    bad.set(key, value);
    Sampler other(10, parse_spec("pair"));
    const State before = other.state();
    EXPECT_NE(message_of<StateMismatch>([&] { other.load(bad); }).find(key), std::string::npos) << key;
    EXPECT_EQ(other.state(), before);
  };
  refused("handed_out", std::int64_t{11});
  refused("handed_out", std::int64_t{-1});
  refused("epoch", std::int64_t{-1});
  refused("balancer.waiting", std::span<const std::int64_t>(std::vector<std::int64_t>{10}));
  refused("order.current", std::span<const Index>(std::vector<Index>(10)));
  refused("codes", std::span<const std::uint16_t>(std::vector<std::uint16_t>(10, 3)));
  refused("codes", std::span<const std::uint16_t>(std::vector<std::uint16_t>(9)));
  refused("geometry.dim", std::int64_t{-4});
  refused("accumulator.0", std::span<const float>(std::vector<float>(2)));
}

TEST(Sampler, AStateWhoseShortUnitIsNotLastIsRefused) {
  for (const std::string key : {"order.current", "order.initial"}) {
    State bad = Sampler(10, parse_spec("block-reversal; unit=4")).state();
    bad.set(key, std::span<const Index>(std::vector<Index>{2, 0, 1}));
    Sampler other(10, parse_spec("block-reversal; unit=4"));
    EXPECT_NE(message_of<StateMismatch>([&] { other.load(bad); }).find(key), std::string::npos) << key;
  }
}

TEST(Sampler, AStateWithRecordedVectorsOfAnotherLengthIsRefused) {
  Sampler sampler(4, parse_spec("pair"), {.record_herding = true});
  take(sampler, 4);
  observe(sampler, 2);
  State bad = sampler.state();
  bad.set("record.dim", std::int64_t{1});
  bad.set("record.rows", std::span<const double>(std::vector<double>(4)));
  const State before = sampler.state();
  EXPECT_NE(message_of<StateMismatch>([&] { sampler.load(bad); }).find("record.dim"), std::string::npos);
  EXPECT_EQ(sampler.state(), before);
}

TEST(Sampler, TheOrderWithoutATieRuleIsMirrored) {
  const auto run = [](const std::string& spec) {
    Sampler sampler(8, parse_spec(spec), {.initial_order = identity_order(8)});
    take(sampler, 8);
    std::vector<float> rows;
    for (int i = 0; i < 8; ++i)
      rows.insert(rows.end(), {static_cast<float>(i * i), 1.0F, static_cast<float>(-i)});
    sampler.observe(Rows<float>{rows.data(), 8, kDim});
    return sampler.next_order();
  };
  const auto plus = run("pair");
  const auto minus = run("pair; tie=minus");
  EXPECT_EQ(plus, std::vector<Index>(minus.rbegin(), minus.rend()));
}

TEST(Sampler, SeekGoesBackAndForthWithinTheEpoch) {
  Sampler sampler(10, parse_spec("pair"));
  const auto order = order_of(sampler);
  take(sampler, 8);
  observe(sampler, 2);
  const Position position = sampler.position();
  EXPECT_EQ(position, (Position{0, 8}));
  sampler.seek({0, 4});
  sampler.begin();
  EXPECT_EQ(sampler.outstanding(), 2U);
  EXPECT_EQ(take(sampler, 2), (std::vector<Index>{order[4], order[5]}));
  EXPECT_THROW(sampler.seek({1, 0}), UserError);
  EXPECT_THROW(sampler.seek({0, 11}), UserError);
}

/// What a loader ran ahead with is handed out again; what was observed out of order is not.
TEST(Sampler, AResumedEpochHandsOutWhatIsNotObservedInOrderAndNothingTwice) {
  for (const char* text : {"pair", "pair; unit=3", "mean; unit=4"}) {
    const Spec spec = parse_spec(text);
    Sampler sampler(38, spec);
    std::vector<std::size_t> times(38);
    std::size_t resumes = 0;
    for (std::size_t step = 0; step < 100 && sampler.report().unobserved > 0; ++step) {
      take(sampler, 7);
      // Every third unit handed out, the newest first: the rest is left for later.
      const auto outstanding = sampler.oldest_outstanding(0, sampler.outstanding());
      for (std::size_t k = outstanding.size(); k-- > 0;) {
        if (k % 3 != step % 3) continue;
        const auto row = some_rows(1);
        sampler.observe(Rows<float>{row.data(), 1, kDim}, std::vector<Index>{outstanding[k]});
        for (std::size_t i = outstanding[k]; i < std::min<std::size_t>(outstanding[k] + spec.unit, 38); ++i)
          ++times[i];
      }
      if (step % 2 == 0 || sampler.report().unobserved == 0) continue;
      Sampler other(38, spec);
      other.load(sampler.state());
      other.seek(other.trained_position());
      std::vector<Index> expected;
      for (const Index unit : sampler.order())
        for (std::size_t i = unit * spec.unit; i < std::min<std::size_t>((unit + 1) * spec.unit, 38); ++i)
          if (times[i] == 0) expected.push_back(static_cast<Index>(i));
      EXPECT_EQ(other.upcoming(100), expected) << text;
      other.begin();
      Sampler again(38, spec);
      again.load(other.state());
      EXPECT_EQ(take(again, 100), expected) << text << ": the state itself needs no seek";
      sampler = std::move(other);
      ++resumes;
    }
    EXPECT_GT(resumes, 2U);
    EXPECT_EQ(times, std::vector<std::size_t>(38, 1)) << text;
    EXPECT_TRUE(sampler.next(1).empty());
  }
}

TEST(Sampler, APeekAfterALoadCostsNothing) {
  Sampler sampler(10, parse_spec("pair"));
  take(sampler, 6);
  observe(sampler, 4);
  for (const bool replays : {false, true}) {
    Sampler other(10, parse_spec("pair"));
    other.load(sampler.state());
    if (replays)
      other.replay();
    else
      other.seek(other.trained_position());
    const auto rest = other.upcoming(10);
    EXPECT_EQ(rest.size(), replays ? 10U : 6U);
    other.begin();
    take(other, 3);
    other.begin();
    EXPECT_EQ(take(other, 10), rest);
    observe(other, 6);
    other.begin();
    EXPECT_EQ(other.epoch(), 1U);
  }
}

TEST(Sampler, AReplayHandsOutTheWholeEpochAgain) {
  Sampler sampler(10, parse_spec("pair"));
  const auto order = order_of(sampler);
  take(sampler, 8);
  observe(sampler, 5);
  sampler.replay();
  sampler.begin();
  EXPECT_EQ(take(sampler, 4), std::vector<Index>(order.begin(), order.begin() + 4));
  EXPECT_EQ(sampler.upcoming(10), std::vector<Index>(order.begin() + 4, order.end()));
  EXPECT_EQ(take(sampler, 10), std::vector<Index>(order.begin() + 4, order.end()));
  EXPECT_EQ(sampler.outstanding(), 5U);
  observe(sampler, 5);
  EXPECT_EQ(sampler.report().observed, 10U);
}

TEST(Sampler, ALoaderThatDropsShortBatchesResumesWithTheNextEpochWhenOnlySuchAOneIsLeft) {
  for (const char* spec : {"pair", "rr"}) {
    Sampler sampler(23, parse_spec(spec));
    sampler.begin();
    take(sampler, 20);
    if (sampler.spec().balances()) observe(sampler, 20);
    Sampler keeps(23, parse_spec(spec));
    keeps.load(sampler.state());
    keeps.begin();
    EXPECT_EQ(take(keeps, 23).size(), 3U) << spec;
    Sampler drops(23, parse_spec(spec));
    drops.drop_batches_below(4);
    drops.load(sampler.state());
    drops.begin();
    EXPECT_EQ(drops.epoch(), 1U) << spec;
    EXPECT_EQ(take(drops, 23).size(), 23U) << spec;
  }
}

TEST(Sampler, DiagnosticsOfAResumedEpochAreOfAllOfIt) {
  for (const char* spec : {"pair", "mean; unit=2", "rr"}) {
    const SamplerOptions options{.record_herding = true, .record_norms = true};
    Sampler whole(20, parse_spec(spec), options);
    const std::size_t units = whole.units();
    take(whole, 20);
    const auto rows = some_rows(units);
    const Rows<float> first{rows.data(), units / 2, kDim};
    const Rows<float> rest{rows.data() + units / 2 * kDim, units - units / 2, kDim};
    whole.observe(first);
    Sampler resumed(20, parse_spec(spec), options);
    resumed.load(whole.state());
    Sampler late(20, parse_spec(spec), options);
    Sampler without(20, parse_spec(spec));
    take(without, 20);
    without.observe(first);
    late.load(without.state());
    for (Sampler* sampler : {&whole, &resumed, &late}) {
      sampler->observe(rest);
      sampler->end_epoch();
    }
    ASSERT_TRUE(resumed.herding().has_value()) << spec;
    EXPECT_EQ(resumed.herding()->used.l2, whole.herding()->used.l2) << spec;
    EXPECT_EQ(resumed.herding()->next.linf, whole.herding()->next.linf) << spec;
    EXPECT_EQ(std::vector(resumed.norms().begin(), resumed.norms().end()),
              std::vector(whole.norms().begin(), whole.norms().end()));
    EXPECT_FALSE(late.herding().has_value()) << "half an epoch has no bound";
    take(late, 20);
    late.observe(Rows<float>{rows.data(), units, kDim});
    late.end_epoch();
    EXPECT_TRUE(late.herding().has_value());
  }
}

TEST(Sampler, DiagnosticsAreThereWhenAskedForAndOnlyThen) {
  Sampler off(6, parse_spec("pair"));
  Sampler on(6, parse_spec("pair"), {.record_herding = true, .record_norms = true, .record_timings = true});
  for (Sampler* sampler : {&off, &on}) {
    take(*sampler, 6);
    const std::vector<float> rows = {1, 0, 0, -1, 0, 0, 2, 0, 0, -2, 0, 0, 3, 4, 0, -3, -4, 0};
    sampler->observe(Rows<float>{rows.data(), 6, kDim});
  }
  const auto used = on.order()[4];
  EXPECT_DOUBLE_EQ(on.norms()[used], 5.0);
  on.end_epoch();
  off.end_epoch();
  ASSERT_TRUE(on.herding().has_value());
  EXPECT_GT(on.herding()->used.l2, 0.0);
  EXPECT_GE(on.herding()->used.l2, on.herding()->used.linf);
  EXPECT_GT(on.timings().balance, 0.0);
  EXPECT_FALSE(off.herding().has_value());
  EXPECT_TRUE(off.norms().empty());
  EXPECT_EQ(off.timings().balance, 0.0);
}

TEST(Sampler, AGeometryPassedInIsUsedThroughItsBlock) {
  auto geometry = std::make_unique<DenseGeometry<float>>(kDim);
  DenseGeometry<float>* dense = geometry.get();
  Sampler theirs(8, parse_spec("pair"), {.seed = 1}, std::move(geometry));
  Sampler ours(8, parse_spec("pair"), {.seed = 1});
  take(theirs, 8);
  take(ours, 8);
  const auto rows = some_rows(5);
  ours.observe(Rows<float>{rows.data(), 5, kDim});
  dense->set_block(rows.data(), 5);
  theirs.observe_block();
  EXPECT_EQ(theirs.next_order(), ours.next_order());
  EXPECT_THROW(ours.observe_block(), UserError);
  EXPECT_THROW(observe(theirs, 1), UserError);
  const State state = theirs.state();
  theirs.end_epoch();
  theirs.load(state);
  EXPECT_EQ(theirs.state(), state);
}

TEST(Sampler, WhatComesNextCanBeSeenWithoutHandingItOut) {
  for (const char* spec : {"pair", "pair; unit=3"}) {
    Sampler sampler(10, parse_spec(spec));
    take(sampler, 4);
    const std::vector<Index> seen = sampler.upcoming(5);
    EXPECT_EQ(sampler.position().handed_out, 4U);
    EXPECT_EQ(take(sampler, 5), seen) << spec;
    EXPECT_EQ(sampler.upcoming(5).size(), 1U);
    EXPECT_EQ(sampler.upcoming(0).size(), 0U);
  }
}

TEST(Sampler, TrainingStandsAtTheOldestExampleThatIsNotObserved) {
  Sampler sampler(10, parse_spec("pair"));
  take(sampler, 8);
  EXPECT_EQ(sampler.trained_position().handed_out, 0U);
  observe(sampler, 3);
  EXPECT_EQ(sampler.trained_position().handed_out, 3U);
  Sampler units(10, parse_spec("pair; unit=4"));
  take(units, 10);
  observe(units, 3);
  EXPECT_EQ(units.trained_position().handed_out, 10U);
  Sampler blind(10, parse_spec("rr"));
  take(blind, 8);
  EXPECT_EQ(blind.trained_position().handed_out, 8U) << "nobody says where it stands";
}

TEST(Sampler, NamesAreCheckedBeforeTheVectorsCome) {
  Sampler sampler(10, parse_spec("pair"));
  const std::vector<Index> handed = take(sampler, 4);
  EXPECT_NO_THROW(sampler.check_outstanding(handed));
  EXPECT_THROW(sampler.check_outstanding(std::vector<Index>{10}), UserError);
  EXPECT_THROW(sampler.check_outstanding(std::vector<Index>{handed[0], handed[0]}), UserError);
  EXPECT_THROW(sampler.check_outstanding(sampler.upcoming(1)), UserError);
  observe(sampler, 1);
  EXPECT_THROW(sampler.check_outstanding(std::vector<Index>{handed[0]}), UserError);
}

TEST(Sampler, SizesThatASpecCannotOrderAreRefused) {
  EXPECT_THROW(Sampler(10, parse_spec("recursive-pair; block=4")), UserError);
  EXPECT_NO_THROW(Sampler(12, parse_spec("recursive-pair; block=4")));
  EXPECT_THROW(Sampler(12, parse_spec("recursive-pair; block=4; unit=2")), UserError);
  EXPECT_NO_THROW(Sampler(15, parse_spec("recursive-pair; block=4; unit=2")));
  EXPECT_THROW(Sampler(std::size_t{1} << 40U, parse_spec("rr")), UserError);
}

TEST(Sampler, AKroneckerSketchWithoutShapesIsRefusedWhenTheFirstVectorsCome) {
  Sampler sampler(10, parse_spec("pair; sketch=kron:2"));
  take(sampler, 4);
  const State before = sampler.state();
  EXPECT_THROW(observe(sampler, 4), UserError);
  EXPECT_EQ(sampler.state(), before);
}

}  // namespace
}  // namespace cdgrab

// SPDX-License-Identifier: Apache-2.0
#include "training/settings.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "cdgrab/error.hpp"

namespace cdgrab::training {
namespace {

/// What check_settings says after the change.
std::string refusal(const std::function<void(Settings&)>& change, const char* task = "logistic") {
  Settings settings = default_settings(task);
  change(settings);
  try {
    check_settings(settings);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Settings, OfEveryTaskAreAllowed) {
  for (const tasks::TaskInfo& task : tasks::all_tasks()) check_settings(default_settings(task.name));
}

TEST(Settings, SurviveJson) {
  Settings settings = default_settings("lstm");
  settings.order = "mean; sign=walk,c=30";
  settings.seed = ~std::uint64_t{0};
  settings.source = {"some/file", 12, 34, true};
  settings.recipe.lr = 0.1 + 0.2;
  settings.average = Average::kTail;
  settings.herding = true;
  EXPECT_EQ(settings_from_json(nlohmann::ordered_json::parse(to_json(settings).dump())), settings);
}

TEST(Settings, HaveOneNameEach) {
  std::set<std::string> names;
  const Settings settings;
  visit_settings(settings, [&](const char* name, const auto&, const char*) {
    EXPECT_TRUE(names.insert(name).second) << name;
  });
  EXPECT_EQ(names.size(), 33U);
}

TEST(Settings, OfSomethingElseAreABadFile) {
  EXPECT_THROW(settings_from_json({{"task", "logistic"}}), FileError);
  EXPECT_THROW(settings_from_json({{"task", 3}}), FileError);
}

TEST(Settings, OutOfRangeAreRefusedByFlag) {
  const std::pair<const char*, std::function<void(Settings&)>> cases[] = {
      {"--lr", [](Settings& s) { s.recipe.lr = 0.0; }},
      {"--lr", [](Settings& s) { s.recipe.lr = -1.0; }},
      {"--lr", [](Settings& s) { s.recipe.lr = std::nan(""); }},
      {"--epochs", [](Settings& s) { s.recipe.epochs = 0; }},
      {"--batch", [](Settings& s) { s.recipe.batch = 0; }},
      {"--momentum", [](Settings& s) { s.recipe.momentum = 1.0; }},
      {"--l2", [](Settings& s) { s.recipe.l2 = -1e-4; }},
      {"--clip", [](Settings& s) { s.recipe.clip = -1.0; }},
      {"--decay", [](Settings& s) { s.recipe.decay = 1.0; }},
      {"--weight-decay", [](Settings& s) { s.recipe.weight_decay = 0.1; }},
      {"--threads", [](Settings& s) { s.threads = 0; }},
      {"--width", [](Settings& s) { s.sizes.width = 8; }},
      {"--order", [](Settings& s) { s.order = "pair; unit=4"; }},
      {"--order", [](Settings& s) { s.order = "curriculum; unit=4"; }},
      {"--order", [](Settings& s) { s.order = "score"; }},
      {"--workers", [](Settings& s) { s.workers = 2; }},
      {"--workers", [](Settings& s) { s.order = "cd-pair", s.workers = 65537; }},
      {"--split", [](Settings& s) { s.split = "label"; }},
      {"--split", [](Settings& s) { s.order = "d-rr", s.split = "dirichlet:0"; }},
      {"--overlap", [](Settings& s) { s.overlap = true; }},
      {"--herding", [](Settings& s) { s.order = "cd-pair", s.herding = true; }},
      {"--drop-last", [](Settings& s) { s.order = "pair; unit=16", s.recipe.drop_last = true; }},
      {"--drop-last", [](Settings& s) { s.order = "cd-pair", s.recipe.drop_last = true; }},
      {"--order", [](Settings& s) { s.order = "cd-pair; unit=4"; }}};
  for (const auto& [flag, change] : cases)
    EXPECT_NE(refusal(change).find(std::string("[") + flag + "]"), std::string::npos) << refusal(change);
  EXPECT_NE(refusal([](Settings& s) { s.sizes.heads = 3; }, "gpt").find("[--heads]"), std::string::npos);
  EXPECT_NE(refusal([](Settings& s) { s.sizes.width = 0; }, "mlp").find("[--width]"), std::string::npos);
}

TEST(Settings, AnUnknownTaskNamesTheNearest) {
  try {
    default_settings("lsmt");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("nearest is `lstm`"), std::string::npos) << error.what();
  }
}

TEST(Orders, CurriculumIsScoreByAnotherName) {
  const Order order = parse_order("curriculum");
  EXPECT_TRUE(order.curriculum);
  EXPECT_EQ(order.spec.name, OrderName::kScore);
  EXPECT_EQ(order.label, "curriculum");
  EXPECT_EQ(parse_order(order.label), order);
  EXPECT_FALSE(parse_order("pair").curriculum);
}

TEST(Orders, AListMayHoldIt) {
  const auto orders = parse_order_list("rr,curriculum,mean; sign=walk,c=30,pair");
  ASSERT_EQ(orders.size(), 4U);
  EXPECT_EQ(orders[1].label, "curriculum");
  EXPECT_EQ(orders[2].spec, parse_spec("mean; sign=walk,c=30"));
  EXPECT_EQ(orders[3].label, "pair");
}

TEST(Orders, ASlipInItIsNamed) {
  try {
    parse_order("curiculum");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("nearest is `curriculum`"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace cdgrab::training

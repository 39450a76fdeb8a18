// SPDX-License-Identifier: Apache-2.0
#include "training/record.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "cdgrab/error.hpp"

namespace cdgrab::training {
namespace {

using nlohmann::ordered_json;

/// JSON has no number that is not finite.
ordered_json number(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

double as_number(const ordered_json& json) {
  return json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
}

ordered_json bound(const HerdingBound& b) { return {{"l2", number(b.l2)}, {"linf", number(b.linf)}}; }
HerdingBound as_bound(const ordered_json& json) {
  return {as_number(json.at("l2")), as_number(json.at("linf"))};
}

[[noreturn]] void refuse_metrics(const std::exception& error) {
  throw FileError("metrics",
                  fmt::format("not the metrics of a run: {}; use the file that cdgrab wrote", error.what()));
}

}  // namespace

ordered_json to_json(const EpochRecord& record, const std::string& metric) {
  ordered_json out = {{"epoch", record.epoch},
                      {"train_loss", number(record.last.loss)},
                      {"metric", metric},
                      {"value", number(record.last.metric)}};
  if (record.average) {
    out["average_train_loss"] = number(record.average->loss);
    out["average_value"] = number(record.average->metric);
  }
  out["lr"] = record.lr;
  out["seconds"] = {{"training", record.seconds.training},
                    {"observing", record.seconds.observing},
                    {"evaluating", record.seconds.evaluating},
                    {"ordering", record.seconds.ordering}};
  if (record.herding)
    out["herding"] = {{"used", bound(record.herding->used)}, {"next", bound(record.herding->next)}};
  if (record.diverged) out["diverged"] = true;
  return out;
}

EpochRecord record_from_json(const ordered_json& json) try {
  EpochRecord record;
  record.epoch = json.at("epoch").get<std::size_t>();
  record.last = {as_number(json.at("train_loss")), as_number(json.at("value"))};
  if (json.contains("average_train_loss"))
    record.average = Score{as_number(json.at("average_train_loss")), as_number(json.at("average_value"))};
  record.lr = json.at("lr").get<double>();
  const ordered_json& seconds = json.at("seconds");
  record.seconds = {seconds.at("training").get<double>(), seconds.at("observing").get<double>(),
                    seconds.at("evaluating").get<double>(), seconds.at("ordering").get<double>()};
  if (json.contains("herding"))
    record.herding = {as_bound(json.at("herding").at("used")), as_bound(json.at("herding").at("next"))};
  record.diverged = json.contains("diverged");
  return record;
} catch (const ordered_json::exception& error) {
  refuse_metrics(error);
}

std::vector<EpochRecord> parse_records(std::string_view text) try {
  std::vector<EpochRecord> records;
  for (const ordered_json& record : ordered_json::parse(text)) records.push_back(record_from_json(record));
  return records;
} catch (const ordered_json::exception& error) {
  refuse_metrics(error);
}

}  // namespace cdgrab::training

// SPDX-License-Identifier: Apache-2.0
// Every number of a run, by the names of its flags. Knows no torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cdgrab/spec.hpp"
#include "tasks/catalogue.hpp"

namespace cdgrab::training {

enum class Average { kNone, kTail };

std::string_view name_of(Average average);
Average parse_average(std::string_view text);

struct Settings {
  std::string task = "logistic";
  std::string order = "pair";
  std::uint64_t seed = 0;  ///< of the initial weights and of the order
  tasks::Source source;
  tasks::Sizes sizes;
  tasks::Recipe recipe;
  Average average = Average::kNone;
  bool herding = false;  ///< record the herding bound of each epoch's gradients
  std::size_t threads = 1;
  std::size_t workers = 0;     ///< of the orders of many; 0: one per rank, and 1 for the other orders
  std::string split = "even";  ///< how examples are dealt to workers (training/split.hpp)
  bool overlap = false;

  bool operator==(const Settings&) const = default;
};

/// Calls visit(name, value, meaning) for each of them: what flags, checkpoints and reports are made from.
/// `settings` is a Settings, const or not.
template <class S, class Visit>
void visit_settings(S& settings, const Visit& visit) {
  auto& [epochs, batch, drop_last, lr, momentum, l2, weight_decay, clip, optimizer, schedule, decay, patience,
         threshold] = settings.recipe;
  auto& [data, examples, data_seed, wide] = settings.source;
  auto& [width, layers, heads, length, horizon, stride, vocabulary] = settings.sizes;
  visit("task", settings.task, "What is trained: `cdgrab tasks` lists them");
  visit("order", settings.order, "Order of the examples, see below");
  visit("epochs", epochs, "Times that all examples are visited");
  visit("batch", batch, "Examples in a step");
  visit("drop-last", drop_last, "No step on a short last batch; others are left out in the next epoch");
  visit("lr", lr, "Learning rate");
  visit("schedule", schedule, "Of the learning rate: constant, cosine, linear or plateau");
  visit("average", settings.average, "Judge the mean of the last half's weights too: none or tail");
  visit("seed", settings.seed, "Of the initial weights and the order");
  visit("optimizer", optimizer, "sgd or adamw");
  visit("momentum", momentum, "sgd: share of the last step that is kept");
  visit("l2", l2, "The objective has l2/2 times the squared length of the weights");
  visit("weight-decay", weight_decay, "adamw: weights shrink by this times the rate, apart from the loss");
  visit("clip", clip, "Longest gradient of a step (0: any)");
  visit("decay", decay, "plateau: what the rate is multiplied by");
  visit("patience", patience, "plateau: epochs without a lower loss before that");
  visit("threshold", threshold, "plateau: how much lower counts");
  visit("data", data, "File or folder to read (none: generated)");
  visit("examples", examples, "Use the first so many, or generate so many (0: all)");
  visit("data-seed", data_seed, "Of generated examples");
  visit("width", width, "Of the model's layers");
  visit("layers", layers, "Of the model");
  visit("heads", heads, "Of attention");
  visit("length", length, "Words or values that an example shows");
  visit("horizon", horizon, "Values that are forecast");
  visit("stride", stride, "Values from one example of a series to the next");
  visit("vocabulary", vocabulary, "Words at most; all others are one");
  visit("float64", wide, "Numbers of 64 bits instead of 32");
  visit("herding", settings.herding, "Record the herding bound of each epoch's gradients (keeps them all)");
  visit("threads", settings.threads, "Threads of torch; results depend on the number");
  visit("workers", settings.workers,
        "Workers of cd-pair, id-pair and d-rr, of --batch examples each (0: one per rank)");
  visit("split", settings.split, "How examples are dealt to workers: even, label or dirichlet:ALPHA");
  visit("overlap", settings.overlap, "Balance while the next step is computed; the same orders");
}

/// Those of the papers. Throws UserError for an unknown task.
Settings default_settings(std::string_view task);

/// Throws UserError for what no run can have.
void check_settings(const Settings& settings);

/// What --resume may change: the run goes on.
bool may_change(std::string_view name);

nlohmann::ordered_json to_json(const Settings& settings);
/// Throws FileError for what to_json did not write.
Settings settings_from_json(const nlohmann::ordered_json& json);
/// The same of to_json's text.
Settings parse_settings(std::string_view text);

/// An order as train and compare know it: the core's, or `curriculum`, which is `score` by the last epoch's
/// losses.
struct Order {
  Spec spec;
  bool curriculum = false;
  std::string label;  ///< what parse_order() takes

  bool operator==(const Order&) const = default;
};

/// Throws UserError.
Order parse_order(std::string_view text);
/// "rr,curriculum,mean; sign=walk" is three.
std::vector<Order> parse_order_list(std::string_view text);

}  // namespace cdgrab::training

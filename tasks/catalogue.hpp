// SPDX-License-Identifier: Apache-2.0
// The tasks there are and the numbers they are trained with. Knows no torch: what lists, checks and
// plans does not have to load it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace cdgrab::tasks {

enum class Optimizer { kSgd, kAdamW };
enum class Schedule { kConstant, kCosine, kLinear, kPlateau };

/// How a model is trained, the order aside.
struct Recipe {
  std::size_t epochs = 50;
  std::size_t batch = 16;
  bool drop_last = false;  ///< no step on a short last batch, whose examples would weigh more than others
  double lr = 1e-3;
  double momentum = 0.9;      ///< sgd only
  double l2 = 0.0;            ///< the objective has l2 / 2 |w|^2 of all parameters
  double weight_decay = 0.0;  ///< adamw only, apart from the objective
  double clip = 0.0;          ///< longest gradient; 0: any
  Optimizer optimizer = Optimizer::kSgd;
  Schedule schedule = Schedule::kConstant;
  /// plateau only: the rate is multiplied by `decay` when the training loss has not fallen by more than
  /// `threshold` for more than `patience` epochs.
  double decay = 0.1;
  std::size_t patience = 5;
  double threshold = 0.005;

  bool operator==(const Recipe&) const = default;
};

/// Of models and examples; 0 where a task has no such thing.
struct Sizes {
  std::size_t width = 0;
  std::size_t layers = 0;
  std::size_t heads = 0;
  std::size_t length = 0;      ///< steps that an example shows: words, or values of a series
  std::size_t horizon = 0;     ///< values that are forecast
  std::size_t stride = 0;      ///< values from one example of a series to the next
  std::size_t vocabulary = 0;  ///< words at most

  bool operator==(const Sizes&) const = default;
};

/// Where examples come from.
struct Source {
  std::string data;             ///< a file or folder; empty: generated
  std::size_t examples = 0;     ///< the first so many; 0: all, or as many as the generator makes
  std::uint64_t data_seed = 0;  ///< of generated examples
  bool wide = false;            ///< float64

  bool operator==(const Source&) const = default;
};

struct TaskInfo {
  std::string_view name;
  std::string_view model;
  std::string_view data;     ///< what it reads
  std::string_view setting;  ///< of the papers
  Recipe recipe;
  Sizes sizes;
};

std::span<const TaskInfo> all_tasks();

/// Throws UserError that names the nearest.
const TaskInfo& find_task(std::string_view name);

/// The words of the flags; parsing throws UserError.
std::string_view name_of(Optimizer optimizer);
std::string_view name_of(Schedule schedule);
Optimizer parse_optimizer(std::string_view text);
Schedule parse_schedule(std::string_view text);

class Task;

/// Reads or generates the examples. Throws FileError for what cannot be read, UserError for sizes that make
/// no sense. Needs torch.
std::shared_ptr<const Task> open_task(std::string_view name, const Source& source, const Sizes& sizes);

}  // namespace cdgrab::tasks

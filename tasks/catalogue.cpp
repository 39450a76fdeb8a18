// SPDX-License-Identifier: Apache-2.0
#include "tasks/catalogue.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "cdgrab/error.hpp"
#include "cdgrab/nearest.hpp"

namespace cdgrab::tasks {
namespace {

constexpr std::array<TaskInfo, 5> kTasks = {{
    {"logistic",
     "logistic regression: one logit for two classes, else a softmax",
     "LIBSVM file, folder with x.npy and y.npy, MNIST folder; plain or .gz",
     "HMDA (CD-GraB)",
     {.epochs = 50, .batch = 16, .lr = 5e-3},
     {}},
    {"lenet",
     "LeNet-5 with ReLU and max pooling",
     "MNIST or Fashion-MNIST folder, CIFAR-10 binary folder",
     "CIFAR-10 (GraB)",
     {.epochs = 50, .batch = 16, .lr = 1e-3},
     {}},
    {"mlp",
     "autoregressive MLP with reversible instance norm",
     "folder with M4's -train.csv and -test.csv",
     "M4 weekly (CD-GraB)",
     {.epochs = 50, .batch = 32, .lr = 1e-3},
     {.width = 64, .layers = 3, .length = 20, .horizon = 6, .stride = 6}},
    {"lstm",
     "LSTM language model",
     "text file, or folder with train.txt and valid.txt",
     "WikiText-2 (GraB)",
     {.epochs = 50, .batch = 16, .lr = 5.0, .clip = 0.25, .schedule = Schedule::kPlateau},
     {.width = 32, .layers = 2, .length = 35, .vocabulary = 33278}},
    {"gpt",
     "GPT-2, the head tied to the embedding",
     "text file, or folder with train.txt and valid.txt",
     "WikiText-103 (CD-GraB)",
     {.epochs = 50, .batch = 64, .lr = 5e-4, .optimizer = Optimizer::kAdamW},
     {.width = 128, .layers = 2, .heads = 2, .length = 128, .vocabulary = 33278}},
}};

constexpr std::array kOptimizers = {std::pair{Optimizer::kSgd, std::string_view("sgd")},
                                    std::pair{Optimizer::kAdamW, std::string_view("adamw")}};
constexpr std::array kSchedules = {std::pair{Schedule::kConstant, std::string_view("constant")},
                                   std::pair{Schedule::kCosine, std::string_view("cosine")},
                                   std::pair{Schedule::kLinear, std::string_view("linear")},
                                   std::pair{Schedule::kPlateau, std::string_view("plateau")}};

[[noreturn]] void refuse(std::string_view flag, std::string_view kind, std::string_view text,
                         const std::vector<std::string_view>& allowed) {
  throw UserError(flag, fmt::format("unknown {} `{}`; the nearest is `{}`; allowed: {}", kind, text,
                                    nearest_word(text, allowed), fmt::join(allowed, ", ")));
}

template <class Table, class Value>
std::string_view name_in(const Table& table, Value value) {
  return std::find_if(table.begin(), table.end(), [&](const auto& row) { return row.first == value; })
      ->second;
}

template <class Table>
auto parse_in(const Table& table, std::string_view flag, std::string_view kind, std::string_view text) {
  std::vector<std::string_view> allowed;
  for (const auto& [value, name] : table) {
    if (name == text) return value;
    allowed.push_back(name);
  }
  refuse(flag, kind, text, allowed);
}

}  // namespace

std::span<const TaskInfo> all_tasks() { return kTasks; }

const TaskInfo& find_task(std::string_view name) {
  std::vector<std::string_view> allowed;
  for (const TaskInfo& task : kTasks) {
    if (task.name == name) return task;
    allowed.push_back(task.name);
  }
  refuse("--task", "task", name, allowed);
}

std::string_view name_of(Optimizer optimizer) { return name_in(kOptimizers, optimizer); }
std::string_view name_of(Schedule schedule) { return name_in(kSchedules, schedule); }
Optimizer parse_optimizer(std::string_view text) {
  return parse_in(kOptimizers, "--optimizer", "optimizer", text);
}
Schedule parse_schedule(std::string_view text) {
  return parse_in(kSchedules, "--schedule", "schedule", text);
}

}  // namespace cdgrab::tasks

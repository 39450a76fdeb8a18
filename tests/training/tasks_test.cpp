// SPDX-License-Identifier: Apache-2.0
// Losses against the dullest loops that define them, and gradients per example as observe() reads them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cdgrab/error.hpp"
#include "cdgrab/torch/gradient_geometry.hpp"
#include "tasks/optimum.hpp"
#include "tasks/task.hpp"

namespace cdgrab::tasks {
namespace {

namespace fs = std::filesystem;

std::shared_ptr<const Task> tiny(std::string_view name, const std::string& data = "") {
  Sizes sizes = find_task(name).sizes;
  if (sizes.width > 0) sizes.width = 4;
  if (sizes.length > 0) sizes.length = 5;
  return open_task(name, {.data = data, .examples = data.empty() ? 12U : 0U, .wide = true}, sizes);
}

/// A parameter as rows of numbers; a vector is one row.
std::vector<std::vector<double>> rows_of(const Tensor& tensor) {
  const Tensor t = (tensor.dim() == 2 ? tensor : tensor.unsqueeze(0)).detach().to(at::kDouble).contiguous();
  std::vector<std::vector<double>> rows;
  for (std::int64_t i = 0; i < t.size(0); ++i) {
    const auto* row = t.const_data_ptr<double>() + i * t.size(1);
    rows.emplace_back(row, row + t.size(1));
  }
  return rows;
}

using Matrix = std::vector<std::vector<double>>;
using Vector = std::vector<double>;

Vector linear(const Matrix& weight, const Vector& bias, const Vector& x) {
  Vector out;
  for (std::size_t i = 0; i < weight.size(); ++i) {
    double sum = bias.empty() ? 0.0 : bias[i];
    for (std::size_t j = 0; j < x.size(); ++j) sum += weight[i][j] * x[j];
    out.push_back(sum);
  }
  return out;
}

double cross_entropy(const Vector& logits, std::size_t target) {
  double sum = 0.0;
  for (const double z : logits) sum += std::exp(z);
  return std::log(sum) - logits[target];
}

/// What the task says of each example, and dull(i) of the i-th.
template <class Dull>
void expect_losses(const Task& task, const Model& model, const Dull& dull) {
  const auto losses = task.training_losses(model.network());
  ASSERT_EQ(losses.size(), task.examples());
  for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], dull(i), 1e-10) << i;
}

std::int64_t label(const Task& task, std::size_t i) {
  return task.training().targets[static_cast<std::int64_t>(i)].item<std::int64_t>();
}

Vector input(const Task& task, std::size_t i) { return rows_of(task.training().inputs)[i]; }

TEST(Logistic, IsASoftmaxOfALinearFunction) {
  const auto task = tiny("logistic");
  const Model model = task->make_model(3);
  const Matrix weight = rows_of(model.parameters()[0]);
  const Vector bias = rows_of(model.parameters()[1])[0];
  expect_losses(*task, model, [&](std::size_t i) {
    return cross_entropy(linear(weight, bias, input(*task, i)), static_cast<std::size_t>(label(*task, i)));
  });
}

/// A folder that goes when the test ends.
class Files : public ::testing::Test {
 protected:
  Files() {
    std::string name = (fs::temp_directory_path() / "cdgrab_tasks_XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~Files() override { fs::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }

  fs::path folder_;
};

constexpr const char* kTwoClasses = "-1 1:2 3:1\n+1 2:1\n+1 1:-1 2:0.5\n-1 3:2\n+1 1:1 3:1\n";

TEST_F(Files, TwoClassesHaveOneLogit) {
  const auto task = tiny("logistic", write("two", kTwoClasses));
  const Model model = task->make_model(3);
  ASSERT_EQ(model.weights().numel(), 4);
  const Matrix weight = rows_of(model.parameters()[0]);
  const Vector bias = rows_of(model.parameters()[1])[0];
  expect_losses(*task, model, [&](std::size_t i) {
    const double z = linear(weight, bias, input(*task, i))[0];
    const double y = task->training().targets[static_cast<std::int64_t>(i)].item<double>();
    return std::log1p(std::exp(y > 0.5 ? -z : z));
  });
  EXPECT_EQ(task->metric().name, "train_accuracy");
}

TEST_F(Files, ATestSetBesideIsTheValidationSet) {
  const std::string path = write("two", kTwoClasses);
  write("two.t", "+1 1:1\n-1 2:1\n");
  const auto task = tiny("logistic", path);
  EXPECT_EQ(task->metric().name, "accuracy");
  EXPECT_EQ(task->validation().size(), 2);
  EXPECT_EQ(task->examples(), 5U);
}

TEST_F(Files, OtherFilesAreOtherTasks) {
  const auto a = tiny("logistic", write("a", kTwoClasses));
  const auto b = tiny("logistic", write("b", kTwoClasses));
  const auto c = tiny("logistic", write("c", "-1 1:2 3:1\n+1 2:1\n+1 1:-1 2:0.25\n-1 3:2\n+1 1:1 3:1\n"));
  EXPECT_EQ(a->fingerprint(), b->fingerprint());
  EXPECT_NE(a->fingerprint(), c->fingerprint());
}

TEST_F(Files, OneClassIsRefused) {
  EXPECT_THROW(tiny("logistic", write("one", "1 1:1\n1 1:2\n")), UserError);
}

TEST_F(Files, MoreExamplesThanThereAreAreRefused) {
  EXPECT_THROW(open_task("logistic", {.data = write("two", kTwoClasses), .examples = 6}, {}), UserError);
}

TEST_F(Files, TheOptimumHasNoGradientAndIsBelowWhatIsAround) {
  const auto task = tiny("logistic", write("two", kTwoClasses));
  const auto best = optimum_of(*task, 0.1);
  ASSERT_TRUE(best.has_value());
  EXPECT_LT(best->gradient, 1e-8);
  const Model model = task->make_model(3);
  const auto objective = [&] {
    const at::NoGradGuard no_grad;
    return task->loss(model.network(), task->training()).item<double>() +
           0.05 * model.weights().square().sum().item<double>();
  };
  EXPECT_GT(objective(), best->loss);
  for (int step = 0; step < 5000; ++step) {  // plain gradient descent
    model.gradient().zero_();
    task->loss(model.network(), task->training()).backward();
    const at::NoGradGuard no_grad;
    model.weights().sub_(0.2 * (model.gradient() + 0.1 * model.weights()));
  }
  EXPECT_NEAR(objective(), best->loss, 1e-12);
  EXPECT_FALSE(optimum_of(*tiny("mlp"), 0.1).has_value());
}

TEST_F(Files, WithoutAPenaltySeparableClassesCostNothingAtInfinity) {
  const auto best = optimum_of(*tiny("logistic", write("apart", "-1 1:-1\n+1 1:1\n")), 0.0);
  ASSERT_TRUE(best.has_value());
  EXPECT_LT(best->loss, 1e-5);
}

/// Values found by another solver, in Python.
TEST(Optimum, IsTheKnownOneOfRealData) {
  const char* folder = std::getenv("CDGRAB_DATA");
  if (folder == nullptr) GTEST_SKIP() << "CDGRAB_DATA is not set";
  const auto a9a = open_task("logistic", {.data = std::string(folder) + "/a9a/a9a.gz"}, {});
  EXPECT_NEAR(optimum_of(*a9a, 1e-4)->loss, 0.3244834517, 1e-10);
  const auto mnist = open_task("logistic", {.data = std::string(folder) + "/mnist", .examples = 1000}, {});
  EXPECT_LT(optimum_of(*mnist, 1e-2)->gradient, 1e-8);
}

TEST(Mlp, TakesItsForecastsForSeen) {
  const auto task = tiny("mlp");
  const Model model = task->make_model(3);
  const auto& p = model.parameters();
  const auto next = [&](Vector x) {
    for (std::size_t l = 0; l < p.size(); l += 2) {
      x = linear(rows_of(p[l]), rows_of(p[l + 1])[0], x);
      if (l + 2 < p.size())
        for (double& v : x) v = std::max(v, 0.0);
    }
    return x[0];
  };
  const Matrix targets = rows_of(task->training().targets);
  expect_losses(*task, model, [&](std::size_t i) {
    Vector seen = input(*task, i);
    double sum = 0.0;
    for (const double target : targets[i]) {
      const double y = next(seen);
      seen.erase(seen.begin());
      seen.push_back(y);
      sum += (y - target) * (y - target);
    }
    return sum / static_cast<double>(targets[i].size());
  });
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

/// One layer over the steps of one example.
Matrix lstm_layer(const Matrix& inputs, const Matrix& from_input, const Vector& bias,
                  const Matrix& from_output) {
  const std::size_t width = from_output[0].size();
  Vector cell(width, 0.0);
  Vector output(width, 0.0);
  Matrix outputs;
  for (const Vector& x : inputs) {
    Vector gates = linear(from_input, bias, x);
    const Vector past = linear(from_output, {}, output);
    for (std::size_t k = 0; k < gates.size(); ++k) gates[k] += past[k];
    for (std::size_t k = 0; k < width; ++k) {
      cell[k] = sigmoid(gates[width + k]) * cell[k] + sigmoid(gates[k]) * std::tanh(gates[2 * width + k]);
      output[k] = sigmoid(gates[3 * width + k]) * std::tanh(cell[k]);
    }
    outputs.push_back(output);
  }
  return outputs;
}

TEST(Lstm, IsTheRecurrenceOfItsGates) {
  const auto task = tiny("lstm");
  const Model model = task->make_model(3);
  const auto named = model.network().named_parameters();
  const auto parameter = [&](const std::string& name) { return rows_of(named[name]); };
  const Matrix words = parameter("words.weight");
  expect_losses(*task, model, [&](std::size_t i) {
    const auto index = static_cast<std::int64_t>(i);
    const Tensor tokens = task->training().inputs[index];
    const Tensor targets = task->training().targets[index];
    Matrix x;
    for (std::int64_t t = 0; t < tokens.size(0); ++t)
      x.push_back(words[static_cast<std::size_t>(tokens[t].item<std::int64_t>())]);
    for (const std::string layer : {"layer0", "layer1"})
      x = lstm_layer(x, parameter(layer + ".input.weight"), parameter(layer + ".input.bias")[0],
                     parameter(layer + ".recurrent.weight"));
    double sum = 0.0;
    for (std::size_t t = 0; t < x.size(); ++t)
      sum +=
          cross_entropy(linear(parameter("head.weight"), parameter("head.bias")[0], x[t]),
                        static_cast<std::size_t>(targets[static_cast<std::int64_t>(t)].item<std::int64_t>()));
    return sum / static_cast<double>(x.size());
  });
}

TEST(Gpt, SeesNoWordAheadAndBeginsWithoutAnOpinion) {
  const auto task = tiny("gpt");
  const Model model = task->make_model(3);
  const at::NoGradGuard no_grad;
  Examples example = task->training().slice(0, 1);
  const Tensor before = model.network().forward(example.inputs);
  Tensor changed = example.inputs.clone();
  changed[0][4] = (changed[0][4] + 1) % 5;
  const Tensor after = model.network().forward(changed);
  EXPECT_TRUE(at::equal(before.slice(1, 0, 4), after.slice(1, 0, 4)));
  EXPECT_FALSE(at::equal(before.slice(1, 4), after.slice(1, 4)));
  EXPECT_NEAR(task->loss(model.network(), example).item<double>(),
              std::log(static_cast<double>(before.size(2))), 0.05);
}

TEST(Lenet, HasTheParametersOfThePaper) { EXPECT_EQ(tiny("lenet")->make_model(0).weights().numel(), 61706); }

TEST(LanguageTasks, TargetsAreTheNextWords) {
  for (const char* name : {"lstm", "gpt"}) {
    const auto task = tiny(name);
    const Examples& examples = task->training();
    EXPECT_TRUE(at::equal(examples.inputs.slice(1, 1), examples.targets.slice(1, 0, 4)));
    EXPECT_TRUE(
        at::equal(examples.inputs.slice(0, 1).select(1, 0), examples.targets.slice(0, 0, -1).select(1, 4)));
    EXPECT_EQ(task->metric().name, "perplexity");
  }
}

class EveryTask : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryTask, HasALossThatIsTheMeanOfItsExamples) {
  const auto task = tiny(GetParam());
  const Model model = task->make_model(1);
  double sum = 0.0;
  for (const double loss : task->training_losses(model.network())) sum += loss;
  EXPECT_NEAR(task->loss(model.network(), task->training()).item<double>(),
              sum / static_cast<double>(task->examples()), 1e-12);
}

TEST_P(EveryTask, KeepsParametersAndGradientsInOneVectorEach) {
  const auto task = tiny(GetParam());
  const Model model = task->make_model(1);
  task->loss(model.network(), task->training()).backward();
  const at::NoGradGuard no_grad;
  std::vector<Tensor> weights;
  std::vector<Tensor> gradients;
  for (const Tensor& p : model.network().parameters()) {
    weights.push_back(p.reshape({-1}));
    gradients.push_back(p.grad().reshape({-1}));
  }
  EXPECT_TRUE(at::equal(at::cat(weights), model.weights()));
  EXPECT_TRUE(at::equal(at::cat(gradients), model.gradient()));
  EXPECT_GT(model.gradient().norm().item<double>(), 0.0);
  model.weights().zero_();
  EXPECT_EQ(model.network().parameters().front().abs().sum().item<double>(), 0.0);
}

TEST_P(EveryTask, HasGradientsPerExampleThatObserveReads) {
  const auto task = tiny(GetParam());
  const Model model = task->make_model(1);
  const Examples batch = task->training().slice(0, 6);
  cdgrab::torch::GradientGeometry geometry;
  geometry.compute(task->loss(model.network(), batch), 6, {.batch_axis = 0});
  const Tensor gram = geometry.gram();
  std::vector<Tensor> rows;
  for (std::int64_t i = 0; i < 6; ++i) {
    model.gradient().zero_();
    task->loss(model.network(), batch.slice(i, 1)).backward();
    rows.push_back(model.gradient().clone());
  }
  const Tensor all = at::stack(rows);
  const Tensor expected = all.mm(all.t());
  EXPECT_LT((gram.to(at::kDouble) - expected).abs().max().item<double>(),
            1e-5 * expected.abs().max().item<double>());
}

TEST_P(EveryTask, IsTheSameForTheSameSeeds) {
  const auto task = tiny(GetParam());
  EXPECT_EQ(task->fingerprint(), tiny(GetParam())->fingerprint());
  EXPECT_TRUE(at::equal(task->make_model(5).weights(), task->make_model(5).weights()));
  EXPECT_EQ(at::equal(task->make_model(5).weights(), task->make_model(6).weights()), task->convex());
}

TEST_P(EveryTask, HasAFiniteMetric) {
  const auto task = tiny(GetParam());
  EXPECT_TRUE(std::isfinite(task->measure(task->make_model(0).network())));
}

std::vector<std::string> all_names() {
  std::vector<std::string> names;
  for (const TaskInfo& task : all_tasks()) names.emplace_back(task.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, EveryTask, ::testing::ValuesIn(all_names()),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace cdgrab::tasks

// SPDX-License-Identifier: Apache-2.0
// Logistic regression. Two classes have one logit, as in the papers: with a penalty two are another problem.
#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "cdgrab/error.hpp"
#include "data/generated.hpp"
#include "data/idx.hpp"
#include "data/labelled_rows.hpp"
#include "data/libsvm.hpp"
#include "tasks/classifier.hpp"
#include "tasks/tensors.hpp"

namespace cdgrab::tasks {
namespace {

namespace fs = std::filesystem;

/// Begins at zero, the middle of a convex problem: random weights would make seeds differ by where they
/// began.
class Linear : public Network {
 public:
  Linear(std::int64_t inputs, std::int64_t outputs)
      : layer_(register_module("linear", ::torch::nn::Linear(inputs, outputs))) {
    for (auto& parameter : parameters()) parameter.detach().zero_();
  }

  Tensor forward(const Tensor& inputs) override { return at::linear(inputs, layer_->weight, layer_->bias); }

 private:
  ::torch::nn::Linear layer_;
};

class Logistic : public Classifier {
 public:
  Logistic(const TaskInfo& info, bool wide, std::int64_t classes, Examples training, Examples validation)
      : Classifier(info, wide, std::move(training), std::move(validation)), outputs_(classes) {}

  [[nodiscard]] bool convex() const override { return true; }

 protected:
  [[nodiscard]] std::shared_ptr<Network> make_network() const override {
    return std::make_shared<Linear>(training().inputs.size(1), outputs_);
  }
  [[nodiscard]] std::int64_t evaluated_at_once() const override { return 8192; }

 private:
  std::int64_t outputs_;
};

class BinaryLogistic : public Logistic {
 public:
  BinaryLogistic(const TaskInfo& info, bool wide, Examples training, Examples validation)
      : Logistic(info, wide, 1, with_numbers(std::move(training), wide),
                 with_numbers(std::move(validation), wide)) {}

  Tensor loss(Network& network, const Examples& batch) const override {
    return at::binary_cross_entropy_with_logits(network.forward(batch.inputs), batch.targets);
  }
  Tensor losses(Network& network, const Examples& batch) const override {
    return at::binary_cross_entropy_with_logits(network.forward(batch.inputs), batch.targets, {}, {},
                                                at::Reduction::None)
        .squeeze(1);
  }

 protected:
  [[nodiscard]] Tensor predicted(const Tensor& outputs) const override { return outputs.gt(0); }

 private:
  /// The classes as a column of 0.0 and 1.0.
  static Examples with_numbers(Examples examples, bool wide) {
    if (examples.targets.defined()) examples.targets = examples.targets.to(float_type(wide)).unsqueeze(1);
    return examples;
  }
};

struct Splits {
  Examples training;
  Examples validation;
  std::int64_t classes = 0;
};

Examples rows_of(const data::LabelledRows& rows, bool wide) {
  const auto n = static_cast<std::int64_t>(rows.label.size());
  return {tensor_of(rows.values, {n, static_cast<std::int64_t>(rows.dim)}).to(float_type(wide)),
          tensor_of(rows.label, {n}).to(at::kLong)};
}

/// Dense: an example is read many times, and most files have few columns.
Examples rows_of(const data::SparseExamples& sparse, bool wide, const fs::path& path) {
  constexpr double kMostBytes = 8e9;
  const auto n = static_cast<std::int64_t>(sparse.label.size());
  const auto dim = static_cast<std::int64_t>(sparse.dim);
  const double bytes = static_cast<double>(n) * static_cast<double>(dim) * (wide ? 8.0 : 4.0);
  if (bytes > kMostBytes)
    throw UserError("--data", fmt::format("\"{}\" has {} examples of {} numbers, {:.0f} GB as dense rows; at "
                                          "most {:.0f} GB are allowed, give fewer examples or columns",
                                          path.string(), n, dim, bytes / 1e9, kMostBytes / 1e9));
  const Tensor values = at::zeros({n, dim}, at::kFloat);
  auto* out = values.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < n; ++i) {
    const auto row = static_cast<std::size_t>(i);
    for (std::size_t k = sparse.begin[row]; k < sparse.begin[row + 1]; ++k)
      out[i * dim + sparse.column[k]] = sparse.value[k];
  }
  return {values.to(float_type(wide)), tensor_of(sparse.label, {n}).to(at::kLong)};
}

Splits generated(const Source& source) {
  data::RowOptions options;
  options.seed = source.data_seed;
  if (source.examples > 0) options.examples = source.examples;
  return {rows_of(data::generate_rows(options, data::Split::kTrain), source.wide),
          rows_of(data::generate_rows(options, data::Split::kTest), source.wide),
          static_cast<std::int64_t>(options.classes)};
}

/// The test set, if there is one, is beside: x for x.gz, with .t at the end of the name as LIBSVM's own.
std::optional<fs::path> test_set_of(const fs::path& path) {
  fs::path plain = path;
  if (plain.extension() == ".gz") plain.replace_extension();
  for (const char* end : {".t", ".t.gz"})
    if (fs::path test = plain.string() + end; fs::exists(test)) return test;
  return std::nullopt;
}

Splits from_libsvm(const fs::path& path, const Source& source) {
  const data::SparseExamples train = data::read_libsvm(path);
  Splits splits{rows_of(train, source.wide, path), {}, static_cast<std::int64_t>(train.label_names.size())};
  if (const auto test = test_set_of(path))
    splits.validation = rows_of(data::read_libsvm(*test, train), source.wide, *test);
  return splits;
}

Splits from_npy(const fs::path& folder, const Source& source) {
  const data::LabelledRows train = data::read_npy_folder(folder);
  Splits splits{rows_of(train, source.wide), {}, static_cast<std::int64_t>(train.label_names.size())};
  if (const auto test = data::read_npy_test(folder, train)) splits.validation = rows_of(*test, source.wide);
  return splits;
}

Splits from_mnist(const fs::path& folder, const Source& source) {
  const auto flat = [&](data::Split split) {
    Examples images = images_of(data::read_mnist(folder, split), source.wide);
    images.inputs = images.inputs.flatten(1);
    return images;
  };
  return {flat(data::Split::kTrain), flat(data::Split::kTest), 10};
}

Splits read(const Source& source) {
  const fs::path path = source.data;
  if (!fs::is_directory(path)) return from_libsvm(path, source);
  if (fs::exists(path / "x.npy") || fs::exists(path / "y.npy")) return from_npy(path, source);
  for (const char* end : {"", ".gz"})
    if (fs::exists(path / fmt::format("train-images-idx3-ubyte{}", end))) return from_mnist(path, source);
  throw FileError(
      "--data",
      fmt::format("\"{}\" has neither x.npy nor train-images-idx3-ubyte[.gz]; give such a folder, or "
                  "a LIBSVM file itself",
                  path.string()));
}

}  // namespace

std::shared_ptr<const Task> open_logistic(const TaskInfo& info, const Source& source) {
  Splits splits = source.data.empty() ? generated(source) : read(source);
  splits.training = first_of(splits.training, source.examples);
  if (splits.classes < 2)
    throw UserError("--data", fmt::format("\"{}\" has one class only; at least two are needed", source.data));
  if (splits.classes == 2)
    return std::make_shared<BinaryLogistic>(info, source.wide, splits.training, splits.validation);
  return std::make_shared<Logistic>(info, source.wide, splits.classes, splits.training, splits.validation);
}

}  // namespace cdgrab::tasks

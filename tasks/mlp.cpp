// SPDX-License-Identifier: Apache-2.0
// Forecasts of series by an MLP that sees `length` values, gives the next one and takes it in turn for
// seen. An example is `length` values of a series and the `horizon` after them. Instance norm is applied
// to both when the examples are made, since it has no parameters, and reversed where forecasts are judged.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cdgrab/error.hpp"
#include "data/generated.hpp"
#include "data/m4.hpp"
#include "tasks/task.hpp"
#include "tasks/tensors.hpp"

namespace cdgrab::tasks {
namespace {

namespace nn = ::torch::nn;

class AutoMlp : public Network {
 public:
  explicit AutoMlp(const Sizes& sizes) : horizon_(static_cast<std::int64_t>(sizes.horizon)) {
    auto inputs = static_cast<std::int64_t>(sizes.length);
    const auto width = static_cast<std::int64_t>(sizes.width);
    for (std::size_t l = 0; l < sizes.layers; ++l) {
      layers_.push_back(
          register_module("layer" + std::to_string(l), nn::Linear(inputs, l + 1 < sizes.layers ? width : 1)));
      inputs = width;
    }
  }

  Tensor forward(const Tensor& inputs) override { return forecast(inputs, horizon_); }

  Tensor forecast(Tensor seen, std::int64_t steps) {
    std::vector<Tensor> values;
    for (std::int64_t step = 0; step < steps; ++step) {
      values.push_back(next(seen));
      seen = at::cat({seen.slice(1, 1), values.back()}, 1);
    }
    return at::cat(values, 1);
  }

 private:
  Tensor next(Tensor x) {
    for (std::size_t l = 0; l + 1 < layers_.size(); ++l) x = at::relu(layers_[l](x));
    return layers_.back()(x);
  }

  std::int64_t horizon_;
  std::vector<nn::Linear> layers_;
};

/// The last values of every series, and what came after: what forecasts are judged by.
struct Judged {
  Tensor ahead;   ///< series x steps, as they are
  Tensor centre;  ///< series x 1
  Tensor scale;
};

class Forecast : public Task {
 public:
  Forecast(const TaskInfo& info, bool wide, const Sizes& sizes, Examples training, Examples validation,
           Judged judged)
      : Task(info, wide, std::move(training), std::move(validation)),
        sizes_(sizes),
        judged_(std::move(judged)) {}

  Tensor loss(Network& network, const Examples& batch) const override {
    return at::mse_loss(network.forward(batch.inputs), batch.targets);
  }
  Tensor losses(Network& network, const Examples& batch) const override {
    return at::mse_loss(network.forward(batch.inputs), batch.targets, at::Reduction::None).mean(1);
  }
  /// The M4 competition's: 0 to 200, in percent.
  [[nodiscard]] double measure(Network& network) const override {
    const at::NoGradGuard no_grad;
    const Tensor forecast =
        dynamic_cast<AutoMlp&>(network).forecast(validation().inputs, judged_.ahead.size(1)) * judged_.scale +
        judged_.centre;
    const Tensor error = (forecast - judged_.ahead).abs() / (forecast.abs() + judged_.ahead.abs());
    return 200.0 * error.mean().item<double>();
  }

 protected:
  [[nodiscard]] std::shared_ptr<Network> make_network() const override {
    return std::make_shared<AutoMlp>(sizes_);
  }
  [[nodiscard]] Metric plain_metric() const override { return {"smape", false}; }
  [[nodiscard]] std::int64_t evaluated_at_once() const override { return 2048; }

 private:
  Sizes sizes_;
  Judged judged_;
};

double variance(const float* values, std::size_t count, double mean) {
  double sum = 0.0;
  for (std::size_t i = 0; i < count; ++i) sum += (values[i] - mean) * (values[i] - mean);
  return sum / static_cast<double>(count);
}

double mean_of(const float* values, std::size_t count) {
  double sum = 0.0;
  for (std::size_t i = 0; i < count; ++i) sum += values[i];
  return sum / static_cast<double>(count);
}

/// What an instance is centred and scaled by. Of a flat stretch in a lively series the scale is a tenth of
/// the series' own.
struct Norm {
  Norm(const data::Series& series, const float* seen, std::size_t length) : centre(mean_of(seen, length)) {
    const float* all = series.values.data();
    const double whole = variance(all, series.values.size(), mean_of(all, series.values.size()));
    scale = std::sqrt(variance(seen, length, centre) + 0.01 * whole);
    if (scale == 0.0) scale = 1.0;
  }
  [[nodiscard]] float apply(float value) const { return static_cast<float>((value - centre) / scale); }

  double centre;
  double scale = 1.0;
};

/// Rows of numbers that become a tensor.
struct Table {
  std::vector<float> values;
  std::int64_t rows = 0;

  [[nodiscard]] Tensor tensor(bool wide) const {
    const std::int64_t columns = rows == 0 ? 0 : static_cast<std::int64_t>(values.size()) / rows;
    return tensor_of(values, {rows, columns}).to(float_type(wide));
  }
};

Examples windows_of(const std::vector<data::Series>& all, const Sizes& sizes, bool wide) {
  Table seen;
  Table ahead;
  for (const data::Series& series : all) {
    const std::size_t needed = sizes.length + sizes.horizon;
    for (std::size_t first = 0; first + needed <= series.values.size(); first += sizes.stride) {
      const float* begin = series.values.data() + first;
      const Norm norm(series, begin, sizes.length);
      for (std::size_t k = 0; k < sizes.length; ++k) seen.values.push_back(norm.apply(begin[k]));
      for (std::size_t k = sizes.length; k < needed; ++k) ahead.values.push_back(norm.apply(begin[k]));
      ++seen.rows;
    }
  }
  if (seen.rows == 0)
    throw UserError("--length", fmt::format("no series has {} values and {} after them; shorten --length",
                                            sizes.length, sizes.horizon));
  ahead.rows = seen.rows;
  return {seen.tensor(wide), ahead.tensor(wide)};
}

std::pair<Examples, Judged> ends_of(const data::SeriesSplits& splits, const Sizes& sizes, bool wide) {
  std::size_t steps = splits.test.front().values.size();
  for (const data::Series& series : splits.test) steps = std::min(steps, series.values.size());
  Table seen;
  Table ahead;
  Table centre;
  Table scale;
  for (std::size_t i = 0; i < splits.train.size(); ++i) {
    const data::Series& series = splits.train[i];
    if (series.values.size() < sizes.length) continue;
    const float* begin = series.values.data() + (series.values.size() - sizes.length);
    const Norm norm(series, begin, sizes.length);
    for (std::size_t k = 0; k < sizes.length; ++k) seen.values.push_back(norm.apply(begin[k]));
    const auto& after = splits.test[i].values;
    ahead.values.insert(ahead.values.end(), after.begin(),
                        after.begin() + static_cast<std::ptrdiff_t>(steps));
    centre.values.push_back(static_cast<float>(norm.centre));
    scale.values.push_back(static_cast<float>(norm.scale));
    ++seen.rows;
  }
  ahead.rows = centre.rows = scale.rows = seen.rows;
  const Tensor inputs = seen.tensor(wide);
  return {{inputs, ahead.tensor(wide)}, {ahead.tensor(wide), centre.tensor(wide), scale.tensor(wide)}};
}

data::SeriesSplits generated(const Source& source) {
  data::SeriesOptions options;
  options.seed = source.data_seed;
  return data::generate_series(options);
}

}  // namespace

std::shared_ptr<const Task> open_mlp(const TaskInfo& info, const Source& source, const Sizes& sizes) {
  const data::SeriesSplits splits =
      source.data.empty() ? generated(source) : data::read_m4_folder(source.data);
  const Examples training = windows_of(splits.train, sizes, source.wide);
  auto [validation, judged] = ends_of(splits, sizes, source.wide);
  return std::make_shared<Forecast>(info, source.wide, sizes, first_of(training, source.examples), validation,
                                    judged);
}

}  // namespace cdgrab::tasks

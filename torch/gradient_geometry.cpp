// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/torch/gradient_geometry.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "cdgrab/error.hpp"
#include "observation.hpp"

namespace cdgrab::torch {
namespace {

std::string shape_of(const Tensor& tensor) {
  return tensor.dim() == 0 ? "a scalar" : fmt::format("shape {}", fmt::join(tensor.sizes(), "x"));
}

/// "tensor 2 (fc1.weight)", for messages about what is given per parameter.
std::string place_of(std::size_t place, const ParameterGradients& p) {
  return fmt::format("tensor {}{}", place, p.name.empty() ? "" : " (" + p.name + ")");
}

/// The sum over parameters of what `part` gives for each; zeros if no gradient reached any.
template <class Part>
Tensor added_up(const Observed& observed, at::IntArrayRef shape, Part part) {
  Tensor total;
  for (const ParameterGradients& p : observed.parameters) {
    const Tensor one = part(p);
    if (one.defined()) total = total.defined() ? total + one : one;
  }
  return total.defined() ? total : at::zeros(shape);
}

const ParameterGradients* find(const Observed& observed, const Tensor& parameter) {
  const auto found =
      std::find_if(observed.parameters.begin(), observed.parameters.end(),
                   [&](const ParameterGradients& p) { return p.parameter.is_same(parameter); });
  return found == observed.parameters.end() ? nullptr : &*found;
}

void check_shared(const Observed& mine, const Observed& other) {
  if (std::any_of(mine.parameters.begin(), mine.parameters.end(),
                  [&](const ParameterGradients& p) { return find(other, p.parameter) != nullptr; }))
    return;
  throw UserError(
      "GradientGeometry::cross",
      fmt::format("the two losses, of {} and {} parameters, share none; products are between losses "
                  "of one model: the same tensors, not copies",
                  mine.parameters.size(), other.parameters.size()));
}

/// Whether `tensor` is K directions for the parameter.
bool is_several(const Tensor& tensor, const Tensor& parameter) {
  return tensor.dim() == parameter.dim() + 1 && tensor.sizes().slice(1) == parameter.sizes();
}

/// How many directions these are; 0: a single one, without a dimension for it.
std::int64_t directions_in(const Observed& observed, const std::vector<Tensor>& direction) {
  const auto& parameters = observed.parameters;
  if (direction.size() != parameters.size())
    throw UserError(
        "GradientGeometry::inner",
        fmt::format("{} tensors for {} parameters; give one for each of parameters(), or name them",
                    direction.size(), parameters.size()));
  std::int64_t count = direction.empty() ? 0 : -1;
  for (std::size_t p = 0; p < direction.size(); ++p) {
    if (!is_several(direction[p], parameters[p].parameter)) return 0;
    if (count >= 0 && direction[p].size(0) != count)
      throw UserError("GradientGeometry::inner",
                      fmt::format("{} is {} directions and those before are {}; as many are needed for each",
                                  place_of(p, parameters[p]), direction[p].size(0), count));
    count = direction[p].size(0);
  }
  return count;
}

void check_single(const Observed& observed, const std::vector<Tensor>& direction) {
  for (std::size_t p = 0; p < direction.size(); ++p) {
    const ParameterGradients& own = observed.parameters[p];
    if (direction[p].numel() == own.parameter.numel()) continue;
    throw UserError(
        "GradientGeometry::inner",
        fmt::format("{} has {} and its parameter {}; give the parameter's, or all with a dimension "
                    "before it for several directions",
                    place_of(p, own), shape_of(direction[p]), shape_of(own.parameter)));
  }
}

/// (B, K).
Tensor inner_with_each(const Contribution& gradients, const Tensor& directions) {
  if (gradients.is_rows())
    return gradients.cross(Contribution::of_rows(directions.reshape({directions.size(0), -1})));
  const Tensor all = at::empty({gradients.batch(), directions.size(0)}, gradients.options());
  for (std::int64_t k = 0; k < directions.size(0); ++k)
    all.select(1, k).copy_(gradients.inner(directions.select(0, k)));
  return all;
}

}  // namespace

class GradientGeometry::Impl {
 public:
  [[nodiscard]] const Observed& observed() const {
    if (!observed_)
      throw UserError("GradientGeometry", "no backward has run since observe(); call loss.backward() first");
    return *observed_;
  }

  static std::shared_ptr<Observation> start(const std::shared_ptr<Impl>& self, const at::Tensor& loss,
                                            std::int64_t batch, const ObserveOptions& options,
                                            bool takes_turn);

  std::optional<Observed> observed_;
  Turn turn_;
};

GradientGeometry::GradientGeometry() : impl_(std::make_shared<Impl>()) {}

std::shared_ptr<Observation> GradientGeometry::Impl::start(const std::shared_ptr<Impl>& self,
                                                           const at::Tensor& loss, std::int64_t batch,
                                                           const ObserveOptions& options, bool takes_turn) {
  self->observed_.reset();
  const auto finish = [self, takes_turn](Observed&& observed) {
    std::optional<Turn::Taken> taken;
    if (takes_turn) taken.emplace(self->turn_);
    self->observed_ = std::move(observed);
  };
  return Observation::start(loss, batch, options, finish, {});
}

Turn& GradientGeometry::turn() { return impl_->turn_; }

void GradientGeometry::observe(const at::Tensor& loss, std::int64_t batch, const ObserveOptions& options) {
  Impl::start(impl_, loss, batch, options, true);
}

void GradientGeometry::compute(const at::Tensor& loss, std::int64_t batch, const ObserveOptions& options) {
  // The backward is a part of this call, whatever thread of torch's it runs in.
  const auto observation = Impl::start(impl_, loss, batch, options, false);
  const at::Tensor seed = at::ones_like(loss);
  ::torch::autograd::grad({loss}, observation->parameters(), {seed}, /*retain_graph=*/true,
                          /*create_graph=*/false,
                          /*allow_unused=*/true);
  observation->release();
}

at::Tensor GradientGeometry::gram() const {
  const at::NoGradGuard no_grad;
  const Observed& observed = impl_->observed();
  return added_up(observed, {observed.batch, observed.batch},
                  [](const ParameterGradients& p) { return p.gradients.gram(); });
}

at::Tensor GradientGeometry::cross(const GradientGeometry& other) const {
  const at::NoGradGuard no_grad;
  const Observed& mine = impl_->observed();
  const Observed& theirs = other.impl_->observed();
  check_shared(mine, theirs);
  return added_up(mine, {mine.batch, theirs.batch}, [&](const ParameterGradients& p) {
    const ParameterGradients* same = find(theirs, p.parameter);
    return same == nullptr ? Tensor() : p.gradients.cross(same->gradients);
  });
}

at::Tensor GradientGeometry::norms() const {
  const at::NoGradGuard no_grad;
  const Observed& observed = impl_->observed();
  return added_up(observed, {observed.batch},
                  [](const ParameterGradients& p) { return p.gradients.squared_norms(); })
      .clamp_min(0)
      .sqrt();
}

at::Tensor GradientGeometry::inner(const std::vector<at::Tensor>& direction) const {
  const at::NoGradGuard no_grad;
  const Observed& observed = impl_->observed();
  const std::int64_t count = directions_in(observed, direction);
  if (count == 0) check_single(observed, direction);
  auto given = direction.begin();
  return added_up(observed, {observed.batch}, [&](const ParameterGradients& p) {
    const Tensor one = (given++)->to(p.gradients.options());
    return count == 0 ? p.gradients.inner(one) : inner_with_each(p.gradients, one);
  });
}

at::Tensor GradientGeometry::inner(const std::vector<std::pair<std::string, at::Tensor>>& direction) const {
  const std::map<std::string, at::Tensor> by_name(direction.begin(), direction.end());
  std::vector<at::Tensor> ordered;
  for (const ParameterGradients& p : impl_->observed().parameters) {
    if (p.name.empty())
      throw UserError(
          "GradientGeometry::inner",
          fmt::format("a parameter of {} has no name to find its direction by; name the parameters "
                      "when the loss is observed, or give one tensor for each of parameters()",
                      shape_of(p.parameter)));
    const auto found = by_name.find(p.name);
    if (found == by_name.end())
      throw UserError("GradientGeometry::inner",
                      fmt::format("no tensor for {}, which the loss depends on, among {} names; give one for "
                                  "each of names(), or leave parameters out by part()",
                                  p.name, by_name.size()));
    ordered.push_back(found->second);
  }
  return inner(ordered);
}

std::vector<at::Tensor> GradientGeometry::weighted_sum(const at::Tensor& weights) const {
  const at::NoGradGuard no_grad;
  const Observed& observed = impl_->observed();
  if (weights.dim() != 1 || weights.size(0) != observed.batch)
    throw UserError("GradientGeometry::weighted_sum",
                    fmt::format("weights of {}; one number for each of the {} examples is needed",
                                shape_of(weights), observed.batch));
  const Tensor kept = weights.ne(0).nonzero().squeeze(1);
  const bool all = kept.size(0) == observed.batch;
  std::vector<at::Tensor> sums;
  for (const ParameterGradients& p : observed.parameters) {
    Tensor sum = at::zeros({p.parameter.numel()}, p.gradients.options());
    const Tensor own = weights.index_select(0, kept).to(sum.options());
    if (all)
      p.gradients.add_to(sum, own);
    else if (kept.size(0) > 0)
      p.gradients.select(kept.to(sum.device())).add_to(sum, own);
    sums.push_back(sum.view(p.parameter.sizes()).to(p.parameter.scalar_type()));
  }
  return sums;
}

std::vector<at::Tensor> GradientGeometry::parameters() const {
  std::vector<at::Tensor> all;
  for (const ParameterGradients& p : impl_->observed().parameters) all.push_back(p.parameter);
  return all;
}

std::vector<std::string> GradientGeometry::rules() const {
  std::vector<std::string> all;
  for (const ParameterGradients& p : impl_->observed().parameters) all.push_back(p.rule);
  return all;
}

std::vector<std::string> GradientGeometry::names() const {
  std::vector<std::string> all;
  for (const ParameterGradients& p : impl_->observed().parameters) all.push_back(p.name);
  return all;
}

GradientGeometry GradientGeometry::part(std::string_view pattern) const {
  const Observed& observed = impl_->observed();
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (const ParameterGradients& p : observed.parameters)
    if (!p.name.empty()) named.emplace_back(p.name, p.parameter);
  if (named.empty())
    throw UserError("GradientGeometry::part",
                    fmt::format("no parameter has a name that '{}' could match; name them when the loss is "
                                "observed: ObserveOptions::parameters, or parameters=model in Python",
                                pattern));
  const ParameterSet chosen(std::move(named), pattern);
  GradientGeometry out;
  out.impl_->observed_ = Observed{observed.batch, {}, 0.0};
  for (const ParameterGradients& p : observed.parameters)
    if (chosen.contains(p.parameter)) out.impl_->observed_->parameters.push_back(p);
  return out;
}

at::Tensor GradientGeometry::rows() const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> all;
  for (const ParameterGradients& p : impl_->observed().parameters) all.push_back(p.gradients.rows());
  return at::cat(all, 1);
}

}  // namespace cdgrab::torch

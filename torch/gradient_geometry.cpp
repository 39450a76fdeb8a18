// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/torch/gradient_geometry.hpp"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "cdgrab/error.hpp"
#include "observation.hpp"

namespace cdgrab::torch {

class GradientGeometry::Impl {
 public:
  [[nodiscard]] const Observed& observed() const {
    if (!observed_)
      throw UserError("GradientGeometry", "no backward has run since observe(); call loss.backward() first");
    return *observed_;
  }

  static std::shared_ptr<Observation> start(const std::shared_ptr<Impl>& self, const at::Tensor& loss,
                                            std::int64_t batch, const ObserveOptions& options);

  std::optional<Observed> observed_;
};

GradientGeometry::GradientGeometry() : impl_(std::make_shared<Impl>()) {}

std::shared_ptr<Observation> GradientGeometry::Impl::start(const std::shared_ptr<Impl>& self,
                                                           const at::Tensor& loss, std::int64_t batch,
                                                           const ObserveOptions& options) {
  self->observed_.reset();
  return Observation::start(loss, batch, options,
                            [self](Observed&& observed) { self->observed_ = std::move(observed); });
}

void GradientGeometry::observe(const at::Tensor& loss, std::int64_t batch, const ObserveOptions& options) {
  Impl::start(impl_, loss, batch, options);
}

void GradientGeometry::compute(const at::Tensor& loss, std::int64_t batch, const ObserveOptions& options) {
  const auto observation = Impl::start(impl_, loss, batch, options);
  const at::Tensor seed = at::ones_like(loss);
  ::torch::autograd::grad({loss}, observation->parameters(), {seed}, /*retain_graph=*/true,
                          /*create_graph=*/false,
                          /*allow_unused=*/true);
  observation->release();
}

at::Tensor GradientGeometry::gram() const {
  const at::NoGradGuard no_grad;
  at::Tensor total;
  for (const ParameterGradients& p : impl_->observed().parameters)
    total = total.defined() ? total + p.gradients.gram() : p.gradients.gram();
  return total;
}

at::Tensor GradientGeometry::norms() const { return gram().diagonal().sqrt(); }

at::Tensor GradientGeometry::inner(const std::vector<at::Tensor>& direction) const {
  const at::NoGradGuard no_grad;
  const auto& parameters = impl_->observed().parameters;
  if (direction.size() != parameters.size())
    throw UserError("GradientGeometry::inner", fmt::format("{} tensors for {} parameters; one each is needed",
                                                           direction.size(), parameters.size()));
  at::Tensor total;
  for (std::size_t p = 0; p < direction.size(); ++p) {
    if (direction[p].numel() != parameters[p].parameter.numel())
      throw UserError("GradientGeometry::inner",
                      fmt::format("tensor {} has {} entries and its parameter {}", p, direction[p].numel(),
                                  parameters[p].parameter.numel()));
    const at::Tensor part =
        parameters[p].gradients.inner(direction[p].to(parameters[p].parameter.scalar_type()));
    total = total.defined() ? total + part : part;
  }
  return total;
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

at::Tensor GradientGeometry::rows() const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> all;
  for (const ParameterGradients& p : impl_->observed().parameters) all.push_back(p.gradients.rows());
  return at::cat(all, 1);
}

}  // namespace cdgrab::torch

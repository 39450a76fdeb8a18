// SPDX-License-Identifier: Apache-2.0
#include "observer.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "cdgrab/error.hpp"

namespace cdgrab::torch {

/// A graph that was freed without a backward takes its hooks, and so the observation, with it.
void Backwards::drop_missed() {
  const std::size_t before = waiting_.size();
  std::erase_if(waiting_, [](const Waiting& w) { return w.observation.expired(); });
  if (waiting_.size() == before) return;
  missed_ += before - waiting_.size();
  TORCH_WARN_ONCE("cdgrab: an observed loss was dropped without a backward; its examples count as unseen");
}

std::vector<Index> Backwards::oldest(std::size_t count,
                                     const std::function<std::vector<Index>(std::size_t)>& outstanding) {
  drop_missed();
  std::unordered_multiset<Index> spoken_for;
  for (const Waiting& w : waiting_) spoken_for.insert(w.examples.begin(), w.examples.end());
  auto all = outstanding(spoken_for.size() + count);
  std::erase_if(all, [&](Index example) {
    const auto found = spoken_for.find(example);
    return found != spoken_for.end() && (spoken_for.erase(found), true);
  });
  all.resize(count);
  return all;
}

void Backwards::wait_for(const Tensor& loss, std::vector<Index> examples, const ObserveOptions& options,
                         Finish finish, Observation::Way way) {
  drop_missed();
  if (way.shortening.shorten)
    way.shortening.shorten = [weak = weak_from_this(), generation = generation_,
                              shorten = std::move(way.shortening.shorten)](const Tensor& parameter,
                                                                           const Contribution& gradients) {
      const auto self = weak.lock();
      return self == nullptr || self->generation_ != generation ? gradients : shorten(parameter, gradients);
    };
  const auto batch = static_cast<std::int64_t>(examples.size());
  auto place = waiting_.insert(waiting_.end(), {{}, std::move(examples)});
  try {
    place->observation = Observation::start(
        loss, batch, options,
        [weak = weak_from_this(), place, generation = generation_,
         finish = std::move(finish)](Observed&& observed) {
          const auto self = weak.lock();
          if (self == nullptr) return;
          const Turn::Taken taken(*self->turn_);
          if (self->generation_ != generation) return;
          const std::vector<Index> named = std::move(place->examples);
          self->waiting_.erase(place);
          finish(std::move(observed), named);
        },
        std::move(way));
  } catch (...) {
    waiting_.erase(place);
    throw;
  }
}

const Tensor& GivenVectors::given(std::size_t k, const Tensor& rows, const char* where) {
  const Tensor one = rows.detach().select(0, 0);
  if (k == given_.size()) given_.push_back(at::empty_like(one));
  if (given_[k].numel() != one.numel())
    throw UserError(
        where, fmt::format("tensor {} has {} numbers per example after {}; every call must have the same", k,
                           one.numel(), given_[k].numel()));
  return given_[k];
}

Observed GivenVectors::observed(const std::vector<Tensor>& rows, const char* where) {
  const at::NoGradGuard no_grad;
  if (rows.empty()) throw UserError(where, "no tensors; give B x d, or B x .. per parameter");
  Observed observed{rows.front().dim() == 0 ? 0 : rows.front().size(0), {}, 0.0};
  for (const Tensor& r : rows)
    if (r.dim() < 1 || r.size(0) != observed.batch || r.size(0) == 0)
      throw UserError(
          where,
          fmt::format("a tensor of shape {} beside a batch of {}; the first dimension is the batch, at "
                      "least 1",
                      fmt::join(r.sizes(), "x"), observed.batch));
  for (const Tensor& r : rows)
    if (r.layout() != at::kStrided || r.is_meta() || r.is_quantized() || r.is_complex())
      throw UserError(where,
                      fmt::format("a tensor of {}, {}; plain real numbers are allowed: convert it",
                                  c10::toString(r.scalar_type()),
                                  r.layout() == at::kStrided ? "not in memory or not real" : "sparse"));
  for (std::size_t k = 0; k < rows.size(); ++k)
    observed.parameters.push_back(
        {given(k, rows[k], where), Contribution::of_rows(rows[k].detach().reshape({observed.batch, -1}))});
  return observed;
}

Tensor RowMatrix::of(const Observed& observed, const char* where) {
  const at::NoGradGuard no_grad;
  const bool first = columns_.empty();
  std::unordered_map<const void*, const Contribution*> parts;
  for (const ParameterGradients& p : observed.parameters) {
    if (first) columns_.push_back({p.parameter, p.gradients.entries()});
    parts[p.parameter.unsafeGetTensorImpl()] = &p.gradients;
  }
  std::vector<const Contribution*> gradients;
  std::vector<std::int64_t> numel;
  bool wide = false;
  for (const auto& [parameter, count] : columns_) {
    const auto found = parts.find(parameter.unsafeGetTensorImpl());
    gradients.push_back(found == parts.end() ? nullptr : found->second);
    numel.push_back(count);
    wide = wide || parameter.scalar_type() == at::kDouble;
    if (found != parts.end()) parts.erase(found);
  }
  if (!parts.empty())
    throw UserError(where,
                    "a parameter that no batch before this one depended on; an order that needs "
                    "rows (sketch, greedy, unit= of many workers, recorded herding or norms) must see all "
                    "from the first batch on");
  return side_by_side(observed.batch, gradients, numel, wide ? at::kDouble : at::kFloat);
}

std::vector<Tensor> rows_of_gradients(const std::vector<Tensor>& parameters) {
  std::vector<Tensor> rows;
  for (const Tensor& p : parameters)
    rows.push_back((p.grad().defined() ? p.grad() : at::zeros_like(p)).unsqueeze(0));
  return rows;
}

void require_whole_units(std::size_t batch, std::size_t unit, const char* where) {
  if (batch == 0 || batch % unit == 0 || unit % batch == 0) return;
  throw UserError(
      where, fmt::format("batches of {} and unit={}; a batch holds parts of units, whose gradients cannot "
                         "be told apart: one of the two has to divide the other",
                         batch, unit));
}

void require_examples(std::size_t unit, const char* where) {
  if (unit == 1) return;
  throw UserError(
      where, fmt::format("a loss has a vector per example, and with unit={} one per unit is needed; call "
                         "observe_microbatch after the backward of a unit",
                         unit));
}

void require_one_each(std::int64_t rows, std::size_t examples, const char* where) {
  if (static_cast<std::size_t>(rows) == examples) return;
  throw UserError(where,
                  fmt::format("{} rows and {} examples; one example per row is needed", rows, examples));
}

std::vector<Index> as_names(const std::vector<std::size_t>& examples) {
  std::vector<Index> names;
  for (const std::size_t example : examples)
    names.push_back(static_cast<Index>(std::min<std::size_t>(example, kMaxExamples)));
  return names;
}

void write_state(const State& state, ::torch::serialize::OutputArchive& archive) {
  const auto bytes = encode_state(state);
  Tensor blob = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
  std::memcpy(blob.data_ptr(), bytes.data(), bytes.size());
  archive.write("cdgrab.state", blob, /*is_buffer=*/true);
}

State read_state(::torch::serialize::InputArchive& archive) {
  constexpr const char* kWhere = "torch archive";
  Tensor blob;
  try {
    archive.read("cdgrab.state", blob, /*is_buffer=*/true);
  } catch (const c10::Error& error) {
    throw FileError(kWhere, fmt::format("it holds no cdgrab.state: {}; name an archive that save() wrote",
                                        error.what_without_backtrace()));
  }
  // What an archive calls a tensor may point to fewer bytes than it claims entries.
  if (blob.scalar_type() != at::kByte || blob.dim() != 1 || !blob.is_contiguous() || !blob.is_cpu() ||
      blob.storage().nbytes() < blob.storage_offset() + blob.nbytes())
    throw FileError(kWhere, "its cdgrab.state is not one row of bytes; name an archive that save() wrote");
  const auto* bytes = static_cast<const std::byte*>(blob.const_data_ptr());
  return decode_state({bytes, static_cast<std::size_t>(blob.numel())}, kWhere);
}

}  // namespace cdgrab::torch

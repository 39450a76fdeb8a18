// SPDX-License-Identifier: Apache-2.0
#include "sketcher.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "cdgrab/error.hpp"
#include "products.hpp"

namespace cdgrab::torch {
namespace {

/// Blocks from one that is learned from to the next.
constexpr std::int64_t kLearnEvery = 8;
/// Those of a tensor that may stay as it is.
constexpr std::size_t kFewNumbers = 512;
/// Steps of the iteration on the first block, where nothing is known.
constexpr int kFirstSteps = 3;

Tensor flat(const Tensor& factor) { return factor.reshape({-1, factor.size(-1)}); }

/// Rows (B, m * n) as factors: position t is row t of the matrix, its left factor the unit vector of t.
Factors factors_of_rows(const Tensor& rows, std::int64_t m, std::int64_t n) {
  const std::int64_t batch = rows.size(0);
  const Tensor indices = at::arange(m, rows.options().dtype(at::kLong)).expand({batch, m});
  return Factors::of_lookup(indices, rows.reshape({batch, m, n}), m);
}

/// (B, T, n) and (n, r) -> (B, T, r); without a copy, whatever the layout.
Tensor times_each(const Tensor& factor, const Tensor& map) {
  const std::vector<std::int64_t> shape = {factor.size(0), factor.size(1), map.size(1)};
  if (factor.size(1) == 1 || factor.stride(0) == factor.size(1) * factor.stride(1))
    return times(flat(factor), map).view(shape);
  std::vector<Tensor> all;
  for (std::int64_t b = 0; b < factor.size(0); ++b) all.push_back(times(factor.select(0, b), map));
  return at::stack(all);
}

Tensor project_left(const Factors& f, const Tensor& map) {
  if (f.is_lookup()) {
    const Tensor rows = map.defined() ? map : at::eye(f.m, f.right.options());
    return rows.index_select(0, f.indices.reshape({-1})).view({f.batch(), f.positions, -1});
  }
  return map.defined() ? times_each(f.left, map) : f.left;
}

Tensor expanded_right(const Factors& f) { return f.expand ? f.examples(0, f.batch()).right : f.right; }

Tensor project_right(const Factors& f, const Tensor& map) {
  if (!map.defined()) return expanded_right(f);
  if (f.project) return f.project(f.right, map);
  return times_each(expanded_right(f), map);
}

/// (m, r): sum over examples and positions of left^T weights (B, T, r).
Tensor pull_left(const Factors& f, const Tensor& weights) {
  if (!f.is_lookup()) return times(flat(f.left).t(), flat(weights));
  return at::zeros({f.m, weights.size(-1)}, weights.options())
      .index_add_(0, f.indices.reshape({-1}), flat(weights));
}

/// (n, r): the same with right.
Tensor pull_right(const Factors& f, const Tensor& weights) {
  if (f.pull) return f.pull(f.right, weights);
  return times(flat(expanded_right(f)).t(), flat(weights));
}

/// Contiguous, as a state brings it back: products depend on the layout in their last bits.
Tensor orthonormal(const Tensor& columns) {
  return std::get<0>(at::linalg_qr(columns, "reduced")).contiguous();
}

template <class T>
Tensor drawn(std::int64_t length, std::int64_t size, std::uint64_t seed, std::size_t index, KronSide side,
             at::ScalarType type) {
  const auto map =
      kron_map<T>(static_cast<std::size_t>(length), static_cast<std::size_t>(size), seed, index, side);
  if (map.empty()) return {};
  return at::tensor(at::ArrayRef<T>(map), type).view({size, length}).t().contiguous();
}

void save_tensor(State& state, const std::string& key, const Tensor& tensor) {
  if (!tensor.defined()) return;
  const Tensor value = tensor.to(at::kCPU).contiguous();
  const auto size = static_cast<std::size_t>(value.numel());
  if (wide(value))
    state.set(key, std::span<const double>(value.const_data_ptr<double>(), size));
  else
    state.set(key, std::span<const float>(value.const_data_ptr<float>(), size));
}

/// Of what goes on to be counted.
std::int64_t loaded_count(const State& state, const char* key) {
  constexpr std::int64_t kMost = std::int64_t{1} << 62;
  const std::int64_t value = state.integer(key);
  if (value >= 0 && value <= kMost) return value;
  throw StateMismatch(state.name(key), fmt::format("{}; 0 to {} are possible", value, kMost));
}

Tensor load_tensor(const State& state, const std::string& key, std::int64_t columns) {
  if (!state.contains(key)) return {};
  const Array& array = state.array(key);
  const std::size_t size = array.bytes.size() / dtype_size(array.dtype);
  const Tensor value = array.dtype == DType::kF64 ? at::tensor(state.elements<double>(key, size), at::kDouble)
                                                  : at::tensor(state.elements<float>(key, size), at::kFloat);
  if (value.numel() == 0 || value.numel() % columns != 0)
    throw StateMismatch(state.name(key),
                        fmt::format("{} numbers; a multiple of {} is possible", size, columns));
  return value.view({-1, columns});
}

}  // namespace

Sketcher::Sketcher(const SketchOptions& options, std::size_t units, std::vector<Shape> shapes,
                   std::uint64_t seed)
    : options_(options), units_(units), shapes_(std::move(shapes)), seed_(seed) {}

Shape Sketcher::shape_of(std::size_t number, const Tensor& parameter) const {
  const Shape own(parameter.sizes().begin(), parameter.sizes().end());
  if (shapes_.empty()) return own;
  std::size_t numel = 1;
  if (number < shapes_.size())
    for (const std::size_t side : shapes_[number]) numel *= side;
  if (number >= shapes_.size() || numel != static_cast<std::size_t>(parameter.numel()))
    throw UserError("observe",
                    fmt::format("parameter {} has the shape {}, and the shapes given for the sketch "
                                "are not those of the parameters in the order in which they are "
                                "met; leave them out",
                                number, fmt::join(own, "x")));
  return shapes_[number];
}

/// What is small, and has no more numbers than the maps that would be learned of it, stays as it is.
std::int64_t Sketcher::size_for(const KronTensor& tensor) const {
  const std::size_t numbers = tensor.rows * tensor.columns;
  std::size_t of_maps = 0;
  for (const std::size_t side : {tensor.rows, tensor.columns})
    if (side > tensor.size) of_maps += side * tensor.size;
  const bool whole = learns() && numbers <= std::min(kFewNumbers, of_maps);
  return static_cast<std::int64_t>(whole ? std::max(tensor.rows, tensor.columns) : tensor.size);
}

void Sketcher::meet(std::size_t number, const Tensor& parameter) {
  if (number >= maps_.size()) maps_.resize(number + 1);
  Maps& maps = maps_[number];
  if (maps.m > 0) return;
  const KronTensor tensor = kron_tensor(options_, units_, shape_of(number, parameter));
  maps.m = static_cast<std::int64_t>(tensor.rows);
  maps.n = static_cast<std::int64_t>(tensor.columns);
  maps.size = size_for(tensor);
  const auto fits = [&](const Tensor& map, std::int64_t length) {
    return length <= maps.size ? !map.defined() : map.defined() && map.size(0) == length;
  };
  if (maps.known() && (!fits(maps.left, maps.m) || !fits(maps.right, maps.n)))
    throw StateMismatch("sketch",
                        fmt::format("the maps of parameter {} are not those of a matrix of {} x {}; "
                                    "load the state with the same model",
                                    number, maps.m, maps.n));
}

void Sketcher::begin_block(std::uint64_t epoch, const std::vector<Met>& parameters) {
  const at::NoGradGuard no_grad;
  table_.meet(parameters);
  for (const Met& met : parameters) meet(table_.number(met.parameter), met.parameter);
  if (epoch == epoch_) return;
  for (Maps& maps : maps_) change_epoch(maps);
  epoch_ = epoch;
  blocks_ = 0;
}

/// The random maps of kron; the same numbers as the core's.
void Sketcher::draw(Maps& maps, std::size_t number, const at::TensorOptions& options) const {
  const auto side = [&](std::int64_t length, KronSide which) {
    return options.dtype() == at::kDouble
               ? drawn<double>(length, maps.size, seed_, number, which, at::kDouble)
               : drawn<float>(length, maps.size, seed_, number, which, at::kFloat);
  };
  maps.left = side(maps.m, KronSide::kLeft);
  maps.right = side(maps.n, KronSide::kRight);
  for (Tensor* map : {&maps.left, &maps.right})
    if (map->defined()) *map = map->to(options.device());
  if (!learns()) return;
  if (maps.left.defined()) maps.left_sum = at::zeros_like(maps.left);
  if (maps.right.defined()) maps.right_sum = at::zeros_like(maps.right);
}

void Sketcher::change_epoch(Maps& maps) {
  for (auto [map, sum] : {std::pair{&maps.left, &maps.left_sum}, {&maps.right, &maps.right_sum}}) {
    if (!sum->defined() || !sum->any().item<bool>()) continue;
    *map = orthonormal(*sum);
    *sum = at::zeros_like(*sum);
  }
}

Sketcher::Projected Sketcher::project(const Maps& maps, const Factors& factors) {
  Projected out{project_left(factors, maps.left), project_right(factors, maps.right), {}};
  out.rows = factors.positions == 1 ? out.left.transpose(1, 2) * out.right
                                    : at::bmm(out.left.transpose(1, 2), out.right);
  return out;
}

bool Sketcher::learns_now() const { return learns() && blocks_ % kLearnEvery == 0; }

/// A step of subspace iteration on both sides at once: with C the covariance of what the other side's map
/// leaves of the gradients, C times the map is added to its sum. Every block counts the same, whatever its
/// scale; one that is not finite does not count.
void Sketcher::learn(Maps& maps, const Factors& factors, const Projected& seen) {
  const Tensor centred = seen.rows - seen.rows.mean(0, true);
  const double energy = centred.square().sum(at::kDouble).item<double>();
  if (!(energy > 0.0) || !std::isfinite(energy)) return;
  if (maps.right_sum.defined())
    maps.right_sum.add_(pull_right(factors, at::bmm(seen.left, centred)), 1.0 / energy);
  if (maps.left_sum.defined())
    maps.left_sum.add_(pull_left(factors, at::bmm(seen.right, centred.transpose(1, 2))), 1.0 / energy);
}

void Sketcher::learn_first(Maps& maps, const Factors& factors) const {
  for (int step = 0; step < kFirstSteps; ++step) {
    learn(maps, factors, project(maps, factors));
    change_epoch(maps);
  }
}

/// (B, r * r).
Tensor Sketcher::sketch_use(Maps& maps, const Factors& factors) const {
  const Projected projected = project(maps, factors);
  if (learns_now()) learn(maps, factors, projected);
  return projected.rows.reshape({factors.batch(), -1});
}

/// The same of rows (B, m * n).
Tensor Sketcher::sketch_rows(Maps& maps, const Tensor& rows) const {
  if (learns_now()) return sketch_use(maps, factors_of_rows(rows, maps.m, maps.n));
  Tensor some = rows.reshape({-1, maps.m, maps.n});
  if (maps.right.defined()) some = times_each(some, maps.right);
  if (maps.left.defined()) some = times_each(some.transpose(1, 2).contiguous(), maps.left).transpose(1, 2);
  return some.reshape({rows.size(0), -1});
}

bool Sketcher::forms(const Contribution& gradients) const {
  if (gradients.uses().size() != 1 || gradients.has_rows()) return false;
  const Factors& f = gradients.factors();
  if (!f.form || f.options().dtype() != at::kFloat) return false;
  const auto side = [](std::int64_t length) { return static_cast<std::size_t>(length); };
  return f.m <= 2 * size_for(kron_tensor(options_, units_, {side(f.m), side(f.n)}));
}

Contribution Sketcher::sketch(const Tensor& parameter, const Contribution& gradients) {
  const std::size_t number = table_.number(parameter);
  Maps& maps = maps_[number];
  const bool shorter = maps.m > maps.size || maps.n > maps.size;
  if (!shorter && gradients.is_rows()) return gradients;
  const auto fits = [&](const Factors& f) { return f.m == maps.m && f.n == maps.n; };
  if (!std::all_of(gradients.uses().begin(), gradients.uses().end(), fits))
    return sketch(parameter, Contribution::of_rows(gradients.rows()));
  if (forms(gradients)) return sketch(parameter, Contribution::of_rows(gradients.rows()));
  if (shorter && !maps.known()) {
    draw(maps, number, gradients.options());
    if (learns())
      learn_first(maps, gradients.is_rows() ? factors_of_rows(gradients.formed(), maps.m, maps.n)
                                            : gradients.factors());
  }
  Tensor rows;
  const auto add = [&](const Tensor& one) { rows = rows.defined() ? rows + one : one; };
  for (const Factors& f : gradients.uses()) add(sketch_use(maps, f));
  if (gradients.has_rows()) add(sketch_rows(maps, gradients.formed()));
  return gradients.with_rows(rows);
}

void Sketcher::save(State& state) const {
  State own;
  table_.save(own);
  own.set("seed", static_cast<std::int64_t>(seed_));
  own.set("epoch", static_cast<std::int64_t>(epoch_));
  own.set("blocks", blocks_);
  for (std::size_t k = 0; learns() && k < maps_.size(); ++k) {
    save_tensor(own, fmt::format("{}/left", k), maps_[k].left);
    save_tensor(own, fmt::format("{}/left_sum", k), maps_[k].left_sum);
    save_tensor(own, fmt::format("{}/right", k), maps_[k].right);
    save_tensor(own, fmt::format("{}/right_sum", k), maps_[k].right_sum);
  }
  state.set_part("sketch", own);
}

void Sketcher::load(const State& state) {
  const State own = state.part("sketch");
  ParameterTable table = ParameterTable::load(own, std::numeric_limits<std::size_t>::max());
  const bool fresh = table_.slots().empty();
  if (!fresh && !table.slots().empty() && !table.same_places(table_))
    throw StateMismatch("sketch",
                        "the state was saved with other parameters than those seen here; load it "
                        "into a new sampler of the same model");
  std::vector<Maps> loaded(fresh ? table.slots().size() : maps_.size());
  for (std::size_t k = 0; k < loaded.size(); ++k) {
    Maps& maps = loaded[k];
    if (!fresh) std::tie(maps.m, maps.n, maps.size) = std::tie(maps_[k].m, maps_[k].n, maps_[k].size);
    if (learns()) load_maps(maps, own, k);
  }
  const std::int64_t epoch = loaded_count(own, "epoch");
  const std::int64_t blocks = loaded_count(own, "blocks");
  seed_ = static_cast<std::uint64_t>(own.integer("seed"));
  epoch_ = static_cast<std::uint64_t>(epoch);
  blocks_ = blocks;
  maps_ = std::move(loaded);
  if (fresh) table_ = std::move(table);
}

void Sketcher::load_maps(Maps& maps, const State& state, std::size_t number) const {
  const auto columns = static_cast<std::int64_t>(options_.size);
  const auto side = [&](const char* name, std::int64_t length, Tensor& map, Tensor& sum) {
    const std::string key = fmt::format("{}/{}", number, name);
    map = load_tensor(state, key, columns);
    sum = load_tensor(state, key + "_sum", columns);
    const bool both = map.defined() == sum.defined() && (!map.defined() || map.sizes() == sum.sizes());
    if (!both || (length > 0 && map.defined() && map.size(0) != length))
      throw StateMismatch(state.name(key),
                          "a map and a sum that are not of one matrix; load the state with the "
                          "same model");
  };
  side("left", maps.m, maps.left, maps.left_sum);
  side("right", maps.n, maps.right, maps.right_sum);
}

}  // namespace cdgrab::torch

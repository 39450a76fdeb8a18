// SPDX-License-Identifier: Apache-2.0
#include "observation.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "cdgrab/error.hpp"
#include "cdgrab/stopwatch.hpp"
#include "fallback.hpp"
#include "row_memory.hpp"

namespace cdgrab::torch {

/// Runs before its node, when what the node has saved is still there.
class Observation::Hook final : public ::torch::autograd::FunctionPreHook {
 public:
  using Action = std::function<void(Observation&, const Hook&, const variable_list&)>;
  Hook(std::shared_ptr<Observation> observation, Action action)
      : observation_(std::move(observation)), action_(std::move(action)) {}

  variable_list operator()(const variable_list& gradients) override {
    if (observation_->released_) return gradients;
    creates_graph_ = at::GradMode::is_enabled();
    const at::NoGradGuard no_grad;
    action_(*observation_, *this, gradients);
    return gradients;
  }
  /// Of a backward that is not differentiated itself, and no hook may change what arrives after this one.
  [[nodiscard]] bool is_last_before(Node* node) const {
    return !creates_graph_ && node->pre_hooks().back().get() == this;
  }

 private:
  std::shared_ptr<Observation> observation_;
  Action action_;
  bool creates_graph_ = false;
};

/// Runs after its node, before anybody else sees what that sends on.
class Observation::AfterHook final : public ::torch::autograd::FunctionPostHook {
 public:
  AfterHook(std::shared_ptr<Observation> observation, Node* node)
      : observation_(std::move(observation)), node_(node) {}

  variable_list operator()(const variable_list& sent, const variable_list& /*arrived*/) override {
    return observation_->after(node_, sent);
  }

 private:
  std::shared_ptr<Observation> observation_;
  Node* node_;
};

/// Runs after its node, with what that sends on: in a batch of one, the example's.
class Observation::WholeHook final : public ::torch::autograd::FunctionPostHook {
 public:
  WholeHook(std::shared_ptr<Observation> observation, Node* node)
      : observation_(std::move(observation)), node_(node) {}

  variable_list operator()(const variable_list& sent, const variable_list& /*arrived*/) override {
    if (observation_->released_) return sent;
    const at::NoGradGuard no_grad;
    observation_->visit_whole(node_, sent);
    return sent;
  }

 private:
  std::shared_ptr<Observation> observation_;
  Node* node_;
};

namespace {

void check_loss(const Tensor& loss, std::int64_t batch) {
  if (!loss.defined() || loss.grad_fn() == nullptr)
    throw UserError("observe",
                    "the loss has no graph; observe the tensor that backward() will be called on, with "
                    "gradients enabled");
  if (loss.dim() == 0 || (loss.dim() == 1 && loss.size(0) == batch)) return;
  throw UserError("observe",
                  fmt::format("a loss of shape {}; a scalar or one number for each of the {} examples is "
                              "allowed",
                              fmt::join(loss.sizes(), "x"), batch));
}

/// Smaller parameters are updated sooner than a sum is put aside for them (bench/observe).
bool is_worth_a_sum(const Use& use) { return use.parameter.numel() >= 262144; }

/// Of the budget, where not all rows fit into it: what is formed later stays in the cache, what is formed on
/// the way goes to memory and back.
constexpr std::size_t kPartOnTheWay = 8;

/// Then adding up the rows takes as many operations as the weight gradient.
bool is_one_product(const Contribution& gradients) {
  return gradients.uses().size() == 1 && gradients.factors().positions == 1;
}

/// Of an autograd function that is not torch's own, whose names end in a number. It may look at .grad before
/// the backward is over, as that of a sharded model (FSDP2) does.
bool is_custom(Node* node) {
  if (as_leaf(node) != nullptr) return false;
  const std::string name = node->name();
  return name.ends_with("Backward") || name.find("CppNode<") != std::string::npos;
}

/// (B), float64: what undoes these scales; undefined where rows of float32 do not come back from them.
Tensor inverse_of(const Tensor& scales) {
  const Tensor host = scales.to(at::kDouble).contiguous();
  const double* first = host.const_data_ptr<double>();
  const bool come_back = std::all_of(first, first + host.numel(), [](double scale) {
    const auto narrow = static_cast<float>(scale);
    return std::isfinite(narrow) && narrow != 0.0F;
  });
  return come_back ? host.reciprocal() : Tensor();
}

constexpr const char* kRemedy =
    "Leave these parameters out (ObserveOptions::parameters), or give the vectors themselves to "
    "observe_gradients";

/// A region whose parameters do not appear in the graph would be left out in silence.
void check_visible(const Graph& graph) {
  for (Node* node : graph.nodes)
    if (as_leaf(node) == nullptr && node->name().find("CheckpointFunctionBackward") != std::string::npos)
      throw UserError(
          "observe",
          "re-entrant checkpointing (CheckpointFunctionBackward) hides the parameters inside it; use "
          "checkpoint(.., use_reentrant=False)");
}

/// Said once for each, whatever the number of steps.
void announce(const std::set<std::string>& missing) {
  static std::mutex mutex;
  static std::set<std::string> announced;
  const std::scoped_lock lock(mutex);
  std::vector<std::string> fresh;
  for (const std::string& use : missing)
    if (announced.insert(use).second) fresh.push_back(use);
  if (!fresh.empty())
    TORCH_WARN("cdgrab: no rule covers ", fmt::format("{}", fmt::join(fresh, "; ")),
               ". Their gradients are exact, but each step runs these nodes once more for every example; "
               "strict refuses this");
}

/// All that no rule covers, in one message. Throws UserError for what is refused.
void check_rules(const Graph& graph, const ObserveOptions& options) {
  std::set<std::string> missing;
  bool compiled = false;
  for (const Use& use : graph.uses) {
    if (rule_for(use) != nullptr) continue;
    missing.insert(fmt::format("{} with {}", use.node->name(), options.parameters.describe(use.parameter)));
    compiled = compiled || is_compiled(use.node);
  }
  if (missing.empty()) return;
  if (!options.strict && !compiled) return announce(missing);
  constexpr const char* kCompiled =
      " A compiled region is one node: compile only parts without parameters, observe the model uncompiled, "
      "or order microbatches (unit= and observe_microbatch), which reads .grad.";
  throw UserError("observe", fmt::format("no rule covers: {}.{} {}", fmt::join(missing, "; "),
                                         compiled ? kCompiled : "", kRemedy));
}

[[noreturn]] void cannot_read(const Use& use, const std::string& reason) {
  throw UserError("observe",
                  fmt::format("the gradients of a parameter of shape {} cannot be read off {}: {}. {}",
                              fmt::join(use.parameter.sizes(), "x"), use.node->name(), reason, kRemedy));
}

/// What does not have the parameter's size must never be taken for its gradient.
Contribution fitting(Contribution contribution, const Moment& moment, const Use& use) {
  if (contribution.batch() != moment.batch || contribution.entries() != use.parameter.numel())
    cannot_read(use, fmt::format("there are {} rows of {}", contribution.batch(), contribution.entries()));
  return contribution;
}

Contribution read(Rule rule, const Moment& moment, const Use& use) {
  try {
    return fitting(through_chain(rule(moment), use), moment, use);
  } catch (const c10::Error& error) {
    cannot_read(use, error.what_without_backtrace());
  } catch (const InvariantError& error) {
    cannot_read(use, error.what());
  }
}

/// Throws UserError for what is no list of examples.
std::vector<std::int64_t> examples_of_rows(const Tensor& example_of_row, std::int64_t batch) {
  if (!example_of_row.defined()) return {};
  if (example_of_row.dim() != 1 || example_of_row.numel() == 0 ||
      !c10::isIntegralType(example_of_row.scalar_type(), /*includeBool=*/false))
    throw UserError(
        "observe",
        fmt::format("example_of_row is a tensor of {} of shape ({}); one integer for each row is "
                    "allowed: the example of the batch that it belongs to",
                    c10::toString(example_of_row.scalar_type()), fmt::join(example_of_row.sizes(), "x")));
  const Tensor list = example_of_row.to(at::kCPU, at::kLong).contiguous();
  const auto* first = list.const_data_ptr<std::int64_t>();
  std::vector<std::int64_t> all(first, first + list.numel());
  for (std::size_t row = 0; row < all.size(); ++row)
    if (all[row] < 0 || all[row] >= batch)
      throw UserError("observe",
                      fmt::format("example_of_row[{}] is {}; 0 to {} are allowed, in a batch of {}", row,
                                  all[row], batch - 1, batch));
  return all;
}

Graph read_graph(const Tensor& loss, std::int64_t batch, const ObserveOptions& options) {
  Graph graph = batch == 1 ? find_edges(loss, options.parameters) : find_uses(loss, options.parameters);
  check_visible(graph);
  const BatchOptions where{batch, options.batch_axis, examples_of_rows(options.example_of_row, batch)};
  if (batch == 1) return graph;
  try {
    place_batch(graph, where, options.parameters);
  } catch (const UserError&) {
    // Where the batch is lost at a node without a rule, say that.
    if (!graph.followed) check_rules(graph, options);
    throw;
  }
  check_rules(graph, options);
  return graph;
}

}  // namespace

std::shared_ptr<Observation> Observation::start(const Tensor& loss, std::int64_t batch,
                                                const ObserveOptions& options, Finish finish, Way way) {
  if (batch < 1) throw UserError("observe", fmt::format("a batch of {}; at least 1 is allowed", batch));
  const std::int64_t rows = batch + options.repeats;
  check_loss(loss, rows);
  const at::NoGradGuard no_grad;
  const Graph graph = read_graph(loss, rows, options);
  if (graph.uses.empty())
    throw UserError(
        "observe",
        "the loss depends on no parameter that counts; check requires_grad and ObserveOptions::parameters");

  keep_freed_memory();
  auto observation = std::make_shared<Observation>();
  observation->batch_ = rows;
  observation->repeats_ = options.repeats;
  observation->sum_ = options.sum;
  observation->per_example_ = loss.dim() == 1;
  observation->budget_ = options.budget;
  observation->finish_ = std::move(finish);
  observation->way_ = std::move(way);
  if (observation->way_.shortening.shorten) {
    observation->way_.forms = observation->way_.shortening.forms;
    observation->way_.sums = false;
    observation->way_.late = false;
  }
  observation->expect(graph, options.parameters);
  if (observation->way_.shortening.begin) observation->way_.shortening.begin(observation->met());
  observation->watch();
  return observation;
}

void Observation::watch() {
  const auto self = shared_from_this();
  const auto hook = [&](Node* node, Hook::Action action) {
    node->add_pre_hook(std::make_unique<Hook>(self, std::move(action)));
  };
  hook(root_, [](Observation& o, const Hook&, const variable_list& g) { o.begin(g.at(o.output_)); });
  for (const auto& [node, uses] : uses_) {
    if (batch_ == 1) {
      node->add_post_hook(std::make_unique<WholeHook>(self, node));
      continue;
    }
    const bool first_after =
        node->post_hooks().empty() && std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
          return (way_.fused || (way_.sums && is_worth_a_sum(use))) && is_separable(use);
        });
    if (first_after) node->add_post_hook(std::make_unique<AfterHook>(self, node));
    hook(node, [node = node, first_after](Observation& o, const Hook& own, const variable_list& g) {
      o.visit(node, g, first_after && own.is_last_before(node));
    });
  }
}

std::vector<Tensor> Observation::parameters() const {
  std::vector<Tensor> all;
  for (const Collected& c : collected_) all.push_back(c.parameter);
  return all;
}

std::vector<Met> Observation::met() const {
  std::vector<Met> all;
  for (const Collected& c : collected_) all.push_back({c.parameter, c.name});
  return all;
}

void Observation::expect(const Graph& graph, const ParameterSet& parameters) {
  root_ = graph.root;
  output_ = graph.output;
  nodes_.insert(graph.nodes.begin(), graph.nodes.end());
  is_plain_ = way_.fused && std::none_of(graph.nodes.begin(), graph.nodes.end(), is_custom);
  for (const Use& use : graph.uses) {
    uses_[use.node].push_back(use);
    const auto [at, fresh] = index_.try_emplace(use.parameter.unsafeGetTensorImpl(), collected_.size());
    if (fresh) collected_.push_back({use.parameter, parameters.name(use.parameter), 0, std::nullopt});
    ++collected_[at->second].left;
  }
  left_ = uses_.size();
  if (bytes_of_all_rows() > budget_ && waits(graph)) {
    late_ = budget_ - budget_ / kPartOnTheWay;
    budget_ -= late_;
  }
}

std::size_t Observation::bytes_of_all_rows() const {
  std::size_t total = 0;
  for (const Collected& c : collected_)
    if (c.parameter.is_cpu())
      total += static_cast<std::size_t>(c.parameter.numel()) *
               (wide(c.parameter) ? sizeof(double) : sizeof(float));
  return total * static_cast<std::size_t>(batch_);
}

/// Where weight gradients come with rows, these must not come later than somebody looks for those.
bool Observation::waits(const Graph& graph) const {
  return way_.late &&
         (!way_.fused || (is_plain_ && std::all_of(graph.uses.begin(), graph.uses.end(), is_private)));
}

/// The loss's own gradient has arrived: dividing by it makes loss scaling and loss/k change nothing.
void Observation::begin(const Tensor& upstream) {
  if (begun_)
    throw UserError("observe",
                    "backward ran twice through an observed loss; observe it again before the second one");
  begun_ = true;
  check_alone();
  const double factor = sum_ ? 1.0 : static_cast<double>(batch_);
  if (per_example_)
    scale_ = upstream.reciprocal();
  else if (upstream.is_cpu())
    alpha_ = factor / upstream.item<double>();
  else  // the number stays where it is: reading it would wait for the device
    scale_ = (upstream.reciprocal() * factor).expand({batch_});
  if (way_.fused && upstream.is_cpu())
    inverse_ = inverse_of(per_example_ ? scale_ : at::full({batch_}, alpha_, at::kDouble));
  // With the last of the backward, whichever way it ends, goes the callback.
  const std::shared_ptr<void> afterwards(nullptr,
                                         [self = shared_from_this()](void*) { self->taken_.give_back(); });
  ::torch::autograd::Engine::get_default_engine().queue_callback(
      [self = shared_from_this(), afterwards] { self->end(); });
}

/// Another loss that comes into the graph below the observed one would add its gradients to the examples'.
void Observation::check_alone() const {
  const auto* running = ::torch::autograd::get_current_graph_task_nodes_in_graph();
  if (running == nullptr) return;
  for (Node* node : *running) {
    if (nodes_.contains(node)) continue;
    for (const auto& edge : node->next_edges()) {
      Node* below = edge.function.get();
      if (below == nullptr || below == root_ || as_leaf(below) != nullptr) continue;
      if (nodes_.contains(below))
        throw UserError(
            "observe",
            fmt::format("another loss shares part of the observed one's graph ({} leads into it) and runs "
                        "backward with it, so that their gradients arrive as one; observe their sum, or run "
                        "the other one's backward on its own, after this one",
                        node->name()));
    }
  }
}

void Observation::check_begun() const {
  if (!begun_)
    throw UserError("observe",
                    "another loss than the observed one runs backward through its graph first; run the "
                    "observed loss's backward first, or observe their sum");
}

void Observation::visit_whole(Node* node, const variable_list& sent) {
  const std::lock_guard lock(mutex_);
  if (collected_.empty()) return;  // it is over: what a backward of gradients runs once more
  check_begun();
  --left_;
  const Stopwatch watch(&seconds_);
  for (const Use& use : uses_.at(node)) {
    const Tensor& gradient = sent.at(use.slot);
    if (!gradient.defined()) continue;
    // A copy: what is sent may become the parameter's .grad, which later backwards add to.
    const bool dense = gradient.layout() == at::kStrided;
    auto contribution =
        Contribution::of_rows((dense ? gradient.clone() : gradient.to_dense()).reshape({1, -1}));
    collect(use, scaled(std::move(contribution), use), node->name());
  }
}

void Observation::visit(Node* node, const variable_list& gradients, bool alone) {
  const std::lock_guard lock(mutex_);
  if (collected_.empty()) return;  // it is over: what a backward of gradients runs once more
  check_begun();
  --left_;
  if (std::none_of(gradients.begin(), gradients.end(), [](const Tensor& g) { return g.defined(); })) return;
  const Stopwatch watch(&seconds_);
  variable_list kept;
  std::vector<const Use*> without_rule;
  std::vector<std::pair<std::size_t, Tensor>> sums;
  for (const Use& use : uses_.at(node)) {
    const Rule rule = rule_for(use);
    if (rule == nullptr) {
      without_rule.push_back(&use);
      continue;
    }
    Contribution one = scaled(read(rule, {node, use.slot, gradients, use.layout, batch_, kept}, use), use);
    if (alone && is_separable(use) && node->task_should_compute_output(use.slot)) {
      if (auto sum = sum_of(one, use))
        sums.emplace_back(use.slot, std::move(*sum));
      else if (way_.sums && !one.has_rows() && is_private(use)) {
        if (may_be_late(one, use))
          sums.emplace_back(use.slot, owe(one, use));
        else if (is_worth_a_sum(use))
          summed_.push_back(&use);
      }
    }
    collect(use, std::move(one), node->name());
  }
  if (!without_rule.empty())
    visit_without_rule({node, 0, gradients, without_rule.front()->layout, batch_, kept}, without_rule);
  for (auto& [slot, sum] : sums) taken_.take(node, slot, std::move(sum));
}

/// What the node need not compute; forms the rows that are wanted anyway.
std::optional<Tensor> Observation::sum_of(Contribution& contribution, const Use& use) {
  if (!inverse_.defined() || is_one_product(contribution)) return std::nullopt;
  if (way_.forms(contribution)) form_within_budget(contribution, /*with_sum=*/true);
  if (!contribution.is_rows()) return std::nullopt;
  return sum_on_edge(contribution, inverse_, use);
}

bool Observation::may_be_late(const Contribution& contribution, const Use& use) const {
  const auto* wanted = ::torch::autograd::get_current_graph_task_exec_info();
  const bool accumulates_all = wanted == nullptr || wanted->empty();  // no inputs= and no autograd.grad
  const Collected& collected = collected_[index_.at(use.parameter.unsafeGetTensorImpl())];
  return inverse_.defined() && is_plain_ && accumulates_all && collected.left == 1 && !collected.sum &&
         use.parameter.scalar_type() == at::kFloat &&
         (are_single_products(contribution.factors()) ? is_worth_a_sum(use)
                                                      : way_.late && way_.forms(contribution));
}

/// Nothing, for the node to send.
Tensor Observation::owe(Contribution& contribution, const Use& use) {
  owed_.emplace_back(use.parameter, std::make_shared<OwedSum>(contribution.factors()));
  contribution.owe(owed_.back().second);
  return {};
}

void Observation::pay() {
  const at::NoGradGuard no_grad;
  for (auto& [parameter, sum] : owed_) {
    variable_list sent(1);  // the one reference to it, so that it becomes .grad without a copy
    sent[0] = sum->take();
    if (sent[0].sizes() != parameter.sizes()) sent[0] = sent[0].view(parameter.sizes());
    (*::torch::autograd::impl::grad_accumulator(parameter))(std::move(sent));
  }
  owed_.clear();
}

variable_list Observation::after(Node* node, variable_list sent) {
  const std::lock_guard lock(mutex_);
  taken_.give_back(node, sent);
  const at::NoGradGuard no_grad;
  for (const Use* use : summed_) {
    if (use->node != node) continue;
    auto& gradients = collected_[index_.at(use->parameter.unsafeGetTensorImpl())].sum;
    const Tensor& sum = sent.at(use->slot);
    if (sum.defined() && gradients->uses().size() == 1 && !gradients->has_rows() &&
        sum.scalar_type() == gradients->options().dtype().toScalarType())
      gradients->know_sum(matrix_of_edge(sum, *use, gradients->factors()));
  }
  std::erase_if(summed_, [&](const Use* use) { return use->node == node; });
  return sent;
}

/// In the type of the registers, and each example's gradient in the scale of its own loss.
Contribution Observation::scaled(Contribution contribution, const Use& use) const {
  contribution.to(use.parameter.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  if (scale_.defined())
    contribution.scale(scale_);
  else
    contribution.scale(alpha_);
  return contribution;
}

void Observation::visit_without_rule(const Moment& moment, const std::vector<const Use*>& uses) {
  std::vector<std::size_t> slots;
  for (const Use* use : uses) slots.push_back(use->slot);
  const std::size_t bytes = bytes_by_example(moment, slots);
  if (bytes > budget_)
    cannot_read(
        *uses.front(),
        fmt::format("no rule covers this node, and rows of {} bytes are more than the {} that are left "
                    "of the budget; give more",
                    bytes, budget_));
  budget_ -= bytes;
  std::vector<Contribution> all = apply_by_example(moment, slots);
  for (std::size_t k = 0; k < uses.size(); ++k)
    collect(*uses[k], scaled(fitting(through_chain(std::move(all[k]), *uses[k]), moment, *uses[k]), *uses[k]),
            fmt::format("by example: {}", moment.node->name()));
}

/// Several uses of one parameter add up before any product is taken.
void Observation::collect(const Use& use, Contribution contribution, const std::string& rule) {
  Collected& to = collected_[index_.at(use.parameter.unsafeGetTensorImpl())];
  to.rules.insert(rule);
  if (way_.shortening.shorten) contribution = way_.shortening.shorten(use.parameter, contribution);
  if (to.sum)
    to.sum->add(std::move(contribution));
  else
    to.sum = std::move(contribution);
  if (--to.left == 0)
    complete(to);
  else if (to.sum->factor_bytes() > to.sum->row_bytes())
    form_within_budget(*to.sum);
}

void Observation::complete(Collected& collected) {
  Contribution& sum = *collected.sum;
  sum.merge();
  // Written to memory and read again, rows of one product take longer than from what they are made of.
  const bool later = way_.late && collected.parameter.is_cpu() && !sum.is_rows() && is_one_product(sum) &&
                     !Contribution::stays_in_cache(sum.row_bytes());
  if (!later && way_.forms(sum)) form_within_budget(sum);
}

void Observation::form_within_budget(Contribution& sum, bool with_sum) {
  const std::size_t more = sum.has_rows() ? 0 : sum.row_bytes();
  if (sum.is_rows() || more > budget_) return;
  budget_ -= more;
  sum.form(with_sum);
}

void Observation::end() {
  try {
    hand_over();
  } catch (...) {
    pay();  // whatever becomes of the order, the step is whole
    throw;
  }
  pay();
}

void Observation::hand_over() {
  if (left_ > 0)
    throw UserError("observe",
                    fmt::format("{} of {} nodes with parameters did not run in this backward; observe "
                                "losses whose whole graph is differentiated",
                                left_, uses_.size()));
  const at::NoGradGuard no_grad;
  Observed observed{batch_ - repeats_, {}, seconds_, budget_ + late_};
  for (Collected& c : collected_) {
    if (!c.sum) continue;
    if (c.left > 0) complete(c);  // a use that no gradient reached
    if (repeats_ > 0)
      c.sum = c.sum->select(at::arange(observed.batch, c.parameter.options().dtype(at::kLong)));
    observed.parameters.push_back(
        {c.parameter, std::move(*c.sum), c.name, fmt::format("{}", fmt::join(c.rules, ", "))});
  }
  collected_.clear();
  finish_(std::move(observed));
}

}  // namespace cdgrab::torch

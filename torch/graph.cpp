// SPDX-License-Identifier: Apache-2.0
#include "graph.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "cdgrab/error.hpp"
#include "labels.hpp"

namespace cdgrab::torch {
namespace {

/// Consumers before producers; what is below a node that `ends` is left out.
template <class Ends>
std::vector<Node*> nodes_below(Node* root, const Ends& ends) {
  std::vector<Node*> order;
  std::unordered_set<Node*> seen;
  std::vector<std::pair<Node*, std::size_t>> stack = {{root, 0}};
  seen.insert(root);
  while (!stack.empty()) {
    auto& [node, next] = stack.back();
    if (next == node->num_outputs() || (next == 0 && ends(node))) {
      order.push_back(node);
      stack.pop_back();
      continue;
    }
    Node* below = node->next_edge(next++).function.get();
    if (below != nullptr && seen.insert(below).second) stack.emplace_back(below, 0);
  }
  std::reverse(order.begin(), order.end());
  return order;
}

std::vector<Node*> nodes_below(Node* root) {
  return nodes_below(root, [](Node* /*node*/) { return false; });
}

/// The parameter behind an edge, and the rearrangements on the way; an undefined tensor if there is none.
Tensor parameter_behind(Node* node, std::size_t slot, std::vector<Step>& chain) {
  const ::torch::autograd::Edge* edge = &node->next_edge(slot);
  while (edge->function != nullptr && as_leaf(edge->function.get()) == nullptr &&
         rearranges(edge->function.get())) {
    chain.push_back({edge->function.get(), edge->input_nr, 0});
    edge = &edge->function->next_edge(0);
  }
  Node* below = edge->function.get();
  const AccumulateGrad* leaf = below == nullptr ? nullptr : as_leaf(below);
  return leaf == nullptr ? Tensor() : leaf->variable;
}

/// Whether `node` makes something of parameters, if its inputs do: a penalty, which no example has a share
/// in, a weight, or a number that a weight is made with. `masks`: a constant may have a parameter's shape; in
/// a batch of one it could be the example.
bool works_on_parameters(Node* node, bool masks) {
  static const std::unordered_set<std::string> kNames = {
      "AbsBackward0",  "AddBackward0",
      "CatBackward0",  "ClampBackward1",
      "DivBackward0",  "ExpBackward0",
      "LogBackward0",  "MeanBackward0",
      "MeanBackward1", "MmBackward0",
      "MulBackward0",  "NegBackward0",
      "NormBackward0", "NormBackward1",
      "PowBackward0",  "RsubBackward1",
      "SqrtBackward0", "StackBackward0",
      "SubBackward0",  "SumBackward0",
      "SumBackward1",  "LinalgVectorNormBackward0",
      "DotBackward0",  "MvBackward0",
      "VdotBackward0",
  };
  if (as_leaf(node) != nullptr || rearranges(node)) return true;
  if (!kNames.contains(node->name())) return false;
  // What does not come from a parameter may be a number or a mask of its shape, no data of another.
  bool constant = false;
  bool same_shape = false;
  for (std::size_t slot = 0; slot < node->num_outputs(); ++slot) {
    const bool null = node->next_edge(slot).function == nullptr;
    constant = constant || null;
    same_shape = same_shape || (!null && edge_shape(node, slot) == output_shape(node));
  }
  // A matrix or vector of parameters times a constant vector, as a spectral norm has it.
  const bool fixed = node->name() == "DotBackward0" || node->name() == "VdotBackward0" ||
                     (node->name() == "MvBackward0" && node->next_edge(0).function != nullptr);
  const bool mask = same_shape && node->name() != "MmBackward0" && (masks || output_shape(node).empty());
  return !constant || fixed || mask;
}

/// Whether nothing but parameters goes into `reduction`.
bool is_penalty(Node* reduction, bool masks) {
  const auto below = nodes_below(reduction);
  return std::all_of(below.begin(), below.end(),
                     [&](Node* node) { return works_on_parameters(node, masks); });
}

/// A place for what each reduction reduces.
using Choice = std::map<Node*, Place>;

/// Where a hypothesis may go on in several ways: which one it takes. After it has ended, the next of all that
/// there are.
class Turns {
 public:
  std::size_t take(std::size_t ways) {
    if (next_ == taken_.size()) taken_.emplace_back(0, ways);
    return taken_[next_++].first;
  }
  /// False if all have been taken.
  bool advance() {
    next_ = 0;
    while (!taken_.empty() && ++taken_.back().first == taken_.back().second) taken_.pop_back();
    return !taken_.empty();
  }

 private:
  std::vector<std::pair<std::size_t, std::size_t>> taken_;  ///< and how many ways there are
  std::size_t next_ = 0;
};

/// Rows that were named, so that an axis of as many is known to be theirs where the graph does not tell.
class NamedRows {
 public:
  NamedRows(const Graph& graph, const BatchOptions& options) : options_(options) {
    if (options.example_of_row.empty()) return;
    for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
      const auto& edges = (*node)->next_edges();
      if (gives_pieces(*node) || works_on_parameters(*node, /*masks=*/true))
        if (std::all_of(edges.begin(), edges.end(), [&](const auto& edge) {
              return edge.function == nullptr || of_parameters_.contains(edge.function.get());
            }))
          of_parameters_.insert(*node);
    }
  }

  [[nodiscard]] bool given() const { return !options_.example_of_row.empty(); }
  [[nodiscard]] std::int64_t count() const {
    return static_cast<std::int64_t>(options_.example_of_row.size());
  }
  /// Along `dim` of a tensor that has as many entries there.
  [[nodiscard]] Layout at(std::int64_t dim) const {
    return layout_of(dim, options_.example_of_row, options_.batch);
  }
  /// The places they could have in a tensor of this shape.
  [[nodiscard]] std::vector<Layout> in(at::IntArrayRef shape) const {
    std::vector<Layout> all;
    for (std::size_t dim = 0; given() && dim < shape.size(); ++dim)
      if (shape[dim] == count()) all.push_back(at(static_cast<std::int64_t>(dim)));
    return all;
  }
  /// Nothing but parameters goes into what it makes: no rows are in it, whatever its shape.
  [[nodiscard]] bool is_parameter(Node* node) const { return of_parameters_.contains(node); }

 private:
  const BatchOptions& options_;
  std::unordered_set<Node*> of_parameters_;
};

/// One assumption about the batch's place, followed through the graph.
class Hypothesis {
 public:
  Hypothesis(const Graph& graph, std::int64_t batch, const ParameterSet& parameters, const NamedRows& named)
      : nodes_(graph.nodes), parameters_(parameters), named_(named), batch_(batch) {
    // One loss per example: the batch is where the graph begins.
    if (!output_shape(graph.root, graph.output).empty()) places_[{graph.root, graph.output}] = Layout{0, 1};
  }

  /// False, with the reason kept, if the assumption contradicts itself.
  bool follow(const Choice& reductions, Turns& turns) {
    for (Node* node : nodes_) {
      if (as_leaf(node) != nullptr) continue;
      if (!gives_pieces(node) && !unite_outputs(node))
        return refuse(node,
                      fmt::format("the outputs of {} have the examples in different places", node->name()));
      for (std::size_t slot = 0; slot < node->num_outputs(); ++slot)
        if (node->next_edge(slot).function != nullptr && !follow_edge(node, slot, reductions, turns))
          return false;
    }
    if (named_.given() && !rows_met_)
      return refuse(nodes_.front(),
                    fmt::format("no axis of {} rows has them of the examples that example_of_row says",
                                named_.count()));
    return true;
  }

  /// Of the node's outputs that the loss depends on, which are all alike; of its first one if they are
  /// pieces.
  [[nodiscard]] Place of(Node* node) const {
    const auto found = places_.lower_bound({node, 0});
    return found == places_.end() || found->first.first != node ? Place() : found->second;
  }
  [[nodiscard]] const std::string& reason() const { return reason_; }
  /// Where the contradiction is.
  [[nodiscard]] Node* culprit() const { return culprit_; }

 private:
  using Found = std::optional<Place>;

  /// What two know of one tensor; nullopt if they contradict each other.
  [[nodiscard]] Found united(const Place& a, const Place& b, at::IntArrayRef shape) const {
    if (!a && !b) return Found(Place());
    if (!a || !b) return std::nullopt;
    const auto both = merged(*a, *b, shape, batch_);
    return both ? Found(Place(*both)) : std::nullopt;
  }

  bool unite_outputs(Node* node) {
    const auto first = places_.lower_bound({node, 0});
    for (auto at = first; at != places_.end() && at->first.first == node; ++at) {
      const Found both = united(first->second, at->second, output_shape(node));
      if (!both) return false;
      first->second = *both;
    }
    return true;
  }

  [[nodiscard]] Found place_in(Node* node, std::size_t slot, at::IntArrayRef input) const {
    Found all = Found(Place());
    bool any = false;
    for (auto at = places_.lower_bound({node, 0}); at != places_.end() && at->first.first == node; ++at) {
      const std::uint32_t piece = gives_pieces(node) ? at->first.second : 0;
      const Found one = !at->second ? Found(Place())
                                    : place_in_input(node, slot, input, output_shape(node, piece),
                                                     *at->second, batch_, piece);
      all = !any ? one : one && all ? united(*all, *one, input) : std::nullopt;
      any = true;
      if (!all || !gives_pieces(node)) break;
    }
    return all;
  }

  /// Where the graph does not tell, an axis of as many as the rows that were named is theirs.
  [[nodiscard]] Found with_named_rows(const Found& found, Node* below, at::IntArrayRef input,
                                      Turns& turns) const {
    if ((found && *found) || named_.is_parameter(below)) return found;
    const auto ways = named_.in(input);
    if (ways.empty()) return found;
    return Found(Place(ways[ways.size() == 1 ? 0 : turns.take(ways.size())]));
  }

  bool follow_edge(Node* node, std::size_t slot, const Choice& reductions, Turns& turns) {
    const at::IntArrayRef input = edge_shape(node, slot);
    const auto& edge = node->next_edge(slot);
    const auto reduction = reductions.find(node);
    const Found found =
        with_named_rows(reduction == reductions.end() ? place_in(node, slot, input)
                                                      : Found(input.empty() ? Place() : reduction->second),
                        edge.function.get(), input, turns);
    if (!found)
      return refuse(node, fmt::format("{} does not keep the examples apart, or is not known", node->name()));
    Place place = *found;
    const AccumulateGrad* leaf = as_leaf(edge.function.get());
    if (place && leaf != nullptr && parameters_.contains(leaf->variable))
      return refuse(node, fmt::format("{} would give every example a parameter of its own", node->name()));
    if (place) note_rows(*place, input);
    if (place) place = in_first_output(edge.function.get(), edge.input_nr, *place);
    const bool moved = place && *place != **found;
    const auto [known, fresh] = places_.try_emplace({edge.function.get(), edge.input_nr}, place);
    if (fresh) return true;
    const Found both =
        united(known->second, place, output_shape(edge.function.get(), moved ? 0 : edge.input_nr));
    if (!both)
      return refuse(node, fmt::format("the examples stand in two places at {}", edge.function->name()));
    known->second = *both;
    return true;
  }

  /// Whether the rows that were named have been met, with the examples that they were given.
  void note_rows(const Layout& layout, at::IntArrayRef shape) {
    if (rows_met_ || !named_.given() || shape[static_cast<std::size_t>(layout.dim)] != named_.count()) return;
    rows_met_ = merged(layout, named_.at(layout.dim), shape, batch_).has_value();
  }

  bool refuse(Node* node, std::string reason) {
    reason_ = std::move(reason);
    culprit_ = node;
    return false;
  }

  const std::vector<Node*>& nodes_;
  const ParameterSet& parameters_;
  const NamedRows& named_;
  std::int64_t batch_;
  std::map<std::pair<Node*, std::uint32_t>, Place> places_;
  bool rows_met_ = false;
  std::string reason_;
  Node* culprit_ = nullptr;
};

/// Where the loss stops being a number: a node with a scalar output, and the shape of its first input that is
/// not one.
struct Reduction {
  Node* node;
  at::IntArrayRef shape;
};

std::vector<Reduction> reductions_of(const std::vector<Node*>& nodes) {
  std::vector<Reduction> all;
  for (Node* node : nodes) {
    if (as_leaf(node) != nullptr || !output_shape(node).empty()) continue;
    for (std::size_t slot = 0; slot < node->num_outputs(); ++slot) {
      if (node->next_edge(slot).function == nullptr || edge_shape(node, slot).empty()) continue;
      all.push_back({node, edge_shape(node, slot)});
      break;
    }
  }
  return all;
}

/// What an axis of a loss is taken for first.
enum class LossOf { kRows, kExamples };

std::vector<Layout> candidates(const Reduction& reduction, const BatchOptions& options,
                               const NamedRows& named, LossOf loss) {
  auto rows = named.in(reduction.shape);
  auto examples = possible_layouts(reduction.shape, options.batch);
  // Class scores stand along dimension 1.
  if (reduction.node->name().starts_with("NllLoss"))
    for (auto* all : {&rows, &examples}) std::erase_if(*all, [](const Layout& l) { return l.dim == 1; });
  // The axis is meant as it was before (B, T) or (T, B) became one dimension.
  if (options.batch_axis >= 0)
    std::erase_if(examples, [&](const Layout& l) {
      const bool outer = l.inner == reduction.shape[static_cast<std::size_t>(l.dim)] / options.batch;
      return options.batch_axis != (outer ? l.dim : l.dim + 1);
    });
  return !rows.empty() && (loss == LossOf::kRows || examples.empty()) ? rows : examples;
}

/// What the batch could not be followed to: the message, with the parameters below `culprit`.
class Refusal {
 public:
  Refusal(const Graph& graph, const BatchOptions& options, const ParameterSet& parameters)
      : graph_(graph), options_(options), parameters_(parameters) {}

  [[noreturn]] void operator()(Node* culprit, const std::string& reason) const {
    throw UserError(
        "observe",
        fmt::format("the {} examples cannot be told apart in this graph: {}. It concerns {}. Check the "
                    "batch size; name the axis with batch_axis, or with example_of_row which rows are "
                    "whose; leave these parameters out; or give the vectors themselves to observe_gradients",
                    options_.batch, reason, concerned(culprit)));
  }

  [[noreturn]] void ambiguous(Node* node) const {
    if (options_.example_of_row.size() == static_cast<std::size_t>(options_.batch))
      (*this)(node,
              "example_of_row has as many rows as there are examples, and the loss may be of either; observe "
              "the vector of the examples' losses");
    (*this)(node, fmt::format("two axes at {} have the length of the batch or a multiple of it, and no view "
                              "tells them apart",
                              node->name()));
  }

 private:
  [[nodiscard]] std::string concerned(Node* culprit) const {
    constexpr std::size_t kShown = 8;
    const auto below = nodes_below(culprit);
    const std::unordered_set<Node*> reached(below.begin(), below.end());
    std::vector<std::string> names;
    for (const Use& use : graph_.uses) {
      const std::string name = parameters_.describe(use.parameter);
      if (reached.contains(use.node) && std::find(names.begin(), names.end(), name) == names.end())
        names.push_back(name);
    }
    const std::size_t all = names.size();
    names.resize(std::min(all, kShown));
    if (names.empty()) return "every parameter of the loss";
    return fmt::format("{}{}", fmt::join(names, ", "),
                       all > kShown ? fmt::format(" and {} more", all - kShown) : "");
  }

  const Graph& graph_;
  const BatchOptions& options_;
  const ParameterSet& parameters_;
};

/// Every way to give the reductions a place; penalties have none.
std::vector<Choice> choices_for(const Graph& graph, const BatchOptions& options, const NamedRows& named,
                                LossOf loss, const Refusal& refuse) {
  constexpr std::size_t kMost = 4096;
  std::vector<Choice> choices = {{}};
  for (const Reduction& reduction : reductions_of(graph.nodes)) {
    std::vector<Place> places;
    if (is_penalty(reduction.node, /*masks=*/true))
      places.emplace_back(std::nullopt);
    else
      for (const Layout& layout : candidates(reduction, options, named, loss)) places.emplace_back(layout);
    if (places.empty())
      refuse(reduction.node,
             fmt::format("no axis of what {} reduces is a multiple of the batch", reduction.node->name()));
    if (choices.size() * places.size() > kMost)
      refuse(reduction.node, "there are too many reductions to try where the batch is in each");
    std::vector<Choice> longer;
    for (const Choice& choice : choices)
      for (const Place& place : places) {
        longer.push_back(choice);
        longer.back()[reduction.node] = place;
      }
    choices = std::move(longer);
  }
  return choices;
}

/// Those that do not contradict themselves; `refused` is the first that does.
std::vector<Hypothesis> consistent(const Graph& graph, const BatchOptions& options,
                                   const ParameterSet& parameters, const NamedRows& named, LossOf loss,
                                   const Refusal& refuse, std::optional<Hypothesis>& refused) {
  constexpr std::size_t kMost = 4096;
  std::vector<Hypothesis> survivors;
  std::size_t tried = 0;
  for (const Choice& choice : choices_for(graph, options, named, loss, refuse)) {
    Turns turns;
    do {
      if (++tried > kMost) refuse(graph.root, "there are too many axes of as many entries as there are rows");
      Hypothesis hypothesis(graph, options.batch, parameters, named);
      if (hypothesis.follow(choice, turns))
        survivors.push_back(std::move(hypothesis));
      else if (!refused)
        refused.emplace(std::move(hypothesis));
    } while (turns.advance());
  }
  return survivors;
}

std::vector<Hypothesis> consistent(const Graph& graph, const BatchOptions& options,
                                   const ParameterSet& parameters, const NamedRows& named,
                                   const Refusal& refuse) {
  std::optional<Hypothesis> refused;
  auto survivors = consistent(graph, options, parameters, named, LossOf::kRows, refuse, refused);
  // As many rows as examples, in another sequence: the loss may be of either.
  const bool either = named.count() == options.batch && named.at(0).labels != nullptr;
  if (named.given() && (survivors.empty() || either))
    for (Hypothesis& other :
         consistent(graph, options, parameters, named, LossOf::kExamples, refuse, refused))
      survivors.push_back(std::move(other));
  if (survivors.empty()) refuse(refused->culprit(), refused->reason());
  return survivors;
}

/// Consumers of a node's output, by the edge that leads to it.
using Consumers = std::multimap<Node*, Step>;

Consumers consumers_of(const std::vector<Node*>& nodes) {
  Consumers all;
  for (Node* node : nodes)
    for (std::size_t slot = 0; slot < node->num_outputs(); ++slot)
      if (const auto& edge = node->next_edge(slot); edge.function != nullptr)
        all.emplace(edge.function.get(), Step{node, edge.input_nr, slot});
  return all;
}

/// Where the batch is already in what the parameter became on its way to the node, by the node that put it
/// there: every example has its own copy of it, and all of the copy's gradient arrives here.
Use at_its_copies(Use use, const Hypothesis& hypothesis) {
  while (!use.chain.empty() && hypothesis.of(use.chain.front().node)) {
    use.node = use.chain.front().node;
    use.slot = use.chain.front().slot;
    use.chain.erase(use.chain.begin());
  }
  return use;
}

/// Every place where `use` meets the examples; `survivors` must agree on the way there.
void meetings(const Use& use, const std::vector<Hypothesis>& survivors, const Consumers& consumers,
              const Refusal& refuse, std::vector<Use>& out) {
  const Place place = survivors.front().of(use.node);
  for (const Hypothesis& other : survivors)
    if (other.of(use.node) != place) refuse.ambiguous(use.node);
  constexpr std::size_t kMost = 4096;
  if (out.size() == kMost)
    refuse(use.node, fmt::format("there are more than {} ways from a parameter to the examples", kMost));
  if (place) {
    out.push_back(use);
    out.back().layout = *place;
    return;
  }
  const auto [begin, end] = consumers.equal_range(use.node);
  for (auto at = begin; at != end; ++at) {
    Use above = use;
    above.node = at->second.node;
    above.slot = at->second.slot;
    above.chain.insert(above.chain.begin(), Step{use.node, at->second.output, use.slot});
    meetings(above, survivors, consumers, refuse, out);
  }
}

}  // namespace

at::IntArrayRef edge_shape(Node* node, std::size_t slot) {
  const auto& edge = node->next_edge(slot);
  return output_shape(edge.function.get(), edge.input_nr);
}

at::IntArrayRef output_shape(Node* node, std::size_t output) {
  return C10_AS_INTARRAYREF_SLOW(node->input_metadata(output).shape_as_dim_vector());
}

Graph find_uses(const Tensor& loss, const ParameterSet& parameters) {
  Graph graph;
  graph.root = loss.grad_fn().get();
  graph.output = static_cast<std::uint32_t>(loss.output_nr());
  graph.nodes = nodes_below(graph.root);
  for (Node* node : graph.nodes) {
    if (as_leaf(node) != nullptr || rearranges(node)) continue;
    for (std::size_t slot = 0; slot < node->num_outputs(); ++slot) {
      Use use{node, slot, {}, {}, {}};
      if (node->next_edge(slot).function != nullptr) use.parameter = parameter_behind(node, slot, use.chain);
      if (use.parameter.defined() && parameters.contains(use.parameter)) graph.uses.push_back(std::move(use));
    }
  }
  return graph;
}

Graph find_edges(const Tensor& loss, const ParameterSet& parameters) {
  Graph graph;
  graph.root = loss.grad_fn().get();
  graph.output = static_cast<std::uint32_t>(loss.output_nr());
  std::vector<Node*> penalties;
  graph.nodes = nodes_below(graph.root, [&](Node* node) {
    if (as_leaf(node) != nullptr || !output_shape(node).empty() || !is_penalty(node, /*masks=*/false))
      return false;
    penalties.push_back(node);
    return true;
  });
  const std::unordered_set<Node*> of_penalties(penalties.begin(), penalties.end());
  for (Node* node : graph.nodes) {
    if (as_leaf(node) != nullptr || of_penalties.contains(node)) continue;
    for (std::size_t slot = 0; slot < node->num_outputs(); ++slot) {
      Node* below = node->next_edge(slot).function.get();
      const AccumulateGrad* leaf = below == nullptr ? nullptr : as_leaf(below);
      if (leaf != nullptr && parameters.contains(leaf->variable))
        graph.uses.push_back({node, slot, {}, leaf->variable, {}});
    }
  }
  return graph;
}

void place_batch(Graph& graph, const BatchOptions& options, const ParameterSet& parameters) {
  const Refusal refuse(graph, options, parameters);
  const NamedRows named(graph, options);
  const auto survivors = consistent(graph, options, parameters, named, refuse);
  graph.followed = true;
  const Consumers consumers = consumers_of(graph.nodes);
  std::vector<Use> placed;
  std::set<std::pair<Node*, std::size_t>> copied;  // once, whoever uses the copies
  for (const Use& use : graph.uses) {
    const Use own = at_its_copies(use, survivors.front());
    if (own.node != use.node && !copied.insert({own.node, own.slot}).second) continue;
    meetings(own, survivors, consumers, refuse, placed);
  }
  graph.uses = std::move(placed);
}

}  // namespace cdgrab::torch

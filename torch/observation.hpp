// SPDX-License-Identifier: Apache-2.0
// One observed backward: hooks on the nodes that use parameters, and at the end of the backward the
// per-example gradients of every parameter, formed or not.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cdgrab/torch/gradient_geometry.hpp"
#include "contribution.hpp"
#include "fused.hpp"
#include "graph.hpp"
#include "parameter_table.hpp"
#include "rules.hpp"

namespace cdgrab::torch {

struct ParameterGradients {
  Tensor parameter;
  Contribution gradients;
  std::string name = {};  ///< empty where it is not known
  std::string rule = {};  ///< the nodes that it was read off; "by example: " before those without a rule
};

/// What a backward left behind: per-example gradients in the scale of docs/math.md, section 6.
struct Observed {
  std::int64_t batch = 0;
  std::vector<ParameterGradients> parameters;
  double seconds = 0.0;    ///< spent in hooks
  std::size_t budget = 0;  ///< what is left of it, for rows that are still to be formed
};

/// Makes gradients shorter as they are read, so that none is held in full; empty: it does not.
struct Shortening {
  std::function<void(const std::vector<Met>&)> begin;  ///< a backward with these parameters is to come
  std::function<bool(const Contribution&)> forms;      ///< whether gradients are formed on the way
  std::function<Contribution(const Tensor& parameter, const Contribution&)> shorten;
};

class Observation : public std::enable_shared_from_this<Observation> {
 public:
  using Finish = std::function<void(Observed&&)>;
  /// How the gradients are read.
  struct Way {
    /// Whether gradients are to be formed, within the budget.
    std::function<bool(const Contribution&)> forms = &Contribution::prefers_rows;
    /// Nodes leave to us what the examples' gradients add up to, where these are formed.
    bool fused = false;
    /// Contributions are to know the sums that nodes compute, where that is cheap. With `fused` nodes need
    /// not: the first update of a register makes them.
    bool sums = false;
    /// Rows of a batch that has more of them than fit into the budget may be left to LateRows.
    bool late = false;
    /// This rules out sums, and rows that are late.
    Shortening shortening = {};
  };

  /// Reads the graph of `loss`, a scalar or one number per row, and waits for its backward, at the end of
  /// which `finish` is called. Rows are the `batch` and those that options.repeats adds. Throws UserError.
  static std::shared_ptr<Observation> start(const Tensor& loss, std::int64_t batch,
                                            const ObserveOptions& options, Finish finish, Way way);

  /// Those that count.
  [[nodiscard]] std::vector<Tensor> parameters() const;
  [[nodiscard]] std::vector<Met> met() const;
  /// The backward has been; others through the same graph are none of its business.
  void release() { released_ = true; }

 private:
  struct Collected {
    Tensor parameter;
    std::string name;
    std::size_t left = 0;             ///< uses that have not run
    std::optional<Contribution> sum;  ///< of those that have
    std::set<std::string> rules = {};
  };
  class Hook;
  class WholeHook;
  class AfterHook;

  void expect(const Graph& graph, const ParameterSet& parameters);
  void watch();
  void begin(const Tensor& upstream);
  void check_alone() const;
  void check_begun() const;
  /// `alone`: nobody else can change the node's work between here and after().
  void visit(Node* node, const variable_list& gradients, bool alone);
  std::optional<Tensor> sum_of(Contribution& contribution, const Use& use);
  /// Whether the sum may reach the parameter after the backward, as far as anybody can tell.
  [[nodiscard]] bool may_be_late(const Contribution& contribution, const Use& use) const;
  Tensor owe(Contribution& contribution, const Use& use);
  variable_list after(Node* node, variable_list sent);
  void visit_without_rule(const Moment& moment, const std::vector<const Use*>& uses);
  void visit_whole(Node* node, const variable_list& sent);
  [[nodiscard]] Contribution scaled(Contribution contribution, const Use& use) const;
  void collect(const Use& use, Contribution contribution, const std::string& rule);
  void complete(Collected& collected);
  void form_within_budget(Contribution& sum, bool with_sum = false);
  /// In main memory, were all parameters' gradients formed.
  [[nodiscard]] std::size_t bytes_of_all_rows() const;
  /// Whether rows may be late.
  [[nodiscard]] bool waits(const Graph& graph) const;
  void end();
  void hand_over();
  /// What nodes have left to us reaches the parameters.
  void pay();

  std::int64_t batch_ = 0;    ///< rows, those that repeat others included
  std::int64_t repeats_ = 0;  ///< the last of them
  bool sum_ = false;
  bool per_example_ = false;
  std::size_t budget_ = 0;  ///< what is left of it
  std::size_t late_ = 0;    ///< and what of it is kept for later
  Finish finish_;
  Way way_;
  Node* root_ = nullptr;
  std::uint32_t output_ = 0;         ///< of the root that the loss is
  std::unordered_set<Node*> nodes_;  ///< of the loss's graph; only compared, they may be gone
  bool begun_ = false;
  bool released_ = false;
  Tensor scale_;        ///< (B): what turns an arriving gradient into the example's vector
  double alpha_ = 1.0;  ///< the same when it is one number for all; scale_ is undefined then
  Tensor inverse_;      ///< (B): its inverse; undefined if that cannot be had, and nothing is fused
  TakenEdges taken_;
  bool is_plain_ = false;  ///< no node of the graph is somebody's own, who might look at gradients
  std::vector<std::pair<Tensor, std::shared_ptr<OwedSum>>> owed_;  ///< parameters and their sums
  std::vector<const Use*> summed_;  ///< uses whose sum their node, which is running, will send
  std::unordered_map<Node*, std::vector<Use>> uses_;
  std::vector<Collected> collected_;
  std::unordered_map<const void*, std::size_t> index_;  ///< of a parameter in collected_
  std::size_t left_ = 0;                                ///< nodes that have not run
  double seconds_ = 0.0;
  std::mutex mutex_;  ///< devices run their nodes on threads of their own
};

}  // namespace cdgrab::torch

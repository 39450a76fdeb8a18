// SPDX-License-Identifier: Apache-2.0
// cdgrab herd: runs orders on fixed vectors and shows how the herding bound falls.
#include "herd.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <memory>
#include <utility>
#include <variant>

#include "cdgrab/error.hpp"
#include "cdgrab/npy.hpp"
#include "cdgrab/random.hpp"
#include "cdgrab/state.hpp"
#include "commands.hpp"
#include "contender.hpp"
#include "generate.hpp"
#include "herd_print.hpp"
#include "herd_report.hpp"
#include "interrupt.hpp"
#include "output_file.hpp"
#include "terminal.hpp"
#include "whole_number.hpp"

namespace cdgrab::cli {
namespace {

namespace fs = std::filesystem;

/// "10x784,10" -> {{10, 784}, {10}}.
std::vector<Shape> parse_shapes(const std::string& text) {
  if (text.empty()) return {};
  std::vector<Shape> shapes(1);
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  for (;;) {
    std::size_t side = 0;
    const auto [rest, error] = std::from_chars(at, end, side);
    const bool more = rest != end && (*rest == 'x' || *rest == ',');
    if (error != std::errc{} || side == 0 || (rest != end && !more)) {
      throw UserError("--shapes",
                      fmt::format("`{}` is not a list of shapes; write sides with x and tensors with "
                                  "commas, as in 10x784,10",
                                  text));
    }
    shapes.back().push_back(side);
    if (!more) return shapes;
    if (*rest == ',') shapes.emplace_back();
    at = rest + 1;
  }
}

/// Random reshuffling, then what was asked for, each once.
std::vector<Spec> orders_to_run(const std::vector<Spec>& asked) {
  std::vector<Spec> specs = {parse_spec("rr")};
  for (const Spec& spec : asked) {
    if (std::find(specs.begin(), specs.end(), spec) == specs.end()) specs.push_back(spec);
  }
  return specs;
}

fs::path resolved(const std::string& path) {
  std::error_code ignored;
  return fs::weakly_canonical(fs::absolute(path, ignored), ignored);
}

void require_distinct_outputs(const HerdOptions& options) {
  const std::array named = {std::pair{"FILE", &options.file}, std::pair{"--out", &options.out},
                            std::pair{"--state", &options.state}, std::pair{"--report", &options.report}};
  for (std::size_t i = 0; i < named.size(); ++i) {
    for (std::size_t j = i + 1; j < named.size(); ++j) {
      const std::string& a = *named[i].second;
      const std::string& b = *named[j].second;
      if (a.empty() || b.empty() || resolved(a) != resolved(b)) continue;
      throw UserError(named[j].first, fmt::format("`{}` is also {}; name another file", b, named[i].first));
    }
  }
}

void check_outputs(const HerdOptions& options, std::size_t asked) {
  for (const auto& [name, path] : {std::pair{"--out", &options.out}, std::pair{"--state", &options.state},
                                   std::pair{"--report", &options.report}}) {
    if (path->empty()) continue;
    const bool holds_one = path != &options.report;
    if (holds_one && asked != 1) {
      throw UserError(name,
                      fmt::format("the file holds one order, but --order names {}; give one --order", asked));
    }
    require_writable(*path, name);
  }
  require_distinct_outputs(options);
}

template <class T>
std::size_t count_not_finite(const Matrix<T>& rows) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < rows.rows; ++i) {
    const auto row = rows.values.begin() + static_cast<std::ptrdiff_t>(i * rows.dim);
    const auto end = row + static_cast<std::ptrdiff_t>(rows.dim);
    count += std::all_of(row, end, [](T x) { return std::isfinite(x); }) ? 0U : 1U;
  }
  return count;
}

template <class T>
HerdingBound random_bound(const Matrix<T>& rows, std::uint64_t seed) {
  std::array<double, kRandomOrders> l2;
  std::array<double, kRandomOrders> linf;
  for (std::size_t i = 0; i < kRandomOrders; ++i) {
    check_interrupt();
    // Level 1 of the data's purpose: no order and no vector shares these draws.
    const auto order = random_permutation(Stream{seed, Purpose::kData, i, 1}, rows.rows);
    const HerdingBound bound = herding_bound<T>(rows.values, rows.dim, order);
    l2[i] = bound.l2;
    linf[i] = bound.linf;
  }
  std::sort(l2.begin(), l2.end());
  std::sort(linf.begin(), linf.end());
  return {l2[kRandomOrders / 2], linf[kRandomOrders / 2]};
}

/// The rounds of all orders side by side, so that each line of the table appears as soon as it can.
template <class T>
class Race {
 public:
  Race(const HerdOptions& options, const Matrix<T>& rows, Progress& progress)
      : options_(options), rows_(rows), progress_(progress) {
    result_.examples = rows.rows;
    result_.dim = rows.dim;
    result_.dtype = sizeof(T) == sizeof(float) ? "float32" : "float64";
    result_.not_finite = count_not_finite(rows);
    result_.random = random_bound(rows, options.seed);
  }

  void run(const std::vector<Spec>& specs, const std::vector<Shape>& shapes, HerdPrinter& printer) {
    for (const Spec& spec : specs) {
      SamplerOptions sampler_options;
      sampler_options.seed = options_.seed;
      sampler_options.shapes = shapes;
      contenders_.push_back(std::make_unique<Contender<T>>(spec, rows_, std::move(sampler_options)));
      result_.lanes.push_back({spec, print_spec(spec), {}});
    }
    printer.begin(result_);
    for (std::size_t round = 0; round <= options_.rounds; ++round) {
      for (std::size_t k = 0; k < specs.size(); ++k) advance(k, round);
      progress_.clear();
      printer.round(result_, round);
    }
    check_interrupt();
    printer.end(result_);
  }

  [[nodiscard]] const HerdResult& result() const { return result_; }

  /// Of the order that was asked for when there was one.
  [[nodiscard]] const Sampler& last_sampler() const { return contenders_.back()->sampler(); }

 private:
  void advance(std::size_t k, std::size_t round) {
    if (round > 0) {
      contenders_[k]->run_round(options_.batch, [&](std::size_t done) {
        progress_.show(fmt::format("round {}/{}  {}  {:.0f}%", round, options_.rounds, result_.lanes[k].label,
                                   100.0 * static_cast<double>(done) / static_cast<double>(rows_.rows)));
      });
    }
    check_interrupt();
    result_.lanes[k].bounds.push_back(contenders_[k]->bound());
  }

  const HerdOptions& options_;
  const Matrix<T>& rows_;
  Progress& progress_;
  HerdResult result_;
  std::vector<std::unique_ptr<Contender<T>>> contenders_;
};

void announce(const HerdOptions& options, const HerdResult& result) {
  if (!options.quiet) {
    say(fmt::format("vectors: {} of {} numbers ({}); rounds: {}; batch: {}; seed: {}", result.examples,
                    result.dim, options.file.empty() ? "generated, N(0, 1/dim)" : options.file,
                    options.rounds, options.batch, options.seed));
  }
  if (result.not_finite > 0) {
    say(fmt::format("{} of {} vectors are not finite; they count as unseen", result.not_finite,
                    result.examples));
  }
}

void write_outputs(const HerdOptions& options, const HerdResult& result, const Sampler& sampler) {
  if (!options.out.empty()) write_npy_order(options.out, sampler.order());
  if (!options.state.empty()) save_state(sampler.state(), options.state);
  if (!options.report.empty()) write_text_file(options.report, herd_report(options, result), "--report");
  if (options.quiet) return;
  for (const std::string* path : {&options.out, &options.state, &options.report}) {
    if (!path->empty()) say(fmt::format("wrote {}", *path));
  }
}

template <class T>
void race_on(const HerdOptions& options, const std::vector<Spec>& specs, const std::vector<Shape>& shapes,
             const Matrix<T>& rows, Progress& progress) {
  Race<T> race(options, rows, progress);
  announce(options, race.result());
  const auto printer = options.json ? make_json_printer(options) : make_table_printer();
  race.run(specs, shapes, *printer);
  write_outputs(options, race.result(), race.last_sampler());
}

void run_herd(const HerdOptions& options) {
  const std::vector<Spec> asked = parse_spec_list(options.order);
  check_outputs(options, asked.size());
  const std::vector<Spec> specs = orders_to_run(asked);
  const std::vector<Shape> shapes = parse_shapes(options.shapes);
  Progress progress(options.quiet);
  const AnyMatrix rows = options.file.empty()
                             ? generate_vectors(options.examples, options.dim, options.seed, progress)
                             : read_npy_matrix(options.file);
  std::visit([&](const auto& matrix) { race_on(options, specs, shapes, matrix, progress); }, rows);
}

}  // namespace

void add_herd(CLI::App& app, const std::string& command_line) {
  auto options = std::make_shared<HerdOptions>();
  options->command_line = command_line;
  CLI::App* herd =
      app.add_subcommand("herd", "Run orders on fixed vectors and show how their worst prefix error falls");
  CLI::Option* file = herd->add_option(
      "FILE", options->file, "Vectors: a 2-d .npy of float32 or float64 (none: generated, N(0, 1/dim))");
  const auto add_count = [&](const char* name, auto& value, const char* meaning,
                             const CLI::Validator& allowed) {
    return herd->add_option(name, value, meaning)->capture_default_str()->check(allowed);
  };
  herd->add_option("--order", options->order, "Orders to run beside rr, see below")->capture_default_str();
  add_count("--rounds", options->rounds, "Epochs", whole_number(0, 1'000'000'000));
  add_count("--seed", options->seed, "Of everything random", whole_number(0));
  add_count("--examples", options->examples, "Generated: how many vectors", whole_number(0, kMaxExamples))
      ->excludes(file);
  add_count("--dim", options->dim, "Generated: numbers in a vector", whole_number(1, 1'000'000'000))
      ->excludes(file);
  add_count("--batch", options->batch, "Examples observed at once", whole_number(1, kMaxExamples));
  herd->add_option("--shapes", options->shapes, "Tensors that make up a vector, as 10x784,10 (sketch=kron)");
  herd->add_option("--out", options->out, "Write the order made after the last round (.npy, int64)");
  herd->add_option("--state", options->state, "Save the sampler's state (.safetensors)");
  herd->add_option("--report", options->report, "Write a page with the curves (.html)");
  herd->add_flag("--json", options->json, "JSON lines on stdout instead of tables");
  herd->add_flag("--quiet", options->quiet, "Only warnings and errors on stderr");
  herd->footer(
      describe_specs() +
      "Examples:\n"
      "  cdgrab herd\n"
      "  cdgrab herd grads.npy --order 'pair; sign=walk,c=30,recursive' --rounds 20 --report herd.html\n"
      "  cdgrab herd grads.npy --order pair --out order.npy --state pair.safetensors");
  herd->callback([options] { run_herd(*options); });
}

}  // namespace cdgrab::cli

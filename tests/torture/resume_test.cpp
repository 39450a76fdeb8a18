// SPDX-License-Identifier: Apache-2.0
// Resume equals never stopping: every order, unit, sign rule and geometry, stopped before every step of two
// epochs.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <type_traits>

#include "cdgrab/cdgrab.hpp"
#include "conformance/geometry_makers.hpp"
#include "property/cases.hpp"
#include "torture/at_length.hpp"
#include "torture/every_step.hpp"
#include "torture/workers_play.hpp"

namespace cdgrab::torture {
namespace {

/// Handing out and observing are steps of their own: one may stop between them.
class SamplerPlay {
 public:
  SamplerPlay(const Spec& spec, Size size, SamplerOptions options, std::unique_ptr<suite::Maker> maker,
              bool wide)
      : size_(size),
        maker_(std::move(maker)),
        wide_(wide),
        sampler_(size.examples, spec, std::move(options), maker_ ? maker_->make(kDim) : nullptr) {
    if (spec.name == OrderName::kScore) set_scores();
  }

  [[nodiscard]] bool over() const {
    return sampler_.epoch() == 1 && sampler_.outstanding() == 0 &&
           sampler_.position().handed_out == size_.examples;
  }
  std::vector<Index> step() {
    if (sampler_.outstanding() == 0) return hand_out();
    observe();
    return {};
  }
  [[nodiscard]] std::vector<std::byte> save() const { return encode_state(sampler_.state()); }
  void load(std::span<const std::byte> bytes) {
    sampler_.load(decode_state(bytes, "test"));
    fresh_ = true;
  }

 private:
  void set_scores() {
    std::vector<double> scores;
    for (std::size_t u = 0; u < sampler_.units(); ++u) scores.push_back(normal({8, Purpose::kData, 0, 0}, u));
    sampler_.set_scores(scores);
  }
  std::vector<Index> hand_out() {
    if (std::exchange(fresh_, false)) sampler_.begin();
    auto handed = sampler_.next(size_.batch);
    if (handed.empty()) {
      sampler_.begin();
      handed = sampler_.next(size_.batch);
    }
    return {handed.begin(), handed.end()};
  }
  void observe() {
    const std::size_t count = sampler_.outstanding();
    const std::vector<Index> units = sampler_.oldest_outstanding(0, count);
    if (wide_) {
      const auto rows = vectors_of<double>(sampler_.epoch(), units);
      return sampler_.observe(Rows<double>{rows.data(), count, kDim});
    }
    const auto rows = vectors_of<float>(sampler_.epoch(), units);
    if (!maker_) return sampler_.observe(Rows<float>{rows.data(), count, kDim});
    maker_->set_block(*sampler_.geometry(), rows, count);
    sampler_.observe_block();
  }

  Size size_;
  std::unique_ptr<suite::Maker> maker_;
  bool wide_;
  bool fresh_ = true;  ///< no loader has begun to iterate
  Sampler sampler_;
};

std::vector<Size> sizes() {
  if (cases::kShare > 1) return {{5, 2}};
  if (!at_length()) return {{1, 1}, {5, 3}, {7, 2}, {24, 5}};
  std::vector<Size> all;
  for (std::size_t examples = 1; examples <= 24; ++examples)
    for (const std::size_t batch : {1UL, 2UL, 5UL, 24UL})
      if (batch <= examples && (batch > 1 || examples <= 12)) all.push_back({examples, batch});
  return all;
}

/// Where all twos and threes of places to stop are tried: there are many.
bool several_at(Size size) {
  return size.batch == (at_length() ? 2 : 3) && size.examples == (at_length() ? 7 : 5);
}

const std::vector<std::string> kBalancing = {
    "mean",
    "mean; tie=minus",
    "mean; sign=walk,c=3",
    "mean; centring=ema",
    "mean; centring=none",
    "mean; normalize",
    "mean; block=4",
    "pair",
    "pair; tie=minus",
    "pair; sign=walk,c=3",
    "pair; sign=halving",
    "pair; normalize",
    "pair; block=3",
    "batch",
    "batch; sign=walk,c=3",
    "batch; block=5",
    "recursive; depth=2",
    "recursive; depth=2; sign=walk,c=3",
    "recursive; depth=1; normalize; tie=minus",
    "recursive-pair; depth=2",
    "recursive-pair; depth=2; sign=walk,c=3",
    "recursive-pair; depth=1; normalize; tie=minus",
};
const std::vector<std::string> kSketched = {"pair; sketch=gauss:3", "mean; sketch=sparse:4",
                                            "recursive-pair; depth=1; sketch=kron:2",
                                            "batch; sketch=kron:2; sign=walk,c=3"};

/// `check(spec, size, several)` for every unit and size; how often a state was loaded is told.
void for_all(const std::vector<std::string>& specs,
             const std::function<std::size_t(const Spec&, Size, bool several)>& check) {
  std::size_t resumes = 0;
  std::size_t cases = 0;
  for (const std::string& text : specs)
    for (const std::size_t unit : {1UL, 2UL, 3UL})
      for (const Size size : sizes()) {
        const Spec spec = parse_spec(text + "; unit=" + std::to_string(unit));
        SCOPED_TRACE(print_spec(spec) + ", n = " + std::to_string(size.examples) + " by " +
                     std::to_string(size.batch));
        resumes += check(spec, size, several_at(size));
        ++cases;
        if (testing::Test::HasFailure()) return;
      }
  std::printf("%zu runs of two epochs, %zu resumes\n", cases, resumes);
}

/// The geometry is the sampler's own if there is no maker.
void check_all(const std::vector<std::string>& specs,
               const std::function<std::unique_ptr<suite::Maker>()>& maker, bool wide,
               const SamplerOptions& options = {.seed = 3, .shapes = {{2, 3}}}) {
  for_all(specs, [&](const Spec& spec, Size size, bool several) {
    return check_every_step([&] { return std::make_unique<SamplerPlay>(spec, size, options, maker(), wide); },
                            several);
  });
}

template <class MakerOfAKind, class... Arguments>
std::function<std::unique_ptr<suite::Maker>()> maker_of(Arguments... arguments) {
  return [=] { return std::make_unique<MakerOfAKind>(arguments...); };
}

const std::function<std::unique_ptr<suite::Maker>()> kNone = [] { return nullptr; };

TEST(ResumeAtEveryStep, OfEveryBalancerOnRowsOfFloats) { check_all(kBalancing, kNone, false); }
TEST(ResumeAtEveryStep, OfEveryBalancerOnRowsOfDoubles) { check_all(kBalancing, kNone, true); }
TEST(ResumeAtEveryStep, OfEveryBalancerOnProductsAlone) {
  check_all(kBalancing, maker_of<suite::GramMaker>(), false);
}
TEST(ResumeAtEveryStep, OfEveryBalancerOnVectorsInPieces) {
  check_all(kBalancing, maker_of<suite::CompositeMaker>(), false);
}
TEST(ResumeAtEveryStep, OfSketchesAndOfOrdersThatDoNotBalance) {
  check_all(kSketched, kNone, false);
  check_all(cases::kBaselines, kNone, false);
}

TEST(ResumeAtEveryStep, WithWhatDiagnosticsRecord) {
  check_all({"pair", "mean", "rr"}, kNone, true, {.seed = 3, .record_herding = true, .record_norms = true});
}

TEST(ResumeAtEveryStep, OfAnOrderReadFromAFile) {
  const auto path = std::filesystem::temp_directory_path() / "cdgrab_torture_order.npy";
  for (const std::size_t units : {1UL, 7UL, 24UL}) {
    write_npy_order(path, random_permutation({5, Purpose::kData, 0, 0}, units));
    const Spec spec = parse_spec("file; path=" + path.string());
    check_every_step(
        [&] {
          return std::make_unique<SamplerPlay>(spec, Size{units, 2}, SamplerOptions{}, nullptr, false);
        },
        false);
  }
  std::filesystem::remove(path);
}

TEST(ResumeAtEveryStep, OfManyWorkers) {
  for_all(kOfManyWorkers, [](const Spec& spec, Size size, bool several) {
    SelfCommunicator alone;
    std::size_t resumes = 0;
    for (const std::size_t workers : {1UL, 2UL, 3UL})
      for (const bool local : {false, true})
        resumes += check_every_step(
            [&] { return std::make_unique<WorkersPlay>(spec, size, workers, alone, local); }, several);
    return resumes;
  });
}

}  // namespace
}  // namespace cdgrab::torture

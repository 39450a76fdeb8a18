// SPDX-License-Identifier: Apache-2.0
// Resume equals never stopping, by trying every place to stop. A Play is a run of a sampler over two epochs,
// cut into its smallest steps:
//
//   bool over() const;                        nothing is left of the two epochs
//   std::vector<Index> step();                the next one; the examples that it handed out
//   std::vector<std::byte> save();            all of it, as a file or an archive holds it
//   void load(std::span<const std::byte>);    as a process does that has just begun, or goes back
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "cdgrab/permutation.hpp"

namespace cdgrab::torture {

template <class Play, class Make>
class EveryStep {
 public:
  using Bytes = std::vector<std::byte>;

  /// `make()` gives a std::unique_ptr<Play> at the beginning.
  explicit EveryStep(Make make) : make_(std::move(make)) {}

  /// How often a state was loaded.
  [[nodiscard]] std::size_t resumes() const { return resumes_; }

  void check() {
    record();
    for (std::size_t stop = 0; stop <= steps(); ++stop) check_stops({stop});
    check_going_back();
  }

  /// Two and three stops, wherever they are.
  void check_several() {
    record();
    for (std::size_t a = 0; a < steps(); ++a)
      for (std::size_t b = a; b < steps(); ++b) {
        check_stops({a, b});
        for (std::size_t c = b; c < steps(); ++c) check_stops({a, b, c});
      }
  }

 private:
  [[nodiscard]] std::size_t steps() const { return handed_.size(); }

  /// A run that is saved at every step, and one that never is: the same.
  void record() {
    handed_.clear();
    const std::unique_ptr<Play> saved = make_();
    states_ = {saved->save()};
    while (!saved->over()) {
      handed_.push_back(saved->step());
      states_.push_back(saved->save());
    }
    const std::unique_ptr<Play> undisturbed = make_();
    go_on(*undisturbed, 0, steps(), false);
    ASSERT_TRUE(undisturbed->save() == states_.back()) << "saving disturbs";
  }

  void check_stops(std::initializer_list<std::size_t> stops) {
    std::unique_ptr<Play> play;
    std::size_t at = 0;
    for (const std::size_t stop : stops) {
      const Bytes state = play ? go_on(*play, at, stop, true) : states_[stop];
      at = stop;
      play = make_();
      play->load(state);
      ++resumes_;
      ASSERT_TRUE(play->save() == states_[stop]) << "loaded before step " << stop;
    }
    go_on(*play, at, steps(), stops.size() == 1);
    ASSERT_TRUE(play->save() == states_.back()) << "stopped before step " << *stops.begin();
  }

  /// The same object loads what it was at every step, the last one first.
  void check_going_back() {
    const std::unique_ptr<Play> play = make_();
    for (std::size_t stop = steps() + 1; stop-- > 0;) {
      play->load(states_[stop]);
      ++resumes_;
      go_on(*play, stop, std::min(stop + 3, steps()), true);
    }
  }

  Bytes go_on(Play& play, std::size_t from, std::size_t to, bool compare) {
    for (std::size_t step = from; step < to; ++step) {
      EXPECT_EQ(play.step(), handed_[step]) << "step " << step;
      if (compare) {
        EXPECT_TRUE(play.save() == states_[step + 1]) << "after step " << step;
      }
      if (testing::Test::HasFailure()) return {};
    }
    return play.save();
  }

  Make make_;
  std::vector<Bytes> states_;               ///< before each step, and at the end
  std::vector<std::vector<Index>> handed_;  ///< by each step
  std::size_t resumes_ = 0;
};

/// Every place to stop; with `several`, every two and three of them too. How often a state was loaded.
template <class Make>
std::size_t check_every_step(Make make, bool several) {
  EveryStep<typename decltype(make())::element_type, Make> every(std::move(make));
  every.check();
  if (several && !testing::Test::HasFailure()) every.check_several();
  return every.resumes();
}

}  // namespace cdgrab::torture

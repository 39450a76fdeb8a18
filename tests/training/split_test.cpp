// SPDX-License-Identifier: Apache-2.0
#include "training/split.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "cdgrab/error.hpp"

namespace cdgrab::training {
namespace {

std::vector<std::int64_t> labels_of(std::size_t examples, std::int64_t kinds) {
  std::vector<std::int64_t> labels;
  for (std::size_t i = 0; i < examples; ++i)
    labels.push_back(static_cast<std::int64_t>(i * 7 % static_cast<std::size_t>(kinds)));
  return labels;
}

/// Labels that a worker has, in the mean over the workers.
double kinds_per_worker(const Shares& shares, const std::vector<std::int64_t>& labels) {
  double sum = 0.0;
  for (std::size_t w = 0; w < shares.workers(); ++w) {
    std::set<std::int64_t> kinds;
    for (const Index i : shares.share(w)) kinds.insert(labels[i]);
    sum += static_cast<double>(kinds.size());
  }
  return sum / static_cast<double>(shares.workers());
}

TEST(Split, DealsEveryExampleOnceInSharesOfOneSizeWhateverTheKind) {
  for (const std::size_t examples : {0U, 1U, 5U, 100U, 1001U}) {
    const auto labels = labels_of(examples, 10);
    for (const std::size_t workers : {1U, 2U, 7U, 64U}) {
      for (const char* text : {"even", "label", "dirichlet:0.01", "dirichlet:1", "dirichlet:1e6"}) {
        const Shares shares = deal(parse_split(text), examples, workers, labels, 3);
        std::vector<Index> all;
        for (std::size_t w = 0; w < workers; ++w) {
          const auto share = shares.share(w);
          EXPECT_LE(share.size(), examples / workers + 1) << text;
          EXPECT_GE(share.size(), examples / workers) << text;
          all.insert(all.end(), share.begin(), share.end());
        }
        std::sort(all.begin(), all.end());
        EXPECT_EQ(all, identity_order(examples)) << text;
      }
    }
  }
}

TEST(Split, ByLabelGivesAWorkerFewLabelsAndByMixtureAsFewAsAlphaIsSmall) {
  const auto labels = labels_of(2000, 10);
  const auto kinds = [&](const char* text) {
    return kinds_per_worker(deal(parse_split(text), labels.size(), 10, labels, 1), labels);
  };
  EXPECT_EQ(kinds("label"), 1.0);
  EXPECT_EQ(kinds("even"), 1.0);  // these labels repeat after ten: dealing in turn sorts them
  EXPECT_LT(kinds("dirichlet:0.001"), 4.0);
  EXPECT_LT(kinds("dirichlet:0.1"), 8.0);
  EXPECT_EQ(kinds("dirichlet:1000"), 10.0);
}

TEST(Split, IsTheSameForTheSameSeedAndAnotherForAnother) {
  const auto labels = labels_of(500, 3);
  const Split split = parse_split("dirichlet:0.5");
  EXPECT_EQ(deal(split, 500, 4, labels, 1), deal(split, 500, 4, labels, 1));
  EXPECT_NE(deal(split, 500, 4, labels, 1).fingerprint(), deal(split, 500, 4, labels, 2).fingerprint());
}

TEST(Split, RefusesOtherWordsAndNumbers) {
  for (const char* text : {"", "uneven", "dirichlet", "dirichlet:", "dirichlet:0", "dirichlet:-1",
                           "dirichlet:x", "dirichlet:1x", "dirichlet:inf", "Label"})
    EXPECT_THROW(parse_split(text), UserError) << text;
}

}  // namespace
}  // namespace cdgrab::training

// SPDX-License-Identifier: Apache-2.0
#include "cdgrab/spec.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "cdgrab/error.hpp"

namespace cdgrab {
namespace {

/// The message of the UserError that parsing `text` must throw.
std::string refusal(std::string_view text) {
  try {
    parse_spec(text);
  } catch (const UserError& error) {
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << text;
  return "";
}

bool mentions(const std::string& message, std::string_view part) {
  return message.find(part) != std::string::npos;
}

#define EXPECT_REFUSED(text, part) \
  EXPECT_TRUE(mentions(refusal(text), part)) << text << " -> " << refusal(text)

TEST(Spec, NamesFillInWhatTheyImply) {
  EXPECT_EQ(parse_spec("pair"), Spec{});
  EXPECT_EQ(parse_spec("mean").centring, Centring::kMean);
  EXPECT_TRUE(parse_spec("batch").frozen);
  EXPECT_EQ(parse_spec("batch").block, 0U);
  EXPECT_EQ(parse_spec("recursive").depth, 5U);
  EXPECT_EQ(parse_spec("recursive").centring, Centring::kMean);
  EXPECT_EQ(parse_spec("recursive-pair").centring, Centring::kPair);
  EXPECT_EQ(parse_spec("recursive-pair").levels(), 6U);
  EXPECT_EQ(parse_spec("block-reversal").block, 64U);
}

TEST(Spec, BareStructOfABaselineIsThatBaseline) {
  for (const OrderName name : {OrderName::kRandomReshuffling, OrderName::kShuffleOnce, OrderName::kFixed,
                               OrderName::kFlipFlop, OrderName::kWithReplacement, OrderName::kGreedy,
                               OrderName::kScore, OrderName::kDistributedReshuffling}) {
    Spec spec;
    spec.name = name;
    EXPECT_EQ(parse_spec(print_spec(spec)), spec);
    EXPECT_FALSE(spec.balances());
  }
}

TEST(Spec, ThreeNamesAreOfManyWorkersAndTwoOfThemTakeTheOptionsOfPair) {
  for (const char* name : {"cd-pair", "id-pair"}) {
    const auto with = [&](std::string_view options) { return std::string(name) + std::string(options); };
    EXPECT_TRUE(parse_spec(name).distributed() && parse_spec(name).balances());
    EXPECT_EQ(parse_spec(name).centring, Centring::kPair);
    EXPECT_EQ(parse_spec(name).levels(), 1U);
    for (const char* options :
         {"; normalize", "; tie=minus", "; sign=walk,c=3", "; sign=halving,delta=0.25,epochs=9",
          "; sketch=gauss:8", "; sketch=kron,eps=0.5", "; unit=16"})
      EXPECT_EQ(print_spec(parse_spec(with(options))), with(options));
    EXPECT_REFUSED(with("; depth=2"), "one accumulator");
    EXPECT_REFUSED(with("; block=4"), "workers take turns pair by pair");
    EXPECT_REFUSED(with("; centring=mean"), "difference");
  }
  EXPECT_TRUE(parse_spec("d-rr; unit=4").distributed());
  EXPECT_FALSE(parse_spec("d-rr").balances());
  EXPECT_REFUSED("d-rr; sign=walk", "`d-rr` looks at no vectors");
  EXPECT_REFUSED("d-rr; block=4", "`d-rr` looks at no vectors");
  EXPECT_REFUSED("cd_pair", "the nearest is `cd-pair`");
  EXPECT_FALSE(parse_spec("pair").distributed());
}

TEST(Spec, OptionsAreRead) {
  const Spec walk = parse_spec(" mean ;sign = walk , c=20;normalize ; unit=4");
  EXPECT_EQ(walk.sign.kind, SignKind::kWalk);
  EXPECT_EQ(walk.sign.c, 20.0);
  EXPECT_TRUE(walk.normalize);
  EXPECT_EQ(walk.unit, 4U);
  const Spec halving = parse_spec("pair; epochs=7, delta=0.25, sign=halving");
  EXPECT_EQ(halving.sign.epochs, 7U);
  EXPECT_EQ(halving.sign.delta, 0.25);
  const Spec ema = parse_spec("batch; beta=0; centring=ema; block=8");
  EXPECT_EQ(ema.centring, Centring::kEma);
  EXPECT_EQ(ema.beta, 0.0);
  EXPECT_TRUE(ema.frozen);
  EXPECT_EQ(ema.block, 8U);
  const Spec blocks = parse_spec("block-reversal; block=3; reshuffle=no; reverse=no");
  EXPECT_EQ(blocks.block, 3U);
  EXPECT_FALSE(blocks.frozen || blocks.reshuffle || blocks.reverse);
  EXPECT_EQ(parse_spec("file; path=a b=c.npy").path, "a b=c.npy");
  EXPECT_EQ(parse_spec("pair; sketch=kron : 8").sketch, (SketchOptions{SketchKind::kKron, 8, 0.0}));
  EXPECT_EQ(parse_spec("pair; sketch=pca:8").sketch, (SketchOptions{SketchKind::kPca, 8, 0.0}));
}

TEST(Spec, PublishedRecursivePairCountsLevelsFromTheBlock) {
  const Spec spec = parse_spec("recursive-pair; block=64");
  EXPECT_TRUE(spec.frozen);
  EXPECT_EQ(spec.levels(), 6U);
  EXPECT_EQ(parse_spec("recursive-pair; block=2").depth, 0U);
  EXPECT_EQ(parse_spec("recursive-pair; block=16384").depth, 13U);
  EXPECT_REFUSED("recursive-pair; block=48", "power of two");
  EXPECT_REFUSED("recursive-pair; block=1", "power of two");
  EXPECT_REFUSED("recursive-pair; block=32768", "power of two");
  EXPECT_REFUSED("recursive-pair; depth=3; block=16", "no block");
}

TEST(Spec, CanonicalText) {
  const auto canonical = [](std::string_view text) { return print_spec(parse_spec(text)); };
  EXPECT_EQ(canonical("mean;c=20,sign=walk"), "mean; sign=walk,c=20");
  EXPECT_EQ(canonical("mean; sign=walk, c=30.0"), "mean; sign=walk");
  EXPECT_EQ(canonical("pair; eps=2e-1; sketch=gauss"), "pair; sketch=gauss,eps=0.2");
  EXPECT_EQ(canonical("pair; tie=minus"), "pair; tie=minus");
  EXPECT_EQ(canonical("pair; tie=plus; unit=1; normalize=no; fused=no"), "pair");
  EXPECT_EQ(canonical("mean; fused=yes; sign=walk"), "mean; sign=walk; fused");
  EXPECT_EQ(canonical("cd-pair; fused"), "cd-pair; fused");
  EXPECT_EQ(canonical("recursive,depth=4,sketch=gauss:256"), "recursive; depth=4; sketch=gauss:256");
  EXPECT_EQ(canonical("recursive-pair; block=64"), "recursive-pair; block=64");
  EXPECT_EQ(canonical("batch; block=8"), "batch; block=8");
  EXPECT_EQ(canonical("mean; beta=0.5; centring=ema; normalize=yes"),
            "mean; centring=ema; beta=0.5; normalize");
  EXPECT_EQ(canonical("block-reversal; block=64; reverse=no"), "block-reversal; reverse=no");
  EXPECT_EQ(canonical("pair; sign=halving,epochs=3,delta=.125"), "pair; sign=halving,delta=0.125,epochs=3");
}

TEST(Spec, UnknownWordsAreAnsweredWithTheNearest) {
  EXPECT_REFUSED("pear", "the nearest is `pair`");
  EXPECT_REFUSED("pear", "block-reversal");
  EXPECT_REFUSED("recursive_pair", "the nearest is `recursive-pair`");
  EXPECT_REFUSED("mean; centering=ema", "the nearest is `centring`");
  EXPECT_REFUSED("mean; normalise", "the nearest is `normalize`");
  EXPECT_REFUSED("mean; sign=wolk", "the nearest is `walk`");
  EXPECT_REFUSED("mean; sketch=gaus:4", "the nearest is `gauss`");
  EXPECT_REFUSED("mean; reshuffel=yes", "the nearest is `reshuffle`");
  EXPECT_REFUSED("", "allowed: mean, pair");
}

TEST(Spec, CombinationsWithoutSenseAreRefusedWithTheReason) {
  EXPECT_REFUSED("rr; sign=walk", "`rr` looks at no vectors, so `sign` has nothing to act on");
  EXPECT_REFUSED("score; sketch=gauss:4", "looks at no vectors");
  EXPECT_REFUSED("greedy; normalize", "takes no signs");
  EXPECT_REFUSED("rr; fused", "looks at no vectors");
  EXPECT_REFUSED("pair; fused; unit=4", "needs unit=1");
  EXPECT_REFUSED("greedy; sketch=gauss:4", "takes no signs");
  EXPECT_REFUSED("pair; centring=mean", "difference");
  EXPECT_REFUSED("recursive-pair; beta=0.5", "difference");
  EXPECT_REFUSED("mean; depth=2", "use recursive or recursive-pair");
  EXPECT_REFUSED("pair; depth=0", "use recursive or recursive-pair");
  EXPECT_REFUSED("mean; sign=halving", "use `pair; sign=halving`");
  EXPECT_REFUSED("recursive-pair; sign=halving", "one accumulator");
  EXPECT_REFUSED("pair; c=3", "needs sign=walk");
  EXPECT_REFUSED("pair; sign=walk,tie=plus", "needs sign=det");
  EXPECT_REFUSED("pair; delta=0.1", "needs sign=halving");
  EXPECT_REFUSED("mean; beta=0.5", "needs centring=ema");
  EXPECT_REFUSED("pair; eps=0.1", "needs a sketch without a size");
  EXPECT_REFUSED("pair; sketch=gauss:3,eps=0.1", "needs a sketch without a size");
  EXPECT_REFUSED("pair; sketch=pca:3,eps=0.1", "needs a sketch without a size");
  EXPECT_REFUSED("pair; sketch=pca,eps=0.1", "write sketch=pca:R");
  EXPECT_REFUSED("mean; sketch=pca:3", "new in every epoch");
  EXPECT_REFUSED("recursive; centring=ema; sketch=pca:3", "new in every epoch");
  EXPECT_REFUSED("pair; sketch=gauss", "sketch=gauss:R");
  EXPECT_REFUSED("pair; reverse=yes", "block-reversal");
  EXPECT_REFUSED("rr; block=4", "block-reversal");
  EXPECT_REFUSED("pair; path=x", "file");
  EXPECT_REFUSED("file", "path=ORDER.npy");
}

TEST(Spec, ValuesOutOfRangeAreRefused) {
  for (const char* text : {"mean; sign=walk,c=0",
                           "mean; sign=walk,c=-1",
                           "mean; sign=walk,c=nan",
                           "mean; sign=walk,c=inf",
                           "mean; sign=walk,c=1e999",
                           "mean; sign=walk,c=3x",
                           "mean; sign=walk,c=",
                           "pair; sign=halving,delta=0",
                           "pair; sign=halving,delta=1",
                           "pair; sign=halving,epochs=0",
                           "mean; centring=ema,beta=1",
                           "mean; centring=ema,beta=-0.1",
                           "recursive; depth=14",
                           "recursive; depth=-1",
                           "recursive; depth=2.5",
                           "pair; block=0",
                           "pair; block=99999999999999999999",
                           "pair; unit=0",
                           "pair; unit=4294967296",
                           "pair; sketch=gauss:0",
                           "pair; sketch=gauss:",
                           "pair; sketch=gauss,eps=1",
                           "pair; sketch=gauss,eps=0",
                           "pair; sign",
                           "pair; sign=",
                           "pair; normalize=",
                           "pair; normalize=maybe",
                           "pair; =3",
                           "pair;",
                           "pair;;",
                           "pair; unit=2; unit=2",
                           "pair, mean",
                           "file; path=",
                           "file; path=a,b",
                           "Pair",
                           "pair sign=walk"}) {
    EXPECT_FALSE(refusal(text).empty()) << text;
  }
}

TEST(Spec, NegativeZeroIsZero) {
  EXPECT_EQ(print_spec(parse_spec("mean; centring=ema; beta=-0")), "mean; centring=ema; beta=0");
}

TEST(Spec, FieldsWithoutATextAreRefusedWhenPrinted) {
  Spec depth;
  depth.depth = 3;
  EXPECT_THROW(print_spec(depth), UserError);
  Spec path = parse_spec("file; path=a");
  path.path = "a ";
  EXPECT_THROW(print_spec(path), UserError);
  path.path = "a;b";
  EXPECT_THROW(print_spec(path), UserError);
  Spec sign = parse_spec("rr");
  sign.sign.kind = SignKind::kWalk;
  EXPECT_THROW(print_spec(sign), UserError);
}

TEST(SpecList, BareNamesOpenNewSpecs) {
  const std::vector<Spec> specs =
      parse_spec_list("rr,mean; sign=walk,c=20, pair,normalize,recursive;depth=4,sketch=gauss,eps=0.5");
  ASSERT_EQ(specs.size(), 4U);
  EXPECT_EQ(print_spec(specs[0]), "rr");
  EXPECT_EQ(print_spec(specs[1]), "mean; sign=walk,c=20");
  EXPECT_EQ(print_spec(specs[2]), "pair; normalize");
  EXPECT_EQ(print_spec(specs[3]), "recursive; depth=4; sketch=gauss,eps=0.5");
}

TEST(SpecList, MistakesNameTheNearest) {
  for (const char* text : {"pair,meen", "meen", "pair,,mean", "", ",", "c=3", "normalize,pair"}) {
    EXPECT_THROW(parse_spec_list(text), UserError) << text;
  }
  try {
    parse_spec_list("pair,meen");
  } catch (const UserError& error) {
    EXPECT_TRUE(mentions(error.what(), "the nearest is `mean`")) << error.what();
  }
}

TEST(Spec, EveryDescribedWordParses) {
  std::istringstream lines(describe_specs());
  std::size_t names = 0;
  std::size_t options = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("  ", 0) != 0) continue;
    const std::string word = line.substr(2, line.find_first_of(" =", 2) - 2);
    const bool is_option = line[2 + word.size()] == '=';
    ++(is_option ? options : names);
    if (is_option) {
      EXPECT_FALSE(mentions(refusal("rr; " + word + "=?"), "unknown option")) << word;
    } else {
      EXPECT_NO_THROW(parse_spec(word == "file" ? "file; path=x" : word)) << word;
    }
  }
  EXPECT_EQ(names, 17U);
  EXPECT_EQ(options, 18U);
}

// ---- properties on random specs

using Random = std::mt19937_64;

std::size_t below(Random& random, std::size_t bound) { return random() % bound; }
bool coin(Random& random) { return below(random, 2) == 0; }
double inside(Random& random) { return (static_cast<double>(random() >> 11) + 0.5) / 9007199254740993.0; }

SignOptions random_sign(Random& random, bool may_halve) {
  SignOptions sign;
  switch (below(random, may_halve ? 3 : 2)) {
    case 0:
      sign.tie_plus = coin(random);
      break;
    case 1:
      sign.kind = SignKind::kWalk;
      if (coin(random)) sign.c = std::ldexp(inside(random), static_cast<int>(below(random, 80)) - 40);
      break;
    default:
      sign.kind = SignKind::kHalving;
      if (coin(random)) sign.delta = inside(random);
      if (coin(random)) sign.epochs = 1 + below(random, 1000);
  }
  return sign;
}

SketchOptions random_sketch(Random& random) {
  constexpr std::array kKinds = {SketchKind::kGauss, SketchKind::kSparse, SketchKind::kKron};
  if (coin(random)) return {};
  const SketchKind kind = kKinds.at(below(random, kKinds.size()));
  if (coin(random)) return {kind, 1 + below(random, 5000), 0.0};
  return {kind, 0, inside(random)};
}

void fill_balancing(Random& random, Spec& spec) {
  spec.normalize = coin(random);
  const bool many = spec.distributed();
  spec.sign = random_sign(random, spec.name == OrderName::kPair || many);
  spec.sketch = random_sketch(random);
  if (spec.centring != Centring::kPair) {
    constexpr std::array kCentrings = {Centring::kNone, Centring::kMean, Centring::kEma};
    spec.centring = kCentrings.at(below(random, kCentrings.size()));
    if (spec.centring == Centring::kEma && coin(random)) spec.beta = inside(random);
  }
  if (spec.depth > 0) spec.depth = below(random, 14);
  if (many || coin(random)) return;
  spec.frozen = true;
  spec.block = 1 + below(random, 300);
  if (spec.name == OrderName::kRecursivePair) spec.block = std::size_t{2} << spec.depth;
}

Spec random_spec(Random& random) {
  static const std::vector<std::string> kWords = {
      "mean",    "pair",   "batch", "recursive",    "recursive-pair",
      "rr",      "so",     "fixed", "flipflop",     "block-reversal",
      "swr",     "greedy", "score", "file; path=x", "cd-pair",
      "id-pair", "d-rr"};
  Spec spec = parse_spec(kWords.at(below(random, kWords.size())));
  if (spec.balances()) fill_balancing(random, spec);
  if (spec.name == OrderName::kBlockReversal) {
    spec.block = 1 + below(random, 100);
    spec.reshuffle = coin(random);
    spec.reverse = coin(random);
  }
  if (spec.name == OrderName::kFile) spec.path = "dir/" + std::to_string(random()) + " =x.npy";
  if (coin(random))
    spec.unit = 1 + below(random, 64);
  else
    spec.fused = spec.balances() && coin(random);
  return spec;
}

TEST(SpecProperty, ParseOfPrintIsTheSameSpec) {
  Random random(1);
  for (int i = 0; i < 20000; ++i) {
    const Spec spec = random_spec(random);
    const std::string text = print_spec(spec);
    ASSERT_EQ(parse_spec(text), spec) << text;
    ASSERT_EQ(print_spec(parse_spec(text)), text);
  }
}

TEST(SpecProperty, ParseOfAPrintedListIsTheSameList) {
  Random random(2);
  for (int i = 0; i < 3000; ++i) {
    std::vector<Spec> specs;
    std::string text;
    for (std::size_t k = 0; k <= below(random, 4); ++k) {
      specs.push_back(random_spec(random));
      text += (k == 0 ? "" : ",") + print_spec(specs.back());
    }
    ASSERT_EQ(parse_spec_list(text), specs) << text;
  }
}

/// Whatever the bytes: a spec that prints and parses back, or a UserError.
void expect_answer(const std::string& text) {
  try {
    const Spec spec = parse_spec(text);
    ASSERT_EQ(parse_spec(print_spec(spec)), spec) << text;
  } catch (const UserError&) {
  }
  try {
    ASSERT_FALSE(parse_spec_list(text).empty());
  } catch (const UserError&) {
  }
}

TEST(SpecProperty, RandomBytesAreAnsweredNeverACrash) {
  Random random(3);
  for (int i = 0; i < 5000; ++i) {
    std::string text(below(random, 80), '\0');
    for (char& c : text) c = static_cast<char>(random());
    expect_answer(text);
  }
  expect_answer(std::string(1 << 20, 'p'));
}

TEST(SpecProperty, RandomMutationsOfValidSpecsAreAnswered) {
  Random random(4);
  constexpr std::string_view kAlphabet = ";,=: .-+0123456789eabcdhiklmnoprstuwz\n\0\xff";
  for (int i = 0; i < 10000; ++i) {
    std::string text = print_spec(random_spec(random));
    for (std::size_t k = 0; k <= below(random, 3); ++k) {
      const std::size_t at = below(random, text.size());
      const char c = kAlphabet[below(random, kAlphabet.size())];
      if (coin(random)) {
        text[at] = c;
      } else {
        text.insert(at, 1, c);
      }
    }
    expect_answer(text);
  }
}

}  // namespace
}  // namespace cdgrab

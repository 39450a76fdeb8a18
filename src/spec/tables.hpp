// SPDX-License-Identifier: Apache-2.0
// Every order name and every option of a spec, one row each.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <string>
#include <string_view>

#include "cdgrab/spec.hpp"
#include "spec/text.hpp"

namespace cdgrab::detail {

inline constexpr std::size_t kMaxDepth = 13;  // codes are 16 bits wide

// ---- the names

struct NameRow {
  OrderName name;
  std::string_view word;
  std::string_view meaning;
  std::string_view why_no_signs;  ///< empty for those that balance
  Centring centring = Centring::kPair;
  std::size_t depth = 0;
  bool frozen = false;
  std::size_t block = 0;
};

inline constexpr std::string_view kBlind = "looks at no vectors";

inline constexpr std::array kNames = {
    NameRow{OrderName::kMean, "mean", "balances each vector minus the mean of the epoch before (GraB)", "",
            Centring::kMean},
    NameRow{OrderName::kPair, "pair", "balances the differences of consecutive vectors (CD-GraB)", ""},
    NameRow{OrderName::kBatch, "batch", "mean, with the accumulator standing still within a block", "",
            Centring::kMean, 0, true},
    NameRow{OrderName::kRecursive, "recursive", "mean on a binary tree of accumulators", "", Centring::kMean,
            5},
    NameRow{OrderName::kRecursivePair, "recursive-pair", "pair on a binary tree of accumulators", "",
            Centring::kPair, 5},
    NameRow{OrderName::kRandomReshuffling, "rr", "random reshuffling: a new random order every epoch",
            kBlind},
    NameRow{OrderName::kShuffleOnce, "so", "shuffle once: one random order for ever", kBlind},
    NameRow{OrderName::kFixed, "fixed", "0, 1, .., n-1 or the initial order given, for ever", kBlind},
    NameRow{OrderName::kFlipFlop, "flipflop", "a new random order, then its reverse, and again", kBlind},
    NameRow{OrderName::kBlockReversal, "block-reversal",
            "blocks reshuffled as units; every second epoch is the reverse of the one before", kBlind,
            Centring::kPair, 0, false, 64},
    NameRow{OrderName::kWithReplacement, "swr", "sampling with replacement: every draw independent", kBlind},
    NameRow{OrderName::kGreedy, "greedy",
            "always the example that keeps the sum smallest; O(n^2 d), for small n",
            "compares the centred vectors themselves and takes no signs"},
    NameRow{OrderName::kScore, "score", "ascending by one number per example that the caller gives", kBlind},
    NameRow{OrderName::kFile, "file", "an order saved before, read from path", kBlind},
    NameRow{OrderName::kCoordinatedPair, "cd-pair",
            "many workers: pair, the workers in turn against one accumulator (CD-GraB)", ""},
    NameRow{OrderName::kIndependentPair, "id-pair", "many workers: pair, each worker for itself (ID-GraB)",
            ""},
    NameRow{OrderName::kDistributedReshuffling, "d-rr", "many workers: rr, each worker for itself", kBlind},
};

inline const NameRow& row_of(OrderName name) { return kNames.at(static_cast<std::size_t>(name)); }

inline const NameRow* find_name(std::string_view word) {
  const auto row =
      std::find_if(kNames.begin(), kNames.end(), [&](const NameRow& r) { return r.word == word; });
  return row == kNames.end() ? nullptr : &*row;
}

inline Spec defaults_of(OrderName name) {
  const NameRow& row = row_of(name);
  Spec spec;
  spec.name = name;
  spec.centring = row.centring;
  spec.depth = row.depth;
  spec.frozen = row.frozen;
  spec.block = row.block;
  return spec;
}

[[noreturn]] inline void refuse_name(std::string_view word) {
  std::vector<std::string_view> words;
  for (const NameRow& row : kNames) words.push_back(row.word);
  refuse_word("order", word, words);
}

inline constexpr std::array kSigns = {Word<SignKind>{"det", SignKind::kDeterministic},
                                      Word<SignKind>{"walk", SignKind::kWalk},
                                      Word<SignKind>{"halving", SignKind::kHalving}};
inline constexpr std::array kTies = {Word<bool>{"plus", true}, Word<bool>{"minus", false}};
inline constexpr std::array kYesNo = {Word<bool>{"yes", true}, Word<bool>{"no", false}};
inline constexpr std::array kCentrings = {Word<Centring>{"none", Centring::kNone},
                                          Word<Centring>{"mean", Centring::kMean},
                                          Word<Centring>{"ema", Centring::kEma}};
inline constexpr std::array kSketches = {
    Word<SketchKind>{"gauss", SketchKind::kGauss}, Word<SketchKind>{"sparse", SketchKind::kSparse},
    Word<SketchKind>{"kron", SketchKind::kKron}, Word<SketchKind>{"pca", SketchKind::kPca}};

// ---- sets of names

constexpr unsigned bit(OrderName name) { return 1U << static_cast<unsigned>(name); }

inline constexpr unsigned kEvery = ~0U;
inline constexpr unsigned kDistributedPairs =
    bit(OrderName::kCoordinatedPair) | bit(OrderName::kIndependentPair);
inline constexpr unsigned kDistributed = kDistributedPairs | bit(OrderName::kDistributedReshuffling);
inline constexpr unsigned kHalving = bit(OrderName::kPair) | kDistributedPairs;
inline constexpr unsigned kPairs = bit(OrderName::kPair) | bit(OrderName::kRecursivePair);
inline constexpr unsigned kCentred =
    bit(OrderName::kMean) | bit(OrderName::kBatch) | bit(OrderName::kRecursive);
inline constexpr unsigned kFreezing = kPairs | kCentred;
inline constexpr unsigned kBalancing = kFreezing | kDistributedPairs;
inline constexpr unsigned kTrees = bit(OrderName::kRecursive) | bit(OrderName::kRecursivePair);

// ---- how values are read

inline void parse_sign(Spec& spec, const Field& field) {
  spec.sign.kind = parse_word(field, field.value, kSigns);
  if (spec.sign.kind == SignKind::kHalving && (kHalving & bit(spec.name)) == 0) {
    refuse(fmt::format(
        "`sign=halving` with `{}`: kernel halving is defined for the differences of one accumulator; "
        "use `pair; sign=halving`, or sign=walk here",
        row_of(spec.name).word));
  }
}

inline void parse_sketch(Spec& spec, const Field& field) {
  const std::size_t colon = field.value.find(':');
  spec.sketch.kind = parse_word(field, trimmed(field.value.substr(0, colon)), kSketches);
  if (spec.sketch.kind == SketchKind::kPca &&
      (spec.centring == Centring::kMean || spec.centring == Centring::kEma))
    refuse(
        fmt::format("`sketch=pca` with `{}`: its directions are new in every epoch, and the mean is of the "
                    "epoch before; use it with pairs or centring=none, or sketch=kron here",
                    row_of(spec.name).word));
  if (colon == std::string_view::npos && spec.sketch.kind == SketchKind::kPca)
    refuse("`sketch=pca` says no size; write sketch=pca:R. Random sketches only have it chosen by eps");
  if (colon == std::string_view::npos) return;
  spec.sketch.size = parse_count({"sketch size", {}}, trimmed(field.value.substr(colon + 1)), 1);
}

inline std::string print_sketch(const Spec& spec) {
  const std::string kind = print_word(spec.sketch.kind, kSketches);
  return kind.empty() || spec.sketch.size == 0 ? kind : fmt::format("{}:{}", kind, spec.sketch.size);
}

inline void parse_block(Spec& spec, const Field& field) {
  spec.block = parse_count(field, field.value, 1);
  if (spec.name == OrderName::kBlockReversal) return;
  spec.frozen = true;
  if (spec.name != OrderName::kRecursivePair) return;
  const auto levels = static_cast<std::size_t>(std::bit_width(spec.block)) - 1;
  if (!std::has_single_bit(spec.block) || levels < 1 || levels > kMaxDepth + 1) {
    refuse(fmt::format(
        "`block` of recursive-pair is {}; it must be a power of two from 2 to {}, one level per halving",
        in_quotes(field.value), std::size_t{1} << (kMaxDepth + 1)));
  }
  spec.depth = levels - 1;
}

inline bool has_published_blocks(const Spec& spec) {
  return spec.name == OrderName::kRecursivePair && spec.frozen;
}

inline std::string print_block(const Spec& spec) {
  const bool used = spec.frozen || spec.block != 0;
  return used ? std::to_string(spec.block) : "";
}

// ---- the options

/// A row prints when its text differs from that of the name's defaults. Rows are parsed in table
/// order, so `fits` may look at what the rows above have set.
struct OptionRow {
  std::string_view key;
  std::string_view syntax;
  std::string_view meaning;
  unsigned names;            ///< where it may be given
  std::string_view why_not;  ///< the reason elsewhere
  std::string_view group;    ///< printed after this key's option with a comma
  bool (*fits)(const Spec&);
  std::string_view needs;  ///< what `fits` asks for
  void (*parse)(Spec&, const Field&);
  std::string (*print)(const Spec&);
};

inline bool always(const Spec&) { return true; }
inline bool is_det(const Spec& s) { return s.sign.kind == SignKind::kDeterministic; }
inline bool is_walk(const Spec& s) { return s.sign.kind == SignKind::kWalk; }
inline bool is_halving(const Spec& s) { return s.sign.kind == SignKind::kHalving; }

inline constexpr std::array kOptions = {
    OptionRow{"centring", "none|mean|ema", "what is taken off each vector; mean unless said", kCentred,
              "pairs are balanced by their difference, which needs no centring", "", always, "",
              [](Spec& s, const Field& f) { s.centring = parse_word(f, f.value, kCentrings); },
              [](const Spec& s) {
                return s.centring == Centring::kPair ? "pair" : print_word(s.centring, kCentrings);
              }},
    OptionRow{"beta", "NUMBER", "weight of the past in the moving average, in [0,1); 0.9", kCentred,
              "pairs are balanced by their difference, which needs no centring", "",
              [](const Spec& s) { return s.centring == Centring::kEma; }, "centring=ema",
              [](Spec& s, const Field& f) {
                s.beta = parse_number(
                    f, [](double x) { return x >= 0.0 && x < 1.0; }, "in [0,1)");
              },
              [](const Spec& s) { return print_number(s.beta); }},
    OptionRow{"normalize", "yes|no", "divide each vector by its length first; the word alone means yes",
              kBalancing, "", "", always, "",
              [](Spec& s, const Field& f) { s.normalize = parse_word(f, f.value, kYesNo); },
              [](const Spec& s) { return print_word(s.normalize, kYesNo); }},
    OptionRow{"block", "COUNT",
              "examples in a block: accumulators stand still within it; block-reversal: what is reversed, 64",
              kFreezing | bit(OrderName::kBlockReversal),
              "workers take turns pair by pair, and the accumulator moves at once", "", always, "",
              parse_block, print_block},
    OptionRow{"depth", "0..13", "levels of the tree below the root; 5", kTrees,
              "it has one accumulator; use recursive or recursive-pair", "",
              [](const Spec& s) { return !has_published_blocks(s); },
              "no block (block=b of recursive-pair implies log2(b) levels)",
              [](Spec& s, const Field& f) { s.depth = parse_count(f, f.value, 0, kMaxDepth); },
              [](const Spec& s) { return has_published_blocks(s) ? "" : std::to_string(s.depth); }},
    OptionRow{
        "sign", "det|walk|halving",
        "the sign rule: deterministic (unless said), self-balancing walk, kernel halving for pair, cd-pair "
        "and id-pair",
        kBalancing, "", "", always, "", parse_sign,
        [](const Spec& s) { return print_word(s.sign.kind, kSigns); }},
    OptionRow{"tie", "plus|minus", "sign=det: the sign of a product that is exactly 0; plus", kBalancing, "",
              "sign", is_det, "sign=det",
              [](Spec& s, const Field& f) { s.sign.tie_plus = parse_word(f, f.value, kTies); },
              [](const Spec& s) { return print_word(s.sign.tie_plus, kTies); }},
    OptionRow{"c", "NUMBER",
              "sign=walk: products beyond +-c are certain; 30, made for vectors of length about 1",
              kBalancing, "", "sign", is_walk, "sign=walk",
              [](Spec& s, const Field& f) {
                s.sign.c = parse_number(
                    f, [](double x) { return x > 0.0; }, "above 0");
              },
              [](const Spec& s) { return print_number(s.sign.c); }},
    OptionRow{"delta", "NUMBER", "sign=halving: failure probability, in (0,1); 0.5", kHalving,
              "kernel halving is for pair, cd-pair and id-pair", "sign", is_halving, "sign=halving",
              [](Spec& s, const Field& f) { s.sign.delta = parse_number(f, inside_unit, "in (0,1)"); },
              [](const Spec& s) { return print_number(s.sign.delta); }},
    OptionRow{"epochs", "COUNT", "sign=halving: epochs planned; 100", kHalving,
              "kernel halving is for pair, cd-pair and id-pair", "sign", is_halving, "sign=halving",
              [](Spec& s, const Field& f) { s.sign.epochs = parse_count(f, f.value, 1); },
              [](const Spec& s) { return std::to_string(s.sign.epochs); }},
    OptionRow{"sketch", "gauss[:R]|sparse[:R]|kron[:R]|pca:R",
              "balance vectors shortened to R numbers (kron, pca: R per side); without R give eps",
              kBalancing, "", "", always, "", parse_sketch, print_sketch},
    OptionRow{"eps", "NUMBER", "a sketch without R: relative error of squared lengths, in (0,1)", kBalancing,
              "", "sketch",
              [](const Spec& s) { return s.sketch.kind != SketchKind::kNone && s.sketch.size == 0; },
              "a sketch without a size",
              [](Spec& s, const Field& f) { s.sketch.eps = parse_number(f, inside_unit, "in (0,1)"); },
              [](const Spec& s) { return print_number(s.sketch.eps); }},
    OptionRow{"every", "COUNT",
              "vectors are looked at in every COUNT-th epoch, from the first on, and the order is kept "
              "between; 1",
              kFreezing, "workers make their orders together in every epoch", "", always, "",
              [](Spec& s, const Field& f) { s.every = parse_count(f, f.value, 1); },
              [](const Spec& s) { return std::to_string(s.every); }},
    OptionRow{"unit", "COUNT", "consecutive examples ordered as one; 1", kEvery, "", "", always, "",
              [](Spec& s, const Field& f) { s.unit = parse_count(f, f.value, 1); },
              [](const Spec& s) { return std::to_string(s.unit); }},
    OptionRow{"fused", "yes|no",
              "an observed loss: weight gradients are the sums of what is read off, equal to rounding; the "
              "word alone means yes",
              kBalancing, "", "", [](const Spec& s) { return s.unit == 1; },
              "unit=1: a unit has its vector after the backward",
              [](Spec& s, const Field& f) { s.fused = parse_word(f, f.value, kYesNo); },
              [](const Spec& s) { return print_word(s.fused, kYesNo); }},
    OptionRow{"reshuffle", "yes|no", "block-reversal: reshuffle the blocks; yes",
              bit(OrderName::kBlockReversal), "it moves no blocks", "", always, "",
              [](Spec& s, const Field& f) { s.reshuffle = parse_word(f, f.value, kYesNo); },
              [](const Spec& s) { return print_word(s.reshuffle, kYesNo); }},
    OptionRow{"reverse", "yes|no", "block-reversal: every second epoch reverses the one before; yes",
              bit(OrderName::kBlockReversal), "it moves no blocks", "", always, "",
              [](Spec& s, const Field& f) { s.reverse = parse_word(f, f.value, kYesNo); },
              [](const Spec& s) { return print_word(s.reverse, kYesNo); }},
    OptionRow{"path", "TEXT", "file: the .npy file that holds the order; no ';' or ',' in it",
              bit(OrderName::kFile), "it reads no file", "", always, "",
              [](Spec& s, const Field& f) { s.path = f.value; }, [](const Spec& s) { return s.path; }},
};

}  // namespace cdgrab::detail

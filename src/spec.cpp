// SPDX-License-Identifier: Apache-2.0
// Parsing, printing, refusals and help all come from the two tables in spec/tables.hpp.
#include "cdgrab/spec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>

#include "spec/tables.hpp"

namespace cdgrab {
namespace {

using namespace detail;

constexpr std::string_view kBareKey = "normalize";

bool is_option(std::string_view key) {
  return std::any_of(kOptions.begin(), kOptions.end(), [&](const OptionRow& row) { return row.key == key; });
}

std::string words_of(unsigned names) {
  if (names == kEvery) return "every order";
  std::vector<std::string_view> words;
  for (const NameRow& row : kNames) {
    if ((names & bit(row.name)) != 0) words.push_back(row.word);
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

[[noreturn]] void refuse_option(const OptionRow& option, const NameRow& name) {
  const bool asks_for_signs = (option.names & kFreezing) != 0 && !name.why_no_signs.empty();
  const std::string reason =
      asks_for_signs
          ? fmt::format("`{}` {}, so `{}` has nothing to act on", name.word, name.why_no_signs, option.key)
          : fmt::format("`{}` takes no `{}`: {}", name.word, option.key, option.why_not);
  refuse(fmt::format("{}; leave it out, or use it with: {}", reason, words_of(option.names)));
}

void apply_option(Spec& spec, const OptionRow& option, const Field& field) {
  const NameRow& name = row_of(spec.name);
  if ((option.names & bit(spec.name)) == 0) refuse_option(option, name);
  if (!option.fits(spec)) {
    refuse(fmt::format("`{}={}` needs {}; leave it out, or say that too", option.key, field.value,
                       option.needs));
  }
  if (field.value.empty()) {
    refuse(fmt::format("`{}` has no value; write {}={}", option.key, option.key, option.syntax));
  }
  option.parse(spec, field);
}

Field parse_field(std::string_view piece) {
  const std::size_t equals = piece.find('=');
  const std::string_view key = trimmed(piece.substr(0, equals));
  if (key.empty()) {
    refuse(fmt::format("an option without a name in {}; write key=value between the separators",
                       in_quotes(piece)));
  }
  if (find_name(key) != nullptr && equals == std::string_view::npos) {
    refuse(fmt::format(
        "`{}` is a second order where one is described; give one, and its options as key=value", key));
  }
  if (!is_option(key)) {
    std::vector<std::string_view> keys;
    for (const OptionRow& row : kOptions) keys.push_back(row.key);
    refuse_word("option", key, keys);
  }
  const bool bare = equals == std::string_view::npos;
  if (bare && key == kBareKey) return {key, "yes"};
  return {key, bare ? std::string_view{} : trimmed(piece.substr(equals + 1))};
}

std::vector<Field> parse_fields(std::span<const std::string_view> pieces) {
  std::vector<Field> fields;
  for (const std::string_view piece : pieces) {
    const Field field = parse_field(piece);
    for (const Field& before : fields) {
      if (before.key == field.key) {
        refuse(fmt::format("`{}` is given twice ({} and {}); give it once", field.key,
                           in_quotes(before.value), in_quotes(field.value)));
      }
    }
    fields.push_back(field);
  }
  return fields;
}

void require_complete(const Spec& spec) {
  if (spec.sketch.kind != SketchKind::kNone && spec.sketch.size == 0 && spec.sketch.eps == 0.0) {
    const std::string kind = print_word(spec.sketch.kind, kSketches);
    refuse(fmt::format("`sketch={0}` says no size; write sketch={0}:R, or sketch={0},eps=E to have it chosen",
                       kind));
  }
  if (spec.name == OrderName::kFile && spec.path.empty()) {
    refuse("`file` says no path; write file; path=ORDER.npy");
  }
}

}  // namespace

bool Spec::balances() const { return (kBalancing & bit(name)) != 0; }
bool Spec::distributed() const { return (kDistributed & bit(name)) != 0; }

Spec parse_spec(std::string_view text) {
  const std::vector<std::string_view> pieces = split(text, ";,");
  const NameRow* name = find_name(pieces.front());
  if (name == nullptr) refuse_name(pieces.front());
  Spec spec = defaults_of(name->name);
  const std::vector<Field> fields = parse_fields(std::span(pieces).subspan(1));
  for (const OptionRow& option : kOptions) {
    for (const Field& field : fields) {
      if (field.key == option.key) apply_option(spec, option, field);
    }
  }
  require_complete(spec);
  return spec;
}

std::string print_spec(const Spec& spec) {
  const Spec defaults = defaults_of(spec.name);
  std::string text(row_of(spec.name).word);
  std::string_view group;
  for (const OptionRow& option : kOptions) {
    const std::string value = option.print(spec);
    if (value.empty() || value == option.print(defaults)) continue;
    text += !option.group.empty() && option.group == group ? "," : "; ";
    text += option.key == kBareKey ? std::string(option.key) : fmt::format("{}={}", option.key, value);
    if (option.group.empty()) group = option.key;
  }
  if (parse_spec(text) != spec) {
    refuse(fmt::format("these fields have no text: the nearest is {}; make specs with parse_spec",
                       in_quotes(text)));
  }
  return text;
}

std::vector<Spec> parse_spec_list(std::string_view text) {
  std::vector<std::string> texts;
  for (const std::string_view piece : split(text, ",")) {
    const std::string_view head = trimmed(piece.substr(0, piece.find(';')));
    const bool names_order = find_name(head) != nullptr;
    const bool continues = !texts.empty() && (head.find('=') != std::string_view::npos || is_option(head));
    if (!names_order && !continues) refuse_name(head);
    if (names_order) {
      texts.emplace_back(piece);
    } else {
      texts.back().append(",").append(piece);
    }
  }
  std::vector<Spec> specs;
  std::transform(texts.begin(), texts.end(), std::back_inserter(specs),
                 [](const auto& t) { return parse_spec(t); });
  return specs;
}

std::string describe_specs() {
  std::string out = "Orders:\n";
  for (const NameRow& row : kNames) out += fmt::format("  {:<16}{}\n", row.word, row.meaning);
  out += "Options (NAME; key=value; key=value):\n";
  for (const OptionRow& row : kOptions) {
    const std::string left = fmt::format("{}={}", row.key, row.syntax);
    const std::string names = row.names == kBalancing ? "every order that balances" : words_of(row.names);
    out += fmt::format("  {:<38}{} ({})\n", left, row.meaning, names);
  }
  return out;
}

}  // namespace cdgrab

// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <fmt/format.h>

#include <string_view>

#include "svg.hpp"

namespace cdgrab::cli {
namespace {

constexpr std::string_view kStyle = R"css(
:root { color-scheme: light dark; --paper: #fdfcfa; --ink: #1d1f24; --soft: #5c6069; --line: #e3e0da; --band: #f4f2ed;
  --s0: #1f5fbf; --s1: #c2410c; --s2: #0f766e; --s3: #7e22ce; --s4: #a16207; --s5: #be185d; --s6: #4d7c0f; --s7: #0e7490; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #16181d; --ink: #e9e7e2; --soft: #a0a4ad; --line: #32353d; --band: #1f2229;
    --s0: #7fb0ff; --s1: #ff9b6b; --s2: #4fd1bf; --s3: #c9a2ff; --s4: #e8bd55; --s5: #ff8fbb; --s6: #a9d65a; --s7: #67d3ee; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 3.5rem 1.5rem 4rem; }
.kicker { margin: 0 0 .6rem; color: var(--soft); font-size: .85rem; letter-spacing: .06em; text-transform: uppercase; }
h1 { margin: 0 0 1rem; font-size: clamp(1.6rem, 4vw, 2.3rem); line-height: 1.18; font-weight: 650; letter-spacing: -.015em;
  text-wrap: balance; overflow-wrap: anywhere; }
h2 { margin: 3.5rem 0 .8rem; font-size: 1.35rem; font-weight: 650; letter-spacing: -.01em; }
h3, figcaption { margin: 0 0 .6rem; font-size: 1.05rem; font-weight: 650; } h3 { margin-top: 2rem; }
.text { max-width: 48rem; margin: 0; color: var(--soft); }
.caption { max-width: 52rem; margin: .8rem 0 0; color: var(--soft); font-size: .88rem; }
.notes { max-width: 52rem; margin: 1.2rem 0 0; padding-left: 1.1rem; font-size: .95rem; } .notes li + li { margin-top: .3rem; }
.lead { max-width: 48rem; margin: 0 0 2rem; color: var(--soft); font-size: 1.05rem; }
figure { margin: 2.2rem 0 0; }
.chart { display: block; width: 100%; min-width: 36rem; height: auto; font-size: 12.5px; font-variant-numeric: tabular-nums; }
.grid line { stroke: var(--line); } .grid .axis, .grid .tick { stroke: var(--soft); }
.grid text { fill: var(--soft); } .grid .name { font-size: 12.5px; } .empty { fill: var(--soft); }
.series { color: var(--soft); }
.series path { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.series path.band { fill: currentColor; stroke: none; opacity: .16; }
.series circle { fill: currentColor; stroke: var(--paper); stroke-width: 1.2; }
.series text { fill: currentColor; font-weight: 600; }
.ends line { stroke: currentColor; stroke-width: 1; opacity: .45; }
.reference path { stroke-width: 1.4; stroke-dasharray: 5 5; stroke-linecap: butt; } .reference text { font-weight: 400; }
.again path { stroke-dasharray: 8 3 2 3; stroke-linecap: butt; }
.baseline path { opacity: .75; }
.bar text { fill: var(--ink); font-weight: 600; } .bar .total { fill: var(--soft); font-weight: 400; }
.part { fill: currentColor; } .part.baseline { color: var(--soft); opacity: .55; }
.s0 { color: var(--s0); } .s1 { color: var(--s1); } .s2 { color: var(--s2); } .s3 { color: var(--s3); }
.s4 { color: var(--s4); } .s5 { color: var(--s5); } .s6 { color: var(--s6); } .s7 { color: var(--s7); }
.scroll { overflow: auto; border-block: 1px solid var(--line); } .tall { max-height: 34rem; }
.frame { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { padding: .42rem .7rem; text-align: right; white-space: nowrap; } thead th { white-space: normal; min-width: 4.5rem; }
th:first-child { padding-left: .2rem; text-align: left; } th:last-child, td:last-child { padding-right: .4rem; }
thead th { position: sticky; top: 0; background: var(--paper); color: var(--soft); font-weight: 500; vertical-align: bottom;
  box-shadow: inset 0 -1px var(--line); }
tbody th { font-weight: 600; white-space: normal; min-width: 12rem; } tbody tr + tr > * { border-top: 1px solid var(--line); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1.5rem; margin: 0; font-size: .92rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
pre { margin: 1.2rem 0 0; padding: .8rem 1rem; overflow-wrap: anywhere; white-space: pre-wrap; background: var(--band);
  border-radius: 6px; font: .86rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
footer { margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line); color: var(--soft); font-size: .85rem; }
@media print {
  :root { color-scheme: light; --paper: #fff; --ink: #000; --soft: #444; --line: #ccc; --band: #f3f3f3;
    --s0: #1f5fbf; --s1: #c2410c; --s2: #0f766e; --s3: #7e22ce; --s4: #a16207; --s5: #be185d; --s6: #4d7c0f; --s7: #0e7490; }
  main { max-width: none; padding: 0; } .scroll, .frame { overflow: visible; max-height: none; } .chart { min-width: 0; } thead th { position: static; box-shadow: none; }
  figure, tr, dl, pre { break-inside: avoid; } h2, h3, .text { break-after: avoid; }
}
)css";

std::string render_row(const std::vector<std::string>& cells) {
  std::string out = "<tr>";
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const std::string text = escape_html(cells[i]);
    out += i == 0 ? "<th scope=\"row\">" + text + "</th>" : "<td>" + text + "</td>";
  }
  return out + "</tr>\n";
}

std::string render_table(const Table& table, std::string_view box) {
  std::string out = fmt::format("<div class=\"{}\" tabindex=\"0\"><table>", box);
  out += "<thead><tr>";
  for (const std::string& cell : table.head)
    out += fmt::format("<th scope=\"col\">{}</th>", escape_html(cell));
  out += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) out += render_row(row);
  return out + "</tbody></table></div>\n";
}

/// Of a Chart or Bars.
template <class Drawing>
std::string render_figure(const Drawing& drawing) {
  return fmt::format(
      "<figure><figcaption>{}</figcaption>\n<div class=\"frame\" tabindex=\"0\">\n{}</div></figure>\n",
      escape_html(drawing.title), render_svg(drawing));
}

std::string render_notes(const std::vector<std::string>& notes) {
  if (notes.empty()) return "";
  std::string out = "<ul class=\"notes\">\n";
  for (const std::string& note : notes) out += fmt::format("<li>{}</li>\n", escape_html(note));
  return out + "</ul>\n";
}

std::string render_section(const Section& section) {
  std::string out = "<section>\n";
  if (!section.title.empty()) out += fmt::format("<h2>{}</h2>\n", escape_html(section.title));
  if (!section.text.empty()) out += fmt::format("<p class=\"text\">{}</p>\n", escape_html(section.text));
  for (const Chart& chart : section.charts) out += render_figure(chart);
  for (const Bars& bars : section.bars) out += render_figure(bars);
  for (const Table& table : section.tables) {
    if (!table.title.empty()) out += fmt::format("<h3>{}</h3>\n", escape_html(table.title));
    out += render_table(table, "scroll");
  }
  return out + "</section>\n";
}

std::string render_settings(const Page& page) {
  std::string out = "<h2>How it was made</h2>\n<dl>\n";
  for (const auto& [name, value] : page.settings) {
    out += fmt::format("<dt>{}</dt><dd>{}</dd>\n", escape_html(name), escape_html(value));
  }
  return out + fmt::format("</dl>\n<pre>{}</pre>\n", escape_html(page.command));
}

}  // namespace

std::string render_page(const Page& page) {
  std::string out = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\">\n<title>{}</title>\n<style>{}</style>\n"
      "</head>\n<body>\n<main>\n<p class=\"kicker\">{}</p>\n<h1>{}</h1>\n<p class=\"lead\">{}</p>\n",
      escape_html(page.headline), kStyle, escape_html(page.kicker), escape_html(page.headline),
      escape_html(page.lead));
  out += render_table(page.summary, "scroll");
  if (!page.caption.empty()) out += fmt::format("<p class=\"caption\">{}</p>\n", escape_html(page.caption));
  out += render_notes(page.notes);
  for (const Section& section : page.sections) out += render_section(section);
  for (const Table& table : page.details) {
    out += fmt::format("<h2>{}</h2>\n{}", escape_html(table.title), render_table(table, "scroll tall"));
  }
  out += render_settings(page);
  return out + fmt::format("<footer>{}</footer>\n</main>\n</body>\n</html>\n", escape_html(page.footer));
}

}  // namespace cdgrab::cli

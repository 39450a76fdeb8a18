// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <fmt/format.h>

#include <string_view>

#include "svg.hpp"

namespace cdgrab::cli {
namespace {

// Of its own, for the page of bench/python/cost reads it too.
constexpr std::string_view kStyle =
#include "report_style.inc"
    ;

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

#include "help.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "columns.h"

namespace haulway::cli {

namespace {

// Narrower terminals get longer lines.
constexpr size_t kLeastColumns = 40;
// CLI11 indents groups by two more columns. One is free at the end.
constexpr size_t kIndent = 3;
// Columns of a description at least, whatever its margin.
constexpr size_t kLeastDescription = 20;

// Returns `text` in lines of at most `width` columns where words allow it.
std::string Wrapped(std::string_view text, size_t width) {
  std::string lines;
  size_t column = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (column > 0 && column + 1 + Columns(word) > width) {
      lines += '\n';
      column = 0;
    } else if (column > 0) {
      lines += ' ';
      ++column;
    }
    lines += word;
    column += Columns(word);
  }
  return lines;
}

// Returns a name and its description, whose lines begin at the column `margin`
// and end before `width`.
std::string HelpLine(std::string_view name, std::string_view description,
                     size_t margin, size_t width) {
  const size_t before = margin + kIndent;
  const size_t room =
      std::max(width > before ? width - before : 0, kLeastDescription);
  std::string line = fmt::format("  {}", name);
  const std::string space(margin, ' ');
  if (!description.empty()) {
    if (line.size() >= margin) line += '\n' + space;
    line.resize(std::max(line.size(), margin), ' ');
  }
  for (const char c : Wrapped(description, room)) {
    line += c;
    if (c == '\n') line += space;
  }
  return line + '\n';
}

}  // namespace

size_t TerminalWidth() {
  winsize size{};
  const bool is_terminal = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
  return is_terminal && size.ws_col >= kLeastColumns ? size.ws_col : 0;
}

std::string HelpFormatter::make_usage(const CLI::App* app,
                                      std::string name) const {
  std::string usage = CLI::Formatter::make_usage(app, std::move(name));
  if (is_short_ && app->get_parent() != nullptr) {
    usage += fmt::format("\n{}\n", app->get_footer());
  }
  return usage;
}

std::string HelpFormatter::make_footer(const CLI::App* app) const {
  if (is_short_ && app->get_parent() != nullptr) return "";
  return CLI::Formatter::make_footer(app);
}

std::string HelpFormatter::make_option(const CLI::Option* option,
                                       bool is_positional) const {
  if (width_ == 0) return CLI::Formatter::make_option(option, is_positional);
  return HelpLine(
      make_option_name(option, is_positional) + make_option_opts(option),
      make_option_desc(option), get_column_width(), width_);
}

std::string HelpFormatter::make_subcommand(const CLI::App* part) const {
  if (width_ == 0) return CLI::Formatter::make_subcommand(part);
  return HelpLine(part->get_display_name(true), part->get_description(),
                  get_column_width(), width_);
}

std::string HelpFormatter::make_subcommands(const CLI::App* app,
                                            CLI::AppFormatMode mode) const {
  if (!is_short_ || app->get_parent() == nullptr) {
    return CLI::Formatter::make_subcommands(app, mode);
  }
  if (app->get_subcommands({}).empty()) return "";
  const auto groups = app->get_subcommands({});
  const bool has_urls = std::ranges::any_of(groups, [](const CLI::App* group) {
    return group->get_option_no_throw("--header") != nullptr;
  });
  return fmt::format("\nOptions for keys and URLs: haulway {} --help{}\n",
                     app->get_name(), has_urls ? "; URLs: docs/remote.md" : "");
}

}  // namespace haulway::cli

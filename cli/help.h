// What --help prints.

#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <string>

namespace haulway::cli {

// A HelpFormatter wraps descriptions to the width of the terminal. The short
// form has the examples behind the usage, and of the options for keys and URLs,
// which nearly every verb has, only a line that names the long form.
class HelpFormatter : public CLI::Formatter {
 public:
  // `width` in columns; 0: lines are not wrapped.
  HelpFormatter(bool is_short, size_t width)
      : is_short_(is_short), width_(width) {}

  std::string make_usage(const CLI::App* app, std::string name) const override;
  std::string make_footer(const CLI::App* app) const override;
  std::string make_option(const CLI::Option* option,
                          bool is_positional) const override;
  std::string make_subcommand(const CLI::App* part) const override;
  std::string make_subcommands(const CLI::App* app,
                               CLI::AppFormatMode mode) const override;

 private:
  const bool is_short_;
  const size_t width_;
};

// Returns the width of the terminal that standard output is; 0: it is none.
size_t TerminalWidth();

}  // namespace haulway::cli

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "command.h"

namespace haulway::cli {
namespace {

struct CompletionVerbOptions : Options {
  std::string shell;
};

std::vector<const CLI::App*> VerbsOf(const CLI::App& all) {
  return all.get_subcommands([](const CLI::App*) { return true; });
}

// Its own, and those of its groups.
std::vector<const CLI::Option*> OptionsOf(const CLI::App& verb) {
  std::vector<const CLI::Option*> options = verb.get_options();
  const auto is_group = [](const CLI::App* part) {
    return part->get_name().empty();
  };
  for (const CLI::App* group : verb.get_subcommands(is_group)) {
    auto more = OptionsOf(*group);
    std::erase(more, group->get_help_ptr());
    options.insert(options.end(), more.begin(), more.end());
  }
  return options;
}

// The names of an option as they are typed.
std::vector<std::string> NamesOf(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) {
    names.push_back("-" + name);
  }
  for (const std::string& name : option.get_lnames()) {
    names.push_back("--" + name);
  }
  return names;
}

std::string Joined(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

void PrintForBash(const CLI::App& all) {
  std::vector<std::string> verbs;
  for (const CLI::App* verb : VerbsOf(all)) verbs.push_back(verb->get_name());
  fmt::print(
      "_haulway() {{\n"
      "  local word=${{COMP_WORDS[COMP_CWORD]}} words=\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      "    words='{} --help --version'\n"
      "  elif [[ $word == -* ]]; then\n"
      "    case ${{COMP_WORDS[1]}} in\n",
      Joined(verbs));
  for (const CLI::App* verb : VerbsOf(all)) {
    std::vector<std::string> words;
    for (const CLI::Option* option : OptionsOf(*verb)) {
      for (std::string& name : NamesOf(*option)) {
        words.push_back(std::move(name));
      }
    }
    std::vector<std::string> called{verb->get_name()};
    for (const std::string& alias : verb->get_aliases()) {
      called.push_back(alias);
    }
    fmt::print("      {}) words='{}' ;;\n", fmt::join(called, "|"),
               Joined(words));
  }
  // Where nothing fits, the name of a file.
  fmt::print(
      "    esac\n"
      "  fi\n"
      "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
      "}}\n"
      "complete -o bashdefault -o default -F _haulway haulway\n");
}

// In single quotes, for fish.
std::string Quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out + "'";
}

void PrintForFish(const CLI::App& all) {
  for (const CLI::App* verb : VerbsOf(all)) {
    fmt::print("complete -c haulway -n __fish_use_subcommand -a {} -d {}\n",
               verb->get_name(), Quoted(verb->get_description()));
    for (const CLI::Option* option : OptionsOf(*verb)) {
      std::string names;
      for (const std::string& name : option->get_snames()) {
        names += " -s " + name;
      }
      for (const std::string& name : option->get_lnames()) {
        names += " -l " + name;
      }
      if (names.empty()) continue;
      fmt::print(
          "complete -c haulway -n '__fish_seen_subcommand_from {}'{}{} -d {}\n",
          verb->get_name(), names, option->get_expected_max() == 0 ? "" : " -r",
          Quoted(option->get_description()));
    }
  }
}

Runner Add(CLI::App& app) {
  const auto options = std::make_shared<CompletionVerbOptions>();
  app.add_option("SHELL", options->shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  return {options, [options, &app] {
            const CLI::App& all = *app.get_parent();
            if (options->shell == "fish") {
              PrintForFish(all);
              return kDone;
            }
            if (options->shell == "zsh") {
              fmt::print("autoload -Uz bashcompinit && bashcompinit\n");
            }
            PrintForBash(all);
            return kDone;
          }};
}

}  // namespace

extern const Verb kCompletion = {
    "completion",
    "Print a script that makes a shell complete verbs and options",
    "source <(haulway completion bash)\n"
    "haulway completion fish | source",
    Add};

}  // namespace haulway::cli

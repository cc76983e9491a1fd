// Scripts with which shells complete verbs, options and values.
//
// Each script holds, for every verb, the words of its options and, for each
// option with a closed list of values, that list: the options know theirs from
// Offer(). A shell compares the word before the cursor, so it never starts the
// command while it completes. Where nothing is known, names of files are
// offered.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "command.h"
#include "tell.h"

namespace haulway::cli {
namespace {

struct CompletionVerbOptions : Options {
  std::string shell;
  bool install = false;
};

std::vector<const CLI::App*> VerbsOf(const CLI::App& all) {
  return all.get_subcommands([](const CLI::App*) { return true; });
}

// Returns the options of the verb and of its groups.
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

// Returns the names of an option as they are typed.
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

// Returns the names of a verb and of its alias.
std::vector<std::string> CalledOf(const CLI::App& verb) {
  std::vector<std::string> called{verb.get_name()};
  for (const std::string& alias : verb.get_aliases()) called.push_back(alias);
  return called;
}

// Returns whether an option takes a file as well as the values that it offers.
bool TakesFile(const CLI::Option& option) {
  return option.get_type_name() == "FILE";
}

// Returns `'VERB --OPTION'|...) BEFORE... ;;` for each option that offers
// values, with these in between, and with `files` for one that takes a file as
// well. The first argument of a verb follows its name.
std::string ValuesOf(const CLI::App& all, std::string_view before,
                     std::string_view after, std::string_view files) {
  std::string cases;
  for (const CLI::App* verb : VerbsOf(all)) {
    for (const CLI::Option* option : OptionsOf(*verb)) {
      const std::vector<std::string> values = OfferedFor(*option);
      if (values.empty()) continue;
      std::vector<std::string> patterns;
      for (const std::string& called : CalledOf(*verb)) {
        std::vector<std::string> names = NamesOf(*option);
        if (names.empty()) names = {called};
        for (const std::string& name : names) {
          patterns.push_back(fmt::format("'{} {}'", called, name));
        }
      }
      cases += fmt::format("      {}) {}{}{}{} ;;\n", fmt::join(patterns, "|"),
                           before, Joined(values), after,
                           TakesFile(*option) ? files : "");
    }
  }
  return cases;
}

// Returns `verb|alias) BEFORE... ;;` for each verb, with its options in
// between.
std::string CasesOf(const CLI::App& all, std::string_view before,
                    std::string_view after) {
  std::string cases;
  for (const CLI::App* verb : VerbsOf(all)) {
    std::vector<std::string> words;
    for (const CLI::Option* option : OptionsOf(*verb)) {
      for (std::string& name : NamesOf(*option)) {
        words.push_back(std::move(name));
      }
    }
    cases +=
        fmt::format("      {}) {}{}{} ;;\n", fmt::join(CalledOf(*verb), "|"),
                    before, Joined(words), after);
  }
  return cases;
}

std::string NamesOfVerbs(const CLI::App& all) {
  std::vector<std::string> verbs;
  for (const CLI::App* verb : VerbsOf(all)) verbs.push_back(verb->get_name());
  return Joined(verbs);
}

std::string ForBash(const CLI::App& all) {
  // If no word matches, bash completes file names.
  return fmt::format(
      "_haulway() {{\n"
      "  local word=${{COMP_WORDS[COMP_CWORD]}} words=\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      "    words='{} --help --version'\n"
      "  elif [[ $word == -* ]]; then\n"
      "    case ${{COMP_WORDS[1]}} in\n"
      "{}"
      "    esac\n"
      "  else\n"
      "    case \"${{COMP_WORDS[1]}} ${{COMP_WORDS[COMP_CWORD-1]}}\" in\n"
      "{}"
      "    esac\n"
      "  fi\n"
      "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
      "}}\n"
      "complete -o bashdefault -o default -F _haulway haulway\n",
      NamesOfVerbs(all), CasesOf(all, "words='", "'"),
      ValuesOf(all, "words='", "'", ""));
}

// Returns a function that zsh loads from a file with its name, or that is
// defined by sourcing the text.
std::string ForZsh(const CLI::App& all) {
  return fmt::format(
      "#compdef haulway\n"
      "_haulway() {{\n"
      "  if (( CURRENT == 2 )); then\n"
      "    compadd -- {} --help --version\n"
      "  elif [[ ${{words[CURRENT]}} == -* ]]; then\n"
      "    case ${{words[2]}} in\n"
      "{}"
      "    esac\n"
      "  else\n"
      "    case \"${{words[2]}} ${{words[CURRENT-1]}}\" in\n"
      "{}"
      "      *) _files ;;\n"
      "    esac\n"
      "  fi\n"
      "}}\n"
      "if [[ ${{funcstack[1]}} == _haulway ]]; then\n"
      "  _haulway \"$@\"\n"
      "else\n"
      "  compdef _haulway haulway\n"
      "fi\n",
      NamesOfVerbs(all), CasesOf(all, "compadd -- ", ""),
      ValuesOf(all, "compadd -- ", "", "; _files"));
}

// Quotes the text with single quotes for fish.
std::string Quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out + "'";
}

std::string ForFish(const CLI::App& all) {
  std::string out;
  for (const CLI::App* verb : VerbsOf(all)) {
    out += fmt::format(
        "complete -c haulway -n __fish_use_subcommand -a {} -d {}\n",
        verb->get_name(), Quoted(verb->get_description()));
    for (const CLI::Option* option : OptionsOf(*verb)) {
      std::string names;
      for (const std::string& name : option->get_snames()) {
        names += " -s " + name;
      }
      for (const std::string& name : option->get_lnames()) {
        names += " -l " + name;
      }
      const std::string values = Joined(OfferedFor(*option));
      if (names.empty()) {
        if (values.empty()) continue;
        out += fmt::format(
            "complete -c haulway -n '__fish_seen_subcommand_from {}; and not "
            "__fish_seen_subcommand_from {}' -f -a '{}'\n",
            verb->get_name(), values, values);
        continue;
      }
      std::string value = option->get_expected_max() == 0 ? "" : " -r";
      if (!values.empty()) {
        value = fmt::format(" {} -a '{}'", TakesFile(*option) ? "-r" : "-x",
                            values);
      }
      out += fmt::format(
          "complete -c haulway -n '__fish_seen_subcommand_from {}'{}{} -d {}\n",
          verb->get_name(), names, value, Quoted(option->get_description()));
    }
  }
  return out;
}

// Returns the folder where a shell looks for a user's additions: the
// environment's `variable`, or `otherwise` in the home folder.
std::string UserFolder(const char* variable, const char* otherwise) {
  const auto get = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const std::string folder = get(variable);
  return folder.empty() ? get("HOME") + "/" + otherwise : folder;
}

// Writes the text to the place where the shell finds it, and prints the path.
int Install(const Options& options, std::string_view shell,
            const std::string& text) {
  std::string path;
  if (shell == "bash") {
    path = UserFolder("XDG_DATA_HOME", ".local/share") +
           "/bash-completion/completions/haulway";
  } else if (shell == "zsh") {
    path = UserFolder("XDG_DATA_HOME", ".local/share") +
           "/zsh/site-functions/_haulway";
  } else {
    path = UserFolder("XDG_CONFIG_HOME", ".config") +
           "/fish/completions/haulway.fish";
  }
  const std::filesystem::path folder =
      std::filesystem::path(path).parent_path();
  std::error_code error;
  std::vector<std::filesystem::path> made;  // The deepest first.
  for (auto at = folder; !std::filesystem::exists(at, error) && !at.empty();
       at = at.parent_path()) {
    made.push_back(at);
  }
  std::filesystem::create_directories(folder, error);
  Status written =
      error ? Status::FromErrno(error.value(), "cannot create the folder")
                  .Of(folder.string())
            : WriteText(path, text);
  if (!written.ok()) {
    // A folder with a file in it stays.
    for (const auto& empty : made) std::filesystem::remove(empty, error);
    return Fail(options, written);
  }
  fmt::print("{}\n", path);
  if (shell == "zsh") {
    Tell(fmt::format("in ~/.zshrc, before compinit: fpath=({} $fpath)\n",
                     folder.string()));
  }
  return kDone;
}

Runner AddCompletion(CLI::App& app) {
  const auto options = std::make_shared<CompletionVerbOptions>();
  OneOf(app.add_option("SHELL", options->shell, "bash, zsh or fish"),
        {"bash", "zsh", "fish"})
      ->required();
  app.add_flag("--install", options->install,
               "Write the text to where the shell looks for a user's own");
  return {options, [options, &app]() -> int {
            const CLI::App& all = *app.get_parent();
            const std::string text = options->shell == "bash"  ? ForBash(all)
                                     : options->shell == "zsh" ? ForZsh(all)
                                                               : ForFish(all);
            if (options->install) {
              return Install(*options, options->shell, text);
            }
            fmt::print("{}", text);
            return kDone;
          }};
}

}  // namespace

extern const Verb kCompletion = {
    "completion",
    "Print a script that makes a shell complete verbs and options",
    "haulway completion bash --install\n"
    "source <(haulway completion bash)\n"
    "haulway completion fish | source",
    AddCompletion};

}  // namespace haulway::cli

// Design: the verbs add their own options, each to its part of the command line
// (command.h); this file parses, refuses, and runs the one that was named. What
// CLI11 would say of a wrong word is replaced where a hint helps: the nearest
// verb or option, or a home folder that the shell did not expand. SIGINT sets a
// flag for verbs that can end early; a second one, or one for other verbs, ends
// the process at once.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "command.h"
#include "haulway/format.h"
#include "haulway/nearest.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "help.h"
#include "output.h"
#include "run_command.h"
#include "tell.h"
#include "verbs.h"

namespace haulway::cli {

namespace {

// A second interrupt, or one during a call that cannot be cancelled, ends the
// process immediately. No verb leaves anything half written.
volatile std::sig_atomic_t cancellable = 0;
// The exit code after the signal that interrupted the verb.
volatile std::sig_atomic_t interrupted_code = kInterrupted;
void OnInterrupt(int signal) {
  const int code = 128 + signal;
  if (cancellable == 0 || interrupted.exchange(true)) _exit(code);
  interrupted_code = code;
}

std::string Hint(std::string_view word) {
  const std::string hint =
      HintOf(word, kVerbs, [](const Verb* verb) { return verb->name; });
  return hint.empty() ? "; haulway --help lists them" : hint;
}

// Adds the long names of the options of a verb and of its groups.
void AddOptionNames(const CLI::App& verb, std::vector<std::string>* names) {
  for (const CLI::Option* option : verb.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names->push_back("--" + name);
    }
  }
  for (const CLI::App* group : verb.get_subcommands(
           [](const CLI::App* part) { return part->get_name().empty(); })) {
    AddOptionNames(*group, names);
  }
}

// Returns the message about a word that no option or argument takes.
std::string Unexpected(const CLI::App& app) {
  const std::vector<std::string> extras = app.remaining(true);
  if (extras.empty()) return "unexpected argument";
  const std::string& word = extras.front();
  if (!word.starts_with("-") || word == "-") {
    return fmt::format("unexpected argument '{}'", word);
  }
  const std::string option = word.substr(0, word.find('='));
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands()) {
    AddOptionNames(*verb, &names);
  }
  return fmt::format("no option '{}'{}", option,
                     HintOf(option, names, std::identity()));
}

// Returns the first value that begins with "~/" although no folder is called
// "~"; empty if there is none. Shells expand it only at the beginning of a
// word.
std::string UnexpandedHome(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& value : option->results()) {
      if ((value == "~" || value.starts_with("~/")) &&
          ::access("~", F_OK) != 0) {
        return value;
      }
    }
  }
  for (const CLI::App* part : app.get_subcommands([](const CLI::App* one) {
         return one->get_name().empty() || one->parsed();
       })) {
    const std::string found = UnexpandedHome(*part);
    if (!found.empty()) return found;
  }
  return "";
}

// Reports a usage error, in JSON too if requested.
int FailUsage(int argc, char** argv, std::string_view what) {
  Options options;
  const std::span<char* const> words(argv, static_cast<size_t>(argc));
  options.json = std::ranges::any_of(words, [](const char* word) {
    return std::string_view(word) == "--json";
  });
  (void)Fail(options, Status(Code::kInvalidArgument, what));
  return kUsage;
}

int RunVerb(const Runner& verb) {
  Options& options = *verb.options;
  if (const char* debug = std::getenv("HAULWAY_SERIALIZATION_DEBUG")) {
    options.open.debug_offsets = std::string_view(debug) == "1";
  }
  // An interrupt ends whatever the verb waits for.
  const CancelScope scope(&interrupted);
  const Status key = ReadKey(options.key, &options.open.key);
  const int code = key.ok() ? verb.run() : Fail(options, key);
  return code != kDone && interrupted ? int{interrupted_code} : code;
}

// Opens /dev/null for missing standard descriptors. Otherwise the next opened
// file would take the place of standard input, output or error, and be written
// to. Messages are lost then; reads and writes of the other two still fail.
void HoldStandardDescriptors() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    if (::open("/dev/null", fd == 1 ? O_RDONLY : O_WRONLY) < 0) return;
  }
}

// Allows as many open files as the system does. Each shard of a checkpoint
// stays open, and the limit that shells set, 1024, is below the number of ranks
// that may have saved one.
void AllowOpenFiles() {
  struct rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

std::string Version() {
  std::string text = "haulway " HAULWAY_VERSION "\nformats:";
  for (const FormatEntry& format : Formats()) {
    text += fmt::format(" {}", format.name);
  }
  return text;
}

int Run(int argc, char** argv) {
  CLI::App app("Inspect, verify, load and convert checkpoints.", "haulway");
  const std::span<char* const> words(argv, static_cast<size_t>(argc));
  const bool is_short =
      std::ranges::find(words, std::string_view("-h")) != words.end();
  app.formatter(std::make_shared<HelpFormatter>(is_short, TerminalWidth()));
  app.set_version_flag("-V,--version", Version());
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 ok, 1 a finding, 2 a failure, 3 nothing matched, 4 a "
      "usage error, 130 interrupted (143 by SIGTERM, 129 by SIGHUP).");
  std::map<const CLI::App*, std::pair<const Verb*, Runner>> runners;
  for (const Verb* verb : kVerbs) {
    CLI::App* part = app.add_subcommand(verb->name, verb->about);
    part->footer(verb->examples);
    if (verb->alias != nullptr) part->alias(verb->alias);
    runners[part] = {verb, verb->add(*part)};
  }

  if (argc < 2) {
    fmt::print("{}", app.help());
    return kDone;
  }
  const auto is_first = [&](const Verb* verb) {
    const std::string_view word = argv[1];
    return word == verb->name ||
           (verb->alias != nullptr && word == verb->alias);
  };
  if (argc > 1 && argv[1][0] != '-' && std::ranges::none_of(kVerbs, is_first)) {
    return FailUsage(argc, argv,
                     fmt::format("no verb '{}'{}", argv[1], Hint(argv[1])));
  }
  const auto refuse = [&](std::string_view what) {
    const bool has_verb = argc > 1 && argv[1][0] != '-';
    return FailUsage(argc, argv,
                     fmt::format("{}; see haulway {}{}--help", what,
                                 has_verb ? argv[1] : "", has_verb ? " " : ""));
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    return app.exit(asked);
  } catch (const CLI::ExtrasError&) {
    return refuse(Unexpected(app));
  } catch (const CLI::ParseError& error) {
    return refuse(error.what());
  }
  const std::string home = UnexpandedHome(app);
  if (!home.empty()) {
    return refuse(
        fmt::format("'{}' begins with '~', which the shell did not "
                    "expand: write it as a word of its own, or "
                    "$HOME",
                    home));
  }
  const auto& [verb, runner] = runners.at(app.get_subcommands().front());
  cancellable = verb->cancels ? 1 : 0;
  std::signal(SIGINT, OnInterrupt);
  for (const int number : {SIGTERM, SIGHUP}) {
    // nohup(1) ignores the second.
    const auto before = std::signal(number, OnInterrupt);
    if (before == SIG_IGN) std::signal(number, SIG_IGN);
  }
  // A write past RLIMIT_FSIZE fails, which the command reports.
  std::signal(SIGXFSZ, SIG_IGN);
  AllowOpenFiles();
  const int code = RunVerb(runner);
  if (!interrupted && verb->tells_unused_names) {
    TellUnusedNames(*runner.options);
  }
  return code;
}

}  // namespace

std::atomic<bool> interrupted = false;

}  // namespace haulway::cli

namespace haulway {

int RunCommand(int argc, char** argv) {
  // "help VERB" is "VERB --help".
  std::vector<char*> words(argv, argv + argc);
  std::string help = "--help";
  if (argc > 1 && std::string_view(argv[1]) == "help") {
    words.erase(words.begin() + 1);
    words.push_back(help.data());
    words.push_back(nullptr);
    argv = words.data();
  }
  cli::HoldStandardDescriptors();
  InstallSigbusGuard();
  // Output that cannot be printed is a failure, whatever it is.
  int cause = 0;
  try {
    const int code = cli::Run(argc, argv);
    errno = 0;
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
    cause = errno;
  } catch (const std::system_error& error) {
    // fmt::print() throws this if it cannot write.
    cause = error.code().value();
  }
  constexpr std::string_view kWhat = "cannot write to standard output";
  cli::Tell(fmt::format(
      "haulway: {}\n", cause == 0 ? std::string(kWhat)
                                  : Status::FromErrno(cause, kWhat).message()));
  return cli::kFailed;
}

}  // namespace haulway

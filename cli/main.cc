#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdlib>
#include <map>
#include <regex>

#include "command.h"
#include "output.h"

namespace haulway::cli {
namespace {

// A second interrupt, or one during a call that cannot be cancelled, ends the
// process at once: no verb leaves anything half written.
volatile std::sig_atomic_t cancellable = 0;
void OnInterrupt(int) {
  if (cancellable == 0 || interrupted.exchange(true)) _exit(kInterrupted);
}

using Verb = int (*)(const Options&);

CLI::App* AddVerb(CLI::App& app, Options& options, const char* name,
                  const char* about, const char* examples) {
  CLI::App* verb = app.add_subcommand(name, about);
  verb->footer(examples);
  verb->add_flag("--json", options.json, "One JSON object on one line");
  verb->add_flag("--bytes", options.bytes, "Exact sizes, not B/KiB/MiB");
  verb->add_flag_callback(
      "--lenient",
      [&options] { options.open.strictness = Strictness::kLenient; },
      "Take what PyTorch itself takes");
  return verb;
}

void AddFile(CLI::App* verb, Options& options, bool many) {
  auto* files =
      verb->add_option("FILE", options.files,
                       many ? "Files, directories, or - for standard input"
                            : "A file, or - for standard input");
  files->required();
  if (!many) files->expected(1);
}

std::string CheckPattern(const std::string& pattern) {
  if (pattern.size() <= 2 || pattern[0] != '/' || pattern.back() != '/') {
    return {};
  }
  try {
    const std::regex compiled(pattern.substr(1, pattern.size() - 2));
    return {};
  } catch (const std::regex_error&) {
    return "not a regular expression: " + pattern;
  }
}

int Run(int argc, char** argv) {
  Options options;
  if (const char* debug = std::getenv("HAULWAY_SERIALIZATION_DEBUG")) {
    options.open.debug_offsets = std::string_view(debug) == "1";
  }
  CLI::App app("Look into, check and load PyTorch checkpoints.", "haulway");
  app.set_version_flag("--version", "haulway " HAULWAY_VERSION
                                    "\nformats: torch torch-legacy torch-tar "
                                    "torchscript torch-package");
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 ok, 1 something was found, 2 could not do it, "
      "3 nothing matched, 4 usage, 130 interrupted.");
  std::map<CLI::App*, Verb> verbs;

  CLI::App* ls = AddVerb(app, options, "ls", "List tensors",
                         "haulway ls model.pt --include 'layers.0.*'\n"
                         "haulway ls model.pt --exclude '/bias$/' --json");
  ls->add_option("--include", options.include, "Glob or /regex/; repeatable")
      ->expected(1)
      ->take_all()
      ->check(CheckPattern);
  ls->add_option("--exclude", options.exclude, "The same; exclude wins")
      ->expected(1)
      ->take_all()
      ->check(CheckPattern);
  ls->add_flag("--natural", options.natural, "Sort by name, 2 before 10");
  AddFile(ls, options, true);
  verbs[ls] = Ls;

  CLI::App* info = AddVerb(app, options, "info", "Describe a checkpoint",
                           "haulway info model.pt");
  AddFile(info, options, false);
  verbs[info] = Info;

  CLI::App* cat =
      AddVerb(app, options, "cat", "Print a tensor, or write it to a file",
              "haulway cat model.pt layer.0.weight --slice 0:4,:\n"
              "haulway cat model.pt layer.0.weight --out weight.npy\n"
              "haulway cat model.pt layer.0.weight --raw | sha256sum");
  cat->add_option_function<std::string>(
         "FILE",
         [&options](const std::string& file) { options.files = {file}; },
         "A file, or - for standard input")
      ->required();
  cat->add_option("TENSOR", options.tensor, "A name as ls prints it")
      ->required();
  cat->add_option("--slice", options.slice, "Part of it, as NumPy slices");
  cat->add_option("--out", options.out,
                  "A file to write: .npy, or anything else for raw bytes");
  cat->add_flag("--raw", options.raw, "Raw bytes to standard output");
  verbs[cat] = CatTensor;

  CLI::App* verify =
      AddVerb(app, options, "verify", "Check structure and every checksum",
              "haulway verify checkpoints/ --lenient");
  verify->add_flag("-q,--quiet", options.quiet, "Print failures only");
  AddFile(verify, options, true);
  verbs[verify] = VerifyFiles;

  CLI::App* scan = AddVerb(app, options, "scan",
                           "List what the pickles name; execute nothing",
                           "haulway scan downloaded.pt -v");
  scan->add_flag("-v,--verbose", options.verbose,
                 "Every mention, and how often each opcode stands");
  AddFile(scan, options, true);
  verbs[scan] = ScanFiles;

  CLI::App* load =
      AddVerb(app, options, "load", "Load every storage into memory, timed",
              "haulway load model.pt --io read --repeat 3");
  load->add_option("--io", options.io, "auto, view or read")
      ->transform(CLI::Transformer(
          std::map<std::string, IoMode>{{"auto", IoMode::kAuto},
                                        {"view", IoMode::kView},
                                        {"read", IoMode::kRead}}));
  load->add_option("--repeat", options.repeat, "Times to load it")
      ->check(CLI::PositiveNumber);
  load->add_flag("--verify", options.verify, "Check CRC-32s while loading");
  AddFile(load, options, false);
  verbs[load] = LoadFile;

  for (CLI::App* verb : {verify, load}) {
    verb->add_option("--threads", options.threads, "0: as many as there are")
        ->check(CLI::NonNegativeNumber);
    verb->add_flag("--no-progress", options.no_progress, "No progress line");
  }

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "haulway: {}\n", Escape(error.what()));
    return kUsage;
  }
  CLI::App* verb = app.get_subcommands().front();
  cancellable = verb == load ? 1 : 0;
  std::signal(SIGINT, OnInterrupt);
  return verbs.at(verb)(options);
}

}  // namespace

std::atomic<bool> interrupted = false;

}  // namespace haulway::cli

int main(int argc, char** argv) { return haulway::cli::Run(argc, argv); }

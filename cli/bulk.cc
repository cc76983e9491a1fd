// The command line of this verb; the Python package has the other half
// (python/haulway/_bulk).
//
// This file defines the command line, so that help, completion, the manual and
// usage messages are made as for all verbs. Python does the work, because it
// has the processes, ray and dask: this process replaces itself with a Python
// that gets the request as an argument. HAULWAY_PYTHON names that Python. The
// command of the Python package sets the variable to its own Python; the
// program of the other packages uses `python3` by default.
//
// Alternative not taken: a process pool in C++. It would be a second
// implementation of the journal and of all verbs, for one of three engines.

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "command.h"
#include "field_options.h"
#include "haulway/convert.h"
#include "haulway/save.h"
#include "output.h"
#include "signature.h"

namespace haulway::cli {
namespace {

struct BulkVerbOptions : Options {
  std::string verb;
  std::string engine = "local";
  std::string journal, out;
  int jobs = 0;
  bool quiet = false;
  // Groups with the options of VERB. Python gets their values as typed.
  std::vector<const CLI::App*> groups;
  std::string format, dtype;
  std::vector<std::string> rename;
  bool proof = false;
  // Used only for its options; Python converts.
  ConvertOptions convert;
  SignatureOptions signature;
};

// Arguments: the request; a message and a line of JSON for a Python without the
// package; the journal; the folder to write to; the inputs. The empty entry of
// sys.path is removed because the current folder may hold other modules.
constexpr const char* kProgram =
    "import sys\n"
    "sys.path[:] = filter(None, sys.path)\n"
    "try:\n"
    "    from haulway._bulk.command import main\n"
    "except ModuleNotFoundError as error:\n"
    "    if not (error.name or '').startswith('haulway'):\n"
    "        raise\n"
    "    sys.stderr.write(sys.argv[2])\n"
    "    sys.stdout.write(sys.argv[3])\n"
    "    sys.exit(2)\n"
    "main(sys.argv[1], *sys.argv[4:6], sys.argv[6:])\n";

// Adds the options that were given, by name: a flag as true, others as lists of
// strings.
void AddGiven(const CLI::App& part, Json* json) {
  for (const CLI::Option* option : part.get_options()) {
    if (option->count() == 0 || option->get_lnames().empty()) continue;
    const std::string& name = option->get_lnames().front();
    // RequestOf() adds headers and adapters; the path is an argument of its
    // own.
    if (name == "header" || name == "lora" || name == "out") continue;
    json->Key(name);
    if (option->get_expected_max() == 0) {
      json->Raw("true");
      continue;
    }
    json->Begin('[');
    for (const std::string& text : option->results()) json->Text(text);
    json->End(']');
  }
}

std::string RequestOf(const BulkVerbOptions& options) {
  Json json;
  json.Begin('{').Key("version").Text(HAULWAY_VERSION);
  json.Key("verb").Text(options.verb).Key("engine").Text(options.engine);
  json.Key("jobs").Value(options.jobs).Key("json").Value(options.json);
  json.Key("bytes").Value(options.bytes).Key("quiet").Value(options.quiet);
  json.Key("no_progress").Value(options.no_progress);
  json.Key("headers").Begin('[');
  for (const HttpHeader& header : Remote().headers) {
    json.Text(header.name + ":" + header.value);
  }
  json.End(']').Key("options").Begin('{');
  for (const CLI::App* group : options.groups) AddGiven(*group, &json);
  if (!options.open.lora.empty()) {
    json.Key("lora").Begin('[');
    for (const LoraAdapter& adapter : options.open.lora) {
      json.Text(adapter.path).Text(fmt::format("{}", adapter.weight));
    }
    json.End(']');
  }
  return json.End('}').End('}').text();
}

// The error if there is no Python, or if that Python lacks the package.
Status NoPackage(const std::string& python, std::string_view why) {
  return Status(
      Code::kUnsupported,
      fmt::format("bulk needs the Python package, and {} {}: expected "
                  "the wheel of this release there (no index has "
                  "it), or HAULWAY_PYTHON to name a Python that has "
                  "it",
                  python, why));
}

std::string ErrorLine(const Status& status) {
  Json json;
  json.Begin('{').Key("error").Begin('{');
  json.Key("code").Text(CodeName(status.code()));
  json.Key("message").Text(status.message()).Key("byte").Raw("null");
  return json.End('}').End('}').text() + "\n";
}

int RunBulk(const BulkVerbOptions& options) {
  const char* const named = std::getenv("HAULWAY_PYTHON");
  const std::string python =
      named != nullptr && *named != '\0' ? named : "python3";
  const Status missing = NoPackage(python, "does not have it");
  std::vector<std::string> words = {
      python,
      "-c",
      kProgram,
      RequestOf(options),
      fmt::format("haulway: {}\n", Escape(missing.message())),
      options.json ? ErrorLine(missing) : "",
      options.journal,
      options.out};
  words.insert(words.end(), options.files.begin(), options.files.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  // Keeps the current folder out of the workers' sys.path too.
  ::setenv("PYTHONSAFEPATH", "1", 1);
  std::fflush(nullptr);
  // While Python starts, an interrupt would end it with a traceback. It waits
  // until the package's main() answers it.
  sigset_t interrupt;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  ::sigprocmask(SIG_BLOCK, &interrupt, nullptr);
  ::execvp(python.c_str(), argv.data());
  if (errno == E2BIG) {
    return Fail(options, Status(Code::kInvalidArgument,
                                "too many inputs for one command line: "
                                "expected a list of them, @FILE or -"));
  }
  return Fail(options, NoPackage(python, fmt::format("cannot be started: {}",
                                                     std::strerror(errno))));
}

void AddConvert(CLI::App& app, BulkVerbOptions& options) {
  CLI::App* const part = app.add_option_group("For convert");
  options.groups.push_back(part);
  part->add_option("-o,--out", options.out,
                   "Folder or URL that the new files are written to")
      ->check(CheckFileToWrite);
  AddTo(*part, &options.format, "Format of the new files");
  AddDType(*part, &options.dtype);
  AddList(*part, "--rename", options.rename,
          "REGEX=REPLACEMENT for names of tensors; repeatable");
  AddFields(*part, &options.convert,
            {"alignment", "verify", "threads", "memory_budget", "resume"});
  AddRaw(*part, options);
  part->add_flag("--proof", options.proof,
                 "Compare the SHA-256 of every tensor before and after");
}

Runner AddBulk(CLI::App& app) {
  const auto options = MakeOptions<BulkVerbOptions>(app);
  OneOf(app.add_option("VERB", options->verb,
                       "scan, verify, manifest, convert or info"),
        {"scan", "verify", "manifest", "convert", "info"})
      ->required();
  app.add_option("INPUT", options->files,
                 "Files, folders, globs, URLs, @FILE for the names in a file, "
                 "or - for names on standard input")
      ->required();
  OneOf(app.add_option(
            "--engine", options->engine,
            "local: processes on this machine; ray or dask: a cluster"),
        {"local", "ray", "dask"});
  app.add_option("--journal", options->journal,
                 "File that records what is done; a run that was stopped goes "
                 "on with it");
  app.add_option("--jobs", options->jobs,
                 "Number of inputs at a time; default: one per processor")
      ->check(CheckPositive);
  app.add_flag("-q,--quiet", options->quiet,
               "Print only inputs with a finding or a failure");
  AddBytes(app, *options);
  AddProgress(app, *options);
  // Python gets the options in groups as they were given.
  CLI::App* const passed = app.add_option_group("Reading");
  AddFields(*passed, &options->open,
            {"part", "weights", "replicas", "split_layers"});
  AddAllow(*passed, *options);
  CLI::App* const chosen =
      app.add_option_group("For verify, manifest, convert and info");
  AddFields(*chosen, &options->open, {"lenient", "alone"});
  CLI::App* const computed =
      app.add_option_group("For manifest, convert and info");
  AddDequantize(*computed, *options);
  CLI::App* const signatures = app.add_option_group("For verify");
  AddSignature(*signatures, &options->signature);
  signatures->get_option("--signature")
      ->description(
          "Verify each folder that has a file of this name, as a model that it "
          "signs, and refuse other checkpoints");
  CLI::App* const tensors = app.add_option_group("For manifest and convert");
  AddFilters(*tensors, *options);
  tensors->remove_option(tensors->get_option("--prefix"));
  AddMemoryBudget(*tensors, *options);
  AddKey(app, *options);
  AddRemote(app);
  for (const CLI::App* group : app.get_subcommands(nullptr)) {
    options->groups.push_back(group);
  }
  AddConvert(app, *options);
  return {options, [options] { return RunBulk(*options); }};
}

}  // namespace

extern const Verb kBulk = {
    "bulk",
    "Run a verb on any number of inputs, by many processes (Python package)",
    "haulway bulk verify checkpoints/ --journal run.jsonl\n"
    "haulway bulk scan s3://bucket/models/ --engine ray --json\n"
    "haulway bulk verify models/ --signature model.sig --public-key key.pub\n"
    "haulway bulk convert @list.txt --to safetensors -o converted/",
    AddBulk};

}  // namespace haulway::cli

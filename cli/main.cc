#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "command.h"
#include "haulway/format.h"
#include "haulway/select.h"
#include "haulway/source.h"
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

void AddAllow(CLI::App* verb, Options& options) {
  verb->add_option("--allow", options.open.allowed_globals,
                   "MODULE.NAME that pickles may hold, as data; repeatable")
      ->type_name("NAME")
      ->expected(1)
      ->take_all()
      ->check([](const std::string& name) {
        const size_t dot = name.rfind('.');
        if (dot != name.npos && dot != 0 && dot + 1 < name.size()) {
          return std::string();
        }
        return "expected MODULE.NAME: " + name;
      });
}

void AddKey(CLI::App* verb, Options& options, bool required) {
  auto* where = verb->add_option_group("Key");
  where->add_option("--keyfile", options.key.keyfile,
                    "A file of 32 bytes, or of 64 hexadecimal digits");
  where->add_option("--passphrase-file", options.key.passphrase_file,
                    "A file with the passphrase");
  where->add_option("--key-env", options.key.key_env,
                    "An environment variable of 64 hexadecimal digits");
  where->require_option(required ? 1 : 0, 1);
}

std::string CheckPattern(const std::string& pattern) {
  return std::string(
      NameFilter::Make({.include = {{pattern}}}).status().message());
}

void AddFilters(CLI::App* verb, Options& options) {
  verb->add_option("--include", options.include, "Glob or /regex/; repeatable")
      ->expected(1)
      ->take_all()
      ->check(CheckPattern);
  verb->add_option("--exclude", options.exclude, "The same; exclude wins")
      ->expected(1)
      ->take_all()
      ->check(CheckPattern);
  verb->add_option("--prefix", options.prefix,
                   "Only names that begin so; patterns see what follows");
}

// RANK/WORLD or RANK/WORLD/DIM.
std::optional<ShardOptions> ParseShard(const std::string& text) {
  ShardOptions shard;
  const char* at = text.data();
  const char* const end = at + text.size();
  int read = 0;
  for (int64_t* number : {&shard.rank, &shard.world, &shard.dim}) {
    const auto [rest, error] = std::from_chars(at, end, *number);
    if (error != std::errc()) return std::nullopt;
    ++read;
    at = rest;
    if (at == end) break;
    if (*at++ != '/') return std::nullopt;
  }
  if (at != end || read < 2 || !CheckShard(shard).ok()) return std::nullopt;
  return shard;
}

std::string CheckPair(const std::string& text) {
  const size_t at = text.find('=');
  if (at != text.npos && at != 0) return {};
  return "expected two parts with a '=' between them: " + text;
}

// Empty if it is a number of threads that some machine may run.
std::string CheckThreads(const std::string& text) {
  constexpr unsigned kMost = 65535;
  unsigned number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc() && stop == end && number <= kMost) return {};
  return fmt::format("expected a number from 0 to {}: {}", kMost, text);
}

void AddSize(CLI::App* verb, const char* name, uint64_t* bytes,
             const char* about) {
  verb->add_option_function<std::string>(
          name,
          [name, bytes](const std::string& text) {
            const auto size = ParseSize(text);
            if (!size.has_value() || *size == 0) {
              throw CLI::ValidationError(
                  name, "expected a size like 5GB or 512MiB, found " + text);
            }
            *bytes = *size;
          },
          about)
      ->type_name("SIZE");
}

// Empty if it is a power of two that the zip container can keep.
std::string CheckAlignment(const std::string& text) {
  for (uint64_t power = 1; power <= 32768; power *= 2) {
    if (text == std::to_string(power)) return {};
  }
  return "expected a power of two up to 32768: " + text;
}

// The number of insertions, removals and replacements between two words.
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

std::string Hint(const CLI::App& app, std::string_view word) {
  std::string best;
  size_t least = 3;  // Further away is no slip of the finger.
  for (const CLI::App* verb : app.get_subcommands({})) {
    const size_t distance = Distance(word, verb->get_name());
    if (distance >= least) continue;
    least = distance;
    best = verb->get_name();
  }
  return best.empty() ? "; haulway --help lists them"
                      : fmt::format("; did you mean '{}'?", best);
}

// Says what is wrong with the command line, in JSON too if that was asked for.
int FailUsage(int argc, char** argv, std::string_view what) {
  Options options;
  const std::span<char* const> words(argv, static_cast<size_t>(argc));
  options.json = std::ranges::any_of(words, [](const char* word) {
    return std::string_view(word) == "--json";
  });
  (void)Fail(options, Status(Code::kInvalidArgument, what));
  return kUsage;
}

// Runs the verb; what could not be printed is a failure too.
int RunVerb(Verb verb, Options& options) {
  int code = kFailed;
  try {
    const Status key = ReadKey(options.key, &options.open.key);
    code = key.ok() ? verb(options) : Fail(options, key);
    if (std::fflush(stdout) == 0) return code;
  } catch (const std::system_error&) {
    // fmt::print() throws this when it cannot write.
  }
  fmt::print(stderr, "haulway: cannot write to standard output\n");
  return kFailed;
}

std::string Version() {
  std::string text = "haulway " HAULWAY_VERSION "\nformats:";
  for (const FormatEntry& format : Formats()) {
    text += fmt::format(" {}", format.name);
  }
  return text;
}

int Run(int argc, char** argv) {
  Options options;
  if (const char* debug = std::getenv("HAULWAY_SERIALIZATION_DEBUG")) {
    options.open.debug_offsets = std::string_view(debug) == "1";
  }
  CLI::App app("Look into, check and load checkpoints.", "haulway");
  app.set_version_flag("--version", Version());
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 ok, 1 something was found, 2 could not do it, "
      "3 nothing matched, 4 usage, 130 interrupted.");
  std::map<CLI::App*, Verb> verbs;

  CLI::App* ls = AddVerb(app, options, "ls", "List tensors",
                         "haulway ls model.pt --include 'layers.0.*'\n"
                         "haulway ls model.pt --exclude '/bias$/' --json");
  AddFilters(ls, options);
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
  cat->add_flag("--raw", options.raw,
                "Raw bytes to standard output; also of a record: data.pkl");
  verbs[cat] = CatTensor;

  CLI::App* verify =
      AddVerb(app, options, "verify", "Check structure and every checksum",
              "haulway verify checkpoints/ --lenient");
  verify->add_flag("-q,--quiet", options.quiet, "Print failures only");
  AddFile(verify, options, true);
  verbs[verify] = VerifyFiles;

  CLI::App* scan = AddVerb(app, options, "scan",
                           "Say whether files would run code in torch, pickle, "
                           "joblib or NumPy; run nothing",
                           "haulway scan downloaded.pt -v\n"
                           "haulway scan models/ --allow mymodel.Config\n"
                           "Exit codes: 0 SAFE, 1 UNSAFE, 2 UNKNOWN; of "
                           "several files the worst.");
  scan->add_flag("-v,--verbose", options.verbose,
                 "Every mention, and how often each opcode stands");
  AddFile(scan, options, true);
  verbs[scan] = ScanFiles;

  CLI::App* load = AddVerb(app, options, "load",
                           "Bring every byte to memory, piece by piece, timed",
                           "haulway load model.pt --io pread --repeat 3");
  load->add_option_function<std::string>(
          "--io",
          [&options](const std::string& text) {
            static const std::map<std::string, IoMode> modes = {
                {"auto", IoMode::kAuto},   {"mmap", IoMode::kMmap},
                {"pread", IoMode::kPread}, {"direct", IoMode::kDirect},
                {"uring", IoMode::kUring}, {"snapshot", IoMode::kSnapshot},
            };
            const auto mode = modes.find(text);
            if (mode == modes.end()) {
              throw CLI::ValidationError("--io",
                                         "expected auto, mmap, pread, direct, "
                                         "uring or snapshot, found " +
                                             text);
            }
            options.io = mode->second;
          },
          "auto, mmap, pread, direct, uring or snapshot")
      ->type_name("MODE");
  load->add_option("--repeat", options.repeat, "Times to load it")
      ->check(CLI::PositiveNumber);
  load->add_flag("--verify", options.verify, "Check checksums while loading");
  AddFilters(load, options);
  AddFile(load, options, false);
  verbs[load] = LoadFile;

  CLI::App* plan = AddVerb(
      app, options, "plan", "Say what loading would read, and read nothing",
      "haulway plan model.pt --include 'layers.0.*'\n"
      "haulway plan model.pt --slice layer.0.weight=0:128,: --json\n"
      "haulway plan model.pt --shard 1/8");
  plan->add_option("--slice", options.slices,
                   "NAME=SLICE: only that part of a tensor; repeatable")
      ->expected(1)
      ->take_all();
  plan->add_option_function<std::string>(
          "--shard",
          [&options](const std::string& text) {
            options.shard = ParseShard(text);
            if (!options.shard.has_value()) {
              throw CLI::ValidationError(
                  "--shard",
                  "expected RANK/WORLD or RANK/WORLD/DIM, found " + text);
            }
          },
          "RANK/WORLD[/DIM]: that part of each tensor; DIM is 0 by default")
      ->type_name("PART");
  AddFilters(plan, options);
  AddFile(plan, options, false);
  verbs[plan] = PlanFile;

  CLI::App* repack =
      AddVerb(app, options, "repack",
              "Write a PyTorch checkpoint anew, as torch.save lays it out",
              "haulway repack old.pt new.pt --compact\n"
              "haulway repack model.pt model.pt --align 4096");
  repack
      ->add_option_function<std::string>(
          "FILE",
          [&options](const std::string& file) { options.files = {file}; },
          "A file, or - for standard input")
      ->required();
  repack->add_option("OUT", options.out, "The file to write; may be FILE")
      ->required();
  repack
      ->add_option("--align", options.alignment,
                   "Of tensors in the file: a power of two up to 32768")
      ->check(CheckAlignment);
  repack->add_flag("--no-crc", options.no_crc, "Leave checksums out");
  repack->add_flag("--compact", options.compact,
                   "Drop bytes that no tensor uses");
  repack->add_flag("--no-sync", options.no_sync,
                   "Do not wait until the disk has it");
  verbs[repack] = RepackFile;

  CLI::App* convert =
      AddVerb(app, options, "convert",
              "Write the tensors of a checkpoint in another format",
              "haulway convert model.pt model.safetensors\n"
              "haulway convert model.pt model.safetensors --dtype bf16 "
              "--shard 5GB\n"
              "haulway convert m.pt m.tensors --rename '^module\\.=' "
              "--proof sha256.json");
  convert
      ->add_option_function<std::string>(
          "SRC",
          [&options](const std::string& file) { options.files = {file}; },
          "A file, or - for standard input")
      ->required();
  convert->add_option("DST", options.out, "The file to write")->required();
  convert->add_option("--to", options.format,
                      "The format; by default what DST ends as");
  convert->add_option("--dtype", options.dtype,
                      "Cast floating-point tensors to this: bf16, F32, ...");
  AddFilters(convert, options);
  convert
      ->add_option("--rename", options.rename,
                   "REGEX=REPLACEMENT, \\1 for a group; repeatable")
      ->expected(1)
      ->take_all()
      ->check(CheckPair);
  AddSize(convert, "--shard", &options.shard_bytes,
          "Several files of so many bytes at most, and an index");
  convert
      ->add_option("--ties", options.ties,
                   "Tensors that share memory: keep, drop, copy or error")
      ->check(CLI::IsMember({"keep", "drop", "copy", "error"}));
  convert->add_flag("--compact", options.compact,
                    "Drop bytes that no tensor uses");
  convert->add_option("--proof", options.proof,
                      "Compare SHA-256 of every tensor before and after, and "
                      "write them to this file");
  AddSize(convert, "--memory-budget", &options.memory_budget,
          "Memory to work in, by default 256MiB");
  convert->add_flag("--no-sync", options.no_sync,
                    "Do not wait until the disk has it");
  verbs[convert] = ConvertFile;

  CLI::App* encrypt =
      AddVerb(app, options, "encrypt", "Write a tensorizer file encrypted",
              "haulway encrypt model.tensors secret.tensors --keyfile key");
  CLI::App* decrypt =
      AddVerb(app, options, "decrypt", "Write an encrypted file plainly",
              "haulway decrypt secret.tensors model.tensors --keyfile key");
  for (CLI::App* verb : {encrypt, decrypt}) {
    verb->add_option_function<std::string>(
            "FILE",
            [&options](const std::string& file) { options.files = {file}; },
            "A file, or - for standard input")
        ->required();
    verb->add_option("OUT", options.out, "The file to write")->required();
    AddKey(verb, options, /*required=*/true);
  }
  auto* authenticate = encrypt->add_flag(
      "--authenticate", options.authenticate,
      "Protect names, types, shapes and order from changes: the default, but "
      "for files in segments, which cannot");
  encrypt
      ->add_flag("--no-authenticate", options.no_authenticate,
                 "Leave out what protects them")
      ->excludes(authenticate);
  verbs[encrypt] = Encrypt;
  verbs[decrypt] = Decrypt;

  CLI::App* edit = AddVerb(
      app, options, "edit", "Change a tensorizer file in segments in place",
      "haulway edit model.tensors --append lora.safetensors\n"
      "haulway edit model.tensors --rename wte.weight=embed.weight\n"
      "haulway edit model.tensors --set step=1200 --unset draft");
  edit->add_option("--append", options.append,
                   "A checkpoint whose tensors to append; repeatable")
      ->expected(1)
      ->take_all();
  edit->add_option("--rename", options.rename, "OLD=NEW; repeatable")
      ->expected(1)
      ->take_all()
      ->check(CheckPair);
  edit->add_option("--set", options.set, "KEY=VALUE of metadata; repeatable")
      ->expected(1)
      ->take_all()
      ->check(CheckPair);
  edit->add_option("--unset", options.unset, "KEY of metadata; repeatable")
      ->expected(1)
      ->take_all();
  edit->add_flag("--move", options.move,
                 "Insert no blocks; what others have open stays in place");
  edit->add_flag("--no-sync", options.no_sync,
                 "Do not wait until the disk has it");
  edit->add_option("--threads", options.threads, "0: as many as there are")
      ->check(CheckThreads);
  AddFile(edit, options, false);
  verbs[edit] = EditFile;
  for (CLI::App* verb : {ls, info, cat, verify, load, edit, convert}) {
    AddKey(verb, options, /*required=*/false);
  }
  for (CLI::App* verb :
       {ls, info, cat, verify, scan, load, plan, repack, convert}) {
    AddAllow(verb, options);
  }

  CLI::App* arena =
      AddVerb(app, options, "arena", "Show shared memory that is in use",
              "haulway arena ls --json\n"
              "haulway arena sweep");
  arena
      ->add_option("ACTION", options.action,
                   "ls: all of it; sweep: what the dead left, if anything")
      ->required()
      ->check(CLI::IsMember({"ls", "sweep"}));
  verbs[arena] = ShowArenas;

  for (CLI::App* verb : {verify, load, encrypt, decrypt, repack, convert}) {
    verb->add_option("--threads", options.threads, "0: as many as there are")
        ->check(CheckThreads);
    verb->add_flag("--no-progress", options.no_progress, "No progress line");
  }

  const auto is_first = [&](const CLI::App* verb) {
    return verb->get_name() == argv[1];
  };
  if (argc > 1 && argv[1][0] != '-' &&
      std::ranges::none_of(app.get_subcommands({}), is_first)) {
    return FailUsage(
        argc, argv, fmt::format("no verb '{}'{}", argv[1], Hint(app, argv[1])));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    const bool has_verb = argc > 1 && argv[1][0] != '-';
    return FailUsage(argc, argv,
                     fmt::format("{}; see haulway {}{}--help", error.what(),
                                 has_verb ? argv[1] : "", has_verb ? " " : ""));
  }
  CLI::App* verb = app.get_subcommands().front();
  const bool cancels = verb == load || verb == encrypt || verb == decrypt ||
                       verb == repack || verb == convert;
  cancellable = cancels ? 1 : 0;
  std::signal(SIGINT, OnInterrupt);
  return RunVerb(verbs.at(verb), options);
}

}  // namespace

std::atomic<bool> interrupted = false;

}  // namespace haulway::cli

int main(int argc, char** argv) {
  haulway::InstallSigbusGuard();
  return haulway::cli::Run(argc, argv);
}

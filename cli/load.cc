#include "haulway/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <vector>

#include "command.h"
#include "field_options.h"
#include "no_match.h"
#include "output.h"
#include "progress.h"
#include "signature.h"

namespace haulway::cli {
namespace {

struct LoadVerbOptions : Options {
  LoadOptions load;
  int repeat = 1;
};

// Small enough that a piece stays in the cache while it is checked.
constexpr uint64_t kPieceBytes = 1 * kMiB;

// Reads every byte and discards it, so memory is needed only for the pieces in
// flight. Modes that map the file map it.
Result<LoadStats> Load(const Checkpoint& checkpoint,
                       std::span<const uint32_t> rows,
                       const LoadOptions& options) {
  if (options.io == IoMode::kMmap || options.io == IoMode::kSnapshot ||
      OpenedSigned() != nullptr) {
    HAULWAY_ASSIGN(auto loaded, LoadStorages(checkpoint, rows, options));
    return loaded.stats;
  }
  // Requests to a server cost more than cache misses, so the pieces are larger.
  const bool is_server = checkpoint.source().Look({}).is_server();
  return LoadPieces(checkpoint, rows, options,
                    is_server ? options.chunk_bytes
                              : std::min(kPieceBytes, options.chunk_bytes),
                    [](const Piece&) { return Status(); });
}

// Returns the storages of the selected tensors; all if there is no filter.
std::vector<uint32_t> StoragesOf(const CheckpointIndex& index,
                                 const NameFilter& names) {
  std::vector<bool> wanted(index.storages.size(), names.all());
  for (const Entry& entry : index.entries) {
    const uint32_t row = index.tensors[entry.tensor].storage;
    if (row != kNoStorage && names.Matches(entry.name)) wanted[row] = true;
  }
  std::vector<uint32_t> rows;
  for (uint32_t row = 0; row < wanted.size(); ++row) {
    if (wanted[row]) rows.push_back(row);
  }
  return rows;
}

int LoadFile(const LoadVerbOptions& options) {
  const std::string& file = options.files.front();
  TakeSignature();
  LoadOptions load = options.load;
  const auto io = IoOfSigned(&load.io);
  if (!io.ok()) return Fail(options, io.status());
  Result<std::shared_ptr<const ByteSource>> source =
      OpenModel(options, file, *io);
  if (!source.ok()) return Fail(options, source.status());
  const auto checkpoint = OpenChosen(*source, options.open, options);
  if (!checkpoint.ok()) return Fail(options, checkpoint.status());
  const auto names = NameFilter::Make(NamesOf(options));
  if (!names.ok()) return Fail(options, names.status());
  const Status used = names->CheckUsed({checkpoint->get()});
  if (!used.ok()) return Fail(options, used);
  const std::vector<uint32_t> rows = StoragesOf((*checkpoint)->index(), *names);
  const bool is_empty = !names->all() && rows.empty();

  const auto start = std::chrono::steady_clock::now();
  const Status compared =
      CompareSigned(names->all() ? SignatureScope::kAll : SignatureScope::kRead,
                    options.load.threads);
  if (!compared.ok()) return Fail(options, compared);
  load.cancel = &interrupted;
  load.retries = Remote().retries;
  for (int round = 0; round < options.repeat; ++round) {
    load.progress = Progress(file, options.no_progress);
    const auto loaded = Load(*checkpoint.value(), rows, load);
    if (!loaded.ok()) return Fail(options, loaded.status());
    LoadStats stats = loaded.value();
    const bool is_signed = OpenedSigned() != nullptr;
    if (is_signed && round == 0) {  // With the time of comparing.
      stats.seconds = std::chrono::duration<double>(
                          std::chrono::steady_clock::now() - start)
                          .count();
    }
    const double rate = static_cast<double>(stats.tensor_bytes) / 1e9 /
                        (stats.seconds > 0 ? stats.seconds : 1);
    if (options.json) {
      Json json;
      json.Begin('{').Key("file").Text(ShownName(file)).Fields(stats);
      json.End('}').Print();
    } else if (is_signed) {
      fmt::print(
          "{} in {:.4f} s, {:.2f} GB/s, compared with the signature of "
          "{} ({})\n",
          Size(stats.tensor_bytes, options.bytes), stats.seconds, rate,
          Escape(OpenedSigned()->facts().signer),
          Counted(rows.size(), "storage"));
    } else if (stats.read_bytes == 0 &&
               (stats.io == IoMode::kMmap || stats.io == IoMode::kSnapshot)) {
      // Nothing was copied, so there is no throughput to print.
      fmt::print("{} mapped in {:.4f} s, nothing copied{} ({}, {})\n",
                 Size(stats.tensor_bytes, options.bytes), stats.seconds,
                 options.load.verify
                     ? fmt::format("; every CRC-32 checked, {:.2f} GB/s", rate)
                     : "",
                 Counted(rows.size(), "storage"), Name(stats.io));
    } else {
      fmt::print("{} in {:.4f} s, {:.2f} GB/s ({}, {}, {}, {})\n",
                 Size(stats.tensor_bytes, options.bytes), stats.seconds, rate,
                 Counted(rows.size(), "storage"),
                 Counted(stats.requests, "request"),
                 Counted(stats.threads, "thread"), Name(stats.io));
    }
  }
  return is_empty ? NoMatch(file) : kDone;
}

Runner AddLoad(CLI::App& app) {
  const auto options = MakeOptions<LoadVerbOptions>(app);
  AddBytes(app, *options);
  app.add_option("--repeat", options->repeat, "How often to load the file")
      ->check(CheckPositive);
  AddFields(app, &options->load);
  AddFilters(app, *options);
  AddAllow(app, *options);
  AddKey(app, *options);
  AddProgress(app, *options);
  AddModel(app, *options);
  AddSignature(app);
  AddDequantize(app, *options);
  return {options, [options] { return LoadFile(*options); }};
}

}  // namespace

extern const Verb kLoad = {
    "load", "Load every byte into memory, piece by piece, and report the time",
    "haulway load model.pt --io pread --repeat 3\n"
    "haulway load model/ --include 'layers.0.*'",
    AddLoad,
    /*cancels=*/true};

}  // namespace haulway::cli

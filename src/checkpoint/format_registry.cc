// Design: one array of rows, tried in order. A head of 512 bytes distinguishes
// most formats. Where several share a signature (a zip of torch, of
// TorchScript, of NumPy), the row's `confirm` looks inside. All other facts
// about a format, such as its name in messages and its suffixes, also come from
// the row.
//
// Alternatives not taken: opening a file with one reader after another reports
// the first failure, which is mostly not the relevant one. A registry in which
// formats register themselves needs code that runs before main(), and an order.
// If the file belongs to a known other program, the failure names it, because a
// wrong file is the usual cause.

#include "checkpoint/format_registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ascii.h"
#include "base/no_memory.h"
#include "checkpoint/choose_model.h"
#include "checkpoint/sharded_index.h"
#include "checkpoint/sharded_reader.h"
#include "checkpoint/version_chain.h"
#include "checkpoint/whole_model.h"
#include "dcp/dcp_metadata.h"
#include "dcp/dcp_reader.h"
#include "gguf/gguf_reader.h"
#include "gguf/gguf_split.h"
#include "gguf/gguf_writer.h"
#include "haulway/verify.h"
#include "io/model_names.h"
#include "io/stoppable_source.h"
#include "npy/npy_reader.h"
#include "npy/npy_writer.h"
#include "npy/npz_reader.h"
#include "ranks/rank_list.h"
#include "ranks/rank_reader.h"
#include "ranks/zero_reader.h"
#include "safetensors/safetensors_reader.h"
#include "safetensors/safetensors_writer.h"
#include "tensorizer/tensorizer_layout.h"
#include "tensorizer/tensorizer_reader.h"
#include "tensorizer/tensorizer_save.h"
#include "tensorizer/tensorizer_verify.h"
#include "torch/torch_legacy.h"
#include "torch/torch_reader.h"
#include "torch/torch_tar.h"
#include "torch/torch_writer.h"

namespace haulway {

namespace {

constexpr std::array<std::string_view, 4> kTorchSuffixes = {".pt", ".pth",
                                                            ".bin", ".ckpt"};
constexpr std::array<std::string_view, 1> kTensorizerSuffixes = {".tensors"};
constexpr std::array<std::string_view, 1> kSafetensorsSuffixes = {
    ".safetensors"};
constexpr std::array<std::string_view, 1> kGgufSuffixes = {".gguf"};
constexpr std::array<std::string_view, 1> kNpySuffixes = {".npy"};
constexpr std::array<std::string_view, 1> kNpzSuffixes = {".npz"};

constexpr std::array<std::string_view, 1> kTakenByDcp = {"split_layers"};
constexpr std::array<std::string_view, 2> kTakenByRanks = {"part", "replicas"};
constexpr std::array<std::string_view, 2> kTakenByZero = {"part", "weights"};

// For formats whose readers accept trailing bytes.
Result<uint64_t> AnyBytes(const ByteSource&, const ParseLimits&) {
  return UINT64_MAX;
}

constexpr PlaceFunctions kGgufPlace = {
    .get = gguf::SplitOf, .set = gguf::SetSplit, .is_key = gguf::IsOfSplit};

constexpr std::array kFormats = {
    FormatEntry{.id = Format::kTorch,
                .name = "torch",
                .suffixes = kTorchSuffixes,
                .can = {.digests = true,
                        .nested = true,
                        .views = true,
                        .no_data = true},
                .detect = torch::IsZip,
                .confirm = torch::HoldsPickle,
                .open = torch::OpenZip,
                .verify = torch::VerifyZip,
                .lay_out = torch::LayOutTensors},
    FormatEntry{.id = Format::kTorchScript,
                .name = "torchscript",
                .suffixes = {},
                .can = {.digests = true, .views = true},
                .detect = nullptr,
                .open = torch::OpenZip,
                .verify = torch::VerifyZip},
    FormatEntry{.id = Format::kTorchPackage,
                .name = "torch-package",
                .suffixes = {},
                .can = {.digests = true, .nested = true, .views = true},
                .detect = nullptr,
                .open = torch::OpenZip,
                .verify = torch::VerifyZip},
    FormatEntry{.id = Format::kTorchDcp,
                .name = "torch-dcp",
                .suffixes = {},
                .can = {.digests = true, .nested = true},
                .detect = dcp::IsMetadata,
                .open = dcp::OpenDirectory,
                .verify = dcp::VerifyDirectory,
                .takes = kTakenByDcp},
    FormatEntry{.id = Format::kTorchRanks,
                .name = "torch-ranks",
                .suffixes = {},
                .can = {.digests = true, .nested = true, .views = true},
                .detect = ranks::IsTorchList,
                .open = ranks::OpenRanks,
                .verify = ranks::VerifyRanks,
                .takes = kTakenByRanks},
    FormatEntry{.id = Format::kDeepSpeed,
                .name = "deepspeed",
                .suffixes = {},
                .can = {.digests = true, .views = true},
                .detect = ranks::IsDeepSpeedList,
                .open = ranks::OpenZero,
                .verify = ranks::VerifyZero,
                .takes = kTakenByZero},
    FormatEntry{.id = Format::kTorchTar,
                .name = "torch-tar",
                .suffixes = {},
                .can = {.nested = true, .views = true},
                .detect = torch::IsTar,
                .open = torch::OpenTar,
                .verify = torch::VerifyTar},
    FormatEntry{.id = Format::kTorchLegacy,
                .name = "torch-legacy",
                .suffixes = {},
                .can = {.nested = true, .views = true},
                .detect = torch::IsLegacy,
                .open = torch::OpenLegacy,
                .verify = torch::VerifyLegacy},
    FormatEntry{.id = Format::kTensorizer,
                .name = "tensorizer",
                .suffixes = kTensorizerSuffixes,
                .can = {.encrypt = true,
                        .digests = true,
                        .nested = true,
                        .no_data = true,
                        .only_data = true},
                .detect = tensorizer::IsTensorizer,
                .open = tensorizer::OpenTensorizer,
                .verify = tensorizer::VerifyTensorizer,
                .whole_bytes = AnyBytes,
                .lay_out = tensorizer::LayOutTensors},
    FormatEntry{.id = Format::kSafetensors,
                .name = "safetensors",
                .suffixes = kSafetensorsSuffixes,
                .can = {.metadata = true, .only_data = true},
                .detect = safetensors::IsSafetensors,
                .open = safetensors::OpenSafetensors,
                .verify = VerifySafetensorsFile,
                .lay_out = safetensors::LayOutTensors},
    FormatEntry{.id = Format::kSafetensorsDcp,
                .name = "safetensors-dcp",
                .suffixes = {},
                .can = {.metadata = true},
                .detect = nullptr,
                .open = OpenSharded,
                .verify = VerifySharded},
    FormatEntry{.id = Format::kSafetensorsDelta,
                .name = "safetensors-delta",
                .suffixes = {},
                .can = {.digests = true, .metadata = true},
                .detect = nullptr,
                .open = OpenSharded,
                .verify = VerifySharded},
    FormatEntry{.id = Format::kGguf,
                .name = "gguf",
                .suffixes = kGgufSuffixes,
                .can = {.metadata = true, .values = true, .only_data = true},
                .detect = gguf::IsGguf,
                .open = gguf::OpenGguf,
                .verify = gguf::VerifyGguf,
                .whole_bytes = AnyBytes,
                .lay_out = gguf::LayOutTensors,
                .place = &kGgufPlace},
    FormatEntry{.id = Format::kNpy,
                .name = "npy",
                .suffixes = kNpySuffixes,
                .can = {},
                .detect = npy::IsNpy,
                .open = npy::OpenNpy,
                .verify = npy::VerifyNpy,
                .lay_out = npy::LayOutNpy},
    FormatEntry{.id = Format::kNpz,
                .name = "npz",
                .suffixes = kNpzSuffixes,
                .can = {.digests = true},
                .detect = npy::IsNpz,
                .confirm = npy::BeginsWithArray,
                .open = npy::OpenNpz,
                .verify = npy::VerifyNpz,
                .lay_out = npy::LayOutNpz},
};

// The index of a checkpoint in several files of any format.
constexpr FormatEntry kShardedIndex = {.id = Format::kSafetensors,
                                       .name = "index of shards",
                                       .suffixes = {},
                                       .can = {},
                                       .detect = IsShardedIndex,
                                       .open = OpenSharded,
                                       .verify = VerifySharded};

// Signature of the format of the PyTorch 1.0 preview.
constexpr std::string_view kPreviewMagic = "PYTORCH1";

// A file that is often passed by mistake, recognised by the bytes at `at` or,
// if it has no signature, by the suffix of its name.
struct Foreign {
  std::string_view magic;
  std::string_view what;
  size_t at = 0;
  std::string_view suffix = {};
};
constexpr std::string_view kPage =
    "a web page: the download failed, or the URL is that of a folder and lacks "
    "the slash at its end";
constexpr Foreign kForeign[] = {
    {"version https://git-lfs", "a pointer of Git LFS: fetch the file itself"},
    {"<!DOCTYPE", kPage},
    {"<!doctype", kPage},
    {"<html", kPage},
    {"\x89HDF\r\n\x1a\n", "HDF5: read it with h5py, or with Keras"},
    {"\x1f\x8b", "compressed by gzip: decompress it first"},
    {"\x28\xb5\x2f\xfd", "compressed by zstd: decompress it first"},
    {"\xfd\x37zXZ", "compressed by xz: decompress it first"},
    {"BZh", "compressed by bzip2: decompress it first"},
    {"\x80\x02", "a pickle"},
    {"\x80\x03", "a pickle"},
    {"\x80\x04", "a pickle"},
    {"\x80\x05", "a pickle"},
    {"", "ONNX, by its name: read it with the onnx package", 0, ".onnx"},
};

// The name of a zip's first member is at byte 30 (APPNOTE 4.3.7). Keras writes
// this one first; torch puts all members into a folder.
constexpr Foreign kKeras = {
    "metadata.json", "a model of Keras: read it with keras.saving.load_model()",
    30};

// Returns whether `path` ends with `suffix`, without regard to case. A name
// that is only the suffix does not count.
bool EndsWith(std::string_view path, std::string_view suffix) {
  path = path.substr(path.find_last_of('/') + 1);
  return path.size() > suffix.size() &&
         std::ranges::equal(path.substr(path.size() - suffix.size()), suffix,
                            {}, [](char c) { return LowerCase(c); });
}

bool IsOf(const Foreign& foreign, std::span<const std::byte> head,
          std::string_view name) {
  if (!foreign.suffix.empty()) return EndsWith(name, foreign.suffix);
  const std::string_view text(reinterpret_cast<const char*>(head.data()),
                              head.size());
  return text.size() > foreign.at &&
         text.substr(foreign.at).starts_with(foreign.magic);
}

// Returns "it is HDF5: ...; ", or "".
std::string NameForeign(std::span<const std::byte> head,
                        std::string_view name) {
  const std::string_view what = MistakenFor(head, name);
  return what.empty() ? "" : fmt::format("it is {}; ", what);
}

// Returns "torch, torch-tar or tensorizer".
std::string NamesOfDetected() {
  std::string names;
  std::string_view last;
  for (const FormatEntry& format : kFormats) {
    if (format.detect == nullptr) continue;
    if (!last.empty()) {
      names += names.empty() ? "" : ", ";
      names += last;
    }
    last = format.name;
  }
  return fmt::format("{} or {}", names, last);
}

// Returns the report for a part of a model without the others. Fails with any
// other status.
Result<VerifyReport> LacksPart(const ByteSource& part, const Status& status) {
  if (status.code() != Code::kMismatch) return status;
  VerifyReport report;
  report.file = part.name();
  report.file_bytes = part.size();
  report.ok = false;
  report.findings.push_back(
      {status.code(), std::string(status.message()), status.byte()});
  return report;
}

// Sets the number of threads, if the caller did not, to the parallelism of the
// source.
VerifyOptions WithThreads(VerifyOptions options, const ByteSource& source) {
  if (options.threads == 0) options.threads = source.Look({}).parallel;
  return options;
}

}  // namespace

std::string_view MistakenFor(std::span<const std::byte> head,
                             std::string_view name) {
  if (IsOf(kKeras, head, name)) return kKeras.what;
  for (const Foreign& foreign : kForeign) {
    if (IsOf(foreign, head, name)) return foreign.what;
  }
  return {};
}

std::span<const FormatEntry> Formats() { return kFormats; }

const FormatEntry& EntryOf(Format format) {
  const auto* found = std::ranges::find(kFormats, format, &FormatEntry::id);
  assert(found != kFormats.end());
  return *found;
}

Status CheckTaken(const FormatEntry& format, const OpenOptions& options) {
  const std::pair<std::string_view, bool> given[] = {
      {"part", !options.part.empty() && options.part != "model"},
      {"weights", options.weights != OpenOptions().weights},
      {"replicas", options.replicas != OpenOptions().replicas},
      {"split_layers", options.split_layers},
  };
  const auto takes = [](const FormatEntry& entry, std::string_view option) {
    return std::ranges::find(entry.takes, option) != entry.takes.end();
  };
  for (const auto& [option, is_given] : given) {
    if (!is_given || takes(format, option)) continue;
    std::string others;
    for (const FormatEntry& other : kFormats) {
      if (!takes(other, option)) continue;
      others += fmt::format("{}{}", others.empty() ? "" : " or ", other.name);
    }
    return Status(Code::kInvalidArgument,
                  fmt::format("{} files have no option {}: expected {}",
                              format.name, option, others));
  }
  return Status();
}

std::string_view Name(Format format) { return EntryOf(format).name; }

const FormatEntry* FormatBySuffix(std::string_view path) {
  for (const FormatEntry& format : kFormats) {
    for (const std::string_view suffix : format.suffixes) {
      if (EndsWith(path, suffix)) return &format;
    }
  }
  return nullptr;
}

bool IsOfShards(const FormatEntry& format) { return &format == &kShardedIndex; }

Result<const FormatEntry*> DetectFormat(const ByteSource& source,
                                        Strictness strictness) {
  if (EndsWith(source.name(), kDataFileSuffix)) {
    return Status(Code::kUnsupported,
                  "a data file of torch.distributed.checkpoint, which holds "
                  "parts of a checkpoint: open the directory in which it lies, "
                  "or the .metadata there");
  }
  std::array<std::byte, kHeadBytes> block;
  const auto head =
      std::span(block).subspan(0, std::min(source.size(), kHeadBytes));
  HAULWAY_TRY(source.ReadAt(0, head));
  if (head.size() >= kPreviewMagic.size() &&
      std::memcmp(head.data(), kPreviewMagic.data(), kPreviewMagic.size()) ==
          0) {
    return Status(Code::kUnsupported,
                  "file is an unsupported archive format from the preview "
                  "release of PyTorch 1.0");
  }
  std::vector<const FormatEntry*> known;
  const auto consider = [&](const FormatEntry& format) {
    if (format.detect != nullptr && format.detect(head)) {
      known.push_back(&format);
    }
  };
  for (const FormatEntry& format : kFormats) consider(format);
  consider(kShardedIndex);
  if (known.empty() && OpensDirectory(LastPart(source.name()))) {
    return Status(Code::kTruncated,
                  "a directory of torch.distributed.checkpoint whose save did "
                  "not end: this is not the metadata of one");
  }
  if (known.size() > 1) {
    std::erase_if(known, [&](const FormatEntry* format) {
      return format->confirm != nullptr && !format->confirm(source);
    });
  }
  if (known.size() > 1 && strictness == Strictness::kStrict) {
    return Status(Code::kCorrupt,
                  fmt::format("file is of two formats at once, {} and {}, so "
                              "that readers may see different content",
                              known[0]->name, known[1]->name));
  }
  const bool is_keras = !known.empty() && known.front()->id == Format::kTorch &&
                        IsOf(kKeras, head, source.name());
  const FormatEntry* const found =
      known.empty() || is_keras ? nullptr : known.front();
  if (found == nullptr && source.size() == 0) {
    return Status(Code::kTruncated, "file is empty");
  }
  if (found == nullptr) {
    return Status(
        Code::kUnsupported,
        fmt::format("not a checkpoint of a known format: {}expected "
                    "the signature of {}",
                    NameForeign(head, source.name()), NamesOfDetected()));
  }
  return found;
}

Result<VerifyReport> Verify(std::shared_ptr<const ByteSource> source,
                            const VerifyOptions& options) {
  if (source == nullptr) {
    return Status(Code::kInvalidArgument, "source is null");
  }
  const std::string name(source->name());
  if (options.cancel != nullptr) {
    source = MakeStoppableSource(std::move(source), options.cancel);
  }
  const auto run = [&]() -> Result<VerifyReport> {
    const auto found = DetectWhole(source, options.open);
    if (!found.ok()) return LacksPart(*source, found.status());
    HAULWAY_TRY(CheckTaken(*found->format, options.open));
    return found->format->verify(found->source, WithThreads(options, *source));
  };
  auto report = OrNoMemory(run);
  if (!report.ok()) return std::move(report).status().Of(name);
  return report;
}

Result<std::optional<VerifyReport>> VerifyFound(
    std::shared_ptr<const ByteSource> source, const VerifyOptions& options) {
  using Found = std::optional<VerifyReport>;
  const std::string name(source->name());
  const std::string_view last = LastPart(name);
  const bool is_named_so = FormatBySuffix(name) != nullptr ||
                           IsIndexName(last) || OpensDirectory(last);
  const auto run = [&]() -> Result<Found> {
    const auto found = DetectWhole(source, options.open);
    if (!found.ok()) {
      const bool is_none =
          found.status().code() == Code::kUnsupported || source->size() == 0;
      if (is_none && !is_named_so) return Found();
      HAULWAY_ASSIGN(VerifyReport report, LacksPart(*source, found.status()));
      return Found(std::move(report));
    }
    if (IsOfShards(*found->format)) {
      return VerifyIndexAlone(*found->source, is_named_so, options);
    }
    auto report =
        found->format->verify(found->source, WithThreads(options, *source));
    if (!report.ok()) return std::move(report).status();
    // Many formats are also a zip or a tar.
    const bool is_foreign = !is_named_so && !ForeignBySuffix(name).empty();
    if (!report->ok && is_foreign) return Found();
    return Found(*std::move(report));
  };
  auto report = OrNoMemory(run);
  if (!report.ok()) return std::move(report).status().Of(name);
  return report;
}

}  // namespace haulway

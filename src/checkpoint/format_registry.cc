#include "checkpoint/format_registry.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "base/no_memory.h"
#include "safetensors/safetensors_reader.h"
#include "safetensors/sharded_index.h"
#include "tensorizer/tensorizer_layout.h"
#include "tensorizer/tensorizer_reader.h"
#include "tensorizer/tensorizer_verify.h"
#include "torch/torch_legacy.h"
#include "torch/torch_reader.h"
#include "torch/torch_tar.h"

namespace haulway {

namespace {

constexpr std::array kFormats = {
    FormatEntry{torch::IsZip, torch::OpenZip, torch::VerifyZip, torch::ScanZip},
    FormatEntry{torch::IsTar, torch::OpenTar, torch::VerifyTar, torch::ScanTar},
    FormatEntry{torch::IsLegacy, torch::OpenLegacy, torch::VerifyLegacy,
                torch::ScanLegacy},
    FormatEntry{tensorizer::IsTensorizer, tensorizer::OpenTensorizer,
                tensorizer::VerifyTensorizer, tensorizer::ScanTensorizer},
    FormatEntry{safetensors::IsSafetensors, safetensors::OpenSafetensors,
                safetensors::VerifySafetensors, safetensors::ScanSafetensors},
    FormatEntry{safetensors::IsShardedIndex, safetensors::OpenSharded,
                safetensors::VerifySharded, safetensors::ScanSharded},
};

// The 1.0 preview wrote a container of its own.
constexpr std::string_view kPreviewMagic = "PYTORCH1";

}  // namespace

Result<const FormatEntry*> DetectFormat(const ByteSource& source,
                                        Strictness strictness) {
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
  const FormatEntry* found = nullptr;
  for (const FormatEntry& format : kFormats) {
    if (!format.detect(head)) continue;
    if (found == nullptr) {
      found = &format;
      if (strictness == Strictness::kLenient) break;
    } else {
      return Status(Code::kCorrupt,
                    "file is of two formats at once, so that readers may see "
                    "different content");
    }
  }
  if (found == nullptr) {
    return Status(source.size() == 0 ? Code::kTruncated : Code::kUnsupported,
                  source.size() == 0
                      ? "file is empty"
                      : "not a checkpoint of a known format: no zip, tar, "
                        "pickle, tensorizer or safetensors signature");
  }
  return found;
}

Result<VerifyReport> Verify(std::shared_ptr<const ByteSource> source,
                            const VerifyOptions& options) {
  const std::string name(source->name());
  const auto run = [&]() -> Result<VerifyReport> {
    HAULWAY_ASSIGN(const FormatEntry* format,
                   DetectFormat(*source, options.open.strictness));
    return format->verify(std::move(source), options);
  };
  auto report = OrNoMemory(run);
  if (!report.ok()) return std::move(report).status().Of(name);
  return report;
}

Result<ScanReport> Scan(std::shared_ptr<const ByteSource> source,
                        const OpenOptions& options) {
  const std::string name(source->name());
  const auto run = [&]() -> Result<ScanReport> {
    HAULWAY_ASSIGN(const FormatEntry* format,
                   DetectFormat(*source, options.strictness));
    return format->scan(std::move(source), options);
  };
  auto report = OrNoMemory(run);
  if (!report.ok()) return std::move(report).status().Of(name);
  return report;
}

}  // namespace haulway

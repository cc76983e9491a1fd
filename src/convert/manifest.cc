#include <fmt/format.h>
#include <fmt/ranges.h>
#include <simdjson.h>

#include <algorithm>
#include <bit>
#include <mutex>
#include <utility>

#include "base/json_text.h"
#include "base/no_memory.h"
#include "base/posix.h"
#include "base/text.h"
#include "convert/leaves.h"
#include "convert/proof.h"
#include "convert/tensor_source.h"
#include "haulway/compare.h"

namespace haulway {

namespace {

namespace dom = simdjson::dom;

static_assert(std::endian::native == std::endian::little,
              "elements are digested as they are in memory");

std::optional<std::array<std::byte, 32>> DigestOf(std::string_view hex) {
  std::array<std::byte, 32> digest;
  if (hex.size() != 2 * digest.size()) return std::nullopt;
  for (size_t i = 0; i < hex.size(); ++i) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    const size_t value = kDigits.find(hex[i]);
    if (value == kDigits.npos) return std::nullopt;
    std::byte& byte = digest[i / 2];
    byte = i % 2 == 0 ? std::byte(value << 4) : byte | std::byte(value);
  }
  return digest;
}

Status Wrong(size_t row, std::string_view what) {
  return Status(Code::kInvalidArgument,
                fmt::format("tensor {} of the manifest: {}", row, what));
}

Result<ManifestTensor> TensorOf(dom::element element, size_t row) {
  ManifestTensor tensor;
  std::string_view text;
  if (element["name"].get(text) != simdjson::SUCCESS) {
    return Wrong(row, "expected a name");
  }
  tensor.name = text;
  if (element["dtype"].get(text) != simdjson::SUCCESS) {
    return Wrong(row, "expected a dtype");
  }
  const auto dtype = DTypeFromName(text);
  if (!dtype.has_value()) {
    return Wrong(row, fmt::format("no dtype {}", Quote(text)));
  }
  tensor.dtype = *dtype;
  dom::array shape;
  if (element["shape"].get(shape) != simdjson::SUCCESS) {
    return Wrong(row, "expected a shape");
  }
  for (const dom::element size : shape) {
    int64_t number = 0;
    if (size.get(number) != simdjson::SUCCESS || number < 0) {
      return Wrong(row, "its shape is not of whole numbers");
    }
    tensor.shape.push_back(number);
  }
  dom::element digest;
  if (element["sha256"].get(digest) != simdjson::SUCCESS) {
    return Wrong(row, "expected a sha256");
  }
  if (digest.is_null()) return tensor;
  if (digest.get(text) == simdjson::SUCCESS) tensor.sha256 = DigestOf(text);
  if (!tensor.sha256.has_value()) {
    return Wrong(row, "its sha256 is not of 64 hexadecimal digits");
  }
  return tensor;
}

std::string Describe(const ManifestTensor& tensor) {
  return fmt::format("{} [{}]", Name(tensor.dtype),
                     fmt::join(tensor.shape, ", "));
}

Result<Manifest> Make(const Checkpoint& checkpoint,
                      const ManifestOptions& options) {
  Manifest manifest;
  std::vector<uint32_t> rows;  // Parallel to `manifest`; rows of tensors.
  std::vector<convert::DigestRequest> requests;
  // By row of tensors, because several names may share one.
  constexpr uint32_t kNone = UINT32_MAX;
  std::vector<uint32_t> request_of(checkpoint.index().tensors.size(), kNone);
  const CheckpointIndex& index = checkpoint.index();
  for (const convert::NamedTensor& one : convert::NameTensors(index)) {
    if (options.select && !options.select(one.name)) continue;
    const TensorInfo& info = index.tensors[one.tensor];
    Status status = convert::CheckElements(index, info);
    if (!status.ok()) return std::move(status).In(Quote(one.name));
    ManifestTensor& tensor = manifest.emplace_back();
    // JSON cannot contain bytes that are not UTF-8.
    tensor.name = IsUtf8(one.name) ? std::string(one.name) : Escape(one.name);
    tensor.dtype = info.dtype;
    tensor.shape = ElementShape(info.dtype, info.shape);
    rows.push_back(one.tensor);
    if (info.kind != TensorKind::kMeta && request_of[one.tensor] == kNone) {
      request_of[one.tensor] = static_cast<uint32_t>(requests.size());
      requests.push_back({one.tensor, info.dtype});
    }
  }
  const int threads = convert::ThreadsOf(options.threads);
  convert::SourceOptions source;
  source.block_bytes = convert::BlockBytesFor(options.memory_budget, threads);
  source.verify = options.verify;
  source.cancel = options.cancel;
  uint64_t done = 0;
  uint64_t total = 0;
  for (const convert::DigestRequest& one : requests) {
    total += index.tensors[one.tensor].nbytes;
  }
  std::mutex mutex;
  if (options.progress) {
    source.digested = [&](uint64_t bytes) {
      const std::lock_guard lock(mutex);
      done = std::min(done + bytes, total);
      options.progress(done, total);
    };
  }
  HAULWAY_ASSIGN(const std::vector<Sha256Value> digests,
                 convert::DigestTensors(checkpoint, requests, source, threads));
  for (size_t i = 0; i < manifest.size(); ++i) {
    const uint32_t request = request_of[rows[i]];
    if (request != kNone) manifest[i].sha256 = digests[request];
  }
  std::ranges::sort(manifest, {}, &ManifestTensor::name);
  return manifest;
}

}  // namespace

Result<Manifest> MakeManifest(const Checkpoint& checkpoint,
                              const ManifestOptions& options) {
  return OrNoMemory([&] { return Make(checkpoint, options); });
}

std::string ManifestToJson(const Manifest& manifest) {
  std::string text = "{\"tensors\":[";
  for (const ManifestTensor& tensor : manifest) {
    if (&tensor != &manifest.front()) text += ',';
    text += fmt::format(
        R"({{"name":{},"dtype":"{}","shape":[{}],"sha256":{}}})",
        JsonText(tensor.name), Name(tensor.dtype), fmt::join(tensor.shape, ","),
        tensor.sha256.has_value() ? fmt::format("\"{}\"", Hex(*tensor.sha256))
                                  : "null");
  }
  return text + "]}";
}

Result<Manifest> ManifestFromJson(std::string_view text) {
  return OrNoMemory([&]() -> Result<Manifest> {
    dom::parser parser;
    dom::element root;
    // The parser copies the text, and must not be given null.
    const char* const begin = text.empty() ? "" : text.data();
    const auto error = parser.parse(begin, text.size()).get(root);
    if (error != simdjson::SUCCESS) {
      return Status(Code::kInvalidArgument,
                    fmt::format("the manifest is not JSON: {}",
                                simdjson::error_message(error)));
    }
    dom::array rows;
    if (root["tensors"].get(rows) != simdjson::SUCCESS) {
      return Status(Code::kInvalidArgument,
                    "the manifest has no list of tensors: expected an object "
                    "with 'tensors'");
    }
    Manifest manifest;
    for (const dom::element row : rows) {
      HAULWAY_ASSIGN(ManifestTensor tensor, TensorOf(row, manifest.size()));
      manifest.push_back(std::move(tensor));
    }
    std::ranges::sort(manifest, {}, &ManifestTensor::name);
    const auto twice = std::ranges::adjacent_find(
        manifest, std::ranges::equal_to(), &ManifestTensor::name);
    if (twice != manifest.end()) {
      return Status(
          Code::kInvalidArgument,
          fmt::format("the manifest has two tensors {}", Quote(twice->name)));
    }
    return manifest;
  });
}

std::vector<Finding> CompareManifests(const Manifest& expected,
                                      const Manifest& found) {
  std::vector<Finding> findings;
  const auto note = [&](Code code, const ManifestTensor& tensor,
                        std::string what) {
    std::string text = fmt::format("tensor {}: {}", Quote(tensor.name), what);
    findings.push_back({code, std::move(text), std::nullopt});
  };
  auto at = found.begin();
  for (const ManifestTensor& tensor : expected) {
    for (; at != found.end() && at->name < tensor.name; ++at) {
      note(Code::kMismatch, *at, "the manifest does not have it");
    }
    if (at == found.end() || at->name != tensor.name) {
      note(Code::kNotFound, tensor, "the manifest has it, the file has not");
      continue;
    }
    if (at->dtype != tensor.dtype || at->shape != tensor.shape) {
      note(Code::kMismatch, tensor,
           fmt::format("expected {}, found {}", Describe(tensor),
                       Describe(*at)));
    } else if (at->sha256 != tensor.sha256) {
      note(Code::kMismatch, tensor,
           fmt::format("expected the SHA-256 {}, found {}",
                       tensor.sha256 ? Hex(*tensor.sha256) : "none",
                       at->sha256 ? Hex(*at->sha256) : "none"));
    }
    ++at;
  }
  for (; at != found.end(); ++at) {
    note(Code::kMismatch, *at, "the manifest does not have it");
  }
  return findings;
}

}  // namespace haulway

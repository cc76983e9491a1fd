#include "torch/torch_legacy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/is_of_source.h"
#include "base/text.h"
#include "pickle/pickle_vm.h"
#include "torch/composed_tensors.h"
#include "torch/corrupt_at.h"
#include "torch/pickle_stream.h"
#include "torch/torch_storages.h"
#include "torch/torch_tensors.h"

namespace haulway::torch {

namespace {

constexpr uint64_t kNumelBytes = 8;

bool IsMagic(const Value& value) {
  return value.is(Kind::kBigInt) &&
         value.text().size() == kLegacyMagic.size() &&
         std::memcmp(value.text().data(), kLegacyMagic.data(),
                     kLegacyMagic.size()) == 0;
}

class LegacyReader : public FormatReader {
 public:
  static Result<std::unique_ptr<const FormatReader>> Open(
      std::shared_ptr<const ByteSource> source, uint64_t start,
      const OpenOptions& options) {
    std::unique_ptr<LegacyReader> reader(new LegacyReader(std::move(source)));
    HAULWAY_TRY(reader->ReadIndex(start, options));
    return std::unique_ptr<const FormatReader>(std::move(reader));
  }

  const CheckpointIndex& index() const override { return index_; }
  const std::shared_ptr<const ByteSource>& source() const override {
    return source_;
  }

  Status CheckFrame(uint32_t storage, std::span<const std::byte> before,
                    std::span<const std::byte>) const override {
    return CheckElements(index_.storages[storage], before);
  }
  Status Decode(uint32_t, std::span<const std::byte>, uint64_t,
                std::span<const std::byte>,
                std::span<std::byte>) const override {
    return Status(Code::kInternal, "legacy storages are not encoded");
  }

  uint64_t end() const { return end_; }

 private:
  explicit LegacyReader(std::shared_ptr<const ByteSource> source)
      : source_(std::move(source)) {}

  Status ReadIndex(uint64_t start, const OpenOptions& options) {
    const GlobalTable table(options.allowed_globals);
    PickleOptions pickle;
    pickle.limits = options.limits;
    pickle.globals = &table;
    PickleStream stream(*source_, &arena_, start, source_->size());

    HAULWAY_ASSIGN(const PickleResult magic, stream.Next(pickle, "magic"));
    if (!IsMagic(magic.root)) return CorruptAt("magic number is wrong", start);
    uint64_t at = stream.position();
    HAULWAY_ASSIGN(const PickleResult protocol,
                   stream.Next(pickle, "protocol version"));
    if (!protocol.root.is(Kind::kInt) ||
        protocol.root.integer() != kLegacyVersion) {
      return CorruptAt("protocol version is not 1001", at);
    }
    at = stream.position();
    HAULWAY_ASSIGN(const PickleResult system, stream.Next(pickle, "sys_info"));
    const Value* little = system.root.is_mapping()
                              ? system.root.mapping().Find("little_endian")
                              : nullptr;
    if (little == nullptr || !little->is(Kind::kBool)) {
      return CorruptAt("system information has no little_endian", at);
    }
    pickle.keep_opaque = true;
    HAULWAY_ASSIGN(PickleResult object, stream.Next(pickle, "object"));
    pickle.keep_opaque = false;
    index_.object_status =
        std::move(object.unsafe).In("object").Of(source_->name());
    at = stream.position();
    HAULWAY_ASSIGN(const PickleResult keys, stream.Next(pickle, "keys"));

    index_.format = Format::kTorchLegacy;
    index_.offsets_computed = true;
    index_.root = object.root;
    StorageTable storages(&index_);
    HAULWAY_TRY(ResolveTensors(
        options.limits,
        TreeBudgetOf(options.limits, object.consumed, object.consumed),
        [&](const Value& id) -> Result<StorageUse> {
          HAULWAY_ASSIGN(const StorageId parsed,
                         ParseStorageId(id, /*legacy=*/true, &arena_));
          return storages.Use(parsed);
        },
        &arena_, &index_));
    HAULWAY_TRY(Place(keys.root, at, stream.position(), storages));
    if (options.check_frames || options.debug_offsets) {
      HAULWAY_TRY(CheckAllFrames());
    }
    index_.facts = {
        {"protocol_version", kLegacyVersion},
        {"little_endian", little->boolean()},
        {"pickle_protocol", int64_t{object.protocol}},
        {"end", end_},
    };
    bytes_ = stream.TakeBytes();
    return Status();
  }

  // Places the storages. They follow one another in the order of the list of
  // keys, each after its number of elements.
  Status Place(const Value& keys, uint64_t keys_at, uint64_t at,
               const StorageTable& storages) {
    if (!keys.is(Kind::kList)) return CorruptAt("keys are not a list", keys_at);
    std::vector<bool> placed(index_.storages.size());
    for (const Value& key : keys.sequence().items()) {
      const bool is_text = key.is(Kind::kString) || key.is(Kind::kRawString);
      const uint32_t row =
          is_text ? storages.Find(key.text()) : NameIndex::kNone;
      if (row == NameIndex::kNone) {
        return CorruptAt("a key names no storage of the object", keys_at);
      }
      if (placed[row]) {
        return CorruptAt(
            fmt::format("key {} is listed twice", Quote(key.text())), keys_at);
      }
      placed[row] = true;
      StorageInfo& storage = index_.storages[row];
      const uint64_t left = source_->size() - at;
      if (left < kNumelBytes || left - kNumelBytes < storage.nbytes) {
        return Status(Code::kTruncated,
                      fmt::format("storage {} needs {} bytes, {} remain",
                                  Quote(storage.key), storage.nbytes,
                                  left < kNumelBytes ? 0 : left - kNumelBytes))
            .At(at);
      }
      storage.frame_offset = at;
      storage.offset = at + kNumelBytes;
      storage.stored_bytes = storage.nbytes;
      at = storage.frame_end = storage.offset + storage.nbytes;
    }
    const auto missing = std::find(placed.begin(), placed.end(), false);
    if (missing != placed.end()) {
      return CorruptAt(
          fmt::format("no data for storage {}",
                      Quote(index_.storages[missing - placed.begin()].key)),
          keys_at);
    }
    end_ = at;
    return Status();
  }

  Status CheckAllFrames() const {
    std::vector<std::byte> counts(index_.storages.size() * kNumelBytes);
    std::vector<ReadRequest> requests;
    requests.reserve(index_.storages.size());
    for (size_t i = 0; i < index_.storages.size(); ++i) {
      requests.push_back(
          {index_.storages[i].frame_offset,
           std::span(counts).subspan(i * kNumelBytes, kNumelBytes)});
    }
    HAULWAY_TRY(source_->ReadMany(requests));
    for (uint32_t i = 0; i < requests.size(); ++i) {
      HAULWAY_TRY(CheckFrame(i, requests[i].out, {}));
    }
    return Status();
  }

  std::shared_ptr<const ByteSource> source_;
  TreeArena arena_;
  std::vector<Buffer> bytes_;  // The tree's text refers to these.
  CheckpointIndex index_;
  uint64_t end_ = 0;
};

}  // namespace

bool IsLegacy(std::span<const std::byte> head) {
  TreeArena arena;
  const auto magic = ParsePickle(head, arena);
  return magic.ok() && IsMagic(magic->root);
}

Result<std::unique_ptr<const FormatReader>> OpenLegacy(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options) {
  return LegacyReader::Open(std::move(source), 0, options);
}

Result<VerifyReport> VerifyLegacy(std::shared_ptr<const ByteSource> source,
                                  const VerifyOptions& options) {
  VerifyReport report;
  report.file = source->name();
  report.format = Format::kTorchLegacy;
  report.file_bytes = source->size();
  OpenOptions open = options.open;
  open.check_frames = true;
  uint64_t start = 0;
  while (start < source->size()) {
    auto reader = LegacyReader::Open(source, start, open);
    if (!reader.ok()) {
      const Status& status = reader.status();
      if (IsOfSource(status)) return status;
      report.ok = false;
      report.findings.push_back(
          {status.code(), std::string(status.message()), status.byte()});
      break;
    }
    HAULWAY_TRY(VerifyComposedTensors(**reader, &report));
    start = static_cast<const LegacyReader&>(**reader).end();
  }
  report.unchecked.push_back(
      {"the format has no checksums", 0, source->size()});
  if (options.progress) options.progress(source->size(), source->size());
  return report;
}

Result<uint64_t> EndOfLegacy(std::shared_ptr<const ByteSource> source,
                             uint64_t start, const OpenOptions& options) {
  HAULWAY_ASSIGN(const auto reader,
                 LegacyReader::Open(std::move(source), start, options));
  return static_cast<const LegacyReader&>(*reader).end();
}

}  // namespace haulway::torch

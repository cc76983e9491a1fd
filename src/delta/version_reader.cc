// Design: the index of the full checkpoint is kept. The rows of a changed
// tensor are replaced, unless other tensors use them. The source is the files
// of all versions, one after the other, followed by the changed tensors: for
// each, its frames and its bytes in the full checkpoint, in the order in which
// the engine reads them. These are only ranges of the files (spliced_source.h),
// so that a tensor reads its own bytes and frames, and no others.
//
// Frames are applied one after the other, each in blocks that fit the cache.
// Several frames in lock-step would pass over the tensor once, but need a
// window for each, of up to 128 MiB. Only the last checksum is compared when a
// tensor is loaded: it covers the base and all frames.
//
// A tensor whose bytes in the full checkpoint are encoded, or not contiguous,
// is decoded to memory when it is read.

#include "delta/version_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/checked.h"
#include "base/name_index.h"
#include "base/page_bytes.h"
#include "base/text.h"
#include "decode/encoding_traits.h"
#include "decode/stored_tensor.h"
#include "delta/change.h"
#include "delta/checksum.h"
#include "delta/spliced_source.h"
#include "format/flat_reader.h"
#include "haulway/save.h"
#include "tensor/strided.h"

namespace haulway::delta {

namespace {

// The alignment of small payloads, a cache line.
constexpr uint64_t kSmallUnit = 64;

constexpr std::array<uint8_t, 4> kZstdMagic = {0x28, 0xB5, 0x2F, 0xFD};

// Returns the checksums that a shard's metadata have for its entries; empty
// where there is none.
std::vector<std::string_view> ChecksumsOf(const CheckpointIndex& shard) {
  std::vector<std::string_view> sums(shard.entries.size());
  if (!shard.metadata.has_value()) return sums;
  const std::vector<Fact>& metadata = *shard.metadata;
  NameIndex keys;
  keys.Reserve(metadata.size());
  const auto key_of = [&](uint32_t i) -> std::string_view {
    return metadata[i].name;
  };
  for (uint32_t i = 0; i < metadata.size(); ++i) {
    keys.Add(metadata[i].name, i, key_of);
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    const uint32_t found = keys.Find(shard.entries[i].name, key_of);
    if (found == NameIndex::kNone) continue;
    const auto* text = std::get_if<std::string>(&metadata[found].value);
    if (text != nullptr) sums[i] = *text;
  }
  return sums;
}

bool IsFrameShaped(const TensorInfo& tensor) {
  return tensor.kind == TensorKind::kDense && tensor.dtype == DType::kU8 &&
         tensor.shape.size() == 1 && tensor.storage != kNoStorage;
}

// Returns whether a key of a full checkpoint's metadata belongs to its bytes as
// they were: a checksum, or a version.
bool IsOfBase(const Fact& fact, const NameIndex& names, const auto& name_of) {
  constexpr std::string_view kOldPrefix = "mx.adler32:";
  constexpr std::array<std::string_view, 2> kKeys = {"version",
                                                     "checksum_format"};
  return fact.name.starts_with(kOldPrefix) ||
         std::ranges::find(kKeys, fact.name) != kKeys.end() ||
         names.Find(fact.name, name_of) != NameIndex::kNone;
}

}  // namespace

Status CheckDelta(std::span<const ListedTensor> listed, OpenedDelta* made) {
  OpenedDelta& delta = *made;
  NameIndex names;
  names.Reserve(listed.size());
  const auto name_of = [&](uint32_t i) -> std::string_view {
    return listed[i].name;
  };
  for (uint32_t i = 0; i < listed.size(); ++i) {
    names.Add(listed[i].name, i, name_of);
  }
  std::vector<bool> seen(listed.size());
  for (uint32_t s = 0; s < delta.shards.size(); ++s) {
    DeltaShard& shard = delta.shards[s];
    const CheckpointIndex& index = shard.reader->index();
    shard.checksums = ChecksumsOf(index);
    const auto wrong = [&](Code code, std::string_view what,
                           std::string_view tensor) {
      return Status(code, what)
          .In(Quote(tensor))
          .Of(shard.reader->source()->name());
    };
    for (size_t e = 0; e < index.entries.size(); ++e) {
      const Entry& entry = index.entries[e];
      const uint32_t row = names.Find(entry.name, name_of);
      if (row == NameIndex::kNone) {
        return wrong(Code::kMismatch,
                     "the shard has a tensor that the index does not list",
                     entry.name);
      }
      if (listed[row].shard != s) {
        return wrong(Code::kMismatch,
                     fmt::format("tensor is in another shard than the index "
                                 "says: expected {}",
                                 Quote(delta.shards[listed[row].shard].name)),
                     entry.name);
      }
      seen[row] = true;
      const TensorInfo& tensor = index.tensors[entry.tensor];
      if (!IsFrameShaped(tensor)) {
        return wrong(Code::kCorrupt,
                     fmt::format("changes of a tensor must be U8 of one "
                                 "dimension: found {} of {}",
                                 Name(tensor.dtype), tensor.shape.size()),
                     entry.name);
      }
      if (tensor.nbytes == 0) {
        return wrong(Code::kTruncated, "zstd frame is empty", entry.name);
      }
      const std::string_view sum = shard.checksums[e];
      if (IsChecksum(delta.facts.checksum, sum)) continue;
      return wrong(Code::kMismatch,
                   fmt::format("tensor has no {} in lower-case hexadecimal "
                               "digits: found {}",
                               Name(delta.facts.checksum), Quote(sum)),
                   entry.name);
    }
  }
  const auto lacking = std::ranges::find(seen, false);
  if (lacking == seen.end()) return Status();
  const ListedTensor& tensor = listed[lacking - seen.begin()];
  return Status(Code::kMismatch,
                "the index lists a tensor that its shard "
                "lacks")
      .In(Quote(tensor.name))
      .Of(delta.shards[tensor.shard].reader->source()->name());
}

// Makes the index and the source of a VersionReader.
class VersionReader::Builder {
 public:
  Builder(VersionReader* made, const ParseLimits& limits)
      : made_(*made), base_(made->base_->index()), limits_(limits) {}

  Status Run(std::string base_path, std::string name) {
    HAULWAY_TRY(FindSteps());
    std::vector<std::shared_ptr<const ByteSource>> sources = {
        made_.base_->source()};
    for (const OpenedDelta& delta : made_.deltas_) {
      for (const DeltaShard& shard : delta.shards) {
        sources.push_back(shard.reader->source());
      }
    }
    MakeProduced(&sources);
    HAULWAY_ASSIGN(Concatenation joined,
                   ConcatenateSources(std::move(sources), name));
    starts_ = std::move(joined.starts);
    const uint64_t size = joined.source->size();
    splices_.push_back({0, size, 0});
    end_ = size;
    Describe(std::move(base_path));
    HAULWAY_TRY(AddChanged());
    made_.source_ = SpliceSource(std::move(joined.source), std::move(splices_),
                                 std::move(name));
    return Status();
  }

 private:
  CheckpointIndex& index() { return made_.index_; }

  const Entry& EntryAt(uint32_t i) const { return base_.entries[i]; }

  Status FindSteps() {
    names_.Reserve(base_.entries.size());
    const auto name_of = [&](uint32_t i) { return EntryAt(i).name; };
    for (uint32_t i = 0; i < base_.entries.size(); ++i) {
      names_.Add(EntryAt(i).name, i, name_of);
    }
    steps_.resize(base_.entries.size());
    for (uint32_t d = 0; d < made_.deltas_.size(); ++d) {
      const OpenedDelta& delta = made_.deltas_[d];
      for (uint32_t s = 0; s < delta.shards.size(); ++s) {
        const CheckpointIndex& shard = delta.shards[s].reader->index();
        for (uint32_t row = 0; row < shard.entries.size(); ++row) {
          const Entry& entry = shard.entries[row];
          const uint32_t found = names_.Find(entry.name, name_of);
          Status status = CheckChanged(entry.name, found);
          if (!status.ok()) {
            return std::move(status)
                .In(fmt::format("version {}", Quote(delta.facts.version)))
                .Of(delta.shards[s].reader->source()->name());
          }
          steps_[found].push_back(
              {d, s, row, shard.tensors[entry.tensor].nbytes});
        }
      }
    }
    return Status();
  }

  Status CheckChanged(std::string_view name, uint32_t found) const {
    if (found == NameIndex::kNone) {
      return Status(Code::kMismatch,
                    fmt::format("tensor {} is not in the base of the version",
                                Quote(name)));
    }
    const TensorInfo& tensor = base_.tensors[EntryAt(found).tensor];
    if (tensor.storage == kNoStorage || tensor.kind == TensorKind::kMeta ||
        tensor.nbytes == 0) {
      return Status(Code::kMismatch,
                    fmt::format("tensor {} has no bytes in the base of the "
                                "version",
                                Quote(name)));
    }
    if (tensor.conjugate || tensor.negative) {
      return Status(Code::kUnsupported,
                    fmt::format("tensor {} is a conjugated or negated view in "
                                "the base of the version",
                                Quote(name)));
    }
    return Status();
  }

  // Returns whether the source of the base has the tensor's bytes as a
  // safetensors file would.
  bool IsPlain(const TensorInfo& tensor) const {
    const StorageInfo& storage = base_.storages[tensor.storage];
    return IsAsInMemory(storage) && storage.frame_offset == storage.offset &&
           storage.frame_end == storage.offset + storage.stored_bytes &&
           IsContiguous(tensor.shape, tensor.strides);
  }

  // Adds a source for each changed tensor whose bytes must be decoded first.
  void MakeProduced(std::vector<std::shared_ptr<const ByteSource>>* sources) {
    const FormatReader* const base = made_.base_.get();
    produced_.resize(steps_.size(), 0);
    for (uint32_t i = 0; i < steps_.size(); ++i) {
      const TensorInfo& tensor = base_.tensors[EntryAt(i).tensor];
      if (steps_[i].empty() || IsPlain(tensor)) continue;
      produced_[i] = static_cast<uint32_t>(sources->size());
      sources->push_back(MakeProducedSource(
          tensor.nbytes,
          [base, &tensor]() -> Result<Buffer> {
            HAULWAY_ASSIGN(Buffer bytes, AllocateBuffer(tensor.nbytes));
            HAULWAY_TRY(ReadTensor(*base, tensor, bytes.mutable_bytes()));
            return bytes;
          },
          std::string(base->source()->name())));
    }
  }

  void Describe(std::string base_path) {
    const OpenedDelta& newest = made_.deltas_.back();
    index().format = Format::kSafetensorsDelta;
    std::vector<std::string> chain = {std::move(base_path)};
    for (const OpenedDelta& delta : made_.deltas_) chain.push_back(delta.path);
    index().facts = {
        {"version", newest.facts.version},
        {"base", newest.facts.base},
        {"encoding", std::string(Name(newest.facts.change))},
        {"checksum", std::string(Name(newest.facts.checksum))},
        {"chain", FactArray(std::move(chain))},
    };
    const auto name_of = [&](uint32_t i) { return EntryAt(i).name; };
    index().metadata.emplace();
    if (base_.metadata.has_value()) {
      for (const Fact& fact : *base_.metadata) {
        if (!IsOfBase(fact, names_, name_of)) {
          index().metadata->push_back(fact);
        }
      }
    }
    index().flat = true;
    index().offsets_computed = base_.offsets_computed;
    index().parts = base_.parts;
    if (index().parts.empty()) {
      index().parts.push_back(
          {made_.base_->source()->name(), 0, made_.base_->source()->size()});
    }
    size_t row = 1;
    for (const OpenedDelta& delta : made_.deltas_) {
      for (const DeltaShard& shard : delta.shards) {
        index().parts.push_back({shard.reader->source()->name(), starts_[row++],
                                 shard.reader->source()->size()});
      }
    }
  }

  Status AddChanged() {
    AppendRows(base_, 0, &index());
    for (const Entry& entry : base_.entries) index().entries.push_back(entry);
    std::vector<uint32_t> uses(base_.storages.size());
    for (const TensorInfo& tensor : base_.tensors) {
      if (tensor.storage != kNoStorage) ++uses[tensor.storage];
    }
    std::vector<uint32_t> names(base_.tensors.size());
    for (const Entry& entry : base_.entries) ++names[entry.tensor];
    made_.changed_.resize(base_.storages.size());
    for (uint32_t i = 0; i < steps_.size(); ++i) {
      if (steps_[i].empty()) continue;
      const uint32_t row = EntryAt(i).tensor;
      HAULWAY_TRY(Add(i));
      if (names[row] == 1 && uses[base_.tensors[row].storage] == 1) {
        Replace(row);
      } else {
        index().entries[i].tensor =
            static_cast<uint32_t>(index().tensors.size() - 1);
      }
    }
    made_.first_steps_.push_back(made_.steps_.size());
    const uint64_t most = std::min<uint64_t>(limits_.max_tensors, kNoStorage);
    if (std::max(index().tensors.size(), index().storages.size()) > most) {
      return Status(
          Code::kLimit,
          fmt::format("tensors of the version pass max_tensors {}", most));
    }
    return Status();
  }

  // Adds the storage and the tensor of a changed entry.
  Status Add(uint32_t i) {
    const TensorInfo& old = base_.tensors[EntryAt(i).tensor];
    uint64_t frames = 0;
    for (const Step& step : steps_[i]) {
      if (!CheckedAdd(frames, step.length, &frames)) return TooLarge();
    }
    // A large payload keeps its place within a page, so that direct reads fit.
    const uint64_t unit =
        old.nbytes >= kSmallestPhased ? kPageBytes : kSmallUnit;
    const uint64_t from = PayloadOf(i, old);
    const uint64_t phase = (from - frames % unit) % unit;
    uint64_t begin = 0;
    if (!CheckedRoundUp(end_, unit, &begin) ||
        !CheckedAdd(begin, phase, &begin) ||
        !CheckedAdd(begin, frames, &end_)) {
      return TooLarge();
    }
    const uint64_t payload = end_;
    if (!CheckedAdd(payload, old.nbytes, &end_) || end_ > UINT64_MAX / 2) {
      return TooLarge();
    }
    HAULWAY_TRY(AppendTensor({.name = EntryAt(i).name,
                              .dtype = old.dtype,
                              .shape = old.shape,
                              .offset = payload,
                              .nbytes = old.nbytes},
                             &index(), &made_.arena_));
    StorageInfo& storage = index().storages.back();
    storage.frame_offset = begin;
    storage.encoding = Encoding::kDelta;
    index().tensors.back().requires_grad = old.requires_grad;
    made_.changed_.push_back(static_cast<uint32_t>(made_.first_steps_.size()));
    made_.first_steps_.push_back(made_.steps_.size());
    for (const Step& step : steps_[i]) {
      splices_.push_back({begin, step.length, FrameOf(step)});
      begin += step.length;
      made_.steps_.push_back(step);
    }
    splices_.push_back({payload, old.nbytes, from});
    return Status();
  }

  // Moves the rows that were added last to those of a tensor of the base that
  // nothing else refers to.
  void Replace(uint32_t row) {
    const uint32_t storage = base_.tensors[row].storage;
    index().tensors[row] = index().tensors.back();
    index().tensors[row].storage = storage;
    index().storages[storage] = index().storages.back();
    made_.changed_[storage] = made_.changed_.back();
    index().tensors.pop_back();
    index().storages.pop_back();
    made_.changed_.pop_back();
  }

  static Status TooLarge() {
    return Status(Code::kLimit, "the version's tensors are too large together");
  }

  // Returns where the bytes of the base begin in the joined source.
  uint64_t PayloadOf(uint32_t i, const TensorInfo& tensor) const {
    if (produced_[i] != 0) return starts_[produced_[i]];
    return base_.storages[tensor.storage].offset +
           tensor.storage_offset * ItemBytes(tensor.dtype);
  }

  uint64_t FrameOf(const Step& step) const {
    size_t row = 1 + step.shard;
    for (uint32_t d = 0; d < step.delta; ++d) {
      row += made_.deltas_[d].shards.size();
    }
    const CheckpointIndex& shard =
        made_.deltas_[step.delta].shards[step.shard].reader->index();
    const TensorInfo& tensor = shard.tensors[shard.entries[step.row].tensor];
    return starts_[row] + shard.storages[tensor.storage].offset +
           tensor.storage_offset;
  }

  VersionReader& made_;
  const CheckpointIndex& base_;
  const ParseLimits& limits_;
  NameIndex names_;                       // The base's entries.
  std::vector<std::vector<Step>> steps_;  // By entry of the base.
  std::vector<uint32_t> produced_;        // Row of the joined sources, or 0.
  std::vector<uint64_t> starts_;          // Where each source begins.
  std::vector<Splice> splices_;
  uint64_t end_ = 0;
};

VersionReader::VersionReader(std::unique_ptr<const FormatReader> base,
                             std::vector<OpenedDelta> deltas)
    : base_(std::move(base)), deltas_(std::move(deltas)) {}

Result<std::unique_ptr<const VersionReader>> VersionReader::Make(
    std::unique_ptr<const FormatReader> base, std::string base_path,
    std::vector<OpenedDelta> deltas, std::string name,
    const ParseLimits& limits) {
  std::unique_ptr<VersionReader> reader(
      new VersionReader(std::move(base), std::move(deltas)));
  HAULWAY_TRY(
      Builder(reader.get(), limits).Run(std::move(base_path), std::move(name)));
  return std::unique_ptr<const VersionReader>(std::move(reader));
}

Status VersionReader::CheckFrame(uint32_t storage,
                                 std::span<const std::byte> before,
                                 std::span<const std::byte> after) const {
  // Decode() reads the frames of a changed tensor.
  if (IsChanged(storage)) return Status();
  return base_->CheckFrame(storage, before, after);
}

Status VersionReader::Decode(uint32_t storage, std::span<const std::byte> frame,
                             uint64_t offset, std::span<const std::byte> stored,
                             std::span<std::byte> out) const {
  if (!IsChanged(storage)) {
    return base_->Decode(storage, frame, offset, stored, out);
  }
  if (out.data() != stored.data() && !out.empty()) {
    std::memcpy(out.data(), stored.data(), out.size());
  }
  return Apply(storage, frame, out, /*each=*/nullptr);
}

Status VersionReader::DecodeEach(uint32_t storage,
                                 std::span<const std::byte> frame,
                                 std::span<std::byte> tensor,
                                 uint32_t* at) const {
  return Apply(storage, frame, tensor, at);
}

Status VersionReader::Apply(uint32_t storage, std::span<const std::byte> frame,
                            std::span<std::byte> tensor, uint32_t* each) const {
  const uint32_t changed = changed_[storage];
  const uint64_t last = first_steps_[changed + 1];
  for (uint64_t i = first_steps_[changed]; i < last; ++i) {
    const Step& step = steps_[i];
    if (each != nullptr) *each = step.delta;
    HAULWAY_TRY(ApplyStep(step, frame.first(step.length), tensor,
                          each != nullptr || i + 1 == last));
    frame = frame.subspan(step.length);
  }
  return Status();
}

Status VersionReader::ApplyStep(const Step& step,
                                std::span<const std::byte> frame,
                                std::span<std::byte> tensor,
                                bool is_checked) const {
  const OpenedDelta& delta = deltas_[step.delta];
  const DeltaShard& shard = delta.shards[step.shard];
  const std::string_view name = shard.reader->index().entries[step.row].name;
  std::optional<Checksum> checksum;
  if (is_checked) checksum.emplace(delta.facts.checksum);
  Status status = ApplyChange(delta.facts.change, frame, tensor,
                              is_checked ? &*checksum : nullptr);
  if (status.ok() && is_checked) {
    status = CompareChecksums(delta.facts.checksum, shard.checksums[step.row],
                              checksum->Finish());
  }
  if (status.ok()) return status;
  return std::move(status)
      .In(Quote(name))
      .In(fmt::format("version {}", Quote(delta.facts.version)))
      .Of(shard.reader->source()->name());
}

Result<uint64_t> VersionReader::UnitBytes(
    uint32_t storage, std::span<const std::byte> frame) const {
  // A frame must be decompressed from its start.
  if (IsChanged(storage)) return uint64_t{0};
  return base_->UnitBytes(storage, frame);
}

Result<std::vector<PayloadDigest>> VersionReader::Digests(
    uint32_t storage, std::span<const std::byte> before,
    std::span<const std::byte> after) const {
  if (IsChanged(storage)) return std::vector<PayloadDigest>();
  return base_->Digests(storage, before, after);
}

Result<bool> IsDeltaShard(const FormatReader& reader) {
  const CheckpointIndex& index = reader.index();
  if (index.entries.empty()) return false;
  for (const Entry& entry : index.entries) {
    const TensorInfo& tensor = index.tensors[entry.tensor];
    if (!IsFrameShaped(tensor) || tensor.nbytes < kZstdMagic.size()) {
      return false;
    }
  }
  const auto is_sum = [](std::string_view sum) {
    return IsChecksum(ChecksumKind::kXxh3, sum) ||
           IsChecksum(ChecksumKind::kBlake3, sum) ||
           IsChecksum(ChecksumKind::kAdler32, sum);
  };
  if (!std::ranges::all_of(ChecksumsOf(index), is_sum)) return false;
  const TensorInfo& first = index.tensors[index.entries[0].tensor];
  std::array<std::byte, kZstdMagic.size()> head;
  HAULWAY_TRY(ReadStorageRange(reader, first.storage, 0, head));
  return std::ranges::equal(head, std::as_bytes(std::span(kZstdMagic)));
}

}  // namespace haulway::delta

#include "ranks/assembled_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "dcp/dcp_metadata.h"
#include "format/flat_reader.h"
#include "tensor/tree_walk.h"

namespace haulway::ranks {

namespace {

// A TreeRows walks an object and gives its tensors other rows. Whatever made
// them is dropped.
class TreeRows {
 public:
  explicit TreeRows(const std::unordered_map<uint32_t, uint32_t>& rows)
      : rows_(rows) {}

  Status Run(const Value& root) {
    walk_.Push(root);
    Value value;
    while (walk_.Next(&value)) {
      if (value.is(Kind::kPersistent)) {
        return Status(Code::kUnsupported,
                      "the object holds a storage by itself: expected tensors");
      }
      if (value.is(Kind::kObject)) {
        HAULWAY_TRY(Visit(&value.object()));
      } else {
        walk_.PushItems(value);
      }
    }
    return Status();
  }

 private:
  Status Visit(Object* object) {
    if (object->tensor == Object::kNoTensor) {
      walk_.Push(object->args);
      walk_.Push(object->state);
      walk_.PushExtras(*object);
      return Status();
    }
    const auto found = rows_.find(object->tensor);
    if (found == rows_.end()) {
      return Status(Code::kUnsupported,
                    "the object holds a tensor without a name");
    }
    object->tensor = found->second;
    object->callable = nullptr;
    object->called = Value();
    object->args = Value();
    object->state = Value();
    object->extras = nullptr;
    return Status();
  }

  const std::unordered_map<uint32_t, uint32_t>& rows_;
  TreeWalk walk_;
};

}  // namespace

Result<std::unique_ptr<const AssembledReader>> AssembledReader::Make(
    Format format, Assembly assembly, std::shared_ptr<const ByteSource> list) {
  std::unique_ptr<AssembledReader> reader(new AssembledReader());
  CheckpointIndex& index = reader->index_;
  index.format = format;
  index.offsets_computed = true;
  index.flat = !assembly.root.has_value();
  index.facts = std::move(assembly.facts);
  if (assembly.root.has_value()) {
    index.root = *assembly.root;
    HAULWAY_TRY(TreeRows(assembly.row_of).Run(index.root));
  }
  // Names and the object belong to the readers of the files, which the source
  // keeps.
  reader->pieced_ = std::make_shared<const PiecedSource>(
      std::move(assembly.files), std::move(assembly.tensors), std::move(list));
  reader->source_ = reader->pieced_;
  HAULWAY_TRY(reader->AddRows(assembly));
  return std::unique_ptr<const AssembledReader>(std::move(reader));
}

Status AssembledReader::AddRows(const Assembly& assembly) {
  std::vector<uint32_t> storage_of(pieced_->tensors().size(), kNoStorage);
  for (const Assembly::Row& row : assembly.rows) {
    uint32_t& storage = storage_of[row.pieced];
    auto* shape = static_cast<int64_t*>(
        arena_.Allocate(row.shape.size() * sizeof(int64_t)));
    std::ranges::copy(row.shape, shape);
    // A storage and a tensor of the same shape; a tie keeps only the tensor.
    const auto storages = index_.storages.size();
    const auto name = arena_.Copy(row.name);
    HAULWAY_TRY(AppendTensor({.name = name,
                              .dtype = row.info.dtype,
                              .shape = {shape, row.shape.size()},
                              .offset = pieced_->StartOf(row.pieced),
                              .nbytes = pieced_->BytesOf(row.pieced)},
                             &index_, &arena_));
    TensorInfo& info = index_.tensors.back();
    if (storage == kNoStorage) {
      storage = static_cast<uint32_t>(storages);
      pieced_of_.push_back(row.pieced);
    } else {
      index_.storages.pop_back();
    }
    info.storage = storage;
    info.requires_grad = row.info.requires_grad;
    info.conjugate = row.info.conjugate;
    info.negative = row.info.negative;
    index_.entries.push_back(
        {name, static_cast<uint32_t>(index_.tensors.size() - 1)});
  }
  return Status();
}

Status AssembledReader::CheckFrame(uint32_t, std::span<const std::byte>,
                                   std::span<const std::byte>) const {
  return Status();
}

Status AssembledReader::Decode(uint32_t, std::span<const std::byte>, uint64_t,
                               std::span<const std::byte>,
                               std::span<std::byte>) const {
  return Status(Code::kInternal, "tensors of this format are not encoded");
}

Result<std::vector<PayloadDigest>> AssembledReader::Digests(
    uint32_t storage, std::span<const std::byte>,
    std::span<const std::byte>) const {
  HAULWAY_TRY(pieced_->CheckDigests(pieced_of_[storage]));
  return std::vector<PayloadDigest>();
}

Status CheckIsRaw(const CheckpointIndex& index, const TensorInfo& tensor) {
  if (tensor.storage == kNoStorage) {
    return Status(Code::kUnsupported, "the tensor has no data in the file");
  }
  const StorageInfo& storage = index.storages[tensor.storage];
  if (storage.encoding != Encoding::kRaw || storage.swap_bytes != 1) {
    return Status(Code::kUnsupported,
                  "the bytes of the tensor are compressed, or of the other "
                  "byte order: expected them as they are in memory");
  }
  return Status();
}

Status CheckCover(std::span<const PiecedTensor> tensors) {
  dcp::Metadata metadata;
  for (const PiecedTensor& tensor : tensors) {
    if (!tensor.missing.empty()) continue;
    dcp::StoredTensor stored;
    stored.name = tensor.name;
    stored.shape = tensor.shape;
    stored.first_chunk = static_cast<uint32_t>(metadata.chunks.size());
    stored.chunk_count = static_cast<uint32_t>(tensor.pieces.size());
    for (const Piece& piece : tensor.pieces) {
      metadata.chunks.push_back({piece.begin, piece.sizes, {}});
    }
    metadata.tensors.push_back(stored);
  }
  return dcp::CheckLayout(metadata);
}

}  // namespace haulway::ranks

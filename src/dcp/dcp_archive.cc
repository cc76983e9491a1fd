// Design: torch.save() writes small records before the tensor's record, and
// stores their sizes only in the descriptors after them. So each record is
// followed to the descriptor that states the distance at which it is found; the
// next header comes after it. The archive's own directory is not read, because
// that would take an extra request per chunk; `verify` reads and compares it.
//
// Alternative not taken: assume the usual 704 bytes. The head has 768 bytes for
// longer shapes, and other writers differ.

#include "dcp/dcp_archive.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/checked.h"
#include "base/cursor.h"
#include "base/text.h"
#include "dcp/dcp_order.h"
#include "haulway/index.h"
#include "pickle/pickle_vm.h"
#include "torch/torch_storages.h"
#include "torch/torch_tensors.h"
#include "zip/zip_format.h"

namespace haulway::dcp {

namespace {

// APPNOTE 4.3.7.
constexpr std::string_view kHeaderSignature = "PK\x03\x04";
// APPNOTE 4.3.9.
constexpr std::string_view kDescriptorSignature = "PK\x07\x08";
constexpr uint64_t kShortDescriptorBytes = 16;

std::string_view TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

struct Record {
  std::string_view name;  // Without the archive's folder.
  uint64_t begin = 0;
  uint64_t stored_bytes = 0;  // 0 if only the descriptor has it.
};

// Parses the header at `at`. Returns nullopt if `head` ends within it.
Result<std::optional<Record>> ParseHeader(std::span<const std::byte> head,
                                          uint64_t at) {
  ByteCursor header(head.subspan(at));
  const std::string_view signature = header.Text(kHeaderSignature.size());
  header.Skip(2);  // Version needed.
  const uint16_t flags = header.U16();
  const uint16_t method = header.U16();
  header.Skip(8);  // Time and CRC.
  const uint32_t stored_bytes = header.U32();
  header.Skip(4);  // Uncompressed size.
  const uint16_t name_bytes = header.U16();
  const uint16_t extra_bytes = header.U16();
  const std::string_view name = header.Text(name_bytes);
  header.Skip(extra_bytes);
  if (!header.ok()) return std::optional<Record>();
  if (signature != kHeaderSignature) {
    return Status(Code::kCorrupt,
                  "chunk is no archive: expected the header "
                  "of a record")
        .At(at);
  }
  if (method != zip::kMethodStored || (flags & zip::kFlagEncrypted) != 0) {
    return Status(Code::kUnsupported,
                  fmt::format("record {} is compressed: expected it as it is",
                              Quote(name)))
        .At(at);
  }
  const size_t slash = name.find('/');
  if (slash == name.npos) {
    return Status(Code::kCorrupt,
                  fmt::format("record {} is in no folder", Quote(name)))
        .At(at);
  }
  return std::optional(
      Record{name.substr(slash + 1), at + header.position(),
             (flags & zip::kFlagDescriptor) != 0 ? 0 : stored_bytes});
}

// Returns where the record ends and where its descriptor ends; nullopt if
// `head` ends before.
std::optional<std::pair<uint64_t, uint64_t>> EndOf(
    std::span<const std::byte> head, const Record& record, bool is_described) {
  if (!is_described) {
    const uint64_t end = record.begin + record.stored_bytes;
    if (end > head.size()) return std::nullopt;
    return std::pair(end, end);
  }
  const std::string_view text = TextOf(head);
  for (size_t at = record.begin; true; ++at) {
    at = text.find(kDescriptorSignature, at);
    if (at == text.npos) return std::nullopt;
    ByteCursor descriptor(head.subspan(at));
    descriptor.Skip(8);  // Signature and CRC.
    const uint64_t bytes = at - record.begin;
    if (descriptor.U32() == bytes && descriptor.U32() == bytes &&
        descriptor.ok()) {
      return std::pair(uint64_t{at}, at + kShortDescriptorBytes);
    }
  }
}

bool IsDense(const TensorInfo& tensor) {
  uint64_t stride = 1;
  for (size_t d = tensor.shape.size(); d-- > 0;) {
    if (tensor.shape[d] > 1 &&
        static_cast<uint64_t>(tensor.strides[d]) != stride) {
      return false;
    }
    if (!CheckedMultiply(stride, static_cast<uint64_t>(tensor.shape[d]),
                         &stride)) {
      return false;
    }
  }
  return true;
}

}  // namespace

Result<std::optional<ArchiveHead>> ParseArchiveHead(
    std::span<const std::byte> head, uint64_t length) {
  std::optional<ArchiveHead> found(std::in_place);
  for (uint64_t at = 0; at < head.size();) {
    HAULWAY_ASSIGN(const auto record, ParseHeader(head, at));
    if (!record.has_value()) break;
    if (record->name == "data/0") {
      found->payload = record->begin;
      if (found->pickle.empty()) {
        return Status(Code::kCorrupt, "chunk has no data.pkl before its data");
      }
      return found;
    }
    ByteCursor flags(head.subspan(at));
    flags.Skip(6);
    const bool is_described = (flags.U16() & zip::kFlagDescriptor) != 0;
    const auto end = EndOf(head, *record, is_described);
    if (!end.has_value()) break;
    const auto bytes = head.subspan(record->begin, end->first - record->begin);
    if (record->name == "data.pkl") found->pickle = bytes;
    if (record->name == "byteorder" && TextOf(bytes) != "little") {
      return Status(Code::kUnsupported,
                    fmt::format("chunk is of byte order {}: expected little",
                                Quote(TextOf(bytes))))
          .At(record->begin);
    }
    at = end->second;
  }
  if (head.size() >= length) {
    return Status(Code::kCorrupt, "chunk has no record data/0");
  }
  return std::optional<ArchiveHead>();
}

Result<ChunkOrder> CheckChunkPickle(std::span<const std::byte> pickle,
                                    const ExpectedTensor& expected,
                                    const ParseLimits& limits) {
  TreeArena arena;
  PickleOptions options;
  options.limits = limits;
  HAULWAY_ASSIGN(const PickleResult parsed,
                 ParsePickle(pickle, arena, options));
  CheckpointIndex index;
  index.root = parsed.root;
  torch::StorageTable storages(&index);
  HAULWAY_TRY(torch::ResolveTensors(
      limits, TreeBudgetOf(limits, pickle.size(), pickle.size()),
      [&](const Value& id) -> Result<torch::StorageUse> {
        HAULWAY_ASSIGN(const torch::StorageId storage,
                       torch::ParseStorageId(id, /*legacy=*/false, &arena));
        return storages.Use(storage);
      },
      &arena, &index));
  if (index.tensors.size() != 1 || index.storages.size() != 1 ||
      index.entries.size() != 1 || index.storages[0].key != "0" ||
      index.tensors[0].kind != TensorKind::kDense) {
    return Status(Code::kUnsupported,
                  "chunk holds something else than one dense tensor");
  }
  const TensorInfo& tensor = index.tensors[0];
  if (tensor.dtype != expected.dtype ||
      !std::ranges::equal(tensor.shape, expected.sizes)) {
    return Status(
        Code::kCorrupt,
        fmt::format("chunk holds another tensor: expected {} [{}], "
                    "found {} [{}]",
                    Name(expected.dtype), fmt::join(expected.sizes, ", "),
                    Name(tensor.dtype), fmt::join(tensor.shape, ", ")));
  }
  ChunkOrder order = {tensor.storage_offset * ItemBytes(tensor.dtype), {}};
  const bool is_dense = IsDense(tensor);
  const bool is_empty =
      std::ranges::find(tensor.shape, 0) != tensor.shape.end();
  if (tensor.conjugate || tensor.negative ||
      (!is_dense && !is_empty && !IsReordered(tensor.shape, tensor.strides))) {
    return Status(Code::kUnsupported,
                  "the chunk's elements are not all elements of its data, as "
                  "they are there");
  }
  if (!is_dense && !is_empty) {
    order.strides.assign(tensor.strides.begin(), tensor.strides.end());
  }
  return order;
}

Result<uint32_t> ParseDescriptor(std::span<const std::byte> after,
                                 uint64_t nbytes) {
  ByteCursor descriptor(after);
  const std::string_view signature =
      descriptor.Text(kDescriptorSignature.size());
  const uint32_t crc32 = descriptor.U32();
  // From 4 GiB on, the sizes have eight bytes.
  const bool is_long = nbytes >= UINT32_MAX;
  const uint64_t stored = is_long ? descriptor.U64() : descriptor.U32();
  const uint64_t size = is_long ? descriptor.U64() : descriptor.U32();
  if (!descriptor.ok() || signature != kDescriptorSignature) {
    return Status(Code::kCorrupt, "no descriptor follows the chunk's data");
  }
  if (stored != nbytes || size != nbytes) {
    return Status(Code::kCorrupt,
                  fmt::format("chunk's data are of another size: expected {} "
                              "bytes, found {}",
                              nbytes, size));
  }
  return crc32;
}

}  // namespace haulway::dcp

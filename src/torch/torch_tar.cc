// Design: three plain members of a tar contain consecutive pickles: the
// storages, with their bytes after every pickle; the tensors; and the object.
// The usual pickle machine parses each pickle. Where the object names a tensor
// by persistent id, a call of _rebuild_tensor replaces the id in the tree, so
// that Resolver does not need to know the notation of 2017.
//
// Alternative not taken: a tar library. This code needs the names, sizes and
// types of four members, and refuses tars that readers interpret differently
// (links, sparse files, two members with one name). The member sys_info is not
// read, but must exist: without it, the file was truncated.

#include "torch/torch_tar.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <initializer_list>
#include <system_error>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/cursor.h"
#include "base/is_of_source.h"
#include "base/text.h"
#include "pickle/pickle_globals.h"
#include "pickle/pickle_vm.h"
#include "torch/composed_tensors.h"
#include "torch/corrupt_at.h"
#include "torch/pickle_stream.h"
#include "torch/torch_storages.h"
#include "torch/torch_tensors.h"

namespace haulway::torch {

namespace {

// POSIX.1-1988 ustar: blocks of 512 bytes, and a header before each member.
constexpr uint64_t kBlockBytes = 512;
constexpr uint64_t kCountBytes = 8;
constexpr std::array<std::string_view, 4> kMembers = {"storages", "tensors",
                                                      "pickle", "sys_info"};

struct Member {
  uint64_t offset = 0;
  uint64_t size = 0;
  bool found = false;
};
using Members = std::array<Member, kMembers.size()>;

struct Header {
  std::string name;
  uint64_t size;
  char type;
};

// Parses octal digits that end at a space, a NUL or the end of the field.
std::optional<uint64_t> Octal(std::string_view field) {
  while (!field.empty() && field.front() == ' ') field.remove_prefix(1);
  uint64_t number = 0;
  const char* end = field.data() + field.size();
  const auto [stop, error] = std::from_chars(field.data(), end, number, 8);
  if (error != std::errc()) return std::nullopt;
  if (stop != end && *stop != ' ' && *stop != '\0') return std::nullopt;
  return number;
}

// Parses a header. Returns nullopt if the checksum shows that the block is not
// a tar header.
std::optional<Header> ParseHeader(std::span<const std::byte> block) {
  const std::string_view text(reinterpret_cast<const char*>(block.data()),
                              block.size());
  uint64_t sum = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    // The checksum counts its own field as spaces.
    sum += i >= 148 && i < 156 ? ' ' : static_cast<unsigned char>(text[i]);
  }
  const auto size = Octal(text.substr(124, 12));
  if (Octal(text.substr(148, 8)) != sum || !size.has_value()) {
    return std::nullopt;
  }
  const std::string_view name = text.substr(0, 100);
  return Header{std::string(name.substr(0, name.find('\0'))), *size, text[156]};
}

Result<Members> FindMembers(const ByteSource& source) {
  Members members;
  uint64_t at = 0;
  while (RangeFits(at, kBlockBytes, source.size())) {
    std::array<std::byte, kBlockBytes> block;
    HAULWAY_TRY(source.ReadAt(at, block));
    if (std::ranges::all_of(block,
                            [](std::byte b) { return b == std::byte{0}; })) {
      break;  // End of the archive.
    }
    const auto header = ParseHeader(block);
    if (!header.has_value()) return CorruptAt("tar header is damaged", at);
    const auto known = std::ranges::find(kMembers, header->name);
    if (known == kMembers.end()) {
      return CorruptAt(fmt::format("tar member {} is not one of the format's",
                                   Quote(header->name)),
                       at);
    }
    // A plain file is '0', or NUL in old archives.
    if (header->type != '0' && header->type != '\0') {
      return CorruptAt(
          fmt::format("tar member {} is not a plain file", Quote(header->name)),
          at);
    }
    Member& member = members[known - kMembers.begin()];
    if (member.found) {
      return CorruptAt(
          fmt::format("tar member {} stands twice", Quote(header->name)), at);
    }
    member = {at + kBlockBytes, header->size, true};
    if (!RangeFits(member.offset, member.size, source.size())) {
      return Status(Code::kTruncated,
                    fmt::format("tar member {} needs {} bytes, {} remain",
                                Quote(header->name), member.size,
                                source.size() - member.offset))
          .At(at);
    }
    at = member.offset;
    if (!CheckedAdd(at,
                    (member.size + kBlockBytes - 1) / kBlockBytes * kBlockBytes,
                    &at)) {
      return CorruptAt("tar member's size overflows", at);
    }
  }
  // torch writes "sys_info" but does not read it. If it is missing, the file
  // was truncated.
  for (size_t i = 0; i < members.size(); ++i) {
    if (!members[i].found) {
      return CorruptAt(fmt::format("tar has no member '{}'", kMembers[i]), 0);
    }
  }
  return members;
}

class TarReader : public FormatReader {
 public:
  static Result<std::unique_ptr<const FormatReader>> Open(
      std::shared_ptr<const ByteSource> source, const OpenOptions& options,
      std::vector<TarPickle>* found) {
    std::unique_ptr<TarReader> reader(
        new TarReader(std::move(source), options, found));
    HAULWAY_TRY(reader->ReadIndex());
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
    return Status(Code::kInternal, "tar storages are not encoded");
  }

 private:
  // A tensor from the member "tensors".
  struct Tensor {
    int64_t storage;
    Value offset;
    Value size;
    Value stride;
  };

  TarReader(std::shared_ptr<const ByteSource> source,
            const OpenOptions& options, std::vector<TarPickle>* found)
      : source_(std::move(source)),
        options_(options),
        table_(options.allowed_globals),
        found_(found) {
    pickle_.limits = options.limits;
    pickle_.globals = &table_;
  }

  Status ReadIndex() {
    HAULWAY_ASSIGN(const Members members, FindMembers(*source_));
    index_.format = Format::kTorchTar;
    index_.offsets_computed = true;
    HAULWAY_TRY(ReadStorages(members[0]));
    HAULWAY_TRY(ReadTensors(members[1]));
    PickleStream stream(*source_, &arena_, members[2].offset,
                        members[2].offset + members[2].size);
    pickle_.keep_opaque = true;
    HAULWAY_ASSIGN(PickleResult object, Next(&stream, "pickle"));
    Keep(&stream);
    index_.object_status =
        std::move(object.unsafe).In("pickle").Of(source_->name());
    index_.root = object.root;
    HAULWAY_TRY(ReplaceTensors());
    HAULWAY_TRY(ResolveTensors(
        options_.limits,
        TreeBudgetOf(options_.limits, members[1].size + members[2].size,
                     members[1].size + members[2].size),
        [&](const Value& id) -> Result<StorageUse> {
          const auto key = Number(id);
          const auto found =
              key.has_value() ? storages_.find(*key) : storages_.end();
          if (found == storages_.end()) {
            return Status(Code::kCorrupt, "persistent id names no storage");
          }
          return found->second;
        },
        &arena_, &index_));
    index_.facts = {{"pickle_protocol", int64_t{object.protocol}},
                    {"tensors", uint64_t{tensors_.size()}}};
    return Status();
  }

  // Parses one pickle, and records where it begins.
  Result<PickleResult> Next(PickleStream* stream, std::string_view what) {
    if (found_ != nullptr) found_->push_back({what, stream->position()});
    return stream->Next(pickle_, what);
  }
  void Keep(PickleStream* stream) {
    for (Buffer& bytes : stream->TakeBytes()) bytes_.push_back(bytes);
  }

  Result<uint64_t> Count(PickleStream* stream, std::string_view what) {
    const uint64_t at = stream->position();
    HAULWAY_ASSIGN(const PickleResult count, Next(stream, what));
    // Each item takes at least a byte, so the size of the member limits their
    // number.
    if (!count.root.is(Kind::kInt) || count.root.integer() < 0 ||
        static_cast<uint64_t>(count.root.integer()) > stream->remaining()) {
      return CorruptAt("number of items is none, or larger than the member", at)
          .In(what);
    }
    return static_cast<uint64_t>(count.root.integer());
  }

  Status ReadStorages(const Member& member) {
    PickleStream stream(*source_, &arena_, member.offset,
                        member.offset + member.size);
    HAULWAY_ASSIGN(const uint64_t count, Count(&stream, "storages"));
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t at = stream.position();
      HAULWAY_ASSIGN(const PickleResult item, Next(&stream, "storages"));
      // A storage is (key, location, storage type).
      const Value& root = item.root;
      if (!root.is(Kind::kTuple) || root.sequence().size != 3) {
        return CorruptAt("storage is not (key, location, type)", at);
      }
      const Value* parts = root.sequence().data;
      const auto key = Number(parts[0]);
      if (!key.has_value() || !parts[1].is(Kind::kString) ||
          !parts[2].is(Kind::kGlobal) ||
          KindOf(parts[2].global()) != GlobalKind::kStorage) {
        return CorruptAt("storage is not (key, location, type)", at);
      }
      StorageInfo storage;
      storage.key = arena_.Copy(fmt::format("{}", *key));
      storage.location = parts[1].text();
      storage.dtype = DTypeOf(parts[2].global());
      storage.frame_offset = stream.position();
      std::array<std::byte, kCountBytes> numel;
      HAULWAY_TRY(stream.Read(numel));
      if (!CheckedMultiply(ByteCursor(numel).U64(), ItemBytes(storage.dtype),
                           &storage.nbytes)) {
        return CorruptAt("number of elements overflows", storage.frame_offset);
      }
      storage.offset = stream.position();
      storage.stored_bytes = storage.nbytes;
      HAULWAY_TRY(stream.Skip(storage.nbytes));
      storage.frame_end = stream.position();
      const auto row = static_cast<uint32_t>(index_.storages.size());
      if (!storages_
               .emplace(*key, StorageUse{row, storage.dtype, 0, storage.nbytes})
               .second) {
        return CorruptAt(fmt::format("key {} stands twice", *key), at);
      }
      index_.storages.push_back(storage);
    }
    HAULWAY_TRY(ReadViews(&stream));
    Keep(&stream);
    return Status();
  }

  // Reads the list [(target, root, offset, numel), ...].
  Status ReadViews(PickleStream* stream) {
    const uint64_t at = stream->position();
    HAULWAY_ASSIGN(const PickleResult views, Next(stream, "storages"));
    if (!views.root.is(Kind::kList)) {
      return CorruptAt("views are not a list", at);
    }
    for (const Value& view : views.root.sequence().items()) {
      if (!view.is(Kind::kTuple) || view.sequence().size != 4) {
        return CorruptAt("view is not (target, root, offset, numel)", at);
      }
      std::array<int64_t, 4> numbers{};
      for (size_t i = 0; i < numbers.size(); ++i) {
        const auto number = Number(view.sequence().data[i]);
        if (!number.has_value()) return CorruptAt("view is not of numbers", at);
        numbers[i] = *number;
      }
      const auto root = storages_.find(numbers[1]);
      if (root == storages_.end()) return CorruptAt("view has no root", at);
      const StorageUse& use = root->second;
      const uint64_t item = ItemBytes(use.dtype);
      uint64_t offset = 0;
      uint64_t bytes = 0;
      if (numbers[2] < 0 || numbers[3] < 0 ||
          !CheckedMultiply(static_cast<uint64_t>(numbers[2]), item, &offset) ||
          !CheckedMultiply(static_cast<uint64_t>(numbers[3]), item, &bytes) ||
          !RangeFits(offset, bytes, use.nbytes)) {
        return CorruptAt("view leaves its storage", at);
      }
      storages_.emplace(numbers[0], StorageUse{use.row, use.dtype,
                                               use.first_byte + offset, bytes});
    }
    return Status();
  }

  Status ReadTensors(const Member& member) {
    PickleStream stream(*source_, &arena_, member.offset,
                        member.offset + member.size);
    HAULWAY_ASSIGN(const uint64_t count, Count(&stream, "tensors"));
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t at = stream.position();
      HAULWAY_ASSIGN(const PickleResult item, Next(&stream, "tensors"));
      // A tensor is (key, storage key, tensor type).
      if (!item.root.is(Kind::kTuple) || item.root.sequence().size != 3) {
        return CorruptAt("tensor is not (key, storage, type)", at);
      }
      const Value* parts = item.root.sequence().data;
      const auto key = Number(parts[0]);
      const auto storage = Number(parts[1]);
      if (!key.has_value() || !storage.has_value() ||
          !storages_.contains(*storage)) {
        return CorruptAt("tensor is not (key, storage, type)", at);
      }
      std::array<std::byte, 8> head;  // 32-bit rank, and four bytes of padding.
      HAULWAY_TRY(stream.Read(head));
      const uint32_t rank = ByteCursor(head).U32();
      if (rank > options_.limits.max_rank) {
        return Status(Code::kLimit,
                      fmt::format("{} dimensions pass max_rank {}", rank,
                                  options_.limits.max_rank))
            .At(at);
      }
      std::vector<std::byte> numbers(8 * (2 * uint64_t{rank} + 1));
      HAULWAY_TRY(stream.Read(numbers));
      ByteCursor cursor(numbers);
      Tensor tensor;
      tensor.storage = *storage;
      tensor.size = Ints(&cursor, rank);
      tensor.stride = Ints(&cursor, rank);
      tensor.offset = Value::Int(static_cast<int64_t>(cursor.U64()));
      tensors_.emplace(*key, tensor);
    }
    Keep(&stream);
    return Status();
  }

  Value Ints(ByteCursor* cursor, uint32_t count) {
    auto* sequence = arena_.New<Sequence>();
    sequence->data =
        static_cast<Value*>(arena_.Allocate(count * sizeof(Value)));
    sequence->size = sequence->capacity = count;
    for (uint32_t i = 0; i < count; ++i) {
      sequence->data[i] = Value::Int(static_cast<int64_t>(cursor->U64()));
    }
    return Value::Of(Kind::kTuple, sequence);
  }

  Value Tuple(std::initializer_list<Value> items) {
    auto* sequence = arena_.New<Sequence>();
    sequence->data =
        static_cast<Value*>(arena_.Allocate(items.size() * sizeof(Value)));
    std::copy(items.begin(), items.end(), sequence->data);
    sequence->size = sequence->capacity = static_cast<uint32_t>(items.size());
    return Value::Of(Kind::kTuple, sequence);
  }

  static std::optional<int64_t> Number(const Value& value) {
    if (value.is(Kind::kInt)) return value.integer();
    if (!value.is(Kind::kString) && !value.is(Kind::kRawString)) {
      return std::nullopt;
    }
    int64_t number = 0;
    const std::string_view text = value.text();
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc() || stop != end) return std::nullopt;
    return number;
  }

  // Replaces each persistent id of a tensor by what later versions write: a
  // call of _rebuild_tensor.
  Status ReplaceTensors() {
    std::vector<Value*> pending = {&index_.root};
    std::unordered_set<const void*> visited;
    const auto push = [&](std::span<const Value> items) {
      for (const Value& item : items) {
        pending.push_back(const_cast<Value*>(&item));
      }
    };
    while (!pending.empty()) {
      Value& value = *pending.back();
      pending.pop_back();
      if (value.is(Kind::kPersistent)) {
        HAULWAY_TRY(ReplaceTensor(&value));
        continue;
      }
      if (value.kind() < Kind::kTuple || value.is(Kind::kGlobal) ||
          !visited.insert(value.identity()).second) {
        continue;
      }
      if (value.is_sequence()) {
        push(value.sequence().items());
      } else if (value.is_mapping()) {
        for (const MappingItem& item : value.mapping().items())
          push({&item.value, 1});
        push({&value.mapping().state, 1});
      } else {
        Object& object = value.object();
        push({&object.args, 1});
        push({&object.state, 1});
        if (object.extras != nullptr) {
          push(object.extras->appended.items());
          for (const MappingItem& item : object.extras->items.items()) {
            push({&item.value, 1});
          }
        }
      }
    }
    return Status();
  }

  Status ReplaceTensor(Value* value) {
    const auto key = Number(value->persistent_id());
    if (!key.has_value()) {
      return Status(Code::kUnsafe,
                    "persistent id is not the number of a tensor or storage")
          .In("pickle");
    }
    if (storages_.contains(*key)) return Status();
    const auto found = tensors_.find(*key);
    if (found == tensors_.end()) {
      return Status(Code::kCorrupt,
                    fmt::format("persistent id {} names no tensor", *key))
          .In("pickle");
    }
    Object*& object = objects_[*key];
    if (object == nullptr) {
      if (rebuild_ == nullptr) {
        rebuild_ = arena_.New<Global>();
        rebuild_->module = "torch._utils";
        rebuild_->name = "_rebuild_tensor";
        rebuild_->id = static_cast<uint16_t>(GlobalKind::kRebuildTensor);
        rebuild_->allowed = true;
      }
      const Tensor& tensor = found->second;
      const Value id = Value::Of(
          Kind::kPersistent, &Tuple({Value::Int(tensor.storage)}).sequence());
      object = arena_.New<Object>();
      object->callable = rebuild_;
      object->called = Value::Of(rebuild_);
      object->args = Tuple({id, tensor.offset, tensor.size, tensor.stride});
    }
    *value = Value::Of(object);
    return Status();
  }

  std::shared_ptr<const ByteSource> source_;
  const OpenOptions options_;
  const GlobalTable table_;
  PickleOptions pickle_;
  std::vector<TarPickle>* const found_;  // Null if not requested.
  TreeArena arena_;
  std::vector<Buffer> bytes_;  // The tree's text refers to these.
  CheckpointIndex index_;
  std::unordered_map<int64_t, StorageUse> storages_;
  std::unordered_map<int64_t, Tensor> tensors_;
  std::unordered_map<int64_t, Object*> objects_;
  Global* rebuild_ = nullptr;
};

}  // namespace

bool IsTar(std::span<const std::byte> head) {
  return head.size() >= kBlockBytes &&
         ParseHeader(head.subspan(0, kBlockBytes)).has_value();
}

Result<std::unique_ptr<const FormatReader>> OpenTar(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options) {
  return TarReader::Open(std::move(source), options, nullptr);
}

Result<VerifyReport> VerifyTar(std::shared_ptr<const ByteSource> source,
                               const VerifyOptions& options) {
  VerifyReport report;
  report.file = source->name();
  report.format = Format::kTorchTar;
  report.file_bytes = source->size();
  const auto reader = TarReader::Open(source, options.open, nullptr);
  if (!reader.ok()) {
    const Status status = reader.status();
    if (IsOfSource(status)) return status;
    report.ok = false;
    report.findings.push_back(
        {status.code(), std::string(status.message()), status.byte()});
  } else {
    HAULWAY_TRY(VerifyComposedTensors(**reader, &report));
  }
  report.unchecked.push_back(
      {"the format has no checksums", 0, source->size()});
  if (options.progress) options.progress(source->size(), source->size());
  return report;
}

Status FindTarPickles(std::shared_ptr<const ByteSource> source,
                      const OpenOptions& options,
                      std::vector<TarPickle>* pickles) {
  return TarReader::Open(std::move(source), options, pickles).status();
}

}  // namespace haulway::torch

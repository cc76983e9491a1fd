#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/encoder.h"
#include "base/text.h"
#include "haulway/archive.h"
#include "haulway/pickle.h"
#include "torch/torch_legacy.h"

namespace haulway {

namespace {

// To CPython, equal strings of one pickle are the same object and others are
// different ones; each is memoized.
void WriteText(PickleWriter* writer, std::string_view text) {
  writer->Unicode(text);
  writer->PutUnshared();
}

void WriteFew(PickleWriter* writer,
              std::span<const std::pair<std::string_view, int64_t>> items) {
  for (const auto& [key, value] : items) {
    WriteText(writer, key);
    writer->Int(value);
  }
}

std::string MagicPickle(int protocol) {
  PickleWriter writer(protocol);
  writer.BigInt({reinterpret_cast<const char*>(torch::kLegacyMagic.data()),
                 torch::kLegacyMagic.size()});
  return writer.Finish();
}

std::string VersionPickle(int protocol) {
  PickleWriter writer(protocol);
  writer.Int(torch::kLegacyVersion);
  return writer.Finish();
}

// The sizes of C types that torch.save() always writes.
std::string SystemPickle(int protocol) {
  constexpr std::array<std::pair<std::string_view, int64_t>, 1> kVersion = {
      {{"protocol_version", torch::kLegacyVersion}}};
  constexpr std::array<std::pair<std::string_view, int64_t>, 3> kSizes = {
      {{"short", 2}, {"int", 4}, {"long", 4}}};
  PickleWriter writer(protocol);
  writer.EmptyDict();
  writer.PutUnshared();
  writer.Mark();
  WriteFew(&writer, kVersion);
  WriteText(&writer, "little_endian");
  writer.Bool(std::endian::native == std::endian::little);
  WriteText(&writer, "type_sizes");
  writer.EmptyDict();
  writer.PutUnshared();
  writer.Mark();
  WriteFew(&writer, kSizes);
  writer.SetItems();
  writer.SetItems();
  return writer.Finish();
}

std::string KeysPickle(int protocol, std::span<const LegacyStorage> storages) {
  PickleWriter writer(protocol);
  writer.EmptyList();
  writer.PutUnshared();
  const bool single = storages.size() == 1;
  while (!storages.empty()) {
    const auto batch =
        storages.first(std::min(storages.size(), PickleWriter::kBatch));
    if (!single) writer.Mark();
    for (const LegacyStorage& storage : batch) WriteText(&writer, storage.key);
    single ? writer.Append() : writer.Appends();
    storages = storages.subspan(batch.size());
  }
  return writer.Finish();
}

// The frame before the first payload contains all pickles. Each frame ends with
// the number of elements of the payload after it.
class LegacyLayout : public Layout {
 public:
  LegacyLayout(std::string head, std::span<const LegacyStorage> storages)
      : head_(std::move(head)), size_(head_.size()) {
    items_.reserve(storages.size());
    payloads_.reserve(storages.size());
    frames_.reserve(storages.size() + 1);
    uint64_t begin = 0;
    for (const LegacyStorage& storage : storages) {
      size_ += sizeof(uint64_t);
      frames_.push_back({begin, size_ - begin});
      items_.push_back(storage.size / storage.item_bytes);
      payloads_.push_back({size_, storage.size, storage.bytes});
      size_ += storage.size;
      begin = size_;
    }
    if (storages.empty()) frames_.push_back({0, size_});
  }

  uint64_t size() const override { return size_; }
  std::span<const Payload> payloads() const override { return payloads_; }
  std::span<const Frame> frames() const override { return frames_; }
  Status EncodeFrame(size_t frame, const Digests&,
                     std::span<std::byte> out) const override {
    ByteEncoder encoder(out);
    if (frame == 0) encoder.Text(head_);
    if (frame < items_.size()) encoder.U64(items_[frame]);
    return Status();
  }

 private:
  const std::string head_;
  uint64_t size_;
  std::vector<uint64_t> items_;
  std::vector<Payload> payloads_;
  std::vector<Frame> frames_;
};

}  // namespace

Result<std::unique_ptr<const Layout>> LayOutLegacy(
    std::string_view pickle, std::vector<LegacyStorage> storages,
    int protocol) {
  if (protocol < PickleWriter::kLeastProtocol ||
      protocol > PickleWriter::kMostProtocol) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("pickle protocol: expected 2 to 5, found {}", protocol));
  }
  std::ranges::sort(storages, {}, &LegacyStorage::key);
  for (const LegacyStorage& storage : storages) {
    if (storage.item_bytes == 0 || storage.size % storage.item_bytes != 0) {
      return Status(
          Code::kInvalidArgument,
          fmt::format("storage {} of {} bytes is not of whole "
                      "elements of {}",
                      Quote(storage.key), storage.size, storage.item_bytes));
    }
  }
  const auto twice =
      std::ranges::adjacent_find(storages, {}, &LegacyStorage::key);
  if (twice != storages.end()) {
    return Status(Code::kInvalidArgument,
                  fmt::format("storage {} stands twice", Quote(twice->key)));
  }
  std::string head =
      MagicPickle(protocol) + VersionPickle(protocol) + SystemPickle(protocol);
  head += pickle;
  head += KeysPickle(protocol, storages);
  return std::unique_ptr<const Layout>(
      std::make_unique<LegacyLayout>(std::move(head), storages));
}

}  // namespace haulway

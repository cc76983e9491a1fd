#include "haulway/tree.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

namespace haulway {

namespace {
constexpr size_t kFirstBlockBytes = size_t{64} << 10;
constexpr size_t kMappedBlockBytes = size_t{2} << 20;
constexpr size_t kLargestBlockBytes = size_t{8} << 20;
}  // namespace

const Value* Mapping::Find(std::string_view key) const {
  for (const MappingItem& item : items()) {
    if ((item.key.is(Kind::kString) || item.key.is(Kind::kRawString)) &&
        item.key.text() == key) {
      return &item.value;
    }
  }
  return nullptr;
}

void* TreeArena::AllocateSlow(size_t bytes) {
  const size_t grown =
      std::min(kFirstBlockBytes << std::min<size_t>(blocks_.size(), 7),
               kLargestBlockBytes);
  const size_t block_bytes = std::max(bytes, grown);
  std::byte* const memory = AddBlock(block_bytes);
  allocated_ += bytes;
  // Keep the block with more room.
  if (block_bytes - bytes > left_) {
    next_ = memory + bytes;
    left_ = block_bytes - bytes;
  }
  return memory;
}

std::byte* TreeArena::AddBlock(size_t bytes) {
  // Large trees use huge pages, because faulting in small pages costs more than
  // filling them. If the system has no memory, operator new fails as everywhere
  // else.
  auto block = bytes >= kMappedBlockBytes ? AllocateBuffer(bytes)
                                          : Result<Buffer>(Buffer());
  if (block.ok() && block->size() != 0) {
    blocks_.push_back(std::move(*block));
    return blocks_.back().mutable_bytes().data();
  }
  auto owner = std::make_shared_for_overwrite<std::byte[]>(bytes);
  std::byte* const memory = owner.get();
  blocks_.emplace_back(std::move(owner), std::span(memory, bytes), true);
  return memory;
}

void TreeArena::Reserve(size_t bytes) {
  if (bytes <= left_) return;
  bytes = std::max(bytes, kMappedBlockBytes);
  next_ = AddBlock(bytes);
  left_ = bytes;
}

std::string_view TreeArena::Copy(std::string_view text) {
  if (text.empty()) return {};
  auto* memory = static_cast<char*>(Allocate(text.size()));
  std::memcpy(memory, text.data(), text.size());
  return {memory, text.size()};
}

}  // namespace haulway

#include "haulway/tree.h"

#include <algorithm>
#include <cstring>

namespace haulway {

namespace {
constexpr size_t kFirstBlockBytes = size_t{64} << 10;
constexpr size_t kLargestBlockBytes = size_t{8} << 20;
}  // namespace

const Value* Mapping::Find(std::string_view key) const {
  for (const Item& item : items()) {
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
  blocks_.push_back(std::make_unique_for_overwrite<std::byte[]>(block_bytes));
  allocated_ += bytes;
  std::byte* memory = blocks_.back().get();
  // What is left of the old block may be more than what is left of this one.
  if (block_bytes - bytes > left_) {
    next_ = memory + bytes;
    left_ = block_bytes - bytes;
  }
  return memory;
}

std::string_view TreeArena::Copy(std::string_view text) {
  if (text.empty()) return {};
  auto* memory = static_cast<char*>(Allocate(text.size()));
  std::memcpy(memory, text.data(), text.size());
  return {memory, text.size()};
}

}  // namespace haulway

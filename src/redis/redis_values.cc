#include "redis/redis_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace haulway::redis {

Status Missing(std::string_view key) {
  return Status(Code::kCorrupt,
                fmt::format("key {} is missing; was it evicted?", Quote(key)));
}

Result<std::vector<uint64_t>> ReadLengths(Connection& one,
                                          std::span<const std::string> keys) {
  std::vector<uint64_t> lengths;
  lengths.reserve(keys.size());
  for (size_t begin = 0; begin < keys.size(); begin += kBatch) {
    const auto batch =
        keys.subspan(begin, std::min(kBatch, keys.size() - begin));
    for (const std::string& key : batch) one.Add({"STRLEN", key});
    HAULWAY_TRY(one.Flush());
    for (const std::string& key : batch) {
      auto length = one.ReadInteger();
      if (!length.ok()) {
        return std::move(length).status().In(fmt::format("key {}", Quote(key)));
      }
      if (*length < 0) return Missing(key);
      lengths.push_back(static_cast<uint64_t>(*length));
    }
  }
  return lengths;
}

Result<std::vector<Stored>> FindValues(Connection& one,
                                       std::span<const Piece> pieces) {
  struct Rest {
    const Piece* piece;
    uint64_t at;
  };
  std::vector<Rest> rests;
  for (const Piece& piece : pieces) {
    if (piece.length != 0) rests.push_back({&piece, piece.offset});
  }
  std::vector<Stored> found;
  while (!rests.empty()) {
    std::vector<std::string> keys;
    keys.reserve(rests.size());
    for (const Rest& rest : rests) keys.push_back(rest.piece->KeyAt(rest.at));
    HAULWAY_ASSIGN(const std::vector<uint64_t> lengths, ReadLengths(one, keys));
    std::vector<Rest> next;
    for (size_t i = 0; i < rests.size(); ++i) {
      const auto [piece, at] = rests[i];
      const uint64_t length = lengths[i];
      const uint64_t left = piece->offset + piece->length - at;
      if (length != 0 && length < left) next.push_back({piece, at + length});
      found.push_back({at, length, left, std::move(keys[i])});
    }
    rests = std::move(next);
  }
  std::ranges::sort(found, {}, &Stored::offset);
  return found;
}

}  // namespace haulway::redis

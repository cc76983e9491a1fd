#include "safetensors/compact_header.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/text.h"

namespace haulway::safetensors {

namespace {

static_assert(kPaddingBytes >= sizeof(uint64_t), "words are read whole");

constexpr uint64_t kOnes = 0x0101010101010101;
constexpr uint64_t kHighs = 0x8080808080808080;
// A number with at most this many decimal digits fits in int64_t.
constexpr size_t kSafeDigits = 18;

// Returns a word with the highest bit set of every byte that is not plain text:
// a quote, a backslash, a control byte, or not ASCII. Bits of bytes above the
// first such byte may be wrong.
uint64_t NotPlain(uint64_t word) {
  const auto zeros = [](uint64_t w) { return (w - kOnes) & ~w; };
  return (zeros(word ^ (kOnes * '"')) | zeros(word ^ (kOnes * '\\')) |
          (word - kOnes * 0x20) | word) &
         kHighs;
}

// A CompactParser is a cursor in the text. Every method returns false if the
// text does not have the expected form; its outputs must not be used then.
class CompactParser {
 public:
  CompactParser(std::span<const std::byte> json, uint64_t json_bytes,
                const ParseLimits& limits, TreeArena* arena)
      : at_(reinterpret_cast<const char*>(json.data())),
        end_(at_ + json_bytes),
        limits_(limits),
        arena_(*arena) {}

  bool Parse(Header* header) {
    if (!Skip("{")) return false;
    header->tensors.reserve(
        std::min<uint64_t>((end_ - at_) / 64, limits_.max_tensors));
    bool has_metadata = false;
    while (!Skip("}")) {
      if ((has_metadata || !header->tensors.empty()) && !Skip(",")) {
        return false;
      }
      std::string_view name;
      if (!Text(&name)) return false;
      if (name == "__metadata__") {
        if (has_metadata || !ParseMetadata(header)) return false;
        has_metadata = true;
      } else if (header->tensors.size() >= limits_.max_tensors ||
                 !ParseTensor(name, &header->tensors.emplace_back())) {
        return false;
      }
    }
    return std::all_of(at_, end_, [](char c) {
      return c == ' ' || c == '\t' || c == '\n' || c == '\r';
    });
  }

 private:
  bool Skip(std::string_view expected) {
    if (static_cast<size_t>(end_ - at_) < expected.size() ||
        std::memcmp(at_, expected.data(), expected.size()) != 0) {
      return false;
    }
    at_ += expected.size();
    return true;
  }

  // Reads a string without escapes, as a view of the text.
  bool Text(std::string_view* text) {
    if (!Skip("\"")) return false;
    const char* const begin = at_;
    bool ascii = true;
    while (at_ < end_) {
      uint64_t word = 0;
      std::memcpy(&word, at_, sizeof(word));
      const uint64_t marks = NotPlain(word);
      if (marks == 0) {
        at_ += sizeof(word);
        continue;
      }
      at_ += std::countr_zero(marks) / 8;
      if (at_ >= end_) return false;
      if (*at_ == '"') {
        *text = {begin, static_cast<size_t>(at_++ - begin)};
        return ascii || IsUtf8(*text);
      }
      if (static_cast<unsigned char>(*at_) < 0x80) return false;
      ascii = false;
      ++at_;
    }
    return false;
  }

  bool Number(uint64_t* number) {
    const char* const begin = at_;
    uint64_t value = 0;
    while (at_ < end_ && *at_ >= '0' && *at_ <= '9') {
      value = value * 10 + static_cast<uint64_t>(*at_++ - '0');
    }
    const auto digits = static_cast<size_t>(at_ - begin);
    *number = value;
    return digits > 0 && digits <= kSafeDigits &&
           (digits == 1 || *begin != '0');
  }

  bool ParseMetadata(Header* header) {
    if (!Skip(":{")) return false;
    auto& metadata = header->metadata.emplace();
    while (!Skip("}")) {
      if (!metadata.empty() && !Skip(",")) return false;
      std::string_view key, value;
      if (!Text(&key) || !Skip(":") || !Text(&value)) return false;
      // Few keys are usual. For many, the search for equal keys is left to the
      // JSON parser.
      constexpr size_t kFewKeys = 32;
      if (metadata.size() >= kFewKeys) return false;
      for (const auto& pair : metadata) {
        if (pair.first == key) return false;
      }
      metadata.emplace_back(key, value);
    }
    while (at_ < end_ && *at_ == ' ') ++at_;  // Padding by EncodeHeader().
    return true;
  }

  bool ParseTensor(std::string_view name, HeaderTensor* tensor) {
    tensor->name = name;
    return Skip(":{\"dtype\":\"") && ParseDtype(tensor) &&
           Skip("\",\"shape\":[") && ParseShape(tensor) &&
           Skip(",\"data_offsets\":[") && Number(&tensor->begin) && Skip(",") &&
           Number(&tensor->end) && Skip("]}");
  }

  bool ParseDtype(HeaderTensor* tensor) {
    const auto is = [&](DType dtype) {
      const std::string_view name = Describe(dtype).safetensors_name;
      return static_cast<size_t>(end_ - at_) > name.size() &&
             at_[name.size()] == '"' &&
             std::memcmp(at_, name.data(), name.size()) == 0;
    };
    // Most tensors have the dtype of the previous one.
    if (!is(last_dtype_)) {
      const auto* found = std::ranges::find_if(kSafetensorsDTypes, is);
      if (found == kSafetensorsDTypes.end()) return false;
      last_dtype_ = *found;
    }
    tensor->dtype = last_dtype_;
    at_ += Describe(last_dtype_).safetensors_name.size();
    return true;
  }

  bool ParseShape(HeaderTensor* tensor) {
    dims_.clear();
    while (!Skip("]")) {
      uint64_t dim = 0;
      if ((!dims_.empty() && !Skip(",")) || !Number(&dim) ||
          dims_.size() >= limits_.max_rank) {
        return false;
      }
      dims_.push_back(static_cast<int64_t>(dim));
    }
    if (dims_.empty()) return true;
    auto* shape =
        static_cast<int64_t*>(arena_.Allocate(dims_.size() * sizeof(int64_t)));
    std::ranges::copy(dims_, shape);
    tensor->shape = {shape, dims_.size()};
    return true;
  }

  const char* at_;
  const char* const end_;
  const ParseLimits& limits_;
  TreeArena& arena_;
  DType last_dtype_ = DType::kF32;
  std::vector<int64_t> dims_;
};

}  // namespace

std::optional<Header> ParseCompactHeader(std::span<const std::byte> json,
                                         uint64_t json_bytes,
                                         const ParseLimits& limits,
                                         TreeArena* arena) {
  Header header;
  if (!CompactParser(json, json_bytes, limits, arena).Parse(&header)) {
    return std::nullopt;
  }
  return header;
}

}  // namespace haulway::safetensors

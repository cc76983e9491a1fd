// Design: the header is built as little-endian fields: key-values, then a row
// per tensor, in file order. Then offsets are known, and the payloads need only
// padding between them. A value keeps the type that the converted file stated.
// If no type is stated, it is the smallest that holds every value of an array,
// and float32 only if that is exact.
//
// Input that no reader accepts is refused before anything is written. Quantized
// tensors are written as their blocks. The writer does not quantize, because
// that loses bits and each model has its own recipe.

#include "gguf/gguf_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/checked.h"
#include "base/name_index.h"
#include "base/text.h"
#include "gguf/gguf_header.h"
#include "gguf/gguf_split.h"
#include "gguf/gguf_types.h"
#include "tensor/no_dtype.h"

namespace haulway::gguf {

namespace {

constexpr uint32_t kVersion = 3;
constexpr uint64_t kMostAlignment = uint64_t{1} << 31;  // Stored as a u32.
constexpr std::string_view kArchitectureKey = "general.architecture";

class GgufLayout : public Layout {
 public:
  GgufLayout(std::string header, std::vector<Payload> payloads, uint64_t size)
      : header_(std::move(header)),
        payloads_(std::move(payloads)),
        frame_{0, header_.size()},
        size_(size) {}

  uint64_t size() const override { return size_; }
  std::span<const Payload> payloads() const override { return payloads_; }
  std::span<const Frame> frames() const override { return {&frame_, 1}; }
  Status EncodeFrame(size_t, const Digests&,
                     std::span<std::byte> out) const override {
    std::memcpy(out.data(), header_.data(), out.size());
    return Status();
  }

 private:
  const std::string header_;
  const std::vector<Payload> payloads_;
  const Frame frame_;
  const uint64_t size_;
};

// A HeaderText appends little-endian fields.
class HeaderText {
 public:
  void U32(uint64_t value) { Little(value, 4); }
  void U64(uint64_t value) { Little(value, 8); }
  void Text(std::string_view text) {
    U64(text.size());
    text_ += text;
  }
  void Raw(std::string_view text) { text_ += text; }
  void Key(std::string_view key, ValueType type) {
    Text(key);
    U32(static_cast<uint32_t>(type));
  }
  void Little(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) {
      text_ += static_cast<char>(value >> (8 * i) & 0xFF);
    }
  }
  std::string& text() { return text_; }

 private:
  std::string text_;
};

Status BadAlignment(std::string_view found) {
  return Status(Code::kInvalidArgument,
                fmt::format("alignment: expected a power of two below 2^32, "
                            "found {}",
                            Quote(found)));
}

// Returns the type with this name; nullopt for unknown names, and for arrays.
std::optional<ValueType> TypeByName(std::string_view name) {
  for (uint32_t i = 0; i < kValueTypes; ++i) {
    const auto type = static_cast<ValueType>(i);
    if (type != ValueType::kArray && Name(type) == name) return type;
  }
  return std::nullopt;
}

// These functions return the type for values without a stated type that holds
// all of `values`.
ValueType UsualType(std::span<const double> values) {
  const bool exact = std::ranges::all_of(values, [](double value) {
    return std::isnan(value) ||
           static_cast<double>(static_cast<float>(value)) == value;
  });
  return exact ? ValueType::kF32 : ValueType::kF64;
}
ValueType UsualType(std::span<const int64_t> values) {
  const bool fits = std::ranges::all_of(values, [](int64_t value) {
    return value >= INT32_MIN && value <= INT32_MAX;
  });
  return fits ? ValueType::kI32 : ValueType::kI64;
}
ValueType UsualType(std::span<const uint64_t> values) {
  const auto most = values.empty() ? 0 : std::ranges::max(values);
  if (most <= INT32_MAX) return ValueType::kI32;
  return most <= INT64_MAX ? ValueType::kI64 : ValueType::kU64;
}

// Returns whether an integer can be written as `type` without loss.
template <class T>
bool Fits(T value, ValueType type) {
  switch (type) {
    case ValueType::kU8:
      return std::in_range<uint8_t>(value);
    case ValueType::kI8:
      return std::in_range<int8_t>(value);
    case ValueType::kU16:
      return std::in_range<uint16_t>(value);
    case ValueType::kI16:
      return std::in_range<int16_t>(value);
    case ValueType::kU32:
      return std::in_range<uint32_t>(value);
    case ValueType::kI32:
      return std::in_range<int32_t>(value);
    case ValueType::kU64:
      return std::in_range<uint64_t>(value);
    case ValueType::kI64:
      return std::in_range<int64_t>(value);
    default:
      return false;
  }
}

// These functions write one value as `type`, and return whether that is
// possible.
bool Put(bool value, ValueType type, HeaderText* out) {
  out->Little(value ? 1 : 0, 1);
  return type == ValueType::kBool;
}
bool Put(const std::string& value, ValueType type, HeaderText* out) {
  out->Text(value);
  return type == ValueType::kString;
}
bool Put(double value, ValueType type, HeaderText* out) {
  if (type == ValueType::kF32) {
    const auto single = static_cast<float>(value);
    out->U32(std::bit_cast<uint32_t>(single));
    return std::isfinite(single) || !std::isfinite(value);
  }
  out->U64(std::bit_cast<uint64_t>(value));
  return type == ValueType::kF64;
}
template <std::integral T>
bool Put(T value, ValueType type, HeaderText* out) {
  if (!Fits(value, type)) return false;
  out->Little(static_cast<uint64_t>(value), BytesOf(type));
  return true;
}

// Writes one value, or the elements of an array, of one type.
template <class T>
Status PutAll(const Fact& fact, const std::vector<T>& values, bool is_array,
              HeaderText* out) {
  std::optional<ValueType> type = TypeByName(fact.type);
  if (fact.type.empty()) {
    if constexpr (std::is_same_v<T, bool>) {
      type = ValueType::kBool;
    } else if constexpr (std::is_same_v<T, std::string>) {
      type = ValueType::kString;
    } else {
      type = UsualType(values);
    }
  }
  bool good = type.has_value();
  if (good) {
    out->Key(fact.name, is_array ? ValueType::kArray : *type);
    if (is_array) {
      out->U32(static_cast<uint32_t>(*type));
      out->U64(values.size());
    }
    for (size_t i = 0; good && i < values.size(); ++i) {
      good = Put(static_cast<const T&>(values[i]), *type, out);
    }
  }
  if (good) return Status();
  return Status(Code::kInvalidArgument,
                fmt::format("value of {} cannot be of type {}",
                            Quote(fact.name), Quote(fact.type)));
}

Status PutFact(const Fact& fact, HeaderText* out) {
  return std::visit(
      [&](const auto& value) -> Status {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::monostate> ||
                      std::is_same_v<T, FactJson>) {
          return Status(
              Code::kInvalidArgument,
              fmt::format("key of metadata {} has no value", Quote(fact.name)));
        } else if constexpr (std::is_same_v<T, FactArray>) {
          return std::visit(
              [&](const auto& values) {
                return PutAll(fact, values, /*is_array=*/true, out);
              },
              value);
        } else {
          return PutAll(fact, std::vector<T>{value}, /*is_array=*/false, out);
        }
      },
      fact.value);
}

// Fails without the name of the architecture. The format requires it, and
// readers need it to use the tensors. If a model has several files, only the
// first one has the name.
Status CheckArchitecture(std::span<const Fact> facts) {
  const std::optional<FilePlace> split = SplitOf(facts);
  if (split.has_value() && split->number > 0) return Status();
  const auto at = std::ranges::find(facts, kArchitectureKey, &Fact::name);
  const auto* const name =
      at == facts.end() ? nullptr : std::get_if<std::string>(&at->value);
  if (name != nullptr && !name->empty()) return Status();
  return Status(Code::kInvalidArgument,
                fmt::format("GGUF requires the metadata {}: set it to the name "
                            "of the model's architecture, such as 'llama'",
                            kArchitectureKey));
}

// Returns the number in a value; nullopt if there is none.
std::optional<uint64_t> AlignmentIn(const FactValue& value) {
  if (const auto* number = std::get_if<uint64_t>(&value)) return *number;
  const auto* number = std::get_if<int64_t>(&value);
  if (number == nullptr || *number < 0) return std::nullopt;
  return static_cast<uint64_t>(*number);
}

// Returns all key-values in file order. Fails for values that no reader
// accepts.
Result<std::vector<Fact>> FactsOf(const TensorsToWrite& tensors,
                                  const SaveOptions& options,
                                  uint64_t* alignment) {
  std::vector<Fact> facts;
  if (tensors.metadata.has_value()) {
    for (const auto& [key, value] : *tensors.metadata) {
      facts.push_back({key, value});
    }
  }
  facts.insert(facts.end(), tensors.values.begin(), tensors.values.end());
  bool said = false;
  for (Fact& fact : facts) {
    if (fact.name != kAlignmentKey) continue;
    // The alignment of the converted file applies, unless the options have
    // another.
    const std::optional<uint64_t> value = AlignmentIn(fact.value);
    if (!value.has_value()) {
      return Status(Code::kInvalidArgument,
                    fmt::format("metadata {} is no number: expected a power of "
                                "two below 2^32; or use the option alignment, "
                                "which save and convert have",
                                kAlignmentKey));
    }
    *alignment = options.alignment.value_or(*value);
    fact = {std::string(kAlignmentKey), *alignment, "u32"};
    said = true;
  }
  if (!said && options.alignment.has_value()) {
    facts.push_back({std::string(kAlignmentKey), *alignment, "u32"});
  }
  if (!std::has_single_bit(*alignment) || *alignment > kMostAlignment) {
    return BadAlignment(std::to_string(*alignment));
  }
  const auto name_of = [&](uint32_t i) -> std::string_view {
    return facts[i].name;
  };
  NameIndex keys;
  for (uint32_t i = 0; i < facts.size(); ++i) {
    const std::string& key = facts[i].name;
    const char* wrong = nullptr;
    if (key.empty() || key.size() > kLongestKey) {
      wrong = "has no bytes, or more than 65535";
    } else if (!IsUtf8(key)) {
      wrong = "is not UTF-8";
    } else if (keys.Add(key, i, name_of) != NameIndex::kNone) {
      wrong = "is there twice";
    }
    if (wrong == nullptr) continue;
    return Status(Code::kInvalidArgument,
                  fmt::format("key of metadata {} {}", Quote(key), wrong));
  }
  return facts;
}

// Appends the row of a tensor to the header. Requires: LayOut() checked the
// tensor.
Status AddRow(const TensorToWrite& tensor, uint64_t offset, HeaderText* out) {
  if (tensor.name.size() > kLongestName) {
    return Status(Code::kInvalidArgument,
                  fmt::format("name has {} bytes: GGUF has room for {}",
                              tensor.name.size(), kLongestName));
  }
  const std::optional<uint32_t> id = IdOf(tensor.dtype);
  if (!id.has_value()) {
    return NoDType("GGUF", tensor.dtype);
  }
  const size_t rank = tensor.shape.size();
  if (rank > kMostDimensions) {
    return Status(Code::kUnsupported,
                  fmt::format("{} dimensions: GGUF has at most {}", rank,
                              kMostDimensions));
  }
  const DTypeInfo& info = haulway::Describe(tensor.dtype);
  if (info.block_bytes != 0 &&
      (rank == 0 || tensor.shape.back() % info.block_bytes != 0)) {
    return Status(Code::kInvalidArgument,
                  fmt::format("rows are no whole blocks of {}: expected a "
                              "multiple of {} bytes",
                              info.name, info.block_bytes));
  }
  out->Text(tensor.name);
  out->U32(rank);
  const std::vector<int64_t> shape = ElementShape(tensor.dtype, tensor.shape);
  for (size_t d = rank; d-- > 0;) out->U64(static_cast<uint64_t>(shape[d]));
  out->U32(*id);
  out->U64(offset);
  return Status();
}

}  // namespace

Result<std::unique_ptr<const Layout>> LayOutTensors(
    const TensorsToWrite& tensors, const SaveOptions& options) {
  uint64_t alignment = options.alignment.value_or(kDefaultAlignment);
  HAULWAY_ASSIGN(const std::vector<Fact> facts,
                 FactsOf(tensors, options, &alignment));
  HeaderText header;
  header.Raw(kMagic);
  header.U32(kVersion);
  header.U64(tensors.tensors.size());
  header.U64(facts.size());
  for (const Fact& fact : facts) HAULWAY_TRY(PutFact(fact, &header));
  std::vector<Payload> payloads;
  payloads.reserve(tensors.tensors.size());
  uint64_t size = 0;  // Size of the data so far.
  for (const TensorToWrite& tensor : tensors.tensors) {
    Status status = AddRow(tensor, size, &header);
    if (!status.ok()) return std::move(status).In(Quote(tensor.name));
    const BytesToWrite& bytes = tensor.bytes;
    if (bytes.length != 0) {
      payloads.push_back({size, bytes.length, bytes.bytes, bytes.source.get(),
                          bytes.source_offset});
    }
    if (!CheckedAdd(size, bytes.length, &size) ||
        !CheckedRoundUp(size, alignment, &size)) {
      return Status(Code::kInvalidArgument, "the file is too large");
    }
  }
  HAULWAY_TRY(CheckArchitecture(facts));
  uint64_t data = 0;
  if (!CheckedRoundUp(header.text().size(), alignment, &data) ||
      !CheckedAdd(data, size, &size)) {
    return Status(Code::kInvalidArgument, "the file is too large");
  }
  for (Payload& payload : payloads) payload.offset += data;
  return std::unique_ptr<const Layout>(std::make_unique<GgufLayout>(
      std::move(header.text()), std::move(payloads), size));
}

}  // namespace haulway::gguf

// Design: one pass over the bytes. Each length is compared with what the file
// can still contain before it is used. A header does not state its length, so
// the caller passes the start of the file, and more of it if that was not
// enough. Parsing again costs less than a parser state that can stop anywhere.
//
// Counts are never used directly for allocations: each is limited by the
// minimum size of its items. Values keep their type by name, so that writing
// reproduces the file. Tensors must not share bytes, because loading allocates
// memory for each.

#include "gguf/gguf_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <utility>

#include "base/checked.h"
#include "base/cursor.h"
#include "base/name_index.h"
#include "base/text.h"
#include "gguf/gguf_types.h"

namespace haulway::gguf {

namespace {

// Minimum sizes of a key-value (a key and a value of one byte each) and of a
// tensor (an empty name, no dimensions).
constexpr uint64_t kLeastKeyValue = 8 + 1 + 4 + 1;
constexpr uint64_t kLeastTensor = 8 + 4 + 4 + 8;

struct ValueTypeInfo {
  std::string_view name;
  uint8_t bytes;  // The minimum for strings and arrays.
};
constexpr std::array<ValueTypeInfo, kValueTypes> kValueTable = {{
    {"u8", 1},
    {"i8", 1},
    {"u16", 2},
    {"i16", 2},
    {"u32", 4},
    {"i32", 4},
    {"f32", 4},
    {"bool", 1},
    {"str", 8},
    {"array", 12},
    {"u64", 8},
    {"i64", 8},
    {"f64", 8},
}};

const ValueTypeInfo& Describe(ValueType type) {
  return kValueTable[static_cast<size_t>(type)];
}

class HeaderParser {
 public:
  HeaderParser(std::span<const std::byte> bytes, uint64_t file_bytes,
               Strictness strictness, const ParseLimits& limits,
               TreeArena* arena)
      : cursor_(bytes),
        file_bytes_(file_bytes),
        strict_(strictness == Strictness::kStrict),
        limits_(limits),
        arena_(arena) {}

  // Returns the number of bytes needed if Parse() failed because there were too
  // few, else 0.
  uint64_t wanted() const { return wanted_; }

  Status Parse(Header* header) {
    HAULWAY_TRY(ParseStart(header));
    HAULWAY_TRY(ParseKeyValues(header));
    HAULWAY_TRY(ParseTensors(header));
    header->header_bytes = cursor_.position();
    if (!CheckedRoundUp(header->header_bytes, header->alignment,
                        &header->data_offset)) {
      return Wrong("data begins past every file", header->header_bytes);
    }
    return CheckPlaces(*header);
  }

 private:
  static Status Wrong(std::string_view what, uint64_t byte) {
    return Status(Code::kCorrupt, what).At(byte);
  }

  uint64_t left_in_file() const { return file_bytes_ - cursor_.position(); }

  // Fails unless `count` more bytes can be read.
  Status Need(uint64_t count) {
    if (count <= cursor_.remaining()) return Status();
    if (count <= left_in_file()) wanted_ = cursor_.position() + count;
    return Status(Code::kTruncated,
                  fmt::format("header ends early: expected {} bytes more, "
                              "found {}",
                              count, left_in_file()))
        .At(cursor_.position());
  }

  Result<std::string_view> Text() {
    HAULWAY_TRY(Need(8));
    const uint64_t length = cursor_.U64();
    HAULWAY_TRY(Need(length));
    return cursor_.Text(length);
  }

  // Applies rules G01 to G04.
  Status ParseStart(Header* header) {
    HAULWAY_TRY(Need(8));
    if (cursor_.Text(kMagic.size()) != kMagic) {
      return Wrong("file does not begin with 'GGUF'", 0);
    }
    header->version = cursor_.U32();
    if (header->version != 0 && header->version % 0x10000 == 0) {
      return Status(Code::kUnsupported,
                    "file was written by a big-endian machine, which is "
                    "unsupported")
          .At(4);
    }
    if (header->version != 2 && header->version != 3) {
      return Status(Code::kUnsupported,
                    fmt::format("version of GGUF is not read: expected 2 or "
                                "3, found {}",
                                header->version))
          .At(4);
    }
    HAULWAY_TRY(Need(16));
    tensors_ = cursor_.U64();
    HAULWAY_TRY(CheckCount(tensors_, kLeastTensor, "tensors", 8, "max_tensors",
                           limits_.max_tensors));
    key_values_ = cursor_.U64();
    return CheckCount(key_values_, kLeastKeyValue, "key-values", 16,
                      "max_entries", limits_.max_entries);
  }

  Status CheckCount(uint64_t count, uint64_t least, std::string_view what,
                    uint64_t byte, std::string_view cap, uint64_t most) const {
    if (count > left_in_file() / least) {
      return Status(Code::kTruncated,
                    fmt::format("{} {} do not fit: expected at most {}", count,
                                what, left_in_file() / least))
          .At(byte);
    }
    if (count > most) {
      return Status(Code::kLimit,
                    fmt::format("{} {} pass {} {}", count, what, cap, most))
          .At(byte);
    }
    return Status();
  }

  // Applies rules G05 to G10.
  Status ParseKeyValues(Header* header) {
    const auto name_of = [&](uint32_t i) -> std::string_view {
      return header->metadata[i].name;
    };
    NameIndex keys;
    for (uint64_t i = 0; i < key_values_; ++i) {
      const uint64_t byte = cursor_.position();
      HAULWAY_ASSIGN(const std::string_view key, Text());
      if (key.empty()) return Wrong("key is empty", byte);
      if (key.size() > kLongestKey) {
        return Wrong(fmt::format("key has {} bytes: expected at most {}",
                                 key.size(), kLongestKey),
                     byte);
      }
      if (!IsUtf8(key)) return Wrong("key is not UTF-8", byte);
      Fact& fact = header->metadata.emplace_back();
      fact.name = key;
      if (keys.Add(key, static_cast<uint32_t>(i), name_of) !=
          NameIndex::kNone) {
        return Wrong(fmt::format("duplicate key {}", Quote(key)), byte);
      }
      Status status = ParseValue(&fact);
      if (!status.ok()) return std::move(status).In(Quote(key));
      if (key == kAlignmentKey) HAULWAY_TRY(SetAlignment(fact, byte, header));
    }
    return Status();
  }

  Result<ValueType> ParseValueType() {
    HAULWAY_TRY(Need(4));
    const uint64_t byte = cursor_.position();
    const uint32_t type = cursor_.U32();
    if (type >= kValueTypes) {
      return Wrong(fmt::format("type of value is not known: expected at most "
                               "{}, found {}",
                               kValueTypes - 1, type),
                   byte);
    }
    return static_cast<ValueType>(type);
  }

  Status ParseValue(Fact* fact) {
    HAULWAY_ASSIGN(const ValueType type, ParseValueType());
    if (type == ValueType::kArray) return ParseArray(fact);
    fact->type = Name(type);
    HAULWAY_TRY(Need(Describe(type).bytes));
    switch (type) {
      case ValueType::kBool: {
        HAULWAY_ASSIGN(const bool value, Bool());
        fact->value = value;
        return Status();
      }
      case ValueType::kString: {
        HAULWAY_ASSIGN(const std::string_view text, Text());
        fact->value = std::string(text);
        return Status();
      }
      case ValueType::kF32:
      case ValueType::kF64:
        fact->value = Real(type);
        return Status();
      case ValueType::kI8:
      case ValueType::kI16:
      case ValueType::kI32:
      case ValueType::kI64:
        fact->value = Signed(type);
        return Status();
      default:
        fact->value = Unsigned(type);
        return Status();
    }
  }

  Status ParseArray(Fact* fact) {
    HAULWAY_ASSIGN(const ValueType type, ParseValueType());
    if (type == ValueType::kArray) {
      return Status(Code::kUnsupported, "array of arrays is not read")
          .At(cursor_.position() - 4);
    }
    fact->type = Name(type);
    HAULWAY_TRY(Need(8));
    const uint64_t byte = cursor_.position();
    const uint64_t count = cursor_.U64();
    if (count > limits_.max_items) {
      return Status(Code::kLimit, fmt::format("array of {} passes max_items {}",
                                              count, limits_.max_items))
          .At(byte);
    }
    // max_items bounds this product.
    HAULWAY_TRY(Need(count * Describe(type).bytes));
    switch (type) {
      case ValueType::kBool:
        return Fill<bool>(count, fact, [&] { return Bool(); });
      case ValueType::kString:
        return Fill<std::string>(count, fact, [&]() -> Result<std::string> {
          HAULWAY_ASSIGN(const std::string_view text, Text());
          return std::string(text);
        });
      case ValueType::kF32:
      case ValueType::kF64:
        return Fill<double>(count, fact,
                            [&]() -> Result<double> { return Real(type); });
      case ValueType::kI8:
      case ValueType::kI16:
      case ValueType::kI32:
      case ValueType::kI64:
        return Fill<int64_t>(count, fact,
                             [&]() -> Result<int64_t> { return Signed(type); });
      default:
        return Fill<uint64_t>(
            count, fact, [&]() -> Result<uint64_t> { return Unsigned(type); });
    }
  }

  template <class T, class Next>
  Status Fill(uint64_t count, Fact* fact, Next next) {
    std::vector<T> values;
    values.reserve(count);
    for (uint64_t i = 0; i < count; ++i) {
      HAULWAY_ASSIGN(T value, next());
      values.push_back(std::move(value));
    }
    fact->value.emplace<FactArray>(std::move(values));
    return Status();
  }

  // These functions require that the bytes are available.
  Result<bool> Bool() {
    const uint8_t value = cursor_.U8();
    if (value > 1) {
      return Wrong(
          fmt::format("bool is wrong: expected 0 or 1, found {}", value),
          cursor_.position() - 1);
    }
    return value == 1;
  }
  uint64_t Unsigned(ValueType type) {
    switch (Describe(type).bytes) {
      case 1:
        return cursor_.U8();
      case 2:
        return cursor_.U16();
      case 4:
        return cursor_.U32();
      default:
        return cursor_.U64();
    }
  }
  int64_t Signed(ValueType type) {
    switch (Describe(type).bytes) {
      case 1:
        return static_cast<int8_t>(cursor_.U8());
      case 2:
        return static_cast<int16_t>(cursor_.U16());
      case 4:
        return static_cast<int32_t>(cursor_.U32());
      default:
        return static_cast<int64_t>(cursor_.U64());
    }
  }
  double Real(ValueType type) {
    return type == ValueType::kF32 ? std::bit_cast<float>(cursor_.U32())
                                   : std::bit_cast<double>(cursor_.U64());
  }

  static Status SetAlignment(const Fact& fact, uint64_t byte, Header* header) {
    const auto* value = std::get_if<uint64_t>(&fact.value);
    if (value == nullptr || fact.type != Name(ValueType::kU32) ||
        !std::has_single_bit(*value)) {
      return Wrong(fmt::format("{} is wrong: expected a power of two of type "
                               "u32",
                               kAlignmentKey),
                   byte);
    }
    header->alignment = *value;
    return Status();
  }

  // Applies rules G11 to G14.
  Status ParseTensors(Header* header) {
    const auto name_of = [&](uint32_t i) { return header->tensors[i].name; };
    header->tensors.reserve(tensors_);
    NameIndex names;
    names.Reserve(tensors_);
    for (uint64_t i = 0; i < tensors_; ++i) {
      const uint64_t byte = cursor_.position();
      HAULWAY_ASSIGN(const std::string_view name, Text());
      if (name.size() > kLongestName && strict_) {
        return Wrong(fmt::format("name of a tensor has {} bytes: expected at "
                                 "most {}",
                                 name.size(), kLongestName),
                     byte);
      }
      if (!IsUtf8(name)) {
        return Wrong(fmt::format("name {} is not UTF-8", Quote(name)), byte);
      }
      HeaderTensor tensor;
      tensor.name = arena_->Copy(name);
      Status status = ParseTensor(&tensor);
      if (!status.ok()) return std::move(status).In(Quote(name));
      header->tensors.push_back(tensor);
      if (names.Add(tensor.name, static_cast<uint32_t>(i), name_of) !=
          NameIndex::kNone) {
        return Wrong(fmt::format("duplicate tensor {}", Quote(name)), byte);
      }
    }
    return Status();
  }

  Status ParseTensor(HeaderTensor* tensor) {
    HAULWAY_TRY(Need(4));
    const uint64_t byte = cursor_.position();
    const uint32_t rank = cursor_.U32();
    if (rank > kMostDimensions) {
      return Wrong(fmt::format("tensor has {} dimensions: expected at most {}",
                               rank, kMostDimensions),
                   byte);
    }
    HAULWAY_TRY(Need(rank * uint64_t{8} + 12));
    auto* shape =
        static_cast<int64_t*>(arena_->Allocate(rank * sizeof(int64_t)));
    // In the file, the first dimension varies fastest.
    for (uint32_t i = 0; i < rank; ++i) {
      const uint64_t size = cursor_.U64();
      if (size > static_cast<uint64_t>(INT64_MAX)) {
        return Wrong(fmt::format("dimension is wrong: expected less than 2^63, "
                                 "found {}",
                                 size),
                     cursor_.position() - 8);
      }
      shape[rank - 1 - i] = static_cast<int64_t>(size);
    }
    const uint64_t type_byte = cursor_.position();
    const uint32_t id = cursor_.U32();
    const std::optional<DType> dtype = TypeOf(id);
    if (!dtype.has_value()) {
      return Status(Code::kUnsupported,
                    fmt::format(
                        "type {} of a tensor is unknown, or was withdrawn", id))
          .At(type_byte);
    }
    tensor->dtype = *dtype;
    const DTypeInfo& info = haulway::Describe(*dtype);
    if (info.block_bytes != 0) {
      const int64_t row = rank == 0 ? 1 : shape[rank - 1];
      if (row % info.block_elements != 0) {
        return Wrong(fmt::format("rows of {} elements are no whole blocks of "
                                 "{}: expected a multiple of {}",
                                 row, info.name, info.block_elements),
                     byte);
      }
      uint64_t row_bytes = 0;
      if (!CheckedMultiply(static_cast<uint64_t>(row / info.block_elements),
                           info.block_bytes, &row_bytes) ||
          row_bytes > static_cast<uint64_t>(INT64_MAX)) {
        return Wrong("size of the tensor overflows", byte);
      }
      shape[rank - 1] = static_cast<int64_t>(row_bytes);
    }
    tensor->shape = {shape, rank};
    tensor->nbytes = info.item_bytes;
    for (const int64_t size : tensor->shape) {
      if (!CheckedMultiply(tensor->nbytes, static_cast<uint64_t>(size),
                           &tensor->nbytes)) {
        return Wrong("size of the tensor overflows", byte);
      }
    }
    tensor->offset = cursor_.U64();
    return Status();
  }

  // Applies rules G15 to G18.
  Status CheckPlaces(const Header& header) const {
    const uint64_t data_bytes = header.data_offset <= file_bytes_
                                    ? file_bytes_ - header.data_offset
                                    : 0;
    uint64_t next = 0;  // Where the next tensor must begin under strict rules.
    for (const HeaderTensor& tensor : header.tensors) {
      Status status = CheckPlace(header, tensor, data_bytes, &next);
      if (!status.ok()) return std::move(status).In(Quote(tensor.name));
    }
    if (!strict_) return CheckOverlap(header);
    if (data_bytes > next) {
      return Wrong(fmt::format("{} bytes follow the last tensor: expected none",
                               data_bytes - next),
                   header.data_offset + next);
    }
    return Status();
  }

  Status CheckPlace(const Header& header, const HeaderTensor& tensor,
                    uint64_t data_bytes, uint64_t* next) const {
    if (strict_ && tensor.offset % header.alignment != 0) {
      return Wrong(fmt::format("offset {} of the tensor is not aligned: "
                               "expected a multiple of {}",
                               tensor.offset, header.alignment),
                   header.header_bytes);
    }
    if (strict_ && tensor.offset != *next) {
      return Wrong(fmt::format("tensor {} the one before it: expected offset "
                               "{}, found {}",
                               tensor.offset > *next ? "leaves a hole after"
                                                     : "overlaps",
                               *next, tensor.offset),
                   header.header_bytes);
    }
    if (!RangeFits(tensor.offset, tensor.nbytes, data_bytes)) {
      return Status(Code::kTruncated,
                    fmt::format("tensor of {} bytes at {} of the data ends "
                                "past the file: expected at most {}",
                                tensor.nbytes, tensor.offset, data_bytes))
          .At(file_bytes_);
    }
    // Both are at most the file's size, so rounding up to a 32-bit alignment
    // cannot overflow.
    if (!CheckedRoundUp(tensor.offset + tensor.nbytes, header.alignment,
                        next)) {
      return Wrong("tensor ends past every file", header.header_bytes);
    }
    return Status();
  }

  // No byte may belong to two tensors, because loading allocates memory for
  // each.
  static Status CheckOverlap(const Header& header) {
    std::vector<const HeaderTensor*> order;
    order.reserve(header.tensors.size());
    for (const HeaderTensor& tensor : header.tensors) {
      if (tensor.nbytes != 0) order.push_back(&tensor);
    }
    std::ranges::sort(order, {}, &HeaderTensor::offset);
    for (size_t i = 1; i < order.size(); ++i) {
      if (order[i]->offset < order[i - 1]->offset + order[i - 1]->nbytes) {
        return Wrong(
                   fmt::format("tensor overlaps {}", Quote(order[i - 1]->name)),
                   header.header_bytes)
            .In(Quote(order[i]->name));
      }
    }
    return Status();
  }

  ByteCursor cursor_;
  const uint64_t file_bytes_;
  const bool strict_;
  const ParseLimits& limits_;
  TreeArena* const arena_;
  uint64_t wanted_ = 0;
  uint64_t tensors_ = 0;
  uint64_t key_values_ = 0;
};

}  // namespace

std::string_view Name(ValueType type) { return Describe(type).name; }
int BytesOf(ValueType type) { return Describe(type).bytes; }

Result<std::optional<Header>> ParseHeader(std::span<const std::byte> bytes,
                                          uint64_t file_bytes,
                                          Strictness strictness,
                                          const ParseLimits& limits,
                                          TreeArena* arena, uint64_t* wanted) {
  HeaderParser parser(bytes, file_bytes, strictness, limits, arena);
  std::optional<Header> header(std::in_place);
  Status status = parser.Parse(&*header);
  if (status.ok()) return header;
  if (parser.wanted() == 0) return status;
  *wanted = parser.wanted();
  return std::optional<Header>();
}

}  // namespace haulway::gguf

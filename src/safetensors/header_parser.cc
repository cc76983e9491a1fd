// Design: one pass of simdjson's on-demand parser over the header. Each value
// is consumed as the type that it must have; shapes and offsets go directly to
// the rows of tensors. simdjson checks skipped values only for matching
// brackets, so ignored values are walked and validated here. Repeated names and
// overlapping tensors are found after all tensors are parsed.
//
// Alternative not taken: simdjson's DOM takes several times the memory of the
// header for values that are read once. Forms beyond the format that the
// reference's library accepts (structures as arrays, variants as objects) are
// accepted, because such files exist; forms that it refuses are refused here.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <functional>
#include <utility>

#include "base/checked.h"
#include "base/cursor.h"
#include "base/name_index.h"
#include "base/text.h"
#include "safetensors/compact_header.h"
#include "safetensors/safetensors_header.h"

namespace haulway::safetensors {

namespace {

namespace ondemand = simdjson::ondemand;
using ondemand::json_type;

bool IsJsonSpace(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

bool IsLiteral(std::string_view token, std::string_view literal) {
  if (!token.starts_with(literal)) return false;
  return std::ranges::all_of(token.substr(literal.size()), IsJsonSpace);
}

std::string_view Spelling(json_type type) {
  switch (type) {
    case json_type::array:
      return "an array";
    case json_type::object:
      return "an object";
    case json_type::number:
      return "a number";
    case json_type::string:
      return "a string";
    case json_type::boolean:
      return "a boolean";
    case json_type::null:
      return "null";
    default:  // simdjson 4 has a value for what is no JSON.
      return "nothing";
  }
}

// A HeaderParser walks the JSON once. Every value is consumed as the type that
// it must have, or validated if it is ignored.
class HeaderParser {
 public:
  HeaderParser(std::span<const std::byte> json, uint64_t json_bytes,
               Strictness strictness, const ParseLimits& limits,
               TreeArena* arena)
      : text_(reinterpret_cast<const char*>(json.data())),
        bytes_(json_bytes),
        readable_(json.size()),
        strict_(strictness == Strictness::kStrict),
        limits_(limits),
        arena_(*arena) {}

  Result<Header> Parse() {
    uint64_t first = 0;
    while (first < bytes_ && IsJsonSpace(text_[first])) ++first;
    if (std::string_view(text_, bytes_).starts_with("\xef\xbb\xbf")) {
      return Status(Code::kCorrupt,
                    "header begins with a byte order mark (BOM): expected '{'")
          .At(kPrefixBytes);
    }
    if (first == bytes_ || text_[first] != '{') {
      return Status(Code::kCorrupt, "header is no JSON object")
          .At(kPrefixBytes + first);
    }
    ondemand::document document;
    if (auto error = parser_.iterate(text_, bytes_, readable_).get(document)) {
      return Fault(error, std::nullopt);
    }
    document_ = &document;
    ondemand::object root;
    if (auto error = document.get_object().get(root)) return Fault(error);
    // An entry takes about fifty bytes; the limit bounds the reservation.
    header_.tensors.reserve(std::min(bytes_ / 64, limits_.max_tensors));
    for (auto entry : root) {
      ondemand::field field;
      if (auto error = std::move(entry).get(field)) return Fault(error);
      HAULWAY_TRY(ParseEntry(field));
    }
    if (const char* after = Location(); after != nullptr) {
      return Wrong("header goes on after its object", after);
    }
    return std::move(header_);
  }

 private:
  using Value = ondemand::value;

  // Returns the file position of a byte of the text, if `at` is in the text.
  std::optional<uint64_t> ByteOf(const char* at) const {
    if (at < text_ || at > text_ + bytes_) return std::nullopt;
    return kPrefixBytes + static_cast<uint64_t>(at - text_);
  }
  Status Wrong(std::string_view what, const char* at,
               Code code = Code::kCorrupt) const {
    Status status(code, what);
    if (const auto byte = ByteOf(at)) return std::move(status).At(*byte);
    return status;
  }
  // Returns the position of the next token, or null at the end.
  const char* Location() const {
    const char* at = nullptr;
    if (document_ == nullptr || document_->current_location().get(at)) {
      return nullptr;
    }
    return at;
  }
  Status Here(Code code, std::string_view what) const {
    return Wrong(what, Location(), code);
  }
  Status Fault(simdjson::error_code error) const {
    return Fault(error, Location());
  }
  Status Fault(simdjson::error_code error,
               std::optional<const char*> at) const {
    switch (error) {
      case simdjson::UTF8_ERROR:
        return Status(Code::kCorrupt, "header is not UTF-8");
      case simdjson::MEMALLOC:
        return Status(Code::kLimit, "no memory to parse the header");
      default:
        return Wrong("header is not valid JSON", at.value_or(nullptr));
    }
  }
  Status Expected(std::string_view what, Value& value) const {
    json_type type;
    if (auto error = value.type().get(type)) return Fault(error);
    return Wrong(fmt::format("{}, found {}", what, Spelling(type)),
                 Token(value).data());
  }

  static std::string_view Token(Value& value) { return value.raw_json_token(); }

  // Returns whether the value has this type; false for malformed values.
  static bool Is(Value& value, json_type wanted) {
    json_type type;
    return !value.type().get(type) && type == wanted;
  }

  // Returns the text of a string whose opening quote is at `raw` - 1.
  Result<std::string_view> Text(ondemand::raw_json_string raw) {
    const char* begin = raw.raw();
    const char* const limit = text_ + bytes_;
    const char* end = static_cast<const char*>(
        std::memchr(begin, '"', static_cast<size_t>(limit - begin)));
    if (end == nullptr) return Wrong("header is not valid JSON", begin);
    const auto* escape = static_cast<const char*>(
        std::memchr(begin, '\\', static_cast<size_t>(end - begin)));
    if (escape == nullptr) {
      return std::string_view(begin, static_cast<size_t>(end - begin));
    }
    for (end = escape; end < limit && *end != '"'; ++end) {
      if (*end == '\\') ++end;
    }
    if (end >= limit) return Wrong("header is not valid JSON", begin);
    scratch_.resize(static_cast<size_t>(end - begin) + kPaddingBytes);
    uint8_t* out = scratch_.data();
    std::string_view text;
    if (parser_.unescape(raw, out).get(text)) {
      return Wrong("string has an escape that JSON lacks", begin);
    }
    // simdjson decodes a lone surrogate to invalid UTF-8.
    if (!IsUtf8(text)) return Wrong("string has a lone surrogate", begin);
    return arena_.Copy(text);
  }

  Status ParseEntry(ondemand::field& field) {
    const char* const at = field.key().raw();
    HAULWAY_ASSIGN(const std::string_view name, Text(field.key()));
    if (name == kMetadataKey) return ParseMetadata(field.value(), at);
    if (header_.tensors.size() >= limits_.max_tensors) {
      return Wrong(
          fmt::format("tensors pass max_tensors {}", limits_.max_tensors), at,
          Code::kLimit);
    }
    HeaderTensor tensor;
    tensor.name = name;
    Status status = ParseInfo(field.value(), &tensor);
    if (!status.ok()) return std::move(status).In(Quote(name));
    header_.tensors.push_back(tensor);
    return Status();
  }

  Status ParseMetadata(Value& value, const char* at) {
    if (has_metadata_) return Wrong("header has __metadata__ twice", at);
    has_metadata_ = true;
    if (Is(value, json_type::null)) return ParseNull(value);
    if (!Is(value, json_type::object)) {
      return Expected("__metadata__ is wrong: expected an object", value);
    }
    ondemand::object object;
    if (auto error = value.get_object().get(object)) return Fault(error);
    auto& metadata = header_.metadata.emplace();
    NameIndex keys;
    const auto key_of = [&](uint32_t i) { return metadata[i].first; };
    for (auto entry : object) {
      ondemand::field field;
      if (auto error = std::move(entry).get(field)) return Fault(error);
      const char* const key_at = field.key().raw();
      HAULWAY_ASSIGN(const std::string_view key, Text(field.key()));
      if (!Is(field.value(), json_type::string)) {
        return Expected("value of __metadata__ is wrong: expected a string",
                        field.value());
      }
      HAULWAY_ASSIGN(const std::string_view text, String(field.value()));
      const uint32_t same =
          keys.Add(key, static_cast<uint32_t>(metadata.size()), key_of);
      if (same == NameIndex::kNone) {
        metadata.emplace_back(key, text);
      } else if (strict_) {
        return Wrong(fmt::format("__metadata__ has {} twice", Quote(key)),
                     key_at);
      } else {
        metadata[same].second = text;
      }
    }
    return Status();
  }

  Result<std::string_view> String(Value& value) {
    ondemand::raw_json_string raw;
    if (auto error = value.get_raw_json_string().get(raw)) return Fault(error);
    return Text(raw);
  }

  Status ParseNull(Value& value) const {
    bool is_null = false;
    if (value.is_null().get(is_null) || !is_null) {
      return Here(Code::kCorrupt, "header is not valid JSON");
    }
    return Status();
  }

  Status ParseInfo(Value& value, HeaderTensor* tensor) {
    if (!strict_ && Is(value, json_type::array)) {
      return ParseInfoArray(value, tensor);
    }
    if (!Is(value, json_type::object)) {
      return Expected("tensor is wrong: expected an object", value);
    }
    ondemand::object object;
    if (auto error = value.get_object().get(object)) return Fault(error);
    bool seen[3] = {};
    for (auto entry : object) {
      ondemand::field field;
      if (auto error = std::move(entry).get(field)) return Fault(error);
      const char* const at = field.key().raw();
      HAULWAY_ASSIGN(const std::string_view key, Text(field.key()));
      const auto found = std::ranges::find(kFields, key);
      if (found == kFields.end()) {
        HAULWAY_TRY(Ignore(field.value(), 2));
        continue;
      }
      const auto which = static_cast<size_t>(found - kFields.begin());
      if (std::exchange(seen[which], true)) {
        return Wrong(fmt::format("tensor has {} twice", key), at);
      }
      HAULWAY_TRY(ParseField(which, field.value(), tensor));
    }
    for (size_t i = 0; i < kFields.size(); ++i) {
      if (!seen[i]) {
        return Here(Code::kCorrupt,
                    fmt::format("tensor has no {}", kFields[i]));
      }
    }
    return Status();
  }

  // The reference's JSON library also accepts a structure as an array.
  Status ParseInfoArray(Value& value, HeaderTensor* tensor) {
    ondemand::array array;
    if (auto error = value.get_array().get(array)) return Fault(error);
    size_t count = 0;
    for (auto entry : array) {
      Value item;
      if (auto error = std::move(entry).get(item)) return Fault(error);
      if (count == kFields.size()) {
        return Wrong("tensor is wrong: expected 3 items", Token(item).data());
      }
      HAULWAY_TRY(ParseField(count++, item, tensor));
    }
    if (count != kFields.size()) {
      return Here(Code::kCorrupt, "tensor is wrong: expected 3 items");
    }
    return Status();
  }

  Status ParseField(size_t which, Value& value, HeaderTensor* tensor) {
    switch (which) {
      case 0:
        return ParseDtype(value, tensor);
      case 1:
        return ParseShape(value, tensor);
      default:
        return ParseOffsets(value, tensor);
    }
  }

  Status ParseDtype(Value& value, HeaderTensor* tensor) {
    const char* const at = Token(value).data();
    std::string_view name;
    if (!strict_ && Is(value, json_type::object)) {
      // The reference's JSON library also accepts a variant's name as an object
      // with one key.
      ondemand::object object;
      if (auto error = value.get_object().get(object)) return Fault(error);
      size_t count = 0;
      for (auto entry : object) {
        ondemand::field field;
        if (auto error = std::move(entry).get(field)) return Fault(error);
        HAULWAY_ASSIGN(name, Text(field.key()));
        if (!Is(field.value(), json_type::null) || ++count > 1) {
          return Wrong("dtype is wrong: expected a string", at);
        }
        HAULWAY_TRY(ParseNull(field.value()));
      }
      if (count != 1) return Wrong("dtype is wrong: expected a string", at);
    } else if (Is(value, json_type::string)) {
      HAULWAY_ASSIGN(name, String(value));
    } else {
      return Expected("dtype is wrong: expected a string", value);
    }
    // Most tensors have the dtype of the previous one.
    if (name != Describe(last_dtype_).safetensors_name) {
      const auto dtype = DTypeNamed(name);
      if (!dtype.has_value()) {
        return Wrong(fmt::format("dtype {} is not known", Quote(name)), at);
      }
      last_dtype_ = *dtype;
    }
    tensor->dtype = last_dtype_;
    return Status();
  }

  Result<uint64_t> Number(Value& value, std::string_view what) const {
    uint64_t number = 0;
    const std::string_view token = Token(value);
    if (value.get_uint64().get(number)) {
      return Wrong(fmt::format("{} is wrong: expected a whole number, found {}",
                               what, Quote(token)),
                   token.data());
    }
    return number;
  }

  Status ParseShape(Value& value, HeaderTensor* tensor) {
    if (!Is(value, json_type::array)) {
      return Expected("shape is wrong: expected an array", value);
    }
    const char* const at = Token(value).data();
    ondemand::array array;
    if (auto error = value.get_array().get(array)) return Fault(error);
    dims_.clear();
    for (auto entry : array) {
      Value item;
      if (auto error = std::move(entry).get(item)) return Fault(error);
      HAULWAY_ASSIGN(const uint64_t dim, Number(item, "dimension"));
      if (dims_.size() >= limits_.max_rank) {
        return Wrong(fmt::format("rank passes max_rank {}", limits_.max_rank),
                     at, Code::kLimit);
      }
      dims_.push_back(dim);
    }
    return KeepShape(at, tensor);
  }

  Status KeepShape(const char* at, HeaderTensor* tensor) {
    if (dims_.empty()) return Status();
    auto* kept =
        static_cast<int64_t*>(arena_.Allocate(dims_.size() * sizeof(int64_t)));
    for (size_t i = 0; i < dims_.size(); ++i) {
      if (dims_[i] > static_cast<uint64_t>(INT64_MAX)) {
        return Wrong(
            fmt::format("dimension {} is more than tensors can have", dims_[i]),
            at, Code::kUnsupported);
      }
      kept[i] = static_cast<int64_t>(dims_[i]);
    }
    tensor->shape = {kept, dims_.size()};
    return Status();
  }

  Status ParseOffsets(Value& value, HeaderTensor* tensor) {
    if (!Is(value, json_type::array)) {
      return Expected("data_offsets is wrong: expected an array", value);
    }
    const char* const at = Token(value).data();
    ondemand::array array;
    if (auto error = value.get_array().get(array)) return Fault(error);
    uint64_t offsets[2] = {};
    size_t count = 0;
    for (auto entry : array) {
      Value item;
      if (auto error = std::move(entry).get(item)) return Fault(error);
      HAULWAY_ASSIGN(const uint64_t offset, Number(item, "offset"));
      if (count < 2) offsets[count] = offset;
      ++count;
    }
    if (count != 2) {
      return Wrong(fmt::format("data_offsets is wrong: expected 2 numbers, "
                               "found {}",
                               count),
                   at);
    }
    tensor->begin = offsets[0];
    tensor->end = offsets[1];
    return Status();
  }

  // Consumes and validates a value without meaning. `depth` is the number of
  // containers around it.
  Status Ignore(Value& value, uint32_t depth) {
    json_type type;
    if (auto error = value.type().get(type)) return Fault(error);
    const std::string_view token = Token(value);
    if ((type == json_type::object || type == json_type::array) &&
        depth >= limits_.max_json_depth) {
      return Wrong(fmt::format("header nests deeper than max_json_depth {}",
                               limits_.max_json_depth),
                   token.data(), Code::kLimit);
    }
    switch (type) {
      case json_type::object: {
        ondemand::object object;
        if (auto error = value.get_object().get(object)) return Fault(error);
        for (auto entry : object) {
          ondemand::field field;
          if (auto error = std::move(entry).get(field)) return Fault(error);
          HAULWAY_TRY(Text(field.key()).status());
          HAULWAY_TRY(Ignore(field.value(), depth + 1));
        }
        return Status();
      }
      case json_type::array: {
        ondemand::array array;
        if (auto error = value.get_array().get(array)) return Fault(error);
        for (auto entry : array) {
          Value item;
          if (auto error = std::move(entry).get(item)) return Fault(error);
          HAULWAY_TRY(Ignore(item, depth + 1));
        }
        return Status();
      }
      case json_type::string:
        return String(value).status();
      case json_type::null:
        return ParseNull(value);
      case json_type::number: {
        double number = 0;  // Must be finite.
        if (auto error = value.get_double().get(number)) return Fault(error);
        return Status();
      }
      default:
        if (IsLiteral(token, "true") || IsLiteral(token, "false")) {
          return Status();
        }
        return Wrong("header is not valid JSON", token.data());
    }
  }

  static constexpr std::array<std::string_view, 3> kFields = {"dtype", "shape",
                                                              "data_offsets"};

  const char* const text_;
  const uint64_t bytes_;
  const size_t readable_;
  const bool strict_;
  const ParseLimits& limits_;
  TreeArena& arena_;

  ondemand::parser parser_;
  ondemand::document* document_ = nullptr;
  Header header_;
  bool has_metadata_ = false;
  DType last_dtype_ = DType::kF32;
  std::vector<uint64_t> dims_;
  std::vector<uint8_t> scratch_;
};

// Refuses equal names (rule S05), or keeps the last tensor of each.
Status DropDuplicates(std::span<const std::byte> json, Strictness strictness,
                      LongVector<HeaderTensor>* tensors) {
  NameIndex names;
  names.Reserve(tensors->size());
  const auto name_of = [&](uint32_t i) { return (*tensors)[i].name; };
  std::array<uint32_t, 16> hashes{};  // Hashes of the next names.
  const auto fetch = [&](size_t i) {
    if (i >= tensors->size()) return;
    names.Fetch(hashes[i % hashes.size()] = names.Hash((*tensors)[i].name));
  };
  for (size_t i = 0; i < hashes.size(); ++i) fetch(i);
  uint32_t kept = 0;
  for (uint32_t i = 0; i < tensors->size(); ++i) {
    if (kept != i) (*tensors)[kept] = (*tensors)[i];
    const uint32_t hash = hashes[i % hashes.size()];
    fetch(i + hashes.size());
    const uint32_t same = names.Add(name_of(kept), hash, kept, name_of);
    if (same == NameIndex::kNone) {
      ++kept;
    } else if (strictness == Strictness::kStrict) {
      Status status(Code::kCorrupt, fmt::format("two tensors are named {}",
                                                Quote(name_of(kept))));
      const char* const text = reinterpret_cast<const char*>(json.data());
      const char* const at = name_of(kept).data();
      const bool in_text =
          std::less_equal()(text, at) && std::less()(at, text + json.size());
      if (!in_text) return status;
      return std::move(status).At(kPrefixBytes +
                                  static_cast<uint64_t>(at - text));
    } else {
      (*tensors)[same] = (*tensors)[kept];
    }
  }
  tensors->resize(kept);
  return Status();
}

// Returns the size of a tensor in bytes, by rules S11 and S12.
Result<uint64_t> BytesOf(const HeaderTensor& tensor) {
  uint64_t bits = ElementBits(tensor.dtype);
  uint64_t count = 1;
  for (const int64_t dim : tensor.shape) {
    if (!CheckedMultiply(count, static_cast<uint64_t>(dim), &count)) {
      return Status(Code::kCorrupt, "number of elements overflows");
    }
  }
  if (!CheckedMultiply(bits, count, &bits)) {
    return Status(Code::kCorrupt, "number of bytes overflows");
  }
  if (bits % 8 != 0) {
    return Status(Code::kCorrupt,
                  fmt::format("{} elements of {} do not fill whole bytes",
                              count, Describe(tensor.dtype).safetensors_name));
  }
  return bits / 8;
}

// Checks rules S10 to S15: the tensors follow one another and fill the data.
Status CheckLayout(std::span<const HeaderTensor> tensors, uint64_t data_bytes) {
  uint64_t at = 0;
  for (const HeaderTensor& tensor : tensors) {
    const auto check = [&]() -> Status {
      if (tensor.begin != at || tensor.end < tensor.begin) {
        return Status(Code::kCorrupt,
                      fmt::format("tensor does not follow the one before: "
                                  "expected data from {} on, found {} to {}",
                                  at, tensor.begin, tensor.end));
      }
      HAULWAY_ASSIGN(const uint64_t bytes, BytesOf(tensor));
      if (bytes != tensor.end - tensor.begin) {
        return Status(
            Code::kCorrupt,
            fmt::format("dtype {} with shape [{}] needs {} bytes, range holds "
                        "{}",
                        Describe(tensor.dtype).safetensors_name,
                        fmt::join(tensor.shape, ", "), bytes,
                        tensor.end - tensor.begin));
      }
      return Status();
    };
    Status status = check();
    if (!status.ok()) return std::move(status).In(Quote(tensor.name));
    at = tensor.end;
  }
  if (at == data_bytes) return Status();
  return Status(
      at > data_bytes ? Code::kTruncated : Code::kCorrupt,
      fmt::format("tensors do not fill the file: expected {} bytes of data, "
                  "found {}",
                  at, data_bytes));
}

}  // namespace

Result<uint64_t> ParsePrefix(std::span<const std::byte> prefix,
                             uint64_t file_bytes, const ParseLimits& limits) {
  ByteCursor cursor(prefix);
  const uint64_t json_bytes = cursor.U64();
  if (!cursor.ok() || file_bytes < kPrefixBytes) {
    return Status(Code::kTruncated,
                  fmt::format("header length needs {} bytes, {} remain",
                              kPrefixBytes, prefix.size()))
        .At(0);
  }
  if (json_bytes > limits.max_header_bytes) {
    return Status(Code::kLimit,
                  fmt::format("header of {} bytes passes max_header_bytes {}",
                              json_bytes, limits.max_header_bytes))
        .At(0);
  }
  if (json_bytes > file_bytes - kPrefixBytes) {
    return Status(Code::kTruncated,
                  fmt::format("header needs {} bytes, {} remain", json_bytes,
                              file_bytes - kPrefixBytes))
        .At(kPrefixBytes);
  }
  return json_bytes;
}

Result<Header> ParseJsonHeader(std::span<const std::byte> json,
                               uint64_t json_bytes, Strictness strictness,
                               const ParseLimits& limits, TreeArena* arena) {
  return HeaderParser(json, json_bytes, strictness, limits, arena).Parse();
}

Result<Header> ParseHeader(std::span<const std::byte> json, uint64_t json_bytes,
                           uint64_t data_bytes, Strictness strictness,
                           const ParseLimits& limits, TreeArena* arena) {
  assert(json.size() >= json_bytes + kPaddingBytes);
  Header header;
  if (auto compact = ParseCompactHeader(json, json_bytes, limits, arena)) {
    header = *std::move(compact);
  } else {
    HAULWAY_ASSIGN(
        header, ParseJsonHeader(json, json_bytes, strictness, limits, arena));
  }
  HAULWAY_TRY(DropDuplicates(json, strictness, &header.tensors));
  const auto place = [](const HeaderTensor& tensor) {
    return std::pair(tensor.begin, tensor.end);
  };
  if (!std::ranges::is_sorted(header.tensors, {}, place)) {
    std::ranges::stable_sort(header.tensors, {}, place);
  }
  HAULWAY_TRY(CheckLayout(header.tensors, data_bytes));
  return header;
}

}  // namespace haulway::safetensors

// Design: the header is a Python literal with three keys whose values have
// three kinds, so a parser for just these suffices. It knows strings without
// escapes, booleans, numbers and tuples, and skips the contents of a structured
// type, whose elements are opaque bytes to Haulway.
//
// Alternative not taken: NumPy calls ast.literal_eval(), which accepts much
// more and costs more. Headers that it would accept and this parser refuses are
// reported with their byte. The writer pads as NumPy does, with room for the
// first dimension to grow, so equal arrays make equal files.

#include "npy/npy_header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "base/checked.h"
#include "base/cursor.h"
#include "base/text.h"
#include "tensor/no_dtype.h"

namespace haulway::npy {

namespace {

// Returns what the first letter of an unsupported type means.
std::string_view KindOf(std::string_view code) {
  switch (code.empty() ? '\0' : code.front()) {
    case 'U':
      return "text";
    case 'S':
    case 'a':
      return "byte strings";
    case 'M':
      return "times";
    case 'm':
      return "spans of time";
    case 'V':
      return "raw bytes";
    case 'f':
    case 'c':
    case 'i':
    case 'u':
      return "numbers of an unusual size";
    default:
      return "elements of a type that is not known";
  }
}

class LiteralParser {
 public:
  LiteralParser(const Prefix& prefix, std::string_view text,
                const ParseLimits& limits)
      : prefix_(prefix), text_(text), limits_(limits) {}

  Status Parse(ArrayHeader* header, std::vector<int64_t>* shape) {
    HAULWAY_TRY(Expect('{'));
    bool has_descr = false, has_order = false, has_shape = false;
    while (!Skip('}')) {
      const size_t at = at_;
      HAULWAY_ASSIGN(const std::string_view key, Text());
      bool* has = key == "descr"           ? &has_descr
                  : key == "fortran_order" ? &has_order
                  : key == "shape"         ? &has_shape
                                           : nullptr;
      if (has == nullptr || *has) {
        return Wrong(fmt::format("key {} is {}", Quote(key),
                                 has == nullptr ? "not known" : "there twice"),
                     at);
      }
      *has = true;
      HAULWAY_TRY(Expect(':'));
      HAULWAY_TRY(has == &has_descr   ? ParseDescr(header)
                  : has == &has_order ? ParseOrder(header)
                                      : ParseShape(shape));
      if (!Skip(',')) {
        HAULWAY_TRY(Expect('}'));
        break;
      }
    }
    if (!has_descr || !has_order || !has_shape) {
      return Wrong(
          "header lacks a key: expected 'descr', 'fortran_order' and "
          "'shape'",
          at_);
    }
    SkipSpace();
    if (at_ != text_.size()) return Wrong("header goes on after its end", at_);
    return Status();
  }

 private:
  Status Wrong(std::string_view what, size_t at) const {
    return Status(Code::kCorrupt, what).At(prefix_.prefix_bytes + at);
  }

  void SkipSpace() {
    while (at_ < text_.size() &&
           std::string_view(" \t\n\r\f").find(text_[at_]) !=
               std::string_view::npos) {
      ++at_;
    }
  }
  bool Skip(char c) {
    SkipSpace();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool SkipWord(std::string_view word) {
    SkipSpace();
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  Status Expect(char c) {
    if (Skip(c)) return Status();
    return Wrong(fmt::format("header is no literal of the right form: "
                             "expected '{}'",
                             c),
                 at_);
  }

  // Reads a string without escapes. No key and no simple type needs escapes.
  Result<std::string_view> Text() {
    SkipSpace();
    const size_t at = at_;
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') {
      return Wrong("header is no literal of the right form: expected a string",
                   at);
    }
    const size_t end =
        text_.find_first_of(quote == '"' ? "\"\\\n" : "'\\\n", at + 1);
    if (end == text_.npos || text_[end] != quote) {
      return Wrong("string does not end, or has escapes", at);
    }
    at_ = end + 1;
    return text_.substr(at + 1, end - at - 1);
  }

  Status ParseDescr(ArrayHeader* header) {
    SkipSpace();
    const size_t at = at_;
    if (at < text_.size() && (text_[at] == '[' || text_[at] == '(')) {
      header->item_bytes = NestedBytes(0);
      if (!header->item_bytes.has_value()) {
        at_ = at;
        HAULWAY_TRY(SkipNested());
      }
      header->refusal =
          Status(Code::kUnsupported,
                 "array holds structures, which Haulway does not read")
              .At(prefix_.prefix_bytes + at);
      return Status();
    }
    HAULWAY_ASSIGN(const std::string_view descr, Text());
    const char order = descr.empty() ? '\0' : descr.front();
    const bool has_order = order == '<' || order == '>' || order == '|';
    const std::string_view code = descr.substr(has_order ? 1 : 0);
    header->item_bytes = CodeBytes(descr);
    const auto known = DTypeFromNumpyCode(code);
    const auto refuse = [&](Code why, std::string_view what) {
      header->refusal =
          Status(why, fmt::format("array of type {} {}", Quote(descr), what))
              .At(prefix_.prefix_bytes + at);
    };
    if (code == "O" || code == "O8" || code == "O4") {
      refuse(Code::kUnsafe, "holds Python objects, which are never loaded");
    } else if (!known.has_value()) {
      refuse(
          Code::kUnsupported,
          fmt::format("holds {}, which Haulway does not read", KindOf(code)));
    } else if (order != '<' && order != '>' && ItemBytes(*known) > 1) {
      refuse(Code::kUnsupported, "does not say in which order its bytes are");
    } else {
      header->dtype = *known;
      header->big_endian = order == '>';
    }
    return Status();
  }

  // Returns the size in bytes of an element of a list of fields, ('name', type)
  // or ('name', type, shape), or of (type, shape). Returns nullopt, with an
  // unspecified position, for anything else.
  std::optional<uint64_t> NestedBytes(int depth) {
    constexpr int kDeepest = 32;
    if (depth > kDeepest) return std::nullopt;
    if (Skip('(')) {
      auto bytes = TypeBytes(depth);
      if (!Skip(',') || !MultiplyByShape(&bytes) || !Skip(')')) {
        return std::nullopt;
      }
      return bytes;
    }
    if (!Skip('[')) return std::nullopt;
    uint64_t sum = 0;
    while (!Skip(']')) {
      if (!Skip('(') || !SkipFieldName() || !Skip(',')) return std::nullopt;
      auto bytes = TypeBytes(depth);
      if (Skip(',') && !MultiplyByShape(&bytes)) return std::nullopt;
      if (!Skip(')') || !bytes.has_value() || !CheckedAdd(sum, *bytes, &sum)) {
        return std::nullopt;
      }
      if (Skip(',')) continue;
      if (!Skip(']')) return std::nullopt;
      break;
    }
    return sum;
  }

  std::optional<uint64_t> TypeBytes(int depth) {
    SkipSpace();
    if (at_ < text_.size() && (text_[at_] == '[' || text_[at_] == '(')) {
      return NestedBytes(depth + 1);
    }
    const auto code = Text();
    return code.ok() ? CodeBytes(*code) : std::nullopt;
  }

  // Skips 'name' or ('title', 'name').
  bool SkipFieldName() {
    if (!Skip('(')) return Text().ok();
    return Text().ok() && Skip(',') && Text().ok() && Skip(')');
  }

  bool MultiplyByShape(std::optional<uint64_t>* bytes) {
    std::vector<int64_t> shape;
    if (!bytes->has_value() || !ParseShape(&shape).ok()) return false;
    uint64_t all = **bytes;
    for (const int64_t size : shape) {
      if (!CheckedMultiply(all, static_cast<uint64_t>(size), &all)) {
        return false;
      }
    }
    *bytes = all;
    return true;
  }

  // Returns the size in bytes of an element of type '<f4', '|S3', 'M8[ns]';
  // nullopt for objects and other types.
  static std::optional<uint64_t> CodeBytes(std::string_view code) {
    constexpr std::string_view kOrders = "<>|=";
    constexpr std::string_view kKinds = "?biufcmMSaUV";
    if (!code.empty() && kOrders.find(code[0]) != code.npos) {
      code.remove_prefix(1);
    }
    if (code == "?") return 1;
    if (code.size() < 2 || kKinds.find(code[0]) == code.npos) {
      return std::nullopt;
    }
    const char kind = code[0];
    const char* const end = code.data() + code.size();
    uint32_t size = 0;
    const auto [stop, error] = std::from_chars(code.data() + 1, end, size);
    if (error != std::errc() || size > INT32_MAX) return std::nullopt;
    const std::string_view unit(stop, static_cast<size_t>(end - stop));
    const bool is_time = kind == 'm' || kind == 'M';
    const bool has_unit =
        unit.size() > 2 && unit.front() == '[' && unit.back() == ']' &&
        unit.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyzYMWD", 1) ==
            unit.size() - 1;
    if (!unit.empty() && !(is_time && has_unit)) return std::nullopt;
    const bool is_text = kind == 'S' || kind == 'a' || kind == 'V';
    if (!is_text && kind != 'U' && (size == 0 || size > 64)) {
      return std::nullopt;
    }
    return uint64_t{size} * (kind == 'U' ? 4 : 1);
  }

  // Skips a list or tuple with its contents.
  Status SkipNested() {
    const size_t at = at_;
    std::string open;
    char quote = '\0';
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (quote != '\0') {
        if (c == '\\') ++at_;
        if (c == quote) quote = '\0';
      } else if (c == '\'' || c == '"') {
        quote = c;
      } else if (c == '[' || c == '(') {
        open += c;
      } else if (c == ']' || c == ')') {
        if (open.back() != (c == ']' ? '[' : '(')) break;
        open.pop_back();
        if (open.empty()) {
          ++at_;
          return Status();
        }
      }
    }
    return Wrong("list in the header does not end", at);
  }

  Status ParseOrder(ArrayHeader* header) {
    header->fortran_order = SkipWord("True");
    if (header->fortran_order || SkipWord("False")) return Status();
    return Wrong("fortran_order is wrong: expected True or False", at_);
  }

  Status ParseShape(std::vector<int64_t>* shape) {
    HAULWAY_TRY(Expect('('));
    bool comma = true;  // Whether a comma followed the last dimension.
    while (!Skip(')')) {
      if (!comma) return Expect(',');
      SkipSpace();
      const size_t at = at_;
      const char* const end = text_.data() + text_.size();
      int64_t size = 0;
      const auto [stop, error] = std::from_chars(text_.data() + at, end, size);
      const size_t digits = stop - (text_.data() + at);
      if (error != std::errc() || text_[at] == '-' ||
          (digits > 1 && text_[at] == '0')) {
        return Wrong("dimension is wrong: expected a number below 2^63", at);
      }
      at_ += digits;
      // Python 2 wrote long numbers with an L.
      if (prefix_.version < 3 && at_ < text_.size() && text_[at_] == 'L') ++at_;
      if (shape->size() == limits_.max_rank) {
        return Status(Code::kLimit, fmt::format("dimensions pass max_rank {}",
                                                limits_.max_rank))
            .At(prefix_.prefix_bytes + at);
      }
      shape->push_back(size);
      comma = Skip(',');
    }
    if (shape->size() == 1 && !comma) {
      return Wrong("shape is a number: expected a tuple", at_);
    }
    return Status();
  }

  const Prefix& prefix_;
  const std::string_view text_;
  const ParseLimits& limits_;
  size_t at_ = 0;
};

// From numpy/lib/format.py: ARRAY_ALIGN and GROWTH_AXIS_MAX_DIGITS; and
// NPY_MAXDIMS.
constexpr size_t kDataAlignment = 64;
constexpr size_t kGrowthDigits = 21;
constexpr size_t kMostDimensions = 64;

}  // namespace

Result<Prefix> ParsePrefix(std::span<const std::byte> start,
                           uint64_t array_bytes, const ParseLimits& limits) {
  ByteCursor cursor(start);
  const bool is_array = cursor.Text(kMagic.size()) == kMagic;
  Prefix prefix;
  prefix.version = cursor.U8();
  const uint8_t minor = cursor.U8();
  if (cursor.ok() && !is_array) {
    return Status(Code::kCorrupt, "array does not begin with '\\x93NUMPY'")
        .At(0);
  }
  if (cursor.ok() && (prefix.version < 1 || prefix.version > 3 || minor != 0)) {
    return Status(Code::kUnsupported,
                  fmt::format("version of npy is not read: expected 1.0, 2.0 "
                              "or 3.0, found {}.{}",
                              prefix.version, minor))
        .At(kMagic.size());
  }
  prefix.header_bytes = prefix.version == 1 ? cursor.U16() : cursor.U32();
  if (!cursor.ok()) {
    return Status(Code::kTruncated,
                  fmt::format("array ends in its first bytes: expected at "
                              "least 10, found {}",
                              array_bytes))
        .At(start.size());
  }
  prefix.prefix_bytes = cursor.position();
  if (prefix.header_bytes > array_bytes - prefix.prefix_bytes) {
    return Status(Code::kTruncated,
                  fmt::format("header of {} bytes ends past the array: "
                              "expected at most {}",
                              prefix.header_bytes,
                              array_bytes - prefix.prefix_bytes))
        .At(kMagic.size() + 2);
  }
  if (prefix.header_bytes > limits.max_npy_header_bytes) {
    return Status(Code::kLimit,
                  fmt::format("header of {} bytes passes "
                              "max_npy_header_bytes {}",
                              prefix.header_bytes, limits.max_npy_header_bytes))
        .At(kMagic.size() + 2);
  }
  return prefix;
}

Result<ArrayHeader> ParseHeader(const Prefix& prefix,
                                std::span<const std::byte> header,
                                uint64_t data_bytes, Strictness strictness,
                                const ParseLimits& limits, TreeArena* arena) {
  ArrayHeader array;
  std::vector<int64_t> sizes;
  const std::string_view text(reinterpret_cast<const char*>(header.data()),
                              header.size());
  HAULWAY_TRY(LiteralParser(prefix, text, limits).Parse(&array, &sizes));
  array.nbytes = data_bytes;
  if (array.item_bytes.has_value()) {
    uint64_t stored = *array.item_bytes;
    bool fits = true;
    for (const int64_t size : sizes) {
      fits =
          fits && CheckedMultiply(stored, static_cast<uint64_t>(size), &stored);
    }
    if (std::ranges::find(sizes, 0) != sizes.end()) {
      array.stored_bytes = 0;
    } else if (fits) {
      array.stored_bytes = stored;
    }
  }
  if (!array.refusal.ok()) {
    // The elements cannot be read, so the array is a run of bytes.
    array.fortran_order = false;
    sizes = {static_cast<int64_t>(data_bytes)};
  } else {
    array.nbytes = ItemBytes(array.dtype);
    bool fits = true;
    for (const int64_t size : sizes) {
      fits = fits && CheckedMultiply(array.nbytes, static_cast<uint64_t>(size),
                                     &array.nbytes);
    }
    // If one size is zero, the product of the others may overflow.
    const bool empty = std::ranges::find(sizes, 0) != sizes.end();
    if (empty) array.nbytes = 0;
    if (!fits && !empty) {
      return Status(Code::kCorrupt, "size of the array overflows")
          .At(prefix.prefix_bytes);
    }
    if (array.nbytes > data_bytes) {
      return Status(Code::kTruncated,
                    fmt::format("array of {} bytes ends past its end: expected "
                                "at most {}",
                                array.nbytes, data_bytes))
          .At(prefix.data_offset() + data_bytes);
    }
    if (array.nbytes < data_bytes && strictness == Strictness::kStrict) {
      return Status(Code::kCorrupt,
                    fmt::format("{} bytes follow the array: expected none",
                                data_bytes - array.nbytes))
          .At(prefix.data_offset() + array.nbytes);
    }
  }
  auto* shape =
      static_cast<int64_t*>(arena->Allocate(sizes.size() * sizeof(int64_t)));
  std::ranges::copy(sizes, shape);
  array.shape = {shape, sizes.size()};
  return array;
}

Result<std::string> EncodeHeader(DType dtype, std::span<const int64_t> shape) {
  const std::string code = NumpyCode(dtype);
  if (code.empty()) {
    return NoDType("NumPy", dtype);
  }
  if (shape.size() > kMostDimensions) {
    return Status(Code::kUnsupported,
                  fmt::format("{} dimensions: NumPy has at most {}",
                              shape.size(), kMostDimensions));
  }
  std::string dict = fmt::format(
      "{{'descr': '{}{}', 'fortran_order': False, 'shape': ({}{}), }}",
      ItemBytes(dtype) == 1 ? '|' : '<', code, fmt::join(shape, ", "),
      shape.size() == 1 ? "," : "");
  if (!shape.empty()) {
    dict.append(kGrowthDigits - fmt::formatted_size("{}", shape[0]), ' ');
  }
  // NumPy counts at least one space, and a newline.
  const size_t used = kMagic.size() + 4 + dict.size() + 1;
  dict.append(kDataAlignment - used % kDataAlignment, ' ');
  dict += '\n';
  std::string header(kMagic);
  header += std::string_view("\x01\x00", 2);
  header += static_cast<char>(dict.size() & 0xFF);
  header += static_cast<char>(dict.size() >> 8);
  return header + dict;
}

}  // namespace haulway::npy

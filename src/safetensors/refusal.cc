// Design: programs compare these messages, so a refused header is read again in
// the order in which the package checks it. A JSON reader that stops at the
// first fault reports what and where, as the package's reader does. Entries of
// tensors are checked one by one, but the fault of the first wrong entry is
// reported only after the whole text was read, at its end, because the package
// buffers entries. The offsets are checked last, in their order. Of each entry,
// only what this last step needs is kept.
//
// Tried instead: translate the statuses of our own reader. It finds other
// faults first, so most messages named another place.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <limits>
#include <system_error>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "haulway/safetensors.h"
#include "safetensors/refusal_values.h"
#include "safetensors/safetensors_header.h"

namespace haulway {

namespace safetensors {

namespace {

// Maximum nesting of values.
constexpr int kMostNested = 128;

constexpr std::string_view kEndInValue = "EOF while parsing a value";
constexpr std::string_view kEndInObject = "EOF while parsing an object";
constexpr std::string_view kEndInList = "EOF while parsing a list";
constexpr std::string_view kEndInString = "EOF while parsing a string";
constexpr std::string_view kOddNumber = "invalid number";
constexpr std::string_view kTooLarge = "number out of range";
constexpr std::string_view kTrailing = "trailing characters";
constexpr std::string_view kComma = "trailing comma";

// How many levels of values within an entry determine its message: the fields,
// and the values in them. For deeper levels, only the number of values is kept.
constexpr int kDepthKept = 2;

// A RoughNumber is a decimal number as the package parses it: the digits that
// fit in 64 bits, times a power of ten. It may be off by a few units in the
// last place, which the package's messages show.
class RoughNumber {
 public:
  explicit RoughNumber(int digit) : digits_(digit) {}

  uint64_t digits() const { return digits_; }

  // Adds a digit. Returns false if there is no room; this and the following
  // digits then count as zeros.
  bool AddDigit(int digit) {
    uint64_t more = 0;
    is_full_ = is_full_ || __builtin_mul_overflow(digits_, 10, &more) ||
               __builtin_add_overflow(more, digit, &more);
    if (!is_full_) digits_ = more;
    if (is_full_ != is_fraction_) exponent_ += is_full_ ? 1 : -1;
    return !is_full_;
  }
  // Begins the fraction. Its digits are tested for room again.
  void AddPoint() {
    is_fraction_ = true;
    is_full_ = false;
  }
  void Scale(int64_t exponent) { exponent_ += exponent; }

  // Returns the value; infinity if it is too large.
  double Value() const {
    constexpr int kMostPower = 308;
    auto value = static_cast<double>(digits_);
    int64_t exponent = exponent_;
    for (; value != 0 && exponent < -kMostPower; exponent += kMostPower) {
      value /= Power(kMostPower);
    }
    if (value == 0) return 0;
    if (exponent > kMostPower) return std::numeric_limits<double>::infinity();
    return exponent < 0 ? value / Power(-exponent) : value * Power(exponent);
  }

 private:
  static double Power(int64_t of_ten) {
    return std::strtod(fmt::format("1e{}", of_ten).c_str(), nullptr);
  }

  uint64_t digits_;
  int64_t exponent_ = 0;
  bool is_full_ = false;
  bool is_fraction_ = false;
};

// The facts that the check of offsets needs.
struct Tensor {
  std::string name;
  uint64_t begin = 0;
  uint64_t end = 0;
  std::optional<uint64_t> bits;  // Nullopt if the product overflows.
};

// A HeaderJudge is a cursor in the text. A method that finds a fault returns
// false. Then fault_ has the message, and line_ and column_ the place unless it
// is determined later.
class HeaderJudge {
 public:
  HeaderJudge(std::string_view text, uint64_t data_bytes)
      : text_(text), data_bytes_(data_bytes) {}

  std::optional<std::string> Refusal() {
    if (const auto refusal = Utf8Refusal(text_)) {
      return "invalid UTF-8 in header: " + *refusal;
    }
    if (!Root() || !End()) {
      return fmt::format("invalid JSON in header: {} at line {} column {}",
                         fault_, line_, column_);
    }
    return CheckOffsets();
  }

 private:
  // --- Faults.

  bool Place(size_t at, std::string_view what) {
    const std::string_view before = text_.substr(0, at);
    const size_t newline = before.rfind('\n');
    const size_t line_start = newline == before.npos ? 0 : newline + 1;
    line_ = 1 + std::count(before.begin(), before.begin() + line_start, '\n');
    column_ = at - line_start;
    fault_ = what;
    placed_ = true;
    return false;
  }
  // Reports a fault after the bytes read so far.
  bool Wrong(std::string_view what) { return Place(at_, what); }
  // Reports a fault after the next byte.
  bool WrongNext(std::string_view what) {
    return Place(std::min(text_.size(), at_ + 1), what);
  }
  // Reports a fault whose place is determined later.
  bool WrongSomewhere(std::string what) {
    fault_ = std::move(what);
    placed_ = false;
    return false;
  }
  bool Placed(bool ok) {
    if (!ok && !placed_) Place(at_, std::string(fault_));
    return ok;
  }

  // --- Text.

  int Next() const {
    return at_ < text_.size() ? static_cast<unsigned char>(text_[at_]) : -1;
  }
  int Take() {
    const int next = Next();
    if (next != -1) ++at_;
    return next;
  }
  int AfterSpace() {
    for (;; ++at_) {
      const int c = Next();
      if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return c;
    }
  }
  static bool IsDigit(int c) { return c >= '0' && c <= '9'; }

  bool Word(std::string_view rest) {
    for (const char expected : rest) {
      const int c = Take();
      if (c == -1) return Wrong(kEndInValue);
      if (c != expected) return Wrong("expected ident");
    }
    return true;
  }

  bool HexEscape(uint32_t* code) {
    if (text_.size() - at_ < 4) {
      at_ = text_.size();
      return Wrong(kEndInString);
    }
    const std::string_view digits = text_.substr(at_, 4);
    at_ += 4;
    const auto end = digits.data() + digits.size();
    const auto read = std::from_chars(digits.data(), end, *code, 16);
    if (read.ec != std::errc() || read.ptr != end || digits[0] == '-') {
      return Wrong("invalid escape");
    }
    return true;
  }

  bool UnicodeEscape(std::string* out) {
    constexpr std::string_view kLone = "lone leading surrogate in hex escape";
    uint32_t code = 0;
    if (!HexEscape(&code)) return false;
    if (code >= 0xdc00 && code <= 0xdfff) return Wrong(kLone);
    if (code >= 0xd800 && code <= 0xdbff) {
      for (const char expected : {'\\', 'u'}) {
        if (Next() == -1) return Wrong(kEndInString);
        if (Take() != expected) return Wrong("unexpected end of hex escape");
      }
      uint32_t low = 0;
      if (!HexEscape(&low)) return false;
      if (low < 0xdc00 || low > 0xdfff) return Wrong(kLone);
      code = 0x10000 + ((code - 0xd800) << 10 | (low - 0xdc00));
    }
    AppendUtf8(code, out);
    return true;
  }

  // Reads a string after its opening quote.
  bool Text(std::string* out) {
    out->clear();
    while (true) {
      const int c = Take();
      if (c == -1) return Wrong(kEndInString);
      if (c == '"') return true;
      if (c < 0x20) {
        return Wrong(
            "control character (\\u0000-\\u001F) found while parsing a string");
      }
      if (c != '\\') {
        out->push_back(static_cast<char>(c));
        continue;
      }
      const int escape = Take();
      if (escape == -1) return Wrong(kEndInString);
      if (escape == 'u') {
        if (!UnicodeEscape(out)) return false;
        continue;
      }
      constexpr std::string_view kEscapes = "\"\\/bfnrt";
      constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
      const size_t which = kEscapes.find(static_cast<char>(escape));
      if (which == kEscapes.npos) return Wrong("invalid escape");
      out->push_back(kMeanings[which]);
    }
  }

  // Reads a number, after its sign if it has one.
  bool Number(bool positive, Node* node) {
    const int first = Take();
    if (first == -1) return Wrong(kEndInValue);
    if (!IsDigit(first)) return Wrong(kOddNumber);
    if (first == '0' && IsDigit(Next())) return WrongNext(kOddNumber);
    RoughNumber rough(first - '0');
    bool is_real = false;
    while (IsDigit(Next())) is_real |= !rough.AddDigit(Take() - '0');
    if (Next() == '.') {
      is_real = true;
      ++at_;
      if (!IsDigit(Next())) {
        return WrongNext(Next() == -1 ? kEndInValue : kOddNumber);
      }
      rough.AddPoint();
      while (IsDigit(Next())) rough.AddDigit(Take() - '0');
    }
    if (Next() == 'e' || Next() == 'E') {
      is_real = true;
      ++at_;
      const bool grows = Next() != '-';
      if (Next() == '+' || Next() == '-') ++at_;
      const int digit = Take();
      if (digit == -1) return Wrong(kEndInValue);
      if (!IsDigit(digit)) return Wrong(kOddNumber);
      int64_t exponent = digit - '0';
      while (IsDigit(Next())) {
        exponent =
            std::min<int64_t>(exponent * 10 + (Take() - '0'), int64_t{1} << 32);
        // An exponent beyond this limit ends the number immediately.
        if (exponent > std::numeric_limits<int32_t>::max() && grows &&
            rough.digits() != 0) {
          return Wrong(kTooLarge);
        }
      }
      rough.Scale(grows ? exponent : -exponent);
    }
    if (!is_real && positive) {
      node->kind = Node::Kind::kUnsigned;
      node->number = rough.digits();
      return true;
    }
    const auto negative = static_cast<int64_t>(-rough.digits());
    if (!is_real && negative < 0) {
      node->kind = Node::Kind::kSigned;
      node->negative = negative;
      return true;
    }
    node->kind = Node::Kind::kFloat;
    node->real = rough.Value();
    if (std::isinf(node->real)) return Wrong(kTooLarge);
    if (!positive) node->real = -node->real;
    return true;
  }

  // Reads a value other than a list or object. `c` is its first byte.
  bool Scalar(int c, Node* node) {
    if (IsDigit(c)) return Number(true, node);
    switch (c) {
      case 'n':
        ++at_;
        node->kind = Node::Kind::kNull;
        return Word("ull");
      case 't':
      case 'f':
        ++at_;
        node->kind = Node::Kind::kBool;
        node->truth = c == 't';
        return Word(c == 't' ? "rue" : "alse");
      case '-':
        ++at_;
        return Number(false, node);
      case '"':
        ++at_;
        node->kind = Node::Kind::kText;
        return Text(&node->text);
      default:
        return WrongNext("expected value");
    }
  }

  // Reads any value. `kept`: how many levels inside it to keep.
  bool Value(Node* node, int kept = kDepthKept) {
    const int c = AfterSpace();
    if (c == -1) return WrongNext(kEndInValue);
    if (c != '[' && c != '{') return Placed(Scalar(c, node));
    return Inside(c, [&] {
      node->kind = c == '[' ? Node::Kind::kList : Node::Kind::kMap;
      bool first = true, more = false;
      while (Next(c, &first, &more)) {
        if (!more) return true;
        std::string name;
        if (c == '{' && (!Name(&name) || !Colon())) return false;
        Node value;
        if (!Value(&value, kept - 1)) return false;
        if (kept <= 0) {
          ++node->count;
        } else if (c == '[') {
          node->Add(std::move(value));
        } else {
          node->Add(std::move(name), std::move(value));
        }
      }
      return false;
    });
  }

  // Reads a list or object from its opening bracket, which is next, to its
  // closing bracket. `visit` reads the content; its result is returned.
  template <class Visit>
  bool Inside(int bracket, Visit visit) {
    if (--room_ == 0) return WrongNext("recursion limit exceeded");
    ++at_;
    const bool ok = visit();
    ++room_;
    const std::pair fault(fault_, placed_);
    const std::pair place(line_, column_);
    const bool closed = Close(bracket);
    if (!ok) {  // The first fault counts.
      std::tie(fault_, placed_) = fault;
      std::tie(line_, column_) = place;
    }
    return Placed(ok && closed);
  }

  static int Closing(int bracket) { return bracket == '[' ? ']' : '}'; }
  static std::string_view EndIn(int bracket) {
    return bracket == '[' ? kEndInList : kEndInObject;
  }

  bool Close(int bracket) {
    const int c = AfterSpace();
    if (c == Closing(bracket)) return ++at_, true;
    if (c == -1) return WrongNext(EndIn(bracket));
    if (c != ',') return WrongNext(kTrailing);
    if (bracket == '{') return WrongNext(kComma);
    ++at_;
    return WrongNext(AfterSpace() == ']' ? kComma : kTrailing);
  }

  // Moves to the next item of a list, or name of an object. At the closing
  // bracket, `*more` is false.
  bool Next(int bracket, bool* first, bool* more) {
    int c = AfterSpace();
    *more = c != Closing(bracket);
    if (!*more) return true;
    if (c == -1) return WrongNext(EndIn(bracket));
    if (!std::exchange(*first, false)) {
      if (c != ',') {
        return WrongNext(bracket == '[' ? "expected `,` or `]`"
                                        : "expected `,` or `}`");
      }
      ++at_;
      c = AfterSpace();
      if (c == Closing(bracket)) return WrongNext(kComma);
      if (c == -1) return WrongNext(kEndInValue);
    }
    return bracket == '[' || c == '"' || WrongNext("key must be a string");
  }
  bool Name(std::string* name) {
    ++at_;
    return Text(name);
  }
  bool Colon() {
    const int c = AfterSpace();
    if (c == ':') return ++at_, true;
    return WrongNext(c == -1 ? kEndInObject : "expected `:`");
  }

  // Reads a value that has the wrong type in any case.
  bool Unexpected(int c, std::string_view expected) {
    Node node;
    if (c == '[' || c == '{') {
      node.kind = c == '[' ? Node::Kind::kList : Node::Kind::kMap;
    } else if (!Scalar(c, &node)) {
      return Placed(false);
    }
    return Placed(WrongSomewhere(WrongType(node, expected)));
  }

  // Reads the header.

  bool Root() {
    const int c = AfterSpace();
    if (c == -1) return WrongNext(kEndInValue);
    if (c != '{') return Unexpected(c, "struct HashMetadata");
    return Inside(c, [&] {
      bool first = true, more = false, has_metadata = false;
      while (Next('{', &first, &more)) {
        if (!more) {
          return entry_fault_.empty() || WrongSomewhere(entry_fault_);
        }
        std::string name;
        if (!Name(&name)) return false;
        if (name == "__metadata__") {
          if (std::exchange(has_metadata, true)) {
            return WrongSomewhere("duplicate field `__metadata__`");
          }
          if (!Colon() || !Metadata()) return false;
          continue;
        }
        Node entry;
        if (!Colon() || !Value(&entry)) return false;
        if (entry_fault_.empty()) CheckEntry(std::move(name), entry);
      }
      return false;
    });
  }
  bool End() { return AfterSpace() == -1 || WrongNext(kTrailing); }

  bool Metadata() {
    const int c = AfterSpace();
    if (c == -1) return WrongNext(kEndInValue);
    if (c == 'n') return ++at_, Word("ull");
    if (c != '{') return Unexpected(c, "a map");
    return Inside(c, [&] {
      bool first = true, more = false;
      std::string text;
      while (Next('{', &first, &more)) {
        if (!more) return true;
        if (!Name(&text) || !Colon()) return false;
        const int value = AfterSpace();
        if (value == -1) return WrongNext(kEndInValue);
        if (value != '"') return Unexpected(value, "a string");
        if (!Name(&text)) return Placed(false);
      }
      return false;
    });
  }

  void CheckEntry(std::string name, const Node& entry) {
    constexpr std::string_view kStruct = "struct TensorInfo";
    Tensor tensor;
    tensor.name = std::move(name);
    std::array<bool, 3> has = {};
    uint64_t bits = 0;
    std::optional<uint64_t> elements;
    const auto take = [&](size_t field, const Node& value) {
      has[field] = true;
      if (field == 0) return CheckDtype(value, &bits);
      if (field == 1) return CheckShape(value, &elements);
      return CheckPair(value, &tensor);
    };
    if (entry.kind == Node::Kind::kList) {
      for (size_t i = 0; i < kFields.size(); ++i) {
        if (i == entry.count) {
          entry_fault_ = fmt::format(
              "invalid length {}, expected {} with 3 elements", i, kStruct);
          return;
        }
        if (!take(i, entry.items[i])) return;
      }
      if (TooLong(entry, kFields.size())) return;
    } else if (entry.kind == Node::Kind::kMap) {
      for (const auto& [key, value] : entry.fields) {
        const size_t field = std::ranges::find(kFields, key) - kFields.begin();
        if (field == kFields.size()) continue;
        if (has[field]) {
          entry_fault_ = fmt::format("duplicate field `{}`", key);
          return;
        }
        if (!take(field, value)) return;
      }
      for (size_t i = 0; i < kFields.size(); ++i) {
        if (has[i]) continue;
        entry_fault_ = fmt::format("missing field `{}`", kFields[i]);
        return;
      }
    } else {
      entry_fault_ = WrongType(entry, kStruct);
      return;
    }
    uint64_t product = 0;
    if (elements.has_value() &&
        !__builtin_mul_overflow(*elements, bits, &product)) {
      tensor.bits = product;
    }
    // If a name repeats, the last entry counts.
    if (const auto at = rows_.find(tensor.name); at != rows_.end()) {
      Tensor& known = *at->second;
      known.begin = tensor.begin;
      known.end = tensor.end;
      known.bits = tensor.bits;
    } else {
      Tensor& added = tensors_.emplace_back(std::move(tensor));
      rows_.emplace(added.name, &added);
    }
  }

  bool CheckDtype(const Node& value, uint64_t* bits) {
    const Node* spelling = &value;
    if (value.kind == Node::Kind::kMap) {
      if (value.count != 1) {
        entry_fault_ = "invalid value: map, expected map with a single key";
        return false;
      }
    } else if (value.kind != Node::Kind::kText) {
      entry_fault_ = WrongType(value, "string or map");
      return false;
    }
    const std::string& name =
        value.kind == Node::Kind::kMap ? value.fields[0].name : spelling->text;
    const auto found = DTypeNamed(name);
    if (!found.has_value()) {
      entry_fault_ =
          fmt::format("unknown variant `{}`, expected one of ", name);
      for (const DType dtype : kSafetensorsDTypes) {
        entry_fault_ +=
            fmt::format("{}`{}`", dtype == kSafetensorsDTypes[0] ? "" : ", ",
                        Describe(dtype).safetensors_name);
      }
      return false;
    }
    if (value.kind == Node::Kind::kMap) {
      const Node& content = value.fields[0].node;
      if (content.kind != Node::Kind::kNull) {
        entry_fault_ = WrongType(content, "unit");
        return false;
      }
    }
    *bits = ElementBits(*found);
    return true;
  }

  bool CheckNumber(const Node& value, uint64_t* number) {
    if (value.kind == Node::Kind::kUnsigned) {
      *number = value.number;
      return true;
    }
    entry_fault_ =
        value.kind == Node::Kind::kSigned
            ? fmt::format("invalid value: {}, expected usize", Found(value))
            : WrongType(value, "usize");
    return false;
  }

  bool CheckShape(const Node& value, std::optional<uint64_t>* elements) {
    if (value.kind != Node::Kind::kList) {
      entry_fault_ = WrongType(value, "a sequence");
      return false;
    }
    for (const Node& item : value.items) {
      uint64_t number = 0;
      if (!CheckNumber(item, &number)) return false;
    }
    *elements = value.product;
    return true;
  }

  bool CheckPair(const Node& value, Tensor* tensor) {
    if (value.kind != Node::Kind::kList) {
      entry_fault_ = WrongType(value, "a tuple of size 2");
      return false;
    }
    for (size_t i = 0; i < 2; ++i) {
      if (i == value.count) {
        entry_fault_ =
            fmt::format("invalid length {}, expected a tuple of size 2", i);
        return false;
      }
      if (!CheckNumber(value.items[i],
                       i == 0 ? &tensor->begin : &tensor->end)) {
        return false;
      }
    }
    return !TooLong(value, 2);
  }

  bool TooLong(const Node& list, size_t expected) {
    if (list.count <= expected) return false;
    entry_fault_ = fmt::format(
        "invalid length {}, expected {} elements in "
        "sequence",
        list.count, expected);
    return true;
  }

  std::optional<std::string> CheckOffsets() {
    rows_.clear();  // Sorting moves the rows.
    std::ranges::stable_sort(tensors_, {}, [](const Tensor& tensor) {
      return std::pair(tensor.begin, tensor.end);
    });
    uint64_t start = 0;
    for (const Tensor& tensor : tensors_) {
      if (tensor.begin != start || tensor.end < tensor.begin) {
        return fmt::format("invalid offset for tensor `{}`", tensor.name);
      }
      start = tensor.end;
      if (!tensor.bits.has_value()) {
        return "overflow computing buffer size from shape and/or element type";
      }
      if (*tensor.bits % 8 != 0) {
        return "The slice is slicing for subbytes dtypes, and the slice does "
               "not end up at a byte boundary, this is invalid.";
      }
      if (tensor.end - tensor.begin != *tensor.bits / 8) {
        return "invalid shape, data type, or offset for tensor";
      }
    }
    if (start != data_bytes_) {
      return "incomplete metadata, file not fully covered";
    }
    return std::nullopt;
  }

  const std::string_view text_;
  const uint64_t data_bytes_;
  size_t at_ = 0;
  int room_ = kMostNested;
  std::string fault_;
  bool placed_ = false;
  size_t line_ = 0;
  size_t column_ = 0;
  std::string entry_fault_;  // The fault of the first wrong entry.
  std::deque<Tensor> tensors_;
  std::unordered_map<std::string_view, Tensor*> rows_;  // Points into tensors_.
};

}  // namespace

}  // namespace safetensors

std::optional<std::string> SafetensorsRefusal(std::string_view header,
                                              uint64_t data_bytes) {
  return safetensors::HeaderJudge(header, data_bytes).Refusal();
}

}  // namespace haulway

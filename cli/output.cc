// Design: JSON is made from the tables of fields that the library's structs
// have (haulway/fields.h), so that a report has the same names here and in
// Python. Tables for people are aligned from the widest cell of a column, up to
// a limit: one name of thousands of bytes must not widen all rows. On a
// terminal, where it would fill the screen, it is cut; in a pipe it is whole,
// for grep and the like.

#include "output.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <variant>

#include "columns.h"
#include "haulway/open.h"
#include "haulway/pickle.h"
#include "help.h"

namespace haulway::cli {
namespace {

// Returns the length of the well-formed UTF-8 sequence at the start of `text`,
// or 0 if it is a control character or not well-formed.
size_t Printable(std::string_view text) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = at(0);
  if (lead < 0x80) return lead >= 0x20 && lead != 0x7F ? 1 : 0;
  const size_t size = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < size) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((at(i) & 0xC0) != 0x80) return 0;
  }
  const uint8_t next = at(1);
  if ((lead == 0xC2 && next < 0xA0) || (lead == 0xE0 && next < 0xA0) ||
      (lead == 0xED && next > 0x9F) || (lead == 0xF0 && next < 0x90) ||
      (lead == 0xF4 && next > 0x8F)) {
    return 0;
  }
  return size;
}

}  // namespace

std::string Escape(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t size = Printable(text);
    if (size == 0) {
      out += fmt::format("\\x{:02x}", static_cast<uint8_t>(text[0]));
    } else {
      out += text.substr(0, size);
    }
    text.remove_prefix(std::max<size_t>(size, 1));
  }
  return out;
}

std::string Hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  }
  return text;
}

std::string Counted(uint64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string Size(uint64_t bytes, bool exact) {
  if (exact) return std::to_string(bytes);
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  const char* unit = "KMGTPE";
  while (value >= 1024 && unit[1] != 0) value /= 1024, ++unit;
  return fmt::format("{:.1f} {}iB", value, *unit);
}

std::string Shape(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string JsonText(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const size_t size = Printable(text);
    if (size == 0) {
      out += fmt::format("\\u{:04x}", static_cast<uint8_t>(text[0]));
    } else {
      if (text[0] == '"' || text[0] == '\\') out += '\\';
      out += text.substr(0, size);
    }
    text.remove_prefix(std::max<size_t>(size, 1));
  }
  return out + '"';
}

namespace {

// Items of an array to show, unless the output is JSON.
constexpr size_t kShownItems = 8;

std::string Scalar(bool value, bool json) {
  return json ? (value ? "true" : "false") : (value ? "yes" : "no");
}
std::string Scalar(double value, bool json) {
  // JSON has no NaN or infinity.
  return json && !std::isfinite(value) ? "null" : fmt::format("{}", value);
}
std::string Scalar(const std::string& value, bool json) {
  return json ? JsonText(value) : Escape(value);
}
std::string Scalar(int64_t value, bool) { return std::to_string(value); }
std::string Scalar(uint64_t value, bool) { return std::to_string(value); }
std::string Scalar(std::monostate, bool json) { return json ? "null" : "-"; }
std::string Scalar(const FactJson& value, bool json) {
  return json ? value.text : Escape(value.text);
}
std::string Scalar(const FactArray& array, bool json) {
  return std::visit(
      [json](const auto& values) {
        std::string text = "[";
        const size_t shown =
            json ? values.size() : std::min(values.size(), kShownItems);
        for (size_t i = 0; i < shown; ++i) {
          if (i > 0) text += json ? "," : ", ";
          text += Scalar(values[i], json);
        }
        if (shown == values.size()) return text + "]";
        return fmt::format("{}, ... {} in all]", text, values.size());
      },
      array);
}

}  // namespace

std::string FactText(const FactValue& value, bool json) {
  return std::visit([json](const auto& v) { return Scalar(v, json); }, value);
}

void PrintFindings(const std::vector<Finding>& findings) {
  for (const Finding& finding : findings) {
    fmt::print("  {}\n", Escape(finding.message));
  }
}

void Json::Comma() {
  if (!out_.empty() && out_.back() != '{' && out_.back() != '[' &&
      out_.back() != ':') {
    out_ += ',';
  }
}
Json& Json::Begin(char bracket) {
  Comma();
  out_ += bracket;
  return *this;
}
Json& Json::End(char bracket) {
  out_ += bracket;
  return *this;
}
Json& Json::Key(std::string_view key) {
  Comma();
  out_ += JsonText(key) + ':';
  return *this;
}
Json& Json::Text(std::string_view value) { return Raw(JsonText(value)); }
Json& Json::Raw(std::string_view token) {
  Comma();
  out_ += token;
  return *this;
}
Json& Json::Float(double value) {
  return Raw(std::isfinite(value) ? fmt::format("{}", value) : "null");
}
Json& Json::Numbers(std::span<const int64_t> values) {
  return Raw(fmt::format("[{}]", fmt::join(values, ",")));
}
Json& Json::Opcodes(const OpcodeCounts& opcodes) {
  Begin('{');
  for (const auto& [opcode, count] : opcodes) {
    Key(PickleOpcodeName(opcode)).Number(count);
  }
  return End('}');
}
Json& Json::Spelled(std::string_view value, Spelling spelling) {
  if (spelling == Spelling::kTextOrNone && value.empty()) return Raw("null");
  return Text(spelling == Spelling::kPath ? ShownName(value) : value);
}
void Json::Print() const { fmt::print("{}\n", out_); }

void Json::Flush() {
  constexpr size_t kMuch = 64 * 1024;
  if (out_.size() < kMuch) return;
  // The last character says whether a comma follows.
  const std::string_view begin(out_.data(), out_.size() - 1);
  fmt::print("{}", begin);
  out_.erase(0, begin.size());
}

namespace {

// The widest column where lines are not wrapped, and the least one elsewhere.
constexpr size_t kWidest = 120;
constexpr size_t kLeastWidest = 20;

// Returns the first `columns` of a text; the last one says that it is cut.
std::string Cut(std::string_view text, size_t columns) {
  size_t end = 0;
  for (size_t next = 0; next < text.size(); ++next) {
    const bool begins = (static_cast<uint8_t>(text[next]) & 0xC0) != 0x80;
    if (!begins) continue;
    if (Columns(text.substr(0, next)) >= columns) break;
    end = next;
  }
  return fmt::format("{}…", text.substr(0, end));
}

bool HasColours() {
  const char* const off = std::getenv("NO_COLOR");
  const char* const terminal = std::getenv("TERM");
  return ::isatty(STDOUT_FILENO) != 0 && (off == nullptr || *off == '\0') &&
         terminal != nullptr && std::string_view(terminal) != "dumb";
}

}  // namespace

std::string Coloured(std::string_view word, Finds finds) {
  static const bool has_colours = HasColours();
  if (!has_colours) return std::string(word);
  constexpr std::string_view kColours[] = {"32", "33", "31"};
  return fmt::format("\x1b[{}m{}\x1b[0m", kColours[static_cast<size_t>(finds)],
                     word);
}

std::string OkOrFailed(bool ok) {
  return ok ? Coloured("OK    ", Finds::kNothing)
            : Coloured("FAILED", Finds::kFault);
}

Table::Table(std::string_view align)
    : align_(align), width_(align.size()), terminal_(TerminalWidth()) {}

void Table::Measure(const std::vector<std::string>& row) {
  for (size_t i = 0; i < row.size(); ++i) {
    width_[i] = std::max(width_[i], Columns(row[i]));
  }
}

void Table::Add(const std::vector<std::string>& row) {
  Measure(row);
  for (size_t i = 0; i < align_.size(); ++i) {
    const std::string_view cell = i < row.size() ? row[i] : std::string_view();
    text_ += cell;
    sizes_.push_back(static_cast<uint32_t>(cell.size()));
  }
}

void Table::PrintCells(std::span<const std::string_view> cells) const {
  const size_t widest =
      terminal_ == 0 ? kWidest : std::max(terminal_ / 2, kLeastWidest);
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    const size_t columns = Columns(cells[i]);
    const size_t width = std::min(width_[i], widest);
    const bool is_cut = terminal_ != 0 && columns > width && align_[i] != '.';
    const std::string pad(width - std::min(columns, width), ' ');
    line += i == 0 ? "" : "  ";
    if (align_[i] == '>') line += pad;
    if (is_cut) {
      line += Cut(cells[i], width);
    } else {
      line += cells[i];
    }
    if (align_[i] != '>') line += pad;
  }
  line.erase(line.find_last_not_of(' ') + 1);
  fmt::print("{}\n", line);
}

void Table::PrintRow(const std::vector<std::string>& row) const {
  PrintCells(std::vector<std::string_view>(row.begin(), row.end()));
}

void Table::Print() const {
  std::vector<std::string_view> cells(align_.size());
  size_t at = 0;
  for (size_t row = 0; row < sizes_.size(); row += cells.size()) {
    for (size_t i = 0; i < cells.size(); ++i) {
      cells[i] = std::string_view(text_).substr(at, sizes_[row + i]);
      at += cells[i].size();
    }
    PrintCells(cells);
  }
}

}  // namespace haulway::cli

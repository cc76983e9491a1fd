// Design: one pass with a stack of the open objects and lists. Each level holds
// what its key says about the values in it (config_names.h), so a value is
// judged when it is read. Facts that need several members, such as the class of
// a skops object or the parts of a pipeline, are judged at the end of the
// object.
//
// Alternative not taken: build a tree of the values. A tokenizer has hundreds
// of thousands of values, and none is needed again.

#include "scan/json_walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "safetensors/refusal_values.h"
#include "scan/file_names.h"
#include "scan/template_proof.h"

namespace haulway::scan {

namespace {

// Python's json module fails at a much smaller depth.
constexpr size_t kDeepestJson = 10'000;

// Returns a JSON string with its escapes decoded.
std::string Unescaped(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      plain += text[i];
      continue;
    }
    ++i;
    unsigned code = 0;
    constexpr std::string_view kLetters = "bfnrt", kBytes = "\b\f\n\r\t";
    if (text[i] == 'u' && i + 4 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 5, code, 16)
                .ptr == text.data() + i + 5) {
      safetensors::AppendUtf8(code, &plain);
      i += 4;
    } else if (const size_t at = kLetters.find(text[i]); at != text.npos) {
      plain += kBytes[at];
    } else {
      plain += text[i];
    }
  }
  return plain;
}

class JsonWalk {
 public:
  JsonWalk(std::string_view text, const ConfigPlace& place)
      : text_(text), place_(place) {
    constexpr std::string_view kBom = "\xEF\xBB\xBF";
    if (text_.starts_with(kBom)) at_ = kBom.size();
  }

  // Reads values until the end of the text. Returns false if the text is not
  // JSON.
  bool Values() {
    SkipSpace();
    if (at_ == text_.size() || (Next() != '{' && Next() != '[')) return false;
    for (; at_ < text_.size(); SkipSpace()) {
      if (!Value()) return false;
    }
    return true;
  }
  std::optional<Doubt> TakeDoubt() { return std::move(doubt_); }

 private:
  enum class Want : uint8_t { kValue, kValueOrEnd, kKey, kKeyOrEnd, kAfter };

  // The members by which programs recognise a class or a pipeline.
  struct Object {
    ClassRecord record;
    bool is_pipeline = false;
    std::optional<Doubt> part;  // Doubt about a part of a pipeline.
  };
  struct Level {
    bool is_object = false;
    KeyFacts key;          // Facts about the key of this level's values.
    KeyFacts outer;        // Facts about the key of the whole object.
    size_t index = 0;      // Index of the next value, in a list.
    bool is_part = false;  // True for a list that may be a part of a pipeline.
    std::string name;      // Name of the last member, in an object.
    std::unique_ptr<Object> object;
  };

  char Next() const { return text_[at_]; }
  void SkipSpace() {
    at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size());
  }
  void Note(std::optional<std::string> why, size_t byte) {
    if (why.has_value() && !doubt_.has_value()) {
      doubt_ = Doubt{*std::move(why), byte};
    }
  }

  bool Value() {
    levels_.clear();
    Want want = Want::kValue;
    do {
      SkipSpace();
      if (at_ == text_.size()) return false;
      const char c = Next();
      const bool may_end = want == Want::kAfter || want == Want::kValueOrEnd ||
                           want == Want::kKeyOrEnd;
      if (may_end && (c == '}' || c == ']')) {
        if (levels_.empty() || levels_.back().is_object != (c == '}')) {
          return false;
        }
        Close();
        want = Want::kAfter;
      } else if (want == Want::kAfter) {
        if (c != ',') return false;
        ++at_;
        want = levels_.back().is_object ? Want::kKey : Want::kValue;
      } else if (want == Want::kKey || want == Want::kKeyOrEnd) {
        if (!Key()) return false;
        want = Want::kValue;
      } else if (c == '{' || c == '[') {
        if (levels_.size() == kDeepestJson) return false;
        Open(c == '{');
        want = c == '{' ? Want::kKeyOrEnd : Want::kValueOrEnd;
      } else {
        const size_t begin = at_;
        const bool is_string = c == '"';
        if (!(is_string ? String() : Scalar())) return false;
        if (!levels_.empty()) Judge(begin, is_string);
        want = Want::kAfter;
      }
    } while (!levels_.empty());
    return true;
  }

  void Open(bool is_object) {
    Level level;
    level.is_object = is_object;
    if (!levels_.empty()) {
      Level& outer = levels_.back();
      level.key = level.outer = outer.key;
      level.is_part = !is_object && outer.is_object && !outer.name.empty() &&
                      outer.name[0] != '_';
      if (!outer.is_object) ++outer.index;
    }
    levels_.push_back(std::move(level));
    ++at_;
  }

  void Close() {
    if (const Object* object = levels_.back().object.get()) {
      Note(DoubtOfClass(object->record, place_), at_);
      const bool is_pipeline = object->is_pipeline || IsPipeline("", place_);
      if (is_pipeline && object->part.has_value()) {
        Note(object->part->why, object->part->byte);
      }
    }
    levels_.pop_back();
    ++at_;
  }

  bool Key() {
    const size_t begin = at_;
    if (!String()) return false;
    Level& level = levels_.back();
    level.name = Unescaped(text_.substr(begin + 1, at_ - begin - 2));
    Note(DoubtOfKey(level.name), begin);
    level.key = FactsOfKey(level.name, level.outer, place_);
    SkipSpace();
    if (at_ == text_.size() || Next() != ':') return false;
    ++at_;
    return true;
  }

  static Object& ObjectOf(Level* level) {
    if (level->object == nullptr) level->object = std::make_unique<Object>();
    return *level->object;
  }

  // Judges the value between `begin` and the current position.
  void Judge(size_t begin, bool is_string) {
    Level& level = levels_.back();
    const std::optional<size_t> index =
        level.is_object ? std::nullopt : std::optional(level.index++);
    if (doubt_.has_value()) return;
    const bool is_of_object =
        level.is_object && level.name.starts_with('_') && is_string;
    const bool may_be_library = level.is_part && index == 0 && is_string;
    const KeyFacts& key = level.key;
    // The value may be "ext://...", with escapes.
    const bool may_be_object =
        is_string && (text_[begin + 1] == 'e' || text_[begin + 1] == '\\');
    if (key.row == nullptr && !key.is_template && !is_of_object &&
        !may_be_library && !may_be_object &&
        key.naming == KeyFacts::Naming::kNone) {
      return;
    }
    std::string_view slice = text_.substr(begin, at_ - begin);
    if (is_string) slice = slice.substr(1, slice.size() - 2);
    const std::string text = is_string ? Unescaped(slice) : std::string(slice);
    if (may_be_object) Note(DoubtOfObject(text), begin);
    if (key.is_template && is_string) {
      if (auto doubt = DoubtOfTemplate(text))
        Note(std::move(doubt->why), begin);
    }
    Note(DoubtOfValue(key, {.text = text, .index = index}, place_), begin);
    if (is_of_object) JudgeMember(text, &level);
    if (may_be_library && !IsLibraryOfParts(text)) {
      Object& object = ObjectOf(&levels_[levels_.size() - 2]);
      if (object.part.has_value()) return;
      object.part =
          Doubt{fmt::format("{}, which diffusers imports", Quote(text)), begin};
    }
  }

  void JudgeMember(const std::string& text, Level* level) {
    ClassRecord found;
    if (found.Find(level->name) != nullptr) {
      *ObjectOf(level).record.Find(level->name) = text;
    } else if (level->name == "_class_name" ||
               level->name == "_blocks_class_name") {
      Object& object = ObjectOf(level);
      object.is_pipeline = object.is_pipeline || IsPipeline(text, place_);
    }
  }

  bool String() {
    if (Next() != '"') return false;
    for (++at_; at_ < text_.size(); ++at_) {
      if (Next() == '"') {
        ++at_;
        return true;
      }
      if (static_cast<unsigned char>(Next()) < ' ') return false;
      if (Next() != '\\') continue;
      // YAML knows more escapes. YAML readers would read a different text.
      constexpr std::string_view kEscapes = "\"\\/bfnrtu";
      if (++at_ == text_.size() || kEscapes.find(Next()) == kEscapes.npos) {
        return false;
      }
    }
    return false;
  }

  bool Scalar() {
    const size_t end =
        std::min(text_.find_first_of(" \t\r\n,]}:", at_), text_.size());
    const std::string_view word = text_.substr(at_, end - at_);
    at_ = end;
    constexpr std::string_view kWords[] = {"true", "false",    "null",
                                           "NaN",  "Infinity", "-Infinity"};
    return std::ranges::find(kWords, word) != std::end(kWords) ||
           (!word.empty() &&
            word.find_first_not_of("+-.0123456789eE") == word.npos);
  }

  std::string_view text_;
  const ConfigPlace& place_;
  size_t at_ = 0;
  std::vector<Level> levels_;
  std::optional<Doubt> doubt_;
};

}  // namespace

JsonFacts WalkJson(std::string_view text, const ConfigPlace& place) {
  JsonWalk walk(text, place);
  if (!walk.Values()) return {};
  return {.is_json = true, .doubt = walk.TakeDoubt()};
}

}  // namespace haulway::scan

// The pickle tracer as a class; pickle_tracer.h has its contract.
//
// Design: it executes the opcodes of a pickle on values of eight bytes that
// keep only what can decide a verdict: the kind of an object, the offset of a
// string, the global that was named. So tracing a pickle of any size takes
// memory of a few times its memo. Where Python's two unpicklers, in C and in
// Python, differ, the tracer goes on only if both would read the same opcodes,
// and otherwise reports it.
//
// Alternatives not taken: the machine in pickle/ stops at names that are not
// allowed, and the tracer must see what comes after them; it also keeps data,
// which the tracer does not need. A plain list of opcodes, as pickletools
// prints, does not tell what STACK_GLOBAL names.

#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "haulway/pickle.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "scan/byte_window.h"
#include "scan/pickle_tracer.h"

namespace haulway::scan {

// Limit on values alive at a time. No real pickle has more.
inline constexpr size_t kMostValues = 16'000'000;
// Limit on stored tuples and dicts that could describe an array or an
// enumeration member.
inline constexpr size_t kMostKept = 2'000'000;
// Longer names are in no table, and nobody would read them.
inline constexpr uint64_t kLongestName = 4096;
// Limit on reported mentions of globals. Those that are not allowed are also
// faults, with their own limit.
inline constexpr size_t kMostGlobals = 100'000;
// Limit on the letters in the mentions that are reported.
inline constexpr size_t kMostLetters = 16'000'000;
inline constexpr size_t kMostFaults = 1'000;
// Limit on the items of one container that are checked. Picklers write 1,000 at
// a time.
inline constexpr size_t kMostItems = 2'000;

enum class Kind : uint8_t {
  kOther,   // Anything that can neither be a name nor be called.
  kNumber,  // An integer; `at` is its opcode.
  kText,    // A str; `at` is the opcode that holds it.
  kGlobal,  // `at` is its place in names_.
  kTuple,   // `at` is the opcode that made it, as for the following kinds.
  kDict,
  kObject,    // Result of a call.
  kInstance,  // Instance of a class; `at` is the class's place in names_.
  kMember,    // An enumeration member, which exists once per process.
  kDType,     // Result of numpy.dtype(); `at` is the opcode of the call.
  kArray,     // An array as NumPy writes it; `at` likewise. Gets a state once.
  kNumpy,     // Result of any other class or function of NumPy.
  kRead,      // The array that joblib read; to other readers its wrapper.
};

class Thing {
 public:
  Thing() = default;
  Thing(Kind kind, uint64_t at)
      : bits_(static_cast<uint64_t>(kind) << 56 | (at & kPlace)) {}
  Kind kind() const { return static_cast<Kind>(bits_ >> 56); }
  bool is(Kind other) const { return kind() == other; }
  // Returns whether a call made it, so that it could be any object.
  bool is_made() const { return kind() >= Kind::kObject; }
  uint64_t at() const { return bits_ & kPlace; }

 private:
  static constexpr uint64_t kPlace = (uint64_t{1} << 56) - 1;
  uint64_t bits_ = 0;
};

// A Memo maps numbers to values. Numbers are mostly consecutive from 0.
class Memo {
 public:
  // Stores a value. Returns false if there are too many.
  bool Put(uint64_t number, Thing thing) {
    if (number < dense_.size()) {
      // A value may have been stored in sparse_ while there were few.
      if (!there_[number] && sparse_.erase(number) == 0) ++count_;
      there_[number] = true;
      dense_[number] = thing;
      return true;
    }
    if (number < 2 * dense_.size() + 1024 && number < kMostValues) {
      dense_.resize(number + 1);
      there_.resize(number + 1);
      there_[number] = true;
      dense_[number] = thing;
      count_ += sparse_.erase(number) == 0 ? 1 : 0;
      return true;
    }
    const auto [place, added] = sparse_.insert_or_assign(number, thing);
    count_ += added ? 1 : 0;
    return sparse_.size() < kMostValues / 8;
  }
  const Thing* Get(uint64_t number) const {
    if (number < dense_.size() && there_[number]) return &dense_[number];
    const auto found = sparse_.find(number);
    return found == sparse_.end() ? nullptr : &found->second;
  }
  uint64_t count() const { return count_; }

 private:
  std::vector<Thing> dense_;
  std::vector<bool> there_;
  std::unordered_map<uint64_t, Thing> sparse_;
  uint64_t count_ = 0;
};

// Facts about an array that joblib wrote between the opcodes.
struct ArrayFacts {
  std::optional<uint64_t> count;  // Number of elements.
  std::optional<Thing> dtype;
  std::optional<bool> padded;
  bool odd = false;  // The wrapper differs from what joblib writes.
};

// The items of a tuple, and the opcode that made it.
struct MadeTuple {
  uint64_t at = 0;
  std::vector<Thing> items;
  bool whole = false;  // False if `items` lacks some of the items.
};

struct Line {
  std::string text;   // Without the line end; at most kLongestName bytes.
  uint64_t next = 0;  // Offset of the byte after it.
  bool whole = true;  // True if `text` has all of the line.
  // True if a newline ends the line, false if the bytes end.
  bool ended = true;
};

// Parses a line as int() does, up to a NUL as the C unpickler does. Returns
// nullopt if int() surely fails, and INT64_MAX for larger numbers, which the C
// unpickler refuses.
std::optional<int64_t> LineNumber(std::string_view text);

class Tracer {
 public:
  Tracer(const ByteSource& source, uint64_t begin, uint64_t end,
         const TraceOptions& options)
      : source_(source),
        options_(options),
        window_(source, end),
        begin_(begin),
        next_(begin) {}

  // Returns a copy of `other` that continues as pickle.load() does, which does
  // not know joblib's arrays.
  static Tracer WithoutArrays(const Tracer& other) {
    Tracer copy(other);
    copy.options_.arrays = false;
    copy.joblib_ = false;
    copy.trace_ = {};
    return copy;
  }

  // Starts the next pickle as an Unpickler does whose load() is called again:
  // the memo is kept.
  void Restart(const TraceOptions& options) {
    options_ = options;
    begin_ = next_;
    frame_end_.reset();
    protocol_ = 0;
    only_python_ = ended_ = cut_ = false;
    stack_.clear();
    marks_.clear();
    last_tuple_ = {};
    trace_ = {};
    getattr_pushes_ = getattr_calls_ = 0;
    careful_pushes_ = careful_calls_ = 0;
    number_pushes_ = number_calls_ = 0;
    getattr_byte_ = 0;
    for (Watched* watched : {&dtype_class_, &array_class_, &wrapper_class_}) {
      watched->pushes = watched->uses = watched->byte = 0;
    }
    array_arguments_.reset();
    numbers_.reset();
  }
  bool remembers() const { return memo_.count() > 0; }

  Result<Trace> Run() {
    while (!ended_) {
      op_ = next_;
      HAULWAY_ASSIGN(const uint8_t opcode, U8());
      if (ended_) break;
      ++trace_.opcodes[opcode];
      HAULWAY_TRY(Execute(opcode));
      if (!ended_) ++trace_.opcode_count;
      if (stack_.size() + marks_.size() > kMostValues) {
        End(TraceEnd::kUnclear,
            fmt::format("more than {} values at a time", kMostValues));
      }
      if (tuples_.size() + dtypes_.size() + facts_.size() + members_.size() +
              numpy_kept() >
          kMostKept) {
        End(TraceEnd::kUnclear,
            "too many values could describe arrays or enumerations");
      }
    }
    trace_.length = next_ - begin_;
    JudgeGetattr();
    JudgeNumpy();
    JudgeWrapper();
    JudgeCareful();
    JudgeNumbers();
    JudgeClass();
    return std::move(trace_);
  }

 private:
  // These functions read an argument. They end the trace if the bytes end
  // first.
  Result<std::span<const std::byte>> Bytes(uint64_t length) {
    CrossFrame(length);
    if (ended_) return std::span<const std::byte>(kZeros).subspan(0, length);
    HAULWAY_ASSIGN(const auto bytes, window_.Peek(next_, length));
    if (bytes.size() < length) {
      next_ = window_.end();
      End(TraceEnd::kCut, fmt::format("{} ends early", Where()));
      return std::span<const std::byte>(kZeros).subspan(0, length);
    }
    next_ += length;
    return bytes.first(length);
  }
  template <class T>
  Result<T> Fixed() {
    HAULWAY_ASSIGN(const auto bytes, Bytes(sizeof(T)));
    T value;
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  Result<uint8_t> U8() { return Fixed<uint8_t>(); }

  // Skips an argument.
  void Skip(uint64_t length) {
    if (ended_) return;
    CrossFrame(length);
    if (ended_) return;
    if (length > window_.end() - next_) {
      next_ = window_.end();
      End(TraceEnd::kCut, fmt::format("{} ends early", Where()));
      return;
    }
    next_ += length;
  }

  Result<Line> ReadLine() {
    Line line;
    for (uint64_t at = next_;;) {
      HAULWAY_ASSIGN(const auto bytes, window_.Peek(at, 1));
      const std::string_view text = TextOf(bytes);
      const size_t stop = text.find('\n');
      const std::string_view part = text.substr(0, stop);
      line.text += part.substr(
          0, std::min<uint64_t>(kLongestName - line.text.size(), part.size()));
      at += part.size();
      if (stop == text.npos && !bytes.empty()) continue;
      line.ended = stop != text.npos;
      line.whole = at - next_ == line.text.size();
      line.next = at + (line.ended ? 1 : 0);
      break;
    }
    CrossFrame(line.next - next_);
    next_ = line.next;
    if (line.ended) return line;
    if (only_python_ && !line.text.empty()) {
      // The Python unpickler needs a complete line within the frame, or nothing
      // in the frame, in which case it reads on after the frame.
      End(TraceEnd::kCut, "the last line is not ended");
      return line;
    }
    // If the bytes end without a newline, the Python unpickler drops the last
    // byte of the line, and the C one fails.
    if (!line.text.empty() && line.whole) line.text.pop_back();
    cut_ = true;
    return line;
  }

  // Must be called before `length` bytes are read. An argument that begins in a
  // frame must end in it. If it does not, the Python unpickler fails, and the C
  // one, if it reads a file, drops the rest of the frame.
  void CrossFrame(uint64_t length) {
    if (!frame_end_.has_value()) return;
    if (next_ >= *frame_end_) {
      frame_end_.reset();
    } else if (length > *frame_end_ - next_) {
      if (only_python_) {
        End(TraceEnd::kCut, fmt::format("{} ends early", Where()));
        return;
      }
      Fault(Code::kUnsafe,
            fmt::format("{} runs past the end of its frame, where unpicklers "
                        "read different bytes",
                        PickleName()));
      frame_end_.reset();
    }
  }

  std::string PickleName() const {
    std::array<std::byte, 1> byte;
    const bool read = source_.ReadAt(op_, byte).ok();
    const std::string_view name =
        read ? PickleOpcodeName(static_cast<uint8_t>(byte[0])) : "";
    return name.empty() ? "an argument" : std::string(name);
  }
  std::string Where() const {
    return next_ == op_ || op_ == window_.end() ? "the pickle" : PickleName();
  }

  void End(TraceEnd end, std::string why) {
    if (ended_) return;
    ended_ = true;
    trace_.end = end;
    trace_.why = std::move(why);
  }
  void Broken(std::string_view why) {
    End(TraceEnd::kBroken, fmt::format("{} at byte {}", why, op_ - begin_));
  }

  void Fault(Code code, std::string message) {
    FaultAt(op_ - begin_, code, std::move(message));
  }
  void FaultAt(uint64_t byte, Code code, std::string message) {
    if (trace_.faults.size() >= kMostFaults) return;
    message += fmt::format("; at byte {}", byte);
    trace_.faults.push_back({code, std::move(message), byte});
  }

  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  bool Has(size_t count) {
    if (stack_.size() - floor() >= count) return true;
    Broken("the stack is empty");
    return false;
  }
  Thing Pop() {
    if (!Has(1)) return {};
    const Thing top = stack_.back();
    stack_.pop_back();
    return top;
  }
  void Push(Thing thing) {
    if (IsGetattr(thing)) ++getattr_pushes_;
    if (careful_ && IsCarefulFunction(thing)) ++careful_pushes_;
    if (careful_ && IsNumberClass(thing)) ++number_pushes_;
    if (numpy_ || joblib_) NotePush(thing);
    stack_.push_back(thing);
  }
  void Push(Kind kind) { Push(Thing(kind, op_)); }

  // Pops the last mark and returns the values above it.
  std::vector<Thing> PopMark() {
    if (marks_.empty()) {
      Broken("there is no mark");
      return {};
    }
    std::vector<Thing> items;
    const size_t first = marks_.back();
    if ((joblib_ || numpy_ || careful_ || getattr_.has_value()) &&
        stack_.size() - first <= kMostItems) {
      items.assign(stack_.begin() + static_cast<ptrdiff_t>(first),
                   stack_.end());
    }
    stack_.resize(first);
    marks_.pop_back();
    return items;
  }

  void Put(uint64_t number) {
    if (!Has(1)) return;
    if (!memo_.Put(number, stack_.back())) {
      End(TraceEnd::kUnclear, "the memo is too large to be followed");
    }
  }
  void Get(uint64_t number) {
    const Thing* thing = memo_.Get(number);
    if (thing == nullptr) {
      Broken("what is asked of the memo is not there");
      return;
    }
    Push(*thing);
  }

  Status Execute(uint8_t opcode);
  Status ExecuteText(uint8_t opcode);
  Status ExecuteName(uint8_t opcode);
  void ExecuteCall(uint8_t opcode);
  void ExecuteContainer(uint8_t opcode);
  Status Frame();
  Status Build();

  void Mention(std::string_view module, std::string_view name);
  Status MentionLines();
  void MentionExtension(uint64_t code);
  // Returns the text of the string that the opcode at `at` made; nullopt, after
  // a fault, if unpicklers may decode it differently.
  Result<std::optional<std::string>> TextAt(uint64_t at);
  // Reports a fault if `thing`, which is called, is not a global.
  void CheckCallable(Thing thing);
  void CheckKeywords(Thing callee);
  // See tracer_calls.cc.
  const std::vector<Thing>* ArgumentsOf(Thing arguments);
  std::optional<Thing> CarefulCall(uint8_t opcode, Thing callee,
                                   const std::vector<Thing>* arguments);
  bool TakesKnownCodec(const std::vector<Thing>& arguments);
  // Returns whether `thing` is a function that picklers write only to call it
  // immediately. Classes may also stand as values.
  bool IsCarefulFunction(Thing thing) const {
    if (!thing.is(Kind::kGlobal)) return false;
    const Care care = cares_[thing.at()];
    return care != Care::kNone && care != Care::kNumber &&
           care != Care::kEmpty &&
           (care != Care::kCodec || names_[thing.at()].first == "_codecs");
  }
  void JudgeCareful();
  bool IsNumberClass(Thing thing) const {
    return thing.is(Kind::kGlobal) && cares_[thing.at()] == Care::kNumber;
  }
  // Returns whether `thing` is surely a number, a text, bytes or None.
  bool IsPlain(Thing thing) const;
  // Returns whether `thing`, an allowed class, makes texts.
  bool IsTextClass(Thing thing) const;
  void NoteText(const Line& line);
  Status NoteText(uint64_t at, uint64_t length);
  void JudgeNumbers();
  void JudgeClass();
  // Reports a fault if an opcode would change a class or a function itself.
  void CheckTarget();
  // The same for an opcode that adds items, also to what NumPy made.
  void CheckContainer();

  // Enumeration members as Python 3.11.0 to 3.11.3 pickled them: getattr(CLASS,
  // 'NAME'). Every getattr pushed on the stack must be consumed by such a call.
  bool IsGetattr(Thing thing) const {
    return thing.is(Kind::kGlobal) && getattr_.has_value() &&
           thing.at() == *getattr_;
  }
  bool IsEnumerationHere(Thing thing) const;
  void NoteMember(const std::vector<Thing>& items);
  // Returns whether a string has the form of a member's name. The answer is
  // cached per string.
  bool IsMemberName(uint64_t text);
  void JudgeGetattr();

  // NumPy: see tracer_numpy.cc.
  struct DTypeCode {
    char kind = 0;
    int64_t size = -1;  // The number after the kind; -1 without one.
  };
  // Returns the element size in bytes; -1 if the code does not have it.
  static int64_t ItemBytes(DTypeCode code) {
    return code.size * (code.kind == 'U' && code.size > 0 ? 4 : 1);
  }
  struct DTypeState {
    enum class Of : uint8_t { kNumbers, kArray, kFields, kUnclear };
    Of of = Of::kUnclear;
    int64_t end = 0;  // Where the fields or the inner array end, in bytes.
    std::optional<int64_t> item_bytes;
    std::optional<int64_t> flags;
  };
  // A dict with the positions of a type's fields.
  struct Fields {
    int64_t end = 0;
    std::unordered_set<std::string> names;
    bool odd = false;   // The dict differs from what NumPy writes.
    bool used = false;  // A state holds the dict.
  };
  // A class all of whose uses must be of a known form; any other use is a
  // fault.
  struct Watched {
    // Place in names_, if the pickle names the class.
    std::optional<uint64_t> place;
    uint64_t byte = 0;  // Offset where it is named.
    uint64_t pushes = 0;
    uint64_t uses = 0;  // Number of uses as NumPy and joblib write them.
  };
  void NoteNumpyName(std::string_view full, uint64_t place);
  bool IsNumpy(Thing thing) const;
  bool Is(const Watched& watched, Thing thing) const {
    return thing.is(Kind::kGlobal) && watched.place == thing.at();
  }
  void NotePush(Thing thing);
  void NoteNumpyTuple(const std::vector<Thing>& items);
  void NoteDTypeParts(const std::vector<Thing>& items);
  DTypeState StateOf(const std::vector<Thing>& items);
  void NoteNumpyItems(Thing dict, const std::vector<Thing>& items);
  std::optional<Thing> NumpyCall(uint8_t opcode, Thing callee, Thing arguments);
  void NoteScalar(Thing arguments);
  void BuildDType(Thing dtype, Thing state);
  void BuildArray(Thing array);
  void JudgeNumpy();
  bool IsOpcode(Thing thing, uint8_t opcode) const;
  bool IsTrue(Thing thing);
  size_t numpy_kept() const {
    return empty_shapes_.size() + dtype_arguments_.size() +
           dtype_states_.size() + unbuilt_.size() + texts_.size() +
           field_ends_.size() + within_.size() + fields_.size() +
           shared_.size();
  }

  // joblib: an array follows the BUILD of its wrapper.
  bool IsArrayWrapper(Thing thing) const;
  void JudgeWrapper();
  void NoteItems(Thing dict, const std::vector<Thing>& items);
  void NoteItem(ArrayFacts* facts, std::string_view key, Thing value);
  Result<std::optional<int64_t>> IntegerAt(Thing thing);
  Status PassArray(Thing state);
  Result<Trace> LookAsPickle();
  Status PassPickle();
  void Add(const Trace& other, uint64_t moved);

  static constexpr std::array<std::byte, 8> kZeros{};

  const ByteSource& source_;
  TraceOptions options_;
  ByteWindow window_;
  uint64_t begin_;
  uint64_t next_;
  uint64_t op_ = 0;  // Offset of the current opcode.
  std::optional<uint64_t> frame_end_;
  int protocol_ = 0;
  bool only_python_ = false;  // The C unpickler has already failed.
  bool ended_ = false;
  bool cut_ = false;  // A line did not end with a newline.

  std::vector<Thing> stack_;
  std::vector<size_t> marks_;
  Memo memo_;
  std::vector<std::pair<std::string, std::string>> names_;
  std::vector<Care> cares_;  // Parallel to names_.
  bool careful_ = false;     // True if any of cares_ is not kNone.
  uint64_t careful_pushes_ = 0;
  uint64_t careful_calls_ = 0;
  uint64_t number_pushes_ = 0;  // Of number types of NumPy.
  uint64_t number_calls_ = 0;
  // True if a text is the attribute that tells NumPy an address, or
  // "__class__"; and if a text is computed, which may be either.
  bool names_address_ = false;
  bool names_class_ = false;
  bool computes_text_ = false;
  // True if a state may set attributes by name.
  bool sets_attributes_ = false;
  MadeTuple last_tuple_;
  // Offset of a string that names a codec, and whether the codec is known.
  std::optional<std::pair<uint64_t, bool>> last_codec_;
  std::unordered_map<std::string, uint64_t> name_places_;
  size_t letters_ = 0;  // In the mentions of trace_.globals.
  Trace trace_;

  // Place of getattr in names_, if it was named.
  std::optional<uint64_t> getattr_;
  uint64_t getattr_byte_ = 0;  // Offset where it was named.
  bool getattr_changed_ = false;
  uint64_t getattr_pushes_ = 0;
  // Number of calls that surely return a member.
  uint64_t getattr_calls_ = 0;
  // Argument tuples for getattr, by opcode.
  std::unordered_set<uint64_t> members_;
  // Whether a string is a member's name, by opcode.
  std::unordered_map<uint64_t, bool> member_names_;

  // Filled only after a NumPy name appeared; keyed by the opcode that made the
  // object.
  bool numpy_ = false;
  // The pickle named something of NumPy that only the caller allows.
  bool numpy_is_callers_ = false;
  Watched dtype_class_;
  Watched array_class_;
  std::unordered_set<uint64_t> empty_shapes_;                // (0,)
  std::unordered_map<uint64_t, DTypeCode> dtype_arguments_;  // ('f8', ...)
  std::unordered_map<uint64_t, DTypeState> dtype_states_;    // Tuples.
  std::unordered_map<uint64_t, DTypeCode> dtypes_;
  std::unordered_map<uint64_t, std::vector<Thing>> texts_;  // ('a', 'b')
  std::unordered_map<uint64_t, int64_t> field_ends_;        // (type, offset)
  std::unordered_map<uint64_t, int64_t> within_;            // (type, (3,))
  std::unordered_map<uint64_t, Fields> fields_;             // {'a': ...}
  std::unordered_set<uint64_t> shared_;  // Dicts fetched from the memo.
  // The last tuple of non-negative numbers, and their product.
  std::optional<std::pair<uint64_t, int64_t>> numbers_;
  // An argument tuple for an array that no call has used yet.
  std::optional<uint64_t> array_arguments_;
  std::vector<uint64_t> unbuilt_;  // Arrays that have no state yet.

  // Filled only after joblib's wrapper was named.
  bool joblib_ = false;
  Watched wrapper_class_;
  std::unordered_map<uint64_t, std::vector<Thing>> tuples_;  // By opcode.
  // By the opcode that made the dict.
  std::unordered_map<uint64_t, ArrayFacts> facts_;
  uint64_t copied_ = 0;
};

}  // namespace haulway::scan

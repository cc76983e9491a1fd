// Traces arrays that joblib writes into the middle of a pickle.
//
// joblib's unpickler reads an array when its wrapper gets its state, and
// continues with the opcodes behind the array. pickle.load() executes the
// array's bytes as opcodes. The tracer follows both. That needs the shape and
// the type of the array, so the state of a wrapper is the one object of which
// the tracer keeps more than the kind.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "pickle/pickle_opcodes.h"
#include "scan/tracer.h"

namespace haulway::scan {

namespace {

using namespace haulway::pickle;  // Opcodes.

// joblib aligns array data to this many bytes.
constexpr uint8_t kJoblibAlignment = 16;
// Limit on the total number of values that are copied, and of bytes that are
// followed, to trace arrays as pickles.
constexpr uint64_t kMostCopied = 100'000'000;
constexpr uint64_t kCostOfByte = 8;

}  // namespace

bool Tracer::IsArrayWrapper(Thing thing) const {
  return thing.is(Kind::kInstance) &&
         names_[thing.at()].first == "joblib.numpy_pickle";
}

// joblib reads an array for every wrapper, however the wrapper was created. The
// tracer follows only wrappers that are created as joblib does.
void Tracer::JudgeWrapper() {
  const auto unused = static_cast<uint64_t>(std::ranges::count_if(
      stack_, [&](Thing thing) { return Is(wrapper_class_, thing); }));
  if (wrapper_class_.pushes == wrapper_class_.uses + unused) return;
  trace_.doubt = fmt::format(
      "'joblib.numpy_pickle.NumpyArrayWrapper' is used otherwise than joblib "
      "does; at byte {}",
      wrapper_class_.byte);
}

void Tracer::NoteItems(Thing dict, const std::vector<Thing>& items) {
  if (!joblib_ || !dict.is(Kind::kDict)) return;
  ArrayFacts& facts = facts_[dict.at()];
  // There are too many items, or a key may be any string.
  facts.odd =
      facts.odd || items.empty() || dict.at() < begin_ + wrapper_class_.byte;
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    const auto key = items[i].is(Kind::kText)
                         ? TextAt(items[i].at())
                         : Result<std::optional<std::string>>(std::nullopt);
    if (key.ok() && key->has_value()) {
      NoteItem(&facts, **key, items[i + 1]);
    } else {
      facts.odd = true;
    }
  }
}

void Tracer::NoteItem(ArrayFacts* facts, std::string_view key, Thing value) {
  if (key == "shape") {
    const auto tuple = tuples_.find(value.at());
    if (!value.is(Kind::kTuple) || tuple == tuples_.end() ||
        facts->count.has_value()) {
      facts->odd = true;
      return;
    }
    uint64_t count = 1;
    for (const Thing item : tuple->second) {
      const auto number = IntegerAt(item);
      if (!number.ok() || !number->has_value() || **number < 0 ||
          __builtin_mul_overflow(count, static_cast<uint64_t>(**number),
                                 &count)) {
        facts->odd = true;
        return;
      }
    }
    facts->count = count;
  } else if (key == "dtype") {
    facts->odd = facts->odd || facts->dtype.has_value();
    facts->dtype = value;
  } else if (key == "numpy_array_alignment_bytes") {
    const bool is_number = value.is(Kind::kNumber);
    facts->odd = facts->odd || facts->padded.has_value() ||
                 (!is_number && !IsOpcode(value, kNone));
    facts->padded = is_number;
  }
}

Result<std::optional<int64_t>> Tracer::IntegerAt(Thing thing) {
  if (!thing.is(Kind::kNumber)) return std::optional<int64_t>();
  Tracer reader(source_, thing.at(), window_.end(), options_);
  HAULWAY_ASSIGN(const uint8_t opcode, reader.U8());
  switch (opcode) {
    case kBinInt1: {
      HAULWAY_ASSIGN(const uint8_t number, reader.U8());
      return std::optional<int64_t>(number);
    }
    case kBinInt2: {
      HAULWAY_ASSIGN(const auto number, reader.Fixed<uint16_t>());
      return std::optional<int64_t>(number);
    }
    case kBinInt: {
      HAULWAY_ASSIGN(const auto number, reader.Fixed<int32_t>());
      return std::optional<int64_t>(number);
    }
    case kLong1: {
      HAULWAY_ASSIGN(const uint8_t length, reader.U8());
      if (length > 8) return std::optional<int64_t>();
      HAULWAY_ASSIGN(const auto bytes, reader.Bytes(length));
      const bool negative =
          length > 0 && (bytes.back() & std::byte{0x80}) != std::byte{0};
      int64_t number = negative ? -1 : 0;
      std::memcpy(&number, bytes.data(), length);
      return std::optional<int64_t>(number);
    }
    case kInt:
    case kLong: {
      HAULWAY_ASSIGN(Line line, reader.ReadLine());
      if (line.text.ends_with('L')) line.text.pop_back();
      // To the C unpickler, 010 is 8; 00 and 01 are False and True.
      if (line.text.size() > 1 && line.text[0] == '0' && line.text != "00" &&
          line.text != "01") {
        return std::optional<int64_t>();
      }
      return LineNumber(line.text);
    }
    default:
      return std::optional<int64_t>();
  }
}

// Traces an array at the BUILD of its wrapper: joblib reads the array there,
// pickle.load() continues with the array's bytes as opcodes.
Status Tracer::PassArray(Thing state) {
  constexpr std::string_view kUnclear = "cannot tell how long an array is";
  // The array replaces the wrapper, and has its state.
  stack_.back() = Thing(Kind::kRead, op_);
  const auto facts = facts_.find(state.at());
  if (!state.is(Kind::kDict) || facts == facts_.end() || facts->second.odd ||
      !facts->second.count.has_value() || !facts->second.dtype.has_value()) {
    HAULWAY_ASSIGN(const Trace as_pickle, LookAsPickle());
    Add(as_pickle, 0);
    End(TraceEnd::kUnclear, std::string(kUnclear));
    return Status();
  }
  if (frame_end_.has_value() && next_ < *frame_end_) {
    Fault(Code::kUnsafe,
          "an array stands within a frame, where readers read different bytes");
    End(TraceEnd::kUnclear, std::string(kUnclear));
    return Status();
  }
  const auto dtype = facts->second.dtype->is(Kind::kDType)
                         ? dtypes_.find(facts->second.dtype->at())
                         : dtypes_.end();
  HAULWAY_ASSIGN(const Trace as_pickle, LookAsPickle());
  if (dtype == dtypes_.end()) {
    Add(as_pickle, 0);
    End(TraceEnd::kUnclear, std::string(kUnclear));
    return Status();
  }
  const DTypeCode code = dtype->second;
  if (code.kind == 'O') {
    // For pickle.load() the pickle of the objects continues with the outer
    // memo, so its names are normally wrong.
    if (!as_pickle.faults.empty()) {
      trace_.doubt =
          "an array of objects, which joblib and pickle.load() read "
          "differently";
    }
    return PassPickle();
  }
  Add(as_pickle, 0);
  uint64_t bytes = 0;
  const auto item = ItemBytes(code);
  if (item <= 0 ||
      __builtin_mul_overflow(*facts->second.count, static_cast<uint64_t>(item),
                             &bytes)) {
    End(TraceEnd::kUnclear, std::string(kUnclear));
    return Status();
  }
  if (facts->second.padded.value_or(false)) {
    HAULWAY_ASSIGN(const uint8_t padding, U8());
    if (padding > kJoblibAlignment) {
      End(TraceEnd::kUnclear, "an array has more padding than joblib writes");
      return Status();
    }
    Skip(padding);
  }
  Skip(bytes);
  return Status();
}

// Traces the bytes here as pickle.load() would, without moving this tracer.
Result<Trace> Tracer::LookAsPickle() {
  HAULWAY_ASSIGN(const auto bytes, window_.Peek(next_, 1));
  if (bytes.empty() ||
      PickleOpcodeName(static_cast<uint8_t>(bytes[0])).empty()) {
    return Trace();
  }
  copied_ += stack_.size() + memo_.count();
  if (copied_ > kMostCopied) {
    End(TraceEnd::kUnclear, "too many arrays could be pickles");
    return Trace();
  }
  HAULWAY_ASSIGN(Trace trace, WithoutArrays(*this).Run());
  copied_ += kCostOfByte * trace.length;
  return trace;
}

// Traces the pickle of an array of objects.
Status Tracer::PassPickle() {
  TraceOptions options = options_;
  options.arrays = false;
  HAULWAY_ASSIGN(const Trace trace,
                 Tracer(source_, next_, window_.end(), options).Run());
  Add(trace, next_ - begin_);
  next_ += trace.length;
  if (trace.end != TraceEnd::kStop) {
    End(TraceEnd::kUnclear,
        fmt::format("an array of objects is no whole pickle: {}", trace.why));
  }
  return Status();
}

}  // namespace haulway::scan

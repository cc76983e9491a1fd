// Design: it walks the tree as CPython's C pickler walks objects, with the same
// batches of 1000, the same order of PUTs and the same handling of objects that
// contain themselves. So data that torch.save() wrote is reproduced byte for
// byte. Identity is an address: of a container, or of the text that two
// mentions share.
//
// Alternative not taken: a writer that emits any valid pickle. It would be half
// as long, but repacking a file would change all its bytes, and the output
// could not be compared with PyTorch's. Recursion is limited by max_depth; an
// explicit stack is not needed, because Python could not load deeper trees.

#include "pickle/pickle_tree_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include "pickle/pickle_depth.h"

namespace haulway::pickle {

namespace {

constexpr uint64_t kMostText = 0xFFFFFFFF;
constexpr uint64_t kMostRawText = 0x7FFFFFFF;

// Names that the writer itself adds. Their addresses are their identities.
constexpr GlobalName kSetName = {"builtins", "set"};
constexpr GlobalName kFrozenSetName = {"builtins", "frozenset"};
constexpr GlobalName kBytesName = {"builtins", "bytes"};
constexpr GlobalName kByteArrayName = {"builtins", "bytearray"};
constexpr GlobalName kComplexName = {"builtins", "complex"};
constexpr GlobalName kEncodeName = {"_codecs", "encode"};
constexpr GlobalName kOrderedDictName = {"collections", "OrderedDict"};
constexpr GlobalName kCounterName = {"collections", "Counter"};
constexpr const GlobalName* kKnownNames[] = {
    &kSetName,     &kFrozenSetName, &kBytesName,       &kByteArrayName,
    &kComplexName, &kEncodeName,    &kOrderedDictName, &kCounterName,
};
constexpr std::string_view kLatin1 = "latin1";

std::string Latin1ToUtf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() * 3 / 2);
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte < 0x80) {
      text += c;
    } else {
      text += static_cast<char>(0xC0 | byte >> 6);
      text += static_cast<char>(0x80 | (byte & 0x3F));
    }
  }
  return text;
}

uint64_t CountHigh(std::string_view bytes) {
  uint64_t count = 0;
  for (const char c : bytes) count += static_cast<uint8_t>(c) >> 7;
  return count;
}

}  // namespace

bool TreeWriter::GetText(Kind kind, std::string_view text) {
  const uint32_t row = text_memo_.Find(text.data());
  if (row == PickleMemo::kNone) return false;
  const TextNote& note = texts_[row];
  if (note.size != text.size() || note.kind != kind) return false;
  writer_.GetNumber(note.number);
  return true;
}

void TreeWriter::PutText(Kind kind, std::string_view text) {
  if (text.data() != nullptr &&
      text_memo_.Find(text.data()) == PickleMemo::kNone) {
    text_memo_.Add(text.data(), static_cast<uint32_t>(texts_.size()));
    texts_.push_back(
        {writer_.memo_count(), static_cast<uint32_t>(text.size()), kind});
  }
  writer_.PutUnshared();
}

void TreeWriter::SaveString(std::string_view text) {
  if (text.data() != nullptr && GetText(Kind::kString, text)) return;
  writer_.Unicode(text);
  PutText(Kind::kString, text);
}

Status TreeWriter::SaveRawString(std::string_view bytes) {
  if (bytes.data() != nullptr && GetText(Kind::kRawString, bytes)) return {};
  if (bytes.size() > kMostRawText) {
    return Status(
        Code::kUnsupported,
        fmt::format("Python 2 string of {} bytes: expected less than 2 GiB",
                    bytes.size()));
  }
  writer_.RawString(bytes);
  PutText(Kind::kRawString, bytes);
  return {};
}

void TreeWriter::SaveName(const GlobalName& name) {
  if (writer_.Get(&name)) return;
  writer_.Global(name.module, name.name);
  writer_.Put(&name);
}

void TreeWriter::SaveGlobal(const Global& global) {
  for (const GlobalName* known : kKnownNames) {
    if (known->name == global.name && known->module == global.module) {
      return SaveName(*known);
    }
  }
  if (writer_.Get(&global)) return;
  writer_.Global(global.module, global.name);
  writer_.Put(&global);
}

Status TreeWriter::SaveBytes(std::string_view bytes, bool shared) {
  shared = shared && bytes.data() != nullptr;
  if (shared && GetText(Kind::kBytes, bytes)) return {};
  if (bytes.size() + CountHigh(bytes) > kMostText) {
    return Status(Code::kUnsupported,
                  fmt::format("{} bytes: expected fewer than 4 GiB as text",
                              bytes.size()));
  }
  if (bytes.empty()) {
    SaveName(kBytesName);
    writer_.Tuple(0);
  } else {
    SaveName(kEncodeName);
    writer_.Unicode(Latin1ToUtf8(bytes));
    writer_.PutUnshared();
    SaveString(kLatin1);
    writer_.Tuple(2);
    writer_.PutUnshared();
  }
  writer_.Reduce();
  if (shared) {
    PutText(Kind::kBytes, bytes);
  } else {
    writer_.PutUnshared();
  }
  return {};
}

void TreeWriter::SaveComplex(const Value& value) {
  SaveName(kComplexName);
  writer_.Float(value.complex().real());
  writer_.Float(value.complex().imag());
  writer_.Tuple(2);
  writer_.PutUnshared();
  writer_.Reduce();
  writer_.Put(value.identity());
}

Status TreeWriter::SaveByteArray(const Value& value) {
  const std::string_view bytes = value.text();
  SaveName(kByteArrayName);
  if (bytes.empty()) {
    writer_.Tuple(0);
  } else {
    HAULWAY_TRY(SaveBytes(bytes, /*shared=*/false));
    writer_.Tuple(1);
    writer_.PutUnshared();
  }
  writer_.Reduce();
  PutText(Kind::kByteArray, bytes);
  return {};
}

bool TreeWriter::PutReduced(const void* id) {
  if (!writer_.Has(id)) {
    writer_.Put(id);
    return true;
  }
  writer_.Pop();
  writer_.Get(id);
  return false;
}

Status TreeWriter::SaveTuple(const Value& value) {
  const auto items = value.sequence().items();
  const bool marked = PickleWriter::TupleNeedsMark(items.size());
  if (marked) writer_.Mark();
  for (const Value& item : items) HAULWAY_TRY(Save(item));
  if (items.empty()) {
    writer_.Tuple(0);
  } else if (!writer_.Has(value.identity())) {
    writer_.Tuple(items.size());
    writer_.Put(value.identity());
  } else {
    // The tuple contains itself, and was memoized when it was met inside.
    if (marked) {
      writer_.PopMark();
    } else {
      for (size_t i = 0; i < items.size(); ++i) writer_.Pop();
    }
    writer_.Get(value.identity());
  }
  return {};
}

Status TreeWriter::Append(std::span<const Value> items, bool exact) {
  if (exact && items.size() == 1) {
    HAULWAY_TRY(Save(items[0]));
    writer_.Append();
    return {};
  }
  while (!items.empty()) {
    const auto batch =
        items.first(std::min(items.size(), PickleWriter::kBatch));
    items = items.subspan(batch.size());
    const bool single = !exact && batch.size() == 1;
    if (!single) writer_.Mark();
    for (const Value& item : batch) HAULWAY_TRY(Save(item));
    single ? writer_.Append() : writer_.Appends();
  }
  return {};
}

Status TreeWriter::SetItems(size_t count, bool exact,
                            const std::function<Status(size_t)>& save) {
  if (count == 0) return {};
  size_t done = 0;
  bool more = true;
  while (more) {
    const size_t batch = std::min(count - done, PickleWriter::kBatch);
    // CPython asks a dict for more items after every full batch, even if there
    // are none left; an iterator ends before that.
    const bool full = batch == PickleWriter::kBatch;
    more = full && (exact || done + batch < count);
    const bool single = exact ? count == 1 : batch == 1;
    if (!single) writer_.Mark();
    for (size_t i = done; i < done + batch; ++i) HAULWAY_TRY(save(i));
    single ? writer_.SetItem() : writer_.SetItems();
    done += batch;
  }
  return {};
}

Status TreeWriter::SetItems(std::span<const MappingItem> items, bool exact) {
  return SetItems(items.size(), exact, [&](size_t i) {
    HAULWAY_TRY(Save(items[i].key));
    return Save(items[i].value);
  });
}

Status TreeWriter::SaveList(const Value& value) {
  writer_.EmptyList();
  writer_.Put(value.identity());
  return Append(value.sequence().items(), /*exact=*/true);
}

Status TreeWriter::SaveSet(const Value& value) {
  SaveName(value.is(Kind::kSet) ? kSetName : kFrozenSetName);
  writer_.EmptyList();
  writer_.PutUnshared();
  HAULWAY_TRY(Append(value.sequence().items(), /*exact=*/true));
  writer_.Tuple(1);
  writer_.PutUnshared();
  writer_.Reduce();
  PutReduced(value.identity());
  return {};
}

Status TreeWriter::SaveDict(const Value& value) {
  writer_.EmptyDict();
  writer_.Put(value.identity());
  return SetItems(value.mapping().items(), /*exact=*/true);
}

Status TreeWriter::SaveState(const Value& state) {
  if (state.is(Kind::kNone)) return {};
  HAULWAY_TRY(Save(state));
  writer_.Build();
  return {};
}

Status TreeWriter::SaveOrderedDict(const Value& value) {
  const Mapping& mapping = value.mapping();
  SaveName(kOrderedDictName);
  writer_.Tuple(0);
  writer_.Reduce();
  writer_.Put(value.identity());
  HAULWAY_TRY(SetItems(mapping.items(), /*exact=*/false));
  return SaveState(mapping.state);
}

void TreeWriter::SaveEmptyOrderedDict() {
  SaveName(kOrderedDictName);
  writer_.Tuple(0);
  writer_.Reduce();
  writer_.PutUnshared();
}

Status TreeWriter::SaveDictOf(const Value& like, size_t count,
                              const std::function<Status(size_t)>& item) {
  if (like.is(Kind::kOrderedDict)) {
    SaveEmptyOrderedDict();
    HAULWAY_TRY(SetItems(count, /*exact=*/false, item));
    return SaveState(like.mapping().state);
  }
  const bool is_counter = like.is(Kind::kCounter);
  if (is_counter) SaveName(kCounterName);
  writer_.EmptyDict();
  writer_.PutUnshared();
  HAULWAY_TRY(SetItems(count, /*exact=*/true, item));
  if (!is_counter) return {};
  writer_.Tuple(1);
  writer_.PutUnshared();
  writer_.Reduce();
  writer_.PutUnshared();
  return SaveState(like.mapping().state);
}

Status TreeWriter::SaveCounter(const Value& value) {
  const Mapping& mapping = value.mapping();
  SaveName(kCounterName);
  writer_.EmptyDict();
  writer_.PutUnshared();
  HAULWAY_TRY(SetItems(mapping.items(), /*exact=*/true));
  writer_.Tuple(1);
  writer_.PutUnshared();
  writer_.Reduce();
  if (!PutReduced(value.identity())) return {};
  return SaveState(mapping.state);
}

Status TreeWriter::SaveObject(const Value& value) {
  const Object& object = value.object();
  HAULWAY_TRY(Save(object.called));
  HAULWAY_TRY(Save(object.args));
  const ObjectExtras* extras = object.extras;
  if (object.is_new && extras != nullptr && !extras->kwargs.is(Kind::kNone)) {
    HAULWAY_TRY(Save(extras->kwargs));
    writer_.NewObjEx();
  } else {
    object.is_new ? writer_.NewObj() : writer_.Reduce();
  }
  if (!PutReduced(value.identity())) return {};
  if (extras != nullptr) {
    HAULWAY_TRY(Append(extras->appended.items(), /*exact=*/false));
    HAULWAY_TRY(SetItems(extras->items.items(), /*exact=*/false));
  }
  return SaveState(object.state);
}

Status TreeWriter::SavePersistent(const Value& value) {
  HAULWAY_TRY(Save(value.persistent_id()));
  writer_.BinPersId();
  return {};
}

Status TreeWriter::Save(const Value& given) {
  Value value = given;
  if (options_.replace &&
      (value.is(Kind::kPersistent) || value.is(Kind::kObject) ||
       value.is_mapping()) &&
      !writer_.Has(value.identity())) {
    if (const auto other = options_.replace(value)) value = *other;
  }
  switch (value.kind()) {
    case Kind::kNone:
      writer_.None();
      return {};
    case Kind::kBool:
      writer_.Bool(value.boolean());
      return {};
    case Kind::kInt:
      writer_.Int(value.integer());
      return {};
    case Kind::kBigInt:
      writer_.BigInt(value.text());
      return {};
    case Kind::kFloat:
      writer_.Float(value.real());
      return {};
    case Kind::kString:
      SaveString(value.text());
      return {};
    case Kind::kRawString:
      return SaveRawString(value.text());
    case Kind::kBytes:
      return SaveBytes(value.text(), /*shared=*/true);
    case Kind::kByteArray:
      if (value.identity() != nullptr &&
          GetText(Kind::kByteArray, value.text())) {
        return {};
      }
      return SaveByteArray(value);
    case Kind::kGlobal:
      SaveGlobal(value.global());
      return {};
    default:
      break;
  }
  if (!value.is(Kind::kPersistent) && writer_.Get(value.identity())) return {};
  if (depth_ == most_deep_) {
    return Status(Code::kLimit,
                  fmt::format("tree to write is deeper than max_depth = {}, or "
                              "a set or Counter holds itself",
                              options_.max_depth));
  }
  ++depth_;
  Status status;
  switch (value.kind()) {
    case Kind::kComplex:
      SaveComplex(value);
      break;
    case Kind::kTuple:
      status = SaveTuple(value);
      break;
    case Kind::kList:
      status = SaveList(value);
      break;
    case Kind::kSet:
    case Kind::kFrozenSet:
      status = SaveSet(value);
      break;
    case Kind::kDict:
      status = SaveDict(value);
      break;
    case Kind::kOrderedDict:
      status = SaveOrderedDict(value);
      break;
    case Kind::kCounter:
      status = SaveCounter(value);
      break;
    case Kind::kObject:
      status = SaveObject(value);
      break;
    default:
      status = SavePersistent(value);
      break;
  }
  --depth_;
  return status;
}

}  // namespace haulway::pickle

namespace haulway {

Result<std::string> WritePickle(const Value& root,
                                const PickleWriteOptions& options) {
  const uint64_t depth = pickle::MeasureDepth(root);
  if (depth > options.max_depth) {
    return Status(Code::kLimit,
                  fmt::format("tree to write is {} deep: more than max_depth = "
                              "{}",
                              depth, options.max_depth));
  }
  pickle::TreeWriter writer(options);
  HAULWAY_TRY(writer.Save(root));
  return writer.Finish();
}

}  // namespace haulway

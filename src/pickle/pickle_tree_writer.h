// Writes values as WritePickle() does, between opcodes that the caller writes.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/pickle.h"
#include "haulway/status.h"
#include "haulway/tree.h"
#include "pickle/pickle_globals.h"

namespace haulway::pickle {

// A TreeWriter writes one pickle. Values are saved in the order of the calls.
// What it memoizes it knows by address, so the trees must outlive it.
class TreeWriter {
 public:
  explicit TreeWriter(const PickleWriteOptions& options)
      : options_(options), most_deep_(uint64_t{options.max_depth} * 2 + 8) {}

  Status Save(const Value& given);
  // Writes a name that is written once, however often it is saved.
  void SaveGlobal(const Global& global);
  // Writes an empty OrderedDict that no other value refers to.
  void SaveEmptyOrderedDict();

  // Writes a dict of `count` items, each written by `item`: a key and a value.
  // If `like` is a mapping, the dict has its type and attributes. Fails as
  // `item` does, with the item's error.
  Status SaveDictOf(const Value& like, size_t count,
                    const std::function<Status(size_t)>& item);

  // For objects that are not a tree. Memoize with PutUnshared(), or with the
  // address of an object that outlives this.
  PickleWriter& opcodes() { return writer_; }
  std::string Finish() { return writer_.Finish(); }

 private:
  struct TextNote {
    uint32_t number;
    uint32_t size;
    Kind kind;
  };

  // Writes GET if a text of this kind and size at this address was memoized.
  // Returns whether it was.
  bool GetText(Kind kind, std::string_view text);
  void PutText(Kind kind, std::string_view text);
  void SaveString(std::string_view text);
  Status SaveBytes(std::string_view bytes, bool shared);
  Status SaveRawString(std::string_view bytes);
  void SaveName(const GlobalName& name);
  void SaveComplex(const Value& value);
  Status SaveByteArray(const Value& value);
  Status SaveTuple(const Value& value);
  Status SaveList(const Value& value);
  // Writes REDUCE of the set's class with a list of its items.
  Status SaveSet(const Value& value);
  Status SaveDict(const Value& value);
  Status SaveOrderedDict(const Value& value);
  Status SaveCounter(const Value& value);
  Status SaveObject(const Value& value);
  Status SavePersistent(const Value& value);
  Status SaveState(const Value& state);
  // Appends items to the list on the stack. `exact`: as CPython does for a list
  // itself, otherwise as for an iterator.
  Status Append(std::span<const Value> items, bool exact);
  Status SetItems(size_t count, bool exact,
                  const std::function<Status(size_t)>& save);
  Status SetItems(std::span<const MappingItem> items, bool exact);
  // Memoizes the result of REDUCE. If saving its parts already memoized it, it
  // contains itself: then discards what was written, writes GET, and returns
  // false.
  bool PutReduced(const void* id);

  const PickleWriteOptions options_;
  const uint64_t most_deep_;
  uint64_t depth_ = 0;
  PickleWriter writer_;
  std::vector<TextNote> texts_;
  PickleMemo text_memo_;
};

}  // namespace haulway::pickle

// Finds the names in a configuration that make programs import, call or
// evaluate code.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace haulway::scan {

struct ValueRow;  // A row of the table of keys that belong to one program.

// Facts about a configuration that are known before it is read.
struct ConfigPlace {
  std::string_view file;                 // File name; "" if it has none.
  std::span<const std::string> allowed;  // Names that the caller allows.
};

// What a key says about the values below it.
struct KeyFacts {
  enum class Naming : uint8_t {
    kNone,
    kOne,   // The value names a class, a function or a module.
    kMany,  // The value is a collection of such names.
  };
  const ValueRow* row = nullptr;
  Naming naming = Naming::kNone;
  bool is_template = false;
};

// Returns why programs run the value of `key`, whatever the value is; nullopt
// if they do not.
std::optional<std::string> DoubtOfKey(std::string_view key);

// Returns why programs import what `value` names, whatever its key is; nullopt
// if they do not.
std::optional<std::string> DoubtOfObject(std::string_view value);

// Returns the facts about `key`. `outer` has the facts of the key that the
// enclosing object is the value of.
KeyFacts FactsOfKey(std::string_view key, const KeyFacts& outer,
                    const ConfigPlace& place);
struct ConfigValue {
  // A string without its quotes; other values as written.
  std::string_view text;
  std::optional<size_t> index;  // Index in a list, if the value is in one.
};

// Returns why programs run the code that `value` names; nullopt if they do not.
std::optional<std::string> DoubtOfValue(const KeyFacts& key,
                                        const ConfigValue& value,
                                        const ConfigPlace& place);

// The keys with which skops describes the class of a JSON object.
struct ClassRecord {
  std::optional<std::string> loader, module, name;

  // Returns the member for `key`, or null if `key` is not one of them.
  std::optional<std::string>* Find(std::string_view key);
};
std::optional<std::string> DoubtOfClass(const ClassRecord& record,
                                        const ConfigPlace& place);

// IsPipeline() returns whether diffusers reads the parts of a pipeline from an
// object with this `_class_name` or from a file with this name.
// IsLibraryOfParts() returns whether `library` is one of the libraries and
// pipelines that the parts come from.
bool IsPipeline(std::string_view class_name, const ConfigPlace& place);
bool IsLibraryOfParts(std::string_view library);

}  // namespace haulway::scan

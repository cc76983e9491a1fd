// What programs import, call or evaluate because a configuration names it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace haulway::scan {

struct ValueRow;  // A row of the table of keys that belong to one program.

// What is known of a configuration before it is read.
struct ConfigPlace {
  std::string_view file;                 // Its name, "" if it has none.
  std::span<const std::string> allowed;  // Names that the caller allows.
};

// What a key says of the values below it.
struct KeyFacts {
  enum class Naming : uint8_t {
    kNone,
    kOne,   // Its value is the name of a class, a function or a module.
    kMany,  // Each value in it is.
  };
  const ValueRow* row = nullptr;
  Naming naming = Naming::kNone;
  bool is_template = false;
};

// Why programs run what stands under `key`, whatever that is.
std::optional<std::string> DoubtOfKey(std::string_view key);

// `outer`: of the key that the object of `key` stands under.
KeyFacts FactsOfKey(std::string_view key, const KeyFacts& outer,
                    const ConfigPlace& place);
struct ConfigValue {
  std::string_view
      text;  // A string without its quotes; other values as written.
  std::optional<size_t> index;  // In a list.
};

// Why programs run what `value` names.
std::optional<std::string> DoubtOfValue(const KeyFacts& key,
                                        const ConfigValue& value,
                                        const ConfigPlace& place);

// What an object in JSON says of the class that it stands for: skops' keys.
struct ClassRecord {
  std::optional<std::string> loader, module, name;

  // Where the value of `key` belongs; null if it is none of them.
  std::optional<std::string>* Find(std::string_view key);
};
std::optional<std::string> DoubtOfClass(const ClassRecord& record,
                                        const ConfigPlace& place);

// Whether diffusers reads the parts of a pipeline from an object that has this
// `_class_name`, or from a file of this name; and whether it is one of the
// libraries and pipelines that their parts come from.
bool IsPipeline(std::string_view class_name, const ConfigPlace& place);
bool IsLibraryOfParts(std::string_view library);

}  // namespace haulway::scan

// Values in the JSON of a header, and how the safetensors package formats them.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace haulway::safetensors {

// The fields of a tensor's entry, in their order if the entry is a list.
inline constexpr std::array<std::string_view, 3> kFields = {"dtype", "shape",
                                                            "data_offsets"};

struct NamedNode;

// A JSON value, reduced to the facts that determine the message for an entry,
// so that memory does not grow with the number of values.
struct Node {
  enum class Kind {
    kNull,
    kBool,
    kUnsigned,
    kSigned,
    kFloat,
    kText,
    kList,
    kMap
  };
  Kind kind = Kind::kNull;
  bool truth = false;
  uint64_t number = 0;
  int64_t negative = 0;
  double real = 0;
  std::string text;
  // Facts about the contents of a list or map:
  size_t count = 0;
  // The first items, and the first later item that is not an unsigned number.
  std::vector<Node> items;
  bool has_odd = false;
  // The product of the items before the first such item; nullopt if it
  // overflows.
  std::optional<uint64_t> product = 1;
  // The first field, and up to four fields of kFields: enough that one repeats.
  std::vector<NamedNode> fields;
  size_t known = 0;

  void Add(Node item);
  void Add(std::string key, Node value);
};

struct NamedNode {
  std::string name;
  Node node;
};

// Returns e.g. "integer `1`".
std::string Found(const Node& node);
// Returns e.g. "invalid type: integer `1`, expected a string".
std::string WrongType(const Node& node, std::string_view expected);

void AppendUtf8(uint32_t code, std::string* out);
// Returns the package's message for invalid UTF-8, from the first invalid byte
// on; nullopt if `text` is valid.
std::optional<std::string> Utf8Refusal(std::string_view text);

}  // namespace haulway::safetensors

// Values of a header's JSON, and how the safetensors package spells them.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace haulway::safetensors {

// What an entry of a tensor has, in this order where it is a list.
inline constexpr std::array<std::string_view, 3> kFields = {"dtype", "shape",
                                                            "data_offsets"};

// A value of JSON: as much of it as says what is wrong with an entry, so that
// memory does not grow with the number of values.
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
  // The first items, and the first behind them that is no unsigned number.
  std::vector<Node> items;
  bool has_odd = false;
  // The product of all items up to the first such; nullopt if it overflows.
  std::optional<uint64_t> product = 1;
  // The first field, and as many of kFields as hold one twice.
  std::vector<std::pair<std::string, Node>> fields;
  size_t known = 0;

  void Add(Node item);
  void Add(std::string key, Node value);
};

// "integer `1`".
std::string Found(const Node& node);
// "invalid type: integer `1`, expected a string".
std::string WrongType(const Node& node, std::string_view expected);

void AppendUtf8(uint32_t code, std::string* out);
// What is said of bytes that are no UTF-8, from the first such on.
std::optional<std::string> Utf8Refusal(std::string_view text);

}  // namespace haulway::safetensors

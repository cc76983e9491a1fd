// Parses the simple XML of object stores: elements by name and their text.
// Supports nothing else, and allocates only the results.

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace haulway::s3 {

// Returns the raw content between the first <name ...> and its </name>, or
// nullopt.
std::optional<std::string_view> XmlElement(std::string_view xml,
                                           std::string_view name);
// Returns the content of all such elements.
std::vector<std::string_view> XmlElements(std::string_view xml,
                                          std::string_view name);
// Returns the text of the first such element with entities decoded, or an empty
// string.
std::string XmlText(std::string_view xml, std::string_view name);
// Escapes `text` for use in an element.
std::string XmlEscape(std::string_view text);

}  // namespace haulway::s3

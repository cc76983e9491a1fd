// The little XML that object stores answer with: elements by name, text in
// them. No more is understood, and nothing is allocated beyond the text.

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace haulway::s3 {

// What is between the first <name ...> and its </name>, as it stands; nullopt
// if there is none.
std::optional<std::string_view> XmlElement(std::string_view xml,
                                           std::string_view name);
// All of them, one after another.
std::vector<std::string_view> XmlElements(std::string_view xml,
                                          std::string_view name);
// The text of the first, entities decoded; empty if there is none.
std::string XmlText(std::string_view xml, std::string_view name);
// `text` to stand in an element.
std::string XmlEscape(std::string_view text);

}  // namespace haulway::s3

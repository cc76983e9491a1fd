// Property: in any XML answer of a store, the elements lie within it, one after
// another; and text written to be the content of an element reads back
// unchanged.
//
// The part of the input before the first line break names the elements.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "s3/xml.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t line = all.find('\n');
  if (line == all.npos) return 0;
  const std::string_view name = all.substr(0, line);
  const std::string_view xml = all.substr(line + 1);
  const char* at = xml.data();
  for (const std::string_view found : haulway::s3::XmlElements(xml, name)) {
    if (found.empty()) continue;
    if (found.data() < at || found.data() + found.size() > all.end()) abort();
    at = found.data() + found.size();
  }
  const auto first = haulway::s3::XmlElement(xml, name);
  if (haulway::s3::XmlText(xml, name).size() > xml.size()) abort();
  if (!first.has_value() && !haulway::s3::XmlText(xml, name).empty()) abort();
  const std::string element = "<E>" + haulway::s3::XmlEscape(xml) + "</E>";
  if (haulway::s3::XmlText(element, "E") != xml) abort();
  return 0;
}

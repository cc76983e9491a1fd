#include "versions/version_names.h"

#include "delta/version_facts.h"

namespace haulway {

uint64_t NumberFromDigits(std::string_view digits) {
  uint64_t number = 0;
  for (const char c : digits) {
    if (number > (UINT64_MAX - 9) / 10) return UINT64_MAX;
    number = number * 10 + static_cast<uint64_t>(c - '0');
  }
  return number;
}

uint64_t VersionNumber(std::string_view id, std::string_view folder) {
  const std::string_view number = delta::NumberOf(id);
  return NumberFromDigits(number.empty() ? delta::DigitsOfFolder(folder)
                                         : number);
}

}  // namespace haulway

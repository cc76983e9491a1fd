// Property: any rules for any safetensors file result in tensors that can be
// read, each range as part of the whole, or in a typed error. The input is the
// length of the rules as two bytes, the rules, and the file.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "arithmetic/dequantize.h"
#include "arithmetic/rule.h"
#include "computed_tensors.h"
#include "haulway/format.h"
#include "safetensors/safetensors_reader.h"

namespace {

constexpr std::string_view kConfig = R"({"heads": 2})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  if (size < 2) return 0;
  const size_t length = std::min<size_t>(data[0] | data[1] << 8, size - 2);
  const auto json = bytes.subspan(2, length);
  auto parsed = haulway::arithmetic::ParseRules(
      {reinterpret_cast<const char*>(json.data()), json.size()}, 0);
  if (!parsed.ok()) return 0;
  const auto source = std::make_shared<const haulway::fuzzing::Beside>(
      bytes.subspan(2 + length), std::as_bytes(std::span(kConfig)));
  auto opened = haulway::safetensors::OpenSafetensors(source, {});
  if (!opened.ok()) return 0;
  auto reader = *std::move(opened);
  haulway::arithmetic::RulesToApply rules;
  rules.rules = *std::move(parsed);
  const auto ruled = haulway::arithmetic::RuleTensors(*source, rules, &reader);
  if (ruled.ok()) haulway::fuzzing::ReadAll(*reader);
  return 0;
}

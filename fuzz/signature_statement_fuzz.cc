// Property: any bytes parsed as a signed statement result in a list of files
// within the model, in order and without duplicates, or in a typed error; a
// statement written of that list says the same. Any bytes parsed as a trusted
// root or as the body of a log entry result in a value or a typed error.

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "signing/bundle.h"
#include "signing/statement.h"
#include "signing/transparency.h"
#include "signing/trusted_root.h"

namespace {

using haulway::signing::Statement;

void CheckResources(const Statement& statement) {
  const auto& all = statement.resources;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!haulway::signing::WhyNoPath(all[i].name).empty()) abort();
    if (all[i].digest.size() != haulway::signing::DigestBytes(statement.hash))
      abort();
    if (i == 0) continue;
    const auto& before = all[i - 1];
    const bool is_next =
        before.name == all[i].name
            ? statement.has_pieces && before.end == all[i].begin
            : haulway::signing::IsBefore(before.name, all[i].name);
    if (!is_next) abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)haulway::signing::ParseTrustedRoot(text);
  haulway::signing::LogEntry entry;
  entry.kind = "dsse";
  entry.version = "0.0.1";
  entry.body = text;
  haulway::signing::Bundle bundle;
  bundle.certificates = {"none"};
  (void)CheckEntryIsOf(entry, bundle);
  auto statement = haulway::signing::ParseStatement(text);
  if (!statement.ok()) return 0;
  CheckResources(*statement);
  if (statement->predicate_type != haulway::signing::kPredicateType) return 0;
  Statement written = *statement;
  const auto again = haulway::signing::ParseStatement(WriteStatement(&written));
  if (!again.ok() || again->resources.size() != statement->resources.size() ||
      again->subject.name != statement->subject.name) {
    abort();
  }
  return 0;
}

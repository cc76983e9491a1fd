// Exports the tables of options for _options.py.

#include "haulway/options.h"

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/fields.h"
#include "bind/bindings.h"
#include "haulway/archive.h"
#include "haulway/compare.h"
#include "haulway/convert.h"
#include "haulway/delta.h"
#include "haulway/layout.h"
#include "haulway/load.h"
#include "haulway/open.h"
#include "haulway/runs.h"
#include "haulway/save.h"
#include "haulway/signing.h"
#include "haulway/sink.h"
#include "haulway/tensorizer.h"
#include "haulway/verify.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

nb::tuple Words(std::string_view text) {
  return nb::tuple(NameOf(text).attr("split")());
}

// The type of an option's value, and its default. `name` is "" if Python does
// not check the option.
struct Kind {
  const char* name = "";
  nb::object otherwise = nb::none();
  nb::object words = nb::tuple();
};

Kind KindOf(bool value, const Option&) { return {"flag", nb::bool_(value)}; }
Kind KindOf(Strictness value, const Option&) {
  return {"flag", nb::bool_(value == Strictness::kLenient)};
}
Kind KindOf(int value, const Option&) { return {"number", nb::int_(value)}; }
Kind KindOf(uint64_t value, const Option& option) {
  const char* const name = option.unit == Quantity::kBytes       ? "size"
                           : option.unit == Quantity::kAlignment ? "alignment"
                                                                 : "number";
  return {name, nb::int_(value)};
}
Kind KindOf(const std::optional<uint64_t>&, const Option& option) {
  return {KindOf(uint64_t{0}, option).name};
}
Kind KindOf(std::chrono::milliseconds value, const Option&) {
  return {"seconds", nb::float_(static_cast<double>(value.count()) / 1000)};
}
Kind KindOf(const std::string&, const Option& option) {
  return {option.spelling == Spelling::kPath ? "path" : "text"};
}
Kind KindOf(const std::vector<std::string>&, const Option& option) {
  if (option.spelling != Spelling::kPath) return {};
  return {"paths", nb::tuple()};
}
Kind KindOf(const std::vector<HttpHeader>&, const Option&) {
  return {"headers"};
}
template <HasWords Enum>
Kind KindOf(Enum value, const Option&) {
  nb::list words;
  for (const std::string_view word : WordsOf(value)) words.append(NameOf(word));
  return {"words", NameOf(WordOf(value)), nb::tuple(words)};
}
template <class Value>
  requires(!HasWords<Value>)
Kind KindOf(const Value&, const Option&) {
  return {};
}

// Returns a dict for each option of a struct, from its table.
template <class Struct>
nb::list RowsOf() {
  nb::list rows;
  const Struct object;
  ForEachField(object, [&](const auto& field, const auto& value) {
    const Option& option = field.option;
    const Kind kind = KindOf(value, option);
    nb::dict row;
    row["name"] = NameOf(field.name);
    row["kind"] = kind.name;
    row["default"] = kind.otherwise;
    row["words"] = kind.words;
    row["meaning"] = NameOf(field.meaning);
    row["least"] = option.least;
    row["most"] = option.most;
    row["calls"] = Words(option.calls);
    row["formats"] = Words(option.formats);
    row["configured"] = option.configured;
    row["secret"] = option.secret;
    row["in_python"] = option.in_python;
    rows.append(row);
  });
  return rows;
}

// The element type of a vector or an optional, else the type itself.
template <class Value>
struct ItemOf {
  using Type = Value;
};
template <class Value>
struct ItemOf<std::vector<Value>> {
  using Type = Value;
};
template <class Value>
struct ItemOf<std::optional<Value>> {
  using Type = Value;
};

// Adds pairs (name, meaning) of a report's fields. "findings.code" is a field
// of each finding.
template <class Struct>
void AddReportRows(const std::string& prefix, nb::list* rows) {
  const Struct object{};
  ForEachField(object, [&](const auto& field, const auto& value) {
    const std::string name = fmt::format("{}{}", prefix, field.name);
    rows->append(nb::make_tuple(name, NameOf(field.meaning)));
    using Type = typename ItemOf<std::remove_cvref_t<decltype(value)>>::Type;
    if constexpr (HasFields<Type>) AddReportRows<Type>(name + ".", rows);
  });
}

template <class Struct>
nb::list ReportRows() {
  nb::list rows;
  AddReportRows<Struct>("", &rows);
  return rows;
}

}  // namespace

void BindOptions(nb::module_& module) {
  module.def("option_rows", [] {
    nb::dict tables;
    tables["OpenOptions"] = RowsOf<OpenOptions>();
    tables["RemoteOptions"] = RowsOf<RemoteOptions>();
    tables["SourceOptions"] = RowsOf<SourceOptions>();
    tables["SignatureOptions"] = RowsOf<SignatureOptions>();
    tables["LoadOptions"] = RowsOf<LoadOptions>();
    tables["ArchiveWriterOptions"] = RowsOf<ArchiveWriterOptions>();
    tables["FileSinkOptions"] = RowsOf<FileSinkOptions>();
    tables["SaveOptions"] = RowsOf<SaveOptions>();
    tables["TensorizerOptions"] = RowsOf<TensorizerOptions>();
    tables["TensorizerEditOptions"] = RowsOf<TensorizerEditOptions>();
    tables["TensorWriterOptions"] = RowsOf<TensorWriterOptions>();
    tables["ConvertOptions"] = RowsOf<ConvertOptions>();
    tables["EditOptions"] = RowsOf<EditOptions>();
    tables["RepairOptions"] = RowsOf<RepairOptions>();
    return tables;
  });
  // Returns the fields of the command's reports by verb.
  module.def("report_rows", [] {
    nb::dict verbs;
    verbs["verify"] = ReportRows<VerifyReport>();
    verbs["verify --signature"] = ReportRows<SignatureReport>();
    verbs["sign"] = ReportRows<SignReport>();
    verbs["scan"] = ReportRows<ScanReport>();
    verbs["load"] = ReportRows<LoadStats>();
    verbs["convert"] = ReportRows<ConvertReport>();
    verbs["diff"] = ReportRows<DiffReport>();
    verbs["repair"] = ReportRows<RepairReport>();
    verbs["edit"] = ReportRows<EditReport>();
    verbs["repack"] = ReportRows<WriteStats>();
    verbs["encrypt"] = ReportRows<WriteStats>();
    verbs["decrypt"] = ReportRows<WriteStats>();
    verbs["get"] = ReportRows<DownloadStats>();
    verbs["put"] = ReportRows<WriteStats>();
    verbs["ls --stats"] = ReportRows<TensorStats>();
    verbs["delta ls"] = ReportRows<WeightVersion>();
    verbs["latest"] = ReportRows<LatestReport>();
    verbs["prune"] = ReportRows<PruneRunReport>();
    verbs["delta verify"] = ReportRows<VersionsReport>();
    verbs["delta write"] = ReportRows<WeightVersion>();
    return verbs;
  });
}

}  // namespace haulway::python

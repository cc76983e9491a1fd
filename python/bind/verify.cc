// verify() and scan(), as the dictionaries that --json prints.

#include "haulway/verify.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/gil.h"
#include "base/path_text.h"
#include "base/progress.h"
#include "bind/bindings.h"
#include "bind/loading.h"
#include "haulway/checkpoint.h"
#include "haulway/compare.h"
#include "haulway/dcp.h"
#include "haulway/pickle.h"
#include "haulway/source.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

// Bytes that are not UTF-8's, of a name in a file, become \xNN.
nb::object Text(std::string_view text) {
  return nb::steal(PyUnicode_DecodeUTF8(
      text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

nb::list Findings(const std::vector<Finding>& findings) {
  nb::list list;
  for (const Finding& finding : findings) {
    nb::dict dict;
    dict["code"] = Text(CodeName(finding.code));
    dict["message"] = Text(finding.message);
    dict["byte"] = nb::none();
    if (finding.byte.has_value()) dict["byte"] = nb::int_(*finding.byte);
    list.append(dict);
  }
  return list;
}

// None of a file that was found in a folder and is no checkpoint.
nb::object VerifyDict(std::shared_ptr<ByteSource> source, nb::dict opening,
                      int threads, nb::object progress, bool found) {
  VerifyOptions options;
  options.open = OpenOptionsOf(std::move(opening));
  options.threads = threads;
  Progress told(std::move(progress));
  told.Attach(&options);
  const auto verify = [&]() -> Result<std::optional<VerifyReport>> {
    if (found) return VerifyFound(source, options);
    HAULWAY_ASSIGN(VerifyReport report, Verify(source, options));
    return std::optional(std::move(report));
  };
  const auto verified = told.Run(
      verify, IsRemote(*source) ? Signals::kMind : SignalsFor(source->size()));
  if (!verified.has_value()) return nb::none();
  const VerifyReport& report = *verified;
  nb::dict dict;
  dict["file"] = PathText(report.file);
  dict["ok"] = report.ok;
  dict["format"] = Text(Name(report.format));
  dict["checked_bytes"] = report.checked_bytes;
  dict["file_bytes"] = report.file_bytes;
  dict["authentication"] = nb::none();
  if (!report.authentication.empty()) {
    dict["authentication"] = Text(report.authentication);
  }
  nb::list unchecked;
  for (const Unchecked& part : report.unchecked) {
    nb::dict item;
    item["what"] = Text(part.what);
    item["offset"] = part.offset;
    item["bytes"] = part.bytes;
    item["needs_key"] = part.needs_key;
    unchecked.append(item);
  }
  dict["unchecked"] = unchecked;
  dict["findings"] = Findings(report.findings);
  nb::list notes;
  for (const std::string& note : report.notes) notes.append(Text(note));
  dict["notes"] = notes;
  return dict;
}

nb::dict ReportDict(const ScanReport& report) {
  nb::dict dict;
  dict["file"] = PathText(report.file);
  dict["verdict"] = Text(Name(report.verdict));
  dict["safe"] = report.safe();
  dict["reason"] = Text(report.reason);
  dict["byte"] = nb::none();
  if (report.byte.has_value()) dict["byte"] = nb::int_(*report.byte);
  nb::list pickles;
  for (const ScannedPickle& pickle : report.pickles) {
    nb::dict item;
    item["member"] = Text(pickle.member);
    item["offset"] = pickle.offset;
    item["bytes"] = pickle.bytes;
    item["protocol"] = pickle.protocol;
    nb::list globals;
    for (const ScannedGlobal& global : pickle.globals) {
      nb::dict mention;
      mention["module"] = Text(global.module);
      mention["name"] = Text(global.name);
      mention["written"] = Text(global.written);
      mention["allowed"] = global.allowed;
      mention["byte"] = global.byte;
      globals.append(mention);
    }
    item["globals"] = globals;
    nb::dict opcodes;
    for (const auto& [opcode, count] : pickle.opcodes) {
      opcodes[Text(PickleOpcodeName(opcode))] = count;
    }
    item["opcodes"] = opcodes;
    pickles.append(item);
  }
  dict["pickles"] = pickles;
  dict["findings"] = Findings(report.findings);
  return dict;
}

nb::dict ScanDict(std::shared_ptr<ByteSource> source, nb::dict opening) {
  const OpenOptions options = OpenOptionsOf(std::move(opening));
  const bool is_remote = IsRemote(*source);
  const auto scan = [&] { return Scan(std::move(source), options); };
  return ReportDict(is_remote ? Minding(scan) : Unwrap(WithoutGil(scan)));
}

// A report for each file below a path.
nb::list ScanPathList(const nb::bytes& path, nb::dict opening,
                      nb::dict reached) {
  const OpenOptions options = OpenOptionsOf(std::move(opening));
  const RemoteOptions remote = RemoteOptionsOf(std::move(reached));
  const std::string name(path.c_str(), path.size());
  using Reports = std::vector<ScanReport>;
  const auto scan = [&]() -> Result<Reports> {
    Reports reports;
    const auto each = [&](ScanReport report) {
      reports.push_back(std::move(report));
      return Status();
    };
    HAULWAY_TRY(ScanPath(name, options, each, remote));
    return reports;
  };
  const Reports reports =
      name.find("://") == name.npos ? Unwrap(WithoutGil(scan)) : Minding(scan);
  nb::list list;
  for (const ScanReport& report : reports) list.append(ReportDict(report));
  return list;
}

}  // namespace

void BindVerify(nb::module_& module) {
  module.def("verify", &VerifyDict, nb::arg("source"), nb::arg("opening"),
             nb::arg("threads"), nb::arg("progress").none(),
             nb::arg("found") = false);
  module.def(
      "list_files_to_verify", [](const std::string& folder, nb::dict remote) {
        const RemoteOptions reached = RemoteOptionsOf(std::move(remote));
        nb::list files;
        for (const std::string& file :
             Minding([&] { return ListFilesToVerify(folder, reached); })) {
          files.append(PathText(file));
        }
        return files;
      });
  // What of a checkpoint is not as a manifest, JSON, says.
  module.def("check_manifest", [](std::shared_ptr<Checkpoint> checkpoint,
                                  const std::string& json, int threads) {
    const Manifest expected = Unwrap(ManifestFromJson(json));
    const auto make = [&] {
      return MakeManifest(*checkpoint, {.threads = threads});
    };
    const Manifest found = IsRemote(checkpoint->source())
                               ? Minding(make)
                               : Unwrap(WithoutGil(make));
    return Findings(CompareManifests(expected, found));
  });
  module.def("scan", &ScanDict);
  module.def("scan_path", &ScanPathList);
}

}  // namespace haulway::python

// Bindings of verify() and scan(). Reports are the dictionaries that --json
// prints.

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
#include "base/fields.h"
#include "base/gil.h"
#include "base/progress.h"
#include "bind/bindings.h"
#include "bind/loading.h"
#include "haulway/checkpoint.h"
#include "haulway/compare.h"
#include "haulway/source.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

// Returns None if `found`, i.e. the file comes from a folder listing, and it is
// not a checkpoint.
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
  return FieldsDict(*verified);
}

nb::dict ScanDict(std::shared_ptr<ByteSource> source, nb::dict opening) {
  const OpenOptions options = OpenOptionsOf(std::move(opening));
  const bool is_remote = IsRemote(*source);
  const auto scan = [&] { return Scan(std::move(source), options); };
  return FieldsDict(is_remote ? Minding(scan) : Unwrap(WithoutGil(scan)));
}

// Returns a report for each file below a path.
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
  for (const ScanReport& report : reports) list.append(FieldsDict(report));
  return list;
}

}  // namespace

void BindVerify(nb::module_& module) {
  module.def("verify", &VerifyDict, nb::arg("source"), nb::arg("opening"),
             nb::arg("threads"), nb::arg("progress").none(),
             nb::arg("found") = false);
  // Returns how a checkpoint differs from a manifest, given as JSON.
  module.def("check_manifest", [](std::shared_ptr<Checkpoint> checkpoint,
                                  const std::string& json, int threads) {
    const Manifest expected = Unwrap(ManifestFromJson(json));
    const auto make = [&] {
      return MakeManifest(*checkpoint, {.threads = threads});
    };
    const Manifest found = IsRemote(checkpoint->source())
                               ? Minding(make)
                               : Unwrap(WithoutGil(make));
    return FieldValue(CompareManifests(expected, found));
  });
  module.def("scan", &ScanDict);
  module.def("scan_path", &ScanPathList);
}

}  // namespace haulway::python

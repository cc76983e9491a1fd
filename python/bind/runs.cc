// Bindings for the checkpoints of training runs.

#include "haulway/runs.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/errors.h"
#include "base/fields.h"
#include "base/gil.h"
#include "base/path_text.h"
#include "base/progress.h"
#include "bind/bindings.h"
#include "bind/loading.h"
#include "bind/writing.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

// Runs `work`, which ends early if `cancel` is set.
template <class Work>
auto RunCancelling(const Work& work, std::atomic<bool>* cancel) {
  std::optional<decltype(work())> result;
  if (!RunMindingSignals([&] { result.emplace(work()); }, cancel)) {
    throw nb::python_error();
  }
  return Unwrap(std::move(*result));
}

RunOptions RunOptionsOf(const std::string& layout, bool digests,
                        nb::dict remote, int threads,
                        const std::atomic<bool>* cancel) {
  RunOptions options;
  options.layout = layout;
  options.digests = digests;
  options.threads = threads;
  options.remote = RemoteOptionsOf(std::move(remote));
  options.cancel = cancel;
  return options;
}

nb::object List(const nb::str& uri, const std::string& layout, nb::dict remote,
                int threads) {
  const std::string name = PathBytes(uri);
  std::atomic<bool> cancel = false;
  const RunOptions options =
      RunOptionsOf(layout, false, std::move(remote), threads, &cancel);
  return FieldValue(
      RunCancelling([&] { return ListRun(name, options); }, &cancel));
}

// Returns (the entry or None, skipped); raises if none is good.
nb::tuple Latest(const nb::str& uri, bool digests, std::optional<uint64_t> step,
                 const std::string& layout, nb::dict remote, int threads) {
  const std::string name = PathBytes(uri);
  std::atomic<bool> cancel = false;
  RunOptions options =
      RunOptionsOf(layout, digests, std::move(remote), threads, &cancel);
  options.step = step;
  const LatestReport report =
      RunCancelling([&] { return FindLatest(name, options); }, &cancel);
  if (!report.entry.has_value() && !report.is_empty()) {
    Check(NoneIsGood(report, name, step));
  }
  return nb::make_tuple(FieldValue(report.entry), FieldValue(report.skipped));
}

nb::dict Prune(const nb::str& uri, uint64_t keep, bool dry_run,
               std::optional<uint64_t> trusted, const std::string& layout,
               nb::dict remote, int threads) {
  const std::string name = PathBytes(uri);
  std::atomic<bool> cancel = false;
  PruneRunOptions options;
  options.run =
      RunOptionsOf(layout, false, std::move(remote), threads, &cancel);
  options.keep = keep;
  options.dry_run = dry_run;
  options.trusted = trusted;
  return FieldsDict(
      RunCancelling([&] { return PruneRun(name, options); }, &cancel));
}

NewStep::Options StepOptionsOf(bool is_fast, int threads, nb::dict remote) {
  NewStep::Options options;
  if (is_fast) options.durability = Durability::kNone;
  options.threads = threads;
  options.remote = RemoteOptionsOf(std::move(remote));
  return options;
}

std::unique_ptr<NewStep> Begin(const nb::str& uri, uint64_t step, bool is_fast,
                               int threads, nb::dict remote) {
  const std::string name = PathBytes(uri);
  const NewStep::Options options =
      StepOptionsOf(is_fast, threads, std::move(remote));
  return Unwrap(
      WithoutGil([&] { return NewStep::Begin(name, step, options); }));
}

void WriteManifest(const nb::str& folder, uint64_t step,
                   const std::string& format, const std::string& metadata,
                   bool is_fast, int threads) {
  const std::string path = PathBytes(folder);
  const NewStep::Options options = StepOptionsOf(is_fast, threads, nb::dict());
  Check(WithoutGil(
      [&] { return WriteRunManifest(path, step, format, metadata, options); }));
}

}  // namespace

void BindRuns(nb::module_& module) {
  nb::list layouts;
  for (const std::string_view name : kRunLayoutWords) {
    layouts.append(nb::str(name.data(), name.size()));
  }
  module.attr("run_layouts") = nb::tuple(layouts);
  module.def("run_list", &List);
  module.def("run_latest", &Latest);
  module.def("run_prune", &Prune);
  module.def("run_begin", &Begin);
  module.def("run_manifest", &WriteManifest);

  nb::class_<StepFile>(module, "StepFile");
  nb::class_<NewStep>(module, "NewStep")
      .def("file",
           [](nb::object step, const std::string& name) {
             return StepFile{std::move(step), name};
           })
      .def_prop_ro("folder",
                   [](const NewStep& step) { return PathText(step.folder()); })
      .def("discard",
           [](NewStep& step) { WithoutGil([&] { step.Discard(); }); })
      .def("publish", [](NewStep& step, const std::string& format,
                         const std::string& metadata) {
        return FieldsDict(
            Unwrap(WithoutGil([&] { return step.Publish(format, metadata); })));
      });
}

}  // namespace haulway::python

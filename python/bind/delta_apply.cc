// Bindings of haulway.delta.apply, fold and compact.

#include "haulway/delta_apply.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <optional>
#include <string>
#include <utility>

#include "base/errors.h"
#include "base/fields.h"
#include "base/gil.h"
#include "base/path_text.h"
#include "bind/bindings.h"
#include "bind/loading.h"
#include "haulway/delta_fold.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

// Runs `work`, which ends early if `cancel` is set, and returns its fields.
template <class Work>
nb::dict Reported(const Work& work, std::atomic<bool>* cancel) {
  std::optional<decltype(work())> result;
  if (!RunMindingSignals([&] { result = work(); }, cancel)) {
    throw nb::python_error();
  }
  return FieldsDict(Unwrap(std::move(*result)));
}

nb::dict ApplyDeltas(const nb::str& target, const nb::str& uri,
                     nb::dict options) {
  const std::string folder = PathBytes(target);
  const std::string run = PathBytes(uri);
  std::atomic<bool> cancel = false;
  ApplyVersionsOptions apply;
  apply.to = nb::cast<std::string>(options["to"]);
  apply.start = nb::cast<std::string>(options["start"]);
  apply.source.io = IoMode::kPread;
  apply.source.base = PathBytes(nb::cast<nb::str>(options["base"]));
  apply.source.remote = RemoteOptionsOf(nb::cast<nb::dict>(options["remote"]));
  apply.threads = nb::cast<int>(options["threads"]);
  if (nb::cast<bool>(options["is_fast"])) apply.durability = Durability::kNone;
  apply.cancel = &cancel;
  return Reported([&] { return ApplyVersions(folder, run, apply); }, &cancel);
}

JoinVersionsOptions JoinOptionsOf(const nb::dict& options,
                                  const std::atomic<bool>* cancel) {
  JoinVersionsOptions join;
  join.source.io = IoMode::kPread;
  join.source.base = PathBytes(nb::cast<nb::str>(options["base"]));
  join.source.remote = RemoteOptionsOf(nb::cast<nb::dict>(options["remote"]));
  join.shard_bytes = nb::cast<uint64_t>(options["shard"]);
  join.threads = nb::cast<int>(options["threads"]);
  join.cancel = cancel;
  return join;
}

nb::dict FoldDeltas(const nb::str& uri, const nb::str& out,
                    const std::string& start, const std::string& to,
                    const nb::dict& options) {
  const std::string run = PathBytes(uri);
  const std::string folder = PathBytes(out);
  std::atomic<bool> cancel = false;
  const JoinVersionsOptions join = JoinOptionsOf(options, &cancel);
  return Reported([&] { return FoldVersions(run, folder, start, to, join); },
                  &cancel);
}

nb::dict CompactDeltas(const nb::str& uri, const nb::str& out,
                       const std::string& version, const nb::dict& options) {
  const std::string run = PathBytes(uri);
  const std::string folder = PathBytes(out);
  std::atomic<bool> cancel = false;
  const JoinVersionsOptions join = JoinOptionsOf(options, &cancel);
  return Reported([&] { return CompactVersion(run, folder, version, join); },
                  &cancel);
}

}  // namespace

void BindDeltaApply(nb::module_& module) {
  module.def("delta_apply", &ApplyDeltas);
  module.def("delta_fold", &FoldDeltas);
  module.def("delta_compact", &CompactDeltas);
}

}  // namespace haulway::python

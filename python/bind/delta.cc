// Bindings of haulway.delta.

#include "haulway/delta.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/fields.h"
#include "base/gil.h"
#include "base/path_text.h"
#include "base/progress.h"
#include "bind/bindings.h"
#include "bind/loading.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

// Runs `work`, which ends early if `cancel` is set.
template <class Work>
auto RunStoppable(const Work& work, std::atomic<bool>* cancel) {
  std::optional<decltype(work())> result;
  if (!RunMindingSignals([&] { result.emplace(work()); }, cancel)) {
    throw nb::python_error();
  }
  return Unwrap(std::move(*result));
}

nb::object DeltaVersions(const nb::str& uri, nb::dict remote) {
  const std::string name = PathBytes(uri);
  const RemoteOptions options = RemoteOptionsOf(std::move(remote));
  return FieldValue(Minding([&] { return ListVersions(name, options); }));
}

nb::dict VerifyDeltas(const nb::str& uri, const nb::str& base, nb::dict remote,
                      int threads) {
  const std::string name = PathBytes(uri);
  std::atomic<bool> cancel = false;
  VerifyVersionsOptions options;
  options.source.io = IoMode::kPread;
  options.source.base = PathBytes(base);
  options.source.remote = RemoteOptionsOf(std::move(remote));
  options.threads = threads;
  options.cancel = &cancel;
  return FieldsDict(
      RunStoppable([&] { return VerifyVersions(name, options); }, &cancel));
}

nb::dict WriteDelta(std::shared_ptr<Checkpoint> before,
                    std::shared_ptr<Checkpoint> after, const nb::str& out,
                    nb::dict options) {
  const std::string path = PathBytes(out);
  std::atomic<bool> cancel = false;
  WriteVersionOptions write;
  write.version = nb::cast<std::string>(options["version"]);
  write.base_version = nb::cast<std::string>(options["base_version"]);
  write.encoding = nb::cast<std::string>(options["encoding"]);
  write.checksum = nb::cast<std::string>(options["checksum"]);
  write.shard_bytes = nb::cast<uint64_t>(options["shard"]);
  write.threads = nb::cast<int>(options["threads"]);
  if (nb::cast<bool>(options["is_fast"])) write.durability = Durability::kNone;
  write.remote = RemoteOptionsOf(nb::cast<nb::dict>(options["remote"]));
  write.cancel = &cancel;
  return FieldsDict(RunStoppable(
      [&] { return WriteVersion(*before, *after, path, write); }, &cancel));
}

}  // namespace

void BindDelta(nb::module_& module) {
  module.def("delta_versions", &DeltaVersions);
  module.def("delta_verify", &VerifyDeltas);
  module.def("delta_write", &WriteDelta);
}

}  // namespace haulway::python

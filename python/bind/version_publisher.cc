// Bindings of haulway.delta.publisher(), follow() and prune().

#include "haulway/version_publisher.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cmath>
#include <cstdint>
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
#include "bind/dense_tensors.h"
#include "bind/loading.h"
#include "bind/writing.h"
#include "haulway/version_follower.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

using Written = VersionPublisher::Written;

// Runs `work`, which returns a Status, and handles signals meanwhile.
template <class Work>
void MindingStatus(const Work& work) {
  Minding([&]() -> Result<bool> {
    HAULWAY_TRY(work());
    return true;
  });
}

std::unique_ptr<VersionPublisher> OpenPublisher(const nb::str& uri,
                                                const nb::str& base,
                                                nb::dict given, bool leads) {
  VersionPublisherOptions options;
  options.encoding = nb::cast<std::string>(given["encoding"]);
  options.checksum = nb::cast<std::string>(given["checksum"]);
  options.shard_bytes = nb::cast<uint64_t>(given["shard"]);
  options.full_every = nb::cast<uint64_t>(given["full_every"]);
  options.keep = nb::cast<uint64_t>(given["keep"]);
  options.layout = nb::cast<std::string>(given["layout"]);
  options.threads = nb::cast<int>(given["threads"]);
  if (nb::cast<bool>(given["is_fast"])) {
    options.durability = Durability::kNone;
  }
  options.remote = RemoteOptionsOf(nb::cast<nb::dict>(given["remote"]));
  const std::string name = PathBytes(uri);
  const std::string base_name = PathBytes(base);
  return Minding([&] {
    return leads ? VersionPublisher::Open(name, base_name, options)
                 : VersionPublisher::Join(name, base_name, options);
  });
}

// Tensors as tuples (name, dtype, shape, checksum).
nb::list RowsOf(const std::vector<PublishedTensor>& tensors) {
  nb::list rows;
  for (const PublishedTensor& one : tensors) {
    rows.append(nb::make_tuple(TextOf(one.name), TextOf(Name(one.dtype)),
                               nb::tuple(nb::cast(one.shape)),
                               TextOf(one.checksum)));
  }
  return rows;
}

std::vector<PublishedTensor> TensorsOf(const nb::list& rows) {
  std::vector<PublishedTensor> tensors;
  tensors.reserve(rows.size());
  for (nb::handle item : rows) {
    const auto row = nb::borrow<nb::tuple>(item);
    const auto dtype = DTypeFromName(nb::cast<std::string>(row[1]));
    PublishedTensor& one = tensors.emplace_back();
    one.name = Utf8Of(row[0]);
    one.dtype = dtype.value_or(DType::kU8);
    for (nb::handle size : nb::borrow<nb::tuple>(row[2])) {
      one.shape.push_back(nb::cast<int64_t>(size));
    }
    one.checksum = nb::cast<std::string>(row[3]);
  }
  return tensors;
}

void BindSteps(nb::class_<VersionPublisher>& publisher) {
  publisher
      .def("begin", [](VersionPublisher& self,
                       bool full) { return Unwrap(self.Begin(full)); })
      .def("add",
           [](VersionPublisher& self, nb::iterable rows) {
             const DenseTensors given(std::move(rows));
             MindingStatus([&] { return self.Add(given.tensors.tensors); });
           })
      .def("added",
           [](const VersionPublisher& self) { return RowsOf(self.Added()); })
      .def("check_complete",
           [](const VersionPublisher& self, const nb::list& rows) {
             python::Check(self.CheckComplete(TensorsOf(rows)));
           })
      .def("leave_out",
           [](VersionPublisher& self, const std::vector<std::string>& names) {
             python::Check(self.LeaveOut(names));
           })
      .def_prop_ro("shards", &VersionPublisher::shards)
      .def(
          "enter_folder",
          [](VersionPublisher& self, std::optional<nb::str> place) {
            std::optional<std::string> path;
            if (place.has_value()) path = PathBytes(*place);
            const std::string entered =
                Minding([&] { return self.EnterFolder(path); });
            return PathText(entered);
          },
          nb::arg("place").none())
      .def("write_shards",
           [](VersionPublisher& self, uint64_t first, uint64_t count) {
             const Written written =
                 Minding([&] { return self.WriteShards(first, count); });
             return nb::make_tuple(written.weight_map, written.bytes,
                                   written.total_size);
           })
      .def("commit",
           [](VersionPublisher& self,
              std::vector<std::pair<std::string, std::string>> weight_map,
              uint64_t bytes, uint64_t total_size) {
             const Written all{std::move(weight_map), bytes, total_size};
             return FieldsDict(Minding([&] { return self.Commit(all); }));
           })
      .def("accept", [](VersionPublisher& self,
                        const nb::list& rows) { self.Accept(TensorsOf(rows)); })
      .def("discard",
           [](VersionPublisher& self) { WithoutGil([&] { self.Discard(); }); })
      .def("prune", [](VersionPublisher& self) {
        MindingStatus([&] { return self.Prune(); });
      });
}

std::unique_ptr<VersionFollower> OpenFollower(
    const nb::str& uri, std::optional<uint64_t> newer_than, double poll,
    nb::dict remote) {
  FollowOptions options;
  options.newer_than = newer_than;
  options.poll =
      std::chrono::milliseconds(static_cast<int64_t>(std::ceil(poll * 1000)));
  options.remote = RemoteOptionsOf(std::move(remote));
  return Unwrap(VersionFollower::Open(PathBytes(uri), options));
}

nb::dict NextVersion(VersionFollower& follower, std::optional<double> wait) {
  std::optional<std::chrono::milliseconds> longest;
  if (wait.has_value()) {
    longest = std::chrono::milliseconds(
        static_cast<int64_t>(std::ceil(*wait * 1000)));
  }
  return FieldsDict(Minding([&] { return follower.Next(longest); }));
}

nb::dict Prune(const nb::str& uri, uint64_t keep, bool dry_run,
               nb::dict remote) {
  const std::string name = PathBytes(uri);
  const PruneOptions options{.keep = keep,
                             .dry_run = dry_run,
                             .remote = RemoteOptionsOf(std::move(remote))};
  return FieldsDict(Minding([&] { return PruneVersions(name, options); }));
}

}  // namespace

void BindVersionPublisher(nb::module_& module) {
  nb::class_<VersionPublisher> publisher(module, "VersionPublisher");
  publisher.def_static("open", &OpenPublisher)
      .def_prop_ro("version", &VersionPublisher::version)
      .def_prop_ro("needs_base", &VersionPublisher::needs_base)
      .def("set_base",
           [](VersionPublisher& self, nb::iterable rows) {
             const DenseTensors given(std::move(rows));
             MindingStatus([&] { return self.SetBase(given.tensors.tensors); });
           })
      .def("load_all",
           [](VersionPublisher& self) {
             MindingStatus([&] { return self.LoadAll(); });
           })
      .def("close",
           [](VersionPublisher& self) { WithoutGil([&] { self.Close(); }); })
      .def("leave", &VersionPublisher::Leave);
  BindSteps(publisher);

  nb::class_<VersionFollower>(module, "VersionFollower")
      .def_static("open", &OpenFollower, nb::arg("uri"),
                  nb::arg("newer_than").none(), nb::arg("poll"),
                  nb::arg("remote"))
      .def("next", &NextVersion, nb::arg("wait").none());
  module.def("delta_prune", &Prune);
}

}  // namespace haulway::python

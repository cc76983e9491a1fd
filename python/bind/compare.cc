// Bindings of compare, repair, manifests and statistics. Reports are the
// dictionaries that --json prints.

#include "haulway/compare.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "base/fields.h"
#include "base/gil.h"
#include "base/path_text.h"
#include "base/progress.h"
#include "bind/bindings.h"
#include "bind/loading.h"
#include "bind/writing.h"
#include "haulway/convert.h"
#include "haulway/select.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

// `names` may be null, and must outlive the returned function. Raises if one of
// its patterns matches no name.
std::function<bool(std::string_view)> SelectOf(
    const NameFilter* names,
    std::initializer_list<const Checkpoint*> checkpoints) {
  if (names == nullptr) return nullptr;
  Check(names->CheckUsed(checkpoints));
  return [names](std::string_view name) { return names->Matches(name); };
}

}  // namespace

void BindCompare(nb::module_& module) {
  module.def(
      "diff",
      [](std::shared_ptr<Checkpoint> a, std::shared_ptr<Checkpoint> b,
         const NameFilter* select, nb::dict comparing, nb::object progress) {
        DiffOptions options;
        options.select = SelectOf(select, {a.get(), b.get()});
        SetFields(std::move(comparing), &options);
        Progress told(std::move(progress));
        told.Attach(&options);
        return FieldsDict(told.Run([&] { return Diff(*a, *b, options); }));
      },
      nb::arg("a"), nb::arg("b"), nb::arg("select").none(),
      nb::arg("comparing"), nb::arg("progress").none());

  // Maps a name to (dtype, shape, sha256).
  module.def(
      "manifest",
      [](std::shared_ptr<Checkpoint> checkpoint, const NameFilter* select,
         nb::dict reading, nb::object progress) {
        ManifestOptions options;
        options.select = SelectOf(select, {checkpoint.get()});
        SetFields(std::move(reading), &options);
        Progress told(std::move(progress));
        told.Attach(&options);
        nb::dict all;
        for (const ManifestTensor& tensor :
             told.Run([&] { return MakeManifest(*checkpoint, options); })) {
          all[TextOf(tensor.name)] =
              nb::make_tuple(FieldValue(tensor.dtype), FieldValue(tensor.shape),
                             FieldValue(tensor.sha256));
        }
        return all;
      },
      nb::arg("checkpoint"), nb::arg("select").none(), nb::arg("reading"),
      nb::arg("progress").none());

  module.def(
      "repair",
      [](std::shared_ptr<ByteSource> file, nb::list others, const nb::str& path,
         std::optional<std::string> to, nb::dict opening, nb::dict writing,
         nb::dict remote, nb::object progress) {
        RepairOptions options;
        options.open_sink = OpenerOf(std::move(remote), /*overwrite=*/false);
        if (to.has_value()) options.to = Unwrap(FormatToWriteByName(*to));
        options.open = OpenOptionsOf(std::move(opening));
        SetFields(std::move(writing), &options);
        std::vector<std::shared_ptr<const ByteSource>> sources;
        for (nb::handle other : others) {
          sources.push_back(nb::cast<std::shared_ptr<ByteSource>>(other));
        }
        Progress told(std::move(progress));
        told.Attach(&options.save.write);
        const std::string target = PathBytes(path);
        return FieldsDict(told.Run(
            [&] { return Repair(std::move(file), sources, target, options); }));
      },
      nb::arg("file"), nb::arg("others"), nb::arg("path"), nb::arg("to").none(),
      nb::arg("opening"), nb::arg("writing"), nb::arg("remote"),
      nb::arg("progress").none());

  // Maps a name to a dict, or to None if the tensor holds no numbers.
  module.def(
      "tensor_stats",
      [](std::shared_ptr<Checkpoint> checkpoint, const NameFilter* select,
         nb::dict reading, nb::object progress) {
        TensorStatsOptions options;
        SetFields(std::move(reading), &options);
        if (select != nullptr) Check(select->CheckUsed({checkpoint.get()}));
        std::vector<Entry> entries;
        std::vector<uint32_t> tensors;
        for (const Entry& entry : checkpoint->entries()) {
          if (select != nullptr && !select->Matches(entry.name)) continue;
          entries.push_back(entry);
          tensors.push_back(entry.tensor);
        }
        Progress told(std::move(progress));
        told.Attach(&options);
        const auto stats = told.Run(
            [&] { return MeasureTensors(*checkpoint, tensors, options); });
        nb::dict all;
        for (size_t i = 0; i < entries.size(); ++i) {
          all[TextOf(entries[i].name)] = FieldValue(stats[i]);
        }
        return all;
      },
      nb::arg("checkpoint"), nb::arg("select").none(), nb::arg("reading"),
      nb::arg("progress").none());
}

}  // namespace haulway::python

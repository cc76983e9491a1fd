// Comparing and repairing, manifests and statistics, as the dictionaries
// that --json prints.

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
#include "base/progress.h"
#include "bind/bindings.h"
#include "bind/loading.h"
#include "bind/writing.h"
#include "haulway/convert.h"
#include "haulway/select.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

nb::object TextOf(std::string_view text) {
  return nb::steal(PyUnicode_DecodeUTF8(
      text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

nb::list NamesOf(const std::vector<std::string>& names) {
  nb::list list;
  for (const std::string& name : names) list.append(TextOf(name));
  return list;
}

nb::tuple ShapeTuple(const std::vector<int64_t>& shape) {
  nb::list sizes;
  for (const int64_t size : shape) sizes.append(size);
  return nb::tuple(sizes);
}

nb::dict SideOf(DType dtype, const std::vector<int64_t>& shape) {
  nb::dict side;
  side["dtype"] = TextOf(Name(dtype));
  side["shape"] = ShapeTuple(shape);
  return side;
}

nb::dict ChangeOf(const ChangedTensor& tensor) {
  nb::dict row;
  row["name"] = TextOf(tensor.name);
  row["what"] = TextOf(Name(tensor.what));
  row["a"] = SideOf(tensor.a_dtype, tensor.a_shape);
  row["b"] = SideOf(tensor.b_dtype, tensor.b_shape);
  const auto numbers = tensor.numbers.value_or(NumberDifference());
  ForEachField(numbers, [&](const auto& field, const auto& value) {
    row[NameOf(field.name)] =
        tensor.numbers.has_value() ? FieldValue(value) : nb::none();
  });
  return row;
}

nb::dict ReportOf(const DiffReport& report) {
  nb::list changed;
  for (const ChangedTensor& tensor : report.changed) {
    changed.append(ChangeOf(tensor));
  }
  nb::dict all;
  all["equal"] = report.equal();
  all["added"] = NamesOf(report.added);
  all["removed"] = NamesOf(report.removed);
  all["changed"] = changed;
  all["same"] = report.same;
  all["compared_bytes"] = report.compared_bytes;
  all["seconds"] = report.seconds;
  return all;
}

// The filter may be null, and must outlive the function.
std::function<bool(std::string_view)> SelectOf(const NameFilter* names) {
  if (names == nullptr) return nullptr;
  return [names](std::string_view name) { return names->Matches(name); };
}

}  // namespace

void BindCompare(nb::module_& module) {
  module.def(
      "diff",
      [](std::shared_ptr<Checkpoint> a, std::shared_ptr<Checkpoint> b,
         const NameFilter* select, bool ignore_dtype, double absolute,
         double relative, bool verify, int threads, nb::object progress,
         nb::object memory_budget) {
        DiffOptions options;
        options.select = SelectOf(select);
        options.ignore_dtype = ignore_dtype;
        options.absolute = absolute;
        options.relative = relative;
        options.verify = verify;
        options.threads = threads;
        if (!memory_budget.is_none()) {
          options.memory_budget = nb::cast<uint64_t>(memory_budget);
        }
        Progress told(std::move(progress));
        told.Attach(&options);
        return ReportOf(told.Run([&] { return Diff(*a, *b, options); }));
      },
      nb::arg("a"), nb::arg("b"), nb::arg("select").none(),
      nb::arg("ignore_dtype"), nb::arg("absolute"), nb::arg("relative"),
      nb::arg("verify"), nb::arg("threads"), nb::arg("progress").none(),
      nb::arg("memory_budget").none());

  // Name to (dtype, shape, sha256).
  module.def(
      "manifest",
      [](std::shared_ptr<Checkpoint> checkpoint, const NameFilter* select,
         bool verify, int threads, nb::object memory_budget) {
        ManifestOptions options;
        options.select = SelectOf(select);
        options.verify = verify;
        options.threads = threads;
        if (!memory_budget.is_none()) {
          options.memory_budget = nb::cast<uint64_t>(memory_budget);
        }
        std::atomic<bool> cancel = false;
        options.cancel = &cancel;
        std::optional<Result<Manifest>> made;
        if (!RunMindingSignals(
                [&] { made.emplace(MakeManifest(*checkpoint, options)); },
                &cancel)) {
          throw nb::python_error();
        }
        nb::dict all;
        for (const ManifestTensor& tensor : Unwrap(std::move(*made))) {
          nb::object digest = nb::none();
          if (tensor.sha256.has_value()) {
            digest = nb::bytes(tensor.sha256->data(), tensor.sha256->size())
                         .attr("hex")();
          }
          all[TextOf(tensor.name)] = nb::make_tuple(
              TextOf(Name(tensor.dtype)), ShapeTuple(tensor.shape), digest);
        }
        return all;
      },
      nb::arg("checkpoint"), nb::arg("select").none(), nb::arg("verify"),
      nb::arg("threads"), nb::arg("memory_budget").none());

  module.def(
      "repair",
      [](std::shared_ptr<ByteSource> file, nb::list others, std::string path,
         std::optional<std::string> to, nb::dict opening,
         std::string durability, int threads, nb::object progress,
         nb::object memory_budget) {
        RepairOptions options;
        if (to.has_value()) options.to = Unwrap(FormatToWriteByName(*to));
        options.open = OpenOptionsOf(std::move(opening));
        options.durability = DurabilityOf(durability);
        options.save.write = WriteOptionsOf(threads, memory_budget);
        std::vector<std::shared_ptr<const ByteSource>> sources;
        for (nb::handle other : others) {
          sources.push_back(nb::cast<std::shared_ptr<ByteSource>>(other));
        }
        Progress told(std::move(progress));
        told.Attach(&options.save.write);
        const RepairReport report = told.Run(
            [&] { return Repair(std::move(file), sources, path, options); });
        nb::dict all;
        all["fault"] = nb::none();
        if (!report.fault.empty()) all["fault"] = TextOf(report.fault);
        all["kept"] = NamesOf(report.kept);
        nb::list taken, lost, left_out;
        const auto add = [](nb::list& list, const char* key,
                            std::string_view name, std::string_view value) {
          nb::dict row;
          row["name"] = TextOf(name);
          row[key] = TextOf(value);
          list.append(row);
        };
        for (const auto& one : report.taken) {
          add(taken, "from", one.name, one.from);
        }
        for (const auto& one : report.lost) add(lost, "why", one.name, one.why);
        for (const auto& one : report.left_out) {
          add(left_out, "why", one.name, one.why);
        }
        all["taken"] = taken;
        all["lost"] = lost;
        all["left_out"] = left_out;
        all["bytes"] = report.bytes;
        all["ok"] = report.lost.empty();
        return all;
      },
      nb::arg("file"), nb::arg("others"), nb::arg("path"), nb::arg("to").none(),
      nb::arg("opening"), nb::arg("durability"), nb::arg("threads"),
      nb::arg("progress").none(), nb::arg("memory_budget").none());

  // Name to a dict, or None for what holds no numbers.
  module.def(
      "tensor_stats",
      [](std::shared_ptr<Checkpoint> checkpoint, const NameFilter* select,
         int threads, nb::object progress, nb::object memory_budget) {
        TensorStatsOptions options;
        options.threads = threads;
        if (!memory_budget.is_none()) {
          options.memory_budget = nb::cast<uint64_t>(memory_budget);
        }
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
          nb::object row = nb::none();
          if (stats[i].has_value()) row = FieldsDict(*stats[i]);
          all[TextOf(entries[i].name)] = row;
        }
        return all;
      },
      nb::arg("checkpoint"), nb::arg("select").none(), nb::arg("threads"),
      nb::arg("progress").none(), nb::arg("memory_budget").none());
}

}  // namespace haulway::python

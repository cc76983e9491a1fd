// Bindings of convert and of the tensor-by-tensor writer.
//
// Design: Python has already checked the options. Names are selected and
// renamed by Python functions, called with the GIL while the library plans; the
// rest runs without it. A TensorWriter borrows the bytes that it is given for
// the duration of the call. Reports are dicts with the fields of WriteStats.
//
// A callback into Python for each tensor's bytes was left out: writing threads
// would wait for the GIL. Callers that produce tensors one by one use the
// writer.

#include "haulway/convert.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/path_text.h"
#include "base/progress.h"
#include "bind/bindings.h"
#include "bind/loading.h"
#include "bind/writing.h"
#include "haulway/save.h"
#include "haulway/select.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

DType DTypeOf(const std::string& name) {
  const std::optional<DType> dtype = DTypeFromName(name);
  if (!dtype.has_value()) {
    Raise(Status(Code::kInvalidArgument, "no dtype " + name));
  }
  return *dtype;
}

// An Asked calls Python functions with names. If one raises, no file is made,
// and Rethrow() raises the exception again.
class Asked {
 public:
  // Returns a function that calls `function` and converts the result. Once any
  // of the functions has raised, it returns `otherwise`.
  template <class T, class Convert>
  std::function<T(std::string_view)> Of(nb::object function, T otherwise,
                                        Convert convert) {
    if (function.is_none()) return nullptr;
    functions_.push_back(std::move(function));
    return [this, i = functions_.size() - 1, otherwise = std::move(otherwise),
            convert](std::string_view name) -> T {
      const GilHeld gil;
      if (!gil || raised_.has_value()) return otherwise;
      try {
        return convert(functions_[i](nb::str(name.data(), name.size())));
      } catch (nb::python_error& error) {
        raised_.emplace(std::move(error));
        return otherwise;
      }
    };
  }
  bool raised() const { return raised_.has_value(); }
  void Rethrow() {
    if (raised_.has_value()) throw std::move(*raised_);
  }

 private:
  std::vector<nb::object> functions_;
  std::optional<nb::python_error> raised_;
};

// A writer, and the progress that its Commit() reports.
struct ToldWriter {
  std::unique_ptr<Progress> told;  // Must outlive the writer.
  std::unique_ptr<TensorWriter> writer;
};

std::vector<std::string> Texts(nb::list texts) {
  std::vector<std::string> all;
  for (nb::handle text : texts) all.push_back(Utf8Of(text));
  return all;
}

std::vector<std::pair<std::string, std::string>> Pairs(nb::list pairs) {
  std::vector<std::pair<std::string, std::string>> all;
  for (nb::handle pair : pairs)
    all.emplace_back(Utf8Of(pair[0]), Utf8Of(pair[1]));
  return all;
}

std::vector<int64_t> ShapeOf(nb::handle shape) {
  std::vector<int64_t> sizes;
  for (nb::handle size : nb::cast<nb::tuple>(shape)) {
    sizes.push_back(nb::cast<int64_t>(size));
  }
  return sizes;
}

}  // namespace

void BindConvert(nb::module_& module) {
  // Returns our name of a dtype, given our name in any case or torch's name;
  // None if there is no such dtype.
  module.def("dtype_name", [](std::string name) -> std::optional<std::string> {
    auto dtype = DTypeFromTorchName(name);
    if (!dtype.has_value()) {
      std::ranges::transform(name, name.begin(), [](char c) {
        return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
      });
      dtype = DTypeFromName(name);
    }
    if (!dtype.has_value()) return std::nullopt;
    return std::string(Name(*dtype));
  });
  module.def(
      "edit",
      [](const nb::str& path, nb::list rename, nb::list drop, nb::list set,
         nb::list unset, std::optional<std::string> dtype, nb::list dtype_of,
         nb::list replace, nb::list merge, bool untie, const nb::str& out,
         nb::dict opening, nb::dict writing, nb::object progress) {
        FileEdit edit;
        edit.rename = Pairs(rename);
        edit.drop = Texts(drop);
        edit.set = Pairs(set);
        edit.unset = Texts(unset);
        if (dtype.has_value()) edit.dtype = DTypeOf(*dtype);
        for (const auto& [name, to] : Pairs(dtype_of)) {
          edit.dtype_of.emplace(name, DTypeOf(to));
        }
        for (nb::handle one : replace) {
          edit.replace.push_back(
              {Utf8Of(one[0]), nb::cast<std::shared_ptr<Checkpoint>>(one[1])});
        }
        for (nb::handle one : merge) {
          edit.merge.push_back(nb::cast<std::shared_ptr<Checkpoint>>(one));
        }
        edit.untie = untie;
        EditOptions options;
        options.open = OpenOptionsOf(std::move(opening));
        options.output = PathBytes(out);
        const std::string file = PathBytes(path);
        SetFields(std::move(writing), &options);
        Progress told(std::move(progress));
        told.Attach(&options.write);
        return FieldsDict(told.Run([&] { return Edit(file, edit, options); }));
      },
      nb::arg("path"), nb::arg("rename"), nb::arg("drop"), nb::arg("set"),
      nb::arg("unset"), nb::arg("dtype").none(), nb::arg("dtype_of"),
      nb::arg("replace"), nb::arg("merge"), nb::arg("untie"), nb::arg("out"),
      nb::arg("opening"), nb::arg("writing"), nb::arg("progress").none());
  module.def(
      "renaming",
      [](const std::string& pattern, const std::string& replacement) {
        return nb::cpp_function(
            [rule = Unwrap(MakeRenaming(pattern, replacement))](
                const std::string& name) -> std::string {
              return rule.apply(name);
            });
      },
      nb::arg("pattern"), nb::arg("replacement"));
  module.def(
      "convert",
      [](std::shared_ptr<Checkpoint> from, const nb::str& path,
         std::optional<std::string> to, std::optional<std::string> dtype,
         std::shared_ptr<NameFilter> names, nb::list rename,
         nb::object metadata, nb::dict remote, bool overwrite, nb::dict writing,
         nb::object progress) {
        ConvertOptions options;
        options.open = OpenerOf(std::move(remote), overwrite);
        if (to.has_value()) options.to = Unwrap(FormatToConvertTo(*to));
        if (dtype.has_value()) options.dtype = DTypeOf(*dtype);
        Asked asked;
        options.names = std::move(names);
        for (nb::handle rule : rename) {
          options.rename.push_back(
              {asked.Of(nb::object(rule[0]), std::string(), Utf8Of),
               Utf8Of(rule[1])});
        }
        if (!metadata.is_none()) {
          for (const auto& [key, value] : nb::cast<nb::dict>(metadata)) {
            options.metadata.push_back(FactOf(key, value));
          }
        }
        SetFields(std::move(writing), &options);
        Progress told(std::move(progress));
        told.Attach(&options.save.write);
        const std::string target = PathBytes(path);
        // A callback's exception takes precedence over the failure it caused.
        const auto convert = [&]() -> Result<ConvertReport> {
          auto report = Convert(std::move(from), target, options);
          if (!report.ok() && asked.raised()) return ConvertReport();
          return report;
        };
        const ConvertReport report = told.Run(convert);
        asked.Rethrow();
        return FieldsDict(report);
      },
      nb::arg("checkpoint"), nb::arg("path"), nb::arg("to").none(),
      nb::arg("dtype").none(), nb::arg("names").none(), nb::arg("rename"),
      nb::arg("metadata").none(), nb::arg("remote"), nb::arg("overwrite"),
      nb::arg("writing"), nb::arg("progress").none());

  nb::class_<ToldWriter>(module, "TensorWriter")
      .def("add",
           [](ToldWriter& self, nb::handle name, const std::string& dtype,
              nb::handle shape, nb::handle data) {
             const Borrowed borrowed(data);
             const std::string text = Utf8Of(name);
             const std::vector<int64_t> sizes = ShapeOf(shape);
             const DType type = DTypeOf(dtype);
             Check(WithoutGil([&] {
               return self.writer->Add(text, type, sizes, borrowed.bytes());
             }));
           })
      .def("add_part",
           [](ToldWriter& self, nb::handle name, const std::string& dtype,
              nb::handle shape) {
             return Unwrap(self.writer->AddPart(Utf8Of(name), DTypeOf(dtype),
                                                ShapeOf(shape)));
           })
      .def("write",
           [](ToldWriter& self, size_t tensor, uint64_t offset,
              nb::handle data) {
             const Borrowed borrowed(data);
             Check(WithoutGil([&] {
               return self.writer->Write(tensor, offset, borrowed.bytes());
             }));
           })
      .def("commit", [](ToldWriter& self) {
        // The commit may upload to a server.
        return FieldsDict(
            self.told->Run([&] { return self.writer->Commit(); }));
      });
  module.def(
      "open_tensor_writer",
      [](const nb::str& path, std::optional<std::string> format,
         nb::object metadata, nb::dict remote, bool overwrite, nb::dict writing,
         nb::object progress) {
        TensorWriterOptions options;
        options.open = OpenerOf(std::move(remote), overwrite);
        if (format.has_value()) {
          options.format = Unwrap(FormatToWriteByName(*format));
        }
        if (!metadata.is_none()) {
          auto& noted = options.metadata.emplace();
          for (const auto& [key, value] : nb::cast<nb::dict>(metadata)) {
            noted.emplace_back(Utf8Of(key), Utf8Of(value));
          }
        }
        SetFields(std::move(writing), &options);
        auto told = std::make_unique<Progress>(std::move(progress));
        told->Attach(&options.save.write);
        auto writer = Unwrap(TensorWriter::Open(PathBytes(path), options));
        return std::make_unique<ToldWriter>(
            ToldWriter{std::move(told), std::move(writer)});
      },
      nb::arg("path"), nb::arg("format").none(), nb::arg("metadata").none(),
      nb::arg("remote"), nb::arg("overwrite"), nb::arg("writing"),
      nb::arg("progress").none());
}

}  // namespace haulway::python

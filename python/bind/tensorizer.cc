// Design: this file exports the features that only Tensorizer files have:
// modules and headers of tensors, hashes, segments, streams and edits. A struct
// becomes a class, or a dict by its table of fields, never a long tuple.
// Arguments are converted under the GIL (tensorizer_inputs.h), and long work
// runs without it.
//
// The drop-in for the reference package is Python code over these calls.
// Separate bindings for it were left out: they would have been a second way
// into the reader, and the meaning of the package's names is Python's business,
// not the engine's.

#include "haulway/tensorizer.h"

#include <malloc.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/fields.h"
#include "base/path_text.h"
#include "base/progress.h"
#include "bind/bindings.h"
#include "bind/key.h"
#include "bind/tensorizer_inputs.h"
#include "bind/writing.h"
#include "haulway/checkpoint.h"
#include "haulway/folder.h"
#include "haulway/layout.h"
#include "haulway/sink.h"
#include "haulway/source.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

// Returns (path, type, bytes) of each tensor; a path is a tuple of str and int.
nb::list Tensors(const Checkpoint& checkpoint) {
  nb::list list;
  const std::vector<TensorizerTensor> tensors =
      Unwrap(TensorizerTensors(checkpoint.reader()));
  for (size_t row = 0; row < tensors.size(); ++row) {
    const TensorizerTensor& tensor = tensors[row];
    nb::list path;
    for (const TensorizerStep& step : tensor.path) {
      if (step.is_position) {
        path.append(step.position);
      } else {
        path.append(nb::str(step.key.data(), step.key.size()));
      }
    }
    list.append(nb::make_tuple(nb::tuple(path), static_cast<int>(tensor.type),
                               checkpoint.index().tensors[row].nbytes));
  }
  return list;
}

using Rows = std::vector<uint32_t>;

// The headers of some rows, kept in memory so that they can be used after the
// file is closed.
class Headers {
 public:
  Headers(const Checkpoint& checkpoint, const Rows& rows)
      : headers_(ReadFrom(checkpoint.source(), [&] {
          return ReadTensorizerHeaders(checkpoint.reader(), rows);
        })) {
    for (const uint32_t row : rows) {
      const TensorInfo& tensor = checkpoint.index().tensors[row];
      tensors_.push_back({std::string(Name(tensor.dtype)),
                          {tensor.shape.begin(), tensor.shape.end()},
                          tensor.kind == TensorKind::kMeta});
    }
  }

  uint16_t Module(size_t i) const { return headers_.at(i).module_index; }

  const std::string& DTypeName(size_t i) const { return tensors_.at(i).dtype; }

  // Returns whether the shape is equal and `data` matches the digests, if the
  // file has any.
  bool Match(size_t i, const std::vector<int64_t>& shape,
             nb::handle data) const {
    if (tensors_.at(i).shape != shape) return false;
    const Borrowed held(data);
    const auto bytes = tensors_[i].meta ? Bytes() : held.bytes();
    const Status status =
        WithoutGil([&] { return CheckPayload(headers_[i].digests, bytes); });
    if (status.code() == Code::kMismatch) return false;
    Check(status);
    return true;
  }

 private:
  using Bytes = std::span<const std::byte>;
  struct Tensor {
    std::string dtype;
    std::vector<int64_t> shape;
    bool meta;
  };

  std::vector<TensorizerHeader> headers_;
  std::vector<Tensor> tensors_;
};

nb::bytes DeriveKey(nb::handle passphrase, uint64_t operations,
                    uint64_t memory_bytes, nb::handle salt) {
  const Secret phrase = SecretOf("passphrase", passphrase);
  const Borrowed held(salt);
  const Secret key = Unwrap(WithoutGil([&] {
    return DeriveTensorizerKey(phrase, operations, memory_bytes, held.bytes());
  }));
  return nb::bytes(reinterpret_cast<const char*>(key.bytes().data()),
                   key.bytes().size());
}

// Opens the sink of a file, or a split sink if it has a data file.
std::unique_ptr<ByteSink> OpenTarget(nb::object target,
                                     const TensorizerOptions& options,
                                     const FileSinkOptions& file,
                                     const Layout& layout) {
  if (options.data_file.empty()) return OpenSink(std::move(target), file);
  const auto name = TargetName(target);
  const auto path = name.has_value() ? LocalPath(*name) : std::nullopt;
  if (!path.has_value() || *path == "-") {
    Raise(Status(Code::kInvalidArgument,
                 "a data file needs a path to lie beside"));
  }
  return Unwrap(OpenSplitSink(*path, options.data_file, layout.split(), file));
}

// How a file is written. `writing` has the options of TensorizerOptions and
// those of every call that writes. `derivation` is None or (operations, memory
// in bytes, salt).
struct TensorizerWriting {
  TensorizerWriting(nb::dict writing, nb::object derivation)
      : engine(EngineOf(std::move(writing), &options)) {
    if (options.layout == TensorizerLayout::kInterleaved &&
        (!options.metadata.empty() || !options.data_file.empty())) {
      Raise(Status(Code::kInvalidArgument,
                   "metadata and data_file are of layout 'segments'"));
    }
    if (derivation.is_none()) return;
    const nb::tuple fields = nb::cast<nb::tuple>(derivation);
    auto& out = options.derivation.emplace();
    out.operations = nb::cast<uint64_t>(fields[0]);
    out.memory_bytes = nb::cast<uint64_t>(fields[1]);
    const Borrowed salt(fields[2]);
    if (salt.bytes().size() != out.salt.size()) {
      Raise(Status(Code::kInvalidArgument, "salt is not of 16 bytes"));
    }
    std::copy(salt.bytes().begin(), salt.bytes().end(), out.salt.begin());
  }

  TensorizerOptions options;
  Engine engine;
};

nb::dict WriteTensorizer(nb::object target, nb::list tensors, nb::dict writing,
                         nb::object derivation, nb::object progress) {
  const TensorizerInputs inputs(tensors);
  const TensorizerWriting how(std::move(writing), std::move(derivation));
  const auto layout = Unwrap(LayOutTensorizer(inputs.tensors, how.options));
  const Signals signals = SignalsOf(target);
  auto sink =
      OpenTarget(std::move(target), how.options, how.engine.file, *layout);
  WriteOptions write = how.engine.write;
  Progress told(std::move(progress));
  told.Attach(&write);
  const auto work = [&](ByteSink& to) { return Write(*layout, to, write); };
  return FieldsDict(RunWith(std::move(sink), told, signals, work));
}

// A TensorizerStream, and whether signals interrupt its writes.
struct Serializer {
  std::unique_ptr<TensorizerStream> stream;
  Signals signals;

  template <class Work>
  auto Run(const Work& work) const {
    // Work that runs Python code must stay on this thread.
    return signals == Signals::kMind ? Minding(work) : Unwrap(WithoutGil(work));
  }
};

// If `target` is a function, `folder` holds temporary files.
std::unique_ptr<Serializer> OpenStream(nb::object target, std::string folder,
                                       nb::dict writing,
                                       nb::object derivation) {
  const TensorizerWriting how(std::move(writing), std::move(derivation));
  const bool is_path = PyUnicode_Check(target.ptr()) &&
                       TargetName(target)->find("://") == std::string::npos;
  if (!is_path) {
    const Signals signals = SignalsOf(target);
    return std::make_unique<Serializer>(
        Serializer{Unwrap(TensorizerStream::Open(
                       OpenSink(std::move(target), how.engine.file), folder,
                       how.options, how.engine.write)),
                   signals});
  }
  return std::make_unique<Serializer>(Serializer{
      Unwrap(TensorizerStream::Open(*TargetName(target), how.options,
                                    how.engine.file, how.engine.write)),
      Signals::kWait});
}

// `rename` is a list of pairs (listed name, new path).
nb::dict EditFile(const nb::str& file, nb::list append, nb::list rename,
                  nb::object set, const std::vector<std::string>& unset,
                  nb::dict writing) {
  TensorizerInputs inputs(append);
  TensorizerEdit edit;
  edit.append = std::move(inputs.tensors);
  for (nb::handle item : rename) {
    const nb::tuple pair = nb::cast<nb::tuple>(item);
    TensorizerRename& out = edit.rename.emplace_back();
    out.from = Utf8Of(pair[0]);
    for (nb::handle step : nb::cast<nb::tuple>(pair[1])) {
      out.to.push_back(StepOf(step));
    }
  }
  edit.set = MetadataOf(set);
  edit.unset = unset;
  TensorizerEditOptions options;
  SetFields(std::move(writing), &options);
  const std::string path = PathBytes(file);
  return FieldsDict(
      Unwrap(WithoutGil([&] { return EditTensorizer(path, edit, options); })));
}

}  // namespace

void BindTensorizer(nb::module_& module) {
  module.def("tensorizer_tensors", &Tensors);
  // Returns memory that the C library caches to the system.
  module.def("trim_memory", [] {
#ifdef __GLIBC__
    WithoutGil([] { return ::malloc_trim(0); });
#endif
  });
  nb::class_<Headers>(module, "TensorizerHeaders")
      .def(nb::init<const Checkpoint&, const Rows&>())
      .def("module", &Headers::Module)
      .def("dtype", &Headers::DTypeName)
      .def("match", &Headers::Match);
  module.def("tensorizer_derive_key", &DeriveKey);
  module.def("edit_tensorizer", &EditFile, nb::arg("path"), nb::kw_only(),
             nb::arg("append"), nb::arg("rename"), nb::arg("set"),
             nb::arg("unset"), nb::arg("writing"));
  nb::class_<Serializer>(module, "TensorizerStream")
      .def("check",
           [](const Serializer& self, nb::list tensors) {
             const TensorizerInputs inputs(tensors);
             Check(WithoutGil(
                 [&] { return self.stream->Check(inputs.tensors); }));
           })
      .def("append",
           [](Serializer& self, nb::list tensors) {
             const TensorizerInputs inputs(tensors);
             self.Run([&]() -> Result<bool> {
               HAULWAY_TRY(self.stream->Append(inputs.tensors));
               return true;
             });
           })
      .def("commit", [](Serializer& self) {
        return FieldsDict(self.Run([&] { return self.stream->Commit(); }));
      });
  module.def("open_tensorizer_stream", &OpenStream, nb::arg("target"),
             nb::arg("folder"), nb::arg("writing"),
             nb::arg("derivation").none() = nb::none());
  module.def("write_tensorizer", &WriteTensorizer, nb::arg("target"),
             nb::arg("tensors"), nb::arg("writing"),
             nb::arg("derivation").none() = nb::none(),
             nb::arg("progress").none() = nb::none());
}

}  // namespace haulway::python

// Bindings for writing archives: complete ones with a layout made in advance,
// and record by record.
//
// Design: the Python arguments (names, buffers, addresses of storages) are
// converted under the GIL into the library's own description, which holds
// references to what it borrows. Then the GIL is released, and the engine
// writes. Records without bytes are holes, for plans that others fill. Every
// call that writes ends in WriteFile() of writing.h, which handles targets,
// progress and signals.
//
// Nothing calls back into Python while threads write. Bytes that Python
// produces are requested one tensor at a time beforehand and kept in memory.
// Lone surrogates in keys are refused, as in torch.

#include "haulway/save.h"

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/path_text.h"
#include "base/progress.h"
#include "bind/bindings.h"
#include "bind/dense_tensors.h"
#include "bind/records.h"
#include "bind/writing.h"
#include "haulway/archive.h"
#include "haulway/buffer.h"
#include "haulway/dtype.h"
#include "haulway/format.h"
#include "haulway/layout.h"
#include "haulway/sink.h"
#include "pickling/pickle_object.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

// Converts a list of values of one kind.
template <class T>
FactArray ArrayOf(const nb::list& items) {
  std::vector<T> values;
  values.reserve(items.size());
  for (nb::handle item : items) {
    if constexpr (std::is_same_v<T, std::string>) {
      values.push_back(Utf8Of(item));
    } else {
      values.push_back(nb::cast<T>(item));
    }
  }
  return FactArray(std::move(values));
}

// Converts a metadata value, one or a list, of the given kind.
FactValue ValueOf(nb::handle value, std::string_view kind) {
  if (nb::isinstance<nb::list>(value)) {
    const auto items = nb::borrow<nb::list>(value);
    if (kind == "bool") return ArrayOf<bool>(items);
    if (kind == "int") return ArrayOf<int64_t>(items);
    if (kind == "uint") return ArrayOf<uint64_t>(items);
    if (kind == "float") return ArrayOf<double>(items);
    return ArrayOf<std::string>(items);
  }
  if (kind == "bool") return nb::cast<bool>(value);
  if (kind == "int") return nb::cast<int64_t>(value);
  if (kind == "uint") return nb::cast<uint64_t>(value);
  if (kind == "float") return nb::cast<double>(value);
  return Utf8Of(value);
}

// Returns the formats' own copy of a type name, which lives as long as the
// program.
std::string_view TypeName(std::string_view name) {
  for (const std::string_view known :
       {"u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f32", "f64"}) {
    if (name == known) return known;
  }
  return {};
}

// A sink that writes to the caller's memory.
class SpanSink : public ByteSink {
 public:
  explicit SpanSink(std::span<std::byte> memory) : memory_(memory) {}
  std::string_view name() const override { return "memory"; }
  Result<SinkTraits> Begin(std::optional<uint64_t> /*size*/) override {
    return SinkTraits();
  }
  Status WriteAt(uint64_t offset,
                 std::span<const std::span<const std::byte>> parts) override {
    for (const std::span<const std::byte> part : parts) {
      std::ranges::copy(part, memory_.subspan(offset, part.size()).begin());
      offset += part.size();
    }
    return Status();
  }
  Status Commit(uint64_t /*size*/) override { return Status(); }

 private:
  const std::span<std::byte> memory_;
};

struct MemoryCopies {
  std::vector<Buffer> buffers;
};

// The layout of an archive; some records are filled in later.
struct ArchivePlan {
  std::unique_ptr<Records> given;
  std::vector<std::string> names;
  std::shared_ptr<const Layout> layout;
};

// Runs `write`, of an archive's writer. waits: for a server, so signals are
// handled meanwhile.
template <class Write>
void WriteTo(bool waits, const Write& write) {
  if (!waits) return Check(WithoutGil(write));
  Minding([&]() -> Result<bool> {
    HAULWAY_TRY(write());
    return true;
  });
}

}  // namespace

Fact FactOf(nb::handle key, nb::handle value) {
  const auto parts = nb::borrow<nb::tuple>(value);
  const std::string kind = Utf8Of(parts[1]);
  return {Utf8Of(key), ValueOf(parts[0], kind), TypeName(Utf8Of(parts[2]))};
}

void BindSave(nb::module_& module) {
  nb::class_<MemoryCopies>(module, "MemoryCopies");
  module.def(
      "write_archive",
      [](nb::object target, nb::list records, std::string archive_name,
         nb::dict writing, nb::object progress) {
        Records given(records);
        ArchiveWriterOptions options{.archive_name = std::move(archive_name)};
        const Engine engine = EngineOf(std::move(writing), &options);
        const auto layout =
            Unwrap(LayOutArchive(std::move(given.records), options));
        return WriteFile(std::move(target), *layout, engine,
                         std::move(progress));
      },
      nb::arg("target"), nb::arg("records"), nb::arg("archive_name"),
      nb::arg("writing"), nb::arg("progress").none());

  // `tensors` are the tuples that DenseTensors takes.
  module.def(
      "write_tensors",
      [](nb::object target, std::string_view format, nb::iterable tensors,
         nb::object metadata, nb::dict writing, nb::object progress,
         bool replaces_link) {
        DenseTensors given(std::move(tensors));
        given.Note(std::move(metadata));
        SaveOptions options;
        Engine engine = EngineOf(std::move(writing), &options);
        engine.file.replaces_link = replaces_link;
        if (auto name = TargetName(target)) options.path = *std::move(name);
        const auto layout =
            Unwrap(LayOut(std::move(given.tensors),
                          Unwrap(FormatToWriteByName(format)), options));
        return WriteFile(std::move(target), *layout, engine,
                         std::move(progress));
      },
      nb::arg("target"), nb::arg("format"), nb::arg("tensors"),
      nb::arg("metadata").none(), nb::arg("writing"),
      nb::arg("progress").none(), nb::arg("replaces_link") = false);

  nb::class_<PlannedFile>(module, "PlannedFile")
      .def_prop_ro(
          "temporary_path",
          [](const PlannedFile& self) { return self.temporary_path(); })
      .def("fill",
           [](PlannedFile& self, size_t number, uint64_t offset,
              nb::handle data) {
             const Borrowed borrowed(data);
             Check(WithoutGil(
                 [&] { return self.Fill(number, offset, borrowed.bytes()); }));
           })
      .def("commit", [](PlannedFile& self, nb::dict writing) {
        const Engine engine = EngineOf(std::move(writing));
        return FieldsDict(
            Unwrap(WithoutGil([&] { return self.Commit(engine.write); })));
      });
  // Returns the file as bytes. The layout must have no gaps: every byte is a
  // payload or a frame.
  module.def(
      "tensors_as_bytes",
      [](std::string_view format, nb::iterable tensors, nb::object metadata) {
        DenseTensors given(std::move(tensors));
        given.Note(std::move(metadata));
        const auto layout = Unwrap(LayOut(std::move(given.tensors),
                                          Unwrap(FormatToWriteByName(format))));
        const auto size = static_cast<Py_ssize_t>(layout->size());
        const nb::object bytes =
            nb::steal(PyBytes_FromStringAndSize(nullptr, size));
        if (!bytes.is_valid()) throw nb::python_error();
        SpanSink sink(
            {reinterpret_cast<std::byte*>(PyBytes_AS_STRING(bytes.ptr())),
             layout->size()});
        Unwrap(WithoutGil([&] { return Write(*layout, sink); }));
        return bytes;
      },
      nb::arg("format"), nb::arg("tensors"), nb::arg("metadata").none());

  nb::class_<ArchivePlan>(module, "ArchivePlan")
      .def("__init__",
           [](ArchivePlan* self, nb::list records, std::string archive_name,
              nb::dict writing) {
             ArchiveWriterOptions options{.archive_name =
                                              std::move(archive_name)};
             SetFields(std::move(writing), &options);
             auto given = std::make_unique<Records>(records);
             std::vector<std::string> names;
             for (const ArchiveRecord& record : given->records) {
               names.push_back(record.name);
             }
             std::shared_ptr<const Layout> layout =
                 Unwrap(LayOutArchive(std::move(given->records), options));
             new (self) ArchivePlan{std::move(given), std::move(names),
                                    std::move(layout)};
           })
      .def_prop_ro("size",
                   [](const ArchivePlan& self) { return self.layout->size(); })
      // Tuples (name, offset, size).
      .def("records",
           [](const ArchivePlan& self) {
             nb::list rows;
             const auto payloads = self.layout->payloads();
             for (size_t i = 0; i < payloads.size(); ++i) {
               rows.append(nb::make_tuple(
                   nb::str(self.names[i].data(), self.names[i].size()),
                   payloads[i].offset, payloads[i].length));
             }
             return rows;
           })
      .def("create", [](const ArchivePlan& self, const nb::str& path,
                        nb::dict writing) {
        const Engine engine = EngineOf(std::move(writing));
        std::string file = PathBytes(path);
        return Unwrap(WithoutGil([&] {
          return PlannedFile::Create(self.layout, std::move(file), engine.file);
        }));
      });

  nb::class_<ArchiveWriter>(module, "ArchiveWriter")
      .def("set_min_version", &ArchiveWriter::SetMinVersion)
      .def("write_record",
           [](ArchiveWriter& self, std::string_view name, nb::handle data,
              bool compress, bool waits) {
             const Borrowed borrowed(data);
             WriteTo(waits, [&] {
               return self.WriteRecord(name, borrowed.bytes(), compress);
             });
           })
      .def("write_record_metadata",
           [](ArchiveWriter& self, std::string_view name, uint64_t size,
              bool waits) {
             WriteTo(waits,
                     [&] { return self.WriteRecordMetadata(name, size); });
           })
      .def("finish",
           [](ArchiveWriter& self, bool waits) {
             WriteTo(waits, [&] { return self.Finish(); });
           })
      .def_prop_ro("finished", &ArchiveWriter::finished)
      .def_prop_ro("archive_name",
                   [](const ArchiveWriter& self) {
                     return std::string(self.archive_name());
                   })
      .def_prop_ro("serialization_id",
                   [](const ArchiveWriter& self) {
                     return std::string(self.serialization_id());
                   })
      .def("records", [](const ArchiveWriter& self) {
        nb::list names;
        for (const RecordInfo& record : self.records()) {
          names.append(nb::str(record.name.data(), record.name.size()));
        }
        return names;
      });

  module.def(
      "open_archive_writer",
      [](nb::object target, std::string archive_name, nb::dict writing) {
        ArchiveWriterOptions options{.archive_name = std::move(archive_name)};
        const Engine engine = EngineOf(std::move(writing), &options);
        return Unwrap(ArchiveWriter::Open(
            OpenSink(std::move(target), engine.file), options));
      });
  // Copies memory, given as tuples (owner, address, bytes), and returns such
  // tuples of the copies.
  module.def("copy_memory", [](nb::list memories, int threads) {
    std::vector<Borrowed> borrowed;
    std::vector<std::span<const std::byte>> parts;
    borrowed.reserve(memories.size());
    for (nb::handle memory : memories) {
      parts.push_back(borrowed.emplace_back(memory).bytes());
    }
    const nb::object copies = nb::cast(MemoryCopies{
        Unwrap(WithoutGil([&] { return CopyToBuffers(parts, threads); }))});
    nb::list rows;
    for (const Buffer& copy : nb::cast<const MemoryCopies&>(copies).buffers) {
      rows.append(nb::make_tuple(
          copies, reinterpret_cast<uintptr_t>(copy.data()), copy.size()));
    }
    return rows;
  });
  // Returns the name of the format that is written to a file of this name.
  module.def("format_to_write", [](const nb::str& path) {
    return std::string(Name(Unwrap(FormatToWrite(PathBytes(path)))));
  });
  module.def("format_to_write_by_name", [](std::string_view name) {
    return std::string(Name(Unwrap(FormatToWriteByName(name))));
  });
  module.def("archive_name_of",
             [](std::string_view path) { return Unwrap(ArchiveNameOf(path)); });
}

}  // namespace haulway::python

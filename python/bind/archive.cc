// Bindings of archives at record level.

#include "haulway/archive.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/memory.h"
#include "base/progress.h"
#include "bind/bindings.h"
#include "bind/writing.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

const RecordInfo& Existing(const ArchiveReader& archive,
                           std::string_view name) {
  const RecordInfo* record = archive.Find(name);
  if (record == nullptr) {
    Raise(Status(Code::kNotFound, "no such record").In(name));
  }
  return *record;
}

// A ChunkReader, and the archive that it reads.
struct Chunks {
  std::shared_ptr<const ArchiveReader> archive;
  std::unique_ptr<ChunkReader> reader;
};

}  // namespace

void BindArchive(nb::module_& module) {
  nb::class_<Chunks>(module, "ChunkReader")
      .def("next", [](Chunks& self, uint64_t bytes) {
        std::vector<std::byte> piece(bytes);
        const uint64_t length = ReadFrom(
            self.archive->source(), [&] { return self.reader->Next(piece); });
        return nb::bytes(reinterpret_cast<const char*>(piece.data()), length);
      });

  nb::class_<ArchiveReader>(module, "ArchiveReader")
      .def_prop_ro("archive_name",
                   [](const ArchiveReader& self) {
                     return std::string(self.archive_name());
                   })
      .def_prop_ro("version", &ArchiveReader::version)
      .def_prop_ro("serialization_id",
                   [](const ArchiveReader& self) {
                     return std::string(self.serialization_id());
                   })
      .def("names",
           [](const ArchiveReader& self) {
             nb::list names;
             for (const RecordInfo& record : self.records()) {
               names.append(nb::str(record.name.data(), record.name.size()));
             }
             return names;
           })
      .def("has", [](const ArchiveReader& self,
                     std::string_view name) { return self.Has(name); })
      .def("size",
           [](const ArchiveReader& self, std::string_view name) {
             return Existing(self, name).size;
           })
      .def("header_offset",
           [](const ArchiveReader& self, std::string_view name) {
             return Existing(self, name).header_offset;
           })
      .def("data_offset",
           [](const ArchiveReader& self, std::string_view name) {
             return ReadFrom(self.source(),
                             [&] { return self.DataOffset(name); });
           })
      .def("read",
           [](const ArchiveReader& self, std::string_view name) {
             return MakeMemory(
                 ReadFrom(self.source(), [&] { return self.Read(name); }));
           })
      .def("read_parallel",
           [](const ArchiveReader& self, std::string_view name,
              std::vector<std::shared_ptr<ByteSource>> sources,
              uint64_t threshold) {
             const std::vector<std::shared_ptr<const ByteSource>> additional(
                 sources.begin(), sources.end());
             const uint64_t size = Existing(self, name).size;
             Buffer bytes = Unwrap(AllocateBuffer(size));
             if (size > 0) {
               ReadFrom(self.source(), [&]() -> Result<bool> {
                 HAULWAY_TRY(self.ReadParallel(name, additional, threshold,
                                               bytes.mutable_bytes()));
                 return true;
               });
             }
             return MakeMemory(std::move(bytes));
           })
      .def("chunks", [](std::shared_ptr<ArchiveReader> self,
                        std::string_view name) {
        auto reader =
            ReadFrom(self->source(), [&] { return self->OpenChunks(name); });
        return std::make_unique<Chunks>(std::move(self), std::move(reader));
      });

  module.def("open_archive", [](std::shared_ptr<ByteSource> source, bool strict,
                                bool debug_symbols) {
    ArchiveOptions options;
    options.strictness = strict ? Strictness::kStrict : Strictness::kLenient;
    options.load_debug_symbols = debug_symbols;
    return std::const_pointer_cast<ArchiveReader>(ReadFrom(
        *source, [&] { return ArchiveReader::Open(source, options); }));
  });
  module.def("compute_payload_offset", &ComputePayloadOffset);
  // Returns the address of a buffer. torch passes a buffer to a writing
  // function in this form.
  module.def("capsule_of", [](nb::handle buffer) {
    const Borrowed borrowed(buffer);
    auto* address =
        const_cast<void*>(static_cast<const void*>(borrowed.bytes().data()));
    return nb::steal(PyCapsule_New(address, nullptr, nullptr));
  });
}

}  // namespace haulway::python

// Bindings of arenas, their readers and writers, and the memory that they lend.

#include "haulway/arena.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <cmath>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "base/errors.h"
#include "base/memory.h"
#include "bind/bindings.h"
#include "items/arena_objects.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

// Makes a Python object the owner of a Buffer. The object is released with the
// GIL held.
std::shared_ptr<const void> OwnerOf(nb::object object) {
  return {new nb::object(std::move(object)), [](const void* owner) {
            // At exit, objects may outlive the interpreter.
            const GilHeld gil;
            if (gil) delete static_cast<const nb::object*>(owner);
          }};
}

// Passes an object's buffer on. Unlike many objects with buffers, an Anchor can
// be weakly referenced.
class Anchor {
 public:
  explicit Anchor(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) {
      throw nb::python_error();
    }
  }
  Anchor(const Anchor&) = delete;
  Anchor& operator=(const Anchor&) = delete;
  ~Anchor() { PyBuffer_Release(&view_); }

  static int GetBuffer(PyObject* self, Py_buffer* view, int flags) {
    const Py_buffer& held = nb::inst_ptr<Anchor>(self)->view_;
    return PyBuffer_FillInfo(view, self, held.buf, held.len, held.readonly,
                             flags);
  }

 private:
  Py_buffer view_;
};

ArenaObject MakeArena(int kind, uint64_t max_bytes, uint64_t unit_bytes,
                      uint32_t max_units, bool huge_pages, bool prefault,
                      uint32_t consumers,
                      std::optional<uint64_t> overflow_bytes) {
  ArenaOptions options;
  if (overflow_bytes.has_value()) options.overflow_bytes = *overflow_bytes;
  options.kind = static_cast<ArenaKind>(kind);
  options.max_bytes = max_bytes;
  options.unit_bytes = unit_bytes;
  options.max_units = max_units;
  options.huge_pages = huge_pages;
  options.prefault = prefault;
  options.consumers = consumers;
  return ArenaObject(
      Unwrap(WithoutGil([&] { return Arena::Create(options); })));
}

nb::dict StatsDict(const ArenaStats& stats) {
  nb::dict result;
  result["bytes"] = stats.bytes;
  result["used"] = stats.used;
  result["high_water"] = stats.high_water;
  result["units"] = stats.units;
  result["waits"] = stats.waits;
  result["fallbacks"] = stats.fallbacks;
  result["overflows"] = stats.overflows;
  result["committed_bytes"] = stats.committed_bytes;
  result["released_bytes"] = stats.released_bytes;
  result["releases"] = stats.releases;
  result["pid"] = stats.creator;
  result["producer"] = stats.producer;
  return result;
}

std::pair<uint64_t, uint64_t> Write(ArenaWriter& writer, nb::handle data,
                                    double seconds) {
  Py_buffer view;
  if (PyObject_GetBuffer(data.ptr(), &view, PyBUF_SIMPLE) != 0) {
    throw nb::python_error();
  }
  struct Released {
    Py_buffer* view;
    ~Released() { PyBuffer_Release(view); }
  } const released{&view};
  ArenaRange range;
  const auto length = static_cast<uint64_t>(view.len);
  Check(AttemptFor(seconds, [&](uint64_t wait_ns) {
    auto reserved = writer.Reserve(length, wait_ns);
    if (reserved.ok()) range = *reserved;
    return reserved.status();
  }));
  const std::span<const std::byte> bytes(
      static_cast<const std::byte*>(view.buf), length);
  if (length < kLongCopy) {
    writer.Fill(range, bytes);
  } else {
    WithoutGil([&] { writer.Fill(range, bytes, 2); });
  }
  return {range.offset, length};
}

nb::object Lend(ArenaObject& self, uint64_t bytes, double seconds) {
  const std::shared_ptr<ArenaWriter> writer = self.OpenWriter();
  ArenaRange loan;
  Check(AttemptFor(seconds, [&](uint64_t wait_ns) {
    auto lent = writer->Lend(bytes, wait_ns);
    if (lent.ok()) loan = *lent;
    return lent.status();
  }));
  const std::shared_ptr<const void> owner(
      writer->At(loan).data(),
      [writer, loan](const void*) { writer->DropLoan(loan.unit); });
  return MakeMemory(Buffer(owner, writer->At(loan), true));
}

void BindEnds(nb::module_& module) {
  nb::class_<ArenaWriter>(module, "ArenaWriter")
      .def("begin",
           [](ArenaWriter& self, double seconds) {
             Check(AttemptFor(seconds, [&](uint64_t wait_ns) {
               return self.Begin(wait_ns);
             }));
           })
      .def("write", &Write)
      .def("commit",
           [](ArenaWriter& self) {
             const UnitRef unit = Unwrap(self.Commit());
             return std::tuple(self.unit_bytes(), unit.slot, unit.generation);
           })
      .def("abort", [](ArenaWriter& self) { Check(self.Abort()); })
      .def_prop_ro("in_unit", &ArenaWriter::in_unit)
      .def_prop_ro("unit_bytes", &ArenaWriter::unit_bytes)
      .def("count_fallback", &ArenaWriter::CountFallback);

  struct Claim {
    std::shared_ptr<const void> held;
  };
  nb::class_<Claim>(module, "ArenaClaim");
  nb::class_<ArenaReader>(module, "ArenaReader")
      .def("claim",
           [](ArenaReader& self, uint32_t slot, uint32_t generation) {
             return Claim{Unwrap(self.Claim({slot, generation}))};
           })
      .def("claim_next",
           [](ArenaReader& self) {
             return Claim{Unwrap(self.Claim(Unwrap(self.Next())))};
           })
      .def("view", [](ArenaReader& self, const Claim& claim, uint64_t offset,
                      uint64_t bytes, bool writable) {
        return MakeMemory(
            Unwrap(self.View(claim.held, offset, bytes, writable)));
      });
}

}  // namespace

uint64_t Nanoseconds(double seconds) {
  if (std::isnan(seconds) || seconds <= 0) return 0;
  if (seconds > 3e9) return UINT64_MAX;
  return static_cast<uint64_t>(seconds * 1e9);
}

std::shared_ptr<ArenaWriter> ArenaObject::OpenWriter() {
  const nb::ft_lock_guard lock(ends_->mutex);
  if (ends_->writer == nullptr) ends_->writer = Unwrap(arena->OpenWriter());
  return ends_->writer;
}

std::shared_ptr<ArenaReader> ArenaObject::OpenReader() {
  const nb::ft_lock_guard lock(ends_->mutex);
  if (ends_->reader == nullptr) ends_->reader = Unwrap(arena->OpenReader());
  return ends_->reader;
}

void BindArena(nb::module_& module) {
  BindEnds(module);
  nb::class_<ArenaObject>(module, "Arena")
      .def_static("create", &MakeArena, nb::arg("kind"), nb::arg("max_bytes"),
                  nb::arg("unit_bytes"), nb::arg("max_units"),
                  nb::arg("huge_pages"), nb::arg("prefault"),
                  nb::arg("consumers") = 1,
                  nb::arg("overflow_bytes") = nb::none())
      .def_static("attach",
                  [](int fd) { return ArenaObject(Unwrap(Arena::Attach(fd))); })
      .def_prop_ro("fd",
                   [](const ArenaObject& self) { return self.arena->fd(); })
      .def("stats",
           [](const ArenaObject& self) {
             return StatsDict(self.arena->stats());
           })
      .def("shutdown", [](ArenaObject& self) { self.arena->Shutdown(); })
      .def("open_writer", &ArenaObject::OpenWriter)
      .def("open_reader", &ArenaObject::OpenReader)
      .def("lend", &Lend);

  static PyType_Slot slots[] = {
      {Py_bf_getbuffer, reinterpret_cast<void*>(Anchor::GetBuffer)},
      {0, nullptr}};
  nb::class_<Anchor>(module, "Anchor", nb::type_slots(slots),
                     nb::is_weak_referenceable())
      .def(nb::init<nb::handle>());

  // Returns a Memory at an address, kept alive by `owner`.
  module.def(
      "memory_at", [](uintptr_t address, uint64_t bytes, nb::object owner) {
        return MakeMemory(Buffer(OwnerOf(std::move(owner)),
                                 {reinterpret_cast<std::byte*>(address), bytes},
                                 true));
      });
}

}  // namespace haulway::python

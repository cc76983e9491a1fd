// Bindings of publications: haulway.publish() and haulway.subscribe().

#include "haulway/publish.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/memory.h"
#include "base/version_memory.h"
#include "bind/bindings.h"
#include "items/arena_objects.h"
#include "items/item_decoder.h"
#include "items/item_encoder.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

uint64_t Publish(Publisher& publisher, ItemEncoder& encoder, nb::handle state,
                 uint64_t keep) {
  encoder.Encode(state);
  std::vector<PublishedPart> parts;
  for (const ItemPart& part : encoder.parts()) {
    parts.push_back({part.bytes(), part.flags()});
  }
  const auto version = WithoutGil(
      [&] { return publisher.Publish(encoder.stream(), parts, keep); });
  encoder.Clear();
  return Unwrap(version);
}

// Returns (version, the object). The parts are writable in this process or
// read-only; both share the same bytes.
nb::tuple Load(PublishedVersion taken, bool writable) {
  const Buffer& message = taken.message;
  const Buffer bytes(
      message.owner(),
      std::span(const_cast<std::byte*>(message.data()), message.size()),
      writable);
  DecodeOptions options;
  options.read_only = !writable;
  return nb::make_tuple(taken.version,
                        ItemDecoder(nullptr, options).Decode(bytes));
}

}  // namespace

void BindPublish(nb::module_& module) {
  nb::class_<VersionMemory>(module, "VersionMemory");
  nb::class_<Publisher>(module, "Publisher")
      .def_static(
          "open",
          [](const std::string& name) {
            return Unwrap(WithoutGil([&] { return Publisher::Open(name); }));
          })
      .def("publish", &Publish, nb::arg("encoder"), nb::arg("state").none(),
           nb::arg("keep"))
      .def("reserve",
           [](Publisher& self, uint64_t bytes) {
             return MakeMemory(
                 Unwrap(WithoutGil([&] { return self.Reserve(bytes); })));
           })
      // Memory of the publisher that loads use instead of their own.
      .def(
          "version_memory",
          [](Publisher& self) { return VersionMemory{&self}; },
          nb::keep_alive<0, 1>())
      .def_prop_ro("version", &Publisher::version)
      .def("close", [](Publisher& self) { WithoutGil([&] { self.Close(); }); })
      .def("leave", &Publisher::Leave);

  nb::class_<Subscriber>(module, "Subscriber")
      .def_static(
          "open",
          [](const std::string& name) {
            return Unwrap(WithoutGil([&] { return Subscriber::Open(name); }));
          })
      // Waits up to `seconds` for a version after `newer_than`. Returns
      // (version, object).
      .def("take",
           [](const Subscriber& self, uint64_t newer_than, double seconds,
              bool writable) {
             PublishedVersion taken;
             Check(AttemptFor(seconds, [&](uint64_t wait_ns) {
               auto newest = self.Take(newer_than, wait_ns);
               if (newest.ok()) taken = std::move(newest).value();
               return newest.status();
             }));
             return Load(std::move(taken), writable);
           })
      .def("take_version",
           [](const Subscriber& self, uint64_t version, bool writable) {
             return Load(Unwrap(self.TakeVersion(version)), writable);
           })
      .def_prop_ro("newest", &Subscriber::newest);
}

}  // namespace haulway::python

// What only tensorizer files say.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "errors.h"
#include "haulway/tensorizer.h"
#include "haulway/tensorizer_writer.h"
#include "key.h"
#include "progress.h"
#include "writing.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

// (path, type) of each tensor; a path is a tuple of str and int.
nb::list Tensors(const Checkpoint& checkpoint) {
  nb::list list;
  for (const TensorizerTensor& tensor : Unwrap(TensorizerTensors(checkpoint))) {
    nb::list path;
    for (const TensorizerStep& step : tensor.path) {
      if (step.is_position) {
        path.append(step.position);
      } else {
        path.append(nb::str(step.key.data(), step.key.size()));
      }
    }
    list.append(nb::make_tuple(nb::tuple(path), static_cast<int>(tensor.type)));
  }
  return list;
}

using Rows = std::vector<uint32_t>;

// The module indexes of rows.
nb::list Modules(const Checkpoint& checkpoint, const Rows& rows) {
  const auto headers = Unwrap(
      WithoutGil([&] { return ReadTensorizerHeaders(checkpoint, rows); }));
  nb::list list;
  for (const TensorizerHeader& header : headers) {
    list.append(header.module_index);
  }
  return list;
}

// Whether the digests of a row are those of such a tensor.
bool Matches(const Checkpoint& checkpoint, uint32_t row, nb::handle data) {
  const Borrowed held(data);
  const Status status = WithoutGil([&]() -> Status {
    HAULWAY_ASSIGN(const auto headers,
                   ReadTensorizerHeaders(checkpoint, Rows{row}));
    return CheckPayload(headers[0].digests, held.bytes());
  });
  if (status.code() == Code::kMismatch) return false;
  Check(status);
  return true;
}

nb::bytes DeriveKey(nb::handle passphrase, uint64_t operations,
                    uint64_t memory_bytes, nb::handle salt) {
  const Secret phrase = SecretOf(passphrase);
  const Borrowed held(salt);
  const Secret key = Unwrap(WithoutGil([&] {
    return DeriveTensorizerKey(phrase, operations, memory_bytes, held.bytes());
  }));
  return nb::bytes(reinterpret_cast<const char*>(key.bytes().data()),
                   key.bytes().size());
}

TensorizerStep StepOf(nb::handle step) {
  if (PyLong_Check(step.ptr())) {
    return {true, nb::cast<uint64_t>(step), ""};
  }
  return {false, 0, nb::cast<std::string>(step)};
}

// (path, type, module index, dtype, shape, data) of each tensor; data is what
// Borrowed takes, or None for a meta tensor.
struct Inputs {
  explicit Inputs(nb::list list) {
    borrowed.reserve(list.size());
    tensors.reserve(list.size());
    for (nb::handle item : list) {
      const nb::tuple fields = nb::cast<nb::tuple>(item);
      TensorizerInput& tensor = tensors.emplace_back();
      for (nb::handle step : nb::cast<nb::tuple>(fields[0])) {
        tensor.path.push_back(StepOf(step));
      }
      tensor.type = static_cast<TensorizerType>(nb::cast<int>(fields[1]));
      tensor.module_index = nb::cast<uint16_t>(fields[2]);
      const auto name = nb::cast<std::string>(fields[3]);
      const auto dtype = DTypeFromName(name);
      if (!dtype.has_value()) {
        Raise(Status(Code::kInvalidArgument, "no such dtype").In(name));
      }
      tensor.dtype = *dtype;
      uint64_t bytes = ItemBytes(*dtype);
      for (nb::handle dim : nb::cast<nb::tuple>(fields[4])) {
        tensor.shape.push_back(nb::cast<uint64_t>(dim));
        bytes *= tensor.shape.back();
      }
      tensor.meta = nb::handle(fields[5]).is_none();
      if (tensor.meta) continue;
      const auto data = borrowed.emplace_back(fields[5]).bytes();
      if (data.size() != bytes) {
        Raise(Status(Code::kInvalidArgument,
                     "data is not as long as the shape has it"));
      }
      tensor.bytes = data.data();
    }
  }
  std::vector<Borrowed> borrowed;
  std::vector<TensorizerInput> tensors;
};

// `derivation` is None or (operations, memory in bytes, salt).
nb::dict WriteTensorizer(nb::object target, nb::list tensors, nb::object key,
                         nb::object derivation, uint64_t alignment,
                         const std::string& durability, int threads,
                         nb::object progress, bool authenticate_metadata) {
  const Inputs inputs(tensors);
  TensorizerOptions options;
  options.key = KeyOf(key, nb::none()).key;
  options.alignment = alignment;
  options.authenticate_metadata = authenticate_metadata;
  if (!derivation.is_none()) {
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
  const auto layout = Unwrap(LayOutTensorizer(inputs.tensors, options));
  const auto sink = OpenSink(std::move(target), durability, {.direct = false});
  WriteOptions write;
  write.threads = threads;
  Progress told(std::move(progress));
  told.Attach(&write);
  return StatsDict(told.Unwrap(
      WithoutGil([&] { return WriteRecords(*layout, *sink, write); })));
}

}  // namespace

void BindTensorizer(nb::module_& module) {
  module.def("tensorizer_tensors", &Tensors);
  module.def("tensorizer_modules", &Modules);
  module.def("tensorizer_matches", &Matches);
  module.def("tensorizer_derive_key", &DeriveKey);
  module.def("write_tensorizer", &WriteTensorizer, nb::arg("target"),
             nb::arg("tensors"), nb::arg("key").none() = nb::none(),
             nb::arg("derivation").none() = nb::none(),
             nb::arg("alignment") = 1, nb::arg("durability") = "full",
             nb::arg("threads") = 0, nb::arg("progress").none() = nb::none(),
             nb::arg("authenticate_metadata") = true);
}

}  // namespace haulway::python

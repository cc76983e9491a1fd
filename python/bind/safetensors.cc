// What haulway.safetensors needs beside what all formats have.

#include "haulway/safetensors.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/memory.h"
#include "bind/bindings.h"
#include "haulway/buffer.h"
#include "haulway/checkpoint.h"
#include "haulway/format.h"
#include "haulway/source.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

constexpr uint64_t kPrefixBytes = 8;

// A header, or what the package says of a file that can have none.
struct Header {
  std::string text;
  std::optional<std::string> refusal;
};
Result<Header> ReadHeader(const ByteSource& source) {
  std::array<std::byte, kPrefixBytes> prefix;
  if (source.size() < kPrefixBytes) return Header{{}, "header too small"};
  HAULWAY_TRY(source.ReadAt(0, prefix));
  uint64_t header_bytes = 0;
  for (size_t i = kPrefixBytes; i-- > 0;) {
    header_bytes = header_bytes << 8 | std::to_integer<uint64_t>(prefix[i]);
  }
  if (header_bytes > kMaxSafetensorsHeaderBytes)
    return Header{{}, "header too large"};
  if (header_bytes > source.size() - kPrefixBytes) {
    return Header{{}, "invalid header length"};
  }
  Header header;
  header.text.resize(header_bytes);
  HAULWAY_TRY(source.ReadAt(kPrefixBytes,
                            std::as_writable_bytes(std::span(header.text))));
  return header;
}

// The message of the package for a file, nullopt where it would take it.
Result<std::optional<std::string>> Refusal(const ByteSource& source) {
  HAULWAY_ASSIGN(const Header header, ReadHeader(source));
  if (header.refusal.has_value()) return header.refusal;
  return SafetensorsRefusal(header.text,
                            source.size() - kPrefixBytes - header.text.size());
}

// Eight bytes of a text from `at` on as a number that compares as they do; what
// is past its end is zero.
uint64_t BytesAt(std::string_view text, size_t at) {
  uint64_t word = 0;
  const std::string_view rest = text.substr(std::min(at, text.size()), 8);
  std::memcpy(&word, rest.data(), rest.size());
  return std::endian::native == std::endian::little ? __builtin_bswap64(word)
                                                    : word;
}

// The entries in the order of their names' bytes. What tells two names of a
// model apart stands soon after what all of them begin with; compared as
// numbers that lie in the rows, it takes a third of the time that comparing the
// names does, each of which is far from the one before.
LongVector<uint32_t> OrderOfNames(const LongVector<Entry>& entries) {
  const std::string_view one = entries.front().name;
  size_t common = one.size();
  for (const Entry& entry : entries) {
    const auto end = std::ranges::mismatch(one.substr(0, common), entry.name);
    common = static_cast<size_t>(end.in2 - entry.name.begin());
  }
  struct Row {
    uint64_t first, second;  // The 16 bytes after `common`.
    uint32_t entry;
  };
  LongVector<Row> rows;
  rows.reserve(entries.size());
  for (uint32_t i = 0; i < entries.size(); ++i) {
    const std::string_view name = entries[i].name;
    rows.push_back({BytesAt(name, common), BytesAt(name, common + 8), i});
  }
  std::ranges::sort(rows, [&](const Row& a, const Row& b) {
    if (a.first != b.first) return a.first < b.first;
    if (a.second != b.second) return a.second < b.second;
    return entries[a.entry].name < entries[b.entry].name;
  });
  LongVector<uint32_t> order(rows.size());
  std::ranges::transform(rows, order.begin(), &Row::entry);
  return order;
}

// Names in the order of their bytes, which is Python's order of them.
nb::object SortedNames(const Checkpoint& checkpoint) {
  const LongVector<Entry>& entries = checkpoint.entries();
  LongVector<uint32_t> order;  // Empty if it is the entries' own.
  if (!std::ranges::is_sorted(entries, {}, &Entry::name)) {
    order = OrderOfNames(entries);
  }
  PyObject* const list = PyList_New(static_cast<Py_ssize_t>(entries.size()));
  if (list == nullptr) throw nb::python_error();
  const nb::object held = nb::steal(list);
  for (size_t i = 0; i < entries.size(); ++i) {
    const std::string_view name = entries[order.empty() ? i : order[i]].name;
    PyObject* const text = PyUnicode_FromStringAndSize(
        name.data(), static_cast<Py_ssize_t>(name.size()));
    if (text == nullptr) throw nb::python_error();
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), text);
  }
  return held;
}

}  // namespace

void BindSafetensors(nb::module_& module) {
  // A Checkpoint of what the package takes, whatever else it may look like.
  module.def("open_safetensors", [](std::shared_ptr<ByteSource> source) {
    OpenOptions options;
    options.strictness = Strictness::kLenient;
    return std::const_pointer_cast<Checkpoint>(
        Unwrap(WithoutGil([&]() -> Result<std::shared_ptr<const Checkpoint>> {
          HAULWAY_ASSIGN(
              auto reader,
              EntryOf(Format::kSafetensors).open(std::move(source), options));
          return std::make_shared<const Checkpoint>(std::move(reader));
        })));
  });
  module.def("safetensors_refusal", [](const ByteSource& source) {
    return Unwrap(WithoutGil([&] { return Refusal(source); }));
  });
  // The JSON of a checkpoint's header, of the source that it was opened from.
  module.def("safetensors_header", [](const Checkpoint& checkpoint) {
    const Header header =
        Unwrap(WithoutGil([&] { return ReadHeader(checkpoint.source()); }));
    return nb::bytes(header.text.data(), header.text.size());
  });
  module.def("sorted_names", &SortedNames);
  module.def("dtype_names", [](const Checkpoint& checkpoint) {
    std::set<DType> dtypes;
    for (const TensorInfo& tensor : checkpoint.index().tensors) {
      dtypes.insert(tensor.dtype);
    }
    nb::list names;
    for (const DType dtype : dtypes) {
      const std::string_view name = Name(dtype);
      names.append(nb::str(name.data(), name.size()));
    }
    return names;
  });
  // What from_dlpack makes of a tensor in memory of the source, if the source
  // is in memory and DLPack has the dtype; else None.
  module.def("lend_tensor",
             [](const Checkpoint& checkpoint, uint32_t row,
                nb::object from_dlpack) -> nb::object {
               const TensorInfo& tensor = checkpoint.index().tensors.at(row);
               if (tensor.nbytes == 0) return nb::none();
               Buffer bytes = Unwrap(WithoutGil(
                   [&] { return checkpoint.ReadStorage(tensor.storage); }));
               if (!bytes.writable()) return nb::none();
               nb::object lent =
                   DlpackLender(std::move(from_dlpack))
                       .Lend(std::move(bytes), tensor.dtype, tensor.shape);
               return lent.is_valid() ? lent : nb::none();
             });
  // What from_dlpack makes of a dense tensor that is read to memory of its own,
  // or None if DLPack lacks the dtype.
  module.def("read_tensor",
             [](const Checkpoint& checkpoint, uint32_t row,
                nb::object from_dlpack) -> nb::object {
               const TensorInfo& tensor = checkpoint.index().tensors.at(row);
               if (tensor.nbytes == 0) return nb::none();
               Buffer bytes = Unwrap(AllocateBuffer(tensor.nbytes));
               Check(WithoutGil([&] {
                 return checkpoint.ReadStorageRange(tensor.storage, 0,
                                                    bytes.mutable_bytes());
               }));
               nb::object lent =
                   DlpackLender(std::move(from_dlpack))
                       .Lend(std::move(bytes), tensor.dtype, tensor.shape);
               return lent.is_valid() ? lent : nb::none();
             });
}

}  // namespace haulway::python

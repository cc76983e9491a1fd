// Bindings that only haulway.safetensors needs.

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
#include "base/progress.h"
#include "bind/bindings.h"
#include "haulway/buffer.h"
#include "haulway/checkpoint.h"
#include "haulway/format.h"
#include "haulway/source.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

constexpr uint64_t kPrefixBytes = 8;

// A header, or the safetensors package's message for a file without a valid
// one.
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

// Returns the safetensors package's error message for a file, or nullopt if the
// package would accept it.
Result<std::optional<std::string>> Refusal(const ByteSource& source) {
  HAULWAY_ASSIGN(const Header header, ReadHeader(source));
  if (header.refusal.has_value()) return header.refusal;
  return SafetensorsRefusal(header.text,
                            source.size() - kPrefixBytes - header.text.size());
}

// Returns eight bytes of a text from `at` on as a big-endian number, so that
// numbers compare as the bytes do. Bytes past the end are zero.
uint64_t BytesAt(std::string_view text, size_t at) {
  uint64_t word = 0;
  const std::string_view rest = text.substr(std::min(at, text.size()), 8);
  std::memcpy(&word, rest.data(), rest.size());
  return std::endian::native == std::endian::little ? __builtin_bswap64(word)
                                                    : word;
}

// Returns the entries sorted by the bytes of their names. The names of a model
// usually differ soon after their common prefix. Comparing those bytes as
// numbers in the rows takes a third of the time of comparing the names, which
// are scattered in memory.
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

// Returns the names sorted by their bytes, which is also Python's order.
nb::object SortedNames(const Checkpoint& checkpoint) {
  const LongVector<Entry>& entries = checkpoint.entries();
  LongVector<uint32_t> order;  // Empty if the entries are sorted.
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
  // Opens a source as a safetensors file, whatever other format it resembles.
  module.def("open_safetensors", [](std::shared_ptr<ByteSource> source) {
    OpenOptions options;
    options.strictness = Strictness::kLenient;
    return std::const_pointer_cast<Checkpoint>(
        ReadFrom(*source, [&]() -> Result<std::shared_ptr<const Checkpoint>> {
          HAULWAY_ASSIGN(auto reader,
                         EntryOf(Format::kSafetensors).open(source, options));
          return std::make_shared<const Checkpoint>(std::move(reader));
        }));
  });
  module.def("safetensors_refusal", [](const ByteSource& source) {
    return ReadFrom(source, [&] { return Refusal(source); });
  });
  // Returns the JSON header, read from the checkpoint's source.
  module.def("safetensors_header", [](const Checkpoint& checkpoint) {
    const Header header = ReadFrom(
        checkpoint.source(), [&] { return ReadHeader(checkpoint.source()); });
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
  // Calls from_dlpack with a tensor in the memory of the source and returns the
  // result; None if the source is not in writable memory or DLPack lacks the
  // dtype.
  module.def("lend_tensor",
             [](const Checkpoint& checkpoint, uint32_t row,
                nb::object from_dlpack) -> nb::object {
               const TensorInfo& tensor = checkpoint.index().tensors.at(row);
               if (tensor.nbytes == 0) return nb::none();
               Buffer bytes = ReadFrom(checkpoint.source(), [&] {
                 return checkpoint.ReadStorage(tensor.storage);
               });
               if (!bytes.writable()) return nb::none();
               nb::object lent =
                   DlpackLender(std::move(from_dlpack))
                       .Lend(std::move(bytes), tensor.dtype, tensor.shape);
               return lent.is_valid() ? lent : nb::none();
             });
  // Reads a dense tensor to new memory, calls from_dlpack with it and returns
  // the result; None if the tensor is empty or DLPack lacks the dtype.
  module.def("read_tensor",
             [](const Checkpoint& checkpoint, uint32_t row,
                nb::object from_dlpack) -> nb::object {
               const TensorInfo& tensor = checkpoint.index().tensors.at(row);
               if (tensor.nbytes == 0) return nb::none();
               Buffer bytes = Unwrap(AllocateBuffer(tensor.nbytes));
               ReadFrom(checkpoint.source(), [&]() -> Result<bool> {
                 HAULWAY_TRY(checkpoint.ReadStorageRange(
                     tensor.storage, 0, bytes.mutable_bytes()));
                 return true;
               });
               nb::object lent =
                   DlpackLender(std::move(from_dlpack))
                       .Lend(std::move(bytes), tensor.dtype, tensor.shape);
               return lent.is_valid() ? lent : nb::none();
             });
}

}  // namespace haulway::python

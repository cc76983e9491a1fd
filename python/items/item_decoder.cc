#include "items/item_decoder.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/memory.h"
#include "haulway/items.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

// Copies of at least this size release the GIL; for smaller ones that costs
// more than the copy.
constexpr uint64_t kLongItem = uint64_t{256} << 10;

nb::object View(PyObject* object) {
  return nb::steal(PyMemoryView_FromObject(object));
}

nb::object CopyAsBytes(std::span<const std::byte> bytes, bool mutable_bytes) {
  const auto length = static_cast<Py_ssize_t>(bytes.size());
  nb::object copy =
      nb::steal(mutable_bytes ? PyByteArray_FromStringAndSize(nullptr, length)
                              : PyBytes_FromStringAndSize(nullptr, length));
  if (!copy.is_valid()) throw nb::python_error();
  auto* start = reinterpret_cast<std::byte*>(
      mutable_bytes ? PyByteArray_AS_STRING(copy.ptr())
                    : PyBytes_AS_STRING(copy.ptr()));
  const std::span<std::byte> to(start, bytes.size());
  if (bytes.size() < kLongItem) {
    CopyBytes(to, bytes);
  } else {
    WithoutGil([&] { CopyBytes(to, bytes); });
  }
  return copy;
}

// Builds the item's Python objects. `parts` are the parts of its envelope.
nb::object Build(const Item& item, const nb::list& parts,
                 const nb::object& load_tensor) {
  switch (item.kind) {
    case Item::Kind::kNone:
      return nb::none();
    case Item::Kind::kFalse:
    case Item::Kind::kTrue:
      return nb::bool_(item.kind == Item::Kind::kTrue);
    case Item::Kind::kInteger:
      return nb::int_(item.integer);
    case Item::Kind::kFloat:
      return nb::float_(item.number);
    case Item::Kind::kText: {
      nb::object text = nb::steal(PyUnicode_DecodeUTF8(
          item.text.data(), static_cast<Py_ssize_t>(item.text.size()),
          nullptr));
      if (!text.is_valid()) throw nb::python_error();
      return text;
    }
    case Item::Kind::kBytes:
      return parts[item.part];
    case Item::Kind::kTensor: {
      const ItemTensor& tensor = item.tensor;
      nb::list shape, strides;
      for (const uint64_t size : tensor.shape) shape.append(size);
      for (const uint64_t stride : tensor.strides) strides.append(stride);
      const std::string_view name = Name(tensor.dtype);
      return load_tensor(parts[tensor.part], nb::str(name.data(), name.size()),
                         tensor.flags, tensor.offset, nb::tuple(shape),
                         nb::tuple(strides));
    }
    case Item::Kind::kList:
    case Item::Kind::kTuple: {
      nb::list list;
      for (const Item& each : item.items) {
        list.append(Build(each, parts, load_tensor));
      }
      if (item.kind == Item::Kind::kTuple) return nb::tuple(list);
      return list;
    }
    case Item::Kind::kDict: {
      nb::dict dict;
      for (size_t i = 0; i < item.items.size(); ++i) {
        dict[Build(item.keys[i], parts, load_tensor)] =
            Build(item.items[i], parts, load_tensor);
      }
      return dict;
    }
  }
  return nb::none();
}

}  // namespace

ItemDecoder::ItemDecoder(std::shared_ptr<ArenaReader> reader,
                         DecodeOptions options)
    : reader_(std::move(reader)),
      options_(options),
      loads_(nb::module_::import_("pickle").attr("loads")) {}

// Claims the units that an envelope refers to, each once.
class ItemDecoder::Claims {
 public:
  explicit Claims(ArenaReader* reader) : reader_(reader) {}

  const std::shared_ptr<const void>& Of(UnitRef unit) {
    for (const auto& [claimed, claim] : claims_) {
      if (claimed == unit) return claim;
    }
    if (reader_ == nullptr) {
      Raise(Status(Code::kCorrupt, "envelope refers to an arena, without one"));
    }
    return claims_.emplace_back(unit, Unwrap(reader_->Claim(unit))).second;
  }

 private:
  ArenaReader* reader_;
  std::vector<std::pair<UnitRef, std::shared_ptr<const void>>> claims_;
};

nb::list ItemDecoder::Parts(const Envelope& envelope, const Buffer& bytes,
                            Claims& claims, bool bytes_as_views) {
  nb::list buffers;
  for (const EnvelopePart& part : envelope.parts) {
    Buffer view;
    if (part.is_inline()) {
      const auto offset = static_cast<uint64_t>(
          envelope.inlined.data() - bytes.data() + part.range.offset);
      view = bytes.Slice(offset, part.range.bytes);
    } else {
      const auto& claim = claims.Of(part.range.unit);
      view = Unwrap(reader_->View(claim, part.range.offset, part.range.bytes,
                                  !options_.read_only));
    }
    constexpr uint32_t kBytesLike =
        EnvelopePart::kBytes | EnvelopePart::kByteArray;
    if ((part.flags & kBytesLike) != 0 &&
        (!bytes_as_views || (part.flags & EnvelopePart::kExact) != 0)) {
      buffers.append(CopyAsBytes(view.bytes(),
                                 (part.flags & EnvelopePart::kByteArray) != 0));
      continue;
    }
    if (options_.copy && !part.is_inline()) {
      const Buffer copy = pool_->Take(view.size());
      const auto run = [&] { CopyBytes(copy.mutable_bytes(), view.bytes()); };
      if (view.size() < kLongItem) {
        run();
      } else {
        WithoutGil(run);
      }
      view = copy;
    }
    nb::object memory = MakeMemory(std::move(view));
    if ((part.flags & kBytesLike) != 0) memory = View(memory.ptr());
    buffers.append(std::move(memory));
  }
  return buffers;
}

nb::object ItemDecoder::LoadItem(const Envelope& envelope, const Buffer& bytes,
                                 Claims& claims) {
  std::vector<uint64_t> sizes;
  for (const EnvelopePart& part : envelope.parts) {
    sizes.push_back(part.range.bytes);
  }
  const Item item = Unwrap(ParseItem(envelope.body, sizes));
  if (!load_tensor_.is_valid()) {
    load_tensor_ =
        nb::module_::import_("haulway.ipc._items").attr("load_tensor");
  }
  return Build(item, Parts(envelope, bytes, claims, options_.bytes_as_views),
               load_tensor_);
}

nb::object ItemDecoder::Load(const Envelope& envelope, const Buffer& bytes,
                             Claims& claims, bool bytes_as_views) {
  const nb::object body = nb::steal(PyMemoryView_FromMemory(
      const_cast<char*>(reinterpret_cast<const char*>(envelope.body.data())),
      static_cast<Py_ssize_t>(envelope.body.size()), PyBUF_READ));
  if (!body.is_valid()) throw nb::python_error();
  if (envelope.parts.empty()) return loads_(body);

  return loads_(body, nb::arg("buffers") =
                          Parts(envelope, bytes, claims, bytes_as_views));
}

nb::object ItemDecoder::Decode(const Buffer& bytes) {
  const Envelope envelope = Unwrap(ParseEnvelope(bytes.bytes()));
  // Kept for the second attempt below: a unit can be claimed only once.
  Claims claims(reader_.get());
  if (envelope.kind == EnvelopeKind::kItem) {
    return LoadItem(envelope, bytes, claims);
  }
  if (options_.no_pickle) {
    Discard(bytes);
    Raise(Status(Code::kUnsafe, "item is a pickle, which is not read"));
  }
  if (options_.bytes_as_views) {
    try {
      return Load(envelope, bytes, claims, true);
    } catch (nb::python_error& error) {
      // A writable view is not hashable, so it cannot be in a set or be a dict
      // key.
      if (!error.matches(PyExc_TypeError) && !error.matches(PyExc_ValueError)) {
        throw;
      }
    }
  }
  return Load(envelope, bytes, claims, false);
}

void ItemDecoder::Discard(const Buffer& bytes) {
  const Result<Envelope> envelope = ParseEnvelope(bytes.bytes());
  if (!envelope.ok() || reader_ == nullptr) return;
  std::vector<UnitRef> seen;
  for (const EnvelopePart& part : envelope->parts) {
    const UnitRef unit = part.range.unit;
    if (part.is_inline() || std::ranges::find(seen, unit) != seen.end()) {
      continue;
    }
    seen.push_back(unit);
    (void)reader_->Claim(unit);  // The claim is dropped at once, which releases
                                 // the unit.
  }
}

}  // namespace haulway::python

#include "items/item_encoder.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "haulway/items.h"
#include "items/pickle_opcodes.h"
#include "items/pickle_places.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

// Returns the length of the opcode that announces a payload at the end of a
// chunk, or 0. The opcode and its length field take 5 or 9 bytes. Up to three
// bytes, too few for a frame of their own, may precede them.
size_t AnnouncedBytes(std::span<const std::byte> chunk, bool is_first) {
  constexpr size_t kLongestLoose = 3;
  size_t at = is_first && chunk.size() >= 2 && chunk[0] == kProto ? 2 : 0;
  while (chunk.size() - at >= 9 && chunk[at] == kFrame) {
    uint64_t length = 0;
    std::memcpy(&length, &chunk[at + 1], sizeof(length));
    if (length > chunk.size() - at - 9) return 0;
    at += 9 + static_cast<size_t>(length);
  }
  const size_t loose = chunk.size() - at;
  for (const size_t opcode : {size_t{5}, size_t{9}}) {
    if (loose >= opcode && loose - opcode <= kLongestLoose) return opcode;
  }
  return 0;
}

// Returns whether any byte of the stream could be the opcode of a bytes object
// of at least `least` bytes. Much faster than walking the opcodes.
bool MayHoldBytes(std::span<const std::byte> stream, uint64_t least) {
  constexpr std::pair<std::byte, size_t> kOpcodes[] = {
      {kBinBytes, 4}, {kBinBytes8, 8}, {kByteArray8, 8}};
  for (const auto& [opcode, width] : kOpcodes) {
    const std::byte* at = stream.data();
    const std::byte* const end = at + stream.size();
    while (at != end) {
      const void* found = std::memchr(at, static_cast<int>(opcode),
                                      static_cast<size_t>(end - at));
      if (found == nullptr) break;
      at = static_cast<const std::byte*>(found) + 1;
      if (static_cast<size_t>(end - at) < width) break;
      uint64_t length = 0;
      std::memcpy(&length, at, width);
      const auto rest = static_cast<uint64_t>(end - at) - width;
      if (length >= least && length <= rest) return true;
    }
  }
  return false;
}

}  // namespace

ItemPart::ItemPart(PyObject* object, uint32_t flags) : flags_(flags) {
  if (PyObject_GetBuffer(object, &view_, PyBUF_ANY_CONTIGUOUS) != 0) {
    throw nb::python_error();
  }
}

ItemPart::ItemPart(ItemPart&& other) noexcept
    : view_(other.view_), flags_(other.flags_) {
  other.view_.obj = nullptr;
}

ItemPart::~ItemPart() {
  if (view_.obj != nullptr) PyBuffer_Release(&view_);
}

void ItemEncoder::Clear() {
  stream_.clear();
  parts_.clear();
  announced_ = 0;
}

void ItemEncoder::Encode(nb::handle item) {
  Clear();
  try {
    dump_(item);
  } catch (...) {
    PyObject* cleared = PyObject_CallNoArgs(clear_memo_.ptr());
    Py_XDECREF(cleared);
    Clear();
    throw;
  }
  if (writes_items_) return;
  clear_memo_();
  if (lift_all_ && stream_.size() > threshold_ && HasBytesToLift()) {
    LiftBytes();
  }
  if (lift_all_) MarkExact();
}

void ItemEncoder::MarkExact() {
  constexpr uint32_t kBytesLike =
      EnvelopePart::kBytes | EnvelopePart::kByteArray;
  const auto is_bytes = [](const ItemPart& part) {
    return (part.flags() & kBytesLike) != 0;
  };
  if (std::ranges::none_of(parts_, is_bytes)) return;
  const std::vector<bool> inside = GoesIntoObjects(stream_, parts_.size());
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (inside[i] && is_bytes(parts_[i])) {
      parts_[i].AddFlags(EnvelopePart::kExact);
    }
  }
}

int ItemEncoder::Traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  const ItemEncoder& encoder = *nb::inst_ptr<ItemEncoder>(self);
  Py_VISIT(encoder.resolve_.ptr());
  Py_VISIT(encoder.hooks_.ptr());
  Py_VISIT(encoder.dump_.ptr());
  Py_VISIT(encoder.clear_memo_.ptr());
  return 0;
}

int ItemEncoder::Unlink(PyObject* self) {
  ItemEncoder& encoder = *nb::inst_ptr<ItemEncoder>(self);
  encoder.dump_.reset();
  encoder.clear_memo_.reset();
  return 0;
}

uint32_t ItemEncoder::AddPart(nb::handle memory, uint32_t flags) {
  parts_.emplace_back(memory.ptr(), flags);
  return static_cast<uint32_t>(parts_.size() - 1);
}

void ItemEncoder::Append(nb::bytearray bytes) {
  const auto* data = static_cast<const std::byte*>(bytes.data());
  stream_.insert(stream_.end(), data, data + bytes.size());
}

void ItemEncoder::Write(nb::handle chunk) {
  const size_t announced = std::exchange(announced_, 0);
  PyObject* object = chunk.ptr();
  const bool is_bytes = PyBytes_CheckExact(object) != 0;
  const bool is_bytearray = PyByteArray_CheckExact(object) != 0;
  if (announced != 0 && (is_bytes || is_bytearray)) {
    const std::byte opcode = stream_[stream_.size() - announced];
    const bool wanted = is_bytes ? opcode == kBinBytes || opcode == kBinBytes8
                                 : opcode == kByteArray8;
    if (wanted) {
      stream_.resize(stream_.size() - announced);
      stream_.push_back(kNextBuffer);
      parts_.emplace_back(
          object, is_bytes ? EnvelopePart::kBytes : EnvelopePart::kByteArray);
      return;
    }
  }
  Py_buffer view;
  if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) != 0) {
    throw nb::python_error();
  }
  const std::span<const std::byte> bytes(
      static_cast<const std::byte*>(view.buf), static_cast<size_t>(view.len));
  // The payload of a str also arrives here and stays in the stream; the next
  // payload has an announcement of its own.
  if (announced == 0) announced_ = AnnouncedBytes(bytes, stream_.empty());
  stream_.insert(stream_.end(), bytes.begin(), bytes.end());
  PyBuffer_Release(&view);
}

bool ItemEncoder::TakeBuffer(nb::handle buffer) {
  const Py_buffer* view = PyPickleBuffer_GetBuffer(buffer.ptr());
  if (view == nullptr) throw nb::python_error();
  if (static_cast<uint64_t>(view->len) < threshold_) return true;
  parts_.emplace_back(buffer.ptr(), 0);
  return false;
}

nb::object ItemEncoder::Reduce(nb::handle object) {
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()));
  nb::object hook = nb::borrow(PyDict_GetItem(hooks_.ptr(), type));
  if (!hook.is_valid()) {
    hook = resolve_(nb::handle(type));
    hooks_[nb::handle(type)] = hook;
  }
  if (hook.is_none()) return nb::borrow(Py_NotImplemented);
  return hook(object);
}

bool ItemEncoder::HasBytesToLift() const {
  if (!MayHoldBytes(stream_, threshold_)) return false;
  bool found = false;
  PickleWalker walker(stream_);
  while (walker.Next()) {
    found =
        found || (walker.is_bytes() && walker.payload().size() >= threshold_);
  }
  return found && walker.ok();
}

void ItemEncoder::LiftBytes() {
  std::vector<std::byte> lifted;
  std::vector<ItemPart> parts;
  size_t next_part = 0;
  size_t kept_from = 0;  // Bytes before this are copied or dropped.
  const auto keep_until = [&](size_t end) {
    lifted.insert(lifted.end(), stream_.data() + kept_from,
                  stream_.data() + end);
  };
  PickleWalker walker(stream_);
  while (walker.Next()) {
    if (walker.opcode() == kFrame) {
      // Frames are optional, and their lengths would now be wrong.
      keep_until(walker.start());
      kept_from = walker.end();
    } else if (walker.opcode() == kNextBuffer) {
      parts.push_back(std::move(parts_[next_part++]));
    } else if (walker.is_bytes() && walker.payload().size() >= threshold_) {
      keep_until(walker.start());
      kept_from = walker.end();
      lifted.push_back(kNextBuffer);
      const auto payload = walker.payload();
      const nb::object copy = nb::steal(PyBytes_FromStringAndSize(
          reinterpret_cast<const char*>(payload.data()),
          static_cast<Py_ssize_t>(payload.size())));
      if (!copy.is_valid()) throw nb::python_error();
      parts.emplace_back(copy.ptr(), walker.opcode() == kByteArray8
                                         ? EnvelopePart::kByteArray
                                         : EnvelopePart::kBytes);
    }
  }
  keep_until(stream_.size());
  stream_.swap(lifted);
  parts_.swap(parts);
}

}  // namespace haulway::python

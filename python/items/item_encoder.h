// An item as a pickle and the large buffers that stay out of it.

#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace haulway::python {

// A buffer that an item holds, kept alive and in place until it is dropped.
class ItemPart {
 public:
  // Requires: the object exports a contiguous buffer. Throws Python's error.
  ItemPart(PyObject* object, uint32_t flags);
  ItemPart(ItemPart&& other) noexcept;
  ItemPart& operator=(ItemPart&&) = delete;
  ~ItemPart();

  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(view_.buf),
            static_cast<size_t>(view_.len)};
  }
  uint32_t flags() const { return flags_; }  // EnvelopePart::Flags.
  void AddFlags(uint32_t flags) { flags_ |= flags; }

 private:
  Py_buffer view_;
  uint32_t flags_;
};

// An ItemEncoder pickles items, one at a time, and sets aside what is large:
// buffers that objects offer out of band, and bytes objects.
//
// The pickler hands over long bytes objects apart from its stream, behind the
// opcode that announces them. That opcode is replaced by the one for a buffer
// that comes from elsewhere, so such objects are not copied into the stream,
// and containers need not be searched for them.
class ItemEncoder {
 public:
  // `hooks` maps a type to a function that reduces its instances, or to None;
  // `resolve` is asked for types that are not in it.
  ItemEncoder(nanobind::object resolve, nanobind::dict hooks,
              uint64_t threshold, bool lift_all)
      : resolve_(std::move(resolve)),
        hooks_(std::move(hooks)),
        threshold_(threshold),
        lift_all_(lift_all) {}
  ItemEncoder(const ItemEncoder&) = delete;
  ItemEncoder& operator=(const ItemEncoder&) = delete;

  // `dump` writes to Write() and offers buffers to TakeBuffer().
  void SetPickler(nanobind::object dump, nanobind::object clear_memo) {
    dump_ = std::move(dump);
    clear_memo_ = std::move(clear_memo);
  }
  // The pickle is then in stream(), what it lacks in parts(), in order.
  void Encode(nanobind::handle item);
  void Clear();

  // Writes items without a pickle from now on: `dump` calls AddPart() and
  // Append().
  void WriteItems() { writes_items_ = true; }
  bool writes_items() const { return writes_items_; }
  uint64_t threshold() const { return threshold_; }

  std::span<const std::byte> stream() const { return stream_; }
  const std::vector<ItemPart>& parts() const { return parts_; }

  // For the garbage collector: the pickler refers back to its encoder.
  static int Traverse(PyObject* self, visitproc visit, void* arg);
  static int Unlink(PyObject* self);

  uint32_t AddPart(nanobind::handle memory, uint32_t flags);
  void Append(nanobind::bytearray bytes);

  // What the pickler calls.
  void Write(nanobind::handle chunk);
  bool TakeBuffer(nanobind::handle buffer);  // Whether it stays in the stream.
  nanobind::object Reduce(nanobind::handle object);

 private:
  bool HasBytesToLift() const;
  // Moves bytes objects out of the stream into parts.
  void LiftBytes();
  // Notes which bytes objects must come back as such: code of their owner's
  // may depend on it.
  void MarkExact();

  nanobind::object resolve_;
  nanobind::dict hooks_;
  uint64_t threshold_;
  bool lift_all_;
  bool writes_items_ = false;
  nanobind::object dump_;
  nanobind::object clear_memo_;
  std::vector<std::byte> stream_;
  std::vector<ItemPart> parts_;
  size_t announced_ = 0;  // Length of the opcode that a payload will follow.
};

}  // namespace haulway::python

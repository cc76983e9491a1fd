// Encodes an item as a pickle and separate large buffers.

#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace haulway::python {

// A buffer of an item. The buffer stays alive and in place until this object is
// destroyed.
class ItemPart {
 public:
  // Throws Python's exception. Requires: the object exports a contiguous
  // buffer.
  ItemPart(PyObject* object, uint32_t flags);
  ItemPart(ItemPart&& other) noexcept;
  ItemPart& operator=(ItemPart&&) = delete;
  ~ItemPart();

  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(view_.buf),
            static_cast<size_t>(view_.len)};
  }
  uint32_t flags() const { return flags_; }  // See EnvelopePart::Flags.
  void AddFlags(uint32_t flags) { flags_ |= flags; }

 private:
  Py_buffer view_;
  uint32_t flags_;
};

// An ItemEncoder pickles one item at a time and sets large data aside: buffers
// that objects offer out of band, and bytes objects.
//
// The pickler passes a long bytes object separately from its stream, after the
// opcode that announces it. The encoder replaces that opcode with NEXT_BUFFER,
// so such objects are not copied into the stream, and containers need not be
// searched for them.
class ItemEncoder {
 public:
  // `hooks` maps a type to a function that reduces its instances, or to None;
  // `resolve` is called for types that are not in it.
  ItemEncoder(nanobind::object resolve, nanobind::dict hooks,
              uint64_t threshold, bool lift_all)
      : resolve_(std::move(resolve)),
        hooks_(std::move(hooks)),
        threshold_(threshold),
        lift_all_(lift_all) {}
  ItemEncoder(const ItemEncoder&) = delete;
  ItemEncoder& operator=(const ItemEncoder&) = delete;

  // `dump` calls Write() with its output and offers buffers to TakeBuffer().
  void SetPickler(nanobind::object dump, nanobind::object clear_memo) {
    dump_ = std::move(dump);
    clear_memo_ = std::move(clear_memo);
  }
  // Afterwards stream() holds the pickle, and parts() the buffers set aside, in
  // order.
  void Encode(nanobind::handle item);
  void Clear();

  // Switches to writing items without a pickle: `dump` then calls AddPart() and
  // Append().
  void WriteItems() { writes_items_ = true; }
  bool writes_items() const { return writes_items_; }
  uint64_t threshold() const { return threshold_; }

  std::span<const std::byte> stream() const { return stream_; }
  const std::vector<ItemPart>& parts() const { return parts_; }

  // For the garbage collector: the pickler holds a reference to its encoder.
  static int Traverse(PyObject* self, visitproc visit, void* arg);
  static int Unlink(PyObject* self);

  uint32_t AddPart(nanobind::handle memory, uint32_t flags);
  void Append(nanobind::bytearray bytes);

  // Called by the pickler.
  void Write(nanobind::handle chunk);
  bool TakeBuffer(nanobind::handle buffer);  // True: keep it in the stream.
  nanobind::object Reduce(nanobind::handle object);

 private:
  bool HasBytesToLift() const;
  // Moves bytes objects from the stream to parts.
  void LiftBytes();
  // Marks the bytes objects that must be decoded as bytes, not views: they
  // belong to objects whose code may depend on the type.
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
  size_t announced_ = 0;  // Length of the opcode that announces the next
                          // payload.
};

}  // namespace haulway::python

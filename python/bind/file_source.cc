#include "bind/file_source.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <span>
#include <utility>

#include "base/gil.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

// Converts the exception that Python raised to a status. Requires: the GIL is
// held.
Status StatusOf(nb::python_error& raised) {
  Code code = Code::kIoError;
  if (raised.matches(PyExc_ConnectionError)) code = Code::kUnavailable;
  if (raised.matches(PyExc_TimeoutError)) code = Code::kTimeout;
  if (raised.matches(PyExc_EOFError)) code = Code::kTruncated;
  if (raised.matches(PyExc_KeyboardInterrupt)) {
    // Delivers the interrupt to the main thread, which waits for this read.
    PyErr_SetInterrupt();
    code = Code::kCancelled;
  }
  std::string text = nb::cast<std::string>(raised.type().attr("__name__"));
  const nb::object value = nb::borrow(raised.value());
  PyObject* const words = PyObject_Str(value.ptr());
  if (words == nullptr) {
    PyErr_Clear();
  } else {
    const nb::object held = nb::steal(words);
    Py_ssize_t length = 0;
    const char* const utf8 = PyUnicode_AsUTF8AndSize(words, &length);
    if (utf8 == nullptr) {
      PyErr_Clear();
    } else if (length > 0) {
      text += ": ";
      text.append(utf8, static_cast<size_t>(length));
    }
  }
  return Status(code, fmt::format("the file object raised {}", text));
}

class FileObjectSource : public ByteSource {
 public:
  FileObjectSource(nb::object reader, uint64_t size, std::string name,
                   int parallel)
      : reader_(reader.release().ptr()),
        size_(size),
        name_(std::move(name)),
        parallel_(parallel) {}
  FileObjectSource(const FileObjectSource&) = delete;
  FileObjectSource& operator=(const FileObjectSource&) = delete;
  ~FileObjectSource() override {
    const GilHeld gil;
    if (gil) Py_DECREF(reader_);
  }

  std::string_view name() const override { return name_; }
  uint64_t size() const override { return size_; }

  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    const ReadRequest request{offset, out};
    return ReadMany(std::span(&request, 1));
  }

  Status ReadMany(std::span<const ReadRequest> requests) const override {
    for (const ReadRequest& request : requests) {
      if (request.offset <= size_ &&
          request.out.size() <= size_ - request.offset) {
        continue;
      }
      return Status(Code::kTruncated,
                    fmt::format("read of {} bytes ends past the source: "
                                "expected at most {} bytes in all",
                                request.out.size(), size_))
          .At(request.offset);
    }
    const GilHeld gil;
    if (!gil) return Status(Code::kCancelled, "Python is ending");
    try {
      Ask(requests);
    } catch (nb::python_error& raised) {
      const Status status = StatusOf(raised);
      return requests.empty() ? status : Status(status).At(requests[0].offset);
    }
    return Status();
  }

  SourceTraits Look(std::span<const ByteRange> /*ranges*/) const override {
    SourceTraits traits;
    traits.remote = parallel_ > 1;
    traits.parallel = parallel_;
    traits.resident = 1;
    return traits;
  }

 private:
  // Memoryviews of our memory. Release() makes them unusable.
  class Views {
   public:
    nb::object Add(std::span<std::byte> out) {
      PyObject* const view = PyMemoryView_FromMemory(
          reinterpret_cast<char*>(out.data()),
          static_cast<Py_ssize_t>(out.size()), PyBUF_WRITE);
      if (view == nullptr) throw nb::python_error();
      views_.append(nb::steal(view));
      return nb::borrow(view);
    }
    // Throws if a consumer still exports one of the views.
    void Release() {
      for (const nb::handle view : views_) view.attr("release")();
    }

   private:
    nb::list views_;
  };

  void Ask(std::span<const ReadRequest> requests) const {
    Views views;
    nb::list ranges;
    for (const ReadRequest& request : requests) {
      if (request.out.empty()) continue;
      ranges.append(nb::make_tuple(request.offset, views.Add(request.out)));
    }
    if (nb::len(ranges) == 0) return;
    const nb::str name("read_many");
    PyObject* const done =
        PyObject_CallMethodOneArg(reader_, name.ptr(), ranges.ptr());
    if (done == nullptr) throw nb::python_error();
    Py_DECREF(done);
    views.Release();
  }

  PyObject* const reader_;  // Owned reference.
  const uint64_t size_;
  const std::string name_;
  const int parallel_;
};

}  // namespace

std::shared_ptr<const ByteSource> MakeFileObjectSource(nb::object reader,
                                                       uint64_t size,
                                                       std::string name,
                                                       int parallel) {
  return std::make_shared<const FileObjectSource>(std::move(reader), size,
                                                  std::move(name), parallel);
}

}  // namespace haulway::python

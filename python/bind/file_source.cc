#include "bind/file_source.h"

#include <fmt/format.h>

#include <span>
#include <utility>

#include "base/errors.h"
#include "base/gil.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

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
      const Status status = StatusOf(raised, "the file object", Code::kIoError);
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

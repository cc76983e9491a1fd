// Loads tensors and slices of them into memory, for get_slice(), shard(),
// load_into() and casts.

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/memory.h"
#include "base/progress.h"
#include "bind/bindings.h"
#include "bind/loading.h"
#include "haulway/checkpoint.h"
#include "haulway/load.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

// Alignment in bytes of tensors in memory that we allocate.
constexpr uint64_t kAlignment = 64;

DType DTypeOf(nb::handle name) {
  const auto text = nb::cast<std::string>(name);
  const auto dtype = DTypeFromName(text);
  if (!dtype.has_value()) {
    Raise(Status(Code::kInvalidArgument, fmt::format("no dtype '{}'", text)));
  }
  return *dtype;
}

struct Requests {
  std::vector<TensorRequest> list;
  std::vector<size_t> ours;  // Requests without caller memory.
};

// Converts TensorRequests of haulway._making.objects.
Requests RequestsOf(const nb::sequence& items) {
  Requests requests;
  requests.list.reserve(nb::len(items));
  for (const nb::handle item : items) {
    TensorRequest request;
    const auto row = nb::cast<uint32_t>(item.attr("row"));
    const nb::object stored = item.attr("stored");
    if (stored.is_none()) {
      request.tensor = row;
    } else {
      request.storage = StorageElements{row, DTypeOf(stored)};
    }
    if (const nb::object slices = item.attr("slices"); !slices.is_none()) {
      for (const nb::handle slice : slices) {
        request.slice.push_back({nb::cast<int64_t>(slice[0]),
                                 nb::cast<int64_t>(slice[1]),
                                 nb::cast<int64_t>(slice[2])});
      }
    }
    if (const nb::object dtype = item.attr("dtype"); !dtype.is_none()) {
      request.dtype = DTypeOf(dtype);
    }
    const nb::object address = item.attr("address");
    if (address.is_none()) {
      requests.ours.push_back(requests.list.size());
      request.zeroed = true;  // AllocateBuffer() returns zeros.
    } else {
      request.out = {reinterpret_cast<std::byte*>(nb::cast<uintptr_t>(address)),
                     nb::cast<size_t>(item.attr("nbytes"))};
    }
    requests.list.push_back(std::move(request));
  }
  return requests;
}

// Allocates one block and gives each request without memory a part of it.
Result<std::vector<Buffer>> Allocate(const Checkpoint& checkpoint,
                                     Requests* requests) {
  std::vector<uint64_t> begins;
  std::vector<uint64_t> sizes;
  uint64_t total = 0;
  for (const size_t i : requests->ours) {
    HAULWAY_ASSIGN(const uint64_t bytes,
                   RequestBytes(checkpoint, requests->list[i]));
    begins.push_back(total);
    sizes.push_back(bytes);
    const uint64_t rest = UINT64_MAX - kAlignment - total;
    if (bytes > rest) {
      return Status(Code::kLimit, "tensors of more than 2^64 bytes");
    }
    total += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  HAULWAY_ASSIGN(const Buffer memory, AllocateBuffer(total));
  std::vector<Buffer> buffers;
  for (size_t i = 0; i < begins.size(); ++i) {
    Buffer part;
    if (sizes[i] != 0) part = memory.Slice(begins[i], sizes[i]);
    if (sizes[i] != 0) {
      requests->list[requests->ours[i]].out = part.mutable_bytes();
    }
    buffers.push_back(std::move(part));
  }
  return buffers;
}

nb::tuple LoadRequests(const Checkpoint& checkpoint, const nb::sequence& items,
                       nb::dict loading, nb::object progress) {
  Requests requests = RequestsOf(items);
  LoadOptions options = LoadOptionsOf(std::move(loading));
  std::vector<Buffer> buffers = Unwrap(Allocate(checkpoint, &requests));
  uint64_t bytes = 0;
  for (const TensorRequest& request : requests.list) {
    bytes += request.out.size();
  }
  Progress told(std::move(progress));
  told.Attach(&options);
  const LoadStats stats = told.Run(
      [&] { return LoadTensors(checkpoint, requests.list, options); },
      IsRemote(checkpoint.source()) ? Signals::kMind : SignalsFor(bytes));
  nb::list memories;
  for (size_t i = 0; i < requests.list.size(); ++i) memories.append(nb::none());
  for (size_t i = 0; i < buffers.size(); ++i) {
    memories[requests.ours[i]] = MakeMemory(std::move(buffers[i]));
  }
  return nb::make_tuple(memories, FieldsDict(stats));
}

nb::tuple PlanRequests(const Checkpoint& checkpoint, const nb::sequence& items,
                       nb::dict loading) {
  const Requests requests = RequestsOf(items);
  const LoadOptions options = LoadOptionsOf(std::move(loading));
  const PlannedReads plan = Unwrap(WithoutGil(
      [&] { return PlanTensors(checkpoint, requests.list, options); }));
  nb::list reads;
  for (const PlannedRead& read : plan.reads) {
    reads.append(nb::make_tuple(read.offset, read.bytes));
  }
  return nb::make_tuple(reads, plan.tensor_bytes, plan.read_bytes);
}

}  // namespace

void BindTensors(nb::module_& module) {
  // Returns (a Memory for each request without an address and None for others;
  // stats).
  module.def("load_tensors", &LoadRequests, nb::arg("checkpoint"),
             nb::arg("requests"), nb::arg("loading") = nb::dict(),
             nb::arg("progress").none() = nb::none());
  // Returns (list of (offset, bytes), tensor bytes, read bytes).
  module.def("plan_tensors", &PlanRequests, nb::arg("checkpoint"),
             nb::arg("requests"), nb::arg("loading") = nb::dict());
  module.def("can_cast", [](const std::string& from, const std::string& to) {
    return CanCast(DTypeOf(nb::cast(from)), DTypeOf(nb::cast(to)));
  });
}

}  // namespace haulway::python

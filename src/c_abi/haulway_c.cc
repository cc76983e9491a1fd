// Each function checks what C cannot guarantee (null pointers, numbers), calls
// the C++ function, and stores the message of a failure in memory of the
// calling thread.
//
// Tried instead: returning Status objects, which C callers must free on every
// path and forget. Tensors are numbered by the position of their name, so two
// names of one tensor have two numbers.

#include "haulway/haulway_c.h"

#include <fmt/format.h>

#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/no_memory.h"
#include "base/text.h"
#include "haulway/checkpoint.h"
#include "haulway/format.h"
#include "haulway/load.h"
#include "haulway/open.h"
#include "haulway/options.h"
#include "haulway/save.h"
#include "haulway/signs.h"
#include "haulway/verify.h"

struct haulway_file {
  std::shared_ptr<const haulway::Checkpoint> checkpoint;
  std::vector<std::string> names;  // c_str() of each is returned to the caller.
  // Filled at the first lookup of a name.
  std::once_flag filled;
  std::unordered_map<std::string_view, size_t> numbers;
};

namespace {

using haulway::Checkpoint;
using haulway::Code;
using haulway::DimSlice;
using haulway::Quote;
using haulway::Result;
using haulway::Status;
using haulway::TensorInfo;
using haulway::TensorRequest;

// The numbers of codes are the same as in C++.
static_assert(static_cast<int>(Code::kOk) == HAULWAY_OK);
static_assert(static_cast<int>(Code::kTruncated) == HAULWAY_TRUNCATED);
static_assert(static_cast<int>(Code::kInternal) == HAULWAY_INTERNAL);
static_assert(static_cast<int>(Code::kSignature) == HAULWAY_SIGNATURE);

std::string& LastError() {
  thread_local std::string message;
  return message;
}

// Runs `work`, stores its message for haulway_last_error() and returns its
// code.
template <class Work>
haulway_code Call(const Work& work) {
  const Status status = haulway::OrNoMemory([&]() -> Status { return work(); });
  try {
    LastError() = status.message();
  } catch (const std::exception&) {
    LastError().clear();
  }
  return static_cast<haulway_code>(status.code());
}

Status Need(const void* pointer, std::string_view what) {
  if (pointer != nullptr) return Status();
  return Status(Code::kInvalidArgument, fmt::format("{} is NULL", what));
}

const std::unordered_map<std::string_view, size_t>& NumbersOf(
    haulway_file* file) {
  std::call_once(file->filled, [file] {
    file->numbers.reserve(file->names.size());
    for (size_t i = 0; i < file->names.size(); ++i) {
      file->numbers.emplace(file->names[i], i);
    }
  });
  return file->numbers;
}

// Opens what `name` names. Nothing is mapped: a file that is cut while it is
// read would end the program with SIGBUS.
Result<std::shared_ptr<const haulway::ByteSource>> OpenUnmapped(
    const char* name) {
  HAULWAY_TRY(Need(name, "name"));
  return haulway::OpenSource(name, {.io = haulway::IoMode::kPread});
}

// Returns the name as a C string that no other name of the file has.
std::string NameOf(const haulway::Entry& entry) {
  return entry.name.find('\0') == entry.name.npos ? std::string(entry.name)
                                                  : haulway::Escape(entry.name);
}

Result<const TensorInfo*> TensorOf(const haulway_file* file, size_t number) {
  HAULWAY_TRY(Need(file, "file"));
  if (number < file->names.size()) {
    const haulway::CheckpointIndex& index = file->checkpoint->index();
    return &index.tensors[index.entries[number].tensor];
  }
  return Status(Code::kNotFound, fmt::format("no tensor {}: there are {}",
                                             number, file->names.size()));
}

Result<TensorRequest> RequestOf(const haulway_file* file,
                                const haulway_destination& destination) {
  HAULWAY_ASSIGN(const TensorInfo* const tensor,
                 TensorOf(file, destination.tensor));
  if (destination.bytes != 0 && destination.memory == nullptr) {
    return Need(nullptr, "memory").In(Quote(file->names[destination.tensor]));
  }
  TensorRequest request;
  request.tensor = file->checkpoint->index().entries[destination.tensor].tensor;
  request.out = {static_cast<std::byte*>(destination.memory),
                 destination.bytes};
  for (size_t i = 0; destination.slice != nullptr && i < tensor->shape.size();
       ++i) {
    const haulway_range& range = destination.slice[i];
    if (range.step < 1) {
      return Status(Code::kInvalidArgument,
                    fmt::format("step {} of dimension {}: expected at least 1",
                                range.step, i))
          .In(Quote(file->names[destination.tensor]));
    }
    request.slice.push_back({range.begin, range.end, range.step});
  }
  return request;
}

// Fails with kUnsupported if the elements differ from the stored ones by signs
// that cannot be changed.
Status CheckSigns(const TensorInfo& tensor) {
  if (!SignsOf(tensor).any() || haulway::HasSigns(tensor.dtype))
    return Status();
  return Status(Code::kUnsupported,
                fmt::format("cannot change the sign of dtype {}",
                            haulway::Name(tensor.dtype)));
}

Status Load(const haulway_file* file,
            std::span<const haulway_destination> destinations,
            const haulway::LoadOptions& options) {
  HAULWAY_TRY(Need(file, "file"));
  const auto& tensors = file->checkpoint->index().tensors;
  std::vector<TensorRequest> requests;
  requests.reserve(destinations.size());
  for (const haulway_destination& destination : destinations) {
    HAULWAY_ASSIGN(TensorRequest request, RequestOf(file, destination));
    const Status signs = CheckSigns(tensors[request.tensor]);
    if (!signs.ok()) {
      return Status(signs).In(Quote(file->names[destination.tensor]));
    }
    requests.push_back(std::move(request));
  }
  HAULWAY_TRY(
      haulway::LoadTensors(*file->checkpoint, requests, options).status());
  for (const TensorRequest& request : requests) {
    const TensorInfo& tensor = tensors[request.tensor];
    haulway::ResolveSigns(SignsOf(tensor), tensor.dtype, request.out);
  }
  return Status();
}

// Requires: the source has a name.
Result<haulway::TensorToWrite> TensorOf(const haulway_source& source) {
  constexpr size_t kMostRank = haulway::ParseLimits().max_rank;
  HAULWAY_TRY(Need(source.dtype, "dtype"));
  if (source.rank != 0) HAULWAY_TRY(Need(source.shape, "shape"));
  if (source.bytes != 0) HAULWAY_TRY(Need(source.memory, "memory"));
  const auto dtype = haulway::DTypeFromName(source.dtype);
  if (!dtype.has_value()) {
    return Status(Code::kInvalidArgument,
                  fmt::format("no dtype is called {}", Quote(source.dtype)));
  }
  if (source.rank > kMostRank) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("rank {}: expected at most {}", source.rank, kMostRank));
  }
  haulway::TensorToWrite tensor;
  tensor.name = source.name;
  tensor.dtype = *dtype;
  tensor.shape.assign(source.shape, source.shape + source.rank);
  tensor.bytes.length = source.bytes;
  tensor.bytes.bytes = static_cast<const std::byte*>(source.memory);
  return tensor;
}

}  // namespace

const char* haulway_last_error(void) { return LastError().c_str(); }

haulway_code haulway_open(const char* name, haulway_file** file) {
  return Call([&]() -> Status {
    HAULWAY_TRY(Need(file, "file"));
    *file = nullptr;
    auto opened = std::make_unique<haulway_file>();
    HAULWAY_ASSIGN(auto source, OpenUnmapped(name));
    HAULWAY_ASSIGN(opened->checkpoint, Checkpoint::Open(std::move(source)));
    opened->names.reserve(opened->checkpoint->entries().size());
    for (const haulway::Entry& entry : opened->checkpoint->entries()) {
      opened->names.push_back(NameOf(entry));
    }
    *file = opened.release();
    return Status();
  });
}

void haulway_close(haulway_file* file) { delete file; }

const char* haulway_format(const haulway_file* file) {
  if (file == nullptr) return "";
  // Names of formats are string literals, so they end in a NUL.
  return haulway::Name(file->checkpoint->index().format).data();
}

size_t haulway_count(const haulway_file* file) {
  return file == nullptr ? 0 : file->names.size();
}

haulway_code haulway_describe(const haulway_file* file, size_t number,
                              haulway_tensor* tensor) {
  return Call([&]() -> Status {
    HAULWAY_TRY(Need(tensor, "tensor"));
    HAULWAY_ASSIGN(const TensorInfo* const info, TensorOf(file, number));
    *tensor = {file->names[number].c_str(), haulway::Name(info->dtype).data(),
               info->shape.size(), info->shape.data(), info->nbytes};
    return Status();
  });
}

haulway_code haulway_find(haulway_file* file, const char* name,
                          size_t* number) {
  return Call([&]() -> Status {
    HAULWAY_TRY(Need(file, "file"));
    HAULWAY_TRY(Need(name, "name"));
    HAULWAY_TRY(Need(number, "number"));
    const auto& numbers = NumbersOf(file);
    const auto found = numbers.find(name);
    if (found == numbers.end()) {
      return Status(Code::kNotFound, fmt::format("no tensor {}", Quote(name)));
    }
    *number = found->second;
    return Status();
  });
}

haulway_code haulway_read(const haulway_file* file, size_t number, void* memory,
                          uint64_t bytes) {
  return haulway_read_slice(file, number, nullptr, memory, bytes);
}

haulway_code haulway_read_slice(const haulway_file* file, size_t number,
                                const haulway_range* slice, void* memory,
                                uint64_t bytes) {
  return Call([&] {
    const haulway_destination destination = {number, slice, memory, bytes};
    return Load(file, {&destination, 1}, {});
  });
}

haulway_code haulway_load_into(const haulway_file* file,
                               const haulway_destination* destinations,
                               size_t count, int threads, int verify) {
  return Call([&]() -> Status {
    if (count != 0) HAULWAY_TRY(Need(destinations, "destinations"));
    constexpr int kMostThreads = haulway::kMostThreads;
    if (threads < 0 || threads > kMostThreads) {
      return Status(
          Code::kInvalidArgument,
          fmt::format("threads {}: expected 0 to {}", threads, kMostThreads));
    }
    haulway::LoadOptions options;
    options.threads = threads;
    options.verify = verify != 0;
    return Load(file, {destinations, count}, options);
  });
}

haulway_code haulway_verify(const char* name) {
  return Call([&]() -> Status {
    HAULWAY_ASSIGN(auto source, OpenUnmapped(name));
    HAULWAY_ASSIGN(const haulway::VerifyReport report,
                   haulway::Verify(std::move(source)));
    if (report.ok) return Status();
    if (report.findings.empty()) {
      return Status(Code::kCorrupt, "the file is not sound").Of(name);
    }
    return Status(Code::kCorrupt, report.findings.front().message);
  });
}

haulway_code haulway_save(const char* name, const char* format,
                          const haulway_source* tensors, size_t count) {
  return Call([&]() -> Status {
    HAULWAY_TRY(Need(name, "name"));
    if (count != 0) HAULWAY_TRY(Need(tensors, "tensors"));
    haulway::TensorsToWrite all;
    for (const haulway_source& source : std::span(tensors, count)) {
      if (source.name == nullptr) {
        return Status(
            Code::kInvalidArgument,
            fmt::format("name of tensor {} is NULL", all.tensors.size()));
      }
      auto tensor = TensorOf(source);
      if (!tensor.ok()) {
        return std::move(tensor).status().In(Quote(source.name));
      }
      all.tensors.push_back(*std::move(tensor));
    }
    HAULWAY_ASSIGN(const haulway::Format to,
                   format == nullptr ? haulway::FormatToWrite(name)
                                     : haulway::FormatToWriteByName(format));
    haulway::SaveOptions options;
    options.path = name;
    HAULWAY_ASSIGN(const auto sink, haulway::OpenSink(name));
    return haulway::Save(std::move(all), to, *sink, options).status();
  });
}

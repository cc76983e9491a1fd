// Design: only the bytes that the slice needs are read (LoadTensors), and more
// than 1,000 elements are summarised, as in NumPy. A view can repeat a few
// stored bytes without limit, so the size of the result is limited. An npy file
// gets the elements or, for dtypes that NumPy lacks, their bits. A record of an
// archive is written unchanged.
//
// Alternative not taken: load the tensor and slice it in memory. That would
// read gigabytes for three numbers of an embedding. The elements are formatted
// here and not by a library, because Haulway prints bfloat16, float8 and
// complex32 as numbers.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "command.h"
#include "haulway/archive.h"
#include "haulway/load.h"
#include "haulway/nearest.h"
#include "haulway/open.h"
#include "haulway/save.h"
#include "haulway/select.h"
#include "haulway/signs.h"
#include "open_output.h"
#include "output.h"
#include "signature.h"
#include "tell.h"
#include "values.h"

namespace haulway::cli {
namespace {

struct CatOptions : Options {
  std::string tensor, slice, out;
  uint64_t head = 0;  // 0 for all.
  bool raw = false;
};

// As in NumPy, more elements than this are summarised.
constexpr uint64_t kMostElements = 1000;

// Limit for views that repeat stored bytes. A few bytes can ask for any size.
constexpr uint64_t kMostRepeated = 256 * kMiB;

// The requested part of a tensor, dense and in row-major order.
struct CatPart {
  DType dtype;
  std::vector<int64_t> shape;
  Buffer bytes;
};

// Returns the index of the fewest rows that contain the first `count` elements.
std::vector<IndexItem> HeadIndex(std::span<const int64_t> shape,
                                 uint64_t count) {
  std::vector<IndexItem> index(shape.size());
  uint64_t inner = 1;  // Number of elements in a row of dimension i.
  for (size_t i = shape.size(); i-- > 0;) {
    const auto size = static_cast<uint64_t>(shape[i]);
    const uint64_t rows = inner >= count ? 1 : (count - 1) / inner + 1;
    index[i].stop = static_cast<int64_t>(std::min(rows, size));
    // At most `count`, so that it cannot overflow.
    inner = rows <= size ? count : std::max<uint64_t>(size, 1) * inner;
  }
  return index;
}

// Reduces a part to its first elements, as one dimension.
void Cut(uint64_t count, CatPart* part) {
  const uint64_t item = ItemBytes(part->dtype);
  const uint64_t kept = std::min(count, part->bytes.size() / item);
  part->bytes = part->bytes.Slice(0, kept * item);
  part->shape = {static_cast<int64_t>(kept)};
}

// Reads the part of the tensor that the slice needs.
Result<CatPart> ReadPart(const Checkpoint& checkpoint, const TensorInfo& tensor,
                         Selection slice) {
  TensorRequest request;
  request.tensor =
      static_cast<uint32_t>(&tensor - checkpoint.index().tensors.data());
  request.slice = slice.slices;
  HAULWAY_ASSIGN(const uint64_t nbytes, RequestBytes(checkpoint, request));
  if (SignsOf(tensor).any() && !HasSigns(tensor.dtype)) {
    return Status(
        Code::kUnsupported,
        fmt::format("cannot change the sign of dtype {}", Name(tensor.dtype)));
  }
  const uint64_t stored = checkpoint.index().storages[tensor.storage].nbytes;
  if (nbytes > stored && nbytes - stored > kMostRepeated) {
    return Status(Code::kLimit,
                  fmt::format("tensor of {} bytes repeats a storage of {}",
                              nbytes, stored));
  }
  HAULWAY_ASSIGN(Buffer bytes, AllocateBuffer(nbytes));
  if (nbytes != 0) {
    request.out = bytes.mutable_bytes();
    HAULWAY_TRY(LoadTensors(checkpoint, std::span(&request, 1)).status());
    ResolveSigns(SignsOf(tensor), tensor.dtype, bytes.mutable_bytes());
  }
  return CatPart{tensor.dtype, slice.shape(), std::move(bytes)};
}

// Opens the output, which is written completely or not at all. An empty path is
// standard output.
Result<std::unique_ptr<ByteSink>> OpenOut(const std::string& path) {
  return OpenSink(path.empty() ? "-" : path, {.remote = Remote()});
}

// Writes an npy file. If NumPy lacks the dtype, writes the elements' bits.
Status WriteNpy(const std::string& path, const CatPart& part) {
  const DType bits = NumpyBits(part.dtype);
  if (bits != part.dtype) {
    Tell(fmt::format("haulway: NumPy has no {}: the bits are written as {}\n",
                     Name(part.dtype), Name(bits)));
  }
  TensorToWrite tensor{.name = "tensor", .dtype = bits, .shape = part.shape};
  const uint64_t item = ItemBytes(part.dtype);
  if (item != ItemBytes(bits)) {
    tensor.shape.push_back(static_cast<int64_t>(item / ItemBytes(bits)));
  }
  tensor.bytes = {.length = part.bytes.size(),
                  .bytes = part.bytes.data(),
                  .owner = part.bytes.owner()};
  TensorsToWrite tensors;
  tensors.tensors.push_back(std::move(tensor));
  HAULWAY_ASSIGN(const auto sink, OpenOut(path));
  return Save(std::move(tensors), Format::kNpy, *sink).status();
}

Status WriteAll(const std::string& path, std::span<const std::byte> bytes) {
  HAULWAY_ASSIGN(const auto sink, OpenOut(path));
  HAULWAY_TRY(sink->Begin(bytes.size()).status());
  HAULWAY_TRY(sink->WriteAt(0, bytes));
  return sink->Commit(bytes.size());
}

// Returns the bytes of a record of an archive, inflated and checked. Fails with
// kNotFound if there is no such record, or no archive.
Result<Buffer> ReadRecord(const CatOptions& options,
                          std::shared_ptr<const ByteSource> source) {
  ArchiveOptions archive;
  archive.strictness = options.open.strictness;
  const auto reader = ArchiveReader::Open(std::move(source), archive);
  if (!reader.ok()) return Status(Code::kNotFound, "no archive");
  return (*reader)->Read(options.tensor);
}

// `text` is the printed part, if it is not written to a file.
void PrintJson(const CatOptions& options, const CatPart& part,
               const std::string& text) {
  Json json;
  json.Begin('{').Key("file").Text(ShownName(options.files[0]));
  json.Key("name").Text(options.tensor);
  json.Key("dtype").Text(Name(part.dtype));
  json.Key("shape").Numbers(part.shape);
  if (options.out.empty()) {
    json.Key("text").Text(text);
  } else {
    json.Key("out").Text(ShownName(options.out));
    json.Key("bytes").Number(part.bytes.size());
  }
  json.End('}').Print();
}

// Sets `*is_usage` if the slice is wrong.
Status Run(const CatOptions& options, bool* is_usage) {
  HAULWAY_ASSIGN(auto source, OpenModel(options, options.files[0]));
  HAULWAY_ASSIGN(const auto checkpoint, OpenCheckpoint(source, options.open));
  HAULWAY_TRY(CompareSigned(SignatureScope::kAuto));
  const TensorInfo* tensor = checkpoint->Find(options.tensor);
  if (tensor == nullptr && options.raw) {
    auto record = ReadRecord(options, std::move(source));
    if (record.ok()) return WriteAll(options.out, record->bytes());
    if (record.status().code() != Code::kNotFound) {
      return std::move(record).status();
    }
  }
  if (tensor == nullptr) {
    return Status(
               Code::kNotFound,
               fmt::format("no tensor '{}'{}", Escape(options.tensor),
                           HintOf(options.tensor, checkpoint->entries(),
                                  [](const Entry& one) { return one.name; })))
        .Of(ShownName(options.files[0]));
  }
  if (tensor->storage == kNoStorage) {
    return Status(Code::kInvalidArgument,
                  fmt::format("tensor '{}' is on the meta device: it has no "
                              "data",
                              Escape(options.tensor)))
        .Of(ShownName(options.files[0]));
  }
  const auto select = [&]() -> Result<Selection> {
    if (options.head != 0) {
      return Select(HeadIndex(tensor->shape, options.head), tensor->shape);
    }
    HAULWAY_ASSIGN(const std::vector<IndexItem> index,
                   ParseIndex(options.slice.empty() ? "..." : options.slice));
    return Select(index, tensor->shape);
  };
  auto slice = select();
  if (!slice.ok()) {
    *is_usage = true;
    return std::move(slice)
        .status()
        .In(fmt::format("slice '{}'", Escape(options.slice)))
        .In(fmt::format("tensor '{}'", Escape(options.tensor)))
        .Of(ShownName(options.files[0]));
  }
  HAULWAY_ASSIGN(CatPart part,
                 ReadPart(*checkpoint, *tensor, std::move(*slice)));
  if (options.head != 0) Cut(options.head, &part);
  std::string text;
  if (options.out.ends_with(".npy")) {
    HAULWAY_TRY(WriteNpy(options.out, part));
  } else if (options.raw || !options.out.empty()) {
    HAULWAY_TRY(CheckOutput(options.out.empty() ? "-" : options.out));
    HAULWAY_TRY(WriteAll(options.out, part.bytes.bytes()));
  } else {
    text = FormatTensor(part.dtype, part.shape, part.bytes.bytes(),
                        std::max(kMostElements, options.head));
    if (!options.json) {
      text += '\n';
      return WriteAll("", std::as_bytes(std::span(text)));
    }
  }
  if (options.json) PrintJson(options, part, text);
  return Status();
}

int CatTensor(const CatOptions& options) {
  bool is_usage = false;
  const Status status = Run(options, &is_usage);
  if (status.ok()) return kDone;
  const int code = Fail(options, status);
  return is_usage ? kUsage : code;
}

Runner AddCat(CLI::App& app) {
  const auto options = MakeOptions<CatOptions>(app);
  AddModel(app, *options);
  AddSignature(app);
  AddDequantize(app, *options);
  app.add_option("TENSOR", options->tensor,
                 "Name of a tensor, as printed by ls")
      ->required();
  CLI::Option* slice = app.add_option(
      "--slice", options->slice, "Print this part, written as a NumPy slice");
  app.add_option("--head", options->head,
                 "Print only this many elements from the start")
      ->check(CheckPositive)
      ->excludes(slice);
  app.add_option(
      "--out", options->out,
      "Write to this file: as npy if it ends in .npy, otherwise raw bytes");
  RefuseJsonBeside(app, *options, options->out);
  app.add_flag("--raw", options->raw,
               "Write raw bytes to standard output; TENSOR may also be a "
               "record, such as data.pkl")
      ->excludes(app.get_option("--json"));
  AddAllow(app, *options);
  AddKey(app, *options);
  return {options, [options] { return CatTensor(*options); }};
}

}  // namespace

extern const Verb kCat = {
    "cat", "Print a tensor, or write it to a file",
    "haulway cat model.pt layer.0.weight --slice 0:4,:\n"
    "haulway cat model.pt layer.0.weight --head 10\n"
    "haulway cat model.pt layer.0.weight --out weight.npy\n"
    "haulway cat model.pt layer.0.weight --raw | sha256sum",
    AddCat};

}  // namespace haulway::cli

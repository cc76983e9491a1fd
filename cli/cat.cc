#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "command.h"
#include "haulway/archive.h"
#include "haulway/load_tensors.h"
#include "haulway/select.h"
#include "output.h"
#include "values.h"

namespace haulway::cli {
namespace {

struct CatOptions : Options {
  std::string tensor, slice, out;
  bool raw = false;
};

// More than this many elements are summarised, as NumPy does.
constexpr uint64_t kMostElements = 1000;

// A view may repeat what is stored, and a few bytes ask for any number; this
// many are taken for what they are.
constexpr uint64_t kMostRepeated = 256 * kMiB;

// The part of a tensor that was asked for, dense and in row-major order.
struct Part {
  DType dtype;
  std::vector<int64_t> shape;
  Buffer bytes;
};

bool IsComplex(DType dtype) {
  return dtype == DType::kC32 || dtype == DType::kC64 || dtype == DType::kC128;
}

bool IsInteger(DType dtype) {
  return (dtype >= DType::kI64 && dtype <= DType::kU8) ||
         dtype == DType::kQI8 || dtype == DType::kQU8 || dtype == DType::kQI32;
}

// Negates one number of this machine's byte order in place.
void Negate(std::span<std::byte> number, bool integer) {
  if (!integer) {
    number.back() ^= std::byte{0x80};
    return;
  }
  unsigned carry = 1;
  for (std::byte& byte : number) {
    const unsigned sum = std::to_integer<unsigned>(~byte) + carry;
    byte = static_cast<std::byte>(sum & 0xFF);
    carry = sum >> 8;
  }
}

// Makes the stored elements what PyTorch shows: its conjugate and negative
// views say so in the tensor, not in the bytes.
void ApplyViews(const TensorInfo& tensor, std::span<std::byte> bytes) {
  const bool complex = IsComplex(tensor.dtype);
  const size_t size = ItemBytes(tensor.dtype) / (complex ? 2 : 1);
  for (size_t i = 0; i < bytes.size() / size; ++i) {
    const bool conjugated = tensor.conjugate && complex && i % 2 == 1;
    if (conjugated != tensor.negative) {
      Negate(bytes.subspan(i * size, size), IsInteger(tensor.dtype));
    }
  }
}

// Reads only what the slice needs.
Result<Part> ReadPart(const Checkpoint& checkpoint, const TensorInfo& tensor,
                      Selection slice) {
  TensorRequest request;
  request.tensor =
      static_cast<uint32_t>(&tensor - checkpoint.index().tensors.data());
  request.slice = slice.slices;
  HAULWAY_ASSIGN(const uint64_t nbytes, RequestBytes(checkpoint, request));
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
    if (tensor.conjugate || tensor.negative) {
      ApplyViews(tensor, bytes.mutable_bytes());
    }
  }
  return Part{tensor.dtype, slice.shape(), std::move(bytes)};
}

// Format 1.0 of the npy file format: magic, header of a multiple of 64, data.
std::string NpyHeader(const Part& part) {
  std::string shape;
  for (const int64_t size : part.shape) shape += fmt::format("{},", size);
  std::string dict =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}",
                  NpyDescription(part.dtype), shape);
  constexpr size_t kBefore = 10;  // Magic, version, length.
  while ((kBefore + dict.size() + 1) % 64 != 0) dict += ' ';
  dict += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(dict.size() & 0xFF);
  header += static_cast<char>(dict.size() >> 8);
  return header + dict;
}

Status WriteAll(const std::string& path, std::string_view head,
                std::span<const std::byte> bytes) {
  const bool to_stdout = path.empty();
  const std::unique_ptr<FILE, int (*)(FILE*)> owned(
      to_stdout ? nullptr : std::fopen(path.c_str(), "wb"),
      [](FILE* file) { return file == nullptr ? 0 : std::fclose(file); });
  FILE* file = to_stdout ? stdout : owned.get();
  if (file == nullptr) {
    return Status::FromErrno(errno, fmt::format("cannot create '{}'", path));
  }
  if (std::fwrite(head.data(), 1, head.size(), file) != head.size() ||
      std::fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size() ||
      std::fflush(file) != 0) {
    return Status::FromErrno(
        errno,
        to_stdout ? "cannot write" : fmt::format("cannot write '{}'", path));
  }
  return Status();
}

// The bytes of a record of an archive, inflated and checked.
Status WriteRecord(const CatOptions& options,
                   std::shared_ptr<const ByteSource> source) {
  ArchiveOptions archive;
  archive.strictness = options.open.strictness;
  HAULWAY_ASSIGN(const auto reader,
                 ArchiveReader::Open(std::move(source), archive));
  HAULWAY_ASSIGN(const Buffer bytes, reader->Read(options.tensor));
  return WriteAll(options.out, "", bytes.bytes());
}

// `*is_usage` is set where it is the slice that is wrong.
Status Run(const CatOptions& options, bool* is_usage) {
  HAULWAY_ASSIGN(auto source, OpenInput(options.files[0]));
  HAULWAY_ASSIGN(const auto checkpoint, Checkpoint::Open(source, options.open));
  const TensorInfo* tensor = checkpoint->Find(options.tensor);
  if (tensor == nullptr && options.raw) {
    const Status status = WriteRecord(options, std::move(source));
    if (status.ok()) return Status();
  }
  if (tensor == nullptr) {
    return Status(Code::kNotFound,
                  fmt::format("no tensor '{}'", Escape(options.tensor)))
        .Of(options.files[0]);
  }
  if (tensor->storage == kNoStorage) {
    return Status(Code::kInvalidArgument,
                  fmt::format("tensor '{}' is on the meta device: it has no "
                              "data",
                              Escape(options.tensor)))
        .Of(options.files[0]);
  }
  const auto select = [&]() -> Result<Selection> {
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
        .Of(options.files[0]);
  }
  HAULWAY_ASSIGN(const Part part,
                 ReadPart(*checkpoint, *tensor, std::move(*slice)));
  const bool npy = options.out.ends_with(".npy");
  if (npy && NumpyLacks(part.dtype)) {
    fmt::print(stderr, "haulway: NumPy has no {}: the bits are written as {}\n",
               Name(part.dtype), NpyDescription(part.dtype));
  }
  if (options.raw || !options.out.empty()) {
    return WriteAll(options.out, npy ? NpyHeader(part) : "",
                    part.bytes.bytes());
  }
  const std::string text =
      FormatTensor(part.dtype, part.shape, part.bytes.bytes(), kMostElements);
  if (!options.json) return WriteAll("", text + "\n", {});
  Json json;
  json.Begin('{').Key("file").Text(options.files[0]);
  json.Key("name").Text(options.tensor);
  json.Key("dtype").Text(Name(part.dtype));
  json.Key("shape").Numbers(part.shape);
  json.Key("text").Text(text).End('}').Print();
  return Status();
}

int CatTensor(const CatOptions& options) {
  bool is_usage = false;
  const Status status = Run(options, &is_usage);
  if (status.ok()) return kDone;
  const int code = Fail(options, status);
  return is_usage ? kUsage : code;
}

Runner Add(CLI::App& app) {
  const auto options = MakeOptions<CatOptions>(app);
  AddFile(app, *options);
  app.add_option("TENSOR", options->tensor, "A name as ls prints it")
      ->required();
  app.add_option("--slice", options->slice, "Part of it, as NumPy slices");
  app.add_option("--out", options->out,
                 "A file to write: .npy, or anything else for raw bytes");
  app.add_flag("--raw", options->raw,
               "Raw bytes to standard output; also of a record: data.pkl");
  AddAllow(app, *options);
  AddKey(app, *options);
  return {options, [options] { return CatTensor(*options); }};
}

}  // namespace

extern const Verb kCat = {
    "cat", "Print a tensor, or write it to a file",
    "haulway cat model.pt layer.0.weight --slice 0:4,:\n"
    "haulway cat model.pt layer.0.weight --out weight.npy\n"
    "haulway cat model.pt layer.0.weight --raw | sha256sum",
    Add};

}  // namespace haulway::cli

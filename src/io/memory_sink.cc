#include <algorithm>
#include <cstring>
#include <utility>

#include "haulway/sink.h"

namespace haulway {

namespace {

class FunctionSink : public ByteSink {
 public:
  FunctionSink(WriteFunction write, std::string name)
      : write_(std::move(write)), name_(std::move(name)) {}

  std::string_view name() const override { return name_; }
  Result<SinkTraits> Begin(std::optional<uint64_t>) override {
    if (!write_) {
      return Status(Code::kInvalidArgument, "function that writes is null");
    }
    return SinkTraits{.ordered = true};
  }
  Status WriteAt(uint64_t,
                 std::span<const std::span<const std::byte>> parts) override {
    for (const auto part : parts) {
      if (!part.empty()) HAULWAY_TRY(write_(part));
    }
    return Status();
  }
  Status Commit(uint64_t) override { return Status(); }

 private:
  const WriteFunction write_;
  const std::string name_;
};

class MemorySink : public ByteSink {
 public:
  MemorySink(std::string* out, std::string name)
      : out_(out), name_(std::move(name)) {}

  std::string_view name() const override { return name_; }
  Result<SinkTraits> Begin(std::optional<uint64_t> size) override {
    if (out_ == nullptr) {
      return Status(Code::kInvalidArgument, "string to write to is null");
    }
    if (size.has_value()) bytes_.reserve(*size);
    return SinkTraits{.ordered = true};
  }
  Status WriteAt(uint64_t,
                 std::span<const std::span<const std::byte>> parts) override {
    for (const auto part : parts) {
      bytes_.append(reinterpret_cast<const char*>(part.data()), part.size());
    }
    return Status();
  }
  Status Commit(uint64_t size) override {
    bytes_.resize(size, '\0');
    *out_ = std::move(bytes_);
    return Status();
  }

 private:
  std::string* const out_;
  const std::string name_;
  std::string bytes_;
};

}  // namespace

Status ByteSink::CopyAt(uint64_t, const FileBytes&, uint64_t) {
  return Status(Code::kUnsupported, "only a file is copied to");
}

Status ByteSink::Prepare(uint64_t) { return Status(); }

std::unique_ptr<ByteSink> MakeFunctionSink(WriteFunction write,
                                           std::string name) {
  return std::make_unique<FunctionSink>(std::move(write), std::move(name));
}

std::unique_ptr<ByteSink> MakeMemorySink(std::string* out, std::string name) {
  return std::make_unique<MemorySink>(out, std::move(name));
}

}  // namespace haulway

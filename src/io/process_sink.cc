#include "io/process_sink.h"

#include <unistd.h>

#include <utility>

namespace haulway {

namespace {

class ProcessSink : public ByteSink {
 public:
  explicit ProcessSink(std::unique_ptr<ByteSink> sink)
      : sink_(std::move(sink)) {}
  ~ProcessSink() override {
    // Its destructor would wait for threads that are not in this process.
    if (!IsOwner()) (void)sink_.release();
  }

  std::string_view name() const override { return sink_->name(); }
  Result<SinkTraits> Begin(std::optional<uint64_t> size) override {
    HAULWAY_TRY(Check());
    return sink_->Begin(size);
  }
  Status WriteAt(uint64_t offset,
                 std::span<const std::span<const std::byte>> parts) override {
    HAULWAY_TRY(Check());
    return sink_->WriteAt(offset, parts);
  }
  Status CopyAt(uint64_t offset, const FileBytes& from,
                uint64_t length) override {
    HAULWAY_TRY(Check());
    return sink_->CopyAt(offset, from, length);
  }
  uint64_t direct_bytes() const override { return sink_->direct_bytes(); }
  Status Commit(uint64_t size) override {
    HAULWAY_TRY(Check());
    return sink_->Commit(size);
  }
  Status Prepare(uint64_t size) override {
    HAULWAY_TRY(Check());
    return sink_->Prepare(size);
  }

 private:
  bool IsOwner() const { return owner_ == ::getpid(); }
  Status Check() const {
    if (IsOwner()) return Status();
    return Status(Code::kInvalidArgument,
                  "only the process that began to write can go on");
  }

  std::unique_ptr<ByteSink> sink_;
  const pid_t owner_ = ::getpid();
};

}  // namespace

std::unique_ptr<ByteSink> MakeProcessSink(std::unique_ptr<ByteSink> sink) {
  return std::make_unique<ProcessSink>(std::move(sink));
}

}  // namespace haulway

#include "signing/compared_source.h"

#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <utility>

#include "base/checked.h"
#include "base/text.h"
#include "signing/openssl.h"

namespace haulway::signing {

namespace {

// Smaller files are compared as soon as they are read, even for parsing.
constexpr uint64_t kSmallBytes = 1 * kMiB;

}  // namespace

class ComparedSource : public ByteSource {
 public:
  ComparedSource(std::shared_ptr<ComparedModel> model, ComparedFile* file,
                 std::shared_ptr<const ByteSource> source)
      : model_(std::move(model)), file_(file), source_(std::move(source)) {}

  std::string_view name() const override { return source_->name(); }
  uint64_t size() const override { return source_->size(); }

  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    const ReadRequest request{offset, out};
    return ReadMany(std::span(&request, 1));
  }

  Status ReadMany(std::span<const ReadRequest> requests) const override {
    std::vector<ByteRange> ranges;
    for (const ReadRequest& request : requests) {
      if (!RangeFits(request.offset, request.out.size(), size())) {
        return Status(Code::kTruncated, "read ends past the source")
            .At(request.offset);
      }
      ranges.push_back({request.offset, request.out.size()});
    }
    if (CopyCompared(requests)) return Status();
    if (model_->is_parsing() && size() > kSmallBytes) {
      HAULWAY_TRY(source_->ReadMany(requests));
      NoteParsed(requests);
      return Status();
    }
    do {  // Another thread may let go of the memory between the two.
      HAULWAY_TRY(Authenticate(ranges));
    } while (!CopyCompared(requests));
    return Status();
  }

  std::optional<Buffer> View(uint64_t offset, uint64_t length) const override {
    auto view = ComparedView(offset, length);
    if (view.has_value() || model_->is_parsing()) return view;
    const ByteRange range{offset, length};
    if (!Authenticate(std::span(&range, 1)).ok()) return std::nullopt;
    return ComparedView(offset, length);
  }

  SourceTraits Look(std::span<const ByteRange>) const override {
    SourceTraits traits;
    traits.views = true;
    traits.resident = 1;
    return traits;
  }

  std::optional<RemoteStats> remote_stats() const override {
    return source_->remote_stats();
  }

  Result<std::shared_ptr<const ByteSource>> Reopen(IoMode io) const override {
    if (io == IoMode::kMmap) {
      return Status(Code::kUnsupported,
                    "a mapping of a signed file may change after it was "
                    "compared: expected another io than mmap")
          .Of(name());
    }
    HAULWAY_ASSIGN(auto again, source_->Reopen(io));
    return MakeComparedSource(model_, file_, std::move(again));
  }

  Status Authenticate(std::span<const ByteRange> ranges) const override {
    const ComparedModel::Wanted wanted{file_, {ranges.begin(), ranges.end()}};
    return model_->CompareRanges(std::span(&wanted, 1), {});
  }

  std::shared_ptr<const void> BeginParsing() const override {
    return model_->BeginParsing();
  }

  Result<std::shared_ptr<const ByteSource>> OpenNeighbour(
      std::string_view name) const override {
    HAULWAY_ASSIGN(auto neighbour, source_->OpenNeighbour(name));
    const auto folder = std::filesystem::path(file_->name()).parent_path();
    return model_->WrapNamed(
        std::move(neighbour),
        (folder / name).lexically_normal().generic_string());
  }

 private:
  std::optional<Buffer> ComparedView(uint64_t offset, uint64_t length) const {
    if (!RangeFits(offset, length, size())) return std::nullopt;
    const std::lock_guard lock(file_->mutex_);
    const std::shared_ptr<ComparedFile::Held> held = file_->last_held_.lock();
    if (length == 0) return Buffer(held, {}, /*writable=*/true);
    if (held == nullptr || !file_->failure_.ok() ||
        !model_->HasCompared(*held, {offset, length})) {
      return std::nullopt;
    }
    return Buffer(held,
                  held->memory.buffer().mutable_bytes().subspan(offset, length),
                  /*writable=*/true);
  }

  // Copies the bytes if all of them are compared and in memory.
  bool CopyCompared(std::span<const ReadRequest> requests) const {
    for (const ReadRequest& request : requests) {
      if (request.out.empty()) continue;
      const auto view = ComparedView(request.offset, request.out.size());
      if (!view.has_value()) return false;
      std::memcpy(request.out.data(), view->data(), request.out.size());
    }
    return true;
  }

  // Remembers what was parsed, to compare it with the same bytes later.
  void NoteParsed(std::span<const ReadRequest> requests) const {
    const std::lock_guard lock(file_->mutex_);
    for (const ReadRequest& request : requests) {
      const std::string_view bytes(
          reinterpret_cast<const char*>(request.out.data()),
          request.out.size());
      file_->parsed_.push_back(
          {request.offset, request.out.size(), Sha256Of(bytes)});
    }
  }

  const std::shared_ptr<ComparedModel> model_;
  ComparedFile* const file_;
  const std::shared_ptr<const ByteSource> source_;
};

std::shared_ptr<const ByteSource> MakeComparedSource(
    std::shared_ptr<ComparedModel> model, ComparedFile* file,
    std::shared_ptr<const ByteSource> source) {
  return std::make_shared<ComparedSource>(std::move(model), file,
                                          std::move(source));
}

}  // namespace haulway::signing

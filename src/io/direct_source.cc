#include <utility>

#include "io/direct_file.h"
#include "io/local_source.h"

namespace haulway {

namespace {

class DirectSource : public LocalSource {
 public:
  DirectSource(std::shared_ptr<const LocalFile> file,
               std::unique_ptr<DirectFile> direct)
      : LocalSource(std::move(file), IoMode::kDirect),
        direct_(std::move(direct)) {}

  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    HAULWAY_TRY(CheckRange(offset, out.size()));
    return direct_->Read(offset, out);
  }

 private:
  const std::unique_ptr<DirectFile> direct_;
};

}  // namespace

Result<std::shared_ptr<const ByteSource>> MakeDirectSource(
    std::shared_ptr<const LocalFile> file) {
  HAULWAY_ASSIGN(auto direct, DirectFile::Open(file));
  return std::shared_ptr<const ByteSource>(
      std::make_shared<const DirectSource>(std::move(file), std::move(direct)));
}

}  // namespace haulway

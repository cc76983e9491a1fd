#include "haulway/source.h"

#include <fmt/format.h>

#include <cerrno>

#include "base/sigbus_guard.h"
#include "base/text.h"
#include "haulway/fields.h"

namespace haulway {

std::string_view Name(IoMode io) { return WordOf(io); }

Status ByteSource::ReadMany(std::span<const ReadRequest> requests) const {
  for (const ReadRequest& request : requests) {
    HAULWAY_TRY(ReadAt(request.offset, request.out));
  }
  return Status();
}

std::optional<FileBytes> ByteSource::InFile(uint64_t, uint64_t) const {
  return std::nullopt;
}

std::optional<Buffer> ByteSource::View(uint64_t, uint64_t) const {
  return std::nullopt;
}

SourceTraits ByteSource::Look(std::span<const ByteRange>) const {
  SourceTraits traits;
  traits.views = View(0, size()).has_value();
  traits.resident = traits.views ? 1 : 0;
  return traits;
}

Result<std::shared_ptr<const ByteSource>> ByteSource::Reopen(IoMode io) const {
  return Status(Code::kUnsupported,
                fmt::format("not a local file, which reading by {} needs",
                            Name(io)))
      .Of(name());
}

Result<std::shared_ptr<const ByteSource>> ByteSource::Snapshot(
    std::span<const ByteRange>) const {
  return Status(Code::kUnsupported, "not a local file, which a snapshot needs")
      .Of(name());
}

std::optional<RemoteStats> ByteSource::remote_stats() const {
  return std::nullopt;
}

Status ByteSource::Prefetch(uint64_t, uint64_t) const { return Status(); }

Status ByteSource::Authenticate(std::span<const ByteRange>) const {
  return Status();
}

std::shared_ptr<const void> ByteSource::BeginParsing() const { return nullptr; }

void ByteSource::DropCache(uint64_t, uint64_t) const {}

Result<std::shared_ptr<const ByteSource>> ByteSource::OpenNeighbour(
    std::string_view) const {
  return Status(Code::kUnsupported, "no files lie beside this source")
      .Of(name());
}

Result<std::shared_ptr<const ByteSource>> ByteSource::OpenBase(
    std::string_view version, std::string_view base) const {
  return Status::FromErrno(
      ENOENT,
      fmt::format("cannot open version {}, on which version {} builds: it is "
                  "not beside that; name the checkpoint with the option base, "
                  "which load and convert have",
                  Quote(base), Quote(version)));
}

void InstallSigbusGuard() { CatchSigbus(); }

}  // namespace haulway

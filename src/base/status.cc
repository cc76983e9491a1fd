#include "haulway/status.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

namespace haulway {

std::string_view CodeName(Code code) {
  switch (code) {
    case Code::kOk:
      return "kOk";
    case Code::kInvalidArgument:
      return "kInvalidArgument";
    case Code::kNotFound:
      return "kNotFound";
    case Code::kPermissionDenied:
      return "kPermissionDenied";
    case Code::kUnavailable:
      return "kUnavailable";
    case Code::kTimeout:
      return "kTimeout";
    case Code::kIoError:
      return "kIoError";
    case Code::kTruncated:
      return "kTruncated";
    case Code::kCorrupt:
      return "kCorrupt";
    case Code::kMismatch:
      return "kMismatch";
    case Code::kUnsafe:
      return "kUnsafe";
    case Code::kLimit:
      return "kLimit";
    case Code::kAuth:
      return "kAuth";
    case Code::kUnsupported:
      return "kUnsupported";
    case Code::kCancelled:
      return "kCancelled";
    case Code::kInternal:
      return "kInternal";
    case Code::kSignature:
      return "kSignature";
  }
  return "kInternal";
}

Status::Status(Code code, std::string_view what)
    : rep_(new Rep{code, 0, std::nullopt, std::string(what)}) {
  assert(code != Code::kOk);
}

Status Status::FromErrno(int os_error, std::string_view what) {
  Code code = Code::kIoError;
  if (os_error == ENOENT || os_error == ENOTDIR) code = Code::kNotFound;
  if (os_error == EACCES || os_error == EPERM) code = Code::kPermissionDenied;
  if (os_error == ENOMEM) code = Code::kLimit;
  char text[128];
  Status status(
      code, fmt::format("{}: {} (errno {})", what,
                        strerror_r(os_error, text, sizeof(text)), os_error));
  status.rep_->os_error = os_error;
  return status;
}

Status::Status(const Status& other)
    : rep_(other.rep_ == nullptr ? nullptr : new Rep(*other.rep_)) {}

Status& Status::operator=(const Status& other) {
  if (this != &other) {
    rep_.reset(other.rep_ == nullptr ? nullptr : new Rep(*other.rep_));
  }
  return *this;
}

std::string_view Status::message() const {
  return rep_ == nullptr ? std::string_view() : rep_->message;
}

std::optional<uint64_t> Status::byte() const {
  return rep_ == nullptr ? std::nullopt : rep_->byte;
}

Status&& Status::At(uint64_t byte) && {
  if (rep_ != nullptr && !rep_->byte.has_value()) {
    rep_->byte = byte;
    rep_->message += fmt::format("; at byte {}", byte);
  }
  return std::move(*this);
}

Status&& Status::In(std::string_view part) && {
  if (rep_ == nullptr) return std::move(*this);
  // If two layers know the part, the message names it once.
  const std::string in = fmt::format("; in {}", part);
  if (!rep_->message.ends_with(in)) rep_->message += in;
  return std::move(*this);
}

Status&& Status::Of(std::string_view source) && {
  if (rep_ == nullptr) return std::move(*this);
  // If two layers know the source, the message names it once.
  const std::string of = fmt::format("; of {}", source);
  const std::string quoted = fmt::format("'{}'", source);
  if (!rep_->message.ends_with(of) &&
      rep_->message.find(of + ';') == std::string::npos &&
      rep_->message.find(quoted) == std::string::npos) {
    rep_->message += of;
  }
  return std::move(*this);
}

Status&& Status::Because(std::shared_ptr<void> cause) && {
  if (rep_ != nullptr) rep_->cause = std::move(cause);
  return std::move(*this);
}

std::shared_ptr<void> Status::cause() const {
  return rep_ == nullptr ? nullptr : rep_->cause;
}

}  // namespace haulway

#include "haulway/open.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/no_memory.h"
#include "base/text.h"

namespace haulway {

namespace {

using SourcePtr = std::shared_ptr<const ByteSource>;
using SinkPtr = std::unique_ptr<ByteSink>;

constexpr std::string_view kStream = "-";

// A scheme is a kind of name, and how what it names is opened; null where that
// is to come.
struct Scheme {
  std::string_view name;
  Result<SourcePtr> (*open_source)(std::string_view uri,
                                   const SourceOptions& options);
  Result<SinkPtr> (*open_sink)(std::string_view uri,
                               const FileSinkOptions& options);
};

std::optional<unsigned> HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

// The path of a file:// URI (RFC 8089).
Result<std::string> PathOfUri(std::string_view uri) {
  const auto wrong = [&](std::string_view why) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{} {}: expected file:///PATH", Quote(uri), why));
  };
  std::string_view rest = uri.substr(uri.find("://") + 3);
  const size_t slash = rest.find('/');
  const std::string_view host = rest.substr(0, slash);
  if (!host.empty() && host != "localhost") return wrong("names a host");
  if (slash == rest.npos) return wrong("has no path");
  rest = rest.substr(slash);
  std::string path;
  for (size_t i = 0; i < rest.size(); ++i) {
    if (rest[i] != '%') {
      path += rest[i];
      continue;
    }
    const auto high =
        i + 2 < rest.size() ? HexDigit(rest[i + 1]) : std::nullopt;
    const auto low = i + 2 < rest.size() ? HexDigit(rest[i + 2]) : std::nullopt;
    if (!high.has_value() || !low.has_value()) {
      return wrong("has a % without two hexadecimal digits");
    }
    path += static_cast<char>(*high * 16 + *low);
    i += 2;
  }
  return path;
}

// All that can be read from a descriptor.
Result<SourcePtr> ReadStream(int fd, std::string name) {
  constexpr size_t kAtATime = size_t{1} << 20;
  const auto bytes = std::make_shared<std::vector<std::byte>>();
  size_t size = 0;
  while (true) {
    if (bytes->size() - size < kAtATime) {
      bytes->resize(std::max(bytes->size() * 2, 2 * kAtATime));
    }
    const ssize_t got = ::read(fd, bytes->data() + size, kAtATime);
    if (got == 0) break;
    if (got > 0) {
      size += static_cast<size_t>(got);
    } else if (errno != EINTR) {
      return Status::FromErrno(errno, fmt::format("cannot read {}", name));
    }
  }
  const std::span<std::byte> read = std::span(*bytes).first(size);
  return MakeBufferSource(Buffer(bytes, read, /*writable=*/true),
                          std::move(name));
}

// The number in a name of one of this process's descriptors, if it is no file:
// a pipe has to be read where it stands.
std::optional<int> StreamOfPath(std::string_view path) {
  int fd = -1;
  if (path == "/dev/stdin") fd = STDIN_FILENO;
  for (const std::string_view prefix : {"/dev/fd/", "/proc/self/fd/"}) {
    if (!path.starts_with(prefix)) continue;
    const char* const end = path.data() + path.size();
    const auto [rest, error] =
        std::from_chars(path.data() + prefix.size(), end, fd);
    if (error != std::errc() || rest != end) fd = -1;
  }
  struct stat facts;
  if (fd < 0 || ::fstat(fd, &facts) != 0) return std::nullopt;
  if (S_ISREG(facts.st_mode) || S_ISDIR(facts.st_mode)) return std::nullopt;
  return fd;
}

Result<SourcePtr> OpenPath(std::string path, const SourceOptions& options) {
  if (const auto fd = StreamOfPath(path)) {
    return ReadStream(*fd, std::move(path));
  }
  if (IsFolder(path)) {
    HAULWAY_ASSIGN(path, FindCheckpoint(path));
  }
  if (options.io == IoMode::kMmap) return OpenMmapSource(std::move(path));
  HAULWAY_ASSIGN(const SourcePtr source, OpenFileSource(std::move(path)));
  if (options.io == IoMode::kPread || options.io == IoMode::kAuto) {
    return source;
  }
  return source->Reopen(options.io);
}

Result<SourcePtr> OpenFileUri(std::string_view uri,
                              const SourceOptions& options) {
  HAULWAY_ASSIGN(std::string path, PathOfUri(uri));
  return OpenPath(std::move(path), options);
}

Result<SinkPtr> OpenFileUriSink(std::string_view uri,
                                const FileSinkOptions& options) {
  HAULWAY_ASSIGN(std::string path, PathOfUri(uri));
  return OpenFileSink(std::move(path), options);
}

Status WriteToOutput(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(STDOUT_FILENO, bytes.data(), bytes.size());
    if (wrote >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(wrote));
    } else if (errno != EINTR) {
      return Status::FromErrno(errno, "cannot write to standard output");
    }
  }
  return Status();
}

// All schemes. A new one is a row.
constexpr Scheme kSchemes[] = {
    {"file", OpenFileUri, OpenFileUriSink},
    {"http", nullptr, nullptr},
    {"https", nullptr, nullptr},
    {"s3", nullptr, nullptr},
    {"redis", nullptr, nullptr},
    {"rediss", nullptr, nullptr},
    {"hf", nullptr, nullptr},
};

// The scheme that a name begins with, in lower case; empty for a path.
std::string SchemeOf(std::string_view uri) {
  const size_t end = uri.find("://");
  if (end == uri.npos || end == 0) return {};
  std::string scheme;
  for (const char c : uri.substr(0, end)) {
    const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    const bool is_letter = lower >= 'a' && lower <= 'z';
    const bool is_other =
        (c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.';
    if (!is_letter && (!is_other || scheme.empty())) return {};  // RFC 3986.
    scheme += lower;
  }
  return scheme;
}

// The row of a name, null for a path. The rest of the name may hold what is
// not for messages.
Result<const Scheme*> FindScheme(std::string_view uri) {
  const std::string name = SchemeOf(uri);
  if (name.empty()) return nullptr;
  std::string served;
  for (const Scheme& scheme : kSchemes) {
    const bool is_served = scheme.open_source != nullptr;
    if (is_served) served += fmt::format("{}://, ", scheme.name);
    if (scheme.name == name && is_served) return &scheme;
  }
  const bool is_known =
      std::ranges::find(kSchemes, name, &Scheme::name) != std::end(kSchemes);
  return Status(
      Code::kUnsupported,
      fmt::format("{}:// is not {}: expected {}a path, or '-'", Escape(name),
                  is_known ? "supported yet" : "known", served));
}

}  // namespace

Result<SourcePtr> OpenSource(std::string_view uri,
                             const SourceOptions& options) {
  return OrNoMemory([&]() -> Result<SourcePtr> {
    if (uri == kStream) return ReadStream(STDIN_FILENO, "standard input");
    HAULWAY_ASSIGN(const Scheme* scheme, FindScheme(uri));
    if (scheme != nullptr) return scheme->open_source(uri, options);
    return OpenPath(std::string(uri), options);
  });
}

Result<SinkPtr> OpenSink(std::string_view uri, const FileSinkOptions& options) {
  return OrNoMemory([&]() -> Result<SinkPtr> {
    if (uri == kStream) {
      return MakeFunctionSink(WriteToOutput, "standard output");
    }
    HAULWAY_ASSIGN(const Scheme* scheme, FindScheme(uri));
    if (scheme != nullptr) return scheme->open_sink(uri, options);
    return OpenFileSink(std::string(uri), options);
  });
}

}  // namespace haulway

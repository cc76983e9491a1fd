// Design: a name is a URI with a scheme, or a path. A table has a row per
// scheme, with functions to open a source and a sink and, if the scheme has
// folders, to list them. A folder leads to the file that opens it. A pipe or
// descriptor is read to its end, because formats are read by ranges. Messages
// show only the public part of a URL.
//
// Alternatives not taken: registering schemes from their own modules needs code
// before main(). Guessing whether `a:b` is a scheme could hide a file with that
// name, so only "://" makes a scheme. For a scheme without a row, the message
// lists the known schemes instead of "no such file".

#include "haulway/open.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/ascii.h"
#include "base/no_memory.h"
#include "base/text.h"
#include "checkpoint/choose_model.h"
#include "checkpoint/dcp_shards.h"
#include "checkpoint/folder.h"
#include "checkpoint/folder_list.h"
#include "checkpoint/format_registry.h"
#include "checkpoint/interrupted_update.h"
#include "checkpoint/sharded_index.h"
#include "checkpoint/signed_model.h"
#include "checkpoint/source_list.h"
#include "checkpoint/version_source.h"
#include "delta/version_facts.h"
#include "haulway/folder.h"
#include "haulway/options.h"
#include "io/cached_source.h"
#include "io/local_source.h"
#include "io/model_names.h"
#include "io/name_watch.h"
#include "net/http_source.h"
#include "net/hub.h"
#include "net/url.h"
#include "redis/redis.h"
#include "s3/s3_list.h"
#include "s3/s3_remove.h"

namespace haulway {

namespace {

using SourcePtr = std::shared_ptr<const ByteSource>;
using SinkPtr = std::unique_ptr<ByteSink>;

constexpr std::string_view kStream = "-";
// How often a folder's files are opened that saves replace meanwhile.
constexpr int kMostOpenings = 10;
// How often a wait for a pipe checks for cancellation.
constexpr int kTickMs = 50;

// A kind of name, and how to open it.
struct Scheme {
  std::string_view name;
  Result<SourcePtr> (*open_source)(std::string_view uri,
                                   const SourceOptions& options);
  Result<SinkPtr> (*open_sink)(std::string_view uri,
                               const SinkOptions& options);
  // Only for schemes with folders.
  bool (*is_folder)(std::string_view uri) = nullptr;
  FolderLister list = nullptr;
  // Lists a folder and its subfolders page by page. If null, `list` returns one
  // page.
  Result<std::unique_ptr<FolderPages>> (*pages)(
      std::string_view uri, const RemoteOptions& remote) = nullptr;
  // Returns the only format that is written there, if there is only one.
  std::optional<Format> (*only_format)(std::string_view uri) = nullptr;
  Status (*remove)(std::span<const std::string> uris,
                   const RemoteOptions& remote) = nullptr;
  // Lists a folder and its subfolders with sizes.
  Result<std::vector<ListedFile>> (*sizes)(
      std::string_view uri, const RemoteOptions& remote) = nullptr;
};

// Returns the path of a file:// URI (RFC 8089).
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
    const auto code = PercentCode(rest.substr(i));
    if (!code.has_value()) {
      return wrong("has a % without two hexadecimal digits");
    }
    path += *code;
    i += 2;
  }
  return path;
}

// Reads a descriptor to its end.
Result<SourcePtr> ReadStream(int fd, std::string name) {
  constexpr size_t kAtATime = size_t{1} << 20;
  const auto bytes = std::make_shared<std::vector<std::byte>>();
  size_t size = 0;
  while (true) {
    if (bytes->size() - size < kAtATime) {
      bytes->resize(std::max(bytes->size() * 2, 2 * kAtATime));
    }
    pollfd one{fd, POLLIN, 0};
    while (::poll(&one, 1, kTickMs) <= 0) {
      if (!CancelScope::IsCancelled()) continue;
      return Status(Code::kCancelled,
                    fmt::format("waiting for {} was cancelled", name));
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

// Returns the descriptor that a name refers to, if it is one of this process
// and not a file: a pipe must be read through the descriptor itself.
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
  if (const auto fd = StreamOfPath(path); fd && !options.write_through) {
    return ReadStream(*fd, std::move(path));
  }
  if (options.io == IoMode::kMmap) {
    return options.write_through ? OpenSharedMapping(std::move(path))
                                 : OpenMmapSource(std::move(path));
  }
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
                                const SinkOptions& options) {
  HAULWAY_ASSIGN(std::string path, PathOfUri(uri));
  return OpenFileSink(std::move(path), options.file);
}

bool IsPathOfFolder(std::string_view path) {
  std::error_code ignored;
  return std::filesystem::is_directory(std::filesystem::path(path), ignored);
}

bool IsUriOfFolder(std::string_view uri) {
  const auto path = PathOfUri(uri);
  return path.ok() && IsPathOfFolder(*path);
}

Result<std::vector<std::string>> ListFileUri(std::string_view uri, Depth depth,
                                             const RemoteOptions& remote) {
  HAULWAY_ASSIGN(const std::string path, PathOfUri(uri));
  return ListPath(path, depth, remote);
}

Status HasNoVariants(std::string_view uri) {
  return Status(Code::kInvalidArgument,
                "a variant is chosen in a folder, and this is a file")
      .Of(ShownName(uri));
}

Result<SourcePtr> OpenHttp(std::string_view uri, const SourceOptions& options) {
  const auto url = net::ParseUrl(uri);
  if (url.ok() && !url->path.ends_with('/') && !options.variant.empty()) {
    return HasNoVariants(uri);
  }
  return net::OpenUrl(uri, options.remote, options.variant);
}

Result<SinkPtr> ReadOnly(std::string_view uri, const SinkOptions&) {
  return Status(Code::kUnsupported,
                fmt::format("{}:// can be read, not written to",
                            uri.substr(0, uri.find("://"))));
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

std::string FromEnvironment(std::string_view name) {
  const char* const value = ::secure_getenv(std::string(name).c_str());
  return value == nullptr ? "" : value;
}

// Returns whether a file is an index some of whose files are not there.
bool LacksShards(const ByteSource& source) {
  const ParseLimits limits;
  if (!IsIndexName(source.name()) || source.size() > limits.max_header_bytes) {
    return false;
  }
  const auto json = AllocateBuffer(source.size());
  if (!json.ok() || !source.ReadAt(0, json->mutable_bytes()).ok()) return false;
  const auto index =
      ParseShardedIndex(json->bytes(), Strictness::kLenient, limits);
  if (!index.ok()) return false;
  return std::ranges::any_of(index->files, [&](const std::string& file) {
    return source.OpenNeighbour(file).status().code() == Code::kNotFound;
  });
}

// Opens a file of the hub. A file in the hub library's cache is not fetched
// again. The library's downloads may have ended between an index and its
// shards.
Result<SourcePtr> OpenHub(std::string_view uri, const SourceOptions& options) {
  HAULWAY_ASSIGN(const net::HubName name, net::ParseHubName(uri));
  const std::string& variant = options.variant;
  if (!name.path.empty() && !variant.empty()) return HasNoVariants(uri);
  if (auto path = net::FindInHubCache(name, FromEnvironment, variant)) {
    HAULWAY_ASSIGN(SourcePtr source, OpenSource(*path, options));
    if (net::IsHubOffline(FromEnvironment) || !LacksShards(*source)) {
      return source;
    }
  }
  return net::OpenHubFile(name, FromEnvironment, options.remote, variant);
}

// The server of a redis name without a host.
std::string RedisServer() { return FromEnvironment("REDIS_URL"); }

redis::ConnectOptions ForRedis(const RemoteOptions& remote) {
  return {.connect_timeout = remote.connect_timeout,
          .stall_timeout = remote.stall_timeout,
          .deadline = remote.deadline,
          .ca_file = remote.ca_file,
          .ca_dir = remote.ca_dir,
          .client_certificate = remote.client_certificate,
          .client_key = remote.client_key,
          .insecure = remote.insecure};
}

Result<SourcePtr> OpenRedis(std::string_view uri,
                            const SourceOptions& options) {
  return redis::OpenSource(uri, RedisServer(), ForRedis(options.remote));
}

Result<SinkPtr> OpenRedisSink(std::string_view uri,
                              const SinkOptions& options) {
  return redis::OpenSink(uri, RedisServer(), options.file,
                         ForRedis(options.remote));
}

Result<SourcePtr> OpenS3Object(std::string_view uri,
                               const SourceOptions& options) {
  return OpenS3Source(uri, {}, options.remote);
}

Result<SinkPtr> OpenS3(std::string_view uri, const SinkOptions& options) {
  return OpenS3Sink(uri, {}, options.file, options.remote);
}

Result<std::vector<std::string>> ListS3(std::string_view uri, Depth depth,
                                        const RemoteOptions& remote) {
  HAULWAY_ASSIGN(std::vector<s3::ListedObject> objects,
                 s3::ListObjects(uri, depth == Depth::kRecursive, {}, remote));
  std::vector<std::string> names;
  for (auto& object : objects) names.push_back(std::move(object.name));
  return names;
}

Result<std::vector<ListedFile>> SizesInS3(std::string_view uri,
                                          const RemoteOptions& remote) {
  HAULWAY_ASSIGN(std::vector<s3::ListedObject> objects,
                 s3::ListObjects(uri, /*recursive=*/true, {}, remote));
  std::vector<ListedFile> files;
  for (auto& [name, bytes] : objects) files.push_back({std::move(name), bytes});
  return files;
}

Result<std::unique_ptr<FolderPages>> PagesOfS3(std::string_view uri,
                                               const RemoteOptions& remote) {
  return s3::OpenObjectPages(uri, /*recursive=*/true, {}, remote);
}

Status RemoveFromS3(std::span<const std::string> uris,
                    const RemoteOptions& remote) {
  return s3::RemoveObjects(uris, {}, remote);
}

// A listing as one page.
class OnePage : public FolderPages {
 public:
  explicit OnePage(std::vector<std::string> names) : names_(std::move(names)) {}
  Result<std::vector<std::string>> Next() override {
    return std::exchange(names_, {});
  }

 private:
  std::vector<std::string> names_;
};

std::optional<Format> FormatInRedis(std::string_view uri) {
  if (!redis::IsPrefix(uri)) return std::nullopt;
  return Format::kTensorizer;
}

// All schemes.
constexpr Scheme kSchemes[] = {
    {"file", OpenFileUri, OpenFileUriSink, IsUriOfFolder, ListFileUri},
    {"http", OpenHttp, ReadOnly},
    {"https", OpenHttp, ReadOnly},
    {.name = "s3",
     .open_source = OpenS3Object,
     .open_sink = OpenS3,
     .is_folder = s3::IsFolderName,
     .list = ListS3,
     .pages = PagesOfS3,
     .remove = RemoveFromS3,
     .sizes = SizesInS3},
    {.name = "redis",
     .open_source = OpenRedis,
     .open_sink = OpenRedisSink,
     .only_format = FormatInRedis},
    {.name = "rediss",
     .open_source = OpenRedis,
     .open_sink = OpenRedisSink,
     .only_format = FormatInRedis},
    {.name = "redis+unix",
     .open_source = OpenRedis,
     .open_sink = OpenRedisSink,
     .only_format = FormatInRedis},
    {"hf", OpenHub, ReadOnly},
};

// Returns the scheme of a name in lower case; empty for a path.
std::string SchemeOf(std::string_view uri) {
  const size_t end = uri.find("://");
  if (end == uri.npos || end == 0) return {};
  std::string scheme;
  for (const char c : uri.substr(0, end)) {
    const char lower = LowerCase(c);
    const bool is_letter = lower >= 'a' && lower <= 'z';
    const bool is_other =
        (c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.';
    if (!is_letter && (!is_other || scheme.empty())) return {};  // RFC 3986.
    scheme += lower;
  }
  return scheme;
}

// Returns the row for a name, null for a path. Messages omit the rest of the
// name, because it may contain secrets.
Result<const Scheme*> FindScheme(std::string_view uri) {
  const std::string name = SchemeOf(uri);
  if (name.empty()) return nullptr;
  std::string served;
  for (const Scheme& scheme : kSchemes) {
    served += fmt::format("{}://, ", scheme.name);
    if (scheme.name == name) return &scheme;
  }
  return Status(Code::kUnsupported,
                fmt::format("{}:// is not known: expected {}a path, or '-'",
                            Escape(name), served));
}

// Parameters of signed URLs that change with every signature: of AWS,
// CloudFront and Google, and of Azure, whose names are short.
constexpr std::string_view kSigning[] = {
    "X-Amz-",     "AWSAccessKeyId=", "X-Goog-", "GoogleAccessId=",
    "Signature=", "Expires=",        "Policy=", "Key-Pair-Id="};
constexpr std::string_view kSigningAzure[] = {
    "sig=", "st=", "se=", "skt=", "ske="};

// Returns a name without signatures and credentials.
std::string CacheKey(std::string_view uri) {
  std::string key = ShownName(uri);
  const size_t query = uri.find('?');
  if (query == uri.npos) return key;
  std::string_view rest = uri.substr(query + 1);
  rest = rest.substr(0, rest.find('#'));
  const bool is_azure =
      rest.find("sig=") != rest.npos && rest.find("sv=") != rest.npos;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('&'), rest.size());
    const std::string_view pair = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const auto begins = [&](std::string_view name) {
      return pair.starts_with(name);
    };
    const bool signs = std::ranges::any_of(kSigning, begins) ||
                       (is_azure && std::ranges::any_of(kSigningAzure, begins));
    if (!signs) key += fmt::format("\n{}", pair);
  }
  return key;
}

}  // namespace

std::optional<Format> OnlyFormatOf(std::string_view uri) {
  const auto scheme = FindScheme(uri);
  if (!scheme.ok() || *scheme == nullptr) return std::nullopt;
  const auto only_format = (*scheme)->only_format;
  return only_format == nullptr ? std::nullopt : only_format(uri);
}

std::optional<std::string> LocalPath(std::string_view name) {
  const auto scheme = FindScheme(name);
  if (!scheme.ok()) return std::nullopt;
  if (*scheme == nullptr) return std::string(name);
  if ((*scheme)->open_source != OpenFileUri) return std::nullopt;
  auto path = PathOfUri(name);
  if (!path.ok()) return std::nullopt;
  return *std::move(path);
}

bool HasFolders(std::string_view name) {
  if (name == kStream) return false;
  const auto scheme = FindScheme(name);
  return scheme.ok() && (*scheme == nullptr || (*scheme)->list != nullptr);
}

bool IsFolder(std::string_view uri) {
  const auto scheme = FindScheme(uri);
  if (!scheme.ok()) return false;
  if (*scheme == nullptr) return IsPathOfFolder(uri);
  return (*scheme)->is_folder != nullptr && (*scheme)->is_folder(uri);
}

Result<std::vector<std::string>> ListFolder(std::string_view folder,
                                            Depth depth,
                                            const RemoteOptions& remote) {
  HAULWAY_ASSIGN(const Scheme* scheme, FindScheme(folder));
  if (scheme == nullptr) return ListPath(folder, depth, remote);
  if (scheme->list == nullptr) {
    return Status(Code::kUnsupported,
                  fmt::format("folders at {}:// URLs cannot be listed: "
                              "expected a local folder or an s3:// name",
                              scheme->name))
        .Of(ShownName(folder));
  }
  return scheme->list(folder, depth, remote);
}

Result<std::vector<ListedFile>> ListSizes(std::string_view uri,
                                          const RemoteOptions& remote) {
  return OrNoMemory([&]() -> Result<std::vector<ListedFile>> {
    HAULWAY_ASSIGN(const Scheme* scheme, FindScheme(uri));
    if (scheme == nullptr || scheme->sizes == nullptr) {
      return Status(Code::kUnsupported,
                    fmt::format("{} cannot be listed: expected a folder or an "
                                "s3:// name",
                                Quote(ShownName(uri))));
    }
    return scheme->sizes(uri, remote);
  });
}

Status RemoveFiles(std::span<const std::string> names,
                   const RemoteOptions& remote) {
  if (names.empty()) return Status();
  HAULWAY_ASSIGN(const Scheme* scheme, FindScheme(names.front()));
  if (scheme == nullptr || scheme->remove == nullptr) {
    return Status(Code::kUnsupported,
                  fmt::format("files of {} are not removed",
                              Quote(ShownName(names.front()))));
  }
  return scheme->remove(names, remote);
}

Result<std::unique_ptr<FolderPages>> OpenFolder(std::string_view folder,
                                                const RemoteOptions& remote) {
  return OrNoMemory([&]() -> Result<std::unique_ptr<FolderPages>> {
    HAULWAY_ASSIGN(const Scheme* scheme, FindScheme(folder));
    if (scheme != nullptr && scheme->pages != nullptr) {
      return scheme->pages(folder, remote);
    }
    HAULWAY_ASSIGN(std::vector<std::string> names,
                   ListFolder(folder, Depth::kRecursive, remote));
    return std::unique_ptr<FolderPages>(
        std::make_unique<OnePage>(std::move(names)));
  });
}

namespace {

// Returns the index of a checkpoint with the way to other versions, any other
// source as it is.
SourcePtr WithVersions(SourcePtr source, std::string_view uri,
                       const SourceOptions& options) {
  std::string_view name = source->name();
  name = name.substr(0, name.find_first_of("?#"));
  if (!IsIndexName(LastPart(name))) return source;
  // A folder's file was opened by its own name.
  if (IsFolder(uri)) return source;
  return MakeVersionSource(std::move(source), uri, options);
}

// Opens files that no file opens. Fails with kUnavailable if another save
// replaced one meanwhile: they may be of two saves.
Result<std::vector<SourcePtr>> OpenTogether(
    const std::vector<std::string>& files, const SourceOptions& options) {
  std::vector<SourcePtr> sources;
  std::vector<NameWatch> watches;
  for (const std::string& file : files) {
    HAULWAY_ASSIGN(SourcePtr source, OpenSource(file, options));
    watches.emplace_back(*source);
    sources.push_back(std::move(source));
  }
  if (std::ranges::all_of(watches, &NameWatch::IsSame)) return sources;
  return Status(Code::kUnavailable,
                "saves replaced the files while they were opened");
}

// Opens the checkpoint that a folder holds.
Result<SourcePtr> OpenFolder(std::string_view uri,
                             const SourceOptions& options) {
  SourceOptions of_file = options;
  of_file.variant.clear();
  for (int tries = 1;; ++tries) {
    HAULWAY_ASSIGN(const std::vector<std::string> files,
                   FindFiles(uri, options.remote, options.variant));
    const std::string_view last = LastPart(files.front());
    if (IsOfProcess(last)) {
      const std::string& name = files.front();
      return ListFolderFiles(IsDeepSpeedName(last) ? ranks::ListKind::kDeepSpeed
                                                   : ranks::ListKind::kTorch,
                             std::string(uri),
                             name.substr(0, name.size() - last.size()), files,
                             of_file);
    }
    if (files.size() == 1 && !IsNamedAsDcpShard(files.front())) {
      return OpenSource(files.front(), of_file);
    }
    auto sources = OpenTogether(files, of_file);
    if (sources.ok())
      return ListSourcesAs(std::string(uri), *std::move(sources));
    const Code code = sources.status().code();
    const bool is_replaced =
        code == Code::kUnavailable || code == Code::kNotFound;
    if (!is_replaced || tries == kMostOpenings) {
      return std::move(sources).status().Of(ShownName(uri));
    }
  }
}

Result<SourcePtr> OpenAny(std::string_view uri, const SourceOptions& options) {
  return OrNoMemory([&]() -> Result<SourcePtr> {
    if (uri == kStream && !options.variant.empty()) return HasNoVariants(uri);
    if (uri == kStream && !options.write_through) {
      HAULWAY_ASSIGN(SourcePtr input,
                     ReadStream(STDIN_FILENO, "standard input"));
      return ComparedWithSignature(std::move(input), uri, options);
    }
    if (const auto path = LocalPath(uri)) {
      HAULWAY_TRY(CheckNotInterrupted(*path));
    }
    if (IsFolder(uri)) return OpenFolder(uri, options);
    HAULWAY_ASSIGN(const Scheme* scheme, FindScheme(uri));
    const bool has_names =  // A server's folder is told when it is opened.
        scheme != nullptr &&
        (scheme->open_source == OpenHttp || scheme->open_source == OpenHub);
    if (!options.variant.empty() && !has_names) return HasNoVariants(uri);
    if (scheme == nullptr) {
      HAULWAY_ASSIGN(SourcePtr source, OpenPath(std::string(uri), options));
      return ComparedWithSignature(std::move(source), uri, options);
    }
    if (options.write_through && scheme->open_source != OpenFileUri) {
      return Status(Code::kUnsupported,
                    fmt::format("{} is not a local file: only local files can "
                                "be written through a mapping",
                                Quote(ShownName(uri))));
    }
    HAULWAY_ASSIGN(SourcePtr source, scheme->open_source(uri, options));
    const RemoteOptions& remote = options.remote;
    if (remote.cache_folder.empty()) {
      return ComparedWithSignature(std::move(source), uri, options);
    }
    std::string key = CacheKey(uri);
    // Calls that check the server do not use what others could have changed.
    if (remote.insecure) key += "\nunchecked";
    HAULWAY_ASSIGN(source, MakeCachedSource(std::move(source), std::move(key),
                                            {remote.cache_folder,
                                             remote.most_cached_bytes}));
    return ComparedWithSignature(std::move(source), uri, options);
  });
}

// Returns whether a name in a store is that of a version's folder, without the
// slash at its end: so WeightVersion::path names them.
bool IsVersionOfStore(std::string_view uri) {
  return !LocalPath(uri).has_value() && HasFolders(uri) &&
         !delta::DigitsOfFolder(LastPart(uri)).empty();
}

}  // namespace

Result<SourcePtr> OpenSource(std::string_view uri, const SourceOptions& asked) {
  return OrNoMemory([&]() -> Result<SourcePtr> {
    HAULWAY_ASSIGN(const SourceOptions options, WithSignedModel(uri, asked));
    auto opened = OpenAny(uri, options);
    if (!opened.ok() && IsVersionOfStore(uri) &&
        opened.status().code() == Code::kNotFound) {
      auto folder = OpenAny(fmt::format("{}/", uri), options);
      return folder.ok() ? std::move(folder) : std::move(opened);
    }
    HAULWAY_ASSIGN(SourcePtr source, std::move(opened));
    return WithVersions(std::move(source), uri, options);
  });
}

Result<SinkPtr> OpenSink(std::string_view uri, const SinkOptions& options) {
  return OrNoMemory([&]() -> Result<SinkPtr> {
    if (uri == kStream) {
      return MakeFunctionSink(WriteToOutput, "standard output");
    }
    HAULWAY_ASSIGN(const Scheme* scheme, FindScheme(uri));
    if (scheme != nullptr) return scheme->open_sink(uri, options);
    return OpenFileSink(std::string(uri), options.file);
  });
}

}  // namespace haulway

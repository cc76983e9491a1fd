// From a name to the bytes that it names. This is the only place that
// interprets names of files, folders, streams and URLs, and it holds all
// options for reaching servers: timeouts, retries, certificates, proxies and
// credentials.
//
//   model.pt, /m/model.pt, file:///m/model.pt   a local file
//   model/                                      a folder: its one checkpoint
//   https://host/model.pt, http://...           an object of a server, read by
//                                               ranges: see docs/remote.md
//   s3://bucket/key                             an object of a store: see
//                                               docs/s3.md
//   s3://bucket/prefix/                         a folder: the one checkpoint
//                                               of the objects there
//   redis://host/prefix, rediss://, redis+unix://   tensors in Redis: see
//                                               docs/redis.md
//   hf://org/name[@revision][/path]             a file of a model hub: see
//                                               docs/remote.md
//   -                                           standard input, or output
//
// A name that begins with "SCHEME://" belongs to that scheme; every other name
// is a path.
//
// Secrets are never printed, logged or part of a message: headers, tokens,
// passwords in URLs, query strings.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/fields.h"
#include "haulway/signature.h"
#include "haulway/sink.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

class SignedModel;  // signing.h

// The default of every option `retries`: how often a request that failed with
// kUnavailable or kTimeout is repeated.
inline constexpr int kDefaultRetries = 5;

struct HttpHeader {
  std::string name;
  std::string value;
};

struct RemoteOptions {
  // Sent with every request to the host in the URL. Neither the headers nor the
  // other credentials follow a redirect to another host, port or scheme.
  std::vector<HttpHeader> headers;
  // "Authorization: Bearer ..."; sent to the same hosts as `headers`; empty:
  // none.
  std::string bearer_token;
  // A file in the format of ~/.netrc with a user name and password for the
  // host; empty: none.
  std::string netrc;

  // Trusted certificates: a PEM file and a folder. Empty: the system's.
  std::string ca_file;
  std::string ca_dir;
  // PEM files with the client certificate and its key, which may be in the same
  // file.
  std::string client_certificate;
  std::string client_key;
  // Accept any server certificate. Anyone between this machine and the server
  // can then read and change the data.
  bool insecure = false;

  // "http://host:port", as curl accepts it; empty: none.
  std::string proxy;
  // If `proxy` is empty, use the environment variables http_proxy, https_proxy,
  // all_proxy and no_proxy.
  bool proxy_from_environment = false;

  std::chrono::milliseconds connect_timeout{10'000};
  // A request that receives less than 1 kB per second for this long is
  // repeated.
  std::chrono::milliseconds stall_timeout{30'000};
  // For the whole call, retries included; 0: no limit.
  std::chrono::milliseconds deadline{0};
  // Retries of one request in a row without receiving anything.
  int retries = kDefaultRetries;
  // Retries of all requests together. Each request that succeeds gives back a
  // tenth of a retry.
  int retry_budget = 40;
  // The n-th retry waits a random time of up to first_wait * 2^n, and never
  // longer than longest_wait, even if the server asks for more.
  std::chrono::milliseconds first_wait{200};
  std::chrono::milliseconds longest_wait{20'000};
  // Maximum number of requests in flight.
  int connections = 16;

  // A folder that caches what was read of remote objects, for other processes
  // as well; empty: no cache. An object is cached only if it can be told from
  // another object with the same name, by a strong ETag, a version or a time of
  // change.
  std::string cache_folder;
  // Limit for all objects in the cache folder; the least recently used are
  // removed.
  uint64_t most_cached_bytes = uint64_t{64} << 30;

  // Set to true to end all waits for a server, within a tenth of a second.
  const std::atomic<bool>* cancel = nullptr;
};

inline constexpr FieldTable kRemoteOptionFields{

    Field("headers", &RemoteOptions::headers,
          "dict of headers, sent to the host in the URL and to no other host "
          "that it redirects to",
          {.secret = true, .flag = "-"}),
    Field("bearer_token", &RemoteOptions::bearer_token,
          "bearer token, sent to the same host as `headers`",
          {.secret = true, .flag = "-"}),
    Field("netrc", &RemoteOptions::netrc,
          "file in the format of ~/.netrc with the credentials of hosts",
          {.spelling = Spelling::kPath, .value_name = "FILE"}),
    Field("ca_file", &RemoteOptions::ca_file,
          "PEM file with the certificates to trust; by default those of "
          "CURL_CA_BUNDLE, SSL_CERT_FILE and SSL_CERT_DIR, otherwise the "
          "system's",
          {.spelling = Spelling::kPath, .value_name = "FILE"}),
    Field("ca_dir", &RemoteOptions::ca_dir,
          "folder with the certificates to trust",
          {.spelling = Spelling::kPath, .in_python = false, .flag = "-"}),
    Field("client_certificate", &RemoteOptions::client_certificate,
          "PEM file with the client certificate",
          {.spelling = Spelling::kPath, .value_name = "FILE"}),
    Field("client_key", &RemoteOptions::client_key,
          "PEM file with the client's key, if it is not in the same file",
          {.spelling = Spelling::kPath, .value_name = "FILE"}),
    Field("insecure", &RemoteOptions::insecure,
          "accept any server certificate: anyone between this machine and the "
          "server can then read and change the data"),
    Field("proxy", &RemoteOptions::proxy,
          "URL of a proxy; by default http_proxy, https_proxy, all_proxy and "
          "no_proxy of the environment",
          {.secret = true, .value_name = "URL"}),
    Field("connect_timeout", &RemoteOptions::connect_timeout,
          "time limit for connecting, in seconds"),
    Field("stall_timeout", &RemoteOptions::stall_timeout,
          "seconds after which a request that receives less than 1 kB per "
          "second is repeated"),
    Field("timeout", &RemoteOptions::deadline,
          "time limit in seconds for each read, including its retries; by "
          "default there is none"),
    Field("connections", &RemoteOptions::connections,
          "maximum number of requests in flight", {.least = 1, .most = 1000}),
    Field("cache_dir", &RemoteOptions::cache_folder,
          "folder that caches what is read from URLs, also for other "
          "processes; see docs/remote.md",
          {.spelling = Spelling::kPath, .value_name = "FOLDER"}),
    Field("cache_size", &RemoteOptions::most_cached_bytes,
          "maximum size of the cache folder", {.unit = Quantity::kBytes}),
    Field("retries", &RemoteOptions::retries,
          "how often a failed read or request is repeated",
          {.most = 1000, .in_python = false}),
    Field(
        "retry_budget", &RemoteOptions::retry_budget,
        "how often requests are repeated in all; one that succeeds gives back "
        "a tenth",
        {.in_python = false, .flag = "-"}),
    Field("first_wait", &RemoteOptions::first_wait,
          "seconds that the first retry waits at most; twice as long for each "
          "further one",
          {.in_python = false, .flag = "-"}),
    Field(
        "longest_wait", &RemoteOptions::longest_wait,
        "seconds that a retry waits at most, even if the server asks for more",
        {.in_python = false, .flag = "-"}),
};
constexpr const auto& FieldsOf(const RemoteOptions&) {
  return kRemoteOptionFields;
}

struct SourceOptions {
  // How files are read, as for ByteSource::Reopen(). No effect on sources that
  // are not files.
  IoMode io = IoMode::kMmap;
  // How URLs are reached.
  RemoteOptions remote{};
  // With kMmap: writing to a View() changes the file, which must be writable.
  // Fails with kUnsupported for anything but a local file.
  bool write_through = false;
  // Which checkpoint of a folder to open, "fp16"; empty: the plain one.
  std::string variant{};
  // The checkpoint at the start of a chain of versions, a path or URL. Used if
  // there is none beside the versions.
  std::string base{};
  // The required signer of the model that is opened. `signed_model`, from
  // OpenSignedModel() (signing.h), has been checked already; if it is null and
  // `signature` asks for a signature, OpenSource() makes one. Then every file
  // is compared with the signature before its bytes are returned.
  SignatureOptions signature{};
  std::shared_ptr<SignedModel> signed_model{};
};

inline constexpr FieldTable kSourceOptionFields{
    Field("variant", &SourceOptions::variant,
          "which checkpoint of a folder to open if it holds several, such as "
          "fp16 for model.fp16.safetensors; see docs/opening.md",
          {.value_name = "NAME"}),
    Field("base", &SourceOptions::base,
          "checkpoint with which a chain of versions of weights begins, if it "
          "is not beside them; see docs/deltas.md",
          {.spelling = Spelling::kPath, .value_name = "PATH"}),
};
constexpr const auto& FieldsOf(const SourceOptions&) {
  return kSourceOptionFields;
}

struct SinkOptions {
  // How files are written, and what happens to an existing file.
  FileSinkOptions file{};
  // How URLs are reached.
  RemoteOptions remote{};
};

// Opens what `uri` names. Standard input, and descriptors named /dev/stdin or
// /dev/fd/N that are not files, are read into memory to their end. For a
// folder, the file that FindCheckpoint() finds is opened; if the checkpoint is
// a complete set of files without an index, or the safetensors files of
// processes of torch.distributed.checkpoint, they are opened as one list. Fails
// with kInvalidArgument if a variant is asked for and `uri` is a file; with
// kUnsupported, naming the scheme, for an unknown scheme; with kInvalidArgument
// for an invalid file:// URI; as FindCheckpoint() does for folders; and as
// OpenFileSource() does.
HAULWAY_EXPORT Result<std::shared_ptr<const ByteSource>> OpenSource(
    std::string_view uri, const SourceOptions& options = {});

// Opens what `uri` names for writing: a local file, as OpenFileSink() does, or
// standard output, which receives the bytes in order and immediately. Fails
// with kUnsupported, naming the scheme, for an unknown scheme.
HAULWAY_EXPORT Result<std::unique_ptr<ByteSink>> OpenSink(
    std::string_view uri, const SinkOptions& options = {});

// Combines several checkpoints, which may have different formats, into one
// source. Every function opens, verifies and scans this source as one dict with
// the tensors of all checkpoints under their own names. Opening it fails if two
// checkpoints have a tensor of the same name. Fails with kInvalidArgument for
// an empty list.
HAULWAY_EXPORT Result<std::shared_ptr<const ByteSource>> ListSources(
    std::vector<std::shared_ptr<const ByteSource>> sources);
// ListSources() of what these names name; for one name, OpenSource(). Fails as
// OpenSource() does.
HAULWAY_EXPORT Result<std::shared_ptr<const ByteSource>> OpenSources(
    std::span<const std::string> uris, const SourceOptions& options = {});

// Returns the file that opens the checkpoint in a folder, by the rules of
// docs/opening.md: the file that transformers, diffusers, peft or accelerate
// would open; otherwise the only index, or the only other checkpoint. Does not
// search subfolders. Fails with kNotFound if there is none; with
// kInvalidArgument, naming the candidates, if there are several; with kMismatch
// if a file of the checkpoint is missing; with kTruncated for a directory of
// torch.distributed.checkpoint whose save did not end; and as listing the
// folder does.
HAULWAY_EXPORT Result<std::string> FindCheckpoint(
    std::string_view folder, const RemoteOptions& remote = {},
    std::string_view variant = {});

// Returns the checkpoints in a folder and its subfolders, sorted by name, as
// FolderFiles (folder.h) tells them from parts of others; a folder that is a
// checkpoint ends in '/'. Fails as the system and requests do.
HAULWAY_EXPORT Result<std::vector<std::string>> ListCheckpoints(
    std::string_view folder, const RemoteOptions& remote = {});
// Returns all regular files in a folder and its subfolders, sorted by name. For
// an s3:// folder these are the objects whose keys begin with the folder's key.
HAULWAY_EXPORT Result<std::vector<std::string>> ListFiles(
    std::string_view folder, const RemoteOptions& remote = {});

// Returns whether `uri` names a folder: a path of a folder, or an s3:// name
// that ends in '/' or is only a bucket. Sends no request.
HAULWAY_EXPORT bool IsFolder(std::string_view uri);

// Returns a name that is safe to show: for a URL, without user, password and
// query.
HAULWAY_EXPORT std::string ShownName(std::string_view uri);

// Returns the settings that other tools take from the environment: proxies, and
// the certificates of SSL_CERT_FILE and SSL_CERT_DIR or, without these,
// CURL_CA_BUNDLE. Nothing else in the library reads the environment for http.
HAULWAY_EXPORT RemoteOptions RemoteOptionsFromEnvironment();

// Options of Download().
struct DownloadOptions {
  int threads = 0;  // 0: as many as are useful for the source.
  // Called with the bytes done and the bytes in total, from one thread at a
  // time.
  std::function<void(uint64_t done, uint64_t total)> progress = nullptr;
  const std::atomic<bool>* cancel = nullptr;  // Set to true to stop.
  // Called with the path of the complete file before the file takes its name.
  // If it fails, the download fails with the same status and the received bytes
  // are deleted.
  std::function<Status(const std::string& path)> check = nullptr;
};

struct DownloadStats {
  uint64_t bytes = 0;          // Size of the file.
  uint64_t resumed_bytes = 0;  // Received by an earlier run.
  double seconds = 0;
  // Requests to servers; 0 for other sources.
  uint64_t requests = 0;
  uint64_t retries = 0;
};

inline constexpr FieldTable kDownloadStatFields{
    Field("bytes", &DownloadStats::bytes, "size of the file", Adding::kSum),
    Field("seconds", &DownloadStats::seconds, "duration of the call",
          Adding::kSum),
    Field("requests", &DownloadStats::requests, "requests to servers",
          Adding::kSum),
    Field("retries", &DownloadStats::retries, "requests that were repeated",
          Adding::kSum),
    Field("resumed_bytes", &DownloadStats::resumed_bytes,
          "bytes that an earlier run had received", Adding::kSum),
};
constexpr const auto& FieldsOf(const DownloadStats&) {
  return kDownloadStatFields;
}

// Downloads `source` to the file `path`. The incomplete file grows beside it as
// ".NAME.haulway-part", together with ".NAME.haulway-part.state", which records
// the object and the parts received so far. An interrupted run leaves both
// files, and the next run fetches only the missing parts if the object is still
// the same. When the file is complete, it takes its name in one step. Fails as
// the source and the system do, and with kUnavailable while another process
// downloads the same file.
HAULWAY_EXPORT Result<DownloadStats> Download(
    const ByteSource& source, std::string_view path,
    const DownloadOptions& options = {});

// Settings for s3:// names. A setting that is empty is taken from the
// environment, as OpenSource() and OpenSink() do; docs/s3.md has the order.
struct S3Options {
  std::string access_key, secret_key, session_token;
  bool anonymous = false;  // Do not sign requests.
  // If set, it takes precedence over keys of the environment.
  std::string profile;
  std::string region;
  std::string endpoint;    // "https://host[:port][/path]".
  std::string addressing;  // "path" or "virtual"; empty: as the endpoint needs.
  bool requester_pays = false;
  // 32 bytes with which the service encrypts and decrypts (SSE-C); https only.
  std::string customer_key;
  // Send a CRC-32 with uploads; by default only to AWS.
  std::optional<bool> checksums = std::nullopt;
  // Returns the value of a variable, empty if it is not set; by default the
  // process's environment.
  std::function<std::string(std::string_view name)> environment = nullptr;
};

inline constexpr FieldTable kS3OptionFields{

    Field("access_key", &S3Options::access_key, "id of the access key"),
    Field("secret_key", &S3Options::secret_key, "secret access key",
          {.secret = true}),
    Field("session_token", &S3Options::session_token,
          "token of temporary credentials", {.secret = true}),
    Field("anonymous", &S3Options::anonymous, "do not sign requests"),
    Field("profile", &S3Options::profile, "profile of the configuration file"),
    Field("region", &S3Options::region, "region of the bucket"),
    Field("endpoint", &S3Options::endpoint, "URL of the service"),
    Field("addressing", &S3Options::addressing, "\"path\" or \"virtual\""),
    Field("requester_pays", &S3Options::requester_pays,
          "let the requester pay for the transfer"),
    Field("customer_key", &S3Options::customer_key,
          "32 bytes with which the service encrypts and decrypts",
          {.secret = true}),
    Field("checksums", &S3Options::checksums, "send a CRC-32 with uploads"),
};
constexpr const auto& FieldsOf(const S3Options&) { return kS3OptionFields; }

// Opens an object, read by ranges of one version. Fails with kInvalidArgument
// for a name that is not s3://BUCKET/KEY[?versionId=V], kAuth if there are no
// credentials, and as HTTP requests do: kNotFound, kPermissionDenied,
// kUnavailable, kTimeout, kCorrupt (the object was replaced).
HAULWAY_EXPORT Result<std::shared_ptr<const ByteSource>> OpenS3Source(
    std::string_view uri, const S3Options& options = {},
    const RemoteOptions& remote = {});

// Opens an object for writing. The object is uploaded in parts while it is
// written, over `remote.connections` connections with at most 128 MiB in
// transit. It becomes visible, complete, with Commit(). Without Commit(), or
// after a failure, the upload is aborted; if aborting fails too, the message
// says how to do it. In `file` only `existing` has an effect. An ordered sink.
// Fails with kInvalidArgument for a name that is not s3://BUCKET/KEY, kAuth if
// there are no credentials, and as HTTP requests do: kNotFound,
// kPermissionDenied, kUnavailable, kTimeout.
HAULWAY_EXPORT Result<std::unique_ptr<ByteSink>> OpenS3Sink(
    std::string_view uri, const S3Options& options = {},
    const FileSinkOptions& file = {}, const RemoteOptions& remote = {});

// Aborts uploads that were started but neither completed nor aborted: those of
// one object or, for a name that ends in '/', of all objects below it. Returns
// how many.
HAULWAY_EXPORT Result<uint64_t> AbortS3Uploads(
    std::string_view uri, const S3Options& options = {},
    const RemoteOptions& remote = {});

// Returns a URL that lets anyone who has it GET the object for the next
// `seconds`, at most a week.
HAULWAY_EXPORT Result<std::string> PresignS3(std::string_view uri,
                                             uint64_t seconds,
                                             const S3Options& options = {});

}  // namespace haulway
